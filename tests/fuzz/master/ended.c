/* What ended processes leave, and what the proxy says of those that live: lines of exits.jsonl, the ends of logs, counts of
 * control groups, the list of requests. */
#include <string.h>

#include "master/exits_int.h"
#include "master/io_int.h"
#include "master/words_int.h"
#include "tests/fuzz/harness/parser.h"

static bool exit_line(const uint8_t *text, size_t n)
{
    k2m_exit e, again;
    k2_buf json;
    char how[K2M_EXIT_TEXT_MAX];
    if (!k2m_exit_parse((const char *)text, n, &e)) return false;
    k2_buf_init(&json, 1u << 16);
    k2m_exit_json(&e, &json);
    K2_ASSERT(!k2_json_fault(json.data, json.len, 1));
    const bool read = k2m_exit_parse(json.data, json.len, &again);
    K2_ASSERT(read && e.at_ns == again.at_ns && e.incarnation == again.incarnation && e.pid == again.pid &&
              e.lived_ns == again.lived_ns);
    K2_ASSERT(e.exit_code == again.exit_code && e.signal == again.signal && e.expected == again.expected);
    k2m_exit_text(&e, how, sizeof how);
    K2_ASSERT(how[0]);
    k2_buf_fini(&json);
    return true;
}

static bool words(const uint8_t *bytes, size_t n)
{
    char *text = k2_alloc(n + 1);
    k2m_words w;
    if (n) memcpy(text, bytes, n);
    k2m_words_find(text, n, true, &w);
    K2_ASSERT(w.count <= K2M_WORDS_MAX && w.last);
    for (uint32_t i = 0; i < w.count; i++) K2_ASSERT(w.lines[i] >= text && w.lines[i] + strlen(w.lines[i]) <= text + n);
    const bool any = w.count > 0;
    k2_free(text);
    return any;
}

static bool cgroup(const uint8_t *text, size_t n)
{
    char path[64];
    (void)n;
    const bool v2 = k2m_cgroup_path((const char *)text, "", path, sizeof path);
    K2_ASSERT(!v2 || (path[0] == '/' && !strstr(path, "/..")));
    const bool v1 = k2m_cgroup_path((const char *)text, "memory", path, sizeof path);
    K2_ASSERT(!v1 || (path[0] == '/' && !strstr(path, "/..")));
    return v1 || v2;
}

static bool oom(const uint8_t *text, size_t n)
{
    uint64_t kills;
    (void)n;
    return k2m_oom_parse((const char *)text, &kills);
}

static void no_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

/* A run with two engines, which reading a list does not change. */
static const k2m_core *two_engines(void)
{
    static k2_config config;
    static k2m_core *m;
    if (m) return m;
    k2_config_defaults(&config);
    config.rollout_workers = 2;
    const k2m_core_config c = {.config = &config, .vocab = 264, .checkpoints_dir = "", .record = no_record};
    const k2_code code = k2m_core_new(&c, &m, NULL);
    K2_ASSERT(code == K2_OK);
    return m;
}

static bool requests(const uint8_t *body, size_t n)
{
    static k2m_proxy_list list;
    const k2m_core *m = two_engines();
    if (!k2m_proxy_list_read(m, (const char *)body, n, K2_NS_PER_S, &list)) return false;
    K2_ASSERT(list.count <= K2M_LISTED_MAX);
    for (uint32_t i = 0; i < list.count; i++) {
        const k2m_request *r = &list.list[i];
        K2_ASSERT(r->worker == K2M_NOBODY || (r->worker < m->worker_count && m->workers[r->worker].role == K2M_ROLLOUT));
        K2_ASSERT(r->since_ns >= 1 && r->deadline_ns >= K2_NS_PER_S);
    }
    return true;
}

const k2_parser k2_parsers[] = {
    {.name = "line of exits.jsonl", .take = exit_line, .prefixes_refused = true},
    {.name = "end of a log", .take = words},
    {.name = "/proc/PID/cgroup", .take = cgroup, .text = true},
    {.name = "memory.events", .take = oom, .text = true},
    {.name = "the proxy's requests", .take = requests, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
