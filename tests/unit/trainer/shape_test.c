/* Length terms of a reward, worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "trainer/shape_int.h"

static void check(const k2i_shape *shape, const double *reward, const uint32_t *tokens, const double expected[4])
{
    double shaped[4];
    k2i_shape_group(shape, 4, reward, tokens, shaped);
    for (int i = 0; i < 4; i++) assert_true(shaped[i] == expected[i]);
}

static const double reward[4] = {1, 0, 1, 0};

/* Lengths 10, 20, 30, 50: l = 0.5, 0.25, 0, -0.5. A wrong answer gains nothing by being short. */
static void test_length(void **state)
{
    (void)state;
    k2i_shape shape = {.length_weight = 0.5, .correct = 0.5};
    check(&shape, reward, (const uint32_t[]){10, 20, 30, 50}, (const double[]){1.25, 0, 1, -0.25});
    check(&shape, reward, (const uint32_t[]){50, 50, 10, 10}, (const double[]){0.75, -0.25, 1.25, 0});
    check(&shape, reward, (const uint32_t[]){7, 7, 7, 7}, reward);
}

/* Longest 64, the last 16 punished: 48 costs nothing, 56 a half, 64 all of it. */
static void test_overlong(void **state)
{
    (void)state;
    k2i_shape shape = {.correct = 0.5, .longest = 64, .overlong = 16};
    check(&shape, reward, (const uint32_t[]){48, 56, 64, 1}, (const double[]){1, -0.5, 0, 0});
    check(&shape, reward, (const uint32_t[]){49, 200, 47, 48}, (const double[]){1 - 1 / 16.0, -1, 1, 0});
}

static void test_off(void **state)
{
    (void)state;
    static const double any[4] = {0.1, 0.7, 1e-300, -3};
    check(&(k2i_shape){.longest = 64}, any, (const uint32_t[]){1, 64, 3, 4}, any);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_length), cmocka_unit_test(test_overlong),
                                       cmocka_unit_test(test_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
