/* proxy_core.c - see proxy_core_int.h. After every event one function, `serve_queue`, looks whether queued requests can go
 * somewhere; it does so only when something changed that could let one go. */
#include "proxy/proxy_core_int.h"

#include <string.h>

#include "common/base/planted.h"

typedef enum req_state { REQ_FREE, REQ_QUEUED, REQ_RUNNING } req_state;

typedef struct req {
    req_state state;
    bool has_group, training, has_digest;
    bool give_back; /* too many engines were lost under it */
    bool must_hold; /* its upstream call still runs on an engine that it was taken from */
    void *user;
    uint64_t prompt_tokens, left; /* left: of max_tokens */
    uint64_t group, deadline_ns;
    k2_digest digest;
    uint32_t engine, avoid; /* avoid: the engine that failed it last */
    uint32_t sent;          /* failures that used up a retry */
    uint32_t broke_max, broke_count;
    k2i_px_broke broke[K2I_PX_BROKE_MAX];
    uint32_t prev, next; /* in the queue, or in its engine's list */
} req;

typedef struct group_slot {
    uint64_t group;
    uint64_t engine_id, incarnation;
    bool used;
} group_slot;

struct k2i_px {
    k2i_px_config config;
    k2i_px_engine *engines;
    req *reqs;
    uint32_t engine_top; /* slots from here on have never been used */
    uint32_t free_head;  /* of reqs, through next */
    uint32_t queue_head, queue_tail;
    group_slot *groups;
    bool has_gate, look; /* look: the queue may have become servable */
    uint64_t gate_version, picks, now_ns;
    k2_digest gate;
    k2i_px_stats stats;
};

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

static uint64_t cost(const req *r)
{
    return r->prompt_tokens + r->left;
}

static void queue_put(k2i_px *c, uint32_t i, bool front)
{
    req *r = &c->reqs[i];
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
}

static void queue_take(k2i_px *c, uint32_t i)
{
    req *r = &c->reqs[i];
    if (r->prev != K2I_PX_NONE)
        c->reqs[r->prev].next = r->next;
    else
        c->queue_head = r->next;
    if (r->next != K2I_PX_NONE)
        c->reqs[r->next].prev = r->prev;
    else
        c->queue_tail = r->prev;
    c->stats.queued--;
}

static void engine_put(k2i_px *c, uint32_t i, uint32_t slot)
{
    req *r = &c->reqs[i];
    k2i_px_engine *e = &c->engines[slot];
    r->state = REQ_RUNNING;
    r->engine = slot;
    r->prev = K2I_PX_NONE;
    r->next = e->head;
    if (e->head != K2I_PX_NONE) c->reqs[e->head].prev = i;
    e->head = i;
    e->requests++;
    e->load += cost(r);
    c->stats.running++;
    c->stats.outstanding += cost(r);
}

static void engine_take(k2i_px *c, uint32_t i)
{
    req *r = &c->reqs[i];
    k2i_px_engine *e = &c->engines[r->engine];
    if (r->prev != K2I_PX_NONE)
        c->reqs[r->prev].next = r->next;
    else
        e->head = r->next;
    if (r->next != K2I_PX_NONE) c->reqs[r->next].prev = r->prev;
    e->requests--;
    e->load -= cost(r);
    c->stats.running--;
    c->stats.outstanding -= cost(r);
}

static void req_free(k2i_px *c, uint32_t i)
{
    req *r = &c->reqs[i];
    if (r->state == REQ_QUEUED) queue_take(c, i);
    if (r->state == REQ_RUNNING) engine_take(c, i);
    memset(r, 0, sizeof *r);
    r->next = c->free_head;
    c->free_head = i;
}

static req *req_get(k2i_px *c, uint32_t i)
{
    K2_ASSERT(i < c->config.requests_max && c->reqs[i].state != REQ_FREE);
    return &c->reqs[i];
}

/* ---- choice ------------------------------------------------------------------------------------------------------------ */

static bool may_serve(const k2i_px *c, const k2i_px_engine *e, const req *r)
{
    if (e->state != K2I_PX_READY || e->leaving || e->busy_until_ns > c->now_ns) return false;
    if (!r->training || K2_PLANTED(ROUTED_ANYWHERE)) return true;
    /* A training request names its weights or takes those of the gate; where a gate is in force both must agree. */
    k2_digest need = r->has_digest ? r->digest : c->gate;
    if (!r->has_digest && !c->has_gate) return false;
    if (c->has_gate && !k2_digest_equal(need, c->gate)) return false;
    return !k2_digest_zero(e->digest) && k2_digest_equal(e->digest, need);
}

