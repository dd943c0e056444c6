/* flight - each process's last events, in a file that outlives it.
 *
 * A process has one *recorder*: a ring of fixed slots in RUN_DIR/flight/<role>-<index>.<start>-<pid>.ring, mapped shared, so
 * that what was recorded is in the page cache and stays there whatever ends the process (SIGKILL too; a machine's crash loses
 * it). An *event* has a name from one table, a time, a thread, and up to four numbers whose meaning the table says. What has
 * begun and not ended stands besides in a small stack for each thread, so that it is known also when the ring has long wrapped.
 *
 * Call sites are one line and do nothing where no recorder is open. Only code that does I/O records; cores do not.
 *
 *      span      k2_flight_begin .. k2_flight_end   on one thread, nested: a collective, an engine's step, a commit
 *      request   k2_flight_start .. k2_flight_finish by id, on any thread, overlapping: a request, a transfer
 *      state     k2_flight_state                     what the process as a whole does now: ends the state before it
 *      instant   k2_flight_mark                      a thing that happened
 *      counter   k2_flight_count                     numbers that stand until the next ones: lengths of queues
 *
 * memory   the file, reserved when it is opened; nothing is allocated afterwards
 * errors   none of the recording functions can fail; what does not fit (threads beyond K2_FLIGHT_THREADS_MAX, spans nested
 *          deeper than K2_FLIGHT_DEPTH_MAX) is left out and counted
 * threads  any, without a lock or a wait; k2_flight_mark also inside a signal handler
 * tests    tests/unit/flight
 */
#ifndef K2_COMMON_FLIGHT_H
#define K2_COMMON_FLIGHT_H

#include "common/base/base.h"

#define K2_FLIGHT_THREADS_MAX 31u /* of one process: loop, engine, pool, gradient lanes */
#define K2_FLIGHT_DEPTH_MAX   8u  /* spans inside spans on one thread; command, collective and transfer are three */
#define K2_FLIGHT_KIB_MIN     64u
#define K2_FLIGHT_KIB_MAX     65536u
#define K2_FLIGHT_KEPT        4u /* rings of one role and index that stay: the new one and those of the three starts before */
#define K2_FLIGHT_ARGS        4u
#define K2_FLIGHT_NONE        UINT64_MAX /* an argument that there is none of: not shown */

/* Collective operations: name, name for people. The group of ranks that does them is common/coll's. */
#define K2_FLIGHT_COLLECTIVES(X)                                                                                               \
    X(JOIN, "join")                                                                                                            \
    X(REDUCE_SCATTER, "reduce_scatter_lanes")                                                                                  \
    X(ALL_GATHER, "all_gather")                                                                                                \
    X(ALL_GATHER_BYTES, "all_gather_bytes")                                                                                    \
    X(BROADCAST, "broadcast")                                                                                                  \
    X(BARRIER, "barrier")

/* Every name: category, what the trace shows, then its four numbers ("" = none). Behind a colon stands how one is to be read:
 *   :code  a k2_code      :text  up to 8 characters (k2_flight_text), 16 where the next one is "+"
 *   :coll  k2_flight_coll: operation, rank and ranks of a collective
 */
