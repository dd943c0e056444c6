/* Which prompt a group gets: in order, by difficulty, or drawn by how badly it is answered. */
#include "sim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LONG 400000u /* events after which a run counts as stuck */

static void prompts_are_all_seen_once_an_epoch(void **state)
{
    (void)state;
    sim s;
    sim_init(&s, 9);
    sim_start_master(&s);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        uint8_t seen[40] = {0};
        for (uint64_t i = 0; i < 40; i++) seen[k2m_core_prompt_of(s.core, epoch * 40 + i)]++;
        for (int i = 0; i < 40; i++) assert_int_equal(seen[i], 1);
    }
    uint32_t first = k2m_core_prompt_of(s.core, 3);
    assert_int_not_equal(k2m_core_prompt_of(s.core, 43) * 1000 + k2m_core_prompt_of(s.core, 44),
                         first * 1000 + k2m_core_prompt_of(s.core, 4)); /* another order in another epoch */
    assert_int_equal(k2m_core_prompt_of(s.core, 3), first);
    sim_fini(&s);
}

/* Every epoch goes from easy to hard, with all prompts once, and shuffles only those of one difficulty, each epoch anew. */
static void a_curriculum_goes_from_easy_to_hard(void **state)
{
    (void)state;
    sim s;
    uint32_t easy_first[40], n = 0, orders[2][40];
    double difficulty[40];
    for (uint32_t i = 0; i < 40; i++) difficulty[i] = i % 4 == 3 ? 2.5 : i % 4;
    for (int level = 0; level < 4; level++)
        for (uint32_t i = 0; i < 40; i++)
            if (difficulty[i] == (const double[]){0, 1, 2, 2.5}[level]) easy_first[n++] = i;
    sim_init(&s, 9);
    s.easy_first = easy_first;
    s.difficulty = difficulty;
    sim_start_master(&s);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        uint8_t seen[40] = {0};
        for (uint64_t i = 0; i < 40; i++) {
            uint32_t p = orders[epoch][i] = k2m_core_prompt_of(s.core, epoch * 40 + i);
            assert_true(!seen[p]++ && difficulty[p] == difficulty[easy_first[i]]);
        }
    }
    assert_memory_not_equal(orders[0], orders[1], sizeof orders[0]);
    assert_memory_not_equal(orders[0], easy_first, sizeof orders[0]);
    sim_start_master(&s); /* a master that comes back needs no record of it */
    assert_int_equal(k2m_core_prompt_of(s.core, 57), orders[1][17]);
    s.config.data_shuffle = false;
    sim_start_master(&s);
    for (uint64_t i = 0; i < 40; i++) assert_int_equal(k2m_core_prompt_of(s.core, 40 + i), easy_first[i]);
    sim_fini(&s);
}

/* ---- by priority */

static void by_priority(sim *s, uint64_t seed)
{
    sim_init(s, seed);
    snprintf(s->config.data_sampling, sizeof s->config.data_sampling, "priority");
}

/* What share of 40,000 draws each prompt gets is its weight's share, within five standard deviations. */
static void expect_shares(k2m_core *core, const double *weight)
{
    enum { PROMPTS = 40, DRAWS = 40000 };
    uint32_t drawn[PROMPTS] = {0};
    double all = 0;
    for (int i = 0; i < PROMPTS; i++) all += weight[i];
    for (uint64_t g = 0; g < DRAWS; g++) drawn[k2m_core_prompt_of(core, g)]++;
    for (int i = 0; i < PROMPTS; i++) {
        double p = weight[i] / all, want = p * DRAWS;
        if (fabs(drawn[i] - want) > 5 * sqrt(want * (1 - p)))
            fail_msg("prompt %d is drawn %u times, expected %.0f", i, drawn[i], want);
    }
}

