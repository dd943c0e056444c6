/* HTTP/1.x messages, one behind the other, as a server and as a client read them. */
#include <string.h>

#include "common/http/parse_int.h"
#include "tests/fuzz/harness/parser.h"

#define HEAD_BYTES_MAX 4096u

static bool on_head(void *arg, k2i_http_msg *m)
{
    k2_buf *seen = arg;
    k2_buf_printf(seen, "[%s %s %d %u", m->status ? "" : k2i_http_msg_method(m), k2i_http_msg_target(m), m->status,
                  m->header_count);
    for (uint32_t i = 0; i < m->header_count; i++) k2_buf_puts(seen, m->head.data + m->headers[i].name);
    const char *host = k2i_http_msg_header(m, "host");
    k2_buf_puts(seen, host ? host : "-");
    return true;
}

static bool on_body(void *arg, const char *bytes, size_t n)
{
    return k2_buf_append(arg, bytes, n);
}

static const k2i_http_msg_ops ops = {on_head, on_body};

/* All messages of a piece. */
static bool feed(k2i_http_msg *m, const uint8_t *bytes, size_t n, bool request, k2_buf *seen)
{
    while (n > 0) {
        size_t used;
        const k2i_http_result result = k2i_http_feed(m, (const char *)bytes, n, &used);
        K2_ASSERT(used <= n && result != K2I_HTTP_STOPPED && (result != K2I_HTTP_MORE || used == n));
        if (result == K2I_HTTP_ERROR) {
            K2_ASSERT(m->error_status >= 400 && m->why[0]);
            return false;
        }
        bytes += used;
        n -= used;
        if (result == K2I_HTTP_MORE) continue;
        k2_buf_puts(seen, "]");
        k2i_http_msg_reset(m, request);
    }
    return true;
}

static bool messages(k2_parser_pieces *in, k2_buf *seen, bool request)
{
    k2i_http_msg m;
    const uint8_t *bytes;
    size_t n, used;
    bool ok = true;
    k2i_http_msg_init(&m, request, HEAD_BYTES_MAX, &ops, seen);
    while (ok && k2_parser_piece(in, &bytes, &n)) ok = feed(&m, bytes, n, request, seen);
    /* The peer hangs up: an answer may end so. */
    if (ok && m.begun && k2i_http_feed(&m, NULL, 0, &used) == K2I_HTTP_DONE) k2_buf_puts(seen, "]");
    k2i_http_msg_fini(&m);
    return ok;
}

static bool requests(k2_parser_pieces *in, k2_buf *seen)
{
    return messages(in, seen, true);
}

static bool answers(k2_parser_pieces *in, k2_buf *seen)
{
    return messages(in, seen, false);
}

const k2_parser k2_parsers[] = {
    {.name = "HTTP requests", .stream = requests},
    {.name = "HTTP answers", .stream = answers},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
