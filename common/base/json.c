/* What a lenient JSON parser would let pass, found before it looks. */
#include "common/base/base.h"

#include <string.h>

const char *k2_json_fault(const char *s, size_t n, unsigned depth_max)
{
    unsigned depth = 0;
    bool in_string = false;
    if (!k2_utf8_valid(s, n)) return "is not UTF-8";
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == 0) return "holds a zero byte";
        if (!in_string) {
            if (c == '"') in_string = true;
            if ((c == '{' || c == '[') && ++depth > depth_max) return "is nested too deep";
            if ((c == '}' || c == ']') && depth > 0) depth--;
        } else if (c < 0x20) {
            return "holds a control character inside a string";
        } else if (c == '\\') {
            if (n - i > 5 && memcmp(s + i + 1, "u0000", 5) == 0) return "holds the character U+0000";
            i++;
        } else if (c == '"') {
            in_string = false;
        }
    }
    return NULL;
}
