/* What every transport must do, through the engine: once as it is and once with the fault wrapper in between (which then does
 * nothing). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/conform/xfer/fault_int.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

typedef struct fixture {
    const char *transport;
    bool wrapped;
    const k2_xfer_caps *caps;
    k2_xfer *x; /* offers and reads: two engines are used where it matters */
} fixture;

static k2_xfer *engine(const fixture *f, k2_xfer_config config)
{
    k2_xfer *x = NULL;
    k2_error err = {0};
    config.transport = f->transport;
    if (f->wrapped) config.ops = fault_ops();
    if (k2_xfer_open(&config, &x, &err) != K2_OK) fail_msg("%s", err.text);
    return x;
}

static int setup(void **state)
{
    fixture *f = *state;
    for (const k2_xfer_ops *const *ops = k2_xfer_builtin(); *ops != NULL; ops++)
        if (strcmp((*ops)->name, f->transport) == 0) f->caps = &(*ops)->caps;
    f->x = engine(f, (k2_xfer_config){.rails = 3, .servers = 2, .chunk_bytes = 64 << 10});
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    k2_xfer_close(f->x);
    return 0;
}

static void fill(void *memory, size_t bytes, uint64_t seed)
{
    unsigned char *m = memory;
    for (size_t i = 0; i < bytes; i++) m[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 11);
}

static k2_xfer_segment *offer(k2_xfer *x, uint64_t bytes, uint64_t seed)
{
    k2_xfer_segment *s = NULL;
    k2_error err = {0};
    if (k2_xfer_segment_create(x, bytes, &s, &err) != K2_OK) fail_msg("%s", err.text);
    assert_int_equal((uintptr_t)k2_xfer_segment_memory(s) % 4096, 0);
    fill(k2_xfer_segment_memory(s), bytes, seed);
    return s;
}

static k2_xfer_remote *reach(k2_xfer *x, const k2_xfer_segment *s)
{
    k2_xfer_remote *r = NULL;
    k2_error err = {0};
    if (k2_xfer_remote_open(x, k2_xfer_segment_locator(s), UINT64_MAX, &r, &err) != K2_OK) fail_msg("%s", err.text);
    return r;
}

static k2_xfer_batch *submit(k2_xfer *x, const k2_xfer_request *q, size_t n)
{
    k2_xfer_batch *b = NULL;
    k2_error err = {0};
    if (k2_xfer_batch_submit(x, q, n, &b, &err) != K2_OK) fail_msg("%s", err.text);
    return b;
}

