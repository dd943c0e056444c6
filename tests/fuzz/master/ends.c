/* What is left of a process that ended: lines of exits.jsonl, the end of its log, and what the kernel says of its cgroup. */
#include <string.h>

#include "common/stack/stack.h"
#include "master/exits_int.h"
#include "master/stacks_int.h"
#include "master/words_int.h"
#include "tests/fuzz/harness/parser.h"

static bool exit_line(const uint8_t *line, size_t n)
{
    k2m_exit e, again;
    if (!k2m_exit_parse((const char *)line, n, &e)) return false;
    char text[K2M_EXIT_TEXT_MAX];
    k2m_exit_text(&e, text, sizeof text);
    k2_buf b;
    k2_buf_init(&b, 1 << 16);
    k2m_exit_json(&e, &b);
    K2_ASSERT(k2m_exit_parse(b.data, b.len, &again));
    K2_ASSERT(again.at_ns == e.at_ns && again.lived_ns == e.lived_ns && again.signal == e.signal && again.pid == e.pid);
    k2_buf_fini(&b);
    return true;
}

static bool words(const uint8_t *bytes, size_t n)
{
    for (int crashed = 0; crashed < 2; crashed++) {
        char *text = k2_alloc(n + 1);
        memcpy(text, bytes, n);
        k2m_words w;
        k2m_words_find(text, n, crashed, &w);
        K2_ASSERT(w.count <= K2M_WORDS_MAX && (crashed || !w.report) && (!w.report || w.count > 0));
        for (uint32_t i = 0; i < w.count; i++) K2_ASSERT(w.lines[i] >= text && w.lines[i] + strlen(w.lines[i]) <= text + n);
        K2_ASSERT(!w.last[0] || (w.last >= text && w.last + strlen(w.last) <= text + n));
        k2_free(text);
    }
    return true;
}

static bool cgroup(const uint8_t *text, size_t n)
{
    char path[64];
    uint64_t kills = 0;
    bool found = false;
    (void)n;
    static const char *const controllers[] = {"memory", ""};
    for (size_t i = 0; i < K2_COUNT(controllers); i++) {
        if (!k2m_cgroup_path((const char *)text, controllers[i], path, sizeof path)) continue;
        K2_ASSERT(path[0] == '/' && strnlen(path, sizeof path) < sizeof path && !strstr(path, "/.."));
        found = true;
    }
    return k2m_oom_parse((const char *)text, &kills) || found;
}

static bool option(const uint8_t *bytes, size_t n)
{
    char *copy = k2_alloc(n + 1); /* as the caller keeps it: with a zero behind the last word */
    memcpy(copy, bytes, n);
    const char *value = k2m_cmdline_option(copy, n, "--master");
    K2_ASSERT(!value || (value > copy && value < copy + n));
    k2_free(copy);
    return value != NULL;
}

const k2_parser k2_parsers[] = {
    {.name = "line of exits.jsonl", .take = exit_line, .prefixes_refused = true},
    {.name = "end of a log", .take = words},
    {.name = "cgroup", .take = cgroup, .text = true},
    {.name = "command line", .take = option},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
