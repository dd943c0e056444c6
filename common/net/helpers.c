/* Small helpers of net: errors, URLs, launch tokens. */
#include "common/net/net_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOCKET_PATH_MAX 100u /* sun_path has 108 bytes on Linux; nng wants some of them */

k2_code k2i_net_code(int nng_errno)
{
    switch (nng_errno) {
    case NNG_EADDRINUSE: return K2_BUSY;
    case NNG_EADDRINVAL:
    case NNG_EINVAL:
    case NNG_ENOTSUP: return K2_BAD_INPUT;
    case NNG_ETIMEDOUT: return K2_TIMEOUT;
    case NNG_ECLOSED:
    case NNG_ECANCELED: return K2_CANCELED;
    case NNG_ENOMEM: return K2_NO_MEMORY;
    case NNG_EPROTO:
    case NNG_EMSGSIZE: return K2_PEER_PROTOCOL;
    case NNG_ECONNREFUSED:
    case NNG_ECONNRESET:
    case NNG_ECONNABORTED: return K2_PEER_CLOSED;
    default: return K2_IO;
    }
}

k2_code k2i_net_error(k2_error *err, const char *url, int nng_errno)
{
    k2_code code = k2i_net_code(nng_errno);
    if (code == K2_BUSY) return k2_error_set(err, code, "%s is in use by another process", url);
    return k2_error_set(err, code, "%s: %s", url, nng_strerror(nng_errno));
}

k2_code k2i_net_url_check(const char *url, k2_error *err)
{
    if (strlen(url) >= K2_NET_URL_MAX)
        return k2_error_set(err, K2_BAD_INPUT, "URL of %zu bytes, at most %u", strlen(url), K2_NET_URL_MAX - 1);
    if (strncmp(url, "ipc:///", 7) == 0 || strncmp(url, "tcp://", 6) == 0) return K2_OK;
    return k2_error_set(err, K2_BAD_INPUT, "URL '%s' found, ipc:///path or tcp://address:port expected", url);
}

static void random_bytes(void *out, size_t n)
{
    ssize_t got;
    do got = getrandom(out, n, 0);
    while (got < 0 && errno == EINTR);
    K2_ASSERT(got == (ssize_t)n); /* up to 256 bytes come whole */
}

uint64_t k2i_net_random(void)
{
    uint64_t v;
    random_bytes(&v, sizeof v);
    return v;
}

void k2_net_token_make(char out[K2_NET_TOKEN_BYTES])
{
    k2_digest d = {k2i_net_random(), k2i_net_random()};
    k2_digest_hex(d, out);
}

bool k2_net_token_equal(const char *expected, const char *got)
{
    if (!expected || !expected[0] || !got) return false;
    size_t n = strlen(expected), m = strlen(got);
    unsigned diff = n != m;
    for (size_t i = 0; i < m; i++) diff |= (unsigned)((unsigned char)expected[i % n] ^ (unsigned char)got[i]);
    return diff == 0;
}

/* A directory of our own that nobody else can write in: /tmp is everyone's, so what is there already must be looked at. */
static k2_code socket_dir(char *out, size_t size, k2_error *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime && runtime[0] == '/' && strlen(runtime) < 40 && access(runtime, W_OK) == 0)
        snprintf(out, size, "%s/k2rl", runtime);
    else
        snprintf(out, size, "/tmp/k2rl-%u", (unsigned)getuid());
    if (mkdir(out, 0700) != 0 && errno != EEXIST) return k2_error_errno(err, errno, "cannot make %s", out);
    struct stat st;
    if (lstat(out, &st) != 0) return k2_error_errno(err, errno, "cannot look at %s", out);
    if (!S_ISDIR(st.st_mode) || st.st_uid != getuid() || (st.st_mode & 077) != 0)
        return k2_error_set(err, K2_IO, "%s: a directory of our own with mode 0700 expected", out);
    return K2_OK;
}

k2_code k2_net_url_for_dir(const char *run_dir, char out[K2_NET_URL_MAX], k2_error *err)
{
    char *whole = realpath(run_dir, NULL);
    if (!whole) return k2_error_errno(err, errno, "run directory %s", run_dir);
    k2_code code = K2_OK;
    if (strlen(whole) + strlen("/master.sock") <= SOCKET_PATH_MAX) {
        snprintf(out, K2_NET_URL_MAX, "ipc://%s/master.sock", whole);
    } else {
        char dir[64], hex[K2_DIGEST_HEX];
        k2_digest_hex(k2_digest_of(whole, strlen(whole)), hex);
        code = socket_dir(dir, sizeof dir, err);
        if (code == K2_OK) snprintf(out, K2_NET_URL_MAX, "ipc://%s/%.16s.sock", dir, hex);
    }
    free(whole);
    return code;
}
