/* loop's byte streams over real loopback sockets: order, back-pressure both ways, every way to end. */
#include "common/loop/loop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#define GUARD_NS (30 * K2_NS_PER_S)

/* One end of a connection, with what happened to it. */
typedef struct end {
    struct bench *b;
    k2_conn *c;
    size_t got, sent, total, drains, eofs, connects, closes;
    k2_code why;
    char text[256];
    bool bad_bytes, echo, hold;
    char space[1000];
    size_t into_space;
} end;

typedef struct bench {
    k2_loop *loop;
    k2_timer *guard;
    k2_listener *listener;
    uint16_t port;
    end client, server;
    int accepts, ended;
    const k2_stream_ops *server_ops;
    size_t released;
} bench;

static void guard(void *arg)
{
    (void)arg;
    fail_msg("the test's loop did not end");
}

static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 131 + (i >> 8) * 7);
}

static void check_bytes(end *e, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)data[i] != pattern(e->got + i)) e->bad_bytes = true;
    e->got += n;
}

static void on_read(void *arg, const char *data, size_t n)
{
    end *e = arg;
    if (data >= e->space && data < e->space + sizeof e->space) e->into_space += n;
    check_bytes(e, data, n);
    if (e->echo) assert_int_equal(k2_conn_write(e->c, data, n), K2_OK);
    k2_loop_stop(e->b->loop);
}

static void *on_space(void *arg, size_t *room)
{
    end *e = arg;
    *room = sizeof e->space;
    return e->got % 3 == 0 ? NULL : e->space;
}

static void on_connect(void *arg, k2_conn *c)
{
    end *e = arg;
    assert_ptr_equal(e->c, c);
    e->connects++;
}

static void on_close(void *arg, k2_code why, const char *text)
{
    end *e = arg;
    e->closes++;
    e->why = why;
    e->c = NULL;
    snprintf(e->text, sizeof e->text, "%s", text);
    e->b->ended++;
    k2_loop_stop(e->b->loop);
}

static void on_eof(void *arg)
{
    end *e = arg;
    e->eofs++;
    k2_loop_stop(e->b->loop);
}

static void on_drain(void *arg)
{
    end *e = arg;
    e->drains++;
    k2_loop_stop(e->b->loop);
}

static const k2_stream_ops plain_ops = {.on_connect = on_connect, .on_read = on_read, .on_close = on_close};
static const k2_stream_ops drain_ops = {
    .on_connect = on_connect, .on_read = on_read, .on_close = on_close, .on_drain = on_drain};
static const k2_stream_ops eof_ops = {.on_connect = on_connect, .on_read = on_read, .on_close = on_close, .on_eof = on_eof};
static const k2_stream_ops space_ops = {.on_read = on_read, .on_close = on_close, .on_space = on_space};

static void on_accept(void *arg, k2_conn *c)
{
    bench *b = arg;
    b->accepts++;
    if (!b->server_ops) return;
    b->server.c = c;
    k2_conn_attach(c, b->server_ops, &b->server);
    if (b->server.hold) k2_conn_read_stop(c);
}

static int setup(void **state)
{
    bench *b = k2_alloc(sizeof *b);
    b->loop = k2_loop_new();
    b->guard = k2_timer_start(b->loop, GUARD_NS, 0, guard, NULL);
    k2_error err;
    b->listener = k2_listen(b->loop, "127.0.0.1", 0, 1024, on_accept, b, &err);
    assert_non_null(b->listener);
    b->port = k2_listener_port(b->listener);
    assert_true(b->port > 0);
    b->client.b = b->server.b = b;
    b->server_ops = &plain_ops;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    k2_timer_stop(b->guard);
    bool client_open = b->client.c != NULL, server_open = b->server.c != NULL;
    size_t client_closes = b->client.closes, server_closes = b->server.closes;
    k2_loop_free(b->loop);
    /* Each conn was told of its end exactly once, those that were open by the loop's own end. */
    assert_int_equal(b->client.closes, client_closes + client_open);
    assert_int_equal(b->server.closes, server_closes + server_open);
    assert_false(b->client.bad_bytes || b->server.bad_bytes);
    k2_free(b);
    return 0;
}

