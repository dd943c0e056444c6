/* served - see served_int.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/rollout/served_int.h"
#include "tests/unit/rollout/tiny_int.h"

k2_loop *loop;
k2i_server *server;
k2i_engine *engine;
k2_tokenizer *tokenizer;
const served_spec *served;
static k2i_rewarder *rewarder;
k2_http_client *http;

int setup(void **state)
{
    (void)state;
    k2_error err;
    loop = k2_loop_new();
    server = k2i_server_new(loop, "127.0.0.1", 0, "k2rl", NULL, &err);
    assert_non_null(server);
    const char *folder = served ? served->tokenizer : NULL;
    if (k2_tokenizer_open(folder ? "auto" : "byte", folder, &tokenizer, &err) != K2_OK) fail_msg("%s", err.text);
    k2i_engine_plan plan = {.threads = 1,
                            .core = {.batch_max = 4,
                                     .prefill_chunk = 32,
                                     .requests_max = REQUESTS,
                                     .pages = 200,
                                     .page_tokens = 8,
                                     .context_max = CONTEXT,
                                     .prompt_rows = 3,
                                     .repetition = {.min_period = 1, .max_period = 4, .count = 3}}};
    k2_dims dims = tiny_dims();
    if (served) dims.vocab_size = served->vocab;
    k2_model *model = served ? k2_model_new(&dims, K2_COMPUTE_F32, 1, &err) : tiny_model(5, 1);
    assert_non_null(model);
    if (served) k2_model_init(model, 5, 0.4);
    if (served && served->fill) served->fill(model, tokenizer);
    engine = k2i_engine_new(loop, &plan, &dims, &(k2i_weights){.model = model, .version = 3, .digest = {1, 2}});
    k2_config *config = k2_alloc(sizeof *config);
    k2_config_defaults(config);
    rewarder = k2i_rewarder_new(loop, config, NULL);
    k2_free(config);
    http = k2_http_client_new(loop, NULL);
    return 0;
}

void attach(void)
{
    k2i_server_attach(server, &(k2i_served){.engine = engine,
                                            .tokenizer = tokenizer,
                                            .rewarder = rewarder,
                                            .context_max = CONTEXT,
                                            .vocab = served ? served->vocab : 264,
                                            .answer_max = 40,
                                            .repetition = true});
}

int setup_attached(void **state)
{
    setup(state);
    attach();
    return 0;
}

int teardown(void **state)
{
    (void)state;
    k2_http_client_close(http);
    k2i_engine_stop(engine);
    k2i_server_free(server);
    k2i_rewarder_free(rewarder);
    k2_loop_free(loop);
    k2i_engine_free(engine);
    k2_tokenizer_close(tokenizer);
    return 0;
}

/* ---- asking ------------------------------------------------------------------------------------------------------------ */

static void on_fetched(void *arg, k2_code code, int status, const char *body, size_t n)
{
    reply *r = arg;
    assert_int_equal(code, K2_OK);
    r->status = status;
    k2_buf_append(&r->body, body, n);
    r->done = true;
    k2_loop_stop(loop);
}

void begin(reply *r, const char *method, const char *path, const char *body)
{
    char url[128];
    memset(r, 0, sizeof *r);
    k2_buf_init(&r->body, 1 << 24);
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", k2i_server_port(server), path);
    k2_http_call_spec spec = {.method = method, .url = url, .body = body, .body_bytes = body ? strlen(body) : 0};
    assert_non_null(k2_http_fetch(http, &spec, 1 << 24, on_fetched, r, NULL));
}

reply ask(const char *method, const char *path, const char *body)
{
    reply r;
    static reply *slot;
    slot = k2_alloc(sizeof *slot);
    begin(slot, method, path, body);
    while (!slot->done) k2_loop_run(loop);
    r = *slot;
    k2_free(slot);
    return r;
}

void add(answer *out, const char *json, size_t n)
{
    k2_openai_parsed p;
    k2_error err;
    k2_openai_parsed_init(&p);
    if (k2_openai_parse_answer(json, n, &p, &err) != K2_OK) fail_msg("%s in %.*s", err.text, (int)n, json);
    const k2_openai_answer *a = &p.a;
    assert_true(out->count + a->count <= CONTEXT);
    for (size_t i = 0; i < a->count; i++) {
        out->ids[out->count] = a->ids[i];
        if (a->logprobs) out->logps[out->count] = a->logprobs[i];
        out->count++;
    }
    if (a->tokens) k2_openai_list_append(&out->tokens, a->tokens, a->token_count);
    for (size_t i = 0; a->prompt_ids && i < a->prompt_ids_count; i++) out->prompt[out->prompt_count++] = a->prompt_ids[i];
    strncat(out->text, a->text, sizeof out->text - strlen(out->text) - 1);
    if (a->finish_reason) {
        assert_string_equal(out->reason, "");
        snprintf(out->reason, sizeof out->reason, "%s", a->finish_reason);
    }
    if (a->stop_text) snprintf(out->stop, sizeof out->stop, "%s", a->stop_text);
    if (a->has_stop_id) snprintf(out->stop, sizeof out->stop, "%u", a->stop_id);
    assert_true(k2_openai_calls_append(&out->calls, a->calls, a->call_count));
    if (out->events == 0) out->cached = a->cached_tokens;
    if (a->has_usage) {
        assert_true(a->has_cached);
        out->usage_cached = a->cached_tokens;
        out->usage_prompt = a->prompt_tokens;
        out->usage_new = a->completion_tokens;
    }
    assert_true(a->has_k2);
    out->version = a->version;
    out->digest = a->digest;
    out->events++;
    k2_openai_parsed_fini(&p);
}

static bool on_sse(void *arg, const char *type, const char *data, size_t n)
{
    answer *a = arg;
    assert_string_equal(type, "message");
    assert_false(a->done);
    if (strcmp(data, "[DONE]") == 0)
        a->done = true;
    else
        add(a, data, n);
    return true;
}

answer complete(const char *path, const char *body, bool stream)
{
    answer a = {0};
    k2_openai_list_init(&a.tokens);
    reply r = ask("POST", path, body);
    if (r.status != 200) fail_msg("status %d: %s", r.status, r.body.data);
    if (stream) {
        k2_sse sse;
        k2_sse_init(&sse, 1 << 20);
        assert_int_equal(k2_sse_feed(&sse, r.body.data, r.body.len, on_sse, &a), K2_OK);
        k2_sse_fini(&sse);
        assert_true(a.done);
    } else {
        add(&a, r.body.data, r.body.len);
    }
    k2_buf_fini(&r.body);
    return a;
}

void answer_fini(answer *a)
{
    k2_openai_list_fini(&a->tokens);
    k2_openai_calls_clear(&a->calls);
}

void assert_same(const answer *a, const answer *b)
{
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->ids, b->ids, a->count * sizeof *a->ids);
    assert_memory_equal(a->logps, b->logps, a->count * sizeof *a->logps);
    assert_string_equal(a->text, b->text);
    assert_string_equal(a->reason, b->reason);
    assert_string_equal(a->stop, b->stop);
    assert_int_equal(a->calls.count, b->calls.count);
    for (size_t i = 0; i < a->calls.count; i++) {
        const k2_openai_call *x = &a->calls.list[i], *y = &b->calls.list[i];
        assert_string_equal(x->id, y->id);
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->arguments.data, y->arguments.data);
    }
    assert_int_equal(a->prompt_count, b->prompt_count);
    assert_memory_equal(a->prompt, b->prompt, a->prompt_count * sizeof *a->prompt);
}
