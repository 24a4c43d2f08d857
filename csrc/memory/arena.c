/* SPDX-License-Identifier: Apache-2.0
 * The arena: an allocator over segments.
 *
 * Two locks, taken in this order. A thread that changes the address space or the free pages (grows,
 * gives pages back) holds `pages_lock` across its system calls: one thread at a time does that, and
 * a thread that found no free span waits for it and tries again. `lock` guards all the rest and is
 * never held across a system call. Populating needs neither, because the span is already taken.
 */
#include "memory/arena_impl.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/range.h"

/* Keeps small programs small; each further segment is twice as large, up to chunk_bytes. */
#define MIB_BYTES (UINT64_C(1) << 20)
#define FIRST_SEGMENT_BYTES (UINT64_C(4) << 20)

/* Initial amount of free memory that stays populated. A step allocates the temporary buffers of the
 * step before again, and populating 256 MiB costs 150 to 700 ms. A process may hold that much
 * idle. */
#define RETAIN_BYTES (UINT64_C(256) << 20)

/* If pages are taken again within this time, giving them back was a mistake: steps of training and
 * serving are shorter. */
#define REGRET_NS (UINT64_C(10) * 1000 * 1000 * 1000)

rdt_status
rdti_arena_forked(struct rdt_error *err)
{
    return rdti_error_set(err, RDT_EFORKED, 0,
                          "arena: this is a forked child; memory of its parent's arena may be read "
                          "here, and nothing else: spawn the process instead");
}

rdt_status
rdti_arena_create(uint64_t chunk_bytes, uint64_t max_bytes, struct rdti_arena **out,
                  struct rdt_error *err)
{
    if (chunk_bytes > UINT64_MAX - RDTI_GRANULE_BYTES)
        return rdti_error_set(err, RDT_EINVAL, 0, "arena_chunk_bytes %llu",
                              (unsigned long long)chunk_bytes);
    rdti_fork_guard();
    struct rdti_arena *arena = calloc(1, sizeof(*arena));

    if (arena == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "arena_create: %zu bytes", sizeof(*arena));
    const rdt_status status = rdti_alloc_create(RDTI_ARENA_ALIGN, &arena->alloc, err);

    if (status != RDT_OK) {
        free(arena);
        return status;
    }
    /* Default attributes cannot fail on Linux. */
    (void)pthread_mutex_init(&arena->pages_lock, NULL);
    (void)pthread_mutex_init(&arena->lock, NULL);
    arena->chunk_bytes = chunk_bytes;
    arena->max_bytes = max_bytes;
    arena->next_bytes = FIRST_SEGMENT_BYTES;
    arena->retain_bytes = RETAIN_BYTES;
    *out = arena;
    return RDT_OK;
}

void
rdti_arena_destroy(struct rdti_arena *arena)
{
    if (arena == NULL || rdti_in_forked_child())
        return;
    for (uint32_t i = 0; i < arena->segment_count; i++)
        rdti_segment_destroy(arena->segments[i]);
    free(arena->segments);
    free(arena->by_addr);
    rdti_alloc_destroy(arena->alloc);
    (void)pthread_mutex_destroy(&arena->lock);
    (void)pthread_mutex_destroy(&arena->pages_lock);
    free(arena);
}

/* ---- Segments by address -------------------------------------------------------------------- */

