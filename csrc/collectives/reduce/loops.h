/* SPDX-License-Identifier: Apache-2.0
 * The loops of one struct rdti_reduce_table. Each file that compiles them for one kind of processor
 * includes this once; that file defines, before the inclusion,
 *   TABLE           the name of the table
 *   f16_widen()     count halves at `in` to floats
 *   f16_narrow()    and back
 */
#include "collectives/reduce/half.h"
#include "collectives/reduce/independent.h"
#include "collectives/reduce/kernels.h"

#include <stddef.h>

#define LOOP(name, type, expression)                                          \
    static void name(void *dst, const void *lhs, const void *rhs, uint64_t n) \
    {                                                                         \
        type *out = dst;                                                      \
        const type *left = lhs;                                               \
        const type *right = rhs;                                              \
        INDEPENDENT for (uint64_t i = 0; i < n; i++)                          \
        {                                                                     \
            const type x = left[i];                                           \
            const type y = right[i];                                          \
            out[i] = (type)(expression);                                      \
        }                                                                     \
    }

#define DIVIDE_LOOP(name, type)                               \
    static void name(void *dst, uint64_t n, uint32_t divisor) \
    {                                                         \
        type *out = dst;                                      \
        const type by = (type)divisor;                        \
        for (uint64_t i = 0; i < n; i++)                      \
            out[i] = out[i] / by;                             \
    }

/* A wide divisor, since one of uint8_t would be 0 for 256 members. Truncates toward zero. */
#define INTEGER_DIVIDE_LOOP(name, type, wide)                 \
    static void name(void *dst, uint64_t n, uint32_t divisor) \
    {                                                         \
        type *out = dst;                                      \
        const wide by = divisor;                              \
        for (uint64_t i = 0; i < n; i++)                      \
            out[i] = (type)((wide)out[i] / by);               \
    }

/* Sums and products in unsigned arithmetic, which wraps; 1U keeps u16 products out of int. */
#define MIN_OF(x, y) ((x) < (y) ? (x) : (y))
#define MAX_OF(x, y) ((x) > (y) ? (x) : (y))

