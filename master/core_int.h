/* core - the master's plan as a pure state machine: an event in, actions out; no I/O, clock, threads, or allocation after
 * k2m_core_new.
 *
 * Nouns: a *worker* is one place in the fleet (trainer 0, rollout 2, the proxy), which process after process may hold; an
 * *incarnation* is the number of one such process, counted up over the whole fleet; a *command* is what a worker is asked to
 * do, one at a time; a *phase* is what the plan waits for. After every phase `decide` looks at the durable state and at the
 * trainers and says what comes next, so a run that comes back from a crash goes on by the very same code.
 *
 *     START ─> JOIN ─> INIT ─> [PRETRAIN ⟲] ─> [BATCH ─> TRAIN ⟲ what journaled batches lie past the checkpoint]
 *          ─> PUBLISH ─> DISTRIBUTE ─> [EVAL] ─> GENERATE ─> BATCH ─> TRAIN ─> PUBLISH ─> DISTRIBUTE ─> ... ─> SAVE ─> STOP
 *
 * Write-ahead: changes of durable state are given to `record` in the order in which they happen; the caller must make them
 * durable before it carries out any action of the same or a later step.
 */
#ifndef K2_MASTER_CORE_INT_H
#define K2_MASTER_CORE_INT_H

#include "common/base/base.h"
#include "common/config/config.h"
#include "common/quarantine/quarantine.h"
#include "common/wire/wire.h"
#include "master/exits_int.h"
#include "master/look_int.h"
#include "replay/replay.h"

#define K2M_ENDPOINT_MAX  256u
#define K2M_LOCATOR_MAX   256u
#define K2M_TEXT_MAX      320u
#define K2M_SCORE_ITEMS   64u           /* trajectories of one score request */
#define K2M_SCORES_MAX    4u            /* score requests under way */
#define K2M_EVAL_BIT      (1ull << 63)  /* ids of evaluation requests: this bit and the prompt's number */
#define K2M_EVAL_MAX      65536u        /* prompts of one evaluation */
#define K2M_RESTART_WINDOW_NS (600 * K2_NS_PER_S)
#define K2M_RESTARTS_KEPT 64u           /* restart times remembered of one worker; master.restarts_max above it acts as it */
#define K2M_REFUSALS_MAX  8u            /* requests refused in a row, with no answer between, before the run gives up */
#define K2M_UNREWARDED_MAX 32u          /* answers in a row whose reward failed to the last try, before the run gives up */
#define K2M_INCARNATIONS  4096u         /* reserved in the journal at a time: a record for each would be a disk's wait for each start */
#define K2M_OUTBOX_RESERVE 64u          /* actions that are no request, no score, no log line, and not to a worker */
#define K2M_STEP_WORKERS  256u          /* workers that one step starts, ends or commands, so that none takes long; the next go on */
#define K2M_POISON_DEATHS 3u            /* processes that one trajectory ended while it was alone there: it is poison */
#define K2M_POISON_KILLS  8u            /* the same by kill -9, of which an innocent one may meet some in a row */
#define K2M_COMPANY_MAX   2u            /* engines lost under one among others, before it is asked for alone */
#define K2M_LOST_MAX      4u            /* engines that an answer names as lost, or whose exits are awaited for one trajectory */
#define K2M_VERDICT_NS    (2 * K2_NS_PER_S) /* from a broken connection to the exit of its process */
#define K2M_SUSPECT_NONE  UINT64_MAX
#define K2M_STOP_NS       (15 * K2_NS_PER_S) /* from STOP to SIGKILL */
#define K2M_RATE_ONE      (1u << 30)    /* success rates are in units of 2^-30 */
#define K2M_RATE_SOLVED   (K2M_RATE_ONE / 10 * 9) /* a prompt with at least this rate counts as solved */
#define K2M_RATE_UNSEEN   UINT32_MAX
#define K2M_RATES_CHUNK   256u          /* of one record */
#define K2M_REPLAY_BYTES_MAX (1ull << 30)    /* checkpoints are made early before consumed groups take more than this */

#define K2M_WORKER_BYTES  1600u         /* of the core for each worker, of the outbox once it has its whole size; held by bench/scale's test */

typedef enum k2m_role { K2M_TRAINER, K2M_ROLLOUT, K2M_PROXY, K2M_ROLES } k2m_role;
const char *k2m_role_name(k2m_role r); /* "trainer" */

