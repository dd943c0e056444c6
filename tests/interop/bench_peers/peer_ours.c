/* peer_ours - our engine and trainer as one side of a comparison, one command a line on stdin, one line of answer each.
 *
 *     peer_ours CONFIG THREADS [f32 | bf16]
 *
 *     save DIR                     write the model's weights          ok
 *     train TOKENS LENGTH LR       one step: forward, backward, AdamW  SECONDS CPU LOSS
 *     generate BATCH PROMPT NEW    prompts, then greedy tokens         SECONDS CPU ID ID ...   (the new tokens of sequence 0)
 *
 * SECONDS are of the clock, CPU those of all threads. Memory of a size stays until another size is asked for, as elsewhere.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/model_dims.h"
#include "tests/support/workload.h"

typedef struct side {
    k2_model *model;
    uint32_t threads;
    workload_train train; /* .tokens 0: none yet */
} side;

typedef struct stopwatch {
    double wall, cpu;
} stopwatch;

static double clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static stopwatch now(void)
{
    return (stopwatch){clock_of(CLOCK_MONOTONIC), clock_of(CLOCK_PROCESS_CPUTIME_ID)};
}

static void answer(stopwatch from, stopwatch to)
{
    printf("%.9f %.9f", to.wall - from.wall, to.cpu - from.cpu);
}

static bool save(side *s, const char *dir)
{
    k2_error err;
    const k2_model_layout *layout = k2_model_layout_of(s->model);
    k2_weights_slot *slots = k2_alloc_array(layout->params_count, sizeof(*slots));
    for (size_t i = 0; i < layout->params_count; i++)
        slots[i] = (k2_weights_slot){.name = layout->params[i].name,
                                     .shape = layout->params[i].shape,
                                     .data = k2_model_params(s->model) + layout->params[i].offset};
    k2_code code = k2_weights_dir_save(dir, k2_model_dims(s->model), &(k2_weights_format){.dtype = K2_DTYPE_F32}, slots,
                                       layout->params_count, &err);
    k2_free(slots);
    if (code != K2_OK) fprintf(stderr, "peer_ours: %s\n", err.text);
    printf("ok");
    return code == K2_OK;
}

static void train(side *s, size_t tokens, size_t length, float lr)
{
    if (s->train.tokens != tokens || s->train.length != length) {
        if (s->train.tokens > 0) workload_train_end(&s->train);
        workload_train_begin(&s->train, s->model, s->threads, tokens, length);
    }
    stopwatch start = now();
    workload_step step = workload_train_step(&s->train, lr);
    answer(start, now());
    printf(" %.9g", step.loss);
}

static void generate(side *s, size_t batch, size_t prompt, size_t new_tokens)
{
    workload_decode w;
    workload_decode_begin(&w, s->model, s->threads, batch, prompt, new_tokens);
    stopwatch start = now();
    workload_decode_prompt(&w);
    workload_decode_rest(&w);
    answer(start, now());
    for (size_t p = prompt; p < w.positions; p++) printf(" %" PRId32, w.ids[p]);
    workload_decode_end(&w);
}

static bool command(side *s, char *line)
{
    size_t a, b, c;
    float lr;
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "save ", 5) == 0) return save(s, line + 5);
    if (sscanf(line, "train %zu %zu %f", &a, &b, &lr) == 3 && b >= 2 && a >= b && a % b == 0) {
        train(s, a, b, lr);
        return true;
    }
    if (sscanf(line, "generate %zu %zu %zu", &a, &b, &c) == 3 && a >= 1 && b >= 1) {
        generate(s, a, b, c);
        return true;
    }
    fprintf(stderr, "peer_ours: '%s' is no command\n", line);
    return false;
}

int main(int argc, char **argv)
{
    char line[4096];
    side s = {.threads = argc == 3 || argc == 4 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0};
    if (s.threads < 1 || s.threads > K2_TEAM_THREADS_MAX) {
        fprintf(stderr, "usage: peer_ours CONFIG THREADS [f32 | bf16]\n");
        return 2;
    }
    k2_dims dims = model_dims(argv[1]);
    k2_compute compute = argc == 4 && strcmp(argv[3], "bf16") == 0 ? K2_COMPUTE_BF16 : K2_COMPUTE_F32;
    s.model = k2_model_new(&dims, compute, s.threads, NULL);
    k2_model_init(s.model, 1, 0);
    while (fgets(line, sizeof(line), stdin)) {
        if (!command(&s, line)) return 1;
        printf("\n");
        fflush(stdout);
    }
    if (s.train.tokens > 0) workload_train_end(&s.train);
    k2_model_free(s.model);
    return 0;
}
