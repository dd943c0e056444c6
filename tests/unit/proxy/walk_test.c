/* A random walk through the core with a model of the outside beside it: engines that come, go, change weights, fail in every
 * way; clients that ask, leave; probes that answer late. What must hold at every step:
 *   - a request is at one place only, and ends exactly once (DONE, CANCEL or FAIL);
 *   - a training request is sent only to an engine whose digest, as last told, is the one it needs, with the gate in force;
 *   - nothing is sent to an engine that is draining, down or unknown;
 *   - when all have ended, no token is outstanding.
 * A failure prints the seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "proxy/proxy_core_int.h"

enum { REQUESTS = 60, ENGINES = 6, STEPS = 20000, SEEDS = 30 };

typedef enum where { NOWHERE, WAITING, AT_ENGINE } where;

typedef struct model_req {
    where where;
    uint32_t slot, id;
    bool training, has_digest;
    k2_digest digest;
} model_req;

typedef struct model {
    k2i_px *core;
    k2i_px_outbox out;
    uint64_t seed, draws, now, ended, asked, failed;
    model_req reqs[REQUESTS + 1];
    k2i_px_entry entries[ENGINES];
    size_t entry_count;
    uint64_t incarnation;
    bool probing[2 * ENGINES];
    k2_digest gate;
} model;

static uint64_t draw(model *m, uint64_t n)
{
    return k2_rand_below(m->seed, K2_STREAM_TEST, m->draws++, 0, n);
}

static k2_digest some_digest(model *m)
{
    return (k2_digest){draw(m, 3), 0}; /* zero among them */
}

static void check_send(model *m, const model_req *r, uint32_t slot)
{
    const k2i_px_engine *e = k2i_px_engine_at(m->core, slot);
    assert_int_equal(e->state, K2I_PX_READY);
    assert_false(e->leaving);
    if (!r->training) return;
    k2_digest need = r->has_digest ? r->digest : m->gate;
    assert_false(k2_digest_zero(need));
    assert_true(k2_digest_equal(e->digest, need));
    if (!k2_digest_zero(m->gate)) assert_true(k2_digest_equal(need, m->gate));
}

static void carry_out(model *m)
{
    for (uint32_t i = 0; i < m->out.count; i++) {
        const k2i_px_action *a = &m->out.actions[i];
        if (a->kind == K2I_PX_PROBE) {
            assert_false(m->probing[a->engine]);
            m->probing[a->engine] = true;
            continue;
        }
        if (a->kind == K2I_PX_FAIL && a->request == K2I_PX_NONE) {
            assert_int_equal(a->status, 429);
            continue;
        }
        model_req *r = a->user;
        assert_int_not_equal(r->where, NOWHERE);
        if (r->id != K2I_PX_NONE) assert_int_equal(r->id, a->request);
        r->id = a->request;
        if (a->kind == K2I_PX_SEND) {
            check_send(m, r, a->engine);
            r->where = AT_ENGINE;
            r->slot = a->engine;
        } else if (a->kind == K2I_PX_HOLD) {
            assert_int_equal(r->where, AT_ENGINE);
            r->where = WAITING;
        } else {
            r->where = NOWHERE;
            m->ended++;
            m->failed++;
        }
    }
}

static void step(model *m, k2i_px_event ev)
{
    ev.now_ns = m->now;
    k2i_px_step(m->core, &ev, &m->out);
    k2i_px_check(m->core);
    if (ev.kind == K2I_PX_REQUEST) {
        model_req *r = ev.req.user;
        r->id = m->out.request;
        if (r->id == K2I_PX_NONE) r->where = NOWHERE, m->asked--;
    }
    carry_out(m);
    while (m->out.more) {
        k2i_px_event more = {.kind = K2I_PX_TICK, .now_ns = m->now};
        k2i_px_step(m->core, &more, &m->out);
        k2i_px_check(m->core);
        carry_out(m);
    }
}

static void new_request(model *m)
{
    model_req *r = NULL;
    for (int i = 0; i < REQUESTS && !r; i++)
        if (m->reqs[i].where == NOWHERE) r = &m->reqs[i];
    if (!r) return;
    *r = (model_req){.where = WAITING, .id = K2I_PX_NONE, .training = draw(m, 2), .digest = some_digest(m)};
    r->has_digest = r->training && draw(m, 2) && !k2_digest_zero(r->digest);
    m->asked++;
    step(m, (k2i_px_event){.kind = K2I_PX_REQUEST,
                           .req = {.user = r,
                                   .prompt_tokens = draw(m, 100),
                                   .max_tokens = draw(m, 1000),
                                   .group = draw(m, 5),
                                   .has_group = draw(m, 2),
                                   .training = r->training,
                                   .has_digest = r->has_digest,
                                   .digest = r->digest}});
}

