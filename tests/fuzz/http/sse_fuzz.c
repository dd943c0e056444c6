/* Any bytes as an event stream, whole and in pieces: the same events must come.
 *     build/fuzz/http_sse_fuzz tests/fuzz/http/corpus/http_sse */
#include <string.h>

#include "common/http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool on_event(void *arg, const char *type, const char *data, size_t n)
{
    k2_buf *seen = arg;
    K2_ASSERT(data[n] == 0);
    k2_buf_puts(seen, type);
    k2_buf_append(seen, "|", 1);
    k2_buf_append(seen, data, n);
    k2_buf_append(seen, "\n\n", 2);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) return 0;
    k2_buf seen[2];
    k2_code code[2] = {K2_OK, K2_OK};
    for (int i = 0; i < 2; i++) {
        k2_sse s;
        size_t piece = i ? 1u + data[0] : size;
        k2_buf_init(&seen[i], 1 << 22);
        k2_sse_init(&s, 512);
        for (size_t at = 1; at < size && code[i] == K2_OK; at += piece)
            code[i] = k2_sse_feed(&s, (const char *)data + at, K2_MIN(piece, size - at), on_event, &seen[i]);
        k2_sse_fini(&s);
    }
    K2_ASSERT(code[0] == code[1]);
    if (code[0] == K2_OK)
        K2_ASSERT(seen[0].len == seen[1].len && (!seen[0].len || !memcmp(seen[0].data, seen[1].data, seen[0].len)));
    k2_buf_fini(&seen[0]);
    k2_buf_fini(&seen[1]);
    return 0;
}