static void dial(bench *b, const k2_stream_ops *ops)
{
    b->client.c = k2_conn_dial(b->loop, "127.0.0.1", b->port, ops, &b->client, 10 * K2_NS_PER_S);
}

static void send_pattern(end *e, size_t n)
{
    char *bytes = k2_alloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (char)pattern(e->sent + i);
    assert_int_equal(k2_conn_write2(e->c, bytes, n / 3, bytes + n / 3, n - n / 3), K2_OK);
    k2_free(bytes);
    e->sent += n;
}

/* Turn the loop until *count reaches n; callbacks stop it after each event. */
static void until(bench *b, const size_t *count, size_t n)
{
    while (*count < n) k2_loop_run(b->loop);
}

static void bytes_come_back_in_order(void **state)
{
    bench *b = *state;
    b->server.echo = true;
    b->client.total = 300000;
    dial(b, &plain_ops);
    for (int i = 0; i < 300; i++) send_pattern(&b->client, 1000); /* most of them before the connection stands */
    assert_int_equal(k2_conn_queued(b->client.c), 300000);
    until(b, &b->client.got, 300000);
    assert_int_equal(b->client.connects, 1);
    assert_int_equal(b->server.got, 300000);
    char peer[K2_ADDRESS_MAX], want[K2_ADDRESS_MAX];
    snprintf(want, sizeof want, "127.0.0.1:%u", b->port);
    k2_conn_peer(b->client.c, peer);
    assert_string_equal(peer, want);
    assert_ptr_equal(k2_conn_loop(b->client.c), b->loop);
    k2_conn_close(b->client.c);
    k2_conn_close(b->client.c);
    until(b, &b->server.closes, 1);
    until(b, &b->client.closes, 1);
    assert_int_equal(b->client.why, K2_OK);
    assert_int_equal(b->server.why, K2_PEER_CLOSED);
}

static void a_stopped_reader_fills_the_queue_to_its_cap(void **state)
{
    bench *b = *state;
    b->server.hold = true;
    dial(b, &drain_ops);
    until(b, &b->client.drains, 0);
    while (b->client.connects == 0 || !b->server.c) {
        k2_loop_post(b->loop, (void (*)(void *))k2_loop_stop, b->loop);
        k2_loop_run(b->loop);
    }
    /* The kernel takes some megabytes, then the queue grows up to its cap and no further. */
    k2_code code;
    char *chunk = k2_alloc(50000);
    do {
        for (size_t i = 0; i < 50000; i++) chunk[i] = (char)pattern(b->client.sent + i);
        code = k2_conn_write(b->client.c, chunk, 50000);
        if (code == K2_OK) b->client.sent += 50000;
        assert_true(b->client.sent < 100u << 20);
    } while (code == K2_OK);
    k2_free(chunk);
    assert_int_equal(code, K2_FULL);
    assert_true(k2_conn_queued(b->client.c) <= K2_CONN_QUEUE_MAX);
    assert_int_equal(b->server.got, 0);
    b->server.total = b->client.sent;
    k2_conn_read_start(b->server.c);
    until(b, &b->server.got, b->client.sent);
    until(b, &b->client.drains, 1);
    assert_int_equal(k2_conn_queued(b->client.c), 0);
    k2_conn_queue_max(b->client.c, 10);
    send_pattern(&b->client, 1000); /* an empty queue takes any size */
    until(b, &b->server.got, b->client.sent);
}

static void released(void *arg)
{
    ++*(size_t *)arg;
}

