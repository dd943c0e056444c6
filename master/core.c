/* core: events, and the ends of phases. See core_int.h. */
#include "master/core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/base/planted.h"
#include "common/log/log.h"

/* ---- ends of phases ------------------------------------------------------------------------------------------------- */

void k2m_report_put(k2m_core *m, const k2m_report *report)
{
    k2m_report *r = &k2m_act(m, K2M_ACT_REPORT)->report;
    *r = *report;
    r->counts = k2_replay_count(m->replay);
    r->success = k2m_core_success(m);
    r->retried = m->retried;
    memcpy(r->aside, m->aside, sizeof r->aside);
}

static void report_iteration(k2m_core *m, bool trained)
{
    k2m_report_put(m, &(k2m_report){.kind = K2M_REPORT_ITERATION,
                                    .iteration = m->iteration,
                                    .version = m->trainer_step,
                                    .trained = trained,
                                    .groups = trained ? m->batch_groups : 0,
                                    .filtered = trained ? m->batch_flat : 0,
                                    .generate_ns = m->generate_ns,
                                    .train_ns = trained ? m->train_ns : 0,
                                    .update_ns = m->update_ns,
                                    .generated_tokens = m->generated_now,
                                    .digest = k2m_digest_of(m, m->trainer_step)});
}

/* The batch is short of groups with different rewards though rollout.refill_max others were begun. False: the run has been
 * ended by its policy; nothing is taken, so the next start stands here again. */
static bool short_batch(k2m_core *m)
{
    const k2_config *c = m->c.config;
    uint32_t flat = k2_replay_groups_flat(m->replay);
    if (c->rollout_refill_max == 0 || flat <= c->rollout_refill_max) return true;
    const char *stops = strcmp(c->policy_refill, "stop") == 0 ? " (policy.refill is \"stop\")" : "";
    char text[160];
    snprintf(text, sizeof text, "iteration %llu: %u groups have equal rewards, %llu of them were replaced (rollout.refill_max)",
             (unsigned long long)m->iteration + 1, flat, (unsigned long long)c->rollout_refill_max);
    if (*stops)
        k2m_fail(m, K2_LIMIT, "%s%s", text, stops);
    else
        k2m_log(m, K2_LOG_INFO, "%s", text);
    return !*stops;
}

/* All of the iteration's requests and scores are in. */
static void generated(k2m_core *m)
{
    if (!short_batch(m)) return;
    k2_replay_counts n = k2_replay_count(m->replay);
    m->generate_ns = m->now_ns - m->generate_from_ns;
    m->generated_now = n.generated_total - m->generated_before;
    if (k2_replay_groups_ready(m->replay) == 0) {
        m->iteration++;
        k2m_record_iteration(m);
        report_iteration(m, false);
        k2m_decide(m);
        return;
    }
    k2_error err;
    k2_code code = k2_replay_take(m->replay, n.step_taken + 1, UINT32_MAX, NULL, &err);
    K2_ASSERT(code == K2_OK);
    k2m_decide(m);
}

static void published(k2m_core *m)
{
    uint64_t v = m->trainer_step;
    k2_digest known = k2m_digest_of(m, v);
    k2_replay_counts n = k2_replay_count(m->replay);
    if (!k2_digest_zero(known) && !k2_digest_equal(known, m->barrier_digest)) {
        char a[K2_DIGEST_HEX], b[K2_DIGEST_HEX];
        k2_digest_hex(known, a);
        k2_digest_hex(m->barrier_digest, b);
        k2m_fail(m, K2_CORRUPT,
                 "weights of version %llu came out as %s; the journal says %s: the same batches must give the same weights",
                 (unsigned long long)v, b, a);
        return;
    }
    if (k2_digest_zero(known)) k2m_record_version(m, v, m->barrier_digest);
    m->published = true;
    if (v > n.step_consumed) { /* a step of now, not one of recovery */
        k2_error err;
        k2_code code = k2_replay_consume(m->replay, v, &err);
        K2_ASSERT(code == K2_OK);
        k2m_rates_count(m);
        if (K2_PLANTED(RELEASED_EARLY)) (void)k2_replay_release(m->replay, v, &err);
        m->iteration++;
        k2m_record_iteration(m);
    }
    if (!m->in_force || m->force_version != v) {
        m->in_force = true;
        m->force_version = v;
        m->force_digest = m->barrier_digest;
        m->update_from_ns = m->now_ns;
        k2m_touch_rollouts(m);
    }
    if (v > n.step_consumed) report_iteration(m, true);
    k2m_decide(m);
}

