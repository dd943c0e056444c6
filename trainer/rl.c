/* rl - from a batch of trajectories to updates of the weights. See rl_int.h. */
#include "trainer/rl_int.h"

#include "trainer/shape_int.h"

#include <math.h>
#include <string.h>

typedef unsigned long long ull;

/* A batch laid out for the learner. Trajectory i's predictions stand from seqs[i].at on in every per-prediction array. */
typedef struct rl_step {
    k2i_learner *l;
    const k2_config *config;
    uint32_t count, groups;
    k2i_seq *seqs;         /* [count] */
    uint32_t *group_start; /* [groups + 1] */
    uint32_t *lengths;     /* [count] rows */
    uint32_t *answers;     /* [count] generated tokens */
    k2i_micro *micros;     /* [count] */
    double *reward, *shaped, *advantage;
    float *logp, *old, *rollout;
    uint8_t *use;
    k2i_kl kl;
    float *reference; /* log-probabilities of the frozen model, of this rank's lanes; NULL: there is none */
    double *k, *each; /* estimates of all ranks; advantages of tokens. NULL unless they are for the reward */
    double kl_sum;
    bool old_needed;
    k2i_update update;
    double first[K2I_SUM_COUNT]; /* sums of the first pass over the whole batch */
    double loss, grad_norm, rows;
    double score_max;    /* of all updates */
    uint32_t qk_clipped; /* heads, of all updates */
    k2i_outcome last;
    uint32_t updates;
} rl_step;

/* What an update may have spoilt before a later one of the same step met NaN. */
typedef struct backup {
    float *params, *m, *v;
    uint64_t updates;
} backup;

k2_code k2i_rl_check(const k2_batch *batch, const k2_dims *dims, const k2_config *config, k2_error *err)
{
    for (uint32_t i = 0; i < batch->trajectories; i++) {
        k2_batch_trajectory t;
        k2_batch_get(batch, i, &t);
        uint64_t tokens = (uint64_t)t.prompt_tokens + t.generated_tokens;
        if (t.prompt_tokens == 0 || t.generated_tokens == 0)
            return k2_error_set(err, K2_BAD_INPUT,
                                "trajectory %llu: %u prompt and %u generated tokens, expected at least one of each", (ull)t.id,
                                t.prompt_tokens, t.generated_tokens);
        if (tokens > dims->max_position_embeddings || tokens - 1 > config->trainer_micro_tokens)
            return k2_error_set(err, K2_LIMIT,
                                "trajectory %llu: %llu tokens, expected at most %u (max_position_embeddings) and %llu "
                                "(trainer.micro_tokens)",
                                (ull)t.id, (ull)tokens, dims->max_position_embeddings, (ull)config->trainer_micro_tokens + 1);
        for (uint64_t k = 0; k < tokens; k++)
            if (t.tokens[k] < 0 || (uint32_t)t.tokens[k] >= dims->vocab_size)
                return k2_error_set(err, K2_BAD_INPUT, "trajectory %llu: token %d at %llu, expected 0 to %u", (ull)t.id,
                                    t.tokens[k], (ull)k, dims->vocab_size - 1);
        for (uint32_t k = 0; k < t.generated_tokens; k++)
            if (t.versions[k] >= batch->step)
                return k2_error_set(err, K2_BAD_INPUT, "trajectory %llu: token of version %u at %u, expected at most %llu",
                                    (ull)t.id, t.versions[k], k, (ull)batch->step - 1);
    }
    return K2_OK;
}

/* ---- laying out ---- */

static void trajectory_lay(rl_step *s, const k2_batch *batch, const k2_batch_trajectory *t, uint32_t i, uint64_t at)
{
    const bool correct_old = strcmp(s->config->trainer_old_segments, "correct") == 0;
    const uint32_t last = t->versions[t->generated_tokens - 1]; /* whole groups are trained: it may be older, too */
    s->seqs[i] = (k2i_seq){
        .tokens = t->tokens, .rows = t->prompt_tokens + t->generated_tokens - 1, .first = t->prompt_tokens - 1, .at = at};
    s->lengths[i] = s->seqs[i].rows;
    s->answers[i] = t->generated_tokens;
    s->reward[i] = (double)t->reward;
    memcpy(s->rollout + at, t->logps, t->generated_tokens * sizeof(float));
    for (uint32_t k = 0; k < t->generated_tokens; k++)
        s->use[at + k] = t->versions[k] + 1 == batch->step       ? K2I_USE_CURRENT
                         : correct_old || t->versions[k] == last ? K2I_USE_OLDER
                                                                 : K2I_USE_NONE;
}

