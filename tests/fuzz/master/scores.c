/* What the proxy answers: engines lost under a request, and scores, to a master that asked for those of the trajectories 7 and
 * 2^53 + 1. */
#include "master/scores_int.h"

#include <math.h>
#include <string.h>

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

const k2_parser k2_parsers[] = {
    {.name = "lost", .take = lost, .prefixes_refused = true},
    {.name = "scores", .take = scores, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
