/* The client against our server, and against a scripted one that says exactly these bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/http/http.h"
#include "common/loop/loop.h"

/* ---- a server that follows a script: for each request it gets, one line of the script ---------------------------------------
 */

typedef struct peer {
    k2_conn *conn;
    k2_buf got;
} peer;

static k2_loop *loop;
static k2_http_client *client;
static k2_listener *listener;
static const char *const *script; /* NULL in it: close without a word; "" : say nothing */
static int script_at, accepted, peers;
static char url[128];

/* What one call came to. */
typedef struct result {
    k2_http_call *call;
    int done, gone, status, cancel_at_head, cancel_at_data;
    k2_code code;
    k2_buf body;
    char text[300];
} result;

static void peer_read(void *arg, const char *data, size_t n)
{
    peer *p = arg;
    k2_buf_append(&p->got, data, n);
    const char *end = strstr(p->got.data, "\r\n\r\n");
    if (!end) return;
    k2_buf_clear(&p->got);
    const char *say = script[script_at++];
    if (!say)
        k2_conn_close(p->conn);
    else if (*say == '!') { /* say it and close */
        k2_conn_write(p->conn, say + 1, strlen(say + 1));
        k2_conn_close_flushed(p->conn);
    } else if (*say)
        k2_conn_write(p->conn, say, strlen(say));
}

static void peer_close(void *arg, k2_code why, const char *text)
{
    (void)why, (void)text;
    peer *p = arg;
    k2_buf_fini(&p->got);
    k2_free(p);
    peers--;
}

static const k2_stream_ops peer_ops = {.on_read = peer_read, .on_close = peer_close};

static void on_accept(void *arg, k2_conn *conn)
{
    (void)arg;
    peer *p = k2_alloc(sizeof *p);
    p->conn = conn;
    k2_buf_init(&p->got, 1 << 20);
    accepted++;
    peers++;
    k2_conn_attach(conn, &peer_ops, p);
}

static void start(const k2_http_client_config *config, const char *const *lines)
{
    k2_error err;
    loop = k2_loop_new();
    client = k2_http_client_new(loop, config);
    script = lines;
    script_at = accepted = peers = 0;
    listener = k2_listen(loop, "127.0.0.1", 0, 16, on_accept, NULL, &err);
    assert_non_null(listener);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/x", k2_listener_port(listener));
}

static void stop(void *arg)
{
    (void)arg;
    k2_loop_stop(loop);
}

static void turns(int n)
{
    while (n-- > 0) {
        assert_int_equal(k2_loop_post(loop, stop, NULL), K2_OK);
        k2_loop_run(loop);
    }
}

static void end(void)
{
    k2_http_client_close(client);
    k2_listener_close(listener);
    while (peers > 0) turns(1);
    k2_loop_free(loop);
}

static void on_head(void *arg, int status, const char *content_type)
{
    (void)content_type;
    result *r = arg;
    r->status = status;
    if (r->cancel_at_head) k2_http_cancel(r->call);
}

static void on_data(void *arg, const char *data, size_t n)
{
    result *r = arg;
    k2_buf_append(&r->body, data, n);
    if (r->cancel_at_data) k2_http_cancel(r->call);
}

static void on_done(void *arg, k2_code code, const char *text)
{
    result *r = arg;
    r->done++;
    r->code = code;
    snprintf(r->text, sizeof r->text, "%s", text);
    k2_loop_stop(loop);
}

static void on_gone(void *arg)
{
    ((result *)arg)->gone++;
}

static const k2_http_call_ops ops = {on_head, on_data, on_done, on_gone};

static void call_with(result *r, k2_http_call_spec spec)
{
    k2_error err;
    memset(r, 0, sizeof *r);
    k2_buf_init(&r->body, 64 << 20);
    if (!spec.method) spec.method = "GET";
    if (!spec.url) spec.url = url;
    r->call = k2_http_request(client, &spec, &ops, r, &err);
    assert_non_null(r->call);
    assert_int_equal(r->done, 0);
}

