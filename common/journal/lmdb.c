/* journal on LMDB: one environment in the directory, one transaction (and so one fsync) a batch.
 *
 * Two tables: "records" maps a number to header and bytes; "meta" holds the format and the next number, which must outlive the
 * truncation of all records. The writer's lock is a flock on its own file: the kernel drops it at kill -9, and the number of
 * the process that holds it can be read from the file.
 */
#include "common/journal/journal_int.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT         1u
#define READERS_BYTES  8192  /* of lock.mdb: LMDB's own size for its table of readers */
#define TRUNCATE_SLICE 4096u /* records deleted in one transaction: bounds its dirty pages */

typedef struct store {
    MDB_env *env;
    MDB_dbi records, meta;
    char *dir;
    uint64_t map_bytes;
    int lock_fd;
} store;

typedef struct meta {
    uint64_t format, next_seq;
} meta;

/* LMDB takes a write that was cut short for EIO; the reason - a full disk, a quota, a limit on file sizes - is told to whoever
 * writes next. So write one page more behind the file's end, and take it back. */
static int short_write_reason(const store *s)
{
    static const char page[4096];
    struct stat st;
    int fd;
    if (!s->env || mdb_env_get_fd(s->env, &fd) != 0 || fstat(fd, &st) != 0) return EIO;
    ssize_t n = pwrite(fd, page, sizeof page, st.st_size);
    if (n >= 0 && n < (ssize_t)sizeof page) n = pwrite(fd, page, sizeof page, st.st_size + n);
    int rc = n < 0 ? errno : EIO;
    return ftruncate(fd, st.st_size) == 0 ? rc : errno;
}

static k2_code fail(const store *s, int rc, const char *what, k2_error *err)
{
    if (rc == EIO) rc = short_write_reason(s);
    if (rc == MDB_MAP_FULL)
        return k2_error_set(err, K2_NO_SPACE, "journal %s: %s: the map of %llu bytes is full", s->dir, what,
                            (unsigned long long)s->map_bytes);
    if (rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_INVALID || rc == MDB_VERSION_MISMATCH)
        return k2_error_set(err, K2_CORRUPT, "journal %s: %s: %s", s->dir, what, mdb_strerror(rc));
    if (rc > 0) return k2_error_errno(err, rc, "journal %s: %s", s->dir, what);
    return k2_error_set(err, K2_IO, "journal %s: %s: %s", s->dir, what, mdb_strerror(rc));
}

static k2_code lock_take(store *s, k2_error *err)
{
    char *path = k2_asprintf("%s/writer.lock", s->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    k2_code code = fd < 0 ? k2_error_errno(err, errno, "journal: %s", path) : K2_OK;
    k2_free(path);
    if (code != K2_OK) return code;
    char text[32] = "?";
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        ssize_t n = pread(fd, text, sizeof text - 1, 0);
        text[n > 0 ? n : 0] = 0;
        text[strcspn(text, "\n")] = 0;
        close(fd);
        return k2_error_set(err, K2_BUSY, "run directory in use by pid %s: %s", text[0] ? text : "?", s->dir);
    }
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n) {
        code = k2_error_errno(err, errno, "journal %s: writer.lock", s->dir);
        close(fd);
        return code;
    }
    s->lock_fd = fd;
    return K2_OK;
}

/* Open both tables and read or write `meta`, in one transaction. */
static int tables_open(store *s, meta *m)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc != 0) return rc;
    MDB_val key = {sizeof "meta", (void *)"meta"}, value;
    rc = mdb_dbi_open(txn, "records", MDB_CREATE | MDB_INTEGERKEY, &s->records);
    if (rc == 0) rc = mdb_dbi_open(txn, "meta", MDB_CREATE, &s->meta);
    if (rc == 0) rc = mdb_get(txn, s->meta, &key, &value);
    if (rc == 0 && value.mv_size == sizeof *m) {
        memcpy(m, value.mv_data, sizeof *m);
    } else if (rc == MDB_NOTFOUND) {
        *m = (meta){.format = FORMAT, .next_seq = 1};
        value = (MDB_val){sizeof *m, m};
        rc = mdb_put(txn, s->meta, &key, &value, 0);
    } else if (rc == 0) {
        rc = MDB_INVALID;
    }
    if (rc == 0) return mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return rc;
}

