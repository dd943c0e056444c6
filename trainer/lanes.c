/* lanes - micro-batches through the model: forward, loss, backward, and the sums that go with them. See lanes_int.h. */
#include "trainer/lanes_int.h"

#include <math.h>
#include <string.h>

#include "common/flight/flight.h"

typedef struct lanes_job {
    k2i_learner *l;
    const k2i_pass *pass;
    bool train;
} lanes_job;

/* Sequences of a micro-batch one behind the other, as the model wants them. */
static k2_model_batch micro_fill(const k2i_learner *l, k2i_replica *r, const k2i_pass *pass, const k2i_micro *micro)
{
    uint32_t row = 0;
    for (uint32_t i = 0; i < micro->count; i++) {
        const k2i_seq *s = &pass->seqs[micro->first + i];
        r->starts[i] = row;
        memcpy(r->tokens + row, s->tokens, s->rows * sizeof(int32_t));
        for (uint32_t t = 0; t < s->rows; t++) r->targets[row + t] = t < s->first ? -1 : s->tokens[t + 1];
        row += s->rows;
    }
    K2_ASSERT(row == micro->tokens);
    r->starts[micro->count] = row;
    return (k2_model_batch){.tokens_count = row,
                            .seqs_count = micro->count,
                            .tokens = r->tokens,
                            .seq_starts = r->starts,
                            .targets = r->targets,
                            .recompute = l->config.recompute};
}

/* Weights of one sequence's predictions in the loss: 0, 1 or the importance correction. Counts them on the way. */
static void weights_fill(const k2i_pass *pass, const k2i_seq *s, const float *old, float *weight, double *sums)
{
    uint32_t n = s->rows - s->first;
    for (uint32_t t = 0; t < n; t++) {
        uint8_t use = pass->use ? pass->use[s->at + t] : K2I_USE_CURRENT;
        bool correct = pass->rollout && (use == K2I_USE_OLDER || (use == K2I_USE_CURRENT && pass->correct_current));
        weight[t] = use == K2I_USE_NONE ? 0 : 1;
        if (correct) weight[t] = k2i_loss_correction(&pass->correction, old[t], pass->rollout[s->at + t]);
        sums[K2I_SUM_WEIGHT] += (double)weight[t];
        if (use != K2I_USE_CURRENT) continue;
        sums[K2I_SUM_CURRENT]++;
        if (!pass->rollout) continue;
        double miss = fabs((double)old[t] - (double)pass->rollout[s->at + t]);
        sums[K2I_SUM_MISMATCH] += miss;
        if (miss > sums[K2I_SUM_MISMATCH_MAX]) sums[K2I_SUM_MISMATCH_MAX] = miss;
    }
}

static void loss_run(k2i_replica *r, const k2i_pass *pass, const k2i_seq *s, uint32_t row, double *sums, k2i_loss_sums *loss)
{
    uint32_t at = row + s->first, n = s->rows - s->first;
    const float *logp = r->logp + at, *old = pass->logp_old ? pass->logp_old + s->at : logp;
    weights_fill(pass, s, old, r->weight, sums);
    k2i_loss_in in = {.count = n,
                      .logp = logp,
                      .logp_old = old,
                      .weight = r->weight,
                      .advantage = s->advantage,
                      .each = pass->each ? pass->each + s->at : NULL};
    memset(r->dlogp + row, 0, s->first * sizeof(float));
    pass->ops->eval(&pass->scale, &in, loss, r->dlogp + at);
    if (pass->reference)
        loss->loss += k2i_kl_add(&pass->kl, pass->scale.tokens, n, logp, pass->reference + s->at, r->weight, r->dlogp + at,
                                 &sums[K2I_SUM_KL]);
    for (uint32_t t = 0; t < n; t++) {
        sums[K2I_SUM_ENTROPY] += (double)r->entropy[at + t];
        if (r->dlogp[at + t] != 0) sums[K2I_SUM_MOVES] = 1;
    }
    sums[K2I_SUM_PREDICTIONS] += n;
    if (!k2_kern_finite(n, logp) || !k2_kern_finite(n, r->dlogp + at)) sums[K2I_SUM_BAD] = 1;
}

