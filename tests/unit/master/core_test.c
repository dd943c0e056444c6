/* The master's core in a simulated fleet: whatever dies, is lost, repeated or late, the same batches are trained in the same
 * order. */
#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LONG 400000u /* events after which a run counts as stuck */

static void run_to_end(sim *s)
{
    sim_start_master(s);
    if (!sim_run(s, LONG)) {
        char owes[K2M_TEXT_MAX];
        k2m_core_owes(s->core, owes, sizeof owes);
        fail_msg("seed %llu is stuck: %s; iteration %llu, last log: %s", (unsigned long long)s->seed, owes,
                 (unsigned long long)s->core->iteration, s->last_log);
    }
    if (s->end_code != K2_OK) fail_msg("seed %llu: %s", (unsigned long long)s->seed, s->end_text);
}

static k2_digest calm_weights(void)
{
    sim s;
    sim_init(&s, 1);
    run_to_end(&s);
    k2_digest d = sim_weights(&s);
    sim_fini(&s);
    return d;
}

static void expect_same(sim *s, k2_digest want)
{
    k2_digest got = sim_weights(s);
    if (!k2_digest_equal(got, want))
        fail_msg("seed %llu: other weights (%u deaths, %u masters)", (unsigned long long)s->seed, s->deaths, s->masters);
    assert_int_equal(s->core->iteration, 9);
    k2_replay_counts n = k2_replay_count(s->core->replay);
    assert_int_equal(n.running, 0);
    assert_true(n.cut_total > 0 && n.resumed_total > 0);
}

static void calm_run(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 1);
    run_to_end(&s);
    assert_int_equal(s.core->iteration, 9);
    assert_true(s.core->evaluated_before && s.core->finished);
    assert_int_equal(s.core->before_total, 4);
    assert_int_equal(s.reports[K2M_REPORT_EVAL], 4); /* before, after 4 and 8, at the end */
    assert_int_equal(s.reports[K2M_REPORT_PRETRAIN], 3);
    assert_int_equal(s.reports[K2M_REPORT_ITERATION], 9);
    assert_int_equal(s.latest, 25 + k2_replay_count(s.core->replay).step_consumed); /* all steps, pretraining's too */
    expect_same(&s, calm_weights());
    for (uint32_t i = 0; i < s.core->worker_count; i++) assert_int_equal(s.core->workers[i].state, K2M_ENDED);
    sim_fini(&s);
}

/* Neither the order of answers nor the number of workers nor the requests in flight show in the weights. */
static void arrangement_does_not_matter(void **state)
{
    (void)state;
    k2_digest want = calm_weights();
    for (uint64_t seed = 2; seed < 12; seed++) {
        sim s;
        sim_init(&s, seed);
        s.config.trainer_ranks = 1 + seed % 2;
        s.config.rollout_workers = 1 + seed % 5;
        s.config.master_inflight_max = 1 + seed * 3;
        s.config.run_checkpoint_every = 1 + seed % 4;
        s.config.run_eval_every = seed % 3;
        run_to_end(&s);
        expect_same(&s, want);
        sim_fini(&s);
    }
}

static void faults_do_not_matter(void **state)
{
    (void)state;
    k2_digest want = calm_weights();
    static const sim_faults kinds[] = {
        {.kill_rollout = 300},
        {.kill_proxy = 400},
        {.kill_trainer = 400},
        {.silence = 2000},
        {.lose_answer = 5, .lose_score = 5},
        {.repeat = 3},
        {.fail_command = 40},
        {.kill_master = 400},
        {.kill_rollout = 700,
         .kill_proxy = 1500,
         .kill_trainer = 900,
         .silence = 6000,
         .lose_answer = 30,
         .lose_score = 30,
         .repeat = 10,
         .fail_command = 60,
         .kill_master = 900},
    };
    for (uint64_t k = 0; k < K2_COUNT(kinds); k++) {
        uint32_t happened = 0;
        for (uint64_t seed = 100 * (k + 1); seed < 100 * (k + 1) + 90; seed++) {
            sim s;
            sim_init(&s, seed);
            s.config.master_lease_ms = 1000;
            s.faults = kinds[k];
            run_to_end(&s);
            expect_same(&s, want);
            happened += s.deaths + (uint32_t)s.core->retried;
            sim_fini(&s);
        }
        if (!kinds[k].repeat && !kinds[k].silence && !kinds[k].fail_command) assert_true(happened > 10);
    }
}

