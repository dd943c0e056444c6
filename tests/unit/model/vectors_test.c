/* Logits, greedy tokens and gradients against Hugging Face's DeepseekV3ForCausalLM. */
#include "tests/unit/model/model_test_int.h"
#include "tests/support/vectors.h"

/* Bounds that f32 arithmetic keeps: of logits in units of their spread, of a tensor's gradient relative to its norm. Fresh
 * draws meet badly conditioned softmaxes now and then: the worst of 65 was 1.8e-5 from f64; theirs in f32 was 1.0e-5 at worst,
 * and the medians are 2.7e-6 and 2.8e-6. */
#define LOGITS_BOUND       1e-5
#define LOGITS_BOUND_FRESH 5e-5
#define GRAD_BOUND         1e-4

#define PAGE 8u

typedef struct cache {
    k2_model_kv kv;
    uint32_t *table; /* of every page: sequences take theirs one after another */
    k2_arena arena;
} cache;

static cache cache_new(const k2_dims *d, uint32_t pages, size_t rows)
{
    cache c = {.kv = {.page_tokens = PAGE, .pages_count = pages}, .table = k2_alloc_array(pages, sizeof(uint32_t))};
    c.kv.pages = k2_alloc_aligned(64, pages * k2_model_page_floats(d, PAGE) * sizeof(float));
    for (uint32_t p = 0; p < pages; p++) c.table[p] = p;
    k2_arena_init(&c.arena, k2_model_decode_bytes(d, 1, rows, pages * PAGE));
    return c;
}

static void cache_free(cache *c)
{
    k2_arena_fini(&c->arena);
    k2_free(c->kv.pages);
    k2_free(c->table);
}

static double spread(const float *x, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i];
    for (size_t i = 0; i < n; i++) squares += ((double)x[i] - sum / (double)n) * ((double)x[i] - sum / (double)n);
    return sqrt(squares / (double)n);
}

/* All rows of the batch as one prefill; logits of every row. */
static void logits_check(k2_model *m, const vectors *v, const k2_model_batch *b)
{
    const k2_dims *d = k2_model_dims(m);
    size_t T = b->tokens_count, V = d->vocab_size;
    float *want = vectors_take(v, "", "logits", T * V), *logits = k2_alloc_array(T * V, sizeof(float));
    k2_model_row *rows = k2_alloc_array(T, sizeof(*rows));
    uint32_t each = 2; /* pages of a sequence */
    cache c = cache_new(d, each * (uint32_t)b->seqs_count, T);
    for (uint32_t s = 0; s < b->seqs_count; s++) {
        assert_true(b->seq_starts[s + 1] - b->seq_starts[s] <= each * PAGE);
        for (uint32_t t = b->seq_starts[s]; t < b->seq_starts[s + 1]; t++) {
            rows[t] = (k2_model_row){.token = b->tokens[t],
                                     .position = t - b->seq_starts[s],
                                     .page_table = c.table + s * each,
                                     .logits = logits + t * V};
        }
    }
    k2_model_decode(m, &c.kv, rows, T, &c.arena);
    double worst = 0, unit = spread(want, T * V);
    for (size_t i = 0; i < T * V; i++) worst = fmax(worst, fabs((double)logits[i] - (double)want[i]) / unit);
    print_message("  logits: largest difference %.2e of their spread\n", worst);
    assert_true(worst < (getenv("K2_VECTORS") ? LOGITS_BOUND_FRESH : LOGITS_BOUND));
    cache_free(&c);
    k2_free(want);
    k2_free(logits);
    k2_free(rows);
}

/* Token after token over the cache: what follows the prompt must be what follows theirs. */
static void greedy_check(k2_model *m, const vectors *v)
{
    enum { PROMPT = 5, TOKENS = 64 };
    const k2_dims *d = k2_model_dims(m);
    int32_t *ids = vectors_take(v, "", "greedy", PROMPT + TOKENS);
    float *logits = k2_alloc_array(d->vocab_size, sizeof(float));
    cache c = cache_new(d, (PROMPT + TOKENS) / PAGE + 1, 1);
    for (uint32_t t = 0; t + 1 < PROMPT + TOKENS; t++) {
        k2_model_row row = {.token = ids[t], .position = t, .page_table = c.table, .logits = logits};
        k2_arena_reset(&c.arena, 0);
        k2_model_decode(m, &c.kv, &row, 1, &c.arena);
        int32_t best = 0;
        for (int32_t i = 1; i < (int32_t)d->vocab_size; i++) best = logits[i] > logits[best] ? i : best;
        if (t + 1 >= PROMPT && best != ids[t + 1]) fail_msg("token %u is %d, theirs %d", t + 1, best, ids[t + 1]);
    }
    cache_free(&c);
    k2_free(ids);
    k2_free(logits);
}

static double norm_of(const float *x, size_t n)
{
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return sqrt(squares);
}

static void grads_check(k2_model *m, const vectors *v, const vectors_batch *batch)
{
    const k2_model_layout *l = k2_model_layout_of(m);
    float *grads = k2_alloc_array(l->floats, sizeof(float));
    vectors_grads(m, batch, grads);
    double worst = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        const k2_param *p = &l->params[i];
        float *want = vectors_take(v, "g:", p->name, p->count), *got = grads + p->offset;
        assert_true((want == NULL) == (p->kind == K2_KIND_BIAS));
        if (!want) continue;
        double norm = norm_of(want, p->count);
        for (size_t e = 0; e < p->count; e++) want[e] -= got[e];
        double relative = norm_of(want, p->count) / (norm > 0 ? norm : 1);
        if (relative > GRAD_BOUND) fail_msg("gradient of %s: relative difference %.2e", p->name, relative);
        worst = fmax(worst, relative);
        k2_free(want);
    }
    print_message("  gradients: largest relative difference %.2e\n", worst);
    k2_free(grads);
}

static void one_case(void **state)
{
    vectors v = vectors_load(*state);
    k2_model *m = vectors_model(&v);
    vectors_batch batch = vectors_batch_take(&v);
    logits_check(m, &v, &batch.b);
    greedy_check(m, &v);
    grads_check(m, &v, &batch);
    vectors_batch_free(&batch);
    k2_model_free(m);
    vectors_free(&v);
}

int main(void)
{
    return vectors_run(one_case, 12);
}
