/* Temp: names to write under until the whole is there, and what died processes left under them. */
#include "common/base/base.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char tail[] = ".tmp";

char *k2_temp_name(const char *path)
{
    return k2_asprintf("%s.%d%s", path, (int)getpid(), tail);
}

void k2_temp_hold(int fd)
{
    (void)flock(fd, LOCK_EX | LOCK_NB); /* a file system without locks: the process number has to do */
}

/* The number in "BASE.NUMBER.tmp"; 0: it is no such name. */
static uint64_t owner_of(const char *name, const char *base)
{
    size_t n = strlen(name), k = strlen(base), end = sizeof tail - 1;
    uint64_t pid = 0;
    char digits[16] = "";
    if (n < k + 2 + end || strncmp(name, base, k) != 0 || name[k] != '.' || strcmp(name + n - end, tail) != 0) return 0;
    if (n - k - 1 - end >= sizeof digits) return 0;
    memcpy(digits, name + k + 1, n - k - 1 - end);
    return k2_str_u64(digits, &pid) && pid <= INT32_MAX ? pid : 0;
}

static bool dead(uint64_t pid)
{
    return pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

/* Nobody here has the number; one on another machine that shares the directory may, and holds it. */
static void remove_unheld(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    bool held = fd < 0 || (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
    if (!held && unlink(path) != 0) (void)k2_dir_remove(path, NULL);
    if (fd >= 0) close(fd);
}

void k2_temp_clear(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    char *dir = slash ? k2_strndup(path, (size_t)(slash - path) + 1) : k2_strdup(".");
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!dead(owner_of(e->d_name, base))) continue;
        char *left = k2_asprintf("%s/%s", dir, e->d_name);
        remove_unheld(left);
        k2_free(left);
    }
    if (d) closedir(d);
    k2_free(dir);
}
