/* Memory of a pass: one list of pieces, walked with an arena to take them and without one to count them. */
#include "common/model/model_int.h"

void *k2i_carve(k2i_carver *c, size_t count, size_t size)
{
    size_t bytes = (count * size + 63) & ~(size_t)63;
    c->bytes += bytes;
    return c->arena ? k2_arena_alloc(c->arena, bytes) : NULL;
}

static float *floats(k2i_carver *c, size_t rows, size_t width)
{
    return k2i_carve(c, rows * width, sizeof(float));
}
static uint32_t *words(k2i_carver *c, size_t rows, size_t width)
{
    return k2i_carve(c, rows * width, sizeof(uint32_t));
}

/* Width of what every row of a layer goes through: the dense network, or the shared experts. */
static size_t ffn_width(const k2_dims *d)
{
    size_t shared = (size_t)d->n_shared_experts * d->moe_intermediate_size;
    bool any_moe = k2_dims_moe_layers(d) > 0, any_dense = k2_dims_moe_layers(d) < d->num_hidden_layers;
    return K2_MAX(any_dense ? d->intermediate_size : 0, any_moe ? shared : 0);
}

void k2i_acts_carve_input(k2i_carver *c, const k2_dims *d, size_t rows, k2i_acts *a)
{
    a->x = floats(c, rows, d->hidden_size);
}

void k2i_acts_carve_cheap(k2i_carver *c, const k2_dims *d, size_t rows, k2i_acts *a)
{
    size_t heads = d->num_attention_heads;
    a->h1 = floats(c, rows, d->hidden_size);
    if (d->q_lora_rank) a->qan = floats(c, rows, d->q_lora_rank);
    a->q = floats(c, rows, heads * (d->qk_nope_head_dim + d->qk_rope_head_dim));
    a->qcat = floats(c, rows, heads * k2_dims_key_floats(d));
    a->o = floats(c, rows, heads * d->v_head_dim);
    a->h2 = floats(c, rows, d->hidden_size);
    a->act = floats(c, rows, ffn_width(d));
    if (k2_dims_moe_layers(d) > 0) a->e_act = floats(c, rows * d->num_experts_per_tok, d->moe_intermediate_size);
}

void k2i_acts_carve_rest(k2i_carver *c, const k2_dims *d, size_t rows, k2i_acts *a)
{
    size_t D = d->hidden_size, K = d->num_experts_per_tok, F = d->moe_intermediate_size;
    a->r1 = floats(c, rows, 1);
    if (d->q_lora_rank) {
        a->qa = floats(c, rows, d->q_lora_rank);
        a->rqa = floats(c, rows, 1);
    }
    a->kva = floats(c, rows, d->kv_lora_rank + d->qk_rope_head_dim);
    a->rkv = floats(c, rows, 1);
    a->key = floats(c, rows, k2_dims_key_floats(d));
    a->o_lat = floats(c, rows, d->num_attention_heads * d->kv_lora_rank);
    a->x2 = floats(c, rows, D);
    a->r2 = floats(c, rows, 1);
    a->gate = floats(c, rows, ffn_width(d));
    a->up = floats(c, rows, ffn_width(d));
    if (k2_dims_moe_layers(d) == 0) return;
    a->scores = floats(c, rows, d->n_routed_experts);
    a->weight = floats(c, rows, K);
    a->index = words(c, rows, K);
    a->place = words(c, rows, K);
    a->row_of = words(c, rows, K);
    a->slot_of = words(c, rows, K);
    a->starts = words(c, d->n_routed_experts + 1, 1);
    a->e_gate = floats(c, rows * K, F);
    a->e_up = floats(c, rows * K, F);
    a->e_out = floats(c, rows * K, D);
}

/* Whole tiles of eight rows, up to a full block; bits do not depend on it. */
static size_t block_rows(uint32_t threads, size_t rows)
{
    size_t each = ((rows + threads - 1) / threads + 7) / 8 * 8;
    return K2_MIN(each, (size_t)K2I_ROWS);
}

static size_t logits_rows(const k2_dims *d, size_t block)
{
    size_t rows = K2I_LOGITS_FLOATS / d->vocab_size / 8 * 8; /* even: in bf16 a weight's gradient takes rows in pairs */
    return K2_MAX((size_t)8, K2_MIN(rows, block));
}

void k2i_pass_carve(k2i_carver *c, const k2_dims *d, uint32_t threads, size_t rows, size_t longest, k2i_pass *p)
{
    size_t wide =
        K2_MAX(K2_MAX(d->intermediate_size, d->moe_intermediate_size), d->n_shared_experts * d->moe_intermediate_size);
    p->rows = rows;
    p->few = threads > 1 && rows < K2I_ROWS_FEW * threads;
    p->block = block_rows(threads, rows);
    p->logits_rows = logits_rows(d, p->block);
    p->chunks = words(c, k2i_blocks(rows * d->num_experts_per_tok) + d->n_routed_experts, 2);
    p->scratch = k2i_carve(c, threads, sizeof(k2i_scratch));
    for (uint32_t i = 0; i < threads; i++) {
        k2i_scratch s = {.rows_a = floats(c, K2I_ROWS, d->hidden_size), .rows_b = floats(c, K2I_ROWS, d->hidden_size)};
        s.wide = floats(c, K2I_ROWS, wide);
        s.attn = floats(c, 2 * d->num_attention_heads, (longest + 15) / 16 * 16);
        s.load = floats(c, 1, d->n_routed_experts);
        s.top = floats(c, 1, d->num_attention_heads);
        s.logits = floats(c, p->logits_rows, d->vocab_size);
        if (c->arena) p->scratch[i] = s;
    }
}
