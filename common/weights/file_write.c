/* Writing safetensors: header, then the tensors as they lie in memory, under a temporary name until all of it is durable. */
#include "slots_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The size prefix and the JSON, padded with blanks so that the data begins at a multiple of 8. */
static void header_encode(const k2_weights_slot *slots, size_t count, k2_buf *out)
{
    unsigned char prefix[8] = {0};
    uint64_t at = 0;
    k2_buf_append(out, prefix, sizeof prefix);
    k2_buf_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < count; i++) {
        const k2_weights_slot *s = &slots[i];
        k2_buf_puts(out, ",");
        k2_buf_json_string(out, s->name, strlen(s->name));
        k2_buf_puts(out, ":{\"dtype\":\"F32\",\"shape\":[");
        for (uint32_t d = 0; d < s->shape.rank; d++) k2_buf_printf(out, "%s%" PRIu64, d ? "," : "", s->shape.size[d]);
        k2_buf_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + k2i_slot_bytes(s));
        at += k2i_slot_bytes(s);
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
static k2_code directory_sync(const char *path, k2_error *err)
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

static k2_code content_write(int fd, const char *path, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    k2_buf header;
    k2_buf_init(&header, K2_WEIGHTS_HEADER_BYTES_MAX);
    header_encode(slots, count, &header);
    bool written = write_all(fd, header.data, header.len);
    for (size_t i = 0; written && i < count; i++) written = write_all(fd, slots[i].data, k2i_slot_bytes(&slots[i]));
    k2_code code = written && fsync(fd) == 0 ? K2_OK : k2_error_errno(err, errno, "%s: cannot write", path);
    k2_buf_fini(&header);
    return code;
}

k2_code k2_weights_file_write(const char *path, const k2_weights_slot *slots, size_t count, k2_error *err)
{
    k2_free(k2i_slots_sort(slots, count)); /* asserts that no name is there twice */
    char *tmp = k2_asprintf("%s.%d.tmp", path, (int)getpid());
    k2_code code = K2_OK;
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        code = k2_error_errno(err, errno, "%s: cannot create", tmp);
        goto free_tmp;
    }
    code = content_write(fd, tmp, slots, count, err);
    if (close(fd) != 0 && code == K2_OK) code = k2_error_errno(err, errno, "%s: cannot close", tmp);
    if (code == K2_OK && rename(tmp, path) != 0) code = k2_error_errno(err, errno, "%s: cannot rename to %s", tmp, path);
    if (code == K2_OK)
        code = directory_sync(path, err);
    else
        unlink(tmp);
free_tmp:
    k2_free(tmp);
    return code;
}
