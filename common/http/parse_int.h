/* parse_int - one HTTP/1.x message out of bytes, cut anywhere; shared by server and client.
 *
 * Grammar and framing are http_parser's (or its successor llhttp's, picked at configure time). What is stricter here: header
 * names must be tokens, values hold no control characters, sizes and counts are capped, and a body has exactly one framing.
 */
#ifndef K2_COMMON_HTTP_PARSE_INT_H
#define K2_COMMON_HTTP_PARSE_INT_H

#ifdef K2_HTTP_LLHTTP
#include <llhttp.h>
#else
#include <http_parser.h>
#endif

#include "common/http/http.h"

#define K2I_HTTP_HEAD_KEEP 2048u /* bytes of head and of body buffer that an idle connection keeps: a usual request's */

typedef struct k2i_http_msg k2i_http_msg;

/* What the owner of a message is told. All answer false to stop: k2i_http_feed then answers K2I_HTTP_STOPPED at once. */
typedef struct k2i_http_msg_ops {
    bool (*on_head)(void *arg, k2i_http_msg *m); /* all headers are there; may set m->skip_body */
    bool (*on_body)(void *arg, const char *data, size_t n);
} k2i_http_msg_ops;

typedef enum k2i_http_result {
    K2I_HTTP_MORE,    /* all bytes taken, the message is not whole */
    K2I_HTTP_DONE,    /* the message is whole; *used tells where it ended */
    K2I_HTTP_STOPPED, /* a callback stopped it; the message must still be there */
    K2I_HTTP_ERROR    /* m->status and m->why say why */
} k2i_http_result;

struct k2i_http_msg {
#ifdef K2_HTTP_LLHTTP
    llhttp_t parser;
#else
    http_parser parser;
#endif
    const k2i_http_msg_ops *ops;
    void *arg;
    k2_buf head; /* target, then name, value, name, value ...: each 0 terminated */
    size_t head_bytes_max;
    size_t head_bytes; /* bytes of the head so far, as they came */
    uint32_t header_count;
    struct {
        uint32_t name, value; /* offsets in head */
    } headers[K2_HTTP_HEADERS_MAX];
    int error_status; /* status that a server answers to a malformed request */
    const char *why;
    bool begun, in_value, whole, stopped, skip_body;
    /* From on_head on: */
    int status; /* of an answer */
    bool keep_alive, has_body, chunked, http10;
};

/* request: true parses requests, false answers. */
void k2i_http_msg_init(k2i_http_msg *m, bool request, size_t head_bytes_max, const k2i_http_msg_ops *ops, void *arg);
void k2i_http_msg_fini(k2i_http_msg *m);
/* Ready for the next message on the same connection. */
void k2i_http_msg_reset(k2i_http_msg *m, bool request);
/* n = 0 means that the peer ended the stream: DONE when that ends the message, ERROR otherwise. */
k2i_http_result k2i_http_feed(k2i_http_msg *m, const char *data, size_t n, size_t *used);
const char *k2i_http_msg_method(const k2i_http_msg *m);
/* The request target; "" for answers. */
const char *k2i_http_msg_target(const k2i_http_msg *m);
/* The first line of this name; NULL when absent. */
const char *k2i_http_msg_header(const k2i_http_msg *m, const char *name);
/* Decimal digits, without the cost of printf. */
void k2i_http_put_number(k2_buf *out, uint64_t v);
/* Reason phrase of a status line. */
const char *k2i_http_reason(int status);

#endif
