/* server_int - what server.c (reading) and reply.c (answering) share about a server and its connections. */
#ifndef K2_COMMON_HTTP_SERVER_INT_H
#define K2_COMMON_HTTP_SERVER_INT_H

#include <time.h>

#include "common/loop/loop.h"
#include "parse_int.h"

#define K2I_HTTP_EXTRA_MAX 4096u /* bytes of header lines that a handler may add to one answer */

typedef enum k2i_req_state {
    K2I_REQ_IDLE,    /* no byte of a request yet */
    K2I_REQ_READING, /* in a request */
    K2I_REQ_BUSY,    /* the handler has it */
    K2I_REQ_LINGER,  /* the last answer is written; what still comes is dropped */
    K2I_REQ_CLOSED   /* the connection is going */
} k2i_req_state;

struct k2_http_req {
    k2_http_server *server;
    k2_conn *conn; /* NULL once its on_close has come */
    k2_http_req *prev, *next, *later_next;
    k2i_req_state state;
    bool in_feed, later; /* feed is on the stack; on the list of the turn's end */
    bool is_head;        /* the request's method is HEAD: an answer has no body */
    bool close_after;    /* the connection ends with this answer */
    bool begun, chunked; /* of a streamed answer */
    bool head_waits;     /* its head waits for the first piece */
    bool was_full;
    uint64_t serial; /* counts requests, to tell after the handler whether this one is still there */
    uint64_t deadline_ns, write_deadline_ns, sent_bytes, drained_seen;
    k2i_http_msg msg;
    k2_buf body, ahead, extra_headers;
    int status; /* with content_type: of the head that waits */
    const char *content_type;
    void (*on_abort)(void *arg);
    void *abort_arg;
    void (*on_drain)(void *arg);
    void *drain_arg;
};

struct k2_http_server {
    k2_loop *loop;
    k2_listener *listener;
    k2_http_limits limits;
    void (*on_request)(void *arg, k2_http_req *req);
    void *arg;
    k2_http_req *conns, *later;
    uint32_t conn_count, open;
    uint16_t port;
    bool draining, closed;
    k2_timer *sweep, *later_timer;
    k2_buf scratch; /* one answer's head or one chunk is put together here */
    char date[40];
    time_t date_s;
};

/* The answer is whole: what follows on this connection. */
void k2i_http_req_answered(k2_http_req *r);
/* Come back to this connection at the end of the turn. */
void k2i_http_later(k2_http_req *r);
void k2i_http_later_run(void *server);
/* Send a streamed answer's head that waited for a first piece. */
void k2i_http_head_flush(k2_http_req *r);

#endif
