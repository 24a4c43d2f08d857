/* SPDX-License-Identifier: Apache-2.0
 * A table of regions over an arena, with the table of generations mapped as a peer maps it. */
#ifndef RDT_TESTS_CORE_REGION_RIG_H
#define RDT_TESTS_CORE_REGION_RIG_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "harness.h"
#include "memory/region.h"

#define MIB (UINT64_C(1) << 20)
#define GENERATION_BYTES ((RDTI_REGION_INDEX_MAX + UINT64_C(1)) * 4)

static struct rdt_error err;
static const uint8_t owner_uuid[RDT_UUID_BYTES] = {1, 2,  3,  4,  5,  6,  7,  8,
                                                   9, 10, 11, 12, 13, 14, 15, 16};

/* What on_revoke() does is up to the test. */
struct rig {
    struct rdti_arena *arena;
    struct rdti_regions *regions;
    const _Atomic uint32_t *table; /* as a peer maps it */
    uint32_t expect_count;         /* acknowledgements to wait for */
    uint32_t revoke_count;
    uint32_t last_index;
    uint32_t last_generation;
    bool acknowledges_at_once; /* inside on_revoke() */
};

static inline void
on_revoke(void *arg, uint32_t index, uint32_t generation)
{
    struct rig *rig = arg;

    rig->revoke_count++;
    rig->last_index = index;
    rig->last_generation = generation;
    if (rig->expect_count > 0)
        rdti_regions_expect(rig->regions, index, generation, rig->expect_count);
    for (uint32_t i = 0; rig->acknowledges_at_once && i < rig->expect_count; i++)
        CHECK(rdti_regions_acknowledge(rig->regions, index, generation));
}

static inline void
rig_open_with(struct rig *rig, void (*revoke)(void *, uint32_t, uint32_t))
{
    memset(rig, 0, sizeof(*rig));
    CHECK_OK(rdti_arena_create(16 * MIB, 0, &rig->arena, &err), &err);
    CHECK_OK(rdti_regions_create(rig->arena, owner_uuid, revoke, rig, &rig->regions, &err), &err);
    void *table = mmap(NULL, GENERATION_BYTES, PROT_READ, MAP_SHARED,
                       rdti_regions_generation_fd(rig->regions), 0);

    CHECK(table != MAP_FAILED);
    rig->table = table;
}

static inline void
rig_open(struct rig *rig)
{
    rig_open_with(rig, on_revoke);
}

static inline void
rig_close(struct rig *rig)
{
    struct rdti_arena_stats stats;

    CHECK_OK(rdti_regions_destroy(rig->regions, &err), &err);
    rdti_arena_get_stats(rig->arena, &stats);
    CHECK_UINT_EQ(stats.allocated_bytes, 0); /* every span came back */
    rdti_arena_destroy(rig->arena);
    CHECK_INT_EQ(munmap((void *)rig->table, GENERATION_BYTES), 0);
}

static inline rdt_region *
new_region(struct rig *rig, uint64_t len_bytes)
{
    rdt_region *region = NULL;

    CHECK_OK(rdti_regions_alloc(rig->regions, len_bytes, 0, &region, &err), &err);
    return region;
}

static inline struct rdt_remote_region export(rdt_region *region)
{
    struct rdt_remote_region remote;

    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    return remote;
}

/* seq_cst: as the shm initiator does it; partner: the store in rdt_region_free(). */
static inline uint32_t
generation_seen(const struct rig *rig, uint32_t index)
{
    return atomic_load_explicit(&rig->table[index], memory_order_seq_cst);
}

static inline struct rdti_region_stats
stats_of(struct rig *rig)
{
    struct rdti_region_stats stats;

    rdti_regions_get_stats(rig->regions, &stats);
    return stats;
}

static inline void
count_call(void *arg)
{
    ++*(uint32_t *)arg;
}

static inline uint32_t
roll(uint64_t *rng, uint32_t below)
{
    *rng = *rng * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(*rng >> 33) % below;
}

#endif
