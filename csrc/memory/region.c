/* SPDX-License-Identifier: Apache-2.0
 * Regions: see region.h. Peers see only the table of generations; all decisions use private
 * memory. */
#include "memory/region.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/system/fork.h"
#include "base/range.h"
#include "memory/generations.h"
#include "memory/region_impl.h"

#define ENTRIES_AT_FIRST 64

/* ---- Creation ------------------------------------------------------------------------------- */

rdt_status
rdti_regions_create(struct rdti_arena *arena, const uint8_t uuid[RDT_UUID_BYTES],
                    void (*on_revoke)(void *arg, uint32_t index, uint32_t generation), void *arg,
                    struct rdti_regions **out, struct rdt_error *err)
{
    rdti_fork_guard();
    struct rdti_regions *regions = calloc(1, sizeof(*regions));
    struct rdti_region_entry *entries = calloc(ENTRIES_AT_FIRST, sizeof(*entries));

    if (regions == NULL || entries == NULL) {
        free(entries);
        free(regions);
        return rdti_error_set(err, RDT_ENOMEM, 0, "regions_create: no memory for the table");
    }
    const rdt_status status = rdti_generations_open(&regions->fd, &regions->table, err);

    if (status != RDT_OK) {
        free(entries);
        free(regions);
        return status;
    }
    regions->arena = arena;
    memcpy(regions->uuid, uuid, RDT_UUID_BYTES);
    regions->on_revoke = on_revoke;
    regions->revoke_arg = arg;
    (void)pthread_mutex_init(&regions->lock, NULL); /* default attributes cannot fail on Linux */
    rdti_list_init(&regions->quarantine);
    regions->entries = entries;
    regions->entry_cap = ENTRIES_AT_FIRST;
    regions->next_index = 1;
    *out = regions;
    return RDT_OK;
}

/* ---- The end of a region -------------------------------------------------------------------- */

/*
 * If nothing holds the region in quarantine any more, takes it out of all tables. The caller then
 * owns it and calls region_finish() without the lock. False: it stays. Locked.
 */
static bool
region_detach_if_drained(rdt_region *region)
{
    struct rdti_regions *regions = region->regions;
    struct rdti_region_entry *entry = &regions->entries[region->index];

    if (region->state != RDTI_REGION_QUARANTINE || region->is_revoking || region->pins > 0 ||
        region->pending_count > 0)
        return false;
    rdti_list_remove(&region->link);
    regions->stats.quarantine_count--;
    regions->stats.quarantine_bytes -= region->len_bytes;
    entry->region = NULL;
    if (entry->generation == UINT32_MAX) /* used up: a wrap would make old handles valid */
        return true;
    entry->next_free = 0;
    if (regions->last_free != 0)
        regions->entries[regions->last_free].next_free = region->index;
    else
        regions->first_free = region->index;
    regions->last_free = region->index;
    return true;
}

/* Number of drained() callbacks that this thread is inside. */
static _Thread_local uint32_t in_drained;

bool
rdti_regions_in_drained(void)
{
    return in_drained > 0;
}

static void
region_run_finish(struct rdti_deferred *node)
{
    rdt_region *region = RDTI_CONTAINER(node, rdt_region, deferred);
    struct rdti_regions *regions = region->regions;
    void (*drained)(void *arg) = region->drained;
    void *arg = region->drained_arg;

    if (region->is_in_arena)
        rdti_arena_free(regions->arena, region->addr);
    free(region);
    in_drained++;
    if (drained != NULL)
        drained(arg);
    in_drained--;
    /* release: a thread that finds none left sees what drained() did. The last access to the
     * table. */
    (void)atomic_fetch_sub_explicit(&regions->ending_count, 1, memory_order_release);
}

/* Returning the pages of a large span takes milliseconds, and the caller's code any time: neither
 * may delay other work of the driver, such as heartbeats. */
static void
region_defer_finish(void *arg)
{
    rdt_region *region = arg;
    struct rdti_engine *engine = region->regions->engine;

    region->deferred.run = region_run_finish;
    if (engine != NULL)
        rdti_engine_defer(engine, &region->deferred); /* at once, if this thread does not drive */
    else
        region_run_finish(&region->deferred);
}

