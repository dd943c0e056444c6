/* config.json: the published Kimi-K2 file, transformers 5's spelling, round trips, and one clear error for each wrong key. */
#include "common/weights/weights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The sizes of the published Kimi-K2 config. */
#define K2_SIZES                                                                                                               \
    "\"hidden_size\": 7168, \"vocab_size\": 163840, \"num_hidden_layers\": 61, \"num_attention_heads\": 64, "                  \
    "\"num_key_value_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "                   \
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, "           \
    "\"n_routed_experts\": 384, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"n_group\": 1, \"topk_group\": 1, "      \
    "\"first_k_dense_replace\": 1, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-06, \"norm_topk_prob\": true, "   \
    "\"routed_scaling_factor\": 2.827"

static const char kimi_k2[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0,\n"
    " \"auto_map\": {\"AutoConfig\": \"configuration_deepseek.DeepseekV3Config\"}, \"aux_loss_alpha\": 0.001,\n"
    " \"bos_token_id\": 163584, \"eos_token_id\": 163585, \"hidden_act\": \"silu\", \"initializer_range\": 0.02,\n"
    " \"model_type\": \"kimi_k2\", \"moe_layer_freq\": 1, \"num_nextn_predict_layers\": 0, \"pretraining_tp\": 1,\n"
    " \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", \"quant_method\": \"fp8\",\n"
    "  \"weight_block_size\": [128, 128]},\n"
    " \"rope_theta\": 50000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 1.0, \"beta_slow\": "
    "1.0,\n"
    "  \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096},\n"
    " \"scoring_func\": \"sigmoid\", \"seq_aux\": true, \"tie_word_embeddings\": false, \"topk_method\": \"noaux_tc\",\n"
    " \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.48.3\", \"use_cache\": true,\n " K2_SIZES "}\n";

#define PLAIN "{\"model_type\": \"deepseek_v3\", \"rope_theta\": 10000, " K2_SIZES "}"

static k2_code parse(const char *text, k2_dims *out, k2_error *err)
{
    memset(err, 0, sizeof *err);
    return k2_weights_dims_parse("c.json", text, strlen(text), out, err);
}

static void the_published_config(void **state)
{
    (void)state;
    k2_dims d;
    k2_error err;
    if (parse(kimi_k2, &d, &err) != K2_OK) fail_msg("%s", err.text);
    assert_int_equal(d.hidden_size, 7168);
    assert_int_equal(d.vocab_size, 163840);
    assert_int_equal(d.num_hidden_layers, 61);
    assert_int_equal(d.num_attention_heads, 64);
    assert_int_equal(d.q_lora_rank, 1536);
    assert_int_equal(d.kv_lora_rank, 512);
    assert_int_equal(d.qk_nope_head_dim, 128);
    assert_int_equal(d.qk_rope_head_dim, 64);
    assert_int_equal(d.v_head_dim, 128);
    assert_int_equal(d.intermediate_size, 18432);
    assert_int_equal(d.moe_intermediate_size, 2048);
    assert_int_equal(d.n_routed_experts, 384);
    assert_int_equal(d.n_shared_experts, 1);
    assert_int_equal(d.num_experts_per_tok, 8);
    assert_int_equal(d.first_k_dense_replace, 1);
    assert_int_equal(d.moe_layer_freq, 1);
    assert_int_equal(d.max_position_embeddings, 131072);
    assert_true(d.routed_scaling_factor == 2.827);
    assert_true(d.norm_topk_prob);
    assert_false(d.tie_word_embeddings);
    assert_true(d.rms_norm_eps == 1e-6);
    assert_true(d.initializer_range == 0.02);
    assert_true(d.rope_theta == 50000);
    assert_true(d.yarn.factor == 32 && d.yarn.beta_fast == 1 && d.yarn.beta_slow == 1);
    assert_true(d.yarn.mscale == 1 && d.yarn.mscale_all_dim == 1);
    assert_int_equal(d.yarn.original_max_position_embeddings, 4096);
    assert_int_equal(d.bos_token_id, 163584);
    assert_int_equal(d.eos_token_id, 163585);
}

/* kimi_k2 with one piece of its text replaced: other shapes of the same model. */
static void other_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new;
        uint32_t moe_layers;
    } rows[] = {
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0", 61},
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 60", 1},
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 61", 0},
        {"\"n_group\": 1, \"topk_group\": 1", "\"n_group\": 8, \"topk_group\": 4", 60},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", 60},
        {"\"q_lora_rank\": 1536", "\"q_lora_rank\": null", 60},
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        const char *at = strstr(kimi_k2, rows[i].old);
        char *text = k2_asprintf("%.*s%s%s", (int)(at - kimi_k2), kimi_k2, rows[i].new, at + strlen(rows[i].old));
        k2_dims d;
        k2_error err;
        if (parse(text, &d, &err) != K2_OK) fail_msg("row %zu: %s", i, err.text);
        assert_int_equal(k2_dims_moe_layers(&d), rows[i].moe_layers);
        assert_int_equal(d.n_group, i == 3 ? 8 : 1);
        assert_true(d.tie_word_embeddings == (i == 4));
        k2_free(text);
    }
}

