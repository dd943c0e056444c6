/* pack - whole sequences, in order, into micro-batches. See pack_int.h. */
#include "trainer/pack_int.h"

static k2_code lengths_check(const uint32_t *lengths, uint32_t n, uint32_t micro_tokens, uint64_t *total, k2_error *err)
{
    *total = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (lengths[i] == 0) return k2_error_set(err, K2_BAD_INPUT, "sequence %u of the batch is empty", i);
        if (lengths[i] > micro_tokens)
            return k2_error_set(err, K2_LIMIT, "sequence %u of the batch has %u tokens, trainer.micro_tokens is %u; raise it",
                                i, lengths[i], micro_tokens);
        *total += lengths[i];
    }
    return K2_OK;
}

k2_code k2i_pack(const uint32_t *lengths, uint32_t n, uint32_t micro_tokens, uint32_t lanes, k2i_micro *out, uint32_t *count,
                 k2_error *err)
{
    K2_ASSERT(lanes >= 1);
    uint64_t total, done = 0;
    k2_code code = lengths_check(lengths, n, micro_tokens, &total, err);
    if (code != K2_OK) return code;
    uint64_t round = (uint64_t)lanes * micro_tokens, pieces = lanes * ((total + round - 1) / round);
    uint32_t used = 0;
    for (uint32_t i = 0; i < n; i++) {
        /* Piece k should end where k+1 of `pieces` equal shares are done; the cap wins over that. */
        bool open = used > 0 && out[used - 1].tokens + (uint64_t)lengths[i] <= micro_tokens && done * pieces < total * used;
        if (!open) out[used++] = (k2i_micro){.first = i};
        out[used - 1].count++;
        out[used - 1].tokens += lengths[i];
        done += lengths[i];
    }
    *count = used;
    return K2_OK;
}
