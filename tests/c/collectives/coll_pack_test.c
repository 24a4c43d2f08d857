/* SPDX-License-Identifier: Apache-2.0
 *
 * Small tensors that go as one: every algorithm, at 2, 3, 5 and 8 ranks, gives each of them the
 * bits that it gets alone, in fewer writes; ranks that cut differently learn it.
 */
#include "collectives/fake_group.h"

static struct fake_world world;
static unsigned test_label;

enum { PARTS = 16 };
/* Nothing, one, around a cache line and a vector, and what rings cut unevenly; together more than
 * what alone would go round a ring. */
static const uint64_t counts[PARTS] = {64,  0,  1,    63,   65,   64,   1000, 2,
                                       333, 17, 4096, 4095, 4000, 3999, 3700, 3501};

static const uint32_t sizes[] = {2, 3, 5, 8};
static const char *const algorithms[] = {"auto", "messages",         "direct",
                                         "ring", "halving-doubling", "tree"};
enum { SIZES = 4, ALGORITHMS = 6 };

/* The tensors of one rank, twice: to go together, and alone. */
struct tensors {
    uint8_t *send[PARTS];
    uint8_t *together[PARTS];
    uint8_t *alone[PARTS];
};

/* Blocks of a part in the input and in the output. */
static uint64_t
send_blocks(uint32_t op)
{
    return op == RDT_COLL_REDUCE_SCATTER ? world.size : 1;
}

static uint64_t
recv_blocks(uint32_t op)
{
    return op == RDT_COLL_ALLGATHER ? world.size : 1;
}

/* Numbers of very different size, so that the order of a sum shows in its bits. */
static void
fill(uint8_t *bytes, uint64_t count, uint32_t dtype, uint64_t *random)
{
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t number = fake_random(random);
        const float value = (float)(number % 2000003) * (number % 3 == 0 ? 1e-6F : 1e3F);
        if (dtype == RDT_F32) {
            memcpy(bytes + 4 * i, &value, 4);
        } else {
            uint8_t wide[4];
            memcpy(wide, &value, 4);
            memcpy(bytes + 2 * i, wide + 2, 2); /* the upper half is a bfloat16 */
        }
    }
}

static void
make_tensors(struct tensors *t, uint32_t op, uint32_t dtype, uint32_t rank)
{
    const uint64_t elem_bytes = rdt_dtype_bytes(dtype);
    uint64_t random = 77 + rank;

    for (int i = 0; i < PARTS; i++) {
        const uint64_t in = counts[i] * send_blocks(op);
        const uint64_t out_bytes = counts[i] * recv_blocks(op) * elem_bytes;
        /* Exact sizes, so that a sanitizer sees what is read or written next to them. */
        t->send[i] = malloc(in * elem_bytes + 1);
        t->together[i] = malloc(out_bytes + 1);
        t->alone[i] = malloc(out_bytes + 1);
        CHECK(t->send[i] != NULL && t->together[i] != NULL && t->alone[i] != NULL);
        fill(t->send[i], in, dtype, &random);
        t->together[i][out_bytes] = 0x5a;
    }
}

static void
free_tensors(const struct tensors *t)
{
    for (int i = 0; i < PARTS; i++) {
        free(t->send[i]);
        free(t->together[i]);
        free(t->alone[i]);
    }
}

static rdt_status
run_packed(rdt_group *group, const struct rdt_coll_args *args, const struct rdt_coll_part *parts,
           uint32_t part_count, struct rdt_error *err)
{
    rdt_transfer *t = NULL;
    const rdt_status status = rdt_coll_post_packed(group, args, parts, part_count, &t, err);

    return status == RDT_OK ? fake_wait(group, t, err) : status;
}

static struct rdt_coll_counters
counters_of(const rdt_group *group)
{
    struct rdt_coll_counters counters = {.struct_size = sizeof(counters)};

    rdt_group_coll_counters(group, &counters);
    return counters;
}