static void saved_now(k2m_core *m)
{
    m->checkpoint = m->saving;
    if (k2m_only_pretrain(m))
        m->digests[0] = m->barrier_digest; /* the only version that there is; it goes into the STATE record */
    k2m_record_checkpoint(m);
    k2m_act(m, K2M_ACT_COMPACT);
    k2m_report_put(m, &(k2m_report){.kind = K2M_REPORT_SAVE,
                                    .iteration = m->iteration,
                                    .version = m->checkpoint.number,
                                    .digest = m->barrier_digest});
    k2m_decide(m);
}

static void pretrained(k2m_core *m)
{
    m->trainer_pretrain = m->pretrain_to;
    m->published = false;
    k2m_report_put(m, &(k2m_report){.kind = K2M_REPORT_PRETRAIN,
                                    .pretrain_from = m->pretrain_from,
                                    .pretrain_to = m->pretrain_to,
                                    .train_ns = m->now_ns - m->phase_since_ns});
    k2m_decide(m);
}

static uint64_t steps_taken(const k2m_core *m)
{
    return m->trainer_pretrain + m->trainer_step;
}

/* A failure is behind us when its very phase went well where it was, or farther on: what leads back there proves nothing. */
static void passed(k2m_core *m)
{
    if (m->phase <= K2M_PHASE_INIT) return;
    if (m->failed_in != K2M_PHASE_START && (m->phase != m->failed_in || steps_taken(m) < m->failed_at)) return;
    m->batch_fails = 0;
    m->failed_in = K2M_PHASE_START;
}

/* All ranks have answered the phase's command with OK. */
static void barrier_done(k2m_core *m)
{
    passed(m);
    switch (m->phase) {
    case K2M_PHASE_JOIN: k2m_phase_begin(m, K2M_PHASE_INIT, K2_MSG_INIT); break;
    case K2M_PHASE_INIT:
        m->trainers_ready = true;
        m->trainer_step = m->checkpoint.exists ? m->checkpoint.step : 0;
        m->trainer_pretrain = m->checkpoint.exists ? m->checkpoint.pretrain : 0;
        m->published = false;
        k2m_log(m, K2_LOG_INFO, "trainers are ready step=%llu pretrain_step=%llu", (unsigned long long)m->trainer_step,
                (unsigned long long)m->trainer_pretrain);
        k2m_decide(m);
        break;
    case K2M_PHASE_PRETRAIN: pretrained(m); break;
    case K2M_PHASE_TRAIN:
        m->train_ns = m->now_ns - m->train_from_ns;
        m->trainer_step = m->batch_step;
        m->published = false;
        k2m_decide(m);
        break;
    case K2M_PHASE_PUBLISH: published(m); break;
    case K2M_PHASE_SAVE:
        k2m_phase_set(m, K2M_PHASE_LATEST);
        k2m_act(m, K2M_ACT_LATEST)->step = m->saving.number;
        break;
    default: break;
    }
}

/* A rank failed its command: all of them are formed anew, unless the failure is one that a repetition cannot cure. */
static void barrier_failed(k2m_core *m)
{
    if (m->phase >= K2M_PHASE_STOP) return;
    m->trainers_ready = false;
    m->published = false;
    if (m->phase > K2M_PHASE_INIT) {
        m->failed_in = m->phase;
        m->failed_at = steps_taken(m);
    }
    if (++m->batch_fails > 3) {
        k2m_fail(m, K2_INTERNAL, "the trainers failed four times in a row in phase %s: %s", k2m_phase_name(m->phase),
                 m->failure);
        return;
    }
    k2m_log(m, K2_LOG_WARN, "trainers go back to the last checkpoint; it was phase %s", k2m_phase_name(m->phase));
    k2m_decide(m);
}

