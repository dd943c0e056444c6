/* plan - the command line, the sizes of an engine, and the memory that they ask for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "rollout/options_int.h"
#include "rollout/plan_int.h"
#include "tests/unit/rollout/tiny_int.h"

static void test_options(void **state)
{
    (void)state;
    static const struct {
        const char *argv[8], *says; /* says NULL: it is good */
    } cases[] = {
        {{"rollout", "--master", "ipc:///x", "--index", "3", "--nonce", "9"}, NULL},
        {{"rollout", "--model", "dir", "--listen", "0.0.0.0:8080", "--name", "mine"}, NULL},
        {{"rollout", "--model", "dir", "--set", "rollout.batch_max=7"}, NULL},
        {{"rollout", "--help"}, NULL},
        {{"rollout"}, "one of --master URL and --model DIR"},
        {{"rollout", "--master", "a", "--model", "b"}, "one of"},
        {{"rollout", "--master", "a"}, "--index"},
        {{"rollout", "--master"}, "--master: a value is missing"},
        {{"rollout", "--index", "-1"}, "--index: found \"-1\""},
        {{"rollout", "--model", "d", "--lisen", "x"}, "did you mean --listen?"},
        {{"rollout", "--model", "d", "--listen", "nowhere"}, "--listen"},
        {{"rollout", "--model", "d", "--set", "rollout.batch_mx=7"}, "rollout.batch_max"},
        {{"rollout", "--model", "d", "--name", ""}, "--name"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        k2i_options o;
        k2_error err = {0};
        int argc = 0;
        while (cases[i].argv[argc]) argc++;
        char *argv[8] = {NULL};
        for (int a = 0; a < argc; a++) argv[a] = (char *)(uintptr_t)cases[i].argv[a];
        k2_code code = k2i_options_parse(argc, argv, &o, &err);
        if (!cases[i].says)
            assert_int_equal(code, K2_OK);
        else if (k2_code_exit(code) != 2 || !strstr(err.text, cases[i].says))
            fail_msg("%zu: \"%s\"", i, err.text);
    }
}

static void test_engine_from_config(void **state)
{
    (void)state;
    k2_config c;
    k2_dims dims = tiny_dims();
    k2i_engine_plan p;
    k2_error err;
    k2_config_defaults(&c);
    c.rollout_cache_tokens = 1000;
    c.rollout_page_tokens = 16;
    assert_int_equal(k2i_plan_engine(&c, &dims, 3, 8, &p, &err), K2_OK);
    assert_int_equal(p.core.pages, 63);
    assert_int_equal(p.core.context_max, 256);
    assert_int_equal(p.threads, 1); /* so small a model keeps no second thread busy */
    k2_dims large = dims;
    large.hidden_size = 2048;
    large.intermediate_size = 8192;
    assert_int_equal(k2i_plan_engine(&c, &large, 3, 8, &p, &err), K2_OK);
    assert_int_equal(p.threads, 2);
    assert_int_equal(k2i_plan_engine(&c, &dims, 3, 8, &p, &err), K2_OK);
    assert_int_equal(p.core.requests_max, c.rollout_queue_max + c.rollout_batch_max);
    c.rollout_cache_tokens = 100; /* a cache smaller than the model's context bounds it */
    assert_int_equal(k2i_plan_engine(&c, &dims, 20, 8, &p, &err), K2_OK);
    assert_int_equal(p.core.context_max, 100);
    assert_true((uint64_t)p.core.pages * p.core.page_tokens >= 100);
    assert_int_equal(p.threads, 1);
    c.rollout_threads = 5;
    assert_int_equal(k2i_plan_engine(&c, &dims, 20, 8, &p, &err), K2_OK);
    assert_int_equal(p.threads, 5);
    c.rollout_repetition_min_period = 9;
    assert_int_equal(k2i_plan_engine(&c, &dims, 1, 1, &p, &err), K2_BAD_INPUT);
    assert_non_null(strstr(err.text, "rollout.repetition.max_period"));
}

static void test_memory(void **state)
{
    (void)state;
    k2_config c;
    k2_dims dims = tiny_dims();
    k2i_engine_plan p, larger;
    k2_error err;
    k2_config_defaults(&c);
    assert_int_equal(k2i_plan_engine(&c, &dims, 1, 1, &p, &err), K2_OK);
    uint64_t need = k2i_plan_bytes(&p, &dims, 2, true);
    assert_true(need > k2i_plan_bytes(&p, &dims, 1, false));
    assert_int_equal(k2i_plan_check(&p, &dims, 2, true, need, &err), K2_OK);
    assert_int_equal(k2i_plan_check(&p, &dims, 2, true, need - 1, &err), K2_LIMIT);
    assert_non_null(strstr(err.text, "rollout needs"));
    snprintf(c.model_compute, sizeof(c.model_compute), "bf16");
    assert_int_equal(k2i_plan_engine(&c, &dims, 1, 1, &larger, &err), K2_OK);
    size_t f32 = k2_model_bytes(&dims, K2_COMPUTE_F32_FORWARD), bf16 = k2_model_bytes(&dims, K2_COMPUTE_BF16_FORWARD);
    assert_true(bf16 < f32 && need - k2i_plan_bytes(&larger, &dims, 2, true) == 2 * (f32 - bf16));
    snprintf(c.model_compute, sizeof(c.model_compute), "f32");
    c.rollout_cache_tokens *= 2;
    assert_int_equal(k2i_plan_engine(&c, &dims, 1, 1, &larger, &err), K2_OK);
    uint64_t more = k2i_plan_bytes(&larger, &dims, 2, true) - need;
    uint64_t pages =
        (uint64_t)(larger.core.pages - p.core.pages) * k2_model_page_floats(&dims, p.core.page_tokens) * sizeof(float);
    assert_true(more >= pages && more < 2 * pages);
    assert_true(k2i_memory_available() > 1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_engine_from_config),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("rollout_plan", tests, NULL, NULL);
}
