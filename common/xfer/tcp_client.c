/* The reading half of the tcp transport: a remote is an address and a few connections (rails), each made when it is first
 * needed.
 *
 * A rail serves one exchange at a time, under its lock. Any failure closes the rail's connection, so that an answer that comes
 * too late can never be taken for the answer to a later question; the next exchange connects anew. Long polls have a rail of
 * their own.
 */
#include "common/xfer/xfer_int.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define SLICE_NS (20 * K2_NS_PER_MS) /* how late a cancel is noticed */
#define GRACE_NS                                                                                                               \
    (200 * K2_NS_PER_MS) /* the server ends a long poll at the deadline: its answer is worth waiting for a little */
#define WAIT_RAIL   K2_XFER_RAILS_MAX
#define PIECE_BYTES (256u << 10) /* received, then hashed while it is in the cache */

typedef struct rail {
    pthread_mutex_t lock;
    int fd; /* -1 = not connected */
    uint64_t tag;
} rail;

typedef struct remote {
    k2_xfer_locator where;
    struct sockaddr_storage address;
    socklen_t address_bytes;
    uint32_t rail_count;
    rail rails[K2_XFER_RAILS_MAX + 1];
} remote;

/* What bounds an exchange. */
typedef struct bounds {
    uint64_t deadline_ns;
    const atomic_bool *cancel;
} bounds;

static void rail_drop(rail *l)
{
    if (l->fd >= 0) close(l->fd);
    l->fd = -1;
}

static k2_code socket_wait(int fd, short events, const bounds *b, k2_error *err)
{
    for (;;) {
        if (b->cancel != NULL && atomic_load(b->cancel)) return k2_error_set(err, K2_CANCELED, "canceled");
        uint64_t now = k2_now_ns();
        if (now >= b->deadline_ns) return k2_error_set(err, K2_TIMEOUT, "no answer in time");
        uint64_t left = b->deadline_ns - now;
        if (b->cancel != NULL) left = K2_MIN(left, SLICE_NS);
        left = K2_MIN(left, K2_NS_PER_S * 1000);
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, (int)((left + K2_NS_PER_MS - 1) / K2_NS_PER_MS));
        if (n > 0) return K2_OK;
        if (n < 0 && errno != EINTR) return k2_error_errno(err, errno, "poll");
    }
}

static k2_code rail_connect(const remote *r, rail *l, const bounds *b, k2_error *err)
{
    int fd = socket(r->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return k2_error_errno(err, errno, "socket");
    int on = 1, problem = 0;
    socklen_t len = sizeof problem;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    k2_code code = K2_OK;
    if (connect(fd, (const struct sockaddr *)&r->address, r->address_bytes) != 0) {
        problem = errno;
        if (problem == EINPROGRESS) {
            code = socket_wait(fd, POLLOUT, b, err);
            if (code == K2_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &len) != 0) problem = errno;
        }
        if (code == K2_OK && problem != 0) code = k2_error_set(err, K2_PEER_CLOSED, "connecting: %s", strerror(problem));
    }
    if (code != K2_OK) {
        close(fd);
        return code;
    }
    l->fd = fd;
    return K2_OK;
}

static k2_code send_all(int fd, const unsigned char *data, size_t n, const bounds *b, k2_error *err)
{
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(fd, data + at, n - at, MSG_NOSIGNAL);
        if (sent >= 0) {
            at += (size_t)sent;
        } else if (errno == EAGAIN) {
            k2_code code = socket_wait(fd, POLLOUT, b, err);
            if (code != K2_OK) return code;
        } else if (errno != EINTR) {
            return k2_error_set(err, K2_PEER_CLOSED, "sending: %s", strerror(errno));
        }
    }
    return K2_OK;
}

