/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that only move data, over the fake group, against the definition of where each byte
 * must come from; and the arguments that are refused.
 */
#include <stdatomic.h>

#include "collectives/fake_group.h"

static const uint64_t counts[] = {0, 1, 37, 5000};
enum { COUNT_CASES = sizeof(counts) / sizeof(counts[0]) };

static const struct {
    uint32_t dtype;
    uint32_t bytes;
} dtypes[] = {{RDT_U8, 1}, {RDT_BF16, 2}, {RDT_F32, 4}, {RDT_C128, 16}};
enum { DTYPE_CASES = sizeof(dtypes) / sizeof(dtypes[0]) };

static struct fake_world world;

/* Byte i of what rank `from` has for rank `to` in collective number `serial`. */
static uint8_t
byte_of(uint32_t from, uint32_t to, unsigned serial, uint64_t i)
{
    return (uint8_t)(from * 31 + to * 17 + serial * 7 + i * 5 + i / 256);
}

static void
fill(void *out, uint32_t from, uint32_t to, unsigned serial, uint64_t len_bytes)
{
    for (uint64_t i = 0; i < len_bytes; i++)
        ((uint8_t *)out)[i] = byte_of(from, to, serial, i);
}

static void
check(const void *got, uint32_t from, uint32_t to, unsigned serial, uint64_t len_bytes,
      const char *what)
{
    for (uint64_t i = 0; i < len_bytes; i++)
        CHECK_MSG(((const uint8_t *)got)[i] == byte_of(from, to, serial, i),
                  "%s of %u ranks: block %u to %u, byte %llu of %llu", what, world.size, from, to,
                  (unsigned long long)i, (unsigned long long)len_bytes);
}

struct bench {
    rdt_group *group;
    struct rdt_coll_args args;
    uint32_t rank;
    uint64_t block_bytes;
    unsigned serial;
    uint8_t *many;                /* size blocks */
    uint8_t *other;               /* size blocks */
    void *blocks[FAKE_RANKS_MAX]; /* into `other`, last first */
};

static void
run(struct bench *b, uint32_t op)
{
    struct rdt_error err = {0};

    b->args.op = op;
    CHECK_OK(fake_run_coll(b->group, &b->args, &err), &err);
}

static void
check_broadcast(struct bench *b)
{
    b->args.recv = b->many;
    fill(b->many, b->rank, 0, b->serial, b->block_bytes);
    run(b, RDT_COLL_BROADCAST);
    check(b->many, b->args.root, 0, b->serial, b->block_bytes, "broadcast");
}

/* Flat, in place, and with blocks apart. */
static void
check_all_gather(struct bench *b, unsigned form)
{
    uint8_t *own = b->many + b->rank * b->block_bytes;

    fill(form == 1 ? own : b->other, b->rank, 9, b->serial, b->block_bytes);
    b->args.send = form == 1 ? own : b->other;
    b->args.recv = form == 2 ? NULL : b->many;
    if (form == 2) {
        fill(own, b->rank, 9, b->serial, b->block_bytes);
        b->args.send = own;
        b->args.blocks = b->blocks;
    }
    run(b, RDT_COLL_ALLGATHER);
    for (uint32_t i = 0; i < world.size; i++)
        check(form == 2 ? b->blocks[i] : b->many + i * b->block_bytes, i, 9, b->serial,
              b->block_bytes, "all_gather");
    b->args.blocks = NULL;
}

static void
check_gather(struct bench *b, unsigned form)
{
    const bool is_root = b->rank == b->args.root;
    uint8_t *own = b->other + b->rank * b->block_bytes;

    if (form == 2 && is_root)
        own = b->many;
    fill(own, b->rank, 8, b->serial, b->block_bytes);
    b->args.send = own;
    b->args.recv = is_root && form != 2 ? b->many : NULL;
    if (form == 1 && is_root) { /* in place */
        fill(b->many + b->rank * b->block_bytes, b->rank, 8, b->serial, b->block_bytes);
        b->args.send = b->many + b->rank * b->block_bytes;
    }
    b->args.blocks = form == 2 ? b->blocks : NULL;
    run(b, RDT_COLL_GATHER);
    b->args.blocks = NULL;
    for (uint32_t i = 0; i < world.size && is_root; i++)
        check(form == 2 ? b->blocks[i] : b->many + i * b->block_bytes, i, 8, b->serial,
              b->block_bytes, "gather");
}