/* No peer reaches the region any more. This table's lock is not held. */
static void
region_finish(rdt_region *region)
{
    struct rdti_regions *regions = region->regions;

    /* relaxed: messages of peers end quarantine under the engine's lock, which callers of
     * rdti_regions_are_ending() take first */
    (void)atomic_fetch_add_explicit(&regions->ending_count, 1, memory_order_relaxed);
    if (region->index == 0 || regions->on_gone == NULL ||
        regions->on_gone(regions->gone_arg, region->index, region->generation, region_defer_finish,
                         region))
        region_defer_finish(region);
}

bool
rdti_regions_are_ending(const struct rdti_regions *regions)
{
    return atomic_load_explicit(&regions->ending_count, memory_order_acquire) > 0;
}

void
rdti_regions_set_engine(struct rdti_regions *regions, struct rdti_engine *engine)
{
    regions->engine = engine;
}

void
rdti_regions_set_gone(struct rdti_regions *regions, rdti_region_gone_fn on_gone, void *arg)
{
    regions->on_gone = on_gone;
    regions->gone_arg = arg;
}

/* The table of states in region.h; a test compares the two. "gone" is not a state. */
static const uint32_t may_become[] = {
    [RDTI_REGION_PRIVATE] = 1u << RDTI_REGION_EXPORTED,
    [RDTI_REGION_EXPORTED] = 1u << RDTI_REGION_QUARANTINE,
    [RDTI_REGION_QUARANTINE] = 0,
};

void
rdti_region_become(rdt_region *region, enum rdti_region_state state)
{
    const bool is_legal = (may_become[region->state] & 1u << state) != 0;

    assert(is_legal);
    (void)is_legal;
    region->state = state;
}

/* Locked. */
static void
region_enter_quarantine(rdt_region *region, bool is_revoking)
{
    struct rdti_regions *regions = region->regions;
    const uint32_t next_generation = region->generation + 1;

    rdti_region_become(region, RDTI_REGION_QUARANTINE);
    region->is_revoking = is_revoking;
    regions->stats.exported_count--;
    regions->stats.quarantine_count++;
    regions->stats.quarantine_bytes += region->len_bytes;
    rdti_list_append(&regions->quarantine, &region->link);
    /* seq_cst; partner: the shm initiator's load before it writes. Either it sees that the
     * generation has ended, or its write began before the revocation that this process is about to
     * send, and it acknowledges that only after the write is done. */
    regions->entries[region->index].generation = next_generation;
    atomic_store_explicit(&regions->table[region->index], next_generation, memory_order_seq_cst);
}

static void
region_end(rdt_region *region, bool asks_peers, void (*drained)(void *arg), void *arg)
{
    if (region == NULL || rdti_in_forked_child())
        return;
    struct rdti_regions *regions = region->regions;

    (void)pthread_mutex_lock(&regions->lock);
    assert(region->state != RDTI_REGION_QUARANTINE);
    const bool is_exported = region->state == RDTI_REGION_EXPORTED;
    const bool is_revoking = is_exported && asks_peers;
    const uint32_t index = region->index;
    const uint32_t generation = region->generation;

    region->drained = drained;
    region->drained_arg = arg;
    if (!region->is_lent)
        rdti_span_remove(&regions->live, &region->span);
    regions->stats.live_count--;
    regions->stats.live_bytes -= region->len_bytes;
    if (is_exported)
        region_enter_quarantine(region, is_revoking);
    bool is_done = !is_exported || region_detach_if_drained(region);
    (void)pthread_mutex_unlock(&regions->lock);

    if (is_revoking) {
        regions->on_revoke(regions->revoke_arg, index, generation);
        (void)pthread_mutex_lock(&regions->lock);
        region->is_revoking = false;
        is_done = region_detach_if_drained(region);
        (void)pthread_mutex_unlock(&regions->lock);
    }
    if (is_done)
        region_finish(region);
}

void
rdt_region_free(rdt_region *region, void (*drained)(void *arg), void *arg)
{
    region_end(region, true, drained, arg);
}

void
rdti_regions_end_lent(rdt_region *region, void (*drained)(void *arg), void *arg)
{
    region_end(region, false, drained, arg);
}

rdt_status
rdti_regions_destroy(struct rdti_regions *regions, struct rdt_error *err)
{
    struct rdti_list *link;

    if (regions == NULL || rdti_in_forked_child())
        return RDT_OK;
    (void)pthread_mutex_lock(&regions->lock);
    const uint64_t live_count = regions->stats.live_count;
    const uint64_t live_bytes = regions->stats.live_bytes;
    (void)pthread_mutex_unlock(&regions->lock);

    if (live_count > 0)
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "%llu regions of %llu bytes are not freed; free them first",
                              (unsigned long long)live_count, (unsigned long long)live_bytes);
    /* No lock: no other thread uses the table any more. */
    while ((link = rdti_list_take_first(&regions->quarantine)) != NULL)
        region_finish(RDTI_CONTAINER(link, rdt_region, link));
    rdti_generations_close(regions->fd, regions->table);
    (void)pthread_mutex_destroy(&regions->lock);
    free(regions->entries);
    free(regions);
    return RDT_OK;
}

