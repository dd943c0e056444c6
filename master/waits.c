/* waits: who is blocking - the wait-for chain from the phase down to a process. Part of the pure core; it only looks. */
#include "master/core_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/log/log.h"

#define LINES_KEPT 8u                   /* of the list, for who says nothing and for the count of those that are left out */
#define TIE_NS     (100 * K2_NS_PER_MS) /* of two that fell silent together, the one nearer to the step is named */
#define LOGGED_MAX 16u                  /* lines that a passed deadline writes */

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
    uint32_t phase_line; /* places of the list, from 1; 0 = none */
    uint32_t oldest_place, silent_place, idle_place, down_place, command_place, reward_place;
    uint64_t silent_ns, down_since_ns, command_since_ns, reward_since_ns; /* of those places */
    bool rewards_only;                                                    /* no answer is out */
    uint32_t left_out;                                                    /* processes that had no room */
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
    *w = (k2m_wait){.parent = parent,
                    .owner = "master-0",
                    .pid = c->m->c.pid,
                    .host = "",
                    .since_ns = since_ns,
                    .deadline_ns = deadline_ns};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(w->what, sizeof w->what, fmt, ap);
    va_end(ap);
    return c->out->count;
}

/* Since how long a live process owes its POLL; 0 = it speaks. */
static uint64_t silence(const chain *c, const k2m_worker *w)
{
    if (w->state != K2M_UP || !w->owes_poll_ns || c->now_ns < w->owes_poll_ns + K2M_SILENT_NS) return 0;
    return c->now_ns - w->owes_poll_ns;
}

static void own(chain *c, uint32_t place, const k2m_worker *w)
{
    if (place == 0) return;
    k2m_wait *l = &c->out->list[place - 1];
    k2m_worker_name(w, l->owner);
    l->pid = w->state == K2M_UP || w->state == K2M_STARTING ? w->pid : 0;
    l->host = w->state == K2M_UP ? w->host : "";
    l->silent_ns = silence(c, w);
    if (l->silent_ns == 0 || (c->silent_place && l->silent_ns < c->silent_ns + TIE_NS)) return;
    c->silent_place = place;
    c->silent_ns = l->silent_ns;
}

static void note_oldest(uint32_t *place, uint64_t *at_ns, uint32_t found, uint64_t since_ns)
{
    if (found == 0 || (*place != 0 && *at_ns <= since_ns)) return;
    *place = found;
    *at_ns = since_ns;
}

static bool room(chain *c, const k2m_worker *w)
{
    uint32_t kept = silence(c, w) ? 2 : LINES_KEPT;
    if (c->out->count + kept < K2M_WAITS_MAX) return true;
    c->left_out++;
    return false;
}

/* The last link: a process. Gives its place, 0 where there was no room. */
static uint32_t process(chain *c, uint32_t parent, const k2m_worker *w, uint64_t since_ns, const char *doing)
{
    const k2m_core *m = c->m;
    uint32_t at = 0;
    if (!room(c, w)) return 0;
    if (w->state == K2M_UP && w->cmd_type != K2_MSG_NONE) {
        at = line(c, parent, w->cmd_since_ns, w->cmd_deadline_ns, "process owes the end of %s", k2_msg_name(w->cmd_type));
        note_oldest(&c->command_place, &c->command_since_ns, at, w->cmd_since_ns);
    } else if (w->state == K2M_UP) {
        at = line(c, parent, since_ns, w->lease_ns, "process %s", doing);
    } else if (w->state == K2M_STARTING) {
        at = line(c, parent, w->start_ns, w->start_ns + m->c.config->master_start_timeout_ms * K2_NS_PER_MS,
                  "process was started and has not said HELLO");
        note_oldest(&c->down_place, &c->down_since_ns, at, w->start_ns);
    } else {
        bool comes = w->state == K2M_DOWN;
        at = line(c, parent, m->phase_since_ns, comes ? w->restart_at_ns : 0,
                  comes ? "no process; the deadline is the next one's start" : "process has ended");
        if (comes) note_oldest(&c->down_place, &c->down_since_ns, at, m->phase_since_ns);
    }
    own(c, at, w);
    return at;
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
        if (m->workers[i].state != K2M_UP || m->workers[i].cmd_type != K2_MSG_NONE)
            process(c, at, &m->workers[i], m->phase_since_ns, "is up");
}

static void barrier(chain *c)
{
    const k2m_core *m = c->m;
    uint32_t at = line(c, c->phase_line, m->phase_since_ns, step_deadline(c, m->phase_since_ns),
                       "%u of %u trainers have not ended it", m->barrier_left, m->trainers);
    for (uint32_t i = 0; i < m->trainers; i++)
        if (m->workers[i].barrier) process(c, at, &m->workers[i], m->phase_since_ns, "is at it");
}

