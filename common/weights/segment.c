/* Segments of weights: header, manifest and tensors in one piece of memory that others read. */
#include "manifest_int.h"
#include "slots_int.h"

#include <inttypes.h>
#include <string.h>

#define MAGIC       "K2WSEG1" /* with its terminator: eight bytes */
#define MAGIC_BYTES 8u

enum { AT_VERSION = 8, AT_MANIFEST = 16, AT_DATA = 24, AT_DATA_BYTES = 32, AT_DIGEST_HI = 40, AT_DIGEST_LO = 48, USED = 56 };

static uint64_t data_offset(uint64_t manifest_bytes)
{
    return k2i_align(K2_WEIGHTS_SEGMENT_HEADER_BYTES + manifest_bytes, K2_WEIGHTS_SEGMENT_DATA_ALIGN);
}

uint64_t k2_weights_segment_plan(const k2_weights_manifest *m, k2_weights_segment *out)
{
    k2_buf json;
    k2_buf_init(&json, K2_WEIGHTS_MANIFEST_BYTES_MAX);
    k2_weights_manifest_encode(m, &json);
    K2_ASSERT(!json.overflow);
    *out = (k2_weights_segment){
        .version = m->version, .manifest_bytes = json.len, .data_offset = data_offset(json.len), .data_bytes = m->data_bytes};
    k2_buf_fini(&json);
    return out->data_offset + out->data_bytes;
}

/* Copy the tensors, clear the gaps, and take all digests. */
static void data_fill(k2_weights_manifest *m, const k2_weights_slot *slots, size_t count, unsigned char *data)
{
    K2_ASSERT(m->count == count);
    for (size_t i = 0; i < count; i++) {
        k2_weights_entry *e = &m->entries[i];
        K2_ASSERT(strcmp(e->name, slots[i].name) == 0 && e->bytes == k2i_slot_bytes(&slots[i]));
        memcpy(data + e->offset, slots[i].data, e->bytes);
        memset(data + e->offset + e->bytes, 0, k2i_align(e->bytes, K2_WEIGHTS_ALIGN) - e->bytes);
        e->digest = k2_digest_of(data + e->offset, e->bytes);
    }
    for (size_t i = 0; i < m->chunk_count; i++)
        m->chunks[i] = k2_hash64(data + (uint64_t)i * m->chunk_bytes, k2i_manifest_chunk_bytes(m, i), 0);
    m->digest = k2i_manifest_digest(m);
}

void k2_weights_segment_fill(k2_weights_manifest *m, const k2_weights_slot *slots, size_t count, void *memory, uint64_t bytes)
{
    unsigned char *base = memory, header[K2_WEIGHTS_SEGMENT_HEADER_BYTES];
    k2_weights_segment s;
    K2_ASSERT(k2_weights_segment_plan(m, &s) == bytes);
    memset(base, 0, K2_WEIGHTS_SEGMENT_HEADER_BYTES);
    data_fill(m, slots, count, base + s.data_offset);
    k2_buf json;
    k2_buf_init(&json, K2_WEIGHTS_MANIFEST_BYTES_MAX);
    k2_weights_manifest_encode(m, &json);
    K2_ASSERT(json.len == s.manifest_bytes);
    unsigned char *at = base + K2_WEIGHTS_SEGMENT_HEADER_BYTES;
    memcpy(at, json.data, json.len);
    memset(at + json.len, 0, s.data_offset - K2_WEIGHTS_SEGMENT_HEADER_BYTES - json.len);
    s.manifest_digest = k2_digest_of(json.data, json.len);
    k2_buf_fini(&json);
    k2_weights_segment_encode(&s, header);
    memcpy(base, header, sizeof header); /* readers come after the locator was handed on, which orders this before them */
}

void k2_weights_segment_encode(const k2_weights_segment *s, unsigned char out[K2_WEIGHTS_SEGMENT_HEADER_BYTES])
{
    memset(out, 0, K2_WEIGHTS_SEGMENT_HEADER_BYTES);
    memcpy(out, MAGIC, MAGIC_BYTES);
    k2_store_u64le(out + AT_VERSION, s->version);
    k2_store_u64le(out + AT_MANIFEST, s->manifest_bytes);
    k2_store_u64le(out + AT_DATA, s->data_offset);
    k2_store_u64le(out + AT_DATA_BYTES, s->data_bytes);
    k2_store_u64le(out + AT_DIGEST_HI, s->manifest_digest.hi);
    k2_store_u64le(out + AT_DIGEST_LO, s->manifest_digest.lo);
}

k2_code k2_weights_segment_decode(const unsigned char header[K2_WEIGHTS_SEGMENT_HEADER_BYTES], uint64_t segment_bytes,
                                  k2_weights_segment *out, k2_error *err)
{
    if (memcmp(header, MAGIC, MAGIC_BYTES) != 0)
        return k2_error_set(err, K2_BAD_INPUT, "weights segment: does not begin with %s", MAGIC);
    const k2_weights_segment s = {
        .version = k2_load_u64le(header + AT_VERSION),
        .manifest_bytes = k2_load_u64le(header + AT_MANIFEST),
        .data_offset = k2_load_u64le(header + AT_DATA),
        .data_bytes = k2_load_u64le(header + AT_DATA_BYTES),
        .manifest_digest = {.hi = k2_load_u64le(header + AT_DIGEST_HI), .lo = k2_load_u64le(header + AT_DIGEST_LO)}};
    for (unsigned i = USED; i < K2_WEIGHTS_SEGMENT_HEADER_BYTES; i++)
        if (header[i]) return k2_error_set(err, K2_BAD_INPUT, "weights segment: header byte %u is not 0", i);
    if (s.manifest_bytes == 0 || s.manifest_bytes > K2_WEIGHTS_MANIFEST_BYTES_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "weights segment: a manifest of %" PRIu64 " bytes, expected 1 to %u",
                            s.manifest_bytes, K2_WEIGHTS_MANIFEST_BYTES_MAX);
    if (s.data_offset != data_offset(s.manifest_bytes))
        return k2_error_set(err, K2_BAD_INPUT, "weights segment: data at byte %" PRIu64 ", expected %" PRIu64, s.data_offset,
                            data_offset(s.manifest_bytes));
    if (s.data_offset > segment_bytes || s.data_bytes != segment_bytes - s.data_offset)
        return k2_error_set(err, K2_BAD_INPUT,
                            "weights segment: %" PRIu64 " bytes of data behind byte %" PRIu64
                            " do not make a segment of %" PRIu64 " bytes",
                            s.data_bytes, s.data_offset, segment_bytes);
    *out = s;
    return K2_OK;
}
