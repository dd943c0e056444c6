/* The weights of a model in and out of its directory. */
#include "dir_int.h"
#include "slots_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 4194304u /* elements that are read at a time, so that few mapped pages are held */

typedef enum purpose {
    LOAD,
    GIVE,  /* to who asked, one tensor after the other, digests taken */
    CHECK, /* names, types and shapes only */
    VERIFY /* all elements are read, and digests taken, but nothing is kept */
} purpose;

typedef struct loading {
    purpose purpose;
    const k2_weights_slot **slots; /* sorted */
    size_t slot_count;
    uint64_t layers;              /* of the model: one more than the highest number in the slots' names */
    k2_digest *digests;           /* GIVE, VERIFY: of the slots' tensors */
    const k2_weights_slot *asked; /* GIVE: the slots as they came */
    float *tensor;
    k2_weights_take *take;
    void *take_arg;
    k2_weights_progress *progress;
    void *progress_arg;
    uint64_t done, total;
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

static loading loading_begin(purpose what_for, const k2_weights_slot *slots, size_t count)
{
    loading l = {.purpose = what_for, .slots = k2i_slots_sort(slots, count), .slot_count = count};
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

static k2_code elements_load(const k2_weights_dir *d, const k2_weights_item *item, const k2_weights_slot *slot, float *out,
                             k2_error *err)
{
    const uint64_t count = k2i_slot_bytes(slot) / sizeof(float);
    k2_code code = K2_OK;
    for (uint64_t at = 0; at < count && code == K2_OK; at += PIECE)
        code = k2_weights_item_f32(d, item, at, K2_MIN(count - at, (uint64_t)PIECE), out + at, err);
    return code;
}

static k2_code elements_give(loading *l, const k2_weights_dir *d, const k2_weights_item *item, size_t place, k2_error *err)
{
    const k2_weights_slot *slot = l->slots[place];
    k2_code code = elements_load(d, item, slot, l->tensor, err);
    if (code != K2_OK) return code;
    l->digests[place] = k2_digest_of(l->tensor, k2i_slot_bytes(slot));
    l->take(l->take_arg, (size_t)(slot - l->asked), l->tensor);
    return K2_OK;
}

/* The digest of the elements as f32; they are not kept. */
static k2_code elements_verify(loading *l, const k2_weights_dir *d, const k2_weights_item *item, k2_digest *out, k2_error *err)
{
    const size_t size = k2_dtype_bytes(item->tensor->dtype);
    const uint64_t count = item->tensor->bytes / size, piece = K2_MIN(count, (uint64_t)PIECE);
    float *values = k2_alloc_array(piece, sizeof *values);
    k2_digest_stream *s = k2_digest_begin();
    k2_code code = K2_OK;
    for (uint64_t at = 0; at < count && code == K2_OK; at += piece) {
        const uint64_t n = K2_MIN(count - at, piece);
        code = k2_weights_item_f32(d, item, at, n, values, err);
        if (code != K2_OK) break;
        k2_digest_update(s, values, n * sizeof *values);
        l->done += n * size;
        if (l->progress) l->progress(l->progress_arg, l->done, l->total);
    }
    const k2_digest digest = k2_digest_end(s);
    if (code == K2_OK) *out = digest;
    k2_free(values);
    return code;
}

static k2_code item_take(loading *l, const k2_weights_dir *d, const k2_weights_item *item, k2_error *err)
{
    char found[K2I_SHAPE_TEXT_MAX], expected[K2I_SHAPE_TEXT_MAX];
    const k2_weights_tensor *t = item->tensor;
    const char *path = k2_weights_dir_path(d, item->file);
    const size_t place = k2i_slots_place(l->slots, l->slot_count, t->name);
    if (place == l->slot_count)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%.200s: tensor %.100s is not one of this model's (do the sizes in config.json fit?)", path,
                            t->name);
    const k2_weights_slot *slot = l->slots[place];
    if (!k2_shape_equal(&slot->shape, &t->shape))
        return k2_error_set(err, K2_BAD_INPUT, "%.200s: tensor %.100s has the shape %s, expected %s", path, t->name,
                            k2i_shape_text(&t->shape, found), k2i_shape_text(&slot->shape, expected));
    switch (l->purpose) {
    case LOAD: return elements_load(d, item, slot, slot->data, err);
    case GIVE: return elements_give(l, d, item, place, err);
    case CHECK: return k2_weights_item_check(d, item, err);
    case VERIFY: break;
    }
    return elements_verify(l, d, item, &l->digests[place], err);
}

/* Tensors that the model has no use for may be of any type; where they can be read they must be finite, too. */
static k2_code skipped_take(loading *l, const k2_weights_dir *d, const k2_weights_item *item, k2_error *err)
{
    k2_digest ignored;
    if (l->purpose != VERIFY || k2_weights_item_check(d, item, NULL) != K2_OK) return K2_OK;
    return elements_verify(l, d, item, &ignored, err);
}

static k2_code items_take(loading *l, const k2_weights_dir *d, k2_error *err)
{
    k2_code code = K2_OK;
    for (size_t i = 0; code == K2_OK && i < l->slot_count; i++)
        if (!k2_weights_dir_find(d, l->slots[i]->name))
            code = k2_error_set(err, K2_NOT_FOUND, "%.200s: tensor %.100s is missing", k2i_dir_where(d), l->slots[i]->name);
    for (size_t i = 0; i < k2_weights_dir_count(d); i++) l->total += k2_weights_dir_at(d, i)->tensor->bytes;
    for (size_t i = 0; code == K2_OK && i < k2_weights_dir_count(d); i++) {
        const k2_weights_item *item = k2_weights_dir_at(d, i);
        if (item->is_scale) continue;
        code = is_skipped(l, item->tensor->name) ? skipped_take(l, d, item, err) : item_take(l, d, item, err);
    }
    return code;
}

static k2_code files_verify(const k2_weights_dir *d, k2_error *err)
{
    k2_code code = K2_OK;
    for (size_t i = 0; code == K2_OK && i < k2_weights_dir_files(d); i++)
        if ((code = k2_weights_file_verify(k2_weights_dir_file(d, i), err)) != K2_OK)
            k2_error_prefix(err, "%.200s", k2_weights_dir_path(d, i));
    return code;
}

static k2_code dir_take(loading *l, const char *dir, k2_error *err)
{
    k2_weights_dir *d = NULL;
    k2_code code = k2_weights_dir_open(dir, &d, err);
    if (code == K2_OK) code = items_take(l, d, err);
    if (code == K2_OK && l->purpose == VERIFY) code = files_verify(d, err);
    k2_weights_dir_close(d);
    return code;
}

k2_code k2_weights_dir_load(const char *dir, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    loading l = loading_begin(LOAD, slots, count);
    k2_code code = dir_take(&l, dir, err);
    k2_free(l.slots);
    return code;
}

k2_code k2_weights_dir_each(const char *dir, const k2_weights_slot *slots, size_t count, k2_weights_take *take, void *arg,
                            k2_digest *digest, k2_error *err)
{
    loading l = loading_begin(GIVE, slots, count);
    uint64_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = K2_MAX(largest, k2i_slot_bytes(&slots[i]));
    l.digests = k2_alloc_array(count, sizeof *l.digests);
    l.asked = slots;
    l.tensor = k2_alloc(largest);
    l.take = take;
    l.take_arg = arg;
    k2_code code = dir_take(&l, dir, err);
    if (code == K2_OK) *digest = k2i_slots_digest(l.slots, l.digests, count);
    k2_free(l.tensor);
    k2_free(l.digests);
    k2_free(l.slots);
    return code;
}

k2_code k2_weights_dir_check(const char *dir, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    loading l = loading_begin(CHECK, slots, count);
    k2_code code = dir_take(&l, dir, err);
    k2_free(l.slots);
    return code;
}

k2_code k2_weights_dir_verify(const char *dir, const k2_weights_slot *slots, size_t count, k2_weights_progress *progress,
                              void *arg, k2_digest *digest, k2_error *err)
{
    loading l = loading_begin(VERIFY, slots, count);
    l.digests = k2_alloc_array(count, sizeof *l.digests);
    l.progress = progress;
    l.progress_arg = arg;
    k2_code code = dir_take(&l, dir, err);
    if (code == K2_OK) *digest = k2i_slots_digest(l.slots, l.digests, count);
    k2_free(l.digests);
    k2_free(l.slots);
    return code;
}
