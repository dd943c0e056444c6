/* rollout_core - the change of weights: every command is answered once, whatever comes in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "rollout/rollout_core_int.h"

static k2i_outbox out;

static void step(k2i_rollout *r, k2i_event_type type, uint64_t cmd, uint64_t version, k2_code code)
{
    k2i_rollout_step(
        r, &(k2i_event){.type = type, .cmd = cmd, .version = version, .digest = {version, 9}, .code = code, .text = "t"}, &out);
}

static void expect(uint32_t i, k2i_action_type type, uint64_t cmd, uint64_t version, k2_code code)
{
    assert_true(i < out.count);
    assert_int_equal(out.list[i].type, type);
    assert_int_equal(out.list[i].cmd, cmd);
    assert_int_equal(out.list[i].version, version);
    assert_int_equal(out.list[i].code, code);
}

static void test_prepare_and_commit(void **state)
{
    (void)state;
    k2i_rollout r = {0};
    step(&r, K2I_EV_PREPARE, 1, 5, 0);
    assert_int_equal(out.count, 1);
    expect(0, K2I_ACT_PULL, 1, 5, K2_OK);
    step(&r, K2I_EV_PULLED, 0, 0, K2_OK);
    expect(0, K2I_ACT_DONE, 1, 5, K2_OK);
    step(&r, K2I_EV_COMMIT, 2, 5, 0);
    expect(0, K2I_ACT_SWITCH, 0, 5, K2_OK);
    assert_false(out.list[0].keep);
    step(&r, K2I_EV_SWITCHED, 0, 0, 0);
    expect(0, K2I_ACT_DONE, 2, 5, K2_OK);
    assert_int_equal(r.active.version, 5);
    /* Again, from a master that was restarted. */
    step(&r, K2I_EV_PREPARE, 3, 5, 0);
    assert_int_equal(out.count, 1);
    expect(0, K2I_ACT_DONE, 3, 5, K2_OK);
    step(&r, K2I_EV_COMMIT, 4, 5, 0);
    assert_int_equal(out.count, 1);
    expect(0, K2I_ACT_DONE, 4, 5, K2_OK);
}

static void test_same_weights_under_another_version(void **state)
{
    (void)state;
    k2i_rollout r = {.active = {.version = 5, .digest = {7, 9}}};
    k2i_event ev = {.type = K2I_EV_PREPARE, .cmd = 1, .version = 6, .digest = {7, 9}};
    k2i_rollout_step(&r, &ev, &out);
    expect(0, K2I_ACT_DONE, 1, 6, K2_OK);
    ev.type = K2I_EV_COMMIT;
    ev.cmd = 2;
    k2i_rollout_step(&r, &ev, &out);
    expect(0, K2I_ACT_SWITCH, 0, 6, K2_OK);
    assert_true(out.list[0].keep);
    step(&r, K2I_EV_SWITCHED, 0, 0, 0);
    expect(0, K2I_ACT_DONE, 2, 6, K2_OK);
    assert_int_equal(r.active.version, 6);
}

static void test_commit_without_prepare(void **state)
{
    (void)state;
    k2i_rollout r = {0};
    step(&r, K2I_EV_COMMIT, 1, 5, 0);
    expect(0, K2I_ACT_DONE, 1, 5, K2_NOT_FOUND);
    step(&r, K2I_EV_PREPARE, 2, 5, 0);
    step(&r, K2I_EV_PULLED, 0, 0, K2_CORRUPT);
    expect(0, K2I_ACT_DONE, 2, 5, K2_CORRUPT);
    assert_string_equal(out.list[0].text, "t");
    step(&r, K2I_EV_COMMIT, 3, 5, 0);
    expect(0, K2I_ACT_DONE, 3, 5, K2_NOT_FOUND);
}

static void test_later_prepare_takes_over(void **state)
{
    (void)state;
    k2i_rollout r = {0};
    step(&r, K2I_EV_PREPARE, 1, 5, 0);
    step(&r, K2I_EV_PREPARE, 2, 6, 0);
    assert_int_equal(out.count, 1);
    expect(0, K2I_ACT_CANCEL_PULL, 0, 0, K2_OK);
    step(&r, K2I_EV_PREPARE, 3, 7, 0);
    expect(0, K2I_ACT_DONE, 2, 6, K2_CANCELED);
    step(&r, K2I_EV_PULLED, 0, 0, K2_CANCELED);
    expect(0, K2I_ACT_DONE, 1, 5, K2_CANCELED);
    expect(1, K2I_ACT_PULL, 3, 7, K2_OK);
    step(&r, K2I_EV_PULLED, 0, 0, K2_OK);
    expect(0, K2I_ACT_DONE, 3, 7, K2_OK);
}