/* Failures that come from the input or the machine, and would come again. */
static bool hopeless(k2_msg_type type, k2_code code)
{
    if (code == K2_LIMIT || code == K2_UNSUPPORTED || code == K2_NO_SPACE) return true;
    if (type == K2_MSG_INIT) return code == K2_BAD_INPUT || code == K2_NOT_FOUND || code == K2_CORRUPT;
    return type == K2_MSG_PRETRAIN && (code == K2_BAD_INPUT || code == K2_NOT_FOUND);
}

/* Steps that met NaN or infinity are OK for the trainers: they changed nothing. What comes of them is the policy's. */
static void count_skipped(k2m_core *m, k2_msg_type type, const k2_msg_done *d)
{
    if (type != K2_MSG_TRAIN && type != K2_MSG_PRETRAIN) return;
    for (uint32_t i = 0; i < d->metrics.count; i++) {
        double skipped = d->metrics.items[i].value;
        if (strcmp(d->metrics.items[i].name, "skipped") != 0 || !(skipped >= 1 && skipped < 1e9)) continue;
        bool pretrain = type == K2_MSG_PRETRAIN;
        k2m_aside_steps(m, pretrain, pretrain ? m->pretrain_to : m->batch_step, (uint64_t)skipped);
    }
}

static void trainer_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *msg)
{
    const k2_msg_done *d = &msg->done;
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    bool in_barrier = w->barrier;
    w->barrier = false;
    if (d->code != K2_OK && type != K2_MSG_STOP) {
        k2m_log(m, K2_LOG_ERROR, "%s: %s failed: %.200s", name, k2_msg_name(type), d->text);
        snprintf(m->failure, sizeof m->failure, "%.20s: %.120s", name, d->text);
        if (hopeless(type, (k2_code)d->code)) {
            k2m_fail(m, (k2_code)d->code, "%s: %.250s", name, d->text);
            return;
        }
    }
    if (d->code == K2_OK && in_barrier && w->index == 0) count_skipped(m, type, d);
    if (!in_barrier) { /* of a barrier that was given up: it was still in the way of a new one */
        if (m->phase == K2M_PHASE_START) k2m_decide(m);
        return;
    }
    K2_ASSERT(m->barrier_left > 0);
    m->barrier_left--;
    m->barrier_failed |= d->code != K2_OK && !K2_PLANTED(RANK_FAILURE_IGNORED);
    if (type == K2_MSG_JOIN && d->locators.count == 1) snprintf(w->locator, sizeof w->locator, "%s", d->locators.items[0]);
    if (w->index == 0 && type == K2_MSG_PUBLISH && d->locators.count == 1)
        snprintf(m->trainer_locator, sizeof m->trainer_locator, "%s", d->locators.items[0]);
    if (type == K2_MSG_PUBLISH || type == K2_MSG_INIT || type == K2_MSG_SAVE) {
        bool says = d->code == K2_OK && !k2_digest_zero(d->digest); /* only rank 0 must */
        if (m->barrier_has_digest && says && !k2_digest_equal(m->barrier_digest, d->digest)) {
            k2m_fail(m, K2_CORRUPT, "%s: weights differ from those of another rank after %s", name, k2_msg_name(type));
            return;
        }
        if (says) {
            m->barrier_digest = d->digest;
            m->barrier_has_digest = true;
        }
        if (w->index == 0) m->force_bytes = type == K2_MSG_PUBLISH ? d->bytes : m->force_bytes;
    }
    if (m->barrier_left > 0 && !(K2_PLANTED(LATEST_EARLY) && type == K2_MSG_SAVE)) return;
    if (m->barrier_failed)
        barrier_failed(m);
    else
        barrier_done(m);
}

static void done(k2m_core *m, const k2m_event *ev)
{
    k2m_worker *w = &m->workers[ev->worker];
    if (ev->msg->cmd != w->cmd || w->cmd_type == K2_MSG_NONE) return; /* an answer that came twice */
    k2_msg_type type = w->cmd_type;
    if (ev->msg->done.code == K2_TIMEOUT)
        k2m_late(m); /* a transfer's or a collective's: while the chain still has the command */
    w->cmd_type = K2_MSG_NONE;
    k2m_touch(m, w);
    m->progress_ns = m->now_ns;
    if (type == K2_MSG_STOP || m->phase >= K2M_PHASE_STOP) return; /* its exit is what counts */
    switch (w->role) {
    case K2M_TRAINER: trainer_done(m, w, type, ev->msg); break;
    case K2M_ROLLOUT: k2m_rollout_done(m, w, type, ev->msg); break;
    default: k2m_proxy_done(m, w, type, ev->msg); break;
    }
}

