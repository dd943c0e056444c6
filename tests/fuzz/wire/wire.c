/* Control messages and batches. What is taken encodes and decodes to the same bytes again. */
#include <string.h>

#include "common/wire/batch.h"
#include "common/wire/wire.h"
#include "tests/fuzz/harness/parser.h"

static bool message(const uint8_t *bytes, size_t n)
{
    k2_msg msg, again;
    k2_error err;
    k2_code code = k2_wire_decode(bytes, n, &msg, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && err.text[0]));
    if (code != K2_OK) return false;
    k2_buf first, second;
    k2_buf_init(&first, K2_WIRE_BYTES_MAX);
    k2_buf_init(&second, K2_WIRE_BYTES_MAX);
    code = k2_wire_encode(&msg, &first, NULL);
    K2_ASSERT(code == K2_OK);
    code = k2_wire_decode(first.data, first.len, &again, NULL);
    K2_ASSERT(code == K2_OK);
    code = k2_wire_encode(&again, &second, NULL);
    K2_ASSERT(code == K2_OK && first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    k2_msg_free(&msg);
    k2_msg_free(&again);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return true;
}

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

static bool batch(const uint8_t *bytes, size_t n)
{
    k2_batch b;
    if (k2_batch_decode(bytes, n, &b, NULL) != K2_OK) return false;
    k2_batch_trajectory *list = k2_alloc_array(b.trajectories, sizeof *list);
    k2_buf again;
    read_all(&b, list);
    k2_buf_init(&again, n);
    const k2_code code = k2_batch_encode(b.step, list, b.trajectories, &again, NULL);
    K2_ASSERT(code == K2_OK && again.len == n); /* group statistics may differ: they are computed anew from rewards */
    k2_buf_fini(&again);
    k2_free(list);
    return true;
}

/* Under a length and a digest that are made right, else nothing would reach the checks behind them. */
static bool batch_mended(const uint8_t *bytes, size_t n)
{
    if (n < K2_BATCH_HEADER_BYTES) return batch(bytes, n);
    unsigned char *copy = k2_alloc_aligned(8, n);
    memcpy(copy, bytes, n);
    k2_store_u64le(copy + 16, n);
    const k2_digest d = k2_digest_of(copy + K2_BATCH_HEADER_BYTES, n - K2_BATCH_HEADER_BYTES);
    k2_store_u64le(copy + 48, d.hi);
    k2_store_u64le(copy + 56, d.lo);
    const bool taken = batch(copy, n);
    k2_free(copy);
    return taken;
}

const k2_parser k2_parsers[] = {
    {.name = "message", .take = message, .prefixes_refused = true},
    {.name = "batch", .take = batch, .prefixes_refused = true, .align = 8},
    {.name = "batch with a right digest", .take = batch_mended, .prefixes_refused = true, .align = 8},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
