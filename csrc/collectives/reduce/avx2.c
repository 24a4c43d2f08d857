/* SPDX-License-Identifier: Apache-2.0
 * The reductions compiled for processors with AVX2 and F16C. */
#include "collectives/reduce/kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <stddef.h>
#include <string.h>

/* No FMA in the list: a product and a sum that are rounded once would differ from other hosts. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#pragma GCC target("avx2,f16c")
#endif

#include "collectives/reduce/half.h"

#define TABLE rdti_reduce_avx2

static void
f16_widen(float *out, const uint16_t *in, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(in + i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
    for (; i < count; i++)
        out[i] = f16_to_f32(in[i]);
}

static void
f16_narrow(uint16_t *out, const float *in, size_t count)
{
    size_t i = 0;

    for (; i + 8 <= count; i += 8) {
        const __m256 values = _mm256_loadu_ps(in + i);
        const __m128i halves = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(out + i), halves);
    }
    for (; i < count; i++)
        out[i] = f32_to_f16(in[i]);
}

#include "collectives/reduce/loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