/* ---- events --------------------------------------------------------------------------------------------------------- */

static void asked_to_stop(k2m_core *m)
{
    m->stop_asked++;
    if (m->stop_asked == 1) {
        k2m_log(m, K2_LOG_INFO, "draining: this iteration is finished and saved; once more to stop at once");
        if (m->phase == K2M_PHASE_START) k2m_stop_begin(m); /* nothing is under way that is not in the journal */
        if (m->phase == K2M_PHASE_EVAL) {
            m->inflight = m->scores_inflight = m->score_count = 0; /* it is done again after the next start */
            k2m_decide(m);
        }
        return;
    }
    k2m_fail(m, K2_CANCELED, "stopped at once; the journal has everything up to here");
    k2m_kill_all(m);
}

static void batch_ready(k2m_core *m, const k2m_event *ev)
{
    if (m->phase != K2M_PHASE_BATCH || ev->step != m->batch_step) return;
    if (!m->trainers_ready) { /* one died meanwhile; the batch is asked for again when they have come back */
        if (!K2_PLANTED(BATCH_FORGOTTEN)) k2m_decide(m);
        return;
    }
    snprintf(m->batch_locator, sizeof m->batch_locator, "%s", ev->locator);
    m->batch_bytes = ev->bytes;
    m->batch_digest = ev->digest;
    m->train_from_ns = m->now_ns;
    k2m_phase_begin(m, K2M_PHASE_TRAIN, K2_MSG_TRAIN);
}

static bool all_in(k2m_core *m)
{
    k2_replay_counts n = k2_replay_count(m->replay);
    k2_replay_work work;
    return m->phase == K2M_PHASE_GENERATE && m->inflight == 0 && n.running == 0 && n.finished == 0 &&
           k2_replay_next(m->replay, m->iteration + 1, &work) == K2_NOT_FOUND;
}

/* Things that no single event ends are looked at after every event. */
static void settle(k2m_core *m)
{
    if (m->phase == K2M_PHASE_START && k2m_fleet_all_up(m)) {
        m->begun = true;
        k2m_decide(m);
    }
    if (m->phase < K2M_PHASE_STOP) k2m_deliver(m);
    if (m->phase == K2M_PHASE_DISTRIBUTE && k2m_delivered(m)) {
        m->update_ns = m->now_ns - m->update_from_ns;
        k2m_report_put(m, &(k2m_report){.kind = K2M_REPORT_WEIGHTS,
                                        .iteration = m->iteration,
                                        .version = m->force_version,
                                        .digest = m->force_digest,
                                        .update_ns = m->update_ns});
        k2m_decide(m);
    }
    bool needs_engines = m->phase == K2M_PHASE_DISTRIBUTE || m->phase == K2M_PHASE_EVAL || m->phase == K2M_PHASE_GENERATE;
    if (needs_engines && !m->trainers_ready && k2m_starved(m)) { /* trainers first: only they can make the weights again */
        k2m_log(m, K2_LOG_WARN, "no process holds the weights in force any more; %s waits for the trainers",
                k2m_phase_name(m->phase));
        k2m_phase_set(m, K2M_PHASE_START);
        if (k2m_fleet_all_up(m)) k2m_decide(m);
    }
    if (m->phase == K2M_PHASE_EVAL) k2m_eval_pump(m);
    if (m->phase == K2M_PHASE_GENERATE) {
        k2m_generate_pump(m);
        if (all_in(m) && k2m_generate_fill(m)) k2m_generate_pump(m); /* a group that was dropped whole */
        if (all_in(m)) generated(m);
    }
    if (m->phase == K2M_PHASE_STOP && k2m_all_ended(m)) {
        uint64_t stopping_ns = m->phase_since_ns;
        k2m_phase_set(m, K2M_PHASE_END);
        k2m_action *a = k2m_act(m, K2M_ACT_EXIT);
        a->code = m->failing ? m->fail_code : K2_OK;
        if (m->failing) k2m_fail_text(m, stopping_ns, a->text);
    }
}

