/* remains: what a process that was killed in the middle of writing left in the run directory. Files and checkpoints are written
 * beside their names, with ".tmp" at the end, and moved to them when they are whole, so nobody looks at these any more; whoever
 * holds the run's lock may take them away. */
#include "master/io_int.h"

#include <dirent.h>
#include <string.h>
#include <unistd.h>

static void clear(const char *dir)
{
    static const char tail[] = ".tmp";
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (n < sizeof tail || strcmp(e->d_name + n - (sizeof tail - 1), tail) != 0) continue;
        char *path = k2_asprintf("%s/%s", dir, e->d_name);
        if (unlink(path) != 0) (void)k2_dir_remove(path, NULL);
        k2_free(path);
    }
    closedir(d);
}

void k2m_remains_clear(const char *run_dir)
{
    static const char *const parts[] = {"", "/data", "/checkpoints"};
    for (size_t i = 0; i < K2_COUNT(parts); i++) {
        char *dir = k2_asprintf("%s%s", run_dir, parts[i]);
        clear(dir);
        k2_free(dir);
    }
}
