/* The reference: every kernel in scalar C, exactly as kernel.h words it. Slow, and the judge of all fast paths: the tests hold
 * them to these bits. A change of a rule starts here. */
#include "common/kernel/kernel_int.h"

#include <math.h>
#include <string.h>

/* Sixteen partial sums and the order in which they are added up. */
typedef struct tree {
    float part[16];
} tree;

static float tree_sum(tree *t)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) t->part[i] += t->part[i + half];
    }
    return t->part[0];
}

static float ref_exp1(float x)
{
    if (x < K2I_EXP_LOW) return 0.0f;
    if (x > K2I_EXP_HIGH) x = K2I_EXP_HIGH;
    float t = fmaf(x, K2I_EXP_LOG2E, K2I_EXP_MAGIC);
    float n = t - K2I_EXP_MAGIC;
    float r = fmaf(n, -K2I_EXP_LN2_LO, fmaf(n, -K2I_EXP_LN2_HI, x));
    float p = fmaf(fmaf(fmaf(fmaf(K2I_EXP_E6, r, K2I_EXP_E5), r, K2I_EXP_E4), r, K2I_EXP_E3), r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    uint32_t bits;
    memcpy(&bits, &t, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

static float ref_sigmoid1(float x)
{
    return 1.0f / (1.0f + ref_exp1(-x));
}

static float b_at(const k2_gemm *g, size_t k, size_t n)
{
    switch (g->b_form) {
    case K2_B_PACKED: return g->b[n / 16 * 16 * g->k + k * 16 + n % 16];
    case K2_B_KN: return g->b[k * g->ldb + n];
    case K2_B_NK: return g->b[n * g->ldb + k];
    }
    return 0.0f;
}

static void ref_gemm(const k2_gemm *g)
{
    for (size_t m = 0; m < g->m; m++) {
        for (size_t n = 0; n < g->n; n++) {
            float acc = g->accumulate ? g->c[m * g->ldc + n] : 0.0f;
            for (size_t k = 0; k < g->k; k++) {
                float a = g->a_trans ? g->a[k * g->lda + m] : g->a[m * g->lda + k];
                acc = fmaf(a, b_at(g, k, n), acc);
            }
            g->c[m * g->ldc + n] = acc;
        }
    }
}

/* Operands of the step k of element (m, n), as bf16; past the end zero. */
static float a_bf16(const k2_gemm *g, size_t m, size_t k)
{
    if (k >= g->k) return 0.0f;
    return k2i_bf16_value(k2i_bf16_round(g->a_trans ? g->a[k * g->lda + m] : g->a[m * g->lda + k]));
}

static float b_bf16(const k2_gemm *g, size_t k, size_t n)
{
    if (g->b_form == K2_B_PACKED)
        return k2i_bf16_value(g->b_bf16[k2_kern_packed_bf16(n / 16 * 16, g->k) + k / 2 * 32 + n % 16 * 2 + k % 2]);
    return k < g->k ? k2i_bf16_value(k2i_bf16_round(b_at(g, k, n))) : 0.0f;
}

static void ref_gemm_bf16(const k2_gemm *g)
{
    for (size_t m = 0; m < g->m; m++) {
        for (size_t n = 0; n < g->n; n++) {
            float acc = g->accumulate ? g->c[m * g->ldc + n] : 0.0f;
            for (size_t k = 0; k < g->k; k += 2) {
                acc = k2i_bf16_fma(a_bf16(g, m, k + 1), b_bf16(g, k + 1, n), acc);
                acc = k2i_bf16_fma(a_bf16(g, m, k), b_bf16(g, k, n), acc);
            }
            g->c[m * g->ldc + n] = acc;
        }
    }
}

static void ref_bf16(size_t n, const float *x, uint16_t *y)
{
    for (size_t i = 0; i < n; i++) y[i] = k2i_bf16_round(x[i]);
}

static float ref_dot(size_t n, const float *x, const float *y)
{
    tree t = {{0}};
    for (size_t i = 0; i < n; i++) t.part[i % 16] = fmaf(x[i], y[i], t.part[i % 16]);
    return tree_sum(&t);
}

static void ref_rmsnorm_fwd(size_t rows, size_t width, const float *x, size_t ldx, const float *g, float eps, float *y,
                            size_t ldy, float *r)
{
    for (size_t t = 0; t < rows; t++) {
        const float *row = x + t * ldx;
        float inverse = 1.0f / sqrtf(ref_dot(width, row, row) / (float)width + eps);
        if (r) r[t] = inverse;
        for (size_t i = 0; i < width; i++) y[t * ldy + i] = row[i] * inverse * g[i];
    }
}

static void ref_rmsnorm_bwd(const k2_rmsnorm_bwd *a)
{
    for (size_t t = 0; t < a->rows; t++) {
        const float *x = a->x + t * a->ldx, *dy = a->dy + t * a->lddy;
        float *dx = a->dx + t * a->lddx;
        tree sum = {{0}};
        for (size_t i = 0; i < a->width; i++) sum.part[i % 16] = fmaf(dy[i] * a->g[i], x[i], sum.part[i % 16]);
        float r = a->r[t];
        float back = -(r * r * r / (float)a->width) * tree_sum(&sum);
        for (size_t i = 0; i < a->width; i++) {
            float v = fmaf(x[i], back, dy[i] * a->g[i] * r);
            dx[i] = a->dx_add ? dx[i] + v : v;
        }
    }
}

static void ref_rmsnorm_bwd_gain(const k2_rmsnorm_bwd *a, float *dg, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        for (size_t t = 0; t < a->rows; t++) dg[i] = fmaf(a->dy[t * a->lddy + i], a->x[t * a->ldx + i] * a->r[t], dg[i]);
    }
}

static void ref_rope(float *x, size_t count, size_t stride, size_t width, const float *table_row, bool inverse)
{
    for (size_t v = 0; v < count; v++, x += stride) {
        for (size_t i = 0; i < width; i += 2) {
            float c = table_row[i], s = inverse ? -table_row[i + 1] : table_row[i + 1];
            float x0 = x[i], x1 = x[i + 1];
            x[i] = x0 * c - x1 * s;
            x[i + 1] = x1 * c + x0 * s;
        }
    }
}

/* p [H, round_up(count,16)] = softmax of the scores of one query row. */
static void ref_attn_probs(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *p)
{
    size_t ld = k2i_round16(count);
    for (size_t h = 0; h < a->heads; h++) {
        float *s = p + h * ld, max = -INFINITY;
        for (size_t t = 0; t < count; t++) {
            s[t] = ref_dot(a->width, k2i_key(keys, a->width, t), q + h * a->width) * a->scale;
            if (s[t] > max) max = s[t];
        }
        if (keys->top && max > keys->top[h]) keys->top[h] = max;
        tree sum = {{0}};
        for (size_t t = 0; t < count; t++) {
            s[t] = ref_exp1(s[t] - max);
            sum.part[t % 16] += s[t];
        }
        float inverse = 1.0f / tree_sum(&sum);
        for (size_t t = 0; t < count; t++) s[t] *= inverse;
        for (size_t t = count; t < ld; t++) s[t] = 0.0f;
    }
}

static void ref_attn_fwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *o, float *scratch)
{
    ref_attn_probs(a, keys, count, q, scratch);
    size_t ld = k2i_round16(count);
    for (size_t h = 0; h < a->heads; h++) {
        for (size_t c = 0; c < a->latent; c++) {
            float acc = 0.0f;
            for (size_t t = 0; t < count; t++) acc = fmaf(scratch[h * ld + t], k2i_key(keys, a->width, t)[c], acc);
            o[h * a->latent + c] = acc;
        }
    }
}

static void ref_attn_bwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, const float *d_o, float *dq,
                         float *d_keys, float *scratch)
{
    size_t ld = k2i_round16(count), width = a->width, latent = a->latent;
    float *p = scratch, *ds = scratch + a->heads * ld;
    ref_attn_probs(a, keys, count, q, p);
    for (size_t h = 0; h < a->heads; h++) {
        tree sum = {{0}};
        for (size_t t = 0; t < count; t++) {
            ds[h * ld + t] = ref_dot(latent, k2i_key(keys, width, t), d_o + h * latent);
            sum.part[t % 16] = fmaf(p[h * ld + t], ds[h * ld + t], sum.part[t % 16]);
        }
        float mean = tree_sum(&sum);
        for (size_t t = 0; t < count; t++) ds[h * ld + t] = p[h * ld + t] * (ds[h * ld + t] - mean) * a->scale;
        for (size_t i = 0; i < width; i++) {
            float acc = 0.0f;
            for (size_t t = 0; t < count; t++) acc = fmaf(ds[h * ld + t], k2i_key(keys, width, t)[i], acc);
            dq[h * width + i] = acc;
        }
    }
    for (size_t t = 0; t < count; t++) {
        for (size_t i = 0; i < width; i++) {
            float acc = d_keys[t * width + i];
            for (size_t h = 0; h < a->heads; h++) {
                acc = fmaf(ds[h * ld + t], q[h * width + i], acc);
                if (i < latent) acc = fmaf(p[h * ld + t], d_o[h * latent + i], acc);
            }
            d_keys[t * width + i] = acc;
        }
    }
}

