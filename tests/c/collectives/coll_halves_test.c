/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums and averages of f16 and bf16, by every algorithm, against the exact ones in double: how
 * often each may round, that no sum inside an average overflows, and the same bits on all ranks.
 */
#include "collectives/fake_group.h"

#include <math.h>

#include "collectives/reduce/half.h"

static struct fake_world world;
static pthread_barrier_t meeting;
static const uint8_t *outputs[FAKE_RANKS_MAX];

/* How the values of one test are made, and how often what a rank gets may have been rounded. */
static struct {
    uint32_t dtype;
    uint32_t reduce_op;
    uint64_t count;
    enum { MIXED, LARGE, TINY } values; /* LARGE: the sum is out of range; TINY: a part of one is */
    uint32_t partial_roundings;
} test;

static const char *const hosts_of[] = {"001", "0011", "01122", "00012", "001122", "00112233"};

static double
value_of_half(uint16_t half)
{
    return (double)(test.dtype == RDT_F16 ? f16_to_f32(half) : bf16_to_f32(half));
}

static uint16_t
half_of_value(float value)
{
    return test.dtype == RDT_F16 ? f32_to_f16(value) : f32_to_bf16(value);
}

/* Of many magnitudes and both signs, so that much cancels; or large ones of one sign, by whose
 * side a few are small. */
static uint16_t
input(uint32_t rank, uint64_t i)
{
    uint64_t state = (i << 8) + rank;
    const uint64_t random = fake_random(&state) ^ fake_random(&state) << 20;
    const double unit = 1.0 + (double)(random % 1024) / 1024.0;
    const bool is_f16 = test.dtype == RDT_F16;

    if (test.values == TINY)
        return half_of_value((float)((double)(1 + random % 3) * (is_f16 ? 0x1p-24 : 0x1p-133)));
    if (test.values == LARGE)
        return half_of_value((float)(unit * (is_f16 ? 0x1.fp14 : 0x1p124)));
    const int exponent = (int)(random >> 10 & 15) - (is_f16 ? 13 : 8);
    const double value = ldexp(unit, exponent);
    return half_of_value((float)((random >> 14 & 1) != 0 ? -value : value));
}

/* The distance of neighbouring halves around a value. */
static double
spacing(double value)
{
    const int digits = test.dtype == RDT_F16 ? 10 : 7;
    const int least = test.dtype == RDT_F16 ? -14 : -126;
    const int exponent = value == 0.0 ? least : ilogb(value);

    return ldexp(1.0, (exponent > least ? exponent : least) - digits);
}

static void
check_result(const char *what, const uint16_t *got, uint64_t first)
{
    const double divisor = test.reduce_op == RDT_AVG ? world.size : 1.0;

    /* Of long ones each value is looked at in one of the blocks that are computed alike. */
    const uint64_t stride = test.count > 8192 ? 37 : 1;

    for (uint64_t i = 0; i < test.count; i += stride) {
        double exact = 0.0;
        double sizes = 0.0;
        for (uint32_t rank = 0; rank < world.size; rank++) {
            exact += value_of_half(input(rank, first + i));
            sizes += fabs(value_of_half(input(rank, first + i)));
        }
        exact /= divisor;
        sizes /= divisor;
        /* One rounding to a half, those of the sum in float, and those of partial results. */
        const double allowed = spacing(exact) * 0.5 * (1 + 1e-6) + world.size * 0x1p-24 * sizes +
                               test.partial_roundings * spacing(sizes) * 0.5;
        const double value = value_of_half(got[i]);
        CHECK_MSG(fabs(value - exact) <= allowed,
                  "%s of %u ranks, dtype %u, op %u, count %llu: [%llu] is %a, exactly %a", what,
                  world.size, test.dtype, test.reduce_op, (unsigned long long)test.count,
                  (unsigned long long)i, value, exact);
    }
}

static void
fill(uint16_t *out, uint32_t rank, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        out[i] = input(rank, i);
}

static void
check_same_bits(uint32_t rank, const void *result)
{
    outputs[rank] = result;
    (void)pthread_barrier_wait(&meeting);
    CHECK_MEM_EQ(result, outputs[(rank + 1) % world.size], test.count * sizeof(uint16_t));
    (void)pthread_barrier_wait(&meeting);
}

static void
run(rdt_group *group, const struct rdt_coll_args *args)
{
    struct rdt_error err = {0};

    CHECK_OK(fake_run_coll(group, args, &err), &err);
}

