/* scores_int - the answer to POST /k2/score: {"scores":[{"trajectory","reward","detail"}]}, in the order that was asked. Pure. */
#ifndef K2_MASTER_SCORES_INT_H
#define K2_MASTER_SCORES_INT_H

#include "master/core_int.h"

typedef struct k2m_score {
    bool has_reward; /* false: the reward is null, detail says why */
    double reward;   /* finite; 0 without one */
    char detail[96]; /* cut to fit */
} k2m_score;

/* k2m_scores_parse - scores of exactly these trajectories, in this order. A trajectory is a whole number up to 2^53, or a decimal
 * string.
 *
 * errors   false, out undefined: not JSON, another number of scores, a trajectory that is not the one in its place
 * tests    tests/fuzz/master/scores.c
 */
bool k2m_scores_parse(const char *body, size_t n, const uint64_t *ids, uint32_t count, k2m_score *out);

/* k2m_lost_parse - the engines that the proxy lost under a request, out of the body of its error:
 * {"error": ..., "k2": {"broke": [{"engine", "incarnation", "alone"}]}}. Their number; 0 where the body has none.
 * threads  pure */
uint32_t k2m_lost_parse(const char *body, size_t n, k2m_lost out[K2M_LOST_MAX]);

#endif