typedef enum k2m_worker_state {
    K2M_DOWN,     /* no process; `restart_at_ns` says when the next one starts */
    K2M_STARTING, /* launched, no HELLO yet */
    K2M_UP,       /* holds a lease */
    K2M_ENDED     /* no process and none to come */
} k2m_worker_state;

typedef enum k2m_phase {
    K2M_PHASE_START,
    K2M_PHASE_JOIN,
    K2M_PHASE_INIT,
    K2M_PHASE_PRETRAIN,
    K2M_PHASE_SAVE,
    K2M_PHASE_LATEST,
    K2M_PHASE_BATCH,
    K2M_PHASE_TRAIN,
    K2M_PHASE_PUBLISH,
    K2M_PHASE_DISTRIBUTE,
    K2M_PHASE_EVAL,
    K2M_PHASE_GENERATE,
    K2M_PHASE_STOP,
    K2M_PHASE_END,
    K2M_PHASE_COUNT
} k2m_phase;
const char *k2m_phase_name(k2m_phase p); /* "generate" */

/* ---- events --------------------------------------------------------------------------------------------------------- */

typedef enum k2m_event_type {
    K2M_EV_BEGIN,      /* once, after recovery */
    K2M_EV_TICK,       /* time passes */
    K2M_EV_HELLO,      /* hello: answered by k2m_core_step's outbox with ADMIT or REFUSE */
    K2M_EV_ALIVE,      /* worker: a POLL or anything else of the present incarnation came */
    K2M_EV_DONE,       /* worker, msg */
    K2M_EV_EXIT,       /* worker, incarnation, exit_code, signal, pid, oom_kills, text: what it wrote last */
    K2M_EV_LAUNCH_FAILED, /* worker, text */
    K2M_EV_ANSWER,     /* id, position, tokens, count, finish, digest */
    K2M_EV_ANSWER_FAILED, /* id, position, text: it will be asked for again; code BAD_INPUT: refused, as it would be again */
    K2M_EV_SCORED,     /* id, has_reward, reward, text */
    K2M_EV_SCORE_FAILED, /* ids[count]: the request as a whole failed; asked again */
    K2M_EV_BATCH,      /* step, locator, bytes, digest: the batch is readable */
    K2M_EV_LATEST,     /* the checkpoint is the latest one, old ones are gone */
    K2M_EV_STOP,       /* someone asks to drain; the second time to end at once */
    K2M_EV_FAULT       /* code, text: the I/O side cannot go on (journal full, ...) */
} k2m_event_type;

/* A rollout whose connection broke while a request was on it. */
typedef struct k2m_lost {
    uint64_t worker; /* from 1, as the proxy knows it */
    uint64_t incarnation;
    bool alone;      /* nothing else was on it */
} k2m_lost;

typedef struct k2m_event {
    k2m_event_type type;
    uint64_t now_ns;
    uint32_t worker; /* number in the fleet */
    uint64_t incarnation;
    const k2_msg *msg; /* HELLO, DONE */
    int exit_code, signal;
    uint64_t pid, oom_kills;
    uint64_t id;
    const k2_replay_token *tokens;
    uint32_t count;
    uint32_t position; /* that the request named: one given up by an earlier phase may still be answered */
    k2_replay_finish finish;
    k2_digest digest;
    bool has_reward;
    double reward;
    const uint64_t *ids;
    uint64_t step, bytes;
    const char *locator, *text;
    k2_code code;
    const k2m_lost *lost; /* ANSWER_FAILED, SCORE_FAILED: lost_count <= K2M_LOST_MAX of them */
    uint32_t lost_count;
} k2m_event;

/* ---- actions -------------------------------------------------------------------------------------------------------- */

