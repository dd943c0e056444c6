/* generate: which answers are asked for, what comes back, rewards, evaluation. Part of the pure core. */
#include "master/core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/base/planted.h"
#include "common/log/log.h"

/* ---- asking ------------------------------------------------------------------------------------------------------------ */

/* Something has come that need not be asked for again. */
static void moved(k2m_core *m)
{
    m->progress_ns = m->now_ns;
    m->backoff_step = m->refusals = 0;
}

/* The request is made again after a while. That this ends is seen to by the deadline over all progress: what fails is none. */
static void retry_later(k2m_core *m, const char *why)
{
    snprintf(m->failure, sizeof m->failure, "%.*s", (int)sizeof m->failure - 1, why ? why : "");
    m->retried++;
    m->backoff_step = K2_MIN(m->backoff_step + 1, 6u);
    m->backoff_until_ns = m->now_ns + (20ull << m->backoff_step) * K2_NS_PER_MS;
}

static bool may_ask(const k2m_core *m)
{
    return m->inflight < m->inflight_max && m->now_ns >= m->backoff_until_ns && k2m_proxy_ready(m) && k2m_room(m, 1);
}

static void ask(k2m_core *m, uint64_t id, uint32_t position, uint32_t max_tokens, bool alone)
{
    k2m_action *a = k2m_act(m, K2M_ACT_REQUEST);
    a->id = id;
    a->position = position;
    a->max_tokens = max_tokens;
    a->alone = alone;
    *k2m_asked_slot(m, id) = (k2m_asked){.id = id, .since_ns = m->now_ns};
    m->inflight++;
}

static void queue_score(k2m_core *m, uint64_t id)
{
    if (k2m_suspect_isolated(m, id)) {
        k2m_suspect_hold(m, id, K2M_HELD_SCORE);
        return;
    }
    K2_ASSERT(m->score_count < m->score_capacity); /* it holds every trajectory that can exist */
    m->score_queue[(m->score_head + m->score_count++) % m->score_capacity] = id;
}

static void pump_scores(k2m_core *m)
{
    while (m->score_count > 0 && m->scores_inflight < K2M_SCORES_MAX && m->now_ns >= m->backoff_until_ns &&
           k2m_proxy_ready(m) && k2m_room(m, 1)) {
        k2m_action *a = k2m_act(m, K2M_ACT_SCORE);
        while (m->score_count > 0 && a->count < K2M_SCORE_ITEMS) {
            a->ids[a->count++] = m->score_queue[m->score_head];
            m->score_head = (m->score_head + 1) % m->score_capacity;
            m->score_count--;
        }
        m->scores_inflight++;
    }
}

/* When all else is done, what is suspected of ending its worker has its turn: one at a time, with nothing beside it. */
static void ask_alone(k2m_core *m)
{
    k2m_held_for what;
    k2_replay_info info = {0};
    if (m->inflight > 0 || m->scores_inflight > 0 || m->score_count > 0 || !may_ask(m)) return;
    uint64_t id = k2m_suspect_next(m, &what);
    if (id == K2M_SUSPECT_NONE) return;
    if (what == K2M_HELD_SCORE) {
        k2m_action *a = k2m_act(m, K2M_ACT_SCORE);
        a->ids[a->count++] = id;
        a->alone = true;
        m->scores_inflight++;
    } else if (id & K2M_EVAL_BIT) {
        ask(m, id, 0, (uint32_t)m->c.config->eval_max_tokens, true);
    } else {
        (void)k2_replay_find(m->replay, id, &info);
        ask(m, id, info.generated, info.until - info.generated, true);
    }
}

static void begin(k2m_core *m, k2m_phase p)
{
    k2m_suspects_release(m);
    m->inflight = m->scores_inflight = m->score_head = m->score_count = m->score_tries_count = 0;
    m->backoff_until_ns = m->backoff_step = m->refusals = 0;
    m->failure[0] = 0;
    k2m_phase_set(m, p);
}

