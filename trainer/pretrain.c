/* pretrain - next-token prediction on documents. See pretrain_int.h. */
#include "trainer/pretrain_int.h"

#include <string.h>

#include "common/budget/budget.h"
#include "trainer/sampler_int.h"

#define PAGES_AROUND_BYTES (64u << 10) /* that Linux maps when one is touched */

struct k2i_pretrain {
    const k2_config *config;
    k2_idx *corpus;
    k2i_sampler *sampler;
    uint32_t batch, sequence;
    k2i_window *windows; /* [batch] */
    k2i_seq *seqs;       /* [batch] */
    uint32_t *lengths;   /* [batch] */
    k2i_micro *micros;   /* [batch] */
    uint32_t reads;      /* documents since pages of the corpus were given back */
    int32_t *tokens;     /* [batch, sequence + 1] */
    float *logp;         /* [batch, sequence] */
};

static uint64_t document_length(void *arg, uint64_t document)
{
    const k2_idx *corpus = arg;
    uint64_t first, end, tokens = 0;
    k2_idx_document(corpus, document, &first, &end);
    for (uint64_t s = first; s < end; s++) tokens += k2_idx_length(corpus, s);
    return tokens;
}

/* Tokens [offset, offset + count) of a document, over the borders of its sequences. */
static k2_code document_read(const k2_idx *corpus, uint64_t document, uint64_t offset, uint32_t count, int32_t *out,
                             k2_error *err)
{
    uint64_t first, end;
    k2_idx_document(corpus, document, &first, &end);
    for (uint64_t s = first; s < end && count > 0; s++) {
        uint32_t length = k2_idx_length(corpus, s);
        if (offset >= length) {
            offset -= length;
            continue;
        }
        uint32_t n = (uint32_t)K2_MIN((uint64_t)count, length - offset);
        k2_code code = k2_idx_read(corpus, s, (uint32_t)offset, n, out, err);
        if (code != K2_OK) return code;
        offset = 0;
        out += n;
        count -= n;
    }
    K2_ASSERT(count == 0);
    return K2_OK;
}

static k2_code corpus_open(k2i_pretrain *p, const k2_dims *dims, k2_error *err)
{
    const k2_config *c = p->config;
    if (p->sequence > c->trainer_micro_tokens || p->sequence > dims->max_position_embeddings)
        return k2_error_set(err, K2_LIMIT,
                            "pretrain.sequence_tokens: found %u, expected at most trainer.micro_tokens (%llu) and "
                            "max_position_embeddings (%u)",
                            p->sequence, (unsigned long long)c->trainer_micro_tokens, dims->max_position_embeddings);
    k2_code code = k2_idx_open(c->data_corpus, &p->corpus, err);
    if (code == K2_OK) code = k2_idx_check_vocab(p->corpus, dims->vocab_size, err);
    if (code == K2_OK)
        code = k2i_sampler_new(k2_idx_documents(p->corpus), document_length, p->corpus, p->sequence, c->seed, &p->sampler, err);
    return code;
}

k2_code k2i_pretrain_open(const k2_config *config, const k2_dims *dims, k2i_pretrain **out, k2_error *err)
{
    k2i_pretrain *p = k2_alloc(sizeof(*p));
    *p = (k2i_pretrain){.config = config,
                        .batch = (uint32_t)config->pretrain_batch_sequences,
                        .sequence = (uint32_t)config->pretrain_sequence_tokens};
    k2_code code = corpus_open(p, dims, err);
    if (code != K2_OK) {
        k2i_pretrain_close(p);
        return code;
    }
    p->windows = k2_alloc_array(p->batch, sizeof(*p->windows));
    p->seqs = k2_alloc_array(p->batch, sizeof(*p->seqs));
    p->lengths = k2_alloc_array(p->batch, sizeof(*p->lengths));
    p->micros = k2_alloc_array(p->batch, sizeof(*p->micros));
    p->tokens = k2_alloc_array((size_t)p->batch * (p->sequence + 1), sizeof(*p->tokens));
    p->logp = k2_alloc_array((size_t)p->batch * p->sequence, sizeof(*p->logp));
    *out = p;
    return K2_OK;
}

void k2i_pretrain_close(k2i_pretrain *p)
{
    if (!p) return;
    k2_free(p->logp);
    k2_free(p->tokens);
    k2_free(p->micros);
    k2_free(p->lengths);
    k2_free(p->seqs);
    k2_free(p->windows);
    k2i_sampler_free(p->sampler);
    k2_idx_close(p->corpus);
    k2_free(p);
}

