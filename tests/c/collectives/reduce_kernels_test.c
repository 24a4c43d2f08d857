/* SPDX-License-Identifier: Apache-2.0
 * Reductions against plain C: every dtype and operation, in every table this processor has. */
#include "harness.h"

#include <math.h>

#include "collectives/reduce/half.h"
#include "collectives/reduce/kernels.h"

static uint64_t random_state = 42;

static uint32_t
random_bits(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static uint64_t
random_bits_64(void)
{
    const uint64_t upper = random_bits();

    return upper << 32 | random_bits();
}

/* The compiler's own half type is the oracle: its run-time library shares no code with half.h. */
TEST(f16_widens_as_the_compiler_does)
{
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        const uint16_t half = (uint16_t)bits;
        _Float16 oracle;
        memcpy(&oracle, &half, sizeof(oracle));
        CHECK_HEX_EQ(bits_of_float(f16_to_f32(half)), bits_of_float((float)oracle));
    }
}

static void
check_f16_narrow(uint32_t bits)
{
    const float value = float_of_bits(bits);
    const _Float16 oracle = (_Float16)value;
    uint16_t want;

    memcpy(&want, &oracle, sizeof(want));
    CHECK_MSG(f32_to_f16(value) == want, "0x%08x gives 0x%04x, want 0x%04x", bits,
              f32_to_f16(value), want);
}

TEST(f16_narrows_as_the_compiler_does)
{
    /* Every half, its neighbours and every tie between two halves, both signs. */
    for (uint32_t half = 0; half <= 0xffff; half++) {
        const uint32_t bits = bits_of_float(f16_to_f32((uint16_t)half));
        for (uint32_t around = 0; around < 3; around++) {
            check_f16_narrow(bits + around - 1);
            check_f16_narrow((bits | 0x1000U) + around - 1);
        }
    }
    for (uint32_t bits = 0x32000000U; bits < 0x39000000U; bits += 0x101U) /* subnormal results */
        check_f16_narrow(bits);
    for (int i = 0; i < 1000000; i++)
        check_f16_narrow(random_bits());
}

TEST(bf16_rounds_to_nearest_even)
{
    for (int i = 0; i < 1000000; i++) {
        const uint32_t bits = random_bits();
        const float value = float_of_bits(bits);
        const float got = bf16_to_f32(f32_to_bf16(value));
        if (isnan(value)) {
            CHECK(isnan(got));
            continue;
        }
        const uint32_t below = bits & 0xffff0000U;
        const uint32_t rest = bits & 0xffffU;
        const bool is_up = rest > 0x8000U || (rest == 0x8000U && (bits & 0x10000U) != 0);
        CHECK_HEX_EQ(bits_of_float(got), below + (is_up ? 0x10000U : 0));
    }
}

/* ---- Tables against plain definitions ---- */

enum {
    SAMPLES = 1543 /* odd, above one block of halves: bodies, tails and block ends are all met */
};

static const uint64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 31, 33, 511, 512, 513, SAMPLES};

static const struct rdti_reduce_table *
table_number(int index)
{
#if defined(__x86_64__)
    if (index == 1)
        return rdti_reduce_has_avx2() ? &rdti_reduce_avx2 : NULL;
#endif
    return index == 0 ? &rdti_reduce_generic : NULL;
}

#define CHECK_INTEGER(tag, type, op, expression)                                                  \
    do {                                                                                          \
        type a[SAMPLES], b[SAMPLES], out[SAMPLES];                                                \
        for (int i = 0; i < SAMPLES; i++) {                                                       \
            a[i] = (type)random_bits_64();                                                        \
            b[i] = (type)(i % 5 == 0 ? (uint64_t)a[i] : random_bits_64());                        \
        }                                                                                         \
        for (int t = 0; t < 2; t++) {                                                             \
            if (table_number(t) == NULL)                                                          \
                continue;                                                                         \
            memset(out, 0xa5, sizeof(out));                                                       \
            table_number(t)->reduce[tag][op](out, a, b, SAMPLES - 1);                             \
            for (int i = 0; i < SAMPLES - 1; i++) {                                               \
                const type x = a[i];                                                              \
                const type y = b[i];                                                              \
                CHECK_MSG(out[i] == (type)(expression), "table %d, " #tag " " #op ", element %d", \
                          t, i);                                                                  \
            }                                                                                     \
            const uint8_t *beyond = (const uint8_t *)&out[SAMPLES - 1];                           \
            CHECK_HEX_EQ(*beyond, 0xa5);                                                          \
        }                                                                                         \
    } while (0)

