/* SPDX-License-Identifier: Apache-2.0
 * Rows, their first values, and the application of a rule. */
#include "ps/server/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/description.h"

/* ---- First values: from the seed, the id and the column alone --------------------------- */

static uint64_t
table_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* From 0 to below 1, of 24 bits, which a float holds exactly. */
static double
table_unit(uint64_t bits)
{
    return (double)(bits >> 40) / 16777216.0;
}

static float
table_first_value(const struct rdt_ps_table_opts *opts, uint64_t row_seed, uint32_t column)
{
    const uint64_t bits = table_mix(row_seed + column);

    switch (opts->init) {
    case RDT_PS_INIT_CONSTANT:
        return (float)opts->init_from;
    case RDT_PS_INIT_UNIFORM:
        return (float)(opts->init_from + (opts->init_to - opts->init_from) * table_unit(bits));
    case RDT_PS_INIT_NORMAL: { /* Box and Muller; 1 - u is not 0 */
        const double radius = sqrt(-2.0 * log(1.0 - table_unit(bits)));
        const double angle = 6.283185307179586 * table_unit(table_mix(bits));
        return (float)(opts->init_from + opts->init_to * radius * cos(angle));
    }
    default:
        return 0.0f;
    }
}

static uint8_t *
table_row(const struct rdti_ps_table *table, uint64_t local)
{
    return (uint8_t *)rdt_region_addr(table->values) + local * rdti_ps_row_stride(table->opts.dim);
}

static void
table_fill(struct rdti_ps_table *table, uint32_t server)
{
    const struct rdt_ps_table_opts *opts = &table->opts;
    const float initial = rdti_ps_rule_initial(&opts->rule);
    float *state = rdt_region_addr(table->state);

    for (uint64_t i = 0; i < table->local_rows * table->state_floats; i++)
        state[i] = initial;
    if (opts->init == RDT_PS_INIT_ZERO) /* the region is */
        return;
    for (uint32_t partition = 0; partition < RDTI_PS_PARTITIONS; partition++) {
        if (table->map.owner[partition] != server)
            continue;
        for (uint64_t id = partition; id < opts->rows; id += RDTI_PS_PARTITIONS) {
            float *row = (float *)(void *)table_row(table, rdti_ps_map_local(&table->map, id));
            const uint64_t row_seed = table_mix(opts->seed ^ table_mix(id));
            for (uint32_t column = 0; column < opts->dim; column++)
                row[column] = table_first_value(opts, row_seed, column);
        }
    }
}

rdt_status
rdti_ps_table_create(rdt_context *ctx, const struct rdt_ps_table_opts *opts, uint32_t server,
                     uint32_t servers, struct rdti_ps_table **out, struct rdt_error *err)
{
    struct rdti_ps_table *table;
    rdt_status status = rdti_ps_description_check(opts, err);

    if (status != RDT_OK)
        return status;
    table = calloc(1, sizeof(*table));
    if (table == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a table of %zu B", sizeof(*table));
    table->opts = *opts;
    status = rdti_ps_map_init(&table->map, servers, opts->rows, err);
    if (status == RDT_OK) {
        table->local_rows = rdti_ps_map_rows(&table->map, server);
        table->state_floats = rdti_ps_rule_state_floats(&opts->rule, opts->dim);
        status = rdt_region_alloc(ctx, table->local_rows * rdti_ps_row_stride(opts->dim),
                                  RDT_REGION_ZERO, &table->values, err);
    }
    if (status == RDT_OK)
        status = rdt_region_alloc(ctx, table->local_rows * table->state_floats * sizeof(float), 0,
                                  &table->state, err);
    if (status != RDT_OK) {
        rdti_ps_table_destroy(table);
        return status;
    }
    table_fill(table, server);
    *out = table;
    return RDT_OK;
}

void
rdti_ps_table_destroy(struct rdti_ps_table *table)
{
    if (table == NULL)
        return;
    rdt_region_free(table->values, NULL, NULL);
    rdt_region_free(table->state, NULL, NULL);
    free(table);
}

rdt_status
rdti_ps_table_check_ids(const struct rdti_ps_table *table, uint32_t server, const uint64_t *ids,
                        uint64_t count, struct rdt_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        if (ids[i] >= table->map.rows)
            return rdti_error_set(err, RDT_EINVAL, 0, "id %lld is not from 0 to %llu",
                                  (long long)ids[i], (unsigned long long)table->map.rows - 1);
        if (rdti_ps_map_owner(&table->map, ids[i]) != server)
            return rdti_error_set(err, RDT_EINVAL, 0,
                                  "the row of id %llu is on server %u, not on server %u",
                                  (unsigned long long)ids[i],
                                  rdti_ps_map_owner(&table->map, ids[i]), server);
    }
    return RDT_OK;
}

void
rdti_ps_table_gather(const struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                     float *out)
{
    const uint32_t dim = table->opts.dim;

    for (uint64_t i = 0; i < count; i++)
        memcpy(out + i * dim, table_row(table, rdti_ps_map_local(&table->map, ids[i])),
               dim * sizeof(float));
}

void
rdti_ps_table_apply(struct rdti_ps_table *table, const struct rdti_ps_kernels *kernels,
                    double lr_scale, const uint64_t *ids, const float *rows, uint64_t count)
{
    const uint32_t dim = table->opts.dim;
    const rdti_ps_kernel update = kernels->update[table->opts.rule.kind];
    float *state = rdt_region_addr(table->state);
    struct rdti_ps_factors factors;

    table->step++;
    rdti_ps_rule_factors(&table->opts.rule, table->step, lr_scale, &factors);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t local = rdti_ps_map_local(&table->map, ids[i]);
        update(&factors, (float *)(void *)table_row(table, local),
               state + local * table->state_floats, rows + i * dim, dim);
    }
}

uint64_t
rdti_ps_table_values_bytes(const struct rdti_ps_table *table)
{
    return rdt_region_len_bytes(table->values);
}

uint64_t
rdti_ps_table_state_bytes(const struct rdti_ps_table *table)
{
    return rdt_region_len_bytes(table->state);
}
