/* SPDX-License-Identifier: Apache-2.0
 * The body of an arena, for the files that are the arena; arena.c has the rules of its locks. */
#ifndef RDTI_MEMORY_ARENA_IMPL_H
#define RDTI_MEMORY_ARENA_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "memory/allocator.h"
#include "memory/arena.h"
#include "memory/segment.h"

struct rdti_arena {
    uint64_t chunk_bytes;
    uint64_t max_bytes;
    pthread_mutex_t pages_lock;
    pthread_mutex_t lock;
    struct rdti_alloc *alloc;
    struct rdti_arena_segment **segments; /* by number */
    uint32_t *by_addr;                    /* numbers in address order */
    uint32_t segment_count;
    uint64_t next_bytes; /* minimum size of the next segment, up to chunk_bytes */
    uint64_t retain_bytes;
    uint64_t last_punch_ns;
    struct rdti_arena_stats stats;
};

rdt_status rdti_arena_forked(struct rdt_error *err);
/* Adds a segment with room for len_bytes. pages_lock is held, `lock` is not. */
rdt_status rdti_arena_grow(struct rdti_arena *arena, uint64_t len_bytes, bool is_read_only,
                           struct rdt_error *err);
/* Updates the statistics of populating. Pages that were given back recently should have been kept,
 * so they raise the retained amount. */
void rdti_arena_book_populated(struct rdti_arena *arena, const struct rdti_populated *populated,
                               uint64_t start_ns);

#endif
