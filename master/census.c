/* census: counts and sets over the fleet, and who is due next. Part of the pure core.
 *
 * Each worker is counted as something (`census`, bits below); when that may have changed, k2m_touch takes it out of where it
 * was and puts it where it belongs. A lease that is renewed does not touch: the worker is looked at when the older one would
 * have ended, and is then due later, so a heartbeat costs no more than writing a number.
 */
#include "master/core_int.h"

enum { IS_UP = 1u, IS_ENDED = 2u, IS_IDLE = 4u, LACKS = 8u, WANTS = 16u, WHOLE = 32u, HOLDS = 64u };

void k2m_fleet_init(k2m_core *m)
{
    k2m_fleet *f = &m->fleet;
    uint32_t places = K2_MAX(m->rollouts, 1u);
    f->due = k2_least_new(m->worker_count);
    f->to_stop = k2_set_new(m->worker_count);
    f->to_kill = k2_set_new(m->worker_count);
    f->wants = k2_set_new(places);
    f->whole = k2_set_new(places);
    f->holders = k2_set_new(places);
    f->changed = k2_set_new(places);
    for (uint32_t i = 0; i < m->worker_count; i++) {
        k2m_worker *w = &m->workers[i];
        w->role = i < m->trainers ? K2M_TRAINER : i < m->trainers + m->rollouts ? K2M_ROLLOUT : K2M_PROXY;
        w->index = w->role == K2M_TRAINER ? i : w->role == K2M_ROLLOUT ? i - m->first_rollout : 0;
        k2m_touch(m, w);
    }
}

void k2m_fleet_fini(k2m_core *m)
{
    k2m_fleet *f = &m->fleet;
    k2_set *sets[] = {f->to_stop, f->to_kill, f->wants, f->whole, f->holders, f->changed};
    for (size_t i = 0; i < K2_COUNT(sets); i++) k2_set_free(sets[i]);
    k2_least_free(f->due);
}

/* A tournament takes 24 bytes a place, a set little more than a bit: one of each kind covers the rounding, too. */
uint64_t k2m_fleet_bytes(const k2m_core *m)
{
    return (uint64_t)m->worker_count * (24 + 2) + 1024;
}

static uint32_t look(const k2m_core *m, const k2m_worker *w)
{
    bool up = w->state == K2M_UP, idle = w->cmd_type == K2_MSG_NONE;
    uint32_t is = (up ? IS_UP : 0) | (w->state == K2M_ENDED ? IS_ENDED : 0) | (idle ? IS_IDLE : 0);
    if (w->role != K2M_ROLLOUT || !up || !m->in_force) return is;
    if (k2_digest_equal(w->held, m->force_digest)) return is | HOLDS;
    if (k2_digest_equal(w->prepared, m->force_digest)) return is | (idle ? WHOLE : 0);
    return is | LACKS | (idle ? WANTS : 0);
}

static uint64_t due_of(const k2m_core *m, const k2m_worker *w)
{
    bool ending = m->phase >= K2M_PHASE_STOP;
    uint64_t late = ending ? m->phase_since_ns + K2M_STOP_NS : UINT64_MAX;
    switch (w->state) {
    case K2M_DOWN: return ending ? UINT64_MAX : w->restart_at_ns;
    case K2M_STARTING: return ending ? late : w->start_ns + m->c.config->master_start_timeout_ms * K2_NS_PER_MS;
    case K2M_UP:
        if (!ending && w->cmd_type != K2_MSG_NONE) late = w->cmd_deadline_ns;
        return K2_MIN(w->lease_ns, late);
    case K2M_ENDED: break;
    }
    return UINT64_MAX;
}

static void count(k2m_core *m, const k2m_worker *w, uint32_t is, uint32_t one)
{
    k2m_fleet *f = &m->fleet;
    if (is & IS_UP) f->up[w->role] += one;
    if (is & IS_ENDED) f->ended += one;
    if (is & LACKS) f->lacking += one;
    if (is & IS_IDLE && w->role == K2M_TRAINER) f->trainers_idle += one;
}

void k2m_touch(k2m_core *m, k2m_worker *w)
{
    k2m_fleet *f = &m->fleet;
    uint32_t was = w->census, is = look(m, w);
    uint64_t due = due_of(m, w);
    f->looks++;
    if (due == UINT64_MAX)
        k2_least_drop(f->due, (uint32_t)(w - m->workers));
    else
        k2_least_set(f->due, (uint32_t)(w - m->workers), due, 0);
    if (was == is) return;
    w->census = is;
    count(m, w, was, UINT32_MAX);
    count(m, w, is, 1);
    if (w->role != K2M_ROLLOUT) return;
    k2_set_put(f->wants, w->index, is & WANTS);
    k2_set_put(f->whole, w->index, is & WHOLE);
    k2_set_put(f->holders, w->index, is & HOLDS);
}

void k2m_touch_rollouts(k2m_core *m)
{
    for (uint32_t i = 0; i < m->rollouts; i++) k2m_touch(m, &m->workers[m->first_rollout + i]);
}

void k2m_fleet_check(const k2m_core *m)
{
    const k2m_fleet *f = &m->fleet;
    k2m_fleet seen = {0};
    for (uint32_t i = 0; i < m->worker_count; i++) {
        const k2m_worker *w = &m->workers[i];
        uint32_t is = look(m, w);
        K2_ASSERT(is == w->census && k2_least_major(f->due, i) <= due_of(m, w));
        seen.up[w->role] += (is & IS_UP) != 0;
        seen.ended += (is & IS_ENDED) != 0;
        seen.lacking += (is & LACKS) != 0;
        seen.trainers_idle += (is & IS_IDLE) && w->role == K2M_TRAINER;
        if (w->role != K2M_ROLLOUT) continue;
        K2_ASSERT(k2_set_has(f->wants, w->index) == ((is & WANTS) != 0));
        K2_ASSERT(k2_set_has(f->whole, w->index) == ((is & WHOLE) != 0));
        K2_ASSERT(k2_set_has(f->holders, w->index) == ((is & HOLDS) != 0));
    }
    for (uint32_t r = 0; r < K2M_ROLES; r++) K2_ASSERT(seen.up[r] == f->up[r]);
    K2_ASSERT(seen.ended == f->ended && seen.lacking == f->lacking && seen.trainers_idle == f->trainers_idle);
}
