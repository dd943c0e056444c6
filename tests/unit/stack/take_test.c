/* Real processes: stacks of a running and of a stopped one, and what is left of the hold when the holder is killed. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/stack/stack_int.h"

static volatile int sink;

/* Each byte on its stdin is answered: the target lives and is where we think. */
__attribute__((noinline)) static void target_waits_for_a_byte(int in, int out)
{
    char c;
    while (read(in, &c, 1) == 1)
        if (write(out, &c, 1) != 1) break;
    sink++; /* no tail call: the frame stays */
}

__attribute__((noinline)) static void *target_thread(void *arg)
{
    int *gate = arg;
    char c = 'y';
    if (write(gate[1], &c, 1) != 1 || read(gate[2], &c, 1) < 0) abort();
    sink++;
    return NULL;
}

typedef struct target {
    pid_t pid;
    int in, out;
} target;

static void target_main(int in, int out)
{
    int gate[4]; /* ready, never */
    char c;
    pthread_t t;
    if (pipe(gate) != 0 || pipe(gate + 2) != 0 || pthread_create(&t, NULL, target_thread, gate) != 0) _exit(1);
    if (read(gate[0], &c, 1) != 1) _exit(1);
    target_waits_for_a_byte(in, out);
    _exit(0);
}

static void ask(const target *t)
{
    char c = 'x', back = 0;
    assert_int_equal(write(t->in, &c, 1), 1);
    assert_int_equal(read(t->out, &back, 1), 1);
    assert_int_equal(back, c);
}