static group_slot *group_at(const k2i_px *c, uint64_t group)
{
    return &c->groups[k2_hash64(&group, sizeof group, 0) & (K2I_PX_GROUPS - 1)];
}

/* Less load first; then the one that was picked longest ago, so that equal engines take turns. */
static bool better(const k2i_px_engine *a, const k2i_px_engine *b)
{
    return a->load != b->load ? a->load < b->load : a->picked < b->picked;
}

static uint32_t pick(k2i_px *c, const req *r)
{
    uint32_t best = K2I_PX_NONE, avoided = K2I_PX_NONE, at_home = K2I_PX_NONE;
    const group_slot *home = r->has_group ? group_at(c, r->group) : NULL;
    if (home && (!home->used || home->group != r->group)) home = NULL;
    for (uint32_t i = 0; i < c->engine_top; i++) {
        const k2i_px_engine *e = &c->engines[i];
        if (!may_serve(c, e, r)) continue;
        if (i == r->avoid) {
            avoided = i;
            continue;
        }
        if (best == K2I_PX_NONE || better(e, &c->engines[best])) best = i;
        if (home && e->id == home->engine_id && e->incarnation == home->incarnation) at_home = i;
    }
    if (best == K2I_PX_NONE) return avoided;
    if (at_home == K2I_PX_NONE) return best;
    uint64_t limit = K2I_PX_AFFINITY_FACTOR * c->engines[best].load + K2I_PX_AFFINITY_SLACK * cost(r);
    return c->engines[at_home].load <= limit ? at_home : best;
}

static void dispatch(k2i_px *c, uint32_t i, uint32_t slot, k2i_px_outbox *out)
{
    req *r = &c->reqs[i];
    k2i_px_engine *e = &c->engines[slot];
    queue_take(c, i);
    engine_put(c, i, slot);
    r->must_hold = false;
    e->picked = ++c->picks;
    if (r->has_group) *group_at(c, r->group) = (group_slot){r->group, e->id, e->incarnation, true};
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
    if (c->reqs[i].give_back) {
        a->broke_count = c->reqs[i].broke_count;
        memcpy(a->broke, c->reqs[i].broke, sizeof a->broke);
    }
    req_free(c, i);
}

static const char *why_waiting(const k2i_px *c, const req *r)
{
    if (c->stats.ready == 0) return "no engine is healthy";
    if (!r->training) return "every engine is busy or draining";
    if (!r->has_digest && !c->has_gate) return "no weights are in force for training requests";
    return "no engine holds the weights that the request needs";
}

/* Sends what can go, tells the others to wait, ends those that waited too long. Goes on where it was when the outbox was full.
 */
static void serve_queue(k2i_px *c, k2i_px_outbox *out)
{
    for (uint32_t i = c->queue_head, next; i != K2I_PX_NONE; i = next) {
        req *r = &c->reqs[i];
        next = r->next;
        if (!room(out)) return;
        if (r->give_back) {
            c->stats.failed++;
            fail(c, i, 502, 0, "engines were lost under the request", out);
            continue;
        }
        if (c->now_ns >= r->deadline_ns) { /* also where an engine may serve it that refused it again and again */
            c->stats.expired++;
            fail(c, i, 503, 1, why_waiting(c, r), out);
            continue;
        }
        uint32_t slot = c->look || r->must_hold ? pick(c, r) : K2I_PX_NONE;
        if (slot != K2I_PX_NONE) {
            dispatch(c, i, slot, out);
        } else if (r->must_hold) {
            r->must_hold = false;
            k2i_px_action *a = act(out, K2I_PX_HOLD);
            a->request = i;
            a->user = r->user;
        }
    }
    c->look = false;
}

/* ---- engines ------------------------------------------------------------------------------------------------------------ */

static void count_ready(k2i_px *c)
{
    c->stats.engines = c->stats.ready = 0;
    for (uint32_t i = 0; i < c->engine_top; i++) {
        c->stats.engines += c->engines[i].state != K2I_PX_FREE;
        c->stats.ready += c->engines[i].state == K2I_PX_READY;
    }
}

