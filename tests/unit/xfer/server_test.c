/* The tcp server against clients that do not play by the rules: raw sockets instead of our own reading half. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/xfer/xfer_int.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct fixture {
    k2_xfer *x;
    k2_xfer_segment *segment;
    k2_xfer_locator where;
    k2i_tcp_request read; /* a good request for the whole segment */
} fixture;

#define BYTES 10000u

static int setup_with(void **state, uint32_t servers)
{
    static fixture f;
    k2_error err;
    f = (fixture){0};
    if (k2_xfer_open(&(k2_xfer_config){.transport = "tcp", .servers = servers}, &f.x, &err) != K2_OK) return -1;
    if (k2_xfer_segment_create(f.x, BYTES, &f.segment, &err) != K2_OK) return -1;
    if (k2_xfer_locator_parse(k2_xfer_segment_locator(f.segment), &f.where, &err) != K2_OK) return -1;
    unsigned char *m = k2_xfer_segment_memory(f.segment);
    for (size_t i = 16; i < BYTES; i++) m[i] = (unsigned char)(i * 7);
    f.read = (k2i_tcp_request){.op = K2I_OP_READ, .segment = f.where.id, .nonce = f.where.nonce, .bytes = BYTES, .tag = 5};
    *state = &f;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, 2);
}

/* For what two threads would share in an unknown order. */
static int setup_one(void **state)
{
    return setup_with(state, 1);
}

static int teardown(void **state)
{
    fixture *f = *state;
    k2_xfer_segment_destroy(f->segment);
    k2_xfer_close(f->x);
    return 0;
}

static int dial(const fixture *f)
{
    struct sockaddr_storage at;
    socklen_t len;
    assert_true(k2i_sockaddr(f->where.host, f->where.port, &at, &len));
    int fd = socket(at.ss_family, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, len), 0);
    return fd;
}

static void ask(int fd, const k2i_tcp_request *q)
{
    unsigned char frame[K2I_REQUEST_BYTES];
    k2i_tcp_request_encode(q, frame);
    assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), (int)sizeof frame);
}

static k2i_tcp_reply answer(int fd, unsigned char *payload)
{
    unsigned char frame[K2I_REPLY_BYTES];
    k2i_tcp_reply a;
    assert_int_equal(recv(fd, frame, sizeof frame, MSG_WAITALL), (int)sizeof frame);
    assert_int_equal(k2i_tcp_reply_decode(frame, sizeof frame, &a, NULL), K2_OK);
    if (a.bytes > 0) assert_int_equal(recv(fd, payload, a.bytes, MSG_WAITALL), (int)a.bytes);
    return a;
}

/* The server closes; a reset counts as well. */
static void closed(int fd)
{
    char byte;
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static void good_requests_one_byte_at_a_time_and_many_at_once(void **state)
{
    fixture *f = *state;
    unsigned char frame[K2I_REQUEST_BYTES], payload[BYTES], many[20 * K2I_REQUEST_BYTES];
    int fd = dial(f);
    k2i_tcp_request_encode(&f->read, frame);
    for (size_t i = 0; i < sizeof frame; i++) assert_int_equal(send(fd, frame + i, 1, MSG_NOSIGNAL), 1);
    k2i_tcp_reply a = answer(fd, payload);
    assert_true(a.status == K2I_STATUS_OK && a.tag == 5 && a.bytes == BYTES && a.word == BYTES);
    assert_true(a.hash == k2_hash64(payload, BYTES, 0));
    assert_memory_equal(payload, k2_xfer_segment_memory(f->segment), BYTES);

    for (unsigned i = 0; i < 20; i++) {
        k2i_tcp_request q = f->read;
        q.tag = i;
        q.bytes = i;
        k2i_tcp_request_encode(&q, many + i * K2I_REQUEST_BYTES);
    }
    assert_int_equal(send(fd, many, sizeof many, MSG_NOSIGNAL), (int)sizeof many);
    for (unsigned i = 0; i < 20; i++) {
        a = answer(fd, payload);
        assert_true(a.tag == i && a.bytes == i);
    }
    close(fd);
}

static void strangers_are_refused_and_counted(void **state)
{
    fixture *f = *state;
    k2_xfer_stats before, after;
    k2_xfer_stats_get(f->x, &before);
    int fd = dial(f);
    k2i_tcp_request q = f->read;
    q.nonce.bytes[15] ^= 1;
    ask(fd, &q);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_REFUSED);
    q = f->read;
    q.segment++;
    ask(fd, &q);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_REFUSED);
    q = f->read;
    q.offset = 1;
    ask(fd, &q);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_RANGE);
    q.offset = UINT64_MAX;
    ask(fd, &q);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_RANGE);
    close(fd);
    k2_xfer_stats_get(f->x, &after);
    assert_int_equal(after.refused - before.refused, 2);
    assert_int_equal(after.served_bytes, before.served_bytes);
}

