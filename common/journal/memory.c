/* journal in memory: the same promises as on a disk, kept by a k2_journal_memory that the test holds across "crashes". */
#include "common/journal/journal_int.h"

#include <string.h>

struct k2_journal_memory_record {
    void *stored;
    size_t len;
};

typedef struct store {
    k2_journal_memory *m;
    uint64_t map_bytes;
} store;

void k2_journal_memory_fini(k2_journal_memory *m)
{
    for (size_t i = 0; i < m->count; i++) k2_free(m->records[i].stored);
    k2_free(m->records);
    *m = (k2_journal_memory){0};
}

static k2_code memory_open(const k2_journal_config *config, void **out, uint64_t *first, uint64_t *next, k2_error *err)
{
    k2_journal_memory *m = config->memory;
    if (m->locked) return k2_error_set(err, K2_BUSY, "run directory in use by this process: memory");
    if (m->next_seq == 0) m->first_seq = m->next_seq = 1;
    m->locked = true;
    store *s = k2_alloc(sizeof *s);
    *s = (store){.m = m, .map_bytes = config->map_bytes};
    *out = s;
    *first = m->first_seq;
    *next = m->next_seq;
    return K2_OK;
}

static void memory_close(void *arg)
{
    store *s = arg;
    s->m->locked = false;
    k2_free(s);
}

static k2_code memory_write(void *arg, const k2_journal_batch *batch, k2_error *err)
{
    store *s = arg;
    k2_journal_memory *m = s->m;
    if (m->bytes + batch->bytes.len > s->map_bytes)
        return k2_error_set(err, K2_NO_SPACE,
                            "journal memory: batch of %zu bytes does not fit into map of %llu bytes (%zu used)",
                            batch->bytes.len, (unsigned long long)s->map_bytes, m->bytes);
    if (m->count + batch->count > m->capacity) {
        m->capacity = (m->count + (size_t)batch->count) * 2;
        m->records = k2_realloc_array(m->records, m->capacity, sizeof *m->records);
    }
    const char *at = batch->bytes.data;
    for (uint64_t i = 0; i < batch->count; i++) {
        k2i_record_header h;
        memcpy(&h, at, sizeof h);
        size_t len = sizeof h + h.len;
        struct k2_journal_memory_record *r = &m->records[m->count++];
        *r = (struct k2_journal_memory_record){.stored = k2_alloc(len), .len = len};
        memcpy(r->stored, at, len);
        m->bytes += (len + 7) / 8 * 8;
        at += (len + 7) / 8 * 8;
    }
    m->next_seq += batch->count;
    return K2_OK;
}

static k2_code memory_read(void *arg, uint64_t first, uint64_t next, k2i_record_cb *cb, void *cb_arg, k2_error *err)
{
    k2_journal_memory *m = ((store *)arg)->m;
    for (uint64_t seq = first; seq < next; seq++) {
        const struct k2_journal_memory_record *r = &m->records[seq - m->first_seq];
        k2_journal_record record;
        k2_code code = k2i_record_check("memory", seq, r->stored, r->len, &record, err);
        if (code != K2_OK) return code;
        if (!cb(cb_arg, &record)) break;
    }
    return K2_OK;
}

static k2_code memory_truncate(void *arg, uint64_t first, uint64_t before, k2_error *err)
{
    (void)err;
    k2_journal_memory *m = ((store *)arg)->m;
    size_t n = (size_t)(before - first);
    for (size_t i = 0; i < n; i++) {
        m->bytes -= (m->records[i].len + 7) / 8 * 8;
        k2_free(m->records[i].stored);
    }
    memmove(m->records, m->records + n, (m->count - n) * sizeof *m->records);
    m->count -= n;
    m->first_seq = before;
    return K2_OK;
}

static uint64_t memory_used(void *arg)
{
    return ((store *)arg)->m->bytes;
}

const k2i_journal_ops k2i_journal_memory = {
    .name = "memory",
    .open = memory_open,
    .close = memory_close,
    .write = memory_write,
    .read = memory_read,
    .truncate = memory_truncate,
    .used = memory_used,
};
