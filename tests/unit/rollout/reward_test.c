/* reward - matches, and the reading and writing of score requests and of the command's lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "rollout/reward_int.h"

static void test_exact(void **state)
{
    (void)state;
    assert_true(k2i_reward_exact("42", "42") == 1);
    assert_true(k2i_reward_exact(" 42\n", "\t42") == 1);
    assert_true(k2i_reward_exact("4 2", "42") == 0);
    assert_true(k2i_reward_exact("", " ") == 1);
    assert_true(k2i_reward_exact("42", "") == 0);
    assert_true(k2i_reward_exact("a", "A") == 0);
}

static void test_last_number(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool found;
        double value;
    } cases[] = {
        {"the answer is 42.", true, 42},
        {"12-5", true, 5},
        {"is -5", true, -5},
        {"(-5)", true, -5},
        {"x=-0.5", true, -0.5},
        {"1,234,567", true, 1234567},
        {"1,23", true, 23},
        {"12345,678", true, 678},
        {"1e3", true, 1000},
        {"2.5E-1 m", true, 0.25},
        {"3e", true, 3},
        {"7 e5", true, 5},
        {".5", true, 0.5},
        {"a.5", true, 5},
        {"no", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"1e999", false, 0},
        {"4 1e999", true, 4},
        {"1,2345", true, 2345},
        {"3.", true, 3},
        {"v1.2.3", true, 3},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        double v = 0;
        if (k2i_last_number(cases[i].text, &v) != cases[i].found || v != cases[i].value)
            fail_msg("\"%s\" gave %g", cases[i].text, v);
    }
}

static void test_numeric(void **state)
{
    (void)state;
    double r = 9;
    char detail[K2I_SCORE_DETAIL_MAX];
    assert_true(k2i_reward_numeric("so 1,000", "#### 1000", 1e-6, &r, detail) && r == 1 && !detail[0]);
    assert_true(k2i_reward_numeric("999", "1000", 1e-6, &r, detail) && r == 0);
    assert_true(k2i_reward_numeric("999", "1000", 1e-2, &r, detail) && r == 1);
    assert_true(k2i_reward_numeric("0", "-0", 0, &r, detail) && r == 1);
    assert_true(k2i_reward_numeric("none", "1", 0, &r, detail) && r == 0 && strstr(detail, "no number"));
    assert_false(k2i_reward_numeric("1", "one", 0, &r, detail));
    assert_non_null(strstr(detail, "\"one\""));
}

static void test_batch(void **state)
{
    (void)state;
    const char *body =
        "{\"items\":[{\"trajectory\":7,\"text\":\"a\\\"b\",\"prompt\":\"p\",\"answer\":null,\"meta\":{\"k\":[1]}},"
        "{\"trajectory\":\"18446744073709551615\",\"text\":\"\"}]}";
    k2i_score_batch b;
    k2_openai_error err;
    assert_true(k2i_score_parse(body, strlen(body), &b, &err));
    assert_int_equal(b.count, 2);
    assert_string_equal(b.items[0].text, "a\"b");
    assert_string_equal(b.items[0].meta, "{\"k\":[1]}");
    assert_string_equal(b.items[1].answer, "");
    assert_true(b.items[1].trajectory == UINT64_MAX);
    k2_buf out;
    k2_buf_init(&out, 1 << 16);
    k2i_score_write_item(&b.items[0], &out);
    assert_string_equal(out.data,
                        "{\"trajectory\":7,\"prompt\":\"p\",\"text\":\"a\\\"b\",\"answer\":\"\",\"meta\":{\"k\":[1]}}\n");
    k2_buf_clear(&out);
    b.scores[0].ok = true;
    b.scores[0].reward = 0.1;
    strcpy(b.scores[1].detail, "why");
    k2i_score_write(&b, &out);
    assert_string_equal(out.data, "{\"scores\":[{\"trajectory\":7,\"reward\":0.10000000000000001,\"detail\":\"\"},"
                                  "{\"trajectory\":\"18446744073709551615\",\"reward\":null,\"detail\":\"why\"}]}");
    k2_buf_fini(&out);
    k2i_score_batch_fini(&b);
}

static void test_bad_batches(void **state)
{
    (void)state;
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"", ""},
        {"nonsense", ""},
        {"{\"items\":[]} x", ""},
        {"{\"items\":3}", "items"},
        {"{}", "items"},
        {"{\"items\":[1]}", "items[0].trajectory"},
        {"{\"items\":[{\"text\":\"a\"}]}", "items[0].trajectory"},
        {"{\"items\":[{\"trajectory\":-1,\"text\":\"a\"}]}", "items[0].trajectory"},
        {"{\"items\":[{\"trajectory\":1.5,\"text\":\"a\"}]}", "items[0].trajectory"},
        {"{\"items\":[{\"trajectory\":1e300,\"text\":\"a\"}]}", "items[0].trajectory"},
        {"{\"items\":[{\"trajectory\":1,\"text\":\"\"},{\"trajectory\":2}]}", "items[1].text"},
        {"{\"items\":[{\"trajectory\":1,\"text\":\"\",\"answer\":3}]}", "items[0].answer"},
        {"{\"items\":[{\"trajectory\":1,\"text\":\"\",\"anwser\":\"3\"}]}", "items[0].anwser"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2i_score_batch b;
        k2_openai_error err;
        assert_false(k2i_score_parse(cases[i].body, strlen(cases[i].body), &b, &err));
        assert_int_equal(err.status, 400);
        assert_string_equal(err.param, cases[i].param);
    }
}

static void test_lines(void **state)
{
    (void)state;
    static const struct {
        const char *line, *text; /* text NULL: it is good */
    } cases[] = {
        {"{\"trajectory\":7,\"reward\":0.5}", NULL},
        {" {\"trajectory\":\"7\",\"reward\":5e-1,\"why\":1} ", NULL},
        {"{\"trajectory\":8,\"reward\":0.5}", "expected 7"},
        {"{\"trajectory\":7,\"reward\":\"0.5\"}", "finite number"},
        {"{\"trajectory\":7,\"reward\":1e999}", "finite number"},
        {"{\"trajectory\":7}", "finite number"},
        {"{\"reward\":1}", "whole number"},
        {"0.5", "one JSON object"},
        {"Traceback (most recent call last):", "one JSON object"},
        {"", "one JSON object"},
        {"\xff", "UTF-8"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        double r = 0;
        k2_error err = {0};
        k2_code code = k2i_score_parse_line(cases[i].line, strlen(cases[i].line), 7, &r, &err);
        if (cases[i].text) {
            assert_int_equal(code, K2_BAD_INPUT);
            assert_non_null(strstr(err.text, cases[i].text));
        } else {
            assert_int_equal(code, K2_OK);
            assert_true(r == 0.5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact), cmocka_unit_test(test_last_number), cmocka_unit_test(test_numeric),
        cmocka_unit_test(test_batch), cmocka_unit_test(test_bad_batches), cmocka_unit_test(test_lines),
    };
    return cmocka_run_group_tests_name("rollout_reward", tests, NULL, NULL);
}
