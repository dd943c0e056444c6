/* The proxy's core by events: who is chosen, who waits, who is refused, what becomes of requests when engines fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "proxy/proxy_core_int.h"

#define MS K2_NS_PER_MS

static k2i_px *core;
static k2i_px_outbox out;
static uint64_t now;
static const k2_digest A = {1, 1}, B = {2, 2}, NONE = {0, 0};

static int setup(void **state)
{
    (void)state;
    now = 1000 * MS;
    core = k2i_px_new(&(k2i_px_config){
        .engines_max = 8, .requests_max = 100, .retries = 3, .wait_ns = 1000 * MS, .health_ns = 100 * MS, .busy_ns = 50 * MS});
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    k2i_px_check(core);
    k2i_px_free(core);
    return 0;
}

static void step(k2i_px_event ev)
{
    ev.now_ns = now;
    k2i_px_step(core, &ev, &out);
    k2i_px_check(core);
}

static void tick(uint64_t ms)
{
    now += ms * MS;
    step((k2i_px_event){.kind = K2I_PX_TICK});
}

typedef struct en {
    uint64_t id;
    k2_digest digest;
    bool drain, joining;
    uint64_t incarnation;
} en;

static void engines(const en *list, size_t n)
{
    k2i_px_entry e[8];
    for (size_t i = 0; i < n; i++)
        e[i] = (k2i_px_entry){.id = list[i].id,
                              .incarnation = list[i].incarnation,
                              .url = "http://e",
                              .digest = list[i].digest,
                              .ready = !list[i].joining,
                              .drain = list[i].drain};
    step((k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {e, n}});
}

static uint32_t slot_of(uint64_t id)
{
    for (uint32_t i = 0; i < 8; i++)
        if (k2i_px_engine_at(core, i)->state != K2I_PX_FREE && k2i_px_engine_at(core, i)->id == id) return i;
    return K2I_PX_NONE;
}

static const k2i_px_action *first(k2i_px_action_kind kind)
{
    for (uint32_t i = 0; i < out.count; i++)
        if (out.actions[i].kind == kind) return &out.actions[i];
    return NULL;
}

/* The engine's id that a SEND of this request names; -1 when there is none. */
static int64_t sent_to(uint32_t request)
{
    for (uint32_t i = 0; i < out.count; i++)
        if (out.actions[i].kind == K2I_PX_SEND && out.actions[i].request == request)
            return (int64_t)k2i_px_engine_at(core, out.actions[i].engine)->id;
    return -1;
}

static uint32_t ask(uint64_t prompt, uint64_t max)
{
    step((k2i_px_event){.kind = K2I_PX_REQUEST, .req = {.prompt_tokens = prompt, .max_tokens = max}});
    return out.request;
}

static uint32_t ask_group(uint64_t group)
{
    step((k2i_px_event){.kind = K2I_PX_REQUEST,
                        .req = {.prompt_tokens = 10, .max_tokens = 90, .group = group, .has_group = true}});
    return out.request;
}

static uint32_t ask_train(const k2_digest *digest)
{
    step((k2i_px_event){.kind = K2I_PX_REQUEST,
                        .req = {.prompt_tokens = 1,
                                .max_tokens = 9,
                                .training = true,
                                .has_digest = digest != NULL,
                                .digest = digest ? *digest : NONE}});
    return out.request;
}

static void done(uint32_t r)
{
    step((k2i_px_event){.kind = K2I_PX_DONE, .request = r});
}

static void failed(uint32_t r, k2i_px_why why)
{
    step((k2i_px_event){.kind = K2I_PX_FAILED, .request = r, .failed = {.why = why}});
}

static void gate(k2_digest d)
{
    step((k2i_px_event){.kind = K2I_PX_GATE, .gate = {1, d}});
}

/* Answers the probe that is due. */
static void health(uint64_t id, bool ok, const k2_digest *digest)
{
    uint32_t slot = slot_of(id);
    for (int i = 0; i < 10 && !k2i_px_engine_at(core, slot)->probing; i++) tick(50);
    k2i_px_event ev = {.kind = K2I_PX_HEALTH, .engine = slot, .health = {.ok = ok}};
    if (digest) ev.health.has_digest = true, ev.health.digest = *digest;
    now += MS;
    step(ev);
}

