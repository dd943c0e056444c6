/* What is seen from outside: gauges and their rates, the proxy's list of requests, and the chain that is made of both. */
#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "master/io_int.h"

static void gauges_and_rates(void **state)
{
    (void)state;
    k2m_gauges g = {0};
    const k2_wire_metric first[] = {{"running", 3}, {"tokens", 1000}, {"no such gauge", 5}};
    k2m_gauges_take(&g, &(k2_wire_metrics){first, 3}, 5 * K2_NS_PER_S);
    assert_true(g.value[K2M_G_RUNNING] == 3 && g.value[K2M_G_TOKENS] == 1000 && g.tokens_per_s == 0);
    k2_wire_metric next = {"tokens", 1400};
    k2m_gauges_take(&g, &(k2_wire_metrics){&next, 1}, 5 * K2_NS_PER_S + 10 * K2_NS_PER_MS);
    assert_true(g.tokens_per_s == 0); /* too short a stretch */
    k2m_gauges_take(&g, &(k2_wire_metrics){&next, 1}, 7 * K2_NS_PER_S);
    assert_true(g.tokens_per_s == 200);
    next.value = 10; /* a new process counts from 0 */
    k2m_gauges_take(&g, &(k2_wire_metrics){&next, 1}, 9 * K2_NS_PER_S);
    assert_true(g.tokens_per_s == 0 && g.value[K2M_G_RUNNING] == 3);
}

/* The first moment of a phase with answers out. */
static void until_generation(sim *s)
{
    for (uint32_t n = 0; n < 100000 && (s->core->phase != K2M_PHASE_GENERATE || s->core->inflight == 0); n++)
        if (sim_run(s, 1)) fail_msg("the run ended before generation");
    for (uint32_t i = 0; i < s->core->worker_count; i++) {
        s->core->workers[i].owes_poll_ns = 0;
        s->core->workers[i].cmd_type = K2_MSG_NONE;
        s->core->workers[i].state = K2M_UP;
    }
}

static uint64_t running_trajectory(const k2m_core *m)
{
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(m->replay, 0, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++) {
            k2_replay_info info;
            if (k2_replay_find(m->replay, k2_replay_id(group, k), &info) == K2_OK && info.state == K2_REPLAY_RUNNING)
                return info.id;
        }
    fail_msg("no trajectory runs");
    return 0;
}

static void read_list(k2m_core *m, const char *fmt, uint64_t id, uint32_t engine)
{
    char body[1024];
    int n = snprintf(body, sizeof body, fmt, (unsigned long long)id, engine);
    assert_true(k2m_proxy_list_read(m, body, (size_t)n, m->now_ns + K2_NS_PER_S, &m->listed));
}

#define RUNNING                                                                                                                \
    "{\"running\":1,\"queued\":0,\"requests\":[{\"kind\":\"completion\",\"state\":\"running\",\"trajectory\":%llu,\"engine\":" \
    "%u,"                                                                                                                      \
    "\"since_ms\":900,\"heard_ms\":700,\"left_ms\":29300,\"tokens\":3,\"attempts\":1}]}"
#define QUEUED                                                                                                                 \
    "{\"running\":0,\"queued\":1,\"requests\":[{\"kind\":\"completion\",\"state\":\"queued\",\"trajectory\":%llu,\"engine\":"  \
    "null,"                                                                                                                    \
    "\"since_ms\":900,\"heard_ms\":null,\"left_ms\":5000,\"tokens\":0,\"attempts\":2}]}%.0u"
#define SCORE                                                                                                                  \
    "{\"running\":1,\"queued\":0,\"requests\":[{\"kind\":\"score\",\"state\":\"running\",\"trajectory\":null,\"engine\":%2$u," \
    "\"since_ms\":900,\"heard_ms\":null,\"left_ms\":5000,\"tokens\":0,\"attempts\":1}]}"

static const k2m_wait *owned(const k2m_waits *w, const char *owner, const char *what)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (strcmp(w->list[i].owner, owner) == 0 && strstr(w->list[i].what, what)) return &w->list[i];
    fail_msg("no line \"%s\" of %s", what, owner);
    return NULL;
}

