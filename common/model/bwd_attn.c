/* Backward of the first half of a layer: output projection, latent attention, queries, keys, and the norm before them. */
#include "common/model/model_int.h"

#include <string.h>

static const k2i_layer *layer_of(const k2i_back *b)
{
    return &b->p->m->layers[b->p->layer];
}

/* ---- from the residual stream to the latent outputs of the heads -------------------------------------------------- */

static void out_rows(k2i_back *b, size_t t, size_t n, k2i_scratch *s)
{
    (void)s;
    const k2_model *m = b->p->m;
    const k2i_layer *l = layer_of(b);
    size_t H = m->attn.heads, C = m->attn.latent, U = m->d.v_head_dim, D = m->d.hidden_size;
    float *d_o = b->g->d_o + t * H * U, *d_olat = b->g->d_olat + t * H * C;
    k2i_linear_bwd(l->back[K2I_W_o], D, H * U, n, b->g->dx + t * D, D, d_o, H * U, false);
    for (size_t h = 0; h < H; h++) {
        k2i_linear_bwd(k2i_matrix_at(l->uv_back, h * m->uv_back_stride), U, C, n, d_o + h * U, H * U, d_olat + h * C, H * C,
                       false);
    }
}

static void out_jobs(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs)
{
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t H = m->attn.heads, C = m->attn.latent, U = m->d.v_head_dim, N = m->d.qk_nope_head_dim, D = m->d.hidden_size;
    float *d_o = b->g->d_o + t * H * U, *d_kvb = b->g->flat + layer_of(b)->off[K2I_W_kv_b];
    k2i_job_weight(jobs, b->g->flat + layer_of(b)->off[K2I_W_o], D, H * U, n, b->g->dx + t * D, D, a->o + t * H * U, H * U);
    k2i_job *uv = k2i_job_weight(jobs, d_kvb + N * C, U, C, n, d_o, H * U, a->o_lat + t * H * C, H * C);
    uv->repeat = H;
    uv->a_step = U;
    uv->b_step = C;
    uv->c_step = (N + U) * C;
}

/* ---- attention ---------------------------------------------------------------------------------------------------- */

/* One sequence: its keys collect from its rows in order. */
static void seq_task(void *arg, size_t task, uint32_t member)
{
    k2i_back *b = arg;
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t H = m->attn.heads, C = m->attn.latent, W = m->attn.width;
    const uint32_t *seq = b->seq_starts + task;
    k2_keys keys = {.base = a->key + seq[0] * W, .page_tokens = m->d.max_position_embeddings};
    memset(b->g->d_key + seq[0] * W, 0, (seq[1] - seq[0]) * W * sizeof(float));
    for (size_t t = seq[0]; t < seq[1]; t++) {
        k2_kern_attn_bwd(&m->attn, &keys, t - seq[0] + 1, a->qcat + t * H * W, b->g->d_olat + t * H * C,
                         b->g->d_qcat + t * H * W, b->g->d_key + seq[0] * W, b->p->scratch[member].attn);
    }
}

/* ---- queries and keys --------------------------------------------------------------------------------------------- */

/* d_q from the gradient of [latent | rotated]: back through W_uk, and turned back. */
static void unabsorb(k2i_back *b, size_t t, size_t n)
{
    const k2_model *m = b->p->m;
    size_t H = m->attn.heads, C = m->attn.latent, W = m->attn.width, N = m->d.qk_nope_head_dim, R = m->d.qk_rope_head_dim;
    size_t wq = m->width_q;
    float *d_q = b->g->d_q + t * wq, *d_qcat = b->g->d_qcat + t * H * W;
    for (size_t h = 0; h < H; h++) {
        k2i_linear(k2i_matrix_at(layer_of(b)->uk_nk, h * m->ukt_stride), N, C, n, d_qcat + h * W, H * W, d_q + h * (N + R), wq);
    }
    for (size_t i = 0; i < n; i++) {
        float *row = d_q + i * wq;
        for (size_t h = 0; h < H; h++) memcpy(row + h * (N + R) + N, d_qcat + (i * H + h) * W + C, R * sizeof(float));
        k2_kern_rope(row + N, H, N + R, R, m->rope + (size_t)b->p->position[t + i] * R, true);
    }
}

static k2_rmsnorm_bwd q_norm(k2i_back *b, size_t t, size_t n)
{
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t Q = m->d.q_lora_rank;
    return (k2_rmsnorm_bwd){.rows = n,
                            .width = Q,
                            .x = a->qa + t * Q,
                            .ldx = Q,
                            .dy = b->g->d_qan + t * Q,
                            .lddy = Q,
                            .g = m->params + layer_of(b)->off[K2I_W_q_a_norm],
                            .r = a->rqa + t,
                            .dx = b->g->d_qa + t * Q,
                            .lddx = Q};
}

