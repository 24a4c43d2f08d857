/* SPDX-License-Identifier: Apache-2.0
 * The description of a table, which servers and workers check in the same way. */
#ifndef RDTI_PS_MODEL_DESCRIPTION_H
#define RDTI_PS_MODEL_DESCRIPTION_H

#include <stdbool.h>

#include "rdmatensor_ps.h"

/* Whether rows have places that workers cannot compute: of keys, or in a file. */
static inline bool
rdti_ps_is_pooled(const struct rdt_ps_table_opts *opts)
{
    return opts->keys != RDT_PS_KEYS_DENSE || opts->memory_bytes > 0;
}

/* Bytes from one row to the next. */
uint64_t rdti_ps_row_stride(uint32_t dim);
/* RDT_EINVAL: a field is out of range. */
/* The bytes of `rows` rows, followed by a version of 4 bytes for each if the table has them. */
uint64_t rdti_ps_rows_bytes(const struct rdt_ps_table_opts *opts, uint64_t rows);
rdt_status rdti_ps_description_check(const struct rdt_ps_table_opts *opts, struct rdt_error *err);

#endif
