/* Where Kimi's own program cuts a text before it looks for words: after 400,000 characters, and in a run of more than 25,000
 * that are all space or all no space. Ids depend on it, so a text that is cut there is cut here. */
#include "common/token/token_int.h"

#define WINDOW_CHARS 400000u
#define RUN_CHARS    25000u

/* As Python's str.isspace: White_Space and the four separators of ASCII. */
static bool is_space(const unsigned char *s, size_t n, size_t *len)
{
    if (s[0] < 0x80) {
        *len = 1;
        return s[0] == ' ' || (s[0] >= 9 && s[0] <= 13) || (s[0] >= 0x1c && s[0] <= 0x1f);
    }
    *len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    /* All space lies in U+0080-00BF, U+1680, U+2000-207F and U+3000; most text need not be asked about. */
    const bool maybe =
        s[0] == 0xc2 || (s[0] == 0xe1 && s[1] == 0x9a) || (s[0] == 0xe2 && s[1] <= 0x81) || (s[0] == 0xe3 && s[1] == 0x80);
    return maybe && k2i_is_space(s, n, len);
}

size_t k2i_cuts_next(k2i_cuts *c, const unsigned char *text, size_t n)
{
    size_t at = 0, len;
    while (at < n) {
        const bool space = is_space(text + at, n - at, &len), same = c->window > 0 && space == c->space;
        if (c->window == WINDOW_CHARS || (same && c->run == RUN_CHARS)) {
            if (at > 0) return at;
            if (c->window == WINDOW_CHARS) c->window = 0;
            c->run = 0;
        }
        c->run = same && c->run > 0 ? c->run + 1 : 1;
        c->space = space;
        c->window++;
        at += len;
    }
    return n;
}
