#include "stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stub_answer {
    stub *s;
    k2_http_req *req;
    stub_answer *next, **at;
    k2_openai_request r;
    uint32_t *ids;
    float *logprobs;
    size_t prompt, count, max, sent;
    bool over, first, failing, ended;
    bool called;           /* the call's name has been told */
    k2_openai_calls calls; /* of an event */
};

uint32_t stub_next(const uint32_t *ids, size_t n)
{
    return (uint32_t)(k2_hash64(ids, n * sizeof *ids, 7) % 251);
}

float stub_logprob(const uint32_t *ids, size_t n)
{
    return -(float)(k2_hash64(ids, n * sizeof *ids, 8) % 100000) / 7777.0f;
}

char stub_char(uint32_t token)
{
    return (char)('a' + token % 26);
}

size_t stub_encode(const char *text, size_t n, uint32_t *ids)
{
    for (size_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    return n;
}

static void answer_free(stub_answer *a)
{
    a->s->running--;
    *a->at = a->next;
    if (a->next) a->next->at = a->at;
    k2_openai_request_fini(&a->r);
    k2_openai_calls_clear(&a->calls);
    k2_free(a->ids);
    k2_free(a->logprobs);
    k2_free(a);
}

static void on_abort(void *arg)
{
    stub_answer *a = arg;
    a->s->aborted++;
    answer_free(a);
}

/* The text becomes more of the call. Which tokens came before, of an answer that goes on here, the position says. */
static void to_call(stub_answer *a, k2_openai_answer *out)
{
    const bool begins = !a->called && a->r.k2.position == 0;
    k2_openai_calls_clear(&a->calls);
    k2_openai_calls_add(&a->calls, 0, begins ? "functions.f:0" : NULL, begins ? "f" : NULL, out->text, out->text_bytes);
    a->called = true;
    out->calls = a->calls.list;
    out->call_count = a->calls.count;
    out->text_bytes = 0;
}

static void fill(stub_answer *a, k2_openai_answer *out, char *text, size_t from, size_t to)
{
    const stub *s = a->s;
    for (size_t i = from; i < to; i++) text[i - from] = stub_char(a->ids[a->prompt + i]);
    *out = (k2_openai_answer){.chat = a->r.chat || a->r.k2.calls,
                              .id = "stub",
                              .model = "stub-model",
                              .created = 1,
                              .text = text,
                              .text_bytes = to - from,
                              .logprobs = a->r.logprobs ? a->logprobs + from : NULL,
                              .count = to - from,
                              .first = a->first};
    if (a->r.tools || a->r.k2.calls) to_call(a, out);
    if (s->foreign) {
        out->count = 0;
        out->logprobs = NULL;
        return;
    }
    out->ids = a->ids + a->prompt + from;
    if (a->first) out->prompt_ids = a->ids, out->prompt_ids_count = a->prompt;
    out->has_k2 = out->has_cached = s->has_digest;
    out->cached_tokens = s->cached;
    out->version = 3;
    out->digest = s->digest;
}

static void draw(stub_answer *a)
{
    size_t n = a->prompt + a->count;
    a->logprobs[a->count] = stub_logprob(a->ids, n);
    a->ids[n] = stub_next(a->ids, n);
    a->count++;
    a->s->tokens++;
    bool stop = a->s->stop_every && a->ids[n] % a->s->stop_every == 0;
    a->over = stop || a->count == a->max;
    a->ended = stop;
}

static void event(stub_answer *a, size_t upto)
{
    stub *s = a->s;
    k2_openai_answer out;
    char *text = k2_alloc(upto - a->sent + 1);
    fill(a, &out, text, a->sent, upto);
    if (a->over && upto == a->count) out.finish_reason = a->ended ? "stop" : "length";
    if (a->ended && upto == a->count) out.stop_text = "the end";
    k2_buf_clear(&s->json);
    k2_openai_write_chunk(&s->json, &out);
    k2_sse_write(&s->out, s->json.data, s->json.len);
    a->sent = upto;
    a->first = false;
    k2_free(text);
}

static void end(stub_answer *a)
{
    stub *s = a->s;
    if (a->r.include_usage) {
        k2_openai_answer u = {.chat = a->r.chat,
                              .id = "stub",
                              .model = "stub-model",
                              .text = "",
                              .has_usage = true,
                              .prompt_tokens = a->prompt,
                              .completion_tokens = a->count,
                              .has_k2 = s->has_digest && !s->foreign,
                              .version = 3,
                              .digest = s->digest};
        k2_buf_clear(&s->json);
        k2_openai_write_chunk(&s->json, &u);
        k2_sse_write(&s->out, s->json.data, s->json.len);
    }
    k2_sse_write(&s->out, "[DONE]", 6);
    k2_http_stream_write(a->req, s->out.data, s->out.len);
    k2_http_stream_end(a->req);
    answer_free(a);
}

/* Does the answer fail now? True when it is gone or is to be left alone. */
static bool misbehave(stub_answer *a)
{
    stub *s = a->s;
    if (!a->failing) return false;
    if ((s->die_after && a->count >= s->die_after) || (s->lose_end && a->over)) {
        k2_http_stream_write(a->req, s->out.data, s->out.len);
        k2_http_stream_abort(a->req);
        answer_free(a);
        return true;
    }
    if (s->error_after && a->count >= s->error_after) {
        k2_sse_write(&s->out, "{\"error\":{\"message\":\"told to fail\"}}", 36);
        k2_http_stream_write(a->req, s->out.data, s->out.len);
        k2_http_stream_end(a->req);
        answer_free(a);
        return true;
    }
    if (s->stall_after && a->count >= s->stall_after) {
        if (s->out.len) k2_http_stream_write(a->req, s->out.data, s->out.len);
        return true;
    }
    return false;
}

static void advance(stub_answer *a)
{
    stub *s = a->s;
    k2_buf_clear(&s->out);
    if (a->failing && s->stall_after && a->count >= s->stall_after) return;
    do {
        draw(a);
        /* Like our engine, one event carries all tokens that are new. */
        if (!s->at_once || a->over || a->failing) event(a, a->count);
        if (misbehave(a)) return;
    } while (s->at_once && !a->over);
    if (a->over)
        end(a);
    else
        k2_http_stream_write(a->req, s->out.data, s->out.len);
}

static void on_pace(void *arg)
{
    stub *s = arg;
    for (stub_answer *a = s->answers, *next; a; a = next) {
        next = a->next;
        advance(a);
    }
}

static void whole(stub_answer *a)
{
    stub *s = a->s;
    k2_openai_answer out;
    do draw(a);
    while (!a->over);
    char *text = k2_alloc(a->count + 1);
    fill(a, &out, text, 0, a->count);
    out.finish_reason = a->ended ? "stop" : "length";
    out.has_usage = true;
    out.prompt_tokens = a->prompt;
    out.completion_tokens = a->count;
    k2_buf_clear(&s->json);
    k2_openai_write_answer(&s->json, &out);
    k2_http_respond(a->req, 200, "application/json", s->json.data, s->json.len);
    k2_free(text);
    answer_free(a);
}

static size_t encode_all(const k2_openai_request *r, uint32_t *ids)
{
    size_t n = 0;
    if (r->prompt_ids) {
        memcpy(ids, r->prompt_ids, r->prompt_ids_count * sizeof *ids);
        return r->prompt_ids_count;
    }
    if (r->prompt_text) return stub_encode(r->prompt_text, r->prompt_bytes, ids);
    for (size_t i = 0; i < r->message_count; i++)
        n += stub_encode(r->messages[i].content, r->messages[i].content_bytes, ids + n);
    return n;
}

static void refuse(k2_http_req *req, int status)
{
    static const char body[] = "{\"error\":{\"message\":\"told to refuse\",\"type\":\"x\",\"param\":\"prompt\",\"code\":null}}";
    k2_http_respond(req, status, "application/json", body, sizeof body - 1);
}

static void completion(stub *s, k2_http_req *req, bool chat)
{
    size_t n;
    const char *body = k2_http_req_body(req, &n);
    k2_openai_request r;
    k2_openai_error e;
    s->requests++;
    snprintf(s->last_body, sizeof s->last_body, "%s", body);
    if (!k2_openai_parse_request(body, n, chat, &r, &e)) {
        refuse(req, 400);
        return;
    }
    bool failing = s->fail_times > 0;
    if (failing) s->fail_times--;
    bool wrong = r.k2.has_digest && !k2_digest_equal(r.k2.digest, s->digest);
    if (wrong || (failing && s->status)) {
        refuse(req, wrong ? 409 : s->status);
        k2_openai_request_fini(&r);
        return;
    }
    stub_answer *a = k2_alloc(sizeof *a);
    a->s = s;
    a->req = req;
    a->r = r;
    a->max = r.has_max_tokens ? r.max_tokens : 16;
    a->ids = k2_alloc_array(n + r.prompt_ids_count + a->max + 1, sizeof *a->ids);
    a->logprobs = k2_alloc_array(a->max, sizeof *a->logprobs);
    a->prompt = encode_all(&r, a->ids);
    a->first = true;
    a->failing = failing;
    a->next = s->answers;
    a->at = &s->answers;
    if (s->answers) s->answers->at = &a->next;
    s->answers = a;
    s->running++;
    k2_http_req_on_abort(req, on_abort, a);
    if (!r.stream || s->whole_only) {
        whole(a);
        return;
    }
    k2_http_stream_begin(req, 200, "text/event-stream");
    if (s->at_once) advance(a);
}

static void on_request(void *arg, k2_http_req *req)
{
    stub *s = arg;
    const char *path = k2_http_req_path(req);
    if (strcmp(path, "/v1/completions") == 0) {
        completion(s, req, false);
    } else if (strcmp(path, "/v1/chat/completions") == 0) {
        completion(s, req, true);
    } else if (strcmp(path, "/health") == 0) {
        s->healths++;
        k2_buf_clear(&s->json);
        k2_openai_write_health(&s->json, s->has_digest && !s->foreign, 3, s->digest);
        k2_http_respond(req, s->sick ? 503 : 200, "application/json", s->json.data, s->json.len);
    } else if (strcmp(path, "/v1/models") == 0) {
        static const char *const names[] = {"stub-model"};
        k2_buf_clear(&s->json);
        k2_openai_write_models(&s->json, names, 1, 1);
        k2_http_respond(req, 200, "application/json", s->json.data, s->json.len);
    } else if (strcmp(path, "/k2/score") == 0) {
        size_t n;
        const char *body = k2_http_req_body(req, &n);
        s->scores++;
        bool failing = s->fail_times > 0;
        if (failing) s->fail_times--;
        k2_http_respond(req, failing ? 500 : 200, "application/json", body, n);
    } else {
        refuse(req, 404);
    }
}

void stub_start(stub *s, k2_loop *loop, uint16_t port)
{
    k2_error err;
    s->loop = loop;
    s->server = k2_http_serve(loop, "127.0.0.1", port, NULL, on_request, s, &err);
    if (!s->server) {
        fprintf(stderr, "stub engine: %s\n", err.text);
        exit(1);
    }
    k2_buf_init(&s->out, 64 << 20);
    k2_buf_init(&s->json, 64 << 20);
    if (!s->at_once) s->pace = k2_timer_start(loop, K2_NS_PER_MS, K2_NS_PER_MS, on_pace, s);
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%u", k2_http_server_port(s->server));
}

void stub_kill(stub *s)
{
    while (s->answers) {
        k2_http_stream_abort(s->answers->req);
        answer_free(s->answers);
    }
    k2_http_server_close(s->server);
    s->server = NULL;
}

void stub_stop(stub *s)
{
    k2_timer_stop(s->pace);
    if (s->server) stub_kill(s);
    k2_buf_fini(&s->out);
    k2_buf_fini(&s->json);
}