static k2_code recv_all(int fd, unsigned char *data, size_t n, const bounds *b, k2_error *err)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, data + at, n - at, 0);
        if (got > 0) {
            at += (size_t)got;
        } else if (got == 0) {
            return k2_error_set(err, K2_PEER_CLOSED, "the peer closed the connection after %zu of %zu bytes", at, n);
        } else if (errno == EAGAIN) {
            k2_code code = socket_wait(fd, POLLIN, b, err);
            if (code != K2_OK) return code;
        } else if (errno != EINTR) {
            return k2_error_set(err, K2_PEER_CLOSED, "receiving: %s", strerror(errno));
        }
    }
    return K2_OK;
}

/* Send the request, receive the reply's header. The rail is dropped by the caller on failure. */
static k2_code ask_once(remote *r, rail *l, k2i_tcp_request *q, const bounds *b, k2i_tcp_reply *a, k2_error *err)
{
    unsigned char frame[K2I_REQUEST_BYTES];
    _Static_assert(sizeof frame >= K2I_REPLY_BYTES, "one buffer serves both ways");
    k2_code code = l->fd >= 0 ? K2_OK : rail_connect(r, l, b, err);
    if (code != K2_OK) return code;
    q->segment = r->where.id;
    q->nonce = r->where.nonce;
    q->tag = ++l->tag;
    k2i_tcp_request_encode(q, frame);
    code = send_all(l->fd, frame, sizeof frame, b, err);
    if (code == K2_OK) code = recv_all(l->fd, frame, K2I_REPLY_BYTES, b, err);
    if (code == K2_OK) code = k2i_tcp_reply_decode(frame, K2I_REPLY_BYTES, a, err);
    if (code != K2_OK) return code;
    if (a->tag != q->tag) return k2_error_set(err, K2_PEER_PROTOCOL, "the reply is to another request");
    return K2_OK;
}

/* A connection that was idle may have been closed by the other side at any time: that is no failure yet, connect anew and ask
 * again. */
static k2_code ask(remote *r, rail *l, k2i_tcp_request *q, const bounds *b, k2i_tcp_reply *a, k2_error *err)
{
    bool reused = l->fd >= 0;
    k2_error why;
    k2_code code = ask_once(r, l, q, b, a, &why);
    if (code == K2_PEER_CLOSED && reused) {
        rail_drop(l);
        code = ask_once(r, l, q, b, a, &why);
    }
    return code == K2_OK ? k2i_tcp_status_error(a->status, err) : k2_error_set(err, code, "%s", why.text);
}

/* Receive the payload into place and compare it with the hash that came before it. */
static k2_code payload_recv(rail *l, k2_xfer_io *io, const k2i_tcp_reply *a, const bounds *b, k2_error *err)
{
    unsigned char *data = io->local;
    k2_code code = K2_OK;
    k2_hash64_stream *h = k2_hash64_begin();
    for (uint64_t at = 0; at < io->bytes && code == K2_OK;) {
        size_t n = (size_t)K2_MIN(io->bytes - at, (uint64_t)PIECE_BYTES);
        code = recv_all(l->fd, data + at, n, b, err);
        if (code == K2_OK) k2_hash64_update(h, data + at, n);
        at += n;
    }
    io->hash = k2_hash64_end(h);
    if (code == K2_OK && io->hash != a->hash)
        code = k2_error_set(err, K2_CORRUPT, "hash %016llx, the sender's was %016llx", (unsigned long long)io->hash,
                            (unsigned long long)a->hash);
    return code;
}

/* After these the connection stands between two exchanges and can be used again. */
static bool clean_end(k2_code code, const k2i_tcp_reply *a)
{
    return code == K2_OK ||
           (a->status != K2I_STATUS_OK && code != K2_CANCELED && code == k2i_tcp_status_error(a->status, NULL));
}

