/* A model: its flat vector of parameters, the panels made from them, tables and team. */
#include "common/model/model_int.h"

#include <string.h>

/* Sizes of the panels of one head's half of kv_b. */
static size_t uk_floats(const k2_dims *d)
{
    return k2_kern_packed_floats(d->kv_lora_rank, d->qk_nope_head_dim);
}
static size_t ukt_floats(const k2_dims *d)
{
    return k2_kern_packed_floats(d->qk_nope_head_dim, d->kv_lora_rank);
}
static size_t uv_floats(const k2_dims *d)
{
    return k2_kern_packed_floats(d->v_head_dim, d->kv_lora_rank);
}

/* Panels of a tensor for y = x W': all matrices but kv_b, and the output head. */
static size_t param_panels(const k2_dims *d, const k2_param *p)
{
    bool head = p->weight == K2I_W_lm_head || (p->weight == K2I_W_embed && d->tie_word_embeddings);
    if (p->weight == K2I_W_kv_b || (p->kind != K2_KIND_MATRIX && !head)) return 0;
    return k2_kern_packed_floats(p->shape.size[0], p->shape.size[1]);
}

static size_t panels_floats(const k2_dims *d, const k2_model_layout *l)
{
    size_t floats = d->num_hidden_layers * (size_t)d->num_attention_heads * (uk_floats(d) + ukt_floats(d) + uv_floats(d));
    for (size_t i = 0; i < l->params_count; i++) floats += param_panels(d, &l->params[i]);
    return floats;
}

static size_t rope_floats(const k2_dims *d)
{
    return (size_t)d->max_position_embeddings * d->qk_rope_head_dim;
}

size_t k2_model_bytes(const k2_dims *d)
{
    k2_model_layout *l = k2_model_layout_new(d);
    size_t floats = l->floats + panels_floats(d, l) + rope_floats(d);
    size_t bytes = floats * sizeof(float) + l->params_count * sizeof(k2_param) + d->num_hidden_layers * sizeof(k2i_layer);
    k2_model_layout_free(l);
    return bytes;
}

static void bind_param(k2_model *m, const k2_param *p, const float *panels)
{
    if (p->weight == K2I_W_final_norm) m->off_norm = p->offset;
    if (p->weight == K2I_W_embed) m->off_embed = p->offset;
    if (p->weight == K2I_W_lm_head || (p->weight == K2I_W_embed && m->d.tie_word_embeddings)) {
        m->off_head = p->offset;
        m->pack_head = panels;
    }
    if (p->layer < 0) return;
    k2i_layer *l = &m->layers[p->layer];
    if (p->expert <= 0) {
        l->off[p->weight] = p->offset;
        l->pack[p->weight] = param_panels(&m->d, p) ? panels : NULL;
    } else if (p->expert == 1 && p->weight == K2I_W_expert_gate) {
        l->expert_stride = p->offset - l->off[K2I_W_expert_gate];
        l->pack_stride = (size_t)(panels - l->pack[K2I_W_expert_gate]);
    }
}

static void bind(k2_model *m)
{
    float *at = m->panels;
    m->panel_at = k2_alloc_array(m->layout->params_count, sizeof(size_t));
    for (size_t i = 0; i < m->layout->params_count; i++) {
        m->panel_at[i] = (size_t)(at - m->panels);
        bind_param(m, &m->layout->params[i], at);
        at += param_panels(&m->d, &m->layout->params[i]);
    }
    uint32_t moe = 0;
    for (uint32_t i = 0; i < m->d.num_hidden_layers; i++) {
        k2i_layer *l = &m->layers[i];
        l->moe = k2_dims_is_moe(&m->d, i);
        l->moe_index = moe;
        moe += l->moe;
        l->uk_kn = at;
        l->uk_nk = l->uk_kn + m->d.num_attention_heads * m->uk_stride;
        l->uv_nk = l->uk_nk + m->d.num_attention_heads * m->ukt_stride;
        at = l->uv_nk + m->d.num_attention_heads * m->uv_stride;
    }
}

