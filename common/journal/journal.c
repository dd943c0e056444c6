/* journal: numbering, batches and the checks that all backends share. The stores stand in lmdb.c and memory.c. */
#include "common/flight/flight.h"
#include "common/journal/journal_int.h"

#include <stdatomic.h>
#include <string.h>

struct k2_journal {
    const k2i_journal_ops *ops;
    void *store;
    char *where;                     /* the directory, for errors */
    k2_journal_batch *open_batch;    /* being collected; NULL until the first append after a seal */
    uint64_t next_seq;               /* of the next append */
    _Atomic uint64_t first, durable; /* the writer moves them, the collecting thread reads them */
    k2_error broken;                 /* code OK, or why the journal takes no more batches; the writer's */
};

static const k2i_journal_ops *const backends[] = {
    [K2_JOURNAL_LMDB] = &k2i_journal_lmdb,
    [K2_JOURNAL_MEMORY] = &k2i_journal_memory,
};

uint64_t k2i_record_hash(const k2i_record_header *h, const void *bytes)
{
    uint64_t inner = k2_hash64(bytes, h->len, h->seq);
    uint64_t head[2] = {inner, (uint64_t)h->type << 32 | h->len};
    return k2_hash64(head, sizeof head, h->seq);
}

k2_code k2i_record_check(const char *where, uint64_t seq, const void *stored, size_t len, k2_journal_record *out, k2_error *err)
{
    k2i_record_header h;
    unsigned long long n = seq;
    if (len < sizeof h)
        return k2_error_set(err, K2_CORRUPT, "journal %s: record %llu: %zu bytes, its header alone has %zu", where, n, len,
                            sizeof h);
    memcpy(&h, stored, sizeof h);
    const char *bytes = (const char *)stored + sizeof h;
    if (h.len != len - sizeof h)
        return k2_error_set(err, K2_CORRUPT, "journal %s: record %llu: %zu bytes, its header says %u", where, n, len - sizeof h,
                            h.len);
    if (h.seq != seq)
        return k2_error_set(err, K2_CORRUPT, "journal %s: record %llu: carries the number %llu", where, n,
                            (unsigned long long)h.seq);
    if (h.hash != k2i_record_hash(&h, bytes))
        return k2_error_set(err, K2_CORRUPT, "journal %s: record %llu: its hash does not match its %u bytes", where, n, h.len);
    *out = (k2_journal_record){.seq = seq, .type = h.type, .bytes = bytes, .len = h.len};
    return K2_OK;
}

k2_code k2_journal_open(const k2_journal_config *config, k2_journal **out, k2_error *err)
{
    K2_ASSERT((unsigned)config->kind < K2_COUNT(backends));
    if (config->map_bytes < 1u << 20)
        return k2_error_set(err, K2_BAD_INPUT, "journal %s: a map of %llu bytes; at least 1048576 are needed",
                            config->dir ? config->dir : "", (unsigned long long)config->map_bytes);
    const k2i_journal_ops *ops = backends[config->kind];
    void *store;
    uint64_t first, next;
    k2_code code = ops->open(config, &store, &first, &next, err);
    if (code != K2_OK) return code;
    k2_journal *j = k2_alloc(sizeof *j);
    j->ops = ops;
    j->store = store;
    j->where = k2_strdup(config->dir ? config->dir : ops->name);
    j->next_seq = next;
    atomic_init(&j->first, first);
    atomic_init(&j->durable, next - 1);
    *out = j;
    return K2_OK;
}

static void batch_free(k2_journal_batch *b)
{
    if (!b) return;
    k2_buf_fini(&b->bytes);
    k2_free(b);
}

void k2_journal_close(k2_journal *j)
{
    if (!j) return;
    batch_free(j->open_batch);
    j->ops->close(j->store);
    k2_free(j->where);
    k2_free(j);
}

