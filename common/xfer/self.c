/* The `self` transport: segments of this process, found in one list. For threads, and for running everything without a second
 * process. */
#include "common/xfer/xfer_int.h"

/* The list holds segments that are offered; references are the owner's, until it destroys the segment, and one per remote. */
typedef struct segment {
    struct segment *next;
    uint64_t id, bytes;
    k2_xfer_nonce nonce;
    unsigned char *data;
    uint32_t references;
} segment;

/* Process-wide on purpose: two engines of one process find each other's segments. */
static struct {
    pthread_mutex_t lock;
    segment *first;
    uint64_t last_id;
} offered = {.lock = PTHREAD_MUTEX_INITIALIZER};

static k2_code self_open(const k2_xfer_config *config, bool offers, void **t, k2_error *err)
{
    (void)config, (void)offers, (void)err;
    *t = NULL;
    return K2_OK;
}

static void self_close(void *t)
{
    (void)t;
}

static void self_stats(void *t, k2_xfer_stats *out)
{
    (void)t;
    *out = (k2_xfer_stats){0};
}

static k2_code self_segment_create(void *t, uint64_t bytes, const k2_xfer_nonce *nonce, void **out, k2_xfer_locator *where,
                                   k2_error *err)
{
    (void)t;
    unsigned char *data = k2i_memory_map(bytes, err);
    if (data == NULL) return err != NULL ? err->code : K2_NO_MEMORY;
    segment *s = k2_alloc(sizeof *s);
    *s = (segment){.bytes = bytes, .nonce = *nonce, .data = data, .references = 1};
    pthread_mutex_lock(&offered.lock);
    s->id = ++offered.last_id;
    s->next = offered.first;
    offered.first = s;
    pthread_mutex_unlock(&offered.lock);
    where->id = s->id;
    *out = s;
    return K2_OK;
}

static void *self_segment_memory(void *s)
{
    return ((segment *)s)->data;
}

static void self_segment_signal(void *s, uint64_t offset, uint64_t value)
{
    k2i_mapped_signal(((segment *)s)->data, offset, value);
}

static void reference_drop(segment *s)
{
    pthread_mutex_lock(&offered.lock);
    bool last = --s->references == 0;
    pthread_mutex_unlock(&offered.lock);
    if (!last) return;
    k2i_memory_unmap(s->data, s->bytes);
    k2_free(s);
}

static void self_segment_destroy(void *arg)
{
    segment *s = arg;
    pthread_mutex_lock(&offered.lock);
    segment **at = &offered.first;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&offered.lock);
    reference_drop(s);
}

static k2_code self_remote_open(void *t, const k2_xfer_locator *where, uint64_t deadline_ns, void **out, k2_error *err)
{
    (void)t, (void)deadline_ns;
    pthread_mutex_lock(&offered.lock);
    segment *s = offered.first;
    while (s != NULL && s->id != where->id) s = s->next;
    bool found = s != NULL && s->bytes == where->bytes && k2i_nonce_equal(&s->nonce, &where->nonce);
    if (found) s->references++;
    pthread_mutex_unlock(&offered.lock);
    if (!found) return k2_error_set(err, K2_PEER_REFUSED, "this process offers no such segment (any more)");
    *out = s;
    return K2_OK;
}

static const void *self_remote_map(void *r)
{
    return ((segment *)r)->data;
}

static k2_code self_remote_read(void *r, k2_xfer_io *io, k2_error *err)
{
    (void)err;
    k2i_mapped_read(((segment *)r)->data, io);
    return K2_OK;
}

static bool self_alive(void *arg)
{
    (void)arg;
    return true;
}

static k2_code self_remote_wait(void *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err)
{
    return k2i_mapped_wait(((segment *)r)->data, offset, value, deadline_ns, self_alive, NULL, seen, err);
}

static void self_remote_close(void *r)
{
    reference_drop(r);
}

const k2_xfer_ops k2i_self_ops = {
    .name = "self",
    .caps = {.maps = true, .immediate = true, .read_max = K2_XFER_CHUNK_MAX},
    .open = self_open,
    .close = self_close,
    .stats = self_stats,
    .segment_create = self_segment_create,
    .segment_memory = self_segment_memory,
    .segment_signal = self_segment_signal,
    .segment_destroy = self_segment_destroy,
    .remote_open = self_remote_open,
    .remote_map = self_remote_map,
    .remote_read = self_remote_read,
    .remote_wait = self_remote_wait,
    .remote_close = self_remote_close,
};
