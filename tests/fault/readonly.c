/* readonly - preloaded: from the moment when the file named by K2_READONLY exists, nothing under its directory can be written
 * any more.
 *
 * A file system that meets a bad block makes itself read-only under the processes that have files open there; no mount can be
 * made to do that on request while they have. What a process sees then is EROFS from the calls below.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int now(const char **dir, size_t *n)
{
    static const char *flag;
    static size_t length;
    if (!flag) {
        flag = getenv("K2_READONLY");
        if (!flag) flag = "";
        const char *slash = strrchr(flag, '/');
        length = slash ? (size_t)(slash - flag) : 0;
    }
    *dir = flag;
    *n = length;
    return length > 0 && access(flag, F_OK) == 0;
}

static int path_closed(const char *path)
{
    const char *dir;
    size_t n;
    if (!now(&dir, &n) || strncmp(path, dir, n) != 0) return 0;
    errno = EROFS;
    return 1;
}

static int fd_closed(int fd)
{
    const char *dir;
    size_t n;
    char link[40], path[4096];
    if (!now(&dir, &n)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t got = readlink(link, path, sizeof path - 1);
    if (got < (ssize_t)n || memcmp(path, dir, n) != 0) return 0;
    errno = EROFS;
    return 1;
}

/* The function of that name behind ours. */
#define NEXT(type, name)                                                                                                       \
    static union {                                                                                                             \
        void *object;                                                                                                          \
        type fn;                                                                                                               \
    } next;                                                                                                                    \
    if (!next.object) next.object = dlsym(RTLD_NEXT, name)

#define GATE(closed, type, name, ...)                                                                                          \
    NEXT(type, name);                                                                                                          \
    return closed ? -1 : next.fn(__VA_ARGS__)

typedef ssize_t (*write_fn)(int, const void *, size_t);
typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);
typedef int (*sync_fn)(int);
typedef int (*truncate_fn)(int, off_t);
typedef int (*open_fn)(const char *, int, ...);
typedef int (*mkdir_fn)(const char *, mode_t);
typedef int (*rename_fn)(const char *, const char *);

ssize_t write(int fd, const void *p, size_t n)
{
    GATE(fd_closed(fd), write_fn, "write", fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    GATE(fd_closed(fd), pwrite_fn, "pwrite", fd, p, n, at);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off_t at)
{
    GATE(fd_closed(fd), pwrite_fn, "pwrite64", fd, p, n, at);
}

int fdatasync(int fd)
{
    GATE(fd_closed(fd), sync_fn, "fdatasync", fd);
}

int ftruncate(int fd, off_t n)
{
    GATE(fd_closed(fd), truncate_fn, "ftruncate", fd, n);
}

int mkdir(const char *path, mode_t mode)
{
    GATE(path_closed(path), mkdir_fn, "mkdir", path, mode);
}

int rename(const char *from, const char *to)
{
    GATE(path_closed(to), rename_fn, "rename", from, to);
}

int open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
    va_end(ap);
    GATE((flags & O_ACCMODE) != O_RDONLY && path_closed(path), open_fn, "open", path, flags, mode);
}
