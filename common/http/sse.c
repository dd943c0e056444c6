/* sse.c - Server-Sent Events, reader and writer. The reader keeps only the unfinished line and the unfinished event, so it
 * takes a stream cut at any byte. */
#include "common/http/http.h"

#include <string.h>

void k2_sse_init(k2_sse *s, size_t event_bytes_max)
{
    memset(s, 0, sizeof *s);
    s->event_bytes_max = event_bytes_max;
    k2_buf_init(&s->line, event_bytes_max);
    k2_buf_init(&s->data, event_bytes_max);
}

void k2_sse_fini(k2_sse *s)
{
    k2_buf_fini(&s->line);
    k2_buf_fini(&s->data);
}

/* What one line asks for. */
typedef enum line_result { LINE_KEPT, LINE_EVENT, LINE_TOO_LONG } line_result;

static line_result line_take(k2_sse *s, const char *line, size_t n)
{
    if (!s->started) {
        s->started = true;
        if (n >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) line += 3, n -= 3;
    }
    if (n == 0) return LINE_EVENT;
    const char *colon = memchr(line, ':', n);
    size_t name = colon ? (size_t)(colon - line) : n;
    const char *value = colon ? colon + 1 : line + n;
    size_t bytes = n - (size_t)(value - line);
    if (bytes > 0 && *value == ' ') value++, bytes--;
    if (name == 4 && memcmp(line, "data", 4) == 0) {
        if (s->have_data && !k2_buf_append(&s->data, "\n", 1)) return LINE_TOO_LONG;
        if (!k2_buf_append(&s->data, value, bytes)) return LINE_TOO_LONG;
        s->have_data = true;
    } else if (name == 5 && memcmp(line, "event", 5) == 0) {
        size_t keep = K2_MIN(bytes, sizeof s->event - 1);
        memcpy(s->event, value, keep);
        s->event[keep] = 0;
    }
    return LINE_KEPT; /* comments (empty name), id, retry and unknown fields have no say here */
}

k2_code k2_sse_feed(k2_sse *s, const char *bytes, size_t n,
                    bool (*on_event)(void *arg, const char *type, const char *data, size_t data_bytes), void *arg)
{
    size_t i = 0;
    while (i < n) {
        if (s->after_cr) {
            s->after_cr = false;
            if (bytes[i] == '\n') {
                i++;
                continue;
            }
        }
        size_t end = i;
        while (end < n && bytes[end] != '\n' && bytes[end] != '\r') end++;
        const char *line = bytes + i;
        size_t line_bytes = end - i;
        if (line_bytes > s->event_bytes_max) return K2_LIMIT;
        if (s->line.len > 0 || end == n) {
            if (!k2_buf_append(&s->line, line, line_bytes)) return K2_LIMIT;
            line = s->line.data;
            line_bytes = s->line.len;
        }
        if (end == n) return K2_OK;
        s->after_cr = bytes[end] == '\r';
        i = end + 1;
        line_result r = line_take(s, line, line_bytes);
        k2_buf_clear(&s->line);
        if (r == LINE_TOO_LONG) return K2_LIMIT;
        if (r == LINE_KEPT) continue;
        if (s->have_data) {
            /* The event is read out of s before the call: the callback may finish s when it answers false. */
            s->have_data = false;
            bool more = on_event(arg, s->event[0] ? s->event : "message", s->data.data ? s->data.data : "", s->data.len);
            if (!more) return K2_CANCELED;
            k2_buf_clear(&s->data);
        }
        s->event[0] = 0;
    }
    return K2_OK;
}

void k2_sse_write(k2_buf *out, const char *data, size_t n)
{
    size_t i = 0;
    do {
        const char *nl = i < n ? memchr(data + i, '\n', n - i) : NULL;
        size_t end = nl ? (size_t)(nl - data) : n;
        k2_buf_puts(out, "data: ");
        k2_buf_append(out, data + i, end - i);
        k2_buf_puts(out, "\n");
        i = end + 1;
    } while (i <= n);
    k2_buf_puts(out, "\n");
}
