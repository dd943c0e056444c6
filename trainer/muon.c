/* muon - momentum, Newton-Schulz, and QK-clip. See muon_int.h. */
#include "trainer/muon_int.h"

#include "common/budget/budget.h"

#include <math.h>
#include <string.h>

#define STEPS 5
#define EPS   1e-7
#define MATCH 0.2 /* brings the update's root mean square to AdamW's usual one */

static const float A = 3.4445f, B = -4.7750f, C = 2.0315f;

typedef struct matrix {
    uint64_t begin, end; /* of it in the flat vector */
    uint64_t rows, cols;
} matrix;

struct k2i_muon {
    uint64_t begin, end;
    matrix *matrices; /* in order of place */
    size_t count;
    float *direction; /* [end - begin] O of the shard */
    float *scratch;   /* [threads, stride]; a whole O, then k2i_muon_scratch of it */
    uint64_t stride;
    k2_team *team;
    const float *whole; /* while the team works */
};

/* ---- birth and death ---- */

static uint64_t stride_of(const k2_model_layout *layout)
{
    uint64_t most = 0;
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        if (p->kind == K2_KIND_MATRIX) most = K2_MAX(most, k2_budget_muon_floats(p->shape.size[0], p->shape.size[1]));
    }
    return most;
}

k2i_muon *k2i_muon_new(const k2_model_layout *layout, uint64_t begin, uint64_t end, uint32_t threads)
{
    k2i_muon *m = k2_alloc(sizeof(*m));
    *m = (k2i_muon){.begin = begin, .end = end, .stride = stride_of(layout)};
    m->matrices = k2_alloc_array(layout->params_count, sizeof(*m->matrices));
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        if (p->kind != K2_KIND_MATRIX || p->offset >= end || p->offset + p->count <= begin) continue;
        m->matrices[m->count++] =
            (matrix){.begin = p->offset, .end = p->offset + p->count, .rows = p->shape.size[0], .cols = p->shape.size[1]};
    }
    m->direction = k2_alloc_array(end - begin, sizeof(float));
    m->scratch = k2_alloc_aligned(64, threads * m->stride * sizeof(float));
    m->team = k2_kern_team_new(threads);
    return m;
}

void k2i_muon_free(k2i_muon *m)
{
    if (!m) return;
    k2_kern_team_free(m->team);
    k2_free(m->scratch);
    k2_free(m->direction);
    k2_free(m->matrices);
    k2_free(m);
}

/* ---- Newton-Schulz ---- */

static void transpose(uint64_t rows, uint64_t cols, const float *x, float *y)
{
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++) y[c * rows + r] = x[r * cols + c];
}

uint64_t k2i_muon_scratch(uint64_t rows, uint64_t cols)
{
    uint64_t least = (K2_MIN(rows, cols) * K2_MIN(rows, cols) + 15) / 16 * 16;
    return 2 * ((rows * cols + 15) / 16 * 16) + 2 * least;
}

/* next [r,k] = A x + (B g + C g g) x with g = x x'. */
static void newton_schulz(uint64_t r, uint64_t k, const float *x, float *next, float *g, float *gg)
{
    k2_kern_gemm(&(k2_gemm){.m = r, .n = r, .k = k, .a = x, .lda = k, .b = x, .ldb = k, .b_form = K2_B_NK, .c = g, .ldc = r});
    k2_kern_gemm(&(k2_gemm){.m = r, .n = r, .k = r, .a = g, .lda = r, .b = g, .ldb = r, .b_form = K2_B_KN, .c = gg, .ldc = r});
    for (uint64_t i = 0; i < r * r; i++) gg[i] = fmaf(C, gg[i], B * g[i]);
    k2_kern_scale(r * k, A, x, next);
    k2_kern_gemm(&(k2_gemm){.m = r,
                            .n = k,
                            .k = r,
                            .a = gg,
                            .lda = r,
                            .b = x,
                            .ldb = k,
                            .b_form = K2_B_KN,
                            .c = next,
                            .ldc = k,
                            .accumulate = true});
}

void k2i_muon_direction(uint64_t rows, uint64_t cols, const float *u, float *out, float *scratch)
{
    uint64_t r = K2_MIN(rows, cols), k = K2_MAX(rows, cols), size = (rows * cols + 15) / 16 * 16;
    float *x = scratch, *next = x + size, *g = next + size, *gg = g + (r * r + 15) / 16 * 16;
    float inverse = (float)(1 / (sqrt(k2_kern_sumsq(rows * cols, u)) + EPS));
    if (rows > cols)
        transpose(rows, cols, u, x);
    else
        memcpy(x, u, rows * cols * sizeof(float));
    k2_kern_scale(rows * cols, inverse, x, x);
    for (int i = 0; i < STEPS; i++) {
        newton_schulz(r, k, x, next, g, gg);
        float *held = x;
        x = next;
        next = held;
    }
    if (rows > cols)
        transpose(r, k, x, out);
    else
        memcpy(out, x, rows * cols * sizeof(float));
}

