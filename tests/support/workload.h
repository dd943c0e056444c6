/* workload - what benches have a model do: training steps, prompts and decoding, with the seconds that they take:
 * of the clock, or of the processor where one thread works.
 *
 * A workload owns the memory that its model needs; the model is the caller's. Tokens are a fixed pattern, except where greedy
 * decoding chooses them.
 */
#ifndef K2_TESTS_SUPPORT_WORKLOAD_H
#define K2_TESTS_SUPPORT_WORKLOAD_H

#include "common/model/model.h"

/* ---- training */

typedef struct workload_train {
    k2_model *model;
    uint32_t threads;
    k2_team *team; /* of the optimizer: the model's own is its own affair */
    size_t tokens, length;
    int32_t *ids, *targets;
    uint32_t *starts;
    float *logp, *dlogp, *grads, *m, *v;
    k2_arena arena;
    uint64_t steps;
} workload_train;

/* Seconds of each part of one step. */
typedef struct workload_step {
    double fwd, bwd, update;
    double loss; /* before the update, mean over all tokens but the last of each sequence */
} workload_step;

/* `tokens` is a multiple of `length`, the tokens of each sequence. */
void workload_train_begin(workload_train *w, k2_model *m, uint32_t threads, size_t tokens, size_t length);
/* Forward, backward, AdamW (learning rate `lr`, no weight decay) and new panels; lr 0: no update. */
workload_step workload_train_step(workload_train *w, float lr);
void workload_train_end(workload_train *w);

/* ---- decoding */

typedef struct workload_decode {
    k2_model *model;
    uint32_t threads;
    size_t batch, prompt, positions; /* positions: prompt and new tokens */
    k2_model_kv kv;
    uint32_t *tables;
    int32_t *ids; /* [batch, positions] prompts, then what was decoded */
    float *logits;
    k2_softmax *softmax;
    k2_model_row *rows; /* [batch * prompt] */
    k2_arena arena;
} workload_decode;

void workload_decode_begin(workload_decode *w, k2_model *m, uint32_t threads, size_t batch, size_t prompt, size_t new_tokens);
double workload_decode_prompt(workload_decode *w); /* seconds to run all prompts in one call */
double workload_decode_rest(workload_decode *w);   /* seconds to decode all new tokens greedily; after the prompts */
void workload_decode_end(workload_decode *w);

/* Weights that one token is multiplied with, the output head included, looking up its embedding not. */
size_t workload_active_params(const k2_model *m);
/* Largest resident size of this process so far, MiB. */
double workload_peak_mib(void);

#endif
