/* Log lines: formatted on the caller's stack, cleaned, kept in the ring, written by one write(2). */
#include "common/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define NAME_MAX_BYTES 64u /* "role-index" */

struct k2_log {
    int fd;
    char name[NAME_MAX_BYTES];
    atomic_int lowest;
    atomic_uint_fast64_t dropped;
    pthread_mutex_t ring_lock; /* guards ring and ring_next; never held during a write */
    atomic_uint ring_next;     /* lines ever put in; slot = number % K2_LOG_RING_MAX */
    char ring[K2_LOG_RING_MAX][K2_LOG_LINE_MAX];
};

static const char *const level_names[] = {"debug", "info", "warn", "error", "off"};
static const char *const level_tags[] = {"DEBUG", "INFO ", "WARN ", "ERROR", "OFF  "};

/* ASCII controls, and the C1 controls in their UTF-8 form (some terminals obey those too). */
static void clean(char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7f) s[i] = '?';
        if (c == 0xc2 && i + 1 < n && (unsigned char)s[i + 1] >= 0x80 && (unsigned char)s[i + 1] <= 0x9f) s[i] = s[i + 1] = '?';
    }
}

static int head(const k2_log *log, k2_log_level level, char *line)
{
    uint64_t us = k2_wall_us();
    time_t seconds = (time_t)(us / 1000000u);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    return snprintf(line, K2_LOG_LINE_MAX, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ %s %s%s", tm.tm_year + 1900, tm.tm_mon + 1,
                    tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (unsigned)(us / 1000u % 1000u), level_tags[level], log->name,
                    log->name[0] ? "  " : "");
}

static void keep(k2_log *log, const char *line, size_t n)
{
    pthread_mutex_lock(&log->ring_lock);
    unsigned slot = atomic_load(&log->ring_next) % K2_LOG_RING_MAX;
    memcpy(log->ring[slot], line, n);
    log->ring[slot][n] = 0;
    atomic_fetch_add(&log->ring_next, 1);
    pthread_mutex_unlock(&log->ring_lock);
}

static void put(k2_log *log, const char *line, size_t n)
{
    ssize_t did;
    do did = write(log->fd, line, n);
    while (did < 0 && errno == EINTR);
    /* A short write (full disk) leaves half a line; writing the rest later could mix with others, so it counts as dropped. */
    if (did != (ssize_t)n) atomic_fetch_add(&log->dropped, 1);
}

k2_log *k2_log_open(const char *path, const char *role, int index, k2_log_level lowest, k2_error *err)
{
    int fd = STDERR_FILENO;
    if (path) {
        fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0) {
            k2_error_errno(err, errno, "cannot open log %s", path);
            return NULL;
        }
    }
    k2_log *log = k2_alloc(sizeof *log);
    log->fd = fd;
    if (role && index >= 0)
        snprintf(log->name, sizeof log->name, "%s-%d", role, index);
    else if (role)
        snprintf(log->name, sizeof log->name, "%s", role);
    atomic_init(&log->lowest, (int)lowest);
    atomic_init(&log->dropped, 0);
    atomic_init(&log->ring_next, 0);
    pthread_mutex_init(&log->ring_lock, NULL);
    return log;
}

void k2_log_close(k2_log *log)
{
    if (!log) return;
    if (log->fd != STDERR_FILENO) close(log->fd);
    pthread_mutex_destroy(&log->ring_lock);
    k2_free(log);
}

void k2_log_set_level(k2_log *log, k2_log_level lowest)
{
    atomic_store(&log->lowest, (int)lowest);
}

bool k2_log_level_parse(const char *name, k2_log_level *out)
{
    for (size_t i = 0; i < K2_COUNT(level_names); i++) {
        if (strcmp(name, level_names[i]) != 0) continue;
        *out = (k2_log_level)i;
        return true;
    }
    return false;
}

const char *k2_log_level_name(k2_log_level level)
{
    K2_ASSERT((unsigned)level < K2_COUNT(level_names));
    return level_names[level];
}

bool k2_log_on(const k2_log *log, k2_log_level level)
{
    return log && (int)level >= atomic_load(&log->lowest);
}

void k2_log_write(k2_log *log, k2_log_level level, const char *fmt, ...)
{
    if (!log || level >= K2_LOG_OFF) return;
    int saved = errno;
    char line[K2_LOG_LINE_MAX];
    int start = head(log, level, line);
    size_t room = K2_LOG_LINE_MAX - (size_t)start - 1; /* -1: the newline takes the terminator's place */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + start, room, fmt, ap);
    va_end(ap);
    size_t text = n < 0 ? 0 : K2_MIN((size_t)n, room - 1);
    size_t end = (size_t)start + text;
    if (n >= 0 && (size_t)n >= room) memcpy(line + end - 3, "...", 3);
    clean(line + start, text);
    line[end++] = '\n';
    keep(log, line, end);
    if (k2_log_on(log, level)) put(log, line, end);
    errno = saved;
}

static bool plain(const char *value)
{
    if (!value[0]) return false;
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if (*p <= 0x20 || *p == 0x7f || *p == '"' || *p == '=' || *p == '\\') return false;
    return true;
}

const char *k2_log_value(char *out, size_t out_size, const char *value)
{
    K2_ASSERT(out_size >= 4);
    if (!value) value = "";
    if (plain(value)) {
        snprintf(out, out_size, "%s", value);
        return out;
    }
    size_t at = 0;
    out[at++] = '"';
    for (; *value && at + 3 < out_size; value++) {
        if (*value == '"' || *value == '\\') out[at++] = '\\';
        out[at++] = *value;
    }
    out[at++] = '"';
    out[at] = 0;
    return out;
}

uint64_t k2_log_dropped(const k2_log *log)
{
    return atomic_load(&log->dropped);
}

void k2_log_tail(k2_log *log, k2_buf *out)
{
    pthread_mutex_lock(&log->ring_lock);
    unsigned next = atomic_load(&log->ring_next);
    for (unsigned i = next > K2_LOG_RING_MAX ? next - K2_LOG_RING_MAX : 0; i < next; i++)
        k2_buf_puts(out, log->ring[i % K2_LOG_RING_MAX]);
    pthread_mutex_unlock(&log->ring_lock);
}

void k2_log_tail_fd(k2_log *log, int fd)
{
    unsigned next = atomic_load(&log->ring_next);
    for (unsigned i = next > K2_LOG_RING_MAX ? next - K2_LOG_RING_MAX : 0; i < next; i++) {
        const char *line = log->ring[i % K2_LOG_RING_MAX];
        if (write(fd, line, strnlen(line, K2_LOG_LINE_MAX)) < 0) return;
    }
}

void k2_log_memory(k2_log *log, const char *role, uint64_t planned_bytes)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return;
    K2_LOG_INFO(log, "memory of the %s: planned=%.1fMiB peak=%.1fMiB", role, (double)planned_bytes / (1 << 20),
                (double)usage.ru_maxrss / 1024);
}
