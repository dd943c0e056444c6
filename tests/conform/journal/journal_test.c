/* One suite for every kind of journal: numbering, order, group commit, atomic batches, truncation, locks, limits. */
#include "common/journal/journal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct fixture {
    k2_journal_kind kind;
    char dir[64];
    k2_journal_memory memory;
    uint64_t map_bytes;
} fixture;

static int setup(void **state)
{
    k2_journal_kind kind = (k2_journal_kind)(uintptr_t)*state;
    fixture *f = calloc(1, sizeof *f);
    f->kind = kind;
    f->map_bytes = 64 << 20;
    strcpy(f->dir, "/tmp/k2journal.XXXXXX");
    *state = f;
    return mkdtemp(f->dir) ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    k2_dir_remove(f->dir, NULL);
    k2_journal_memory_fini(&f->memory);
    free(f);
    return 0;
}

static k2_code open_code(fixture *f, k2_journal **j, k2_error *err)
{
    k2_journal_config c = {.kind = f->kind, .dir = f->dir, .map_bytes = f->map_bytes, .memory = &f->memory};
    return k2_journal_open(&c, j, err);
}

static k2_journal *reopen(fixture *f, k2_journal *old)
{
    k2_error err = {0};
    k2_journal_close(old);
    k2_journal *j = NULL;
    if (open_code(f, &j, &err) != K2_OK) fail_msg("%s", err.text);
    return j;
}

typedef struct reading {
    uint64_t next, count, stop_after, sum;
} reading;

static bool check_record(void *arg, const k2_journal_record *r)
{
    reading *w = arg;
    if (w->next) assert_int_equal(r->seq, w->next);
    w->next = r->seq + 1;
    w->count++;
    assert_int_equal(r->type, r->seq % 7);
    assert_int_equal(r->len, r->seq * 13 % 257);
    for (size_t i = 0; i < r->len; i++) assert_int_equal(((const unsigned char *)r->bytes)[i], (r->seq + i) & 0xff);
    return w->count != w->stop_after;
}

static void append_n(k2_journal *j, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        unsigned char bytes[257];
        uint64_t seq = k2_journal_next_seq(j), got;
        size_t len = seq * 13 % 257;
        for (size_t k = 0; k < len; k++) bytes[k] = (unsigned char)(seq + k);
        assert_int_equal(k2_journal_append(j, (uint32_t)(seq % 7), bytes, len, &got, NULL), K2_OK);
        assert_int_equal(got, seq);
    }
}

static uint64_t count_from(k2_journal *j, uint64_t from)
{
    reading w = {.next = from};
    k2_error err = {0};
    if (k2_journal_read(j, from, check_record, &w, &err) != K2_OK) fail_msg("%s", err.text);
    return w.count;
}

static void records_come_back_in_order(void **state)
{
    fixture *f = *state;
    k2_journal *j = reopen(f, NULL);
    assert_int_equal(k2_journal_next_seq(j), 1);
    assert_int_equal(count_from(j, 0), 0);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK); /* nothing pending */
    append_n(j, 300);
    assert_int_equal(count_from(j, 0), 0); /* not durable yet */
    assert_true(k2_journal_pending(j) > 0);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    assert_int_equal(k2_journal_pending(j), 0);
    assert_int_equal(k2_journal_durable_seq(j), 300);
    append_n(j, 50);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    append_n(j, 9); /* never committed: gone after the reopening */
    j = reopen(f, j);
    assert_int_equal(k2_journal_next_seq(j), 351);
    assert_int_equal(count_from(j, 0), 350);
    assert_int_equal(count_from(j, 351), 0);
    assert_int_equal(count_from(j, 200), 151);
    reading w = {.stop_after = 5};
    assert_int_equal(k2_journal_read(j, 0, check_record, &w, NULL), K2_OK);
    assert_int_equal(w.count, 5);
    k2_journal_close(j);
}

static void batches_are_sealed_while_others_collect(void **state)
{
    fixture *f = *state;
    k2_journal *j = reopen(f, NULL);
    append_n(j, 3);
    k2_journal_batch *a = k2_journal_seal(j);
    append_n(j, 4);
    k2_journal_batch *b = k2_journal_seal(j);
    assert_null(k2_journal_seal(j));
    append_n(j, 1);
    assert_int_equal(k2_journal_write(j, a, NULL), K2_OK);
    assert_int_equal(k2_journal_durable_seq(j), 3);
    assert_int_equal(k2_journal_write(j, b, NULL), K2_OK);
    assert_int_equal(k2_journal_durable_seq(j), 7);
    j = reopen(f, j);
    assert_int_equal(count_from(j, 0), 7);
    k2_journal_close(j);
}