/* A batch has rollout.groups groups from which something can be learnt: for each that turns out to have equal rewards another
 * is begun, up to rollout.refill_max of them. How many it takes follows from the groups' own rewards in order of their numbers,
 * and is the same whoever answers first; and it is told from what the buffer holds, so a restart goes on with the same count.
 */
bool k2m_generate_fill(k2m_core *m)
{
    const k2_config *c = m->c.config;
    k2_error err;
    uint64_t refill = K2_MIN(k2_replay_groups_flat(m->replay), c->rollout_refill_max);
    uint32_t open = k2_replay_groups_open(m->replay), before = open;
    for (; open < c->rollout_groups + refill; open++) {
        uint64_t group = k2_replay_count(m->replay).next_group;
        uint32_t prompt = k2m_core_prompt_of(m, group);
        k2_code code = k2_replay_add_group(m->replay, group, prompt, (uint32_t)c->rollout_group_size, m->c.prompts.ids[prompt],
                                           m->c.prompts.lengths[prompt], &err);
        K2_ASSERT(code == K2_OK); /* save_due saw to the room */
    }
    return open > before;
}

bool k2m_batch_leaves_out(const k2m_core *m, uint64_t group)
{
    return m->c.config->rollout_refill_max > 0 && k2_replay_group_flat(m->replay, group);
}

void k2m_generate_begin(k2m_core *m)
{
    k2_error err;
    begin(m, K2M_PHASE_GENERATE);
    m->generate_from_ns = m->now_ns;
    m->generated_before = k2_replay_count(m->replay).generated_total;
    (void)k2m_generate_fill(m);
    /* What an earlier process got whole but not scored. */
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(m->replay, 0, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            (void)k2_replay_find(m->replay, k2_replay_id(group, k), &info);
            if (info.state == K2_REPLAY_FINISHED) queue_score(m, info.id);
            if (info.state == K2_REPLAY_RUNNING) (void)k2_replay_requeue(m->replay, info.id, &err);
        }
}

void k2m_generate_pump(k2m_core *m)
{
    const k2_config *c = m->c.config;
    uint64_t iteration = m->iteration + 1;
    bool sync = strcmp(c->mode, "sync") == 0;
    k2_replay_work w;
    k2_error err;
    pump_scores(m);
    while (may_ask(m) && k2_replay_next(m->replay, iteration, &w) == K2_OK) {
        uint64_t until = w.until ? w.until : sync ? c->rollout_max_tokens : w.generated + c->rollout_budget_tokens;
        until = K2_MIN(until, c->rollout_max_tokens);
        k2_code code = k2_replay_start(m->replay, w.id, iteration, (uint32_t)until, &err);
        K2_ASSERT(code == K2_OK);
        if (until == w.generated) /* all of an interrupted segment is there; only its end was not written */
            (void)k2_replay_cut(m->replay, w.id, &err);
        else if (k2m_suspect_isolated(m, w.id))
            k2m_suspect_hold(m, w.id, K2M_HELD_ANSWER);
        else
            ask(m, w.id, w.generated, (uint32_t)until - w.generated, false);
    }
    if (k2_replay_next(m->replay, iteration, &w) == K2_NOT_FOUND) ask_alone(m);
}

/* ---- answers ------------------------------------------------------------------------------------------------------------ */

/* The trajectory that this answer is for, if it is awaited: running, at the position that was asked for, and not held until it
 * may be asked for alone. A request that was given up (its phase ended for want of engines) may be answered when its trajectory
 * is further on; its tokens are known then. */
static bool awaited(const k2m_core *m, const k2m_event *ev, k2_replay_info *info)
{
    return m->phase == K2M_PHASE_GENERATE && k2_replay_find(m->replay, ev->id, info) == K2_OK &&
           info->state == K2_REPLAY_RUNNING && info->generated == ev->position && !k2m_suspect_held(m, ev->id);
}

static bool eval_awaited(const k2m_core *m, uint64_t id)
{
    uint64_t i = id & ~K2M_EVAL_BIT;
    return m->phase == K2M_PHASE_EVAL && i < m->eval_count && m->eval[i] == K2M_EVAL_RUNNING && !k2m_suspect_held(m, id);
}

