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
    assert_true(k2i_sample(&s, row, &(k2i_sampling){.temperature = 0, .top_p = 1}, NULL, 0.9, &token));
    assert_int_equal(token, 1);
    assert_true(k2i_sample(&s, row, &(k2i_sampling){.temperature = 1, .top_p = 1, .top_k = 1}, NULL, 0.9, &token));
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
        assert_false(k2i_sample(&s, bad[i], &(k2i_sampling){.temperature = 1, .top_p = 1}, NULL, 0.5, &token));
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

/* Steps 1 to 3 of the header, word by word. */
static void slow_adjust(const float *logits, const k2i_sampling *rule, const k2i_behind *b, float *row)
{
    for (uint32_t i = 0; i < VOCAB; i++) {
        int anywhere = 0, generated = 0, banned = 0;
        for (uint32_t t = 0; t < b->len; t++) {
            anywhere += b->tokens[t] == (int32_t)i;
            generated += b->tokens[t] == (int32_t)i && t >= b->len - b->generated;
        }
        for (uint32_t t = 0; t < b->banned_count; t++) banned += b->banned[t] == (int32_t)i;
        row[i] = logits[i];
        for (uint32_t t = 0; t < rule->bias_count; t++) row[i] += rule->bias[t].id == (int32_t)i ? rule->bias[t].add : 0;
        if (anywhere && rule->repetition != 0 && rule->repetition != 1)
            row[i] = row[i] > 0 ? row[i] / rule->repetition : row[i] * rule->repetition;
        if (generated) row[i] = row[i] - rule->frequency * (float)generated - rule->presence;
        if (banned) row[i] = -INFINITY;
    }
}

/* Steps 4 to 6. */
static uint32_t slow_sample(const float *logits, const k2i_sampling *rule, const k2i_behind *b, double u)
{
    float row[VOCAB];
    slow_adjust(logits, rule, b, row);
    uint32_t order[VOCAB];
    float w[VOCAB], max = -1e30f;
    for (uint32_t i = 0; i < VOCAB; i++) {
        order[i] = i;
        if (row[i] > max) max = row[i];
    }
    for (uint32_t i = 0; i < VOCAB; i++) w[i] = (row[i] - max) * (float)(1 / rule->temperature);
    for (uint32_t i = 0; i < VOCAB; i++) w[i] = w[i] > -100 ? w[i] : -100;
    k2_kern_exp(VOCAB, w, 0, w);
    for (uint32_t i = 0; i < VOCAB; i++) w[i] = w[i] < rule->min_p || row[i] == -INFINITY ? 0 : w[i];
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
    while (keep > 1 && w[order[keep - 1]] == 0) keep--;
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
        uint32_t token, any = (uint32_t)k2_rand_below(2, K2_STREAM_TEST, c, 104, 32);
        if (any & 1) rule.min_p = (float)k2_rand_unit(2, K2_STREAM_TEST, c, 105);
        if (any & 2) rule.repetition = (float)(0.5 + k2_rand_unit(2, K2_STREAM_TEST, c, 106));
        if (any & 4) rule.frequency = (float)(4 * k2_rand_unit(2, K2_STREAM_TEST, c, 107) - 2);
        if (any & 8) rule.presence = (float)(4 * k2_rand_unit(2, K2_STREAM_TEST, c, 108) - 2);
        k2i_bias bias[3] = {{3, 2.5f}, {11, -100}, {36, (float)any}};
        rule.bias = bias;
        rule.bias_count = any & 16 ? 3 : 0;
        int32_t tokens[40], banned[2] = {5, 99};
        k2i_behind behind = {.tokens = tokens, .len = (uint32_t)k2_rand_below(2, K2_STREAM_TEST, c, 109, 41), .banned = banned};
        behind.generated = (uint32_t)k2_rand_below(2, K2_STREAM_TEST, c, 110, behind.len + 1);
        behind.banned_count = (uint32_t)k2_rand_below(2, K2_STREAM_TEST, c, 111, 3);
        for (uint32_t i = 0; i < behind.len; i++) tokens[i] = (int32_t)k2_rand_below(2, K2_STREAM_TEST, c, 120 + i, VOCAB);
        assert_true(k2i_sample(&s, row, &rule, &behind, u, &token));
        assert_true(behind.banned_count == 0 || token != 5);
        if (rule.top_k != 1) assert_int_equal(token, slow_sample(row, &rule, &behind, u));
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
        k2i_sample(&s, row, &(k2i_sampling){.temperature = 1.5, .top_p = 1}, NULL, k2_rand_unit(3, K2_STREAM_SAMPLE, 9, d),
                   &token);
        seen[token]++;
    }
    for (int i = 0; i < N; i++) {
        double p = exp((double)row[i] / 1.5) / total;
        assert_true(fabs(seen[i] / (double)DRAWS - p) < 5 * sqrt(p * (1 - p) / DRAWS)); /* fixed seed: cannot flake */
    }
    k2i_sampler_fini(&s);
}

static void test_all_banned_is_refused(void **state)
{
    (void)state;
    k2i_sampler s;
    k2i_sampler_init(&s, 2);
    const float row[2] = {1, 2};
    const int32_t banned[2] = {1, 0};
    uint32_t token = 77;
    k2i_behind behind = {.banned = banned, .banned_count = 2};
    assert_false(k2i_sample(&s, row, &(k2i_sampling){.temperature = 1, .top_p = 1}, &behind, 0.5, &token));
    behind.banned_count = 1;
    for (int i = 0; i < 20; i++) {
        assert_true(k2i_sample(&s, row, &(k2i_sampling){.temperature = 9, .top_p = 1}, &behind, i / 20.0, &token));
        assert_int_equal(token, 0);
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
        cmocka_unit_test(test_all_banned_is_refused),
        cmocka_unit_test(test_repeats),
    };
    return cmocka_run_group_tests_name("rollout_sample", tests, NULL, NULL);
}
