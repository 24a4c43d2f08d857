/* SPDX-License-Identifier: Apache-2.0
 *
 * Who needs nothing of others does not wait for them, as far as the board has room: how far that
 * is, and that nobody's bytes are lost on the way, whoever comes when, small and large in turns.
 */
#include "collectives/fake_group.h"

#include "collectives/team/team.h"

enum { RANKS = 3, SMALL_MAX = 64 * 1024, ROUNDS = 400, LARGE = RDTI_STAGE_BYTES + 4096 };

static struct fake_world world;
static uint32_t test_op;
static uint64_t test_count;
static uint64_t test_seed;
static unsigned test_way;
static bool is_large_before; /* a broadcast of more than a stage has just been */

static struct rdt_coll_args
call_of(uint32_t op, uint64_t count, uint32_t root, int32_t *send, int32_t *recv)
{
    const bool is_in_place = op == RDT_COLL_BROADCAST;

    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = op,
                                  .dtype = RDT_I32,
                                  .reduce_op = op == RDT_COLL_REDUCE ? RDT_SUM : 0,
                                  .count = count,
                                  .root = root,
                                  .send = is_in_place ? recv : send,
                                  .recv = recv};
}

static void
run(rdt_group *group, struct rdt_coll_args args)
{
    struct rdt_error err = {0};

    CHECK_OK(fake_run_coll(group, &args, &err), &err);
}

static void
meet_first(rdt_group *group)
{
    int32_t *large = calloc(LARGE, 1);

    CHECK_NOT_NULL(large);
    run(group, (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                      .op = RDT_COLL_BARRIER});
    if (is_large_before)
        run(group, call_of(RDT_COLL_BROADCAST, LARGE / 4, 0, NULL, large));
    free(large);
    fake_world_meet(&world);
}

/* Who needs nobody: the root that gives, or one that is not the root that gets. */
static uint32_t
who_needs_nobody(void)
{
    return test_op == RDT_COLL_BROADCAST || test_op == RDT_COLL_SCATTER ? 0 : 1;
}

/* All have stored the tick before, and nobody knows whether they are through with what is in its
 * stage, where it has one. */
static uint32_t
ticks_ahead(void)
{
    const bool has_slot = test_op == RDT_COLL_SCATTER || 4 * test_count > RDTI_INLINE_BYTES;

    return has_slot && is_large_before ? 1 : RDTI_AHEAD_TICKS - 1;
}

static void *
run_ahead(void *arg)
{
    rdt_group *group = arg;
    int32_t *send = calloc(RANKS, SMALL_MAX);
    int32_t *recv = calloc(RANKS, SMALL_MAX);
    struct rdt_coll_args args = call_of(test_op, test_count, 0, send, recv);
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK(send != NULL && recv != NULL);
    meet_first(group);
    if (group->rank == who_needs_nobody()) {
        for (uint32_t i = 0; i < ticks_ahead(); i++)
            run(group, args);
        CHECK_OK(rdt_coll_post(group, &args, &t, &err), &err);
        for (uint32_t i = 0; i < 200; i++) {
            fake_drive(&group->context);
            test_sleep_ns(20000);
        }
        CHECK_STATUS(rdt_transfer_test(t, &err), RDT_EAGAIN);
    }
    fake_world_meet(&world);
    for (uint32_t i = 0; i <= ticks_ahead() && group->rank != who_needs_nobody(); i++)
        run(group, args);
    if (t != NULL)
        CHECK_OK(fake_wait(group, t, &err), &err);
    free(send);
    free(recv);
    return NULL;
}