/* Going back and training the same steps again is no success: the run does not go round for ever. */
static void a_checkpoint_that_can_never_be_saved_ends_the_run(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    sim_start_master(&s);
    while (s.core->iteration < 1) assert_false(sim_run(&s, 1));
    s.faults.fail_save = 1;
    assert_true(sim_run(&s, LONG));
    assert_int_not_equal(s.end_code, K2_OK);
    assert_non_null(strstr(s.end_text, "in phase save"));
    sim_fini(&s);
}

/* Nor is it one that the steps before it go well each time. */
static void a_step_that_can_never_be_trained_ends_the_run(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    s.config.run_checkpoint_every = 1000;
    sim_start_master(&s);
    s.faults.fail_step = 3;
    assert_true(sim_run(&s, LONG));
    assert_int_not_equal(s.end_code, K2_OK);
    assert_non_null(strstr(s.end_text, "in phase train"));
    assert_true(s.core->trainer_step == 2 && s.core->checkpoint.step == 0);
    sim_fini(&s);
}

/* Rewards that always fail drop their trajectories, in every arrangement the same ones. */
static void failing_rewards_drop(void **state)
{
    (void)state;
    k2_digest want = {0, 0};
    for (uint64_t seed = 1; seed < 4; seed++) {
        sim s;
        sim_init(&s, seed);
        s.faults.bad_reward = 3;
        run_to_end(&s);
        assert_true(k2_replay_count(s.core->replay).dropped_total > 5);
        if (seed == 1) want = sim_weights(&s);
        expect_same(&s, want);
        sim_fini(&s);
    }
}

/* What fails every time is not asked for without end: the run gives up and says what it met. */
static void what_never_works_ends_the_run(void **state)
{
    (void)state;
    static const struct {
        sim_faults faults;
        k2_code code;
        const char *text;
    } cases[] = {
        {{.lose_answer = 1}, K2_TIMEOUT, "lost"},
        {{.lose_score = 1}, K2_TIMEOUT, "lost"},
        {{.other_weights = 1}, K2_TIMEOUT, "other weights than those in force"},
        {{.no_tokens = 1}, K2_TIMEOUT, "the answer ends at token"},
        {{.refuse = 1}, K2_BAD_INPUT, "refused, the last 8 in a row: no room"},
        {{.bad_reward = 1}, K2_BAD_INPUT, "could be rewarded"},
    };
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        sim s;
        sim_init(&s, 60 + i);
        s.config.master_step_timeout_ms = 20000;
        s.config.eval_prompts = 0;
        s.config.rollout_groups = 20;
        s.faults = cases[i].faults;
        sim_start_master(&s);
        if (!sim_run(&s, LONG)) fail_msg("case %zu is stuck: %s", i, s.last_log);
        assert_int_equal(s.end_code, cases[i].code);
        if (!strstr(s.end_text, cases[i].text)) fail_msg("case %zu: \"%s\" does not say \"%s\"", i, s.end_text, cases[i].text);
        sim_fini(&s);
    }
    k2_digest want = calm_weights(); /* what fails now and then only costs time */
    for (uint64_t seed = 70; seed < 90; seed++) {
        sim s;
        sim_init(&s, seed);
        s.faults = (sim_faults){.refuse = 8, .other_weights = 8, .no_tokens = 8};
        run_to_end(&s);
        expect_same(&s, want);
        sim_fini(&s);
    }
}