static void eval_answer(k2m_core *m, const k2m_event *ev)
{
    uint64_t i = ev->id & ~K2M_EVAL_BIT;
    if (!eval_awaited(m, ev->id)) return;
    m->inflight--;
    if (!k2_digest_equal(ev->digest, m->force_digest)) { /* of an earlier evaluation */
        m->eval[i] = K2M_EVAL_WAITING;
        m->eval_next = K2_MIN(m->eval_next, (uint32_t)i);
        retry_later(m, "an answer is of other weights than those in force");
        return;
    }
    moved(m);
    k2m_suspect_clear(m, ev->id);
    m->eval[i] = K2M_EVAL_ANSWERED;
    queue_score(m, ev->id);
}

/* The segment is over: finished, cut at its budget, or answered short, which is asked for again. */
static void end_segment(k2m_core *m, const k2m_event *ev, const k2_replay_info *info)
{
    k2_error err;
    bool at_end = info->generated == info->until;
    if (ev->finish != K2_REPLAY_FINISH_LENGTH || (at_end && info->generated >= m->c.config->rollout_max_tokens)) {
        (void)k2_replay_finish_as(m->replay, ev->id, ev->finish, &err);
        queue_score(m, ev->id);
    } else if (at_end) {
        (void)k2_replay_cut(m->replay, ev->id, &err);
    } else {
        char why[sizeof m->failure];
        snprintf(why, sizeof why, "trajectory %llu: the answer ends at token %u, asked until %u", (unsigned long long)ev->id,
                 info->generated, info->until);
        k2m_log(m, K2_LOG_WARN, "%s", why);
        (void)k2_replay_requeue(m->replay, ev->id, &err);
        retry_later(m, why);
        return;
    }
}

void k2m_answer(k2m_core *m, const k2m_event *ev)
{
    k2_error err = {0};
    if (ev->id & K2M_EVAL_BIT) {
        eval_answer(m, ev);
        return;
    }
    k2_replay_info info;
    if (!awaited(m, ev, &info)) return;
    m->inflight--;
    k2_code code = K2_OK;
    if (!k2_digest_equal(ev->digest, m->force_digest))
        code = k2_error_set(&err, K2_BAD_INPUT, "trajectory %llu: the answer is of other weights than those in force",
                            (unsigned long long)ev->id);
    if (code == K2_OK && ev->count > 0) code = k2_replay_chunk(m->replay, ev->id, info.generated, ev->tokens, ev->count, &err);
    if (code != K2_OK) {
        k2_error ignored;
        k2m_log(m, K2_LOG_WARN, "%.300s", err.text);
        (void)k2_replay_requeue(m->replay, ev->id, &ignored);
        retry_later(m, err.text);
        return;
    }
    if (ev->count > 0 || ev->finish != K2_REPLAY_FINISH_LENGTH) moved(m);
    k2m_suspect_clear(m, ev->id);
    (void)k2_replay_find(m->replay, ev->id, &info);
    end_segment(m, ev, &info);
}

void k2m_answer_failed(k2m_core *m, const k2m_event *ev)
{
    k2_error err;
    k2_replay_info info;
    bool eval = (ev->id & K2M_EVAL_BIT) != 0;
    if (eval ? !eval_awaited(m, ev->id) : !awaited(m, ev, &info)) return;
    if (ev->code == K2_TIMEOUT) k2m_late(m); /* while the chain still has it */
    if (eval) {
        uint32_t i = (uint32_t)(ev->id & ~K2M_EVAL_BIT);
        m->eval[i] = K2M_EVAL_WAITING;
        m->eval_next = K2_MIN(m->eval_next, i);
    } else {
        (void)k2_replay_requeue(m->replay, ev->id, &err);
    }
    m->inflight--;
    k2m_suspect_lost(m, ev->id, ev->lost, ev->lost_count);
    if (ev->code == K2_BAD_INPUT && ++m->refusals >= K2M_REFUSALS_MAX) {
        k2m_fail(m, K2_BAD_INPUT, "requests are refused, the last %u in a row: %.200s", m->refusals, ev->text);
        return;
    }
    if (m->now_ns >= m->backoff_until_ns) k2m_log(m, K2_LOG_WARN, "an answer failed and is asked for again: %.200s", ev->text);
    retry_later(m, ev->text);
}