static void borrowed_bytes_are_given_back_once(void **state)
{
    bench *b = *state;
    b->server_ops = &space_ops;
    size_t n = 3u << 20;
    char *bytes = k2_alloc(n);
    for (size_t i = 0; i < n; i++) bytes[i] = (char)pattern(i);
    dial(b, &plain_ops);
    b->server.total = n;
    assert_int_equal(k2_conn_write_ref(b->client.c, bytes, n, released, &b->released), K2_OK);
    assert_int_equal(k2_conn_write_ref(b->client.c, bytes, n, released, &b->released), K2_FULL);
    assert_int_equal(b->released, 0);
    until(b, &b->server.got, n);
    assert_int_equal(b->released, 1);
    assert_true(b->server.into_space > 0);
    /* Closed before it is written: given back all the same. */
    k2_conn_read_stop(b->server.c);
    assert_int_equal(k2_conn_write_ref(b->client.c, bytes, n, released, &b->released), K2_OK);
    k2_conn_close(b->client.c);
    assert_int_equal(b->released, 1);
    assert_int_equal(k2_conn_write_ref(b->client.c, bytes, n, released, &b->released), K2_PEER_CLOSED);
    assert_int_equal(k2_conn_write(b->client.c, bytes, n), K2_PEER_CLOSED);
    until(b, &b->client.closes, 1);
    assert_int_equal(b->released, 2);
    k2_free(bytes);
}

static void half_close_lets_the_answer_through(void **state)
{
    bench *b = *state;
    b->server_ops = &eof_ops;
    b->client.total = 200000;
    dial(b, &plain_ops);
    send_pattern(&b->client, 1000);
    k2_conn_finish(b->client.c);
    assert_int_equal(k2_conn_write(b->client.c, "x", 1), K2_PEER_CLOSED);
    until(b, &b->server.eofs, 1);
    assert_int_equal(b->server.got, 1000);
    send_pattern(&b->server, 200000);
    k2_conn_finish(b->server.c); /* the peer ended already: closes when written */
    until(b, &b->client.got, 200000);
    until(b, &b->client.closes, 1);
    until(b, &b->server.closes, 1);
    assert_int_equal(b->client.why, K2_OK);
    assert_int_equal(b->server.why, K2_OK);
}

static void close_flushed_writes_all_first(void **state)
{
    bench *b = *state;
    dial(b, &plain_ops);
    send_pattern(&b->client, 500000);
    k2_conn_close_flushed(b->client.c);
    assert_false(k2_conn_closing(b->client.c));
    until(b, &b->client.closes, 1);
    until(b, &b->server.closes, 1);
    assert_int_equal(b->server.got, 500000);
    assert_int_equal(b->client.why, K2_OK);
}

static void refused_unknown_and_taken_addresses(void **state)
{
    bench *b = *state;
    k2_error err;
    assert_null(k2_listen(b->loop, "127.0.0.1", b->port, 8, on_accept, b, &err));
    assert_int_equal(err.code, K2_BUSY);
    assert_non_null(strstr(err.text, "is in use by another process"));
    assert_null(k2_listen(b->loop, "no such host.invalid", 0, 8, on_accept, b, &err));
    assert_int_equal(err.code, K2_NOT_FOUND);
    assert_null(k2_listen(b->loop, "192.0.2.1", 0, 8, on_accept, b, &err));
    assert_int_equal(err.code, K2_IO);

    k2_listener_close(b->listener);
    b->client.c = k2_conn_dial(b->loop, "127.0.0.1", b->port, &plain_ops, &b->client, 0);
    assert_int_equal(b->client.closes, 0);
    until(b, &b->client.closes, 1);
    assert_int_equal(b->client.why, K2_PEER_REFUSED);
    char want[64];
    snprintf(want, sizeof want, "connect to 127.0.0.1:%u: connection refused", b->port);
    assert_string_equal(b->client.text, want);

    b->client.c = k2_conn_dial(b->loop, "no such host.invalid", 1, &plain_ops, &b->client, 0);
    until(b, &b->client.closes, 2);
    assert_int_equal(b->client.why, K2_NOT_FOUND);
    assert_int_equal(b->client.connects, 0);
}

