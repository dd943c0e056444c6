/* sample - see sample_int.h. */
#include "rollout/sample_int.h"

#include <math.h>
#include <string.h>

#include "common/kernel/kernel.h"

#define LANES    16u
#define COLDEST  1e-6    /* a lower temperature is greedy */
#define FAINTEST -100.0f /* exp of less is 0 anyway; keeps infinities out of the kernel */

uint64_t k2i_sampler_bytes(uint32_t vocab)
{
    return (uint64_t)vocab * 2 * (sizeof(float) + sizeof(uint32_t));
}

void k2i_sampler_init(k2i_sampler *s, uint32_t vocab)
{
    K2_ASSERT(vocab >= 1);
    s->vocab = vocab;
    s->weight = k2_alloc_array(vocab, sizeof *s->weight);
    s->row = k2_alloc_array(vocab, sizeof *s->row);
    s->heap = k2_alloc_array(vocab, sizeof *s->heap);
    s->seen = k2_alloc_array(vocab, sizeof *s->seen);
}

void k2i_sampler_fini(k2i_sampler *s)
{
    k2_free(s->weight);
    k2_free(s->row);
    k2_free(s->heap);
    k2_free(s->seen);
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
    while (count > 1 && s->weight[s->heap[n - count]] == 0) count--;
    return s->heap[n - count];
}

/* weight[i] = exp((row[i] - max) / temperature), with the model's own exponential; 0 for what min_p or a ban leaves out. */
static void weigh(k2i_sampler *s, const float *row, float max, const k2i_sampling *rule)
{
    float scale = (float)(1.0 / rule->temperature);
    for (uint32_t i = 0; i < s->vocab; i++) {
        float x = (row[i] - max) * scale;
        s->weight[i] = x > FAINTEST ? x : FAINTEST;
    }
    k2_kern_exp(s->vocab, s->weight, 0.0f, s->weight);
    if (rule->min_p <= 0 && row != s->row) return;
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (s->weight[i] < rule->min_p || row[i] == -INFINITY) s->weight[i] = 0;
    }
}

/* ---- what the sequence and the client have to say ---------------------------------------------------------------------- */

#define SEEN      0x80000000u /* in `seen`: the id is in the sequence; the other bits count how often it was generated */
#define SEEN_MASK 0x7fffffffu

static bool penalizes(const k2i_sampling *rule)
{
    return (rule->repetition != 0 && rule->repetition != 1) || rule->frequency != 0 || rule->presence != 0;
}

/* Each id of the sequence once: marks are set in one pass and taken away in the next. Nothing is kept from one draw to the
 * next, so a request that is preempted, moved or continued needs no books. */
static void penalize(k2i_sampler *s, const k2i_sampling *rule, const k2i_behind *b)
{
    for (uint32_t i = 0; i < b->len; i++) {
        uint32_t *seen = &s->seen[b->tokens[i]];
        *seen = (*seen | SEEN) + (i >= b->len - b->generated);
    }
    for (uint32_t i = 0; i < b->len; i++) {
        uint32_t *seen = &s->seen[b->tokens[i]];
        float *row = &s->row[b->tokens[i]], times = (float)(*seen & SEEN_MASK);
        if (*seen == 0) continue;
        *seen = 0;
        if (rule->repetition != 0 && rule->repetition != 1) *row = *row > 0 ? *row / rule->repetition : *row * rule->repetition;
        if (times > 0) *row = *row - rule->frequency * times - rule->presence;
    }
}

/* The row after steps 1 to 3: the given one, where they change nothing. */
static const float *adjust(k2i_sampler *s, const float *row, const k2i_sampling *rule, const k2i_behind *b)
{
    bool banned = b && b->banned_count > 0, penalties = b && penalizes(rule);
    if (!banned && !penalties && rule->bias_count == 0) return row;
    memcpy(s->row, row, s->vocab * sizeof *row);
    for (uint32_t i = 0; i < rule->bias_count; i++) s->row[rule->bias[i].id] += rule->bias[i].add;
    if (penalties) penalize(s, rule, b);
    for (uint32_t i = 0; banned && i < b->banned_count; i++) {
        if ((uint32_t)b->banned[i] < s->vocab) s->row[b->banned[i]] = -INFINITY;
    }
    return s->row;
}

bool k2i_sample(k2i_sampler *s, const float *row, const k2i_sampling *rule, const k2i_behind *behind, double u, uint32_t *token)
{
    if (!k2_kern_finite(s->vocab, row)) return false;
    row = adjust(s, row, rule, behind);
    uint32_t best = greatest(row, s->vocab);
    if (row[best] == -INFINITY) return false;
    if (rule->temperature < COLDEST || rule->top_k == 1) {
        *token = best;
        return true;
    }
    weigh(s, row, row[best], rule);
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
