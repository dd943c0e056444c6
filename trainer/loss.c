/* loss - the objectives behind one table. See loss_int.h for the formulas. */
#include "trainer/loss_int.h"

#include <math.h>
#include <string.h>

#define STD_EPS 1e-6 /* keeps a group of equal rewards at advantage 0 instead of 0/0 */

double k2i_loss_exp(double x)
{
    const double log2e = 0x1.71547652b82fep+0, ln2_hi = 0x1.62e42fee00000p-1, ln2_lo = 0x1.a39ef35793c76p-33;
    if (x != x) return x;
    if (x > 700) return INFINITY;
    if (x < -700) return 0;
    double k = floor(x * log2e + 0.5);
    double r = (x - k * ln2_hi) - k * ln2_lo; /* |r| <= 0.35: the Taylor tail after r^14 is below 1e-18 */
    double p = 1;
    for (int i = 14; i >= 1; i--) p = 1 + p * r / i;
    return ldexp(p, (int)k);
}

float k2i_loss_correction(const k2i_correction *c, float logp_old, float logp_rollout)
{
    double w = k2i_loss_exp((double)logp_old - (double)logp_rollout);
    if (c->masks) return w >= c->min && w <= c->max ? (float)w : 0;
    if (w < c->min) return (float)c->min;
    return (float)(w < c->max
                       ? w
                       : c->max); /* a NaN becomes the cap; the NaN itself is caught where log-probabilities are checked */
}