static void nonsense_closes_the_connection(void **state)
{
    fixture *f = *state;
    k2_xfer_stats before, after;
    k2_xfer_stats_get(f->x, &before);
    int fd = dial(f);
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    closed(fd);
    fd = dial(f);
    k2i_tcp_request q = f->read;
    q.bytes = K2_XFER_CHUNK_MAX + 1;
    ask(fd, &q);
    closed(fd);
    k2_xfer_stats_get(f->x, &after);
    assert_int_equal(after.protocol_errors - before.protocol_errors, 2);
}

static void hanging_up_anywhere_hurts_nobody(void **state)
{
    fixture *f = *state;
    unsigned char frame[K2I_REQUEST_BYTES], payload[BYTES];
    k2i_tcp_request_encode(&f->read, frame);
    for (size_t n = 0; n <= sizeof frame; n += 16) { /* the last one hangs up on the whole reply */
        int fd = dial(f);
        assert_int_equal(send(fd, frame, n, MSG_NOSIGNAL), (int)n);
        close(fd);
    }
    k2i_tcp_request wait = {
        .op = K2I_OP_WAIT, .segment = f->where.id, .nonce = f->where.nonce, .bytes = 99, .timeout_ms = 10000};
    int fd = dial(f);
    ask(fd, &wait);
    close(fd);
    fd = dial(f);
    ask(fd, &f->read);
    assert_int_equal(answer(fd, payload).status, K2I_STATUS_OK);
    close(fd);
}

static void long_polls_end_by_value_time_or_withdrawal(void **state)
{
    fixture *f = *state;
    k2i_tcp_request wait = {.op = K2I_OP_WAIT, .segment = f->where.id, .nonce = f->where.nonce, .offset = 8, .bytes = 3};
    int fd = dial(f);
    ask(fd, &wait);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_TIMEOUT);

    wait.timeout_ms = 10000;
    ask(fd, &wait);
    k2_xfer_segment_signal(f->segment, 8, 2); /* not yet */
    k2_xfer_segment_signal(f->segment, 8, 4);
    k2i_tcp_reply a = answer(fd, NULL);
    assert_true(a.status == K2I_STATUS_OK && a.word == 4);

    k2_xfer_segment *other;
    k2_xfer_locator where;
    k2_error err;
    assert_int_equal(k2_xfer_segment_create(f->x, 64, &other, &err), K2_OK);
    assert_int_equal(k2_xfer_locator_parse(k2_xfer_segment_locator(other), &where, &err), K2_OK);
    wait.segment = where.id;
    wait.nonce = where.nonce;
    ask(fd, &wait);
    k2_xfer_segment_destroy(other);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_REFUSED);
    close(fd);
}

static void a_segment_withdrawn_under_a_reply_lives_until_it_is_sent(void **state)
{
    fixture *f = *state;
    enum { BIG = 32 << 20 }; /* more than the socket's buffers take */
    k2_xfer_segment *big;
    k2_xfer_locator where;
    k2_error err;
    assert_int_equal(k2_xfer_segment_create(f->x, BIG, &big, &err), K2_OK);
    assert_int_equal(k2_xfer_locator_parse(k2_xfer_segment_locator(big), &where, &err), K2_OK);
    memset(k2_xfer_segment_memory(big), 0x5a, BIG);
    k2i_tcp_request q = {.op = K2I_OP_READ, .segment = where.id, .nonce = where.nonce, .bytes = BIG};
    int fd = dial(f);
    ask(fd, &q);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 30000), 1); /* the reply has begun */
    k2_xfer_segment_destroy(big);
    unsigned char *payload = k2_alloc(BIG);
    k2i_tcp_reply a = answer(fd, payload);
    assert_true(a.bytes == BIG && a.hash == k2_hash64(payload, BIG, 0));
    ask(fd, &q);
    assert_int_equal(answer(fd, NULL).status, K2I_STATUS_REFUSED);
    k2_free(payload);
    close(fd);
}

