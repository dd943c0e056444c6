/* Byte streams: reading into the loop's one buffer, a bounded write queue, one way to end. */
#include "common/loop/loop_int.h"

#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A peer whose host or network has gone says nothing, not even that. Who waits for an answer is told after 45 seconds. */
#define KEEPALIVE_IDLE_S     30
#define KEEPALIVE_INTERVAL_S 5
#define KEEPALIVE_COUNT      3

/* One queued write. Its bytes follow it, or belong to the caller until release. */
struct write_req {
    uv_write_t uv;
    k2_conn *conn;
    struct write_req *next; /* while the conn is dialing */
    const char *data;
    size_t bytes;
    void (*release)(void *arg);
    void *release_arg;
};

typedef struct write_req write_req;

k2_code k2i_code_of_uv(int errnum)
{
    switch (errnum) {
    case UV_ECONNREFUSED:
    case UV_EHOSTUNREACH:
    case UV_ENETUNREACH: return K2_PEER_REFUSED;
    case UV_ETIMEDOUT: return K2_TIMEOUT;
    case UV_EOF:
    case UV_EPIPE:
    case UV_ECONNRESET:
    case UV_ECONNABORTED:
    case UV_ENOTCONN: return K2_PEER_CLOSED;
    case UV_EADDRINUSE: return K2_BUSY;
    case UV_EAI_NONAME:
    case UV_EAI_NODATA:
    case UV_EAI_FAIL: return K2_NOT_FOUND;
    default: return K2_IO;
    }
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void write_free(write_req *w)
{
    if (w->release) w->release(w->release_arg);
    k2_free(w);
}

void k2i_conn_final(k2_conn *c)
{
    write_req **pending = k2i_dial_pending(c);
    while (pending && *pending) {
        write_req *w = *pending;
        *pending = w->next;
        write_free(w);
    }
    k2i_dial_free(c);
    if (c->slot) *c->slot = NULL;
    c->loop->conns--;
    if (c->ops) c->ops->on_close(c->arg, c->why, c->text ? c->text : "closed");
    k2_free(c->text);
    k2_free(c);
}

static void conn_closed(uv_handle_t *handle)
{
    k2_conn *c = handle->data;
    c->closed = true;
    if (!k2i_dial_looking(c)) k2i_conn_final(c);
}

void k2i_conn_end(k2_conn *c, k2_code why, const char *what, int errnum)
{
    if (c->closing) return;
    c->closing = true;
    c->why = why;
    if (errnum)
        c->text = k2_asprintf("%s: %s", what, uv_strerror(errnum));
    else if (what)
        c->text = k2_strdup(what);
    uv_close(&c->u.handle, conn_closed);
}

static void conn_fail(k2_conn *c, const char *step, int errnum)
{
    if (c->closing) return;
    char peer[K2_ADDRESS_MAX], what[K2_ADDRESS_MAX + 16];
    k2_conn_peer(c, peer);
    snprintf(what, sizeof what, "%s %s", step, peer);
    k2i_conn_end(c, k2i_code_of_uv(errnum), what, errnum);
}

void k2_conn_close(k2_conn *c)
{
    if (c) k2i_conn_end(c, K2_OK, NULL, 0);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static void read_space(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    k2_conn *c = handle->data;
    size_t room = 0;
    void *space = c->ops->on_space ? c->ops->on_space(c->arg, &room) : NULL;
    if (space)
        *buf = uv_buf_init(space, (unsigned)K2_MIN(room, (size_t)1 << 30));
    else
        *buf = uv_buf_init(c->loop->read_buffer, K2_READ_BYTES);
}

static void peer_ended(k2_conn *c)
{
    c->eof = true;
    uv_read_stop(&c->u.stream);
    if (c->finishing)
        k2i_conn_end(c, K2_OK, NULL, 0);
    else if (c->ops->on_eof)
        c->ops->on_eof(c->arg);
    else
        k2i_conn_end(c, K2_PEER_CLOSED, "the peer closed the connection", 0);
}

static void read_came(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    k2_conn *c = stream->data;
    if (c->closing || n == 0) return;
    if (n > 0)
        c->ops->on_read(c->arg, buf->base, (size_t)n);
    else if (n == UV_EOF)
        peer_ended(c);
    else
        conn_fail(c, "read from", (int)n);
}

static void read_update(k2_conn *c)
{
    if (c->closing || !c->open || !c->ops) return;
    if (c->paused || c->eof || c->flush_close)
        uv_read_stop(&c->u.stream);
    else
        uv_read_start(&c->u.stream, read_space, read_came);
}

void k2_conn_read_stop(k2_conn *c)
{
    c->paused = true;
    read_update(c);
}

void k2_conn_read_start(k2_conn *c)
{
    c->paused = false;
    read_update(c);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static void write_came(uv_write_t *uv, int status)
{
    write_req *w = uv->data;
    k2_conn *c = w->conn;
    c->queued -= w->bytes;
    write_free(w);
    if (c->closing) return;
    if (status < 0)
        conn_fail(c, "write to", status);
    else if (c->queued == 0 && c->flush_close)
        k2_conn_close(c);
    else if (c->queued == 0 && !c->finishing && c->ops->on_drain)
        c->ops->on_drain(c->arg);
}

static void write_submit(k2_conn *c, write_req *w)
{
    uv_buf_t buf = uv_buf_init((char *)(uintptr_t)w->data, (unsigned)w->bytes);
    w->uv.data = w;
    int rc = uv_write(&w->uv, &c->u.stream, &buf, 1, write_came);
    if (rc == 0) return;
    c->queued -= w->bytes;
    write_free(w);
    conn_fail(c, "write to", rc);
}

static void write_queue(k2_conn *c, write_req *w)
{
    w->conn = c;
    c->queued += w->bytes;
    if (c->open) {
        write_submit(c, w);
        return;
    }
    write_req **at = k2i_dial_pending(c);
    while (*at) at = &(*at)->next;
    *at = w;
}

void k2i_conn_submit_pending(k2_conn *c)
{
    write_req **pending = k2i_dial_pending(c);
    while (pending && *pending) {
        write_req *w = *pending;
        *pending = w->next;
        if (c->closing)
            write_free(w);
        else
            write_submit(c, w);
    }
}

static k2_code write_allowed(const k2_conn *c, size_t n)
{
    if (c->closing || c->finishing || c->flush_close) return K2_PEER_CLOSED;
    if (c->queued > 0 && (n > c->queue_max || c->queued > c->queue_max - n)) return K2_FULL;
    return K2_OK;
}

static size_t skip_written(uv_buf_t *buf, size_t done)
{
    size_t n = K2_MIN(done, buf->len);
    buf->base += n;
    buf->len -= n;
    return done - n;
}

k2_code k2_conn_write2(k2_conn *c, const void *a, size_t a_n, const void *b, size_t b_n)
{
    K2_ASSERT(a_n <= UINT32_MAX / 2 && b_n <= UINT32_MAX / 2);
    k2_code code = write_allowed(c, a_n + b_n);
    if (code != K2_OK || a_n + b_n == 0) return code;
    uv_buf_t bufs[2] = {uv_buf_init((char *)(uintptr_t)a, (unsigned)a_n), uv_buf_init((char *)(uintptr_t)b, (unsigned)b_n)};
    if (c->open && c->queued == 0) {
        /* The usual case costs no memory: the socket takes it all. */
        int rc = uv_try_write(&c->u.stream, bufs + (a_n == 0), a_n == 0 || b_n == 0 ? 1 : 2);
        if (rc < 0 && rc != UV_EAGAIN) {
            conn_fail(c, "write to", rc);
            return K2_PEER_CLOSED;
        }
        if (rc > 0) skip_written(&bufs[1], skip_written(&bufs[0], (size_t)rc));
    }
    size_t rest = bufs[0].len + bufs[1].len;
    if (rest == 0) return K2_OK;
    write_req *w = k2_realloc_array(NULL, 1, sizeof *w + rest); /* not zeroed */
    *w = (write_req){.bytes = rest};
    char *bytes = (char *)(w + 1);
    if (bufs[0].len) memcpy(bytes, bufs[0].base, bufs[0].len);
    if (bufs[1].len) memcpy(bytes + bufs[0].len, bufs[1].base, bufs[1].len);
    w->data = bytes;
    write_queue(c, w);
    return K2_OK;
}

k2_code k2_conn_write(k2_conn *c, const void *data, size_t n)
{
    return k2_conn_write2(c, data, n, NULL, 0);
}

k2_code k2_conn_write_ref(k2_conn *c, const void *data, size_t n, void (*release)(void *arg), void *release_arg)
{
    K2_ASSERT(n > 0 && n <= UINT32_MAX / 2);
    k2_code code = write_allowed(c, n);
    if (code != K2_OK) return code;
    write_req *w = k2_alloc(sizeof *w);
    w->data = data;
    w->bytes = n;
    w->release = release;
    w->release_arg = release_arg;
    write_queue(c, w);
    return K2_OK;
}

size_t k2_conn_queued(const k2_conn *c)
{
    return c->queued;
}

void k2_conn_queue_max(k2_conn *c, size_t bytes)
{
    c->queue_max = bytes;
}

void k2_conn_close_flushed(k2_conn *c)
{
    if (!c || c->closing) return;
    c->flush_close = true;
    read_update(c);
    if (c->queued == 0) k2_conn_close(c);
}

static void shutdown_came(uv_shutdown_t *uv, int status)
{
    k2_conn *c = uv->data;
    k2_free(uv);
    if (status < 0 && status != UV_ECANCELED) conn_fail(c, "end towards", status);
}

static void shutdown_submit(k2_conn *c)
{
    uv_shutdown_t *uv = k2_alloc(sizeof *uv);
    uv->data = c;
    int rc = uv_shutdown(uv, &c->u.stream, shutdown_came);
    if (rc == 0) return;
    k2_free(uv);
    conn_fail(c, "end towards", rc);
}

void k2_conn_finish(k2_conn *c)
{
    if (c->closing || c->finishing || c->flush_close) return;
    if (c->eof) {
        k2_conn_close_flushed(c);
        return;
    }
    c->finishing = true;
    if (c->open) shutdown_submit(c);
}

/* ---- making and asking ------------------------------------------------------------------------------------------- */

static k2_conn *conn_new(k2_loop *loop)
{
    k2_conn *c = k2_alloc(sizeof *c);
    c->kind = K2I_CONN;
    c->loop = loop;
    c->queue_max = K2_CONN_QUEUE_MAX;
    loop->conns++;
    return c;
}

k2_conn *k2i_conn_new_tcp(k2_loop *loop)
{
    k2_conn *c = conn_new(loop);
    K2_ASSERT(uv_tcp_init(&loop->uv, &c->u.tcp) == 0);
    c->u.handle.data = c;
    return c;
}

k2_conn *k2i_conn_new_fd(k2_loop *loop, int fd)
{
    k2_conn *c = conn_new(loop);
    K2_ASSERT(uv_pipe_init(&loop->uv, &c->u.pipe, 0) == 0);
    c->u.handle.data = c;
    if (uv_pipe_open(&c->u.pipe, fd) != 0) {
        close(fd);
        k2_conn_close(c); /* nobody is attached: it goes silently */
        return NULL;
    }
    c->open = true;
    return c;
}

/* Failure costs only the notice, and some systems lack one of these. */
static void keepalive(k2_conn *c)
{
    static const int on = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S, count = KEEPALIVE_COUNT;
    uv_os_fd_t fd;
    if (uv_fileno(&c->u.handle, &fd) != 0) return;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

void k2i_conn_opened(k2_conn *c)
{
    c->open = true;
    uv_tcp_nodelay(&c->u.tcp, 1);
    keepalive(c);
    if (!c->ops) return;
    k2i_conn_submit_pending(c);
    if (c->finishing && !c->closing) shutdown_submit(c);
    if (c->flush_close && c->queued == 0) k2_conn_close(c);
    if (!c->closing && c->ops->on_connect) c->ops->on_connect(c->arg, c);
    read_update(c);
}

void k2_conn_attach(k2_conn *c, const k2_stream_ops *ops, void *arg)
{
    K2_ASSERT(ops && ops->on_read && ops->on_close);
    c->ops = ops;
    c->arg = arg;
    read_update(c);
}

bool k2_conn_closing(const k2_conn *c)
{
    return c->closing;
}

void k2_conn_peer(const k2_conn *c, char out[K2_ADDRESS_MAX])
{
    struct sockaddr_storage addr;
    int n = sizeof addr;
    char host[48];
    snprintf(out, K2_ADDRESS_MAX, "-");
    if (c->u.handle.type != UV_TCP || uv_tcp_getpeername(&c->u.tcp, (struct sockaddr *)&addr, &n) != 0) return;
    if (addr.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)&addr;
        if (uv_ip4_name(in, host, sizeof host) == 0) snprintf(out, K2_ADDRESS_MAX, "%s:%u", host, ntohs(in->sin_port));
    } else if (addr.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)&addr;
        if (uv_ip6_name(in, host, sizeof host) == 0) snprintf(out, K2_ADDRESS_MAX, "[%s]:%u", host, ntohs(in->sin6_port));
    }
}

k2_loop *k2_conn_loop(const k2_conn *c)
{
    return c->loop;
}
