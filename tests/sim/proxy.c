/* proxy: the proxy's core between the master's requests and the engines' streams. Tokens that an engine gave before it died
 * stay; the next one goes on behind them. */
#include "proxy/proxy_core_int.h"

#include <stdio.h>
#include <string.h>

#include "sim_int.h"

#define JOBS     64u
#define STALL_NS (400 * K2_NS_PER_MS)

/* As in the engine's core, whose header cannot stand beside the trainer's and is not the proxy's to know. */
enum { RUNNING, STOP, LENGTH, REPETITION, CANCELED, STALE, FAILED };

typedef struct job {
    bool used;
    uint32_t request;
    uint64_t id, call, position, attempt, engine, moved_ns;
    uint32_t max_tokens;
    bool training;
    k2_digest digest, of;   /* asked for; that the tokens are of */
    sim_tokens before, got; /* the sequence as the master sent it; drawn since, by earlier attempts too */
    uint32_t base;          /* tokens of earlier attempts */
} job;

typedef struct proxy {
    k2i_px *core;
    uint64_t table[SIM_PROCS]; /* by id: the incarnation that the master named, 0 = none */
    job jobs[JOBS];
} proxy;

void *sim_proxy_new(void)
{
    proxy *x = k2_alloc(sizeof *x);
    x->core = k2i_px_new(&(k2i_px_config){.engines_max = 16,
                                          .requests_max = JOBS,
                                          .retries = 3,
                                          .wait_ns = K2_NS_PER_S,
                                          .health_ns = 200 * K2_NS_PER_MS,
                                          .busy_ns = 20 * K2_NS_PER_MS});
    return x;
}

void sim_proxy_free(void *state)
{
    k2i_px_free(((proxy *)state)->core);
    k2_free(state);
}

static uint64_t serial_of(const proxy *x, uint32_t slot)
{
    unsigned long long serial = 0;
    sscanf(k2i_px_engine_at(x->core, slot)->url, "http://%llu", &serial);
    return serial;
}

static void step(sim *s, sim_proc *p, k2i_px_event *ev, uint32_t *request);

static sim_event *answer(sim *s, const job *j, bool ok, int finish)
{
    if (sim_fault(s, SIM_LOSE_ANSWER, SIM_MASTER)) return NULL; /* the master waits until its deadline */
    uint64_t late_us = sim_fault(s, SIM_LATE_ANSWER, SIM_MASTER) ? sim_fault_draw(s, 800000) : 0;
    sim_event *e = sim_at(s, SIM_ANSWER, late_us + sim_latency_us(s, SIM_MASTER));
    e->life = s->life;
    e->id = j->id;
    e->attempt = j->call;
    e->ok = ok;
    e->finish = finish;
    e->digest = j->of;
    e->tokens = j->got;
    return e;
}

static void leave(sim *s, sim_proc *p, job *j)
{
    uint64_t attempt = j->attempt;
    j->attempt = 0;
    if (!attempt || sim_fault(s, SIM_HALF_OPEN, p->worker)) return;
    sim_event *e = sim_at(s, SIM_UPSTREAM_END, sim_latency_us(s, p->worker));
    e->proc = j->engine;
    e->peer = p->serial;
    e->attempt = attempt;
}

/* An engine of the table, and for training one that is known to hold the weights. */
static void check_choice(sim *s, const proxy *x, const job *j, uint32_t slot)
{
    const k2i_px_engine *e = k2i_px_engine_at(x->core, slot);
    if (x->table[e->id % SIM_PROCS] != e->incarnation)
        sim_break(s, SIM_CHECK_GATE, "the proxy sends a request to an engine that is not in its table any more");
    if (j->training && !k2_digest_equal(e->digest, j->digest))
        sim_break(s, SIM_CHECK_GATE, "the proxy sends a training request to an engine that is not known to hold its weights");
}

static void send(sim *s, sim_proc *p, job *j, uint32_t slot)
{
    leave(s, p, j);
    check_choice(s, p->state, j, slot);
    j->attempt = ++s->attempt;
    j->engine = serial_of(p->state, slot);
    j->base = j->got.count;
    j->moved_ns = s->now_ns;
    sim_event *e = sim_at(s, SIM_UPSTREAM, sim_latency_us(s, p->worker));
    e->proc = j->engine;
    e->peer = p->serial;
    e->attempt = j->attempt;
    e->id = j->id;
    e->position = j->position + j->got.count;
    e->max_tokens = j->max_tokens - j->got.count;
    e->training = j->training;
    e->digest = j->digest;
    e->tokens = j->before;
    memcpy(e->tokens.ids + e->tokens.count, j->got.ids, j->got.count * sizeof *e->tokens.ids);
    e->tokens.count += j->got.count;
}

