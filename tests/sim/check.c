/* check: what must hold whatever happens. The names stand in check_int.h. */
#include <stdio.h>
#include <string.h>

#include "rollout/sample_int.h"
#include "sim_int.h"

typedef unsigned long long ull;

static const char *const names[SIM_CHECK_KINDS][2] = {
#define K2_X(check, name, text) {name, text},
    SIM_CHECKS(K2_X)
#undef K2_X
};

const char *sim_check_name(sim_check_kind c)
{
    return names[c][0];
}

const char *sim_check_text(sim_check_kind c)
{
    return names[c][1];
}

/* Trajectories in one row. */
static uint64_t place(const sim *s, uint64_t id)
{
    return k2_replay_group_of(id) * s->config.rollout_group_size + k2_replay_index_of(id);
}

/* ---- after every event */

static void check_caps(sim *s, const k2_replay_counts *n)
{
    k2_replay_config limits = k2m_replay_config(&s->config, 5);
    if (n->groups > limits.groups_max)
        sim_break(s, SIM_CHECK_POOLS, "%u groups are held, at most %u", n->groups, limits.groups_max);
    bool generates = s->core->phase == K2M_PHASE_GENERATE;
    if (s->core->inflight > s->core->inflight_max ||
        (generates && n->running > s->core->inflight_max + k2m_suspects_held(s->core)))
        sim_break(s, SIM_CHECK_POOLS, "%u requests are out for %u trajectories, at most %u", s->core->inflight, n->running,
                  s->core->inflight_max);
    if (n->step_taken > n->step_consumed + 1 || n->step_released > n->step_consumed)
        sim_break(s, SIM_CHECK_ONCE, "steps taken %llu, consumed %llu, released %llu", (ull)n->step_taken,
                  (ull)n->step_consumed, (ull)n->step_released);
}

static bool by_priority(const sim *s, uint64_t group)
{
    return s->world.priority && group >= s->config.data_priority_after * SIM_PROMPTS;
}

/* The prompt that a group gets by priority when so many steps are trained, told from their batches alone. */
static uint32_t prompt_drawn(const sim *s, uint64_t group, uint64_t steps)
{
    const double one = 1u << 30;
    uint64_t rate[SIM_PROMPTS] = {0}, weight[SIM_PROMPTS], all = 0;
    for (uint64_t step = 1; step <= steps && step < SIM_STEPS; step++)
        for (uint32_t i = 0; i < s->batches[step].count; i++) {
            const sim_told *t = &s->batches[step].list[i];
            double found = 1 - (double)t->wrong / (double)s->config.rollout_group_size, old = (double)rate[t->prompt] / one;
            rate[t->prompt] = (uint64_t)((old + s->config.data_priority_rate * (found - old)) * one + 0.5);
        }
    for (uint32_t i = 0; i < SIM_PROMPTS; i++) {
        weight[i] = K2_MAX((uint64_t)one - rate[i], (uint64_t)(s->config.data_priority_floor * one));
        all += weight[i];
    }
    uint64_t place = k2_rand_below(s->config.seed, K2_STREAM_PROMPT, group, 0, all);
    uint32_t at = 0;
    for (; place >= weight[at]; at++) place -= weight[at];
    return at;
}

static void check_drawn(sim *s, uint64_t group, uint64_t prompt, uint64_t steps)
{
    uint32_t want = prompt_drawn(s, group, steps);
    if (prompt != want)
        sim_break(s, SIM_CHECK_PROMPTS, "group %llu has prompt %llu, by the rewards of %llu steps it is %u", (ull)group,
                  (ull)prompt, (ull)steps, want);
}

/* Groups get numbers without a gap; a new one has the prompt that no group of its epoch has had, or the one that is drawn. */
static void check_prompts(sim *s, const k2_replay_counts *n)
{
    if (n->next_group != n->groups_total)
        sim_break(s, SIM_CHECK_PROMPTS, "%llu groups were made, the next one has number %llu", (ull)n->groups_total,
                  (ull)n->next_group);
    for (uint64_t g = n->next_group; g-- > 0 && !s->prompt_of[g];) {
        k2_replay_info info;
        if (k2_replay_find(s->core->replay, k2_replay_id(g, 0), &info) != K2_OK) continue;
        if (by_priority(s, g)) check_drawn(s, g, info.prompt, n->step_consumed);
        for (uint64_t of = g - g % SIM_PROMPTS; of < g && !by_priority(s, g); of++)
            if (s->prompt_of[of] == info.prompt + 1)
                sim_break(s, SIM_CHECK_PROMPTS, "groups %llu and %llu have prompt %llu", (ull)of, (ull)g, (ull)info.prompt);
        s->prompt_of[g] = (uint32_t)info.prompt + 1;
    }
}

