/* cluster - master's and proxy's core with thousands of workers that exist only as numbers, under a virtual clock; what each event
 * costs is counted in time and in entries looked at.
 *
 * A round is 50 ms: whatever was asked for in the one before is answered, a fiftieth of the fleet sends its heartbeat (all do in a
 * quarter of a lease), the master has one tick and the proxy has two. Weights are a digest of the version's number.
 */
#ifndef K2_TESTS_BENCH_SCALE_CLUSTER_H
#define K2_TESTS_BENCH_SCALE_CLUSTER_H

#include "master/core_int.h"
#include "proxy/proxy_core_int.h"

#define CLUSTER_ROUND_NS (50 * K2_NS_PER_MS)
#define CLUSTER_BEATS    50u /* rounds between two heartbeats of one worker: a quarter of the lease */
#define CLUSTER_PROMPTS  64u
#define CLUSTER_CALLS    1024u

typedef enum cluster_op {
    OP_LAUNCH,    /* BEGIN and ticks while processes start */
    OP_HELLO,
    OP_ALIVE,
    OP_TICK,      /* while answers are generated */
    OP_COMMIT,    /* master: PUBLISH has ended, PREPARE and COMMIT of every engine, ticks meanwhile */
    OP_EXIT,
    OP_ANSWER,    /* answers and rewards */
    OP_OTHER,
    PX_TABLE,     /* proxy: pages of the table, the gate */
    PX_ROUTE,     /* a request comes and is sent */
    PX_PROGRESS,
    PX_DONE,
    PX_PROBE,     /* ticks, and health that comes back */
    PX_FAILED,
    CLUSTER_OPS
} cluster_op;

typedef struct cluster_cost {
    uint64_t events, ns, ns_max, looks, looks_max;
} cluster_cost;

typedef struct cluster_worker {
    bool runs, greets;
    uint64_t incarnation;
    k2_digest prepared, held;
} cluster_worker;

typedef struct cluster_call {
    bool used, sent, failed;
    uint64_t id, engine; /* engine: id of the one that has it */
    uint32_t position, max_tokens, request;
} cluster_call;

typedef struct cluster_command {
    uint32_t worker;
    uint64_t incarnation, cmd, version;
    k2_msg_type type;
    k2_digest digest;
} cluster_command;

typedef struct cluster {
    k2_config config;
    k2m_core *master;
    k2i_px *proxy;
    uint64_t now_ns, round, versions, launches, exits, probes_answered;
    cluster_worker *workers;
    cluster_command *commands;
    uint32_t command_count, command_max;
    uint32_t *probes; /* slots whose probe is out */
    uint32_t probe_count, slots;
    cluster_call calls[CLUSTER_CALLS];
    uint64_t (*scores)[K2M_SCORE_ITEMS]; /* one for each request of rewards */
    uint32_t score_counts[K2M_SCORES_MAX], score_requests;
    uint64_t batch_step; /* to be answered; 0 = none */
    bool latest, ended;
    bool quiet; /* nothing is answered: heartbeats and ticks only */
    k2_code end_code;
    char end_text[K2M_TEXT_MAX];
    int32_t prompt_ids[CLUSTER_PROMPTS][8], *prompts[CLUSTER_PROMPTS];
    uint32_t lengths[CLUSTER_PROMPTS];
    k2i_px_outbox out;
    cluster_cost cost[CLUSTER_OPS];
    size_t master_bytes, proxy_bytes; /* measured, for the whole fleet */
} cluster;

/* CPU time of this thread: others on the machine do not count. */
uint64_t cluster_cpu_ns(void);
cluster *cluster_new(uint32_t trainers, uint32_t engines);
void cluster_free(cluster *c);
/* The processes start; returns when answers are generated. */
void cluster_begin(cluster *c);
void cluster_round(cluster *c);
/* So many heartbeats of everyone while answers are out and nothing else happens. */
void cluster_beats(cluster *c, uint32_t beats);
/* The engine's process is gone; the master starts another. */
void cluster_kill(cluster *c, uint32_t engine);
void cluster_kill_proxy(cluster *c);
/* So many requests of its own go through the proxy, `open` at a time. */
void cluster_route(cluster *c, uint32_t requests, uint32_t open);
/* Everyone is stopped; returns when the run has ended. */
void cluster_end(cluster *c);
void cluster_costs_clear(cluster *c);
/* All engines that run use the version in force, and the proxy knows each as it is. Aborts otherwise. */
void cluster_check(const cluster *c);

#endif
