/* journal - durable records in one order, with group commit.
 *
 * Nouns: a *record* is a type, a sequence number and bytes; sequence numbers start at 1, rise by one and are never reused. A
 * *batch* is what was appended since the last seal; it becomes durable as a whole or not at all. One process writes a journal:
 * the directory is locked from open to close, and the kernel drops the lock when the process dies, however it dies.
 *
 *     append append append ── seal ──> batch ── write (one transaction, fsync) ──> durable
 *
 * Lifetime: everything that a callback gets is valid only inside the callback. A journal is used by one thread, except that
 * k2_journal_write, k2_journal_truncate_before may run on one other thread while append and seal go on: a loop keeps collecting
 * records for the next batch while a worker waits for the disk.
 */
#ifndef K2_COMMON_JOURNAL_H
#define K2_COMMON_JOURNAL_H

#include "common/base/base.h"

#define K2_JOURNAL_RECORD_MAX (64u << 20)  /* bytes of one record: the longest chunk with room; larger ones are LIMIT */
#define K2_JOURNAL_PENDING_MAX (256u << 20) /* bytes appended and not yet sealed: past it append answers FULL */

typedef struct k2_journal k2_journal;
typedef struct k2_journal_batch k2_journal_batch;

typedef enum k2_journal_kind {
    K2_JOURNAL_LMDB,  /* one LMDB environment in `dir`, one fsync'd transaction a batch */
    K2_JOURNAL_MEMORY /* for tests: lives as long as a k2_journal_memory, so "crash and reopen" works without a disk */
} k2_journal_kind;

/* What survives a crash of a journal of kind MEMORY. Zero-initialise; release with k2_journal_memory_fini. */
typedef struct k2_journal_memory {
    struct k2_journal_memory_record *records;
    size_t count, capacity, bytes;
    uint64_t first_seq, next_seq;
    bool locked;
} k2_journal_memory;
void k2_journal_memory_fini(k2_journal_memory *m);

typedef struct k2_journal_config {
    k2_journal_kind kind;
    const char *dir;           /* LMDB: made when missing; data.mdb, lock.mdb and writer.lock live in it */
    uint64_t map_bytes;        /* the most the journal may take; rounded up to pages; at least 1 MiB */
    k2_journal_memory *memory; /* MEMORY */
} k2_journal_config;

/* One record as a reader sees it. */
typedef struct k2_journal_record {
    uint64_t seq;
    uint32_t type;
    const void *bytes; /* 8-byte aligned */
    size_t len;
} k2_journal_record;

/* k2_journal_open - take the writer's lock and open or create the journal.
 *
 * errors   BUSY "run directory in use by pid N: DIR"; BAD_INPUT for a map below 1 MiB; CORRUPT where the files are not a
 *          journal of this format; IO, NO_SPACE from the system
 * tests    tests/conform/journal/journal_test.c
 */
k2_code k2_journal_open(const k2_journal_config *config, k2_journal **out, k2_error *err);

/* Drops what was not written, releases the lock. NULL is OK. No write may be running. */
void k2_journal_close(k2_journal *j);

/* k2_journal_append - add one record to the batch that is being collected.
 *
 * memory   copies the bytes; nothing is durable before the batch is written
 * errors   LIMIT for a record above K2_JOURNAL_RECORD_MAX, FULL when K2_JOURNAL_PENDING_MAX bytes wait; *seq may be NULL
 */
k2_code k2_journal_append(k2_journal *j, uint32_t type, const void *bytes, size_t len, uint64_t *seq, k2_error *err);

/* Bytes and records appended and not sealed. */
size_t k2_journal_pending(const k2_journal *j);

/* k2_journal_seal - close the batch that is being collected and give it out; later appends go to the next one.
 *
 * memory   NULL when nothing is pending; otherwise the caller must pass it to k2_journal_write, batches in the order of sealing
 */
k2_journal_batch *k2_journal_seal(k2_journal *j);

/* k2_journal_write - make one sealed batch durable: after OK it survives kill -9 and loss of power, before it nothing of it is
 * there.
 *
 * memory   frees the batch, also on error
 * errors   NO_SPACE "journal DIR: batch of N bytes does not fit into map of M bytes ...": all earlier batches stand, this one
 *          is lost and the journal refuses further writes with the same error (a gap would be worse); IO likewise
 * threads  one writer at a time
 */
k2_code k2_journal_write(k2_journal *j, k2_journal_batch *batch, k2_error *err);

/* Seal and write. OK when nothing is pending. */
k2_code k2_journal_commit(k2_journal *j, k2_error *err);

/* k2_journal_read - call `cb` for every durable record from `from_seq` (0 = the first) in order; it returns false to stop
 * early.
 *
 * errors   CORRUPT "journal DIR: record N: ..." at the first record whose hash, length or number is wrong; the records before
 *          it have been delivered
 */
k2_code k2_journal_read(k2_journal *j, uint64_t from_seq, bool (*cb)(void *arg, const k2_journal_record *r), void *arg,
                        k2_error *err);

/* k2_journal_truncate_before - forget every durable record below `seq`, durably. Space is reused by later batches.
 *
 * errors   BAD_INPUT where seq is past the durable end + 1; below the first record is OK and does nothing
 */
k2_code k2_journal_truncate_before(k2_journal *j, uint64_t seq, k2_error *err);

uint64_t k2_journal_first_seq(const k2_journal *j);  /* of the durable records; equals durable_seq + 1 when there is none */
uint64_t k2_journal_durable_seq(const k2_journal *j); /* the last that is durable, 0 before the first */
uint64_t k2_journal_next_seq(const k2_journal *j);   /* what the next append will get */
uint64_t k2_journal_map_used(const k2_journal *j);   /* bytes of the map in use (estimate; LMDB: high-water mark) */

#endif