/* LMDB makes its table of readers a hole in a file and writes into it through the map: on a full disk that is a SIGBUS. */
static k2_code readers_reserve(const store *s, k2_error *err)
{
    char *path = k2_asprintf("%s/lock.mdb", s->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644), rc = fd < 0 ? errno : posix_fallocate(fd, 0, READERS_BYTES);
    if (fd >= 0) close(fd);
    if (fd >= 0 && rc != ENOSPC && rc != EDQUOT) rc = 0; /* a file system that cannot say so in advance */
    k2_code code = rc == 0 ? K2_OK : k2_error_errno(err, rc, "journal: %s", path);
    k2_free(path);
    return code;
}

/* LMDB's own list of free pages, which only a writer reads: for each transaction a count and as many page numbers, falling. */
static bool free_list_readable(MDB_txn *txn)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    if (mdb_cursor_open(txn, 0, &cursor) != 0) return false;
    int rc;
    while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
        size_t n = value.mv_size / sizeof(size_t), before = SIZE_MAX, id = 0;
        if (n > 0) memcpy(&id, value.mv_data, sizeof id);
        if (value.mv_size % sizeof id != 0 || n == 0 || id > n - 1) rc = MDB_CORRUPTED;
        for (size_t i = 1, count = id; i <= count && rc == 0; i++, before = id) {
            memcpy(&id, (const char *)value.mv_data + i * sizeof id, sizeof id);
            if (id == 0 || id >= before) rc = MDB_CORRUPTED;
        }
        if (rc != 0) break;
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND;
}

/* Both tables, the meta record and every record by number, each looked up from the root: that way LMDB checks the kind of each
 * page it meets. Nothing is made. */
static bool readable(store *s)
{
    MDB_txn *txn;
    meta m;
    MDB_val key = {sizeof "meta", (void *)"meta"}, value;
    if (mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn) != 0) return false;
    bool ok = mdb_dbi_open(txn, "records", MDB_INTEGERKEY, &s->records) == 0 && mdb_dbi_open(txn, "meta", 0, &s->meta) == 0 &&
              mdb_get(txn, s->meta, &key, &value) == 0 && value.mv_size == sizeof m;
    MDB_stat stat = {0};
    if (ok) memcpy(&m, value.mv_data, sizeof m);
    ok = ok && m.format == FORMAT && mdb_stat(txn, s->records, &stat) == 0 && stat.ms_entries < m.next_seq;
    k2_buf copy;
    k2_buf_init(&copy, K2_JOURNAL_RECORD_MAX + sizeof(k2i_record_header));
    for (uint64_t seq = ok ? m.next_seq - stat.ms_entries : 0; ok && seq < m.next_seq; seq++) {
        k2_journal_record record;
        key = (MDB_val){sizeof seq, &seq};
        ok = mdb_get(txn, s->records, &key, &value) == 0;
        k2_buf_clear(&copy);
        if (ok) k2_buf_append(&copy, value.mv_data, value.mv_size);
        ok = ok && k2i_record_check(s->dir, seq, copy.data, copy.len, &record, NULL) == K2_OK;
    }
    k2_buf_fini(&copy);
    ok = ok && free_list_readable(txn);
    mdb_txn_abort(txn);
    return ok;
}

/* A data.mdb that ends before the last page in use: reading there through the map would be a SIGBUS. LMDB itself leaves such a
 * file when the last pages were taken and given back in one transaction; so the hole is filled with zeros, and the journal is
 * taken only if nothing in it stood there. */
static k2_code cut_refuse(store *s, k2_error *err)
{
    MDB_envinfo info;
    MDB_stat stat;
    struct stat st;
    int fd, rc = mdb_env_info(s->env, &info);
    if (rc == 0) rc = mdb_env_stat(s->env, &stat);
    if (rc == 0) rc = mdb_env_get_fd(s->env, &fd);
    if (rc == 0 && fstat(fd, &st) != 0) rc = errno;
    if (rc != 0) return fail(s, rc, "open", err);
    off_t whole = ((off_t)info.me_last_pgno + 1) * (off_t)stat.ms_psize;
    if (st.st_size >= whole) return K2_OK;
    if (ftruncate(fd, whole) != 0) return fail(s, errno, "open", err);
    if (readable(s)) return K2_OK;
    if (ftruncate(fd, st.st_size) != 0) return fail(s, errno, "open", err);
    return k2_error_set(err, K2_CORRUPT, "journal %s: data.mdb was cut: it has %lld bytes, %lld are in use", s->dir,
                        (long long)st.st_size, (long long)whole);
}

