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
    matrix *matrices; /* large ones first, each kind in order of place */
    size_t count;
    size_t large;     /* of them: the first so many are computed by all threads together, the others by one thread each */
    float *direction; /* [end - begin] O of the shard */
    float *scratch;   /* of one large matrix, or [threads, stride] of small ones: a whole O, then k2i_muon_scratch of it */
    uint64_t stride;
    k2_team *team;
    const float *whole; /* while the team works */
};

/* ---- birth and death ---- */

/* Adds those of one kind that touch the shard. */
static void matrices_add(k2i_muon *m, const k2_model_layout *layout, bool large)
{
    for (size_t i = 0; i < layout->params_count; i++) {
        const k2_param *p = &layout->params[i];
        if (p->kind != K2_KIND_MATRIX || p->offset >= m->end || p->offset + p->count <= m->begin) continue;
        matrix x = {.begin = p->offset, .end = p->offset + p->count, .rows = p->shape.size[0], .cols = p->shape.size[1]};
        if (k2_budget_muon_large(x.rows, x.cols) == large) m->matrices[m->count++] = x;
    }
}

k2i_muon *k2i_muon_new(const k2_model_layout *layout, uint64_t begin, uint64_t end, uint32_t threads)
{
    k2i_muon *m = k2_alloc(sizeof(*m));
    *m = (k2i_muon){.begin = begin, .end = end};
    m->matrices = k2_alloc_array(layout->params_count, sizeof(*m->matrices));
    matrices_add(m, layout, true);
    m->large = m->count;
    matrices_add(m, layout, false);
    m->direction = k2_alloc_array(end - begin, sizeof(float));
    m->scratch = k2_alloc_aligned(64, k2_budget_muon_floats(layout, threads, &m->stride) * sizeof(float));
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

uint64_t k2i_muon_scratch(uint64_t rows, uint64_t cols)
{
    uint64_t least = (K2_MIN(rows, cols) * K2_MIN(rows, cols) + 15) / 16 * 16;
    return 2 * ((rows * cols + 15) / 16 * 16) + 2 * least;
}

/* One phase of the work on a matrix, cut into parts that any thread may take. */
typedef struct phase {
    void (*part)(const struct phase *p, size_t part);
    size_t parts;
    uint64_t r, k;
    const float *from; /* transpose: [r,k] */
    float *to;         /* and what it becomes [k,r] */
    const float *x;    /* [r,k] */
    float *next, *g, *gg;
} phase;

static void phase_task(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const phase *p = arg;
    p->part(p, task);
}

static void phase_run(phase *p, k2_team *team, void (*part)(const phase *p, size_t part))
{
    p->part = part;
    p->parts = team ? k2_kern_team_threads(team) : 1;
    if (team)
        k2_kern_team_run(team, p->parts, phase_task, p);
    else
        part(p, 0);
}

static void transpose_part(const phase *p, size_t part)
{
    k2_range rows = k2_kern_share(p->r, 16, p->parts, part);
    for (uint64_t r = rows.from; r < rows.to; r++)
        for (uint64_t c = 0; c < p->k; c++) p->to[c * p->r + r] = p->from[r * p->k + c];
}

/* g = x x' */
static void square_part(const phase *p, size_t part)
{
    uint64_t r = p->r, k = p->k;
    k2_kern_gemm_part(
        &(k2_gemm){.m = r, .n = r, .k = k, .a = p->x, .lda = k, .b = p->x, .ldb = k, .b_form = K2_B_NK, .c = p->g, .ldc = r},
        p->parts, part);
}

/* gg = B g + C g g */
static void quartic_part(const phase *p, size_t part)
{
    uint64_t r = p->r;
    k2_part in = k2_kern_part(r, r, p->parts, part);
    k2_kern_gemm_part(
        &(k2_gemm){.m = r, .n = r, .k = r, .a = p->g, .lda = r, .b = p->g, .ldb = r, .b_form = K2_B_KN, .c = p->gg, .ldc = r},
        p->parts, part);
    for (uint64_t i = in.m0; i < in.m0 + in.m; i++)
        for (uint64_t j = i * r + in.n0; j < i * r + in.n0 + in.n; j++) p->gg[j] = fmaf(C, p->gg[j], B * p->g[j]);
}

/* next = A x + gg x */
static void apply_part(const phase *p, size_t part)
{
    uint64_t r = p->r, k = p->k;
    k2_part in = k2_kern_part(r, k, p->parts, part);
    for (uint64_t i = in.m0; i < in.m0 + in.m; i++) k2_kern_scale(in.n, A, p->x + i * k + in.n0, p->next + i * k + in.n0);
    k2_kern_gemm_part(&(k2_gemm){.m = r,
                                 .n = k,
                                 .k = r,
                                 .a = p->gg,
                                 .lda = r,
                                 .b = p->x,
                                 .ldb = k,
                                 .b_form = K2_B_KN,
                                 .c = p->next,
                                 .ldc = k,
                                 .accumulate = true},
                      p->parts, part);
}

static void transpose(uint64_t rows, uint64_t cols, const float *from, float *to, k2_team *team)
{
    phase p = {.r = rows, .k = cols, .from = from, .to = to};
    phase_run(&p, team, transpose_part);
}

void k2i_muon_direction(uint64_t rows, uint64_t cols, const float *u, float *out, float *scratch, k2_team *team)
{
    uint64_t r = K2_MIN(rows, cols), k = K2_MAX(rows, cols), size = (rows * cols + 15) / 16 * 16;
    float *x = scratch, *next = x + size, *g = next + size, *gg = g + (r * r + 15) / 16 * 16;
    float inverse = (float)(1 / (sqrt(k2_kern_sumsq(rows * cols, u)) + EPS));
    if (team) k2_kern_team_begin(team);
    if (rows > cols)
        transpose(rows, cols, u, x, team);
    else
        memcpy(x, u, rows * cols * sizeof(float));
    k2_kern_scale(rows * cols, inverse, x, x);
    for (int i = 0; i < STEPS; i++) {
        phase p = {.r = r, .k = k, .x = x, .next = next, .g = g, .gg = gg};
        phase_run(&p, team, square_part);
        phase_run(&p, team, quartic_part);
        phase_run(&p, team, apply_part);
        float *held = x;
        x = next;
        next = held;
    }
    if (rows > cols)
        transpose(r, k, x, out, team);
    else
        memcpy(out, x, rows * cols * sizeof(float));
    if (team) k2_kern_team_end(team);
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

static void matrix_run(k2i_muon *m, const matrix *x, float *out, k2_team *team)
{
    k2i_optim_span part = part_of(m, x);
    float *scratch = out + (x->end - x->begin + 15) / 16 * 16;
    k2i_muon_direction(x->rows, x->cols, m->whole + x->begin, out, scratch, team);
    memcpy(m->direction + (part.begin - m->begin), out + (part.begin - x->begin), (part.end - part.begin) * sizeof(float));
}

static void small_task(void *arg, size_t task, uint32_t member)
{
    k2i_muon *m = arg;
    matrix_run(m, &m->matrices[m->large + task], m->scratch + member * m->stride, NULL);
}

void k2i_muon_orthogonalise(k2i_muon *m, const float *whole)
{
    m->whole = whole;
    for (size_t i = 0; i < m->large; i++) matrix_run(m, &m->matrices[i], m->scratch, m->team);
    k2_kern_team_run(m->team, m->count - m->large, small_task, m);
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
    uint64_t first = K2I_SPOILS_NONE;
    for (size_t k = 0; k < m->count; k++) {
        k2i_optim_span part = part_of(m, &m->matrices[k]);
        step s = step_of(&m->matrices[k], config, lr);
        for (uint64_t i = part.begin, at = i - m->begin; i < K2_MIN(part.end, first); i++, at++) {
            float p = step_make(s, params[i], m->direction[at]);
            if (!isfinite(p) || !isfinite(momentum_of(config, o->m[at], grad[at] * (float)scale))) first = i;
        }
    }
    return first;
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
