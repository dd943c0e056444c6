/* write_int - one safetensors file, written piece by piece, and the narrowing of f32 to what is stored. */
#ifndef K2_WEIGHTS_WRITE_INT_H
#define K2_WEIGHTS_WRITE_INT_H

#include "common/weights/weights.h"

#define K2I_DIGEST_KEY "k2rl_digest" /* in a file's metadata: the digest of its data, 32 hex digits */

typedef struct k2i_written {
    const char *name;
    k2_dtype dtype;
    k2_shape shape;
} k2i_written;

uint64_t k2i_written_bytes(const k2i_written *t); /* asserts that they fit 64 bits */

/* A file that comes to be under a temporary name. Its tensors' bytes are put in order, in pieces of any length. */
typedef struct k2i_writer k2i_writer;
/* The tensors and their names must live until end. */
k2_code k2i_writer_begin(const char *path, const k2i_written *tensors, size_t count, k2i_writer **out, k2_error *err);
k2_code k2i_writer_put(k2i_writer *w, const void *bytes, uint64_t n, k2_error *err);
/* With OK the file is made durable and gets its name; with anything else it goes, and the code comes back. Frees w. */
k2_code k2i_writer_end(k2i_writer *w, k2_code code, k2_error *err);

/* Finite f32 to F32, BF16 or F16, to nearest, ties to even. How many fitted: below n, the one after them is NaN, infinite or
 * too large. */
uint64_t k2i_narrow(k2_dtype dtype, const float *in, uint64_t n, unsigned char *out);

#endif
