/* vec_int - sixteen f32 lanes, once for each instruction set, so that the bodies of the kernels are written once.
 *
 * K2I_LEVEL is 0 (plain C, fmaf), 2 (AVX2 and FMA: two halves) or 512 (AVX-512F). Every operation rounds each lane once, by
 * IEEE; so a body gives the same bits at every level. max and min give their second operand where one is NaN, at all levels.
 */
#ifndef K2_COMMON_KERNEL_VEC_INT_H
#define K2_COMMON_KERNEL_VEC_INT_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __clang__
#define K2I_UNROLL _Pragma("clang loop unroll(full)")
#else
#define K2I_UNROLL _Pragma("GCC unroll 32")
#endif
#define K2I_INLINE static inline __attribute__((always_inline, unused))

#if K2I_LEVEL == 512 /* ---------------------------------------------------------------------------------------------- */
#include <immintrin.h>

typedef __m512 v16;

K2I_INLINE v16 v_zero(void) { return _mm512_setzero_ps(); }
K2I_INLINE v16 v_set(float x) { return _mm512_set1_ps(x); }
K2I_INLINE v16 v_load(const float *p) { return _mm512_loadu_ps(p); }
K2I_INLINE void v_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
K2I_INLINE __mmask16 v_mask(size_t n) { return (__mmask16)((1u << n) - 1u); }
K2I_INLINE v16 v_load_n(const float *p, size_t n) { return _mm512_maskz_loadu_ps(v_mask(n), p); }
K2I_INLINE void v_store_n(float *p, size_t n, v16 a) { _mm512_mask_storeu_ps(p, v_mask(n), a); }
/* lanes below n of a, the others of rest */
K2I_INLINE v16 v_keep(v16 a, size_t n, v16 rest) { return _mm512_mask_mov_ps(rest, v_mask(n), a); }
/* x0 x0 x2 x2 ..., x1 x1 x3 x3 ..., x1 x0 x3 x2 ... */
K2I_INLINE v16 v_dup_even(v16 a) { return _mm512_moveldup_ps(a); }
K2I_INLINE v16 v_dup_odd(v16 a) { return _mm512_movehdup_ps(a); }
K2I_INLINE v16 v_swap_pairs(v16 a) { return _mm512_permute_ps(a, 0xb1); }
K2I_INLINE v16 v_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
K2I_INLINE v16 v_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
K2I_INLINE v16 v_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
K2I_INLINE v16 v_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
K2I_INLINE v16 v_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
K2I_INLINE v16 v_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
K2I_INLINE v16 v_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
K2I_INLINE v16 v_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
/* a where x >= y or one is NaN, else 0 */
K2I_INLINE v16 v_zero_below(v16 a, v16 x, v16 y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, y, _CMP_NLT_UQ), a);
}
/* a * 2^n where t = n + 1.5 * 2^23 */
K2I_INLINE v16 v_ldexp(v16 a, v16 t)
{
    __m512i e = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_mul_ps(a, _mm512_castsi512_ps(_mm512_add_epi32(e, _mm512_set1_epi32(0x3f800000))));
}
/* the tree: l and l+8, l and l+4, l and l+2, l and l+1 */
K2I_INLINE float v_sum(v16 a)
{
    __m256 hi8 = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a), 1));
    __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a), hi8);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
/* v_sum of a[0..15] in lanes 0..15. Each step joins two vectors and halves the partials of each; the places where results
 * land are chosen so that the last step leaves them in order. */
K2I_INLINE v16 v_sum16(const v16 a[16])
{
    v16 s[16];
    K2I_UNROLL
    for (int i = 0; i < 8; i++) { /* [a_i : 8 partials][a_{i+8} : 8 partials] */
        s[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 8], 0x44), _mm512_shuffle_f32x4(a[i], a[i + 8], 0xee));
    }
    K2I_UNROLL
    for (int i = 0; i < 4; i++) { /* four 128-bit parts: i, i+8 of s_i; i+4, i+12 of s_{i+4} */
        s[i] = _mm512_add_ps(_mm512_shuffle_f32x4(s[i], s[i + 4], 0x88), _mm512_shuffle_f32x4(s[i], s[i + 4], 0xdd));
    }
    K2I_UNROLL
    for (int i = 0; i < 2; i++) { /* in each part: two partials of i, two of i+2 */
        s[i] = _mm512_add_ps(_mm512_shuffle_ps(s[i], s[i + 2], 0x44), _mm512_shuffle_ps(s[i], s[i + 2], 0xee));
    }
    v16 r = _mm512_add_ps(_mm512_shuffle_ps(s[0], s[1], 0x88), _mm512_shuffle_ps(s[0], s[1], 0xdd));
    /* each part holds i, i+2, i+1, i+3 and the parts stand for 0, 8, 4, 12 */
    r = _mm512_permute_ps(r, 0xd8);
    return _mm512_shuffle_f32x4(r, r, 0xd8);
}
K2I_INLINE void v_sums(const v16 *a, const int n, float *out)
{
    if (n == 16) {
        v_store(out, v_sum16(a));
    } else {
        for (int i = 0; i < n; i++) out[i] = v_sum(a[i]);
    }
}

