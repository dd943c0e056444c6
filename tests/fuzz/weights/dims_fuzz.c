/* Any bytes as a config.json; what is taken must write and read back to the same text.
 *     build/fuzz/dims_fuzz tests/fuzz/weights/corpus_dims */
#include "common/weights/weights.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k2_dims dims, back;
    k2_error err;
    if (k2_weights_dims_parse("fuzz", (const char *)data, size, &dims, &err) != K2_OK) return 0;
    k2_buf first, second;
    k2_buf_init(&first, 1u << 16);
    k2_buf_init(&second, 1u << 16);
    k2_weights_dims_encode(&dims, &first);
    K2_ASSERT(k2_weights_dims_parse("again", first.data, first.len, &back, &err) == K2_OK);
    k2_weights_dims_encode(&back, &second);
    K2_ASSERT(strcmp(first.data, second.data) == 0);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return 0;
}
