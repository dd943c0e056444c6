/* The answering half of the tcp transport: one or more threads, each with an epoll set of connections, non-blocking throughout.
 *
 *   connection:  READING ──request──► SENDING ──all sent──► READING
 *                   └──WAIT not yet true──► WAITING ──word reached, time over, segment gone──► SENDING
 *
 * A connection handles one request at a time; what a reader sends ahead stays in the kernel's buffer, so nothing is queued
 * here. A segment that is destroyed while its bytes are being sent lives until the last such reply is out. Every state has a
 * deadline.
 */
#include "common/xfer/xfer_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define IDLE_NS    (600 * K2_NS_PER_S) /* between requests: workers sit through whole training steps without a read */
#define REQUEST_NS (10 * K2_NS_PER_S)  /* from a request's first byte to its last */
#define STALL_NS   (30 * K2_NS_PER_S)  /* without a byte of the reply taken */
#define TURNS_MAX  16                  /* requests of one connection in a row, then the others get their turn */
#define EVENTS_MAX 64
#define BACKLOG    128

struct k2i_server_segment {
    k2i_server *server;
    uint64_t id, bytes;
    k2_xfer_nonce nonce;
    unsigned char *data;
    atomic_uint references; /* the owner's and one per reply or wait in progress */
    atomic_bool gone;
};

typedef enum state { READING, SENDING, WAITING } state;

typedef struct conn {
    struct conn *next, **link;
    int fd;
    state state;
    uint32_t events; /* what epoll is asked for now */
    uint64_t deadline_ns;
    unsigned char in[K2I_REQUEST_BYTES];
    size_t in_have;
    k2i_tcp_request request;     /* the last whole one */
    k2i_server_segment *segment; /* held while SENDING bytes of it or WAITING on it */
    unsigned char out[K2I_REPLY_BYTES];
    uint64_t payload_bytes, sent; /* sent counts header and payload */
} conn;

typedef struct loop {
    k2i_server *server;
    pthread_t thread;
    int epoll, wake;
    conn *conns;
    uint64_t due_ns; /* no connection's deadline is before this */
} loop;

struct k2i_server {
    int listener, reserve; /* reserve: a descriptor to give up when none is left, so that a connection can be refused */
    char host[48];
    uint16_t port;
    uint32_t loop_count;
    loop loops[K2_XFER_SERVERS_MAX];
    atomic_bool stop;
    pthread_mutex_t lock; /* segments, last_id, reserve */
    k2i_server_segment *segments[K2_XFER_SEGMENTS_MAX];
    uint64_t last_id;
    atomic_uint_fast64_t served_bytes, served_chunks, refused, protocol_errors, accepted, conns_refused, conns_now;
};

static void wake(loop *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake, &one, sizeof one);
    K2_ASSERT(n == sizeof one || errno == EAGAIN); /* EAGAIN: the counter is full, so the loop is awake anyway */
}

/* ---- segments --------------------------------------------------------------------------------------------------- */

static void segment_drop(k2i_server_segment *s)
{
    if (atomic_fetch_sub(&s->references, 1) != 1) return;
    k2i_memory_unmap(s->data, s->bytes);
    k2_free(s);
}

/* A reference to the segment that the request names, or NULL. A wrong nonce and an unknown segment look the same from outside.
 */
static k2i_server_segment *segment_take(k2i_server *v, const k2i_tcp_request *q)
{
    k2i_server_segment *found = NULL;
    k2i_order_acquire();
    pthread_mutex_lock(&v->lock);
    for (uint32_t i = 0; i < K2_XFER_SEGMENTS_MAX; i++) {
        k2i_server_segment *s = v->segments[i];
        if (s != NULL && s->id == q->segment && k2i_nonce_equal(&s->nonce, &q->nonce)) found = s;
    }
    if (found != NULL) atomic_fetch_add(&found->references, 1);
    pthread_mutex_unlock(&v->lock);
    return found;
}