static void drain_and_go_on(void **state)
{
    (void)state;
    k2_digest want = calm_weights();
    for (uint32_t at = 1; at < 9; at++) {
        sim s;
        sim_init(&s, 50 + at);
        s.stop_at_iteration = at;
        run_to_end(&s);
        assert_in_range(s.core->iteration, at, at + 1);
        assert_true(s.core->checkpoint.iteration == s.core->iteration); /* saved */
        s.ended = false;
        s.stop_at_iteration = 0;
        run_to_end(&s);
        expect_same(&s, want);
        sim_fini(&s);
    }
}

static void second_stop_ends_at_once(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 3);
    sim_start_master(&s);
    while (s.core->iteration < 2) sim_run(&s, 1);
    sim_event(&s, &(k2m_event){.type = K2M_EV_STOP});
    assert_false(s.ended);
    sim_event(&s, &(k2m_event){.type = K2M_EV_STOP});
    assert_true(sim_run(&s, 1000));
    assert_int_equal(s.end_code, K2_CANCELED);
    s.ended = false;
    run_to_end(&s);
    expect_same(&s, calm_weights());
    sim_fini(&s);
}

static void pretraining_alone(void **state)
{
    (void)state;
    k2_digest want = {0, 0};
    for (uint64_t seed = 1; seed < 8; seed++) {
        sim s;
        sim_init(&s, seed);
        strcpy(s.config.mode, "pretrain");
        s.config.pretrain_steps = 95;
        if (seed > 1) s.faults = (sim_faults){.kill_trainer = 60, .kill_master = 90};
        run_to_end(&s);
        assert_int_equal(s.core->worker_count, 2);
        assert_int_equal(s.latest, 95);
        assert_int_equal(s.checkpoints[95].pretrain, 95);
        if (seed == 1) want = s.checkpoints[95].digest;
        assert_true(k2_digest_equal(s.checkpoints[95].digest, want));
        assert_true(k2_digest_equal(sim_weights(&s), want));
        sim_fini(&s);
    }
}

static void sync_mode_never_cuts(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 4);
    strcpy(s.config.mode, "sync");
    run_to_end(&s);
    assert_int_equal(k2_replay_count(s.core->replay).cut_total, 0);
    assert_int_equal(k2_replay_count(s.core->replay).consumed_total, 9 * 5 * 3);
    sim_fini(&s);
}

/* A journal that fills up asks for a checkpoint before its time. */
static void a_full_journal_is_made_room_in(void **state)
{
    (void)state;
    for (int pressed = 0; pressed < 2; pressed++) {
        sim s;
        sim_init(&s, 10);
        s.config.run_checkpoint_every = 1000;
        sim_start_master(&s);
        while (s.core->iteration < 3) assert_false(sim_run(&s, 1));
        uint64_t saves = s.reports[K2M_REPORT_SAVE];
        s.core->journal_pressed = pressed;
        while (s.core->iteration < 5) assert_false(sim_run(&s, 1));
        assert_int_equal(s.reports[K2M_REPORT_SAVE] > saves, pressed);
        sim_fini(&s);
    }
}