static target target_start(void)
{
    int to[2], from[2];
    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    target t = {.pid = fork(), .in = to[1], .out = from[0]};
    if (t.pid == 0) {
        close(to[1]);
        close(from[0]);
        target_main(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    ask(&t);
    return t;
}

static void target_end(target *t)
{
    kill(t->pid, SIGKILL);
    while (waitpid(t->pid, NULL, 0) < 0 && errno == EINTR) continue;
    close(t->in);
    close(t->out);
}

static char state_of(pid_t pid)
{
    k2_proc p;
    return k2_proc_read(pid, &p) ? p.state : 0;
}

static void stop(const target *t)
{
    int status;
    kill(t->pid, SIGSTOP);
    assert_int_equal(waitpid(t->pid, &status, WUNTRACED), t->pid);
    assert_true(WIFSTOPPED(status));
}

/* The kernel wakes each thread and puts it to sleep again, all by itself: it is in no program's hands meanwhile. */
static void assert_stopped(const target *t)
{
    char c = 'x';
    assert_int_equal(write(t->in, &c, 1), 1); /* it must not answer: only SIGCONT wakes it */
    for (uint64_t until = k2_now_ns() + 10 * K2_NS_PER_S; state_of(t->pid) != 'T' && k2_now_ns() < until;) sched_yield();
    assert_int_equal(state_of(t->pid), 'T');
    struct pollfd p = {.fd = t->out, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    kill(t->pid, SIGCONT);
    assert_int_equal(read(t->out, &c, 1), 1);
}

static bool has(const k2_stacks *s, const char *function)
{
    for (uint32_t i = 0; i < s->count; i++)
        for (uint32_t k = 0; k < s->threads[i].count; k++)
            if (strcmp(s->threads[i].frames[k].function, function) == 0 && s->threads[i].frames[k].own) return true;
    return false;
}

static void take(const target *t, k2_stacks *out)
{
    k2_proc p;
    k2_error err = {0};
    assert_true(k2_proc_read(t->pid, &p));
    if (k2_stacks_take(&p, 5 * K2_NS_PER_S, out, &err) != K2_OK) fail_msg("%s", err.text);
    assert_int_equal(out->count, 2);
    assert_true(has(out, "target_waits_for_a_byte"));
    assert_true(has(out, "target_thread"));
    bool line = false;
    for (uint32_t k = 0; k < out->threads[0].count; k++)
        line = line || (strstr(out->threads[0].frames[k].file, "take_test.c") && out->threads[0].frames[k].line > 0);
    assert_true(line);
}

static void a_running_process_goes_on(void **state)
{
    (void)state;
    target t = target_start();
    for (int i = 0; i < 20; i++) {
        k2_stacks s;
        take(&t, &s);
        k2_stacks_free(&s);
        ask(&t);
    }
    target_end(&t);
}

static void a_stopped_process_stays_stopped(void **state)
{
    (void)state;
    target t = target_start();
    stop(&t);
    k2_stacks s;
    take(&t, &s);
    assert_int_equal(s.threads[0].state, 'T');
    k2_stacks_free(&s);
    assert_stopped(&t);
    ask(&t);
    target_end(&t);
}

/* A process that holds ours still and is killed in the middle. */
static void hold_and_die(const target *t)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t holder = fork();
    if (holder == 0) {
        k2i_hold h;
        uint32_t missing = 0;
        k2_error err;
        char c = k2i_hold_begin(&h, t->pid, 5 * K2_NS_PER_S, &missing, &err) == K2_OK && missing == 0;
        if (write(ready[1], &c, 1) != 1) _exit(1);
        pause();
    }
    char held = 0;
    assert_int_equal(read(ready[0], &held, 1), 1);
    assert_int_equal(held, 1);
    kill(holder, SIGKILL);
    assert_int_equal(waitpid(holder, NULL, 0), holder);
    close(ready[0]);
    close(ready[1]);
}

static void a_killed_holder_leaves_nothing(void **state)
{
    (void)state;
    target t = target_start();
    hold_and_die(&t);
    ask(&t);
    stop(&t);
    hold_and_die(&t);
    assert_stopped(&t);
    target_end(&t);
}

static void another_with_that_number_is_refused(void **state)
{
    (void)state;
    target t = target_start();
    k2_proc p;
    k2_stacks s;
    k2_error err;
    assert_true(k2_proc_read(t.pid, &p));
    p.start++;
    assert_int_equal(k2_stacks_take(&p, K2_NS_PER_S, &s, &err), K2_NOT_FOUND);
    assert_non_null(strstr(err.text, "another process has its number"));
    ask(&t);
    target_end(&t);
    assert_int_equal(k2_stacks_take(&p, K2_NS_PER_S, &s, &err), K2_NOT_FOUND);
}

static void one_that_is_traced_already_is_told_from_outside(void **state)
{
    (void)state;
    target t = target_start();
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t debugger = fork();
    if (debugger == 0) {
        char c = ptrace(PTRACE_SEIZE, t.pid, NULL, NULL) == 0;
        if (write(ready[1], &c, 1) != 1) _exit(1);
        pause();
    }
    char c = 0;
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(c, 1);
    k2_proc p;
    k2_stacks s;
    k2_error err;
    assert_true(k2_proc_read(t.pid, &p));
    assert_int_equal(k2_stacks_take(&p, K2_NS_PER_S, &s, &err), K2_PEER_REFUSED);
    assert_null(strchr(err.text, '\n'));
    k2_buf b;
    k2_buf_init(&b, 4096);
    k2_stacks_outside(&p, &b);
    assert_null(b.len ? strchr(b.data, '\n') : NULL);
    k2_buf_fini(&b);
    kill(debugger, SIGKILL);
    assert_int_equal(waitpid(debugger, NULL, 0), debugger);
    close(ready[0]);
    close(ready[1]);
    target_end(&t);
}

int main(void)
{
    target t = target_start();
    k2_error err = {0};
    k2i_hold h;
    uint32_t missing;
    k2_code code = k2i_hold_begin(&h, t.pid, K2_NS_PER_S, &missing, &err);
    if (code == K2_OK) k2i_hold_end(&h);
    target_end(&t);
    if (code == K2_PEER_REFUSED) { /* a container's seccomp filter may forbid it */
        printf("SKIPPED: %s\n", err.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_running_process_goes_on),
        cmocka_unit_test(a_stopped_process_stays_stopped),
        cmocka_unit_test(a_killed_holder_leaves_nothing),
        cmocka_unit_test(another_with_that_number_is_refused),
        cmocka_unit_test(one_that_is_traced_already_is_told_from_outside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