static void state_set(k2i_px *c, k2i_px_engine *e, k2i_px_engine_state state)
{
    e->state = state;
    c->look |= state == K2I_PX_READY;
    count_ready(c);
}

/* An engine is lost with this request on it. How many were there is asked once, before the first of them is taken away: who is
 * told last must not look as if it had been alone. Where the sender wants to know, the request goes back to it after a while:
 * it may be what ends engines, and the next one would be the next to go. */
static void note_broke(k2i_px *c, req *r, uint32_t slot)
{
    k2i_px_engine *e = &c->engines[slot];
    if (e->crowd == 0) e->crowd = e->requests;
    if (r->broke_count < K2I_PX_BROKE_MAX)
        r->broke[r->broke_count++] = (k2i_px_broke){e->id, e->incarnation, .alone = e->crowd == 1};
    r->give_back = r->broke_max > 0 && r->broke_count >= r->broke_max;
    c->look |= r->give_back;
}

/* Its requests go back to the head of the queue, where serve_queue finds them in the order of their coming. */
static void move_all(k2i_px *c, uint32_t slot)
{
    k2i_px_engine *e = &c->engines[slot];
    while (e->head != K2I_PX_NONE) {
        uint32_t i = e->head;
        req *r = &c->reqs[i];
        note_broke(c, r, slot);
        engine_take(c, i);
        r->must_hold = true;
        r->avoid = slot;
        r->deadline_ns = c->now_ns + c->config.wait_ns;
        queue_put(c, i, true);
        c->stats.moved++;
    }
    c->look = true;
}

static void down(k2i_px *c, k2i_px_engine *e)
{
    if (e->state == K2I_PX_READY || e->state == K2I_PX_JOINING) state_set(c, e, K2I_PX_DOWN);
    e->probe_due_ns = 0; /* ask at once: it may have been the connection only */
}

static void forget(k2i_px *c, uint32_t slot)
{
    if (K2_PLANTED(MOVED_FORGOTTEN) && c->engines[slot].requests) return;
    move_all(c, slot);
    for (uint32_t i = 0; i < c->config.requests_max; i++)
        if (c->reqs[i].avoid == slot && c->reqs[i].state != REQ_FREE) c->reqs[i].avoid = K2I_PX_NONE;
    k2i_px_engine *e = &c->engines[slot];
    if (e->probing) { /* the slot stays until the probe has answered, so that the answer is not taken for another's */
        e->leaving = true;
        e->state = K2I_PX_DOWN;
    } else {
        memset(e, 0, sizeof *e);
        e->head = K2I_PX_NONE;
    }
}

static uint32_t engine_find(const k2i_px *c, uint64_t id)
{
    for (uint32_t i = 0; i < c->engine_top; i++)
        if (c->engines[i].state != K2I_PX_FREE && !c->engines[i].leaving && c->engines[i].id == id) return i;
    return K2I_PX_NONE;
}

static void engine_update(k2i_px *c, const k2i_px_entry *n)
{
    uint32_t slot = engine_find(c, n->id);
    bool fresh = slot == K2I_PX_NONE;
    for (uint32_t i = 0; fresh && slot == K2I_PX_NONE && i < c->config.engines_max; i++)
        if (c->engines[i].state == K2I_PX_FREE) slot = i;
    if (slot == K2I_PX_NONE || strlen(n->url) >= K2I_PX_URL_MAX) {
        c->stats.engines_dropped++;
        return;
    }
    k2i_px_engine *e = &c->engines[slot];
    if (fresh) {
        c->engine_top = K2_MAX(c->engine_top, slot + 1);
        memset(e, 0, sizeof *e);
        e->head = K2I_PX_NONE;
        e->id = n->id;
        e->incarnation = n->incarnation;
        memcpy(e->url, n->url, strlen(n->url) + 1);
        e->state = n->ready ? K2I_PX_READY : K2I_PX_JOINING;
        e->probe_due_ns = n->ready ? c->now_ns + c->config.health_ns : c->now_ns;
    }
    if (!k2_digest_zero(n->digest) || fresh) {
        e->digest = n->digest;
        e->digest_set_ns = c->now_ns;
    }
    if (n->drain)
        e->state = K2I_PX_DRAINING;
    else if (e->state == K2I_PX_DRAINING)
        e->state = n->ready ? K2I_PX_READY : K2I_PX_JOINING;
}

