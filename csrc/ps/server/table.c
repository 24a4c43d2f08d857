/* SPDX-License-Identifier: Apache-2.0
 * Rows, their first values, and the application of a rule. */
#include "ps/server/table.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/description.h"
#include "ps/rows/first.h"
#include "ps/rows/saved.h"
#include "ps/model/version.h"
#include "wire/bytes.h"

uint8_t *
rdti_ps_table_row(const struct rdti_ps_table *table, uint64_t local)
{
    return (uint8_t *)rdt_region_addr(table->values) + local * rdti_ps_row_stride(table->opts.dim);
}

float *
rdti_ps_table_state(const struct rdti_ps_table *table, uint64_t local)
{
    return (float *)rdt_region_addr(table->state) + local * table->state_floats;
}

static void
table_fill(struct rdti_ps_table *table, uint32_t server)
{
    const struct rdt_ps_table_opts *opts = &table->opts;
    const float initial = rdti_ps_rule_initial(&opts->rule);
    float *state = rdt_region_addr(table->state);

    for (uint64_t i = 0; i < table->local_rows * table->state_floats; i++)
        state[i] = initial;
    if (opts->consistency == RDT_PS_ROW) /* they are zero */
        table->versions = (_Atomic uint32_t *)(void *)rdti_ps_table_row(table, table->local_rows);
    if (opts->init == RDT_PS_INIT_ZERO) /* the region is */
        return;
    for (uint32_t partition = 0; partition < RDTI_PS_PARTITIONS; partition++) {
        if (table->map.owner[partition] != server)
            continue;
        for (uint64_t id = partition; id < opts->rows; id += RDTI_PS_PARTITIONS) {
            uint8_t *row = rdti_ps_table_row(table, rdti_ps_map_local(&table->map, id));
            rdti_ps_first_row(opts, id, (float *)(void *)row);
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
    table->map.is_hashed = opts->keys != RDT_PS_KEYS_DENSE;
    if (status == RDT_OK && rdti_ps_is_pooled(opts))
        status = rdti_ps_pool_create(ctx, &table->opts, &table->map, server, &table->pool, err);
    table->opts.spill = NULL; /* the caller's */
    if (status == RDT_OK) {
        table->local_rows = table->pool != NULL ? 0 : rdti_ps_map_rows(&table->map, server);
        table->state_floats = rdti_ps_rule_state_floats(&opts->rule, opts->dim);
        status = rdt_region_alloc(ctx, rdti_ps_rows_bytes(opts, table->local_rows),
                                  RDT_REGION_ZERO | RDT_REGION_READ_ONLY, &table->values, err);
    }
    if (status == RDT_OK)
        status = rdt_region_alloc(ctx, table->local_rows * table->state_floats * sizeof(float), 0,
                                  &table->state, err);
    if (status == RDT_OK)
        status = rdti_ps_rows_init(&table->changed, table->local_rows, err);
    if (status != RDT_OK) {
        rdti_ps_table_destroy(table);
        return status;
    }
    rdti_ps_rows_add_all(&table->changed); /* no checkpoint has them */
    if (table->pool == NULL)
        table_fill(table, server);
    *out = table;
    return RDT_OK;
}

void
rdti_ps_table_destroy(struct rdti_ps_table *table)
{
    if (table == NULL)
        return;
    rdti_ps_table_end_snapshot(table, true);
    rdti_ps_rows_free(&table->changed);
    rdti_ps_pool_destroy(table->pool);
    rdt_region_free(table->values, NULL, NULL);
    rdt_region_free(table->state, NULL, NULL);
    free(table);
}

rdt_status
rdti_ps_table_check_ids(const struct rdti_ps_table *table, uint32_t server, const uint64_t *ids,
                        uint64_t count, struct rdt_error *err)
{
    for (uint64_t i = 0; i < count; i++) {
        if (!table->map.is_hashed && ids[i] >= table->map.rows)
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

rdt_status
rdti_ps_table_reserve(struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                      uint8_t *marks, struct rdt_error *err)
{
    return table->pool != NULL ? rdti_ps_pool_reserve(table->pool, ids, count, marks, err) : RDT_OK;
}

void
rdti_ps_table_unreserve(struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                        const uint8_t *marks)
{
    if (table->pool != NULL)
        rdti_ps_pool_unreserve(table->pool, ids, count, marks);
}

rdt_status
rdti_ps_table_gather(const struct rdti_ps_table *table, const uint64_t *ids, uint64_t count,
                     float *out, uint8_t *found, struct rdt_error *err)
{
    const uint32_t dim = table->opts.dim;
    bool is_found = true;

    for (uint64_t i = 0; i < count; i++) {
        const rdt_status status =
            table->pool != NULL
                ? rdti_ps_pool_read(table->pool, ids[i], out + i * dim, &is_found, err)
                : RDT_OK;
        if (status != RDT_OK)
            return status;
        if (table->pool == NULL)
            memcpy(out + i * dim, rdti_ps_table_row(table, rdti_ps_map_local(&table->map, ids[i])),
                   dim * sizeof(float));
        if (found != NULL)
            found[i] = is_found;
    }
    return RDT_OK;
}

static rdt_status
table_apply_to_pool(struct rdti_ps_table *table, rdti_ps_kernel update,
                    const struct rdti_ps_factors *factors, const uint64_t *ids, const float *rows,
                    uint64_t count, struct rdt_error *err)
{
    struct rdti_ps_pool *pool = table->pool;
    const uint32_t dim = table->opts.dim;
    float *record;

    rdti_ps_pool_begin_step(pool, table->step);
    for (uint64_t i = 0; i < count; i++) {
        const rdt_status status = rdti_ps_pool_write(pool, ids[i], &record, err);
        if (status != RDT_OK)
            return status;
        if (record != NULL)
            update(factors, record, record + pool->values_floats, rows + i * dim, dim);
    }
    return RDT_OK;
}

void
rdti_ps_table_open_row(struct rdti_ps_table *table, uint64_t local)
{
    if (table->snapshot != NULL)
        rdti_ps_snapshot_keep(table->snapshot, local,
                              (const float *)(const void *)rdti_ps_table_row(table, local),
                              rdti_ps_table_state(table, local));
    rdti_ps_rows_add(&table->changed, local);
    if (table->versions != NULL)
        rdti_ps_version_open(&table->versions[local]);
}

void
rdti_ps_table_close_row(struct rdti_ps_table *table, uint64_t local)
{
    if (table->versions != NULL)
        rdti_ps_version_close(&table->versions[local]);
}

rdt_status
rdti_ps_table_apply(struct rdti_ps_table *table, const struct rdti_ps_kernels *kernels,
                    double lr_scale, const uint64_t *ids, const float *rows, uint64_t count,
                    struct rdt_error *err)
{
    const uint32_t dim = table->opts.dim;
    const rdti_ps_kernel update = kernels->update[table->opts.rule.kind];
    struct rdti_ps_factors factors;

    table->step++;
    if (table->opts.rule.kind == RDT_PS_CUSTOM)
        return rdti_ps_custom_apply(table, lr_scale, ids, rows, count, err);
    rdti_ps_rule_factors(&table->opts.rule, table->step, lr_scale, &factors);
    if (table->pool != NULL)
        return table_apply_to_pool(table, update, &factors, ids, rows, count, err);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t local = rdti_ps_map_local(&table->map, ids[i]);
        rdti_ps_table_open_row(table, local);
        update(&factors, (float *)(void *)rdti_ps_table_row(table, local),
               rdti_ps_table_state(table, local), rows + i * dim, dim);
        rdti_ps_table_close_row(table, local);
    }
    return RDT_OK;
}

uint64_t
rdti_ps_table_values_bytes(const struct rdti_ps_table *table)
{
    const struct rdti_ps_pool *pool = table->pool;

    if (pool == NULL)
        return rdt_region_len_bytes(table->values);
    return rdti_ps_store_memory_bytes(&pool->store) / (pool->values_floats + pool->state_floats) *
           pool->values_floats;
}

uint64_t
rdti_ps_table_state_bytes(const struct rdti_ps_table *table)
{
    if (table->pool == NULL)
        return rdt_region_len_bytes(table->state);
    return rdti_ps_store_memory_bytes(&table->pool->store) - rdti_ps_table_values_bytes(table) +
           rdti_ps_pool_index_bytes(table->pool);
}

/* ---- Checkpoints ------------------------------------------------------------------------- */

rdt_status
rdti_ps_table_begin_snapshot(struct rdti_ps_table *table, bool is_increment, struct rdt_error *err)
{
    struct rdti_ps_rows more = {0};
    rdt_status status = rdti_ps_rows_init(&more, table->local_rows, err);

    if (status == RDT_OK)
        status = rdti_ps_snapshot_create(table->local_rows, table->opts.dim, table->state_floats,
                                         &table->snapshot, err);
    if (status == RDT_OK && table->pool != NULL) {
        status = rdti_ps_saved_begin(table->pool, err);
        if (status != RDT_OK)
            rdti_ps_snapshot_destroy(table->snapshot);
        if (status != RDT_OK)
            table->snapshot = NULL;
    }
    if (status != RDT_OK) {
        rdti_ps_rows_free(&more);
        return status;
    }
    table->snapshot->step = table->step;
    if (is_increment) {
        rdti_ps_rows_unite(&more, &table->changed);
        table->wanted = more;
    } else {
        table->before = table->changed;
        table->changed = more;
    }
    return RDT_OK;
}

void
rdti_ps_table_end_snapshot(struct rdti_ps_table *table, bool is_saved)
{
    if (!is_saved && table->before.words != NULL)
        rdti_ps_rows_unite(&table->changed, &table->before);
    rdti_ps_rows_free(&table->before);
    rdti_ps_rows_free(&table->wanted);
    rdti_ps_snapshot_destroy(table->snapshot);
    table->snapshot = NULL;
    if (table->pool != NULL)
        rdti_ps_saved_end(table->pool);
}

uint64_t
rdti_ps_table_record_bytes(const struct rdti_ps_table *table)
{
    if (table->pool != NULL)
        return rdti_ps_saved_record_bytes(table->pool);
    return sizeof(uint64_t) + (table->opts.dim + table->state_floats) * sizeof(float);
}

/* A record: the id, the values, and their state. */
static void
table_put_record(const struct rdti_ps_table *table, uint64_t id, uint64_t local, uint8_t *at)
{
    const uint64_t value_bytes = table->opts.dim * sizeof(float);
    const uint64_t state_bytes = table->state_floats * sizeof(float);
    const float *copy = rdti_ps_snapshot_find(table->snapshot, local);
    const float *state = rdt_region_addr(table->state);

    rdti_put_u64(at, id);
    at += sizeof(id);
    memcpy(at, copy != NULL ? (const void *)copy : rdti_ps_table_row(table, local), value_bytes);
    memcpy(at + value_bytes,
           copy != NULL ? copy + table->opts.dim : state + local * table->state_floats,
           state_bytes);
}

rdt_status
rdti_ps_table_read(struct rdti_ps_table *table, uint32_t partition, uint64_t *next, uint8_t *buf,
                   uint64_t cap, uint64_t *len_out, struct rdt_error *err)
{
    if (table->pool != NULL)
        return rdti_ps_saved_read(table->pool, partition, next, buf, cap, len_out, err);
    const uint64_t record_bytes = rdti_ps_table_record_bytes(table);
    const uint64_t rows = rdti_ps_map_partition_rows(&table->map, partition);
    uint64_t used = 0;

    for (; *next < rows && used + record_bytes <= cap; (*next)++) {
        const uint64_t local = table->map.base[partition] + *next;
        if (table->wanted.words != NULL && !rdti_ps_rows_has(&table->wanted, local))
            continue;
        table_put_record(table, partition + *next * RDTI_PS_PARTITIONS, local, buf + used);
        used += record_bytes;
    }
    table->snapshot->read = table->map.base[partition] + *next;
    *len_out = used;
    return RDT_OK;
}

rdt_status
rdti_ps_table_write(struct rdti_ps_table *table, uint32_t server, const uint8_t *records,
                    uint64_t count, struct rdt_error *err)
{
    const uint64_t value_bytes = table->opts.dim * sizeof(float);
    float *state = rdt_region_addr(table->state);

    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *at = records + i * rdti_ps_table_record_bytes(table);
        const uint64_t id = rdti_get_u64(at);
        const rdt_status status = rdti_ps_table_check_ids(table, server, &id, 1, err);
        if (status != RDT_OK)
            return status;
        if (table->pool != NULL)
            continue;
        const uint64_t local = rdti_ps_map_local(&table->map, id);
        memcpy(rdti_ps_table_row(table, local), at + sizeof(id), value_bytes);
        memcpy(state + local * table->state_floats, at + sizeof(id) + value_bytes,
               table->state_floats * sizeof(float));
    }
    return table->pool != NULL ? rdti_ps_saved_write(table->pool, records, count, err) : RDT_OK;
}
