/* rollout_io - the worker process around rollout_core: messages and completions to events, actions to calls.
 *
 * Weights: `staging` is the model that the next version is pulled into; the engine has the other one. With each of them goes
 * the segment that it came by, from which peers may pull in turn; the old one is withdrawn when the engine has switched. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/budget/budget.h"
#include "common/flight/flight.h"
#include "common/inputs/inputs.h"
#include "common/net/net.h"
#include "rollout/options_int.h"
#include "rollout/plan_int.h"
#include "rollout/pull_int.h"
#include "rollout/rollout_core_int.h"
#include "rollout/server_int.h"

#define STATUS_NS     (200 * K2_NS_PER_MS)
#define DRAIN_NS      (5 * K2_NS_PER_S) /* requests that run at STOP get this long */
#define DRAIN_TICK_NS (10 * K2_NS_PER_MS)
#define SWITCH_NS     (5 * K2_NS_PER_S) /* plain requests in flight get this long before they go on with the new weights */

typedef struct held_segment {
    k2_xfer_segment *segment;
    k2_digest digest;
    uint64_t bytes;
} held_segment;

/* One pull on a pool thread. */
typedef struct pull_work {
    struct worker *w;
    k2i_pull pull;
    char **sources;
    atomic_bool cancel;
    k2_model *model; /* NULL: the thread makes it */
    k2_dims dims;
    k2_compute compute;
    uint32_t threads;
    uint64_t version;
    k2i_pulled result;
    k2_code code;
    k2_error err;
    uint64_t took_ns;
} pull_work;

typedef struct worker {
    const k2i_options *options;
    k2_loop *loop;
    k2_log *log;
    k2_net_worker *net;
    k2i_server *server;
    k2_signal *signals[2];
    k2_timer *status, *drain;
    uint64_t drain_until_ns;
    k2_config config;
    k2_dims dims;
    k2i_engine_plan plan;
    k2_tokenizer *tokenizer;
    k2_xfer *xfer;
    k2i_engine *engine;
    k2i_rewarder *rewarder;
    k2i_rollout core;
    k2_model *staging;
    held_segment staged, active;
    pull_work *pulling;
    struct {
        uint64_t cmd, ns, bytes, retries, elsewhere;
    } last_pull;            /* for the metrics of its DONE */
    k2_msg prepare;         /* the last PREPARE, with its sources */
    const char *phase_told; /* the last that the flight recorder has */
    int status_code;
} worker;

static void on_event(worker *w, const k2i_event *ev);

/* ---- pulling -------------------------------------------------------------------------------------------------------- */

static void pull_run(void *arg)
{
    pull_work *p = arg;
    uint64_t begin = k2_now_ns();
    k2_flight_thread("pull");
    uint32_t span = k2_flight_begin(K2_FLIGHT_PULL, p->version, K2_FLIGHT_NONE, p->pull.source_count, K2_FLIGHT_NONE);
    if (!p->model) p->model = k2_model_new(&p->dims, p->compute, p->threads, &p->err);
    p->pull.model = p->model;
    p->code = p->model ? k2i_pull_run(&p->pull, &p->result, &p->err) : p->err.code;
    k2_flight_end_with(span, 3, p->code);
    p->took_ns = k2_now_ns() - begin;
}

static void pull_free(pull_work *p)
{
    for (uint32_t i = 0; i < p->pull.source_count; i++) k2_free(p->sources[i]);
    k2_free(p->sources);
    k2_free(p);
}

static void pull_done(void *arg)
{
    pull_work *p = arg;
    worker *w = p->w;
    w->pulling = NULL;
    w->staging = p->model;
    if (p->code == K2_OK) {
        k2_xfer_segment_destroy(w->staged.segment);
        w->staged = (held_segment){p->result.segment, p->pull.digest, p->result.bytes};
        w->last_pull.cmd = w->core.pulling.cmd;
        w->last_pull.ns = p->took_ns;
        w->last_pull.bytes = p->result.bytes;
        w->last_pull.retries = p->result.retries;
        w->last_pull.elsewhere = p->result.elsewhere;
        K2_LOG_INFO(w->log, "pulled weights version=%llu bytes=%llu ms=%.1f retries=%llu",
                    (unsigned long long)w->core.pulling.version, (unsigned long long)p->result.bytes, (double)p->took_ns / 1e6,
                    (unsigned long long)p->result.retries);
    } else {
        K2_LOG_WARN(w->log, "weights could not be pulled version=%llu: %s", (unsigned long long)w->core.pulling.version,
                    p->err.text);
    }
    k2i_event ev = {.type = K2I_EV_PULLED, .code = p->code, .text = p->err.text};
    if (!k2_loop_ending(w->loop)) on_event(w, &ev);
    pull_free(p);
}

