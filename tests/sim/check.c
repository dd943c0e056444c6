/* check: what must hold whatever happens. */
#include <stdio.h>
#include <string.h>

#include "sim_int.h"

typedef unsigned long long ull;

/* ---- after every event */

void sim_check(sim *s)
{
    if (!s->core) return;
    k2_replay_counts n = k2_replay_count(s->core->replay);
    k2_replay_config limits = k2m_replay_config(&s->config, 5);
    if (n.groups > limits.groups_max) sim_break(s, "%u groups are held, at most %u", n.groups, limits.groups_max);
    if (n.step_taken > n.step_consumed + 1 || n.step_released > n.step_consumed)
        sim_break(s, "steps taken %llu, consumed %llu, released %llu", (ull)n.step_taken, (ull)n.step_consumed,
                  (ull)n.step_released);
    if (s->core->inflight > s->core->inflight_max) sim_break(s, "%u requests are out", s->core->inflight);
    if (s->core->phase == K2M_PHASE_GENERATE && n.running > s->core->inflight_max + k2m_suspects_held(s->core))
        sim_break(s, "%u trajectories run", n.running);
    if (s->core->in_force && s->core->force_version < s->gate_max)
        sim_break(s, "version %llu is in force after %llu was", (ull)s->core->force_version, (ull)s->gate_max);
    uint64_t v = s->core->force_version;
    if (!s->core->in_force || v >= SIM_STEPS) return;
    if (k2_digest_zero(s->seen.versions[v])) s->seen.versions[v] = s->core->force_digest;
    if (!k2_digest_equal(s->seen.versions[v], s->core->force_digest)) sim_break(s, "version %llu has two digests", (ull)v);
    if (s->truth && !k2_digest_equal(s->truth->versions[v], s->core->force_digest))
        sim_break(s, "version %llu has other weights than in the undisturbed run", (ull)v);
}

/* ---- a batch */

static void check_tokens(sim *s, const k2_replay_info *info)
{
    int32_t before[8];
    uint32_t prompt = k2_replay_prompt_tokens(s->core->replay, info->group, 0, before, 8);
    k2_replay_token t[SIM_TOKENS];
    uint32_t n = k2_replay_tokens(s->core->replay, info->id, 0, t, SIM_TOKENS);
    k2_replay_span spans[SIM_TOKENS];
    uint32_t count = k2_replay_spans(s->core->replay, info->id, spans, SIM_TOKENS), at = 0;
    for (uint32_t i = 0; i < count; at = spans[i++].end)
        if (spans[i].start != at || spans[i].end <= at || (i > 0 && spans[i].version <= spans[i - 1].version))
            sim_break(s, "trajectory %llu: span %u is [%u, %u) of version %u", (ull)info->id, i, spans[i].start, spans[i].end,
                      spans[i].version);
    if (at != n || n != info->generated) sim_break(s, "trajectory %llu: spans cover %u of %u tokens", (ull)info->id, at, n);
    for (uint32_t i = 0; i < n; i++) {
        k2_digest weights = t[i].version < SIM_STEPS ? s->seen.versions[t[i].version] : (k2_digest){0, 0};
        int32_t last = i ? t[i - 1].id : before[prompt - 1];
        float want = sim_logit(weights, last, prompt + i - 1, (uint32_t)t[i].id);
        if (memcmp(&want, &t[i].logp, sizeof want) != 0)
            sim_break(s, "trajectory %llu: token %u was not drawn by version %u", (ull)info->id, i, t[i].version);
    }
}

k2_digest sim_batch_digest(sim *s, uint64_t step)
{
    k2_digest_stream *d = k2_digest_begin();
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, step, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++) {
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

void sim_check_batch(sim *s, uint64_t step, k2_digest d)
{
    uint64_t group;
    uint32_t size;
    if (step >= SIM_STEPS) return;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, step, &at, &group, &size);) {
        uint32_t prompt = k2m_core_prompt_of(s->core, group);
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            (void)k2_replay_find(s->core->replay, k2_replay_id(group, k), &info);
            uint32_t *in = &s->trained[group * s->config.rollout_group_size + k];
            if (*in && *in != step) sim_break(s, "trajectory %llu is in steps %u and %llu", (ull)info.id, *in, (ull)step);
            *in = (uint32_t)step;
            if (info.prompt != prompt) sim_break(s, "group %llu has prompt %llu", (ull)group, (ull)info.prompt);
            if (info.state != K2_REPLAY_DROPPED) check_tokens(s, &info);
        }
    }
    if (k2_digest_zero(s->seen.batches[step])) s->seen.batches[step] = d;
    if (!k2_digest_equal(s->seen.batches[step], d)) sim_break(s, "step %llu was given two batches", (ull)step);
    if (s->truth && !k2_digest_equal(s->truth->batches[step], d))
        sim_break(s, "step %llu has another batch than in the undisturbed run", (ull)step);
}

/* ---- the end */

void sim_check_end(sim *s)
{
    if (s->end_code != K2_OK) {
        sim_break(s, "the run ended with %s: %s", k2_code_name(s->end_code), s->end_text);
        return;
    }
    k2_replay_counts n = k2_replay_count(s->core->replay);
    for (uint64_t g = 0; g < n.next_group; g++)
        for (uint32_t k = 0; k < s->config.rollout_group_size; k++) {
            k2_replay_info info;
            bool held = k2_replay_find(s->core->replay, k2_replay_id(g, k), &info) == K2_OK;
            bool trained = s->trained[g * s->config.rollout_group_size + k] != 0;
            bool waits = held && info.step == 0;
            if (trained == waits)
                sim_break(s, "trajectory %llu %s", (ull)k2_replay_id(g, k), trained ? "came back" : "is lost");
        }
    if (n.running) sim_break(s, "%u trajectories still run", n.running);
    if (s->core->iteration != s->config.iterations) sim_break(s, "%llu iterations", (ull)s->core->iteration);
    uint64_t poisons = s->core->aside[K2M_ASIDE_POISON];
    if (poisons != (s->poison ? SIM_POISONS : 0)) sim_break(s, "%llu were taken for poison", (ull)poisons);
    s->seen.known = true;
    s->seen.poison = s->poison;
    s->seen.steps = n.step_consumed;
    s->seen.weights = k2m_digest_of(s->core, n.step_consumed);
    s->seen.correct = s->core->after_correct;
    s->seen.total = s->core->after_total;
    s->seen.end_ns = s->now_ns;
    if (!s->truth) return;
    if (s->seen.steps != s->truth->steps || !k2_digest_equal(s->seen.weights, s->truth->weights))
        sim_break(s, "other weights at the end than those of the undisturbed run");
}
