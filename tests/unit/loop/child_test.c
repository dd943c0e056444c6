/* loop's children: ends by code and by signal, groups, environment, files, the io stream, and that none outlives its parent.
 *
 * Run as `child_test --parent FILE` it is the parent of the last kind of test: it spawns a child that would live for long,
 * writes both pids into FILE, and waits to be killed. */
#include "common/loop/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define GUARD_NS (30 * K2_NS_PER_S)

static const char *self; /* path of this program */

typedef struct bench {
    k2_loop *loop;
    k2_timer *guard;
    char dir[32];
    k2_child *child, *other;
    int exits, closes, code, signum;
    k2_buf output;
} bench;

static void guard(void *arg)
{
    (void)arg;
    fail_msg("the test's loop did not end");
}

static int setup(void **state)
{
    bench *b = k2_alloc(sizeof *b);
    b->loop = k2_loop_new();
    b->guard = k2_timer_start(b->loop, GUARD_NS, 0, guard, NULL);
    k2_buf_init(&b->output, 1 << 20);
    snprintf(b->dir, sizeof b->dir, "/tmp/k2_child_XXXXXX");
    if (!mkdtemp(b->dir)) return -1;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    k2_timer_stop(b->guard);
    k2_loop_free(b->loop);
    k2_buf_fini(&b->output);
    k2_code code = k2_dir_remove(b->dir, NULL);
    k2_free(b);
    return code == K2_OK ? 0 : -1;
}

static void on_exit_stop(void *arg, int exit_code, int term_signal)
{
    bench *b = arg;
    b->exits++;
    b->code = exit_code;
    b->signum = term_signal;
    b->child = NULL;
    k2_loop_stop(b->loop);
}

static k2_child *spawn(bench *b, const char *const *argv)
{
    k2_error err = {0};
    k2_child *c = k2_child_spawn(b->loop, &(k2_child_spec){.argv = argv, .on_exit = on_exit_stop, .arg = b}, &err);
    if (!c) fail_msg("%s", err.text);
    return c;
}

static void run_to_exit(bench *b)
{
    int before = b->exits;
    while (b->exits == before) k2_loop_run(b->loop);
}

#define SH(script) ((const char *const[]){"sh", "-c", (script), NULL})

static void exit_codes_arrive(void **state)
{
    bench *b = *state;
    static const struct {
        const char *script;
        int code, signum;
    } cases[] = {{"exit 0", 0, 0}, {"exit 7", 7, 0}, {"kill -TERM $$", 0, SIGTERM}, {"kill -SEGV $$", 0, SIGSEGV}};
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        b->child = spawn(b, SH(cases[i].script));
        assert_true(k2_child_pid(b->child) > 0);
        run_to_exit(b);
        assert_int_equal(b->code, cases[i].code);
        assert_int_equal(b->signum, cases[i].signum);
    }
}

static void a_guard_ends_as_its_program_does(void **state)
{
    bench *b = *state;
    static const struct {
        const char *text;
        int code, signum;
    } cases[] = {
        {"exit 0", 0, 0}, {"exit 7", 7, 0}, {"kill -9 $$", 0, 9}, {"kill -15 $$", 0, 15}, {"sleep 1000 & exit 3", 3, 0}};
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        const char *const argv[] = {"sh", "-c", cases[i].text, NULL};
        k2_error err = {0};
        k2_child_spec spec = {.argv = argv, .on_exit = on_exit_stop, .arg = b, .guarded = true};
        b->child = k2_child_spawn(b->loop, &spec, &err);
        assert_non_null(b->child);
        while (b->child) k2_loop_run(b->loop);
        assert_int_equal(b->code, cases[i].code);
        assert_int_equal(b->signum, cases[i].signum);
    }
    const char *const none[] = {"/no/such", NULL};
    k2_error err = {0};
    assert_null(k2_child_spawn(b->loop, &(k2_child_spec){.argv = none, .on_exit = on_exit_stop, .guarded = true}, &err));
    assert_string_equal(err.text, "program /no/such: No such file or directory");
}