static void distribute(chain *c)
{
    const k2m_core *m = c->m;
    uint32_t at = line(c, c->phase_line, m->phase_since_ns, 0, "version %llu to every engine, then the gate",
                       (unsigned long long)m->force_version);
    for (uint32_t i = 0; i < m->rollouts; i++) {
        const k2m_worker *w = &m->workers[m->first_rollout + i];
        if (w->state != K2M_UP || !k2_digest_equal(w->held, m->force_digest))
            process(c, at, w, m->phase_since_ns, "waits for the others");
    }
    const k2m_worker *proxy = &m->workers[m->proxy];
    if (proxy->state != K2M_UP || proxy->cmd_type != K2_MSG_NONE || !k2_digest_equal(proxy->gate, m->force_digest))
        process(c, at, proxy, m->phase_since_ns, "waits with its gate for the engines");
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

static uint32_t trajectory(chain *c, const k2_replay_info *info, uint64_t since_ns)
{
    const k2m_core *m = c->m;
    uint32_t at = line(c, c->phase_line, m->phase_since_ns, 0, "group %llu, %u trajectories (%u answers are out in all)",
                       (unsigned long long)info->group, info->group_size, m->inflight);
    return line(c, at, since_ns, step_deadline(c, since_ns), "trajectory %llu: tokens %u to %u", (unsigned long long)info->id,
                info->generated, info->until);
}

static uint32_t held_out(chain *c, uint64_t prompt, uint64_t since_ns)
{
    return line(c, c->phase_line, since_ns, step_deadline(c, since_ns),
                "answer to held-out prompt %llu, one of %u that are out", (unsigned long long)prompt, c->m->inflight);
}

/* Group and trajectory, or the evaluation's prompt: that of the request, else the one whose answer is out longest. Gives the
 * place of the last line. */
static uint32_t answers(chain *c, const k2m_request *r)
{
    const k2m_core *m = c->m;
    uint64_t since = r ? r->since_ns : 0, prompt;
    k2_replay_info info;
    if (m->phase == K2M_PHASE_EVAL) {
        prompt = r ? r->id & ~K2M_EVAL_BIT : oldest_eval(m, &since);
        return prompt == UINT32_MAX ? 0 : held_out(c, prompt, since);
    }
    bool found = r ? k2_replay_find(m->replay, r->id, &info) == K2_OK : oldest_answer(m, &info, &since);
    return found ? trajectory(c, &info, since) : 0;
}

static const k2m_proxy_list *proxy_says(const chain *c)
{
    const k2m_proxy_list *s = &c->m->listed;
    if (c->m->workers[c->m->proxy].state != K2M_UP) return NULL;
    return s->at_ns && s->at_ns >= c->m->phase_since_ns && c->now_ns < s->at_ns + K2M_LIST_OLD_NS ? s : NULL;
}

/* Is the phase waiting for this one? */
static bool awaited(const k2m_core *m, const k2m_request *r)
{
    k2_replay_info info;
    uint64_t prompt = r->id & ~K2M_EVAL_BIT;
    if (m->phase == K2M_PHASE_EVAL)
        return (r->id & K2M_EVAL_BIT) && prompt < m->eval_count && m->eval[prompt] == K2M_EVAL_RUNNING;
    return k2_replay_find(m->replay, r->id, &info) == K2_OK && info.state == K2_REPLAY_RUNNING;
}

/* Of the proxy's list, which begins with the quietest. */
static const k2m_request *quietest(const chain *c, bool score)
{
    const k2m_proxy_list *s = proxy_says(c);
    for (uint32_t i = 0; s && i < s->count; i++)
        if (s->list[i].score == score && (score || awaited(c->m, &s->list[i]))) return &s->list[i];
    return NULL;
}

/* From a request, which the proxy owns, to the engine's process. */
static void engine(chain *c, uint32_t parent, const k2m_request *r)
{
    const k2m_core *m = c->m;
    char name[K2_WIRE_NAME_MAX];
    uint32_t at;
    if (r->worker == K2M_NOBODY) {
        at = line(c, parent, r->since_ns, r->deadline_ns, "request waits in the proxy for an engine (attempt %u)", r->attempts);
        own(c, at, &m->workers[m->proxy]);
        for (uint32_t i = 0; i < m->rollouts; i++)
            process(c, at, &m->workers[m->first_rollout + i], m->phase_since_ns,
                    "may not serve it, or is given up by the proxy");
        return;
    }
    const k2m_worker *w = &m->workers[r->worker];
    k2m_worker_name(w, name);
    if (r->heard_ns)
        at = line(c, parent, r->since_ns, r->deadline_ns, "request at engine %s: %u tokens, the last %.1f s ago", name,
                  r->tokens, (double)(c->now_ns - K2_MIN(c->now_ns, r->heard_ns)) / 1e9);
    else
        at = line(c, parent, r->since_ns, r->deadline_ns, "request at engine %s: no answer yet", name);
    own(c, at, &m->workers[m->proxy]);
    process(c, at, w, r->since_ns, r->score ? "scores answers" : "generates");
}

/* The place of a process's own line; 0 = it has none. */
static uint32_t place_of(const chain *c, const k2m_worker *w)
{
    char name[K2_WIRE_NAME_MAX];
    k2m_worker_name(w, name);
    for (uint32_t i = 0; i < c->out->count; i++)
        if (strcmp(c->out->list[i].owner, name) == 0) return i + 1;
    return 0;
}

/* Engines that have others of the listed requests. */
static void engines_besides(chain *c)
{
    const k2m_proxy_list *s = proxy_says(c);
    for (uint32_t i = 0; s && i < s->count; i++) {
        const k2m_request *r = &s->list[i];
        if (r->worker == K2M_NOBODY || !(r->score || awaited(c->m, r))) continue;
        const k2m_worker *w = &c->m->workers[r->worker];
        if (place_of(c, w) == 0) process(c, c->phase_line, w, r->since_ns, "has other requests of this phase");
    }
}

static uint64_t reward_since(const k2m_worker *w)
{
    const k2m_gauges *g = &w->gauges;
    uint64_t ns = (uint64_t)(g->value[K2M_G_REWARD_S] * 1e9);
    if (w->state != K2M_UP || ns == 0 || g->value[K2M_G_REWARD_PID] < 1) return 0;
    return g->at_ns > ns ? g->at_ns - ns : 1;
}

static void reward(chain *c, uint32_t parent, const k2m_worker *w)
{
    const k2m_gauges *g = &w->gauges;
    uint64_t since = reward_since(w);
    uint32_t at = place_of(c, w);
    if (at == 0) at = process(c, parent, w, since, "scores answers");
    if (at == 0 || c->out->count + LINES_KEPT >= K2M_WAITS_MAX) return;
    at = line(c, at, since, g->at_ns + (uint64_t)(g->value[K2M_G_REWARD_LEFT_S] * 1e9),
              "reward command has an answer, %.0f are at this engine", g->value[K2M_G_SCORES]);
    k2m_wait *l = &c->out->list[at - 1];
    snprintf(l->owner, sizeof l->owner, "reward-%u", w->index);
    l->pid = (uint64_t)g->value[K2M_G_REWARD_PID];
    l->host = w->host;
    note_oldest(&c->reward_place, &c->reward_since_ns, at, since);
}

/* Reward commands at work; the one that has its answer longest first, it must have a line. */
static void rewards(chain *c, uint32_t parent)
{
    const k2m_core *m = c->m;
    const k2m_worker *longest = NULL, *all = &m->workers[m->first_rollout];
    for (uint32_t i = 0; i < m->rollouts; i++)
        if (reward_since(&all[i]) && (!longest || reward_since(&all[i]) < reward_since(longest))) longest = &all[i];
    if (longest) reward(c, parent, longest);
    for (uint32_t i = 0; i < m->rollouts; i++)
        if (&all[i] != longest && reward_since(&all[i])) reward(c, parent, &all[i]);
}

static void requests(chain *c)
{
    const k2m_core *m = c->m;
    const k2m_request *answer = quietest(c, false), *score = quietest(c, true);
    uint32_t at = answers(c, answer), scores = c->phase_line;
    if (m->scores_inflight + m->score_count > 0)
        scores = line(c, c->phase_line, m->progress_ns, step_deadline(c, m->progress_ns),
                      "rewards: %u requests are out, %u trajectories wait for one", m->scores_inflight, m->score_count);
    c->oldest_place = at ? at : scores;
    c->rewards_only = at == 0;
    if (answer) engine(c, at, answer);
    if (score) engine(c, scores, score);
    engines_besides(c);
    if (!answer && !score) { /* the proxy says nothing, or not yet */
        uint32_t proxy = process(c, c->oldest_place, &m->workers[m->proxy], m->phase_since_ns, "forwards it");
        for (uint32_t i = 0; i < m->rollouts && proxy; i++)
            process(c, proxy, &m->workers[m->first_rollout + i], m->phase_since_ns, "may be at it (the proxy chose)");
    }
    rewards(c, scores);
}

static void stop(chain *c)
{
    for (uint32_t i = 0; i < c->m->worker_count; i++)
        if (c->m->workers[i].state != K2M_ENDED)
            process(c, c->phase_line, &c->m->workers[i], c->m->phase_since_ns, "has not ended");
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
    case K2M_PHASE_LATEST: c->oldest_place = c->phase_line; break; /* the master's own pool and disk */
    case K2M_PHASE_END:
    case K2M_PHASE_COUNT: break;
    }
}

