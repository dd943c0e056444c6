/* OpenAI bodies: what is accepted, what is refused and at which parameter, and that what is written is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/http/openai.h"

static k2_openai_request parse(const char *body, bool chat)
{
    k2_openai_request r;
    k2_openai_error err;
    if (!k2_openai_parse_request(body, strlen(body), chat, &r, &err)) fail_msg("%s: %s", body, err.message);
    return r;
}

static void completion(void **state)
{
    (void)state;
    k2_openai_request r =
        parse("{\"model\":\"m\",\"prompt\":\"h\\u00e9\",\"max_tokens\":7,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":-1,"
              "\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[1,2],\"logprobs\":1,\"seed\":-3,\"stream\":true,"
              "\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,\"n\":1,\"best_of\":1,\"echo\":false,"
              "\"suffix\":null,\"user\":\"u\",\"frequency_penalty\":0,\"logit_bias\":{}}",
              false);
    assert_string_equal(r.model, "m");
    assert_int_equal(r.prompt_bytes, 3);
    assert_memory_equal(r.prompt_text, "h\xc3\xa9", 4);
    assert_int_equal(r.max_tokens, 7);
    assert_true(r.temperature == 0.5 && r.top_p == 0.9 && r.top_k == 0);
    assert_int_equal(r.stop_count, 2);
    assert_int_equal(r.stop_ids[1], 2);
    assert_true(r.logprobs && r.stream && r.include_usage && r.ignore_eos && r.has_seed && !r.k2.present && !r.extra);
    assert_int_equal((int64_t)r.seed, -3);
    k2_openai_request_fini(&r);

    r = parse("{\"prompt\":[[5,6,7]],\"k2\":{\"trajectory\":\"18446744073709551615\",\"group\":9007199254740992,\"position\":4,"
              "\"digest\":\"00112233445566778899aabbccddeeff\",\"seed\":1,\"train\":true,\"repetition\":true}}",
              false);
    assert_int_equal(r.prompt_ids_count, 3);
    assert_int_equal(r.prompt_ids[2], 7);
    assert_true(r.k2.present && r.k2.train && r.k2.repetition && r.k2.has_digest && r.return_token_ids);
    assert_true(r.k2.trajectory == UINT64_MAX && r.k2.group == 9007199254740992ull && r.k2.position == 4);
    assert_true(r.k2.digest.hi == 0x0011223344556677ull);
    k2_openai_request_fini(&r);

    r = parse(" {\"prompt\":[\"one\"],\"min_token\":3,\"zzz\":[1,{\"a\":\"\\n\"}]}\n", false);
    assert_string_equal(r.prompt_text, "one");
    assert_string_equal(r.extra, "\"min_token\":3,\"zzz\":[1,{\"a\":\"\\n\"}]");
    k2_openai_error err;
    assert_false(k2_openai_refuse_extra(&r, &err));
    assert_string_equal(err.param, "min_token");
    assert_non_null(strstr(err.message, "min_tokens"));
    k2_openai_request_fini(&r);
}

/* What other engines' clients always send is taken where it asks for nothing else than we do, and is kept for a proxy to pass
 * on. */
static void other_engines_parameters(void **state)
{
    (void)state;
    static const struct {
        bool chat;
        const char *body, *message; /* NULL: taken */
    } rows[] = {
        {false,
         "{\"prompt\":\"a\",\"skip_special_tokens\":true,\"length_penalty\":1.0,\"priority\":0,\"use_beam_search\":null}",
         NULL},
        {true,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"modalities\":[\"text\"],\"continue_final_message\":false}",
         NULL},
        {false, "{\"prompt\":\"a\",\"skip_special_tokens\":false}",
         "skip_special_tokens: not supported; the only value understood is true"},
        {false, "{\"prompt\":\"a\",\"priority\":0,\"length_penalty\":1.5}",
         "length_penalty: not supported; the only value understood is 1"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"modalities\":[\"text\",\"audio\"]}",
         "modalities: not supported; the only value understood is [\"text\"]"},
        {false, "{\"prompt\":\"a\",\"add_generation_prompt\":true}", "add_generation_prompt: unknown parameter"},
        {false, "{\"prompt\":\"a\",\"skip_special_tokens\":true,\"zzz\":null}", "zzz: unknown parameter"},
        {false, "{\"prompt\":\"a\",\"\":1}", "\"\": unknown parameter"},
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        k2_openai_error err;
        k2_openai_request r = parse(rows[i].body, rows[i].chat);
        assert_non_null(r.extra);
        assert_int_equal(k2_openai_refuse_extra(&r, &err), rows[i].message == NULL);
        if (rows[i].message) assert_string_equal(err.message, rows[i].message);
        k2_openai_request_fini(&r);
    }
}

