/* Any bytes as a connection's stream, whole and in pieces: both must see the same messages, and nothing may be read out of
 * bounds. The first byte says how long the pieces are, and whether requests or answers are read. build/fuzz/http_request_fuzz
 * tests/fuzz/http/corpus/http_request */
#include <string.h>

#include "common/http/parse_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct run {
    k2_buf seen;
} run;

static bool on_head(void *arg, k2i_http_msg *m)
{
    run *r = arg;
    k2_buf_printf(&r->seen, "[%s %d %u", k2i_http_msg_target(m), m->status, m->header_count);
    for (uint32_t i = 0; i < m->header_count; i++) k2_buf_puts(&r->seen, m->head.data + m->headers[i].name);
    const char *host = k2i_http_msg_header(m, "host");
    k2_buf_puts(&r->seen, host ? host : "-");
    return true;
}

static bool on_body(void *arg, const char *bytes, size_t n)
{
    k2_buf_append(&((run *)arg)->seen, bytes, n);
    return true;
}

static const k2i_http_msg_ops ops = {on_head, on_body};

static void feed_all(run *r, const char *bytes, size_t n, size_t piece, bool request)
{
    k2i_http_msg m;
    k2_buf_init(&r->seen, 1 << 22);
    k2i_http_msg_init(&m, request, 4096, &ops, r);
    for (size_t at = 0; at < n;) {
        size_t used, now = K2_MIN(piece, n - at);
        k2i_http_result result = k2i_http_feed(&m, bytes + at, now, &used);
        K2_ASSERT(used <= now && (result != K2I_HTTP_MORE || used == now));
        at += used;
        if (result == K2I_HTTP_ERROR) {
            k2_buf_puts(&r->seen, "!");
            break;
        }
        if (result == K2I_HTTP_DONE) {
            k2_buf_puts(&r->seen, "]");
            k2i_http_msg_reset(&m, request);
        }
    }
    k2i_http_msg_fini(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    run whole, cut;
    bool request = data[0] & 1;
    feed_all(&whole, (const char *)data + 1, size - 1, size, request);
    feed_all(&cut, (const char *)data + 1, size - 1, 1u + (data[0] >> 1), request);
    /* Up to where one of them found an error: a message that is malformed may be given up earlier in one piece than in two. */
    size_t n = K2_MIN(whole.seen.len, cut.seen.len);
    const char *a = whole.seen.data ? whole.seen.data : "", *b = cut.seen.data ? cut.seen.data : "";
    bool faulty = (n && strchr(a, '!')) || (n && strchr(b, '!'));
    if (!faulty) K2_ASSERT(whole.seen.len == cut.seen.len && memcmp(a, b, n) == 0);
    k2_buf_fini(&whole.seen);
    k2_buf_fini(&cut.seen);
    return 0;
}
