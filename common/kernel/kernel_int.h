/* kernel_int - the table that each instruction set fills, and scalar helpers that all of them share. */
#ifndef K2_COMMON_KERNEL_INT_H
#define K2_COMMON_KERNEL_INT_H

#include "common/kernel/kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* One path. Every member is set; the contracts are those of the public functions of the same names. */
typedef struct k2i_kern_ops {
    const char *name;
    void (*gemm)(const k2_gemm *g);
    void (*gemm_bf16)(const k2_gemm *g); /* k2_kern_gemm where g->bf16 */
    void (*bf16)(size_t n, const float *x, uint16_t *y);
    void (*rmsnorm_fwd)(size_t rows, size_t width, const float *x, size_t ldx, const float *g, float eps, float *y, size_t ldy,
                        float *r);
    void (*rmsnorm_bwd)(const k2_rmsnorm_bwd *a);
    void (*rmsnorm_bwd_gain)(const k2_rmsnorm_bwd *a, float *dg, size_t from, size_t to);
    void (*rope)(float *x, size_t count, size_t stride, size_t width, const float *table_row, bool inverse);
    void (*attn_fwd)(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *o, float *scratch);
    void (*attn_bwd)(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, const float *d_o, float *dq,
                     float *d_keys, float *scratch);
    void (*swiglu_fwd)(size_t n, const float *gate, const float *up, float *y);
    void (*swiglu_bwd)(size_t n, const float *gate, const float *up, const float *dy, float *d_gate, float *d_up);
    void (*sigmoid)(size_t n, const float *x, float *y);
    /* max, sum of exp(x - max), sum of exp(x - max) * (x - max) */
    void (*softmax_sums)(size_t n, const float *x, float *max, float *sum, float *weighted);
    void (*softmax_bwd)(float *logits, size_t n, const k2_softmax *s, size_t id, float g);
    void (*exp)(size_t n, const float *x, float shift, float *y);
    void (*add)(size_t n, const float *x, float *y);
    void (*axpy)(size_t n, float a, const float *x, float *y);
    void (*scale)(size_t n, float a, const float *x, float *y);
    float (*dot)(size_t n, const float *x, const float *y);
    double (*sumsq)(size_t n, const float *x);
    void (*adamw)(const k2_adamw *a, size_t n, const float *grad, float *param, float *m, float *v);
} k2i_kern_ops;

extern const k2i_kern_ops k2i_kern_ref, k2i_kern_portable;
/* NULL where the compiler's target has none. */
extern const k2i_kern_ops *const k2i_kern_avx2, *const k2i_kern_avx512, *const k2i_kern_avx512bf16;
extern void (*const k2i_native_gemm_bf16)(const k2_gemm *g);
extern void (*const k2i_native_bf16)(size_t n, const float *x, uint16_t *y);

/* exp(x) for -87 <= x <= 88: 2^n (1 + r + r^2 (0.5 + r (E3 + r (E4 + r (E5 + r E6))))), n = round(x / ln 2), r = x - n ln 2.
 * The polynomial is a minimax fit of our own; its relative error is below 6e-9. */
#define K2I_EXP_LOW    (-87.0f)
#define K2I_EXP_HIGH   88.0f
#define K2I_EXP_LOG2E  1.44269504088896341f
#define K2I_EXP_MAGIC  12582912.0f /* 1.5 * 2^23: adding it rounds to a whole number */
#define K2I_EXP_LN2_HI 0.693145751953125f
#define K2I_EXP_LN2_LO 1.42860682022e-6f
#define K2I_EXP_E6     0.0013950490392744541f
#define K2I_EXP_E5     0.008368889801204205f
#define K2I_EXP_E4     0.04166620597243309f
#define K2I_EXP_E3     0.166665181517601f

/* Nearest bf16, even on a tie; denormals are zero of their sign, a NaN stays one. As vcvtneps2bf16. */
static inline uint16_t k2i_bf16_round(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    if ((u & 0x7f800000u) == 0) return (uint16_t)(u >> 16 & 0x8000u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* The number itself, denormals as zero. */
static inline float k2i_bf16_value(uint16_t h)
{
    uint32_t u = (uint32_t)(h & 0x7f80u ? h : h & 0x8000u) << 16;
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

/* fma(a, b, acc) of two bf16 numbers and an f32, where denormals are zero in and out. The processor asks whether a result is below the
 * normal numbers after it has rounded it to 24 bits, not to the fewer that a denormal has: what is nearer to 2^-126 than a quarter of the
 * last denormal place is 2^-126, while fmaf makes it so from half a place on. In double the sum is exact there. */
static inline float k2i_bf16_fma(float a, float b, float acc)
{
    if (fabsf(acc) < FLT_MIN) acc = copysignf(0.0f, acc);
    float r = fmaf(a, b, acc);
    bool tiny = fabsf(r) < FLT_MIN;
    if (fabsf(r) == FLT_MIN) tiny = fabs((double)a * (double)b + (double)acc) < 0x1p-126 - 0x1p-151;
    return tiny ? copysignf(0.0f, r) : r;
}

/* Address of key t. */
static inline const float *k2i_key(const k2_keys *keys, size_t width, size_t t)
{
    size_t page = keys->table ? keys->table[t / keys->page_tokens] : 0;
    return keys->base + page * keys->page_stride + t % keys->page_tokens * width;
}

/* The i-th of the tiles that m rows are made in. Rows are spread evenly: 9 rows are 5 + 4, not 8 + 1, for a tile of one row hides no
 * latency. */
static inline size_t k2i_tiles(size_t m, size_t rows_max) { return (m + rows_max - 1) / rows_max; }
static inline k2_range k2i_tile(size_t m, size_t rows_max, bool upward, size_t i)
{
    size_t count = k2i_tiles(m, rows_max), low = m / count, extra = m % count, tile = upward ? count - 1 - i : i;
    size_t from = tile * low + K2_MIN(tile, extra);
    return (k2_range){from, from + low + (tile < extra)};
}

static inline size_t k2i_round16(size_t n) { return (n + 15) & ~(size_t)15; }

#endif
