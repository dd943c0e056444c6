/* calls - calls of tools in answers: the marks one by one; over real sockets with a model that writes a call, plain and
 * streamed; and answers that break off behind any token and go on elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout/generate_int.h"
#include "tests/unit/rollout/served_int.h"

#define CHAT "/v1/chat/completions"

/* ---- marks one by one --------------------------------------------------------------------------------------------------- */

/* '[' and ']' are the section's marks, '(' '|' ')' a call's; the names stand for themselves. */
static void feed(k2i_calls *c, const char *script, size_t n)
{
    static const char marks[] = "?[](|)";
    for (size_t i = 0; i < n; i++) {
        const char *mark = memchr(marks + 1, script[i], 5), name[2] = {script[i], 0};
        if (mark)
            k2i_calls_mark(c, (k2_token_mark)(mark - marks), name);
        else
            k2i_calls_text(c, name, 1);
    }
}

static void describe(const k2i_calls *c, k2_buf *out)
{
    k2_buf_append(out, c->content.data, c->content.len);
    for (size_t i = 0; i < c->news.count; i++) {
        const k2_openai_call *call = &c->news.list[i];
        k2_buf_printf(out, " <%u %s %s %s>", call->index, call->id, call->name, call->arguments.data);
    }
}

static void test_marks(void **state)
{
    (void)state;
    static const struct {
        const char *script, *want;
    } cases[] = {
        {"plain", "plain"},
        {"[(functions.f:0|{})]", " <0 functions.f:0 f {}>"},
        {"Hm. [(functions.a.b:0|{\"x\":1})(functions.c:1|)]", "Hm.  <0 functions.a.b:0 a.b {\"x\":1}> <1 functions.c:1 c >"},
        {"[ \n( functions.f:12\n| {} ) ]", " <0 functions.f:12 f  {} >"},
        {"[(f:0|1)]", " <0 f:0 f 1>"},
        {"[(f:0|1)] and [(f:0|2)]", " and  <0 f:0 f 1> <1 f:0 f 2>"},
        /* Ends may be missing. */
        {"[(f:0|{\"a\"", " <0 f:0 f {\"a\">"},
        {"[(f:0|1]", " <0 f:0 f 1>"},
        {"[(f:0|1(g:1|2", " <0 f:0 f 1> <1 g:1 g 2>"},
        {"[(f:0|1) ", " <0 f:0 f 1>"},
        /* What is no call is text. */
        {"[", "["},
        {"[]", "[]"},
        {"[ ]", "[ ]"},
        {"x[y(f:0|1)]", "x[y(f:0|1)]"},
        {"[(f:0", "[(f:0"},
        {"[(f|1)]", "[(f|1)]"},
        {"[(f:|1)]", "[(f:|1)]"},
        {"[(:0|1)]", "[(:0|1)]"},
        {"[(functions.:0|1)]", "[(functions.:0|1)]"},
        {"[(|1)]", "[(|1)]"},
        {"[(f:0)]", "[(f:0)]"},
        {"[(f:0(g:0|1)]", "[(f:0(g:0|1)]"},
        {"[)", "[)"},
        {"(f:0|1)", "(f:0|1)"},
        {"[[(f:0|1)]", "[[(f:0|1)]"},
        {"[(f:0|1)x", "x <0 f:0 f 1>"},
        {"[(f:0|1)](g", "(g <0 f:0 f 1>"},
        {"[(f:0|1[2|3)]", " <0 f:0 f 1[2|3>"},
        {"[(f:0|1)(g|2)]", "(g|2)] <0 f:0 f 1>"},
        {"[(f:0|1)(g|2)] [(h:0|3)]", "(g|2)]  <0 f:0 f 1> <1 h:0 h 3>"},
    };
    k2_buf got, pieces;
    k2_buf_init(&got, 4096);
    k2_buf_init(&pieces, 4096);
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        const size_t n = strlen(cases[i].script);
        /* Told in two parts, cut anywhere, it is the same: what was told is never taken back. */
        for (size_t cut = 0; cut <= n; cut++) {
            k2i_calls c;
            k2_openai_calls all = {0};
            k2i_calls_init(&c);
            k2_buf_clear(&got);
            k2_buf_clear(&pieces);
            feed(&c, cases[i].script, cut);
            k2_buf_append(&pieces, c.content.data, c.content.len);
            k2_openai_calls_append(&all, c.news.list, c.news.count);
            k2i_calls_told(&c);
            feed(&c, cases[i].script + cut, n - cut);
            k2i_calls_end(&c);
            k2_buf_append(&pieces, c.content.data, c.content.len);
            k2_openai_calls_append(&all, c.news.list, c.news.count);
            describe(&(k2i_calls){.content = pieces, .news = all}, &got);
            if (strcmp(got.data, cases[i].want) != 0) fail_msg("%s: found \"%s\"", cases[i].script, got.data);
            assert_int_equal(c.count, all.count);
            k2_openai_calls_clear(&all);
            k2i_calls_fini(&c);
        }
    }
    k2_buf_fini(&got);
    k2_buf_fini(&pieces);
}

