/* One layer forward, for trainer and decoder alike, in tasks of one block of rows. */
#include "common/model/model_int.h"

#include <math.h>
#include <string.h>

/* Rows of task number `task`. */
static size_t block(const k2i_pass *p, size_t task, size_t *count)
{
    size_t first = task * p->block;
    *count = K2_MIN(p->block, p->rows - first);
    return first;
}

void k2i_embed(k2i_pass *p, const int32_t *tokens, float *x)
{
    size_t width = p->m->d.hidden_size;
    for (size_t t = 0; t < p->rows; t++) {
        memcpy(x + t * width, p->m->params + p->m->off_embed + (size_t)tokens[t] * width, width * sizeof(float));
    }
}

static const float *rope_row(const k2_model *m, uint32_t position)
{
    return m->rope + (size_t)position * m->d.qk_rope_head_dim;
}

/* ---- first phase: queries and keys ------------------------------------------------------------------------------- */

/* down: not yet there is the low-rank part before its norm. */
static void queries(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, bool down)
{
    const k2_model *m = p->m;
    const k2_dims *d = &m->d;
    k2i_acts *a = p->a;
    size_t D = d->hidden_size, Q = d->q_lora_rank, wq = m->width_q;
    if (Q == 0) {
        k2i_linear(l->pack[K2I_W_q], wq, D, n, a->h1 + t * D, D, a->q + t * wq, wq);
        return;
    }
    if (down) k2i_linear(l->pack[K2I_W_q_a], Q, D, n, a->h1 + t * D, D, a->qa + t * Q, Q);
    k2_kern_rmsnorm_fwd(n, Q, a->qa + t * Q, Q, m->params + l->off[K2I_W_q_a_norm], (float)K2_LORA_NORM_EPS, a->qan + t * Q, Q,
                        a->rqa + t);
    k2i_linear(l->pack[K2I_W_q_b], wq, Q, n, a->qan + t * Q, Q, a->q + t * wq, wq);
}

/* q_nope times W_uk, beside it the rotated part: a query against cached keys [latent | rotated]. */
static void absorb_queries(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    const k2_dims *d = &m->d;
    size_t N = d->qk_nope_head_dim, R = d->qk_rope_head_dim, C = d->kv_lora_rank, H = d->num_attention_heads;
    size_t W = m->attn.width, wq = m->width_q;
    const float *q = p->a->q + t * wq;
    float *qcat = p->a->qcat + t * H * W;
    for (size_t h = 0; h < H; h++)
        k2i_linear(k2i_matrix_at(l->uk_kn, h * m->uk_stride), C, N, n, q + h * (N + R), wq, qcat + h * W, H * W);
    for (size_t i = 0; i < n; i++) {
        float *row = qcat + i * H * W;
        for (size_t h = 0; h < H; h++) {
            memcpy(row + h * W + C, q + i * wq + h * (N + R) + N, R * sizeof(float));
            memset(row + h * W + C + R, 0, (W - C - R) * sizeof(float));
        }
        k2_kern_rope(row + C, H, W, R, rope_row(m, p->position[t + i]), false);
    }
}

static void keys(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    size_t C = m->d.kv_lora_rank, R = m->d.qk_rope_head_dim, W = m->attn.width, D = m->d.hidden_size, wkv = m->width_kv;
    float *kva = p->a->kva + t * wkv, *key = p->a->key + t * W;
    k2i_linear(l->pack[K2I_W_kv_a], wkv, D, n, p->a->h1 + t * D, D, kva, wkv);
    k2_kern_rmsnorm_fwd(n, C, kva, wkv, m->params + l->off[K2I_W_kv_a_norm], (float)K2_LORA_NORM_EPS, key, W, p->a->rkv + t);
    for (size_t i = 0; i < n; i++) {
        float *row = key + i * W;
        memcpy(row + C, kva + i * wkv + C, R * sizeof(float));
        memset(row + C + R, 0, (W - C - R) * sizeof(float));
        k2_kern_rope(row + C, 1, W, R, rope_row(m, p->position[t + i]), false);
        if (!p->list) continue;
        const k2_model_row *r = &p->list[t + i];
        size_t page = r->page_table[r->position / p->kv->page_tokens], slot = r->position % p->kv->page_tokens;
        size_t at = (page * m->d.num_hidden_layers + p->layer) * p->kv->page_tokens + slot;
        memcpy(p->kv->pages + at * W, row, W * sizeof(float));
    }
}

