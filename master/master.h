/* master - the process that holds the plan: workers and their leases, the iteration, the registry of weight versions, the
 * replay buffer and its journal, checkpoints, evaluation, and what people see of a run.
 *
 * Anatomy: `core` is a pure state machine (one event in, a bounded list of actions out), `io` is the loop, sockets, files and
 * children around it. The folder's own headers end in _int.h; the entry point below is all that the executable needs.
 */
#ifndef K2_MASTER_H
#define K2_MASTER_H

#include "common/quarantine/quarantine.h"

/* k2_master_main - `k2rl master --cfg F [options]`; `--help` prints every option.
 *
 * errors   the exit status: 0 when the run has ended or was drained by Ctrl-C, 2 for bad input (one line on stderr names it), 1
 *          otherwise
 * threads  call it once, from the main thread
 * tests    tests/unit/master
 */
int k2_master_main(int argc, char **argv);

/* k2_why_main - `k2rl why [RUN_DIR | --master URL] [--json]`: who is blocking a run, or where a dead one stood.
 *
 * errors   the exit status: 2 where there is no run, 1 where its master does not answer
 * threads  call it once, from the main thread
 * tests    tests/e2e/why_test.sh
 */
int k2_why_main(int argc, char **argv);

/* k2_top_main - `k2rl top [RUN_DIR | --master URL] [--once] [--json] [--interval S]`: how a run goes, live.
 *
 * errors   the exit status: 2 for bad input and where no master runs, 1 where it does not answer (a live view goes on asking)
 * threads  call it once, from the main thread
 * tests    tests/unit/master/overview_test.c, tests/e2e/top_test.sh
 */
int k2_top_main(int argc, char **argv);

/* k2_trace_main - `k2rl trace [RUN_DIR] [-o FILE] [--last SECONDS] [--json-summary]`: the flight recorders of a run as one trace.
 *
 * errors   the exit status: 2 for bad input and where no ring is, 1 where the trace cannot be written
 * threads  call it once, from the main thread
 * tests    tests/e2e/trace_test.sh
 */
int k2_trace_main(int argc, char **argv);

/* k2_stacks_main - `k2rl stacks [RUN_DIR] [--json] [--all]`: call stacks of all processes of a run on this machine.
 *
 * errors   the exit status: 2 where there is no run or none of its processes is alive
 * threads  call it once, from the main thread
 * tests    tests/e2e/stacks_test.sh
 */
int k2_stacks_main(int argc, char **argv);

/* How each kind of entry is repeated; see trainer/trainer.h and rollout/rollout.h. The door brings them together: no role knows
 * another. */
typedef struct k2_replay_step_ops {
    int (*step)(const char *dir, const k2_quarantine_note *note, bool json);
    k2_code (*weights)(const char *dir, const k2_quarantine_note *note, const char *model_dir, k2_error *err);
    int (*prompt)(const char *dir, const k2_quarantine_note *note, const char *model_dir, bool json);
    int (*reward)(const char *dir, const k2_quarantine_note *note, bool json);
    int (*here)(const char *dir);
} k2_replay_step_ops;

/* k2_replay_step_main - `k2rl replay-step DIR | RUN_DIR --step N [--json]`: repeat an entry of quarantine, or a step of a run
 * whose master does not run and whose journal has the batch.
 *
 * errors   the exit status: 0 it came out as in the run, 1 it did not, 2 bad input
 * threads  call it once, from the main thread
 * tests    tests/e2e/poison_test.sh
 */
int k2_replay_step_main(int argc, char **argv, const k2_replay_step_ops *ops);

#endif
