/* wire - the control messages between master and workers: tables, structs, pure encode and decode.
 *
 * A `k2_msg` is a type, a header and the fields of its type. One table (K2_WIRE_MESSAGES and the K2_WIRE_FIELDS_* under it)
 * makes the structs, the encoder and the decoder. On the wire a message is one msgpack map: "type" (the name), "worker",
 * "incarnation", "seq", "cmd", and every field of its type by its name, each exactly once.
 *
 * Lifetime: in a message that was decoded or copied, strings and lists live in one block of the message, until k2_msg_free.
 * In a message that the caller fills, they are the caller's and need to live only for the call that takes the message.
 * Start every message with designated initialisers: k2_msg m = {.type = K2_MSG_POLL, .poll = {.phase = "idle"}};
 * a NULL string is sent as "", an empty list may have items NULL.
 */
#ifndef K2_COMMON_WIRE_H
#define K2_COMMON_WIRE_H

#include "common/base/base.h"

#define K2_PEERS_MAX         16384u     /* processes one master admits: 496 ranks, 10,000 engines, and room to grow */
#define K2_WIRE_BYTES_MAX    4194304u   /* bytes of one encoded message: the config text, or 4096 locators of 1 KiB */
#define K2_WIRE_VALUES_MAX   65536u     /* msgpack values in one message: bounds what a decode reserves to about 8 MiB */
#define K2_WIRE_NAME_MAX     64u        /* bytes of a role, phase, state, metric name */
#define K2_WIRE_TEXT_MAX     1024u      /* bytes of a text, host, URL, locator, path */
#define K2_WIRE_PATH_MAX     4096u
#define K2_WIRE_CONFIG_MAX   1048576u   /* bytes of the resolved config, as JSON text */
#define K2_WIRE_METRICS_MAX  4096u
#define K2_WIRE_WAITS_MAX    64u        /* lines of a wait-for chain: what a person can read */
#define K2_WIRE_ENGINES_MAX  512u       /* lines of one page of the proxy's table: what it takes in without delaying requests */
#define K2_WIRE_ROWS_MAX     256u       /* workers of an overview: more than a screen has lines; the others are counted */
#define K2_WIRE_GAUGES_MAX   64u        /* in a POLL: they come three times a lease from everyone */

typedef struct k2_wire_metric {
    const char *name;
    double value;
} k2_wire_metric;

/* One engine as the proxy must know it. state: "up" takes work, "drain" takes no new work, "gone" is to be forgotten. */
typedef struct k2_wire_engine {
    uint64_t id, incarnation; /* id = worker number of the rollout */
    const char *url;
    k2_digest digest;         /* of the weights it echoed; zero = none */
    const char *state;
} k2_wire_engine;

typedef struct k2_wire_strs {
    const char *const *items;
    uint32_t count;
} k2_wire_strs;
typedef struct k2_wire_u64s {
    const uint64_t *items;
    uint32_t count;
} k2_wire_u64s;
typedef struct k2_wire_metrics {
    const k2_wire_metric *items;
    uint32_t count;
} k2_wire_metrics;
typedef struct k2_wire_engines {
    const k2_wire_engine *items;
    uint32_t count;
} k2_wire_engines;

/* Kinds of fields, and what they are in C. The cap of a field is in bytes for STR, in items for lists, unused for others. */
#define K2_WIRE_KINDS(K)        \
    K(U64, uint64_t)            \
    K(F64, double)              \
    K(STR, const char *)        \
    K(DIGEST, k2_digest)        \
    K(STRS, k2_wire_strs)       \
    K(U64S, k2_wire_u64s)       \
    K(METRICS, k2_wire_metrics) \
    K(ENGINES, k2_wire_engines)

/* name, member, class. REQUEST goes from worker to master, COMMAND and REPLY are the master's answers to one. */
#define K2_WIRE_MESSAGES(M)        \
    M(HELLO, hello, REQUEST)       \
    M(POLL, poll, REQUEST)         \
    M(DONE, done, REQUEST)         \
    M(WHY, why, REQUEST)           \
    M(TOP, top, REQUEST)           \
    M(WELCOME, welcome, REPLY)     \
    M(NOP, nop, REPLY)             \
    M(ACK, ack, REPLY)             \
    M(FENCED, fenced, REPLY)       \
    M(REFUSED, refused, REPLY)     \
    M(WAITS, waits, REPLY)         \
    M(OVERVIEW, overview, REPLY)   \
    M(JOIN, join, COMMAND)         \
    M(INIT, init, COMMAND)         \
    M(PRETRAIN, pretrain, COMMAND) \
    M(TRAIN, train, COMMAND)       \
    M(PUBLISH, publish, COMMAND)   \
    M(SAVE, save, COMMAND)         \
    M(PREPARE, prepare, COMMAND)   \
    M(COMMIT, commit, COMMAND)     \
    M(ENGINES, engines, COMMAND)   \
    M(GATE, gate, COMMAND)         \
    M(STOP, stop, COMMAND)

