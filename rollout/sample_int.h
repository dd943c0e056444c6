/* sample - one token from one row of logits, and whether a sequence has begun to repeat itself.
 *
 * Pure: the same row, rule and draw give the same token on every machine. Weights are f32, by the kernels' own exponential (exp
 * of the C library differs between machines in its last bit); all sums run in a stated order in double.
 */
#ifndef K2_ROLLOUT_SAMPLE_INT_H
#define K2_ROLLOUT_SAMPLE_INT_H

#include "common/base/base.h"

/* How a token is drawn. temperature 0 (and all below 1e-6) is greedy; top_p 1 and top_k 0 are off. */
typedef struct k2i_sampling {
    double temperature, top_p;
    uint32_t top_k;
} k2i_sampling;

/* Scratch for one vocabulary. */
typedef struct k2i_sampler {
    uint32_t vocab;
    float *weight;   /* [vocab] */
    uint32_t *heap;  /* [vocab] */
} k2i_sampler;

void k2i_sampler_init(k2i_sampler *s, uint32_t vocab);
void k2i_sampler_fini(k2i_sampler *s);

/* k2i_sample - draw a token.
 *
 *   w[i] = exp((row[i] - max row) / temperature); top_k keeps the k greatest; top_p keeps, of these in falling order, the
 *   fewest whose sum reaches top_p of their total, at least one; the token is the first one at which the running sum of what
 *   was kept exceeds u times its total.
 *
 * shapes   row [vocab] f32 in: logits or log-probabilities; u in [0,1)
 * keeps    equal values stand in the order of their ids, so greedy takes the lowest id. Running sums go by id when neither
 *          top_k nor top_p is on, otherwise in falling order
 * errors   false where the row holds a NaN or an infinity: nothing is drawn
 * threads  pure, apart from the scratch
 * source   Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (top_p); Fan et al. 2018 (top_k)
 * tests    tests/unit/rollout/sample_test.c
 */
bool k2i_sample(k2i_sampler *s, const float *row, const k2i_sampling *rule, double u, uint32_t *token);

/* When the end of a sequence counts as a repetition: a pattern of min_period to max_period tokens, `count` times in a row. */
typedef struct k2i_repetition {
    uint32_t min_period, max_period, count;
} k2i_repetition;

/* The shortest period by which the end of tokens[0..n) repeats, 0 when it does not. Looks at the tokens alone, so a sequence
 * that was cut and continued ends where the uncut one does. */
uint32_t k2i_repeats(const int32_t *tokens, size_t n, const k2i_repetition *rule);

#endif
