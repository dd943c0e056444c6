/* Locators: the strings by which segments are found. Parsing is strict, because they arrive in messages of other processes. */
#include "common/xfer/xfer_int.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* Rest of the text that is being taken apart, and where the error goes. */
typedef struct cursor {
    const char *at;
    k2_error *err;
} cursor;

static bool bad(cursor *c, const char *what)
{
    k2_error_set(c->err, K2_BAD_INPUT, "locator: %s", what);
    return false;
}

/* The field up to the next ':' or the end; false where it is empty or too long for `out`. */
static bool field(cursor *c, char *out, size_t out_bytes, const char *what)
{
    size_t n = strcspn(c->at, ":");
    if (n == 0 || n >= out_bytes) return bad(c, what);
    memcpy(out, c->at, n);
    out[n] = 0;
    c->at += n;
    return true;
}

static bool colon(cursor *c, const char *what)
{
    if (*c->at != ':') return bad(c, what);
    c->at++;
    return true;
}

static bool number(cursor *c, uint64_t max, uint64_t *out, const char *what)
{
    char text[24];
    if (!field(c, text, sizeof text, what)) return false;
    bool zero_led = text[0] == '0' && text[1] != 0;
    if (zero_led || !k2_str_u64(text, out) || *out > max) return bad(c, what);
    return true;
}

static bool address(cursor *c, k2_xfer_locator *l)
{
    static const char what[] = "the host is no numeric address";
    unsigned char raw[16];
    if (*c->at != '[') {
        if (!field(c, l->host, sizeof l->host, what)) return false;
        return inet_pton(AF_INET, l->host, raw) == 1 || bad(c, what);
    }
    size_t n = strcspn(++c->at, "]");
    if (c->at[n] != ']' || n >= sizeof l->host) return bad(c, what);
    memcpy(l->host, c->at, n);
    l->host[n] = 0;
    c->at += n + 1;
    return inet_pton(AF_INET6, l->host, raw) == 1 || bad(c, what);
}

static bool size_and_nonce(cursor *c, k2_xfer_locator *l)
{
    char hex[K2_DIGEST_HEX];
    k2_digest d;
    if (!number(c, K2_XFER_SEGMENT_MAX, &l->bytes, "the size is no number of bytes")) return false;
    if (l->bytes == 0) return bad(c, "the size is 0");
    if (!colon(c, "the nonce is missing")) return false;
    if (!field(c, hex, sizeof hex, "the nonce is not 32 hex digits in lower case")) return false;
    if (strpbrk(hex, "ABCDEF") || !k2_digest_parse(hex, &d)) return bad(c, "the nonce is not 32 hex digits in lower case");
    if (*c->at != 0) return bad(c, "something stands behind the nonce");
    k2_store_u64le(l->nonce.bytes, d.lo);
    k2_store_u64le(l->nonce.bytes + 8, d.hi);
    return true;
}

static bool parse_shm(cursor *c, k2_xfer_locator *l)
{
    uint64_t pid, fd;
    if (!number(c, INT32_MAX, &pid, "the process id is no number") || !colon(c, "the descriptor is missing")) return false;
    if (!number(c, INT32_MAX, &fd, "the descriptor is no number") || !colon(c, "the size is missing")) return false;
    if (pid == 0) return bad(c, "the process id is 0");
    l->pid = (int32_t)pid;
    l->fd = (int32_t)fd;
    return size_and_nonce(c, l);
}

static bool parse_tcp(cursor *c, k2_xfer_locator *l)
{
    uint64_t port;
    if (!address(c, l) || !colon(c, "the port is missing")) return false;
    if (!number(c, UINT16_MAX, &port, "the port is no number up to 65535") || !colon(c, "the segment is missing")) return false;
    if (port == 0) return bad(c, "the port is 0");
    l->port = (uint16_t)port;
    if (!number(c, UINT64_MAX, &l->id, "the segment is no number") || !colon(c, "the size is missing")) return false;
    return size_and_nonce(c, l);
}

static bool parse_self(cursor *c, k2_xfer_locator *l)
{
    if (!number(c, UINT64_MAX, &l->id, "the segment is no number") || !colon(c, "the size is missing")) return false;
    return size_and_nonce(c, l);
}

k2_code k2_xfer_locator_parse(const char *text, k2_xfer_locator *out, k2_error *err)
{
    k2_xfer_locator l = {0};
    cursor c = {.at = text, .err = err};
    if (strnlen(text, K2_XFER_LOCATOR_MAX) >= K2_XFER_LOCATOR_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "locator: longer than %u bytes", K2_XFER_LOCATOR_MAX - 1);
    if (!field(&c, l.transport, sizeof l.transport, "the transport is missing")) return K2_BAD_INPUT;
    if (!colon(&c, "nothing stands behind the transport")) return K2_BAD_INPUT;

    bool ok;
    if (strcmp(l.transport, "self") == 0)
        ok = parse_self(&c, &l);
    else if (strcmp(l.transport, "shm") == 0)
        ok = parse_shm(&c, &l);
    else if (strcmp(l.transport, "tcp") == 0)
        ok = parse_tcp(&c, &l);
    else
        return k2_error_set(err, K2_UNSUPPORTED, "locator: unknown transport '%s', expected self, shm or tcp", l.transport);
    if (!ok) return K2_BAD_INPUT;
    *out = l;
    return K2_OK;
}

void k2_xfer_locator_format(const k2_xfer_locator *l, bool with_nonce, char out[K2_XFER_LOCATOR_MAX])
{
    char where[96], nonce[K2_DIGEST_HEX + 1] = "";
    bool v6 = strchr(l->host, ':') != NULL;
    if (strcmp(l->transport, "tcp") == 0)
        snprintf(where, sizeof where, "%s%s%s:%u:%llu", v6 ? "[" : "", l->host, v6 ? "]" : "", l->port,
                 (unsigned long long)l->id);
    else if (strcmp(l->transport, "shm") == 0)
        snprintf(where, sizeof where, "%d:%d", l->pid, l->fd);
    else
        snprintf(where, sizeof where, "%llu", (unsigned long long)l->id);
    if (with_nonce) {
        nonce[0] = ':';
        k2_digest_hex((k2_digest){.lo = k2_load_u64le(l->nonce.bytes), .hi = k2_load_u64le(l->nonce.bytes + 8)}, nonce + 1);
    }
    snprintf(out, K2_XFER_LOCATOR_MAX, "%s:%s:%llu%s", l->transport, where, (unsigned long long)l->bytes, nonce);
}

k2_code k2i_nonce_make(k2_xfer_nonce *out, k2_error *err)
{
    ssize_t n;
    do n = getrandom(out->bytes, sizeof out->bytes, 0);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof out->bytes ? K2_OK : k2_error_errno(err, errno, "xfer: getrandom for a nonce");
}

bool k2i_nonce_equal(const k2_xfer_nonce *a, const k2_xfer_nonce *b)
{
    unsigned different = 0;
    for (size_t i = 0; i < sizeof a->bytes; i++) different |= (unsigned)(a->bytes[i] ^ b->bytes[i]);
    return different == 0;
}
