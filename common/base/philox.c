/* Numbers drawn by counter: Philox 4x32-10, and the draws built on it. */
#include "common/base/base.h"

#include <math.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

void k2_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)PHILOX_M0 * c0, p1 = (uint64_t)PHILOX_M1 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The counter is (a, b); the key mixes seed and stream, so that streams differ in every word. */
static void draw(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b, uint32_t out[4])
{
    uint64_t mixed = seed + (uint64_t)stream * 0x9E3779B97F4A7C15ull;
    const uint32_t key[2] = {(uint32_t)mixed, (uint32_t)(mixed >> 32)};
    const uint32_t ctr[4] = {(uint32_t)b, (uint32_t)(b >> 32), (uint32_t)a, (uint32_t)(a >> 32)};
    k2_philox4x32(ctr, key, out);
}

uint64_t k2_rand_u64(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b)
{
    uint32_t w[4];
    draw(seed, stream, a, b, w);
    return (uint64_t)w[1] << 32 | w[0];
}

double k2_rand_unit(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b)
{
    return (double)(k2_rand_u64(seed, stream, a, b) >> 11) * 0x1p-53;
}

uint64_t k2_rand_below(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b, uint64_t n)
{
    K2_ASSERT(n > 0);
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)k2_rand_u64(seed, stream, a, b) * n >> 64);
}

double k2_rand_normal(uint64_t seed, k2_stream stream, uint64_t a, uint64_t b)
{
    uint32_t w[4];
    draw(seed, stream, a, b, w);
    double u = ((double)(((uint64_t)w[1] << 32 | w[0]) >> 11) + 0.5) * 0x1p-53;
    double v = (double)(((uint64_t)w[3] << 32 | w[2]) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925286766559 * v);
}
