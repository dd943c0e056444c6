/* Routing and the rotation table. */
#include "tests/unit/kernel/kernel_test_int.h"

#include <stdatomic.h>

static void ties_go_to_the_lowest_index(void **state)
{
    (void)state;
    const k2_router r = {.experts = 8, .topk = 3, .groups = 1, .topk_group = 1, .scale = 2.0f, .norm = true};
    float logits[8] = {0}, bias[8] = {0}, scores[8], weight[3];
    uint32_t index[3];
    k2_kern_route_fwd(&r, 1, logits, bias, scores, index, weight);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(index[i], i);
        assert_true(fabsf(weight[i] - 2.0f / 3.0f) < 1e-6f);
    }
}

static void bias_selects_but_does_not_weigh(void **state)
{
    (void)state;
    const k2_router r = {.experts = 4, .topk = 2, .groups = 1, .topk_group = 1, .scale = 1.0f, .norm = false};
    float logits[4] = {2.0f, 1.0f, 0.0f, -1.0f}, bias[4] = {0.0f, 0.0f, 0.0f, 5.0f}, scores[4], weight[2];
    uint32_t index[2];
    k2_kern_route_fwd(&r, 1, logits, bias, scores, index, weight);
    assert_int_equal(index[0], 3);
    assert_int_equal(index[1], 0);
    assert_true(weight[0] == scores[3] && weight[1] == scores[0]);
}

static void groups_limit_the_choice(void **state)
{
    (void)state;
    /* Group 1 has the largest single score, but group 0 the largest pair. */
    const k2_router r = {.experts = 6, .topk = 2, .groups = 3, .topk_group = 1, .scale = 1.0f, .norm = true};
    float logits[6] = {1.0f, 1.1f, 4.0f, -9.0f, 0.0f, 0.0f}, bias[6] = {0}, scores[6], weight[2];
    uint32_t index[2];
    k2_kern_route_fwd(&r, 1, logits, bias, scores, index, weight);
    assert_int_equal(index[0], 1);
    assert_int_equal(index[1], 0);
}

static void nan_still_gives_distinct_experts(void **state)
{
    (void)state;
    const k2_router r = {.experts = 4, .topk = 3, .groups = 1, .topk_group = 1, .scale = 1.0f, .norm = true};
    float logits[4] = {NAN, NAN, 1.0f, NAN}, bias[4] = {0}, scores[4], weight[3];
    uint32_t index[3];
    k2_kern_route_fwd(&r, 1, logits, bias, scores, index, weight);
    assert_int_equal(index[0], 2);
    assert_int_equal(index[1], 0);
    assert_int_equal(index[2], 1);
}

static void backward_is_right(void **state)
{
    (void)state;
    for (int norm = 0; norm < 2; norm++) {
        const k2_router r = {.experts = 5, .topk = 3, .groups = 1, .topk_group = 1, .scale = 1.5f, .norm = norm};
        float logits[5] = {0.3f, -0.2f, 1.0f, 0.9f, -2.0f}, bias[5] = {0}, scores[5], weight[3], d_logits[5], scores2[5];
        const float up[3] = {0.7f, -1.1f, 0.4f};
        uint32_t index[3], index2[3];
        k2_kern_route_fwd(&r, 1, logits, bias, scores, index, weight);
        k2_kern_route_bwd(&r, 1, scores, index, up, d_logits);
        for (int i = 0; i < 5; i++) {
            float keep = logits[i];
            double f[2] = {0, 0};
            for (int side = 0; side < 2; side++) {
                logits[i] = keep + (side ? 0.01f : -0.01f);
                k2_kern_route_fwd(&r, 1, logits, bias, scores2, index2, weight);
                for (int k = 0; k < 3; k++) f[side] += (double)weight[k] * (double)up[k];
            }
            logits[i] = keep;
            assert_true(fabs((f[1] - f[0]) / 0.02 - (double)d_logits[i]) < 1e-4);
        }
    }
}

/* Shares that cannot move have no gradient, and no noise of rounding in its place: AdamW would blow that up to full strides. */
static void shares_that_cannot_move_have_no_gradient(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        const k2_router r = {.experts = 4, .topk = i % 2 ? 4 : 1, .groups = 1, .topk_group = 1, .scale = 2.827f, .norm = true};
        const float up = 0.377f + 0.0137f * (float)i, ups[4] = {up, up, up, up}, bias[4] = {0}; /* all matter the same */
        const float logits[4] = {0.3f - 0.01f * (float)i, -0.7f, 0.011f * (float)i, 0.456f};
        float scores[4], weight[4], d_logits[4];
        uint32_t index[4];
        k2_kern_route_fwd(&r, 1, logits, bias, scores, index, weight);
        if (r.topk == 1) assert_true(weight[0] == r.scale);
        k2_kern_route_bwd(&r, 1, scores, index, ups, d_logits);
        for (int e = 0; e < 4; e++) assert_true(d_logits[e] == 0.0f);
    }
}

