/* kl - how far the policy is from a frozen reference model, token by token, and what that costs: in the loss, or in the reward.
 *
 * The reference's log-probabilities are a constant. With x = log pi(t) - log pi_ref(t) of a token that was drawn from pi, the
 * estimators of KL(pi | pi_ref) are
 *
 *   k1   x                 unbiased, may be negative
 *   k2   x^2 / 2           its gradient is an unbiased estimate of the KL's
 *   k3   e^-x - 1 + x      unbiased, never negative
 *
 * In the loss: L += (weight / M) sum over the M tokens in the loss of k(t), with its gradient by log pi(t) (GRPO: k3).
 * In the reward: token t earns -weight k(t) at pi = pi_old, and no gradient runs through it. REINFORCE++ (k1) gives each token
 * the sum of what comes from it on: A_t = r - weight sum_{s >= t} k(s), and normalises that over all tokens in the loss of the
 * step. The other losses know one reward of a trajectory: r - weight sum_t k(t).
 *
 * source   Schulman 2020, "Approximating KL Divergence"; DeepSeekMath 2024, eq. 4; Hu 2025, "REINFORCE++", 3.2
 * tests    tests/unit/trainer/kl_test.c; loss_vectors_test.c: against torch's autograd; rl_test.c: in whole steps, with one rank and two
 */
#ifndef K2_TRAINER_KL_INT_H
#define K2_TRAINER_KL_INT_H

#include "common/base/base.h"
#include "common/config/config.h"

typedef enum k2i_kl_kind { K2I_KL_K1, K2I_KL_K2, K2I_KL_K3 } k2i_kl_kind;
typedef enum k2i_kl_place { K2I_KL_OFF, K2I_KL_IN_LOSS, K2I_KL_IN_REWARD } k2i_kl_place;

typedef struct k2i_kl {
    k2i_kl_place place;
    k2i_kl_kind kind;
    double weight;
} k2i_kl;

k2i_kl k2i_kl_of(const k2_config *config);

/* The estimate of one token from x; *slope, which may be NULL, is its derivative by log pi(t). At x = 0 k2 and k3 and their slopes
 * are exactly 0. */
double k2i_kl_estimate(k2i_kl_kind kind, double x, double *slope);

/* k2i_kl_add - the term in the loss of one trajectory.
 *
 * shapes   logp, reference, weight f32 [n], tokens of weight 0 are out of the loss; dlogp f32 [n] is added to
 * returns  weight / tokens * sum of the estimates; *sum gets the sum itself added
 */
double k2i_kl_add(const k2i_kl *kl, uint64_t tokens, uint32_t n, const float *logp, const float *reference, const float *weight,
                  float *dlogp, double *sum);

/* k2i_kl_returns - what each token of a trajectory has coming: reward - weight * sum of k from it on.
 *
 * shapes   k f64 [n], 0 for tokens out of the loss; out f64 [n]
 */
void k2i_kl_returns(double reward, double weight, uint32_t n, const double *k, double *out);

#endif
