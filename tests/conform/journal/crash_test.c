/* The journal on disk against kill -9 and against damaged records.
 *
 * A child commits batches and tells each committed number through a pipe; the parent kills it after some of them. What was told
 * must be there, whole, in order; what follows must be whole batches.
 */
#include "common/journal/journal.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <lmdb.h>

#define BATCH 8u

static k2_journal *open_or_fail(const char *dir)
{
    k2_error err = {0};
    k2_journal *j = NULL;
    k2_journal_config c = {.kind = K2_JOURNAL_LMDB, .dir = dir, .map_bytes = 64 << 20};
    if (k2_journal_open(&c, &j, &err) != K2_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return j;
}

static void write_forever(const char *dir, int out)
{
    k2_journal *j = open_or_fail(dir);
    for (;;) {
        for (uint32_t i = 0; i < BATCH; i++) {
            uint64_t words[40], seq = k2_journal_next_seq(j);
            for (size_t k = 0; k < K2_COUNT(words); k++) words[k] = seq * 1000 + k;
            if (k2_journal_append(j, 5, words, sizeof words, NULL, NULL) != K2_OK) _exit(3);
        }
        if (k2_journal_commit(j, NULL) != K2_OK) _exit(4);
        uint64_t durable = k2_journal_durable_seq(j);
        if (write(out, &durable, sizeof durable) != sizeof durable) _exit(5);
    }
}

static bool check(void *arg, const k2_journal_record *r)
{
    uint64_t *last = arg, words[40];
    assert_int_equal(r->seq, *last + 1);
    assert_int_equal(r->len, sizeof words);
    memcpy(words, r->bytes, sizeof words);
    for (size_t k = 0; k < K2_COUNT(words); k++) assert_int_equal(words[k], r->seq * 1000 + k);
    *last = r->seq;
    return true;
}

static void committed_records_survive_kill(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2journal.XXXXXX";
    assert_non_null(mkdtemp(dir));
    uint64_t told = 0;
    for (int round = 0; round < 5; round++) {
        int fds[2];
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) write_forever(dir, fds[1]);
        close(fds[1]);
        for (int i = 0; i < 3 + round * 4; i++) assert_int_equal(read(fds[0], &told, sizeof told), sizeof told);
        kill(pid, SIGKILL);
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        while (read(fds[0], &told, sizeof told) == sizeof told) {
        }
        close(fds[0]);
        k2_journal *j = open_or_fail(dir);
        uint64_t last = 0;
        assert_int_equal(k2_journal_read(j, 0, check, &last, NULL), K2_OK);
        assert_true(last >= told);
        assert_int_equal(last % BATCH, 0);
        k2_journal_close(j);
    }
    k2_dir_remove(dir, NULL);
}

/* Change one byte of a record behind LMDB's back, as a bad disk would. */
static void damage(const char *dir, uint64_t seq, bool remove)
{
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    assert_int_equal(mdb_env_create(&env), 0);
    mdb_env_set_maxdbs(env, 2);
    assert_int_equal(mdb_env_open(env, dir, MDB_NOTLS, 0644), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, "records", MDB_INTEGERKEY, &dbi), 0);
    MDB_val key = {sizeof seq, &seq}, value;
    assert_int_equal(mdb_get(txn, dbi, &key, &value), 0);
    if (remove) {
        assert_int_equal(mdb_del(txn, dbi, &key, NULL), 0);
    } else {
        char copy[1024];
        size_t n = value.mv_size;
        memcpy(copy, value.mv_data, n);
        copy[n / 2] ^= 1;
        value = (MDB_val){n, copy};
        assert_int_equal(mdb_put(txn, dbi, &key, &value, 0), 0);
    }
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

static void damage_is_found_with_its_number(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2journal.XXXXXX";
    assert_non_null(mkdtemp(dir));
    k2_journal *j = open_or_fail(dir);
    for (uint64_t seq = 1; seq <= 30; seq++) {
        uint64_t words[40];
        for (size_t k = 0; k < K2_COUNT(words); k++) words[k] = seq * 1000 + k;
        assert_int_equal(k2_journal_append(j, 5, words, sizeof words, NULL, NULL), K2_OK);
    }
    assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    k2_journal_close(j);
    damage(dir, 21, true);
    j = open_or_fail(dir);
    uint64_t last = 0;
    k2_error err = {0};
    assert_int_equal(k2_journal_read(j, 0, check, &last, &err), K2_CORRUPT);
    assert_int_equal(last, 20);
    assert_non_null(strstr(err.text, "record 21: missing"));
    k2_journal_close(j);
    damage(dir, 7, false);
    j = open_or_fail(dir);
    last = 0;
    assert_int_equal(k2_journal_read(j, 0, check, &last, &err), K2_CORRUPT);
    assert_int_equal(last, 6);
    assert_non_null(strstr(err.text, "record 7: its hash does not match"));
    k2_journal_close(j);
    k2_dir_remove(dir, NULL);
}

static void foreign_files_are_refused(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2journal.XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/data.mdb", dir);
    static const char junk[8192] = "this is no journal";
    assert_int_equal(k2_file_write_atomic(path, junk, sizeof junk, NULL), K2_OK);
    k2_journal *j = NULL;
    k2_error err = {0};
    k2_journal_config c = {.kind = K2_JOURNAL_LMDB, .dir = dir, .map_bytes = 64 << 20};
    assert_int_equal(k2_journal_open(&c, &j, &err), K2_CORRUPT);
    k2_free(path);
    k2_dir_remove(dir, NULL);
}

