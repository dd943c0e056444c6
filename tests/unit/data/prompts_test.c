/* prompts: what a right file gives, and one clear "file:line" error for each kind of wrong one. */
#include "common/data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <math.h>

static k2_code parse(const char *text, size_t n, const k2_prompts_limits *limits, k2_prompts **out, k2_error *err)
{
    memset(err, 0, sizeof *err);
    return k2_prompts_parse("p.jsonl", text, n, limits, out, err);
}

static void a_right_file(void **state)
{
    (void)state;
    static const char text[] =
        "{\"prompt\": \"2+2?\", \"answer\": \"4\"}\n"
        "\n"
        "{\"id\":\"gr\xc3\xbc\",\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
        "{\"role\":\"user\",\"content\":\"u\\n\\\"q\\\"\"}],\"answer\":\"\",\"level\":[1,{\"x\":null}]}\r\n"
        "  \t \r\n"
        "  {\"answer\":\"\\u00e9\",\"prompt\":\"\"}  ";
    k2_prompts *p = NULL;
    k2_error err;
    assert_int_equal(parse(text, strlen(text), NULL, &p, &err), K2_OK);
    assert_int_equal(k2_prompts_count(p), 3);
    const k2_prompt *a = k2_prompts_at(p, 0), *b = k2_prompts_at(p, 1), *c = k2_prompts_at(p, 2);
    assert_string_equal(a->id, "line-1");
    assert_int_equal(a->message_count, 1);
    assert_string_equal(a->messages[0].role, "user");
    assert_string_equal(a->messages[0].content, "2+2?");
    assert_string_equal(a->answer, "4");
    assert_string_equal(b->id, "gr\xc3\xbc");
    assert_int_equal(b->line, 3);
    assert_int_equal(b->message_count, 2);
    assert_string_equal(b->messages[0].role, "system");
    assert_string_equal(b->messages[1].content, "u\n\"q\"");
    assert_string_equal(b->answer, "");
    assert_non_null(strstr(b->json, "\"level\":[1,{\"x\":null}]"));
    assert_int_equal(strlen(b->json), b->json_bytes);
    assert_string_equal(c->id, "line-5");
    assert_string_equal(c->answer, "\xc3\xa9");
    assert_string_equal(c->messages[0].content, "");
    k2_prompts_free(p);
    k2_prompts_free(NULL);
}

static void tools(void **state)
{
    (void)state;
#define TOOLS "\"tools\":[{\"type\":\"function\", \"function\":{\"name\":\"f\",\"a\":1e15}}]"
    static const char text[] =
        "{\"prompt\":\"p\",\"answer\":\"\"," TOOLS "}\n{\"answer\":\"\"," TOOLS
        ",\"messages\":[{\"role\":\"user\",\"name\":\"ann\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
        "\"text\",\"text\":\"bc\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"i\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"7\"}]}\n"
        "{\"prompt\":\"p\",\"answer\":\"\",\"tools\":[]}";
    k2_prompts *p = NULL;
    k2_error err;
    if (parse(text, strlen(text), NULL, &p, &err) != K2_OK) fail_msg("%s", err.text);
    const k2_prompt *a = k2_prompts_at(p, 0), *b = k2_prompts_at(p, 1);
    assert_string_equal(a->tools, "[{\"function\":{\"a\":1000000000000000.0,\"name\":\"f\"},\"type\":\"function\"}]");
    assert_ptr_equal(a->tools, b->tools);
    assert_null(k2_prompts_at(p, 2)->tools);
    assert_int_equal(b->message_count, 3);
    assert_string_equal(b->messages[0].content, "abc");
    assert_string_equal(b->messages[0].name, "ann");
    assert_string_equal(b->messages[1].content, "");
    assert_int_equal(b->messages[1].call_count, 1);
    assert_string_equal(b->messages[1].calls[0].id, "i");
    assert_string_equal(b->messages[1].calls[0].arguments, "{}");
    assert_string_equal(b->messages[2].tool_call_id, "i");
    k2_prompts_free(p);
}

static k2_digest fingerprint(const char *text)
{
    k2_prompts *p = NULL;
    k2_error err;
    assert_int_equal(parse(text, strlen(text), NULL, &p, &err), K2_OK);
    k2_digest d = k2_prompts_fingerprint(p);
    k2_prompts_free(p);
    return d;
}

