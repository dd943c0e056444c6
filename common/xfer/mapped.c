/* Memory that owner and reader both have mapped: reading is copying, waiting is a futex on the word itself.
 *
 * A futex rather than polling: ranks and engines outnumber the cores, and a spinning reader would take the time of the very
 * process it waits for. The word has 64 bits and the futex looks at the low 32: a change of the high half alone is noticed
 * by the next time slice, and words count up by small steps anyway.
 */
#include "common/xfer/xfer_int.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPINS    400u                /* about a microsecond: what a value takes that is on its way on another core */
#define YIELDS   4u                  /* lets the owner run where it shares our core */
#define SLICE_NS (20 * K2_NS_PER_MS) /* how late the owner's death is noticed */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the futex looks at the first four bytes of the word");

void *k2i_memory_map(uint64_t bytes, k2_error *err)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) return memory;
    k2_error_errno(err, errno, "xfer: mapping %llu bytes for a segment", (unsigned long long)bytes);
    return NULL;
}

void k2i_memory_unmap(void *memory, uint64_t bytes)
{
    int rc = munmap(memory, bytes);
    K2_ASSERT(rc == 0);
}

void k2i_mapped_read(const unsigned char *data, k2_xfer_io *io)
{
    if (io->want_hash)
        io->hash = k2_xfer_copy_hash(io->local, data + io->offset, io->bytes);
    else
        memcpy(io->local, data + io->offset, io->bytes);
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(const uint32_t *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / K2_NS_PER_S), .tv_nsec = (long)(timeout_ns % K2_NS_PER_S)};
    syscall(SYS_futex, word, FUTEX_WAIT, expected, &t, NULL, 0); /* every way of coming back means: look again */
}

void k2i_mapped_signal(unsigned char *data, uint64_t offset, uint64_t value)
{
    uint64_t *word = (uint64_t *)(void *)(data + offset);
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

uint64_t k2i_mapped_word(const unsigned char *data, uint64_t offset)
{
    return __atomic_load_n((const uint64_t *)(const void *)(data + offset), __ATOMIC_ACQUIRE);
}

k2_code k2i_mapped_wait(const unsigned char *data, uint64_t offset, uint64_t value, uint64_t deadline_ns, k2i_alive_fn alive,
                        void *arg, uint64_t *seen, k2_error *err)
{
    for (unsigned turn = 0;; turn++) {
        uint64_t word = k2i_mapped_word(data, offset);
        if (word >= value) {
            if (seen != NULL) *seen = word;
            return K2_OK;
        }
        if (turn < SPINS) {
            cpu_relax();
            continue;
        }
        if (turn < SPINS + YIELDS) {
            sched_yield();
            continue;
        }
        /* The owner's death is looked at before the word is read for the last time: what it stored before dying counts. */
        bool dead = !alive(arg);
        if (dead && k2i_mapped_word(data, offset) < value)
            return k2_error_set(err, K2_PEER_CLOSED, "the owner of the segment is gone; its word stands at %llu, expected %llu",
                                (unsigned long long)word, (unsigned long long)value);
        uint64_t now = k2_now_ns();
        if (now >= deadline_ns)
            return k2_error_set(err, K2_TIMEOUT, "the word stands at %llu, expected %llu", (unsigned long long)word,
                                (unsigned long long)value);
        if (!dead)
            futex_wait((const uint32_t *)(const void *)(data + offset), (uint32_t)word, K2_MIN(deadline_ns - now, SLICE_NS));
    }
}
