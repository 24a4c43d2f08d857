/* SPDX-License-Identifier: Apache-2.0
 * A server's part of a table: rows of fixed stride, which workers may read in place, and their
 * state, which they may not. */
#ifndef RDTI_PS_SERVER_TABLE_H
#define RDTI_PS_SERVER_TABLE_H

#include <stdbool.h>

#include "ps/model/map.h"
#include "ps/model/snapshot.h"
#include "ps/rows/pool.h"
#include "ps/rules/rules.h"

struct rdti_ps_table {
    struct rdt_ps_table_opts opts;
    struct rdti_ps_map map;
    uint64_t local_rows;
    uint64_t state_floats; /* of one row */
    rdt_region *values;    /* these two are empty if there is a pool */
    rdt_region *state;
    struct rdti_ps_pool *pool;  /* or NULL */
    _Atomic uint32_t *versions; /* of each row, after the rows; NULL: RDT_PS_RELAXED */
    uint64_t step;              /* applications so far */
    bool is_pushed;             /* since the last application */
    /* Rows that have changed since the last full checkpoint. While one is made: since it began. */
    struct rdti_ps_rows changed;
    struct rdti_ps_rows before;        /* while a full one is made: what changed before it */
    struct rdti_ps_rows wanted;        /* rows of the increment that is made */
    struct rdti_ps_snapshot *snapshot; /* that is being read, or NULL */
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
/* A row's values, and its state; not of a pool. */
uint8_t *rdti_ps_table_row(const struct rdti_ps_table *table, uint64_t local);
float *rdti_ps_table_state(const struct rdti_ps_table *table, uint64_t local);
/* The row is about to change, and has changed: for a checkpoint, and for workers that read it. */
void rdti_ps_table_open_row(struct rdti_ps_table *table, uint64_t local);
void rdti_ps_table_close_row(struct rdti_ps_table *table, uint64_t local);
/* custom.c: rdti_ps_table_apply() for RDT_PS_CUSTOM. RDT_ENOMEM, and what the program returns: no
 * row is changed. */
rdt_status rdti_ps_custom_apply(struct rdti_ps_table *table, double lr_scale, const uint64_t *ids,
                                const float *rows, uint64_t count, struct rdt_error *err);
/* Begin a snapshot, of all rows or of those that have changed. RDT_ENOMEM: none was begun. */
rdt_status rdti_ps_table_begin_snapshot(struct rdti_ps_table *table, bool is_increment,
                                        struct rdt_error *err);
/* is_saved: all its rows are in a checkpoint. Without a snapshot this does nothing. */
void rdti_ps_table_end_snapshot(struct rdti_ps_table *table, bool is_saved);
/* The next records of the snapshot's partition, as rdt_ps_server_read_rows(). */
rdt_status rdti_ps_table_read(struct rdti_ps_table *table, uint32_t partition, uint64_t *next,
                              uint8_t *buf, uint64_t cap, uint64_t *len_out, struct rdt_error *err);
/* Put records back. RDT_EINVAL: an id is not of this server; else as rdti_ps_saved_write(). */
rdt_status rdti_ps_table_write(struct rdti_ps_table *table, uint32_t server, const uint8_t *records,
                               uint64_t count, struct rdt_error *err);
/* Bytes of a row's record. */
uint64_t rdti_ps_table_record_bytes(const struct rdti_ps_table *table);
uint64_t rdti_ps_table_values_bytes(const struct rdti_ps_table *table);
uint64_t rdti_ps_table_state_bytes(const struct rdti_ps_table *table);

#endif
