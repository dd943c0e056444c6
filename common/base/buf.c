/* k2_buf: bytes that grow up to a cap. */
#include "common/base/base.h"

#include <stdio.h>
#include <string.h>

void k2_buf_init(k2_buf *b, size_t cap_max)
{
    *b = (k2_buf){.cap_max = cap_max};
}

void k2_buf_fini(k2_buf *b)
{
    k2_free(b->data);
    *b = (k2_buf){.cap_max = b->cap_max};
}

void k2_buf_clear(k2_buf *b)
{
    b->len = 0;
    b->overflow = false;
    if (b->data) b->data[0] = 0;
}

static bool reserve(k2_buf *b, size_t more)
{
    if (more > b->cap_max || b->len > b->cap_max - more) {
        b->overflow = true;
        return false;
    }
    size_t need = b->len + more + 1;
    if (need > b->capacity) {
        size_t grown = K2_MAX(need, K2_MAX(b->capacity * 2, (size_t)64));
        b->data = k2_realloc_array(b->data, grown, 1);
        b->capacity = grown;
    }
    return true;
}

bool k2_buf_append(k2_buf *b, const void *bytes, size_t n)
{
    if (!reserve(b, n)) return false;
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
    return true;
}

bool k2_buf_puts(k2_buf *b, const char *s)
{
    return k2_buf_append(b, s, strlen(s));
}

bool k2_buf_printf(k2_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    bool ok = n >= 0 && reserve(b, (size_t)n);
    if (ok) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return ok;
}

void k2_buf_consume(k2_buf *b, size_t n)
{
    K2_ASSERT(n <= b->len);
    if (n == 0) return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

/* Length of the UTF-8 sequence at s (1..4), 0 where it is not one. Overlong forms, surrogates and values past U+10FFFF are not.
 */
static size_t utf8_step(const unsigned char *s, size_t n)
{
    if (n == 0) return 0;
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n < len) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return len;
}

bool k2_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t step = utf8_step((const unsigned char *)s + i, n - i);
        if (step == 0) return false;
        i += step;
    }
    return true;
}

/* Bytes that stand in a JSON string as they are, up to the first that may not. */
static size_t plain_run(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (unsigned char)s[i] >= 0x20 && (unsigned char)s[i] < 0x80 && s[i] != '"' && s[i] != '\\') i++;
    return i;
}

static bool append_escaped(k2_buf *b, unsigned char c)
{
    static const char special[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    const char *hit = c ? strchr(special, c) : NULL;
    if (!hit) return k2_buf_printf(b, "\\u%04x", c);
    const char escaped[2] = {'\\', letters[hit - special]};
    return k2_buf_append(b, escaped, 2);
}

bool k2_buf_json_string(k2_buf *b, const char *s, size_t n)
{
    bool ok = k2_buf_append(b, "\"", 1);
    for (size_t i = 0; ok && i < n;) {
        size_t step = plain_run(s + i, n - i);
        if (step > 0) {
            ok = k2_buf_append(b, s + i, step);
        } else if ((unsigned char)s[i] < 0x80) {
            ok = append_escaped(b, (unsigned char)s[i]);
            step = 1;
        } else if ((step = utf8_step((const unsigned char *)s + i, n - i)) > 0) {
            ok = k2_buf_append(b, s + i, step);
        } else {
            ok = k2_buf_append(b, "\xef\xbf\xbd", 3);
            step = 1;
        }
        i += step;
    }
    return ok && k2_buf_append(b, "\"", 1);
}
