/* Strings: strict numbers, names of signals, and the nearest word for "did you mean". */
#include "common/base/base.h"

#include <stdio.h>
#include <string.h>

bool k2_str_u64(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

const char *k2_signal_name(int signum, char out[K2_SIGNAL_NAME_MAX])
{
    const char *name = sigabbrev_np(signum);
    if (name)
        snprintf(out, K2_SIGNAL_NAME_MAX, "SIG%s", name);
    else
        snprintf(out, K2_SIGNAL_NAME_MAX, "signal %d", signum);
    return out;
}

#define WORD_MAX 64u /* longer words get no suggestion */

/* Edits (insert, delete, replace) from a to b; one row of the usual table at a time. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[WORD_MAX + 1];
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = K2_MIN(replaced, K2_MIN(row[j] + 1, row[j - 1] + 1));
        }
    }
    return row[m];
}

const char *k2_str_nearest(const char *word, const char *const *candidates, size_t count)
{
    size_t len = strlen(word), best = len / 2 + 1;
    const char *nearest = NULL;
    if (len > WORD_MAX) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (strlen(candidates[i]) > WORD_MAX) continue;
        size_t d = edit_distance(word, candidates[i]);
        if (d < best) {
            best = d;
            nearest = candidates[i];
        }
    }
    return nearest;
}
