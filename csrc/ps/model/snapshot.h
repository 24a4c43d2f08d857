/* SPDX-License-Identifier: Apache-2.0
 * A table's rows as they were at one moment, while steps go on: a row is copied before its first
 * change since then, unless it was read before. Rows are read in their order. Not for several
 * threads. */
#ifndef RDTI_PS_MODEL_SNAPSHOT_H
#define RDTI_PS_MODEL_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>

#include "rdmatensor_ps.h"

/* A set of rows: a bit for each. */
struct rdti_ps_rows {
    uint64_t rows;
    uint64_t *words;
};

rdt_status rdti_ps_rows_init(struct rdti_ps_rows *set, uint64_t rows, struct rdt_error *err);
void rdti_ps_rows_free(struct rdti_ps_rows *set); /* zeroed memory is legal */
void rdti_ps_rows_add_all(struct rdti_ps_rows *set);
void rdti_ps_rows_unite(struct rdti_ps_rows *set, const struct rdti_ps_rows *other);

static inline void
rdti_ps_rows_add(struct rdti_ps_rows *set, uint64_t row)
{
    set->words[row / 64] |= UINT64_C(1) << row % 64;
}

static inline bool
rdti_ps_rows_has(const struct rdti_ps_rows *set, uint64_t row)
{
    return (set->words[row / 64] >> row % 64 & 1) != 0;
}

struct rdti_ps_snapshot {
    uint64_t rows;
    uint32_t value_floats;
    uint64_t state_floats;
    uint64_t read;     /* rows before it were read */
    uint64_t step;     /* of the table at that moment */
    uint32_t *copy_of; /* of each row: its copy, from 1 on, or 0 */
    uint32_t copies;
    float **blocks; /* of copies: values, and then their state */
    uint32_t block_room;
    uint32_t block_copies; /* of each block */
    bool has_failed;       /* there was no memory for a copy */
};

/* RDT_ENOMEM: nothing was made. */
rdt_status rdti_ps_snapshot_create(uint64_t rows, uint32_t value_floats, uint64_t state_floats,
                                   struct rdti_ps_snapshot **out, struct rdt_error *err);
void rdti_ps_snapshot_destroy(struct rdti_ps_snapshot *snapshot); /* NULL is legal */
/* The row is going to change. */
void rdti_ps_snapshot_keep(struct rdti_ps_snapshot *snapshot, uint64_t row, const float *value,
                           const float *state);
/* The copy of a row's values and state, or NULL: the row has not changed. */
const float *rdti_ps_snapshot_find(const struct rdti_ps_snapshot *snapshot, uint64_t row);

#endif
