/* Child processes: fork and exec by hand, because the kernel's parent-death signal has to be asked for between the two.
 *
 * Between fork and exec only async-signal-safe calls are made: everything that needs memory is prepared before. Reaping goes
 * by SIGCHLD and waitid for each child by its pid, never for "any child", so that others may have children too.
 */
#include "common/loop/loop_int.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct k2_child {
    k2i_link link;
    k2_loop *loop;
    pid_t pid;
    bool reaped, abandoned;
    int exit_code, term_signal;
    k2_conn *io;
    void (*on_exit)(void *arg, int exit_code, int term_signal);
    void *arg;
};

/* What the child needs between fork and exec. */
typedef struct plan {
    char path[PATH_MAX];
    char *const *argv;
    char **guarded_argv; /* NULL, or argv behind the guard's own words */
    char **env;
    const char *cwd;
    int fds[3];  /* become 0, 1, 2; -1 = leave as it is */
    int report;  /* errno of a failed exec goes here; closes by itself when exec succeeds */
    int io_ours; /* our end of the io stream, or -1 */
    pid_t parent;
    bool outlives_us;
    int death_signal; /* that the kernel sends when we end */
} plan;

/* The kernel's parent-death signal reaches one process, not what that one has started, and a program that is killed with its
 * parent cannot clean up. So this shell stays in front of a guarded program: on the signal it kills the whole group. It is a
 * program of its own, because a mere fork of ours would keep a copy of all our memory. Stdin goes by way of 3, since a
 * background command has none, and the guard lets go of both ends, so that they close with the program's; then it ends as the
 * program did. */
static const char guard_script[] = "trap 'kill -9 0' USR1\n"
                                   "exec 3<&0\n"
                                   "\"$@\" <&3 3<&- &\n"
                                   "exec </dev/null >/dev/null 3<&-\n"
                                   "wait $!\n"
                                   "s=$?\n"
                                   "[ $s -le 128 ] || kill -$((s - 128)) $$ 2>/dev/null\n"
                                   "exit $s\n";

extern char **environ;

/* ---- before the fork --------------------------------------------------------------------------------------------- */

/* Descriptors below 3 would be overwritten while they are put in place. */
static int above_stdio(int fd)
{
    if (fd < 0 || fd > 2) return fd;
    int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    close(fd);
    return higher;
}

static k2_code find_program(const char *name, char out[PATH_MAX], k2_error *err)
{
    if (strchr(name, '/')) {
        if (snprintf(out, PATH_MAX, "%s", name) >= PATH_MAX) return k2_error_set(err, K2_LIMIT, "program path is too long");
        return K2_OK;
    }
    const char *path = getenv("PATH");
    if (!path || !path[0]) path = "/usr/local/bin:/usr/bin:/bin";
    while (*path) {
        size_t n = strcspn(path, ":");
        if (snprintf(out, PATH_MAX, "%.*s/%s", (int)n, path, name) < PATH_MAX && access(out, X_OK) == 0) return K2_OK;
        path += n + (path[n] == ':');
    }
    return k2_error_set(err, K2_NOT_FOUND, "program %s: not found in PATH", name);
}

static bool same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return n == strcspn(b, "=") && memcmp(a, b, n) == 0;
}

/* Ours, less what the additions name, and the additions that have a value. The strings are borrowed. */
static char **make_env(const char *const *additions)
{
    size_t n = 0, add_n = 0, k = 0;
    while (environ && environ[n]) n++;
    while (additions && additions[add_n]) add_n++;
    char **env = k2_alloc_array(n + add_n + 1, sizeof *env);
    for (size_t i = 0; i < n; i++) {
        bool named = false;
        for (size_t j = 0; j < add_n; j++) named = named || same_name(environ[i], additions[j]);
        if (!named) env[k++] = environ[i];
    }
    for (size_t j = 0; j < add_n; j++)
        if (strchr(additions[j], '=')) env[k++] = (char *)(uintptr_t)additions[j];
    return env;
}

static k2_code open_output(const char *path, int *fd, k2_error *err)
{
    if (!path) return K2_OK;
    *fd = above_stdio(open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644));
    return *fd < 0 ? k2_error_errno(err, errno, "cannot open %s", path) : K2_OK;
}

