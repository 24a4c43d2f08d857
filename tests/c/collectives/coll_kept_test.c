/* SPDX-License-Identifier: Apache-2.0
 *
 * What a group keeps from one all_reduce to the next: memory in which messages land.
 */
#include "collectives/fake_group.h"

static struct fake_world world;
static uint64_t test_count;

static void *
run_in_place(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    int32_t *values = malloc((test_count + 1) * sizeof(*values));
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_I32,
                                       .reduce_op = RDT_SUM,
                                       .count = test_count,
                                       .send = values,
                                       .recv = values};

    CHECK_NOT_NULL(values);
    for (uint64_t i = 0; i <= test_count; i++)
        values[i] = (int32_t)(i % 1000 + rdt_group_rank(group));
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    const uint64_t ranks = (uint64_t)world.size * (world.size - 1) / 2;
    for (uint64_t i = 0; i < test_count; i++)
        CHECK_INT_EQ(values[i], (int32_t)(i % 1000 * world.size + ranks));
    CHECK_INT_EQ(values[test_count], (int32_t)(test_count % 1000 + rdt_group_rank(group)));
    free(values);
    return NULL;
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

TEST_MAIN()