#define CHECK_INTEGERS(tag, type)                                         \
    do {                                                                  \
        CHECK_INTEGER(tag, type, RDT_SUM, (uint64_t)x + (uint64_t)y);     \
        CHECK_INTEGER(tag, type, RDT_PRODUCT, (uint64_t)x * (uint64_t)y); \
        CHECK_INTEGER(tag, type, RDT_MIN, x < y ? x : y);                 \
        CHECK_INTEGER(tag, type, RDT_MAX, x > y ? x : y);                 \
        CHECK_INTEGER(tag, type, RDT_BAND, x & y);                        \
        CHECK_INTEGER(tag, type, RDT_BOR, x | y);                         \
        CHECK_INTEGER(tag, type, RDT_BXOR, x ^ y);                        \
    } while (0)

TEST(unsigned_integers_reduce)
{
    CHECK_INTEGERS(RDT_U8, uint8_t);
    CHECK_INTEGERS(RDT_U16, uint16_t);
    CHECK_INTEGERS(RDT_U32, uint32_t);
    CHECK_INTEGERS(RDT_U64, uint64_t);
}

TEST(signed_integers_reduce)
{
    CHECK_INTEGERS(RDT_I8, int8_t);
    CHECK_INTEGERS(RDT_I16, int16_t);
    CHECK_INTEGERS(RDT_I32, int32_t);
    CHECK_INTEGERS(RDT_I64, int64_t);
}

TEST(bool_takes_any_byte_for_true)
{
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_SUM, x != 0 || y != 0);
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_MAX, x != 0 || y != 0);
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_BOR, x != 0 || y != 0);
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_PRODUCT, x != 0 && y != 0);
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_MIN, x != 0 && y != 0);
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_BAND, x != 0 && y != 0);
    CHECK_INTEGER(RDT_BOOL, uint8_t, RDT_BXOR, (x != 0) != (y != 0));

    static const uint8_t lhs[4] = {0, 0, 2, 4};
    static const uint8_t rhs[4] = {0, 2, 0, 8};
    static const uint8_t want_and[4] = {0, 0, 0, 1};
    static const uint8_t want_xor[4] = {0, 1, 1, 0};
    uint8_t out[4];
    rdti_reduce_best()->reduce[RDT_BOOL][RDT_MIN](out, lhs, rhs, 4);
    CHECK_MEM_EQ(out, want_and, 4);
    rdti_reduce_best()->reduce[RDT_BOOL][RDT_BXOR](out, lhs, rhs, 4);
    CHECK_MEM_EQ(out, want_xor, 4);
}

static double
define(uint32_t op, double x, double y)
{
    switch (op) {
    case RDT_PRODUCT:
        return x * y;
    case RDT_MIN:
        return isnan(x) || isnan(y) ? NAN : (x < y ? x : y);
    case RDT_MAX:
        return isnan(x) || isnan(y) ? NAN : (x > y ? x : y);
    default:
        return x + y;
    }
}

/*
 * Random patterns, so NaNs, infinities and subnormals too. A double holds the exact sum of two f32
 * no better than f32 rounding needs (53 >= 2 * 24 + 2), so that rounding it once more changes
 * nothing; the same from f32 to both halves.
 */
static void
check_floats(const struct rdti_reduce_table *table, uint32_t op)
{
    float a[SAMPLES], b[SAMPLES], out[SAMPLES];

    for (int i = 0; i < SAMPLES; i++) {
        a[i] = float_of_bits(random_bits());
        b[i] = i % 7 == 0 ? NAN
                          : float_of_bits(i % 3 == 0 ? random_bits()
                                                     : bits_of_float(a[i]) ^ (random_bits() >> 8));
    }
    table->reduce[RDT_F32][op](out, a, b, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        const float want = (float)define(op, (double)a[i], (double)b[i]);
        CHECK_MSG(isnan(want) ? isnan(out[i]) : out[i] == want,
                  "op %u element %d: %a and %a give %a", op, i, (double)a[i], (double)b[i],
                  (double)out[i]);
    }
}

static void
check_halves(const struct rdti_reduce_table *table, uint32_t dtype, uint32_t op)
{
    uint16_t a[SAMPLES], b[SAMPLES], out[SAMPLES];
    const bool is_f16 = dtype == RDT_F16;

    for (int i = 0; i < SAMPLES; i++) {
        a[i] = (uint16_t)random_bits();
        b[i] = (uint16_t)random_bits();
    }
    table->reduce[dtype][op](out, a, b, SAMPLES);
    for (int i = 0; i < SAMPLES; i++) {
        const float x = is_f16 ? f16_to_f32(a[i]) : bf16_to_f32(a[i]);
        const float y = is_f16 ? f16_to_f32(b[i]) : bf16_to_f32(b[i]);
        const float sum = (float)define(op, (double)x, (double)y);
        const float got = is_f16 ? f16_to_f32(out[i]) : bf16_to_f32(out[i]);
        const float want = is_f16 ? f16_to_f32(f32_to_f16(sum)) : bf16_to_f32(f32_to_bf16(sum));
        CHECK_MSG(isnan(want) ? isnan(got) : got == want, "dtype %u op %u element %d: %a", dtype,
                  op, i, (double)got);
    }
}

