/* http - HTTP/1.1 server and client on the loop, Server-Sent Events, strict URLs.
 *
 * Nouns: a *server* listens and gives whole requests (head and body) to one callback; a *request* (`k2_http_req`) lives from
 * that callback until it has been answered whole or until its on_abort has returned, whichever comes first, and must not be
 * touched afterwards; a *client* keeps idle connections per host:port; a *call* is one exchange of a client and lives until its
 * on_done has returned or k2_http_cancel has been called. Everything here belongs to the thread of the loop.
 *
 * Bodies of the OpenAI interface are read and written by the folder's second public header, common/http/openai.h.
 */
#ifndef K2_COMMON_HTTP_H
#define K2_COMMON_HTTP_H

#include "common/base/base.h"

typedef struct k2_loop k2_loop;
typedef struct k2_http_server k2_http_server;
typedef struct k2_http_req k2_http_req;
typedef struct k2_http_client k2_http_client;
typedef struct k2_http_call k2_http_call;

#define K2_HTTP_HEADERS_MAX 64u  /* header lines of one message, either way: OpenAI clients send about 20 */
#define K2_HTTP_URL_MAX     2048u /* bytes of a request target or of a URL */
#define K2_HTTP_HOST_MAX    256u  /* bytes of a host name with its terminator: DNS allows 253 */

/* ---- server ----------------------------------------------------------------------------------------------------- */

/* A member that is 0 takes its default. */
typedef struct k2_http_limits {
    uint32_t conns_max;      /* open connections; more are closed at once. Default 10000 */
    size_t header_bytes_max; /* request line and headers together; more is 431. Default 16 KiB, at most 64 KiB */
    size_t body_bytes_max;   /* request body; more is 413. Default 8 MiB */
    size_t write_bytes_max;  /* bytes of answers waiting for one client; then k2_http_stream_write is FULL. Default 1 MiB */
    uint64_t read_ns;        /* from the first byte of a request to its last; then 408 and close. Default 30 s */
    uint64_t idle_ns;        /* a kept-alive connection without a request; then close. Default 75 s */
    uint64_t write_ns;       /* a client that takes no byte of a waiting answer; then close (on_abort). Default 60 s */
} k2_http_limits;

/* k2_http_serve - listen and serve until k2_http_server_close.
 *
 * shapes   port 0 takes any free one (k2_http_server_port tells which); host is a numeric address or "localhost"
 * memory   limits (NULL: all defaults) is copied; about 1 KiB for an idle connection besides the loop's own; a request holds
 *          its head and body until it is answered
 * keeps    requests of one connection come one after another, in order: a pipelined one waits, unparsed, until the answer
 *          before it is whole, so answers can never be swapped
 * errors   BUSY when the address is in use, BAD_INPUT for a bad host. The server itself answers 400, 408, 413, 414, 417, 431,
 *          501 and 505; both Content-Length and Transfer-Encoding, repeated Content-Length, another coding than chunked, and
 *          a missing or repeated Host are 400 and the connection is closed (request smuggling)
 */
k2_http_server *k2_http_serve(k2_loop *loop, const char *host, uint16_t port, const k2_http_limits *limits,
                              void (*on_request)(void *arg, k2_http_req *req), void *arg, k2_error *err);
uint16_t k2_http_server_port(const k2_http_server *s);
/* Requests that have been given to on_request and are not yet answered. */
uint32_t k2_http_server_open(const k2_http_server *s);
/* Accept no more connections, close idle ones, answer what runs with "Connection: close". */
void k2_http_server_drain(k2_http_server *s);
/* Close the listener and all connections at once (on_abort comes for open requests). The server's memory goes when its last
 * connection has closed, in later turns of the loop; the pointer is invalid after this call. NULL is allowed. */
void k2_http_server_close(k2_http_server *s);

const char *k2_http_req_method(const k2_http_req *req); /* "POST" */
const char *k2_http_req_path(const k2_http_req *req);   /* starts with '/'; without the query; percent escapes as sent */
/* Value of the first header line of this name, in any case; NULL when absent. */
const char *k2_http_req_header(const k2_http_req *req, const char *name);
/* The whole body, with an uncounted 0 byte behind it; *n may be 0. Valid as long as the request. */
const char *k2_http_req_body(const k2_http_req *req, size_t *n);

