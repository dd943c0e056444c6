/* Norms, rotation, activations, softmax, AdamW and vectors: all paths against the reference, bit for bit, at odd widths. */
#include "tests/unit/kernel/kernel_test_int.h"

static const size_t widths[] = {1, 2, 7, 15, 16, 17, 31, 32, 33, 48, 100, 264};

/* One kernel applied to fixed inputs, output into out[n]. */
typedef void apply_fn(size_t n, const float *x, const float *y, const float *z, float *out);

static void apply_rmsnorm(size_t n, const float *x, const float *y, const float *z, float *out)
{
    (void)z;
    float r[2];
    k2_kern_rmsnorm_fwd(2, n, x, n, y, 1e-6f, out, n, r);
    out[0] += r[0] + r[1];
}

static void apply_rmsnorm_bwd(size_t n, const float *x, const float *y, const float *z, float *out)
{
    float r[2] = {0.7f, 1.3f};
    k2_rmsnorm_bwd a = {.rows = 2, .width = n, .x = x, .dy = z, .ldx = n, .lddy = n, .g = y, .r = r, .dx = out, .lddx = n};
    k2_kern_rmsnorm_bwd(&a);
    a.dx_add = true;
    k2_kern_rmsnorm_bwd(&a);
    k2_kern_rmsnorm_bwd_gain(&a, out, n / 3, n);
}

static void apply_swiglu(size_t n, const float *x, const float *y, const float *z, float *out)
{
    (void)z;
    k2_kern_swiglu_fwd(2 * n, x, y, out);
}

static void apply_swiglu_bwd(size_t n, const float *x, const float *y, const float *z, float *out)
{
    k2_kern_swiglu_bwd(n, x, y, z, out, out + n);
}

static void apply_sigmoid(size_t n, const float *x, const float *y, const float *z, float *out)
{
    (void)y;
    (void)z;
    k2_kern_sigmoid(2 * n, x, out);
}

static void apply_exp(size_t n, const float *x, const float *y, const float *z, float *out)
{
    (void)y;
    (void)z;
    k2_kern_exp(2 * n, x, 3.0f, out);
}

static void apply_softmax(size_t n, const float *x, const float *y, const float *z, float *out)
{
    (void)y;
    (void)z;
    k2_softmax s = k2_kern_softmax_row(x, n);
    memcpy(out, x, n * sizeof(float));
    out[n] = n > 1 ? s.entropy + s.logsum : s.max;
    k2_kern_softmax_bwd(out, n, &s, n / 2, 0.37f);
}

static void apply_vectors(size_t n, const float *x, const float *y, const float *z, float *out)
{
    memcpy(out, z, 2 * n * sizeof(float));
    k2_kern_add(2 * n, x, out);
    k2_kern_axpy(2 * n, 0.3f, y, out);
    k2_kern_scale(n, 1.7f, out, out);
    out[0] = k2_kern_dot(2 * n, x, y);
    out[1] = (float)k2_kern_sumsq(2 * n, x);
}

static void apply_adamw(size_t n, const float *x, const float *y, const float *z, float *out)
{
    float *p = test_copy(y, n), *v = test_copy(z, n);
    for (size_t i = 0; i < n; i++) v[i] = v[i] * v[i];
    k2_adamw a = {.lr = 0.01f,
                  .beta1 = 0.9f,
                  .beta2 = 0.95f,
                  .eps = 1e-8f,
                  .decay = 0.1f,
                  .grad_scale = 0.5f,
                  .correct1 = 2.0f,
                  .correct2 = 3.0f};
    memcpy(out, x, n * sizeof(float)); /* first moment */
    k2_kern_adamw(&a, n, z, p, out, v);
    memcpy(out + n, p, n * sizeof(float));
    k2_kern_add(n, v, out);
    k2_free(p);
    k2_free(v);
}

static void apply_rope(size_t n, const float *x, const float *y, const float *z, float *out)
{
    (void)z;
    memcpy(out, x, 2 * n * sizeof(float));
    k2_kern_rope(out, 2, n, n / 2 * 2, y, false);
    k2_kern_rope(out, 1, n, n / 2 * 2, y, true);
}

static void same_bits(const char *what, apply_fn *fn, double scale)
{
    for (size_t i = 0; i < K2_COUNT(widths); i++) {
        size_t n = widths[i];
        float *x = test_floats(2 * n, 20 + i, scale), *y = test_floats(2 * n, 40 + i, scale),
              *z = test_floats(2 * n, 60 + i, scale);
        float *want = k2_alloc_array(2 * n, sizeof(float)), *got = k2_alloc_array(2 * n, sizeof(float));
        test_use_ref();
        fn(n, x, y, z, want);
        TEST_EACH_ISA(isa)
        {
            memset(got, 0, 2 * n * sizeof(float));
            fn(n, x, y, z, got);
            test_same_bits(what, isa, got, want, 2 * n);
        }
        k2_free(x);
        k2_free(y);
        k2_free(z);
        k2_free(want);
        k2_free(got);
    }
}

