/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups on several hosts: which members share one, what crosses between hosts, and that every
 * operation does what it does elsewhere, with the same bits on all ranks.
 */
#include <pthread.h>

#include "collectives/fake_group.h"

#include <unistd.h>

#include "collectives/collective.h"
#include "collectives/select/cost.h"
#include "collectives/team/team.h"

static struct fake_world world;
static uint64_t test_count;

/* The host of each rank, as digits: "0011" has two members on each of two hosts. */
static const char *const layouts[] = {"0011",  "0101",   "001",     "011",      "010122",
                                      "00012", "001122", "0101010", "00110011", "01234444"};
enum { LAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

static void
world_init(const char *layout, uint64_t seed)
{
    const uint32_t size = (uint32_t)strlen(layout);

    fake_world_init(&world, size, seed);
    for (uint32_t rank = 0; rank < size; rank++)
        world.hosts[rank] = (uint32_t)(layout[rank] - '0');
}

/* ---- Which members share a host ---- */

TEST(hosts_are_those_whose_members_all_hold_each_other)
{
    /* 0 and 2 share memory, 1 and 3 do; 4 holds 0, which does not hold it. */
    const uint64_t can_hold[] = {0x05, 0x0a, 0x05, 0x0a, 0x11};
    struct rdti_hosts hosts;

    rdti_hosts_sort(can_hold, 5, 3, &hosts);
    CHECK_UINT_EQ(hosts.count, 3);
    CHECK_UINT_EQ(hosts.least, 1);
    CHECK_UINT_EQ(hosts.most, 2);
    CHECK_UINT_EQ(hosts.own, 1);
    CHECK_UINT_EQ(hosts.index, 1);
    const uint32_t ranks[] = {0, 2, 1, 3, 4};
    for (uint32_t i = 0; i < 5; i++)
        CHECK_UINT_EQ(hosts.ranks[i], ranks[i]);
}

TEST(a_chain_is_not_one_host)
{
    const uint64_t can_hold[] = {0x3, 0x7, 0x6}; /* 0 and 1, 1 and 2, but not 0 and 2 */
    struct rdti_hosts hosts;

    rdti_hosts_sort(can_hold, 3, 0, &hosts);
    CHECK_UINT_EQ(hosts.count, 2);
    CHECK_UINT_EQ(hosts.of[1], 0);
    CHECK_UINT_EQ(hosts.of[2], 1);
}

TEST(a_member_without_a_board_is_alone)
{
    const uint64_t can_hold[] = {0x3, 0x1}; /* 1 has none of its own */
    struct rdti_hosts hosts;

    rdti_hosts_sort(can_hold, 2, 1, &hosts);
    CHECK_UINT_EQ(hosts.count, 2);
    CHECK_UINT_EQ(hosts.most, 1);
}

/* ---- What the operations do ---- */

static struct rdt_coll_args
args_of(uint32_t op)
{
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = op,
                                  .dtype = RDT_I32,
                                  .reduce_op = RDT_SUM,
                                  .count = test_count};
}

static void
run_op(rdt_group *group, const struct rdt_coll_args *args)
{
    struct rdt_error err = {0};

    CHECK_OK(fake_run_coll(group, args, &err), &err);
}

static void
check_sum(const int32_t *got, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        CHECK_INT_EQ(got[i], fake_sum(world.size, i));
    CHECK_INT_EQ(got[count], 77);
}

static void *
sum_twice(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    int32_t *send = fake_values(test_count, group->rank);
    int32_t *recv = fake_values(test_count, group->rank);

    args.send = send;
    args.recv = recv;
    run_op(group, &args);
    check_sum(recv, test_count);
    args.recv = send;
    run_op(group, &args);
    check_sum(send, test_count);
    free(send);
    free(recv);
    return NULL;
}

static void
broadcast_from_each(rdt_group *group)
{
    struct rdt_coll_args args = args_of(RDT_COLL_BROADCAST);

    for (uint32_t root = 0; root < world.size; root++) {
        int32_t *values = fake_values(test_count, group->rank);
        args.root = root;
        args.recv = values;
        run_op(group, &args);
        for (uint64_t i = 0; i < test_count; i++)
            CHECK_INT_EQ(values[i], fake_value(root, i));
        CHECK_INT_EQ(values[test_count], 77);
        free(values);
    }
}

/* Operations that go by way of hosts, and one that does not, among each other. */
static void *
run_everything(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_BARRIER);

    (void)sum_twice(group);
    broadcast_from_each(group);
    run_op(group, &args);
    args = args_of(RDT_COLL_REDUCE);
    int32_t *own = fake_values(test_count, group->rank);
    int32_t *sum = fake_values(test_count, group->rank);
    args.send = own;
    args.recv = sum;
    args.root = world.size - 1;
    run_op(group, &args);
    if (group->rank == args.root)
        check_sum(sum, test_count);
    free(own);
    free(sum);
    return sum_twice(group);
}

