/* Narrow floating-point formats. See number_int.h. */
#include "number_int.h"

#include <math.h>
#include <string.h>

float k2i_f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float k2i_f32_of_bf16(uint16_t b)
{
    return k2i_f32_of_bits((uint32_t)b << 16);
}

float k2i_f32_of_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = h >> 10 & 0x1f;
    uint32_t fraction = h & 0x3ff;
    if (exponent == 31) return k2i_f32_of_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent) return k2i_f32_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
    if (!fraction) return k2i_f32_of_bits(sign);
    uint32_t shift = 0; /* a subnormal half is a normal single */
    for (; !(fraction & 0x400); shift++) fraction <<= 1;
    return k2i_f32_of_bits(sign | (113 - shift) << 23 | (fraction & 0x3ff) << 13);
}

float k2i_f32_of_e4m3(uint8_t c)
{
    const int exponent = c >> 3 & 15, fraction = c & 7;
    const float sign = c & 0x80 ? -1.0f : 1.0f;
    if (exponent == 15 && fraction == 7) return NAN;
    return sign * ldexpf((float)(exponent ? 8 + fraction : fraction), (exponent ? exponent : 1) - 10);
}

/* The magnitude of x in a format of so many fraction bits: exponent and fraction side by side, so that a carry out of the
 * fraction raises the exponent. Codes above the format's largest mean that x is too large for it. */
static uint32_t narrow(float x, int fraction_bits, int bias)
{
    const uint32_t bits = bits_of(x) & 0x7fffffffu, field = bits >> 23;
    const int exponent = (int)(field ? field : 1) - 127 + bias;
    const uint32_t significand = (bits & 0x7fffffu) | (field ? 0x800000u : 0);
    const int shift = 23 - fraction_bits + (exponent < 1 ? 1 - exponent : 0);
    if (shift > 24) return 0; /* below half of the smallest */
    const uint32_t kept = significand >> shift, rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1)));
    return exponent < 1 ? rounded : ((uint32_t)(exponent - 1) << fraction_bits) + rounded;
}

uint16_t k2i_bf16_of_f32(float x)
{
    const uint32_t bits = bits_of(x);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

uint16_t k2i_f16_of_f32(float x)
{
    const uint32_t code = narrow(x, 10, 15);
    return (uint16_t)((bits_of(x) >> 16 & 0x8000u) | (code < 0x7c00u ? code : 0x7c00u));
}

uint8_t k2i_e4m3_of_f32(float x)
{
    const uint32_t code = narrow(x, 3, 7);
    return (uint8_t)((bits_of(x) >> 24 & 0x80u) | (code < 0x7eu ? code : 0x7eu));
}
