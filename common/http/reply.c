/* reply.c - answering a request: whole, or in chunks. A streamed answer's head goes out with the first piece, or at the end of
 * the turn when none came, so that the usual short stream costs one system call less. */
#include "server_int.h"

#include <stdio.h>
#include <string.h>

/* ---- looking at the request --------------------------------------------------------------------------------------- */

const char *k2_http_req_method(const k2_http_req *r)
{
    return k2i_http_msg_method(&r->msg);
}

const char *k2_http_req_path(const k2_http_req *r)
{
    return k2i_http_msg_target(&r->msg);
}

const char *k2_http_req_header(const k2_http_req *r, const char *name)
{
    return k2i_http_msg_header(&r->msg, name);
}

const char *k2_http_req_body(const k2_http_req *r, size_t *n)
{
    *n = r->body.len;
    return r->body.data ? r->body.data : "";
}

void k2_http_req_on_abort(k2_http_req *r, void (*on_abort)(void *arg), void *arg)
{
    r->on_abort = on_abort;
    r->abort_arg = arg;
}

void k2_http_req_on_drain(k2_http_req *r, void (*on_drain)(void *arg), void *arg)
{
    r->on_drain = on_drain;
    r->drain_arg = arg;
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

void k2_http_header_add(k2_http_req *r, const char *name, const char *value)
{
    K2_ASSERT(r->state == K2I_REQ_BUSY && !r->begun);
    K2_ASSERT(!strpbrk(name, "\r\n:") && !strpbrk(value, "\r\n"));
    k2_buf_printf(&r->extra_headers, "%s: %s\r\n", name, value);
    K2_ASSERT(!r->extra_headers.overflow);
}

static const char *date_now(k2_http_server *s)
{
    time_t now = (time_t)(k2_wall_us() / 1000000);
    if (now != s->date_s) {
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(s->date, sizeof s->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
        s->date_s = now;
    }
    return s->date;
}

static void put_all(k2_buf *out, const char *a, const char *b, const char *c, const char *d, const char *e)
{
    k2_buf_puts(out, a);
    k2_buf_puts(out, b);
    k2_buf_puts(out, c);
    k2_buf_puts(out, d);
    k2_buf_puts(out, e);
}

/* The head up to its framing lines; the caller ends it. */
static k2_buf *head_begin(k2_http_req *r, int status, const char *content_type)
{
    k2_http_server *s = r->server;
    k2_buf *out = &s->scratch;
    k2_buf_clear(out);
    k2_buf_puts(out, "HTTP/1.1 ");
    k2i_http_put_number(out, (uint64_t)status);
    put_all(out, " ", k2i_http_reason(status), "\r\nDate: ", date_now(s), "\r\n");
    if (content_type) put_all(out, "Content-Type: ", content_type, "\r\n", "", "");
    if (r->extra_headers.len) k2_buf_append(out, r->extra_headers.data, r->extra_headers.len);
    if (s->draining) r->close_after = true;
    if (r->close_after)
        k2_buf_puts(out, "Connection: close\r\n");
    else if (r->msg.http10)
        k2_buf_puts(out, "Connection: keep-alive\r\n");
    return out;
}

static void put(k2_http_req *r, const void *a, size_t a_n, const void *b, size_t b_n)
{
    if (!r->conn) return;
    r->sent_bytes += a_n + b_n;
    k2_conn_write2(r->conn, a, a_n, b, b_n); /* a conn that is closing drops it: on_abort comes */
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

void k2_http_respond(k2_http_req *r, int status, const char *content_type, const void *body, size_t n)
{
    K2_ASSERT(r->state == K2I_REQ_BUSY && !r->begun && (content_type || n == 0));
    k2_buf *out = head_begin(r, status, content_type);
    k2_buf_puts(out, "Content-Length: ");
    k2i_http_put_number(out, n);
    k2_buf_puts(out, "\r\n\r\n");
    put(r, out->data, out->len, body, r->is_head ? 0 : n);
    k2i_http_req_answered(r);
}

void k2_http_stream_begin(k2_http_req *r, int status, const char *content_type)
{
    K2_ASSERT(r->state == K2I_REQ_BUSY && !r->begun);
    r->begun = r->head_waits = true;
    r->chunked = !r->msg.http10;
    if (!r->chunked) r->close_after = true;
    r->status = status;
    r->content_type = content_type;
    k2i_http_later(r);
}

/* The waiting head, if there is one, into the scratch buffer, which the caller sends. */
static k2_buf *stream_head(k2_http_req *r)
{
    if (!r->head_waits) {
        k2_buf_clear(&r->server->scratch);
        return &r->server->scratch;
    }
    r->head_waits = false;
    k2_buf *out = head_begin(r, r->status, r->content_type);
    k2_buf_puts(out, r->chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    return out;
}

void k2i_http_head_flush(k2_http_req *r)
{
    k2_buf *out = stream_head(r);
    put(r, out->data, out->len, NULL, 0);
}

k2_code k2_http_stream_write(k2_http_req *r, const void *data, size_t n)
{
    K2_ASSERT(r->state == K2I_REQ_BUSY && r->begun);
    if (r->conn && k2_conn_queued(r->conn) >= r->server->limits.write_bytes_max) {
        r->was_full = true;
        return K2_FULL;
    }
    if (n == 0 || r->is_head) return K2_OK;
    k2_buf *out = stream_head(r);
    if (r->chunked) k2_buf_printf(out, "%zx\r\n", n);
    k2_buf_append(out, data, n);
    if (r->chunked) k2_buf_puts(out, "\r\n");
    put(r, out->data, out->len, NULL, 0);
    return K2_OK;
}

void k2_http_stream_end(k2_http_req *r)
{
    K2_ASSERT(r->state == K2I_REQ_BUSY && r->begun);
    k2_buf *out = stream_head(r);
    if (r->chunked && !r->is_head) k2_buf_puts(out, "0\r\n\r\n");
    put(r, out->data, out->len, NULL, 0);
    k2i_http_req_answered(r);
}

void k2_http_stream_abort(k2_http_req *r)
{
    K2_ASSERT(r->state == K2I_REQ_BUSY && r->begun);
    r->server->open--;
    r->state = K2I_REQ_CLOSED;
    if (r->conn) k2_conn_close(r->conn);
}
