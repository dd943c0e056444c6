/* bf16_linear T N K - the three products of a linear layer in bf16. Reads x [T,K], w [N,K] and dy [T,N] from stdin, f32; writes
 * x rounded to bf16 [T,K] u16, y [T,N], dx [T,K] and dw [N,K], f32. What bf16_linear.py compares with torch. */
#include <stdio.h>
#include <stdlib.h>

#include "common/kernel/kernel.h"

static float *floats(size_t n)
{
    return k2_alloc_aligned(64, n * sizeof(float));
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    size_t T = strtoul(argv[1], NULL, 10), N = strtoul(argv[2], NULL, 10), K = strtoul(argv[3], NULL, 10);
    float *x = floats(T * K), *w = floats(N * K), *dy = floats(T * N), *y = floats(T * N), *dx = floats(T * K),
          *dw = floats(N * K);
    uint16_t *rounded = k2_alloc_array(T * K, sizeof(*rounded)), *fwd = k2_alloc_array(k2_kern_packed_bf16(N, K), sizeof(*fwd)),
             *bwd = k2_alloc_array(k2_kern_packed_bf16(K, N), sizeof(*bwd));
    bool ok = fread(x, sizeof(float), T * K, stdin) == T * K && fread(w, sizeof(float), N * K, stdin) == N * K &&
              fread(dy, sizeof(float), T * N, stdin) == T * N;
    k2_kern_bf16(T * K, x, rounded);
    k2_kern_pack_bf16_nk(w, K, N, K, fwd);
    k2_kern_pack_bf16_kn(w, K, K, N, bwd);
    k2_gemm g = {
        .bf16 = true, .b_form = K2_B_PACKED, .m = T, .n = N, .k = K, .a = x, .lda = K, .b_bf16 = fwd, .c = y, .ldc = N};
    k2_kern_gemm(&g);
    g = (k2_gemm){
        .bf16 = true, .b_form = K2_B_PACKED, .m = T, .n = K, .k = N, .a = dy, .lda = N, .b_bf16 = bwd, .c = dx, .ldc = K};
    k2_kern_gemm(&g);
    g = (k2_gemm){.bf16 = true,
                  .b_form = K2_B_KN,
                  .m = N,
                  .n = K,
                  .k = T,
                  .a = dy,
                  .lda = N,
                  .a_trans = true,
                  .b = x,
                  .ldb = K,
                  .c = dw,
                  .ldc = K};
    k2_kern_gemm(&g);
    ok = ok && fwrite(rounded, sizeof(*rounded), T * K, stdout) == T * K && fwrite(y, sizeof(float), T * N, stdout) == T * N &&
         fwrite(dx, sizeof(float), T * K, stdout) == T * K && fwrite(dw, sizeof(float), N * K, stdout) == N * K;
    k2_free(bwd);
    k2_free(fwd);
    k2_free(rounded);
    k2_free(dw);
    k2_free(dx);
    k2_free(y);
    k2_free(dy);
    k2_free(w);
    k2_free(x);
    return ok ? 0 : 1;
}