static void batch_lay(rl_step *s, const k2_batch *batch)
{
    uint64_t at = 0, group = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        k2_batch_trajectory t;
        k2_batch_get(batch, i, &t);
        trajectory_lay(s, batch, &t, i, at);
        if (i == 0 || t.group != group) s->group_start[s->groups++] = i;
        group = t.group;
        at += t.generated_tokens;
    }
    s->group_start[s->groups] = s->count;
}

static bool group_flat(const rl_step *s, uint32_t g)
{
    for (uint32_t i = s->group_start[g] + 1; i < s->group_start[g + 1]; i++)
        if (s->reward[i] != s->reward[i - 1]) return false;
    return true;
}

/* Predictions of trajectory i that are in the loss. */
static uint64_t loss_tokens(const rl_step *s, uint32_t i)
{
    uint64_t n = 0;
    for (uint32_t k = 0; k < s->answers[i]; k++) n += s->use[s->seqs[i].at + k] != K2I_USE_NONE;
    return n;
}

static void group_drop(rl_step *s, uint32_t g)
{
    for (uint32_t i = s->group_start[g]; i < s->group_start[g + 1]; i++)
        memset(s->use + s->seqs[i].at, K2I_USE_NONE, s->answers[i]);
}

/* Groups that the loss leaves out: by what was scored, a punished length is no difference. */
static void flat_drop(rl_step *s, const k2i_loss_ops *ops)
{
    for (uint32_t g = 0; g < s->groups && ops->drops_flat; g++)
        if (group_flat(s, g)) group_drop(s, g);
}

