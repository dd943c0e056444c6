/* loss - every objective the trainer can minimise, as one table: from log-probabilities to a number and its derivative.
 *
 * A loss is a sum over trajectories (documents, in pretraining). It is split in two so that it may be evaluated one micro-batch
 * at a time, in any grouping and on any rank, with the same bits: `advantage` looks at the rewards of one whole group, and
 * `eval` looks at one trajectory and the counts of the whole global batch. All sums are f64 and run in token order.
 *
 * Notation: pi is the policy being updated; pi_old the weights at the start of the step, as this trainer computes them;
 * pi_roll the log-probabilities that the engine reported while sampling. r_i is the reward of trajectory i, N the number of
 * trajectories in the global batch, M the number of tokens in the loss in the global batch. m_t in {0,1} says whether token t
 * is in the loss, w_t its importance correction (a constant: no gradient runs through it).
 */
#ifndef K2_TRAINER_LOSS_INT_H
#define K2_TRAINER_LOSS_INT_H

#include "common/base/base.h"

/* What the whole global batch and the configuration give to every evaluation. */
typedef struct k2i_loss_scale {
    double tau;                 /* mirror: strength of the pull towards pi_old; > 0 */
    double clip_low, clip_high; /* all but mirror and rloo: the ratio is clipped to [1 - clip_low, 1 + clip_high] */
    uint64_t trajectories;      /* N >= 1 */
    uint64_t tokens;            /* M >= 1 */
} k2i_loss_scale;

/* One trajectory: the generated tokens only (for cross-entropy every predicted token). */
typedef struct k2i_loss_in {
    uint32_t count;
    const float *logp;      /* [count] under pi */
    const float *logp_old;  /* [count] under pi_old; unused by cross-entropy */
    const float *weight;    /* [count] w_t * m_t; 0 takes the token out of the loss */
    double advantage;
    const double *each;     /* [count] advantages of the tokens, for a loss with to_go; NULL: all have the trajectory's */
} k2i_loss_in;

/* What an evaluation adds to. Zero it before the first trajectory of a lane. */
typedef struct k2i_loss_sums {
    double loss;
    double ratio;                  /* sum of pi/pi_old over tokens in the loss */
    double ratio_min, ratio_max;   /* valid when tokens > 0 */
    uint64_t tokens, clipped;
} k2i_loss_sums;

typedef struct k2i_loss_ops {
    const char *name;
    bool needs_old;  /* logp_old must be there: the policy losses */
    bool drops_flat; /* groups whose rewards are all equal are no part of the batch: their tokens are not counted in M */
    bool to_go;      /* tokens may have advantages of their own: what a reward that is paid token by token leaves to each */
    /* Advantages of one group from its rewards, n >= 1. */
    void (*advantage)(const double *reward, uint32_t n, double *advantage);
    /* Then once, over the trajectories of all groups of the step: tokens[i] of trajectory i are in the loss. In place. With to_go
     * it may be asked for single tokens, of which each is in the loss or not. */
    void (*over_batch)(const uint64_t *tokens, uint32_t n, double *advantage);
    /* Adds this trajectory to the sums, and writes dlogp[t] = dL/dlogp[t]. A token of weight 0 gets exactly 0. */
    void (*eval)(const k2i_loss_scale *scale, const k2i_loss_in *in, k2i_loss_sums *sums, float *dlogp);
} k2i_loss_ops;

