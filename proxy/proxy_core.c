/* proxy_core.c - see proxy_core_int.h: events and requests; engines.c has the engines. After every event one function,
 * `serve_queue`, looks whether queued requests can go somewhere; it does so only when something changed that could let one go.
 */
#include "proxy/core_state_int.h"

#include <string.h>

#include "common/base/planted.h"

/* ---- the outbox ---------------------------------------------------------------------------------------------------- */

/* Room for one more action; where there is none the caller leaves things as they are and is called again. */
static bool room(k2i_px_outbox *out)
{
    if (out->count < K2I_PX_ACTIONS_MAX) return true;
    out->more = true;
    return false;
}

static k2i_px_action *act(k2i_px_outbox *out, k2i_px_action_kind kind)
{
    K2_ASSERT(out->count < K2I_PX_ACTIONS_MAX);
    k2i_px_action *a = &out->actions[out->count++];
    *a = (k2i_px_action){.kind = kind, .request = K2I_PX_NONE, .engine = K2I_PX_NONE};
    return a;
}

/* ---- lists of requests ----------------------------------------------------------------------------------------------- */

uint64_t k2i_px_cost(const k2i_px_req *r)
{
    return r->prompt_tokens + r->left;
}

static void queue_put(k2i_px *c, uint32_t i, bool front)
{
    k2i_px_req *r = &c->reqs[i];
    r->state = REQ_QUEUED;
    r->engine = K2I_PX_NONE;
    r->prev = front ? K2I_PX_NONE : c->queue_tail;
    r->next = front ? c->queue_head : K2I_PX_NONE;
    if (r->prev != K2I_PX_NONE)
        c->reqs[r->prev].next = i;
    else
        c->queue_head = i;
    if (r->next != K2I_PX_NONE)
        c->reqs[r->next].prev = i;
    else
        c->queue_tail = i;
    c->stats.queued++;
    c->queued_training += r->training;
    c->holds += r->must_hold;
    k2_least_set(c->late, i, r->give_back ? 0 : r->deadline_ns, 0);
}

static void queue_take(k2i_px *c, uint32_t i)
{
    k2i_px_req *r = &c->reqs[i];
    if (r->prev != K2I_PX_NONE)
        c->reqs[r->prev].next = r->next;
    else
        c->queue_head = r->next;
    if (r->next != K2I_PX_NONE)
        c->reqs[r->next].prev = r->prev;
    else
        c->queue_tail = r->prev;
    c->stats.queued--;
    c->queued_training -= r->training;
    c->holds -= r->must_hold;
    k2_least_drop(c->late, i);
}

static void engine_put(k2i_px *c, uint32_t i, uint32_t slot)
{
    k2i_px_req *r = &c->reqs[i];
    k2i_px_engine *e = &c->engines[slot];
    r->state = REQ_RUNNING;
    r->engine = slot;
    r->prev = K2I_PX_NONE;
    r->next = e->head;
    if (e->head != K2I_PX_NONE) c->reqs[e->head].prev = i;
    e->head = i;
    e->requests++;
    e->load += k2i_px_cost(r);
    k2i_px_engine_touch(c, e);
    c->stats.running++;
    c->stats.outstanding += k2i_px_cost(r);
}

static void engine_take(k2i_px *c, uint32_t i)
{
    k2i_px_req *r = &c->reqs[i];
    k2i_px_engine *e = &c->engines[r->engine];
    if (r->prev != K2I_PX_NONE)
        c->reqs[r->prev].next = r->next;
    else
        e->head = r->next;
    if (r->next != K2I_PX_NONE) c->reqs[r->next].prev = r->prev;
    e->requests--;
    e->load -= k2i_px_cost(r);
    k2i_px_engine_touch(c, e);
    c->stats.running--;
    c->stats.outstanding -= k2i_px_cost(r);
}

static void req_free(k2i_px *c, uint32_t i)
{
    k2i_px_req *r = &c->reqs[i];
    if (r->state == REQ_QUEUED) queue_take(c, i);
    if (r->state == REQ_RUNNING) engine_take(c, i);
    memset(r, 0, sizeof *r);
    r->next = c->free_head;
    c->free_head = i;
}