static void some_request(model *m)
{
    model_req *r = &m->reqs[draw(m, REQUESTS)];
    if (r->where == NOWHERE) return;
    uint64_t what = draw(m, 10);
    if (what == 0) {
        uint32_t id = r->id;
        r->where = NOWHERE;
        m->ended++;
        step(m, (k2i_px_event){.kind = K2I_PX_CANCEL, .request = id});
    } else if (r->where != AT_ENGINE) {
        return;
    } else if (what < 5) {
        step(m, (k2i_px_event){.kind = K2I_PX_PROGRESS, .request = r->id, .progress = {draw(m, 200)}});
    } else if (what < 8) {
        uint32_t id = r->id;
        r->where = NOWHERE;
        m->ended++;
        step(m, (k2i_px_event){.kind = K2I_PX_DONE, .request = id});
    } else {
        r->where = WAITING;
        step(m, (k2i_px_event){.kind = K2I_PX_FAILED, .request = r->id, .failed = {(k2i_px_why)draw(m, 6), draw(m, 10) == 0}});
    }
}

static void change_engines(model *m)
{
    uint64_t what = draw(m, 4);
    if (what == 0 && m->entry_count < ENGINES)
        m->entries[m->entry_count++] = (k2i_px_entry){.id = draw(m, 1000),
                                                      .incarnation = ++m->incarnation,
                                                      .url = "http://e",
                                                      .digest = some_digest(m),
                                                      .ready = draw(m, 2)};
    if (m->entry_count > 0 && what > 0) {
        k2i_px_entry *e = &m->entries[draw(m, m->entry_count)];
        if (what == 1 && draw(m, 2)) *e = m->entries[--m->entry_count];
        if (what == 2) e->digest = some_digest(m);
        if (what == 3) e->drain = draw(m, 4) == 0;
    }
    for (size_t i = 0; i < m->entry_count; i++)
        for (size_t k = 0; k < i; k++)
            if (m->entries[i].id == m->entries[k].id) m->entries[i].id += 1000;
    step(m, (k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {m->entries, m->entry_count}});
}

static void some_probe(model *m)
{
    uint32_t slot = (uint32_t)draw(m, 2 * ENGINES);
    if (!m->probing[slot]) return;
    m->probing[slot] = false;
    step(m, (k2i_px_event){
                .kind = K2I_PX_HEALTH,
                .engine = slot,
                .health = {.ok = draw(m, 4), .refused = draw(m, 4) == 0, .has_digest = draw(m, 2), .digest = some_digest(m)}});
}

static void walk(uint64_t seed)
{
    static model m;
    memset(&m, 0, sizeof m);
    m.seed = seed;
    m.core = k2i_px_new(&(k2i_px_config){.engines_max = 2 * ENGINES,
                                         .requests_max = REQUESTS - 5,
                                         .retries = 3,
                                         .wait_ns = 2000,
                                         .health_ns = 300,
                                         .busy_ns = 100});
    for (int i = 0; i < STEPS; i++) {
        m.now += draw(&m, 20);
        uint64_t what = draw(&m, 100);
        if (what < 30)
            new_request(&m);
        else if (what < 75)
            some_request(&m);
        else if (what < 80)
            change_engines(&m);
        else if (what < 90)
            some_probe(&m);
        else if (what < 92) {
            m.gate = some_digest(&m);
            step(&m, (k2i_px_event){.kind = K2I_PX_GATE, .gate = {1, m.gate}});
        } else
            step(&m, (k2i_px_event){.kind = K2I_PX_TICK});
    }
    /* The end: nobody answers any more, and all deadlines pass. */
    for (int i = 0; i < REQUESTS; i++)
        if (m.reqs[i].where == AT_ENGINE) {
            m.reqs[i].where = NOWHERE;
            m.ended++;
            step(&m, (k2i_px_event){.kind = K2I_PX_DONE, .request = m.reqs[i].id});
        }
    step(&m, (k2i_px_event){.kind = K2I_PX_ENGINES});
    m.now += 10000;
    step(&m, (k2i_px_event){.kind = K2I_PX_TICK});
    k2i_px_stats s;
    k2i_px_stats_get(m.core, &s);
    assert_true(s.outstanding == 0 && s.running == 0 && s.queued == 0);
    assert_true(m.asked == m.ended && s.admitted == m.asked && m.asked > 1000 && m.failed > 0 && s.moved > 0 && s.retried > 0);
    k2i_px_free(m.core);
}

static void walks(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        printf("seed %llu\n", (unsigned long long)seed);
        walk(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(walks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
