/* SPDX-License-Identifier: Apache-2.0
 * Memory of a fake world that its ranks share. For fake_group.h. */
#ifndef RDT_TESTS_COLLECTIVES_FAKE_REGIONS_H
#define RDT_TESTS_COLLECTIVES_FAKE_REGIONS_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "collectives/fake_world.h"
#include "collectives/schedule/scratch.h"
#include "harness.h"
#include "rdmatensor_ext.h"

/* Puts `to` where `from` was found. */
static inline void
fake_region_list(struct fake_world *world, rdt_region *from, rdt_region *to)
{
    unsigned i = 0;

    (void)pthread_mutex_lock(&world->lock);
    while (i < FAKE_REGIONS_MAX && world->regions[i] != from)
        i++;
    CHECK(i < FAKE_REGIONS_MAX);
    world->regions[i] = to;
    (void)pthread_mutex_unlock(&world->lock);
}

rdt_region *
rdt_region_find(rdt_context *ctx, const void *addr, uint64_t len_bytes)
{
    rdt_region *found = NULL;

    (void)pthread_mutex_lock(&ctx->world->lock);
    for (unsigned i = 0; i < FAKE_REGIONS_MAX; i++) {
        rdt_region *region = ctx->world->regions[i];
        const uintptr_t at = (uintptr_t)addr;
        if (region != NULL && region->context == ctx && at >= (uintptr_t)region->bytes &&
            at + len_bytes <= (uintptr_t)region->bytes + region->len_bytes)
            found = region;
    }
    (void)pthread_mutex_unlock(&ctx->world->lock);
    return found;
}

uint32_t
rdt_group_stands(rdt_group *group, uint32_t src, const void *dst, uint64_t len_bytes)
{
    CHECK(src < group->world->size && src != group->rank);
    if (!group->world->has_streams || len_bytes <= RDTI_TEMPS_MIN_BYTES)
        return RDT_STANDS_NOT;
    return rdt_region_find(&group->context, dst, len_bytes) != NULL ? RDT_STANDS_HERE
                                                                    : RDT_STANDS_ELSEWHERE;
}

/* Most of a board is never touched. Pages of the kernel's are zeros that cost nothing, where all
 * that is written costs ThreadSanitizer five times as much; AddressSanitizer finds what goes beyond
 * the end of its own allocations only. */