static void chat(void **state)
{
    (void)state;
    k2_openai_request r =
        parse("{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
              "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}],"
              "\"max_completion_tokens\":5,\"max_tokens\":5,\"logprobs\":true,\"top_logprobs\":0,\"tools\":[],"
              "\"tool_choice\":\"none\",\"response_format\":{\"type\":\"text\"},\"stop\":\"x\"}",
              true);
    assert_int_equal(r.message_count, 2);
    assert_string_equal(r.messages[1].role, "user");
    assert_string_equal(r.messages[1].content, "ab");
    assert_int_equal(r.max_tokens, 5);
    assert_true(r.logprobs);
    k2_openai_request_fini(&r);
}

/* Messages and tools as they stand in the request, and in the one that is passed on. */
static void tools(void **state)
{
    (void)state;
    k2_openai_error err;
    k2_openai_request r = parse("{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"name\":null,\"tool_call_id\":null,"
                                "\"tool_calls\":[{\"id\":\"i0\","
                                "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": "
                                "1}\"}},{\"id\":\"i1\",\"function\":{\"name\":\"g\","
                                "\"arguments\":\"\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"i0\",\"name\":\"f\",\"content\":["
                                "{\"type\":\"text\",\"text\":\"x\"}]}],"
                                "\"tools\":[ { \"type\" : \"function\", "
                                "\"function\":{\"strict\":null,\"name\":\"f\",\"n\":1.50}} ],\"tool_choice\":\"none\","
                                "\"parallel_tool_calls\":false}",
                                true);
    for (int again = 0; again < 2; again++) {
        const k2_openai_message *m = r.messages;
        assert_true(r.message_count == 2 && m[0].calls.count == 2 && m[1].calls.count == 0);
        assert_string_equal(m[0].content, "");
        assert_true(!m[0].name && !m[0].tool_call_id);
        assert_string_equal(m[0].calls.list[0].id, "i0");
        assert_string_equal(m[0].calls.list[0].arguments.data, "{\"a\": 1}");
        assert_string_equal(m[0].calls.list[1].name, "g");
        assert_string_equal(m[0].calls.list[1].arguments.data, "");
        assert_string_equal(m[1].content, "x");
        assert_string_equal(m[1].tool_call_id, "i0");
        assert_string_equal(m[1].name, "f");
        assert_string_equal(
            r.tools,
            "[ { \"type\" : \"function\", \"function\":{\"strict\":null,\"name\":\"f\",\"n\":1.50}} ]"); /* as it came */
        assert_true(r.tool_choice_none && r.one_call);
        k2_buf out;
        k2_buf_init(&out, 65536);
        k2_openai_write_request(&out, &r, NULL);
        k2_openai_request_fini(&r);
        if (!k2_openai_parse_request(out.data, out.len, true, &r, &err)) fail_msg("%s: %s", err.message, out.data);
        k2_buf_fini(&out);
    }
    k2_openai_request_fini(&r);
}

#define TOOL                "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
#define ASKING(more)        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]," more "}"
#define CALLING(who, calls) "{\"messages\":[{\"role\":\"" who "\",\"content\":\"a\",\"tool_calls\":" calls "}]}"

