/* waits: who is blocking - the wait-for chain from the phase down to a process. Part of the pure core; it only looks. */
#include "master/core_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/log/log.h"

#define LINES_KEPT 8u  /* of the list, for what comes after the workers */
#define LOGGED_MAX 16u /* lines that a passed deadline writes */

k2m_asked *k2m_asked_slot(const k2m_core *m, uint64_t id)
{
    uint64_t n = id & K2M_EVAL_BIT ? id & ~K2M_EVAL_BIT
                                   : k2_replay_group_of(id) * m->c.config->rollout_group_size + k2_replay_index_of(id);
    return &m->asked[n % m->asked_count];
}

typedef struct chain {
    const k2m_core *m;
    k2m_waits *out;
    uint64_t now_ns;
    uint32_t place_of_oldest, phase_line; /* of the list, from 1 */
    const k2m_worker *silent;             /* the one that is silent longest; NULL = all speak */
    uint32_t silent_place, down_place, command_place;
    uint64_t down_since_ns, command_since_ns;
} chain;

static uint64_t step_deadline(const chain *c, uint64_t from_ns)
{
    return from_ns + c->m->c.config->master_step_timeout_ms * K2_NS_PER_MS;
}

/* Gives the line's place, 0 when the list is full. */
__attribute__((format(printf, 5, 6))) static uint32_t line(chain *c, uint32_t parent, uint64_t since_ns, uint64_t deadline_ns,
                                                           const char *fmt, ...)
{
    if (c->out->count == K2M_WAITS_MAX) return 0;
    k2m_wait *w = &c->out->list[c->out->count++];
    *w = (k2m_wait){.parent = parent, .owner = "master-0", .since_ns = since_ns, .deadline_ns = deadline_ns};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->what, sizeof w->what, fmt, ap);
    va_end(ap);
    return c->out->count;
}

static void own(chain *c, uint32_t place, const k2m_worker *w)
{
    if (place == 0) return;
    k2m_wait *l = &c->out->list[place - 1];
    k2m_worker_name(w, l->owner);
    l->pid = w->state == K2M_UP ? w->pid : 0;
    if (w->state == K2M_UP && w->owes_poll_ns) l->silent_ns = c->now_ns > w->owes_poll_ns ? c->now_ns - w->owes_poll_ns : 0;
}

static void note_absent(chain *c, uint32_t place, uint64_t since_ns)
{
    if (c->down_place && c->down_since_ns <= since_ns) return;
    c->down_place = place;
    c->down_since_ns = since_ns;
}

/* The last link: a process. */
static void process(chain *c, uint32_t parent, const k2m_worker *w, const char *doing)
{
    const k2m_core *m = c->m;
    uint32_t at = 0;
    if (c->out->count + LINES_KEPT >= K2M_WAITS_MAX && w != c->silent) return;
    if (w->state == K2M_UP && w->cmd_type != K2_MSG_NONE) {
        at = line(c, parent, w->cmd_since_ns, w->cmd_deadline_ns, "process owes the end of %s", k2_msg_name(w->cmd_type));
        if (at && (!c->command_place || w->cmd_since_ns < c->command_since_ns)) {
            c->command_place = at;
            c->command_since_ns = w->cmd_since_ns;
        }
    } else if (w->state == K2M_UP) {
        at = line(c, parent, m->phase_since_ns, w->lease_ns, "process %s", doing);
    } else if (w->state == K2M_STARTING) {
        at = line(c, parent, w->start_ns, w->start_ns + m->c.config->master_start_timeout_ms * K2_NS_PER_MS,
                  "process was started and has not said HELLO");
        note_absent(c, at, w->start_ns);
    } else {
        at = line(c, parent, m->phase_since_ns, w->state == K2M_DOWN ? w->restart_at_ns : 0,
                  w->state == K2M_DOWN ? "no process; the deadline is the next one's start" : "process has ended");
        if (w->state == K2M_DOWN) note_absent(c, at, m->phase_since_ns);
    }
    own(c, at, w);
    if (at && w == c->silent) c->silent_place = at;
}

/* ---- what each phase waits for ------------------------------------------------------------------------------------------ */

static void start(chain *c)
{
    const k2m_core *m = c->m;
    uint32_t up = 0, count = m->begun ? m->trainers : m->worker_count;
    for (uint32_t i = 0; i < count; i++) up += m->workers[i].state == K2M_UP && m->workers[i].cmd_type == K2_MSG_NONE;
    uint32_t at =
        line(c, c->phase_line, m->phase_since_ns, 0, "%u of %u %s are ready", up, count, m->begun ? "trainers" : "workers");
    for (uint32_t i = 0; i < count; i++)
        if (m->workers[i].state != K2M_UP || m->workers[i].cmd_type != K2_MSG_NONE) process(c, at, &m->workers[i], "is up");
}

