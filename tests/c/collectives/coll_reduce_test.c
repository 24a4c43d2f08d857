/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives that reduce, over the fake group, against a naive fold over the ranks' inputs.
 */
#include "collectives/fake_group.h"

#include <math.h>

#include "collectives/reduce/half.h"
#include "collectives/reduce/kernels.h"

/* 0, 1, odd, and both sides of where all_reduce changes its algorithm (64 KiB), for every dtype. */
static const uint64_t counts[] = {0, 1, 37, 4096, 70001};
enum { COUNT_CASES = sizeof(counts) / sizeof(counts[0]), LARGE_CASE = 3 };
/* How threads meet is the same for all dtypes, and all that ThreadSanitizer looks at. */
#ifdef __SANITIZE_THREAD__
enum { DTYPE_STEP = 4 };
#else
enum { DTYPE_STEP = 1 };
#endif

static const uint32_t bytes_of[RDTI_DTYPE_LIMIT] = {0, 1, 1, 1, 2, 2, 4, 4,
                                                    8, 8, 2, 2, 4, 8, 8, 16};

static struct fake_world world;
static pthread_barrier_t meeting;
static void *outputs[FAKE_RANKS_MAX];

/* Small whole numbers: every fold of them is exact in every dtype, so that the order is free. */
static int64_t
value_of(uint32_t dtype, uint32_t op, uint32_t rank, uint64_t i)
{
    const uint64_t mixed = (i * 7 + rank * 3 + i / 64) % 5;

    if (op == RDT_PRODUCT)
        return (mixed + rank) % 3 == 0 ? 2 : 1;
    if (dtype == RDT_BOOL)
        return mixed == 0 ? 0 : (int64_t)mixed;
    if (dtype == RDT_U8 || dtype == RDT_U16 || dtype == RDT_U32 || dtype == RDT_U64)
        return (int64_t)mixed;
    return (int64_t)mixed - 2;
}

/* The imaginary part of complex numbers. */
static int64_t
imaginary_of(uint32_t rank, uint64_t i)
{
    return (int64_t)((i + rank) % 3) - 1;
}

struct folded {
    uint64_t bits; /* of integers, sign-extended */
    double re;
    double im;
};

/* over budget: one path for each operation */
static uint64_t
fold_bits(uint32_t dtype, uint32_t op, uint64_t x, uint64_t y)
{
    if (dtype == RDT_BOOL) {
        const bool a = x != 0;
        const bool b = y != 0;
        if (op == RDT_BXOR)
            return a != b;
        return op == RDT_PRODUCT || op == RDT_MIN || op == RDT_BAND ? a && b : a || b;
    }
    switch (op) {
    case RDT_SUM:
    case RDT_AVG:
        return x + y;
    case RDT_PRODUCT:
        return x * y;
    case RDT_MIN:
        return (int64_t)x < (int64_t)y ? x : y;
    case RDT_MAX:
        return (int64_t)x > (int64_t)y ? x : y;
    case RDT_BAND:
        return x & y;
    case RDT_BOR:
        return x | y;
    default:
        return x ^ y;
    }
}

static struct folded
fold(uint32_t dtype, uint32_t op, uint32_t size, uint64_t i)
{
    struct folded all = {.bits = 0};

    for (uint32_t rank = 0; rank < size; rank++) {
        const int64_t value = value_of(dtype, op, rank, i);
        const double re = (double)value;
        const double im = (double)imaginary_of(rank, i);
        const struct folded own = {(uint64_t)value, re, im};
        const struct folded sum = all;
        if (rank == 0) {
            all = own;
            if (dtype == RDT_BOOL && size > 1)
                all.bits = value != 0;
            continue;
        }
        all.bits = fold_bits(dtype, op, sum.bits, own.bits);
        if (op == RDT_PRODUCT && (dtype == RDT_C64 || dtype == RDT_C128)) {
            all.re = sum.re * re - sum.im * im;
            all.im = sum.re * im + sum.im * re;
        } else {
            all.re = op == RDT_PRODUCT
                         ? sum.re * re
                         : (op == RDT_MIN ? fmin(sum.re, re)
                                          : (op == RDT_MAX ? fmax(sum.re, re) : sum.re + re));
            all.im = sum.im + im;
        }
    }
    return all;
}