/* step > group > trajectory > request at the proxy > the engine's process, each with the time that is left to it. */
static void chain_with_the_engine(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    s.config.rollout_workers = 3;
    sim_start_master(&s);
    until_generation(&s);
    k2m_core *m = s.core;
    k2m_waits w;
    uint64_t now = m->now_ns + K2_NS_PER_S;
    m->phase_since_ns = m->now_ns;
    read_list(m, RUNNING, running_trajectory(m), m->first_rollout + 2);
    k2m_worker *engine = &m->workers[m->first_rollout + 1];
    engine->owes_poll_ns = now - K2_NS_PER_S;
    k2m_core_waits(m, now, &w);
    const k2m_wait *l = owned(&w, "rollout-1", "generates");
    assert_ptr_equal(l, &w.list[w.culprit - 1]);
    assert_true(l->silent_ns == K2_NS_PER_S && l->deadline_ns == engine->lease_ns);
    l = &w.list[l->parent - 1];
    assert_string_equal(l->owner, "proxy-0");
    assert_string_equal(l->what, "request at engine rollout-1: 3 tokens, the last 0.7 s ago");
    assert_true(l->deadline_ns == now + 29300 * K2_NS_PER_MS && l->since_ns == now - 900 * K2_NS_PER_MS);
    assert_non_null(strstr(w.list[l->parent - 1].what, "trajectory"));
    for (uint32_t i = 0; i < w.count; i++) assert_null(strstr(w.list[i].owner, "rollout-2")); /* it has nothing of it */
    /* The proxy has no engine for it. */
    engine->owes_poll_ns = 0;
    read_list(m, QUEUED, running_trajectory(m), 0);
    k2m_core_waits(m, now, &w);
    l = owned(&w, "proxy-0", "request waits in the proxy for an engine (attempt 2)");
    assert_true(l->deadline_ns == now + 5 * K2_NS_PER_S);
    /* What it said long ago is not believed. */
    k2m_core_waits(m, now + K2M_LIST_OLD_NS, &w);
    (void)owned(&w, "proxy-0", "forwards it");
    sim_fini(&s);
}

static void reward_command_is_named(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    sim_start_master(&s);
    until_generation(&s);
    k2m_core *m = s.core;
    k2m_waits w;
    uint64_t now = m->now_ns + K2_NS_PER_S;
    m->phase_since_ns = m->now_ns;
    m->scores_inflight = 1;
    k2m_gauges *g = &m->workers[m->first_rollout].gauges;
    const k2_wire_metric said[] = {{"scores", 4}, {"reward_pid", 4242}, {"reward_seconds", 3}, {"reward_left_seconds", 7}};
    k2m_gauges_take(g, &(k2_wire_metrics){said, 4}, now);
    read_list(m, SCORE, 0, m->first_rollout + 1);
    k2m_core_waits(m, now, &w);
    const k2m_wait *l = owned(&w, "reward-0", "reward command has an answer, 4 are at this engine");
    assert_ptr_equal(l, &w.list[w.culprit - 1]);
    assert_true(l->pid == 4242 && l->deadline_ns == now + 7 * K2_NS_PER_S);
    l = &w.list[l->parent - 1];
    assert_string_equal(l->owner, "rollout-0");
    assert_string_equal(w.list[l->parent - 1].owner, "proxy-0");
    sim_fini(&s);
}

/* Whatever stands at the proxy's address: nothing of it is taken on faith. */
static void lists_that_are_none(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    sim_start_master(&s);
    k2m_core *m = s.core;
    static const char *const bad[] = {"",
                                      "{",
                                      "[]",
                                      "{\"requests\":{}}",
                                      "{\"requests\":[],\"running\":-1,\"queued\":0}",
                                      "{\"requests\":[],\"running\":1e300,\"queued\":0}",
                                      "null"};
    for (size_t i = 0; i < K2_COUNT(bad); i++)
        assert_false(k2m_proxy_list_read(m, bad[i], strlen(bad[i]), K2_NS_PER_S, &m->listed));
    static const char *const odd = /* entries of other clients, of no engine of ours, and broken ones */
        "{\"running\":4,\"queued\":0,\"requests\":[7,{},{\"kind\":\"completion\",\"trajectory\":null},"
        "{\"kind\":\"completion\",\"state\":\"running\",\"trajectory\":\"9223372036854775809\",\"engine\":99,\"since_ms\":1,"
        "\"left_ms\":1,\"tokens\":0,\"attempts\":1}]}";
    assert_true(k2m_proxy_list_read(m, odd, strlen(odd), K2_NS_PER_S, &m->listed));
    assert_int_equal(m->listed.count, 1);
    assert_true(m->listed.list[0].id == (K2M_EVAL_BIT | 1) && m->listed.list[0].worker == K2M_NOBODY);
    k2m_waits w;
    k2m_core_waits(m, 2 * K2_NS_PER_S, &w);
    sim_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gauges_and_rates),
        cmocka_unit_test(chain_with_the_engine),
        cmocka_unit_test(reward_command_is_named),
        cmocka_unit_test(lists_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
