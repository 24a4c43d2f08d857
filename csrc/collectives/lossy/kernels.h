/* SPDX-License-Identifier: Apache-2.0
 * Lossy formats of float32: immutable tables of their loops.
 *
 *   bf16   the upper half of each float, rounded to nearest even
 *   q8     blocks of 32 to 1024 elements, the last of which may be shorter. Each has an f16 scale,
 *          its largest magnitude / 127 rounded up to an f16, and for each element the signed byte
 *          element / scale, rounded to nearest even. The value is byte * scale, exactly. A block
 *          with an infinity or a NaN has a NaN as its scale, so that all of it becomes NaN. A block
 *          of zeros has the scale 0. Scales are limited to the largest f16, and what is beyond
 *          127 of those becomes 127: the block is saturated.
 *
 * Encoding takes a residual: what earlier calls lost. The source plus the residual is encoded, and
 * the residual becomes what is lost now. It becomes 0 where the value is not finite any more:
 * otherwise the next value would not be, either.
 *
 * All tables give the same bits; a sum of two NaNs may have the bits of either.
 */
#ifndef RDTI_COLLECTIVES_LOSSY_KERNELS_H
#define RDTI_COLLECTIVES_LOSSY_KERNELS_H

#include <stdint.h>

enum {
    RDTI_Q8_BLOCK_LEAST = 32,
    RDTI_Q8_BLOCK_MOST = 1024,
};

/* Encoded elements: of q8 a scale for each block and a byte for each element, of bf16 `data`. */
struct rdti_lossy_view {
    uint16_t *scales;
    void *data;
};

/* Blocks that were not encoded as numbers are: added to by encoding. */
struct rdti_lossy_odd {
    uint64_t not_finite;
    uint64_t saturated;
};

/* Encodes `count` elements. residual: NULL, or as many floats; it must not overlap src. */
typedef void (*rdti_lossy_encode_fn)(struct rdti_lossy_view out, const float *src, float *residual,
                                     uint64_t count, uint32_t block, struct rdti_lossy_odd *odd);
/* dst[i] = the value of the element. */
typedef void (*rdti_lossy_decode_fn)(float *dst, struct rdti_lossy_view in, uint64_t count,
                                     uint32_t block);
/* dst[i] = dst[i] + the value of the element. */
typedef void (*rdti_lossy_add_fn)(float *dst, struct rdti_lossy_view in, uint64_t count,
                                  uint32_t block);

struct rdti_lossy_loops {
    rdti_lossy_encode_fn encode;
    rdti_lossy_decode_fn decode;
    rdti_lossy_add_fn add;
};

/* The loops of each format; bf16 ignores `block` and `odd`. */
struct rdti_lossy_table {
    struct rdti_lossy_loops bf16;
    struct rdti_lossy_loops q8;
};

/* Plain C for any processor: the definition. */
extern const struct rdti_lossy_table rdti_lossy_generic;
#if defined(__x86_64__)
/* Only where rdti_lossy_has_avx2() or rdti_lossy_has_avx512() says so. */
extern const struct rdti_lossy_table rdti_lossy_avx2;
extern const struct rdti_lossy_table rdti_lossy_avx512;
#endif

int rdti_lossy_has_avx2(void);
int rdti_lossy_has_avx512(void); /* F, BW, DQ and VL */
/* The fastest table that this processor can run. */
const struct rdti_lossy_table *rdti_lossy_best(void);

#endif
