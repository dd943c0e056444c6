/* optim - AdamW on one rank's shard of the flat parameter vector, the global gradient norm, and learning-rate schedules.
 *
 * Everything that crosses ranks is cut into fixed blocks of the flat vector, and shards begin and end at blocks: the sums that
 * make the norm are the same whoever computes them, and so are all bits that follow.
 */
#ifndef K2_TRAINER_OPTIM_INT_H
#define K2_TRAINER_OPTIM_INT_H

#include "common/base/base.h"

/* Parameters of one block: small enough that two ranks share a small model evenly, and but one f64 each to exchange. */
#define K2I_BLOCK 4096u

/* Parameters [begin, end) that are treated alike. Spans of one model rise, touch and cover it. */
typedef struct k2i_optim_span {
    uint64_t begin, end;
    bool trained; /* false: the router's selection bias, which follows the load and has no gradient */
    bool by_muon; /* trained by k2i_muon: AdamW leaves it alone */
    bool decays;  /* weight decay: matrices and embeddings. Norm gains are left alone: pulling a gain towards 0 regularises nothing */
} k2i_optim_span;

typedef struct k2i_optim_config {
    double beta1, beta2, eps, weight_decay;
    double momentum; /* of Muon */
    bool nesterov;
} k2i_optim_config;

/* Moments of parameters [begin, end). */
typedef struct k2i_optim {
    uint64_t begin, end;
    uint64_t updates; /* applied since the moments were zero: what the bias correction counts */
    float *m, *v;     /* [end - begin] */
} k2i_optim;

void k2i_optim_init(k2i_optim *o, uint64_t begin, uint64_t end);
void k2i_optim_fini(k2i_optim *o);
void k2i_optim_reset(k2i_optim *o); /* as after init */

/* k2i_norm_blocks - sums of squares, block by block, of the gradient's elements [begin, end).
 *
 *   sums[b] = sum of grad[i]^2 over i in block b;   norm = sqrt(sums[0] + sums[1] + ...), added in block order
 *
 * shapes   grad f32 [end - begin]; sums f64 [ceil((end - begin) / K2I_BLOCK)]
 * units    f64; inside a block the sum is that of k2_kern_sumsq
 * errors   begin must be a multiple of K2I_BLOCK (asserted). NaN and infinity go through into the sum
 */
void k2i_norm_blocks(const float *grad, uint64_t begin, uint64_t end, double *sums);
uint64_t k2i_norm_block_count(uint64_t begin, uint64_t end);

/* k2i_optim_apply - one AdamW update of this shard's parameters, in place.
 *
 *   as k2_kern_adamw states it, with grad_scale = scale and the powers of beta computed here in f64
 *
 * shapes   params f32, the whole flat vector; grad f32 [end - begin]; spans cover the flat vector
 * keeps    t counts up by one; parameters that are not trained keep their bits and their moments stay 0
 * source   Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"
 * tests    tests/unit/trainer/optim_test.c
 */
void k2i_optim_apply(k2i_optim *o, const k2i_optim_config *config, const k2i_optim_span *spans, size_t span_count, double lr,
                     double scale, const float *grad, float *params);

/* k2i_optim_spoils - would that update leave anything that is not finite? Nothing is changed.
 *
 * The update is made on a copy of one block after the other, in the cache: the arithmetic of AdamW twice costs less than the
 * memory that going back from a bad update would.
 *
 * keeps    the first element whose parameter or moment would be NaN or infinite; K2I_SPOILS_NONE: all stay finite
 * tests    tests/unit/trainer/optim_test.c
 */
uint64_t k2i_optim_spoils(const k2i_optim *o, const k2i_optim_config *config, const k2i_optim_span *spans, size_t span_count,
                          double lr, double scale, const float *grad, const float *params);
#define K2I_SPOILS_NONE UINT64_MAX

typedef enum k2i_schedule_kind { K2I_CONSTANT, K2I_COSINE, K2I_WSD } k2i_schedule_kind;

typedef struct k2i_schedule {
    k2i_schedule_kind kind;
    double lr, lr_min;
    uint64_t warmup, decay, total; /* steps; see k2i_schedule_lr */
} k2i_schedule;

/* k2i_schedule_lr - learning rate of step `step`, counted from 1.
 *
 *   warm-up    lr * step / warmup up to step = warmup
 *   constant   then lr
 *   cosine     then a half cosine from lr down to lr_min over `decay` steps, then lr_min
 *   wsd        then lr up to step total - decay, then that same half cosine, ending at step total (Kimi K2's recipe)
 */
double k2i_schedule_lr(const k2i_schedule *s, uint64_t step);
/* "constant", "cosine", "wsd"; asserted, the configuration has checked it. */
k2i_schedule_kind k2i_schedule_find(const char *name);

#endif