/* Of a sum that wrapped in its dtype, truncated toward zero. */
static uint64_t
quotient(uint32_t dtype, uint64_t bits, uint32_t divisor)
{
    switch (dtype) {
    case RDT_I8:
        return (uint64_t)((int8_t)bits / (int64_t)divisor);
    case RDT_I16:
        return (uint64_t)((int16_t)bits / (int64_t)divisor);
    case RDT_I32:
        return (uint64_t)((int32_t)bits / (int64_t)divisor);
    case RDT_I64:
        return (uint64_t)((int64_t)bits / (int64_t)divisor);
    case RDT_U8:
        return (uint8_t)bits / divisor;
    case RDT_U16:
        return (uint16_t)bits / divisor;
    case RDT_U32:
        return (uint32_t)bits / divisor;
    default:
        return bits / divisor;
    }
}

/* Element i of dtype as it lies in memory. An average is divided in the dtype's own precision. */
static void
encode(uint32_t dtype, struct folded value, uint32_t divisor, uint8_t *out)
{
    const float f32[2] = {(float)value.re / (float)divisor, (float)value.im / (float)divisor};
    const double f64[2] = {value.re / (double)divisor, value.im / (double)divisor};
    const uint16_t f16 = f32_to_f16(f32[0]);
    const uint16_t bf16 = f32_to_bf16(f32[0]);

    switch (dtype) {
    case RDT_F16:
        memcpy(out, &f16, sizeof(f16));
        break;
    case RDT_BF16:
        memcpy(out, &bf16, sizeof(bf16));
        break;
    case RDT_F32:
    case RDT_C64:
        memcpy(out, f32, bytes_of[dtype]);
        break;
    case RDT_F64:
    case RDT_C128:
        memcpy(out, f64, bytes_of[dtype]);
        break;
    default:
        value.bits = quotient(dtype, value.bits, divisor);
        memcpy(out, &value.bits, bytes_of[dtype]); /* little-endian: the low bytes */
    }
}

/* What `rank` gives: `total` elements from index `first` on. */
static void
fill(uint8_t *out, uint32_t dtype, uint32_t op, uint32_t rank, uint64_t first, uint64_t total)
{
    for (uint64_t i = 0; i < total; i++) {
        const int64_t value = value_of(dtype, op, rank, first + i);
        const struct folded own = {(uint64_t)value, (double)value,
                                   (double)imaginary_of(rank, first + i)};
        encode(dtype, own, 1, out + i * bytes_of[dtype]);
    }
}

static void
check(const uint8_t *got, const struct rdt_coll_args *args, uint64_t first, const char *what)
{
    const uint32_t divisor = args->reduce_op == RDT_AVG ? world.size : 1;
    const uint32_t elem_bytes = bytes_of[args->dtype];
    uint8_t want[16];

    /* Values repeat, so that long inputs are looked at with strides; the ends always. */
    const uint64_t stride = args->count > 8192 ? 17 : 1;
    for (uint64_t i = 0; i < args->count;
         i = i + stride < args->count || i + 1 == args->count ? i + stride : args->count - 1) {
        encode(args->dtype, fold(args->dtype, args->reduce_op, world.size, first + i), divisor,
               want);
        if (args->dtype == RDT_BOOL && world.size == 1)
            want[0] =
                got[i]; /* nothing is combined: the bytes are checked as they went in, elsewhere */
        CHECK_MSG(memcmp(got + i * elem_bytes, want, elem_bytes) == 0,
                  "%s of %u ranks, dtype %u, op %u, count %llu: element %llu", what, world.size,
                  args->dtype, args->reduce_op, (unsigned long long)args->count,
                  (unsigned long long)i);
    }
}

