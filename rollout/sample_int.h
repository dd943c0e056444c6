/* sample - one token from one row of logits, and whether a sequence has begun to repeat itself.
 *
 * Pure: the same row, rule and draw give the same token on every machine. Weights are f32, by the kernels' own exponential (exp
 * of the C library differs between machines in its last bit); all sums run in a stated order in double.
 */
#ifndef K2_ROLLOUT_SAMPLE_INT_H
#define K2_ROLLOUT_SAMPLE_INT_H

#include "common/base/base.h"

/* Added to one id's logit. */
typedef struct k2i_bias {
    int32_t id;
    float add;
} k2i_bias;

/* How a token is drawn. temperature 0 (and all below 1e-6) is greedy; top_p 1 and all others 0 are off. */
typedef struct k2i_sampling {
    double temperature, top_p;
    uint32_t top_k;
    float min_p;
    float repetition, frequency, presence; /* penalties; repetition 1 is off, too */
    const k2i_bias *bias;                  /* [bias_count], ids inside the vocabulary */
    uint32_t bias_count;
} k2i_sampling;

/* The sequence behind which a token is drawn. */
typedef struct k2i_behind {
    const int32_t *tokens; /* [len] */
    uint32_t len;
    uint32_t generated;    /* the last so many of them */
    const int32_t *banned; /* ids that may not be drawn: they would end it too early */
    uint32_t banned_count;
} k2i_behind;

/* Scratch for one vocabulary. */
typedef struct k2i_sampler {
    uint32_t vocab;
    float *weight;   /* [vocab] */
    float *row;      /* [vocab]: logits after steps 1 to 3 */
    uint32_t *heap;  /* [vocab] */
    uint32_t *seen;  /* [vocab]: zero between two draws */
} k2i_sampler;

/* Bytes of that scratch. */
uint64_t k2i_sampler_bytes(uint32_t vocab);
void k2i_sampler_init(k2i_sampler *s, uint32_t vocab);
void k2i_sampler_fini(k2i_sampler *s);

/* k2i_sample - draw a token.
 *
 *   1. banned ids get minus infinity
 *   2. row[i] += bias of i
 *   3. penalties, for each id of the sequence once: repetition (any token): row = row > 0 ? row / repetition : row * repetition;
 *      then, over generated tokens only, row -= frequency * (times it is there) + presence
 *   4. temperature 0: the greatest; otherwise w[i] = exp((row[i] - max row) / temperature)
 *   5. min_p keeps those with w[i] >= min_p; top_k the k greatest; top_p, of these in falling order, the fewest whose sum reaches
 *      top_p of their total, at least one
 *   6. the token is the first one at which the running sum of what was kept exceeds u times its total
 *
 *   That is the order of vLLM. Reported log-probabilities are the model's: they know nothing of any of these steps.
 *
 * shapes   row [vocab] f32 in: logits or log-probabilities; u in [0,1); behind NULL: nothing is there and nothing banned
 * keeps    equal values stand in the order of their ids, so greedy takes the lowest id. Running sums go by id when neither
 *          top_k nor top_p is on, otherwise in falling order
 * errors   false where the row holds a NaN or an infinity, or every id is banned: nothing is drawn
 * threads  pure, apart from the scratch
 * source   Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration" (top_p); Fan et al. 2018 (top_k); Nguyen et al.
 *          2024, "Turning Up the Heat" (min_p); Keskar et al. 2019, "CTRL" (repetition)
 * tests    tests/unit/rollout/sample_test.c
 */
bool k2i_sample(k2i_sampler *s, const float *row, const k2i_sampling *rule, const k2i_behind *behind, double u,
                uint32_t *token);

/* When the end of a sequence counts as a repetition: a pattern of min_period to max_period tokens, `count` times in a row. */
typedef struct k2i_repetition {
    uint32_t min_period, max_period, count;
} k2i_repetition;

/* The shortest period by which the end of tokens[0..n) repeats, 0 when it does not. Looks at the tokens alone, so a sequence
 * that was cut and continued ends where the uncut one does. */
uint32_t k2i_repeats(const int32_t *tokens, size_t n, const k2i_repetition *rule);

#endif
