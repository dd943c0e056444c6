/* server - see server_int.h: routing, health, metrics, models and scores. */
#include "rollout/server_int.h"

#include <stdio.h>
#include <string.h>

#define OUT_MAX        (256u << 20) /* bytes of one answer: a context of a million tokens with their log-probabilities */
#define NAME_BYTES_MAX 65536u       /* of one token's text: the longest known have some hundred */
#define CONNS_MAX      10000u       /* open connections: the proxy keeps one for each request in work */

/* One POST /k2/score that waits for the reward command. */
typedef struct score_call {
    k2i_server *s;
    k2_http_req *req;
    k2i_score_batch batch;
    struct score_call *prev, *next;
} score_call;

void k2i_respond_error(k2i_server *s, k2_http_req *req, const k2_openai_error *e)
{
    k2_buf_clear(&s->out);
    k2_openai_write_error(&s->out, e);
    k2_http_respond(req, e->status, "application/json", s->out.data, s->out.len);
}

/* ---- small answers ---------------------------------------------------------------------------------------------------- */

static void respond_health(k2i_server *s, k2_http_req *req)
{
    uint64_t version = 0;
    k2_digest digest = {0, 0};
    k2i_core_stats stats = {0};
    if (s->attached) {
        k2i_engine_weights_get(s->served.engine, &version, &digest);
        k2i_engine_stats_get(s->served.engine, &stats);
    }
    const char *status = s->draining ? "draining" : !s->attached || k2_digest_zero(digest) ? "loading" : "ok";
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(digest, hex);
    k2_buf_clear(&s->out);
    k2_buf_printf(&s->out, "{\"status\":\"%s\",\"version\":", status);
    k2_openai_write_u64(&s->out, version);
    k2_buf_printf(&s->out, ",\"digest\":\"%s\",\"queue\":%u,\"running\":%u,\"tokens\":%llu}", hex, stats.waiting, stats.running,
                  (unsigned long long)stats.waiting_tokens);
    k2_http_respond(req, strcmp(status, "ok") == 0 ? 200 : 503, "application/json", s->out.data, s->out.len);
}

/* name, member of k2i_core_stats, kind, help */
#define STATS(COUNTER, GAUGE)                                                                                                  \
    GAUGE("k2_rollout_requests_running", running, "requests in the batch")                                                     \
    GAUGE("k2_rollout_requests_waiting", waiting, "requests in the queue")                                                     \
    GAUGE("k2_rollout_pages_held", pages_held, "cache pages that requests hold")                                               \
    GAUGE("k2_rollout_pages", pages_total, "cache pages there are")                                                            \
    COUNTER("k2_rollout_steps_total", steps, "engine steps")                                                                   \
    COUNTER("k2_rollout_prefill_tokens_total", prefill_rows, "prompt positions computed")                                      \
    COUNTER("k2_rollout_cached_tokens_total", cached_tokens, "prompt positions that shared pages have saved")                  \
    COUNTER("k2_rollout_prefix_hits_total", prefix_hits, "shared pages that requests have found")                              \
    COUNTER("k2_rollout_decode_rows_total", decode_rows, "positions computed one at a time")                                   \
    COUNTER("k2_rollout_generated_tokens_total", generated, "tokens drawn")                                                    \
    COUNTER("k2_rollout_finished_total", finished, "requests that have ended, for any reason")                                 \
    COUNTER("k2_rollout_canceled_total", canceled, "requests whose client went away")                                          \
    COUNTER("k2_rollout_stale_total", stale, "requests that asked for other weights")                                          \
    COUNTER("k2_rollout_preemptions_total", preemptions, "requests put back because pages ran out")                            \
    COUNTER("k2_rollout_evictions_total", evictions, "shared pages given up for new ones")