static void refused(void **state)
{
    (void)state;
    static const struct {
        bool chat;
        const char *body, *param;
    } cases[] = {
        {false, "", ""},
        {false, "[]", ""},
        {false, "{", ""},
        {false, "{\"prompt\":\"a\"} x", ""},
        {false, "{\"prompt\":\"a\\u0000b\"}", ""},
        {false, "{\"prompt\":\"\xff\"}", ""},
        {false, "{}", "prompt"},
        {false, "{\"prompt\":7}", "prompt"},
        {false, "{\"prompt\":[]}", "prompt"},
        {false, "{\"prompt\":[\"a\",\"b\"]}", "prompt"},
        {false, "{\"prompt\":[[1],[2]]}", "prompt"},
        {false, "{\"prompt\":[1,-2]}", "prompt[1]"},
        {false, "{\"prompt\":[1,2.5]}", "prompt[1]"},
        {false, "{\"prompt\":\"a\",\"prompt\":\"b\"}", "prompt"},
        {false, "{\"prompt\":\"a\",\"messages\":[]}", "messages"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":\"7\"}", "max_tokens"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":1e99}", "max_tokens"},
        {false, "{\"prompt\":\"a\",\"temperature\":-1}", "temperature"},
        {false, "{\"prompt\":\"a\",\"top_p\":0}", "top_p"},
        {false, "{\"prompt\":\"a\",\"top_p\":1.5}", "top_p"},
        {false, "{\"prompt\":\"a\",\"top_k\":-2}", "top_k"},
        {false, "{\"prompt\":\"a\",\"n\":0}", "n"},
        {false, "{\"prompt\":\"a\",\"n\":129}", "n"},
        {false, "{\"prompt\":\"a\",\"best_of\":4}", "best_of"},
        {false, "{\"prompt\":\"a\",\"echo\":1}", "echo"},
        {false, "{\"prompt\":\"a\",\"logprobs\":21}", "logprobs"},
        {false, "{\"prompt\":\"a\",\"prompt_logprobs\":-1}", "prompt_logprobs"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"echo\":true}", "echo"},
        {false, "{\"prompt\":\"a\",\"stream\":1}", "stream"},
        {false, "{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":1}}", "stream_options.include_usage"},
        {false, "{\"prompt\":\"a\",\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\",\"i\"]}", "stop"},
        {false, "{\"prompt\":\"a\",\"stop\":[\"\"]}", "stop"},
        {false, "{\"prompt\":\"a\",\"frequency_penalty\":2.5}", "frequency_penalty"},
        {false, "{\"prompt\":\"a\",\"presence_penalty\":\"1\"}", "presence_penalty"},
        {false, "{\"prompt\":\"a\",\"repetition_penalty\":0}", "repetition_penalty"},
        {false, "{\"prompt\":\"a\",\"min_p\":1.5}", "min_p"},
        {false, "{\"prompt\":\"a\",\"max_tokens\":4,\"min_tokens\":5}", "min_tokens"},
        {false, "{\"prompt\":\"a\",\"include_stop_str_in_output\":1}", "include_stop_str_in_output"},
        {false, "{\"prompt\":\"a\",\"logit_bias\":[1]}", "logit_bias"},
        {false, "{\"prompt\":\"a\",\"logit_bias\":{\"x\":1}}", "logit_bias.x"},
        {false, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":101}}", "logit_bias.5"},
        {false, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":1,\"05\":2}}", "logit_bias.05"},
        {false, "{\"prompt\":\"a\",\"seed\":1.5}", "seed"},
        {false, "{\"prompt\":\"a\",\"model\":5}", "model"},
        {false, "{\"prompt\":\"a\",\"k2\":1}", "k2"},
        {false, "{\"prompt\":\"a\",\"k2\":{\"positon\":1}}", "k2.positon"},
        {false, "{\"prompt\":\"a\",\"k2\":{\"trajectory\":\"18446744073709551616\"}}", "k2.trajectory"},
        {false, "{\"prompt\":\"a\",\"k2\":{\"trajectory\":-1}}", "k2.trajectory"},
        {false, "{\"prompt\":\"a\",\"k2\":{\"digest\":\"12\"}}", "k2.digest"},
        {false, "{\"prompt\":\"a\",\"k2\":{\"train\":1}}", "k2.train"},
        {true, "{}", "messages"},
        {true, "{\"messages\":[]}", "messages"},
        {true, "{\"messages\":[{\"role\":\"king\",\"content\":\"a\"}]}", "messages[0].role"},
        {true, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content[0]"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", "messages[0].content"},
        {true, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[]}]}", "messages[0].content"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"name\":1}]}", "messages[0].name"},
        {true, "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}", "messages[0].tool_call_id"},
        {true, "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\",\"tool_call_id\":7}]}", "messages[0].tool_call_id"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"tool_call_id\":\"x\"}]}", "messages[0].tool_call_id"},
        {true, CALLING("user", "[{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]"), "messages[0].tool_calls"},
        {true, CALLING("assistant", "{}"), "messages[0].tool_calls"},
        {true, CALLING("assistant", "[1]"), "messages[0].tool_calls[0]"},
        {true, CALLING("assistant", "[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]"), "messages[0].tool_calls[0].id"},
        {true, CALLING("assistant", "[{\"id\":\"x\",\"type\":\"code\"}]"), "messages[0].tool_calls[0].type"},
        {true, CALLING("assistant", "[{\"id\":\"x\",\"function\":{\"arguments\":\"\"}}]"),
         "messages[0].tool_calls[0].function.name"},
        {true, CALLING("assistant", "[{\"id\":\"x\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]"),
         "messages[0].tool_calls[0].function.arguments"},
        {true, ASKING("\"tools\":{}"), "tools"},
        {true, ASKING("\"tools\":[{}]"), "tools[0].type"},
        {true, ASKING("\"tools\":[{\"type\":\"code\"}]"), "tools[0].type"},
        {true, ASKING("\"tools\":[" TOOL ",{\"type\":\"function\",\"function\":{\"name\":\"\"}}]"), "tools[1].function.name"},
        {true, ASKING("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"x\":01}}]"), "tools"},
        {true, ASKING("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"x\":1,\"x\":2}}]"), "tools"},
        {true, ASKING("\"tool_choice\":\"required\""), "tool_choice"},
        {true, ASKING("\"tools\":[" TOOL "],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"),
         "tool_choice"},
        {true, ASKING("\"tools\":[" TOOL "],\"parallel_tool_calls\":false"), "parallel_tool_calls"},
        {true, ASKING("\"parallel_tool_calls\":1"), "parallel_tool_calls"},
        {true, ASKING("\"functions\":[{\"name\":\"f\"}]"), "functions"},
        {true, ASKING("\"k2\":{\"calls\":true}"), "k2.calls"},
        {false, "{\"prompt\":\"a\",\"tools\":[" TOOL "]}", "tools"},
        {false, "{\"prompt\":\"a\",\"echo\":true,\"k2\":{\"calls\":true}}", "echo"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":\"json_object\"}}",
         "response_format"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,\"max_completion_tokens\":2}",
         "max_completion_tokens"},
        {true, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":3}", "top_logprobs"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2_openai_request r;
        k2_openai_error err;
        if (k2_openai_parse_request(cases[i].body, strlen(cases[i].body), cases[i].chat, &r, &err))
            fail_msg("taken: %s", cases[i].body);
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, cases[i].param);
        assert_true(strlen(err.message) > 5);
        k2_buf out;
        k2_buf_init(&out, 4096);
        k2_openai_write_error(&out, &err);
        k2_openai_error back;
        k2_openai_read_error(out.data, out.len, 400, &back);
        assert_string_equal(back.message, err.message);
        assert_string_equal(back.param, err.param);
        k2_buf_fini(&out);
    }
}

