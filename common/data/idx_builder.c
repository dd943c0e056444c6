/* Writing Megatron's token files: .bin grows under a temporary name, .idx is made in memory at commit. */
#include "idx_int.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COPY_TOKENS 4096u /* converted at a time */

struct k2_idx_builder {
    char *idx_path, *bin_path, *tmp_path;
    FILE *bin;
    k2_idx_dtype dtype;
    uint32_t token_bytes;
    uint32_t *lengths;
    size_t sequences, sequences_capacity;
    uint64_t *documents; /* boundaries; the first is 0 */
    size_t boundaries, boundaries_capacity;
    uint64_t tokens;
};

static void boundary_add(k2_idx_builder *b, uint64_t at)
{
    if (b->boundaries == b->boundaries_capacity) {
        b->boundaries_capacity = K2_MAX(b->boundaries_capacity * 2, (size_t)64);
        b->documents = k2_realloc_array(b->documents, b->boundaries_capacity, sizeof *b->documents);
    }
    b->documents[b->boundaries++] = at;
}

k2_code k2_idx_builder_begin(const char *prefix, k2_idx_dtype dtype, k2_idx_builder **out, k2_error *err)
{
    K2_ASSERT(k2i_idx_dtype_bytes(dtype) != 0);
    if (strlen(prefix) + 32 > PATH_MAX) return k2_error_set(err, K2_LIMIT, "%.200s: the path is too long", prefix);
    k2_idx_builder *b = k2_alloc(sizeof *b);
    b->dtype = dtype;
    b->token_bytes = k2i_idx_dtype_bytes(dtype);
    b->idx_path = k2_asprintf("%s.idx", prefix);
    b->bin_path = k2_asprintf("%s.bin", prefix);
    b->tmp_path = k2_temp_name(b->bin_path);
    k2_temp_clear(b->bin_path);
    k2_temp_clear(b->idx_path);
    b->bin = fopen(b->tmp_path, "wbe");
    if (!b->bin) {
        k2_code code = k2_error_errno(err, errno, "%s: cannot create", b->tmp_path);
        k2_idx_builder_abort(b);
        return code;
    }
    k2_temp_hold(fileno(b->bin));
    boundary_add(b, 0);
    *out = b;
    return K2_OK;
}

static k2_code tokens_write(k2_idx_builder *b, const int32_t *tokens, size_t count, k2_error *err)
{
    unsigned char bytes[COPY_TOKENS * 8];
    for (size_t i = 0; i < count; i++) {
        if (!k2i_idx_dtype_holds(b->dtype, tokens[i]) || tokens[i] < 0)
            return k2_error_set(err, K2_BAD_INPUT, "%s: sequence %zu: token %d does not fit %s", b->bin_path, b->sequences,
                                tokens[i], k2i_idx_dtype_name(b->dtype));
        const uint64_t wide = (uint64_t)tokens[i];
        for (uint32_t k = 0; k < b->token_bytes; k++) bytes[i * b->token_bytes + k] = (unsigned char)(wide >> (8 * k));
    }
    if (fwrite(bytes, b->token_bytes, count, b->bin) != count)
        return k2_error_errno(err, errno, "%s: cannot write", b->tmp_path);
    return K2_OK;
}

k2_code k2_idx_builder_add(k2_idx_builder *b, const int32_t *tokens, size_t count, k2_error *err)
{
    if (count > INT32_MAX)
        return k2_error_set(err, K2_LIMIT, "%s: sequence %zu: %zu tokens, at most %d are accepted", b->bin_path, b->sequences,
                            count, INT32_MAX);
    for (size_t at = 0; at < count; at += COPY_TOKENS) {
        k2_code code = tokens_write(b, tokens + at, K2_MIN(count - at, (size_t)COPY_TOKENS), err);
        if (code != K2_OK) return code;
    }
    if (b->sequences == b->sequences_capacity) {
        b->sequences_capacity = K2_MAX(b->sequences_capacity * 2, (size_t)64);
        b->lengths = k2_realloc_array(b->lengths, b->sequences_capacity, sizeof *b->lengths);
    }
    b->lengths[b->sequences++] = (uint32_t)count;
    b->tokens += count;
    return K2_OK;
}