static void raise_stats(k2i_server *s)
{
    k2i_core_stats now;
    k2i_engine_stats_get(s->served.engine, &now);
#define K2_GAUGE(name, member, help) k2_metric_set(k2_metrics_gauge(s->metrics, name, "", help), (double)now.member);
#define K2_COUNTER(name, member, help)                                                                                         \
    k2_metric_add(k2_metrics_counter(s->metrics, name, "", help), (double)(now.member - s->shown.member));
    STATS(K2_COUNTER, K2_GAUGE)
#undef K2_GAUGE
#undef K2_COUNTER
    s->shown = now;
    uint64_t version, model_ns, busy_ns;
    k2_digest digest;
    k2i_engine_weights_get(s->served.engine, &version, &digest);
    k2i_engine_times_get(s->served.engine, &model_ns, &busy_ns);
    k2_metric_set(k2_metrics_gauge(s->metrics, "k2_rollout_weights_version", "", "version of the active weights"),
                  (double)version);
    k2_metric_set(k2_metrics_gauge(s->metrics, "k2_rollout_model_seconds", "", "time in the model since the start"),
                  (double)model_ns / 1e9);
    k2_metric_set(k2_metrics_gauge(s->metrics, "k2_rollout_busy_seconds", "", "time in engine steps since the start"),
                  (double)busy_ns / 1e9);
}

static void respond_metrics(k2i_server *s, k2_http_req *req)
{
    if (s->attached) raise_stats(s);
    k2_buf_clear(&s->out);
    k2_metrics_text(s->metrics, &s->out);
    k2_http_respond(req, 200, K2_METRICS_CONTENT_TYPE, s->out.data ? s->out.data : "", s->out.len);
}

static void respond_models(k2i_server *s, k2_http_req *req)
{
    const char *names[] = {s->model_name};
    k2_buf_clear(&s->out);
    k2_openai_write_models(&s->out, names, 1, s->created);
    k2_http_respond(req, 200, "application/json", s->out.data, s->out.len);
}

static void respond_model(k2i_server *s, k2_http_req *req, const char *name)
{
    k2_openai_error e;
    if (strcmp(name, s->model_name) != 0) {
        k2_openai_error_set(&e, 404, "model_not_found", "model", "the model \"%.100s\" does not exist; this one is \"%s\"",
                            name, s->model_name);
        k2i_respond_error(s, req, &e);
        return;
    }
    k2_buf_clear(&s->out);
    k2_buf_puts(&s->out, "{\"id\":");
    k2_buf_json_string(&s->out, s->model_name, strlen(s->model_name));
    k2_buf_printf(&s->out, ",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"k2rl\"}", (unsigned long long)s->created);
    k2_http_respond(req, 200, "application/json", s->out.data, s->out.len);
}

/* ---- scores ------------------------------------------------------------------------------------------------------------ */

static void score_free(score_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->s->scores = c->next;
    if (c->next) c->next->prev = c->prev;
    k2i_score_batch_fini(&c->batch);
    k2_free(c);
}

static void score_done(void *arg)
{
    score_call *c = arg;
    k2_buf_clear(&c->s->out);
    k2i_score_write(&c->batch, &c->s->out);
    k2_http_respond(c->req, 200, "application/json", c->s->out.data, c->s->out.len);
    score_free(c);
}

static void score_aborted(void *arg)
{
    score_call *c = arg;
    k2i_rewarder_cancel(c->s->served.rewarder, &c->batch);
    score_free(c);
}

static void score(k2i_server *s, k2_http_req *req)
{
    size_t n;
    const char *body = k2_http_req_body(req, &n);
    k2_openai_error e;
    k2i_score_batch batch;
    if (!s->served.rewarder) {
        k2_openai_error_set(&e, 404, "not_found", NULL, "this server scores nothing: it serves a model alone");
        k2i_respond_error(s, req, &e);
        return;
    }
    if (!k2i_score_parse(body, n, &batch, &e)) {
        k2i_respond_error(s, req, &e);
        return;
    }
    score_call *c = k2_alloc(sizeof *c);
    *c = (score_call){.s = s, .req = req, .batch = batch, .next = s->scores};
    if (s->scores) s->scores->prev = c;
    s->scores = c;
    k2_http_req_on_abort(req, score_aborted, c);
    if (k2i_rewarder_score(s->served.rewarder, &c->batch, score_done, c) == K2_OK) return;
    k2_openai_error_set(&e, 429, "overloaded", NULL, "too many answers wait for the reward command");
    k2_http_header_add(req, "Retry-After", "1");
    k2i_respond_error(s, req, &e);
    score_free(c);
}

/* ---- routing ----------------------------------------------------------------------------------------------------------- */

static void complete(k2i_server *s, k2_http_req *req)
{
    k2i_generate(s, req, false);
}
static void complete_chat(k2i_server *s, k2_http_req *req)
{
    k2i_generate(s, req, true);
}

