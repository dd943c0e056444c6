/* rollout: the worker's core for changes of weights and the engine's core with logits that are a hash. */
#include "rollout/rollout_core_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rollout/engine_core_int.h"
#include "sim_int.h"

#define JOBS        64u
#define PAGES       20u
#define PAGE_TOKENS 4u

typedef struct job {
    bool used, poison, silent; /* silent: what it says is lost */
    k2i_request req;
    uint64_t attempt, proxy;
    uint32_t known; /* tokens before the step */
    int32_t tokens[2 * SIM_TOKENS];
    float logps[SIM_TOKENS];
} job;

/* Weights in memory: what the bytes really are, and the segment that others may read them from. */
typedef struct weights {
    k2_digest content;
    k2_xfer_segment *segment;
} weights;

typedef struct rollout {
    k2i_rollout core;
    k2i_core *engine;
    uint64_t pull;
    char sources[9][K2_XFER_LOCATOR_MAX];
    uint32_t source_count;
    weights active, staged;
    bool stepping, draining, pull_canceled, switch_keeps;
    k2_digest switch_digest;
    job jobs[JOBS];
    float logits[JOBS * SIM_VOCAB];
    uint64_t cache[PAGES * PAGE_TOKENS]; /* of each cached position: what it was computed from */
} rollout;

void *sim_rollout_new(void)
{
    rollout *r = k2_alloc(sizeof *r);
    r->engine = k2i_core_new(&(k2i_core_config){.batch_max = 2,
                                                .prefill_chunk = 8,
                                                .requests_max = JOBS,
                                                .pages = PAGES,
                                                .page_tokens = PAGE_TOKENS,
                                                .context_max = SIM_TOKENS,
                                                .vocab = SIM_VOCAB});
    return r;
}

void sim_rollout_free(void *state)
{
    rollout *r = state;
    k2i_core_free(r->engine);
    k2_xfer_segment_destroy(r->active.segment);
    k2_xfer_segment_destroy(r->staged.segment);
    k2_free(r);
}

k2_digest sim_rollout_content(const sim_proc *p)
{
    return ((const rollout *)p->state)->active.content;
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
    if (j->silent) {
        if (j->req.finish != K2I_RUNNING) j->used = false;
        return;
    }
    sim_event *e = sim_at(s, SIM_STREAM, sim_latency_us(s, p->worker));
    e->proc = j->proxy;
    e->peer = p->serial;
    e->attempt = j->attempt;
    e->finish = j->req.finish;
    e->digest = r->active.content;
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
    bool stalls = sim_fault(s, SIM_STALL_STREAM, p->worker);
    if (stalls && sim_fault_draw(s, 2) == 0) return; /* it never came here */
    for (uint32_t i = 0; i < JOBS && !j; i++)
        if (!r->jobs[i].used) j = &r->jobs[i];
    bool stale = e->training && !k2_digest_equal(e->digest, r->active.content);
    if (!j || stale || r->draining) {
        s->outcome->stale += stale;
        sim_event *no = sim_at(s, SIM_STREAM, sim_latency_us(s, p->worker));
        no->proc = e->peer;
        no->peer = p->serial;
        no->attempt = e->attempt;
        no->finish = stale ? K2I_STALE : K2I_FAILED;
        return;
    }
    *j = (job){.used = true,
               .poison = s->world.poison && poisoned(e->id),
               .silent = stalls,
               .known = e->tokens.count,
               .attempt = e->attempt,
               .proxy = e->peer};
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

static void switched(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    k2i_outbox out;
    if (!r->switch_keeps) {
        k2_xfer_segment_destroy(r->active.segment);
        r->active = r->staged;
        r->staged = (weights){0};
    }
    if (!k2_digest_equal(r->active.content, r->switch_digest))
        sim_break(s, SIM_CHECK_WEIGHTS, "worker %u uses weights that are not those of the version it was told", p->worker);
    k2i_core_switch_done(r->engine, r->switch_digest);
    k2i_rollout_step(&r->core, &(k2i_event){.type = K2I_EV_SWITCHED}, &out);
    wake(s, p);
    carry_out(s, p, &out);
}

static void check_engine(sim *s, const sim_proc *p)
{
    const rollout *r = p->state;
    k2i_core_stats st;
    k2i_core_stats_get(r->engine, &st);
    if (st.running == 0 && st.pages_held > 0)
        sim_break(s, SIM_CHECK_POOLS, "worker %u holds %u pages, and nothing runs", p->worker, st.pages_held);
    for (uint32_t i = 0; i < JOBS; i++) {
        const job *j = &r->jobs[i];
        bool drew = j->used && j->req.len > j->known;
        if (drew && j->req.training && !k2_digest_equal(j->req.digest, r->active.content))
            sim_break(s, SIM_CHECK_GATE, "worker %u draws a training token with other weights than were asked for", p->worker);
    }
    if (!s->broken) k2i_core_check(r->engine);
}

static void drained(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    k2i_outbox out;
    if (!r->draining || open_jobs(r) > 0) return;
    k2i_rollout_step(&r->core, &(k2i_event){.type = K2I_EV_DRAINED}, &out);
    carry_out(s, p, &out);
}

static uint64_t computed_from(const rollout *r, int32_t token, uint32_t position)
{
    uint64_t words[4] = {r->active.content.hi, r->active.content.lo, (uint64_t)(uint32_t)token, position};
    return k2_hash64(words, sizeof words, 2);
}

static void check_cache(sim *s, const rollout *r, const k2i_row *row)
{
    for (uint32_t i = 0; i < JOBS; i++) {
        const k2i_request *q = &r->jobs[i].req;
        if (!r->jobs[i].used || !q->running || q->pages != row->pages) continue;
        for (uint32_t at = 0; at <= row->position; at++)
            if (r->cache[row->pages[at / PAGE_TOKENS] * PAGE_TOKENS + at % PAGE_TOKENS] != computed_from(r, q->tokens[at], at))
                sim_break(s, SIM_CHECK_CACHE, "trajectory %llu: position %u of its cache is of other weights or tokens",
                          (unsigned long long)q->trajectory, at);
    }
}

static void compute(sim *s, rollout *r, const k2i_row *rows, uint32_t count)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t page = rows[i].pages[rows[i].position / PAGE_TOKENS];
        r->cache[page * PAGE_TOKENS + rows[i].position % PAGE_TOKENS] = computed_from(r, rows[i].token, rows[i].position);
    }
    for (uint32_t i = 0; i < count; i++) {
        check_cache(s, r, &rows[i]);
        if (!rows[i].want) continue;
        for (uint32_t v = 0; v < SIM_VOCAB; v++)
            r->logits[at * SIM_VOCAB + v] = sim_logit(r->active.content, rows[i].token, rows[i].position, v);
        at++;
    }
    for (uint32_t i = 0; i < JOBS; i++) r->jobs[i].known = r->jobs[i].req.len;
    k2i_core_absorb(r->engine, r->logits, logprob, r->logits);
}

