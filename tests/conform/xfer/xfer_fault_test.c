/* Faults of every kind, at every chunk, on every transport: a read ends with the right bytes or a clear error, never with wrong
 * ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/conform/xfer/fault_int.h"
#include "tests/conform/xfer/relay_int.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 4096, CHUNKS = 8, BYTES = CHUNK * CHUNKS, RETRIES = 3 };

typedef struct fixture {
    const char *transport;
    k2_xfer *x;
    k2_xfer_segment *segment[2];
    k2_xfer_remote *remote[2]; /* both hold the same bytes */
    uint64_t hashes[CHUNKS];
    unsigned char local[BYTES];
} fixture;

static int setup(void **state)
{
    fixture *f = *state;
    k2_error err;
    k2_xfer_config config = {.transport = f->transport, .retries = RETRIES, .backoff_ns = 1000, .ops = fault_ops()};
    fault_plan(FAULT_NONE, 0, 0);
    if (k2_xfer_open(&config, &f->x, &err) != K2_OK) return -1;
    for (size_t i = 0; i < 2; i++) {
        if (k2_xfer_segment_create(f->x, BYTES, &f->segment[i], &err) != K2_OK) return -1;
        unsigned char *m = k2_xfer_segment_memory(f->segment[i]);
        for (size_t j = 0; j < BYTES; j++) m[j] = (unsigned char)(j * 31 >> 4);
        for (size_t j = 0; j < CHUNKS; j++) f->hashes[j] = k2_hash64(m + j * CHUNK, CHUNK, 0);
        if (k2_xfer_remote_open(f->x, k2_xfer_segment_locator(f->segment[i]), UINT64_MAX, &f->remote[i], &err) != K2_OK)
            return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 2; i++) {
        k2_xfer_remote_close(f->remote[i]);
        k2_xfer_segment_destroy(f->segment[i]);
    }
    k2_xfer_close(f->x);
    return 0;
}

static k2_code read_all(fixture *f, uint32_t sources, k2_xfer_progress *p, k2_error *err)
{
    k2_xfer_batch *b;
    k2_xfer_request q = {.sources = f->remote,
                         .source_count = sources,
                         .bytes = BYTES,
                         .local = f->local,
                         .chunk_bytes = CHUNK,
                         .hashes = f->hashes};
    memset(f->local, 0, BYTES);
    assert_int_equal(k2_xfer_batch_submit(f->x, &q, 1, &b, err), K2_OK);
    k2_code code = k2_xfer_batch_wait(b, UINT64_MAX, err);
    assert_true(k2_xfer_batch_poll(b, p));
    assert_int_equal(p->code, code);
    k2_xfer_batch_close(b);
    if (code == K2_OK) assert_memory_equal(f->local, k2_xfer_segment_memory(f->segment[0]), BYTES);
    return code;
}

static const k2_code code_of[FAULT_COUNT] = {[FAULT_DROP] = K2_TIMEOUT,
                                             [FAULT_CORRUPT] = K2_CORRUPT,
                                             [FAULT_CUT] = K2_PEER_CLOSED,
                                             [FAULT_DELAY] = K2_TIMEOUT,
                                             [FAULT_REFUSE] = K2_PEER_REFUSED};

static void passing_faults_are_retried(void **state)
{
    fixture *f = *state;
    k2_xfer_progress p;
    k2_error err;
    for (fault_kind kind = FAULT_DROP; kind < FAULT_REFUSE; kind++)
        for (unsigned n = 0; n < CHUNKS; n++) {
            fault_plan(kind, n, RETRIES);
            if (read_all(f, 1, &p, &err) != K2_OK) fail_msg("fault %d at chunk %u: %s", (int)kind, n, err.text);
            assert_int_equal(fault_hits(), RETRIES);
            assert_int_equal(p.retries, fault_hits());
        }
}