static void finish_ok(k2_xfer_batch *b)
{
    k2_error err = {0};
    if (k2_xfer_batch_wait(b, UINT64_MAX, &err) != K2_OK) fail_msg("%s", err.text);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static void segments_of_any_size_arrive_whole(void **state)
{
    fixture *f = *state;
    static const size_t sizes[] = {1, 7, 4095, 4096, 65536, 65537, 3 * MIB + 3};
    for (size_t i = 0; i < K2_COUNT(sizes); i++) {
        k2_xfer_segment *s = offer(f->x, sizes[i], i);
        k2_xfer_remote *r = reach(f->x, s);
        assert_int_equal(k2_xfer_remote_bytes(r), sizes[i]);
        unsigned char *local = k2_alloc(sizes[i] + 16);
        memset(local, 0xee, sizes[i] + 16);
        k2_xfer_batch *b =
            submit(f->x, &(k2_xfer_request){.sources = &r, .source_count = 1, .bytes = sizes[i], .local = local + 8}, 1);
        finish_ok(b);
        assert_memory_equal(local + 8, k2_xfer_segment_memory(s), sizes[i]);
        for (size_t j = 0; j < 8; j++) assert_true(local[j] == 0xee && local[8 + sizes[i] + j] == 0xee);
        k2_xfer_progress p;
        assert_true(k2_xfer_batch_poll(b, &p));
        assert_true(p.finished && p.code == K2_OK && p.done_bytes == sizes[i] && p.bytes == sizes[i] && p.retries == 0);
        k2_xfer_remote_stats stats;
        k2_xfer_remote_stats_get(r, &stats);
        assert_true(stats.bytes == sizes[i] && stats.failures == 0 && stats.chunks == (sizes[i] + 65535) / 65536);
        k2_xfer_batch_close(b);
        k2_xfer_remote_close(r);
        k2_xfer_segment_destroy(s);
        k2_free(local);
    }
}

static void many_requests_with_hashes_in_several_batches(void **state)
{
    fixture *f = *state;
    enum { COUNT = 200, BATCHES = 4, CHUNK = 4096 };
    size_t bytes = 2 * MIB;
    k2_xfer_segment *s = offer(f->x, bytes, 3);
    k2_xfer_remote *r = reach(f->x, s);
    const unsigned char *source = k2_xfer_segment_memory(s);
    unsigned char *local = k2_alloc(BATCHES * bytes);
    static k2_xfer_request q[BATCHES][COUNT];
    static uint64_t hashes[BATCHES][COUNT][8];
    k2_xfer_batch *b[BATCHES];
    for (size_t i = 0; i < BATCHES; i++) {
        size_t at = 0;
        for (size_t j = 0; j < COUNT; j++) {
            uint64_t length = k2_rand_below(9, K2_STREAM_TEST, i, 2 * j, 10000);
            uint64_t offset = k2_rand_below(9, K2_STREAM_TEST, i, 2 * j + 1, bytes - length);
            for (size_t k = 0; k * CHUNK < length; k++)
                hashes[i][j][k] = k2_hash64(source + offset + k * CHUNK, K2_MIN((size_t)CHUNK, length - k * CHUNK), 0);
            q[i][j] = (k2_xfer_request){.sources = &r,
                                        .source_count = 1,
                                        .offset = offset,
                                        .bytes = length,
                                        .local = local + i * bytes + at,
                                        .chunk_bytes = CHUNK,
                                        .hashes = hashes[i][j]};
            at += length;
        }
        b[i] = submit(f->x, q[i], COUNT);
    }
    for (size_t i = 0; i < BATCHES; i++) {
        finish_ok(b[i]);
        for (size_t j = 0; j < COUNT; j++)
            if (q[i][j].bytes > 0) assert_memory_equal(q[i][j].local, source + q[i][j].offset, q[i][j].bytes);
        k2_xfer_batch_close(b[i]);
    }
    k2_free(local);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
}

static void nothing_to_read_is_done_at_once(void **state)
{
    fixture *f = *state;
    k2_xfer_segment *s = offer(f->x, 10, 0);
    k2_xfer_remote *r = reach(f->x, s);
    k2_xfer_batch *b = submit(f->x, NULL, 0);
    assert_true(k2_xfer_batch_poll(b, NULL));
    k2_xfer_batch_close(b);
    b = submit(f->x, &(k2_xfer_request){.sources = &r, .source_count = 1, .offset = 10}, 1);
    assert_true(k2_xfer_batch_poll(b, NULL));
    finish_ok(b);
    k2_xfer_batch_close(b);
    assert_int_equal(k2_xfer_read(r, 10, 0, NULL, NULL, UINT64_MAX, NULL), K2_OK);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
}

static void another_engine_reads_at_the_same_time(void **state)
{
    fixture *f = *state;
    k2_xfer *y = engine(f, (k2_xfer_config){.rails = 2});
    size_t bytes = 5 * MIB + 1;
    k2_xfer_segment *s = offer(f->x, bytes, 4);
    k2_xfer_remote *rx = reach(f->x, s), *ry = reach(y, s);
    unsigned char *local = k2_alloc(2 * bytes);
    k2_xfer_batch *bx = submit(f->x, &(k2_xfer_request){.sources = &rx, .source_count = 1, .bytes = bytes, .local = local}, 1);
    k2_xfer_batch *by =
        submit(y, &(k2_xfer_request){.sources = &ry, .source_count = 1, .bytes = bytes, .local = local + bytes}, 1);
    finish_ok(bx);
    finish_ok(by);
    assert_memory_equal(local, k2_xfer_segment_memory(s), bytes);
    assert_memory_equal(local + bytes, k2_xfer_segment_memory(s), bytes);
    k2_xfer_batch_close(bx);
    k2_xfer_batch_close(by);
    k2_xfer_remote_close(rx);
    k2_xfer_remote_close(ry);
    k2_xfer_segment_destroy(s);
    k2_xfer_close(y);
    k2_free(local);
}

static void mapped_bytes_are_the_bytes(void **state)
{
    fixture *f = *state;
    k2_xfer_segment *s = offer(f->x, 5000, 5);
    k2_xfer_remote *r = reach(f->x, s);
    const unsigned char *map = k2_xfer_remote_map(r);
    assert_true((map != NULL) == f->caps->maps);
    if (map != NULL) assert_memory_equal(map, k2_xfer_segment_memory(s), 5000);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

static void ranges_outside_are_bad_input(void **state)
{
    fixture *f = *state;
    k2_xfer_segment *s = offer(f->x, 100, 0);
    k2_xfer_remote *r = reach(f->x, s);
    unsigned char local[200];
    static const struct {
        uint64_t offset, bytes;
    } bad[] = {{0, 101}, {101, 0}, {100, 1}, {1, 100}, {UINT64_MAX, 1}, {UINT64_MAX, 101}, {50, UINT64_MAX - 10}};
    for (size_t i = 0; i < K2_COUNT(bad); i++) {
        k2_xfer_request q = {.sources = &r, .source_count = 1, .offset = bad[i].offset, .bytes = bad[i].bytes, .local = local};
        k2_xfer_batch *b = NULL;
        k2_error err = {0};
        assert_int_equal(k2_xfer_batch_submit(f->x, &q, 1, &b, &err), K2_BAD_INPUT);
        assert_non_null(strstr(err.text, "request 0"));
        assert_int_equal(k2_xfer_read(r, bad[i].offset, bad[i].bytes, local, NULL, UINT64_MAX, &err), K2_BAD_INPUT);
    }
    k2_xfer_request q = {.sources = &r, .source_count = 0, .bytes = 1, .local = local};
    k2_xfer_batch *b = NULL;
    assert_int_equal(k2_xfer_batch_submit(f->x, &q, 1, &b, NULL), K2_BAD_INPUT);
    q = (k2_xfer_request){.sources = &r, .source_count = 1, .bytes = 1, .local = local, .chunk_bytes = K2_XFER_CHUNK_MAX + 1};
    assert_int_equal(k2_xfer_batch_submit(f->x, &q, 1, &b, NULL), K2_BAD_INPUT);
    q.chunk_bytes = K2_XFER_CHUNK_MIN - 1;
    assert_int_equal(k2_xfer_batch_submit(f->x, &q, 1, &b, NULL), K2_BAD_INPUT);
    assert_int_equal(k2_xfer_batch_submit(f->x, &q, K2_XFER_REQUESTS_MAX + 1, &b, NULL), K2_LIMIT);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
}

static void a_wrong_nonce_or_size_opens_nothing(void **state)
{
    fixture *f = *state;
    k2_xfer_segment *s = offer(f->x, 100, 0);
    k2_xfer_locator l, wrong;
    char text[K2_XFER_LOCATOR_MAX];
    k2_xfer_remote *r = NULL;
    k2_error err = {0};
    assert_int_equal(k2_xfer_locator_parse(k2_xfer_segment_locator(s), &l, NULL), K2_OK);
    for (unsigned i = 0; i < 128; i += 9) {
        wrong = l;
        wrong.nonce.bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        k2_xfer_locator_format(&wrong, true, text);
        assert_int_equal(k2_xfer_remote_open(f->x, text, UINT64_MAX, &r, &err), K2_PEER_REFUSED);
    }
    wrong = l;
    wrong.bytes = 101;
    k2_xfer_locator_format(&wrong, true, text);
    assert_int_equal(k2_xfer_remote_open(f->x, text, UINT64_MAX, &r, &err), K2_PEER_REFUSED);
    assert_int_equal(k2_xfer_remote_open(f->x, "nonsense", UINT64_MAX, &r, &err), K2_BAD_INPUT);
    assert_int_equal(k2_xfer_remote_open(f->x, "rope:1:2:3", UINT64_MAX, &r, &err), K2_UNSUPPORTED);
    assert_null(r);
    k2_xfer_segment_destroy(s);
}

static void withdrawn_memory_is_refused_or_stays_mapped(void **state)
{
    fixture *f = *state;
    unsigned char expected[1000], local[1000];
    fill(expected, sizeof expected, 8);
    k2_xfer_segment *s = offer(f->x, sizeof expected, 8);
    k2_xfer_remote *r = reach(f->x, s), *late = NULL;
    char locator[K2_XFER_LOCATOR_MAX];
    snprintf(locator, sizeof locator, "%s", k2_xfer_segment_locator(s));
    k2_xfer_segment_destroy(s);
    k2_error err = {0};
    assert_int_equal(k2_xfer_remote_open(f->x, locator, UINT64_MAX, &late, &err), K2_PEER_REFUSED);
    k2_code code = k2_xfer_read(r, 0, sizeof local, local, NULL, UINT64_MAX, &err);
    if (f->caps->maps) {
        assert_int_equal(code, K2_OK);
        assert_memory_equal(local, expected, sizeof local);
    } else {
        assert_int_equal(code, K2_PEER_REFUSED);
        assert_non_null(strstr(err.text, k2_xfer_remote_name(r)));
        assert_int_equal(k2_xfer_remote_wait(r, 0, UINT64_MAX, UINT64_MAX, NULL, &err), K2_PEER_REFUSED);
    }
    k2_xfer_remote_close(r);
}

static void sizes_and_counts_have_limits(void **state)
{
    fixture *f = *state;
    k2_xfer_segment *s[K2_XFER_SEGMENTS_MAX], *more = NULL;
    k2_error err = {0};
    assert_int_equal(k2_xfer_segment_create(f->x, 0, &more, &err), K2_LIMIT);
    assert_int_equal(k2_xfer_segment_create(f->x, K2_XFER_SEGMENT_MAX + 1, &more, &err), K2_LIMIT);
    k2_code code = k2_xfer_segment_create(f->x, K2_XFER_SEGMENT_MAX, &more, &err); /* 64 TiB: no machine has them */
    assert_int_equal(code, K2_NO_MEMORY);
    for (size_t i = 0; i < K2_XFER_SEGMENTS_MAX; i++) s[i] = offer(f->x, 8, i);
    assert_int_equal(k2_xfer_segment_create(f->x, 8, &more, &err), K2_FULL);
    for (size_t i = 0; i < K2_XFER_SEGMENTS_MAX; i++) k2_xfer_segment_destroy(s[i]);
    static const k2_xfer_config bad[] = {{.rails = K2_XFER_RAILS_MAX + 1},
                                         {.servers = K2_XFER_SERVERS_MAX + 1},
                                         {.retries = K2_XFER_RETRIES_MAX + 1},
                                         {.chunk_bytes = K2_XFER_CHUNK_MIN - 1},
                                         {.chunk_bytes = K2_XFER_CHUNK_MAX + 1}};
    for (size_t i = 0; i < K2_COUNT(bad); i++) {
        k2_xfer_config config = bad[i];
        k2_xfer *x = NULL;
        config.transport = f->transport;
        assert_int_equal(k2_xfer_open(&config, &x, &err), K2_BAD_INPUT);
    }
}

/* ---- verification and sources ------------------------------------------------------------------------------------- */

static void wrong_bytes_never_count_as_done(void **state)
{
    fixture *f = *state;
    enum { CHUNK = 4096, CHUNKS = 8 };
    k2_xfer *x = engine(f, (k2_xfer_config){.retries = 2, .backoff_ns = 1000});
    k2_xfer_segment *s = offer(x, CHUNKS * CHUNK, 1);
    k2_xfer_remote *r = reach(x, s);
    unsigned char local[CHUNKS * CHUNK];
    uint64_t hashes[CHUNKS];
    const unsigned char *m = k2_xfer_segment_memory(s);
    for (size_t i = 0; i < CHUNKS; i++) hashes[i] = k2_hash64(m + i * CHUNK, CHUNK, 0) ^ (i == 5);
    k2_xfer_batch *b = submit(
        x,
        &(k2_xfer_request){
            .sources = &r, .source_count = 1, .bytes = sizeof local, .local = local, .chunk_bytes = CHUNK, .hashes = hashes},
        1);
    k2_error err = {0};
    assert_int_equal(k2_xfer_batch_wait(b, UINT64_MAX, &err), K2_CORRUPT);
    char expected[64];
    snprintf(expected, sizeof expected, "expected %016llx", (unsigned long long)hashes[5]);
    assert_non_null(strstr(err.text, expected));
    assert_non_null(strstr(err.text, "bytes 20480 to 24576"));
    k2_xfer_progress p;
    assert_true(k2_xfer_batch_poll(b, &p));
    assert_true(p.done_bytes >= 5 * CHUNK && p.done_bytes <= 7 * CHUNK); /* another thread may be ahead of the bad one */
    assert_int_equal(p.retries, 2);
    k2_xfer_remote_stats stats;
    k2_xfer_remote_stats_get(r, &stats);
    assert_true(stats.corrupt == 3 && stats.failures == 3 && stats.retries == 2 && stats.bytes == p.done_bytes);
    k2_xfer_batch_close(b);
    uint64_t right = k2_hash64(m, 100, 0), wrong = right + 1;
    assert_int_equal(k2_xfer_read(r, 0, 100, local, &right, UINT64_MAX, &err), K2_OK);
    assert_int_equal(k2_xfer_read(r, 0, 100, local, &wrong, UINT64_MAX, &err), K2_CORRUPT);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
    k2_xfer_close(x);
}

static void the_next_source_helps_out(void **state)
{
    fixture *f = *state;
    enum { CHUNK = 4096, CHUNKS = 16 };
    k2_xfer_segment *s[3];
    k2_xfer_remote *r[3];
    for (size_t i = 0; i < 3; i++) {
        s[i] = offer(f->x, CHUNKS * CHUNK, 77);
        r[i] = reach(f->x, s[i]);
    }
    unsigned char *first = k2_xfer_segment_memory(s[0]), *local = k2_alloc(CHUNKS * CHUNK);
    uint64_t hashes[CHUNKS];
    for (size_t i = 0; i < CHUNKS; i++) hashes[i] = k2_hash64(first + i * CHUNK, CHUNK, 0);
    memset(first + 3 * CHUNK, 0, 10 * CHUNK); /* the first holder's copy is damaged */
    k2_xfer_segment_destroy(s[1]);            /* the second has gone away, where that can be noticed */
    k2_xfer_batch *b = submit(
        f->x,
        &(k2_xfer_request){
            .sources = r, .source_count = 3, .bytes = CHUNKS * CHUNK, .local = local, .chunk_bytes = CHUNK, .hashes = hashes},
        1);
    finish_ok(b);
    assert_memory_equal(local, k2_xfer_segment_memory(s[2]), CHUNKS * CHUNK);
    k2_xfer_progress p;
    assert_true(k2_xfer_batch_poll(b, &p));
    assert_true(p.elsewhere >= 10 && p.retries >= 1);
    k2_xfer_batch_close(b);
    for (size_t i = 0; i < 3; i++) k2_xfer_remote_close(r[i]);
    k2_xfer_segment_destroy(s[0]);
    k2_xfer_segment_destroy(s[2]);
    k2_free(local);
}

/* ---- signals ------------------------------------------------------------------------------------------------------ */

typedef struct waiter {
    k2_xfer_remote *r;
    uint64_t rounds, wrong;
} waiter;

static void *waiter_main(void *arg)
{
    waiter *w = arg;
    for (uint64_t round = 1; round <= w->rounds; round++) {
        uint64_t seen = 0, data = 0;
        k2_code code = k2_xfer_remote_wait(w->r, 0, round, UINT64_MAX, &seen, NULL);
        if (code == K2_OK) code = k2_xfer_read(w->r, 8 * (1 + round), 8, &data, NULL, UINT64_MAX, NULL);
        if (code != K2_OK || seen < round || data != round * 1000) w->wrong++;
    }
    return NULL;
}

static void a_signal_shows_everything_written_before(void **state)
{
    fixture *f = *state;
    enum { ROUNDS = 200, WAITERS = 3 };
    k2_xfer_segment *s;
    k2_error err;
    assert_int_equal(k2_xfer_segment_create(f->x, 8 * (ROUNDS + 2), &s, &err), K2_OK);
    waiter w[WAITERS];
    pthread_t thread[WAITERS];
    for (size_t i = 0; i < WAITERS; i++) {
        w[i] = (waiter){.r = reach(f->x, s), .rounds = ROUNDS};
        assert_int_equal(pthread_create(&thread[i], NULL, waiter_main, &w[i]), 0);
    }
    uint64_t *words = k2_xfer_segment_memory(s);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        words[1 + round] = round * 1000; /* a place of its own: readers may be rounds behind */
        k2_xfer_segment_signal(s, 0, round);
    }
    for (size_t i = 0; i < WAITERS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(w[i].wrong, 0);
        k2_xfer_remote_close(w[i].r);
    }
    k2_xfer_segment_destroy(s);
}

static void a_wait_has_an_end(void **state)
{
    fixture *f = *state;
    k2_xfer_segment *s;
    k2_error err = {0};
    assert_int_equal(k2_xfer_segment_create(f->x, 24, &s, &err), K2_OK);
    k2_xfer_remote *r = reach(f->x, s);
    k2_xfer_segment_signal(s, 16, 5);
    uint64_t seen = 0;
    assert_int_equal(k2_xfer_remote_wait(r, 16, 5, 0, &seen, &err), K2_OK); /* a deadline in the past still looks once */
    assert_int_equal(seen, 5);
    assert_int_equal(k2_xfer_remote_wait(r, 16, 6, k2_now_ns() + 30 * K2_NS_PER_MS, &seen, &err), K2_TIMEOUT);
    assert_non_null(strstr(err.text, "stands at 5, expected 6"));
    assert_int_equal(k2_xfer_remote_wait(r, 17, 1, 0, NULL, &err), K2_BAD_INPUT);
    assert_int_equal(k2_xfer_remote_wait(r, 24, 1, 0, NULL, &err), K2_BAD_INPUT);
    assert_int_equal(k2_xfer_remote_wait(r, UINT64_MAX - 7, 1, 0, NULL, &err), K2_BAD_INPUT);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
}

/* ---- ends --------------------------------------------------------------------------------------------------------- */

static void a_batch_can_be_left_at_any_time(void **state)
{
    fixture *f = *state;
    size_t bytes = 8 * MIB;
    k2_xfer_segment *s = offer(f->x, bytes, 2);
    k2_xfer_remote *r = reach(f->x, s);
    unsigned char *local = k2_alloc(bytes);
    for (int i = 0; i < 10; i++) {
        k2_xfer_request q = {.sources = &r, .source_count = 1, .bytes = bytes, .local = local, .chunk_bytes = 4096};
        k2_xfer_batch *b = submit(f->x, &q, 1);
        if (i % 2 == 0) {
            k2_xfer_batch_cancel(b);
            k2_code code = k2_xfer_batch_wait(b, UINT64_MAX, NULL);
            k2_xfer_progress p;
            assert_true(k2_xfer_batch_poll(b, &p));
            assert_true(code == K2_CANCELED || (code == K2_OK && p.done_bytes == bytes));
        }
        k2_xfer_batch_close(b);
        memset(local, 0, bytes); /* nobody writes here any more: the sanitizers would see it */
    }
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
    k2_free(local);
}

#define SUITE(transport, with_faults)                                                                                          \
    {                                                                                                                          \
        static fixture f = {transport, with_faults, NULL, NULL};                                                               \
        const struct CMUnitTest tests[] = {                                                                                    \
            CASE(segments_of_any_size_arrive_whole),                                                                           \
            CASE(many_requests_with_hashes_in_several_batches),                                                                \
            CASE(nothing_to_read_is_done_at_once),                                                                             \
            CASE(another_engine_reads_at_the_same_time),                                                                       \
            CASE(mapped_bytes_are_the_bytes),                                                                                  \
            CASE(ranges_outside_are_bad_input),                                                                                \
            CASE(a_wrong_nonce_or_size_opens_nothing),                                                                         \
            CASE(withdrawn_memory_is_refused_or_stays_mapped),                                                                 \
            CASE(sizes_and_counts_have_limits),                                                                                \
            CASE(wrong_bytes_never_count_as_done),                                                                             \
            CASE(the_next_source_helps_out),                                                                                   \
            CASE(a_signal_shows_everything_written_before),                                                                    \
            CASE(a_wait_has_an_end),                                                                                           \
            CASE(a_batch_can_be_left_at_any_time),                                                                             \
        };                                                                                                                     \
        failed += cmocka_run_group_tests_name(transport, tests, NULL, NULL);                                                   \
    }
#define CASE(test) cmocka_unit_test_prestate_setup_teardown(test, setup, teardown, &f)

int main(void)
{
    int failed = 0;
    SUITE("self", false)
    SUITE("shm", false)
    SUITE("tcp", false)
    SUITE("self", true)
    SUITE("shm", true)
    SUITE("tcp", true)
    return failed;
}