static void test_limits(void **state)
{
    (void)state;
    k2i_calls c;
    k2i_calls_init(&c);
    feed(&c, "[(", 2);
    for (unsigned i = 0; i <= K2I_CALL_ID_MAX; i++) feed(&c, "f", 1);
    assert_int_equal(c.content.len, K2I_CALL_ID_MAX + 3); /* an id without an end is no id */
    k2i_calls_told(&c);
    feed(&c, "[", 1);
    for (unsigned i = 0; i < K2_OPENAI_CALLS_MAX; i++) feed(&c, "(f:0|1)", 7);
    assert_int_equal(c.news.count, K2_OPENAI_CALLS_MAX);
    feed(&c, "(f:0|1)]", 8);
    assert_string_equal(c.content.data, "(f:0|1)]");
    k2i_calls_fini(&c);
}

/* ---- a model that writes a call ------------------------------------------------------------------------------------------ */

#define BEGINS "<|tool_calls_section_begin|>"
#define CALL   "<|tool_call_begin|>"
#define ARGS   "<|tool_call_argument_begin|>"
#define ENDS   "<|tool_call_end|><|tool_calls_section_end|>"

/* No token twice, for each is followed by one and the same. */
static const char answer_text[] = "<|im_middle|>No!\xc3\xa9" BEGINS CALL "f:0" ARGS "{1,2}" ENDS "<|im_end|>";

/* Token i of the answer has the i-th direction as its embedding, and the one behind it answers to that direction. */
static void write_answer(k2_model *m, const k2_tokenizer *t)
{
    k2_tokens ids;
    float *params = k2_model_params(m);
    const k2_model_layout *layout = k2_model_layout_of(m);
    const k2_param *embed = k2_model_layout_find(layout, "model.embed_tokens.weight");
    const k2_param *head = k2_model_layout_find(layout, "lm_head.weight");
    const size_t width = 32;
    k2_tokens_init(&ids, width);
    assert_int_equal(k2_tokenizer_encode_trusted(t, answer_text, sizeof answer_text - 1, &ids, NULL), K2_OK);
    for (size_t i = 0; i < ids.count; i++)
        for (size_t k = 0; k < i; k++) assert_int_not_equal(ids.ids[i], ids.ids[k]);
    for (size_t i = 0; i + 1 < ids.count; i++) {
        float *row = params + embed->offset + (size_t)ids.ids[i] * width;
        memset(row, 0, width * sizeof *row);
        row[i] = 1000;
        params[head->offset + (size_t)ids.ids[i + 1] * width + i] = 30;
    }
    k2_tokens_fini(&ids);
    k2_model_params_changed(m);
}

static const served_spec writer = {K2_SOURCE_DIR "/tests/unit/token/vectors/kimi", 1000, write_answer};

static int setup_writer(void **state)
{
    served = &writer;
    return setup_attached(state);
}

#define ASKED                                                                                                                  \
    "\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"u\"}],\"temperature\":0,"          \
    "\"max_completion_tokens\":60,\"logprobs\":true,\"return_token_ids\":true"
#define TOOLS ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"

static answer get(bool stream, const char *more)
{
    char body[2048];
    snprintf(body, sizeof body, "{%s" ASKED "%s}", stream ? "\"stream\":true,\"stream_options\":{\"include_usage\":true}," : "",
             more);
    return complete(CHAT, body, stream);
}

/* What it is without looking for calls. */
#define RAW "No!\xc3\xa9" BEGINS CALL "f:0" ARGS "{1,2}" ENDS

static void check_call(const answer *a, const char *text, const char *arguments, const char *reason, const char *stop)
{
    assert_string_equal(a->text, text);
    assert_string_equal(a->reason, reason);
    assert_string_equal(a->stop, stop);
    assert_int_equal(a->calls.count, arguments != NULL);
    if (!arguments) return;
    assert_string_equal(a->calls.list[0].id, "f:0");
    assert_string_equal(a->calls.list[0].name, "f");
    assert_string_equal(a->calls.list[0].arguments.data, arguments);
}