/* A document read at a place of its own brings in pages around it: of three tables and of the tokens. Those of a corpus that is
 * small stay. */
static void pages_limit(k2i_pretrain *p)
{
    if (++p->reads < K2_BUDGET_CORPUS_BYTES / (4 * PAGES_AROUND_BYTES)) return;
    p->reads = 0;
    if (k2_idx_bytes(p->corpus) > K2_BUDGET_CORPUS_BYTES) k2_idx_forget(p->corpus);
}

static k2_code batch_read(k2i_pretrain *p, uint64_t step, uint64_t *predictions, k2_error *err)
{
    int32_t *tokens = p->tokens;
    *predictions = 0;
    k2i_sampler_step(p->sampler, step, p->batch, p->windows);
    for (uint32_t i = 0; i < p->batch; i++) {
        const k2i_window *w = &p->windows[i];
        k2_code code = document_read(p->corpus, w->document, w->offset, w->tokens + 1, tokens, err);
        if (code != K2_OK) return code;
        pages_limit(p);
        p->seqs[i] = (k2i_seq){.tokens = tokens, .rows = w->tokens, .at = *predictions};
        p->lengths[i] = w->tokens;
        tokens += w->tokens + 1;
        *predictions += w->tokens;
    }
    return K2_OK;
}

static k2i_update update_make(const k2_config *c, uint64_t step)
{
    uint64_t decay = c->pretrain_decay_steps;
    if (decay == 0 && c->pretrain_steps > c->pretrain_warmup_steps) decay = c->pretrain_steps - c->pretrain_warmup_steps;
    k2i_schedule schedule = {.kind = k2i_schedule_find(c->pretrain_schedule),
                             .lr = c->pretrain_lr,
                             .lr_min = c->pretrain_min_lr,
                             .warmup = c->pretrain_warmup_steps,
                             .decay = decay,
                             .total = c->pretrain_steps};
    return (k2i_update){.optim = {.beta1 = c->trainer_beta1,
                                  .beta2 = c->trainer_beta2,
                                  .eps = c->trainer_eps,
                                  .weight_decay = c->pretrain_weight_decay,
                                  .momentum = c->trainer_momentum,
                                  .nesterov = c->trainer_nesterov},
                        .lr = k2i_schedule_lr(&schedule, step + 1),
                        .clip_norm = c->pretrain_clip_norm,
                        .bias_rate = c->trainer_bias_update_rate,
                        .qk_clip = c->trainer_qk_clip};
}

static void step_report(const k2i_outcome *o, const k2i_update *u, k2i_learner *l, double seconds, k2i_metrics *m)
{
    k2i_metrics_set(m, "loss", o->sums[K2I_SUM_LOSS]);
    k2i_metrics_set(m, "grad_norm", o->grad_norm);
    k2i_metrics_set(m, "lr", u->lr);
    k2i_metrics_set(m, "entropy", o->sums[K2I_SUM_ENTROPY] / o->sums[K2I_SUM_PREDICTIONS]);
    k2i_metrics_set(m, "skipped", o->skipped);
    k2i_metrics_set(m, "attn_score_max", o->score_max);
    k2i_metrics_set(m, "qk_clipped", o->qk_clipped);
    k2i_metrics_set(m, "tokens_loss", o->sums[K2I_SUM_LOSS_TOKENS]);
    k2i_metrics_loads(m, l);
    k2i_metrics_speed(m, o->sums[K2I_SUM_TOKENS], seconds);
}

/* Sequences of a step, in the order of their packing. */
typedef struct sequences {
    uint32_t count;
    uint64_t predictions;
    const k2i_seq *seqs;
    const uint32_t *lengths;
    k2i_micro *micros;
    float *logp;
} sequences;

