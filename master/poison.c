/* poison: which trajectory ends the processes that it runs in, and what is put aside. Part of the pure core.
 *
 * A process that dies takes all its requests with it, and only one of them may be to blame. The proxy gives a request back
 * after two engines were lost under it, and says of each whether anything else was on it. Who was in company twice is a
 * suspect: it is held until all else of the phase is done, and then asked for alone, one after the other in order of id. Only
 * deaths that nobody else can have caused count towards poison, so that an innocent one is never put aside for its neighbour's
 * deeds:
 *
 *      running ──lost in company──► asked again ──and again──► held ──everything else is done──► asked alone
 *                                                               ▲ └── an answer: all is forgotten      │
 *                                                               └──────── lost alone, once, twice ─────┤
 *                                                                    three times: poison ◄─────────────┘
 *
 * A connection may break without a death, and it is the exit of that very incarnation that makes a loss a death; it can come
 * behind the proxy's answer, and is waited for a while. A kill -9 may be an operator's: of those it takes many more than three.
 * Counts are in the journal: a new master goes on with them.
 *
 * With a poisoned trajectory its whole group is dropped. All its members share the prompt that did it, and each would cost as
 * many processes; and a loss whose baseline is the group's mean would lean, were one sample missing because of what it said.
 * Whether a trajectory is poison depends on it alone, so the weights do not depend on how many workers there are. */
#include "master/core_int.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/log/log.h"

typedef unsigned long long ull;

/* ---- what was put aside ----------------------------------------------------------------------------------------------------
 */

static const char *const aside_names[K2M_ASIDE_COUNT] = {"policy.nan", "policy.poison", "policy.reward"};

static const char *policy_of(const k2m_core *m, k2m_aside what)
{
    const k2_config *c = m->c.config;
    return what == K2M_ASIDE_NAN ? c->policy_nan : what == K2M_ASIDE_POISON ? c->policy_poison : c->policy_reward;
}

/* `more` of a kind: true where the run goes on by its policy, else it has been ended with this text. */
static bool goes_on(k2m_core *m, k2m_aside what, uint64_t more, const char *text)
{
    uint64_t max = m->c.config->policy_max;
    m->aside[what] += more;
    if (more > 0) k2m_record_aside(m, what);
    if (strcmp(policy_of(m, what), "stop") == 0)
        k2m_fail(m, K2_CORRUPT, "%.200s (%s is \"stop\"); see quarantine in the run directory", text, aside_names[what]);
    else if (max > 0 && m->aside[what] > max)
        k2m_fail(m, K2_LIMIT, "%.180s; it is number %llu (policy.max)", text, (ull)m->aside[what]);
    return !m->failing;
}

void k2m_aside_steps(k2m_core *m, bool pretrain, uint64_t step, uint64_t skipped)
{
    char text[128];
    uint64_t *last = pretrain ? &m->aside_pretrain : &m->aside_step;
    snprintf(text, sizeof text, "%s %llu met NaN or infinity", pretrain ? "pretraining up to step" : "step", (ull)step);
    bool known = step <= *last; /* the same steps again after a trainer's death */
    *last = K2_MAX(*last, step);
    (void)goes_on(m, K2M_ASIDE_NAN, known ? 0 : skipped, text);
}

/* "trajectory 5121", "held-out prompt 2" */
static void name_of(uint64_t id, char out[40])
{
    snprintf(out, 40, "%s %llu", id & K2M_EVAL_BIT ? "held-out prompt" : "trajectory", (ull)(id & ~K2M_EVAL_BIT));
}

static k2m_action *put_aside(k2m_core *m, k2_quarantine_kind kind, uint64_t id, uint32_t deaths)
{
    k2m_action *a = k2m_act(m, K2M_ACT_QUARANTINE);
    a->kind = kind;
    a->id = id;
    a->deaths = deaths;
    return a;
}

bool k2m_aside_reward(k2m_core *m, uint64_t id, const char *why)
{
    char text[K2M_TEXT_MAX], name[40];
    name_of(id, name);
    snprintf(text, sizeof text, "the reward of %s failed: %.200s", name, why);
    snprintf(put_aside(m, K2_QUARANTINE_REWARD, id, 0)->text, K2M_TEXT_MAX, "%.300s", why);
    return id & K2M_EVAL_BIT || goes_on(m, K2M_ASIDE_REWARD, 1, text);
}

/* ---- suspects --------------------------------------------------------------------------------------------------------------
 */

static k2m_suspect *find(const k2m_core *m, uint64_t id)
{
    for (uint32_t i = 0; i < m->suspect_count; i++)
        if (m->suspects[i].id == id) return &m->suspects[i];
    return NULL;
}

static k2m_suspect *find_or_add(k2m_core *m, uint64_t id)
{
    k2m_suspect *s = find(m, id);
    if (s || m->suspect_count == m->suspect_capacity) return s;
    s = &m->suspects[m->suspect_count++];
    *s = (k2m_suspect){.id = id};
    return s;
}

static void forget(k2m_core *m, k2m_suspect *s)
{
    *s = m->suspects[--m->suspect_count];
}

