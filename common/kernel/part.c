/* Cutting a product for the threads of a team. Every element is one chain over k, so any cut gives the same bits. */
#include "common/kernel/kernel.h"

#define ROWS_TILE 8u
#define ROWS_MANY 32u /* for each part: then weights come from the cache often enough for every thread to read them all */

k2_range k2_kern_share(size_t total, size_t unit, size_t parts, size_t part)
{
    K2_ASSERT(part < parts && unit > 0);
    size_t units = (total + unit - 1) / unit, first = units * part / parts, end = units * (part + 1) / parts;
    return (k2_range){K2_MIN(first * unit, total), K2_MIN(end * unit, total)};
}

k2_part k2_kern_part(size_t m, size_t n, size_t parts, size_t part)
{
    bool columns = m < ROWS_MANY * parts && n >= K2_PANEL_COLUMNS * parts;
    k2_range r = columns ? k2_kern_share(n, K2_PANEL_COLUMNS, parts, part) : k2_kern_share(m, ROWS_TILE, parts, part);
    if (columns) return (k2_part){.m = m, .n0 = r.from, .n = r.to - r.from};
    return (k2_part){.m0 = r.from, .m = r.to - r.from, .n = n};
}

/* A processor fetches the rows that it expects next. Behind the last row of a part those are rows that the next thread writes,
 * and lines in two caches cost that thread more than its arithmetic where they are far apart. So two neighbours each work away
 * from the border between them. */
static bool next_part_follows(const k2_gemm *whole, k2_part p, size_t part)
{
    return part % 2 == 0 && p.m0 + p.m < whole->m;
}

void k2_kern_gemm_part(const k2_gemm *g, size_t parts, size_t part)
{
    k2_part p = k2_kern_part(g->m, g->n, parts, part);
    k2_gemm cut = *g;
    cut.m = p.m;
    cut.n = p.n;
    cut.upward = next_part_follows(g, p, part);
    cut.a += g->a_trans ? p.m0 : p.m0 * g->lda;
    if (g->bf16 && g->b_form == K2_B_PACKED)
        cut.b_bf16 += k2_kern_packed_bf16(p.n0, g->k);
    else
        cut.b += g->b_form == K2_B_PACKED ? p.n0 * g->k : g->b_form == K2_B_KN ? p.n0 : p.n0 * g->ldb;
    cut.c += p.m0 * g->ldc + p.n0;
    k2_kern_gemm(&cut);
}