static void check_version(sim *s)
{
    uint64_t v = s->core->force_version;
    if (!s->core->in_force || v >= SIM_STEPS) return;
    if (v < s->gate_max) sim_break(s, SIM_CHECK_VERSIONS, "version %llu is in force after %llu was", (ull)v, (ull)s->gate_max);
    if (k2_digest_zero(s->seen.versions[v])) s->seen.versions[v] = s->core->force_digest;
    if (!k2_digest_equal(s->seen.versions[v], s->core->force_digest))
        sim_break(s, SIM_CHECK_SAME, "version %llu has two digests", (ull)v);
    if (s->truth && !k2_digest_equal(s->truth->versions[v], s->core->force_digest))
        sim_break(s, SIM_CHECK_SAME, "version %llu has other weights than in the undisturbed run", (ull)v);
}

void sim_check(sim *s)
{
    if (!s->core || s->down) return;
    k2_replay_counts n = k2_replay_count(s->core->replay);
    check_caps(s, &n);
    check_prompts(s, &n);
    check_version(s);
}

/* ---- when the master decides, and when somebody is told */

static const sim_proc *process_of(const sim *s, const k2m_worker *w)
{
    for (uint32_t i = 0; i < SIM_PROCS; i++)
        if (s->procs[i].serial && s->procs[i].worker == w - s->core->workers && s->procs[i].incarnation == w->incarnation)
            return &s->procs[i];
    return NULL;
}

/* While a version is distributed the gate is opened for it when all that live have it. */
static void check_gate(sim *s, const k2_msg *m)
{
    if (s->core->phase != K2M_PHASE_DISTRIBUTE) return;
    for (uint32_t i = 0; i < s->core->rollouts; i++) {
        const k2m_worker *w = &s->core->workers[s->core->first_rollout + i];
        const sim_proc *p = w->state == K2M_UP ? process_of(s, w) : NULL;
        if (p && !k2_digest_equal(sim_rollout_content(p), m->gate.digest))
            sim_break(s, SIM_CHECK_GATE, "the gate is opened for version %llu, rollout %u does not use it",
                      (ull)m->gate.version, w->index);
    }
}

/* Who was cut before this iteration had a segment in it. */
static void check_resumed(sim *s, uint64_t iteration)
{
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, 0, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            (void)k2_replay_find(s->core->replay, k2_replay_id(group, k), &info);
            if (info.state == K2_REPLAY_QUEUED && info.cuts > 0 && info.iteration < iteration)
                sim_break(s, SIM_CHECK_STALENESS, "trajectory %llu waits since iteration %llu, %llu ends", (ull)info.id,
                          (ull)info.iteration, (ull)iteration);
        }
}

void sim_check_step(sim *s, const k2m_outbox *out)
{
    for (uint32_t i = 0; i < out->count; i++) {
        const k2m_action *a = &out->list[i];
        if (a->type == K2M_ACT_COMMAND && a->msg.type == K2_MSG_GATE) check_gate(s, &a->msg);
        bool iterated = a->type == K2M_ACT_REPORT && a->report.kind == K2M_REPORT_ITERATION;
        if (iterated) check_resumed(s, a->report.iteration);
        if (iterated && (a->report.counts.running || a->report.counts.finished))
            sim_break(s, SIM_CHECK_POOLS, "iteration %llu ends, %u trajectories run and %u have no reward",
                      (ull)a->report.iteration, a->report.counts.running, a->report.counts.finished);
    }
}

/* What others know now must be known after any restart. */
void sim_check_told(sim *s, const k2m_action *a)
{
    if (a->type == K2M_ACT_REQUEST && !(a->id & K2M_EVAL_BIT))
        s->told[place(s, a->id)].tokens = (uint8_t)K2_MAX(s->told[place(s, a->id)].tokens, a->position);
    for (uint32_t i = 0; a->type == K2M_ACT_SCORE && i < a->count; i++)
        if (!(a->ids[i] & K2M_EVAL_BIT)) s->told[place(s, a->ids[i])].finished = true;
    if (a->type == K2M_ACT_COMMAND && a->msg.type == K2_MSG_TRAIN) s->told_step = K2_MAX(s->told_step, a->msg.train.step);
}

