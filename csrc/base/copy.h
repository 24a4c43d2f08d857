/* SPDX-License-Identifier: Apache-2.0
 * The one pass over payload bytes. How to store is the largest gain on shared memory: rewriting
 * lines that another core has read costs a round of ownership for each line with ordinary stores
 * and none with non-temporal ones, which is dear on some processors (limits.h), while a ring that
 * stays in cache is faster with ordinary stores. */
#ifndef RDTI_BASE_COPY_H
#define RDTI_BASE_COPY_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

enum rdti_copy_kind {
    RDTI_COPY_MEMCPY = 0,
    RDTI_COPY_MOVSB = 1,
    RDTI_COPY_STREAM = 2 /* non-temporal stores, ended by a store fence */
};

/* What the destination's lines were used for since they were written last. */
enum rdti_copy_pattern {
    RDTI_COPY_TO_PEER_READ = 0, /* another core has read them: slots, regions */
    RDTI_COPY_TO_OWN = 1        /* only this core uses them */
};

/* Regions must not overlap. A STREAM copy is ordered before every later store of this thread. */
void rdti_copy_as(void *dst, const void *src, size_t len_bytes, enum rdti_copy_kind kind);

/*
 * Several copies as one, each from block.src to dst + block.dst_off: streamed blocks go four at a
 * time, side by side, with one fence at the end, so that many of some KiB move as fast as one of
 * their sum. No block overlaps another.
 */
void rdti_copy_blocks(void *dst, const struct rdt_block *blocks, size_t count,
                      enum rdti_copy_kind kind);

/* Where a processor changes from memcpy to rep movsb (SIZE_MAX: never), from either to streaming,
 * by pattern: [RDTI_COPY_TO_PEER_READ], [RDTI_COPY_TO_OWN], and there, of one block, from one lane
 * to four. */
struct rdti_copy_table {
    const char *measured_on;
    size_t movsb_from_bytes;
    size_t lanes_from_bytes;
    size_t stream_from_bytes[2];
    size_t board_stream_from_bytes; /* collectives, on boards */
};

/* The measured table (limits.h, bench/floor) of this machine's processor. Static. */
const struct rdti_copy_table *rdti_copy_table(void);

/* That of a family and model (the extended ones added) of AMD or of Intel, which share no number
 * that has a table of its own. All of Intel's family 6 have one. Every other one, and family 0 for
 * another maker's, gets Zen 4's. Static. */
const struct rdti_copy_table *rdti_copy_table_of(uint32_t family, uint32_t model);

/* The kind that a table gives for this size and pattern; choose() asks this machine's, and takes
 * memcpy for a rep movsb that is slow here. */
enum rdti_copy_kind rdti_copy_choose_by(const struct rdti_copy_table *table, size_t len_bytes,
                                        enum rdti_copy_pattern pattern);
enum rdti_copy_kind rdti_copy_choose(size_t len_bytes, enum rdti_copy_pattern pattern);

/* rdti_copy_as() with rdti_copy_choose(). */
void rdti_copy(void *dst, const void *src, size_t len_bytes, enum rdti_copy_pattern pattern);

#endif
