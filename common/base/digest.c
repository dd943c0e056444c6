/* Digests: XXH3 with 64 and 128 bits. */
#include "common/base/base.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>
/* The library's plain entry points are compiled for the oldest CPU; these pick AVX2 or AVX-512 at run time, same bits, twice
 * the speed. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

k2_digest k2_digest_of(const void *bytes, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    return (k2_digest){.hi = h.high64, .lo = h.low64};
}

uint64_t k2_hash64(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, n, seed);
}

void k2_digest_hex(k2_digest d, char out[K2_DIGEST_HEX])
{
    snprintf(out, K2_DIGEST_HEX, "%016llx%016llx", (unsigned long long)d.hi, (unsigned long long)d.lo);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

bool k2_digest_parse(const char *hex, k2_digest *out)
{
    uint64_t word[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int v = hex_value(hex[i]);
        if (v < 0) return false;
        word[i / 16] = word[i / 16] << 4 | (uint64_t)v;
    }
    if (hex[32] != 0) return false;
    *out = (k2_digest){.hi = word[0], .lo = word[1]};
    return true;
}

k2_digest_stream *k2_digest_begin(void)
{
    XXH3_state_t *s = XXH3_createState();
    K2_ASSERT(s != NULL);
    XXH3_128bits_reset(s);
    return (k2_digest_stream *)s;
}

void k2_digest_update(k2_digest_stream *s, const void *bytes, size_t n)
{
    XXH3_128bits_update((XXH3_state_t *)s, bytes, n);
}

k2_digest k2_digest_end(k2_digest_stream *s)
{
    XXH128_hash_t h = XXH3_128bits_digest((XXH3_state_t *)s);
    XXH3_freeState((XXH3_state_t *)s);
    return (k2_digest){.hi = h.high64, .lo = h.low64};
}

k2_hash64_stream *k2_hash64_begin(void)
{
    XXH3_state_t *s = XXH3_createState();
    K2_ASSERT(s != NULL);
    XXH3_64bits_reset(s);
    return (k2_hash64_stream *)s;
}

void k2_hash64_update(k2_hash64_stream *s, const void *bytes, size_t n)
{
    XXH3_64bits_update((XXH3_state_t *)s, bytes, n);
}

uint64_t k2_hash64_end(k2_hash64_stream *s)
{
    uint64_t hash = XXH3_64bits_digest((XXH3_state_t *)s);
    XXH3_freeState((XXH3_state_t *)s);
    return hash;
}
