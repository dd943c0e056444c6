/* The bodies over AVX-512F; CMake gives this file the flags. Nothing of it runs before the machine was asked. */
#include "common/kernel/kernel_int.h"

#if defined(__AVX512F__)
#define K2I_LEVEL 512
#include "common/kernel/gemm_body_int.h"
#include "common/kernel/gemm_bf16_body_int.h"
#include "common/kernel/rows_body_int.h"
#include "common/kernel/attn_body_int.h"
#include "common/kernel/fast_table_int.h"

static void native_gemm_bf16(const k2_gemm *g)
{
    k2i_native_gemm_bf16(g);
}

static void native_bf16(size_t n, const float *x, uint16_t *y)
{
    k2i_native_bf16(n, x, y);
}

static const k2i_kern_ops table = K2I_FAST_TABLE("avx512", fast);
static const k2i_kern_ops table_bf16 = K2I_FAST_TABLE("avx512bf16", native);
const k2i_kern_ops *const k2i_kern_avx512 = &table, *const k2i_kern_avx512bf16 = &table_bf16;
#else
const k2i_kern_ops *const k2i_kern_avx512 = NULL, *const k2i_kern_avx512bf16 = NULL;
#endif
