/* SPDX-License-Identifier: Apache-2.0
 * A server's part of a table: rows of fixed stride, which workers may read in place, and their
 * state, which they may not. */
#ifndef RDTI_PS_SERVER_TABLE_H
#define RDTI_PS_SERVER_TABLE_H

#include <stdbool.h>

#include "ps/model/map.h"
#include "ps/rows/pool.h"
#include "ps/rules/rules.h"

struct rdti_ps_table {
    struct rdt_ps_table_opts opts;
    struct rdti_ps_map map;
    uint64_t local_rows;
    uint64_t state_floats; /* of one row */
    rdt_region *values;    /* these two are empty if there is a pool */
    rdt_region *state;
    struct rdti_ps_pool *pool; /* or NULL */
    uint64_t step;             /* applications so far */
    bool is_pushed;            /* since the last application */
};

rdt_status rdti_ps_table_create(rdt_context *ctx, const struct rdt_ps_table_opts *opts,
                                uint32_t server, uint32_t servers, struct rdti_ps_table **out,
                                struct rdt_error *err);
void rdti_ps_table_destroy(struct rdti_ps_table *table); /* NULL is legal */
/* RDT_EINVAL: an id is out of range, or its row is on another server. */
rdt_status rdti_ps_table_check_ids(const struct rdti_ps_table *table, uint32_t server,
                                   const uint64_t *ids, uint64_t count, struct rdt_error *err);
/* Memory for pushes of valid ids, until rdti_ps_table_unreserve() with the same marks, a byte for
 * each. RDT_ENOMEM, RDT_EDEVICE: nothing is reserved. */
rdt_status rdti_ps_table_reserve(struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                                 uint8_t *marks, struct rdt_error *err);
void rdti_ps_table_unreserve(struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                             const uint8_t *marks);
/* Rows of valid ids into out[count][dim]; found, or NULL: 1 for rows that are there. RDT_EDEVICE:
 * the file of rows. */
rdt_status rdti_ps_table_gather(const struct rdti_ps_table *table, const uint64_t *ids,
                                uint64_t count, float *out, uint8_t *found, struct rdt_error *err);
/* Apply the rule to rows of valid, distinct ids. RDT_EDEVICE: the file of rows; some rows are
 * applied. */
rdt_status rdti_ps_table_apply(struct rdti_ps_table *table, const struct rdti_ps_kernels *kernels,
                               double lr_scale, const uint64_t *ids, const float *rows,
                               uint64_t count, struct rdt_error *err);
uint64_t rdti_ps_table_values_bytes(const struct rdti_ps_table *table);
uint64_t rdti_ps_table_state_bytes(const struct rdti_ps_table *table);

#endif
