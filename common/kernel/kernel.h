/* kernel - the arithmetic of the model on f32 rows: products, norms, rotation, latent attention, routing, losses, AdamW.
 *
 * One rule stands above speed: every result element is one fixed sequence of IEEE f32 operations, whatever the other rows
 * are, how many threads work and which instruction set the machine has. Four forms of sequence occur:
 *
 *   chain   acc = fma(a[k], b[k], acc) for k = 0, 1, 2, ...; vector lanes run over results, never over k
 *   tree    sixteen partial sums, element i into partial i % 16 in order of i, then partials l and l+8, l and l+4, l and
 *           l+2, l and l+1 are added; used where one row must give one number
 *   pairs   operands rounded to bf16; for i = 0, 1, 2, ...: acc = fma(a[2i+1], b[2i+1], acc), then acc = fma(a[2i], b[2i], acc);
 *           denormals are zero, operands and results. That is the instruction vdpbf16ps (Intel's manual, held by a test); the
 *           last pair of an odd k is filled with zeros. Which NaN a NaN is, is left open
 *   map     each element alone; exp is our own polynomial, so no mathematics library can change a bit
 *
 * `ref.c` states all of them in scalar C. The fast paths (portable, AVX2 with FMA, AVX-512) are one body compiled three
 * times over a 16-lane vector type, pairs by vdpbf16ps where it is there; the first call picks the best the machine has. Rows are contiguous unless a leading
 * dimension (`ld*`, in floats) is given. Nothing here allocates or keeps state but the choice of path and the team.
 */
#ifndef K2_COMMON_KERNEL_H
#define K2_COMMON_KERNEL_H

#include "common/tensor/tensor.h"

/* ---- which instructions ------------------------------------------------------------------------------------------ */

typedef enum k2_isa { K2_ISA_REF, K2_ISA_PORTABLE, K2_ISA_AVX2, K2_ISA_AVX512, K2_ISA_AVX512BF16, K2_ISA_COUNT } k2_isa;

k2_isa k2_kern_isa(void);                 /* the path in use */
const char *k2_kern_isa_name(k2_isa isa); /* "avx512" */
/* Use this path from now on; UNSUPPORTED where the machine lacks it. For tests and benches: not while kernels run. */
k2_code k2_kern_isa_use(k2_isa isa);

/* ---- team: a fixed set of threads that share one task list ------------------------------------------------------- */

typedef struct k2_team k2_team;
#define K2_TEAM_THREADS_MAX 256u /* threads of one team */

/* k2_kern_team_new - threads - 1 helpers are started; the caller is the last member. threads in 1 .. K2_TEAM_THREADS_MAX.
 *
 * memory   free it with k2_kern_team_free, which joins the helpers
 * threads  one caller at a time; helpers sleep between runs, but see k2_kern_team_begin
 */
k2_team *k2_kern_team_new(uint32_t threads);
void k2_kern_team_free(k2_team *team); /* NULL is fine */
uint32_t k2_kern_team_threads(const k2_team *team);
/* Run fn(arg, task, member) for task = 0 .. tasks-1 and return when all are done. Tasks must be independent; which member
 * (0 .. threads-1) gets which is not fixed, so a task's result must not depend on it. Member numbers scratch memory. */
void k2_kern_team_run(k2_team *team, size_t tasks, void (*fn)(void *arg, size_t task, uint32_t member), void *arg);
/* From begin to end, a region, the caller makes run after run: helpers are woken, and between runs they look out for the next one
 * instead of sleeping, each time for about a tenth of a millisecond of their own time, giving the core up meanwhile where others want
 * it. Regions may nest. */
void k2_kern_team_begin(k2_team *team);
void k2_kern_team_end(k2_team *team);

/* ---- matrix products --------------------------------------------------------------------------------------------- */

/* How the right side B of C[m,n] = sum_k A[m,k] B[k,n] lies in memory. */
typedef enum k2_gemm_b {
    K2_B_PACKED, /* panels made by k2_kern_pack_* ; ldb is ignored */
    K2_B_KN,     /* B[k,n] at b[k*ldb + n]: dx = dy W and dW = dy' x */
    K2_B_NK      /* B[k,n] at b[n*ldb + k]: y = x W' with W as the checkpoint stores it */
} k2_gemm_b;

