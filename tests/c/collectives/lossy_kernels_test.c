/* SPDX-License-Identifier: Apache-2.0
 * Lossy formats against plain definitions, and every table of this processor against the generic
 * one, bit by bit. */
#include "harness.h"

#include <float.h>
#include <math.h>

#include "collectives/lossy/kernels.h"
#include "collectives/reduce/half.h"

enum {
    SAMPLES = 2 * 1024 + 77, /* more than two of the longest blocks, and a rest */
    TABLES = 3,
};

static const uint32_t blocks[] = {32, 64, 128, 256, 512, 1024};
static const uint64_t counts[] = {0, 1, 7, 31, 32, 33, 127, 128, 129, 1000, 1024, SAMPLES};
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static uint64_t random_state = 42;

static uint32_t
random_bits(void)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

static const struct rdti_lossy_table *
table_number(int index)
{
#if defined(__x86_64__)
    if (index == 1)
        return rdti_lossy_has_avx2() ? &rdti_lossy_avx2 : NULL;
    if (index == 2)
        return rdti_lossy_has_avx512() ? &rdti_lossy_avx512 : NULL;
#endif
    return index == 0 ? &rdti_lossy_generic : NULL;
}

/* What a tensor may have: every kind of float, in blocks that are each of one kind. */
enum kind { USUAL, ANY_FINITE, TINY, HUGE_VALUES, ZEROS, ANY_BITS, KINDS };

static float
value_of(enum kind kind)
{
    const float fraction = (float)(int32_t)random_bits() * 0x1p-31F;

    switch (kind) {
    case USUAL:
        return fraction * 0.01F;
    case ANY_FINITE:
        return ldexpf(fraction, (int)(random_bits() % 40) - 30);
    case TINY: /* the scale is a subnormal f16, or rounds up to one */
        return ldexpf(fraction, -18 - (int)(random_bits() % 110));
    case HUGE_VALUES: /* the scale has no f16 */
        return ldexpf(fraction, 20 + (int)(random_bits() % 108));
    case ZEROS:
        return random_bits() % 2 == 0 ? 0.0F : -0.0F;
    default:
        return float_of_bits(random_bits());
    }
}

static void
fill(float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i += 64) {
        const enum kind kind = (enum kind)(random_bits() % KINDS);
        for (uint64_t k = i; k < count && k < i + 64; k++)
            values[k] = value_of(kind);
    }
}

struct encoded {
    uint16_t scales[SAMPLES / 32 + 2];
    uint8_t bytes[2 * SAMPLES + 64];
    float residual[SAMPLES + 1];
    struct rdti_lossy_odd odd;
};

static void
encode(const struct rdti_lossy_loops *loops, struct encoded *out, const float *src,
       const float *residual, uint64_t count, uint32_t block)
{
    memset(out, 0xa5, sizeof(*out));
    out->odd = (struct rdti_lossy_odd){0};
    if (residual != NULL)
        memcpy(out->residual, residual, count * sizeof(*residual));
    loops->encode((struct rdti_lossy_view){out->scales, out->bytes}, src,
                  residual == NULL ? NULL : out->residual, count, block, &out->odd);
}

/* ---- q8 against its definition: the compiler's half type and the C library's rounding ---- */

static float
definition_scale(float largest, bool *is_saturated)
{
    const double exact = (double)(largest / 127);
    _Float16 scale = (_Float16)exact;
    uint16_t bits;

    memcpy(&bits, &scale, sizeof(bits));
    if ((double)scale < exact) /* the next f16 above */
        bits++;
    *is_saturated = bits >= 0x7c00;
    if (*is_saturated)
        bits = 0x7bff;
    memcpy(&scale, &bits, sizeof(bits));
    return (float)scale;
}

