/* upstream.c - the engine's side of a job. The proxy always streams from an engine, also for a client that does not: what has
 * come is then here when the engine dies, and another one goes on from it.
 *
 *   attempt:  SEND ─► head ─► events ... ─► [DONE] or the end ─► complete
 *                 └ 4xx ─► relayed      └ broken, silent, 5xx, error event ─► FAILED ─► SEND elsewhere, with prompt + tokens so
 * far
 */
#include <stdio.h>
#include <string.h>

#include "proxy/io_int.h"

#define FIRST_FACTOR 10u /* times the longer of proxy.stall_ms and proxy.wait_ms: to an answer's first byte */

static const k2_http_call_ops call_ops;

/* ---- sending ---------------------------------------------------------------------------------------------------------------
 */

void k2i_px_upstream_cancel(k2i_px_job *job)
{
    if (job->call) k2_http_cancel(job->call);
    job->call = NULL;
    job->upstream_paused = false;
    if (job->sse_open) k2_sse_fini(&job->events);
    job->sse_open = false;
}

static bool calls_tools(const k2_openai_request *r)
{
    return r->tools && !r->tool_choice_none;
}

/* Can another engine go on from what has come? Its prompt's ids and an id for every token are needed. Where the text of some
 * tokens may be held back at the engine that is gone (stop strings), it is begun anew as long as the client has seen none of
 * it. Only our own engines know how a chat goes on in which a call may have begun. */
static bool resumable(const k2i_px_job *job)
{
    bool prompt = job->prompt_ids || job->request.prompt_ids;
    if (job->verbatim || (job->request.stop_count > 0 && !job->delivered)) return false;
    if (calls_tools(&job->request) && !job->has_k2) return false;
    return job->ids_whole && job->count > 0 && prompt;
}

/* Names the engine in a slot: another one may come to stand there. Never 0. */
static uint64_t engine_key(const k2i_px_engine *e)
{
    return k2_hash64(e->url, strlen(e->url), e->id * 31 + e->incarnation) | 1;
}

static void write_body(k2i_px_job *job, k2_buf *out)
{
    k2i_px_io *io = job->io;
    k2_openai_request r = job->request; /* a view: it owns nothing */
    if (job->verbatim) {
        k2_openai_write_request(out, &r, NULL);
        return;
    }
    r.stream = r.return_token_ids = true;
    r.include_usage = io->probes[job->slot].counted != engine_key(k2i_px_engine_at(io->core, job->slot));
    job->resumed = job->count > 0;
    /* Our own engines want to know that the last tokens of the prompt are generated ones, with or without k2 in the request. */
    if (job->resumed && job->has_k2) {
        r.k2.present = r.k2.resumed = true;
        r.k2.calls = r.k2.calls || calls_tools(&r);
    }
    k2_openai_resume resume = {.prompt_ids = job->request.prompt_ids ? NULL : job->prompt_ids,
                               .prompt_ids_count = job->prompt_count,
                               .ids = job->ids,
                               .ids_count = job->count};
    k2_openai_write_request(out, &r, job->resumed ? &resume : NULL);
}

static void attempt_begin(k2i_px_job *job, uint32_t slot)
{
    k2i_px_upstream_cancel(job);
    job->slot = slot;
    job->attempts++;
    job->status = 0;
    job->sse = false;
    job->content_type[0] = 0;
    k2_buf_clear(&job->reply);
}

/* What is sent: where to, and the body, which stands in the job or in the scratch of io. */
static void spec_fill(k2i_px_job *job, const k2i_px_engine *engine, char *url, size_t url_bytes, k2_http_call_spec *spec)
{
    if (job->kind == K2I_PX_FORWARD) {
        snprintf(url, url_bytes, "%s%s", engine->url, job->path);
        spec->method = job->method;
        spec->header_count = job->forward.len > 0;
        spec->body = job->forward.data;
        spec->body_bytes = job->forward.len;
        return;
    }
    k2_buf_clear(&job->io->body);
    write_body(job, &job->io->body);
    bool chat = job->kind == K2I_PX_CHAT && !job->resumed;
    snprintf(url, url_bytes, "%s%s", engine->url, chat ? "/v1/chat/completions" : "/v1/completions");
    spec->body = job->io->body.data;
    spec->body_bytes = job->io->body.len;
}

