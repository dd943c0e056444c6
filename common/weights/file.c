/* Reading safetensors: the header is checked whole at open, so that every tensor handed out lies inside the mapped file.
 *
 * A file that is cut short by somebody else while it is mapped still ends the process (SIGBUS); checkpoints are written under
 * temporary names and renamed, so nobody of ours does that.
 */
#include "file_int.h"
#include "json_int.h"
#include "number_int.h"
#include "write_int.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors is little-endian, and tensors are read in place");

#define PREFIX_BYTES 8u

struct k2_weights_file {
    k2_mapping mapped;                 /* nothing: the bytes are the caller's */
    char *names;                       /* of all tensors, one behind the other */
    k2_weights_tensor *tensors;        /* in the order of their data */
    const k2_weights_tensor **by_name; /* sorted */
    size_t count;
    const void *data; /* of all tensors */
    uint64_t data_bytes;
    bool has_digest;
    k2_digest digest; /* as the metadata has it */
};

/* What is known while parsing. */
typedef struct header {
    const char *name;
    const unsigned char *data; /* behind the header */
    uint64_t data_bytes;
} header;

/* ---- one tensor -------------------------------------------------------------------------------------------------- */

static k2_code shape_parse(const char *where, const cJSON *object, k2_shape *out, k2_error *err)
{
    const cJSON *list = NULL, *item;
    k2_code code = k2i_json_list(where, object, "shape", &list, err);
    if (code != K2_OK) return code;
    *out = (k2_shape){0};
    cJSON_ArrayForEach(item, list)
    {
        if (out->rank == K2_RANK_MAX)
            return k2_error_set(err, K2_LIMIT, "%s: more than %u dimensions are not supported", where, K2_RANK_MAX);
        if (!k2i_json_whole(item, &out->size[out->rank++]))
            return k2_error_set(err, K2_BAD_INPUT, "%s: shape[%u] is no whole number from 0 to 2^53", where, out->rank - 1);
    }
    return K2_OK;
}

static k2_code offsets_parse(const char *where, const cJSON *object, uint64_t *begin, uint64_t *end, k2_error *err)
{
    const cJSON *list = NULL;
    k2_code code = k2i_json_list(where, object, "data_offsets", &list, err);
    if (code != K2_OK) return code;
    const cJSON *first = list->child, *second = first ? first->next : NULL;
    if (!second || second->next || !k2i_json_whole(first, begin) || !k2i_json_whole(second, end))
        return k2_error_set(err, K2_BAD_INPUT, "%s: data_offsets is not a list of two whole numbers", where);
    return K2_OK;
}

static k2_code tensor_parse(const header *h, const cJSON *item, k2_weights_tensor *out, k2_error *err)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    char where[256];
    const char *dtype = NULL;
    uint64_t begin = 0, end = 0, elements = 0, bytes = 0;
    snprintf(where, sizeof where, "%.120s: tensor %.100s", h->name, item->string);
    if (!cJSON_IsObject(item))
        return k2_error_set(err, K2_BAD_INPUT, "%s: is %s, expected an object", where, k2i_json_type(item));
    k2_code code = k2i_json_keys(where, item, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_json_string(where, item, "dtype", &dtype, err);
    if (code == K2_OK) code = shape_parse(where, item, &out->shape, err);
    if (code == K2_OK) code = offsets_parse(where, item, &begin, &end, err);
    if (code != K2_OK) return code;
    if (!k2_dtype_parse(dtype, &out->dtype))
        return k2_error_set(err, K2_UNSUPPORTED, "%s: dtype \"%.32s\" is not supported", where, dtype);
    if (end < begin || end > h->data_bytes)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%s: data_offsets %" PRIu64 " to %" PRIu64 ", but the file has %" PRIu64 " bytes of data", where,
                            begin, end, h->data_bytes);
    if (!k2_shape_count(&out->shape, &elements) || __builtin_mul_overflow(elements, k2_dtype_bytes(out->dtype), &bytes) ||
        bytes != end - begin)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %" PRIu64 " bytes of data do not fit its dtype %s and its shape", where,
                            end - begin, dtype);
    out->data = h->data + begin;
    out->bytes = bytes;
    return K2_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const k2_weights_tensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* an empty tensor stands before the one that begins there */
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const k2_weights_tensor *const *)a)->name, (*(const k2_weights_tensor *const *)b)->name);
}

/* The format wants the data without gaps and overlaps: every byte of the file then means something, once. */
static k2_code places_check(const header *h, const k2_weights_file *f, k2_error *err)
{
    const unsigned char *at = h->data;
    for (size_t i = 0; i < f->count; i++) {
        const k2_weights_tensor *t = &f->tensors[i];
        const unsigned char *begin = t->data;
        if (begin != at)
            return k2_error_set(err, K2_BAD_INPUT, "%.120s: tensor %.100s begins at byte %td of the data, expected %td (%s)",
                                h->name, t->name, begin - h->data, at - h->data, begin < at ? "it overlaps" : "a gap");
        at += t->bytes;
    }
    if ((uint64_t)(at - h->data) != h->data_bytes)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %" PRIu64 " bytes of data, but the tensors take %td", h->name,
                            h->data_bytes, at - h->data);
    return K2_OK;
}

