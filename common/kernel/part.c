/* Cutting a product for the threads of a team. Every element is one chain over k, so any cut gives the same bits. */
#include "common/kernel/kernel.h"

#define ROWS_TILE  8u
#define COLS_PANEL 16u
#define ROWS_MANY  32u /* for each part: then weights come from the cache often enough for every thread to read them all */

/* Units of part `part`: whole ones, as even as may be. */
static void spread(size_t total, size_t unit, size_t parts, size_t part, size_t *from, size_t *count)
{
    size_t units = (total + unit - 1) / unit, first = units * part / parts, end = units * (part + 1) / parts;
    *from = K2_MIN(first * unit, total);
    *count = K2_MIN(end * unit, total) - *from;
}

k2_part k2_kern_part(size_t m, size_t n, size_t parts, size_t part)
{
    K2_ASSERT(part < parts);
    k2_part p = {.m = m, .n = n};
    if (m < ROWS_MANY * parts && n >= COLS_PANEL * parts)
        spread(n, COLS_PANEL, parts, part, &p.n0, &p.n);
    else
        spread(m, ROWS_TILE, parts, part, &p.m0, &p.m);
    return p;
}

void k2_kern_gemm_part(const k2_gemm *g, size_t parts, size_t part)
{
    k2_part p = k2_kern_part(g->m, g->n, parts, part);
    k2_gemm cut = *g;
    cut.m = p.m;
    cut.n = p.n;
    cut.a += g->a_trans ? p.m0 : p.m0 * g->lda;
    if (g->bf16 && g->b_form == K2_B_PACKED)
        cut.b_bf16 += k2_kern_packed_bf16(p.n0, g->k);
    else
        cut.b += g->b_form == K2_B_PACKED ? p.n0 * g->k : g->b_form == K2_B_KN ? p.n0 : p.n0 * g->ldb;
    cut.c += p.m0 * g->ldc + p.n0;
    k2_kern_gemm(&cut);
}