static void finish(result *r)
{
    while (!r->done) k2_loop_run(loop);
    assert_int_equal(r->gone, 1);
}

static void expect_one(const char *answer, k2_code code, int status, const char *body)
{
    const char *lines[] = {answer, answer};
    result r;
    start(NULL, lines);
    call_with(&r, (k2_http_call_spec){0});
    finish(&r);
    if (r.code != code) fail_msg("%s: %s, %s", answer, k2_code_name(r.code), r.text);
    if (code == K2_OK) {
        assert_int_equal(r.status, status);
        assert_string_equal(r.body.data ? r.body.data : "", body);
    }
    k2_buf_fini(&r.body);
    end();
}

static void answers(void **state)
{
    (void)state;
    expect_one("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", K2_OK, 200, "ok");
    expect_one("HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", K2_OK, 404,
               "abcd");
    expect_one("!HTTP/1.0 200 OK\r\n\r\nuntil the end", K2_OK, 200, "until the end");
    expect_one("HTTP/1.1 204 No Content\r\n\r\n", K2_OK, 204, "");
    expect_one("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", K2_OK, 200, "x");
    expect_one("!HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhal", K2_PEER_CLOSED, 0, NULL);
    expect_one("!HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", K2_PEER_CLOSED, 0, NULL);
    expect_one("nonsense\r\n\r\n", K2_PEER_PROTOCOL, 0, NULL);
    expect_one("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", K2_PEER_PROTOCOL, 0, NULL);
    expect_one("HTTP/1.1 101 Switching Protocols\r\n\r\n", K2_PEER_PROTOCOL, 0, NULL);
    expect_one(NULL, K2_PEER_CLOSED, 0, NULL);
}

static void connection_is_kept_and_used_again(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb",
        "!HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nc", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nd"};
    start(NULL, lines);
    for (int i = 0; i < 4; i++) {
        result r;
        call_with(&r, (k2_http_call_spec){.method = "POST", .body = "hello", .body_bytes = 5});
        finish(&r);
        assert_int_equal(r.code, K2_OK);
        assert_int_equal(r.body.data[0], 'a' + i);
        k2_buf_fini(&r.body);
    }
    assert_int_equal(accepted, 2);
    end();
}