/* How many segments begin at or below addr. Locked. */
static uint32_t
arena_rank_of(const struct rdti_arena *arena, uint64_t addr)
{
    uint32_t from = 0;
    uint32_t to = arena->segment_count;

    while (from < to) {
        const uint32_t mid = from + (to - from) / 2;

        if ((uintptr_t)arena->segments[arena->by_addr[mid]]->addr <= addr)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

/* The number of the segment that holds the span; false if none does. Locked. */
static bool
arena_find_segment(const struct rdti_arena *arena, uint64_t addr, uint64_t len_bytes, uint32_t *out)
{
    const uint32_t rank = arena_rank_of(arena, addr);

    if (rank == 0)
        return false;
    const uint32_t number = arena->by_addr[rank - 1];
    const struct rdti_arena_segment *segment = arena->segments[number];
    const uint64_t off = addr - (uintptr_t)segment->addr;

    /* At least one byte: an empty span at the end of a segment is not in it. */
    if (!rdti_range_ok(off, len_bytes == 0 ? 1 : len_bytes, segment->len_bytes))
        return false;
    *out = number;
    return true;
}

/* ---- Growth --------------------------------------------------------------------------------- */

/* want_bytes: len_bytes in whole pages; both terms of the sum below are then below 2^63. */
static rdt_status
arena_max_reached(const struct rdti_arena *arena, uint64_t mapped_bytes, uint64_t len_bytes,
                  uint64_t want_bytes, struct rdt_error *err)
{
    const uint64_t enough_mb = (mapped_bytes + want_bytes + MIB_BYTES - 1) / MIB_BYTES;

    return rdti_error_set(err, RDT_ENOMEM, 0,
                          "arena: %llu bytes asked for and no free piece is as large; the bound "
                          "that is the least is arena_max_bytes, %llu, of which %llu are mapped; "
                          "set RDMATENSOR_ARENA_MAX_MIB=%llu (arena_max_bytes), or free regions",
                          (unsigned long long)len_bytes, (unsigned long long)arena->max_bytes,
                          (unsigned long long)mapped_bytes, (unsigned long long)enough_mb);
}

/* Round up to a multiple of a power of two; false if that overflows. */
static bool
arena_round_up(uint64_t bytes, uint64_t unit, uint64_t *out)
{
    if (bytes > UINT64_MAX - (unit - 1))
        return false;
    *out = (bytes + unit - 1) & ~(unit - 1);
    return true;
}

/* The size of the segment for a request of len_bytes. pages_lock is held. */
static rdt_status
arena_choose_size(const struct rdti_arena *arena, uint64_t mapped_bytes, uint64_t len_bytes,
                  uint64_t *out, struct rdt_error *err)
{
    const uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t usual =
        arena->next_bytes < arena->chunk_bytes ? arena->next_bytes : arena->chunk_bytes;
    uint64_t want;
    uint64_t size;

    if (!arena_round_up(len_bytes == 0 ? 1 : len_bytes, page_bytes, &want) ||
        !arena_round_up(want > usual ? want : usual, RDTI_GRANULE_BYTES, &size) || size > INT64_MAX)
        return rdti_error_set(err, RDT_ENOMEM, 0,
                              "arena: %llu bytes asked for: more than there are addresses",
                              (unsigned long long)len_bytes);
    if (arena->max_bytes > 0) {
        const uint64_t left = arena->max_bytes - mapped_bytes;

        /* The last piece before the bound: whole granules if that suffices, else whole pages. */
        if (size > left)
            size = left & ~(RDTI_GRANULE_BYTES - 1);
        if (size < want)
            size = left & ~(page_bytes - 1);
        if (size < want)
            return arena_max_reached(arena, mapped_bytes, len_bytes, want, err);
    }
    *out = size;
    return RDT_OK;
}

/* Enters a new segment; on failure the caller still owns it. pages_lock is held, `lock` is not. */
static rdt_status
arena_enter_segment(struct rdti_arena *arena, struct rdti_arena_segment *segment,
                    struct rdt_error *err)
{
    const uint32_t count = arena->segment_count; /* changes under pages_lock only */
    struct rdti_arena_segment **segments = calloc(count + 1, sizeof(*segments));
    uint32_t *by_addr = calloc(count + 1, sizeof(*by_addr));
    rdt_status status = RDT_ENOMEM;

    if (segments == NULL || by_addr == NULL) {
        (void)rdti_error_set(err, RDT_ENOMEM, 0, "arena: no memory for the list of segments");
        goto out_free;
    }
    (void)pthread_mutex_lock(&arena->lock);
    const uint32_t rank = arena_rank_of(arena, (uintptr_t)segment->addr);

    status = segment->is_read_only
                 ? RDT_OK
                 : rdti_alloc_add(arena->alloc, (uintptr_t)segment->addr, segment->len_bytes, err);
    if (status == RDT_OK) {
        struct rdti_arena_segment **old_segments = arena->segments;
        uint32_t *old_by_addr = arena->by_addr;

        for (uint32_t i = 0; i < count; i++) {
            segments[i] = old_segments[i];
            by_addr[i < rank ? i : i + 1] = old_by_addr[i];
        }
        segments[count] = segment;
        by_addr[rank] = count;
        arena->segments = segments;
        arena->by_addr = by_addr;
        segments = old_segments; /* freed below */
        by_addr = old_by_addr;
        arena->segment_count = count + 1;
        arena->stats.mapped_bytes += segment->len_bytes;
        arena->stats.huge_bytes += segment->is_huge ? segment->len_bytes : 0;
        arena->stats.populated_bytes += segment->is_huge ? segment->len_bytes : 0;
    }
    (void)pthread_mutex_unlock(&arena->lock);
out_free:
    free(segments);
    free(by_addr);
    return status;
}

rdt_status
rdti_arena_grow(struct rdti_arena *arena, uint64_t len_bytes, bool is_read_only,
                struct rdt_error *err)
{
    struct rdti_arena_segment *segment = NULL;
    uint64_t size = 0;
    rdt_status status;

    (void)pthread_mutex_lock(&arena->lock);
    const uint64_t mapped_bytes = arena->stats.mapped_bytes;
    (void)pthread_mutex_unlock(&arena->lock);

    status = arena_choose_size(arena, mapped_bytes, len_bytes, &size, err);
    if (status != RDT_OK)
        return status;
    /* Checked here, too, so that a request that cannot be met leaves no empty segment. */
    status = rdti_segment_check_memory(len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    status = rdti_segment_create(size, is_read_only, &segment, err);
    /* If addresses are scarce (RLIMIT_AS), a smaller segment than usual. */
    while (status == RDT_ENOMEM && size / 2 >= RDTI_GRANULE_BYTES && size / 2 >= len_bytes) {
        (void)arena_round_up(size / 2, RDTI_GRANULE_BYTES, &size);
        status = rdti_segment_create(size, is_read_only, &segment, err);
    }
    if (status != RDT_OK)
        return status;
    status = arena_enter_segment(arena, segment, err);
    if (status != RDT_OK) {
        rdti_segment_destroy(segment);
        return status;
    }
    if (arena->next_bytes < arena->chunk_bytes)
        arena->next_bytes *= 2;
    return RDT_OK;
}

/* ---- Allocation ----------------------------------------------------------------------------- */

/* A span, and the segment that it lies in. */
struct arena_piece {
    uint64_t addr;
    uint64_t len_bytes; /* as rounded */
    uint64_t off_bytes;
    struct rdti_arena_segment *segment;
};

static bool
arena_take_piece(struct rdti_arena *arena, uint64_t len_bytes, struct arena_piece *out)
{
    uint32_t number = 0;
    bool is_taken;

    (void)pthread_mutex_lock(&arena->lock);
    is_taken = rdti_alloc_take(arena->alloc, len_bytes, &out->addr) == RDT_OK;
    if (is_taken) {
        out->len_bytes = rdti_alloc_len_bytes(arena->alloc, out->addr);
        (void)arena_find_segment(arena, out->addr, out->len_bytes,
                                 &number); /* spans come from segments */
        out->segment = arena->segments[number];
        out->off_bytes = out->addr - (uintptr_t)out->segment->addr;
        arena->stats.allocated_bytes += out->len_bytes;
        if (arena->stats.allocated_bytes > arena->stats.peak_allocated_bytes)
            arena->stats.peak_allocated_bytes = arena->stats.allocated_bytes;
    }
    (void)pthread_mutex_unlock(&arena->lock);
    return is_taken;
}

static rdt_status
arena_take_or_grow(struct rdti_arena *arena, uint64_t len_bytes, struct arena_piece *out,
                   struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (arena_take_piece(arena, len_bytes, out))
        return RDT_OK;
    (void)pthread_mutex_lock(&arena->pages_lock);
    /* Repeats only if other threads take the new space first: in each round some thread makes
     * progress. */
    while (status == RDT_OK && !arena_take_piece(arena, len_bytes, out))
        status = rdti_arena_grow(arena, len_bytes, false, err);
    (void)pthread_mutex_unlock(&arena->pages_lock);
    return status;
}

void
rdti_arena_book_populated(struct rdti_arena *arena, const struct rdti_populated *populated,
                          uint64_t start_ns)
{
    const uint64_t now_ns = rdti_now_ns();

    (void)pthread_mutex_lock(&arena->lock);
    arena->stats.populate_ns += now_ns - start_ns;
    arena->stats.populated_bytes += populated->bytes;
    if (populated->again_bytes > 0 && now_ns - arena->last_punch_ns < REGRET_NS &&
        arena->retain_bytes < INT64_MAX)
        arena->retain_bytes *= 2;
    (void)pthread_mutex_unlock(&arena->lock);
}

/* The span could not be populated: gives it back with the pages that it got. */
static void
arena_undo_take(struct rdti_arena *arena, const struct arena_piece *piece)
{
    (void)pthread_mutex_lock(&arena->pages_lock);
    (void)pthread_mutex_lock(&arena->lock);
    const bool is_kept = piece->segment->keeps_pages;
    (void)pthread_mutex_unlock(&arena->lock);

    if (!is_kept)
        rdti_segment_unpopulate(piece->segment, piece->off_bytes, piece->len_bytes);

    (void)pthread_mutex_lock(&arena->lock);
    (void)rdti_alloc_give(arena->alloc, piece->addr);
    arena->stats.allocated_bytes -= piece->len_bytes;
    (void)pthread_mutex_unlock(&arena->lock);
    (void)pthread_mutex_unlock(&arena->pages_lock);
}

static rdt_status
arena_alloc_span(struct rdti_arena *arena, uint64_t len_bytes, bool is_zero, void **out,
                 struct rdt_error *err)
{
    struct rdti_populated populated = {0};
    struct arena_piece piece;

    if (rdti_in_forked_child())
        return rdti_arena_forked(err);
    rdt_status status = arena_take_or_grow(arena, len_bytes, &piece, err);

    if (status != RDT_OK)
        return status;
    if (!rdti_segment_is_populated(piece.segment, piece.off_bytes, piece.len_bytes)) {
        const uint64_t start_ns = rdti_now_ns();

        status =
            rdti_segment_populate(piece.segment, piece.off_bytes, piece.len_bytes, &populated, err);
        if (status != RDT_OK) {
            arena_undo_take(arena, &piece);
            return status;
        }
        rdti_arena_book_populated(arena, &populated, start_ns);
    }
    rdti_segment_use(piece.segment, piece.off_bytes, piece.len_bytes, is_zero);
    *out = piece.segment->addr + piece.off_bytes;
    return RDT_OK;
}

rdt_status
rdti_arena_alloc(struct rdti_arena *arena, uint64_t len_bytes, void **out, struct rdt_error *err)
{
    return arena_alloc_span(arena, len_bytes, false, out, err);
}

rdt_status
rdti_arena_alloc_zero(struct rdti_arena *arena, uint64_t len_bytes, void **out,
                      struct rdt_error *err)
{
    return arena_alloc_span(arena, len_bytes, true, out, err);
}

/* Populated bytes beyond those in use and those that may be retained. Locked. */
static uint64_t
arena_excess_bytes(const struct rdti_arena *arena)
{
    const uint64_t kept = arena->stats.allocated_bytes + arena->retain_bytes;

    return arena->stats.populated_bytes > kept ? arena->stats.populated_bytes - kept : 0;
}

static void
arena_log_not_taken(uint64_t addr)
{
    rdti_log(RDT_LOG_ERROR, "arena: 0x%" PRIx64 " is freed, but not allocated (freed twice?)",
             addr);
}

/* Gives a span back, and before that the pages of the free space that it becomes part of. The space
 * stays taken meanwhile, so that no thread can allocate bytes whose pages are about to go. */
static void
arena_give_with_pages(struct rdti_arena *arena, uint64_t addr)
{
    uint64_t base;
    uint64_t len_bytes;
    uint64_t given_bytes = 0;
    uint32_t number;

    (void)pthread_mutex_lock(&arena->pages_lock);
    (void)pthread_mutex_lock(&arena->lock);
    const bool is_ours = rdti_alloc_absorb(arena->alloc, addr, &base, &len_bytes) &&
                         arena_find_segment(arena, base, len_bytes, &number);
    struct rdti_arena_segment *segment = is_ours ? arena->segments[number] : NULL;
    /* Down to half of the retained amount, so that the next frees do not each give back a
     * little. */
    const uint64_t excess = arena_excess_bytes(arena);
    const uint64_t want = excess == 0 ? 0 : excess + arena->retain_bytes / 2;
    const bool is_punching = is_ours && want > 0 && !segment->keeps_pages;
    (void)pthread_mutex_unlock(&arena->lock);

    if (is_punching)
        given_bytes = rdti_segment_punch(segment, base - (uintptr_t)segment->addr, len_bytes, want);

    (void)pthread_mutex_lock(&arena->lock);
    if (is_ours)
        (void)rdti_alloc_give(arena->alloc, base);
    arena->stats.populated_bytes -= given_bytes;
    arena->stats.given_back_bytes += given_bytes;
    if (given_bytes > 0)
        arena->last_punch_ns = rdti_now_ns();
    (void)pthread_mutex_unlock(&arena->lock);
    (void)pthread_mutex_unlock(&arena->pages_lock);
    if (!is_ours)
        arena_log_not_taken((uintptr_t)addr);
}

void
rdti_arena_free(struct rdti_arena *arena, void *addr)
{
    uint32_t number = 0;

    if (addr == NULL || rdti_in_forked_child())
        return;
    (void)pthread_mutex_lock(&arena->lock);
    const bool is_read_only = arena_find_segment(arena, (uintptr_t)addr, 1, &number) &&
                              arena->segments[number]->is_read_only;
    if (is_read_only) { /* its bytes still count: they are kept */
        (void)pthread_mutex_unlock(&arena->lock);
        return;
    }
    const uint64_t len_bytes = rdti_alloc_len_bytes(arena->alloc, (uintptr_t)addr);

    arena->stats.allocated_bytes -= len_bytes;
    const bool is_slow = len_bytes > 0 && arena_excess_bytes(arena) > 0;

    if (len_bytes > 0 && !is_slow)
        (void)rdti_alloc_give(arena->alloc, (uintptr_t)addr);
    (void)pthread_mutex_unlock(&arena->lock);
    if (is_slow)
        arena_give_with_pages(arena, (uintptr_t)addr);
    if (len_bytes == 0)
        arena_log_not_taken((uintptr_t)addr);
}

void
rdti_arena_keep_all(struct rdti_arena *arena)
{
    (void)pthread_mutex_lock(&arena->pages_lock); /* no thread is giving pages back now */
    (void)pthread_mutex_lock(&arena->lock);
    arena->retain_bytes = INT64_MAX; /* its sum with the allocated bytes does not overflow */
    (void)pthread_mutex_unlock(&arena->lock);
    (void)pthread_mutex_unlock(&arena->pages_lock);
}

rdt_status
rdti_arena_keep_pages(struct rdti_arena *arena, uint32_t segment, struct rdt_error *err)
{
    struct rdti_populated populated = {0};
    struct rdti_arena_segment *kept = NULL;
    bool was_kept = false;

    if (rdti_in_forked_child())
        return rdti_arena_forked(err);
    /* pages_lock: no thread is giving pages of it back now. */
    (void)pthread_mutex_lock(&arena->pages_lock);
    (void)pthread_mutex_lock(&arena->lock);
    if (segment < arena->segment_count) {
        kept = arena->segments[segment];
        was_kept = kept->keeps_pages;
        kept->keeps_pages = true;
    }
    (void)pthread_mutex_unlock(&arena->lock);
    (void)pthread_mutex_unlock(&arena->pages_lock);
    if (kept == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "arena: no segment %u", segment);

    const uint64_t start_ns = rdti_now_ns();
    const rdt_status status = rdti_segment_populate(kept, 0, kept->len_bytes, &populated, err);

    if (status != RDT_OK) {
        (void)pthread_mutex_lock(&arena->lock);
        kept->keeps_pages = was_kept;
        (void)pthread_mutex_unlock(&arena->lock);
        return status;
    }
    rdti_arena_book_populated(arena, &populated, start_ns);
    return RDT_OK;
}

/* ---- Queries -------------------------------------------------------------------------------- */

rdt_status
rdti_arena_locate(struct rdti_arena *arena, const void *addr, uint64_t len_bytes,
                  uint32_t *segment_out, uint64_t *segment_off_out)
{
    uint32_t number = 0;

    if (rdti_in_forked_child())
        return RDT_EFORKED;
    (void)pthread_mutex_lock(&arena->lock);
    const bool is_found = arena_find_segment(arena, (uintptr_t)addr, len_bytes, &number);

    if (is_found) {
        *segment_out = number;
        *segment_off_out = (uintptr_t)addr - (uintptr_t)arena->segments[number]->addr;
    }
    (void)pthread_mutex_unlock(&arena->lock);
    return is_found ? RDT_OK : RDT_EINVAL;
}

rdt_status
rdti_arena_segment(struct rdti_arena *arena, uint32_t segment, int *fd_out, uint64_t *len_bytes_out)
{
    if (rdti_in_forked_child())
        return RDT_EFORKED;
    (void)pthread_mutex_lock(&arena->lock);
    const bool is_found = segment < arena->segment_count;

    if (is_found) {
        *fd_out = arena->segments[segment]->fd;
        *len_bytes_out = arena->segments[segment]->len_bytes;
    }
    (void)pthread_mutex_unlock(&arena->lock);
    return is_found ? RDT_OK : RDT_EINVAL;
}

rdt_status
rdti_arena_segment_addr(struct rdti_arena *arena, uint32_t segment, void **addr_out,
                        uint64_t *len_bytes_out)
{
    if (rdti_in_forked_child())
        return RDT_EFORKED;
    (void)pthread_mutex_lock(&arena->lock);
    const bool is_found = segment < arena->segment_count;

    if (is_found) {
        *addr_out = arena->segments[segment]->addr;
        *len_bytes_out = arena->segments[segment]->len_bytes;
    }
    (void)pthread_mutex_unlock(&arena->lock);
    return is_found ? RDT_OK : RDT_EINVAL;
}

void
rdti_arena_get_stats(struct rdti_arena *arena, struct rdti_arena_stats *out)
{
    if (rdti_in_forked_child()) {
        memset(out, 0, sizeof(*out));
        return;
    }
    (void)pthread_mutex_lock(&arena->lock);
    *out = arena->stats;
    out->segment_count = arena->segment_count;
    (void)pthread_mutex_unlock(&arena->lock);
}
