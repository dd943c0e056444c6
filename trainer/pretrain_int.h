/* pretrain - cross-entropy over a corpus in Megatron's layout, one step at a time. */
#ifndef K2_TRAINER_PRETRAIN_INT_H
#define K2_TRAINER_PRETRAIN_INT_H

#include "common/config/config.h"
#include "common/data/data.h"
#include "common/wire/batch.h"
#include "trainer/learner_int.h"
#include "trainer/metrics_int.h"

typedef struct k2i_pretrain k2i_pretrain;

/* k2i_pretrain_open - the corpus of config->data_corpus, checked against the model, and its order.
 *
 * memory   the corpus is mapped; k2i_pretrain_close frees the rest. config must outlive it
 * errors   those of k2_idx_open and k2_idx_check_vocab; LIMIT where pretrain.sequence_tokens does not fit trainer.micro_tokens
 *          or the model's positions
 */
k2_code k2i_pretrain_open(const k2_config *config, const k2_dims *dims, k2i_pretrain **out, k2_error *err);
void k2i_pretrain_close(k2i_pretrain *p); /* NULL is fine */

/* k2i_pretrain_step - step number `step`, counted from 0. A collective.
 *
 * keeps    *bad: NULL, or what was NaN or infinite (a literal): then parameters and optimizer are as before, bit for bit.
 *          It depends on (seed, step) and the parameters only: no state is carried from step to step
 * errors   those of k2i_learner_update; BAD_INPUT from the corpus
 * tests    tests/unit/trainer/pretrain_test.c
 */
k2_code k2i_pretrain_step(k2i_pretrain *p, k2i_learner *l, uint64_t step, k2i_metrics *metrics, const char **bad,
                          k2_error *err);

/* k2i_pretrain_repeat - the same update from sequences that k2i_pretrain_encode kept; the corpus is not needed.
 *
 * errors   as above; LIMIT where a sequence does not fit trainer.micro_tokens
 */
k2_code k2i_pretrain_repeat(const k2_config *config, k2i_learner *l, const k2_batch *batch, k2i_metrics *metrics,
                            const char **bad, k2_error *err);

/* The sequences of the last step as a batch (see common/wire/batch.h): first token as prompt, the rest as generated,
 * log-probabilities 0. */
k2_code k2i_pretrain_encode(const k2i_pretrain *p, uint64_t step, k2_buf *out, k2_error *err);

/* Every sequence by itself, as k2i_rl_each does for trajectories. */
void k2i_pretrain_each(const k2_batch *batch, k2i_visit visit, void *arg);

#endif
