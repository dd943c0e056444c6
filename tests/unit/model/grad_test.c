/* Every backward against central differences: for each tensor, the slope of the loss along its gradient and along random
 * directions. A loss in f32 is only good to about 1e-6, so slopes are compared over steps that move it far more than that. */
#include "tests/unit/model/model_test_int.h"

static double loss(k2_model *m, const k2_model_batch *b, const float *weight)
{
    float *logp = k2_alloc_array(b->tokens_count, sizeof(float));
    double balance;
    test_run(m, 1, b, &(k2_model_out){.logp = logp, .balance = &balance}, NULL, NULL);
    double sum = (double)b->balance_weight * balance;
    for (size_t t = 0; t < b->tokens_count; t++) sum += (double)logp[t] * (double)weight[t];
    k2_free(logp);
    return sum;
}

/* (loss(p + h u) - loss(p - h u)) / 2h by Richardson over h and h/2, which cancels the cubic term. */
static double slope(k2_model *m, const k2_model_batch *b, const float *weight, const k2_param *p, const float *u, double h)
{
    float *w = k2_model_params(m) + p->offset, *keep = k2_alloc_array(p->count, sizeof(float));
    memcpy(keep, w, p->count * sizeof(float));
    double d[2];
    for (int half = 0; half < 2; half++) {
        double step = half ? h / 2 : h, f[2];
        for (int side = 0; side < 2; side++) {
            for (size_t e = 0; e < p->count; e++) w[e] = (float)((double)keep[e] + (side ? step : -step) * (double)u[e]);
            k2_model_params_changed(m);
            f[side] = loss(m, b, weight);
        }
        d[half] = (f[1] - f[0]) / (2 * step);
    }
    memcpy(w, keep, p->count * sizeof(float));
    k2_model_params_changed(m);
    k2_free(keep);
    return (4 * d[1] - d[0]) / 3;
}

static void check_direction(k2_model *m, const k2_model_batch *b, const float *weight, const k2_param *p, const float *grad,
                            float *u)
{
    double norm = 0, along = 0, scale = 0;
    for (size_t e = 0; e < p->count; e++) {
        norm += (double)u[e] * (double)u[e];
        scale += (double)grad[e] * (double)grad[e];
    }
    norm = sqrt(norm);
    scale = sqrt(scale);
    for (size_t e = 0; e < p->count; e++) {
        u[e] = (float)((double)u[e] / norm);
        along += (double)u[e] * (double)grad[e];
    }
    double got = slope(m, b, weight, p, u, 0.02 / (1 + scale)); /* moves the loss by about 0.02 at most */
    double limit = 2e-3 * scale + 2e-4;
    if (fabs(got - along) > limit)
        fail_msg("%s: differences give %.6g, the backward %.6g (limit %.2g)", p->name, got, along, limit);
}

static void check_model_with(int kind, float balance_weight)
{
    k2_dims d = test_dims(kind);
    k2_model *m = test_model(&d, 1, 7 + (uint64_t)kind);
    const k2_model_layout *l = k2_model_layout_of(m);
    /* A biased router keeps its choice under small steps (a flip would be a jump), and leaves experts without tokens. */
    for (size_t i = 0; i < l->params_count; i++) {
        float *w = k2_model_params(m) + l->params[i].offset;
        for (size_t e = 0; l->params[i].kind == K2_KIND_BIAS && e < l->params[i].count; e++)
            w[e] = 2.0f * (float)((e * 5 + 3) % l->params[i].count);
    }
    k2_model_params_changed(m);
    const uint32_t lens[] = {1, 9, 5};
    test_batch t = test_batch_new(&d, lens, 3, 11);
    t.b.balance_weight = balance_weight;
    float weight[15], logp[15], *grads = k2_alloc_array(l->floats, sizeof(float));
    for (size_t i = 0; i < 15; i++) weight[i] = (float)(2 * k2_rand_unit(3, K2_STREAM_TEST, 4, i) - 1);
    test_run(m, 1, &t.b, &(k2_model_out){.logp = logp}, weight, grads);
    size_t silent = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        const k2_param *p = &l->params[i];
        const float *g = grads + p->offset;
        float *u = k2_alloc_array(p->count, sizeof(float));
        memcpy(u, g, p->count * sizeof(float));
        bool zero = true;
        for (size_t e = 0; e < p->count; e++) zero = zero && g[e] == 0.0f;
        silent += zero && p->expert >= 0;
        if (!zero) check_direction(m, &t.b, weight, p, g, u);
        for (size_t e = 0; e < p->count; e++) u[e] = (float)(2 * k2_rand_unit(5, K2_STREAM_TEST, i, e) - 1);
        if (p->kind != K2_KIND_BIAS) check_direction(m, &t.b, weight, p, g, u);
        k2_free(u);
    }
    if (d.n_routed_experts) assert_true(silent > 0); /* experts without tokens: gradient zero, and differences agree */
    k2_free(grads);
    test_batch_free(&t);
    k2_model_free(m);
}

static void check_model(int kind)
{
    check_model_with(kind, 0);
    check_model_with(kind, 3); /* as heavy as the rest, that it may be seen */
}

static void plain(void **state)
{
    (void)state;
    check_model(0);
}

static void qlora_yarn_odd(void **state)
{
    (void)state;
    check_model(1);
}

static void groups_tied(void **state)
{
    (void)state;
    check_model(2);
}

static void dense(void **state)
{
    (void)state;
    check_model(3);
}

/* Gradients accumulate, do not depend on threads or on what is computed again, and are the same on every path of the kernels.
 */
