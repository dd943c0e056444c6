/* engines: who they are, which of them may serve what, and who does it best. Part of the proxy's pure core. */
#include <string.h>

#include "common/base/planted.h"
#include "proxy/core_state_int.h"

enum { IS_KNOWN = 1u, IS_READY = 2u };

static uint32_t slot_of(const k2i_px *c, const k2i_px_engine *e)
{
    return (uint32_t)(e - c->engines);
}

/* ---- by id ------------------------------------------------------------------------------------------------------------- */

static uint32_t *bucket(const k2i_px *c, uint64_t id)
{
    return &c->buckets[k2_hash64(&id, sizeof id, 0) & c->mask];
}

uint32_t k2i_px_engine_find(const k2i_px *c, uint64_t id)
{
    for (uint32_t i = *bucket(c, id); i != K2I_PX_NONE; i = c->engines[i].same)
        if (c->engines[i].id == id) return i;
    return K2I_PX_NONE;
}

static void id_put(k2i_px *c, uint32_t slot)
{
    uint32_t *head = bucket(c, c->engines[slot].id);
    c->engines[slot].same = *head;
    *head = slot;
}

static void id_drop(k2i_px *c, uint32_t slot)
{
    uint32_t *link = bucket(c, c->engines[slot].id);
    while (*link != slot) link = &c->engines[*link].same;
    *link = c->engines[slot].same;
}

/* ---- places ------------------------------------------------------------------------------------------------------------- */

static void place(k2_least *l, uint32_t slot, bool in, uint64_t major, uint64_t minor)
{
    if (in)
        k2_least_set(l, slot, major, minor);
    else
        k2_least_drop(l, slot);
}

static bool is_open(const k2i_px_engine *e)
{
    return e->state == K2I_PX_READY && !e->leaving && e->busy_until_ns == 0;
}

static bool fits(const k2i_px *c, const k2i_px_engine *e)
{
    return is_open(e) && !k2_digest_zero(e->digest) && k2_digest_equal(e->digest, c->fit_digest);
}

static bool is_probed(const k2i_px_engine *e)
{
    return e->state != K2I_PX_FREE && !e->probing && !e->leaving;
}

static uint32_t census(const k2i_px_engine *e)
{
    return (e->state != K2I_PX_FREE ? IS_KNOWN : 0) | (e->state == K2I_PX_READY ? IS_READY : 0);
}

void k2i_px_engine_touch(k2i_px *c, k2i_px_engine *e)
{
    uint32_t slot = slot_of(c, e), is = census(e);
    c->looks++;
    place(c->open, slot, is_open(e), e->load, e->picked);
    place(c->fit, slot, fits(c, e), e->load, e->picked);
    place(c->probes, slot, is_probed(e), e->probe_due_ns, 0);
    place(c->busy, slot, e->busy_until_ns != 0, e->busy_until_ns, 0);
    c->stats.engines += (is & IS_KNOWN) - (e->census & IS_KNOWN);
    c->stats.ready += (is & IS_READY) / IS_READY - (e->census & IS_READY) / IS_READY;
    e->census = is;
}

void k2i_px_engines_wake(k2i_px *c)
{
    uint32_t i;
    while ((i = k2_least_first(c->busy)) != K2_PLACE_NONE && c->engines[i].busy_until_ns <= c->now_ns) {
        c->engines[i].busy_until_ns = 0;
        k2i_px_engine_touch(c, &c->engines[i]);
        c->look = true;
    }
}

void k2i_px_fit(k2i_px *c, k2_digest digest)
{
    if (k2_digest_equal(digest, c->fit_digest)) return;
    c->fit_digest = digest;
    for (uint32_t i = 0; i < c->engine_top; i++) k2i_px_engine_touch(c, &c->engines[i]);
}

/* ---- choice ------------------------------------------------------------------------------------------------------------ */

static k2i_px_group *group_at(const k2i_px *c, uint64_t group)
{
    return &c->groups[k2_hash64(&group, sizeof group, 0) & (K2I_PX_GROUPS - 1)];
}

void k2i_px_group_remember(k2i_px *c, const k2i_px_req *r, const k2i_px_engine *e)
{
    if (r->has_group) *group_at(c, r->group) = (k2i_px_group){r->group, e->id, e->incarnation, true};
}

/* Those that may serve the request. A training request names its weights or takes those of the gate; where a gate is in force
 * both must agree. Without a gate whoever asks for other weights than the one before pays a look at every engine. */
static const k2_least *may_serve(k2i_px *c, const k2i_px_req *r)
{
    if (!r->training || K2_PLANTED(ROUTED_ANYWHERE)) return c->open;
    if (!r->has_digest && !c->has_gate) return NULL;
    k2_digest need = r->has_digest ? r->digest : c->gate;
    if (k2_digest_zero(need) || (c->has_gate && !k2_digest_equal(need, c->gate))) return NULL;
    k2i_px_fit(c, need);
    return c->fit;
}