/* Other publications of the same model: what differs is read, what is said of chatting stands in generation_config.json. */
static void other_publications(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new;
        double factor;
        uint32_t positions;
        int32_t eos;
    } rows[] = {
        {"\"factor\": 32.0", "\"factor\": 64.0", 64, 131072, 163585}, /* Instruct-0905 stretches further */
        {"\"max_position_embeddings\": 131072", "\"max_position_embeddings\": 262144", 32, 262144, 163585},
        {"\"eos_token_id\": 163585", "\"eos_token_id\": 163586", 32, 131072, 163586}, /* the end of a turn */
        {"\"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", \"quant_method\": \"fp8\",\n"
         "  \"weight_block_size\": [128, 128]},\n",
         "", 32, 131072, 163585}, /* converted to bf16 */
    };
    for (size_t i = 0; i < K2_COUNT(rows); i++) {
        const char *at = strstr(kimi_k2, rows[i].old);
        assert_non_null(at);
        char *text = k2_asprintf("%.*s%s%s", (int)(at - kimi_k2), kimi_k2, rows[i].new, at + strlen(rows[i].old));
        k2_dims d;
        k2_error err;
        if (parse(text, &d, &err) != K2_OK) fail_msg("row %zu: %s", i, err.text);
        assert_true(d.yarn.factor == rows[i].factor);
        assert_int_equal(d.max_position_embeddings, rows[i].positions);
        assert_int_equal(d.eos_token_id, rows[i].eos);
        k2_free(text);
    }
}

static void spellings_of_rope(void **state)
{
    (void)state;
    static const char *const plain[] = {
        PLAIN,
        "{\"model_type\": \"deepseek_v3\", \"rope_theta\": 10000, \"rope_scaling\": null, " K2_SIZES "}",
        "{\"model_type\": \"deepseek_v3\", \"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": "
        "\"default\"}, " K2_SIZES "}",
        "{\"model_type\": \"deepseek_v3\", \"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_theta\": 10000, " K2_SIZES
        "}",
        "{\"model_type\": \"deepseek_v3\", \"rope_theta\": 10000, \"rope_parameters\": "
        "{\"rope_theta\": 10000, \"rope_type\": \"default\", \"partial_rotary_factor\": 1.0}, " K2_SIZES "}",
    };
    k2_dims d;
    k2_error err;
    for (size_t i = 0; i < K2_COUNT(plain); i++) {
        if (parse(plain[i], &d, &err) != K2_OK) fail_msg("%s", err.text);
        assert_true(d.rope_theta == 10000 && d.yarn.factor == 0);
    }
    /* As transformers 5 writes it. */
    static const char five[] =
        "{\"model_type\": \"deepseek_v3\", \"head_dim\": 64, \"qk_head_dim\": 192, \"rope_interleave\": true, \"dtype\": null,"
        " \"rope_parameters\": {\"beta_fast\": 32, \"beta_slow\": 1.0, \"factor\": 4.0, \"mscale\": 0.7, \"mscale_all_dim\": "
        "0.8,"
        " \"original_max_position_embeddings\": 4096, \"rope_theta\": 50000.0, \"rope_type\": \"yarn\", \"type\": \"yarn\"}, "
        "\"pad_token_id\": null, \"id2label\": {\"0\": \"LABEL_0\"}, \"eos_token_id\": null, \"num_nextn_predict_layers\": "
        "1, " K2_SIZES "}";
    if (parse(five, &d, &err) != K2_OK) fail_msg("%s", err.text);
    assert_true(d.rope_theta == 50000 && d.yarn.factor == 4 && d.yarn.beta_fast == 32);
    assert_true(d.yarn.mscale == 0.7 && d.yarn.mscale_all_dim == 0.8);
    assert_int_equal(d.bos_token_id, -1);
    assert_int_equal(d.eos_token_id, -1);
}

