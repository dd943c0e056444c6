/* pyspy: a Python process's own stack, by the program that knows how. */
#include "master/stacks_int.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_NS (5 * K2_NS_PER_S)
#define OUTPUT_MAX  (64u << 10)

extern char **environ;

/* errno of the start, 0 = it runs and *fd is its output. */
static int start(pid_t target, pid_t *pid, int *fd)
{
    char number[16];
    snprintf(number, sizeof number, "%d", (int)target);
    char name[] = "py-spy", command[] = "dump", option[] = "--pid";
    char *argv[] = {name, command, option, number, NULL};
    int ends[2];
    if (pipe(ends) != 0) return errno;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    int rc = posix_spawnp(pid, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *fd = ends[0];
    if (rc != 0) close(ends[0]);
    return rc;
}

/* True when it closed its output in time. */
static bool gather(int fd, k2_buf *out)
{
    uint64_t until = k2_now_ns() + DEADLINE_NS;
    for (;;) {
        uint64_t now = k2_now_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= until) return false;
        int rc = poll(&p, 1, (int)((until - now) / K2_NS_PER_MS) + 1);
        if (rc < 0 && errno == EINTR) continue;
        if (rc <= 0) return false;
        char bytes[4096];
        ssize_t n = read(fd, bytes, sizeof bytes);
        if (n <= 0) return true;
        k2_buf_append(out, bytes, (size_t)n); /* beyond the cap it is dropped */
    }
}

char *k2m_python_stack(pid_t target)
{
    pid_t pid;
    int fd = -1, rc = start(target, &pid, &fd);
    if (rc == ENOENT) return NULL; /* py-spy is not here */
    if (rc != 0) return k2_asprintf("py-spy cannot be started: %s", strerror(rc));
    k2_buf out;
    k2_buf_init(&out, OUTPUT_MAX);
    bool in_time = gather(fd, &out);
    close(fd);
    if (!in_time) kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) continue;
    char *text = k2_strdup(!in_time ? "py-spy did not answer within 5 s" : out.len ? out.data : "py-spy said nothing");
    k2_buf_fini(&out);
    return text;
}
