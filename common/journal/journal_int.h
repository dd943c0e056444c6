/* journal, inside: the form of a record in every backend, and what a backend must do. */
#ifndef K2_COMMON_JOURNAL_INT_H
#define K2_COMMON_JOURNAL_INT_H

#include "common/journal/journal.h"

/* In front of every record's bytes. The hash covers type, length and bytes and is seeded with the number, so a record that
 * landed under another's number is found too. */
typedef struct k2i_record_header {
    uint64_t seq, hash;
    uint32_t type, len;
} k2i_record_header;
_Static_assert(sizeof(k2i_record_header) == 24, "written to disk as it is");

uint64_t k2i_record_hash(const k2i_record_header *h, const void *bytes);

/* Checks one stored record that should have number `seq`; a failure names the directory and the number. */
k2_code k2i_record_check(const char *where, uint64_t seq, const void *stored, size_t len, k2_journal_record *out,
                         k2_error *err);

/* Records back to back, each padded to 8 bytes. */
struct k2_journal_batch {
    uint64_t first_seq, count;
    k2_buf bytes;
};

typedef bool k2i_record_cb(void *arg, const k2_journal_record *r);

typedef struct k2i_journal_ops {
    const char *name;
    /* Take the lock, open the store. first..next (next excluded) are the records that it holds. */
    k2_code (*open)(const k2_journal_config *config, void **store, uint64_t *first, uint64_t *next, k2_error *err);
    void (*close)(void *store);
    /* All records of the batch, or none. */
    k2_code (*write)(void *store, const k2_journal_batch *batch, k2_error *err);
    /* first..next in order, each checked. */
    k2_code (*read)(void *store, uint64_t first, uint64_t next, k2i_record_cb *cb, void *arg, k2_error *err);
    /* Forget first..before (before excluded). May do a prefix of it when interrupted. */
    k2_code (*truncate)(void *store, uint64_t first, uint64_t before, k2_error *err);
    uint64_t (*used)(void *store);
} k2i_journal_ops;

extern const k2i_journal_ops k2i_journal_lmdb, k2i_journal_memory;

#endif