static void phase_qk(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    k2_model *m = p->m;
    const k2i_layer *l = &m->layers[p->layer];
    size_t n, t = block(p, task, &n), D = m->d.hidden_size;
    k2_kern_rmsnorm_fwd(n, D, p->a->x + t * D, D, m->params + l->off[K2I_W_input_norm], (float)m->d.rms_norm_eps,
                        p->a->h1 + t * D, D, p->a->r1 + t);
    queries(p, l, t, n, true);
    absorb_queries(p, l, t, n);
    keys(p, l, t, n);
}

/* ---- second phase: attention and what stands on single rows ------------------------------------------------------ */

static k2_keys keys_of_row(const k2i_pass *p, size_t t)
{
    size_t W = p->m->attn.width;
    if (!p->list) return (k2_keys){.base = p->a->key + p->start[t] * W, .page_tokens = p->m->d.max_position_embeddings};
    size_t page_floats = (size_t)p->m->d.num_hidden_layers * p->kv->page_tokens * W;
    return (k2_keys){.base = p->kv->pages + (size_t)p->layer * p->kv->page_tokens * W,
                     .table = p->list[t].page_table,
                     .page_tokens = p->kv->page_tokens,
                     .page_stride = page_floats};
}

/* Each head's output from its latent one. */
static void values(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    size_t H = m->attn.heads, C = m->attn.latent, U = m->d.v_head_dim;
    float *o = p->a->o + t * H * U;
    for (size_t h = 0; h < H; h++)
        k2i_linear(k2i_matrix_at(l->uv_nk, h * m->uv_stride), U, C, n, p->a->o_lat + (t * H + h) * C, H * C, o + h * U, H * U);
}

static void attention(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, k2i_scratch *s)
{
    const k2_model *m = p->m;
    k2i_acts *a = p->a;
    size_t H = m->attn.heads, C = m->attn.latent, W = m->attn.width, U = m->d.v_head_dim, D = m->d.hidden_size;
    for (size_t i = t; i < t + n; i++) {
        k2_keys keys = keys_of_row(p, i);
        keys.top = p->tops ? s->top : NULL;
        k2_kern_attn_fwd(&m->attn, &keys, p->position[i] + 1u, a->qcat + i * H * W, a->o_lat + i * H * C, s->attn);
    }
    values(p, l, t, n);
    float *x2 = a->x2 + t * D;
    k2i_linear(l->pack[K2I_W_o], D, H * U, n, a->o + t * H * U, H * U, x2, D);
    k2_kern_add(n * D, a->x + t * D, x2);
}

/* out [n,D] = down(silu(gate h2) * up h2), keeping gate, up and their product. */
static void feed_forward(k2i_pass *p, const k2i_layer *l, const int id[3], size_t width, size_t t, size_t n, float *out)
{
    k2i_acts *a = p->a;
    size_t D = p->m->d.hidden_size;
    float *gate = a->gate + t * width, *up = a->up + t * width, *act = a->act + t * width;
    k2i_linear(l->pack[id[0]], width, D, n, a->h2 + t * D, D, gate, width);
    k2i_linear(l->pack[id[1]], width, D, n, a->h2 + t * D, D, up, width);
    k2_kern_swiglu_fwd(n * width, gate, up, act);
    k2i_linear(l->pack[id[2]], D, width, n, act, width, out, D);
}