/* ---- Allocation and registration ------------------------------------------------------------ */

static void
region_enter_live(struct rdti_regions *regions, rdt_region *region)
{
    (void)pthread_mutex_lock(&regions->lock);
    if (!region->is_lent)
        rdti_span_insert(&regions->live, &region->span, (uintptr_t)region->addr, region->len_bytes);
    regions->stats.live_count++;
    regions->stats.live_bytes += region->len_bytes;
    regions->stats.registrations++;
    (void)pthread_mutex_unlock(&regions->lock);
}

static rdt_status
region_new(struct rdti_regions *regions, uint64_t len_bytes, rdt_region **out,
           struct rdt_error *err)
{
    rdt_region *region = calloc(1, sizeof(*region));

    if (region == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "region: %zu bytes for its handle",
                              sizeof(*region));
    region->regions = regions;
    region->len_bytes = len_bytes;
    region->segment = RDT_SEGMENT_NONE;
    rdti_list_init(&region->link);
    *out = region;
    return RDT_OK;
}

rdt_status
rdti_regions_alloc(struct rdti_regions *regions, uint64_t len_bytes, uint32_t flags,
                   rdt_region **out, struct rdt_error *err)
{
    rdt_region *region = NULL;

    if (rdti_in_forked_child())
        return rdti_regions_forked("region_alloc", err);
    if ((flags & ~(uint32_t)(RDT_REGION_ZERO | RDT_REGION_READ_ONLY)) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "region_alloc: flags 0x%x", flags);
    rdt_status status = region_new(regions, len_bytes, &region, err);

    if (status != RDT_OK)
        return status;
    if ((flags & RDT_REGION_READ_ONLY) != 0) /* and zero: such memory is not used again */
        status = rdti_arena_alloc_read_only(regions->arena, len_bytes, &region->addr, err);
    else if ((flags & RDT_REGION_ZERO) != 0)
        status = rdti_arena_alloc_zero(regions->arena, len_bytes, &region->addr, err);
    else
        status = rdti_arena_alloc(regions->arena, len_bytes, &region->addr, err);
    if (status != RDT_OK) {
        free(region);
        return status;
    }
    region->is_in_arena = true;
    status = rdti_arena_locate(regions->arena, region->addr, len_bytes, &region->segment,
                               &region->segment_off);
    assert(status == RDT_OK); /* the arena has just allocated the span */
    (void)status;
    region_enter_live(regions, region);
    *out = region;
    return RDT_OK;
}

static rdt_status
region_register_memory(struct rdti_regions *regions, void *addr, uint64_t len_bytes, bool is_lent,
                       rdt_region **out, struct rdt_error *err)
{
    rdt_region *region = NULL;

    if (rdti_in_forked_child())
        return rdti_regions_forked("region_register", err);
    /* No process has addresses beyond 2^62, so sums of them cannot overflow. */
    if ((addr == NULL && len_bytes > 0) ||
        !rdti_range_ok((uintptr_t)addr, len_bytes, UINT64_MAX / 4))
        return rdti_error_set(err, RDT_EINVAL, 0, "region_register: %p, %llu bytes", addr,
                              (unsigned long long)len_bytes);
    const rdt_status status = region_new(regions, len_bytes, &region, err);

    if (status != RDT_OK)
        return status;
    region->addr = addr;
    region->is_lent = is_lent;
    region_enter_live(regions, region);
    *out = region;
    return RDT_OK;
}

rdt_status
rdti_regions_register(struct rdti_regions *regions, void *addr, uint64_t len_bytes,
                      rdt_region **out, struct rdt_error *err)
{
    return region_register_memory(regions, addr, len_bytes, false, out, err);
}

rdt_status
rdti_regions_lend(struct rdti_regions *regions, void *addr, uint64_t len_bytes, rdt_region **out,
                  struct rdt_error *err)
{
    return region_register_memory(regions, addr, len_bytes, true, out, err);
}