static k2i_px_req *req_get(k2i_px *c, uint32_t i)
{
    K2_ASSERT(i < c->config.requests_max && c->reqs[i].state != REQ_FREE);
    return &c->reqs[i];
}

/* ---- sending ------------------------------------------------------------------------------------------------------------ */

static void dispatch(k2i_px *c, uint32_t i, uint32_t slot, k2i_px_outbox *out)
{
    k2i_px_req *r = &c->reqs[i];
    k2i_px_engine *e = &c->engines[slot];
    e->picked = ++c->picks;
    engine_put(c, i, slot);
    k2i_px_group_remember(c, r, e);
    k2i_px_action *a = act(out, K2I_PX_SEND);
    a->request = i;
    a->user = r->user;
    a->engine = slot;
}

static void fail(k2i_px *c, uint32_t i, int status, uint32_t retry_after_s, const char *text, k2i_px_outbox *out)
{
    k2i_px_action *a = act(out, K2I_PX_FAIL);
    a->request = i;
    a->user = c->reqs[i].user;
    a->status = status;
    a->retry_after_s = retry_after_s;
    a->text = text;
    if (c->reqs[i].broke_max > 0) { /* the sender wants to know, whatever it is that ends the request */
        a->broke_count = c->reqs[i].broke_count;
        memcpy(a->broke, c->reqs[i].broke, sizeof a->broke);
    }
    req_free(c, i);
}

static const char *why_waiting(const k2i_px *c, const k2i_px_req *r)
{
    if (c->stats.ready == 0) return "no engine is healthy";
    if (!r->training) return "every engine is busy or draining";
    if (!r->has_digest && !c->has_gate) return "no weights are in force for training requests";
    return "no engine holds the weights that the request needs";
}

/* May any of the queued requests be sent? */
static bool may_go(const k2i_px *c)
{
    const k2_least *for_training = c->has_gate ? c->fit : c->open; /* without a gate each may name other weights */
    return (c->stats.queued > c->queued_training && k2_least_first(c->open) != K2_PLACE_NONE) ||
           (c->queued_training > 0 && k2_least_first(for_training) != K2_PLACE_NONE);
}

/* Ends those that waited too long, also where an engine may serve one that refused it again and again; sends what can go, tells
 * the others to wait. When the outbox is full it is called again. */
static void serve_queue(k2i_px *c, k2i_px_outbox *out)
{
    uint32_t i, next;
    while ((i = k2_least_first(c->late)) != K2_PLACE_NONE && c->now_ns >= k2_least_major(c->late, i)) {
        if (!room(out)) return;
        bool give_back = c->reqs[i].give_back;
        c->stats.failed += give_back;
        c->stats.expired += !give_back;
        if (give_back)
            fail(c, i, 502, 0, "engines were lost under the request", out);
        else
            fail(c, i, 503, 1, why_waiting(c, &c->reqs[i]), out);
    }
    bool all = c->look && may_go(c);
    for (i = c->queue_head; i != K2I_PX_NONE && (all || c->holds > 0); i = next) { /* those that hold stand in front */
        k2i_px_req *r = &c->reqs[i];
        next = r->next;
        if (!room(out)) return;
        uint32_t slot = k2i_px_pick(c, r);
        bool held = r->must_hold;
        c->holds -= held;
        r->must_hold = false;
        if (slot != K2I_PX_NONE) {
            queue_take(c, i);
            dispatch(c, i, slot, out);
        } else if (held) {
            k2i_px_action *a = act(out, K2I_PX_HOLD);
            a->request = i;
            a->user = r->user;
        }
    }
    c->look = false;
}

/* An engine is lost with this request on it. How many were there is asked once, before the first of them is taken away: who is
 * told last must not look as if it had been alone. Where the sender wants to know, the request goes back to it after a while:
 * it may be what ends engines, and the next one would be the next to go. */