/* k2_http_req_on_abort - be told at once when the client goes away before the answer is whole.
 *
 * keeps    the request is gone when the callback returns; nothing may be answered in it or after it. A client that has
 *          pipelined more than 32 KiB behind this request is not read any further, and its leaving is noticed only when that is over
 * errors   a request without this callback may be aborted too: the owner of a request that is not answered inside on_request
 *          must set it before on_request returns (asserted)
 */
void k2_http_req_on_abort(k2_http_req *req, void (*on_abort)(void *arg), void *arg);
/* Called once each time when k2_http_stream_write has been FULL and half of write_bytes_max is free again. */
void k2_http_req_on_drain(k2_http_req *req, void (*on_drain)(void *arg), void *arg);

/* Add a header line to the answer, before it begins. Content-Length, Transfer-Encoding, Connection and Date are ours. */
void k2_http_header_add(k2_http_req *req, const char *name, const char *value);
/* Answer whole; the request is gone when this returns. body is copied; content_type may be NULL when n is 0. */
void k2_http_respond(k2_http_req *req, int status, const char *content_type, const void *body, size_t n);
/* Answer in pieces (chunked; for HTTP/1.0 clients the connection's end is the answer's end). content_type is a literal: the
 * head leaves with the first piece, or at the end of this turn of the loop. */
void k2_http_stream_begin(k2_http_req *req, int status, const char *content_type);
/* k2_http_stream_write - send one piece; it leaves in this turn of the loop.
 *
 * memory   data is copied; n = 0 writes nothing
 * errors   FULL: write_bytes_max are waiting for this client already, nothing was taken; stop producing until on_drain.
 *          A piece is taken whole or not at all; while less than write_bytes_max waits, any one piece is taken
 */
k2_code k2_http_stream_write(k2_http_req *req, const void *data, size_t n);
/* The answer is whole; the request is gone when this returns. */
void k2_http_stream_end(k2_http_req *req);
/* Break a begun answer off so that the client sees an error, not an end; the request is gone when this returns. */
void k2_http_stream_abort(k2_http_req *req);

/* ---- client ----------------------------------------------------------------------------------------------------- */

typedef struct k2_http_header {
    const char *name, *value;
} k2_http_header;

/* A member that is 0 takes its default. */
typedef struct k2_http_client_config {
    uint32_t idle_per_host_max; /* kept-alive connections without a call, for each host:port. Default 64 */
    uint32_t conns_per_host_max; /* open connections for each host:port; further calls wait in line. Default 4096 */
    uint32_t waiting_max;       /* calls that wait for a connection, all hosts together; then FULL. Default 65536 */
    uint64_t idle_ns;           /* how long an idle connection is kept. Default 30 s */
    size_t header_bytes_max;    /* head of an answer. Default 64 KiB */
} k2_http_client_config;

k2_http_client *k2_http_client_new(k2_loop *loop, const k2_http_client_config *config);
/* Cancels all calls (of their callbacks only on_gone comes) and closes all connections; the pointer is invalid then. */
void k2_http_client_close(k2_http_client *c);

typedef struct k2_http_call_spec {
    const char *method;            /* "GET", "POST", ... */
    const char *url;               /* "http://host:port/path?query" */
    const k2_http_header *headers; /* besides Host, Content-Length and Connection, which are ours */
    size_t header_count;
    const void *body;
    size_t body_bytes;
    uint64_t connect_ns;    /* to have a connection, with the time in line. 0: 5 s */
    uint64_t first_byte_ns; /* from the request's last byte to the answer's first. 0: 60 s */
    uint64_t idle_ns;       /* between two pieces of the answer. 0: 60 s */
} k2_http_call_spec;

/* Members may be NULL, except on_done. They never come inside k2_http_request itself. */
typedef struct k2_http_call_ops {
    /* The answer's head is there. content_type is "" when absent. */
    void (*on_head)(void *arg, int status, const char *content_type);
    void (*on_data)(void *arg, const char *data, size_t n);
    /* Comes exactly once, unless the call is canceled; the call is gone when it returns. OK: the answer came whole (of any
     * status). text says what went wrong, "" for OK. */
    void (*on_done)(void *arg, k2_code code, const char *text);
    /* The very last: behind on_done, or inside k2_http_cancel. Where arg may be released. */
    void (*on_gone)(void *arg);
} k2_http_call_ops;