/* k2i_loss_find - a loss by its name; NULL for any other name. p = pi(t)/pi_old(t), clip() as k2i_loss_scale says.
 *
 * cross_entropy  L = -(1/M) sum_t w_t log pi(t)
 *
 * mirror         L = (1/N) sum_i 1/(2 tau) (A_i - tau D_i)^2,   A_i = r_i - mean of the group,
 *                                                                D_i = sum_t w_t (log pi(t) - log pi_old(t))
 *                The published objective is the square alone. Divided by 2 tau its gradient at pi = pi_old is
 *                -(1/N) sum_i A_i grad log pi(y_i): plain policy gradient with the group's mean as baseline, so the learning
 *                rate keeps its meaning when tau changes, and tau is only the strength of the quadratic pull.
 *                source: Kimi k1.5 report 2.3, Kimi K2 report (RL), with tau log Z replaced by the mean reward
 *
 * grpo           L = -(1/M) sum_i sum_t w_t min(p A_i, clip(p) A_i),
 *                A_i = (r_i - mean) / (std + 1e-6), std over the group with divisor n; a group of equal rewards has A = 0.
 *                Every token of the batch counts the same (token-level normalisation), no KL term.
 *                source: DeepSeekMath 2024 (GRPO), DAPO 2025 (clip-higher, token-level)
 *
 * dapo           grpo, and a group of equal rewards is filtered out: M is the tokens of the others (dynamic sampling). The
 *                master fills the batch up again where rollout.refill_max says so, and then no such group comes here.
 *                Its soft punishment of long answers is k2i_shape's.
 *                source: DAPO 2025 (Yu et al.), eq. 8 to 13; NVIDIA-NeMo/RL docs/guides/grpo.md
 *
 * gspo           L = -(1/N) sum_i W_i min(s_i A_i, clip(s_i) A_i),   s_i = exp(mean over its loss tokens of log p),
 *                W_i = mean over its loss tokens of w_t (1 without corrections), A_i as in grpo.
 *                A ratio of means moves little: the paper clips at 3e-4 below and 4e-4 above.
 *                source: GSPO 2025 (Zheng et al.), eq. 5 to 7
 *
 * cispo          L = -(1/M) sum_i sum_t w_t sg(clip(p)) A_i log pi(t),   A_i as in grpo; sg: no gradient runs through it, so
 *                that a clipped token keeps its own, only weighed. clip_low 1 is the paper's "no lower bound".
 *                source: MiniMax-M1 2025, eq. 4 and 5; NeMo-RL ClippedPGLossFn
 *
 * rloo           L = -(1/N) sum_i A_i sum_t w_t log pi(t),   A_i = r_i - mean of the others of its group = n/(n-1) (r_i - mean);
 *                a group of one has A = 0. No ratio: later updates of a step are off-policy unless corrected.
 *                source: Ahmadian et al. 2024 ("Back to Basics"), eq. 8
 *
 * reinforce++    grpo's L with A_i = (r_i - m) / (std + 1e-6), m and std over all tokens in the loss of the whole step's batch
 *                (each carries its trajectory's reward). With the paper's token-level KL to a reference
 *                model (trainer.kl.place "reward") each token has its own reward to go: kl_int.h.
 *                source: Hu 2025, "REINFORCE++", 3.2 to 3.4
 *
 * tests    tests/unit/trainer/loss_test.c: hand-computed values; loss_vectors_test.c: each against torch's autograd on the
 *          published form (tests/interop/trainer), and central differences in double of a second writing of it
 */
const k2i_loss_ops *k2i_loss_find(const char *name);

/* k2i_loss_exp - e^x by a fixed polynomial, so that ratios have the same bits on every machine (libm picks code by CPU).
 * Within 2 units in the last place for |x| <= 700; beyond that 0 or infinity; exactly 1 at 0; NaN stays NaN. */
double k2i_loss_exp(double x);

/* The importance correction w between who drew a token and pi_old, on top of any loss. */
typedef struct k2i_correction {
    bool masks;      /* IcePop instead of TIS */
    double min, max; /* 0 <= min <= max */
} k2i_correction;

/* k2i_loss_correction - from x = exp(old - rollout), how much likelier pi_old finds the token than the engine that drew it:
 *
 *   TIS      w = clamp(x, min, max)                     source: Yao et al. 2025, truncated importance sampling
 *   IcePop   w = x inside [min, max], 0 outside of it   source: Ling team 2025 (IcePop); bounds of 0.5 and 5
 *
 * keeps    a token of weight 0 is out of the loss but stays counted in M: denominators are known before any forward
 */
float k2i_loss_correction(const k2i_correction *c, float logp_old, float logp_rollout);

#endif
