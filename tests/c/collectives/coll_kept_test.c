/* SPDX-License-Identifier: Apache-2.0
 *
 * What a group keeps from one all_reduce to the next: memory in which messages land.
 */
#include "collectives/fake_group.h"
#include "collectives/schedule/scratch.h"

static struct fake_world world;
static uint64_t test_count;

enum { MOST = 300001 };

/* As a step's tensors, they stay where they are. */
static int32_t tensors[FAKE_RANKS_MAX][MOST];

static void *
run_in_place(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    int32_t *values = tensors[rdt_group_rank(group)];
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_I32,
                                       .reduce_op = RDT_SUM,
                                       .count = test_count,
                                       .send = values,
                                       .recv = values};

    CHECK(test_count < MOST);
    for (uint64_t i = 0; i <= test_count; i++)
        values[i] = (int32_t)(i % 1000 + rdt_group_rank(group));
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    const uint64_t ranks = (uint64_t)world.size * (world.size - 1) / 2;
    for (uint64_t i = 0; i < test_count; i++)
        CHECK_INT_EQ(values[i], (int32_t)(i % 1000 * world.size + ranks));
    CHECK_INT_EQ(values[test_count], (int32_t)(test_count % 1000 + rdt_group_rank(group)));
    return NULL;
}

static size_t
posted_by(uint32_t rank, char *first_two)
{
    (void)pthread_mutex_lock(&world.lock);
    const size_t count = strlen(world.posted[rank]);
    memcpy(first_two, world.posted[rank], 2);
    (void)pthread_mutex_unlock(&world.lock);
    return count;
}

/* Rank 0 comes when rank 1 has posted what its first round has. */
static void *
run_late(void *arg)
{
    rdt_group *group = arg;
    char first_two[2];

    while (rdt_group_rank(group) == 0 && posted_by(1, first_two) < 2)
        (void)sched_yield();
    return run_in_place(arg);
}

/* Who finds its message's receive told tells its own receive before it fills the link; who does not
 * offers before it is asked. */
TEST(neither_direction_of_a_link_waits_for_the_other)
{
    char first_two[2];

    test_count = 70001;
    fake_force("ring");
    fake_world_init(&world, 2, 5);
    world.has_streams = true;
    fake_world_run(&world, run_in_place);
    for (uint32_t i = 0; i < 8; i++) {
        memset(world.posted, 0, sizeof(world.posted));
        fake_world_run(&world, run_late);
        CHECK_UINT_EQ(posted_by(1, first_two), 4);
        CHECK_MEM_EQ(first_two, "sr", 2);
        CHECK_UINT_EQ(posted_by(0, first_two), 4);
        CHECK_MEM_EQ(first_two, "rs", 2);
    }
    fake_world_fini(&world);
}

/* Regions are numbered from 1 on. */
TEST(landing_memory_is_registered_once_for_each_length)
{
    static const char *const forced[] = {"direct", "ring", "halving-doubling", "tree"};
    static const uint64_t counts[] = {70001, 300000, 70001, 300000};

    for (size_t a = 0; a < sizeof(forced) / sizeof(forced[0]); a++) {
        fake_force(forced[a]);
        fake_world_init(&world, 3, 5);
        world.is_apart = true;
        uint64_t made = 0;
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            test_count = counts[c];
            fake_world_run(&world, run_in_place);
            if (c == 1)
                made = world.generations;
        }
        CHECK(made > 0);
        CHECK_UINT_EQ(world.generations, made);
        fake_world_fini(&world);
    }
}

/* What the source cannot write lands in kept memory, from the second time on, and is copied. */
TEST(messages_land_in_kept_memory_and_are_handed_over)
{
    static const char *const forced[] = {"ring", "halving-doubling", "tree"};

    for (size_t a = 0; a < sizeof(forced) / sizeof(forced[0]); a++) {
        uint64_t made = 0;
        uint64_t copied = 0;
        fake_force(forced[a]);
        fake_world_init(&world, 3, 5);
        world.is_apart = true;
        world.has_streams = true;
        test_count = 70001;
        for (int round = 0; round < 5; round++) {
            copied = world.groups[1].context.counted.copied_bytes;
            made = world.generations;
            fake_world_run(&world, run_in_place);
            if (round == 0)
                CHECK_UINT_EQ(world.groups[1].context.counted.copied_bytes, 0);
        }
        CHECK_UINT_EQ(world.generations, made);
        CHECK_UINT_GE(world.groups[1].context.counted.copied_bytes - copied, test_count);
        fake_world_fini(&world);
    }
}

