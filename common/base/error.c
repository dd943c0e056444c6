/* Errors: the table of codes, and the one line of text that goes with one. */
#include "common/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *text;
    k2_scope scope;
} codes[] = {
#define K2_X(n, s, t) {#n, t, K2_SCOPE_##s},
    K2_CODES(K2_X)
#undef K2_X
};

const char *k2_code_name(k2_code code)
{
    K2_ASSERT((unsigned)code < K2_CODE_COUNT);
    return codes[code].name;
}

const char *k2_code_text(k2_code code)
{
    K2_ASSERT((unsigned)code < K2_CODE_COUNT);
    return codes[code].text;
}

k2_scope k2_code_scope(k2_code code)
{
    K2_ASSERT((unsigned)code < K2_CODE_COUNT);
    return codes[code].scope;
}

int k2_code_exit(k2_code code)
{
    if (code == K2_OK) return 0;
    return k2_code_scope(code) == K2_SCOPE_DATA || code == K2_BUSY ? 2 : 1;
}

static void one_line(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
}

k2_code k2_error_set(k2_error *err, k2_code code, const char *fmt, ...)
{
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    one_line(err->text);
    return code;
}

static k2_code code_of_errno(int errnum)
{
    switch (errnum) {
    case ENOSPC:
    case EDQUOT: return K2_NO_SPACE;
    case ENOMEM: return K2_NO_MEMORY;
    case ENOENT:
    case ENOTDIR: return K2_NOT_FOUND;
    case ELOOP:
    case ENAMETOOLONG: return K2_BAD_INPUT; /* a path that never was one */
    case EADDRINUSE: return K2_BUSY;
    default: return K2_IO;
    }
}

k2_code k2_error_errno(k2_error *err, int errnum, const char *fmt, ...)
{
    k2_code code = code_of_errno(errnum);
    if (!err) return code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof err->text) {
        char reason[128];
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", strerror_r(errnum, reason, sizeof reason));
    }
    err->code = code;
    one_line(err->text);
    return code;
}

k2_code k2_error_prefix(k2_error *err, const char *fmt, ...)
{
    if (!err) return K2_INTERNAL;
    char old[K2_ERROR_TEXT_MAX];
    memcpy(old, err->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    size_t room = n >= 0 && (size_t)n < sizeof err->text ? sizeof err->text - (size_t)n : 0;
    if (room > 3) snprintf(err->text + n, room, ": %.*s", (int)room - 3, old);
    one_line(err->text);
    return err->code;
}

_Noreturn void k2_assert_fail(const char *file, int line, const char *expr)
{
    fprintf(stderr, "k2rl: %s:%d: assertion failed: %s\n", file, line, expr);
    fflush(stderr);
    abort();
}