static void note_broke(k2i_px *c, k2i_px_req *r, uint32_t slot)
{
    k2i_px_engine *e = &c->engines[slot];
    if (e->crowd == 0) e->crowd = e->requests;
    if (r->broke_count < K2I_PX_BROKE_MAX)
        r->broke[r->broke_count++] = (k2i_px_broke){e->id, e->incarnation, .alone = e->crowd == 1};
    r->give_back = r->broke_max > 0 && r->broke_count >= r->broke_max;
    c->look |= r->give_back;
}

/* In front of the queue, where serve_queue finds them in the order of their coming. */
void k2i_px_move_all(k2i_px *c, uint32_t slot)
{
    k2i_px_engine *e = &c->engines[slot];
    while (e->head != K2I_PX_NONE) {
        uint32_t i = e->head;
        k2i_px_req *r = &c->reqs[i];
        note_broke(c, r, slot);
        engine_take(c, i);
        r->must_hold = true;
        r->avoid = slot;
        r->avoid_life = e->life;
        r->deadline_ns = c->now_ns + c->config.wait_ns;
        queue_put(c, i, true);
        c->stats.moved++;
    }
    c->look = true;
}

static void probe_due(k2i_px *c, k2i_px_outbox *out)
{
    uint32_t i;
    while ((i = k2_least_first(c->probes)) != K2_PLACE_NONE && c->engines[i].probe_due_ns <= c->now_ns) {
        k2i_px_engine *e = &c->engines[i];
        if (!room(out)) return;
        e->probing = true;
        e->probe_sent_ns = c->now_ns;
        e->probe_due_ns = c->now_ns + c->config.health_ns;
        k2i_px_engine_touch(c, e);
        act(out, K2I_PX_PROBE)->engine = i;
    }
}

/* ---- requests ------------------------------------------------------------------------------------------------------------ */

static void on_request(k2i_px *c, const k2i_px_event *ev, k2i_px_outbox *out)
{
    uint32_t i = c->free_head;
    if (i == K2I_PX_NONE) {
        c->stats.refused++;
        k2i_px_action *a = act(out, K2I_PX_FAIL);
        a->user = ev->req.user;
        a->status = 429;
        a->retry_after_s = 1;
        a->text = "too many requests are under way";
        return;
    }
    k2i_px_req *r = &c->reqs[i];
    c->free_head = r->next;
    *r = (k2i_px_req){.user = ev->req.user,
                      .prompt_tokens = ev->req.prompt_tokens,
                      .left = ev->req.max_tokens,
                      .group = ev->req.group,
                      .has_group = ev->req.has_group,
                      .training = ev->req.training || ev->req.has_digest,
                      .has_digest = ev->req.has_digest,
                      .digest = ev->req.digest,
                      .broke_max = K2_MIN(ev->req.broke_max, K2I_PX_BROKE_MAX),
                      .deadline_ns = c->now_ns + c->config.wait_ns,
                      .avoid = K2I_PX_NONE};
    c->stats.admitted++;
    out->request = i;
    uint32_t slot = k2i_px_pick(c, r);
    if (slot != K2I_PX_NONE)
        dispatch(c, i, slot, out);
    else
        queue_put(c, i, false);
}

static void on_progress(k2i_px *c, const k2i_px_event *ev)
{
    k2i_px_req *r = req_get(c, ev->request);
    uint64_t n = K2_MIN(ev->progress.tokens, r->left);
    r->left -= n;
    if (r->state != REQ_RUNNING) return;
    c->engines[r->engine].load -= n;
    k2i_px_engine_touch(c, &c->engines[r->engine]);
    c->stats.outstanding -= n;
}

/* What the failure says about the engine. */
static void blame(k2i_px *c, uint32_t slot, k2i_px_why why)
{
    k2i_px_engine *e = &c->engines[slot];
    e->failed++;
    switch (why) {
    case K2I_PX_REFUSED:
    case K2I_PX_BROKEN:
    case K2I_PX_STALLED: k2i_px_down(c, e); break;
    case K2I_PX_ERROR:
        if (++e->errors >= K2I_PX_ERRORS_DOWN) k2i_px_down(c, e);
        break;
    case K2I_PX_BUSY: e->busy_until_ns = c->now_ns + c->config.busy_ns; break;
    case K2I_PX_WRONG_DIGEST:
        memset(&e->digest, 0, sizeof e->digest); /* until a probe or the master says what it holds */
        e->probe_due_ns = 0;
        break;
    }
    k2i_px_engine_touch(c, e);
}

