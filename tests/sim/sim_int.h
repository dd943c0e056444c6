/* sim - a whole run in one thread: the cores of master, replay, proxy, rollout, engine and trainer under a virtual clock, a
 * network that loses things and a journal whose tail can be lost. Everything is a function of the seed.
 *
 *      master core ── held until the journal is durable ──► commands ══ network ══► trainer core, rollout core, proxy core
 *           ▲                                                                             │          │
 *           └──────────── HELLO, POLL, DONE ══ network ═══════════════════════════════════┘          ▼
 *           └──────────── answers ◄── proxy core ◄══ streams ══ engine core ◄── requests ────────────┘
 *
 * A *process* holds a place of the fleet under an incarnation; an old one may live on beside its successor when its kill comes
 * late. A trainer's *model* is a digest: that of step s is the hash of that of step s - 1 and of the batch that step s was
 * given. Its *weights* are the parameters of a tiny model that follow from it; they are published, pulled and verified by the
 * real code. A token's logits are a hash of the digest of what the engine's model really holds, so anything wrong shows in
 * the token. A *fault* is one event of a list (faults_int.h); what must hold has a name (check_int.h).
 */
#ifndef K2_TESTS_SIM_INT_H
#define K2_TESTS_SIM_INT_H

#include "check_int.h"
#include "common/base/base.h"
#include "common/wire/wire.h"
#include "common/xfer/xfer.h"
#include "faults_int.h"
#include "master/core_int.h"
#include "master/hold_int.h"
#include "master/mail_int.h"

#define SIM_PROCS       64u /* living at once, with those whose kill is under way */
#define SIM_VOCAB       16u
#define SIM_TOKENS      32u /* of one sequence */
#define SIM_POISONS     3u /* that are to be found out: two groups, and an evaluation */
#define SIM_PROMPTS     13u /* fewer than groups: a second epoch begins */
#define SIM_STEPS       64u
#define SIM_GROUPS      16u /* of one step */
#define SIM_CHECKPOINTS 256u
#define SIM_CALLS       128u
#define SIM_REQUESTS    32u /* of one worker to the master, under way at once */
#define SIM_REPLIES     4u /* that the master remembers of one worker: too few, as in a large fleet after a long pause */
#define SIM_TICK_US     20000u
#define SIM_TICKS       1500u /* a run must have ended so many ticks after its faults stopped */
#define SIM_ILL_TICKS   3000u /* and so many more where prompts end their engines: a dozen lives, each 3 s after another */
#define SIM_EVAL        6u    /* held-out prompts */

typedef struct sim sim;
typedef struct sim_proc sim_proc;

typedef enum sim_kind {
    SIM_TO_MASTER,   /* msg of a process */
    SIM_TO_WORKER,   /* the reply */
    SIM_BEAT,        /* a process looks at its timers */
    SIM_WORK,        /* what a trainer or a pull was at has ended: id */
    SIM_ENGINE,      /* the engine makes a step */
    SIM_KILL,
    SIM_EXIT,        /* the master hears of a death */
    SIM_HELLO,
    SIM_BATCH,
    SIM_LATEST,
    SIM_DURABLE,     /* the journal has committed up to id */
    SIM_MASTER_TICK,
    SIM_CHAOS,
    SIM_CALL,        /* the master's request has reached the proxy */
    SIM_CALL_END,    /* the master gave it up */
    SIM_ANSWER,      /* its answer has reached the master */
    SIM_SCORED,
    SIM_UPSTREAM,    /* the proxy's request has reached an engine */
    SIM_UPSTREAM_END,/* the proxy gave it up */
    SIM_STREAM,      /* tokens have reached the proxy */
    SIM_BROKEN,      /* the connection of an attempt ended */
    SIM_PROBED,
    SIM_START        /* the master's command is given again */
} sim_kind;

/* Tokens on their way. In a request: the sequence so far; in a stream and an answer: all that was drawn since. */
typedef struct sim_tokens {
    uint32_t count;
    int32_t ids[SIM_TOKENS];
    float logps[SIM_TOKENS];
} sim_tokens;

typedef struct sim_event {
    uint64_t due_ns, order;
    sim_kind kind;
    uint64_t proc, peer; /* serials: of the process that it happens to, of the one that it comes from */
    uint64_t life;       /* of the master that it concerns */
    uint64_t id, attempt, position;
    uint32_t worker, max_tokens, slot;
    uint64_t incarnation;
    int finish; /* k2i_finish of the engine, or a k2_code */
    bool training, ok, alone;
    k2m_lost lost[K2M_LOST_MAX]; /* of an answer that failed */
    uint32_t lost_count;
    k2_digest digest;
    uint64_t version;
    sim_tokens tokens;
    uint64_t ids[K2M_SCORE_ITEMS], rewards; /* rewards: one bit for each id */
    uint32_t count;
    k2_msg msg; /* owned */
} sim_event;