k2_code k2i_server_segment_create(k2i_server *v, uint64_t bytes, const k2_xfer_nonce *nonce, k2i_server_segment **out,
                                  k2_xfer_locator *where, k2_error *err)
{
    k2_error local;
    unsigned char *data = k2i_memory_map(bytes, &local);
    if (data == NULL) return k2_error_set(err, local.code, "%s", local.text);
    k2i_server_segment *s = k2_alloc(sizeof *s);
    s->server = v;
    s->bytes = bytes;
    s->nonce = *nonce;
    s->data = data;
    atomic_init(&s->references, 1);
    pthread_mutex_lock(&v->lock);
    uint32_t slot = 0;
    while (slot < K2_XFER_SEGMENTS_MAX && v->segments[slot] != NULL) slot++;
    K2_ASSERT(slot < K2_XFER_SEGMENTS_MAX); /* the engine counts them */
    v->segments[slot] = s;
    s->id = ++v->last_id;
    pthread_mutex_unlock(&v->lock);
    where->id = s->id;
    where->port = v->port;
    memcpy(where->host, v->host, sizeof v->host);
    *out = s;
    return K2_OK;
}

unsigned char *k2i_server_segment_memory(k2i_server_segment *s)
{
    return s->data;
}

void k2i_server_segment_signal(k2i_server_segment *s, uint64_t offset, uint64_t value)
{
    /* Store first, wake second: a loop that misses the value when it looks will find the wake-up afterwards. */
    k2i_mapped_signal(s->data, offset, value);
    k2i_order_release();
    for (uint32_t i = 0; i < s->server->loop_count; i++) wake(&s->server->loops[i]);
}

void k2i_server_segment_destroy(k2i_server_segment *s)
{
    k2i_server *v = s->server;
    pthread_mutex_lock(&v->lock);
    for (uint32_t i = 0; i < K2_XFER_SEGMENTS_MAX; i++)
        if (v->segments[i] == s) v->segments[i] = NULL;
    pthread_mutex_unlock(&v->lock);
    atomic_store(&s->gone, true);
    for (uint32_t i = 0; i < v->loop_count; i++) wake(&v->loops[i]); /* who waits on it is told */
    segment_drop(s);
}

/* ---- one connection --------------------------------------------------------------------------------------------- */

static void conn_deadline(loop *l, conn *c, uint64_t deadline_ns)
{
    c->deadline_ns = deadline_ns;
    l->due_ns = K2_MIN(l->due_ns, deadline_ns);
}

static void conn_close(loop *l, conn *c)
{
    if (c->segment != NULL) segment_drop(c->segment);
    close(c->fd);
    *c->link = c->next;
    if (c->next != NULL) c->next->link = c->link;
    k2_free(c);
    atomic_fetch_sub(&l->server->conns_now, 1);
}

static void conn_events(loop *l, conn *c, uint32_t events)
{
    if (c->events == events) return;
    struct epoll_event ev = {.events = events, .data.ptr = c};
    int rc = epoll_ctl(l->epoll, EPOLL_CTL_MOD, c->fd, &ev);
    K2_ASSERT(rc == 0);
    c->events = events;
}

static void reply_begin(loop *l, conn *c, const k2i_tcp_reply *a)
{
    k2i_tcp_reply_encode(a, c->out);
    c->payload_bytes = a->bytes;
    c->sent = 0;
    c->state = SENDING;
    conn_deadline(l, c, k2_now_ns() + STALL_NS);
}

static void reply_status(loop *l, conn *c, k2i_tcp_status status, uint64_t word)
{
    reply_begin(l, c, &(k2i_tcp_reply){.status = status, .tag = c->request.tag, .word = word});
}

/* Whether the wait is over; then the reply has begun. */
static bool wait_check(loop *l, conn *c, uint64_t now)
{
    uint64_t word = k2i_mapped_word(c->segment->data, c->request.offset);
    if (word >= c->request.bytes)
        reply_status(l, c, K2I_STATUS_OK, word);
    else if (atomic_load(&c->segment->gone))
        reply_status(l, c, K2I_STATUS_REFUSED, 0);
    else if (now >= c->deadline_ns)
        reply_status(l, c, K2I_STATUS_TIMEOUT, word);
    return c->state == SENDING;
}