static void idle(chain *c, const k2m_worker *w)
{
    if (!room(c, w)) return;
    uint32_t waited_place = c->silent_place;
    uint64_t waited_ns = c->silent_ns;
    uint32_t at = line(c, c->phase_line, w->owes_poll_ns, w->lease_ns, "process is not answering, nobody waits for it yet");
    own(c, at, w);
    c->silent_place = waited_place; /* who is waited for comes first */
    c->silent_ns = waited_ns;
    if (c->idle_place == 0) c->idle_place = at;
}

/* Those that say nothing and that the phase does not wait for; the one that is silent longest first. */
static void others(chain *c)
{
    const k2m_core *m = c->m;
    const k2m_worker *longest = NULL;
    for (uint32_t i = 0; i < m->worker_count; i++) {
        const k2m_worker *w = &m->workers[i];
        if (silence(c, w) > (longest ? silence(c, longest) : 0) && place_of(c, w) == 0) longest = w;
    }
    if (longest) idle(c, longest);
    for (uint32_t i = 0; i < m->worker_count && longest; i++) {
        const k2m_worker *w = &m->workers[i];
        if (w != longest && silence(c, w) && place_of(c, w) == 0) idle(c, w);
    }
    if (c->left_out)
        line(c, c->phase_line, m->phase_since_ns, 0, "%u processes more, for which this list has no room", c->left_out);
}

