/* shape - what is added to the rewards of a group before they become advantages: for lengths. */
#ifndef K2_TRAINER_SHAPE_INT_H
#define K2_TRAINER_SHAPE_INT_H

#include "common/base/base.h"

typedef struct k2i_shape {
    double length_weight; /* of the length reward; 0: off */
    double correct;       /* an answer with at least this reward is right */
    uint64_t longest;     /* most tokens of an answer */
    uint64_t overlong;    /* of them, the last so many are punished; 0: off */
} k2i_shape;

/* k2i_shape_group - rewards of one group with both terms.
 *
 *   length     weight * l,   l = 0.5 - (tokens - least) / (most - least) over the group for a right answer, min(0, l) for a wrong
 *              one; 0 where all are of one length
 *   overlong   0 up to longest - overlong tokens, then falling by 1 / overlong a token down to -1
 *
 * shapes   reward, shaped f64 [n]; tokens u32 [n], whole answers; n >= 1. With both off shaped is reward, bit for bit
 * source   Kimi k1.5 report 2.3.3 (length penalty); DAPO 2025, eq. 13 (soft overlong punishment)
 * tests    tests/unit/trainer/shape_test.c
 */
void k2i_shape_group(const k2i_shape *shape, uint32_t n, const double *reward, const uint32_t *tokens, double *shaped);

#endif