void k2_idx_builder_document_end(k2_idx_builder *b)
{
    boundary_add(b, b->sequences);
}

uint64_t k2_idx_builder_sequences(const k2_idx_builder *b)
{
    return b->sequences;
}

uint64_t k2_idx_builder_tokens(const k2_idx_builder *b)
{
    return b->tokens;
}

/* The whole .idx in memory. */
static unsigned char *idx_encode(const k2_idx_builder *b, size_t *bytes)
{
    *bytes = K2I_IDX_HEADER_BYTES + b->sequences * (K2I_IDX_LENGTH_BYTES + K2I_IDX_OFFSET_BYTES) + b->boundaries * 8;
    unsigned char *p = k2_alloc(*bytes), *lengths = p + K2I_IDX_HEADER_BYTES;
    unsigned char *offsets = lengths + b->sequences * K2I_IDX_LENGTH_BYTES;
    unsigned char *documents = offsets + b->sequences * K2I_IDX_OFFSET_BYTES;
    memcpy(p, K2I_IDX_MAGIC, K2I_IDX_MAGIC_BYTES);
    k2_store_u64le(p + K2I_IDX_AT_VERSION, K2I_IDX_VERSION);
    p[K2I_IDX_AT_DTYPE] = (unsigned char)b->dtype;
    k2_store_u64le(p + K2I_IDX_AT_SEQUENCES, b->sequences);
    k2_store_u64le(p + K2I_IDX_AT_BOUNDARIES, b->boundaries);
    uint64_t at = 0;
    for (size_t i = 0; i < b->sequences; i++) {
        k2_store_u32le(lengths + i * K2I_IDX_LENGTH_BYTES, b->lengths[i]);
        k2_store_u64le(offsets + i * K2I_IDX_OFFSET_BYTES, at);
        at += (uint64_t)b->lengths[i] * b->token_bytes;
    }
    for (size_t i = 0; i < b->boundaries; i++) k2_store_u64le(documents + i * 8, b->documents[i]);
    return p;
}

static k2_code bin_close(k2_idx_builder *b, k2_error *err)
{
    k2_code code = K2_OK;
    if (fflush(b->bin) != 0 || fsync(fileno(b->bin)) != 0) code = k2_error_errno(err, errno, "%s: cannot write", b->tmp_path);
    if (fclose(b->bin) != 0 && code == K2_OK) code = k2_error_errno(err, errno, "%s: cannot close", b->tmp_path);
    b->bin = NULL;
    return code;
}

k2_code k2_idx_builder_commit(k2_idx_builder *b, k2_error *err)
{
    unsigned char *idx = NULL;
    size_t bytes = 0;
    if (b->documents[b->boundaries - 1] != b->sequences) k2_idx_builder_document_end(b);
    k2_code code = b->sequences ? bin_close(b, err) : k2_error_set(err, K2_BAD_INPUT, "%s: no sequence to write", b->idx_path);
    if (code != K2_OK) goto abort_builder;
    if (unlink(b->idx_path) != 0 && errno != ENOENT) {
        code = k2_error_errno(err, errno, "%s: cannot replace", b->idx_path);
        goto abort_builder;
    }
    if (rename(b->tmp_path, b->bin_path) != 0) {
        code = k2_error_errno(err, errno, "%s: cannot rename to %s", b->tmp_path, b->bin_path);
        goto abort_builder;
    }
    idx = idx_encode(b, &bytes);
    code = k2_file_write_atomic(b->idx_path, idx, bytes, err);
    k2_free(idx);
abort_builder:
    k2_idx_builder_abort(b);
    return code;
}

void k2_idx_builder_abort(k2_idx_builder *b)
{
    if (!b) return;
    if (b->bin) fclose(b->bin);
    if (b->tmp_path) unlink(b->tmp_path); /* gone already after a commit */
    k2_free(b->idx_path);
    k2_free(b->bin_path);
    k2_free(b->tmp_path);
    k2_free(b->lengths);
    k2_free(b->documents);
    k2_free(b);
}
