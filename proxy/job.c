/* job.c - one client's request: read, given to the core, answered. The engine's side is upstream.c. */
#include <stdio.h>
#include <string.h>

#include "proxy/io_int.h"

#define BYTES_PER_TOKEN    4u   /* for the estimate of a prompt that is text: only balance depends on it */
#define MAX_TOKENS_ASSUMED 512u /* for a request that names none */

/* ---- life -------------------------------------------------------------------------------------------------------------- */

static k2i_px_job *job_new(k2i_px_io *io, k2_http_req *req, k2i_px_kind kind)
{
    k2i_px_job *job = k2_alloc(sizeof *job);
    job->io = io;
    job->client = req;
    job->kind = kind;
    job->id = job->slot = K2I_PX_NONE;
    job->begin_ns = k2_loop_now_ns(io->loop);
    job->ids_whole = job->logprobs_whole = job->tokens_whole = true;
    k2_openai_list_init(&job->tokens);
    k2_buf_init(&job->text, K2I_PX_ANSWER_MAX);
    k2_buf_init(&job->pending, K2I_PX_ANSWER_MAX);
    k2_buf_init(&job->forward, K2I_PX_BODY_MAX);
    k2_buf_init(&job->reply, K2I_PX_ANSWER_MAX);
    job->next = io->jobs;
    if (io->jobs) io->jobs->prev = job;
    io->jobs = job;
    io->job_count++;
    return job;
}

static void ignore(void *arg)
{
    (void)arg;
}

/* Its beginning or its end, for the flight recorder. What is only passed on has no tokens that we know of. */
static void record(const k2i_px_job *job,
                   void (*what)(k2_flight_name name, uint64_t id, uint64_t a, uint64_t b, uint64_t c, uint64_t d),
                   uint64_t tokens)
{
    bool known = job->kind != K2I_PX_FORWARD;
    what(K2_FLIGHT_REQUEST, job->flight, k2i_px_trajectory(job), known ? job->request.k2.position : K2_FLIGHT_NONE,
         job->request.has_max_tokens ? job->request.max_tokens : K2_FLIGHT_NONE, known ? tokens : K2_FLIGHT_NONE);
}

void k2i_px_job_free(k2i_px_job *job)
{
    k2i_px_io *io = job->io;
    k2i_px_upstream_cancel(job);
    if (job->flight != 0) record(job, k2_flight_finish, job->count);
    if (job->gone) *job->gone = true;
    if (job->client) k2_http_req_on_abort(job->client, ignore, NULL); /* the server is closing, and will say so later */
    if (job->prev)
        job->prev->next = job->next;
    else
        io->jobs = job->next;
    if (job->next) job->next->prev = job->prev;
    io->job_count--;
    k2_openai_request_fini(&job->request);
    k2_buf_fini(&job->text);
    k2_openai_list_fini(&job->tokens);
    k2_openai_calls_clear(&job->calls);
    k2_free(job->stop_text);
    k2_buf_fini(&job->pending);
    k2_buf_fini(&job->forward);
    k2_buf_fini(&job->reply);
    k2_free(job->ids);
    k2_free(job->prompt_ids);
    k2_free(job->logprobs);
    k2_free(job);
}

/* The client went away: everything that was done for it ends. */
static void on_abort(void *arg)
{
    k2i_px_job *job = arg;
    k2i_px_io *io = job->io;
    uint32_t id = job->id;
    job->client = NULL;
    k2i_px_job_free(job);
    if (id == K2I_PX_NONE) return;
    k2i_px_event ev = {.kind = K2I_PX_CANCEL, .request = id};
    k2i_px_io_step(io, &ev);
}

/* ---- the client's side --------------------------------------------------------------------------------------------------- */

void k2i_px_respond_error(k2i_px_io *io, k2_http_req *req, const k2_openai_error *e)
{
    k2_buf_clear(&io->body);
    k2_openai_write_error(&io->body, e);
    k2_http_respond(req, e->status, "application/json", io->body.data, io->body.len);
}

/* The last of the job: its answer is out, or as much of it as there will be. */
static void finished(k2i_px_job *job)
{
    k2_metric_observe(job->io->m_seconds, (double)(k2_loop_now_ns(job->io->loop) - job->begin_ns) / 1e9);
    job->client = NULL;
    k2i_px_job_free(job);
}

