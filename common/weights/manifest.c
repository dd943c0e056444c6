/* Manifests: where each tensor lies in a segment, the digests, and the check of bytes against them. */
#include "manifest_int.h"
#include "slots_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- digest ------------------------------------------------------------------------------------------------------ */

/* One line of the weights digest. */
static void line_update(k2_digest_stream *s, const char *name, const k2_shape *shape, k2_digest tensor)
{
    char rest[K2I_SHAPE_TEXT_MAX + K2_DIGEST_HEX + 16], hex[K2_DIGEST_HEX];
    int n = snprintf(rest, sizeof rest, " F32 ");
    for (uint32_t i = 0; i < shape->rank; i++)
        n += snprintf(rest + n, sizeof rest - (size_t)n, "%s%" PRIu64, i ? "," : "", shape->size[i]);
    k2_digest_hex(tensor, hex);
    n += snprintf(rest + n, sizeof rest - (size_t)n, " %s\n", hex);
    k2_digest_update(s, name, strlen(name));
    k2_digest_update(s, rest, (size_t)n);
}

k2_digest k2i_slots_digest(const k2_weights_slot *const *sorted, const k2_digest *tensors, size_t count)
{
    k2_digest_stream *s = k2_digest_begin();
    for (size_t i = 0; i < count; i++) line_update(s, sorted[i]->name, &sorted[i]->shape, tensors[i]);
    return k2_digest_end(s);
}

k2_digest k2_weights_digest(const k2_weights_slot *slots, size_t count)
{
    const k2_weights_slot **sorted = k2i_slots_sort(slots, count);
    k2_digest *tensors = k2_alloc_array(count, sizeof *tensors);
    for (size_t i = 0; i < count; i++) tensors[i] = k2_digest_of(sorted[i]->data, k2i_slot_bytes(sorted[i]));
    const k2_digest digest = k2i_slots_digest(sorted, tensors, count);
    k2_free(tensors);
    k2_free(sorted);
    return digest;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const k2_weights_entry *const *)a)->name, (*(const k2_weights_entry *const *)b)->name);
}

k2_digest k2i_manifest_digest(const k2_weights_manifest *m)
{
    const k2_weights_entry **sorted = k2_alloc_array(m->count, sizeof *sorted);
    for (size_t i = 0; i < m->count; i++) sorted[i] = &m->entries[i];
    qsort(sorted, m->count, sizeof *sorted, by_name);
    k2_digest_stream *s = k2_digest_begin();
    for (size_t i = 0; i < m->count; i++) line_update(s, sorted[i]->name, &sorted[i]->shape, sorted[i]->digest);
    k2_free(sorted);
    return k2_digest_end(s);
}

/* ---- plan -------------------------------------------------------------------------------------------------------- */

k2_weights_manifest *k2i_manifest_new(size_t count)
{
    k2_weights_manifest *m = k2_alloc(sizeof *m);
    m->entries = k2_alloc_array(count, sizeof *m->entries);
    return m;
}

void k2_weights_manifest_free(k2_weights_manifest *m)
{
    if (!m) return;
    for (size_t i = 0; i < m->count; i++) k2_free((void *)(uintptr_t)m->entries[i].name);
    k2_free(m->entries);
    k2_free(m->chunks);
    k2_free(m);
}

size_t k2i_manifest_chunks(uint64_t data_bytes, uint32_t chunk_bytes)
{
    return (size_t)((data_bytes + chunk_bytes - 1) / chunk_bytes);
}

k2_code k2i_manifest_chunks_check(uint64_t data_bytes, uint64_t chunk_bytes, k2_error *err)
{
    if (chunk_bytes < K2_WEIGHTS_CHUNK_BYTES_MIN || chunk_bytes > K2_WEIGHTS_CHUNK_BYTES_MAX ||
        chunk_bytes % K2_WEIGHTS_CHUNK_BYTES_MIN != 0)
        return k2_error_set(err, K2_BAD_INPUT, "chunk_bytes: %" PRIu64 ", expected a multiple of %u up to %u", chunk_bytes,
                            K2_WEIGHTS_CHUNK_BYTES_MIN, K2_WEIGHTS_CHUNK_BYTES_MAX);
    if (data_bytes / chunk_bytes >= K2_WEIGHTS_CHUNKS_MAX)
        return k2_error_set(err, K2_LIMIT, "chunk_bytes: %" PRIu64 " cuts %" PRIu64 " bytes into more than %u chunks",
                            chunk_bytes, data_bytes, K2_WEIGHTS_CHUNKS_MAX);
    return K2_OK;
}

