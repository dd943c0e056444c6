/* batch - the trajectories of one training step as one flat run of bytes, from master to trainers.
 *
 * Everything is little-endian and 4-byte aligned; a reader looks into the bytes in place. The order is that of trajectory ids,
 * so equal content means equal bytes and an equal digest, whichever process encodes it.
 *
 *     header     64   magic "K2BATCH1", u64 step, u64 total bytes, u32 trajectories, u32 groups, u64 token ids, u64 generated,
 *                     digest (u64 hi, u64 lo) of the bytes behind the header
 *     table      72 each   u64 id, u64 group, f32 reward, f32 group mean, f32 group deviation, u32 group size,
 *                     u32 prompt tokens, u32 generated, u32 first span, u32 spans, u32 finish, u32 first generated, u64 first
 *                     id, u64 prompt number
 *     spans      12 each   u32 version, u32 start, u32 end     (positions within the generated tokens)
 *     ids        4 each    i32: prompt then generated, trajectory after trajectory
 *     log-probs  4 each    f32: of the generated tokens, trajectory after trajectory
 *     versions   4 each    u32: likewise
 *
 * Lifetime: a k2_batch and the views that it gives point into the bytes that were decoded; keep those.
 */
#ifndef K2_COMMON_WIRE_BATCH_H
#define K2_COMMON_WIRE_BATCH_H

#include "common/base/base.h"

#define K2_BATCH_HEADER_BYTES 64u
#define K2_BATCH_TRAJECTORIES_MAX (1u << 20)
#define K2_BATCH_TOKENS_MAX (1u << 20) /* of one trajectory, prompt and generated each */

typedef enum k2_batch_finish { K2_BATCH_STOP = 1, K2_BATCH_LENGTH = 2, K2_BATCH_REPETITION = 3 } k2_batch_finish;

typedef struct k2_batch_span {
    uint32_t version, start, end; /* tokens [start, end) of the generated ones */
} k2_batch_span;

typedef struct k2_batch_trajectory {
    uint64_t id, group, prompt;
    float reward;
    float group_mean; /* over the scored members of the group, accumulated in f64 in order of id */
    float group_std;  /* population deviation of the same; 0 when all are equal */
    uint32_t group_size; /* scored members: what is in this batch of the group */
    uint32_t prompt_tokens, generated_tokens;
    k2_batch_finish finish;
    const int32_t *tokens;    /* [prompt_tokens + generated_tokens] */
    const float *logps;       /* [generated_tokens], as the engine reported them */
    const uint32_t *versions; /* [generated_tokens] */
    const k2_batch_span *spans;
    uint32_t span_count;
} k2_batch_trajectory;

typedef struct k2_batch {
    uint64_t step; /* the version that this batch makes; tokens of version step - 1 are on-policy */
    uint32_t trajectories, groups;
    uint64_t tokens, generated; /* sums: all token ids, generated ones */
    k2_digest digest;
    const unsigned char *bytes;
    size_t len;
} k2_batch;

/* k2_batch_encode - `count` trajectories with rising ids into `out` (appended).
 *
 * memory   group_mean, group_std, group_size, spans and span_count of the input are ignored: they are computed here from
 *          rewards and versions
 * errors   ids that do not rise, sizes above the limits are asserted; NO_MEMORY where out's cap is too small; count may be 0
 * tests    tests/unit/wire/batch_test.c
 */
k2_code k2_batch_encode(uint64_t step, const k2_batch_trajectory *list, uint32_t count, k2_buf *out, k2_error *err);

/* Bytes that k2_batch_encode makes for such sums (`spans` in all). */
uint64_t k2_batch_bytes(uint64_t trajectories, uint64_t spans, uint64_t tokens, uint64_t generated);

/* k2_batch_decode - check everything (sums, order, spans against versions, finite numbers, digest) and give a view.
 *
 * memory   bytes must be 8-byte aligned and outlive the view
 * errors   CORRUPT "batch: ..." ; nothing is read past `len`
 */
k2_code k2_batch_decode(const void *bytes, size_t len, k2_batch *out, k2_error *err);

/* Trajectory i < batch.trajectories. Constant time. */
void k2_batch_get(const k2_batch *b, uint32_t i, k2_batch_trajectory *out);

#endif
