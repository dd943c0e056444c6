/* loop: timers, inbox, worker pool, signals, and that k2_loop_free delivers every promised last callback once. */
#include "common/loop/loop.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Ends a loop whose test hangs, so that a failure is a failed assertion and not ctest's time-out. */
#define GUARD_NS (20 * K2_NS_PER_S)

typedef struct bench {
    k2_loop *loop;
    k2_timer *timer, *guard;
    int count, target;
    uint64_t start_ns, fired_ns;
    int order[8];
} bench;

static void guard(void *arg)
{
    (void)arg;
    fail_msg("the test's loop did not end");
}

static void setup(bench *b)
{
    *b = (bench){.loop = k2_loop_new()};
    b->guard = k2_timer_start(b->loop, GUARD_NS, 0, guard, NULL);
}

static void run(bench *b)
{
    k2_loop_run(b->loop);
}

static void teardown(bench *b)
{
    k2_timer_stop(b->guard);
    k2_loop_free(b->loop);
}

static void tick(void *arg)
{
    bench *b = arg;
    b->fired_ns = k2_loop_now_ns(b->loop);
    if (++b->count == b->target) k2_loop_stop(b->loop);
}

static void timers_are_never_early(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    b.target = 1;
    for (uint64_t delay = 1; delay < 6 * K2_NS_PER_MS; delay = delay * 3 + 7) {
        b.count = 0;
        b.start_ns = k2_loop_now_ns(b.loop);
        k2_timer *t = k2_timer_start(b.loop, delay, 0, tick, &b);
        run(&b);
        assert_true(b.fired_ns - b.start_ns >= delay);
        /* A timer that fired can be used again, and stopped afterwards. */
        b.count = 0;
        b.start_ns = k2_loop_now_ns(b.loop);
        k2_timer_restart(t, delay, 0);
        run(&b);
        assert_true(b.fired_ns - b.start_ns >= delay);
        k2_timer_stop(t);
    }
    teardown(&b);
}

static void tick_then_stop(void *arg)
{
    bench *b = arg;
    if (++b->count < b->target) return;
    k2_timer_stop(b->timer);
    k2_timer_stop(b->timer);
    k2_loop_stop(b->loop);
}

static void a_repeating_timer_stops_in_its_callback(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    b.target = 5;
    b.timer = k2_timer_start(b.loop, 0, K2_NS_PER_MS, tick_then_stop, &b);
    run(&b);
    assert_int_equal(b.count, 5);
    k2_timer_stop(NULL);
    teardown(&b);
}

static void stop_before_run_counts(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    k2_loop_stop(b.loop);
    run(&b);
    b.target = 1;
    k2_timer *t = k2_timer_start(b.loop, 0, 0, tick, &b);
    run(&b); /* and only once */
    assert_int_equal(b.count, 1);
    k2_timer_stop(t);
    teardown(&b);
}

/* ---- inbox ------------------------------------------------------------------------------------------------------ */

enum { POSTERS = 4, POSTS = 20000 };

static void *poster(void *arg)
{
    bench *b = arg;
    for (int i = 0; i < POSTS; i++)
        while (k2_loop_post(b->loop, tick, b) == K2_FULL) sched_yield();
    return NULL;
}

static void posts_of_many_threads_all_come(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    b.target = POSTERS * POSTS;
    pthread_t threads[POSTERS];
    for (int i = 0; i < POSTERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, poster, &b), 0);
    run(&b);
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(b.count, POSTERS * POSTS);
    teardown(&b);
}

typedef struct note {
    bench *b;
    int number;
} note;

static void write_down(void *arg)
{
    note *n = arg;
    n->b->order[n->b->count++] = n->number;
    if (n->b->count == n->b->target) k2_loop_stop(n->b->loop);
}

static void post_again(void *arg)
{
    note *n = arg;
    assert_int_equal(k2_loop_post(n->b->loop, write_down, n), K2_OK);
}

static void posts_keep_their_order(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    note notes[4] = {{&b, 0}, {&b, 1}, {&b, 2}, {&b, 3}};
    b.target = 4;
    k2_loop_post(b.loop, post_again, &notes[3]);
    for (int i = 0; i < 3; i++) k2_loop_post(b.loop, write_down, &notes[i]);
    run(&b);
    for (int i = 0; i < 4; i++) assert_int_equal(b.order[i], i);
    teardown(&b);
}

static void a_full_inbox_says_so(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    for (unsigned i = 0; i < K2_INBOX_MAX; i++) assert_int_equal(k2_loop_post(b.loop, tick, &b), K2_OK);
    assert_int_equal(k2_loop_post(b.loop, tick, &b), K2_FULL);
    b.target = (int)K2_INBOX_MAX;
    run(&b);
    assert_int_equal(k2_loop_post(b.loop, tick, &b), K2_OK);
    teardown(&b); /* the last one comes here */
    assert_int_equal(b.count, K2_INBOX_MAX + 1);
}

/* ---- worker pool ------------------------------------------------------------------------------------------------ */

typedef struct job {
    bench *b;
    pthread_t loop_thread;
    bool ran, elsewhere, done;
} job;

static void job_run(void *arg)
{
    job *j = arg;
    j->ran = true;
    j->elsewhere = !pthread_equal(pthread_self(), j->loop_thread);
}

