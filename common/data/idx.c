/* Reading Megatron's token files: everything is checked at open, so that later reads need no checks but their own range.
 *
 * The numbers in an .idx stand at odd addresses (the header has 34 bytes), so they are always loaded byte by byte.
 */
#include "idx_int.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct k2_idx {
    k2_mapping idx, bin;
    k2_idx_dtype dtype;
    uint32_t token_bytes;
    uint64_t sequences, boundaries;
    const unsigned char *lengths, *offsets, *documents;
};

/* ---- types ------------------------------------------------------------------------------------------------------- */

uint32_t k2i_idx_dtype_bytes(unsigned code)
{
    switch (code) {
#define K2_X(name, value, bytes, low, high)                                                                                    \
    case value: return bytes;
        K2_IDX_DTYPES(K2_X)
#undef K2_X
    default: return 0;
    }
}

const char *k2i_idx_dtype_name(unsigned code)
{
    switch (code) {
#define K2_X(name, value, bytes, low, high)                                                                                    \
    case value: return #name;
        K2_IDX_DTYPES(K2_X)
#undef K2_X
    default: return "?";
    }
}

bool k2i_idx_dtype_holds(k2_idx_dtype dtype, int64_t value)
{
    switch (dtype) {
#define K2_X(name, code, bytes, low, high)                                                                                     \
    case K2_IDX_##name: return value >= (int64_t)low && value <= (int64_t)high;
        K2_IDX_DTYPES(K2_X)
#undef K2_X
    }
    return false;
}

k2_idx_dtype k2_idx_dtype_for(uint32_t vocab)
{
    return vocab < 65500 ? K2_IDX_UINT16 : K2_IDX_INT32;
}

static int64_t load_token(const unsigned char *p, k2_idx_dtype dtype)
{
    const uint16_t two = (uint16_t)(p[0] | (dtype == K2_IDX_UINT8 || dtype == K2_IDX_INT8 ? 0 : p[1] << 8));
    switch (dtype) {
    case K2_IDX_UINT8: return p[0];
    case K2_IDX_INT8: return (int8_t)p[0];
    case K2_IDX_INT16: return (int16_t)two;
    case K2_IDX_UINT16: return two;
    case K2_IDX_INT32: return (int32_t)k2_load_u32le(p);
    case K2_IDX_INT64: return (int64_t)k2_load_u64le(p);
    }
    k2_assert_fail(__FILE__, __LINE__, "a type that was checked at open");
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static k2_code header_check(const char *name, const unsigned char *p, size_t n, k2_error *err)
{
    if (n < K2I_IDX_HEADER_BYTES)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %zu bytes, but its header alone has %u", name, n, K2I_IDX_HEADER_BYTES);
    if (memcmp(p, K2I_IDX_MAGIC, K2I_IDX_MAGIC_BYTES) != 0)
        return k2_error_set(err, K2_BAD_INPUT, "%s: does not begin with MMIDIDX: is not a Megatron .idx file", name);
    uint64_t version = k2_load_u64le(p + K2I_IDX_AT_VERSION);
    if (version != K2I_IDX_VERSION)
        return k2_error_set(err, K2_BAD_INPUT, "%s: version %" PRIu64 ", expected %u", name, version, K2I_IDX_VERSION);
    unsigned code = p[K2I_IDX_AT_DTYPE];
    if (code == 6 || code == 7)
        return k2_error_set(err, K2_UNSUPPORTED, "%s: dtype code %u is a float type, expected an integer type", name, code);
    if (k2i_idx_dtype_bytes(code) == 0)
        return k2_error_set(err, K2_BAD_INPUT, "%s: dtype code %u is not known, expected 1 to 5 or 8", name, code);
    return K2_OK;
}

/* The counts against the file's size, before anything is read that they promise. */
static k2_code counts_check(const char *name, const unsigned char *p, size_t n, k2_error *err)
{
    const uint64_t sequences = k2_load_u64le(p + K2I_IDX_AT_SEQUENCES), boundaries = k2_load_u64le(p + K2I_IDX_AT_BOUNDARIES);
    if (sequences > K2_IDX_SEQUENCES_MAX || boundaries > K2_IDX_SEQUENCES_MAX)
        return k2_error_set(err, K2_LIMIT, "%s: %" PRIu64 " sequences and %" PRIu64 " boundaries, at most %llu are accepted",
                            name, sequences, boundaries, K2_IDX_SEQUENCES_MAX);
    if (sequences == 0) return k2_error_set(err, K2_BAD_INPUT, "%s: holds no sequence", name);
    const uint64_t want = K2I_IDX_HEADER_BYTES + sequences * (K2I_IDX_LENGTH_BYTES + K2I_IDX_OFFSET_BYTES) + boundaries * 8;
    if (n == want + sequences)
        return k2_error_set(err, K2_UNSUPPORTED, "%s: holds sequence modes (multimodal data), which are not supported", name);
    if (n != want)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%s: %zu bytes, but %" PRIu64 " sequences and %" PRIu64 " boundaries take %" PRIu64, name, n,
                            sequences, boundaries, want);
    return K2_OK;
}

