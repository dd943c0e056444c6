/* muon - the optimizer of matrices (Muon), and QK-clip, which makes it MuonClip.
 *
 * A matrix is updated as a whole, but momentum is sharded like AdamW's moments: each rank makes the momentum of its shard, the
 * shards are gathered, and a rank computes every matrix that touches its shard and keeps its own part. A matrix that two ranks
 * share is computed by both, with the same bits; that costs less than sending it back. Its momentum stands in the optimizer's first
 * moment (m), its second one stays 0; checkpoints know no difference.
 *
 * Threads take small matrices one each; a large one is computed by all of them together, phase by phase.
 *
 * Muon's are the tensors of K2_KIND_MATRIX, each expert's by themselves and the router's weight among them; embeddings, lm_head and
 * norm gains are AdamW's, with the same learning rate, which the factor 0.2 is for. kv_b and q_b are one matrix each, of all heads.
 */
#ifndef K2_TRAINER_MUON_INT_H
#define K2_TRAINER_MUON_INT_H

#include "common/model/model.h"
#include "trainer/optim_int.h"

typedef struct k2i_muon k2i_muon;

/* For the matrices of a layout that touch parameters [begin, end). Starts threads - 1 helpers. */
k2i_muon *k2i_muon_new(const k2_model_layout *layout, uint64_t begin, uint64_t end, uint32_t threads);
void k2i_muon_free(k2i_muon *m); /* NULL is fine */
/* One update is these four calls in this order; only the last one changes anything that lasts.
 *
 *   m' = momentum m + scale grad;   u = m' (Kimi K2), or scale grad + momentum m' (nesterov: Moonlight)
 *   O  = orthogonalised u, whole matrices (k2i_muon_direction)
 *   p  = p - lr weight_decay p - lr 0.2 sqrt(max(rows, cols)) O
 *
 * shapes   grad f32 [end - begin]; whole, params f32, flat vectors. momentum writes u into [begin, end) of whole, orthogonalise
 *          reads all of whole: the caller gathers it between the two
 * keeps    spoils: the first element whose parameter or momentum would not be finite, or K2I_SPOILS_NONE; as k2i_optim_spoils
 * source   Jordan 2024 (Muon); Liu et al. 2025 ("Muon is Scalable": Moonlight, examples/toy_train.py); Kimi K2 report, 2.1
 * tests    tests/unit/trainer/muon_test.c
 */
void k2i_muon_momentum(const k2i_muon *m, const k2i_optim *o, const k2i_optim_config *config, double scale, const float *grad,
                       float *whole);
void k2i_muon_orthogonalise(k2i_muon *m, const float *whole);
uint64_t k2i_muon_spoils(const k2i_muon *m, const k2i_optim *o, const k2i_optim_config *config, double lr, double scale,
                         const float *grad, const float *params);
void k2i_muon_apply(const k2i_muon *m, k2i_optim *o, const k2i_optim_config *config, double lr, double scale, const float *grad,
                    float *params);

/* k2i_muon_direction - five Newton-Schulz steps towards the nearest orthogonal matrix.
 *
 *   X = u / (|u|_F + 1e-7), transposed where rows > cols;   five times A = X X', X = a X + (b A + c A A) X;   transposed back
 *   a, b, c = 3.4445, -4.7750, 2.0315
 *
 * shapes   u, out f32 [rows, cols] row-major; scratch f32 [k2i_muon_scratch(rows, cols)]
 * units    f32 throughout, where the published code casts to bf16: singular values come out in about [0.7, 1.2] either way, single
 *          elements differ from bf16's by some hundredths of their root mean square
 * threads  those of `team` share the products, NULL: the caller alone; each element is one chain of k2_kern_gemm either way: same bits
 *          on every machine with any number of threads
 */
void k2i_muon_direction(uint64_t rows, uint64_t cols, const float *u, float *out, float *scratch, k2_team *team);
uint64_t k2i_muon_scratch(uint64_t rows, uint64_t cols);

/* k2i_qk_clip - scale down the heads whose largest attention score S of the last pass was above tau.
 *
 *   gamma = tau / S;   W_q of the nope dims and W_k of kv_b by sqrt(gamma), W_q of the rotated dims by gamma; the rotated key is
 *   shared by all heads and stays, W_v stays
 *
 * shapes   tops f64 [L, H]; params f32, the flat vector: every rank scales all of its own
 * keeps    returns the number of heads that were scaled
 * source   Kimi K2 report, 2.1 (QK-Clip); Megatron-LM multi_latent_attention.py
 * tests    tests/unit/trainer/muon_test.c
 */
uint32_t k2i_qk_clip(const k2_dims *dims, const k2_model_layout *layout, const double *tops, double tau, float *params);

#endif
