/* k2_dims to a Hugging Face config.json, in the spelling that both transformers 4 and 5 read. */
#include "dims_int.h"

#define CONFIG_TEXT_MAX 16384u /* bytes: a tenth of it is used */

static void size_encode(const char *key, k2i_need need, uint32_t value, k2_buf *out)
{
    if (need == K2I_NULL && value == 0)
        k2_buf_printf(out, "  \"%s\": null,\n", key);
    else
        k2_buf_printf(out, "  \"%s\": %u,\n", key, value);
}

static void token_id_encode(const char *key, int32_t id, k2_buf *out)
{
    if (id < 0)
        k2_buf_printf(out, "  \"%s\": null,\n", key);
    else
        k2_buf_printf(out, "  \"%s\": %d,\n", key, id);
}

static void rope_encode(const k2_dims *d, k2_buf *out)
{
    const k2_yarn *y = &d->yarn;
    k2_buf_printf(out, "  \"rope_theta\": %.17g,\n", d->rope_theta);
    if (y->factor == 0) {
        k2_buf_puts(out, "  \"rope_scaling\": null,\n");
        return;
    }
    k2_buf_printf(out,
                  "  \"rope_scaling\": {\"type\": \"yarn\", \"factor\": %#.17g, \"beta_fast\": %#.17g, \"beta_slow\": %#.17g, "
                  "\"mscale\": %#.17g, \"mscale_all_dim\": %#.17g, \"original_max_position_embeddings\": %u},\n",
                  y->factor, y->beta_fast, y->beta_slow, y->mscale, y->mscale_all_dim, y->original_max_position_embeddings);
}

const char *k2i_torch_dtype(k2_dtype stored)
{
    return stored == K2_DTYPE_F32 ? "float32" : stored == K2_DTYPE_F16 ? "float16" : "bfloat16";
}

static void encode(const k2_dims *dims, k2_dtype stored, k2_buf *out)
{
    k2_dims copy = *dims;
    const k2_dims *d = &copy;
    /* transformers knows no model without experts, but it makes the first layers dense: all of them, then. */
    if (d->n_routed_experts == 0) copy.first_k_dense_replace = d->num_hidden_layers;
    k2_buf_puts(out, "{\n  \"architectures\": [\"DeepseekV3ForCausalLM\"],\n  \"model_type\": \"deepseek_v3\",\n");
#define K2_X(name, need) size_encode(#name, need, d->name, out);
    K2I_DIMS_SIZES(K2_X)
#undef K2_X
    k2_buf_printf(out, "  \"num_key_value_heads\": %u,\n  \"num_nextn_predict_layers\": 0,\n", d->num_attention_heads);
#define K2_X(name, value) k2_buf_puts(out, "  \"" #name "\": " value ",\n");
    K2_X(hidden_act, "\"silu\"")
    K2_X(scoring_func, "\"sigmoid\"")
    K2_X(topk_method, "\"noaux_tc\"")
    K2_X(attention_bias, "false")
    K2_X(attention_dropout, "0.0")
    K2_X(rope_interleave, "true")
#undef K2_X
    k2_buf_printf(out, "  \"routed_scaling_factor\": %#.17g,\n", d->routed_scaling_factor);
    k2_buf_printf(out, "  \"norm_topk_prob\": %s,\n", d->norm_topk_prob ? "true" : "false");
    k2_buf_printf(out, "  \"tie_word_embeddings\": %s,\n", d->tie_word_embeddings ? "true" : "false");
    rope_encode(d, out);
    k2_buf_printf(out, "  \"rms_norm_eps\": %.17g,\n  \"initializer_range\": %.17g,\n", d->rms_norm_eps, d->initializer_range);
    token_id_encode("bos_token_id", d->bos_token_id, out);
    token_id_encode("eos_token_id", d->eos_token_id, out);
    if (stored == K2_DTYPE_F8_E4M3) k2_buf_puts(out, "  \"quantization_config\": " K2I_QUANT_JSON ",\n");
    k2_buf_printf(out, "  \"torch_dtype\": \"%s\",\n  \"use_cache\": true\n}\n", k2i_torch_dtype(stored));
}

void k2_weights_dims_encode(const k2_dims *dims, k2_buf *out)
{
    encode(dims, K2_DTYPE_F32, out);
}

k2_code k2i_dims_write(const k2_dims *dims, k2_dtype stored, const char *path, k2_error *err)
{
    k2_buf text;
    k2_buf_init(&text, CONFIG_TEXT_MAX);
    encode(dims, stored, &text);
    K2_ASSERT(!text.overflow);
    k2_code code = k2_file_write_atomic(path, text.data, text.len, err);
    k2_buf_fini(&text);
    return code;
}

k2_code k2_weights_dims_write(const k2_dims *dims, const char *path, k2_error *err)
{
    return k2i_dims_write(dims, K2_DTYPE_F32, path, err);
}
