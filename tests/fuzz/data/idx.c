/* Megatron's .idx: the first eight bytes say how long .bin is, the rest is the file. What passes the check adds up. */
#include "common/data/data.h"
#include "tests/fuzz/harness/parser.h"

static bool idx(const uint8_t *bytes, size_t n)
{
    k2_error err;
    if (n < 8) return false;
    const uint64_t bin_bytes = k2_load_u64le(bytes);
    const uint8_t *file = bytes + 8;
    const k2_code code = k2_idx_check("idx", file, n - 8, bin_bytes, &err);
    K2_ASSERT(code == K2_OK || (err.code == code && err.text[0]));
    if (code != K2_OK) return false;
    const uint64_t sequences = k2_load_u64le(file + 18);
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < sequences; i++) tokens += k2_load_u32le(file + 34 + 4 * i);
    K2_ASSERT(bin_bytes == 0 || (tokens > 0 && bin_bytes % tokens == 0));
    return true;
}

const k2_parser k2_parsers[] = {
    {.name = ".idx", .take = idx, .prefixes_refused = true},
};
const size_t k2_parsers_count = K2_COUNT(k2_parsers);
