/* Any bytes into the decoder; what it takes must encode and decode to the same bytes again.
 *     build/fuzz/wire_fuzz tests/fuzz/wire/corpus */
#include "common/wire/wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    k2_msg msg, again;
    if (k2_wire_decode(data, size, &msg, NULL) != K2_OK) return 0;
    k2_buf first, second;
    k2_buf_init(&first, K2_WIRE_BYTES_MAX);
    k2_buf_init(&second, K2_WIRE_BYTES_MAX);
    K2_ASSERT(k2_wire_encode(&msg, &first, NULL) == K2_OK);
    K2_ASSERT(k2_wire_decode(first.data, first.len, &again, NULL) == K2_OK);
    K2_ASSERT(k2_wire_encode(&again, &second, NULL) == K2_OK);
    K2_ASSERT(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
    k2_msg_free(&msg);
    k2_msg_free(&again);
    k2_buf_fini(&first);
    k2_buf_fini(&second);
    return 0;
}
