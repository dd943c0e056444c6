/* server.c - the server's connections: reading requests, deadlines, aborts. Answers are written in reply.c.
 *
 *   IDLE ──first byte──► READING ──whole──► BUSY ──answered──► IDLE
 *                           └──malformed, too large, too slow──► LINGER ──► closed
 *
 * A `k2_http_req` is its connection with the one request that is being read or answered. Deadlines are looked at by one sweep
 * per server instead of a timer per connection: setting one is then a store, which matters at 10,000 requests/s.
 */
#include "server_int.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LINGER_NS      (2 * K2_NS_PER_S) /* how long a refused client may go on sending before it is cut off */
#define SWEEP_NS_MIN   (5 * K2_NS_PER_MS)
#define SWEEP_NS_MAX   (500 * K2_NS_PER_MS)
#define AHEAD_MAX      65536u /* bytes of pipelined requests that are kept while one is answered; then reading stops */
#define LISTEN_BACKLOG 1024
_Static_assert(AHEAD_MAX / 2 + K2_READ_BYTES <= 2 * AHEAD_MAX, "what is put aside is at most half and one read");

static bool feed(k2_http_req *r, const char *data, size_t n);

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static void go_idle(k2_http_req *r)
{
    r->state = K2I_REQ_IDLE;
    r->deadline_ns = k2_loop_now_ns(r->server->loop) + r->server->limits.idle_ns;
    k2i_http_msg_reset(&r->msg, true);
    if (r->body.capacity > K2I_HTTP_HEAD_KEEP) k2_buf_fini(&r->body);
    k2_buf_clear(&r->body);
    r->on_abort = r->on_drain = NULL;
    r->close_after = r->begun = r->chunked = r->was_full = false;
    k2_buf_clear(&r->extra_headers);
}

/* The server's own answer to a request that it cannot take; what the client still sends is read and dropped for a while, since
 * closing on unread bytes would reset the connection and take the answer with it. */
static void refuse(k2_http_req *r, int status, const char *why)
{
    k2_buf *out = &r->server->scratch;
    char head[256];
    k2_buf_clear(out);
    k2_buf_puts(out, "{\"error\":{\"message\":");
    k2_buf_json_string(out, why, strlen(why));
    k2_buf_puts(out, ",\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}");
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                     status, k2i_http_reason(status), out->len);
    r->state = K2I_REQ_LINGER;
    r->deadline_ns = k2_loop_now_ns(r->server->loop) + LINGER_NS;
    k2_conn_write2(r->conn, head, (size_t)n, out->data, out->len);
    k2_conn_finish(r->conn);
    k2_conn_read_start(r->conn);
}

static bool reject(k2i_http_msg *m, int status, const char *why)
{
    m->error_status = status;
    m->why = why;
    return false;
}

/* What the head says about framing: one walk over all headers, as this is done for every request. */
typedef struct framing {
    uint32_t hosts, lengths, codings;
    const char *length, *coding, *expect;
} framing;

static framing framing_read(const k2i_http_msg *m)
{
    framing f = {0};
    for (uint32_t i = 0; i < m->header_count; i++) {
        const char *name = m->head.data + m->headers[i].name;
        const char *value = m->headers[i].value ? m->head.data + m->headers[i].value : "";
        switch (name[0] | 0x20) {
        case 'h': f.hosts += strcasecmp(name, "host") == 0; break;
        case 'c':
            if (strcasecmp(name, "content-length") == 0) f.length = value, f.lengths++;
            break;
        case 't':
            if (strcasecmp(name, "transfer-encoding") == 0) f.coding = value, f.codings++;
            break;
        case 'e':
            if (strcasecmp(name, "expect") == 0) f.expect = value;
            break;
        default: break;
        }
    }
    return f;
}