TEST_TIMEOUT(who_needs_nobody_runs_ahead_by_the_lines_of_its_board, 60)
{
    static const uint32_t operations[] = {RDT_COLL_BROADCAST, RDT_COLL_SCATTER, RDT_COLL_GATHER,
                                          RDT_COLL_REDUCE};
    static const uint64_t counts[] = {2, 1000, SMALL_MAX / 4 / RANKS};

    for (unsigned i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
        for (unsigned j = 0; j < sizeof(counts) / sizeof(counts[0]); j++)
            for (unsigned large = 0; large < 2; large++) {
                test_op = operations[i];
                test_count = counts[j];
                is_large_before = large != 0;
                fake_force("direct");
                fake_world_init(&world, RANKS, i + j);
                fake_world_run(&world, run_ahead);
                fake_world_fini(&world);
            }
}

/* ---- Somebody does not come ---- */

static bool do_leave;

static void *
run_without_the_last(void *arg)
{
    rdt_group *group = arg;
    int32_t *bytes = calloc(RANKS, SMALL_MAX);
    struct rdt_coll_args args = call_of(RDT_COLL_BROADCAST, test_count, 0, NULL, bytes);
    struct rdt_error err = {0};

    CHECK_NOT_NULL(bytes);
    meet_first(group);
    if (group->rank == RANKS - 1 && do_leave) {
        (void)pthread_mutex_lock(&world.lock);
        for (uint32_t i = 0; i < RANKS; i++)
            world.groups[i].endpoints[group->rank].has_left = true;
        (void)pthread_mutex_unlock(&world.lock);
    }
    args.timeout_ns = UINT64_C(300000000);
    const uint32_t calls[RANKS] = {RDTI_AHEAD_TICKS - 1, 2, 0};
    for (uint32_t i = 0; i < calls[group->rank]; i++)
        run(group, args);
    fake_world_meet(&world);
    if (group->rank == 0) {
        CHECK_STATUS(fake_run_coll(group, &args, &err), do_leave ? RDT_EPEER : RDT_ETIMEDOUT);
        CHECK_STR_CONTAINS(err.message,
                           do_leave ? "rank 2 left" : "nothing from rank 2 for 15 rounds");
    }
    free(bytes);
    return NULL;
}

/* It is named, and not rank 1, which is behind the root as well, but not as far as it waits for. */
TEST_TIMEOUT(who_is_ahead_names_the_rank_that_does_not_come, 60)
{
    is_large_before = false;
    for (unsigned leaves = 0; leaves < 2; leaves++)
        for (test_count = 2; test_count <= 2000; test_count *= 1000) {
            do_leave = leaves != 0;
            fake_force("direct");
            fake_world_init(&world, RANKS, test_count);
            fake_world_run(&world, run_without_the_last);
            fake_world_fini(&world);
        }
}

/* ---- Everybody's bytes, whoever comes when ---- */

static int32_t
value(unsigned round, uint32_t rank, uint64_t i)
{
    return fake_value(rank, i) + (int32_t)round * 7;
}

static int32_t
sum(unsigned round, uint64_t i)
{
    return fake_sum(world.size, i) + (int32_t)(round * 7 * world.size);
}

static bool
sends_to_each(uint32_t op)
{
    return op == RDT_COLL_SCATTER || op == RDT_COLL_ALLTOALL || op == RDT_COLL_REDUCE_SCATTER;
}

static bool
gets_of_each(uint32_t op)
{
    return op == RDT_COLL_GATHER || op == RDT_COLL_ALLGATHER || op == RDT_COLL_ALLTOALL;
}

static void
give(const struct rdt_coll_args *args, unsigned round, uint32_t rank, int32_t *send, int32_t *recv)
{
    const uint64_t len = args->count * (sends_to_each(args->op) ? world.size : 1);
    int32_t *bytes = args->op == RDT_COLL_BROADCAST && rank == args->root ? recv : send;

    for (uint64_t i = 0; i < len; i++)
        bytes[i] = value(round, rank, i);
}

/* Element i of block `block` of what a rank has got. */
static int32_t
wanted_of(const struct rdt_coll_args *args, unsigned round, uint32_t rank, uint32_t block,
          uint64_t i)
{
    switch (args->op) {
    case RDT_COLL_BROADCAST:
        return value(round, args->root, i);
    case RDT_COLL_SCATTER:
        return value(round, args->root, rank * args->count + i);
    case RDT_COLL_ALLTOALL:
        return value(round, block, rank * args->count + i);
    case RDT_COLL_GATHER:
    case RDT_COLL_ALLGATHER:
        return value(round, block, i);
    case RDT_COLL_REDUCE_SCATTER:
        return sum(round, rank * args->count + i);
    default:
        return sum(round, i);
    }
}

static void
check_got(const struct rdt_coll_args *args, unsigned round, uint32_t rank, const int32_t *recv)
{
    const uint32_t blocks = gets_of_each(args->op) ? world.size : 1;

    for (uint32_t block = 0; block < blocks; block++)
        for (uint64_t i = 0; i < args->count; i++) {
            const int32_t wanted = wanted_of(args, round, rank, block, i);
            const int32_t got = recv[block * args->count + i];
            CHECK_MSG(got == wanted,
                      "round %u, operation %u: element %llu of block %u of rank %u is %d, not %d",
                      round, args->op, (unsigned long long)i, block, rank, got, wanted);
        }
}

/* Where those of a kind begin in the table below; ANY_WAY is all of them. */
enum { FROM_ROOT = 0, TO_ROOT = 2, FOR_ALL = 4, OPERATIONS = 9, ANY_WAY = OPERATIONS };

/* The same on all ranks. */
static struct rdt_coll_args
draw(uint64_t *random, int32_t *send, int32_t *recv)
{
    static const uint32_t operations[] = {RDT_COLL_BROADCAST, RDT_COLL_SCATTER,
                                          RDT_COLL_GATHER,    RDT_COLL_REDUCE,
                                          RDT_COLL_ALLGATHER, RDT_COLL_REDUCE_SCATTER,
                                          RDT_COLL_ALLTOALL,  RDT_COLL_ALLREDUCE,
                                          RDT_COLL_BARRIER};
    static const uint64_t counts[] = {1, 2, 7, 300, 5000, SMALL_MAX / 4, SMALL_MAX / 4 + 1};
    const bool is_any = test_way == ANY_WAY;
    /* What needs all is rare otherwise, and the root seldom another, or nobody would get far. */
    const bool is_for_all = fake_random(random) % (is_any ? 3 : 64) == 0;
    const uint32_t op = is_for_all
                            ? operations[FOR_ALL + fake_random(random) % (OPERATIONS - FOR_ALL)]
                        : is_any ? operations[fake_random(random) % FOR_ALL]
                                 : operations[test_way + fake_random(random) % 2];
    const uint64_t luck = fake_random(random) % 32;
    const uint64_t root = fake_random(random) % (is_any ? world.size : 128);
    struct rdt_coll_args args =
        call_of(op, luck == 0 ? LARGE / 4 : counts[luck % 7], 0, send, recv);

    if (is_for_all && op == RDT_COLL_BARRIER)
        return (struct rdt_coll_args){.struct_size = sizeof(args), .op = op};
    if (!is_for_all)
        args.root = root < world.size ? (uint32_t)root : 0;
    if (op == RDT_COLL_ALLREDUCE || op == RDT_COLL_REDUCE_SCATTER)
        args.reduce_op = RDT_SUM;
    return args;
}

static void *
run_mixed(void *arg)
{
    rdt_group *group = arg;
    uint64_t plan = test_seed;
    uint64_t pauses = test_seed + group->rank + 1;
    int32_t *send = calloc(RANKS, LARGE);
    int32_t *recv = calloc(RANKS, LARGE);

    CHECK(send != NULL && recv != NULL);
    meet_first(group);
    for (unsigned round = 0; round < ROUNDS; round++) {
        const struct rdt_coll_args args = draw(&plan, send, recv);
        const bool is_to_root = args.op == RDT_COLL_GATHER || args.op == RDT_COLL_REDUCE;
        if (fake_random(&pauses) % 32 == 0) /* so that others have time to run ahead */
            test_sleep_ns(3000000);
        give(&args, round, group->rank, send, recv);
        run(group, args);
        if (!is_to_root || group->rank == args.root)
            check_got(&args, round, group->rank, recv);
    }
    free(send);
    free(recv);
    return NULL;
}

/* Nor does anybody sleep on: with each tick the last one that comes wakes all others. */
TEST_TIMEOUT(nobody_loses_bytes_to_one_that_is_ahead, 120)
{
    static const unsigned ways[] = {FROM_ROOT, TO_ROOT, ANY_WAY};

    is_large_before = false;
    for (uint64_t seed = 0; seed < 6; seed++) {
        test_way = ways[seed % 3];
        test_seed = seed * 1000;
        fake_force("direct");
        fake_world_init(&world, seed < 3 ? RANKS : 2, test_seed);
        fake_world_run(&world, run_mixed);
        CHECK_UINT_LE((uint64_t)(ROUNDS + 1) * (world.size - 1), world.rings);
        fake_world_fini(&world);
    }
}

TEST_MAIN()