/* The number of the first record, or `next` where there is none. */
static int first_seq(const store *s, uint64_t next, uint64_t *first)
{
    MDB_txn *txn;
    MDB_cursor *cursor;
    MDB_val key, value;
    int rc = mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn);
    if (rc != 0) return rc;
    rc = mdb_cursor_open(txn, s->records, &cursor);
    if (rc == 0) {
        rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
        *first = next;
        if (rc == 0) memcpy(first, key.mv_data, sizeof *first);
        if (rc == MDB_NOTFOUND) rc = 0;
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    return rc;
}

static void lmdb_close(void *arg)
{
    store *s = arg;
    if (s->env) mdb_env_close(s->env);
    if (s->lock_fd >= 0) close(s->lock_fd);
    k2_free(s->dir);
    k2_free(s);
}

static k2_code env_open(store *s, uint64_t *first, uint64_t *next, k2_error *err)
{
    meta m = {0};
    k2_code code = readers_reserve(s, err);
    if (code != K2_OK) return code;
    int rc = mdb_env_create(&s->env);
    if (rc == 0) rc = mdb_env_set_mapsize(s->env, (size_t)s->map_bytes);
    if (rc == 0) rc = mdb_env_set_maxdbs(s->env, 2);
    if (rc == 0) rc = mdb_env_open(s->env, s->dir, MDB_NOTLS, 0644);
    if (rc == 0 && (code = cut_refuse(s, err)) != K2_OK) return code;
    if (rc == 0) rc = tables_open(s, &m);
    if (rc == 0) rc = first_seq(s, m.next_seq, first);
    if (rc != 0) return fail(s, rc, "open", err);
    if (m.format != FORMAT)
        return k2_error_set(err, K2_CORRUPT, "journal %s: format %llu; this program reads %u", s->dir,
                            (unsigned long long)m.format, FORMAT);
    *next = m.next_seq;
    return K2_OK;
}

static k2_code lmdb_open(const k2_journal_config *config, void **out, uint64_t *first, uint64_t *next, k2_error *err)
{
    k2_code code = k2_dir_make(config->dir, err);
    if (code != K2_OK) return code;
    store *s = k2_alloc(sizeof *s);
    s->dir = k2_strdup(config->dir);
    s->map_bytes = (config->map_bytes + 4095) / 4096 * 4096;
    s->lock_fd = -1;
    code = lock_take(s, err);
    char *data = k2_asprintf("%s/data.mdb", s->dir);
    bool locked = code == K2_OK, fresh = !k2_file_exists(data);
    if (code == K2_OK) code = env_open(s, first, next, err);
    if (code != K2_OK) {
        if (locked && fresh) (void)unlink(data); /* half a header (the disk is full): the next start is the first one again */
        lmdb_close(s);
    }
    k2_free(data);
    if (code != K2_OK) return code;
    *out = s;
    return K2_OK;
}

static int put_all(store *s, MDB_txn *txn, const k2_journal_batch *batch)
{
    const char *at = batch->bytes.data;
    for (uint64_t i = 0; i < batch->count; i++) {
        k2i_record_header h;
        memcpy(&h, at, sizeof h);
        MDB_val key = {sizeof h.seq, &h.seq}, value = {sizeof h + h.len, (void *)(uintptr_t)at};
        int rc = mdb_put(txn, s->records, &key, &value, MDB_APPEND);
        if (rc != 0) return rc;
        at += (value.mv_size + 7) / 8 * 8;
    }
    meta m = {.format = FORMAT, .next_seq = batch->first_seq + batch->count};
    MDB_val key = {sizeof "meta", (void *)"meta"}, value = {sizeof m, &m};
    return mdb_put(txn, s->meta, &key, &value, 0);
}