TEST(floats_reduce)
{
    static const uint32_t ops[] = {RDT_SUM, RDT_AVG, RDT_PRODUCT, RDT_MIN, RDT_MAX};

    for (int t = 0; t < 2; t++) {
        const struct rdti_reduce_table *table = table_number(t);
        for (size_t i = 0; table != NULL && i < sizeof(ops) / sizeof(ops[0]); i++) {
            check_floats(table, ops[i]);
            check_halves(table, RDT_F16, ops[i]);
            check_halves(table, RDT_BF16, ops[i]);
        }
    }
}

TEST(complex_product_is_the_school_formula)
{
    const double a[4] = {1, 2, 0, -1};
    const double b[4] = {3, -1, 5, 7};
    static const double want[4] = {5, 5, 7, -5};
    double out[4];

    for (int t = 0; t < 2; t++)
        if (table_number(t) != NULL) {
            table_number(t)->reduce[RDT_C128][RDT_PRODUCT](out, a, b, 2);
            CHECK_MEM_EQ(out, want, sizeof(out));
        }
}

/* 1 + 2^-26 + 2^-54 less 1 + 2^-26: the product is rounded before it is used. */
TEST(products_and_sums_are_rounded_each)
{
    const double a[2] = {1 + 0x1p-27, 1};
    const double b[2] = {1 + 0x1p-27, 1 + 0x1p-26};
    double out[2];

    for (int t = 0; t < 2; t++)
        if (table_number(t) != NULL) {
            table_number(t)->reduce[RDT_C128][RDT_PRODUCT](out, a, b, 1);
            CHECK(out[0] == 0.0);
        }
}

/* Every entry of both tables, on every count, in all three kinds of aliasing: the same bits. */
TEST(tables_agree_bit_for_bit_in_place_or_not)
{
    static const uint32_t bytes_of[RDTI_DTYPE_LIMIT] = {0, 1, 1, 1, 2, 2, 4, 4,
                                                        8, 8, 2, 2, 4, 8, 8, 16};
    static uint8_t a[SAMPLES * 16], b[SAMPLES * 16], want[SAMPLES * 16], out[SAMPLES * 16];
    unsigned compared = 0;

    for (uint32_t entry = 0; entry < RDTI_DTYPE_LIMIT * RDTI_REDUCE_OP_LIMIT; entry++) {
        const uint32_t dtype = entry / RDTI_REDUCE_OP_LIMIT;
        const rdti_reduce_fn plain =
            rdti_reduce_generic.reduce[dtype][entry % RDTI_REDUCE_OP_LIMIT];
        const rdti_reduce_fn best = rdti_reduce_best()->reduce[dtype][entry % RDTI_REDUCE_OP_LIMIT];
        CHECK((plain == NULL) == (best == NULL));
        for (size_t c = 0; plain != NULL && c < sizeof(counts) / sizeof(counts[0]); c++) {
            const size_t len_bytes = (size_t)counts[c] * bytes_of[dtype];
            for (size_t i = 0; i < len_bytes; i++) {
                a[i] = (uint8_t)random_bits();
                b[i] = (uint8_t)random_bits();
            }
            plain(want, a, b, counts[c]);
            best(out, a, b, counts[c]);
            CHECK_MEM_EQ(out, want, len_bytes);
            memcpy(out, a, len_bytes);
            best(out, out, b, counts[c]);
            CHECK_MEM_EQ(out, want, len_bytes);
            memcpy(out, b, len_bytes);
            best(out, a, out, counts[c]);
            CHECK_MEM_EQ(out, want, len_bytes);
            compared++;
        }
    }
    CHECK_UINT_EQ(compared, (7 + 8 * 8 + 4 * 5 + 2 * 3) * sizeof(counts) / sizeof(counts[0]));
}