/* All-reduce, reduce and reduce-scatter of one kind, in place and not. */
static void
run_case(rdt_group *group, uint32_t dtype, uint32_t op, uint64_t count, unsigned variant)
{
    const uint32_t rank = rdt_group_rank(group);
    const uint32_t size = world.size;
    const uint64_t block_bytes = count * bytes_of[dtype];
    uint8_t *send = malloc(block_bytes * size + 1);
    uint8_t *recv = malloc(block_bytes + 1);
    void *blocks[FAKE_RANKS_MAX];
    struct rdt_error err = {0};
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .dtype = dtype,
                                 .reduce_op = op,
                                 .count = count,
                                 .send = send,
                                 .recv = recv};
    const bool is_in_place = variant % 2 == 1;

    CHECK(send != NULL && recv != NULL);
    recv[block_bytes] = 0x5a;
    args.op = RDT_COLL_ALLREDUCE;
    fill(is_in_place ? recv : send, dtype, op, rank, 0, count);
    args.send = is_in_place ? recv : send;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    check(recv, &args, 0, "all_reduce");
    CHECK_HEX_EQ(recv[block_bytes], 0x5a);

    args.op = RDT_COLL_REDUCE;
    args.root = variant % size;
    fill(is_in_place ? recv : send, dtype, op, rank, 5, count);
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    if (rank == args.root)
        check(recv, &args, 5, "reduce");
    else if (is_in_place) { /* elsewhere the input stays as it was */
        fill(send, dtype, op, rank, 5, count);
        CHECK_MEM_EQ(recv, send, block_bytes);
    }

    args.op = RDT_COLL_REDUCE_SCATTER;
    args.root = 0;
    fill(send, dtype, op, rank, 0, count * size);
    for (uint32_t i = 0; i < size; i++)
        blocks[i] = send + i * block_bytes;
    args.send = variant % 3 == 0 ? NULL : send;
    args.blocks = variant % 3 == 0 ? blocks : NULL;
    args.recv = is_in_place ? send + rank * block_bytes : recv;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    check(args.recv, &args, rank * count, "reduce_scatter");
    free(send);
    free(recv);
}

static void *
run_all_kinds(void *arg)
{
    rdt_group *group = arg;
    unsigned variant = 0;

    for (uint32_t dtype = RDT_BOOL; dtype < RDTI_DTYPE_LIMIT; dtype += DTYPE_STEP)
        for (uint32_t op = RDT_SUM; op < RDTI_REDUCE_OP_LIMIT; op++)
            for (unsigned c = 0; c < LARGE_CASE; c++)
                if (rdti_reduce_generic.reduce[dtype][op] != NULL)
                    run_case(group, dtype, op, counts[c], variant++);
    /* Large ones by dtype, each with one operation of its own. */
    for (uint32_t dtype = RDT_BOOL; dtype < RDTI_DTYPE_LIMIT; dtype += DTYPE_STEP)
        for (unsigned c = LARGE_CASE; c < COUNT_CASES; c++)
            for (uint32_t op = 1 + dtype % 5;; op = 1 + op % 8)
                if (rdti_reduce_generic.reduce[dtype][op] != NULL) {
                    run_case(group, dtype, op, counts[c], variant++);
                    break;
                }
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

#define TEST_SIZE(n)                                           \
    TEST_TIMEOUT(every_dtype_and_operation_on_##n##_ranks, 60) \
    {                                                          \
        over_both(n);                                          \
    }

TEST_SIZE(1)
TEST_SIZE(2)
TEST_SIZE(3)
TEST_SIZE(4)
TEST_SIZE(5)
TEST_SIZE(7)
TEST_SIZE(8)

/* ---- The same bits on all ranks, and whatever the timing ---- */

enum { BITS_COUNT = 30011 }; /* f32: more than 64 KiB; f16 and bf16: less */

static void *first_result;
static bool is_first_run;

/* Any bit pattern at all, so that sums round, overflow and meet NaNs with payloads. */
static void
fill_random(uint8_t *out, uint32_t rank, uint64_t len_bytes)
{
    uint64_t state = rank + 1;

    for (uint64_t i = 0; i < len_bytes; i++)
        out[i] = (uint8_t)(fake_random(&state) >> 3);
}

static void *
compare_bits(void *arg)
{
    static const uint32_t dtypes[] = {RDT_F16, RDT_BF16, RDT_F32, RDT_F64, RDT_C64};
    static const uint32_t ops[] = {RDT_SUM, RDT_AVG, RDT_PRODUCT, RDT_MIN};
    rdt_group *group = arg;
    const uint32_t rank = rdt_group_rank(group);
    uint8_t *saved = first_result;
    struct rdt_error err = {0};

    for (unsigned kind = 0; kind < 20; kind++) {
        const uint32_t dtype = dtypes[kind % 5];
        if (rdti_reduce_generic.reduce[dtype][ops[kind / 5]] == NULL)
            continue;
        const size_t len_bytes = (size_t)BITS_COUNT * bytes_of[dtype];
        uint8_t *buffer = malloc(len_bytes);
        CHECK_NOT_NULL(buffer);
        fill_random(buffer, rank, len_bytes);
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op = RDT_COLL_ALLREDUCE,
                                           .dtype = dtype,
                                           .reduce_op = ops[kind / 5],
                                           .count = BITS_COUNT,
                                           .send = buffer,
                                           .recv = buffer};
        CHECK_OK(fake_run_coll(group, &args, &err), &err);
        outputs[rank] = buffer;
        (void)pthread_barrier_wait(&meeting);
        CHECK_MEM_EQ(buffer, outputs[(rank + 1) % world.size], len_bytes);
        if (rank == 0 && is_first_run)
            memcpy(saved, buffer, len_bytes);
        else if (rank == 0)
            CHECK_MEM_EQ(buffer, saved, len_bytes);
        saved += len_bytes;
        (void)pthread_barrier_wait(&meeting);
        free(buffer);
    }
    return NULL;
}

TEST_TIMEOUT(results_have_the_same_bits_on_all_ranks_and_in_every_run, 60)
{
    static const uint32_t sizes[] = {2, 3, 5, 8};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        uint8_t *results = calloc(20, (size_t)BITS_COUNT * 8);
        CHECK_NOT_NULL(results);
        first_result = results;
        for (uint64_t run = 0; run < 3; run++) {
            is_first_run = run == 0;
            fake_world_init(&world, sizes[s], 100 * run + s);
            CHECK_INT_EQ(pthread_barrier_init(&meeting, NULL, sizes[s]), 0);
            fake_world_run(&world, compare_bits);
            CHECK_INT_EQ(pthread_barrier_destroy(&meeting), 0);
            fake_world_fini(&world);
        }
        free(results);
    }
}