/* Every beginning of a body is refused, none crashes. */
static void cut_bodies(void **state)
{
    (void)state;
    static const char body[] =
        "{\"prompt\":[1,2,3],\"max_tokens\":4,\"k2\":{\"trajectory\":\"9\",\"train\":true},\"stop\":[\"\\u00e9\"]}";
    for (size_t n = 0; n < sizeof body - 1; n++) {
        k2_openai_request r;
        k2_openai_error err;
        assert_false(k2_openai_parse_request(body, n, false, &r, &err));
    }
}

static void written_request_is_read(void **state)
{
    (void)state;
    k2_openai_request r = parse(
        "{\"prompt\":[5,6],\"max_tokens\":10,\"temperature\":0.1,\"seed\":\"18446744073709551615\",\"stop\":[\"\\\"q\\n\"],"
        "\"stream\":true,\"logprobs\":1,\"k2\":{\"trajectory\":\"18446744073709551615\",\"position\":2,"
        "\"digest\":\"00112233445566778899aabbccddeeff\",\"train\":true},\"min_token\":3,\"min_tokens\":5,\"min_p\":0.25,"
        "\"frequency_penalty\":0.5,\"presence_penalty\":-1,\"repetition_penalty\":1.5,\"include_stop_str_in_output\":true,"
        "\"logit_bias\":{\"7\":-100,\"9\":0.125}}",
        false);
    k2_buf out;
    k2_buf_init(&out, 65536);
    k2_openai_write_request(&out, &r, NULL);
    k2_openai_request same = parse(out.data, false);
    assert_int_equal(same.prompt_ids_count, 2);
    assert_true(same.temperature == 0.1 && same.seed == UINT64_MAX && same.k2.trajectory == UINT64_MAX &&
                same.k2.position == 2);
    assert_string_equal(same.stops[0], "\"q\n");
    assert_string_equal(same.extra, "\"min_token\":3");
    assert_true(same.min_p == 0.25 && same.frequency_penalty == 0.5 && same.presence_penalty == -1 &&
                same.repetition_penalty == 1.5 && same.include_stop && same.min_tokens == 5);
    assert_true(same.bias_count == 2 && same.bias[0].id == 7 && same.bias[1].add == 0.125);
    k2_buf again;
    k2_buf_init(&again, 65536);
    k2_openai_write_request(&again, &same, NULL);
    assert_string_equal(out.data, again.data);
    k2_openai_request_fini(&same);

    k2_buf_clear(&out);
    const uint32_t ids[] = {8, 9, 10};
    k2_openai_write_request(&out, &r, &(k2_openai_resume){.ids = ids, .ids_count = 3});
    same = parse(out.data, false);
    assert_int_equal(same.prompt_ids_count, 5);
    assert_int_equal(same.prompt_ids[4], 10);
    assert_int_equal(same.max_tokens, 7);
    assert_int_equal(same.k2.position, 5);
    k2_openai_request_fini(&same);
    k2_openai_request_fini(&r);

    r = parse("{\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9\"}],\"max_tokens\":10,\"logprobs\":true}", true);
    k2_buf_clear(&out);
    k2_openai_write_request(&out, &r, NULL);
    same = parse(out.data, true);
    assert_string_equal(same.messages[0].content, "h\xc3\xa9");
    k2_openai_request_fini(&same);
    k2_buf_clear(&out);
    const uint32_t prompt[] = {1, 2};
    k2_openai_write_request(&out, &r, &(k2_openai_resume){prompt, 2, ids, 1});
    same = parse(out.data, false);
    assert_int_equal(same.prompt_ids_count, 3);
    assert_true(same.logprobs);
    k2_openai_request_fini(&same);
    k2_openai_request_fini(&r);
    k2_buf_fini(&out);
    k2_buf_fini(&again);
}

