/* server - over real sockets, with a real engine under it: answers plain and streamed, errors, stop strings, clients that go
 * away. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/rollout/served_int.h"

/* ---- tests -----------------------------------------------------------------------------------------------------------------
 */

static void test_before_there_is_an_engine(void **state)
{
    (void)state;
    reply r = ask("GET", "/health", NULL);
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"status\":\"loading\""));
    k2_buf_fini(&r.body);
    r = ask("POST", "/v1/completions", "{}");
    assert_int_equal(r.status, 503);
    assert_non_null(strstr(r.body.data, "\"error\""));
    k2_buf_fini(&r.body);
    attach();
    r = ask("GET", "/health", NULL);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body.data,
                        "{\"status\":\"ok\",\"version\":3,\"digest\":\"00000000000000010000000000000002\",\"queue\":0,"
                        "\"running\":0,\"tokens\":0}");
    k2_buf_fini(&r.body);
}

static void test_plain_equals_streamed(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
    } cases[] = {
        {"/v1/completions", "\"prompt\":\"Hello\",\"max_tokens\":20,\"seed\":4,\"logprobs\":1"},
        {"/v1/completions", "\"prompt\":[1,2,3,200],\"max_tokens\":30,\"temperature\":0,\"logprobs\":1"},
        {"/v1/completions", "\"prompt\":[65],\"max_tokens\":25,\"top_p\":0.9,\"top_k\":40,"
                            "\"k2\":{\"trajectory\":\"9223372036854775813\",\"seed\":9,\"train\":true,"
                            "\"digest\":\"00000000000000010000000000000002\"},\"logprobs\":1"},
        {"/v1/chat/completions",
         "\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"2+2?\"}],"
         "\"seed\":1,\"logprobs\":true"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        char plain[512], stream[512];
        snprintf(plain, sizeof plain, "{\"model\":\"k2rl\",%s}", cases[i].body);
        snprintf(stream, sizeof stream, "{\"model\":\"k2rl\",\"stream\":true,\"stream_options\":{\"include_usage\":true},%s}",
                 cases[i].body);
        answer a = complete(cases[i].path, plain, false), b = complete(cases[i].path, stream, true);
        assert_true(a.count > 0 && a.count <= 40 && a.prompt_count > 0);
        assert_same(&a, &b);
        assert_int_equal(a.usage_prompt, a.prompt_count);
        assert_int_equal(a.usage_new, a.count);
        assert_int_equal(b.usage_new, b.count);
        assert_true(a.version == 3 && a.digest.lo == 2 && b.version == 3);
        assert_true(strcmp(a.reason, "length") == 0 || strcmp(a.reason, "stop") == 0);
        k2_buf text;
        k2_buf_init(&text, 1 << 16);
        assert_int_equal(k2_tokenizer_decode(tokenizer, (const int32_t *)a.ids, a.count, &text, NULL), K2_OK);
        assert_string_equal(a.text, text.data);
        k2_buf_fini(&text);
        answer_fini(&a);
        answer_fini(&b);
    }
}

static void test_cut_and_continue(void **state)
{
    (void)state;
    const char *form = "{\"prompt\":[%s],\"max_tokens\":%d,\"logprobs\":1,\"ignore_eos\":true,"
                       "\"k2\":{\"trajectory\":77,\"seed\":3,\"position\":%d,\"repetition\":true}}";
    char body[2048], prompt[1024] = "10,20,30";
    snprintf(body, sizeof body, form, prompt, 36, 0);
    answer whole = complete("/v1/completions", body, false), parts = {0};
    for (int at = 0; at < 36; at += 9) {
        snprintf(body, sizeof body, form, prompt, 9, at);
        answer part = complete("/v1/completions", body, false);
        assert_int_equal(part.count, 9);
        for (size_t i = 0; i < part.count; i++) {
            parts.ids[parts.count] = part.ids[i];
            parts.logps[parts.count++] = part.logps[i];
            snprintf(prompt + strlen(prompt), sizeof prompt - strlen(prompt), ",%u", part.ids[i]);
        }
    }
    assert_int_equal(whole.count, 36);
    assert_memory_equal(whole.ids, parts.ids, 36 * sizeof *whole.ids);
    assert_memory_equal(whole.logps, parts.logps, 36 * sizeof *whole.logps);
}