static void paths_agree(void **state)
{
    (void)state;
    same_bits("rmsnorm", apply_rmsnorm, 2);
    same_bits("rmsnorm_bwd", apply_rmsnorm_bwd, 2);
    same_bits("swiglu", apply_swiglu, 8);
    same_bits("swiglu_bwd", apply_swiglu_bwd, 8);
    same_bits("sigmoid", apply_sigmoid, 100);
    same_bits("exp", apply_exp, 90);
    same_bits("softmax", apply_softmax, 20);
    same_bits("vectors", apply_vectors, 2);
    same_bits("adamw", apply_adamw, 2);
    same_bits("rope", apply_rope, 2);
}

static void exp_is_right(void **state)
{
    (void)state;
    test_use_ref();
    float edge[] = {-INFINITY, -1000.0f, -87.5f, 0.0f}, y[4];
    k2_kern_exp(4, edge, 0.0f, y);
    assert_true(y[0] == 0.0f && y[1] == 0.0f && y[2] == 0.0f && y[3] == 1.0f);
    for (float x = -87.0f; x < 88.0f; x += 0.01373f) {
        float e;
        k2_kern_exp(1, &x, 0.0f, &e);
        assert_true(fabs((double)e / exp((double)x) - 1.0) < 1.5e-7);
    }
    TEST_EACH_ISA(isa)
    {
        float nan_in = NAN, out;
        k2_kern_exp(1, &nan_in, 0.0f, &out);
        assert_true(isnan(out)); /* a fault must show, not vanish */
        k2_kern_exp(4, edge, 0.0f, y);
        assert_true(y[0] == 0.0f && y[1] == 0.0f && y[3] == 1.0f);
    }
}

static void softmax_is_right(void **state)
{
    (void)state;
    float *x = test_floats(50, 70, 5.0);
    k2_softmax s = k2_kern_softmax_row(x, 50);
    double sum = 0, entropy = 0;
    for (int i = 0; i < 50; i++) sum += exp((double)x[i]);
    for (int i = 0; i < 50; i++) {
        double logp = (double)x[i] - log(sum);
        assert_true(fabs((double)k2_kern_logp(x, &s, (size_t)i) - logp) < 2e-6);
        entropy -= exp(logp) * logp;
    }
    assert_true(fabs((double)s.entropy - entropy) < 2e-6);
    k2_free(x);
}

/* Central differences of sum(w * rmsnorm(x)) and sum(w * swiglu(g, u)). */
static void backward_is_right(void **state)
{
    (void)state;
    enum { N = 19 };
    float *x = test_floats(N, 80, 1.0), *g = test_floats(N, 81, 1.0), *w = test_floats(N, 82, 1.0), y[N], r, dx[N], dg[N] = {0},
          du[N];
    k2_kern_rmsnorm_fwd(1, N, x, N, g, 1e-6f, y, N, &r);
    k2_rmsnorm_bwd a = {.rows = 1, .width = N, .x = x, .dy = w, .ldx = N, .lddy = N, .g = g, .r = &r, .dx = dx, .lddx = N};
    k2_kern_rmsnorm_bwd(&a);
    k2_kern_rmsnorm_bwd_gain(&a, dg, 0, N);
    for (int i = 0; i < N; i++) {
        float keep = x[i], h = 1e-2f;
        double f[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            x[i] = keep + (side ? h : -h);
            k2_kern_rmsnorm_fwd(1, N, x, N, g, 1e-6f, y, N, NULL);
            for (int j = 0; j < N; j++) f[side] += (double)y[j] * (double)w[j];
        }
        x[i] = keep;
        assert_true(fabs((f[1] - f[0]) / (2 * (double)h) - (double)dx[i]) < 1e-3);
        assert_true(fabs((double)dg[i] - (double)(w[i] * x[i] * r)) < 1e-6);
    }
    k2_kern_swiglu_bwd(N, x, g, w, dx, du);
    for (int i = 0; i < N; i++) {
        double s = 1 / (1 + exp(-(double)x[i]));
        assert_true(fabs((double)du[i] - (double)w[i] * (double)x[i] * s) < 1e-6);
        assert_true(fabs((double)dx[i] - (double)w[i] * (double)g[i] * (s + (double)x[i] * s * (1 - s))) < 1e-6);
    }
    k2_free(x);
    k2_free(g);
    k2_free(w);
}

static void finite_sees_all(void **state)
{
    (void)state;
    float x[21] = {0};
    assert_true(k2_kern_finite(21, x));
    x[20] = INFINITY;
    assert_false(k2_kern_finite(21, x));
    x[20] = NAN;
    assert_false(k2_kern_finite(21, x));
    assert_true(k2_kern_finite(20, x));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_agree),       cmocka_unit_test(exp_is_right),    cmocka_unit_test(softmax_is_right),
        cmocka_unit_test(backward_is_right), cmocka_unit_test(finite_sees_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