static void old_incarnations_are_fenced(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 5);
    sim_start_master(&s);
    while (s.core->iteration < 1) sim_run(&s, 1);
    uint64_t old = s.core->workers[2].incarnation;
    assert_true(k2m_core_current(s.core, 3, old));
    assert_false(k2m_core_current(s.core, 3, old + 1));
    assert_false(k2m_core_current(s.core, 0, old));
    assert_false(k2m_core_current(s.core, 99, old));
    s.workers[2].silent_until_ns = UINT64_MAX; /* it hangs: its lease runs out */
    while (s.core->workers[2].incarnation == old || s.core->workers[2].state != K2M_UP) assert_false(sim_run(&s, 1));
    assert_false(k2m_core_current(s.core, 3, old));
    k2_msg m = {.type = K2_MSG_HELLO, .hello = {.role = "rollout", .index = 0, .nonce = old, .endpoint = ""}};
    const k2m_outbox *out = k2m_core_step(s.core, &(k2m_event){.type = K2M_EV_HELLO, .msg = &m, .now_ns = s.now_ns});
    assert_true(out->count >= 1 && out->list[0].type == K2M_ACT_REFUSE && out->list[0].code == K2_FENCED);
    m.hello.role = "poet";
    out = k2m_core_step(s.core, &(k2m_event){.type = K2M_EV_HELLO, .msg = &m, .now_ns = s.now_ns});
    assert_true(out->count >= 1 && out->list[0].type == K2M_ACT_REFUSE && out->list[0].code == K2_BAD_INPUT);
    sim_fini(&s);
}

/* A request that an earlier phase gave up is answered when its trajectory is further on: the tokens are known, and taken for
 * the next ones they would be of another place. */
static void late_answers_of_earlier_positions_are_left(void **state)
{
    (void)state;
    sim s;
    k2_replay_info info = {0};
    bool found = false;
    sim_init(&s, 12);
    sim_start_master(&s);
    while (!found) {
        assert_false(sim_run(&s, 1));
        if (s.core->phase != K2M_PHASE_GENERATE) continue;
        for (uint64_t g = 0; g < 8 && !found; g++)
            found = k2_replay_find(s.core->replay, k2_replay_id(g, 0), &info) == K2_OK && info.state == K2_REPLAY_RUNNING &&
                    info.generated > 0;
    }
    uint32_t inflight = s.core->inflight;
    k2_replay_token token = {.id = 3, .version = (uint32_t)s.core->force_version};
    k2m_event ev = {.type = K2M_EV_ANSWER,
                    .id = info.id,
                    .tokens = &token,
                    .count = 1,
                    .digest = s.core->force_digest,
                    .finish = K2_REPLAY_FINISH_LENGTH,
                    .now_ns = s.now_ns};
    (void)k2m_core_step(s.core, &ev);
    ev = (k2m_event){.type = K2M_EV_ANSWER_FAILED, .id = info.id, .text = "late", .now_ns = s.now_ns};
    (void)k2m_core_step(s.core, &ev);
    k2_replay_info after;
    assert_int_equal(k2_replay_find(s.core->replay, info.id, &after), K2_OK);
    assert_int_equal(after.generated, info.generated);
    assert_int_equal(after.state, K2_REPLAY_RUNNING);
    assert_int_equal(s.core->inflight, inflight);
    sim_fini(&s);
}

/* A proxy that confirms a gate when a later version is in force already stands at the gate that it was told. */
static void the_gate_stands_where_it_was_told(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 13);
    sim_start_master(&s);
    while (s.core->iteration < 1 || s.core->phase != K2M_PHASE_GENERATE) assert_false(sim_run(&s, 1));
    k2m_worker *p = &s.core->workers[s.core->proxy];
    p->gate = (k2_digest){0, 0};
    (void)k2m_core_step(s.core, &(k2m_event){.type = K2M_EV_ALIVE, .worker = s.core->proxy, .now_ns = s.now_ns});
    assert_int_equal(p->cmd_type, K2_MSG_GATE);
    k2_digest told = s.core->force_digest;
    s.core->force_digest.lo ^= 1; /* as if PUBLISH had ended meanwhile */
    k2_msg done = {.type = K2_MSG_DONE, .cmd = p->cmd};
    (void)k2m_core_step(s.core, &(k2m_event){.type = K2M_EV_DONE, .worker = s.core->proxy, .msg = &done, .now_ns = s.now_ns});
    assert_true(k2_digest_equal(p->gate, told));
    assert_false(k2m_proxy_ready(s.core));
    sim_fini(&s);
}

