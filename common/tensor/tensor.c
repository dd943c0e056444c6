/* Tables of storage formats, shape arithmetic, and the check that a model's sizes fit together. */
#include "common/tensor/tensor.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[K2_DTYPE_COUNT] = {
#define K2_X(id, size, text) {text, size},
    K2_DTYPES(K2_X)
#undef K2_X
};

size_t k2_dtype_bytes(k2_dtype dtype)
{
    K2_ASSERT((unsigned)dtype < K2_DTYPE_COUNT);
    return dtypes[dtype].bytes;
}

const char *k2_dtype_name(k2_dtype dtype)
{
    K2_ASSERT((unsigned)dtype < K2_DTYPE_COUNT);
    return dtypes[dtype].name;
}

bool k2_dtype_parse(const char *name, k2_dtype *out)
{
    for (unsigned i = 0; i < K2_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (k2_dtype)i;
            return true;
        }
    }
    return false;
}

bool k2_shape_count(const k2_shape *shape, uint64_t *out)
{
    K2_ASSERT(shape->rank <= K2_RANK_MAX);
    uint64_t n = 1;
    for (uint32_t i = 0; i < shape->rank; i++) {
        if (__builtin_mul_overflow(n, shape->size[i], &n)) return false;
    }
    *out = n;
    return true;
}

bool k2_shape_equal(const k2_shape *a, const k2_shape *b)
{
    if (a->rank != b->rank) return false;
    for (uint32_t i = 0; i < a->rank; i++) {
        if (a->size[i] != b->size[i]) return false;
    }
    return true;
}

uint32_t k2_dims_moe_layers(const k2_dims *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->num_hidden_layers; i++) n += k2_dims_is_moe(d, i);
    return n;
}

static k2_code check_range(const char *key, uint32_t value, uint32_t low, uint32_t high, k2_error *err)
{
    if (value >= low && value <= high) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "%s: %u, expected %u to %u", key, value, low, high);
}

static k2_code check_positive(const char *key, double value, k2_error *err)
{
    if (isfinite(value) && value > 0) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "%s: %g, expected a finite number above 0", key, value);
}

static k2_code check_sizes(const k2_dims *d, k2_error *err)
{
    const struct {
        const char *key;
        uint32_t value, low, high;
    } rows[] = {
        {"vocab_size", d->vocab_size, 1, K2_DIM_WIDTH_MAX},
        {"hidden_size", d->hidden_size, 1, K2_DIM_WIDTH_MAX},
        {"num_hidden_layers", d->num_hidden_layers, 1, K2_DIM_LAYERS_MAX},
        {"num_attention_heads", d->num_attention_heads, 1, K2_DIM_HEADS_MAX},
        {"q_lora_rank", d->q_lora_rank, 0, K2_DIM_WIDTH_MAX},
        {"kv_lora_rank", d->kv_lora_rank, 1, K2_DIM_WIDTH_MAX},
        {"qk_nope_head_dim", d->qk_nope_head_dim, 1, K2_DIM_WIDTH_MAX},
        {"qk_rope_head_dim", d->qk_rope_head_dim, 2, K2_DIM_WIDTH_MAX},
        {"v_head_dim", d->v_head_dim, 1, K2_DIM_WIDTH_MAX},
        {"max_position_embeddings", d->max_position_embeddings, 1, K2_DIM_POSITION_MAX},
        {"n_routed_experts", d->n_routed_experts, 0, K2_DIM_EXPERTS_MAX},
        {"n_shared_experts", d->n_shared_experts, 0, K2_DIM_EXPERTS_MAX},
        {"moe_layer_freq", d->moe_layer_freq, 1, K2_DIM_LAYERS_MAX},
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        k2_code code = check_range(rows[i].key, rows[i].value, rows[i].low, rows[i].high, err);
        if (code != K2_OK) return code;
    }
    if (d->qk_rope_head_dim % 2 != 0) {
        return k2_error_set(err, K2_BAD_INPUT, "qk_rope_head_dim: %u, expected an even number (it is rotated in pairs)",
                            d->qk_rope_head_dim);
    }
    return K2_OK;
}

