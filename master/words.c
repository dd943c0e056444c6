/* words: what a worker and the system left behind when it ended. */
#include "master/words_int.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/stack/stack.h"

#define PLAIN_MAX 5u /* lines of a log without a crash */
#define LINES_MAX 256u
#define AFTER_MAX 4u /* lines that other threads may have written behind a crash's report */

/* ---- the log -------------------------------------------------------------------------------------------------------- */

static bool marked(const char *line)
{
    return strncmp(line, K2_STACK_CRASH_MARK, sizeof K2_STACK_CRASH_MARK - 1) == 0;
}

/* The youngest lines, oldest first; empty ones are not counted. */
static uint32_t split(char *text, size_t n, char *lines[LINES_MAX])
{
    uint32_t count = 0;
    text[n] = 0;
    for (char *at = text; at < text + n; at += strlen(at) + 1) {
        at[strcspn(at, "\n")] = 0;
        if (!at[0]) continue;
        if (count == LINES_MAX) memmove(lines, lines + 1, --count * sizeof *lines);
        lines[count++] = at;
    }
    return count;
}

void k2m_words_find(char *text, size_t n, bool crashed, k2m_words *out)
{
    char *lines[LINES_MAX];
    uint32_t count = split(text, n, lines), end = count;
    *out = (k2m_words){.last = count ? lines[count - 1] : ""};
    while (crashed && end > 0 && count - end < AFTER_MAX && !marked(lines[end - 1])) end--;
    bool report = out->report = crashed && end > 0 && marked(lines[end - 1]);
    uint32_t from = report ? end : count;
    while (report && from > 0 && marked(lines[from - 1])) from--;
    if (report)
        out->last = lines[end - 1] + sizeof K2_STACK_CRASH_MARK - 1;
    else
        from = count - K2_MIN(count, PLAIN_MAX);
    while (from < (report ? end : count) && out->count < K2M_WORDS_MAX) out->lines[out->count++] = lines[from++];
}

size_t k2m_words_read(const char *path, char *out, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    off_t size = lseek(fd, 0, SEEK_END), from = size > (off_t)n ? size - (off_t)n : 0;
    ssize_t got = pread(fd, out, n, from);
    close(fd);
    return got > 0 ? (size_t)got : 0;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static bool names(const char *list, size_t n, const char *controller)
{
    size_t length = strlen(controller);
    for (size_t at = 0; at < n; at += strcspn(list + at, ",:") + 1)
        if (strcspn(list + at, ",:") == length && memcmp(list + at, controller, length) == 0) return true;
    return n == 0 && length == 0;
}

bool k2m_cgroup_path(const char *text, const char *controller, char *out, size_t n)
{
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        size_t whole = strcspn(line, "\n");
        const char *list = memchr(line, ':', whole);
        const char *path = list ? memchr(list + 1, ':', whole - (size_t)(list + 1 - line)) : NULL;
        if (!path || !names(list + 1, (size_t)(path - list - 1), controller)) continue;
        path++;
        size_t length = whole - (size_t)(path - line);
        if (length >= n || path[0] != '/') return false;
        memcpy(out, path, length);
        out[length] = 0;
        return strstr(out, "/..") == NULL; /* above the root of our namespace */
    }
    return false;
}

bool k2m_oom_parse(const char *text, uint64_t *kills)
{
    static const char key[] = "oom_kill ";
    for (const char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) next++;
        unsigned long long v;
        if (strncmp(line, key, sizeof key - 1) != 0) continue;
        if (sscanf(line + sizeof key - 1, "%llu", &v) != 1) return false;
        *kills = v;
        return true;
    }
    return false;
}

bool k2m_oom_read(const char *file, uint64_t *kills)
{
    char text[1024];
    return file && k2_file_peek(file, text, sizeof text) > 0 && k2m_oom_parse(text, kills);
}

char *k2m_oom_file(const char *mount, pid_t pid)
{
    static const struct {
        const char *controller, *folder, *file;
    } kinds[] = {{"memory", "/memory", "memory.oom_control"}, {"", "", "memory.events"}};
    char own[64], text[4096], path[1024];
    uint64_t kills;
    snprintf(own, sizeof own, "/proc/%d/cgroup", (int)pid);
    k2_file_peek(own, text, sizeof text);
    for (size_t i = 0; i < K2_COUNT(kinds); i++) {
        if (!k2m_cgroup_path(text, kinds[i].controller, path, sizeof path)) continue;
        char *file = k2_asprintf("%s%s%s/%s", mount, kinds[i].folder, strcmp(path, "/") == 0 ? "" : path, kinds[i].file);
        if (k2m_oom_read(file, &kills)) return file;
        k2_free(file);
    }
    return NULL;
}