/* Whoever has had one thing longest, the reward command or the engine of the oldest answer. */
static uint32_t slowest(const chain *c)
{
    if (c->rewards_only && c->reward_place) return c->reward_place;
    if (c->reward_place == 0 || c->oldest_place == 0) return c->reward_place + c->oldest_place;
    return c->reward_since_ns < c->out->list[c->oldest_place - 1].since_ns ? c->reward_place : c->oldest_place;
}

/* Why an iteration is longer than others: what it has begun beyond its groups. */
static void replaced(const k2m_core *m, char out[64])
{
    const k2_config *c = m->c.config;
    uint32_t open = m->phase == K2M_PHASE_GENERATE && c->rollout_refill_max > 0 ? k2_replay_groups_open(m->replay) : 0;
    out[0] = 0;
    if (open > c->rollout_groups)
        snprintf(out, 64, ", %llu groups more for equal rewards", (unsigned long long)(open - c->rollout_groups));
}

void k2m_core_waits(const k2m_core *m, uint64_t now_ns, k2m_waits *out)
{
    char more[64];
    replaced(m, more);
    chain c = {.m = m, .out = out, .now_ns = now_ns};
    out->count = out->culprit = 0;
    c.phase_line = line(&c, 0, m->phase_since_ns, k2m_phase_timed(m->phase) ? step_deadline(&c, m->progress_ns) : 0,
                        "iteration %llu, step %llu: %s%s", (unsigned long long)m->iteration + 1,
                        (unsigned long long)m->trainer_step, k2m_phase_name(m->phase), more);
    links(&c);
    others(&c);
    const uint32_t suspects[] = {c.silent_place, c.down_place, c.idle_place, c.command_place, slowest(&c)};
    for (size_t i = 0; i < K2_COUNT(suspects) && out->culprit == 0; i++) out->culprit = suspects[i];
}

void k2m_wait_text(const k2m_waits *waits, uint32_t i, uint64_t now_ns, char *out, size_t n)
{
    const k2m_wait *w = &waits->list[i];
    char pid[24] = "none", left[64] = "none", silent[64] = "";
    if (w->pid) snprintf(pid, sizeof pid, "%llu", (unsigned long long)w->pid);
    if (w->deadline_ns && now_ns >= w->deadline_ns) snprintf(left, sizeof left, "passed");
    if (w->deadline_ns > now_ns) snprintf(left, sizeof left, "in %.1f s", (double)(w->deadline_ns - now_ns) / 1e9);
    if (w->silent_ns >= K2M_SILENT_NS) snprintf(silent, sizeof silent, " silent=%.1fs", (double)w->silent_ns / 1e9);
    snprintf(out, n, "wait %u of %u for %u: %s; %s pid=%s since=%.1fs deadline=%s%s%s", i + 1, waits->count, w->parent, w->what,
             w->owner, pid, now_ns > w->since_ns ? (double)(now_ns - w->since_ns) / 1e9 : 0.0, left, silent,
             waits->culprit == i + 1 ? "  <== culprit" : "");
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

void k2m_late(k2m_core *m)
{
    if (m->fleet.chain_logged_ns && m->now_ns < m->fleet.chain_logged_ns + K2M_LATE_NS) return;
    m->fleet.chain_logged_ns = m->now_ns;
    k2m_waits_log(m);
}