static void fingerprints(void **state)
{
    (void)state;
#define ONE "{\"prompt\":\"a\",\"answer\":\"b\"}"
#define TWO "{\"prompt\":\"c\",\"answer\":\"d\"}"
    const k2_digest d = fingerprint(ONE "\n" TWO "\n");
    assert_true(k2_digest_equal(d, fingerprint(ONE "\r\n\n" TWO)));
    assert_false(k2_digest_equal(d, fingerprint(TWO "\n" ONE "\n")));
    assert_false(k2_digest_equal(d, fingerprint(ONE "\n")));
    assert_false(k2_digest_equal(d, fingerprint(ONE "\n{\"prompt\":\"c\",\"answer\":\"e\"}\n")));
}

#define GOOD "{\"prompt\":\"p\",\"answer\":\"a\"}\n"

static void wrong_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "p.jsonl: holds no prompt"},
        {"\n \n\t\r\n", "p.jsonl: holds no prompt"},
        {GOOD "{\"prompt\":\"p\",\"answer\":\"a\"", "p.jsonl:2: is not JSON: stops making sense at column 26"},
        {GOOD "nonsense\n", "p.jsonl:2: is not JSON: stops making sense at column 1"},
        {GOOD GOOD "\xff\n", "p.jsonl:3: the line is not UTF-8"},
        {"{\"prompt\":\"\xc3\",\"answer\":\"a\"}", "p.jsonl:1: the line is not UTF-8"},
        {"[1]\n", "p.jsonl:1: is a list, expected an object"},
        {"null", "p.jsonl:1: is null, expected an object"},
        {"{\"prompt\":\"p\",\"answer\":\"a\"} {}", "p.jsonl:1: text behind the JSON value at column 29"},
        {"{\"prompt\":\"p\"}", "p.jsonl:1: \"answer\" is missing"},
        {"{\"answer\":\"a\"}", "p.jsonl:1: none of \"messages\" and \"prompt\" is there, expected one of them"},
        {"{\"prompt\":\"p\",\"messages\":[],\"answer\":\"a\"}",
         "p.jsonl:1: both of \"messages\" and \"prompt\" are there, expected one of them"},
        {"{\"prompt\":7,\"answer\":\"a\"}", "p.jsonl:1: prompt is a number, expected a string"},
        {"{\"prompt\":\"p\",\"answer\":4}", "p.jsonl:1: answer is a number, expected a string"},
        {"{\"prompt\":\"p\",\"answer\":null}", "p.jsonl:1: answer is null, expected a string"},
        {"{\"id\":1,\"prompt\":\"p\",\"answer\":\"a\"}", "p.jsonl:1: id is a number, expected a string"},
        {"{\"id\":\"\",\"prompt\":\"p\",\"answer\":\"a\"}", "p.jsonl:1: id has 0 bytes, expected 1 to 128"},
        {"{\"prompt\":\"p\",\"prompt\":\"q\",\"answer\":\"a\"}", "p.jsonl:1: \"prompt\" is there twice"},
        {"{\"messages\":{},\"answer\":\"a\"}", "p.jsonl:1: messages is an object, expected a list"},
        {"{\"messages\":[],\"answer\":\"a\"}", "p.jsonl:1: messages is empty"},
        {"{\"messages\":[3],\"answer\":\"a\"}", "p.jsonl:1: messages[0] is a number, expected an object"},
        {"{\"messages\":[{\"content\":\"c\"}],\"answer\":\"a\"}", "p.jsonl:1: messages[0].role is missing"},
        {"{\"messages\":[{\"role\":\"user\"}],\"answer\":\"a\"}", "p.jsonl:1: messages[0].content is missing"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].content[0]: only parts of type \"text\" are understood"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].content is null, expected a string"},
        {"{\"messages\":[{\"role\":\"king\",\"content\":\"c\"}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].role is \"king\", expected \"system\", \"user\", \"assistant\" or \"tool\""},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"c\"}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].tool_call_id is missing: a tool's message says which call it answers"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"c\",\"tool_call_id\":\"x\"}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].tool_call_id is a tool's message's alone"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"c\",\"tool_calls\":[{}]}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].tool_calls: only an assistant's message may have them"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].tool_calls[0].id: expected a string of at least one byte"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"i\",\"function\":{\"name\":\"f\",\"arguments\":{}}}]"
         "}],"
         "\"answer\":\"a\"}",
         "p.jsonl:1: messages[0].tool_calls[0].function.arguments: expected a string that holds JSON"},
        {"{\"prompt\":\"p\",\"answer\":\"a\",\"tools\":{}}", "p.jsonl:1: tools: expected a list of up to 1024"},
        {"{\"prompt\":\"p\",\"answer\":\"a\",\"tools\":[{\"type\":\"function\"}]}",
         "p.jsonl:1: tools[0]: expected type \"function\" and function.name"},
        {"{\"prompt\":\"p\",\"answer\":\"a\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"a\":1,\"a\":2}}]"
         "}",
         "p.jsonl:1: tools: no JSON in the strict sense, or a name twice in an object"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"c\"}],\"answer\":\"a\"}",
         "p.jsonl:1: messages[1].role is \"assistant\", but the last message must be a user's or a tool's"},
        {"{\"prompt\":\"a\\u0000b\",\"answer\":\"a\"}", "p.jsonl:1: the line holds the character U+0000"},
        {"{\"prompt\":\"a\tb\",\"answer\":\"a\"}", "p.jsonl:1: the line holds a control character inside a string"},
        {"{\"id\":\"x\",\"prompt\":\"p\",\"answer\":\"a\"}\n{\"id\":\"y\",\"prompt\":\"p\",\"answer\":\"a\"}\n"
         "{\"id\":\"x\",\"prompt\":\"q\",\"answer\":\"a\"}\n{\"id\":\"y\",\"prompt\":\"p\",\"answer\":\"a\"}",
         "p.jsonl:3: id \"x\" was given before, at line 1"},
        {GOOD "{\"id\":\"line-1\",\"prompt\":\"p\",\"answer\":\"a\"}", "p.jsonl:2: id \"line-1\" was given before, at line 1"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2_prompts *p = NULL;
        k2_error err;
        assert_int_equal(parse(cases[i].text, strlen(cases[i].text), NULL, &p, &err), K2_BAD_INPUT);
        assert_string_equal(err.text, cases[i].error);
        assert_null(p);
    }
}

