/* SPDX-License-Identifier: Apache-2.0
 * A server's part of a table: rows of fixed stride, which workers may read in place, and their
 * state, which they may not. */
#ifndef RDTI_PS_SERVER_TABLE_H
#define RDTI_PS_SERVER_TABLE_H

#include <stdbool.h>

#include "ps/model/map.h"
#include "ps/rules/rules.h"

struct rdti_ps_table {
    struct rdt_ps_table_opts opts;
    struct rdti_ps_map map;
    uint64_t local_rows;
    uint64_t state_floats; /* of one row */
    rdt_region *values;
    rdt_region *state;
    uint64_t step;  /* applications so far */
    bool is_pushed; /* since the last application */
};

rdt_status rdti_ps_table_create(rdt_context *ctx, const struct rdt_ps_table_opts *opts,
                                uint32_t server, uint32_t servers, struct rdti_ps_table **out,
                                struct rdt_error *err);
void rdti_ps_table_destroy(struct rdti_ps_table *table); /* NULL is legal */
/* RDT_EINVAL: an id is out of range, or its row is on another server. */
rdt_status rdti_ps_table_check_ids(const struct rdti_ps_table *table, uint32_t server,
                                   const uint64_t *ids, uint64_t count, struct rdt_error *err);
/* Rows of valid ids into out[count][dim]. */
void rdti_ps_table_gather(const struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                          float *out);
/* Apply the rule to rows of valid, distinct ids. */
void rdti_ps_table_apply(struct rdti_ps_table *table, const struct rdti_ps_kernels *kernels,
                         double lr_scale, const uint64_t *ids, const float *rows, uint64_t count);
uint64_t rdti_ps_table_values_bytes(const struct rdti_ps_table *table);
uint64_t rdti_ps_table_state_bytes(const struct rdti_ps_table *table);

#endif