uint64_t k2i_manifest_chunk_bytes(const k2_weights_manifest *m, size_t chunk)
{
    const uint64_t begin = (uint64_t)chunk * m->chunk_bytes;
    return K2_MIN(m->data_bytes - begin, (uint64_t)m->chunk_bytes);
}

k2_code k2_weights_manifest_plan(const k2_weights_slot *slots, size_t count, uint64_t version, uint32_t chunk_bytes,
                                 k2_weights_manifest **out, k2_error *err)
{
    uint64_t at = 0;
    if (count > K2_WEIGHTS_TENSORS_MAX)
        return k2_error_set(err, K2_LIMIT, "%zu tensors, at most %u are accepted", count, K2_WEIGHTS_TENSORS_MAX);
    k2_free(k2i_slots_sort(slots, count)); /* asserts that no name is there twice */
    for (size_t i = 0; i < count; i++) at += k2i_align(k2i_slot_bytes(&slots[i]), K2_WEIGHTS_ALIGN);
    k2_code code = k2i_manifest_chunks_check(at, chunk_bytes, err);
    if (code != K2_OK) return code;
    k2_weights_manifest *m = k2i_manifest_new(count);
    m->version = version;
    m->data_bytes = at;
    m->chunk_bytes = chunk_bytes;
    at = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t bytes = k2i_slot_bytes(&slots[i]);
        m->entries[m->count++] =
            (k2_weights_entry){.name = k2_strdup(slots[i].name), .shape = slots[i].shape, .offset = at, .bytes = bytes};
        at += k2i_align(bytes, K2_WEIGHTS_ALIGN);
    }
    m->chunk_count = k2i_manifest_chunks(m->data_bytes, chunk_bytes);
    m->chunks = k2_alloc_array(m->chunk_count, sizeof *m->chunks);
    *out = m;
    return K2_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

k2_code k2_weights_manifest_verify(const k2_weights_manifest *m, const void *data, k2_error *err)
{
    const unsigned char *bytes = data;
    for (size_t i = 0; i < m->chunk_count; i++) {
        const uint64_t begin = (uint64_t)i * m->chunk_bytes;
        if (k2_hash64(bytes + begin, k2i_manifest_chunk_bytes(m, i), 0) != m->chunks[i])
            return k2_error_set(err, K2_CORRUPT,
                                "version %" PRIu64 ": the hash of chunk %zu (from byte %" PRIu64 ") does not match", m->version,
                                i, begin);
    }
    for (size_t i = 0; i < m->count; i++) {
        const k2_weights_entry *e = &m->entries[i];
        if (!k2_digest_equal(k2_digest_of(bytes + e->offset, e->bytes), e->digest))
            return k2_error_set(err, K2_CORRUPT, "version %" PRIu64 ": the digest of tensor %.100s does not match", m->version,
                                e->name);
    }
    return K2_OK;
}

static k2_code entries_check(const k2_weights_manifest *m, const k2_weights_slot *const *sorted, size_t count, k2_error *err)
{
    char found[K2I_SHAPE_TEXT_MAX], expected[K2I_SHAPE_TEXT_MAX];
    if (m->count != count) return k2_error_set(err, K2_BAD_INPUT, "%zu tensors, but this model has %zu", m->count, count);
    for (size_t i = 0; i < m->count; i++) {
        const k2_weights_entry *e = &m->entries[i];
        const k2_weights_slot *slot = k2i_slots_find(sorted, count, e->name);
        if (!slot) return k2_error_set(err, K2_BAD_INPUT, "tensor %.100s is not one of this model's", e->name);
        if (!k2_shape_equal(&slot->shape, &e->shape))
            return k2_error_set(err, K2_BAD_INPUT, "tensor %.100s has the shape %s, expected %s", e->name,
                                k2i_shape_text(&e->shape, found), k2i_shape_text(&slot->shape, expected));
    }
    return K2_OK;
}

k2_code k2_weights_manifest_check(const k2_weights_manifest *m, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    const k2_weights_slot **sorted = k2i_slots_sort(slots, count);
    k2_code code = entries_check(m, sorted, count, err);
    k2_free(sorted);
    return code;
}

k2_code k2_weights_manifest_bind(const k2_weights_manifest *m, void *data, k2_weights_slot *slots, size_t count, k2_error *err)
{
    const k2_weights_slot **sorted = k2i_slots_sort(slots, count);
    k2_code code = entries_check(m, sorted, count, err);
    for (size_t i = 0; code == K2_OK && i < m->count; i++) {
        const k2_weights_entry *e = &m->entries[i];
        slots[k2i_slots_find(sorted, count, e->name) - slots].data = (float *)(void *)((char *)data + e->offset);
    }
    k2_free(sorted);
    return code;
}