/* k2_http_request - send a request; the answer comes through ops.
 *
 * memory   spec and everything it points to is copied; ops must live as long as the call
 * keeps    a request that dies on a kept-alive connection before any byte of an answer came is sent once more on a fresh one
 *          (the peer had closed the idle connection), and only then
 * errors   BAD_INPUT for a bad URL, FULL when waiting_max calls are in line: NULL is returned and no callback comes.
 *          on_done: TIMEOUT (which deadline stands in text), PEER_CLOSED, PEER_REFUSED, PEER_PROTOCOL, LIMIT (head too large)
 */
k2_http_call *k2_http_request(k2_http_client *c, const k2_http_call_spec *spec, const k2_http_call_ops *ops, void *arg,
                              k2_error *err);
/* Give the call up: no callback comes any more (but on_gone, at once), a busy connection is closed so that the peer notices. */
void k2_http_cancel(k2_http_call *call);
/* Back-pressure: the peer is made to wait until resume; what has been read already (64 KiB at most) still comes. The idle
 * deadline rests meanwhile, and so does noticing that the peer has gone. */
void k2_http_call_pause(k2_http_call *call);
void k2_http_call_resume(k2_http_call *call);

/* k2_http_fetch - a request whose whole answer is wanted at once.
 *
 * memory   body is valid inside on_done only, with an uncounted 0 byte behind it
 * errors   as k2_http_request; an answer above body_bytes_max is LIMIT. status is 0 when code is not OK; then body is the text
 */
k2_http_call *k2_http_fetch(k2_http_client *c, const k2_http_call_spec *spec, size_t body_bytes_max,
                            void (*on_done)(void *arg, k2_code code, int status, const char *body, size_t n), void *arg,
                            k2_error *err);

/* ---- URLs ------------------------------------------------------------------------------------------------------- */

typedef struct k2_url {
    char host[K2_HTTP_HOST_MAX]; /* without brackets for IPv6 */
    uint16_t port;               /* 80 when the URL has none */
    bool ipv6;
    char target[K2_HTTP_URL_MAX]; /* path and query, at least "/" */
} k2_url;

/* Only http://; user info, fragments, spaces, control characters and ports outside 1..65535 are BAD_INPUT. */
k2_code k2_url_parse(const char *text, k2_url *out, k2_error *err);
/* "HOST:PORT" or "[v6]:PORT"; port 0 is allowed (for listening). */
k2_code k2_hostport_parse(const char *text, char host[K2_HTTP_HOST_MAX], uint16_t *port, k2_error *err);

/* ---- Server-Sent Events ----------------------------------------------------------------------------------------- */

/* Reads a stream of events, however it is cut: LF, CRLF and CR line ends, comments, several data lines, a leading BOM.
 * source   WHATWG HTML, "Server-sent events", section "Interpreting an event stream"
 */
typedef struct k2_sse {
    k2_buf line, data;
    char event[64];
    size_t event_bytes_max;
    bool after_cr, have_data, started;
} k2_sse;

/* event_bytes_max bounds the data of one event and the length of one line. */
void k2_sse_init(k2_sse *s, size_t event_bytes_max);
void k2_sse_fini(k2_sse *s);
/* k2_sse_feed - take bytes, give out the events that they complete.
 *
 * keeps    on_event gets the event's type ("message" when none was given; longer names are cut at 63 bytes) and its data, 0
 *          terminated, valid inside the call. It answers false to stop: the rest of the bytes is dropped, CANCELED is returned
 *          and s may be finished by then
 * errors   LIMIT when an event or a line grows past event_bytes_max
 */
k2_code k2_sse_feed(k2_sse *s, const char *bytes, size_t n,
                    bool (*on_event)(void *arg, const char *type, const char *data, size_t data_bytes), void *arg);
/* Append one event: each line of data behind "data: ", then an empty line. */
void k2_sse_write(k2_buf *out, const char *data, size_t n);

#endif
