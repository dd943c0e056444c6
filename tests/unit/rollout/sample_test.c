/* sample - against a slow sampler that sorts, and against the frequencies of the softmax. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>

#include "common/kernel/kernel.h"
#include "rollout/sample_int.h"

static void test_greedy_takes_the_lowest_of_equals(void **state)
{
    (void)state;
    k2i_sampler s;
    k2i_sampler_init(&s, 5);
    const float row[5] = {1, 3, 3, -2, 3};
    uint32_t token;
    assert_true(k2i_sample(&s, row, &(k2i_sampling){.temperature = 0, .top_p = 1}, 0.9, &token));
    assert_int_equal(token, 1);
    assert_true(k2i_sample(&s, row, &(k2i_sampling){.temperature = 1, .top_p = 1, .top_k = 1}, 0.9, &token));
    assert_int_equal(token, 1);
    k2i_sampler_fini(&s);
}

static void test_not_finite_is_refused(void **state)
{
    (void)state;
    k2i_sampler s;
    k2i_sampler_init(&s, 3);
    const float bad[3][3] = {{1, NAN, 0}, {INFINITY, 0, 0}, {0, 0, -INFINITY}};
    for (int i = 0; i < 3; i++) {
        uint32_t token = 77;
        assert_false(k2i_sample(&s, bad[i], &(k2i_sampling){.temperature = 1, .top_p = 1}, 0.5, &token));
        assert_int_equal(token, 77);
    }
    k2i_sampler_fini(&s);
}

enum { VOCAB = 37 };
static const float *sort_row;
static int falling(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (sort_row[x] != sort_row[y]) return sort_row[x] > sort_row[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The rule of the header, word by word. */
static uint32_t slow_sample(const float *row, const k2i_sampling *rule, double u)
{
    uint32_t order[VOCAB];
    float w[VOCAB], max = -1e30f;
    for (uint32_t i = 0; i < VOCAB; i++) {
        order[i] = i;
        if (row[i] > max) max = row[i];
    }
    for (uint32_t i = 0; i < VOCAB; i++) w[i] = (row[i] - max) * (float)(1 / rule->temperature);
    k2_kern_exp(VOCAB, w, 0, w);
    bool by_id = rule->top_p >= 1 && (rule->top_k == 0 || rule->top_k >= VOCAB);
    sort_row = row;
    if (!by_id) qsort(order, VOCAB, sizeof *order, falling);
    uint32_t keep = rule->top_k > 0 && rule->top_k < VOCAB ? rule->top_k : VOCAB;
    double total = 0, sum = 0;
    if (keep == VOCAB) {
        for (uint32_t i = 0; i < VOCAB; i++) total += (double)w[i];
    } else {
        for (uint32_t i = 0; i < keep; i++) total += (double)w[order[i]];
    }
    if (rule->top_p < 1) {
        uint32_t n = 0;
        while (n == 0 || (n < keep && sum < rule->top_p * total)) sum += (double)w[order[n++]];
        keep = n;
        total = sum;
    } else if (!by_id) {
        total = 0;
        for (uint32_t i = 0; i < keep; i++) total += (double)w[order[i]];
    }
    double target = u * total;
    sum = 0;
    for (uint32_t i = 0; i < keep; i++) {
        sum += (double)w[order[i]];
        if (sum > target) return order[i];
    }
    return order[keep - 1];
}

static void test_equals_the_slow_sampler(void **state)
{
    (void)state;
    k2i_sampler s;
    k2i_sampler_init(&s, VOCAB);
    for (uint64_t c = 0; c < 20000; c++) {
        float row[VOCAB];
        for (uint32_t i = 0; i < VOCAB; i++) /* few distinct values, so that ties are common */
            row[i] = (float)((double)k2_rand_below(2, K2_STREAM_TEST, c, i, 12) * 0.7 - 4);
        k2i_sampling rule = {
            .temperature = 0.25 + 2 * k2_rand_unit(2, K2_STREAM_TEST, c, 100),
            .top_p = c % 3 == 0 ? 1 : k2_rand_unit(2, K2_STREAM_TEST, c, 101),
            .top_k = c % 2 == 0 ? 0 : (uint32_t)k2_rand_below(2, K2_STREAM_TEST, c, 102, VOCAB + 5),
        };
        if (rule.top_p <= 0) rule.top_p = 0.01;
        double u = k2_rand_unit(2, K2_STREAM_TEST, c, 103);
        uint32_t token;
        assert_true(k2i_sample(&s, row, &rule, u, &token));
        if (rule.top_k != 1) assert_int_equal(token, slow_sample(row, &rule, u));
    }
    k2i_sampler_fini(&s);
}

static void test_frequencies(void **state)
{
    (void)state;
    enum { N = 6, DRAWS = 60000 };
    const float row[N] = {0, 1, 2, -1, 0.5f, 1};
    k2i_sampler s;
    k2i_sampler_init(&s, N);
    int seen[N] = {0};
    double total = 0;
    for (int i = 0; i < N; i++) total += exp((double)row[i] / 1.5);
    for (uint64_t d = 0; d < DRAWS; d++) {
        uint32_t token;
        k2i_sample(&s, row, &(k2i_sampling){.temperature = 1.5, .top_p = 1}, k2_rand_unit(3, K2_STREAM_SAMPLE, 9, d), &token);
        seen[token]++;
    }
    for (int i = 0; i < N; i++) {
        double p = exp((double)row[i] / 1.5) / total;
        assert_true(fabs(seen[i] / (double)DRAWS - p) < 5 * sqrt(p * (1 - p) / DRAWS)); /* fixed seed: cannot flake */
    }
    k2i_sampler_fini(&s);
}

static void test_repeats(void **state)
{
    (void)state;
    const k2i_repetition rule = {.min_period = 1, .max_period = 3, .count = 3};
    const int32_t one[] = {9, 5, 5, 5};
    assert_int_equal(k2i_repeats(one, 4, &rule), 1);
    assert_int_equal(k2i_repeats(one, 3, &rule), 0);
    const int32_t two[] = {1, 2, 1, 2, 1, 2};
    assert_int_equal(k2i_repeats(two, 6, &rule), 2);
    assert_int_equal(k2i_repeats(two, 5, &rule), 0);
    assert_int_equal(k2i_repeats(two, 6, &(k2i_repetition){.min_period = 3, .max_period = 9, .count = 2}), 0);
    const int32_t three[] = {7, 1, 2, 3, 1, 2, 3, 1, 2, 3};
    assert_int_equal(k2i_repeats(three, 10, &rule), 3);
    assert_int_equal(k2i_repeats(three, 10, &(k2i_repetition){.min_period = 1, .max_period = 2, .count = 3}), 0);
    assert_int_equal(k2i_repeats(three, 0, &rule), 0);
    assert_int_equal(k2i_repeats(one, 4, &(k2i_repetition){0}), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(test_not_finite_is_refused),
        cmocka_unit_test(test_equals_the_slow_sampler),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests_name("rollout_sample", tests, NULL, NULL);
}
