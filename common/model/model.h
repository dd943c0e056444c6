/* model - the Kimi-K2 / DeepSeek-V3 transformer: forward, backward, and cached decoding, on f32.
 *
 * Three nouns. The *layout* says where each Hugging Face tensor lies in one flat f32 vector. A *model* owns such a vector of
 * parameters, the packed panels made from it, and a team of threads; one that never goes backward keeps the panels alone. A *page* is
 * the latent key cache of some positions.
 *
 * Trainer and engine call the same kernels in the same order for each token, with attention in absorbed (latent) form in
 * both. So the log-probability of a token is the same to the bit from k2_model_fwd over any packed batch and from
 * k2_model_decode with any mix of rows, page size, prefill chunk and number of threads.
 *
 * Lifetime rule: the model outlives all acts made with it; whoever writes into its vector of parameters calls k2_model_params_changed
 * before the next forward or decode. Letters of shapes are those of tensor.h. One call at a time per model.
 */
#ifndef K2_COMMON_MODEL_H
#define K2_COMMON_MODEL_H

#include "common/kernel/kernel.h"

/* ---- layout ------------------------------------------------------------------------------------------------------- */

/* When a weight exists. */
typedef enum k2_weight_where {
    K2_IN_MODEL,    /* once */
    K2_IN_UNTIED,   /* once, where embeddings are not tied */
    K2_IN_LAYER,    /* each layer */
    K2_IN_QFULL,    /* each layer, q_lora_rank 0 */
    K2_IN_QLORA,    /* each layer, q_lora_rank above 0 */
    K2_IN_DENSE,    /* dense layers */
    K2_IN_MOE,      /* MoE layers */
    K2_IN_EXPERT,   /* each routed expert of a MoE layer */
    K2_IN_SHARED    /* MoE layers, n_shared_experts above 0 */
} k2_weight_where;

/* What a weight is to the optimizer. */
typedef enum k2_weight_kind {
    K2_KIND_MATRIX, /* trained, weight decay applies */
    K2_KIND_EMBED,  /* trained, weight decay applies: embed_tokens and lm_head */
    K2_KIND_NORM,   /* trained, no weight decay */
    K2_KIND_BIAS    /* e_score_correction_bias: no gradient, no optimizer; moved by the expert loads only */
} k2_weight_kind;

/* All weights of a block, written once: id, where, kind, rows, cols (0: a vector), Hugging Face name.
 * Sizes are expressions over `const k2_dims *d`. The order is the order in the flat vector. */
