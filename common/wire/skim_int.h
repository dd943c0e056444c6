/* A look at the bones of msgpack bytes, before anything is reserved for them. */
#ifndef K2_COMMON_WIRE_SKIM_INT_H
#define K2_COMMON_WIRE_SKIM_INT_H

#include "common/base/base.h"

#define K2_WIRE_DEPTH_MAX 4u /* map of fields, list, item of a list, and one to spare; msgpack-c itself stops at 32 */

/* Walk over exactly one value that fills n bytes; *values is how many values it holds, itself included. INCOMPLETE when
 * bytes are missing, BAD_INPUT for trailing bytes, extension types, the reserved byte; LIMIT for depth or
 * K2_WIRE_VALUES_MAX. */
k2_code k2i_wire_skim(const unsigned char *bytes, size_t n, uint32_t *values, k2_error *err);

#endif
