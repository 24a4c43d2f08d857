/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes wrong while ranks work in memory that they share, after the group's set-up: ranks that
 * disagree, that do not come, that break the group; and callers that spin.
 */
#include "collectives/fake_group.h"

static struct fake_world world;
static struct rdt_error results[FAKE_RANKS_MAX];
static struct rdt_coll_args calls[FAKE_RANKS_MAX];
static uint32_t test_flags;
static uint32_t absent; /* this rank does not come to the second call */
static bool do_leave;   /* who is absent, or done with it, says goodbye to all */

enum { NOBODY = FAKE_RANKS_MAX, ELEMENTS_MAX = 100000 };

static void
begin_world(uint32_t size, uint64_t spin_ns)
{
    memset(results, 0, sizeof(results));
    fake_force("direct");
    fake_world_init(&world, size, size);
    world.spin_ns = spin_ns;
    absent = NOBODY;
    do_leave = false;
}

static void
leave(uint32_t rank)
{
    (void)pthread_mutex_lock(&world.lock);
    for (uint32_t i = 0; i < world.size; i++)
        world.groups[i].endpoints[rank].has_left = true;
    (void)pthread_mutex_unlock(&world.lock);
}

/* A barrier, in which the set-up happens, then what `calls` says. */
static void *
run_call(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
    struct rdt_error err = {0};
    void *send = calloc(FAKE_RANKS_MAX * ELEMENTS_MAX, 8);
    void *recv = calloc(FAKE_RANKS_MAX * ELEMENTS_MAX, 8);

    CHECK(send != NULL && recv != NULL);
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    fake_world_meet(&world);
    args = calls[group->rank];
    args.struct_size = sizeof(args);
    args.flags = test_flags;
    args.send = send;
    args.recv = recv;
    if (group->rank != absent)
        (void)fake_run_coll(group, &args, &results[group->rank]);
    if (do_leave)
        leave(group->rank);
    free(send);
    free(recv);
    return NULL;
}

/* `says`: the odd one's call in words. */
static void
check_mismatch(struct rdt_coll_args usual, struct rdt_coll_args other, uint32_t size, uint32_t odd,
               const char *says)
{
    static const char usual_says[] = "all_reduce (sum) of 5 int64";
    unsigned mismatches = 0;

    begin_world(size, 1000000);
    for (uint32_t rank = 0; rank < size; rank++)
        calls[rank] = rank == odd ? other : usual;
    fake_world_run(&world, run_call);
    for (uint32_t rank = 0; rank < size; rank++) {
        if (results[rank].status != RDT_EMISMATCH)
            continue;
        mismatches++;
        const int32_t peer = results[rank].peer_rank;
        char both[400];
        CHECK_INT_LE(0, peer);
        CHECK_MSG((peer == (int32_t)odd) != (rank == odd), "rank %u blames rank %d", rank,
                  (int)peer);
        (void)snprintf(both, sizeof(both),
                       "rank %d called %s as collective #2 of the group, rank %u (this one) %s as "
                       "#2",
                       (int)peer, rank == odd ? usual_says : says, rank,
                       rank == odd ? says : usual_says);
        CHECK_STR_CONTAINS(results[rank].message, both);
    }
    CHECK_MSG(mismatches > 0, "size %u, rank %u differs: nobody noticed", size, odd);
    CHECK(world.aborts > 0 && world.broken.status != RDT_OK);
    CHECK_STR_CONTAINS(world.broken.message, "aborted: rank ");
    CHECK_STR_CONTAINS(world.broken.message, says);
    CHECK_STR_CONTAINS(world.broken.message, usual_says);
    fake_world_fini(&world);
}

