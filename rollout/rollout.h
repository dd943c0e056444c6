/* rollout - the worker that generates: the built-in inference engine, its OpenAI-compatible server, and the rewards.
 *
 * Nouns: a *request* is one prompt with the rule by which tokens are drawn for it; a *page* is `rollout.page_tokens`
 * positions of latent cache; a *version* is one set of weights with its digest. Three threads: the loop owns everything
 * that talks (control plane, HTTP, score requests), the engine thread owns the engine core and the model, the reward
 * thread owns the user's reward command. The folder's own headers end in _int.h; the entry point below is all that the
 * executable needs.
 *
 *        HTTP ──► server ──► engine ──► core (requests, pages, sampling) ──► model
 *      master ──► worker ──► pull (xfer, digests) ──► staged weights ──► switch between two steps
 */
#ifndef K2_ROLLOUT_H
#define K2_ROLLOUT_H

#include "common/quarantine/quarantine.h"

/* k2_rollout_main - run one rollout worker, or serve a model directory alone.
 *
 *   k2rl rollout --master URL --index I [--nonce N]              worker of a run; the configuration comes from the master
 *   k2rl rollout --model DIR [--listen HOST:PORT] [--name NAME]  serve a Hugging Face directory; no master
 *
 * argv[0] is "rollout". `--help` prints every option.
 *
 * errors   the exit status: 0 after a clean stop, 2 for bad input (one line on stderr names it), 1 otherwise
 * threads  call it once, from the main thread
 * tests    tests/unit/rollout
 */
int k2_rollout_main(int argc, char **argv);

/* k2_rollout_repeat_prompt - ask an engine with these weights, in a process of its own, what a run's engines died of.
 *
 * returns  exit status: 0 it died again, 1 it did not, 2 an entry that cannot be used (one line on stderr)
 * threads  the process's main thread; owns it until it returns
 * tests    tests/e2e/poison_test.sh
 */
int k2_rollout_repeat_prompt(const char *dir, const k2_quarantine_note *note, const char *model_dir, bool json);

/* k2_rollout_repeat_reward - the same for a reward: the command gets the item, under its deadline, from a process of its own.
 * Reproduced is: no reward again, or where the entry counts deaths, the process ended again. */
int k2_rollout_repeat_reward(const char *dir, const k2_quarantine_note *note, bool json);
/* What that process does: prints "reward X" or "no reward: WHY". */
int k2_rollout_reward_here(const char *dir);

#endif
