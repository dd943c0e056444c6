/* One chunk: tried at every source, round after round with growing pauses, until its bytes are there and verified. */
#include "common/flight/flight.h"
#include "common/xfer/xfer_int.h"

#include <time.h>

#define SLICE_NS          (20 * K2_NS_PER_MS)
#define BACKOFF_TIMES_MAX 100u /* the pause stops growing at this multiple of the first one */

bool k2i_pause(uint64_t until_ns, const atomic_bool *cancel)
{
    for (;;) {
        if (cancel != NULL && atomic_load(cancel)) return false;
        uint64_t now = k2_now_ns();
        if (now >= until_ns) return true;
        uint64_t ns = K2_MIN(until_ns - now, SLICE_NS);
        struct timespec t = {.tv_nsec = (long)ns};
        nanosleep(&t, NULL);
    }
}

/* Half of it is certain and half is chance, so that readers that failed together do not come back together. */
static uint64_t backoff_ns(const k2_xfer *x, uint32_t round)
{
    uint64_t times = round < 7 ? 1ull << (round - 1) : BACKOFF_TIMES_MAX;
    uint64_t full = x->config.backoff_ns * K2_MIN(times, (uint64_t)BACKOFF_TIMES_MAX);
    double unit = k2_rand_unit(k2_now_ns(), K2_STREAM_RETRY, (uint64_t)(uintptr_t)x, round);
    return full / 2 + (uint64_t)((double)(full / 2) * unit);
}

/* The source said no and will say it again. Everything else (silence, a broken connection, wrong bytes) may pass. */
static bool is_final(k2_code code)
{
    return code == K2_PEER_REFUSED || code == K2_BAD_INPUT || code == K2_LIMIT || code == K2_UNSUPPORTED;
}

static k2_code attempt(k2_xfer *x, const k2i_chunk *c, k2_xfer_remote *r, k2_error *err)
{
    uint64_t now = k2_now_ns();
    k2_xfer_io io = {.offset = c->offset,
                     .bytes = c->bytes,
                     .local = c->local,
                     .rail = c->rail,
                     .deadline_ns = K2_MIN(c->deadline_ns, now + x->config.deadline_ns),
                     .cancel = c->cancel,
                     .want_hash = c->hash != NULL};
    k2_code code = r->ops->remote_read(r->r, &io, err);
    if (code == K2_OK && c->hash != NULL && io.hash != *c->hash)
        code = k2_error_set(err, K2_CORRUPT, "hash %016llx, expected %016llx", (unsigned long long)io.hash,
                            (unsigned long long)*c->hash);
    if (code == K2_OK) {
        atomic_fetch_add(&r->done_bytes, c->bytes);
        atomic_fetch_add(&r->done_chunks, 1);
    } else if (code != K2_CANCELED) {
        atomic_fetch_add(&r->failures, 1);
        if (code == K2_CORRUPT) atomic_fetch_add(&r->corrupt, 1);
    }
    return code;
}

/* Every source once, beginning with the one that worked last. AGAIN: none worked, but another round may. The error is the last
 * source's. */
static k2_code round_run(k2_xfer *x, const k2i_chunk *c, atomic_uint *preferred, atomic_uint *refused, uint32_t *attempts,
                         k2i_chunk_result *result, k2_error *err)
{
    uint32_t first = atomic_load(preferred), left = 0;
    for (uint32_t i = 0; i < c->source_count; i++) {
        uint32_t source = (first + i) % c->source_count;
        k2_xfer_remote *r = c->sources[source];
        if (atomic_load(refused) & 1u << source) continue;
        if ((*attempts)++ > 0) {
            result->retries++;
            atomic_fetch_add(&r->retries, 1);
        }
        k2_code code = attempt(x, c, r, err);
        if (code == K2_OK) {
            if (source != first) atomic_store(preferred, source);
            result->source = source;
            return K2_OK;
        }
        if (code == K2_CANCELED) return code;
        k2_flight_mark(K2_FLIGHT_CHUNK_FAILED, c->offset, c->bytes, *attempts, code);
        k2_error_prefix(err, "bytes %llu to %llu of %s", (unsigned long long)c->offset,
                        (unsigned long long)(c->offset + c->bytes), r->name);
        if (is_final(code))
            atomic_fetch_or(refused, 1u << source);
        else
            left++;
        if (k2_now_ns() >= c->deadline_ns) return code;
    }
    return left > 0 ? K2_AGAIN : err->code;
}

k2_code k2i_chunk_read(k2_xfer *x, const k2i_chunk *c, k2i_chunk_result *result, k2_error *err)
{
    atomic_uint own_preferred = 0, own_refused = 0;
    atomic_uint *preferred = c->preferred != NULL ? c->preferred : &own_preferred;
    atomic_uint *refused = c->refused != NULL ? c->refused : &own_refused;
    uint32_t attempts = 0;
    k2_error why = {.code = K2_PEER_REFUSED, .text = "every source has refused before"};
    *result = (k2i_chunk_result){0};
    for (uint32_t round = 0;; round++) {
        k2_code code = round_run(x, c, preferred, refused, &attempts, result, &why);
        if (code == K2_OK) return K2_OK;
        bool over = code != K2_AGAIN || round == x->config.retries;
        if (!over) {
            uint64_t until = k2_now_ns() + backoff_ns(x, round + 1);
            if (until >= c->deadline_ns)
                over = true;
            else if (!k2i_pause(until, c->cancel))
                return k2_error_set(err, K2_CANCELED, "canceled");
        }
        if (over) return k2_error_set(err, why.code, "%s (attempts: %u, sources: %u)", why.text, attempts, c->source_count);
    }
}

k2_code k2_xfer_read(k2_xfer_remote *r, uint64_t offset, uint64_t bytes, void *local, const uint64_t *hash,
                     uint64_t deadline_ns, k2_error *err)
{
    if (offset > r->bytes || bytes > r->bytes - offset)
        return k2_error_set(err, K2_BAD_INPUT, "%s: %llu bytes at offset %llu are not inside", r->name,
                            (unsigned long long)bytes, (unsigned long long)offset);
    if (bytes > r->ops->caps.read_max)
        return k2_error_set(err, K2_LIMIT, "%s: %llu bytes in one read, at most %llu", r->name, (unsigned long long)bytes,
                            (unsigned long long)r->ops->caps.read_max);
    if (bytes == 0) return K2_OK;
    k2i_chunk c = {.sources = &r,
                   .source_count = 1,
                   .offset = offset,
                   .bytes = bytes,
                   .local = local,
                   .hash = hash,
                   .deadline_ns = deadline_ns};
    k2i_chunk_result result;
    return k2i_chunk_read(r->x, &c, &result, err);
}
