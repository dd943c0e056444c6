/* parse.c - http_parser or llhttp behind one face. The shims at the top are all that differs between the two. */
#include "parse_int.h"

#include <string.h>
#include <strings.h>

#ifdef K2_HTTP_LLHTTP
typedef llhttp_t parser_t;
typedef llhttp_settings_t settings_t;
#define PARSER_PAUSE(p)        HPE_PAUSED
#define PARSER_METHOD(p)       llhttp_method_name((llhttp_method_t)(p)->method)
#define PARSER_WHY(p, code)    ((void)(code), llhttp_get_error_reason(p))
#define PARSER_TOO_LARGE(code) false
typedef llhttp_errno_t errno_t;
static uint64_t parser_body_bytes(const parser_t *p)
{
    return (p->flags & F_CONTENT_LENGTH) ? p->content_length : 0;
}
#else
typedef http_parser parser_t;
typedef http_parser_settings settings_t;
#define PARSER_PAUSE(p)        (http_parser_pause((p), 1), 0)
#define PARSER_METHOD(p)       http_method_str((enum http_method)(p)->method)
#define PARSER_WHY(p, code)    http_errno_description(code)
#define PARSER_TOO_LARGE(code) ((code) == HPE_HEADER_OVERFLOW)
typedef enum http_errno errno_t;
static uint64_t parser_body_bytes(const parser_t *p)
{
    return (p->flags & F_CONTENTLENGTH) ? p->content_length : 0;
}
#endif

/* RFC 9110, "token": what a header name is made of. */
static bool token_char(unsigned char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
    return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static int fail(k2i_http_msg *m, int status, const char *why)
{
    m->error_status = status;
    m->why = why;
    return -1;
}

static bool head_put(k2i_http_msg *m, const char *at, size_t n)
{
    m->head_bytes += n;
    return m->head_bytes <= m->head_bytes_max && k2_buf_append(&m->head, at, n);
}

static int cb_url(parser_t *p, const char *at, size_t n)
{
    k2i_http_msg *m = p->data;
    if (m->head.len + n >= K2_HTTP_URL_MAX) return fail(m, 414, "the request target is too long");
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)at[i] <= ' ' || (unsigned char)at[i] >= 127)
            return fail(m, 400, "bad character in the request target");
    return head_put(m, at, n) ? 0 : fail(m, 431, "the head is too large");
}

static int cb_field(parser_t *p, const char *at, size_t n)
{
    k2i_http_msg *m = p->data;
    bool trailer = m->has_body; /* on_head has been told: what follows a chunked body is checked and dropped */
    for (size_t i = 0; i < n; i++)
        if (!token_char((unsigned char)at[i])) return fail(m, 400, "bad character in a header name");
    if (trailer) return 0;
    if (m->in_value || m->header_count == 0) {
        if (m->header_count == K2_HTTP_HEADERS_MAX) return fail(m, 431, "too many headers");
        if (!head_put(m, "", 1)) return fail(m, 431, "the head is too large");
        m->headers[m->header_count].name = (uint32_t)m->head.len;
        m->headers[m->header_count].value = 0;
        m->header_count++;
        m->in_value = false;
    }
    return head_put(m, at, n) ? 0 : fail(m, 431, "the head is too large");
}

static int cb_value(parser_t *p, const char *at, size_t n)
{
    k2i_http_msg *m = p->data;
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)at[i] < ' ' && at[i] != '\t') || at[i] == 127) return fail(m, 400, "control character in a header");
    if (m->has_body) return 0;
    if (!m->in_value) {
        if (!head_put(m, "", 1)) return fail(m, 431, "the head is too large");
        m->headers[m->header_count - 1].value = (uint32_t)m->head.len;
        m->in_value = true;
    }
    return head_put(m, at, n) ? 0 : fail(m, 431, "the head is too large");
}

/* White space behind a value is no part of it (RFC 9110, 5.5). */
static void values_trim(k2i_http_msg *m)
{
    for (uint32_t i = 0; i < m->header_count; i++) {
        if (!m->headers[i].value) continue;
        char *value = m->head.data + m->headers[i].value;
        size_t n = strlen(value);
        while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t')) value[--n] = 0;
    }
}

static int cb_head(parser_t *p)
{
    k2i_http_msg *m = p->data;
    p->upgrade = 0; /* offers of another protocol are passed over: the answer speaks HTTP/1.1 */
    if (p->http_major != 1 || p->http_minor > 1) return fail(m, 505, "only HTTP/1.0 and HTTP/1.1 are spoken");
    k2_buf_append(&m->head, "", 1); /* ends the last value; the head's cap leaves room for it */
    values_trim(m);
    m->http10 = p->http_minor == 0;
    m->chunked = (p->flags & F_CHUNKED) != 0;
    m->has_body = m->chunked || parser_body_bytes(p) > 0;
    m->status = p->status_code;
#ifdef K2_HTTP_LLHTTP
    m->keep_alive = llhttp_should_keep_alive(p) != 0;
#else
    m->keep_alive = http_should_keep_alive(p) != 0;
#endif
    if (!m->ops->on_head(m->arg, m)) {
        m->stopped = m->error_status == 0;
        return -1;
    }
    return m->skip_body ? 1 : 0;
}

