/* url.c - strict reading of http:// URLs and of HOST:PORT pairs. Whatever looks odd is refused, never repaired: a URL that two
 * parsers read differently is how a request ends at the wrong host. */
#include "common/http/http.h"

#include <string.h>

static bool host_char(char c, bool ipv6)
{
    bool digit = c >= '0' && c <= '9';
    if (ipv6) return digit || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == ':' || c == '.';
    return digit || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
}

/* Reads the host (brackets for IPv6) and answers where it ends, NULL when it is bad. */
static const char *host_read(const char *s, char host[K2_HTTP_HOST_MAX], bool *ipv6)
{
    *ipv6 = *s == '[';
    if (*ipv6) s++;
    size_t n = 0;
    while (host_char(s[n], *ipv6)) n++;
    if (n == 0 || n >= K2_HTTP_HOST_MAX) return NULL;
    if (*ipv6 && s[n] != ']') return NULL;
    memcpy(host, s, n);
    host[n] = 0;
    return s + n + (*ipv6 ? 1 : 0);
}

/* Decimal port at s; answers where it ends, NULL when there is none or it is above 65535. */
static const char *port_read(const char *s, uint16_t *port)
{
    uint32_t v = 0;
    size_t n = 0;
    while (s[n] >= '0' && s[n] <= '9' && n < 6) v = v * 10 + (uint32_t)(s[n++] - '0');
    if (n == 0 || n > 5 || v > 65535) return NULL;
    *port = (uint16_t)v;
    return s + n;
}

k2_code k2_url_parse(const char *text, k2_url *out, k2_error *err)
{
    static const char scheme[] = "http://";
    k2_url u; /* the target is written to its end below; 2 KiB of zeros for every request would be felt */
    if (strncmp(text, scheme, sizeof scheme - 1) != 0)
        return k2_error_set(err, K2_BAD_INPUT, "URL \"%.100s\": expected one that starts with http://", text);
    const char *s = host_read(text + sizeof scheme - 1, u.host, &u.ipv6);
    if (!s) return k2_error_set(err, K2_BAD_INPUT, "URL \"%.100s\": bad host name", text);
    u.port = 80;
    if (*s == ':') {
        s = port_read(s + 1, &u.port);
        if (!s || u.port == 0) return k2_error_set(err, K2_BAD_INPUT, "URL \"%.100s\": expected a port from 1 to 65535", text);
    }
    if (*s != 0 && *s != '/' && *s != '?')
        return k2_error_set(err, K2_BAD_INPUT, "URL \"%.100s\": expected '/' behind the host, found '%c'", text, *s);
    size_t n = 0;
    if (*s != '/') u.target[n++] = '/';
    for (; *s; s++) {
        if (*s <= ' ' || *s == 127 || *s == '#' || (*s & 0x80))
            return k2_error_set(err, K2_BAD_INPUT, "URL \"%.100s\": character 0x%02x is not allowed", text, (unsigned char)*s);
        if (n + 1 >= sizeof u.target)
            return k2_error_set(err, K2_BAD_INPUT, "URL \"%.100s...\": longer than %u bytes", text, K2_HTTP_URL_MAX);
        u.target[n++] = *s;
    }
    u.target[n] = 0;
    memcpy(out->host, u.host, sizeof u.host);
    memcpy(out->target, u.target, n + 1);
    out->port = u.port;
    out->ipv6 = u.ipv6;
    return K2_OK;
}

k2_code k2_hostport_parse(const char *text, char host[K2_HTTP_HOST_MAX], uint16_t *port, k2_error *err)
{
    char h[K2_HTTP_HOST_MAX];
    uint16_t p = 0;
    bool ipv6;
    const char *s = host_read(text, h, &ipv6);
    if (!s || *s != ':' || !(s = port_read(s + 1, &p)) || *s)
        return k2_error_set(err, K2_BAD_INPUT, "address \"%.100s\": expected HOST:PORT with a port from 0 to 65535", text);
    memcpy(host, h, sizeof h);
    *port = p;
    return K2_OK;
}