static void pull_begin(worker *w, const k2i_action *a)
{
    const k2_wire_strs *sources = &w->prepare.prepare.sources;
    K2_ASSERT(w->prepare.cmd == a->cmd); /* a later PREPARE takes the place of all before it */
    pull_work *p = k2_alloc(sizeof *p);
    p->w = w;
    p->sources = k2_alloc_array(sources->count, sizeof *p->sources);
    for (uint32_t i = 0; i < sources->count; i++) p->sources[i] = k2_strdup(sources->items[i]);
    p->pull = (k2i_pull){.xfer = w->xfer,
                         .sources = (const char *const *)p->sources,
                         .source_count = sources->count,
                         .digest = a->digest,
                         .deadline_ns = k2_now_ns() + w->config.xfer_deadline_ms * K2_NS_PER_MS,
                         .cancel = &p->cancel,
                         .log = w->log};
    p->model = w->staging;
    p->dims = w->dims;
    p->compute = w->plan.compute;
    p->threads = w->plan.threads;
    p->version = a->version;
    p->code = k2_error_set(&p->err, K2_CANCELED, "it was not begun");
    w->staging = NULL;
    k2_xfer_segment_destroy(w->staged.segment); /* its model is about to be overwritten */
    w->staged = (held_segment){0};
    w->pulling = p;
    k2_code code = k2_loop_work(w->loop, pull_run, pull_done, p);
    K2_ASSERT(code == K2_OK); /* one pull at a time */
}

/* ---- the other actions ----------------------------------------------------------------------------------------------- */

static void switch_done(void *arg, k2_model *old)
{
    worker *w = arg;
    if (old) w->staging = old;
    if (k2_digest_equal(w->staged.digest, w->core.switching.digest)) {
        k2_xfer_segment_destroy(w->active.segment);
        w->active = w->staged;
        w->staged = (held_segment){0};
    }
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(w->core.switching.digest, hex);
    K2_LOG_INFO(w->log, "switched weights version=%llu digest=%s", (unsigned long long)w->core.switching.version, hex);
    on_event(w, &(k2i_event){.type = K2I_EV_SWITCHED});
}

static void switch_begin(worker *w, const k2i_action *a)
{
    k2i_weights weights = {.version = a->version, .digest = a->digest};
    if (!a->keep) {
        weights.model = w->staging;
        w->staging = NULL;
    }
    k2i_engine_switch(w->engine, &weights, k2_loop_now_ns(w->loop) + SWITCH_NS, switch_done, w);
}

static void report_done(worker *w, const k2i_action *a)
{
    const held_segment *h = NULL;
    if (w->staged.segment && k2_digest_equal(w->staged.digest, a->digest)) h = &w->staged;
    if (w->active.segment && k2_digest_equal(w->active.digest, a->digest)) h = &w->active;
    const char *locator = h ? k2_xfer_segment_locator(h->segment) : NULL;
    const k2_wire_metric metrics[] = {{"pull_seconds", (double)w->last_pull.ns / 1e9},
                                      {"pull_bytes", (double)w->last_pull.bytes},
                                      {"pull_retries", (double)w->last_pull.retries},
                                      {"pull_elsewhere", (double)w->last_pull.elsewhere}};
    bool pulled = a->cmd != 0 && a->cmd == w->last_pull.cmd;
    k2_msg m = {.type = K2_MSG_DONE,
                .cmd = a->cmd,
                .done = {.code = (uint64_t)a->code,
                         .text = a->text,
                         .version = a->version,
                         .digest = a->digest,
                         .locators = {.items = &locator, .count = h && a->code == K2_OK ? 1 : 0},
                         .bytes = h ? h->bytes : 0,
                         .metrics = {.items = metrics, .count = pulled ? (uint32_t)K2_COUNT(metrics) : 0}}};
    k2_net_worker_done(w->net, &m);
}

