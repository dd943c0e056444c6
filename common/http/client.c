/* client.c - calls over kept-alive connections.
 *
 *   call:  WAITING (in line at its host) ──► SENT ──head──► BODY ──whole──► on_done
 *   line:  DIALING ──► BUSY ⇄ IDLE ──► closed        ("line" = one connection of the client)
 *
 * A call is bound to a line from the moment it is sent; on a dialing line the request is queued behind the connection. One
 * sweep a client looks at the deadlines.
 */
#include "common/loop/loop.h"
#include "parse_int.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SWEEP_NS     (20 * K2_NS_PER_MS)
#define HOSTS_EVERY  10u   /* sweeps between two looks at all hosts: nothing there is urgent, and there may be 10,000 */
#define HOST_BUCKETS 8192u /* 10,000 engines in short chains */

typedef struct line line;
typedef struct host host;

struct k2_http_call {
    k2_http_client *client;
    host *host;
    line *line;                          /* NULL while it waits in line */
    k2_http_call *prev, *next;           /* all calls of the client */
    k2_http_call *line_prev, *line_next; /* those that wait at the host */
    const k2_http_call_ops *ops;
    void *arg;
    char *request; /* head and body; kept until the first byte of the answer, for the one retry */
    size_t request_bytes;
    uint64_t connect_ns, first_byte_ns, idle_ns, deadline_ns;
    bool is_head, waiting, paused;
};

struct line {
    host *host;
    k2_conn *conn;
    line *prev, *next; /* idle lines of the host */
    line *all_prev, *all_next;
    k2_http_call *call;
    k2i_http_msg msg;
    uint64_t idle_until_ns;
    bool open, idle, reused, in_feed;
};

struct host {
    host *next; /* in the bucket */
    k2_http_client *client;
    char name[K2_HTTP_HOST_MAX];
    char authority[K2_HTTP_HOST_MAX + 10]; /* for the Host header */
    uint16_t port;
    uint32_t line_count, idle_count;
    line *idle; /* the one used last comes first: few stay warm instead of all */
    line *lines;
    k2_http_call *first, *last; /* calls in line */
};

struct k2_http_client {
    k2_loop *loop;
    k2_http_client_config config;
    host *buckets[HOST_BUCKETS];
    k2_http_call *calls, *sweep_next; /* sweep_next: where the sweep goes on, moved along when that call ends */
    uint32_t waiting, line_count, sweeps;
    k2_timer *sweep;
    bool closed;
    k2_buf scratch;
};

