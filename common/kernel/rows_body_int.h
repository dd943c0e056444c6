/* rows_body_int - norms, activations, softmax pieces and vectors over vec_int's lanes; included once by each fast_*.c.
 * Each function follows its namesake in ref.c operation by operation. */
#include "common/kernel/kernel_int.h"
#include "common/kernel/vec_int.h"

/* Whole vectors, then the tail: `left` is what remains from i on, and get and put take either. */
#define K2I_EACH(n, i, left) for (size_t i = 0, left = (n); left > 0; i += 16, left = left > 16 ? left - 16 : 0)

K2I_INLINE v16 get(const float *p, size_t left) { return left >= 16 ? v_load(p) : v_load_n(p, left); }

K2I_INLINE void put(float *p, size_t left, v16 a)
{
    if (left >= 16) {
        v_store(p, a);
    } else {
        v_store_n(p, left, a);
    }
}

K2I_INLINE v16 v_exp(v16 x)
{
    v16 high = v_min(v_set(K2I_EXP_HIGH), x);
    v16 t = v_fma(high, v_set(K2I_EXP_LOG2E), v_set(K2I_EXP_MAGIC));
    v16 n = v_sub(t, v_set(K2I_EXP_MAGIC));
    v16 r = v_fma(n, v_set(-K2I_EXP_LN2_LO), v_fma(n, v_set(-K2I_EXP_LN2_HI), high));
    v16 p = v_fma(v_set(K2I_EXP_E6), r, v_set(K2I_EXP_E5));
    p = v_fma(p, r, v_set(K2I_EXP_E4));
    p = v_fma(p, r, v_set(K2I_EXP_E3));
    p = v_fma(p, r, v_set(0.5f));
    p = v_add(v_fma(p, v_mul(r, r), r), v_set(1.0f));
    return v_zero_below(v_ldexp(p, t), x, v_set(K2I_EXP_LOW));
}

K2I_INLINE v16 v_sigmoid(v16 x)
{
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_mul(x, v_set(-1.0f)))));
}

static float fast_dot(size_t n, const float *x, const float *y)
{
    v16 acc = v_zero();
    K2I_EACH(n, i, left) acc = v_fma(get(x + i, left), get(y + i, left), acc);
    return v_sum(acc);
}

static void fast_rmsnorm_fwd(size_t rows, size_t width, const float *x, size_t ldx, const float *g, float eps, float *y,
                             size_t ldy, float *r)
{
    for (size_t t = 0; t < rows; t++, x += ldx, y += ldy) {
        float inverse = 1.0f / sqrtf(fast_dot(width, x, x) / (float)width + eps);
        if (r) r[t] = inverse;
        v16 by = v_set(inverse);
        K2I_EACH(width, i, left) put(y + i, left, v_mul(v_mul(get(x + i, left), by), get(g + i, left)));
    }
}

static void fast_rmsnorm_bwd(const k2_rmsnorm_bwd *a)
{
    for (size_t t = 0; t < a->rows; t++) {
        const float *x = a->x + t * a->ldx, *dy = a->dy + t * a->lddy;
        float *dx = a->dx + t * a->lddx;
        v16 sum = v_zero();
        K2I_EACH(a->width, i, left)
        {
            sum = v_fma(v_mul(get(dy + i, left), get(a->g + i, left)), get(x + i, left), sum);
        }
        float r = a->r[t];
        v16 back = v_set(-(r * r * r / (float)a->width) * v_sum(sum)), by = v_set(r);
        K2I_EACH(a->width, i, left)
        {
            v16 direct = v_mul(v_mul(get(dy + i, left), get(a->g + i, left)), by);
            v16 v = v_fma(get(x + i, left), back, direct);
            put(dx + i, left, a->dx_add ? v_add(get(dx + i, left), v) : v);
        }
    }
}

static void fast_rmsnorm_bwd_gain(const k2_rmsnorm_bwd *a, float *dg, size_t from, size_t to)
{
    K2I_EACH(to - from, j, left)
    {
        size_t i = from + j;
        v16 acc = get(dg + i, left);
        for (size_t t = 0; t < a->rows; t++) {
            v16 normed = v_mul(get(a->x + t * a->ldx + i, left), v_set(a->r[t]));
            acc = v_fma(get(a->dy + t * a->lddy + i, left), normed, acc);
        }
        put(dg + i, left, acc);
    }
}

/* A table row is c0 s0 c1 s1 ...: the products of a pair are x0 c + x1 (-s) and x1 c + x0 s. */
static void fast_rope(float *x, size_t count, size_t stride, size_t width, const float *table_row, bool inverse)
{
    static const float sign[2][16] = {{-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1},
                                      {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1}};
    v16 signs = v_load(sign[inverse]);
    for (size_t v = 0; v < count; v++, x += stride) {
        K2I_EACH(width, i, left)
        {
            v16 cs = get(table_row + i, left), a = get(x + i, left);
            v16 turned = v_mul(v_swap_pairs(a), v_mul(v_dup_odd(cs), signs));
            put(x + i, left, v_add(v_mul(a, v_dup_even(cs)), turned));
        }
    }
}

