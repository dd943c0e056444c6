/* Matrix products of the shapes that the mini model has, against the fastest of the rivals. */
#include "tests/bench/kernel/bench.h"

#include <stdio.h>
#include <string.h>

#include "common/kernel/kernel.h"
#include "tests/support/asleep.h"

enum { TURNS = 15, RIVALS_MAX = 4 };

/* Everybody's turn begins after so much work of its own: caches hold another's data; and where a helper slept, its core is
 * slow at first, on some hosts for ten milliseconds. */
#define WARM_NS       2000000u
#define WARM_SLEPT_NS 20000000u

typedef struct product {
    bench_form form;
    size_t m, n, k; /* of C [m,n], k summed */
    k2_gemm ours;
    float *a, *b, *packed, *c;
    bool bf16;
    uint16_t *a_bf16, *b_bf16, *packed_bf16; /* the first two are the rival's */
    uint32_t threads;
    k2_team *team;
    size_t calls;
} product;

static void part(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const product *p = arg;
    k2_kern_gemm_part(&p->ours, p->threads, task);
}

static uint64_t warm_ns(const product *p)
{
    return p->threads > 1 ? WARM_SLEPT_NS : WARM_NS;
}

static double seconds_ours(product *p)
{
    if (p->threads > 1)
        (void)others_asleep(); /* rivals' helpers look for work long after their turn, on the core that ours need */
    k2_kern_team_begin(p->team);
    for (uint64_t from = k2_now_ns(); k2_now_ns() - from < warm_ns(p);) k2_kern_team_run(p->team, p->threads, part, p);
    double start = bench_seconds(p->threads);
    for (size_t i = 0; i < p->calls; i++) k2_kern_team_run(p->team, p->threads, part, p);
    double seconds = bench_seconds(p->threads) - start;
    k2_kern_team_end(p->team);
    return seconds;
}

static double seconds_rival(const product *p, const bench_rival *r, void *theirs)
{
    const void *a = p->bf16 ? (const void *)p->a_bf16 : p->a, *b = p->bf16 ? (const void *)p->b_bf16 : p->b;
    for (uint64_t from = k2_now_ns(); k2_now_ns() - from < warm_ns(p);) r->run(theirs, a, b, p->c);
    double start = bench_seconds(p->threads);
    for (size_t i = 0; i < p->calls; i++) r->run(theirs, a, b, p->c);
    return bench_seconds(p->threads) - start;
}

/* Weights are packed for the backward, too. */
static void begin_bf16(product *p)
{
    p->a_bf16 = k2_alloc_aligned(64, p->m * p->k * sizeof(uint16_t));
    p->b_bf16 = k2_alloc_aligned(64, p->n * p->k * sizeof(uint16_t));
    p->packed_bf16 = k2_alloc_aligned(64, k2_kern_packed_bf16(p->n, p->k) * sizeof(uint16_t));
    k2_kern_bf16(p->m * p->k, p->a, p->a_bf16);
    k2_kern_bf16(p->n * p->k, p->b, p->b_bf16);
    p->ours.bf16 = true;
    if (p->form == BENCH_Y) k2_kern_pack_bf16_nk(p->b, p->k, p->n, p->k, p->packed_bf16);
    if (p->form == BENCH_DX) k2_kern_pack_bf16_kn(p->b, p->n, p->n, p->k, p->packed_bf16);
    if (p->form == BENCH_DW) return;
    p->ours.b_bf16 = p->packed_bf16;
    p->ours.b_form = K2_B_PACKED;
}

static void begin(product *p)
{
    size_t m = p->m, n = p->n, k = p->k;
    p->a = bench_numbers(m * k);
    p->b = bench_numbers(n * k);
    p->c = bench_numbers(m * n);
    p->packed = k2_alloc_aligned(64, k2_kern_packed_floats(n, k) * sizeof(float));
    p->ours =
        (k2_gemm){.m = m, .n = n, .k = k, .a = p->a, .lda = k, .b = p->b, .ldb = n, .b_form = K2_B_KN, .c = p->c, .ldc = n};
    if (p->form == BENCH_Y) {
        k2_kern_pack_nk(p->b, k, n, k, p->packed);
        p->ours.b = p->packed;
        p->ours.b_form = K2_B_PACKED;
    }
    if (p->bf16) begin_bf16(p);
    if (p->form == BENCH_DW) {
        p->ours.a_trans = p->ours.accumulate = true;
        p->ours.lda = m;
    }
    p->team = k2_kern_team_new(p->threads);
    p->calls = (size_t)(2e8 * p->threads / (2.0 * (double)m * (double)n * (double)k)) + 1;
}

