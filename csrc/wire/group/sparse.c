/* SPDX-License-Identifier: Apache-2.0
 * Checks of the entries of sparse tensors. */
#include "wire/group/sparse.h"

bool
rdti_sparse_count_fits(int64_t count, const int64_t *sizes, size_t dims)
{
    int64_t most = 1;

    if (count < 0)
        return false;
    for (size_t i = 0; i < dims; i++)
        if (sizes[i] == 0)
            return count == 0;
    /* A product that overflows exceeds any count. */
    for (size_t i = 0; i < dims && most < count; i++)
        if (__builtin_mul_overflow(most, sizes[i], &most))
            return true;
    return count <= most;
}

bool
rdti_sparse_indices_fit(const int64_t *indices, size_t stride, size_t count, const int64_t *sizes,
                        size_t dims)
{
    bool fit = true;

    for (size_t row = 0; row < dims; row++)
        for (size_t i = 0; i < count; i++) {
            const int64_t index = indices[row * stride + i];
            fit &= index >= 0 && index < sizes[row];
        }
    return fit;
}
