/* The bodies over AVX2 and FMA; CMake gives this file the flags. Nothing of it runs before the machine was asked. */
#include "common/kernel/kernel_int.h"

#if defined(__AVX2__) && defined(__FMA__)
#define K2I_LEVEL 2
#include "common/kernel/gemm_body_int.h"
#include "common/kernel/gemm_bf16_body_int.h"
#include "common/kernel/rows_body_int.h"
#include "common/kernel/attn_body_int.h"
#include "common/kernel/fast_table_int.h"

static const k2i_kern_ops table = K2I_FAST_TABLE("avx2", fast);
const k2i_kern_ops *const k2i_kern_avx2 = &table;
#else
const k2i_kern_ops *const k2i_kern_avx2 = NULL;
#endif