#define K2_MODEL_WEIGHTS(X)                                                                                                     \
    X(embed, K2_IN_MODEL, K2_KIND_EMBED, d->vocab_size, d->hidden_size, "model.embed_tokens.weight")                            \
    X(input_norm, K2_IN_LAYER, K2_KIND_NORM, d->hidden_size, 0, "input_layernorm.weight")                                       \
    X(q, K2_IN_QFULL, K2_KIND_MATRIX, d->num_attention_heads *(d->qk_nope_head_dim + d->qk_rope_head_dim), d->hidden_size,      \
      "self_attn.q_proj.weight")                                                                                                \
    X(q_a, K2_IN_QLORA, K2_KIND_MATRIX, d->q_lora_rank, d->hidden_size, "self_attn.q_a_proj.weight")                            \
    X(q_a_norm, K2_IN_QLORA, K2_KIND_NORM, d->q_lora_rank, 0, "self_attn.q_a_layernorm.weight")                                 \
    X(q_b, K2_IN_QLORA, K2_KIND_MATRIX, d->num_attention_heads *(d->qk_nope_head_dim + d->qk_rope_head_dim), d->q_lora_rank,    \
      "self_attn.q_b_proj.weight")                                                                                              \
    X(kv_a, K2_IN_LAYER, K2_KIND_MATRIX, d->kv_lora_rank + d->qk_rope_head_dim, d->hidden_size,                                 \
      "self_attn.kv_a_proj_with_mqa.weight")                                                                                    \
    X(kv_a_norm, K2_IN_LAYER, K2_KIND_NORM, d->kv_lora_rank, 0, "self_attn.kv_a_layernorm.weight")                              \
    X(kv_b, K2_IN_LAYER, K2_KIND_MATRIX, d->num_attention_heads *(d->qk_nope_head_dim + d->v_head_dim), d->kv_lora_rank,        \
      "self_attn.kv_b_proj.weight")                                                                                             \
    X(o, K2_IN_LAYER, K2_KIND_MATRIX, d->hidden_size, d->num_attention_heads * d->v_head_dim, "self_attn.o_proj.weight")        \
    X(post_norm, K2_IN_LAYER, K2_KIND_NORM, d->hidden_size, 0, "post_attention_layernorm.weight")                               \
    X(gate, K2_IN_DENSE, K2_KIND_MATRIX, d->intermediate_size, d->hidden_size, "mlp.gate_proj.weight")                          \
    X(up, K2_IN_DENSE, K2_KIND_MATRIX, d->intermediate_size, d->hidden_size, "mlp.up_proj.weight")                              \
    X(down, K2_IN_DENSE, K2_KIND_MATRIX, d->hidden_size, d->intermediate_size, "mlp.down_proj.weight")                          \
    X(router, K2_IN_MOE, K2_KIND_MATRIX, d->n_routed_experts, d->hidden_size, "mlp.gate.weight")                                \
    X(router_bias, K2_IN_MOE, K2_KIND_BIAS, d->n_routed_experts, 0, "mlp.gate.e_score_correction_bias")                         \
    X(expert_gate, K2_IN_EXPERT, K2_KIND_MATRIX, d->moe_intermediate_size, d->hidden_size, "gate_proj.weight")                  \
    X(expert_up, K2_IN_EXPERT, K2_KIND_MATRIX, d->moe_intermediate_size, d->hidden_size, "up_proj.weight")                      \
    X(expert_down, K2_IN_EXPERT, K2_KIND_MATRIX, d->hidden_size, d->moe_intermediate_size, "down_proj.weight")                  \
    X(shared_gate, K2_IN_SHARED, K2_KIND_MATRIX, d->n_shared_experts *d->moe_intermediate_size, d->hidden_size,                 \
      "mlp.shared_experts.gate_proj.weight")                                                                                    \
    X(shared_up, K2_IN_SHARED, K2_KIND_MATRIX, d->n_shared_experts *d->moe_intermediate_size, d->hidden_size,                   \
      "mlp.shared_experts.up_proj.weight")                                                                                      \
    X(shared_down, K2_IN_SHARED, K2_KIND_MATRIX, d->hidden_size, d->n_shared_experts *d->moe_intermediate_size,                 \
      "mlp.shared_experts.down_proj.weight")                                                                                    \
    X(final_norm, K2_IN_MODEL, K2_KIND_NORM, d->hidden_size, 0, "model.norm.weight")                                            \
    X(lm_head, K2_IN_UNTIED, K2_KIND_EMBED, d->vocab_size, d->hidden_size, "lm_head.weight")

#define K2_PARAM_NAME_MAX 96u /* bytes with the terminator: "model.layers.1023.mlp.experts.4095.down_proj.weight" and room */

/* One tensor of the flat vector. */
typedef struct k2_param {
    char name[K2_PARAM_NAME_MAX]; /* the Hugging Face name, whole */
    k2_shape shape;               /* rank 1 or 2, row-major */
    size_t offset, count;         /* floats; offset is a multiple of 16 */
    k2_weight_kind kind;
    uint32_t weight;       /* row of K2_MODEL_WEIGHTS */
    int32_t layer, expert; /* -1 where it has none */
} k2_param;

/* Tensors in order of offset. Up to 15 floats of padding follow a tensor; they are 0 and stay 0 (their gradients are 0). */
typedef struct k2_model_layout {
    size_t params_count;
    k2_param *params;
    size_t floats; /* of the whole flat vector, padding included; a multiple of 16 */
} k2_model_layout;

/* k2_model_layout_new - where each tensor of a model with these sizes lies.
 *
 * memory   free it with k2_model_layout_free
 * errors   none; dims must have passed k2_dims_check
 */
k2_model_layout *k2_model_layout_new(const k2_dims *dims);
void k2_model_layout_free(k2_model_layout *layout);
const k2_param *k2_model_layout_find(const k2_model_layout *layout, const char *name); /* NULL: no such tensor */

/* ---- model --------------------------------------------------------------------------------------------------------- */

typedef struct k2_model k2_model;

/* What products with weights are computed in. In bf16 the matrices are rounded to bf16 when the parameters change, activations and
 * gradients where they enter a product, and sums are f32 (kernel.h, "pairs"), forward and backward. Embeddings, norms, rotation, attention
 * over the cached keys, router, softmax and the parameters themselves stay f32.
 *
 * FORWARD is for engines: the same numbers, but k2_model_bwd must not be called. Matrices are kept as the forward's panels alone, four bytes a
 * parameter or two, and there is no vector of parameters. */
typedef enum k2_compute {
    K2_COMPUTE_F32,
    K2_COMPUTE_BF16,
    K2_COMPUTE_F32_FORWARD,
    K2_COMPUTE_BF16_FORWARD
} k2_compute;

