/* SPDX-License-Identifier: Apache-2.0
 * Copies of what changes, by partition. */
#include "ps/rows/saved.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "wire/bytes.h"

struct saved_bytes {
    uint8_t *bytes;
    uint64_t used;
    uint64_t room;
};

struct rdti_ps_saved {
    uint64_t order;       /* of the last push before; with keys */
    uint64_t *is_changed; /* a bit for each row; without keys */
    bool is_read[RDTI_PS_PARTITIONS];
    struct saved_bytes copies[RDTI_PS_PARTITIONS];
    struct saved_bytes page; /* all records of the partition that is read */
    struct rdt_error failure;
};

uint64_t
rdti_ps_saved_record_bytes(const struct rdti_ps_pool *pool)
{
    return sizeof(uint64_t) + (pool->opts->dim + pool->state_floats) * sizeof(float) +
           (rdti_ps_pool_has_keys(pool) ? RDTI_PS_SAVED_KEY_BYTES : 0);
}

/* ---- Records ----------------------------------------------------------------------------- */

/* Room for one more record, or NULL. */
static uint8_t *
saved_append(struct rdti_ps_pool *pool, struct saved_bytes *to, struct rdt_error *err)
{
    const uint64_t record_bytes = rdti_ps_saved_record_bytes(pool);

    if (to->used + record_bytes > to->room) {
        const uint64_t room = to->room > 0 ? 2 * to->room : 4 * record_bytes;
        uint8_t *bytes = realloc(to->bytes, room);
        if (bytes == NULL) {
            (void)rdti_error_set(err, RDT_ENOMEM, 0,
                                 "no memory for %llu B of rows that change while they are saved",
                                 (unsigned long long)room);
            return NULL;
        }
        to->bytes = bytes;
        to->room = room;
    }
    to->used += record_bytes;
    return to->bytes + to->used - record_bytes;
}

static void
saved_put_key(const struct rdti_ps_key *key, uint8_t *at)
{
    rdti_put_u64(at, key->last);
    rdti_put_u64(at + 8, key->order);
    rdti_put_u32(at + 16, key->count);
    rdti_put_u32(at + 20, key->epoch);
    rdti_put_u32(at + 24, key->row != RDTI_PS_NO_ROW);
    rdti_put_u32(at + 28, 0);
}

/* The record of a row or of a key, which may have none; row: without keys. */
static rdt_status
saved_copy(struct rdti_ps_pool *pool, uint64_t id, uint64_t row, const struct rdti_ps_key *key,
           struct saved_bytes *to, struct rdt_error *err)
{
    const uint64_t value_bytes = pool->opts->dim * sizeof(float);
    const uint64_t state_bytes = pool->state_floats * sizeof(float);
    bool has_content = key == NULL || key->row != RDTI_PS_NO_ROW;
    float *record = NULL;
    rdt_status status = RDT_OK;

    if (has_content)
        status = rdti_ps_store_record(&pool->store, key != NULL ? key->row : row, false, &record,
                                      &has_content, err);
    if (status != RDT_OK)
        return status;
    if (key == NULL && !has_content) {
        rdti_ps_pool_fill(pool, id, record);
        has_content = true;
    }
    uint8_t *at = saved_append(pool, to, err);
    if (at == NULL)
        return RDT_ENOMEM;
    rdti_put_u64(at, id);
    at += sizeof(id);
    memset(at, 0, value_bytes + state_bytes);
    if (has_content) {
        memcpy(at, record, value_bytes);
        memcpy(at + value_bytes, record + pool->values_floats, state_bytes);
    }
    if (key != NULL)
        saved_put_key(key, at + value_bytes + state_bytes);
    return RDT_OK;
}

/* ---- While steps go on ------------------------------------------------------------------- */

