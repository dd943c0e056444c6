/* Kernels and model against the clock: CSV lines `name,value,unit,ratio,against`.
 *
 * A ratio is the median of ratios measured in turns, a run of ours next to a run of the other, so that a noisy machine
 * disturbs both alike. OpenBLAS is the other where it was found at configure time. The model's other is gemm_peak: what a
 * product that stays in the cache reaches at the same moment; the share counts 2 (forward) or 6 (training) operations for
 * each parameter at work.
 */
#include "common/model/model.h"
#include "tests/support/quickstart_dims.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef K2_HAVE_OPENBLAS
#include <cblas.h>
void openblas_set_num_threads(int n);
#endif

#define TURNS 15

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return v[n / 2];
}

static float *numbers(size_t n)
{
    float *x = k2_alloc_aligned(64, n * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = (float)(k2_rand_unit(1, K2_STREAM_TEST, n, i) - 0.5);
    return x;
}

typedef struct product {
    k2_gemm ours;
    float *a, *b, *packed, *c;
    size_t calls;
} product;

static double seconds_ours(const product *p)
{
    uint64_t start = k2_now_ns();
    for (size_t i = 0; i < p->calls; i++) k2_kern_gemm(&p->ours);
    return (double)(k2_now_ns() - start) * 1e-9;
}

#ifdef K2_HAVE_OPENBLAS
static double seconds_blas(const product *p)
{
    const k2_gemm *g = &p->ours;
    uint64_t start = k2_now_ns();
    for (size_t i = 0; i < p->calls; i++) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)g->m, (int)g->n, (int)g->k, 1, p->a, (int)g->k, p->b,
                    (int)g->k, 0, p->c, (int)g->n);
    }
    return (double)(k2_now_ns() - start) * 1e-9;
}
#endif

/* y = x W' at [m,k] x [n,k]. */
static void bench_product(const char *name, size_t m, size_t n, size_t k)
{
    product p = {.a = numbers(m * k), .b = numbers(n * k), .c = numbers(m * n)};
    p.packed = k2_alloc_aligned(64, k2_kern_packed_floats(n, k) * sizeof(float));
    k2_kern_pack_nk(p.b, k, n, k, p.packed);
    p.ours = (k2_gemm){.m = m, .n = n, .k = k, .a = p.a, .lda = k, .b = p.packed, .b_form = K2_B_PACKED, .c = p.c, .ldc = n};
    double flop = 2.0 * (double)m * (double)n * (double)k, ours[TURNS], ratio[TURNS];
    p.calls = (size_t)(4e8 / flop) + 1;
    seconds_ours(&p);
    for (int i = 0; i < TURNS; i++) {
        ours[i] = seconds_ours(&p);
#ifdef K2_HAVE_OPENBLAS
        ratio[i] = seconds_blas(&p) / ours[i];
#else
        ratio[i] = 0;
#endif
    }
    double gflops = flop * (double)p.calls / median(ours, TURNS) * 1e-9;
#ifdef K2_HAVE_OPENBLAS
    printf("%s_%zux%zux%zu,%.1f,GFLOP/s,%.2f,openblas\n", name, m, n, k, gflops, median(ratio, TURNS));
#else
    (void)ratio;
    printf("%s_%zux%zux%zu,%.1f,GFLOP/s,,\n", name, m, n, k, gflops);
#endif
    k2_free(p.a);
    k2_free(p.b);
    k2_free(p.c);
    k2_free(p.packed);
}

/* Operations a second of a product that stays in the cache, now. */
static double peak_now(void)
{
    enum { M = 64, N = 96, K = 96, CALLS = 500 };
    static float *a, *b, *c;
    if (!a) {
        a = numbers(M * K);
        b = k2_alloc_aligned(64, k2_kern_packed_floats(N, K) * sizeof(float));
        k2_kern_pack_nk(a, K, M, K, b);
        c = numbers(M * N);
    }
    k2_gemm g = {.m = M, .n = N, .k = K, .a = a, .lda = K, .b = b, .b_form = K2_B_PACKED, .c = c, .ldc = N};
    uint64_t start = k2_now_ns();
    for (int i = 0; i < CALLS; i++) k2_kern_gemm(&g);
    return 2.0 * M * N * K * CALLS / ((double)(k2_now_ns() - start) * 1e-9);
}

static k2_dims dims; /* of the quickstart */

static size_t active_params(const k2_model *m)
{
    const k2_model_layout *l = k2_model_layout_of(m);
    size_t n = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        if (l->params[i].kind == K2_KIND_MATRIX)
            n += l->params[i].expert >= (int32_t)dims.num_experts_per_tok ? 0 : l->params[i].count;
        if (l->params[i].kind == K2_KIND_EMBED) n += l->params[i].count / 2; /* looking up is free, the head is not */
    }
    return n;
}

