/* Backward of the second half of a layer: dense or shared feed forward, experts, router, and the norm before them. */
#include "common/model/model_int.h"

#include <string.h>

static const k2i_layer *layer_of(const k2i_back *b)
{
    return &b->p->m->layers[b->p->layer];
}

/* ids of gate, up and down, and the width, of what every row of this layer goes through; width 0: nothing */
static size_t row_ffn(const k2i_back *b, int id[3])
{
    const k2_model *m = b->p->m;
    bool moe = layer_of(b)->moe;
    id[0] = moe ? K2I_W_shared_gate : K2I_W_gate;
    id[1] = moe ? K2I_W_shared_up : K2I_W_up;
    id[2] = moe ? K2I_W_shared_down : K2I_W_down;
    return moe ? m->width_shared : m->d.intermediate_size;
}

/* dh of the rows from the part every row goes through. gate and up turn into their gradients in place. */
static void rows_through(k2i_back *b, size_t t, size_t n, k2i_scratch *s, bool add)
{
    int id[3];
    const k2_model *m = b->p->m;
    const k2i_layer *l = layer_of(b);
    k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size, width = row_ffn(b, id);
    float *dh = b->g->dh + t * D, *gate = a->gate + t * width, *up = a->up + t * width;
    k2i_linear_bwd(l->back[id[2]], D, width, n, b->g->dx + t * D, D, s->wide, width, false);
    k2_kern_swiglu_bwd(n * width, gate, up, s->wide, gate, up);
    k2i_linear_bwd(l->back[id[0]], width, D, n, gate, width, dh, D, add);
    k2i_linear_bwd(l->back[id[1]], width, D, n, up, width, dh, D, true);
}

static void through_jobs(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs)
{
    int id[3];
    const k2_model *m = b->p->m;
    const k2i_layer *l = layer_of(b);
    const k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size, width = row_ffn(b, id);
    const float *h2 = a->h2 + t * D;
    k2i_job_weight(jobs, b->g->flat + l->off[id[0]], width, D, n, a->gate + t * width, width, h2, D);
    k2i_job_weight(jobs, b->g->flat + l->off[id[1]], width, D, n, a->up + t * width, width, h2, D);
    k2i_job_weight(jobs, b->g->flat + l->off[id[2]], D, width, n, b->g->dx + t * D, D, a->act + t * width, width);
}

static void dense_rows(k2i_back *b, size_t t, size_t n, k2i_scratch *s)
{
    rows_through(b, t, n, s, false);
}

/* Rows [t, t+n) may be of several sequences; each needs the loads of all of its own. */
static void balance_rows(k2i_back *b, size_t t, size_t n, k2i_scratch *s)
{
    const k2_router *r = &b->p->m->router;
    const k2i_acts *a = b->p->a;
    size_t end = t + n;
    for (size_t q = 0; t < end; q++) {
        size_t from = b->seq_starts[q], to = b->seq_starts[q + 1], rows = K2_MIN(to, end) - t;
        if (to <= t) continue;
        k2_kern_route_load(r, to - from, a->scores + from * r->experts, s->load);
        k2_kern_route_balance_bwd(r, to - from, b->balance_weight, s->load, rows, a->scores + t * r->experts,
                                  b->g->d_scores + t * r->experts);
        t += rows;
    }
}

/* Router and shared expert. The gradient of a routing weight is the output's gradient along that expert's output. */
static void moe_rows(k2i_back *b, size_t t, size_t n, k2i_scratch *s)
{
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size, E = m->d.n_routed_experts, K = m->d.num_experts_per_tok;
    float *d_weight = b->g->d_weight + t * K, *d_scores = b->g->d_scores + t * E;
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < K; k++) {
            const float *y = a->e_out + (size_t)a->place[(t + i) * K + k] * D;
            d_weight[i * K + k] = k2_kern_dot(D, b->g->dx + (t + i) * D, y);
        }
    }
    k2_kern_route_bwd(&m->router, n, a->scores + t * E, a->index + t * K, d_weight, d_scores);
    if (b->balance_weight > 0) balance_rows(b, t, n, s);
    k2i_linear_bwd(layer_of(b)->back[K2I_W_router], E, D, n, d_scores, E, b->g->dh + t * D, D, false);
    if (m->width_shared) rows_through(b, t, n, s, true);
}

static void moe_jobs(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs)
{
    const k2_model *m = b->p->m;
    size_t D = m->d.hidden_size, E = m->d.n_routed_experts;
    k2i_job *router = k2i_job_weight(jobs, b->g->flat + layer_of(b)->off[K2I_W_router], E, D, n, b->g->d_scores + t * E, E,
                                     b->p->a->h2 + t * D, D);
    router->gemm.bf16 = false;
    if (m->width_shared) through_jobs(b, t, n, jobs);
}