static void test_stop_strings(void **state)
{
    (void)state;
    const char *form = "{\"prompt\":\"abc\",\"max_tokens\":60,\"seed\":%d,\"ignore_eos\":true%s%s}";
    uint32_t tried = 0;
    for (int seed = 1; seed < 12; seed++) {
        char body[512], stop[96];
        snprintf(body, sizeof body, form, seed, "", "");
        answer whole = complete("/v1/completions", body, false);
        /* Two plain characters that follow each other somewhere in the middle. */
        size_t at = 0;
        for (size_t i = 20; i + 1 < whole.count && !at; i++) {
            uint32_t x = whole.ids[i], y = whole.ids[i + 1];
            if (x > 32 && x < 127 && y > 32 && y < 127 && x != '"' && x != '\\' && y != '"' && y != '\\') at = i;
        }
        if (!at) continue;
        tried++;
        char pair[3] = {(char)whole.ids[at], (char)whole.ids[at + 1], 0};
        snprintf(stop, sizeof stop, ",\"stop\":[\"\\u0001never\",\"%s\"]", pair);
        snprintf(body, sizeof body, form, seed, stop, "");
        answer plain = complete("/v1/completions", body, false);
        snprintf(body, sizeof body, form, seed, stop, ",\"stream\":true");
        answer stream = complete("/v1/completions", body, true);
        assert_same(&plain, &stream);
        assert_string_equal(plain.reason, "stop");
        const char *hit = strstr(whole.text, pair);
        assert_non_null(hit);
        assert_int_equal(strlen(plain.text), (size_t)(hit - whole.text));
        assert_memory_equal(plain.text, whole.text, strlen(plain.text));
        assert_true(plain.count <= at + 2);
        assert_memory_equal(plain.ids, whole.ids, plain.count * sizeof *plain.ids);
    }
    assert_true(tried > 3);
}

static void test_repetition_ends_a_sequence(void **state)
{
    (void)state;
    /* A token that is nearly certain to be drawn again: greedy decoding of this model runs into a cycle. */
    const char *form = "{\"prompt\":[%d],\"max_tokens\":150,\"temperature\":0,\"ignore_eos\":true,\"k2\":{\"repetition\":%s}}";
    int found = 0;
    for (int first = 0; first < 20 && !found; first++) {
        char body[256];
        snprintf(body, sizeof body, form, first, "true");
        answer a = complete("/v1/completions", body, false);
        if (strcmp(a.reason, "repetition") != 0) continue;
        found++;
        snprintf(body, sizeof body, form, first, "false");
        answer b = complete("/v1/completions", body, false);
        assert_string_equal(b.reason, "length");
        assert_memory_equal(a.ids, b.ids, a.count * sizeof *a.ids);
    }
    assert_int_equal(found, 1);
}

