/* SPDX-License-Identifier: Apache-2.0
 * Conversions of f16 and bf16 in integer arithmetic, bit-identical with the F16C instructions, NaNs
 * included. Rounding is to nearest even.
 */
#ifndef RDTI_COLLECTIVES_REDUCE_HALF_H
#define RDTI_COLLECTIVES_REDUCE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float
float_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t
bits_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float
f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000U) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fU;
    const uint32_t mantissa = half & 0x3ffU;

    if (exponent == 0) { /* zero or subnormal: a multiple of 2^-24, exact in f32 */
        const float magnitude = (float)(int32_t)mantissa * 0x1p-24F;
        return float_of_bits(sign | bits_of_float(magnitude));
    }
    if (exponent == 0x1f) {
        const uint32_t quiet = mantissa != 0 ? 0x400000U : 0;
        return float_of_bits(sign | 0x7f800000U | (mantissa << 13) | quiet);
    }
    return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

static inline uint16_t
f32_to_f16(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = (bits >> 16) & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;

    if (magnitude > 0x7f800000U) /* NaN: quiet, the upper payload kept */
        return (uint16_t)(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
    if (magnitude >= 0x477ff000U) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00U);
    if (magnitude < 0x38800000U) {
        /* Below 2^-14 the result counts 2^-24, which is the last place of the floats in [0.5, 1):
         * the addition itself rounds. */
        const float shifted = float_of_bits(magnitude) + 0.5F;
        return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000U));
    }
    const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
    return (uint16_t)(sign | ((rounded - (112U << 23)) >> 13));
}

static inline float
bf16_to_f32(uint16_t half)
{
    return float_of_bits((uint32_t)half << 16);
}

static inline uint16_t
f32_to_bf16(float value)
{
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40U; /* rounding could carry a NaN into infinity */

    return (uint16_t)((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
}

#endif