static uint32_t ask_telling(uint32_t broke_max)
{
    step((k2i_px_event){.kind = K2I_PX_REQUEST, .req = {.prompt_tokens = 1, .max_tokens = 9, .broke_max = broke_max}});
    return out.request;
}

/* Engines that are lost under requests: who was in company is told so, whoever hears of it last. */
static void lost_engines_are_told(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .incarnation = 11}}, 1);
    uint32_t suspect = ask_telling(2), other = ask_telling(0);
    failed(suspect, K2I_PX_BROKEN);
    failed(other, K2I_PX_BROKEN);
    assert_null(first(K2I_PX_FAIL));
    engines((en[]){{.id = 1, .incarnation = 12}}, 1); /* the next process: both go there */
    assert_true(sent_to(suspect) == 1 && sent_to(other) == 1);
    done(other);
    engines(NULL, 0); /* the table says that it is gone before its connection does */
    const k2i_px_action *a = first(K2I_PX_FAIL);
    assert_non_null(a);
    assert_true(a->status == 502 && a->request == suspect && a->broke_count == 2);
    assert_true(a->broke[0].engine == 1 && a->broke[0].incarnation == 11 && !a->broke[0].alone);
    assert_true(a->broke[1].incarnation == 12 && a->broke[1].alone);
}

static void lost_engines_are_told_at_the_deadline(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .incarnation = 11}}, 1);
    uint32_t asks = ask_telling(2), plain = ask_telling(0);
    failed(asks, K2I_PX_REFUSED); /* it was never on it */
    failed(plain, K2I_PX_BROKEN);
    engines((en[]){{.id = 1, .incarnation = 12}}, 1);
    failed(asks, K2I_PX_BROKEN);
    engines(NULL, 0);
    tick(2000);
    for (uint32_t i = 0; i < out.count; i++) {
        const k2i_px_action *a = &out.actions[i];
        if (a->kind != K2I_PX_FAIL) continue;
        assert_int_equal(a->status, 503);
        assert_int_equal(a->broke_count, a->request == asks);
    }
    assert_non_null(first(K2I_PX_FAIL));
}

static void least_outstanding_tokens(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}}, 2);
    uint32_t a = ask(100, 400);
    int64_t first_engine = sent_to(a);
    uint32_t b = ask(10, 10);
    assert_int_not_equal(sent_to(b), first_engine);
    uint32_t c = ask(10, 10);
    assert_int_not_equal(sent_to(c), first_engine); /* 40 against 500 */
    step((k2i_px_event){.kind = K2I_PX_PROGRESS, .request = a, .progress = {.tokens = 395}});
    uint32_t d = ask(200, 0);
    assert_int_not_equal(sent_to(d), first_engine); /* 40 against 105 */
    uint32_t e = ask(1, 1);
    assert_int_equal(sent_to(e), first_engine); /* 105 against 240 */
    done(a), done(b), done(c), done(d), done(e);
    k2i_px_stats s;
    k2i_px_stats_get(core, &s);
    assert_true(s.outstanding == 0 && s.running == 0 && s.done == 5);
}

static void equal_engines_take_turns(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}, {.id = 3}}, 3);
    int seen[4] = {0};
    for (int i = 0; i < 9; i++) {
        uint32_t r = ask(5, 5);
        seen[sent_to(r)]++;
        done(r);
    }
    assert_true(seen[1] == 3 && seen[2] == 3 && seen[3] == 3);
}

static void group_stays_while_load_allows(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}}, 2);
    uint32_t r = ask_group(7);
    int64_t home = sent_to(r);
    for (unsigned i = 0; i < K2I_PX_AFFINITY_SLACK; i++) assert_int_equal(sent_to(ask_group(7)), home);
    assert_int_not_equal(sent_to(ask_group(7)), home); /* too far ahead of the other */
    assert_int_not_equal(sent_to(ask_group(7)), home); /* the group lives there now */
}

