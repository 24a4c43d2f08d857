/* SPDX-License-Identifier: Apache-2.0
 *
 * Persistent collectives over the fake group: each start gives what one collective would, with new
 * values each time, by every algorithm, from private memory and from regions; and what is refused.
 */
#include "collectives/fake_group.h"
#include "collectives/team/team.h"

enum { STARTS = 4, PERSISTENTS = 3 };

/* Below what members use in place, and above, with a last block that is not full. */
static const uint64_t counts[] = {1, 5000, 40 * 1024 + 3};
enum { COUNT_CASES = sizeof(counts) / sizeof(counts[0]) };

static const uint32_t operations[] = {RDT_COLL_ALLREDUCE, RDT_COLL_BROADCAST,
                                      RDT_COLL_ALLGATHER, RDT_COLL_REDUCE_SCATTER,
                                      RDT_COLL_REDUCE,    RDT_COLL_ALLTOALL,
                                      RDT_COLL_GATHER,    RDT_COLL_SCATTER,
                                      RDT_COLL_BARRIER};
enum { OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

static struct fake_world world;
static bool is_in_arena;
static bool is_on_hosts;
static const char *algorithm;

/* What a rank has for a member in a start. Sums of a few of them are exact. */
static float
value_of(uint32_t from, uint32_t to, unsigned serial, uint64_t i)
{
    return (float)((from * 3 + to * 5 + serial * 7 + i) % 1000);
}

static float
sum_of(uint32_t to, unsigned serial, uint64_t i)
{
    float sum = 0;

    for (uint32_t from = 0; from < world.size; from++)
        sum += value_of(from, to, serial, i);
    return sum;
}

/* One rank's side of a persistent collective. */
struct side {
    rdt_group *group;
    rdt_region *regions[2];
    float *send;
    float *recv;
    rdt_persistent *persistent;
    struct rdt_coll_args args;
};

static float *
memory(struct side *side, unsigned which, uint64_t count)
{
    const uint64_t len_bytes = (count + 1) * sizeof(float);
    struct rdt_error err = {0};

    if (!is_in_arena) {
        float *values = malloc(len_bytes);
        CHECK_NOT_NULL(values);
        return values;
    }
    CHECK_OK(rdt_region_alloc(&side->group->context, len_bytes, 0, &side->regions[which], &err),
             &err);
    return rdt_region_addr(side->regions[which]);
}

static void
side_init(struct side *side)
{
    rdt_transfer *exchange = NULL;
    struct rdt_error err = {0};

    CHECK_OK(rdt_coll_init(side->group, &side->args, &side->persistent, &exchange, &err), &err);
    CHECK_OK(fake_wait(side->group, exchange, &err), &err);
    CHECK_OK(rdt_coll_bind(side->persistent, &exchange, &err), &err);
    CHECK_OK(fake_wait(side->group, exchange, &err), &err);
}

static void
side_open(struct side *side, rdt_group *group, uint32_t op, uint64_t count)
{
    const uint64_t all = count * world.size;

    *side = (struct side){.group = group};
    side->send = memory(side, 0, all);
    side->recv = memory(side, 1, all);
    side->args = (struct rdt_coll_args){.struct_size = sizeof(side->args),
                                        .op = op,
                                        .dtype = RDT_F32,
                                        .reduce_op = RDT_SUM,
                                        .root = world.size - 1,
                                        .count = count,
                                        .send = op == RDT_COLL_ALLREDUCE ? side->recv : side->send,
                                        .recv = side->recv};
    side_init(side);
}

static void
side_close(struct side *side)
{
    rdt_coll_free(side->persistent);
    if (is_in_arena) {
        rdt_region_free(side->regions[0], NULL, NULL);
        rdt_region_free(side->regions[1], NULL, NULL);
        return;
    }
    free(side->send);
    free(side->recv);
}

static void
put(const struct side *side, unsigned serial)
{
    const uint32_t op = side->args.op;
    const uint64_t count = side->args.count;
    const uint32_t rank = side->group->rank;
    const bool is_split =
        op == RDT_COLL_REDUCE_SCATTER || op == RDT_COLL_ALLTOALL || op == RDT_COLL_SCATTER;
    float *to = op == RDT_COLL_ALLREDUCE || op == RDT_COLL_BROADCAST ? side->recv : side->send;

    for (uint64_t i = 0; i < count * world.size; i++)
        side->recv[i] = -1;
    for (uint32_t member = 0; member < (is_split ? world.size : 1); member++)
        for (uint64_t i = 0; i < count; i++)
            to[member * count + i] = value_of(rank, member, serial, i);
    side->recv[count * world.size] = 77;
}

static float
wanted(const struct side *side, unsigned serial, uint64_t at)
{
    const uint64_t count = side->args.count;
    const uint32_t rank = side->group->rank;
    const uint32_t root = side->args.root;
    const uint32_t member = (uint32_t)(at / count);

    switch (side->args.op) {
    case RDT_COLL_REDUCE_SCATTER:
        return sum_of(rank, serial, at);
    case RDT_COLL_SCATTER:
        return value_of(root, rank, serial, at);
    case RDT_COLL_BROADCAST:
        return value_of(root, 0, serial, at);
    case RDT_COLL_ALLGATHER:
    case RDT_COLL_GATHER:
        return value_of(member, 0, serial, at % count);
    case RDT_COLL_ALLTOALL:
        return value_of(member, rank, serial, at % count);
    default: /* RDT_COLL_ALLREDUCE, RDT_COLL_REDUCE */
        return sum_of(0, serial, at);
    }
}

/* Elements of the output; what is after them stays -1. */
static uint64_t
output_count(const struct side *side)
{
    const uint32_t op = side->args.op;
    const uint64_t count = side->args.count;

    if ((op == RDT_COLL_REDUCE || op == RDT_COLL_GATHER) && side->group->rank != side->args.root)
        return 0;
    return op == RDT_COLL_ALLGATHER || op == RDT_COLL_GATHER || op == RDT_COLL_ALLTOALL
               ? count * world.size
               : count;
}

static void
check(const struct side *side, unsigned serial)
{
    for (uint64_t i = 0; i < side->args.count * world.size; i++) {
        const float value = i < output_count(side) ? wanted(side, serial, i) : -1;
        CHECK_MSG(side->recv[i] == value,
                  "operation %u, rank %u of %u, start %u, element %llu: %f, not %f", side->args.op,
                  side->group->rank, world.size, serial, (unsigned long long)i,
                  (double)side->recv[i], (double)value);
    }
    CHECK(side->recv[side->args.count * world.size] == 77);
}

static rdt_transfer *
start(struct side *side, uint32_t flags)
{
    rdt_transfer *t = NULL;
    struct rdt_error err = {0};

    CHECK_OK(rdt_coll_start(side->persistent, flags, &t, &err), &err);
    return t;
}

static void
finish(const struct side *side, rdt_transfer *t)
{
    struct rdt_error err = {0};

    CHECK_OK(fake_wait(side->group, t, &err), &err);
}

/* How it works, by what its operation and its tensors are. */
static uint32_t
wanted_landing(const struct side *side)
{
    const uint32_t op = side->args.op;
    const bool is_landed = op == RDT_COLL_ALLREDUCE || op == RDT_COLL_BROADCAST ||
                           op == RDT_COLL_ALLGATHER || op == RDT_COLL_REDUCE_SCATTER;

    if (!is_landed)
        return RDT_LANDING_OPERATION;
    if (side->args.count * sizeof(float) < 128 * 1024)
        return RDT_LANDING_SMALL;
    return is_in_arena ? RDT_LANDING_OFFERED : RDT_LANDING_NOT_IN_ARENA;
}

static void
check_binding(const struct side *side)
{
    struct rdt_coll_binding binding = {.struct_size = sizeof(binding)};
    const bool is_direct = strcmp(algorithm, "auto") == 0 && !is_on_hosts;

    rdt_coll_get_binding(side->persistent, &binding);
    CHECK_UINT_EQ(binding.starts, STARTS);
    CHECK_NOT_NULL(binding.algorithm);
    if (world.size == 1) {
        CHECK_UINT_EQ(binding.way, RDT_WAY_ALONE);
        CHECK_STR_EQ(binding.reason, "");
        return;
    }
    CHECK_INT_EQ(strcmp(binding.algorithm, "direct") == 0 && is_direct, is_direct);
    if (!is_direct) {
        CHECK_UINT_EQ(binding.way, RDT_WAY_MESSAGES);
        CHECK_UINT_EQ(binding.landing, is_on_hosts ? RDT_LANDING_HOSTS : RDT_LANDING_ALGORITHM);
        return;
    }
    CHECK_UINT_EQ(binding.landing, wanted_landing(side));
    CHECK_UINT_EQ(binding.way,
                  binding.landing == RDT_LANDING_OFFERED ? RDT_WAY_IN_PLACE : RDT_WAY_STAGES);
    CHECK_INT_EQ(binding.reason[0] == '\0', binding.landing == RDT_LANDING_OFFERED);
    if (binding.landing == RDT_LANDING_NOT_IN_ARENA)
        CHECK_UINT_EQ(binding.rank, side->args.op == RDT_COLL_BROADCAST ? world.size - 1 : 0);
    else
        CHECK_UINT_EQ(binding.rank, RDT_SOURCE_ANY);
}

/* Each by itself, and three at once. */
static void
repeat(rdt_group *group)
{
    for (unsigned c = 0; c < COUNT_CASES; c++)
        for (unsigned o = 0; o < OPERATIONS; o++) {
            struct side side;
            side_open(&side, group, operations[o], counts[c]);
            for (unsigned serial = 0; serial < STARTS; serial++) {
                put(&side, serial);
                finish(&side, start(&side, serial % 2 == 0 ? RDT_COLL_SPIN : 0));
                if (operations[o] != RDT_COLL_BARRIER)
                    check(&side, serial);
            }
            check_binding(&side);
            side_close(&side);
        }
}

static void
overlap(rdt_group *group)
{
    struct side sides[PERSISTENTS];
    rdt_transfer *transfers[PERSISTENTS];

    for (unsigned i = 0; i < PERSISTENTS; i++)
        side_open(&sides[i], group, operations[i], counts[2 - i % 2]);
    for (unsigned serial = 0; serial < STARTS; serial++) {
        for (unsigned i = 0; i < PERSISTENTS; i++) {
            put(&sides[i], serial);
            transfers[i] = start(&sides[i], 0);
        }
        for (unsigned i = 0; i < PERSISTENTS; i++) {
            finish(&sides[i], transfers[i]);
            check(&sides[i], serial);
        }
    }
    for (unsigned i = 0; i < PERSISTENTS; i++)
        side_close(&sides[i]);
}

/* One rank, another one each time, has its values elsewhere. */
static void
start_aside(rdt_group *group)
{
    for (unsigned c = 0; c < COUNT_CASES; c++) {
        struct side side;
        side_open(&side, group, RDT_COLL_ALLREDUCE, counts[c]);
        float *bound = side.recv;
        float *other = malloc((counts[c] * world.size + 1) * sizeof(*other));
        CHECK_NOT_NULL(other);
        for (unsigned serial = 0; serial < world.size + 1; serial++) {
            struct rdt_error err = {0};
            rdt_transfer *t = NULL;
            const bool is_aside = serial == group->rank;
            side.recv = is_aside ? other : bound;
            put(&side, serial);
            bound[0] = is_aside ? 99 : bound[0];
            if (is_aside)
                CHECK_OK(rdt_coll_start_aside(side.persistent, other, 0, &t, &err), &err);
            else
                t = start(&side, 0);
            finish(&side, t);
            check(&side, serial);
            CHECK(!is_aside || bound[0] == 99);
        }
        side.recv = bound;
        side_close(&side);
        free(other);
    }
}

/* More of them than there may be temporary memory of their own for: the later ones share it. */
static void *
run_many(void *arg)
{
    enum { MANY = 20, MANY_COUNT = 1 << 20 };
    rdt_group *group = arg;
    struct side sides[MANY];

    side_open(&sides[0], group, RDT_COLL_ALLREDUCE, MANY_COUNT);
    for (unsigned i = 1; i < MANY; i++) {
        sides[i] = sides[0];
        side_init(&sides[i]);
    }
    for (unsigned i = 0; i < MANY; i++) {
        put(&sides[i], i);
        finish(&sides[i], start(&sides[i], 0));
        check(&sides[i], i);
    }
    CHECK(((struct rdti_team *)group->attached)->owned_bytes <= RDTI_TEMPS_OWN_BYTES);
    CHECK(((struct rdti_team *)group->attached)->owned_bytes > RDTI_TEMPS_OWN_BYTES / 2);
    for (unsigned i = 1; i < MANY; i++)
        rdt_coll_free(sides[i].persistent);
    side_close(&sides[0]);
    CHECK_UINT_EQ(((struct rdti_team *)group->attached)->owned_bytes, 0);
    return NULL;
}

static void
expect(rdt_status status, rdt_status wanted_status, const struct rdt_error *err, const char *words)
{
    CHECK_INT_EQ(status, wanted_status);
    CHECK_MSG(strstr(err->message, words) != NULL, "'%s' does not say '%s'", err->message, words);
}

/* Before the exchange has ended, and before the last start has. */
static void
check_order(rdt_group *group)
{
    float value = 1;
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_ALLREDUCE,
                                 .dtype = RDT_F32,
                                 .reduce_op = RDT_SUM,
                                 .count = 1,
                                 .send = &value,
                                 .recv = &value};
    rdt_persistent *p = NULL;
    rdt_transfer *exchange = NULL;
    rdt_transfer *first = NULL;
    struct rdt_error err = {0};

