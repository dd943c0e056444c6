/* file_int - parts of a tensor, mapped pages given back, names made durable. */
#ifndef K2_WEIGHTS_FILE_INT_H
#define K2_WEIGHTS_FILE_INT_H

#include "common/weights/weights.h"

/* UNSUPPORTED where k2_weights_tensor_f32 does not know the type. */
k2_code k2i_loadable(const k2_weights_tensor *t, k2_error *err);
/* k2_weights_tensor_f32 for elements first to first + count - 1. */
k2_code k2i_tensor_part(const k2_weights_tensor *t, uint64_t first, uint64_t count, float *out, k2_error *err);
/* NOT_FINITE where one of the values, elements of t from first on, is not finite. */
k2_code k2i_finite_check(const k2_weights_tensor *t, uint64_t first, const float *values, uint64_t count, k2_error *err);
/* Makes the name of a file or directory durable. */
k2_code k2i_parent_sync(const char *path, k2_error *err);

#endif
