/* gemm_body_int - the matrix product over vec_int's lanes; included once by each fast_*.c.
 *
 * C is cut into tiles of up to 8 rows by a few panels of 16 columns. A tile keeps its accumulators in registers and walks k,
 * so each element is one chain. K is cut into blocks only to stay in the cache: between blocks the chain rests in C, which
 * loses nothing. B comes in packed panels, is read where it lies, or is packed strip by strip into a buffer on the stack. A is read
 * where it lies, or, transposed, copied tile by tile.
 */
#include "common/kernel/kernel_int.h"
#include "common/kernel/vec_int.h"

#define K2I_GEMM_KC 256 /* k of one block: a strip of three panels is 48 KiB, about a first-level cache */

#if K2I_LEVEL == 512 /* 32 registers: at most 24 accumulators, and at least 8 where there are columns enough, to hide latency */
#define K2I_TILES(X)                                                                                           \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 6) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 6) X(3, 1) X(3, 2)    \
    X(3, 3) X(3, 4) X(4, 1) X(4, 2) X(4, 3) X(4, 4) X(5, 1) X(5, 2) X(5, 3) X(6, 1) X(6, 2) X(6, 3) X(7, 1)    \
    X(7, 2) X(7, 3) X(8, 1) X(8, 2) X(8, 3)
#define K2I_MR_MAX 8
#define K2I_NP_MAX 8
#define K2I_ROWS_COPY SIZE_MAX /* of C, that pay for copying a transposed A: with 1 MiB of second-level cache none did */
#elif K2I_LEVEL == 2 /* 16 registers, two for each panel */
#define K2I_TILES(X) X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(2, 1) X(2, 2) X(3, 1) X(3, 2) X(4, 1) X(5, 1) X(6, 1)
#define K2I_MR_MAX 6
#define K2I_NP_MAX 4
#define K2I_ROWS_COPY 32
#else
#define K2I_TILES(X) X(1, 1)
#define K2I_MR_MAX 1
#define K2I_NP_MAX 1
#define K2I_ROWS_COPY SIZE_MAX
#endif

typedef struct tile_args {
    size_t k;
    const float *a;
    size_t lda;
    const float *b;
    size_t b_panel; /* floats from one panel to the next */
    size_t b_step;  /* floats from one k to the next */
    float *c;
    size_t ldc;
    size_t last; /* columns of the last panel, 1 to 16 */
    bool load;   /* the chains start from C */
    bool fetch;  /* meanwhile, fetch what the next tile to the right reads */
} tile_args;

/* Constant mr, np and a_trans make one unrolled kernel. Rows of A are addressed from three pointers, because a pointer for
 * each row would not fit the registers. */