static inline rdt_region *
fake_region_memory(uint64_t len_bytes)
{
    const size_t all_bytes = (sizeof(rdt_region) + len_bytes + 63) / 64 * 64;
#ifdef __SANITIZE_ADDRESS__
    rdt_region *region = aligned_alloc(64, all_bytes);
    CHECK_NOT_NULL(region);
    memset(region, 0, all_bytes);
#else
    rdt_region *region =
        mmap(NULL, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(region != MAP_FAILED);
#endif
    region->len_bytes = len_bytes;
    return region;
}

static inline void
fake_region_give_back(rdt_region *region)
{
#ifdef __SANITIZE_ADDRESS__
    free(region);
#else
    CHECK_INT_EQ(munmap(region, (sizeof(*region) + region->len_bytes + 63) / 64 * 64), 0);
#endif
}

rdt_status
rdt_region_alloc(rdt_context *ctx, uint64_t len_bytes, uint32_t flags, rdt_region **out,
                 struct rdt_error *err)
{
    rdt_region *region = fake_region_memory(len_bytes);

    CHECK(flags == RDT_REGION_ZERO || flags == 0);
    (void)pthread_mutex_lock(&ctx->world->lock);
    const bool fails = fake_must_fail(ctx->world, FAKE_ALLOC);
    ctx->world->live_regions += fails ? 0 : 1;
    const uint32_t generation = ++ctx->world->generations;
    (void)pthread_mutex_unlock(&ctx->world->lock);
    if (fails) {
        fake_region_give_back(region);
        return fake_error(err, RDT_ENOMEM, "injected: alloc");
    }
    *region = (rdt_region){.generation = generation,
                           .world = ctx->world,
                           .context = ctx,
                           .len_bytes = len_bytes};
    if (flags == 0)
        memset(region->bytes, 0xa5, len_bytes);
    fake_region_list(ctx->world, NULL, region);
    *out = region;
    return RDT_OK;
}

uint64_t
rdt_region_len_bytes(const rdt_region *region)
{
    return region->len_bytes;
}

void *
rdt_region_addr(const rdt_region *region)
{
    return (void *)(uintptr_t)region->bytes;
}

rdt_status
rdt_region_export(rdt_region *region, struct rdt_remote_region *out, struct rdt_error *err)
{
    (void)err;
    *out = (struct rdt_remote_region){.addr = (uintptr_t)region,
                                      .len_bytes = region->len_bytes,
                                      .generation = region->generation};
    return RDT_OK;
}

void
rdt_remote_region_encode(const struct rdt_remote_region *remote,
                         uint8_t out[RDT_REMOTE_REGION_BYTES])
{
    memcpy(out, remote, sizeof(*remote));
}

rdt_status
rdt_remote_region_decode(const uint8_t *buf, size_t len_bytes, struct rdt_remote_region *out,
                         struct rdt_error *err)
{
    if (len_bytes != RDT_REMOTE_REGION_BYTES)
        return fake_error(err, RDT_EPROTO, "not a region");
    memcpy(out, buf, sizeof(*out));
    return RDT_OK;
}

/* With the world locked. */
static inline void
fake_region_drop(rdt_region *region)
{
    if (!region->is_freed || region->holds > 0)
        return;
    region->world->live_regions--;
    fake_region_give_back(region);
}

void
rdt_region_free(rdt_region *region, void (*drained)(void *arg), void *arg)
{
    if (region == NULL)
        return;
    CHECK(drained == NULL && arg == NULL);
    struct fake_world *world = region->world;
    fake_region_list(world, region, NULL);
    (void)pthread_mutex_lock(&world->lock);
    region->is_freed = true;
    fake_region_drop(region);
    (void)pthread_mutex_unlock(&world->lock);
}

/* With the world locked. */
static inline bool
fake_is_listed(const struct fake_world *world, const rdt_region *region)
{
    for (unsigned i = 0; i < FAKE_REGIONS_MAX; i++)
        if (world->regions[i] == region)
            return true;
    return false;
}

rdt_status
rdt_endpoint_hold(rdt_endpoint *ep, const struct rdt_remote_region *remote, void **out,
                  struct rdt_error *err)
{
    rdt_region *region = (rdt_region *)(uintptr_t)remote->addr;
    struct fake_world *world = ep->world;
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&world->lock);
    if (fake_must_fail(world, FAKE_HOLD)) {
        status = fake_error(err, RDT_EPEER, "injected: hold");
    } else if (world->is_apart || world->hosts[ep->owner] != world->hosts[ep->peer]) {
        status = fake_error(err, RDT_ENOTSUP, "on another host");
    } else if (fake_random(&world->random) % 3 == 0) {
        status = fake_error(err, RDT_EAGAIN, "on its way");
    } else if (!fake_is_listed(world, region)) {
        status = fake_error(err, RDT_ESTALE, "injected before: its owner freed it");
    } else {
        region->holds++;
        ep->holds++;
        *out = region->bytes;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return status;
}

void
rdt_endpoint_unhold(rdt_endpoint *ep, const struct rdt_remote_region *remote)
{
    rdt_region *region = (rdt_region *)(uintptr_t)remote->addr;

    (void)pthread_mutex_lock(&ep->world->lock);
    CHECK(region->holds-- > 0 && ep->holds-- > 0);
    fake_region_drop(region);
    (void)pthread_mutex_unlock(&ep->world->lock);
}

uint32_t
rdt_endpoint_transport(const rdt_endpoint *ep)
{
    (void)ep;
    return RDT_TRANSPORT_SHM; /* members of the fake do not die */
}

rdt_status
rdt_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&ep->world->lock);
    const bool has_left = ep->has_left;
    (void)pthread_mutex_unlock(&ep->world->lock);
    return has_left ? fake_error(err, RDT_EPEER, "rank %u left", ep->peer) : RDT_OK;
}

/* Waiters of the fake never sleep for long: what would wake one is counted. */
void
rdt_endpoint_ring(rdt_endpoint *ep)
{
    CHECK_MSG(ep->holds > 0, "rung without a hold");
    (void)atomic_fetch_add(&ep->world->rings, 1);
}

#endif
