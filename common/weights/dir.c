/* Model directories: one safetensors file, or shards and the index that says which tensor is where. */
#include "index_int.h"
#include "slots_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INDEX_BYTES_MAX (256u << 20) /* of model.safetensors.index.json: a million names of 200 bytes */
#define WEIGHTS_FILE    "model.safetensors"
#define INDEX_FILE      "model.safetensors.index.json"
#define CONFIG_FILE     "config.json"

typedef struct loading {
    const k2_weights_slot **slots; /* sorted */
    size_t slot_count;
    size_t filled;
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

static k2_code tensor_load(loading *l, const char *path, const k2_weights_tensor *t, k2_error *err)
{
    char found[K2I_SHAPE_TEXT_MAX], expected[K2I_SHAPE_TEXT_MAX];
    const k2_weights_slot *slot = k2i_slots_find(l->slots, l->slot_count, t->name);
    if (!slot)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%.200s: tensor %.100s is not one of this model's (do the sizes in config.json fit?)", path,
                            t->name);
    if (!k2_shape_equal(&slot->shape, &t->shape))
        return k2_error_set(err, K2_BAD_INPUT, "%.200s: tensor %.100s has the shape %s, expected %s", path, t->name,
                            k2i_shape_text(&t->shape, found), k2i_shape_text(&slot->shape, expected));
    k2_code code = l->check ? k2i_loadable(t, err) : k2_weights_tensor_f32(t, slot->data, err);
    if (code != K2_OK) return k2_error_prefix(err, "%.200s", path);
    l->filled++;
    return K2_OK;
}

static k2_code missing(const char *path, const char *name, k2_error *err)
{
    return k2_error_set(err, K2_NOT_FOUND, "%.200s: tensor %.100s is missing", path, name);
}

/* ---- one file ---------------------------------------------------------------------------------------------------- */

static k2_code file_load(loading *l, const char *path, k2_error *err)
{
    k2_weights_file *f = NULL;
    k2_code code = k2_weights_file_open(path, &f, err);
    if (code != K2_OK) return code;
    for (size_t i = 0; code == K2_OK && i < k2_weights_file_count(f); i++)
        if (!is_skipped(l, k2_weights_file_at(f, i)->name)) code = tensor_load(l, path, k2_weights_file_at(f, i), err);
    /* Names are unique in the file, so fewer than all means that one is missing: find out which. */
    for (size_t i = 0; code == K2_OK && l->filled < l->slot_count && i < l->slot_count; i++)
        if (!k2_weights_file_find(f, l->slots[i]->name)) code = missing(path, l->slots[i]->name, err);
    k2_weights_file_close(f);
    return code;
}

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* The tensors of one shard: exactly those that the index promises. */
static k2_code shard_load(loading *l, const char *dir, const k2i_place *places, size_t count, k2_error *err)
{
    k2_weights_file *f = NULL;
    char *path = k2_asprintf("%s/%s", dir, places[0].shard);
    k2_code code = k2_weights_file_open(path, &f, err);
    for (size_t i = 0; code == K2_OK && i < count; i++) {
        const k2_weights_tensor *t = k2_weights_file_find(f, places[i].tensor);
        if (!t)
            code = k2_error_set(err, K2_BAD_INPUT, "%.200s: tensor %.100s is missing, but %s promises it", path,
                                places[i].tensor, INDEX_FILE);
        else if (!is_skipped(l, t->name))
            code = tensor_load(l, path, t, err);
    }
    if (code == K2_OK && k2_weights_file_count(f) != count)
        code = k2_error_set(err, K2_BAD_INPUT, "%.200s: holds %zu tensors, but %s names %zu of it", path,
                            k2_weights_file_count(f), INDEX_FILE, count);
    k2_weights_file_close(f);
    k2_free(path);
    return code;
}

/* Every slot has a place. */
static k2_code index_check(const loading *l, const char *path, const k2i_index *x, k2_error *err)
{
    for (size_t i = 0; i < l->slot_count; i++)
        if (!k2i_index_holds(x, l->slots[i]->name)) return missing(path, l->slots[i]->name, err);
    return K2_OK;
}

static k2_code index_load(loading *l, const char *dir, const char *path, k2_error *err)
{
    char *text = NULL;
    size_t n = 0;
    k2i_index *x = NULL;
    k2_code code = k2_file_read(path, INDEX_BYTES_MAX, &text, &n, err);
    if (code != K2_OK) return code;
    code = k2i_index_parse(path, text, n, &x, err);
    k2_free(text);
    if (code != K2_OK) return code;
    code = index_check(l, path, x, err);
    for (size_t first = 0, end; code == K2_OK && first < x->count; first = end) {
        for (end = first + 1; end < x->count && strcmp(x->places[first].shard, x->places[end].shard) == 0;) end++;
        code = shard_load(l, dir, x->places + first, end - first, err);
    }
    k2i_index_free(x);
    return code;
}

/* ---- directories ------------------------------------------------------------------------------------------------- */

static k2_code dir_load(const char *dir, const k2_weights_slot *slots, size_t count, bool check, k2_error *err)
{
    loading l = loading_begin(slots, count);
    l.check = check;
    char *single = k2_asprintf("%s/%s", dir, WEIGHTS_FILE), *index = k2_asprintf("%s/%s", dir, INDEX_FILE);
    k2_code code;
    if (k2_file_exists(single))
        code = file_load(&l, single, err);
    else if (k2_file_exists(index))
        code = index_load(&l, dir, index, err);
    else
        code = k2_error_set(err, K2_NOT_FOUND, "%.300s: holds neither %s nor %s", dir, WEIGHTS_FILE, INDEX_FILE);
    k2_free(single);
    k2_free(index);
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
    char *weights = k2_asprintf("%s/%s", dir, WEIGHTS_FILE), *config = k2_asprintf("%s/%s", dir, CONFIG_FILE);
    k2_code code = k2_dir_make(dir, err);
    if (code == K2_OK) code = k2_weights_file_write(weights, slots, count, err);
    if (code == K2_OK) code = k2_weights_dims_write(dims, config, err);
    k2_free(weights);
    k2_free(config);
    return code;
}
