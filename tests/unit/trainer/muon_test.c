/* Muon and QK-clip against torch's vectors; shards as one piece; what an update would spoil. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#define VECTORS_DIR K2_SOURCE_DIR "/tests/unit/trainer/vectors"
#include "common/budget/budget.h"
#include "tests/support/vectors.h"
#include "trainer/muon_int.h"

/* The matrices of the vectors, one behind the other, as a layout of their own. */
typedef struct sample {
    vectors v;
    k2_model_layout layout;
    float *step; /* learning rate, weight decay, momentum */
    k2i_optim_config config;
} sample;

static void *take(const sample *s, const char *name, size_t i, size_t count)
{
    char full[32];
    snprintf(full, sizeof(full), "%s:%zu", name, i);
    void *x = vectors_take(&s->v, "", full, count);
    assert_non_null(x);
    return x;
}

static void sample_load(sample *s)
{
    *s = (sample){.v = vectors_load("muon.k2v")};
    int32_t *count = vectors_take(&s->v, "", "count", 1);
    s->layout.params_count = (size_t)*count;
    s->layout.params = k2_alloc_array(s->layout.params_count, sizeof(k2_param));
    for (size_t i = 0; i < s->layout.params_count; i++) {
        int32_t *shape = take(s, "shape", i, 2);
        k2_param *p = &s->layout.params[i];
        p->shape = (k2_shape){.rank = 2, .size = {(uint64_t)shape[0], (uint64_t)shape[1]}};
        p->kind = K2_KIND_MATRIX;
        p->offset = s->layout.floats;
        p->count = (size_t)shape[0] * (size_t)shape[1];
        s->layout.floats += (p->count + 15) / 16 * 16;
        k2_free(shape);
    }
    s->step = vectors_take(&s->v, "", "step", 3);
    s->config = (k2i_optim_config){.weight_decay = (double)s->step[1], .momentum = (double)s->step[2]};
    k2_free(count);
}

static void sample_free(sample *s)
{
    k2_free(s->layout.params);
    k2_free(s->step);
    vectors_free(&s->v);
}

/* A flat vector of one record of each matrix. */
static float *flat(const sample *s, const char *name)
{
    float *x = k2_alloc_array(s->layout.floats, sizeof(float));
    for (size_t i = 0; i < s->layout.params_count; i++) {
        float *one = take(s, name, i, s->layout.params[i].count);
        memcpy(x + s->layout.params[i].offset, one, s->layout.params[i].count * sizeof(float));
        k2_free(one);
    }
    return x;
}

static double rms(const float *x, size_t n)
{
    return sqrt(k2_kern_sumsq(n, x) / (double)n);
}

/* f32 against f64: a product of five steps that stretch small singular values some hundredfold. */
static void test_direction(void **state)
{
    (void)state;
    sample s;
    sample_load(&s);
    float *g = flat(&s, "g0"), *expected = flat(&s, "o");
    for (size_t i = 0; i < s.layout.params_count; i++) {
        const k2_param *p = &s.layout.params[i];
        uint64_t rows = p->shape.size[0], cols = p->shape.size[1];
        float *out = k2_alloc_array(p->count, sizeof(float)),
              *scratch = k2_alloc_array(k2i_muon_scratch(rows, cols), sizeof(float));
        k2i_muon_direction(rows, cols, g + p->offset, out, scratch, NULL);
        double bound = 1e-5 * rms(expected + p->offset, p->count);
        for (size_t k = 0; k < p->count; k++) assert_true(fabs((double)(out[k] - expected[p->offset + k])) <= bound);
        memset(g + p->offset, 0, p->count * sizeof(float));
        k2i_muon_direction(rows, cols, g + p->offset, out, scratch, NULL);
        for (size_t k = 0; k < p->count; k++) assert_true(out[k] == 0);
        k2_free(scratch);
        k2_free(out);
    }
    k2_free(expected);
    k2_free(g);
    sample_free(&s);
}

