/* SPDX-License-Identifier: Apache-2.0
 * A pool as it was at one moment, while steps go on: what changes in a partition that was not read
 * yet is copied before. A record is an id, the values and their state; with keys, what keys.h knows
 * of an entry follows. */
#ifndef RDTI_PS_ROWS_SAVED_H
#define RDTI_PS_ROWS_SAVED_H

#include "ps/rows/pool.h"

/* Bytes that follow the state in the record of a key. */
enum { RDTI_PS_SAVED_KEY_BYTES = 32 };

uint64_t rdti_ps_saved_record_bytes(const struct rdti_ps_pool *pool);
/* RDT_ENOMEM: none was begun. RDT_EBUSY: one is. */
rdt_status rdti_ps_saved_begin(struct rdti_ps_pool *pool, struct rdt_error *err);
void rdti_ps_saved_end(struct rdti_ps_pool *pool);
/* A push is about to change this row or key. */
void rdti_ps_saved_keep(struct rdti_ps_pool *pool, uint64_t id);
/*
 * The next records of a partition: *next is 0 at first, and *len_out is 0 at the end; cap is at
 * least a record. Partitions are read one after the other. RDT_ENOMEM, RDT_EDEVICE: what has
 * changed could not be copied, or read; the snapshot is lost.
 */
rdt_status rdti_ps_saved_read(struct rdti_ps_pool *pool, uint32_t partition, uint64_t *next,
                              uint8_t *buf, uint64_t cap, uint64_t *len_out, struct rdt_error *err);
/* Put records back whose ids are of this server, before the first push. RDT_EPROTO: a key twice;
 * RDT_ENOMEM, RDT_EDEVICE. */
rdt_status rdti_ps_saved_write(struct rdti_ps_pool *pool, const uint8_t *records, uint64_t count,
                               struct rdt_error *err);

#endif
