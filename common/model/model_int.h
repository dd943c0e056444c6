/* model_int - what the files of this folder share: the bound weights, the activations of a layer, and one pass over rows.
 *
 * A pass is a set of rows going through the layers: a packed batch of the trainer or the rows of one decode call. Both run
 * the same phases, each cut into tasks for the team; a phase may read what the phase before it wrote for any row.
 *
 *   rows: norm, q, latent keys -> rows: attention, output, norm, router, shared or dense -> (experts) -> (rows: combine)
 *
 * Where rows are few for the threads, the same steps are cut by columns of the weights and by heads instead, with a phase for each of them:
 *
 *   (norm) -> q and keys, low-rank -> (norms, keys) -> heads: q, attention, values -> output -> (norm) -> router, gate, up
 *   -> (choice) -> experts, down -> (combine)           what stands in brackets the caller does alone
 */
#ifndef K2_COMMON_MODEL_INT_H
#define K2_COMMON_MODEL_INT_H

#include "common/model/model.h"

/* One number for each row of K2_MODEL_WEIGHTS, in its order. */
enum {
#define K2_X(id, where, kind, rows, cols, name) K2I_W_##id,
    K2_MODEL_WEIGHTS(K2_X)
#undef K2_X
    K2I_WEIGHT_COUNT
};

#define K2I_ROWS          64u      /* rows of one task: tall enough for full tiles, small enough to stay in the cache */
#define K2I_ROWS_FEW      32u      /* for each thread, and fewer are cut by columns: a thread then reads its part of the weights alone */
#define K2I_LOGITS_FLOATS 1048576u /* floats of one task's logits: 4 MiB; a wide vocabulary gets fewer rows at a time */

/* A matrix as products read it: one of the two. */
typedef struct k2i_matrix {
    float *f32;
    uint16_t *bf16; /* panels */
} k2i_matrix;

/* Floats from one tensor of a vector of parameters to the next. */
static inline size_t k2i_padded(size_t count) { return (count + 15) / 16 * 16; }

/* Where a tensor is kept: as it is, as panels, or both. */
typedef struct k2i_bound {
    float *kept;           /* NULL: as panels alone */
    k2i_matrix pack, back; /* panels, as those of a layer, below; back is empty in f32 */
} k2i_bound;

static inline k2i_matrix k2i_matrix_at(k2i_matrix w, size_t numbers)
{
    return w.bf16 ? (k2i_matrix){.bf16 = w.bf16 + numbers} : (k2i_matrix){.f32 = w.f32 + numbers};
}

/* Where the weights of a layer lie. Offsets are those of `params`, and so of gradients where there is a backward. Experts: those of expert 0. */
typedef struct k2i_layer {
    size_t off[K2I_WEIGHT_COUNT];
    k2i_matrix pack[K2I_WEIGHT_COUNT]; /* panels for y = x W'; none for kv_b and vectors */
    k2i_matrix back[K2I_WEIGHT_COUNT]; /* for dx = dy W: panels in bf16, else the parameters */
    size_t expert_stride, pack_stride, back_stride; /* from one expert to the next */
    k2i_matrix uk_kn, uk_nk, uv_nk;    /* panels of kv_b in absorbed form, head after head */
    k2i_matrix uv_back;                /* as back, for the half that makes values */
    bool moe;
    uint32_t moe_index;
} k2i_layer;

struct k2_model {
    k2_dims d;
    k2_model_layout *layout;
    k2_team *team;
    k2_compute compute;
    float *params, *panels, *rope; /* params: all, or only what is kept as it is; rope [max_position_embeddings, R/2, 2] */
    uint16_t *panels_bf16;
    k2i_bound *bound; /* [params_count] */
    k2i_layer *layers;
    size_t off_embed, off_norm, off_head;
    k2i_matrix pack_head, back_head;
    k2_attn attn;
    k2_router router;
    uint32_t width_q, width_kv, width_shared; /* H (N+R), C + R, n_shared F */
    size_t uk_stride, ukt_stride, uv_stride, uv_back_stride; /* numbers of one head */
};

