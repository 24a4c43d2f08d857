/* SPDX-License-Identifier: Apache-2.0
 *
 * Every algorithm that RDMATENSOR_ALGO can force, at 2, 3, 5 and 8 ranks; what a ring sends to
 * whom; and collectives over memory that the ranks share, in as many ticks as large ones take.
 */
#include "collectives/fake_group.h"

#include "collectives/team/team.h"

static struct fake_world world;
static uint64_t test_count;
static uint32_t test_flags;

static int32_t *
new_values(uint64_t count)
{
    int32_t *values = malloc((count + 1) * sizeof(*values));

    CHECK_NOT_NULL(values);
    values[count] = 77; /* nobody writes past the end */
    return values;
}

static struct rdt_coll_args
args_of(uint32_t op)
{
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = op,
                                  .dtype = RDT_I32,
                                  .reduce_op = RDT_SUM,
                                  .flags = test_flags,
                                  .count = test_count};
}

static void
check_all_reduce(rdt_group *group, bool is_in_place)
{
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    struct rdt_error err = {0};
    int32_t *send = new_values(test_count);
    int32_t *recv = new_values(test_count);

    for (uint64_t i = 0; i < test_count; i++)
        send[i] = fake_value(group->rank, i);
    args.send = send;
    args.recv = is_in_place ? send : recv;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    const int32_t *got = args.recv;
    for (uint64_t i = 0; i < test_count; i++)
        if (got[i] != fake_sum(world.size, i))
            FAIL("rank %u of %u: [%llu] is %d, not %d", group->rank, world.size,
                 (unsigned long long)i, got[i], fake_sum(world.size, i));
    CHECK_INT_EQ(got[test_count], 77);
    free(send);
    free(recv);
}

static void *
run_all_reduce(void *arg)
{
    check_all_reduce(arg, true);
    check_all_reduce(arg, false);
    return NULL;
}

static const char *const algorithms[] = {"auto", "messages",         "direct",
                                         "ring", "halving-doubling", "tree"};
static const uint32_t sizes[] = {2, 3, 5, 8};
enum { ALGORITHMS = 6, SIZES = 4 };

TEST_TIMEOUT(every_algorithm_sums_at_2_3_5_and_8_ranks, 60)
{
    static const uint64_t counts[] = {0, 1, 5, 6, 7, 1000, 70001};

    for (size_t a = 0; a < ALGORITHMS; a++)
        for (size_t s = 0; s < SIZES; s++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                test_count = counts[c];
                fake_force(algorithms[a]);
                fake_world_init(&world, sizes[s], 11 * a + s);
                fake_world_run(&world, run_all_reduce);
                CHECK_UINT_EQ(world.aborts, 0);
                fake_world_fini(&world);
            }
}

/* Each rank sends 2 (n - 1) / n of the bytes, up to a cache line for each chunk, and all of it to
 * the one after. */
TEST(a_ring_sends_the_least_and_to_neighbours_only)
{
    test_count = 70001;
    fake_force("ring");
    for (size_t s = 0; s < SIZES; s++) {
        const uint32_t size = sizes[s];
        const uint64_t total_bytes = 2 * test_count * sizeof(int32_t); /* two calls */
        fake_world_init(&world, size, 3);
        fake_world_run(&world, run_all_reduce);
        for (uint32_t rank = 0; rank < size; rank++) {
            for (uint32_t peer = 0; peer < size; peer++)
                if (peer != (rank + 1) % size)
                    CHECK_UINT_EQ(world.sent_bytes[rank][peer], 0);
            const uint64_t want_bytes = 2 * (size - 1) * total_bytes / size;
            const uint64_t sent_bytes = world.sent_bytes[rank][(rank + 1) % size];
            const uint64_t slack_bytes = UINT64_C(4) * size * size * 64;
            CHECK_UINT_LE(sent_bytes, want_bytes + slack_bytes);
            CHECK_UINT_LE(want_bytes, sent_bytes + slack_bytes);
        }
        fake_world_fini(&world);
    }
}

