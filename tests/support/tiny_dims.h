/* tiny_dims - the smallest model that has every part: low-rank queries, a dense and a MoE layer, shared experts. Tests that
 * need another one change the members that matter to them.
 */
#ifndef K2_TESTS_SUPPORT_TINY_DIMS_H
#define K2_TESTS_SUPPORT_TINY_DIMS_H

#include "common/tensor/tensor.h"

static inline k2_dims tiny_dims(void)
{
    return (k2_dims){
        .vocab_size = 264,
        .hidden_size = 32,
        .num_hidden_layers = 2,
        .num_attention_heads = 2,
        .q_lora_rank = 16,
        .kv_lora_rank = 16,
        .qk_nope_head_dim = 8,
        .qk_rope_head_dim = 8,
        .v_head_dim = 8,
        .intermediate_size = 48,
        .moe_intermediate_size = 16,
        .n_routed_experts = 4,
        .n_shared_experts = 1,
        .num_experts_per_tok = 2,
        .n_group = 1,
        .topk_group = 1,
        .first_k_dense_replace = 1,
        .moe_layer_freq = 1,
        .routed_scaling_factor = 2.0,
        .norm_topk_prob = true,
        .max_position_embeddings = 256,
        .rope_theta = 10000,
        .rms_norm_eps = 1e-6,
        .initializer_range = 0.02,
        .bos_token_id = -1,
        .eos_token_id = -1,
    };
}

#endif
