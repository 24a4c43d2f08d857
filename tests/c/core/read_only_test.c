/* SPDX-License-Identifier: Apache-2.0
 * Regions that other processes of the host map for reading only. */
#include <fcntl.h>
#include <sys/mman.h>

#include "pair_rig.h"

enum { WORDS = 3000 };

static rdt_region *
make(const struct pair *pair, uint64_t len_bytes, struct rdt_remote_region *remote)
{
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    CHECK_OK(rdt_region_alloc(pair->ctx[0], len_bytes, RDT_REGION_READ_ONLY, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, remote, &err), &err);
    return region;
}

static rdt_status
write_to(const struct pair *pair, const struct rdt_remote_region *remote, struct rdt_error *err)
{
    static const uint64_t word = 77;
    rdt_transfer *transfer = NULL;
    rdt_status status = rdt_endpoint_write(pair->ep[1], &word, sizeof(word), remote, 8,
                                           RDT_NOTIFY_NONE, &transfer, err);

    if (status == RDT_OK) {
        status = rdt_transfer_wait(transfer, 10 * RIG_S, err);
        rdt_transfer_free(transfer);
    }
    return status;
}

/* The kernel writes for us where a store would end the process. */
static bool
is_writable(void *addr)
{
    const int fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    const ssize_t got = read(fd, addr, 8);
    CHECK(got == 8 || errno == EFAULT);
    CHECK_INT_EQ(close(fd), 0);
    return got == 8;
}

static const uint64_t *
map(const struct pair *pair, const struct rdt_remote_region *remote)
{
    struct rdt_error err = {0};
    void *addr = NULL;

    CHECK_OK(rdt_endpoint_map(pair->ep[1], remote, &addr, &err), &err);
    return addr;
}

TEST(a_peer_reads_and_cannot_write)
{
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    rdt_transfer *transfer = NULL;
    uint64_t copy[4] = {0};
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = make(&pair, WORDS * sizeof(uint64_t), &remote);
    uint64_t *own = rdt_region_addr(region);
    CHECK_UINT_EQ(own[WORDS - 1], 0); /* all are zero */
    const uint64_t *seen = map(&pair, &remote);
    CHECK(seen != own && is_writable(own) && !is_writable((void *)(uintptr_t)seen));
    for (uint64_t i = 0; i < WORDS; i++)
        own[i] = i * i;
    for (uint64_t i = 0; i < WORDS; i++)
        CHECK_UINT_EQ(seen[i], i * i);
    CHECK_STATUS(write_to(&pair, &remote, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "is for reading only");
    CHECK_UINT_EQ(own[1], 1);
    CHECK_OK(rdt_endpoint_read(pair.ep[1], copy, sizeof(copy), &remote, 16, &transfer, &err), &err);
    CHECK_OK(rdt_transfer_wait(transfer, 10 * RIG_S, &err), &err);
    rdt_transfer_free(transfer);
    CHECK_UINT_EQ(copy[1], 9);
    rdt_region_free(region, NULL, NULL);
    pair_close(&pair);
}

/* The refusal comes first too where the segment is not mapped yet; ordinary regions are as ever. */
TEST(a_refused_write_ends_itself_only)
{
    struct rdt_remote_region remote;
    struct rdt_remote_region ordinary;
    struct rdt_error err = {0};
    rdt_region *other = NULL;
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    rdt_region *region = make(&pair, 64, &remote);
    CHECK_OK(rdt_region_alloc(pair.ctx[0], 64, RDT_REGION_ZERO, &other, &err), &err);
    CHECK_OK(rdt_region_export(other, &ordinary, &err), &err);
    CHECK_STATUS(write_to(&pair, &remote, &err), RDT_EINVAL);
    CHECK_OK(write_to(&pair, &ordinary, &err), &err);
    CHECK_UINT_EQ(((uint64_t *)rdt_region_addr(other))[1], 77);
    CHECK(is_writable((void *)(uintptr_t)map(&pair, &ordinary)));
    rdt_region_free(region, NULL, NULL);
    rdt_region_free(other, NULL, NULL);
    pair_close(&pair);
}

/* Spans do not overlap, and memory that was read only does not come back as ordinary memory. */
TEST(read_only_memory_is_used_once)
{
    enum { COUNT = 40 };
    const uint64_t sizes[] = {0, 1, 64, 100, 4096, 3 << 20};
    struct rdt_remote_region remotes[COUNT];
    rdt_region *regions[COUNT];
    struct rdt_error err = {0};
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_SHM);
    for (uint32_t i = 0; i < COUNT; i++) {
        regions[i] = make(&pair, sizes[i % 6], &remotes[i]);
        memset(rdt_region_addr(regions[i]), (int)i, sizes[i % 6]);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint8_t *seen = (const uint8_t *)map(&pair, &remotes[i]);
        for (uint64_t k = 0; k < sizes[i % 6]; k++)
            CHECK(seen[k] == i);
        rdt_region_free(regions[i], NULL, NULL);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK_OK(rdt_region_alloc(pair.ctx[0], sizes[i % 6] + 8, 0, &regions[i], &err), &err);
        CHECK_OK(rdt_region_export(regions[i], &remotes[i], &err), &err);
        CHECK(is_writable((void *)(uintptr_t)map(&pair, &remotes[i])));
    }
    for (uint32_t i = 0; i < COUNT; i++)
        rdt_region_free(regions[i], NULL, NULL);
    pair_close(&pair);
}

TEST(flags_that_are_none_are_refused)
{
    struct rdt_error err = {0};
    rdt_region *region = NULL;
    rdt_context *ctx = NULL;

    context_make(&ctx, RDT_TRANSPORT_SHM, "secret", 0);
    CHECK_STATUS(rdt_region_alloc(ctx, 8, 4, &region, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_region_alloc(ctx, UINT64_MAX, RDT_REGION_READ_ONLY, &region, &err),
                 RDT_ENOMEM);
    CHECK_OK(rdt_context_close(ctx, &err), &err);
}

TEST_MAIN()