/* ---- requests ---- */
/* A worker introduces itself; worker and incarnation in the header are 0. endpoint: its http URL, "" for a trainer. */
#define K2_WIRE_FIELDS_hello(F)           \
    F(STR, role, K2_WIRE_NAME_MAX)        \
    F(U64, index, 0)                      \
    F(U64, pid, 0)                        \
    F(STR, host, K2_WIRE_TEXT_MAX)        \
    F(U64, nonce, 0)                      \
    F(STR, endpoint, K2_WIRE_TEXT_MAX)    \
    F(STR, token, K2_WIRE_TEXT_MAX)
/* Alive, and ready for a command. cmd in the header: the highest command received so far. */
#define K2_WIRE_FIELDS_poll(F)            \
    F(STR, phase, K2_WIRE_NAME_MAX)       \
    F(METRICS, gauges, K2_WIRE_GAUGES_MAX)
/* Command `cmd` of the header has ended. code is a k2_code by number, 0 = OK; fields without meaning for a command stay
 * empty. */
#define K2_WIRE_FIELDS_done(F)                \
    F(U64, code, 0)                           \
    F(STR, text, K2_WIRE_TEXT_MAX)            \
    F(U64, version, 0)                        \
    F(DIGEST, digest, 0)                      \
    F(STRS, locators, K2_PEERS_MAX)           \
    F(U64, bytes, 0)                          \
    F(STR, path, K2_WIRE_PATH_MAX)            \
    F(U64S, values, K2_PEERS_MAX)             \
    F(METRICS, metrics, K2_WIRE_METRICS_MAX)

/* Somebody, who need not be a worker (0 in the header then), asks what is waited for: answered with WAITS. */
#define K2_WIRE_FIELDS_why(F)
/* The same, how the run goes: answered with OVERVIEW. */
#define K2_WIRE_FIELDS_top(F)

/* ---- replies ---- */
/* worker and incarnation in the header are the worker's from now on. */
#define K2_WIRE_FIELDS_welcome(F)         \
    F(U64, lease_ms, 0)                   \
    F(STR, run_id, K2_WIRE_TEXT_MAX)      \
    F(STR, config, K2_WIRE_CONFIG_MAX)    \
    F(DIGEST, model, 0)                   \
    F(DIGEST, tokenizer, 0)
#define K2_WIRE_FIELDS_nop(F)
#define K2_WIRE_FIELDS_ack(F)
/* An older incarnation spoke: end. */
#define K2_WIRE_FIELDS_fenced(F) F(STR, text, K2_WIRE_TEXT_MAX)
/* Not admitted (token, role), not understood, or too many at once; code is a k2_code. */
#define K2_WIRE_FIELDS_refused(F) \
    F(U64, code, 0)               \
    F(STR, text, K2_WIRE_TEXT_MAX)

/* The wait-for chain from the step down; the lists run side by side. A wait's number is its place from 1: `parents` are such
 * numbers, 0 = the top, and so is culprit, 0 = none found. pids: 0 = none; they mean something on their host. left_ms: until the deadline, 0 = it has passed,
 * UINT64_MAX = none. silent_ms: since when the process owes a POLL, 0 = it owes none. */
#define K2_WIRE_FIELDS_waits(F)             \
    F(STR, run_id, K2_WIRE_TEXT_MAX)        \
    F(STR, phase, K2_WIRE_NAME_MAX)         \
    F(U64, iteration, 0)                    \
    F(U64, version, 0)                      \
    F(U64, culprit, 0)                      \
    F(STRS, what, K2_WIRE_WAITS_MAX)        \
    F(STRS, owners, K2_WIRE_WAITS_MAX)      \
    F(U64S, parents, K2_WIRE_WAITS_MAX)     \
    F(U64S, pids, K2_WIRE_WAITS_MAX)        \
    F(STRS, hosts, K2_WIRE_WAITS_MAX)       \
    F(U64S, since_ms, K2_WIRE_WAITS_MAX)    \
    F(U64S, left_ms, K2_WIRE_WAITS_MAX)     \
    F(U64S, silent_ms, K2_WIRE_WAITS_MAX)

/* How a run goes. waits: the chain's first line and its culprit. numbers: by name, counts, rates and seconds (master/overview.c
 * has the list). The other lists run side by side, a worker in each place, those to look at first; a run may have more. */
#define K2_WIRE_FIELDS_overview(F)             \
    F(STR, run_id, K2_WIRE_TEXT_MAX)           \
    F(STR, mode, K2_WIRE_NAME_MAX)             \
    F(STR, phase, K2_WIRE_NAME_MAX)            \
    F(STR, waits, K2_WIRE_TEXT_MAX)            \
    F(METRICS, numbers, K2_WIRE_GAUGES_MAX)    \
    F(STRS, names, K2_WIRE_ROWS_MAX)           \
    F(STRS, states, K2_WIRE_ROWS_MAX)          \
    F(U64S, pids, K2_WIRE_ROWS_MAX)            \
    F(U64S, lease_ms, K2_WIRE_ROWS_MAX)        \
    F(U64S, silent_ms, K2_WIRE_ROWS_MAX)       \
    F(U64S, requests, K2_WIRE_ROWS_MAX)        \
    F(U64S, tokens_per_s, K2_WIRE_ROWS_MAX)

