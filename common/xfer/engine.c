/* The engine: its transports and threads, and the objects that callers hold. */
#include "common/xfer/xfer_int.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define DEADLINE_NS_DEFAULT (10 * K2_NS_PER_S)
#define BACKOFF_NS_DEFAULT  (5 * K2_NS_PER_MS)

struct k2_xfer_segment {
    k2_xfer *x;
    const k2_xfer_ops *ops;
    void *s;
    uint64_t bytes;
    char locator[K2_XFER_LOCATOR_MAX];
};

atomic_uint k2i_order;

const k2_xfer_ops *const *k2_xfer_builtin(void)
{
    static const k2_xfer_ops *const list[] = {&k2i_self_ops, &k2i_shm_ops, &k2i_tcp_ops, NULL};
    return list;
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

static k2_code config_check(const k2_xfer_config *c, k2_error *err)
{
    if (c->rails > K2_XFER_RAILS_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "xfer.rails: %u, expected 1 to %u", c->rails, K2_XFER_RAILS_MAX);
    if (c->servers > K2_XFER_SERVERS_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "xfer.servers: %u, expected 1 to %u", c->servers, K2_XFER_SERVERS_MAX);
    if (c->chunk_bytes != 0 && (c->chunk_bytes < K2_XFER_CHUNK_MIN || c->chunk_bytes > K2_XFER_CHUNK_MAX))
        return k2_error_set(err, K2_BAD_INPUT, "xfer.chunk_bytes: %llu, expected %llu to %llu",
                            (unsigned long long)c->chunk_bytes, K2_XFER_CHUNK_MIN, K2_XFER_CHUNK_MAX);
    if (c->retries > K2_XFER_RETRIES_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "xfer.retries: %u, expected 0 to %u", c->retries, K2_XFER_RETRIES_MAX);
    return K2_OK;
}

static void config_fill(k2_xfer *x, const k2_xfer_config *config)
{
    k2_xfer_config *c = &x->config;
    *c = *config;
    x->host = config->host != NULL ? k2_strdup(config->host) : NULL;
    c->host = x->host;
    c->transport = NULL; /* the caller's string is not kept; x->own says it */
    if (c->rails == 0) c->rails = 1;
    if (c->servers == 0) c->servers = 1;
    if (c->chunk_bytes == 0) c->chunk_bytes = K2_XFER_CHUNK_BYTES;
    if (c->deadline_ns == 0) c->deadline_ns = DEADLINE_NS_DEFAULT;
    if (c->backoff_ns == 0) c->backoff_ns = BACKOFF_NS_DEFAULT;
}

static k2i_transport *transport_find(k2_xfer *x, const char *name)
{
    for (uint32_t i = 0; i < x->transport_count; i++)
        if (strcmp(x->transports[i].ops->name, name) == 0) return &x->transports[i];
    return NULL;
}

static k2_code workers_start(k2_xfer *x, k2_error *err)
{
    for (uint32_t i = 0; i < x->config.rails; i++) {
        k2i_worker_arg *arg = k2_alloc(sizeof *arg);
        *arg = (k2i_worker_arg){.x = x, .rail = i};
        int rc = pthread_create(&x->workers[i], NULL, k2i_worker_main, arg);
        if (rc != 0) {
            k2_free(arg);
            return k2_error_errno(err, rc, "xfer: starting a thread");
        }
        x->worker_count++;
    }
    return K2_OK;
}

k2_code k2_xfer_open(const k2_xfer_config *config, k2_xfer **out, k2_error *err)
{
    k2_code code = config_check(config, err);
    if (code != K2_OK) return code;
    k2_xfer *x = k2_alloc(sizeof *x);
    config_fill(x, config);
    const k2_xfer_ops *const *list = config->ops != NULL ? config->ops : k2_xfer_builtin();
    for (; list[x->transport_count] != NULL; x->transport_count++) {
        K2_ASSERT(x->transport_count < K2I_TRANSPORTS_MAX);
        x->transports[x->transport_count].ops = list[x->transport_count];
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&x->lock, NULL);
    pthread_cond_init(&x->work, &monotonic);
    pthread_cond_init(&x->done, &monotonic);
    pthread_condattr_destroy(&monotonic);

    k2i_transport *own = transport_find(x, config->transport);
    if (own == NULL)
        code = k2_error_set(err, K2_BAD_INPUT, "xfer.transport: unknown transport '%s', expected self, shm or tcp",
                            config->transport);
    if (code == K2_OK) code = own->ops->open(&x->config, true, &own->t, err);
    if (code == K2_OK) {
        own->open = true;
        x->own = (uint32_t)(own - x->transports);
        code = workers_start(x, err);
    }
    if (code != K2_OK) {
        k2_xfer_close(x);
        return code;
    }
    *out = x;
    return K2_OK;
}

void k2_xfer_close(k2_xfer *x)
{
    if (x == NULL) return;
    pthread_mutex_lock(&x->lock);
    K2_ASSERT(x->objects == 0); /* segments, remotes and batches of this engine are closed first */
    x->stop = true;
    pthread_cond_broadcast(&x->work);
    pthread_mutex_unlock(&x->lock);
    for (uint32_t i = 0; i < x->worker_count; i++) pthread_join(x->workers[i], NULL);
    for (uint32_t i = 0; i < x->transport_count; i++)
        if (x->transports[i].open) x->transports[i].ops->close(x->transports[i].t);
    pthread_cond_destroy(&x->done);
    pthread_cond_destroy(&x->work);
    pthread_mutex_destroy(&x->lock);
    k2_free(x->host);
    k2_free(x);
}

void k2_xfer_stats_get(k2_xfer *x, k2_xfer_stats *out)
{
    k2i_transport *own = &x->transports[x->own];
    own->ops->stats(own->t, out);
}

void k2i_object_add(k2_xfer *x, int n)
{
    pthread_mutex_lock(&x->lock);
    x->objects = (uint32_t)((int)x->objects + n);
    pthread_mutex_unlock(&x->lock);
}

/* ---- segments --------------------------------------------------------------------------------------------------- */

/* Count one more segment; false where all are in use. */
static bool segment_slot_take(k2_xfer *x)
{
    pthread_mutex_lock(&x->lock);
    bool free_slot = x->segments < K2_XFER_SEGMENTS_MAX;
    if (free_slot) x->segments++, x->objects++;
    pthread_mutex_unlock(&x->lock);
    return free_slot;
}

static void segment_slot_give(k2_xfer *x)
{
    pthread_mutex_lock(&x->lock);
    x->segments--, x->objects--;
    pthread_mutex_unlock(&x->lock);
}

/* Whether the machine has that much memory left. Asked first, because shm takes its pages at once: without the question a size
 * that is too large would end some process, not necessarily ours, instead of giving an error. */
static k2_code memory_check(uint64_t bytes, k2_error *err)
{
    unsigned long long available_kb = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL) return K2_OK; /* no such file, no opinion */
    bool known = false;
    while (!known && fgets(line, sizeof line, f) != NULL) known = sscanf(line, "MemAvailable: %llu kB", &available_kb) == 1;
    fclose(f);
    if (!known || bytes / 1024 <= available_kb) return K2_OK;
    return k2_error_set(err, K2_NO_MEMORY, "xfer: a segment of %llu bytes, but only %llu bytes of memory are available",
                        (unsigned long long)bytes, available_kb * 1024);
}