static k2_code names_check(const header *h, k2_weights_file *f, k2_error *err)
{
    f->by_name = k2_alloc_array(f->count, sizeof *f->by_name);
    for (size_t i = 0; i < f->count; i++) f->by_name[i] = &f->tensors[i];
    qsort(f->by_name, f->count, sizeof *f->by_name, by_name);
    for (size_t i = 1; i < f->count; i++)
        if (strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) == 0)
            return k2_error_set(err, K2_BAD_INPUT, "%.120s: tensor %.100s is there twice", h->name, f->by_name[i]->name);
    return K2_OK;
}

static k2_code metadata_parse(const header *h, const cJSON *object, k2_weights_file *f, k2_error *err)
{
    const cJSON *item;
    if (!cJSON_IsObject(object))
        return k2_error_set(err, K2_BAD_INPUT, "%s: __metadata__ is %s, expected an object", h->name, k2i_json_type(object));
    cJSON_ArrayForEach(item, object)
    {
        if (!cJSON_IsString(item))
            return k2_error_set(err, K2_BAD_INPUT, "%s: __metadata__: \"%.64s\" is %s, expected a string", h->name,
                                item->string, k2i_json_type(item));
        if (strcmp(item->string, K2I_DIGEST_KEY) != 0) continue;
        if (f->has_digest || !k2_digest_parse(item->valuestring, &f->digest))
            return k2_error_set(err, K2_BAD_INPUT, "%s: __metadata__: \"" K2I_DIGEST_KEY "\" is not 32 hex digits, once",
                                h->name);
        f->has_digest = true;
    }
    return K2_OK;
}

static bool is_metadata(const cJSON *item)
{
    return strcmp(item->string, "__metadata__") == 0;
}

static k2_code tensors_parse(const header *h, const cJSON *root, k2_weights_file *f, k2_error *err)
{
    const cJSON *item;
    size_t count = 0, name_bytes = 0;
    cJSON_ArrayForEach(item, root)
    {
        size_t n = strlen(item->string);
        if (n > K2_WEIGHTS_NAME_BYTES_MAX)
            return k2_error_set(err, K2_LIMIT, "%s: a tensor's name has %zu bytes, at most %u are accepted", h->name, n,
                                K2_WEIGHTS_NAME_BYTES_MAX);
        if (++count > K2_WEIGHTS_TENSORS_MAX)
            return k2_error_set(err, K2_LIMIT, "%s: more than %u tensors", h->name, K2_WEIGHTS_TENSORS_MAX);
        name_bytes += n + 1;
    }
    f->names = k2_alloc(name_bytes);
    f->tensors = k2_alloc_array(count, sizeof *f->tensors);
    char *name = f->names;
    cJSON_ArrayForEach(item, root)
    {
        k2_weights_tensor *t = &f->tensors[f->count];
        k2_code code = is_metadata(item) ? metadata_parse(h, item, f, err) : tensor_parse(h, item, t, err);
        if (code != K2_OK) return code;
        if (is_metadata(item)) continue;
        t->name = strcpy(name, item->string);
        name += strlen(name) + 1;
        f->count++;
    }
    qsort(f->tensors, f->count, sizeof *f->tensors, by_place);
    k2_code code = names_check(h, f, err);
    return code == K2_OK ? places_check(h, f, err) : code;
}

static k2_code parse(const char *name, const unsigned char *bytes, size_t n, k2_weights_file *f, k2_error *err)
{
    if (n < PREFIX_BYTES) return k2_error_set(err, K2_BAD_INPUT, "%s: %zu bytes are no safetensors file", name, n);
    const uint64_t header_bytes = k2_load_u64le(bytes);
    if (header_bytes > K2_WEIGHTS_HEADER_BYTES_MAX)
        return k2_error_set(err, K2_LIMIT,
                            "%s: a header of %" PRIu64 " bytes, at most %u are accepted (is it a safetensors file?)", name,
                            header_bytes, K2_WEIGHTS_HEADER_BYTES_MAX);
    if (header_bytes > n - PREFIX_BYTES)
        return k2_error_set(err, K2_BAD_INPUT, "%s: is truncated: its header has %" PRIu64 " bytes, the whole file %zu", name,
                            header_bytes, n);
    const header h = {.name = name, .data = bytes + PREFIX_BYTES + header_bytes, .data_bytes = n - PREFIX_BYTES - header_bytes};
    f->data = h.data;
    f->data_bytes = h.data_bytes;
    cJSON *root = NULL;
    k2_code code = k2i_json_parse(name, (const char *)bytes + PREFIX_BYTES, header_bytes, &root, err);
    if (code != K2_OK) return code;
    code = tensors_parse(&h, root, f, err);
    cJSON_Delete(root);
    return code;
}