static void test_a_call_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *more, *text, *arguments, *reason, *stop;
    } cases[] = {
        {TOOLS, "No!\xc3\xa9", "{1,2}", "tool_calls", ""},
        {TOOLS ",\"tool_choice\":\"auto\"", "No!\xc3\xa9", "{1,2}", "tool_calls", ""},
        {TOOLS ",\"tool_choice\":\"none\"", RAW, NULL, "stop", ""},
        {"", RAW, NULL, "stop", ""},
        {",\"tools\":[]", RAW, NULL, "stop", ""},
        {TOOLS ",\"stop\":[\",2\"]", "No!\xc3\xa9", "{1", "tool_calls", ",2"},
        {TOOLS ",\"stop\":[\"!\xc3\xa9\",\"o!\"],\"include_stop_str_in_output\":true", "No!", NULL, "stop", "o!"},
        {TOOLS ",\"stop\":[\":\"]", "No!\xc3\xa9" BEGINS CALL "f", NULL, "stop", ":"},
        {TOOLS ",\"stop\":[\"<|tool_call_begin\"]", "No!\xc3\xa9" BEGINS, NULL, "stop", "<|tool_call_begin"},
        {TOOLS ",\"stop\":[\"tool_call_begin|>\"]", "No!\xc3\xa9" BEGINS "<|", NULL, "stop", "tool_call_begin|>"},
    };
    for (size_t i = 0; i < 2 * K2_COUNT(cases); i++) {
        answer a = get(i % 2, cases[i / 2].more);
        check_call(&a, cases[i / 2].text, cases[i / 2].arguments, cases[i / 2].reason, cases[i / 2].stop);
        answer_fini(&a);
    }
    char number[128];
    k2_tokens one;
    k2_tokens_init(&one, 4);
    assert_int_equal(k2_tokenizer_encode(tokenizer, "}", 1, &one, NULL), K2_OK);
    snprintf(number, sizeof number, TOOLS ",\"stop_token_ids\":[7,%d]", one.ids[0]);
    answer a = get(true, number);
    snprintf(number, sizeof number, "%d", one.ids[0]);
    check_call(&a, "No!\xc3\xa9", "{1,2", "tool_calls", number);
    assert_true(a.usage_cached > 0 && a.usage_cached == a.cached); /* the prompt has been asked about before */
    answer_fini(&a);
    k2_tokens_fini(&one);
}

static void test_the_shape_of_a_call(void **state)
{
    (void)state;
    reply r = ask("POST", CHAT, "{" ASKED TOOLS ",\"n\":2,\"stop\":[\"N\"],\"include_stop_str_in_output\":true}");
    assert_non_null(strstr(r.body.data, "\"message\":{\"role\":\"assistant\",\"content\":\"N\"}"));
    k2_buf_fini(&r.body);
    r = ask("POST", CHAT, "{" ASKED TOOLS ",\"n\":2}");
    const char *call =
                   "\"message\":{\"role\":\"assistant\",\"content\":\"No!\xc3\xa9\",\"tool_calls\":[{\"id\":\"f:0\",\"type\":"
                   "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{1,2}\"}}]}",
               *first = strstr(r.body.data, call);
    assert_non_null(first);
    assert_non_null(strstr(first + 1, call));
    assert_non_null(strstr(r.body.data, "\"finish_reason\":\"tool_calls\",\"stop_reason\":null"));
    k2_buf_fini(&r.body);
    r = ask("POST", CHAT, "{\"stream\":true," ASKED TOOLS "}");
    assert_non_null(
        strstr(r.body.data, "\"tool_calls\":[{\"index\":0,\"id\":\"f:0\",\"type\":\"function\",\"function\":{\"name\":\"f\","));
    k2_buf_fini(&r.body);
    r = ask("POST", CHAT, "{" ASKED TOOLS ",\"tool_choice\":\"required\"}");
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "\"param\":\"tool_choice\""));
    k2_buf_fini(&r.body);
}

/* ---- broken off -----------------------------------------------------------------------------------------------------------
 */

typedef struct told {
    k2_buf text;
    k2_openai_calls calls;
    size_t tokens; /* that were taken in */
    bool over;
} told;

static k2i_choice *accept(const char *body, bool chat)
{
    k2_openai_request r;
    k2_openai_error e;
    if (!k2_openai_parse_request(body, strlen(body), chat, &r, &e)) fail_msg("%s: %s", e.message, body);
    k2i_generation *g = k2i_accept(server, &r, &e);
    if (!g) fail_msg("%s", e.message);
    k2_openai_request_fini(&r);
    g->choices[0].job.len = g->choices[0].job.req.prompt_len;
    return &g->choices[0];
}