static void caps(void **state)
{
    (void)state;
    k2_prompts *p = NULL;
    k2_error err;
    const char *three = GOOD GOOD GOOD;
    const k2_prompts_limits two = {.prompts_max = 2}, short_line = {.line_bytes_max = strlen(GOOD) - 2},
                            short_file = {.file_bytes_max = 10},
                            exact = {.prompts_max = 3, .line_bytes_max = strlen(GOOD) - 1, .file_bytes_max = 3 * strlen(GOOD)};
    assert_int_equal(parse(three, strlen(three), &two, &p, &err), K2_LIMIT);
    assert_string_equal(err.text, "p.jsonl:3: more than 2 prompts");
    assert_int_equal(parse(three, strlen(three), &short_line, &p, &err), K2_LIMIT);
    assert_string_equal(err.text, "p.jsonl:1: a line of 27 bytes, at most 26 are accepted");
    assert_int_equal(parse(three, strlen(three), &short_file, &p, &err), K2_LIMIT);
    assert_null(p);
    assert_int_equal(parse(three, strlen(three), &exact, &p, &err), K2_OK);
    k2_prompts_free(p);
    p = NULL;

    /* Turns, id length, nesting. */
    k2_buf b;
    k2_buf_init(&b, 1u << 20);
    k2_buf_puts(&b, "{\"answer\":\"a\",\"messages\":[");
    for (unsigned i = 0; i <= K2_DATA_MESSAGES_MAX; i++)
        k2_buf_puts(&b, i ? ",{\"role\":\"user\",\"content\":\"c\"}" : "{\"role\":\"user\",\"content\":\"c\"}");
    k2_buf_puts(&b, "]}");
    assert_int_equal(parse(b.data, b.len, NULL, &p, &err), K2_LIMIT);
    assert_string_equal(err.text, "p.jsonl:1: messages holds more than 256");
    k2_buf_clear(&b);
    k2_buf_printf(&b, "{\"id\":\"%0129d\",\"prompt\":\"p\",\"answer\":\"a\"}", 1);
    assert_int_equal(parse(b.data, b.len, NULL, &p, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "id has 129 bytes"));
    k2_buf_clear(&b);
    k2_buf_puts(&b, "{\"prompt\":\"p\",\"answer\":\"a\",\"x\":");
    for (int i = 0; i < 5000; i++) k2_buf_puts(&b, "[");
    assert_int_equal(parse(b.data, b.len, NULL, &p, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "p.jsonl:1: the line is nested too deep");
    k2_buf_fini(&b);
    assert_null(p);
}

static void answers_may_be_optional(void **state)
{
    (void)state;
    const k2_prompts_limits optional = {.answer_optional = true};
    const char *text = "{\"prompt\":\"p\"}\n" GOOD;
    k2_prompts *p = NULL;
    k2_error err;
    assert_int_equal(parse(text, strlen(text), &optional, &p, &err), K2_OK);
    assert_null(k2_prompts_at(p, 0)->answer);
    assert_string_equal(k2_prompts_at(p, 1)->answer, "a");
    k2_prompts_free(p);
}

/* What is no number counts as none: files of others may say "hard". Twice is an error as everywhere. */
static void difficulties(void **state)
{
    (void)state;
    const char *text = "{\"prompt\":\"p\",\"answer\":\"a\",\"difficulty\":-2.5}\n{\"prompt\":\"p\",\"answer\":\"a\","
                       "\"difficulty\":\"hard\"}\n" GOOD;
    const char *twice = "{\"prompt\":\"p\",\"answer\":\"a\",\"difficulty\":1,\"difficulty\":1}\n";
    k2_prompts *p = NULL;
    k2_error err;
    assert_int_equal(parse(text, strlen(text), NULL, &p, &err), K2_OK);
    assert_true(k2_prompts_at(p, 0)->difficulty == -2.5);
    assert_true(isnan(k2_prompts_at(p, 1)->difficulty) != 0 && isnan(k2_prompts_at(p, 2)->difficulty) != 0);
    k2_prompts_free(p);
    p = NULL;
    assert_int_equal(parse(twice, strlen(twice), NULL, &p, &err), K2_BAD_INPUT);
    assert_null(p);
}

/* Cut at every byte: either an error, or fewer prompts; never more than there were, never a crash. */
static void cut_anywhere(void **state)
{
    (void)state;
    const char *text =
        GOOD "{\"id\":\"b\",\"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9\\ud83d\\ude00\"}],\"answer\":\"x\"}\n";
    for (size_t n = 0; n <= strlen(text); n++) {
        char *cut = memcpy(k2_alloc(n + 1), text, n);
        k2_prompts *p = NULL;
        k2_error err;
        if (parse(cut, n, NULL, &p, &err) == K2_OK)
            assert_in_range(k2_prompts_count(p), 1, 2);
        else
            assert_true(strncmp(err.text, "p.jsonl", 7) == 0);
        k2_prompts_free(p);
        k2_free(cut);
    }
}

static void files(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2_prompts_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/p.jsonl", dir);
    k2_prompts *p = NULL;
    k2_error err;
    assert_int_equal(k2_prompts_load(path, NULL, &p, &err), K2_NOT_FOUND);
    assert_non_null(strstr(err.text, path));
    assert_int_equal(k2_prompts_load(dir, NULL, &p, &err), K2_BAD_INPUT);
    assert_int_equal(k2_file_write_atomic(path, GOOD, strlen(GOOD), &err), K2_OK);
    assert_int_equal(k2_prompts_load(path, NULL, &p, &err), K2_OK);
    assert_int_equal(k2_prompts_count(p), 1);
    k2_prompts_free(p);
    k2_free(path);
    assert_int_equal(k2_dir_remove(dir, &err), K2_OK);
}

static void many(void **state)
{
    (void)state;
    k2_buf b;
    k2_buf_init(&b, 1u << 24);
    for (int i = 0; i < 20000; i++) k2_buf_printf(&b, "{\"id\":\"p%d\",\"prompt\":\"%d\",\"answer\":\"%d\"}\n", i, i, -i);
    k2_prompts *p = NULL;
    k2_error err;
    assert_int_equal(parse(b.data, b.len, NULL, &p, &err), K2_OK);
    assert_int_equal(k2_prompts_count(p), 20000);
    assert_string_equal(k2_prompts_at(p, 19999)->messages[0].content, "19999");
    assert_string_equal(k2_prompts_at(p, 7)->messages[0].content, "7");
    k2_prompts_free(p);
    k2_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_file), cmocka_unit_test(tools),
        cmocka_unit_test(fingerprints), cmocka_unit_test(wrong_lines),
        cmocka_unit_test(caps),         cmocka_unit_test(cut_anywhere),
        cmocka_unit_test(files),        cmocka_unit_test(answers_may_be_optional),
        cmocka_unit_test(difficulties), cmocka_unit_test(many),
    };
    return cmocka_run_group_tests_name("prompts", tests, NULL, NULL);
}