static void
check_block(const float *src, const float *before, const struct encoded *got, uint64_t at,
            uint64_t count, uint16_t scale_bits, uint64_t *not_finite, uint64_t *saturated)
{
    float largest = 0;
    bool is_finite = true;
    bool is_saturated = false;
    _Float16 scale_of_block;

    memcpy(&scale_of_block, &scale_bits, sizeof(scale_bits));
    for (uint64_t i = at; i < at + count; i++) {
        const float value = src[i] + (before == NULL ? 0 : before[i]);
        is_finite = is_finite && isfinite(value);
        largest = fmaxf(largest, fabsf(value));
    }
    if (!is_finite) {
        CHECK(isnan((float)scale_of_block));
        ++*not_finite;
        for (uint64_t i = at; i < at + count && before != NULL; i++)
            CHECK_HEX_EQ(bits_of_float(got->residual[i]), 0);
        return;
    }
    const float scale = definition_scale(largest, &is_saturated);
    CHECK_HEX_EQ(bits_of_float((float)scale_of_block), bits_of_float(scale));
    *saturated += is_saturated;
    for (uint64_t i = at; i < at + count; i++) {
        const float value = src[i] + (before == NULL ? 0 : before[i]);
        const float scaled = scale > 0 ? value * (1.0F / scale) : 0;
        const float want = fmaxf(-127, fminf(127, nearbyintf(scaled)));
        const int8_t byte = (int8_t)got->bytes[i];
        CHECK_MSG(byte == (int)want, "element %llu of a block with scale %g: %g gives %d, want %g",
                  (unsigned long long)i, (double)scale, (double)value, byte, (double)want);
        const float lost = value - (float)byte * scale;
        if (before != NULL)
            CHECK_HEX_EQ(bits_of_float(got->residual[i]), bits_of_float(lost));
        if (!is_saturated)
            CHECK(fabsf(lost) <= 0.5001F * scale);
    }
}

TEST(q8_is_as_defined)
{
    static float src[SAMPLES];
    static float before[SAMPLES];
    static struct encoded got;

    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        for (size_t b = 0; b < 2 * COUNT_OF(blocks); b++) {
            const uint32_t block = blocks[b / 2];
            const float *residual = b % 2 == 0 ? NULL : before;
            uint64_t not_finite = 0;
            uint64_t saturated = 0;
            fill(src, SAMPLES);
            fill(before, SAMPLES);
            encode(&rdti_lossy_generic.q8, &got, src, residual, counts[c], block);
            for (uint64_t at = 0; at < counts[c]; at += block) {
                const uint64_t left = counts[c] - at;
                check_block(src, residual, &got, at, left < block ? left : block,
                            got.scales[at / block], &not_finite, &saturated);
            }
            CHECK_UINT_EQ(got.odd.not_finite, not_finite);
            CHECK_UINT_EQ(got.odd.saturated, saturated);
            CHECK_HEX_EQ(got.bytes[counts[c]], 0xa5);
            CHECK_HEX_EQ(got.scales[(counts[c] + block - 1) / block], 0xa5a5);
        }
    }
}

TEST(a_block_with_a_nan_or_an_infinity_is_nan)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float src[256] = {0};
    float residual[256];
    float out[256];
    static struct encoded got;

    for (size_t b = 0; b < COUNT_OF(bad); b++) {
        for (int i = 0; i < 256; i++) {
            src[i] = (float)i;
            residual[i] = 1;
        }
        src[130] = bad[b];
        encode(&rdti_lossy_generic.q8, &got, src, residual, 256, 128);
        rdti_lossy_generic.q8.decode(out, (struct rdti_lossy_view){got.scales, got.bytes}, 256,
                                     128);
        for (int i = 0; i < 256; i++)
            CHECK(i < 128 ? fabsf(out[i] - (float)(i + 1)) < 0.6F : isnan(out[i]) != 0);
        CHECK_UINT_EQ(got.odd.not_finite, 1);
    }
}

TEST(the_residual_carries_what_is_lost)
{
    float src[128];
    float sum[128] = {0};
    float out[128];
    float largest = 0;
    float scale = 0;
    static struct encoded got;
    float residual[128] = {0};

    for (int i = 0; i < 128; i++) {
        src[i] = value_of(USUAL);
        largest = fmaxf(largest, fabsf(src[i]));
    }
    for (int step = 1; step <= 1000; step++) {
        encode(&rdti_lossy_generic.q8, &got, src, residual, 128, 128);
        memcpy(residual, got.residual, sizeof(residual));
        rdti_lossy_generic.q8.decode(out, (struct rdti_lossy_view){got.scales, got.bytes}, 128,
                                     128);
        scale = fmaxf(scale, f16_to_f32(got.scales[0]));
        for (int i = 0; i < 128; i++)
            sum[i] += out[i];
    }
    for (int i = 0; i < 128; i++) /* and what 1,000 additions round */
        CHECK(fabsf(sum[i] - 1000 * src[i]) <= scale + 1000 * largest * 1000 * FLT_EPSILON);
}

