/* The product of bf16 pairs by the instruction that is made for it; CMake gives this file the flags. All else of that path is
 * AVX-512's. Nothing of it runs before the machine was asked. */
#include "common/kernel/kernel_int.h"

#if defined(__AVX512BF16__)
#define K2I_LEVEL       512
#define K2I_BF16_NATIVE 1
#include "common/kernel/gemm_bf16_body_int.h"

void (*const k2i_native_gemm_bf16)(const k2_gemm *g) = fast_gemm_bf16;
void (*const k2i_native_bf16)(size_t n, const float *x, uint16_t *y) = fast_bf16;
#else
void (*const k2i_native_gemm_bf16)(const k2_gemm *g) = NULL;
void (*const k2i_native_bf16)(size_t n, const float *x, uint16_t *y) = NULL;
#endif
