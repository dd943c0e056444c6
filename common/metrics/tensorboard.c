/* TensorBoard event files: TFRecord frames around Event messages, which are few enough to be encoded by hand.
 *
 *     frame  u64 length, u32 masked crc of it, bytes, u32 masked crc of them
 *     Event  1: wall_time double   2: step int64   3: file_version string   5: summary
 *     Summary  1: repeated Value {1: tag string   2: simple_value float   8: tensor   9: metadata}
 */
#include "common/metrics/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PENDING_MAX (4u << 20) /* a flush is due long before; past it events are dropped with the flush's error */
#define FLUSH_BYTES (64u << 10)

struct k2_tb {
    char *path;
    int fd;
    k2_buf pending;
};

/* ---- crc ---------------------------------------------------------------------------------------------------------- */

/* Bit by bit through a table of 16: files get a few KiB a second. Reflected Castagnoli polynomial. */
uint32_t k2_tb_crc32c(const void *bytes, size_t n)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const unsigned char *p = bytes;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc = table[(crc ^ p[i]) & 15] ^ (crc >> 4);
        crc = table[(crc ^ (uint32_t)(p[i] >> 4)) & 15] ^ (crc >> 4);
    }
    return crc ^ 0xffffffffu;
}

/* Stored checksums are rotated and shifted, so that a checksum over bytes that hold checksums stays meaningful. */
uint32_t k2_tb_crc32c_masked(const void *bytes, size_t n)
{
    uint32_t crc = k2_tb_crc32c(bytes, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

void k2_tb_frame(k2_buf *out, const void *bytes, size_t n)
{
    unsigned char head[12], tail[4];
    k2_store_u64le(head, n);
    k2_store_u32le(head + 8, k2_tb_crc32c_masked(head, 8));
    k2_store_u32le(tail, k2_tb_crc32c_masked(bytes, n));
    k2_buf_append(out, head, sizeof head);
    k2_buf_append(out, bytes, n);
    k2_buf_append(out, tail, sizeof tail);
}

/* ---- protobuf ----------------------------------------------------------------------------------------------------- */

static void put_varint(k2_buf *b, uint64_t v)
{
    do {
        unsigned char byte = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        k2_buf_append(b, &byte, 1);
        v >>= 7;
    } while (v);
}

static void put_bytes(k2_buf *b, uint32_t field, const void *bytes, size_t n)
{
    put_varint(b, field << 3 | 2);
    put_varint(b, n);
    k2_buf_append(b, bytes, n);
}

static void put_double(k2_buf *b, uint32_t field, double v)
{
    uint64_t bits;
    unsigned char le[8];
    memcpy(&bits, &v, sizeof bits);
    k2_store_u64le(le, bits);
    put_varint(b, field << 3 | 1);
    k2_buf_append(b, le, sizeof le);
}

static void put_float(k2_buf *b, uint32_t field, float v)
{
    uint32_t bits;
    unsigned char le[4];
    memcpy(&bits, &v, sizeof bits);
    k2_store_u32le(le, bits);
    put_varint(b, field << 3 | 5);
    k2_buf_append(b, le, sizeof le);
}

/* Event around a Summary with the one Value that `value` holds. */
static void put_event(k2_tb *tb, int64_t step, double wall_s, const k2_buf *value)
{
    k2_buf summary, event;
    k2_buf_init(&summary, PENDING_MAX);
    k2_buf_init(&event, PENDING_MAX);
    put_bytes(&summary, 1, value->data, value->len);
    put_double(&event, 1, wall_s);
    put_varint(&event, 2 << 3 | 0);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.data, summary.len);
    k2_tb_frame(&tb->pending, event.data, event.len);
    k2_buf_fini(&summary);
    k2_buf_fini(&event);
    if (tb->pending.len > FLUSH_BYTES) (void)k2_tb_flush(tb, NULL);
}

/* ---- files -------------------------------------------------------------------------------------------------------- */

k2_code k2_tb_open(const char *dir, k2_tb **out, k2_error *err)
{
    static _Atomic uint32_t files;
    k2_code code = k2_dir_make(dir, err);
    if (code != K2_OK) return code;
    char host[64] = "localhost";
    if (gethostname(host, sizeof host) != 0 || host[0] == 0) strcpy(host, "localhost");
    host[sizeof host - 1] = 0;
    double wall_s = (double)k2_wall_us() / 1e6;
    char *path = k2_asprintf("%s/events.out.tfevents.%010lld.%s.%ld.%u", dir, (long long)wall_s, host, (long)getpid(),
                             atomic_fetch_add(&files, 1));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) {
        code = k2_error_errno(err, errno, "%s", path);
        k2_free(path);
        return code;
    }
    k2_tb *tb = k2_alloc(sizeof *tb);
    *tb = (k2_tb){.path = path, .fd = fd};
    k2_buf_init(&tb->pending, PENDING_MAX);
    k2_buf event;
    k2_buf_init(&event, PENDING_MAX);
    put_double(&event, 1, wall_s);
    put_bytes(&event, 3, "brain.Event:2", strlen("brain.Event:2"));
    k2_tb_frame(&tb->pending, event.data, event.len);
    k2_buf_fini(&event);
    code = k2_tb_flush(tb, err);
    if (code == K2_OK)
        *out = tb;
    else
        k2_tb_close(tb);
    return code;
}

