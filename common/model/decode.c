/* The engine's half: rows of many sequences through all layers at once, over cached latent pages. */
#include "common/model/model_int.h"

#include <string.h>

size_t k2_model_page_floats(const k2_dims *d, uint32_t page_tokens)
{
    return (size_t)d->num_hidden_layers * page_tokens * k2_dims_key_floats(d);
}

typedef struct decode_mem {
    k2i_pass pass;
    k2i_acts acts;
    float *x_next;
    uint32_t *position, *wanted; /* wanted: rows that ask for logits */
    size_t wanted_count;
} decode_mem;

static void carve_all(k2i_carver *c, const k2_dims *d, uint32_t threads, size_t rows, size_t positions, decode_mem *mem)
{
    memset(mem, 0, sizeof(*mem));
    k2i_acts_carve_input(c, d, rows, &mem->acts);
    k2i_acts_carve_cheap(c, d, rows, &mem->acts);
    k2i_acts_carve_rest(c, d, rows, &mem->acts);
    mem->x_next = k2i_carve(c, rows * d->hidden_size, sizeof(float));
    mem->position = k2i_carve(c, rows, sizeof(uint32_t));
    mem->wanted = k2i_carve(c, rows, sizeof(uint32_t));
    k2i_pass_carve(c, d, threads, rows, positions, &mem->pass);
}

size_t k2_model_decode_bytes(const k2_dims *dims, uint32_t threads, size_t rows, size_t positions)
{
    k2i_carver c = {0};
    decode_mem mem;
    carve_all(&c, dims, threads, rows, positions, &mem);
    return c.bytes;
}

static size_t rows_check(const k2_model *m, const k2_model_kv *kv, const k2_model_row *rows, size_t count)
{
    size_t longest = 1;
    K2_ASSERT(kv->page_tokens >= 1 && count <= UINT32_MAX / K2_DIM_TOPK_MAX);
    for (size_t i = 0; i < count; i++) {
        K2_ASSERT(rows[i].token >= 0 && (uint32_t)rows[i].token < m->d.vocab_size);
        K2_ASSERT(rows[i].position < m->d.max_position_embeddings);
        for (uint32_t p = 0; p <= rows[i].position / kv->page_tokens; p++) K2_ASSERT(rows[i].page_table[p] < kv->pages_count);
        longest = K2_MAX(longest, (size_t)rows[i].position + 1);
    }
    return longest;
}

typedef struct head_arg {
    decode_mem *mem;
    const float *x;
    size_t from, n; /* wanted rows [from, from+n) that are at work; few rows only */
} head_arg;

/* Hidden states of wanted rows [from, from+n), normed. The same steps as the trainer's head, so that the bits are the same. */
static void head_norm(const head_arg *h, size_t from, size_t n, k2i_scratch *s)
{
    k2_model *m = h->mem->pass.m;
    size_t D = m->d.hidden_size;
    for (size_t i = 0; i < n; i++) memcpy(s->rows_a + i * D, h->x + (size_t)h->mem->wanted[from + i] * D, D * sizeof(float));
    k2_kern_rmsnorm_fwd(n, D, s->rows_a, D, m->params + m->off_norm, (float)m->d.rms_norm_eps, s->rows_a, D, NULL);
}

/* Logits of wanted row i, to where the caller wants them. */
static void head_give(const head_arg *h, size_t i, const float *logits)
{
    size_t V = h->mem->pass.m->d.vocab_size;
    const k2_model_row *row = &h->mem->pass.list[h->mem->wanted[i]];
    memcpy(row->logits, logits, V * sizeof(float));
    if (row->softmax) *row->softmax = k2_kern_softmax_row(logits, V);
}

static void phase_head(void *arg, size_t task, uint32_t member)
{
    const head_arg *h = arg;
    k2i_pass *p = &h->mem->pass;
    k2_model *m = p->m;
    k2i_scratch *s = &p->scratch[member];
    size_t from = task * p->logits_rows, n = K2_MIN(p->logits_rows, h->mem->wanted_count - from);
    size_t D = m->d.hidden_size, V = m->d.vocab_size;
    head_norm(h, from, n, s);
    k2i_linear(m->pack_head, V, D, n, s->rows_a, D, s->logits, V);
    for (size_t i = 0; i < n; i++) head_give(h, from + i, s->logits + i * V);
}

/* Few rows: all threads share the columns of some rows' logits, in the caller's scratch. */
static void few_logits(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const head_arg *h = arg;
    k2i_pass *p = &h->mem->pass;
    size_t D = p->m->d.hidden_size, V = p->m->d.vocab_size;
    k2_range cols = k2_kern_share(V, K2_PANEL_COLUMNS, k2_kern_team_threads(p->m->team), task);
    k2i_linear_cols(p->m->pack_head, cols, D, h->n, p->scratch[0].rows_a, D, p->scratch[0].logits, V);
}

static void few_give(void *arg, size_t task, uint32_t member)
{
    (void)member;
    const head_arg *h = arg;
    head_give(h, h->from + task, h->mem->pass.scratch[0].logits + task * h->mem->pass.m->d.vocab_size);
}

static void head(decode_mem *mem)
{
    k2i_pass *p = &mem->pass;
    k2_team *team = p->m->team;
    head_arg h = {.mem = mem, .x = mem->acts.x};
    size_t step = p->logits_rows;
    if (!p->few) {
        k2_kern_team_run(team, (mem->wanted_count + step - 1) / step, phase_head, &h);
        return;
    }
    for (; h.from < mem->wanted_count; h.from += step) {
        h.n = K2_MIN(step, mem->wanted_count - h.from);
        head_norm(&h, h.from, h.n, &p->scratch[0]);
        k2_kern_team_run(team, k2_kern_team_threads(team), few_logits, &h);
        k2_kern_team_run(team, h.n, few_give, &h);
    }
}

void k2_model_decode(k2_model *m, const k2_model_kv *kv, const k2_model_row *rows, size_t rows_count, k2_arena *arena)
{
    if (rows_count == 0) return;
    size_t longest = rows_check(m, kv, rows, rows_count), mark = k2_arena_mark(arena);
    k2_hot_begin();
    k2_kern_team_begin(m->team);
    k2i_carver c = {.arena = arena};
    decode_mem mem;
    carve_all(&c, &m->d, k2_kern_team_threads(m->team), rows_count, longest, &mem);
    mem.pass.m = m;
    mem.pass.list = rows;
    mem.pass.kv = kv;
    mem.pass.position = mem.position;
    size_t D = m->d.hidden_size;
    for (size_t i = 0; i < rows_count; i++) {
        mem.position[i] = rows[i].position;
        memcpy(mem.acts.x + i * D, m->params + m->off_embed + (size_t)rows[i].token * D, D * sizeof(float));
        if (rows[i].logits) mem.wanted[mem.wanted_count++] = (uint32_t)i;
    }
    for (uint32_t l = 0; l < m->d.num_hidden_layers; l++) {
        k2i_layer_fwd(&mem.pass, l, &mem.acts, mem.x_next);
        float *x = mem.acts.x;
        mem.acts.x = mem.x_next;
        mem.x_next = x;
    }
    head(&mem);
    k2_arena_reset(arena, mark);
    k2_kern_team_end(m->team);
    k2_hot_end();
}