/* An entry is about to change, or to be forgotten. */
static void
saved_keep_key(void *arg, const struct rdti_ps_key *key)
{
    struct rdti_ps_pool *pool = arg;
    struct rdti_ps_saved *saved = pool->saved;
    const uint32_t partition = (uint32_t)(rdti_ps_map_hash(key->key) % RDTI_PS_PARTITIONS);

    if (saved->is_read[partition] || key->order > saved->order || saved->failure.status != RDT_OK)
        return;
    (void)saved_copy(pool, key->key, 0, key, &saved->copies[partition], &saved->failure);
}

void
rdti_ps_saved_keep(struct rdti_ps_pool *pool, uint64_t id)
{
    struct rdti_ps_saved *saved = pool->saved;

    if (saved == NULL || saved->failure.status != RDT_OK)
        return;
    if (rdti_ps_pool_has_keys(pool)) {
        const struct rdti_ps_key *key = rdti_ps_keys_find(&pool->keys, id);
        if (key != NULL)
            saved_keep_key(pool, key);
        return;
    }
    const uint64_t row = rdti_ps_map_local(pool->map, id);
    const uint32_t partition = (uint32_t)(id % RDTI_PS_PARTITIONS);
    const uint64_t bit = UINT64_C(1) << row % 64;
    if (saved->is_read[partition] || (saved->is_changed[row / 64] & bit) != 0)
        return;
    saved->is_changed[row / 64] |= bit;
    (void)saved_copy(pool, id, row, NULL, &saved->copies[partition], &saved->failure);
}

rdt_status
rdti_ps_saved_begin(struct rdti_ps_pool *pool, struct rdt_error *err)
{
    struct rdti_ps_saved *saved;

    if (pool->saved != NULL)
        return rdti_error_set(err, RDT_EBUSY, 0, "a table is being saved already");
    saved = calloc(1, sizeof(*saved));
    if (saved != NULL && !rdti_ps_pool_has_keys(pool))
        saved->is_changed = calloc(pool->store.rows / 64 + 1, sizeof(*saved->is_changed));
    if (saved == NULL || (saved->is_changed == NULL && !rdti_ps_pool_has_keys(pool))) {
        free(saved);
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a snapshot of a table");
    }
    rdti_error_init(&saved->failure, RDT_RANK_UNKNOWN);
    saved->order = pool->keys.order;
    pool->saved = saved;
    pool->keys.forgets = saved_keep_key;
    pool->keys.arg = pool;
    return RDT_OK;
}

void
rdti_ps_saved_end(struct rdti_ps_pool *pool)
{
    struct rdti_ps_saved *saved = pool->saved;

    if (saved == NULL)
        return;
    pool->saved = NULL;
    pool->keys.forgets = NULL;
    for (uint32_t partition = 0; partition < RDTI_PS_PARTITIONS; partition++)
        free(saved->copies[partition].bytes);
    free(saved->page.bytes);
    free(saved->is_changed);
    free(saved);
}

/* ---- Reading ----------------------------------------------------------------------------- */

static rdt_status
saved_copy_unchanged(struct rdti_ps_pool *pool, uint32_t partition, struct rdt_error *err)
{
    struct rdti_ps_saved *saved = pool->saved;
    const uint64_t rows = rdti_ps_map_partition_rows(pool->map, partition);
    const struct rdti_ps_key *key;
    rdt_status status = RDT_OK;
    uint64_t at = 0;

    if (rdti_ps_pool_has_keys(pool)) {
        while (status == RDT_OK && (key = rdti_ps_keys_next(&pool->keys, partition, &at)) != NULL)
            if (key->order <= saved->order)
                status = saved_copy(pool, key->key, 0, key, &saved->page, err);
        return status;
    }
    for (uint64_t i = 0; i < rows && status == RDT_OK; i++) {
        const uint64_t id = partition + i * RDTI_PS_PARTITIONS;
        const uint64_t row = rdti_ps_map_local(pool->map, id);
        if ((saved->is_changed[row / 64] >> row % 64 & 1) == 0)
            status = saved_copy(pool, id, row, NULL, &saved->page, err);
    }
    return status;
}

