/* gemm_bf16_body_int - the matrix product of operands rounded to bf16, over vec_int's lanes; included once by each fast_*.c.
 *
 * The unit is a pair: two neighbours along k, the even one in the low half of 32 bits. A panel of B is [pairs][16 columns][2], so one
 * load gives sixteen columns two steps of their chains, and one pair of A is spread over all lanes. What one step is, vdpbf16ps has
 * settled (kernel.h): K2I_BF16_NATIVE takes that instruction, the other vector levels two fused multiply-adds while the
 * processor treats denormals as zero, plain C the reference's step. All agree to the bit.
 *
 * Blocks: a part of k, a part of the columns, 64 rows. A is rounded to bf16 block by block into a buffer on the stack; B too where it
 * does not come in panels. Between blocks of k the chain rests in C, which loses nothing.
 */
#include "common/kernel/kernel_int.h"
#include "common/kernel/vec_int.h"

#define K2I_PAIR_ROWS  64 /* rows of A rounded at once */
#define K2I_PAIR_KC    128 /* pairs of a block of k, where there are many rows */
#define K2I_PAIR_FEW   8   /* up to so many rows the block is as much longer: a weight's panel is then read from end to end */
#define K2I_PAIR_COLS  16  /* panels of B that are made at once where it comes raw, or more where they are shorter than a block */
#define K2I_PAIR_STRIP 3   /* panels that the tallest tiles take */

#if K2I_LEVEL == 512
#define K2I_PAIR_TILES(X)                                                                                      \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 6) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 6) X(3, 1) X(3, 2)    \
    X(3, 3) X(3, 4) X(4, 1) X(4, 2) X(4, 3) X(4, 4) X(5, 1) X(5, 2) X(5, 3) X(6, 1) X(6, 2) X(6, 3) X(7, 1)    \
    X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
#define K2I_PAIR_MR 8
#define K2I_PAIR_NP 8
#elif K2I_LEVEL == 2 /* two registers for an accumulator, four for a panel, two for a pair of A */
#define K2I_PAIR_TILES(X) X(1, 1) X(1, 2) X(2, 1) X(3, 1) X(4, 1)
#define K2I_PAIR_MR 4
#define K2I_PAIR_NP 2
#else
#define K2I_PAIR_TILES(X) X(1, 1)
#define K2I_PAIR_MR 1
#define K2I_PAIR_NP 1
#endif

/* ---- sixteen pairs: load, spread one, one step of sixteen chains; rounding to bf16 --------------------------------- */

#if defined(K2I_BF16_NATIVE)
typedef __m512bh pairs;

K2I_INLINE pairs p_load(const uint16_t *p) { return (__m512bh)_mm512_loadu_si512(p); }
K2I_INLINE pairs p_set(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof(both));
    return (__m512bh)_mm512_set1_epi32(both);
}
K2I_INLINE v16 p_step(v16 acc, pairs a, pairs b) { return _mm512_dpbf16_ps(acc, a, b); }
/* 32 neighbours of a row, rounded */
K2I_INLINE void p_round(uint16_t *out, v16 first, v16 second)
{
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}
/* sixteen pairs of two rows, rounded */
K2I_INLINE void p_join(uint16_t *out, v16 even, v16 odd)
{
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                           20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}

#else
typedef struct pairs {
    v16 even, odd;
} pairs;

#if K2I_LEVEL == 512
K2I_INLINE pairs p_split(__m512i both)
{
    return (pairs){_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
                   _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int32_t)0xffff0000u)))};
}
K2I_INLINE pairs p_load(const uint16_t *p) { return p_split(_mm512_loadu_si512(p)); }
K2I_INLINE pairs p_set(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof(both));
    return p_split(_mm512_set1_epi32(both));
}
/* rounded, in the low half of each lane */
K2I_INLINE __m512i p_bits(v16 x)
{
    const __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    const __m512i lsb = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), lsb), 16);
    r = _mm512_mask_mov_epi32(r, _mm512_testn_epi32_mask(u, _mm512_set1_epi32(0x7f800000)),
                              _mm512_and_si512(high, _mm512_set1_epi32(0x8000)));
    return _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), high, _mm512_set1_epi32(0x40));
}
K2I_INLINE void p_round(uint16_t *out, v16 first, v16 second)
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi32_epi16(p_bits(first)));
    _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm512_cvtepi32_epi16(p_bits(second)));
}
K2I_INLINE void p_join(uint16_t *out, v16 even, v16 odd)
{
    _mm512_storeu_si512(out, _mm512_or_si512(p_bits(even), _mm512_slli_epi32(p_bits(odd), 16)));
}

