/* fleet: workers, their incarnations and leases, commands with deadlines, and the end. Part of the pure core. Nothing here
 * looks at all workers for what happens to one of them: census.c keeps the counts, and who is due next. */
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
    w->gauges = (k2m_gauges){0};
    w->pid = 0;
    w->owes_poll_ns = 0;
    k2m_action *a = k2m_act(m, K2M_ACT_LAUNCH);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
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
    w->locator[0] = 0;
    w->state = m->phase >= K2M_PHASE_STOP ? K2M_ENDED : K2M_DOWN;
    if (w->state == K2M_DOWN) {
        if (w->role == K2M_ROLLOUT) k2m_table_changed(m, w);
        if (w->role == K2M_PROXY) m->fleet.table_begun = false;
        if (w->role == K2M_TRAINER) trainers_broken(m);
        plan_restart(m, w, why);
    }
    k2m_touch(m, w);
}

static k2m_exit *exit_add(k2m_core *m, const k2m_worker *w)
{
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    k2m_exit *e = k2m_exits_add(&m->exits, name, w->incarnation, m->now_ns);
    e->start_ns = w->start_ns;
    e->pid = w->pid;
    return e;
}

void k2m_kill_worker(k2m_core *m, k2m_worker *w, const char *why)
{
    k2m_exit *e = exit_add(m, w);
    snprintf(e->killed, sizeof e->killed, "%.*s", (int)sizeof e->killed - 1, why);
    k2m_action *a = k2m_act(m, K2M_ACT_KILL);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
    k2m_worker_dead(m, w, why);
}

/* The report of an end, and which end of those close to it came first. */
static void report_exit(k2m_core *m, const k2m_exit *e)
{
    char text[K2M_EXIT_TEXT_MAX], how[160];
    k2m_incident x;
    k2m_exit_text(e, text, sizeof text);
    k2m_exits_incident(&m->exits, &x);
    bool caused = !e->expected && x.count > 1 && x.list[0] != e;
    if (caused) {
        k2m_exit_how(x.list[0], how, sizeof how);
        k2m_log(m, K2_LOG_WARN, "exit: %.*s", K2M_TEXT_MAX - 16, text);
        k2m_log(m, K2_LOG_WARN, "exit: first cause: %s %s %.1f s before", x.list[0]->name, how,
                (double)(e->at_ns - K2_MIN(x.list[0]->at_ns, e->at_ns)) / 1e9);
    } else {
        k2m_log(m, e->expected ? K2_LOG_INFO : K2_LOG_WARN, "exit: %.*s", K2M_TEXT_MAX - 16, text);
    }
    if (k2m_exit_crashed(e)) k2m_stacks_ask(m, "%s crashed", e->name);
}

/* The process of an incarnation has ended: of the present one, or of one that was given up before. */
static void note_exit(k2m_core *m, const k2m_worker *w, const k2m_event *ev)
{
    k2m_exit *e = k2m_exits_find(&m->exits, ev->incarnation);
    if (!e && w->incarnation == ev->incarnation) e = exit_add(m, w);
    if (!e || e->over) return;
    e->over = true;
    e->exit_code = ev->exit_code;
    e->signal = ev->signal;
    e->oom_kills = ev->oom_kills;
    e->lived_ns = m->now_ns - e->start_ns;
    e->expected = w->stop_sent && w->incarnation == ev->incarnation && !ev->signal && ev->exit_code == 0 && !e->killed[0];
    if (ev->pid) e->pid = ev->pid;
    if (ev->text && !e->expected) snprintf(e->last, sizeof e->last, "%.*s", (int)sizeof e->last - 1, ev->text);
    report_exit(m, e);
}

void k2m_fleet_exit(k2m_core *m, const k2m_event *ev)
{
    k2m_worker *w = &m->workers[ev->worker];
    if (ev->type == K2M_EV_EXIT) note_exit(m, w, ev);
    if (w->incarnation != ev->incarnation || w->state == K2M_DOWN || w->state == K2M_ENDED) return;
    char why[K2M_TEXT_MAX], name[K2_WIRE_NAME_MAX], signal_name[K2_SIGNAL_NAME_MAX];
    bool last = ev->text && ev->text[0]; /* the last line of its log */
    if (ev->type == K2M_EV_LAUNCH_FAILED)
        snprintf(why, sizeof why, "could not be started: %.200s", ev->text);
    else if (ev->signal)
        snprintf(why, sizeof why, "was ended by %s%s%.200s", k2_signal_name(ev->signal, signal_name), last ? ": " : "",
                 last ? ev->text : "");
    else
        snprintf(why, sizeof why, "exited with %d%s%.200s", ev->exit_code, last ? ": " : "", last ? ev->text : "");
    bool refused = ev->type == K2M_EV_LAUNCH_FAILED || ev->exit_code == 2;
    if (refused && m->phase == K2M_PHASE_START && !m->begun && w->restarts_total == 0) { /* bad input: it would be so again */
        k2m_worker_name(w, name);
        w->state = K2M_ENDED;
        k2m_touch(m, w);
        k2m_fail(m, K2_BAD_INPUT, "%s %s", name, why);
        return;
    }
    k2m_worker_dead(m, w, why);
    if (ev->type == K2M_EV_EXIT && w->role == K2M_ROLLOUT) k2m_suspect_exit(m, ev->incarnation);
}