typedef struct sim_model {
    bool ready;
    uint64_t step, pretrain;
    k2_digest digest;
} sim_model;

struct sim_proc {
    uint64_t serial; /* 0: the slot is free */
    uint32_t worker;
    k2m_role role;
    uint64_t incarnation, stopped_until_ns, heard_ns;
    uint32_t slow;     /* times slower than others */
    uint64_t deaf_until_ns, mute_until_ns;
    bool welcomed, polling;
    uint64_t seq, last_cmd;
    struct {
        bool used;
        uint64_t sent_ns;
        k2_msg msg; /* owned */
    } requests[SIM_REQUESTS];
    k2_msg later; /* STOP that came while another command runs */
    void *state;  /* of its role */
};

/* What a run was, and what it came to. It lives in memory that the parent shares, so that it outlives a crash. */
typedef struct sim_outcome {
    uint64_t seed, end_ns, after_ns, events; /* after_ns: from the last fault to the end */
    bool ok;
    sim_check_kind check;
    char text[512];
    uint32_t deaths, masters, dropped, fenced, stale;
    uint32_t hit_count;
    sim_hit hits[SIM_HITS_MAX];
} sim_outcome;

typedef struct sim_record {
    uint32_t type;
    size_t len;
    void *bytes;
} sim_record;

typedef struct sim_slot { /* what the master's I/O half keeps of one worker */
    k2m_mail mail;
    bool polled;
    uint64_t poll_seq, poll_proc, poll_since_ns;
    struct {
        uint64_t proc, seq;
        k2_msg msg;
    } replies[SIM_REPLIES];
    uint32_t reply_at;
} sim_slot;

/* What decides what a run comes to, besides its faults. */
typedef struct sim_world {
    bool sync;     /* the mode */
    bool poison;   /* some prompts end their engine */
    bool priority; /* prompts are drawn by priority */
    bool refill;   /* groups of equal rewards are replaced */
} sim_world;

#define SIM_WORLDS 16u

/* What a group in a batch says of its prompt. */
typedef struct sim_told {
    uint32_t prompt, wrong;
} sim_told;

/* What the undisturbed run did; the same for all seeds of one world. */
typedef struct sim_truth {
    bool known;
    uint64_t steps;
    k2_digest versions[SIM_STEPS], batches[SIM_STEPS], weights;
    uint32_t correct, total;
    uint64_t end_ns;
} sim_truth;

struct sim {
    k2_config config;
    uint64_t seed, draw, now_ns, order, serial, incarnation, life, attempt;
    uint32_t chance[SIM_FAULT_KINDS]; /* of one opportunity in this run: one in so many; 0 = none */
    const sim_hit *script;         /* not NULL: exactly these happen */
    size_t script_count;
    uint32_t chances[SIM_FAULT_KINDS][64]; /* opportunities so far */
    uint64_t fault_key, fault_draws; /* of the last fault */
    uint64_t faults_end_ns;
    sim_world world;
    sim_outcome *outcome;
    const sim_truth *truth; /* NULL: this run is to be the truth */
    bool trace;

    sim_event **heap;
    size_t events, event_capacity;
    sim_proc procs[SIM_PROCS];

    k2m_core *core;
    sim_slot slots[SIM_PROCS];
    struct {
        bool used;
        uint64_t attempt, id, since_ns;
        uint32_t position;
    } calls[SIM_CALLS];
    k2m_hold hold;
    sim_record *journal;
    size_t records, record_capacity;
    uint64_t durable, records_gone, committing, state_at, compact_to; /* counted from the run's first record */
    uint64_t *steps; /* ends of the core's steps in the journal, those that are not durable yet */
    size_t step_count, step_capacity;
    uint64_t disk_full_until_ns;
    uint32_t train_fails; /* since a version was published */
    bool disk_was_full;  /* in this life */
    bool down, dying;    /* no master; it dies when the event in hand is over */

    sim_model checkpoints[SIM_CHECKPOINTS];
    int32_t *prompts[SIM_PROMPTS];
    uint32_t lengths[SIM_PROMPTS];
    sim_tokens eval[SIM_EVAL]; /* answers of the evaluation under way */

    /* what was seen from outside */
    sim_truth seen;
    uint64_t gate_max;        /* highest version that a proxy was let use */
    uint32_t *trained;        /* by trajectory: step */
    struct {
        uint8_t tokens;       /* that somebody was told of */
        bool finished;
    } *told;                  /* by trajectory */
    uint64_t told_step;
    uint32_t *prompt_of;      /* of a group, + 1 */
    struct {
        sim_told list[SIM_GROUPS];
        uint32_t count;
    } batches[SIM_STEPS];     /* by step */
    bool ended, broken;
    k2_code end_code;
    char end_text[K2M_TEXT_MAX], last_log[K2M_TEXT_MAX];
};