static void
compare(rdt_group *group, uint32_t op, uint32_t dtype, uint32_t reduce_op, uint32_t flags)
{
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = op,
                                 .dtype = dtype,
                                 .reduce_op = reduce_op,
                                 .flags = flags};
    struct rdt_coll_part parts[PARTS];
    struct rdt_error err = {0};
    struct tensors t;

    make_tensors(&t, op, dtype, group->rank);
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct rdt_coll_part){t.send[i], t.together[i], counts[i]};
    const struct rdt_coll_counters before = counters_of(group);
    CHECK_OK(run_packed(group, &args, parts, PARTS, &err), &err);
    const struct rdt_coll_counters between = counters_of(group);
    for (int i = 0; i < PARTS; i++) {
        args.send = t.send[i];
        args.recv = t.alone[i];
        args.count = counts[i];
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
    }
    const struct rdt_coll_counters after = counters_of(group);
    for (int i = 0; i < PARTS; i++) {
        const uint64_t out_bytes = counts[i] * recv_blocks(op) * rdt_dtype_bytes(dtype);
        if (memcmp(t.together[i], t.alone[i], out_bytes) != 0)
            FAIL("rank %u of %u: operation %u of %s, part %d differs", group->rank, world.size, op,
                 rdt_dtype_name(dtype), i);
        CHECK_UINT_EQ(t.together[i][out_bytes], 0x5a);
    }
    CHECK_UINT_EQ(between.calls - before.calls, 1);
    CHECK_UINT_EQ(between.packs - before.packs, 1);
    CHECK_UINT_EQ(between.packed_parts - before.packed_parts, PARTS);
    CHECK_UINT_EQ(after.calls - between.calls, PARTS);
    CHECK_UINT_EQ(after.packs, between.packs);
    CHECK_UINT_LE(3 * (between.writes - before.writes), after.writes - between.writes);
    free_tensors(&t);
}

static void *
run_comparisons(void *arg)
{
    compare(arg, RDT_COLL_ALLREDUCE, RDT_F32, RDT_SUM, 0);
    compare(arg, RDT_COLL_ALLREDUCE, RDT_BF16, RDT_AVG, RDT_COLL_SPIN);
    compare(arg, RDT_COLL_REDUCE_SCATTER, RDT_F32, RDT_SUM, RDT_COLL_SPIN);
    compare(arg, RDT_COLL_ALLGATHER, RDT_BF16, 0, 0);
    return NULL;
}

TEST_TIMEOUT(parts_have_the_bits_that_they_have_alone, 60)
{
    for (size_t a = 0; a < ALGORITHMS; a++)
        for (size_t s = 0; s < SIZES; s++) {
            fake_force(algorithms[a]);
            fake_world_init(&world, sizes[s], 7 * a + s);
            fake_world_run(&world, run_comparisons);
            CHECK_UINT_EQ(world.aborts, 0);
            fake_world_fini(&world);
        }
}

/* The comparison above must be able to fail: sums of a ring depend on where its chunks are. */
static void *
run_reordered(void *arg)
{
    enum { COUNT = 96 }; /* a chunk for each of three ranks */
    rdt_group *group = arg;
    float values[COUNT] = {0};
    struct rdt_error err = {0};
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_F32,
                                 .reduce_op = RDT_SUM,
                                 .count = COUNT,
                                 .send = values,
                                 .recv = values};
    static const float of_rank[] = {1e8F, 1.0F, -1e8F};

    for (int i = 0; i < COUNT; i++)
        values[i] = of_rank[group->rank];
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    CHECK(memcmp(&values[0], &values[COUNT / 3], sizeof(float)) != 0 ||
          memcmp(&values[0], &values[COUNT / 3 * 2], sizeof(float)) != 0);
    return NULL;
}

TEST(the_order_of_a_sum_shows_in_its_bits)
{
    fake_force("ring");
    fake_world_init(&world, 3, 1);
    fake_world_run(&world, run_reordered);
    fake_world_fini(&world);
}

static void *
run_nothing(void *arg)
{
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_F32,
                                 .reduce_op = RDT_SUM};
    const struct rdt_coll_part empty = {0};
    struct rdt_error err = {0};

    CHECK_OK(run_packed(arg, &args, NULL, 0, &err), &err);
    CHECK_OK(run_packed(arg, &args, &empty, 1, &err), &err);
    return NULL;
}

TEST(no_parts_and_a_group_of_one_are_legal)
{
    fake_force("auto");
    for (uint32_t size = 1; size <= 2; size++) {
        fake_world_init(&world, size, 1);
        fake_world_run(&world, run_nothing);
        CHECK_UINT_EQ(counters_of(&world.groups[0]).packs, size == 1 ? 0 : 2);
        fake_world_fini(&world);
    }
}

/* What goes into the pack, and out of it. */
static void *
run_counted(void *arg)
{
    rdt_group *group = arg;
    float values[8] = {0};
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_F32,
                                 .reduce_op = RDT_SUM};
    const struct rdt_coll_part parts[] = {{values, values, 3}, {values + 3, values + 3, 5}};
    struct rdt_error err = {0};

    CHECK_OK(run_packed(group, &args, parts, 2, &err), &err);
    CHECK_UINT_EQ(group->context.counted.copied_bytes, 2 * sizeof(values));
    return NULL;
}