k2_code k2_xfer_segment_create(k2_xfer *x, uint64_t bytes, k2_xfer_segment **out, k2_error *err)
{
    if (bytes == 0 || bytes > K2_XFER_SEGMENT_MAX)
        return k2_error_set(err, K2_LIMIT, "xfer: a segment of %llu bytes, expected 1 to %llu", (unsigned long long)bytes,
                            K2_XFER_SEGMENT_MAX);
    if (!segment_slot_take(x)) return k2_error_set(err, K2_FULL, "xfer: all %u segments are in use", K2_XFER_SEGMENTS_MAX);
    k2i_transport *own = &x->transports[x->own];
    k2_xfer_locator where = {.bytes = bytes};
    snprintf(where.transport, sizeof where.transport, "%s", own->ops->name);
    k2_xfer_segment made = {.x = x, .ops = own->ops, .bytes = bytes};
    k2_code code = memory_check(bytes, err);
    if (code == K2_OK) code = k2i_nonce_make(&where.nonce, err);
    if (code == K2_OK) code = own->ops->segment_create(own->t, bytes, &where.nonce, &made.s, &where, err);
    if (code != K2_OK) {
        segment_slot_give(x);
        return code;
    }
    k2_xfer_locator_format(&where, true, made.locator);
    k2_xfer_segment *s = k2_alloc(sizeof *s);
    *s = made;
    *out = s;
    return K2_OK;
}

void *k2_xfer_segment_memory(const k2_xfer_segment *s)
{
    return s->ops->segment_memory(s->s);
}

uint64_t k2_xfer_segment_bytes(const k2_xfer_segment *s)
{
    return s->bytes;
}

