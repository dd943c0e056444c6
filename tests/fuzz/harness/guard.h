/* guard - bytes with nothing readable before or behind them.
 *
 * One mapping: a page without access, readable pages, a page without access. What is placed at the end has its last byte in front of
 * the second page, what is placed at the start its first byte behind the first; reading one byte further faults in every
 * build, sanitizer or not, and so does writing into an input.
 */
#ifndef K2_TEST_GUARD_H
#define K2_TEST_GUARD_H

#include "common/base/base.h"

#define K2_GUARD_BYTES (1u << 20) /* the largest input that can be placed */

typedef enum k2_guard_side { K2_GUARD_END, K2_GUARD_START } k2_guard_side;

/* A copy of the bytes on that side; it lies there until the next one is placed on either side.
 *
 * align    the address is a multiple of it (a power of two), so up to align - 1 bytes, 0xa5 each, may be left at the end
 */
const uint8_t *k2_guard_place(k2_guard_side side, const void *bytes, size_t n, size_t align);

#endif