TEST_TIMEOUT(ranks_that_disagree_learn_how, 60)
{
    const struct rdt_coll_args sum = {.op = RDT_COLL_ALLREDUCE,
                                      .dtype = RDT_I64,
                                      .reduce_op = RDT_SUM,
                                      .count = 5};

    for (test_flags = 0; test_flags <= RDT_COLL_SPIN; test_flags++)
        for (uint32_t size = 2; size <= 5; size += TEST_TSAN_SHARE)
            for (uint32_t odd = 0; odd < size; odd++) {
                struct rdt_coll_args other = sum;
                other.count = 6;
                check_mismatch(sum, other, size, odd, "all_reduce (sum) of 6 int64");
                other.count = ELEMENTS_MAX; /* more ticks on that rank */
                check_mismatch(sum, other, size, odd, "all_reduce (sum) of 100000 int64");
                other = sum;
                other.dtype = RDT_F64;
                check_mismatch(sum, other, size, odd, "all_reduce (sum) of 5 float64");
                other = sum;
                other.reduce_op = RDT_MAX;
                check_mismatch(sum, other, size, odd, "all_reduce (max) of 5 int64");
                other = (struct rdt_coll_args){.op = RDT_COLL_BARRIER};
                check_mismatch(sum, other, size, odd, "barrier");
                other = (struct rdt_coll_args){.op = RDT_COLL_BROADCAST,
                                               .dtype = RDT_I64,
                                               .count = 5,
                                               .root = odd};
                char says[48];
                (void)snprintf(says, sizeof(says), "broadcast of 5 int64 with root %u", odd);
                check_mismatch(sum, other, size, odd, says);
            }
    test_flags = 0;
}