void k2_tb_scalar(k2_tb *tb, const char *tag, int64_t step, double value, double wall_s)
{
    k2_buf v;
    k2_buf_init(&v, PENDING_MAX);
    put_bytes(&v, 1, tag, strlen(tag));
    put_float(&v, 2, (float)value);
    put_event(tb, step, wall_s, &v);
    k2_buf_fini(&v);
}

/* A text is a string tensor {1: dtype 7, 2: shape {2: dim {1: 1}}, 8: string_val} with the text plugin's metadata {1: {1:
 * "text"}}. */
void k2_tb_text(k2_tb *tb, const char *tag, int64_t step, const char *text, double wall_s)
{
    static const char shape[] = {0x12, 0x02, 0x08, 0x01}, metadata[] = {0x0a, 0x06, 0x0a, 0x04, 't', 'e', 'x', 't'};
    k2_buf v, tensor;
    k2_buf_init(&v, PENDING_MAX);
    k2_buf_init(&tensor, PENDING_MAX);
    put_varint(&tensor, 1 << 3 | 0);
    put_varint(&tensor, 7);
    put_bytes(&tensor, 2, shape, sizeof shape);
    put_bytes(&tensor, 8, text, strlen(text));
    put_bytes(&v, 1, tag, strlen(tag));
    put_bytes(&v, 8, tensor.data, tensor.len);
    put_bytes(&v, 9, metadata, sizeof metadata);
    put_event(tb, step, wall_s, &v);
    k2_buf_fini(&tensor);
    k2_buf_fini(&v);
}

k2_code k2_tb_flush(k2_tb *tb, k2_error *err)
{
    if (tb->pending.overflow) {
        k2_buf_clear(&tb->pending);
        return k2_error_set(err, K2_NO_SPACE, "%s: more than %u bytes waited for the disk; they are dropped", tb->path,
                            PENDING_MAX);
    }
    while (tb->pending.len > 0) {
        ssize_t n = write(tb->fd, tb->pending.data, tb->pending.len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return k2_error_errno(err, errno, "%s", tb->path);
        k2_buf_consume(&tb->pending, (size_t)n);
    }
    return K2_OK;
}

void k2_tb_close(k2_tb *tb)
{
    if (!tb) return;
    (void)k2_tb_flush(tb, NULL);
    close(tb->fd);
    k2_buf_fini(&tb->pending);
    k2_free(tb->path);
    k2_free(tb);
}

const char *k2_tb_path(const k2_tb *tb)
{
    return tb->path;
}
