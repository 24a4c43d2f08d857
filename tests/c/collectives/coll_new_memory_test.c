/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that only move, into memory whose pages are not there: they ask the kernel for pages
 * by a call for many, where it knows that call.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "collectives/fake_group.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { RANKS = 2, BLOCK_BYTES = 16 << 20, RECV_BYTES = RANKS * BLOCK_BYTES };

static struct fake_world world;
static uint32_t op;
static uint8_t *recv_of[RANKS];
static atomic_ullong asked_bytes[RANKS]; /* within each one's recv */

/* In place of the C library's, which makes the same call. */
int
madvise(void *addr, size_t len, int advice)
{
    const uint8_t *first = addr;

    for (int rank = 0; advice == MADV_POPULATE_WRITE && rank < RANKS; rank++)
        if (recv_of[rank] != NULL && first >= recv_of[rank] && first < recv_of[rank] + RECV_BYTES)
            atomic_fetch_add(&asked_bytes[rank], len);
    return (int)syscall(SYS_madvise, addr, len, advice);
}

static void *
run_new(void *arg)
{
    rdt_group *group = arg;
    const uint32_t rank = rdt_group_rank(group);
    struct rdt_error err = {0};
    uint8_t *const send = calloc(RANKS, BLOCK_BYTES);
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = op,
                                 .dtype = RDT_U8,
                                 .count = BLOCK_BYTES,
                                 .send = send,
                                 .recv = recv_of[rank]};

    CHECK(send != NULL);
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    free(send);
    return NULL;
}

/* How much rank 0, which is the root, and rank 1 ask for at least. */
static void
check_asks(uint32_t which, uint64_t root_bytes, uint64_t other_bytes)
{
    const uint64_t least[RANKS] = {root_bytes, other_bytes};

    op = which;
    for (int rank = 0; rank < RANKS; rank++) {
        recv_of[rank] =
            mmap(NULL, RECV_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(recv_of[rank] != MAP_FAILED);
        (void)madvise(recv_of[rank], RECV_BYTES, MADV_NOHUGEPAGE); /* where there are any */
        atomic_store(&asked_bytes[rank], 0);
    }
    fake_force("direct");
    fake_world_init(&world, RANKS, RANKS);
    fake_world_run(&world, run_new);
    CHECK_UINT_EQ(world.aborts, 0);
    fake_world_fini(&world);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK_MSG(atomic_load(&asked_bytes[rank]) >= least[rank], "rank %d asked for %llu bytes",
                  rank, atomic_load(&asked_bytes[rank]));
        (void)munmap(recv_of[rank], RECV_BYTES);
        recv_of[rank] = NULL;
    }
}

/* Pages that two pieces share come with the first, and the last pieces are short: a twentieth. */
enum { BLOCK_ASKED = BLOCK_BYTES / 20 * 19, ALL_ASKED = RECV_BYTES / 20 * 19 };

TEST_TIMEOUT(a_broadcast_asks_for_what_comes, 60)
{
    check_asks(RDT_COLL_BROADCAST, 0, BLOCK_ASKED);
}

TEST_TIMEOUT(a_scatter_asks_for_a_block, 60)
{
    check_asks(RDT_COLL_SCATTER, BLOCK_ASKED, BLOCK_ASKED);
}

TEST_TIMEOUT(a_gather_asks_at_its_root, 60)
{
    check_asks(RDT_COLL_GATHER, ALL_ASKED, 0);
}

TEST_TIMEOUT(an_all_gather_asks_for_all, 60)
{
    check_asks(RDT_COLL_ALLGATHER, ALL_ASKED, ALL_ASKED);
}

TEST_TIMEOUT(an_all_to_all_asks_for_all, 60)
{
    check_asks(RDT_COLL_ALLTOALL, ALL_ASKED, ALL_ASKED);
}

TEST_MAIN()