static k2_code lmdb_write(void *arg, const k2_journal_batch *batch, k2_error *err)
{
    store *s = arg;
    MDB_txn *txn;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc == 0) {
        rc = put_all(s, txn, batch);
        if (rc == 0)
            rc = mdb_txn_commit(txn);
        else
            mdb_txn_abort(txn);
    }
    if (rc == 0) return K2_OK;
    if (rc == MDB_MAP_FULL)
        return k2_error_set(err, K2_NO_SPACE,
                            "journal %s: batch of %zu bytes does not fit into map of %llu bytes; raise its size", s->dir,
                            batch->bytes.len, (unsigned long long)s->map_bytes);
    return fail(s, rc, "write", err);
}

/* LMDB's values lie at even addresses; readers get theirs 8-byte aligned, so each goes through `copy`. */
static k2_code read_all(store *s, MDB_cursor *cursor, uint64_t first, uint64_t next, k2i_record_cb *cb, void *arg, k2_buf *copy,
                        k2_error *err)
{
    for (uint64_t seq = first; seq < next; seq++) {
        MDB_val key = {sizeof seq, &seq}, value;
        int rc = mdb_cursor_get(cursor, &key, &value, seq == first ? MDB_SET_KEY : MDB_NEXT);
        if (rc == MDB_NOTFOUND)
            return k2_error_set(err, K2_CORRUPT, "journal %s: record %llu: missing; %llu is the last", s->dir,
                                (unsigned long long)seq, (unsigned long long)next - 1);
        if (rc != 0) return fail(s, rc, "read", err);
        uint64_t found;
        memcpy(&found, key.mv_data, sizeof found);
        if (found != seq)
            return k2_error_set(err, K2_CORRUPT, "journal %s: record %llu: missing; the next one is %llu", s->dir,
                                (unsigned long long)seq, (unsigned long long)found);
        k2_journal_record record;
        k2_buf_clear(copy);
        k2_buf_append(copy, value.mv_data, value.mv_size);
        k2_code code = k2i_record_check(s->dir, seq, copy->data, copy->len, &record, err);
        if (code != K2_OK) return code;
        if (!cb(arg, &record)) break;
    }
    return K2_OK;
}

static k2_code lmdb_read(void *arg, uint64_t first, uint64_t next, k2i_record_cb *cb, void *cb_arg, k2_error *err)
{
    store *s = arg;
    MDB_txn *txn;
    MDB_cursor *cursor;
    int rc = mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn);
    if (rc != 0) return fail(s, rc, "read", err);
    rc = mdb_cursor_open(txn, s->records, &cursor);
    k2_buf copy;
    k2_buf_init(&copy, K2_JOURNAL_RECORD_MAX + sizeof(k2i_record_header));
    k2_code code = rc == 0 ? read_all(s, cursor, first, next, cb, cb_arg, &copy, err) : fail(s, rc, "read", err);
    k2_buf_fini(&copy);
    if (rc == 0) mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    return code;
}

static int delete_slice(store *s, uint64_t from, uint64_t to)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(s->env, NULL, 0, &txn);
    if (rc != 0) return rc;
    for (uint64_t seq = from; rc == 0 && seq < to; seq++) {
        MDB_val key = {sizeof seq, &seq};
        rc = mdb_del(txn, s->records, &key, NULL);
        if (rc == MDB_NOTFOUND) rc = 0; /* done by an interrupted call before */
    }
    if (rc == 0) return mdb_txn_commit(txn);
    mdb_txn_abort(txn);
    return rc;
}

static k2_code lmdb_truncate(void *arg, uint64_t first, uint64_t before, k2_error *err)
{
    store *s = arg;
    for (uint64_t at = first; at < before; at += TRUNCATE_SLICE) {
        int rc = delete_slice(s, at, K2_MIN(at + TRUNCATE_SLICE, before));
        if (rc != 0) return fail(s, rc, "truncate", err);
    }
    return K2_OK;
}

static uint64_t lmdb_used(void *arg)
{
    store *s = arg;
    MDB_envinfo info;
    MDB_stat stat;
    if (mdb_env_info(s->env, &info) != 0 || mdb_env_stat(s->env, &stat) != 0) return 0;
    return ((uint64_t)info.me_last_pgno + 1) * stat.ms_psize;
}

const k2i_journal_ops k2i_journal_lmdb = {
    .name = "lmdb",
    .open = lmdb_open,
    .close = lmdb_close,
    .write = lmdb_write,
    .read = lmdb_read,
    .truncate = lmdb_truncate,
    .used = lmdb_used,
};