#define INTEGER_LOOPS(t, type, bits_type)    \
    LOOP(sum_##t, bits_type, 1U * x + y)     \
    LOOP(product_##t, bits_type, 1U * x * y) \
    LOOP(min_##t, type, MIN_OF(x, y))        \
    LOOP(max_##t, type, MAX_OF(x, y))        \
    LOOP(band_##t, bits_type, x &y)          \
    LOOP(bor_##t, bits_type, x | y)          \
    LOOP(bxor_##t, bits_type, x ^ y)

INTEGER_LOOPS(u8, uint8_t, uint8_t)
INTEGER_LOOPS(i8, int8_t, uint8_t)
INTEGER_LOOPS(u16, uint16_t, uint16_t)
INTEGER_LOOPS(i16, int16_t, uint16_t)
INTEGER_LOOPS(u32, uint32_t, uint32_t)
INTEGER_LOOPS(i32, int32_t, uint32_t)
INTEGER_LOOPS(u64, uint64_t, uint64_t)
INTEGER_LOOPS(i64, int64_t, uint64_t)

INTEGER_DIVIDE_LOOP(divide_u8, uint8_t, uint32_t)
INTEGER_DIVIDE_LOOP(divide_i8, int8_t, int64_t)
INTEGER_DIVIDE_LOOP(divide_u16, uint16_t, uint32_t)
INTEGER_DIVIDE_LOOP(divide_i16, int16_t, int64_t)
INTEGER_DIVIDE_LOOP(divide_u32, uint32_t, uint32_t)
INTEGER_DIVIDE_LOOP(divide_i32, int32_t, int64_t)
INTEGER_DIVIDE_LOOP(divide_u64, uint64_t, uint64_t)
INTEGER_DIVIDE_LOOP(divide_i64, int64_t, int64_t)

LOOP(or_bool, uint8_t, (x | y) != 0)
LOOP(and_bool, uint8_t, (x != 0) & (y != 0))
LOOP(xor_bool, uint8_t, (x != 0) ^ (y != 0))

/* Each is one comparison chain: a NaN in x is caught by x != x, one in y by the last branch. */
#define FLOAT_MIN(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))
#define FLOAT_MAX(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))

#define FLOAT_LOOPS(t, type)             \
    LOOP(sum_##t, type, x + y)           \
    LOOP(product_##t, type, x *y)        \
    LOOP(min_##t, type, FLOAT_MIN(x, y)) \
    LOOP(max_##t, type, FLOAT_MAX(x, y)) \
    DIVIDE_LOOP(divide_##t, type)

FLOAT_LOOPS(f32, float)
FLOAT_LOOPS(f64, double)

/* Complex numbers are pairs; sums and divisions treat them as twice as many reals. */
#define COMPLEX_LOOPS(t, real, type)                                                 \
    static void sum_##t(void *dst, const void *lhs, const void *rhs, uint64_t n)     \
    {                                                                                \
        sum_##real(dst, lhs, rhs, 2 * n);                                            \
    }                                                                                \
    static void product_##t(void *dst, const void *lhs, const void *rhs, uint64_t n) \
    {                                                                                \
        type *out = dst;                                                             \
        const type *left = lhs;                                                      \
        const type *right = rhs;                                                     \
        INDEPENDENT for (uint64_t i = 0; i < n; i++)                                 \
        {                                                                            \
            const type a = left[2 * i];                                              \
            const type b = left[2 * i + 1];                                          \
            const type c = right[2 * i];                                             \
            const type d = right[2 * i + 1];                                         \
            out[2 * i] = a * c - b * d;                                              \
            out[2 * i + 1] = a * d + b * c;                                          \
        }                                                                            \
    }                                                                                \
    static void divide_##t(void *dst, uint64_t n, uint32_t divisor)                  \
    {                                                                                \
        divide_##real(dst, 2 * n, divisor);                                          \
    }

COMPLEX_LOOPS(c64, f32, float)
COMPLEX_LOOPS(c128, f64, double)

static void
bf16_widen(float *out, const uint16_t *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = bf16_to_f32(in[i]);
}

static void
bf16_narrow(uint16_t *out, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++)
        out[i] = f32_to_bf16(in[i]);
}

enum {
    HALF_BLOCK = 512 /* elements widened at a time: both float buffers take 4 KiB of the L1 cache */
};

/* Halves go through floats on the stack, block by block, with the float loop in between. */
#define HALF_LOOP(name, t, float_loop)                                        \
    static void name(void *dst, const void *lhs, const void *rhs, uint64_t n) \
    {                                                                         \
        float left[HALF_BLOCK];                                               \
        float right[HALF_BLOCK];                                              \
        for (uint64_t i = 0; i < n; i += HALF_BLOCK) {                        \
            const size_t count = (size_t)MIN_OF(n - i, (uint64_t)HALF_BLOCK); \
            t##_widen(left, (const uint16_t *)lhs + i, count);                \
            t##_widen(right, (const uint16_t *)rhs + i, count);               \
            float_loop(left, left, right, count);                             \
            t##_narrow((uint16_t *)dst + i, left, count);                     \
        }                                                                     \
    }

/* Between operands the result stays in floats: a sum of halves may not be a half, nor so exact. */
#define HALF_FOLD(name, t, float_loop)                                                   \
    static void name(void *dst, const uint8_t *const *in, uint32_t operands, uint64_t n, \
                     uint32_t divisor)                                                   \
    {                                                                                    \
        float result[HALF_BLOCK];                                                        \
        float next[HALF_BLOCK];                                                          \
        for (uint64_t i = 0; i < n; i += HALF_BLOCK) {                                   \
            const size_t count = (size_t)MIN_OF(n - i, (uint64_t)HALF_BLOCK);            \
            t##_widen(result, (const uint16_t *)(const void *)in[0] + i, count);         \
            for (uint32_t k = 1; k < operands; k++) {                                    \
                t##_widen(next, (const uint16_t *)(const void *)in[k] + i, count);       \
                float_loop(result, result, next, count);                                 \
            }                                                                            \
            if (divisor > 1)                                                             \
                divide_f32(result, count, divisor);                                      \
            t##_narrow((uint16_t *)dst + i, result, count);                              \
        }                                                                                \
    }

#define HALF_LOOPS(t)                                                         \
    HALF_FOLD(fold_sum_##t, t, sum_f32)                                       \
    HALF_FOLD(fold_product_##t, t, product_f32)                               \
    HALF_LOOP(sum_##t, t, sum_f32)                                            \
    HALF_LOOP(product_##t, t, product_f32)                                    \
    HALF_LOOP(min_##t, t, min_f32)                                            \
    HALF_LOOP(max_##t, t, max_f32)                                            \
    static void divide_##t(void *dst, uint64_t n, uint32_t divisor)           \
    {                                                                         \
        float block[HALF_BLOCK];                                              \
        for (uint64_t i = 0; i < n; i += HALF_BLOCK) {                        \
            const size_t count = (size_t)MIN_OF(n - i, (uint64_t)HALF_BLOCK); \
            t##_widen(block, (const uint16_t *)dst + i, count);               \
            divide_f32(block, count, divisor);                                \
            t##_narrow((uint16_t *)dst + i, block, count);                    \
        }                                                                     \
    }

HALF_LOOPS(f16)
HALF_LOOPS(bf16)

#define INTEGER_ROW(t)                                                          \
    {                                                                           \
        [RDT_SUM] = sum_##t, [RDT_AVG] = sum_##t,  [RDT_PRODUCT] = product_##t, \
        [RDT_MIN] = min_##t, [RDT_MAX] = max_##t,  [RDT_BAND] = band_##t,       \
        [RDT_BOR] = bor_##t, [RDT_BXOR] = bxor_##t}
#define FLOAT_ROW(t)              \
    {[RDT_SUM] = sum_##t,         \
     [RDT_AVG] = sum_##t,         \
     [RDT_PRODUCT] = product_##t, \
     [RDT_MIN] = min_##t,         \
     [RDT_MAX] = max_##t}
#define COMPLEX_ROW(t) {[RDT_SUM] = sum_##t, [RDT_AVG] = sum_##t, [RDT_PRODUCT] = product_##t}

#define HALF_FOLD_ROW(t) \
    {[RDT_SUM] = fold_sum_##t, [RDT_AVG] = fold_sum_##t, [RDT_PRODUCT] = fold_product_##t}

const struct rdti_reduce_table TABLE = {
    .reduce =
        {
            [RDT_BOOL] = {[RDT_SUM] = or_bool,
                          [RDT_PRODUCT] = and_bool,
                          [RDT_MIN] = and_bool,
                          [RDT_MAX] = or_bool,
                          [RDT_BAND] = and_bool,
                          [RDT_BOR] = or_bool,
                          [RDT_BXOR] = xor_bool},
            [RDT_U8] = INTEGER_ROW(u8),
            [RDT_I8] = INTEGER_ROW(i8),
            [RDT_U16] = INTEGER_ROW(u16),
            [RDT_I16] = INTEGER_ROW(i16),
            [RDT_U32] = INTEGER_ROW(u32),
            [RDT_I32] = INTEGER_ROW(i32),
            [RDT_U64] = INTEGER_ROW(u64),
            [RDT_I64] = INTEGER_ROW(i64),
            [RDT_F16] = FLOAT_ROW(f16),
            [RDT_BF16] = FLOAT_ROW(bf16),
            [RDT_F32] = FLOAT_ROW(f32),
            [RDT_F64] = FLOAT_ROW(f64),
            [RDT_C64] = COMPLEX_ROW(c64),
            [RDT_C128] = COMPLEX_ROW(c128),
        },
    .divide =
        {
            [RDT_U8] = divide_u8,
            [RDT_I8] = divide_i8,
            [RDT_U16] = divide_u16,
            [RDT_I16] = divide_i16,
            [RDT_U32] = divide_u32,
            [RDT_I32] = divide_i32,
            [RDT_U64] = divide_u64,
            [RDT_I64] = divide_i64,
            [RDT_F16] = divide_f16,
            [RDT_BF16] = divide_bf16,
            [RDT_F32] = divide_f32,
            [RDT_F64] = divide_f64,
            [RDT_C64] = divide_c64,
            [RDT_C128] = divide_c128,
        },
    .fold =
        {
            [RDT_F16] = HALF_FOLD_ROW(f16),
            [RDT_BF16] = HALF_FOLD_ROW(bf16),
        },
};
