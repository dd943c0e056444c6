/* A model: its flat vector of parameters, the panels made from them, tables and team. */
#include "common/model/model_int.h"

#include <string.h>

k2_compute k2_compute_find(const char *name, bool backward)
{
    if (strcmp(name, "f32") == 0) return backward ? K2_COMPUTE_F32 : K2_COMPUTE_F32_FORWARD;
    K2_ASSERT(strcmp(name, "bf16") == 0);
    return backward ? K2_COMPUTE_BF16 : K2_COMPUTE_BF16_FORWARD;
}

/* ---- what is kept: carved from three memories, or only counted, so that sizes and use cannot drift apart */

typedef struct panels {
    float *params, *f32; /* NULL: count */
    uint16_t *bf16;
    size_t kept, floats, halves;
} panels;

static size_t panel_numbers(bool bf16, size_t n, size_t k)
{
    return bf16 ? k2_kern_packed_bf16(n, k) : k2_kern_packed_floats(n, k);
}

/* `count` matrices W [n,k], for y = x W'. */
static k2i_matrix take(panels *p, bool bf16, size_t count, size_t n, size_t k)
{
    k2i_matrix w = {0};
    size_t numbers = count * panel_numbers(bf16, n, k);
    if (bf16) {
        if (p->bf16) w.bf16 = p->bf16 + p->halves;
        p->halves += numbers;
    } else {
        if (p->f32) w.f32 = p->f32 + p->floats;
        p->floats += numbers;
    }
    return w;
}

/* The tensor as it is. With a backward all are kept, and lie as in the layout; a forward reads only vectors and rows of
 * embeddings. */
static float *take_kept(panels *p, k2_compute compute, const k2_param *param)
{
    bool needed = param->kind != K2_KIND_MATRIX && param->weight != K2I_W_lm_head;
    if (!needed && !k2_compute_has_backward(compute)) return NULL;
    float *kept = p->params ? p->params + p->kept : NULL;
    p->kept += k2i_padded(param->count);
    return kept;
}

/* All matrices but kv_b, and the output head, have panels. In f32 the backward reads the parameters where they lie. */
static k2i_bound take_param(panels *p, const k2_dims *d, k2_compute compute, const k2_param *param)
{
    k2i_bound b = {.kept = take_kept(p, compute, param)};
    bool head = param->weight == K2I_W_lm_head || (param->weight == K2I_W_embed && d->tie_word_embeddings);
    bool bf16 = k2_compute_is_bf16(compute) && param->weight != K2I_W_router;
    size_t n = param->shape.size[0], k = param->shape.size[1];
    if (param->weight == K2I_W_kv_b || (param->kind != K2_KIND_MATRIX && !head)) return b;
    b.pack = take(p, bf16, 1, n, k);
    if (bf16 && compute == K2_COMPUTE_BF16) b.back = take(p, true, 1, k, n);
    return b;
}

/* kv_b of one layer, head after head. */
static void take_absorbed(panels *p, const k2_dims *d, k2_compute compute, k2i_layer *l)
{
    bool bf16 = k2_compute_is_bf16(compute);
    size_t H = d->num_attention_heads, N = d->qk_nope_head_dim, U = d->v_head_dim, C = d->kv_lora_rank;
    l->uk_kn = take(p, bf16, H, C, N);
    l->uv_nk = take(p, bf16, H, U, C);
    if (!k2_compute_has_backward(compute)) return;
    l->uk_nk = take(p, bf16, H, N, C);
    if (bf16) l->uv_back = take(p, true, H, C, U);
}

static panels panels_count(const k2_dims *d, k2_compute compute, const k2_model_layout *l)
{
    panels p = {0};
    k2i_layer none;
    for (size_t i = 0; i < l->params_count; i++) take_param(&p, d, compute, &l->params[i]);
    for (uint32_t i = 0; i < d->num_hidden_layers; i++) take_absorbed(&p, d, compute, &none);
    return p;
}

static size_t rope_floats(const k2_dims *d)
{
    return (size_t)d->max_position_embeddings * d->qk_rope_head_dim;
}