/* Nothing of it comes before the whole: scores, and answers that are passed on as they are and not streamed. */
static bool comes_at_once(const k2i_px_job *job)
{
    return job->kind == K2I_PX_FORWARD ? job->forward.len > 0 : job->verbatim && !job->request.stream;
}

void k2i_px_upstream_send(k2i_px_job *job, uint32_t slot)
{
    k2i_px_io *io = job->io;
    const k2i_px_engine *engine = k2i_px_engine_at(io->core, slot);
    static const k2_http_header headers[] = {{"Content-Type", "application/json"}};
    char url[K2I_PX_URL_MAX + 64];
    attempt_begin(job, slot);
    k2_flight_mark(K2_FLIGHT_ROUTED, k2i_px_trajectory(job), k2i_px_position(job), engine->id, job->attempts);
    /* The first token of a request may stand long in a healthy engine's own line: whether that engine lives, its health probes
     * tell; only between tokens does silence mean a fault. */
    uint64_t stall_ns = io->config.stall_ms * K2_NS_PER_MS;
    uint64_t first_ns = FIRST_FACTOR * K2_MAX(stall_ns, io->config.wait_ms * K2_NS_PER_MS);
    if (comes_at_once(job)) first_ns = K2_MAX(first_ns, K2I_PX_SCORE_NS);
    k2_http_call_spec spec = {.method = "POST",
                              .url = url,
                              .headers = headers,
                              .header_count = 1,
                              .connect_ns = io->config.connect_ms * K2_NS_PER_MS,
                              .first_byte_ns = first_ns,
                              .idle_ns = stall_ns};
    spec_fill(job, engine, url, sizeof url, &spec);
    job->sent_ns = k2_loop_now_ns(io->loop);
    job->last_ns = 0;
    job->deadline_ns = job->sent_ns + spec.first_byte_ns;
    job->call = k2_http_request(io->client, &spec, &call_ops, job, NULL);
    if (job->call) return;
    job->broken = true; /* we are inside the core's step: it is told behind the actions */
    job->broken_next = io->broken;
    io->broken = job;
}

/* ---- failing
 * ----------------------------------------------------------------------------------------------------------------- */

/* What came is of no use to another engine: forget it, if the client has not seen it. */
static void begin_anew(k2i_px_job *job)
{
    job->count = 0;
    job->ids_whole = job->logprobs_whole = job->tokens_whole = true;
    k2_openai_list_clear(&job->tokens);
    k2_openai_calls_clear(&job->calls);
    job->has_cached = false;
    job->anything = job->looked = job->foreign = false;
    k2_buf_clear(&job->text);
}

void k2i_px_upstream_failed(k2i_px_job *job, k2i_px_why why, const char *text)
{
    static const char *const names[] = {"refused", "broken", "stalled", "error", "busy", "wrong_digest"};
    k2i_px_io *io = job->io;
    snprintf(job->failure, sizeof job->failure, "%s", text);
    k2_flight_mark(K2_FLIGHT_ATTEMPT_FAILED, k2i_px_trajectory(job), k2i_px_engine_at(io->core, job->slot)->id, job->count,
                   k2_flight_text(names[why]));
    if (why == K2I_PX_STALLED) { /* a deadline has passed: who waited for whom */
        char words[256];
        k2i_px_job_describe(job, words, sizeof words);
        K2_LOG_WARN(io->log, "wait: deadline passed: %s", words);
    }
    k2i_px_upstream_cancel(job);
    if (job->finish[0]) { /* all had come but the end of the connection */
        k2i_px_job_complete(job);
        return;
    }
    bool resume = resumable(job);
    if (resume && job->request.has_max_tokens && job->count >= job->request.max_tokens) {
        memcpy(job->finish, "length", 7); /* the last event was lost, and nothing is left to generate */
        if (job->request.stream) k2i_px_job_deliver(job, &(k2_openai_answer){.text = "", .finish_reason = "length"});
        k2i_px_job_complete(job);
        return;
    }
    K2_LOG_INFO(io->log, "engine failed a request engine=%llu why=%s tokens=%zu resume=%d text=\"%s\"",
                (unsigned long long)k2i_px_engine_at(io->core, job->slot)->id, names[why], job->count, resume, text);
    bool final = job->anything && !resume && job->delivered;
    if (!resume && !final) begin_anew(job);
    k2i_px_event ev = {.kind = K2I_PX_FAILED, .request = job->id, .failed = {.why = why, .final = final}};
    k2i_px_io_step(io, &ev);
}