static void kill_reaches_the_whole_group(void **state)
{
    bench *b = *state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    /* The grandchild holds the pipe's write end; when all are gone, reading gives the end. */
    char *script = k2_asprintf("exec 9>/proc/%d/fd/%d; sleep 1000 & sleep 1000 & wait", getpid(), ends[1]);
    b->child = spawn(b, SH(script));
    pid_t pid = k2_child_pid(b->child);
    assert_int_equal(getpgid(pid), pid);
    k2_child_kill(b->child, SIGKILL);
    run_to_exit(b);
    assert_int_equal(b->signum, SIGKILL);
    close(ends[1]);
    char byte;
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
    k2_free(script);
}

static void what_a_leader_leaves_behind_is_killed(void **state)
{
    bench *b = *state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    char *script = k2_asprintf("exec 9>/proc/%d/fd/%d; sleep 1000 & exit 3", getpid(), ends[1]);
    b->child = spawn(b, SH(script));
    run_to_exit(b);
    assert_int_equal(b->code, 3);
    close(ends[1]);
    char byte;
    assert_int_equal(read(ends[0], &byte, 1), 0);
    close(ends[0]);
    k2_free(script);
}

static void files_environment_and_directory(void **state)
{
    bench *b = *state;
    char *out = k2_asprintf("%s/out", b->dir), *text;
    size_t n;
    assert_int_equal(setenv("K2_TEST_OURS", "ours", 1), 0);
    assert_int_equal(setenv("K2_TEST_GONE", "x", 1), 0);
    k2_error err;
    k2_child_spec spec = {
        .argv = SH("echo $K2_TEST_OURS $K2_TEST_NEW ${K2_TEST_GONE-unset}; pwd; echo err >&2; ls /proc/self/fd | wc -l; cat"),
        .env = (const char *const[]){"K2_TEST_NEW=new value", "K2_TEST_GONE", NULL},
        .cwd = b->dir,
        .stdout_path = out,
        .stderr_path = out,
        .on_exit = on_exit_stop,
        .arg = b};
    int leaked = open("/dev/null", O_RDONLY); /* without close-on-exec: must not come through */
    for (int round = 1; round <= 2; round++) {
        assert_non_null(k2_child_spawn(b->loop, &spec, &err));
        run_to_exit(b);
        assert_int_equal(b->code, 0);
    }
    close(leaked);
    assert_int_equal(k2_file_read(out, 10000, &text, &n, &err), K2_OK);
    char *once = k2_asprintf("ours new value unset\n%s\nerr\n4\n", b->dir), *twice = k2_asprintf("%s%s", once, once);
    assert_string_equal(text, twice); /* appended */
    k2_free(text);
    k2_free(once);
    k2_free(twice);
    k2_free(out);
}

static void what_cannot_start_says_why(void **state)
{
    bench *b = *state;
    k2_error err;
    k2_child_spec spec = {.argv = (const char *const[]){"k2-no-such-program", NULL}, .on_exit = on_exit_stop, .arg = b};
    assert_null(k2_child_spawn(b->loop, &spec, &err));
    assert_int_equal(err.code, K2_NOT_FOUND);
    assert_non_null(strstr(err.text, "k2-no-such-program"));
    spec.argv = (const char *const[]){"/etc/passwd", NULL};
    assert_null(k2_child_spawn(b->loop, &spec, &err));
    assert_int_equal(err.code, K2_IO);
    assert_non_null(strstr(err.text, "program /etc/passwd: "));
    spec.argv = SH("true");
    spec.cwd = "/no such directory";
    assert_null(k2_child_spawn(b->loop, &spec, &err));
    assert_non_null(strstr(err.text, "/no such directory"));
    spec.cwd = NULL;
    spec.stdout_path = "/no such directory/out";
    assert_null(k2_child_spawn(b->loop, &spec, &err));
    assert_non_null(strstr(err.text, "/no such directory/out"));
    assert_int_equal(b->exits, 0);
}

/* ---- the io stream ----------------------------------------------------------------------------------------------- */

static void io_read(void *arg, const char *data, size_t n)
{
    bench *b = arg;
    assert_true(k2_buf_append(&b->output, data, n));
    k2_loop_stop(b->loop);
}

