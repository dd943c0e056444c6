/* bench - what the files of this bench share. */
#ifndef K2_TESTS_BENCH_KERNEL_BENCH_H
#define K2_TESTS_BENCH_KERNEL_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/model/model.h"

/* Seconds now: processor time of the process, where one thread works, for it stands on a busy machine too; else of the clock. */
double bench_seconds(uint32_t threads);
double bench_median(double *v, size_t n); /* sorts v */
float *bench_numbers(size_t n);           /* 64-byte aligned, in [-0.5, 0.5); k2_free */

/* Operations a second that fused multiply-adds on registers reach now, one thread; with bf16 vdpbf16ps, where the machine has it. */
double bench_peak(bool bf16);
const char *bench_peak_name(bool bf16);

void bench_products(bool bf16, uint32_t threads);
void bench_model(const char *name, const char *path, k2_compute compute, uint32_t threads);

/* ---- somebody else's product: y [m,n] = x W', W [n,k] row-major; or one of the backward's forms */
typedef enum bench_form { BENCH_Y, BENCH_DX, BENCH_DW } bench_form; /* x W';  dy W;  += dy' x */

/* With bf16 A and B are bf16 numbers already, which we still have to round. */
typedef struct bench_rival {
    const char *name;
    void *(*begin)(bench_form form, bool bf16, size_t m, size_t n, size_t k, uint32_t threads); /* NULL: does not do this */
    void (*run)(void *product, const void *a, const void *b, float *c);
    void (*end)(void *product);
} bench_rival;

extern const bench_rival *const bench_rivals[]; /* ends with NULL */

#endif
