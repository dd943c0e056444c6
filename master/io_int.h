/* io - the master's hands: loop, sockets, children, files around the core.
 *
 * Nouns: a *run* (k2m_run) is everything known before the first process starts; a *reporter* writes what people read; `k2m_io`
 * turns completions into events for the core and the core's actions into calls. Actions wait until the records that came before
 * them are on the disk: that is the write-ahead rule, kept in one place (k2m_io_event and release).
 */
#ifndef K2_MASTER_IO_INT_H
#define K2_MASTER_IO_INT_H

#include "common/config/config.h"
#include "common/data/data.h"
#include "common/http/http.h"
#include "common/inputs/inputs.h"
#include "common/journal/journal.h"
#include "common/launch/launch.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/metrics/metrics.h"
#include "common/net/net.h"
#include "common/tensor/tensor.h"
#include "common/token/token.h"
#include "common/xfer/xfer.h"
#include "master/core_int.h"
#include "master/hold_int.h"
#include "master/mail_int.h"

#define K2M_TICK_NS       (50 * K2_NS_PER_MS)
#define K2M_ANSWER_BYTES_MAX (64u << 20) /* body of one answer of the proxy */
#define K2M_WHY_MAX       8u             /* askers of `why` at once; more are refused */
#define K2M_LIST_NS       (1500 * K2_NS_PER_MS) /* longest time that an answer waits for the proxy's list */
#define K2M_LIST_EVERY_NS (5 * K2_NS_PER_S) /* while nothing moves, so that the log can name the engine too */
#define K2M_PROBE_NS      (500 * K2_NS_PER_MS) /* from the question to the answer: who lives asks for work again meanwhile */
#define K2M_TAIL_BYTES    16384u         /* of a worker's log, looked at when it died: a crash's own report fits */

/* ---- run: what is known before the start ---------------------------------------------------------------------------- */

typedef struct k2m_prompt_set {
    k2_prompts *list;
    int32_t **ids;
    uint32_t *lengths, length_max, count;
    uint32_t *easy_first; /* where there is a curriculum; NULL else */
    double *difficulty;
    k2_digest fingerprint;
} k2m_prompt_set;

/* Append a prompt's ids, with the beginning of an answer. The errors of k2_tokenizer_render. */
k2_code k2m_prompt_render(const k2_tokenizer *t, const k2_prompt *p, k2_tokens *out, k2_error *err);

typedef struct k2m_run {
    k2_config config;
    bool json, dry_run, resume;
    int argc;
    char **argv;
    k2_digest identity;
    k2_dims dims;
    k2_inputs inputs; /* what all workers must have */
    k2_tokenizer *tokenizer;
    k2m_prompt_set train, heldout;
    k2_digest corpus;
    uint64_t corpus_tokens;
    bool existed; /* the run directory holds a run of this configuration */
    char id[64];
} k2m_run;

/* k2m_run_check - everything that can be wrong with the input, found before anything is made: model, prompts, corpus, memory.
 *
 * errors   the first fault, with file, line, path or key
 */
k2_code k2m_run_check(k2m_run *r, k2_error *err);
/* Take the run directory: lock and journal, generated data, manifest.json, config.json. A run of another configuration is
 * refused. */
k2_code k2m_run_prepare(k2m_run *r, k2_journal **journal, k2_error *err);
void k2m_run_fini(k2m_run *r);
/* remains.c: remove the half-written files and checkpoints of processes that were killed. */
void k2m_remains_clear(const char *run_dir);

/* plan.c: memory of each kind of process, in bytes, from the configuration. */
typedef struct k2m_plan {
    uint64_t params, active_params;
    uint64_t master_bytes, trainer_bytes, rollout_bytes, proxy_bytes, total_bytes, machine_bytes;
} k2m_plan;
void k2m_plan_make(const k2m_run *r, k2m_plan *out);
k2_code k2m_plan_check(const k2m_run *r, k2_error *err);
void k2m_plan_print(const k2m_run *r);