static void end_if_flushed(k2i_px_job *job)
{
    if (!job->ended || job->pending.len > 0) return;
    k2_http_stream_end(job->client);
    finished(job);
}

static void on_drain(void *arg)
{
    k2i_px_job *job = arg;
    if (job->pending.len > 0) {
        if (k2_http_stream_write(job->client, job->pending.data, job->pending.len) != K2_OK) return;
        k2_buf_fini(&job->pending);
    }
    if (job->upstream_paused && job->call) k2_http_call_resume(job->call);
    job->upstream_paused = false;
    end_if_flushed(job);
}

/* Bytes for a client that streams. What its connection does not take waits here, and the engine is made to wait too. */
static void stream_put(k2i_px_job *job, const char *data, size_t n)
{
    if (!job->begun) {
        job->begun = true;
        k2_http_header_add(job->client, "Cache-Control", "no-cache");
        k2_http_stream_begin(job->client, 200, "text/event-stream");
    }
    if (job->pending.len == 0 && k2_http_stream_write(job->client, data, n) == K2_OK) return;
    k2_buf_append(&job->pending, data, n);
    if (job->call && !job->upstream_paused) {
        job->upstream_paused = true;
        k2_http_call_pause(job->call);
    }
}

static void put_event(k2i_px_job *job, const char *data, size_t n)
{
    k2_buf *out = &job->io->event;
    k2_buf_clear(out);
    k2_sse_write(out, data, n);
    stream_put(job, out->data, out->len);
}

/* What every chunk and the whole answer have in common. */
static k2_openai_answer answer_head(k2i_px_job *job)
{
    if (!job->answer_id[0]) {
        snprintf(job->answer_id, sizeof job->answer_id, "%s-%08x%08llx", job->kind == K2I_PX_CHAT ? "chatcmpl" : "cmpl",
                 (unsigned)(k2_wall_us() / 1000000), (unsigned long long)++job->io->answers);
        job->created = k2_wall_us() / 1000000;
    }
    return (k2_openai_answer){.chat = job->kind == K2I_PX_CHAT,
                              .id = job->answer_id,
                              .model = job->model[0]        ? job->model
                                       : job->request.model ? job->request.model
                                                            : "",
                              .created = job->created,
                              .text = "",
                              .has_cached = job->has_cached,
                              .cached_tokens = job->cached_tokens,
                              .has_k2 = job->has_k2,
                              .version = job->version,
                              .digest = job->digest};
}

void k2i_px_job_deliver(k2i_px_job *job, const k2_openai_answer *a)
{
    k2_openai_answer out = answer_head(job);
    out.text = a->text;
    out.text_bytes = a->text_bytes;
    out.ids = a->ids;
    out.logprobs = a->logprobs;
    out.count = a->count;
    out.tokens = a->tokens;
    out.token_count = a->token_count;
    out.calls = a->calls;
    out.call_count = a->call_count;
    out.finish_reason = a->finish_reason;
    out.stop_text = a->stop_text;
    out.has_stop_id = a->has_stop_id;
    out.stop_id = a->stop_id;
    out.first = !job->delivered;
    if (!job->delivered && job->request.return_token_ids && job->prompt_ids) {
        out.prompt_ids = job->prompt_ids;
        out.prompt_ids_count = job->prompt_count;
    }
    job->delivered = true;
    k2_buf_clear(&job->io->body);
    k2_openai_write_chunk(&job->io->body, &out);
    put_event(job, job->io->body.data, job->io->body.len);
}

void k2i_px_job_deliver_raw(k2i_px_job *job, const char *data, size_t n)
{
    job->delivered = true;
    put_event(job, data, n);
}

static void tell_done(k2i_px_job *job)
{
    k2i_px_event ev = {.kind = K2I_PX_DONE, .request = job->id};
    job->id = K2I_PX_NONE;
    k2i_px_io_step(job->io, &ev);
}

static void usage_fill(const k2i_px_job *job, k2_openai_answer *a)
{
    bool counted = job->ids_whole && job->count > 0;
    a->has_usage = job->has_usage || counted;
    a->prompt_tokens = job->prompt_ids           ? job->prompt_count
                       : job->request.prompt_ids ? job->request.prompt_ids_count
                                                 : job->prompt_tokens;
    a->completion_tokens = counted ? job->count : job->completion_tokens;
}

