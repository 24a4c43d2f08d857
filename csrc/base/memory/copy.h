/* SPDX-License-Identifier: Apache-2.0
 * The one pass over payload bytes. The kind of store matters most on shared memory: an ordinary
 * store to a line that another core has read needs an ownership request for the line, a
 * non-temporal store does not. Ownership requests are expensive on some processors (limits.h). A
 * ring that stays in cache is faster with ordinary stores. */
#ifndef RDTI_BASE_MEMORY_COPY_H
#define RDTI_BASE_MEMORY_COPY_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

enum rdti_copy_kind {
    RDTI_COPY_MEMCPY = 0,
    RDTI_COPY_MOVSB = 1,
    RDTI_COPY_STREAM = 2 /* non-temporal stores, ended by a store fence */
};

/* Use of the destination's lines since they were last written. */
enum rdti_copy_pattern {
    RDTI_COPY_TO_PEER_READ = 0, /* another core has read them: slots, regions */
    RDTI_COPY_TO_OWN = 1        /* only this core uses them */
};

/* Regions must not overlap. A STREAM copy is ordered before every later store of this thread. */
void rdti_copy_as(void *dst, const void *src, size_t len_bytes, enum rdti_copy_kind kind);

/*
 * Several copies in one call, each from block.src to dst + block.dst_off. Streamed blocks are
 * copied four at a time with one fence at the end, so that many blocks of a few KiB are as fast as
 * one large block. No block overlaps another.
 */
void rdti_copy_blocks(void *dst, const struct rdt_block *blocks, size_t count,
                      enum rdti_copy_kind kind);

/* Sizes at which a processor changes from memcpy to rep movsb (SIZE_MAX: never), from either to
 * streaming, by pattern ([RDTI_COPY_TO_PEER_READ], [RDTI_COPY_TO_OWN]), and, when it streams one
 * block, from one lane to four. */
struct rdti_copy_table {
    const char *measured_on;
    size_t movsb_from_bytes;
    size_t lanes_from_bytes;
    size_t stream_from_bytes[2];
    size_t board_stream_from_bytes; /* collectives, on boards */
};

/* The measured table (limits.h, bench/floor) for this machine's processor. Static. */
const struct rdti_copy_table *rdti_copy_table(void);

/* The table for a family and model (extended values added) of AMD or Intel; no number with a table
 * of its own belongs to both. All of Intel's family 6 share one table. Every other processor gets
 * the table of Zen 4; pass family 0 for another vendor. Static. */
const struct rdti_copy_table *rdti_copy_table_of(uint32_t family, uint32_t model);

/* The kind that a table gives for this size and pattern. choose() uses this machine's table, and
 * replaces rep movsb by memcpy where rep movsb is slow. */
enum rdti_copy_kind rdti_copy_choose_by(const struct rdti_copy_table *table, size_t len_bytes,
                                        enum rdti_copy_pattern pattern);
enum rdti_copy_kind rdti_copy_choose(size_t len_bytes, enum rdti_copy_pattern pattern);

/* rdti_copy_as() with rdti_copy_choose(). */
void rdti_copy(void *dst, const void *src, size_t len_bytes, enum rdti_copy_pattern pattern);

#endif
