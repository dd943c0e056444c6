/* pages.c - which path is what, and the pages about the proxy itself. */
#include <stdio.h>
#include <string.h>

#include "proxy/io_int.h"

typedef struct page {
    const char *method, *path;
    void (*serve)(k2i_px_io *io, k2_http_req *req);
} page;

static void put_digest(k2_buf *out, k2_digest d)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(d, hex);
    k2_buf_printf(out, "\"%s\"", hex);
}

static void put_engine(k2_buf *out, const k2i_px_engine *e)
{
    k2_buf_puts(out, "{\"id\":");
    k2_openai_write_u64(out, e->id);
    k2_buf_puts(out, ",\"url\":");
    k2_buf_json_string(out, e->url, strlen(e->url));
    k2_buf_puts(out, ",\"incarnation\":");
    k2_openai_write_u64(out, e->incarnation);
    k2_buf_printf(out, ",\"state\":\"%s\",\"version\":", k2i_px_state_name(e->state));
    k2_openai_write_u64(out, e->version);
    k2_buf_puts(out, ",\"digest\":");
    put_digest(out, e->digest);
    k2_buf_printf(out, ",\"requests\":%u,\"outstanding_tokens\":%llu,\"served\":%llu,\"failed\":%llu,\"failed_probes\":%u}",
                  e->requests, (unsigned long long)e->load, (unsigned long long)e->served, (unsigned long long)e->failed,
                  e->probe_fails);
}

static void serve_engines(k2i_px_io *io, k2_http_req *req)
{
    uint64_t version;
    k2_digest digest;
    k2i_px_stats s;
    k2_buf *out = &io->body;
    k2i_px_stats_get(io->core, &s);
    k2_buf_clear(out);
    k2_buf_puts(out, "{\"gate\":");
    if (k2i_px_gate(io->core, &version, &digest)) {
        k2_buf_puts(out, "{\"version\":");
        k2_openai_write_u64(out, version);
        k2_buf_puts(out, ",\"digest\":");
        put_digest(out, digest);
        k2_buf_puts(out, "}");
    } else {
        k2_buf_puts(out, "null");
    }
    k2_buf_printf(out, ",\"running\":%u,\"queued\":%u,\"outstanding_tokens\":%llu,\"engines\":[", s.running, s.queued,
                  (unsigned long long)s.outstanding);
    bool first = true;
    for (uint32_t i = 0; i < k2i_px_engine_slots(io->core); i++) {
        const k2i_px_engine *e = k2i_px_engine_at(io->core, i);
        if (e->state == K2I_PX_FREE) continue;
        if (!first) k2_buf_puts(out, ",");
        first = false;
        put_engine(out, e);
    }
    k2_buf_puts(out, "]}");
    k2_http_respond(req, 200, "application/json", out->data, out->len);
}

static void serve_health(k2i_px_io *io, k2_http_req *req)
{
    k2i_px_stats s;
    k2i_px_stats_get(io->core, &s);
    char text[96];
    bool ok = s.ready > 0 && !io->draining;
    int n = snprintf(text, sizeof text, "{\"status\":\"%s\",\"engines\":%u,\"ready\":%u}", ok ? "ok" : "unavailable", s.engines,
                     s.ready);
    k2_http_respond(req, ok ? 200 : 503, "application/json", text, (size_t)n);
}

static void put_metric(k2_buf *out, const char *name, const char *kind, const char *help, double value)
{
    k2_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, kind, name, value);
}