static bool on_head(void *arg, k2i_http_msg *m)
{
    k2_http_req *r = arg;
    framing f = framing_read(m);
    uint64_t bytes = 0;
    if (f.hosts > 1 || (f.hosts == 0 && !m->http10)) return reject(m, 400, "exactly one Host header is expected");
    if (f.lengths + f.codings > 1) return reject(m, 400, "more than one Content-Length or Transfer-Encoding header");
    if (f.coding && (strcasecmp(f.coding, "chunked") != 0 || m->http10))
        return reject(m, 501, "the only transfer coding is chunked");
    if (k2i_http_msg_target(m)[0] != '/') return reject(m, 400, "the request target must start with '/'");
    if (f.length && !k2_str_u64(f.length, &bytes)) return reject(m, 400, "bad Content-Length");
    if (bytes > r->server->limits.body_bytes_max) return reject(m, 413, "the body is too large");
    if (f.expect && strcasecmp(f.expect, "100-continue") != 0) return reject(m, 417, "the only expectation is 100-continue");
    if (f.expect && m->has_body) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        r->sent_bytes += sizeof go_on - 1;
        k2_conn_write(r->conn, go_on, sizeof go_on - 1);
    }
    r->close_after = !m->keep_alive || r->server->draining;
    return true;
}

static bool on_body(void *arg, const char *data, size_t n)
{
    k2_http_req *r = arg;
    if (k2_buf_append(&r->body, data, n)) return true;
    return reject(&r->msg, 413, "the body is too large");
}

static const k2i_http_msg_ops msg_ops = {.on_head = on_head, .on_body = on_body};

static void give_request(k2_http_req *r)
{
    k2_http_server *s = r->server;
    char *target = r->msg.head.data, *mark = strchr(target, '?');
    if (mark) *mark = 0;
    r->is_head = strcmp(k2i_http_msg_method(&r->msg), "HEAD") == 0;
    r->state = K2I_REQ_BUSY;
    r->deadline_ns = UINT64_MAX;
    r->serial++;
    s->open++;
    uint64_t serial = r->serial;
    s->on_request(s->arg, r);
    bool here = r->serial == serial && r->state == K2I_REQ_BUSY;
    K2_ASSERT(!here || r->on_abort);
}

/* Takes bytes as long as the connection can use them; answers false when the rest was put aside or dropped. */
static bool feed(k2_http_req *r, const char *data, size_t n)
{
    r->in_feed = true;
    while (n > 0 && r->conn) {
        if (r->state == K2I_REQ_LINGER || k2_conn_closing(r->conn)) break;
        if (r->state == K2I_REQ_BUSY || k2_conn_queued(r->conn) > r->server->limits.write_bytes_max) {
            /* One read is at most K2_READ_BYTES and reading stops at half: it always fits. */
            bool fits = k2_buf_append(&r->ahead, data, n);
            K2_ASSERT(fits);
            if (r->ahead.len >= AHEAD_MAX / 2) k2_conn_read_stop(r->conn);
            break;
        }
        if (r->state == K2I_REQ_IDLE) {
            r->state = K2I_REQ_READING;
            r->deadline_ns = k2_loop_now_ns(r->server->loop) + r->server->limits.read_ns;
        }
        size_t used;
        k2i_http_result result = k2i_http_feed(&r->msg, data, n, &used);
        if (result == K2I_HTTP_ERROR) refuse(r, r->msg.error_status, r->msg.why);
        if (result == K2I_HTTP_DONE) give_request(r);
        if (result != K2I_HTTP_DONE) break;
        data += used;
        n -= used;
    }
    r->in_feed = false;
    return r->conn != NULL;
}

/* Bytes that waited behind an answer are read now. */
static void feed_ahead(k2_http_req *r)
{
    k2_buf bytes = r->ahead;
    k2_buf_init(&r->ahead, bytes.cap_max);
    feed(r, bytes.data, bytes.len);
    k2_buf_fini(&bytes);
    if (r->conn && r->ahead.len < AHEAD_MAX / 2) k2_conn_read_start(r->conn);
}

void k2i_http_req_answered(k2_http_req *r)
{
    k2_http_server *s = r->server;
    s->open--;
    if (!r->conn || k2_conn_closing(r->conn)) {
        r->state = K2I_REQ_CLOSED;
        return;
    }
    if (r->close_after || s->draining) {
        r->state = K2I_REQ_LINGER;
        r->deadline_ns = k2_loop_now_ns(s->loop) + s->limits.write_ns;
        k2_conn_close_flushed(r->conn);
        return;
    }
    go_idle(r);
    /* Never from inside the caller's answer: the next request comes in a turn of its own, unless feed is running below us. */
    if (r->ahead.len > 0 && !r->in_feed) k2i_http_later(r);
}

