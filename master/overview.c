/* overview: how a run goes, for `k2rl top`. Part of the pure core; it only looks. */
#include <stdio.h>
#include <string.h>

#include "master/core_int.h"

static void put(k2m_overview *v, const char *name, double value)
{
    K2_ASSERT(v->number_count < K2_WIRE_GAUGES_MAX);
    v->numbers[v->number_count++] = (k2_wire_metric){name, value};
}

static bool pretrains(const k2m_core *m)
{
    return m->phase == K2M_PHASE_PRETRAIN || (m->iteration == 0 && m->trainer_pretrain < m->c.config->pretrain_steps);
}

void k2m_core_eta(const k2m_core *m, const k2m_told *told, uint64_t now_ns, double *share, double *left_s)
{
    const k2_config *c = m->c.config;
    double done = pretrains(m) ? (double)m->trainer_pretrain : (double)m->iteration;
    double all = pretrains(m) ? (double)c->pretrain_steps : (double)c->iterations;
    uint64_t from_ns = told->rl_ns ? told->rl_ns : told->start_ns;
    double busy_s = now_ns > from_ns ? (double)(now_ns - from_ns) / 1e9 : 0;
    *share = all > 0 ? K2_MIN(done / all, 1.0) : 0;
    *left_s = *share > 0 && *share < 1 ? busy_s / *share - busy_s : 0;
}

static uint64_t silence(const k2m_worker *w, uint64_t now_ns)
{
    bool silent = w->state == K2M_UP && w->owes_poll_ns && now_ns >= w->owes_poll_ns + K2M_SILENT_NS;
    return silent ? now_ns - w->owes_poll_ns : 0;
}

/* ---- workers ------------------------------------------------------------------------------------------------------------- */

enum { SILENT, ABSENT, AT_COMMAND, QUIET, RANKS };

static int rank_of(const k2m_worker *w, uint64_t now_ns)
{
    if (silence(w, now_ns)) return SILENT;
    if (w->state != K2M_UP) return ABSENT;
    return w->cmd_type != K2_MSG_NONE ? AT_COMMAND : QUIET;
}

static void state_of(const k2m_worker *w, uint64_t now_ns, char out[K2_WIRE_NAME_MAX])
{
    static const char *const states[] = {"down", "starting", "up", "ended"};
    double s = now_ns > w->cmd_since_ns ? (double)(now_ns - w->cmd_since_ns) / 1e9 : 0;
    if (w->state == K2M_UP && w->cmd_type != K2_MSG_NONE)
        snprintf(out, K2_WIRE_NAME_MAX, "%s for %.1f s", k2_msg_name(w->cmd_type), s);
    else
        snprintf(out, K2_WIRE_NAME_MAX, "%.60s", w->state == K2M_UP && w->phase[0] ? w->phase : states[w->state]);
}

static void add_row(k2m_overview *v, const k2m_worker *w, uint64_t now_ns)
{
    k2m_row *r = &v->rows[v->row_count++];
    *r = (k2m_row){.pid = w->state == K2M_UP || w->state == K2M_STARTING ? w->pid : 0,
                   .silent_ms = silence(w, now_ns) / K2_NS_PER_MS,
                   .requests = (uint64_t)(w->gauges.value[K2M_G_RUNNING] + w->gauges.value[K2M_G_WAITING]),
                   .tokens_per_s = (uint64_t)w->gauges.tokens_per_s};
    if (w->state == K2M_UP && w->lease_ns > now_ns) r->lease_ms = (w->lease_ns - now_ns) / K2_NS_PER_MS;
    k2m_worker_name(w, r->name);
    state_of(w, now_ns, r->state);
}

static void put_workers(const k2m_core *m, uint64_t now_ns, k2m_overview *v)
{
    for (int rank = 0; rank < RANKS; rank++)
        for (uint32_t i = 0; i < m->worker_count && v->row_count < K2_WIRE_ROWS_MAX; i++)
            if (rank_of(&m->workers[i], now_ns) == rank) add_row(v, &m->workers[i], now_ns);
}

static void put_fleet(const k2m_core *m, uint64_t now_ns, k2m_overview *v)
{
    double up[K2M_ROLES] = {0}, tokens[K2M_ROLES] = {0}, silent = 0, scores = 0;
    for (uint32_t i = 0; i < m->worker_count; i++) {
        const k2m_worker *w = &m->workers[i];
        silent += silence(w, now_ns) > 0;
        if (w->state != K2M_UP) continue;
        up[w->role]++;
        tokens[w->role] += w->gauges.tokens_per_s;
        scores += w->gauges.value[K2M_G_SCORES];
    }
    put(v, "workers", m->worker_count);
    put(v, "silent", silent);
    put(v, "trainers", m->trainers);
    put(v, "trainers_up", up[K2M_TRAINER]);
    put(v, "rollouts", m->rollouts);
    put(v, "rollouts_up", up[K2M_ROLLOUT]);
    put(v, "proxies", m->has_proxy);
    put(v, "proxies_up", up[K2M_PROXY]);
    put(v, "rollout_tokens_per_s", tokens[K2M_ROLLOUT]);
    put(v, "trainer_tokens_per_s", m->trainers ? tokens[K2M_TRAINER] / m->trainers : 0); /* each rank counts the whole step */
    put(v, "scores_at_engines", scores);
}

