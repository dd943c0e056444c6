/* Safetensors files, and the index of a model in shards. Every tensor of what is taken lies inside it and can be read. */
#include <string.h>

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
    {.name = "model.safetensors.index.json", .take = shards, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
