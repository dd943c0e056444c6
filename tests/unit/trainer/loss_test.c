/* Every loss: values worked out by hand, derivatives against central differences, and independence from how a batch is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "trainer/loss_int.h"

#define TOKENS       12
#define TRAJECTORIES 4

/* Two groups of two trajectories of 3 tokens. */
typedef struct batch {
    float logp[TOKENS], logp_old[TOKENS], weight[TOKENS];
    double reward[TRAJECTORIES];
} batch;

static void batch_fill(batch *b)
{
    static const double rewards[TRAJECTORIES] = {1, 0, 0.25, 0.75};
    for (uint32_t i = 0; i < TOKENS; i++) {
        b->logp_old[i] = (float)(-2 * k2_rand_unit(7, K2_STREAM_TEST, 1, i) - 0.1);
        b->logp[i] = b->logp_old[i] + (float)(0.6 * (k2_rand_unit(7, K2_STREAM_TEST, 2, i) - 0.5));
        b->weight[i] = i % 5 == 3 ? 0 : (float)(0.5 + k2_rand_unit(7, K2_STREAM_TEST, 3, i));
    }
    memcpy(b->reward, rewards, sizeof(rewards));
}

static double batch_loss(const k2i_loss_ops *ops, const k2i_loss_scale *scale, const batch *b, float *dlogp,
                         k2i_loss_sums *sums)
{
    double advantage[TRAJECTORIES];
    ops->advantage(b->reward, 2, advantage);
    ops->advantage(b->reward + 2, 2, advantage + 2);
    memset(sums, 0, sizeof(*sums));
    for (uint32_t i = 0; i < TRAJECTORIES; i++) {
        k2i_loss_in in = {.count = 3,
                          .logp = b->logp + 3 * i,
                          .logp_old = b->logp_old + 3 * i,
                          .weight = b->weight + 3 * i,
                          .advantage = advantage[i]};
        ops->eval(scale, &in, sums, dlogp + 3 * i);
    }
    return sums->loss;
}

static const k2i_loss_scale test_scale = {
    .tau = 0.3, .clip_low = 0.1, .clip_high = 0.15, .trajectories = TRAJECTORIES, .tokens = 10};

static void check_differences(const char *name)
{
    const k2i_loss_ops *ops = k2i_loss_find(name);
    batch b;
    batch_fill(&b);
    float dlogp[TOKENS], ignored[TOKENS];
    k2i_loss_sums sums;
    (void)batch_loss(ops, &test_scale, &b, dlogp, &sums);
    for (uint32_t i = 0; i < TOKENS; i++) {
        float at = b.logp[i], up = at + 1e-3f, down = at - 1e-3f;
        b.logp[i] = up;
        double above = batch_loss(ops, &test_scale, &b, ignored, &sums);
        b.logp[i] = down;
        double below = batch_loss(ops, &test_scale, &b, ignored, &sums);
        b.logp[i] = at;
        double expected = (above - below) / ((double)up - (double)down);
        assert_float_equal(dlogp[i], expected, 1e-5);
        if (b.weight[i] == 0) assert_true(dlogp[i] == 0);
    }
}

static void test_differences(void **state)
{
    (void)state;
    check_differences("cross_entropy");
    check_differences("mirror");
    check_differences("grpo");
}

static void test_cross_entropy_by_hand(void **state)
{
    (void)state;
    float logp[3] = {-1, -2, -4}, weight[3] = {1, 0, 1}, dlogp[3];
    k2i_loss_scale scale = {.trajectories = 1, .tokens = 2};
    k2i_loss_in in = {.count = 3, .logp = logp, .logp_old = NULL, .weight = weight};
    k2i_loss_sums sums = {0};
    k2i_loss_find("cross_entropy")->eval(&scale, &in, &sums, dlogp);
    assert_true(sums.loss == 2.5 && sums.tokens == 2);
    assert_true(dlogp[0] == -0.5f && dlogp[1] == 0 && dlogp[2] == -0.5f);
}