TEST_TIMEOUT(operations_are_right_whatever_the_hosts, 120)
{
    static const uint64_t counts[] = {0, 1, 6, 7, 1000, 70001};

    for (size_t l = 0; l < LAYOUTS; l++)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            fake_force(c % 2 == 0 ? "hierarchical" : "auto");
            test_count = counts[c];
            world_init(layouts[l], l + 100 * c);
            fake_world_run(&world, run_everything);
            CHECK_UINT_EQ(world.aborts, 0);
            fake_world_fini(&world);
        }
}

TEST_TIMEOUT(large_sums_take_several_ticks_of_each_host, 60)
{
    fake_force("hierarchical");
    for (size_t l = 0; l < 5; l++) {
        test_count = 3 * RDTI_STAGE_BYTES / sizeof(int32_t) + 17;
        world_init(layouts[l], l);
        fake_world_run(&world, sum_twice);
        CHECK_UINT_EQ(world.aborts, 0);
        fake_world_fini(&world);
    }
}

/* ---- What crosses ---- */

/* A table on disk, whose path between hosts is such as the argument says. */
static void
use_table(const char *path, uint64_t duplex_permille)
{
    struct rdti_costs costs = rdti_costs_built_in;
    struct rdt_error err = {0};

    for (unsigned i = 0; i < RDTI_PATHS; i++)
        costs.paths[i].duplex_permille = duplex_permille;
    CHECK_OK(rdti_costs_save(path, &costs, &err), &err);
    CHECK_INT_EQ(setenv("RDMATENSOR_COST_TABLE", path, 1), 0);
}

/* Member r of a host talks to member r of the other, about a share each; nobody sends a message to
 * a member of its own host. */
TEST(a_share_crosses_once_and_nothing_stays_within_a_host)
{
    char path[] = "/tmp/rdt-costs-XXXXXX";

    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    (void)close(fd);
    use_table(path, 1000); /* two at once cost nothing more */
    fake_force("hierarchical");
    test_count = 100000;
    world_init("0011", 5);
    fake_world_run(&world, sum_twice);
    const uint64_t share_bytes = 2 * test_count * sizeof(int32_t) / 2; /* two calls, two rails */
    const uint64_t slack_bytes = 2000;                                 /* lines, the set-up */
    for (uint32_t rank = 0; rank < 4; rank++)
        for (uint32_t peer = 0; peer < 4; peer++) {
            if (peer == rank)
                continue;
            const uint64_t sent_bytes = world.sent_bytes[rank][peer];
            const uint64_t want_bytes = peer == (rank ^ 2) ? share_bytes : 0;
            CHECK_UINT_LE(sent_bytes, want_bytes + slack_bytes);
            CHECK_UINT_LE(want_bytes, sent_bytes + slack_bytes);
        }
    fake_world_fini(&world);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_COST_TABLE"), 0);
    (void)unlink(path);
}

static void *
broadcast_once(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_BROADCAST);
    int32_t *values = fake_values(test_count, group->rank);

    args.recv = values;
    run_op(group, &args);
    for (uint64_t i = 0; i < test_count; i++)
        CHECK_INT_EQ(values[i], fake_value(0, i));
    free(values);
    return NULL;
}

/* Bytes that crossed from host to host in a broadcast of rank 0, in units of its own. */
static uint64_t
crossings(const char *layout)
{
    uint64_t bytes = 0;

    fake_force("auto");
    world_init(layout, 2);
    fake_world_run(&world, broadcast_once);
    for (uint32_t rank = 0; rank < world.size; rank++)
        for (uint32_t peer = 0; peer < world.size; peer++)
            if (world.hosts[rank] != world.hosts[peer])
                bytes += world.sent_bytes[rank][peer];
    fake_world_fini(&world);
    return bytes / (test_count * sizeof(int32_t));
}

TEST(a_broadcast_crosses_once_where_a_tree_would_cross_more)
{
    char path[] = "/tmp/rdt-costs-XXXXXX";

    const int fd = mkstemp(path);
    CHECK(fd >= 0);
    (void)close(fd);
    use_table(path, 1500);
    test_count = 100000;
    CHECK_UINT_EQ(crossings("0101"), 1);
    CHECK_UINT_EQ(crossings("0011"), 1);
    CHECK_UINT_EQ(crossings("01010101"), 1);
    test_count = 4 << 20; /* by the tree, whose first ranks are on other hosts */
    CHECK_UINT_EQ(crossings("0101"), 2);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_COST_TABLE"), 0);
    (void)unlink(path);
}

/* ---- Bits ---- */

static float sums[FAKE_RANKS_MAX][4096];

static void *
average_floats(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    float *values = sums[group->rank];

    for (uint64_t i = 0; i < test_count; i++)
        values[i] = 1.0F / (float)(3 + i + 7 * (uint64_t)group->rank);
    args.dtype = RDT_F32;
    args.reduce_op = RDT_AVG;
    args.send = args.recv = values;
    run_op(group, &args);
    return NULL;
}