static void test_bad_requests(void **state)
{
    (void)state;
    char long_body[4096] = "{\"max_tokens\":3,\"prompt\":[1";
    for (int i = 0; i < CONTEXT; i++) strcat(long_body, ",2");
    strcat(long_body, "]}");
    const struct {
        const char *method, *path, *body;
        int status;
        const char *says;
    } cases[] = {
        {"GET", "/v1/completions", NULL, 405, "takes POST"},
        {"POST", "/health", "{}", 405, "takes GET"},
        {"GET", "/nowhere", NULL, 404, "no such path"},
        {"GET", "/v1/models/gpt", NULL, 404, "\\\"gpt\\\" does not exist"},
        {"POST", "/v1/completions", "nonsense", 400, "\"error\""},
        {"POST", "/v1/completions", "{\"prompt\":\"a\",\"model\":\"gpt\"}", 404, "\\\"gpt\\\" does not exist"},
        {"POST", "/v1/completions", "{\"prompt\":\"\"}", 400, "empty"},
        {"POST", "/v1/completions", "{\"prompt\":[]}", 400, "prompt"},
        {"POST", "/v1/completions", "{\"prompt\":[1,264]}", 400, "prompt[1]: token id 264 is outside of the vocabulary of 264"},
        {"POST", "/v1/completions", long_body, 400, "room for 200"},
        {"POST", "/v1/completions", "{\"prompt\":[1],\"max_tokens\":200}", 400,
         "the prompt has 1 tokens and max_tokens is 200"},
        {"POST", "/v1/completions", "{\"prompt\":[1],\"max_tokens\":0}", 400, "max_tokens"},
        {"POST", "/v1/completions", "{\"prompt\":\"a\",\"n\":0}", 400, "\"param\":\"n\""},
        {"POST", "/v1/completions", "{\"prompt\":\"a\",\"best_of\":2}", 400, "\"param\":\"best_of\""},
        {"POST", "/v1/completions", "{\"prompt\":\"a\",\"logprobs\":21}", 400, "\"param\":\"logprobs\""},
        {"POST", "/v1/completions", "{\"prompt\":\"a\",\"logit_bias\":{\"264\":1}}", 400, "token id 264 is outside"},
        {"POST", "/v1/completions", "{\"prompt\":\"a\",\"temperatur\":1}", 400, "temperatur"},
        {"POST", "/v1/completions", "{\"prompt\":[1],\"k2\":{\"position\":2}}", 400, "\"param\":\"k2.position\""},
        {"POST", "/v1/completions", "{\"prompt\":[1],\"k2\":{\"digest\":\"00000000000000010000000000000003\"}}", 409,
         "active weights"},
        {"POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":\"x\"}]}", 400,
         "\"param\":\"messages[0].role\""},
        {"POST", "/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}"
         "}]}",
         400,
         "\"message\":\"tools: the chat layout \\\"byte\\\" has none\",\"type\":\"invalid_request_error\",\"param\":\"tools\""},
        {"POST", "/k2/score", "{\"items\":[{}]}", 400, "items[0].trajectory"},
        {"POST", "/k2/score", "{\"items\":[{\"trajectory\":1,\"text\":\"4\\u0000x\",\"answer\":\"4\"}]}", 400, "U+0000"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        reply r = ask(cases[i].method, cases[i].path, cases[i].body);
        if (r.status != cases[i].status || !strstr(r.body.data, cases[i].says))
            fail_msg("%zu: %d %s", i, r.status, r.body.data);
        assert_non_null(strstr(r.body.data, "\"error\""));
        k2_buf_fini(&r.body);
    }
    assert_int_equal(k2i_server_open(server), 0);
}

static void test_models_metrics_and_scores(void **state)
{
    (void)state;
    reply r = ask("GET", "/v1/models", NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "\"id\":\"k2rl\""));
    k2_buf_fini(&r.body);
    r = ask("GET", "/v1/models/k2rl", NULL);
    assert_int_equal(r.status, 200);
    k2_buf_fini(&r.body);
    (void)complete("/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":5,\"ignore_eos\":true}", false);
    r = ask("GET", "/metrics", NULL);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "k2_rollout_generated_tokens_total 5\n"));
    assert_non_null(strstr(r.body.data, "k2_rollout_weights_version 3\n"));
    k2_buf_fini(&r.body);
    r = ask(
        "POST", "/k2/score",
        "{\"items\":[{\"trajectory\":1,\"text\":\" 4\",\"answer\":\"4\"},{\"trajectory\":2,\"text\":\"5\",\"answer\":\"4\"}]}");
    assert_string_equal(
        r.body.data,
        "{\"scores\":[{\"trajectory\":1,\"reward\":1,\"detail\":\"\"},{\"trajectory\":2,\"reward\":0,\"detail\":\"\"}]}");
    k2_buf_fini(&r.body);
}