static double mean_of(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

static void advantage_none(const double *reward, uint32_t n, double *advantage)
{
    (void)reward;
    for (uint32_t i = 0; i < n; i++) advantage[i] = 0;
}

/* Rewards that are all equal give exactly 0: the rounding of their mean must not become a gradient. */
static bool all_equal(const double *reward, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (reward[i] != reward[0]) return false;
    return true;
}

static void advantage_mean(const double *reward, uint32_t n, double *advantage)
{
    double mean = all_equal(reward, n) ? reward[0] : mean_of(reward, n);
    for (uint32_t i = 0; i < n; i++) advantage[i] = reward[i] - mean;
}

static void advantage_normalised(const double *reward, uint32_t n, double *advantage)
{
    advantage_mean(reward, n, advantage);
    double square = 0;
    for (uint32_t i = 0; i < n; i++) square += advantage[i] * advantage[i];
    double std = sqrt(square / n);
    for (uint32_t i = 0; i < n; i++) advantage[i] /= std + STD_EPS;
}

static void advantage_reward(const double *reward, uint32_t n, double *advantage)
{
    memcpy(advantage, reward, n * sizeof(*advantage));
}

static void advantage_leave_one_out(const double *reward, uint32_t n, double *advantage)
{
    advantage_mean(reward, n, advantage);
    for (uint32_t i = 0; i < n && n > 1; i++) advantage[i] *= (double)n / (n - 1);
}

static void batch_as_is(const uint64_t *tokens, uint32_t n, double *advantage)
{
    (void)tokens;
    (void)n;
    (void)advantage;
}

static void batch_normalised(const uint64_t *tokens, uint32_t n, double *advantage)
{
    double count = 0, sum = 0, square = 0;
    for (uint32_t i = 0; i < n; i++) {
        count += (double)tokens[i];
        sum += (double)tokens[i] * advantage[i];
    }
    uint32_t one = 0; /* of those that have a say */
    while (one + 1 < n && tokens[one] == 0) one++;
    bool equal = true;
    for (uint32_t i = 0; i < n; i++) equal = equal && (tokens[i] == 0 || advantage[i] == advantage[one]);
    double mean = equal ? advantage[one] : sum / count;
    for (uint32_t i = 0; i < n; i++) square += (double)tokens[i] * (advantage[i] - mean) * (advantage[i] - mean);
    double std = count > 0 ? sqrt(square / count) : 0;
    for (uint32_t i = 0; i < n; i++) advantage[i] = (advantage[i] - mean) / (std + STD_EPS);
}

static void ratio_add(k2i_loss_sums *sums, double ratio)
{
    sums->ratio += ratio;
    if (sums->tokens == 0 || ratio < sums->ratio_min) sums->ratio_min = ratio;
    if (sums->tokens == 0 || ratio > sums->ratio_max) sums->ratio_max = ratio;
    sums->tokens++;
}

static void cross_entropy_eval(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp)
{
    double sum = 0, inv = 1.0 / (double)scale->tokens;
    for (uint32_t t = 0; t < in->count; t++) {
        dlogp[t] = 0;
        if (in->weight[t] == 0) continue;
        sum += (double)in->weight[t] * (double)in->logp[t];
        dlogp[t] = (float)(-inv * (double)in->weight[t]);
        ratio_add(sums, 1);
    }
    sums->loss -= inv * sum;
}

static void mirror_eval(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp)
{
    double inv = 1.0 / (double)scale->trajectories, delta = 0;
    for (uint32_t t = 0; t < in->count; t++) {
        if (in->weight[t] == 0) continue;
        double step = (double)in->logp[t] - (double)in->logp_old[t];
        delta += (double)in->weight[t] * step;
        ratio_add(sums, k2i_loss_exp(step));
    }
    double residual = in->advantage - scale->tau * delta;
    for (uint32_t t = 0; t < in->count; t++)
        dlogp[t] = in->weight[t] == 0 ? 0 : (float)(-inv * residual * (double)in->weight[t]);
    sums->loss += inv * residual * residual / (2 * scale->tau);
}

static double clip(const k2i_loss_scale *scale, double ratio)
{
    double low = 1 - scale->clip_low, high = 1 + scale->clip_high;
    return ratio < low ? low : ratio > high ? high : ratio;
}

static void grpo_eval(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp)
{
    double inv = 1.0 / (double)scale->tokens, sum = 0;
    for (uint32_t t = 0; t < in->count; t++) {
        dlogp[t] = 0;
        if (in->weight[t] == 0) continue;
        double w = (double)in->weight[t], a = in->each ? in->each[t] : in->advantage;
        double ratio = k2i_loss_exp((double)in->logp[t] - (double)in->logp_old[t]);
        double clipped = clip(scale, ratio);
        ratio_add(sums, ratio);
        if (ratio * a <= clipped * a) { /* the smaller of the two carries the gradient; on a tie inside the clip they are one */
            sum += w * ratio * a;
            dlogp[t] = (float)(-inv * w * ratio * a);
        } else {
            sum += w * clipped * a;
            sums->clipped++;
        }
    }
    sums->loss -= inv * sum;
}

/* The trajectory's own count divides twice: once in the mean that is the ratio, once in the mean of the corrections. */
static void gspo_eval(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp)
{
    double delta = 0, weight = 0, a = in->advantage;
    uint32_t n = 0;
    for (uint32_t t = 0; t < in->count; t++) {
        dlogp[t] = 0;
        if (in->weight[t] == 0) continue;
        delta += (double)in->logp[t] - (double)in->logp_old[t];
        weight += (double)in->weight[t];
        n++;
    }
    if (n == 0) return;
    double ratio = k2i_loss_exp(delta / n), clipped = clip(scale, ratio), share = weight / n / (double)scale->trajectories;
    bool follows = ratio * a <= clipped * a;
    for (uint32_t t = 0; t < in->count; t++) {
        if (in->weight[t] == 0) continue;
        if (follows) dlogp[t] = (float)(-share * ratio * a / n);
        ratio_add(sums, ratio);
    }
    sums->loss -= share * (follows ? ratio : clipped) * a;
    if (!follows) sums->clipped += n;
}

static void cispo_eval(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp)
{
    double inv = 1.0 / (double)scale->tokens, sum = 0;
    for (uint32_t t = 0; t < in->count; t++) {
        dlogp[t] = 0;
        if (in->weight[t] == 0) continue;
        double ratio = k2i_loss_exp((double)in->logp[t] - (double)in->logp_old[t]), clipped = clip(scale, ratio);
        double w = (double)in->weight[t] * clipped * in->advantage;
        sum += w * (double)in->logp[t];
        dlogp[t] = (float)(-inv * w);
        ratio_add(sums, ratio);
        sums->clipped += clipped != ratio;
    }
    sums->loss -= inv * sum;
}

static void rloo_eval(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp)
{
    double share = in->advantage / (double)scale->trajectories, sum = 0;
    for (uint32_t t = 0; t < in->count; t++) {
        dlogp[t] = 0;
        if (in->weight[t] == 0) continue;
        sum += (double)in->weight[t] * (double)in->logp[t];
        dlogp[t] = (float)(-share * (double)in->weight[t]);
        ratio_add(sums, k2i_loss_exp((double)in->logp[t] - (double)in->logp_old[t]));
    }
    sums->loss -= share * sum;
}

/* name, needs_old, drops_flat, to_go, advantage, over_batch, eval */
static const k2i_loss_ops loss_table[] = {
    {"cross_entropy", false, false, false, advantage_none, batch_as_is, cross_entropy_eval},
    {"mirror", true, false, false, advantage_mean, batch_as_is, mirror_eval},
    {"grpo", true, false, false, advantage_normalised, batch_as_is, grpo_eval},
    {"dapo", true, true, false, advantage_normalised, batch_as_is, grpo_eval},
    {"gspo", true, false, false, advantage_normalised, batch_as_is, gspo_eval},
    {"cispo", true, false, false, advantage_normalised, batch_as_is, cispo_eval},
    {"rloo", true, false, false, advantage_leave_one_out, batch_as_is, rloo_eval},
    {"reinforce++", true, false, true, advantage_reward, batch_normalised, grpo_eval},
};

const k2i_loss_ops *k2i_loss_find(const char *name)
{
    for (size_t i = 0; i < K2_COUNT(loss_table); i++)
        if (strcmp(loss_table[i].name, name) == 0) return &loss_table[i];
    return NULL;
}