static void on_drain_tick(void *arg)
{
    worker *w = arg;
    if (w->server && k2i_server_open(w->server) > 0 && k2_loop_now_ns(w->loop) < w->drain_until_ns) return;
    k2_timer_stop(w->drain);
    w->drain = NULL;
    on_event(w, &(k2i_event){.type = K2I_EV_DRAINED});
}

static void drain_begin(worker *w)
{
    k2i_server_drain(w->server);
    w->drain_until_ns = k2_loop_now_ns(w->loop) + DRAIN_NS;
    w->drain = k2_timer_start(w->loop, 0, DRAIN_TICK_NS, on_drain_tick, w);
}

static void stop_loop(void *arg)
{
    worker *w = arg;
    k2_loop_stop(w->loop);
}

static const char *phase_of(const worker *w)
{
    uint64_t version;
    k2_digest digest;
    k2i_engine_weights_get(w->engine, &version, &digest);
    return w->core.stopping         ? "stopping"
           : w->core.is_pulling     ? "pulling"
           : w->core.is_switching   ? "switching"
           : k2_digest_zero(digest) ? "loading"
                                    : "serving";
}

static void phase_tell(worker *w)
{
    const char *phase = phase_of(w);
    if (phase == w->phase_told) return; /* one of the strings above */
    w->phase_told = phase;
    k2_flight_state(K2_FLIGHT_PHASE, k2_flight_text(phase), k2_flight_text_at(phase, 8), K2_FLIGHT_NONE, K2_FLIGHT_NONE);
}

static void on_event(worker *w, const k2i_event *ev)
{
    k2i_outbox out;
    k2i_rollout_step(&w->core, ev, &out);
    for (uint32_t i = 0; i < out.count; i++) {
        const k2i_action *a = &out.list[i];
        switch (a->type) {
        case K2I_ACT_PULL: pull_begin(w, a); break;
        case K2I_ACT_CANCEL_PULL: atomic_store(&w->pulling->cancel, true); break;
        case K2I_ACT_SWITCH: switch_begin(w, a); break;
        case K2I_ACT_DONE: report_done(w, a); break;
        case K2I_ACT_DRAIN: drain_begin(w); break;
        case K2I_ACT_EXIT: k2_net_worker_flush(w->net, stop_loop, w); break;
        }
    }
    phase_tell(w);
}

/* ---- the control plane ------------------------------------------------------------------------------------------------ */

static void on_status(void *arg)
{
    worker *w = arg;
    uint64_t version, model_ns, busy_ns;
    k2_digest digest;
    k2i_core_stats s;
    k2i_engine_weights_get(w->engine, &version, &digest);
    k2i_engine_stats_get(w->engine, &s);
    k2i_engine_times_get(w->engine, &model_ns, &busy_ns);
    k2i_rewarder_state reward;
    k2i_rewarder_state_get(w->rewarder, &reward);
    uint64_t now_ns = k2_loop_now_ns(w->loop), left_ns = reward.deadline_ns > now_ns ? reward.deadline_ns - now_ns : 0;
    const k2_wire_metric gauges[] = {
        {"running", s.running},
        {"waiting", s.waiting},
        {"tokens_waiting", (double)s.waiting_tokens},
        {"tokens", (double)s.generated},
        {"prefilled", (double)s.prefill_rows},
        {"cached", (double)s.cached_tokens},
        {"preemptions", (double)s.preemptions},
        {"pages_held", s.pages_held},
        {"version", (double)version},
        {"busy_seconds", (double)busy_ns / 1e9},
        {"model_seconds", (double)model_ns / 1e9},
        {"scores", reward.waiting},
        {"reward_pid", reward.busy ? (double)reward.pid : 0},
        {"reward_seconds", reward.busy ? (double)(now_ns - reward.since_ns) / 1e9 : 0},
        {"reward_left_seconds", reward.busy ? (double)left_ns / 1e9 : 0},
    };
    k2_flight_count(K2_FLIGHT_QUEUES, s.waiting, s.running, 0, 0);
    k2_net_worker_status(w->net, phase_of(w), gauges, K2_COUNT(gauges));
}