rdt_region *
rdti_regions_find(struct rdti_regions *regions, const void *addr, uint64_t len_bytes)
{
    if (rdti_in_forked_child())
        return NULL;
    (void)pthread_mutex_lock(&regions->lock);
    struct rdti_span *span = rdti_span_find(&regions->live, (uintptr_t)addr, len_bytes);
    (void)pthread_mutex_unlock(&regions->lock);

    return span == NULL ? NULL : RDTI_CONTAINER(span, rdt_region, span);
}

void *
rdt_region_addr(const rdt_region *region)
{
    return region == NULL ? NULL : region->addr;
}

uint64_t
rdt_region_len_bytes(const rdt_region *region)
{
    return region == NULL ? 0 : region->len_bytes;
}

/* ---- Targets and quarantine ----------------------------------------------------------------- */

rdt_status
rdti_regions_acquire(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                     uint64_t off_bytes, uint64_t len_bytes, struct rdti_target *out,
                     struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (rdti_in_forked_child())
        return rdti_regions_forked("region target", err);
    (void)pthread_mutex_lock(&regions->lock);
    rdt_region *region = index < regions->next_index ? regions->entries[index].region : NULL;

    if (index == 0 || index >= regions->next_index)
        status = rdti_error_set(err, RDT_EPROTO, 0, "region %u was never exported", index);
    else if (region == NULL || region->state != RDTI_REGION_EXPORTED ||
             region->generation != generation)
        status = rdti_error_set(err, RDT_ESTALE, 0, "region %u, generation %u: it was freed", index,
                                generation);
    else if (!rdti_range_ok(off_bytes, len_bytes, region->len_bytes))
        status = rdti_error_set(err, RDT_ERANGE, 0,
                                "region %u has %llu bytes: offset %llu, length %llu leaves it",
                                index, (unsigned long long)region->len_bytes,
                                (unsigned long long)off_bytes, (unsigned long long)len_bytes);
    if (status == RDT_OK) {
        region->pins++;
        out->addr = (char *)region->addr + off_bytes;
        out->pin = region;
        out->region_bytes = region->len_bytes;
    }
    (void)pthread_mutex_unlock(&regions->lock);
    return status;
}

void
rdti_regions_release(struct rdti_regions *regions, struct rdti_target *target)
{
    rdt_region *region = target->pin;

    if (rdti_in_forked_child())
        return;
    (void)pthread_mutex_lock(&regions->lock);
    assert(region->pins > 0);
    region->pins--;
    const bool is_done = region_detach_if_drained(region);
    (void)pthread_mutex_unlock(&regions->lock);

    target->addr = NULL;
    target->pin = NULL;
    if (is_done)
        region_finish(region);
}

/* The region in quarantine that a peer refers to, or NULL. Locked. */
static rdt_region *
region_find_in_quarantine(const struct rdti_regions *regions, uint32_t index, uint32_t generation)
{
    rdt_region *region = index < regions->next_index ? regions->entries[index].region : NULL;

    if (region == NULL || region->state != RDTI_REGION_QUARANTINE ||
        region->generation != generation)
        return NULL;
    return region;
}

void
rdti_regions_expect(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                    uint32_t count)
{
    if (rdti_in_forked_child())
        return;
    (void)pthread_mutex_lock(&regions->lock);
    rdt_region *region = region_find_in_quarantine(regions, index, generation);

    assert(region != NULL && region->is_revoking);
    region->pending_count = count;
    (void)pthread_mutex_unlock(&regions->lock);
}

bool
rdti_regions_acknowledge(struct rdti_regions *regions, uint32_t index, uint32_t generation)
{
    bool is_done = false;

    if (rdti_in_forked_child())
        return false;
    (void)pthread_mutex_lock(&regions->lock);
    rdt_region *region = region_find_in_quarantine(regions, index, generation);
    const bool is_expected = region != NULL && region->pending_count > 0;

    if (is_expected) {
        region->pending_count--;
        is_done = region_detach_if_drained(region);
    }
    (void)pthread_mutex_unlock(&regions->lock);
    if (is_done)
        region_finish(region);
    return is_expected;
}

int
rdti_regions_generation_fd(const struct rdti_regions *regions)
{
    return regions->fd;
}

void
rdti_regions_get_stats(struct rdti_regions *regions, struct rdti_region_stats *out)
{
    if (rdti_in_forked_child()) {
        memset(out, 0, sizeof(*out));
        return;
    }
    (void)pthread_mutex_lock(&regions->lock);
    *out = regions->stats;
    (void)pthread_mutex_unlock(&regions->lock);
}
