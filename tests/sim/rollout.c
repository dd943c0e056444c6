/* rollout: the worker's core for changes of weights and the engine's core with logits that are a hash. */
#include "rollout/rollout_core_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout/engine_core_int.h"
#include "sim_int.h"

#define JOBS 64u

typedef struct job {
    bool used, poison;
    k2i_request req;
    uint64_t attempt, proxy;
    int32_t tokens[2 * SIM_TOKENS];
    float logps[SIM_TOKENS];
} job;

typedef struct rollout {
    k2i_rollout core;
    k2i_core *engine;
    uint64_t version, next_version, pull, sources[9];
    k2_digest active, next;
    uint32_t source_count;
    bool stepping, switching, draining;
    job jobs[JOBS];
    float logits[JOBS * SIM_VOCAB];
} rollout;

void *sim_rollout_new(void)
{
    rollout *r = k2_alloc(sizeof *r);
    r->engine = k2i_core_new(&(k2i_core_config){.batch_max = 4,
                                                .prefill_chunk = 8,
                                                .requests_max = JOBS,
                                                .pages = 20,
                                                .page_tokens = 4,
                                                .context_max = SIM_TOKENS,
                                                .vocab = SIM_VOCAB});
    return r;
}

void sim_rollout_free(void *state)
{
    k2i_core_free(((rollout *)state)->engine);
    k2_free(state);
}

bool sim_rollout_offers(const sim_proc *p, k2_digest digest)
{
    const rollout *r = p->state;
    return k2_digest_equal(r->active, digest) || k2_digest_equal(r->core.staged.digest, digest);
}

k2_digest sim_rollout_active(const sim_proc *p)
{
    return ((const rollout *)p->state)->active;
}

/* ---- the engine */

static float logprob(const void *arg, uint32_t i, uint32_t token)
{
    return ((const float *)arg)[i * SIM_VOCAB + token];
}

static void wake(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    if (r->stepping) return;
    r->stepping = true;
    sim_at(s, SIM_ENGINE, (300 + sim_draw(s, 1500)) * p->slow)->proc = p->serial;
}

static void tell(sim *s, sim_proc *p, job *j)
{
    const rollout *r = p->state;
    sim_event *e = sim_at(s, SIM_STREAM, sim_latency_us(s));
    e->proc = j->proxy;
    e->peer = p->serial;
    e->attempt = j->attempt;
    e->finish = j->req.finish;
    e->digest = r->active;
    e->tokens.count = j->req.len - j->req.prompt_len;
    memcpy(e->tokens.ids, j->req.tokens + j->req.prompt_len, e->tokens.count * sizeof *e->tokens.ids);
    memcpy(e->tokens.logps, j->req.logps, e->tokens.count * sizeof *e->tokens.logps);
    if (j->req.finish != K2I_RUNNING) j->used = false;
}

static void give_out(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    for (k2i_request *q; (q = k2i_core_touched(r->engine)) != NULL;) tell(s, p, q->user);
}

static uint32_t open_jobs(const rollout *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < JOBS; i++) n += r->jobs[i].used;
    return n;
}

/* One sample of a prompt, all of another, and an evaluation. */
static bool poisoned(uint64_t id)
{
    if (id & K2M_EVAL_BIT) return id == (K2M_EVAL_BIT | 2);
    return id == k2_replay_id(5, 1) || k2_replay_group_of(id) == 9;
}

static void upstream(sim *s, sim_proc *p, const sim_event *e)
{
    rollout *r = p->state;
    job *j = NULL;
    for (uint32_t i = 0; i < JOBS && !j; i++)
        if (!r->jobs[i].used) j = &r->jobs[i];
    bool stale = e->training && !k2_digest_equal(e->digest, r->active);
    if (!j || stale || r->draining) {
        s->stale += stale;
        sim_event *no = sim_at(s, SIM_STREAM, sim_latency_us(s));
        no->proc = e->peer;
        no->peer = p->serial;
        no->attempt = e->attempt;
        no->finish = stale ? K2I_STALE : K2I_FAILED;
        return;
    }
    *j = (job){.used = true, .poison = s->poison && poisoned(e->id), .attempt = e->attempt, .proxy = e->peer};
    memcpy(j->tokens, e->tokens.ids, e->tokens.count * sizeof *j->tokens);
    j->req = (k2i_request){.seed = s->config.seed,
                           .trajectory = e->id,
                           .position = e->position,
                           .sampling = {.temperature = 1, .top_p = 1},
                           .stop_ids = {0},
                           .stop_count = 1,
                           .training = e->training,
                           .has_digest = e->training,
                           .digest = e->digest,
                           .prompt_len = e->tokens.count,
                           .new_max = e->max_tokens,
                           .tokens = j->tokens,
                           .logps = j->logps,
                           .user = j};
    K2_ASSERT(k2i_core_submit(r->engine, &j->req) == K2_OK);
    wake(s, p);
}

static void upstream_end(sim *s, sim_proc *p, uint64_t attempt)
{
    rollout *r = p->state;
    for (uint32_t i = 0; i < JOBS; i++)
        if (r->jobs[i].used && r->jobs[i].attempt == attempt) k2i_core_end(r->engine, &r->jobs[i].req, K2I_CANCELED);
    give_out(s, p);
    wake(s, p);
}

static void carry_out(sim *s, sim_proc *p, k2i_outbox *out);

