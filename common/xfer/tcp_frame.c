/* Frames of the tcp transport: encode and decode, pure. The layouts stand in xfer_int.h. */
#include "common/xfer/xfer_int.h"

#include <arpa/inet.h>
#include <string.h>

#define REQUEST_MAGIC 0x5158324bu /* "K2XQ" */
#define REPLY_MAGIC   0x4158324bu /* "K2XA" */
#define VERSION       1u

static uint16_t load_u16le(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static void store_u16le(unsigned char *p, unsigned v)
{
    p[0] = (unsigned char)v;
    p[1] = (unsigned char)(v >> 8);
}

void k2i_tcp_request_encode(const k2i_tcp_request *q, unsigned char out[K2I_REQUEST_BYTES])
{
    k2_store_u32le(out, REQUEST_MAGIC);
    store_u16le(out + 4, VERSION);
    store_u16le(out + 6, q->op);
    k2_store_u64le(out + 8, q->segment);
    memcpy(out + 16, q->nonce.bytes, sizeof q->nonce.bytes);
    k2_store_u64le(out + 32, q->offset);
    k2_store_u64le(out + 40, q->bytes);
    k2_store_u32le(out + 48, q->timeout_ms);
    k2_store_u32le(out + 52, 0);
    k2_store_u64le(out + 56, q->tag);
}

/* Whether the bytes that are there agree with magic and version, so that somebody who speaks another protocol is not waited
 * for. */
static bool head_possible(const unsigned char *in, size_t n, uint32_t magic)
{
    unsigned char head[6];
    k2_store_u32le(head, magic);
    store_u16le(head + 4, VERSION);
    return memcmp(in, head, K2_MIN(n, sizeof head)) == 0;
}

k2_code k2i_tcp_request_decode(const unsigned char *in, size_t n, k2i_tcp_request *out, k2_error *err)
{
    if (!head_possible(in, n, REQUEST_MAGIC)) return k2_error_set(err, K2_PEER_PROTOCOL, "tcp request: wrong magic or version");
    if (n < K2I_REQUEST_BYTES) return k2_error_set(err, K2_INCOMPLETE, "tcp request: %zu bytes of %u", n, K2I_REQUEST_BYTES);
    k2i_tcp_request q = {
        .op = (k2i_tcp_op)load_u16le(in + 6),
        .segment = k2_load_u64le(in + 8),
        .offset = k2_load_u64le(in + 32),
        .bytes = k2_load_u64le(in + 40),
        .timeout_ms = k2_load_u32le(in + 48),
        .tag = k2_load_u64le(in + 56),
    };
    memcpy(q.nonce.bytes, in + 16, sizeof q.nonce.bytes);
    if (q.op != K2I_OP_READ && q.op != K2I_OP_WAIT)
        return k2_error_set(err, K2_PEER_PROTOCOL, "tcp request: unknown operation %u", (unsigned)q.op);
    if (q.op == K2I_OP_READ && q.bytes > K2_XFER_CHUNK_MAX)
        return k2_error_set(err, K2_PEER_PROTOCOL, "tcp request: %llu bytes in one read, at most %llu",
                            (unsigned long long)q.bytes, K2_XFER_CHUNK_MAX);
    if (q.op == K2I_OP_READ ? q.timeout_ms != 0 : q.timeout_ms > K2I_WAIT_MS_MAX)
        return k2_error_set(err, K2_PEER_PROTOCOL, "tcp request: a timeout of %u ms", q.timeout_ms);
    if (k2_load_u32le(in + 52) != 0) return k2_error_set(err, K2_PEER_PROTOCOL, "tcp request: the reserved field is not 0");
    *out = q;
    return K2_OK;
}

void k2i_tcp_reply_encode(const k2i_tcp_reply *a, unsigned char out[K2I_REPLY_BYTES])
{
    k2_store_u32le(out, REPLY_MAGIC);
    store_u16le(out + 4, VERSION);
    store_u16le(out + 6, a->status);
    k2_store_u64le(out + 8, a->tag);
    k2_store_u64le(out + 16, a->bytes);
    k2_store_u64le(out + 24, a->hash);
    k2_store_u64le(out + 32, a->word);
}

k2_code k2i_tcp_reply_decode(const unsigned char *in, size_t n, k2i_tcp_reply *out, k2_error *err)
{
    if (!head_possible(in, n, REPLY_MAGIC)) return k2_error_set(err, K2_PEER_PROTOCOL, "tcp reply: wrong magic or version");
    if (n < K2I_REPLY_BYTES) return k2_error_set(err, K2_INCOMPLETE, "tcp reply: %zu bytes of %u", n, K2I_REPLY_BYTES);
    k2i_tcp_reply a = {
        .status = (k2i_tcp_status)load_u16le(in + 6),
        .tag = k2_load_u64le(in + 8),
        .bytes = k2_load_u64le(in + 16),
        .hash = k2_load_u64le(in + 24),
        .word = k2_load_u64le(in + 32),
    };
    if ((unsigned)a.status >= K2I_STATUS_COUNT)
        return k2_error_set(err, K2_PEER_PROTOCOL, "tcp reply: unknown status %u", (unsigned)a.status);
    if (a.bytes > K2_XFER_CHUNK_MAX || (a.status != K2I_STATUS_OK && a.bytes != 0))
        return k2_error_set(err, K2_PEER_PROTOCOL, "tcp reply: %llu bytes of payload", (unsigned long long)a.bytes);
    *out = a;
    return K2_OK;
}

k2_code k2i_tcp_status_error(k2i_tcp_status status, k2_error *err)
{
    static const struct {
        k2_code code;
        const char *text;
    } table[K2I_STATUS_COUNT] = {
#define K2_X(name, code, text) {code, text},
        K2I_STATUSES(K2_X)
#undef K2_X
    };
    K2_ASSERT((unsigned)status < K2I_STATUS_COUNT);
    return status == K2I_STATUS_OK ? K2_OK : k2_error_set(err, table[status].code, "%s", table[status].text);
}

k2i_tcp_status k2i_tcp_request_range(const k2i_tcp_request *q, uint64_t segment_bytes)
{
    if (q->op == K2I_OP_WAIT) {
        bool inside = q->offset % 8 == 0 && segment_bytes >= 8 && q->offset <= segment_bytes - 8;
        return inside ? K2I_STATUS_OK : K2I_STATUS_RANGE;
    }
    return q->offset <= segment_bytes && q->bytes <= segment_bytes - q->offset ? K2I_STATUS_OK : K2I_STATUS_RANGE;
}

bool k2i_sockaddr(const char *host, uint16_t port, struct sockaddr_storage *out, socklen_t *len)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
        memcpy(out, &v4, sizeof v4);
        *len = sizeof v4;
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
        memcpy(out, &v6, sizeof v6);
        *len = sizeof v6;
        return true;
    }
    return false;
}