/* The page gets all records of a partition; from now on its rows may change. */
static rdt_status
saved_fill_page(struct rdti_ps_pool *pool, uint32_t partition, struct rdt_error *err)
{
    struct rdti_ps_saved *saved = pool->saved;

    free(saved->page.bytes);
    saved->page = saved->copies[partition];
    saved->copies[partition] = (struct saved_bytes){0};
    const rdt_status status = saved_copy_unchanged(pool, partition, err);
    saved->is_read[partition] = true;
    return status;
}

rdt_status
rdti_ps_saved_read(struct rdti_ps_pool *pool, uint32_t partition, uint64_t *next, uint8_t *buf,
                   uint64_t cap, uint64_t *len_out, struct rdt_error *err)
{
    struct rdti_ps_saved *saved = pool->saved;
    const uint64_t record_bytes = rdti_ps_saved_record_bytes(pool);
    rdt_status status = RDT_OK;

    if (*next == 0 && saved->failure.status == RDT_OK)
        status = saved_fill_page(pool, partition, err);
    if (saved->failure.status != RDT_OK)
        return rdti_error_copy(err, &saved->failure);
    if (status != RDT_OK)
        return status;
    const uint64_t off = *next * record_bytes;
    const uint64_t left = saved->page.used > off ? saved->page.used - off : 0;
    const uint64_t whole = cap / record_bytes * record_bytes;
    *len_out = left < whole ? left : whole;
    if (*len_out > 0)
        memcpy(buf, saved->page.bytes + off, *len_out);
    *next += *len_out / record_bytes;
    return RDT_OK;
}

/* ---- Putting back ------------------------------------------------------------------------ */

static rdt_status
saved_restore_key(struct rdti_ps_pool *pool, uint64_t id, const uint8_t *at, uint64_t *row_out,
                  struct rdt_error *err)
{
    const struct rdti_ps_key saved = {.key = id,
                                      .last = rdti_get_u64(at),
                                      .order = rdti_get_u64(at + 8),
                                      .count = rdti_get_u32(at + 16),
                                      .epoch = rdti_get_u32(at + 20)};

    if (rdti_ps_keys_find(&pool->keys, id) != NULL)
        return rdti_error_set(err, RDT_EPROTO, 0, "key %lld is in the checkpoint twice",
                              (long long)id);
    rdt_status status = rdti_ps_store_reserve(&pool->store, pool->keys.rows_ever + 1, err);
    if (status != RDT_OK)
        return status;
    const struct rdti_ps_key *key =
        rdti_ps_keys_restore(&pool->keys, &saved, rdti_get_u32(at + 24) != 0, err);
    if (key == NULL)
        return RDT_ENOMEM;
    *row_out = key->row;
    return RDT_OK;
}

rdt_status
rdti_ps_saved_write(struct rdti_ps_pool *pool, const uint8_t *records, uint64_t count,
                    struct rdt_error *err)
{
    const uint64_t value_bytes = pool->opts->dim * sizeof(float);
    const uint64_t state_bytes = pool->state_floats * sizeof(float);

    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *at = records + i * rdti_ps_saved_record_bytes(pool);
        const uint64_t id = rdti_get_u64(at);
        uint64_t row = 0;
        bool has_content;
        float *record;
        rdt_status status = RDT_OK;
        at += sizeof(id);
        if (rdti_ps_pool_has_keys(pool))
            status = saved_restore_key(pool, id, at + value_bytes + state_bytes, &row, err);
        else
            row = rdti_ps_map_local(pool->map, id);
        if (status == RDT_OK && row != RDTI_PS_NO_ROW) {
            status = rdti_ps_store_record(&pool->store, row, true, &record, &has_content, err);
            if (status == RDT_OK) {
                rdti_ps_pool_fill(pool, id, record); /* the padding too */
                memcpy(record, at, value_bytes);
                memcpy(record + pool->values_floats, at + value_bytes, state_bytes);
            }
        }
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}