static inline bool k2_compute_is_bf16(k2_compute c) { return c == K2_COMPUTE_BF16 || c == K2_COMPUTE_BF16_FORWARD; }
static inline bool k2_compute_has_backward(k2_compute c) { return c == K2_COMPUTE_F32 || c == K2_COMPUTE_BF16; }

/* "f32", "bf16"; asserted, the configuration has checked it. */
k2_compute k2_compute_find(const char *name, bool backward);

/* Bytes that k2_model_new will take: parameters, packed panels, tables. For the memory check before a start. */
size_t k2_model_bytes(const k2_dims *dims, k2_compute compute);

/* k2_model_new - a model with all parameters zero.
 *
 * memory   free it with k2_model_free. The vector of parameters is f32, k2_model_param_count(m) of them, 64-byte aligned.
 * errors   BAD_INPUT from k2_dims_check; threads in 1 .. K2_TEAM_THREADS_MAX is asserted
 * threads  starts threads - 1 helpers; the calls below come from one thread at a time. Two models are independent: an
 *          engine fills the next version in a second model while the first one decodes on another thread.
 */
k2_model *k2_model_new(const k2_dims *dims, k2_compute compute, uint32_t threads, k2_error *err);
void k2_model_free(k2_model *m); /* NULL is fine */

/* From begin to end call comes upon call: helpers stay awake between them, too (k2_kern_team_begin), for which a step of one token has no time
 * to wait. On the calls' thread. */
void k2_model_calls_begin(k2_model *m);
void k2_model_calls_end(k2_model *m);

const k2_dims *k2_model_dims(const k2_model *m);
const k2_model_layout *k2_model_layout_of(const k2_model *m);
float *k2_model_params(k2_model *m);       /* [floats]; write, then k2_model_params_changed. NULL without a backward */
size_t k2_model_param_count(const k2_model *m); /* floats of the flat vector: also the length of a gradient or moment vector */

/* The vector of parameters was written: panels are packed again. Must come before the next fwd or decode. Asserts that there is one. */
void k2_model_params_changed(k2_model *m);
/* k2_model_params_take - the model's parameters become these, wherever they lie: `tensors[i]` is number i of the layout, row-major. They are
 * packed, and copied where they are kept as they are. k2_model_param_take takes one of them; the others stay.
 *
 * keeps    nothing of the caller's
 * threads  k2_model_params_take uses the team; k2_model_param_take does not, and different tensors may come from different threads
 */
void k2_model_params_take(k2_model *m, const float *const *tensors);
void k2_model_param_take(k2_model *m, size_t i, const float *tensor);

/* k2_model_init - normal weights of deviation std (0: dims' initializer_range), norms 1, bias 0.
 *
 * keeps    element e of tensor number i draws from Philox (seed, K2_STREAM_INIT, i, e): the same on every machine and rank
 */
void k2_model_init(k2_model *m, uint64_t seed, double std);

/* ---- training ------------------------------------------------------------------------------------------------------ */

/* What a forward does not keep for the backward, which then computes it again, layer by layer; the bits stay. */
typedef enum k2_recompute {
    K2_RECOMPUTE_NONE,
    K2_RECOMPUTE_SELECTIVE, /* what is large and cheap: norms, queries and their latent form, values, products of gate and up */
    K2_RECOMPUTE_FULL       /* all but each layer's input: a second forward */
} k2_recompute;

/* "none", "selective", "full"; asserted, the configuration has checked it. */
k2_recompute k2_recompute_find(const char *name);

/* Packed sequences, one behind the other, no padding. Positions count from 0 in each sequence. */
typedef struct k2_model_batch {
    size_t tokens_count, seqs_count; /* T, S */
    const int32_t *tokens;           /* [T] ids in [0, V) */
    const uint32_t *seq_starts;      /* [S+1], rising from 0 to T; a sequence has 1 .. max_position_embeddings tokens */
    const int32_t *targets;          /* [T] the id whose log-probability row t gives (for a language model tokens[t+1]); -1: none */
    k2_recompute recompute;          /* the arena must be of k2_model_train_bytes for it */
    float balance_weight;            /* the backward adds this times the gradient of out->balance; 0: none of it is computed */
} k2_model_batch;

/* Where the forward writes. */
typedef struct k2_model_out {
    float *logp;     /* [T] log-probability of targets[t] at temperature 1; 0 where targets[t] is -1 */
    float *entropy;  /* [T] entropy of the row's distribution, nats; 0 where there is no target; may be NULL */
    uint32_t *loads; /* [moe layers, E] tokens that chose each expert, written (not added); may be NULL */
    double *balance; /* k2_kern_route_balance summed over MoE layers and sequences, where the batch weighs it; may be NULL */
    float *tops;     /* [L, H] the largest attention score of each head over all rows, as it goes into softmax; may be NULL */
} k2_model_out;