static void on_failed(k2i_px *c, const k2i_px_event *ev, k2i_px_outbox *out)
{
    uint32_t i = ev->request;
    k2i_px_req *r = req_get(c, i);
    K2_ASSERT(r->state == REQ_RUNNING);
    uint32_t slot = r->engine;
    if (ev->failed.why == K2I_PX_BROKEN) note_broke(c, r, slot);
    blame(c, slot, ev->failed.why);
    engine_take(c, i);
    r->avoid = slot;
    r->avoid_life = c->engines[slot].life;
    if (r->give_back) { /* serve_queue does so */
        queue_put(c, i, true);
        return;
    }
    bool counts = ev->failed.why != K2I_PX_BUSY && ev->failed.why != K2I_PX_WRONG_DIGEST;
    if (ev->failed.final || (counts && r->sent >= c->config.retries)) {
        queue_put(c, i, true);
        c->stats.failed++;
        fail(c, i, 502, 0, ev->failed.final ? "the engine failed in mid-answer" : "every engine that was tried failed", out);
        return;
    }
    r->sent += counts;
    c->stats.retried++;
    /* Waiting out a busy engine or one with other weights is one wait, from when the request came to it. */
    if (counts) r->deadline_ns = c->now_ns + c->config.wait_ns;
    uint32_t other = c->now_ns < r->deadline_ns ? k2i_px_pick(c, r) : K2I_PX_NONE;
    if (other != K2I_PX_NONE)
        dispatch(c, i, other, out);
    else
        queue_put(c, i, true);
}

static void on_done(k2i_px *c, const k2i_px_event *ev)
{
    k2i_px_req *r = req_get(c, ev->request);
    K2_ASSERT(r->state == REQ_RUNNING);
    c->engines[r->engine].served++;
    c->engines[r->engine].errors = 0;
    c->stats.done++;
    req_free(c, ev->request);
}

/* ---- public ----------------------------------------------------------------------------------------------------------------
 */

k2i_px *k2i_px_new(const k2i_px_config *config)
{
    K2_ASSERT(config->engines_max > 0 && config->requests_max > 0 && config->health_ns > 0);
    k2i_px *c = k2_alloc(sizeof *c);
    c->config = *config;
    k2i_px_engines_new(c);
    c->late = k2_least_new(config->requests_max);
    c->reqs = k2_alloc_array(config->requests_max, sizeof *c->reqs);
    c->groups = k2_alloc_array(K2I_PX_GROUPS, sizeof *c->groups);
    for (uint32_t i = 0; i < config->requests_max; i++) c->reqs[i].next = i + 1 < config->requests_max ? i + 1 : K2I_PX_NONE;
    c->queue_head = c->queue_tail = K2I_PX_NONE;
    return c;
}

void k2i_px_free(k2i_px *c)
{
    if (!c) return;
    k2i_px_engines_free(c);
    k2_least_free(c->late);
    k2_free(c->reqs);
    k2_free(c->groups);
    k2_free(c);
}

void k2i_px_step(k2i_px *c, const k2i_px_event *ev, k2i_px_outbox *out)
{
    out->count = 0;
    out->more = false;
    out->request = K2I_PX_NONE;
    c->now_ns = K2_MAX(c->now_ns, ev->now_ns);
    k2i_px_engines_wake(c);
    switch (ev->kind) {
    case K2I_PX_TICK: probe_due(c, out); break;
    case K2I_PX_ENGINES: k2i_px_on_engines(c, ev); break;
    case K2I_PX_GATE:
        c->has_gate = !k2_digest_zero(ev->gate.digest);
        c->gate = ev->gate.digest;
        c->gate_version = ev->gate.version;
        if (c->has_gate) k2i_px_fit(c, c->gate);
        c->look = true;
        break;
    case K2I_PX_REQUEST: on_request(c, ev, out); break;
    case K2I_PX_PROGRESS: on_progress(c, ev); break;
    case K2I_PX_DONE: on_done(c, ev); break;
    case K2I_PX_FAILED: on_failed(c, ev, out); break;
    case K2I_PX_CANCEL:
        req_get(c, ev->request);
        c->stats.canceled++;
        if (!K2_PLANTED(CANCELED_KEPT)) req_free(c, ev->request);
        break;
    case K2I_PX_HEALTH: k2i_px_on_health(c, ev); break;
    }
    if (c->look || ev->kind == K2I_PX_TICK) serve_queue(c, out);
}

