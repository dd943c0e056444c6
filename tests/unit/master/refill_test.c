/* DAPO's dynamic sampling: groups of equal rewards leave the batch, and others are begun for them. */
#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/wire/batch.h"
#include "master/io_int.h"

#define LONG 400000u /* events after which a run counts as stuck */

static void begin(sim *s, uint64_t seed, uint32_t equal, uint64_t refill_max)
{
    sim_init(s, seed);
    s->faults.equal = equal;
    s->config.rollout_refill_max = refill_max;
}

static void end(sim *s)
{
    if (!sim_run(s, LONG)) fail_msg("seed %llu is stuck", (unsigned long long)s->seed);
    if (s->end_code != K2_OK) fail_msg("seed %llu: %s", (unsigned long long)s->seed, s->end_text);
}

/* What the trainers get of a step: groups of different rewards and no others. Returns how many. */
static uint32_t expect_useful(const sim *s, uint64_t step)
{
    k2_buf bytes;
    k2_error err = {0};
    k2_batch b;
    k2_buf_init(&bytes, 1 << 24);
    assert_int_equal(k2m_batch_encode(s->core, step, &bytes, &err), K2_OK);
    assert_int_equal(k2_batch_decode((unsigned char *)bytes.data, bytes.len, &b, &err), K2_OK);
    for (uint32_t i = 0; i < b.trajectories; i++) {
        k2_batch_trajectory t;
        k2_batch_get(&b, i, &t);
        assert_true(t.group_std > 0 && t.group_size == s->config.rollout_group_size);
    }
    k2_buf_fini(&bytes);
    return b.groups;
}

/* Each batch has rollout.groups groups from which something can be learnt, less those that are still cut, or as many as the
 * maximum allowed. In mode sync nothing is cut: it is full. */
static void batches_are_full(void **state)
{
    (void)state;
    for (int sync = 0; sync < 2; sync++) {
        sim s;
        k2m_waits waits;
        char longest[sizeof waits.list[0].what] = "";
        uint64_t step = 0, short_ones = 0, most = 0, told = 0;
        begin(&s, 1 + (uint64_t)sync, 2, 6);
        if (sync) snprintf(s.config.mode, sizeof s.config.mode, "sync");
        sim_start_master(&s);
        while (!sim_run(&s, 1)) {
            k2_replay_counts n = k2_replay_count(s.core->replay);
            k2m_core_waits(s.core, s.core->now_ns, &waits);
            if (strlen(waits.list[0].what) > strlen(longest)) snprintf(longest, sizeof longest, "%s", waits.list[0].what);
            if (n.step_taken == step) continue;
            step = n.step_taken;
            told += strstr(longest, "groups more for equal rewards") != NULL;
            longest[0] = 0;
            uint32_t useful = expect_useful(&s, step), open = k2_replay_groups_open(s.core->replay), size;
            uint64_t group, taken = 0;
            for (uint32_t at = 0; k2_replay_group_next(s.core->replay, step, &at, &group, &size);) taken++;
            assert_true(taken + open <= 5 + 6 && useful + open <= 5);
            assert_true(useful + open == 5 || taken + open == 5 + 6);
            if (sync) assert_int_equal(open, 0);
            short_ones += useful + open < 5;
            most = K2_MAX(most, taken - useful);
        }
        assert_int_equal(s.end_code, K2_OK);
        assert_true(step >= 7 && most >= 3 && short_ones < step && told >= 3);
        sim_fini(&s);
    }
}

static k2_digest run_of(uint64_t seed, const sim_faults *faults, uint64_t refill_max, const char *mode, uint32_t *masters)
{
    sim s;
    sim_init(&s, seed);
    if (faults) s.faults = *faults;
    s.faults.equal = 2;
    s.config.rollout_refill_max = refill_max;
    snprintf(s.config.mode, sizeof s.config.mode, "%s", mode);
    snprintf(s.config.data_sampling, sizeof s.config.data_sampling, "%s", seed % 2 ? "priority" : "epochs");
    s.config.run_checkpoint_every = 1 + seed % 3;
    s.config.rollout_workers = 1 + seed % 4;
    s.config.master_inflight_max = 1 + seed % 13;
    sim_start_master(&s);
    end(&s);
    k2_digest d = sim_weights(&s);
    *masters += s.masters;
    sim_fini(&s);
    return d;
}

/* Which groups are begun does not depend on who answers first, how much is asked for at once, or who dies. */
static void the_same_groups_whatever_happens(void **state)
{
    (void)state;
    static const sim_faults faults = {
        .kill_master = 250, .kill_trainer = 900, .kill_rollout = 700, .lose_answer = 20, .lose_score = 20, .repeat = 9};
    static const char *const modes[] = {"partial", "sync"};
    uint32_t masters = 0;
    for (uint64_t k = 0; k < 8; k++) { /* by mode, sampling, and with a maximum that is reached and one that is not */
        uint64_t max = k & 4 ? 1 : 20;
        k2_digest want = run_of(k & 1, NULL, max, modes[k >> 1 & 1], &masters);
        for (uint64_t seed = 2 + (k & 1); seed < 22; seed += 2)
            if (!k2_digest_equal(run_of(seed, seed > 6 ? &faults : NULL, max, modes[k >> 1 & 1], &masters), want))
                fail_msg("seed %llu, maximum %llu, %s: other weights", (unsigned long long)seed, (unsigned long long)max,
                         modes[k >> 1 & 1]);
    }
    assert_true(masters > 200);
}

/* Where nothing can be learnt at all, steps are made of nothing and the run ends; or its policy stops it, before anything is
 * taken, and it goes on from there when the policy is another one. */
static void a_maximum_that_is_reached(void **state)
{
    (void)state;
    sim s;
    begin(&s, 3, 1, 2);
    sim_start_master(&s);
    end(&s);
    assert_int_equal(s.core->iteration, 9);
    k2_digest want = sim_weights(&s);
    sim_fini(&s);
    begin(&s, 3, 1, 2);
    snprintf(s.config.policy_refill, sizeof s.config.policy_refill, "stop");
    sim_start_master(&s);
    if (!sim_run(&s, LONG)) fail_msg("it is stuck");
    assert_int_equal(s.end_code, K2_LIMIT);
    assert_non_null(strstr(s.end_text, "groups have equal rewards, 2 of them were replaced (rollout.refill_max)"));
    assert_non_null(strstr(s.end_text, "policy.refill is \"stop\""));
    snprintf(s.config.policy_refill, sizeof s.config.policy_refill, "train");
    s.ended = false;
    sim_start_master(&s);
    end(&s);
    assert_true(k2_digest_equal(sim_weights(&s), want));
    sim_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(batches_are_full), cmocka_unit_test(the_same_groups_whatever_happens),
                                       cmocka_unit_test(a_maximum_that_is_reached)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