static void complete_stream(k2i_px_job *job)
{
    if (job->request.include_usage && !job->verbatim) {
        k2_openai_answer a = answer_head(job);
        usage_fill(job, &a);
        if (a.has_usage) {
            k2_buf_clear(&job->io->body);
            k2_openai_write_chunk(&job->io->body, &a);
            put_event(job, job->io->body.data, job->io->body.len);
        }
    }
    put_event(job, "[DONE]", 6);
    job->ended = true;
    end_if_flushed(job);
}

static void complete_whole(k2i_px_job *job)
{
    k2_openai_answer a = answer_head(job);
    a.text = job->text.data ? job->text.data : "";
    a.text_bytes = job->text.len;
    static const uint32_t none[1];
    if (job->ids_whole && !job->foreign) a.ids = job->ids ? job->ids : none;
    if (job->logprobs_whole && job->request.logprobs && job->count > 0) a.logprobs = job->logprobs;
    if (a.logprobs && job->tokens_whole && job->tokens.count > 0) {
        a.tokens = k2_openai_list_tokens(&job->tokens);
        a.token_count = job->tokens.count;
    }
    a.count = job->count;
    a.calls = job->calls.list;
    a.call_count = job->calls.count;
    a.finish_reason = job->finish;
    a.stop_text = job->stop_text;
    a.has_stop_id = job->has_stop_id;
    a.stop_id = job->stop_id;
    if (job->request.return_token_ids && job->prompt_ids) {
        a.prompt_ids = job->prompt_ids;
        a.prompt_ids_count = job->prompt_count;
    }
    usage_fill(job, &a);
    k2_buf_clear(&job->io->body);
    k2_openai_write_answer(&job->io->body, &a);
    k2_http_respond(job->client, 200, "application/json", job->io->body.data, job->io->body.len);
    finished(job);
}

void k2i_px_job_complete(k2i_px_job *job)
{
    tell_done(job);
    if (job->kind == K2I_PX_FORWARD || (job->verbatim && !job->request.stream)) {
        k2_http_respond(job->client, job->status, job->content_type[0] ? job->content_type : "application/json",
                        job->reply.data ? job->reply.data : "", job->reply.len);
        finished(job);
    } else if (job->request.stream) {
        complete_stream(job);
    } else {
        complete_whole(job);
    }
}

void k2i_px_job_relay(k2i_px_job *job)
{
    K2_ASSERT(!job->begun);
    tell_done(job);
    if (job->reply.len > 0 && strncmp(job->content_type, "application/json", 16) == 0) {
        k2_http_respond(job->client, job->status, "application/json", job->reply.data, job->reply.len);
    } else {
        k2_openai_error e;
        k2_openai_read_error(job->reply.data ? job->reply.data : "", job->reply.len, job->status, &e);
        k2i_px_respond_error(job->io, job->client, &e);
    }
    finished(job);
}

/* Behind the error, for the sender that asked for it: which engines were lost under the request. */
static void put_broke(k2_buf *out, const k2i_px_action *a)
{
    if (a->broke_count == 0) return;
    out->len--; /* the last brace */
    k2_buf_puts(out, ",\"k2\":{\"broke\":[");
    for (uint32_t i = 0; i < a->broke_count; i++) {
        k2_buf_puts(out, i ? ",{\"engine\":" : "{\"engine\":");
        k2_openai_write_u64(out, a->broke[i].engine);
        k2_buf_puts(out, ",\"incarnation\":");
        k2_openai_write_u64(out, a->broke[i].incarnation);
        k2_buf_printf(out, ",\"alone\":%s}", a->broke[i].alone ? "true" : "false");
    }
    k2_buf_puts(out, "]}}");
}