k2_code k2_journal_append(k2_journal *j, uint32_t type, const void *bytes, size_t len, uint64_t *seq, k2_error *err)
{
    static const char zeros[8];
    if (len > K2_JOURNAL_RECORD_MAX)
        return k2_error_set(err, K2_LIMIT, "journal %s: a record of %zu bytes; at most %u are taken", j->where, len,
                            K2_JOURNAL_RECORD_MAX);
    k2i_record_header h = {.seq = j->next_seq, .type = type, .len = (uint32_t)len};
    size_t whole = (sizeof h + len + 7) / 8 * 8;
    if (k2_journal_pending(j) + whole > K2_JOURNAL_PENDING_MAX)
        return k2_error_set(err, K2_FULL, "journal %s: %zu bytes wait for the disk already", j->where, k2_journal_pending(j));
    if (!j->open_batch) {
        j->open_batch = k2_alloc(sizeof *j->open_batch);
        j->open_batch->first_seq = h.seq;
        k2_buf_init(&j->open_batch->bytes, K2_JOURNAL_PENDING_MAX);
    }
    h.hash = k2i_record_hash(&h, bytes);
    k2_buf *b = &j->open_batch->bytes;
    k2_buf_append(b, &h, sizeof h);
    k2_buf_append(b, bytes, len);
    k2_buf_append(b, zeros, whole - sizeof h - len);
    j->open_batch->count++;
    j->next_seq++;
    if (seq) *seq = h.seq;
    return K2_OK;
}

size_t k2_journal_pending(const k2_journal *j)
{
    return j->open_batch ? j->open_batch->bytes.len : 0;
}

k2_journal_batch *k2_journal_seal(k2_journal *j)
{
    k2_journal_batch *b = j->open_batch;
    j->open_batch = NULL;
    return b;
}

k2_code k2_journal_write(k2_journal *j, k2_journal_batch *batch, k2_error *err)
{
    k2_code code = j->broken.code;
    uint32_t span = k2_flight_begin(K2_FLIGHT_RECORDS, batch->count, batch->bytes.len, batch->first_seq, K2_FLIGHT_NONE);
    if (code != K2_OK) {
        if (err) *err = j->broken;
    } else {
        K2_ASSERT(batch->first_seq == atomic_load(&j->durable) + 1); /* sealed order */
        code = j->ops->write(j->store, batch, &j->broken);
        if (code == K2_OK)
            atomic_store(&j->durable, batch->first_seq + batch->count - 1);
        else if (err)
            *err = j->broken;
    }
    k2_flight_end_with(span, 3, code);
    batch_free(batch);
    return code;
}

k2_code k2_journal_commit(k2_journal *j, k2_error *err)
{
    k2_journal_batch *batch = k2_journal_seal(j);
    if (batch) return k2_journal_write(j, batch, err);
    if (j->broken.code != K2_OK && err) *err = j->broken;
    return j->broken.code;
}

k2_code k2_journal_read(k2_journal *j, uint64_t from_seq, k2i_record_cb *cb, void *arg, k2_error *err)
{
    uint64_t first = K2_MAX(from_seq, k2_journal_first_seq(j)), next = k2_journal_durable_seq(j) + 1;
    return first < next ? j->ops->read(j->store, first, next, cb, arg, err) : K2_OK;
}

k2_code k2_journal_truncate_before(k2_journal *j, uint64_t seq, k2_error *err)
{
    uint64_t first = k2_journal_first_seq(j), durable = k2_journal_durable_seq(j);
    if (seq > durable + 1)
        return k2_error_set(err, K2_BAD_INPUT, "journal %s: cannot forget up to record %llu; %llu is the last durable one",
                            j->where, (unsigned long long)seq, (unsigned long long)durable);
    if (seq <= first) return K2_OK;
    k2_code code = j->ops->truncate(j->store, first, seq, err);
    if (code == K2_OK) atomic_store(&j->first, seq);
    return code;
}

uint64_t k2_journal_first_seq(const k2_journal *j)
{
    return atomic_load(&j->first);
}

uint64_t k2_journal_durable_seq(const k2_journal *j)
{
    return atomic_load(&j->durable);
}

uint64_t k2_journal_next_seq(const k2_journal *j)
{
    return j->next_seq;
}

uint64_t k2_journal_map_used(const k2_journal *j)
{
    return j->ops->used(j->store);
}