#elif K2I_LEVEL == 2
K2I_INLINE pairs p_split(__m256i lo, __m256i hi)
{
    const __m256i top = _mm256_set1_epi32((int32_t)0xffff0000u);
    return (pairs){{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
                   {_mm256_castsi256_ps(_mm256_and_si256(lo, top)), _mm256_castsi256_ps(_mm256_and_si256(hi, top))}};
}
K2I_INLINE pairs p_load(const uint16_t *p)
{
    return p_split(_mm256_loadu_si256((const __m256i *)(const void *)p),
                   _mm256_loadu_si256((const __m256i *)(const void *)(p + 16)));
}
K2I_INLINE pairs p_set(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof(both));
    return p_split(_mm256_set1_epi32(both), _mm256_set1_epi32(both));
}
K2I_INLINE __m256i p_bits(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16), zero = _mm256_setzero_si256();
    const __m256i lsb = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i small = _mm256_cmpeq_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x7f800000)), zero);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i r = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), lsb), 16);
    r = _mm256_blendv_epi8(r, _mm256_and_si256(high, _mm256_set1_epi32(0x8000)), small);
    return _mm256_blendv_epi8(r, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}
K2I_INLINE __m256i p_half(v16 x) { return _mm256_permute4x64_epi64(_mm256_packus_epi32(p_bits(x.lo), p_bits(x.hi)), 0xd8); }
K2I_INLINE void p_round(uint16_t *out, v16 first, v16 second)
{
    _mm256_storeu_si256((__m256i *)(void *)out, p_half(first));
    _mm256_storeu_si256((__m256i *)(void *)(out + 16), p_half(second));
}
K2I_INLINE void p_join(uint16_t *out, v16 even, v16 odd)
{
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_or_si256(p_bits(even.lo), _mm256_slli_epi32(p_bits(odd.lo), 16)));
    _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm256_or_si256(p_bits(even.hi), _mm256_slli_epi32(p_bits(odd.hi), 16)));
}

#else
K2I_INLINE pairs p_load(const uint16_t *p)
{
    pairs r;
    for (int i = 0; i < 16; i++) {
        r.even.f[i] = k2i_bf16_value(p[2 * i]);
        r.odd.f[i] = k2i_bf16_value(p[2 * i + 1]);
    }
    return r;
}
K2I_INLINE pairs p_set(const uint16_t *p) { return (pairs){v_set(k2i_bf16_value(p[0])), v_set(k2i_bf16_value(p[1]))}; }
K2I_INLINE void p_round(uint16_t *out, v16 first, v16 second)
{
    for (int i = 0; i < 16; i++) {
        out[i] = k2i_bf16_round(first.f[i]);
        out[16 + i] = k2i_bf16_round(second.f[i]);
    }
}
K2I_INLINE void p_join(uint16_t *out, v16 even, v16 odd)
{
    for (int i = 0; i < 16; i++) {
        out[2 * i] = k2i_bf16_round(even.f[i]);
        out[2 * i + 1] = k2i_bf16_round(odd.f[i]);
    }
}
#endif

#if K2I_LEVEL > 0
K2I_INLINE v16 p_step(v16 acc, pairs a, pairs b) { return v_fma(a.even, b.even, v_fma(a.odd, b.odd, acc)); }
#else
K2I_INLINE v16 p_step(v16 acc, pairs a, pairs b)
{
    for (int i = 0; i < 16; i++) {
        acc.f[i] = k2i_bf16_fma(a.odd.f[i], b.odd.f[i], acc.f[i]);
        acc.f[i] = k2i_bf16_fma(a.even.f[i], b.even.f[i], acc.f[i]);
    }
    return acc;
}
#endif
#endif

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

typedef struct pair_args {
    size_t pairs;
    const uint16_t *a;
    size_t a_step; /* numbers from one row to the next; where A came transposed, from one pair to the next */
    const uint16_t *b;
    size_t b_panel; /* numbers from one panel to the next */
    float *c;
    size_t ldc;
    size_t last; /* columns of the last panel, 1 to 16 */
    bool load;   /* the chains start from C */
    bool fetch;  /* meanwhile, fetch what the next tile to the right reads */
} pair_args;

