/* SPDX-License-Identifier: Apache-2.0
 * Exports regions: assigns the index and generation by which peers access them. */
#include <stdlib.h>
#include <string.h>

#include "base/system/fork.h"
#include "memory/generations.h"
#include "memory/region_impl.h"

/* Room for next_index in the private entries and in the mapped table. Locked, also during one
 * system call per 16384 exports: unlocking there would not be worth its complexity. */
static rdt_status
region_export_grow_entries(struct rdti_regions *regions, struct rdt_error *err)
{
    const uint32_t index = regions->next_index;

    if (index == regions->entry_cap) {
        struct rdti_region_entry *entries =
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

/* An index under which no peer can refer to another region. Locked. */
static rdt_status
region_export_take_index(struct rdti_regions *regions, uint32_t *out, struct rdt_error *err)
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
    const rdt_status status = region_export_grow_entries(regions, err);

    if (status != RDT_OK)
        return status;
    regions->entries[regions->next_index].generation =
        1; /* 0 is never live: a zeroed handle is stale */
    *out = regions->next_index++;
    return RDT_OK;
}

/* Locked. */
static rdt_status
region_export_make_exported(rdt_region *region, struct rdt_error *err)
{
    struct rdti_regions *regions = region->regions;
    const rdt_status status = region_export_take_index(regions, &region->index, err);

    if (status != RDT_OK)
        return status;
    struct rdti_region_entry *entry = &regions->entries[region->index];

    entry->region = region;
    region->generation = entry->generation;
    region->exported_as = ++regions->export_count;
    rdti_region_become(region, RDTI_REGION_EXPORTED);
    regions->stats.exported_count++;
    /* Release: a peer learns of the export from a message that is sent later. */
    atomic_store_explicit(&regions->table[region->index], entry->generation, memory_order_release);
    return RDT_OK;
}

/* Locked. */
static rdt_status
region_export_locked(rdt_region *region, struct rdt_remote_region *out, struct rdt_error *err)
{
    const rdt_status status =
        region->state == RDTI_REGION_PRIVATE ? region_export_make_exported(region, err) : RDT_OK;

    if (status != RDT_OK)
        return status;
    *out = (struct rdt_remote_region){
        .index = region->index,
        .generation = region->generation,
        .addr = (uintptr_t)region->addr,
        .len_bytes = region->len_bytes,
        .segment_off = region->segment_off,
        .segment = region->segment,
    };

    memcpy(out->owner, region->regions->uuid, RDT_UUID_BYTES);
    return RDT_OK;
}

rdt_status
rdt_region_export(rdt_region *region, struct rdt_remote_region *out, struct rdt_error *err)
{
    if (rdti_in_forked_child())
        return rdti_regions_forked("region_export", err);
    if (region == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "region_export: region %p, out %p",
                              (void *)region, (void *)out);
    (void)pthread_mutex_lock(&region->regions->lock);
    const rdt_status status = region_export_locked(region, out, err);
    (void)pthread_mutex_unlock(&region->regions->lock);
    return status;
}

uint64_t
rdti_regions_export_count(struct rdti_regions *regions)
{
    (void)pthread_mutex_lock(&regions->lock);
    const uint64_t count = regions->export_count;
    (void)pthread_mutex_unlock(&regions->lock);

    return count;
}

uint64_t
rdti_regions_exported_as(struct rdti_regions *regions, uint32_t index)
{
    (void)pthread_mutex_lock(&regions->lock);
    const rdt_region *region = index < regions->next_index ? regions->entries[index].region : NULL;
    const uint64_t exported_as =
        region == NULL || !region->is_in_arena ? RDTI_EXPORT_UNMAPPED : region->exported_as;
    (void)pthread_mutex_unlock(&regions->lock);

    return exported_as;
}

rdt_status
rdti_regions_place_at(struct rdti_regions *regions, const void *addr, uint64_t len_bytes,
                      struct rdti_place *out, struct rdt_error *err)
{
    rdt_status status = RDT_EAGAIN;

    if (rdti_in_forked_child())
        return rdti_regions_forked("region_export", err);
    (void)pthread_mutex_lock(&regions->lock);
    struct rdti_span *span = rdti_span_find(&regions->live, (uintptr_t)addr, len_bytes);
    if (span != NULL)
        status = region_export_locked(RDTI_CONTAINER(span, rdt_region, span), &out->region, err);
    if (status == RDT_OK)
        out->off_bytes = (uintptr_t)addr - out->region.addr;
    (void)pthread_mutex_unlock(&regions->lock);
    return status;
}
