/* The optimizer: against its formula in f64, in shards as in one piece, and schedules at their corners. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "trainer/optim_int.h"

enum { COUNT = 2 * K2I_BLOCK + 100 };

static const k2i_optim_span spans[] = {
    {.begin = 0, .end = 1000, .trained = true, .decays = false},
    {.begin = 1000, .end = K2I_BLOCK + 7, .trained = true, .decays = true},
    {.begin = K2I_BLOCK + 7, .end = K2I_BLOCK + 27, .trained = false, .decays = false},
    {.begin = K2I_BLOCK + 27, .end = COUNT, .trained = true, .decays = true},
};
static const k2i_optim_config config = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

static float draw(uint64_t a, uint64_t i)
{
    return (float)(k2_rand_unit(11, K2_STREAM_TEST, a, i) - 0.5);
}

static const k2i_optim_span *span_of(uint64_t i)
{
    const k2i_optim_span *s = spans;
    while (i >= s->end) s++;
    return s;
}

/* Looking at an update changes nothing, and names the first element that would be lost. */
static void test_spoils(void **state)
{
    (void)state;
    static float params[COUNT], grad[COUNT], held[COUNT];
    k2i_optim o;
    k2i_optim_init(&o, 0, COUNT);
    for (uint64_t i = 0; i < COUNT; i++) {
        params[i] = held[i] = draw(0, i);
        grad[i] = draw(1, i);
    }
    assert_true(k2i_optim_spoils(&o, &config, spans, K2_COUNT(spans), 0.01, 1, grad, params) == K2I_SPOILS_NONE);
    grad[K2I_BLOCK + 10] = INFINITY; /* not trained: nobody minds */
    assert_true(k2i_optim_spoils(&o, &config, spans, K2_COUNT(spans), 0.01, 1, grad, params) == K2I_SPOILS_NONE);
    grad[COUNT - 1] = grad[K2I_BLOCK + 28] = 1e30f; /* its square is no float any more: the second moment is lost */
    assert_true(k2i_optim_spoils(&o, &config, spans, K2_COUNT(spans), 0.01, 1, grad, params) == K2I_BLOCK + 28);
    assert_true(k2i_optim_spoils(&o, &config, spans, K2_COUNT(spans), 0.01, 1e-12, grad, params) == K2I_SPOILS_NONE);
    params[17] = held[17] = NAN;
    assert_true(k2i_optim_spoils(&o, &config, spans, K2_COUNT(spans), 0.01, 1e-12, grad, params) == 17);
    assert_memory_equal(params, held, sizeof held);
    assert_true(o.updates == 0 && o.m[0] == 0);
    k2i_optim_fini(&o);
}

static void test_formula(void **state)
{
    (void)state;
    static float params[COUNT], grad[COUNT];
    static double p[COUNT], m[COUNT], v[COUNT];
    k2i_optim o;
    k2i_optim_init(&o, 0, COUNT);
    for (uint64_t i = 0; i < COUNT; i++) p[i] = (double)(params[i] = draw(0, i));
    for (uint64_t t = 1; t <= 5; t++) {
        for (uint64_t i = 0; i < COUNT; i++) grad[i] = draw(t, i);
        k2i_optim_apply(&o, &config, spans, K2_COUNT(spans), 0.01, 0.5, grad, params);
        for (uint64_t i = 0; i < COUNT; i++) {
            const k2i_optim_span *s = span_of(i);
            if (!s->trained) continue;
            double g = 0.5 * (double)grad[i];
            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.95 * v[i] + 0.05 * g * g;
            double step = m[i] / (1 - pow(0.9, (double)t)) / (sqrt(v[i] / (1 - pow(0.95, (double)t))) + 1e-8);
            p[i] -= 0.01 * (step + (s->decays ? 0.1 : 0) * p[i]);
        }
    }
    for (uint64_t i = 0; i < COUNT; i++) assert_true(fabs(p[i] - (double)params[i]) < 2e-5);
    for (uint64_t i = K2I_BLOCK + 7; i < K2I_BLOCK + 27; i++) assert_true(params[i] == draw(0, i) && o.m[i] == 0);
    assert_int_equal(o.updates, 5);
    k2i_optim_reset(&o);
    assert_true(o.updates == 0 && o.m[0] == 0 && o.v[COUNT - 1] == 0);
    k2i_optim_fini(&o);
}

