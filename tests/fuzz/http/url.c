/* The short texts that say where something is: URLs, addresses, locators of segments; and digests. */
#include <string.h>
#include <strings.h>

#include "common/http/http.h"
#include "common/net/net_int.h"
#include "common/xfer/xfer.h"
#include "tests/fuzz/harness/parser.h"

static bool said(k2_code code, const k2_error *err)
{
    K2_ASSERT(code == K2_OK || (err->code == code && err->text[0]));
    return code == K2_OK;
}

static bool url(const uint8_t *text, size_t n)
{
    k2_url u, again;
    k2_error err;
    (void)n;
    if (!said(k2_url_parse((const char *)text, &u, &err), &err)) return false;
    char *back = k2_asprintf("http://%s%s%s:%u%s", u.ipv6 ? "[" : "", u.host, u.ipv6 ? "]" : "", u.port, u.target);
    const k2_code code = k2_url_parse(back, &again, &err);
    K2_ASSERT(code == K2_OK && again.port == u.port && strcmp(again.host, u.host) == 0 && strcmp(again.target, u.target) == 0);
    k2_free(back);
    return true;
}

static bool address(const uint8_t *text, size_t n)
{
    char host[K2_HTTP_HOST_MAX];
    uint16_t port;
    k2_error err;
    (void)n;
    return said(k2_hostport_parse((const char *)text, host, &port, &err), &err);
}

static bool control(const uint8_t *text, size_t n)
{
    k2_error err;
    (void)n;
    return said(k2i_net_url_check((const char *)text, &err), &err);
}

static bool locator(const uint8_t *text, size_t n)
{
    k2_xfer_locator l, m;
    char again[K2_XFER_LOCATOR_MAX];
    k2_error err;
    (void)n;
    k2_code code = k2_xfer_locator_parse((const char *)text, &l, &err);
    if (!said(code, &err)) return false;
    k2_xfer_locator_format(&l, true, again);
    K2_ASSERT(strcmp((const char *)text, again) == 0);
    code = k2_xfer_locator_parse(again, &m, NULL);
    K2_ASSERT(code == K2_OK && memcmp(&l, &m, sizeof l) == 0);
    return true;
}

static bool digest(const uint8_t *text, size_t n)
{
    k2_digest d, again;
    char hex[K2_DIGEST_HEX];
    (void)n;
    if (!k2_digest_parse((const char *)text, &d)) return false;
    k2_digest_hex(d, hex);
    const bool read = k2_digest_parse(hex, &again);
    K2_ASSERT(read && k2_digest_equal(d, again) && strcasecmp(hex, (const char *)text) == 0);
    return true;
}

const k2_parser k2_parsers[] = {
    {.name = "http URL", .take = url, .text = true},
    {.name = "HOST:PORT", .take = address, .text = true},
    {.name = "control URL", .take = control, .text = true},
    {.name = "locator", .take = locator, .text = true, .prefixes_refused = true},
    {.name = "digest", .take = digest, .text = true, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