/* Lengths and offsets say the same thing twice; *end is where the last sequence ends. */
static k2_code sequences_check(const char *name, const unsigned char *p, uint64_t *end, k2_error *err)
{
    const uint64_t sequences = k2_load_u64le(p + K2I_IDX_AT_SEQUENCES), token_bytes = k2i_idx_dtype_bytes(p[K2I_IDX_AT_DTYPE]);
    const unsigned char *lengths = p + K2I_IDX_HEADER_BYTES, *offsets = lengths + sequences * K2I_IDX_LENGTH_BYTES;
    uint64_t at = 0;
    for (uint64_t i = 0; i < sequences; i++) {
        const uint32_t length = k2_load_u32le(lengths + i * K2I_IDX_LENGTH_BYTES);
        const uint64_t offset = k2_load_u64le(offsets + i * K2I_IDX_OFFSET_BYTES);
        if (length > INT32_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "%s: sequence %" PRIu64 " has the length %d", name, i, (int32_t)length);
        if (offset != at)
            return k2_error_set(err, K2_BAD_INPUT, "%s: sequence %" PRIu64 " begins at byte %" PRIi64 ", expected %" PRIu64,
                                name, i, (int64_t)offset, at);
        if (__builtin_add_overflow(at, length * token_bytes, &at))
            return k2_error_set(err, K2_BAD_INPUT, "%s: sequence %" PRIu64 " ends past every file", name, i);
    }
    *end = at;
    return K2_OK;
}

static k2_code documents_check(const char *name, const unsigned char *p, k2_error *err)
{
    const uint64_t sequences = k2_load_u64le(p + K2I_IDX_AT_SEQUENCES), boundaries = k2_load_u64le(p + K2I_IDX_AT_BOUNDARIES);
    const unsigned char *documents = p + K2I_IDX_HEADER_BYTES + sequences * (K2I_IDX_LENGTH_BYTES + K2I_IDX_OFFSET_BYTES);
    uint64_t last = 0;
    if (boundaries < 2)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %" PRIu64 " document boundaries, expected at least 2", name, boundaries);
    for (uint64_t i = 0; i < boundaries; i++) {
        const uint64_t at = k2_load_u64le(documents + i * 8);
        if (at < last || at > sequences || (i == 0 && at != 0))
            return k2_error_set(err, K2_BAD_INPUT,
                                "%s: document boundary %" PRIu64 " is %" PRIi64 ", expected %" PRIu64 " to %" PRIu64, name, i,
                                (int64_t)at, last, i == 0 ? 0 : sequences);
        last = at;
    }
    if (last != sequences)
        return k2_error_set(err, K2_BAD_INPUT, "%s: the last document ends at sequence %" PRIu64 ", expected %" PRIu64, name,
                            last, sequences);
    return K2_OK;
}

