/* SPDX-License-Identifier: Apache-2.0
 * Regions: see region.h. What peers may see is the table of generations; what decides is private
 * memory. */
#include "core/region.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/fork.h"
#include "base/list.h"
#include "base/range.h"
#include "core/generations.h"
#include "core/span_tree.h"

#define ENTRIES_AT_FIRST 64

enum region_state { PRIVATE, EXPORTED, QUARANTINE };

/* Fields from `state` on are guarded by the table's lock, the others immutable. */
struct rdt_region {
    struct rdti_regions *regions;
    void *addr;
    uint64_t len_bytes;
    bool is_in_arena; /* else registered: the caller's memory */
    uint32_t segment; /* RDT_SEGMENT_NONE for registered memory */
    uint64_t segment_off;
    struct rdti_span span; /* in `live`, until it is freed */
    struct rdti_list link; /* in `quarantine` */
    enum region_state state;
    uint32_t index;         /* 0 while PRIVATE */
    uint32_t generation;    /* under which it was exported */
    uint32_t pins;          /* targets in use */
    uint32_t pending_count; /* peers that have not acknowledged */
    bool is_revoking;       /* on_revoke() runs: it may raise pending_count yet */
    void (*drained)(void *arg);
    void *drained_arg;
    struct rdti_deferred deferred;
};

struct entry {
    rdt_region *region;  /* EXPORTED or in QUARANTINE; NULL: the index is free */
    uint32_t generation; /* the table's own, where no peer can write it */
    uint32_t next_free;  /* 0: the last */
};

struct rdti_regions {
    struct rdti_arena *arena;
    struct rdti_engine *engine; /* NULL: nobody holds its lock here */
    uint8_t uuid[RDT_UUID_BYTES];
    void (*on_revoke)(void *arg, uint32_t index, uint32_t generation);
    void *revoke_arg;
    int fd;                  /* of the table of generations */
    _Atomic uint32_t *table; /* mapped; entries below next_index are in memory */
    pthread_mutex_t lock;    /* guards all below; never held while somebody else's code runs */
    struct rdti_span_tree live;
    struct rdti_list quarantine;
    struct entry *entries;
    uint32_t entry_cap;
    uint32_t next_index; /* above all that were ever used */
    uint32_t first_free; /* oldest first: generations last longest */
    uint32_t last_free;
    struct rdti_region_stats stats;
};

static rdt_status
forked(const char *call, struct rdt_error *err)
{
    return rdti_error_set(err, RDT_EFORKED, 0,
                          "%s: this is a forked child; open a context of its own there", call);
}

/* ---- Creation ------------------------------------------------------------------------------- */