/* What the others were at with it is void, and they may wait for it in a collective until that one's deadline. */
static void who_waits_for_a_replaced_rank_is_not_left_waiting(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 8);
    s.config.trainer_ranks = 2;
    sim_start_master(&s);
    while (s.core->phase != K2M_PHASE_TRAIN) assert_false(sim_run(&s, 1));
    const k2m_worker *other = &s.core->workers[1];
    assert_int_equal(other->cmd_type, K2_MSG_TRAIN);
    s.workers[0].silent_until_ns = UINT64_MAX;
    k2m_event gone = {
        .type = K2M_EV_EXIT, .worker = 0, .incarnation = s.core->workers[0].incarnation, .signal = 9, .now_ns = s.now_ns};
    k2m_core_step(s.core, &gone);
    assert_int_equal(s.core->phase, K2M_PHASE_START);
    assert_int_equal(other->cmd_type, K2_MSG_TRAIN);
    assert_in_range(other->cmd_deadline_ns, s.now_ns, s.now_ns + s.config.master_lease_ms * K2_NS_PER_MS);
    sim_fini(&s);
}

static void a_worker_that_always_dies_ends_the_run(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 6);
    s.config.master_restarts_max = 3;
    s.faults.kill_rollout = 3;
    sim_start_master(&s);
    assert_true(sim_run(&s, LONG));
    assert_int_equal(s.end_code, K2_LIMIT);
    assert_non_null(strstr(s.end_text, "died 4 times"));
    sim_fini(&s);
}

static void silence_at_the_start_names_the_worker(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 7);
    s.config.master_start_timeout_ms = 2000;
    sim_start_master(&s);
    s.workers[3].running = false; /* never says HELLO */
    assert_true(sim_run(&s, LONG));
    assert_int_equal(s.end_code, K2_TIMEOUT);
    assert_non_null(strstr(s.end_text, "rollout-1"));
    sim_fini(&s);
}

static void bad_input_of_a_worker_is_told_at_once(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 8);
    sim_start_master(&s);
    sim_event(&s, &(k2m_event){.type = K2M_EV_EXIT,
                               .worker = 0,
                               .incarnation = s.core->workers[0].incarnation,
                               .exit_code = 2,
                               .text = "model.safetensors: \033[2Jtoo\nshort"});
    assert_true(sim_run(&s, LONG));
    assert_int_equal(s.end_code, K2_BAD_INPUT);
    assert_non_null(strstr(s.end_text, "trainer-0 exited with 2: model.safetensors: ?[2Jtoo?short"));
    sim_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(calm_run),
                                       cmocka_unit_test(arrangement_does_not_matter),
                                       cmocka_unit_test(faults_do_not_matter),
                                       cmocka_unit_test(a_checkpoint_that_can_never_be_saved_ends_the_run),
                                       cmocka_unit_test(a_step_that_can_never_be_trained_ends_the_run),
                                       cmocka_unit_test(failing_rewards_drop),
                                       cmocka_unit_test(what_never_works_ends_the_run),
                                       cmocka_unit_test(drain_and_go_on),
                                       cmocka_unit_test(second_stop_ends_at_once),
                                       cmocka_unit_test(pretraining_alone),
                                       cmocka_unit_test(sync_mode_never_cuts),
                                       cmocka_unit_test(a_full_journal_is_made_room_in),
                                       cmocka_unit_test(old_incarnations_are_fenced),
                                       cmocka_unit_test(late_answers_of_earlier_positions_are_left),
                                       cmocka_unit_test(the_gate_stands_where_it_was_told),
                                       cmocka_unit_test(who_waits_for_a_replaced_rank_is_not_left_waiting),
                                       cmocka_unit_test(a_worker_that_always_dies_ends_the_run),
                                       cmocka_unit_test(silence_at_the_start_names_the_worker),
                                       cmocka_unit_test(bad_input_of_a_worker_is_told_at_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