static void *
run_after_abort(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
    struct rdt_error err = {0};

    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    fake_world_meet(&world);
    if (group->rank == 0)
        rdt_group_abort(group, "enough");
    fake_world_meet(&world);
    args.flags = test_flags;
    CHECK_STATUS(fake_run_coll(group, &args, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "barrier: aborted: enough");
    return NULL;
}

/* Though all of them come, and the memory is there. */
TEST(a_group_that_has_ended_begins_nothing)
{
    for (test_flags = 0; test_flags <= RDT_COLL_SPIN; test_flags++) {
        begin_world(3, 1000000);
        fake_world_run(&world, run_after_abort);
        fake_world_fini(&world);
    }
    test_flags = 0;
}

TEST(a_deadline_names_the_rank_that_is_missing)
{
    for (test_flags = 0; test_flags <= RDT_COLL_SPIN; test_flags++) {
        begin_world(4, 1000000);
        world.global_first = 10;
        absent = 2;
        for (uint32_t rank = 0; rank < 4; rank++) {
            calls[rank] = (struct rdt_coll_args){.op = RDT_COLL_BARRIER};
            calls[rank].timeout_ns = rank == 0 ? UINT64_C(300000000) : 0;
        }
        fake_world_run(&world, run_call);
        CHECK_INT_EQ(results[0].status, RDT_ETIMEDOUT);
        CHECK_STR_CONTAINS(results[0].message, "barrier #2: after ");
        CHECK_STR_CONTAINS(results[0].message, " s nothing from rank 2 (global rank 12) (round 1 ");
        CHECK_INT_EQ(results[0].peer_rank, 12);
        CHECK_STR_CONTAINS(results[3].message, "aborted: rank 0 (global rank 10): barrier #2");
        CHECK_INT_EQ(results[3].peer_rank, 12);
        fake_world_fini(&world);
    }
    test_flags = 0;
}

TEST(a_missing_root_is_named)
{
    begin_world(3, 0);
    absent = 1;
    for (uint32_t rank = 0; rank < 3; rank++)
        calls[rank] = (struct rdt_coll_args){.op = RDT_COLL_SCATTER,
                                             .dtype = RDT_U8,
                                             .count = 9,
                                             .root = 1,
                                             .timeout_ns = UINT64_C(200000000)};
    fake_world_run(&world, run_call);
    CHECK(results[0].status == RDT_ETIMEDOUT || results[2].status == RDT_ETIMEDOUT);
    CHECK_STR_CONTAINS(world.broken.message, "scatter #2: after ");
    CHECK_STR_CONTAINS(world.broken.message, " s nothing from rank 1 (round 1 of 1)");
    fake_world_fini(&world);
}

static void *
run_until_broken(void *arg)
{
    rdt_group *group = arg;

    if (group->rank != world.size - 1)
        return run_call(arg);
    absent = group->rank;
    (void)run_call(arg);
    test_sleep_ns(3000000);
    rdt_group_abort(group, "somebody pulled the plug");
    return NULL;
}

TEST(a_group_that_breaks_ends_what_waits)
{
    for (test_flags = 0; test_flags <= RDT_COLL_SPIN; test_flags++)
        for (uint32_t size = 2; size <= 5; size++) {
            begin_world(size, 100000);
            for (uint32_t rank = 0; rank < size; rank++)
                calls[rank] = (struct rdt_coll_args){.op = RDT_COLL_ALLGATHER,
                                                     .dtype = RDT_F32,
                                                     .count = 1000};
            fake_world_run(&world, run_until_broken);
            for (uint32_t rank = 0; rank + 1 < size; rank++) {
                CHECK_INT_EQ(results[rank].status, RDT_EPEER);
                CHECK_STR_CONTAINS(results[rank].message, "somebody pulled the plug");
            }
            fake_world_fini(&world);
        }
    test_flags = 0;
}

/* A caller that spun in vain and then finds no room for a task ends the group: the others count on
 * it. */
TEST(a_spinner_that_cannot_go_on_ends_the_group)
{
    begin_world(2, 1000);
    absent = 1;
    for (uint32_t rank = 0; rank < 2; rank++)
        calls[rank] = (struct rdt_coll_args){.op = RDT_COLL_BARRIER};
    test_flags = RDT_COLL_SPIN;
    world.fail_at[FAKE_TASK] = 3; /* two for the barrier of the set-up */
    fake_world_run(&world, run_call);
    CHECK_INT_EQ(results[0].status, RDT_ENOMEM);
    CHECK_STR_CONTAINS(results[0].message, "injected: task");
    CHECK_STR_CONTAINS(world.broken.message, "injected: task");
    test_flags = 0;
    fake_world_fini(&world);
}

/* ---- Members that leave in order, which breaks no group ---- */

static const struct rdt_coll_args leavable[] = {
    {.op = RDT_COLL_BARRIER},
    {.op = RDT_COLL_ALLREDUCE, .dtype = RDT_F32, .reduce_op = RDT_SUM, .count = 5},
    {.op = RDT_COLL_ALLREDUCE, .dtype = RDT_F32, .reduce_op = RDT_SUM, .count = ELEMENTS_MAX},
    {.op = RDT_COLL_ALLGATHER, .dtype = RDT_F64, .count = ELEMENTS_MAX},
    {.op = RDT_COLL_ALLTOALL, .dtype = RDT_F32, .count = 100},
    {.op = RDT_COLL_BROADCAST, .dtype = RDT_F32, .count = 100, .root = 1},
};

TEST_TIMEOUT(a_member_that_left_is_named_by_who_waits_for_it, 60)
{
    for (size_t i = 0; i < sizeof(leavable) / sizeof(leavable[0]); i++) {
        begin_world(3, i % 2 == 0 ? 0 : 1000000);
        for (uint32_t rank = 0; rank < 3; rank++)
            calls[rank] = leavable[i];
        absent = 1;
        do_leave = true;
        fake_world_run(&world, run_call);
        for (uint32_t rank = 0; rank < 3; rank += 2) {
            CHECK_INT_EQ(results[rank].status, RDT_EPEER);
            CHECK_STR_CONTAINS(results[rank].message, "rank 1 left");
        }
        CHECK_STR_CONTAINS(world.broken.message, "#2, round 1 of ");
        fake_world_fini(&world);
    }
}

TEST_TIMEOUT(a_member_that_is_done_may_leave, 60)
{
    for (size_t i = 0; i < sizeof(leavable) / sizeof(leavable[0]); i++) {
        begin_world(3, 0);
        for (uint32_t rank = 0; rank < 3; rank++)
            calls[rank] = leavable[i];
        do_leave = true;
        fake_world_run(&world, run_call);
        for (uint32_t rank = 0; rank < 3; rank++)
            CHECK_OK((rdt_status)results[rank].status, &results[rank]);
        fake_world_fini(&world);
    }
}

TEST_MAIN()
