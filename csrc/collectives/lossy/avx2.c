/* SPDX-License-Identifier: Apache-2.0
 * The lossy formats compiled for processors with AVX2. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stddef.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC optimize("O3") /* gcc 12 vectorises loops of unknown length only there */
#pragma GCC target("avx2")
#endif

#include "collectives/lossy/q8.h"

#define TABLE rdti_lossy_avx2
#define ENCODE_VALUES avx2_encode_values

enum { LANES = 8, VECTORS = 4, STRIDE = LANES * VECTORS };

/* The integers of eight values, of 8 bits each. */
INLINE __m256i
avx2_round(__m256 values, __m256 inverse)
{
    const __m256 most = _mm256_set1_ps((float)Q8_MOST);
    const __m256 least = _mm256_set1_ps((float)-Q8_MOST);
    const __m256 scaled = _mm256_mul_ps(values, inverse);

    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(scaled, most), least));
}

INLINE void
avx2_store_bytes(int8_t *bytes, const __m256i *integers)
{
    /* Packing works within halves of a register: groups of four bytes come out of order. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i low = _mm256_packs_epi32(integers[0], integers[1]);
    const __m256i high = _mm256_packs_epi32(integers[2], integers[3]);
    const __m256i packed = _mm256_packs_epi16(low, high);

    _mm256_storeu_si256((__m256i *)(void *)bytes, _mm256_permutevar8x32_epi32(packed, order));
}

/* encode_values(): gcc 12 narrows integers to bytes at a third of the speed. */
INLINE void
avx2_encode_values(int8_t *bytes, const float *values, float *residual, size_t count, float scale)
{
    const float inverse = scale > 0 ? 1.0F / scale : 0.0F;
    const __m256 inverses = _mm256_set1_ps(inverse);
    const __m256 scales = _mm256_set1_ps(scale);
    const float *from = residual == NULL ? values : residual;
    size_t i = 0;

    for (; i + STRIDE <= count; i += STRIDE) {
        __m256i integers[VECTORS];
        for (size_t k = 0; k < VECTORS; k++) {
            const __m256 value = _mm256_loadu_ps(from + i + k * LANES);
            integers[k] = avx2_round(value, inverses);
            if (residual == NULL)
                continue;
            const __m256 got = _mm256_mul_ps(_mm256_cvtepi32_ps(integers[k]), scales);
            _mm256_storeu_ps(residual + i + k * LANES, _mm256_sub_ps(value, got));
        }
        avx2_store_bytes(bytes + i, integers);
    }
    if (i < count)
        encode_values(bytes + i, values + i, residual == NULL ? NULL : residual + i, count - i,
                      scale);
}

#include "collectives/lossy/loops.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif
