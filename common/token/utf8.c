/* UTF-8 out of a stream of bytes, broken characters replaced by U+FFFD: one for each longest beginning of a character. */
#include "common/token/utf8_int.h"

#include <string.h>

typedef enum { BROKEN, BEGUN, WHOLE } state;

/* What n bytes (1..4) are. The second byte of a character has a narrower range behind some first bytes: that is where overlong
 * forms, surrogates and values past U+10FFFF are refused, as early as they can be known. */
static state look(const unsigned char *s, unsigned n)
{
    if (s[0] == 0) return BROKEN; /* a character, but one that would cut every C string short */
    if (s[0] < 0x80) return WHOLE;
    if (s[0] < 0xc2 || s[0] > 0xf4) return BROKEN;
    unsigned len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (n >= 2) {
        unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
        unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
        if (s[1] < low || s[1] > high) return BROKEN;
    }
    for (unsigned i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return BROKEN;
    return n == len ? WHOLE : BEGUN;
}

bool k2i_utf8_flush(k2_token_stream *s, k2_buf *out)
{
    if (s->pending_count == 0) return true;
    s->pending_count = 0;
    return k2_buf_puts(out, "\xef\xbf\xbd");
}

bool k2i_utf8_byte(k2_token_stream *s, unsigned char byte, k2_buf *out)
{
    s->pending[s->pending_count++] = byte;
    state now = look(s->pending, s->pending_count);
    if (now == BROKEN && s->pending_count > 1) {
        /* The byte does not go on with what was begun, but may begin something itself. */
        if (!k2i_utf8_flush(s, out)) return false;
        s->pending[0] = byte;
        s->pending_count = 1;
        now = look(s->pending, 1);
    }
    if (now == BROKEN) return k2i_utf8_flush(s, out);
    if (now == BEGUN) return true;
    unsigned n = s->pending_count;
    s->pending_count = 0;
    return k2_buf_append(out, s->pending, n);
}