TEST(an_algorithm_that_does_not_exist_is_refused_by_name)
{
    int32_t value = 1;
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    test_count = 1;
    fake_force("rings");
    fake_world_init(&world, 2, 1);
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    args.send = args.recv = &value;
    CHECK_STATUS(rdt_coll_post(&world.groups[0], &args, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "RDMATENSOR_ALGO is 'rings'; want auto, ");
    CHECK_UINT_EQ(world.groups[0].sequence, 0);
    fake_world_fini(&world);
}

/* ---- Shared memory: every operation, in many ticks ---- */

static void
check_moves(rdt_group *group)
{
    const uint64_t n = test_count;
    const uint32_t rank = group->rank;
    const uint32_t root = world.size - 1;
    struct rdt_error err = {0};
    int32_t *one = new_values(n);
    int32_t *all = new_values(n * world.size);
    struct rdt_coll_args args = args_of(RDT_COLL_BROADCAST);

    for (uint64_t i = 0; i < n; i++)
        one[i] = fake_value(rank, i);
    args.root = root;
    args.recv = one;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT_EQ(one[i], fake_value(root, i));

    for (uint64_t i = 0; i < n; i++)
        one[i] = fake_value(rank, i);
    args = args_of(RDT_COLL_ALLGATHER);
    args.send = one;
    args.recv = all;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < n * world.size; i++)
        CHECK_INT_EQ(all[i], fake_value((uint32_t)(i / n), i % n));

    args.op = RDT_COLL_GATHER;
    args.root = root;
    memset(all, 0, n * world.size * sizeof(*all));
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < n * world.size; i++)
        CHECK_INT_EQ(all[i], rank == root ? fake_value((uint32_t)(i / n), i % n) : 0);

    for (uint64_t i = 0; i < n * world.size; i++)
        all[i] = fake_value(rank, i);
    args.op = RDT_COLL_SCATTER;
    args.send = all;
    args.recv = one;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT_EQ(one[i], fake_value(root, rank * n + i));
    CHECK_INT_EQ(one[n], 77);
    CHECK_INT_EQ(all[n * world.size], 77);
    free(one);
    free(all);
}

static void
check_sums(rdt_group *group)
{
    const uint64_t n = test_count;
    const uint32_t rank = group->rank;
    struct rdt_error err = {0};
    int32_t *one = new_values(n);
    int32_t *all = new_values(n * world.size);
    struct rdt_coll_args args = args_of(RDT_COLL_REDUCE_SCATTER);

    for (uint64_t i = 0; i < n * world.size; i++)
        all[i] = fake_value(rank, i);
    args.send = all;
    args.recv = all + rank * n; /* its own block, as the header allows */
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT_EQ(all[rank * n + i], fake_sum(world.size, rank * n + i));

    for (uint64_t i = 0; i < n; i++)
        one[i] = fake_value(rank, i);
    args = args_of(RDT_COLL_REDUCE);
    args.send = args.recv = one;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint64_t i = 0; i < n; i++)
        CHECK_INT_EQ(one[i], rank == 0 ? fake_sum(world.size, i) : fake_value(rank, i));
    free(one);
    free(all);
}

/* Rank r sends (r + 1) * (p + 2) * n / 16 elements to p: the ranks need different numbers of
 * ticks. */
static uint64_t
exchanged(uint32_t from, uint32_t to)
{
    return (from + 1) * (to + 2) * test_count / 16;
}

static void
check_exchange(rdt_group *group)
{
    uint64_t send_counts[FAKE_RANKS_MAX], recv_counts[FAKE_RANKS_MAX];
    uint64_t send_offs[FAKE_RANKS_MAX], recv_offs[FAKE_RANKS_MAX];
    uint64_t sent = 0;
    uint64_t received = 0;
    struct rdt_error err = {0};
    struct rdt_coll_args args = args_of(RDT_COLL_ALLTOALL);

    for (uint32_t i = 0; i < world.size; i++) {
        send_counts[i] = exchanged(group->rank, i);
        recv_counts[i] = exchanged(i, group->rank);
        send_offs[i] = sent;
        recv_offs[i] = received;
        sent += send_counts[i];
        received += recv_counts[i];
    }
    int32_t *send = new_values(sent);
    int32_t *recv = new_values(received);
    for (uint64_t i = 0; i < sent; i++)
        send[i] = fake_value(group->rank, i);
    args.count = 0;
    args.send = send;
    args.recv = recv;
    args.send_counts = send_counts;
    args.send_offs = send_offs;
    args.recv_counts = recv_counts;
    args.recv_offs = recv_offs;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (uint32_t from = 0; from < world.size; from++) {
        uint64_t before = 0;
        for (uint32_t i = 0; i < group->rank; i++)
            before += exchanged(from, i);
        for (uint64_t i = 0; i < recv_counts[from]; i++)
            CHECK_INT_EQ(recv[recv_offs[from] + i], fake_value(from, before + i));
    }
    CHECK_INT_EQ(recv[received], 77);
    free(send);
    free(recv);
}

