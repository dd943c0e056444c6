/* poison - preloaded into the processes of a test run: a rollout worker that reads the text of K2_POISON from a socket dies of
 * it, as an engine would of a prompt that it cannot bear. The executable knows nothing of it. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ssize_t read(int fd, void *buf, size_t count);

static ssize_t (*real_read)(int fd, void *buf, size_t count);
static const char *text; /* NULL: this is no rollout worker, or there is no poison */

/* Before main; the words of a command line are separated by zero bytes. */
__attribute__((constructor)) static void begin(void)
{
    char line[256] = "";
    void *found = dlsym(RTLD_NEXT, "read");
    memcpy(&real_read, &found, sizeof real_read);
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? real_read(fd, line, sizeof line - 1) : 0;
    if (fd >= 0) close(fd);
    if (n > 0 && strcmp(line + strlen(line) + 1, "rollout") == 0) text = getenv("K2_POISON");
}

ssize_t read(int fd, void *buf, size_t count)
{
    ssize_t n = real_read(fd, buf, count);
    if (text && *text && n > 0 && memmem(buf, (size_t)n, text, strlen(text))) raise(SIGABRT);
    return n;
}