typedef struct k2_gemm {
    size_t m, n, k;
    const float *a;
    size_t lda;
    bool a_trans; /* false: A[m,k] at a[m*lda + k]; true: at a[k*lda + m] */
    const float *b;
    size_t ldb;
    k2_gemm_b b_form;
    bool bf16;              /* operands are rounded to bf16 and taken in pairs of k */
    const uint16_t *b_bf16; /* with it, and K2_B_PACKED: the panels, made by k2_kern_pack_bf16_*; b is not looked at */
    float *c;
    size_t ldc;
    bool accumulate; /* the chain starts at the value in C instead of at 0 */
    bool upward;     /* tiles of rows are made from the last to the first; the bits stay */
} k2_gemm;

/* k2_kern_gemm - C = A B, or C += A B, each element one chain over k; with bf16 one chain of pairs (see above).
 *
 *   y  = x W'   a = x,  b_form = K2_B_NK or packed by k2_kern_pack_nk
 *   dx = dy W   a = dy, b_form = K2_B_KN or packed by k2_kern_pack_kn
 *   dW += dy' x a = dy, a_trans, b = x, b_form = K2_B_KN, accumulate: tokens are added in their order
 *
 * shapes   A [m,k], B [k,n], C [m,n], all f32; m, n or k may be 0 (k = 0 gives zeros, or leaves C when accumulating)
 * memory   C must not overlap A or B
 * threads  pure; split over rows or columns of C to go parallel: the bits stay
 * tests    tests/unit/kernel/gemm_test.c, gemm_bf16_test.c
 */
void k2_kern_gemm(const k2_gemm *g);

/* A part of C: rows [m0, m0 + m), columns [n0, n0 + n). Either count may be 0 where there are fewer tiles than parts. */
typedef struct k2_part {
    size_t m0, m, n0, n;
} k2_part;

/* k2_kern_part - cut C [m,n] for `parts` threads: whole panels of 16 columns, or whole tiles of 8 rows.
 *
 * The choice is one of speed alone and holds for products of any type: with few rows, threads read each weight once by cutting columns.
 *
 * tests    tests/unit/kernel/gemm_test.c
 */
k2_part k2_kern_part(size_t m, size_t n, size_t parts, size_t part);
/* One part of k2_kern_gemm. */
void k2_kern_gemm_part(const k2_gemm *g, size_t parts, size_t part);

/* From where to where part `part` of `parts` goes in `total` things that may be cut every `unit`: as even as may be, perhaps empty. */
typedef struct k2_range {
    size_t from, to;
} k2_range;
k2_range k2_kern_share(size_t total, size_t unit, size_t parts, size_t part);

/* Packed panels hold B as ceil(n/16) blocks of [k][16], zero-filled: pack a weight once per version, multiply often. */
#define K2_PANEL_COLUMNS 16u
static inline size_t k2_kern_packed_floats(size_t n, size_t k)
{
    return (n + 15) / 16 * 16 * k;
}
void k2_kern_pack_nk(const float *w, size_t ldw, size_t n, size_t k, float *packed); /* from w[n*ldw + k] */
void k2_kern_pack_kn(const float *w, size_t ldw, size_t n, size_t k, float *packed); /* from w[k*ldw + n] */

/* y = the nearest bf16 of each x, even on a tie; a denormal gives zero of its sign, a NaN one. */
void k2_kern_bf16(size_t n, const float *x, uint16_t *y);

/* Panels of bf16 pairs: ceil(n/16) blocks of [ceil(k/2)][16][2], zero-filled. packed_bf16 counts numbers of two bytes. */
static inline size_t k2_kern_packed_bf16(size_t n, size_t k) { return (n + 15) / 16 * 16 * ((k + 1) / 2 * 2); }
void k2_kern_pack_bf16_nk(const float *w, size_t ldw, size_t n, size_t k, uint16_t *packed); /* from w[n*ldw + k] */
void k2_kern_pack_bf16_kn(const float *w, size_t ldw, size_t n, size_t k, uint16_t *packed); /* from w[k*ldw + n] */

