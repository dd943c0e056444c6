/* inspect - see inspect_int.h. */
#include "trainer/inspect_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/kernel/kernel.h"
#include "trainer/lanes_int.h"
#include "trainer/pretrain_int.h"
#include "trainer/rl_int.h"

typedef struct look {
    k2i_learner *l;
    const k2_batch *batch;
    bool pretrain;
    k2i_inspection *out;
} look;

/* The last tensor of the layout in which a vector is not finite: what a backward meets first. NULL: none. */
static const k2_param *last_bad(const k2_model_layout *layout, const float *x)
{
    for (size_t i = layout->params_count; i-- > 0;)
        if (!k2_kern_finite(layout->params[i].count, x + layout->params[i].offset)) return &layout->params[i];
    return NULL;
}

static void params_look(look *k)
{
    const k2_model_layout *layout = k2_model_layout_of(k2i_learner_model(k->l));
    for (size_t i = 0; i < layout->params_count; i++) {
        if (k2_kern_finite(layout->params[i].count, k2i_learner_params(k->l) + layout->params[i].offset)) continue;
        snprintf(k->out->first_bad, sizeof(k->out->first_bad), "weight %s, before the step", layout->params[i].name);
        return;
    }
}

static void logps_sum(k2i_seen *s, const k2i_pass *one, const k2i_seq *q)
{
    uint32_t n = q->rows - q->first;
    double logp = 0, rollout = 0, ratio = 0;
    for (uint32_t t = 0; t < n; t++) {
        double mine = (double)one->logp[q->at + t], theirs = one->rollout ? (double)one->rollout[q->at + t] : mine;
        logp += mine;
        rollout += theirs;
        ratio += k2i_loss_exp(mine - theirs);
    }
    s->logp = logp / n;
    s->rollout = rollout / n;
    s->ratio = ratio / n;
}

/* The gradient of one trajectory stands in lane 0, where its only micro-batch is. */
static double norm_of(const k2i_learner *l)
{
    double sum = 0;
    k2i_norm_blocks(l->grads[0], 0, l->floats, l->block_sums);
    for (uint64_t b = 0; b < l->blocks; b++) sum += l->block_sums[b];
    return sqrt(sum);
}

static void bad_name(look *k, const k2i_pass *one, const k2i_seen *s)
{
    char what[K2I_BAD_MAX / 2];
    const k2_param *p = last_bad(k2_model_layout_of(k2i_learner_model(k->l)), k->l->grads[0]);
    if (k2i_lanes_look(k->l, one, what, sizeof(what))) {
    } else if (isfinite(s->logp) == 0) {
        snprintf(what, sizeof(what), "log-probabilities");
    } else if (k->l->lane_sums[K2I_SUM_BAD] != 0) {
        snprintf(what, sizeof(what), "loss, or its derivative by the log-probabilities");
    } else if (p) {
        snprintf(what, sizeof(what), "gradient of %.100s", p->name);
    } else {
        return;
    }
    snprintf(k->out->first_bad, sizeof(k->out->first_bad), "%s (%s %llu)", what, k->pretrain ? "sequence" : "trajectory",
             (unsigned long long)s->id);
}

static void visit(void *arg, const k2i_pass *one, uint32_t i)
{
    look *k = arg;
    k2i_seen *s = &k->out->seen[i];
    k2_batch_trajectory t;
    k2_batch_get(k->batch, i, &t);
    k2i_lanes_run(k->l, one, true);
    *s = (k2i_seen){.id = t.id,
                    .group = t.group,
                    .reward = (double)t.reward,
                    .advantage = one->seqs->advantage,
                    .loss = k->l->lane_sums[K2I_SUM_LOSS],
                    .tokens = t.generated_tokens};
    logps_sum(s, one, one->seqs);
    s->grad_norm = k->l->lane_sums[K2I_SUM_BAD] == 0 ? norm_of(k->l) : (double)NAN; /* no backward was made */
    s->bad = isfinite(s->grad_norm) == 0;
    if (s->bad && !k->out->first_bad[0]) bad_name(k, one, s);
}

void k2i_inspect(k2i_learner *l, const k2_config *config, const k2_batch *batch, bool pretrain, k2i_inspection *out)
{
    K2_ASSERT(l->ranks == 1);
    *out = (k2i_inspection){.count = batch->trajectories, .seen = k2_alloc_array(batch->trajectories, sizeof(*out->seen))};
    look k = {.l = l, .batch = batch, .pretrain = pretrain, .out = out};
    params_look(&k);
    if (pretrain)
        k2i_pretrain_each(batch, visit, &k);
    else
        k2i_rl_each(l, config, batch, visit, &k);
}

void k2i_inspect_update(k2i_learner *l, const char *bad, k2i_inspection *out)
{
    const k2_model_layout *layout = k2_model_layout_of(k2i_learner_model(l));
    if (out->first_bad[0]) return;
    const k2_param *p = last_bad(layout, l->shard);
    if (p) {
        snprintf(out->first_bad, sizeof(out->first_bad), "gradient of %s (the sum over all; each alone is finite)", p->name);
        return;
    }
    uint64_t at = l->bad_at;
    for (size_t i = 0; i < layout->params_count && at != K2I_SPOILS_NONE; i++) {
        p = &layout->params[i];
        if (at < p->offset || at >= p->offset + p->count) continue;
        snprintf(out->first_bad, sizeof(out->first_bad), "%s after the update: its element %zu, or a moment of it", p->name,
                 (size_t)at - p->offset);
        return;
    }
    snprintf(out->first_bad, sizeof(out->first_bad), "%s, in an update behind the first of the step", bad);
}

void k2i_inspection_fini(k2i_inspection *x)
{
    k2_free(x->seen);
    *x = (k2i_inspection){0};
}
