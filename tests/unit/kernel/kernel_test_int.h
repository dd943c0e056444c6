/* kernel_test_int - numbers and comparisons that the kernel tests share. */
#ifndef K2_TESTS_KERNEL_TEST_INT_H
#define K2_TESTS_KERNEL_TEST_INT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/kernel/kernel.h"

/* n floats in [-scale, scale), the same for the same `what`. */
static inline float *test_floats(size_t n, uint64_t what, double scale)
{
    float *x = k2_alloc_array(n ? n : 1, sizeof(float));
    for (size_t i = 0; i < n; i++) x[i] = (float)(scale * (2.0 * k2_rand_unit(1, K2_STREAM_TEST, what, i) - 1.0));
    return x;
}

static inline float *test_copy(const float *x, size_t n)
{
    float *y = k2_alloc_array(n ? n : 1, sizeof(float));
    memcpy(y, x, n * sizeof(float));
    return y;
}

static inline void test_same_bits(const char *what, k2_isa isa, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof(float)) != 0) {
            fail_msg("%s on %s: element %zu of %zu is %.9g, the reference gives %.9g", what, k2_kern_isa_name(isa), i, n,
                     (double)got[i], (double)want[i]);
        }
    }
}

/* Every path but the reference that this machine has. */
#define TEST_EACH_ISA(isa)                                                     \
    for (k2_isa isa = K2_ISA_PORTABLE; isa < K2_ISA_COUNT; isa++)              \
        if (k2_kern_isa_use(isa) == K2_OK)

static inline void test_use_ref(void) { assert_int_equal(k2_kern_isa_use(K2_ISA_REF), K2_OK); }

#endif