static void
check_scatter(struct bench *b, unsigned form)
{
    const bool is_root = b->rank == b->args.root;

    for (uint32_t i = 0; i < world.size && is_root; i++)
        fill(form == 2 ? b->blocks[i] : b->other + i * b->block_bytes, b->rank, i, b->serial,
             b->block_bytes);
    b->args.send = is_root && form != 2 ? b->other : NULL;
    b->args.blocks = is_root && form == 2 ? b->blocks : NULL;
    b->args.recv = form == 1 && is_root ? b->other + b->rank * b->block_bytes : b->many;
    run(b, RDT_COLL_SCATTER);
    b->args.blocks = NULL;
    check(b->args.recv, b->args.root, b->rank, b->serial, b->block_bytes, "scatter");
}

static void
check_all_to_all(struct bench *b, unsigned form)
{
    void *sources[FAKE_RANKS_MAX];

    for (uint32_t i = 0; i < world.size; i++) {
        sources[i] = b->many + i * b->block_bytes;
        fill(sources[i], b->rank, i, b->serial, b->block_bytes);
    }
    b->args.send = form == 2 ? NULL : b->many;
    b->args.send_blocks = form == 2 ? sources : NULL;
    b->args.recv = form == 0 ? b->other : NULL;
    b->args.blocks = form == 0 ? NULL : b->blocks;
    run(b, RDT_COLL_ALLTOALL);
    for (uint32_t i = 0; i < world.size; i++)
        check(form == 0 ? b->other + i * b->block_bytes : b->blocks[i], i, b->rank, b->serial,
              b->block_bytes, "all_to_all");
    b->args.blocks = NULL;
    b->args.send_blocks = NULL;
}

/* Elements that `from` sends to `to`: some pairs have none. */
static uint64_t
uneven_count(uint32_t from, uint32_t to, uint64_t count)
{
    return (from + 2 * to) % 4 == 3 ? 0 : count * ((from + to) % 3) + from;
}

/* Pieces of different lengths, the last one first in both buffers, with holes of 3 elements. */
static void
check_all_to_all_uneven(struct bench *b, uint32_t elem_bytes)
{
    uint64_t send_counts[FAKE_RANKS_MAX], send_offs[FAKE_RANKS_MAX];
    uint64_t recv_counts[FAKE_RANKS_MAX], recv_offs[FAKE_RANKS_MAX];
    uint64_t send_total = 0;
    uint64_t recv_total = 0;

    for (uint32_t i = world.size; i-- > 0;) {
        send_counts[i] = uneven_count(b->rank, i, b->args.count);
        recv_counts[i] = uneven_count(i, b->rank, b->args.count);
        send_offs[i] = send_total;
        recv_offs[i] = recv_total;
        send_total += send_counts[i] + 3;
        recv_total += recv_counts[i] + 3;
    }
    uint8_t *send = malloc(send_total * elem_bytes);
    uint8_t *recv = malloc(recv_total * elem_bytes);
    CHECK(send != NULL && recv != NULL);
    memset(recv, 0xee, recv_total * elem_bytes);
    for (uint32_t i = 0; i < world.size; i++)
        fill(send + send_offs[i] * elem_bytes, b->rank, i, b->serial, send_counts[i] * elem_bytes);
    b->args.send = send;
    b->args.recv = recv;
    b->args.send_counts = send_counts;
    b->args.send_offs = send_offs;
    b->args.recv_counts = recv_counts;
    b->args.recv_offs = recv_offs;
    run(b, RDT_COLL_ALLTOALL);
    for (uint32_t i = 0; i < world.size; i++) {
        const uint8_t *piece = recv + recv_offs[i] * elem_bytes;
        check(piece, i, b->rank, b->serial, recv_counts[i] * elem_bytes, "uneven all_to_all");
        for (uint64_t hole = 0; hole < 3 * elem_bytes; hole++)
            CHECK_HEX_EQ(piece[recv_counts[i] * elem_bytes + hole], 0xee);
    }
    b->args.send_counts = b->args.send_offs = b->args.recv_counts = b->args.recv_offs = NULL;
    free(send);
    free(recv);
}

