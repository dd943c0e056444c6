/* The server over real sockets in one loop: a raw client sends bytes, the answers are compared as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/http/http.h"
#include "common/loop/loop.h"

typedef struct raw {
    k2_conn *conn;
    k2_buf got;
    const char *until; /* stop the loop once this has come; NULL: at the end of the connection */
    bool closed;
} raw;

static k2_loop *loop;
static k2_http_server *server;
static raw client;
static k2_http_req *held; /* a request that the handler did not answer */
static int aborts, requests, drains;
static size_t stream_left;
static uint64_t written;

static void check_until(void)
{
    if (client.until && client.got.data && strstr(client.got.data, client.until)) k2_loop_stop(loop);
}

static void raw_read(void *arg, const char *data, size_t n)
{
    (void)arg;
    k2_buf_append(&client.got, data, n);
    check_until();
}

static void raw_close(void *arg, k2_code why, const char *text)
{
    (void)arg, (void)why, (void)text;
    client.conn = NULL;
    client.closed = true;
    k2_loop_stop(loop);
}

static const k2_stream_ops raw_ops = {.on_read = raw_read, .on_close = raw_close};

static void on_abort(void *arg)
{
    (void)arg;
    aborts++;
    held = NULL;
    k2_loop_stop(loop);
}

static void pump(void *arg)
{
    k2_http_req *r = arg;
    static char piece[10000];
    memset(piece, 'x', sizeof piece);
    while (stream_left > 0) {
        size_t n = K2_MIN(stream_left, sizeof piece);
        k2_code code = k2_http_stream_write(r, piece, n);
        if (code == K2_FULL) {
            drains++;
            return;
        }
        stream_left -= n;
        written += n;
    }
    k2_http_stream_end(r);
}

static void answer_held(void *arg)
{
    (void)arg;
    k2_http_req *r = held;
    held = NULL;
    k2_http_respond(r, 200, "text/plain", "late", 4);
}

static void on_request(void *arg, k2_http_req *r)
{
    (void)arg;
    requests++;
    size_t n;
    const char *body = k2_http_req_body(r, &n), *path = k2_http_req_path(r);
    if (strcmp(path, "/hold") == 0) {
        held = r;
        k2_http_req_on_abort(r, on_abort, NULL);
        k2_loop_stop(loop);
    } else if (strcmp(path, "/late") == 0) {
        held = r;
        k2_http_req_on_abort(r, on_abort, NULL);
        assert_int_equal(k2_loop_post(loop, answer_held, NULL), K2_OK);
    } else if (strcmp(path, "/stream") == 0) {
        k2_http_stream_begin(r, 200, "text/event-stream");
        assert_int_equal(k2_http_stream_write(r, "one", 3), K2_OK);
        assert_int_equal(k2_http_stream_write(r, "", 0), K2_OK);
        assert_int_equal(k2_http_stream_write(r, "two", 3), K2_OK);
        k2_http_stream_end(r);
    } else if (strcmp(path, "/flood") == 0) {
        k2_http_req_on_abort(r, on_abort, NULL);
        k2_http_req_on_drain(r, pump, r);
        k2_http_stream_begin(r, 200, "text/plain");
        pump(r);
    } else if (strcmp(path, "/break") == 0) {
        k2_http_stream_begin(r, 200, "text/plain");
        k2_http_stream_write(r, "half", 4);
        k2_http_stream_abort(r);
    } else {
        const char *x = k2_http_req_header(r, "x-echo");
        if (x) k2_http_header_add(r, "X-Echo", x);
        k2_http_respond(r, 200, "text/plain", body, n);
    }
}

static void start(const k2_http_limits *limits)
{
    k2_error err;
    loop = k2_loop_new();
    server = k2_http_serve(loop, "127.0.0.1", 0, limits, on_request, NULL, &err);
    assert_non_null(server);
    aborts = requests = drains = 0;
    memset(&client, 0, sizeof client);
    k2_buf_init(&client.got, 64 << 20);
}

static void dial(void)
{
    client.closed = false;
    client.conn = k2_conn_dial(loop, "127.0.0.1", k2_http_server_port(server), &raw_ops, NULL, 0);
}

static void hang_up(void)
{
    k2_conn_close(client.conn);
    while (!client.closed) k2_loop_run(loop);
}

static void end(void)
{
    if (client.conn) hang_up();
    k2_http_server_close(server);
    k2_loop_free(loop);
    k2_buf_fini(&client.got);
}