k2_code k2_idx_check(const char *name, const void *idx, size_t idx_bytes, uint64_t bin_bytes, k2_error *err)
{
    uint64_t end = 0;
    k2_code code = header_check(name, idx, idx_bytes, err);
    if (code == K2_OK) code = counts_check(name, idx, idx_bytes, err);
    if (code == K2_OK) code = sequences_check(name, idx, &end, err);
    if (code == K2_OK) code = documents_check(name, idx, err);
    if (code == K2_OK && end != bin_bytes)
        return k2_error_set(err, K2_BAD_INPUT,
                            "%s: .idx and .bin disagree: the sequences end at byte %" PRIu64 ", but .bin has %" PRIu64 " bytes",
                            name, end, bin_bytes);
    return code;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void bind(k2_idx *x)
{
    const unsigned char *p = x->idx.bytes;
    x->dtype = (k2_idx_dtype)p[K2I_IDX_AT_DTYPE];
    x->token_bytes = k2i_idx_dtype_bytes(p[K2I_IDX_AT_DTYPE]);
    x->sequences = k2_load_u64le(p + K2I_IDX_AT_SEQUENCES);
    x->boundaries = k2_load_u64le(p + K2I_IDX_AT_BOUNDARIES);
    x->lengths = p + K2I_IDX_HEADER_BYTES;
    x->offsets = x->lengths + x->sequences * K2I_IDX_LENGTH_BYTES;
    x->documents = x->offsets + x->sequences * K2I_IDX_OFFSET_BYTES;
}

/* PREFIX.idx and PREFIX.bin. */
typedef struct pair {
    char idx[PATH_MAX], bin[PATH_MAX];
} pair;

static k2_code pair_name(const char *prefix, pair *out, k2_error *err)
{
    if (snprintf(out->idx, sizeof out->idx, "%s.idx", prefix) >= PATH_MAX ||
        snprintf(out->bin, sizeof out->bin, "%s.bin", prefix) >= PATH_MAX)
        return k2_error_set(err, K2_LIMIT, "%.200s: the path is too long", prefix);
    return K2_OK;
}

k2_code k2_idx_open(const char *prefix, k2_idx **out, k2_error *err)
{
    pair path;
    k2_code code = pair_name(prefix, &path, err);
    if (code != K2_OK) return code;
    k2_idx *x = k2_alloc(sizeof *x);
    code = k2_file_map(path.idx, &x->idx, err);
    if (code == K2_OK) code = k2_file_map(path.bin, &x->bin, err);
    if (code == K2_OK) code = k2_idx_check(path.idx, x->idx.bytes, x->idx.n, x->bin.n, err);
    if (code != K2_OK) {
        k2_idx_close(x);
        return code;
    }
    bind(x);
    k2_idx_forget(x);
    *out = x;
    return K2_OK;
}

static k2_code sizes_read(const char *idx_path, int idx, uint64_t idx_bytes, uint64_t bin_bytes, k2_idx_sizes *out,
                          k2_error *err)
{
    unsigned char head[K2I_IDX_HEADER_BYTES];
    ssize_t n = pread(idx, head, sizeof head, 0);
    if (n < 0) return k2_error_errno(err, errno, "%s: cannot read", idx_path);
    k2_code code = header_check(idx_path, head, (size_t)n, err);
    if (code == K2_OK) code = counts_check(idx_path, head, idx_bytes, err);
    if (code != K2_OK) return code;
    uint64_t boundaries = k2_load_u64le(head + K2I_IDX_AT_BOUNDARIES);
    *out = (k2_idx_sizes){.documents = boundaries > 0 ? boundaries - 1 : 0,
                          .tokens = bin_bytes / k2i_idx_dtype_bytes(head[K2I_IDX_AT_DTYPE]),
                          .idx_bytes = idx_bytes,
                          .bin_bytes = bin_bytes};
    return K2_OK;
}

k2_code k2_idx_sizes_read(const char *prefix, k2_idx_sizes *out, k2_error *err)
{
    pair path;
    int idx = -1, bin = -1;
    uint64_t idx_bytes = 0, bin_bytes = 0;
    k2_code code = pair_name(prefix, &path, err);
    if (code == K2_OK) code = k2_file_open(path.idx, &idx, &idx_bytes, err);
    if (code != K2_OK) return code;
    code = k2_file_open(path.bin, &bin, &bin_bytes, err);
    if (code == K2_OK) {
        code = sizes_read(path.idx, idx, idx_bytes, bin_bytes, out, err);
        close(bin);
    }
    close(idx);
    return code;
}

void k2_idx_close(k2_idx *x)
{
    if (!x) return;
    k2_file_unmap(&x->idx);
    k2_file_unmap(&x->bin);
    k2_free(x);
}

void k2_idx_forget(const k2_idx *x)
{
    k2_file_forget(&x->idx, x->idx.bytes, x->idx.n);
    k2_file_forget(&x->bin, x->bin.bytes, x->bin.n);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

k2_idx_dtype k2_idx_dtype_of(const k2_idx *x)
{
    return x->dtype;
}

uint64_t k2_idx_sequences(const k2_idx *x)
{
    return x->sequences;
}

uint64_t k2_idx_documents(const k2_idx *x)
{
    return x->boundaries - 1;
}

uint64_t k2_idx_tokens(const k2_idx *x)
{
    return x->bin.n / x->token_bytes;
}

uint64_t k2_idx_bytes(const k2_idx *x)
{
    return x->idx.n + x->bin.n;
}

uint32_t k2_idx_length(const k2_idx *x, uint64_t sequence)
{
    K2_ASSERT(sequence < x->sequences);
    return k2_load_u32le(x->lengths + sequence * K2I_IDX_LENGTH_BYTES);
}

void k2_idx_document(const k2_idx *x, uint64_t document, uint64_t *first, uint64_t *end)
{
    K2_ASSERT(document < x->boundaries - 1);
    *first = k2_load_u64le(x->documents + document * 8);
    *end = k2_load_u64le(x->documents + document * 8 + 8);
}

k2_code k2_idx_read(const k2_idx *x, uint64_t sequence, uint32_t first, uint32_t count, int32_t *out, k2_error *err)
{
    const uint32_t length = k2_idx_length(x, sequence);
    K2_ASSERT(first <= length && count <= length - first);
    if (count == 0) return K2_OK; /* .bin may be empty and unmapped */
    const unsigned char *at = x->bin.bytes + k2_load_u64le(x->offsets + sequence * K2I_IDX_OFFSET_BYTES);
    at += (uint64_t)first * x->token_bytes;
    for (uint32_t i = 0; i < count; i++, at += x->token_bytes) {
        const int64_t token = load_token(at, x->dtype);
        if (token < 0 || token > INT32_MAX)
            return k2_error_set(err, K2_BAD_INPUT, "sequence %" PRIu64 ", token %u: %" PRIi64 " is no token id", sequence,
                                first + i, token);
        out[i] = (int32_t)token;
    }
    return K2_OK;
}

k2_code k2_idx_check_vocab(const k2_idx *x, uint32_t vocab, k2_error *err)
{
    const unsigned char *at = x->bin.bytes, *kept = at;
    for (uint64_t s = 0; s < x->sequences; s++) {
        const uint32_t length = k2_idx_length(x, s);
        for (uint32_t i = 0; i < length; i++, at += x->token_bytes) {
            const int64_t token = load_token(at, x->dtype);
            if (token < 0 || token >= (int64_t)vocab)
                return k2_error_set(err, K2_BAD_INPUT, "sequence %" PRIu64 ", token %u: id %" PRIi64 " is not in 0..%u", s, i,
                                    token, vocab - 1);
        }
        if (at - kept < (ptrdiff_t)K2_FILE_PIECE_BYTES) continue;
        k2_file_forget(&x->bin, kept, (uint64_t)(at - kept));
        kept = at;
    }
    k2_idx_forget(x);
    return K2_OK;
}

static void digest_update(k2_digest_stream *s, const k2_mapping *m)
{
    for (uint64_t at = 0; at < m->n; at += K2_FILE_PIECE_BYTES) {
        const char *piece = (const char *)m->bytes + at;
        const uint64_t n = K2_MIN(m->n - at, (uint64_t)K2_FILE_PIECE_BYTES);
        k2_digest_update(s, piece, n);
        k2_file_forget(m, piece, n);
    }
}

k2_digest k2_idx_fingerprint(const k2_idx *x)
{
    k2_digest_stream *s = k2_digest_begin();
    digest_update(s, &x->idx);
    digest_update(s, &x->bin);
    return k2_digest_end(s);
}