#define K2_FLIGHT_NAMES(X)                                                                                                     \
    X(PHASE, "control", "phase", "name:text", "+", "iteration", "version")                                                     \
    X(COMMAND, "control", "command", "name:text", "cmd", "step", "code:code")                                                  \
    X(SENT, "control", "sent", "name:text", "cmd", "worker", "incarnation")                                                    \
    X(DONE, "control", "done", "name:text", "cmd", "worker", "code:code")                                                      \
    X(POLL, "control", "poll", "answer:text", "+", "cmd", "")                                                                  \
    X(LAUNCH, "control", "launch", "role:text", "index", "incarnation", "")                                                    \
    X(EXITED, "control", "exited", "worker", "incarnation", "exit_code", "signal")                                             \
    X(LOST, "control", "lost", "code:code", "", "", "")                                                                        \
    X(COLLECTIVE, "collective", "collective", "group", "seq", "bytes", "op:coll")                                              \
    X(TRANSFER, "transfer", "transfer", "bytes", "retries", "transport:text", "code:code")                                     \
    X(CHUNK_FAILED, "transfer", "chunk_failed", "offset", "bytes", "attempt", "code:code")                                     \
    X(RECORDS, "journal", "commit", "records", "bytes", "seq", "code:code")                                                    \
    X(REQUEST, "request", "request", "trajectory", "position", "max_tokens", "tokens")                                         \
    X(ROUTED, "request", "routed", "trajectory", "position", "engine", "attempt")                                              \
    X(ADMITTED, "request", "admitted", "trajectory", "position", "prompt_tokens", "max_tokens")                                \
    X(FIRST_TOKEN, "request", "first_token", "trajectory", "position", "", "")                                                 \
    X(ATTEMPT_FAILED, "request", "attempt_failed", "trajectory", "engine", "tokens", "why:text")                               \
    X(QUEUES, "request", "requests", "waiting", "running", "", "")                                                             \
    X(SCORES, "reward", "scores", "trajectory", "count", "", "")                                                               \
    X(REWARD, "reward", "reward", "trajectory", "attempt", "answered", "")                                                     \
    X(STEP, "engine", "engine_step", "rows", "wanted", "running", "waiting")                                                   \
    X(PULL, "weights", "weights_pull", "version", "bytes", "sources", "code:code")                                             \
    X(SWITCH, "weights", "weights_switch", "version", "", "", "")                                                              \
    X(GATE, "weights", "gate", "version", "", "", "")                                                                          \
    X(BATCH, "train", "batch", "step", "", "bytes", "")                                                                        \
    X(MICRO, "train", "micro_batch", "pass:text", "number", "lane", "tokens")                                                  \
    X(UPDATE, "train", "update", "number", "", "", "")                                                                         \
    X(CHECKPOINT, "train", "checkpoint", "step", "bytes", "", "code:code")                                                     \
    X(TEST, "test", "test", "a", "b", "text:text", "+")

typedef enum k2_flight_name {
#define K2_X(name, category, text, a, b, c, d) K2_FLIGHT_##name,
    K2_FLIGHT_NAMES(K2_X)
#undef K2_X
    K2_FLIGHT_NAME_COUNT
} k2_flight_name;

typedef enum k2_flight_collective {
#define K2_X(name, text) K2_FLIGHT_COLL_##name,
    K2_FLIGHT_COLLECTIVES(K2_X)
#undef K2_X
    K2_FLIGHT_COLL_COUNT
} k2_flight_collective;

const char *k2_flight_collective_text(uint32_t op); /* "an unknown operation" beyond the table */

typedef struct k2_flight_config {
    const char *dir;  /* of the run; its sub-directory flight is made */
    const char *role; /* at most 15 letters */
    uint32_t index;
    uint64_t incarnation;
    const char *run_id;
    uint64_t kib; /* size of the file; 0 = nothing is recorded */
} k2_flight_config;

/* k2_flight_open - make this process's ring, and remove those of its role and index beyond the last K2_FLIGHT_KEPT.
 *
 * memory   kib of disk, reserved at once: a disk that fills up later cannot hurt
 * errors   NO_SPACE, IO, LIMIT (size), BAD_INPUT (role): nothing is recorded then, and nothing else is wrong
 * threads  once, before other threads record
 */
k2_code k2_flight_open(const k2_flight_config *config, k2_error *err);
/* An orderly end: the ring says so. Recording stops; the mapping stays, another thread may be writing into it. */
void k2_flight_close(void);
bool k2_flight_on(void);

/* Names the calling thread in the trace; the first name stays. Without one it is "thread". */
void k2_flight_thread(const char *name);

/* k2_flight_begin - a span on this thread. Gives what k2_flight_end needs, 0 where it is not recorded. */
uint32_t k2_flight_begin(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
/* Ends it, and what was begun inside it and not ended. */
void k2_flight_end(uint32_t span);
/* The same, with a number (0 to 3) that is only known now. */
void k2_flight_end_with(uint32_t span, uint32_t arg, uint64_t value);

/* An id for start and finish, and for nothing else in this process. */
uint64_t k2_flight_id(void);
void k2_flight_start(k2_flight_name name, uint64_t id, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
void k2_flight_finish(k2_flight_name name, uint64_t id, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

/* One thread only, the loop's. */
void k2_flight_state(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
void k2_flight_mark(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d);
void k2_flight_count(k2_flight_name name, uint64_t a, uint64_t b, uint64_t c, uint64_t d);

/* Characters [at, at + 8) of a text as a number, for a :text argument. NULL is "". */
uint64_t k2_flight_text_at(const char *text, size_t at);
static inline uint64_t k2_flight_text(const char *text)
{
    return k2_flight_text_at(text, 0);
}
static inline uint64_t k2_flight_coll(uint32_t op, uint32_t rank, uint32_t ranks)
{
    return (uint64_t)(op & 0xffu) | (uint64_t)(rank & 0xffffffu) << 8 | (uint64_t)ranks << 32;
}

#endif
