/* How conns come about: dialing with a deadline, listening. */
#include "common/loop/loop_int.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

#define CONNECT_DEADLINE_NS (30 * K2_NS_PER_S) /* where the caller gives none */

struct dial {
    uv_getaddrinfo_t lookup;
    uv_connect_t connect;
    k2_timer *deadline;
    struct write_req *pending; /* writes before the connection stands; conn.c's */
    bool looking;
    uint16_t port;
    char *name; /* "host:port" for errors */
};

typedef struct dial dial;

struct k2_listener {
    k2i_kind kind;
    k2_loop *loop;
    uv_tcp_t uv;
    void (*on_accept)(void *arg, k2_conn *c);
    void *arg;
    uint16_t port;
};

/* ---- dialing ---------------------------------------------------------------------------------------------------- */

bool k2i_dial_looking(const k2_conn *c)
{
    return c->dial && c->dial->looking;
}

struct write_req **k2i_dial_pending(k2_conn *c)
{
    return c->dial ? &c->dial->pending : NULL;
}

void k2i_dial_free(k2_conn *c)
{
    dial *d = c->dial;
    if (!d) return;
    c->dial = NULL;
    k2_timer_stop(d->deadline);
    k2_free(d->name);
    k2_free(d);
}

static void dial_fail(k2_conn *c, k2_code why, int errnum)
{
    if (c->closing) return;
    char *what = k2_asprintf("connect to %s", c->dial->name);
    k2i_conn_end(c, why, what, errnum);
    k2_free(what);
}

static void dial_late(void *arg)
{
    k2_conn *c = arg;
    dial_fail(c, K2_TIMEOUT, UV_ETIMEDOUT);
}

static void dial_connected(uv_connect_t *connect, int status)
{
    k2_conn *c = connect->data;
    if (c->closing) return;
    if (status < 0) {
        dial_fail(c, k2i_code_of_uv(status), status);
        return;
    }
    /* From here on the conn may end in any callback; its dial goes first, and the close is later than this function. */
    k2i_conn_opened(c);
    k2i_dial_free(c);
}

static void dial_address(k2_conn *c, const struct sockaddr *addr)
{
    c->dial->connect.data = c;
    int rc = uv_tcp_connect(&c->dial->connect, &c->u.tcp, addr, dial_connected);
    if (rc < 0) dial_fail(c, k2i_code_of_uv(rc), rc);
}

/* The first IPv4 address, else the first there is: "localhost" is ::1 first on many machines where servers bind 127.0.0.1. */
static const struct addrinfo *address_choose(const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a; a = a->ai_next)
        if (a->ai_family == AF_INET) return a;
    return list;
}

static void address_set_port(struct sockaddr_storage *to, const struct addrinfo *from, uint16_t port)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from->ai_addr, K2_MIN((size_t)from->ai_addrlen, sizeof *to));
    if (from->ai_family == AF_INET)
        ((struct sockaddr_in *)(void *)to)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)(void *)to)->sin6_port = htons(port);
}

static void dial_found(uv_getaddrinfo_t *lookup, int status, struct addrinfo *list)
{
    k2_conn *c = lookup->data;
    c->dial->looking = false;
    if (!c->closing) {
        if (status < 0 || !list) {
            dial_fail(c, K2_NOT_FOUND, status < 0 ? status : UV_EAI_NONAME);
        } else {
            struct sockaddr_storage addr;
            address_set_port(&addr, address_choose(list), c->dial->port);
            dial_address(c, (const struct sockaddr *)&addr);
        }
    }
    uv_freeaddrinfo(list);
    if (c->closed) k2i_conn_final(c);
}

static void dial_lookup(k2_conn *c, const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    c->dial->lookup.data = c;
    int rc = uv_getaddrinfo(&c->loop->uv, &c->dial->lookup, dial_found, host, NULL, &hints);
    if (rc < 0)
        dial_fail(c, K2_NOT_FOUND, rc);
    else
        c->dial->looking = true;
}