/* Rewards 1 and 0, mean 1/2. D_0 = 0.5 + 0.25 = 0.75, residual 0.5 - 0.5*0.75 = 0.125; D_1 = 0, residual -0.5. With N = 2, tau
 * = 0.5: L = 1/2 (0.125^2 + 0.5^2) / (2 * 0.5). */
static void test_mirror_by_hand(void **state)
{
    (void)state;
    const k2i_loss_ops *ops = k2i_loss_find("mirror");
    double reward[2] = {1, 0}, advantage[2];
    ops->advantage(reward, 2, advantage);
    assert_true(advantage[0] == 0.5 && advantage[1] == -0.5);
    float now[2] = {-1, -2}, old[2] = {-1.5f, -2.25f}, weight[2] = {1, 1}, d0[2], d1[2];
    k2i_loss_scale scale = {.tau = 0.5, .trajectories = 2, .tokens = 4};
    k2i_loss_in a = {.count = 2, .logp = now, .logp_old = old, .weight = weight, .advantage = advantage[0]};
    k2i_loss_in b = {.count = 2, .logp = now, .logp_old = now, .weight = weight, .advantage = advantage[1]};
    k2i_loss_sums sums = {0};
    ops->eval(&scale, &a, &sums, d0);
    ops->eval(&scale, &b, &sums, d1);
    assert_true(sums.loss == 0.5 * (0.125 * 0.125 + 0.25));
    assert_true(d0[0] == -0.0625f && d0[1] == -0.0625f);
    assert_true(d1[0] == 0.25f && d1[1] == 0.25f); /* at pi = pi_old: -(1/N) A, whatever tau is */
    assert_true(sums.ratio_min == 1 && fabs(sums.ratio_max - exp(0.5)) < 1e-12);
}

/* Rewards 1, 0: mean 1/2, std 1/2, advantages +-1 (less the epsilon). Ratios: e^0.5 (clipped at 1.2 for A > 0), 1, and e^-0.5
 * (clipped at 0.8 for A < 0). */
static void test_grpo_by_hand(void **state)
{
    (void)state;
    const k2i_loss_ops *ops = k2i_loss_find("grpo");
    double reward[2] = {1, 0}, advantage[2], equal[3] = {0.1, 0.1, 0.1}, none[3];
    ops->advantage(reward, 2, advantage);
    double a = 0.5 / (0.5 + 1e-6);
    assert_float_equal(advantage[0], a, 1e-15);
    assert_float_equal(advantage[1], -a, 1e-15);
    ops->advantage(equal, 3, none);
    assert_true(none[0] == 0 && none[1] == 0 && none[2] == 0);

    float now[3] = {-1, -1, -1}, old[3] = {-1.5f, -1, -0.5f}, weight[3] = {1, 1, 1}, d[3];
    k2i_loss_scale scale = {.clip_low = 0.2, .clip_high = 0.2, .trajectories = 2, .tokens = 3};
    k2i_loss_in in = {.count = 3, .logp = now, .logp_old = old, .weight = weight, .advantage = 1};
    k2i_loss_sums sums = {0};
    ops->eval(&scale, &in, &sums, d);
    assert_float_equal(sums.loss, -(1.2 + 1 + exp(-0.5)) / 3, 1e-12);
    assert_true(d[0] == 0 && sums.clipped == 1);
    assert_float_equal(d[1], -1.0 / 3, 1e-7);
    assert_float_equal(d[2], -exp(-0.5) / 3, 1e-7);

    in.advantage = -1;
    memset(&sums, 0, sizeof(sums));
    ops->eval(&scale, &in, &sums, d);
    assert_float_equal(sums.loss, (exp(0.5) + 1 + 0.8) / 3, 1e-12);
    assert_float_equal(d[0], exp(0.5) / 3, 1e-7);
    assert_true(d[2] == 0 && sums.clipped == 1);
}