/* ---- a turn's end: heads that wait for a first piece, pipelined requests ------------------------------------------- */

void k2i_http_later(k2_http_req *r)
{
    k2_http_server *s = r->server;
    if (r->later || s->closed) return;
    r->later = true;
    r->later_next = s->later;
    s->later = r;
    if (s->later_timer)
        k2_timer_restart(s->later_timer, 0, 0);
    else
        s->later_timer = k2_timer_start(s->loop, 0, 0, k2i_http_later_run, s);
}

static void later_remove(k2_http_req *r)
{
    k2_http_req **at = &r->server->later;
    while (*at != r) at = &(*at)->later_next;
    *at = r->later_next;
    r->later = false;
}

void k2i_http_later_run(void *arg)
{
    k2_http_server *s = arg;
    /* Requests put down during the run belong to the next one: the list is cut off first. */
    k2_http_req *list = s->later;
    s->later = NULL;
    for (k2_http_req *r = list, *next; r; r = next) {
        next = r->later_next;
        r->later = false;
        r->later_next = NULL;
        if (!r->conn || k2_conn_closing(r->conn)) continue;
        if (r->head_waits) k2i_http_head_flush(r);
        if (r->state == K2I_REQ_IDLE && r->ahead.len > 0) feed_ahead(r);
    }
}

/* ---- connections ------------------------------------------------------------------------------------------------ */

static void on_read(void *arg, const char *data, size_t n)
{
    feed(arg, data, n);
}

static void on_drain(void *arg)
{
    k2_http_req *r = arg;
    if (r->state == K2I_REQ_IDLE && r->ahead.len > 0 && !r->in_feed) k2i_http_later(r);
    if (r->state == K2I_REQ_BUSY && r->was_full) {
        r->was_full = false;
        if (r->on_drain) r->on_drain(r->drain_arg);
    }
}

static void server_release(k2_http_server *s)
{
    if (!s->closed || s->conns) return;
    k2_buf_fini(&s->scratch);
    k2_free(s);
}

static void on_close(void *arg, k2_code why, const char *text)
{
    (void)why, (void)text;
    k2_http_req *r = arg;
    k2_http_server *s = r->server;
    r->conn = NULL;
    if (r->state == K2I_REQ_BUSY) {
        r->state = K2I_REQ_CLOSED;
        s->open--;
        if (r->on_abort) r->on_abort(r->abort_arg);
    }
    if (r->later) later_remove(r);
    if (r->prev) r->prev->next = r->next;
    if (r->next) r->next->prev = r->prev;
    if (s->conns == r) s->conns = r->next;
    s->conn_count--;
    k2i_http_msg_fini(&r->msg);
    k2_buf_fini(&r->body);
    k2_buf_fini(&r->ahead);
    k2_buf_fini(&r->extra_headers);
    k2_free(r);
    server_release(s);
}

static const k2_stream_ops conn_ops = {.on_read = on_read, .on_drain = on_drain, .on_close = on_close};

static void on_accept(void *arg, k2_conn *conn)
{
    k2_http_server *s = arg;
    if (s->conn_count >= s->limits.conns_max) return; /* not attached: the loop closes it */
    k2_http_req *r = k2_alloc(sizeof *r);
    r->server = s;
    r->conn = conn;
    k2i_http_msg_init(&r->msg, true, s->limits.header_bytes_max, &msg_ops, r);
    k2_buf_init(&r->body, s->limits.body_bytes_max);
    k2_buf_init(&r->ahead, AHEAD_MAX * 2);
    k2_buf_init(&r->extra_headers, K2I_HTTP_EXTRA_MAX);
    r->next = s->conns;
    if (s->conns) s->conns->prev = r;
    s->conns = r;
    s->conn_count++;
    k2_conn_attach(conn, &conn_ops, r);
    k2_conn_queue_max(conn, SIZE_MAX / 2); /* the cap is ours: answers of one piece always pass */
    go_idle(r);
}