static void *
run_everything(void *arg)
{
    run_all_reduce(arg);
    check_moves(arg);
    check_sums(arg);
    check_exchange(arg);
    return NULL;
}

TEST_TIMEOUT(large_tensors_take_several_ticks, 120)
{
    fake_force("direct");
    for (size_t s = 0; s < SIZES; s += TEST_TSAN_SHARE) /* the smallest and the largest */
        for (int waits = 0; waits < 3; waits++) {       /* sleeping, spinning, yielding */
            test_count = 3 * RDTI_STAGE_BYTES / sizeof(int32_t) / (s + 1) + 17;
            test_flags = waits == 0 ? 0 : RDT_COLL_SPIN;
            fake_world_init(&world, sizes[s], s);
            world.spin_ns = waits == 1 ? 1000000 : 0;
            world.yield_ns = waits == 2 ? 1000000 : 0;
            fake_world_run(&world, run_everything);
            CHECK_UINT_EQ(world.aborts, 0);
            fake_world_fini(&world);
        }
    test_flags = 0;
}

/* ---- Tensors that were allocated in the arena ---- */

static uint32_t private_rank; /* its tensor was not; world.size: all were */
static bool may_fail;

static void *
sum_born_tensors(void *arg)
{
    enum { OFF_ELEMS = 24 };
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    struct rdt_error err = {0};
    rdt_region *region = NULL;
    int32_t *values = NULL;

    if (group->rank == private_rank)
        values = calloc(test_count + 2 * OFF_ELEMS, sizeof(*values));
    else
        CHECK_OK(rdt_region_alloc(&group->context, (test_count + 2 * OFF_ELEMS) * sizeof(*values),
                                  RDT_REGION_ZERO, &region, &err),
                 &err);
    int32_t *tensor = (region != NULL ? (int32_t *)rdt_region_addr(region) : values) + OFF_ELEMS;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < test_count; i++)
            tensor[i] = fake_value(group->rank, i) + round;
        args.send = args.recv = tensor;
        const rdt_status status = fake_run_coll(group, &args, &err);
        if (may_fail && status != RDT_OK)
            break;
        CHECK_OK(status, &err);
        for (uint64_t i = 0; i < test_count; i++)
            CHECK_INT_EQ(tensor[i], fake_sum(world.size, i) + round * (int32_t)world.size);
        CHECK_INT_EQ(tensor[-1], 0);
        CHECK_INT_EQ(tensor[test_count], 0);
    }
    rdt_region_free(region, NULL, NULL);
    free(values);
    return NULL;
}

TEST_TIMEOUT(tensors_born_in_the_arena_are_summed_in_place, 60)
{
    static const uint64_t counts[] = {65536, 65537, 200003, 1000000};

    fake_force("direct");
    for (size_t s = 0; s < SIZES; s += TEST_TSAN_SHARE)
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c += TEST_TSAN_SHARE)
            for (int is_mixed = 0; is_mixed < 2; is_mixed++) {
                test_count = counts[c];
                private_rank = is_mixed != 0 ? sizes[s] / 2 : sizes[s];
                fake_world_init(&world, sizes[s], s);
                fake_world_run(&world, sum_born_tensors);
                CHECK_UINT_EQ(world.aborts, 0);
                /* Where all of them were born there, nobody copies. */
                const struct rdti_team *team = world.groups[0].attached;
                CHECK(rdti_team_passes_ns(team, RDTI_PASS_SUM) > 0);
                CHECK((rdti_team_passes_ns(team, RDTI_PASS_COPY) > 0) == (private_rank < sizes[s]));
                fake_world_fini(&world);
            }
}

enum { TENSORS = 300, FEW = 5, TENSOR_ELEMS = 65536 };