size_t k2_model_bytes(const k2_dims *d, k2_compute compute)
{
    k2_model_layout *l = k2_model_layout_new(d);
    panels p = panels_count(d, compute, l);
    size_t bytes = (p.kept + p.floats + rope_floats(d)) * sizeof(float) + p.halves * sizeof(uint16_t) +
                   l->params_count * (sizeof(k2_param) + sizeof(k2i_bound)) + d->num_hidden_layers * sizeof(k2i_layer);
    k2_model_layout_free(l);
    return bytes;
}

/* ---- birth and death */

static size_t distance(k2i_matrix from, k2i_matrix to)
{
    return (size_t)(to.bf16 ? to.bf16 - from.bf16 : to.f32 - from.f32);
}

static void bind_param(k2_model *m, const k2_param *p, k2i_bound b)
{
    const size_t offset = b.kept ? (size_t)(b.kept - m->params) : SIZE_MAX; /* one that nobody may read */
    if (!b.back.bf16) b.back.f32 = b.kept;
    if (p->weight == K2I_W_final_norm) m->off_norm = offset;
    if (p->weight == K2I_W_embed) m->off_embed = offset;
    if (p->weight == K2I_W_lm_head || (p->weight == K2I_W_embed && m->d.tie_word_embeddings)) {
        m->off_head = offset;
        m->pack_head = b.pack;
        m->back_head = b.back;
    }
    if (p->layer < 0) return;
    k2i_layer *l = &m->layers[p->layer];
    if (p->expert <= 0) {
        l->off[p->weight] = offset;
        l->pack[p->weight] = b.pack;
        l->back[p->weight] = b.back;
    } else if (p->expert == 1 && p->weight == K2I_W_expert_gate) {
        l->expert_stride = offset - l->off[K2I_W_expert_gate];
        l->pack_stride = distance(l->pack[K2I_W_expert_gate], b.pack);
        l->back_stride = distance(l->back[K2I_W_expert_gate], b.back);
    }
}

static void bind(k2_model *m)
{
    panels p = {.params = m->params, .f32 = m->panels, .bf16 = m->panels_bf16};
    m->bound = k2_alloc_array(m->layout->params_count, sizeof(*m->bound));
    for (size_t i = 0; i < m->layout->params_count; i++) {
        m->bound[i] = take_param(&p, &m->d, m->compute, &m->layout->params[i]);
        bind_param(m, &m->layout->params[i], m->bound[i]);
    }
    uint32_t moe = 0;
    for (uint32_t i = 0; i < m->d.num_hidden_layers; i++) {
        k2i_layer *l = &m->layers[i];
        l->moe = k2_dims_is_moe(&m->d, i);
        l->moe_index = moe;
        moe += l->moe;
        take_absorbed(&p, &m->d, m->compute, l);
        if (m->compute == K2_COMPUTE_F32)
            l->uv_back.f32 = m->params + l->off[K2I_W_kv_b] + (size_t)m->d.qk_nope_head_dim * m->d.kv_lora_rank;
    }
}

static void strides(k2_model *m)
{
    bool bf16 = k2_compute_is_bf16(m->compute);
    size_t N = m->d.qk_nope_head_dim, U = m->d.v_head_dim, C = m->d.kv_lora_rank;
    m->uk_stride = panel_numbers(bf16, C, N);
    m->ukt_stride = panel_numbers(bf16, N, C);
    m->uv_stride = panel_numbers(bf16, U, C);
    m->uv_back_stride = bf16 ? panel_numbers(true, C, U) : (N + U) * C;
}

k2_model *k2_model_new(const k2_dims *dims, k2_compute compute, uint32_t threads, k2_error *err)
{
    if (k2_dims_check(dims, err) != K2_OK) return NULL;
    k2_model *m = k2_alloc(sizeof(*m));
    const k2_dims *d = &m->d;
    m->d = *dims;
    m->layout = k2_model_layout_new(d);
    m->compute = compute;
    panels count = panels_count(d, compute, m->layout);
    m->params = k2_alloc_aligned(64, count.kept * sizeof(float));
    m->panels = k2_alloc_aligned(64, count.floats * sizeof(float));
    m->panels_bf16 = k2_alloc_aligned(64, count.halves * sizeof(uint16_t));
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
    strides(m);
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
    k2_free(m->panels_bf16);
    k2_free(m->bound);
    k2_free(m->rope);
    k2_free(m->layers);
    k2_free(m);
}