const char *k2_xfer_segment_locator(const k2_xfer_segment *s)
{
    k2i_order_release();
    return s->locator;
}

void k2_xfer_segment_signal(k2_xfer_segment *s, uint64_t offset, uint64_t value)
{
    K2_ASSERT(offset % 8 == 0 && s->bytes >= 8 && offset <= s->bytes - 8);
    s->ops->segment_signal(s->s, offset, value);
}

void k2_xfer_segment_destroy(k2_xfer_segment *s)
{
    if (s == NULL) return;
    k2_xfer *x = s->x;
    s->ops->segment_destroy(s->s);
    k2_free(s);
    segment_slot_give(x);
}

/* ---- remotes ---------------------------------------------------------------------------------------------------- */

/* The transport that opens such locators, opened itself when this is the first one. */
static k2_code transport_for(k2_xfer *x, const char *name, k2i_transport **out, k2_error *err)
{
    k2_code code = K2_OK;
    pthread_mutex_lock(&x->lock);
    k2i_transport *t = transport_find(x, name);
    if (t == NULL) code = k2_error_set(err, K2_UNSUPPORTED, "locator: this engine has no transport '%s'", name);
    if (t != NULL && !t->open) {
        code = t->ops->open(&x->config, false, &t->t, err);
        t->open = code == K2_OK;
    }
    pthread_mutex_unlock(&x->lock);
    *out = t;
    return code;
}

k2_code k2_xfer_remote_open(k2_xfer *x, const char *locator, uint64_t deadline_ns, k2_xfer_remote **out, k2_error *err)
{
    k2_xfer_locator where;
    k2i_transport *t;
    k2_code code = k2_xfer_locator_parse(locator, &where, err);
    if (code == K2_OK) code = transport_for(x, where.transport, &t, err);
    if (code != K2_OK) return code;
    k2_xfer_remote *r = k2_alloc(sizeof *r);
    r->x = x;
    r->ops = t->ops;
    r->bytes = where.bytes;
    k2_xfer_locator_format(&where, false, r->name);
    code = t->ops->remote_open(t->t, &where, deadline_ns, &r->r, err);
    if (code != K2_OK) {
        if (err != NULL) k2_error_prefix(err, "%s", r->name);
        k2_free(r);
        return code;
    }
    k2i_object_add(x, 1);
    *out = r;
    return K2_OK;
}

void k2_xfer_remote_close(k2_xfer_remote *r)
{
    if (r == NULL) return;
    r->ops->remote_close(r->r);
    k2i_object_add(r->x, -1);
    k2_free(r);
}

uint64_t k2_xfer_remote_bytes(const k2_xfer_remote *r)
{
    return r->bytes;
}

const char *k2_xfer_remote_name(const k2_xfer_remote *r)
{
    return r->name;
}

const void *k2_xfer_remote_map(const k2_xfer_remote *r)
{
    return r->ops->remote_map(r->r);
}

k2_code k2_xfer_remote_wait(k2_xfer_remote *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen,
                            k2_error *err)
{
    if (offset % 8 != 0 || r->bytes < 8 || offset > r->bytes - 8)
        return k2_error_set(err, K2_BAD_INPUT, "%s: no word to wait for at offset %llu", r->name, (unsigned long long)offset);
    uint64_t pause_ns = r->x->config.backoff_ns;
    for (uint32_t round = 0;; round++) {
        k2_error why;
        k2_code code = r->ops->remote_wait(r->r, offset, value, deadline_ns, seen, &why);
        if (code == K2_OK) return K2_OK;
        /* Where the owner's memory is mapped its death is certain; over a network a connection that broke can be made again. */
        bool again = (code == K2_PEER_CLOSED || code == K2_PEER_PROTOCOL || code == K2_IO) && !r->ops->caps.maps;
        if (!again || round == r->x->config.retries || k2_now_ns() + pause_ns >= deadline_ns)
            return k2_error_set(err, code, "%s: %s", r->name, why.text);
        k2i_pause(k2_now_ns() + pause_ns, NULL);
        pause_ns *= 2;
    }
}

void k2_xfer_remote_stats_get(const k2_xfer_remote *r, k2_xfer_remote_stats *out)
{
    *out = (k2_xfer_remote_stats){
        .bytes = atomic_load(&r->done_bytes),
        .chunks = atomic_load(&r->done_chunks),
        .retries = atomic_load(&r->retries),
        .failures = atomic_load(&r->failures),
        .corrupt = atomic_load(&r->corrupt),
    };
}
