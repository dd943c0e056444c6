/* Characters: white space, valid UTF-8 out of any bytes, and normal form C (utf8proc has Unicode's data). */
#include "common/token/token_int.h"
#include "common/token/utf8_int.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool k2i_is_space(const unsigned char *s, size_t n, size_t *len)
{
    utf8proc_int32_t c;
    if (n == 0) return false;
    const utf8proc_ssize_t taken = utf8proc_iterate(s, (utf8proc_ssize_t)K2_MIN(n, (size_t)4), &c);
    if (taken <= 0) return false;
    *len = (size_t)taken;
    if ((c >= 9 && c <= 13) || c == 0x85) return true; /* controls that are white space */
    const utf8proc_category_t kind = utf8proc_category(c);
    return kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

unsigned char *k2i_lossy(const unsigned char *text, size_t n, size_t *out_n)
{
    if (k2_utf8_valid((const char *)text, n)) return NULL;
    k2_buf out;
    k2_token_stream s = {0};
    k2_buf_init(&out, 3 * n + 1);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == 0) { /* a character here, though not in the text of answers */
            k2i_utf8_flush(&s, &out);
            k2_buf_append(&out, "", 1);
        } else {
            k2i_utf8_byte(&s, text[i], &out);
        }
    }
    k2i_utf8_flush(&s, &out);
    K2_ASSERT(!out.overflow);
    *out_n = out.len;
    return (unsigned char *)out.data;
}

/* Whether a character is in NFC whatever surrounds it and changes nothing before it. Most text has no other, and is not copied.
 */
static bool inert(utf8proc_int32_t c)
{
    if (c < 0x300) return true; /* where composed characters stay, and nothing combines */
    if ((c >= 0x3400 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3)) return true;
    if (c >= 0x1100 && c <= 0x11ff) return false; /* parts of a syllable compose by computation, not by a table */
    const utf8proc_property_t *p = utf8proc_get_property(c);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX && p->comb_index == UINT16_MAX;
}

unsigned char *k2i_nfc(const unsigned char *text, size_t n, size_t *out_n)
{
    size_t at = 0;
    while (at < n) {
        utf8proc_int32_t c = text[at];
        const utf8proc_ssize_t taken =
            c < 0x80 ? 1 : utf8proc_iterate(text + at, (utf8proc_ssize_t)K2_MIN(n - at, (size_t)4), &c);
        K2_ASSERT(taken > 0);
        if (!inert(c)) break;
        at += (size_t)taken;
    }
    if (at >= n) return NULL;
    utf8proc_uint8_t *made = NULL;
    const utf8proc_ssize_t len =
        utf8proc_map(text, (utf8proc_ssize_t)n, &made, (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    K2_ASSERT(len >= 0);
    unsigned char *copy = k2_alloc((size_t)len + 1);
    memcpy(copy, made, (size_t)len);
    free(made);
    *out_n = (size_t)len;
    return copy;
}