static void micro_run(k2i_replica *r, const lanes_job *job, const k2i_micro *micro, float *grads, double *sums,
                      k2i_loss_sums *loss)
{
    const k2i_pass *pass = job->pass;
    k2_model_batch batch = micro_fill(job->l, r, pass, micro);
    double balance = 0;
    if (job->train) batch.balance_weight = (float)(pass->balance_weight / (double)pass->scale.trajectories);
    k2_model_out out = {.balance = &balance, .logp = r->logp, .entropy = r->entropy, .loads = r->loads, .tops = r->tops};
    uint64_t number = (uint64_t)(micro - pass->micros), lane = number % job->l->config.lanes;
    size_t mark = k2_arena_mark(&r->arena);
    uint32_t span = k2_flight_begin(K2_FLIGHT_MICRO, k2_flight_text("forward"), number, lane, micro->tokens);
    k2_model_acts *acts = k2_model_fwd(r->model, &batch, &r->arena, &out);
    k2_flight_end(span);
    for (uint32_t i = 0; i < micro->count; i++) {
        const k2i_seq *s = &pass->seqs[micro->first + i];
        memcpy(pass->logp + s->at, r->logp + r->starts[i] + s->first, (s->rows - s->first) * sizeof(float));
        if (job->train) loss_run(r, pass, s, r->starts[i], sums, loss);
    }
    sums[K2I_SUM_BALANCE] += balance;
    sums[K2I_SUM_TOKENS] += (double)batch.tokens_count;
    for (uint32_t e = 0; e < job->l->loads_count; e++) sums[K2I_SUM_COUNT + e] += (double)r->loads[e];
    double *tops = sums + K2I_SUM_COUNT + job->l->loads_count;
    for (uint32_t h = 0; h < job->l->tops_count; h++) tops[h] = K2_MAX(tops[h], (double)r->tops[h]);
    if (job->train && sums[K2I_SUM_BAD] == 0) {
        span = k2_flight_begin(K2_FLIGHT_MICRO, k2_flight_text("backward"), number, lane, micro->tokens);
        k2_model_bwd(r->model, acts, r->dlogp, grads);
        k2_flight_end(span);
    }
    k2_arena_reset(&r->arena, mark);
}

bool k2i_lanes_look(k2i_learner *l, const k2i_pass *pass, char *out, size_t n)
{
    k2i_replica *r = &l->replicas[0];
    k2_model_batch batch = micro_fill(l, r, pass, &pass->micros[0]);
    k2_model_out o = {.logp = r->logp, .entropy = r->entropy};
    size_t mark = k2_arena_mark(&r->arena);
    bool bad = k2_model_acts_bad(k2_model_fwd(r->model, &batch, &r->arena, &o), out, n);
    k2_arena_reset(&r->arena, mark);
    return bad;
}

/* One lane from end to end. The member's replica is as good as any other: their parameters are equal. */
static void lane_run(void *arg, size_t task, uint32_t member)
{
    const lanes_job *job = arg;
    k2i_learner *l = job->l;
    uint32_t lane = l->lane_first + (uint32_t)task;
    if (member > 0) k2_flight_thread("lane"); /* member 0 is the thread that runs the command */
    double *sums = l->lane_sums + (size_t)lane * l->sums_width;
    k2i_loss_sums loss = {0};
    memset(sums, 0, l->sums_width * sizeof(*sums));
    for (uint32_t h = 0; h < l->tops_count; h++) sums[K2I_SUM_COUNT + l->loads_count + h] = -INFINITY;
    if (job->train) memset(l->grads[task], 0, l->floats * sizeof(float));
    for (uint32_t m = lane; m < job->pass->micro_count; m += l->config.lanes)
        micro_run(&l->replicas[member], job, &job->pass->micros[m], l->grads[task], sums, &loss);
    sums[K2I_SUM_LOSS] = loss.loss;
    sums[K2I_SUM_LOSS_TOKENS] = (double)loss.tokens;
    sums[K2I_SUM_RATIO] = loss.ratio;
    sums[K2I_SUM_RATIO_MIN] = loss.tokens > 0 ? loss.ratio_min : INFINITY;
    sums[K2I_SUM_RATIO_MAX] = loss.tokens > 0 ? loss.ratio_max : -INFINITY;
    sums[K2I_SUM_CLIPPED] = (double)loss.clipped;
    if (isfinite(loss.loss) == 0) sums[K2I_SUM_BAD] = 1;
}

void k2i_lanes_run(k2i_learner *l, const k2i_pass *pass, bool train)
{
    lanes_job job = {.l = l, .pass = pass, .train = train};
    k2_kern_team_run(l->team, l->lanes_local, lane_run, &job);
}

static void combine_ADD(double *to, double x)
{
    *to += x;
}
static void combine_MIN(double *to, double x)
{
    *to = x < *to ? x : *to;
}
static void combine_MAX(double *to, double x)
{
    *to = x > *to ? x : *to;
}

void k2i_lanes_combine(k2i_learner *l, double sums[K2I_SUM_COUNT])
{
    memcpy(sums, l->lane_sums, K2I_SUM_COUNT * sizeof(*sums));
    memcpy(l->loads, l->lane_sums + K2I_SUM_COUNT, l->loads_count * sizeof(*l->loads));
    memcpy(l->tops, l->lane_sums + K2I_SUM_COUNT + l->loads_count, l->tops_count * sizeof(*l->tops));
    for (uint32_t lane = 1; lane < l->config.lanes; lane++) {
        const double *row = l->lane_sums + (size_t)lane * l->sums_width;
#define K2_X(name, op) combine_##op(&sums[K2I_SUM_##name], row[K2I_SUM_##name]);
        K2I_SUMS(K2_X)
#undef K2_X
        for (uint32_t e = 0; e < l->loads_count; e++) l->loads[e] += row[K2I_SUM_COUNT + e];
        for (uint32_t h = 0; h < l->tops_count; h++) l->tops[h] = K2_MAX(l->tops[h], row[K2I_SUM_COUNT + l->loads_count + h]);
    }
}
