/* SPDX-License-Identifier: Apache-2.0
 * RDT_PS_CUSTOM: rows and their state are copied out, changed by the program together, and copied
 * back if it has succeeded. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/server/table.h"

struct custom_one {
    struct rdti_ps_table *table;
    struct rdt_ps_batch batch; /* count: of the rows in it so far */
    uint64_t *ids;             /* of those rows */
};

static rdt_status
custom_allocate(struct custom_one *one, uint64_t count, struct rdt_error *err)
{
    struct rdt_ps_batch *batch = &one->batch;
    const uint64_t floats = count * (2 * (uint64_t)batch->dim + batch->state_floats);

    one->ids = malloc(count * sizeof(*one->ids));
    batch->values = malloc(floats * sizeof(float));
    if (one->ids == NULL || batch->values == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for the %llu rows of one step",
                              (unsigned long long)count);
    batch->gradients = batch->values + count * batch->dim;
    batch->state = batch->gradients + count * batch->dim;
    return RDT_OK;
}

/* A row of a key that is not admitted yet is left out. */
static rdt_status
custom_copy_out(struct custom_one *one, uint64_t id, const float *gradient, struct rdt_error *err)
{
    struct rdti_ps_table *table = one->table;
    struct rdt_ps_batch *batch = &one->batch;
    const uint64_t dim_bytes = batch->dim * sizeof(float);
    const float *values;
    const float *state;

    if (table->pool != NULL) {
        float *record;
        const rdt_status status = rdti_ps_pool_write(table->pool, id, &record, err);
        if (status != RDT_OK || record == NULL)
            return status;
        values = record;
        state = record + table->pool->values_floats;
    } else {
        const uint64_t local = rdti_ps_map_local(&table->map, id);
        values = (const float *)(const void *)rdti_ps_table_row(table, local);
        state = rdti_ps_table_state(table, local);
    }
    memcpy(batch->values + batch->count * batch->dim, values, dim_bytes);
    memcpy(batch->gradients + batch->count * batch->dim, gradient, dim_bytes);
    memcpy(batch->state + batch->count * batch->state_floats, state,
           batch->state_floats * sizeof(float));
    one->ids[batch->count++] = id;
    return RDT_OK;
}

static rdt_status
custom_copy_back(struct custom_one *one, uint64_t index, struct rdt_error *err)
{
    struct rdti_ps_table *table = one->table;
    const struct rdt_ps_batch *batch = &one->batch;
    const float *values = batch->values + index * batch->dim;
    const float *state = batch->state + index * batch->state_floats;
    const uint64_t dim_bytes = batch->dim * sizeof(float);
    const uint64_t state_bytes = batch->state_floats * sizeof(float);

    if (table->pool != NULL) {
        float *record;
        const rdt_status status = rdti_ps_pool_rewrite(table->pool, one->ids[index], &record, err);
        if (status != RDT_OK || record == NULL)
            return status;
        memcpy(record, values, dim_bytes);
        memcpy(record + table->pool->values_floats, state, state_bytes);
        return RDT_OK;
    }
    const uint64_t local = rdti_ps_map_local(&table->map, one->ids[index]);
    rdti_ps_table_open_row(table, local);
    memcpy(rdti_ps_table_row(table, local), values, dim_bytes);
    memcpy(rdti_ps_table_state(table, local), state, state_bytes);
    rdti_ps_table_close_row(table, local);
    return RDT_OK;
}

/* A rule that fails without a reason has failed all the same. */
static rdt_status
custom_call(struct custom_one *one, struct rdt_error *err)
{
    const struct rdt_ps_table_opts *opts = &one->table->opts;
    const rdt_status status = (rdt_status)opts->apply(opts->apply_arg, &one->batch, err);

    if (status != RDT_OK && err->status == RDT_OK)
        return rdti_error_set(err, status, 0, "the rule of a table failed and gave no reason");
    return status;
}

rdt_status
rdti_ps_custom_apply(struct rdti_ps_table *table, double lr_scale, const uint64_t *ids,
                     const float *rows, uint64_t count, struct rdt_error *err)
{
    struct custom_one one = {.table = table,
                             .batch = {.struct_size = sizeof(one.batch),
                                       .dim = table->opts.dim,
                                       .state_floats = table->state_floats,
                                       .step = table->step,
                                       .lr_scale = lr_scale}};
    rdt_status status = count > 0 ? custom_allocate(&one, count, err) : RDT_OK;

    if (table->pool != NULL)
        rdti_ps_pool_begin_step(table->pool, table->step);
    for (uint64_t i = 0; i < count && status == RDT_OK; i++)
        status = custom_copy_out(&one, ids[i], rows + i * table->opts.dim, err);
    if (status == RDT_OK && one.batch.count > 0)
        status = custom_call(&one, err);
    for (uint64_t i = 0; i < one.batch.count && status == RDT_OK; i++)
        status = custom_copy_back(&one, i, err);
    free(one.batch.values);
    free(one.ids);
    return status;
}
