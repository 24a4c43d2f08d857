/* SPDX-License-Identifier: Apache-2.0
 * Rows pushed for the same id become one: summed in the order in which they come, or the last one.
 * Reused from batch to batch; its memory grows to the largest. One thread at a time. */
#ifndef RDTI_PS_MODEL_MERGE_H
#define RDTI_PS_MODEL_MERGE_H

#include <stdbool.h>
#include <stdint.h>

#include "ps/rules/rules.h"

struct rdti_ps_merge {
    uint64_t *ids; /* distinct ones, in the order of their first rows */
    float *rows;   /* of each: dim floats */
    uint64_t count;
    uint32_t dim;
    /* Private. */
    uint64_t rows_room;
    uint64_t ids_room;
    uint64_t entries_room; /* a power of two */
    uint32_t stamp;        /* entries with another one are empty */
    struct rdti_ps_merge_entry *entries;
};

void rdti_ps_merge_free(struct rdti_ps_merge *merge); /* zeroed memory is legal, and empty */
/* Start a batch of at most `most` ids. RDT_ENOMEM leaves the merge empty. */
rdt_status rdti_ps_merge_begin(struct rdti_ps_merge *merge, uint32_t dim, uint64_t most,
                               struct rdt_error *err);
/* The index of an id among the distinct ones; *is_new: it was not there. At most `most` ids. */
uint64_t rdti_ps_merge_find(struct rdti_ps_merge *merge, uint64_t id, bool *is_new);
/* Room for the rows of `most` ids; their content is undefined. */
rdt_status rdti_ps_merge_reserve_rows(struct rdti_ps_merge *merge, uint64_t most,
                                      struct rdt_error *err);
/* Merge one row; after rdti_ps_merge_reserve_rows(). */
void rdti_ps_merge_row(struct rdti_ps_merge *merge, const struct rdti_ps_kernels *kernels,
                       uint64_t id, const float *row, bool is_last);

#endif
