/* SPDX-License-Identifier: Apache-2.0
 *
 * Lossy collectives over boards and over messages, bit for bit against a definition that has whole
 * tensors of all ranks, and blocks where collectives have chunks and pieces.
 */
#include "collectives/fake_group.h"

#include <math.h>

#include "collectives/lossy/kernels.h"

enum { COUNTS = 10, STEPS = 2 };

static struct fake_world world;
static uint64_t test_count;
static uint32_t test_wire;
static uint32_t test_block;
static uint32_t test_op;
static uint32_t test_reduce_op;
static bool test_has_residual;
static bool test_is_in_place;

static uint64_t
send_count(void)
{
    return test_op == RDT_COLL_REDUCE_SCATTER ? test_count * world.size : test_count;
}

static uint64_t
recv_count(void)
{
    return test_op == RDT_COLL_ALLGATHER ? test_count * world.size : test_count;
}

/* With a NaN here and an infinity there. */
static float
value_of(uint32_t rank, uint64_t i, int step)
{
    static const float scales[] = {1e-6F, 1e3F, 3.0F, 1e-3F, 1e-9F, 0.0F, 11.0F};
    const uint64_t mixed = (i + 77777 * (uint64_t)step) * 2654435761U + rank * 40503U;

    if (i == 401 && rank == 1)
        return NAN;
    if (i == 1409 && rank == 0)
        return INFINITY;
    return scales[i / 32 % 7] * ((float)(mixed % 2003) - 1001.0F);
}

/* ---- The definition ---- */

/* Encodes a block of `count` floats in place: what decoding gives. */
static void
pass_block(float *values, float *residual, uint64_t count)
{
    const struct rdti_lossy_loops *loops =
        test_wire == RDT_WIRE_Q8 ? &rdti_lossy_generic.q8 : &rdti_lossy_generic.bf16;
    const uint32_t block = test_block;
    uint16_t scales[1];
    uint16_t data[1024];
    const struct rdti_lossy_view view = {scales, data};
    struct rdti_lossy_odd odd = {0};

    CHECK(count <= 1024);
    loops->encode(view, values, residual, count, block, &odd);
    loops->decode(values, view, count, block);
}

/* The owner of a block of all_reduce: as even as whole blocks allow, the first ones have more. */
static uint32_t
owner_of(uint64_t block)
{
    const uint64_t blocks = (test_count + test_block - 1) / test_block;
    uint64_t end = 0;

    for (uint32_t rank = 0;; rank++) {
        end += blocks / world.size + (rank < blocks % world.size);
        if (block < end)
            return rank;
    }
}

/* By rank: what each has put in, and its residual. */
struct oracle {
    float *send[8];
    float *residual[8];
};

/* Sums `count` elements from `at` on, in rank order, as `owner` does. */
static void
sum_block(struct oracle *o, float *sum, uint64_t at, uint64_t count, uint32_t owner)
{
    float values[1024];

    for (uint32_t rank = 0; rank < world.size; rank++) {
        memcpy(values, o->send[rank] + at, count * sizeof(*values));
        if (rank != owner)
            pass_block(values, test_has_residual ? o->residual[rank] + at : NULL, count);
        for (uint64_t i = 0; i < count; i++)
            sum[i] = rank == 0 ? values[i] : sum[i] + values[i];
    }
    for (uint64_t i = 0; i < count && test_reduce_op == RDT_AVG; i++)
        sum[i] = sum[i] / (float)world.size;
}

static uint64_t
block_at(uint64_t at, uint64_t total)
{
    return total - at < test_block ? total - at : test_block;
}

/* What `rank` has in recv afterwards, to be freed; the residuals of all have been updated where
 * they are. */