static void ref_swiglu_fwd(size_t n, const float *gate, const float *up, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = gate[i] * ref_sigmoid1(gate[i]) * up[i];
}

static void ref_swiglu_bwd(size_t n, const float *gate, const float *up, const float *dy, float *d_gate, float *d_up)
{
    for (size_t i = 0; i < n; i++) {
        float g = gate[i], u = up[i], d = dy[i];
        float sig = ref_sigmoid1(g), silu = g * sig;
        d_up[i] = d * silu;
        d_gate[i] = d * u * fmaf(silu, 1.0f - sig, sig);
    }
}

static void ref_sigmoid(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = ref_sigmoid1(x[i]);
}

static void ref_softmax_sums(size_t n, const float *x, float *max, float *sum, float *weighted)
{
    float top = -INFINITY;
    for (size_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    tree s = {{0}}, w = {{0}};
    for (size_t i = 0; i < n; i++) {
        float z = x[i] - top, e = ref_exp1(z);
        s.part[i % 16] += e;
        w.part[i % 16] = fmaf(e, z, w.part[i % 16]);
    }
    *max = top;
    *sum = tree_sum(&s);
    *weighted = tree_sum(&w);
}

static void ref_softmax_bwd(float *logits, size_t n, const k2_softmax *s, size_t id, float g)
{
    for (size_t i = 0; i < n; i++) logits[i] = -g * ref_exp1(logits[i] - s->max - s->logsum);
    logits[id] += g;
}

static void ref_exp(size_t n, const float *x, float shift, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = ref_exp1(x[i] - shift);
}

static void ref_add(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void ref_axpy(size_t n, float a, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

static void ref_scale(size_t n, float a, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = a * x[i];
}

static double ref_sumsq(size_t n, const float *x)
{
    double part[16] = {0};
    for (size_t i = 0; i < n; i++) part[i % 16] += (double)x[i] * (double)x[i];
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    }
    return part[0];
}

static void ref_adamw(const k2_adamw *a, size_t n, const float *grad, float *param, float *m, float *v)
{
    float rest1 = 1.0f - a->beta1, rest2 = 1.0f - a->beta2, shrink = a->lr * a->decay;
    for (size_t i = 0; i < n; i++) {
        float g = grad[i] * a->grad_scale;
        m[i] = fmaf(a->beta1, m[i], rest1 * g);
        v[i] = fmaf(a->beta2, v[i], rest2 * g * g);
        float p = fmaf(-shrink, param[i], param[i]);
        param[i] = p - a->lr * (m[i] * a->correct1) / (sqrtf(v[i] * a->correct2) + a->eps);
    }
}

const k2i_kern_ops k2i_kern_ref = {
    .name = "ref",
    .gemm = ref_gemm,
    .gemm_bf16 = ref_gemm_bf16,
    .bf16 = ref_bf16,
    .rmsnorm_fwd = ref_rmsnorm_fwd,
    .rmsnorm_bwd = ref_rmsnorm_bwd,
    .rmsnorm_bwd_gain = ref_rmsnorm_bwd_gain,
    .rope = ref_rope,
    .attn_fwd = ref_attn_fwd,
    .attn_bwd = ref_attn_bwd,
    .swiglu_fwd = ref_swiglu_fwd,
    .swiglu_bwd = ref_swiglu_bwd,
    .sigmoid = ref_sigmoid,
    .softmax_sums = ref_softmax_sums,
    .softmax_bwd = ref_softmax_bwd,
    .exp = ref_exp,
    .add = ref_add,
    .axpy = ref_axpy,
    .scale = ref_scale,
    .dot = ref_dot,
    .sumsq = ref_sumsq,
    .adamw = ref_adamw,
};
