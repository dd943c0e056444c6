/* The fault wrapper. One table per wrapped transport, because only `open` has no object to find the inner table by. */
#include "tests/conform/xfer/fault_int.h"

#include <string.h>
#include <time.h>

typedef struct wrapped {
    const k2_xfer_ops *inner;
    void *object;
} wrapped;

static struct {
    atomic_int kind;
    atomic_uint first, count, reads, hits;
} plan;

void fault_plan(fault_kind kind, unsigned first, unsigned count)
{
    atomic_store(&plan.kind, FAULT_NONE);
    atomic_store(&plan.reads, 0);
    atomic_store(&plan.hits, 0);
    atomic_store(&plan.first, first);
    atomic_store(&plan.count, count);
    atomic_store(&plan.kind, kind);
}

unsigned fault_hits(void)
{
    return atomic_load(&plan.hits);
}

static fault_kind fault_next(void)
{
    fault_kind kind = (fault_kind)atomic_load(&plan.kind);
    if (kind == FAULT_NONE) return kind;
    unsigned n = atomic_fetch_add(&plan.reads, 1), first = atomic_load(&plan.first);
    if (n < first || n - first >= atomic_load(&plan.count)) return FAULT_NONE;
    atomic_fetch_add(&plan.hits, 1);
    return kind;
}

static void *wrap(const k2_xfer_ops *inner, void *object)
{
    wrapped *w = k2_alloc(sizeof *w);
    *w = (wrapped){inner, object};
    return w;
}

static k2_code open_inner(const k2_xfer_ops *inner, const k2_xfer_config *config, bool offers, void **t, k2_error *err)
{
    void *object;
    k2_code code = inner->open(config, offers, &object, err);
    if (code == K2_OK) *t = wrap(inner, object);
    return code;
}

static void fault_close(void *t)
{
    wrapped *w = t;
    w->inner->close(w->object);
    k2_free(w);
}

static void fault_stats(void *t, k2_xfer_stats *out)
{
    wrapped *w = t;
    w->inner->stats(w->object, out);
}

static k2_code fault_segment_create(void *t, uint64_t bytes, const k2_xfer_nonce *nonce, void **s, k2_xfer_locator *where,
                                    k2_error *err)
{
    wrapped *w = t;
    void *object;
    k2_code code = w->inner->segment_create(w->object, bytes, nonce, &object, where, err);
    if (code == K2_OK) *s = wrap(w->inner, object);
    return code;
}

static void *fault_segment_memory(void *s)
{
    wrapped *w = s;
    return w->inner->segment_memory(w->object);
}

static void fault_segment_signal(void *s, uint64_t offset, uint64_t value)
{
    wrapped *w = s;
    w->inner->segment_signal(w->object, offset, value);
}

static void fault_segment_destroy(void *s)
{
    wrapped *w = s;
    w->inner->segment_destroy(w->object);
    k2_free(w);
}

static k2_code fault_remote_open(void *t, const k2_xfer_locator *where, uint64_t deadline_ns, void **r, k2_error *err)
{
    wrapped *w = t;
    void *object;
    k2_code code = w->inner->remote_open(w->object, where, deadline_ns, &object, err);
    if (code == K2_OK) *r = wrap(w->inner, object);
    return code;
}

static const void *fault_remote_map(void *r)
{
    wrapped *w = r;
    return w->inner->remote_map(w->object);
}

static k2_code hang(const k2_xfer_io *io, uint64_t until_ns, k2_error *err)
{
    while (k2_now_ns() < until_ns) {
        if (io->cancel != NULL && atomic_load(io->cancel)) return k2_error_set(err, K2_CANCELED, "fault: canceled");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return k2_error_set(err, K2_TIMEOUT, "fault: delayed past the deadline");
}

static k2_code corrupt(wrapped *w, k2_xfer_io *io, k2_error *err)
{
    k2_code code = w->inner->remote_read(w->object, io, err);
    if (code != K2_OK || io->bytes == 0) return code;
    ((unsigned char *)io->local)[io->bytes / 2] ^= 0x10;
    io->hash = k2_hash64(io->local, io->bytes, 0);
    return w->inner->caps.verifies ? k2_error_set(err, K2_CORRUPT, "fault: one bit is wrong") : K2_OK;
}

static k2_code fault_remote_read(void *r, k2_xfer_io *io, k2_error *err)
{
    wrapped *w = r;
    switch (fault_next()) {
    case FAULT_DROP: memset(io->local, 0xdd, io->bytes); return k2_error_set(err, K2_TIMEOUT, "fault: dropped");
    case FAULT_CORRUPT: return corrupt(w, io, err);
    case FAULT_CUT: memset(io->local, 0xcc, io->bytes / 2); return k2_error_set(err, K2_PEER_CLOSED, "fault: cut");
    case FAULT_DELAY: return hang(io, k2_now_ns() + 5 * K2_NS_PER_MS, err);
    case FAULT_HANG: return hang(io, io->deadline_ns, err);
    case FAULT_REFUSE: return k2_error_set(err, K2_PEER_REFUSED, "fault: refused");
    default: return w->inner->remote_read(w->object, io, err);
    }
}

static k2_code fault_remote_wait(void *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err)
{
    wrapped *w = r;
    return w->inner->remote_wait(w->object, offset, value, deadline_ns, seen, err);
}

static void fault_remote_close(void *r)
{
    wrapped *w = r;
    w->inner->remote_close(w->object);
    k2_free(w);
}

#define WRAPPED_MAX 3
#define OPEN(n)                                                                                                                \
    static k2_code open_##n(const k2_xfer_config *config, bool offers, void **t, k2_error *err)                                \
    {                                                                                                                          \
        return open_inner(k2_xfer_builtin()[n], config, offers, t, err);                                                       \
    }
OPEN(0)
OPEN(1)
OPEN(2)

const k2_xfer_ops *const *fault_ops(void)
{
    static k2_xfer_ops tables[WRAPPED_MAX];
    static const k2_xfer_ops *list[WRAPPED_MAX + 1];
    static k2_code (*const open[WRAPPED_MAX])(const k2_xfer_config *, bool, void **, k2_error *) = {open_0, open_1, open_2};
    for (unsigned i = 0; i < WRAPPED_MAX; i++) {
        const k2_xfer_ops *inner = k2_xfer_builtin()[i];
        K2_ASSERT(inner != NULL);
        tables[i] = (k2_xfer_ops){.name = inner->name,
                                  .caps = inner->caps,
                                  .open = open[i],
                                  .close = fault_close,
                                  .stats = fault_stats,
                                  .segment_create = fault_segment_create,
                                  .segment_memory = fault_segment_memory,
                                  .segment_signal = fault_segment_signal,
                                  .segment_destroy = fault_segment_destroy,
                                  .remote_open = fault_remote_open,
                                  .remote_map = fault_remote_map,
                                  .remote_read = fault_remote_read,
                                  .remote_wait = fault_remote_wait,
                                  .remote_close = fault_remote_close};
        tables[i].caps.immediate = false; /* a delay is no copying */
        list[i] = &tables[i];
    }
    K2_ASSERT(k2_xfer_builtin()[WRAPPED_MAX] == NULL);
    return list;
}
