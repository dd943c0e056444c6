/* look - what can be seen of a run from outside: what workers and the proxy say of themselves, who is blocking, how it goes.
 * Pure: functions over the core, which they do not change. Included by core_int.h.
 *
 * What the I/O side hears beside the core's events (gauges of POLLs, the proxy's list of requests) it writes into the core's
 * memory; no decision is made from it.
 */
#ifndef K2_MASTER_LOOK_INT_H
#define K2_MASTER_LOOK_INT_H

#include "common/base/base.h"
#include "common/wire/wire.h"

#define K2M_HOST_MAX 64u /* of a host name; a longer one is cut, only people read it */

typedef struct k2m_core k2m_core;

/* ---- gauges.c: what a worker says with POLL ----------------------------------------------------------------------------- */

/* enum, name on the wire. TOKENS and DONE count up; a rate is kept of them. */
#define K2M_GAUGE_NAMES(G)                                                                                                     \
    G(RUNNING, "running")      /* rollout, proxy: requests in work */                                                          \
    G(WAITING, "waiting")      /* rollout: requests behind them */                                                             \
    G(QUEUED, "queued")        /* proxy: requests without an engine */                                                         \
    G(READY, "engines_ready")  /* proxy */                                                                                     \
    G(TOKENS, "tokens")        /* generated (rollout), trained (trainer) */                                                    \
    G(DONE, "done")            /* proxy: requests answered */                                                                  \
    G(SCORES, "scores")        /* rollout: answers that wait for the reward command, the one in work included */               \
    G(REWARD_PID, "reward_pid") /* of the command while it has an answer, else 0 */                                            \
    G(REWARD_S, "reward_seconds")                                                                                              \
    G(REWARD_LEFT_S, "reward_left_seconds")

typedef enum k2m_gauge {
#define K2M_G(name, text) K2M_G_##name,
    K2M_GAUGE_NAMES(K2M_G)
#undef K2M_G
    K2M_G_COUNT
} k2m_gauge;

#define K2M_RATE_NS K2_NS_PER_S /* shortest stretch that a rate is taken over */

typedef struct k2m_gauges {
    double value[K2M_G_COUNT]; /* as of at_ns */
    uint64_t at_ns;           /* 0: nothing was said yet */
    uint64_t from_ns;         /* of the rates' stretch */
    double from_tokens, from_done, tokens_per_s, done_per_s;
} k2m_gauges;

/* Take the gauges of one POLL; names that are not ours are passed over. A counter that went back starts its rate anew. */
void k2m_gauges_take(k2m_gauges *g, const k2_wire_metrics *said, uint64_t now_ns);

/* ---- the proxy's list of requests ----------------------------------------------------------------------------------------- */

#define K2M_LISTED_MAX    64u                /* requests that have been quiet longest */
#define K2M_LIST_OLD_NS (10 * K2_NS_PER_S) /* what is older is not believed any more */
#define K2M_NOBODY      UINT32_MAX

typedef struct k2m_request {
    uint64_t id;     /* trajectory, or K2M_EVAL_BIT and the prompt's number; 0 with score */
    bool score;      /* POST /k2/score */
    bool queued;     /* without an engine */
    uint32_t worker; /* number of the engine in the fleet; K2M_NOBODY when queued */
    uint32_t tokens, attempts;
    uint64_t since_ns, heard_ns, deadline_ns; /* points in time; heard: the last sign of the engine, 0 = none yet */
} k2m_request;

typedef struct k2m_proxy_list {
    uint64_t at_ns; /* when the proxy said it; 0 = never */
    uint32_t running, queued, count;
    k2m_request list[K2M_LISTED_MAX]; /* the quietest first */
} k2m_proxy_list;

/* ---- waits.c: who is blocking ------------------------------------------------------------------------------------------------ */

#define K2M_WAITS_MAX  K2_WIRE_WAITS_MAX
#define K2M_SILENT_NS  (300 * K2_NS_PER_MS) /* a live worker asks again within milliseconds, on a busy machine too */