/* The memory is of the arena, so that large tensors are summed where they lie. */
static void
sum_halves(rdt_group *group)
{
    const uint32_t rank = group->rank;
    const uint64_t all = test.count * world.size;
    struct rdt_error err = {0};
    rdt_region *region = NULL;
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .dtype = test.dtype,
                                 .reduce_op = test.reduce_op,
                                 .count = test.count};

    CHECK_OK(rdt_region_alloc(&group->context, (all + 1) * sizeof(uint16_t), 0, &region, &err),
             &err);
    uint16_t *send = rdt_region_addr(region);
    uint16_t *recv = malloc((all + 1) * sizeof(*recv));
    CHECK_NOT_NULL(recv);
    for (int is_in_place = 0; is_in_place < 2; is_in_place++) {
        args.op = RDT_COLL_ALLREDUCE;
        fill(send, rank, test.count);
        args.send = send;
        args.recv = is_in_place ? send : recv;
        run(group, &args);
        check_result("all_reduce", args.recv, 0);
        check_same_bits(rank, args.recv);

        args.op = RDT_COLL_REDUCE;
        args.root = world.size - 1;
        fill(send, rank, test.count);
        run(group, &args);
        if (rank == args.root)
            check_result("reduce", args.recv, 0);

        args.op = RDT_COLL_REDUCE_SCATTER;
        args.root = 0;
        fill(send, rank, all);
        args.recv = is_in_place ? send + rank * test.count : recv;
        run(group, &args);
        check_result("reduce_scatter", args.recv, rank * test.count);
    }
    (void)pthread_barrier_wait(&meeting); /* nobody is at work in the region any more */
    rdt_region_free(region, NULL, NULL);
    free(recv);
}

/* In one world: a line, one piece, several blocks of a kernel; and, of a few ranks, what is summed
 * where it lies. Averages of values near the largest and the least, too. */
static void *
sum_all_kinds(void *arg)
{
    static const uint64_t counts[] = {3, 37, 5003, 140003};
    rdt_group *group = arg;

    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
        for (int values = MIXED; values <= (test.reduce_op == RDT_AVG ? TINY : MIXED); values++) {
            if (counts[c] > 100000 && world.size > 3)
                continue;
            (void)pthread_barrier_wait(&meeting);
            if (group->rank == 0) {
                test.count = counts[c];
                test.values = values;
            }
            (void)pthread_barrier_wait(&meeting);
            sum_halves(group);
        }
    return NULL;
}

static void
run_world(uint32_t size, const char *hosts, const char *way)
{
    fake_force(way);
    fake_world_init(&world, size, size);
    for (uint32_t rank = 0; hosts != NULL && rank < size; rank++)
        world.hosts[rank] = (uint32_t)(hosts[rank] - '0');
    CHECK_INT_EQ(pthread_barrier_init(&meeting, NULL, size), 0);
    fake_world_run(&world, sum_all_kinds);
    CHECK_INT_EQ(pthread_barrier_destroy(&meeting), 0);
    CHECK_UINT_EQ(world.aborts, 0);
    fake_world_fini(&world);
}

/* With partial sums, which are rounded on their way, a sum is; an average has none. */
static void
try_way(const char *way, bool has_partial_sums)
{
    static const uint32_t sizes[] = {2, 3, 5, 8};

    for (int kind = 0; kind < 4; kind++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            test.dtype = kind % 2 == 0 ? RDT_F16 : RDT_BF16;
            test.reduce_op = kind / 2 == 0 ? RDT_AVG : RDT_SUM;
            test.partial_roundings =
                has_partial_sums && test.reduce_op == RDT_SUM ? sizes[s] - 2 : 0;
            run_world(sizes[s], NULL, way);
        }
}

TEST_TIMEOUT(boards_round_once, 60)
{
    try_way("auto", false);
}

TEST_TIMEOUT(messages_round_averages_once, 60)
{
    try_way("messages", true);
}

TEST_TIMEOUT(messages_without_detours_round_averages_once, 60)
{
    try_way("direct", true);
}

TEST_TIMEOUT(a_ring_rounds_averages_once, 60)
{
    try_way("ring", true);
}

TEST_TIMEOUT(halving_rounds_averages_once, 60)
{
    try_way("halving-doubling", true);
}

TEST_TIMEOUT(a_tree_rounds_averages_once, 60)
{
    try_way("tree", true);
}

TEST_TIMEOUT(in_rank_order_all_round_once, 60)
{
    CHECK_INT_EQ(setenv("RDMATENSOR_DETERMINISTIC", "1", 1), 0);
    try_way("messages", false);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_DETERMINISTIC"), 0);
}

/* By way of hosts the part of each host is rounded, too, and must be in range on its way. */
TEST_TIMEOUT(by_way_of_hosts_no_average_overflows, 60)
{
    static const char *const ways[] = {"hierarchical", "auto", "ring"};

    for (int kind = 0; kind < 4; kind++)
        for (size_t h = 0; h < sizeof(hosts_of) / sizeof(hosts_of[0]); h++)
            for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
                const uint32_t size = (uint32_t)strlen(hosts_of[h]);
                test.dtype = kind % 2 == 0 ? RDT_F16 : RDT_BF16;
                test.reduce_op = kind / 2 == 0 ? RDT_AVG : RDT_SUM;
                /* Averages of f16 have inputs alone. */
                test.partial_roundings =
                    test.dtype == RDT_F16 && test.reduce_op == RDT_AVG ? 0 : size;
                run_world(size, hosts_of[h], ways[w]);
            }
}

TEST_MAIN()