    CHECK_OK(rdt_coll_init(group, &args, &p, &exchange, &err), &err);
    const rdt_status early = rdt_coll_start(p, 0, &first, &err);
    CHECK(early == RDT_EBUSY || early == RDT_EINVAL); /* the exchange may be over by now */
    CHECK_OK(fake_wait(group, exchange, &err), &err);
    expect(rdt_coll_start(p, 0, &first, &err), RDT_EINVAL, &err, "it was not bound");
    fake_world_meet(&world);
    expect(rdt_coll_start(p, 2, &first, &err), RDT_EINVAL, &err, "unknown bits");
    rdt_coll_free(p);
}

/* One rank has another count: all learn of it, and the group goes on. */
static void
check_mismatch(rdt_group *group)
{
    float values[8] = {0};
    struct rdt_coll_args args = {.struct_size = sizeof(args),
                                 .op = RDT_COLL_BROADCAST,
                                 .dtype = RDT_F32,
                                 .count = group->rank == 0 ? 8 : 7,
                                 .recv = values};
    rdt_persistent *p = NULL;
    rdt_transfer *t = NULL;
    struct rdt_error err = {0};

    CHECK_OK(rdt_coll_init(group, &args, &p, &t, &err), &err);
    CHECK_OK(fake_wait(group, t, &err), &err);
    expect(rdt_coll_bind(p, &t, &err), RDT_EMISMATCH, &err, "broadcast of 8 float32");
    rdt_coll_free(p);
    args.count = 7;
    CHECK_OK(fake_run_coll(group, &args, &err), &err);
}