k2_conn *k2_conn_dial(k2_loop *loop, const char *host, uint16_t port, const k2_stream_ops *ops, void *arg,
                      uint64_t connect_deadline_ns)
{
    K2_ASSERT(host && ops && ops->on_read && ops->on_close);
    k2_conn *c = k2i_conn_new_tcp(loop);
    c->ops = ops;
    c->arg = arg;
    c->dial = k2_alloc(sizeof *c->dial);
    c->dial->port = port;
    c->dial->name = k2_asprintf(strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, port);
    if (loop->ending || loop->conns > K2_CONNS_MAX) {
        k2i_conn_end(c, loop->ending ? K2_CANCELED : K2_FULL, loop->ending ? "the loop ends" : "too many connections", 0);
        return c;
    }
    c->dial->deadline = k2_timer_start(loop, connect_deadline_ns ? connect_deadline_ns : CONNECT_DEADLINE_NS, 0, dial_late, c);
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } addr;
    if (uv_ip4_addr(host, port, &addr.v4) == 0 || uv_ip6_addr(host, port, &addr.v6) == 0)
        dial_address(c, &addr.any);
    else
        dial_lookup(c, host);
    return c;
}

/* ---- listening -------------------------------------------------------------------------------------------------- */

static void listener_closed(uv_handle_t *handle)
{
    k2_free(handle->data);
}

void k2i_listener_end(k2_listener *l)
{
    if (!uv_is_closing((uv_handle_t *)&l->uv)) uv_close((uv_handle_t *)&l->uv, listener_closed);
}

void k2_listener_close(k2_listener *l)
{
    if (l) k2i_listener_end(l);
}

static void listener_came(uv_stream_t *stream, int status)
{
    k2_listener *l = stream->data;
    if (status < 0) return; /* a client that was gone before it was accepted */
    k2_conn *c = k2i_conn_new_tcp(l->loop);
    if (uv_accept(stream, &c->u.stream) < 0 || l->loop->conns > K2_CONNS_MAX || l->loop->ending) {
        k2_conn_close(c);
        return;
    }
    k2i_conn_opened(c);
    l->on_accept(l->arg, c);
    if (!c->ops) k2_conn_close(c);
}

static int listener_bind(k2_listener *l, const struct sockaddr *addr, int backlog)
{
    int rc = uv_tcp_bind(&l->uv, addr, 0);
    if (rc == 0) rc = uv_listen((uv_stream_t *)&l->uv, backlog, listener_came);
    struct sockaddr_storage bound;
    int n = sizeof bound;
    if (rc == 0) rc = uv_tcp_getsockname(&l->uv, (struct sockaddr *)&bound, &n);
    if (rc == 0)
        l->port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&bound)->sin_port
                                                   : ((struct sockaddr_in6 *)(void *)&bound)->sin6_port);
    return rc;
}

k2_listener *k2_listen(k2_loop *loop, const char *host, uint16_t port, int backlog, void (*on_accept)(void *arg, k2_conn *c),
                       void *arg, k2_error *err)
{
    K2_ASSERT(host && on_accept && backlog > 0);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int gai = getaddrinfo(host, NULL, &hints, &list);
    if (gai != 0) {
        k2_error_set(err, K2_NOT_FOUND, "listen on %s:%u: %s", host, port, gai_strerror(gai));
        return NULL;
    }
    struct sockaddr_storage addr;
    address_set_port(&addr, address_choose(list), port);
    freeaddrinfo(list);
    k2_listener *l = k2_alloc(sizeof *l);
    *l = (k2_listener){.kind = K2I_LISTENER, .loop = loop, .on_accept = on_accept, .arg = arg};
    K2_ASSERT(uv_tcp_init(&loop->uv, &l->uv) == 0);
    l->uv.data = l;
    int rc = listener_bind(l, (const struct sockaddr *)&addr, backlog);
    if (rc == 0) return l;
    k2_code code = k2i_code_of_uv(rc);
    if (code == K2_BUSY)
        k2_error_set(err, code, "%s:%u is in use by another process", host, port);
    else
        k2_error_set(err, code, "listen on %s:%u: %s", host, port, uv_strerror(rc));
    k2i_listener_end(l);
    return NULL;
}

uint16_t k2_listener_port(const k2_listener *l)
{
    return l->port;
}