static void io_close(void *arg, k2_code why, const char *text)
{
    bench *b = arg;
    (void)why;
    (void)text;
    b->closes++;
    k2_loop_stop(b->loop);
}

static const k2_stream_ops io_ops = {.on_read = io_read, .on_close = io_close};

static void a_filter_is_written_and_read(void **state)
{
    bench *b = *state;
    k2_error err;
    k2_child_spec spec = {
        .argv = (const char *const[]){"tr", "a-z", "A-Z", NULL}, .io = &io_ops, .io_arg = b, .on_exit = on_exit_stop, .arg = b};
    b->child = k2_child_spawn(b->loop, &spec, &err);
    assert_non_null(b->child);
    k2_conn *io = k2_child_io(b->child);
    assert_non_null(io);
    char peer[K2_ADDRESS_MAX];
    k2_conn_peer(io, peer);
    assert_string_equal(peer, "-");
    for (int i = 0; i < 1000; i++) assert_int_equal(k2_conn_write(io, "some words, then more\n", 22), K2_OK);
    k2_conn_finish(io); /* the filter sees the end of its input, and its output still comes */
    while (b->closes == 0 || b->exits == 0) k2_loop_run(b->loop);
    assert_int_equal(b->code, 0);
    assert_int_equal(b->output.len, 22000);
    assert_memory_equal(b->output.data, "SOME WORDS, THEN MORE\nSOME", 26);
}

static void an_io_stream_may_outlive_its_child_and_the_other_way(void **state)
{
    bench *b = *state;
    k2_error err;
    k2_child_spec spec = {.argv = SH("echo last words"), .io = &io_ops, .io_arg = b, .on_exit = on_exit_stop, .arg = b};
    k2_child *c = k2_child_spawn(b->loop, &spec, &err);
    assert_non_null(c);
    k2_conn_read_stop(k2_child_io(c));
    k2_conn *io = k2_child_io(c);
    run_to_exit(b);
    assert_int_equal(b->output.len, 0);
    k2_conn_read_start(io);
    while (b->closes == 0) k2_loop_run(b->loop);
    assert_string_equal(b->output.data, "last words\n");

    spec.argv = (const char *const[]){"sleep", "1000", NULL};
    c = k2_child_spawn(b->loop, &spec, &err);
    k2_conn_close(k2_child_io(c));
    while (b->closes == 1) k2_loop_run(b->loop);
    assert_null(k2_child_io(c));
    k2_child_abandon(c);
}

/* ---- the n-th descriptor cannot be had -------------------------------------------------------------------------------- */

