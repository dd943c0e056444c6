/* Processes that crash in each way: what they write, and that they end as they would have without us. This program is its own
 * helper: the handler starts /proc/self/exe as "stacks --crashed". */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/stack/stack.h"

static volatile int sink;
static int *volatile nowhere;

__attribute__((noinline)) static void crash_by_store(void)
{
    *nowhere = 1;
    sink++;
}

__attribute__((noinline)) static void crash_by_assertion(void)
{
    K2_ASSERT(sink < 0);
    sink++;
}

__attribute__((noinline)) static void crash_by_free(void)
{
    char *volatile p = malloc(32);
    free(p);
    free(p);
    sink++;
}

__attribute__((noinline)) static int crash_by_recursion(int depth)
{
    volatile char room[4096];
    room[0] = (char)depth;
    return depth < 0 ? 0 : crash_by_recursion(depth + 1) + room[0];
}

__attribute__((noinline)) static void *crash_in_thread(void *arg)
{
    (void)arg;
    crash_by_store();
    return NULL;
}

static void by_recursion(void)
{
    sink = crash_by_recursion(sink);
}

__attribute__((noinline)) static void *recursion_in_thread(void *arg)
{
    (void)arg;
    k2_thread_begin();
    sink = crash_by_recursion(sink);
    return NULL;
}

static void run_thread(void *(*fn)(void *arg))
{
    pthread_t t;
    if (pthread_create(&t, NULL, fn, NULL) != 0) abort();
    pthread_join(t, NULL);
}

static void in_thread(void)
{
    run_thread(crash_in_thread);
}

static void by_recursion_in_thread(void)
{
    run_thread(recursion_in_thread);
}

static char output[65536];

/* The signal that ends a process that calls `crash`; what it wrote is in `output`. */
static int ended_by(void (*crash)(void))
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        k2_stack_arm(0);
        crash();
        _exit(0);
    }
    close(ends[1]);
    size_t at = 0;
    for (ssize_t n; at + 1 < sizeof output && (n = read(ends[0], output + at, sizeof output - at - 1)) != 0;) {
        if (n < 0 && errno != EINTR) break;
        at += n > 0 ? (size_t)n : 0;
    }
    output[at] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void assert_says(const char *text)
{
    if (!strstr(output, text)) fail_msg("'%s' is not in:\n%s", text, output);
}

/* The first frame of the report. */
static void assert_first(const char *function)
{
    const char *at = strstr(output, K2_STACK_CRASH_MARK "  ");
    if (!at || strncmp(at + sizeof K2_STACK_CRASH_MARK + 1, function, strlen(function)) != 0)
        fail_msg("%s is not first in:\n%s", function, output);
}

static void a_store_to_nowhere(void **state)
{
    (void)state;
    assert_int_equal(ended_by(crash_by_store), SIGSEGV);
    assert_says(K2_STACK_CRASH_MARK "SIGSEGV at address 0x0, pid ");
    assert_first("crash_by_store (");
    assert_says("crash_test.c:");
    assert_says(K2_STACK_CRASH_MARK "SIGSEGV at address 0x0 in crash_by_store < ended_by < ");
}

static void an_assertion(void **state)
{
    (void)state;
    assert_int_equal(ended_by(crash_by_assertion), SIGABRT);
    assert_says("assertion failed: sink < 0");
    assert_says("SIGABRT raised by itself");
    assert_says("< k2_assert_fail < crash_by_assertion < ");
}

static void a_broken_heap(void **state)
{
    (void)state;
    assert_int_equal(ended_by(crash_by_free), SIGABRT);
    assert_says("< crash_by_free < ended_by");
}

static void a_stack_that_runs_over(void **state)
{
    (void)state;
    assert_int_equal(ended_by(by_recursion), SIGSEGV);
    assert_first("crash_by_recursion (");
}

static void a_thread_s_stack_that_runs_over(void **state)
{
    (void)state;
    assert_int_equal(ended_by(by_recursion_in_thread), SIGSEGV);
    assert_first("crash_by_recursion (");
}

static void a_thread(void **state)
{
    (void)state;
    assert_int_equal(ended_by(in_thread), SIGSEGV);
    assert_first("crash_by_store (");
    assert_says("in_thread"); /* where the main thread waits */
}

static void without_a_helper(void **state)
{
    (void)state;
    setenv("K2_TEST_NO_HELPER", "1", 1);
    assert_int_equal(ended_by(crash_by_store), SIGSEGV);
    unsetenv("K2_TEST_NO_HELPER");
    assert_says("signal 11 ; the stack could not be taken from outside");
    assert_says("stack_crash_test"); /* the program, with an address */
}

static void another_file_has_it_too(void **state)
{
    (void)state;
    char path[] = "/tmp/k2rl_crash_XXXXXX", *text;
    int fd = mkstemp(path);
    size_t n;
    assert_true(fd >= 0);
    close(fd);
    k2_stack_report_to(path);
    assert_int_equal(ended_by(crash_by_store), SIGSEGV);
    k2_stack_report_to("");
    assert_int_equal(k2_file_read(path, sizeof output, &text, &n, NULL), K2_OK);
    assert_string_equal(text, output);
    k2_free(text);
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "stacks") == 0)
        return getenv("K2_TEST_NO_HELPER") ? 1 : k2_stack_crashed(argv[3], argc > 4 ? argv[4] : NULL);
    if (K2_SANITIZED) {
        puts("SKIPPED: a sanitizer owns these signals");
        return 77;
    }
    if (ended_by(crash_by_store) == SIGSEGV && strstr(output, "could not be taken from outside")) {
        puts("SKIPPED: the kernel does not let us trace here");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_to_nowhere),
        cmocka_unit_test(an_assertion),
        cmocka_unit_test(a_broken_heap),
        cmocka_unit_test(a_stack_that_runs_over),
        cmocka_unit_test(a_thread_s_stack_that_runs_over),
        cmocka_unit_test(a_thread),
        cmocka_unit_test(without_a_helper),
        cmocka_unit_test(another_file_has_it_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
