/* The licences' task: real text that every Debian has, as a corpus for pretraining. */
#include "common/data/data.h"
#include "task_int.h"
#include "text_int.h"

#include <string.h>

#define STAMP "{\"task\": \"licences\", \"format\": 1}\n"

static const char *const files[] = {K2_TASK_CORPUS_PREFIX ".idx", K2_TASK_CORPUS_PREFIX ".bin"};

k2_code k2_task_licences_check(const char *from, k2_error *err)
{
    if (k2_file_exists(from ? from : K2_TASK_LICENCES_DIR)) return K2_OK;
    return k2_error_set(err, K2_NOT_FOUND, "%s: missing, expected the licence texts of a Debian",
                        from ? from : K2_TASK_LICENCES_DIR);
}

k2_code k2_task_licences_write(const char *dir, const char *from, k2_error *err)
{
    char *paths[] = {k2_strdup(from ? from : K2_TASK_LICENCES_DIR)};
    char *prefix = k2_asprintf("%s/%s", dir, K2_TASK_CORPUS_PREFIX);
    k2i_text_counts made;
    k2_code code = k2_task_licences_check(from, err);
    if (code == K2_OK) code = k2i_task_begin(dir, err);
    if (code == K2_OK) code = k2i_text_convert(prefix, paths, 1, (k2i_text_options){.split = false}, &made, err);
    if (code == K2_OK) code = k2i_task_end(dir, STAMP, err);
    k2_free(prefix);
    k2_free(paths[0]);
    return code;
}

k2_code k2_task_licences_ensure(const char *dir, const char *from, k2_error *err)
{
    return k2i_task_is_made(dir, STAMP, files, K2_COUNT(files)) ? K2_OK : k2_task_licences_write(dir, from, err);
}