static int open_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void every_descriptor_may_be_the_last(void **state)
{
    bench *b = *state;
    b->child = spawn(b, SH("true")); /* what the loop itself needs for children is there after the first */
    run_to_exit(b);
    char *out = k2_asprintf("%s/out", b->dir);
    k2_child_spec spec = {.argv = SH("exit 5"),
                          .stdout_path = out,
                          .stderr_path = out,
                          .io = &io_ops,
                          .io_arg = b,
                          .on_exit = on_exit_stop,
                          .arg = b};
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    int fds = open_fds(), failed = 0;
    for (bool started = false; !started; failed++) {
        few = (struct rlimit){.rlim_cur = (rlim_t)(fds + failed), .rlim_max = before.rlim_max};
        k2_error err = {0};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        k2_child *c = k2_child_spawn(b->loop, &spec, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        started = c != NULL;
        if (started) break;
        assert_true(err.text[0] != 0 && err.code == K2_IO);
        assert_int_equal(open_fds(), fds); /* nothing half-done */
        assert_true(failed < 20);
    }
    assert_true(failed >= 4);
    run_to_exit(b);
    assert_int_equal(b->code, 5);
    k2_free(out);
}

/* ---- the end ------------------------------------------------------------------------------------------------------ */

static void abandon_one_in_anothers_exit(void *arg, int exit_code, int term_signal)
{
    bench *b = arg;
    k2_child_abandon(b->other);
    b->other = NULL;
    on_exit_stop(arg, exit_code, term_signal);
}

static void other_exit(void *arg, int exit_code, int term_signal)
{
    bench *b = arg;
    assert_true(exit_code == 1 && term_signal == 0);
    b->other = NULL; /* it was first: nothing is left to abandon */
}

static void abandoned_children_are_not_heard_of(void **state)
{
    bench *b = *state;
    k2_error err;
    k2_child_abandon(NULL);
    for (int i = 0; i < 20; i++) {
        k2_child_spec other = {.argv = i % 2 ? SH("exit 1") : SH("sleep 1000"), .on_exit = other_exit, .arg = b};
        b->other = k2_child_spawn(b->loop, &other, &err); /* with luck both end in one turn of the loop */
        assert_non_null(b->other);
        k2_child_spec spec = {.argv = SH("exit 0"), .on_exit = abandon_one_in_anothers_exit, .arg = b};
        assert_non_null(k2_child_spawn(b->loop, &spec, &err));
        run_to_exit(b);
    }
}

static void the_loops_end_kills_and_tells(void **state)
{
    bench *b = *state;
    k2_loop *loop = k2_loop_new();
    k2_error err;
    k2_child_spec spec = {.argv = (const char *const[]){"sleep", "1000", NULL}, .on_exit = on_exit_stop, .arg = b};
    k2_child *c = k2_child_spawn(loop, &spec, &err);
    pid_t pid = k2_child_pid(c);
    k2_loop_free(loop);
    assert_int_equal(b->exits, 1);
    assert_int_equal(b->signum, SIGKILL);
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(errno, ESRCH);
}

static int be_a_parent(const char *file)
{
    k2_loop *loop = k2_loop_new();
    bench b = {.loop = loop};
    k2_error err;
    k2_child_spec spec = {.argv = (const char *const[]){"sleep", "1000", NULL}, .on_exit = on_exit_stop, .arg = &b};
    k2_child *c = k2_child_spawn(loop, &spec, &err);
    if (!c) return 1;
    char text[64];
    int n = snprintf(text, sizeof text, "%d", (int)k2_child_pid(c));
    if (k2_file_write_atomic(file, text, (size_t)n, &err) != K2_OK) return 1;
    k2_loop_run(loop);
    return 0;
}

static void kill_9_of_the_parent_kills_the_child(void **state)
{
    bench *b = *state;
    char *file = k2_asprintf("%s/pid", b->dir), *text = NULL;
    size_t n;
    b->child = spawn(b, (const char *const[]){self, "--parent", file, NULL});
    while (k2_file_read(file, 100, &text, &n, NULL) != K2_OK) {
        k2_timer *t = k2_timer_start(b->loop, K2_NS_PER_MS, 0, (void (*)(void *))k2_loop_stop, b->loop);
        k2_loop_run(b->loop);
        k2_timer_stop(t);
        assert_non_null(b->child); /* it has not given up */
    }
    pid_t grandchild = (pid_t)atoi(text), parent = k2_child_pid(b->child);
    k2_free(text);
    k2_free(file);
    assert_int_equal(kill(grandchild, 0), 0);
    /* Its orphans come to us, so that we can wait for the grandchild itself instead of asking again and again. */
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    assert_int_equal(kill(parent, SIGKILL), 0); /* the process alone, as from outside */
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)parent, &info, WEXITED | WNOWAIT), 0); /* from here on the grandchild is ours */
    int status;
    assert_int_equal(waitpid(grandchild, &status, 0), grandchild);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    while (b->child) k2_loop_run(b->loop);
    assert_int_equal(b->signum, SIGKILL);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 3 && strcmp(argv[1], "--parent") == 0) return be_a_parent(argv[2]);
    const struct CMUnitTest tests[] = {
        T(exit_codes_arrive),
        T(a_guard_ends_as_its_program_does),
        T(kill_reaches_the_whole_group),
        T(what_a_leader_leaves_behind_is_killed),
        T(files_environment_and_directory),
        T(what_cannot_start_says_why),
        T(a_filter_is_written_and_read),
        T(an_io_stream_may_outlive_its_child_and_the_other_way),
        T(every_descriptor_may_be_the_last),
        T(abandoned_children_are_not_heard_of),
        T(the_loops_end_kills_and_tells),
        T(kill_9_of_the_parent_kills_the_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