/* A client that takes nothing of what waits for it: progress is bytes sent less bytes queued. */
static bool write_stuck(k2_http_req *r, uint64_t now)
{
    size_t queued = k2_conn_queued(r->conn);
    uint64_t drained = r->sent_bytes - queued;
    if (queued == 0 || drained != r->drained_seen || r->write_deadline_ns == 0) {
        r->drained_seen = drained;
        r->write_deadline_ns = queued ? now + r->server->limits.write_ns : 0;
        return false;
    }
    return now >= r->write_deadline_ns;
}

static void sweep(void *arg)
{
    k2_http_server *s = arg;
    uint64_t now = k2_loop_now_ns(s->loop);
    for (k2_http_req *r = s->conns, *next; r; r = next) {
        next = r->next; /* closing and refusing only mark: r and next stay in the list */
        if (!r->conn || k2_conn_closing(r->conn)) {
            if (r->conn && now >= r->deadline_ns) k2_conn_close(r->conn);
            continue;
        }
        bool late = now >= r->deadline_ns;
        if (late && r->state == K2I_REQ_READING)
            refuse(r, 408, "the request took too long");
        else if (late || write_stuck(r, now))
            k2_conn_close(r->conn);
    }
}

/* ---- the server ------------------------------------------------------------------------------------------------- */

static void limits_fill(k2_http_limits *l)
{
    if (!l->conns_max) l->conns_max = 10000;
    if (!l->header_bytes_max) l->header_bytes_max = 16 << 10;
    if (!l->body_bytes_max) l->body_bytes_max = 8 << 20;
    if (!l->write_bytes_max) l->write_bytes_max = 1 << 20;
    if (!l->read_ns) l->read_ns = 30 * K2_NS_PER_S;
    if (!l->idle_ns) l->idle_ns = 75 * K2_NS_PER_S;
    if (!l->write_ns) l->write_ns = 60 * K2_NS_PER_S;
    K2_ASSERT(l->header_bytes_max <= 64 << 10);
}

k2_http_server *k2_http_serve(k2_loop *loop, const char *host, uint16_t port, const k2_http_limits *limits,
                              void (*on_request)(void *arg, k2_http_req *req), void *arg, k2_error *err)
{
    k2_http_server *s = k2_alloc(sizeof *s);
    if (limits) s->limits = *limits;
    limits_fill(&s->limits);
    s->loop = loop;
    s->on_request = on_request;
    s->arg = arg;
    s->listener = k2_listen(loop, host, port, LISTEN_BACKLOG, on_accept, s, err);
    if (!s->listener) {
        k2_free(s);
        return NULL;
    }
    s->port = k2_listener_port(s->listener);
    k2_buf_init(&s->scratch, SIZE_MAX / 4);
    uint64_t nearest = K2_MIN(s->limits.read_ns, K2_MIN(s->limits.idle_ns, s->limits.write_ns));
    uint64_t every = K2_MIN(K2_MAX(nearest / 4, SWEEP_NS_MIN), SWEEP_NS_MAX);
    s->sweep = k2_timer_start(loop, every, every, sweep, s);
    return s;
}

uint16_t k2_http_server_port(const k2_http_server *s)
{
    return s->port;
}

uint32_t k2_http_server_open(const k2_http_server *s)
{
    return s->open;
}

void k2_http_server_drain(k2_http_server *s)
{
    s->draining = true;
    k2_listener_close(s->listener);
    s->listener = NULL;
    for (k2_http_req *r = s->conns; r; r = r->next)
        if (r->state == K2I_REQ_IDLE && r->conn) k2_conn_close_flushed(r->conn);
}

void k2_http_server_close(k2_http_server *s)
{
    if (!s) return;
    K2_ASSERT(!s->closed);
    k2_listener_close(s->listener);
    s->listener = NULL;
    s->closed = true;
    k2_timer_stop(s->sweep);
    k2_timer_stop(s->later_timer);
    s->later_timer = NULL;
    for (k2_http_req *r = s->conns; r; r = r->next)
        if (r->conn) k2_conn_close(r->conn);
    server_release(s);
}
