/* hold - preloaded: makes phases last that are over too soon to be met from outside.
 *
 * Where there is a FIFO K2_HOLD.publish, the trainer that publishes waits, where it makes the segment of the weights, until
 * somebody opens it for writing; so does the master at K2_HOLD.latest, where it names the latest checkpoint. Both are at work
 * on a thread of their own there: their loops go on. With K2_HOLD_MS each segment in shared memory (of a batch, of weights, of
 * a group of ranks) and each naming of the latest checkpoint takes so much longer.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static char publish[4096], latest[4096]; /* "": not of this process */
static long longer_ms;

static void __attribute__((constructor)) begin(int argc, char **argv)
{
    const char *base = getenv("K2_HOLD"), *ms = getenv("K2_HOLD_MS");
    longer_ms = ms ? atol(ms) : 0;
    if (!base || argc < 2) return;
    if (strcmp(argv[1], "trainer") == 0) snprintf(publish, sizeof publish, "%s.publish", base);
    if (strcmp(argv[1], "master") == 0) snprintf(latest, sizeof latest, "%s.latest", base);
}

static void hold(const char *fifo)
{
    if (longer_ms > 0) nanosleep(&(struct timespec){.tv_sec = longer_ms / 1000, .tv_nsec = longer_ms % 1000 * 1000000}, NULL);
    int fd = fifo[0] ? open(fifo, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) close(fd);
}

/* The function of that name behind ours. */
#define NEXT(type, name)                                                                                                       \
    union {                                                                                                                    \
        void *object;                                                                                                          \
        type fn;                                                                                                               \
    } next = {.object = dlsym(RTLD_NEXT, name)}

typedef int (*memfd_fn)(const char *, unsigned);
typedef int (*rename_fn)(const char *, const char *);

int memfd_create(const char *name, unsigned flags)
{
    NEXT(memfd_fn, "memfd_create");
    hold(publish);
    return next.fn(name, flags);
}

int rename(const char *from, const char *to)
{
    NEXT(rename_fn, "rename");
    const char *slash = strrchr(to, '/');
    if (slash && strcmp(slash, "/latest") == 0) hold(latest);
    return next.fn(from, to);
}
