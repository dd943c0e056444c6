/* optim - AdamW, gradient norm, schedules. See optim_int.h. */
#include "trainer/optim_int.h"
#include "common/kernel/kernel.h"

#include <math.h>
#include <string.h>

void k2i_optim_init(k2i_optim *o, uint64_t begin, uint64_t end)
{
    K2_ASSERT(begin <= end);
    *o = (k2i_optim){.begin = begin, .end = end};
    o->m = k2_alloc_array(end - begin, sizeof(float));
    o->v = k2_alloc_array(end - begin, sizeof(float));
}

void k2i_optim_fini(k2i_optim *o)
{
    k2_free(o->m);
    k2_free(o->v);
    *o = (k2i_optim){0};
}

void k2i_optim_reset(k2i_optim *o)
{
    memset(o->m, 0, (o->end - o->begin) * sizeof(float));
    memset(o->v, 0, (o->end - o->begin) * sizeof(float));
    o->updates = 0;
}

uint64_t k2i_norm_block_count(uint64_t begin, uint64_t end)
{
    return (end - begin + K2I_BLOCK - 1) / K2I_BLOCK;
}

void k2i_norm_blocks(const float *grad, uint64_t begin, uint64_t end, double *sums)
{
    K2_ASSERT(begin % K2I_BLOCK == 0 || begin == end);
    for (uint64_t i = begin, b = 0; i < end; i += K2I_BLOCK, b++)
        sums[b] = k2_kern_sumsq(K2_MIN(end - i, (uint64_t)K2I_BLOCK), grad + (i - begin));
}

static k2_adamw kernel_make(const k2i_optim_config *config, uint64_t update, double lr, double scale)
{
    double t = (double)update;
    return (k2_adamw){.lr = (float)lr,
                      .beta1 = (float)config->beta1,
                      .beta2 = (float)config->beta2,
                      .eps = (float)config->eps,
                      .grad_scale = (float)scale,
                      .correct1 = (float)(1 / (1 - pow(config->beta1, t))),
                      .correct2 = (float)(1 / (1 - pow(config->beta2, t)))};
}

/* The first element of [0, n) that is not finite in any of the three; n: none. */
static uint64_t first_bad(uint64_t n, const float *a, const float *b, const float *c)
{
    if (k2_kern_finite(n, a) && k2_kern_finite(n, b) && k2_kern_finite(n, c)) return n;
    uint64_t i = 0;
    while (isfinite(a[i]) && isfinite(b[i]) && isfinite(c[i])) i++;
    return i;
}

uint64_t k2i_optim_spoils(const k2i_optim *o, const k2i_optim_config *config, const k2i_optim_span *spans, size_t span_count,
                          double lr, double scale, const float *grad, const float *params)
{
    float p[K2I_BLOCK], m[K2I_BLOCK], v[K2I_BLOCK];
    k2_adamw k = kernel_make(config, o->updates + 1, lr, scale);
    for (size_t s = 0; s < span_count; s++) {
        uint64_t begin = K2_MAX(spans[s].begin, o->begin), end = K2_MIN(spans[s].end, o->end);
        k.decay = spans[s].decays ? (float)config->weight_decay : 0;
        for (uint64_t i = begin; i < end && spans[s].trained && !spans[s].by_muon; i += K2I_BLOCK) {
            uint64_t n = K2_MIN(end - i, (uint64_t)K2I_BLOCK), at = i - o->begin;
            memcpy(p, params + i, n * sizeof(float));
            memcpy(m, o->m + at, n * sizeof(float));
            memcpy(v, o->v + at, n * sizeof(float));
            k2_kern_adamw(&k, n, grad + at, p, m, v);
            uint64_t bad = first_bad(n, p, m, v);
            if (bad < n) return i + bad;
        }
    }
    return K2I_SPOILS_NONE;
}

void k2i_optim_apply(k2i_optim *o, const k2i_optim_config *config, const k2i_optim_span *spans, size_t span_count, double lr,
                     double scale, const float *grad, float *params)
{
    o->updates++;
    k2_adamw k = kernel_make(config, o->updates, lr, scale);
    for (size_t s = 0; s < span_count; s++) {
        uint64_t begin = K2_MAX(spans[s].begin, o->begin), end = K2_MIN(spans[s].end, o->end);
        if (begin >= end || !spans[s].trained || spans[s].by_muon) continue;
        k.decay = spans[s].decays ? (float)config->weight_decay : 0;
        uint64_t at = begin - o->begin;
        k2_kern_adamw(&k, end - begin, grad + at, params + begin, o->m + at, o->v + at);
    }
}

k2i_schedule_kind k2i_schedule_find(const char *name)
{
    static const char *const names[] = {[K2I_CONSTANT] = "constant", [K2I_COSINE] = "cosine", [K2I_WSD] = "wsd"};
    size_t i = 0;
    while (i < K2_COUNT(names) && strcmp(names[i], name) != 0) i++;
    K2_ASSERT(i < K2_COUNT(names));
    return (k2i_schedule_kind)i;
}

static double half_cosine(const k2i_schedule *s, uint64_t from, uint64_t step)
{
    if (step <= from) return s->lr;
    if (step >= from + s->decay) return s->lr_min;
    double x = (double)(step - from) / (double)s->decay;
    return s->lr_min + (s->lr - s->lr_min) * 0.5 * (1 + cos(3.14159265358979323846 * x));
}

double k2i_schedule_lr(const k2i_schedule *s, uint64_t step)
{
    if (step < s->warmup) return s->lr * (double)step / (double)s->warmup;
    if (s->kind == K2I_COSINE) return half_cosine(s, s->warmup, step);
    if (s->kind == K2I_WSD) return half_cosine(s, s->total > s->decay ? s->total - s->decay : 0, step);
    return s->lr;
}