/* As if the engine had drawn these, one at a time, and each had left as an event. */
static void draw(k2i_choice *c, const int32_t *ids, size_t count, bool ends, told *out)
{
    for (size_t i = 0; i < count && !out->over; i++) {
        c->job.req.tokens[c->job.len++] = ids[i];
        c->job.finish = ends && i + 1 == count ? K2I_LENGTH : K2I_RUNNING;
        k2i_text_decode(c);
        out->tokens++;
        out->over = c->stopped || c->job.finish != K2I_RUNNING;
        const size_t text = c->text.len - c->tail - (out->over ? 0 : K2_MIN(k2i_text_held(c), c->text.len - c->tail));
        if (c->g->calls) {
            k2i_text_parse(c, text, out->over);
            k2_buf_append(&out->text, c->calls.content.data, c->calls.content.len);
            k2_openai_calls_append(&out->calls, c->calls.news.list, c->calls.news.count);
            k2i_calls_told(&c->calls);
        } else {
            k2_buf_append(&out->text, c->text.data + c->tail, text);
            k2i_text_sent(c, text);
        }
    }
}

/* What a client is told of an answer that breaks off behind its first `cut` tokens and goes on elsewhere. */
static void tell_in_two(const int32_t *ids, size_t count, size_t cut, bool tools, const char *stop, k2_buf *out)
{
    told all = {0};
    k2_buf body;
    k2_buf_init(&all.text, 1 << 16);
    k2_buf_init(&body, 1 << 16);
    k2_buf_printf(&body, "{" ASKED "%s%s}", tools ? TOOLS : "", stop);
    k2i_choice *c = accept(body.data, true);
    draw(c, ids, cut, cut == count, &all);
    if (!all.over) {
        const k2i_request *q = &c->job.req;
        k2_buf_clear(&body);
        k2_buf_printf(&body, "{\"max_tokens\":60%s,\"prompt\":[", stop);
        for (uint32_t i = 0; i < c->job.len; i++) k2_buf_printf(&body, i ? ",%d" : "%d", q->tokens[i]);
        k2_buf_printf(&body, "],\"k2\":{\"resumed\":true,\"calls\":%s,\"position\":%zu}}", tools ? "true" : "false", cut);
        draw(accept(body.data, false), ids + cut, count - cut, true, &all);
    }
    k2_buf_clear(out);
    describe(&(k2i_calls){.content = all.text, .news = all.calls}, out);
    k2_buf_printf(out, " %zu", all.tokens);
    k2_buf_fini(&all.text);
    k2_buf_fini(&body);
    k2_openai_calls_clear(&all.calls);
}

static void test_goes_on_elsewhere(void **state)
{
    (void)state;
    static const char *const stops[] = {
        "", ",\"stop\":[\"!\xc3\xa9?\",\"f:0x\",\"{1,3\",\"begin|>x\"]", ",\"stop\":[\",2}x\",\",2}\"]",
        ",\"stop\":[\"00\",\"ff\",\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"],\"include_stop_str_in_output\":true"};
    static const char pool[] = BEGINS CALL CALL "f:0" ARGS ARGS "{ 1,2}" ENDS BEGINS CALL "f:0" ARGS "\xe4\xbd\xa0 f";
    k2_tokens written, mixed;
    k2_buf whole, two;
    k2_tokens_init(&written, 64);
    k2_tokens_init(&mixed, 64);
    k2_buf_init(&whole, 1 << 16);
    k2_buf_init(&two, 1 << 16);
    assert_int_equal(k2_tokenizer_encode_trusted(tokenizer, RAW, sizeof RAW - 1, &written, NULL), K2_OK);
    assert_int_equal(k2_tokenizer_encode_trusted(tokenizer, pool, sizeof pool - 1, &mixed, NULL), K2_OK);
    for (uint64_t round = 0; round < 120; round++) {
        int32_t ids[24];
        size_t count = round == 0 ? written.count : K2_COUNT(ids), n = 0;
        for (; n < count; n++) /* mostly in the right order, so that there are calls */
            ids[n] = round == 0 ? written.ids[n]
                                : mixed.ids[(k2_rand_below(round, K2_STREAM_TEST, n, 0, 5)
                                                 ? n + round
                                                 : k2_rand_below(round, K2_STREAM_TEST, n, 1, 64)) %
                                            mixed.count];
        const char *stop = stops[round / 2 % K2_COUNT(stops)];
        tell_in_two(ids, count, count, round % 2 == 0, stop, &whole);
        for (size_t cut = 1; cut < count; cut++) {
            tell_in_two(ids, count, cut, round % 2 == 0, stop, &two);
            assert_string_equal(two.data, whole.data);
        }
        if (round == 0) assert_string_equal(whole.data, "No!\xc3\xa9 <0 f:0 f {1,2}> 17");
        k2i_generations_drop(server);
    }
    k2_tokens_fini(&written);
    k2_tokens_fini(&mixed);
    k2_buf_fini(&whole);
    k2_buf_fini(&two);
}

