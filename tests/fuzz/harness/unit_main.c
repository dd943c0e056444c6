/* The unit test of a family, over its corpus: every seed and its beginnings between guard pages; every split point of streams.
 *
 * Of a seed up to PREFIXES_MAX bytes all beginnings are read, of a longer one those near its ends and evenly spread ones.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "guard.h"
#include "parser.h"

#define PREFIXES_MAX 1024u
#define SEEDS_MAX    1024u

typedef struct seed {
    char name[256];
    uint8_t *bytes;
    size_t n;
} seed;

static seed seeds[SEEDS_MAX];
static size_t seed_count;

static int load(void **state)
{
    (void)state;
    DIR *d = opendir(K2_CORPUS);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        K2_ASSERT(seed_count < SEEDS_MAX);
        seed *s = &seeds[seed_count++];
        snprintf(s->name, sizeof s->name, "%s", e->d_name);
        char *path = k2_asprintf("%s/%s", K2_CORPUS, e->d_name), *bytes;
        if (k2_file_read(path, K2_GUARD_BYTES / 2, &bytes, &s->n, NULL) != K2_OK) return -1;
        s->bytes = (uint8_t *)bytes;
        k2_free(path);
    }
    closedir(d);
    return seed_count ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    for (size_t i = 0; i < seed_count; i++) k2_free(seeds[i].bytes);
    return 0;
}

/* The beginning that is read after the one of n bytes. */
static size_t next_prefix(size_t n, size_t whole)
{
    const size_t near = PREFIXES_MAX / 4;
    if (whole <= PREFIXES_MAX || n < near || whole - n <= near) return n + 1;
    return K2_MIN(n + K2_MAX(whole / (2 * near), 1), whole - near);
}

/* Whether only white space was cut off. */
static bool blank(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!memchr(" \t\r\n", bytes[i], 4)) return false;
    return true;
}

static void check_seed(const k2_parser *p, const seed *s, size_t *taken)
{
    const bool whole = k2_parser_whole(p, true, s->bytes, s->n);
    *taken += whole;
    if (k2_parser_whole(p, false, s->bytes, s->n) != whole) fail_msg("%s, %s: depends on where it lies", p->name, s->name);
    for (size_t n = 0; n < s->n; n = next_prefix(n, s->n)) {
        const bool part = k2_parser_whole(p, true, s->bytes, n);
        if (k2_parser_whole(p, false, s->bytes, n) != part)
            fail_msg("%s, %s, %zu bytes: depends on where it lies", p->name, s->name, n);
        if (whole && part && p->prefixes_refused && !blank(s->bytes + n, s->n - n))
            fail_msg("%s, %s: %zu of its %zu bytes are accepted as a whole", p->name, s->name, n, s->n);
    }
}

static void seeds_and_their_beginnings(void **state)
{
    const k2_parser *p = *state;
    size_t taken = 0;
    for (size_t i = 0; i < seed_count; i++) check_seed(p, &seeds[i], &taken);
    if (taken == 0) fail_msg("%s: accepts no seed of %s: the test has not seen a valid input", p->name, K2_CORPUS);
}

static void every_split_point(void **state)
{
    const k2_parser *p = *state;
    char why[256];
    if (!p->stream) return;
    for (size_t i = 0; i < seed_count; i++) {
        const seed *s = &seeds[i];
        for (size_t first = 1; first < s->n; first = next_prefix(first, s->n))
            if (!k2_parser_same(p, s->bytes, s->n, first, s->n, why)) fail_msg("%s: %s", s->name, why);
        if (!k2_parser_same(p, s->bytes, s->n, 1, 1, why)) fail_msg("%s: %s", s->name, why);
    }
}

int main(void)
{
    struct CMUnitTest tests[2 * 16];
    char names[2 * 16][64];
    size_t count = 0;
    K2_ASSERT(2 * k2_parsers_count <= K2_COUNT(tests));
    for (size_t i = 0; i < k2_parsers_count; i++) {
        const k2_parser *p = &k2_parsers[i];
        K2_ASSERT(!p->take != !p->stream);
        snprintf(names[count], sizeof names[0], "%s: seeds and their beginnings", p->name);
        tests[count] = (struct CMUnitTest){names[count], seeds_and_their_beginnings, NULL, NULL, (void *)(uintptr_t)p};
        count++;
        if (!p->stream) continue;
        snprintf(names[count], sizeof names[0], "%s: every split point", p->name);
        tests[count] = (struct CMUnitTest){names[count], every_split_point, NULL, NULL, (void *)(uintptr_t)p};
        count++;
    }
    return _cmocka_run_group_tests("parsers", tests, count, load, unload);
}