typedef enum k2m_action_type {
    K2M_ACT_LAUNCH,     /* worker, incarnation (also the nonce) */
    K2M_ACT_KILL,       /* worker, incarnation: SIGKILL */
    K2M_ACT_ADMIT,      /* worker, incarnation: answer the HELLO in hand with WELCOME */
    K2M_ACT_REFUSE,     /* code, text: answer the HELLO in hand with REFUSED */
    K2M_ACT_COMMAND,    /* worker, incarnation, msg: valid until the next step */
    K2M_ACT_BATCH,      /* step: encode, put into a segment, answer with EV_BATCH; the segment before may go */
    K2M_ACT_REQUEST,    /* id, position, max_tokens: ask the proxy */
    K2M_ACT_SCORE,      /* ids[count]: ask for rewards */
    K2M_ACT_LATEST,     /* checkpoint number: write `latest`, remove older ones */
    K2M_ACT_COMPACT,    /* forget journal records before the last STATE record */
    K2M_ACT_STACKS,     /* text, the reason: take the stacks of all processes, before any of them is killed or started */
    K2M_ACT_QUARANTINE, /* kind, id, position, max_tokens, deaths, text: put it aside; failing to costs nothing else */
    K2M_ACT_REPORT,     /* an iteration, an evaluation or a slice of pretraining has ended: report */
    K2M_ACT_LOG,        /* level, text */
    K2M_ACT_EXIT        /* code, text: the end */
} k2m_action_type;

typedef enum k2m_report_kind {
    K2M_REPORT_PRETRAIN,
    K2M_REPORT_ITERATION,
    K2M_REPORT_EVAL,
    K2M_REPORT_SAVE,
    K2M_REPORT_WEIGHTS
} k2m_report_kind;

/* How well prompts are answered, where they are drawn by priority. mean: of the rates of those seen. */
typedef struct k2m_success {
    bool on;
    uint32_t prompts, seen, solved;
    double mean;
} k2m_success;

typedef struct k2m_report {
    k2m_report_kind kind;
    uint64_t iteration, version; /* version: that the iteration made, or that stood */
    bool trained;                /* the iteration had a batch */
    uint32_t groups, filtered;   /* of the batch; of the step, but left out of the batch: of equal rewards */
    uint64_t pretrain_from, pretrain_to;
    uint32_t correct, total;     /* of an evaluation */
    k2_digest digest;
    uint64_t generate_ns, train_ns, update_ns, generated_tokens; /* of the iteration */
    k2_replay_counts counts;     /* when it was made: the core goes on before a report is read */
    uint64_t retried, aside[3];  /* k2m_aside */
    k2m_success success;
} k2m_report;

typedef struct k2m_action {
    k2m_action_type type;
    uint32_t worker;
    uint64_t incarnation;
    uint64_t id, step;
    uint32_t position, max_tokens;
    bool alone; /* REQUEST, SCORE: a suspect's; given back as soon as its engine is lost */
    k2_quarantine_kind kind;
    uint32_t deaths;
    int level; /* of k2_log_level */
    k2_code code;
    union { /* an outbox has room for the whole fleet, so an action is as large as its largest kind only */
        k2_msg msg;
        struct {
            uint64_t ids[K2M_SCORE_ITEMS];
            uint32_t count;
        };
        char text[K2M_TEXT_MAX];
        k2m_report report;
    };
} k2m_action;

typedef struct k2m_outbox {
    k2m_action *list;
    uint32_t count, capacity;
} k2m_outbox;

/* ---- state ---------------------------------------------------------------------------------------------------------- */

typedef struct k2m_worker {
    k2m_role role;
    uint32_t index;
    k2m_worker_state state;
    uint64_t incarnation;
    uint64_t lease_ns, start_ns, restart_at_ns; /* points in time */
    uint64_t restarts[K2M_RESTARTS_KEPT];       /* ring of times */
    uint32_t restart_count, restarts_total;
    uint64_t pid;
    char host[K2M_HOST_MAX];
    char endpoint[K2M_ENDPOINT_MAX];
    /* the command under way, cmd_type NONE when idle */
    uint64_t cmd;
    k2_msg_type cmd_type;
    uint64_t cmd_since_ns, cmd_deadline_ns;
    bool barrier;          /* a trainer's command that the phase waits for */
    /* rollouts */
    k2_digest prepared, held; /* whole but not in use; in use */
    uint64_t held_version;
    uint32_t prepare_fails;
    char locator[K2M_LOCATOR_MAX]; /* trainers: of collectives; rollouts: of the weights they hold, for peers */
    /* proxy */
    k2_digest gate, gate_asked; /* where it stands; what the last GATE said */
    bool stop_sent;
    uint32_t census; /* as what census.c has counted it */
    uint64_t owes_poll_ns; /* since when its next POLL is due; 0 = one lies with us. The I/O side writes it */
    char phase[K2_WIRE_NAME_MAX + 1]; /* as it says in POLL; the I/O side writes it */
    k2m_gauges gauges;                /* the same */
} k2m_worker;