static const struct {
    const char *path, *method;
    bool always; /* also while there is no engine, and while draining */
    void (*run)(k2i_server *s, k2_http_req *req);
} routes[] = {
    {"/v1/completions", "POST", false, complete}, {"/v1/chat/completions", "POST", false, complete_chat},
    {"/v1/models", "GET", true, respond_models},  {"/health", "GET", true, respond_health},
    {"/metrics", "GET", true, respond_metrics},   {"/k2/score", "POST", false, score},
};

static void on_request(void *arg, k2_http_req *req)
{
    k2i_server *s = arg;
    const char *path = k2_http_req_path(req), *method = k2_http_req_method(req);
    k2_openai_error e;
    if (strncmp(path, "/v1/models/", 11) == 0 && strcmp(method, "GET") == 0) {
        respond_model(s, req, path + 11);
        return;
    }
    for (size_t i = 0; i < K2_COUNT(routes); i++) {
        if (strcmp(path, routes[i].path) != 0) continue;
        if (strcmp(method, routes[i].method) != 0) {
            k2_openai_error_set(&e, 405, "method_not_allowed", NULL, "%s takes %s, found %.20s", path, routes[i].method,
                                method);
            k2_http_header_add(req, "Allow", routes[i].method);
        } else if (!routes[i].always && (!s->attached || s->draining)) {
            k2_openai_error_set(&e, 503, s->draining ? "draining" : "loading", NULL, "the engine is %s",
                                s->draining ? "shutting down" : "not ready yet");
        } else {
            routes[i].run(s, req);
            return;
        }
        k2i_respond_error(s, req, &e);
        return;
    }
    k2_openai_error_set(&e, 404, "not_found", NULL, "no such path: %.200s", path);
    k2i_respond_error(s, req, &e);
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static const double seconds_bounds[] = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};

k2i_server *k2i_server_new(k2_loop *loop, const char *host, uint16_t port, const char *model_name, k2_log *log, k2_error *err)
{
    k2i_server *s = k2_alloc(sizeof *s);
    s->loop = loop;
    s->log = log;
    s->http = k2_http_serve(loop, host, port, &(k2_http_limits){.conns_max = CONNS_MAX}, on_request, s, err);
    if (!s->http) {
        k2_free(s);
        return NULL;
    }
    snprintf(s->model_name, sizeof s->model_name, "%s", model_name);
    uint64_t now = k2_wall_us();
    s->created = now / 1000000;
    s->seed = k2_hash64(&now, sizeof now, (uint64_t)(uintptr_t)s);
    k2_buf_init(&s->out, OUT_MAX);
    k2_buf_init(&s->body, OUT_MAX);
    k2_buf_init(&s->name, NAME_BYTES_MAX);
    k2_openai_list_init(&s->list);
    s->metrics = k2_metrics_new();
    s->m_seconds = k2_metrics_histogram(s->metrics, "k2_rollout_request_seconds", "",
                                        "from a request's body to its answer's end", seconds_bounds, K2_COUNT(seconds_bounds));
    s->m_first_token =
        k2_metrics_histogram(s->metrics, "k2_rollout_first_token_seconds", "",
                             "from a streamed request's body to its first tokens", seconds_bounds, K2_COUNT(seconds_bounds));
    return s;
}

uint16_t k2i_server_port(const k2i_server *s)
{
    return k2_http_server_port(s->http);
}

void k2i_server_attach(k2i_server *s, const k2i_served *served)
{
    s->served = *served;
    s->attached = true;
}

void k2i_server_drain(k2i_server *s)
{
    s->draining = true;
    k2_http_server_drain(s->http);
}

uint32_t k2i_server_open(const k2i_server *s)
{
    return s->generations;
}

void k2i_server_free(k2i_server *s)
{
    if (!s) return;
    k2i_generations_drop(s);
    while (s->scores) {
        score_call *c = s->scores;
        k2_openai_error e;
        k2_openai_error_set(&e, 503, "shutting_down", NULL, "the engine is shutting down");
        k2i_rewarder_cancel(s->served.rewarder, &c->batch);
        k2i_respond_error(s, c->req, &e);
        score_free(c);
    }
    k2_http_server_close(s->http);
    k2_buf_fini(&s->out);
    k2_buf_fini(&s->body);
    k2_buf_fini(&s->name);
    k2_openai_list_fini(&s->list);
    k2_metrics_free(s->metrics);
    k2_free(s);
}
