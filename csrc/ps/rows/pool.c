/* SPDX-License-Identifier: Apache-2.0
 * From ids to records. */
#include "ps/rows/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/description.h"
#include "ps/rows/first.h"
#include "ps/rows/saved.h"
#include "ps/rules/rules.h"

enum { RECORD_ALIGN_BYTES = 16 };

/* This server's part of a number for all: by its partitions, and not 0. */
static uint64_t
pool_share(const struct rdti_ps_map *map, uint32_t server, uint64_t of_all)
{
    uint64_t owned = 0;

    for (uint32_t partition = 0; partition < RDTI_PS_PARTITIONS; partition++)
        owned += map->owner[partition] == server;
    const uint64_t share = of_all / RDTI_PS_PARTITIONS * owned +
                           of_all % RDTI_PS_PARTITIONS * owned / RDTI_PS_PARTITIONS;
    return of_all > 0 && share == 0 ? 1 : share;
}

static rdt_status
pool_init_keys(struct rdti_ps_pool *pool, uint32_t server, struct rdt_error *err)
{
    const struct rdti_ps_keys_opts opts = {
        .capacity = pool_share(pool->map, server, pool->opts->capacity),
        .expire_after = pool->opts->expire_after,
        .admit_after = pool->opts->admit_after,
        .evict = pool->opts->evict,
    };

    return rdti_ps_keys_init(&pool->keys, &opts, err);
}

rdt_status
rdti_ps_pool_create(rdt_context *ctx, const struct rdt_ps_table_opts *opts,
                    const struct rdti_ps_map *map, uint32_t server, struct rdti_ps_pool **out,
                    struct rdt_error *err)
{
    struct rdti_ps_pool *pool = calloc(1, sizeof(*pool));
    rdt_status status = RDT_OK;

