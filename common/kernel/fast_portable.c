/* The bodies in plain C: what runs where nothing better is known. Same bits, through fmaf. */
#define K2I_LEVEL 0
#include "common/kernel/gemm_body_int.h"
#include "common/kernel/gemm_bf16_body_int.h"
#include "common/kernel/rows_body_int.h"
#include "common/kernel/attn_body_int.h"
#include "common/kernel/fast_table_int.h"

const k2i_kern_ops k2i_kern_portable = K2I_FAST_TABLE("portable", fast);