static bool among(const k2_least *l, uint32_t slot)
{
    return slot != K2I_PX_NONE && k2_least_major(l, slot) != UINT64_MAX;
}

/* The engine that has the request's group, where that one may serve it. */
static uint32_t home_of(const k2i_px *c, const k2i_px_req *r, const k2_least *from, uint32_t avoid)
{
    const k2i_px_group *home = group_at(c, r->group);
    if (!r->has_group || !home->used || home->group != r->group) return K2I_PX_NONE;
    uint32_t slot = k2i_px_engine_find(c, home->engine_id);
    bool it = among(from, slot) && slot != avoid && c->engines[slot].incarnation == home->incarnation;
    return it ? slot : K2I_PX_NONE;
}

/* Less load first; then the one that was picked longest ago, so that equal engines take turns. Who failed it last comes only
 * where there is no other, who has its group where that is not too much the worse. */
uint32_t k2i_px_pick(k2i_px *c, const k2i_px_req *r)
{
    const k2_least *from = may_serve(c, r);
    c->looks++;
    if (!from) return K2I_PX_NONE;
    bool avoids = r->avoid != K2I_PX_NONE && c->engines[r->avoid].life == r->avoid_life;
    uint32_t avoid = avoids ? r->avoid : K2I_PX_NONE;
    uint32_t best = avoids ? k2_least_first_but(from, avoid) : k2_least_first(from);
    if (best == K2_PLACE_NONE) return among(from, avoid) ? avoid : K2I_PX_NONE;
    uint32_t home = home_of(c, r, from, avoid);
    if (home == K2I_PX_NONE) return best;
    uint64_t limit = K2I_PX_AFFINITY_FACTOR * c->engines[best].load + K2I_PX_AFFINITY_SLACK * k2i_px_cost(r);
    return c->engines[home].load <= limit ? home : best;
}

/* ---- coming and going ------------------------------------------------------------------------------------------------------
 */

void k2i_px_down(k2i_px *c, k2i_px_engine *e)
{
    if (e->state == K2I_PX_READY || e->state == K2I_PX_JOINING) e->state = K2I_PX_DOWN;
    e->probe_due_ns = 0; /* ask at once: it may have been the connection only */
    k2i_px_engine_touch(c, e);
}

static void slot_clear(k2i_px *c, k2i_px_engine *e)
{
    *e = (k2i_px_engine){.head = K2I_PX_NONE, .census = e->census, .life = e->life};
    k2i_px_engine_touch(c, e);
    k2_set_put(c->free_slots, slot_of(c, e), true);
}

static void forget(k2i_px *c, uint32_t slot)
{
    k2i_px_move_all(c, slot);
    k2i_px_engine *e = &c->engines[slot];
    id_drop(c, slot);
    e->life++;
    if (!e->probing) {
        slot_clear(c, e);
        return;
    }
    /* The slot stays until the probe has answered, so that the answer is not taken for another's. */
    e->leaving = true;
    e->state = K2I_PX_DOWN;
    k2i_px_engine_touch(c, e);
}

static k2i_px_engine *engine_new(k2i_px *c, const k2i_px_entry *n)
{
    uint32_t slot = k2_set_next(c->free_slots, 0);
    if (slot == K2_PLACE_NONE || strlen(n->url) >= K2I_PX_URL_MAX) {
        c->stats.engines_dropped++;
        return NULL;
    }
    k2_set_put(c->free_slots, slot, false);
    c->engine_top = K2_MAX(c->engine_top, slot + 1);
    k2i_px_engine *e = &c->engines[slot];
    e->id = n->id;
    e->incarnation = n->incarnation;
    memcpy(e->url, n->url, strlen(n->url) + 1);
    e->state = n->ready ? K2I_PX_READY : K2I_PX_JOINING;
    e->probe_due_ns = n->ready ? c->now_ns + c->config.health_ns : c->now_ns;
    id_put(c, slot);
    return e;
}

static void engine_update(k2i_px *c, const k2i_px_entry *n)
{
    uint32_t slot = k2i_px_engine_find(c, n->id);
    bool fresh = slot == K2I_PX_NONE;
    k2i_px_engine *e = fresh ? engine_new(c, n) : &c->engines[slot];
    if (!e) return;
    if (!k2_digest_zero(n->digest) || fresh) {
        e->digest = n->digest;
        e->digest_set_ns = c->now_ns;
    }
    if (n->drain)
        e->state = K2I_PX_DRAINING;
    else if (e->state == K2I_PX_DRAINING)
        e->state = n->ready ? K2I_PX_READY : K2I_PX_JOINING;
    k2i_px_engine_touch(c, e);
}

