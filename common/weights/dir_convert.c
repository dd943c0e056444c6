/* A model directory from another one: the same tensors in another type, in other shards. */
#include "dims_int.h"
#include "dir_int.h"
#include "file_int.h"
#include "json_int.h"
#include "store_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SPARE_BYTES (64u << 20) /* headers, index and side files, generously */

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static k2_code item_read(const k2i_source *s, uint64_t first, uint64_t count, float *out, k2_error *err)
{
    return k2_weights_item_f32(s->owner, s->part, first, count, out, err);
}

static bool same_blocks(const k2_weights_dir *d)
{
    const k2_weights_quant q = k2_weights_dir_quant(d);
    return q.block_rows == K2I_QUANT_BLOCK && q.block_columns == K2I_QUANT_BLOCK;
}

static bool is_number(k2_dtype dtype)
{
    return dtype == K2_DTYPE_F32 || dtype == K2_DTYPE_BF16 || dtype == K2_DTYPE_F16 || dtype == K2_DTYPE_F8_E4M3;
}

/* Scales go with what they scale, unless both stay as they are: quantising again would move the weights once more. */
static size_t sources_make(const k2_weights_dir *d, k2_dtype dtype, k2i_source *out)
{
    const bool keep = dtype == K2_DTYPE_F8_E4M3 && same_blocks(d);
    size_t count = 0;
    for (size_t i = 0; i < k2_weights_dir_count(d); i++) {
        const k2_weights_item *item = k2_weights_dir_at(d, i);
        const k2_weights_tensor *t = item->tensor;
        const bool quantised = t->dtype == K2_DTYPE_F8_E4M3 || item->is_scale;
        if (item->is_scale && !keep) continue;
        out[count] =
            (k2i_source){.name = t->name, .shape = t->shape, .dtype = t->dtype, .read = item_read, .owner = d, .part = item};
        if ((quantised && keep) || !is_number(t->dtype)) out[count].copy = t->data;
        count++;
    }
    return count;
}

static k2_code items_check(const k2_weights_dir *d, k2_error *err)
{
    k2_code code = K2_OK;
    for (size_t i = 0; i < k2_weights_dir_count(d) && code == K2_OK; i++) {
        const k2_weights_item *item = k2_weights_dir_at(d, i);
        if (is_number(item->tensor->dtype)) code = k2_weights_item_check(d, item, err);
    }
    return code;
}

/* ---- the files beside them --------------------------------------------------------------------------------------- */

/* The old config.json but for what says how the weights are stored. */
static k2_code config_convert(const char *from, const char *to, k2_dtype stored, k2_error *err)
{
    char *source = k2_asprintf("%s/" K2I_CONFIG_FILE, from), *path = k2_asprintf("%s/" K2I_CONFIG_FILE, to), *text = NULL;
    cJSON *root = NULL;
    size_t n = 0;
    k2_code code = k2_file_read(source, K2_WEIGHTS_CONFIG_BYTES_MAX, &text, &n, err);
    if (code == K2_OK) code = k2i_json_parse(source, text, n, &root, err);
    if (code == K2_OK) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, "quantization_config");
        cJSON_DeleteItemFromObjectCaseSensitive(root, "dtype");
        cJSON_DeleteItemFromObjectCaseSensitive(root, "torch_dtype");
        cJSON_AddStringToObject(root, "torch_dtype", k2i_torch_dtype(stored));
        if (stored == K2_DTYPE_F8_E4M3) cJSON_AddItemToObject(root, "quantization_config", cJSON_Parse(K2I_QUANT_JSON));
        char *out = cJSON_Print(root);
        code = out ? k2_file_write_atomic(path, out, strlen(out), err) : k2_error_set(err, K2_NO_MEMORY, "%s", path);
        cJSON_free(out);
    }
    cJSON_Delete(root);
    k2_free(text);
    k2_free(source);
    k2_free(path);
    return code;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

static k2_code room_check(const char *dir, uint64_t bytes, k2_error *err)
{
    struct statvfs st;
    if (statvfs(dir, &st) != 0) return k2_error_errno(err, errno, "%s: cannot ask for free space", dir);
    const uint64_t room = (uint64_t)st.f_bavail * st.f_frsize;
    if (room >= bytes + SPARE_BYTES) return K2_OK;
    return k2_error_set(err, K2_NO_SPACE, "%.300s: the weights take %" PRIu64 " bytes, but only %" PRIu64 " are free", dir,
                        bytes, room);
}

static k2_code fill(const k2_weights_dir *d, const char *from, const char *temp, const k2_weights_format *format,
                    k2i_progress progress, k2_error *err)
{
    k2i_source *sources = k2_alloc_array(k2_weights_dir_count(d), sizeof *sources);
    const size_t count = sources_make(d, format->dtype, sources);
    k2_code code = items_check(d, err);
    if (code == K2_OK) code = room_check(temp, k2i_store_bytes(sources, count, format), err);
    if (code == K2_OK) code = k2_weights_side_files_copy(from, temp, err);
    if (code == K2_OK) code = k2i_store_write(temp, sources, count, format, progress, err);
    if (code == K2_OK) code = config_convert(from, temp, format->dtype, err);
    k2_free(sources);
    return code;
}

static k2_code exists_already(const char *path, k2_error *err)
{
    return k2_error_set(err, K2_BAD_INPUT, "%.300s: exists already; nothing is written over", path);
}

static k2_code place(const char *temp, const char *to, k2_error *err)
{
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return k2i_parent_sync(to, err);
    return errno == EEXIST ? exists_already(to, err) : k2_error_errno(err, errno, "%s: cannot rename to %s", temp, to);
}

static k2_code convert(const char *from, const char *to, const k2_weights_format *format, k2i_progress progress, k2_error *err)
{
    k2_weights_dir *d = NULL;
    struct stat st;
    if (lstat(to, &st) == 0) return exists_already(to, err);
    k2_code code = k2_weights_dir_open(from, &d, err);
    if (code != K2_OK) return code;
    char *temp = k2_temp_name(to);
    k2_temp_clear(to);
    code = k2_dir_make(temp, err);
    int held = open(temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (held >= 0) k2_temp_hold(held);
    if (code == K2_OK) code = fill(d, from, temp, format, progress, err);
    if (code == K2_OK) code = place(temp, to, err);
    if (code != K2_OK) (void)k2_dir_remove(temp, NULL);
    if (held >= 0) close(held);
    k2_weights_dir_close(d);
    k2_free(temp);
    return code;
}

k2_code k2_weights_dir_convert(const char *from, const char *to, const k2_weights_format *format, k2_weights_progress *progress,
                               void *arg, k2_error *err)
{
    size_t n = strlen(to);
    while (n > 1 && to[n - 1] == '/') n--; /* what is written first stands beside it, not in it */
    char *bare = k2_strndup(to, n);
    k2_code code = convert(from, bare, format, (k2i_progress){progress, arg}, err);
    k2_free(bare);
    return code;
}