static void check_trajectory(sim *s, uint64_t id)
{
    k2_replay_info info;
    uint64_t at = place(s, id);
    if (!s->told[at].tokens && !s->told[at].finished) return;
    if (k2_replay_find(s->core->replay, id, &info) != K2_OK) {
        if (!s->trained[at])
            sim_break(s, SIM_CHECK_DURABLE, "trajectory %llu was asked for; the journal does not know it", (ull)id);
        return;
    }
    bool finished = info.state != K2_REPLAY_QUEUED && info.state != K2_REPLAY_RUNNING;
    if (info.generated < s->told[at].tokens || (s->told[at].finished && !finished))
        sim_break(s, SIM_CHECK_DURABLE, "trajectory %llu had %u tokens%s; the journal knows %u and that it is %s", (ull)id,
                  s->told[at].tokens, s->told[at].finished ? " and was whole" : "", info.generated,
                  k2_replay_state_name(info.state));
}

void sim_check_restart(sim *s)
{
    k2_replay_counts n = k2_replay_count(s->core->replay);
    if (n.step_consumed < s->gate_max)
        sim_break(s, SIM_CHECK_DURABLE, "version %llu was in use; the journal knows of %llu", (ull)s->gate_max,
                  (ull)n.step_consumed);
    if (n.step_taken < s->told_step)
        sim_break(s, SIM_CHECK_DURABLE, "step %llu was trained; the journal knows of %llu", (ull)s->told_step,
                  (ull)n.step_taken);
    for (uint64_t g = 0; g < 1u << 12 && s->prompt_of[g]; g++)
        for (uint32_t k = 0; k < s->config.rollout_group_size; k++) check_trajectory(s, k2_replay_id(g, k));
}

/* ---- a batch */

static void check_spans(sim *s, const k2_replay_info *info)
{
    k2_replay_span spans[SIM_TOKENS];
    uint32_t count = k2_replay_spans(s->core->replay, info->id, spans, SIM_TOKENS), at = 0;
    for (uint32_t i = 0; i < count; at = spans[i++].end) {
        if (spans[i].start != at || spans[i].end <= at)
            sim_break(s, SIM_CHECK_SPANS, "trajectory %llu: span %u is [%u, %u)", (ull)info->id, i, spans[i].start,
                      spans[i].end);
        if (i > 0 && spans[i].version <= spans[i - 1].version)
            sim_break(s, SIM_CHECK_VERSIONS, "trajectory %llu: version %u comes after %u", (ull)info->id, spans[i].version,
                      spans[i - 1].version);
        else if (i > 0 && spans[i].version > spans[i - 1].version + 1) /* it is resumed in every iteration until it is whole */
            sim_break(s, SIM_CHECK_STALENESS, "trajectory %llu: it waited from version %u to %u", (ull)info->id,
                      spans[i - 1].version, spans[i].version);
    }
    if (at != info->generated)
        sim_break(s, SIM_CHECK_SPANS, "trajectory %llu: spans cover %u of %u tokens", (ull)info->id, at, info->generated);
}

/* A trajectory is resumed in every iteration until it is whole, so its oldest token is no older than the number of its
 * segments. */
static uint64_t age_max(const k2_config *c)
{
    bool sync = strcmp(c->mode, "sync") == 0;
    return sync ? 0 : (c->rollout_max_tokens + c->rollout_budget_tokens - 1) / c->rollout_budget_tokens - 1;
}

/* Logits, and the draw that belongs to trajectory and position. */
static void check_token(sim *s, const k2_replay_info *info, uint32_t i, k2_replay_token t, int32_t last)
{
    static k2i_sampler sampler;
    k2_digest weights = t.version < SIM_STEPS ? s->seen.versions[t.version] : (k2_digest){0, 0};
    uint32_t at = info->prompt_tokens + i - 1, token = 0;
    float row[SIM_VOCAB];
    if (!sampler.vocab) k2i_sampler_init(&sampler, SIM_VOCAB);
    for (uint32_t v = 0; v < SIM_VOCAB; v++) row[v] = sim_logit(weights, last, at, v);
    double u = k2_rand_unit(s->config.seed, K2_STREAM_SAMPLE, info->id, i);
    bool drawn = k2i_sample(&sampler, row, &(k2i_sampling){.temperature = 1, .top_p = 1}, NULL, u, &token);
    if (!drawn || (int32_t)token != t.id || memcmp(&row[token], &t.logp, sizeof t.logp) != 0)
        sim_break(s, SIM_CHECK_TOKENS, "trajectory %llu: token %u was not drawn by version %u at this position", (ull)info->id,
                  i, t.version);
}

