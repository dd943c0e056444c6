/* See asker.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "asker.h"
#include "stub.h"

static void take(answer *r, const char *data, size_t n)
{
    k2_openai_parsed p;
    k2_error err;
    k2_openai_parsed_init(&p);
    k2_code code = k2_openai_parse_answer(data, n, &p, &err);
    if (code == K2_PEER_REFUSED)
        r->saw_error = true;
    else if (code != K2_OK)
        fail_msg("%s in %s", err.text, data);
    else {
        if (r->id[0]) assert_string_equal(r->id, p.a.id);
        snprintf(r->id, sizeof r->id, "%s", p.a.id);
        if (p.a.ids) memcpy(r->ids + r->count, p.a.ids, p.a.count * sizeof *r->ids);
        if (p.a.logprobs) {
            r->has_logprobs = true;
            memcpy(r->logprobs + r->count, p.a.logprobs, p.a.count * sizeof *r->logprobs);
        }
        r->count += p.a.ids ? p.a.count : 0;
        if (p.a.prompt_ids) {
            r->prompt_count = p.a.prompt_ids_count;
            memcpy(r->prompt_ids, p.a.prompt_ids, p.a.prompt_ids_count * sizeof *r->prompt_ids);
        }
        k2_buf_append(&r->text, p.a.text, p.a.text_bytes);
        if (p.a.finish_reason) snprintf(r->finish, sizeof r->finish, "%s", p.a.finish_reason);
        if (p.a.stop_text) snprintf(r->stop, sizeof r->stop, "%s", p.a.stop_text);
        k2_openai_calls_append(&r->calls, p.a.calls, p.a.call_count);
        if (p.a.has_cached) r->cached = p.a.cached_tokens;
        if (p.a.has_usage) {
            r->has_usage = true;
            r->prompt_tokens = p.a.prompt_tokens;
            r->completion_tokens = p.a.completion_tokens;
        }
        if (p.a.has_k2) r->version = p.a.version;
        if (r->chunks == 0) r->first_role = p.a.first;
        r->chunks++;
    }
    k2_openai_parsed_fini(&p);
}

static bool on_event(void *arg, const char *type, const char *data, size_t n)
{
    (void)type;
    answer *r = arg;
    assert_false(r->saw_done);
    if (strcmp(data, "[DONE]") == 0)
        r->saw_done = true;
    else
        take(r, data, n);
    return true;
}

static void on_head(void *arg, int status, const char *content_type)
{
    answer *r = arg;
    r->status = status;
    r->sse = strncmp(content_type, "text/event-stream", 17) == 0;
}

static void on_data(void *arg, const char *data, size_t n)
{
    answer *r = arg;
    if (r->sse)
        assert_int_equal(k2_sse_feed(&r->events, data, n, on_event, r), K2_OK);
    else
        k2_buf_append(&r->body, data, n);
}

static void on_done(void *arg, k2_code code, const char *text)
{
    (void)text;
    answer *r = arg;
    r->done = true;
    r->code = code;
    r->call = NULL;
    if (code == K2_OK && !r->sse && !r->raw && r->status == 200 && r->body.len) take(r, r->body.data, r->body.len);
    k2_loop_stop(r->by->loop);
}

static const k2_http_call_ops ops = {.on_head = on_head, .on_data = on_data, .on_done = on_done};

void asker_ask(asker *by, answer *r, const char *path, const char *body)
{
    char url[128];
    k2_error err;
    memset(r, 0, sizeof *r);
    r->by = by;
    k2_buf_init(&r->text, 1 << 20);
    k2_buf_init(&r->body, 64 << 20);
    k2_sse_init(&r->events, 1 << 20);
    r->chat = strstr(path, "chat") != NULL;
    snprintf(url, sizeof url, "%s%s", by->base, path);
    k2_http_call_spec spec = {.method = body ? "POST" : "GET", .url = url, .body = body, .body_bytes = body ? strlen(body) : 0};
    r->call = k2_http_request(by->client, &spec, &ops, r, &err);
    assert_non_null(r->call);
}

void answer_finish(answer *r)
{
    while (!r->done) k2_loop_run(r->by->loop);
}

void answer_drop(answer *r)
{
    k2_buf_fini(&r->text);
    k2_buf_fini(&r->body);
    k2_openai_calls_clear(&r->calls);
    k2_sse_fini(&r->events);
}

void answer_expect_whole(const answer *r, const uint32_t *prompt, size_t prompt_count, size_t tokens)
{
    uint32_t ids[TOKENS_MAX];
    assert_int_equal(r->code, K2_OK);
    if (r->status != 200 || r->saw_error) fail_msg("status %d: %s", r->status, r->body.data ? r->body.data : "error event");
    assert_int_equal(r->count, tokens);
    memcpy(ids, prompt, prompt_count * sizeof *ids);
    for (size_t i = 0; i < tokens; i++) {
        float logprob = stub_logprob(ids, prompt_count + i);
        ids[prompt_count + i] = stub_next(ids, prompt_count + i);
        assert_int_equal(r->ids[i], ids[prompt_count + i]);
        if (r->has_logprobs) assert_memory_equal(&r->logprobs[i], &logprob, sizeof logprob);
        assert_int_equal(r->text.data[i], stub_char(ids[prompt_count + i]));
    }
    assert_int_equal(r->text.len, tokens);
    assert_string_equal(r->finish, "length");
    if (r->has_usage) assert_true(r->prompt_tokens == prompt_count && r->completion_tokens == tokens);
    if (r->sse) assert_true(r->saw_done);
}
