/* fleet: workers, their incarnations and leases, commands with deadlines, and the delivery of weights. Part of the pure core.
 */
#include "master/core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/base/planted.h"
#include "common/log/log.h"

static const char *const role_names[K2M_ROLES] = {"trainer", "rollout", "proxy"};

const char *k2m_role_name(k2m_role r)
{
    return role_names[r];
}

void k2m_worker_name(const k2m_worker *w, char out[K2_WIRE_NAME_MAX])
{
    snprintf(out, K2_WIRE_NAME_MAX, "%s-%u", k2m_role_name(w->role), w->index);
}

bool k2m_core_current(const k2m_core *m, uint64_t worker, uint64_t incarnation)
{
    return worker >= 1 && worker <= m->worker_count && m->workers[worker - 1].state == K2M_UP &&
           (m->workers[worker - 1].incarnation == incarnation || K2_PLANTED(NO_FENCE));
}

void k2m_fleet_init(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++) {
        k2m_worker *w = &m->workers[i];
        w->role = i < m->trainers ? K2M_TRAINER : i < m->trainers + m->rollouts ? K2M_ROLLOUT : K2M_PROXY;
        w->index = w->role == K2M_TRAINER ? i : w->role == K2M_ROLLOUT ? i - m->first_rollout : 0;
    }
}

/* ---- lives ------------------------------------------------------------------------------------------------------------ */

static uint32_t number_of(const k2m_core *m, const k2m_worker *w)
{
    return (uint32_t)(w - m->workers);
}

static void launch(k2m_core *m, k2m_worker *w)
{
    if (m->last_incarnation == m->incarnations_reserved) k2m_record_incarnations(m, m->last_incarnation + K2M_INCARNATIONS);
    w->state = K2M_STARTING;
    w->incarnation = ++m->last_incarnation;
    w->start_ns = m->now_ns;
    w->cmd_type = K2_MSG_NONE;
    w->barrier = false;
    w->stop_sent = false;
    w->prepare_fails = 0;
    w->phase[0] = 0;
    w->pid = 0;
    w->owes_poll_ns = 0;
    k2m_action *a = k2m_act(m, K2M_ACT_LAUNCH);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
}

void k2m_fleet_launch_all(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++) launch(m, &m->workers[i]);
}

static uint64_t ms(uint64_t v)
{
    return v * K2_NS_PER_MS;
}

/* Restarts of this worker within the window; the ring keeps the youngest. */
static uint32_t restarts_lately(const k2m_core *m, const k2m_worker *w)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < K2_MIN(w->restart_count, K2M_RESTARTS_KEPT); i++)
        n += m->now_ns - w->restarts[i] < K2M_RESTART_WINDOW_NS;
    return n;
}

static void plan_restart(k2m_core *m, k2m_worker *w, const char *why)
{
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    uint32_t lately = restarts_lately(m, w);
    if (lately >= K2_MIN(m->c.config->master_restarts_max, K2M_RESTARTS_KEPT)) {
        k2m_fail(m, K2_LIMIT, "%s died %u times within %u s (master.restarts_max): the last time it %.200s", name, lately + 1,
                 (unsigned)(K2M_RESTART_WINDOW_NS / K2_NS_PER_S), why);
        return;
    }
    uint64_t delay_ms = lately < 6 ? 50ull << lately : 3000;
    w->restarts[w->restart_count++ % K2M_RESTARTS_KEPT] = m->now_ns;
    w->restarts_total++;
    w->restart_at_ns = m->now_ns + ms(delay_ms);
    k2m_log(m, K2_LOG_WARN, "%s %s; incarnation %llu ended, the next one starts in %llu ms", name, why,
            (unsigned long long)w->incarnation, (unsigned long long)delay_ms);
}

