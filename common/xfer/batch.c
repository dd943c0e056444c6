/* Batches: lists of reads, cut into chunks by a cursor, given out chunk by chunk to the engine's threads.
 *
 * Chunks are never stored: a batch is its requests and the place of the next chunk. Everything is under the engine's lock
 * except the reading itself; a chunk has at least some thousand bytes, so the lock is taken rarely.
 */
#include "common/flight/flight.h"
#include "common/xfer/xfer_int.h"

#include <time.h>

typedef struct request {
    k2_xfer_request r; /* sources point into the batch's own array */
    atomic_uint preferred, refused;
} request;

struct k2_xfer_batch {
    k2_xfer *x;
    request *requests;
    k2_xfer_remote **sources;
    size_t count;
    size_t at;         /* cursor: request */
    uint64_t at_bytes; /* cursor: bytes of it that are given out */
    uint32_t in_flight;
    uint64_t bytes, done_bytes, retries, elsewhere;
    atomic_bool cancel; /* also set by the first failure */
    bool failed, finished;
    uint64_t flight; /* id in the flight recorder */
    k2_error error;
};

/* ---- giving out chunks (all with the engine's lock held) --------------------------------------------------------- */

static bool has_chunk(k2_xfer_batch *b)
{
    while (b->at < b->count && b->at_bytes == b->requests[b->at].r.bytes) {
        b->at++;
        b->at_bytes = 0;
    }
    return b->at < b->count && !atomic_load(&b->cancel);
}

static size_t chunk_take(k2_xfer_batch *b, uint32_t rail, k2i_chunk *c)
{
    request *q = &b->requests[b->at];
    uint64_t bytes = K2_MIN(q->r.chunk_bytes, q->r.bytes - b->at_bytes);
    *c = (k2i_chunk){.sources = q->r.sources,
                     .source_count = q->r.source_count,
                     .preferred = &q->preferred,
                     .refused = &q->refused,
                     .offset = q->r.offset + b->at_bytes,
                     .bytes = bytes,
                     .local = (unsigned char *)q->r.local + b->at_bytes,
                     .hash = q->r.hashes != NULL ? &q->r.hashes[b->at_bytes / q->r.chunk_bytes] : NULL,
                     .rail = rail,
                     .deadline_ns = UINT64_MAX,
                     .cancel = &b->cancel};
    b->at_bytes += bytes;
    b->in_flight++;
    return b->at;
}

static uint64_t transport_of(const k2_xfer_batch *b)
{
    return k2_flight_text(b->count > 0 ? b->requests[0].r.sources[0]->ops->name : "");
}

static void finish_check(k2_xfer_batch *b)
{
    k2_xfer *x = b->x;
    if (b->finished || b->in_flight > 0 || has_chunk(b)) return;
    if (!b->failed && b->done_bytes < b->bytes) k2_error_set(&b->error, K2_CANCELED, "xfer: the batch was canceled");
    b->finished = true;
    k2_flight_finish(K2_FLIGHT_TRANSFER, b->flight, b->done_bytes, b->retries, transport_of(b), b->error.code);
    for (uint32_t i = 0; i < K2_XFER_BATCHES_MAX; i++)
        if (x->batches[i] == b) x->batches[i] = NULL;
    pthread_cond_broadcast(&x->done);
}

static void chunk_account(k2_xfer_batch *b, size_t index, const k2i_chunk *c, const k2i_chunk_result *result,
                          const k2_error *error)
{
    b->in_flight--;
    b->retries += result->retries;
    if (error->code == K2_OK) {
        b->done_bytes += c->bytes;
        b->elsewhere += result->source != 0;
    } else if (!b->failed && error->code != K2_CANCELED) {
        b->failed = true;
        b->error = *error;
        k2_error_prefix(&b->error, "xfer: request %zu", index);
        atomic_store(&b->cancel, true); /* the other chunks in flight need not be waited for */
    }
    finish_check(b);
}

static k2_xfer_batch *batch_next(k2_xfer *x)
{
    for (uint32_t i = 0; i < K2_XFER_BATCHES_MAX; i++) {
        uint32_t slot = (x->batch_turn + 1 + i) % K2_XFER_BATCHES_MAX;
        if (x->batches[slot] == NULL || !has_chunk(x->batches[slot])) continue;
        x->batch_turn = slot;
        return x->batches[slot];
    }
    return NULL;
}