/* ---- commands; the command's id is cmd in the header, it counts up per worker ---- */
/* to trainers, see trainer/trainer.h */
#define K2_WIRE_FIELDS_join(F)
#define K2_WIRE_FIELDS_init(F)      \
    F(STRS, locators, K2_PEERS_MAX) \
    F(STR, source, K2_WIRE_PATH_MAX) \
    F(U64, step, 0)
#define K2_WIRE_FIELDS_pretrain(F) \
    F(U64, from, 0)                \
    F(U64, to, 0)
#define K2_WIRE_FIELDS_train(F)        \
    F(U64, step, 0)                    \
    F(STR, locator, K2_WIRE_TEXT_MAX)  \
    F(U64, bytes, 0)                   \
    F(DIGEST, digest, 0)
#define K2_WIRE_FIELDS_publish(F) F(U64, version, 0)
#define K2_WIRE_FIELDS_save(F)    \
    F(STR, dir, K2_WIRE_PATH_MAX) \
    F(U64, step, 0)
/* to rollouts: pull and verify, then switch */
#define K2_WIRE_FIELDS_prepare(F) \
    F(U64, version, 0)            \
    F(DIGEST, digest, 0)          \
    F(STRS, sources, K2_PEERS_MAX)
#define K2_WIRE_FIELDS_commit(F) \
    F(U64, version, 0)           \
    F(DIGEST, digest, 0)
/* to proxies: a page of the table of engines, lines that are new or have changed (anew = 1: all that it knew before is forgotten
 * first); the digest that training requests need */
#define K2_WIRE_FIELDS_engines(F)            \
    F(ENGINES, engines, K2_WIRE_ENGINES_MAX) \
    F(U64, anew, 0)
#define K2_WIRE_FIELDS_gate(F) \
    F(U64, version, 0)         \
    F(DIGEST, digest, 0)
/* to everyone: finish, answer DONE, exit with 0 */
#define K2_WIRE_FIELDS_stop(F) F(STR, text, K2_WIRE_TEXT_MAX)

typedef enum k2_msg_type {
    K2_MSG_NONE,
#define K2_X(name, member, class) K2_MSG_##name,
    K2_WIRE_MESSAGES(K2_X)
#undef K2_X
    K2_MSG_COUNT
} k2_msg_type;

typedef enum k2_msg_class { K2_MSG_CLASS_REQUEST, K2_MSG_CLASS_REPLY, K2_MSG_CLASS_COMMAND } k2_msg_class;

#define K2_X(kind, ctype) typedef ctype k2_wire_c_##kind;
K2_WIRE_KINDS(K2_X)
#undef K2_X

/* typedef struct k2_msg_hello {...} k2_msg_hello; and so on for all. (Those without fields are empty structs, which gcc and
 * clang allow.) */
#define K2_F(kind, name, cap) k2_wire_c_##kind name;
#define K2_X(name, member, class) \
    typedef struct k2_msg_##member { K2_WIRE_FIELDS_##member(K2_F) } k2_msg_##member;
K2_WIRE_MESSAGES(K2_X)
#undef K2_X
#undef K2_F

typedef struct k2_msg {
    k2_msg_type type;
    uint64_t worker;      /* number the master gave; 0 in HELLO */
    uint64_t incarnation; /* counts up at each start of a worker; 0 in HELLO */
    uint64_t seq;         /* of the request; filled by common/net, in a reply it is that of its request */
    uint64_t cmd;         /* command id, from 1; 0 where there is none */
    union {
#define K2_X(name, member, class) k2_msg_##member member;
        K2_WIRE_MESSAGES(K2_X)
#undef K2_X
    };
    void *block; /* wire's: what a decoded message owns */
} k2_msg;

const char *k2_msg_name(k2_msg_type type); /* "HELLO" */
k2_msg_class k2_msg_class_of(k2_msg_type type);

/* k2_wire_encode - append the message to out.
 *
 * errors   LIMIT with "DONE.text: 2000 bytes, at most 1024" when a field passes its cap, or out its own; out is as before then
 * threads  pure
 */
k2_code k2_wire_encode(const k2_msg *msg, k2_buf *out, k2_error *err);

/* k2_wire_decode - one message from exactly n bytes.
 *
 * memory   *msg is written only on OK; then k2_msg_free it
 * errors   INCOMPLETE: the bytes are a true beginning of something longer. BAD_INPUT: "HELLO.role: unsigned number found,
 *          string expected", an unknown, missing or doubled field by name, trailing bytes, a string with a 0 byte inside;
 *          LIMIT: a count or size above its cap
 * threads  pure
 * source   https://github.com/msgpack/msgpack/blob/master/spec.md
 * tests    tests/unit/wire/wire_test.c, tests/fuzz/wire
 */
k2_code k2_wire_decode(const void *bytes, size_t n, k2_msg *msg, k2_error *err);

/* A message that owns all it holds. Asserts that from is within its caps. */
void k2_msg_copy(k2_msg *to, const k2_msg *from);
/* Release what a decoded or copied message owns, and zero it. A message that the caller filled is only zeroed. */
void k2_msg_free(k2_msg *msg);

#endif
