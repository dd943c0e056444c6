/* How a vector is split over ranks. */
#include "common/coll/coll.h"

k2_coll_range k2_coll_split(uint64_t count, uint32_t ranks, uint32_t rank, uint64_t align)
{
    K2_ASSERT(ranks > 0 && rank < ranks && align > 0);
    uint64_t blocks = count / align + (count % align != 0);
    uint64_t each = blocks / ranks, more = blocks % ranks;
    uint64_t first = each * rank + K2_MIN(rank, more);
    uint64_t last = first + each + (rank < more);
    return (k2_coll_range){.begin = K2_MIN(first * align, count), .end = K2_MIN(last * align, count)};
}