/* ---- one update ---- */

/* The part of a matrix that is this shard's. */
static k2i_optim_span part_of(const k2i_muon *m, const matrix *x)
{
    return (k2i_optim_span){.begin = K2_MAX(x->begin, m->begin), .end = K2_MIN(x->end, m->end)};
}

static float momentum_of(const k2i_optim_config *config, float m, float g)
{
    return fmaf((float)config->momentum, m, g);
}

void k2i_muon_momentum(const k2i_muon *m, const k2i_optim *o, const k2i_optim_config *config, double scale, const float *grad,
                       float *whole)
{
    for (size_t k = 0; k < m->count; k++) {
        k2i_optim_span part = part_of(m, &m->matrices[k]);
        for (uint64_t i = part.begin; i < part.end; i++) {
            float g = grad[i - m->begin] * (float)scale, next = momentum_of(config, o->m[i - m->begin], g);
            whole[i] = config->nesterov ? momentum_of(config, next, g) : next;
        }
    }
}

static void matrix_task(void *arg, size_t task, uint32_t member)
{
    k2i_muon *m = arg;
    const matrix *x = &m->matrices[task];
    k2i_optim_span part = part_of(m, x);
    float *out = m->scratch + member * m->stride, *scratch = out + (x->end - x->begin + 15) / 16 * 16;
    k2i_muon_direction(x->rows, x->cols, m->whole + x->begin, out, scratch);
    memcpy(m->direction + (part.begin - m->begin), out + (part.begin - x->begin), (part.end - part.begin) * sizeof(float));
}

void k2i_muon_orthogonalise(k2i_muon *m, const float *whole)
{
    m->whole = whole;
    k2_kern_team_run(m->team, m->count, matrix_task, m);
}

typedef struct step {
    float keep, step; /* p' = p - keep p - step O */
} step;

static step step_of(const matrix *x, const k2i_optim_config *config, double lr)
{
    return (step){.keep = (float)(lr * config->weight_decay),
                  .step = (float)(lr * MATCH * sqrt((double)K2_MAX(x->rows, x->cols)))};
}

static float step_make(step s, float param, float direction)
{
    float kept = param - s.keep * param;
    return kept - s.step * direction;
}

uint64_t k2i_muon_spoils(const k2i_muon *m, const k2i_optim *o, const k2i_optim_config *config, double lr, double scale,
                         const float *grad, const float *params)
{
    for (size_t k = 0; k < m->count; k++) {
        k2i_optim_span part = part_of(m, &m->matrices[k]);
        step s = step_of(&m->matrices[k], config, lr);
        for (uint64_t i = part.begin, at = i - m->begin; i < part.end; i++, at++) {
            float p = step_make(s, params[i], m->direction[at]);
            if (!isfinite(p) || !isfinite(momentum_of(config, o->m[at], grad[at] * (float)scale))) return i;
        }
    }
    return K2I_SPOILS_NONE;
}

void k2i_muon_apply(const k2i_muon *m, k2i_optim *o, const k2i_optim_config *config, double lr, double scale, const float *grad,
                    float *params)
{
    for (size_t k = 0; k < m->count; k++) {
        k2i_optim_span part = part_of(m, &m->matrices[k]);
        step s = step_of(&m->matrices[k], config, lr);
        for (uint64_t i = part.begin, at = i - m->begin; i < part.end; i++, at++) {
            o->m[at] = momentum_of(config, o->m[at], grad[at] * (float)scale);
            params[i] = step_make(s, params[i], m->direction[at]);
        }
    }
}

/* ---- QK-clip ---- */

static bool named(const k2_param *p, const char *end)
{
    size_t n = strlen(p->name), k = strlen(end);
    return n >= k && strcmp(p->name + n - k, end) == 0;
}

/* Rows [from, from + count) of a matrix by a factor. */
static void rows_scale(const k2_param *p, uint64_t from, uint64_t count, double factor, float *params)
{
    float *row = params + p->offset + from * p->shape.size[1];
    k2_kern_scale(count * p->shape.size[1], (float)factor, row, row);
}

uint32_t k2i_qk_clip(const k2_dims *dims, const k2_model_layout *layout, const double *tops, double tau, float *params)
{
    uint64_t H = dims->num_attention_heads, N = dims->qk_nope_head_dim, R = dims->qk_rope_head_dim, U = dims->v_head_dim;
    uint32_t clipped = 0;
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        bool q = named(p, "self_attn.q_proj.weight") || named(p, "self_attn.q_b_proj.weight");
        if (!q && !named(p, "self_attn.kv_b_proj.weight")) continue;
        for (uint64_t h = 0; h < H; h++) {
            double top = tops[(uint64_t)p->layer * H + h], gamma = tau / top;
            if (!(top > tau)) continue;
            rows_scale(p, h * (N + (q ? R : U)), N, sqrt(gamma), params);
            if (q) rows_scale(p, h * (N + R) + N, R, gamma, params);
            clipped += q;
        }
    }
    return clipped;
}
