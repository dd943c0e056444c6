/* What holds for every way to start processes: run over `local` and `fake`. */
#include "common/launch/launch.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GUARD_NS (30 * K2_NS_PER_S)

typedef struct bench {
    const char *kind;
    k2_loop *loop;
    k2_timer *guard;
    k2_launch *launch;
    int exits, code, signum;
} bench;

static void guard(void *arg)
{
    (void)arg;
    fail_msg("the test's loop did not end");
}

static void on_exit_stop(void *arg, int exit_code, int term_signal)
{
    bench *b = arg;
    b->exits++;
    b->code = exit_code;
    b->signum = term_signal;
    k2_loop_stop(b->loop);
}

static int setup(void **state)
{
    bench *b = k2_alloc(sizeof *b);
    b->kind = *state; /* cmocka gives the test's initial state here */
    b->loop = k2_loop_new();
    b->guard = k2_timer_start(b->loop, GUARD_NS, 0, guard, NULL);
    k2_error err;
    b->launch = k2_launch_open(b->loop, b->kind, NULL, &err);
    if (!b->launch) return -1;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    int exits = b->exits;
    k2_timer_stop(b->guard);
    k2_launch_close(b->launch);
    k2_launch_close(NULL);
    k2_loop_free(b->loop);
    int told = b->exits - exits; /* whoever was left was abandoned */
    k2_free(b);
    return told == 0 ? 0 : -1;
}

/* A process that ends by itself with this code, in the manner of each kind. */
static k2_launch_proc *start(bench *b, const char *script, uint32_t index)
{
    const char *const argv[] = {"sh", "-c", script, NULL};
    k2_error err = {0};
    k2_launch_proc *p = k2_launch_start(
        b->launch, &(k2_launch_spec){.role = "rollout", .index = index, .argv = argv, .on_exit = on_exit_stop, .arg = b}, &err);
    if (!p) fail_msg("%s", err.text);
    return p;
}

static void end_with(bench *b, k2_launch_proc *p, int code)
{
    if (strcmp(b->kind, "fake") == 0) k2_launch_fake_end(p, code, 0);
}

static void until(bench *b, int exits)
{
    while (b->exits < exits) k2_loop_run(b->loop);
}

static void exit_is_told_with_its_code(void **state)
{
    bench *b = *state;
    k2_launch_proc *p = start(b, "exit 3", 7);
    char name[K2_LAUNCH_NAME_MAX];
    k2_launch_describe(p, name);
    assert_non_null(strstr(name, "rollout-7"));
    assert_int_equal(k2_launch_pid(p) > 0, strcmp(b->kind, "fake") != 0);
    end_with(b, p, 3);
    assert_int_equal(b->exits, 0);
    until(b, 1);
    assert_int_equal(b->code, 3);
    assert_int_equal(b->signum, 0);
}

static void kill_ends_with_the_signal(void **state)
{
    bench *b = *state;
    k2_launch_proc *p = start(b, "sleep 1000", 0);
    k2_launch_kill(p, SIGKILL);
    k2_launch_kill(p, SIGKILL);
    assert_int_equal(b->exits, 0);
    until(b, 1);
    assert_int_equal(b->code, 0);
    assert_int_equal(b->signum, SIGKILL);
    p = start(b, "sleep 1000", 0);
    k2_launch_kill(p, SIGTERM);
    until(b, 2);
    assert_int_equal(b->signum, SIGTERM);
}

static void the_abandoned_are_not_heard_of(void **state)
{
    bench *b = *state;
    k2_launch_proc *p = start(b, "sleep 1000", 0), *q = start(b, "exit 0", 1), *r = start(b, "exit 1", 2);
    end_with(b, r, 1);
    k2_launch_abandon(p);
    k2_launch_abandon(NULL);
    end_with(b, q, 0);
    until(b, 2);
    start(b, "sleep 1000", 3); /* left to teardown */
    start(b, "sleep 1000", 4);
    assert_int_equal(b->exits, 2);
}

static void kinds_have_names_and_capabilities(void **state)
{
    bench *b = *state;
    assert_string_equal(k2_launch_ops_of(b->launch)->name, b->kind);
    k2_error err;
    assert_null(k2_launch_open(b->loop, "carrier pigeon", NULL, &err));
    assert_int_equal(err.code, K2_UNSUPPORTED);
    assert_string_equal(err.text, "launcher 'carrier pigeon' found, one of local, fake expected");
}

/* ---- local only --------------------------------------------------------------------------------------------------- */

static void local_gives_token_environment_and_log(void **state)
{
    bench *b = *state;
    char dir[] = "/tmp/k2_launch_XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/out.log", dir), *text;
    const char *const argv[] = {"sh", "-c", "echo $K2RL_TOKEN $A; echo err >&2", NULL};
    k2_launch_spec spec = {.role = "trainer",
                           .argv = argv,
                           .env = (const char *const[]){"A=b", NULL},
                           .token = "secret",
                           .log_path = path,
                           .on_exit = on_exit_stop,
                           .arg = b};
    k2_error err;
    assert_non_null(k2_launch_start(b->launch, &spec, &err));
    until(b, 1);
    size_t n;
    assert_int_equal(k2_file_read(path, 1000, &text, &n, &err), K2_OK);
    assert_string_equal(text, "secret b\nerr\n");
    k2_free(text);
    spec.argv = (const char *const[]){"k2-no-such-program", NULL};
    assert_null(k2_launch_start(b->launch, &spec, &err));
    assert_int_equal(err.code, K2_NOT_FOUND);
    assert_non_null(strstr(err.text, "cannot start trainer-0: program k2-no-such-program"));
    assert_int_equal(b->exits, 1);
    /* Without a program it is this very one, here with an argument that makes it answer at once. */
    spec.argv = (const char *const[]){NULL, "--answer", NULL};
    assert_non_null(k2_launch_start(b->launch, &spec, &err));
    until(b, 2);
    assert_int_equal(b->code, 42);
    k2_free(path);
    assert_int_equal(k2_dir_remove(dir, &err), K2_OK);
}

#define T(f, kind)                                                                                                             \
    {                                                                                                                          \
#f "/" kind, f, setup, teardown, (void *)(uintptr_t)(kind)                                                             \
    }
#define BOTH(f) T(f, "local"), T(f, "fake")

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--answer") == 0) return 42;
    const struct CMUnitTest tests[] = {
        BOTH(exit_is_told_with_its_code),
        BOTH(kill_ends_with_the_signal),
        BOTH(the_abandoned_are_not_heard_of),
        BOTH(kinds_have_names_and_capabilities),
        T(local_gives_token_environment_and_log, "local"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