/* ---- norms ------------------------------------------------------------------------------------------------------- */

/* k2_kern_rmsnorm_fwd - scale each row to unit root mean square, then by a learned gain.
 *
 *   y[t,i] = x[t,i] * r[t] * g[i],   r[t] = 1 / sqrt(sum_i(x[t,i]^2) / width + eps)      (sum: tree of fma)
 *
 * shapes   x [rows,width] with ldx; g [width]; y [rows,width] with ldy; r [rows], may be NULL
 * units    eps is added to a mean square, so it has the units of x squared
 * memory   y may equal x
 * keeps    r is what k2_kern_rmsnorm_bwd needs; save it with x
 * threads  pure; call on disjoint rows to go parallel
 * source   Zhang & Sennrich 2019, "Root Mean Square Layer Normalization"
 * tests    tests/unit/kernel/rows_test.c
 */
void k2_kern_rmsnorm_fwd(size_t rows, size_t width, const float *x, size_t ldx, const float *g, float eps, float *y, size_t ldy,
                         float *r);

/* Operands of k2_kern_rmsnorm_bwd: many pointers of one type, so they have names. */
typedef struct k2_rmsnorm_bwd {
    size_t rows, width;
    const float *x, *dy; /* [rows,width] with ldx, lddy */
    size_t ldx, lddy;
    const float *g, *r; /* [width], [rows] */
    float *dx;          /* [rows,width] with lddx; may equal dy */
    size_t lddx;
    bool dx_add; /* dx += instead of dx = */
} k2_rmsnorm_bwd;

/* k2_kern_rmsnorm_bwd - gradient with respect to x.
 *
 *   dx[t,i] = r (g[i] dy[t,i] - x[t,i] r^2 / width * sum_j(dy[t,j] g[j] x[t,j]))         (sum: tree)
 *
 * threads  pure; call on disjoint rows to go parallel
 * tests    tests/unit/kernel/rows_test.c
 */
void k2_kern_rmsnorm_bwd(const k2_rmsnorm_bwd *a);

/* dg[i] += sum_t dy[t,i] * (x[t,i] * r[t]), a chain over t: one caller for a column range. Only columns [from, to). */
void k2_kern_rmsnorm_bwd_gain(const k2_rmsnorm_bwd *a, float *dg, size_t from, size_t to);

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

/* k2_kern_rope_table - cos and sin of every position and pair, in double, rounded once to f32.
 *
 * shapes   table [positions, R/2, 2] f32 out: cos, sin
 * source   Su et al. 2021 (RoPE); Peng et al. 2023 (YaRN), as DeepSeek-V3 applies it: the multiplier of YaRN is in the table
 * tests    tests/unit/kernel/route_test.c
 */
void k2_kern_rope_table(const k2_dims *d, size_t positions, float *table);

/* The scale of attention scores, YaRN's mscale squared included: (N + R)^-0.5 * m^2. */
float k2_kern_attn_scale(const k2_dims *d);

/* k2_kern_rope - rotate the interleaved pairs (x0,x1), (x2,x3), ... of `width` floats in place by one table row.
 *
 *   y0 = x0 c - x1 s,   y1 = x1 c + x0 s    (each product rounded, then the sum); inverse: s negated, the backward
 *
 * shapes   x: `count` vectors of `width` floats, `stride` floats apart; table_row [width/2, 2]
 */
void k2_kern_rope(float *x, size_t count, size_t stride, size_t width, const float *table_row, bool inverse);

/* ---- latent attention (MLA in absorbed form) ---------------------------------------------------------------------- */

/* Where the keys of one sequence lie in one layer. Key t is W floats at
 *
 *   base + table[t / page_tokens] * page_stride + (t % page_tokens) * W
 *
 * A packed sequence of a training batch is one page: table NULL and page_tokens at least its length. */
typedef struct k2_keys {
    const float *base;
    const uint32_t *table;
    size_t page_tokens, page_stride;
    float *top; /* [H] raised to the largest score of each head that the forward meets; NULL: nobody asks */
} k2_keys;