/* ---- reporter --------------------------------------------------------------------------------------------------------- */

typedef struct k2m_reporter k2m_reporter;
/* What it writes goes to the loop's pool; close after k2_loop_free. */
k2_code k2m_reporter_open(const k2m_run *r, k2_loop *loop, k2_log *log, k2m_reporter **out, k2_error *err);
void k2m_reporter_close(k2m_reporter *p);
/* Numbers of rank 0's last command; kept until the report that they belong to. */
void k2m_reporter_trainer(k2m_reporter *p, const k2_wire_metrics *metrics);
/* Rewards and lengths of the batch that is about to be trained. */
void k2m_reporter_batch(k2m_reporter *p, const k2m_core *m, uint64_t step);
void k2m_reporter_report(k2m_reporter *p, const k2m_report *report);
void k2m_reporter_line(k2m_reporter *p, int level, const char *text); /* a log line that people should see too */
/* What it knows of the run; the other members are left alone. */
void k2m_reporter_told(const k2m_reporter *p, k2m_told *out);
void k2m_reporter_tick(k2m_reporter *p, const k2m_core *m, uint64_t now_ns); /* redraw the live view */
/* The end: last line of the view, and the JSON object where it was asked for. */
void k2m_reporter_summary(k2m_reporter *p, const k2m_core *m, k2_code code, const char *text);

/* ---- io ----------------------------------------------------------------------------------------------------------------- */

typedef struct k2m_slot { /* of one worker */
    struct k2m_proc *procs; /* the present one, and older ones that have not ended yet */
    k2_net_call *poll;
    uint64_t fenced; /* the last incarnation that was told so: the log has each once */
    k2m_mail mail;
} k2m_slot;

typedef struct k2m_call k2m_call; /* calls.c */

/* snapshot.c: stacks of all processes, taken by a child of ours */
#define K2M_SNAPSHOT_GAP_NS    (30 * K2_NS_PER_S) /* between two: what hangs shows the same in the next */
#define K2M_SNAPSHOT_WAIT_NS   (2 * K2_NS_PER_S)  /* that ends and starts of workers wait for it, at most */
#define K2M_SNAPSHOT_DEADLINE_NS (20 * K2_NS_PER_S) /* it is ended then */
#define K2M_SNAPSHOT_FILES     16u                /* kept in logs/; the oldest goes */

typedef struct k2m_snapshot {
    k2_child *child; /* NULL: none is under way */
    bool any;        /* one was taken, `began_ns` says when */
    uint64_t began_ns;
    char file[64], why[K2M_TEXT_MAX];
    k2m_action *waiting; /* LAUNCH and KILL, in order */
    uint32_t waiting_count, waiting_capacity;
} k2m_snapshot;

typedef struct k2m_io {
    k2m_run *run;
    k2m_core *core;
    k2m_reporter *reporter;
    k2_log *log;
    k2_loop *loop;
    k2_journal *journal;
    k2_journal_batch *writing; /* the writer's */
    bool write_busy, fault_told;
    k2m_phase phase_told; /* the last that the log has */
    char *checkpoints_dir;
    k2_error write_error, writer_error; /* the loop's; the writer's while it is busy */
    uint64_t state_seq; /* of the last STATE record */
    uint64_t journal_bytes; /* since then */
    uint64_t compact_before, compacting; /* records before it may go: to be handed to the writer; the writer's */
    k2_net_server *server;
    char token[K2_NET_TOKEN_BYTES];
    char *config_json;
    k2_launch *launch;
    k2m_slot *slots;
    k2_least *polls; /* workers whose POLL lies with us, by since when */
    k2m_hold hold;
    k2_net_call *hello; /* in hand */
    k2_net_call *why[K2M_WHY_MAX]; /* asked, answered when the probe is over */
    uint32_t why_count;
    uint64_t probe_ns; /* when the probe under way began */
    k2m_snapshot snapshot;
    k2_http_client *http, *list_http; /* to the proxy: requests; its list of them, which must not stand in line behind those */
    k2_http_call *list_call;
    uint64_t list_asked_ns;
    k2m_call *calls; /* under way to the proxy */
    k2_xfer *xfer;
    k2_xfer_segment *segment; /* of the batch */
    uint64_t batch_step;
    k2_digest batch_digest;
    struct {
        int32_t *ids;
        uint32_t count;
    } *eval; /* answers of the evaluation under way */
    uint32_t eval_count;
    k2_timer *tick;
    bool releasing, ended;
    k2_code exit_code;
    char exit_text[K2M_TEXT_MAX];
} k2m_io;