static void *
run_refused(void *arg)
{
    check_order(arg);
    check_mismatch(arg);
    return NULL;
}

/* Ranks start two of one description in different orders. */
static void *
run_swapped(void *arg)
{
    rdt_group *group = arg;
    struct side sides[2];
    rdt_transfer *t = NULL;
    struct rdt_error err = {0};

    for (unsigned i = 0; i < 2; i++)
        side_open(&sides[i], group, RDT_COLL_ALLREDUCE, counts[2]);
    rdt_status status = rdt_coll_start(sides[group->rank].persistent, 0, &t, &err);
    if (status == RDT_OK)
        status = fake_wait(group, t, &err);
    CHECK(status == RDT_EMISMATCH || status == RDT_EPEER);
    CHECK_MSG(strstr(err.message, "called the persistent (number ") != NULL, "%s", err.message);
    for (unsigned i = 0; i < 2; i++)
        side_close(&sides[i]);
    return NULL;
}

static void
run_once(uint32_t size, const char *name, void *(*rank_main)(void *group))
{
    algorithm = name;
    fake_force(name);
    fake_world_init(&world, size, size);
    fake_world_run(&world, rank_main);
    fake_world_fini(&world);
}

static void *
run_rank(void *arg)
{
    repeat(arg);
    overlap(arg);
    start_aside(arg);
    return NULL;
}

