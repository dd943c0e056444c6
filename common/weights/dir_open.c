/* Model directories as one list of tensors: one safetensors file, or shards and the index that says which tensor is where. */
#include "dir_int.h"
#include "file_int.h"
#include "index_int.h"
#include "number_int.h"
#include "quant_int.h"
#include "slots_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct k2_weights_dir {
    char *where; /* the single file or the index */
    k2_weights_quant quant;
    size_t file_count;
    k2_weights_file **files;
    char **paths;
    size_t count;
    k2_weights_item *items;
    k2_weights_item **by_name; /* sorted */
};

/* ---- files ------------------------------------------------------------------------------------------------------- */

static k2_code quant_load(k2_weights_dir *d, const char *dir, k2_error *err)
{
    char *path = k2_asprintf("%s/" K2I_CONFIG_FILE, dir), *text = NULL;
    size_t n = 0;
    k2_code code = K2_OK;
    if (k2_file_exists(path)) {
        code = k2_file_read(path, K2_WEIGHTS_CONFIG_BYTES_MAX, &text, &n, err);
        if (code == K2_OK) code = k2_weights_quant_parse(path, text, n, &d->quant, err);
        k2_free(text);
    }
    k2_free(path);
    return code;
}

/* Takes the path over. */
static k2_code file_add(k2_weights_dir *d, char *path, k2_error *err)
{
    d->files = k2_realloc_array(d->files, d->file_count + 1, sizeof *d->files);
    d->paths = k2_realloc_array(d->paths, d->file_count + 1, sizeof *d->paths);
    d->paths[d->file_count] = path;
    d->files[d->file_count] = NULL;
    return k2_weights_file_open(path, &d->files[d->file_count++], err);
}

/* One shard: exactly the tensors that the index promises. */
static k2_code shard_open(k2_weights_dir *d, const char *dir, const k2i_place *places, size_t count, k2_error *err)
{
    k2_code code = file_add(d, k2_asprintf("%s/%s", dir, places[0].shard), err);
    if (code != K2_OK) return code;
    const k2_weights_file *f = d->files[d->file_count - 1];
    const char *path = d->paths[d->file_count - 1];
    for (size_t i = 0; i < count; i++)
        if (!k2_weights_file_find(f, places[i].tensor))
            return k2_error_set(err, K2_BAD_INPUT, "%.200s: tensor %.100s is missing, but " K2I_INDEX_FILE " promises it", path,
                                places[i].tensor);
    if (k2_weights_file_count(f) != count)
        return k2_error_set(err, K2_BAD_INPUT, "%.200s: holds %zu tensors, but " K2I_INDEX_FILE " names %zu of it", path,
                            k2_weights_file_count(f), count);
    return K2_OK;
}

static k2_code shards_open(k2_weights_dir *d, const char *dir, k2_error *err)
{
    char *text = NULL;
    size_t n = 0;
    k2i_index *x = NULL;
    k2_code code = k2_file_read(d->where, K2I_INDEX_BYTES_MAX, &text, &n, err);
    if (code == K2_OK) code = k2i_index_parse(d->where, text, n, &x, err);
    k2_free(text);
    if (code != K2_OK) return code;
    for (size_t first = 0, end; code == K2_OK && first < x->count; first = end) {
        for (end = first + 1; end < x->count && strcmp(x->places[first].shard, x->places[end].shard) == 0;) end++;
        code = shard_open(d, dir, x->places + first, end - first, err);
    }
    k2i_index_free(x);
    return code;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(k2_weights_item *const *)a)->tensor->name, (*(k2_weights_item *const *)b)->tensor->name);
}

static k2_weights_item *find(const k2_weights_dir *d, const char *name)
{
    const k2_weights_tensor key = {.name = name};
    k2_weights_item item = {.tensor = &key}, *item_at = &item;
    k2_weights_item **found = bsearch(&item_at, d->by_name, d->count, sizeof *d->by_name, by_name);
    return found ? *found : NULL;
}