/* Send, and run until the text has come. */
static void exchange(const char *send, size_t n, const char *until)
{
    k2_buf_clear(&client.got);
    client.until = until;
    if (n) assert_int_equal(k2_conn_write(client.conn, send, n), K2_OK);
    k2_loop_run(loop);
    if (until && !client.closed) assert_non_null(strstr(client.got.data, until));
}

static void turn_end(void *arg)
{
    (void)arg;
    k2_loop_stop(loop);
}

static void one_turn(void)
{
    assert_int_equal(k2_loop_post(loop, turn_end, NULL), K2_OK);
    k2_loop_run(loop);
}

static void every_cut(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "POST /e HTTP/1.1\r\nHost: h\r\nX-Echo: yes\r\nContent-Length: 9\r\n\r\nthe body.",
        "POST /e HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nthe \r\n5\r\nbody.\r\n0\r\n\r\n"};
    start(NULL);
    dial();
    for (size_t t = 0; t < K2_COUNT(texts); t++)
        for (size_t cut = 0; cut < strlen(texts[t]); cut++) {
            if (cut) k2_conn_write(client.conn, texts[t], cut);
            one_turn();
            exchange(texts[t] + cut, strlen(texts[t]) - cut, "the body.");
            assert_non_null(strstr(client.got.data, "HTTP/1.1 200 OK\r\n"));
            assert_non_null(strstr(client.got.data, "Content-Length: 9\r\n"));
            if (t == 0) assert_non_null(strstr(client.got.data, "X-Echo: yes\r\n"));
        }
    assert_false(client.closed);
    end();
}

static void pipelined_in_order(void **state)
{
    (void)state;
    static const char three[] = "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\none"
                                "GET /late HTTP/1.1\r\nHost: h\r\n\r\n"
                                "GET /late HTTP/1.1\r\nHost: h\r\n\r\n"
                                "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nfour";
    start(NULL);
    dial();
    exchange(three, sizeof three - 1, "four");
    const char *one = strstr(client.got.data, "one"), *late = strstr(client.got.data, "late");
    assert_true(one && late && one < late && strstr(late + 4, "late"));
    assert_int_equal(requests, 4);
    end();
}

static void refused(const char *text, const char *status)
{
    dial();
    exchange(text, strlen(text), NULL);
    assert_true(client.closed);
    if (strncmp(client.got.data, status, strlen(status)) != 0) fail_msg("%s\ngave %s", text, client.got.data);
    assert_non_null(strstr(client.got.data, "Connection: close"));
    assert_non_null(strstr(client.got.data, "{\"error\":{"));
}

static void bad_requests(void **state)
{
    (void)state;
    start(&(k2_http_limits){.body_bytes_max = 10, .header_bytes_max = 500});
    refused("garbage\r\n\r\n", "HTTP/1.1 400");
    refused("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400");
    refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "HTTP/1.1 400");
    refused("GET http://x/ HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 400");
    refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 400");
    refused("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "HTTP/1.1 501");
    refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", "HTTP/1.1 413");
    refused("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n", "HTTP/1.1 413");
    refused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nExpect: tea\r\n\r\n", "HTTP/1.1 417");
    refused("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/1.1 505");
    char large[1000];
    memset(large, 'a', sizeof large);
    memcpy(large, "GET / HTTP/1.1\r\nHost: a\r\nX: ", 28);
    large[sizeof large - 1] = 0;
    refused(large, "HTTP/1.1 431");
    assert_int_equal(requests, 0);
    end();
}

static void slow_request(void **state)
{
    (void)state;
    start(&(k2_http_limits){.read_ns = 60 * K2_NS_PER_MS});
    refused("GET / HTTP/1.1\r\nHost", "HTTP/1.1 408");
    assert_int_equal(requests, 0);
    end();
}

static void expects_continue(void **state)
{
    (void)state;
    start(NULL);
    dial();
    static const char head[] = "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    exchange(head, sizeof head - 1, "100 Continue\r\n\r\n");
    exchange("ok", 2, "\r\n\r\nok");
    end();
}