/* A rank without a peer can finish nothing: whatever they were at is given up, and `decide` forms them anew. */
static void trainers_broken(k2m_core *m)
{
    bool in_trainer_phase = m->phase == K2M_PHASE_JOIN || m->phase == K2M_PHASE_INIT || m->phase == K2M_PHASE_PRETRAIN ||
                            m->phase == K2M_PHASE_SAVE || m->phase == K2M_PHASE_TRAIN || m->phase == K2M_PHASE_PUBLISH;
    m->trainers_ready = false;
    m->published = false;
    m->barrier_left = 0;
    for (uint32_t i = 0; i < m->trainers; i++) {
        k2m_worker *w = &m->workers[i];
        w->barrier = false;
        /* It may sit in a collective with the one that is gone. Where that one was killed the others hear of it at once; where
         * it is only silent nobody tells them, and what they are at is void anyway. */
        if (w->state == K2M_UP && w->cmd_type != K2_MSG_NONE)
            w->cmd_deadline_ns = K2_MIN(w->cmd_deadline_ns, m->now_ns + ms(m->c.config->master_lease_ms));
    }
    if (in_trainer_phase) k2m_phase_set(m, K2M_PHASE_START);
}

void k2m_worker_dead(k2m_core *m, k2m_worker *w, const char *why)
{
    w->cmd_type = K2_MSG_NONE;
    if (!K2_PLANTED(HELD_AFTER_DEATH)) w->prepared = w->held = w->gate = (k2_digest){0, 0};
    w->table_sent = false;
    w->locator[0] = 0;
    if (m->phase >= K2M_PHASE_STOP) {
        w->state = K2M_ENDED;
        return;
    }
    w->state = K2M_DOWN;
    if (w->role == K2M_ROLLOUT && m->has_proxy) m->workers[m->proxy].table_sent = false;
    if (w->role == K2M_TRAINER) trainers_broken(m);
    plan_restart(m, w, why);
}

static void kill_worker(k2m_core *m, k2m_worker *w, const char *why)
{
    k2m_action *a = k2m_act(m, K2M_ACT_KILL);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
    k2m_worker_dead(m, w, why);
}

void k2m_fleet_exit(k2m_core *m, const k2m_event *ev)
{
    k2m_worker *w = &m->workers[ev->worker];
    if (w->incarnation != ev->incarnation || w->state == K2M_DOWN || w->state == K2M_ENDED) return;
    char why[K2M_TEXT_MAX], name[K2_WIRE_NAME_MAX];
    bool last = ev->text && ev->text[0]; /* the last line of its log */
    if (ev->type == K2M_EV_LAUNCH_FAILED)
        snprintf(why, sizeof why, "could not be started: %.200s", ev->text);
    else if (ev->signal)
        snprintf(why, sizeof why, "was ended by signal %d%s%.200s", ev->signal, last ? ": " : "", last ? ev->text : "");
    else
        snprintf(why, sizeof why, "exited with %d%s%.200s", ev->exit_code, last ? ": " : "", last ? ev->text : "");
    bool refused = ev->type == K2M_EV_LAUNCH_FAILED || ev->exit_code == 2;
    if (refused && m->phase == K2M_PHASE_START && !m->begun && w->restarts_total == 0) { /* bad input: it would be so again */
        k2m_worker_name(w, name);
        w->state = K2M_ENDED;
        k2m_fail(m, K2_BAD_INPUT, "%s %s", name, why);
        return;
    }
    k2m_worker_dead(m, w, why);
}

static void refuse(k2m_core *m, k2_code code, const char *text)
{
    k2m_action *a = k2m_act(m, K2M_ACT_REFUSE);
    a->code = code;
    snprintf(a->text, sizeof a->text, "%s", text);
}

void k2m_fleet_hello(k2m_core *m, const k2m_event *ev)
{
    const k2_msg_hello *h = &ev->msg->hello;
    k2m_worker *w = NULL;
    for (uint32_t i = 0; i < m->worker_count; i++)
        if (strcmp(h->role, k2m_role_name(m->workers[i].role)) == 0 && h->index == m->workers[i].index) w = &m->workers[i];
    if (!w) {
        refuse(m, K2_BAD_INPUT, "no such worker in this run");
        return;
    }
    if (h->nonce != w->incarnation || (w->state != K2M_STARTING && w->state != K2M_UP)) {
        refuse(m, K2_FENCED, "another process has this place");
        return;
    }
    w->pid = h->pid;
    snprintf(w->endpoint, sizeof w->endpoint, "%.*s", (int)sizeof w->endpoint - 1, h->endpoint);
    w->lease_ns = m->now_ns + ms(m->c.config->master_lease_ms);
    w->owes_poll_ns = m->now_ns;
    m->progress_ns = m->now_ns;
    k2m_action *a = k2m_act(m, K2M_ACT_ADMIT);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
    if (w->state == K2M_UP) return; /* it did not get the first WELCOME */
    w->state = K2M_UP;
    if (w->role == K2M_ROLLOUT && m->has_proxy) m->workers[m->proxy].table_sent = false;
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    k2m_log(m, K2_LOG_INFO, "%s is up pid=%llu incarnation=%llu %s", name, (unsigned long long)w->pid,
            (unsigned long long)w->incarnation, w->endpoint);
    if (m->phase >= K2M_PHASE_STOP) k2m_stop_all(m);
}