static void scales_find(k2_weights_dir *d)
{
    char name[K2_WEIGHTS_NAME_BYTES_MAX + sizeof K2I_SCALE_SUFFIX];
    for (size_t i = 0; i < d->count; i++) {
        k2_weights_item *item = &d->items[i];
        if (item->tensor->dtype != K2_DTYPE_F8_E4M3) continue;
        strcpy(name, item->tensor->name);
        strcat(name, K2I_SCALE_SUFFIX);
        k2_weights_item *scale = find(d, name);
        if (!scale) continue;
        item->scale = scale->tensor;
        scale->is_scale = true;
    }
}

/* Names are unique: a file has none twice, and the index, which names all tensors of all shards, has none twice either. */
static void items_list(k2_weights_dir *d)
{
    for (size_t f = 0; f < d->file_count; f++) d->count += k2_weights_file_count(d->files[f]);
    d->items = k2_alloc_array(d->count, sizeof *d->items);
    d->by_name = k2_alloc_array(d->count, sizeof *d->by_name);
    size_t n = 0;
    for (size_t f = 0; f < d->file_count; f++)
        for (size_t i = 0; i < k2_weights_file_count(d->files[f]); i++, n++) {
            d->items[n] = (k2_weights_item){.tensor = k2_weights_file_at(d->files[f], i), .file = f};
            d->by_name[n] = &d->items[n];
        }
    qsort(d->by_name, d->count, sizeof *d->by_name, by_name);
    scales_find(d);
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

k2_weights_dir *k2i_dir_of_file(const char *name, k2_weights_file *f, k2_weights_quant quant)
{
    k2_weights_dir *d = k2_alloc(sizeof *d);
    *d = (k2_weights_dir){.where = k2_strdup(name),
                          .quant = quant,
                          .file_count = 1,
                          .files = k2_alloc(sizeof *d->files),
                          .paths = k2_alloc(sizeof *d->paths)};
    d->files[0] = f;
    d->paths[0] = k2_strdup(name);
    items_list(d);
    return d;
}

k2_code k2_weights_dir_open(const char *dir, k2_weights_dir **out, k2_error *err)
{
    k2_weights_dir *d = k2_alloc(sizeof *d);
    char *single = k2_asprintf("%s/" K2I_WEIGHTS_FILE, dir), *index = k2_asprintf("%s/" K2I_INDEX_FILE, dir);
    const bool is_single = k2_file_exists(single);
    d->where = k2_strdup(is_single ? single : index);
    k2_code code = quant_load(d, dir, err);
    if (code == K2_OK && is_single)
        code = file_add(d, k2_strdup(single), err);
    else if (code == K2_OK && k2_file_exists(index))
        code = shards_open(d, dir, err);
    else if (code == K2_OK)
        code = k2_error_set(err, K2_NOT_FOUND, "%.300s: holds neither " K2I_WEIGHTS_FILE " nor " K2I_INDEX_FILE, dir);
    if (code == K2_OK) {
        items_list(d);
        *out = d;
    } else {
        k2_weights_dir_close(d);
    }
    k2_free(single);
    k2_free(index);
    return code;
}

void k2_weights_dir_close(k2_weights_dir *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->file_count; i++) {
        k2_weights_file_close(d->files[i]);
        k2_free(d->paths[i]);
    }
    k2_free(d->files);
    k2_free(d->paths);
    k2_free(d->items);
    k2_free(d->by_name);
    k2_free(d->where);
    k2_free(d);
}

size_t k2_weights_dir_count(const k2_weights_dir *d)
{
    return d->count;
}

const k2_weights_item *k2_weights_dir_at(const k2_weights_dir *d, size_t i)
{
    K2_ASSERT(i < d->count);
    return &d->items[i];
}

const k2_weights_item *k2_weights_dir_find(const k2_weights_dir *d, const char *name)
{
    return find(d, name);
}

size_t k2_weights_dir_files(const k2_weights_dir *d)
{
    return d->file_count;
}

const k2_weights_file *k2_weights_dir_file(const k2_weights_dir *d, size_t i)
{
    K2_ASSERT(i < d->file_count);
    return d->files[i];
}

const char *k2_weights_dir_path(const k2_weights_dir *d, size_t i)
{
    K2_ASSERT(i < d->file_count);
    return d->paths[i];
}

k2_weights_quant k2_weights_dir_quant(const k2_weights_dir *d)
{
    return d->quant;
}

