/* workload - see workload.h. */
#include "tests/support/workload.h"

#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { PAGE = 16, UPDATE_FLOATS = 65536 };

/* Of one thread its processor time, which stands on a busy machine too. */
static double seconds(uint32_t threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- training */

void workload_train_begin(workload_train *w, k2_model *m, uint32_t threads, size_t tokens, size_t length)
{
    size_t seqs = tokens / length, params = k2_model_param_count(m), vocab = k2_model_dims(m)->vocab_size;
    K2_ASSERT(seqs * length == tokens && length >= 2);
    *w =
        (workload_train){.model = m, .threads = threads, .tokens = tokens, .length = length, .team = k2_kern_team_new(threads)};
    w->ids = k2_alloc_array(tokens, sizeof(int32_t));
    w->targets = k2_alloc_array(tokens, sizeof(int32_t));
    w->starts = k2_alloc_array(seqs + 1, sizeof(uint32_t));
    w->logp = k2_alloc_array(tokens, sizeof(float));
    w->dlogp = k2_alloc_array(tokens, sizeof(float));
    w->grads = k2_alloc_aligned(64, params * sizeof(float));
    w->m = k2_alloc_aligned(64, params * sizeof(float));
    w->v = k2_alloc_aligned(64, params * sizeof(float));
    for (size_t s = 0; s <= seqs; s++) w->starts[s] = (uint32_t)(s * length);
    for (size_t i = 0; i < tokens; i++) w->ids[i] = (int32_t)((i * 7919 + i / 3) % vocab);
    for (size_t i = 0; i < tokens; i++) {
        bool last = (i + 1) % length == 0;
        w->targets[i] = last ? -1 : w->ids[i + 1];
        w->dlogp[i] = last ? 0 : -1.0f / (float)(tokens - seqs);
    }
    k2_arena_init(&w->arena, k2_model_act_bytes(k2_model_dims(m), threads, tokens));
}

typedef struct update {
    workload_train *w;
    k2_adamw how;
} update;

static void update_task(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const update *u = arg;
    workload_train *w = u->w;
    size_t from = task * UPDATE_FLOATS, n = K2_MIN((size_t)UPDATE_FLOATS, k2_model_param_count(w->model) - from);
    k2_kern_adamw(&u->how, n, w->grads + from, k2_model_params(w->model) + from, w->m + from, w->v + from);
}

static double power(double x, uint64_t n)
{
    double y = 1;
    while (n-- > 0) y *= x;
    return y;
}

workload_step workload_train_step(workload_train *w, float lr)
{
    workload_step out = {0};
    size_t seqs = w->tokens / w->length, params = k2_model_param_count(w->model);
    k2_model_batch b = {
        .tokens_count = w->tokens, .seqs_count = seqs, .tokens = w->ids, .targets = w->targets, .seq_starts = w->starts};
    double start = seconds(w->threads);
    k2_model_acts *acts = k2_model_fwd(w->model, &b, &w->arena, &(k2_model_out){.logp = w->logp});
    out.fwd = seconds(w->threads) - start;
    for (size_t i = 0; i < w->tokens; i++) out.loss += (double)(w->logp[i] * w->dlogp[i]);
    start = seconds(w->threads);
    memset(w->grads, 0, params * sizeof(float));
    k2_model_bwd(w->model, acts, w->dlogp, w->grads);
    k2_arena_reset(&w->arena, 0);
    out.bwd = seconds(w->threads) - start;
    if (lr == 0) return out;
    start = seconds(w->threads);
    w->steps++;
    update u = {.w = w, .how = {.lr = lr, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1}};
    u.how.correct1 = (float)(1 / (1 - power(0.9, w->steps)));
    u.how.correct2 = (float)(1 / (1 - power(0.95, w->steps)));
    k2_kern_team_run(w->team, (params + UPDATE_FLOATS - 1) / UPDATE_FLOATS, update_task, &u);
    k2_model_params_changed(w->model);
    out.update = seconds(w->threads) - start;
    return out;
}

void workload_train_end(workload_train *w)
{
    k2_arena_fini(&w->arena);
    k2_free(w->v);
    k2_free(w->m);
    k2_free(w->grads);
    k2_free(w->dlogp);
    k2_free(w->logp);
    k2_free(w->starts);
    k2_free(w->targets);
    k2_free(w->ids);
    k2_kern_team_free(w->team);
}

/* ---- decoding */

void workload_decode_begin(workload_decode *w, k2_model *m, uint32_t threads, size_t batch, size_t prompt, size_t new_tokens)
{
    const k2_dims *d = k2_model_dims(m);
    size_t positions = prompt + new_tokens, pages = (positions + PAGE - 1) / PAGE;
    K2_ASSERT(prompt >= 1 && positions <= d->max_position_embeddings);
    *w = (workload_decode){.model = m, .threads = threads, .batch = batch, .prompt = prompt, .positions = positions};
    w->kv = (k2_model_kv){.page_tokens = PAGE, .pages_count = (uint32_t)(batch * pages)};
    w->kv.pages = k2_alloc_aligned(64, batch * pages * k2_model_page_floats(d, PAGE) * sizeof(float));
    w->tables = k2_alloc_array(batch * pages, sizeof(uint32_t));
    w->ids = k2_alloc_array(batch * positions, sizeof(int32_t));
    w->logits = k2_alloc_aligned(64, batch * d->vocab_size * sizeof(float));
    w->softmax = k2_alloc_array(batch, sizeof(*w->softmax));
    w->rows = k2_alloc_array(batch * prompt, sizeof(*w->rows));
    for (size_t i = 0; i < batch * pages; i++) w->tables[i] = (uint32_t)i;
    for (size_t i = 0; i < batch; i++) {
        for (size_t p = 0; p < prompt; p++) w->ids[i * positions + p] = (int32_t)((i * 31 + p * 7919 + p / 3) % d->vocab_size);
    }
    k2_arena_init(&w->arena, k2_model_decode_bytes(d, threads, batch * prompt, positions));
}

static k2_model_row row_of(const workload_decode *w, size_t i, size_t position)
{
    size_t pages = (w->positions + PAGE - 1) / PAGE;
    return (k2_model_row){.token = w->ids[i * w->positions + position],
                          .position = (uint32_t)position,
                          .page_table = w->tables + i * pages,
                          .logits = w->logits + i * k2_model_dims(w->model)->vocab_size,
                          .softmax = &w->softmax[i]};
}

/* The likeliest token of each sequence goes to `position`. */
static void choose(workload_decode *w, size_t position)
{
    size_t vocab = k2_model_dims(w->model)->vocab_size;
    for (size_t i = 0; i < w->batch; i++) {
        const float *logits = w->logits + i * vocab;
        size_t best = 0;
        for (size_t id = 1; id < vocab; id++) best = logits[id] > logits[best] ? id : best;
        w->ids[i * w->positions + position] = (int32_t)best;
    }
}

double workload_decode_prompt(workload_decode *w)
{
    size_t n = 0;
    double start = seconds(w->threads);
    for (size_t i = 0; i < w->batch; i++) {
        for (size_t p = 0; p < w->prompt; p++) {
            w->rows[n] = row_of(w, i, p);
            if (p + 1 < w->prompt) w->rows[n].logits = NULL;
            n++;
        }
    }
    k2_model_decode(w->model, &w->kv, w->rows, n, &w->arena);
    if (w->positions > w->prompt) choose(w, w->prompt);
    return seconds(w->threads) - start;
}

/* The first new token is the prompts' own; the last is decoded, too, so that each of them costs one row. */
double workload_decode_rest(workload_decode *w)
{
    double start = seconds(w->threads);
    k2_model_calls_begin(w->model);
    for (size_t p = w->prompt; p < w->positions; p++) {
        for (size_t i = 0; i < w->batch; i++) w->rows[i] = row_of(w, i, p);
        k2_model_decode(w->model, &w->kv, w->rows, w->batch, &w->arena);
        if (p + 1 < w->positions) choose(w, p + 1);
    }
    k2_model_calls_end(w->model);
    return seconds(w->threads) - start;
}

void workload_decode_end(workload_decode *w)
{
    k2_arena_fini(&w->arena);
    k2_free(w->rows);
    k2_free(w->softmax);
    k2_free(w->logits);
    k2_free(w->ids);
    k2_free(w->tables);
    k2_free(w->kv.pages);
}

/* ---- what a model is */

size_t workload_active_params(const k2_model *m)
{
    const k2_model_layout *l = k2_model_layout_of(m);
    const k2_dims *d = k2_model_dims(m);
    size_t n = (size_t)d->vocab_size * d->hidden_size;
    for (size_t i = 0; i < l->params_count; i++) {
        bool idle = l->params[i].expert >= (int32_t)d->num_experts_per_tok;
        if (l->params[i].kind == K2_KIND_MATRIX && !idle) n += l->params[i].count;
    }
    return n;
}

double workload_peak_mib(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss / 1024;
}