/* sim.c */
/* truth: NULL makes the undisturbed run. script NULL: faults are drawn. `out` is filled as the run goes on. */
void sim_init(sim *s, uint64_t seed, sim_world world, const sim_truth *truth, sim_outcome *out);
sim_world sim_seed_world(uint64_t seed);
uint32_t sim_world_number(sim_world world); /* below SIM_WORLDS */
void sim_fini(sim *s);
/* The whole run. False: a check failed; the outcome says which. */
bool sim_run(sim *s);
uint64_t sim_draw(sim *s, uint64_t n);
/* An opportunity: true where it goes wrong. sim_fault_draw then gives numbers that belong to this fault alone. */
bool sim_fault(sim *s, sim_fault_kind kind, uint32_t who);
uint64_t sim_fault_draw(sim *s, uint64_t n);
k2_digest sim_mix(k2_digest a, uint64_t b, uint64_t c);
float sim_logit(k2_digest weights, int32_t before, uint32_t position, uint32_t token);
/* An event due after so many microseconds. The pointer is valid until the next call. */
sim_event *sim_at(sim *s, sim_kind kind, uint64_t delay_us);
uint64_t sim_latency_us(sim *s, uint32_t who);
void sim_break(sim *s, sim_check_kind check, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
sim_proc *sim_proc_find(sim *s, uint64_t serial); /* NULL: it is dead */
bool sim_proc_runs(const sim *s, const sim_proc *p);

/* net.c: the worker's side of the control plane, and the master's */
void sim_request(sim *s, sim_proc *p, const k2_msg *msg);
void sim_done(sim *s, sim_proc *p, uint64_t cmd, k2_code code, k2_digest digest, const char *locator);
void sim_to_master(sim *s, const sim_event *e);
void sim_to_worker(sim *s, sim_proc *p, const k2_msg *msg);
void sim_beat(sim *s, sim_proc *p);
void sim_queue_command(sim *s, const k2m_action *a);
void sim_slot_clear(sim *s, uint32_t worker);
void sim_slots_tick(sim *s);
void sim_slots_clear(sim *s);

/* host.c: the master's process */
void sim_master_start(sim *s);
/* It is gone, and what was not durable with it; all processes die. Nobody starts it. */
void sim_master_lose(sim *s);
void sim_master_event(sim *s, k2m_event *ev);
void sim_master_happen(sim *s, sim_event *e);
void sim_spawn(sim *s, uint32_t worker, uint64_t incarnation);
void sim_proc_end(sim *s, sim_proc *p, int signal, bool told);

/* one file for each role: a command has come, work has ended, the process is gone */
void sim_trainer_command(sim *s, sim_proc *p, const k2_msg *m);
void sim_trainer_work(sim *s, sim_proc *p, const sim_event *e);
void *sim_trainer_new(void);
void sim_trainer_free(void *state);
void sim_rollout_command(sim *s, sim_proc *p, const k2_msg *m);
void sim_rollout_happen(sim *s, sim_proc *p, const sim_event *e);
void *sim_rollout_new(void);
void sim_rollout_free(void *state);
k2_digest sim_rollout_content(const sim_proc *p); /* digest of what its model really holds; zero: nothing */
void sim_proxy_command(sim *s, sim_proc *p, const k2_msg *m);
void sim_proxy_happen(sim *s, sim_proc *p, const sim_event *e);
void sim_proxy_beat(sim *s, sim_proc *p);
void sim_proxy_peer_dead(sim *s, sim_proc *p, uint64_t serial);
void *sim_proxy_new(void);
void sim_proxy_free(void *state);

/* weights.c: segments of real weights behind the real xfer and pull */
k2_digest sim_weights_digest(k2_digest model); /* the weights digest of a trainer's model */
k2_xfer_segment *sim_weights_offer(sim *s, const sim_proc *p, k2_digest model);
/* What a rollout pulls: real bytes, real checks. *content is the digest of what the model holds afterwards, on errors too. */
k2_code sim_weights_pull(sim *s, const sim_proc *p, const char *const *sources, uint32_t count, k2_digest want,
                         k2_xfer_segment **out, k2_digest *content);

/* check.c */
void sim_check(sim *s);                                   /* after every event */
void sim_check_step(sim *s, const k2m_outbox *out);       /* the master's core has decided */
void sim_check_told(sim *s, const k2m_action *a);         /* an action is carried out */
void sim_check_restart(sim *s);                           /* the journal was read */
void sim_check_batch(sim *s, uint64_t step, k2_digest d); /* a batch leaves the master */
void sim_check_end(sim *s);
k2_digest sim_batch_digest(sim *s, uint64_t step);

#endif
