/* Entries of quarantine: whole or not there, the first ones stay, what is damaged is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/quarantine/quarantine.h"

static char run_dir[] = "/tmp/k2rl-quarantine-XXXXXX";

static int setup(void **state)
{
    (void)state;
    memcpy(run_dir + sizeof run_dir - 7, "XXXXXX", 6);
    return mkdtemp(run_dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return k2_dir_remove(run_dir, NULL) == K2_OK ? 0 : -1;
}

static k2_code begin(k2_quarantine_kind kind, uint64_t number, k2_quarantine **q, k2_error *err)
{
    return k2_quarantine_begin(run_dir, kind, number, 2, q, err);
}

static char *make(k2_quarantine_kind kind, uint64_t number)
{
    k2_quarantine *q;
    char *path = NULL;
    k2_quarantine_note note = {.kind = kind,
                               .number = number,
                               .seed = UINT64_MAX,
                               .batch_first = 7,
                               .batch_last = 9,
                               .weights = {1, 2},
                               .result = {3, 4},
                               .deaths = 3,
                               .error = "a \"quoted\" reason"};
    assert_int_equal(begin(kind, number, &q, NULL), K2_OK);
    assert_int_equal(k2_quarantine_put(q, "config.json", "{}", 2, NULL), K2_OK);
    assert_int_equal(k2_quarantine_put_batch(q, 7, "bytes", 5, NULL), K2_OK);
    assert_int_equal(k2_quarantine_commit(q, &note, &path, NULL), K2_OK);
    return path;
}

static void round_trip(void **state)
{
    (void)state;
    for (int kind = 0; kind < K2_QUARANTINE_KIND_COUNT; kind++) {
        k2_quarantine_note n;
        char *path = make((k2_quarantine_kind)kind, 1ull << 63 | 5), *batch = k2_quarantine_batch_path(path, 7);
        assert_int_equal(k2_quarantine_read(path, &n, NULL), K2_OK);
        assert_true(n.kind == (k2_quarantine_kind)kind && n.number == (1ull << 63 | 5) && n.seed == UINT64_MAX);
        assert_true(n.batch_first == 7 && n.batch_last == 9 && n.deaths == 3 && n.weights.lo == 2 && n.result.hi == 3);
        assert_string_equal(n.error, "a \"quoted\" reason");
        assert_true(k2_file_exists(batch));
        assert_int_equal(k2_dir_remove(path, NULL), K2_OK);
        k2_free(batch);
        k2_free(path);
    }
}

static void first_ones_stay(void **state)
{
    (void)state;
    k2_quarantine *q;
    k2_error err;
    k2_free(make(K2_QUARANTINE_STEP, 1));
    assert_int_equal(begin(K2_QUARANTINE_STEP, 1, &q, &err), K2_CANCELED);
    assert_int_equal(begin(K2_QUARANTINE_PROMPT, 1, &q, &err), K2_OK);
    k2_quarantine_drop(q); /* nothing is left of it */
    k2_free(make(K2_QUARANTINE_PROMPT, 1));
    assert_int_equal(begin(K2_QUARANTINE_STEP, 2, &q, &err), K2_LIMIT);
    assert_non_null(strstr(err.text, "holds 2 entries already (policy.kept)"));
}

/* The checkpoint may go: the entry's names hold its content. */
static void start_is_linked(void **state)
{
    (void)state;
    char *from = k2_asprintf("%s/step_7", run_dir), *file = k2_asprintf("%s/step_7/model.safetensors", run_dir), *text;
    size_t n;
    k2_quarantine *q;
    k2_error err;
    k2_quarantine_note note = {.kind = K2_QUARANTINE_PROMPT, .number = 3, .error = "x"};
    assert_int_equal(k2_dir_make(from, NULL), K2_OK);
    assert_int_equal(k2_file_write_atomic(file, "weights", 7, NULL), K2_OK);
    assert_int_equal(begin(K2_QUARANTINE_PROMPT, 3, &q, NULL), K2_OK);
    assert_int_equal(k2_quarantine_link_start(q, from, &err), K2_OK);
    char *path;
    assert_int_equal(k2_quarantine_commit(q, &note, &path, NULL), K2_OK);
    assert_int_equal(k2_dir_remove(from, NULL), K2_OK);
    char *linked = k2_quarantine_path(path, "start/model.safetensors");
    assert_int_equal(k2_file_read(linked, 100, &text, &n, NULL), K2_OK);
    assert_string_equal(text, "weights");
    assert_int_equal(begin(K2_QUARANTINE_PROMPT, 4, &q, NULL), K2_OK);
    assert_int_equal(k2_quarantine_link_start(q, from, &err), K2_NOT_FOUND);
    k2_quarantine_drop(q);
    k2_free(text);
    k2_free(linked);
    k2_free(path);
    k2_free(file);
    k2_free(from);
}

static void damage_is_named(void **state)
{
    (void)state;
    static const char *const swaps[][2] = {{"k2rl-quarantine-1", "format"},
                                           {"\"step\": \"5\"", "step"},
                                           {"\"7\"", "batch_first"},
                                           {"\"9\"", "batch_last"},
                                           {"\"weights_digest\": \"00", "weights_digest"},
                                           {"\"error\"", "error"}};
    char *dir = make(K2_QUARANTINE_STEP, 5), *path = k2_quarantine_path(dir, K2_QUARANTINE_NOTE), *text;
    size_t n;
    k2_error err;
    k2_quarantine_note note;
    assert_int_equal(k2_file_read(path, 10000, &text, &n, NULL), K2_OK);
    for (size_t i = 0; i < K2_COUNT(swaps); i++) {
        char *bad = k2_strdup(text);
        memset(strstr(bad, swaps[i][0]) + strlen(swaps[i][0]) - 2, '~', 1);
        assert_int_equal(k2_file_write_atomic(path, bad, n, NULL), K2_OK);
        assert_int_equal(k2_quarantine_read(dir, &note, &err), K2_BAD_INPUT);
        if (!strstr(err.text, swaps[i][1])) fail_msg("%s: not named in '%s'", swaps[i][1], err.text);
        k2_free(bad);
    }
    for (size_t cut = 0; cut + 2 < n; cut++) { /* the last two are the brace and the line's end */
        assert_int_equal(k2_file_write_atomic(path, text, cut, NULL), K2_OK);
        assert_int_equal(k2_quarantine_read(dir, &note, &err), K2_BAD_INPUT);
    }
    k2_free(text);
    k2_free(path);
    k2_free(dir);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {CASE(round_trip), CASE(first_ones_stay), CASE(start_is_linked), CASE(damage_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
