/* SPDX-License-Identifier: Apache-2.0
 * A server's rows of a table that has keys, or more rows than memory: values with their state.
 *
 * A row that was never pushed has its first values, and takes no memory. */
#ifndef RDTI_PS_ROWS_POOL_H
#define RDTI_PS_ROWS_POOL_H

#include "ps/model/map.h"
#include "ps/rows/store.h"

struct rdti_ps_pool {
    const struct rdt_ps_table_opts *opts;
    const struct rdti_ps_map *map;
    uint64_t state_floats;
    uint64_t values_floats;   /* with padding */
    struct rdti_ps_keys keys; /* where opts->keys is not RDT_PS_KEYS_DENSE */
    struct rdti_ps_store store;
    uint64_t hits; /* pulls of rows that were there */
    uint64_t misses;
    struct rdti_ps_saved *saved; /* the snapshot that is being read, or NULL */
};

static inline bool
rdti_ps_pool_has_keys(const struct rdti_ps_pool *pool)
{
    return pool->opts->keys != RDT_PS_KEYS_DENSE;
}

/* opts and map live as long as the pool; `server` is this one. Errors as of keys and store. */
rdt_status rdti_ps_pool_create(rdt_context *ctx, const struct rdt_ps_table_opts *opts,
                               const struct rdti_ps_map *map, uint32_t server,
                               struct rdti_ps_pool **out, struct rdt_error *err);
void rdti_ps_pool_destroy(struct rdti_ps_pool *pool); /* NULL is legal */
/* Memory and file for pushes of these ids, until rdti_ps_pool_unreserve() with the same marks. An
 * error reserves nothing. */
rdt_status rdti_ps_pool_reserve(struct rdti_ps_pool *pool, const uint64_t *ids, uint64_t count,
                                uint8_t *marks, struct rdt_error *err);
void rdti_ps_pool_unreserve(struct rdti_ps_pool *pool, const uint64_t *ids, uint64_t count,
                            const uint8_t *marks);
/* A row's values, until the next call; *is_found: it is there, and these are not its first ones. */
rdt_status rdti_ps_pool_read(struct rdti_ps_pool *pool, uint64_t id, float *out, bool *is_found,
                             struct rdt_error *err);
/* Values and state before the first push, into a record. */
void rdti_ps_pool_fill(const struct rdti_ps_pool *pool, uint64_t id, float *record);
void rdti_ps_pool_begin_step(struct rdti_ps_pool *pool, uint64_t step);
/* The row to which a push in this step is applied; each id once. *out: its values, then its state
 * at values_floats; NULL: it has no row yet, and the push only counts. */
rdt_status rdti_ps_pool_write(struct rdti_ps_pool *pool, uint64_t id, float **out,
                              struct rdt_error *err);
/* The row that rdti_ps_pool_write() has given in this step, to be written again; NULL: it has none,
 * or it has made room for another one since. */
rdt_status rdti_ps_pool_rewrite(struct rdti_ps_pool *pool, uint64_t id, float **out,
                                struct rdt_error *err);
/* Of keys, and of which rows are in the arena. */
uint64_t rdti_ps_pool_index_bytes(const struct rdti_ps_pool *pool);
void rdti_ps_pool_counters(const struct rdti_ps_pool *pool, struct rdt_ps_table_counters *out);

#endif