static k2_code open_input(const k2_child_spec *spec, plan *p, k2_error *err)
{
    if (!spec->io) {
        p->fds[0] = above_stdio(open("/dev/null", O_RDONLY | O_CLOEXEC));
        return p->fds[0] < 0 ? k2_error_errno(err, errno, "cannot open /dev/null") : K2_OK;
    }
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return k2_error_errno(err, errno, "cannot make a socket pair");
    p->io_ours = above_stdio(pair[0]);
    p->fds[0] = above_stdio(pair[1]);
    if (!spec->stdout_path) p->fds[1] = fcntl(p->fds[0], F_DUPFD_CLOEXEC, 3);
    if (p->io_ours < 0 || p->fds[0] < 0 || (!spec->stdout_path && p->fds[1] < 0))
        return k2_error_errno(err, errno, "cannot duplicate a descriptor");
    return K2_OK;
}

static k2_code guard(plan *p, k2_error *err)
{
    static const char *const words[] = {"sh", "-c", guard_script, "k2rl-guard"};
    size_t n = 0, k = K2_COUNT(words);
    if (access(p->path, X_OK) != 0) return k2_error_errno(err, errno, "program %s", p->path);
    while (p->argv[n]) n++;
    p->guarded_argv = k2_alloc_array(k + n + 1, sizeof *p->guarded_argv);
    for (size_t i = 0; i < k; i++) p->guarded_argv[i] = (char *)(uintptr_t)words[i];
    for (size_t i = 0; i < n; i++) p->guarded_argv[k + i] = p->argv[i];
    p->argv = p->guarded_argv;
    p->death_signal = SIGUSR1;
    memcpy(p->path, "/bin/sh", sizeof "/bin/sh");
    return K2_OK;
}

static void plan_fini(plan *p)
{
    k2_free(p->guarded_argv);
    for (int i = 0; i < 3; i++)
        if (p->fds[i] >= 0) close(p->fds[i]);
    k2_free(p->env);
}

static k2_code plan_init(plan *p, const k2_child_spec *spec, k2_error *err)
{
    *p = (plan){.argv = (char *const *)(uintptr_t)spec->argv,
                .cwd = spec->cwd,
                .fds = {-1, -1, -1},
                .report = -1,
                .io_ours = -1,
                .parent = getpid(),
                .outlives_us = spec->outlives_us,
                .death_signal = SIGKILL};
    k2_code code = find_program(spec->argv[0], p->path, err);
    if (code == K2_OK && spec->guarded) code = guard(p, err);
    if (code == K2_OK) code = open_output(spec->stdout_path, &p->fds[1], err);
    if (code == K2_OK) code = open_output(spec->stderr_path, &p->fds[2], err);
    if (code == K2_OK) code = open_input(spec, p, err);
    if (code == K2_OK) p->env = make_env(spec->env);
    return code;
}

/* ---- in the child ------------------------------------------------------------------------------------------------ */

static void close_others(int keep)
{
    /* Everything of ours is close-on-exec already; this is for what other libraries opened without it. */
#ifdef CLOSE_RANGE_CLOEXEC
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) == 0) return;
#endif
    for (int fd = 3; fd < 1024; fd++)
        if (fd != keep) close(fd);
}

_Noreturn static void child_fail(const plan *p, int errnum)
{
    if (write(p->report, &errnum, sizeof errnum) < 0) _exit(126);
    _exit(127);
}

_Noreturn static void child_main(const plan *p)
{
    /* Handlers of ours must not run here: they would write into pipes that we share with the parent. Signals are blocked since
     * before the fork. */
    for (int s = 1; s < 32; s++)
        if (s != SIGKILL && s != SIGSTOP) signal(s, SIG_DFL);
    setpgid(0, 0);
    if (!p->outlives_us) {
        prctl(PR_SET_PDEATHSIG, p->death_signal);
        if (getppid() != p->parent) _exit(127); /* the parent ended before the line above: nobody would tell us any more */
    }
    for (int i = 0; i < 3; i++)
        if (p->fds[i] >= 0 && dup2(p->fds[i], i) < 0) child_fail(p, errno);
    if (p->cwd && chdir(p->cwd) != 0) child_fail(p, errno);
    close_others(p->report);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(p->path, p->argv, p->env);
    child_fail(p, errno);
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Fork and wait for the exec; *pid is written on OK only. */
static k2_code start(plan *p, pid_t *pid_out, k2_error *err)
{
    int report[2];
    if (pipe2(report, O_CLOEXEC) != 0) return k2_error_errno(err, errno, "cannot make a pipe");
    report[1] = above_stdio(report[1]);
    p->report = report[1];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    int fork_errno = errno;
    if (pid == 0) child_main(p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        if (fork_errno == EAGAIN) return k2_error_set(err, K2_LIMIT, "program %s: too many processes", p->path);
        return k2_error_errno(err, fork_errno, "program %s: cannot fork", p->path);
    }
    setpgid(pid, pid); /* as the child does: whoever comes first; from here on the group can be signaled */
    int exec_errno = 0;
    ssize_t n;
    do n = read(report[0], &exec_errno, sizeof exec_errno);
    while (n < 0 && errno == EINTR);
    close(report[0]);
    if (n <= 0) {
        *pid_out = pid;
        return K2_OK;
    }
    waitpid(pid, NULL, 0);
    return k2_error_errno(err, exec_errno, "program %s%s%s", p->path, p->cwd ? " in " : "", p->cwd ? p->cwd : "");
}

/* ---- ending ------------------------------------------------------------------------------------------------------ */

/* Reap one if it has ended. What is left in its group goes first: while the leader is a zombie, its group number is not
 * reused.
 */
static bool reap(k2_child *c, bool wait)
{
    siginfo_t info = {.si_pid = 0};
    int rc;
    do rc = waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT | (wait ? 0 : WNOHANG));
    while (rc != 0 && errno == EINTR);
    if (rc == 0 && info.si_pid == 0) return false;
    kill(-c->pid, SIGKILL);
    int status = 0;
    if (waitpid(c->pid, &status, 0) == c->pid) {
        c->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
        c->term_signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }
    c->reaped = true;
    return true;
}