static void test_overload(void **state)
{
    (void)state;
    reply r[REQUESTS + 2];
    for (int i = 0; i < REQUESTS + 2; i++)
        begin(&r[i], "POST", "/v1/completions",
              "{\"prompt\":[1],\"max_tokens\":150,\"ignore_eos\":true,\"k2\":{\"trajectory\":5}}");
    int good = 0, refused = 0;
    for (int i = 0; i < REQUESTS + 2; i++) {
        while (!r[i].done) k2_loop_run(loop);
        good += r[i].status == 200;
        refused += r[i].status == 429;
        if (r[i].status == 429) assert_non_null(strstr(r[i].body.data, "overloaded"));
        k2_buf_fini(&r[i].body);
    }
    assert_int_equal(good, REQUESTS);
    assert_int_equal(refused, 2);
    reply all = ask("POST", "/v1/completions", "{\"prompt\":\"a\",\"n\":7}"); /* more choices than the queue takes */
    assert_int_equal(all.status, 429);
    k2_buf_fini(&all.body);
}

static uint64_t got_bytes;
static k2_http_call *leaving; /* is canceled at its first bytes: a moment later it may be over, and gone */
static void on_some(void *arg, const char *data, size_t n)
{
    (void)arg;
    (void)data;
    got_bytes += n;
    if (leaving) k2_http_cancel(leaving);
    leaving = NULL;
    k2_loop_stop(loop);
}
static void on_never(void *arg, k2_code code, const char *text)
{
    (void)arg;
    (void)text;
    assert_int_equal(code, K2_OK);
}

static void look_again(void *arg)
{
    (void)arg;
    k2_loop_stop(loop);
}

static void test_client_that_goes_away(void **state)
{
    (void)state;
    static const k2_http_call_ops ops = {.on_data = on_some, .on_done = on_never};
    char url[128];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/completions", k2i_server_port(server));
    const char *body = "{\"prompt\":[1],\"max_tokens\":190,\"ignore_eos\":true,\"stream\":true}";
    k2_http_call_spec spec = {.method = "POST", .url = url, .body = body, .body_bytes = strlen(body)};
    got_bytes = 0;
    leaving = k2_http_request(http, &spec, &ops, NULL, NULL);
    while (got_bytes == 0) k2_loop_run(loop);
    k2_timer *t = k2_timer_start(loop, K2_NS_PER_MS, K2_NS_PER_MS, look_again, NULL);
    k2i_core_stats stats;
    do {
        k2_loop_run(loop);
        k2i_engine_stats_get(engine, &stats);
    } while (k2i_server_open(server) > 0 || stats.running > 0);
    k2_timer_stop(t);
    assert_int_equal(stats.pages_held, 0);
}

static void test_end_with_open_requests(void **state)
{
    (void)state;
    reply r[3];
    begin(&r[0], "POST", "/v1/completions", "{\"prompt\":[1],\"max_tokens\":190,\"ignore_eos\":true}");
    static const k2_http_call_ops ops = {.on_data = on_some, .on_done = on_never};
    char url[128];
    snprintf(url, sizeof url, "http://127.0.0.1:%u/v1/completions", k2i_server_port(server));
    const char *body = "{\"prompt\":[1],\"max_tokens\":190,\"ignore_eos\":true,\"stream\":true}";
    k2_http_call_spec spec = {.method = "POST", .url = url, .body = body, .body_bytes = strlen(body)};
    got_bytes = 0;
    (void)k2_http_request(http, &spec, &ops, NULL, NULL);
    while (got_bytes == 0) k2_loop_run(loop);
    k2_buf_fini(&r[0].body); /* teardown ends everything while these are open */
}

#define ATTACHED(f) cmocka_unit_test_setup_teardown(f, setup_attached, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_before_there_is_an_engine, setup, teardown),
        ATTACHED(test_plain_equals_streamed),
        ATTACHED(test_cut_and_continue),
        ATTACHED(test_stop_strings),
        ATTACHED(test_repetition_ends_a_sequence),
        ATTACHED(test_bad_requests),
        ATTACHED(test_models_metrics_and_scores),
        ATTACHED(test_overload),
        ATTACHED(test_client_that_goes_away),
        ATTACHED(test_end_with_open_requests),
    };
    return cmocka_run_group_tests_name("rollout_server", tests, NULL, NULL);
}