/* Activations of one layer. The trainer keeps one for each layer; decoding uses one for all. The letters are tensor.h's. */
typedef struct k2i_acts {
    float *x, *r1, *h1;               /* [T,D] input, [T], [T,D] normed */
    float *qa, *rqa, *qan;            /* [T,Q], [T], [T,Q] with q_lora only */
    float *q, *qcat;                  /* [T,H,N+R] before rotation; [T,H,W] latent query, rotated query, zeros */
    float *kva, *rkv, *key;           /* [T,C+R], [T], [T,W] */
    float *o_lat, *o;                 /* [T,H,C], [T,H,U] */
    float *x2, *r2, *h2;              /* [T,D] after attention, [T], [T,D] normed */
    float *gate, *up, *act;           /* [T,I] dense, or [T,n_shared F] shared */
    float *scores, *weight;           /* [T,E], [T,K] */
    uint32_t *index, *place;          /* [T,K] experts best first; [T,K] row in the tables below */
    uint32_t *row_of, *slot_of;       /* [T K] token of each expert row, and which of its K choices it is */
    uint32_t *starts;                 /* [E+1] first expert row of each expert */
    float *e_gate, *e_up, *e_act;     /* [T K, F] */
    float *e_out;                     /* [T K, D] */
} k2i_acts;

/* Memory of one member of the team. */
typedef struct k2i_scratch {
    float *rows_a, *rows_b; /* [ROWS, D] */
    float *wide;            /* [ROWS, max(I, F, n_shared F)] */
    float *attn;            /* [2, H, longest sequence] */
    float *load;            /* [E] of one sequence */
    float *top;             /* [H] largest scores of the layer at work; used where pass->tops is */
    float *logits;          /* [logits rows, V] */
} k2i_scratch;

typedef struct k2i_pass {
    k2_model *m;
    size_t rows;
    uint32_t *position; /* [rows] */
    uint32_t *start;    /* [rows] first row of the row's sequence; NULL in decoding */
    const k2_model_row *list; /* decoding: the caller's rows and pages */
    const k2_model_kv *kv;
    k2i_scratch *scratch; /* [threads] */
    bool few;             /* rows are cut by columns and heads */
    size_t block;         /* rows of a forward task: fewer than K2I_ROWS where that lets every member of the team have one */
    size_t logits_rows;   /* rows of a logits task, not more than a block */
    uint32_t *chunks;     /* [tasks of experts, 2] expert, first row of it */
    size_t chunks_count;
    /* the layer at work */
    uint32_t layer;
    k2i_acts *a;
    float *x_next; /* [rows,D] */
    float *tops;   /* [L,H] out, largest attention scores; NULL: nobody asks */
} k2i_pass;

/* Bytes taken in order from an arena; without one it only counts, so that sizes and use cannot drift apart. */
typedef struct k2i_carver {
    k2_arena *arena;
    size_t bytes;
} k2i_carver;

void *k2i_carve(k2i_carver *c, size_t count, size_t size);
/* Acts in three parts, each setting its own members: the input; what selective recompute makes again; the rest. */
void k2i_acts_carve_input(k2i_carver *c, const k2_dims *d, size_t rows, k2i_acts *a);
void k2i_acts_carve_cheap(k2i_carver *c, const k2_dims *d, size_t rows, k2i_acts *a);
void k2i_acts_carve_rest(k2i_carver *c, const k2_dims *d, size_t rows, k2i_acts *a);
/* Tables of a pass: positions and starts are left to the caller. `longest` bounds the positions a row may see. */
void k2i_pass_carve(k2i_carver *c, const k2_dims *d, uint32_t threads, size_t rows, size_t longest, k2i_pass *p);

static inline size_t k2i_blocks(size_t rows) { return (rows + K2I_ROWS - 1) / K2I_ROWS; }

/* Embeddings into x, then one layer: a->x in, x_next out. */
void k2i_embed(k2i_pass *p, const int32_t *tokens, float *x);
void k2i_layer_fwd(k2i_pass *p, uint32_t layer, k2i_acts *a, float *x_next);
/* The cheap part of a layer's acts again, from the input and the rest. */
void k2i_layer_refill(k2i_pass *p, uint32_t layer, k2i_acts *a);

/* The columns of y [rows,n] = x W' that `cols` names, from a `pack`; it begins at a whole panel. */
static inline void k2i_linear_cols(k2i_matrix w, k2_range cols, size_t k, size_t rows, const float *x, size_t ldx, float *y, size_t ldy)
{
    k2i_matrix at = k2i_matrix_at(w, w.bf16 ? k2_kern_packed_bf16(cols.from, k) : k2_kern_packed_floats(cols.from, k));
    k2_kern_gemm(&(k2_gemm){.m = rows, .n = cols.to - cols.from, .k = k, .a = x, .lda = ldx, .b = at.f32, .b_form = K2_B_PACKED,
                            .bf16 = at.bf16 != NULL, .b_bf16 = at.bf16, .c = y + cols.from, .ldc = ldy});
}

