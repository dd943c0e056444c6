/* What the machine could do at most: fused multiply-adds on registers, as wide as it has them, ten chains to hide their
 * latency; or vdpbf16ps likewise. */
#include "tests/bench/kernel/bench.h"

#include "common/kernel/kernel.h"

enum { CHAINS = 10, ROUNDS = 200000 };

#if defined(__x86_64__)
/* All registers begin at zero: no operand is ever slow. `r` is the letter of the width, zmm or ymm. */
#define ZERO(n)   "vxorps %%xmm" #n ", %%xmm" #n ", %%xmm" #n "\n"
#define FMA(r, n) "vfmadd231ps %%" r "10, %%" r "10, %%" r #n "\n"
#define TEN(X)    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9)
#define FMA_Z(n)  FMA("zmm", n)
#define FMA_Y(n)  FMA("ymm", n)
#define DOT(n)    "vdpbf16ps %%zmm10, %%zmm10, %%zmm" #n "\n"
#define CHAIN_LOOP(fmas)                                                                                                       \
    long rounds = ROUNDS;                                                                                                      \
    __asm__ volatile(TEN(ZERO) ZERO(10) "1:\n" TEN(fmas) "dec %0\njnz 1b\nvzeroupper\n"                                        \
                     : "+r"(rounds)                                                                                            \
                     :                                                                                                         \
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "cc")

static double run_avx512(void)
{
    CHAIN_LOOP(FMA_Z);
    return 2.0 * 16 * CHAINS * ROUNDS;
}

static double run_bf16(void)
{
    CHAIN_LOOP(DOT);
    return 2.0 * 32 * CHAINS * ROUNDS;
}

static double run_avx2(void)
{
    CHAIN_LOOP(FMA_Y);
    return 2.0 * 8 * CHAINS * ROUNDS;
}
#endif

static double run_plain(void)
{
    static volatile float sink;
    float x[CHAINS] = {0}, by = sink;
    for (int i = 0; i < ROUNDS; i++)
        for (int c = 0; c < CHAINS; c++) x[c] = x[c] * by + by;
    for (int c = 0; c < CHAINS; c++) sink += x[c];
    return 2.0 * CHAINS * ROUNDS;
}

double bench_peak(bool bf16)
{
    double (*run)(void) = run_plain;
#if defined(__x86_64__)
    if (k2_kern_isa() >= K2_ISA_AVX512) run = run_avx512;
    if (k2_kern_isa() == K2_ISA_AVX2) run = run_avx2;
    if (k2_kern_isa() == K2_ISA_AVX512BF16 && bf16) run = run_bf16;
#endif
    double start = bench_seconds(1), flop = run();
    return flop / (bench_seconds(1) - start);
}

const char *bench_peak_name(bool bf16)
{
    return k2_kern_isa() == K2_ISA_AVX512BF16 && bf16 ? "bf16 peak" : "fma peak";
}
