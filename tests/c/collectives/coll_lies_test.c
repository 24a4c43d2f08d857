/* SPDX-License-Identifier: Apache-2.0
 * A member that tells the others nonsense while a group is set up: all ranks end, and who was told
 * it names the member and what was wrong. */
#include "collectives/fake_group.h"

#include "wire/group/founding.h"

static struct fake_world world;
static struct rdt_error results[FAKE_RANKS_MAX];

static void *
sum_once(void *arg)
{
    rdt_group *group = arg;
    int32_t value = 1;
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_I32,
                                       .reduce_op = RDT_SUM,
                                       .count = 1,
                                       .send = &value,
                                       .recv = &value};
    struct rdt_error *err = &results[group->rank];

    err->status = fake_run_coll(group, &args, err);
    if (err->status != RDT_OK)
        rdt_group_abort(group, err->message);
    return NULL;
}

/* Two members on each of two hosts, so that the set-up has all its parts. */
static void
run_with(const struct fake_lie *lie, uint64_t seed)
{
    memset(results, 0, sizeof(results));
    fake_force("auto");
    fake_world_init(&world, 4, seed);
    for (uint32_t rank = 0; rank < world.size; rank++)
        world.hosts[rank] = rank / 2;
    world.lie = *lie;
    fake_world_run(&world, sum_once);
    fake_world_fini(&world);
}

/* The tags of wire.md, "Founding of a group". */
#define ADDRESS (UINT64_C(3) << 62)
#define VOTE (ADDRESS | 1)
#define TABLE (ADDRESS | 2)

TEST(nonsense_in_the_set_up_ends_all_and_names_who_said_it)
{
    static const struct {
        struct fake_lie lie;
        const char *said;
    } lies[] = {
        {{1, ADDRESS, 0, 2}, "address of a board: the flag is not 0 or 1"},
        {{1, ADDRESS, 0, 1}, "address of a board: bad region descriptor"},
        {{1, VOTE, 7, 0x80}, "members that a group of 4 has not"},
        {{1, VOTE, 8, 1}, "as rank 0 alone does"},
        {{0, VOTE, 8, 2}, "vote for boards: the flag is not 0 or 1"},
        {{0, TABLE, 7, 0x80}, "table of costs: no such source"},
        {{0, TABLE, 15, 0x80}, "table of costs: no such path between hosts"},
        {{0, TABLE, RDTI_COSTS_BYTES - 1, 0x80}, "table of costs: a value is out of range"},
    };

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            unsigned told = 0;
            char who[16];
            run_with(&lies[i].lie, seed);
            (void)snprintf(who, sizeof(who), "rank %u", (unsigned)lies[i].lie.src);
            for (uint32_t rank = 0; rank < world.size; rank++) {
                CHECK_MSG(results[rank].status != RDT_OK, "lie %zu: rank %u", i, (unsigned)rank);
                if (results[rank].status != RDT_EPROTO)
                    continue;
                CHECK_STR_CONTAINS(results[rank].message, lies[i].said);
                CHECK_STR_CONTAINS(results[rank].message, who);
                told++;
            }
            CHECK_MSG(told > 0, "lie %zu: nobody was told", i);
        }
}

TEST(without_a_lie_all_is_well)
{
    const struct fake_lie none = {0, ADDRESS, 0, 0};

    run_with(&none, 1);
    for (uint32_t rank = 0; rank < world.size; rank++)
        CHECK_MSG(results[rank].status == RDT_OK, "%s", results[rank].message);
}

TEST_MAIN()
