/* The team: every task once, each run after the one before it, helpers awake or asleep, fewer cores than threads. */
#include "tests/unit/kernel/kernel_test_int.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "tests/support/asleep.h"

#define TASKS 100u

typedef struct team_arg {
    _Atomic uint32_t seen[TASKS];
    uint32_t threads;
} team_arg;

static void mark(void *arg, size_t task, uint32_t member)
{
    team_arg *a = arg;
    if (member < a->threads) atomic_fetch_add(&a->seen[task], 1);
}

static void runs_do_each_task_once(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 4; threads++) {
        k2_team *team = k2_kern_team_new(threads);
        assert_int_equal(k2_kern_team_threads(team), threads);
        team_arg a = {.threads = threads};
        for (size_t run = 0; run < 200; run++) k2_kern_team_run(team, run % (TASKS + 1), mark, &a);
        for (size_t i = 0; i < TASKS; i++) {
            uint32_t want = 0;
            for (size_t run = 0; run < 200; run++) want += run % (TASKS + 1) > i;
            assert_int_equal(atomic_load(&a.seen[i]), want);
        }
        k2_kern_team_free(team);
    }
}

typedef struct sums {
    uint64_t from[TASKS], to[TASKS];
    size_t tasks;
} sums;

static void add_neighbour(void *arg, size_t task, uint32_t member)
{
    (void)member;
    sums *s = arg;
    s->to[task] = s->from[task] + s->from[(task + 1) % s->tasks];
}

/* Plain memory: what a run has written, the caller and the next run's members see. */
static void one_step(k2_team *team, sums *s, sums *want)
{
    k2_kern_team_run(team, s->tasks, add_neighbour, s);
    memcpy(s->from, s->to, s->tasks * sizeof(uint64_t));
    for (size_t i = 0; i < want->tasks; i++) add_neighbour(want, i, 0);
    memcpy(want->from, want->to, want->tasks * sizeof(uint64_t));
    assert_memory_equal(s->from, want->from, s->tasks * sizeof(uint64_t));
}

static void runs_come_one_after_another(void **state)
{
    (void)state;
    for (uint32_t threads = 2; threads <= 8; threads *= 2) {
        k2_team *team = k2_kern_team_new(threads);
        for (size_t region = 0; region < 60; region++) {
            sums s = {.tasks = 1 + region % 7}, want;
            for (size_t i = 0; i < s.tasks; i++) s.from[i] = i + region;
            want = s;
            bool open = region % 3 > 0, nested = region % 3 > 1;
            if (open) k2_kern_team_begin(team);
            for (size_t run = 0; run < 20; run++) {
                if (nested) k2_kern_team_begin(team);
                one_step(team, &s, &want);
                if (nested) k2_kern_team_end(team);
            }
            if (open) k2_kern_team_end(team);
        }
        k2_kern_team_free(team);
    }
}

/* It may end at any time: with helpers that never met a run, that look out, or that sleep. */
static void teams_end_at_any_time(void **state)
{
    (void)state;
    k2_kern_team_free(NULL);
    for (size_t i = 0; i < 40; i++) {
        k2_team *team = k2_kern_team_new(3);
        team_arg a = {.threads = 3};
        if (i % 4 > 0) k2_kern_team_begin(team);
        if (i % 4 > 1) k2_kern_team_run(team, TASKS, mark, &a);
        if (i % 4 > 2) k2_kern_team_end(team);
        k2_kern_team_free(team);
    }
}

static void compare_cores(void *arg, size_t task, uint32_t member)
{
    (void)task, (void)member;
    cpu_set_t *want = arg, mine;
    if (sched_getaffinity(0, sizeof(mine), &mine) != 0 || !CPU_EQUAL(&mine, want)) abort();
}

/* Helpers are woken to another core than the caller's; whatever task they take, they may run wherever the caller may. */
static void helpers_may_run_where_the_caller_may(void **state)
{
    (void)state;
    cpu_set_t all, few;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    k2_team *team = k2_kern_team_new(3);
    for (int i = 0; i < 60; i++) {
        few = all;
        for (int cpu = 0, left = 1 + i % 3; cpu < CPU_SETSIZE; cpu++) /* one core, two, three where there are so many */
            if (CPU_ISSET((size_t)cpu, &few) && left-- <= 0) CPU_CLR((size_t)cpu, &few);
        if (i % 20 == 0) { /* a new mask: helpers learn of it when they are woken from sleep */
            k2_kern_team_free(team);
            assert_int_equal(sched_setaffinity(0, sizeof(few), &few), 0);
            team = k2_kern_team_new(3);
        }
        assert_int_equal(sched_getaffinity(0, sizeof(few), &few), 0);
        if (i % 3 == 0) assert_true(others_asleep());
        k2_kern_team_begin(team);
        for (int run = 0; run < 20; run++) k2_kern_team_run(team, TASKS, compare_cores, &few);
        k2_kern_team_end(team);
    }
    k2_kern_team_free(team);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_do_each_task_once),
        cmocka_unit_test(runs_come_one_after_another),
        cmocka_unit_test(teams_end_at_any_time),
        cmocka_unit_test(helpers_may_run_where_the_caller_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