static void faults_without_end_are_an_error_that_names_them(void **state)
{
    fixture *f = *state;
    k2_xfer_progress p;
    k2_error err;
    for (fault_kind kind = FAULT_DROP; kind < FAULT_COUNT; kind++) {
        fault_plan(kind, 2, 1000);
        assert_int_equal(read_all(f, 1, &p, &err), code_of[kind]);
        assert_int_equal(p.done_bytes, 2 * CHUNK);
        assert_non_null(strstr(err.text, "request 0: bytes 8192 to 12288 of "));
        assert_non_null(strstr(err.text, k2_xfer_remote_name(f->remote[0])));
        assert_int_equal(fault_hits(), kind == FAULT_REFUSE ? 1 : 1 + RETRIES); /* a no is not asked again */
    }
}

static void a_second_source_takes_over(void **state)
{
    fixture *f = *state;
    k2_xfer_progress p;
    k2_error err;
    for (fault_kind kind = FAULT_DROP; kind < FAULT_COUNT; kind++)
        for (unsigned n = 0; n < CHUNKS; n++) {
            fault_plan(kind, n, 1);
            if (read_all(f, 2, &p, &err) != K2_OK) fail_msg("fault %d at chunk %u: %s", (int)kind, n, err.text);
            assert_int_equal(p.retries, 1);
            assert_int_equal(p.elsewhere, CHUNKS - n); /* and stays in charge */
        }
    k2_xfer_remote_stats stats;
    k2_xfer_remote_stats_get(f->remote[0], &stats);
    assert_int_equal(stats.failures, CHUNKS * (FAULT_COUNT - 1));
    assert_int_equal(stats.corrupt, CHUNKS);
}

static void a_hanging_chunk_can_be_canceled(void **state)
{
    fixture *f = *state;
    k2_xfer_batch *b;
    k2_error err;
    k2_xfer_request q = {.sources = f->remote, .source_count = 1, .bytes = BYTES, .local = f->local};
    fault_plan(FAULT_HANG, 0, 1000);
    assert_int_equal(k2_xfer_batch_submit(f->x, &q, 1, &b, &err), K2_OK);
    assert_int_equal(k2_xfer_batch_wait(b, k2_now_ns() + K2_NS_PER_MS, &err), K2_TIMEOUT);
    k2_xfer_batch_cancel(b);
    k2_code code = k2_xfer_batch_wait(b, UINT64_MAX, &err);
    assert_int_equal(code, K2_CANCELED);
    k2_xfer_batch_close(b);
}

/* On the wire, under the transport's own checks. Without hashes of the caller: the frames' hashes must find it. */
static void wire_faults_at_any_byte_are_found(void **state)
{
    (void)state;
    enum { REPLY = 40 + CHUNK };
    static const uint64_t at[] = {
        0, 3, 5, 7, 8, 15, 16, 23, 24, 31, 39, 40, 41, 40 + CHUNK / 2, REPLY - 1, REPLY, REPLY + 20, 3 * REPLY + 100};
    k2_xfer *x;
    k2_xfer_segment *s;
    k2_xfer_remote *r;
    k2_error err;
    k2_xfer_locator l;
    char locator[K2_XFER_LOCATOR_MAX];
    k2_xfer_config config = {.transport = "tcp", .retries = 20, .backoff_ns = 1000, .deadline_ns = 100 * K2_NS_PER_MS};
    assert_int_equal(k2_xfer_open(&config, &x, &err), K2_OK);
    assert_int_equal(k2_xfer_segment_create(x, BYTES, &s, &err), K2_OK);
    unsigned char *m = k2_xfer_segment_memory(s), local[BYTES];
    for (size_t j = 0; j < BYTES; j++) m[j] = (unsigned char)(j * 37 >> 4);
    assert_int_equal(k2_xfer_locator_parse(k2_xfer_segment_locator(s), &l, &err), K2_OK);
    relay *y = relay_start(l.port);
    l.port = relay_port(y);
    k2_xfer_locator_format(&l, true, locator);
    assert_int_equal(k2_xfer_remote_open(x, locator, UINT64_MAX, &r, &err), K2_OK);
    for (relay_fault fault = RELAY_FLIP; fault <= RELAY_STALL; fault++)
        for (size_t i = 0; i < K2_COUNT(at); i++) {
            memset(local, 0, sizeof local);
            relay_plan(y, fault, at[i]);
            k2_xfer_batch *b;
            k2_xfer_request q = {.sources = &r, .source_count = 1, .bytes = BYTES, .local = local, .chunk_bytes = CHUNK};
            assert_int_equal(k2_xfer_batch_submit(x, &q, 1, &b, &err), K2_OK);
            k2_code code = k2_xfer_batch_wait(b, UINT64_MAX, &err);
            k2_xfer_batch_close(b);
            if (code == K2_OK) {
                assert_memory_equal(local, m, BYTES);
            } else {
                /* A status that became "refused" or "range" on the way is believed; it is a clear error, and no bytes were
                 * taken. */
                assert_true(fault == RELAY_FLIP &&
                            (code == K2_PEER_REFUSED || code == K2_BAD_INPUT || code == K2_PEER_PROTOCOL));
            }
            assert_int_equal(relay_hits(y), 1);
        }
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
    relay_stop(y);
    k2_xfer_close(x);
}