/* Three updates of `params`, in shards cut at `cut`. */
static void train(const sample *s, uint64_t cut, uint32_t threads, float *params)
{
    uint64_t ends[3] = {0, cut, s->layout.floats};
    float *whole = k2_alloc_array(s->layout.floats, sizeof(float));
    k2i_muon *muon[2];
    k2i_optim optim[2];
    for (int r = 0; r < 2; r++) {
        muon[r] = k2i_muon_new(&s->layout, ends[r], ends[r + 1], threads);
        k2i_optim_init(&optim[r], ends[r], ends[r + 1]);
    }
    for (int t = 0; t < 3; t++) {
        float *grad = flat(s, (const char *const[]){"g0", "g1", "g2"}[t]);
        double lr = (double)s->step[0];
        for (int r = 0; r < 2; r++) k2i_muon_momentum(muon[r], &optim[r], &s->config, 1, grad + ends[r], whole);
        for (int r = 0; r < 2; r++) {
            k2i_muon_orthogonalise(muon[r], whole);
            assert_true(k2i_muon_spoils(muon[r], &optim[r], &s->config, lr, 1, grad + ends[r], params) == K2I_SPOILS_NONE);
            k2i_muon_apply(muon[r], &optim[r], &s->config, lr, 1, grad + ends[r], params);
        }
        k2_free(grad);
    }
    for (int r = 0; r < 2; r++) {
        k2i_optim_fini(&optim[r]);
        k2i_muon_free(muon[r]);
    }
    k2_free(whole);
}

static void check_updates(sample *s, const char *name)
{
    float *whole = flat(s, "w"), *cut = flat(s, "w"), *expected = flat(s, name);
    train(s, s->layout.floats, 1, whole);
    train(s, s->layout.floats / 2, 2, cut);
    assert_memory_equal(whole, cut, s->layout.floats * sizeof(float));
    for (size_t i = 0; i < s->layout.floats; i++) assert_true(fabsf(whole[i] - expected[i]) <= 1e-6f);
    k2_free(expected);
    k2_free(cut);
    k2_free(whole);
}

static void test_updates(void **state)
{
    (void)state;
    sample s;
    sample_load(&s);
    check_updates(&s, "k2");
    s.config.nesterov = true;
    check_updates(&s, "moonlight");
    sample_free(&s);
}

static void test_spoils(void **state)
{
    (void)state;
    sample s;
    sample_load(&s);
    k2i_muon *m = k2i_muon_new(&s.layout, 0, s.layout.floats, 1);
    k2i_optim o;
    k2i_optim_init(&o, 0, s.layout.floats);
    float *grad = flat(&s, "g0"), *params = flat(&s, "w"), *held = flat(&s, "w"), *whole = flat(&s, "w");
    uint64_t at = s.layout.params[1].offset + 3;
    grad[at] = INFINITY;
    k2i_muon_momentum(m, &o, &s.config, 1, grad, whole);
    k2i_muon_orthogonalise(m, whole);
    assert_true(k2i_muon_spoils(m, &o, &s.config, 0.01, 1, grad, params) ==
                s.layout.params[1].offset); /* it fills its matrix */
    grad[at] = 1;
    k2i_muon_momentum(m, &o, &s.config, 1, grad, whole);
    k2i_muon_orthogonalise(m, whole);
    assert_true(k2i_muon_spoils(m, &o, &s.config, 0.01, 1, grad, params) == K2I_SPOILS_NONE);
    params[at] = held[at] = 3e38f;
    assert_true(k2i_muon_spoils(m, &o, &s.config, 1e38, 1, grad, params) <= at);
    assert_memory_equal(params, held, s.layout.floats * sizeof(float));
    assert_true(o.m[at] == 0);
    k2_free(whole);
    k2_free(held);
    k2_free(params);
    k2_free(grad);
    k2i_optim_fini(&o);
    k2i_muon_free(m);
    sample_free(&s);
}

/* Large ones, which all threads compute together, with small ones between them, tall and wide: the bits of one thread alone, in
 * any shards. */