/* One deadline over what no command covers: nothing came to an end for master.step_timeout_ms. */
static void check_progress(k2m_core *m)
{
    if (!k2m_phase_timed(m->phase) || m->now_ns - m->progress_ns < m->c.config->master_step_timeout_ms * K2_NS_PER_MS) return;
    char owes[K2M_TEXT_MAX];
    k2m_waits_log(m);
    k2m_core_owes(m, owes, sizeof owes);
    bool asks = m->phase == K2M_PHASE_EVAL || m->phase == K2M_PHASE_GENERATE;
    k2m_fail(m, K2_TIMEOUT, "nothing has moved for %llu ms: %.140s%s%.110s",
             (unsigned long long)m->c.config->master_step_timeout_ms, owes, asks && m->failure[0] ? "; " : "",
             asks ? m->failure : "");
}

static void handle(k2m_core *m, const k2m_event *ev)
{
    switch (ev->type) {
    case K2M_EV_BEGIN:
        k2m_phase_set(m, K2M_PHASE_START);
        k2m_fleet_launch_all(m);
        break;
    case K2M_EV_TICK:
        k2m_fleet_tick(m);
        check_progress(m);
        break;
    case K2M_EV_HELLO: k2m_fleet_hello(m, ev); break;
    case K2M_EV_ALIVE: m->workers[ev->worker].lease_ns = m->now_ns + m->c.config->master_lease_ms * K2_NS_PER_MS; break;
    case K2M_EV_DONE: done(m, ev); break;
    case K2M_EV_EXIT:
    case K2M_EV_LAUNCH_FAILED: k2m_fleet_exit(m, ev); break;
    case K2M_EV_ANSWER: k2m_answer(m, ev); break;
    case K2M_EV_ANSWER_FAILED: k2m_answer_failed(m, ev); break;
    case K2M_EV_SCORED: k2m_scored(m, ev); break;
    case K2M_EV_SCORE_FAILED: k2m_score_failed(m, ev); break;
    case K2M_EV_BATCH: batch_ready(m, ev); break;
    case K2M_EV_LATEST:
        if (m->phase == K2M_PHASE_LATEST) saved_now(m);
        break;
    case K2M_EV_STOP: asked_to_stop(m); break;
    case K2M_EV_FAULT: k2m_fail(m, ev->code, "%s", ev->text); break;
    }
}

const k2m_outbox *k2m_core_step(k2m_core *m, const k2m_event *ev)
{
    m->outbox.count = 0;
    m->stacks_asked = false;
    m->now_ns = ev->now_ns;
    m->fleet.budget = K2_MIN(m->worker_count, K2M_STEP_WORKERS);
    handle(m, ev);
    settle(m);
    k2m_fleet_settle(m);
    return &m->outbox;
}

void k2m_core_owes(const k2m_core *m, char *out, size_t n)
{
    k2_replay_counts c = k2_replay_count(m->replay);
    int at = snprintf(out, n, "phase %s", k2m_phase_name(m->phase));
    if (m->phase == K2M_PHASE_GENERATE)
        at += snprintf(out + at, n - (size_t)at, ", %u answers and %u rewards are out", c.running, c.finished);
    if (k2m_suspects_held(m) > 0)
        at += snprintf(out + at, n - (size_t)at, ", %u of them wait to be asked for alone", k2m_suspects_held(m));
    if (m->phase == K2M_PHASE_EVAL)
        at += snprintf(out + at, n - (size_t)at, ", %u of %u answers are evaluated", m->eval_done, m->eval_count);
    bool first = true;
    for (uint32_t i = 0; i < m->worker_count && (size_t)at + 64 < n; i++) {
        const k2m_worker *w = &m->workers[i];
        if (w->state == K2M_UP && w->cmd_type == K2_MSG_NONE) continue;
        char name[K2_WIRE_NAME_MAX];
        k2m_worker_name(w, name);
        at += snprintf(out + at, n - (size_t)at, "%s%s %s %s", first ? "; " : ", ", name,
                       w->cmd_type != K2_MSG_NONE ? "owes" : "is",
                       w->cmd_type != K2_MSG_NONE ? k2_msg_name(w->cmd_type)
                       : w->state == K2M_STARTING ? "starting"
                       : w->state == K2M_DOWN     ? "down"
                                                  : "ended");
        first = false;
    }
}
