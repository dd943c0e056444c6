/* The `shm` transport: a memfd, which other processes of this machine open through /proc/<pid>/fd/<fd>.
 *
 *   [header page: magic, bytes, nonce][bytes of the segment]
 *
 * A memfd and not a named object: nothing stays behind whenever and however the owner ends. Process and descriptor numbers are
 * used again by the kernel, so the header proves to a reader that it has the segment it was told of; seals prove that it can
 * never shrink under the reader's mapping (which would be SIGBUS). Owner and readers must share a pid namespace and a user.
 */
#include "common/xfer/xfer_int.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HEADER_BYTES 4096u
#define MEMFD_NAME   "k2-xfer"
#define SEALS        (F_SEAL_SHRINK | F_SEAL_GROW)

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

typedef struct header {
    char magic[8];
    uint64_t bytes;
    k2_xfer_nonce nonce;
} header;
static const char magic[8] = "K2XSHM1";

typedef struct segment {
    int fd;
    uint64_t map_bytes;
    unsigned char *map;
} segment;

typedef struct remote {
    int pidfd; /* becomes readable when the owner ends */
    uint64_t map_bytes;
    const unsigned char *map;
} remote;

static k2_code shm_open_(const k2_xfer_config *config, bool offers, void **t, k2_error *err)
{
    (void)config, (void)offers, (void)err;
    *t = NULL;
    return K2_OK;
}

static void shm_close(void *t)
{
    (void)t;
}

static void shm_stats(void *t, k2_xfer_stats *out)
{
    (void)t;
    *out = (k2_xfer_stats){0};
}

static k2_code shm_segment_create(void *t, uint64_t bytes, const k2_xfer_nonce *nonce, void **out, k2_xfer_locator *where,
                                  k2_error *err)
{
    (void)t;
    const char *step = "memfd_create";
    uint64_t map_bytes = HEADER_BYTES + bytes;
    int fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) goto fail;
    /* The pages are taken now: later, a machine out of memory would answer a mere store with SIGBUS. */
    step = "fallocate";
    if (fallocate(fd, 0, 0, (off_t)map_bytes) != 0) goto fail_fd;
    step = "mmap";
    unsigned char *map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) goto fail_fd;
    header *h = (header *)(void *)map;
    *h = (header){.bytes = bytes, .nonce = *nonce};
    memcpy(h->magic, magic, sizeof magic);
    /* Our mapping stays writable; nobody can make another writable one. */
    step = "sealing";
    if (fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) goto fail_map;

    segment *s = k2_alloc(sizeof *s);
    *s = (segment){.fd = fd, .map_bytes = map_bytes, .map = map};
    where->pid = (int32_t)getpid();
    where->fd = fd;
    *out = s;
    return K2_OK;

fail_map:
    munmap(map, map_bytes);
fail_fd : {
    int saved = errno;
    close(fd);
    errno = saved;
}
fail:
    return k2_error_errno(err, errno, "shm: a segment of %llu bytes: %s", (unsigned long long)bytes, step);
}

static void *shm_segment_memory(void *s)
{
    return ((segment *)s)->map + HEADER_BYTES;
}

static void shm_segment_signal(void *s, uint64_t offset, uint64_t value)
{
    k2i_mapped_signal(((segment *)s)->map + HEADER_BYTES, offset, value);
}

static void shm_segment_destroy(void *arg)
{
    segment *s = arg;
    munmap(s->map, s->map_bytes);
    close(s->fd);
    k2_free(s);
}