static void barrier(chain *c)
{
    const k2m_core *m = c->m;
    uint32_t at = line(c, c->phase_line, m->phase_since_ns, step_deadline(c, m->phase_since_ns),
                       "%u of %u trainers have not ended it", m->barrier_left, m->trainers);
    for (uint32_t i = 0; i < m->trainers; i++)
        if (m->workers[i].barrier) process(c, at, &m->workers[i], "is at it");
}

static void distribute(chain *c)
{
    const k2m_core *m = c->m;
    uint32_t at = line(c, c->phase_line, m->phase_since_ns, 0, "version %llu to every engine, then the gate",
                       (unsigned long long)m->force_version);
    for (uint32_t i = 0; i < m->rollouts; i++) {
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        if (w->state != K2M_UP || !k2_digest_equal(w->held, m->force_digest)) process(c, at, w, "waits for the others");
    }
    const k2m_worker *proxy = &m->workers[m->proxy];
    if (proxy->state != K2M_UP || proxy->cmd_type != K2_MSG_NONE || !k2_digest_equal(proxy->gate, m->force_digest))
        process(c, at, proxy, "waits with its gate for the engines");
}

/* The trajectory whose answer is out longest. */
static bool oldest_answer(const k2m_core *m, k2_replay_info *oldest, uint64_t *since_ns)
{
    uint64_t group;
    uint32_t size;
    bool found = false;
    for (uint32_t at = 0; k2_replay_group_next(m->replay, 0, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            if (k2_replay_find(m->replay, k2_replay_id(group, k), &info) != K2_OK || info.state != K2_REPLAY_RUNNING) continue;
            const k2m_asked *a = k2m_asked_slot(m, info.id);
            uint64_t since = a->id == info.id && a->since_ns >= m->phase_since_ns ? a->since_ns : m->now_ns;
            if (found && since >= *since_ns) continue;
            found = true;
            *oldest = info;
            *since_ns = since;
        }
    return found;
}

static uint32_t oldest_eval(const k2m_core *m, uint64_t *since_ns)
{
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < m->eval_count; i++) {
        if (m->eval[i] != K2M_EVAL_RUNNING) continue;
        const k2m_asked *a = k2m_asked_slot(m, K2M_EVAL_BIT | i);
        uint64_t since = a->id == (K2M_EVAL_BIT | i) && a->since_ns >= m->phase_since_ns ? a->since_ns : m->now_ns;
        if (found != UINT32_MAX && since >= *since_ns) continue;
        found = i;
        *since_ns = since;
    }
    return found;
}

/* Group and trajectory, or the evaluation's prompt. Gives the place of the last line. */
static uint32_t answers(chain *c)
{
    const k2m_core *m = c->m;
    uint64_t since = 0;
    uint32_t at = 0, prompt;
    k2_replay_info info;
    if (m->phase == K2M_PHASE_EVAL && (prompt = oldest_eval(m, &since)) != UINT32_MAX) {
        at = line(c, c->phase_line, since, step_deadline(c, since),
                  "answer to held-out prompt %u, the oldest of %u that are out", prompt, m->inflight);
    } else if (m->phase == K2M_PHASE_GENERATE && oldest_answer(m, &info, &since)) {
        at = line(c, c->phase_line, m->phase_since_ns, 0, "group %llu, %u trajectories (%u answers are out in all)",
                  (unsigned long long)info.group, info.group_size, m->inflight);
        at = line(c, at, since, step_deadline(c, since), "trajectory %llu: tokens %u to %u", (unsigned long long)info.id,
                  info.generated, info.until);
    }
    c->place_of_oldest = at;
    return at;
}

static void requests(chain *c)
{
    const k2m_core *m = c->m;
    uint32_t at = answers(c);
    if (m->scores_inflight + m->score_count > 0) {
        uint32_t scores =
            line(c, c->phase_line, m->progress_ns, step_deadline(c, m->progress_ns),
                 "rewards: %u requests are out, %u trajectories wait for one", m->scores_inflight, m->score_count);
        if (at == 0) at = c->place_of_oldest = scores;
    }
    if (at == 0) at = c->phase_line;
    process(c, at, &m->workers[m->proxy], "forwards it");
    uint32_t proxy = c->out->count;
    for (uint32_t i = 0; i < m->rollouts; i++)
        process(c, proxy, &m->workers[m->first_rollout + i], "may be at it (the proxy chose)");
}

static void stop(chain *c)
{
    for (uint32_t i = 0; i < c->m->worker_count; i++)
        if (c->m->workers[i].state != K2M_ENDED) process(c, c->phase_line, &c->m->workers[i], "has not ended");
}