void k2m_fleet_forgive(k2m_core *m, uint32_t worker)
{
    k2m_worker *w = &m->workers[worker];
    if (w->restart_count > 0) w->restart_count--;
}

static void refuse(k2m_core *m, k2_code code, const char *text)
{
    k2m_action *a = k2m_act(m, K2M_ACT_REFUSE);
    a->code = code;
    snprintf(a->text, sizeof a->text, "%s", text);
}

static k2m_worker *worker_at(const k2m_core *m, const char *role, uint64_t index)
{
    const uint32_t counts[K2M_ROLES] = {m->trainers, m->rollouts, m->has_proxy},
                   firsts[K2M_ROLES] = {0, m->first_rollout, m->proxy};
    for (uint32_t r = 0; r < K2M_ROLES; r++)
        if (strcmp(role, role_names[r]) == 0) return index < counts[r] ? &m->workers[firsts[r] + index] : NULL;
    return NULL;
}

void k2m_fleet_hello(k2m_core *m, const k2m_event *ev)
{
    const k2_msg_hello *h = &ev->msg->hello;
    k2m_worker *w = worker_at(m, h->role, h->index);
    if (!w) {
        refuse(m, K2_BAD_INPUT, "no such worker in this run");
        return;
    }
    if (h->nonce != w->incarnation || (w->state != K2M_STARTING && w->state != K2M_UP)) {
        refuse(m, K2_FENCED, "another process has this place");
        return;
    }
    w->pid = h->pid;
    snprintf(w->host, sizeof w->host, "%.*s", (int)sizeof w->host - 1, h->host);
    snprintf(w->endpoint, sizeof w->endpoint, "%.*s", (int)sizeof w->endpoint - 1, h->endpoint);
    w->lease_ns = m->now_ns + ms(m->c.config->master_lease_ms);
    w->owes_poll_ns = m->now_ns;
    m->progress_ns = m->now_ns;
    k2m_action *a = k2m_act(m, K2M_ACT_ADMIT);
    a->worker = number_of(m, w);
    a->incarnation = w->incarnation;
    if (w->state == K2M_UP) return; /* it did not get the first WELCOME */
    w->state = K2M_UP;
    k2m_touch(m, w);
    if (w->role == K2M_ROLLOUT) k2m_table_changed(m, w);
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    k2m_log(m, K2_LOG_INFO, "%s is up pid=%llu incarnation=%llu %s", name, (unsigned long long)w->pid,
            (unsigned long long)w->incarnation, w->endpoint);
    if (m->phase >= K2M_PHASE_STOP) k2_set_put(m->fleet.to_stop, number_of(m, w), true);
}

/* Once for all that are found late at the same time: the chain is the same, and its making looks at everyone. */
static void log_chain(k2m_core *m)
{
    if (m->fleet.chain_logged_ns == m->now_ns) return;
    m->fleet.chain_logged_ns = m->now_ns;
    k2m_waits_log(m);
}

/* False: it is not due, its lease was renewed. */
static bool tick_worker(k2m_core *m, k2m_worker *w)
{
    char why[K2M_TEXT_MAX], name[K2_WIRE_NAME_MAX];
    const k2_config *c = m->c.config;
    if (w->state == K2M_DOWN && m->now_ns >= w->restart_at_ns) {
        launch(m, w);
    } else if (w->state == K2M_STARTING && m->now_ns - w->start_ns >= ms(c->master_start_timeout_ms)) {
        log_chain(m);
        snprintf(why, sizeof why, "said nothing within %llu ms of its start", (unsigned long long)c->master_start_timeout_ms);
        k2m_worker_name(w, name);
        if (w->restarts_total == 0 && m->phase == K2M_PHASE_START)
            k2m_fail(m, K2_TIMEOUT, "%s %s (master.start_timeout_ms)", name, why);
        else
            k2m_kill_worker(m, w, why);
    } else if (w->state == K2M_UP && m->now_ns >= w->lease_ns) {
        log_chain(m);
        snprintf(why, sizeof why, "said nothing for %llu ms (its lease)", (unsigned long long)c->master_lease_ms);
        k2m_kill_worker(m, w, why);
    } else if (w->state == K2M_UP && w->cmd_type != K2_MSG_NONE && m->now_ns >= w->cmd_deadline_ns) {
        log_chain(m);
        snprintf(why, sizeof why, "owes the end of %s since %llu ms", k2_msg_name(w->cmd_type),
                 (unsigned long long)((m->now_ns - w->cmd_since_ns) / K2_NS_PER_MS));
        k2m_kill_worker(m, w, why);
    } else {
        return false;
    }
    return true;
}

