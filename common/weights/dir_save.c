/* A model directory from slots in memory. */
#include "dims_int.h"
#include "dir_int.h"
#include "file_int.h"
#include "slots_int.h"
#include "store_int.h"

#include <string.h>

static k2_code slot_read(const k2i_source *s, uint64_t first, uint64_t count, float *out, k2_error *err)
{
    const k2_weights_slot *slot = s->part;
    const k2_weights_tensor t = {.name = slot->name};
    memcpy(out, slot->data + first, count * sizeof *out);
    return k2i_finite_check(&t, first, out, count, err);
}

/* Shards beside a file of the same model, or two indexes, would be two models in one place. */
static k2_code vacant_check(const char *dir, k2_error *err)
{
    static const char *const names[] = {K2I_WEIGHTS_FILE, K2I_INDEX_FILE, K2I_CONFIG_FILE};
    for (size_t i = 0; i < K2_COUNT(names); i++) {
        char *path = k2_asprintf("%s/%s", dir, names[i]);
        const bool there = k2_file_exists(path);
        k2_free(path);
        if (there) return k2_error_set(err, K2_BAD_INPUT, "%.300s: holds a model already (%s)", dir, names[i]);
    }
    return K2_OK;
}

k2_code k2_weights_dir_save(const char *dir, const k2_dims *dims, const k2_weights_format *format, const k2_weights_slot *slots,
                            size_t count, k2_error *err)
{
    k2_free(k2i_slots_sort(slots, count)); /* asserts that no name is there twice */
    char *config = k2_asprintf("%s/" K2I_CONFIG_FILE, dir);
    k2i_source *sources = k2_alloc_array(count, sizeof *sources);
    for (size_t i = 0; i < count; i++)
        sources[i] = (k2i_source){.name = slots[i].name, .shape = slots[i].shape, .read = slot_read, .part = &slots[i]};
    k2_code code = k2_dir_make(dir, err);
    if (code == K2_OK) code = vacant_check(dir, err);
    if (code == K2_OK) code = k2i_store_write(dir, sources, count, format, (k2i_progress){0}, err);
    if (code == K2_OK) code = k2i_dims_write(dims, format->dtype, config, err);
    k2_free(sources);
    k2_free(config);
    return code;
}
