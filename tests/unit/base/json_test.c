/* JSON as text: what a lenient parser would let pass, and one form for all that says the same. */
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

static void one_form(void **state)
{
    (void)state;
    /* The right side is what Python's json.dumps makes of json.loads of the left one. */
    static const struct {
        const char *text, *sorted;
    } cases[] = {
        {" { \"b\" : [ 1 , 2.50 , -0 , -0.0 ] , \"a\" : { } } ", "{\"a\":{},\"b\":[1,2.5,0,-0.0]}"},
        {"[1.0,100000.0,1e5,1e15,1e16,1E-5,0.0001,123456789012345678901234567890,0.1,1e400,-1e999,5e-324,1."
         "7976931348623157e308]",
         "[1.0,100000.0,100000.0,1000000000000000.0,1e+16,1e-05,0.0001,123456789012345678901234567890,0.1,Infinity,-Infinity,"
         "5e-324,1.7976931348623157e+308]"},
        {"[2.675,1234567.891,0.30000000000000004,9007199254740993.0,123456789.123456789]",
         "[2.675,1234567.891,0.30000000000000004,9007199254740992.0,123456789.12345679]"},
        /* powers of two: the nearest digits of that length are another double's */
        {"[7.1671831749689735e103,-4.8878981815993675e-150,6.0834930121445114e-210,9007199254740992.0,1e23,9.5e-322]",
         "[7.167183174968974e+103,-4.887898181599368e-150,6.083493012144512e-210,9007199254740992.0,1e+23,9.5e-322]"},
        {"\"\\u00e9\\ud83d\\udc4d\\/\\u0041\\n\\u001F\\u007f\"", "\"\xc3\xa9\xf0\x9f\x91\x8d/A\\n\\u001f\x7f\""},
        {"{\"\\u00e9\":1,\"z\":2,\"Z\":3,\"\":4,\"zz\":5,\"\\ud83d\\udc4d\":6,\"\\uff5e\":7}",
         "{\"\":4,\"Z\":3,\"z\":2,\"zz\":5,\"\xc3\xa9\":1,\"\xef\xbd\x9e\":7,\"\xf0\x9f\x91\x8d\":6}"},
        {"[true,false,null,[[]],\"\"]", "[true,false,null,[[]],\"\"]"},
    };
    static const char *const wrong[] = {"",
                                        " ",
                                        "{",
                                        "[1,]",
                                        "[,1]",
                                        "{\"a\"}",
                                        "{\"a\":1,}",
                                        "{\"a\":1,\"a\":2}",
                                        "{\"a\":1,\"\\u0061\":2}",
                                        "01",
                                        "1.",
                                        ".5",
                                        "+1",
                                        "-",
                                        "1e",
                                        "tru",
                                        "nul",
                                        "\"a",
                                        "\"\\x\"",
                                        "\"\\ud800\"",
                                        "\"\\udc00\"",
                                        "\"\\u12g4\"",
                                        "\"\t\"",
                                        "1 2",
                                        "\"\xff\"",
                                        "\"\\uG000\"",
                                        "NaN",
                                        "[1 2]",
                                        "{1:2}"};
    k2_buf out, again;
    k2_buf_init(&out, 4096);
    k2_buf_init(&again, 4096);
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2_buf_clear(&out);
        if (!k2_json_sorted(cases[i].text, strlen(cases[i].text), &out)) fail_msg("%s", cases[i].text);
        assert_string_equal(out.data, cases[i].sorted);
        k2_buf_clear(&again);
        if (strstr(out.data, "Infinity")) continue;
        assert_true(k2_json_sorted(out.data, out.len, &again));
        assert_string_equal(again.data, out.data);
    }
    k2_buf_clear(&out);
    k2_buf_puts(&out, "before");
    for (size_t i = 0; i < K2_COUNT(wrong); i++) {
        if (k2_json_sorted(wrong[i], strlen(wrong[i]), &out)) fail_msg("%s", wrong[i]);
        assert_string_equal(out.data, "before");
    }
    k2_buf_fini(&out);
    k2_buf_fini(&again);
}

static void members_are_found(void **state)
{
    (void)state;
    const char *text = " {\"x\":{\"tools\":1},\"to\\u006fls\" : [ {} ] ,\"y\":\"tools\"} ", *value;
    size_t n;
    assert_true(k2_json_member(text, strlen(text), "tools", &value, &n));
    assert_int_equal(n, 6);
    assert_memory_equal(value, "[ {} ]", 6);
    assert_false(k2_json_member(text, strlen(text), "z", &value, &n));
    assert_false(k2_json_member("[1]", 3, "z", &value, &n));
    assert_false(k2_json_member("{\"z\":", 5, "z", &value, &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sound_text_has_no_fault),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(one_form),
        cmocka_unit_test(members_are_found),
    };
    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
