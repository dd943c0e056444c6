/* model_int - what the files of this folder share: numbers of the weights. */
#ifndef K2_COMMON_MODEL_INT_H
#define K2_COMMON_MODEL_INT_H

#include "common/model/model.h"

/* One number for each row of K2_MODEL_WEIGHTS, in its order. */
enum {
#define K2_X(id, where, kind, rows, cols, name) K2I_W_##id,
    K2_MODEL_WEIGHTS(K2_X)
#undef K2_X
    K2I_WEIGHT_COUNT
};

bool k2i_weight_exists(const k2_dims *d, k2_weight_where where, uint32_t layer);

#endif
