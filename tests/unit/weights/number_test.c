/* Narrow floating-point formats: every code widened, and every rounding held against the nearest of all codes. */
#include "common/base/base.h"
#include "common/weights/number_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>

#include <cmocka.h>

/* The value that a code stands for, from the format's definition, in double. */
static double defined(uint32_t code, int exponent_bits, int fraction_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(code >> fraction_bits & ((1u << exponent_bits) - 1));
    const double fraction = ldexp((double)(code & ((1u << fraction_bits) - 1)), -fraction_bits);
    const double sign = code >> (exponent_bits + fraction_bits) ? -1 : 1;
    return sign * (exponent ? ldexp(1 + fraction, exponent - bias) : ldexp(fraction, 1 - bias));
}

static void every_code_is_right(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 256; c++) {
        const float x = k2i_f32_of_e4m3((uint8_t)c);
        if ((c & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            continue;
        }
        assert_true((double)x == defined(c, 4, 3) && !signbit(x) == !(c & 0x80));
        assert_int_equal(k2i_e4m3_of_f32(x), c);
    }
    assert_true(k2i_f32_of_e4m3(0x7e) == 448.0f && k2i_f32_of_e4m3(1) == 0x1p-9f);
    for (uint32_t c = 0; c < 65536; c++) {
        if ((c >> 10 & 31) != 31) {
            assert_true((double)k2i_f32_of_f16((uint16_t)c) == defined(c, 5, 10));
            assert_int_equal(k2i_f16_of_f32(k2i_f32_of_f16((uint16_t)c)), c);
        }
        if ((c >> 7 & 255) != 255) {
            assert_true((double)k2i_f32_of_bf16((uint16_t)c) == defined(c, 8, 7));
            assert_int_equal(k2i_bf16_of_f32(k2i_f32_of_bf16((uint16_t)c)), c);
        }
    }
    assert_true(isinf(k2i_f32_of_f16(0x7c00)) && isnan(k2i_f32_of_f16(0x7c01)));
}

/* Between two neighbours the nearer one comes out, in the middle the one whose code is even; at the largest they differ. */
static void between_codes(uint32_t low, double a, double b, uint32_t (*round_to)(float x))
{
    const float middle = (float)((a + b) / 2); /* one bit more than the format has: exact in f32, but for bf16's smallest */
    if ((double)middle != (a + b) / 2) return;
    const uint32_t even = low & 1 ? low + 1 : low;
    assert_int_equal(round_to(middle), even);
    assert_int_equal(round_to(nextafterf(middle, 0)), low);
    assert_int_equal(round_to(nextafterf(middle, INFINITY)), low + 1);
}

static uint32_t to_e4m3(float x)
{
    return k2i_e4m3_of_f32(x);
}

static uint32_t to_f16(float x)
{
    return k2i_f16_of_f32(x);
}

static uint32_t to_bf16(float x)
{
    return k2i_bf16_of_f32(x);
}

static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x7e; c++) between_codes(c, defined(c, 4, 3), defined(c + 1, 4, 3), to_e4m3);
    for (uint32_t c = 0; c < 0x7bff; c++) between_codes(c, defined(c, 5, 10), defined(c + 1, 5, 10), to_f16);
    for (uint32_t c = 0; c < 0x7f7f; c++) between_codes(c, defined(c, 8, 7), defined(c + 1, 8, 7), to_bf16);
}

static void what_is_too_large(void **state)
{
    (void)state;
    assert_int_equal(k2i_e4m3_of_f32(FLT_MAX), 0x7e);
    assert_int_equal(k2i_e4m3_of_f32(-500.0f), 0xfe);
    assert_int_equal(k2i_f16_of_f32(65519.996f), 0x7bff);
    assert_int_equal(k2i_f16_of_f32(65520.0f), 0x7c00);
    assert_int_equal(k2i_f16_of_f32(-FLT_MAX), 0xfc00);
    assert_int_equal(k2i_bf16_of_f32(FLT_MAX), 0x7f80);
    assert_int_equal(k2i_e4m3_of_f32(-0.0f), 0x80);
    assert_int_equal(k2i_f16_of_f32(FLT_TRUE_MIN), 0);
    assert_int_equal(k2i_bf16_of_f32(FLT_TRUE_MIN), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_right),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(what_is_too_large),
    };
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