static void assert_round_trip(const k2_dims *d)
{
    k2_dims back;
    k2_error err;
    k2_buf text;
    k2_buf_init(&text, 1u << 16);
    k2_weights_dims_encode(d, &text);
    if (parse(text.data, &back, &err) != K2_OK) fail_msg("%s", err.text);
    k2_buf again;
    k2_buf_init(&again, 1u << 16);
    k2_weights_dims_encode(&back, &again);
    assert_string_equal(text.data, again.data);
    assert_int_equal(back.q_lora_rank, d->q_lora_rank);
    assert_int_equal(back.n_routed_experts, d->n_routed_experts);
    assert_true(back.routed_scaling_factor == d->routed_scaling_factor);
    assert_true(back.rms_norm_eps == d->rms_norm_eps);
    assert_true(back.rope_theta == d->rope_theta);
    assert_true(back.yarn.factor == d->yarn.factor && back.yarn.mscale == d->yarn.mscale);
    assert_int_equal(back.eos_token_id, d->eos_token_id);
    k2_buf_fini(&again);
    k2_buf_fini(&text);
}

static void round_trips(void **state)
{
    (void)state;
    k2_dims d;
    k2_error err;
    assert_int_equal(parse(kimi_k2, &d, &err), K2_OK);
    assert_round_trip(&d);
    d.routed_scaling_factor = 1.0 / 3;
    d.yarn.factor = 0;
    d.yarn.mscale = 0;
    d.tie_word_embeddings = true;
    d.bos_token_id = -1;
    d.q_lora_rank = 0;
    assert_round_trip(&d);
    d.n_routed_experts = d.n_shared_experts = 0; /* all layers dense */
    d.moe_intermediate_size = d.num_experts_per_tok = 0;
    d.routed_scaling_factor = 0;
    assert_round_trip(&d);
}

static void files(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2_dims_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/config.json", dir);
    k2_dims d, back;
    k2_error err;
    assert_int_equal(k2_weights_dims_load(path, &d, &err), K2_NOT_FOUND);
    assert_int_equal(parse(kimi_k2, &d, &err), K2_OK);
    assert_int_equal(k2_weights_dims_write(&d, path, &err), K2_OK);
    assert_int_equal(k2_weights_dims_load(path, &back, &err), K2_OK);
    assert_int_equal(back.kv_lora_rank, 512);
    k2_free(path);
    assert_int_equal(k2_dir_remove(dir, &err), K2_OK);
}

