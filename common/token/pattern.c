/* Patterns: those with a name, and those of a tokenizer.json put into PCRE2's words.
 *
 * They were written for Rust's and Ruby's (Oniguruma's) regular expressions. What means something else in PCRE2:
 *   \s         the property White_Space there; here also U+180E, which has not been a space since Unicode 6.3
 *   \p{Han}    the script there; here the script extensions, which add punctuation that Han shares with kana
 *   [A&&[^B]]  an intersection there; here no such thing. [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] becomes the complement of
 * all other categories and Han: one class, where a lookahead in front of each character would need a repeated group $ the very
 * end in Rust (so here: DOLLAR_ENDONLY), the end of a line in Ruby (so refused)
 */
#include "common/token/token_int.h"

#include <string.h>

#define WS "\\p{White_Space}"

#define KIMI_UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]" /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] */
#define KIMI_LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]" /* [\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]] */
#define ENDINGS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

static const struct {
    const char *name, *pattern;
} named[] = {
    {"kimi", "\\p{sc:Han}+"
             "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" ENDINGS "?"
             "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" ENDINGS "?"
             "|\\p{N}{1,3}"
             "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*"
             "|" WS "*[\\r\\n]+"
             "|" WS "+(?!\\P{White_Space})"
             "|" WS "+"},
    {"qwen", ENDINGS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
                     "|\\p{N}"
                     "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*"
                     "|" WS "*[\\r\\n]+"
                     "|" WS "+(?!\\P{White_Space})"
                     "|" WS "+"},
    {"cl100k", "'(?i:[sdmt]|ll|ve|re)"
               "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++"
               "|\\p{N}{1,3}+"
               "| ?[^" WS "\\p{L}\\p{N}]++[\\r\\n]*+"
               "|" WS "++$"
               "|" WS "*[\\r\\n]"
               "|" WS "+(?!\\P{White_Space})"
               "|" WS},
    {"gpt2", "'(?:[sdmt]|ll|ve|re)"
             "| ?\\p{L}+"
             "| ?\\p{N}+"
             "| ?[^" WS "\\p{L}\\p{N}]+"
             "|" WS "+(?!\\P{White_Space})"
             "|" WS "+"},
};

const char *k2i_pattern_named(const char *name)
{
    for (size_t i = 0; i < K2_COUNT(named); i++)
        if (strcmp(name, named[i].name) == 0) return named[i].pattern;
    return NULL;
}

/* ---- translation --------------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *at, *begin;
    k2_buf *out;
    bool in_class;
    k2_error *err;
} reader;

static k2_code refuse(const reader *r, const char *what)
{
    return k2_error_set(r->err, K2_UNSUPPORTED, "pattern \"%.200s\": character %zu: %s", r->begin, (size_t)(r->at - r->begin),
                        what);
}

/* \p{NAME}, \P{NAME}: categories as they are, scripts by sc:. */
static k2_code take_property(reader *r)
{
    const char kind = r->at[1], *name = r->at + 3, *end;
    if (r->at[2] != '{' || !(end = strchr(name, '}')) || end == name || end - name > 32)
        return refuse(r, "expected a property in braces");
    const int n = (int)(end - name);
    for (int i = 0; i < n; i++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_", name[i]))
            return refuse(r, "a property of this form is not supported");
    k2_buf_printf(r->out, "\\%c{%s%.*s}", kind, n > 2 ? "sc:" : "", n, name);
    r->at = end + 1;
    return K2_OK;
}

/* \uHHHH, which PCRE2 writes \x{HHHH} */
static k2_code take_code_point(reader *r)
{
    for (int i = 2; i < 6; i++)
        if (!r->at[i] || !strchr("0123456789abcdefABCDEF", r->at[i])) return refuse(r, "expected four hexadecimal digits");
    k2_buf_printf(r->out, "\\x{%.4s}", r->at + 2);
    r->at += 6;
    return K2_OK;
}

static k2_code take_escape(reader *r)
{
    const char c = r->at[1];
    if (c == 'p' || c == 'P') return take_property(r);
    if (c == 'u') return take_code_point(r);
    if (c == 's')
        k2_buf_puts(r->out, WS);
    else if (c == 'S')
        k2_buf_puts(r->out, "\\P{White_Space}");
    else if (c == 'd' || c == 'D')
        k2_buf_puts(r->out, c == 'd' ? "\\p{Nd}" : "\\P{Nd}");
    else if (c && strchr("rntf!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ", c))
        k2_buf_append(r->out, r->at, 2);
    else
        return refuse(r, "this escape is not supported");
    r->at += 2;
    return K2_OK;
}

static k2_code take_in_class(reader *r)
{
    if (*r->at == ']') {
        r->in_class = false;
    } else if (*r->at == '[') {
        return refuse(r, "a class inside a class is not supported");
    } else if (r->at[0] == '&' && r->at[1] == '&') {
        return refuse(r, "an intersection of classes is not supported");
    }
    k2_buf_append(r->out, r->at++, 1);
    return K2_OK;
}

static k2_code take_group(reader *r)
{
    static const char *const openings[] = {"(?:", "(?i:", "(?!", "(?="};
    size_t n = r->at[1] == '?' || r->at[1] == '*' ? 0 : 1; /* (*VERB) is PCRE2's alone */
    for (size_t i = 0; i < K2_COUNT(openings); i++)
        if (strncmp(r->at, openings[i], strlen(openings[i])) == 0) n = strlen(openings[i]);
    if (n == 0) return refuse(r, "a group of this kind is not supported");
    k2_buf_append(r->out, r->at, n);
    r->at += n;
    return K2_OK;
}

static k2_code take_outside(reader *r)
{
    const char c = *r->at, next = r->at[1];
    if (c == '(') return take_group(r);
    if (c == '^' || c == '$' || c == '.') return refuse(r, "^, $ and . are not supported");
    if (c == ')' && next && strchr("*+{", next)) return refuse(r, "a repeated group is not supported");
    if (c == '}' && next && strchr("+", next)) return refuse(r, "a possessive counted repetition is not supported");
    if (c == '[') {
        r->in_class = true;
        if (next == '^') k2_buf_append(r->out, r->at++, 1);
        if (r->at[1] == ']') return refuse(r, "an empty class");
    }
    k2_buf_append(r->out, r->at++, 1);
    return K2_OK;
}

k2_code k2i_pattern_translate(const char *pattern, k2_buf *out, k2_error *err)
{
    reader r = {.at = pattern, .begin = pattern, .out = out, .err = err};
    k2_code code = K2_OK;
    while (*r.at && code == K2_OK) {
        if (*r.at == '\\')
            code = take_escape(&r);
        else
            code = r.in_class ? take_in_class(&r) : take_outside(&r);
    }
    if (code == K2_OK && out->overflow)
        code = k2_error_set(err, K2_LIMIT, "the pattern is longer than %zu bytes", out->cap_max);
    return code;
}