static void training_needs_the_gate_and_the_digest(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .digest = A}, {.id = 2, .digest = B}, {.id = 3}}, 3);
    uint32_t shut = ask_train(NULL);
    assert_int_equal(sent_to(shut), -1);
    assert_int_equal(sent_to(ask_train(&A)), 1); /* without a gate the named digest alone counts */
    gate(B);
    assert_int_equal(sent_to(shut), 2);
    assert_int_equal(sent_to(ask_train(&B)), 2);
    uint32_t old = ask_train(&A);
    assert_int_equal(sent_to(old), -1); /* not the one in force */
    gate(A);
    assert_int_equal(sent_to(old), 1);
    engines((en[]){{.id = 1, .digest = A}, {.id = 2, .digest = A}, {.id = 3}}, 3);
    assert_int_equal(sent_to(ask_train(NULL)), 2);
    assert_int_equal(sent_to(ask(1, 1)), 3); /* plain ones go anywhere */
    gate(NONE);
    assert_int_equal(sent_to(ask_train(NULL)), -1);
}

static void health_teaches_the_digest(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}}, 1);
    gate(A);
    uint32_t r = ask_train(NULL);
    health(1, true, &B);
    assert_int_equal(sent_to(r), -1);
    health(1, true, &A);
    assert_int_equal(sent_to(r), 1);
    /* What the master says while a probe is under way is newer than the probe's answer. */
    tick(200);
    assert_true(k2i_px_engine_at(core, 0)->probing);
    now += MS;
    engines((en[]){{.id = 1, .digest = B}}, 1);
    health(1, true, &A);
    assert_true(k2_digest_equal(k2i_px_engine_at(core, 0)->digest, B));
}

static void wrong_digest_reroutes(void **state)
{
    (void)state;
    gate(A);
    engines((en[]){{.id = 1, .digest = A}, {.id = 2, .digest = A}}, 2);
    uint32_t r = ask_train(NULL);
    int64_t a = sent_to(r);
    failed(r, K2I_PX_WRONG_DIGEST);
    int64_t b = sent_to(r);
    assert_true(b > 0 && b != a);
    failed(r, K2I_PX_WRONG_DIGEST);
    assert_int_equal(sent_to(r), -1); /* nobody holds it: it waits */
    health((uint64_t)a, true, &A);
    assert_int_equal(sent_to(r), a);
}

static void failure_goes_elsewhere_and_is_bounded(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}}, 2);
    uint32_t r = ask(10, 10);
    int64_t at = sent_to(r);
    for (int i = 0; i < 3; i++) { /* 5xx: neither goes down before the third in a row */
        failed(r, K2I_PX_ERROR);
        int64_t next = sent_to(r);
        assert_true(next > 0 && next != at);
        at = next;
    }
    failed(r, K2I_PX_ERROR);
    assert_non_null(first(K2I_PX_FAIL));
    assert_int_equal(first(K2I_PX_FAIL)->status, 502);
}

static void dead_engine_is_down_until_it_is_healthy(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}}, 1);
    uint32_t r = ask(10, 10);
    failed(r, K2I_PX_BROKEN);
    assert_int_equal(sent_to(r), -1);
    assert_int_equal(k2i_px_engine_at(core, 0)->state, K2I_PX_DOWN);
    tick(1);
    assert_non_null(first(K2I_PX_PROBE)); /* asked at once */
    health(1, false, NULL);
    assert_int_equal(sent_to(r), -1);
    health(1, true, NULL);
    assert_int_equal(sent_to(r), 1);
    done(r);
}

static void failed_probes_take_an_engine_out_and_move_its_requests(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}}, 2);
    uint32_t r = ask(10, 10);
    uint64_t at = (uint64_t)sent_to(r);
    health(at, false, NULL);
    assert_int_equal(k2i_px_engine_at(core, slot_of(at))->state, K2I_PX_READY);
    health(at, false, NULL);
    assert_int_equal(k2i_px_engine_at(core, slot_of(at))->state, K2I_PX_DOWN);
    assert_int_equal(sent_to(r), -1);
    health(at, false, NULL);
    health(at, false, NULL);
    assert_true(sent_to(r) > 0 && sent_to(r) != (int64_t)at);
}