/* A single trajectory in a group has no baseline but itself: no gradient. */
static void test_group_of_one(void **state)
{
    (void)state;
    double reward = 0.7, advantage = 9;
    k2i_loss_find("mirror")->advantage(&reward, 1, &advantage);
    assert_true(advantage == 0);
    k2i_loss_find("grpo")->advantage(&reward, 1, &advantage);
    assert_true(advantage == 0);
}

static void test_correction(void **state)
{
    (void)state;
    k2i_correction tis = {.max = 2}, icepop = {.masks = true, .min = 0.5, .max = 2};
    assert_true(k2i_loss_correction(&tis, -1.25f, -1.25f) == 1);
    assert_float_equal(k2i_loss_correction(&tis, -1, -1.5f), exp(0.5), 1e-6);
    assert_true(k2i_loss_correction(&tis, -1, -5) == 2);
    assert_float_equal(k2i_loss_correction(&tis, -5, -1), exp(-4), 1e-6);
    tis.min = 0.25;
    assert_true(k2i_loss_correction(&tis, -5, -1) == 0.25f);
    assert_true(k2i_loss_correction(&icepop, -1.25f, -1.25f) == 1);
    assert_float_equal(k2i_loss_correction(&icepop, -1, -1.5f), exp(0.5), 1e-6);
    assert_true(k2i_loss_correction(&icepop, -1, -5) == 0 && k2i_loss_correction(&icepop, -5, -1) == 0);
}

static void test_not_finite(void **state)
{
    (void)state;
    static const char *const names[] = {"cross_entropy", "mirror", "grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++"};
    for (size_t i = 0; i < K2_COUNT(names); i++) {
        float now[2] = {-1, NAN}, old[2] = {-1, -1}, weight[2] = {1, 1}, d[2];
        k2i_loss_in in = {.count = 2, .logp = now, .logp_old = old, .weight = weight, .advantage = 1};
        k2i_loss_sums sums = {0};
        k2i_loss_find(names[i])->eval(&test_scale, &in, &sums, d);
        assert_true(isfinite(sums.loss) == 0);
    }
    assert_null(k2i_loss_find("ppo"));
}

static void test_exp(void **state)
{
    (void)state;
    assert_true(k2i_loss_exp(0) == 1 && k2i_loss_exp(-800) == 0 && isinf(k2i_loss_exp(800)) != 0 &&
                isnan(k2i_loss_exp(NAN)) != 0);
    for (int i = -7000; i <= 7000; i++) {
        double x = i / 10.0 + 0.0123, expected = exp(x);
        assert_true(fabs(x) > 700 || fabs(k2i_loss_exp(x) - expected) <= 1e-15 * expected);
    }
}

/* reinforce++ normalises over the batch: trajectories without a token in the loss have no say, in the mean or in whether there
 * is a difference. */
static void test_batch_of_equals(void **state)
{
    (void)state;
    const k2i_loss_ops *ops = k2i_loss_find("reinforce++");
    const uint64_t tokens[] = {7, 11, 13, 0};
    double advantage[] = {0.1, 0.1, 0.1, 1};
    ops->over_batch(tokens, 4, advantage);
    assert_true(advantage[0] == 0 && advantage[1] == 0 && advantage[2] == 0);
    const uint64_t first_has_none[] = {0, 5, 5};
    double two[] = {3, 1, 2};
    ops->over_batch(first_has_none, 3, two);
    assert_float_equal(two[1], -1, 1e-5);
    assert_float_equal(two[2], 1, 1e-5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_of_equals),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_cross_entropy_by_hand),
        cmocka_unit_test(test_mirror_by_hand),
        cmocka_unit_test(test_grpo_by_hand),
        cmocka_unit_test(test_group_of_one),
        cmocka_unit_test(test_correction),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_exp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
