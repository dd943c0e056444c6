/* guard - see guard.h. */
#include "guard.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *area; /* K2_GUARD_BYTES readable bytes */

static void area_make(size_t page)
{
    uint8_t *whole = mmap(NULL, K2_GUARD_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    K2_ASSERT(whole != MAP_FAILED);
    area = whole + page;
}

static void protect(uint8_t *at, size_t bytes, int how)
{
    const int rc = mprotect(at, bytes, how);
    K2_ASSERT(rc == 0);
}

const uint8_t *k2_guard_place(k2_guard_side side, const void *bytes, size_t n, size_t align)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    K2_ASSERT(n <= K2_GUARD_BYTES && align > 0);
    if (!area) area_make(page);
    /* Only the pages that the input lies in are opened, so that placing costs what the input is long. */
    const size_t offset = side == K2_GUARD_START ? 0 : (K2_GUARD_BYTES - n) / align * align;
    const size_t first = offset / page * page, last = side == K2_GUARD_START ? (n + page) / page * page : K2_GUARD_BYTES;
    uint8_t *open = area + K2_MIN(first, K2_GUARD_BYTES - page), *end = area + K2_MIN(last, K2_GUARD_BYTES);
    protect(area, K2_GUARD_BYTES, PROT_NONE);
    protect(open, (size_t)(end - open), PROT_READ | PROT_WRITE);
    memset(open, 0xa5, (size_t)(end - open));
    if (n) memcpy(area + offset, bytes, n);
    protect(open, (size_t)(end - open), PROT_READ);
    return area + offset;
}