/* ---- rewards ------------------------------------------------------------------------------------------------------------- */

/* Tries of a reward so far, this one included. */
static uint32_t count_try(k2m_core *m, uint64_t id)
{
    for (uint32_t i = 0; i < m->score_tries_count; i++)
        if (m->score_tries[i].id == id) return ++m->score_tries[i].tries;
    m->score_tries[m->score_tries_count].id = id;
    m->score_tries[m->score_tries_count++].tries = 1;
    return 1;
}

/* Now and then a reward fails; when all of them do, nothing can be learnt, and it must not look as if everything were wrong. */
static void count_unrewarded(k2m_core *m, const char *why)
{
    if (++m->unrewarded >= K2M_UNREWARDED_MAX)
        k2m_fail(m, K2_BAD_INPUT, "none of the last %u answers could be rewarded: %.200s", m->unrewarded, why);
}

/* Asked for again: perhaps the reward command's deadline has passed, which its engine's log tells more about. */
static void score_again(k2m_core *m, const k2m_event *ev)
{
    k2m_log(m, K2_LOG_WARN, "%s %llu waits for its reward still, it is asked for again: %.200s",
            ev->id & K2M_EVAL_BIT ? "held-out prompt" : "trajectory", (unsigned long long)(ev->id & ~K2M_EVAL_BIT),
            ev->text ? ev->text : "");
    m->retried++;
    queue_score(m, ev->id);
}

static void eval_scored(k2m_core *m, const k2m_event *ev)
{
    uint64_t i = ev->id & ~K2M_EVAL_BIT;
    if (m->phase != K2M_PHASE_EVAL || i >= m->eval_count || m->eval[i] != K2M_EVAL_ANSWERED) return;
    if (!ev->has_reward && count_try(m, ev->id) <= m->c.config->reward_retries) {
        score_again(m, ev);
        return;
    }
    k2m_suspect_clear(m, ev->id);
    m->eval[i] = K2M_EVAL_SCORED;
    m->eval_done++;
    m->eval_correct += ev->has_reward && ev->reward >= m->c.config->reward_correct;
    if (ev->has_reward) {
        m->unrewarded = 0;
        return;
    }
    const char *why = ev->text ? ev->text : "";
    k2m_log(m, K2_LOG_WARN, "held-out prompt %llu counts as wrong, its reward failed: %.200s", (unsigned long long)i, why);
    (void)k2m_aside_reward(m, ev->id, why);
    count_unrewarded(m, why);
}

void k2m_scored(k2m_core *m, const k2m_event *ev)
{
    k2_error err;
    k2_replay_info info;
    m->progress_ns = m->now_ns;
    if (ev->ids && m->scores_inflight > 0) m->scores_inflight--; /* the last of its request */
    if (ev->id & K2M_EVAL_BIT) {
        eval_scored(m, ev);
        return;
    }
    if (m->phase != K2M_PHASE_GENERATE || k2_replay_find(m->replay, ev->id, &info) != K2_OK || info.state != K2_REPLAY_FINISHED)
        return;
    k2m_suspect_clear(m, ev->id);
    double reward = ev->reward;
    if (info.finish == K2_REPLAY_FINISH_REPETITION) reward -= m->c.config->rollout_repetition_penalty;
    if (ev->has_reward && k2_replay_score(m->replay, ev->id, reward, &err) == K2_OK) {
        if (K2_PLANTED(RATES_EARLY)) k2m_rates_group(m, info.group);
        m->unrewarded = 0;
        if (k2_replay_group_flat(m->replay, info.group)) (void)k2m_generate_fill(m); /* while the others are still at work */
        return;
    }
    uint32_t tries = count_try(m, ev->id);
    if (tries <= m->c.config->reward_retries) {
        score_again(m, ev);
        return;
    }
    char reason[K2_REPLAY_REASON_MAX];
    snprintf(reason, sizeof reason, "reward failed %u times: %.60s", tries, ev->text ? ev->text : "");
    if (!k2m_aside_reward(m, ev->id, reason)) return;
    k2m_log(m, K2_LOG_WARN, "trajectory %llu is dropped: %s", (unsigned long long)ev->id, reason);
    (void)k2_replay_drop(m->replay, ev->id, reason, &err);
    count_unrewarded(m, reason);
}