static void tick_worker(k2m_core *m, k2m_worker *w)
{
    char why[K2M_TEXT_MAX], name[K2_WIRE_NAME_MAX];
    const k2_config *c = m->c.config;
    if (w->state == K2M_DOWN && m->now_ns >= w->restart_at_ns) {
        launch(m, w);
    } else if (w->state == K2M_STARTING && m->now_ns - w->start_ns >= ms(c->master_start_timeout_ms)) {
        k2m_waits_log(m);
        snprintf(why, sizeof why, "said nothing within %llu ms of its start", (unsigned long long)c->master_start_timeout_ms);
        k2m_worker_name(w, name);
        if (w->restarts_total == 0 && m->phase == K2M_PHASE_START)
            k2m_fail(m, K2_TIMEOUT, "%s %s (master.start_timeout_ms)", name, why);
        else
            kill_worker(m, w, why);
    } else if (w->state == K2M_UP && m->now_ns >= w->lease_ns) {
        k2m_waits_log(m);
        snprintf(why, sizeof why, "said nothing for %llu ms (its lease)", (unsigned long long)c->master_lease_ms);
        kill_worker(m, w, why);
    } else if (w->state == K2M_UP && w->cmd_type != K2_MSG_NONE && m->now_ns >= w->cmd_deadline_ns) {
        k2m_waits_log(m);
        snprintf(why, sizeof why, "owes the end of %s since %llu ms", k2_msg_name(w->cmd_type),
                 (unsigned long long)((m->now_ns - w->cmd_since_ns) / K2_NS_PER_MS));
        kill_worker(m, w, why);
    }
}

void k2m_fleet_tick(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++) {
        k2m_worker *w = &m->workers[i];
        if (m->phase < K2M_PHASE_STOP) {
            tick_worker(m, w);
        } else if (w->state == K2M_UP || w->state == K2M_STARTING) {
            bool late = m->now_ns - m->phase_since_ns >= K2M_STOP_NS;
            if (!late && !(w->state == K2M_UP && m->now_ns >= w->lease_ns)) continue;
            k2m_waits_log(m);
            kill_worker(m, w, "did not stop");
        }
    }
}

bool k2m_trainers_up(const k2m_core *m)
{
    for (uint32_t i = 0; i < m->trainers; i++)
        if (m->workers[i].state != K2M_UP) return false;
    return true;
}

bool k2m_trainers_idle(const k2m_core *m)
{
    for (uint32_t i = 0; i < m->trainers; i++)
        if (m->workers[i].cmd_type != K2_MSG_NONE) return false;
    return true;
}

/* At the first start all must be there, so that a run does not begin in a fleet that cannot be; later the trainers suffice. */
bool k2m_fleet_all_up(const k2m_core *m)
{
    if (!k2m_trainers_up(m) || !k2m_trainers_idle(m)) return false;
    for (uint32_t i = 0; i < m->worker_count && !m->begun; i++)
        if (m->workers[i].state != K2M_UP) return false;
    return true;
}

/* ---- commands ---------------------------------------------------------------------------------------------------------- */

k2_msg *k2m_command(k2m_core *m, k2m_worker *w, k2_msg_type type)
{
    K2_ASSERT(w->state == K2M_UP && w->cmd_type == K2_MSG_NONE);
    w->cmd++;
    w->cmd_type = type;
    w->cmd_since_ns = m->now_ns;
    w->cmd_deadline_ns = m->now_ns + ms(m->c.config->master_step_timeout_ms);
    k2m_action *a = k2m_act(m, K2M_ACT_COMMAND);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
    a->msg = (k2_msg){.type = type, .worker = number_of(m, w) + 1, .incarnation = w->incarnation, .cmd = w->cmd};
    return &a->msg;
}