static void test_large(void **state)
{
    (void)state;
    const uint64_t shapes[][2] = {{40, 24}, {530, 250}, {256, 520}, {16, 33}};
    k2_param params[K2_COUNT(shapes)];
    k2_model_layout l = {.params = params, .params_count = K2_COUNT(shapes)};
    for (size_t i = 0; i < l.params_count; i++) {
        params[i] = (k2_param){.kind = K2_KIND_MATRIX, .offset = l.floats, .count = shapes[i][0] * shapes[i][1]};
        params[i].shape = (k2_shape){.rank = 2, .size = {shapes[i][0], shapes[i][1]}};
        assert_int_equal(k2_budget_muon_large(shapes[i][0], shapes[i][1]), i == 1 || i == 2);
        l.floats += (params[i].count + 15) / 16 * 16;
    }
    const k2i_optim_config config = {.weight_decay = 0.1, .momentum = 0.9};
    float *grad = k2_alloc_array(l.floats, sizeof(float)), *whole = k2_alloc_array(l.floats, sizeof(float)),
          *first = k2_alloc_array(l.floats, sizeof(float)), *other = k2_alloc_array(l.floats, sizeof(float));
    for (uint64_t i = 0; i < l.floats; i++) grad[i] = (float)k2_rand_normal(3, K2_STREAM_INIT, 0, i);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        float *out = threads == 1 ? first : other;
        memset(out, 0, l.floats * sizeof(float));
        uint64_t ends[3] = {0, threads == 2 ? l.floats / 2 : l.floats, l.floats};
        for (int r = 0; r < 2; r++) {
            k2i_muon *m = k2i_muon_new(&l, ends[r], ends[r + 1], threads);
            k2i_optim o;
            k2i_optim_init(&o, 0, l.floats);
            if (r == 0) memcpy(whole, grad, l.floats * sizeof(float)); /* the first momentum is the gradient */
            k2i_muon_orthogonalise(m, whole);
            o.begin = ends[r];
            if (r == 0) /* all are spoilt, and the first of all is a small one's */
                assert_int_equal(k2i_muon_spoils(m, &o, &config, 1e39, 1, grad, out), 0);
            k2i_muon_apply(m, &o, &config, 0.01, 1, grad + ends[r], out);
            k2i_optim_fini(&o);
            k2i_muon_free(m);
        }
        assert_memory_equal(out, first, l.floats * sizeof(float));
    }
    for (size_t i = 0; i < l.params_count; i++) { /* and each is what one call makes of it */
        float *out = k2_alloc_array(params[i].count, sizeof(float)),
              *scratch = k2_alloc_array(k2i_muon_scratch(shapes[i][0], shapes[i][1]), sizeof(float));
        k2i_muon_direction(shapes[i][0], shapes[i][1], grad + params[i].offset, out, scratch, NULL);
        float lr = (float)(0.01 * 0.2 * sqrt((double)K2_MAX(shapes[i][0], shapes[i][1])));
        for (uint64_t k = 0; k < params[i].count; k++) assert_true(first[params[i].offset + k] == 0.0f - lr * out[k]);
        k2_free(scratch);
        k2_free(out);
    }
    k2_free(other);
    k2_free(first);
    k2_free(whole);
    k2_free(grad);
}

/* Two layers: the vectors' tops are those of the second one, the first one stays below tau. */
static void test_qk_clip(void **state)
{
    (void)state;
    sample s;
    sample_load(&s);
    int32_t *n = vectors_take(&s.v, "", "dims", 6);
    float *tau = vectors_take(&s.v, "", "tau", 1), *given = vectors_take(&s.v, "", "tops", 3);
    k2_dims d = {.num_attention_heads = (uint32_t)n[0],
                 .qk_nope_head_dim = (uint32_t)n[1],
                 .qk_rope_head_dim = (uint32_t)n[2],
                 .v_head_dim = (uint32_t)n[3]};
    uint64_t rows[2] = {(uint64_t)(n[0] * (n[1] + n[2])), (uint64_t)(n[0] * (n[1] + n[3]))};
    k2_param params[4] = {{.name = "model.layers.0.self_attn.q_proj.weight", .layer = 0},
                          {.name = "model.layers.0.self_attn.kv_b_proj.weight", .layer = 0},
                          {.name = "model.layers.1.self_attn.q_b_proj.weight", .layer = 1},
                          {.name = "model.layers.1.self_attn.kv_b_proj.weight", .layer = 1}};
    k2_model_layout layout = {.params_count = 4, .params = params};
    float values[1024];
    double tops[6] = {100, -5, 0, (double)given[0], (double)given[1], (double)given[2]};
    for (int i = 0; i < 4; i++) {
        uint64_t cols = (uint64_t)(i % 2 ? n[5] : n[4]);
        params[i].shape = (k2_shape){.rank = 2, .size = {rows[i % 2], cols}};
        params[i].offset = layout.floats;
        params[i].count = rows[i % 2] * cols;
        layout.floats += params[i].count;
        assert_true(layout.floats <= K2_COUNT(values));
        float *before = vectors_take(&s.v, "", i % 2 ? "kv" : "q", params[i].count);
        memcpy(values + params[i].offset, before, params[i].count * sizeof(float));
        k2_free(before);
    }
    assert_int_equal(k2i_qk_clip(&d, &layout, tops, (double)*tau, values), 2);
    for (int i = 0; i < 4; i++) {
        float *after = vectors_take(&s.v, i % 2 ? "kv" : "q", i < 2 ? "" : "'", params[i].count);
        for (size_t k = 0; k < params[i].count; k++)
            assert_true(fabsf(values[params[i].offset + k] - after[k]) <= (i < 2 ? 0 : 3e-7f * fabsf(after[k])));
        k2_free(after);
    }
    k2_free(given);
    k2_free(tau);
    k2_free(n);
    sample_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_direction), cmocka_unit_test(test_updates),
                                       cmocka_unit_test(test_large), cmocka_unit_test(test_spoils),
                                       cmocka_unit_test(test_qk_clip)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
