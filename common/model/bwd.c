/* How a backward phase is cut up, the list of weight gradients, and the output head. */
#include "common/model/model_int.h"

#include <string.h>

#define JOB_ROWS 128u /* rows of dW, or columns of a gain, in one task: with fewer bf16 would pair the right side too often */

k2i_job *k2i_job_weight(k2i_jobs *jobs, float *dw, size_t n, size_t k, size_t rows, const float *dy, size_t ldy, const float *x,
                        size_t ldx)
{
    K2_ASSERT(jobs->count < K2I_JOBS_MAX);
    k2i_job *j = &jobs->job[jobs->count++];
    *j = (k2i_job){.repeat = 1,
                   .gemm = {.m = n,
                            .n = k,
                            .k = rows,
                            .a = dy,
                            .lda = ldy,
                            .a_trans = true,
                            .b = x,
                            .ldb = ldx,
                            .b_form = K2_B_KN,
                            .bf16 = jobs->bf16,
                            .c = dw,
                            .ldc = k,
                            .accumulate = true}};
    return j;
}

void k2i_job_gain(k2i_jobs *jobs, const k2_rmsnorm_bwd *norm, float *dg)
{
    K2_ASSERT(jobs->count < K2I_JOBS_MAX);
    jobs->job[jobs->count++] = (k2i_job){.norm = *norm, .dg = dg};
}

static size_t job_tasks(const k2i_job *j)
{
    if (j->dg) return (j->norm.width + JOB_ROWS - 1) / JOB_ROWS;
    return j->repeat > 1 ? j->repeat : (j->gemm.m + JOB_ROWS - 1) / JOB_ROWS;
}

static void job_task(const k2i_job *j, size_t task)
{
    size_t from = task * JOB_ROWS;
    if (j->dg) {
        k2_kern_rmsnorm_bwd_gain(&j->norm, j->dg, from, K2_MIN(from + JOB_ROWS, j->norm.width));
        return;
    }
    k2_gemm g = j->gemm;
    if (j->repeat > 1) {
        g.a += task * j->a_step;
        g.b += task * j->b_step;
        g.c += task * j->c_step;
    } else {
        g.m = K2_MIN((size_t)JOB_ROWS, g.m - from);
        g.a += from;
        g.c += from * g.ldc;
    }
    k2_kern_gemm(&g);
}

static void jobs_task(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const k2i_job *j = ((const k2i_jobs *)arg)->job;
    for (; task >= job_tasks(j); j++) task -= job_tasks(j);
    job_task(j, task);
}

/* Alone, a product is one call: cutting it would only pack its right side again. */
static void jobs_alone(const k2i_jobs *jobs)
{
    for (size_t i = 0; i < jobs->count; i++) {
        const k2i_job *j = &jobs->job[i];
        if (j->dg) {
            k2_kern_rmsnorm_bwd_gain(&j->norm, j->dg, 0, j->norm.width);
        } else if (j->repeat == 1) {
            k2_kern_gemm(&j->gemm);
        } else {
            for (size_t task = 0; task < j->repeat; task++) job_task(j, task);
        }
    }
}

void k2i_jobs_run(k2_model *m, const k2i_jobs *jobs)
{
    if (k2_kern_team_threads(m->team) == 1) {
        jobs_alone(jobs);
        return;
    }
    size_t tasks = 0;
    for (size_t i = 0; i < jobs->count; i++) tasks += job_tasks(&jobs->job[i]);
    k2_kern_team_run(m->team, tasks, jobs_task, (void *)(uintptr_t)jobs);
}

static void rows_task(void *arg, size_t task, uint32_t member)
{
    k2i_back *b = arg;
    size_t first = task * K2I_ROWS;
    b->rows_fn(b, first, K2_MIN((size_t)K2I_ROWS, b->p->rows - first), &b->p->scratch[member]);
}