/* A whole request stands in c->request. */
static void request_serve(loop *l, conn *c)
{
    const k2i_tcp_request *q = &c->request;
    c->segment = segment_take(l->server, q);
    if (c->segment == NULL) {
        atomic_fetch_add(&l->server->refused, 1);
        reply_status(l, c, K2I_STATUS_REFUSED, 0);
        return;
    }
    if (k2i_tcp_request_range(q, c->segment->bytes) != K2I_STATUS_OK) {
        reply_status(l, c, K2I_STATUS_RANGE, 0);
        return;
    }
    if (q->op == K2I_OP_READ) {
        uint64_t hash = k2_hash64(c->segment->data + q->offset, q->bytes, 0);
        reply_begin(l, c, &(k2i_tcp_reply){.tag = q->tag, .bytes = q->bytes, .hash = hash, .word = c->segment->bytes});
        return;
    }
    uint64_t now = k2_now_ns();
    c->state = WAITING;
    conn_deadline(l, c, now + q->timeout_ms * K2_NS_PER_MS);
    wait_check(l, c, now);
}

/* How a step on a connection ended: go on with it, wait for the socket, or it is of no use any more. */
typedef enum step { STEP_ON, STEP_BLOCKED, STEP_CLOSE } step;

static step conn_read(loop *l, conn *c)
{
    ssize_t n = recv(c->fd, c->in + c->in_have, sizeof c->in - c->in_have, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? STEP_BLOCKED : STEP_CLOSE;
    if (n == 0) return STEP_CLOSE;
    if (c->in_have == 0) conn_deadline(l, c, k2_now_ns() + REQUEST_NS);
    c->in_have += (size_t)n;
    k2_code code = k2i_tcp_request_decode(c->in, c->in_have, &c->request, NULL);
    if (code == K2_INCOMPLETE) return STEP_ON;
    if (code != K2_OK) {
        atomic_fetch_add(&l->server->protocol_errors, 1);
        return STEP_CLOSE;
    }
    c->in_have = 0;
    request_serve(l, c);
    return STEP_ON;
}

static step conn_send(loop *l, conn *c)
{
    uint64_t total = K2I_REPLY_BYTES + c->payload_bytes;
    struct iovec part[2];
    int parts = 0;
    if (c->sent < K2I_REPLY_BYTES) part[parts++] = (struct iovec){c->out + c->sent, K2I_REPLY_BYTES - c->sent};
    uint64_t at = c->sent > K2I_REPLY_BYTES ? c->sent - K2I_REPLY_BYTES : 0;
    if (c->payload_bytes > at) part[parts++] = (struct iovec){c->segment->data + c->request.offset + at, c->payload_bytes - at};
    struct msghdr m = {.msg_iov = part, .msg_iovlen = (size_t)parts};
    ssize_t n = sendmsg(c->fd, &m, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR ? STEP_BLOCKED : STEP_CLOSE;
    c->sent += (uint64_t)n;
    uint64_t now = k2_now_ns();
    conn_deadline(l, c, now + (c->sent < total ? STALL_NS : IDLE_NS));
    if (c->sent < total) return STEP_ON;

    if (c->payload_bytes > 0) {
        atomic_fetch_add(&l->server->served_bytes, c->payload_bytes);
        atomic_fetch_add(&l->server->served_chunks, 1);
    }
    if (c->segment != NULL) segment_drop(c->segment);
    c->segment = NULL;
    c->state = READING;
    return STEP_ON;
}

static void conn_run(loop *l, conn *c)
{
    static const uint32_t wanted[] = {[READING] = EPOLLIN, [SENDING] = EPOLLOUT, [WAITING] = EPOLLRDHUP};
    step s = STEP_ON;
    for (int turn = 0; s == STEP_ON && c->state != WAITING && turn < 2 * TURNS_MAX; turn++)
        s = c->state == READING ? conn_read(l, c) : conn_send(l, c);
    if (s == STEP_CLOSE)
        conn_close(l, c);
    else
        conn_events(l, c, wanted[c->state]); /* level-triggered: whatever was left over comes back at once */
}

/* ---- accepting -------------------------------------------------------------------------------------------------- */

static void conn_add(loop *l, int fd)
{
    k2i_server *v = l->server;
    if (atomic_fetch_add(&v->conns_now, 1) >= K2_XFER_CONNS_MAX) {
        atomic_fetch_sub(&v->conns_now, 1);
        atomic_fetch_add(&v->conns_refused, 1);
        close(fd);
        return;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    conn *c = k2_alloc(sizeof *c);
    *c = (conn){.fd = fd, .next = l->conns, .link = &l->conns, .events = EPOLLIN};
    if (l->conns != NULL) l->conns->link = &c->next;
    l->conns = c;
    conn_deadline(l, c, k2_now_ns() + IDLE_NS);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    atomic_fetch_add(&v->accepted, 1);
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &ev) != 0) conn_close(l, c);
}

/* No descriptor is left: take the connection with the reserve and close it, else the listener would stay ready for ever. Where
 * the reserve can be had again at once, there is a descriptor after all, and the connection is kept. False when nobody is
 * there. */
static bool accept_scarce(loop *l)
{
    k2i_server *v = l->server;
    pthread_mutex_lock(&v->lock);
    if (v->reserve >= 0) close(v->reserve);
    int fd = accept4(v->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    v->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    bool refuse = fd >= 0 && v->reserve < 0;
    if (refuse) {
        atomic_fetch_add(&v->conns_refused, 1);
        close(fd);
        v->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    pthread_mutex_unlock(&v->lock);
    if (fd >= 0 && !refuse) conn_add(l, fd);
    return fd >= 0;
}

static void accept_all(loop *l)
{
    for (int turn = 0; turn < TURNS_MAX; turn++) {
        int fd = accept4(l->server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        bool scarce = fd < 0 && (errno == EMFILE || errno == ENFILE); /* also said when nobody waits to be accepted */
        if (fd >= 0)
            conn_add(l, fd);
        else if (scarce ? !accept_scarce(l) : errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* Look at everyone: waits that a signal may have ended (`signaled`), and deadlines. */
static void conns_scan(loop *l, bool signaled, uint64_t now)
{
    l->due_ns = UINT64_MAX;
    for (conn *c = l->conns, *next; c != NULL; c = next) {
        next = c->next;
        bool due = now >= c->deadline_ns;
        if (c->state == WAITING && (signaled || due)) {
            if (wait_check(l, c, now)) {
                conn_run(l, c); /* may close it, or set a deadline of its own */
                continue;
            }
        } else if (due) {
            conn_close(l, c);
            continue;
        }
        l->due_ns = K2_MIN(l->due_ns, c->deadline_ns);
    }
}

static int loop_timeout_ms(const loop *l)
{
    if (l->due_ns == UINT64_MAX) return -1; /* no connection: only the listener and the wake-up matter */
    uint64_t now = k2_now_ns();
    uint64_t ms = l->due_ns > now ? (l->due_ns - now) / K2_NS_PER_MS + 1 : 0;
    return (int)K2_MIN(ms, 60000u);
}

static void *loop_main(void *arg)
{
    k2_thread_begin();
    loop *l = arg;
    struct epoll_event events[EVENTS_MAX];
    while (!atomic_load(&l->server->stop)) {
        int n = epoll_wait(l->epoll, events, EVENTS_MAX, loop_timeout_ms(l));
        bool signaled = false;
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == l) {
                uint64_t count;
                signaled = read(l->wake, &count, sizeof count) == sizeof count;
            } else if (events[i].data.ptr == l->server) {
                accept_all(l);
            } else {
                conn *c = events[i].data.ptr;
                if (c->state == WAITING) /* a reader that hangs up while it waits */
                    conn_close(l, c);
                else
                    conn_run(l, c);
            }
        }
        /* After the events: a scan may close connections that an event of this round still points to. */
        uint64_t now = k2_now_ns();
        if (signaled || now >= l->due_ns) conns_scan(l, signaled, now);
    }
    while (l->conns != NULL) conn_close(l, l->conns);
    return NULL;
}

/* ---- opening and closing ---------------------------------------------------------------------------------------- */

static k2_code listen_on(k2i_server *v, const k2_xfer_config *config, k2_error *err)
{
    struct sockaddr_storage at;
    socklen_t len;
    int on = 1;
    const char *host = config->host != NULL ? config->host : "127.0.0.1";
    if (strlen(host) >= sizeof v->host || !k2i_sockaddr(host, config->port, &at, &len))
        return k2_error_set(err, K2_BAD_INPUT, "xfer.host: '%s' is no numeric address", host);
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        return k2_error_set(err, K2_BAD_INPUT, "xfer.host: '%s' cannot be dialed by others, name one address of this machine",
                            host);
    v->listener = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (v->listener < 0) return k2_error_errno(err, errno, "tcp: socket");
    setsockopt(v->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(v->listener, (struct sockaddr *)&at, len) != 0 || listen(v->listener, BACKLOG) != 0) {
        if (errno == EADDRNOTAVAIL)
            return k2_error_set(err, K2_BAD_INPUT, "xfer.host: '%s' is no address of this machine", host);
        return k2_error_errno(err, errno, "tcp: listening on %s port %u", host, config->port);
    }
    getsockname(v->listener, (struct sockaddr *)&at, &len);
    v->port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&at)->sin_port
                                            : ((struct sockaddr_in6 *)(void *)&at)->sin6_port);
    snprintf(v->host, sizeof v->host, "%s", host);
    return K2_OK;
}

static k2_code loop_open(k2i_server *v, loop *l, k2_error *err)
{
    struct epoll_event wake_ev = {.events = EPOLLIN, .data.ptr = l};
    struct epoll_event accept_ev = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.ptr = v}; /* one loop wakes for one connection */
    *l = (loop){.server = v, .due_ns = UINT64_MAX};
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0) return k2_error_errno(err, errno, "tcp: epoll");
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake < 0) goto fail_epoll;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->wake, &wake_ev) != 0) goto fail_wake;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, v->listener, &accept_ev) != 0) goto fail_wake;
    errno = pthread_create(&l->thread, NULL, loop_main, l);
    if (errno != 0) goto fail_wake;
    return K2_OK;

