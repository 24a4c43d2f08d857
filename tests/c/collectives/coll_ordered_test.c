/* SPDX-License-Identifier: Apache-2.0
 *
 * RDMATENSOR_DETERMINISTIC: sums in rank order, bit for bit, over boards and over messages.
 */
#include "collectives/fake_group.h"

static struct fake_world world;
static uint64_t test_count;

static const uint32_t sizes[] = {2, 3, 5, 8};
enum { SIZES = 4 };

/* Of many magnitudes, so that nearly every order gives other bits. */
static float
mixed_value(uint32_t rank, uint64_t i)
{
    static const float scales[] = {1e-6F, 1e7F, 3.0F, 1e-3F, 2e5F, 7e-5F, 11.0F, 1e3F};

    return scales[(rank + i) % 8] * (float)((i * 2654435761U + rank * 3) % 1000 | 1);
}

static float
mixed_sum(uint64_t i)
{
    float sum = mixed_value(0, i);

    for (uint32_t rank = 1; rank < world.size; rank++)
        sum += mixed_value(rank, i);
    return sum;
}

static void
check_bits(const float *got, uint64_t first)
{
    for (uint64_t i = 0; i < test_count; i++) {
        const float want = mixed_sum(first + i);
        if (memcmp(&got[i], &want, sizeof(want)) != 0)
            FAIL("%u ranks: [%llu] is %a, in rank order it is %a", world.size,
                 (unsigned long long)(first + i), (double)got[i], (double)want);
    }
}

static void *
sum_mixed(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    const uint64_t all = test_count * world.size;
    float *send = malloc((all + 1) * sizeof(*send));
    float *recv = malloc((all + 1) * sizeof(*recv));

    CHECK_NOT_NULL(send);
    CHECK_NOT_NULL(recv);
    for (int is_in_place = 0; is_in_place < 2; is_in_place++) {
        struct rdt_coll_args args = {.struct_size = sizeof(args),
                                     .op = RDT_COLL_ALLREDUCE,
                                     .dtype = RDT_F32,
                                     .reduce_op = RDT_SUM,
                                     .count = test_count};
        for (uint64_t i = 0; i < all; i++)
            send[i] = mixed_value(group->rank, i);
        args.send = send;
        args.recv = is_in_place ? send : recv;
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
        check_bits(args.recv, 0);

        for (uint64_t i = 0; i < all; i++)
            send[i] = mixed_value(group->rank, i);
        args.op = RDT_COLL_REDUCE;
        args.root = world.size - 1;
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
        if (group->rank == args.root)
            check_bits(args.recv, 0);

        for (uint64_t i = 0; i < all; i++)
            send[i] = mixed_value(group->rank, i);
        args.op = RDT_COLL_REDUCE_SCATTER;
        args.root = 0;
        args.recv = is_in_place ? send + group->rank * test_count : recv;
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
        check_bits(args.recv, group->rank * test_count);
    }
    free(send);
    free(recv);
    return NULL;
}

TEST_TIMEOUT(deterministic_sums_go_in_rank_order, 60)
{
    static const uint64_t counts[] = {0, 1, 5, 17, 1000, 20001};
    static const char *const ways[] = {"auto", "messages", "direct"};

    CHECK_INT_EQ(setenv("RDMATENSOR_DETERMINISTIC", "1", 1), 0);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++)
        for (size_t s = 0; s < SIZES; s++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                test_count = counts[c];
                fake_force(ways[w]);
                fake_world_init(&world, sizes[s], 7 * w + s);
                fake_world_run(&world, sum_mixed);
                CHECK_UINT_EQ(world.aborts, 0);
                fake_world_fini(&world);
            }
    CHECK_INT_EQ(unsetenv("RDMATENSOR_DETERMINISTIC"), 0);
}

TEST(what_cannot_be_deterministic_is_refused)
{
    static const struct {
        const char *way;
        const char *value;
        const char *words;
    } cases[] = {
        {"ring", "1", "which RDMATENSOR_ALGO=ring does not"},
        {"tree", "1", "which RDMATENSOR_ALGO=tree does not"},
        {"auto", "yea", "RDMATENSOR_DETERMINISTIC is 'yea'; want 0 or 1"},
        {"ring", "True", "which RDMATENSOR_ALGO=ring does not"},
    };
    float value = 1.0F;

    test_count = 1;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rdt_coll_args args = {.struct_size = sizeof(args),
                                     .op = RDT_COLL_ALLREDUCE,
                                     .dtype = RDT_F32,
                                     .reduce_op = RDT_SUM,
                                     .count = test_count};
        struct rdt_error err = {0};
        rdt_transfer *t = NULL;
        CHECK_INT_EQ(setenv("RDMATENSOR_DETERMINISTIC", cases[i].value, 1), 0);
        fake_force(cases[i].way);
        fake_world_init(&world, 2, 1);
        args.send = args.recv = &value;
        CHECK_STATUS(rdt_coll_post(&world.groups[0], &args, &t, &err), RDT_EINVAL);
        CHECK_STR_CONTAINS(err.message, cases[i].words);
        fake_world_fini(&world);
    }
    CHECK_INT_EQ(unsetenv("RDMATENSOR_DETERMINISTIC"), 0);
}

TEST_MAIN()
