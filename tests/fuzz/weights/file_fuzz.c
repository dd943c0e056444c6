/* Any bytes as a safetensors file; every tensor of what is taken lies inside it and can be read.
 *     build/fuzz/file_fuzz tests/fuzz/weights/corpus_file */
#include "common/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k2_weights_file *f = NULL;
    uint64_t bytes = 0;
    if (k2_weights_file_parse("fuzz", data, size, &f, NULL) != K2_OK) return 0;
    for (size_t i = 0; i < k2_weights_file_count(f); i++) {
        const k2_weights_tensor *t = k2_weights_file_at(f, i);
        const uint8_t *begin = t->data;
        K2_ASSERT(begin >= data && t->bytes <= (uint64_t)(data + size - begin));
        K2_ASSERT(k2_weights_file_find(f, t->name) == t);
        float *values = k2_alloc_array(t->bytes / k2_dtype_bytes(t->dtype), sizeof *values);
        k2_weights_tensor_f32(t, values, NULL);
        k2_free(values);
        bytes += t->bytes;
    }
    K2_ASSERT(bytes == size - 8 - k2_load_u64le(data));
    k2_weights_file_close(f);
    return 0;
}