static void check_tokens(sim *s, const k2_replay_info *info, uint64_t step)
{
    int32_t before[8];
    uint32_t prompt = k2_replay_prompt_tokens(s->core->replay, info->group, 0, before, 8);
    k2_replay_token t[SIM_TOKENS];
    uint32_t n = k2_replay_tokens(s->core->replay, info->id, 0, t, SIM_TOKENS);
    if (n != info->generated)
        sim_break(s, SIM_CHECK_SPANS, "trajectory %llu: %u of %u tokens", (ull)info->id, n, info->generated);
    for (uint32_t i = 0; i < n; i++) {
        check_token(s, info, i, t[i], i ? t[i - 1].id : before[prompt - 1]);
        if (step - 1 - t[i].version > age_max(&s->config))
            sim_break(s, SIM_CHECK_STALENESS, "trajectory %llu: token %u is of version %u in the batch of step %llu",
                      (ull)info->id, i, t[i].version, (ull)step);
    }
}

/* Nothing can be learnt from it: all answers that have a reward have the same one. */
static bool equal_rewards(const sim *s, uint64_t group, uint32_t size)
{
    k2_replay_info info;
    double least = 2, most = -1;
    for (uint32_t k = 0; k < size; k++) {
        (void)k2_replay_find(s->core->replay, k2_replay_id(group, k), &info);
        if (info.state == K2_REPLAY_QUEUED || info.state == K2_REPLAY_RUNNING || info.state == K2_REPLAY_FINISHED) return false;
        if (info.state == K2_REPLAY_DROPPED) continue;
        least = K2_MIN(least, info.reward);
        most = K2_MAX(most, info.reward);
    }
    return most <= least;
}

/* All groups of the iteration, those that are still cut included. */
static void check_filled(sim *s, uint64_t step)
{
    uint64_t group, equal = 0, all = 0;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, 0, &at, &group, &size);) {
        k2_replay_info info;
        (void)k2_replay_find(s->core->replay, k2_replay_id(group, 0), &info);
        if (info.step != 0 && info.step != step) continue;
        bool is = equal_rewards(s, group, size);
        all++;
        equal += is;
        if (k2m_batch_leaves_out(s->core, group) != (is && s->world.refill))
            sim_break(s, SIM_CHECK_BATCH, "group %llu is %s the batch of step %llu", (ull)group, is ? "in" : "left out of",
                      (ull)step);
    }
    uint64_t want = s->config.rollout_groups + K2_MIN(equal, s->config.rollout_refill_max);
    if (all != want)
        sim_break(s, SIM_CHECK_BATCH, "step %llu: %llu groups were begun, %llu of them have equal rewards, expected %llu",
                  (ull)step, (ull)all, (ull)equal, (ull)want);
}

k2_digest sim_batch_digest(sim *s, uint64_t step)
{
    k2_digest_stream *d = k2_digest_begin();
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, step, &at, &group, &size);)
        for (uint32_t k = 0; k < size && !k2m_batch_leaves_out(s->core, group); k++) {
            k2_replay_info info;
            (void)k2_replay_find(s->core->replay, k2_replay_id(group, k), &info);
            if (info.state == K2_REPLAY_DROPPED) continue;
            k2_replay_token tokens[SIM_TOKENS];
            uint32_t n = k2_replay_tokens(s->core->replay, info.id, 0, tokens, SIM_TOKENS);
            k2_digest_update(d, &info.id, sizeof info.id);
            k2_digest_update(d, &info.reward, sizeof info.reward);
            k2_digest_update(d, tokens, n * sizeof *tokens);
        }
    return k2_digest_end(d);
}

static void check_member(sim *s, uint64_t step, uint64_t id)
{
    k2_replay_info info;
    (void)k2_replay_find(s->core->replay, id, &info);
    uint32_t *in = &s->trained[place(s, id)];
    if (*in && *in != step)
        sim_break(s, SIM_CHECK_ONCE, "trajectory %llu is in steps %u and %llu", (ull)info.id, *in, (ull)step);
    *in = (uint32_t)step;
    bool other = !by_priority(s, info.group) && info.prompt != k2m_core_prompt_of(s->core, info.group);
    if (other || info.prompt + 1 != s->prompt_of[info.group])
        sim_break(s, SIM_CHECK_PROMPTS, "group %llu has prompt %llu", (ull)info.group, (ull)info.prompt);
    if (info.state == K2_REPLAY_DROPPED) return;
    check_spans(s, &info);
    check_tokens(s, &info, step);
}

