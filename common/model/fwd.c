/* One layer forward, for trainer and decoder alike. Its steps take rows [t, t+n) and a share of the columns or heads; tasks are
 * blocks of rows that go through several steps, or, where rows are few, shares of one step.
 */
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

/* What a task does of its rows' columns or heads: part `part` of `parts`. */
typedef struct share {
    size_t part, parts;
} share;

static const share whole = {0, 1};

static k2_range columns(size_t n, share s)
{
    return k2_kern_share(n, K2_PANEL_COLUMNS, s.parts, s.part);
}

/* Heads, as many together as begin at a whole panel of the queries. */
static k2_range heads(const k2_model *m, share s)
{
    size_t width = m->d.qk_nope_head_dim + m->d.qk_rope_head_dim, together = 1;
    while (together * width % K2_PANEL_COLUMNS != 0) together *= 2;
    return k2_kern_share(m->attn.heads, together, s.parts, s.part);
}

/* ---- steps: queries and keys ------------------------------------------------------------------------------------- */

static void input_norm(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    size_t D = m->d.hidden_size;
    k2_kern_rmsnorm_fwd(n, D, p->a->x + t * D, D, m->params + l->off[K2I_W_input_norm], (float)m->d.rms_norm_eps,
                        p->a->h1 + t * D, D, p->a->r1 + t);
}

/* Queries and keys before their norms. */
static void low_rank(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, share s)
{
    const k2_model *m = p->m;
    size_t D = m->d.hidden_size, Q = m->d.q_lora_rank, wkv = m->width_kv;
    const float *h1 = p->a->h1 + t * D;
    if (Q) k2i_linear_cols(l->pack[K2I_W_q_a], columns(Q, s), D, n, h1, D, p->a->qa + t * Q, Q);
    k2i_linear_cols(l->pack[K2I_W_kv_a], columns(wkv, s), D, n, h1, D, p->a->kva + t * wkv, wkv);
}

static void query_norm(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    size_t Q = p->m->d.q_lora_rank;
    if (Q == 0) return;
    k2_kern_rmsnorm_fwd(n, Q, p->a->qa + t * Q, Q, p->m->params + l->off[K2I_W_q_a_norm], (float)K2_LORA_NORM_EPS,
                        p->a->qan + t * Q, Q, p->a->rqa + t);
}