static void
run_case(rdt_group *group, unsigned dtype_case, uint64_t count, unsigned serial)
{
    struct bench b = {.group = group,
                      .rank = rdt_group_rank(group),
                      .serial = serial,
                      .block_bytes = count * dtypes[dtype_case].bytes};
    const unsigned form = serial % 3;

    b.args = (struct rdt_coll_args){.struct_size = sizeof(b.args),
                                    .dtype = dtypes[dtype_case].dtype,
                                    .count = count,
                                    .root = serial % world.size};
    b.many = malloc(b.block_bytes * world.size + 1);
    b.other = malloc(b.block_bytes * world.size + 1);
    CHECK(b.many != NULL && b.other != NULL);
    for (uint32_t i = 0; i < world.size; i++)
        b.blocks[i] = b.other + (world.size - 1 - i) * b.block_bytes;
    check_broadcast(&b);
    check_all_gather(&b, form);
    check_gather(&b, form);
    check_scatter(&b, form);
    check_all_to_all(&b, form);
    check_all_to_all_uneven(&b, dtypes[dtype_case].bytes);
    free(b.many);
    free(b.other);
}

static void *
run_all_kinds(void *arg)
{
    unsigned serial = 0;

    for (unsigned d = 0; d < DTYPE_CASES; d++)
        for (unsigned c = 0; c < COUNT_CASES; c++)
            for (unsigned form = 0; form < 3; form++)
                run_case(arg, d, counts[c], serial++);
    return NULL;
}

/* Over messages, and over memory that the ranks share. */
static void
over_both(uint32_t size)
{
    static const char *const ways[] = {"messages", "direct"};

    for (int way = 0; way < 2; way++) {
        fake_force(ways[way]);
        fake_world_init(&world, size, size);
        fake_world_run(&world, run_all_kinds);
        CHECK_UINT_EQ(world.aborts, 0);
        fake_world_fini(&world);
    }
}

#define TEST_SIZE(n)                                    \
    TEST_TIMEOUT(every_byte_arrives_on_##n##_ranks, 60) \
    {                                                   \
        over_both(n);                                   \
    }

TEST_SIZE(1)
TEST_SIZE(2)
TEST_SIZE(3)
TEST_SIZE(4)
TEST_SIZE(5)
TEST_SIZE(7)
TEST_SIZE(8)

/* So much is stored past the caches where it arrives. Blocks that begin anywhere in a line. */
static void *
run_large(void *arg)
{
    const uint64_t count = (UINT64_C(16) << 20) + 37;

    for (unsigned form = 0; form < 3; form += TEST_TSAN_SHARE)
        run_case(arg, 0, count, form);
    return NULL;
}

TEST_TIMEOUT(every_byte_of_large_blocks_arrives, 120)
{
    fake_force("direct");
    fake_world_init(&world, 2, 2);
    fake_world_run(&world, run_large);
    CHECK_UINT_EQ(world.aborts, 0);
    fake_world_fini(&world);
}

/* ---- Barrier ---- */

static atomic_uint arrived;

static void *
meet(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};
    uint64_t random = rdt_group_rank(group);

    for (unsigned round = 1; round <= 50; round++) {
        const struct rdt_coll_args args = {.struct_size = sizeof(args), .op = RDT_COLL_BARRIER};
        test_sleep_ns(fake_random(&random) % 100000);
        /* seq_cst on both sides: the barrier itself is what is tested, not this counter */
        (void)atomic_fetch_add_explicit(&arrived, 1, memory_order_seq_cst);
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
        CHECK_UINT_LE(round * world.size, atomic_load_explicit(&arrived, memory_order_seq_cst));
    }
    return NULL;
}

TEST(nobody_leaves_a_barrier_before_all_have_come)
{
    for (uint32_t size = 1; size <= FAKE_RANKS_MAX; size++) {
        arrived = 0;
        fake_world_init(&world, size, size);
        fake_world_run(&world, meet);
        fake_world_fini(&world);
    }
}

/* ---- Several in flight ---- */

enum { IN_FLIGHT = 20 };

static void *
overlap(void *arg)
{
    rdt_group *group = arg;
    const uint32_t rank = rdt_group_rank(group);
    rdt_transfer *transfers[IN_FLIGHT];
    int32_t values[IN_FLIGHT][3];
    struct rdt_error err = {0};

    for (int i = 0; i < IN_FLIGHT; i++) {
        for (int j = 0; j < 3; j++)
            values[i][j] = i * 100 + j + (int32_t)rank;
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op =
                                               i % 2 == 0 ? RDT_COLL_ALLREDUCE : RDT_COLL_BROADCAST,
                                           .dtype = RDT_I32,
                                           .reduce_op = RDT_MAX,
                                           .root = i % 2 == 0 ? 0 : 1,
                                           .count = 3,
                                           .send = values[i],
                                           .recv = values[i]};
        CHECK_OK(rdt_coll_post(group, &args, &transfers[i], &err), &err);
    }
    for (int i = IN_FLIGHT; i-- > 0;) /* the last first */
        CHECK_OK(fake_wait(group, transfers[i], &err), &err);
    for (int i = 0; i < IN_FLIGHT; i++)
        for (int j = 0; j < 3; j++)
            CHECK_INT_EQ(values[i][j], i * 100 + j + (i % 2 == 0 ? (int32_t)world.size - 1 : 1));
    return NULL;
}