static void busy_engine_is_asked_later(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}}, 1);
    uint32_t r = ask(10, 10);
    failed(r, K2I_PX_BUSY);
    assert_int_equal(sent_to(r), -1);
    tick(20);
    assert_int_equal(sent_to(r), -1);
    tick(40);
    assert_int_equal(sent_to(r), 1);
    for (int i = 0; i < 40 && sent_to(r) == 1; i++) { /* but not for ever */
        failed(r, K2I_PX_BUSY);
        tick(60);
    }
    assert_non_null(first(K2I_PX_FAIL));
    assert_int_equal(first(K2I_PX_FAIL)->status, 503);
    assert_int_equal(first(K2I_PX_FAIL)->retry_after_s, 1);
}

static void waiting_has_a_deadline_and_an_order(void **state)
{
    (void)state;
    uint32_t a = ask(1, 1), b = ask(2, 2);
    tick(500);
    uint32_t c = ask(3, 3);
    tick(501);
    assert_int_equal(out.count, 2);
    assert_true(out.actions[0].request == a && out.actions[1].request == b && out.actions[0].status == 503);
    engines((en[]){{.id = 1}}, 1);
    assert_int_equal(sent_to(c), 1);
}

static void resumed_requests_go_first(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}}, 1);
    uint32_t a = ask(1, 1), b = ask(1, 1);
    engines(NULL, 0);
    const k2i_px_action *hold = first(K2I_PX_HOLD);
    assert_true(out.count == 2 && hold && hold->request == a);
    uint32_t c = ask(1, 1);
    engines((en[]){{.id = 2}}, 1);
    assert_int_equal(out.count, 3);
    assert_true(out.actions[0].request == a && out.actions[1].request == b && out.actions[2].request == c);
}

static void admission_is_capped(void **state)
{
    (void)state;
    uint32_t last = 0;
    for (int i = 0; i < 100; i++) last = ask(1, 1);
    assert_int_equal(ask(1, 1), K2I_PX_NONE);
    assert_non_null(first(K2I_PX_FAIL));
    assert_int_equal(first(K2I_PX_FAIL)->status, 429);
    step((k2i_px_event){.kind = K2I_PX_CANCEL, .request = last});
    assert_int_not_equal(ask(1, 1), K2I_PX_NONE);
    /* More actions than one outbox holds come in several steps. */
    int sent = 0;
    engines((en[]){{.id = 1}}, 1);
    for (;;) {
        for (uint32_t i = 0; i < out.count; i++) sent += out.actions[i].kind == K2I_PX_SEND;
        if (!out.more) break;
        step((k2i_px_event){.kind = K2I_PX_TICK});
    }
    assert_int_equal(sent, 100);
}

static void draining_engine_finishes_and_gets_nothing(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}}, 2);
    uint32_t r = ask(10, 10);
    uint64_t at = (uint64_t)sent_to(r), other = 3 - at;
    engines((en[]){{.id = at, .drain = true}, {.id = other}}, 2);
    assert_int_equal(out.count, 0); /* nothing is moved */
    for (int i = 0; i < 5; i++) assert_int_equal(sent_to(ask(1, 1)), other);
    health(at, true, NULL);
    assert_int_equal(k2i_px_engine_at(core, slot_of(at))->state, K2I_PX_DRAINING);
    done(r);
    engines((en[]){{.id = at}, {.id = other}}, 2);
    assert_int_equal(k2i_px_engine_at(core, slot_of(at))->state, K2I_PX_READY);
}

static void new_incarnation_is_another_engine(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .incarnation = 1, .digest = A}}, 1);
    uint32_t r = ask(10, 10);
    engines((en[]){{.id = 1, .incarnation = 2}}, 1);
    assert_int_equal(sent_to(r), 1);
    const k2i_px_engine *e = k2i_px_engine_at(core, slot_of(1));
    assert_true(e->incarnation == 2 && k2_digest_zero(e->digest) && e->requests == 1);
}

static void engine_that_leaves_during_a_probe_keeps_its_slot(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .joining = true}}, 1);
    tick(0);
    assert_non_null(first(K2I_PX_PROBE));
    uint32_t slot = first(K2I_PX_PROBE)->engine;
    engines((en[]){{.id = 2}}, 1);
    assert_int_not_equal(slot_of(2), slot);
    step((k2i_px_event){.kind = K2I_PX_HEALTH, .engine = slot, .health = {.ok = true}});
    assert_int_equal(k2i_px_engine_at(core, slot)->state, K2I_PX_FREE);
    assert_int_equal(sent_to(ask(1, 1)), 2);
}