static void phase_rows(void *arg, size_t task, uint32_t member)
{
    static const int dense[3] = {K2I_W_gate, K2I_W_up, K2I_W_down};
    static const int shared[3] = {K2I_W_shared_gate, K2I_W_shared_up, K2I_W_shared_down};
    k2i_pass *p = arg;
    k2_model *m = p->m;
    k2i_acts *a = p->a;
    const k2i_layer *l = &m->layers[p->layer];
    size_t n, t = block(p, task, &n), D = m->d.hidden_size, E = m->d.n_routed_experts, K = m->d.num_experts_per_tok;
    float *out = p->x_next + t * D;
    attention(p, l, t, n, &p->scratch[member]);
    k2_kern_rmsnorm_fwd(n, D, a->x2 + t * D, D, m->params + l->off[K2I_W_post_norm], (float)m->d.rms_norm_eps, a->h2 + t * D, D,
                        a->r2 + t);
    if (!l->moe) {
        feed_forward(p, l, dense, m->d.intermediate_size, t, n, out);
        k2_kern_add(n * D, a->x2 + t * D, out);
        return;
    }
    k2i_linear(l->pack[K2I_W_router], E, D, n, a->h2 + t * D, D, a->scores + t * E, E);
    k2_kern_route_fwd(&m->router, n, a->scores + t * E, m->params + l->off[K2I_W_router_bias], a->scores + t * E,
                      a->index + t * K, a->weight + t * K);
    if (m->width_shared) {
        feed_forward(p, l, shared, m->width_shared, t, n, out);
    } else {
        memset(out, 0, n * D * sizeof(float));
    }
}

/* ---- experts ------------------------------------------------------------------------------------------------------ */

/* Give every (token, choice) a row in expert order, tokens in their order within an expert. */
static void group_by_expert(k2i_pass *p)
{
    k2i_acts *a = p->a;
    size_t E = p->m->d.n_routed_experts, K = p->m->d.num_experts_per_tok, n = p->rows * K;
    memset(a->starts, 0, (E + 1) * sizeof(uint32_t));
    for (size_t i = 0; i < n; i++) a->starts[a->index[i] + 1]++;
    for (size_t e = 0; e < E; e++) a->starts[e + 1] += a->starts[e];
    /* starts[e] serves as the place of the next row and is moved back afterwards */
    for (size_t i = 0; i < n; i++) {
        uint32_t at = a->starts[a->index[i]]++;
        a->place[i] = at;
        a->row_of[at] = (uint32_t)(i / K);
        a->slot_of[at] = (uint32_t)(i % K);
    }
    for (size_t e = E; e > 0; e--) a->starts[e] = a->starts[e - 1];
    a->starts[0] = 0;
    p->chunks_count = 0;
    for (uint32_t e = 0; e < E; e++) {
        for (uint32_t from = a->starts[e]; from < a->starts[e + 1]; from += K2I_ROWS) {
            p->chunks[2 * p->chunks_count] = e;
            p->chunks[2 * p->chunks_count++ + 1] = from;
        }
    }
}

static void phase_experts(void *arg, size_t task, uint32_t member)
{
    k2i_pass *p = arg;
    k2i_acts *a = p->a;
    const k2i_layer *l = &p->m->layers[p->layer];
    size_t e = p->chunks[2 * task], from = p->chunks[2 * task + 1], D = p->m->d.hidden_size, F = p->m->d.moe_intermediate_size;
    size_t n = K2_MIN((size_t)K2I_ROWS, a->starts[e + 1] - from), panels = e * l->pack_stride;
    float *x = p->scratch[member].rows_a, *gate = a->e_gate + from * F, *up = a->e_up + from * F, *act = a->e_act + from * F;
    for (size_t i = 0; i < n; i++) memcpy(x + i * D, a->h2 + (size_t)a->row_of[from + i] * D, D * sizeof(float));
    k2i_linear(k2i_matrix_at(l->pack[K2I_W_expert_gate], panels), F, D, n, x, D, gate, F);
    k2i_linear(k2i_matrix_at(l->pack[K2I_W_expert_up], panels), F, D, n, x, D, up, F);
    k2_kern_swiglu_fwd(n * F, gate, up, act);
    k2i_linear(k2i_matrix_at(l->pack[K2I_W_expert_down], panels), D, F, n, act, F, a->e_out + from * D, D);
}

