/* Clocks. Only the I/O halves of roles read them. */
#include "common/base/base.h"

#include <time.h>

uint64_t k2_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * K2_NS_PER_S + (uint64_t)t.tv_nsec;
}

uint64_t k2_wall_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}