#elif K2I_LEVEL == 2 /* ---------------------------------------------------------------------------------------------- */
#include <immintrin.h>

typedef struct v16 {
    __m256 lo, hi;
} v16;

static const int32_t v_mask_table[32] __attribute__((unused)) = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

K2I_INLINE __m256i v_mask_lo(size_t n) { return _mm256_loadu_si256((const __m256i *)(const void *)(v_mask_table + 16 - n)); }
K2I_INLINE __m256i v_mask_hi(size_t n) { return _mm256_loadu_si256((const __m256i *)(const void *)(v_mask_table + 24 - n)); }
K2I_INLINE v16 v_zero(void) { return (v16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
K2I_INLINE v16 v_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
K2I_INLINE v16 v_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
K2I_INLINE void v_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
K2I_INLINE v16 v_load_n(const float *p, size_t n)
{
    return (v16){_mm256_maskload_ps(p, v_mask_lo(n)), n > 8 ? _mm256_maskload_ps(p + 8, v_mask_hi(n)) : _mm256_setzero_ps()};
}
K2I_INLINE void v_store_n(float *p, size_t n, v16 a)
{
    _mm256_maskstore_ps(p, v_mask_lo(n), a.lo);
    if (n > 8) _mm256_maskstore_ps(p + 8, v_mask_hi(n), a.hi);
}
K2I_INLINE v16 v_keep(v16 a, size_t n, v16 rest)
{
    return (v16){_mm256_blendv_ps(rest.lo, a.lo, _mm256_castsi256_ps(v_mask_lo(n))),
                 _mm256_blendv_ps(rest.hi, a.hi, _mm256_castsi256_ps(v_mask_hi(n)))};
}
K2I_INLINE v16 v_dup_even(v16 a) { return (v16){_mm256_moveldup_ps(a.lo), _mm256_moveldup_ps(a.hi)}; }
K2I_INLINE v16 v_dup_odd(v16 a) { return (v16){_mm256_movehdup_ps(a.lo), _mm256_movehdup_ps(a.hi)}; }
K2I_INLINE v16 v_swap_pairs(v16 a) { return (v16){_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)}; }
#define V_MAP2(name, op) \
    K2I_INLINE v16 name(v16 a, v16 b) { return (v16){op(a.lo, b.lo), op(a.hi, b.hi)}; }
V_MAP2(v_add, _mm256_add_ps)
V_MAP2(v_sub, _mm256_sub_ps)
V_MAP2(v_mul, _mm256_mul_ps)
V_MAP2(v_div, _mm256_div_ps)
V_MAP2(v_max, _mm256_max_ps)
V_MAP2(v_min, _mm256_min_ps)
#undef V_MAP2
K2I_INLINE v16 v_sqrt(v16 a) { return (v16){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
K2I_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    return (v16){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
K2I_INLINE v16 v_zero_below(v16 a, v16 x, v16 y)
{
    return (v16){_mm256_and_ps(a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_NLT_UQ)),
                 _mm256_and_ps(a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_NLT_UQ))};
}
K2I_INLINE __m256 v_ldexp8(__m256 a, __m256 t)
{
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_add_epi32(e, _mm256_set1_epi32(0x3f800000))));
}
K2I_INLINE v16 v_ldexp(v16 a, v16 t) { return (v16){v_ldexp8(a.lo, t.lo), v_ldexp8(a.hi, t.hi)}; }
K2I_INLINE float v_sum(v16 a)
{
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
K2I_INLINE __m128 v_sum_to_4(v16 a)
{
    __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    return _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
}
/* v_sum of each of a[0..n); four go down the last two steps of the tree together */
K2I_INLINE void v_sums(const v16 *a, const int n, float *out)
{
    if (n == 4) {
        __m128 s0 = v_sum_to_4(a[0]), s1 = v_sum_to_4(a[1]), s2 = v_sum_to_4(a[2]), s3 = v_sum_to_4(a[3]);
        __m128 s01 = _mm_add_ps(_mm_unpacklo_ps(s0, s1), _mm_unpackhi_ps(s0, s1)); /* of 0, of 1, of 0, of 1 */
        __m128 s23 = _mm_add_ps(_mm_unpacklo_ps(s2, s3), _mm_unpackhi_ps(s2, s3));
        _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(s01, s23), _mm_movehl_ps(s23, s01)));
    } else {
        for (int i = 0; i < n; i++) out[i] = v_sum(a[i]);
    }
}

