/* Text to pieces: patterns one after the other, each cutting what the one before left into matches and what lies between them.
 *
 * PCRE2 does the matching, with just-in-time code where the machine allows it. Patterns come without repeated groups
 * (pattern.c sees to that), so a match needs no stack that grows with the text, and the limit on its steps is proportional to
 * the text.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "common/token/token_int.h"

#include <pcre2.h>
#include <string.h>

typedef struct run {
    const k2i_split *split;
    pcre2_match_context *context;
    pcre2_match_data *match[K2I_STEPS_MAX];
    k2i_piece_take *take;
    void *arg;
} run;

k2_code k2i_split_add(k2i_split *s, const char *pattern, k2_error *err)
{
    int why = 0;
    PCRE2_SIZE at = 0;
    uint32_t empty = 0;
    if (s->count == K2I_STEPS_MAX) return k2_error_set(err, K2_LIMIT, "more than %u steps", K2I_STEPS_MAX);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return k2_error_set(err, K2_NO_MEMORY, "a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 16);
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &why, &at, context);
    pcre2_compile_context_free(context);
    if (!code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(why, text, sizeof text);
        return k2_error_set(err, K2_UNSUPPORTED, "pattern \"%.200s\": %s", pattern, (const char *)text);
    }
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(code);
        return k2_error_set(err, K2_UNSUPPORTED, "pattern \"%.200s\" may match nothing at all", pattern);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where it cannot be, matching is slower */
    s->codes[s->count++] = code;
    return K2_OK;
}

void k2i_split_fini(k2i_split *s)
{
    for (uint32_t i = 0; i < s->count; i++) pcre2_code_free(s->codes[i]);
    s->count = 0;
}

static k2_code step(const run *r, uint32_t number, const unsigned char *text, size_t n, k2_error *err)
{
    if (n == 0) return K2_OK;
    if (number == r->split->count) return r->take(r->arg, text, n, err);
    pcre2_match_data *match = r->match[number];
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(match);
    k2_code code = K2_OK;
    for (size_t at = 0; at < n && code == K2_OK;) {
        const int found = pcre2_match(r->split->codes[number], text, n, at, PCRE2_NO_UTF_CHECK, match, r->context);
        if (found == PCRE2_ERROR_NOMATCH) return step(r, number + 1, text + at, n - at, err);
        if (found < 0)
            return k2_error_set(err, K2_LIMIT, "pattern %u takes too many steps at byte %zu of %zu (PCRE2 says %d)", number, at,
                                n, found);
        const size_t begin = ends[0], end = ends[1];
        if (begin < at || end <= begin)
            return k2_error_set(err, K2_UNSUPPORTED, "pattern %u matches nothing at byte %zu of %zu", number, begin, n);
        code = step(r, number + 1, text + at, begin - at, err);
        if (code == K2_OK) code = step(r, number + 1, text + begin, end - begin, err);
        at = end;
    }
    return code;
}

k2_code k2i_split_run(const k2i_split *s, const unsigned char *text, size_t n, k2i_piece_take *take, void *arg, k2_error *err)
{
    run r = {.split = s, .take = take, .arg = arg, .context = pcre2_match_context_create(NULL)};
    k2_code code = r.context ? K2_OK : K2_NO_MEMORY;
    /* Looking for the end of a run of spaces goes back over it once: some steps for each byte, whatever the text. */
    if (r.context) pcre2_set_match_limit(r.context, (uint32_t)K2_MIN(n * 64 + 100000, (size_t)UINT32_MAX));
    if (r.context) pcre2_set_heap_limit(r.context, UINT32_MAX);
    for (uint32_t i = 0; i < s->count && code == K2_OK; i++)
        if (!(r.match[i] = pcre2_match_data_create(1, NULL))) code = K2_NO_MEMORY;
    if (code == K2_OK)
        code = step(&r, 0, text, n, err);
    else
        k2_error_set(err, code, "matching");
    for (uint32_t i = 0; i < s->count; i++) pcre2_match_data_free(r.match[i]);
    pcre2_match_context_free(r.context);
    return code;
}