/* One line of the wait-for chain. */
typedef struct k2m_wait {
    uint32_t parent;                /* place of what waits for it, from 1; 0 = the top */
    char what[128], owner[K2_WIRE_NAME_MAX];
    uint64_t pid;                   /* 0 = none, or the master's own */
    const char *host;               /* of the pid; "" with 0. Lives as long as the core */
    uint64_t since_ns, deadline_ns; /* points in time; deadline 0 = none */
    uint64_t silent_ns;             /* how long its POLL is due, 0 = it is not */
} k2m_wait;

typedef struct k2m_waits {
    k2m_wait list[K2M_WAITS_MAX];
    uint32_t count, culprit; /* place from 1, 0 = nobody stands out */
} k2m_waits;

/* k2m_core_waits - who is blocking: what the phase waits for, down to processes; step > group > trajectory > engine > process.
 *
 * keeps    the worker that has been silent longest is always in the list, whether the phase waits for it or not. The culprit is,
 *          in this order: who is waited for and says nothing; who is waited for and not there; who says nothing though nobody
 *          waits yet; the oldest command under way; a reward command at work; the oldest answer's line
 * threads  pure
 * tests    tests/unit/master/waits_test.c
 */
void k2m_core_waits(const k2m_core *m, uint64_t now_ns, k2m_waits *out);
/* One line of text for the log. */
void k2m_wait_text(const k2m_waits *waits, uint32_t i, uint64_t now_ns, char *out, size_t n);
/* A deadline has passed: the chain goes into the log. */
void k2m_waits_log(k2m_core *m);
/* The same where somebody else's deadline has passed (of a transfer, a collective, a request), which many may say at once: at most
 * every K2M_LATE_NS. */
#define K2M_LATE_NS (10 * K2_NS_PER_S)
void k2m_late(k2m_core *m);

/* ---- overview.c: how it goes -------------------------------------------------------------------------------------------------- */

/* What only the I/O side knows. */
typedef struct k2m_told {
    uint64_t start_ns, rl_ns;   /* of this master; of its first generation, 0 = none yet */
    bool evaluated, trained;    /* the two below are known */
    double accuracy, reward;    /* of the last evaluation; of the last batch */
    double train_tokens_per_s;  /* over all steps of this master */
    uint64_t held, journal_bytes; /* actions that wait for the disk; bytes since the last snapshot */
} k2m_told;

typedef struct k2m_row {
    char name[K2_WIRE_NAME_MAX], state[K2_WIRE_NAME_MAX];
    uint64_t pid, lease_ms, silent_ms, requests, tokens_per_s; /* lease_ms: that are left */
} k2m_row;

typedef struct k2m_overview {
    char waits[K2_WIRE_TEXT_MAX + 1];
    k2_wire_metric numbers[K2_WIRE_GAUGES_MAX]; /* the names are literals */
    uint32_t number_count;
    k2m_row rows[K2_WIRE_ROWS_MAX];
    uint32_t row_count;
} k2m_overview;

/* k2m_core_overview - counts, rates and the workers to look at: those that say nothing first, then those that are not there, then
 * those at a command, then the others by number.
 *
 * keeps    its cost is a look at each worker and at what the wait-for chain looks at, its size is fixed
 * threads  pure
 * tests    tests/unit/master/overview_test.c
 */
void k2m_core_overview(const k2m_core *m, const k2m_told *told, uint64_t now_ns, k2m_overview *out);
/* Share of the run's present part (pretraining, or iterations) that is done, and about how long the rest takes, 0 = unknown. */
void k2m_core_eta(const k2m_core *m, const k2m_told *told, uint64_t now_ns, double *share, double *left_s);

/* ---- top_text.c: an overview for people ---------------------------------------------------------------------------------------- */

/* At most `height` lines of at most `width` bytes (each ends in a newline that is not counted), 0 = as many as there are. What
 * has no room is counted in the last line. Nothing in it can steer a terminal. tests/unit/master/overview_test.c */
void k2m_top_text(const k2_msg_overview *v, uint32_t width, uint32_t height, k2_buf *out);
/* One JSON object on one line. */
void k2m_top_json(const k2_msg_overview *v, k2_buf *out);
/* The lists run side by side. */
bool k2m_top_whole(const k2_msg_overview *v);

#endif
