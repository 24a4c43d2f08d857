/* SPDX-License-Identifier: Apache-2.0
 * Element-wise reductions: immutable tables by dtype and operation.
 *
 * What the operations mean, the same in every table, bit for bit:
 *   integers  wrap; AVG divides the sum, which may have wrapped, and truncates toward zero
 *   bool      any byte but 0 is true, results are 0 or 1: SUM, MAX, BOR are "or", PRODUCT, MIN,
 *             BAND are "and"; AVG is refused (it has no entry)
 *   floats    one IEEE operation, rounded to nearest even; bitwise operations are refused
 *   f16 bf16  widened to f32, computed there, rounded back to nearest even: by `reduce` for its two
 *             operands, by `fold` once for all of its operands and the division
 *   MIN MAX   a NaN on either side gives a NaN, as torch.minimum() does; of two equal values, which
 *             differ for zeros only, the right one is taken
 *   complex   SUM, AVG and PRODUCT only; the product is the school formula, without the rescue of
 *             infinities that C's own operator has
 *   AVG       its entry is the sum; `divide` by the number of members follows once at the end
 */
#ifndef RDTI_COLLECTIVES_REDUCE_KERNELS_H
#define RDTI_COLLECTIVES_REDUCE_KERNELS_H

#include "rdmatensor.h"

enum {
    RDTI_DTYPE_LIMIT = RDT_C128 + 1,
    RDTI_REDUCE_OP_LIMIT = RDT_BXOR + 1,
};

/*
 * dst[i] = lhs[i] op rhs[i]. dst may equal lhs or rhs but must not overlap them otherwise; any
 * alignment that the element type has. The order of operands is kept: the bits of NaNs depend on
 * it.
 */
typedef void (*rdti_reduce_fn)(void *dst, const void *lhs, const void *rhs, uint64_t count);
/* dst[i] = dst[i] / divisor. */
typedef void (*rdti_divide_fn)(void *dst, uint64_t count, uint32_t divisor);
/* dst[i] = (in[0][i] op in[1][i] op ...) / divisor, left to right. dst may equal any operand. */
typedef void (*rdti_fold_fn)(void *dst, const uint8_t *const *in, uint32_t operands, uint64_t count,
                             uint32_t divisor);

/* NULL: the operation has no meaning for the dtype. */
struct rdti_reduce_table {
    rdti_reduce_fn reduce[RDTI_DTYPE_LIMIT][RDTI_REDUCE_OP_LIMIT];
    rdti_divide_fn divide[RDTI_DTYPE_LIMIT];
    /* NULL also where reducing two operands at a time loses nothing. */
    rdti_fold_fn fold[RDTI_DTYPE_LIMIT][RDTI_REDUCE_OP_LIMIT];
};

/* Plain C for any processor. */
extern const struct rdti_reduce_table rdti_reduce_generic;
#if defined(__x86_64__)
/* The same loops compiled for AVX2, with F16C: only where rdti_reduce_has_avx2() says so. */
extern const struct rdti_reduce_table rdti_reduce_avx2;
#endif

int rdti_reduce_has_avx2(void);
/* The fastest table that this processor can run. */
const struct rdti_reduce_table *rdti_reduce_best(void);

#endif