static void check_answer(bool is_chat, bool chunk)
{
    const uint32_t ids[] = {7, 300, 2147483647}, prompt[] = {1, 2};
    const float logprobs[] = {-0.1f, -1.17549435e-38f, -INFINITY};
    k2_openai_answer a = {.chat = is_chat,
                          .id = "cmpl-1",
                          .model = "m",
                          .created = 5,
                          .text = "a\xff"
                                  "b",
                          .text_bytes = 3,
                          .ids = ids,
                          .logprobs = logprobs,
                          .count = 3,
                          .prompt_ids = prompt,
                          .prompt_ids_count = 2,
                          .finish_reason = "length",
                          .first = true,
                          .has_usage = true,
                          .prompt_tokens = 2,
                          .completion_tokens = 3,
                          .has_k2 = true,
                          .version = 1ull << 60,
                          .digest = {1, 2}};
    k2_buf out;
    k2_buf_init(&out, 65536);
    if (chunk)
        k2_openai_write_chunk(&out, &a);
    else
        k2_openai_write_answer(&out, &a);
    k2_openai_parsed p;
    k2_error err;
    k2_openai_parsed_init(&p);
    if (k2_openai_parse_answer(out.data, out.len, &p, &err) != K2_OK) fail_msg("%s: %s", err.text, out.data);
    assert_int_equal(p.a.chat, is_chat);
    assert_string_equal(p.a.id, "cmpl-1");
    assert_string_equal(p.a.text, "a\xef\xbf\xbd"
                                  "b");
    assert_string_equal(p.a.finish_reason, "length");
    assert_int_equal(p.a.count, 3);
    assert_memory_equal(p.a.ids, ids, sizeof ids);
    assert_memory_equal(p.a.logprobs, logprobs, 2 * sizeof(float));
    assert_true(p.a.logprobs[2] < -3.4e38f);
    assert_int_equal(p.a.prompt_ids_count, 2);
    assert_true(p.a.has_usage && p.a.prompt_tokens == 2 && p.a.completion_tokens == 3);
    assert_true(p.a.has_k2 && p.a.version == 1ull << 60 && k2_digest_equal(p.a.digest, a.digest));
    for (size_t n = 0; n < out.len; n++) assert_int_not_equal(k2_openai_parse_answer(out.data, n, &p, &err), K2_OK);
    k2_openai_parsed_fini(&p);
    k2_buf_fini(&out);
}