static k2_code check_experts(const k2_dims *d, k2_error *err)
{
    k2_code code;
    uint32_t moe = k2_dims_moe_layers(d);
    if (moe < d->num_hidden_layers) {
        code = check_range("intermediate_size", d->intermediate_size, 1, K2_DIM_WIDTH_MAX, err);
        if (code != K2_OK) return code;
    }
    if (moe == 0) return K2_OK;
    code = check_range("moe_intermediate_size", d->moe_intermediate_size, 1, K2_DIM_WIDTH_MAX, err);
    if (code != K2_OK) return code;
    code = check_range("n_group", d->n_group, 1, K2_MIN(d->n_routed_experts, K2_DIM_GROUPS_MAX), err);
    if (code != K2_OK) return code;
    uint32_t per_group = d->n_routed_experts / d->n_group;
    if (d->n_routed_experts % d->n_group != 0) {
        return k2_error_set(err, K2_BAD_INPUT, "n_group: %u does not divide n_routed_experts %u", d->n_group,
                            d->n_routed_experts);
    }
    if (d->n_group > 1 && per_group < 2) {
        return k2_error_set(err, K2_BAD_INPUT,
                            "n_group: %u leaves %u expert a group, expected at least 2 (a group's score is its two best)",
                            d->n_group, per_group);
    }
    code = check_range("topk_group", d->topk_group, 1, d->n_group, err);
    if (code != K2_OK) return code;
    uint32_t reachable = d->n_group > 1 ? d->topk_group * per_group : d->n_routed_experts;
    code = check_range("num_experts_per_tok", d->num_experts_per_tok, 1, K2_MIN(reachable, K2_DIM_TOPK_MAX), err);
    if (code != K2_OK) return code;
    if ((uint64_t)d->n_shared_experts * d->moe_intermediate_size > K2_DIM_WIDTH_MAX) {
        return k2_error_set(err, K2_BAD_INPUT, "n_shared_experts: %u times moe_intermediate_size %u exceeds %u",
                            d->n_shared_experts, d->moe_intermediate_size, K2_DIM_WIDTH_MAX);
    }
    return check_positive("routed_scaling_factor", d->routed_scaling_factor, err);
}

static k2_code check_rope(const k2_dims *d, k2_error *err)
{
    k2_code code = check_positive("rope_theta", d->rope_theta, err);
    if (code != K2_OK) return code;
    if (d->rope_theta <= 1) return k2_error_set(err, K2_BAD_INPUT, "rope_theta: %g, expected above 1", d->rope_theta);
    const k2_yarn *y = &d->yarn;
    if (y->factor == 0) return K2_OK;
    if (!isfinite(y->factor) || y->factor < 1) {
        return k2_error_set(err, K2_BAD_INPUT, "rope_scaling.factor: %g, expected at least 1", y->factor);
    }
    code = check_positive("rope_scaling.beta_fast", y->beta_fast, err);
    if (code != K2_OK) return code;
    code = check_positive("rope_scaling.beta_slow", y->beta_slow, err);
    if (code != K2_OK) return code;
    if (!isfinite(y->mscale) || y->mscale < 0) {
        return k2_error_set(err, K2_BAD_INPUT, "rope_scaling.mscale: %g, expected 0 or more", y->mscale);
    }
    if (!isfinite(y->mscale_all_dim) || y->mscale_all_dim < 0) {
        return k2_error_set(err, K2_BAD_INPUT, "rope_scaling.mscale_all_dim: %g, expected 0 or more", y->mscale_all_dim);
    }
    return check_range("rope_scaling.original_max_position_embeddings", y->original_max_position_embeddings, 1,
                       K2_DIM_POSITION_MAX, err);
}

static k2_code check_id(const char *key, int32_t id, uint32_t vocab, k2_error *err)
{
    if (id >= -1 && (id < 0 || (uint32_t)id < vocab)) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "%s: %d, expected null or an id below vocab_size %u", key, id, vocab);
}

k2_code k2_dims_check(const k2_dims *d, k2_error *err)
{
    k2_code code = check_sizes(d, err);
    if (code == K2_OK) code = check_experts(d, err);
    if (code == K2_OK) code = check_rope(d, err);
    if (code == K2_OK) code = check_positive("rms_norm_eps", d->rms_norm_eps, err);
    if (code == K2_OK) code = check_id("bos_token_id", d->bos_token_id, d->vocab_size, err);
    if (code == K2_OK) code = check_id("eos_token_id", d->eos_token_id, d->vocab_size, err);
    if (code == K2_OK && !(isfinite(d->initializer_range) && d->initializer_range >= 0)) {
        code = k2_error_set(err, K2_BAD_INPUT, "initializer_range: %g, expected 0 or more", d->initializer_range);
    }
    return code;
}