static void fill(k2m_core *m, k2_msg *msg)
{
    switch (msg->type) {
    case K2_MSG_INIT:
        msg->init.locators = (k2_wire_strs){.items = m->strs, .count = m->trainers};
        msg->init.source = m->checkpoint.exists ? m->dir_text : "fresh";
        msg->init.step = m->checkpoint.exists ? m->checkpoint.step : 0;
        break;
    case K2_MSG_PRETRAIN:
        msg->pretrain.from = m->pretrain_from;
        msg->pretrain.to = m->pretrain_to;
        break;
    case K2_MSG_TRAIN:
        msg->train.step = m->batch_step;
        msg->train.locator = m->batch_locator;
        msg->train.bytes = m->batch_bytes;
        msg->train.digest = m->batch_digest;
        break;
    case K2_MSG_PUBLISH: msg->publish.version = m->trainer_step; break;
    case K2_MSG_SAVE:
        msg->save.dir = m->dir_text;
        msg->save.step = m->saving.step;
        break;
    default: break;
    }
}

void k2m_barrier(k2m_core *m, k2_msg_type type)
{
    m->barrier_left = m->trainers;
    m->barrier_failed = false;
    m->barrier_has_digest = false;
    if (type == K2_MSG_INIT) {
        for (uint32_t i = 0; i < m->trainers; i++) m->strs[i] = m->workers[i].locator;
        snprintf(m->dir_text, sizeof m->dir_text, "%s/step_%07llu", m->c.checkpoints_dir,
                 (unsigned long long)m->checkpoint.number);
    }
    for (uint32_t i = 0; i < m->trainers; i++) {
        fill(m, k2m_command(m, &m->workers[i], type));
        m->workers[i].barrier = true;
    }
}

/* ---- weights to rollouts, table and gate to the proxy ----------------------------------------------------------------------
 */

static bool holds_force(const k2m_core *m, const k2m_worker *w)
{
    return m->in_force && w->state == K2M_UP && k2_digest_equal(w->held, m->force_digest);
}

/* Whoever can be read from: rank 0, and rollouts that hold the version already. */
static uint32_t find_sources(k2m_core *m, const k2m_worker *reader)
{
    uint32_t n = 0;
    if (m->published && m->trainer_step == m->force_version) m->sources[n++] = m->trainer_locator;
    for (uint32_t i = 0; i < m->rollouts && n < 8; i++) {
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        if (w != reader && holds_force(m, w) && w->locator[0]) m->sources[n++] = w->locator;
    }
    return n;
}

/* In DISTRIBUTE nobody switches before all that live have the whole version; a late comer switches as soon as it has it. */
static bool may_commit(const k2m_core *m)
{
    if (m->phase != K2M_PHASE_DISTRIBUTE) return true;
    for (uint32_t i = 0; i < m->rollouts; i++) {
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        if (w->state == K2M_UP && !k2_digest_equal(w->prepared, m->force_digest) && !holds_force(m, w)) return false;
    }
    return true;
}

static void deliver_to_rollout(k2m_core *m, k2m_worker *w)
{
    if (w->state != K2M_UP || w->cmd_type != K2_MSG_NONE || holds_force(m, w)) return;
    if (!k2_digest_equal(w->prepared, m->force_digest)) {
        uint32_t n = find_sources(m, w);
        if (n == 0) return;
        k2_msg *msg = k2m_command(m, w, K2_MSG_PREPARE);
        msg->prepare.version = m->force_version;
        msg->prepare.digest = m->force_digest;
        msg->prepare.sources = (k2_wire_strs){.items = m->sources, .count = n};
    } else if (may_commit(m)) {
        k2_msg *msg = k2m_command(m, w, K2_MSG_COMMIT);
        msg->commit.version = m->force_version;
        msg->commit.digest = m->force_digest;
    }
}

static bool any_holds(const k2m_core *m, bool all)
{
    uint32_t up = 0, hold = 0;
    for (uint32_t i = 0; i < m->rollouts; i++) {
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        up += w->state == K2M_UP;
        hold += holds_force(m, w);
    }
    return hold > 0 && (!all || hold == up || K2_PLANTED(GATE_EARLY));
}

bool k2m_starved(const k2m_core *m)
{
    return m->has_proxy && m->in_force && !any_holds(m, false) && !(m->published && m->trainer_step == m->force_version);
}