static void serve_metrics(k2i_px_io *io, k2_http_req *req)
{
    k2i_px_stats s;
    k2_buf *out = &io->body;
    k2i_px_stats_get(io->core, &s);
    k2_buf_clear(out);
    k2_metrics_text(io->metrics, out);
    put_metric(out, "k2_proxy_running", "gauge", "Requests at engines", s.running);
    put_metric(out, "k2_proxy_queued", "gauge", "Requests that wait for an engine", s.queued);
    put_metric(out, "k2_proxy_outstanding_tokens", "gauge", "Tokens that engines may still have to compute",
               (double)s.outstanding);
    put_metric(out, "k2_proxy_engines", "gauge", "Engines known", s.engines);
    put_metric(out, "k2_proxy_engines_ready", "gauge", "Engines that take requests", s.ready);
    put_metric(out, "k2_proxy_refused_total", "counter", "Requests refused because too many were under way", (double)s.refused);
    put_metric(out, "k2_proxy_expired_total", "counter", "Requests that found no engine in time", (double)s.expired);
    put_metric(out, "k2_proxy_retried_total", "counter", "Times that a request was sent again after a failure",
               (double)s.retried);
    put_metric(out, "k2_proxy_moved_total", "counter", "Times that a request was taken from an engine that went",
               (double)s.moved);
    put_metric(out, "k2_proxy_failed_total", "counter", "Requests that no engine could answer", (double)s.failed);
    put_metric(out, "k2_proxy_canceled_total", "counter", "Requests whose client went away", (double)s.canceled);
    k2_buf_puts(out, "# HELP k2_proxy_engine_outstanding_tokens Tokens that the engine may still have to compute\n"
                     "# TYPE k2_proxy_engine_outstanding_tokens gauge\n");
    for (uint32_t i = 0; i < k2i_px_engine_slots(io->core); i++) {
        const k2i_px_engine *e = k2i_px_engine_at(io->core, i);
        if (e->state != K2I_PX_FREE)
            k2_buf_printf(out, "k2_proxy_engine_outstanding_tokens{engine=\"%llu\"} %llu\n", (unsigned long long)e->id,
                          (unsigned long long)e->load);
    }
    k2_http_respond(req, 200, K2_METRICS_CONTENT_TYPE, out->data, out->len);
}

static void serve_completions(k2i_px_io *io, k2_http_req *req)
{
    k2i_px_completion(io, req, false);
}

static void serve_chat(k2i_px_io *io, k2_http_req *req)
{
    k2i_px_completion(io, req, true);
}

static void serve_models(k2i_px_io *io, k2_http_req *req)
{
    k2i_px_forward(io, req, "GET", "/v1/models");
}

static void serve_score(k2i_px_io *io, k2_http_req *req)
{
    k2i_px_forward(io, req, "POST", "/k2/score");
}

static const page pages[] = {{"POST", "/v1/completions", serve_completions},
                             {"POST", "/v1/chat/completions", serve_chat},
                             {"GET", "/v1/models", serve_models},
                             {"POST", "/k2/score", serve_score},
                             {"GET", "/k2/engines", serve_engines},
                             {"GET", "/k2/requests", k2i_px_serve_requests},
                             {"GET", "/health", serve_health},
                             {"GET", "/metrics", serve_metrics}};

void k2i_px_route(void *arg, k2_http_req *req)
{
    k2i_px_io *io = arg;
    const char *path = k2_http_req_path(req), *method = k2_http_req_method(req);
    const page *found = NULL;
    k2_openai_error e;
    for (size_t i = 0; i < K2_COUNT(pages); i++)
        if (strcmp(pages[i].path, path) == 0) found = &pages[i];
    if (!found) {
        k2_openai_error_set(&e, 404, "not_found", NULL, "no such path: %.200s", path);
    } else if (strcmp(found->method, method) != 0) {
        k2_openai_error_set(&e, 405, "method_not_allowed", NULL, "%s takes %s, not %s", path, found->method, method);
        k2_http_header_add(req, "Allow", found->method);
    } else if (io->draining && found->serve != serve_health && found->serve != serve_metrics && found->serve != serve_engines &&
               found->serve != k2i_px_serve_requests) {
        k2_openai_error_set(&e, 503, "shutting_down", NULL, "the proxy is shutting down");
    } else if (!io->ready) {
        k2_openai_error_set(&e, 503, "starting", NULL, "the proxy waits for its configuration from the master");
    } else {
        found->serve(io, req);
        return;
    }
    k2i_px_respond_error(io, req, &e);
}