void k2i_phase(k2i_back *b, void (*rows_fn)(k2i_back *b, size_t t, size_t n, k2i_scratch *s),
               void (*jobs_fn)(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs))
{
    k2_model *m = b->p->m;
    size_t step = k2_kern_team_threads(m->team) == 1 ? K2I_ROWS : b->p->rows;
    b->rows_fn = rows_fn;
    if (step == b->p->rows) k2_kern_team_run(m->team, k2i_blocks(b->p->rows), rows_task, b);
    for (size_t t = 0; t < b->p->rows; t += step) {
        size_t n = K2_MIN(step, b->p->rows - t);
        if (step != b->p->rows) rows_fn(b, t, n, &b->p->scratch[0]);
        k2i_jobs jobs = {.bf16 = k2_compute_is_bf16(m->compute)};
        jobs_fn(b, t, n, &jobs);
        k2i_jobs_run(m, &jobs);
    }
}

/* ---- output head -------------------------------------------------------------------------------------------------- */

typedef struct head_arg {
    k2_model_acts *acts;
    const float *dlogp;
    size_t first; /* of the rows that have a target */
    size_t count;
} head_arg;

/* Logits again, their gradient in place, and the gradient of the last hidden state of each row. */
static void head_task(void *arg, size_t task, uint32_t member)
{
    const head_arg *h = arg;
    k2_model_acts *acts = h->acts;
    k2_model *m = acts->m;
    k2i_grads *g = &acts->grads;
    size_t step = acts->pass.logits_rows, at = h->first + task * step, n = K2_MIN(step, h->first + h->count - at);
    size_t D = m->d.hidden_size, V = m->d.vocab_size;
    const uint32_t *rows = acts->rows + at;
    float *x = g->head_x + at * D, *normed = g->head_h + at * D, *dh = g->dh + at * D, *logits = g->logits + task * step * V;
    float *dx = acts->pass.scratch[member].rows_a;
    for (size_t i = 0; i < n; i++) memcpy(x + i * D, acts->x_last + (size_t)rows[i] * D, D * sizeof(float));
    k2_kern_rmsnorm_fwd(n, D, x, D, m->params + m->off_norm, (float)m->d.rms_norm_eps, normed, D, g->head_r + at);
    k2i_linear(m->pack_head, V, D, n, normed, D, logits, V);
    for (size_t i = 0; i < n; i++) {
        k2_softmax soft = k2_kern_softmax_row(logits + i * V, V);
        k2_kern_softmax_bwd(logits + i * V, V, &soft, (size_t)acts->batch.targets[rows[i]], h->dlogp[rows[i]]);
    }
    k2i_linear_bwd(m->back_head, V, D, n, logits, V, dh, D, false);
    k2_kern_rmsnorm_bwd(&(k2_rmsnorm_bwd){.rows = n,
                                          .width = D,
                                          .x = x,
                                          .ldx = D,
                                          .dy = dh,
                                          .lddy = D,
                                          .g = m->params + m->off_norm,
                                          .r = g->head_r + at,
                                          .dx = dx,
                                          .lddx = D});
    for (size_t i = 0; i < n; i++) memcpy(g->dx + (size_t)rows[i] * D, dx + i * D, D * sizeof(float));
}

void k2i_head_bwd(k2_model_acts *acts, const float *dlogp)
{
    k2_model *m = acts->m;
    k2i_grads *g = &acts->grads;
    size_t D = m->d.hidden_size, V = m->d.vocab_size, step = acts->pass.logits_rows, threads = k2_kern_team_threads(m->team);
    memset(g->dx, 0, acts->batch.tokens_count * D * sizeof(float));
    for (size_t first = 0; first < acts->rows_count; first += threads * step) {
        size_t count = K2_MIN(threads * step, acts->rows_count - first);
        head_arg h = {.acts = acts, .dlogp = dlogp, .first = first, .count = count};
        k2_kern_team_run(m->team, (count + step - 1) / step, head_task, &h);
        k2i_jobs jobs = {.bf16 = k2_compute_is_bf16(m->compute)};
        k2i_job_weight(&jobs, g->flat + m->off_head, V, D, count, g->logits, V, g->head_h + first * D, D);
        k2i_jobs_run(m, &jobs);
    }
    k2i_jobs jobs = {.count = 0};
    k2_rmsnorm_bwd norm = {
        .rows = acts->rows_count, .width = D, .x = g->head_x, .ldx = D, .dy = g->dh, .lddy = D, .r = g->head_r};
    k2i_job_gain(&jobs, &norm, g->flat + m->off_norm);
    k2i_jobs_run(m, &jobs);
}