static void on_engines(k2i_px *c, const k2i_px_event *ev)
{
    /* First who is no longer there (a new incarnation is another engine), then who is. */
    for (uint32_t i = 0; i < c->engine_top; i++) {
        k2i_px_engine *e = &c->engines[i];
        if (e->state == K2I_PX_FREE || e->leaving) continue;
        bool stays = false;
        for (size_t k = 0; k < ev->engines.count && !stays; k++) {
            const k2i_px_entry *n = &ev->engines.entries[k];
            stays = n->id == e->id && n->incarnation == e->incarnation && strcmp(n->url, e->url) == 0;
        }
        if (!stays) forget(c, i);
    }
    for (size_t k = 0; k < ev->engines.count; k++) engine_update(c, &ev->engines.entries[k]);
    c->look = true;
    count_ready(c);
}

static void on_health(k2i_px *c, const k2i_px_event *ev)
{
    K2_ASSERT(ev->engine < c->config.engines_max);
    k2i_px_engine *e = &c->engines[ev->engine];
    K2_ASSERT(e->probing);
    e->probing = false;
    if (e->leaving) {
        memset(e, 0, sizeof *e);
        e->head = K2I_PX_NONE;
        count_ready(c);
        return;
    }
    if (!ev->health.ok) {
        e->probe_fails++;
        if (ev->health.refused || e->probe_fails >= K2I_PX_PROBES_DOWN) {
            down(c, e);
            e->probe_due_ns = c->now_ns + c->config.health_ns;
        }
        if (e->probe_fails >= K2I_PX_PROBES_DEAD) move_all(c, ev->engine);
        return;
    }
    e->probe_fails = e->errors = e->crowd = 0;
    /* What the master said while the probe was under way is newer than the answer. */
    if (ev->health.has_digest && e->digest_set_ns < e->probe_sent_ns) {
        c->look |= !k2_digest_equal(e->digest, ev->health.digest);
        e->digest = ev->health.digest;
        e->version = ev->health.version;
    }
    if (e->state == K2I_PX_JOINING || e->state == K2I_PX_DOWN) state_set(c, e, K2I_PX_READY);
}

