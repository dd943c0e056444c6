/* dims_int - every key of a config.json, written once: what it is, and where it goes in k2_dims. */
#ifndef K2_WEIGHTS_DIMS_INT_H
#define K2_WEIGHTS_DIMS_INT_H

#include "common/weights/weights.h"

/* How a whole number may be given. */
typedef enum k2i_need {
    K2I_NEEDED,   /* must be there */
    K2I_NULLABLE, /* must be there; null is 0 */
    K2I_NULL,     /* the same, and 0 is written as null, for transformers takes 0 for a size */
    K2I_MOE,      /* must be there where n_routed_experts is above 0 */
    K2I_ONE       /* 1 where it is not there */
} k2i_need;

/* Sizes, named as in k2_dims. n_routed_experts is first: what is needed hangs on it. */
#define K2I_DIMS_SIZES(X)               \
    X(n_routed_experts, K2I_NULLABLE)   \
    X(vocab_size, K2I_NEEDED)           \
    X(hidden_size, K2I_NEEDED)          \
    X(num_hidden_layers, K2I_NEEDED)    \
    X(num_attention_heads, K2I_NEEDED)  \
    X(q_lora_rank, K2I_NULL)            \
    X(kv_lora_rank, K2I_NEEDED)         \
    X(qk_nope_head_dim, K2I_NEEDED)     \
    X(qk_rope_head_dim, K2I_NEEDED)     \
    X(v_head_dim, K2I_NEEDED)           \
    X(intermediate_size, K2I_NEEDED)    \
    X(moe_intermediate_size, K2I_MOE)   \
    X(n_shared_experts, K2I_NULLABLE)   \
    X(num_experts_per_tok, K2I_MOE)     \
    X(n_group, K2I_MOE)                 \
    X(topk_group, K2I_MOE)              \
    X(first_k_dense_replace, K2I_MOE)   \
    X(moe_layer_freq, K2I_ONE)          \
    X(max_position_embeddings, K2I_NEEDED)

/* Keys that must have one value: what our model computes. key, JSON text of the value */
#define K2I_DIMS_FIXED(X)             \
    X(hidden_act, "\"silu\"")         \
    X(scoring_func, "\"sigmoid\"")    \
    X(topk_method, "\"noaux_tc\"")    \
    X(attention_bias, "false")        \
    X(attention_dropout, "0")         \
    X(rope_interleave, "true")        \
    X(compression_config, "null")     \
    X(sliding_window, "null")

/* Keys with a meaning of their own in the code. */
#define K2I_DIMS_OTHER(X)    \
    X(model_type)            \
    X(rope_theta)            \
    X(rope_scaling)          \
    X(rope_parameters)       \
    X(routed_scaling_factor) \
    X(norm_topk_prob)        \
    X(tie_word_embeddings)   \
    X(rms_norm_eps)          \
    X(initializer_range)     \
    X(bos_token_id)          \
    X(eos_token_id)          \
    X(num_key_value_heads)   \
    X(quantization_config)   \
    X(head_dim)              \
    X(qk_head_dim)

/* Keys that say nothing about what is computed: bookkeeping of transformers, defaults of its generation and its losses, and
 * prediction layers, which take no part in the model's own answers. */
#define K2I_DIMS_IGNORED(X)          \
    X(_name_or_path)                 \
    X(_attn_implementation_autoset)  \
    X(add_cross_attention)           \
    X(architectures)                 \
    X(attn_implementation)           \
    X(auto_map)                      \
    X(aux_loss_alpha)                \
    X(bad_words_ids)                 \
    X(begin_suppress_tokens)         \
    X(chunk_size_feed_forward)       \
    X(cross_attention_hidden_size)   \
    X(decoder_start_token_id)        \
    X(diversity_penalty)             \
    X(do_sample)                     \
    X(dtype)                         \
    X(early_stopping)                \
    X(encoder_no_repeat_ngram_size)  \
    X(ep_size)                       \
    X(exponential_decay_length_penalty) \
    X(finetuning_task)               \
    X(forced_bos_token_id)           \
    X(forced_eos_token_id)           \
    X(id2label)                      \
    X(is_decoder)                    \
    X(is_encoder_decoder)            \
    X(keys_to_ignore_at_inference)   \
    X(label2id)                      \
    X(length_penalty)                \
    X(max_length)                    \
    X(min_length)                    \
    X(no_repeat_ngram_size)          \
    X(num_beam_groups)               \
    X(num_beams)                     \
    X(num_mtp_layers)                \
    X(num_nextn_predict_layers)      \
    X(num_return_sequences)          \
    X(output_attentions)             \
    X(output_hidden_states)          \
    X(output_router_logits)          \
    X(output_scores)                 \
    X(pad_token_id)                  \
    X(prefix)                        \
    X(pretraining_tp)                \
    X(problem_type)                  \
    X(pruned_heads)                  \
    X(remove_invalid_values)         \
    X(repetition_penalty)            \
    X(return_dict)                   \
    X(return_dict_in_generate)       \
    X(router_aux_loss_coef)          \
    X(sep_token_id)                  \
    X(seq_aux)                       \
    X(suppress_tokens)               \
    X(task_specific_params)          \
    X(temperature)                   \
    X(tf_legacy_loss)                \
    X(tie_encoder_decoder)           \
    X(tokenizer_class)               \
    X(top_k)                         \
    X(top_p)                         \
    X(torch_dtype)                   \
    X(torchscript)                   \
    X(transformers_version)          \
    X(typical_p)                     \
    X(use_bfloat16)                  \
    X(use_cache)

/* k2_weights_dims_write for weights that are stored in this type; F8_E4M3 has its quantization_config. */
k2_code k2i_dims_write(const k2_dims *dims, k2_dtype stored, const char *path, k2_error *err);
/* "float32", "bfloat16", "float16": what stands under torch_dtype. What F8_E4M3 stands for is computed in bfloat16. */
const char *k2i_torch_dtype(k2_dtype stored);
/* The value of quantization_config in the directories that we write. */
#define K2I_QUANT_JSON                                                                                                         \
    "{\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", \"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}"

#endif
