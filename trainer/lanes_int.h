/* lanes - the inside of a learner that its two halves share: lanes.c runs passes, learner.c turns their gradients into
 * updates. */
#ifndef K2_TRAINER_LANES_INT_H
#define K2_TRAINER_LANES_INT_H

#include "trainer/learner_int.h"

/* A model on its own thread, with what one micro-batch needs. */
typedef struct k2i_replica {
    k2_model *model;
    k2_arena arena;
    int32_t *tokens, *targets;                  /* [micro_tokens] */
    uint32_t *starts;                           /* [micro_tokens + 1] */
    float *logp, *entropy, *weight, *dlogp;     /* [micro_tokens] */
    uint32_t *loads;                            /* [moe layers, E] */
    float *tops;                                /* [L, H] */
} k2i_replica;

struct k2i_learner {
    k2i_learner_config config;
    uint32_t rank, ranks, lanes_local, lane_first;
    uint32_t replica_count;
    k2i_replica replicas[K2_BUDGET_REPLICAS_MAX];
    k2_team *team; /* replica_count members */
    uint64_t floats, blocks;
    uint32_t loads_count, tops_count;
    uint32_t sums_width;              /* K2I_SUM_COUNT + loads_count + tops_count */
    float **grads;                    /* [lanes_local] of [floats] */
    float *reference;                 /* [floats] the frozen model; NULL: none */
    float *shard;                     /* summed gradient of this rank's range */
    double *block_sums;               /* [blocks] */
    double *lane_sums;                /* [lanes, sums_width]; this rank's lanes stand in their place */
    double *loads;                    /* [loads_count] */
    double *tops;                     /* [L, H] largest attention scores of the last pass, all ranks */
    k2_coll_range *ranges, *block_ranges; /* [ranks] */
    k2i_optim_span *spans;
    size_t span_count;
    k2i_optim optim;
    k2i_muon *muon;  /* NULL: all is AdamW's */
    uint64_t bad_at; /* element that the last update would have spoilt, of this rank's; K2I_SPOILS_NONE: none */
};

/* Run this rank's lanes over a pass. `train`: evaluate the loss, and add its gradient into l->grads, which are zeroed first. */
void k2i_lanes_run(k2i_learner *l, const k2i_pass *pass, bool train);
/* The first activation that is NaN or infinite in a forward of the pass's first micro-batch. False: none. */
bool k2i_lanes_look(k2i_learner *l, const k2i_pass *pass, char *out, size_t n);
/* Combine the gathered rows of l->lane_sums, in lane order, into sums, l->loads and l->tops. */
void k2i_lanes_combine(k2i_learner *l, double sums[K2I_SUM_COUNT]);

#endif
