/* idx_int - the layout of an .idx file, for the reader and the builder. */
#ifndef K2_DATA_IDX_INT_H
#define K2_DATA_IDX_INT_H

#include "common/data/data.h"

#define K2I_IDX_MAGIC         "MMIDIDX\0" /* with the literal's own terminator: nine bytes */
#define K2I_IDX_MAGIC_BYTES   9u
#define K2I_IDX_VERSION       1u
#define K2I_IDX_HEADER_BYTES  34u
#define K2I_IDX_AT_VERSION    9u
#define K2I_IDX_AT_DTYPE      17u
#define K2I_IDX_AT_SEQUENCES  18u
#define K2I_IDX_AT_BOUNDARIES 26u
#define K2I_IDX_LENGTH_BYTES  4u /* of a sequence, then 8 for its offset, then 8 for each boundary */
#define K2I_IDX_OFFSET_BYTES  8u

/* Bytes of one element, 0 for a code that is no integer type. */
uint32_t k2i_idx_dtype_bytes(unsigned code);
const char *k2i_idx_dtype_name(unsigned code);
bool k2i_idx_dtype_holds(k2_idx_dtype dtype, int64_t value);

#endif