static float *
definition(struct oracle *o, uint32_t rank)
{
    float *recv = malloc((recv_count() + 1) * sizeof(*recv));

    CHECK_NOT_NULL(recv);
    for (uint64_t at = 0; at < test_count && test_op == RDT_COLL_ALLREDUCE; at += test_block) {
        const uint64_t count = block_at(at, test_count);
        const uint32_t owner = owner_of(at / test_block);
        sum_block(o, recv + at, at, count, owner);
        pass_block(recv + at, test_has_residual ? o->residual[owner] + at : NULL, count);
    }
    for (uint32_t owner = 0; owner < world.size && test_op == RDT_COLL_REDUCE_SCATTER; owner++)
        for (uint64_t at = 0; at < test_count; at += test_block) {
            float sum[1024];
            const uint64_t count = block_at(at, test_count);
            sum_block(o, sum, owner * test_count + at, count, owner);
            if (owner == rank)
                memcpy(recv + at, sum, count * sizeof(*sum));
        }
    for (uint32_t owner = 0; owner < world.size && test_op == RDT_COLL_ALLGATHER; owner++)
        for (uint64_t at = 0; at < test_count; at += test_block) {
            const uint64_t count = block_at(at, test_count);
            float *into = recv + owner * test_count + at;
            memcpy(into, o->send[owner] + at, count * sizeof(*into));
            pass_block(into, test_has_residual ? o->residual[owner] + at : NULL, count);
        }
    return recv;
}

/* ---- The collectives ---- */

static void
check_floats(const char *what, const float *got, const float *want, uint64_t count, uint32_t rank)
{
    for (uint64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], sizeof(want[i])) != 0 && !(isnan(got[i]) && isnan(want[i])))
            FAIL("op %u, wire %u, block %u, %u ranks, %llu elements: rank %u, %s[%llu] is %a, by "
                 "definition it is %a",
                 test_op, test_wire, test_block, world.size, (unsigned long long)test_count, rank,
                 what, (unsigned long long)i, (double)got[i], (double)want[i]);
}

static void
fill_oracle(struct oracle *o, int step)
{
    for (uint32_t rank = 0; rank < world.size; rank++)
        for (uint64_t i = 0; i < send_count(); i++)
            o->send[rank][i] = value_of(rank, i, step);
}

static struct rdt_coll_args
args_of(const float *send, float *recv, float *residual)
{
    return (struct rdt_coll_args){.struct_size = sizeof(struct rdt_coll_args),
                                  .op = test_op,
                                  .dtype = RDT_F32,
                                  .reduce_op = test_reduce_op,
                                  .count = test_count,
                                  .send = send,
                                  .recv = recv,
                                  .wire = test_wire,
                                  .wire_block = test_wire == RDT_WIRE_Q8 ? test_block : 0,
                                  .residual = test_has_residual ? residual : NULL};
}

/* Where recv is if it is a part of send, or the other way round. */
static float *
place_in(float *buffer, uint32_t rank, uint32_t op)
{
    return test_op == op ? buffer + rank * test_count : buffer;
}

static void *
run_lossy(void *arg)
{
    rdt_group *group = arg;
    const uint64_t most = test_count * world.size + 1;
    struct rdt_error err = {0};
    struct oracle o = {0};
    float *send = malloc(most * sizeof(*send));
    float *recv = malloc(most * sizeof(*recv));
    float *residual = calloc(most, sizeof(*residual));

    for (uint32_t rank = 0; rank < world.size; rank++) {
        o.send[rank] = malloc(most * sizeof(float));
        o.residual[rank] = calloc(most, sizeof(float));
    }
    for (int step = 0; step < STEPS; step++) {
        fill_oracle(&o, step);
        float *from = test_is_in_place ? place_in(recv, group->rank, RDT_COLL_ALLGATHER) : send;
        float *into =
            test_is_in_place ? place_in(from, group->rank, RDT_COLL_REDUCE_SCATTER) : recv;
        memcpy(from, o.send[group->rank], send_count() * sizeof(*from));
        if (!test_is_in_place)
            into[recv_count()] = 77;
        else if (test_op == RDT_COLL_ALLGATHER)
            into = recv;
        const struct rdt_coll_args args = args_of(from, into, residual);
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
        float *want = definition(&o, group->rank);
        check_floats("recv", into, want, recv_count(), group->rank);
        check_floats("residual", residual, o.residual[group->rank], send_count(), group->rank);
        CHECK(test_is_in_place || into[recv_count()] == 77);
        free(want);
    }
    for (uint32_t rank = 0; rank < world.size; rank++) {
        free(o.send[rank]);
        free(o.residual[rank]);
    }
    free(send);
    free(recv);
    free(residual);
    return NULL;
}

