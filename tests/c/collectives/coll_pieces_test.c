/* SPDX-License-Identifier: Apache-2.0
 *
 * Operands that are long: they come in pieces, are summed to the same, and land in memory that does
 * not grow with them.
 */
#include "collectives/fake_group.h"

#include "collectives/team/team.h"

/* Of schedule_build.c: four pieces of a MiB at once. What is shorter than LEAST is sent eagerly. */
enum { LANDING_BYTES = 4 << 20, LEAST_BYTES = 65537 };

static struct fake_world world;
static uint64_t test_count;

static void
run(rdt_group *group, uint32_t op, const int32_t *send, int32_t *recv, uint64_t count,
    uint32_t root)
{
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = op,
                                       .dtype = RDT_I32,
                                       .reduce_op = RDT_SUM,
                                       .root = root,
                                       .count = count,
                                       .send = send,
                                       .recv = recv};
    struct rdt_error err = {0};

    CHECK_OK(fake_run_coll(group, &args, &err), &err);
}

/* got[i] is the sum at from + i. */
static void
check_sums(const rdt_group *group, const int32_t *got, uint64_t from, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (got[i] != fake_sum(world.size, from + i))
            FAIL("rank %u of %u: [%llu] is %d, not %d", group->rank, world.size,
                 (unsigned long long)i, got[i], fake_sum(world.size, from + i));
    CHECK_INT_EQ(got[count], 77);
}

static void *
sum_everywhere(void *arg)
{
    rdt_group *group = arg;
    int32_t *send = fake_values(test_count, group->rank);
    int32_t *recv = fake_values(test_count, 0);

    run(group, RDT_COLL_ALLREDUCE, send, recv, test_count, 0);
    check_sums(group, recv, 0, test_count);
    run(group, RDT_COLL_ALLREDUCE, send, send, test_count, 0);
    check_sums(group, send, 0, test_count);
    free(send);
    free(recv);
    return NULL;
}

/* As sum_everywhere(), of floats whose sums are exact, and divided by the number of ranks. */
static void *
average_everywhere(void *arg)
{
    rdt_group *group = arg;
    float *values = malloc(test_count * sizeof(*values));
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_F32,
                                       .reduce_op = RDT_AVG,
                                       .count = test_count,
                                       .send = values,
                                       .recv = values};
    struct rdt_error err = {0};

    CHECK_NOT_NULL(values);
    for (uint64_t i = 0; i < test_count; i++)
        values[i] = (float)(fake_value(group->rank, i) % 1024);
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < test_count; i++) {
        float sum = 0;
        for (uint32_t rank = 0; rank < world.size; rank++)
            sum += (float)(fake_value(rank, i) % 1024);
        CHECK(values[i] == sum / (float)world.size);
    }
    free(values);
    return NULL;
}

static void *
sum_at_one(void *arg)
{
    rdt_group *group = arg;
    const uint32_t root = world.size - 1;
    int32_t *send = fake_values(test_count, group->rank);
    int32_t *recv = fake_values(test_count, 0);

    run(group, RDT_COLL_REDUCE, send, recv, test_count, root);
    if (group->rank == root)
        check_sums(group, recv, 0, test_count);
    free(send);
    free(recv);
    return NULL;
}

static void *
scatter_sums(void *arg)
{
    rdt_group *group = arg;
    const uint64_t count = test_count / world.size;
    int32_t *send = fake_values(count * world.size, group->rank);
    int32_t *recv = fake_values(count, 0);

    run(group, RDT_COLL_REDUCE_SCATTER, send, recv, count, 0);
    check_sums(group, recv, count * group->rank, count);
    int32_t *own = send + count * group->rank; /* where the result may also go */
    const int32_t behind = own[count];
    run(group, RDT_COLL_REDUCE_SCATTER, send, own, count, 0);
    CHECK_INT_EQ(own[count], behind);
    own[count] = 77;
    check_sums(group, own, count * group->rank, count);
    free(send);
    free(recv);
    return NULL;
}

/* Of what members keep from one collective to the next. */
static uint64_t
most_kept_bytes(void)
{
    uint64_t most = 0;

    for (uint32_t rank = 0; rank < world.size; rank++) {
        const struct rdti_team *team = world.groups[rank].attached;
        const uint64_t kept = atomic_load(&team->temps.kept_bytes);
        most = kept > most ? kept : most;
    }
    return most;
}

