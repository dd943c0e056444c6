/* faults - what befalls a run, as a list of single events.
 *
 * Every place where something could go wrong is an *opportunity*: the n-th one of its kind for one worker. Whether it does is
 * a function of (seed, kind, worker, n) alone, so that a run can be repeated with any part of its faults: from a list,
 * exactly the opportunities that stand in it go wrong. That is what the shrinker works with.
 *
 * A fault is written KIND:WORKER:N, "drop:3:17"; workers are numbered as in the fleet, trainers first, then rollouts, then the
 * proxy; "master" stands for the master, its disk and the clock.
 */
#ifndef K2_TESTS_SIM_FAULTS_INT_H
#define K2_TESTS_SIM_FAULTS_INT_H

#include "common/base/base.h"

/* kind, name, chance of one opportunity is one in so many (0: from a list only), what happens */
#define SIM_FAULTS(X)                                                                                                       \
    X(DROP, "drop", 12, "a control message is lost")                                                                        \
    X(DUPLICATE, "duplicate", 12, "a control message comes twice")                                                          \
    X(DELAY, "delay", 10, "a message takes up to 200 ms longer: later ones overtake it")                                    \
    X(DEAF, "deaf", 150, "for up to 2 s nothing that the master sends reaches a process")                                   \
    X(MUTE, "mute", 150, "for up to 2 s nothing that a process sends reaches the master")                                   \
    X(KILL_TRAINER, "kill-trainer", 120, "a trainer is killed")                                                             \
    X(KILL_ROLLOUT, "kill-rollout", 120, "a rollout worker is killed")                                                      \
    X(KILL_PROXY, "kill-proxy", 120, "the proxy is killed")                                                                 \
    X(KILL_MASTER, "kill-master", 80, "the master is killed, with everybody; the same command comes again")                 \
    X(CRASH_AT, "crash-at", 150, "the master dies when a step's records are durable, before it acts on them")               \
    X(CRASH_WRITING, "crash-writing", 60, "the master dies before it hears that a write of the journal has ended")          \
    X(TAIL_KEPT, "tail-kept", 1, "a write that was under way when the master died is on the disk all the same")             \
    X(KILL_HOST, "kill-host", 100, "all trainers and rollout workers are killed at once")                                   \
    X(STOP, "stop", 200, "a process is stopped for up to 2.5 s")                                                            \
    X(LATE_KILL, "late-kill", 1, "a process that was replaced lives for up to 3 s more")                                    \
    X(SLOW, "slow", 3, "a process computes 10 to 60 times slower")                                                          \
    X(CLOCK_JUMP, "clock-jump", 100, "the clock jumps by up to 2 s")                                                        \
    X(FLIP_CHUNK, "flip-chunk", 40, "a bit of a chunk of weights is wrong")                                                 \
    X(CUT_CHUNK, "cut-chunk", 40, "a chunk of weights ends in its middle")                                                  \
    X(OTHER_CHUNK, "other-chunk", 40, "a chunk of weights is read from another place")                                      \
    X(OTHER_WEIGHTS, "other-weights", 25, "behind a locator stand other weights, whole")                                    \
    X(BREAK_STREAM, "break-stream", 12, "the connection of an answer breaks")                                               \
    X(BREAK_CALL, "break-call", 20, "the connection of a request of the master to the proxy breaks")                        \
    X(STALL_STREAM, "stall-stream", 25, "a request to an engine, or what the engine answers, is lost silently")             \
    X(LOSE_ANSWER, "lose-answer", 30, "the proxy's answer to the master is lost silently")                                  \
    X(LATE_ANSWER, "late-answer", 8, "the proxy's answer takes up to 800 ms")                                               \
    X(HALF_OPEN, "half-open", 2, "an engine does not hear that nobody waits for its answer any more")                       \
    X(LOSE_SCORE, "lose-score", 8, "a request for rewards fails")                                                           \
    X(FAIL_TRAIN, "fail-train", 60, "a collective of the trainers fails")                                                   \
    X(DISK_FULL, "disk-full", 150, "for up to 600 ms the disk is full; the run ends and is begun again when there is room") \
    X(DISK_SLOW, "disk-slow", 10, "a write of the journal takes up to 600 ms")

typedef enum sim_fault_kind {
#define K2_X(kind, name, chance, text) SIM_##kind,
    SIM_FAULTS(K2_X)
#undef K2_X
    SIM_FAULT_KINDS
} sim_fault_kind;

#define SIM_HITS_MAX 32768u
#define SIM_MASTER   63u /* as the worker of a fault */

/* One opportunity that went wrong. */
typedef struct sim_hit {
    uint8_t kind, who;
    uint32_t nth, at_ms; /* at_ms: when it was, for people */
} sim_hit;

const char *sim_fault_name(sim_fault_kind k);
const char *sim_fault_text(sim_fault_kind k);
uint32_t sim_fault_chance(sim_fault_kind k);
static inline uint64_t sim_hit_key(const sim_hit *h) { return (uint64_t)h->kind << 40 | (uint64_t)h->who << 32 | h->nth; }

/* Text of a list, separated by commas; "none" where it is empty. */
void sim_hits_print(const sim_hit *hits, size_t count, k2_buf *out);
/* The list in the order of its keys, which is how a run wants it. "@PATH" reads a file; words are separated by commas, blanks
 * and lines, and "#" begins a comment. BAD_INPUT names the word. */
k2_code sim_hits_parse(const char *text, sim_hit *hits, size_t max, size_t *count, k2_error *err);

#endif