/* Two shards give the bits of one; so do the blocks of the norm. */
static void test_shards(void **state)
{
    (void)state;
    static float whole[COUNT], cut[COUNT], grad[COUNT];
    k2i_optim all, low, high;
    k2i_optim_init(&all, 0, COUNT);
    k2i_optim_init(&low, 0, K2I_BLOCK);
    k2i_optim_init(&high, K2I_BLOCK, COUNT);
    for (uint64_t i = 0; i < COUNT; i++) whole[i] = cut[i] = draw(0, i);
    for (uint64_t t = 1; t <= 3; t++) {
        for (uint64_t i = 0; i < COUNT; i++) grad[i] = draw(t, i);
        k2i_optim_apply(&all, &config, spans, K2_COUNT(spans), 0.01, 1, grad, whole);
        k2i_optim_apply(&low, &config, spans, K2_COUNT(spans), 0.01, 1, grad, cut);
        k2i_optim_apply(&high, &config, spans, K2_COUNT(spans), 0.01, 1, grad + K2I_BLOCK, cut);
    }
    assert_memory_equal(whole, cut, sizeof(whole));
    double one[3], two[3];
    assert_int_equal(k2i_norm_block_count(0, COUNT), 3);
    k2i_norm_blocks(grad, 0, COUNT, one);
    k2i_norm_blocks(grad, 0, K2I_BLOCK, two);
    k2i_norm_blocks(grad + K2I_BLOCK, K2I_BLOCK, COUNT, two + 1);
    assert_memory_equal(one, two, sizeof(one));
    double plain = 0;
    for (uint64_t i = 0; i < COUNT; i++) plain += (double)grad[i] * (double)grad[i];
    assert_true(fabs(one[0] + one[1] + one[2] - plain) < 1e-9);
    grad[5] = NAN;
    k2i_norm_blocks(grad, 0, COUNT, one);
    assert_true(isnan(one[0]) != 0 && isnan(one[1]) == 0);
    k2i_optim_fini(&all);
    k2i_optim_fini(&low);
    k2i_optim_fini(&high);
}

static void test_schedules(void **state)
{
    (void)state;
    k2i_schedule s = {.kind = k2i_schedule_find("constant"), .lr = 2, .lr_min = 0.5, .warmup = 4, .decay = 10, .total = 30};
    assert_float_equal(k2i_schedule_lr(&s, 1), 0.5, 0);
    assert_float_equal(k2i_schedule_lr(&s, 4), 2, 0);
    assert_float_equal(k2i_schedule_lr(&s, 1000), 2, 0);
    s.kind = k2i_schedule_find("cosine");
    assert_float_equal(k2i_schedule_lr(&s, 4), 2, 0);
    assert_float_equal(k2i_schedule_lr(&s, 9), 1.25, 1e-12);
    assert_float_equal(k2i_schedule_lr(&s, 14), 0.5, 0);
    assert_float_equal(k2i_schedule_lr(&s, 99), 0.5, 0);
    s.kind = k2i_schedule_find("wsd");
    assert_float_equal(k2i_schedule_lr(&s, 2), 1, 0);
    assert_float_equal(k2i_schedule_lr(&s, 20), 2, 0);
    assert_float_equal(k2i_schedule_lr(&s, 25), 1.25, 1e-12);
    assert_float_equal(k2i_schedule_lr(&s, 30), 0.5, 0);
    /* Kimi K2: 500 steps up to 2e-4, constant for 10 of 15.5 T tokens at 67 M a step, half a cosine down to 2e-5. */
    uint64_t total = 15500000 / 67, decay = 5500000 / 67;
    s = (k2i_schedule){
        .kind = k2i_schedule_find("wsd"), .lr = 2e-4, .lr_min = 2e-5, .warmup = 500, .decay = decay, .total = total};
    assert_float_equal(k2i_schedule_lr(&s, 250), 1e-4, 1e-18);
    assert_float_equal(k2i_schedule_lr(&s, 500), 2e-4, 0);
    assert_float_equal(k2i_schedule_lr(&s, total - decay), 2e-4, 0);
    for (uint64_t i = 1; i < 10; i++) { /* Megatron's min + (max - min) (cos(pi x) + 1) / 2 */
        double x = (double)(decay * i / 10) / (double)decay;
        double expected = 2e-5 + 1.8e-4 * 0.5 * (cos(acos(-1.0) * x) + 1);
        assert_float_equal(k2i_schedule_lr(&s, total - decay + decay * i / 10), expected, 1e-16);
    }
    assert_float_equal(k2i_schedule_lr(&s, total), 2e-5, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_spoils),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
