/* vectors - what Hugging Face's DeepseekV3ForCausalLM says, for tests: the .k2v files of tests/unit/model/vectors, or fresh ones
 * in the folder K2_VECTORS. tests/interop/model/make_vectors.py makes them and describes their form.
 *
 * Include after cmocka.h; define VECTORS_DIR before for another folder of committed files. A file that is not as expected fails the test.
 */
#ifndef K2_TESTS_SUPPORT_VECTORS_H
#define K2_TESTS_SUPPORT_VECTORS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/model.h"

#define VECTORS_CASES_MAX 256u
#ifndef VECTORS_DIR
#define VECTORS_DIR K2_SOURCE_DIR "/tests/unit/model/vectors"
#endif

typedef struct vectors_record {
    char name[128];
    size_t count;
    const void *data; /* in the file's bytes, not aligned */
} vectors_record;

typedef struct vectors {
    char *bytes;
    vectors_record *records;
    uint32_t count;
} vectors;

static inline const char *vectors_dir(void)
{
    const char *fresh = getenv("K2_VECTORS");
    return fresh ? fresh : VECTORS_DIR;
}

static inline int vectors_is_case(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return n > 4 && strcmp(e->d_name + n - 4, ".k2v") == 0;
}

static inline vectors vectors_load(const char *file)
{
    vectors v;
    char path[512];
    size_t len;
    k2_error err = {0};
    snprintf(path, sizeof(path), "%s/%s", vectors_dir(), file);
    if (k2_file_read(path, 1u << 24, &v.bytes, &len, &err) != K2_OK) fail_msg("%s", err.text);
    assert_memory_equal(v.bytes, "K2VEC1\0\0", 8);
    v.count = k2_load_u32le(v.bytes + 8);
    v.records = k2_alloc_array(v.count, sizeof(*v.records));
    char *at = v.bytes + 12;
    for (uint32_t i = 0; i < v.count; i++) {
        vectors_record *r = &v.records[i];
        uint32_t n = k2_load_u32le(at), rank = k2_load_u32le(at + 4 + n + 4);
        assert_true(n < sizeof(r->name));
        memcpy(r->name, at + 4, n);
        at += 4 + n + 8;
        r->count = 1;
        for (uint32_t j = 0; j < rank; j++, at += 4) r->count *= k2_load_u32le(at);
        r->data = at;
        at += r->count * 4;
        assert_true((size_t)(at - v.bytes) <= len);
    }
    return v;
}

static inline void vectors_free(vectors *v)
{
    k2_free(v->records);
    k2_free(v->bytes);
}

/* A copy of a record, 4 bytes an element; the caller frees it. NULL: not there. count 0: any. */
static inline void *vectors_take(const vectors *v, const char *prefix, const char *name, size_t count)
{
    for (uint32_t i = 0; i < v->count; i++) {
        const vectors_record *r = &v->records[i];
        if (strncmp(r->name, prefix, strlen(prefix)) != 0 || strcmp(r->name + strlen(prefix), name) != 0) continue;
        if (count) assert_int_equal(r->count, count);
        void *copy = k2_alloc_array(r->count, 4);
        memcpy(copy, r->data, r->count * 4);
        return copy;
    }
    return NULL;
}

static inline k2_dims vectors_dims(const vectors *v)
{
    float *f = vectors_take(v, "", "dims", 29);
    assert_non_null(f);
    uint32_t u[29];
    for (int i = 0; i < 29; i++) u[i] = (uint32_t)f[i];
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
                 .rms_norm_eps = (double)f[28],
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

/* The model of a case, with its weights; every tensor of theirs is one of ours. */
static inline k2_model *vectors_model(const vectors *v)
{
    k2_dims d = vectors_dims(v);
    k2_error err = {0};
    k2_model *m = k2_model_new(&d, K2_COMPUTE_F32, 1, &err);
    if (!m) fail_msg("%s", err.text);
    const k2_model_layout *l = k2_model_layout_of(m);
    uint32_t given = 0;
    for (size_t i = 0; i < l->params_count; i++) {
        float *w = vectors_take(v, "w:", l->params[i].name, l->params[i].count);
        if (!w) fail_msg("no weight %s", l->params[i].name);
        memcpy(k2_model_params(m) + l->params[i].offset, w, l->params[i].count * sizeof(float));
        k2_free(w);
    }
    for (uint32_t i = 0; i < v->count; i++) given += strncmp(v->records[i].name, "w:", 2) == 0;
    assert_int_equal(l->params_count, given);
    k2_model_params_changed(m);
    return m;
}

typedef struct vectors_batch {
    k2_model_batch b;
    int32_t *tokens, *targets;
    uint32_t *starts;
    float *dlogp; /* of the mean cross-entropy over all targets */
} vectors_batch;

static inline vectors_batch vectors_batch_take(const vectors *v)
{
    vectors_batch t = {.tokens = vectors_take(v, "", "tokens", 0), .starts = vectors_take(v, "", "seq_starts", 4)};
    uint32_t n = t.starts[3], targets = 0;
    t.targets = vectors_take(v, "", "targets", n);
    t.dlogp = k2_alloc_array(n, sizeof(float));
    for (uint32_t i = 0; i < n; i++) targets += t.targets[i] >= 0;
    for (uint32_t i = 0; i < n; i++) t.dlogp[i] = -1.0f / (float)targets;
    t.b = (k2_model_batch){.tokens_count = n, .seqs_count = 3, .tokens = t.tokens, .targets = t.targets, .seq_starts = t.starts};
    return t;
}

static inline void vectors_batch_free(vectors_batch *t)
{
    k2_free(t->tokens);
    k2_free(t->targets);
    k2_free(t->starts);
    k2_free(t->dlogp);
}

/* Forward and backward of the batch; grads f32 [layout floats] are set. */
static inline void vectors_grads(k2_model *m, const vectors_batch *t, float *grads)
{
    k2_arena arena;
    float *logp = k2_alloc_array(t->b.tokens_count, sizeof(float));
    memset(grads, 0, k2_model_layout_of(m)->floats * sizeof(float));
    k2_arena_init(&arena, k2_model_act_bytes(k2_model_dims(m), 1, t->b.tokens_count));
    k2_model_acts *acts = k2_model_fwd(m, &t->b, &arena, &(k2_model_out){.logp = logp});
    k2_model_bwd(m, acts, t->dlogp, grads);
    k2_arena_fini(&arena);
    k2_free(logp);
}

/* Run one test for each case; at least `least` must be there. */
static inline int vectors_run(CMUnitTestFunction test, int least)
{
    static struct dirent **cases;
    static struct CMUnitTest tests[VECTORS_CASES_MAX];
    int n = scandir(vectors_dir(), &cases, vectors_is_case, alphasort);
    if (n < least || n > (int)VECTORS_CASES_MAX) {
        fprintf(stderr, "%s: %d cases, expected %d to %u\n", vectors_dir(), n, least, VECTORS_CASES_MAX);
        return 1;
    }
    for (int i = 0; i < n; i++) {
        tests[i] = (struct CMUnitTest){.name = cases[i]->d_name, .test_func = test, .initial_state = cases[i]->d_name};
    }
    int failed = _cmocka_run_group_tests("vectors", tests, (size_t)n, NULL, NULL);
    for (int i = 0; i < n; i++) free(cases[i]);
    free(cases);
    return failed;
}

#endif
