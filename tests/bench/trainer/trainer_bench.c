/* trainer_bench - tokens a second of a training step, and what share that is of the machine's own matrix product.
 *
 * The model has the quickstart's size. A token costs 6 floating-point operations for each parameter that it uses (2 forward, 4
 * backward); attention comes on top and is not counted, so the share is a lower bound. The peak is k2_kern_gemm at 1024^3, on
 * as many threads, in the same run. CSV: name,value,unit,ratio,against
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/data.h"
#include "trainer/muon_int.h"
#include "trainer/work_int.h"

enum { EDGE = 1024, ROUNDS = 3, STEPS = 20 };

typedef struct product {
    float *a, *b, *c;
    uint32_t threads;
} product;

static void part(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const product *p = arg;
    k2_gemm g = {
        .m = EDGE, .n = EDGE, .k = EDGE, .a = p->a, .lda = EDGE, .b = p->b, .b_form = K2_B_PACKED, .c = p->c, .ldc = EDGE};
    k2_kern_gemm_part(&g, p->threads, task);
}

/* Best of a few rounds: other work on the machine can only slow it down. */
static double peak_flops(uint32_t threads)
{
    size_t floats = (size_t)EDGE * EDGE;
    product p = {.threads = threads};
    p.a = k2_alloc_aligned(64, floats * sizeof(float));
    p.b = k2_alloc_aligned(64, floats * sizeof(float));
    p.c = k2_alloc_aligned(64, floats * sizeof(float));
    k2_team *team = k2_kern_team_new(threads);
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t began = k2_now_ns();
        k2_kern_team_run(team, threads, part, &p);
        double rate = 2.0 * EDGE * EDGE * EDGE / ((double)(k2_now_ns() - began) / 1e9);
        best = K2_MAX(best, rate);
    }
    k2_kern_team_free(team);
    k2_free(p.c);
    k2_free(p.b);
    k2_free(p.a);
    return best;
}

static void corpus_make(const char *prefix)
{
    k2_idx_builder *b;
    int32_t tokens[64];
    K2_ASSERT(k2_idx_builder_begin(prefix, K2_IDX_UINT16, &b, NULL) == K2_OK);
    for (uint64_t d = 0; d < 4000; d++) {
        size_t count = 12 + k2_rand_below(1, K2_STREAM_TEST, d, 0, 36);
        for (size_t t = 0; t < count; t++) tokens[t] = (int32_t)k2_rand_below(1, K2_STREAM_TEST, d, 1 + t, 264);
        K2_ASSERT(k2_idx_builder_add(b, tokens, count, NULL) == K2_OK);
        k2_idx_builder_document_end(b);
    }
    K2_ASSERT(k2_idx_builder_commit(b, NULL) == K2_OK);
}

static void run(const k2_config *config)
{
    k2i_work w;
    k2i_result *r = k2_alloc(sizeof(*r));
    const char *locator = "";
    double best = 0;
    k2_code code = k2i_work_open(&w, config, 0, NULL, &r->error);
    if (code == K2_OK) k2i_work_join(&w, r);
    if (code == K2_OK && r->error.code == K2_OK) k2i_work_init(&w, &locator, 1, "fresh", 0, r);
    double active = k2i_metrics_get(&r->metrics, "active_params");
    for (uint64_t i = 0; i < ROUNDS && r->error.code == K2_OK; i++) {
        k2i_work_pretrain(&w, i * STEPS, (i + 1) * STEPS, r);
        best = K2_MAX(best, k2i_metrics_get(&r->metrics, "tokens_per_s"));
    }
    if (r->error.code != K2_OK) {
        fprintf(stderr, "trainer_bench: %s\n", r->error.text);
        exit(1);
    }
    uint32_t threads = k2_budget_trainer_threads(config);
    double peak = peak_flops(threads), flops = 6 * active * best;
    printf("trainer_tokens,%.0f,tokens/s,,\n", best);
    printf("trainer_flops,%.2f,GFLOP/s,%.3f,gemm 1024^3 on %u threads\n", flops / 1e9, flops / peak, threads);
    printf("trainer_gemm_peak,%.1f,GFLOP/s,,\n", peak / 1e9);
    k2i_work_close(&w);
    k2_free(r);
}

/* Best of a few rounds, seconds. */
static double muon_seconds(uint32_t threads, const float *u, float *out, float *scratch)
{
    k2_team *team = k2_kern_team_new(threads);
    double best = INFINITY;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t began = k2_now_ns();
        k2i_muon_direction(EDGE, 2 * EDGE, u, out, scratch, team);
        best = K2_MIN(best, (double)(k2_now_ns() - began) / 1e9);
    }
    k2_kern_team_free(team);
    return best;
}

/* Muon's direction for one large matrix: five steps of three products, by one thread and by all. */
static void run_muon(uint32_t threads)
{
    size_t floats = 2 * (size_t)EDGE * EDGE;
    float *u = k2_alloc_aligned(64, floats * sizeof(float)), *out = k2_alloc_aligned(64, floats * sizeof(float)),
          *scratch = k2_alloc_aligned(64, k2i_muon_scratch(EDGE, 2 * EDGE) * sizeof(float));
    for (size_t i = 0; i < floats; i++) u[i] = (float)k2_rand_normal(1, K2_STREAM_TEST, 0, i);
    double flops = 5 * 2.0 * EDGE * EDGE * (2 * 2.0 * EDGE + EDGE), one = muon_seconds(1, u, out, scratch),
           all = muon_seconds(threads, u, out, scratch);
    printf("trainer_muon_1024x2048,%.1f,GFLOP/s,%.3f,one thread (%u here)\n", flops / all / 1e9, one / all, threads);
    k2_free(scratch);
    k2_free(out);
    k2_free(u);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/k2rl-bench-trainer-XXXXXX";
    k2_config config;
    k2_config_defaults(&config);
    K2_ASSERT(mkdtemp(dir) != NULL);
    snprintf(config.model_config, sizeof(config.model_config), "%s", argc > 1 ? argv[1] : "configs/quickstart-model.json");
    snprintf(config.data_corpus, sizeof(config.data_corpus), "%s/corpus", dir);
    snprintf(config.run_dir, sizeof(config.run_dir), "%s", dir);
    config.pretrain_batch_sequences = 128;
    config.pretrain_sequence_tokens = 64;
    config.pretrain_steps = ROUNDS * STEPS;
    corpus_make(config.data_corpus);
    run(&config);
    run_muon(k2_budget_trainer_threads(&config));
    (void)k2_dir_remove(dir, NULL);
    return 0;
}
