/* The layout: names, order, offsets and count, and initial values. */
#include "tests/unit/model/model_test_int.h"

static void offsets_rise_without_overlap(void **state)
{
    (void)state;
    for (int kind = 0; kind < TEST_MODELS; kind++) {
        k2_dims d = test_dims(kind);
        k2_model_layout *l = k2_model_layout_new(&d);
        size_t end = 0;
        for (size_t i = 0; i < l->params_count; i++) {
            const k2_param *p = &l->params[i];
            uint64_t count;
            assert_true(p->offset >= end && p->offset < end + 16 && p->offset % 16 == 0);
            assert_true(k2_shape_count(&p->shape, &count) && count == p->count);
            assert_ptr_equal(k2_model_layout_find(l, p->name), p);
            end = p->offset + p->count;
        }
        assert_true(l->floats >= end && l->floats % 16 == 0 && l->floats < end + 16);
        k2_model_layout_free(l);
    }
}

static bool has(const k2_model_layout *l, const char *name)
{
    return k2_model_layout_find(l, name) != NULL;
}

static void tensors_follow_the_switches(void **state)
{
    (void)state;
    k2_dims d = test_dims(0);
    k2_model_layout *l = k2_model_layout_new(&d);
    assert_true(has(l, "model.layers.0.mlp.down_proj.weight") && has(l, "model.layers.1.mlp.experts.5.up_proj.weight"));
    assert_true(has(l, "lm_head.weight") && has(l, "model.layers.1.self_attn.q_proj.weight"));
    assert_false(has(l, "model.layers.0.mlp.gate.weight"));
    assert_false(has(l, "model.layers.1.self_attn.q_a_proj.weight"));
    const k2_param *p = k2_model_layout_find(l, "model.layers.1.mlp.gate.e_score_correction_bias");
    assert_true(p && p->kind == K2_KIND_BIAS && p->shape.rank == 1 && p->layer == 1 && p->expert == -1);
    k2_model_layout_free(l);
    d = test_dims(2);
    l = k2_model_layout_new(&d);
    assert_false(has(l, "lm_head.weight"));
    assert_false(has(l, "model.layers.0.mlp.shared_experts.up_proj.weight"));
    assert_true(has(l, "model.layers.1.mlp.up_proj.weight") && has(l, "model.layers.2.mlp.gate.weight"));
    k2_model_layout_free(l);
}

/* The known count of Kimi-K2: 1 026 408 232 448 parameters with the routers' bias. */
static void kimi_k2_has_its_count(void **state)
{
    (void)state;
    const k2_dims d = {.vocab_size = 163840,
                       .hidden_size = 7168,
                       .num_hidden_layers = 61,
                       .num_attention_heads = 64,
                       .q_lora_rank = 1536,
                       .kv_lora_rank = 512,
                       .qk_nope_head_dim = 128,
                       .qk_rope_head_dim = 64,
                       .v_head_dim = 128,
                       .intermediate_size = 18432,
                       .moe_intermediate_size = 2048,
                       .n_routed_experts = 384,
                       .n_shared_experts = 1,
                       .num_experts_per_tok = 8,
                       .n_group = 1,
                       .topk_group = 1,
                       .first_k_dense_replace = 1,
                       .moe_layer_freq = 1,
                       .routed_scaling_factor = 2.827,
                       .norm_topk_prob = true,
                       .max_position_embeddings = 131072,
                       .rope_theta = 50000,
                       .rms_norm_eps = 1e-6,
                       .initializer_range = 0.02,
                       .bos_token_id = 163584,
                       .eos_token_id = 163585,
                       .yarn = {.factor = 32,
                                .beta_fast = 1,
                                .beta_slow = 1,
                                .mscale = 1,
                                .mscale_all_dim = 1,
                                .original_max_position_embeddings = 4096}};
    k2_error err = {0};
    assert_int_equal(k2_dims_check(&d, &err), K2_OK);
    k2_model_layout *l = k2_model_layout_new(&d);
    uint64_t count = 0;
    for (size_t i = 0; i < l->params_count; i++) count += l->params[i].count;
    assert_true(count == 1026408232448ull);
    const k2_param *p = k2_model_layout_find(l, "model.layers.60.mlp.experts.383.down_proj.weight");
    assert_true(p && p->shape.size[0] == 7168 && p->shape.size[1] == 2048);
    k2_model_layout_free(l);
    const size_t f32 = k2_model_bytes(&d, K2_COMPUTE_F32), bf16 = k2_model_bytes(&d, K2_COMPUTE_BF16);
    assert_true(f32 > count * 7 && bf16 > count * 7); /* parameters, and panels of nearly all */
    const size_t f32_forward = k2_model_bytes(&d, K2_COMPUTE_F32_FORWARD),
                 bf16_forward = k2_model_bytes(&d, K2_COMPUTE_BF16_FORWARD);
    assert_true(f32_forward > count * 4 && f32_forward < count * 41 / 10); /* panels, a little padding, embeddings twice */
    assert_true(bf16_forward > count * 2 && bf16_forward < count * 21 / 10);
}

static void init_is_the_same_everywhere(void **state)
{
    (void)state;
    k2_dims d = test_dims(1);
    k2_model *a = k2_model_new(&d, K2_COMPUTE_F32, 1, NULL), *b = k2_model_new(&d, K2_COMPUTE_F32, 2, NULL);
    k2_model_init(a, 5, 0);
    k2_model_init(b, 5, d.initializer_range);
    size_t bytes = k2_model_param_count(a) * sizeof(float);
    assert_memory_equal(k2_model_params(a), k2_model_params(b), bytes);
    k2_model_init(b, 6, 0);
    assert_memory_not_equal(k2_model_params(a), k2_model_params(b), bytes);
    const k2_param *p = k2_model_layout_find(k2_model_layout_of(a), "model.embed_tokens.weight");
    double sum = 0;
    for (size_t i = 0; i < p->count; i++) sum += pow((double)k2_model_params(a)[p->offset + i], 2);
    assert_true(fabs(sqrt(sum / (double)p->count) / 0.1 - 1) < 0.1);
    k2_model_free(a);
    k2_model_free(b);
}

static void bad_dims_are_refused(void **state)
{
    (void)state;
    k2_dims d = test_dims(0);
    k2_error err = {0};
    d.num_attention_heads = 0;
    assert_null(k2_model_new(&d, K2_COMPUTE_F32, 1, &err));
    assert_int_equal(err.code, K2_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_rise_without_overlap), cmocka_unit_test(tensors_follow_the_switches),
        cmocka_unit_test(kimi_k2_has_its_count),        cmocka_unit_test(init_is_the_same_everywhere),
        cmocka_unit_test(bad_dims_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