static void answers(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) check_answer(i & 1, i & 2);
}

/* Calls, why an answer ended and what was known of its prompt, written and read; in chunks that add up. */
static void calls_and_ends(void **state)
{
    (void)state;
    k2_openai_calls calls = {0}, joined = {0};
    k2_openai_parsed p;
    k2_error err;
    k2_buf out;
    k2_buf_init(&out, 65536);
    k2_openai_parsed_init(&p);
    assert_true(k2_openai_calls_add(&calls, 0, "i0", "f", "{\"a\"", 4) && k2_openai_calls_add(&calls, 1, "i1", "g", "", 0));
    k2_openai_answer a = {.chat = true,
                          .id = "c",
                          .model = "m",
                          .text = "",
                          .first = true,
                          .calls = calls.list,
                          .call_count = 2,
                          .has_k2 = true,
                          .has_cached = true,
                          .cached_tokens = 5};
    for (int piece = 0; piece < 3; piece++) {
        k2_buf_clear(&out);
        a.finish_reason = piece == 2 ? "tool_calls" : NULL;
        if (piece == 1) {
            k2_openai_calls_clear(&calls);
            assert_true(k2_openai_calls_add(&calls, 0, NULL, NULL, ":1}", 3));
            a.calls = calls.list;
            a.call_count = 1;
            a.first = false;
        }
        if (piece == 2) a.call_count = 0;
        k2_openai_write_chunk(&out, &a);
        if (k2_openai_parse_answer(out.data, out.len, &p, &err) != K2_OK) fail_msg("%s: %s", err.text, out.data);
        assert_true(p.a.has_cached == (piece == 0) && (piece > 0 || p.a.cached_tokens == 5));
        assert_true(k2_openai_calls_append(&joined, p.a.calls, p.a.call_count));
    }
    assert_int_equal(joined.count, 2);
    assert_string_equal(joined.list[0].arguments.data, "{\"a\":1}");
    assert_string_equal(joined.list[1].id, "i1");
    a.calls = joined.list;
    a.call_count = 2;
    a.has_usage = a.has_stop_id = true;
    a.stop_id = 77;
    for (int text = 0; text < 2; text++) {
        k2_buf_clear(&out);
        a.stop_text = text ? "\"end\"" : NULL;
        k2_openai_write_answer(&out, &a);
        assert_int_equal(k2_openai_parse_answer(out.data, out.len, &p, &err), K2_OK);
        assert_int_equal(p.a.call_count, 2);
        assert_string_equal(p.a.calls[0].name, "f");
        assert_string_equal(p.a.text, "");
        assert_true(p.a.has_cached && p.a.cached_tokens == 5 && p.a.has_stop_id == !text);
        if (text) assert_string_equal(p.a.stop_text, "\"end\"");
        if (!text) assert_int_equal(p.a.stop_id, 77);
    }
    for (uint32_t i = 2; i < K2_OPENAI_CALLS_MAX; i++) assert_true(k2_openai_calls_add(&joined, i, "i", "n", "", 0));
    assert_false(k2_openai_calls_add(&joined, K2_OPENAI_CALLS_MAX, "i", "n", "", 0));
    k2_openai_calls_clear(&calls);
    k2_openai_calls_clear(&joined);
    k2_openai_parsed_fini(&p);
    k2_buf_fini(&out);
}