static void child_free(k2_child *c)
{
    k2i_link_remove(&c->link);
    if (c->io) c->io->slot = NULL;
    k2_free(c);
}

/* Tell of those that have ended, or with `wait` of all. */
static void reap_all(k2_loop *loop, bool wait)
{
    k2i_link ended;
    k2i_link_init(&ended);
    for (k2i_link *l = loop->children.next, *next; l != &loop->children; l = next) {
        next = l->next;
        if (!reap((k2_child *)(void *)l, wait)) continue;
        k2i_link_remove(l);
        k2i_link_push(&ended, l);
    }
    /* on_exit may abandon any other child, also one that waits in `ended`: always take the first. */
    while (ended.next != &ended) {
        k2_child *c = (k2_child *)(void *)ended.next;
        k2i_link_remove(&c->link);
        if (!c->abandoned) c->on_exit(c->arg, c->exit_code, c->term_signal);
        child_free(c);
    }
}

static void on_sigchld(uv_signal_t *uv, int signum)
{
    (void)signum;
    reap_all(uv->loop->data, false);
}

void k2i_children_end(k2_loop *loop)
{
    for (k2i_link *l = loop->children.next; l != &loop->children; l = l->next) kill(-((k2_child *)(void *)l)->pid, SIGKILL);
    reap_all(loop, true);
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

static void watch_children(k2_loop *loop)
{
    if (loop->child_signal_on) return;
    K2_ASSERT(uv_signal_init(&loop->uv, &loop->child_signal) == 0);
    loop->child_signal.data = &loop->plain;
    K2_ASSERT(uv_signal_start(&loop->child_signal, on_sigchld, SIGCHLD) == 0);
    uv_unref((uv_handle_t *)&loop->child_signal);
    loop->child_signal_on = true;
}

k2_child *k2_child_spawn(k2_loop *loop, const k2_child_spec *spec, k2_error *err)
{
    K2_ASSERT(spec->argv && spec->argv[0] && spec->on_exit);
    if (loop->ending) {
        k2_error_set(err, K2_CANCELED, "program %s: the loop ends", spec->argv[0]);
        return NULL;
    }
    watch_children(loop);
    plan p;
    pid_t pid = 0;
    k2_code code = plan_init(&p, spec, err);
    if (code == K2_OK) code = start(&p, &pid, err);
    plan_fini(&p);
    if (code != K2_OK) {
        if (p.io_ours >= 0) close(p.io_ours);
        return NULL;
    }
    k2_child *c = k2_alloc(sizeof *c);
    *c = (k2_child){.loop = loop, .pid = pid, .on_exit = spec->on_exit, .arg = spec->arg};
    k2i_link_push(&loop->children, &c->link);
    if (p.io_ours >= 0 && (c->io = k2i_conn_new_fd(loop, p.io_ours))) {
        c->io->slot = &c->io;
        k2_conn_attach(c->io, spec->io, spec->io_arg);
    }
    return c;
}

pid_t k2_child_pid(const k2_child *c)
{
    return c->pid;
}

k2_conn *k2_child_io(const k2_child *c)
{
    return c->io;
}

void k2_child_kill(k2_child *c, int signum)
{
    if (!c->reaped) kill(-c->pid, signum);
}

void k2_child_abandon(k2_child *c)
{
    if (!c) return;
    c->abandoned = true;
    k2_child_kill(c, SIGKILL);
}
