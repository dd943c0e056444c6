/* The trainer's half: a packed batch forward with everything kept, then backward. */
#include "common/model/model_int.h"

#include <stdio.h>
#include <string.h>

k2_recompute k2_recompute_find(const char *name)
{
    static const char *const names[] = {
        [K2_RECOMPUTE_NONE] = "none", [K2_RECOMPUTE_SELECTIVE] = "selective", [K2_RECOMPUTE_FULL] = "full"};
    size_t i = 0;
    while (i < K2_COUNT(names) && strcmp(names[i], name) != 0) i++;
    K2_ASSERT(i < K2_COUNT(names));
    return (k2_recompute)i;
}

/* All memory of one forward and backward but the acts themselves. Without an arena the bytes are counted. */
static void layers_carve(k2i_carver *c, const k2_dims *d, size_t tokens, k2_recompute recompute, k2_model_acts *acts)
{
    k2i_acts shared = {0};
    acts->layers = k2i_carve(c, d->num_hidden_layers, sizeof(k2i_acts));
    if (recompute != K2_RECOMPUTE_NONE) k2i_acts_carve_cheap(c, d, tokens, &shared);
    if (recompute == K2_RECOMPUTE_FULL) k2i_acts_carve_rest(c, d, tokens, &shared);
    for (uint32_t i = 0; i < d->num_hidden_layers; i++) {
        k2i_acts a = shared;
        k2i_acts_carve_input(c, d, tokens, &a);
        if (recompute == K2_RECOMPUTE_NONE) k2i_acts_carve_cheap(c, d, tokens, &a);
        if (recompute != K2_RECOMPUTE_FULL) k2i_acts_carve_rest(c, d, tokens, &a);
        if (acts->layers) acts->layers[i] = a;
    }
}

static void carve_all(k2i_carver *c, const k2_dims *d, uint32_t threads, size_t tokens, size_t longest, k2_recompute recompute,
                      k2_model_acts *acts)
{
    size_t H = d->num_attention_heads, D = d->hidden_size;
    layers_carve(c, d, tokens, recompute, acts);
    acts->x_last = k2i_carve(c, tokens * D, sizeof(float));
    acts->rows = k2i_carve(c, tokens, sizeof(uint32_t));
    acts->pass.position = k2i_carve(c, tokens, sizeof(uint32_t));
    acts->pass.start = k2i_carve(c, tokens, sizeof(uint32_t));
    k2i_pass_carve(c, d, threads, tokens, longest, &acts->pass);
    const size_t widths[] = {D,
                             D,
                             d->n_routed_experts,
                             d->num_experts_per_tok,
                             H * d->v_head_dim,
                             H * d->kv_lora_rank,
                             H * k2_dims_key_floats(d),
                             k2_dims_key_floats(d),
                             H * (d->qk_nope_head_dim + d->qk_rope_head_dim),
                             d->q_lora_rank,
                             d->q_lora_rank,
                             d->kv_lora_rank + d->qk_rope_head_dim};
    float **const fields[] = {&acts->grads.dx,  &acts->grads.dh,     &acts->grads.d_scores, &acts->grads.d_weight,
                              &acts->grads.d_o, &acts->grads.d_olat, &acts->grads.d_qcat,   &acts->grads.d_key,
                              &acts->grads.d_q, &acts->grads.d_qan,  &acts->grads.d_qa,     &acts->grads.d_kva};
    _Static_assert(K2_COUNT(widths) == K2_COUNT(fields), "one width for each buffer");
    for (size_t i = 0; i < K2_COUNT(fields); i++) *fields[i] = k2i_carve(c, tokens * widths[i], sizeof(float));
    acts->grads.head_x = k2i_carve(c, tokens * D, sizeof(float));
    acts->grads.head_h = k2i_carve(c, tokens * D, sizeof(float));
    acts->grads.head_r = k2i_carve(c, tokens, sizeof(float));
    acts->grads.logits = k2i_carve(c, threads * acts->pass.logits_rows * d->vocab_size, sizeof(float));
}

