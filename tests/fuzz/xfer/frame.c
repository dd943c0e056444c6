/* Frames of the tcp transport. What is one encodes to the same bytes, its beginnings are incomplete, and its range check cannot
 * overflow. */
#include <string.h>

#include "common/xfer/xfer_int.h"
#include "tests/fuzz/harness/parser.h"

static bool request(const uint8_t *bytes, size_t n)
{
    k2i_tcp_request q;
    unsigned char frame[K2I_REQUEST_BYTES];
    const k2_code code = k2i_tcp_request_decode(bytes, n, &q, NULL);
    K2_ASSERT(code == K2_OK || code == K2_INCOMPLETE || code == K2_PEER_PROTOCOL);
    K2_ASSERT(code != K2_INCOMPLETE || n < K2I_REQUEST_BYTES);
    if (code != K2_OK) return false;
    k2i_tcp_request_encode(&q, frame);
    K2_ASSERT(memcmp(frame, bytes, sizeof frame) == 0);
    for (size_t i = 0; i < sizeof frame; i++) {
        k2i_tcp_request part;
        const k2_code begun = k2i_tcp_request_decode(bytes, i, &part, NULL);
        K2_ASSERT(begun == K2_INCOMPLETE);
    }
    if (k2i_tcp_request_range(&q, 1 << 20) == K2I_STATUS_OK && q.op == K2I_OP_READ)
        K2_ASSERT(q.offset <= 1 << 20 && q.bytes <= 1 << 20 && q.offset + q.bytes <= 1 << 20);
    return true;
}

static bool reply(const uint8_t *bytes, size_t n)
{
    k2i_tcp_reply a;
    unsigned char frame[K2I_REPLY_BYTES];
    const k2_code code = k2i_tcp_reply_decode(bytes, n, &a, NULL);
    K2_ASSERT(code == K2_OK || code == K2_INCOMPLETE || code == K2_PEER_PROTOCOL);
    if (code != K2_OK) return false;
    K2_ASSERT(a.bytes <= K2_XFER_CHUNK_MAX);
    k2i_tcp_reply_encode(&a, frame);
    K2_ASSERT(memcmp(frame, bytes, sizeof frame) == 0);
    for (size_t i = 0; i < sizeof frame; i++) {
        k2i_tcp_reply part;
        const k2_code begun = k2i_tcp_reply_decode(bytes, i, &part, NULL);
        K2_ASSERT(begun == K2_INCOMPLETE);
    }
    return true;
}

const k2_parser k2_parsers[] = {
    {.name = "tcp request", .take = request},
    {.name = "tcp reply", .take = reply},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
