/* SPDX-License-Identifier: Apache-2.0
 * Regions: what peers may reach, under which generation, and when a region is gone. */
#include "memory/region.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "region_rig.h"

TEST(region_is_born_in_the_arena_and_exported_once)
{
    struct rig rig;
    uint8_t byte = 0;
    uint64_t segment_bytes;
    int fd;

    rig_open(&rig);
    rdt_region *region = new_region(&rig, 1000);
    uint8_t *addr = rdt_region_addr(region);

    CHECK_UINT_EQ((uintptr_t)addr % 64, 0);
    CHECK_UINT_EQ(rdt_region_len_bytes(region), 1000);
    addr[999] = 77;
    CHECK_UINT_EQ(stats_of(&rig).exported_count, 0);
    const struct rdt_remote_region first = export(region);
    const struct rdt_remote_region second = export(region);

    CHECK_MEM_EQ(&first, &second, sizeof(first));
    CHECK_MEM_EQ(first.owner, owner_uuid, RDT_UUID_BYTES);
    CHECK_HEX_EQ(first.addr, (uintptr_t)addr);
    CHECK_UINT_EQ(first.len_bytes, 1000);
    CHECK(first.index != 0 && first.generation != 0);
    CHECK_UINT_EQ(first.rkey, 0);
    CHECK_UINT_EQ(generation_seen(&rig, first.index), first.generation);
    CHECK_STATUS(rdti_arena_segment(rig.arena, first.segment, &fd, &segment_bytes), RDT_OK);
    CHECK_INT_EQ(pread(fd, &byte, 1, (off_t)first.segment_off + 999), 1);
    CHECK_INT_EQ(byte, 77);
    CHECK_UINT_EQ(stats_of(&rig).exported_count, 1);
    rdt_region_free(region, NULL, NULL);
    CHECK_UINT_EQ(rig.revoke_count, 1);
    rdt_region_free(NULL, NULL, NULL);
    CHECK_UINT_EQ(rig.revoke_count, 1);
    rig_close(&rig);
}