/* ---- bf16 ---- */

TEST(bf16_is_as_defined)
{
    static float src[SAMPLES];
    static float before[SAMPLES];
    static struct encoded got;

    fill(src, SAMPLES);
    fill(before, SAMPLES);
    encode(&rdti_lossy_generic.bf16, &got, src, before, SAMPLES, 0);
    for (int i = 0; i < SAMPLES; i++) {
        const float value = src[i] + before[i];
        uint16_t half;
        memcpy(&half, &got.bytes[2 * i], sizeof(half));
        if (isnan(value)) {
            CHECK(isnan(bf16_to_f32(half)));
            CHECK_HEX_EQ(bits_of_float(got.residual[i]), 0);
            continue;
        }
        CHECK_HEX_EQ(half, f32_to_bf16(value));
        const float lost = isfinite(bf16_to_f32(half)) ? value - bf16_to_f32(half) : 0;
        CHECK_HEX_EQ(bits_of_float(got.residual[i]), bits_of_float(lost));
    }
}

/* ---- Tables ---- */

static void
check_floats(const char *what, int table, const float *got, const float *want, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        CHECK_MSG(bits_of_float(got[i]) == bits_of_float(want[i]) ||
                      (isnan(got[i]) && isnan(want[i])),
                  "table %d, %s, element %llu: 0x%08x, want 0x%08x", table, what,
                  (unsigned long long)i, bits_of_float(got[i]), bits_of_float(want[i]));
}

static void
check_loops(int table, const struct rdti_lossy_loops *loops, const struct rdti_lossy_loops *want,
            uint64_t count, uint32_t block, bool has_residual)
{
    static float src[SAMPLES];
    static float before[SAMPLES];
    static float into[2][SAMPLES + 1];
    static struct encoded got[2];
    const struct rdti_lossy_view view = {got[0].scales, got[0].bytes};

    fill(src, SAMPLES);
    fill(before, SAMPLES);
    encode(want, &got[0], src, has_residual ? before : NULL, count, block);
    encode(loops, &got[1], src, has_residual ? before : NULL, count, block);
    CHECK(memcmp(&got[0], &got[1], sizeof(got[0])) == 0);

    memset(into, 0xa5, sizeof(into));
    want->decode(into[0], view, count, block);
    loops->decode(into[1], view, count, block);
    CHECK(memcmp(into[0], into[1], sizeof(into[0])) == 0);

    memcpy(into[0], src, sizeof(src));
    memcpy(into[1], src, sizeof(src));
    want->add(into[0], view, count, block);
    loops->add(into[1], view, count, block);
    check_floats("add", table, into[1], into[0], SAMPLES);
}

TEST(all_tables_give_the_same_bits)
{
    for (int t = 1; t < TABLES; t++) {
        const struct rdti_lossy_table *table = table_number(t);
        if (table == NULL)
            continue;
        for (size_t c = 0; c < COUNT_OF(counts); c++)
            for (size_t b = 0; b < 2 * COUNT_OF(blocks); b++) {
                const uint32_t block = blocks[b / 2];
                const uint64_t count = counts[c];
                check_loops(t, &table->q8, &rdti_lossy_generic.q8, count, block, b % 2 != 0);
                check_loops(t, &table->bf16, &rdti_lossy_generic.bf16, count, block, b % 2 != 0);
            }
    }
}

TEST(the_best_table_is_one_of_them)
{
    bool is_known = false;

    for (int t = 0; t < TABLES; t++)
        is_known = is_known || rdti_lossy_best() == table_number(t);
    CHECK(is_known);
}

TEST_MAIN()