size_t k2_model_train_bytes(const k2_dims *dims, uint32_t threads, size_t tokens, k2_recompute recompute)
{
    k2i_carver c = {0};
    k2_model_acts count_only = {0};
    k2i_carve(&c, 1, sizeof(count_only));
    carve_all(&c, dims, threads, tokens, K2_MIN(tokens, (size_t)dims->max_position_embeddings), recompute, &count_only);
    return c.bytes;
}

static void batch_check(const k2_model *m, const k2_model_batch *b)
{
    K2_ASSERT(b->tokens_count >= 1 && b->tokens_count <= UINT32_MAX / K2_DIM_TOPK_MAX);
    K2_ASSERT(b->seqs_count >= 1 && b->seq_starts[0] == 0 && b->seq_starts[b->seqs_count] == b->tokens_count);
    for (size_t s = 0; s < b->seqs_count; s++) {
        K2_ASSERT(b->seq_starts[s] < b->seq_starts[s + 1]);
        K2_ASSERT(b->seq_starts[s + 1] - b->seq_starts[s] <= m->d.max_position_embeddings);
    }
    for (size_t t = 0; t < b->tokens_count; t++) {
        K2_ASSERT(b->tokens[t] >= 0 && (uint32_t)b->tokens[t] < m->d.vocab_size);
        K2_ASSERT(b->targets[t] >= -1 && b->targets[t] < (int32_t)m->d.vocab_size);
    }
}

static k2_model_acts *acts_begin(k2_model *m, const k2_model_batch *b, k2_arena *arena)
{
    size_t longest = 1;
    for (size_t s = 0; s < b->seqs_count; s++) longest = K2_MAX(longest, (size_t)(b->seq_starts[s + 1] - b->seq_starts[s]));
    k2i_carver c = {.arena = arena};
    k2_model_acts *acts = k2i_carve(&c, 1, sizeof(*acts));
    memset(acts, 0, sizeof(*acts));
    carve_all(&c, &m->d, k2_kern_team_threads(m->team), b->tokens_count, longest, b->recompute, acts);
    acts->m = m;
    acts->batch = *b;
    acts->pass.m = m;
    for (size_t s = 0; s < b->seqs_count; s++) {
        for (uint32_t t = b->seq_starts[s]; t < b->seq_starts[s + 1]; t++) {
            acts->pass.position[t] = t - b->seq_starts[s];
            acts->pass.start[t] = b->seq_starts[s];
        }
    }
    for (size_t t = 0; t < b->tokens_count; t++) {
        if (b->targets[t] >= 0) acts->rows[acts->rows_count++] = (uint32_t)t;
    }
    return acts;
}

typedef struct head_arg {
    k2_model_acts *acts;
    const k2_model_out *out;
} head_arg;

/* Log-probabilities of some rows that have a target; their logits live only here. */
static void phase_head(void *arg, size_t task, uint32_t member)
{
    const head_arg *h = arg;
    k2_model_acts *acts = h->acts;
    k2_model *m = acts->m;
    k2i_scratch *s = &acts->pass.scratch[member];
    size_t step = acts->pass.logits_rows, from = task * step, n = K2_MIN(step, acts->rows_count - from);
    size_t D = m->d.hidden_size, V = m->d.vocab_size;
    for (size_t i = 0; i < n; i++)
        memcpy(s->rows_a + i * D, acts->x_last + (size_t)acts->rows[from + i] * D, D * sizeof(float));
    k2_kern_rmsnorm_fwd(n, D, s->rows_a, D, m->params + m->off_norm, (float)m->d.rms_norm_eps, s->rows_a, D, NULL);
    k2i_linear(m->pack_head, V, D, n, s->rows_a, D, s->logits, V);
    for (size_t i = 0; i < n; i++) {
        size_t row = acts->rows[from + i];
        k2_softmax soft = k2_kern_softmax_row(s->logits + i * V, V);
        h->out->logp[row] = k2_kern_logp(s->logits + i * V, &soft, (size_t)acts->batch.targets[row]);
        if (h->out->entropy) h->out->entropy[row] = soft.entropy;
    }
}