static void send_table(k2m_core *m, k2m_worker *proxy)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->rollouts; i++) {
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        if (w->state != K2M_UP || !w->endpoint[0]) continue;
        m->engines[n++] = (k2_wire_engine){.id = m->first_rollout + i + 1,
                                           .incarnation = w->incarnation,
                                           .url = w->endpoint,
                                           .digest = w->held,
                                           .state = "up"};
    }
    k2m_command(m, proxy, K2_MSG_ENGINES)->engines.engines = (k2_wire_engines){.items = m->engines, .count = n};
    proxy->table_sent = true;
}

void k2m_deliver(k2m_core *m)
{
    if (!m->has_proxy) return;
    for (uint32_t i = 0; i < m->rollouts && m->in_force; i++) deliver_to_rollout(m, &m->workers[m->first_rollout + i]);
    k2m_worker *proxy = &m->workers[m->proxy];
    if (proxy->state != K2M_UP || proxy->cmd_type != K2_MSG_NONE) return;
    if (!proxy->table_sent) {
        send_table(m, proxy);
    } else if (m->in_force && !k2_digest_equal(proxy->gate, m->force_digest) &&
               any_holds(m, m->phase == K2M_PHASE_DISTRIBUTE)) {
        k2_msg *msg = k2m_command(m, proxy, K2_MSG_GATE);
        msg->gate.version = m->force_version;
        msg->gate.digest = proxy->gate_asked = m->force_digest;
    }
}

bool k2m_proxy_ready(const k2m_core *m)
{
    const k2m_worker *p = &m->workers[m->proxy];
    return m->has_proxy && m->in_force && p->state == K2M_UP && k2_digest_equal(p->gate, m->force_digest);
}

/* The version in force is in use by everyone who lives, and the gate stands at it. */
bool k2m_delivered(const k2m_core *m)
{
    if (!m->has_proxy) return true;
    const k2m_worker *p = &m->workers[m->proxy];
    return k2m_proxy_ready(m) && any_holds(m, true) && p->table_sent && p->cmd_type == K2_MSG_NONE;
}

void k2m_rollout_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *msg)
{
    const k2_msg_done *d = &msg->done;
    char name[K2_WIRE_NAME_MAX], why[K2M_TEXT_MAX];
    k2m_worker_name(w, name);
    if (d->code != K2_OK) {
        w->prepared = (k2_digest){0, 0};
        k2m_log(m, K2_LOG_WARN, "%s: %s failed: %.200s", name, k2_msg_name(type), d->text);
        snprintf(why, sizeof why, "could not take weights: %.200s", d->text);
        if (++w->prepare_fails >= 3)
            kill_worker(m, w, why); /* its sources were fresh each time: a new process is the next remedy */
        return;
    }
    if (type == K2_MSG_PREPARE) {
        w->prepared = d->digest;
        if (d->locators.count >= 1) snprintf(w->locator, sizeof w->locator, "%s", d->locators.items[0]);
    } else if (type == K2_MSG_COMMIT) {
        w->prepare_fails = 0;
        w->held = w->prepared;
        w->held_version = m->force_version;
        m->workers[m->proxy].table_sent = false;
    }
}

void k2m_proxy_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *msg)
{
    const k2_msg_done *d = &msg->done;
    char why[K2M_TEXT_MAX];
    if (d->code != K2_OK) {
        snprintf(why, sizeof why, "refused %s: %.200s", k2_msg_name(type), d->text);
        kill_worker(m, w, why);
        return;
    }
    if (type == K2_MSG_GATE) w->gate = w->gate_asked; /* another version may be in force since */
}

/* ---- the end ---------------------------------------------------------------------------------------------------------------
 */

/* STOP to everyone; the proxy last in the list but all at once: nobody has work any more. Who is down stays down. */
void k2m_stop_all(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++) {
        k2m_worker *w = &m->workers[i];
        if (w->state == K2M_DOWN) w->state = K2M_ENDED;
        if (w->state != K2M_UP || w->stop_sent) continue;
        w->cmd_type = K2_MSG_NONE; /* whatever it is at, STOP comes behind it */
        w->barrier = false;
        w->stop_sent = true;
        k2m_command(m, w, K2_MSG_STOP)->stop.text = m->failing ? m->fail_text : "the run has ended";
    }
}

bool k2m_all_ended(const k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++)
        if (m->workers[i].state != K2M_ENDED) return false;
    return true;
}
