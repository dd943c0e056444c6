/* Any bytes as an .idx: the first eight say how long .bin is, the rest is the file. What passes the check adds up.
 *     build/fuzz/idx_fuzz tests/fuzz/data/corpus_idx */
#include "common/data/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 8) return 0;
    const uint64_t bin_bytes = k2_load_u64le(data);
    const uint8_t *idx = data + 8;
    if (k2_idx_check("fuzz", idx, size - 8, bin_bytes, NULL) != K2_OK) return 0;
    const uint64_t sequences = k2_load_u64le(idx + 18);
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < sequences; i++) tokens += k2_load_u32le(idx + 34 + 4 * i);
    K2_ASSERT(bin_bytes == 0 || (tokens > 0 && bin_bytes % tokens == 0));
    return 0;
}