static void one_result(const k2_dims *d, k2_compute compute)
{
    enum { TOKENS = 184 };
    const uint32_t lens[] = {70, 3, 90, 1, 20};
    test_batch t = test_batch_new(d, lens, 5, 21);
    t.b.balance_weight = 0.5f;
    float *want = NULL, *logp_want = NULL, dlogp[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) dlogp[i] = (float)(k2_rand_unit(3, K2_STREAM_TEST, 5, i) - 0.5);
    static const struct {
        uint32_t threads;
        k2_isa isa;
        k2_recompute recompute;
    } runs[] = {{1, K2_ISA_COUNT, K2_RECOMPUTE_NONE},      {2, K2_ISA_COUNT, K2_RECOMPUTE_NONE},
                {3, K2_ISA_COUNT, K2_RECOMPUTE_NONE},      {1, K2_ISA_AVX2, K2_RECOMPUTE_NONE},
                {1, K2_ISA_AVX512, K2_RECOMPUTE_NONE},     {1, K2_ISA_PORTABLE, K2_RECOMPUTE_NONE},
                {1, K2_ISA_COUNT, K2_RECOMPUTE_SELECTIVE}, {3, K2_ISA_COUNT, K2_RECOMPUTE_SELECTIVE},
                {1, K2_ISA_COUNT, K2_RECOMPUTE_FULL},      {3, K2_ISA_COUNT, K2_RECOMPUTE_FULL},
                {8, K2_ISA_COUNT, K2_RECOMPUTE_NONE}, /* few rows for eight threads */
                {8, K2_ISA_COUNT, K2_RECOMPUTE_SELECTIVE}};
    for (size_t run = 0; run < K2_COUNT(runs); run++) {
        t.b.recompute = runs[run].recompute;
        k2_isa best = k2_kern_isa();
        if (runs[run].isa != K2_ISA_COUNT && k2_kern_isa_use(runs[run].isa) != K2_OK) continue;
        k2_model *m = test_model_in(compute, d, runs[run].threads, 3);
        size_t n = k2_model_param_count(m);
        float *grads = k2_alloc_array(n, sizeof(float)), *logp = k2_alloc_array(TOKENS, sizeof(float));
        for (int twice = 0; twice < 2; twice++)
            test_run(m, runs[run].threads, &t.b, &(k2_model_out){.logp = logp}, dlogp, grads);
        if (want) {
            assert_memory_equal(logp, logp_want, TOKENS * sizeof(float));
            assert_memory_equal(grads, want, n * sizeof(float));
            k2_free(grads);
            k2_free(logp);
        } else {
            want = grads;
            logp_want = logp;
        }
        k2_model_free(m);
        assert_int_equal(k2_kern_isa_use(best), K2_OK);
    }
    k2_free(want);
    k2_free(logp_want);
    test_batch_free(&t);
}

static void bits_do_not_depend_on_threads_path_or_recompute(void **state)
{
    (void)state;
    for (int kind = 0; kind < TEST_MODELS; kind++) {
        k2_dims d = test_dims(kind);
        one_result(&d, K2_COMPUTE_F32);
        one_result(&d, K2_COMPUTE_BF16);
    }
}

/* Each step gives memory back; full recompute needs but one more row a token and layer. */
static void recompute_saves_memory(void **state)
{
    (void)state;
    for (int kind = 0; kind < TEST_MODELS; kind++) {
        k2_dims d = test_dims(kind);
        size_t none = k2_model_train_bytes(&d, 1, 256, K2_RECOMPUTE_NONE),
               some = k2_model_train_bytes(&d, 1, 256, K2_RECOMPUTE_SELECTIVE),
               full = k2_model_train_bytes(&d, 1, 256, K2_RECOMPUTE_FULL);
        assert_true(full < some && some < none);
        d.num_hidden_layers++; /* a table of pointers comes with it */
        size_t more = k2_model_train_bytes(&d, 1, 256, K2_RECOMPUTE_FULL) - full, row = d.hidden_size * sizeof(float);
        assert_true(more >= 256 * row && more <= 256 * row + 1024);
    }
}

/* The first activation that is not finite is named: the layer whose weight is infinite, or nothing. */
static void bad_activations_are_named(void **state)
{
    (void)state;
    for (int run = 0; run < 3 * TEST_MODELS; run++) {
        k2_dims d = test_dims(run / 3);
        const uint32_t lens[] = {7, 3};
        test_batch t = test_batch_new(&d, lens, 2, 21);
        t.b.recompute = (k2_recompute)(run % 3);
        k2_model *m = test_model(&d, 1, 3);
        k2_arena arena;
        float logp[10];
        char name[128] = "";
        k2_arena_init(&arena, k2_model_act_bytes(&d, 1, 10));
        assert_false(k2_model_acts_bad(k2_model_fwd(m, &t.b, &arena, &(k2_model_out){.logp = logp}), name, sizeof name));
        const k2_param *p = k2_model_layout_find(k2_model_layout_of(m), "model.layers.1.self_attn.o_proj.weight");
        k2_model_params(m)[p->offset] = NAN;
        k2_model_params_changed(m);
        k2_arena_reset(&arena, 0);
        assert_true(k2_model_acts_bad(k2_model_fwd(m, &t.b, &arena, &(k2_model_out){.logp = logp}), name, sizeof name));
        assert_string_equal(name, "layer 1: after attention, row 0");
        k2_arena_fini(&arena);
        k2_model_free(m);
        test_batch_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(qlora_yarn_odd),
        cmocka_unit_test(groups_tied),
        cmocka_unit_test(dense),
        cmocka_unit_test(bits_do_not_depend_on_threads_path_or_recompute),
        cmocka_unit_test(recompute_saves_memory),
        cmocka_unit_test(bad_activations_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