static void stale_connection_is_replaced_once(void **state)
{
    (void)state;
    static const char *const lines[] = {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", NULL,
                                        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb", NULL, NULL};
    start(NULL, lines);
    k2_code want[] = {K2_OK, K2_OK, K2_PEER_CLOSED};
    for (int i = 0; i < 3; i++) {
        result r;
        call_with(&r, (k2_http_call_spec){0});
        finish(&r);
        assert_int_equal(r.code, want[i]);
        k2_buf_fini(&r.body);
    }
    assert_int_equal(accepted, 3);
    assert_int_equal(script_at, 5);
    end();
}

static void deadlines(void **state)
{
    (void)state;
    static const char *const lines[] = {"", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", ""};
    start(NULL, lines);
    result r;
    call_with(&r, (k2_http_call_spec){.first_byte_ns = 30 * K2_NS_PER_MS});
    finish(&r);
    assert_int_equal(r.code, K2_TIMEOUT);
    assert_non_null(strstr(r.text, "no answer within 30 ms"));
    k2_buf_fini(&r.body);
    call_with(&r, (k2_http_call_spec){.idle_ns = 30 * K2_NS_PER_MS});
    finish(&r);
    assert_int_equal(r.code, K2_TIMEOUT);
    assert_non_null(strstr(r.text, "stopped"));
    assert_string_equal(r.body.data, "half");
    k2_buf_fini(&r.body);
    end();
}

static void nobody_listens(void **state)
{
    (void)state;
    start(NULL, NULL);
    k2_listener_close(listener);
    listener = NULL;
    result r;
    call_with(&r, (k2_http_call_spec){0});
    finish(&r);
    assert_int_equal(r.code, K2_PEER_REFUSED);
    k2_buf_fini(&r.body);
    k2_error err;
    assert_null(k2_http_request(client, &(k2_http_call_spec){.method = "GET", .url = "ftp://x"}, &ops, &r, &err));
    assert_int_equal(err.code, K2_BAD_INPUT);
    end();
}

static void cancel_anywhere(void **state)
{
    (void)state;
    static const char *const lines[] = {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
                                        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "", "",
                                        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"};
    start(&(k2_http_client_config){.conns_per_host_max = 1}, lines);
    result head, data, running, waiting, last;
    call_with(&head, (k2_http_call_spec){0});
    head.cancel_at_head = 1;
    while (!head.gone) turns(1);
    assert_int_equal(head.done, 0);
    call_with(&data, (k2_http_call_spec){0});
    data.cancel_at_data = 1;
    while (!data.gone) turns(1);
    assert_string_equal(data.body.data, "half");
    call_with(&running, (k2_http_call_spec){0});
    call_with(&waiting, (k2_http_call_spec){0});
    while (script_at < 3) turns(1);
    k2_http_cancel(waiting.call);
    k2_http_cancel(running.call);
    assert_true(waiting.gone == 1 && running.gone == 1);
    call_with(&last, (k2_http_call_spec){0});
    k2_http_cancel(last.call); /* on a dialing line */
    call_with(&last, (k2_http_call_spec){0});
    script_at = 4;
    finish(&last);
    assert_int_equal(last.code, K2_OK);
    k2_buf_fini(&head.body);
    k2_buf_fini(&data.body);
    k2_buf_fini(&last.body);
    result open[3];
    script_at = 2;
    for (int i = 0; i < 3; i++) call_with(&open[i], (k2_http_call_spec){0});
    turns(3);
    end(); /* closes with calls running and waiting */
    for (int i = 0; i < 3; i++) assert_true(open[i].gone == 1 && open[i].done == 0);
}

/* ---- against our server -------------------------------------------------------------------------------------------------- */

static k2_http_server *server;
static char *large;
#define LARGE (3u << 20)

static void serve(void *arg, k2_http_req *req)
{
    (void)arg;
    size_t n;
    const char *body = k2_http_req_body(req, &n);
    if (strcmp(k2_http_req_path(req), "/large") == 0)
        k2_http_respond(req, 200, "text/plain", large, LARGE);
    else
        k2_http_respond(req, 200, "text/plain", body, n);
}

static void serve_start(const k2_http_client_config *config)
{
    k2_error err;
    start(config, NULL);
    large = k2_alloc(LARGE);
    memset(large, 'z', LARGE);
    server = k2_http_serve(loop, "127.0.0.1", 0, NULL, serve, NULL, &err);
    assert_non_null(server);
    snprintf(url, sizeof url, "http://127.0.0.1:%u/echo", k2_http_server_port(server));
}

static void serve_end(void)
{
    k2_http_server_close(server);
    end();
    k2_free(large);
}

static void many_calls_over_few_connections(void **state)
{
    (void)state;
    enum { CALLS = 200 };
    static result r[CALLS];
    char body[CALLS][24];
    serve_start(&(k2_http_client_config){.conns_per_host_max = 3});
    for (int i = 0; i < CALLS; i++) {
        snprintf(body[i], sizeof body[i], "call %d", i);
        call_with(&r[i], (k2_http_call_spec){.method = "POST", .body = body[i], .body_bytes = strlen(body[i])});
    }
    for (int i = 0; i < CALLS; i++) {
        finish(&r[i]);
        assert_int_equal(r[i].code, K2_OK);
        assert_string_equal(r[i].body.data, body[i]);
        k2_buf_fini(&r[i].body);
    }
    serve_end();
}

static void waiting_is_bounded(void **state)
{
    (void)state;
    serve_start(&(k2_http_client_config){.conns_per_host_max = 1, .waiting_max = 1});
    result a, b;
    k2_error err;
    call_with(&a, (k2_http_call_spec){0});
    call_with(&b, (k2_http_call_spec){0});
    assert_null(k2_http_request(client, &(k2_http_call_spec){.method = "GET", .url = url}, &ops, &b, &err));
    assert_int_equal(err.code, K2_FULL);
    finish(&a);
    finish(&b);
    k2_buf_fini(&a.body);
    k2_buf_fini(&b.body);
    serve_end();
}

static void until_paused(result *r, uint64_t idle_ns)
{
    char u[128];
    snprintf(u, sizeof u, "http://127.0.0.1:%u/large", k2_http_server_port(server));
    for (;;) { /* on a busy machine this very process may stand for longer than idle_ns, and the call has ended before its pause
                */
        call_with(r, (k2_http_call_spec){.url = u, .idle_ns = idle_ns});
        while (r->body.len == 0 && !r->done) turns(1);
        if (!r->done) break;
        k2_buf_fini(&r->body);
    }
    k2_http_call_pause(r->call);
}

static void pause_holds_the_peer_back(void **state)
{
    (void)state;
    serve_start(NULL);
    result r;
    until_paused(&r, 0);
    size_t so_far = r.body.len;
    turns(50);
    assert_true(r.body.len <= so_far + K2_READ_BYTES && r.body.len < LARGE);
    k2_http_call_resume(r.call);
    finish(&r);
    assert_int_equal(r.code, K2_OK);
    assert_int_equal(r.body.len, LARGE);
    k2_buf_fini(&r.body);
    serve_end();
}

static void a_pause_is_no_silence_of_the_peer(void **state)
{
    (void)state;
    serve_start(NULL);
    result r;
    until_paused(&r, 50 * K2_NS_PER_MS);
    k2_timer *longer = k2_timer_start(loop, 150 * K2_NS_PER_MS, 0, stop, NULL);
    k2_loop_run(loop);
    k2_timer_stop(longer);
    assert_int_equal(r.done, 0);
    k2_http_cancel(r.call);
    assert_int_equal(r.gone, 1);
    k2_buf_fini(&r.body);
    serve_end();
}

static int fetch_status, fetched;
static k2_code fetch_code;
static size_t fetch_bytes;

static void on_fetched(void *arg, k2_code code, int status, const char *body, size_t n)
{
    (void)arg;
    assert_int_equal(body[n], 0);
    fetched++;
    fetch_code = code;
    fetch_status = status;
    fetch_bytes = n;
    k2_loop_stop(loop);
}

static void fetches(void **state)
{
    (void)state;
    serve_start(NULL);
    k2_error err;
    fetched = 0;
    k2_http_call_spec spec = {.method = "POST", .url = url, .body = "abc", .body_bytes = 3};
    assert_non_null(k2_http_fetch(client, &spec, 3, on_fetched, NULL, &err));
    while (fetched < 1) k2_loop_run(loop);
    assert_true(fetch_code == K2_OK && fetch_status == 200 && fetch_bytes == 3);
    assert_non_null(k2_http_fetch(client, &spec, 2, on_fetched, NULL, &err));
    while (fetched < 2) k2_loop_run(loop);
    assert_true(fetch_code == K2_LIMIT && fetch_status == 0);
    k2_http_call *call = k2_http_fetch(client, &spec, 3, on_fetched, NULL, &err);
    k2_http_cancel(call);
    turns(3);
    assert_int_equal(fetched, 2);
    serve_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers),
                                       cmocka_unit_test(connection_is_kept_and_used_again),
                                       cmocka_unit_test(stale_connection_is_replaced_once),
                                       cmocka_unit_test(deadlines),
                                       cmocka_unit_test(nobody_listens),
                                       cmocka_unit_test(cancel_anywhere),
                                       cmocka_unit_test(many_calls_over_few_connections),
                                       cmocka_unit_test(waiting_is_bounded),
                                       cmocka_unit_test(pause_holds_the_peer_back),
                                       cmocka_unit_test(a_pause_is_no_silence_of_the_peer),
                                       cmocka_unit_test(fetches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