static void joining_engine_shows_its_health_first(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .joining = true}}, 1);
    uint32_t r = ask(1, 1);
    assert_int_equal(sent_to(r), -1);
    health(1, true, NULL);
    assert_int_equal(sent_to(r), 1);
}

static void final_failure_is_not_retried(void **state)
{
    (void)state;
    engines((en[]){{.id = 1}, {.id = 2}}, 2);
    uint32_t r = ask(1, 1);
    step((k2i_px_event){.kind = K2I_PX_FAILED, .request = r, .failed = {.why = K2I_PX_BROKEN, .final = true}});
    assert_int_equal(sent_to(r), -1);
    assert_int_equal(first(K2I_PX_FAIL)->status, 502);
}

/* A page says what has changed; who is not in it stays as it is. A table that begins anew is all there is. */
static void a_page_changes_what_it_names(void **state)
{
    (void)state;
    engines((en[]){{.id = 1, .digest = A}, {.id = 2, .digest = A}, {.id = 3, .digest = A}}, 3);
    uint32_t r = ask(1, 1);
    assert_int_equal(sent_to(r), 1);
    const k2i_px_entry page[] = {{.id = 2, .gone = true, .url = ""},
                                 {.id = 9, .gone = true, .url = ""}, /* never known */
                                 {.id = 3, .url = "http://e", .digest = B, .ready = true},
                                 {.id = 4, .url = "http://e", .digest = B, .ready = true}};
    step((k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {page, 4, .page = true}});
    assert_int_equal(slot_of(2), K2I_PX_NONE);
    assert_int_equal(slot_of(9), K2I_PX_NONE);
    assert_true(k2_digest_equal(k2i_px_engine_at(core, slot_of(1))->digest, A));
    assert_true(k2_digest_equal(k2i_px_engine_at(core, slot_of(3))->digest, B));
    assert_int_not_equal(slot_of(4), K2I_PX_NONE);
    assert_int_equal(k2i_px_engine_at(core, slot_of(1))->requests, 1);
    const k2i_px_entry again[] = {{.id = 1, .incarnation = 5, .url = "http://e", .digest = B, .ready = true}};
    step((k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {again, 1, .page = true}});
    assert_int_equal(k2i_px_engine_at(core, slot_of(1))->incarnation, 5);
    assert_int_not_equal(sent_to(r), -1); /* its engine is gone, it was sent again */
    step((k2i_px_event){.kind = K2I_PX_ENGINES, .engines = {again, 1}});
    k2i_px_stats s;
    k2i_px_stats_get(core, &s);
    assert_int_equal(s.engines, 1);
    assert_int_equal(s.engines_dropped, 0);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {CASE(lost_engines_are_told),
                                       CASE(lost_engines_are_told_at_the_deadline),
                                       CASE(least_outstanding_tokens),
                                       CASE(equal_engines_take_turns),
                                       CASE(group_stays_while_load_allows),
                                       CASE(training_needs_the_gate_and_the_digest),
                                       CASE(health_teaches_the_digest),
                                       CASE(wrong_digest_reroutes),
                                       CASE(failure_goes_elsewhere_and_is_bounded),
                                       CASE(dead_engine_is_down_until_it_is_healthy),
                                       CASE(failed_probes_take_an_engine_out_and_move_its_requests),
                                       CASE(busy_engine_is_asked_later),
                                       CASE(waiting_has_a_deadline_and_an_order),
                                       CASE(resumed_requests_go_first),
                                       CASE(admission_is_capped),
                                       CASE(draining_engine_finishes_and_gets_nothing),
                                       CASE(new_incarnation_is_another_engine),
                                       CASE(engine_that_leaves_during_a_probe_keeps_its_slot),
                                       CASE(a_page_changes_what_it_names),
                                       CASE(joining_engine_shows_its_health_first),
                                       CASE(final_failure_is_not_retried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