TEST(region_refuses_bad_arguments)
{
    struct rdt_remote_region remote;
    rdt_region *untouched = (rdt_region *)(void *)&err;
    struct rig rig;

    rig_open(&rig);
    CHECK_STATUS(rdti_regions_alloc(rig.regions, 10, 4, &untouched, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_regions_alloc(rig.regions, UINT64_MAX, 0, &untouched, &err), RDT_ENOMEM);
    CHECK_STATUS(rdti_regions_register(rig.regions, NULL, 1, &untouched, &err), RDT_EINVAL);
    CHECK_STATUS(rdti_regions_register(rig.regions, &remote, UINT64_MAX, &untouched, &err),
                 RDT_EINVAL);
    CHECK_STATUS(rdt_region_export(NULL, &remote, &err), RDT_EINVAL);
    CHECK_PTR_EQ(untouched, (rdt_region *)(void *)&err);
    CHECK_NULL(rdt_region_addr(NULL));
    CHECK_UINT_EQ(rdt_region_len_bytes(NULL), 0);
    CHECK_UINT_EQ(stats_of(&rig).registrations, 0);
    CHECK_OK(rdti_regions_destroy(NULL, &err), &err);
    rig_close(&rig);
}

TEST(region_of_no_bytes_is_legal)
{
    struct rdti_target target;
    struct rig rig;

    rig_open(&rig);
    rdt_region *a = new_region(&rig, 0);
    rdt_region *b = new_region(&rig, 0);
    const struct rdt_remote_region remote = export(a);

    CHECK(rdt_region_addr(a) != rdt_region_addr(b));
    CHECK_PTR_EQ(rdti_regions_find(rig.regions, rdt_region_addr(a), 0), a);
    CHECK_NULL(rdti_regions_find(rig.regions, rdt_region_addr(a), 1));
    CHECK_OK(rdti_regions_acquire(rig.regions, remote.index, remote.generation, 0, 0, &target,
                                  &err),
             &err);
    rdti_regions_release(rig.regions, &target);
    CHECK_STATUS(rdti_regions_acquire(rig.regions, remote.index, remote.generation, 0, 1, &target,
                                      &err),
                 RDT_ERANGE);
    rdt_region_free(a, NULL, NULL);
    rdt_region_free(b, NULL, NULL);
    rig_close(&rig);
}

TEST(region_can_be_born_zero)
{
    struct rig rig;

    rig_open(&rig);
    for (int round = 0; round < 4; round++) {
        rdt_region *region;

        CHECK_OK(rdti_regions_alloc(rig.regions, 3 * MIB, RDT_REGION_ZERO, &region, &err), &err);
        uint8_t *addr = rdt_region_addr(region);

        for (uint64_t i = 0; i < 3 * MIB; i++)
            CHECK(addr[i] == 0);
        memset(addr, 0xff, 3 * MIB);
        rdt_region_free(region, NULL, NULL);
    }
    rig_close(&rig);
}

TEST(region_that_is_lent_is_of_one_operation)
{
    static uint8_t memory[4096];
    struct rdt_remote_region remote;
    struct rdti_target target;
    struct rdti_place place;
    uint32_t drained = 0;
    rdt_region *lent;
    rdt_region *registered;
    struct rig rig;

    rig_open(&rig);
    rig.expect_count = 1;
    CHECK_OK(rdti_regions_lend(rig.regions, memory, sizeof(memory), &lent, &err), &err);
    CHECK_NULL(rdti_regions_find(rig.regions, memory, 1));
    CHECK_STATUS(rdti_regions_place_at(rig.regions, memory, 1, &place, &err), RDT_EAGAIN);
    CHECK_OK(rdti_regions_register(rig.regions, memory, 100, &registered, &err), &err);
    CHECK_OK(rdti_regions_place_at(rig.regions, memory + 50, 50, &place, &err), &err);
    CHECK_HEX_EQ(place.region.addr, (uintptr_t)memory);
    CHECK_UINT_EQ(place.region.len_bytes, 100);
    CHECK_UINT_EQ(place.off_bytes, 50);
    CHECK_STATUS(rdti_regions_place_at(rig.regions, memory + 50, 51, &place, &err), RDT_EAGAIN);

    /* Its one peer is done: nobody is asked, and a read of it that is not over is waited for. */
    remote = export(lent);
    CHECK_OK(rdti_regions_acquire(rig.regions, remote.index, remote.generation, 0, 1, &target,
                                  &err),
             &err);
    rdti_regions_end_lent(lent, count_call, &drained);
    CHECK_UINT_EQ(drained, 0);
    CHECK_STATUS(rdti_regions_acquire(rig.regions, remote.index, remote.generation, 0, 1, &target,
                                      &err),
                 RDT_ESTALE);
    rdti_regions_release(rig.regions, &target);
    CHECK_UINT_EQ(drained, 1);
    CHECK_UINT_EQ(rig.revoke_count, 0);

    CHECK_OK(rdti_regions_lend(rig.regions, memory, sizeof(memory), &lent, &err), &err);
    rdti_regions_end_lent(lent, count_call, &drained); /* never exported */
    CHECK_UINT_EQ(drained, 2);
    CHECK_OK(rdti_regions_lend(rig.regions, memory, sizeof(memory), &lent, &err), &err);
    remote = export(lent);
    rdt_region_free(lent, count_call, &drained); /* taken back: a peer may be at it */
    CHECK_UINT_EQ(rig.revoke_count, 1);
    CHECK_UINT_EQ(drained, 2);
    CHECK(rdti_regions_acknowledge(rig.regions, remote.index, remote.generation));
    CHECK_UINT_EQ(drained, 3);
    rig.expect_count = 0;
    rdt_region_free(registered, NULL, NULL);
    CHECK_UINT_EQ(stats_of(&rig).live_count, 0);
    CHECK_UINT_EQ(stats_of(&rig).quarantine_count, 0);
    rig_close(&rig);
}

TEST(region_registered_is_never_mapped_by_peers)
{
    static uint8_t memory[4096];
    uint32_t drained = 0;
    rdt_region *region;
    struct rig rig;

    rig_open(&rig);
    CHECK_OK(rdti_regions_register(rig.regions, memory, sizeof(memory), &region, &err), &err);
    const struct rdt_remote_region remote = export(region);

    CHECK_UINT_EQ(remote.segment, RDT_SEGMENT_NONE);
    CHECK_HEX_EQ(remote.addr, (uintptr_t)memory);
    rig.expect_count = 1;
    rdt_region_free(region, count_call, &drained);
    CHECK_UINT_EQ(drained, 0);
    CHECK(rdti_regions_acknowledge(rig.regions, remote.index, remote.generation));
    CHECK_UINT_EQ(drained, 1);
    CHECK_NULL(rdti_regions_find(rig.regions, memory, 1));
    rig_close(&rig);
}

/* ---- Generations ---------------------------------------------------------------------------- */

TEST(region_generations_cannot_be_written_by_peers)
{
    struct rig rig;

    rig_open(&rig);
    const int fd = rdti_regions_generation_fd(rig.regions);
    const int seals = fcntl(fd, F_GET_SEALS);

    CHECK_INT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
                 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    CHECK_INT_EQ(errno, EPERM);
    CHECK_INT_EQ(pwrite(fd, "x", 1, 0), -1);
    CHECK_INT_EQ(ftruncate(fd, 0), -1);
    rig_close(&rig);
}

TEST(region_generation_ends_with_the_free)
{
    struct rig rig;
    uint32_t last = 0;
    uint32_t index = 0;

    rig_open(&rig);
    for (int round = 0; round < 50; round++) {
        rdt_region *region = new_region(&rig, 64);
        const struct rdt_remote_region remote = export(region);
        struct rdti_target target;

        CHECK(index == 0 || remote.index == index); /* the only free one */
        index = remote.index;
        CHECK_UINT_GE(remote.generation, last + 1);
        CHECK_UINT_EQ(generation_seen(&rig, index), remote.generation);
        rig.expect_count = 1;
        rdt_region_free(region, NULL, NULL);
        CHECK(generation_seen(&rig, index) != remote.generation);
        CHECK_STATUS(rdti_regions_acquire(rig.regions, index, remote.generation, 0, 1, &target,
                                          &err),
                     RDT_ESTALE);
        /* Nor does the new number mean anything yet. */
        CHECK_STATUS(rdti_regions_acquire(rig.regions, index, generation_seen(&rig, index), 0, 1,
                                          &target, &err),
                     RDT_ESTALE);
        CHECK(rdti_regions_acknowledge(rig.regions, index, remote.generation));
        last = remote.generation;
    }
    rig_close(&rig);
}

TEST(region_targets_are_checked)
{
    struct rdti_target target = {&err, &err, 0};
    struct rig rig;

    rig_open(&rig);
    rdt_region *private_region = new_region(&rig, 100);
    rdt_region *region = new_region(&rig, 100);
    const struct rdt_remote_region r = export(region);
    const struct {
        uint32_t index;
        uint32_t generation;
        uint64_t off;
        uint64_t len;
        rdt_status want;
    } bad[] = {
        {0, 0, 0, 1, RDT_EPROTO},
        {0, 1, 0, 1, RDT_EPROTO},
        {r.index + 1, 1, 0, 1, RDT_EPROTO},
        {RDTI_REGION_INDEX_MAX, 1, 0, 1, RDT_EPROTO},
        {UINT32_MAX, 1, 0, 1, RDT_EPROTO},
        {r.index, r.generation + 1, 0, 1, RDT_ESTALE},
        {r.index, 0, 0, 1, RDT_ESTALE},
        {r.index, r.generation, 0, 101, RDT_ERANGE},
        {r.index, r.generation, 101, 0, RDT_ERANGE},
        {r.index, r.generation, 1, 100, RDT_ERANGE},
        {r.index, r.generation, UINT64_MAX, 2, RDT_ERANGE},
        {r.index, r.generation, 2, UINT64_MAX, RDT_ERANGE},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK_MSG(rdti_regions_acquire(rig.regions, bad[i].index, bad[i].generation, bad[i].off,
                                       bad[i].len, &target, &err) == bad[i].want,
                  "case %zu", i);
    CHECK(target.addr == &err && target.pin == &err); /* untouched */
    CHECK_OK(rdti_regions_acquire(rig.regions, r.index, r.generation, 60, 40, &target, &err), &err);
    CHECK_PTR_EQ(target.addr, (char *)rdt_region_addr(region) + 60);
    rdti_regions_release(rig.regions, &target);
    rdt_region_free(region, NULL, NULL);
    rdt_region_free(private_region, NULL, NULL);
    CHECK_UINT_EQ(rig.revoke_count, 1); /* nobody is told of a private one */
    rig_close(&rig);
}

/* ---- Quarantine ----------------------------------------------------------------------------- */

TEST(region_quarantine_waits_for_pins_and_acknowledgements)
{
    struct rdti_target targets[2];
    uint32_t drained = 0;
    struct rig rig;

    rig_open(&rig);
    rig.expect_count = 2;
    rdt_region *region = new_region(&rig, 5 * MIB);
    void *addr = rdt_region_addr(region);
    const struct rdt_remote_region r = export(region);

    for (int i = 0; i < 2; i++)
        CHECK_OK(rdti_regions_acquire(rig.regions, r.index, r.generation, 0, 1, &targets[i], &err),
                 &err);
    rdt_region_free(region, count_call, &drained);
    CHECK(rig.last_index == r.index && rig.last_generation == r.generation);
    CHECK_UINT_EQ(stats_of(&rig).live_count, 0);
    CHECK_UINT_EQ(stats_of(&rig).quarantine_count, 1);
    CHECK_UINT_EQ(stats_of(&rig).quarantine_bytes, 5 * MIB);
    CHECK_NULL(rdti_regions_find(rig.regions, addr, 1));
    rdti_regions_release(rig.regions, &targets[0]);
    CHECK(rdti_regions_acknowledge(rig.regions, r.index, r.generation));
    CHECK(!rdti_regions_acknowledge(rig.regions, r.index, r.generation + 1));
    CHECK(!rdti_regions_acknowledge(rig.regions, r.index + 1, r.generation));
    CHECK(!rdti_regions_acknowledge(rig.regions, UINT32_MAX, 0));
    CHECK(!rdti_regions_acknowledge(rig.regions, 0, 0));
    CHECK(rdti_regions_acknowledge(rig.regions, r.index, r.generation));
    CHECK(!rdti_regions_acknowledge(rig.regions, r.index, r.generation)); /* one too many */
    CHECK_UINT_EQ(drained, 0);
    rdti_regions_release(rig.regions, &targets[1]); /* the last to hold it */
    CHECK_UINT_EQ(drained, 1);
    CHECK_UINT_EQ(stats_of(&rig).quarantine_count, 0);
    CHECK(!rdti_regions_acknowledge(rig.regions, r.index, r.generation));
    rig_close(&rig);
}

TEST(region_may_be_acknowledged_while_it_is_revoked)
{
    uint32_t drained = 0;
    struct rig rig;

    rig_open(&rig);
    rig.expect_count = 3;
    rig.acknowledges_at_once = true;
    rdt_region *region = new_region(&rig, 100);

    (void)export(region);
    rdt_region_free(region, count_call, &drained);
    CHECK_UINT_EQ(drained, 1);
    CHECK_UINT_EQ(stats_of(&rig).quarantine_count, 0);
    rig_close(&rig);
}

TEST(region_table_closes_with_quarantine_but_not_with_live_regions)
{
    uint32_t drained = 0;
    struct rig rig;

    rig_open(&rig);
    rig.expect_count = 1;
    rdt_region *live = new_region(&rig, 100);
    rdt_region *held = new_region(&rig, 100);

    (void)export(held);
    rdt_region_free(held, count_call, &drained);
    CHECK_STATUS(rdti_regions_destroy(rig.regions, &err), RDT_EBUSY);
    CHECK_STR_CONTAINS(err.message, "1 regions of 100 bytes");
    CHECK_UINT_EQ(drained, 0);
    rdt_region_free(live, count_call, &drained);
    CHECK_UINT_EQ(drained, 1);
    rig_close(&rig);
    CHECK_UINT_EQ(drained, 2);
}

/* ---- Find ----------------------------------------------------------------------------------- */

/* over budget: one scenario, told in its order. */
TEST_TIMEOUT(region_find_agrees_with_a_naive_search, 60)
{
    enum { COUNT = 120, MEMORY = 600 };
    static uint8_t memory[MEMORY];
    rdt_region *regions[COUNT] = {0};
    struct rig rig;
    uint64_t rng = 5;
    uint32_t hits = 0;

    rig_open(&rig);
    for (int step = 0; step < 40000; step++) {
        const uint32_t slot = roll(&rng, COUNT);
        const uint8_t *addr = memory + roll(&rng, MEMORY / 2);
        const uint64_t len = roll(&rng, 4) == 0 ? 0 : roll(&rng, 40);
        bool is_held = false;

        if (step % 8 == 0 && regions[slot] == NULL) {
            CHECK_OK(rdti_regions_register(rig.regions, memory + roll(&rng, MEMORY / 2),
                                           roll(&rng, 3) == 0 ? 0 : roll(&rng, 50), &regions[slot],
                                           &err),
                     &err);
        } else if (step % 8 == 4 || step % 32 == 5) {
            rdt_region_free(regions[slot], NULL, NULL);
            regions[slot] = NULL;
        }
        for (int i = 0; i < COUNT; i++) {
            if (regions[i] == NULL)
                continue;
            const uint8_t *from = rdt_region_addr(regions[i]);
            const uint8_t *to = from + rdt_region_len_bytes(regions[i]);

            if (len > 0)
                is_held |= addr >= from && addr + len <= to;
            else /* see rdti_span_find() */
                is_held |= from == to ? addr == from : addr >= from && addr < to;
        }
        const rdt_region *found = rdti_regions_find(rig.regions, addr, len);

        CHECK_INT_EQ(found != NULL, is_held);
        hits += is_held;
        if (found != NULL) {
            const uint8_t *from = rdt_region_addr(found);

            CHECK(addr >= from && addr + len <= from + rdt_region_len_bytes(found));
        }
    }
    CHECK_UINT_GE(hits, 1000);
    CHECK_NULL(rdti_regions_find(rig.regions, memory, UINT64_MAX));
    CHECK_NULL(rdti_regions_find(rig.regions, (void *)UINTPTR_MAX, 1));
    for (int i = 0; i < COUNT; i++)
        rdt_region_free(regions[i], NULL, NULL);
    rig_close(&rig);
}

#ifndef __SANITIZE_THREAD__ /* a million regions of one thread: nothing that it could find */
static void
time_find(struct rig *rig, const uint8_t *memory, rdt_region *const *all)
{
    const uint64_t start_ns = test_now_ns();

    for (uint32_t i = 0; i < 100000; i++) {
        const uint32_t at = i * 7919 % (RDTI_REGION_INDEX_MAX + 1);

        CHECK(rdti_regions_find(rig->regions, &memory[at], 1) == all[at]);
    }
    printf("  find among a million: %.0f ns\n", (double)(test_now_ns() - start_ns) / 100000);
}

/* All indices in use: refused with the reason; one freed: served. And finding one of a million is
 * fast. */
TEST_TIMEOUT(region_indices_run_out, 60)
{
    static uint8_t memory[RDTI_REGION_INDEX_MAX + 1];
    rdt_region **all = calloc(RDTI_REGION_INDEX_MAX + 1, sizeof(rdt_region *));
    struct rdt_remote_region remote = {0};
    struct rig rig;

    CHECK_NOT_NULL(all);
    rig_open(&rig);
    for (uint32_t i = 0; i <= RDTI_REGION_INDEX_MAX; i++) {
        CHECK_OK(rdti_regions_register(rig.regions, &memory[i], 1, &all[i], &err), &err);
        if (i == RDTI_REGION_INDEX_MAX)
            break;
        remote = export(all[i]);
        CHECK_UINT_EQ(remote.index, i + 1);
    }
    rdt_region *last = all[RDTI_REGION_INDEX_MAX];

    CHECK_STATUS(rdt_region_export(last, &remote, &err), RDT_ENOMEM);
    CHECK_UINT_EQ(remote.index, RDTI_REGION_INDEX_MAX); /* untouched */
    CHECK_STR_CONTAINS(err.message, "1048575 regions");
    rdt_region_free(all[500], NULL, NULL);
    all[500] = NULL;
    CHECK_UINT_EQ(export(last).index, 501);
    CHECK_UINT_EQ(export(last).generation, 2);
    CHECK_UINT_EQ(generation_seen(&rig, RDTI_REGION_INDEX_MAX), 1);

    time_find(&rig, memory, all);
    for (uint32_t i = 0; i <= RDTI_REGION_INDEX_MAX; i++)
        rdt_region_free(all[i], NULL, NULL);
    free(all);
    rig_close(&rig);
}
#endif

/* ---- Fork ----------------------------------------------------------------------------------- */

static void
use_in_child(struct rig *rig, rdt_region *region, const struct rdt_remote_region *remote)
{
    uint8_t *addr = rdt_region_addr(region);
    struct rdt_remote_region out;
    struct rdti_target target;
    struct rdti_region_stats stats;
    rdt_region *other;
    uint32_t drained = 0;

    CHECK_INT_EQ(addr[0], 1);
    addr[0] = 2; /* it may, and the parent sees it */
    CHECK_STATUS(rdti_regions_alloc(rig->regions, 8, 0, &other, &err), RDT_EFORKED);
    CHECK_STR_CONTAINS(err.message, "forked child");
    CHECK_STATUS(rdti_regions_register(rig->regions, addr, 8, &other, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_region_export(region, &out, &err), RDT_EFORKED);
    CHECK_STATUS(rdti_regions_acquire(rig->regions, remote->index, remote->generation, 0, 1,
                                      &target, &err),
                 RDT_EFORKED);
    CHECK(!rdti_regions_acknowledge(rig->regions, remote->index, remote->generation));
    CHECK_NULL(rdti_regions_find(rig->regions, addr, 1));
    rdti_regions_get_stats(rig->regions, &stats);
    rdt_region_free(region, count_call, &drained);
    CHECK_UINT_EQ(drained, 0);
    CHECK_OK(rdti_regions_destroy(rig->regions, &err), &err);
    rdti_arena_destroy(rig->arena);
    _exit(0);
}

TEST(region_survives_a_child_that_writes_frees_and_exits)
{
    struct rig rig;

    rig_open(&rig);
    rdt_region *region = new_region(&rig, 100);
    uint8_t *addr = rdt_region_addr(region);
    const struct rdt_remote_region remote = export(region);

    for (int round = 0; round < 5; round++) {
        int status = -1;

        addr[0] = 1;
        const pid_t child = fork();

        CHECK_INT_GE(child, 0);
        if (child == 0) {
            (void)alarm(20);
            use_in_child(&rig, region, &remote);
        }
        CHECK_INT_EQ(waitpid(child, &status, 0), child);
        CHECK_INT_EQ(status, 0);
        CHECK_INT_EQ(addr[0], 2);
        CHECK_UINT_EQ(generation_seen(&rig, remote.index), remote.generation);
        CHECK_PTR_EQ(rdti_regions_find(rig.regions, addr, 100), region);
    }
    CHECK_UINT_EQ(stats_of(&rig).live_count, 1);
    CHECK_UINT_EQ(rig.revoke_count, 0);
    rdt_region_free(region, NULL, NULL);
    CHECK_UINT_EQ(rig.revoke_count, 1);
    rig_close(&rig);
}

TEST_MAIN()
