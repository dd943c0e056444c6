/* The report of a process that crashes. The handler only starts a helper and waits: unwinding from outside needs neither our
 * heap nor our locks, which may be what broke. */
#include "common/stack/stack_int.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HELPER_MS_MAX 5000 /* that a crash may be put off for its report */
#define OTHERS_MAX    64u  /* other threads that the report lists */
#define CRASH_LINE    6u   /* functions of ours in the last line */

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

/* ---- in the signal handler: nothing that locks or allocates --------------------------------------------------------- */

static atomic_flag crashing = ATOMIC_FLAG_INIT;
static char report_path[1024]; /* where the report goes besides stderr; "" = nowhere */

static char *put_number(char *at, uint64_t v)
{
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    while (n > 0) *at++ = digits[--n];
    *at++ = ' ';
    *at = 0;
    return at;
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

/* True when the helper has written the report. */
static bool report_from_outside(const char *text)
{
    static char program[] = "/proc/self/exe", name[] = "k2rl", command[] = "stacks", option[] = "--crashed";
    static char copy[128];
    extern char **environ;
    strncpy(copy, text, sizeof copy - 1);
    char *argv[] = {name, command, option, copy, report_path, NULL};
    /* vfork: a fork would copy the tables of all our memory, and call what others have registered for it. */
    pid_t pid = vfork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execve(program, argv, environ);
        _exit(127);
    }
    if (pid < 0) return false;
    for (int ms = 0; ms < HELPER_MS_MAX; ms++) {
        int status;
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (got < 0 && errno != EINTR) return true; /* its end was taken by somebody else */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    kill(pid, SIGKILL);
    return false;
}

static void report_from_inside(int signum)
{
    void *frames[K2_STACK_FRAMES_MAX];
    char text[32] = "";
    (void)put_number(text, (uint64_t)signum);
    say("\n" K2_STACK_CRASH_MARK "signal ");
    say(text);
    say("; the stack could not be taken from outside, these are the crashed thread's addresses:\n");
    backtrace_symbols_fd(frames, backtrace(frames, (int)K2_COUNT(frames)), STDERR_FILENO);
}

static void stack_on_crash(int signum, siginfo_t *info, void *context)
{
    (void)context;
    while (atomic_flag_test_and_set(&crashing)) pause(); /* another thread is at it; the process ends with its report */
    bool sent = info->si_code <= 0;
    char text[128];
    char *at = put_number(text, (uint64_t)signum);
    at = put_number(at, (uint64_t)syscall(SYS_gettid));
    at = put_number(at, sent ? 1 : 0);
    put_number(at, sent ? (uint64_t)info->si_pid : (uint64_t)(uintptr_t)info->si_addr);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (!report_from_outside(text)) report_from_inside(signum);
    signal(signum, SIG_DFL);
    /* Blocked now, it comes when we return: with the registers of the fault, which is what a core dump should show. */
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signum);
}

void k2_stack_report_to(const char *path)
{
    snprintf(report_path, sizeof report_path, "%s", path);
}

void k2_stack_arm(pid_t looker)
{
    if (looker > 0) prctl(PR_SET_PTRACER, (unsigned long)looker, 0, 0, 0);
    if (K2_SANITIZED) return;
    k2_thread_begin();
    void *frame[1];
    (void)backtrace(frame, 1); /* it loads the unwinder now, which it could not in the handler */
    struct sigaction act = {.sa_sigaction = stack_on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < K2_COUNT(crash_signals); i++) sigaction(crash_signals[i], &act, NULL);
}

/* ---- in the helper -------------------------------------------------------------------------------------------------- */

typedef struct crash {
    int signum, tid, sent;
    unsigned long long detail; /* address, or the sender's pid */
} crash;

/* Without the handler and the C library's way into it. */
static k2_stack without_handler(const k2_stack *s)
{
    k2_stack out = *s;
    for (uint32_t i = 0; i + 2 < s->count; i++) {
        if (strcmp(s->frames[i].function, K2I_CRASH_FRAME) != 0) continue;
        out.frames += i + 2;
        out.count -= i + 2;
        break;
    }
    return out;
}

static void put_crashed(k2_buf *b, const crash *c, const k2_stacks *all, const k2_stack *s)
{
    char name[K2_SIGNAL_NAME_MAX], cause[64], line[256];
    bool by_itself = c->sent && c->detail == (unsigned long long)all->proc.pid;
    snprintf(cause, sizeof cause,
             by_itself ? "raised by itself"
             : c->sent ? "sent by pid %llu"
                       : "at address 0x%llx",
             c->detail);
    k2_buf_printf(b, K2_STACK_CRASH_MARK "%s %s, pid %d, thread %d (%s):\n", k2_signal_name(c->signum, name), cause,
                  (int)all->proc.pid, (int)s->tid, s->name);
    for (uint32_t i = 0; i < s->count; i++) {
        k2_frame_text(&s->frames[i], line, sizeof line);
        k2_buf_printf(b, K2_STACK_CRASH_MARK "  %s\n", line);
    }
    for (uint32_t i = 0, told = 0; i < all->count && told < OTHERS_MAX; i++) {
        const k2_stack *other = &all->threads[i];
        if (other->tid == s->tid || !k2_stack_own(other)) continue;
        k2_stack_line(other, CRASH_LINE, line, sizeof line);
        k2_buf_printf(b, K2_STACK_CRASH_MARK "thread %d (%s): %s\n", (int)other->tid, other->name, line);
        told++;
    }
    k2_stack_line(s, CRASH_LINE, line, sizeof line);
    k2_buf_printf(b, K2_STACK_CRASH_MARK "%s %s in %s\n", name, cause, line);
}

static bool put_out(const k2_buf *b, int fd)
{
    return fd >= 0 && write(fd, b->data, b->len) == (ssize_t)b->len;
}

int k2_stack_crashed(const char *text, const char *path)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    crash c;
    k2_proc proc;
    k2_stacks all;
    k2_error err;
    if (sscanf(text, "%d %d %d %llu", &c.signum, &c.tid, &c.sent, &c.detail) != 4 || !k2_proc_read(getppid(), &proc)) return 1;
    if (k2_stacks_take(&proc, HELPER_MS_MAX / 4 * K2_NS_PER_MS, &all, &err) != K2_OK) return 1;
    k2_buf b;
    k2_buf_init(&b, 1 << 20);
    for (uint32_t i = 0; i < all.count; i++) {
        if (all.threads[i].tid != c.tid) continue;
        k2_stack s = without_handler(&all.threads[i]);
        put_crashed(&b, &c, &all, &s);
    }
    bool told = b.len > 0 && put_out(&b, STDERR_FILENO);
    int fd = path && path[0] && b.len > 0 ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    told = put_out(&b, fd) || told;
    if (fd >= 0) close(fd);
    k2_buf_fini(&b);
    k2_stacks_free(&all);
    return told ? 0 : 1;
}
