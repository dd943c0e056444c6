/* Writing safetensors: header, then the tensors piece by piece, under a temporary name until all of it is durable. */
#include "file_int.h"
#include "number_int.h"
#include "slots_int.h"
#include "write_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct k2i_writer {
    char *path, *temp;
    int fd;
    const k2i_written *tensors;
    size_t count;
    k2_digest_stream *digest;
    uint64_t left; /* bytes of data that have not come yet */
};

uint64_t k2i_written_bytes(const k2i_written *t)
{
    uint64_t n = 0, bytes = 0;
    const bool fits = k2_shape_count(&t->shape, &n) && !__builtin_mul_overflow(n, k2_dtype_bytes(t->dtype), &bytes);
    K2_ASSERT(fits);
    return bytes;
}

/* The size prefix and the JSON, padded with blanks so that the data begins at a multiple of 8. Its length does not depend on
 * the digest, which is known when all data has been written. */
static void header_encode(const k2i_writer *w, k2_digest digest, k2_buf *out)
{
    unsigned char prefix[8] = {0};
    char hex[K2_DIGEST_HEX];
    uint64_t at = 0;
    k2_digest_hex(digest, hex);
    k2_buf_append(out, prefix, sizeof prefix);
    k2_buf_printf(out, "{\"__metadata__\":{\"format\":\"pt\",\"" K2I_DIGEST_KEY "\":\"%s\"}", hex);
    for (size_t i = 0; i < w->count; i++) {
        const k2i_written *t = &w->tensors[i];
        k2_buf_puts(out, ",");
        k2_buf_json_string(out, t->name, strlen(t->name));
        k2_buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", k2_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->shape.rank; d++) k2_buf_printf(out, "%s%" PRIu64, d ? "," : "", t->shape.size[d]);
        k2_buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + k2i_written_bytes(t));
        at += k2i_written_bytes(t);
    }
    k2_buf_puts(out, "}");
    while (out->len % 8) k2_buf_puts(out, " ");
    K2_ASSERT(!out->overflow);
    k2_store_u64le(out->data, out->len - sizeof prefix);
}

static bool write_all(int fd, const void *bytes, uint64_t n)
{
    const char *at = bytes;
    while (n > 0) {
        ssize_t done = write(fd, at, K2_MIN(n, (uint64_t)1 << 30));
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return false;
        at += done;
        n -= (uint64_t)done;
    }
    return true;
}

/* A rename is durable only when its directory is. */
k2_code k2i_parent_sync(const char *path, k2_error *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash == path ? k2_strdup("/") : slash ? k2_strndup(path, (size_t)(slash - path)) : k2_strdup(".");
    k2_code code = K2_OK;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fsync(fd) != 0) code = k2_error_errno(err, errno, "%s: cannot sync", dir);
    if (fd >= 0) close(fd);
    k2_free(dir);
    return code;
}

static bool header_write(const k2i_writer *w, k2_digest digest)
{
    k2_buf header;
    k2_buf_init(&header, K2_WEIGHTS_HEADER_BYTES_MAX);
    header_encode(w, digest, &header);
    const bool written = lseek(w->fd, 0, SEEK_SET) == 0 && write_all(w->fd, header.data, header.len);
    k2_buf_fini(&header);
    return written;
}

static void writer_free(k2i_writer *w)
{
    k2_free(w->path);
    k2_free(w->temp);
    k2_free(w);
}

k2_code k2i_writer_begin(const char *path, const k2i_written *tensors, size_t count, k2i_writer **out, k2_error *err)
{
    k2_code code;
    k2i_writer *w = k2_alloc(sizeof *w);
    *w = (k2i_writer){.path = k2_strdup(path), .temp = k2_temp_name(path), .tensors = tensors, .count = count};
    for (size_t i = 0; i < count; i++) w->left += k2i_written_bytes(&tensors[i]);
    w->fd = open(w->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        code = k2_error_errno(err, errno, "%s: cannot create", w->temp);
        writer_free(w);
        return code;
    }
    w->digest = k2_digest_begin();
    if (!header_write(w, (k2_digest){0}))
        return k2i_writer_end(w, k2_error_errno(err, errno, "%s: cannot write", w->temp), err);
    *out = w;
    return K2_OK;
}

k2_code k2i_writer_put(k2i_writer *w, const void *bytes, uint64_t n, k2_error *err)
{
    K2_ASSERT(n <= w->left);
    if (!write_all(w->fd, bytes, n)) return k2_error_errno(err, errno, "%s: cannot write", w->temp);
    k2_digest_update(w->digest, bytes, n);
    w->left -= n;
    return K2_OK;
}

k2_code k2i_writer_end(k2i_writer *w, k2_code code, k2_error *err)
{
    K2_ASSERT(code != K2_OK || w->left == 0);
    const k2_digest digest = k2_digest_end(w->digest);
    if (code == K2_OK && !(header_write(w, digest) && fsync(w->fd) == 0))
        code = k2_error_errno(err, errno, "%s: cannot write", w->temp);
    if (close(w->fd) != 0 && code == K2_OK) code = k2_error_errno(err, errno, "%s: cannot close", w->temp);
    if (code == K2_OK && rename(w->temp, w->path) != 0)
        code = k2_error_errno(err, errno, "%s: cannot rename to %s", w->temp, w->path);
    if (code == K2_OK)
        code = k2i_parent_sync(w->path, err);
    else
        unlink(w->temp);
    writer_free(w);
    return code;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static void store_u16(unsigned char *out, uint16_t v)
{
    out[0] = (unsigned char)v;
    out[1] = (unsigned char)(v >> 8);
}

uint64_t k2i_narrow(k2_dtype dtype, const float *in, uint64_t n, unsigned char *out)
{
    K2_ASSERT(dtype == K2_DTYPE_F32 || dtype == K2_DTYPE_BF16 || dtype == K2_DTYPE_F16);
    const uint16_t infinity = dtype == K2_DTYPE_BF16 ? 0x7f80 : 0x7c00;
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(in[i])) return i;
        if (dtype == K2_DTYPE_F32) continue;
        const uint16_t code = dtype == K2_DTYPE_BF16 ? k2i_bf16_of_f32(in[i]) : k2i_f16_of_f32(in[i]);
        if ((code & 0x7fff) == infinity) return i;
        store_u16(out + 2 * i, code);
    }
    if (dtype == K2_DTYPE_F32) memcpy(out, in, n * sizeof *in);
    return n;
}

k2_code k2_weights_file_write(const char *path, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    k2_free(k2i_slots_sort(slots, count)); /* asserts that no name is there twice */
    k2i_written *tensors = k2_alloc_array(count, sizeof *tensors);
    for (size_t i = 0; i < count; i++)
        tensors[i] = (k2i_written){.name = slots[i].name, .dtype = K2_DTYPE_F32, .shape = slots[i].shape};
    k2i_writer *w = NULL;
    k2_code code = k2i_writer_begin(path, tensors, count, &w, err);
    for (size_t i = 0; i < count && code == K2_OK; i++) code = k2i_writer_put(w, slots[i].data, k2i_slot_bytes(&slots[i]), err);
    if (w) code = k2i_writer_end(w, code, err);
    k2_free(tensors);
    return code;
}
