/* proxy_io.c - the core's surroundings: its events get their time here, its actions are carried out, and time passes. */
#include "proxy/io_int.h"

#include <stdio.h>
#include <string.h>

#define HEALTH_BODY_MAX 4096u
#define HEALTH_WAIT_MS  2000u /* an engine's HTTP side answers /health between two tokens; more is no health */
#define ENGINE_BUSY_MS  50u   /* an engine that answered 429 is asked again after this long */

/* ---- health ---------------------------------------------------------------------------------------------------------- */

static void on_health(void *arg, k2_code code, int status, const char *body, size_t n)
{
    k2i_px_probe *p = arg;
    p->call = NULL;
    if (!p->io->client) return; /* closed */
    k2i_px_event ev = {.kind = K2I_PX_HEALTH, .engine = p->slot};
    ev.health.ok = code == K2_OK && status == 200;
    ev.health.refused = code == K2_PEER_REFUSED;
    if (ev.health.ok) ev.health.has_digest = k2_openai_read_health(body, n, &ev.health.version, &ev.health.digest);
    k2i_px_io_step(p->io, &ev);
}

static void probe_failed(void *arg)
{
    on_health(arg, K2_FULL, 0, "", 0);
}

static void probe_send(k2i_px_io *io, uint32_t slot)
{
    k2i_px_probe *p = &io->probes[slot];
    char url[K2I_PX_URL_MAX + 16];
    snprintf(url, sizeof url, "%s/health", k2i_px_engine_at(io->core, slot)->url);
    uint64_t wait_ns = K2_MAX(io->config.health_ms, (uint64_t)HEALTH_WAIT_MS) * K2_NS_PER_MS;
    k2_http_call_spec spec = {.method = "GET",
                              .url = url,
                              .connect_ns = io->config.connect_ms * K2_NS_PER_MS,
                              .first_byte_ns = wait_ns,
                              .idle_ns = wait_ns};
    p->call = k2_http_fetch(io->client, &spec, HEALTH_BODY_MAX, on_health, p, NULL);
    /* The core must hear of every probe; where it cannot be sent, in a turn of its own. */
    if (!p->call && k2_loop_post(io->loop, probe_failed, p) != K2_OK) probe_failed(p);
}

/* ---- events and actions ----------------------------------------------------------------------------------------------- */

static void carry_out(k2i_px_io *io, const k2i_px_action *a)
{
    k2i_px_job *job = a->user;
    switch (a->kind) {
    case K2I_PX_SEND:
        job->id = a->request; /* the first action on a new request tells its number before the step returns */
        k2i_px_upstream_send(job, a->engine);
        break;
    case K2I_PX_HOLD: k2i_px_upstream_cancel(job); break;
    case K2I_PX_FAIL:
        job->id = K2I_PX_NONE;
        k2i_px_job_fail(job, a);
        break;
    case K2I_PX_PROBE: probe_send(io, a->engine); break;
    }
}

uint32_t k2i_px_io_step(k2i_px_io *io, k2i_px_event *ev)
{
    uint32_t request = K2I_PX_NONE;
    bool first = true;
    K2_ASSERT(!io->stepping);
    io->stepping = true;
    k2i_px_event next = *ev;
    for (;;) {
        next.now_ns = k2_loop_now_ns(io->loop);
        k2i_px_step(io->core, &next, &io->out);
        if (first) request = io->out.request;
        first = false;
        bool more = io->out.more;
        for (uint32_t i = 0; i < io->out.count; i++) carry_out(io, &io->out.actions[i]);
        if (io->broken) {
            k2i_px_job *job = io->broken;
            io->broken = job->broken_next;
            job->broken = false;
            next = (k2i_px_event){.kind = K2I_PX_FAILED, .request = job->id, .failed = {.why = K2I_PX_REFUSED}};
        } else if (more) {
            next = (k2i_px_event){.kind = K2I_PX_TICK};
        } else {
            break;
        }
    }
    io->stepping = false;
    return request;
}