/* ---- what comes
 * -------------------------------------------------------------------------------------------------------------- */

static void keep_prompt_ids(k2i_px_job *job, const k2_openai_answer *a)
{
    if (!a->prompt_ids || job->prompt_ids || job->resumed || a->prompt_ids_count == 0) return;
    job->prompt_ids = k2_alloc_array(a->prompt_ids_count, sizeof *job->prompt_ids);
    memcpy(job->prompt_ids, a->prompt_ids, a->prompt_ids_count * sizeof *job->prompt_ids);
    job->prompt_count = a->prompt_ids_count;
}

static void keep_tokens(k2i_px_job *job, const k2_openai_answer *a)
{
    if (job->count + a->count > job->cap) {
        job->cap = K2_MAX(job->cap * 2, K2_MAX(job->count + a->count, (size_t)32));
        job->ids = k2_realloc_array(job->ids, job->cap, sizeof *job->ids);
        job->logprobs = k2_realloc_array(job->logprobs, job->cap, sizeof *job->logprobs);
    }
    if (a->ids)
        memcpy(job->ids + job->count, a->ids, a->count * sizeof *job->ids);
    else if (a->count > 0 || a->text_bytes > 0)
        job->ids_whole = false;
    if (a->logprobs)
        memcpy(job->logprobs + job->count, a->logprobs, a->count * sizeof *job->logprobs);
    else if (a->count > 0)
        job->logprobs_whole = false;
    if (!job->ids_whole && a->count > 0) /* log-probabilities without ids: counted, never given as ids */
        memset(job->ids + job->count, 0, a->count * sizeof *job->ids);
    if (a->tokens && a->token_count == a->count)
        k2_openai_list_append(&job->tokens, a->tokens, a->token_count);
    else if (a->count > 0)
        job->tokens_whole = false;
    job->count += a->count;
    k2_buf_append(&job->text, a->text, a->text_bytes);
    k2_openai_calls_append(&job->calls, a->calls, a->call_count);
}

static void keep_finish(k2i_px_job *job, const k2_openai_answer *a)
{
    snprintf(job->finish, sizeof job->finish, "%s", a->finish_reason);
    k2_free(job->stop_text);
    job->stop_text = a->stop_text ? k2_strdup(a->stop_text) : NULL;
    job->has_stop_id = a->has_stop_id;
    job->stop_id = a->stop_id;
}