static void floats_survive(void **state)
{
    (void)state;
    k2_openai_parsed p;
    k2_openai_parsed_init(&p);
    k2_buf out;
    k2_buf_init(&out, 65536);
    for (uint64_t i = 0; i < 2000; i++) {
        uint32_t bits = (uint32_t)k2_rand_u64(1, K2_STREAM_TEST, i, 0), id = 1;
        float v;
        memcpy(&v, &bits, sizeof v);
        if (!isfinite(v)) continue;
        k2_buf_clear(&out);
        k2_openai_write_chunk(&out,
                              &(k2_openai_answer){.id = "", .model = "", .text = "", .ids = &id, .logprobs = &v, .count = 1});
        assert_int_equal(k2_openai_parse_answer(out.data, out.len, &p, NULL), K2_OK);
        assert_memory_equal(p.a.logprobs, &v, sizeof v);
    }
    k2_openai_parsed_fini(&p);
    k2_buf_fini(&out);
}

static void others_answers(void **state)
{
    (void)state;
    k2_openai_parsed p;
    k2_error err;
    k2_openai_parsed_init(&p);
    static const char llama[] =
        "{\"choices\":[{\"text\":\"x\",\"index\":0,\"logprobs\":null,\"finish_reason\":null}],\"created\":1.5,\"model\":\"g\","
        "\"object\":\"text_completion\",\"id\":\"c\",\"timings\":{}}";
    assert_int_equal(k2_openai_parse_answer(llama, sizeof llama - 1, &p, &err), K2_OK);
    assert_null(p.a.ids);
    assert_null(p.a.logprobs);
    assert_null(p.a.finish_reason);
    static const char usage[] = "{\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}";
    assert_int_equal(k2_openai_parse_answer(usage, sizeof usage - 1, &p, &err), K2_OK);
    assert_true(p.a.has_usage && p.a.completion_tokens == 4);
    static const char error[] = "{\"error\":{\"message\":\"out of cards\",\"code\":500}}";
    assert_int_equal(k2_openai_parse_answer(error, sizeof error - 1, &p, &err), K2_PEER_REFUSED);
    assert_string_equal(err.text, "out of cards");
    static const char *const bad[] = {
        "",
        "1",
        "{\"choices\":1}",
        "{\"choices\":[{\"text\":1}]}",
        "{\"choices\":[{\"text\":\"\",\"token_ids\":[-1]}]}",
        "{\"choices\":[{\"text\":\"\",\"token_ids\":[1,2],\"logprobs\":{\"token_logprobs\":[1]}}]}",
        "{\"choices\":[{\"message\":{\"content\":\"\",\"tool_calls\":{}}}]}",
        "{\"choices\":[{\"message\":{\"content\":\"\",\"tool_calls\":[1]}}]}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":-1}]}}]}",
        "{\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":{}}}]}}]}",
        "{\"choices\":[{\"text\":\"\",\"stop_reason\":true}]}",
        "{\"choices\":[],\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":\"x\"}}}",
        "{\"choices\":[{\"text\":\"\"}],\"k2\":{\"version\":1}}"};
    for (size_t i = 0; i < K2_COUNT(bad); i++)
        assert_int_equal(k2_openai_parse_answer(bad[i], strlen(bad[i]), &p, &err), K2_PEER_PROTOCOL);
    k2_openai_parsed_fini(&p);
}

static void health(void **state)
{
    (void)state;
    k2_buf out;
    uint64_t version = 0;
    k2_digest d = {0, 0};
    k2_buf_init(&out, 1000);
    k2_openai_write_health(&out, true, UINT64_MAX, (k2_digest){3, 4});
    assert_true(k2_openai_read_health(out.data, out.len, &version, &d));
    assert_true(version == UINT64_MAX && d.hi == 3 && d.lo == 4);
    k2_buf_clear(&out);
    k2_openai_write_health(&out, false, 0, d);
    assert_false(k2_openai_read_health(out.data, out.len, &version, &d));
    assert_false(k2_openai_read_health("", 0, &version, &d));
    assert_false(k2_openai_read_health("OK", 2, &version, &d));
    k2_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(completion),
                                       cmocka_unit_test(other_engines_parameters),
                                       cmocka_unit_test(chat),
                                       cmocka_unit_test(tools),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(cut_bodies),
                                       cmocka_unit_test(written_request_is_read),
                                       cmocka_unit_test(answers),
                                       cmocka_unit_test(calls_and_ends),
                                       cmocka_unit_test(floats_survive),
                                       cmocka_unit_test(others_answers),
                                       cmocka_unit_test(health)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