/* kimi_k2 with one piece of its text replaced, and what must be said. */
static void wrong_configs(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new;
        k2_code code;
        const char *error;
    } cases[] = {
        {"\"hidden_size\": 7168", "\"hiden_size\": 7168", K2_BAD_INPUT,
         "c.json: hiden_size: unknown key, did you mean hidden_size?"},
        {"\"use_cache\"", "\"zzzzzzzzzzzz\"", K2_BAD_INPUT, "c.json: zzzzzzzzzzzz: unknown key"},
        {"\"use_cache\": true", "\"vocab_size\": 3", K2_BAD_INPUT, "c.json: vocab_size: is there twice"},
        {"\"hidden_size\": 7168, ", "", K2_BAD_INPUT, "c.json: hidden_size: is missing, expected a whole number"},
        {"\"hidden_size\": 7168", "\"hidden_size\": \"7168\"", K2_BAD_INPUT,
         "c.json: hidden_size: \"7168\", expected a whole number"},
        {"\"hidden_size\": 7168", "\"hidden_size\": 71.5", K2_BAD_INPUT, "c.json: hidden_size: 71.5, expected a whole number"},
        {"\"hidden_size\": 7168", "\"hidden_size\": -1", K2_BAD_INPUT, "c.json: hidden_size: -1, expected a whole number"},
        {"\"hidden_size\": 7168", "\"hidden_size\": 1e300", K2_BAD_INPUT,
         "c.json: hidden_size: 1e+300, expected a whole number"},
        {"\"hidden_size\": 7168", "\"hidden_size\": 4294967296", K2_BAD_INPUT, "expected a whole number from 0 to 2^32-1"},
        {"\"hidden_size\": 7168", "\"hidden_size\": 0", K2_BAD_INPUT, "c.json: hidden_size: 0, expected 1 to"},
        {"\"hidden_size\": 7168", "\"hidden_size\": null", K2_BAD_INPUT, "c.json: hidden_size: null, expected"},
        {"\"q_lora_rank\": 1536, ", "", K2_BAD_INPUT, "c.json: q_lora_rank: is missing"},
        {"\"num_experts_per_tok\": 8, ", "", K2_BAD_INPUT, "c.json: num_experts_per_tok: is missing"},
        {"\"num_experts_per_tok\": 8", "\"num_experts_per_tok\": 385", K2_BAD_INPUT, "c.json: num_experts_per_tok: 385"},
        {"\"n_group\": 1", "\"n_group\": 5", K2_BAD_INPUT, "c.json: n_group: 5 does not divide"},
        {"\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63", K2_BAD_INPUT, "c.json: qk_rope_head_dim: 63"},
        {"\"norm_topk_prob\": true", "\"norm_topk_prob\": 1", K2_BAD_INPUT,
         "c.json: norm_topk_prob: 1, expected true or false"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": \"no\"", K2_BAD_INPUT, "expected true or false"},
        {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": \"x\"", K2_BAD_INPUT, "c.json: rms_norm_eps: \"x\", expected a number"},
        {"\"rms_norm_eps\": 1e-06, ", "", K2_BAD_INPUT, "c.json: rms_norm_eps: is missing"},
        {"\"bos_token_id\": 163584", "\"bos_token_id\": [1]", K2_BAD_INPUT,
         "c.json: bos_token_id: [1], expected a token id or null"},
        {"\"bos_token_id\": 163584", "\"bos_token_id\": 163840", K2_BAD_INPUT, "bos_token_id"},
        {"\"kimi_k2\"", "\"llama\"", K2_UNSUPPORTED, "c.json: model_type: \"llama\", expected \"deepseek_v3\" or \"kimi_k2\""},
        {"\"model_type\": \"kimi_k2\", ", "", K2_BAD_INPUT, "c.json: model_type: is missing"},
        {"\"silu\"", "\"gelu\"", K2_UNSUPPORTED, "c.json: hidden_act: \"gelu\", expected \"silu\""},
        {"\"sigmoid\"", "\"softmax\"", K2_UNSUPPORTED, "c.json: scoring_func: \"softmax\", expected \"sigmoid\""},
        {"\"attention_bias\": false", "\"attention_bias\": true", K2_UNSUPPORTED,
         "c.json: attention_bias: true, expected false"},
        {"\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1", K2_UNSUPPORTED,
         "c.json: attention_dropout: 0.1, expected 0"},
        {"\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", K2_UNSUPPORTED,
         "c.json: quantization_config.quant_method: \"awq\", expected fp8"},
        {"\"fmt\": \"e4m3\"", "\"format\": \"e4m3\"", K2_BAD_INPUT, "c.json: quantization_config: unknown key \"format\""},
        {"[128, 128]", "128", K2_UNSUPPORTED, "c.json: quantization_config.weight_block_size: 128, expected two whole numbers"},
        {"\"num_key_value_heads\": 64", "\"num_key_value_heads\": 8", K2_UNSUPPORTED,
         "c.json: num_key_value_heads: 8, expected num_attention_heads"},
        {"\"use_cache\": true", "\"head_dim\": 128", K2_UNSUPPORTED, "c.json: head_dim: 128, expected qk_rope_head_dim"},
        {"\"use_cache\": true", "\"rope_interleave\": false", K2_UNSUPPORTED, "c.json: rope_interleave: false, expected true"},
        {"\"rope_theta\": 50000.0, ", "", K2_BAD_INPUT, "c.json: rope_theta: is missing"},
        {"\"type\": \"yarn\"", "\"type\": \"linear\"", K2_UNSUPPORTED, "\"linear\", expected \"default\" or \"yarn\""},
        {"\"type\": \"yarn\", ", "", K2_BAD_INPUT, "c.json: rope_scaling: needs one rope_type"},
        {"\"type\": \"yarn\"", "\"type\": \"yarn\", \"rope_type\": \"default\"", K2_BAD_INPUT,
         "c.json: rope_scaling: needs one rope_type"},
        {"\"beta_fast\": 1.0, ", "", K2_BAD_INPUT, "c.json: rope_scaling.beta_fast: is missing, expected a number"},
        {"\"factor\": 32.0", "\"factr\": 32.0", K2_BAD_INPUT, "c.json: rope_scaling.factr: unknown key, did you mean factor?"},
        {"\"factor\": 32.0", "\"factor\": 0.5", K2_BAD_INPUT, "c.json: "},
        {"\"mscale\": 1.0", "\"mscale\": \"1\"", K2_BAD_INPUT, "c.json: rope_scaling.mscale: \"1\", expected a number"},
        {"_embeddings\": 4096}", "_embeddings\": 4.5}", K2_BAD_INPUT,
         "c.json: rope_scaling.original_max_position_embeddings: 4.5"},
        {"\"use_cache\": true", "\"rope_parameters\": {\"rope_type\": \"default\"}", K2_BAD_INPUT,
         "c.json: rope_scaling and rope_parameters are both there and differ"},
        {"\"use_cache\": true", "\"use_cache\": \"\\u0000\"", K2_BAD_INPUT, "c.json: the JSON holds the character U+0000"},
        {"{\"architectures\"", "[{\"architectures\"", K2_BAD_INPUT, "c.json: is not JSON"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        const char *at = strstr(kimi_k2, cases[i].old);
        assert_non_null(at);
        char *text = k2_asprintf("%.*s%s%s", (int)(at - kimi_k2), kimi_k2, cases[i].new, at + strlen(cases[i].old));
        k2_dims d = {.vocab_size = 77};
        k2_error err;
        k2_code code = parse(text, &d, &err);
        if (code != cases[i].code || !strstr(err.text, cases[i].error))
            fail_msg("case %zu: %s: \"%s\"", i, k2_code_name(code), err.text);
        assert_int_equal(d.vocab_size, 77);
        k2_free(text);
    }
}

static void cut_anywhere(void **state)
{
    (void)state;
    k2_dims d;
    k2_error err;
    for (size_t n = 0; n + 2 < sizeof kimi_k2; n++) {
        char *cut = memcpy(k2_alloc(n + 1), kimi_k2, n);
        cut = k2_realloc_array(cut, K2_MAX(n, (size_t)1), 1); /* no terminator behind it */
        assert_int_equal(k2_weights_dims_parse("c.json", cut, n, &d, &err), K2_BAD_INPUT);
        k2_free(cut);
    }
    char *big = k2_alloc(K2_WEIGHTS_CONFIG_BYTES_MAX + 1);
    assert_int_equal(k2_weights_dims_parse("c.json", big, K2_WEIGHTS_CONFIG_BYTES_MAX + 1, &d, &err), K2_LIMIT);
    k2_free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_published_config), cmocka_unit_test(other_shapes), cmocka_unit_test(other_publications),
        cmocka_unit_test(spellings_of_rope),    cmocka_unit_test(round_trips),  cmocka_unit_test(files),
        cmocka_unit_test(wrong_configs),        cmocka_unit_test(cut_anywhere),
    };
    return cmocka_run_group_tests_name("dims", tests, NULL, NULL);
}