/* An event's or a whole answer's content goes into the job, and on to a client that streams. */
static void take(k2i_px_job *job, const k2_openai_answer *a)
{
    k2i_px_io *io = job->io;
    if (a->model[0] && !job->model[0]) snprintf(job->model, sizeof job->model, "%s", a->model);
    if (a->has_k2) {
        job->has_k2 = true;
        job->version = a->version;
        job->digest = a->digest;
    }
    if (a->has_usage && !job->resumed) {
        job->has_usage = true;
        job->prompt_tokens = a->prompt_tokens;
        job->completion_tokens = a->completion_tokens;
    }
    if (a->has_cached && !job->resumed) {
        job->has_cached = true;
        job->cached_tokens = a->cached_tokens;
    }
    keep_prompt_ids(job, a);
    if (!job->looked) {
        job->foreign = !a->ids && !a->has_k2 && !a->prompt_ids;
        if (a->ids && a->prompt_ids) io->probes[job->slot].counted = engine_key(k2i_px_engine_at(io->core, job->slot));
    }
    job->looked = true;
    keep_tokens(job, a);
    bool news = a->count > 0 || a->text_bytes > 0 || a->call_count > 0;
    if (news && !job->anything) {
        job->anything = true;
        k2_flight_mark(K2_FLIGHT_FIRST_TOKEN, k2i_px_trajectory(job), job->request.k2.position, 0, 0);
        k2_metric_observe(io->m_first_token, (double)(k2_loop_now_ns(io->loop) - job->begin_ns) / 1e9);
    }
    if (a->finish_reason) keep_finish(job, a);
    if (job->request.stream && !job->foreign && (news || a->finish_reason)) k2i_px_job_deliver(job, a);
}

static void tell_progress(k2i_px_job *job, size_t tokens)
{
    if (tokens == 0) return;
    k2_metric_add(job->io->m_tokens, (double)tokens);
    k2i_px_event ev = {.kind = K2I_PX_PROGRESS, .request = job->id, .progress = {.tokens = tokens}};
    k2i_px_io_step(job->io, &ev);
}

/* An event that is passed on as it came. The answer is whole when the engine says so, not when one of its choices has ended. */
static bool on_verbatim(k2i_px_job *job, const char *data, size_t n)
{
    k2_openai_parsed *p = &job->io->parsed;
    k2_error err;
    if (strcmp(data, "[DONE]") == 0) {
        memcpy(job->finish, "done", 5);
        return true;
    }
    k2_code code = k2_openai_parse_answer(data, n, p, &err);
    if (code != K2_OK) {
        k2i_px_upstream_failed(job, code == K2_PEER_REFUSED ? K2I_PX_ERROR : K2I_PX_BROKEN, err.text);
        return false;
    }
    size_t tokens = p->a.count;
    job->anything = true;
    k2i_px_job_deliver_raw(job, data, n);
    tell_progress(job, tokens);
    return true;
}

/* False: the job has gone on without this stream, or is gone. */
static bool on_event(void *arg, const char *type, const char *data, size_t n)
{
    (void)type;
    k2i_px_job *job = arg;
    k2_openai_parsed *p = &job->io->parsed;
    k2_error err;
    if (job->verbatim) return on_verbatim(job, data, n);
    if (strcmp(data, "[DONE]") == 0) return true; /* the end of the connection's answer tells; it may be used again then */
    k2_code code = k2_openai_parse_answer(data, n, p, &err);
    if (code != K2_OK) {
        k2i_px_upstream_failed(job, code == K2_PEER_REFUSED ? K2I_PX_ERROR : K2I_PX_BROKEN, err.text);
        return false;
    }
    if (p->a.finish_reason && strcmp(p->a.finish_reason, "abort") == 0) {
        k2i_px_upstream_failed(job, K2I_PX_ERROR, "the engine aborted the answer");
        return false;
    }
    size_t tokens = K2_MAX(p->a.count, (size_t)(p->a.text_bytes > 0 && !p->a.ids));
    bool usage_only = p->a.has_usage && !p->a.finish_reason && p->a.count == 0 && p->a.text_bytes == 0 && p->a.call_count == 0;
    take(job, &p->a);
    /* What another's engine says may hold more than is understood here: its clients get its own words. */
    if (job->request.stream && job->foreign && !usage_only) k2i_px_job_deliver_raw(job, data, n);
    tell_progress(job, tokens);
    return true;
}

