/* Any bytes are a request, a reply, the beginning of one, or an error; what is one encodes to the same bytes, and its range
 * check cannot overflow. */
#include "common/xfer/xfer_int.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void request(const uint8_t *data, size_t size)
{
    k2i_tcp_request q;
    unsigned char frame[K2I_REQUEST_BYTES];
    k2_code code = k2i_tcp_request_decode(data, size, &q, NULL);
    K2_ASSERT(code == K2_OK || code == K2_INCOMPLETE || code == K2_PEER_PROTOCOL);
    K2_ASSERT(code != K2_INCOMPLETE || size < K2I_REQUEST_BYTES);
    if (code != K2_OK) return;
    k2i_tcp_request_encode(&q, frame);
    K2_ASSERT(memcmp(frame, data, sizeof frame) == 0);
    for (size_t n = 0; n < sizeof frame; n++) {
        k2i_tcp_request part;
        code = k2i_tcp_request_decode(data, n, &part, NULL);
        K2_ASSERT(code == K2_INCOMPLETE);
    }
    if (k2i_tcp_request_range(&q, 1 << 20) == K2I_STATUS_OK && q.op == K2I_OP_READ)
        K2_ASSERT(q.offset <= 1 << 20 && q.bytes <= 1 << 20 && q.offset + q.bytes <= 1 << 20);
}

static void reply(const uint8_t *data, size_t size)
{
    k2i_tcp_reply a;
    unsigned char frame[K2I_REPLY_BYTES];
    k2_code code = k2i_tcp_reply_decode(data, size, &a, NULL);
    K2_ASSERT(code == K2_OK || code == K2_INCOMPLETE || code == K2_PEER_PROTOCOL);
    if (code != K2_OK) return;
    K2_ASSERT(a.bytes <= K2_XFER_CHUNK_MAX);
    k2i_tcp_reply_encode(&a, frame);
    K2_ASSERT(memcmp(frame, data, sizeof frame) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    request(data, size);
    reply(data, size);
    return 0;
}