static void the_worse_a_prompt_is_answered_the_likelier_it_is_drawn(void **state)
{
    (void)state;
    sim s;
    double weight[40];
    by_priority(&s, 3);
    s.config.data_priority_floor = 0.1;
    sim_start_master(&s);
    for (int i = 0; i < 40; i++) weight[i] = 1; /* nobody has seen any: no success */
    expect_shares(s.core, weight);
    for (uint32_t i = 0; i < 40; i++) {
        double rate = i % 5 / 4.0;
        assert_true(k2m_rates_set(s.core, i, (uint32_t)(rate * K2M_RATE_ONE)));
        weight[i] = fmax(1 - rate, 0.1);
    }
    expect_shares(s.core, weight);
    k2m_success x = k2m_core_success(s.core);
    assert_true(x.on && x.prompts == 40 && x.seen == 40 && x.solved == 8 && x.mean == 0.5);
    assert_false(k2m_rates_set(s.core, 40, 0));
    assert_false(k2m_rates_set(s.core, 0, K2M_RATE_ONE + 1));
    uint32_t first = k2m_core_prompt_of(s.core, 7), others = 0;
    assert_int_equal(k2m_core_prompt_of(s.core, 7), first); /* of seed and group, not of how often it is asked for */
    s.config.seed++;
    for (uint64_t g = 0; g < 40; g++) others += k2m_core_prompt_of(s.core, g) != first;
    assert_true(others > 0);
    sim_fini(&s);
}

/* An epoch by difficulty, then by priority. */
static void a_curriculum_comes_before_priority(void **state)
{
    (void)state;
    sim s;
    uint32_t easy_first[40];
    double difficulty[40];
    for (uint32_t i = 0; i < 40; i++) {
        easy_first[i] = 39 - i;
        difficulty[i] = 39 - i;
    }
    by_priority(&s, 3);
    s.config.data_priority_after = 1;
    s.easy_first = easy_first;
    s.difficulty = difficulty;
    sim_start_master(&s);
    uint8_t seen[40] = {0};
    uint32_t again = 0;
    for (uint64_t g = 0; g < 40; g++) assert_int_equal(k2m_core_prompt_of(s.core, g), 39 - g);
    for (uint64_t g = 40; g < 80; g++) again += seen[k2m_core_prompt_of(s.core, g)]++ > 0;
    assert_true(again > 0); /* with replacement */
    sim_fini(&s);
}

/* Success is that of the newest groups, each by data.priority.rate; what was dropped has not failed. */
static void rates_follow_what_was_trained(void **state)
{
    (void)state;
    sim s;
    double want[40];
    bool seen[40] = {false};
    uint64_t group, counted = 0;
    uint32_t size;
    for (int i = 0; i < 40; i++) want[i] = 0;
    by_priority(&s, 4);
    s.config.run_checkpoint_every = 100; /* nothing is released: all groups can be looked at */
    s.config.data_priority_rate = 0.25;
    s.faults.bad_reward = 11;
    sim_start_master(&s);
    while (s.core->iteration < 7 || s.core->phase != K2M_PHASE_GENERATE || k2_replay_count(s.core->replay).scored == 0)
        if (sim_run(&s, 1)) fail_msg("the run has ended: %s", s.end_text);
    uint64_t steps = k2_replay_count(s.core->replay).step_consumed;
    for (uint64_t step = 1; step <= steps; step++)
        for (uint32_t at = 0; k2_replay_group_next(s.core->replay, step, &at, &group, &size); counted++) {
            k2_replay_info info;
            uint32_t wrong = 0;
            for (uint32_t k = 0; k < size; k++) {
                (void)k2_replay_find(s.core->replay, k2_replay_id(group, k), &info);
                wrong += info.state == K2_REPLAY_CONSUMED && info.reward < 0.5;
            }
            want[info.prompt] += 0.25 * ((1 - wrong / 3.0) - want[info.prompt]);
            seen[info.prompt] = true;
        }
    assert_true(counted >= 10); /* and none of those that have rewards and wait for their step */
    for (int i = 0; i < 40; i++) {
        uint32_t rate = s.core->rates.rate[i];
        assert_int_equal(rate == K2M_RATE_UNSEEN, !seen[i]);
        if (seen[i]) assert_true(fabs(rate / (double)K2M_RATE_ONE - want[i]) < 1e-7);
    }
    sim_fini(&s);
}

/* The weights of a run to its end; the prompts of all groups are in them. */
static k2_digest run_of(uint64_t seed, const sim_faults *faults, uint32_t *masters)
{
    sim s;
    by_priority(&s, seed);
    s.config.run_checkpoint_every = 1 + seed % 3;
    s.config.rollout_workers = 1 + seed % 4;
    s.config.master_inflight_max = 1 + seed % 13;
    if (faults) s.faults = *faults;
    sim_start_master(&s);
    if (!sim_run(&s, LONG) || s.end_code != K2_OK) fail_msg("seed %llu: %s", (unsigned long long)seed, s.end_text);
    k2_digest d = sim_weights(&s);
    *masters += s.masters;
    sim_fini(&s);
    return d;
}