static bool tick_ending(k2m_core *m, k2m_worker *w)
{
    bool late = m->now_ns - m->phase_since_ns >= K2M_STOP_NS;
    if (!late && !(w->state == K2M_UP && m->now_ns >= w->lease_ns)) return false;
    log_chain(m);
    k2m_kill_worker(m, w, "did not stop");
    return true;
}

void k2m_fleet_tick(k2m_core *m)
{
    const k2_least *due = m->fleet.due;
    while (m->fleet.budget > 0) {
        uint32_t i = k2_least_first(due);
        if (i == K2_PLACE_NONE || k2_least_major(due, i) > m->now_ns) return;
        k2m_worker *w = &m->workers[i];
        m->fleet.budget -= m->phase < K2M_PHASE_STOP ? tick_worker(m, w) : tick_ending(m, w);
        k2m_touch(m, w); /* where nothing was done, it is due later than was known */
    }
}

void k2m_fleet_launch_all(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++) {
        m->workers[i].restart_at_ns = m->now_ns;
        k2m_touch(m, &m->workers[i]);
    }
    k2m_fleet_tick(m);
}

bool k2m_trainers_up(const k2m_core *m)
{
    return m->fleet.up[K2M_TRAINER] == m->trainers;
}

bool k2m_trainers_idle(const k2m_core *m)
{
    return m->fleet.trainers_idle == m->trainers;
}

/* At the first start all must be there, so that a run does not begin in a fleet that cannot be; later the trainers suffice. */
bool k2m_fleet_all_up(const k2m_core *m)
{
    const uint32_t *up = m->fleet.up;
    return k2m_trainers_up(m) && k2m_trainers_idle(m) &&
           (m->begun || up[K2M_TRAINER] + up[K2M_ROLLOUT] + up[K2M_PROXY] == m->worker_count);
}

/* ---- commands ---------------------------------------------------------------------------------------------------------- */

k2_msg *k2m_command(k2m_core *m, k2m_worker *w, k2_msg_type type)
{
    K2_ASSERT(w->state == K2M_UP && w->cmd_type == K2_MSG_NONE);
    w->cmd++;
    w->cmd_type = type;
    w->cmd_since_ns = m->now_ns;
    w->cmd_deadline_ns = m->now_ns + ms(m->c.config->master_step_timeout_ms);
    k2m_touch(m, w);
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

/* ---- the end ---------------------------------------------------------------------------------------------------------------
 */

/* STOP to everyone; the proxy last in the list but all at once: nobody has work any more. Who is down stays down. */
void k2m_stop_all(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++) {
        k2m_worker *w = &m->workers[i];
        if (w->state == K2M_DOWN) w->state = K2M_ENDED;
        k2_set_put(m->fleet.to_stop, i, w->state == K2M_UP && !w->stop_sent);
        k2m_touch(m, w); /* it is due for its end now */
    }
}

void k2m_kill_all(k2m_core *m)
{
    for (uint32_t i = 0; i < m->worker_count; i++)
        k2_set_put(m->fleet.to_kill, i, m->workers[i].state == K2M_STARTING || m->workers[i].state == K2M_UP);
}

static void stop_some(k2m_core *m)
{
    uint32_t i = 0;
    for (; m->fleet.budget > 0 && (i = k2_set_next(m->fleet.to_stop, i)) != K2_PLACE_NONE; m->fleet.budget--) {
        k2m_worker *w = &m->workers[i];
        k2_set_put(m->fleet.to_stop, i, false);
        if (w->state != K2M_UP || w->stop_sent) continue;
        w->cmd_type = K2_MSG_NONE; /* whatever it is at, STOP comes behind it */
        w->barrier = false;
        w->stop_sent = true;
        k2m_command(m, w, K2_MSG_STOP)->stop.text = m->failing ? m->fail_text : "the run has ended";
    }
}

static void kill_some(k2m_core *m)
{
    uint32_t i = 0;
    for (; m->fleet.budget > 0 && (i = k2_set_next(m->fleet.to_kill, i)) != K2_PLACE_NONE; m->fleet.budget--) {
        k2_set_put(m->fleet.to_kill, i, false);
        k2m_action *a = k2m_act(m, K2M_ACT_KILL);
        a->worker = i;
        a->incarnation = m->workers[i].incarnation;
    }
}

void k2m_fleet_settle(k2m_core *m)
{
    kill_some(m);
    stop_some(m);
}

bool k2m_all_ended(const k2m_core *m)
{
    return m->fleet.ended == m->worker_count;
}