/* Whether their collectives overlap depends on time. */
TEST(tensors_of_one_length_that_come_again_have_memory_of_their_own)
{
    enum { BYTES = 1 << 20, COUNT = 4, MANY = 200 };
    struct rdti_temps temps = {0};
    struct rdti_temp *own[COUNT];

    fake_world_init(&world, 2, 5);
    rdt_context *ctx = &world.groups[0].context;
    rdti_temps_init(&temps, RDTI_TEMPS_SUMS_BYTES, false);
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < COUNT; i++) {
            own[i] = rdti_temps_take(&temps, ctx, tensors[i], BYTES);
            rdti_temps_give(own[i]);
        }
    const uint64_t made = world.generations;
    CHECK_UINT_EQ(made, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        CHECK(rdti_temps_take(&temps, ctx, tensors[i], BYTES) == own[i]);
    for (unsigned i = 0; i < COUNT; i++)
        rdti_temps_give(own[i]);
    for (unsigned i = 0; i < 2 * MANY; i++) { /* of what never comes again one is enough */
        struct rdti_temp *temp = rdti_temps_take(&temps, ctx, (uint8_t *)tensors + i, BYTES);
        CHECK_NOT_NULL(temp);
        rdti_temps_give(temp);
    }
    CHECK_UINT_EQ(world.generations, made);
    for (int round = 0; round < 3; round++)
        for (unsigned i = 0; i < MANY; i++) { /* more than may have their own share */
            struct rdti_temp *temp = rdti_temps_take(&temps, ctx, tensors[i % 8] + i, BYTES);
            CHECK_NOT_NULL(temp);
            rdti_temps_give(temp);
        }
    CHECK_UINT_LE(world.generations, RDTI_TEMPS_OWN_BYTES / BYTES);
    rdti_temps_fini(&temps);
    fake_world_fini(&world);
}

TEST(memory_that_is_kept_has_its_bounds)
{
    enum { PIECE = 20 << 20 };
    struct rdti_temps temps = {0};
    struct rdti_temp *taken[3];

    fake_world_init(&world, 2, 5);
    rdt_context *ctx = &world.groups[0].context;
    rdti_temps_init(&temps, RDTI_TEMPS_REPEATS_BYTES, true);
    CHECK(rdti_temps_take(&temps, ctx, NULL, RDTI_TEMPS_MIN_BYTES) == NULL);
    for (uint64_t i = 0; i < 3; i++) {
        CHECK(rdti_temps_take(&temps, ctx, NULL, PIECE + i) == NULL); /* it has not come before */
        taken[i] = rdti_temps_take(&temps, ctx, NULL, PIECE + i);
        CHECK_NOT_NULL(taken[i]);
    }
    (void)rdti_temps_take(&temps, ctx, NULL, PIECE + 3);
    CHECK(rdti_temps_take(&temps, ctx, NULL, PIECE + 3) == NULL); /* 64 MiB are full */
    rdti_temps_give(taken[0]);
    rdti_temps_give(taken[1]);
    CHECK(rdti_temps_take(&temps, ctx, NULL, PIECE + 1) == taken[1]); /* which had just as many */
    CHECK(rdti_temps_take(&temps, ctx, NULL, 2 * PIECE) == NULL);
    CHECK(rdti_temps_take(&temps, ctx, NULL, 2 * PIECE) == NULL);
    uint64_t waited = 0;
    struct rdti_temp *last = NULL;
    while (last == NULL && waited++ <= RDTI_TEMPS_STALE) /* then the first is of no step any more */
        last = rdti_temps_take(&temps, ctx, NULL, PIECE + 3);
    CHECK_NOT_NULL(last);
    CHECK_UINT_GE(waited, RDTI_TEMPS_STALE - 16);
    rdti_temps_give(last);
    rdti_temps_give(taken[1]);
    rdti_temps_give(taken[2]);
    rdti_temps_fini(&temps);
    fake_world_fini(&world);
}

TEST_MAIN()
