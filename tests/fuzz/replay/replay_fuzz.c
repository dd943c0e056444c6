/* Any records into a replay buffer that recovers: each is taken or refused, and a snapshot of what came out is the same state
 * again. The input is records back to back: a byte of type, two bytes of length, the bytes. build/fuzz/replay_fuzz
 * tests/fuzz/replay/corpus */
#include "replay/replay.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const k2_replay_config config = {
    .groups_max = 3, .group_size_max = 3, .trajectory_tokens_max = 70, .prompt_tokens_max = 9, .tokens_max = 3 * 64 * 7};

static void follow(void *arg, uint32_t type, const void *bytes, size_t len)
{
    void *copy = k2_alloc(len + 8);
    if (len) memcpy(copy, bytes, len);
    K2_ASSERT(k2_replay_apply(arg, type, copy, len, NULL) == K2_OK);
    k2_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k2_replay *r, *copy;
    K2_ASSERT(k2_replay_new(&config, &r, NULL) == K2_OK && k2_replay_new(&config, &copy, NULL) == K2_OK);
    bool whole = true; /* a snapshot that was begun and not ended leaves no state to copy */
    for (size_t at = 0; at + 3 <= size;) {
        uint32_t type = data[at];
        size_t len = (size_t)data[at + 1] | (size_t)data[at + 2] << 8;
        at += 3;
        len = K2_MIN(len, size - at);
        void *bytes = k2_alloc(len + 8);
        if (len) memcpy(bytes, data + at, len);
        k2_code code = k2_replay_apply(r, type, bytes, len, NULL);
        K2_ASSERT(code == K2_OK || code == K2_CORRUPT || code == K2_BAD_INPUT);
        if (code == K2_OK && type == 13) whole = false;
        if (code == K2_OK && type == 16) whole = true;
        k2_free(bytes);
        at += len;
    }
    k2_replay_work work;
    (void)k2_replay_next(r, 2, &work);
    if (whole) {
        k2_digest before = k2_replay_digest(r);
        k2_replay_sink_set(r, (k2_replay_sink){.record = follow, .arg = copy});
        k2_replay_snapshot(r);
        K2_ASSERT(k2_digest_equal(before, k2_replay_digest(copy)));
    }
    k2_replay_free(r);
    k2_replay_free(copy);
    return 0;
}
