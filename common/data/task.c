/* The directory of a task. See task_int.h. */
#include "task_int.h"

#include "common/data/data.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

k2_code k2i_task_file_write(const char *dir, const char *name, const void *data, size_t n, k2_error *err)
{
    char *path = k2_asprintf("%s/%s", dir, name);
    k2_code code = k2_file_write_atomic(path, data, n, err);
    k2_free(path);
    return code;
}

k2_code k2i_task_begin(const char *dir, k2_error *err)
{
    char *stamp = k2_asprintf("%s/%s", dir, K2_TASK_STAMP_FILE);
    k2_code code = k2_dir_make(dir, err);
    if (code == K2_OK && remove(stamp) != 0 && errno != ENOENT) code = k2_error_errno(err, errno, "%s: cannot replace", stamp);
    k2_free(stamp);
    return code;
}

k2_code k2i_task_end(const char *dir, const char *stamp, k2_error *err)
{
    return k2i_task_file_write(dir, K2_TASK_STAMP_FILE, stamp, strlen(stamp), err);
}

bool k2i_task_is_made(const char *dir, const char *stamp, const char *const *files, size_t count)
{
    char *path = k2_asprintf("%s/%s", dir, K2_TASK_STAMP_FILE), *found = NULL;
    size_t n = 0;
    bool made =
        k2_file_exists(path) && k2_file_read(path, K2I_STAMP_BYTES_MAX, &found, &n, NULL) == K2_OK && strcmp(found, stamp) == 0;
    k2_free(found);
    k2_free(path);
    for (size_t i = 0; made && i < count; i++) {
        path = k2_asprintf("%s/%s", dir, files[i]);
        made = k2_file_exists(path);
        k2_free(path);
    }
    return made;
}
