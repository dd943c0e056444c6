/* Poison: only deaths that nobody else can have caused count, an innocent suspect changes nothing, policies decide. */
#include "sim.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void begin(sim *s, const char *policy)
{
    sim_init(s, 5);
    snprintf(s->config.policy_poison, sizeof s->config.policy_poison, "%s", policy);
    sim_start_master(s);
    for (uint32_t n = 0; s->core->phase != K2M_PHASE_GENERATE || s->core->inflight == 0; n++)
        if (n > 100000 || sim_run(s, 1)) fail_msg("the run ended before generation");
}

static void end(sim *s, k2_code code)
{
    if (!sim_run(s, 400000)) fail_msg("the run is stuck");
    assert_int_equal(s->end_code, code);
}

static bool find_running(const sim *s, k2_replay_info *info)
{
    uint64_t group;
    uint32_t size;
    for (uint32_t at = 0; k2_replay_group_next(s->core->replay, 0, &at, &group, &size);)
        for (uint32_t k = 0; k < size; k++)
            if (k2_replay_find(s->core->replay, k2_replay_id(group, k), info) == K2_OK && info->state == K2_REPLAY_RUNNING &&
                !k2m_suspect_held(s->core, info->id))
                return true;
    return false;
}

/* A trajectory that is asked for now. */
static k2_replay_info running(sim *s)
{
    k2_replay_info info;
    for (uint32_t n = 0; s->core->phase != K2M_PHASE_GENERATE || !find_running(s, &info); n++)
        if (n > 100000 || sim_run(s, 1)) fail_msg("nothing is asked for");
    return info;
}

static k2m_worker *rollout(const sim *s)
{
    return &s->core->workers[s->core->first_rollout];
}

static void die_of(sim *s, uint64_t incarnation, int signal, uint64_t oom_kills)
{
    s->workers[s->core->first_rollout].running = false;
    sim_event(s, &(k2m_event){.type = K2M_EV_EXIT,
                              .worker = s->core->first_rollout,
                              .incarnation = incarnation,
                              .signal = signal,
                              .oom_kills = oom_kills});
}

static void die(sim *s, uint64_t incarnation)
{
    die_of(s, incarnation, SIGSEGV, 0);
}

/* The rollout dies and comes back: the incarnation that is gone. */
static uint64_t death_of(sim *s, int signal, uint64_t oom_kills)
{
    uint64_t gone = rollout(s)->incarnation;
    die_of(s, gone, signal, oom_kills);
    for (uint32_t n = 0; rollout(s)->state != K2M_UP; n++)
        if (n > 100000 || sim_run(s, 1)) fail_msg("no rollout comes back");
    return gone;
}

static uint64_t death(sim *s)
{
    return death_of(s, SIGSEGV, 0);
}

static void lose(sim *s, const k2_replay_info *t, const k2m_lost *lost, uint32_t count)
{
    sim_event(s, &(k2m_event){.type = K2M_EV_ANSWER_FAILED,
                              .id = t->id,
                              .position = t->generated,
                              .text = "lost",
                              .lost = lost,
                              .lost_count = count});
}

static k2_digest calm_weights(void)
{
    sim s;
    begin(&s, "drop");
    end(&s, K2_OK);
    k2_digest d = sim_weights(&s);
    sim_fini(&s);
    return d;
}

static void innocents_change_nothing(void **state)
{
    (void)state;
    sim s;
    k2_digest want = calm_weights();
    begin(&s, "drop");
    uint64_t number = s.core->first_rollout + 1;
    k2m_lost lost[2] = {{number, death(&s), false}, {number, death(&s), false}};
    k2_replay_info t = running(&s);
    lose(&s, &t, lost, 2);
    assert_true(k2m_suspect_isolated(s.core, t.id) && s.core->suspects[0].company == 2 && s.core->suspects[0].alone == 0);
    end(&s, K2_OK);
    assert_true(s.core->suspect_count == 0 && s.put_aside == 0 && k2_digest_equal(sim_weights(&s), want));
    sim_fini(&s);
}