static bool is_isolated(const k2m_suspect *s)
{
    return s->company >= K2M_COMPANY_MAX || s->alone + s->killed > 0;
}

static bool is_poison(const k2m_suspect *s)
{
    return s->alone >= K2M_POISON_DEATHS || s->killed >= K2M_POISON_KILLS;
}

static bool has_deaths(const k2m_suspect *s)
{
    return s->company + s->alone + s->killed > 0;
}

bool k2m_suspect_isolated(const k2m_core *m, uint64_t id)
{
    const k2m_suspect *s = find(m, id);
    return s && is_isolated(s);
}

bool k2m_suspect_poison(const k2m_core *m, uint64_t id)
{
    const k2m_suspect *s = find(m, id);
    return s && is_poison(s);
}

bool k2m_suspect_held(const k2m_core *m, uint64_t id)
{
    const k2m_suspect *s = find(m, id);
    return s && s->held != K2M_HELD_NOT;
}

void k2m_suspect_hold(k2m_core *m, uint64_t id, k2m_held_for what)
{
    k2m_suspect *s = find(m, id);
    K2_ASSERT(s);
    s->held = what;
}

void k2m_suspects_release(k2m_core *m)
{
    for (uint32_t i = 0; i < m->suspect_count; i++) {
        m->suspects[i].held = K2M_HELD_NOT;
        m->suspects[i].lost_count = 0;
    }
}

void k2m_suspect_clear(k2m_core *m, uint64_t id)
{
    k2m_suspect *s = find(m, id);
    if (!s || is_poison(s)) return;
    s->company = s->alone = s->killed = 0;
    k2m_record_deaths(m, s);
    forget(m, s);
}

/* From the journal. */
void k2m_suspect_set(k2m_core *m, uint64_t id, uint32_t company, uint32_t alone, uint32_t killed)
{
    k2m_suspect *s = find_or_add(m, id);
    if (!s) return;
    s->company = company;
    s->alone = alone;
    s->killed = killed;
    if (!has_deaths(s)) forget(m, s);
}

/* ---- the verdict ------------------------------------------------------------------------------------------------------------
 */

static void drop_group(k2m_core *m, uint64_t id, uint32_t deaths)
{
    k2_error err;
    k2_replay_info info;
    char reason[K2_REPLAY_REASON_MAX];
    uint64_t group = k2_replay_group_of(id);
    snprintf(reason, sizeof reason, "poison: trajectory %llu ended %u workers", (ull)id, deaths);
    for (uint32_t k = 0; k2_replay_find(m->replay, k2_replay_id(group, k), &info) == K2_OK; k++) {
        bool asked = m->phase == K2M_PHASE_GENERATE && info.state == K2_REPLAY_RUNNING && !k2m_suspect_held(m, info.id);
        if (asked) m->inflight--; /* its answer will find nobody who awaits it */
        (void)k2_replay_drop(m->replay, info.id, reason, &err);
    }
    for (uint32_t i = m->suspect_count; i-- > 0;)
        if (!(m->suspects[i].id & K2M_EVAL_BIT) && k2_replay_group_of(m->suspects[i].id) == group) forget(m, &m->suspects[i]);
}

static void drop_eval(k2m_core *m, uint64_t id)
{
    uint64_t i = id & ~K2M_EVAL_BIT;
    if (m->phase != K2M_PHASE_EVAL || i >= m->eval_count || m->eval[i] == K2M_EVAL_SCORED) return;
    m->eval[i] = K2M_EVAL_SCORED;
    m->eval_done++;
    find(m, id)->held = K2M_HELD_NOT;
}

/* It ran alone in all of them. Where the policy is to stop, nothing is dropped: the next start meets it again. */
static void condemn(k2m_core *m, uint64_t id, uint32_t deaths, uint64_t incarnation)
{
    k2_replay_info info = {.state = K2_REPLAY_QUEUED};
    bool eval = (id & K2M_EVAL_BIT) != 0, known = !eval && k2_replay_find(m->replay, id, &info) == K2_OK;
    if (!eval && (!known || info.state == K2_REPLAY_DROPPED || info.step != 0)) return;
    uint64_t i = id & ~K2M_EVAL_BIT;
    bool scoring = eval ? i < m->eval_count && m->eval[i] == K2M_EVAL_ANSWERED : info.state == K2_REPLAY_FINISHED;
    char text[K2M_TEXT_MAX], name[40], how[128] = "";
    name_of(id, name);
    const k2m_exit *last = k2m_exits_find(&m->exits, incarnation);
    if (last) k2m_exit_how(last, how, sizeof how);
    snprintf(text, sizeof text, "%s ended %u worker processes in which it was alone, while it was %s; the last one %s", name,
             deaths, scoring ? "scored" : "generated", how);
    k2m_log(m, K2_LOG_WARN, "poison: %s", text);
    k2m_action *a = put_aside(m, scoring ? K2_QUARANTINE_REWARD : K2_QUARANTINE_PROMPT, id, deaths);
    snprintf(a->text, sizeof a->text, "%.300s", text);
    a->position = eval ? 0 : info.generated;
    a->max_tokens = eval                          ? (uint32_t)m->c.config->eval_max_tokens
                    : info.until > info.generated ? info.until - info.generated
                                                  : 1;
    if (!goes_on(m, K2M_ASIDE_POISON, 1, text)) return;
    if (eval)
        drop_eval(m, id);
    else
        drop_group(m, id, deaths);
    m->progress_ns = m->now_ns;
}

