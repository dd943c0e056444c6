/* Any bytes as a manifest, and as the header of a segment. What is taken must encode and decode to the same again.
 *     build/fuzz/manifest_fuzz tests/fuzz/weights/corpus_manifest */
#include "common/weights/weights.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void header(const uint8_t *data, size_t size)
{
    k2_weights_segment s;
    unsigned char back[K2_WEIGHTS_SEGMENT_HEADER_BYTES];
    if (size < sizeof back + 8) return;
    if (k2_weights_segment_decode(data, k2_load_u64le(data + sizeof back), &s, NULL) != K2_OK) return;
    k2_weights_segment_encode(&s, back);
    K2_ASSERT(memcmp(back, data, sizeof back) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k2_weights_manifest *m = NULL, *again = NULL;
    header(data, size);
    if (k2_weights_manifest_decode((const char *)data, size, &m, NULL) != K2_OK) return 0;
    k2_buf first, second;
    k2_buf_init(&first, 1u << 24);
    k2_buf_init(&second, 1u << 24);
    k2_weights_manifest_encode(m, &first);
    K2_ASSERT(k2_weights_manifest_decode(first.data, first.len, &again, NULL) == K2_OK);
    k2_weights_manifest_encode(again, &second);
    K2_ASSERT(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    k2_weights_manifest_free(m);
    k2_weights_manifest_free(again);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return 0;
}