TEST(several_collectives_in_flight_do_not_mix)
{
    fake_world_init(&world, 5, 77);
    fake_world_run(&world, overlap);
    fake_world_fini(&world);
}

/* ---- Refused arguments ---- */

static struct rdt_coll_args good;

static void
check_refused(rdt_group *group, struct rdt_coll_args args, const char *part)
{
    rdt_transfer *const untouched = (rdt_transfer *)&good;
    rdt_transfer *t = untouched;
    struct rdt_error err = {0};

    CHECK_STATUS(rdt_coll_post(group, &args, &t, &err), RDT_EINVAL);
    CHECK_INT_EQ(err.status, RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, part);
    CHECK_PTR_EQ(t, untouched);
    CHECK_STATUS(rdt_coll_post(group, &args, &t, NULL), RDT_EINVAL);
}

#define REFUSED(part, ...)                \
    do {                                  \
        struct rdt_coll_args args = good; \
        __VA_ARGS__;                      \
        check_refused(group, args, part); \
    } while (0)

TEST(arguments_that_make_no_sense_are_refused_by_name)
{
    static uint8_t send[64], recv[64];
    static const uint64_t many[2] = {4, 1};
    static const uint64_t huge[2] = {4, UINT64_MAX / 2};
    void *holes[2] = {recv, NULL};

    fake_world_init(&world, 2, 1);
    rdt_group *group = &world.groups[0];
    good = (struct rdt_coll_args){.struct_size = sizeof(good),
                                  .op = RDT_COLL_ALLREDUCE,
                                  .dtype = RDT_I32,
                                  .reduce_op = RDT_SUM,
                                  .count = 4,
                                  .send = send,
                                  .recv = recv};
    REFUSED("struct_size", args.struct_size = 8);
    REFUSED("flags", args.flags = 2);
    REFUSED("10 is not a valid collective", args.op = 10);
    REFUSED("0 is not a valid collective", args.op = 0);
    REFUSED("99 is not a valid dtype", args.dtype = 99);
    REFUSED("0 is not a valid dtype", args.dtype = 0);
    REFUSED("9 is not a valid reduction", args.reduce_op = 9);
    REFUSED("avg is not defined for bool", args.dtype = RDT_BOOL; args.reduce_op = RDT_AVG);
    REFUSED("bor is not defined for float32", args.dtype = RDT_F32; args.reduce_op = RDT_BOR);
    REFUSED("max is not defined for complex64", args.dtype = RDT_C64; args.reduce_op = RDT_MAX);
    REFUSED("send is NULL", args.send = NULL);
    REFUSED("recv is NULL", args.recv = NULL);
    REFUSED("exceed memory", args.count = UINT64_MAX / 4);
    REFUSED("exceed memory", args.count = UINT64_MAX / 15);
    REFUSED("root 2 of a group of 2", args.op = RDT_COLL_BROADCAST; args.root = 2);
    REFUSED("blocks[1] is NULL", args.op = RDT_COLL_ALLGATHER; args.blocks = holes);
    REFUSED("counts without offsets", args.op = RDT_COLL_ALLTOALL; args.send_counts = many);
    REFUSED("exceeds memory", args.op = RDT_COLL_ALLTOALL; args.send_counts = many;
            args.send_offs = huge);
    REFUSED("sends itself 4 elements and receives 1", args.op = RDT_COLL_ALLTOALL; args.count = 1;
            args.send_counts = many; args.send_offs = many);
    REFUSED("in place", args.op = RDT_COLL_ALLTOALL; args.recv = send);
    struct rdt_error err = {0};
    rdt_transfer *t;
    CHECK_STATUS(rdt_coll_post(NULL, &good, &t, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_coll_post(group, NULL, &t, &err), RDT_EINVAL);
    CHECK_STATUS(rdt_coll_post(group, &good, NULL, &err), RDT_EINVAL);
    CHECK_UINT_EQ(group->sequence, 0); /* a refused call does not count as one */
    fake_world_fini(&world);
}

TEST_MAIN()
