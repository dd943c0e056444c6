/* hf_model - our half of the comparison with transformers: write a model directory, or read one, and the logits of it.
 *
 *     hf_model write NAME DIR LOGITS     a random model of one of the shapes below
 *     hf_model read DIR LOGITS           whatever stands in DIR
 *     hf_model names                     the shapes
 *
 * LOGITS is [TOKENS, vocab] f32; token t of the one sequence is (7 t + 3) % vocab.
 */
#include "common/model/model.h"
#include "common/weights/weights.h"
#include "tests/support/tiny_dims.h"

#include <stdio.h>
#include <string.h>

#define TOKENS      24u
#define PAGE_TOKENS 32u
_Static_assert(TOKENS <= PAGE_TOKENS, "the sequence lies in one page");

/* The layout of Kimi-K2: low-rank queries, YaRN, one group of experts. */
static k2_dims kimi(void)
{
    k2_dims d = tiny_dims();
    d.hidden_size = 48;
    d.num_hidden_layers = 3;
    d.num_attention_heads = 3;
    d.q_lora_rank = 20;
    d.kv_lora_rank = 24;
    d.qk_nope_head_dim = 12;
    d.v_head_dim = 10;
    d.n_routed_experts = 6;
    d.routed_scaling_factor = 2.827;
    d.max_position_embeddings = 128;
    d.rope_theta = 50000;
    d.yarn = (k2_yarn){
        .factor = 4, .beta_fast = 32, .beta_slow = 1, .mscale = 1, .mscale_all_dim = 1, .original_max_position_embeddings = 32};
    d.bos_token_id = 256;
    d.eos_token_id = 257;
    return d;
}

static k2_dims groups_no_q_lora(void)
{
    k2_dims d = tiny_dims();
    d.vocab_size = 100;
    d.num_attention_heads = 4;
    d.q_lora_rank = 0;
    d.qk_rope_head_dim = 4;
    d.n_routed_experts = 8;
    d.n_shared_experts = 2;
    d.num_experts_per_tok = 3;
    d.n_group = 4;
    d.topk_group = 2;
    d.first_k_dense_replace = 0;
    d.norm_topk_prob = false;
    d.max_position_embeddings = 64;
    d.rms_norm_eps = 1e-5;
    return d;
}

static k2_dims dense_tied(void)
{
    k2_dims d = tiny_dims();
    d.vocab_size = 70;
    d.hidden_size = 24;
    d.q_lora_rank = 8;
    d.qk_nope_head_dim = 6;
    d.qk_rope_head_dim = 6;
    d.v_head_dim = 5;
    d.first_k_dense_replace = 2;
    d.tie_word_embeddings = true;
    d.bos_token_id = 0;
    d.eos_token_id = 1;
    return d;
}

static const struct {
    const char *name;
    k2_dims (*dims)(void);
} shapes[] = {{"kimi", kimi}, {"groups_no_q_lora", groups_no_q_lora}, {"dense_tied", dense_tied}};

static k2_weights_slot *slots_new(k2_model *m, size_t *count)
{
    const k2_model_layout *layout = k2_model_layout_of(m);
    k2_weights_slot *slots = k2_alloc_array(layout->params_count, sizeof *slots);
    for (size_t i = 0; i < layout->params_count; i++)
        slots[i] = (k2_weights_slot){.name = layout->params[i].name,
                                     .shape = layout->params[i].shape,
                                     .data = k2_model_params(m) + layout->params[i].offset};
    *count = layout->params_count;
    return slots;
}

/* k2_model_init leaves norms 1 and biases 0, which would hide a swapped or forgotten one. */
static void perturb(k2_model *m)
{
    const k2_model_layout *layout = k2_model_layout_of(m);
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        for (size_t e = 0; (p->kind == K2_KIND_NORM || p->kind == K2_KIND_BIAS) && e < p->count; e++)
            k2_model_params(m)[p->offset + e] += 0.3f * (float)k2_rand_normal(9, K2_STREAM_TEST, i, e);
    }
    k2_model_params_changed(m);
}

