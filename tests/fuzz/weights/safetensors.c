/* Safetensors files, and the index of a model in shards. Every tensor of what is taken lies inside it and can be read. */
#include <string.h>

#include "common/weights/dir_int.h"
#include "common/weights/index_int.h"
#include "common/weights/weights.h"
#include "tests/fuzz/harness/parser.h"

static bool file(const uint8_t *bytes, size_t n)
{
    k2_weights_file *f = NULL;
    k2_error err;
    uint64_t sum = 0;
    const k2_code code = k2_weights_file_parse("file", bytes, n, &f, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "file", 4) == 0));
    if (code != K2_OK) return false;
    for (size_t i = 0; i < k2_weights_file_count(f); i++) {
        const k2_weights_tensor *t = k2_weights_file_at(f, i);
        const uint8_t *begin = t->data;
        K2_ASSERT(begin >= bytes && t->bytes <= (uint64_t)(bytes + n - begin));
        K2_ASSERT(k2_weights_file_find(f, t->name) == t);
        float *values = k2_alloc_array(t->bytes / k2_dtype_bytes(t->dtype), sizeof *values);
        k2_weights_tensor_f32(t, values, NULL);
        k2_free(values);
        sum += t->bytes;
    }
    K2_ASSERT(sum == n - 8 - k2_load_u64le(bytes));
    k2_weights_file_close(f);
    return true;
}

/* Every tensor of what is taken as f32, fp8 by its scales: read at once and in parts, the same comes out. The block is small,
 * so that small inputs have several. */
static bool elements(const uint8_t *bytes, size_t n)
{
    k2_weights_file *f = NULL;
    if (k2_weights_file_parse("file", bytes, n, &f, NULL) != K2_OK) return false;
    k2_weights_dir *d = k2i_dir_of_file("file", f, (k2_weights_quant){.block_rows = 2, .block_columns = 3});
    for (size_t i = 0; i < k2_weights_dir_count(d); i++) {
        const k2_weights_item *item = k2_weights_dir_at(d, i);
        const uint64_t count = item->tensor->bytes / k2_dtype_bytes(item->tensor->dtype), half = count / 2;
        float *whole = k2_alloc_array(count, sizeof *whole), *parts = k2_alloc_array(count, sizeof *parts);
        k2_error err;
        k2_code code = k2_weights_item_f32(d, item, 0, count, whole, &err);
        K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "file", 4) == 0));
        if (code == K2_OK) code = k2_weights_item_f32(d, item, 0, half, parts, NULL);
        if (code == K2_OK) code = k2_weights_item_f32(d, item, half, count - half, parts + half, NULL);
        K2_ASSERT(code != K2_OK || memcmp(whole, parts, count * sizeof *whole) == 0);
        k2_free(whole);
        k2_free(parts);
    }
    k2_weights_dir_close(d);
    return true;
}

static bool shards(const uint8_t *text, size_t n)
{
    k2i_index *x = NULL;
    k2_error err;
    const k2_code code = k2i_index_parse("index", (const char *)text, n, &x, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && strncmp(err.text, "index", 5) == 0));
    for (size_t i = 0; code == K2_OK && i < x->count; i++) {
        const k2i_place *p = &x->places[i];
        K2_ASSERT(k2i_index_holds(x, p->tensor) && *p->shard && *p->shard != '.' && !strchr(p->shard, '/'));
        K2_ASSERT(i == 0 || strcmp(x->places[i - 1].shard, p->shard) <= 0);
    }
    k2i_index_free(x);
    return code == K2_OK;
}

const k2_parser k2_parsers[] = {
    {.name = "safetensors", .take = file, .prefixes_refused = true},
    {.name = "elements", .take = elements, .prefixes_refused = true},
    {.name = "model.safetensors.index.json", .take = shards, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