static double sum_of(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* Each token of trajectory i has the reward that is to go from it, over the whole step's tokens like the others' rewards. */
static void returns_fill(rl_step *s, const k2i_loss_ops *ops, uint64_t generated)
{
    uint64_t *tokens = k2_alloc_array(generated, sizeof(*tokens));
    for (uint64_t t = 0; t < generated; t++) tokens[t] = s->use[t] != K2I_USE_NONE;
    for (uint32_t i = 0; i < s->count; i++)
        k2i_kl_returns(s->shaped[i], s->kl.weight, s->answers[i], s->k + s->seqs[i].at, s->each + s->seqs[i].at);
    K2_ASSERT(generated <= UINT32_MAX);
    if (generated > 0) ops->over_batch(tokens, (uint32_t)generated, s->each);
    for (uint32_t i = 0; i < s->count; i++) s->seqs[i].advantage = s->each[s->seqs[i].at];
    k2_free(tokens);
}

static void advantages_fill(rl_step *s, const k2i_loss_ops *ops, uint64_t step)
{
    const k2_config *c = s->config;
    uint64_t *tokens = k2_alloc_array(s->count, sizeof(*tokens));
    k2i_shape shape = {.length_weight = step >= c->trainer_length_from ? c->trainer_length_weight : 0,
                       .correct = c->reward_correct,
                       .longest = c->rollout_max_tokens,
                       .overlong = c->trainer_overlong_tokens};
    for (uint32_t g = 0; g < s->groups; g++) {
        uint32_t from = s->group_start[g], n = s->group_start[g + 1] - from;
        k2i_shape_group(&shape, n, s->reward + from, s->answers + from, s->shaped + from);
        for (uint32_t i = from; i < from + n && s->k && !s->each; i++)
            s->shaped[i] -= s->kl.weight * sum_of(s->k + s->seqs[i].at, s->answers[i]);
        ops->advantage(s->shaped + from, n, s->advantage + from);
    }
    for (uint32_t i = 0; i < s->count; i++) tokens[i] = loss_tokens(s, i);
    if (s->count > 0) ops->over_batch(tokens, s->count, s->advantage);
    for (uint32_t i = 0; i < s->count; i++) s->seqs[i].advantage = s->advantage[i];
    k2_free(tokens);
}

static void step_begin(rl_step *s, k2i_learner *l, const k2_config *config, const k2i_loss_ops *ops, const k2_batch *batch)
{
    uint32_t n = batch->trajectories;
    *s = (rl_step){.l = l, .config = config, .count = n, .kl = k2i_kl_of(config)};
    if (s->kl.place != K2I_KL_OFF) s->reference = k2_alloc_array(batch->generated, sizeof(float));
    if (s->kl.place == K2I_KL_IN_REWARD) s->k = k2_alloc_array(batch->generated, sizeof(double));
    if (s->kl.place == K2I_KL_IN_REWARD && ops->to_go) s->each = k2_alloc_array(batch->generated, sizeof(double));
    s->seqs = k2_alloc_array(n, sizeof(*s->seqs));
    s->group_start = k2_alloc_array((size_t)n + 1, sizeof(*s->group_start));
    s->lengths = k2_alloc_array(n, sizeof(*s->lengths));
    s->answers = k2_alloc_array(n, sizeof(*s->answers));
    s->micros = k2_alloc_array(n, sizeof(*s->micros));
    s->shaped = k2_alloc_array(n, sizeof(*s->shaped));
    s->reward = k2_alloc_array(n, sizeof(*s->reward));
    s->advantage = k2_alloc_array(n, sizeof(*s->advantage));
    s->logp = k2_alloc_array(batch->generated, sizeof(float));
    s->old = k2_alloc_array(batch->generated, sizeof(float));
    s->rollout = k2_alloc_array(batch->generated, sizeof(float));
    s->use = k2_alloc_array(batch->generated, 1);
    k2i_schedule schedule = {.kind = k2i_schedule_find(config->trainer_schedule),
                             .lr = config->trainer_lr,
                             .lr_min = config->trainer_min_lr,
                             .warmup = config->trainer_warmup_steps,
                             .decay = config->trainer_decay_steps,
                             .total = config->trainer_total_steps};
    s->update = (k2i_update){.optim = {.beta1 = config->trainer_beta1,
                                       .beta2 = config->trainer_beta2,
                                       .eps = config->trainer_eps,
                                       .weight_decay = config->trainer_weight_decay,
                                       .momentum = config->trainer_momentum,
                                       .nesterov = config->trainer_nesterov},
                             .lr = k2i_schedule_lr(&schedule, batch->step),
                             .clip_norm = config->trainer_clip_norm,
                             .bias_rate = config->trainer_bias_update_rate,
                             .qk_clip = config->trainer_qk_clip};
    batch_lay(s, batch);
}

static void step_end(rl_step *s)
{
    k2_free(s->each);
    k2_free(s->k);
    k2_free(s->reference);
    k2_free(s->use);
    k2_free(s->rollout);
    k2_free(s->old);
    k2_free(s->logp);
    k2_free(s->advantage);
    k2_free(s->reward);
    k2_free(s->shaped);
    k2_free(s->micros);
    k2_free(s->answers);
    k2_free(s->lengths);
    k2_free(s->group_start);
    k2_free(s->seqs);
}

/* ---- passes ---- */

/* Trajectories of minibatch `part`, and its pass. False: not one token of it is in the loss. */
static bool minibatch_plan(rl_step *s, const k2i_loss_ops *ops, uint64_t part, k2i_pass *pass)
{
    uint64_t parts = s->config->trainer_minibatches;
    uint32_t from = s->group_start[part * s->groups / parts], to = s->group_start[(part + 1) * s->groups / parts],
             n = to - from;
    k2_error err;
    *pass = (k2i_pass){.ops = ops,
                       .seqs = s->seqs + from,
                       .micros = s->micros,
                       .logp = s->logp,
                       .logp_old = s->old_needed ? s->old : NULL,
                       .rollout = s->rollout,
                       .use = s->use,
                       .correct_current = s->config->trainer_correction,
                       .correction = {.masks = strcmp(s->config->trainer_correction_kind, "icepop") == 0,
                                      .min = s->config->trainer_correction_min,
                                      .max = s->config->trainer_correction_max},
                       .kl = s->kl,
                       .reference = s->kl.place == K2I_KL_IN_LOSS ? s->reference : NULL,
                       .each = s->each,
                       .balance_weight = s->config->trainer_balance_weight};
    k2_code code = k2i_pack(s->lengths + from, n, (uint32_t)s->config->trainer_micro_tokens,
                            (uint32_t)s->config->trainer_grad_lanes, s->micros, &pass->micro_count, &err);
    K2_ASSERT(code == K2_OK); /* k2i_rl_check has seen every length */
    pass->scale = (k2i_loss_scale){.tau = s->config->trainer_tau,
                                   .clip_low = s->config->trainer_clip_low,
                                   .clip_high = s->config->trainer_clip_high,
                                   .trajectories = n};
    for (uint32_t i = from; i < to; i++) pass->scale.tokens += loss_tokens(s, i);
    return pass->scale.tokens > 0;
}

static uint64_t updates_planned(rl_step *s, const k2i_loss_ops *ops)
{
    uint64_t parts = 0;
    k2i_pass pass;
    for (uint64_t p = 0; p < s->config->trainer_minibatches; p++) parts += minibatch_plan(s, ops, p, &pass);
    return parts * s->config->trainer_epochs;
}

/* Forwards of the minibatches, in the lanes that their updates have; `but_first` leaves out the first one that makes an update.
 */
static void forward_fill(rl_step *s, const k2i_loss_ops *ops, bool but_first, float *logp)
{
    k2i_pass pass;
    for (uint64_t p = 0; p < s->config->trainer_minibatches; p++) {
        if (!minibatch_plan(s, ops, p, &pass)) continue;
        pass.logp = logp;
        if (!but_first) k2i_learner_forward(s->l, &pass);
        but_first = false;
    }
}

#define GATHERED_AT_ONCE 8192u /* estimates of one collective */

/* Each rank knows the tokens of its own lanes. Of the others both log-probabilities are 0 here, and so is every estimate: a sum
 * over ranks is the one that knows it. */
static k2_code estimates_gather(rl_step *s, uint64_t generated, k2_error *err)
{
    k2_coll *coll = k2i_learner_coll(s->l);
    uint32_t ranks = k2_coll_ranks(coll);
    k2_code code = K2_OK;
    double *all = k2_alloc_array((size_t)ranks * GATHERED_AT_ONCE, sizeof(*all)), used = 0;
    for (uint64_t t = 0; t < generated; t++)
        if (s->use[t] != K2I_USE_NONE) s->k[t] = k2i_kl_estimate(s->kl.kind, (double)s->old[t] - (double)s->reference[t], NULL);
    for (uint64_t at = 0; at < generated && code == K2_OK && ranks > 1; at += GATHERED_AT_ONCE) {
        uint32_t n = (uint32_t)K2_MIN(generated - at, (uint64_t)GATHERED_AT_ONCE);
        code = k2_coll_all_gather_f64(coll, s->k + at, n, all, err);
        for (uint32_t i = 0; i < n && code == K2_OK; i++) {
            s->k[at + i] = all[i];
            for (uint32_t r = 1; r < ranks; r++) s->k[at + i] += all[(size_t)r * n + i];
        }
    }
    for (uint64_t t = 0; t < generated; t++) {
        s->kl_sum += s->k[t];
        used += s->use[t] != K2I_USE_NONE;
    }
    s->kl_sum = used > 0 ? s->kl_sum / used : 0;
    k2_free(all);
    return code;
}

/* What the frozen model says of the answers, and of it all that the rewards need. */
static k2_code reference_fill(rl_step *s, const k2i_loss_ops *ops, uint64_t generated, k2_error *err)
{
    if (s->kl.place == K2I_KL_OFF) return K2_OK;
    k2i_learner_reference_swap(s->l);
    forward_fill(s, ops, false, s->reference);
    k2i_learner_reference_swap(s->l);
    if (s->kl.place == K2I_KL_IN_LOSS) return K2_OK;
    forward_fill(s, ops, false, s->old);
    return estimates_gather(s, generated, err);
}

/* Everything that is known before the first update. A collective. */
static k2_code step_prepare(rl_step *s, const k2i_loss_ops *ops, const k2_batch *batch, k2_error *err)
{
    flat_drop(s, ops);
    k2_code code = reference_fill(s, ops, batch->generated, err);
    if (code != K2_OK) return code;
    advantages_fill(s, ops, batch->step);
    if (s->each) returns_fill(s, ops, batch->generated);
    return K2_OK;
}

static void outcome_add(rl_step *s, const k2i_outcome *o, uint64_t epoch)
{
    for (int i = 0; i < K2I_SUM_COUNT && epoch == 0; i++)
        s->first[i] = i == K2I_SUM_MISMATCH_MAX ? K2_MAX(s->first[i], o->sums[i]) : s->first[i] + o->sums[i];
    s->loss += o->sums[K2I_SUM_LOSS];
    s->grad_norm += o->grad_norm;
    s->rows += o->sums[K2I_SUM_TOKENS];
    s->score_max = s->updates == 0 ? o->score_max : K2_MAX(s->score_max, o->score_max);
    s->qk_clipped += o->qk_clipped;
    s->last = *o;
    s->updates++;
}

static k2_code passes_run(rl_step *s, const k2i_loss_ops *ops, const char **bad, k2_error *err)
{
    k2i_pass pass;
    for (uint64_t epoch = 0; epoch < s->config->trainer_epochs; epoch++)
        for (uint64_t part = 0; part < s->config->trainer_minibatches; part++) {
            k2i_outcome outcome;
            if (!minibatch_plan(s, ops, part, &pass)) continue;
            if (s->updates == 0) {
                pass.logp_old = NULL;
                pass.logp = s->old;
            }
            k2_code code = k2i_learner_update(s->l, &pass, &s->update, &outcome, err);
            if (code != K2_OK) return code;
            outcome_add(s, &outcome, epoch);
            *bad = outcome.bad;
            if (*bad) return K2_OK;
        }
    return K2_OK;
}

/* ---- going back ---- */

static void backup_take(backup *b, k2i_learner *l)
{
    k2i_optim *o = k2i_learner_optim(l);
    size_t floats = k2_model_param_count(k2i_learner_model(l)), own = o->end - o->begin;
    b->updates = o->updates;
    b->params = k2_alloc_array(floats, sizeof(float));
    b->m = k2_alloc_array(own, sizeof(float));
    b->v = k2_alloc_array(own, sizeof(float));
    memcpy(b->params, k2i_learner_params(l), floats * sizeof(float));
    memcpy(b->m, o->m, own * sizeof(float));
    memcpy(b->v, o->v, own * sizeof(float));
}

static void backup_restore(const backup *b, k2i_learner *l)
{
    k2i_optim *o = k2i_learner_optim(l);
    size_t own = o->end - o->begin;
    o->updates = b->updates;
    memcpy(o->m, b->m, own * sizeof(float));
    memcpy(o->v, b->v, own * sizeof(float));
    memcpy(k2i_learner_params(l), b->params, k2_model_param_count(k2i_learner_model(l)) * sizeof(float));
    k2i_learner_params_changed(l);
}

static void backup_drop(backup *b)
{
    k2_free(b->v);
    k2_free(b->m);
    k2_free(b->params);
}

/* ---- what it looked like ---- */

static void rewards_report(const rl_step *s, k2i_metrics *m)
{
    double sum = 0, square = 0;
    uint32_t flat = 0;
    for (uint32_t i = 0; i < s->count; i++) sum += s->reward[i];
    double mean = s->count > 0 ? sum / s->count : 0;
    for (uint32_t i = 0; i < s->count; i++) square += (s->reward[i] - mean) * (s->reward[i] - mean);
    for (uint32_t g = 0; g < s->groups; g++) flat += group_flat(s, g);
    k2i_metrics_set(m, "reward_mean", mean);
    k2i_metrics_set(m, "reward_std", s->count > 0 ? sqrt(square / s->count) : 0);
    k2i_metrics_set(m, "groups", s->groups);
    k2i_metrics_set(m, "groups_flat", flat);
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static void step_report(const rl_step *s, const k2_batch *batch, bool skipped, double seconds, k2i_metrics *m)
{
    const double *first = s->first, *last = s->last.sums;
    bool ratios = last[K2I_SUM_LOSS_TOKENS] > 0;
    k2i_metrics_set(m, "loss", share(s->loss, s->updates));
    k2i_metrics_set(m, "grad_norm", share(s->grad_norm, s->updates));
    k2i_metrics_set(m, "lr", s->update.lr);
    k2i_metrics_set(m, "updates", skipped ? 0 : s->updates);
    k2i_metrics_set(m, "skipped", skipped);
    k2i_metrics_set(m, "tokens_loss", first[K2I_SUM_LOSS_TOKENS]);
    k2i_metrics_set(m, "masked_tokens", (double)batch->generated - first[K2I_SUM_LOSS_TOKENS]);
    k2i_metrics_set(m, "entropy", share(first[K2I_SUM_ENTROPY], first[K2I_SUM_PREDICTIONS]));
    k2i_metrics_set(m, "mismatch_mean", share(first[K2I_SUM_MISMATCH], first[K2I_SUM_CURRENT]));
    k2i_metrics_set(m, "mismatch_max", first[K2I_SUM_MISMATCH_MAX]);
    k2i_metrics_set(m, "correction_mean", share(first[K2I_SUM_WEIGHT], first[K2I_SUM_LOSS_TOKENS]));
    k2i_metrics_set(m, "ratio_mean", ratios ? last[K2I_SUM_RATIO] / last[K2I_SUM_LOSS_TOKENS] : 1);
    k2i_metrics_set(m, "ratio_min", ratios ? last[K2I_SUM_RATIO_MIN] : 1);
    k2i_metrics_set(m, "ratio_max", ratios ? last[K2I_SUM_RATIO_MAX] : 1);
    k2i_metrics_set(m, "clip_share", share(last[K2I_SUM_CLIPPED], last[K2I_SUM_LOSS_TOKENS]));
    rewards_report(s, m);
    if (s->kl.place != K2I_KL_OFF)
        k2i_metrics_set(m, "kl", s->k ? s->kl_sum : share(first[K2I_SUM_KL], first[K2I_SUM_LOSS_TOKENS]));
    k2i_metrics_set(m, "balance", share(first[K2I_SUM_BALANCE], s->count));
    k2i_metrics_set(m, "attn_score_max", s->score_max);
    k2i_metrics_set(m, "qk_clipped", s->qk_clipped);
    if (s->updates > 0) k2i_metrics_loads(m, s->l);
    k2i_metrics_speed(m, s->rows, seconds);
}

k2_code k2i_rl_step(k2i_learner *l, const k2_config *config, const k2_batch *batch, k2i_metrics *metrics, const char **bad,
                    k2_error *err)
{
    const k2i_loss_ops *ops = k2i_loss_find(config->trainer_loss);
    K2_ASSERT(ops && ops->needs_old);
    uint64_t began = k2_now_ns();
    rl_step s;
    backup b = {0};
    const char *why = NULL;
    step_begin(&s, l, config, ops, batch);
    k2_code code = step_prepare(&s, ops, batch, err);
    if (config->trainer_reset_optimizer) k2i_optim_reset(k2i_learner_optim(l));
    s.old_needed = updates_planned(&s, ops) > 1;
    if (code == K2_OK && s.old_needed) {
        backup_take(&b, l);
        forward_fill(&s, ops, true, s.old); /* the first one's own forward still runs on the old weights */
    }
    if (code == K2_OK) code = passes_run(&s, ops, &why, err);
    if (code == K2_OK && why && s.old_needed) backup_restore(&b, l);
    if (code == K2_OK) {
        step_report(&s, batch, why != NULL, (double)(k2_now_ns() - began) / 1e9, metrics);
        *bad = why;
    }
    backup_drop(&b);
    step_end(&s);
    return code;
}

void k2i_rl_each(k2i_learner *l, const k2_config *config, const k2_batch *batch, k2i_visit visit, void *arg)
{
    const k2i_loss_ops *ops = k2i_loss_find(config->trainer_loss);
    rl_step s;
    step_begin(&s, l, config, ops, batch);
    k2_error alone; /* no other rank is asked */
    k2_code code = step_prepare(&s, ops, batch, &alone);
    K2_ASSERT(code == K2_OK);
    for (uint64_t part = 0; part < config->trainer_minibatches; part++) {
        k2i_pass pass;
        (void)minibatch_plan(&s, ops, part, &pass);
        uint32_t from = (uint32_t)(pass.seqs - s.seqs), n = (uint32_t)pass.scale.trajectories;
        pass.scale.tokens = K2_MAX(pass.scale.tokens, 1ull);
        for (uint32_t i = from; i < from + n; i++) {
            k2i_micro micro = {.first = 0, .count = 1, .tokens = s.seqs[i].rows};
            k2i_pass one = pass;
            one.seqs = &s.seqs[i];
            one.micros = &micro;
            one.micro_count = 1;
            visit(arg, &one, i);
        }
    }
    step_end(&s);
}
