/* A whole model: training, prompts, decoding. Shares count 2 operations (forward) or 6 (training) for each weight that a token
 * is multiplied with; attention comes on top, so they are lower bounds. */
#include "tests/bench/kernel/bench.h"

#include <stdio.h>

#include "tests/support/model_dims.h"
#include "tests/support/workload.h"

enum { TURNS = 7 };

typedef struct model_case {
    const char *name;
    k2_model *model;
    uint32_t threads;
    double active;
    bool bf16;
} model_case;

/* `seconds` for `tokens` tokens of `flop` operations for each active weight, as tokens a second and as a share of the peak. */
static void report(const model_case *c, const char *what, double tokens, double flop, double *seconds, double *peaks)
{
    double best = tokens / bench_median(seconds, TURNS);
    printf("%s_%s_t%u,%.0f,tokens/s,%.2f,%s\n", c->name, what, c->threads, best,
           best * flop * c->active / (bench_median(peaks, TURNS) * c->threads), bench_peak_name(c->bf16));
    fflush(stdout);
}

static void bench_train(const model_case *c, size_t tokens, size_t length)
{
    workload_train w;
    double fwd[TURNS], whole[TURNS], cpu[TURNS], peaks[TURNS];
    char what[48];
    workload_train_begin(&w, c->model, c->threads, tokens, length);
    for (int i = -1; i < TURNS; i++) {
        double start = bench_seconds(1);
        workload_step s = workload_train_step(&w, 1e-5f);
        if (i < 0) continue;
        cpu[i] = bench_seconds(1) - start;
        fwd[i] = s.fwd;
        whole[i] = s.fwd + s.bwd + s.update;
        peaks[i] = bench_peak(c->bf16);
    }
    snprintf(what, sizeof(what), "fwd_%zux%zu", tokens / length, length);
    report(c, what, (double)tokens, 2, fwd, peaks);
    snprintf(what, sizeof(what), "train_%zux%zu", tokens / length, length);
    report(c, what, (double)tokens, 6, whole, peaks);
    printf("%s_%s_t%u_cpu,%.0f,tokens/s of one processor,,\n", c->name, what, c->threads,
           (double)tokens / bench_median(cpu, TURNS));
    workload_train_end(&w);
}

static void bench_decode(const model_case *c, size_t batch, size_t prompt, size_t new_tokens)
{
    workload_decode w;
    double prefill[TURNS], rest[TURNS], peaks[TURNS];
    char what[48];
    workload_decode_begin(&w, c->model, c->threads, batch, prompt, new_tokens);
    for (int i = -1; i < TURNS; i++) {
        double first = workload_decode_prompt(&w), then = workload_decode_rest(&w);
        if (i < 0) continue;
        prefill[i] = first;
        rest[i] = then;
        peaks[i] = bench_peak(c->bf16);
    }
    snprintf(what, sizeof(what), "prefill_%zux%zu", batch, prompt);
    report(c, what, (double)(batch * prompt), 2, prefill, peaks);
    if (new_tokens > 0) {
        snprintf(what, sizeof(what), "decode_%zu", batch);
        report(c, what, (double)(batch * new_tokens), 2, rest, peaks);
    }
    workload_decode_end(&w);
}

void bench_model(const char *name, const char *path, k2_compute compute, uint32_t threads)
{
    k2_dims dims = model_dims(path);
    model_case c = {.name = name,
                    .threads = threads,
                    .bf16 = compute != K2_COMPUTE_F32,
                    .model = k2_model_new(&dims, compute, threads, NULL)};
    k2_model_init(c.model, 1, 0);
    c.active = (double)workload_active_params(c.model);
    if (threads == 1 && !c.bf16) {
        printf("%s_params,%zu,parameters,%.2f,at work for a token\n", name, k2_model_param_count(c.model),
               c.active / (double)k2_model_param_count(c.model));
    }
    size_t length = K2_MIN((size_t)128, (size_t)dims.max_position_embeddings);
    bench_decode(&c, 1, 32, 64);
    bench_decode(&c, 8, 32, 64);
    bench_decode(&c, 64, 32, 32);
    bench_decode(&c, 1, K2_MIN((size_t)512, (size_t)dims.max_position_embeddings), 0);
    bench_train(&c, 16 * length, length);
    printf("%s_t%u_peak_memory,%.0f,MiB,,\n", name, threads, workload_peak_mib());
    k2_model_free(c.model);
}