static void job_done(void *arg)
{
    job *j = arg;
    assert_false(j->done);
    assert_true(pthread_equal(pthread_self(), j->loop_thread));
    j->done = true;
    tick(j->b);
}

static void work_runs_elsewhere_and_is_done_here(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    job jobs[50];
    b.target = 50;
    for (int i = 0; i < 50; i++) {
        jobs[i] = (job){.b = &b, .loop_thread = pthread_self()};
        assert_int_equal(k2_loop_work(b.loop, job_run, job_done, &jobs[i]), K2_OK);
    }
    run(&b);
    for (int i = 0; i < 50; i++) assert_true(jobs[i].ran && jobs[i].elsewhere && jobs[i].done);
    teardown(&b);
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void job_wait(void *arg)
{
    pthread_mutex_lock(&gate);
    job_run(arg);
    pthread_mutex_unlock(&gate);
}

static void open_gate(void *arg)
{
    (void)arg;
    pthread_mutex_unlock(&gate);
}

static void free_ends_works_and_each_done_comes_once(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    job *jobs = k2_alloc_array(K2_WORK_MAX, sizeof *jobs);
    pthread_mutex_lock(&gate); /* no work gets on before the loop is being freed */
    for (unsigned i = 0; i < K2_WORK_MAX; i++) {
        jobs[i] = (job){.b = &b, .loop_thread = pthread_self()};
        assert_int_equal(k2_loop_work(b.loop, job_wait, job_done, &jobs[i]), K2_OK);
    }
    assert_int_equal(k2_loop_work(b.loop, job_run, job_done, NULL), K2_FULL);
    k2_loop_post(b.loop, open_gate, NULL);
    teardown(&b);
    unsigned ran = 0;
    for (unsigned i = 0; i < K2_WORK_MAX; i++) {
        assert_true(jobs[i].done);
        ran += jobs[i].ran;
    }
    assert_true(ran < K2_WORK_MAX);
    k2_free(jobs);
}

static void free_runs_sure_works_that_have_not_begun(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    job *jobs = k2_alloc_array(K2_WORK_MAX, sizeof *jobs);
    pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < K2_WORK_MAX; i++) {
        jobs[i] = (job){.b = &b, .loop_thread = pthread_self()};
        if (i + 1 < K2_WORK_MAX)
            assert_int_equal(k2_loop_work(b.loop, job_wait, job_done, &jobs[i]), K2_OK);
        else
            k2_loop_work_surely(b.loop, job_run, job_done, &jobs[i]);
    }
    const job *last = &jobs[K2_WORK_MAX - 1];
    assert_false(last->ran || last->done);
    job full = {.b = &b, .loop_thread = pthread_self()};
    k2_loop_work_surely(b.loop, job_run, job_done, &full);
    assert_true(full.ran && full.done && !full.elsewhere);
    k2_loop_post(b.loop, open_gate, NULL);
    teardown(&b);
    assert_true(last->ran && last->done && !last->elsewhere);
    k2_free(jobs);
}

/* ---- signals and the end ----------------------------------------------------------------------------------------- */

static void on_signal(void *arg, int signum)
{
    bench *b = arg;
    assert_int_equal(signum, SIGUSR1);
    tick(b);
}

static void signals_arrive_on_the_loop(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    k2_signal *s = k2_loop_signal(b.loop, SIGUSR1, on_signal, &b);
    b.target = 1;
    raise(SIGUSR1);
    run(&b);
    assert_int_equal(b.count, 1);
    k2_signal_stop(s);
    k2_signal_stop(NULL);
    teardown(&b);
}

static void start_more(void *arg)
{
    bench *b = arg;
    assert_true(k2_loop_ending(b->loop));
    if (++b->count < 5)
        k2_loop_post(b->loop, start_more, b);
    else
        k2_timer_start(b->loop, 3600 * K2_NS_PER_S, 0, tick, b); /* freed unasked */
}

static void nobody_comes(void *arg, k2_conn *c)
{
    (void)arg;
    (void)c;
}

static void free_takes_what_was_left(void **state)
{
    (void)state;
    bench b;
    setup(&b);
    k2_timer_start(b.loop, 3600 * K2_NS_PER_S, 0, tick, &b);
    k2_loop_signal(b.loop, SIGUSR2, on_signal, &b);
    k2_error err;
    assert_non_null(k2_listen(b.loop, "127.0.0.1", 0, 8, nobody_comes, NULL, &err));
    assert_false(k2_loop_ending(b.loop));
    k2_loop_post(b.loop, start_more, &b);
    teardown(&b);
    assert_int_equal(b.count, 5);
    k2_loop_free(NULL);
    assert_true(k2_loop_raise_fd_limit() >= 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(timers_are_never_early),
        cmocka_unit_test(a_repeating_timer_stops_in_its_callback),
        cmocka_unit_test(stop_before_run_counts),
        cmocka_unit_test(posts_of_many_threads_all_come),
        cmocka_unit_test(posts_keep_their_order),
        cmocka_unit_test(a_full_inbox_says_so),
        cmocka_unit_test(work_runs_elsewhere_and_is_done_here),
        cmocka_unit_test(free_ends_works_and_each_done_comes_once),
        cmocka_unit_test(free_runs_sure_works_that_have_not_begun),
        cmocka_unit_test(signals_arrive_on_the_loop),
        cmocka_unit_test(free_takes_what_was_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