/* Rows [from, from+n) of one expert: its weight gradients, and its input's gradient into e_out, which is not needed any more.
 */
static void expert_rows(k2i_back *b, size_t e, size_t from, size_t n, k2i_scratch *s)
{
    const k2_model *m = b->p->m;
    const k2i_layer *l = layer_of(b);
    k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size, F = m->d.moe_intermediate_size, K = m->d.num_experts_per_tok, at = e * l->expert_stride,
           back = e * l->back_stride;
    float *x = s->rows_a, *dy = s->rows_b, *gate = a->e_gate + from * F, *up = a->e_up + from * F, *dx = a->e_out + from * D;
    for (size_t i = 0; i < n; i++) {
        size_t row = a->row_of[from + i];
        memcpy(x + i * D, a->h2 + row * D, D * sizeof(float));
        k2_kern_scale(D, a->weight[row * K + a->slot_of[from + i]], b->g->dx + row * D, dy + i * D);
    }
    k2i_linear_bwd(k2i_matrix_at(l->back[K2I_W_expert_down], back), D, F, n, dy, D, s->wide, F, false);
    k2_kern_swiglu_bwd(n * F, gate, up, s->wide, gate, up);
    k2i_linear_bwd(k2i_matrix_at(l->back[K2I_W_expert_gate], back), F, D, n, gate, F, dx, D, false);
    k2i_linear_bwd(k2i_matrix_at(l->back[K2I_W_expert_up], back), F, D, n, up, F, dx, D, true);
    k2i_jobs jobs = {.bf16 = k2_compute_is_bf16(m->compute)};
    k2i_job_weight(&jobs, b->g->flat + l->off[K2I_W_expert_gate] + at, F, D, n, gate, F, x, D);
    k2i_job_weight(&jobs, b->g->flat + l->off[K2I_W_expert_up] + at, F, D, n, up, F, x, D);
    k2i_job_weight(&jobs, b->g->flat + l->off[K2I_W_expert_down] + at, D, F, n, dy, D, a->e_act + from * F, F);
    for (size_t i = 0; i < jobs.count; i++) k2_kern_gemm(&jobs.job[i].gemm);
}

/* One expert is one task: its chunks come in order, so the chains of its weights run over its tokens in order. */
static void expert_task(void *arg, size_t task, uint32_t member)
{
    k2i_back *b = arg;
    const uint32_t *starts = b->p->a->starts;
    for (size_t from = starts[task]; from < starts[task + 1]; from += K2I_ROWS) {
        expert_rows(b, task, from, K2_MIN((size_t)K2I_ROWS, starts[task + 1] - from), &b->p->scratch[member]);
    }
}

static k2_rmsnorm_bwd post_norm(k2i_back *b, size_t t, size_t n)
{
    const k2_model *m = b->p->m;
    const k2i_acts *a = b->p->a;
    size_t D = m->d.hidden_size;
    return (k2_rmsnorm_bwd){.rows = n,
                            .width = D,
                            .x = a->x2 + t * D,
                            .ldx = D,
                            .dy = b->g->dh + t * D,
                            .lddy = D,
                            .g = m->params + layer_of(b)->off[K2I_W_post_norm],
                            .r = a->r2 + t,
                            .dx = b->g->dx + t * D,
                            .lddx = D,
                            .dx_add = true};
}

/* Experts' share into dh, best choice first; then through the norm onto the residual stream. */
static void norm_rows(k2i_back *b, size_t t, size_t n, k2i_scratch *s)
{
    (void)s;
    const k2i_acts *a = b->p->a;
    size_t D = b->p->m->d.hidden_size, K = b->p->m->d.num_experts_per_tok;
    for (size_t i = t; layer_of(b)->moe && i < t + n; i++) {
        for (size_t k = 0; k < K; k++) k2_kern_add(D, a->e_out + (size_t)a->place[i * K + k] * D, b->g->dh + i * D);
    }
    k2_rmsnorm_bwd norm = post_norm(b, t, n);
    k2_kern_rmsnorm_bwd(&norm);
}

static void norm_jobs(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs)
{
    k2_rmsnorm_bwd norm = post_norm(b, t, n);
    k2i_job_gain(jobs, &norm, b->g->flat + layer_of(b)->off[K2I_W_post_norm]);
}

void k2i_ffn_bwd(k2i_back *b)
{
    if (layer_of(b)->moe) {
        k2i_phase(b, moe_rows, moe_jobs);
        k2_kern_team_run(b->p->m->team, b->p->m->d.n_routed_experts, expert_task, b);
    } else {
        k2i_phase(b, dense_rows, through_jobs);
    }
    k2i_phase(b, norm_rows, norm_jobs);
}
