/* kl - see kl_int.h. */
#include "trainer/kl_int.h"

#include <string.h>

#include "common/budget/budget.h"
#include "trainer/loss_int.h"

k2i_kl k2i_kl_of(const k2_config *c)
{
    static const char *const kinds[] = {"k1", "k2", "k3"};
    k2i_kl kl = {.weight = c->trainer_kl_weight};
    for (size_t i = 0; i < K2_COUNT(kinds); i++)
        if (strcmp(c->trainer_kl_estimator, kinds[i]) == 0) kl.kind = (k2i_kl_kind)i;
    if (k2_budget_has_reference(c)) kl.place = strcmp(c->trainer_kl_place, "reward") == 0 ? K2I_KL_IN_REWARD : K2I_KL_IN_LOSS;
    return kl;
}

double k2i_kl_estimate(k2i_kl_kind kind, double x, double *slope)
{
    double back = kind == K2I_KL_K3 ? k2i_loss_exp(-x) : 0; /* pi_ref / pi */
    if (slope) *slope = kind == K2I_KL_K1 ? 1 : kind == K2I_KL_K2 ? x : 1 - back;
    return kind == K2I_KL_K1 ? x : kind == K2I_KL_K2 ? x * x / 2 : back - 1 + x;
}

double k2i_kl_add(const k2i_kl *kl, uint64_t tokens, uint32_t n, const float *logp, const float *reference, const float *weight,
                  float *dlogp, double *sum)
{
    double own = 0, scale = kl->weight / (double)tokens, slope;
    for (uint32_t t = 0; t < n; t++) {
        if (weight[t] == 0) continue;
        own += k2i_kl_estimate(kl->kind, (double)logp[t] - (double)reference[t], &slope);
        dlogp[t] += (float)(scale * slope);
    }
    *sum += own;
    return scale * own;
}

void k2i_kl_returns(double reward, double weight, uint32_t n, const double *k, double *out)
{
    double rest = 0;
    for (uint32_t t = n; t-- > 0;) {
        rest += k[t];
        out[t] = reward - weight * rest;
    }
}
