/* options - what a client can ask of an answer, over real sockets and a real engine: choices, what is told of tokens, and when
 * the answer ends. Where two ways lead to the same numbers, they are compared to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/kernel/kernel.h"
#include "tests/unit/rollout/served_int.h"

#define COMPLETIONS "/v1/completions"

__attribute__((format(printf, 2, 3))) static answer get(bool stream, const char *fmt, ...)
{
    char body[8300], more[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(more, sizeof more, fmt, ap);
    va_end(ap);
    snprintf(body, sizeof body, "{%s%s}", stream ? "\"stream\":true," : "", more);
    return complete(COMPLETIONS, body, stream);
}

static void put_ids(char *out, const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) sprintf(out + strlen(out), out[0] ? ",%u" : "%u", ids[i]);
}

/* ---- choices ------------------------------------------------------------------------------------------------------------ */

/* The events of one choice, by its index. */
typedef struct by_index {
    answer choice[3];
    bool done;
} by_index;

static bool on_choice(void *arg, const char *type, const char *data, size_t n)
{
    by_index *all = arg;
    (void)type;
    const char *at = strstr(data, "\"index\":");
    if (strcmp(data, "[DONE]") == 0) {
        all->done = true;
    } else if (at) {
        int index = atoi(at + 8);
        assert_in_range(index, 0, 2);
        add(&all->choice[index], data, n);
    } else {
        assert_non_null(strstr(data, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":60"));
    }
    return true;
}

static void test_choices_are_single_requests(void **state)
{
    (void)state;
    const char *form = "{%s\"prompt\":\"Hello\",\"max_tokens\":20,\"ignore_eos\":true,\"logprobs\":1,\"n\":%d,"
                       "\"k2\":{\"seed\":4,\"trajectory\":%d}}";
    char body[512];
    snprintf(body, sizeof body, form, "\"stream\":true,\"stream_options\":{\"include_usage\":true},", 3, 7);
    reply r = ask("POST", COMPLETIONS, body);
    assert_int_equal(r.status, 200);
    by_index all = {0};
    for (int i = 0; i < 3; i++) k2_openai_list_init(&all.choice[i].tokens);
    k2_sse sse;
    k2_sse_init(&sse, 1 << 20);
    assert_int_equal(k2_sse_feed(&sse, r.body.data, r.body.len, on_choice, &all), K2_OK);
    k2_sse_fini(&sse);
    k2_buf_fini(&r.body);
    assert_true(all.done);

    snprintf(body, sizeof body, form, "", 3, 7);
    reply whole = ask("POST", COMPLETIONS, body);
    const char *at = whole.body.data;
    for (int i = 0; i < 3; i++) {
        char index[24], text[2048] = "\"token_ids\":[";
        snprintf(body, sizeof body, form, "", 1, 7 + i);
        answer one = complete(COMPLETIONS, body, false);
        assert_same(&one, &all.choice[i]);
        snprintf(index, sizeof index, "\"index\":%d", i);
        at = strstr(at, index); /* in order */
        assert_non_null(at);
        char ids[1024] = "";
        put_ids(ids, one.ids, one.count);
        strcat(strcat(text, ids), "]");
        at = strstr(at, text);
        if (!at) fail_msg("no %s in %s", text, whole.body.data);
        answer_fini(&one);
        answer_fini(&all.choice[i]);
    }
    assert_non_null(strstr(at, "\"completion_tokens\":60"));
    k2_buf_fini(&whole.body);
    assert_int_equal(k2i_server_open(server), 0);
}

/* ---- what is told -------------------------------------------------------------------------------------------------------- */