fail_wake:
    close(l->wake);
fail_epoll:
    close(l->epoll);
    return k2_error_errno(err, errno, "tcp: starting a server thread");
}

k2_code k2i_tcp_server_open(const k2_xfer_config *config, k2i_server **out, k2_error *err)
{
    k2i_server *v = k2_alloc(sizeof *v);
    v->listener = v->reserve = -1;
    pthread_mutex_init(&v->lock, NULL);
    k2_code code = listen_on(v, config, err);
    v->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (uint32_t i = 0; code == K2_OK && i < K2_MAX(config->servers, 1u); i++) {
        code = loop_open(v, &v->loops[i], err);
        if (code == K2_OK) v->loop_count++;
    }
    if (code != K2_OK) {
        k2i_server_close(v);
        return code;
    }
    *out = v;
    return K2_OK;
}

void k2i_server_close(k2i_server *v)
{
    atomic_store(&v->stop, true);
    for (uint32_t i = 0; i < v->loop_count; i++) {
        loop *l = &v->loops[i];
        wake(l);
        pthread_join(l->thread, NULL);
        close(l->wake);
        close(l->epoll);
    }
    if (v->listener >= 0) close(v->listener);
    if (v->reserve >= 0) close(v->reserve);
    pthread_mutex_destroy(&v->lock);
    k2_free(v);
}

void k2i_server_stats(k2i_server *v, k2_xfer_stats *out)
{
    *out = (k2_xfer_stats){
        .served_bytes = atomic_load(&v->served_bytes),
        .served_chunks = atomic_load(&v->served_chunks),
        .refused = atomic_load(&v->refused),
        .protocol_errors = atomic_load(&v->protocol_errors),
        .conns_accepted = atomic_load(&v->accepted),
        .conns_refused = atomic_load(&v->conns_refused),
        .conns_now = atomic_load(&v->conns_now),
    };
}
