/* SPDX-License-Identifier: Apache-2.0
 * Spans of segments that other processes map for reading only. They are taken one after the other,
 * and never given back: the seal that keeps others from writing forbids to punch holes, too. */
#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "memory/arena_impl.h"

/* One with room for len_bytes, or NULL. pages_lock is held: no segment is added meanwhile. */
static struct rdti_arena_segment *
arena_read_only_find(const struct rdti_arena *arena, uint64_t len_bytes)
{
    for (uint32_t i = 0; i < arena->segment_count; i++) {
        struct rdti_arena_segment *segment = arena->segments[i];
        if (segment->is_read_only && segment->len_bytes - segment->used_bytes >= len_bytes)
            return segment;
    }
    return NULL;
}

rdt_status
rdti_arena_alloc_read_only(struct rdti_arena *arena, uint64_t len_bytes, void **out,
                           struct rdt_error *err)
{
    struct rdti_populated populated = {0};
    struct rdti_arena_segment *segment = NULL;
    const uint64_t span_bytes = ((len_bytes == 0 ? 1 : len_bytes) + RDTI_ARENA_ALIGN - 1) &
                                ~(uint64_t)(RDTI_ARENA_ALIGN - 1);
    rdt_status status = RDT_OK;

    if (rdti_in_forked_child())
        return rdti_arena_forked(err);
    if (len_bytes > INT64_MAX)
        return rdti_error_set(err, RDT_ENOMEM, 0,
                              "arena: %llu bytes asked for: more than there are addresses",
                              (unsigned long long)len_bytes);
    (void)pthread_mutex_lock(&arena->pages_lock);
    const uint64_t start_ns = rdti_now_ns();
    segment = arena_read_only_find(arena, span_bytes);
    if (segment == NULL) {
        status = rdti_arena_grow(arena, span_bytes, true, err);
        if (status == RDT_OK)
            segment = arena->segments[arena->segment_count - 1];
    }
    if (status == RDT_OK)
        status = rdti_segment_populate(segment, segment->used_bytes, span_bytes, &populated, err);
    if (status == RDT_OK) {
        rdti_segment_use(segment, segment->used_bytes, span_bytes, false); /* no span came before */
        *out = segment->addr + segment->used_bytes;
        segment->used_bytes += span_bytes;
    }
    (void)pthread_mutex_unlock(&arena->pages_lock);
    if (status != RDT_OK)
        return status;
    rdti_arena_book_populated(arena, &populated, start_ns);
    (void)pthread_mutex_lock(&arena->lock);
    arena->stats.allocated_bytes += span_bytes;
    if (arena->stats.allocated_bytes > arena->stats.peak_allocated_bytes)
        arena->stats.peak_allocated_bytes = arena->stats.allocated_bytes;
    (void)pthread_mutex_unlock(&arena->lock);
    return RDT_OK;
}
