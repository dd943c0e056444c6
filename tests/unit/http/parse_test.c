/* Messages: every one is fed whole, cut at every point, and byte by byte; and malformed ones get their status. URLs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/http/parse_int.h"

static k2_buf body;

static bool on_head(void *arg, k2i_http_msg *m)
{
    (void)m;
    ++*(int *)arg;
    return true;
}

static bool on_body(void *arg, const char *data, size_t n)
{
    (void)arg;
    return k2_buf_append(&body, data, n);
}

static const k2i_http_msg_ops ops = {on_head, on_body};

/* Feeds pieces until the message ends; gives the last result and how many bytes were used. */
static k2i_http_result feed(k2i_http_msg *m, const char *text, size_t n, size_t step, size_t *used)
{
    size_t at = 0;
    while (at < n) {
        size_t took, piece = K2_MIN(step, n - at);
        k2i_http_result r = k2i_http_feed(m, text + at, piece, &took);
        at += took;
        if (r != K2I_HTTP_MORE) {
            *used = at;
            return r;
        }
    }
    *used = at;
    return K2I_HTTP_MORE;
}

static void check_message(const char *text, bool request, const char *want_body, void (*look)(const k2i_http_msg *m))
{
    size_t n = strlen(text), used;
    for (size_t cut = 1; cut <= n; cut++) {
        int heads = 0;
        k2i_http_msg m;
        k2i_http_msg_init(&m, request, 1024, &ops, &heads);
        k2_buf_init(&body, 65536);
        /* Every true prefix is incomplete. */
        if (cut < n) {
            assert_int_equal(feed(&m, text, cut, cut, &used), K2I_HTTP_MORE);
            assert_int_equal(feed(&m, text + cut, n - cut, n, &used), K2I_HTTP_DONE);
            assert_int_equal(used, n - cut);
        } else {
            assert_int_equal(feed(&m, text, n, 1, &used), K2I_HTTP_DONE);
            assert_int_equal(used, n);
        }
        assert_int_equal(heads, 1);
        assert_string_equal(body.data ? body.data : "", want_body);
        look(&m);
        k2i_http_msg_reset(&m, request);
        k2i_http_msg_fini(&m);
        k2_buf_fini(&body);
    }
}

static void look_post(const k2i_http_msg *m)
{
    assert_string_equal(k2i_http_msg_method(m), "POST");
    assert_string_equal(k2i_http_msg_target(m), "/v1/completions?a=b");
    assert_string_equal(k2i_http_msg_header(m, "HOST"), "localhost:80");
    assert_string_equal(k2i_http_msg_header(m, "x-empty"), "");
    assert_string_equal(k2i_http_msg_header(m, "x-space"), "a b");
    assert_null(k2i_http_msg_header(m, "x-none"));
    assert_true(m->keep_alive && m->has_body);
}

static void look_chunked(const k2i_http_msg *m)
{
    assert_string_equal(k2i_http_msg_header(m, "host"), "h");
    assert_null(k2i_http_msg_header(m, "X-Trailer"));
    assert_true(m->chunked && !m->keep_alive);
}

static void look_answer(const k2i_http_msg *m)
{
    assert_int_equal(m->status, 429);
    assert_string_equal(k2i_http_msg_header(m, "retry-after"), "3");
}

static void look_any(const k2i_http_msg *m)
{
    assert_true(m->whole);
}

static void whole_messages(void **state)
{
    (void)state;
    check_message("POST /v1/completions?a=b HTTP/1.1\r\nHost: localhost:80\r\nX-Empty:\r\nX-Space:  a b \t\r\nContent-Length: "
                  "5\r\n\r\nhello",
                  true, "hello", look_post);
    check_message("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n",
                  true, "hello world", look_chunked);
    check_message("GET / HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", true, "", look_any);
    check_message("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\nno", false, "no", look_answer);
    check_message("HTTP/1.1 204 No Content\r\n\r\n", false, "", look_any);
}

static void pipelined_stops_at_the_end(void **state)
{
    (void)state;
    static const char two[] = "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n";
    int heads = 0;
    size_t used;
    k2i_http_msg m;
    k2i_http_msg_init(&m, true, 1024, &ops, &heads);
    assert_int_equal(k2i_http_feed(&m, two, sizeof two - 1, &used), K2I_HTTP_DONE);
    assert_int_equal(used, (sizeof two - 1) / 2);
    assert_string_equal(k2i_http_msg_target(&m), "/a");
    k2i_http_msg_reset(&m, true);
    assert_int_equal(k2i_http_feed(&m, two + used, sizeof two - 1 - used, &used), K2I_HTTP_DONE);
    assert_string_equal(k2i_http_msg_target(&m), "/b");
    k2i_http_msg_fini(&m);
}

