/* guard - see guard.h. The pages are mapped twice: to be read between the pages without access, and elsewhere to be filled. */
#include "guard.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint8_t *shown;
static uint8_t *filled;

static void make(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const int fd = memfd_create("guard", MFD_CLOEXEC);
    const bool sized = fd >= 0 && ftruncate(fd, K2_GUARD_BYTES) == 0;
    K2_ASSERT(sized);
    uint8_t *around = mmap(NULL, K2_GUARD_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    K2_ASSERT(around != MAP_FAILED);
    shown = mmap(around + page, K2_GUARD_BYTES, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    filled = mmap(NULL, K2_GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    K2_ASSERT(shown != MAP_FAILED && filled != MAP_FAILED);
    close(fd);
}

const uint8_t *k2_guard_place(k2_guard_side side, const void *bytes, size_t n, size_t align)
{
    K2_ASSERT(n <= K2_GUARD_BYTES && align > 0);
    if (!shown) make();
    const size_t offset = side == K2_GUARD_START ? 0 : (K2_GUARD_BYTES - n) / align * align;
    if (n) memcpy(filled + offset, bytes, n);
    if (side == K2_GUARD_END) memset(filled + offset + n, 0xa5, K2_GUARD_BYTES - offset - n);
    return shown + offset;
}
