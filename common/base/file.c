/* Files: open, read whole, map, replace atomically, make and remove directories. */
#include "common/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool k2_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

k2_code k2_file_open(const char *path, int *fd, uint64_t *bytes, k2_error *err)
{
    k2_code code = K2_OK;
    struct stat st;
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe in its place must not make us wait */
    if (f < 0) return k2_error_errno(err, errno, "%s: cannot open", path);
    if (fstat(f, &st) != 0)
        code = k2_error_errno(err, errno, "%s: cannot stat", path);
    else if (!S_ISREG(st.st_mode))
        code = k2_error_set(err, K2_BAD_INPUT, "%s: is not a regular file", path);
    if (code != K2_OK) {
        close(f);
        return code;
    }
    *fd = f;
    *bytes = (uint64_t)st.st_size;
    return K2_OK;
}

k2_code k2_file_read(const char *path, size_t max_bytes, char **data, size_t *len, k2_error *err)
{
    int fd = -1;
    uint64_t want = 0, got = 0;
    k2_code code = k2_file_open(path, &fd, &want, err);
    if (code != K2_OK) return code;
    if (want > max_bytes) {
        code =
            k2_error_set(err, K2_LIMIT, "%s: %llu bytes, at most %zu are accepted", path, (unsigned long long)want, max_bytes);
        goto close_fd;
    }
    char *bytes = k2_alloc(want + 1);
    while (got < want) {
        ssize_t n = read(fd, bytes + got, want - got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            code = k2_error_errno(err, errno, "%s: cannot read", path);
            k2_free(bytes);
            goto close_fd;
        }
        if (n == 0) break;
        got += (uint64_t)n;
    }
    bytes[got] = 0;
    *data = bytes;
    *len = got;
close_fd:
    close(fd);
    return code;
}

k2_code k2_file_map(const char *path, k2_mapping *out, k2_error *err)
{
    int fd = -1;
    uint64_t n = 0;
    k2_code code = k2_file_open(path, &fd, &n, err);
    if (code != K2_OK) return code;
    void *bytes = n > 0 ? mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (bytes == MAP_FAILED)
        code = k2_error_errno(err, errno, "%s: cannot map", path);
    else
        *out = (k2_mapping){.bytes = bytes, .n = n};
    close(fd);
    return code;
}

void k2_file_unmap(const k2_mapping *m)
{
    if (m->bytes) munmap((void *)(uintptr_t)m->bytes, m->n);
}

void k2_file_forget(const k2_mapping *m, const void *at, uint64_t n)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)at / page * page, end = ((uintptr_t)at + n) / page * page;
    if (m->bytes && end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

size_t k2_file_peek(const char *path, char *out, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, n - 1) : -1;
    if (fd >= 0) close(fd);
    out[got > 0 ? got : 0] = 0;
    return got > 0 ? (size_t)got : 0;
}

static k2_code sync_parent(const char *path, k2_error *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    if (n >= sizeof dir) return k2_error_set(err, K2_LIMIT, "path of %zu bytes is too long", n);
    memcpy(dir, slash ? path : ".", n);
    dir[n] = 0;
    int fd = open(n ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return k2_error_errno(err, errno, "%s: cannot open", dir);
    k2_code code = fsync(fd) == 0 ? K2_OK : k2_error_errno(err, errno, "%s: cannot sync", dir);
    close(fd);
    return code;
}

k2_code k2_file_write_atomic(const char *path, const void *data, size_t len, k2_error *err)
{
    k2_code code = K2_OK;
    char *tmp = k2_temp_name(path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        code = k2_error_errno(err, errno, "%s: cannot create", tmp);
        goto free_name;
    }
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            code = k2_error_errno(err, errno, "%s: cannot write", tmp);
            goto close_fd;
        }
        done += (size_t)n;
    }
    if (fsync(fd) != 0) code = k2_error_errno(err, errno, "%s: cannot sync", tmp);
close_fd:
    if (close(fd) != 0 && code == K2_OK) code = k2_error_errno(err, errno, "%s: cannot close", tmp);
    if (code == K2_OK && rename(tmp, path) != 0) code = k2_error_errno(err, errno, "%s: cannot rename to %s", tmp, path);
    if (code == K2_OK)
        code = sync_parent(path, err);
    else
        unlink(tmp);
free_name:
    k2_free(tmp);
    return code;
}

k2_code k2_file_copy(const char *from, const char *to, k2_error *err)
{
    k2_mapping m = {0};
    k2_code code = k2_file_map(from, &m, err);
    if (code == K2_OK) code = k2_file_write_atomic(to, m.bytes, m.n, err);
    k2_file_unmap(&m);
    return code;
}

/* Where the last whole line of so many bytes ends; -1 = it cannot be read. */
static off_t lines_end(int fd, off_t size)
{
    char block[4096];
    for (off_t end = size; end > 0;) {
        size_t n = (size_t)K2_MIN(end, (off_t)sizeof block);
        end -= (off_t)n;
        if (pread(fd, block, n, end) != (ssize_t)n) return -1;
        const char *last = memrchr(block, '\n', n);
        if (last) return end + (last - block) + 1;
    }
    return 0;
}

k2_code k2_file_append_lines(const char *path, int *fd, k2_error *err)
{
    int f = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (f < 0) return k2_error_errno(err, errno, "%s: cannot open", path);
    off_t size = lseek(f, 0, SEEK_END), whole = lines_end(f, size);
    if (whole >= 0 && (whole >= size || ftruncate(f, whole) == 0)) {
        *fd = f;
        return K2_OK;
    }
    k2_code code = k2_error_errno(err, errno, "%s: cannot cut the half line at its end", path);
    close(f);
    return code;
}

k2_code k2_dir_make(const char *path, k2_error *err)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part) return k2_error_set(err, K2_BAD_INPUT, "directory name of %zu bytes", n);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != 0) continue;
        char keep = part[i];
        part[i] = 0;
        if (mkdir(part, 0755) != 0 && errno != EEXIST) return k2_error_errno(err, errno, "%s: cannot make the directory", part);
        part[i] = keep;
    }
    struct stat st;
    if (stat(path, &st) != 0) return k2_error_errno(err, errno, "%s: cannot stat", path);
    if (!S_ISDIR(st.st_mode)) return k2_error_set(err, K2_BAD_INPUT, "%s: is not a directory", path);
    return K2_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

k2_code k2_dir_remove(const char *path, k2_error *err)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return K2_OK;
    return k2_error_errno(err, errno, "%s: cannot remove", path);
}