/* Take one chunk and read it; the lock is let go meanwhile. */
static void chunk_run(k2_xfer *x, k2_xfer_batch *b, uint32_t rail)
{
    k2i_chunk c;
    k2i_chunk_result result;
    k2_error error = {.code = K2_OK};
    size_t index = chunk_take(b, rail, &c);
    pthread_mutex_unlock(&x->lock);
    k2i_chunk_read(x, &c, &result, &error);
    pthread_mutex_lock(&x->lock);
    chunk_account(b, index, &c, &result, &error);
}

void *k2i_worker_main(void *arg)
{
    k2_thread_begin();
    k2i_worker_arg me = *(k2i_worker_arg *)arg;
    k2_xfer *x = me.x;
    k2_free(arg);
    pthread_mutex_lock(&x->lock);
    while (!x->stop) {
        k2_xfer_batch *b = batch_next(x);
        if (b == NULL)
            pthread_cond_wait(&x->work, &x->lock);
        else
            chunk_run(x, b, me.rail);
    }
    pthread_mutex_unlock(&x->lock);
    return NULL;
}

/* Whether the next chunk is mere copying: then the thread that waits for it can do it, instead of waiting for another thread to
 * be woken. */
static bool next_is_immediate(k2_xfer_batch *b)
{
    if (!has_chunk(b)) return false;
    const k2_xfer_request *q = &b->requests[b->at].r;
    for (uint32_t i = 0; i < q->source_count; i++)
        if (!q->sources[i]->ops->caps.immediate) return false;
    return true;
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

static k2_code request_check(const k2_xfer *x, const k2_xfer_request *q, size_t index, k2_error *err)
{
    if (q->source_count == 0 || q->source_count > K2_XFER_SOURCES_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "xfer: request %zu: %u sources, expected 1 to %u", index, q->source_count,
                            K2_XFER_SOURCES_MAX);
    uint64_t chunk = q->chunk_bytes != 0 ? q->chunk_bytes : x->config.chunk_bytes;
    if (chunk < K2_XFER_CHUNK_MIN || chunk > K2_XFER_CHUNK_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "xfer: request %zu: chunks of %llu bytes, expected %llu to %llu", index,
                            (unsigned long long)chunk, K2_XFER_CHUNK_MIN, K2_XFER_CHUNK_MAX);
    for (uint32_t i = 0; i < q->source_count; i++) {
        const k2_xfer_remote *r = q->sources[i];
        K2_ASSERT(r->x == x);
        if (q->offset > r->bytes || q->bytes > r->bytes - q->offset)
            return k2_error_set(err, K2_BAD_INPUT, "xfer: request %zu: %llu bytes at offset %llu are not inside %s", index,
                                (unsigned long long)q->bytes, (unsigned long long)q->offset, r->name);
        if (chunk > r->ops->caps.read_max)
            return k2_error_set(err, K2_BAD_INPUT, "xfer: request %zu: chunks of %llu bytes, %s reads at most %llu", index,
                                (unsigned long long)chunk, r->name, (unsigned long long)r->ops->caps.read_max);
    }
    return K2_OK;
}

static void batch_free(k2_xfer_batch *b)
{
    k2_free(b->requests);
    k2_free(b->sources);
    k2_free(b);
}

static k2_xfer_batch *batch_new(k2_xfer *x, const k2_xfer_request *requests, size_t count)
{
    size_t sources = 0;
    for (size_t i = 0; i < count; i++) sources += requests[i].source_count;
    k2_xfer_batch *b = k2_alloc(sizeof *b);
    b->x = x;
    b->count = count;
    b->requests = k2_alloc_array(count, sizeof *b->requests);
    b->sources = k2_alloc_array(sources, sizeof *b->sources);
    k2_xfer_remote **next = b->sources;
    for (size_t i = 0; i < count; i++) {
        k2_xfer_request *q = &b->requests[i].r;
        *q = requests[i];
        if (q->chunk_bytes == 0) q->chunk_bytes = x->config.chunk_bytes;
        for (uint32_t j = 0; j < q->source_count; j++) next[j] = requests[i].sources[j];
        q->sources = next;
        next += q->source_count;
        b->bytes += q->bytes;
    }
    return b;
}

k2_code k2_xfer_batch_submit(k2_xfer *x, const k2_xfer_request *requests, size_t count, k2_xfer_batch **out, k2_error *err)
{
    if (count > K2_XFER_REQUESTS_MAX)
        return k2_error_set(err, K2_LIMIT, "xfer: %zu requests in one batch, at most %u", count, K2_XFER_REQUESTS_MAX);
    for (size_t i = 0; i < count; i++) {
        k2_code code = request_check(x, &requests[i], i, err);
        if (code != K2_OK) return code;
    }
    k2_xfer_batch *b = batch_new(x, requests, count);
    pthread_mutex_lock(&x->lock);
    uint32_t slot = 0;
    while (slot < K2_XFER_BATCHES_MAX && x->batches[slot] != NULL) slot++;
    bool full = slot == K2_XFER_BATCHES_MAX;
    if (!full) {
        x->batches[slot] = b;
        x->objects++;
        b->flight = k2_flight_id();
        k2_flight_start(K2_FLIGHT_TRANSFER, b->flight, b->bytes, 0, transport_of(b), K2_FLIGHT_NONE);
        finish_check(b); /* nothing to read: done at once */
        pthread_cond_broadcast(&x->work);
    }
    pthread_mutex_unlock(&x->lock);
    if (full) {
        batch_free(b);
        return k2_error_set(err, K2_FULL, "xfer: all %u batches are in flight", K2_XFER_BATCHES_MAX);
    }
    *out = b;
    return K2_OK;
}

bool k2_xfer_batch_poll(k2_xfer_batch *b, k2_xfer_progress *out)
{
    pthread_mutex_lock(&b->x->lock);
    bool finished = b->finished;
    if (out != NULL)
        *out = (k2_xfer_progress){.bytes = b->bytes,
                                  .done_bytes = b->done_bytes,
                                  .retries = b->retries,
                                  .elsewhere = b->elsewhere,
                                  .finished = finished,
                                  .code = finished ? b->error.code : K2_OK};
    pthread_mutex_unlock(&b->x->lock);
    return finished;
}

/* With the lock held: until finished, or the deadline. */
static void wait_finished(k2_xfer_batch *b, uint64_t deadline_ns)
{
    struct timespec t = {.tv_sec = (time_t)K2_MIN(deadline_ns / K2_NS_PER_S, (uint64_t)INT32_MAX * 1000),
                         .tv_nsec = (long)(deadline_ns % K2_NS_PER_S)};
    while (!b->finished && k2_now_ns() < deadline_ns) pthread_cond_timedwait(&b->x->done, &b->x->lock, &t);
}

k2_code k2_xfer_batch_wait(k2_xfer_batch *b, uint64_t deadline_ns, k2_error *err)
{
    k2_code code;
    pthread_mutex_lock(&b->x->lock);
    while (k2_now_ns() < deadline_ns && next_is_immediate(b)) chunk_run(b->x, b, 0);
    wait_finished(b, deadline_ns);
    if (!b->finished)
        code = k2_error_set(err, K2_TIMEOUT, "xfer: %llu of %llu bytes read when the deadline passed",
                            (unsigned long long)b->done_bytes, (unsigned long long)b->bytes);
    else if (b->error.code != K2_OK)
        code = k2_error_set(err, b->error.code, "%s", b->error.text);
    else
        code = K2_OK;
    pthread_mutex_unlock(&b->x->lock);
    return code;
}

void k2_xfer_batch_cancel(k2_xfer_batch *b)
{
    pthread_mutex_lock(&b->x->lock);
    atomic_store(&b->cancel, true);
    finish_check(b);
    pthread_mutex_unlock(&b->x->lock);
}

void k2_xfer_batch_close(k2_xfer_batch *b)
{
    if (b == NULL) return;
    k2_xfer *x = b->x;
    k2_xfer_batch_cancel(b);
    pthread_mutex_lock(&x->lock);
    wait_finished(b, UINT64_MAX);
    x->objects--;
    pthread_mutex_unlock(&x->lock);
    batch_free(b);
}
