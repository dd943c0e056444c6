/* pack - how the sequences of a step become micro-batches: whole, in order, without padding.
 *
 * The cut depends only on the lengths, the cap and the number of lanes, never on ranks or threads: micro-batch m belongs to
 * lane m % lanes, so the sums of gradients are the same on any machine.
 */
#ifndef K2_TRAINER_PACK_INT_H
#define K2_TRAINER_PACK_INT_H

#include "common/base/base.h"

typedef struct k2i_micro {
    uint32_t first, count; /* sequences first .. first+count-1 */
    uint32_t tokens;
} k2i_micro;

/* k2i_pack - cut n sequences into micro-batches of at most micro_tokens tokens.
 *
 * The fewest rounds of `lanes` micro-batches that can hold the tokens are aimed at, and the tokens spread evenly over them, so
 * that lanes working side by side end together. An odd length can make one more micro-batch than aimed at.
 *
 * memory   out has room for n entries; *count <= n is set on success
 * errors   LIMIT when one sequence alone is longer than micro_tokens; BAD_INPUT when one is empty; both name it
 * tests    tests/unit/trainer/pack_test.c
 */
k2_code k2i_pack(const uint32_t *lengths, uint32_t n, uint32_t micro_tokens, uint32_t lanes, k2i_micro *out, uint32_t *count,
                 k2_error *err);

#endif