#else /* ------------------------------------------------------------------------------------------------------------- */

typedef struct v16 {
    float f[16];
} v16;

#define V_EACH for (int i = 0; i < 16; i++)
K2I_INLINE v16 v_set(float x)
{
    v16 r;
    V_EACH r.f[i] = x;
    return r;
}
K2I_INLINE v16 v_zero(void) { return v_set(0.0f); }
K2I_INLINE v16 v_load(const float *p)
{
    v16 r;
    memcpy(r.f, p, sizeof(r.f));
    return r;
}
K2I_INLINE void v_store(float *p, v16 a) { memcpy(p, a.f, sizeof(a.f)); }
K2I_INLINE v16 v_load_n(const float *p, size_t n)
{
    v16 r = v_zero();
    memcpy(r.f, p, n * sizeof(float));
    return r;
}
K2I_INLINE void v_store_n(float *p, size_t n, v16 a) { memcpy(p, a.f, n * sizeof(float)); }
K2I_INLINE v16 v_keep(v16 a, size_t n, v16 rest)
{
    V_EACH a.f[i] = (size_t)i < n ? a.f[i] : rest.f[i];
    return a;
}
K2I_INLINE v16 v_dup_even(v16 a)
{
    V_EACH a.f[i] = a.f[i & ~1];
    return a;
}
K2I_INLINE v16 v_dup_odd(v16 a)
{
    v16 r;
    V_EACH r.f[i] = a.f[i | 1];
    return r;
}
K2I_INLINE v16 v_swap_pairs(v16 a)
{
    v16 r;
    V_EACH r.f[i] = a.f[i ^ 1];
    return r;
}
#define V_MAP2(name, expr)               \
    K2I_INLINE v16 name(v16 a, v16 b)    \
    {                                    \
        V_EACH                           \
        {                                \
            float x = a.f[i], y = b.f[i]; \
            a.f[i] = (expr);             \
        }                                \
        return a;                        \
    }
V_MAP2(v_add, x + y)
V_MAP2(v_sub, x - y)
V_MAP2(v_mul, x *y)
V_MAP2(v_div, x / y)
V_MAP2(v_max, x > y ? x : y)
V_MAP2(v_min, x < y ? x : y)
#undef V_MAP2
K2I_INLINE v16 v_sqrt(v16 a)
{
    V_EACH a.f[i] = sqrtf(a.f[i]);
    return a;
}
K2I_INLINE v16 v_fma(v16 a, v16 b, v16 c)
{
    V_EACH c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
    return c;
}
K2I_INLINE v16 v_zero_below(v16 a, v16 x, v16 y)
{
    V_EACH a.f[i] = x.f[i] < y.f[i] ? 0.0f : a.f[i];
    return a;
}
K2I_INLINE v16 v_ldexp(v16 a, v16 t)
{
    V_EACH
    {
        uint32_t bits;
        memcpy(&bits, &t.f[i], sizeof(bits));
        bits = (bits << 23) + 0x3f800000u;
        float scale;
        memcpy(&scale, &bits, sizeof(scale));
        a.f[i] *= scale;
    }
    return a;
}
K2I_INLINE float v_sum(v16 a)
{
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) a.f[i] += a.f[i + half];
    }
    return a.f[0];
}
K2I_INLINE void v_sums(const v16 *a, const int n, float *out)
{
    for (int i = 0; i < n; i++) out[i] = v_sum(a[i]);
}
#undef V_EACH
#endif

#endif