/* Forward and backward of `tokens` tokens in sequences of 40. */
static void bench_train(k2_model *m, size_t tokens)
{
    enum { LEN = 40 };
    size_t seqs = tokens / LEN, T = seqs * LEN, active = active_params(m);
    int32_t *ids = k2_alloc_array(T, sizeof(int32_t)), *targets = k2_alloc_array(T, sizeof(int32_t));
    uint32_t *starts = k2_alloc_array(seqs + 1, sizeof(uint32_t));
    float *logp = k2_alloc_array(T, sizeof(float)), *dlogp = k2_alloc_array(T, sizeof(float));
    float *grads = k2_alloc_array(k2_model_param_count(m), sizeof(float));
    for (size_t i = 0; i < T; i++) {
        ids[i] = (int32_t)(i * 7919 % 264);
        targets[i] = (int32_t)(i * 104729 % 264);
        dlogp[i] = -1.0f / (float)T;
    }
    for (size_t s = 0; s <= seqs; s++) starts[s] = (uint32_t)(s * LEN);
    k2_model_batch b = {.tokens_count = T, .seqs_count = seqs, .tokens = ids, .targets = targets, .seq_starts = starts};
    k2_arena arena;
    k2_arena_init(&arena, k2_model_act_bytes(&dims, 1, T));
    double fwd[TURNS], both[TURNS], fwd_share[TURNS], share[TURNS];
    for (int i = -1; i < TURNS; i++) {
        uint64_t start = k2_now_ns();
        k2_model_acts *acts = k2_model_fwd(m, &b, &arena, &(k2_model_out){.logp = logp});
        uint64_t mid = k2_now_ns();
        k2_model_bwd(m, acts, dlogp, grads);
        uint64_t end = k2_now_ns();
        k2_arena_reset(&arena, 0);
        if (i < 0) continue;
        fwd[i] = (double)(mid - start) * 1e-9;
        both[i] = (double)(end - start) * 1e-9;
        double ideal = (double)T * (double)active / peak_now();
        fwd_share[i] = 2 * ideal / fwd[i];
        share[i] = 6 * ideal / both[i];
    }
    printf("model_fwd_%zu,%.0f,tokens/s,%.2f,gemm_peak\n", T, (double)T / median(fwd, TURNS), median(fwd_share, TURNS));
    printf("model_train_%zu,%.0f,tokens/s,%.2f,gemm_peak\n", T, (double)T / median(both, TURNS), median(share, TURNS));
    k2_arena_fini(&arena);
    k2_free(ids);
    k2_free(targets);
    k2_free(starts);
    k2_free(logp);
    k2_free(dlogp);
    k2_free(grads);
}

/* `batch` sequences, one token each per call, from position 0 to 63. */
static void bench_decode(k2_model *m, size_t batch)
{
    enum { STEPS = 64, PAGE = 16 };
    size_t pages = batch * STEPS / PAGE, active = active_params(m);
    k2_model_kv kv = {.page_tokens = PAGE, .pages_count = (uint32_t)pages};
    kv.pages = k2_alloc_aligned(64, pages * k2_model_page_floats(&dims, PAGE) * sizeof(float));
    uint32_t *tables = k2_alloc_array(pages, sizeof(uint32_t));
    for (size_t i = 0; i < pages; i++) tables[i] = (uint32_t)i;
    float *logits = numbers(batch * dims.vocab_size);
    k2_softmax *soft = k2_alloc_array(batch, sizeof(*soft));
    k2_model_row *rows = k2_alloc_array(batch, sizeof(*rows));
    k2_arena arena;
    k2_arena_init(&arena, k2_model_decode_bytes(&dims, 1, batch, STEPS));
    double seconds[TURNS], share[TURNS];
    for (int turn = -1; turn < TURNS; turn++) {
        uint64_t start = k2_now_ns();
        for (uint32_t step = 0; step < STEPS; step++) {
            for (size_t i = 0; i < batch; i++) {
                rows[i] = (k2_model_row){.token = (int32_t)((i * 31 + step) % dims.vocab_size),
                                         .position = step,
                                         .page_table = tables + i * (STEPS / PAGE),
                                         .logits = logits + i * dims.vocab_size,
                                         .softmax = &soft[i]};
            }
            k2_model_decode(m, &kv, rows, batch, &arena);
        }
        if (turn < 0) continue;
        seconds[turn] = (double)(k2_now_ns() - start) * 1e-9;
        share[turn] = 2.0 * (double)(batch * STEPS) * (double)active / peak_now() / seconds[turn];
    }
    printf("model_decode_%zu,%.0f,tokens/s,%.2f,gemm_peak\n", batch, (double)(batch * STEPS) / median(seconds, TURNS),
           median(share, TURNS));
    k2_arena_fini(&arena);
    k2_free(kv.pages);
    k2_free(tables);
    k2_free(logits);
    k2_free(soft);
    k2_free(rows);
}

int main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
#ifdef K2_HAVE_OPENBLAS
    /* Read when the library loads; an environment that forces an old processor would make the comparison a gift to us. */
    if (getenv("OPENBLAS_CORETYPE")) {
        unsetenv("OPENBLAS_CORETYPE");
        execv("/proc/self/exe", argv);
    }
    openblas_set_num_threads(1);
#endif
    printf("name,value,unit,ratio,against\n");
    bench_product("gemm", 1024, 1024, 1024);
    bench_product("gemm", 64, 1024, 1024);
    bench_product("gemm", 1, 1024, 1024);
    bench_product("gemm", 64, 96, 96);
    bench_product("gemm", 64, 264, 64);
    bench_product("gemm", 16, 64, 64);
    bench_product("gemm", 1, 64, 64);
    dims = quickstart_dims();
    k2_model *m = k2_model_new(&dims, 1, NULL);
    k2_model_init(m, 1, 0);
    printf("model_active_params,%zu,parameters,,\n", active_params(m));
    bench_train(m, 4096);
    bench_train(m, 1024);
    const size_t batches[] = {1, 16, 64, 256};
    for (size_t i = 0; i < K2_COUNT(batches); i++) bench_decode(m, batches[i]);
    k2_model_free(m);
    return 0;
}