    if (pool == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a table of %zu B", sizeof(*pool));
    pool->opts = opts;
    pool->map = map;
    pool->state_floats = rdti_ps_rule_state_floats(&opts->rule, opts->dim);
    pool->values_floats = rdti_ps_row_stride(opts->dim) / sizeof(float);
    const uint64_t bytes = (pool->values_floats + pool->state_floats) * sizeof(float);
    pool->store.fd = -1; /* what is freed if the keys fail */
    if (rdti_ps_pool_has_keys(pool))
        status = pool_init_keys(pool, server, err);
    if (status == RDT_OK)
        status = rdti_ps_store_init(&pool->store, ctx,
                                    (bytes + RECORD_ALIGN_BYTES - 1) / RECORD_ALIGN_BYTES *
                                        RECORD_ALIGN_BYTES,
                                    opts->spill, pool_share(map, server, opts->memory_bytes), err);
    if (status == RDT_OK && !rdti_ps_pool_has_keys(pool))
        status = rdti_ps_store_reserve(&pool->store, rdti_ps_map_rows(map, server), err);
    if (status != RDT_OK) {
        rdti_ps_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return RDT_OK;
}

void
rdti_ps_pool_destroy(struct rdti_ps_pool *pool)
{
    if (pool == NULL)
        return;
    rdti_ps_saved_end(pool);
    rdti_ps_keys_free(&pool->keys);
    rdti_ps_store_free(&pool->store);
    free(pool);
}

rdt_status
rdti_ps_pool_reserve(struct rdti_ps_pool *pool, const uint64_t *ids, uint64_t count, uint8_t *marks,
                     struct rdt_error *err)
{
    rdt_status status;

    if (!rdti_ps_pool_has_keys(pool))
        return RDT_OK;
    status = rdti_ps_keys_reserve(&pool->keys, ids, count, marks, err);
    if (status != RDT_OK)
        return status;
    status = rdti_ps_store_reserve(&pool->store, rdti_ps_keys_rows_most(&pool->keys), err);
    if (status != RDT_OK)
        rdti_ps_keys_unreserve(&pool->keys, ids, count, marks);
    return status;
}

void
rdti_ps_pool_unreserve(struct rdti_ps_pool *pool, const uint64_t *ids, uint64_t count,
                       const uint8_t *marks)
{
    if (rdti_ps_pool_has_keys(pool))
        rdti_ps_keys_unreserve(&pool->keys, ids, count, marks);
}

void
rdti_ps_pool_fill(const struct rdti_ps_pool *pool, uint64_t id, float *record)
{
    const float initial = rdti_ps_rule_initial(&pool->opts->rule);

    rdti_ps_first_row(pool->opts, id, record);
    for (uint64_t i = pool->opts->dim; i < pool->values_floats; i++)
        record[i] = 0.0f;
    for (uint64_t i = 0; i < pool->state_floats; i++)
        record[pool->values_floats + i] = initial;
}

rdt_status
rdti_ps_pool_read(struct rdti_ps_pool *pool, uint64_t id, float *out, bool *is_found,
                  struct rdt_error *err)
{
    const struct rdti_ps_key *key = NULL;
    uint64_t row;
    float *record;

    *is_found = true;
    if (rdti_ps_pool_has_keys(pool)) {
        key = rdti_ps_keys_find(&pool->keys, id);
        *is_found = key != NULL && key->row != RDTI_PS_NO_ROW;
        pool->hits += *is_found;
        pool->misses += !*is_found;
        if (!*is_found) {
            rdti_ps_first_row(pool->opts, id, out);
            return RDT_OK;
        }
        row = key->row;
    } else {
        row = rdti_ps_map_local(pool->map, id);
    }
    bool has_content;
    const rdt_status status =
        rdti_ps_store_record(&pool->store, row, false, &record, &has_content, err);
    if (status != RDT_OK)
        return status;
    if (!has_content)
        rdti_ps_pool_fill(pool, id, record);
    memcpy(out, record, pool->opts->dim * sizeof(float));
    return RDT_OK;
}

void
rdti_ps_pool_begin_step(struct rdti_ps_pool *pool, uint64_t step)
{
    if (rdti_ps_pool_has_keys(pool))
        rdti_ps_keys_begin_step(&pool->keys, step);
}

rdt_status
rdti_ps_pool_write(struct rdti_ps_pool *pool, uint64_t id, float **out, struct rdt_error *err)
{
    uint64_t row;
    bool is_new = false;
    bool has_content;

    *out = NULL;
    rdti_ps_saved_keep(pool, id);
    if (rdti_ps_pool_has_keys(pool)) {
        const struct rdti_ps_key *key = rdti_ps_keys_push(&pool->keys, id, &is_new);
        if (key->row == RDTI_PS_NO_ROW)
            return RDT_OK;
        row = key->row;
    } else {
        row = rdti_ps_map_local(pool->map, id);
    }
    const rdt_status status = rdti_ps_store_record(&pool->store, row, true, out, &has_content, err);
    if (status == RDT_OK && (is_new || !has_content))
        rdti_ps_pool_fill(pool, id, *out);
    return status;
}

rdt_status
rdti_ps_pool_rewrite(struct rdti_ps_pool *pool, uint64_t id, float **out, struct rdt_error *err)
{
    uint64_t row;
    bool has_content;

    *out = NULL;
    if (rdti_ps_pool_has_keys(pool)) {
        const struct rdti_ps_key *key = rdti_ps_keys_find(&pool->keys, id);
        if (key == NULL || key->row == RDTI_PS_NO_ROW)
            return RDT_OK;
        row = key->row;
    } else {
        row = rdti_ps_map_local(pool->map, id);
    }
    return rdti_ps_store_record(&pool->store, row, true, out, &has_content, err);
}

uint64_t
rdti_ps_pool_index_bytes(const struct rdti_ps_pool *pool)
{
    return rdti_ps_keys_bytes(&pool->keys) + rdti_ps_keys_bytes(&pool->store.frames);
}

void
rdti_ps_pool_counters(const struct rdti_ps_pool *pool, struct rdt_ps_table_counters *out)
{
    const struct rdti_ps_keys *keys = &pool->keys;

    out->memory_bytes = rdti_ps_store_memory_bytes(&pool->store);
    out->file_bytes = rdti_ps_store_file_bytes(&pool->store);
    out->file_reads = pool->store.reads;
    out->file_writes = pool->store.writes;
    out->index_bytes = rdti_ps_pool_index_bytes(pool);
    if (!rdti_ps_pool_has_keys(pool))
        return;
    out->rows = keys->admitted.count;
    out->filtered = keys->filtered.count;
    out->capacity = keys->opts.capacity;
    out->hits = pool->hits;
    out->misses = pool->misses;
    out->admissions = keys->admissions;
    out->evictions = keys->evictions;
    out->expirations = keys->expirations;
    out->forgotten = keys->forgotten;
    out->epoch = keys->epoch;
}
