/* Routing: which experts a token goes to. Selection is comparisons only, so one scalar form serves every instruction set. */
#include "common/kernel/kernel_int.h"

#include <math.h>

/* Largest value wins, then the lowest index. A NaN counts as minus infinity, so every comparison has an answer. */
static float choice_of(float score, float bias)
{
    float c = score + bias;
    return c == c ? c : -INFINITY;
}

/* Sum of the two best choices of a group. */
static float group_score(const float *scores, const float *bias, uint32_t from, uint32_t to)
{
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t e = from; e < to; e++) {
        float c = choice_of(scores[e], bias[e]);
        if (c > first) {
            second = first;
            first = c;
        } else if (c > second) {
            second = c;
        }
    }
    return first + second;
}

/* Put candidate i into the list of the `count` largest so far, best first; behind its equals, so that the lower index wins. */
static void top_insert(uint32_t *index, float *value, uint32_t *have, uint32_t count, uint32_t i, float v)
{
    uint32_t at = *have;
    while (at > 0 && v > value[at - 1]) at--;
    if (at >= count) return;
    uint32_t last = *have < count ? (*have)++ : count - 1;
    for (uint32_t j = last; j > at; j--) {
        index[j] = index[j - 1];
        value[j] = value[j - 1];
    }
    index[at] = i;
    value[at] = v;
}

static void groups_choose(const k2_router *r, const float *scores, const float *bias, bool open[K2_DIM_GROUPS_MAX])
{
    uint32_t per = r->experts / r->groups, have = 0, index[K2_DIM_GROUPS_MAX];
    float value[K2_DIM_GROUPS_MAX];
    for (uint32_t g = 0; g < r->groups; g++) {
        open[g] = false;
        top_insert(index, value, &have, r->topk_group, g, group_score(scores, bias, g * per, (g + 1) * per));
    }
    for (uint32_t i = 0; i < have; i++) open[index[i]] = true;
}

static void row_choose(const k2_router *r, const float *scores, const float *bias, uint32_t *index)
{
    bool open[K2_DIM_GROUPS_MAX];
    if (r->groups > 1) groups_choose(r, scores, bias, open);
    uint32_t have = 0, per = r->experts / r->groups;
    float value[K2_DIM_TOPK_MAX];
    for (uint32_t e = 0; e < r->experts; e++) {
        if (r->groups > 1 && !open[e / per]) continue;
        top_insert(index, value, &have, r->topk, e, choice_of(scores[e], bias[e]));
    }
}

void k2_kern_route_fwd(const k2_router *r, size_t rows, const float *logits, const float *bias, float *scores, uint32_t *index,
                       float *weight)
{
    K2_ASSERT(r->topk >= 1 && r->topk <= K2_DIM_TOPK_MAX && r->groups >= 1 && r->groups <= K2_DIM_GROUPS_MAX);
    k2_kern_sigmoid(rows * r->experts, logits, scores);
    for (size_t t = 0; t < rows; t++, scores += r->experts, index += r->topk, weight += r->topk) {
        row_choose(r, scores, bias, index);
        float sum = 0.0f;
        for (uint32_t k = 0; k < r->topk; k++) sum += scores[index[k]];
        sum += 1e-20f;
        for (uint32_t k = 0; k < r->topk; k++) {
            float w = scores[index[k]];
            weight[k] = (r->norm ? w / sum : w) * r->scale;
        }
    }
}

/* Gradient at the chosen scores of one row. A share s_k / sum moves against its neighbours only, so it is the differences of
 * the gradients that count: with one expert, or equal gradients, nothing remains, and no rounding either. */
static void row_bwd(const k2_router *r, const float *scores, const uint32_t *index, const float *d_weight, float *d_score)
{
    float sum = 1e-20f;
    for (uint32_t k = 0; k < r->topk; k++) sum += scores[index[k]];
    for (uint32_t k = 0; k < r->topk; k++) {
        float d = r->norm ? 0.0f : d_weight[k];
        for (uint32_t j = 0; r->norm && j < r->topk; j++) d += (d_weight[k] - d_weight[j]) * (scores[index[j]] / sum);
        d_score[k] = r->norm ? d / sum : d;
    }
}

void k2_kern_route_bwd(const k2_router *r, size_t rows, const float *scores, const uint32_t *index, const float *d_weight,
                       float *d_logits)
{
    for (size_t t = 0; t < rows; t++, scores += r->experts, index += r->topk, d_weight += r->topk, d_logits += r->experts) {
        float d_score[K2_DIM_TOPK_MAX];
        row_bwd(r, scores, index, d_weight, d_score);
        for (uint32_t e = 0; e < r->experts; e++) d_logits[e] = 0.0f;
        for (uint32_t k = 0; k < r->topk; k++) {
            float s = scores[index[k]];
            d_logits[index[k]] = d_score[k] * r->scale * s * (1.0f - s);
        }
    }
}

void k2_kern_route_load(const k2_router *r, size_t tokens, const float *scores, float *load)
{
    float unit = (float)r->experts / ((float)r->topk * (float)tokens);
    for (uint32_t e = 0; e < r->experts; e++) load[e] = 0.0f;
    for (size_t t = 0; t < tokens; t++, scores += r->experts) {
        uint32_t index[K2_DIM_TOPK_MAX], have = 0;
        float value[K2_DIM_TOPK_MAX];
        for (uint32_t e = 0; e < r->experts; e++) top_insert(index, value, &have, r->topk, e, choice_of(scores[e], 0.0f));
        for (uint32_t k = 0; k < have; k++) load[index[k]] += 1.0f; /* exact: counts stay below 2^24 */
    }
    for (uint32_t e = 0; e < r->experts; e++) load[e] *= unit;
}

/* Sum of a row's scores, and of load times score. */
static void row_sums(const k2_router *r, const float *scores, const float *load, float *sum, float *loaded)
{
    *sum = 1e-20f;
    *loaded = 0.0f;
    for (uint32_t e = 0; e < r->experts; e++) {
        *sum += scores[e];
        *loaded = fmaf(load[e], scores[e], *loaded);
    }
}

double k2_kern_route_balance(const k2_router *r, size_t tokens, const float *scores, const float *load)
{
    double total = 0;
    for (size_t t = 0; t < tokens; t++, scores += r->experts) {
        float sum, loaded;
        row_sums(r, scores, load, &sum, &loaded);
        total += (double)(loaded / sum);
    }
    return total / (double)tokens;
}

void k2_kern_route_balance_bwd(const k2_router *r, size_t tokens, float g, const float *load, size_t rows, const float *scores,
                               float *d_logits)
{
    for (size_t t = 0; t < rows; t++, scores += r->experts, d_logits += r->experts) {
        float sum, loaded;
        row_sums(r, scores, load, &sum, &loaded);
        float by = g / ((float)tokens * sum), mean = loaded / sum;
        for (uint32_t e = 0; e < r->experts; e++) d_logits[e] += by * (load[e] - mean) * scores[e] * (1.0f - scores[e]);
    }
}