static void on_head(void *arg, int status, const char *content_type)
{
    k2i_px_job *job = arg;
    job->status = status;
    snprintf(job->content_type, sizeof job->content_type, "%s", content_type);
    job->sse = job->kind != K2I_PX_FORWARD && status == 200 && strncmp(content_type, "text/event-stream", 17) == 0;
    if (!job->sse) return;
    k2_sse_init(&job->events, K2I_PX_EVENT_MAX);
    job->sse_open = true;
}

static void on_data(void *arg, const char *data, size_t n)
{
    k2i_px_job *job = arg;
    job->last_ns = k2_loop_now_ns(job->io->loop);
    job->deadline_ns = job->last_ns + job->io->config.stall_ms * K2_NS_PER_MS;
    if (job->sse) {
        k2_code code = k2_sse_feed(&job->events, data, n, on_event, job);
        if (code == K2_LIMIT) k2i_px_upstream_failed(job, K2I_PX_BROKEN, "an event is too large");
        return;
    }
    size_t max = job->status == 200 || job->kind == K2I_PX_FORWARD ? K2I_PX_ANSWER_MAX : K2I_PX_ERROR_MAX;
    if (job->reply.len + n <= max) k2_buf_append(&job->reply, data, n);
}

static k2i_px_why why_of(k2_code code)
{
    switch (code) {
    case K2_TIMEOUT: return K2I_PX_STALLED;
    case K2_PEER_REFUSED:
    case K2_NOT_FOUND: return K2I_PX_REFUSED;
    default: return K2I_PX_BROKEN;
    }
}

/* A whole answer where a stream was asked for: engines that cannot stream. */
static void whole_answer(k2i_px_job *job)
{
    k2_openai_parsed *p = &job->io->parsed;
    k2_error err;
    k2_code code = k2_openai_parse_answer(job->reply.data ? job->reply.data : "", job->reply.len, p, &err);
    if (code != K2_OK || !p->a.finish_reason) {
        k2i_px_upstream_failed(job, K2I_PX_BROKEN, code != K2_OK ? err.text : "no finish_reason");
        return;
    }
    size_t tokens = p->a.count;
    take(job, &p->a);
    if (job->request.stream && job->foreign)
        k2i_px_job_deliver(job, &p->a); /* its own words would be of the wrong shape here */
    tell_progress(job, tokens);
    k2i_px_job_complete(job);
}

static void on_done(void *arg, k2_code code, const char *text)
{
    k2i_px_job *job = arg;
    job->call = NULL;
    if (code != K2_OK) {
        k2i_px_upstream_failed(job, why_of(code), text);
    } else if (job->sse) {
        if (job->finish[0])
            k2i_px_job_complete(job);
        else
            k2i_px_upstream_failed(job, K2I_PX_BROKEN, "the stream ended before the answer");
    } else if (job->status == 409 && job->kind != K2I_PX_FORWARD && (job->request.k2.has_digest || job->request.k2.train)) {
        k2i_px_upstream_failed(job, K2I_PX_WRONG_DIGEST, "the engine holds other weights");
    } else if (job->status == 429 || job->status == 503) {
        k2i_px_upstream_failed(job, K2I_PX_BUSY, "the engine is busy");
    } else if (job->status >= 500) {
        k2_openai_error e;
        char said[sizeof job->failure];
        k2_openai_read_error(job->reply.data ? job->reply.data : "", job->reply.len, job->status, &e);
        snprintf(said, sizeof said, "the engine answered %d: %.120s", job->status, e.message);
        k2i_px_upstream_failed(job, K2I_PX_ERROR, said);
    } else if (job->kind == K2I_PX_FORWARD || (job->status == 200 && job->verbatim && !job->request.stream)) {
        k2i_px_job_complete(job);
    } else if (job->status == 200) {
        whole_answer(job);
    } else if (job->begun) {
        k2i_px_upstream_failed(job, K2I_PX_ERROR, "the engine refused to go on");
    } else {
        k2i_px_job_relay(job);
    }
}

static const k2_http_call_ops call_ops = {.on_head = on_head, .on_data = on_data, .on_done = on_done};
