/* The replay buffer's records, as they come out of a journal: each is taken or refused, and a snapshot of what came out is the
 * same state again. The input is records back to back: a byte of type, two bytes of length, the bytes. */
#include <string.h>

#include "replay/replay.h"
#include "tests/fuzz/harness/parser.h"

static const k2_replay_config config = {
    .groups_max = 3, .group_size_max = 3, .trajectory_tokens_max = 70, .prompt_tokens_max = 9, .tokens_max = 3 * 64 * 7};

enum { SNAPSHOT_BEGIN = 13, SNAPSHOT_END = 16 }; /* types of records */

/* Records come from LMDB 8-byte aligned and with nothing of ours behind them. */
static k2_code apply(k2_replay *r, uint32_t type, const void *bytes, size_t len)
{
    void *copy = k2_alloc_aligned(8, len);
    if (len) memcpy(copy, bytes, len);
    const k2_code code = k2_replay_apply(r, type, copy, len, NULL);
    k2_free(copy);
    return code;
}

static void follow(void *arg, uint32_t type, const void *bytes, size_t len)
{
    const k2_code code = apply(arg, type, bytes, len);
    K2_ASSERT(code == K2_OK);
}

static void check_snapshot(k2_replay *r, k2_replay *copy)
{
    const k2_digest before = k2_replay_digest(r);
    k2_replay_sink_set(r, (k2_replay_sink){.record = follow, .arg = copy});
    k2_replay_snapshot(r);
    K2_ASSERT(k2_digest_equal(before, k2_replay_digest(copy)));
}

static bool records(const uint8_t *bytes, size_t n)
{
    k2_replay *r, *copy;
    const bool made = k2_replay_new(&config, &r, NULL) == K2_OK && k2_replay_new(&config, &copy, NULL) == K2_OK;
    K2_ASSERT(made);
    bool all = true, whole = true; /* a snapshot that was begun and not ended leaves no state to copy */
    for (size_t at = 0; at + 3 <= n;) {
        const uint32_t type = bytes[at];
        size_t len = (size_t)bytes[at + 1] | (size_t)bytes[at + 2] << 8;
        at += 3;
        len = K2_MIN(len, n - at);
        const k2_code code = apply(r, type, bytes + at, len);
        K2_ASSERT(code == K2_OK || code == K2_CORRUPT || code == K2_BAD_INPUT);
        all = all && code == K2_OK;
        if (code == K2_OK && type == SNAPSHOT_BEGIN) whole = false;
        if (code == K2_OK && type == SNAPSHOT_END) whole = true;
        at += len;
    }
    k2_replay_work work;
    (void)k2_replay_next(r, 2, &work);
    if (whole) check_snapshot(r, copy);
    k2_replay_free(r);
    k2_replay_free(copy);
    return all;
}

const k2_parser k2_parsers[] = {
    {.name = "records of the replay buffer", .take = records},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
