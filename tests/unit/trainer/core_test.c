/* The trainer's command machine, driven without anything around it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "trainer/trainer_core_int.h"

static k2i_trainer_outbox out;

static const k2i_trainer_action *command(k2i_trainer_core *c, k2i_command m)
{
    k2i_trainer_event event = {.kind = K2I_ON_COMMAND, .command = m};
    k2i_trainer_step(c, &event, &out);
    return out.count > 0 ? &out.actions[0] : NULL;
}

static void finish(k2i_trainer_core *c, k2_code code, bool unchanged)
{
    k2i_trainer_event event = {.kind = K2I_ON_FINISHED, .code = code, .unchanged = unchanged, .step = 7, .pretrain_step = 100};
    k2i_trainer_step(c, &event, &out);
    assert_true(out.count >= 1 && out.actions[0].kind == K2I_DO_ANSWER);
}

static void assert_runs(k2i_trainer_core *c, k2i_command m)
{
    const k2i_trainer_action *a = command(c, m);
    assert_non_null(a);
    assert_int_equal(a->kind, K2I_DO_RUN);
    finish(c, K2_OK, true);
}

static void assert_refused(k2i_trainer_core *c, k2i_command m, k2_code code, const char *text)
{
    const k2i_trainer_action *a = command(c, m);
    assert_non_null(a);
    assert_int_equal(a->kind, K2I_DO_REFUSE);
    assert_int_equal(a->error.code, code);
    assert_string_equal(a->error.text, text);
    assert_int_equal(a->id, m.id);
}

static void ready(k2i_trainer_core *c)
{
    *c = (k2i_trainer_core){0};
    assert_runs(c, (k2i_command){.id = 1, .kind = K2I_JOIN});
    assert_runs(c, (k2i_command){.id = 2, .kind = K2I_INIT});
}

static void test_a_run(void **state)
{
    (void)state;
    k2i_trainer_core c;
    ready(&c);
    assert_true(c.phase == K2I_READY && c.step == 7 && c.pretrain_step == 100);
    assert_runs(&c, (k2i_command){.id = 3, .kind = K2I_PRETRAIN, .from = 100, .to = 110});
    assert_runs(&c, (k2i_command){.id = 4, .kind = K2I_PUBLISH, .step = 7});
    assert_runs(&c, (k2i_command){.id = 5, .kind = K2I_TRAIN, .step = 8});
    assert_runs(&c, (k2i_command){.id = 6, .kind = K2I_SAVE, .step = 8});
    assert_true(c.step == 8 && c.pretrain_step == 110);
    command(&c, (k2i_command){.id = 7, .kind = K2I_STOP});
    finish(&c, K2_OK, true);
    assert_int_equal(out.count, 2);
    assert_true(out.actions[1].kind == K2I_DO_EXIT && out.actions[1].status == 0);
}

static void test_order(void **state)
{
    (void)state;
    k2i_trainer_core c = {0};
    assert_refused(&c, (k2i_command){.id = 1, .kind = K2I_INIT}, K2_BAD_INPUT, "INIT: expected after JOIN");
    assert_refused(&c, (k2i_command){.id = 1, .kind = K2I_TRAIN, .step = 1}, K2_BAD_INPUT,
                   "TRAIN: expected after JOIN and INIT");
    ready(&c);
    assert_refused(&c, (k2i_command){.id = 3, .kind = K2I_INIT}, K2_BAD_INPUT, "INIT: expected after JOIN");
    assert_refused(&c, (k2i_command){.id = 3, .kind = K2I_TRAIN, .step = 7}, K2_BAD_INPUT, "TRAIN: found step 7, expected 8");
    assert_refused(&c, (k2i_command){.id = 3, .kind = K2I_PUBLISH, .step = 8}, K2_BAD_INPUT,
                   "PUBLISH: found version 8, expected 7");
    assert_refused(&c, (k2i_command){.id = 3, .kind = K2I_PRETRAIN, .from = 0, .to = 5}, K2_BAD_INPUT,
                   "PRETRAIN: found steps 0 to 5, expected from 100 to a later one");
    assert_refused(&c, (k2i_command){.id = 3, .kind = K2I_PRETRAIN, .from = 100, .to = 100}, K2_BAD_INPUT,
                   "PRETRAIN: found steps 100 to 100, expected from 100 to a later one");
}

/* What the network may do to commands: repeat them, delay them, send two at once. */
static void test_repeats(void **state)
{
    (void)state;
    k2i_trainer_core c;
    ready(&c);
    k2i_command train = {.id = 10, .kind = K2I_TRAIN, .step = 8};
    assert_int_equal(command(&c, train)->kind, K2I_DO_RUN);
    assert_null(command(&c, train));
    assert_refused(&c, (k2i_command){.id = 11, .kind = K2I_SAVE}, K2_BUSY, "SAVE 11 came while TRAIN 10 runs");
    assert_refused(&c, (k2i_command){.id = 9, .kind = K2I_SAVE}, K2_FENCED, "command 9 is older than the last one, 10");
    finish(&c, K2_OK, true);
    const k2i_trainer_action *again = command(&c, train);
    assert_true(again && again->kind == K2I_DO_ANSWER && again->id == 10 && c.step == 8);
    assert_refused(&c, (k2i_command){.id = 2, .kind = K2I_INIT}, K2_FENCED, "command 2 is older than the last one, 10");
}

static void test_failures(void **state)
{
    (void)state;
    k2i_trainer_core c;
    ready(&c);
    command(&c, (k2i_command){.id = 3, .kind = K2I_TRAIN, .step = 8});
    finish(&c, K2_CORRUPT, true); /* the batch was damaged on its way: nothing happened */
    assert_runs(&c, (k2i_command){.id = 4, .kind = K2I_TRAIN, .step = 8});
    command(&c, (k2i_command){.id = 5, .kind = K2I_TRAIN, .step = 9});
    finish(&c, K2_PEER_CLOSED, false); /* a rank died in mid-step */
    assert_refused(&c, (k2i_command){.id = 6, .kind = K2I_TRAIN, .step = 9}, K2_BAD_INPUT,
                   "TRAIN: expected after JOIN and INIT");
    assert_runs(&c, (k2i_command){.id = 6, .kind = K2I_JOIN});
    assert_runs(&c, (k2i_command){.id = 7, .kind = K2I_INIT});
    assert_int_equal(c.phase, K2I_READY);
    k2i_trainer_event lost = {.kind = K2I_ON_LOST};
    k2i_trainer_step(&c, &lost, &out);
    assert_true(out.count == 1 && out.actions[0].kind == K2I_DO_EXIT && out.actions[0].status == 1);
    assert_null(command(&c, (k2i_command){.id = 8, .kind = K2I_STOP}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