static void the_same_prompts_are_drawn_whatever_happens(void **state)
{
    (void)state;
    static const sim_faults faults = {
        .kill_master = 250, .kill_trainer = 900, .kill_rollout = 700, .lose_answer = 20, .lose_score = 20, .repeat = 9};
    uint32_t masters = 0, calm = 0;
    k2_digest want = run_of(1, NULL, &calm);
    assert_true(k2_digest_equal(run_of(2, NULL, &calm), want));
    for (uint64_t seed = 3; seed < 43; seed++)
        if (!k2_digest_equal(run_of(seed, &faults, &masters), want))
            fail_msg("seed %llu: other weights", (unsigned long long)seed);
    assert_true(masters > 80);
}

/* Of more prompts than one record holds, all rates come back; a damaged record is refused. */
static k2m_core *core_of(const k2_config *c, uint32_t count, void (*record)(void *, uint32_t, const void *, size_t), void *arg)
{
    enum { MANY = 1000 };
    static int32_t id;
    static const int32_t *ids[MANY];
    static uint32_t lengths[MANY];
    k2m_core *m = NULL;
    k2_error err;
    for (uint32_t i = 0; i < MANY; i++) {
        ids[i] = &id;
        lengths[i] = 1;
    }
    k2m_core_config cc = {.config = c,
                          .prompts = {.ids = ids, .lengths = lengths, .count = count, .length_max = 1},
                          .vocab = 264,
                          .checkpoints_dir = "/run/checkpoints",
                          .record = record,
                          .record_arg = arg};
    assert_int_equal(k2m_core_new(&cc, &m, &err), K2_OK);
    return m;
}

static void ignore(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

static void into(void *arg, uint32_t type, const void *bytes, size_t len)
{
    static uint64_t copy[1024];
    k2_error err;
    assert_true(len <= sizeof copy);
    if (len) memcpy(copy, bytes, len);
    assert_int_equal(k2m_core_apply(arg, type, copy, len, &err), K2_OK);
    if (type != K2M_REC_RATES) return;
    assert_int_equal(k2m_core_apply(arg, type, copy, len - 1, &err), K2_CORRUPT);
    assert_int_equal(k2m_core_apply(arg, type, copy, len, &err), K2_OK);
}

static void a_checkpoint_keeps_all_rates(void **state)
{
    (void)state;
    static k2_config c;
    k2_config_defaults(&c);
    snprintf(c.data_sampling, sizeof c.data_sampling, "priority");
    k2m_core *b = core_of(&c, 1000, ignore, NULL), *a = core_of(&c, 1000, into, b), *dead = core_of(&c, 0, ignore, NULL);
    for (uint32_t i = 0; i < 1000; i++)
        if (i % 7) assert_true(k2m_rates_set(a, i, i * 1000003u % (K2M_RATE_ONE + 1)));
    assert_true(k2m_rates_set(b, 3, 17)); /* what was known before is forgotten */
    assert_true(k2m_rates_set(b, 0, 17));
    k2m_record_checkpoint(a);
    assert_memory_equal(a->rates.rate, b->rates.rate, 1000 * sizeof *a->rates.rate);
    assert_memory_equal(a->rates.sums, b->rates.sums, 1000 * sizeof *a->rates.sums);
    assert_int_equal(a->rates.seen, b->rates.seen);
    assert_int_equal(a->rates.total, b->rates.total);
    for (uint64_t g = 0; g < 1000; g++) assert_int_equal(k2m_core_prompt_of(a, g), k2m_core_prompt_of(b, g));
    a->c.record_arg = dead; /* who looks at a dead run has no prompts and passes over them */
    k2m_record_checkpoint(a);
    assert_false(k2m_core_success(dead).on);
    k2m_core_free(dead);
    k2m_core_free(a);
    k2m_core_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_are_all_seen_once_an_epoch),
                                       cmocka_unit_test(a_curriculum_goes_from_easy_to_hard),
                                       cmocka_unit_test(the_worse_a_prompt_is_answered_the_likelier_it_is_drawn),
                                       cmocka_unit_test(a_curriculum_comes_before_priority),
                                       cmocka_unit_test(rates_follow_what_was_trained),
                                       cmocka_unit_test(the_same_prompts_are_drawn_whatever_happens),
                                       cmocka_unit_test(a_checkpoint_keeps_all_rates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