static void links(chain *c)
{
    const k2m_core *m = c->m;
    switch (m->phase) {
    case K2M_PHASE_START: start(c); break;
    case K2M_PHASE_JOIN:
    case K2M_PHASE_INIT:
    case K2M_PHASE_PRETRAIN:
    case K2M_PHASE_SAVE:
    case K2M_PHASE_TRAIN:
    case K2M_PHASE_PUBLISH: barrier(c); break;
    case K2M_PHASE_DISTRIBUTE: distribute(c); break;
    case K2M_PHASE_EVAL:
    case K2M_PHASE_GENERATE: requests(c); break;
    case K2M_PHASE_STOP: stop(c); break;
    case K2M_PHASE_BATCH:
    case K2M_PHASE_LATEST: c->place_of_oldest = c->phase_line; break; /* the master's own pool and disk */
    case K2M_PHASE_END:
    case K2M_PHASE_COUNT: break;
    }
}

static bool listed(const chain *c, const k2m_worker *w)
{
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    for (uint32_t i = 0; i < c->out->count; i++)
        if (strcmp(c->out->list[i].owner, name) == 0) return true;
    return false;
}

static const k2m_worker *silent_longest(const k2m_core *m, uint64_t now_ns)
{
    const k2m_worker *found = NULL;
    for (uint32_t i = 0; i < m->worker_count; i++) {
        const k2m_worker *w = &m->workers[i];
        if (w->state != K2M_UP || !w->owes_poll_ns || now_ns < w->owes_poll_ns + K2M_SILENT_NS) continue;
        if (!found || w->owes_poll_ns < found->owes_poll_ns) found = w;
    }
    return found;
}

/* Those that say nothing and that the phase does not wait for: the one that is silent longest first, it must have a line. */
static void others(chain *c)
{
    const k2m_core *m = c->m;
    if (c->silent && !c->silent_place) process(c, c->phase_line, c->silent, "is not waited for now, but says nothing");
    for (uint32_t i = 0; i < m->worker_count && c->silent; i++) {
        const k2m_worker *w = &m->workers[i];
        if (w->state != K2M_UP || !w->owes_poll_ns || c->now_ns < w->owes_poll_ns + K2M_SILENT_NS || listed(c, w)) continue;
        process(c, c->phase_line, w, "is not waited for now, but says nothing");
    }
}

void k2m_core_waits(const k2m_core *m, uint64_t now_ns, k2m_waits *out)
{
    bool timed = m->phase == K2M_PHASE_START || m->phase == K2M_PHASE_DISTRIBUTE || m->phase == K2M_PHASE_EVAL ||
                 m->phase == K2M_PHASE_GENERATE || m->phase == K2M_PHASE_BATCH || m->phase == K2M_PHASE_LATEST;
    chain c = {.m = m, .out = out, .now_ns = now_ns, .silent = silent_longest(m, now_ns)};
    out->count = out->culprit = 0;
    c.phase_line =
        line(&c, 0, m->phase_since_ns, timed ? step_deadline(&c, m->progress_ns) : 0, "iteration %llu, step %llu: %s",
             (unsigned long long)m->iteration + 1, (unsigned long long)m->trainer_step, k2m_phase_name(m->phase));
    links(&c);
    others(&c);
    out->culprit = c.silent_place    ? c.silent_place
                   : c.down_place    ? c.down_place
                   : c.command_place ? c.command_place
                                     : c.place_of_oldest;
}

void k2m_wait_text(const k2m_waits *waits, uint32_t i, uint64_t now_ns, char *out, size_t n)
{
    const k2m_wait *w = &waits->list[i];
    char left[64] = "none", silent[64] = "";
    if (w->deadline_ns && now_ns >= w->deadline_ns) snprintf(left, sizeof left, "passed");
    if (w->deadline_ns > now_ns) snprintf(left, sizeof left, "in %.1f s", (double)(w->deadline_ns - now_ns) / 1e9);
    if (w->silent_ns >= K2M_SILENT_NS) snprintf(silent, sizeof silent, " silent=%.1fs", (double)w->silent_ns / 1e9);
    snprintf(out, n, "wait %u of %u for %u: %s; %s pid=%llu since=%.1fs deadline=%s%s%s", i + 1, waits->count, w->parent,
             w->what, w->owner, (unsigned long long)w->pid, now_ns > w->since_ns ? (double)(now_ns - w->since_ns) / 1e9 : 0.0,
             left, silent, waits->culprit == i + 1 ? "  <== culprit" : "");
}

void k2m_waits_log(k2m_core *m)
{
    k2m_waits waits;
    k2m_core_waits(m, m->now_ns, &waits);
    for (uint32_t i = 0; i < waits.count; i++) {
        char text[K2M_TEXT_MAX];
        if (i >= LOGGED_MAX && i + 1 != waits.culprit) continue;
        k2m_wait_text(&waits, i, m->now_ns, text, sizeof text);
        k2m_log(m, K2_LOG_WARN, "%s", text);
    }
    if (m->c.config->run_flight_kib > 0)
        k2m_log(m, K2_LOG_WARN, "what every process did last, and which rank did not enter which collective: k2rl trace %s",
                m->c.config->run_dir);
    k2m_stacks_ask(m, "a deadline has passed in phase %s", k2m_phase_name(m->phase));
}