static uint64_t chars(const char *text)
{
    uint64_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void check_offsets(answer *a)
{
    const k2_openai_token *t = k2_openai_list_tokens(&a->tokens);
    k2_token_stream s = {0};
    k2_buf text;
    k2_buf_init(&text, 1 << 16);
    size_t prompt = a->tokens.count - a->count;
    for (size_t i = 0; i < a->tokens.count; i++) {
        int32_t id = (int32_t)(i < prompt ? a->prompt[i] : a->ids[i - prompt]);
        uint64_t before = text.len ? chars(text.data) : 0;
        k2_token_stream_feed(tokenizer, &s, &id, 1, &text, NULL);
        bool own = strncmp(t[i].text, "token_id:", 9) != 0; /* then it stands at the end, perhaps behind a broken character */
        assert_int_equal(t[i].offset, own ? chars(text.data) - 1 : before);
        if (strncmp(t[i].text, "token_id:", 9) == 0)
            assert_int_equal(atoi(t[i].text + 9), id);
        else
            assert_true(strlen(t[i].text) == 1 && t[i].text[0] == (char)id);
    }
    k2_buf_fini(&text);
}

static void test_likeliest_tokens_and_places(void **state)
{
    (void)state;
    const char *form =
        "\"prompt\":\"Hello\",\"max_tokens\":40,\"temperature\":%s,\"seed\":4,\"logprobs\":%d,\"ignore_eos\":true";
    answer greedy = get(false, form, "0", 5), stream = get(true, form, "0", 5), none = get(false, form, "0", 0);
    const k2_openai_token *t = k2_openai_list_tokens(&greedy.tokens), *u = k2_openai_list_tokens(&stream.tokens);
    assert_same(&greedy, &stream);
    assert_int_equal(greedy.tokens.count, greedy.count);
    for (size_t i = 0; i < greedy.count; i++) {
        assert_int_equal(t[i].top_count, 5);
        assert_true(t[i].tops[0].logprob == t[i].logprob && strcmp(t[i].tops[0].text, t[i].text) == 0);
        assert_true(t[i].logprob == greedy.logps[i] && t[i].offset == u[i].offset && strcmp(t[i].text, u[i].text) == 0);
        for (size_t k = 1; k < 5; k++) assert_true(t[i].tops[k].logprob <= t[i].tops[k - 1].logprob);
    }
    check_offsets(&greedy);
    assert_int_equal(k2_openai_list_tokens(&none.tokens)[0].top_count, 0);
    answer warm = get(false, form, "5", 3); /* the sampled token is rarely among the likeliest: it is added to them */
    t = k2_openai_list_tokens(&warm.tokens);
    uint32_t added = 0;
    for (size_t i = 0; i < warm.count; i++) {
        assert_true(t[i].top_count == 3 || t[i].top_count == 4);
        added += t[i].top_count == 4;
    }
    assert_true(added > 10);
    answer ids = get(false, "\"prompt\":\"Hello\",\"max_tokens\":3,\"logprobs\":1,\"return_tokens_as_token_ids\":true");
    t = k2_openai_list_tokens(&ids.tokens);
    assert_true(strncmp(t[0].text, "token_id:", 9) == 0);
    answer_fini(&greedy), answer_fini(&stream), answer_fini(&none), answer_fini(&warm), answer_fini(&ids);
}

static void test_echo_scores_the_prompt_as_it_was_drawn(void **state)
{
    (void)state;
    answer drawn = get(false, "\"prompt\":\"Hello\",\"max_tokens\":60,\"seed\":9,\"logprobs\":2,\"ignore_eos\":true");
    char ids[2048] = "";
    put_ids(ids, drawn.prompt, drawn.prompt_count);
    put_ids(ids, drawn.ids, drawn.count);
    for (int stream = 0; stream < 2; stream++) {
        answer echo = get(stream, "\"prompt\":[%s],\"max_tokens\":%d,\"echo\":true,\"logprobs\":2,\"temperature\":0", ids, 3);
        const k2_openai_token *t = k2_openai_list_tokens(&echo.tokens), *d = k2_openai_list_tokens(&drawn.tokens);
        size_t prompt = drawn.prompt_count + drawn.count;
        assert_int_equal(echo.tokens.count, prompt + echo.count);
        assert_int_equal(echo.usage_new, stream ? 0 : echo.count);
        assert_true(isnan(t[0].logprob) && t[0].top_count == 0);
        for (size_t i = 0; i < drawn.count; i++) {
            const k2_openai_token *x = &t[drawn.prompt_count + i];
            assert_true(x->logprob == d[i].logprob && x->offset == d[i].offset + 5 && strcmp(x->text, d[i].text) == 0);
            assert_int_equal(x->top_count, d[i].top_count);
            for (size_t k = 0; k < x->top_count; k++) assert_true(x->tops[k].logprob == d[i].tops[k].logprob);
        }
        check_offsets(&echo);
        size_t stable = strlen(drawn.text) > 3 ? strlen(drawn.text) - 3 : 0; /* its last character may be half there */
        assert_true(strncmp(echo.text, "Hello", 5) == 0 && strncmp(echo.text + 5, drawn.text, stable) == 0);
        answer_fini(&echo);
    }
    answer only = get(false, "\"prompt\":[%s],\"max_tokens\":0,\"echo\":true,\"logprobs\":0", ids);
    assert_true(only.count == 0 && only.tokens.count == drawn.prompt_count + drawn.count && strcmp(only.reason, "length") == 0);
    answer_fini(&only);

    char body[4096], want[64];
    snprintf(body, sizeof body, "{\"prompt\":[%s],\"max_tokens\":1,\"prompt_logprobs\":1}", ids);
    reply r = ask("POST", COMPLETIONS, body);
    assert_non_null(strstr(r.body.data, "\"prompt_logprobs\":[null,{"));
    for (size_t i = 0; i < drawn.count; i++) {
        snprintf(want, sizeof want, "\"%u\":{\"logprob\":%.9g,", drawn.ids[i], (double)drawn.logps[i]);
        if (!strstr(r.body.data, want)) fail_msg("no %s in %s", want, r.body.data);
    }
    k2_buf_fini(&r.body);
    answer_fini(&drawn);
}

/* ---- how tokens are drawn, and when it ends ------------------------------------------------------------------------------ */

static void test_bias_and_penalties(void **state)
{
    (void)state;
    const char *form = "\"prompt\":\"abc\",\"max_tokens\":30,\"temperature\":0,\"ignore_eos\":true,\"logprobs\":0%s";
    answer plain = get(false, form, ""), bias = get(false, form, ",\"logit_bias\":{\"65\":100}");
    for (size_t i = 0; i < bias.count; i++) assert_int_equal(bias.ids[i], 65);
    assert_true(bias.logps[0] < -1); /* the model's own opinion is told */
    char ban[128];
    snprintf(ban, sizeof ban, ",\"logit_bias\":{\"%u\":-100}", plain.ids[0]);
    answer other = get(false, form, ban);
    for (size_t i = 0; i < other.count; i++) assert_int_not_equal(other.ids[i], plain.ids[0]);
    answer fresh = get(false, form, ",\"repetition_penalty\":100,\"presence_penalty\":2,\"frequency_penalty\":2");
    uint32_t seen[264] = {0};
    for (size_t i = 0; i < fresh.count; i++) assert_int_equal(seen[fresh.ids[i]]++, 0);
    assert_true(fresh.ids[0] != 'a' && fresh.ids[0] != 'b' && fresh.ids[0] != 'c');

    /* Cut in the middle, with the position of the first token to draw, the penalties are the same. */
    const char *cut =
        "\"prompt\":[%s],\"max_tokens\":%d,\"temperature\":0.7,\"ignore_eos\":true,\"frequency_penalty\":1.5,"
        "\"presence_penalty\":0.5,\"min_p\":0.01,\"logprobs\":1,\"k2\":{\"trajectory\":3,\"seed\":2,\"position\":%d}";
    answer whole = get(false, cut, "97,98", 40, 0);
    char ids[1024] = "97,98";
    put_ids(ids, whole.ids, 17);
    answer rest = get(false, cut, ids, 23, 17);
    assert_memory_equal(whole.ids + 17, rest.ids, 23 * sizeof *rest.ids);
    assert_memory_equal(whole.logps + 17, rest.logps, 23 * sizeof *rest.logps);
    answer_fini(&plain), answer_fini(&bias), answer_fini(&other), answer_fini(&fresh), answer_fini(&whole), answer_fini(&rest);
}

static void test_ends(void **state)
{
    (void)state;
    const char *form = "\"prompt\":\"abc\",\"max_tokens\":30,\"temperature\":0,\"logit_bias\":{\"65\":100},\"logprobs\":1%s";
    for (int stream = 0; stream < 2; stream++) {
        answer a = get(stream, form, ",\"stop\":\"AAA\"");
        assert_true(a.count == 3 && strcmp(a.text, "") == 0 && strcmp(a.reason, "stop") == 0 && strcmp(a.stop, "AAA") == 0);
        answer b = get(stream, form, ",\"stop\":\"AAA\",\"include_stop_str_in_output\":true");
        assert_true(b.count == 3 && strcmp(b.text, "AAA") == 0);
        answer c = get(stream, form, ",\"stop\":\"AAA\",\"min_tokens\":7"); /* the eighth may complete what the sixth began */
        assert_true(c.count == 8 && strcmp(c.text, "AAAAA") == 0 && strcmp(c.reason, "stop") == 0);
        answer d = get(stream, form, ",\"stop_token_ids\":[65]");
        assert_true(d.count == 1 && strcmp(d.text, "") == 0 && strcmp(d.reason, "stop") == 0 && strcmp(d.stop, "65") == 0);
        answer e = get(stream, form, ",\"stop_token_ids\":[65],\"include_stop_str_in_output\":true");
        assert_true(e.count == 1 && strcmp(e.text, "A") == 0);
        answer f = get(stream, form, ",\"stop_token_ids\":[65],\"min_tokens\":4");
        assert_true(f.count == 5 && f.ids[4] == 65 && f.ids[0] != 65 && f.ids[3] != 65);
        /* A stop string that the prompt has begun is none of the answer's. */
        answer g = get(stream, "\"prompt\":\"xA\",\"max_tokens\":5,\"temperature\":0,\"echo\":true,\"stop\":\"xAA\","
                               "\"logit_bias\":{\"65\":100}");
        assert_true(g.count == 5 && strcmp(g.text, "xAAAAAA") == 0);
        answer_fini(&a), answer_fini(&b), answer_fini(&c), answer_fini(&d), answer_fini(&e), answer_fini(&f), answer_fini(&g);
    }
}

#define ATTACHED(f) cmocka_unit_test_setup_teardown(f, setup_attached, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ATTACHED(test_choices_are_single_requests),
        ATTACHED(test_likeliest_tokens_and_places),
        ATTACHED(test_echo_scores_the_prompt_as_it_was_drawn),
        ATTACHED(test_bias_and_penalties),
        ATTACHED(test_ends),
    };
    return cmocka_run_group_tests_name("rollout_options", tests, NULL, NULL);
}