void k2i_px_job_fail(k2i_px_job *job, const k2i_px_action *a)
{
    k2_openai_error e;
    bool tell = a->status == 502 && job->failure[0];
    const char *type = a->status == 429                     ? "overloaded"
                       : a->status == 502 && a->broke_count ? "engine_lost"
                                                            : "engine_unavailable";
    k2_openai_error_set(&e, a->status, type, NULL, "%s%s%s", a->text, tell ? "; the last one: " : "", tell ? job->failure : "");
    k2i_px_upstream_cancel(job);
    if (a->status == 503) { /* proxy.wait_ms has passed */
        char words[256];
        k2i_px_job_describe(job, words, sizeof words);
        K2_LOG_WARN(job->io->log, "wait: deadline passed: %s: %s", a->text, words);
    }
    K2_LOG_DEBUG(job->io->log, "request failed status=%d text=\"%s\" tokens=%zu attempts=%u", a->status, a->text, job->count,
                 job->attempts);
    k2_buf_clear(&job->io->body);
    k2_openai_write_error(&job->io->body, &e);
    put_broke(&job->io->body, a);
    if (!job->begun) {
        char seconds[16];
        if (a->retry_after_s) {
            snprintf(seconds, sizeof seconds, "%u", a->retry_after_s);
            k2_http_header_add(job->client, "Retry-After", seconds);
        }
        k2_http_respond(job->client, e.status, "application/json", job->io->body.data, job->io->body.len);
        finished(job);
        return;
    }
    /* The head is out: an event says what happened, and no [DONE] follows. */
    put_event(job, job->io->body.data, job->io->body.len);
    job->ended = true;
    end_if_flushed(job);
}

/* ---- new requests ----------------------------------------------------------------------------------------------------------
 */

/* To the core with it. The job may be answered and gone when this returns. */
static void admit(k2i_px_job *job, k2i_px_event *ev)
{
    bool gone = false;
    job->flight = k2_flight_id();
    record(job, k2_flight_start, K2_FLIGHT_NONE);
    job->gone = &gone;
    ev->kind = K2I_PX_REQUEST;
    ev->req.user = job;
    k2_http_req_on_abort(job->client, on_abort, job);
    k2_http_req_on_drain(job->client, on_drain, job);
    k2_metric_add(job->io->m_requests[job->kind], 1);
    uint32_t id = k2i_px_io_step(job->io, ev);
    if (gone) return;
    job->gone = NULL;
    job->id = id;
}

/* K2-Broke-Max: how many engines may be lost under the request before its sender is told, with their names. */
static uint32_t broke_max(k2_http_req *req)
{
    const char *text = k2_http_req_header(req, "K2-Broke-Max");
    uint64_t n;
    return text && k2_str_u64(text, &n) ? (uint32_t)K2_MIN(n, (uint64_t)K2I_PX_BROKE_MAX) : 0;
}

static size_t prompt_estimate(const k2_openai_request *r)
{
    if (r->prompt_ids) return r->prompt_ids_count;
    size_t bytes = r->prompt_bytes + (r->tools ? strlen(r->tools) : 0);
    for (size_t i = 0; i < r->message_count; i++) bytes += r->messages[i].content_bytes + 2 * BYTES_PER_TOKEN;
    return bytes / BYTES_PER_TOKEN + 1;
}

void k2i_px_completion(k2i_px_io *io, k2_http_req *req, bool chat)
{
    size_t n;
    const char *body = k2_http_req_body(req, &n);
    k2_openai_request r;
    k2_openai_error e;
    if (!k2_openai_parse_request(body, n, chat, &r, &e)) {
        k2i_px_respond_error(io, req, &e);
        return;
    }
    k2i_px_job *job = job_new(io, req, chat ? K2I_PX_CHAT : K2I_PX_COMPLETION);
    job->request = r;
    job->verbatim = r.n > 1 || r.echo || r.has_prompt_logprobs;
    k2i_px_event ev = {.req = {.prompt_tokens = prompt_estimate(&r),
                               .max_tokens = (uint64_t)r.n * (r.has_max_tokens ? r.max_tokens : MAX_TOKENS_ASSUMED),
                               .group = r.k2.group,
                               .has_group = r.k2.has_group,
                               .training = r.k2.train,
                               .broke_max = broke_max(req),
                               .has_digest = r.k2.has_digest,
                               .digest = r.k2.digest}};
    admit(job, &ev);
}

void k2i_px_forward(k2i_px_io *io, k2_http_req *req, const char *method, const char *path)
{
    size_t n;
    const char *body = k2_http_req_body(req, &n);
    k2i_px_job *job = job_new(io, req, K2I_PX_FORWARD);
    job->method = method;
    job->path = path;
    k2_buf_append(&job->forward, body, n);
    k2i_px_event ev = {.req = {.broke_max = broke_max(req)}};
    admit(job, &ev);
}