/* x_next = x2 + (shared + w_1 y_1 + w_2 y_2 ...), choices best first: the order depends on the token alone. */
static void phase_combine(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    k2i_acts *a = p->a;
    size_t n, t = block(p, task, &n), D = p->m->d.hidden_size, K = p->m->d.num_experts_per_tok;
    for (size_t i = t; i < t + n; i++) {
        float *out = p->x_next + i * D;
        for (size_t k = 0; k < K; k++) k2_kern_axpy(D, a->weight[i * K + k], a->e_out + (size_t)a->place[i * K + k] * D, out);
        k2_kern_add(D, a->x2 + i * D, out);
    }
}

static void tops_begin(k2i_pass *p)
{
    for (uint32_t i = 0; i < k2_kern_team_threads(p->m->team); i++)
        for (uint32_t h = 0; h < p->m->d.num_attention_heads; h++) p->scratch[i].top[h] = -INFINITY;
}

/* Every member of the team has met some rows; a maximum does not mind which. */
static void tops_end(k2i_pass *p)
{
    uint32_t H = p->m->d.num_attention_heads;
    float *top = p->tops + (size_t)p->layer * H;
    memcpy(top, p->scratch[0].top, H * sizeof(float));
    for (uint32_t i = 1; i < k2_kern_team_threads(p->m->team); i++)
        for (uint32_t h = 0; h < H; h++) top[h] = K2_MAX(top[h], p->scratch[i].top[h]);
}

void k2i_layer_fwd(k2i_pass *p, uint32_t layer, k2i_acts *a, float *x_next)
{
    p->layer = layer;
    p->a = a;
    p->x_next = x_next;
    k2_team *team = p->m->team;
    size_t blocks = (p->rows + p->block - 1) / p->block;
    k2_kern_team_run(team, blocks, phase_qk, p);
    if (p->tops) tops_begin(p);
    k2_kern_team_run(team, blocks, phase_rows, p);
    if (p->tops) tops_end(p);
    if (!p->m->layers[layer].moe) return;
    group_by_expert(p);
    k2_kern_team_run(team, p->chunks_count, phase_experts, p);
    k2_kern_team_run(team, blocks, phase_combine, p);
}

/* ---- again ---------------------------------------------------------------------------------------------------------- */

/* Every call is the one of the forward, so every bit is. Expert rows are divided like tokens: the product does not mind whose.
 */
static void phase_refill(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    const k2_model *m = p->m;
    const k2i_layer *l = &m->layers[p->layer];
    k2i_acts *a = p->a;
    size_t n, t = block(p, task, &n), D = m->d.hidden_size, width = l->moe ? m->width_shared : m->d.intermediate_size;
    k2_kern_rmsnorm_fwd(n, D, a->x + t * D, D, m->params + l->off[K2I_W_input_norm], (float)m->d.rms_norm_eps, a->h1 + t * D, D,
                        a->r1 + t);
    queries(p, l, t, n, false);
    absorb_queries(p, l, t, n);
    values(p, l, t, n);
    k2_kern_rmsnorm_fwd(n, D, a->x2 + t * D, D, m->params + l->off[K2I_W_post_norm], (float)m->d.rms_norm_eps, a->h2 + t * D, D,
                        a->r2 + t);
    k2_kern_swiglu_fwd(n * width, a->gate + t * width, a->up + t * width, a->act + t * width);
    if (!l->moe) return;
    size_t KF = (size_t)m->d.num_experts_per_tok * m->d.moe_intermediate_size;
    k2_kern_swiglu_fwd(n * KF, a->e_gate + t * KF, a->e_up + t * KF, a->e_act + t * KF);
}

void k2i_layer_refill(k2i_pass *p, uint32_t layer, k2i_acts *a)
{
    p->layer = layer;
    p->a = a;
    k2_kern_team_run(p->m->team, (p->rows + p->block - 1) / p->block, phase_refill, p);
}
