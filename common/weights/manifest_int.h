/* manifest_int - layout and digest of a manifest, shared by planning, JSON and filling. */
#ifndef K2_WEIGHTS_MANIFEST_INT_H
#define K2_WEIGHTS_MANIFEST_INT_H

#include "common/weights/weights.h"

static inline uint64_t k2i_align(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* A manifest with room for `count` entries; names are the manifest's own (k2_strdup). */
k2_weights_manifest *k2i_manifest_new(size_t count);
size_t k2i_manifest_chunks(uint64_t data_bytes, uint32_t chunk_bytes);
/* BAD_INPUT or LIMIT: chunk size and count. */
k2_code k2i_manifest_chunks_check(uint64_t data_bytes, uint64_t chunk_bytes, k2_error *err);
/* The weights digest that follows from the entries. */
k2_digest k2i_manifest_digest(const k2_weights_manifest *m);
/* Bytes of one chunk: chunk_bytes, less for the last. */
uint64_t k2i_manifest_chunk_bytes(const k2_weights_manifest *m, size_t chunk);

#endif