static int cb_body(parser_t *p, const char *at, size_t n)
{
    k2i_http_msg *m = p->data;
    if (m->ops->on_body(m->arg, at, n)) return 0;
    m->stopped = m->error_status == 0;
    return -1;
}

static int cb_whole(parser_t *p)
{
    k2i_http_msg *m = p->data;
    m->whole = true;
    return PARSER_PAUSE(p);
}

static const settings_t settings = {.on_url = cb_url,
                                    .on_header_field = cb_field,
                                    .on_header_value = cb_value,
                                    .on_headers_complete = cb_head,
                                    .on_body = cb_body,
                                    .on_message_complete = cb_whole};

void k2i_http_msg_init(k2i_http_msg *m, bool request, size_t head_bytes_max, const k2i_http_msg_ops *ops, void *arg)
{
    memset(m, 0, sizeof *m);
    m->ops = ops;
    m->arg = arg;
    m->head_bytes_max = head_bytes_max;
    k2_buf_init(&m->head, head_bytes_max + 2 * K2_HTTP_HEADERS_MAX + 2);
    k2i_http_msg_reset(m, request);
}

void k2i_http_msg_fini(k2i_http_msg *m)
{
    k2_buf_fini(&m->head);
}

void k2i_http_msg_reset(k2i_http_msg *m, bool request)
{
#ifdef K2_HTTP_LLHTTP
    llhttp_init(&m->parser, request ? HTTP_REQUEST : HTTP_RESPONSE, &settings);
#else
    http_parser_init(&m->parser, request ? HTTP_REQUEST : HTTP_RESPONSE);
#endif
    m->parser.data = m;
    if (m->head.capacity > K2I_HTTP_HEAD_KEEP) k2_buf_fini(&m->head);
    k2_buf_clear(&m->head);
    m->head_bytes = 0;
    m->header_count = 0;
    m->error_status = m->status = 0;
    m->why = "";
    m->begun = m->in_value = m->whole = m->stopped = m->skip_body = false;
    m->keep_alive = m->has_body = m->chunked = m->http10 = false;
}

/* A parser's own error: which status a server answers, and text for a person. */
static void parser_error(k2i_http_msg *m, errno_t code)
{
    if (m->error_status) return;
    m->error_status = PARSER_TOO_LARGE(code) ? 431 : code == HPE_INVALID_VERSION ? 505 : 400;
    m->why = PARSER_WHY(&m->parser, code);
}

k2i_http_result k2i_http_feed(k2i_http_msg *m, const char *data, size_t n, size_t *used)
{
    K2_ASSERT(!m->whole);
    *used = 0;
    if (n > 0) m->begun = true;
#ifdef K2_HTTP_LLHTTP
    errno_t code = n == 0 ? llhttp_finish(&m->parser) : llhttp_execute(&m->parser, data, n);
    size_t took = code == HPE_OK ? n : n == 0 ? 0 : (size_t)(llhttp_get_error_pos(&m->parser) - data);
#else
    size_t took = http_parser_execute(&m->parser, &settings, data, n);
    errno_t code = HTTP_PARSER_ERRNO(&m->parser);
#endif
    if (m->stopped) return K2I_HTTP_STOPPED;
    if (m->whole) {
        *used = K2_MIN(took, n);
        return K2I_HTTP_DONE;
    }
    if (code != HPE_OK || n == 0) {
        parser_error(m, code);
        if (n == 0 && code == HPE_OK) m->why = "the stream ended inside a message";
        return K2I_HTTP_ERROR;
    }
    *used = n;
    return K2I_HTTP_MORE;
}

const char *k2i_http_msg_method(const k2i_http_msg *m)
{
    return PARSER_METHOD(&m->parser);
}

const char *k2i_http_msg_target(const k2i_http_msg *m)
{
    return m->head.data ? m->head.data : "";
}

const char *k2i_http_msg_header(const k2i_http_msg *m, const char *name)
{
    for (uint32_t i = 0; i < m->header_count; i++)
        if (strcasecmp(m->head.data + m->headers[i].name, name) == 0)
            return m->headers[i].value ? m->head.data + m->headers[i].value : "";
    return NULL;
}

void k2i_http_put_number(k2_buf *out, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    k2_buf_append(out, digits + at, sizeof digits - at);
}

const char *k2i_http_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {{200, "OK"},
                   {202, "Accepted"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {409, "Conflict"},
                   {413, "Content Too Large"},
                   {414, "URI Too Long"},
                   {417, "Expectation Failed"},
                   {422, "Unprocessable Content"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {502, "Bad Gateway"},
                   {503, "Service Unavailable"},
                   {504, "Gateway Timeout"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < K2_COUNT(reasons); i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Unknown";
}