#define CHECK_QUOTIENT(table, tag, type, value, by)                                      \
    do {                                                                                 \
        type numbers[2] = {(type)(value), (type)(value)};                                \
        (table)->divide[tag](numbers, 1, by);                                            \
        CHECK_MSG(numbers[0] == (type)((type)(value) / (int64_t)(by)), #tag " " #value); \
        CHECK(numbers[1] == (type)(value));                                              \
    } while (0)

TEST(integers_divide_toward_zero)
{
    for (int t = 0; t < 2; t++) {
        const struct rdti_reduce_table *table = table_number(t);
        uint64_t most = UINT64_MAX;
        if (table == NULL)
            continue;
        for (uint32_t by = 1; by < 600; by++) {
            CHECK_QUOTIENT(table, RDT_I8, int8_t, INT8_MIN, by);
            CHECK_QUOTIENT(table, RDT_I8, int8_t, -7, by);
            CHECK_QUOTIENT(table, RDT_U8, uint8_t, UINT8_MAX, by);
            CHECK_QUOTIENT(table, RDT_I16, int16_t, INT16_MIN, by);
            CHECK_QUOTIENT(table, RDT_U16, uint16_t, UINT16_MAX, by);
            CHECK_QUOTIENT(table, RDT_I32, int32_t, INT32_MIN, by);
            CHECK_QUOTIENT(table, RDT_U32, uint32_t, UINT32_MAX, by);
            CHECK_QUOTIENT(table, RDT_I64, int64_t, INT64_MIN, by);
            CHECK_QUOTIENT(table, RDT_I64, int64_t, -7, by);
        }
        table->divide[RDT_U64](&most, 1, 3);
        CHECK_UINT_EQ(most, UINT64_MAX / 3);
    }
}

TEST(division_rounds_once)
{
    for (int t = 0; t < 2; t++) {
        const struct rdti_reduce_table *table = table_number(t);
        if (table == NULL)
            continue;
        for (uint32_t by = 1; by < 9; by++) {
            float f32 = 10.0F;
            double f64 = 10.0;
            uint16_t f16[9];
            for (int i = 0; i < 9; i++)
                f16[i] = f32_to_f16(10.0F);
            table->divide[RDT_F32](&f32, 1, by);
            table->divide[RDT_F64](&f64, 1, by);
            table->divide[RDT_F16](f16, 9, by);
            CHECK(f32 == 10.0F / (float)by && f64 == 10.0 / (double)by);
            for (int i = 0; i < 9; i++)
                CHECK_HEX_EQ(f16[i], f32_to_f16(10.0F / (float)by));
        }
        for (uint32_t dtype = 0; dtype < RDTI_DTYPE_LIMIT; dtype++)
            CHECK((table->divide[dtype] != NULL) == (table->reduce[dtype][RDT_AVG] != NULL));
    }
}

/* Sums and products of halves in floats, rounded once, with the same bits from both tables and
 * whichever operand the result overwrites. */
static float
widened(uint32_t dtype, uint16_t half)
{
    return dtype == RDT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

static void
check_fold(uint32_t dtype, uint32_t op, uint32_t operands, uint32_t divisor, uint64_t count)
{
    static uint16_t inputs[5][SAMPLES], want[SAMPLES], out[SAMPLES];
    const uint8_t *in[5];

    for (uint32_t k = 0; k < operands; k++) {
        for (int i = 0; i < SAMPLES; i++)
            inputs[k][i] = (uint16_t)(i % 2 == 0 ? random_bits() : 0x3c00U + random_bits() % 512);
        in[k] = (const uint8_t *)inputs[k];
    }
    for (uint64_t i = 0; i < count; i++) {
        float sum = widened(dtype, inputs[0][i]);
        for (uint32_t k = 1; k < operands; k++)
            sum = op == RDT_PRODUCT ? sum * widened(dtype, inputs[k][i])
                                    : sum + widened(dtype, inputs[k][i]);
        sum /= (float)divisor;
        want[i] = dtype == RDT_F16 ? f32_to_f16(sum) : f32_to_bf16(sum);
    }
    rdti_reduce_generic.fold[dtype][op](out, in, operands, count, divisor);
    for (uint64_t i = 0; i < count; i++)
        CHECK(isnan(widened(dtype, out[i])) || out[i] == want[i]);
    rdti_reduce_best()->fold[dtype][op](want, in, operands, count, divisor);
    CHECK_MEM_EQ(out, want, count * sizeof(out[0]));
    const uint32_t over = (uint32_t)(count % operands);
    rdti_reduce_best()->fold[dtype][op](inputs[over], in, operands, count, divisor);
    CHECK_MEM_EQ(inputs[over], want, count * sizeof(out[0]));
}

TEST(halves_fold_with_one_rounding)
{
    static const uint32_t ops[] = {RDT_SUM, RDT_AVG, RDT_PRODUCT};

    for (uint32_t operands = 1; operands <= 5; operands++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
            for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
                const uint32_t divisor = ops[o] == RDT_AVG ? operands : 1;
                check_fold(RDT_F16, ops[o], operands, divisor, counts[c]);
                check_fold(RDT_BF16, ops[o], operands, divisor, counts[c]);
            }
}

TEST_MAIN()