k2_model *k2_model_new(const k2_dims *dims, uint32_t threads, k2_error *err)
{
    if (k2_dims_check(dims, err) != K2_OK) return NULL;
    k2_model *m = k2_alloc(sizeof(*m));
    const k2_dims *d = &m->d;
    m->d = *dims;
    m->layout = k2_model_layout_new(d);
    m->params = k2_alloc_aligned(64, m->layout->floats * sizeof(float));
    m->panels = k2_alloc_aligned(64, panels_floats(d, m->layout) * sizeof(float));
    m->rope = k2_alloc_aligned(64, rope_floats(d) * sizeof(float));
    k2_kern_rope_table(d, d->max_position_embeddings, m->rope);
    m->layers = k2_alloc_array(d->num_hidden_layers, sizeof(k2i_layer));
    m->attn = (k2_attn){.heads = d->num_attention_heads,
                        .latent = d->kv_lora_rank,
                        .width = k2_dims_key_floats(d),
                        .scale = k2_kern_attn_scale(d)};
    m->router = (k2_router){.experts = d->n_routed_experts,
                            .topk = d->num_experts_per_tok,
                            .groups = d->n_group,
                            .topk_group = d->topk_group,
                            .scale = (float)d->routed_scaling_factor,
                            .norm = d->norm_topk_prob};
    m->width_q = d->num_attention_heads * (d->qk_nope_head_dim + d->qk_rope_head_dim);
    m->width_kv = d->kv_lora_rank + d->qk_rope_head_dim;
    m->width_shared = d->n_shared_experts * d->moe_intermediate_size;
    m->uk_stride = uk_floats(d);
    m->ukt_stride = ukt_floats(d);
    m->uv_stride = uv_floats(d);
    bind(m);
    m->team = k2_kern_team_new(threads);
    return m;
}

void k2_model_free(k2_model *m)
{
    if (!m) return;
    k2_kern_team_free(m->team);
    k2_model_layout_free(m->layout);
    k2_free(m->params);
    k2_free(m->panels);
    k2_free(m->panel_at);
    k2_free(m->rope);
    k2_free(m->layers);
    k2_free(m);
}

const k2_dims *k2_model_dims(const k2_model *m)
{
    return &m->d;
}
const k2_model_layout *k2_model_layout_of(const k2_model *m)
{
    return m->layout;
}
float *k2_model_params(k2_model *m)
{
    return m->params;
}
size_t k2_model_param_count(const k2_model *m)
{
    return m->layout->floats;
}

/* kv_b rows of a head are N rows that make keys of the latent, then U rows that make values. Absorbed, the first are applied
 * to queries from the other side. */
static void pack_absorbed(k2_model *m, const k2i_layer *l)
{
    const k2_dims *d = &m->d;
    size_t n = d->qk_nope_head_dim, u = d->v_head_dim, c = d->kv_lora_rank;
    for (uint32_t h = 0; h < d->num_attention_heads; h++) {
        const float *uk = m->params + l->off[K2I_W_kv_b] + h * (n + u) * c, *uv = uk + n * c;
        k2_kern_pack_kn(uk, c, c, n, l->uk_kn + h * m->uk_stride);
        k2_kern_pack_nk(uk, c, n, c, l->uk_nk + h * m->ukt_stride);
        k2_kern_pack_nk(uv, c, u, c, l->uv_nk + h * m->uv_stride);
    }
}

static void pack_task(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2_model *m = arg;
    if (task >= m->layout->params_count) {
        pack_absorbed(m, &m->layers[task - m->layout->params_count]);
        return;
    }
    const k2_param *p = &m->layout->params[task];
    if (param_panels(&m->d, p) == 0) return;
    size_t n = p->shape.size[0], k = p->shape.size[1];
    k2_kern_pack_nk(m->params + p->offset, k, n, k, m->panels + m->panel_at[task]);
}

void k2_model_params_changed(k2_model *m)
{
    k2_kern_team_run(m->team, m->layout->params_count + m->d.num_hidden_layers, pack_task, m);
}

void k2_model_init(k2_model *m, uint64_t seed, double std)
{
    if (std == 0) std = m->d.initializer_range;
    for (size_t i = 0; i < m->layout->params_count; i++) {
        const k2_param *p = &m->layout->params[i];
        float *w = m->params + p->offset;
        for (size_t e = 0; e < p->count; e++) {
            switch (p->kind) {
            case K2_KIND_MATRIX:
            case K2_KIND_EMBED: w[e] = (float)(std * k2_rand_normal(seed, K2_STREAM_INIT, i, e)); break;
            case K2_KIND_NORM: w[e] = 1.0f; break;
            case K2_KIND_BIAS: w[e] = 0.0f; break;
            }
        }
    }
    k2_model_params_changed(m);
}