K2I_INLINE void tile(const int mr, const int np, const bool a_trans, const tile_args *t)
{
    v16 acc[K2I_MR_MAX][K2I_NP_MAX];
    const size_t lda = t->lda, b_panel = t->b_panel, b_step = t->b_step, ldc = t->ldc;
    const size_t ahead = t->fetch ? (size_t)np * b_panel * sizeof(float) : 0; /* bytes */
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
    const float *a0 = t->a, *a3 = a0 + 3 * lda, *a6 = a0 + 6 * lda, *b = t->b;
    const size_t step = a_trans ? lda : 1;
    for (size_t k = 0; k < t->k; k++) {
        v16 bv[K2I_NP_MAX];
        K2I_UNROLL
        for (int p = 0; p < np; p++) bv[p] = v_load(b + (size_t)p * b_panel);
        if (!a_trans && mr > 1) { /* one row waits for memory anyway, and the right side of a dW is in the cache */
            K2I_UNROLL
            for (int p = 0; p < np; p++) __builtin_prefetch((const char *)(b + (size_t)p * b_panel) + ahead, 0, 2);
        }
        K2I_UNROLL
        for (int m = 0; m < mr; m++) {
            const float *from = m < 3 ? a0 : m < 6 ? a3 : a6;
            v16 av = v_set(a_trans ? a0[m] : from[(size_t)(m % 3) * lda]);
            K2I_UNROLL
            for (int p = 0; p < np; p++) acc[m][p] = v_fma(av, bv[p], acc[m][p]);
        }
        b += b_step;
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

#define X(MR, NP)                                                                            \
    static void tile_##MR##_##NP##_n(const tile_args *t) { tile(MR, NP, false, t); }         \
    static void tile_##MR##_##NP##_t(const tile_args *t) { tile(MR, NP, true, t); }
K2I_TILES(X)
#undef X

typedef void tile_fn(const tile_args *t);

static tile_fn *const tiles[2][K2I_MR_MAX + 1][K2I_NP_MAX + 1] = {
#define X(MR, NP) [0][MR][NP] = tile_##MR##_##NP##_n, [1][MR][NP] = tile_##MR##_##NP##_t,
    K2I_TILES(X)
#undef X
};

/* Panels of B [k0, k0+kc) x [p0, p0+np) into scratch, each [kc][16], zero-filled. */
static void strip_pack(const k2_gemm *g, size_t p0, size_t np, size_t k0, size_t kc, float *scratch)
{
    for (size_t p = 0; p < np; p++) {
        size_t n0 = (p0 + p) * 16, cols = K2_MIN((size_t)16, g->n - n0);
        float *out = scratch + p * kc * 16;
        if (g->b_form == K2_B_NK) {
            k2_kern_pack_nk(g->b + n0 * g->ldb + k0, g->ldb, cols, kc, out);
            continue;
        }
        const float *b = g->b + k0 * g->ldb + n0;
        for (size_t k = 0; k < kc; k++, b += g->ldb, out += 16) v_store(out, cols == 16 ? v_load(b) : v_load_n(b, cols));
    }
}

/* Rows [m0, m0+mr) of C, whose first of A is at t.a, over panels [p0, p1), in tiles as wide as mr allows. */
static void row_tiles(const k2_gemm *g, tile_args t, size_t m0, size_t mr, size_t p0, size_t p1)
{
    const size_t panels = (g->n + 15) / 16;
    for (size_t p = p0; p < p1;) {
        size_t np = K2_MIN(p1 - p, (size_t)K2I_NP_MAX);
        while (!tiles[g->a_trans][mr][np]) np--;
        t.c = g->c + m0 * g->ldc + p * 16;
        t.last = p + np == panels ? g->n - (panels - 1) * 16 : 16;
        tiles[g->a_trans][mr][np](&t);
        t.b += np * t.b_panel;
        p += np;
    }
}

/* All rows over one strip. */
static void strip_rows(const k2_gemm *g, const tile_args *proto, size_t p0, size_t p1)
{
    const size_t count = k2i_tiles(g->m, K2I_MR_MAX);
    for (size_t i = 0; i < count; i++) {
        k2_range rows = k2i_tile(g->m, K2I_MR_MAX, g->upward, i);
        tile_args t = *proto;
        t.a += g->a_trans ? rows.from : rows.from * g->lda;
        t.fetch = i < 2; /* one tile is too short for it */
        row_tiles(g, t, rows.from, rows.to - rows.from, p0, p1);
    }
}

#define K2I_STRIP 3 /* panels of a strip: what the tallest tiles take at once */

/* Panels of the strip that begins at panel p: as even as may be, for 3 + 1 would leave a tile that only loads. */
static size_t strip_width(size_t panels, size_t p, size_t widest)
{
    size_t left = panels - p, strips = (left + widest - 1) / widest;
    return (left + strips - 1) / strips;
}

static void block_packed(const k2_gemm *g, tile_args t, size_t k0)
{
    const size_t panels = (g->n + 15) / 16;
    t.b_panel = g->k * 16;
    t.b_step = 16;
    for (size_t p = 0, np; p < panels; p += np) {
        np = g->m <= 4 ? panels : strip_width(panels, p, K2I_STRIP);
        t.b = g->b + p * t.b_panel + k0 * 16;
        strip_rows(g, &t, p, p + np);
    }
}

/* Rows of B as long as this are a page or more apart; then many rows of A pay for a packed copy. */
#define K2I_ROW_FAR  1024
#define K2I_ROWS_PAY 32

static void block_raw(const k2_gemm *g, tile_args t, size_t k0)
{
    float scratch[K2I_STRIP * K2I_GEMM_KC * 16] __attribute__((aligned(64)));
    const size_t panels = (g->n + 15) / 16;
    const bool in_place = g->b_form == K2_B_KN && (g->ldb < K2I_ROW_FAR || g->m < K2I_ROWS_PAY);
    for (size_t p = 0, np; p < panels; p += np) {
        np = strip_width(panels, p, K2I_STRIP);
        if (in_place && (p + np) * 16 <= g->n) {
            t.b = g->b + k0 * g->ldb + p * 16;
            t.b_panel = 16;
            t.b_step = g->ldb;
        } else {
            strip_pack(g, p, np, k0, t.k, scratch);
            t.b = scratch;
            t.b_panel = t.k * 16;
            t.b_step = 16;
        }
        strip_rows(g, &t, p, p + np);
    }
}

#define K2I_COPY_B (12 * K2I_GEMM_KC * 16) /* floats: 192 KiB, of a second-level cache of 512 */
#define K2I_COPY_A 8

/* Rows [m0, m0+mr) of a transposed A: [k][K2I_COPY_A]. */
static void tile_copy(const k2_gemm *g, const tile_args *t, size_t m0, size_t mr, float *out)
{
    const float *a = t->a + m0;
    const bool whole = m0 + K2I_COPY_A <= g->m;
    for (size_t k = 0; k < t->k; k++, a += g->lda, out += K2I_COPY_A) {
        if (whole) { /* one load, one store */
            memcpy(out, a, K2I_COPY_A * sizeof(*a));
        } else {
            memcpy(out, a, mr * sizeof(*a));
        }
    }
}

/* A is transposed: a tile steps through it row by row of memory, and lines that are a power of two apart share few sets of the
 * first-level cache. So a tile's part is copied, once for as many panels of B as the buffer takes. */
static void block_trans(const k2_gemm *g, tile_args t, size_t k0)
{
    float a[K2I_GEMM_KC * K2I_COPY_A] __attribute__((aligned(64))), b[K2I_COPY_B] __attribute__((aligned(64)));
    const size_t panels = (g->n + 15) / 16, count = k2i_tiles(g->m, K2I_MR_MAX);
    const tile_args in_place = t;
    t.a = a;
    t.lda = K2I_COPY_A;
    t.b_panel = t.k * 16;
    t.b_step = 16;
    t.b = b;
    for (size_t p = 0, np; p < panels; p += np) {
        np = strip_width(panels, p, K2I_COPY_B / t.b_panel);
        strip_pack(g, p, np, k0, t.k, b);
        for (size_t i = 0; i < count; i++) {
            k2_range rows = k2i_tile(g->m, K2I_MR_MAX, g->upward, i);
            tile_copy(g, &in_place, rows.from, rows.to - rows.from, a);
            row_tiles(g, t, rows.from, rows.to - rows.from, p, p + np);
        }
    }
}

#define K2I_ROWS_BLOCK 256 /* rows of A, 256 KiB of a block, that stay in the second-level cache while the strips of B pass by */

static void fast_gemm(const k2_gemm *g)
{
    if (g->m > K2I_ROWS_BLOCK && g->b_form == K2_B_PACKED) {
        k2_gemm part = *g;
        for (size_t m = 0; m < g->m; m += part.m) {
            part.m = K2_MIN((size_t)K2I_ROWS_BLOCK, g->m - m);
            part.a = g->a + (g->a_trans ? m : m * g->lda);
            part.c = g->c + m * g->ldc;
            fast_gemm(&part);
        }
        return;
    }
    if (g->m == 0 || g->n == 0) return;
    if (g->k == 0) {
        for (size_t m = 0; !g->accumulate && m < g->m; m++) memset(g->c + m * g->ldc, 0, g->n * sizeof(float));
        return;
    }
    for (size_t k0 = 0; k0 < g->k; k0 += K2I_GEMM_KC) {
        tile_args t = {.k = K2_MIN((size_t)K2I_GEMM_KC, g->k - k0), .lda = g->lda, .ldc = g->ldc};
        t.a = g->a + (g->a_trans ? k0 * g->lda : k0);
        t.load = g->accumulate || k0 > 0;
        if (g->b_form == K2_B_PACKED) {
            block_packed(g, t, k0);
        } else if (g->a_trans && g->m >= K2I_ROWS_COPY) {
            block_trans(g, t, k0);
        } else {
            block_raw(g, t, k0);
        }
    }
}