static void fast_swiglu_fwd(size_t n, const float *gate, const float *up, float *y)
{
    K2I_EACH(n, i, left)
    {
        v16 g = get(gate + i, left);
        put(y + i, left, v_mul(v_mul(g, v_sigmoid(g)), get(up + i, left)));
    }
}

static void fast_swiglu_bwd(size_t n, const float *gate, const float *up, const float *dy, float *d_gate, float *d_up)
{
    K2I_EACH(n, i, left)
    {
        v16 g = get(gate + i, left), u = get(up + i, left), d = get(dy + i, left);
        v16 sig = v_sigmoid(g), silu = v_mul(g, sig);
        put(d_up + i, left, v_mul(d, silu));
        put(d_gate + i, left, v_mul(v_mul(d, u), v_fma(silu, v_sub(v_set(1.0f), sig), sig)));
    }
}

static void fast_sigmoid(size_t n, const float *x, float *y)
{
    K2I_EACH(n, i, left) put(y + i, left, v_sigmoid(get(x + i, left)));
}

/* Largest of n floats; `top` starts at minus infinity and a NaN never wins. */
K2I_INLINE float row_max(size_t n, const float *x)
{
    v16 top = v_set(-INFINITY);
    K2I_EACH(n, i, left) top = v_max(left >= 16 ? v_load(x + i) : v_keep(v_load_n(x + i, left), left, v_set(-INFINITY)), top);
    float lane[16], best = -INFINITY;
    v_store(lane, top);
    for (int i = 0; i < 16; i++) best = lane[i] > best ? lane[i] : best;
    return best;
}

static void fast_softmax_sums(size_t n, const float *x, float *max, float *sum, float *weighted)
{
    float top = row_max(n, x);
    v16 s = v_zero(), w = v_zero(), shift = v_set(top);
    K2I_EACH(n, i, left)
    {
        v16 z = v_sub(get(x + i, left), shift), e = v_exp(z);
        if (left < 16) {
            z = v_keep(z, left, v_zero());
            e = v_keep(e, left, v_zero());
        }
        s = v_add(s, e);
        w = v_fma(e, z, w);
    }
    *max = top;
    *sum = v_sum(s);
    *weighted = v_sum(w);
}

static void fast_softmax_bwd(float *logits, size_t n, const k2_softmax *s, size_t id, float g)
{
    v16 max = v_set(s->max), logsum = v_set(s->logsum), by = v_set(-g);
    K2I_EACH(n, i, left)
    {
        v16 logp = v_sub(v_sub(get(logits + i, left), max), logsum);
        put(logits + i, left, v_mul(by, v_exp(logp)));
    }
    logits[id] += g;
}

static void fast_exp(size_t n, const float *x, float shift, float *y)
{
    v16 by = v_set(shift);
    K2I_EACH(n, i, left) put(y + i, left, v_exp(v_sub(get(x + i, left), by)));
}

static void fast_add(size_t n, const float *x, float *y)
{
    K2I_EACH(n, i, left) put(y + i, left, v_add(get(y + i, left), get(x + i, left)));
}

static void fast_axpy(size_t n, float a, const float *x, float *y)
{
    v16 by = v_set(a);
    K2I_EACH(n, i, left) put(y + i, left, v_fma(by, get(x + i, left), get(y + i, left)));
}

static void fast_scale(size_t n, float a, const float *x, float *y)
{
    v16 by = v_set(a);
    K2I_EACH(n, i, left) put(y + i, left, v_mul(by, get(x + i, left)));
}

/* The product of two floats is exact in double, so it does not matter whether the compiler fuses it with the sum. */
static double fast_sumsq(size_t n, const float *x)
{
    double part[16] = {0};
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        for (size_t l = 0; l < 16; l++) part[l] += (double)x[i + l] * (double)x[i + l];
    }
    for (size_t l = 0; i + l < n; l++) part[l] += (double)x[i + l] * (double)x[i + l];
    for (size_t half = 8; half > 0; half /= 2) {
        for (size_t l = 0; l < half; l++) part[l] += part[l + half];
    }
    return part[0];
}

static void fast_adamw(const k2_adamw *a, size_t n, const float *grad, float *param, float *m, float *v)
{
    v16 rest1 = v_set(1.0f - a->beta1), rest2 = v_set(1.0f - a->beta2), shrink = v_set(-(a->lr * a->decay));
    v16 beta1 = v_set(a->beta1), beta2 = v_set(a->beta2), lr = v_set(a->lr), eps = v_set(a->eps);
    v16 correct1 = v_set(a->correct1), correct2 = v_set(a->correct2), clip = v_set(a->grad_scale);
    K2I_EACH(n, i, left)
    {
        v16 g = v_mul(get(grad + i, left), clip), p = get(param + i, left);
        v16 m1 = v_fma(beta1, get(m + i, left), v_mul(rest1, g));
        v16 v1 = v_fma(beta2, get(v + i, left), v_mul(v_mul(rest2, g), g));
        put(m + i, left, m1);
        put(v + i, left, v1);
        v16 den = v_add(v_sqrt(v_mul(v1, correct2)), eps);
        p = v_fma(shrink, p, p);
        put(param + i, left, v_sub(p, v_div(v_mul(lr, v_mul(m1, correct1)), den)));
    }
}