static void closing_while_dialing(void **state)
{
    bench *b = *state;
    dial(b, &plain_ops); /* its name look-up is under way */
    send_pattern(&b->client, 1000);
    k2_conn_close(b->client.c);
    until(b, &b->client.closes, 1);
    assert_int_equal(b->client.why, K2_OK);
    b->client.c = k2_conn_dial(b->loop, "127.0.0.1", b->port, &plain_ops, &b->client, 0);
    k2_conn_close(b->client.c);
    until(b, &b->client.closes, 2);
    dial(b, &plain_ops); /* and one that k2_loop_free meets in this state */
}

static void a_dial_that_nobody_answers_times_out(void **state)
{
    bench *b = *state;
    /* The deadline passes while the loop does not turn, so it is due before the connection can be noticed. */
    b->client.c = k2_conn_dial(b->loop, "localhost", b->port, &plain_ops, &b->client, 1);
    uint64_t start = k2_now_ns();
    while (k2_now_ns() - start < 5 * K2_NS_PER_MS) {
    }
    until(b, &b->client.closes, 1);
    assert_int_equal(b->client.why, K2_TIMEOUT);
    assert_non_null(strstr(b->client.text, "connect to localhost:"));
}

static void an_accepted_conn_without_owner_is_closed(void **state)
{
    bench *b = *state;
    b->server_ops = NULL;
    dial(b, &plain_ops);
    until(b, &b->client.closes, 1);
    assert_int_equal(b->accepts, 1);
    assert_int_equal(b->client.why, K2_PEER_CLOSED);
}

static void the_loops_end_tells_open_conns(void **state)
{
    bench *b = *state;
    b->server.echo = true;
    b->client.total = 10;
    dial(b, &plain_ops);
    send_pattern(&b->client, 10);
    until(b, &b->client.got, 10);
    /* teardown checks that both ends hear of it */
}

/* No packet can be lost on loopback, so what is looked at is the system's promise: both ends ask whether the other is there. */
static void a_peer_that_vanished_is_noticed(void **state)
{
    bench *b = *state;
    b->server.echo = true;
    b->client.total = 10;
    dial(b, &plain_ops);
    send_pattern(&b->client, 10);
    until(b, &b->client.got, 10);
    int asking = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_storage peer;
        socklen_t n = sizeof peer, on_n = sizeof(int);
        int on = 0;
        if (getpeername(fd, (struct sockaddr *)&peer, &n) != 0 || peer.ss_family != AF_INET) continue;
        assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &on_n), 0);
        asking += on;
    }
    assert_int_equal(asking, 2);
}

enum { MANY = 400 };

static void many_conns_at_once(void **state)
{
    bench *b = *state;
    k2_loop_raise_fd_limit();
    end *ends = k2_alloc_array(MANY, sizeof *ends);
    b->server_ops = &plain_ops;
    for (int i = 0; i < MANY; i++) {
        ends[i].b = b;
        ends[i].c = k2_conn_dial(b->loop, "127.0.0.1", b->port, &plain_ops, &ends[i], 0);
        send_pattern(&ends[i], 5);
        k2_conn_close_flushed(ends[i].c);
    }
    size_t done = 0;
    while (done < MANY || b->accepts < MANY) {
        k2_loop_run(b->loop);
        for (done = 0; done < MANY && ends[done].closes == 1; done++) assert_int_equal(ends[done].why, K2_OK);
    }
    while (b->server.closes < MANY) k2_loop_run(b->loop);
    b->server.bad_bytes = false; /* all of them counted into one */
    assert_int_equal(b->server.got, 5 * MANY);
    k2_free(ends);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(bytes_come_back_in_order),
        T(a_stopped_reader_fills_the_queue_to_its_cap),
        T(borrowed_bytes_are_given_back_once),
        T(half_close_lets_the_answer_through),
        T(close_flushed_writes_all_first),
        T(refused_unknown_and_taken_addresses),
        T(closing_while_dialing),
        T(a_dial_that_nobody_answers_times_out),
        T(an_accepted_conn_without_owner_is_closed),
        T(the_loops_end_tells_open_conns),
        T(a_peer_that_vanished_is_noticed),
        T(many_conns_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