static void three_deaths_alone(void **state)
{
    (void)state;
    for (int stop = 0; stop < 2; stop++) {
        sim s;
        begin(&s, stop ? "stop" : "drop");
        uint64_t number = s.core->first_rollout + 1;
        k2m_lost lost[4] = {{number, 999999, true}}; /* a process that never was */
        for (int i = 1; i < 4; i++) lost[i] = (k2m_lost){number, death(&s), true};
        k2_replay_info t = running(&s), info;
        lose(&s, &t, lost, 4);
        assert_int_equal(s.put_aside, 1);
        assert_int_equal(s.core->aside[K2M_ASIDE_POISON], 1);
        for (uint32_t k = 0; k < t.group_size; k++) {
            assert_int_equal(k2_replay_find(s.core->replay, k2_replay_id(t.group, k), &info), K2_OK);
            assert_true((info.state == K2_REPLAY_DROPPED) == !stop);
            if (!stop) assert_non_null(strstr(info.reason, "poison: trajectory"));
        }
        end(&s, stop ? K2_CORRUPT : K2_OK);
        if (stop) assert_non_null(strstr(s.end_text, "policy.poison"));
        if (!stop) assert_int_equal(k2_replay_count(s.core->replay).dropped_total, t.group_size);
        sim_fini(&s);
    }
}

/* The proxy's answer may be faster than the news of the death; and a connection may break without one. */
static void exits_are_awaited(void **state)
{
    (void)state;
    sim s;
    k2m_held_for what;
    begin(&s, "drop");
    k2_replay_info t = running(&s);
    k2m_lost lost = {s.core->first_rollout + 1, rollout(&s)->incarnation, true};
    lose(&s, &t, &lost, 1);
    assert_true(s.core->suspect_count == 1 && s.core->suspects[0].lost_count == 1 && !k2m_suspect_isolated(s.core, t.id));
    assert_true(k2m_suspect_next(s.core, &what) == K2M_SUSPECT_NONE);
    die(&s, lost.incarnation);
    assert_true(s.core->suspects[0].alone == 1 && s.core->suspects[0].lost_count == 0 && k2m_suspect_isolated(s.core, t.id));
    while (rollout(&s)->state != K2M_UP) assert_false(sim_run(&s, 1));
    t = running(&s);
    lost.incarnation = rollout(&s)->incarnation;
    lose(&s, &t, &lost, 1); /* this one does not die */
    end(&s, K2_OK);
    assert_true(s.core->suspect_count == 0 && s.put_aside == 0);
    sim_fini(&s);
}

/* A kill from outside may have nothing to do with what was asked: it takes many in a row to make poison, where of faults, and
 * of the kernel's kills for lack of memory, three are enough. */
static void kills_from_outside_count_less(void **state)
{
    (void)state;
    sim s;
    begin(&s, "drop");
    uint64_t number = s.core->first_rollout + 1;
    k2m_lost lost[3] = {{number, death_of(&s, SIGKILL, 0), true},
                        {number, death_of(&s, SIGTERM, 0), true},
                        {number, death_of(&s, SIGKILL, 0), true}};
    k2_replay_info t = running(&s);
    lose(&s, &t, lost, 3);
    assert_true(s.put_aside == 0 && s.core->suspects[0].killed == 3 && s.core->suspects[0].alone == 0);
    assert_true(k2m_suspect_isolated(s.core, t.id));
    lose(&s, &t, lost, 3); /* it is held: no answer is awaited, and none counts */
    assert_int_equal(s.core->suspects[0].killed, 3);
    for (uint32_t i = 3; i < K2M_POISON_KILLS; i++) k2m_suspect_lost(s.core, t.id, lost, 1);
    assert_true(s.core->aside[K2M_ASIDE_POISON] == 1 && k2_replay_find(s.core->replay, t.id, &t) == K2_OK);
    assert_int_equal(t.state, K2_REPLAY_DROPPED);
    end(&s, K2_OK);
    sim_fini(&s);
    begin(&s, "drop");
    lost[0].incarnation = death_of(&s, SIGKILL, 1);
    t = running(&s);
    lose(&s, &t, lost, 1);
    assert_true(s.core->suspects[0].alone == 1 && k2m_suspect_isolated(s.core, t.id));
    end(&s, K2_OK);
    assert_int_equal(s.put_aside, 0);
    sim_fini(&s);
}

static void skipped_steps_count_once(void **state)
{
    (void)state;
    sim s;
    begin(&s, "drop");
    s.config.policy_max = 2;
    k2m_aside_steps(s.core, false, 3, 1);
    k2m_aside_steps(s.core, false, 3, 1); /* trained again after a death */
    k2m_aside_steps(s.core, true, 10, 1);
    assert_true(s.core->aside[K2M_ASIDE_NAN] == 2 && !s.core->failing);
    k2m_aside_steps(s.core, false, 4, 1);
    assert_true(s.core->failing && s.core->fail_code == K2_LIMIT && strstr(s.core->fail_text, "policy.max"));
    sim_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(innocents_change_nothing), cmocka_unit_test(three_deaths_alone),
                                       cmocka_unit_test(exits_are_awaited), cmocka_unit_test(kills_from_outside_count_less),
                                       cmocka_unit_test(skipped_steps_count_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
