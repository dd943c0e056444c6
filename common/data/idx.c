/* Reading Megatron's token files: everything is checked at open, so that later reads need no checks but their own range.
 *
 * The numbers in an .idx stand at odd addresses (the header has 34 bytes), so they are always loaded byte by byte.
 */
#include "idx_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct mapping {
    const unsigned char *bytes; /* NULL for an empty file */
    size_t n;
} mapping;

struct k2_idx {
    mapping idx, bin;
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

static k2_code map_file(const char *path, mapping *out, k2_error *err)
{
    k2_code code = K2_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return k2_error_errno(err, errno, "%s: cannot open", path);
    struct stat st;
    if (fstat(fd, &st) != 0) {
        code = k2_error_errno(err, errno, "%s: cannot stat", path);
        goto close_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        code = k2_error_set(err, K2_BAD_INPUT, "%s: is not a regular file", path);
        goto close_fd;
    }
    *out = (mapping){.n = (size_t)st.st_size};
    if (out->n == 0) goto close_fd;
    void *bytes = mmap(NULL, out->n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        code = k2_error_errno(err, errno, "%s: cannot map", path);
    else
        out->bytes = bytes;
close_fd:
    close(fd);
    return code;
}

static void unmap(const mapping *m)
{
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, m->n);
}

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

k2_code k2_idx_open(const char *prefix, k2_idx **out, k2_error *err)
{
    char idx_path[PATH_MAX], bin_path[PATH_MAX];
    if (snprintf(idx_path, sizeof idx_path, "%s.idx", prefix) >= PATH_MAX ||
        snprintf(bin_path, sizeof bin_path, "%s.bin", prefix) >= PATH_MAX)
        return k2_error_set(err, K2_LIMIT, "%.200s: the path is too long", prefix);
    k2_idx *x = k2_alloc(sizeof *x);
    k2_code code = map_file(idx_path, &x->idx, err);
    if (code == K2_OK) code = map_file(bin_path, &x->bin, err);
    if (code == K2_OK) code = k2_idx_check(idx_path, x->idx.bytes, x->idx.n, x->bin.n, err);
    if (code != K2_OK) {
        k2_idx_close(x);
        return code;
    }
    bind(x);
    *out = x;
    return K2_OK;
}

void k2_idx_close(k2_idx *x)
{
    if (!x) return;
    unmap(&x->idx);
    unmap(&x->bin);
    k2_free(x);
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
    const unsigned char *at = x->bin.bytes;
    for (uint64_t s = 0; s < x->sequences; s++) {
        const uint32_t length = k2_idx_length(x, s);
        for (uint32_t i = 0; i < length; i++, at += x->token_bytes) {
            const int64_t token = load_token(at, x->dtype);
            if (token < 0 || token >= (int64_t)vocab)
                return k2_error_set(err, K2_BAD_INPUT, "sequence %" PRIu64 ", token %u: id %" PRIi64 " is not in 0..%u", s, i,
                                    token, vocab - 1);
        }
    }
    return K2_OK;
}

k2_digest k2_idx_fingerprint(const k2_idx *x)
{
    k2_digest_stream *s = k2_digest_begin();
    k2_digest_update(s, x->idx.bytes, x->idx.n);
    if (x->bin.n) k2_digest_update(s, x->bin.bytes, x->bin.n);
    return k2_digest_end(s);
}