/* What was dropped did not fail. */
static sim_told told_by(const sim *s, uint64_t group, uint32_t size)
{
    sim_told t = {0};
    k2_replay_info info = {0};
    for (uint32_t k = 0; k < size; k++) {
        (void)k2_replay_find(s->core->replay, k2_replay_id(group, k), &info);
        t.wrong += info.state != K2_REPLAY_DROPPED && info.reward < s->config.reward_correct;
    }
    t.prompt = (uint32_t)info.prompt;
    return t;
}

void sim_check_batch(sim *s, uint64_t step, k2_digest d)
{
    uint64_t group;
    uint32_t size;
    if (step >= SIM_STEPS) return;
    if (step > k2_replay_count(s->core->replay).step_consumed) check_filled(s, step); /* else one of recovery */
    s->batches[step].count = 0;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, step, &at, &group, &size);) {
        for (uint32_t k = 0; k < size; k++) check_member(s, step, k2_replay_id(group, k));
        K2_ASSERT(s->batches[step].count < SIM_GROUPS);
        s->batches[step].list[s->batches[step].count++] = told_by(s, group, size);
    }
    if (k2_digest_zero(s->seen.batches[step])) s->seen.batches[step] = d;
    if (!k2_digest_equal(s->seen.batches[step], d)) sim_break(s, SIM_CHECK_ONCE, "step %llu was given two batches", (ull)step);
    if (s->truth && !k2_digest_equal(s->truth->batches[step], d))
        sim_break(s, SIM_CHECK_SAME, "step %llu has another batch than in the undisturbed run", (ull)step);
}

/* ---- the end */

static void check_none_lost(sim *s, const k2_replay_counts *n)
{
    for (uint64_t g = 0; g < n->next_group; g++)
        for (uint32_t k = 0; k < s->config.rollout_group_size; k++) {
            k2_replay_info info;
            uint64_t id = k2_replay_id(g, k);
            bool waits = k2_replay_find(s->core->replay, id, &info) == K2_OK && info.step == 0;
            if ((s->trained[place(s, id)] != 0) == waits)
                sim_break(s, SIM_CHECK_LOST, "trajectory %llu %s", (ull)id, waits ? "came back" : "is lost");
        }
}

static void check_same(sim *s)
{
    const sim_truth *a = &s->seen, *b = s->truth;
    if (a->steps != b->steps || !k2_digest_equal(a->weights, b->weights))
        sim_break(s, SIM_CHECK_SAME, "other weights at the end than those of the undisturbed run");
    if (a->correct != b->correct || a->total != b->total)
        sim_break(s, SIM_CHECK_SAME, "%u of %u held-out answers are right, %u of %u in the undisturbed run", a->correct,
                  a->total, b->correct, b->total);
}

void sim_check_end(sim *s)
{
    if (s->end_code != K2_OK) {
        sim_break(s, SIM_CHECK_ENDS, "the run ended with %s: %s", k2_code_name(s->end_code), s->end_text);
        return;
    }
    k2_replay_counts n = k2_replay_count(s->core->replay);
    check_none_lost(s, &n);
    if (n.running) sim_break(s, SIM_CHECK_POOLS, "%u trajectories still run", n.running);
    if (s->core->iteration != s->config.iterations)
        sim_break(s, SIM_CHECK_LOST, "%llu iterations of %llu", (ull)s->core->iteration, (ull)s->config.iterations);
    uint64_t poisons = s->core->aside[K2M_ASIDE_POISON];
    if (poisons != (s->world.poison ? SIM_POISONS : 0))
        sim_break(s, SIM_CHECK_POISON, "%llu were taken for poison", (ull)poisons);
    s->seen.known = true;
    s->seen.steps = n.step_consumed;
    s->seen.weights = k2m_digest_of(s->core, n.step_consumed);
    s->seen.correct = s->core->after_correct;
    s->seen.total = s->core->after_total;
    s->seen.end_ns = s->now_ns;
    if (s->truth) check_same(s);
}
