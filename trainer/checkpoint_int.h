/* checkpoint - a training state as a directory: a Hugging Face model, the optimizer's moments, and where the run stands.
 *
 *     config.json, model.safetensors    what transformers loads; large ones are shards with an index
 *     optimizer.state                   safetensors: "m.<tensor>" and "v.<tensor>", f32, for every tensor of the model; where
 *                                       the model's files are bf16 also "w.<tensor>", the weights before they were rounded. It has
 *                                       another ending because engines (vLLM) load whatever ends in .safetensors as the model
 *     trainer.json                      counters and digests (k2i_checkpoint)
 *
 * What is read is to the bit what was written, in whatever type the model's own files are.
 *
 * A checkpoint knows nothing of ranks: it is written by one that has gathered all moments, and read by any number.
 */
#ifndef K2_TRAINER_CHECKPOINT_INT_H
#define K2_TRAINER_CHECKPOINT_INT_H

#include "common/base/base.h"
#include "common/config/config.h"
#include "common/model/model.h"
#include "common/weights/weights.h"

/* Whose moments they are: pretraining and reinforcement learning start from zero moments each. */
typedef enum k2i_moments { K2I_MOMENTS_NONE, K2I_MOMENTS_PRETRAIN, K2I_MOMENTS_TRAIN } k2i_moments;

typedef struct k2i_checkpoint {
    uint64_t step, pretrain_step; /* done */
    uint64_t updates;             /* of the moments */
    k2i_moments moments;
    uint64_t seed;
    k2_digest weights, optimizer; /* weights digests of the weights in memory, and of the optimizer's file */
} k2i_checkpoint;

/* The tensors of a layout as slots on a flat vector. */
typedef struct k2i_slots {
    size_t count;
    k2_weights_slot *slots;
    char *names;
} k2i_slots;
/* prefix stands before every Hugging Face name ("" for the weights). Free with k2i_slots_free; flat stays the caller's. */
k2i_slots k2i_slots_make(const k2_model_layout *layout, float *flat, const char *prefix);
void k2i_slots_free(k2i_slots *s);

/* k2i_checkpoint_write - write dir, under another name first, read it back, then put it in place of whatever was there.
 *
 * shapes   params, m, v [layout->floats]
 *          beside: whose tokenizer and the like go along (k2_inputs_copy), NULL: weights alone
 * keeps    state->weights and state->optimizer are filled in; after OK the directory is durable, before it an older one stands
 * errors   NO_SPACE, IO; CORRUPT: what was read back is not what was written. The unfinished directory is removed
 * tests    tests/unit/trainer/checkpoint_test.c
 */
k2_code k2i_checkpoint_write(const char *dir, const k2_dims *dims, const k2_weights_format *format,
                             const k2_model_layout *layout, float *params, float *m, float *v, const k2_config *beside,
                             k2i_checkpoint *state, k2_error *err);
/* run.checkpoint_dtype and run.shard_bytes. */
k2_weights_format k2i_checkpoint_format(const k2_config *c);

/* trainer.json as text. parse: "path: ...": BAD_INPUT names the field. */
void k2i_checkpoint_encode(const k2i_checkpoint *s, k2_buf *out);
k2_code k2i_checkpoint_parse(const char *path, const char *text, size_t len, k2i_checkpoint *out, k2_error *err);

/* Only trainer.json: what a checkpoint holds. */
k2_code k2i_checkpoint_peek(const char *dir, k2i_checkpoint *state, k2_error *err);

/* k2i_checkpoint_read - fill params, m and v.
 *
 * errors   "path: ...": NOT_FOUND, BAD_INPUT (another model, a damaged file), CORRUPT (digests). On errors the vectors are
 *          undefined
 */
k2_code k2i_checkpoint_read(const char *dir, const k2_model_layout *layout, float *params, float *m, float *v,
                            k2i_checkpoint *state, k2_error *err);

#endif
