/* net's server and client over real sockets: late replies, requests that come twice, garbage, deadlines, a server that comes
 * back. */
#include "common/net/net_int.h"

#include <arpa/inet.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define GUARD_NS    (100 * K2_NS_PER_S)
#define DEADLINE_NS (100 * K2_NS_PER_S)
#define PEERS       128u
#define CALLS_MAX   K2_NET_CALLS(PEERS)

typedef struct bench {
    k2_loop *loop;
    k2_timer *guard;
    char dir[32], url[K2_NET_URL_MAX];
    k2_net_server *server;
    k2_net_client *client;
    bool hold; /* keep calls instead of answering them at once */
    k2_net_call *held[CALLS_MAX];
    size_t held_n, requests, replies, refusals, failures;
    k2_code last_code;
    k2_msg last;
    size_t close_at; /* close server or client inside the n-th callback */
} bench;

static void guard(void *arg)
{
    (void)arg;
    fail_msg("the test's loop did not end");
}

static void on_request(void *arg, k2_net_call *call, const k2_msg *msg)
{
    bench *b = arg;
    b->requests++;
    k2_loop_stop(b->loop);
    if (b->close_at == b->requests) {
        k2_net_server_close(b->server);
        b->server = NULL;
        return;
    }
    if (b->hold) {
        b->held[b->held_n++] = call;
        return;
    }
    k2_net_reply(call,
                 &(k2_msg){.type = K2_MSG_WELCOME, .worker = 5, .welcome = {.lease_ms = msg->hello.index, .config = "{}"}});
}

static void on_reply(void *arg, k2_code code, const k2_msg *reply)
{
    bench *b = arg;
    b->last_code = code;
    if (code != K2_OK)
        b->failures++;
    else if (reply->type == K2_MSG_REFUSED)
        b->refusals++;
    else
        b->replies++;
    assert_int_equal(code == K2_OK, reply != NULL);
    if (reply) {
        k2_msg_free(&b->last);
        k2_msg_copy(&b->last, reply);
    }
    k2_loop_stop(b->loop);
}