static k2_code sequences_train(const k2_config *c, k2i_learner *l, uint64_t step, const sequences *s, k2i_metrics *metrics,
                               const char **bad, k2_error *err)
{
    uint64_t began = k2_now_ns();
    k2i_outcome outcome;
    k2i_update update = update_make(c, step);
    k2i_pass pass = {.ops = k2i_loss_find("cross_entropy"),
                     .seqs = s->seqs,
                     .micros = s->micros,
                     .logp = s->logp,
                     .balance_weight = c->trainer_balance_weight};
    k2_code code = k2i_pack(s->lengths, s->count, (uint32_t)c->trainer_micro_tokens, (uint32_t)c->trainer_grad_lanes, s->micros,
                            &pass.micro_count, err);
    pass.scale = (k2i_loss_scale){.trajectories = s->count, .tokens = s->predictions};
    if (code == K2_OK) code = k2i_learner_update(l, &pass, &update, &outcome, err);
    if (code != K2_OK) return code;
    k2i_metrics_set(metrics, "balance", outcome.sums[K2I_SUM_BALANCE] / s->count);
    step_report(&outcome, &update, l, (double)(k2_now_ns() - began) / 1e9, metrics);
    *bad = outcome.bad;
    return K2_OK;
}

k2_code k2i_pretrain_step(k2i_pretrain *p, k2i_learner *l, uint64_t step, k2i_metrics *metrics, const char **bad, k2_error *err)
{
    sequences s = {.count = p->batch, .seqs = p->seqs, .lengths = p->lengths, .micros = p->micros, .logp = p->logp};
    k2_code code = batch_read(p, step, &s.predictions, err);
    return code == K2_OK ? sequences_train(p->config, l, step, &s, metrics, bad, err) : code;
}

static sequences sequences_of(const k2_batch *batch)
{
    uint32_t n = batch->trajectories;
    k2i_seq *seqs = k2_alloc_array(n, sizeof(*seqs));
    uint32_t *lengths = k2_alloc_array(n, sizeof(*lengths));
    sequences s = {.count = n,
                   .seqs = seqs,
                   .lengths = lengths,
                   .micros = k2_alloc_array(n, sizeof(*s.micros)),
                   .logp = k2_alloc_array(batch->generated, sizeof(*s.logp))};
    for (uint32_t i = 0; i < n; i++) {
        k2_batch_trajectory t;
        k2_batch_get(batch, i, &t);
        lengths[i] = t.generated_tokens;
        seqs[i] = (k2i_seq){.tokens = t.tokens, .rows = t.generated_tokens, .at = s.predictions};
        s.predictions += t.generated_tokens;
    }
    return s;
}

static void sequences_free(sequences *s)
{
    k2_free(s->logp);
    k2_free(s->micros);
    k2_free((void *)(uintptr_t)s->lengths);
    k2_free((void *)(uintptr_t)s->seqs);
}

k2_code k2i_pretrain_repeat(const k2_config *config, k2i_learner *l, const k2_batch *batch, k2i_metrics *metrics,
                            const char **bad, k2_error *err)
{
    sequences s = sequences_of(batch);
    k2_code code = sequences_train(config, l, batch->step, &s, metrics, bad, err);
    sequences_free(&s);
    return code;
}

void k2i_pretrain_each(const k2_batch *batch, k2i_visit visit, void *arg)
{
    sequences s = sequences_of(batch);
    for (uint32_t i = 0; i < s.count; i++) {
        k2i_micro micro = {.first = 0, .count = 1, .tokens = s.seqs[i].rows};
        k2i_pass one = {.ops = k2i_loss_find("cross_entropy"),
                        .scale = {.trajectories = s.count, .tokens = s.predictions},
                        .seqs = &s.seqs[i],
                        .micros = &micro,
                        .micro_count = 1,
                        .logp = s.logp};
        visit(arg, &one, i);
    }
    sequences_free(&s);
}

k2_code k2i_pretrain_encode(const k2i_pretrain *p, uint64_t step, k2_buf *out, k2_error *err)
{
    k2_batch_trajectory *list = k2_alloc_array(p->batch, sizeof(*list));
    uint32_t *versions = k2_alloc_array(p->sequence, sizeof(*versions));
    float *logps = k2_alloc_array(p->sequence, sizeof(*logps));
    for (uint32_t i = 0; i < p->batch; i++)
        list[i] = (k2_batch_trajectory){.id = i,
                                        .group = i,
                                        .prompt_tokens = 1,
                                        .generated_tokens = p->seqs[i].rows,
                                        .finish = K2_BATCH_LENGTH,
                                        .tokens = p->seqs[i].tokens,
                                        .logps = logps,
                                        .versions = versions};
    k2_code code = k2_batch_encode(step, list, p->batch, out, err);
    k2_free(logps);
    k2_free(versions);
    k2_free(list);
    return code;
}
