/* number_int - the narrow floating-point formats of weights, to and from f32. Widening is exact; narrowing rounds to nearest,
 * ties to even. */
#ifndef K2_WEIGHTS_NUMBER_INT_H
#define K2_WEIGHTS_NUMBER_INT_H

#include <stdint.h>

float k2i_f32_of_bits(uint32_t bits);
float k2i_f32_of_bf16(uint16_t b);
float k2i_f32_of_f16(uint16_t h);
/* e4m3 without infinities ("e4m3fn"): 1 sign, 4 exponent (bias 7), 3 fraction bits; 0x7f and 0xff are NaN; the largest is 448.
 * source   Micikevicius et al. 2022, "FP8 Formats for Deep Learning"
 * tests    tests/unit/weights/number_test.c, all codes */
float k2i_f32_of_e4m3(uint8_t c);

/* Finite x only. What is too large becomes infinity in bf16 and f16, and 448 in e4m3. */
uint16_t k2i_bf16_of_f32(float x);
uint16_t k2i_f16_of_f32(float x);
uint8_t k2i_e4m3_of_f32(float x);

#endif
