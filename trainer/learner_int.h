/* learner - the model in training: parameters, gradient lanes, this rank's optimizer shard, and one update made of them all.
 *
 * Nouns: a *pass* is a list of sequences, packed into micro-batches, with the loss to take over them; a *lane* is one gradient
 * sum: micro-batch m belongs to lane m % lanes, and each lane adds its micro-batches in order. Ranks own equal runs of lanes. A
 * *replica* is a model on its own thread: lanes of one rank run side by side on replicas with equal parameters, because small
 * models gain more from two independent forwards than from two threads inside one.
 *
 *     pass ──► lanes (fwd, loss, bwd) ──► sums gathered ──► finite? ──no──► skipped: nothing changes
 *                                             │ yes                                  ▲ no
 *          reduce-scatter in lane order ──► norm over blocks ──► finite? ──► the update tried on copies: all stays finite?
 *                                                                                    │ yes
 *                                      router bias, QK-clip ◄── parameters all-gathered ◄── the update on the shard
 *
 * Every step of this has the same bits for any number of ranks, replicas and threads.
 */
#ifndef K2_TRAINER_LEARNER_INT_H
#define K2_TRAINER_LEARNER_INT_H

#include "common/base/base.h"
#include "common/budget/budget.h"
#include "common/coll/coll.h"
#include "common/model/model.h"
#include "trainer/kl_int.h"
#include "trainer/loss_int.h"
#include "trainer/muon_int.h"
#include "trainer/optim_int.h"
#include "trainer/pack_int.h"

typedef struct k2i_learner_config {
    k2_dims dims;
    k2_compute compute;    /* F32 or BF16: the backward is needed */
    uint32_t threads;      /* of this rank, >= 1 */
    uint32_t lanes;        /* of all ranks: a multiple of the ranks of `coll` */
    uint32_t micro_tokens; /* most tokens of one micro-batch */
    k2_recompute recompute;
    bool reference;        /* hold a frozen model besides: see k2i_learner_reference */
    bool muon;             /* matrices are Muon's; AdamW keeps embeddings, lm_head and norms */
    k2_coll *coll;         /* joined; stays the caller's and must outlive the learner */
} k2i_learner_config;

typedef struct k2i_learner k2i_learner;

/* One sequence of rows+1 tokens: row t is fed tokens[t] and predicts tokens[t+1]; rows before `first` predict nothing of
 * interest (they are the prompt). Its rows - first predictions stand at `at` in the pass's arrays. */
typedef struct k2i_seq {
    const int32_t *tokens;
    uint32_t rows, first;
    uint64_t at;
    double advantage;
} k2i_seq;

/* What a prediction is to the loss. */
enum {
    K2I_USE_NONE = 0,   /* out of the loss */
    K2I_USE_CURRENT = 1, /* drawn by the weights that the step starts from */
    K2I_USE_OLDER = 2   /* drawn by earlier weights, and corrected for it */
};

/* Arrays are over predictions, for all sequences; a rank fills and reads those of its own lanes only. */
typedef struct k2i_pass {
    const k2i_loss_ops *ops;
    k2i_loss_scale scale;
    const k2i_seq *seqs;
    const k2i_micro *micros;
    uint32_t micro_count;
    float *logp;            /* out */
    const float *logp_old;  /* NULL: the log-probabilities of this very pass */
    const float *rollout;   /* log-probabilities from the engine; NULL: none, and no correction */
    const uint8_t *use;     /* K2I_USE_*; NULL: all current */
    bool correct_current;   /* importance-correct tokens of the current version too */
    k2i_correction correction;
    k2i_kl kl;
    const float *reference; /* log-probabilities of the reference model; NULL where kl has no place in the loss */
    const double *each;     /* advantages of single predictions, for a loss that takes them; NULL: the sequences' */
    double balance_weight;  /* of the sequence auxiliary loss, averaged over the batch's sequences; 0: none */
} k2i_pass;

/* Called with a pass of sequence i alone, scaled as in the step that it is part of. */
typedef void (*k2i_visit)(void *arg, const k2i_pass *one, uint32_t i);