static uint64_t now_ns(const k2_http_client *c)
{
    return k2_loop_now_ns(c->loop);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static void queue_put(k2_http_call *call)
{
    host *h = call->host;
    call->waiting = true;
    call->line_prev = h->last;
    call->line_next = NULL;
    if (h->last)
        h->last->line_next = call;
    else
        h->first = call;
    h->last = call;
    h->client->waiting++;
}

static void queue_take(k2_http_call *call)
{
    host *h = call->host;
    if (!call->waiting) return;
    call->waiting = false;
    if (call->line_prev)
        call->line_prev->line_next = call->line_next;
    else
        h->first = call->line_next;
    if (call->line_next)
        call->line_next->line_prev = call->line_prev;
    else
        h->last = call->line_prev;
    h->client->waiting--;
}

static void call_free(k2_http_call *call)
{
    k2_http_client *c = call->client;
    queue_take(call);
    if (call->line) call->line->call = NULL;
    if (call->prev)
        call->prev->next = call->next;
    else
        c->calls = call->next;
    if (call->next) call->next->prev = call->prev;
    if (c->sweep_next == call) c->sweep_next = call->next;
    k2_free(call->request);
    k2_free(call);
}

/* The call ends. It is taken off everything first, so that on_done may start or cancel whatever it likes. */
static void call_done(k2_http_call *call, k2_code code, const char *text)
{
    const k2_http_call_ops *ops = call->ops;
    void *arg = call->arg;
    call_free(call);
    ops->on_done(arg, code, text);
    if (ops->on_gone) ops->on_gone(arg);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static const k2_stream_ops line_ops;
static const k2i_http_msg_ops line_msg_ops;

static void idle_remove(line *l)
{
    if (!l->idle) return;
    l->idle = false;
    l->host->idle_count--;
    if (l->prev)
        l->prev->next = l->next;
    else
        l->host->idle = l->next;
    if (l->next) l->next->prev = l->prev;
}

static void line_close(line *l)
{
    idle_remove(l);
    if (l->conn) k2_conn_close(l->conn);
}

static void line_send(line *l, k2_http_call *call)
{
    k2_http_client *c = call->client;
    idle_remove(l);
    l->call = call;
    call->line = l;
    call->deadline_ns = now_ns(c) + (l->open ? call->first_byte_ns : call->connect_ns);
    k2_conn_write(l->conn, call->request, call->request_bytes); /* on an error on_close comes and tells the call */
}

static void line_dial(host *h, k2_http_call *call)
{
    k2_http_client *c = h->client;
    line *l = k2_alloc(sizeof *l);
    l->host = h;
    l->all_next = h->lines;
    if (h->lines) h->lines->all_prev = l;
    h->lines = l;
    h->line_count++;
    c->line_count++;
    k2i_http_msg_init(&l->msg, false, c->config.header_bytes_max, &line_msg_ops, l);
    l->conn = k2_conn_dial(c->loop, h->name, h->port, &line_ops, l, call->connect_ns);
    line_send(l, call);
}

/* Gives calls in line what there is: idle lines first, then new ones. */
static void host_serve(host *h)
{
    while (h->first) {
        k2_http_call *call = h->first;
        if (!h->idle && h->line_count >= h->client->config.conns_per_host_max) return;
        queue_take(call);
        if (h->idle) {
            h->idle->reused = true;
            line_send(h->idle, call);
        } else {
            line_dial(h, call);
        }
    }
}

/* The answer has come whole: the line is idle again, or it ends. */
static void line_after(line *l, bool keep)
{
    host *h = l->host;
    k2_http_client *c = h->client;
    if (!keep || c->closed || k2_conn_queued(l->conn) > 0 || k2_conn_closing(l->conn) ||
        h->idle_count >= c->config.idle_per_host_max) {
        line_close(l);
        return;
    }
    k2i_http_msg_reset(&l->msg, false);
    k2_conn_read_start(l->conn);
    l->idle = true;
    l->idle_until_ns = now_ns(c) + c->config.idle_ns;
    l->prev = NULL;
    l->next = h->idle;
    if (h->idle) h->idle->prev = l;
    h->idle = l;
    h->idle_count++;
    host_serve(h);
}

static bool on_head(void *arg, k2i_http_msg *m)
{
    line *l = arg;
    k2_http_call *call = l->call;
    if (m->status < 200) return true; /* 1xx: the answer proper follows */
    if (m->http10 && m->chunked) {
        m->error_status = 502;
        m->why = "chunks in an HTTP/1.0 answer";
        return false;
    }
    m->skip_body = call->is_head;
    k2_free(call->request);
    call->request = NULL;
    const char *type = k2i_http_msg_header(m, "content-type");
    if (call->ops->on_head) call->ops->on_head(call->arg, m->status, type ? type : "");
    return l->call == call;
}

static bool on_body(void *arg, const char *data, size_t n)
{
    line *l = arg;
    k2_http_call *call = l->call;
    if (call->ops->on_data) call->ops->on_data(call->arg, data, n);
    return l->call == call;
}

static const k2i_http_msg_ops line_msg_ops = {.on_head = on_head, .on_body = on_body};

static void line_whole(line *l, bool rest)
{
    k2_http_call *call = l->call;
    if (l->msg.status == 101) {
        line_close(l);
        call_done(call, K2_PEER_PROTOCOL, "the peer changed the protocol unasked");
        return;
    }
    bool keep = l->msg.keep_alive && !rest && l->conn != NULL;
    l->call = NULL;
    call->line = NULL;
    /* The line goes back before on_done, so that a call made in it finds it warm. */
    if (l->conn) line_after(l, keep);
    call_done(call, K2_OK, "");
}

static void line_feed(line *l, const char *data, size_t n)
{
    while (l->call) {
        size_t used;
        k2_http_call *call = l->call;
        call->deadline_ns = now_ns(call->client) + call->idle_ns;
        k2i_http_result r = k2i_http_feed(&l->msg, data, n, &used);
        if (r == K2I_HTTP_MORE || r == K2I_HTTP_STOPPED) return; /* stopped: canceled, and with it the line closed */
        if (r == K2I_HTTP_ERROR) {
            char text[K2_HTTP_HOST_MAX + 160];
            bool large = l->msg.error_status == 431 || l->msg.error_status == 414;
            snprintf(text, sizeof text, "%s:%u: bad answer: %s", l->host->name, l->host->port, l->msg.why);
            line_close(l);
            call_done(call, large ? K2_LIMIT : K2_PEER_PROTOCOL, text);
            return;
        }
        if (l->msg.status < 200 && l->msg.status != 101) {
            data += used;
            n -= used;
            k2i_http_msg_reset(&l->msg, false);
            if (n == 0) return;
            continue;
        }
        line_whole(l, used < n);
        return;
    }
    line_close(l); /* bytes that nobody asked for */
}

static void on_read(void *arg, const char *data, size_t n)
{
    line_feed(arg, data, n);
}

static void on_connect(void *arg, k2_conn *conn)
{
    (void)conn;
    line *l = arg;
    l->open = true;
    if (l->call) l->call->deadline_ns = now_ns(l->call->client) + l->call->first_byte_ns;
}

static void client_release(k2_http_client *c)
{
    if (!c->closed || c->line_count) return;
    for (size_t b = 0; b < HOST_BUCKETS; b++)
        for (host *h = c->buckets[b], *next; h; h = next) {
            next = h->next;
            k2_free(h);
        }
    k2_buf_fini(&c->scratch);
    k2_free(c);
}

/* A kept-alive connection may have been closed by the peer just as we wrote: then, and only then, the call is sent again. */
static bool call_again(line *l, k2_http_call *call)
{
    if (!l->reused || l->msg.begun || !call->request) return false;
    call->line = NULL;
    l->call = NULL;
    line_dial(l->host, call);
    return true;
}

static void line_ended(line *l, k2_code why, const char *text)
{
    k2_http_call *call = l->call;
    if (!call) return;
    if (why == K2_PEER_CLOSED && l->msg.begun) {
        size_t used;
        if (k2i_http_feed(&l->msg, NULL, 0, &used) == K2I_HTTP_DONE) {
            line_whole(l, false);
            return;
        }
    }
    if ((why == K2_PEER_CLOSED || why == K2_IO) && call_again(l, call)) return;
    l->call = NULL;
    call->line = NULL;
    call_done(call, why == K2_OK ? K2_PEER_CLOSED : why, text);
}

static void on_close(void *arg, k2_code why, const char *text)
{
    line *l = arg;
    host *h = l->host;
    k2_http_client *c = h->client;
    idle_remove(l);
    l->conn = NULL;
    /* The line counts until here, so the client and its host outlive the callbacks below. */
    line_ended(l, why, text);
    if (l->all_prev)
        l->all_prev->all_next = l->all_next;
    else
        h->lines = l->all_next;
    if (l->all_next) l->all_next->all_prev = l->all_prev;
    h->line_count--;
    c->line_count--;
    if (l->call) l->call->line = NULL;
    k2i_http_msg_fini(&l->msg);
    k2_free(l);
    if (c->closed)
        client_release(c);
    else if (!k2_loop_ending(c->loop))
        host_serve(h);
}

static const k2_stream_ops line_ops = {.on_connect = on_connect, .on_read = on_read, .on_close = on_close};

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

static void call_late(k2_http_call *call)
{
    char text[K2_HTTP_HOST_MAX + 120];
    line *l = call->line;
    const char *what = !l || !l->open ? "no connection" : call->request ? "no answer" : "the answer stopped";
    uint64_t after = !l || !l->open ? call->connect_ns : call->request ? call->first_byte_ns : call->idle_ns;
    snprintf(text, sizeof text, "%s:%u: %s within %llu ms", call->host->name, call->host->port, what,
             (unsigned long long)(after / K2_NS_PER_MS));
    if (l) {
        l->call = NULL;
        call->line = NULL;
        line_close(l);
    }
    call_done(call, K2_TIMEOUT, text);
}

/* Lines that nobody took for a while, and hosts that nobody asks any more: engines come and go at new ports. */
static void sweep_hosts(k2_http_client *c, uint64_t now)
{
    for (size_t b = 0; b < HOST_BUCKETS; b++)
        for (host **at = &c->buckets[b]; *at;) {
            host *h = *at;
            for (line *l = h->idle, *next; l; l = next) {
                next = l->next;
                if (now >= l->idle_until_ns) line_close(l);
            }
            if (h->lines || h->first) {
                at = &h->next;
                continue;
            }
            *at = h->next;
            k2_free(h);
        }
}

static void sweep(void *arg)
{
    k2_http_client *c = arg;
    uint64_t now = now_ns(c);
    for (k2_http_call *call = c->calls; call; call = c->sweep_next) {
        c->sweep_next = call->next;
        if (now < call->deadline_ns || call->paused) continue;
        call_late(call);
        if (c->closed) return; /* by a callback; the lines that are closing keep c alive until later */
    }
    if (c->sweeps++ % HOSTS_EVERY == 0) sweep_hosts(c, now);
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

k2_http_client *k2_http_client_new(k2_loop *loop, const k2_http_client_config *config)
{
    k2_http_client *c = k2_alloc(sizeof *c);
    if (config) c->config = *config;
    if (!c->config.idle_per_host_max) c->config.idle_per_host_max = 64;
    if (!c->config.conns_per_host_max) c->config.conns_per_host_max = 4096;
    if (!c->config.waiting_max) c->config.waiting_max = 65536;
    if (!c->config.idle_ns) c->config.idle_ns = 30 * K2_NS_PER_S;
    if (!c->config.header_bytes_max) c->config.header_bytes_max = 64 << 10;
    c->loop = loop;
    k2_buf_init(&c->scratch, SIZE_MAX / 4);
    c->sweep = k2_timer_start(loop, SWEEP_NS, SWEEP_NS, sweep, c);
    return c;
}

void k2_http_client_close(k2_http_client *c)
{
    if (!c) return;
    c->closed = true;
    k2_timer_stop(c->sweep);
    while (c->calls) k2_http_cancel(c->calls);
    for (size_t b = 0; b < HOST_BUCKETS; b++)
        for (host *h = c->buckets[b]; h; h = h->next)
            for (line *l = h->lines; l; l = l->all_next) line_close(l);
    client_release(c);
}

static host *host_get(k2_http_client *c, const k2_url *url)
{
    uint64_t key = k2_hash64(url->host, strlen(url->host), url->port);
    host **bucket = &c->buckets[key % HOST_BUCKETS];
    for (host *h = *bucket; h; h = h->next)
        if (h->port == url->port && strcmp(h->name, url->host) == 0) return h;
    host *h = k2_alloc(sizeof *h);
    h->client = c;
    h->port = url->port;
    memcpy(h->name, url->host, sizeof h->name);
    snprintf(h->authority, sizeof h->authority, url->ipv6 ? "[%s]:%u" : "%s:%u", url->host, url->port);
    h->next = *bucket;
    *bucket = h;
    return h;
}

static void request_write(k2_http_call *call, const k2_http_call_spec *spec, const k2_url *url)
{
    k2_buf *out = &call->client->scratch;
    k2_buf_clear(out);
    k2_buf_puts(out, spec->method);
    k2_buf_puts(out, " ");
    k2_buf_puts(out, url->target);
    k2_buf_puts(out, " HTTP/1.1\r\nHost: ");
    k2_buf_puts(out, call->host->authority);
    k2_buf_puts(out, "\r\n");
    for (size_t i = 0; i < spec->header_count; i++) {
        const k2_http_header *h = &spec->headers[i];
        K2_ASSERT(!strpbrk(h->name, "\r\n:") && !strpbrk(h->value, "\r\n"));
        k2_buf_puts(out, h->name);
        k2_buf_puts(out, ": ");
        k2_buf_puts(out, h->value);
        k2_buf_puts(out, "\r\n");
    }
    bool may_have_body = strcmp(spec->method, "GET") != 0 && strcmp(spec->method, "HEAD") != 0;
    if (spec->body_bytes > 0 || may_have_body) {
        k2_buf_puts(out, "Content-Length: ");
        k2i_http_put_number(out, spec->body_bytes);
        k2_buf_puts(out, "\r\n");
    }
    k2_buf_puts(out, "\r\n");
    call->request_bytes = out->len + spec->body_bytes;
    call->request = k2_alloc(call->request_bytes);
    memcpy(call->request, out->data, out->len);
    if (spec->body_bytes) memcpy(call->request + out->len, spec->body, spec->body_bytes);
}

k2_http_call *k2_http_request(k2_http_client *c, const k2_http_call_spec *spec, const k2_http_call_ops *ops, void *arg,
                              k2_error *err)
{
    k2_url url;
    K2_ASSERT(ops->on_done && !c->closed);
    if (k2_url_parse(spec->url, &url, err) != K2_OK) return NULL;
    if (c->waiting >= c->config.waiting_max) {
        k2_error_set(err, K2_FULL, "%s:%u: %u calls wait for a connection already", url.host, url.port, c->waiting);
        return NULL;
    }
    k2_http_call *call = k2_alloc(sizeof *call);
    call->client = c;
    call->host = host_get(c, &url);
    call->ops = ops;
    call->arg = arg;
    call->connect_ns = spec->connect_ns ? spec->connect_ns : 5 * K2_NS_PER_S;
    call->first_byte_ns = spec->first_byte_ns ? spec->first_byte_ns : 60 * K2_NS_PER_S;
    call->idle_ns = spec->idle_ns ? spec->idle_ns : 60 * K2_NS_PER_S;
    call->is_head = strcmp(spec->method, "HEAD") == 0;
    call->deadline_ns = now_ns(c) + call->connect_ns;
    request_write(call, spec, &url);
    call->next = c->calls;
    if (c->calls) c->calls->prev = call;
    c->calls = call;
    queue_put(call);
    host_serve(call->host);
    return call;
}

void k2_http_cancel(k2_http_call *call)
{
    line *l = call->line;
    const k2_http_call_ops *ops = call->ops;
    void *arg = call->arg;
    call_free(call);
    if (l) line_close(l);
    if (ops->on_gone) ops->on_gone(arg);
}

void k2_http_call_pause(k2_http_call *call)
{
    call->paused = true;
    if (call->line && call->line->conn) k2_conn_read_stop(call->line->conn);
}

void k2_http_call_resume(k2_http_call *call)
{
    if (!call->paused) return;
    call->paused = false;
    call->deadline_ns = now_ns(call->client) + call->idle_ns;
    if (call->line && call->line->conn) k2_conn_read_start(call->line->conn);
}
