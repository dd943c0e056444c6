/* deliver: the version in force to rollouts, the table of engines and the gate to the proxy. Part of the pure core.
 *
 * Whoever needs something stands in a set of the census, so what is due is found without a look at everyone; a step deals with
 * a bounded number of them and the next ones go on. The proxy hears of what has changed only, a page at a time: while it is at
 * one, changes collect for the next.
 */
#include "master/core_int.h"

#include <stdio.h>
#include <string.h>

#include "common/base/planted.h"
#include "common/log/log.h"

/* Whoever can be read from: rank 0, and the first rollouts that use the version already. Valid for whoever does not. */
static uint32_t find_sources(k2m_core *m)
{
    uint32_t n = 0;
    if (m->published && m->trainer_step == m->force_version) m->sources[n++] = m->trainer_locator;
    for (uint32_t i = 0; n < 8 && (i = k2_set_next(m->fleet.holders, i)) != K2_PLACE_NONE; i++) {
        m->fleet.looks++;
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        if (w->locator[0]) m->sources[n++] = w->locator;
    }
    return n;
}

/* In DISTRIBUTE nobody switches before all that live have the whole version; a late comer switches as soon as it has it. */
static bool may_commit(const k2m_core *m)
{
    return m->phase != K2M_PHASE_DISTRIBUTE || m->fleet.lacking == 0;
}

/* The next of a set, as far as this step's budget goes. It leaves the set when it gets its command. */
static k2m_worker *next_of(k2m_core *m, const k2_set *set)
{
    uint32_t i = m->fleet.budget > 0 ? k2_set_next(set, 0) : K2_PLACE_NONE;
    if (i == K2_PLACE_NONE) return NULL;
    m->fleet.budget--;
    return &m->workers[m->first_rollout + i];
}

static void deliver_weights(k2m_core *m)
{
    k2m_worker *w;
    uint32_t sources = k2_set_count(m->fleet.wants) > 0 ? find_sources(m) : 0;
    while (sources > 0 && (w = next_of(m, m->fleet.wants)) != NULL) {
        k2_msg *msg = k2m_command(m, w, K2_MSG_PREPARE);
        msg->prepare.version = m->force_version;
        msg->prepare.digest = m->force_digest;
        msg->prepare.sources = (k2_wire_strs){.items = m->sources, .count = sources};
    }
    while (may_commit(m) && (w = next_of(m, m->fleet.whole)) != NULL) {
        k2_msg *msg = k2m_command(m, w, K2_MSG_COMMIT);
        msg->commit.version = m->force_version;
        msg->commit.digest = m->force_digest;
    }
}

static bool any_holds(const k2m_core *m, bool all)
{
    uint32_t hold = k2_set_count(m->fleet.holders);
    return hold > 0 && (!all || hold == m->fleet.up[K2M_ROLLOUT] || K2_PLANTED(GATE_EARLY));
}

bool k2m_starved(const k2m_core *m)
{
    return m->has_proxy && m->in_force && !any_holds(m, false) && !(m->published && m->trainer_step == m->force_version);
}

/* ---- the proxy ----------------------------------------------------------------------------------------------------------- */

void k2m_table_changed(k2m_core *m, const k2m_worker *w)
{
    k2_set_put(m->fleet.changed, w->index, true);
}

static bool table_sent(const k2m_core *m)
{
    return m->fleet.table_begun && k2_set_count(m->fleet.changed) == 0;
}

static k2_wire_engine line_of(const k2m_core *m, const k2m_worker *w)
{
    bool up = w->state == K2M_UP && w->endpoint[0];
    return (k2_wire_engine){.id = m->first_rollout + w->index + 1,
                            .incarnation = w->incarnation,
                            .url = up ? w->endpoint : "",
                            .digest = up ? w->held : (k2_digest){0, 0},
                            .state = up ? "up" : "gone"};
}

/* A new proxy gets a table that begins anew; who is not in it is unknown to it. */
static void send_table(k2m_core *m, k2m_worker *proxy)
{
    k2_set *changed = m->fleet.changed;
    bool anew = !m->fleet.table_begun;
    for (uint32_t i = 0; i < m->rollouts && anew; i++, m->fleet.looks++)
        k2_set_put(changed, i, m->workers[m->first_rollout + i].state == K2M_UP);
    m->fleet.table_begun = true;
    uint32_t n = 0;
    for (uint32_t i = 0; n < K2_WIRE_ENGINES_MAX && (i = k2_set_next(changed, i)) != K2_PLACE_NONE; m->fleet.looks++) {
        m->engines[n++] = line_of(m, &m->workers[m->first_rollout + i]);
        k2_set_put(changed, i, false);
    }
    k2_msg *msg = k2m_command(m, proxy, K2_MSG_ENGINES);
    msg->engines.anew = anew;
    msg->engines.engines = (k2_wire_engines){.items = m->engines, .count = n};
}

void k2m_deliver(k2m_core *m)
{
    if (!m->has_proxy) return;
    deliver_weights(m);
    k2m_worker *proxy = &m->workers[m->proxy];
    if (proxy->state != K2M_UP || proxy->cmd_type != K2_MSG_NONE) return;
    if (!table_sent(m)) {
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
    return !m->has_proxy ||
           (k2m_proxy_ready(m) && any_holds(m, true) && table_sent(m) && m->workers[m->proxy].cmd_type == K2_MSG_NONE);
}

void k2m_rollout_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *msg)
{
    const k2_msg_done *d = &msg->done;
    char name[K2_WIRE_NAME_MAX], why[K2M_TEXT_MAX];
    k2m_worker_name(w, name);
    if (d->code != K2_OK) {
        w->prepared = (k2_digest){0, 0};
        k2m_touch(m, w);
        k2m_log(m, K2_LOG_WARN, "%s: %s failed: %.200s", name, k2_msg_name(type), d->text);
        snprintf(why, sizeof why, "could not take weights: %.200s", d->text);
        if (++w->prepare_fails >= 3)
            k2m_kill_worker(m, w, why); /* its sources were fresh each time: a new process is the next remedy */
        return;
    }
    if (type == K2_MSG_PREPARE) {
        w->prepared = d->digest;
        if (d->locators.count >= 1) snprintf(w->locator, sizeof w->locator, "%s", d->locators.items[0]);
    } else if (type == K2_MSG_COMMIT) {
        w->prepare_fails = 0;
        w->held = w->prepared;
        w->held_version = m->force_version;
        k2m_table_changed(m, w);
    }
    k2m_touch(m, w);
}

void k2m_proxy_done(k2m_core *m, k2m_worker *w, k2_msg_type type, const k2_msg *msg)
{
    const k2_msg_done *d = &msg->done;
    char why[K2M_TEXT_MAX];
    if (d->code != K2_OK) {
        snprintf(why, sizeof why, "refused %s: %.200s", k2_msg_name(type), d->text);
        k2m_kill_worker(m, w, why);
        return;
    }
    if (type == K2_MSG_GATE) w->gate = w->gate_asked; /* another version may be in force since */
}