/* Run until the end; gives the exit status. */
int k2m_io_run(k2m_run *run, k2_journal *journal);
void k2m_io_event(k2m_io *io, k2m_event *ev);

/* calls.c: HTTP to the proxy */
void k2m_call_request(k2m_io *io, const k2m_action *a);
void k2m_call_score(k2m_io *io, const k2m_action *a);
/* The body of REQUEST; what the reward command is told of an answer. */
void k2m_call_body(const k2m_io *io, const k2m_action *a, k2_buf *out);
void k2m_call_item(const k2m_io *io, uint64_t id, k2_buf *out);
/* aside.c: a prompt or a reward into quarantine, on a pool thread */
void k2m_put_aside(k2m_io *io, const k2m_action *a);
/* The proxy that they went to has been replaced: none of their answers counts any more, all of them have failed. */
void k2m_calls_drop(k2m_io *io);
/* batch.c */
void k2m_batch_make(k2m_io *io, uint64_t step);
/* The batch of a step as trainers get it: where equal rewards are replaced (rollout.refill_max), without the groups that have them. */
k2_code k2m_batch_encode(const k2m_core *m, uint64_t step, k2_buf *out, k2_error *err);
/* latest.c: `latest` and the removal of older checkpoints, on a pool thread */
void k2m_latest_write(k2m_io *io, uint64_t number);
/* workers.c: children and control messages */
void k2m_workers_launch(k2m_io *io, const k2m_action *a);
void k2m_workers_kill(k2m_io *io, const k2m_action *a);
void k2m_workers_admit(k2m_io *io, const k2m_action *a, k2_net_call *call);
void k2m_workers_command(k2m_io *io, const k2m_action *a);
void k2m_workers_request(void *arg, k2_net_call *call, const k2_msg *msg);
void k2m_workers_tick(k2m_io *io, uint64_t now_ns);
void k2m_workers_probe(k2m_io *io); /* answer all POLLs: who lives sends the next one at once */
void k2m_workers_fini(k2m_io *io);
/* snapshot.c: one at a time; too soon after another one it is left out */
void k2m_snapshot_take(k2m_io *io, const k2m_action *a);
/* True: the action (LAUNCH, KILL) is kept and comes back through k2m_io_carry_out when the stacks are taken, or late. */
bool k2m_snapshot_keeps(k2m_io *io, const k2m_action *a);
void k2m_snapshot_tick(k2m_io *io, uint64_t now_ns);
void k2m_snapshot_fini(k2m_io *io);
void k2m_io_carry_out(k2m_io *io, const k2m_action *a); /* LAUNCH, KILL */
/* proxy_list.c: what the proxy says of its requests, kept in the core's `listed` */
void k2m_proxy_list_ask(k2m_io *io);
/* False where the body is not such a list; entries that are not of this run are passed over. tests/unit/master/look_test.c */
bool k2m_proxy_list_read(const k2m_core *m, const char *body, size_t n, uint64_t now_ns, k2m_proxy_list *out);
/* ask_top.c: TOP */
void k2m_ask_top(k2m_io *io, k2_net_call *call);
/* ask.c: WHY */
void k2m_ask(k2m_io *io, k2_net_call *call);
void k2m_ask_tick(k2m_io *io, uint64_t now_ns);

#endif