/* Until the server has heard that all earlier connections ended. */
static void conns_gone(fixture *f)
{
    k2_xfer_stats stats;
    do {
        sched_yield();
        k2_xfer_stats_get(f->x, &stats);
    } while (stats.conns_now > 0);
}

/* Take every descriptor that the process may still have, then give `spare` of them back. */
static int descriptors_use_up(int spare, int *taken)
{
    int n = 0;
    for (int fd = dup(STDERR_FILENO); fd >= 0; fd = dup(STDERR_FILENO)) taken[n++] = fd;
    while (spare-- > 0) close(taken[--n]);
    return n;
}

static void a_server_without_descriptors_refuses_and_recovers(void **state)
{
    fixture *f = *state;
    unsigned char payload[BYTES];
    struct rlimit old, low;
    k2_xfer_stats before, after;
    k2_xfer_stats_get(f->x, &before);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = (struct rlimit){.rlim_cur = 256, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    int taken[256], n = descriptors_use_up(1, taken);
    int fd = dial(f); /* takes the last one; the server has none for its end */
    closed(fd);
    for (int i = 0; i < n; i++) close(taken[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    k2_xfer_stats_get(f->x, &after);
    assert_true(after.conns_refused > before.conns_refused);
    fd = dial(f);
    ask(fd, &f->read);
    assert_int_equal(answer(fd, payload).status, K2I_STATUS_OK);
    close(fd);
}

static void connections_have_a_cap(void **state)
{
    fixture *f = *state;
    struct rlimit old, high;
    unsigned char payload[BYTES];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    high = (struct rlimit){.rlim_cur = 2 * K2_XFER_CONNS_MAX + 100, .rlim_max = old.rlim_max};
    if (high.rlim_cur > old.rlim_max) skip();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &high), 0);
    int *fds = k2_alloc_array(K2_XFER_CONNS_MAX, sizeof *fds);
    k2i_tcp_request q = f->read;
    q.bytes = 1;
    for (size_t i = 0; i < K2_XFER_CONNS_MAX; i++) {
        fds[i] = dial(f);
        ask(fds[i], &q); /* an answer says that the server counts it */
        assert_int_equal(answer(fds[i], payload).status, K2I_STATUS_OK);
    }
    closed(dial(f));
    for (size_t i = 0; i < K2_XFER_CONNS_MAX; i++) close(fds[i]);
    k2_free(fds);
    conns_gone(f);
    int fd = dial(f);
    ask(fd, &f->read);
    assert_int_equal(answer(fd, payload).status, K2I_STATUS_OK);
    close(fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
}

static void bad_addresses_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *host, *text;
    } bad[] = {
        {"localhost", "no numeric address"}, {"0.0.0.0", "cannot be dialed"}, {"192.0.2.1", "no address of this machine"}};
    for (size_t i = 0; i < K2_COUNT(bad); i++) {
        k2_xfer *x = NULL;
        k2_error err;
        assert_int_equal(k2_xfer_open(&(k2_xfer_config){.transport = "tcp", .host = bad[i].host}, &x, &err), K2_BAD_INPUT);
        if (strstr(err.text, bad[i].text) == NULL) fail_msg("%s", err.text);
    }
    k2_xfer *x = NULL;
    k2_error err;
    fixture *f = *state;
    k2_code code = k2_xfer_open(&(k2_xfer_config){.transport = "tcp", .port = f->where.port}, &x, &err);
    assert_int_equal(code, K2_BUSY);
    assert_non_null(strstr(err.text, "listening on 127.0.0.1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(good_requests_one_byte_at_a_time_and_many_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(strangers_are_refused_and_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_closes_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(hanging_up_anywhere_hurts_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(long_polls_end_by_value_time_or_withdrawal, setup, teardown),
        cmocka_unit_test_setup_teardown(a_segment_withdrawn_under_a_reply_lives_until_it_is_sent, setup, teardown),
        cmocka_unit_test_setup_teardown(a_server_without_descriptors_refuses_and_recovers, setup_one, teardown),
        cmocka_unit_test_setup_teardown(connections_have_a_cap, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_addresses_are_named, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
