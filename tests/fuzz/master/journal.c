/* Everything that a master's journal may hold, into a core that recovers: each record is taken or refused, what came of them
 * can be explained to `k2rl why`. The input is records back to back: a byte of type, two bytes of length, the bytes. */
#include <stdio.h>
#include <string.h>

#include "master/core_int.h"
#include "tests/fuzz/harness/parser.h"

#define PROMPT_TOKENS 24 /* of the longest prompt */

static void no_record(void *arg, uint32_t type, const void *bytes, size_t len)
{
    (void)arg, (void)type, (void)bytes, (void)len;
}

/* The smallest run: what is recovered from it is all there is. */
static const k2_config *config(void)
{
    static k2_config c;
    k2_config_defaults(&c);
    snprintf(c.data_sampling, sizeof c.data_sampling, "priority");
    c.rollout_groups = 2;
    c.rollout_group_size = 2;
    c.rollout_workers = 2;
    c.rollout_budget_tokens = 7;
    c.rollout_max_tokens = 20;
    c.master_inflight_max = 4;
    c.eval_prompts = 1;
    return &c;
}

static k2m_core *recovering(void)
{
    static const int32_t ids[PROMPT_TOKENS];
    static const int32_t *const prompts[] = {ids, ids};
    static const uint32_t lengths[] = {PROMPT_TOKENS, 1};
    k2m_core *m = NULL;
    k2_error err;
    const k2m_core_config c = {.config = config(),
                               .prompts = {.ids = prompts, .lengths = lengths, .count = 2, .length_max = PROMPT_TOKENS},
                               .heldout = 1,
                               .vocab = 264,
                               .checkpoints_dir = "/run/checkpoints",
                               .record = no_record};
    const k2_code code = k2m_core_new(&c, &m, &err);
    K2_ASSERT(code == K2_OK);
    return m;
}

static bool records(const uint8_t *bytes, size_t n)
{
    k2m_core *m = recovering();
    k2m_waits waits;
    bool all = n > 0;
    for (size_t at = 0; at + 3 <= n && all;) {
        const uint32_t type = bytes[at];
        size_t len = (size_t)bytes[at + 1] | (size_t)bytes[at + 2] << 8;
        at += 3;
        len = K2_MIN(len, n - at);
        void *copy = k2_alloc_aligned(8, len);
        if (len) memcpy(copy, bytes + at, len);
        const k2_code code = k2m_core_apply(m, type, copy, len, NULL);
        K2_ASSERT(code == K2_OK || code == K2_CORRUPT || code == K2_BAD_INPUT);
        all = code == K2_OK; /* recovery ends at the first that is refused */
        k2_free(copy);
        at += len;
    }
    if (all) k2m_core_waits(m, 1, &waits);
    for (uint64_t group = 0; group < 4 && all; group++) K2_ASSERT(k2m_core_prompt_of(m, group) < 2);
    k2m_core_free(m);
    return all;
}

const k2_parser k2_parsers[] = {
    {.name = "records of a master", .take = records},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