static void keys(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    size_t C = m->d.kv_lora_rank, R = m->d.qk_rope_head_dim, W = m->attn.width, wkv = m->width_kv;
    float *kva = p->a->kva + t * wkv, *key = p->a->key + t * W;
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

/* q_nope times W_uk, beside it the rotated part: a query against cached keys [latent | rotated]. */
static void absorb_queries(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, k2_range h)
{
    const k2_model *m = p->m;
    const k2_dims *d = &m->d;
    size_t N = d->qk_nope_head_dim, R = d->qk_rope_head_dim, C = d->kv_lora_rank, H = d->num_attention_heads;
    size_t W = m->attn.width, wq = m->width_q;
    const float *q = p->a->q + t * wq;
    float *qcat = p->a->qcat + t * H * W;
    for (size_t i = h.from; i < h.to; i++)
        k2i_linear(k2i_matrix_at(l->uk_kn, i * m->uk_stride), C, N, n, q + i * (N + R), wq, qcat + i * W, H * W);
    for (size_t r = 0; r < n; r++) {
        float *row = qcat + r * H * W;
        for (size_t i = h.from; i < h.to; i++) {
            memcpy(row + i * W + C, q + r * wq + i * (N + R) + N, R * sizeof(float));
            memset(row + i * W + C + R, 0, (W - C - R) * sizeof(float));
        }
        k2_kern_rope(row + h.from * W + C, h.to - h.from, W, R, rope_row(m, p->position[t + r]), false);
    }
}

static void queries(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, k2_range h)
{
    const k2_model *m = p->m;
    const k2i_acts *a = p->a;
    size_t D = m->d.hidden_size, Q = m->d.q_lora_rank, wq = m->width_q, each = wq / m->attn.heads;
    k2_range cols = {h.from * each, h.to * each};
    if (Q)
        k2i_linear_cols(l->pack[K2I_W_q_b], cols, Q, n, a->qan + t * Q, Q, a->q + t * wq, wq);
    else
        k2i_linear_cols(l->pack[K2I_W_q], cols, D, n, a->h1 + t * D, D, a->q + t * wq, wq);
    absorb_queries(p, l, t, n, h);
}

/* ---- steps: attention and what every row goes through ------------------------------------------------------------- */

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
static void values(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, k2_range h)
{
    const k2_model *m = p->m;
    size_t H = m->attn.heads, C = m->attn.latent, U = m->d.v_head_dim;
    float *o = p->a->o + t * H * U;
    for (size_t i = h.from; i < h.to; i++)
        k2i_linear(k2i_matrix_at(l->uv_nk, i * m->uv_stride), U, C, n, p->a->o_lat + (t * H + i) * C, H * C, o + i * U, H * U);
}

static void attention(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, k2_range h, k2i_scratch *s)
{
    const k2_model *m = p->m;
    k2_attn some = m->attn;
    size_t H = m->attn.heads, C = m->attn.latent, W = m->attn.width;
    some.heads = h.to - h.from;
    for (size_t i = t; i < t + n; i++) {
        k2_keys keys = keys_of_row(p, i);
        keys.top = p->tops ? s->top + h.from : NULL;
        k2_kern_attn_fwd(&some, &keys, p->position[i] + 1u, p->a->qcat + (i * H + h.from) * W,
                         p->a->o_lat + (i * H + h.from) * C, s->attn);
    }
    values(p, l, t, n, h);
}

/* y += x on some columns. */
static void add_columns(k2_range cols, size_t rows, size_t width, const float *x, float *y)
{
    for (size_t i = 0; i < rows; i++) k2_kern_add(cols.to - cols.from, x + i * width + cols.from, y + i * width + cols.from);
}

static void output(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, share s)
{
    const k2_model *m = p->m;
    size_t HU = m->attn.heads * m->d.v_head_dim, D = m->d.hidden_size;
    k2_range cols = columns(D, s);
    float *x2 = p->a->x2 + t * D;
    k2i_linear_cols(l->pack[K2I_W_o], cols, HU, n, p->a->o + t * HU, HU, x2, D);
    add_columns(cols, n, D, p->a->x + t * D, x2);
}

static void post_norm(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    size_t D = m->d.hidden_size;
    k2_kern_rmsnorm_fwd(n, D, p->a->x2 + t * D, D, m->params + l->off[K2I_W_post_norm], (float)m->d.rms_norm_eps,
                        p->a->h2 + t * D, D, p->a->r2 + t);
}

/* Width of what every row goes through: the dense network, or the shared experts, which there may be none of. */
static size_t row_width(const k2_model *m, const k2i_layer *l)
{
    return l->moe ? m->width_shared : m->d.intermediate_size;
}

/* act = silu(gate) * up on some columns of `width`. */
static void swiglu_columns(k2_range cols, size_t rows, size_t width, const float *gate, const float *up, float *act)
{
    for (size_t i = 0; i < rows; i++) {
        size_t at = i * width + cols.from;
        k2_kern_swiglu_fwd(cols.to - cols.from, gate + at, up + at, act + at);
    }
}

/* The router's logits, and of dense or shared experts gate, up and their product. */
static void widen(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, share s)
{
    const k2_model *m = p->m;
    k2i_acts *a = p->a;
    size_t D = m->d.hidden_size, E = m->d.n_routed_experts, width = row_width(m, l);
    const float *h2 = a->h2 + t * D;
    if (l->moe) k2i_linear_cols(l->pack[K2I_W_router], columns(E, s), D, n, h2, D, a->scores + t * E, E);
    if (width == 0) return;
    k2_range cols = columns(width, s);
    float *gate = a->gate + t * width, *up = a->up + t * width;
    k2i_linear_cols(l->pack[l->moe ? K2I_W_shared_gate : K2I_W_gate], cols, D, n, h2, D, gate, width);
    k2i_linear_cols(l->pack[l->moe ? K2I_W_shared_up : K2I_W_up], cols, D, n, h2, D, up, width);
    swiglu_columns(cols, n, width, gate, up, a->act + t * width);
}

static void choose_experts(k2i_pass *p, const k2i_layer *l, size_t t, size_t n)
{
    const k2_model *m = p->m;
    size_t E = m->d.n_routed_experts, K = m->d.num_experts_per_tok;
    float *scores = p->a->scores + t * E;
    k2_kern_route_fwd(&m->router, n, scores, m->params + l->off[K2I_W_router_bias], scores, p->a->index + t * K,
                      p->a->weight + t * K);
}

/* x_next = down of dense or shared; of the dense one that is the layer's output but for x2. */
static void narrow(k2i_pass *p, const k2i_layer *l, size_t t, size_t n, share s)
{
    const k2_model *m = p->m;
    size_t D = m->d.hidden_size, width = row_width(m, l);
    k2_range cols = columns(D, s);
    float *out = p->x_next + t * D;
    if (width) {
        k2i_linear_cols(l->pack[l->moe ? K2I_W_shared_down : K2I_W_down], cols, width, n, p->a->act + t * width, width, out, D);
    } else {
        for (size_t i = 0; i < n; i++) memset(out + i * D + cols.from, 0, (cols.to - cols.from) * sizeof(float));
    }
    if (!l->moe) add_columns(cols, n, D, p->a->x2 + t * D, out);
}

/* ---- steps: experts ------------------------------------------------------------------------------------------------------ */

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

typedef struct chunk {
    size_t expert, from, n; /* expert rows [from, from+n) */
} chunk;

static chunk chunk_of(const k2i_pass *p, size_t i)
{
    size_t e = p->chunks[2 * i], from = p->chunks[2 * i + 1];
    return (chunk){e, from, K2_MIN((size_t)K2I_ROWS, p->a->starts[e + 1] - from)};
}

static void expert_widen(k2i_pass *p, const k2i_layer *l, chunk c, share s, k2i_scratch *mem)
{
    k2i_acts *a = p->a;
    size_t D = p->m->d.hidden_size, F = p->m->d.moe_intermediate_size, panels = c.expert * l->pack_stride;
    k2_range cols = columns(F, s);
    float *x = mem->rows_a, *gate = a->e_gate + c.from * F, *up = a->e_up + c.from * F;
    for (size_t i = 0; i < c.n; i++) memcpy(x + i * D, a->h2 + (size_t)a->row_of[c.from + i] * D, D * sizeof(float));
    k2i_linear_cols(k2i_matrix_at(l->pack[K2I_W_expert_gate], panels), cols, D, c.n, x, D, gate, F);
    k2i_linear_cols(k2i_matrix_at(l->pack[K2I_W_expert_up], panels), cols, D, c.n, x, D, up, F);
    swiglu_columns(cols, c.n, F, gate, up, a->e_act + c.from * F);
}

static void expert_narrow(k2i_pass *p, const k2i_layer *l, chunk c, share s)
{
    k2i_acts *a = p->a;
    size_t D = p->m->d.hidden_size, F = p->m->d.moe_intermediate_size;
    k2i_linear_cols(k2i_matrix_at(l->pack[K2I_W_expert_down], c.expert * l->pack_stride), columns(D, s), F, c.n,
                    a->e_act + c.from * F, F, a->e_out + c.from * D, D);
}

/* x_next = x2 + (shared + w_1 y_1 + w_2 y_2 ...), choices best first: the order depends on the token alone. */
static void combine(k2i_pass *p, size_t t, size_t n)
{
    k2i_acts *a = p->a;
    size_t D = p->m->d.hidden_size, K = p->m->d.num_experts_per_tok;
    for (size_t i = t; i < t + n; i++) {
        float *out = p->x_next + i * D;
        for (size_t k = 0; k < K; k++) k2_kern_axpy(D, a->weight[i * K + k], a->e_out + (size_t)a->place[i * K + k] * D, out);
        k2_kern_add(D, a->x2 + i * D, out);
    }
}

/* ---- by rows -------------------------------------------------------------------------------------------------------- */

static k2i_layer *layer_of(const k2i_pass *p)
{
    return &p->m->layers[p->layer];
}

static void phase_qk(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    const k2i_layer *l = layer_of(p);
    size_t n, t = block(p, task, &n);
    input_norm(p, l, t, n);
    low_rank(p, l, t, n, whole);
    query_norm(p, l, t, n);
    queries(p, l, t, n, heads(p->m, whole));
    keys(p, l, t, n);
}

static void phase_rows(void *arg, size_t task, uint32_t member)
{
    k2i_pass *p = arg;
    const k2i_layer *l = layer_of(p);
    size_t n, t = block(p, task, &n);
    attention(p, l, t, n, heads(p->m, whole), &p->scratch[member]);
    output(p, l, t, n, whole);
    post_norm(p, l, t, n);
    widen(p, l, t, n, whole);
    if (l->moe) choose_experts(p, l, t, n);
    narrow(p, l, t, n, whole);
}

static void phase_experts(void *arg, size_t task, uint32_t member)
{
    k2i_pass *p = arg;
    chunk c = chunk_of(p, task);
    expert_widen(p, layer_of(p), c, whole, &p->scratch[member]);
    expert_narrow(p, layer_of(p), c, whole);
}

static void phase_combine(void *arg, size_t task, uint32_t member)
{
    (void)member;
    size_t n, t = block(arg, task, &n);
    combine(arg, t, n);
}

static void layer_by_rows(k2i_pass *p)
{
    k2_team *team = p->m->team;
    size_t blocks = (p->rows + p->block - 1) / p->block;
    k2_kern_team_run(team, blocks, phase_qk, p);
    k2_kern_team_run(team, blocks, phase_rows, p);
    if (!layer_of(p)->moe) return;
    group_by_expert(p);
    k2_kern_team_run(team, p->chunks_count, phase_experts, p);
    k2_kern_team_run(team, blocks, phase_combine, p);
}

/* ---- by columns ----------------------------------------------------------------------------------------------------- */

static share share_of(const k2i_pass *p, size_t task)
{
    size_t threads = k2_kern_team_threads(p->m->team);
    return (share){task % threads, threads};
}

static void few_low_rank(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    low_rank(p, layer_of(p), 0, p->rows, share_of(p, task));
}

static void few_heads(void *arg, size_t task, uint32_t member)
{
    k2i_pass *p = arg;
    k2_range h = heads(p->m, share_of(p, task));
    if (h.from == h.to) return;
    queries(p, layer_of(p), 0, p->rows, h);
    attention(p, layer_of(p), 0, p->rows, h, &p->scratch[member]);
}

static void few_output(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    output(p, layer_of(p), 0, p->rows, share_of(p, task));
}

static void few_widen(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    widen(p, layer_of(p), 0, p->rows, share_of(p, task));
}

static void few_narrow(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    narrow(p, layer_of(p), 0, p->rows, share_of(p, task));
}

/* Shares of the shared experts' output, then whole experts. */
static void few_experts(void *arg, size_t task, uint32_t member)
{
    k2i_pass *p = arg;
    size_t threads = k2_kern_team_threads(p->m->team);
    if (task < threads)
        few_narrow(p, task, member);
    else
        phase_experts(p, task - threads, member);
}

/* The same with shares of each expert, in two phases, where there are fewer experts than threads. */
static void few_experts_widen(void *arg, size_t task, uint32_t member)
{
    k2i_pass *p = arg;
    size_t threads = k2_kern_team_threads(p->m->team);
    if (task < threads)
        few_narrow(p, task, member);
    else
        expert_widen(p, layer_of(p), chunk_of(p, task / threads - 1), share_of(p, task), &p->scratch[member]);
}

static void few_experts_narrow(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    expert_narrow(p, layer_of(p), chunk_of(p, task / k2_kern_team_threads(p->m->team)), share_of(p, task));
}

static void layer_by_columns(k2i_pass *p)
{
    k2_team *team = p->m->team;
    const k2i_layer *l = layer_of(p);
    size_t threads = k2_kern_team_threads(team);
    input_norm(p, l, 0, p->rows);
    k2_kern_team_run(team, threads, few_low_rank, p);
    query_norm(p, l, 0, p->rows);
    keys(p, l, 0, p->rows);
    k2_kern_team_run(team, threads, few_heads, p);
    k2_kern_team_run(team, threads, few_output, p);
    post_norm(p, l, 0, p->rows);
    k2_kern_team_run(team, threads, few_widen, p);
    if (!l->moe) {
        k2_kern_team_run(team, threads, few_narrow, p);
        return;
    }
    choose_experts(p, l, 0, p->rows);
    group_by_expert(p);
    if (p->chunks_count >= threads) {
        k2_kern_team_run(team, threads + p->chunks_count, few_experts, p);
    } else {
        k2_kern_team_run(team, threads * (1 + p->chunks_count), few_experts_widen, p);
        k2_kern_team_run(team, threads * p->chunks_count, few_experts_narrow, p);
    }
    combine(p, 0, p->rows);
}

/* ---- layers --------------------------------------------------------------------------------------------------------- */

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
    if (p->tops) tops_begin(p);
    if (p->few)
        layer_by_columns(p);
    else
        layer_by_rows(p);
    if (p->tops) tops_end(p);
}

/* ---- again ---------------------------------------------------------------------------------------------------------- */

/* Every call is the one of the forward, so every bit is. Expert rows are divided like tokens: the product does not mind whose.
 */
static void phase_refill(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2i_pass *p = arg;
    const k2_model *m = p->m;
    const k2i_layer *l = layer_of(p);
    k2i_acts *a = p->a;
    size_t n, t = block(p, task, &n), width = row_width(m, l);
    input_norm(p, l, t, n);
    query_norm(p, l, t, n);
    queries(p, l, t, n, heads(m, whole));
    values(p, l, t, n, heads(m, whole));
    post_norm(p, l, t, n);
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
