/* tiny - a model of the smallest size for these tests. */
#ifndef K2_TESTS_ROLLOUT_TINY_INT_H
#define K2_TESTS_ROLLOUT_TINY_INT_H

#include "common/model/model.h"
#include "tests/support/tiny_dims.h"

/* Large weights, so that the next token is neither certain nor arbitrary. */
static inline k2_model *tiny_model(uint64_t seed, uint32_t threads)
{
    k2_dims dims = tiny_dims();
    k2_error err;
    k2_model *m = k2_model_new(&dims, K2_COMPUTE_F32, threads, &err);
    K2_ASSERT(m);
    k2_model_init(m, seed, 0.4);
    return m;
}

#endif
