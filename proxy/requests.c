/* requests.c - who waits for which engine: /k2/requests, and the same as words where a deadline passes. */
#include <stdio.h>
#include <string.h>

#include "proxy/io_int.h"

#define MS(ns) ((unsigned long long)((ns) / K2_NS_PER_MS))

/* The last sign of life: a byte of the engine, else that the request went out or came in. */
static uint64_t heard_ns(const k2i_px_job *job)
{
    return K2_MAX(job->last_ns, K2_MAX(job->sent_ns, job->begin_ns));
}

/* The jobs that have been quiet longest, quietest first: an insertion into a short list for each, however many there are. */
static uint32_t quietest(const k2i_px_io *io, const k2i_px_job *out[K2I_PX_REQUESTS_SHOWN])
{
    uint32_t n = 0;
    for (const k2i_px_job *job = io->jobs; job; job = job->next) {
        if (job->id == K2I_PX_NONE) continue; /* answered; only its client still reads */
        if (n == K2I_PX_REQUESTS_SHOWN && heard_ns(job) >= heard_ns(out[n - 1])) continue;
        uint32_t at = n < K2I_PX_REQUESTS_SHOWN ? n++ : n - 1;
        for (; at > 0 && heard_ns(out[at - 1]) > heard_ns(job); at--) out[at] = out[at - 1];
        out[at] = job;
    }
    return n;
}

static const char *kind_of(const k2i_px_job *job)
{
    if (job->kind != K2I_PX_FORWARD) return job->kind == K2I_PX_CHAT ? "chat" : "completion";
    return strcmp(job->path, "/k2/score") == 0 ? "score" : "other";
}

static void put_u64(k2_buf *out, const char *name, bool known, uint64_t v)
{
    k2_buf_printf(out, ",\"%s\":", name);
    if (known)
        k2_openai_write_u64(out, v);
    else
        k2_buf_puts(out, "null");
}

static void put_request(k2_buf *out, const k2i_px_job *job, uint64_t now_ns)
{
    k2i_px_request r;
    k2i_px_request_get(job->io->core, job->id, &r);
    uint64_t deadline_ns = r.running ? job->deadline_ns : r.deadline_ns;
    k2_buf_printf(out, "{\"kind\":\"%s\",\"state\":\"%s\"", kind_of(job), r.running ? "running" : "queued");
    put_u64(out, "trajectory", job->request.k2.has_trajectory, job->request.k2.trajectory);
    put_u64(out, "group", job->request.k2.has_group, job->request.k2.group);
    put_u64(out, "engine", r.running, r.running ? k2i_px_engine_at(job->io->core, r.engine)->id : 0);
    put_u64(out, "since_ms", true, MS(now_ns - job->begin_ns));
    put_u64(out, "sent_ms", r.running, MS(now_ns - K2_MIN(now_ns, job->sent_ns)));
    put_u64(out, "heard_ms", job->last_ns > 0, MS(now_ns - K2_MIN(now_ns, job->last_ns)));
    put_u64(out, "left_ms", true, deadline_ns > now_ns ? MS(deadline_ns - now_ns) : 0);
    k2_buf_printf(out, ",\"tokens\":%zu,\"attempts\":%u,\"waits\":\"%s\"}", job->count, job->attempts, r.waits);
}

void k2i_px_serve_requests(k2i_px_io *io, k2_http_req *req)
{
    const k2i_px_job *jobs[K2I_PX_REQUESTS_SHOWN];
    uint32_t n = quietest(io, jobs);
    uint64_t now_ns = k2_loop_now_ns(io->loop);
    k2i_px_stats s;
    k2_buf *out = &io->body;
    k2i_px_stats_get(io->core, &s);
    k2_buf_clear(out);
    k2_buf_printf(out, "{\"running\":%u,\"queued\":%u,\"ready\":%u,\"requests\":[", s.running, s.queued, s.ready);
    for (uint32_t i = 0; i < n; i++) {
        if (i) k2_buf_puts(out, ",");
        put_request(out, jobs[i], now_ns);
    }
    k2_buf_puts(out, "]}");
    k2_http_respond(req, 200, "application/json", out->data, out->len);
}

void k2i_px_job_describe(const k2i_px_job *job, char *out, size_t n)
{
    uint64_t now_ns = k2_loop_now_ns(job->io->loop);
    char whose[64] = "", engine[64] = "no engine";
    if (job->request.k2.has_trajectory)
        snprintf(whose, sizeof whose, " of trajectory %llu", (unsigned long long)job->request.k2.trajectory);
    if (job->slot != K2I_PX_NONE)
        snprintf(engine, sizeof engine, "engine %llu last", (unsigned long long)k2i_px_engine_at(job->io->core, job->slot)->id);
    snprintf(out, n, "%s request%s: since=%.1fs attempts=%u %s, quiet for %.1f s, tokens=%zu", kind_of(job), whose,
             (double)(now_ns - job->begin_ns) / 1e9, job->attempts, engine, (double)(now_ns - heard_ns(job)) / 1e9, job->count);
}
