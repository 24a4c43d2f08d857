/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of q8 for a value and for a block, which all tables share (kernels.h).
 */
#ifndef RDTI_COLLECTIVES_LOSSY_Q8_H
#define RDTI_COLLECTIVES_LOSSY_Q8_H

#include "collectives/lossy/kernels.h"
#include "collectives/reduce/half.h"
#include "collectives/reduce/independent.h"

#include <stddef.h>

#define INLINE static inline __attribute__((always_inline))

enum {
    Q8_MOST = 127,
    F16_LARGEST = 0x7bff,
    F16_NAN = 0x7e00,
    MAGNITUDE_BITS = 0x7fffffff,
    INFINITY_BITS = 0x7f800000,
};

/* A float of up to 2^22 plus this has its nearest integer in its lowest bits, ties to even. */
#define ROUNDING 0x1.8p23F
#define ROUNDING_BITS 0x4b400000

/* The largest magnitude, as the bits of a float, which are ordered as floats are. NaNs are above
 * infinity. */
INLINE int32_t
largest_bits(const float *values, size_t count)
{
    int32_t largest = 0;

    for (size_t i = 0; i < count; i++) {
        const int32_t bits = (int32_t)(bits_of_float(values[i]) & MAGNITUDE_BITS);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* values[i] += source[i]; returns largest_bits(). */
INLINE int32_t
add_source(float *values, const float *source, size_t count)
{
    int32_t largest = 0;

    INDEPENDENT for (size_t i = 0; i < count; i++)
    {
        const float value = source[i] + values[i];
        const int32_t bits = (int32_t)(bits_of_float(value) & MAGNITUDE_BITS);
        values[i] = value;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

/* Rounded up, so that no byte is beyond 127. */
INLINE uint16_t
scale_of(float largest, struct rdti_lossy_odd *odd)
{
    const float exact = largest / (float)Q8_MOST;
    uint16_t scale = f32_to_f16(exact);

    if (f16_to_f32(scale) < exact)
        scale++;
    if (scale > F16_LARGEST) {
        odd->saturated++;
        return F16_LARGEST;
    }
    return scale;
}

/* Saturates. The bits of positive floats are ordered as the floats are, and those of negative ones
 * are negative integers. */
INLINE int8_t
byte_of(float value, float inverse)
{
    const int32_t bits = (int32_t)bits_of_float(value * inverse + ROUNDING);
    const int32_t below = bits < ROUNDING_BITS + Q8_MOST ? bits : ROUNDING_BITS + Q8_MOST;
    const int32_t within = below > ROUNDING_BITS - Q8_MOST ? below : ROUNDING_BITS - Q8_MOST;

    return (int8_t)(within - ROUNDING_BITS);
}

/* residual: NULL, or the values themselves. */
INLINE void
encode_values(int8_t *restrict bytes, const float *values, float *residual, size_t count,
              float scale)
{
    const float inverse = scale > 0 ? 1.0F / scale : 0.0F;

    if (residual == NULL) {
        INDEPENDENT for (size_t i = 0; i < count; i++) bytes[i] = byte_of(values[i], inverse);
        return;
    }
    INDEPENDENT for (size_t i = 0; i < count; i++)
    {
        const int8_t byte = byte_of(residual[i], inverse);
        bytes[i] = byte;
        residual[i] = residual[i] - (float)byte * scale;
    }
}

#endif