TEST(all_ranks_have_the_same_bits)
{
    fake_force("hierarchical");
    for (size_t l = 0; l < LAYOUTS; l++) {
        test_count = l % 2 == 0 ? 4096 : 5;
        world_init(layouts[l], l);
        fake_world_run(&world, average_floats);
        for (uint32_t rank = 1; rank < world.size; rank++)
            CHECK(memcmp(sums[rank], sums[0], test_count * sizeof(float)) == 0);
        for (uint64_t i = 0; i < test_count; i++) {
            double want = 0;
            for (uint32_t rank = 0; rank < world.size; rank++)
                want += (double)(1.0F / (float)(3 + i + 7 * (uint64_t)rank));
            want /= world.size;
            CHECK((double)sums[0][i] > want * (1 - 1e-6) && (double)sums[0][i] < want * (1 + 1e-6));
        }
        fake_world_fini(&world);
    }
}

/* ---- In flight together ---- */

enum { IN_FLIGHT = 6 };

/* More than one before the group knows its hosts, of which some go by way of them. */
static void *
start_many(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    rdt_transfer *t[IN_FLIGHT] = {NULL};
    int32_t *values[IN_FLIGHT];

    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        const bool is_gather = i % 3 == 1;
        struct rdt_coll_args args = args_of(is_gather ? RDT_COLL_REDUCE : RDT_COLL_ALLREDUCE);
        values[i] = fake_values(test_count, group->rank);
        args.send = args.recv = values[i];
        CHECK_OK(rdt_coll_post(group, &args, &t[i], &err), &err);
    }
    for (unsigned i = IN_FLIGHT; i-- > 0;)
        CHECK_OK(fake_wait(group, t[i], &err), &err);
    for (unsigned i = 0; i < IN_FLIGHT; i++) {
        if (i % 3 != 1 || group->rank == 0)
            check_sum(values[i], test_count);
        free(values[i]);
    }
    return NULL;
}

TEST_TIMEOUT(many_are_in_flight_before_the_hosts_are_known, 60)
{
    fake_force("auto");
    test_count = 5000;
    for (uint64_t seed = 0; seed < 3 * LAYOUTS; seed++) {
        world_init(layouts[seed % LAYOUTS], seed);
        fake_world_run(&world, start_many);
        CHECK_UINT_EQ(world.aborts, 0);
        fake_world_fini(&world);
    }
}

/* ---- Failures ---- */

static rdt_status ends[FAKE_RANKS_MAX];

static void *
sum_until_it_fails(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    struct rdt_error err = {0};
    int32_t *values = fake_values(test_count, group->rank);

    args.send = args.recv = values;
    for (int i = 0; i < 3 && ends[group->rank] == RDT_OK; i++) {
        ends[group->rank] = fake_run_coll(group, &args, &err);
        if (ends[group->rank] != RDT_OK)
            rdt_group_abort(group, err.message);
    }
    free(values);
    return NULL;
}

TEST_TIMEOUT(whatever_fails_all_members_hear_of_it, 120)
{
    static const enum fake_call calls[] = {FAKE_SEND, FAKE_RECV,  FAKE_DELIVERY, FAKE_CREATE,
                                           FAKE_TASK, FAKE_ALLOC, FAKE_HOLD,     FAKE_ENDPOINT};
    unsigned failures = 0;

    fake_force("hierarchical");
    test_count = 40000;
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++)
        for (unsigned at = 1; at < 60; at += 4 * TEST_TSAN_SHARE) {
            world_init("0011", at);
            memset(ends, 0, sizeof(ends));
            world.fail_at[calls[c]] = at;
            fake_world_run(&world, sum_until_it_fails);
            bool has_failed = false;
            for (uint32_t rank = 0; rank < world.size; rank++)
                has_failed |= ends[rank] != RDT_OK;
            /* A member without memory for a board is on a host of its own. */
            if (world.has_failed && calls[c] != FAKE_ALLOC)
                CHECK(has_failed);
            failures += has_failed ? 1 : 0;
            fake_world_fini(&world);
        }
    CHECK_UINT_LE(20 / TEST_TSAN_SHARE, failures);
}

static pthread_barrier_t summed;

static void *
differ(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    int32_t value = 1;

    (void)sum_twice(group);
    (void)pthread_barrier_wait(&summed); /* who differs breaks the group under who still sums */
    struct rdt_coll_args args = args_of(group->rank == 1 ? RDT_COLL_BROADCAST : RDT_COLL_ALLREDUCE);
    args.send = args.recv = &value;
    CHECK(fake_run_coll(group, &args, &err) != RDT_OK);
    return NULL;
}

TEST(ranks_of_a_host_that_disagree_are_told)
{
    fake_force("hierarchical");
    test_count = 1;
    world_init("0011", 1);
    CHECK_INT_EQ(pthread_barrier_init(&summed, NULL, world.size), 0);
    fake_world_run(&world, differ);
    (void)pthread_barrier_destroy(&summed);
    CHECK_STR_CONTAINS(world.broken.message, " called ");
    CHECK_STR_CONTAINS(world.broken.message, "broadcast of 1 int32 with root 0");
    fake_world_fini(&world);
}

TEST_MAIN()