static k2_code load_sizes(worker *w, k2_error *err)
{
    char *path = k2_inputs_model_path(&w->config);
    k2_code code = k2_weights_dims_load(path, &w->dims, err);
    const k2_tokenizer_spec spec = {.kind = w->config.tokenizer_kind,
                                    .path = k2_config_tokenizer_path(&w->config, w->config.model_dir),
                                    .pattern = w->config.tokenizer_pattern};
    if (code == K2_OK) code = k2_tokenizer_load(&spec, &w->tokenizer, err);
    if (code == K2_OK && w->dims.vocab_size < k2_tokenizer_vocab(w->tokenizer))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: vocab_size: found %u, expected at least %u of the tokenizer \"%s\"", path,
                            w->dims.vocab_size, k2_tokenizer_vocab(w->tokenizer), w->config.tokenizer_kind);
    k2_free(path);
    return code;
}

static uint32_t cores(void)
{
    return (uint32_t)K2_MAX(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

static k2_code build(worker *w, k2_error *err)
{
    k2_code code = load_sizes(w, err);
    if (code != K2_OK) return code;
    code = k2i_plan_engine(&w->config, &w->dims, (uint32_t)w->config.rollout_workers, cores(), &w->plan, err);
    if (code == K2_OK) code = k2i_plan_check(&w->plan, &w->dims, 2, true, k2i_memory_available(), err);
    if (code != K2_OK) return code;
    const k2_xfer_config xfer = {.transport = w->config.xfer_transport,
                                 .host = w->options->host,
                                 .chunk_bytes = w->config.xfer_chunk_bytes,
                                 .retries = (uint32_t)w->config.xfer_retries};
    code = k2_xfer_open(&xfer, &w->xfer, err);
    if (code != K2_OK) return code;
    w->staging = k2_model_new(&w->dims, w->plan.compute, w->plan.threads, err);
    if (!w->staging) return err->code;
    w->engine = k2i_engine_new(w->loop, &w->plan, &w->dims, &(k2i_weights){0});
    w->rewarder = k2i_rewarder_new(w->loop, &w->config, w->log);
    k2i_server_attach(w->server, &(k2i_served){.engine = w->engine,
                                               .tokenizer = w->tokenizer,
                                               .rewarder = w->rewarder,
                                               .context_max = w->plan.core.context_max,
                                               .vocab = w->dims.vocab_size,
                                               .answer_max = (uint32_t)w->config.rollout_max_tokens,
                                               .repetition = w->plan.core.repetition.count > 0});
    return K2_OK;
}

static void fail(worker *w, k2_code code, const char *text)
{
    K2_LOG_ERROR(w->log, "cannot start: %s", text);
    w->status_code = k2_code_exit(code);
    k2_loop_stop(w->loop);
}

static void on_welcome(void *arg, const k2_msg *msg)
{
    worker *w = arg;
    k2_error err;
    k2_log_level level = K2_LOG_INFO;
    k2_config_defaults(&w->config);
    k2_code code = k2_config_parse(&w->config, msg->welcome.config, strlen(msg->welcome.config), "WELCOME", &err);
    if (code == K2_OK) k2_net_worker_record(w->net, w->config.run_dir, msg->welcome.run_id, w->config.run_flight_kib);
    const k2_inputs masters = {.model = msg->welcome.model, .tokenizer = msg->welcome.tokenizer};
    if (code == K2_OK) code = k2_inputs_check(&w->config, &masters, &err);
    if (code == K2_OK) code = build(w, &err);
    if (code != K2_OK) {
        fail(w, code, err.text);
        return;
    }
    if (k2_log_level_parse(w->config.log_level, &level)) k2_log_set_level(w->log, level);
    w->status = k2_timer_start(w->loop, 0, STATUS_NS, on_status, w);
    phase_tell(w);
    K2_LOG_INFO(w->log, "admitted worker=%llu incarnation=%llu port=%u threads=%u pages=%u",
                (unsigned long long)k2_net_worker_id(w->net), (unsigned long long)k2_net_worker_incarnation(w->net),
                k2i_server_port(w->server), w->plan.threads, w->plan.core.pages);
}

static void on_command(void *arg, const k2_msg *msg)
{
    worker *w = arg;
    k2i_event ev = {.cmd = msg->cmd};
    if (msg->type == K2_MSG_PREPARE) {
        ev.type = K2I_EV_PREPARE;
        ev.version = msg->prepare.version;
        ev.digest = msg->prepare.digest;
        k2_msg_free(&w->prepare);
        k2_msg_copy(&w->prepare, msg);
    } else if (msg->type == K2_MSG_COMMIT) {
        ev.type = K2I_EV_COMMIT;
        ev.version = msg->commit.version;
        ev.digest = msg->commit.digest;
    } else if (msg->type == K2_MSG_STOP) {
        ev.type = K2I_EV_STOP;
    } else {
        k2i_action refused = {.type = K2I_ACT_DONE, .cmd = msg->cmd, .code = K2_UNSUPPORTED};
        snprintf(refused.text, sizeof refused.text, "%s is no command for a rollout worker", k2_msg_name(msg->type));
        report_done(w, &refused);
        return;
    }
    on_event(w, &ev);
}

static void on_lost(void *arg, k2_code why, const char *text)
{
    worker *w = arg;
    K2_LOG_ERROR(w->log, "the master is lost: %s (%s)", text, k2_code_name(why));
    w->status_code = 1;
    k2_loop_stop(w->loop);
}

static void on_signal(void *arg, int signum)
{
    worker *w = arg;
    if (signum == SIGINT) return; /* Ctrl-C is the master's to handle: it sends STOP */
    if (!w->engine) {
        k2_loop_stop(w->loop);
        return;
    }
    on_event(w, &(k2i_event){.type = K2I_EV_STOP});
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static k2_code start(worker *w, k2_error *err)
{
    const k2i_options *o = w->options;
    static const k2_net_worker_ops ops = {on_welcome, on_command, on_lost};
    w->log = k2_log_open(NULL, "rollout", (int)o->index, K2_LOG_INFO, err);
    w->loop = k2_loop_new();
    k2_loop_raise_fd_limit();
    w->server = k2i_server_new(w->loop, o->host, o->port, o->name, w->log, err);
    if (!w->server) return err->code;
    char endpoint[K2_HTTP_HOST_MAX + 24];
    bool v6 = strchr(o->host, ':') != NULL;
    snprintf(endpoint, sizeof endpoint, "http://%s%s%s:%u", v6 ? "[" : "", o->host, v6 ? "]" : "", k2i_server_port(w->server));
    const k2_net_worker_config config = {.url = o->master,
                                         .role = "rollout",
                                         .endpoint = endpoint,
                                         .token = getenv("K2RL_TOKEN"),
                                         .index = o->index,
                                         .nonce = o->nonce,
                                         .log = w->log};
    w->signals[0] = k2_loop_signal(w->loop, SIGINT, on_signal, w);
    w->signals[1] = k2_loop_signal(w->loop, SIGTERM, on_signal, w);
    w->net = k2_net_worker_start(w->loop, &config, &ops, w, err);
    return w->net ? K2_OK : err->code;
}

static void finish(worker *w)
{
    for (size_t i = 0; i < K2_COUNT(w->signals); i++) k2_signal_stop(w->signals[i]);
    k2_timer_stop(w->status);
    k2_timer_stop(w->drain);
    k2i_engine_stop(w->engine);
    k2i_server_free(w->server);
    k2i_rewarder_free(w->rewarder);
    k2_net_worker_close(w->net);
    k2_loop_free(w->loop);
    k2i_engine_free(w->engine);
    k2_model_free(w->staging);
    k2_xfer_segment_destroy(w->staged.segment);
    k2_xfer_segment_destroy(w->active.segment);
    k2_xfer_close(w->xfer);
    if (w->engine) k2_log_memory(w->log, "rollout", k2_budget_rollout(&w->config, &w->dims, cores()).total);
    k2_tokenizer_close(w->tokenizer);
    k2_msg_free(&w->prepare);
    k2_log_close(w->log);
    k2_free(w);
}

int k2i_worker_run(const k2i_options *o)
{
    worker *w = k2_alloc(sizeof *w);
    k2_error err = {0};
    w->options = o;
    if (start(w, &err) == K2_OK) {
        k2_loop_run(w->loop);
    } else {
        fprintf(stderr, "k2rl rollout: %s\n", err.text);
        w->status_code = k2_code_exit(err.code);
    }
    int rc = w->status_code;
    /* A pull may be waiting for a source that does not answer. It is nobody's any more, and what we offer goes with the
     * process. */
    if (w->pulling) k2_net_process_end(rc);
    finish(w);
    return rc;
}
