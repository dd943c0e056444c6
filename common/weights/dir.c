/* The weights of a model in and out of its directory. */
#include "dir_int.h"
#include "slots_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 4194304u /* elements that are read at a time, so that few mapped pages are held */

typedef struct loading {
    const k2_weights_slot **slots; /* sorted */
    size_t slot_count;
    uint64_t layers; /* of the model: one more than the highest number in the slots' names */
    bool check;      /* names, types and shapes only */
} loading;

/* The layer that a name belongs to, in *out; false where it belongs to none. */
static bool layer_of(const char *name, uint64_t *out)
{
    static const char prefix[] = "model.layers.";
    char *end = NULL;
    if (strncmp(name, prefix, sizeof prefix - 1) != 0) return false;
    const char *digits = name + sizeof prefix - 1;
    if (*digits < '0' || *digits > '9') return false;
    *out = strtoull(digits, &end, 10);
    return *end == '.';
}

static loading loading_begin(const k2_weights_slot *slots, size_t count)
{
    loading l = {.slots = k2i_slots_sort(slots, count), .slot_count = count};
    uint64_t layer = 0;
    for (size_t i = 0; i < count; i++)
        if (layer_of(slots[i].name, &layer)) l.layers = K2_MAX(l.layers, layer + 1);
    return l;
}

/* RoPE's table is a function of the sizes, and old checkpoints carry it; prediction layers stand behind the model's own. */
static bool is_skipped(const loading *l, const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    const size_t n = strlen(name);
    uint64_t layer = 0;
    if (n >= sizeof suffix - 1 && strcmp(name + n - (sizeof suffix - 1), suffix) == 0) return true;
    return l->layers && layer_of(name, &layer) && layer >= l->layers;
}

static k2_code elements_load(const k2_weights_dir *d, const k2_weights_item *item, const k2_weights_slot *slot, k2_error *err)
{
    const uint64_t count = k2i_slot_bytes(slot) / sizeof(float);
    k2_code code = K2_OK;
    for (uint64_t at = 0; at < count && code == K2_OK; at += PIECE)
        code = k2_weights_item_f32(d, item, at, K2_MIN(count - at, (uint64_t)PIECE), slot->data + at, err);
    return code;
}

static k2_code item_load(const loading *l, const k2_weights_dir *d, const k2_weights_item *item, k2_error *err)
{
    char found[K2I_SHAPE_TEXT_MAX], expected[K2I_SHAPE_TEXT_MAX];
    const k2_weights_tensor *t = item->tensor;
    const char *path = k2_weights_dir_path(d, item->file);
    const k2_weights_slot *slot = k2i_slots_find(l->slots, l->slot_count, t->name);
    if (!slot)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%.200s: tensor %.100s is not one of this model's (do the sizes in config.json fit?)", path,
                            t->name);
    if (!k2_shape_equal(&slot->shape, &t->shape))
        return k2_error_set(err, K2_BAD_INPUT, "%.200s: tensor %.100s has the shape %s, expected %s", path, t->name,
                            k2i_shape_text(&t->shape, found), k2i_shape_text(&slot->shape, expected));
    k2_code code = k2_weights_item_check(d, item, err);
    return code == K2_OK && !l->check ? elements_load(d, item, slot, err) : code;
}

static k2_code dir_load(const char *dir, const k2_weights_slot *slots, size_t count, bool check, k2_error *err)
{
    loading l = loading_begin(slots, count);
    l.check = check;
    k2_weights_dir *d = NULL;
    k2_code code = k2_weights_dir_open(dir, &d, err);
    for (size_t i = 0; code == K2_OK && i < count; i++)
        if (!k2_weights_dir_find(d, l.slots[i]->name))
            code = k2_error_set(err, K2_NOT_FOUND, "%.200s: tensor %.100s is missing", k2i_dir_where(d), l.slots[i]->name);
    for (size_t i = 0; code == K2_OK && i < k2_weights_dir_count(d); i++) {
        const k2_weights_item *item = k2_weights_dir_at(d, i);
        if (!item->is_scale && !is_skipped(&l, item->tensor->name)) code = item_load(&l, d, item, err);
    }
    k2_weights_dir_close(d);
    k2_free(l.slots);
    return code;
}

k2_code k2_weights_dir_load(const char *dir, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    return dir_load(dir, slots, count, false, err);
}

k2_code k2_weights_dir_check(const char *dir, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    return dir_load(dir, slots, count, true, err);
}

k2_code k2_weights_dir_save(const char *dir, const k2_dims *dims, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    char *weights = k2_asprintf("%s/" K2I_WEIGHTS_FILE, dir), *config = k2_asprintf("%s/" K2I_CONFIG_FILE, dir);
    k2_code code = k2_dir_make(dir, err);
    if (code == K2_OK) code = k2_weights_file_write(weights, slots, count, err);
    if (code == K2_OK) code = k2_weights_dims_write(dims, config, err);
    k2_free(weights);
    k2_free(config);
    return code;
}
