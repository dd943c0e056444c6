/* model_test_int - small models and batches that the model tests share. */
#ifndef K2_TESTS_MODEL_TEST_INT_H
#define K2_TESTS_MODEL_TEST_INT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/model.h"

/* Kinds of model: every switch of the block is on in one of them and off in another; odd widths in the second. */
#define TEST_MODELS 4
static inline k2_dims test_dims(int kind)
{
    k2_dims d = {.vocab_size = 37, .hidden_size = 24, .num_hidden_layers = 2, .num_attention_heads = 2, .kv_lora_rank = 16,
                 .qk_nope_head_dim = 8, .qk_rope_head_dim = 4, .v_head_dim = 8, .intermediate_size = 20, .moe_intermediate_size = 12,
                 .n_routed_experts = 6, .n_shared_experts = 1, .num_experts_per_tok = 2, .n_group = 1, .topk_group = 1,
                 .first_k_dense_replace = 1, .moe_layer_freq = 1, .routed_scaling_factor = 1.5, .norm_topk_prob = true,
                 .max_position_embeddings = 200, .rope_theta = 10000, .rms_norm_eps = 1e-6, .initializer_range = 0.1,
                 .bos_token_id = -1, .eos_token_id = -1};
    if (kind == 1) { /* low-rank queries, YaRN, odd widths, no dense layer */
        d.hidden_size = 29;
        d.num_attention_heads = 3;
        d.q_lora_rank = 13;
        d.kv_lora_rank = 11;
        d.qk_nope_head_dim = 5;
        d.qk_rope_head_dim = 6;
        d.v_head_dim = 7;
        d.moe_intermediate_size = 9;
        d.n_shared_experts = 2;
        d.first_k_dense_replace = 0;
        d.yarn = (k2_yarn){.factor = 4, .beta_fast = 8, .beta_slow = 1, .mscale = 1, .mscale_all_dim = 1, .original_max_position_embeddings = 50};
    } else if (kind == 2) { /* groups, no shared expert, raw scores, tied embeddings */
        d.n_routed_experts = 8;
        d.n_group = 4;
        d.topk_group = 2;
        d.num_experts_per_tok = 3;
        d.n_shared_experts = 0;
        d.norm_topk_prob = false;
        d.tie_word_embeddings = true;
        d.first_k_dense_replace = 0;
        d.moe_layer_freq = 2;
        d.num_hidden_layers = 3;
    } else if (kind == 3) { /* all dense */
        d.n_routed_experts = 0;
        d.q_lora_rank = 16;
        d.intermediate_size = 33;
    }
    return d;
}

static inline k2_model *test_model_in(k2_compute compute, const k2_dims *d, uint32_t threads, uint64_t seed)
{
    k2_error err = {0};
    k2_model *m = k2_model_new(d, compute, threads, &err);
    if (!m) fail_msg("%s", err.text);
    k2_model_init(m, seed, 0.25);
    const k2_model_layout *l = k2_model_layout_of(m);
    for (size_t i = 0; i < l->params_count; i++) {
        float *w = k2_model_params(m) + l->params[i].offset;
        for (size_t e = 0; e < l->params[i].count; e++) {
            float r = (float)(2 * k2_rand_unit(seed, K2_STREAM_TEST, i, e) - 1);
            if (l->params[i].kind == K2_KIND_NORM) w[e] = 1.0f + 0.3f * r;
            if (l->params[i].kind == K2_KIND_BIAS) w[e] = 0.2f * r;
        }
    }
    k2_model_params_changed(m);
    return m;
}

/* The weights of a model that has a vector of them, in one that has none. */
static inline k2_model *test_forward_of(k2_model *from, k2_compute compute, uint32_t threads)
{
    k2_error err = {0};
    k2_model *m = k2_model_new(k2_model_dims(from), compute, threads, &err);
    if (!m) fail_msg("%s", err.text);
    assert_null(k2_model_params(m));
    const k2_model_layout *l = k2_model_layout_of(from);
    const float **tensors = k2_alloc_array(l->params_count, sizeof *tensors);
    for (size_t i = 0; i < l->params_count; i++) tensors[i] = k2_model_params(from) + l->params[i].offset;
    k2_model_params_take(m, tensors);
    k2_free(tensors);
    return m;
}

static inline k2_model *test_model(const k2_dims *d, uint32_t threads, uint64_t seed)
{
    return test_model_in(K2_COMPUTE_F32, d, threads, seed);
}

typedef struct test_batch {
    k2_model_batch b;
    int32_t *tokens, *targets;
    uint32_t *starts;
} test_batch;

/* Sequences of the given lengths; about one target in five is missing. */
static inline test_batch test_batch_new(const k2_dims *d, const uint32_t *lens, size_t seqs, uint64_t seed)
{
    test_batch t = {.starts = k2_alloc_array(seqs + 1, sizeof(uint32_t))};
    for (size_t s = 0; s < seqs; s++) t.starts[s + 1] = t.starts[s] + lens[s];
    size_t n = t.starts[seqs];
    t.tokens = k2_alloc_array(n, sizeof(int32_t));
    t.targets = k2_alloc_array(n, sizeof(int32_t));
    for (size_t i = 0; i < n; i++) {
        t.tokens[i] = (int32_t)k2_rand_below(seed, K2_STREAM_TEST, 1, i, d->vocab_size);
        t.targets[i] = (int32_t)k2_rand_below(seed, K2_STREAM_TEST, 2, i, d->vocab_size);
        if (k2_rand_below(seed, K2_STREAM_TEST, 3, i, 5) == 0) t.targets[i] = -1;
    }
    t.b = (k2_model_batch){.tokens_count = n, .seqs_count = seqs, .tokens = t.tokens, .seq_starts = t.starts, .targets = t.targets};
    return t;
}

static inline void test_batch_free(test_batch *t)
{
    k2_free(t->tokens);
    k2_free(t->targets);
    k2_free(t->starts);
}

/* Forward, and backward where dlogp is given. The arena has exactly the promised bytes: an overrun is asserted. */
static inline void test_run(k2_model *m, uint32_t threads, const k2_model_batch *b, const k2_model_out *out, const float *dlogp, float *grads)
{
    k2_arena arena;
    k2_arena_init(&arena, k2_model_train_bytes(k2_model_dims(m), threads, b->tokens_count, b->recompute));
    k2_model_acts *acts = k2_model_fwd(m, b, &arena, out);
    if (dlogp) k2_model_bwd(m, acts, dlogp, grads);
    k2_arena_fini(&arena);
}

#endif
