/* SPDX-License-Identifier: Apache-2.0
 * What members tell each other of a sparse tensor: how many entries theirs has, and where these
 * lie, in integers of 64 bits as torch has them. It is taken for an entry of a table, so that none
 * may lead outside. */
#ifndef RDTI_WIRE_SPARSE_H
#define RDTI_WIRE_SPARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `count` is a number of entries that a coalesced tensor can have whose sparse dimensions have
 * these sizes. */
bool rdti_sparse_count_fits(int64_t count, const int64_t *sizes, size_t dims);
/* The first `count` of each of `dims` rows of `stride` indices, count <= stride, are inside. */
bool rdti_sparse_indices_fit(const int64_t *indices, size_t stride, size_t count,
                             const int64_t *sizes, size_t dims);

#endif