typedef struct k2_model_acts k2_model_acts; /* what the backward needs; lives in the caller's arena */

/* Bytes of arena that one fwd with its bwd takes at most, for up to `tokens` packed tokens (any cut into sequences). */
size_t k2_model_train_bytes(const k2_dims *dims, uint32_t threads, size_t tokens, k2_recompute recompute);
static inline size_t k2_model_act_bytes(const k2_dims *dims, uint32_t threads, size_t tokens)
{
    return k2_model_train_bytes(dims, threads, tokens, K2_RECOMPUTE_NONE);
}

/* k2_model_fwd - log-probabilities of a packed batch.
 *
 * memory   everything comes from `arena` (k2_model_act_bytes of it must be free: asserted); nothing else is allocated.
 *          Give it back by k2_arena_reset to a mark taken before the call, after the bwd (or when none will follow).
 * keeps    the returned acts point into the arena and at the batch's three arrays: keep both until after the bwd
 * errors   none; ids, starts and lengths out of range are asserted: check what comes from outside before.
 *          Values that are not finite pass through to logp: the caller looks.
 */
k2_model_acts *k2_model_fwd(k2_model *m, const k2_model_batch *batch, k2_arena *arena, const k2_model_out *out);

/* k2_model_bwd - add the gradient of a loss to a flat vector, given its derivative by each log-probability.
 *
 *   grads[i] += sum_t dlogp[t] * d logp[t] / d param[i] + balance_weight * d balance / d param[i]
 *
 * Mean cross-entropy over n targets is dlogp[t] = -1/n. Rows without target ignore dlogp. For every parameter tokens are
 * added in batch order onto what `grads` holds, so calls in a fixed order give fixed bits with any number of threads.
 *
 * shapes   dlogp [T]; grads [k2_model_param_count]; K2_KIND_BIAS and padding elements are not touched
 * memory   uses up the acts: one bwd per fwd; same arena, which must not have been reset
 * tests    tests/unit/model/grad_test.c (central differences), tests/unit/model/vectors_test.c (Hugging Face)
 */
void k2_model_bwd(k2_model *m, k2_model_acts *acts, const float *dlogp, float *grads);

/* k2_model_acts_bad - the first activation of a forward, in the order of computing, that is NaN or infinite.
 *
 *   "layer 3: after attention, row 17"
 *
 * memory   looks at acts that no bwd has used up, and computes again what they have not kept; out is written only where true
 *          comes back
 * tests    tests/unit/model/grad_test.c
 */
bool k2_model_acts_bad(k2_model_acts *acts, char *out, size_t n);

/* ---- decoding ------------------------------------------------------------------------------------------------------ */

/* A pool of pages, owned by the caller. Page p is k2_model_page_floats floats at pages + p * that: [L, page_tokens, W].
 * A page is plain memory: copying one (memcpy) forks a sequence inside it, sharing a full one needs nothing. Zero not needed. */
typedef struct k2_model_kv {
    float *pages; /* 64-byte aligned */
    uint32_t page_tokens, pages_count;
} k2_model_kv;

size_t k2_model_page_floats(const k2_dims *dims, uint32_t page_tokens);

/* One token to run. Its latent keys are written at its position, then it attends to positions 0 .. position. */
typedef struct k2_model_row {
    int32_t token;
    uint32_t position;
    const uint32_t *page_table; /* page numbers; position p is in page_table[p / page_tokens], slot p % page_tokens */
    float *logits;              /* [V] out, or NULL: only the keys are wanted (prompt tokens but the last) */
    k2_softmax *softmax;        /* out, where logits is given: logp of id = k2_kern_logp(logits, softmax, id); may be NULL */
} k2_model_row;

/* Bytes of arena that a k2_model_decode of up to `rows` rows takes, for sequences of up to `positions` positions. */
size_t k2_model_decode_bytes(const k2_dims *dims, uint32_t threads, size_t rows, size_t positions);

/* k2_model_decode - run any mix of rows: one new token each of many sequences, chunks of prompts, or both.
 *
 * Several rows of one sequence (a prefill chunk) may stand anywhere in the list; each sees the earlier ones of the same call,
 * never the later ones. All positions before a row's must be in the cache or in the call. Cutting a prompt into chunks at
 * other places, or other rows beside it, changes no bit.
 *
 * memory   scratch comes from `arena` and is given back before return; k2_model_decode_bytes must be free
 * errors   none; ids, positions (below max_position_embeddings) and page numbers out of range are asserted
 * threads  two rows of one call must not write the same page slot
 * tests    tests/unit/model/decode_test.c
 */
void k2_model_decode(k2_model *m, const k2_model_kv *kv, const k2_model_row *rows, size_t rows_count, k2_arena *arena);

#endif