/* Returns most_kept_bytes(). */
static uint64_t
run_world(const char *algorithm, uint32_t size, void *(*body)(void *arg))
{
    fake_force(algorithm);
    fake_world_init(&world, size, 5 + size);
    fake_world_run(&world, body);
    CHECK_UINT_EQ(world.aborts, 0);
    CHECK_UINT_GE(world.shortest_bytes, LEAST_BYTES);
    const uint64_t kept = most_kept_bytes();
    fake_world_fini(&world);
    return kept;
}

static const uint32_t sizes[] = {2, 3, 5, 8};
/* A last piece of one element, of all but one, and pieces that fill a round to the last. */
static const uint64_t counts[] = {2 * 5 * 262144 + 2, 2 * 5 * 262144 - 2, 2 * 4 * 262144};
enum { SIZES = 4, COUNTS = 3 };

TEST_TIMEOUT(long_operands_of_all_reduce, 120)
{
    static const char *const algorithms[] = {"ring", "halving-doubling", "tree"};

    for (size_t a = 0; a < 3; a++)
        for (size_t s = 0; s < SIZES; s += TEST_TSAN_SHARE)
            for (size_t c = 0; c < COUNTS; c += TEST_TSAN_SHARE) {
                test_count = counts[c];
                const uint64_t kept = run_world(algorithms[a], sizes[s], sum_everywhere);
                const uint64_t sums = a == 2 && sizes[s] > 2 ? test_count * sizeof(int32_t) : 0;
                CHECK_UINT_LE(kept, LANDING_BYTES + sums); /* a tree's inner ranks have a sum */
            }
}

TEST_TIMEOUT(long_operands_that_are_averaged, 120)
{
    static const char *const algorithms[] = {"ring", "halving-doubling", "tree"};

    test_count = counts[0];
    for (size_t a = 0; a < 3; a++)
        for (uint32_t size = 2; size <= 5; size++)
            (void)run_world(algorithms[a], size, average_everywhere);
}

TEST_TIMEOUT(long_operands_of_reduce, 120)
{
    for (size_t s = 0; s < SIZES; s += TEST_TSAN_SHARE)
        for (size_t c = 0; c < COUNTS; c += TEST_TSAN_SHARE) {
            test_count = counts[c];
            const uint64_t kept = run_world("messages", sizes[s], sum_at_one);
            const uint64_t sums = sizes[s] > 2 ? test_count * sizeof(int32_t) : 0;
            CHECK_UINT_LE(kept, LANDING_BYTES + sums);
        }
}

TEST_TIMEOUT(long_operands_of_reduce_scatter, 120)
{
    for (size_t s = 0; s < SIZES; s += TEST_TSAN_SHARE)
        for (size_t c = 0; c < COUNTS; c += TEST_TSAN_SHARE) {
            test_count = counts[c];
            const uint64_t kept = run_world("ring", sizes[s], scatter_sums);
            const uint64_t block = test_count / sizes[s] * sizeof(int32_t);
            const uint64_t sums = sizes[s] > 3 ? 2 * block : sizes[s] > 2 ? block : 0;
            CHECK_UINT_LE(kept, LANDING_BYTES + sums);
        }
}

/* All but the last come. */
static void *
wait_for_the_last(void *arg)
{
    rdt_group *group = arg;
    int32_t *values = fake_values(test_count, group->rank);
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_I32,
                                       .reduce_op = RDT_SUM,
                                       .count = test_count,
                                       .timeout_ns = (uint64_t)(3e8 * test_timeout_scale()),
                                       .send = values,
                                       .recv = values};
    struct rdt_error err = {0};

    if (group->rank + 1 < world.size)
        CHECK(fake_run_coll(group, &args, &err) != RDT_OK);
    free(values);
    return NULL;
}

/* Four of its pieces are missing. */
TEST(who_is_late_is_named_once)
{
    test_count = counts[0];
    fake_force("halving-doubling");
    fake_world_init(&world, 2, 3);
    fake_world_run(&world, wait_for_the_last);
    CHECK_STR_CONTAINS(world.broken.message, " s nothing from rank 1 (round 1 of 3)");
    CHECK_INT_EQ(world.broken.peer_rank, 1);
    fake_world_fini(&world);
}

TEST_MAIN()