/* y [rows,n] = x W' from a `pack`. */
static inline void k2i_linear(k2i_matrix w, size_t n, size_t k, size_t rows, const float *x, size_t ldx, float *y, size_t ldy)
{
    k2i_linear_cols(w, (k2_range){0, n}, k, rows, x, ldx, y, ldy);
}

/* dx [rows,k] (+)= dy W from a `back`. */
static inline void k2i_linear_bwd(k2i_matrix w, size_t n, size_t k, size_t rows, const float *dy, size_t ldy, float *dx, size_t ldx,
                                  bool add)
{
    k2_kern_gemm(&(k2_gemm){.m = rows, .n = k, .k = n, .a = dy, .lda = ldy, .b = w.f32, .ldb = k,
                            .b_form = w.bf16 ? K2_B_PACKED : K2_B_KN, .bf16 = w.bf16 != NULL, .b_bf16 = w.bf16, .c = dx, .ldc = ldx,
                            .accumulate = add});
}

/* The backward's working memory: one set, used by every layer in turn. Rows as in the acts. */
typedef struct k2i_grads {
    float *flat;                 /* the caller's gradient vector */
    float *dx, *dh;              /* [T,D] of the residual stream; of a normed input */
    float *d_scores, *d_weight;  /* [T,E], [T,K] */
    float *d_o, *d_olat;         /* [T,H,U], [T,H,C] */
    float *d_qcat, *d_key;       /* [T,H,W], [T,W] */
    float *d_q, *d_qan, *d_qa;   /* [T,H,N+R], [T,Q], [T,Q] */
    float *d_kva;                /* [T,C+R] */
    float *head_x, *head_h, *head_r; /* [T,D], [T,D], [T] rows that have a target, close together: input, normed */
    float *logits;               /* [threads * logits rows, V] */
} k2i_grads;

/* One product dW += dy' x, or one gain's gradient, over some rows. Heads repeat a product at fixed steps. */
typedef struct k2i_job {
    k2_gemm gemm;
    size_t repeat, a_step, b_step, c_step;
    k2_rmsnorm_bwd norm; /* where dg is not NULL, instead of the product */
    float *dg;
} k2i_job;

#define K2I_JOBS_MAX 8u /* of one phase: attention has the most, three or four products, a repeated one and three gains */
typedef struct k2i_jobs {
    k2i_job job[K2I_JOBS_MAX];
    size_t count;
    bool bf16; /* what k2i_job_weight takes its product for */
} k2i_jobs;

typedef struct k2i_back {
    k2i_pass *p;
    k2i_grads *g;
    const uint32_t *seq_starts; /* [seqs_count+1] */
    size_t seqs_count;
    float balance_weight;
    void (*rows_fn)(struct k2i_back *b, size_t t, size_t n, k2i_scratch *s);
} k2i_back;

k2i_job *k2i_job_weight(k2i_jobs *jobs, float *dw, size_t n, size_t k, size_t rows, const float *dy, size_t ldy, const float *x, size_t ldx);
void k2i_job_gain(k2i_jobs *jobs, const k2_rmsnorm_bwd *norm, float *dg);
void k2i_jobs_run(k2_model *m, const k2i_jobs *jobs);

/* Run rows_fn over all rows in blocks, then the weight gradients that jobs_fn lists for rows [t, t+n). One thread alone takes
 * both block by block, while the block is in its cache; more threads take them one after the other. A weight's chain runs over
 * tokens in order either way, so the bits are the same. */
void k2i_phase(k2i_back *b, void (*rows_fn)(k2i_back *b, size_t t, size_t n, k2i_scratch *s),
               void (*jobs_fn)(k2i_back *b, size_t t, size_t n, k2i_jobs *jobs));

/* From the gradient of a layer's output to that of x2, then of x; g->dx in place. */
void k2i_ffn_bwd(k2i_back *b);
void k2i_attn_bwd(k2i_back *b);
/* g->dx from dlogp, and with it the gradients of lm_head and the last norm. */
void k2i_head_bwd(k2_model_acts *acts, const float *dlogp);

struct k2_model_acts {
    k2_model *m;
    k2_model_batch batch;
    k2i_pass pass;
    k2i_acts *layers; /* [L]; with recompute they share the parts that are computed again */
    uint32_t held;    /* layer whose values those parts hold */
    float *x_last;    /* [T,D] */
    uint32_t *rows;   /* [count] rows that have a target */
    size_t rows_count;
    k2i_grads grads;
    bool used;
};

#endif