static void
run_all(uint32_t size, const char *name)
{
    algorithm = name;
    fake_force(name);
    fake_world_init(&world, size, 77 + size);
    for (uint32_t rank = 0; rank < size; rank++)
        world.hosts[rank] = is_on_hosts ? rank / 2 : 0;
    fake_world_run(&world, run_rank);
    fake_world_fini(&world);
}

static const char *const algorithms[] = {"auto", "messages", "ring", "tree", "halving-doubling"};
enum { ALGORITHMS = sizeof(algorithms) / sizeof(algorithms[0]) };

static void
run_sizes(bool in_arena)
{
    is_in_arena = in_arena;
    for (unsigned a = 0; a < ALGORITHMS; a++)
        for (uint32_t size = 1; size <= 5; size += size < 3 ? 1 : 2)
            run_all(size, algorithms[a]);
}

TEST_TIMEOUT(starts_from_private_memory, 60)
{
    run_sizes(false);
}

TEST_TIMEOUT(starts_from_an_arena, 60)
{
    run_sizes(true);
}

TEST(starts_on_several_hosts)
{
    is_in_arena = true;
    is_on_hosts = true;
    run_all(4, "auto");
    is_on_hosts = false;
}

/* Of a broadcast only the root's tensor is used by others, of an all_gather each member's. */
static void *
run_mixed(void *arg)
{
    rdt_group *group = arg;
    const uint32_t root = world.size - 1;
    struct side side;

    for (unsigned o = 0; o < 2; o++) {
        struct rdt_coll_binding binding = {.struct_size = sizeof(binding)};
        const bool is_broadcast = o == 0;
        side_open(&side, group, is_broadcast ? RDT_COLL_BROADCAST : RDT_COLL_ALLGATHER, counts[2]);
        float *given[2] = {side.send, side.recv};
        const uint64_t len_bytes = (counts[2] * world.size + 1) * sizeof(float);
        if (group->rank != root) {
            side.send = malloc(len_bytes);
            side.recv = malloc(len_bytes);
            CHECK_NOT_NULL(side.send);
            CHECK_NOT_NULL(side.recv);
        }
        rdt_coll_free(side.persistent);
        side.args.send = side.send;
        side.args.recv = side.recv;
        side_init(&side);
        for (unsigned serial = 0; serial < STARTS; serial++) {
            put(&side, serial);
            finish(&side, start(&side, 0));
            check(&side, serial);
        }
        rdt_coll_get_binding(side.persistent, &binding);
        CHECK_UINT_EQ(binding.way, is_broadcast ? RDT_WAY_IN_PLACE : RDT_WAY_STAGES);
        CHECK_UINT_EQ(binding.landing,
                      is_broadcast ? RDT_LANDING_OFFERED : RDT_LANDING_NOT_IN_ARENA);
        CHECK_UINT_EQ(binding.rank, is_broadcast ? RDT_SOURCE_ANY : 0);
        if (group->rank != root) {
            free(side.send);
            free(side.recv);
        }
        side.send = given[0];
        side.recv = given[1];
        side_close(&side);
    }
    return NULL;
}

TEST(a_broadcast_needs_the_roots_tensor_alone_in_an_arena)
{
    is_in_arena = true;
    for (uint32_t size = 2; size <= 4; size++)
        run_once(size, "auto", run_mixed);
}

TEST(wrong_calls_are_refused)
{
    run_once(3, "auto", run_refused);
}

TEST(members_that_start_different_ones_disagree)
{
    is_in_arena = true;
    run_once(2, "auto", run_swapped);
}

TEST(own_temporary_memory_has_a_limit)
{
    is_in_arena = false;
    run_once(2, "ring", run_many);
}

TEST_MAIN()