static bool count(void *arg, const k2_journal_record *r)
{
    *(uint64_t *)arg = r->seq;
    return true;
}

/* Cut at every byte of the last record, and at other places: an error, never a signal, never fewer records than were committed;
 * and the file is left as it was found. */
static void a_cut_file_is_refused(void **state)
{
    (void)state;
    enum { LAST = 2500 };
    char memory[] = "/dev/shm/k2journal.XXXXXX", disk[] = "/tmp/k2journal.XXXXXX", *dir = mkdtemp(memory);
    if (!dir) dir = mkdtemp(disk);
    assert_non_null(dir);
    k2_journal *j = open_or_fail(dir);
    static char words[LAST];
    memset(words, 7, sizeof words);
    for (uint64_t seq = 1; seq <= 300; seq++) {
        assert_int_equal(k2_journal_append(j, 5, words, seq < 300 ? 320 : LAST, NULL, NULL), K2_OK);
        if (seq % 10 == 0) assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
    }
    k2_journal_close(j);
    char *path = k2_asprintf("%s/data.mdb", dir), *whole;
    size_t size, refused = 0;
    assert_int_equal(k2_file_read(path, 64 << 20, &whole, &size, NULL), K2_OK);
    k2_journal_config c = {.kind = K2_JOURNAL_LMDB, .dir = dir, .map_bytes = 64 << 20};
    const char *record = memmem(whole, size, words, LAST);
    assert_non_null(record);
    size_t from = (size_t)(record - whole), to = from + LAST;
    for (size_t cut = size - 1; cut > 0; cut -= cut > from && cut <= to ? 1 : K2_MIN(cut, 500)) {
        if (cut > to && cut < to + 500) cut = to - 1;
        assert_int_equal(truncate(path, (off_t)cut), 0);
        k2_error err = {0};
        uint64_t last = 0;
        if (k2_journal_open(&c, &j, &err) == K2_OK) { /* what is gone was free space, or zeros */
            assert_int_equal(k2_journal_durable_seq(j), 300);
            assert_int_equal(k2_journal_read(j, 0, count, &last, &err), K2_OK);
            assert_int_equal(last, 300);
            assert_true(cut >= to);
            k2_journal_close(j);
            continue;
        }
        refused++;
        assert_int_equal(err.code, K2_CORRUPT);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, cut);
    }
    assert_true(refused >= LAST);
    int fd = open(path, O_WRONLY | O_TRUNC);
    assert_int_equal(write(fd, whole, size), size);
    close(fd);
    j = open_or_fail(dir);
    assert_int_equal(k2_journal_durable_seq(j), 300);
    k2_journal_close(j);
    k2_free(whole);
    k2_free(path);
    k2_dir_remove(dir, NULL);
}

/* A limit on file sizes in the middle of a batch's pages cuts LMDB's write short, as a disk that becomes full there does: LMDB
 * calls that an I/O error, the journal gives the system's reason; nothing committed is lost, and with room it goes on. */
static void a_short_write_tells_its_reason(void **state)
{
    (void)state;
    char dir[] = "/tmp/k2journal.XXXXXX";
    assert_non_null(mkdtemp(dir));
    char *path = k2_asprintf("%s/data.mdb", dir);
    struct rlimit free_limit, tight;
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR && getrlimit(RLIMIT_FSIZE, &free_limit) == 0);
    static char bytes[3000];
    for (rlim_t room = 0; room <= 3 * 4096; room += 1024) {
        k2_journal *j = open_or_fail(dir);
        assert_int_equal(k2_journal_append(j, 5, bytes, sizeof bytes, NULL, NULL), K2_OK);
        assert_int_equal(k2_journal_commit(j, NULL), K2_OK);
        uint64_t durable = k2_journal_durable_seq(j), last = 0;
        struct stat st;
        k2_error err = {0};
        assert_int_equal(stat(path, &st), 0);
        tight = (struct rlimit){.rlim_cur = (rlim_t)st.st_size + room, .rlim_max = free_limit.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
        for (int i = 0; i < 40; i++) assert_int_equal(k2_journal_append(j, 5, bytes, sizeof bytes, NULL, NULL), K2_OK);
        k2_code code = k2_journal_commit(j, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &free_limit), 0);
        k2_journal_close(j);
        assert_int_not_equal(code, K2_OK);
        if (!strstr(err.text, strerror(EFBIG))) fail_msg("with room for %lu bytes it says: %s", (unsigned long)room, err.text);
        j = open_or_fail(dir);
        assert_int_equal(k2_journal_durable_seq(j), durable);
        assert_int_equal(k2_journal_read(j, 0, count, &last, NULL), K2_OK);
        assert_int_equal(last, durable);
        k2_journal_close(j);
    }
    k2_free(path);
    k2_dir_remove(dir, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(committed_records_survive_kill),
                                       cmocka_unit_test(damage_is_found_with_its_number),
                                       cmocka_unit_test(foreign_files_are_refused), cmocka_unit_test(a_cut_file_is_refused),
                                       cmocka_unit_test(a_short_write_tells_its_reason)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