static void
check_world(const char *way, uint32_t size)
{
    static uint64_t seed;

    fake_force(way);
    fake_world_init(&world, size, seed++);
    fake_world_run(&world, run_lossy);
    CHECK_UINT_EQ(world.aborts, 0);
    fake_world_fini(&world);
}

static const uint32_t ops[] = {RDT_COLL_ALLREDUCE, RDT_COLL_REDUCE_SCATTER, RDT_COLL_ALLGATHER};
static const char *const ways[] = {"messages", "direct"};

static void
check_ops(uint32_t size)
{
    for (size_t w = 0; w < 2; w++)
        for (size_t o = 0; o < 3; o++) {
            test_op = ops[o];
            check_world(ways[w], size);
        }
}

TEST_TIMEOUT(all_are_as_defined, 60)
{
    static const uint64_t counts[] = {0, 1, 31, 127, 128, 129, 640, 1500, 4097, 20001};
    static const uint32_t sizes[] = {2, 3, 4, 7};

    test_block = 128;
    for (size_t c = 0; c < COUNTS; c++)
        for (size_t s = 0; s < 4; s++) {
            test_count = counts[c];
            test_wire = (c + s) % 3 == 0 ? RDT_WIRE_BF16 : RDT_WIRE_Q8;
            test_reduce_op = (c + s) % 2 == 0 ? RDT_SUM : RDT_AVG;
            test_has_residual = (c / 2 + s) % 2 == 0;
            test_is_in_place = c % 2 == 0;
            check_ops(sizes[s]);
        }
}

TEST_TIMEOUT(blocks_of_all_lengths, 60)
{
    test_wire = RDT_WIRE_Q8;
    test_reduce_op = RDT_AVG;
    test_has_residual = true;
    test_count = 3000;
    for (test_block = 32; test_block <= 1024; test_block *= 2)
        check_ops(3);
}

/* Several pieces of a chunk, the last of which is shorter; also where stages are full. */
TEST_TIMEOUT(long_tensors_go_in_pieces, 60)
{
    test_wire = RDT_WIRE_Q8;
    test_block = 128;
    test_reduce_op = RDT_SUM;
    test_has_residual = true;
    test_is_in_place = true;
    test_count = 3 * 2 * 128 * 1024 - 77777;
    check_ops(2);
    test_wire = RDT_WIRE_BF16;
    test_has_residual = false;
    test_count = 3 * 128 * 1024 + 1;
    check_ops(3);
}

/* ---- What is refused, and where ranks disagree ---- */

TEST(alone_nothing_is_encoded)
{
    float values[3] = {1.2345678F, NAN, 1e-30F};
    float got[3];
    float residual[3] = {9, 9, 9};
    struct rdt_error err = {0};
    struct rdt_coll_args args;

    test_op = RDT_COLL_ALLREDUCE;
    test_wire = RDT_WIRE_Q8;
    test_block = 128;
    test_reduce_op = RDT_AVG;
    test_has_residual = true;
    test_count = 3;
    args = args_of(values, got, residual);
    fake_force("auto");
    fake_world_init(&world, 1, 1);
    CHECK_OK(fake_run_coll(&world.groups[0], &args, &err), &err);
    CHECK_MEM_EQ(got, values, sizeof(got));
    CHECK(residual[0] == 9);
    fake_world_fini(&world);
}