static k2_rmsnorm_bwd kv_norm(k2i_back *b, size_t t, size_t n)
{
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t W = m->attn.width, wkv = m->width_kv;
    return (k2_rmsnorm_bwd){.rows = n,
                            .width = m->attn.latent,
                            .x = a->kva + t * wkv,
                            .ldx = wkv,
                            .dy = b->g->d_key + t * W,
                            .lddy = W,
                            .g = m->params + layer_of(b)->off[K2I_W_kv_a_norm],
                            .r = a->rkv + t,
                            .dx = b->g->d_kva + t * wkv,
                            .lddx = wkv};
}

static k2_rmsnorm_bwd input_norm(k2i_back *b, size_t t, size_t n)
{
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size;
    return (k2_rmsnorm_bwd){.rows = n,
                            .width = D,
                            .x = a->x + t * D,
                            .ldx = D,
                            .dy = b->g->dh + t * D,
                            .lddy = D,
                            .g = m->params + layer_of(b)->off[K2I_W_input_norm],
                            .r = a->r1 + t,
                            .dx = b->g->dx + t * D,
                            .lddx = D,
                            .dx_add = true};
}

static void in_rows(k2i_back *b, size_t t, size_t n, k2i_scratch *s)
{
    (void)s;
    const k2_model *m = b->p->m;
    const k2i_layer *l = layer_of(b);
    size_t D = m->d.hidden_size, Q = m->d.q_lora_rank, C = m->attn.latent, R = m->d.qk_rope_head_dim, W = m->attn.width;
    size_t wq = m->width_q, wkv = m->width_kv;
    float *dh = b->g->dh + t * D, *d_kva = b->g->d_kva + t * wkv;
    unabsorb(b, t, n);
    if (Q) {
        k2i_linear_bwd(l->back[K2I_W_q_b], wq, Q, n, b->g->d_q + t * wq, wq, b->g->d_qan + t * Q, Q, false);
        k2_rmsnorm_bwd norm = q_norm(b, t, n);
        k2_kern_rmsnorm_bwd(&norm);
        k2i_linear_bwd(l->back[K2I_W_q_a], Q, D, n, b->g->d_qa + t * Q, Q, dh, D, false);
    } else {
        k2i_linear_bwd(l->back[K2I_W_q], wq, D, n, b->g->d_q + t * wq, wq, dh, D, false);
    }
    k2_rmsnorm_bwd norm = kv_norm(b, t, n);
    k2_kern_rmsnorm_bwd(&norm);
    for (size_t i = 0; i < n; i++) {
        memcpy(d_kva + i * wkv + C, b->g->d_key + (t + i) * W + C, R * sizeof(float));
        k2_kern_rope(d_kva + i * wkv + C, 1, wkv, R, m->rope + (size_t)b->p->position[t + i] * R, true);
    }
    k2i_linear_bwd(l->back[K2I_W_kv_a], wkv, D, n, d_kva, wkv, dh, D, true);
    norm = input_norm(b, t, n);
    k2_kern_rmsnorm_bwd(&norm);
}

static void in_jobs(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs)
{
    const k2_model *m = b->p->m;
    const k2i_layer *l = layer_of(b);
    const k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size, Q = m->d.q_lora_rank, N = m->d.qk_nope_head_dim, R = m->d.qk_rope_head_dim,
           U = m->d.v_head_dim;
    size_t H = m->attn.heads, C = m->attn.latent, W = m->attn.width, wq = m->width_q, wkv = m->width_kv;
    float *flat = b->g->flat;
    const float *h1 = a->h1 + t * D, *d_q = b->g->d_q + t * wq;
    k2i_job *uk = k2i_job_weight(jobs, flat + l->off[K2I_W_kv_b], N, C, n, a->q + t * wq, wq, b->g->d_qcat + t * H * W, H * W);
    uk->repeat = H;
    uk->a_step = N + R;
    uk->b_step = W;
    uk->c_step = (N + U) * C;
    k2_rmsnorm_bwd norm;
    if (Q) {
        k2i_job_weight(jobs, flat + l->off[K2I_W_q_b], wq, Q, n, d_q, wq, a->qan + t * Q, Q);
        k2i_job_weight(jobs, flat + l->off[K2I_W_q_a], Q, D, n, b->g->d_qa + t * Q, Q, h1, D);
        norm = q_norm(b, t, n);
        k2i_job_gain(jobs, &norm, flat + l->off[K2I_W_q_a_norm]);
    } else {
        k2i_job_weight(jobs, flat + l->off[K2I_W_q], wq, D, n, d_q, wq, h1, D);
    }
    k2i_job_weight(jobs, flat + l->off[K2I_W_kv_a], wkv, D, n, b->g->d_kva + t * wkv, wkv, h1, D);
    norm = kv_norm(b, t, n);
    k2i_job_gain(jobs, &norm, flat + l->off[K2I_W_kv_a_norm]);
    norm = input_norm(b, t, n);
    k2i_job_gain(jobs, &norm, flat + l->off[K2I_W_input_norm]);
}

void k2i_attn_bwd(k2i_back *b)
{
    k2i_phase(b, out_rows, out_jobs);
    k2_kern_team_run(b->p->m->team, b->seqs_count, seq_task, b);
    k2i_phase(b, in_rows, in_jobs);
}