static bool owner_alive(void *arg)
{
    struct pollfd p = {.fd = ((remote *)arg)->pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 0;
}

/* Open what descriptor `fd` of process `pid` is, if it is one of our memfds: opening just anything (a FIFO, a terminal) could
 * block. */
static k2_code memfd_open(const k2_xfer_locator *where, int *out, k2_error *err)
{
    char path[64], target[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", where->pid, where->fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0)
        return k2_error_set(err, K2_PEER_REFUSED,
                            "shm: %s is not there or not ours to open: the segment is withdrawn or another user's", path);
    target[n] = 0;
    if (strncmp(target, "/memfd:" MEMFD_NAME, strlen("/memfd:" MEMFD_NAME)) != 0)
        return k2_error_set(err, K2_PEER_REFUSED, "shm: %s is no segment: the descriptor was used again", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return k2_error_set(err, K2_PEER_REFUSED, "shm: %s cannot be opened: %s", path, strerror(errno));
    *out = fd;
    return K2_OK;
}

/* Map the descriptor and compare it with what the locator promised. */
static k2_code memfd_map(int fd, const k2_xfer_locator *where, remote *r, k2_error *err)
{
    struct stat st;
    uint64_t map_bytes = HEADER_BYTES + where->bytes;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return k2_error_set(err, K2_PEER_REFUSED, "shm: process %d, descriptor %d: not sealed, it might shrink while we read",
                            where->pid, where->fd);
    if (fstat(fd, &st) != 0 || st.st_size < 0 || (uint64_t)st.st_size != map_bytes)
        return k2_error_set(err, K2_PEER_REFUSED, "shm: process %d, descriptor %d: %llu bytes, expected %llu", where->pid,
                            where->fd, (unsigned long long)st.st_size, (unsigned long long)map_bytes);
    const unsigned char *map = mmap(NULL, map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return k2_error_errno(err, errno, "shm: mapping %llu bytes", (unsigned long long)map_bytes);
    const header *h = (const header *)(const void *)map;
    if (memcmp(h->magic, magic, sizeof magic) != 0 || h->bytes != where->bytes || !k2i_nonce_equal(&h->nonce, &where->nonce)) {
        munmap((void *)(uintptr_t)map, map_bytes);
        return k2_error_set(err, K2_PEER_REFUSED, "shm: process %d, descriptor %d: another segment than the locator's",
                            where->pid, where->fd);
    }
    r->map = map;
    r->map_bytes = map_bytes;
    return K2_OK;
}

static k2_code shm_remote_open(void *t, const k2_xfer_locator *where, uint64_t deadline_ns, void **out, k2_error *err)
{
    (void)t, (void)deadline_ns;
    remote r = {.pidfd = (int)syscall(SYS_pidfd_open, where->pid, 0)};
    if (r.pidfd < 0) return k2_error_set(err, K2_PEER_CLOSED, "shm: process %d is gone", where->pid);
    int fd = -1;
    k2_code code = memfd_open(where, &fd, err);
    /* Alive after the look-up means that the look-up saw this process and no later one of the same number. */
    if (code != K2_OK && !owner_alive(&r)) code = k2_error_set(err, K2_PEER_CLOSED, "shm: process %d is gone", where->pid);
    if (code == K2_OK) {
        code = memfd_map(fd, where, &r, err);
        close(fd);
    }
    if (code != K2_OK) {
        close(r.pidfd);
        return code;
    }
    remote *made = k2_alloc(sizeof *made);
    *made = r;
    *out = made;
    return K2_OK;
}

static const void *shm_remote_map(void *r)
{
    return ((remote *)r)->map + HEADER_BYTES;
}

static k2_code shm_remote_read(void *r, k2_xfer_io *io, k2_error *err)
{
    (void)err;
    k2i_mapped_read(((remote *)r)->map + HEADER_BYTES, io);
    return K2_OK;
}

static k2_code shm_remote_wait(void *r, uint64_t offset, uint64_t value, uint64_t deadline_ns, uint64_t *seen, k2_error *err)
{
    return k2i_mapped_wait(((remote *)r)->map + HEADER_BYTES, offset, value, deadline_ns, owner_alive, r, seen, err);
}

static void shm_remote_close(void *arg)
{
    remote *r = arg;
    munmap((void *)(uintptr_t)r->map, r->map_bytes);
    close(r->pidfd);
    k2_free(r);
}

const k2_xfer_ops k2i_shm_ops = {
    .name = "shm",
    .caps = {.between_processes = true, .maps = true, .immediate = true, .read_max = K2_XFER_CHUNK_MAX},
    .open = shm_open_,
    .close = shm_close,
    .stats = shm_stats,
    .segment_create = shm_segment_create,
    .segment_memory = shm_segment_memory,
    .segment_signal = shm_segment_signal,
    .segment_destroy = shm_segment_destroy,
    .remote_open = shm_remote_open,
    .remote_map = shm_remote_map,
    .remote_read = shm_remote_read,
    .remote_wait = shm_remote_wait,
    .remote_close = shm_remote_close,
};