const k2i_px_engine *k2i_px_engine_at(const k2i_px *c, uint32_t slot)
{
    K2_ASSERT(slot < c->config.engines_max);
    return &c->engines[slot];
}

uint32_t k2i_px_engine_slots(const k2i_px *c)
{
    return c->config.engines_max;
}

void k2i_px_request_get(const k2i_px *c, uint32_t request, k2i_px_request *out)
{
    K2_ASSERT(request < c->config.requests_max && c->reqs[request].state != REQ_FREE);
    const k2i_px_req *r = &c->reqs[request];
    bool running = r->state == REQ_RUNNING;
    *out = (k2i_px_request){.running = running,
                            .engine = r->engine,
                            .deadline_ns = running ? 0 : r->deadline_ns,
                            .waits = running ? "" : why_waiting(c, r)};
}

const char *k2i_px_state_name(k2i_px_engine_state s)
{
    static const char *const names[] = {"free", "joining", "ready", "draining", "down"};
    return names[s];
}

bool k2i_px_gate(const k2i_px *c, uint64_t *version, k2_digest *digest)
{
    *version = c->gate_version;
    *digest = c->gate;
    return c->has_gate;
}

void k2i_px_stats_get(const k2i_px *c, k2i_px_stats *out)
{
    *out = c->stats;
}

uint64_t k2i_px_looks(const k2i_px *c)
{
    const k2_least *all[] = {c->late, c->open, c->fit, c->probes, c->busy};
    uint64_t n = c->looks;
    for (size_t i = 0; i < K2_COUNT(all); i++) n += k2_least_matches(all[i]);
    return n;
}

void k2i_px_check(const k2i_px *c)
{
    k2i_px_engines_check(c);
    uint32_t training = 0, holds = 0;
    uint64_t outstanding = 0;
    uint32_t running = 0, queued = 0, used = 0, unused = 0;
    for (uint32_t s = 0; s < c->config.engines_max; s++) {
        const k2i_px_engine *e = &c->engines[s];
        uint64_t load = 0;
        uint32_t n = 0;
        for (uint32_t i = e->head; i != K2I_PX_NONE; i = c->reqs[i].next, n++) {
            K2_ASSERT(c->reqs[i].state == REQ_RUNNING && c->reqs[i].engine == s && n <= c->config.requests_max);
            load += k2i_px_cost(&c->reqs[i]);
        }
        K2_ASSERT(load == e->load && n == e->requests && (e->state != K2I_PX_FREE || n == 0));
        outstanding += load;
        running += n;
    }
    for (uint32_t i = c->queue_head; i != K2I_PX_NONE; i = c->reqs[i].next, queued++) {
        const k2i_px_req *r = &c->reqs[i];
        K2_ASSERT(r->state == REQ_QUEUED && queued <= c->config.requests_max);
        K2_ASSERT(k2_least_major(c->late, i) == (r->give_back ? 0 : r->deadline_ns));
        training += r->training;
        holds += r->must_hold;
    }
    for (uint32_t i = c->free_head; i != K2I_PX_NONE; i = c->reqs[i].next, unused++) K2_ASSERT(c->reqs[i].state == REQ_FREE);
    for (uint32_t i = 0; i < c->config.requests_max; i++) used += c->reqs[i].state != REQ_FREE;
    K2_ASSERT(used == running + queued && used + unused == c->config.requests_max);
    K2_ASSERT(training == c->queued_training && holds == c->holds);
    K2_ASSERT(outstanding == c->stats.outstanding && running == c->stats.running && queued == c->stats.queued);
}