/* Of one layer, all its sequences. */
static double balance_of(const k2_model_acts *acts, const k2i_acts *a)
{
    const k2_router *r = &acts->m->router;
    float *load = acts->pass.scratch[0].load;
    double sum = 0;
    for (size_t s = 0; s < acts->batch.seqs_count; s++) {
        size_t from = acts->batch.seq_starts[s], n = acts->batch.seq_starts[s + 1] - from;
        k2_kern_route_load(r, n, a->scores + from * r->experts, load);
        sum += k2_kern_route_balance(r, n, a->scores + from * r->experts, load);
    }
    return sum;
}

k2_model_acts *k2_model_fwd(k2_model *m, const k2_model_batch *batch, k2_arena *arena, const k2_model_out *out)
{
    batch_check(m, batch);
    k2_hot_begin();
    k2_kern_team_begin(m->team);
    k2_model_acts *acts = acts_begin(m, batch, arena);
    uint32_t layers = m->d.num_hidden_layers;
    acts->pass.tops = out->tops;
    if (out->balance) *out->balance = 0;
    k2i_embed(&acts->pass, batch->tokens, acts->layers[0].x);
    for (uint32_t i = 0; i < layers; i++) {
        k2i_layer_fwd(&acts->pass, i, &acts->layers[i], i + 1 < layers ? acts->layers[i + 1].x : acts->x_last);
        if (!m->layers[i].moe) continue;
        if (out->balance && batch->balance_weight > 0) *out->balance += balance_of(acts, &acts->layers[i]);
        if (!out->loads) continue;
        uint32_t *loads = out->loads + (size_t)m->layers[i].moe_index * m->d.n_routed_experts;
        const uint32_t *starts = acts->layers[i].starts;
        for (uint32_t e = 0; e < m->d.n_routed_experts; e++) loads[e] = starts[e + 1] - starts[e];
    }
    acts->held = layers - 1;
    memset(out->logp, 0, batch->tokens_count * sizeof(float));
    if (out->entropy) memset(out->entropy, 0, batch->tokens_count * sizeof(float));
    head_arg head = {.acts = acts, .out = out};
    size_t step = acts->pass.logits_rows;
    k2_kern_team_run(m->team, (acts->rows_count + step - 1) / step, phase_head, &head);
    k2_kern_team_end(m->team);
    k2_hot_end();
    return acts;
}

/* What layer i's backward needs is there. The input of the next layer is written once more, with the same values. */
static void layer_restore(k2_model_acts *acts, uint32_t i)
{
    k2_recompute how = acts->batch.recompute;
    if (how == K2_RECOMPUTE_NONE || acts->held == i) return;
    acts->held = i;
    acts->pass.tops = NULL; /* they have been told */
    if (how == K2_RECOMPUTE_SELECTIVE)
        k2i_layer_refill(&acts->pass, i, &acts->layers[i]);
    else
        k2i_layer_fwd(&acts->pass, i, &acts->layers[i],
                      i + 1 < acts->m->d.num_hidden_layers ? acts->layers[i + 1].x : acts->x_last);
}

/* Embedding rows, in batch order for every id: tasks own columns. */
static void embed_bwd_task(void *arg, size_t task, uint32_t member)
{
    (void)member;
    k2_model_acts *acts = arg;
    k2_model *m = acts->m;
    size_t D = m->d.hidden_size, from = task * 256, n = K2_MIN((size_t)256, D - from);
    float *grads = acts->grads.flat + m->off_embed;
    for (size_t t = 0; t < acts->batch.tokens_count; t++) {
        k2_kern_add(n, acts->grads.dx + t * D + from, grads + (size_t)acts->batch.tokens[t] * D + from);
    }
}