static k2_code logits_write(k2_model *m, const char *path, k2_error *err)
{
    const k2_dims *d = k2_model_dims(m);
    const size_t page = k2_model_page_floats(d, PAGE_TOKENS);
    float *logits = k2_alloc_array((size_t)TOKENS * d->vocab_size, sizeof *logits);
    const k2_model_kv kv = {.pages = k2_alloc_aligned(64, page * sizeof(float)), .page_tokens = PAGE_TOKENS, .pages_count = 1};
    const uint32_t table[] = {0};
    k2_model_row rows[TOKENS];
    for (uint32_t t = 0; t < TOKENS; t++)
        rows[t] = (k2_model_row){.token = (int32_t)((7 * t + 3) % d->vocab_size),
                                 .position = t,
                                 .page_table = table,
                                 .logits = logits + (size_t)t * d->vocab_size};
    k2_arena arena;
    k2_arena_init(&arena, k2_model_decode_bytes(d, 1, TOKENS, TOKENS));
    k2_model_decode(m, &kv, rows, TOKENS, &arena);
    k2_arena_fini(&arena);
    k2_code code = k2_file_write_atomic(path, logits, (size_t)TOKENS * d->vocab_size * sizeof *logits, err);
    k2_free(kv.pages);
    k2_free(logits);
    return code;
}

static k2_code model_write(const k2_dims *dims, const char *dir, const char *logits, k2_error *err)
{
    size_t count = 0;
    k2_model *m = k2_model_new(dims, K2_COMPUTE_F32, 1, err);
    if (!m) return err->code;
    k2_model_init(m, 5, 0.15);
    perturb(m);
    k2_weights_slot *slots = slots_new(m, &count);
    k2_code code = k2_weights_dir_save(dir, dims, &(k2_weights_format){.dtype = K2_DTYPE_F32}, slots, count, err);
    if (code == K2_OK) code = logits_write(m, logits, err);
    k2_free(slots);
    k2_model_free(m);
    return code;
}

static k2_code model_read(const char *dir, const char *logits, k2_error *err)
{
    k2_dims dims;
    size_t count = 0;
    char *config = k2_asprintf("%s/config.json", dir);
    k2_code code = k2_weights_dims_load(config, &dims, err);
    k2_free(config);
    if (code != K2_OK) return code;
    k2_model *m = k2_model_new(&dims, K2_COMPUTE_F32, 1, err);
    if (!m) return err->code;
    k2_weights_slot *slots = slots_new(m, &count);
    code = k2_weights_dir_load(dir, slots, count, err);
    k2_model_params_changed(m);
    if (code == K2_OK) code = logits_write(m, logits, err);
    k2_free(slots);
    k2_model_free(m);
    return code;
}

int main(int argc, char **argv)
{
    k2_error err = {.code = K2_BAD_INPUT, .text = "usage: hf_model write NAME DIR LOGITS | read DIR LOGITS | names"};
    if (argc == 2 && strcmp(argv[1], "names") == 0) {
        for (size_t i = 0; i < K2_COUNT(shapes); i++) printf("%s\n", shapes[i].name);
        return 0;
    }
    if (argc == 4 && strcmp(argv[1], "read") == 0) {
        if (model_read(argv[2], argv[3], &err) == K2_OK) return 0;
    } else if (argc == 5 && strcmp(argv[1], "write") == 0) {
        for (size_t i = 0; i < K2_COUNT(shapes); i++) {
            if (strcmp(shapes[i].name, argv[2]) != 0) continue;
            const k2_dims dims = shapes[i].dims();
            if (model_write(&dims, argv[3], argv[4], &err) == K2_OK) return 0;
        }
    }
    fprintf(stderr, "hf_model: %s\n", err.text);
    return k2_code_exit(err.code);
}