void k2_model_calls_begin(k2_model *m)
{
    k2_kern_team_begin(m->team);
}
void k2_model_calls_end(k2_model *m)
{
    k2_kern_team_end(m->team);
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
    return k2_compute_has_backward(m->compute) ? m->params : NULL;
}
size_t k2_model_param_count(const k2_model *m)
{
    return m->layout->floats;
}

/* From W [n,k] at w: panels for y = x W', or, `turned`, for y = x W. None: nothing to do. */
static void pack(k2i_matrix to, bool turned, const float *w, size_t n, size_t k)
{
    if (to.bf16 && turned) k2_kern_pack_bf16_kn(w, k, k, n, to.bf16);
    if (to.bf16 && !turned) k2_kern_pack_bf16_nk(w, k, n, k, to.bf16);
    if (to.f32 && turned) k2_kern_pack_kn(w, k, k, n, to.f32);
    if (to.f32 && !turned) k2_kern_pack_nk(w, k, n, k, to.f32);
}

/* kv_b rows of a head are N rows that make keys of the latent, then U rows that make values. Absorbed, the first are applied
 * to queries from the other side. */
static void pack_absorbed(k2_model *m, const k2i_layer *l, const float *kv_b)
{
    const k2_dims *d = &m->d;
    size_t N = d->qk_nope_head_dim, U = d->v_head_dim, C = d->kv_lora_rank;
    bool backward = k2_compute_has_backward(m->compute);
    for (uint32_t h = 0; h < d->num_attention_heads; h++) {
        const float *uk = kv_b + h * (N + U) * C, *uv = uk + N * C;
        pack(k2i_matrix_at(l->uk_kn, h * m->uk_stride), true, uk, N, C);
        pack(k2i_matrix_at(l->uv_nk, h * m->uv_stride), false, uv, U, C);
        if (backward) pack(k2i_matrix_at(l->uk_nk, h * m->ukt_stride), false, uk, N, C);
        if (m->compute == K2_COMPUTE_BF16) pack(k2i_matrix_at(l->uv_back, h * m->uv_back_stride), true, uv, U, C);
    }
}

void k2_model_param_take(k2_model *m, size_t i, const float *tensor)
{
    const k2_param *p = &m->layout->params[i];
    const k2i_bound *b = &m->bound[i];
    const size_t n = p->shape.size[0], k = p->shape.size[1];
    if (b->kept && b->kept != tensor) memcpy(b->kept, tensor, p->count * sizeof(*tensor));
    if (p->weight == K2I_W_kv_b) pack_absorbed(m, &m->layers[p->layer], tensor);
    pack(b->pack, false, tensor, n, k);
    pack(b->back, true, tensor, n, k);
}

typedef struct taking {
    k2_model *m;
    const float *const *tensors; /* NULL: those of the vector */
} taking;

static void take_task(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const taking *t = arg;
    k2_model_param_take(t->m, task, t->tensors ? t->tensors[task] : t->m->bound[task].kept);
}

void k2_model_params_take(k2_model *m, const float *const *tensors)
{
    k2_kern_team_run(m->team, m->layout->params_count, take_task, &(taking){m, tensors});
}

void k2_model_params_changed(k2_model *m)
{
    K2_ASSERT(k2_compute_has_backward(m->compute));
    k2_kern_team_run(m->team, m->layout->params_count, take_task, &(taking){m, NULL});
}

static void init_param(const k2_param *p, size_t number, uint64_t seed, double std, float *w)
{
    for (size_t e = 0; e < p->count; e++) {
        switch (p->kind) {
        case K2_KIND_MATRIX:
        case K2_KIND_EMBED: w[e] = (float)(std * k2_rand_normal(seed, K2_STREAM_INIT, number, e)); break;
        case K2_KIND_NORM: w[e] = 1.0f; break;
        case K2_KIND_BIAS: w[e] = 0.0f; break;
        }
    }
}

void k2_model_init(k2_model *m, uint64_t seed, double std)
{
    if (std == 0) std = m->d.initializer_range;
    for (size_t i = 0; i < m->layout->params_count; i++) {
        const k2_param *p = &m->layout->params[i];
        float *w = m->bound[i].kept ? m->bound[i].kept : k2_alloc_array(p->count, sizeof(*w));
        init_param(p, i, seed, std, w);
        k2_model_param_take(m, i, w);
        if (!m->bound[i].kept) k2_free(w);
    }
}