typedef enum cause { CAUSE_NONE, CAUSE_FAULT, CAUSE_KILLED } cause;

/* By itself: a process that the master has ended did not die of what it was given. A SIGKILL may come from outside and have
 * nothing to do with it, or be what a reward command does to its worker; one for want of memory is counted by the kernel. */
static cause cause_of(k2m_core *m, uint64_t incarnation)
{
    const k2m_exit *e = k2m_exits_find(&m->exits, incarnation);
    if (!e || !e->over || e->expected || e->killed[0]) return CAUSE_NONE;
    bool told = e->signal == SIGKILL || e->signal == SIGTERM || e->signal == SIGINT || e->signal == SIGHUP;
    return told && e->oom_kills == 0 ? CAUSE_KILLED : CAUSE_FAULT;
}

/* One more death under it. s may be gone afterwards. */
static void count_death(k2m_core *m, k2m_suspect *s, const k2m_lost *lost, cause c)
{
    char name[40];
    *(!lost->alone ? &s->company : c == CAUSE_FAULT ? &s->alone : &s->killed) += 1;
    k2m_record_deaths(m, s);
    if (!lost->alone) return;
    name_of(s->id, name);
    k2m_log(m, K2_LOG_WARN, "%s was alone in a worker that died: %u of %u times by a fault, %u of %u by a kill", name, s->alone,
            K2M_POISON_DEATHS, s->killed, K2M_POISON_KILLS);
    k2m_fleet_forgive(m, (uint32_t)lost->worker - 1); /* what is explained does not count as the worker's own restlessness */
    if (is_poison(s)) condemn(m, s->id, s->alone + s->killed, lost->incarnation);
}

void k2m_suspect_lost(k2m_core *m, uint64_t id, const k2m_lost *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].worker < 1 || list[i].worker > m->worker_count) continue; /* the proxy knows engines that we do not */
        k2m_suspect *s = find_or_add(m, id);
        if (!s) return; /* no more can be suspected at once: it is asked again as if nothing had been */
        cause c = cause_of(m, list[i].incarnation);
        if (c != CAUSE_NONE) {
            count_death(m, s, &list[i], c);
        } else if (k2m_core_current(m, list[i].worker, list[i].incarnation) && s->lost_count < K2M_LOST_MAX) {
            s->lost[s->lost_count++] = list[i];
            s->lost_ns = m->now_ns;
        } else if (!has_deaths(s) && s->lost_count == 0) {
            forget(m, s);
        }
    }
}

void k2m_suspect_exit(k2m_core *m, uint64_t incarnation)
{
    cause c = cause_of(m, incarnation);
    for (uint32_t i = 0; i < m->suspect_count; i++)
        for (uint32_t k = 0; k < m->suspects[i].lost_count; k++) {
            k2m_suspect *s = &m->suspects[i];
            k2m_lost lost = s->lost[k];
            if (lost.incarnation != incarnation) continue;
            s->lost[k] = s->lost[--s->lost_count];
            if (c != CAUSE_NONE) count_death(m, s, &lost, c);
            i = UINT32_MAX; /* the list may be another one now: from the beginning */
            break;
        }
}

/* ---- alone ------------------------------------------------------------------------------------------------------------------
 */

/* A connection that broke without a death: nothing more is awaited of it. */
static bool exits_awaited(k2m_core *m)
{
    bool any = false;
    for (uint32_t i = m->suspect_count; i-- > 0;) {
        k2m_suspect *s = &m->suspects[i];
        if (s->lost_count && m->now_ns - s->lost_ns >= K2M_VERDICT_NS) s->lost_count = 0;
        any |= s->lost_count > 0;
        if (!has_deaths(s) && s->lost_count == 0 && s->held == K2M_HELD_NOT) forget(m, s);
    }
    return any;
}

uint32_t k2m_suspects_held(const k2m_core *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->suspect_count; i++) n += m->suspects[i].held != K2M_HELD_NOT;
    return n;
}

uint64_t k2m_suspect_next(k2m_core *m, k2m_held_for *what)
{
    k2m_suspect *next = NULL;
    if (m->suspect_count == 0 || exits_awaited(m)) return K2M_SUSPECT_NONE;
    for (uint32_t i = 0; i < m->suspect_count; i++) {
        k2m_suspect *s = &m->suspects[i];
        if (s->held != K2M_HELD_NOT && (!next || s->id < next->id)) next = s;
    }
    if (!next) return K2M_SUSPECT_NONE;
    *what = next->held;
    next->held = K2M_HELD_NOT;
    return next->id;
}