K2I_INLINE void pair_tile(const int mr, const int np, const bool a_trans, const pair_args *t)
{
    v16 acc[K2I_PAIR_MR][K2I_PAIR_NP];
    const size_t row = a_trans ? 2 : t->a_step, b_panel = t->b_panel, ldc = t->ldc;
    const size_t ahead = t->fetch ? (size_t)np * b_panel : 0;
    K2I_UNROLL
    for (int m = 0; m < mr; m++) {
        K2I_UNROLL
        for (int p = 0; p < np; p++) {
            const float *c = t->c + (size_t)m * ldc + p * 16;
            if (!t->load) {
                acc[m][p] = v_zero();
            } else {
                acc[m][p] = p == np - 1 && t->last < 16 ? v_load_n(c, t->last) : v_load(c);
            }
        }
    }
    const uint16_t *a0 = t->a, *a3 = a0 + 3 * row, *a6 = a0 + 6 * row, *b = t->b;
    const size_t step = a_trans ? t->a_step : 2;
    for (size_t k = 0; k < t->pairs; k++) {
        pairs bv[K2I_PAIR_NP];
        K2I_UNROLL
        for (int p = 0; p < np; p++) bv[p] = p_load(b + (size_t)p * b_panel);
        if (mr > 1) {
            K2I_UNROLL
            for (int p = 0; p < np; p++) __builtin_prefetch(b + (size_t)p * b_panel + ahead, 0, 2);
        }
        K2I_UNROLL
        for (int m = 0; m < mr; m++) {
            const uint16_t *from = a_trans || m < 3 ? a0 : m < 6 ? a3 : a6;
            pairs av = p_set(from + (size_t)(a_trans ? m : m % 3) * row);
            K2I_UNROLL
            for (int p = 0; p < np; p++) acc[m][p] = p_step(acc[m][p], av, bv[p]);
        }
        b += 32;
        a0 += step;
        a3 += step;
        a6 += step;
    }
    K2I_UNROLL
    for (int m = 0; m < mr; m++) {
        K2I_UNROLL
        for (int p = 0; p < np; p++) {
            float *c = t->c + (size_t)m * ldc + p * 16;
            if (p == np - 1 && t->last < 16) {
                v_store_n(c, t->last, acc[m][p]);
            } else {
                v_store(c, acc[m][p]);
            }
        }
    }
}

#define X(MR, NP)                                                                                      \
    static void pair_tile_##MR##_##NP##_n(const pair_args *t) { pair_tile(MR, NP, false, t); }         \
    static void pair_tile_##MR##_##NP##_t(const pair_args *t) { pair_tile(MR, NP, true, t); }
K2I_PAIR_TILES(X)
#undef X

typedef void pair_tile_fn(const pair_args *t);

static pair_tile_fn *const pair_tiles[2][K2I_PAIR_MR + 1][K2I_PAIR_NP + 1] = {
#define X(MR, NP) [0][MR][NP] = pair_tile_##MR##_##NP##_n, [1][MR][NP] = pair_tile_##MR##_##NP##_t,
    K2I_PAIR_TILES(X)
#undef X
};

/* ---- rounding the operands of a block ---------------------------------------------------------------------------- */

/* cols columns of two rows of f32 (odd NULL: zeros) as pairs, sixteen columns at a time, each group out_step further. */
static void pair_rows(const float *even, const float *odd, size_t cols, uint16_t *out, size_t out_step)
{
    for (size_t i = 0; i < cols; i += 16, out += out_step) {
        size_t n = K2_MIN((size_t)16, cols - i);
        v16 e = n == 16 ? v_load(even + i) : v_load_n(even + i, n);
        v16 o = !odd ? v_zero() : n == 16 ? v_load(odd + i) : v_load_n(odd + i, n);
        p_join(out, e, o);
    }
}

/* n numbers, rounded, and zeros up to a multiple of 32. */
static void pair_row(const float *x, size_t n, uint16_t *out)
{
    for (size_t i = 0; i < n; i += 32, out += 32) {
        size_t left = n - i;
        p_round(out, left >= 16 ? v_load(x + i) : v_load_n(x + i, left),
                left >= 32   ? v_load(x + i + 16)
                : left > 16 ? v_load_n(x + i + 16, left - 16)
                            : v_zero());
    }
}

static void fast_bf16(size_t n, const float *x, uint16_t *y)
{
    uint16_t rest[32];
    pair_row(x, n / 32 * 32, y);
    pair_row(x + n / 32 * 32, n % 32, rest);
    memcpy(y + n / 32 * 32, rest, n % 32 * sizeof(*y));
}

/* Rows [m0, m0+rows) of A and its columns [k0, k0+kc): [row][pairs], or, where A is transposed, [pair][64 rows]. */
static size_t pair_a(const k2_gemm *g, size_t m0, size_t rows, size_t k0, size_t kc, uint16_t *out)
{
    if (g->a_trans) {
        const float *a = g->a + k0 * g->lda + m0;
        for (size_t k = 0; k < kc; k += 2)
            pair_rows(a + k * g->lda, k + 1 < kc ? a + (k + 1) * g->lda : NULL, rows, out + k * K2I_PAIR_ROWS, 32);
        return 2 * K2I_PAIR_ROWS;
    }
    const size_t step = (kc + 31) / 32 * 32;
    for (size_t m = 0; m < rows; m++) pair_row(g->a + (m0 + m) * g->lda + k0, kc, out + m * step);
    return step;
}