static void truncation_keeps_numbers(void **state)
{
    fixture *f = *state;
    k2_journal *j = reopen(f, NULL);
    append_n(j, 10000);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    assert_int_equal(k2_journal_truncate_before(j, 9001, NULL), K2_OK);
    assert_int_equal(k2_journal_first_seq(j), 9001);
    assert_int_equal(k2_journal_truncate_before(j, 100, NULL), K2_OK); /* long gone */
    assert_int_equal(k2_journal_truncate_before(j, 10002, NULL), K2_BAD_INPUT);
    assert_int_equal(count_from(j, 0), 1000);
    j = reopen(f, j);
    assert_int_equal(count_from(j, 0), 1000);
    assert_int_equal(k2_journal_truncate_before(j, 10001, NULL), K2_OK);
    j = reopen(f, j);
    assert_int_equal(count_from(j, 0), 0);
    assert_int_equal(k2_journal_next_seq(j), 10001);
    assert_int_equal(k2_journal_first_seq(j), 10001);
    append_n(j, 2);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    j = reopen(f, j);
    assert_int_equal(count_from(j, 0), 2);
    k2_journal_close(j);
}

static void one_writer(void **state)
{
    fixture *f = *state;
    k2_journal *j = reopen(f, NULL), *other = NULL;
    k2_error err = {0};
    assert_int_equal(open_code(f, &other, &err), K2_BUSY);
    assert_null(other);
    assert_non_null(strstr(err.text, "run directory in use by "));
    assert_int_equal(k2_code_exit(err.code), 2);
    j = reopen(f, j);
    k2_journal_close(j);
}

static void no_space_loses_nothing_committed(void **state)
{
    fixture *f = *state;
    f->map_bytes = 1 << 20;
    k2_journal *j = reopen(f, NULL);
    append_n(j, 100);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    static char big[2 << 20];
    k2_error err = {0};
    assert_int_equal(k2_journal_append(j, 1, big, sizeof big, NULL, NULL), K2_OK);
    assert_int_equal(k2_journal_commit(j, &err), K2_NO_SPACE);
    assert_non_null(strstr(err.text, "does not fit into map of 1048576 bytes"));
    append_n(j, 1);
    assert_int_equal(k2_journal_commit(j, &err), K2_NO_SPACE); /* stays refused: a gap would be worse */
    assert_int_equal(count_from(j, 0), 100);
    f->map_bytes = 16 << 20;
    j = reopen(f, j);
    assert_int_equal(count_from(j, 0), 100);
    append_n(j, 100);
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    assert_int_equal(count_from(j, 0), 200);
    k2_journal_close(j);
}

static void space_is_reused(void **state)
{
    fixture *f = *state;
    f->map_bytes = 4 << 20;
    k2_journal *j = reopen(f, NULL);
    static char big[256 << 10];
    for (uint64_t i = 0; i < 64; i++) { /* 16 MiB through a map of 4 */
        uint64_t seq;
        assert_int_equal(k2_journal_append(j, 1, big, sizeof big, &seq, NULL), K2_OK);
        assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
        assert_int_equal(k2_journal_truncate_before(j, seq, NULL), K2_OK);
    }
    assert_true(k2_journal_map_used(j) <= f->map_bytes);
    k2_journal_close(j);
}

static void limits(void **state)
{
    fixture *f = *state;
    k2_journal *j = reopen(f, NULL);
    static char some[K2_JOURNAL_RECORD_MAX + 1];
    k2_error err = {0};
    assert_int_equal(k2_journal_append(j, 1, some, sizeof some, NULL, &err), K2_LIMIT);
    for (int i = 0; i < 3; i++) assert_int_equal(k2_journal_append(j, 1, some, K2_JOURNAL_RECORD_MAX, NULL, &err), K2_OK);
    assert_int_equal(k2_journal_append(j, 1, some, K2_JOURNAL_RECORD_MAX, NULL, &err), K2_FULL);
    k2_journal_close(j);
    f->map_bytes = 4096;
    assert_int_equal(open_code(f, &j, &err), K2_BAD_INPUT);
}

#define SUITE(kind)                                                                                                            \
    {#kind " records_come_back_in_order", records_come_back_in_order, setup, teardown, (void *)(kind)},                        \
        {#kind " batches_are_sealed", batches_are_sealed_while_others_collect, setup, teardown, (void *)(kind)},               \
        {#kind " truncation_keeps_numbers", truncation_keeps_numbers, setup, teardown, (void *)(kind)},                        \
        {#kind " one_writer", one_writer, setup, teardown, (void *)(kind)},                                                    \
        {#kind " no_space_loses_nothing", no_space_loses_nothing_committed, setup, teardown, (void *)(kind)},                  \
        {#kind " space_is_reused", space_is_reused, setup, teardown, (void *)(kind)},                                          \
    {                                                                                                                          \
#kind " limits", limits, setup, teardown, (void *)(kind)                                                               \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {SUITE(K2_JOURNAL_LMDB), SUITE(K2_JOURNAL_MEMORY)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