static void yarn_has_kimi_k2s_numbers(void **state)
{
    (void)state;
    k2_dims d = {.qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .rope_theta = 50000.0};
    assert_true(fabsf(k2_kern_attn_scale(&d) - 0.0721688f) < 1e-6f);
    d.yarn = (k2_yarn){.factor = 32,
                       .beta_fast = 1,
                       .beta_slow = 1,
                       .mscale = 1,
                       .mscale_all_dim = 1,
                       .original_max_position_embeddings = 4096};
    assert_true(fabsf(k2_kern_attn_scale(&d) - 0.1308608f) < 1e-6f);
    float table[2 * 64];
    k2_kern_rope_table(&d, 2, table);
    /* pairs up to 19 as they are, from 20 on divided by 32; cos and sin are not scaled */
    double plain = pow(50000.0, -2.0 * 19 / 64), slow = pow(50000.0, -2.0 * 20 / 64) / 32;
    assert_true(table[0] == 1.0f && table[1] == 0.0f);
    assert_true(fabs((double)table[64 + 19 * 2 + 1] - sin(plain)) < 1e-7);
    assert_true(fabs((double)table[64 + 20 * 2 + 1] - sin(slow)) < 1e-7);
}

/* Is e among the K largest of a row? */
static bool is_best(const k2_router *r, const double *row, uint32_t e)
{
    uint32_t before = 0;
    for (uint32_t j = 0; j < r->experts; j++) before += row[j] > row[e];
    return before < r->topk;
}

/* The published form, written out in double for logits given; `of` are those that the counts are taken of. */
static double balance_of(const k2_router *r, size_t tokens, const double *logits, const double *of)
{
    double loss = 0;
    for (uint32_t e = 0; e < r->experts; e++) {
        double f = 0, mean = 0;
        for (size_t t = 0; t < tokens; t++) {
            double sum = 0;
            for (uint32_t j = 0; j < r->experts; j++) sum += 1 / (1 + exp(-logits[t * r->experts + j]));
            mean += 1 / (1 + exp(-logits[t * r->experts + e])) / sum / (double)tokens;
            f += is_best(r, of + t * r->experts, e);
        }
        loss += f * r->experts / (r->topk * (double)tokens) * mean;
    }
    return loss;
}

static void balance_is_right(void **state)
{
    (void)state;
    enum { T = 7, E = 5, K = 2 };
    const k2_router r = {.experts = E, .topk = K, .groups = 1, .topk_group = 1, .scale = 1.5f, .norm = true};
    float *logits = test_floats(T * E, 31, 2.0), scores[T * E], weight[T * K], bias[E] = {0.9f}, load[E], d_logits[T * E] = {0};
    double wide[T * E], of[T * E];
    uint32_t index[T * K];
    k2_kern_route_fwd(&r, T, logits, bias, scores, index, weight);
    k2_kern_route_load(&r, T, scores, load);
    for (int i = 0; i < T * E; i++) wide[i] = of[i] = (double)logits[i];
    assert_true(fabs(k2_kern_route_balance(&r, T, scores, load) - balance_of(&r, T, wide, of)) < 1e-6);
    int first = 0; /* the bias takes its expert everywhere, and the counts do not know of it */
    for (int i = 0; i < T * K; i++) first += index[i] == 0;
    assert_true(first == T && load[0] < (float)E / K * 0.9f);
    k2_kern_route_balance_bwd(&r, T, 2, load, 3, scores, d_logits);
    k2_kern_route_balance_bwd(&r, T, 2, load, T - 3, scores + 3 * E, d_logits + 3 * E);
    for (int i = 0; i < T * E; i++) {
        double at = wide[i];
        wide[i] = at + 1e-5;
        double up = balance_of(&r, T, wide, of);
        wide[i] = at - 1e-5;
        double down = balance_of(&r, T, wide, of);
        wide[i] = at;
        assert_true(fabs((double)d_logits[i] - 2 * (up - down) / 2e-5) < 1e-6);
    }
    for (int i = 0; i < T * E; i++) scores[i] = i % (E + 1) == 0 || i % (E + 1) == 1 ? 0.75f : 0.25f;
    k2_kern_route_load(&r, 5, scores, load); /* each expert once or twice */
    for (int e = 0; e < E; e++) assert_true(load[e] == 0.5f || load[e] == 1.0f || load[e] == 1.5f);
    k2_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_lowest_index), cmocka_unit_test(bias_selects_but_does_not_weigh),
        cmocka_unit_test(groups_limit_the_choice),     cmocka_unit_test(nan_still_gives_distinct_experts),
        cmocka_unit_test(backward_is_right),           cmocka_unit_test(shares_that_cannot_move_have_no_gradient),
        cmocka_unit_test(yarn_has_kimi_k2s_numbers),   cmocka_unit_test(balance_is_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
