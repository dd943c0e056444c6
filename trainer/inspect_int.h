/* inspect - what a step's batch does to the weights that it meets: each trajectory by itself, and the first thing that is NaN or
 * infinite, by name. For people who look at a step that was put aside; one rank, nothing is changed. */
#ifndef K2_TRAINER_INSPECT_INT_H
#define K2_TRAINER_INSPECT_INT_H

#include "common/config/config.h"
#include "common/wire/batch.h"
#include "trainer/learner_int.h"

#define K2I_BAD_MAX 256u

/* One trajectory (pretraining: one sequence). Sums and means are over its generated tokens; NaN where there are none. */
typedef struct k2i_seen {
    uint64_t id, group;
    double reward, advantage;
    double loss;         /* its part of the step's */
    double logp, rollout; /* means: as computed here, as the engine reported */
    double ratio;        /* mean of exp(logp - rollout) */
    double grad_norm;    /* of its own gradient, before clipping */
    uint32_t tokens;
    bool bad;
} k2i_seen;

typedef struct k2i_inspection {
    k2i_seen *seen; /* [count] */
    uint32_t count;
    char first_bad[K2I_BAD_MAX]; /* "": everything is finite up to the update */
} k2i_inspection;

/* k2i_inspect - look at a checked batch with the learner's present weights.
 *
 * memory   end with k2i_inspection_fini; the learner's gradients are overwritten
 * tests    tests/unit/trainer/repeat_test.c
 */
void k2i_inspect(k2i_learner *l, const k2_config *config, const k2_batch *batch, bool pretrain, k2i_inspection *out);
/* After a step that was skipped because of `bad` though every trajectory alone is finite: their sum, or an update. */
void k2i_inspect_update(k2i_learner *l, const char *bad, k2i_inspection *out);
void k2i_inspection_fini(k2i_inspection *x);

#endif