typedef struct k2m_prompts {
    const int32_t *const *ids; /* token ids of each prompt, generation prompt included */
    const uint32_t *lengths;
    const uint32_t *easy_first; /* [count] prompts by rising difficulty; NULL: no curriculum */
    const double *difficulty;   /* [count] of each prompt, where there is one */
    uint32_t count, length_max;
} k2m_prompts;

/* How well prompts are answered, where they are drawn by priority (prompts.c). */
typedef struct k2m_rates {
    uint32_t *rate;          /* [prompts] of success, or K2M_RATE_UNSEEN; no memory where they are not drawn so */
    uint64_t *sums;          /* [prompts] of weights, a binary indexed tree */
    uint64_t step;           /* up to which trained steps' groups are counted */
    uint64_t total;          /* of the rates of those seen */
    uint32_t seen, solved;
} k2m_rates;

typedef enum k2m_eval_state { K2M_EVAL_WAITING, K2M_EVAL_RUNNING, K2M_EVAL_ANSWERED, K2M_EVAL_SCORED } k2m_eval_state;

/* What a policy decides on. */
typedef enum k2m_aside { K2M_ASIDE_NAN, K2M_ASIDE_POISON, K2M_ASIDE_REWARD, K2M_ASIDE_COUNT } k2m_aside;

typedef enum k2m_held_for { K2M_HELD_NOT, K2M_HELD_ANSWER, K2M_HELD_SCORE } k2m_held_for;

/* A trajectory (or evaluation request) under which processes have died; see poison.c. */
typedef struct k2m_suspect {
    uint64_t id;
    uint32_t company;            /* deaths among others */
    uint32_t alone, killed;      /* with nobody else there: by a fault; by a signal that may have come from outside */
    k2m_held_for held;           /* until its turn comes to be alone */
    k2m_lost lost[K2M_LOST_MAX]; /* whose exits are awaited */
    uint32_t lost_count;
    uint64_t lost_ns;            /* the last of them */
} k2m_suspect;

typedef struct k2m_asked {
    uint64_t id, since_ns;
} k2m_asked;

typedef struct k2m_checkpoint {
    bool exists;
    uint64_t number; /* of its directory */
    uint64_t step, pretrain, iteration;
} k2m_checkpoint;

typedef struct k2m_core_config {
    const k2_config *config;    /* must outlive the core */
    k2m_prompts prompts;        /* count 0 in mode pretrain */
    uint32_t heldout;           /* held-out prompts that exist */
    uint32_t vocab;
    uint64_t pid;                /* of the master, to be named where it is waited for; 0 = it is dead */
    const char *checkpoints_dir; /* <run dir>/checkpoints */
    void (*record)(void *arg, uint32_t type, const void *bytes, size_t len);
    void *record_arg;
} k2m_core_config;

/* What is known of the fleet without looking at everyone: k2m_touch keeps it. Places are numbers in the fleet, or of a rollout
 * among the rollouts. */
typedef struct k2m_fleet {
    k2_least *due;   /* when a worker must be looked at; never later than what it is due for, earlier where a lease was renewed */
    k2_set *to_stop, *to_kill;
    k2_set *wants;   /* rollouts that are up, at nothing, and have not the version in force: PREPARE */
    k2_set *whole;   /* that have it and do not use it yet: COMMIT */
    k2_set *holders; /* that use it */
    k2_set *changed; /* of which the proxy has not heard the last */
    bool table_begun; /* the proxy's table holds what was not changed since */
    uint32_t up[K2M_ROLES], ended;
    uint32_t lacking; /* rollouts that are up and have not the version in force, at whatever they are */
    uint32_t trainers_idle;
    uint32_t budget;  /* workers that this step may still deal with */
    uint64_t chain_logged_ns;
    uint64_t looks;   /* at one worker each, since new: for tests of what an event costs */
} k2m_fleet;

struct k2m_core {
    k2m_core_config c;
    k2_replay *replay;
    k2m_worker *workers;
    uint32_t worker_count, trainers, rollouts, first_rollout, proxy; /* trainers first, then rollouts, then the proxy */
    bool has_proxy;
    k2m_fleet fleet;
    uint64_t last_incarnation, incarnations_reserved; /* given; those up to here are never given by a later master */