/* Columns [n0, n0+cols) of a B that comes as f32, its rows [k0, k0+kc), into panels. */
static void pair_b(const k2_gemm *g, size_t n0, size_t cols, size_t k0, size_t kc, uint16_t *out)
{
    if (g->b_form == K2_B_NK) {
        k2_kern_pack_bf16_nk(g->b + n0 * g->ldb + k0, g->ldb, cols, kc, out);
        return;
    }
    const float *b = g->b + k0 * g->ldb + n0;
    for (size_t k = 0; k < kc; k += 2)
        pair_rows(b + k * g->ldb, k + 1 < kc ? b + (k + 1) * g->ldb : NULL, cols, out + k * 16, k2_kern_packed_bf16(16, kc));
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* mr rows of C over np panels of a block that is `cols` columns wide, in tiles as wide as mr allows. */
static void pair_row_tiles(const pair_args *proto, bool a_trans, size_t mr, size_t from, size_t np, size_t cols)
{
    pair_args t = *proto;
    for (size_t p = from, end = from + np; p < end;) {
        size_t n = K2_MIN(end - p, (size_t)K2I_PAIR_NP);
        while (!pair_tiles[a_trans][mr][n]) n--;
        t.b = proto->b + p * t.b_panel;
        t.c = proto->c + p * 16;
        t.last = K2_MIN((size_t)16, cols - (p + n - 1) * 16);
        pair_tiles[a_trans][mr][n](&t);
        p += n;
    }
}

/* `rows` rows of A, rounded, over the panels of a block, which are spread evenly over strips. */
static void pair_block(const k2_gemm *g, const pair_args *proto, size_t rows, size_t cols)
{
    const size_t panels = (cols + 15) / 16, count = k2i_tiles(rows, K2I_PAIR_MR);
    const size_t strips = rows <= 4 ? 1 : (panels + K2I_PAIR_STRIP - 1) / K2I_PAIR_STRIP;
    for (size_t s = 0, p = 0; s < strips; s++) {
        size_t np = panels / strips + (s < panels % strips);
        for (size_t i = 0; i < count; i++) {
            k2_range r = k2i_tile(rows, K2I_PAIR_MR, g->upward, i);
            pair_args t = *proto;
            t.a += r.from * (g->a_trans ? 2 : t.a_step);
            t.c += r.from * t.ldc;
            t.fetch = i < 2; /* one tile is too short for it */
            pair_row_tiles(&t, g->a_trans, r.to - r.from, p, np, cols);
        }
        p += np;
    }
}

static __attribute__((noinline)) void pair_gemm(const k2_gemm *g)
{
    uint16_t a[K2I_PAIR_ROWS * K2I_PAIR_KC * 2] __attribute__((aligned(64)));
    uint16_t b[K2I_PAIR_COLS * K2I_PAIR_KC * 32] __attribute__((aligned(64)));
    const bool raw = g->b_form != K2_B_PACKED, few = g->m <= K2I_PAIR_FEW && !raw && !g->a_trans;
    const size_t k_step = 2 * K2I_PAIR_KC * (few ? K2I_PAIR_ROWS / K2I_PAIR_FEW : 1);
    for (size_t k0 = 0; k0 < g->k; k0 += k_step) {
        const size_t kc = K2_MIN(k_step, g->k - k0);
        const size_t panel = k2_kern_packed_bf16(16, raw ? kc : g->k);
        const size_t n_step = raw ? sizeof(b) / sizeof(*b) / panel * 16 : g->n;
        pair_args t = {.pairs = (kc + 1) / 2, .ldc = g->ldc, .b_panel = panel, .load = g->accumulate || k0 > 0};
        for (size_t n0 = 0; n0 < g->n; n0 += n_step) {
            const size_t cols = K2_MIN(n_step, g->n - n0);
            if (raw) pair_b(g, n0, cols, k0, kc, b);
            t.b = raw ? b : g->b_bf16 + k0 * 16;
            for (size_t m0 = 0; m0 < g->m; m0 += K2I_PAIR_ROWS) {
                const size_t rows = K2_MIN((size_t)K2I_PAIR_ROWS, g->m - m0);
                t.a_step = pair_a(g, m0, rows, k0, kc, a);
                t.a = a;
                t.c = g->c + m0 * g->ldc + n0;
                pair_block(g, &t, rows, cols);
            }
        }
    }
}

static void fast_gemm_bf16(const k2_gemm *g)
{
    if (g->k == 0) {
        for (size_t m = 0; !g->accumulate && m < g->m; m++) memset(g->c + m * g->ldc, 0, g->n * sizeof(float));
        return;
    }
#if K2I_LEVEL > 0 && !defined(K2I_BF16_NATIVE)
    /* Denormals are zero, in and out, and rounding is to nearest, whatever the thread has set; the call keeps the compiler from
     * moving arithmetic over the border. */
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    pair_gemm(g);
    _mm_setcsr(mode);
#else
    pair_gemm(g);
#endif
}