static const k2_xfer_ops *whole;
static uint32_t breaks;

static k2_code breaking_wait(void *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err)
{
    if (breaks > 0 && breaks--) return k2_error_set(err, K2_PEER_CLOSED, "fault: the connection broke");
    return whole->remote_wait(r, offset, value, deadline_ns, seen, err);
}

/* A wait that was asked again after its connection broke has not failed, and leaves no error behind. */
static void a_broken_wait_is_asked_again(void **state)
{
    (void)state;
    whole = k2_xfer_builtin()[0];
    k2_xfer_ops ops = *whole;
    ops.remote_wait = breaking_wait;
    ops.caps.maps = false;
    const k2_xfer_ops *list[] = {&ops, NULL};
    k2_xfer *x;
    k2_xfer_segment *s;
    k2_xfer_remote *r;
    k2_error err = {0};
    uint64_t seen = 0, until = k2_now_ns() + 30 * K2_NS_PER_S;
    k2_xfer_config config = {.transport = whole->name, .retries = 2, .backoff_ns = 1000, .ops = list};
    assert_int_equal(k2_xfer_open(&config, &x, &err), K2_OK);
    assert_int_equal(k2_xfer_segment_create(x, BYTES, &s, &err), K2_OK);
    k2_xfer_segment_signal(s, 8, 5);
    assert_int_equal(k2_xfer_remote_open(x, k2_xfer_segment_locator(s), UINT64_MAX, &r, &err), K2_OK);
    breaks = 2;
    assert_int_equal(k2_xfer_remote_wait(r, 8, 5, until, &seen, &err), K2_OK);
    assert_true(seen == 5 && err.code == K2_OK);
    breaks = 3;
    assert_int_equal(k2_xfer_remote_wait(r, 8, 5, until, &seen, &err), K2_PEER_CLOSED);
    assert_non_null(strstr(err.text, "broke"));
    assert_int_equal(strncmp(err.text, k2_xfer_remote_name(r), strlen(k2_xfer_remote_name(r))), 0);
    k2_xfer_remote_close(r);
    k2_xfer_segment_destroy(s);
    k2_xfer_close(x);
}

#define SUITE(which)                                                                                                           \
    {                                                                                                                          \
        static fixture f = {.transport = which};                                                                               \
        const struct CMUnitTest tests[] = {                                                                                    \
            CASE(passing_faults_are_retried),                                                                                  \
            CASE(faults_without_end_are_an_error_that_names_them),                                                             \
            CASE(a_second_source_takes_over),                                                                                  \
            CASE(a_hanging_chunk_can_be_canceled),                                                                             \
        };                                                                                                                     \
        failed += cmocka_run_group_tests_name(which, tests, NULL, NULL);                                                       \
    }
#define CASE(test) cmocka_unit_test_prestate_setup_teardown(test, setup, teardown, &f)

int main(void)
{
    int failed = 0;
    SUITE("self")
    SUITE("shm")
    SUITE("tcp")
    const struct CMUnitTest wire[] = {cmocka_unit_test(wire_faults_at_any_byte_are_found),
                                      cmocka_unit_test(a_broken_wait_is_asked_again)};
    failed += cmocka_run_group_tests_name("wire", wire, NULL, NULL);
    return failed;
}