static void
check_refusal(struct rdt_coll_args args, const char *words)
{
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_STATUS(rdt_coll_post(&world.groups[0], &args, &t, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, words);
    CHECK_NULL(t);
}

TEST(what_has_no_lossy_wire_is_refused)
{
    float values[4] = {0};
    struct rdt_coll_args args;

    test_op = RDT_COLL_ALLREDUCE;
    test_wire = RDT_WIRE_Q8;
    test_block = 128;
    test_reduce_op = RDT_SUM;
    test_count = 4;
    fake_force("auto");
    fake_world_init(&world, 2, 1);
    args = args_of(values, values, NULL);
    args.dtype = RDT_I32;
    check_refusal(args, "the wire q8 is for float32, not for int32");
    args = args_of(values, values, NULL);
    args.reduce_op = RDT_MAX;
    check_refusal(args, "the wire q8 is for sum and avg, not for max");
    args = args_of(values, values, NULL);
    args.op = RDT_COLL_BROADCAST;
    check_refusal(args, "not for broadcast");
    args = args_of(values, values, NULL);
    args.wire_block = 48;
    check_refusal(args, "48 is not a valid block of q8");
    args = args_of(values, values, NULL);
    args.wire = RDT_WIRE_BF16;
    check_refusal(args, "128 is not a valid block of bf16; expected 0");
    args = args_of(values, values, NULL);
    args.wire = 9;
    check_refusal(args, "9 is not a valid wire");
    args = args_of(values, values, NULL);
    args.wire = RDT_WIRE_EXACT;
    check_refusal(args, "a residual or a block needs a lossy wire");
    args = args_of(values, values, NULL);
    args.residual = values + 3;
    check_refusal(args, "the residual overlaps what is sent or received");
    CHECK_UINT_EQ(world.aborts, 0);
    fake_world_fini(&world);
}

TEST(a_struct_of_an_older_header_is_exact)
{
    float values[2] = {1.0000001F, 2};
    float got[2];
    struct rdt_error err = {0};
    struct rdt_coll_args args;

    test_op = RDT_COLL_ALLREDUCE;
    test_wire = RDT_WIRE_Q8;
    test_count = 2;
    test_reduce_op = RDT_SUM;
    args = args_of(values, got, NULL);
    args.wire = 99; /* beyond the end of the caller's struct */
    args.struct_size = offsetof(struct rdt_coll_args, wire);
    fake_force("auto");
    fake_world_init(&world, 1, 1);
    CHECK_OK(fake_run_coll(&world.groups[0], &args, &err), &err);
    CHECK_MEM_EQ(got, values, sizeof(got));
    args.struct_size -= 8;
    CHECK_STATUS(fake_run_coll(&world.groups[0], &args, &err), RDT_EINVAL);
    fake_world_fini(&world);
}

static struct rdt_error results[2];
static struct rdt_coll_args given[2];

static void *
run_given(void *arg)
{
    rdt_group *group = arg;
    float *values = calloc(test_count, sizeof(*values));
    struct rdt_coll_args args = given[group->rank];
    const struct rdt_coll_args barrier = {.struct_size = sizeof(barrier), .op = RDT_COLL_BARRIER};
    struct rdt_error err = {0};

    CHECK_OK(fake_run_coll(group, &barrier, &err), &err); /* the set-up is over */
    args.send = args.recv = values;
    results[group->rank].status = fake_run_coll(group, &args, &results[group->rank]);
    free(values);
    return NULL;
}

static void
check_disagreement(const char *way, const char *words, const char *other_words)
{
    bool is_named = false;

    fake_force(way);
    fake_world_init(&world, 2, 5);
    memset(results, 0, sizeof(results));
    fake_world_run(&world, run_given);
    for (int rank = 0; rank < 2; rank++) {
        CHECK(results[rank].status == RDT_EMISMATCH || results[rank].status == RDT_EPEER);
        if (results[rank].status != RDT_EMISMATCH)
            continue;
        CHECK_STR_CONTAINS(results[rank].message, words);
        CHECK_STR_CONTAINS(results[rank].message, other_words);
        is_named = true;
    }
    CHECK(is_named);
    fake_world_fini(&world);
}

TEST_TIMEOUT(ranks_that_disagree_learn_of_both_formats, 60)
{
    test_op = RDT_COLL_ALLREDUCE;
    test_wire = RDT_WIRE_Q8;
    test_block = 128;
    test_reduce_op = RDT_SUM;
    test_has_residual = false;
    test_count = 100000;
    given[0] = given[1] = args_of(NULL, NULL, NULL);
    given[1].wire_block = 64;
    check_disagreement("direct", "q8 in blocks of 128", "q8 in blocks of 64");
    check_disagreement("messages", "operation 66", "operation 50"); /* words of the fake */
    given[1].wire_block = 0;
    given[1].wire = RDT_WIRE_BF16;
    check_disagreement("direct", "as q8 in blocks of 128", "100000 float32 as bf16");
    check_disagreement("messages", "operation 66", "operation 18");
    given[1].wire = RDT_WIRE_EXACT;
    check_disagreement("direct", "as q8 in blocks of 128", "100000 float32 as ");
    check_disagreement("messages", "operation 66", "operation 2 ");
}

TEST_MAIN()