    /* durable */
    uint64_t iteration;             /* iterations that have ended */
    k2m_checkpoint checkpoint;
    bool evaluated_before;          /* accuracy_before is known */
    uint32_t before_correct, before_total, after_correct, after_total;
    uint64_t evaluated_iteration;   /* of the last evaluation, valid with evaluated_before */
    k2_digest *digests;             /* of versions, by version % digest_count; zero = unknown */
    uint32_t digest_count;
    bool finished;
    bool journal_pressed;           /* the I/O side says: a checkpoint would make room in the journal */

    /* the trainers */
    bool begun;                     /* all were up once */
    bool trainers_ready;            /* INIT is done, nobody died since */
    uint64_t trainer_step, trainer_pretrain;
    bool published;                 /* trainer_step has a segment */
    char trainer_locator[K2M_LOCATOR_MAX];
    k2_digest barrier_digest;       /* what rank 0 said in the barrier under way */
    bool barrier_has_digest;
    uint32_t barrier_left;
    bool barrier_failed;
    uint32_t batch_fails; /* barriers that failed since the last was passed */
    k2m_phase failed_in;  /* the last of them behind INIT; START: none */
    uint64_t failed_at;   /* steps that had been taken there */

    /* the version in force */
    bool in_force;
    uint64_t force_version;
    k2_digest force_digest;
    uint64_t force_bytes;

    k2m_proxy_list listed; /* the I/O side writes it */

    k2m_phase phase;
    uint64_t phase_since_ns, progress_ns;
    uint64_t now_ns;
    uint64_t pretrain_from, pretrain_to;
    uint32_t stop_asked;
    bool failing;                   /* the end is an error: text below */
    k2_code fail_code;
    char fail_text[K2M_TEXT_MAX];
    k2m_checkpoint saving;

    /* generation */
    uint32_t inflight, inflight_max;
    k2m_asked *asked; /* by a hash of the id: enough to say since when an answer is out; a later one may take the place */
    uint32_t asked_count;
    uint64_t backoff_until_ns;
    uint32_t backoff_step;
    uint64_t *score_queue;          /* ring */
    uint32_t score_head, score_count, score_capacity, scores_inflight;
    struct {
        uint64_t id;
        uint32_t tries;
    } *score_tries;                 /* trajectories whose reward has failed */
    uint32_t score_tries_count;
    uint64_t retried;               /* requests and scores that were asked for again */
    uint32_t refusals;              /* requests in a row */
    k2m_suspect *suspects;
    uint32_t suspect_count, suspect_capacity;
    uint64_t aside[K2M_ASIDE_COUNT]; /* over the run, from records */
    uint64_t aside_step, aside_pretrain; /* up to these steps the skipped ones are counted */
    uint32_t unrewarded;            /* answers in a row whose reward failed to the last try */
    char failure[160];              /* the last one of this phase, for the error when nothing moves any more */
    uint64_t generate_from_ns, generate_ns, train_from_ns, train_ns, update_from_ns, update_ns, generated_before, generated_now;
    uint32_t batch_groups, batch_flat; /* of them, those left out of the batch */
    uint32_t *order;                /* shuffled prompts of an epoch */
    uint64_t order_epoch;           /* + 1; 0 = none yet */
    k2m_rates rates;

    /* evaluation */
    uint8_t *eval;                  /* k2m_eval_state of each prompt */
    uint32_t eval_count, eval_next, eval_done, eval_correct;

    /* memory of the outbox's messages */
    const char **strs, *sources[9];
    k2_wire_engine *engines;
    char dir_text[K2_CONFIG_STR_MAX + 64];
    char batch_locator[K2M_LOCATOR_MAX];
    uint64_t batch_step, batch_bytes;
    k2_digest batch_digest;

    k2m_exits exits;
    bool stacks_asked;              /* in this step */

    k2m_outbox *out;                /* of the step under way */
    k2m_outbox outbox;
};

/* k2m_core_new - all memory of a run's plan.
 *
 * errors   LIMIT, BAD_INPUT with the configuration key
 */
k2_code k2m_core_new(const k2m_core_config *config, k2m_core **out, k2_error *err);
void k2m_core_free(k2m_core *m);
/* What k2m_core_new would allocate; of the configuration's pointers only `config` is looked at. */
uint64_t k2m_core_bytes(const k2m_core_config *config);
/* Groups that one step may take: those in work, and those begun in place of such with equal rewards. */
uint64_t k2m_step_groups(const k2_config *c);
/* Replay's limits as the configuration gives them; what --dry-run and the memory check show. */
k2_replay_config k2m_replay_config(const k2_config *c, uint32_t prompt_tokens_max);

