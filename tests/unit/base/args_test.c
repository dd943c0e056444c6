/* Command lines: values, flags, operands and what is refused. */
#include "common/base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef struct line {
    bool flag, help;
    uint32_t u32;
    uint64_t u64;
    const char *text;
    char taken[64]; /* the values of --take, one behind another */
    char *args[8];
    int operands;
    k2_error err;
} line;

static k2_code take(void *arg, const char *value, k2_error *err)
{
    line *l = arg;
    if (strcmp(value, "bad") == 0) return k2_error_set(err, K2_LIMIT, "--take: bad");
    strcat(l->taken, value);
    return K2_OK;
}

static k2_code parse(line *l, bool operands, const char *const *words)
{
    int count = 0;
    *l = (line){.u64 = 7};
    const k2_option options[] = {{.name = "--flag", .flag = &l->flag},
                                 {.name = "--small", .u32 = &l->u32},
                                 {.name = "--large", .u64 = &l->u64},
                                 {.name = "--text", .text = &l->text},
                                 {.name = "--take", .take = take, .arg = l}};
    for (; words[count]; count++) l->args[count] = (char *)(uintptr_t)words[count];
    return k2_args_parse(l->args, count, options, K2_COUNT(options), operands ? &l->operands : NULL, &l->help, &l->err);
}
#define PARSE(l, operands, ...) parse(l, operands, (const char *const[]){__VA_ARGS__, NULL})

static void values(void **state)
{
    (void)state;
    line l;
    assert_int_equal(PARSE(&l, false, "--flag", "--small", "4294967295", "--large=18446744073709551615", "--text="), K2_OK);
    assert_true(l.flag);
    assert_int_equal(l.u32, UINT32_MAX);
    assert_true(l.u64 == UINT64_MAX);
    assert_string_equal(l.text, "");
    assert_int_equal(PARSE(&l, false, "--text", "--flag", "--take=a=b", "--take", "c"), K2_OK);
    assert_string_equal(l.text, "--flag"); /* the word behind is the value, whatever it looks like */
    assert_string_equal(l.taken, "a=bc");
    assert_false(l.flag);
    assert_true(l.u64 == 7);
}

static void operands_come_to_the_front(void **state)
{
    (void)state;
    line l;
    assert_int_equal(PARSE(&l, true, "--flag", "a", "--text", "t", "-", "--", "--flag", "-h"), K2_OK);
    assert_int_equal(l.operands, 4);
    assert_string_equal(l.args[0], "a");
    assert_string_equal(l.args[1], "-");
    assert_string_equal(l.args[2], "--flag");
    assert_string_equal(l.args[3], "-h");
    assert_false(l.help);
}

static void help_ends_the_parse(void **state)
{
    (void)state;
    line l;
    assert_int_equal(PARSE(&l, false, "--flag", "-h", "--frob"), K2_OK);
    assert_true(l.help);
    assert_int_equal(PARSE(&l, false, "--help", "extra"), K2_OK);
    assert_true(l.help);
    assert_int_equal(PARSE(&l, false, "--text", "--help"), K2_OK);
    assert_false(l.help);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *words[4], *says;
        k2_code code;
    } cases[] = {
        {{"--flog"}, "unknown option --flog; did you mean --flag?", K2_BAD_INPUT},
        {{"--hepl"}, "did you mean --help?", K2_BAD_INPUT},
        {{"--zzzzzzzz"}, "unknown option --zzzzzzzz", K2_BAD_INPUT},
        {{"-x"}, "unknown option -x", K2_BAD_INPUT},
        {{"--flag=1"}, "--flag takes no value", K2_BAD_INPUT},
        {{"--text"}, "--text: a value is missing", K2_BAD_INPUT},
        {{"--large", "-1"}, "--large: found \"-1\", expected a whole number", K2_BAD_INPUT},
        {{"--small", "4294967296"}, "--small: found \"4294967296\"", K2_BAD_INPUT},
        {{"--take", "bad"}, "--take: bad", K2_LIMIT},
        {{"extra"}, "found \"extra\", expected options only", K2_BAD_INPUT},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        line l;
        assert_int_equal(parse(&l, false, cases[i].words), cases[i].code);
        if (!strstr(l.err.text, cases[i].says)) fail_msg("case %zu: \"%s\"", i, l.err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(values), cmocka_unit_test(operands_come_to_the_front),
                                       cmocka_unit_test(help_ends_the_parse), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("args", tests, NULL, NULL);
}