/* First who is no longer there (a new incarnation is another engine), then who is. */
void k2i_px_on_engines(k2i_px *c, const k2i_px_event *ev)
{
    const k2i_px_entry *list = ev->engines.entries;
    c->tables++;
    for (size_t k = 0; k < ev->engines.count; k++) {
        uint32_t slot = k2i_px_engine_find(c, list[k].id);
        if (slot == K2I_PX_NONE) continue;
        k2i_px_engine *e = &c->engines[slot];
        if (!list[k].gone && list[k].incarnation == e->incarnation && strcmp(list[k].url, e->url) == 0)
            e->told = c->tables;
        else
            forget(c, slot);
    }
    for (uint32_t i = 0; i < c->engine_top && !ev->engines.page; i++, c->looks++) {
        const k2i_px_engine *e = &c->engines[i];
        if (e->state != K2I_PX_FREE && !e->leaving && e->told != c->tables) forget(c, i);
    }
    for (size_t k = 0; k < ev->engines.count; k++)
        if (!list[k].gone) engine_update(c, &list[k]);
    c->look = true;
}

void k2i_px_on_health(k2i_px *c, const k2i_px_event *ev)
{
    K2_ASSERT(ev->engine < c->config.engines_max);
    k2i_px_engine *e = &c->engines[ev->engine];
    K2_ASSERT(e->probing);
    e->probing = false;
    if (e->leaving) {
        slot_clear(c, e);
        return;
    }
    if (!ev->health.ok) {
        e->probe_fails++;
        if (ev->health.refused || e->probe_fails >= K2I_PX_PROBES_DOWN) {
            k2i_px_down(c, e);
            e->probe_due_ns = c->now_ns + c->config.health_ns;
        }
        if (e->probe_fails >= K2I_PX_PROBES_DEAD) k2i_px_move_all(c, ev->engine);
        k2i_px_engine_touch(c, e);
        return;
    }
    e->probe_fails = e->errors = e->crowd = 0;
    /* What the master said while the probe was under way is newer than the answer. */
    if (ev->health.has_digest && e->digest_set_ns < e->probe_sent_ns) {
        c->look |= !k2_digest_equal(e->digest, ev->health.digest);
        e->digest = ev->health.digest;
        e->version = ev->health.version;
    }
    if (e->state == K2I_PX_JOINING || e->state == K2I_PX_DOWN) {
        e->state = K2I_PX_READY;
        c->look = true;
    }
    k2i_px_engine_touch(c, e);
}

/* ---- life ------------------------------------------------------------------------------------------------------------------
 */

void k2i_px_engines_new(k2i_px *c)
{
    uint32_t n = c->config.engines_max;
    for (c->mask = 1; c->mask < n; c->mask = c->mask * 2 + 1) {
    }
    c->buckets = k2_alloc_array(c->mask + 1u, sizeof *c->buckets);
    for (uint32_t i = 0; i <= c->mask; i++) c->buckets[i] = K2I_PX_NONE;
    c->engines = k2_alloc_array(n, sizeof *c->engines);
    c->free_slots = k2_set_new(n);
    c->open = k2_least_new(n);
    c->fit = k2_least_new(n);
    c->probes = k2_least_new(n);
    c->busy = k2_least_new(n);
    for (uint32_t i = 0; i < n; i++) {
        c->engines[i].head = K2I_PX_NONE;
        k2_set_put(c->free_slots, i, true);
    }
}

void k2i_px_engines_free(k2i_px *c)
{
    k2_least *all[] = {c->open, c->fit, c->probes, c->busy};
    for (size_t i = 0; i < K2_COUNT(all); i++) k2_least_free(all[i]);
    k2_set_free(c->free_slots);
    k2_free(c->engines);
    k2_free(c->buckets);
}

void k2i_px_engines_check(const k2i_px *c)
{
    uint32_t known = 0, ready = 0, free_slots = 0;
    for (uint32_t i = 0; i < c->config.engines_max; i++) {
        const k2i_px_engine *e = &c->engines[i];
        known += e->state != K2I_PX_FREE;
        ready += e->state == K2I_PX_READY;
        free_slots += e->state == K2I_PX_FREE;
        K2_ASSERT(k2_least_major(c->open, i) == (is_open(e) ? e->load : UINT64_MAX));
        K2_ASSERT(k2_least_major(c->fit, i) == (fits(c, e) ? e->load : UINT64_MAX));
        K2_ASSERT(k2_least_major(c->probes, i) == (is_probed(e) ? e->probe_due_ns : UINT64_MAX));
        K2_ASSERT(k2_least_major(c->busy, i) == (e->busy_until_ns ? e->busy_until_ns : UINT64_MAX));
        K2_ASSERT(k2_set_has(c->free_slots, i) == (e->state == K2I_PX_FREE));
        if (e->state != K2I_PX_FREE && !e->leaving) K2_ASSERT(k2i_px_engine_find(c, e->id) == i);
    }
    K2_ASSERT(known == c->stats.engines && ready == c->stats.ready && k2_set_count(c->free_slots) == free_slots);
    K2_ASSERT(!c->has_gate || k2_digest_equal(c->gate, c->fit_digest));
}