k2_code k2_weights_file_parse(const char *name, const void *bytes, size_t n, k2_weights_file **out, k2_error *err)
{
    k2_weights_file *f = k2_alloc(sizeof *f);
    k2_code code = parse(name, bytes, n, f, err);
    if (code != K2_OK) {
        k2_weights_file_close(f);
        return code;
    }
    *out = f;
    return K2_OK;
}

k2_code k2_weights_file_open(const char *path, k2_weights_file **out, k2_error *err)
{
    k2_mapping mapped = {0};
    k2_weights_file *f = NULL;
    k2_code code = k2_file_map(path, &mapped, err);
    if (code == K2_OK && mapped.n == 0) code = k2_error_set(err, K2_BAD_INPUT, "%s: is empty", path);
    if (code == K2_OK) code = k2_weights_file_parse(path, mapped.bytes, mapped.n, &f, err);
    if (code != K2_OK) {
        k2_file_unmap(&mapped);
        return code;
    }
    f->mapped = mapped;
    *out = f;
    return K2_OK;
}

void k2_weights_file_close(k2_weights_file *f)
{
    if (!f) return;
    k2_file_unmap(&f->mapped);
    k2_free(f->names);
    k2_free(f->tensors);
    k2_free(f->by_name);
    k2_free(f);
}

size_t k2_weights_file_count(const k2_weights_file *f)
{
    return f->count;
}

const k2_weights_tensor *k2_weights_file_at(const k2_weights_file *f, size_t i)
{
    K2_ASSERT(i < f->count);
    return &f->tensors[i];
}

const k2_weights_tensor *k2_weights_file_find(const k2_weights_file *f, const char *name)
{
    const k2_weights_tensor key = {.name = name}, *key_at = &key;
    const k2_weights_tensor **found = bsearch(&key_at, f->by_name, f->count, sizeof *f->by_name, by_name);
    return found ? *found : NULL;
}

/* ---- digest ------------------------------------------------------------------------------------------------------ */

bool k2_weights_file_digest(const k2_weights_file *f, k2_digest *out)
{
    if (f->has_digest) *out = f->digest;
    return f->has_digest;
}

k2_code k2_weights_file_verify(const k2_weights_file *f, k2_error *err)
{
    const uint64_t piece = K2_FILE_PIECE_BYTES;
    if (!f->has_digest) return K2_OK;
    k2_digest_stream *s = k2_digest_begin();
    for (uint64_t at = 0; at < f->data_bytes; at += piece) {
        const uint64_t n = K2_MIN(f->data_bytes - at, piece);
        k2_digest_update(s, (const char *)f->data + at, n);
        k2_weights_file_forget(f, (const char *)f->data + at, n);
    }
    if (k2_digest_equal(k2_digest_end(s), f->digest)) return K2_OK;
    return k2_error_set(err, K2_CORRUPT, "its data is not that of the digest in its header");
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

void k2_weights_file_forget(const k2_weights_file *f, const void *bytes, uint64_t n)
{
    k2_file_forget(&f->mapped, bytes, n);
}

k2_code k2i_loadable(const k2_weights_tensor *t, k2_error *err)
{
    if (t->dtype == K2_DTYPE_F32 || t->dtype == K2_DTYPE_BF16 || t->dtype == K2_DTYPE_F16) return K2_OK;
    return k2_error_set(err, K2_UNSUPPORTED, "tensor %.100s: dtype %s cannot be loaded, expected F32, BF16 or F16", t->name,
                        k2_dtype_name(t->dtype));
}

static uint16_t load_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

k2_code k2i_finite_check(const k2_weights_tensor *t, uint64_t first, const float *values, uint64_t count, k2_error *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return k2_error_set(err, K2_NOT_FINITE, "tensor %.100s: element %" PRIu64 " is NaN or infinite", t->name,
                                first + i);
    return K2_OK;
}

k2_code k2i_tensor_part(const k2_weights_tensor *t, uint64_t first, uint64_t count, float *out, k2_error *err)
{
    const unsigned char *p = (const unsigned char *)t->data + first * k2_dtype_bytes(t->dtype);
    k2_code code = k2i_loadable(t, err);
    if (code != K2_OK) return code;
    if (t->dtype == K2_DTYPE_F32)
        memcpy(out, p, count * sizeof *out);
    else if (t->dtype == K2_DTYPE_BF16)
        for (uint64_t i = 0; i < count; i++) out[i] = k2i_f32_of_bf16(load_u16(p + 2 * i));
    else
        for (uint64_t i = 0; i < count; i++) out[i] = k2i_f32_of_f16(load_u16(p + 2 * i));
    return k2i_finite_check(t, first, out, count, err);
}

k2_code k2_weights_tensor_f32(const k2_weights_tensor *t, float *out, k2_error *err)
{
    return k2i_tensor_part(t, 0, t->bytes / k2_dtype_bytes(t->dtype), out, err);
}