static void streams(void **state)
{
    (void)state;
    start(NULL);
    dial();
    static const char get[] = "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n";
    exchange(get, sizeof get - 1, "0\r\n\r\n");
    assert_non_null(strstr(client.got.data, "Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"));
    static const char head[] = "HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n";
    exchange(head, sizeof head - 1, "chunked\r\n\r\n");
    assert_null(strstr(client.got.data, "one"));
    static const char old[] = "GET /stream HTTP/1.0\r\n\r\n";
    exchange(old, sizeof old - 1, NULL);
    assert_true(client.closed);
    assert_non_null(strstr(client.got.data, "Connection: close"));
    assert_non_null(strstr(client.got.data, "\r\n\r\nonetwo"));
    dial();
    static const char brk[] = "GET /break HTTP/1.1\r\nHost: h\r\n\r\n";
    exchange(brk, sizeof brk - 1, NULL);
    assert_true(client.closed && (!client.got.len || !strstr(client.got.data, "0\r\n\r\n")));
    end();
}

static void slow_reader_makes_the_writer_wait(void **state)
{
    (void)state;
    start(&(k2_http_limits){.write_bytes_max = 100000});
    dial();
    stream_left = 20 << 20;
    written = 0;
    one_turn();
    k2_conn_read_stop(client.conn);
    static const char get[] = "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n";
    k2_conn_write(client.conn, get, sizeof get - 1);
    while (drains == 0) one_turn();
    assert_true(stream_left > 0);
    k2_conn_read_start(client.conn);
    client.until = "\r\n0\r\n\r\n";
    k2_buf_clear(&client.got);
    while (stream_left > 0 || k2_http_server_open(server)) one_turn();
    assert_int_equal(written, 20 << 20);
    assert_true(drains > 1);
    end();
}

static void stuck_reader_is_cut_off(void **state)
{
    (void)state;
    start(&(k2_http_limits){.write_bytes_max = 100000, .write_ns = 50 * K2_NS_PER_MS});
    dial();
    stream_left = 64 << 20;
    one_turn();
    k2_conn_read_stop(client.conn);
    static const char get[] = "GET /flood HTTP/1.1\r\nHost: h\r\n\r\n";
    k2_conn_write(client.conn, get, sizeof get - 1);
    while (aborts == 0) k2_loop_run(loop);
    end();
}

static void client_that_leaves_is_noticed(void **state)
{
    (void)state;
    start(NULL);
    dial();
    static const char get[] = "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
    exchange(get, sizeof get - 1, NULL);
    assert_non_null(held);
    assert_int_equal(k2_http_server_open(server), 1);
    k2_conn_close(client.conn);
    while (aborts == 0) k2_loop_run(loop);
    assert_int_equal(k2_http_server_open(server), 0);
    end();
}

static void close_aborts_open_requests(void **state)
{
    (void)state;
    start(NULL);
    dial();
    static const char get[] = "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
    exchange(get, sizeof get - 1, NULL);
    k2_http_server_close(server);
    while (aborts == 0 || !client.closed) k2_loop_run(loop);
    server = NULL;
    end();
}

static void drain_ends_idle_ones_and_answers_the_rest(void **state)
{
    (void)state;
    start(NULL);
    dial();
    static const char get[] = "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
    exchange(get, sizeof get - 1, NULL);
    k2_http_server_drain(server);
    answer_held(NULL);
    exchange(NULL, 0, NULL);
    assert_true(client.closed);
    assert_non_null(strstr(client.got.data, "Connection: close"));
    assert_non_null(strstr(client.got.data, "late"));
    end();
}

static void idle_connection_is_closed(void **state)
{
    (void)state;
    start(&(k2_http_limits){.idle_ns = 30 * K2_NS_PER_MS});
    dial();
    static const char get[] = "POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok";
    exchange(get, sizeof get - 1, "\r\n\r\nok");
    exchange(NULL, 0, NULL);
    assert_true(client.closed);
    end();
}

static void address_in_use(void **state)
{
    (void)state;
    start(NULL);
    k2_error err;
    assert_null(k2_http_serve(loop, "127.0.0.1", k2_http_server_port(server), NULL, on_request, NULL, &err));
    assert_int_equal(err.code, K2_BUSY);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_cut),
                                       cmocka_unit_test(pipelined_in_order),
                                       cmocka_unit_test(bad_requests),
                                       cmocka_unit_test(slow_request),
                                       cmocka_unit_test(expects_continue),
                                       cmocka_unit_test(streams),
                                       cmocka_unit_test(slow_reader_makes_the_writer_wait),
                                       cmocka_unit_test(stuck_reader_is_cut_off),
                                       cmocka_unit_test(client_that_leaves_is_noticed),
                                       cmocka_unit_test(close_aborts_open_requests),
                                       cmocka_unit_test(drain_ends_idle_ones_and_answers_the_rest),
                                       cmocka_unit_test(idle_connection_is_closed),
                                       cmocka_unit_test(address_in_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