static void fail(sim *s, job *j, const k2i_px_action *a)
{
    sim_event *e = answer(s, j, false, FAILED);
    for (uint32_t i = 0; e && i < a->broke_count; i++)
        e->lost[e->lost_count++] = (k2m_lost){a->broke[i].engine, a->broke[i].incarnation, a->broke[i].alone};
    j->used = false;
}

static void carry_out(sim *s, sim_proc *p, const k2i_px_outbox *out)
{
    for (uint32_t i = 0; i < out->count; i++) {
        const k2i_px_action *a = &out->actions[i];
        job *j = a->user;
        switch (a->kind) {
        case K2I_PX_SEND: send(s, p, j, a->engine); break;
        case K2I_PX_HOLD: leave(s, p, j); break;
        case K2I_PX_FAIL:
            leave(s, p, j);
            fail(s, j, a);
            break;
        case K2I_PX_PROBE: {
            uint64_t engine = serial_of(p->state, a->engine);
            sim_event *e = sim_at(s, SIM_PROBED, 2 * sim_latency_us(s, p->worker));
            e->proc = p->serial;
            e->slot = a->engine;
            e->peer = engine;
            break;
        }
        }
    }
}

static void step(sim *s, sim_proc *p, k2i_px_event *ev, uint32_t *request)
{
    proxy *x = p->state;
    static k2i_px_outbox out; /* big; one thread */
    ev->now_ns = s->now_ns;
    k2i_px_step(x->core, ev, &out);
    if (request) *request = out.request;
    carry_out(s, p, &out);
    while (out.more) {
        k2i_px_step(x->core, &(k2i_px_event){.kind = K2I_PX_TICK, .now_ns = s->now_ns}, &out);
        carry_out(s, p, &out);
    }
    k2i_px_check(x->core);
    k2i_px_stats st;
    k2i_px_stats_get(x->core, &st);
    uint32_t used = 0;
    for (uint32_t i = 0; i < JOBS; i++) used += x->jobs[i].used;
    if (st.running + st.queued > used)
        sim_break(s, SIM_CHECK_POOLS, "the proxy has %u requests, %u are open", st.running + st.queued, used);
}

void sim_proxy_command(sim *s, sim_proc *p, const k2_msg *m)
{
    if (m->type == K2_MSG_ENGINES) {
        proxy *x = p->state;
        k2i_px_entry entries[SIM_PROCS];
        if (m->engines.anew) memset(x->table, 0, sizeof x->table);
        for (uint32_t i = 0; i < m->engines.engines.count; i++) {
            const k2_wire_engine *e = &m->engines.engines.items[i];
            entries[i] = (k2i_px_entry){.id = e->id,
                                        .incarnation = e->incarnation,
                                        .url = e->url,
                                        .digest = e->digest,
                                        .gone = strcmp(e->state, "gone") == 0};
            x->table[e->id % SIM_PROCS] = entries[i].gone ? 0 : e->incarnation;
        }
        step(s, p,
             &(k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {entries, m->engines.engines.count, .page = !m->engines.anew}},
             NULL);
    } else if (m->type == K2_MSG_GATE) {
        if (m->gate.version < s->gate_max)
            sim_break(s, SIM_CHECK_VERSIONS, "the gate goes back from version %llu to %llu", (unsigned long long)s->gate_max,
                      (unsigned long long)m->gate.version);
        s->gate_max = m->gate.version;
        step(s, p, &(k2i_px_event){.kind = K2I_PX_GATE, .gate = {m->gate.version, m->gate.digest}}, NULL);
    }
    sim_done(s, p, m->cmd, K2_OK, (k2_digest){0, 0}, NULL);
    if (m->type == K2_MSG_STOP) sim_proc_end(s, p, 0, true);
}

static void call(sim *s, sim_proc *p, const sim_event *e)
{
    proxy *x = p->state;
    job *j = NULL;
    for (uint32_t i = 0; i < JOBS && !j; i++)
        if (!x->jobs[i].used) j = &x->jobs[i];
    job refused = {.id = e->id, .call = e->attempt};
    if (!j) {
        answer(s, &refused, false, FAILED);
        return;
    }
    *j = (job){.used = true,
               .id = e->id,
               .call = e->attempt,
               .position = e->position,
               .max_tokens = e->max_tokens,
               .training = e->training,
               .digest = e->digest,
               .before = e->tokens,
               .request = K2I_PX_NONE};
    k2i_px_event ev = {.kind = K2I_PX_REQUEST,
                       .req = {.user = j,
                               .prompt_tokens = e->tokens.count,
                               .max_tokens = e->max_tokens,
                               .group = k2_replay_group_of(e->id),
                               .has_group = true,
                               .broke_max = e->alone ? 1 : K2M_COMPANY_MAX,
                               .training = e->training,
                               .has_digest = e->training,
                               .digest = e->digest}};
    uint32_t request;
    step(s, p, &ev, &request);
    if (j->used) j->request = request;
}