static void answer_until_the_end_of_the_stream(void **state)
{
    (void)state;
    static const char text[] = "HTTP/1.0 200 OK\r\n\r\nall of it";
    int heads = 0;
    size_t used;
    k2i_http_msg m;
    k2i_http_msg_init(&m, false, 1024, &ops, &heads);
    k2_buf_init(&body, 100);
    assert_int_equal(k2i_http_feed(&m, text, sizeof text - 1, &used), K2I_HTTP_MORE);
    assert_int_equal(k2i_http_feed(&m, NULL, 0, &used), K2I_HTTP_DONE);
    assert_string_equal(body.data, "all of it");
    k2i_http_msg_reset(&m, false);
    assert_int_equal(k2i_http_feed(&m, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal", 41, &used), K2I_HTTP_MORE);
    assert_int_equal(k2i_http_feed(&m, NULL, 0, &used), K2I_HTTP_ERROR);
    k2_buf_fini(&body);
    k2i_http_msg_fini(&m);
}

static void malformed(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *text;
    } cases[] = {{400, "nonsense\r\n\r\n"},
                 {400, "GET  HTTP/1.1\r\n\r\n"},
                 {400, "GET / HTTP/1.1\r\nBad Name: x\r\n\r\n"},
                 {400, "GET / HTTP/1.1\r\nHost : x\r\n\r\n"},
                 {400, "GET / HTTP/1.1\r\nX: a\x01\r\n\r\n"},
                 {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"},
                 {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
                 {400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n"},
                 {400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
                 {505, "GET / HTTP/1.2\r\nHost: h\r\n\r\n"}};
    for (size_t i = 0; i < K2_COUNT(cases); i++) {
        int heads = 0;
        size_t used;
        k2i_http_msg m;
        k2i_http_msg_init(&m, true, 1024, &ops, &heads);
        assert_int_equal(feed(&m, cases[i].text, strlen(cases[i].text), 1, &used), K2I_HTTP_ERROR);
        assert_int_equal(m.error_status, cases[i].status);
        assert_true(m.why[0] != 0);
        k2i_http_msg_fini(&m);
    }
}

static void too_large(void **state)
{
    (void)state;
    char text[8192];
    int heads = 0;
    size_t used;
    k2i_http_msg m;
    k2i_http_msg_init(&m, true, 1024, &ops, &heads);
    memset(text, 'a', sizeof text);
    memcpy(text, "GET /", 5);
    assert_int_equal(feed(&m, text, sizeof text, 100, &used), K2I_HTTP_ERROR);
    assert_int_equal(m.error_status, 431);
    k2i_http_msg_fini(&m);
    k2i_http_msg_init(&m, true, 65536, &ops, &heads);
    assert_int_equal(feed(&m, text, sizeof text, 100, &used), K2I_HTTP_ERROR);
    assert_int_equal(m.error_status, 414);
    k2i_http_msg_fini(&m);
    k2_buf many;
    k2_buf_init(&many, 65536);
    k2_buf_puts(&many, "GET / HTTP/1.1\r\n");
    for (unsigned i = 0; i <= K2_HTTP_HEADERS_MAX; i++) k2_buf_printf(&many, "h%u: v\r\n", i);
    k2i_http_msg_init(&m, true, 65536, &ops, &heads);
    assert_int_equal(feed(&m, many.data, many.len, 100, &used), K2I_HTTP_ERROR);
    assert_int_equal(m.error_status, 431);
    k2i_http_msg_fini(&m);
    k2_buf_fini(&many);
}

static void urls(void **state)
{
    (void)state;
    k2_url u;
    k2_error err;
    assert_int_equal(k2_url_parse("http://127.0.0.1:8000/v1/x?y=1", &u, &err), K2_OK);
    assert_string_equal(u.host, "127.0.0.1");
    assert_int_equal(u.port, 8000);
    assert_string_equal(u.target, "/v1/x?y=1");
    assert_int_equal(k2_url_parse("http://[::1]:81", &u, &err), K2_OK);
    assert_true(u.ipv6);
    assert_string_equal(u.host, "::1");
    assert_string_equal(u.target, "/");
    assert_int_equal(k2_url_parse("http://host?q", &u, &err), K2_OK);
    assert_string_equal(u.target, "/?q");
    assert_int_equal(u.port, 80);
    static const char *const bad[] = {"",
                                      "https://x/",
                                      "http:/x",
                                      "http://",
                                      "http://:80/",
                                      "http://h:0/",
                                      "http://h:65536/",
                                      "http://h:/",
                                      "http://u@h/",
                                      "http://h/a b",
                                      "http://h/#f",
                                      "http://h/\x7f",
                                      "http://[::1/",
                                      "http://h:80x/",
                                      "http://h\r\n/"};
    for (size_t i = 0; i < K2_COUNT(bad); i++) assert_int_equal(k2_url_parse(bad[i], &u, &err), K2_BAD_INPUT);
    char host[K2_HTTP_HOST_MAX];
    uint16_t port;
    assert_int_equal(k2_hostport_parse("0.0.0.0:0", host, &port, &err), K2_OK);
    assert_int_equal(k2_hostport_parse("[::]:99", host, &port, &err), K2_OK);
    assert_int_equal(port, 99);
    static const char *const bad_ports[] = {"", "x", "x:", ":1", "x:1:2", "x:70000", "x:1 "};
    for (size_t i = 0; i < K2_COUNT(bad_ports); i++)
        assert_int_equal(k2_hostport_parse(bad_ports[i], host, &port, &err), K2_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_messages),
                                       cmocka_unit_test(pipelined_stops_at_the_end),
                                       cmocka_unit_test(answer_until_the_end_of_the_stream),
                                       cmocka_unit_test(malformed),
                                       cmocka_unit_test(too_large),
                                       cmocka_unit_test(urls)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
