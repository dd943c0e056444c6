/* Manifests as JSON. Digests have a fixed width, so that the length follows from the plan alone. */
#include "json_int.h"
#include "manifest_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANIFEST_FORMAT 1u
#define HASH_HEX        16u /* digits of a chunk's hash */

/* ---- encode ------------------------------------------------------------------------------------------------------ */

static void entry_encode(const k2_weights_entry *e, k2_buf *out)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(e->digest, hex);
    k2_buf_puts(out, "{\"name\":");
    k2_buf_json_string(out, e->name, strlen(e->name));
    k2_buf_puts(out, ",\"dtype\":\"F32\",\"shape\":[");
    for (uint32_t i = 0; i < e->shape.rank; i++) k2_buf_printf(out, "%s%" PRIu64, i ? "," : "", e->shape.size[i]);
    k2_buf_printf(out, "],\"offset\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"digest\":\"%s\"}", e->offset, e->bytes, hex);
}

void k2_weights_manifest_encode(const k2_weights_manifest *m, k2_buf *out)
{
    char hex[K2_DIGEST_HEX];
    k2_digest_hex(m->digest, hex);
    K2_ASSERT(m->version <= K2I_JSON_EXACT_MAX);
    k2_buf_printf(out,
                  "{\"format\":%u,\"version\":%" PRIu64 ",\"data_bytes\":%" PRIu64 ",\"chunk_bytes\":%u,\"digest\":\"%s\",\n"
                  "\"tensors\":[",
                  MANIFEST_FORMAT, m->version, m->data_bytes, m->chunk_bytes, hex);
    for (size_t i = 0; i < m->count; i++) {
        k2_buf_puts(out, i ? ",\n" : "\n");
        entry_encode(&m->entries[i], out);
    }
    k2_buf_puts(out, "],\n\"chunks\":[");
    for (size_t i = 0; i < m->chunk_count; i++) k2_buf_printf(out, "%s\"%016" PRIx64 "\"", i ? "," : "", m->chunks[i]);
    k2_buf_puts(out, "]}\n");
}

/* ---- decode ------------------------------------------------------------------------------------------------------ */

static k2_code digest_field(const char *where, const cJSON *object, k2_digest *out, k2_error *err)
{
    const char *hex = NULL;
    k2_code code = k2i_json_string(where, object, "digest", &hex, err);
    if (code == K2_OK && !k2_digest_parse(hex, out))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: \"digest\" is \"%.40s\", expected 32 hex digits", where, hex);
    return code;
}

static k2_code shape_field(const char *where, const cJSON *object, k2_shape *out, k2_error *err)
{
    const cJSON *list = NULL, *item;
    k2_code code = k2i_json_list(where, object, "shape", &list, err);
    if (code != K2_OK) return code;
    *out = (k2_shape){0};
    cJSON_ArrayForEach(item, list)
    {
        if (out->rank == K2_RANK_MAX)
            return k2_error_set(err, K2_LIMIT, "%s: \"shape\" has more than %u dimensions", where, K2_RANK_MAX);
        if (!k2i_json_whole(item, &out->size[out->rank++]))
            return k2_error_set(err, K2_BAD_INPUT, "%s: \"shape\" holds something that is no size", where);
    }
    return K2_OK;
}