static bool awaits_score(const k2m_core *m, uint64_t id)
{
    k2_replay_info info;
    if (id & K2M_EVAL_BIT) return m->eval[id & ~K2M_EVAL_BIT] == K2M_EVAL_ANSWERED;
    return k2_replay_find(m->replay, id, &info) == K2_OK && info.state == K2_REPLAY_FINISHED;
}

void k2m_score_failed(k2m_core *m, const k2m_event *ev)
{
    if (m->phase != K2M_PHASE_GENERATE && m->phase != K2M_PHASE_EVAL) return;
    if (m->scores_inflight == 0 || ev->count == 0 || ((ev->ids[0] & K2M_EVAL_BIT) != 0) != (m->phase == K2M_PHASE_EVAL)) return;
    if (ev->code == K2_TIMEOUT) k2m_late(m);
    m->scores_inflight--;
    k2m_lost lost[K2M_LOST_MAX] = {{0}};
    for (uint32_t i = 0; i < ev->lost_count; i++) { /* its items are company for one another */
        lost[i] = ev->lost[i];
        lost[i].alone &= ev->count == 1;
    }
    for (uint32_t i = 0; i < ev->count && !K2_PLANTED(SCORE_LOST); i++) {
        k2m_suspect_lost(m, ev->ids[i], lost, ev->lost_count);
        if (awaits_score(m, ev->ids[i])) queue_score(m, ev->ids[i]);
    }
    k2m_log(m, K2_LOG_WARN, "a request for rewards failed and is made again: %.200s", ev->text);
    retry_later(m, ev->text);
}

/* ---- evaluation ------------------------------------------------------------------------------------------------------------
 */

uint32_t k2m_core_eval_wanted(const k2m_core *m)
{
    return (uint32_t)K2_MIN(K2_MIN(m->c.config->eval_prompts, (uint64_t)m->c.heldout), (uint64_t)K2M_EVAL_MAX);
}

void k2m_eval_begin(k2m_core *m)
{
    begin(m, K2M_PHASE_EVAL);
    m->eval_count = k2m_core_eval_wanted(m);
    m->eval_next = m->eval_done = m->eval_correct = 0;
    memset(m->eval, K2M_EVAL_WAITING, m->eval_count);
    for (uint32_t i = 0; i < m->eval_count; i++) { /* counts as wrong at once: its workers' lives are spared */
        if (!k2m_suspect_poison(m, K2M_EVAL_BIT | i) || strcmp(m->c.config->policy_poison, "stop") == 0) continue;
        m->eval[i] = K2M_EVAL_SCORED;
        m->eval_done++;
    }
}

void k2m_eval_pump(k2m_core *m)
{
    pump_scores(m);
    for (; m->eval_next < m->eval_count && may_ask(m); m->eval_next++) {
        if (m->eval[m->eval_next] != K2M_EVAL_WAITING) continue;
        m->eval[m->eval_next] = K2M_EVAL_RUNNING;
        uint64_t id = K2M_EVAL_BIT | m->eval_next;
        if (k2m_suspect_isolated(m, id))
            k2m_suspect_hold(m, id, K2M_HELD_ANSWER);
        else
            ask(m, id, 0, (uint32_t)m->c.config->eval_max_tokens, false);
    }
    if (m->eval_next >= m->eval_count) ask_alone(m);
    if (m->eval_done < m->eval_count) return;
    k2m_record_eval(m);
    k2m_report_put(m, &(k2m_report){.kind = K2M_REPORT_EVAL,
                                    .iteration = m->iteration,
                                    .version = m->force_version,
                                    .correct = m->eval_correct,
                                    .total = m->eval_count,
                                    .generate_ns = m->now_ns - m->phase_since_ns});
    k2m_decide(m);
}