static job *of_attempt(proxy *x, uint64_t attempt)
{
    for (uint32_t i = 0; i < JOBS; i++)
        if (x->jobs[i].used && x->jobs[i].attempt == attempt) return &x->jobs[i];
    return NULL;
}

static void failed(sim *s, sim_proc *p, job *j, k2i_px_why why)
{
    if (why == K2I_PX_WRONG_DIGEST || why == K2I_PX_BROKEN) j->attempt = 0;
    step(s, p, &(k2i_px_event){.kind = K2I_PX_FAILED, .request = j->request, .failed = {.why = why}}, NULL);
}

static void stream(sim *s, sim_proc *p, const sim_event *e)
{
    job *j = of_attempt(p->state, e->attempt);
    if (!j) return;
    uint32_t have = j->got.count - j->base, fresh = e->tokens.count > have ? e->tokens.count - have : 0;
    bool ends = e->finish != RUNNING;
    if (e->tokens.count < have || (fresh == 0 && !ends)) return; /* overtaken by a later piece, which had all */
    if (fresh > 0) {
        if (j->training && !k2_digest_equal(e->digest, j->digest))
            sim_break(s, SIM_CHECK_GATE, "an engine outside the gate gave tokens");
        j->of = e->digest;
        j->moved_ns = s->now_ns;
        memcpy(j->got.ids + j->got.count, e->tokens.ids + have, fresh * sizeof *j->got.ids);
        memcpy(j->got.logps + j->got.count, e->tokens.logps + have, fresh * sizeof *j->got.logps);
        j->got.count += fresh;
        step(s, p, &(k2i_px_event){.kind = K2I_PX_PROGRESS, .request = j->request, .progress = {fresh}}, NULL);
    }
    if (!ends) return;
    bool whole = e->finish <= REPETITION || j->got.count == j->max_tokens;
    if (!whole) {
        failed(s, p, j, e->finish == STALE ? K2I_PX_WRONG_DIGEST : K2I_PX_BROKEN);
        return;
    }
    j->attempt = 0;
    answer(s, j, true, e->finish);
    j->used = false;
    step(s, p, &(k2i_px_event){.kind = K2I_PX_DONE, .request = j->request}, NULL);
}

static void call_end(sim *s, sim_proc *p, uint64_t attempt)
{
    proxy *x = p->state;
    for (uint32_t i = 0; i < JOBS; i++) {
        job *j = &x->jobs[i];
        if (!j->used || j->call != attempt) continue;
        leave(s, p, j);
        j->used = false;
        step(s, p, &(k2i_px_event){.kind = K2I_PX_CANCEL, .request = j->request}, NULL);
    }
}

void sim_proxy_peer_dead(sim *s, sim_proc *p, uint64_t serial)
{
    proxy *x = p->state;
    for (uint32_t i = 0; i < JOBS; i++) {
        if (!x->jobs[i].used || !x->jobs[i].attempt || x->jobs[i].engine != serial) continue;
        sim_event *e = sim_at(s, SIM_BROKEN, sim_latency_us(s, p->worker));
        e->proc = p->serial;
        e->attempt = x->jobs[i].attempt;
    }
}

void sim_proxy_happen(sim *s, sim_proc *p, const sim_event *e)
{
    proxy *x = p->state;
    job *j;
    switch (e->kind) {
    case SIM_CALL: call(s, p, e); break;
    case SIM_CALL_END: call_end(s, p, e->attempt); break;
    case SIM_STREAM: stream(s, p, e); break;
    case SIM_BROKEN:
        if ((j = of_attempt(x, e->attempt)) != NULL) failed(s, p, j, K2I_PX_BROKEN);
        break;
    case SIM_PROBED: {
        const sim_proc *q = sim_proc_find(s, e->peer);
        k2i_px_event ev = {.kind = K2I_PX_HEALTH, .engine = e->slot, .health = {.refused = !q}};
        if (q && sim_proc_runs(s, q) && q->role == K2M_ROLLOUT) {
            ev.health.ok = true;
            ev.health.digest = sim_rollout_content(q);
            ev.health.has_digest = !k2_digest_zero(ev.health.digest);
        }
        step(s, p, &ev, NULL);
        break;
    }
    default: break;
    }
}

void sim_proxy_beat(sim *s, sim_proc *p)
{
    proxy *x = p->state;
    for (uint32_t i = 0; i < JOBS; i++) {
        job *j = &x->jobs[i];
        if (!j->used || !j->attempt || s->now_ns - j->moved_ns < STALL_NS) continue;
        j->moved_ns = s->now_ns;
        leave(s, p, j);
        failed(s, p, j, K2I_PX_STALLED);
    }
    step(s, p, &(k2i_px_event){.kind = K2I_PX_TICK}, NULL);
}
