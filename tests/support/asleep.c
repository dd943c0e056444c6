#include "tests/support/asleep.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/base.h"

#define WAIT_NS_MAX 1000000000u

/* Of /proc/self/task/TID/stat: "TID (name) S ..."; the name may hold anything. */
static bool sleeps(int tasks, const char *tid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "%.20s/stat", tid);
    int fd = openat(tasks, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true; /* it has ended */
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0) return true;
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    return !name_end || strncmp(name_end, ") R", 3) != 0;
}

static bool all_sleep(DIR *tasks)
{
    rewinddir(tasks);
    for (const struct dirent *e; (e = readdir(tasks)) != NULL;)
        if (atoi(e->d_name) > 0 && atoi(e->d_name) != gettid() && !sleeps(dirfd(tasks), e->d_name)) return false;
    return true;
}

bool others_asleep(void)
{
    DIR *tasks = opendir("/proc/self/task");
    bool all = false;
    for (uint64_t start = k2_now_ns(); tasks && !(all = all_sleep(tasks)) && k2_now_ns() - start < WAIT_NS_MAX;) sched_yield();
    if (tasks) closedir(tasks);
    return all;
}
