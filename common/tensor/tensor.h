/* tensor - what numbers are stored as, how many there are along each side, and every size of a Kimi-K2 / DeepSeek-V3 model.
 *
 * Nouns: a `k2_dtype` is a storage format; a `k2_shape` is up to four sizes; `k2_dims` is everything about a model that is
 * not a weight. All are plain values: copy them freely, nothing is owned.
 *
 * Letters used in every comment about shapes, here and in kernel and model:
 *
 *   B batch          D hidden_size (model width)     L num_hidden_layers
 *   T tokens (rows)  H num_attention_heads           E n_routed_experts
 *   S sequences      Q q_lora_rank                   K num_experts_per_tok (selected experts)
 *   V vocab_size     C kv_lora_rank (latent width)   F moe_intermediate_size (expert width)
 *   P pages          N qk_nope_head_dim              I intermediate_size (dense width)
 *                    R qk_rope_head_dim              U v_head_dim
 *
 *   W = round_up(C + R, 16): floats of one cached key row (latent, then the shared rotated key, then zeros).
 */
#ifndef K2_COMMON_TENSOR_H
#define K2_COMMON_TENSOR_H

#include "common/base/base.h"

/* enum name, bytes of one element, name in a safetensors header */
#define K2_DTYPES(X)        \
    X(F32, 4, "F32")        \
    X(BF16, 2, "BF16")      \
    X(F16, 2, "F16")        \
    X(F64, 8, "F64")        \
    X(F8_E4M3, 1, "F8_E4M3") \
    X(I64, 8, "I64")        \
    X(I32, 4, "I32")        \
    X(U8, 1, "U8")          \
    X(BOOL, 1, "BOOL")

typedef enum k2_dtype {
#define K2_X(name, bytes, text) K2_DTYPE_##name,
    K2_DTYPES(K2_X)
#undef K2_X
    K2_DTYPE_COUNT
} k2_dtype;

size_t k2_dtype_bytes(k2_dtype dtype);
const char *k2_dtype_name(k2_dtype dtype);            /* "BF16" */
bool k2_dtype_parse(const char *name, k2_dtype *out); /* exact spelling of a safetensors header */

#define K2_RANK_MAX 4u /* sizes of one tensor: no weight of these models has more than two, other files may */

typedef struct k2_shape {
    uint32_t rank; /* 0 is a scalar */
    uint64_t size[K2_RANK_MAX];
} k2_shape;

/* Elements of a shape into *out; false where the product does not fit 64 bits. A scalar has one. */
bool k2_shape_count(const k2_shape *shape, uint64_t *out);
bool k2_shape_equal(const k2_shape *a, const k2_shape *b);

/* YaRN; factor 0 means that there is none (rope_scaling null). */
typedef struct k2_yarn {
    double factor, beta_fast, beta_slow, mscale, mscale_all_dim;
    uint32_t original_max_position_embeddings;
} k2_yarn;

/* All sizes and switches of a model, named as the Hugging Face config.json names them. */
typedef struct k2_dims {
    uint32_t vocab_size;
    uint32_t hidden_size;
    uint32_t num_hidden_layers;
    uint32_t num_attention_heads;
    uint32_t q_lora_rank; /* 0: no low-rank query (config null); the weight is q_proj */
    uint32_t kv_lora_rank;
    uint32_t qk_nope_head_dim;
    uint32_t qk_rope_head_dim; /* even */
    uint32_t v_head_dim;
    uint32_t intermediate_size;
    uint32_t moe_intermediate_size;
    uint32_t n_routed_experts; /* 0: every layer is dense */
    uint32_t n_shared_experts; /* their widths are joined: one expert of n_shared_experts * F; 0: none */
    uint32_t num_experts_per_tok;
    uint32_t n_group;
    uint32_t topk_group;
    uint32_t first_k_dense_replace;
    uint32_t moe_layer_freq; /* layer i is MoE where i >= first_k_dense_replace and i % moe_layer_freq == 0 */
    double routed_scaling_factor;
    bool norm_topk_prob;
    bool tie_word_embeddings; /* lm_head is embed_tokens; the layout then has no lm_head */
    uint32_t max_position_embeddings;
    double rope_theta;
    k2_yarn yarn;
    double rms_norm_eps; /* q_a and kv_a norms use K2_LORA_NORM_EPS whatever this is */
    double initializer_range;
    int32_t bos_token_id, eos_token_id; /* -1: none */
} k2_dims;

#define K2_LORA_NORM_EPS 1e-6 /* DeepseekV3RMSNorm's default, which the two low-rank norms always use */

/* Limits that keep every byte count of the layout within 63 bits, with room above the largest published model. */
#define K2_DIM_WIDTH_MAX    1048576u  /* any width or vocabulary, elements: Kimi-K2's widest is 163840 */
#define K2_DIM_LAYERS_MAX   1024u     /* layers: Kimi-K2 has 61 */
#define K2_DIM_HEADS_MAX    1024u     /* heads */
#define K2_DIM_EXPERTS_MAX  4096u     /* routed experts of a layer: Kimi-K2 has 384 */
#define K2_DIM_TOPK_MAX     32u       /* experts of a token: kernels keep them in a fixed array */
#define K2_DIM_GROUPS_MAX   256u      /* expert groups */
#define K2_DIM_POSITION_MAX 16777216u /* positions: whole numbers that an f32 still holds exactly */

/* k2_dims_check - are these sizes a model that can exist?
 *
 * errors   BAD_INPUT naming the config key, what was found and what is expected; the first fault wins
 * threads  pure
 */
k2_code k2_dims_check(const k2_dims *d, k2_error *err);

static inline bool k2_dims_is_moe(const k2_dims *d, uint32_t layer)
{
    return d->n_routed_experts > 0 && layer >= d->first_k_dense_replace && layer % d->moe_layer_freq == 0;
}

/* How many layers are MoE: the first side of every table of expert loads. */
uint32_t k2_dims_moe_layers(const k2_dims *d);

/* W: floats of one cached key row. */
static inline uint32_t k2_dims_key_floats(const k2_dims *d)
{
    return (d->kv_lora_rank + d->qk_rope_head_dim + 15u) & ~15u;
}

#endif
