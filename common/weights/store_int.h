/* store_int - tensors of any origin as the weights of a model directory: one file, or shards and an index. */
#ifndef K2_WEIGHTS_STORE_INT_H
#define K2_WEIGHTS_STORE_INT_H

#include "common/weights/weights.h"

#define K2I_QUANT_BLOCK 128u /* rows and columns of the blocks that we write: Kimi-K2's */

/* A tensor to be written. With `copy` its bytes are kept as they are, else it is read as f32 and stored as the format says. */
typedef struct k2i_source {
    const char *name;
    k2_shape shape;
    k2_dtype dtype; /* of copy */
    const void *copy;
    k2_code (*read)(const struct k2i_source *s, uint64_t first, uint64_t count, float *out, k2_error *err);
    const void *owner, *part; /* what read needs */
} k2i_source;

typedef struct k2i_progress {
    k2_weights_progress *call; /* NULL: nobody asks */
    void *arg;
} k2i_progress;

/* What the files will take, headers aside. */
uint64_t k2i_store_bytes(const k2i_source *sources, size_t count, const k2_weights_format *format);
/* Shards first, the index last. Errors as k2_weights_dir_save. */
k2_code k2i_store_write(const char *dir, const k2i_source *sources, size_t count, const k2_weights_format *format,
                        k2i_progress progress, k2_error *err);

#endif
