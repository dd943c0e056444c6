/* k2_json_fault: what a lenient parser would let pass. */
#include "common/base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void sound_text_has_no_fault(void **state)
{
    (void)state;
    static const char *const sound[] = {
        "",
        "{}",
        "[[[]]]",
        "{\"a\": \"\\\\u0000 is a backslash and five letters\"}",
        "\"[[[[[[[[ in a string\"",
        "\"\\\"[[[[[[\"",
        "{\n\t\"a\"\r: 1}",
        "]]]]", /* not JSON, but not for us to say */
        "\"gr\xc3\xbc\xc3\x9f\"",
    };
    for (size_t i = 0; i < K2_COUNT(sound); i++) assert_null(k2_json_fault(sound[i], strlen(sound[i]), 3));
}

static void faults_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        const char *fault;
    } cases[] = {
        {"\"\xff\"", 3, "is not UTF-8"},
        {"{\0}", 3, "holds a zero byte"},
        {"\"a\tb\"", 5, "holds a control character inside a string"},
        {"\"a\nb\"", 5, "holds a control character inside a string"},
        {"\"\\u0000\"", 8, "holds the character U+0000"},
        {"\"\\\\\\u0000\"", 10, "holds the character U+0000"},
        {"[[[[]]]]", 8, "is nested too deep"},
        {"[{\"a\":[{", 8, "is nested too deep"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++)
        assert_string_equal(k2_json_fault(cases[i].text, cases[i].n, 3), cases[i].fault);
    /* Cut anywhere, nothing is read past the end. */
    const char *whole = "{\"a\\u0000\": 1}";
    for (size_t n = 0; n < strlen(whole); n++) {
        char *cut = memcpy(k2_alloc(n + 1), whole, n);
        k2_json_fault(cut, n, 3);
        k2_free(cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_text_has_no_fault),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
