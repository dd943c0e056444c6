/* trainer - the role that holds the optimizer: it learns from batches and corpora, publishes weights, writes checkpoints.
 *
 * A trainer process is one *rank*; ranks 0..N-1 hold equal weights and a shard of the optimizer each, and talk to one another
 * through common/coll only. The master sends every command to every rank under one command id; a rank answers each with DONE.
 * Rank = the worker's index. All ranks must get the same commands in the same order, because each contains collectives.
 *
 * The commands, in the order of a run (field names are those of common/wire):
 *
 *   JOIN     {}                        opens this rank's segment for collectives; forgets an earlier group and all model state.
 *            DONE {locators[1]}        this rank's locator. Allowed at any time: it is how survivors re-form after a rank died.
 *   INIT     {locators[ranks], source, step}
 *                                      locators in rank order (this rank's own among them). source is "fresh" (random by
 *                                      `seed`, or the Hugging Face directory `model.dir`), or the path of a checkpoint
 *                                      directory; step is the step that the master expects there (0 for "fresh"; else a
 *                                      mismatch is BAD_INPUT). Must follow JOIN. Refused with LIMIT when the machine has less
 *                                      memory than it needs.
 *            DONE {digest, metrics: step, pretrain_step, params, active_params, memory_bytes}
 *   PRETRAIN {from, to}                pretraining steps from, from+1, ... to-1; `from` must be the number of pretraining steps
 *                                      done so far. Metrics are over the slice (means; sums for tokens and skipped; maxima for
 *                                      *_max), so the master chooses how often it hears by the size of its slices.
 *            DONE {metrics}
 *   TRAIN    {step, locator, bytes, digest}      digest is k2_digest_of all the bytes
 *                                      one RL step on the batch at `locator` (common/wire/batch.h). Makes version `step` out of
 *                                      version step-1; `step` must be exactly one more than the last. A batch whose bytes do
 *                                      not match `digest` is CORRUPT and changes nothing (send it again under a new command
 *                                      id).
 *            DONE {metrics}            a step that met NaN or infinity, or whose update would leave such a weight or moment, is
 *                                      OK with metric skipped = 1: weights as before, version counts up; rank 0 puts it into
 *                                      run.dir/quarantine.
 *   PUBLISH  {version}                 version must be the last step. Rank 0 lays all tensors into one segment; that of the
 *                                      version before stays readable until the next PUBLISH.
 *            DONE {locators[1] on rank 0, none on others, bytes, digest}   digest = weights_digest, equal on all ranks
 *   SAVE     {dir, step}               dir is the checkpoint directory to make, e.g. runs/x/checkpoints/step_0000012. Rank 0
 *                                      writes it (config.json, model.safetensors, optimizer.state, trainer.json), reads it
 *                                      back and renames it into place; an existing dir is replaced. `latest` is the master's to
 *                                      write. A disk that is full costs the checkpoint only: the trainer goes on.
 *            DONE {digest, bytes} from rank 0; the other ranks say nothing but OK
 *   STOP     {}                        DONE, then the process exits with 0.
 *
 * `version` and `step` are one number: version 0 is what RL starts from (after any pretraining), version s the result of TRAIN
 * s. The same command id again is answered from memory; a lower id is refused (FENCED); a command out of order is BAD_INPUT; a
 * second command before DONE of the first is BUSY. When a collective fails, DONE carries its code and names the rank: the
 * master then replaces the dead rank and sends JOIN, INIT to all of them. Recovery is INIT from the last checkpoint and TRAIN
 * of the journaled batches.
 *
 * Metrics of a step (names in DONE and in metrics.jsonl): loss, grad_norm, lr, tokens (all tokens through the model),
 * tokens_loss (tokens in the loss), seconds, tokens_per_s, entropy, skipped, load_max_vio (mean over MoE layers of max load /
 * mean load - 1), load_max_vio_max (worst layer), load_max_vio.<layer>, balance (sequence auxiliary loss without
 * its weight, a sequence's sum over layers; each layer's is 1 where all experts are used evenly), attn_score_max (largest attention score of any head),
 * qk_clipped (heads that were scaled down); for TRAIN also reward_mean, reward_std, mismatch_mean
 * and mismatch_max (|log-prob trainer - log-prob rollout| over tokens of the current version: 0 with the built-in engine),
 * ratio_mean, ratio_min, ratio_max (pi_new / pi_old of the last update), clip_share, masked_tokens (generated tokens out of the
 * loss: of earlier versions, of a group that dapo drops, outside of icepop's bounds), correction_mean, groups, groups_flat (groups whose rewards are all equal: no gradient comes from them), updates, and with a reference model kl (mean of
 * trainer.kl.estimator over tokens in the loss, at pi_old).
 */
#ifndef K2_TRAINER_H
#define K2_TRAINER_H

#include "common/base/base.h"
#include "common/quarantine/quarantine.h"

/* k2_trainer_main - `k2rl trainer --master URL --index I [--nonce N]`; the launch token is in the environment (K2RL_TOKEN).
 *
 * errors   bad arguments: one line on stderr and exit status 2; lost master: exit status 1; STOP: 0
 * threads  owns the calling thread until it returns
 */
int k2_trainer_main(int argc, char **argv);

/* k2_trainer_repeat - the step of a quarantine entry again, alone: every trajectory by itself, what was NaN or infinite, and
 * whether the weights come out as they did in the run.
 *
 * Everything is that of the run but the ranks: one rank owns all lanes, which gives the same bits.
 *
 * note     kind STEP or PRETRAIN, read from dir
 * json     one object on stdout instead of a table
 * returns  exit status: 0 reproduced, 1 not, 2 an entry that cannot be used (one line on stderr)
 * threads  owns the calling thread until it returns
 * tests    tests/unit/trainer/repeat_test.c, tests/e2e/poison_test.sh
 */
int k2_trainer_repeat(const char *dir, const k2_quarantine_note *note, bool json);

/* k2_trainer_weights - the weights that an entry's start and batches lead to, as a Hugging Face directory.
 *
 * errors   those of reading it; CORRUPT: they are not note->weights
 */
k2_code k2_trainer_weights(const char *dir, const k2_quarantine_note *note, const char *model_dir, k2_error *err);

#endif
