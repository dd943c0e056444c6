/* Any bytes into the batch decoder, under a digest that is made right so that the checks behind it are reached; what it takes
 * is read to the last token, and encodes to the same bytes again. build/fuzz/batch_fuzz tests/fuzz/batch/corpus */
#include "common/wire/batch.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const k2_batch *b, k2_batch_trajectory *list)
{
    double sum = 0;
    for (uint32_t i = 0; i < b->trajectories; i++) {
        k2_batch_get(b, i, &list[i]);
        for (uint32_t k = 0; k < list[i].prompt_tokens + list[i].generated_tokens; k++) sum += list[i].tokens[k];
        for (uint32_t k = 0; k < list[i].generated_tokens; k++) sum += (double)list[i].logps[k] + list[i].versions[k];
        for (uint32_t k = 0; k < list[i].span_count; k++) sum += list[i].spans[k].end;
    }
    static volatile double sink;
    sink = sum;
    (void)sink;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *bytes = k2_alloc_aligned(8, size);
    if (size) memcpy(bytes, data, size);
    if (size >= K2_BATCH_HEADER_BYTES) {
        k2_store_u64le(bytes + 16, size);
        k2_digest d = k2_digest_of(bytes + K2_BATCH_HEADER_BYTES, size - K2_BATCH_HEADER_BYTES);
        k2_store_u64le(bytes + 48, d.hi);
        k2_store_u64le(bytes + 56, d.lo);
    }
    k2_batch b;
    if (k2_batch_decode(bytes, size, &b, NULL) == K2_OK) {
        k2_batch_trajectory *list = k2_alloc_array(b.trajectories, sizeof *list);
        read_all(&b, list);
        k2_buf again;
        k2_buf_init(&again, size);
        K2_ASSERT(k2_batch_encode(b.step, list, b.trajectories, &again, NULL) == K2_OK);
        K2_ASSERT(again.len == size); /* group statistics may differ: they are computed anew from rewards */
        k2_buf_fini(&again);
        k2_free(list);
    }
    k2_free(bytes);
    return 0;
}