k2_code k2i_client_read(void *arg, k2_xfer_io *io, k2_error *err)
{
    remote *r = arg;
    rail *l = &r->rails[io->rail % r->rail_count];
    bounds b = {.deadline_ns = io->deadline_ns, .cancel = io->cancel};
    k2i_tcp_request q = {.op = K2I_OP_READ, .offset = io->offset, .bytes = io->bytes};
    k2i_tcp_reply a = {.status = K2I_STATUS_OK};
    pthread_mutex_lock(&l->lock);
    k2_code code = ask(r, l, &q, &b, &a, err);
    if (code == K2_OK && a.bytes != io->bytes)
        code = k2_error_set(err, K2_PEER_PROTOCOL, "%llu bytes in the reply, asked for %llu", (unsigned long long)a.bytes,
                            (unsigned long long)io->bytes);
    if (code == K2_OK && a.word != r->where.bytes)
        code = k2_error_set(err, K2_PEER_REFUSED, "the segment has %llu bytes, expected %llu", (unsigned long long)a.word,
                            (unsigned long long)r->where.bytes);
    if (code == K2_OK) code = payload_recv(l, io, &a, &b, err);
    if (!clean_end(code, &a)) rail_drop(l);
    pthread_mutex_unlock(&l->lock);
    return code;
}

k2_code k2i_client_wait(void *arg, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err)
{
    remote *r = arg;
    rail *l = &r->rails[WAIT_RAIL];
    uint64_t until =
        K2_MIN(K2_MAX(deadline_ns, k2_now_ns()), UINT64_MAX - GRACE_NS); /* a deadline in the past still asks once */
    bounds b = {.deadline_ns = until + GRACE_NS};
    k2_code code;
    k2_error why;
    k2i_tcp_reply a;
    pthread_mutex_lock(&l->lock);
    do {
        uint64_t now = k2_now_ns();
        uint64_t left_ms = deadline_ns > now ? (deadline_ns - now) / K2_NS_PER_MS : 0;
        k2i_tcp_request q = {.op = K2I_OP_WAIT, .offset = offset, .bytes = value};
        q.timeout_ms = (uint32_t)K2_MIN(left_ms, (uint64_t)K2I_WAIT_MS_MAX);
        a = (k2i_tcp_reply){.status = K2I_STATUS_OK};
        code = ask(r, l, &q, &b, &a, &why);
        if (!clean_end(code, &a)) rail_drop(l);
    } while (code == K2_TIMEOUT && k2_now_ns() < deadline_ns);
    pthread_mutex_unlock(&l->lock);
    if (code != K2_OK && a.status == K2I_STATUS_TIMEOUT)
        return k2_error_set(err, code, "the word stands at %llu, expected %llu", (unsigned long long)a.word,
                            (unsigned long long)value);
    if (code != K2_OK) return k2_error_set(err, code, "%s", why.text);
    if (seen != NULL) *seen = a.word;
    return K2_OK;
}

void k2i_client_close(void *arg)
{
    remote *r = arg;
    for (size_t i = 0; i < K2_COUNT(r->rails); i++) {
        rail_drop(&r->rails[i]);
        pthread_mutex_destroy(&r->rails[i].lock);
    }
    k2_free(r);
}

k2_code k2i_client_open(const k2_xfer_config *config, const k2_xfer_locator *where, uint64_t deadline_ns, void **out,
                        k2_error *err)
{
    remote *r = k2_alloc(sizeof *r);
    r->where = *where;
    r->rail_count = K2_MAX(config->rails, 1u);
    for (size_t i = 0; i < K2_COUNT(r->rails); i++) {
        pthread_mutex_init(&r->rails[i].lock, NULL);
        r->rails[i].fd = -1;
    }
    k2_code code = K2_OK;
    if (!k2i_sockaddr(where->host, where->port, &r->address, &r->address_bytes))
        code = k2_error_set(err, K2_BAD_INPUT, "'%s' is no numeric address", where->host);
    /* A read of nothing proves the nonce, and its reply carries the segment's size. */
    k2_xfer_io probe = {.deadline_ns = deadline_ns};
    if (code == K2_OK) code = k2i_client_read(r, &probe, err);
    if (code != K2_OK) {
        k2i_client_close(r);
        return code;
    }
    *out = r;
    return K2_OK;
}