rdt_status
rdti_regions_create(struct rdti_arena *arena, const uint8_t uuid[RDT_UUID_BYTES],
                    void (*on_revoke)(void *arg, uint32_t index, uint32_t generation), void *arg,
                    struct rdti_regions **out, struct rdt_error *err)
{
    rdti_fork_guard();
    struct rdti_regions *regions = calloc(1, sizeof(*regions));
    struct entry *entries = calloc(ENTRIES_AT_FIRST, sizeof(*entries));

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
 * Where nothing holds the region in quarantine any more, take it out of all tables: the caller owns
 * it then and calls finish() without the lock. False: it stays. Locked.
 */
static bool
detach_if_drained(rdt_region *region)
{
    struct rdti_regions *regions = region->regions;
    struct entry *entry = &regions->entries[region->index];

    if (region->state != QUARANTINE || region->is_revoking || region->pins > 0 ||
        region->pending_count > 0)
        return false;
    rdti_list_remove(&region->link);
    regions->stats.quarantine_count--;
    regions->stats.quarantine_bytes -= region->len_bytes;
    entry->region = NULL;
    if (entry->generation == UINT32_MAX) /* used up: another round would make old handles valid */
        return true;
    entry->next_free = 0;
    if (regions->last_free != 0)
        regions->entries[regions->last_free].next_free = region->index;
    else
        regions->first_free = region->index;
    regions->last_free = region->index;
    return true;
}

static void
run_drained(struct rdti_deferred *node)
{
    rdt_region *region = RDTI_CONTAINER(node, rdt_region, deferred);
    void (*drained)(void *arg) = region->drained;
    void *arg = region->drained_arg;

    free(region);
    drained(arg);
}

/* Nobody reaches the region any more. Not locked: the arena has a lock, the caller's code runs. */
static void
finish(rdt_region *region)
{
    struct rdti_engine *engine = region->regions->engine;

    if (region->is_in_arena)
        rdti_arena_free(region->regions->arena, region->addr);
    region->deferred.run = run_drained;
    if (region->drained == NULL)
        free(region);
    else if (engine != NULL)
        rdti_engine_defer(engine, &region->deferred); /* at once, if this thread does not drive */
    else
        run_drained(&region->deferred);
}

void
rdti_regions_set_engine(struct rdti_regions *regions, struct rdti_engine *engine)
{
    regions->engine = engine;
}

void
rdt_region_free(rdt_region *region, void (*drained)(void *arg), void *arg)
{
    if (region == NULL || rdti_in_forked_child())
        return;
    struct rdti_regions *regions = region->regions;

    (void)pthread_mutex_lock(&regions->lock);
    assert(region->state != QUARANTINE);
    const bool is_exported = region->state == EXPORTED;
    const uint32_t index = region->index;
    const uint32_t generation = region->generation;

    region->drained = drained;
    region->drained_arg = arg;
    rdti_span_remove(&regions->live, &region->span);
    regions->stats.live_count--;
    regions->stats.live_bytes -= region->len_bytes;
    if (is_exported) {
        region->state = QUARANTINE;
        region->is_revoking = true;
        regions->stats.exported_count--;
        regions->stats.quarantine_count++;
        regions->stats.quarantine_bytes += region->len_bytes;
        rdti_list_append(&regions->quarantine, &region->link);
        /* seq_cst; partner: the shm initiator's load before it writes. Either it sees that the
         * generation is over, or its write began before the revocation that we are about to send,
         * and it acknowledges that only when the write is done. */
        regions->entries[index].generation = generation + 1;
        atomic_store_explicit(&regions->table[index], generation + 1, memory_order_seq_cst);
    }
    (void)pthread_mutex_unlock(&regions->lock);

    bool is_done = !is_exported;

    if (is_exported) {
        regions->on_revoke(regions->revoke_arg, index, generation);
        (void)pthread_mutex_lock(&regions->lock);
        region->is_revoking = false;
        is_done = detach_if_drained(region);
        (void)pthread_mutex_unlock(&regions->lock);
    }
    if (is_done)
        finish(region);
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
    /* Nobody else is here any more: no lock. */
    while ((link = rdti_list_take_first(&regions->quarantine)) != NULL)
        finish(RDTI_CONTAINER(link, rdt_region, link));
    rdti_generations_close(regions->fd, regions->table);
    (void)pthread_mutex_destroy(&regions->lock);
    free(regions->entries);
    free(regions);
    return RDT_OK;
}

/* ---- Birth ---------------------------------------------------------------------------------- */

static void
enter_live(struct rdti_regions *regions, rdt_region *region)
{
    (void)pthread_mutex_lock(&regions->lock);
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
        return forked("region_alloc", err);
    if ((flags & ~(uint32_t)RDT_REGION_ZERO) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "region_alloc: flags 0x%x", flags);
    rdt_status status = region_new(regions, len_bytes, &region, err);

    if (status != RDT_OK)
        return status;
    if ((flags & RDT_REGION_ZERO) != 0)
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
    assert(status == RDT_OK); /* the arena gave the span out a moment ago */
    (void)status;
    enter_live(regions, region);
    *out = region;
    return RDT_OK;
}

rdt_status
rdti_regions_register(struct rdti_regions *regions, void *addr, uint64_t len_bytes,
                      rdt_region **out, struct rdt_error *err)
{
    rdt_region *region = NULL;

    if (rdti_in_forked_child())
        return forked("region_register", err);
    /* No process has addresses beyond 2^62: so sums of them cannot overflow either. */
    if ((addr == NULL && len_bytes > 0) ||
        !rdti_range_ok((uintptr_t)addr, len_bytes, UINT64_MAX / 4))
        return rdti_error_set(err, RDT_EINVAL, 0, "region_register: %p, %llu bytes", addr,
                              (unsigned long long)len_bytes);
    const rdt_status status = region_new(regions, len_bytes, &region, err);

    if (status != RDT_OK)
        return status;
    region->addr = addr;
    enter_live(regions, region);
    *out = region;
    return RDT_OK;
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

/* ---- Export --------------------------------------------------------------------------------- */

/* Room for next_index in the private entries and in the mapped table. Locked, across one system
 * call per 16384 exports: it costs less than what unlocking there would complicate. */
static rdt_status
grow_entries(struct rdti_regions *regions, struct rdt_error *err)
{
    const uint32_t index = regions->next_index;

    if (index == regions->entry_cap) {
        struct entry *entries =
            realloc(regions->entries, 2 * (size_t)regions->entry_cap * sizeof(*entries));

        if (entries == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "region_export: no memory for entry %u",
                                  index);
        memset(entries + regions->entry_cap, 0, regions->entry_cap * sizeof(*entries));
        regions->entries = entries;
        regions->entry_cap *= 2;
    }
    if (index % RDTI_GENERATIONS_STEP == 0) {
        const int sys_errno = rdti_generations_populate(regions->fd, regions->table, index);

        if (sys_errno != 0)
            return rdti_error_set(err, RDT_ENOMEM, sys_errno,
                                  "region_export: populating the table of generations; free RAM");
    }
    return RDT_OK;
}

/* An index that no peer can mean another region by. Locked. */
static rdt_status
take_index(struct rdti_regions *regions, uint32_t *out, struct rdt_error *err)
{
    const uint32_t index = regions->first_free;

    if (index != 0) {
        regions->first_free = regions->entries[index].next_free;
        if (regions->first_free == 0)
            regions->last_free = 0;
        *out = index;
        return RDT_OK;
    }
    if (regions->next_index > RDTI_REGION_INDEX_MAX)
        return rdti_error_set(
            err, RDT_ENOMEM, 0,
            "region_export: %u regions are exported or in quarantine, and no more "
            "can be; free some, or export larger ones",
            RDTI_REGION_INDEX_MAX);
    const rdt_status status = grow_entries(regions, err);

    if (status != RDT_OK)
        return status;
    regions->entries[regions->next_index].generation =
        1; /* 0 is never live: a zeroed handle is stale */
    *out = regions->next_index++;
    return RDT_OK;
}

/* Locked. */
static rdt_status
make_exported(rdt_region *region, struct rdt_error *err)
{
    struct rdti_regions *regions = region->regions;
    const rdt_status status = take_index(regions, &region->index, err);

    if (status != RDT_OK)
        return status;
    struct entry *entry = &regions->entries[region->index];

    entry->region = region;
    region->generation = entry->generation;
    region->state = EXPORTED;
    regions->stats.exported_count++;
    /* Release: a peer learns of the export by a message that is sent later. */
    atomic_store_explicit(&regions->table[region->index], entry->generation, memory_order_release);
    return RDT_OK;
}

rdt_status
rdt_region_export(rdt_region *region, struct rdt_remote_region *out, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (rdti_in_forked_child())
        return forked("region_export", err);
    if (region == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "region_export: region %p, out %p",
                              (void *)region, (void *)out);
    struct rdti_regions *regions = region->regions;
    struct rdt_remote_region remote = {
        .addr = (uintptr_t)region->addr,
        .len_bytes = region->len_bytes,
        .segment_off = region->segment_off,
        .segment = region->segment,
    };

    memcpy(remote.owner, regions->uuid, RDT_UUID_BYTES);
    (void)pthread_mutex_lock(&regions->lock);
    if (region->state == PRIVATE)
        status = make_exported(region, err);
    remote.index = region->index;
    remote.generation = region->generation;
    (void)pthread_mutex_unlock(&regions->lock);
    if (status == RDT_OK)
        *out = remote;
    return status;
}

/* ---- Targets and quarantine ----------------------------------------------------------------- */

rdt_status
rdti_regions_acquire(struct rdti_regions *regions, uint32_t index, uint32_t generation,
                     uint64_t off_bytes, uint64_t len_bytes, struct rdti_target *out,
                     struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (rdti_in_forked_child())
        return forked("region target", err);
    (void)pthread_mutex_lock(&regions->lock);
    rdt_region *region = index < regions->next_index ? regions->entries[index].region : NULL;

    if (index == 0 || index >= regions->next_index)
        status = rdti_error_set(err, RDT_EPROTO, 0, "region %u was never exported", index);
    else if (region == NULL || region->state != EXPORTED || region->generation != generation)
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
    const bool is_done = detach_if_drained(region);
    (void)pthread_mutex_unlock(&regions->lock);

    target->addr = NULL;
    target->pin = NULL;
    if (is_done)
        finish(region);
}

/* The region in quarantine that a peer means, or NULL. Locked. */
static rdt_region *
find_in_quarantine(const struct rdti_regions *regions, uint32_t index, uint32_t generation)
{
    rdt_region *region = index < regions->next_index ? regions->entries[index].region : NULL;

    if (region == NULL || region->state != QUARANTINE || region->generation != generation)
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
    rdt_region *region = find_in_quarantine(regions, index, generation);

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
    rdt_region *region = find_in_quarantine(regions, index, generation);
    const bool is_expected = region != NULL && region->pending_count > 0;

    if (is_expected) {
        region->pending_count--;
        is_done = detach_if_drained(region);
    }
    (void)pthread_mutex_unlock(&regions->lock);
    if (is_done)
        finish(region);
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
