/* Server-Sent Events. */
#include "common/http/http.h"
#include "tests/fuzz/harness/parser.h"

#define EVENT_BYTES_MAX 512u

static bool on_event(void *arg, const char *type, const char *data, size_t n)
{
    k2_buf *seen = arg;
    K2_ASSERT(data[n] == 0 && n <= EVENT_BYTES_MAX);
    k2_buf_puts(seen, type);
    k2_buf_append(seen, "|", 1);
    k2_buf_append(seen, data, n);
    k2_buf_append(seen, "\n\n", 2);
    return true;
}

static bool events(k2_parser_pieces *in, k2_buf *seen)
{
    k2_sse s;
    const uint8_t *bytes;
    size_t n;
    k2_code code = K2_OK;
    k2_sse_init(&s, EVENT_BYTES_MAX);
    while (code == K2_OK && k2_parser_piece(in, &bytes, &n)) code = k2_sse_feed(&s, (const char *)bytes, n, on_event, seen);
    k2_sse_fini(&s);
    K2_ASSERT(code == K2_OK || code == K2_LIMIT);
    return code == K2_OK;
}

const k2_parser k2_parsers[] = {
    {.name = "Server-Sent Events", .stream = events},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