static void probe_due(k2i_px *c, k2i_px_outbox *out)
{
    for (uint32_t i = 0; i < c->engine_top; i++) {
        k2i_px_engine *e = &c->engines[i];
        if (e->busy_until_ns && e->busy_until_ns <= c->now_ns) {
            e->busy_until_ns = 0;
            c->look = true;
        }
        if (e->state == K2I_PX_FREE || e->probing || e->leaving || c->now_ns < e->probe_due_ns) continue;
        if (!room(out)) return;
        e->probing = true;
        e->probe_sent_ns = c->now_ns;
        e->probe_due_ns = c->now_ns + c->config.health_ns;
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
    req *r = &c->reqs[i];
    c->free_head = r->next;
    *r = (req){.user = ev->req.user,
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
    queue_put(c, i, false);
    uint32_t slot = pick(c, r);
    if (slot != K2I_PX_NONE) dispatch(c, i, slot, out);
}

static void on_progress(k2i_px *c, const k2i_px_event *ev)
{
    req *r = req_get(c, ev->request);
    uint64_t n = K2_MIN(ev->progress.tokens, r->left);
    r->left -= n;
    if (r->state != REQ_RUNNING) return;
    c->engines[r->engine].load -= n;
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
    case K2I_PX_STALLED: down(c, e); break;
    case K2I_PX_ERROR:
        if (++e->errors >= K2I_PX_ERRORS_DOWN) down(c, e);
        break;
    case K2I_PX_BUSY: e->busy_until_ns = c->now_ns + c->config.busy_ns; break;
    case K2I_PX_WRONG_DIGEST:
        memset(&e->digest, 0, sizeof e->digest); /* until a probe or the master says what it holds */
        e->probe_due_ns = 0;
        break;
    }
}

static void on_failed(k2i_px *c, const k2i_px_event *ev, k2i_px_outbox *out)
{
    uint32_t i = ev->request;
    req *r = req_get(c, i);
    K2_ASSERT(r->state == REQ_RUNNING);
    uint32_t slot = r->engine;
    if (ev->failed.why == K2I_PX_BROKEN) note_broke(c, r, slot);
    blame(c, slot, ev->failed.why);
    engine_take(c, i);
    r->avoid = slot;
    queue_put(c, i, true);
    if (r->give_back) return; /* serve_queue does so */
    bool counts = ev->failed.why != K2I_PX_BUSY && ev->failed.why != K2I_PX_WRONG_DIGEST;
    if (ev->failed.final || (counts && r->sent >= c->config.retries)) {
        c->stats.failed++;
        fail(c, i, 502, 0, ev->failed.final ? "the engine failed in mid-answer" : "every engine that was tried failed", out);
        return;
    }
    r->sent += counts;
    c->stats.retried++;
    /* Waiting out a busy engine or one with other weights is one wait, from when the request came to it. */
    if (counts) r->deadline_ns = c->now_ns + c->config.wait_ns;
    uint32_t other = c->now_ns < r->deadline_ns ? pick(c, r) : K2I_PX_NONE;
    if (other != K2I_PX_NONE) dispatch(c, i, other, out);
}

static void on_done(k2i_px *c, const k2i_px_event *ev)
{
    req *r = req_get(c, ev->request);
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
    c->engines = k2_alloc_array(config->engines_max, sizeof *c->engines);
    c->reqs = k2_alloc_array(config->requests_max, sizeof *c->reqs);
    c->groups = k2_alloc_array(K2I_PX_GROUPS, sizeof *c->groups);
    for (uint32_t i = 0; i < config->engines_max; i++) c->engines[i].head = K2I_PX_NONE;
    for (uint32_t i = 0; i < config->requests_max; i++) c->reqs[i].next = i + 1 < config->requests_max ? i + 1 : K2I_PX_NONE;
    c->queue_head = c->queue_tail = K2I_PX_NONE;
    return c;
}

void k2i_px_free(k2i_px *c)
{
    if (!c) return;
    k2_free(c->engines);
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
    switch (ev->kind) {
    case K2I_PX_TICK: probe_due(c, out); break;
    case K2I_PX_ENGINES: on_engines(c, ev); break;
    case K2I_PX_GATE:
        c->has_gate = !k2_digest_zero(ev->gate.digest);
        c->gate = ev->gate.digest;
        c->gate_version = ev->gate.version;
        c->look = true;
        break;
    case K2I_PX_REQUEST: on_request(c, ev, out); break;
    case K2I_PX_PROGRESS: on_progress(c, ev); break;
    case K2I_PX_DONE: on_done(c, ev); break;
    case K2I_PX_FAILED: on_failed(c, ev, out); break;
    case K2I_PX_CANCEL:
        req_get(c, ev->request);
        c->stats.canceled++;
        req_free(c, ev->request);
        break;
    case K2I_PX_HEALTH: on_health(c, ev); break;
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
    const req *r = &c->reqs[request];
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

void k2i_px_check(const k2i_px *c)
{
    uint64_t outstanding = 0;
    uint32_t running = 0, queued = 0, used = 0, unused = 0;
    for (uint32_t s = 0; s < c->config.engines_max; s++) {
        const k2i_px_engine *e = &c->engines[s];
        uint64_t load = 0;
        uint32_t n = 0;
        for (uint32_t i = e->head; i != K2I_PX_NONE; i = c->reqs[i].next, n++) {
            K2_ASSERT(c->reqs[i].state == REQ_RUNNING && c->reqs[i].engine == s && n <= c->config.requests_max);
            load += cost(&c->reqs[i]);
        }
        K2_ASSERT(load == e->load && n == e->requests && (e->state != K2I_PX_FREE || n == 0));
        outstanding += load;
        running += n;
    }
    for (uint32_t i = c->queue_head; i != K2I_PX_NONE; i = c->reqs[i].next, queued++)
        K2_ASSERT(c->reqs[i].state == REQ_QUEUED && queued <= c->config.requests_max);
    for (uint32_t i = c->free_head; i != K2I_PX_NONE; i = c->reqs[i].next, unused++) K2_ASSERT(c->reqs[i].state == REQ_FREE);
    for (uint32_t i = 0; i < c->config.requests_max; i++) used += c->reqs[i].state != REQ_FREE;
    K2_ASSERT(used == running + queued && used + unused == c->config.requests_max);
    K2_ASSERT(outstanding == c->stats.outstanding && running == c->stats.running && queued == c->stats.queued);
}
