/* SPDX-License-Identifier: Apache-2.0
 * The arena: memory in which tensors are born, one allocation that serves all transports.
 *
 * It grows in segments, each a memfd sealed against shrinking, mapped shared, never moved and never returned before
 * the context closes, so that what peers know stays true. Sub-allocation keeps all its metadata in private memory: a peer
 * (or a forked child) that writes past its bounds can spoil payloads but not our bookkeeping.
 */
#ifndef RDTI_CORE_ARENA_H
#define RDTI_CORE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_ARENA_ALIGN 64

struct rdti_arena;

struct rdti_arena_stats {
    uint64_t segment_count;
    uint64_t mapped_bytes;
    uint64_t allocated_bytes;
    uint64_t peak_allocated_bytes;
    uint64_t populate_ns; /* spent in touching pages, all segments */
    uint64_t huge_bytes;  /* mapped with huge pages */
};

/* chunk_bytes: least size of a new segment. max_bytes 0: bound by memory only. No segment is made yet. Any thread may use an
 * arena; it has its own lock, which is never held while the caller's code runs. */
rdt_status rdti_arena_create(uint64_t chunk_bytes, uint64_t max_bytes, struct rdti_arena **out, struct rdt_error *err);
void rdti_arena_destroy(struct rdti_arena *arena); /* unmaps; NULL is legal; in a forked child: nothing */

/* A span of len_bytes (0 is legal and gets an address of its own) aligned to RDTI_ARENA_ALIGN.
 *   RDT_ENOMEM  the message has the bytes asked for, the bound that is the least (RAM, which cgroup, max_bytes) and what to do */
rdt_status rdti_arena_alloc(struct rdti_arena *arena, uint64_t len_bytes, void **out, struct rdt_error *err);
void rdti_arena_free(struct rdti_arena *arena, void *addr);

/* Which segment holds [addr, addr + len_bytes)? RDT_EINVAL if none does. */
rdt_status rdti_arena_locate(struct rdti_arena *arena, const void *addr, uint64_t len_bytes, uint32_t *segment_out,
                             uint64_t *segment_off_out);
/* The descriptor (owned by the arena) and length of a segment. RDT_EINVAL: no such segment. */
rdt_status rdti_arena_segment(struct rdti_arena *arena, uint32_t segment, int *fd_out, uint64_t *len_bytes_out);
void rdti_arena_get_stats(struct rdti_arena *arena, struct rdti_arena_stats *out);

#endif
