/* sampler - which pieces of the corpus a pretraining step reads: a pure function of (seed, step).
 *
 * The corpus is a list of *windows*: a document of L tokens predicts L-1 next tokens and gives ceil((L-1) / sequence_tokens)
 * windows, neighbours sharing one token, so that every token but the first is predicted exactly once an epoch. A document of
 * fewer than two tokens gives none. Each epoch visits all windows once, in an order drawn from (seed, epoch); step s takes the
 * `batch_sequences` windows from position s * batch_sequences on, running over into the next epoch.
 */
#ifndef K2_TRAINER_SAMPLER_INT_H
#define K2_TRAINER_SAMPLER_INT_H

#include "common/base/base.h"

#define K2I_WINDOWS_MAX 0x7fffffffu /* windows of one corpus: the order of an epoch is kept as 32-bit numbers */

typedef struct k2i_window {
    uint64_t document, offset; /* reads tokens offset .. offset+tokens of the document */
    uint32_t tokens;           /* predictions in it, 1 .. sequence_tokens */
} k2i_window;

typedef struct k2i_sampler k2i_sampler;

/* k2i_sampler_new - `length(arg, d)` gives the tokens of document d; called once per document, in order.
 *
 * memory   8 bytes a document and 4 bytes a window; end with k2i_sampler_free
 * errors   BAD_INPUT when there is not one window; LIMIT above K2I_WINDOWS_MAX
 * threads  not thread-safe: a step may draw the order of a new epoch
 * tests    tests/unit/trainer/sampler_test.c
 */
k2_code k2i_sampler_new(uint64_t documents, uint64_t (*length)(void *arg, uint64_t document), void *arg,
                        uint32_t sequence_tokens, uint64_t seed, k2i_sampler **out, k2_error *err);
void k2i_sampler_free(k2i_sampler *s);
uint64_t k2i_sampler_windows(const k2i_sampler *s);
/* Windows of step `step` (from 0) into out[0..n-1]; n is the batch size and must be the same at every step. */
void k2i_sampler_step(k2i_sampler *s, uint64_t step, uint32_t n, k2i_window *out);

#endif