/* `offset` is where the layout puts this entry: there is one right place for each. */
static k2_code entry_decode(const cJSON *item, size_t i, uint64_t offset, k2_weights_entry *out, k2_error *err)
{
    static const char *const keys[] = {"name", "dtype", "shape", "offset", "bytes", "digest"};
    char where[48];
    const char *name = NULL, *dtype = NULL;
    uint64_t elements = 0;
    snprintf(where, sizeof where, "manifest: tensors[%zu]", i);
    if (!cJSON_IsObject(item))
        return k2_error_set(err, K2_BAD_INPUT, "%s is %s, expected an object", where, k2i_json_type(item));
    k2_code code = k2i_json_keys(where, item, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_json_string(where, item, "name", &name, err);
    if (code == K2_OK) code = k2i_json_string(where, item, "dtype", &dtype, err);
    if (code == K2_OK) code = shape_field(where, item, &out->shape, err);
    if (code == K2_OK) code = k2i_json_u64(where, item, "offset", K2I_JSON_EXACT_MAX, &out->offset, err);
    if (code == K2_OK) code = k2i_json_u64(where, item, "bytes", K2I_JSON_EXACT_MAX, &out->bytes, err);
    if (code == K2_OK) code = digest_field(where, item, &out->digest, err);
    if (code != K2_OK) return code;
    if (!*name || strlen(name) > K2_WEIGHTS_NAME_BYTES_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "%s: \"name\" has %zu bytes, expected 1 to %u", where, strlen(name),
                            K2_WEIGHTS_NAME_BYTES_MAX);
    if (strcmp(dtype, "F32") != 0)
        return k2_error_set(err, K2_UNSUPPORTED, "%s: \"dtype\" is \"%.32s\", expected F32", where, dtype);
    if (!k2_shape_count(&out->shape, &elements) || elements > UINT64_MAX / sizeof(float) ||
        elements * sizeof(float) != out->bytes)
        return k2_error_set(err, K2_BAD_INPUT, "%s: \"bytes\" is %" PRIu64 ", which is not what its shape takes", where,
                            out->bytes);
    if (out->offset != offset)
        return k2_error_set(err, K2_BAD_INPUT, "%s: \"offset\" is %" PRIu64 ", expected %" PRIu64, where, out->offset, offset);
    out->name = k2_strdup(name);
    return K2_OK;
}

static k2_code entries_decode(const cJSON *list, k2_weights_manifest *m, k2_error *err)
{
    const cJSON *item;
    uint64_t at = 0;
    cJSON_ArrayForEach(item, list)
    {
        k2_weights_entry *e = &m->entries[m->count];
        k2_code code = entry_decode(item, m->count, at, e, err);
        if (code != K2_OK) return code;
        m->count++;
        at += k2i_align(e->bytes, K2_WEIGHTS_ALIGN); /* both are below 2^54, and the sum is checked in each round */
        if (at > m->data_bytes)
            return k2_error_set(err, K2_BAD_INPUT, "manifest: tensors[%zu] ends past the %" PRIu64 " bytes of data",
                                m->count - 1, m->data_bytes);
    }
    if (at != m->data_bytes)
        return k2_error_set(err, K2_BAD_INPUT, "manifest: \"data_bytes\" is %" PRIu64 ", but the tensors take %" PRIu64,
                            m->data_bytes, at);
    return K2_OK;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static k2_code names_check(const k2_weights_manifest *m, k2_error *err)
{
    const char **names = k2_alloc_array(m->count, sizeof *names);
    k2_code code = K2_OK;
    for (size_t i = 0; i < m->count; i++) names[i] = m->entries[i].name;
    qsort(names, m->count, sizeof *names, by_text);
    for (size_t i = 1; code == K2_OK && i < m->count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code = k2_error_set(err, K2_BAD_INPUT, "manifest: tensor %.100s is there twice", names[i]);
    k2_free(names);
    return code;
}

static bool hash_parse(const cJSON *item, uint64_t *out)
{
    if (!cJSON_IsString(item) || strlen(item->valuestring) != HASH_HEX) return false;
    if (strspn(item->valuestring, "0123456789abcdef") != HASH_HEX) return false;
    *out = strtoull(item->valuestring, NULL, 16);
    return true;
}

static k2_code chunks_decode(const cJSON *list, k2_weights_manifest *m, k2_error *err)
{
    const size_t want = k2i_manifest_chunks(m->data_bytes, m->chunk_bytes), found = (size_t)cJSON_GetArraySize(list);
    if (found != want) return k2_error_set(err, K2_BAD_INPUT, "manifest: \"chunks\" holds %zu, expected %zu", found, want);
    m->chunks = k2_alloc_array(want, sizeof *m->chunks);
    const cJSON *item;
    cJSON_ArrayForEach(item, list) if (!hash_parse(item, &m->chunks[m->chunk_count++])) return k2_error_set(
        err, K2_BAD_INPUT, "manifest: chunks[%zu] is not %u hex digits", m->chunk_count - 1, HASH_HEX);
    return K2_OK;
}

static k2_code root_decode(const cJSON *root, k2_weights_manifest **out, k2_error *err)
{
    static const char *const keys[] = {"format", "version", "data_bytes", "chunk_bytes", "digest", "tensors", "chunks"};
    uint64_t format = 0, version = 0, data_bytes = 0, chunk_bytes = 0;
    k2_digest digest = {0};
    const cJSON *tensors = NULL, *chunks = NULL;
    k2_code code = k2i_json_keys("manifest", root, keys, K2_COUNT(keys), err);
    if (code == K2_OK) code = k2i_json_u64("manifest", root, "format", K2I_JSON_EXACT_MAX, &format, err);
    if (code == K2_OK && format != MANIFEST_FORMAT)
        code = k2_error_set(err, K2_UNSUPPORTED, "manifest: \"format\" is %" PRIu64 ", expected %u", format, MANIFEST_FORMAT);
    if (code == K2_OK) code = k2i_json_u64("manifest", root, "version", K2I_JSON_EXACT_MAX, &version, err);
    if (code == K2_OK) code = k2i_json_u64("manifest", root, "data_bytes", K2I_JSON_EXACT_MAX, &data_bytes, err);
    if (code == K2_OK) code = k2i_json_u64("manifest", root, "chunk_bytes", K2I_JSON_EXACT_MAX, &chunk_bytes, err);
    if (code == K2_OK) code = digest_field("manifest", root, &digest, err);
    if (code == K2_OK) code = k2i_json_list("manifest", root, "tensors", &tensors, err);
    if (code == K2_OK) code = k2i_json_list("manifest", root, "chunks", &chunks, err);
    if (code == K2_OK) code = k2i_manifest_chunks_check(data_bytes, chunk_bytes, err);
    if (code != K2_OK) return code;
    const size_t count = (size_t)cJSON_GetArraySize(tensors);
    if (count > K2_WEIGHTS_TENSORS_MAX)
        return k2_error_set(err, K2_LIMIT, "manifest: %zu tensors, at most %u are accepted", count, K2_WEIGHTS_TENSORS_MAX);
    k2_weights_manifest *m = k2i_manifest_new(count);
    m->version = version;
    m->data_bytes = data_bytes;
    m->chunk_bytes = (uint32_t)chunk_bytes;
    m->digest = digest;
    code = entries_decode(tensors, m, err);
    if (code == K2_OK) code = names_check(m, err);
    if (code == K2_OK) code = chunks_decode(chunks, m, err);
    if (code == K2_OK && !k2_digest_equal(k2i_manifest_digest(m), m->digest))
        code = k2_error_set(err, K2_CORRUPT, "manifest: \"digest\" is not the one that follows from the tensors");
    if (code != K2_OK) {
        k2_weights_manifest_free(m);
        return code;
    }
    *out = m;
    return K2_OK;
}

k2_code k2_weights_manifest_decode(const char *text, size_t n, k2_weights_manifest **out, k2_error *err)
{
    cJSON *root = NULL;
    if (n > K2_WEIGHTS_MANIFEST_BYTES_MAX)
        return k2_error_set(err, K2_LIMIT, "manifest: %zu bytes, at most %u are accepted", n, K2_WEIGHTS_MANIFEST_BYTES_MAX);
    k2_code code = k2i_json_parse("manifest", text, n, &root, err);
    if (code != K2_OK) return code;
    code = root_decode(root, out, err);
    cJSON_Delete(root);
    return code;
}