static void test_prepare_waits_for_the_switch(void **state)
{
    (void)state;
    k2i_rollout r = {0};
    step(&r, K2I_EV_PREPARE, 1, 5, 0);
    step(&r, K2I_EV_PULLED, 0, 0, K2_OK);
    step(&r, K2I_EV_COMMIT, 2, 5, 0);
    step(&r, K2I_EV_PREPARE, 3, 6, 0);
    assert_int_equal(out.count, 0); /* the staging buffer is in use */
    step(&r, K2I_EV_COMMIT, 4, 5, 0);
    expect(0, K2I_ACT_DONE, 4, 5, K2_AGAIN);
    step(&r, K2I_EV_SWITCHED, 0, 0, 0);
    expect(0, K2I_ACT_DONE, 2, 5, K2_OK);
    expect(1, K2I_ACT_PULL, 3, 6, K2_OK);
}

static void test_stop(void **state)
{
    (void)state;
    k2i_rollout r = {0};
    step(&r, K2I_EV_PREPARE, 1, 5, 0);
    step(&r, K2I_EV_STOP, 2, 0, 0);
    expect(0, K2I_ACT_CANCEL_PULL, 0, 0, K2_OK);
    expect(1, K2I_ACT_DRAIN, 0, 0, K2_OK);
    step(&r, K2I_EV_PREPARE, 3, 6, 0);
    expect(0, K2I_ACT_DONE, 3, 6, K2_CANCELED);
    step(&r, K2I_EV_PULLED, 0, 0, K2_CANCELED);
    expect(0, K2I_ACT_DONE, 1, 5, K2_CANCELED);
    step(&r, K2I_EV_DRAINED, 0, 0, 0);
    expect(0, K2I_ACT_DONE, 2, 0, K2_OK);
    expect(1, K2I_ACT_EXIT, 0, 0, K2_OK);
    step(&r, K2I_EV_STOP, 0, 0, 0);
    assert_int_equal(out.count, 0);
}

static void test_every_command_is_answered_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        k2i_rollout r = {0};
        uint64_t asked = 0;
        uint32_t answers[400] = {0};
        bool pulling = false, switching = false, draining = false, exited = false;
        for (uint64_t t = 0; t < 300 && !exited; t++) {
            uint64_t v = 1 + k2_rand_below(seed, K2_STREAM_TEST, t, 0, 4);
            switch (k2_rand_below(seed, K2_STREAM_TEST, t, 1, t < 250 ? 8 : 9)) {
            case 0:
            case 1: step(&r, K2I_EV_PREPARE, ++asked, v, 0); break;
            case 2:
            case 3: step(&r, K2I_EV_COMMIT, ++asked, v, 0); break;
            case 4:
            case 5:
                if (!pulling) continue;
                pulling = false;
                step(&r, K2I_EV_PULLED, 0, 0, k2_rand_below(seed, K2_STREAM_TEST, t, 2, 2) ? K2_OK : K2_TIMEOUT);
                break;
            case 6:
            case 7:
                if (!switching) continue;
                switching = false;
                step(&r, K2I_EV_SWITCHED, 0, 0, 0);
                break;
            default:
                if (draining)
                    step(&r, K2I_EV_DRAINED, 0, 0, 0);
                else
                    step(&r, K2I_EV_STOP, ++asked, 0, 0);
            }
            for (uint32_t i = 0; i < out.count; i++) {
                const k2i_action *a = &out.list[i];
                if (a->type == K2I_ACT_DONE) answers[a->cmd]++;
                if (a->type == K2I_ACT_EXIT) exited = true;
                if (a->type == K2I_ACT_DRAIN) draining = true;
                if (a->type == K2I_ACT_PULL) {
                    assert_false(pulling || switching); /* the staging buffer has one user */
                    pulling = true;
                }
                if (a->type == K2I_ACT_SWITCH) {
                    assert_false(pulling && !a->keep);
                    assert_false(switching);
                    switching = true;
                }
            }
            for (uint64_t c = 1; c <= asked; c++) assert_true(answers[c] <= 1);
        }
        if (pulling) {
            step(&r, K2I_EV_PULLED, 0, 0, K2_OK);
            for (uint32_t i = 0; i < out.count; i++) {
                if (out.list[i].type == K2I_ACT_DONE) answers[out.list[i].cmd]++;
                if (out.list[i].type == K2I_ACT_PULL) step(&r, K2I_EV_PULLED, 0, 0, K2_OK), answers[out.list[0].cmd]++, i = 8;
            }
        }
        uint64_t missing = 0;
        for (uint64_t c = 1; c <= asked; c++) missing += answers[c] == 0;
        assert_true(missing <= (uint64_t)switching + r.has_next + (draining && !exited));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prepare_and_commit),
        cmocka_unit_test(test_same_weights_under_another_version),
        cmocka_unit_test(test_commit_without_prepare),
        cmocka_unit_test(test_later_prepare_takes_over),
        cmocka_unit_test(test_prepare_waits_for_the_switch),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_every_command_is_answered_once),
    };
    return cmocka_run_group_tests_name("rollout_core", tests, NULL, NULL);
}
