/* What the proxy answers to the master: engines lost under a request; scores, where those of the trajectories 7 and 2^53 + 1
 * were asked for; its list of requests. */
#include <math.h>
#include <string.h>

#include "master/io_int.h"
#include "master/scores_int.h"
#include "tests/fuzz/harness/parser.h"

static bool scores(const uint8_t *body, size_t n)
{
    static const uint64_t ids[] = {7, (1ull << 53) + 1};
    k2m_score found[K2_COUNT(ids)];
    if (!k2m_scores_parse((const char *)body, n, ids, K2_COUNT(ids), found)) return false;
    for (size_t i = 0; i < K2_COUNT(ids); i++) {
        K2_ASSERT(isfinite(found[i].reward) && (found[i].has_reward || found[i].reward == 0));
        K2_ASSERT(strnlen(found[i].detail, sizeof found[i].detail) < sizeof found[i].detail);
    }
    return true;
}

/* The proxy's error, which may say what engines were lost under a request: whatever it says, it is a short list. */
static bool lost(const uint8_t *body, size_t n)
{
    k2m_lost found[K2M_LOST_MAX];
    uint32_t count = k2m_lost_parse((const char *)body, n, found);
    K2_ASSERT(count <= K2M_LOST_MAX);
    return count > 0;
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
    {.name = "lost", .take = lost, .prefixes_refused = true},
    {.name = "scores", .take = scores, .prefixes_refused = true},
    {.name = "requests", .take = requests, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
