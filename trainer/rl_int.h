/* rl - one step of reinforcement learning on a batch of scored trajectories. */
#ifndef K2_TRAINER_RL_INT_H
#define K2_TRAINER_RL_INT_H

#include "common/config/config.h"
#include "common/wire/batch.h"
#include "trainer/learner_int.h"
#include "trainer/metrics_int.h"

/* k2i_rl_check - is this batch one that the model can be trained on?
 *
 * errors   BAD_INPUT or LIMIT, naming the trajectory: a token outside the vocabulary, no prompt or no answer, tokens of a
 *          version that does not exist yet, a trajectory longer than the model's positions or than trainer.micro_tokens
 * threads  pure: all ranks come to the same answer
 */
k2_code k2i_rl_check(const k2_batch *batch, const k2_dims *dims, const k2_config *config, k2_error *err);

/* k2i_rl_step - train on a checked batch: trainer.epochs passes of trainer.minibatches updates each. A collective.
 *
 * The log-probabilities of pi_old for the first update are those of its own forward; for the other minibatches they are
 * computed before it. Minibatches are runs of whole groups in order of id, cut by number of groups. A minibatch
 * without one token in the loss makes no update. With trainer.kl the frozen model (k2i_learner_reference, filled) has a forward of
 * the whole batch before that, and so has pi_old where the distance between them is for the reward.
 *
 * keeps    *bad: NULL, or what was NaN or infinite in one of its updates (a literal): then parameters and optimizer are as before the step, bit for bit
 * errors   those of k2i_learner_update
 * tests    tests/unit/trainer/rl_test.c
 */
k2_code k2i_rl_step(k2i_learner *l, const k2_config *config, const k2_batch *batch, k2i_metrics *metrics,
                    const char **bad, k2_error *err);

/* k2i_rl_each - every trajectory by itself, as the first pass of the step sees it: for looking at a step, not for training.
 *
 * keeps    nothing changes but what `visit` changes; trajectories without one token in the loss are visited too
 */
void k2i_rl_each(k2i_learner *l, const k2_config *config, const k2_batch *batch, k2i_visit visit, void *arg);

#endif