static void on_tick(void *arg)
{
    k2i_px_event ev = {.kind = K2I_PX_TICK};
    k2i_px_io_step(arg, &ev);
}

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static void metrics_make(k2i_px_io *io)
{
    static const double first[] = {.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30};
    static const double whole[] = {.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300};
    k2_metrics *m = io->metrics = k2_metrics_new();
    io->m_requests[K2I_PX_COMPLETION] =
        k2_metrics_counter(m, "k2_proxy_requests_total", "kind=\"completion\"", "Requests taken");
    io->m_requests[K2I_PX_CHAT] = k2_metrics_counter(m, "k2_proxy_requests_total", "kind=\"chat\"", "Requests taken");
    io->m_requests[K2I_PX_FORWARD] = k2_metrics_counter(m, "k2_proxy_requests_total", "kind=\"other\"", "Requests taken");
    io->m_tokens = k2_metrics_counter(m, "k2_proxy_tokens_total", "", "Tokens that came from engines");
    io->m_first_token = k2_metrics_histogram(m, "k2_proxy_first_token_seconds", "", "From a request to its first token", first,
                                             K2_COUNT(first));
    io->m_seconds =
        k2_metrics_histogram(m, "k2_proxy_seconds", "", "From a request to the end of its answer", whole, K2_COUNT(whole));
}

void k2i_px_io_configure(k2i_px_io *io, const k2i_px_io_config *config)
{
    K2_ASSERT(!io->ready && io->job_count == 0);
    io->ready = true;
    io->config = *config;
    io->core = k2i_px_new(&(k2i_px_config){.engines_max = config->engines_max,
                                           .requests_max = config->queue_max,
                                           .retries = config->retries,
                                           .wait_ns = config->wait_ms * K2_NS_PER_MS,
                                           .health_ns = config->health_ms * K2_NS_PER_MS,
                                           .busy_ns = ENGINE_BUSY_MS * K2_NS_PER_MS});
    io->probes = k2_alloc_array(config->engines_max, sizeof *io->probes);
    for (uint32_t i = 0; i < config->engines_max; i++) io->probes[i] = (k2i_px_probe){.io = io, .slot = i};
    io->tick = k2_timer_start(io->loop, K2I_PX_TICK_NS, K2I_PX_TICK_NS, on_tick, io);
}

k2i_px_io *k2i_px_io_new(k2_loop *loop, k2_log *log)
{
    k2i_px_io *io = k2_alloc(sizeof *io);
    io->loop = loop;
    io->log = log;
    io->client = k2_http_client_new(loop, &(k2_http_client_config){.idle_per_host_max = 1024, .conns_per_host_max = 65536});
    k2_buf_init(&io->body, K2I_PX_ANSWER_MAX * 2);
    k2_buf_init(&io->event, K2I_PX_ANSWER_MAX * 2);
    k2_openai_parsed_init(&io->parsed);
    metrics_make(io);
    return io;
}

k2_code k2i_px_io_listen(k2i_px_io *io, const char *host, uint16_t port, uint16_t *got, k2_error *err)
{
    uint32_t i = 0;
    while (i < K2I_PX_SERVERS_MAX && io->servers[i]) i++;
    K2_ASSERT(i < K2I_PX_SERVERS_MAX);
    k2_http_limits limits = {.conns_max = 100000, .body_bytes_max = K2I_PX_BODY_MAX};
    io->servers[i] = k2_http_serve(io->loop, host, port, &limits, k2i_px_route, io, err);
    if (!io->servers[i]) return err->code;
    *got = k2_http_server_port(io->servers[i]);
    return K2_OK;
}

void k2i_px_io_drain(k2i_px_io *io)
{
    if (io->draining) return;
    io->draining = true;
    for (uint32_t i = 0; i < K2I_PX_SERVERS_MAX; i++)
        if (io->servers[i]) k2_http_server_drain(io->servers[i]);
}

uint32_t k2i_px_io_open(const k2i_px_io *io)
{
    return io->job_count;
}

void k2i_px_io_close(k2i_px_io *io)
{
    k2_timer_stop(io->tick);
    io->tick = NULL;
    while (io->jobs) k2i_px_job_free(io->jobs);
    for (uint32_t i = 0; i < K2I_PX_SERVERS_MAX; i++) {
        k2_http_server_close(io->servers[i]);
        io->servers[i] = NULL;
    }
    k2_http_client_close(io->client);
    io->client = NULL;
}

void k2i_px_io_free(k2i_px_io *io)
{
    K2_ASSERT(!io->client);
    k2i_px_free(io->core);
    k2_free(io->probes);
    k2_buf_fini(&io->body);
    k2_buf_fini(&io->event);
    k2_openai_parsed_fini(&io->parsed);
    k2_metrics_free(io->metrics);
    k2_free(io);
}
