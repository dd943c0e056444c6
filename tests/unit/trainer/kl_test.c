/* Estimates of the distance to a reference model: values, slopes, what they add to a loss, what they leave of a reward. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "common/budget/budget.h"
#include "tests/support/tiny_dims.h"
#include "trainer/kl_int.h"

static const k2i_kl_kind kinds[] = {K2I_KL_K1, K2I_KL_K2, K2I_KL_K3};

static void test_estimates(void **state)
{
    (void)state;
    for (size_t i = 0; i < K2_COUNT(kinds); i++)
        for (double x = -3; x <= 3; x += 0.25) {
            double slope, h = 1e-5, want[] = {x, x * x / 2, exp(-x) - 1 + x};
            double value = k2i_kl_estimate(kinds[i], x, &slope);
            double found = (k2i_kl_estimate(kinds[i], x + h, NULL) - k2i_kl_estimate(kinds[i], x - h, NULL)) / (2 * h);
            assert_true(fabs(value - want[i]) < 1e-12 * fmax(1, fabs(want[i])));
            assert_true(fabs(slope - found) < 1e-7);
            assert_true(kinds[i] == K2I_KL_K1 || value >= 0);
        }
    double slope;
    assert_true(k2i_kl_estimate(K2I_KL_K3, 0, &slope) == 0 && slope == 0);
    assert_true(k2i_kl_estimate(K2I_KL_K2, 0, &slope) == 0 && slope == 0);
}

/* The mean of each over tokens drawn from pi is the divergence itself: k1 and k3 exactly, by their definition; k2 nearly. */
static void test_unbiased(void **state)
{
    (void)state;
    const double p[] = {0.5, 0.3, 0.15, 0.05}, q[] = {0.4, 0.3, 0.2, 0.1};
    double kl = 0, mean[3] = {0};
    for (int v = 0; v < 4; v++) {
        double x = log(p[v]) - log(q[v]);
        kl += p[v] * x;
        for (int i = 0; i < 3; i++) mean[i] += p[v] * k2i_kl_estimate(kinds[i], x, NULL);
    }
    assert_true(fabs(mean[0] - kl) < 1e-12 && fabs(mean[2] - kl) < 1e-12 && fabs(mean[1] - kl) < 0.1 * kl);
}

static void test_in_the_loss(void **state)
{
    (void)state;
    const float logp[] = {-1, -2, -0.5f, -3}, reference[] = {-1.5f, -1, -0.5f, -1}, weight[] = {1, 2, 1, 0};
    float dlogp[] = {0.25f, 0, 0, 0.125f};
    double sum = 10;
    k2i_kl kl = {.place = K2I_KL_IN_LOSS, .kind = K2I_KL_K2, .weight = 0.5};
    double loss = k2i_kl_add(&kl, 8, 4, logp, reference, weight, dlogp, &sum);
    assert_true(sum == 10 + 0.125 + 0.5 && loss == 0.0625 * 0.625); /* an importance correction does not weigh it */
    assert_true(dlogp[0] == 0.25f + 0.03125f && dlogp[1] == -0.0625f && dlogp[2] == 0);
    assert_true(dlogp[3] == 0.125f); /* out of the loss */
}

static void test_returns(void **state)
{
    (void)state;
    const double k[] = {1, 0, -2, 4};
    double out[4];
    k2i_kl_returns(1, 0.5, 4, k, out);
    assert_true(out[3] == 1 - 2 && out[2] == 1 - 1 && out[1] == 1 - 1 && out[0] == 1 - 1.5);
}

static void test_configuration(void **state)
{
    (void)state;
    k2_config c;
    k2_config_defaults(&c);
    assert_int_equal(k2i_kl_of(&c).place, K2I_KL_OFF);
    c.trainer_kl_weight = 0.04;
    k2i_kl kl = k2i_kl_of(&c);
    assert_true(kl.place == K2I_KL_IN_LOSS && kl.kind == K2I_KL_K3 && kl.weight == 0.04);
    snprintf(c.trainer_kl_place, sizeof(c.trainer_kl_place), "reward");
    snprintf(c.trainer_kl_estimator, sizeof(c.trainer_kl_estimator), "k1");
    kl = k2i_kl_of(&c);
    assert_true(kl.place == K2I_KL_IN_REWARD && kl.kind == K2I_KL_K1);
    k2_dims dims = tiny_dims();
    k2_model_layout *l = k2_model_layout_new(&dims);
    k2_budget with = k2_budget_trainer(&c, &dims, 0, 1);
    snprintf(c.mode, sizeof(c.mode), "pretrain");
    assert_int_equal(k2i_kl_of(&c).place, K2I_KL_OFF);
    assert_int_equal(k2_budget_trainer(&c, &dims, 0, 1).reference, 0);
    assert_int_equal(with.reference, l->floats * sizeof(float));
    k2_model_layout_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_estimates), cmocka_unit_test(test_unbiased),
                                       cmocka_unit_test(test_in_the_loss), cmocka_unit_test(test_returns),
                                       cmocka_unit_test(test_configuration)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