/* Sums over a pass, all lanes of all ranks, in lane order: name, how two lanes combine. */
#define K2I_SUMS(X)                                                                                     \
    X(LOSS, ADD)                                                                                        \
    X(TOKENS, ADD)     /* rows through the model */                                                     \
    X(LOSS_TOKENS, ADD)                                                                                 \
    X(ENTROPY, ADD)    /* over all predictions */                                                       \
    X(PREDICTIONS, ADD)                                                                                 \
    X(RATIO, ADD)      /* over loss tokens */                                                           \
    X(RATIO_MIN, MIN)                                                                                   \
    X(RATIO_MAX, MAX)                                                                                   \
    X(CLIPPED, ADD)                                                                                     \
    X(CURRENT, ADD)    /* predictions of the current version */                                         \
    X(MISMATCH, ADD)   /* |old - rollout| over them */                                                  \
    X(MISMATCH_MAX, MAX)                                                                                \
    X(WEIGHT, ADD)     /* importance corrections over loss tokens */                                    \
    X(BALANCE, ADD)    /* sequence auxiliary loss, over MoE layers and sequences; 0 where it has no weight */  \
    X(KL, ADD)         /* estimates over loss tokens, where they are in the loss */                     \
    X(MOVES, MAX)      /* 1: the loss has a gradient */                                                 \
    X(BAD, MAX)        /* 1: something was NaN or infinite */

enum {
#define K2_X(name, op) K2I_SUM_##name,
    K2I_SUMS(K2_X)
#undef K2_X
    K2I_SUM_COUNT
};

/* How to turn a gradient into new parameters. */
typedef struct k2i_update {
    k2i_optim_config optim;
    double lr, clip_norm; /* clip_norm 0: no clipping */
    double bias_rate;     /* step of the router's selection bias; 0: fixed */
    double qk_clip;       /* largest attention score that a head may have had; 0: any. See k2i_qk_clip */
} k2i_update;

typedef struct k2i_outcome {
    double sums[K2I_SUM_COUNT];
    double grad_norm;
    double score_max;    /* largest attention score of the pass */
    uint32_t qk_clipped; /* heads */
    bool skipped;    /* something was NaN or infinite: parameters and moments are as before */
    const char *bad; /* what it was, a literal; NULL: nothing */
} k2i_outcome;

/* k2i_learner_new - memory for everything (common/budget counts it); parameters are zero: k2_model_init or a checkpoint fills k2i_learner_params, and
 * k2i_learner_params_changed makes them known.
 *
 * memory   freed by k2i_learner_free; nothing is allocated by the functions below
 * errors   BAD_INPUT from k2_dims_check
 * threads  one caller at a time; starts up to `threads` - 1 helpers
 */
k2_code k2i_learner_new(const k2i_learner_config *config, k2i_learner **out, k2_error *err);
void k2i_learner_free(k2i_learner *l); /* NULL is fine */

k2_model *k2i_learner_model(k2i_learner *l);
float *k2i_learner_params(k2i_learner *l);
void k2i_learner_params_changed(k2i_learner *l);
k2i_optim *k2i_learner_optim(k2i_learner *l);
/* Parameters of the frozen model, to be filled by the caller; NULL without config.reference. */
float *k2i_learner_reference(k2i_learner *l);
/* The models compute with the frozen parameters, and the trained ones stand in their place; again: as before. It holds one vector
 * and not a second model: forwards of a step with it come one after the other. */
void k2i_learner_reference_swap(k2i_learner *l);
/* Ranges of the flat vector that the ranks own. */
const k2_coll_range *k2i_learner_ranges(const k2i_learner *l);
k2_coll *k2i_learner_coll(const k2i_learner *l);
/* Tokens that chose each expert in the last pass, all ranks: [moe layers, E]. */
const double *k2i_learner_loads(const k2i_learner *l);

/* Forward alone: fills pass->logp for this rank's lanes. No collective. */
void k2i_learner_forward(k2i_learner *l, const k2i_pass *pass);

/* k2i_learner_update - forward, backward and one optimizer update. A collective: all ranks call it with the same pass.
 *
 * errors   those of the collectives; parameters may then differ between ranks. NaN or infinity is no error: out->skipped
 * tests    tests/unit/trainer/learner_test.c
 */
k2_code k2i_learner_update(k2i_learner *l, const k2i_pass *pass, const k2i_update *update, k2i_outcome *out, k2_error *err);

#endif