typedef struct k2_attn {
    size_t heads, latent, width; /* H, C, W; W a multiple of 16, floats [C+R, W) of keys and queries are 0 */
    float scale;
} k2_attn;

/* k2_kern_attn_fwd - one query row against keys 0 .. count-1.
 *
 *   s[h,t] = scale * (q[h] . key[t])   (tree over W);   p = softmax_t(s)   (sum: tree over t);   o[h,c] = sum_t p[h,t] key[t,c]  (chain)
 *
 * shapes   q [H,W]; o [H,C] out; scratch [H, round_up(count,16)], holds p on return
 * keeps    nothing: the backward computes p again
 * threads  pure
 * source   DeepSeek-V2 (2024), section 2.1, with W_uk absorbed in q and W_uv in the output
 * tests    tests/unit/kernel/attn_test.c
 */
void k2_kern_attn_fwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, float *o, float *scratch);

/* k2_kern_attn_bwd - gradients of one query row.
 *
 * shapes   q [H,W]; d_o [H,C]; dq [H,W] out (written, zeros past C+R); d_keys [count,W] contiguous, accumulated;
 *          scratch [2, H, round_up(count,16)]
 * threads  rows of one sequence must come one after another in order; sequences are independent
 * tests    tests/unit/kernel/attn_test.c
 */
void k2_kern_attn_bwd(const k2_attn *a, const k2_keys *keys, size_t count, const float *q, const float *d_o, float *dq,
                      float *d_keys, float *scratch);

/* ---- feed forward ------------------------------------------------------------------------------------------------- */

/* y = 1 / (1 + exp(-x)). y may equal x. */
void k2_kern_sigmoid(size_t n, const float *x, float *y);

/* y = gate / (1 + exp(-gate)) * up, element by element. y may equal gate or up.
 * source   Shazeer 2020, "GLU Variants Improve Transformer" */
void k2_kern_swiglu_fwd(size_t n, const float *gate, const float *up, float *y);
/* From dy to d_gate and d_up; both may equal dy, or gate and up. */
void k2_kern_swiglu_bwd(size_t n, const float *gate, const float *up, const float *dy, float *d_gate, float *d_up);

typedef struct k2_router {
    uint32_t experts, topk, groups, topk_group; /* E, K, n_group, topk_group */
    float scale;                                /* routed_scaling_factor */
    bool norm;                                  /* norm_topk_prob */
} k2_router;

/* k2_kern_route_fwd - which experts a token goes to, and with what weight.
 *
 *   score = sigmoid(logit);  choice = score + bias;  with groups > 1 only the topk_group groups with the largest sum of their
 *   two best choices stay;  the K best choices are taken, the lowest index winning ties, best first;
 *   weight = score [/ (sum of the K scores + 1e-20)] * scale
 *
 * shapes   logits [rows,E] in, scores [rows,E] out (may equal logits); bias [E]; index [rows,K] out; weight [rows,K] out
 * errors   none; a NaN logit counts as minus infinity in the choice, so K distinct experts are always given
 * source   DeepSeek-V3 (2024), section 2.1.2, auxiliary-loss-free balancing
 * tests    tests/unit/kernel/route_test.c
 */
void k2_kern_route_fwd(const k2_router *r, size_t rows, const float *logits, const float *bias, float *scores, uint32_t *index,
                       float *weight);

/* From d_weight [rows,K] to d_logits [rows,E] (written, zero for experts not taken). The bias has no gradient, nor has a weight
 * that is always 1 times the scale (norm and K = 1): exactly zero. */
void k2_kern_route_bwd(const k2_router *r, size_t rows, const float *scores, const uint32_t *index, const float *d_weight,
                       float *d_logits);

