/* Logits and gradients against Hugging Face's DeepseekV3ForCausalLM: the files of vectors/, made by
 * tests/interop/model/make_vectors.py, which also describes their form; or fresh ones in the folder K2_VECTORS. */
#include "tests/unit/model/model_test_int.h"

typedef struct record {
    char name[128];
    uint32_t kind, rank, size[4];
    size_t count;
    const void *data;
} record;

typedef struct vectors {
    char *bytes;
    record *records;
    uint32_t count;
} vectors;

static vectors vectors_load(const char *name)
{
    vectors v;
    char path[512];
    size_t len;
    k2_error err = {0};
    const char *fresh = getenv("K2_VECTORS");
    if (fresh) {
        snprintf(path, sizeof(path), "%s/%s.k2v", fresh, name);
    } else {
        snprintf(path, sizeof(path), "%s/tests/unit/model/vectors/%s.k2v", K2_SOURCE_DIR, name);
    }
    if (k2_file_read(path, 1u << 24, &v.bytes, &len, &err) != K2_OK) fail_msg("%s", err.text);
    assert_memory_equal(v.bytes, "K2VEC1\0\0", 8);
    v.count = k2_load_u32le(v.bytes + 8);
    v.records = k2_alloc_array(v.count, sizeof(record));
    char *at = v.bytes + 12;
    for (uint32_t i = 0; i < v.count; i++) {
        record *r = &v.records[i];
        uint32_t n = k2_load_u32le(at);
        assert_true(n < sizeof(r->name));
        memcpy(r->name, at + 4, n);
        at += 4 + n;
        r->kind = k2_load_u32le(at);
        r->rank = k2_load_u32le(at + 4);
        at += 8;
        r->count = 1;
        for (uint32_t j = 0; j < r->rank; j++, at += 4) r->count *= r->size[j] = k2_load_u32le(at);
        r->data = at;
        at += r->count * 4;
        assert_true((size_t)(at - v.bytes) <= len);
    }
    return v;
}

/* Copies, because data in the file is not aligned. */
static void *vectors_take(const vectors *v, const char *prefix, const char *name, size_t count)
{
    for (uint32_t i = 0; i < v->count; i++) {
        const record *r = &v->records[i];
        if (strncmp(r->name, prefix, strlen(prefix)) != 0 || strcmp(r->name + strlen(prefix), name) != 0) continue;
        if (count) assert_int_equal(r->count, count);
        void *copy = k2_alloc_array(r->count, 4);
        memcpy(copy, r->data, r->count * 4);
        return copy;
    }
    return NULL;
}

static k2_dims vectors_dims(const vectors *v)
{
    float *f = vectors_take(v, "", "dims", 28);
    assert_non_null(f);
    uint32_t u[28];
    for (int i = 0; i < 28; i++) u[i] = (uint32_t)f[i];
    k2_dims d = {.vocab_size = u[0],
                 .hidden_size = u[1],
                 .num_hidden_layers = u[2],
                 .num_attention_heads = u[3],
                 .q_lora_rank = u[4],
                 .kv_lora_rank = u[5],
                 .qk_nope_head_dim = u[6],
                 .qk_rope_head_dim = u[7],
                 .v_head_dim = u[8],
                 .intermediate_size = u[9],
                 .moe_intermediate_size = u[10],
                 .n_routed_experts = u[11],
                 .n_shared_experts = u[12],
                 .num_experts_per_tok = u[13],
                 .n_group = u[14],
                 .topk_group = u[15],
                 .first_k_dense_replace = u[16],
                 .moe_layer_freq = 1,
                 .routed_scaling_factor = (double)f[17],
                 .norm_topk_prob = u[18],
                 .tie_word_embeddings = u[19],
                 .max_position_embeddings = u[20],
                 .rope_theta = (double)f[21],
                 .rms_norm_eps = 1e-6,
                 .bos_token_id = -1,
                 .eos_token_id = -1,
                 .yarn = {.factor = (double)f[22],
                          .beta_fast = (double)f[23],
                          .beta_slow = (double)f[24],
                          .mscale = (double)f[25],
                          .mscale_all_dim = (double)f[26],
                          .original_max_position_embeddings = u[27]}};
    k2_free(f);
    return d;
}

static void weights_put(k2_model *m, const vectors *v)
{
    const k2_model_layout *l = k2_model_layout_of(m);
    uint32_t found = 0, given = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        float *w = vectors_take(v, "w:", l->params[i].name, l->params[i].count);
        if (!w) fail_msg("no weight %s", l->params[i].name);
        memcpy(k2_model_params(m) + l->params[i].offset, w, l->params[i].count * sizeof(float));
        k2_free(w);
        found++;
    }
    for (uint32_t i = 0; i < v->count; i++) given += v->records[i].name[0] == 'w' && v->records[i].name[1] == ':';
    assert_int_equal(found, given); /* none of theirs is left over */
    k2_model_params_changed(m);
}