/* ---- the run ----------------------------------------------------------------------------------------------------------------
 */

static void put_run(const k2m_core *m, const k2m_told *t, uint64_t now_ns, k2m_overview *v)
{
    const k2_config *c = m->c.config;
    double share, left_s;
    k2m_core_eta(m, t, now_ns, &share, &left_s);
    put(v, "iteration", (double)m->iteration);
    put(v, "iterations", (double)c->iterations);
    put(v, "step", (double)m->trainer_step);
    put(v, "version", (double)m->force_version);
    put(v, "pretraining", pretrains(m));
    put(v, "pretrain_step", (double)m->trainer_pretrain);
    put(v, "pretrain_steps", (double)c->pretrain_steps);
    put(v, "share", share);
    put(v, "seconds", now_ns > t->start_ns ? (double)(now_ns - t->start_ns) / 1e9 : 0);
    put(v, "left_seconds", left_s);
    put(v, "phase_seconds", now_ns > m->phase_since_ns ? (double)(now_ns - m->phase_since_ns) / 1e9 : 0);
    if (t->trained) put(v, "reward", t->reward);
    if (t->evaluated) put(v, "accuracy", t->accuracy);
    put(v, "train_tokens_per_s", t->train_tokens_per_s);
    const k2m_success s = k2m_core_success(m);
    if (s.on) {
        put(v, "prompts", s.prompts);
        put(v, "prompts_seen", s.seen);
        put(v, "prompts_solved", s.solved);
        put(v, "success_mean", s.mean);
    }
    put(v, "checkpoint", m->checkpoint.exists ? (double)m->checkpoint.number : -1);
    put(v, "held_actions", (double)t->held);
    put(v, "journal_bytes", (double)t->journal_bytes);
}

static void put_queues(const k2m_core *m, k2m_overview *v)
{
    const k2_replay_counts n = k2_replay_count(m->replay);
    put(v, "queued", n.queued - n.queued_resumed);
    put(v, "queued_resumed", n.queued_resumed);
    put(v, "running", n.running);
    put(v, "unscored", n.finished);
    put(v, "scored", n.scored);
    if (m->c.config->rollout_refill_max > 0) {
        put(v, "groups_open", k2_replay_groups_open(m->replay));
        put(v, "groups_flat", k2_replay_groups_flat(m->replay));
        put(v, "refill_max", (double)m->c.config->rollout_refill_max);
    }
    put(v, "cut_total", (double)n.cut_total);
    put(v, "finished_total", (double)n.finished_total);
    put(v, "dropped_total", (double)n.dropped_total);
    put(v, "generated_total", (double)n.generated_total);
    put(v, "retried", (double)m->retried);
    if (!m->has_proxy) return;
    const k2m_gauges *g = &m->workers[m->proxy].gauges;
    put(v, "proxy_running", g->value[K2M_G_RUNNING]);
    put(v, "proxy_queued", g->value[K2M_G_QUEUED]);
    put(v, "proxy_engines_ready", g->value[K2M_G_READY]);
    put(v, "requests_per_s", g->done_per_s);
}

/* The step, and who is to blame that it does not go on. */
static void put_waits(const k2m_core *m, uint64_t now_ns, k2m_overview *v)
{
    k2m_waits w;
    k2m_core_waits(m, now_ns, &w);
    size_t at = (size_t)snprintf(v->waits, sizeof v->waits, "%s", w.list[0].what);
    if (w.culprit <= 1) return;
    const k2m_wait *c = &w.list[w.culprit - 1];
    double s = now_ns > c->since_ns ? (double)(now_ns - c->since_ns) / 1e9 : 0;
    char pid[32] = ", no process", silent[64] = "";
    if (c->pid) snprintf(pid, sizeof pid, " pid %llu", (unsigned long long)c->pid);
    if (c->silent_ns) snprintf(silent, sizeof silent, ", silent for %.1f s", (double)c->silent_ns / 1e9);
    snprintf(v->waits + at, sizeof v->waits - at, "; %s (%s%s), %.1f s%s", c->what, c->owner, pid, s, silent);
}

void k2m_core_overview(const k2m_core *m, const k2m_told *told, uint64_t now_ns, k2m_overview *out)
{
    out->number_count = out->row_count = 0;
    put_run(m, told, now_ns, out);
    put_queues(m, out);
    put_fleet(m, now_ns, out);
    put_waits(m, now_ns, out);
    put_workers(m, now_ns, out);
}
