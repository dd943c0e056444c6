/* sim - a fleet without processes around the master's core: trainers, rollouts and a proxy that answer in random order, die,
 * stay silent; a journal in memory; and a master that can be killed after any record. Everything is a function of the seed.
 *
 * "Weights" are a digest: version s is the hash of version s - 1 and of the batch that step s was given, so two runs with equal
 * digests trained the same tokens in the same order.
 */
#ifndef K2_TEST_MASTER_SIM_H
#define K2_TEST_MASTER_SIM_H

#include "master/core_int.h"

#define SIM_WORKERS 16u
#define SIM_MASTER_PID 4711u
#define SIM_CHECKPOINTS 256u

typedef struct sim_record {
    uint32_t type;
    size_t len;
    void *bytes;
} sim_record;

typedef struct sim_model {
    bool ready;
    uint64_t step, pretrain;
    k2_digest digest;
} sim_model;

typedef struct sim_worker {
    bool running, greeted;
    uint64_t incarnation, silent_until_ns;
    bool joined;
    sim_model model;    /* trainers */
    k2_digest prepared, held; /* rollouts */
    k2_digest gate;     /* proxy */
} sim_worker;

/* Something that will happen: an answer on its way. */
typedef struct sim_pending {
    k2m_action action;
    uint64_t due_ns;
    char strings[2][K2M_LOCATOR_MAX]; /* of the message */
} sim_pending;

typedef struct sim_faults {
    uint32_t kill_trainer, kill_rollout, kill_proxy; /* one in so many events, 0 = never */
    uint32_t silence;                                /* a worker says nothing any more */
    uint32_t lose_answer, lose_score, bad_reward;
    uint32_t kill_master;
    uint32_t repeat;                                 /* an answer or DONE comes twice */
    uint32_t fail_command;
    uint32_t fail_save;
    uint64_t fail_step;                              /* this step can never be trained */
    uint32_t equal;                                  /* one group in so many has equal rewards, besides those that have them by chance */
    uint32_t refuse, other_weights, no_tokens;       /* of answers: refused as faulty, of a wrong digest, empty */
} sim_faults;

typedef struct sim {
    k2_config config;
    uint64_t seed, draw, now_ns;
    k2m_core *core;
    sim_record *journal;
    size_t records, record_capacity, durable, state_at;
    sim_worker workers[SIM_WORKERS];
    sim_pending *pending;
    size_t pending_count, pending_capacity;
    sim_model checkpoints[SIM_CHECKPOINTS];
    uint64_t latest;
    int32_t **prompts;
    uint32_t *lengths;
    const uint32_t *easy_first; /* a curriculum, where a test gives one */
    const double *difficulty;
    k2_digest batch;
    sim_faults faults;
    bool ended;
    k2_code end_code;
    char end_text[K2M_TEXT_MAX];
    uint64_t incarnation;             /* the last one that any master gave */
    uint32_t masters, deaths, trains; /* how often each happened */
    bool poison;                      /* a trained trajectory was seen twice */
    uint8_t *trained;                 /* per trajectory: in which step of the surviving history */
    uint64_t reports[8], put_aside;
    uint32_t stacks; /* how often the core asked for them */
    char last_log[K2M_TEXT_MAX];
    uint32_t stop_at_iteration;       /* ask to drain when it has ended; 0 = never */
    bool stop_sent;
} sim;

void sim_init(sim *s, uint64_t seed);
void sim_fini(sim *s);
void sim_start_master(sim *s);
/* Until the master has ended (true) or `events` have passed. */
bool sim_run(sim *s, uint32_t events);
void sim_event(sim *s, k2m_event *ev);
k2_digest sim_weights(const sim *s); /* of the last version */

#endif