/* All rows of the batch as one prefill over one page per sequence; logits of every row. */
static void logits_check(k2_model *m, const k2_model_batch *b, const float *want)
{
    const k2_dims *d = k2_model_dims(m);
    size_t T = b->tokens_count, V = d->vocab_size;
    k2_model_kv kv = {.page_tokens = 32, .pages_count = (uint32_t)b->seqs_count};
    kv.pages = k2_alloc_aligned(64, kv.pages_count * k2_model_page_floats(d, 32) * sizeof(float));
    float *logits = k2_alloc_array(T * V, sizeof(float));
    k2_model_row *rows = k2_alloc_array(T, sizeof(*rows));
    uint32_t *table = k2_alloc_array(b->seqs_count, sizeof(uint32_t));
    for (uint32_t s = 0; s < b->seqs_count; s++) {
        table[s] = s;
        for (uint32_t t = b->seq_starts[s]; t < b->seq_starts[s + 1]; t++) {
            rows[t] = (k2_model_row){
                .token = b->tokens[t], .position = t - b->seq_starts[s], .page_table = &table[s], .logits = logits + t * V};
        }
    }
    k2_arena arena;
    k2_arena_init(&arena, k2_model_decode_bytes(d, 1, T, 32));
    k2_model_decode(m, &kv, rows, T, &arena);
    double worst = 0;
    for (size_t i = 0; i < T * V; i++) worst = fmax(worst, fabs((double)logits[i] - (double)want[i]));
    print_message("  logits: largest difference %.2e\n", worst);
    assert_true(worst < 1e-4);
    k2_arena_fini(&arena);
    k2_free(kv.pages);
    k2_free(logits);
    k2_free(rows);
    k2_free(table);
}

static void grads_check(k2_model *m, const vectors *v, const k2_model_batch *b)
{
    const k2_model_layout *l = k2_model_layout_of(m);
    float *logp = k2_alloc_array(b->tokens_count, sizeof(float)), *dlogp = k2_alloc_array(b->tokens_count, sizeof(float));
    float *grads = k2_alloc_array(l->floats, sizeof(float));
    size_t targets = 0;
    for (size_t t = 0; t < b->tokens_count; t++) targets += b->targets[t] >= 0;
    for (size_t t = 0; t < b->tokens_count; t++) dlogp[t] = -1.0f / (float)targets;
    test_run(m, 1, b, &(k2_model_out){.logp = logp}, dlogp, grads);
    double worst = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        const k2_param *p = &l->params[i];
        float *want = vectors_take(v, "g:", p->name, p->count);
        assert_true((want == NULL) == (p->kind == K2_KIND_BIAS));
        double diff = 0, norm = 0, most = 0;
        for (size_t e = 0; want && e < p->count; e++) {
            double x = (double)grads[p->offset + e] - (double)want[e];
            diff += x * x;
            most = fmax(most, fabs(x));
            norm += (double)want[e] * (double)want[e];
        }
        double relative = norm > 0 ? sqrt(diff / norm) : most;
        if (relative > 1e-3) fail_msg("gradient of %s: relative difference %.2e", p->name, relative);
        worst = fmax(worst, relative);
        k2_free(want);
    }
    print_message("  gradients: largest relative difference %.2e\n", worst);
    k2_free(logp);
    k2_free(dlogp);
    k2_free(grads);
}

static void one_case(void **state)
{
    vectors v = vectors_load(*state);
    k2_dims d = vectors_dims(&v);
    k2_error err = {0};
    k2_model *m = k2_model_new(&d, 1, &err);
    if (!m) fail_msg("%s", err.text);
    weights_put(m, &v);
    int32_t *tokens = vectors_take(&v, "", "tokens", 0), *targets = vectors_take(&v, "", "targets", 0);
    uint32_t *starts = vectors_take(&v, "", "seq_starts", 4);
    k2_model_batch b = {.tokens_count = starts[3], .seqs_count = 3, .tokens = tokens, .targets = targets, .seq_starts = starts};
    float *logits = vectors_take(&v, "", "logits", (size_t)starts[3] * d.vocab_size);
    logits_check(m, &b, logits);
    grads_check(m, &v, &b);
    k2_model_free(m);
    k2_free(logits);
    k2_free(tokens);
    k2_free(targets);
    k2_free(starts);
    k2_free(v.records);
    k2_free(v.bytes);
}

static char *const cases[] = {"plain", "qlora_yarn", "groups", "dense_tied", "odd_sizes"};

int main(void)
{
    struct CMUnitTest tests[K2_COUNT(cases)];
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        tests[i] = (struct CMUnitTest){.name = cases[i], .test_func = one_case, .initial_state = cases[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