/* Durable records, in order, before EV_BEGIN. */
k2_code k2m_core_apply(k2m_core *m, uint32_t type, const void *bytes, size_t len, k2_error *err);

/* k2m_core_step - one event. The outbox stays valid until the next step. */
const k2m_outbox *k2m_core_step(k2m_core *m, const k2m_event *ev);

/* True where a message of this worker and incarnation may be heard. */
bool k2m_core_current(const k2m_core *m, uint64_t worker, uint64_t incarnation);
/* One line: what is waited for, and who owes it. */
void k2m_core_owes(const k2m_core *m, char *out, size_t n);
k2m_asked *k2m_asked_slot(const k2m_core *m, uint64_t id);
/* "trainer-0" */
void k2m_worker_name(const k2m_worker *w, char out[K2_WIRE_NAME_MAX]);
/* The prompt of a group: position in the data set. Drawn by priority, it is the one that the group gets when it is begun now. */
uint32_t k2m_core_prompt_of(k2m_core *m, uint64_t group);
k2m_success k2m_core_success(const k2m_core *m);
/* Training samples are cut at the budget; evaluation is not. */
uint32_t k2m_core_eval_wanted(const k2m_core *m);

/* ---- between the files of the core ----------------------------------------------------------------------------------- */

enum {
    K2M_REC_STATE = 64,
    K2M_REC_VERSION,
    K2M_REC_ITERATION,
    K2M_REC_EVAL,
    K2M_REC_CHECKPOINT,
    K2M_REC_FINISHED,
    K2M_REC_INCARNATIONS,
    K2M_REC_DEATHS,
    K2M_REC_ASIDE,
    K2M_REC_RATES
};

/* memory.c */
uint32_t k2m_worker_actions(const k2m_core *m); /* most that one step may have for workers */

/* core.c */
void k2m_report_put(k2m_core *m, const k2m_report *report);

