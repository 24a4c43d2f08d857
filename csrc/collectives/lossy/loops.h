/* SPDX-License-Identifier: Apache-2.0
 * The loops of one struct rdti_lossy_table. Each file that compiles them for one kind of processor
 * includes this once; that file defines, before the inclusion,
 *   TABLE           the name of the table
 *   ENCODE_VALUES   encode_values() of q8.h, or its own function that does the same
 */
#include "collectives/lossy/kernels.h"
#include "collectives/lossy/q8.h"
#include "collectives/reduce/half.h"

#include <stddef.h>
#include <string.h>

enum {
    USUAL_BLOCK = 128, /* its loops are compiled for this length */
};

/* ---- q8 ---- */

INLINE void
encode_block(uint16_t *restrict scale_out, int8_t *restrict bytes, const float *src,
             float *residual, size_t count, struct rdti_lossy_odd *odd)
{
    const int32_t largest =
        residual == NULL ? largest_bits(src, count) : add_source(residual, src, count);

    if (largest >= INFINITY_BITS) {
        odd->not_finite++;
        *scale_out = F16_NAN;
        memset(bytes, 0, count);
        if (residual != NULL)
            memset(residual, 0, count * sizeof(*residual));
        return;
    }
    *scale_out = scale_of(float_of_bits((uint32_t)largest), odd);
    ENCODE_VALUES(bytes, src, residual, count, f16_to_f32(*scale_out));
}

INLINE void
decode_block(float *restrict dst, float scale, const int8_t *restrict bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = (float)bytes[i] * scale;
}

INLINE void
add_block(float *restrict dst, float scale, const int8_t *restrict bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        dst[i] = dst[i] + (float)bytes[i] * scale;
}

static void
encode_q8(struct rdti_lossy_view out, const float *src, float *residual, uint64_t count,
          uint32_t block, struct rdti_lossy_odd *odd)
{
    uint16_t *scale = out.scales;
    int8_t *bytes = out.data;

    for (uint64_t at = 0; at < count; at += block, scale++) {
        const uint64_t left = count - at;
        float *rest = residual == NULL ? NULL : residual + at;
        if (block == USUAL_BLOCK && left >= USUAL_BLOCK)
            encode_block(scale, bytes + at, src + at, rest, USUAL_BLOCK, odd);
        else
            encode_block(scale, bytes + at, src + at, rest, left < block ? left : block, odd);
    }
}

#define Q8_LOOP(name, body)                                                                  \
    static void name(float *dst, struct rdti_lossy_view in, uint64_t count, uint32_t block)  \
    {                                                                                        \
        const uint16_t *scale = in.scales;                                                   \
        const int8_t *bytes = in.data;                                                       \
        for (uint64_t at = 0; at < count; at += block, scale++) {                            \
            const uint64_t left = count - at;                                                \
            if (block == USUAL_BLOCK && left >= USUAL_BLOCK)                                 \
                body(dst + at, f16_to_f32(*scale), bytes + at, USUAL_BLOCK);                 \
            else                                                                             \
                body(dst + at, f16_to_f32(*scale), bytes + at, left < block ? left : block); \
        }                                                                                    \
    }

Q8_LOOP(decode_q8, decode_block)
Q8_LOOP(add_q8, add_block)

/* ---- bf16 ---- */

static void
encode_bf16(struct rdti_lossy_view out, const float *src, float *residual, uint64_t count,
            uint32_t block, struct rdti_lossy_odd *odd)
{
    uint16_t *restrict halves = out.data;

    (void)block;
    (void)odd;
    if (residual == NULL) {
        INDEPENDENT for (uint64_t i = 0; i < count; i++) halves[i] = f32_to_bf16(src[i]);
        return;
    }
    INDEPENDENT for (uint64_t i = 0; i < count; i++)
    {
        const float value = src[i] + residual[i];
        const uint16_t half = f32_to_bf16(value);
        const float lost = value - bf16_to_f32(half);
        const uint32_t is_finite = (half & 0x7f80U) != 0x7f80U;
        halves[i] = half;
        residual[i] = float_of_bits(bits_of_float(lost) & (0U - is_finite));
    }
}

static void
decode_bf16(float *restrict dst, struct rdti_lossy_view in, uint64_t count, uint32_t block)
{
    const uint16_t *restrict halves = in.data;

    (void)block;
    for (uint64_t i = 0; i < count; i++)
        dst[i] = bf16_to_f32(halves[i]);
}

static void
add_bf16(float *restrict dst, struct rdti_lossy_view in, uint64_t count, uint32_t block)
{
    const uint16_t *restrict halves = in.data;

    (void)block;
    for (uint64_t i = 0; i < count; i++)
        dst[i] = dst[i] + bf16_to_f32(halves[i]);
}

const struct rdti_lossy_table TABLE = {
    .bf16 = {encode_bf16, decode_bf16, add_bf16},
    .q8 = {encode_q8, decode_q8, add_q8},
};
