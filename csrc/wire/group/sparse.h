/* SPDX-License-Identifier: Apache-2.0
 * What members exchange about a sparse tensor: the number of its entries and their indices, as
 * 64-bit integers like those of torch. An index selects an entry of a table, so none may be out of
 * range. */
#ifndef RDTI_WIRE_GROUP_SPARSE_H
#define RDTI_WIRE_GROUP_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a coalesced tensor whose sparse dimensions have these sizes can have `count` entries. */
bool rdti_sparse_count_fits(int64_t count, const int64_t *sizes, size_t dims);
/* Whether the first `count` indices of each of `dims` rows of `stride` are in range;
 * count <= stride. */
bool rdti_sparse_indices_fit(const int64_t *indices, size_t stride, size_t count,
                             const int64_t *sizes, size_t dims);

#endif