static void engine_step(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    if (any_poison(r)) {
        s->outcome->deaths++;
        sim_proc_end(s, p, 11, true);
        return;
    }
    const k2i_row *rows;
    uint32_t count, wanted;
    r->stepping = false;
    k2i_todo todo = k2i_core_plan(r->engine, s->now_ns, &rows, &count, &wanted);
    give_out(s, p);
    if (todo == K2I_SWITCH) {
        switched(s, p);
        return;
    }
    if (todo == K2I_STEP) {
        compute(s, r, rows, count);
        check_engine(s, p);
        give_out(s, p);
        wake(s, p);
    }
    check_engine(s, p);
    drained(s, p);
}

/* ---- the weights */

static void pull(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    k2_xfer_segment_destroy(r->staged.segment);
    r->staged = (weights){0};
    r->pull_canceled = false;
    sim_event *e = sim_at(s, SIM_WORK, (1000 + sim_draw(s, 30000)) * K2_MIN(p->slow, 3u));
    e->proc = p->serial;
    e->id = ++r->pull;
}

static void pulled(sim *s, sim_proc *p)
{
    rollout *r = p->state;
    const char *sources[9];
    k2i_outbox out;
    for (uint32_t i = 0; i < r->source_count; i++) sources[i] = r->sources[i];
    k2_code code =
        sim_weights_pull(s, p, sources, r->source_count, r->core.pulling.digest, &r->staged.segment, &r->staged.content);
    if (r->pull_canceled && sim_draw(s, 2) == 0) { /* it was noticed in time */
        k2_xfer_segment_destroy(r->staged.segment);
        r->staged.segment = NULL;
        code = K2_CANCELED;
    }
    k2i_rollout_step(&r->core, &(k2i_event){.type = K2I_EV_PULLED, .code = code, .text = "sim"}, &out);
    carry_out(s, p, &out);
}

/* Where others may read the weights of this digest. */
static const char *locator_of(const rollout *r, k2_digest digest)
{
    const weights *w = k2_digest_equal(r->active.content, digest) ? &r->active : &r->staged;
    return w->segment && k2_digest_equal(w->content, digest) ? k2_xfer_segment_locator(w->segment) : NULL;
}

static void carry_out(sim *s, sim_proc *p, k2i_outbox *out)
{
    rollout *r = p->state;
    for (uint32_t i = 0; i < out->count; i++) {
        const k2i_action *a = &out->list[i];
        switch (a->type) {
        case K2I_ACT_PULL: pull(s, p); break;
        case K2I_ACT_CANCEL_PULL: r->pull_canceled = true; break;
        case K2I_ACT_SWITCH:
            r->switch_digest = a->digest;
            r->switch_keeps = a->keep;
            k2i_core_switch_begin(r->engine, s->now_ns + 20 * K2_NS_PER_MS);
            wake(s, p);
            break;
        case K2I_ACT_DONE: sim_done(s, p, a->cmd, a->code, a->digest, locator_of(r, a->digest)); break;
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
        for (uint32_t i = 0; i < r->source_count; i++)
            snprintf(r->sources[i], sizeof r->sources[i], "%s", m->prepare.sources.items[i]);
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
    const rollout *r = p->state;
    switch (e->kind) {
    case SIM_ENGINE: engine_step(s, p); break;
    case SIM_UPSTREAM: upstream(s, p, e); break;
    case SIM_UPSTREAM_END: upstream_end(s, p, e->attempt); break;
    case SIM_WORK:
        if (e->id == r->pull && r->core.is_pulling) pulled(s, p);
        break;
    default: break;
    }
}