const char *k2i_dir_where(const k2_weights_dir *d)
{
    return d->where;
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static k2_code quantised_check(const k2_weights_dir *d, const k2_weights_item *item, k2_error *err)
{
    const k2_weights_tensor *t = item->tensor, *s = item->scale;
    const uint32_t rows = d->quant.block_rows, columns = d->quant.block_columns;
    char found[K2I_SHAPE_TEXT_MAX], expected[K2I_SHAPE_TEXT_MAX];
    if (rows == 0)
        return k2_error_set(err, K2_UNSUPPORTED,
                            "tensor %.100s: dtype F8_E4M3, but " K2I_CONFIG_FILE " has no quantization_config", t->name);
    if (t->shape.rank != 2)
        return k2_error_set(err, K2_UNSUPPORTED, "tensor %.100s: dtype F8_E4M3 and the shape %s, expected two sizes", t->name,
                            k2i_shape_text(&t->shape, found));
    if (!s)
        return k2_error_set(err, K2_BAD_INPUT, "tensor %.100s: its scales %.100s" K2I_SCALE_SUFFIX " are missing", t->name,
                            t->name);
    if (s->dtype != K2_DTYPE_F32)
        return k2_error_set(err, K2_UNSUPPORTED, "tensor %.100s: dtype %s, expected F32", s->name, k2_dtype_name(s->dtype));
    const k2_shape want = {.rank = 2,
                           .size = {t->shape.size[0] / rows + (t->shape.size[0] % rows != 0),
                                    t->shape.size[1] / columns + (t->shape.size[1] % columns != 0)}};
    if (!k2_shape_equal(&s->shape, &want))
        return k2_error_set(err, K2_BAD_INPUT, "tensor %.100s: has the shape %s, expected %s (blocks of %u x %u)", s->name,
                            k2i_shape_text(&s->shape, found), k2i_shape_text(&want, expected), rows, columns);
    return K2_OK;
}

k2_code k2_weights_item_check(const k2_weights_dir *d, const k2_weights_item *item, k2_error *err)
{
    k2_code code = item->tensor->dtype == K2_DTYPE_F8_E4M3 ? quantised_check(d, item, err) : k2i_loadable(item->tensor, err);
    return code == K2_OK ? K2_OK : k2_error_prefix(err, "%.200s", d->paths[item->file]);
}

static float scale_at(const k2_weights_tensor *scale, uint64_t i)
{
    return k2i_f32_of_bits(k2_load_u32le((const unsigned char *)scale->data + i * sizeof(float)));
}

/* Piece by piece, each within one row of one block. */
static void dequantise(const k2_weights_dir *d, const k2_weights_item *item, uint64_t first, uint64_t count, float *out)
{
    const uint64_t columns = item->tensor->shape.size[1], blocks = item->scale->shape.size[1];
    const uint32_t width = d->quant.block_columns;
    const unsigned char *codes = item->tensor->data;
    float values[256];
    for (unsigned c = 0; c < 256; c++) values[c] = k2i_f32_of_e4m3((uint8_t)c);
    for (uint64_t at = first, end = first + count; at < end;) {
        const uint64_t row = at / columns, column = at % columns;
        const uint64_t n = K2_MIN(K2_MIN(width - column % width, columns - column), end - at);
        const float scale = scale_at(item->scale, row / d->quant.block_rows * blocks + column / width);
        for (uint64_t i = 0; i < n; i++) out[at - first + i] = values[codes[at + i]] * scale;
        at += n;
    }
}

k2_code k2_weights_item_f32(const k2_weights_dir *d, const k2_weights_item *item, uint64_t first, uint64_t count, float *out,
                            k2_error *err)
{
    const k2_weights_tensor *t = item->tensor;
    const size_t size = k2_dtype_bytes(t->dtype);
    k2_code code = k2_weights_item_check(d, item, err);
    if (code != K2_OK) return code;
    K2_ASSERT(first <= t->bytes / size && count <= t->bytes / size - first);
    if (t->dtype == K2_DTYPE_F8_E4M3) {
        dequantise(d, item, first, count, out);
        code = k2i_finite_check(t, first, out, count, err);
    } else {
        code = k2i_tensor_part(t, first, count, out, err);
    }
    k2_weights_file_forget(d->files[item->file], (const char *)t->data + first * size, count * size);
    return code == K2_OK ? K2_OK : k2_error_prefix(err, "%.200s", d->paths[item->file]);
}