/* k2_kern_route_load, _balance, _balance_bwd - the auxiliary loss of one sequence, which keeps its tokens from crowding a few experts.
 *
 *   f[e] = E / (K T) * (tokens with e among the K best of their scores);   p[t,e] = score[t,e] / (sum of the row + 1e-20);   balance = 1/T sum_t sum_e f[e] p[t,e]
 *
 * It is 1 where experts are used evenly. f is a count and has no gradient; p's runs through its normalisation and the sigmoid. f is of the
 * bare scores, without bias and groups: a bias that evens out what is taken must not hide what the scores prefer.
 *
 * shapes   scores [T,E] as route_fwd left them; load [E] is f; bwd adds g/T f[e] dp[t,e]/dlogit to d_logits [rows,E] of
 *          any `rows` of the sequence's `tokens`, whose scores it is given: g is the loss's derivative by balance
 * threads  pure
 * source   DeepSeek-V3 (2024), section 2.1.2, eq. 17 to 20 (complementary sequence-wise auxiliary loss)
 * tests    tests/unit/kernel/route_test.c, tests/unit/model/grad_test.c
 */
void k2_kern_route_load(const k2_router *r, size_t tokens, const float *scores, float *load);
double k2_kern_route_balance(const k2_router *r, size_t tokens, const float *scores, const float *load);
void k2_kern_route_balance_bwd(const k2_router *r, size_t tokens, float g, const float *load, size_t rows, const float *scores,
                               float *d_logits);

/* ---- softmax over the vocabulary ---------------------------------------------------------------------------------- */

/* What turns a logit into a log-probability. `entropy` is of the whole row, in nats. */
typedef struct k2_softmax {
    float max, logsum, entropy;
} k2_softmax;

/* Largest logit, log of sum of exp(logit - max) (tree), entropy. `n` >= 1. */
k2_softmax k2_kern_softmax_row(const float *logits, size_t n);

/* Log-probability of one id: the same two subtractions everywhere, so that engine and trainer agree to the bit. */
static inline float k2_kern_logp(const float *logits, const k2_softmax *s, size_t id)
{
    float shifted = logits[id] - s->max;
    return shifted - s->logsum;
}

/* logits[i] = g * ((i == id) - softmax[i]): the gradient of g * logp(id), in place. */
void k2_kern_softmax_bwd(float *logits, size_t n, const k2_softmax *s, size_t id, float g);

/* y[i] = exp(x[i] - shift), the polynomial every kernel here uses: within 1.5e-7 relative; 0 below -87, exp(88) above 88; NaN
 * stays NaN. y may equal x. */
void k2_kern_exp(size_t n, const float *x, float shift, float *y);

/* ---- vectors ------------------------------------------------------------------------------------------------------ */

void k2_kern_add(size_t n, const float *x, float *y);            /* y += x */
void k2_kern_axpy(size_t n, float a, const float *x, float *y);  /* y = fma(a, x, y) */
void k2_kern_scale(size_t n, float a, const float *x, float *y); /* y = a * x; y may equal x */
float k2_kern_dot(size_t n, const float *x, const float *y);     /* tree of fma */
double k2_kern_sumsq(size_t n, const float *x);                  /* sum of squares, tree in double: exact products */
bool k2_kern_finite(size_t n, const float *x);                   /* no NaN and no infinity */

/* One step of AdamW on n elements. The caller computes the powers in double and rounds once. */
typedef struct k2_adamw {
    float lr, beta1, beta2, eps;
    float decay;      /* weight_decay of these elements; 0 for norms and biases */
    float grad_scale; /* clipping: gradients are multiplied by it first */
    float correct1;   /* 1 / (1 - beta1^step) */
    float correct2;   /* 1 / (1 - beta2^step) */
} k2_adamw;

/* k2_kern_adamw - update parameters and both moments.
 *
 *   g = grad * grad_scale;  m = fma(beta1, m, (1-beta1) g);  v = fma(beta2, v, ((1-beta2) g) g)
 *   p = p - lr * decay * p;  p = p - lr * (m * correct1) / (sqrt(v * correct2) + eps)
 *
 * threads  pure; elements are independent: any split gives the same bits
 * source   Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization"
 * tests    tests/unit/kernel/rows_test.c
 */
void k2_kern_adamw(const k2_adamw *a, size_t n, const float *grad, float *param, float *m, float *v);

#endif