/* ---- prompts with scores, streamed ----------------------------------------------------------------------------------------
 */

static void test_prompt_scores_in_a_stream(void **state)
{
    (void)state;
    static const struct {
        const char *path, *asked;
    } cases[] = {{CHAT, ASKED ",\"prompt_logprobs\":2"},
                 {"/v1/completions", "\"prompt\":\"Hello\",\"max_tokens\":3,\"prompt_logprobs\":1"}};
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        char body[1024];
        snprintf(body, sizeof body, "{%s}", cases[i].asked);
        reply whole = ask("POST", cases[i].path, body);
        snprintf(body, sizeof body, "{\"stream\":true,%s}", cases[i].asked);
        reply stream = ask("POST", cases[i].path, body);
        const char *scores = strstr(whole.body.data, "\"prompt_logprobs\":[null,{"), *end = strstr(scores, "}]");
        assert_true(scores && end);
        char *wanted = k2_strndup(scores, (size_t)(end + 2 - scores)), *found = strstr(stream.body.data, wanted);
        assert_non_null(found);
        assert_true(found < strstr(stream.body.data, "\n\n")); /* in the first event, and in no other */
        assert_null(strstr(found + 2, "prompt_logprobs"));
        k2_free(wanted);
        k2_buf_fini(&whole.body);
        k2_buf_fini(&stream.body);
    }
}

/* ---- a vocabulary that is larger than the tokenizer's ---------------------------------------------------------------------
 */

/* Ids that the tokenizer does not have are likeliest of all. */
static void likely_padding(k2_model *m, const k2_tokenizer *t)
{
    (void)t;
    float *head = k2_model_params(m) + k2_model_layout_find(k2_model_layout_of(m), "lm_head.weight")->offset;
    for (size_t i = 264 * 32; i < 300 * 32; i++) head[i] *= 4;
    k2_model_params_changed(m);
}

static const served_spec padded = {NULL, 300, likely_padding};

static int setup_padded(void **state)
{
    served = &padded;
    return setup_attached(state);
}

static void test_ids_without_text(void **state)
{
    (void)state;
    const char *form = "{%s\"prompt\":[72,105,290],\"max_tokens\":20,\"seed\":1,\"logprobs\":3,\"echo\":true%s}";
    char body[256];
    uint32_t above = 0, named = 0;
    for (int stream = 0; stream < 2; stream++) {
        snprintf(body, sizeof body, form, stream ? "\"stream\":true," : "", "");
        answer a = complete("/v1/completions", body, stream);
        for (size_t i = 0; i < a.count; i++) above += a.ids[i] >= 264;
        const k2_openai_token *tokens = k2_openai_list_tokens(&a.tokens);
        assert_int_equal(a.tokens.count, 3 + a.count);
        assert_string_equal(tokens[2].text, "token_id:290");
        for (size_t i = 0; i < a.tokens.count; i++)
            for (size_t k = 0; k < tokens[i].top_count; k++) named += strncmp(tokens[i].tops[k].text, "token_id:2", 10) == 0;
        answer_fini(&a);
    }
    assert_true(above > 5 && named > 20);
    snprintf(body, sizeof body, form, "", ",\"prompt_logprobs\":3");
    reply r = ask("POST", "/v1/completions", body);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "\"290\":{\"logprob\":"));
    assert_non_null(strstr(r.body.data, "\"decoded_token\":\"token_id:290\""));
    k2_buf_fini(&r.body);
    r = ask("POST", "/v1/completions", "{\"prompt\":[300],\"max_tokens\":1}");
    assert_int_equal(r.status, 400);
    k2_buf_fini(&r.body);
}

#define WRITER(f) cmocka_unit_test_setup_teardown(f, setup_writer, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_limits),
        WRITER(test_a_call_is_found),
        WRITER(test_the_shape_of_a_call),
        WRITER(test_goes_on_elsewhere),
        WRITER(test_prompt_scores_in_a_stream),
        cmocka_unit_test_setup_teardown(test_ids_without_text, setup_padded, teardown),
    };
    return cmocka_run_group_tests_name("rollout_calls", tests, NULL, NULL);
}