/* outbox.c */
k2m_action *k2m_act(k2m_core *m, k2m_action_type type);
bool k2m_room(const k2m_core *m, uint32_t count); /* of the outbox */
void k2m_log(k2m_core *m, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void k2m_fail(k2m_core *m, k2_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* What people see of a failure at that time: its text, and the end of a process that came first. */
void k2m_fail_text(const k2m_core *m, uint64_t failed_ns, char out[K2M_TEXT_MAX]);
void k2m_stacks_ask(k2m_core *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void k2m_phase_set(k2m_core *m, k2m_phase p);
/* Something must come to an end in it every master.step_timeout_ms; the other phases have their commands' deadlines. */
bool k2m_phase_timed(k2m_phase p);

/* decide.c */
void k2m_decide(k2m_core *m);
bool k2m_only_pretrain(const k2m_core *m);
void k2m_phase_begin(k2m_core *m, k2m_phase p, k2_msg_type type); /* with its command to all trainers */
void k2m_stop_begin(k2m_core *m);

/* census.c */
void k2m_fleet_init(k2m_core *m);
void k2m_fleet_fini(k2m_core *m);
uint64_t k2m_fleet_bytes(const k2m_core *m);
/* The census of a worker whose state, command or weights have changed; of all rollouts, when another version is in force. */
void k2m_touch(k2m_core *m, k2m_worker *w);
void k2m_touch_rollouts(k2m_core *m);
/* Aborts when the census is not what a look at everyone gives; for tests. */
void k2m_fleet_check(const k2m_core *m);

/* fleet.c */
void k2m_fleet_launch_all(k2m_core *m);
void k2m_fleet_hello(k2m_core *m, const k2m_event *ev);
void k2m_fleet_exit(k2m_core *m, const k2m_event *ev);
void k2m_fleet_tick(k2m_core *m);
k2_msg *k2m_command(k2m_core *m, k2m_worker *w, k2_msg_type type); /* to be filled in this step */
void k2m_barrier(k2m_core *m, k2_msg_type type);                   /* the command of the phase to all trainers */
bool k2m_trainers_up(const k2m_core *m);
bool k2m_trainers_idle(const k2m_core *m);
bool k2m_fleet_all_up(const k2m_core *m);
void k2m_worker_dead(k2m_core *m, k2m_worker *w, const char *why);
void k2m_kill_worker(k2m_core *m, k2m_worker *w, const char *why);
void k2m_stop_all(k2m_core *m);
void k2m_kill_all(k2m_core *m);     /* does not wait for STOP */
void k2m_fleet_settle(k2m_core *m); /* at the end of a step: STOP and KILL to whom they are due, as far as the budget goes */
bool k2m_all_ended(const k2m_core *m);

/* deliver.c */
void k2m_table_changed(k2m_core *m, const k2m_worker *w); /* the proxy is to hear of this rollout */
void k2m_deliver(k2m_core *m); /* weights to rollouts, table and gate to the proxy: whatever is due */
bool k2m_delivered(const k2m_core *m);
void k2m_fleet_forgive(k2m_core *m, uint32_t worker); /* its last restart is not to be counted */
bool k2m_starved(const k2m_core *m); /* nobody holds the version in force, and nobody offers it */
void k2m_rollout_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *done);
void k2m_proxy_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *done);
bool k2m_proxy_ready(const k2m_core *m);

/* prompts.c */
bool k2m_rates_on(const k2m_core *m);
void k2m_rates_reset(k2m_core *m, uint64_t step);                     /* nothing is known but that these steps are counted */
bool k2m_rates_set(k2m_core *m, uint64_t prompt, uint32_t rate);      /* false: no such prompt or rate */
void k2m_rates_group(k2m_core *m, uint64_t group);                    /* one more group of its prompt */
void k2m_rates_count(k2m_core *m);                                    /* after each change of the replay buffer that may be a step's end */

/* generate.c */
void k2m_generate_begin(k2m_core *m);
bool k2m_generate_fill(k2m_core *m); /* true: groups were begun */
bool k2m_batch_leaves_out(const k2m_core *m, uint64_t group); /* its rewards are equal, and such groups are replaced */
void k2m_generate_pump(k2m_core *m);
void k2m_eval_begin(k2m_core *m);
void k2m_eval_pump(k2m_core *m);
void k2m_answer(k2m_core *m, const k2m_event *ev);
void k2m_answer_failed(k2m_core *m, const k2m_event *ev);
void k2m_scored(k2m_core *m, const k2m_event *ev);
void k2m_score_failed(k2m_core *m, const k2m_event *ev);

/* poison.c */
void k2m_aside_steps(k2m_core *m, bool pretrain, uint64_t step, uint64_t skipped);
bool k2m_aside_reward(k2m_core *m, uint64_t id, const char *why); /* false: the run has been ended by its policy */
/* These engines were lost under id: deaths are counted, at once or with their exits. It may be dropped by that. */
void k2m_suspect_lost(k2m_core *m, uint64_t id, const k2m_lost *list, uint32_t count);
void k2m_suspect_exit(k2m_core *m, uint64_t incarnation); /* a rollout has ended by itself */
void k2m_suspect_clear(k2m_core *m, uint64_t id);                          /* an answer or a score came */
void k2m_suspect_set(k2m_core *m, uint64_t id, uint32_t company, uint32_t alone, uint32_t killed);
bool k2m_suspect_isolated(const k2m_core *m, uint64_t id); /* may only be asked for alone */
bool k2m_suspect_poison(const k2m_core *m, uint64_t id);
bool k2m_suspect_held(const k2m_core *m, uint64_t id);
void k2m_suspect_hold(k2m_core *m, uint64_t id, k2m_held_for what);
void k2m_suspects_release(k2m_core *m); /* a phase begins: nobody is held, no exit is awaited */
uint32_t k2m_suspects_held(const k2m_core *m);
/* The next to be alone, and for what; it is held no longer. K2M_SUSPECT_NONE: none, or exits are awaited that may be a verdict. */
uint64_t k2m_suspect_next(k2m_core *m, k2m_held_for *what);

/* record.c */
void k2m_record_deaths(k2m_core *m, const k2m_suspect *s);
void k2m_record_aside(k2m_core *m, k2m_aside what);
void k2m_record_version(k2m_core *m, uint64_t version, k2_digest digest);
void k2m_record_iteration(k2m_core *m);
void k2m_record_eval(k2m_core *m);
void k2m_record_checkpoint(k2m_core *m);
void k2m_record_finished(k2m_core *m);
void k2m_record_incarnations(k2m_core *m, uint64_t reserved);
k2_digest k2m_digest_of(const k2m_core *m, uint64_t version);

#endif