/* Many tensors of one region, then a few again and again, then one that was born again. */
static void *
sum_many_tensors(void *arg)
{
    rdt_group *group = arg;
    const struct rdt_counters *counted = &group->context.counted;
    struct rdt_coll_args args = args_of(RDT_COLL_ALLREDUCE);
    struct rdt_error err = {0};
    rdt_region *region = NULL;

    args.count = TENSOR_ELEMS;
    for (uint32_t round = 0; round < 4; round++) {
        const uint32_t count = round == 0 ? TENSORS : FEW;
        const uint64_t elems = TENSOR_ELEMS + TENSORS;
        const uint64_t before = counted->control_messages;
        if (round == 0 || round == 3) {
            rdt_region_free(region, NULL, NULL);
            CHECK_OK(rdt_region_alloc(&group->context, elems * sizeof(int32_t), RDT_REGION_ZERO,
                                      &region, &err),
                     &err);
        }
        for (uint32_t i = 0; i < count; i++) {
            int32_t *tensor = (int32_t *)rdt_region_addr(region) + i;
            tensor[0] = 1;
            args.send = args.recv = tensor;
            CHECK_OK(fake_run_coll(group, &args, &err), &err);
            CHECK_INT_EQ(tensor[0], (int32_t)world.size);
        }
        /* The first ones are forgotten when the table is full, and told once more. */
        CHECK_UINT_EQ(counted->control_messages - before, round == 2 ? 0 : count);
    }
    CHECK_UINT_EQ(counted->copied_bytes, 0);
    CHECK_UINT_EQ(counted->credits_alone, TENSORS + 3 * FEW);
    CHECK_UINT_EQ(counted->writes, (world.size - 1) * counted->credits_alone);
    rdt_region_free(region, NULL, NULL);
    return NULL;
}

TEST_TIMEOUT(places_are_told_once, 60)
{
    fake_force("direct");
    for (uint32_t size = 2; size <= 3; size++) {
        fake_world_init(&world, size, size);
        fake_world_run(&world, sum_many_tensors);
        CHECK_UINT_EQ(world.aborts, 0);
        fake_world_fini(&world);
    }
}

/* Of the rank that fails and of the others nobody writes a tensor that was given back: ASan would
 * see it. */
TEST_TIMEOUT(tensors_that_cannot_be_held_end_it_everywhere, 60)
{
    fake_force("direct");
    test_count = 200003;
    may_fail = true;
    for (unsigned n = 1; n <= 12; n++) {
        private_rank = 3;
        fake_world_init(&world, 3, n);
        world.fail_at[FAKE_HOLD] = 12 + n; /* past the boards */
        fake_world_run(&world, sum_born_tensors);
        CHECK(world.has_failed && world.aborts > 0);
        fake_world_fini(&world);
    }
    may_fail = false;
}

/* ---- Where ranks share no memory, or cannot ---- */

TEST(ranks_that_share_no_memory_send_messages)
{
    test_count = 500;
    fake_force("auto");
    for (size_t s = 0; s < SIZES; s++) {
        fake_world_init(&world, sizes[s], s);
        world.is_apart = true;
        fake_world_run(&world, run_everything);
        CHECK_UINT_EQ(world.aborts, 0);
        CHECK_UINT_LE(test_count * sizeof(int32_t), world.sent_bytes[0][1]);
        fake_world_fini(&world);
    }
}

TEST(a_rank_without_memory_for_a_board_has_all_send_messages)
{
    test_count = 500;
    fake_force("auto");
    for (unsigned n = 1; n <= 3; n++) {
        fake_world_init(&world, 3, n);
        world.fail_at[FAKE_ALLOC] = n;
        fake_world_run(&world, run_everything);
        CHECK(world.has_failed);
        CHECK_UINT_EQ(world.aborts, 0);
        CHECK_UINT_LE(test_count * sizeof(int32_t), world.sent_bytes[0][1]);
        fake_world_fini(&world);
    }
}

/* ---- A rank that is done leaves; what it stored stays ---- */

static void *
run_and_leave(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args args = args_of(RDT_COLL_BARRIER);
    struct rdt_error err = {0};
    int32_t *values = new_values(test_count);

    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    args = args_of(RDT_COLL_BROADCAST);
    args.recv = values;
    for (uint64_t i = 0; i < test_count; i++)
        values[i] = group->rank == 0 ? fake_value(0, i) : -1;
    if (group->rank > 0)
        test_sleep_ns(5000000 * group->rank);
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    group->detach(group->attached);
    group->attached = NULL;
    for (uint64_t i = 0; i < test_count; i++)
        CHECK_INT_EQ(values[i], fake_value(0, i));
    free(values);
    return NULL;
}

TEST(what_a_rank_stored_stays_when_it_leaves)
{
    test_count = 5000;
    fake_force("direct");
    for (size_t s = 0; s < SIZES; s++) {
        fake_world_init(&world, sizes[s], s);
        fake_world_run(&world, run_and_leave);
        fake_world_fini(&world);
    }
}

TEST_MAIN()