TEST(copies_into_and_out_of_a_pack_are_counted)
{
    fake_force("messages");
    fake_world_init(&world, 2, 4);
    fake_world_run(&world, run_counted);
    fake_world_fini(&world);
}

/* The same number of elements in all, cut in two ways. */
static void *
run_cut_differently(void *arg)
{
    rdt_group *group = arg;
    float values[8] = {0};
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_F32,
                                 .reduce_op = RDT_SUM};
    const uint64_t first = group->rank == 0 ? 3 : 5;
    const struct rdt_coll_part parts[] = {{values, values, first},
                                          {values + first, values + first, 8 - first}};
    struct rdt_error err = {0};
    const rdt_status status = run_packed(group, &args, parts, 2, &err);

    CHECK(status == RDT_EMISMATCH || status == RDT_EPEER);
    for (int i = 0; i < 8; i++)
        CHECK(values[i] == 0);
    return NULL;
}

TEST(ranks_that_cut_differently_find_out)
{
    static const char *const ways[] = {"direct", "messages"};

    for (int way = 0; way < 2; way++) {
        fake_force(ways[way]);
        fake_world_init(&world, 2, 5);
        fake_world_run(&world, run_cut_differently);
        CHECK_UINT_LE(1, world.aborts);
        fake_world_fini(&world);
    }
}

static void *
run_labelled(void *arg)
{
    rdt_group *group = arg;
    float value = 1;
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_F32,
                                       .reduce_op = RDT_SUM,
                                       .flags = RDT_COLL_LABEL(group->rank == 0 ? 3 : test_label),
                                       .count = 1,
                                       .send = &value,
                                       .recv = &value};
    struct rdt_error err = {0};
    const rdt_status status = fake_run_coll(group, &args, &err);

    if (test_label == 3) {
        CHECK_OK(status, &err);
        CHECK(value == 2);
    } else {
        CHECK(status == RDT_EMISMATCH || status == RDT_EPEER);
        CHECK(value == 1);
    }
    return NULL;
}

TEST(sums_with_different_labels_never_meet)
{
    static const char *const ways[] = {"direct", "messages"};

    for (int way = 0; way < 2; way++)
        for (test_label = 3; test_label < 5; test_label++) {
            fake_force(ways[way]);
            fake_world_init(&world, 2, 5);
            fake_world_run(&world, run_labelled);
            CHECK((world.aborts > 0) == (test_label != 3));
            fake_world_fini(&world);
        }
}

TEST(only_sums_for_all_have_labels)
{
    float value = 1;
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_BROADCAST,
                                 .dtype = RDT_F32,
                                 .flags = RDT_COLL_LABEL(1),
                                 .count = 1,
                                 .recv = &value};
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    fake_force("auto");
    fake_world_init(&world, 2, 1);
    CHECK_STATUS(rdt_coll_post(&world.groups[0], &args, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "broadcast has a label");
    args.op = RDT_COLL_ALLREDUCE;
    args.flags = RDT_COLL_LABEL(0x8000);
    CHECK_STATUS(rdt_coll_post(&world.groups[0], &args, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "label 32768");
    fake_world_fini(&world);
}

TEST(what_cannot_be_packed_is_refused)
{
    float values[4] = {1, 2, 3, 4};
    struct rdt_coll_part part = {values, values, 4};
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_BROADCAST,
                                 .dtype = RDT_F32,
                                 .reduce_op = RDT_SUM};
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    fake_force("auto");
    fake_world_init(&world, 2, 1);
    rdt_group *group = &world.groups[0];
    CHECK_STATUS(rdt_coll_post_packed(group, &args, &part, 1, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "broadcast does not go in parts");
    args.op = RDT_COLL_ALLREDUCE;
    part.count = RDT_COLL_PART_MAX_BYTES / sizeof(float) + 1;
    CHECK_STATUS(rdt_coll_post_packed(group, &args, &part, 1, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "part 0 has 4097 elements of float32, more than 16384 bytes");
    part.count = 4;
    part.recv = NULL;
    CHECK_STATUS(rdt_coll_post_packed(group, &args, &part, 1, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "recv of part 0 is NULL");
    CHECK_STATUS(rdt_coll_post_packed(group, &args, NULL, 1, &t, &err), RDT_EINVAL);
    CHECK_UINT_EQ(group->sequence, 0);
    CHECK_UINT_EQ(counters_of(group).calls, 0);
    fake_world_fini(&world);
}

TEST_MAIN()
