/* Pretraining order: each token predicted once an epoch, any step by its number alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "trainer/sampler_int.h"

static const uint64_t lengths[] = {5, 0, 1, 2, 21, 11, 12, 1, 3};

static uint64_t length_of(void *arg, uint64_t document)
{
    (void)arg;
    return lengths[document];
}

static uint64_t length_one(void *arg, uint64_t document)
{
    (void)arg;
    (void)document;
    return 1;
}

static bool same(const k2i_window *a, const k2i_window *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].document != b[i].document || a[i].offset != b[i].offset || a[i].tokens != b[i].tokens) return false;
    return true;
}

static void test_every_token_once(void **state)
{
    (void)state;
    k2i_sampler *s = NULL;
    assert_int_equal(k2i_sampler_new(K2_COUNT(lengths), length_of, NULL, 10, 5, &s, NULL), K2_OK);
    /* 4, 1, 10+10, 10, 10+1, 2 */
    assert_int_equal(k2i_sampler_windows(s), 8);
    bool differs = false;
    k2i_window first[8] = {{0}}, w[8] = {{0}};
    for (uint64_t epoch = 0; epoch < 5; epoch++) {
        unsigned char seen[K2_COUNT(lengths)][32] = {{0}};
        for (uint64_t step = 0; step < 4; step++) k2i_sampler_step(s, epoch * 4 + step, 2, w + 2 * step);
        for (size_t i = 0; i < 8; i++) {
            assert_true(w[i].tokens >= 1 && w[i].tokens <= 10 && w[i].offset + w[i].tokens < lengths[w[i].document]);
            for (uint64_t t = 1; t <= w[i].tokens; t++) seen[w[i].document][w[i].offset + t]++;
        }
        for (size_t d = 0; d < K2_COUNT(lengths); d++)
            for (uint64_t t = 1; t < lengths[d]; t++) assert_int_equal(seen[d][t], 1);
        if (epoch == 0) memcpy(first, w, sizeof(first));
        if (!same(first, w, 8)) differs = true;
    }
    assert_true(differs);
    k2i_sampler_free(s);
}

/* A resumed run asks for one late step first; batches that straddle epochs included. */
static void test_step_alone(void **state)
{
    (void)state;
    k2i_sampler *a = NULL, *b = NULL;
    assert_int_equal(k2i_sampler_new(K2_COUNT(lengths), length_of, NULL, 7, 5, &a, NULL), K2_OK);
    assert_int_equal(k2i_sampler_new(K2_COUNT(lengths), length_of, NULL, 7, 5, &b, NULL), K2_OK);
    k2i_window all[40][3], one[3];
    memset(all, 0, sizeof(all));
    memset(one, 0, sizeof(one));
    for (uint64_t step = 0; step < 40; step++) k2i_sampler_step(a, step, 3, all[step]);
    for (uint64_t step = 39; step < 40; step--) {
        k2i_sampler_step(b, step, 3, one);
        assert_true(same(one, all[step], 3));
    }
    k2i_sampler_free(a);
    k2i_sampler_free(b);
}

static void test_nothing_to_learn(void **state)
{
    (void)state;
    k2i_sampler *s = NULL;
    k2_error err;
    assert_int_equal(k2i_sampler_new(3, length_one, NULL, 10, 5, &s, &err), K2_BAD_INPUT);
    assert_string_equal(err.text, "the corpus has 3 documents, and not one of two tokens or more");
    assert_int_equal(k2i_sampler_new(0, length_one, NULL, 10, 5, &s, &err), K2_BAD_INPUT);
    assert_null(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_once),
        cmocka_unit_test(test_step_alone),
        cmocka_unit_test(test_nothing_to_learn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
