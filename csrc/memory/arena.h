/* SPDX-License-Identifier: Apache-2.0
 * The arena: memory in which tensors are allocated, shared by all transports.
 *
 * It grows in segments, each a memfd sealed against shrinking, mapped shared, never moved and never
 * returned before the context closes, so that peers' mappings and addresses stay valid. The
 * allocator keeps all its metadata in private memory: a peer (or a forked child) that writes out of
 * bounds can corrupt payloads but not the metadata.
 *
 * Pages are populated (in granules of 2 MiB) when a span over them is allocated, so that a shortage
 * is an error here and never SIGBUS later, and an unused part of a segment costs nothing. Free
 * spans keep their pages up to a retained amount (arena.c). Beyond it the pages of a freed span go
 * back to the system; a program that takes them again soon raises the amount. A peer that mapped
 * the segment before gets the new pages by ordinary faults, which need no memory except page
 * tables. Code that pins physical pages (a NIC's registration) must call rdti_arena_keep_pages().
 */
#ifndef RDTI_MEMORY_ARENA_H
#define RDTI_MEMORY_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"
#include "rdmatensor.h"

#define RDTI_ARENA_ALIGN RDTI_CACHE_LINE_BYTES /* rdt_region_alloc() promises 64 */

struct rdti_arena;

struct rdti_arena_stats {
    uint64_t segment_count;
    uint64_t mapped_bytes;
    uint64_t allocated_bytes;
    uint64_t peak_allocated_bytes;
    uint64_t populate_ns;      /* spent populating pages of all segments */
    uint64_t huge_bytes;       /* mapped with huge pages */
    uint64_t populated_bytes;  /* in memory, used or retained */
    uint64_t given_back_bytes; /* pages returned to the system since the start */
};

/* chunk_bytes: minimum size of a new segment. max_bytes 0: limited only by memory. No segment is
 * created yet. Any thread may use an arena; it has its own lock, which is never held while the
 * caller's code runs. */
rdt_status rdti_arena_create(uint64_t chunk_bytes, uint64_t max_bytes, struct rdti_arena **out,
                             struct rdt_error *err);
void rdti_arena_destroy(
    struct rdti_arena *arena); /* unmaps; NULL is legal; in a forked child: nothing */

/* A span of len_bytes (0 is legal and gets an address of its own) aligned to RDTI_ARENA_ALIGN.
 *   RDT_ENOMEM  the message has the requested bytes, the smallest bound (RAM, which cgroup,
 *               max_bytes) and what to do */
rdt_status rdti_arena_alloc(struct rdti_arena *arena, uint64_t len_bytes, void **out,
                            struct rdt_error *err);
/* The same with all bytes zero; it does not write pages that were never used. */
rdt_status rdti_arena_alloc_zero(struct rdti_arena *arena, uint64_t len_bytes, void **out,
                                 struct rdt_error *err);
/* The same in a segment that other processes map for reading only. The span is never used again. */
rdt_status rdti_arena_alloc_read_only(struct rdti_arena *arena, uint64_t len_bytes, void **out,
                                      struct rdt_error *err);
/* Precondition: no peer may write the bytes any more. NULL is legal; in a forked child: nothing. If
 * alloc did not return addr, logs that and does nothing. */
void rdti_arena_free(struct rdti_arena *arena, void *addr);
/* From now on the segment's pages stay in place, because a device uses their physical addresses.
 * Populates all of them. RDT_EINVAL: no such segment. RDT_ENOMEM. */
rdt_status rdti_arena_keep_pages(struct rdti_arena *arena, uint32_t segment, struct rdt_error *err);
/* From now on no free gives pages back: the arena ends, and peers that map it may still use what
 * they hold. */
void rdti_arena_keep_all(struct rdti_arena *arena);

/* Which segment holds [addr, addr + len_bytes)? RDT_EINVAL if none does. */
rdt_status rdti_arena_locate(struct rdti_arena *arena, const void *addr, uint64_t len_bytes,
                             uint32_t *segment_out, uint64_t *segment_off_out);
/* The descriptor (owned by the arena) and length of a segment. RDT_EINVAL: no such segment. */
rdt_status rdti_arena_segment(struct rdti_arena *arena, uint32_t segment, int *fd_out,
                              uint64_t *len_bytes_out);
/* The address of a segment. RDT_EINVAL: no such segment. */
rdt_status rdti_arena_segment_addr(struct rdti_arena *arena, uint32_t segment, void **addr_out,
                                   uint64_t *len_bytes_out);
void rdti_arena_get_stats(struct rdti_arena *arena, struct rdti_arena_stats *out);

#endif