/* A NaN of any rank reaches every rank, for each operation that a float has. */
static void *
spread_nan(void *arg)
{
    rdt_group *group = arg;
    struct rdt_error err = {0};

    for (uint32_t op = RDT_SUM; op <= RDT_MAX; op++)
        for (uint32_t source = 0; source < world.size; source++) {
            float value[3] = {1.0F, rdt_group_rank(group) == source ? NAN : 2.0F, 3.0F};
            const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                               .op = RDT_COLL_ALLREDUCE,
                                               .dtype = RDT_F32,
                                               .reduce_op = op,
                                               .count = 3,
                                               .send = value,
                                               .recv = value};
            CHECK_OK(fake_run_coll(group, &args, &err), &err);
            CHECK(isnan(value[1]) && !isnan(value[0]) && !isnan(value[2]));
        }
    return NULL;
}

TEST(a_nan_on_one_rank_is_a_nan_on_all)
{
    fake_world_init(&world, 5, 9);
    fake_world_run(&world, spread_nan);
    fake_world_fini(&world);
}

/* Sums of ordinary numbers lie within the rounding of n - 1 additions of the exact sum. */
static void *
sum_reals(void *arg)
{
    enum { REALS = 20000 };
    rdt_group *group = arg;
    const uint32_t rank = rdt_group_rank(group);
    struct rdt_error err = {0};
    float *values = malloc(REALS * sizeof(*values));

    CHECK_NOT_NULL(values);
    for (int i = 0; i < REALS; i++)
        values[i] = sinf((float)(i + 1) * (float)(rank + 1));
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLREDUCE,
                                       .dtype = RDT_F32,
                                       .reduce_op = RDT_AVG,
                                       .count = REALS,
                                       .send = values,
                                       .recv = values};
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
    for (int i = 0; i < REALS; i++) {
        double exact = 0.0;
        for (uint32_t r = 0; r < world.size; r++)
            exact += (double)sinf((float)(i + 1) * (float)(r + 1));
        exact /= world.size;
        CHECK(fabs((double)values[i] - exact) <= world.size * 0x1p-23);
    }
    free(values);
    return NULL;
}

TEST(averages_of_reals_are_close_to_exact_ones)
{
    fake_world_init(&world, 7, 10);
    fake_world_run(&world, sum_reals);
    fake_world_fini(&world);
}

TEST_MAIN()
