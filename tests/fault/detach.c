/* detach - preloaded into the workers of K2_DETACH's role: the worker runs as a process that its master cannot kill.
 *
 * On one machine a master kills whom it has given up, and nobody is left to be fenced. A worker on another host that cannot be
 * reached lives on; so does this one. The process that the master started stays as a stand-in, waits for the worker and ends as
 * it does; the worker is that one's child in a session of its own, where neither the master's kill nor its death comes.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void __attribute__((constructor)) detach(int argc, char **argv)
{
    const char *role = getenv("K2_DETACH");
    if (argc < 2 || !role || strcmp(argv[1], role) != 0) return;
    pid_t pid = fork();
    if (pid < 0) _exit(126);
    if (pid == 0) {
        setsid();
        return;
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 126);
}
