/* Kernels and model against the clock: CSV lines `name,value,unit,ratio,against`.
 *
 *   kernel_bench [products | quickstart | mini | all] [THREADS...]      default: all, with 1 and 2 threads
 *
 * A ratio is the median of ratios measured in turns, a run of ours next to a run of each other, so that a noisy machine
 * disturbs all alike; it is given against the fastest of OpenBLAS and oneDNN. What one thread does is measured by processor
 * time.
 */
#include "tests/bench/kernel/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/kernel/kernel.h"
#include "tests/support/model_dims.h"

#define WARM_NS 250000000u /* a core that idled is slow at first */

double bench_seconds(uint32_t threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), by_value);
    return v[n / 2];
}

float *bench_numbers(size_t n)
{
    float *x = k2_alloc_aligned(64, n * sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = (float)(k2_rand_unit(1, K2_STREAM_TEST, n, i) - 0.5);
    return x;
}

/* OpenBLAS and OpenMP read these when they load; an environment that forces an old processor would make the comparison a gift
 * to us. */
static void environment_clear(char **argv)
{
    static const char *const names[] = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA",
                                        "DNNL_MAX_CPU_ISA"};
    bool found = false;
    for (size_t i = 0; i < K2_COUNT(names); i++) {
        if (!getenv(names[i])) continue;
        found = true;
        unsetenv(names[i]);
    }
    if (found) execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    static const uint32_t usual[] = {1, 2};
    environment_clear(argv);
    const char *what = argc > 1 ? argv[1] : "all";
    bool all = strcmp(what, "all") == 0;
    size_t turns = argc > 2 ? (size_t)argc - 2 : K2_COUNT(usual);
    printf("name,value,unit,ratio,against\n");
    for (uint64_t from = k2_now_ns(); k2_now_ns() - from < WARM_NS;) (void)bench_peak(false);
    for (int bf16 = 0; bf16 < 2; bf16++) printf("%s_peak,%.1f,GFLOP/s,,\n", bf16 ? "bf16" : "fma", bench_peak(bf16) * 1e-9);
    for (size_t i = 0; i < turns; i++) {
        uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[i + 2], NULL, 10) : usual[i];
        if (threads < 1 || threads > K2_TEAM_THREADS_MAX) {
            fprintf(stderr, "kernel_bench: '%s' is not a number of threads from 1 to %u\n", argv[i + 2], K2_TEAM_THREADS_MAX);
            return 2;
        }
        for (int bf16 = 0; bf16 < 2; bf16++)
            if (all || strcmp(what, "products") == 0) bench_products(bf16, threads);
        if (all || strcmp(what, "quickstart") == 0) bench_model("quickstart", MODEL_QUICKSTART, K2_COMPUTE_F32, threads);
        if (all || strcmp(what, "mini") == 0) bench_model("mini", MODEL_MINI, K2_COMPUTE_F32, threads);
        if (all || strcmp(what, "mini") == 0) bench_model("mini_bf16", MODEL_MINI, K2_COMPUTE_BF16, threads);
    }
    return 0;
}