static int setup(void **state)
{
    bench *b = k2_alloc(sizeof *b);
    b->loop = k2_loop_new();
    b->guard = k2_timer_start(b->loop, GUARD_NS, 0, guard, NULL);
    snprintf(b->dir, sizeof b->dir, "/tmp/k2_net_XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    k2_error err;
    assert_int_equal(k2_net_url_for_dir(b->dir, b->url, &err), K2_OK);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    k2_net_client_close(b->client);
    k2_net_client_close(NULL);
    k2_net_server_close(b->server);
    k2_net_server_close(NULL);
    k2_timer_stop(b->guard);
    k2_loop_free(b->loop);
    k2_msg_free(&b->last);
    assert_int_equal(k2_dir_remove(b->dir, NULL), K2_OK);
    k2_free(b);
    return 0;
}

static void listen_and_dial(bench *b)
{
    k2_error err = {0};
    b->server = k2_net_listen(b->loop, b->url, PEERS, on_request, b, &err);
    if (!b->server) fail_msg("%s", err.text);
    b->client = k2_net_dial(b->loop, k2_net_server_url(b->server), &err);
    assert_non_null(b->client);
}

static void until(bench *b, const size_t *count, size_t n)
{
    while (*count < n) k2_loop_run(b->loop);
}

static k2_code ask(bench *b, uint64_t index)
{
    return k2_net_request(b->client, &(k2_msg){.type = K2_MSG_HELLO, .hello = {.role = "test", .index = index}}, DEADLINE_NS,
                          on_reply, b);
}

static void there_and_back(bench *b)
{
    listen_and_dial(b);
    for (size_t i = 1; i <= 20; i++) {
        assert_int_equal(ask(b, i), K2_OK);
        until(b, &b->replies, i);
        assert_int_equal(b->last.type, K2_MSG_WELCOME);
        assert_int_equal(b->last.welcome.lease_ms, i);
        assert_int_equal(b->last.worker, 5);
    }
}

static void over_ipc(void **state)
{
    bench *b = *state;
    there_and_back(b);
    struct stat st;
    assert_int_equal(stat(b->url + strlen("ipc://"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
}

static void over_tcp(void **state)
{
    bench *b = *state;
    snprintf(b->url, sizeof b->url, "tcp://127.0.0.1:0");
    there_and_back(b);
    assert_string_not_equal(k2_net_server_url(b->server), b->url);
    k2_error err;
    assert_null(k2_net_listen(b->loop, k2_net_server_url(b->server), PEERS, on_request, b, &err));
    assert_int_equal(err.code, K2_BUSY);
    assert_non_null(strstr(err.text, "is in use by another process"));
    assert_null(k2_net_listen(b->loop, "tcp://nonsense", PEERS, on_request, b, &err));
    assert_int_equal(err.code, K2_BAD_INPUT);
}

static void replies_may_come_late_and_in_any_order(void **state)
{
    bench *b = *state;
    b->hold = true;
    listen_and_dial(b);
    for (uint64_t i = 0; i < K2_NET_REQUESTS_MAX; i++) assert_int_equal(ask(b, i), K2_OK);
    assert_int_equal(ask(b, 99), K2_FULL);
    until(b, &b->held_n, K2_NET_REQUESTS_MAX);
    for (size_t i = b->held_n; i-- > 0;) {
        k2_net_reply(b->held[i], &(k2_msg){.type = K2_MSG_NOP});
        until(b, &b->replies, K2_NET_REQUESTS_MAX - i);
    }
    assert_int_equal(ask(b, 99), K2_OK);
    until(b, &b->held_n, K2_NET_REQUESTS_MAX + 1);
    /* teardown closes both ends while this one waits */
}

/* A request by hand, over a socket of its own. */
typedef struct raw {
    nng_socket socket;
} raw;

static raw raw_send(const bench *b, const void *bytes, size_t n)
{
    raw r;
    assert_int_equal(nng_req0_open(&r.socket), 0);
    assert_int_equal(nng_socket_set_ms(r.socket, NNG_OPT_RECVTIMEO, 10000), 0);
    assert_int_equal(nng_socket_set_ms(r.socket, NNG_OPT_REQ_RESENDTIME, 50), 0);
    assert_int_equal(nng_dial(r.socket, k2_net_server_url(b->server), NULL, 0), 0);
    assert_int_equal(nng_send(r.socket, (void *)(uintptr_t)bytes, n, 0), 0);
    return r;
}

static void *raw_close(void *arg)
{
    nng_close(*(nng_socket *)arg);
    k2_free(arg);
    return NULL;
}

/* False where nothing has come yet. */
static bool raw_receive(raw *r, k2_msg *out)
{
    void *bytes;
    size_t n;
    if (nng_recv(r->socket, &bytes, &n, NNG_FLAG_ALLOC | NNG_FLAG_NONBLOCK) != 0) return false;
    assert_int_equal(k2_wire_decode(bytes, n, out, NULL), K2_OK);
    nng_free(bytes, n);
    nng_socket *socket = k2_alloc(sizeof *socket);
    *socket = r->socket;
    k2i_net_close_bounded(raw_close, socket); /* an earlier test may have met nng's close that does not end */
    return true;
}

static void turn_until_idle(bench *b)
{
    /* What arrived is in the inbox before this timer: nng's threads had their time while the loop slept in it. */
    k2_timer *t = k2_timer_start(b->loop, 20 * K2_NS_PER_MS, 0, (void (*)(void *))k2_loop_stop, b->loop);
    k2_loop_run(b->loop);
    k2_timer_stop(t);
}

static void a_request_that_comes_again_takes_effect_once(void **state)
{
    bench *b = *state;
    b->hold = true;
    listen_and_dial(b);
    k2_buf bytes;
    k2_buf_init(&bytes, 10000);
    k2_msg done = {.type = K2_MSG_DONE, .worker = 1, .incarnation = 2, .seq = 77, .cmd = 3};
    assert_int_equal(k2_wire_encode(&done, &bytes, NULL), K2_OK);
    raw first = raw_send(b, bytes.data, bytes.len);
    until(b, &b->requests, 1);
    raw second = raw_send(b, bytes.data, bytes.len); /* while the first waits for its reply */
    for (int i = 0; i < 10; i++) turn_until_idle(b); /* both come again and again meanwhile */
    assert_int_equal(b->requests, 1);
    k2_net_reply(b->held[0], &(k2_msg){.type = K2_MSG_ACK});
    raw third = raw_send(b, bytes.data, bytes.len); /* after the reply */
    turn_until_idle(b);
    assert_int_equal(b->requests, 1);
    /* The way back is that of the newest; the first asks again by itself, and is answered from memory. */
    raw *all[] = {&first, &second, &third};
    for (size_t i = 0; i < 3; i++) {
        k2_msg reply;
        while (!raw_receive(all[i], &reply)) turn_until_idle(b);
        assert_int_equal(reply.type, K2_MSG_ACK);
        assert_true(reply.seq == 77 && reply.worker == 1 && reply.incarnation == 2 && reply.cmd == 3);
        k2_msg_free(&reply);
    }
    assert_int_equal(b->requests, 1);
    k2_buf_fini(&bytes);
}

static void garbage_is_refused_and_not_delivered(void **state)
{
    bench *b = *state;
    listen_and_dial(b);
    raw r = raw_send(b, "garbage", 7);
    k2_msg reply;
    while (!raw_receive(&r, &reply)) turn_until_idle(b);
    assert_int_equal(reply.type, K2_MSG_REFUSED);
    assert_int_equal(reply.refused.code, K2_BAD_INPUT);
    assert_true(reply.refused.text[0] != 0);
    k2_msg_free(&reply);

    k2_buf bytes;
    k2_buf_init(&bytes, 10000);
    assert_int_equal(k2_wire_encode(&(k2_msg){.type = K2_MSG_STOP}, &bytes, NULL), K2_OK);
    r = raw_send(b, bytes.data, bytes.len);
    while (!raw_receive(&r, &reply)) turn_until_idle(b);
    assert_string_equal(reply.refused.text, "this message is no request");
    k2_msg_free(&reply);
    k2_buf_fini(&bytes);
    assert_int_equal(b->requests, 0);

    /* The server is none the worse for it. */
    assert_int_equal(ask(b, 1), K2_OK);
    until(b, &b->replies, 1);
}

static void a_reply_too_large_is_an_error_for_the_asker(void **state)
{
    bench *b = *state;
    b->hold = true;
    listen_and_dial(b);
    assert_int_equal(ask(b, 1), K2_OK);
    until(b, &b->held_n, 1);
    char *big = k2_alloc(K2_WIRE_CONFIG_MAX + 2);
    memset(big, 'x', K2_WIRE_CONFIG_MAX + 1);
    k2_net_reply(b->held[0], &(k2_msg){.type = K2_MSG_WELCOME, .welcome = {.config = big}});
    until(b, &b->refusals, 1);
    assert_int_equal(b->last.refused.code, K2_INTERNAL);
    assert_non_null(strstr(b->last.refused.text, "WELCOME.config"));
    assert_int_equal(ask(b, 1), K2_OK);
    until(b, &b->held_n, 2);
    big[K2_WIRE_CONFIG_MAX] = 0; /* the largest that is allowed comes through */
    k2_net_reply(b->held[1], &(k2_msg){.type = K2_MSG_WELCOME, .welcome = {.config = big}});
    until(b, &b->replies, 1);
    assert_int_equal(strlen(b->last.welcome.config), K2_WIRE_CONFIG_MAX);
    k2_free(big);
}

static void deadlines_hold_without_a_server_and_with_a_silent_one(void **state)
{
    bench *b = *state;
    k2_error err;
    b->client = k2_net_dial(b->loop, b->url, &err);
    assert_non_null(b->client);
    k2_msg msg = {.type = K2_MSG_POLL};
    assert_int_equal(k2_net_request(b->client, &msg, 30 * K2_NS_PER_MS, on_reply, b), K2_OK);
    until(b, &b->failures, 1);
    assert_int_equal(b->last_code, K2_TIMEOUT);
    b->hold = true;
    b->server = k2_net_listen(b->loop, b->url, PEERS, on_request, b, &err);
    assert_non_null(b->server);
    assert_int_equal(ask(b, 1), K2_OK); /* waits for the connection; what timed out is not sent any more */
    until(b, &b->held_n, 1);
    assert_int_equal(b->requests, 1);
    assert_int_equal(k2_net_request(b->client, &msg, 30 * K2_NS_PER_MS, on_reply, b), K2_OK);
    until(b, &b->failures, 2);
    assert_int_equal(b->last_code, K2_TIMEOUT);
    k2_net_reply(b->held[0], &(k2_msg){.type = K2_MSG_NOP});
    until(b, &b->replies, 1);
    assert_null(k2_net_dial(b->loop, "nonsense", &err));
    assert_int_equal(err.code, K2_BAD_INPUT);
}

static void a_request_outlives_its_server(void **state)
{
    bench *b = *state;
    b->hold = true;
    listen_and_dial(b);
    assert_int_equal(ask(b, 42), K2_OK);
    until(b, &b->held_n, 1);
    k2_net_server_close(b->server); /* as if it crashed with the call in hand */
    k2_error err;
    b->hold = false;
    b->server = k2_net_listen(b->loop, b->url, PEERS, on_request, b, &err);
    assert_non_null(b->server);
    until(b, &b->replies, 1);
    assert_int_equal(b->requests, 2);
    assert_int_equal(b->last.welcome.lease_ms, 42);
}

static void the_server_may_be_closed_inside_a_request(void **state)
{
    bench *b = *state;
    listen_and_dial(b);
    for (uint64_t i = 0; i < 30; i++) assert_int_equal(ask(b, i), K2_OK);
    b->close_at = 5;
    while (b->server) k2_loop_run(b->loop);
    assert_int_equal(b->requests, 5);
}

/* A worker that is killed just when it has connected must not cost the others their master. */
static void peers_that_die_while_they_connect(void **state)
{
    bench *b = *state;
    static const unsigned char req_header[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    static const char *const urls[] = {NULL, "tcp://127.0.0.1:0"};
    for (size_t u = 0; u < K2_COUNT(urls); u++) {
        if (urls[u]) snprintf(b->url, sizeof b->url, "%s", urls[u]);
        listen_and_dial(b);
        struct sockaddr_un un = {.sun_family = AF_UNIX};
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        const char *url = k2_net_server_url(b->server);
        if (urls[u])
            in.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
        else
            snprintf(un.sun_path, sizeof un.sun_path, "%s", url + strlen("ipc://"));
        for (int i = 0; i < 300; i++) {
            int fd = socket(urls[u] ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            int rc = urls[u] ? connect(fd, (struct sockaddr *)&in, sizeof in) : connect(fd, (struct sockaddr *)&un, sizeof un);
            assert_int_equal(rc, 0);
            if (i % 3) assert_int_equal(write(fd, req_header, sizeof req_header), sizeof req_header);
            close(fd);
        }
        k2_net_client_close(b->client);
        b->client = k2_net_dial(b->loop, url, NULL); /* one more has to be accepted */
        assert_non_null(b->client);
        assert_int_equal(ask(b, 1), K2_OK);
        until(b, &b->replies, u + 1);
        k2_net_client_close(b->client);
        k2_net_server_close(b->server);
        b->client = NULL;
        b->server = NULL;
    }
}

static void too_many_requests_are_refused(void **state)
{
    bench *b = *state;
    b->hold = true;
    listen_and_dial(b);
    /* One of those that wait is asked again every 50 ms, also when no more are taken: it must not count as one more. */
    k2_buf bytes;
    k2_buf_init(&bytes, 10000);
    k2_msg done = {.type = K2_MSG_DONE, .worker = 1, .incarnation = 2, .seq = 77, .cmd = 3};
    assert_int_equal(k2_wire_encode(&done, &bytes, NULL), K2_OK);
    raw again = raw_send(b, bytes.data, bytes.len);
    k2_buf_fini(&bytes);
    until(b, &b->held_n, 1);
    enum { CLIENTS = CALLS_MAX / K2_NET_REQUESTS_MAX };
    k2_net_client *clients[CLIENTS], *own = b->client;
    k2_error err;
    for (size_t i = 0, left = CALLS_MAX - 1; i < CLIENTS; i++) {
        clients[i] = b->client = k2_net_dial(b->loop, k2_net_server_url(b->server), &err);
        for (uint64_t k = 0; k < K2_NET_REQUESTS_MAX && left > 0; k++, left--) assert_int_equal(ask(b, k), K2_OK);
    }
    until(b, &b->held_n, CALLS_MAX);
    b->client = own;
    for (size_t i = 1; i <= 10; i++) {
        assert_int_equal(ask(b, 1), K2_OK);
        until(b, &b->refusals, i);
        assert_int_equal(b->last.refused.code, K2_FULL);
        turn_until_idle(b);
    }
    k2_msg reply;
    assert_false(raw_receive(&again, &reply)); /* neither answered nor refused */
    for (size_t i = 0; i < 100; i++) k2_net_reply(b->held[i], &(k2_msg){.type = K2_MSG_NOP});
    b->hold = false;
    until(b, &b->replies, 99);
    while (!raw_receive(&again, &reply)) turn_until_idle(b);
    assert_int_equal(reply.type, K2_MSG_NOP);
    k2_msg_free(&reply);
    assert_int_equal(ask(b, 1), K2_OK);
    until(b, &b->replies, 100);
    assert_int_equal(b->refusals, 10);
    for (int i = 0; i < CLIENTS; i++) k2_net_client_close(clients[i]);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(over_ipc),
        T(over_tcp),
        T(replies_may_come_late_and_in_any_order),
        T(a_request_that_comes_again_takes_effect_once),
        T(garbage_is_refused_and_not_delivered),
        T(a_reply_too_large_is_an_error_for_the_asker),
        T(deadlines_hold_without_a_server_and_with_a_silent_one),
        T(a_request_outlives_its_server),
        T(the_server_may_be_closed_inside_a_request),
        T(peers_that_die_while_they_connect),
        T(too_many_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