static bool any_poison(const rollout *r)
{
    bool any = false;
    for (uint32_t i = 0; i < JOBS; i++) any |= r->jobs[i].used && r->jobs[i].poison;
    return any;
}

static void engine_step(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    if (any_poison(r)) {
        s->deaths++;
        sim_proc_end(s, p, 11, true);
        return;
    }
    const k2i_row *rows;
    uint32_t count, wanted, at = 0;
    r->stepping = false;
    k2i_todo todo = k2i_core_plan(r->engine, s->now_ns, &rows, &count, &wanted);
    give_out(s, p);
    if (todo == K2I_SWITCH) {
        r->active = r->next;
        r->version = r->next_version;
        r->switching = false;
        k2i_core_switch_done(r->engine, r->active);
        k2i_outbox out;
        k2i_rollout_step(&r->core, &(k2i_event){.type = K2I_EV_SWITCHED}, &out);
        wake(s, p);
        carry_out(s, p, &out);
        return;
    }
    if (todo == K2I_STEP) {
        for (uint32_t i = 0; i < count; i++) {
            if (!rows[i].want) continue;
            for (uint32_t v = 0; v < SIM_VOCAB; v++)
                r->logits[at * SIM_VOCAB + v] = sim_logit(r->active, rows[i].token, rows[i].position, v);
            at++;
        }
        k2i_core_absorb(r->engine, r->logits, logprob, r->logits);
        give_out(s, p);
        wake(s, p);
    }
    k2i_core_check(r->engine);
    if (r->draining && open_jobs(r) == 0) {
        k2i_outbox out;
        k2i_rollout_step(&r->core, &(k2i_event){.type = K2I_EV_DRAINED}, &out);
        carry_out(s, p, &out);
    }
}

/* ---- the weights */

static void pull(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    sim_event *e = sim_at(s, SIM_WORK, (1000 + sim_draw(s, 30000)) * p->slow);
    e->proc = p->serial;
    e->id = ++r->pull;
}

static k2_code pulled_code(sim *s, const rollout *r, k2_digest want)
{
    if (sim_chance(s, s->faults.corrupt, 6)) return K2_CORRUPT;
    for (uint32_t i = 0; i < r->source_count; i++) {
        const sim_proc *q = sim_proc_find(s, r->sources[i]);
        if (!q || !sim_proc_runs(s, q)) continue;
        if (q->role == K2M_TRAINER ? sim_trainer_offers(q, want) : sim_rollout_offers(q, want)) return K2_OK;
    }
    return K2_PEER_CLOSED;
}

static void carry_out(sim *s, sim_proc *p, k2i_outbox *out)
{
    rollout *r = p->state;
    char locator[64];
    snprintf(locator, sizeof locator, "%llu", (unsigned long long)p->serial);
    for (uint32_t i = 0; i < out->count; i++) {
        const k2i_action *a = &out->list[i];
        switch (a->type) {
        case K2I_ACT_PULL: pull(s, p); break;
        case K2I_ACT_CANCEL_PULL: break; /* it ends by itself soon enough */
        case K2I_ACT_SWITCH:
            r->next = a->digest;
            r->next_version = a->version;
            r->switching = true;
            k2i_core_switch_begin(r->engine, s->now_ns + 20 * K2_NS_PER_MS);
            wake(s, p);
            break;
        case K2I_ACT_DONE: sim_done(s, p, a->cmd, a->code, a->digest, locator); break;
        case K2I_ACT_DRAIN:
            r->draining = true;
            wake(s, p);
            break;
        case K2I_ACT_EXIT: sim_proc_end(s, p, 0, true); return;
        }
    }
}

void sim_rollout_command(sim *s, sim_proc *p, const k2_msg *m)
{
    rollout *r = p->state;
    k2i_event ev = {.type = K2I_EV_STOP, .cmd = m->cmd};
    if (m->type == K2_MSG_PREPARE) {
        ev.type = K2I_EV_PREPARE;
        ev.version = m->prepare.version;
        ev.digest = m->prepare.digest;
        r->source_count = K2_MIN(m->prepare.sources.count, 9u);
        for (uint32_t i = 0; i < r->source_count; i++) r->sources[i] = strtoull(m->prepare.sources.items[i], NULL, 10);
    } else if (m->type == K2_MSG_COMMIT) {
        ev.type = K2I_EV_COMMIT;
        ev.version = m->commit.version;
        ev.digest = m->commit.digest;
    }
    k2i_outbox out;
    k2i_rollout_step(&r->core, &ev, &out);
    carry_out(s, p, &out);
}

void sim_rollout_happen(sim *s, sim_proc *p, const sim_event *e)
{
    rollout *r = p->state;
    k2i_outbox out;
    switch (e->kind) {
    case SIM_ENGINE: engine_step(s, p); break;
    case SIM_UPSTREAM: upstream(s, p, e); break;
    case SIM_UPSTREAM_END: upstream_end(s, p, e->attempt); break;
    case SIM_WORK:
        if (e->id != r->pull || !r->core.is_pulling) return;
        k2i_rollout_step(&r->core,
                         &(k2i_event){.type = K2I_EV_PULLED, .code = pulled_code(s, r, r->core.pulling.digest), .text = "sim"},
                         &out);
        carry_out(s, p, &out);
        break;
    default: break;
    }
}
