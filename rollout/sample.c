/* sample - see sample_int.h. */
#include "rollout/sample_int.h"

#include <math.h>
#include <string.h>

#include "common/kernel/kernel.h"

#define LANES    16u
#define COLDEST  1e-6    /* a lower temperature is greedy */
#define FAINTEST -100.0f /* exp of less is 0 anyway; keeps infinities out of the kernel */

void k2i_sampler_init(k2i_sampler *s, uint32_t vocab)
{
    K2_ASSERT(vocab >= 1);
    s->vocab = vocab;
    s->weight = k2_alloc_array(vocab, sizeof *s->weight);
    s->heap = k2_alloc_array(vocab, sizeof *s->heap);
}

void k2i_sampler_fini(k2i_sampler *s)
{
    k2_free(s->weight);
    k2_free(s->heap);
    memset(s, 0, sizeof *s);
}

/* The greatest value and the lowest id that has it. Sixteen maxima side by side, which the compiler turns into vectors. */
static uint32_t greatest(const float *row, uint32_t n)
{
    float part[LANES];
    uint32_t i = 0;
    for (uint32_t l = 0; l < LANES; l++) part[l] = row[0];
    for (; i + LANES <= n; i += LANES) {
        for (uint32_t l = 0; l < LANES; l++) part[l] = row[i + l] > part[l] ? row[i + l] : part[l];
    }
    for (; i < n; i++) part[0] = row[i] > part[0] ? row[i] : part[0];
    for (uint32_t l = 1; l < LANES; l++) part[0] = part[l] > part[0] ? part[l] : part[0];
    for (i = 0; row[i] != part[0];) i++;
    return i;
}

/* Whether id a stands before id b in falling order. */
static bool before(const float *row, uint32_t a, uint32_t b)
{
    return row[a] > row[b] || (row[a] == row[b] && a < b);
}

static void sift_down(uint32_t *heap, uint32_t n, uint32_t i, const float *row)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n) return;
        if (child + 1 < n && before(row, heap[child + 1], heap[child])) child++;
        if (!before(row, heap[child], heap[i])) return;
        uint32_t t = heap[i];
        heap[i] = heap[child];
        heap[child] = t;
        i = child;
    }
}

/* Moves the first `keep` ids in falling order to the end of the heap array, the first one last, until their weights reach
 * `enough`. A heap, because of a large vocabulary usually only a few ids are wanted. Gives how many were taken and their sum.
 */
static uint32_t take_greatest(k2i_sampler *s, const float *row, uint32_t keep, double enough, double *sum)
{
    uint32_t n = s->vocab, taken = 0;
    *sum = 0;
    while (taken < keep && (taken == 0 || *sum < enough)) {
        uint32_t id = s->heap[0];
        n--;
        s->heap[0] = s->heap[n];
        s->heap[n] = id;
        sift_down(s->heap, n, 0, row);
        taken++;
        *sum += (double)s->weight[id];
    }
    return taken;
}

static uint32_t draw_ordered(k2i_sampler *s, const float *row, const k2i_sampling *rule, double total, double u)
{
    uint32_t n = s->vocab;
    for (uint32_t i = 0; i < n; i++) s->heap[i] = i;
    for (uint32_t i = n / 2; i-- > 0;) sift_down(s->heap, n, i, row);
    uint32_t keep = rule->top_k > 0 && rule->top_k < n ? rule->top_k : n;
    double kept;
    uint32_t count;
    if (keep < n) {
        count = take_greatest(s, row, keep, INFINITY, &kept);
        double enough = rule->top_p * kept;
        if (rule->top_p < 1) {
            kept = 0;
            count = 0;
            while (count == 0 || (count < keep && kept < enough)) kept += (double)s->weight[s->heap[n - 1 - count++]];
        }
    } else {
        count = take_greatest(s, row, n, rule->top_p * total, &kept);
    }
    double target = u * kept, sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += (double)s->weight[s->heap[n - 1 - i]];
        if (sum > target) return s->heap[n - 1 - i];
    }
    return s->heap[n - count];
}

/* weight[i] = exp((row[i] - max) / temperature), with the model's own exponential. */
static void weigh(k2i_sampler *s, const float *row, float max, double temperature)
{
    float scale = (float)(1.0 / temperature);
    for (uint32_t i = 0; i < s->vocab; i++) {
        float x = (row[i] - max) * scale;
        s->weight[i] = x > FAINTEST ? x : FAINTEST;
    }
    k2_kern_exp(s->vocab, s->weight, 0.0f, s->weight);
}

bool k2i_sample(k2i_sampler *s, const float *row, const k2i_sampling *rule, double u, uint32_t *token)
{
    if (!k2_kern_finite(s->vocab, row)) return false;
    uint32_t best = greatest(row, s->vocab);
    if (rule->temperature < COLDEST || rule->top_k == 1) {
        *token = best;
        return true;
    }
    weigh(s, row, row[best], rule->temperature);
    double total = 0;
    for (uint32_t i = 0; i < s->vocab; i++) total += (double)s->weight[i];
    if (rule->top_p < 1 || (rule->top_k > 0 && rule->top_k < s->vocab)) {
        *token = draw_ordered(s, row, rule, total, u);
        return true;
    }
    double target = u * total, sum = 0;
    for (uint32_t i = 0; i < s->vocab; i++) {
        sum += (double)s->weight[i];
        if (sum > target) {
            *token = i;
            return true;
        }
    }
    *token = best;
    return true;
}

uint32_t k2i_repeats(const int32_t *tokens, size_t n, const k2i_repetition *rule)
{
    if (rule->count < 2 || rule->min_period < 1) return 0;
    for (uint32_t period = rule->min_period; period <= rule->max_period; period++) {
        size_t same = (size_t)period * (rule->count - 1);
        if (same + period > n) return 0;
        size_t i = 0;
        while (i < same && tokens[n - 1 - i] == tokens[n - 1 - i - period]) i++;
        if (i == same) return period;
    }
    return 0;
}