static void end(product *p)
{
    k2_kern_team_free(p->team);
    k2_free(p->a);
    k2_free(p->b);
    k2_free(p->c);
    k2_free(p->packed);
    k2_free(p->a_bf16);
    k2_free(p->b_bf16);
    k2_free(p->packed_bf16);
}

/* The ratio is the rival's median time by ours: above 1 we are faster. It is printed against the fastest rival. */
static void bench_product(bool bf16, bench_form form, size_t m, size_t n, size_t k, uint32_t threads)
{
    static const char *const forms[] = {[BENCH_Y] = "y", [BENCH_DX] = "dx", [BENCH_DW] = "dw"};
    product p = {.form = form, .bf16 = bf16, .m = m, .n = n, .k = k, .threads = threads};
    begin(&p);
    double ours[TURNS], ratio[RIVALS_MAX][TURNS], share[TURNS], best = 0;
    double flop = 2.0 * (double)m * (double)n * (double)k * (double)p.calls;
    void *theirs[RIVALS_MAX] = {NULL};
    const char *against = "";
    for (int r = 0; bench_rivals[r]; r++) theirs[r] = bench_rivals[r]->begin(form, bf16, m, n, k, threads);
    for (int i = -1; i < TURNS; i++) {
        double mine = seconds_ours(&p);
        for (int r = 0; bench_rivals[r]; r++) {
            double other = theirs[r] ? seconds_rival(&p, bench_rivals[r], theirs[r]) : 1e9;
            if (i >= 0) ratio[r][i] = other / mine;
        }
        if (i < 0) continue;
        ours[i] = mine;
        share[i] = flop / mine / (bench_peak(bf16) * threads);
    }
    for (int r = 0; bench_rivals[r]; r++) {
        if (!theirs[r]) continue;
        double other = bench_median(ratio[r], TURNS);
        if (*against == '\0' || other < best) {
            best = other;
            against = bench_rivals[r]->name;
        }
        bench_rivals[r]->end(theirs[r]);
    }
    char name[64];
    snprintf(name, sizeof(name), "gemm_%s%s_%zux%zux%zu_t%u", bf16 ? "bf16_" : "", forms[form], m, n, k, threads);
    double gflops = flop / bench_median(ours, TURNS) * 1e-9;
    if (*against) {
        printf("%s,%.1f,GFLOP/s,%.2f,%s\n", name, gflops, best, against);
    } else {
        printf("%s,%.1f,GFLOP/s,,\n", name, gflops);
    }
    printf("%s_share,%.2f,of %s,,\n", name, bench_median(share, TURNS), bench_peak_name(bf16));
    fflush(stdout);
    end(&p);
}

void bench_products(bool bf16, uint32_t threads)
{
    static const size_t weights[][2] = {{192, 512}, {768, 192}, {512, 512}, {128, 512}, {512, 128}, {1024, 512}}; /* W [n,k] */
    static const size_t rows[] = {1, 8, 64};
    for (size_t w = 0; w < K2_COUNT(weights); w++)
        for (size_t r = 0; r < K2_COUNT(rows); r++)
            bench_product(bf16, BENCH_Y, rows[r], weights[w][0], weights[w][1], threads);
    for (size_t w = 0; w < K2_COUNT(weights); w++) {
        bench_product(bf16, BENCH_DX, 64, weights[w][1], weights[w][0], threads);
        bench_product(bf16, BENCH_DW, weights[w][0], weights[w][1], 64, threads);
    }
    bench_product(bf16, BENCH_DW, 512, 512, 2048, threads);
    bench_product(bf16, BENCH_Y, 1024, 1024, 1024, threads);
}