void k2_model_bwd(k2_model *m, k2_model_acts *acts, const float *dlogp, float *grads)
{
    K2_ASSERT(acts->m == m && !acts->used && k2_compute_has_backward(m->compute));
    acts->used = true;
    k2_hot_begin();
    k2_kern_team_begin(m->team);
    acts->grads.flat = grads;
    k2i_back b = {.p = &acts->pass,
                  .g = &acts->grads,
                  .seq_starts = acts->batch.seq_starts,
                  .seqs_count = acts->batch.seqs_count,
                  .balance_weight = acts->batch.balance_weight};
    k2i_head_bwd(acts, dlogp);
    for (uint32_t i = m->d.num_hidden_layers; i-- > 0;) {
        layer_restore(acts, i);
        acts->pass.layer = i;
        acts->pass.a = &acts->layers[i];
        k2i_ffn_bwd(&b);
        k2i_attn_bwd(&b);
    }
    k2_kern_team_run(m->team, (m->d.hidden_size + 255) / 256, embed_bwd_task, acts);
    k2_kern_team_end(m->team);
    k2_hot_end();
}

/* ---- looking at the activations */

typedef struct piece {
    const char *what;
    const float *x; /* [rows, width]; NULL: not there in this layer */
    size_t rows, width;
} piece;

static bool piece_bad(const piece *p, const char *where, char *out, size_t n)
{
    for (size_t r = 0; p->x && r < p->rows; r++) {
        if (k2_kern_finite(p->width, p->x + r * p->width)) continue;
        snprintf(out, n, "%s%s, row %zu", where, p->what, r);
        return true;
    }
    return false;
}

/* In the order of computing, and only what this layer has written: the rest of the memory is of an earlier pass. */
static bool layer_bad(const k2_model *m, uint32_t layer, const k2i_acts *a, size_t T, char *out, size_t n)
{
    const k2_dims *d = &m->d;
    size_t D = d->hidden_size, H = d->num_attention_heads, K = d->num_experts_per_tok;
    bool moe = m->layers[layer].moe;
    const piece pieces[] = {
        {"input", a->x, T, D},
        {"normed input", a->h1, T, D},
        {"queries", a->q, T, H * (d->qk_nope_head_dim + d->qk_rope_head_dim)},
        {"latent keys", a->kva, T, m->width_kv},
        {"latent attention output", a->o_lat, T, H * d->kv_lora_rank},
        {"attention output", a->o, T, H * d->v_head_dim},
        {"after attention", a->x2, T, D},
        {"normed after attention", a->h2, T, D},
        {"router scores", moe ? a->scores : NULL, T, d->n_routed_experts},
        {"dense network", moe ? NULL : a->act, T, d->intermediate_size},
        {"shared experts", moe && d->n_shared_experts > 0 ? a->act : NULL, T, m->width_shared},
        {"experts", moe ? a->e_act : NULL, T * K, d->moe_intermediate_size},
        {"experts' output", moe ? a->e_out : NULL, T * K, D},
    };
    char where[32];
    snprintf(where, sizeof(where), "layer %u: ", layer);
    for (size_t i = 0; i < K2_COUNT(pieces); i++)
        if (piece_bad(&pieces[i], where, out, n)) return true;
    return false;
}

bool k2_model_acts_bad(k2_model_acts *acts, char *out, size_t n)
{
    K2_ASSERT(!acts->used);
    const k2_model *m = acts->m;
    size_t T = acts->batch.tokens_count;
    for (uint32_t i = 0; i < m->d.num_hidden_layers; i++) {
        layer_restore(acts, i);
        if (layer_bad(m, i, &acts->layers[i], T, out, n)) return true;
    }
    const piece last = {"output of the last layer", acts->x_last, T, m->d.hidden_size};
    return piece_bad(&last, "", out, n);
}
