/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations that several algorithms can carry out over messages: the table of costs takes the
 * cheapest, each can be forced, all give the same, and what is chosen is told.
 */
#include "collectives/fake_group.h"

#include "collectives/collective.h"
#include "collectives/select/cost.h"
#include "collectives/team/team.h"

static struct fake_world world;

static const uint32_t sizes[] = {2, 3, 5, 8};
enum { SIZES = 4 };

/* ---- The cheapest by the table, computed once more, by collectives.md ---- */

struct ground {
    double alpha_ns;
    double beta_ns;
    double gamma_ns;
    double duplex;
    double size;
    double len_bytes;
};

/* One after the other, `streams` of them at a time at one rank. */
static double
messages(const struct ground *on, double count, double len_bytes, double streams)
{
    const double at_once = streams < 1 ? 1 : streams > 16 ? 16 : streams;

    return (count * on->alpha_ns + len_bytes * on->beta_ns) *
           (1 + (on->duplex - 1) * (at_once - 1));
}

static double
levels(const struct ground *on)
{
    double count = 0;

    for (double reached = 1; reached < on->size; reached *= 2)
        count++;
    return count;
}

static double
all_gather_by_ring(const struct ground *on)
{
    const double others = on->size - 1;

    return messages(on, others, others * on->len_bytes, 2);
}

static double
all_gather_at_once(const struct ground *on)
{
    const double others = on->size - 1;

    return messages(on, 1, others * on->len_bytes, 2 * others);
}

static double
sum_of_blocks(const struct ground *on)
{
    return (on->size - 1) * on->len_bytes * on->gamma_ns;
}

static double
reduce_scatter_by_ring(const struct ground *on)
{
    return all_gather_by_ring(on) + sum_of_blocks(on);
}

static double
reduce_scatter_at_once(const struct ground *on)
{
    return all_gather_at_once(on) + sum_of_blocks(on) + 2 * on->len_bytes * on->gamma_ns;
}

static double
reduce_by_tree(const struct ground *on)
{
    return levels(on) * (messages(on, 1, on->len_bytes, 1) + on->len_bytes * on->gamma_ns);
}

static double
reduce_by_shares(const struct ground *on)
{
    const double others = on->size - 1;
    const double moved = on->len_bytes * others / on->size;

    return messages(on, 1, moved, 2 * others) +
           (moved + 2 * on->len_bytes / on->size) * on->gamma_ns + messages(on, 1, moved, others);
}

static double
broadcast_by_tree(const struct ground *on)
{
    return levels(on) * messages(on, 1, on->len_bytes, 1);
}

static double
broadcast_by_ring(const struct ground *on)
{
    const double moved = on->len_bytes * (on->size - 1) / on->size;

    return messages(on, levels(on), moved, 1) + messages(on, on->size - 1, moved, 2);
}

static struct way {
    const char *forced; /* by RDMATENSOR_ALGO */
    uint32_t op;
    const struct rdti_coll_algorithm *algorithm;
    double (*cost_ns)(const struct ground *on);
    uint64_t least_bytes;
    uint64_t most_bytes;
    unsigned chosen;
} ways[] = {
    {"ring", RDT_COLL_ALLGATHER, &rdti_allgather_ring, all_gather_by_ring, 16385, UINT64_MAX, 0},
    {"direct", RDT_COLL_ALLGATHER, &rdti_allgather_direct, all_gather_at_once, 0, 65536, 0},
    {"ring", RDT_COLL_REDUCE_SCATTER, &rdti_reduce_scatter_ring, reduce_scatter_by_ring, 0,
     UINT64_MAX, 0},
    {"direct", RDT_COLL_REDUCE_SCATTER, &rdti_reduce_scatter_ordered, reduce_scatter_at_once, 0,
     65536, 0},
    {"tree", RDT_COLL_REDUCE, &rdti_reduce_binomial, reduce_by_tree, 0, UINT64_MAX, 0},
    {"direct", RDT_COLL_REDUCE, &rdti_reduce_ordered, reduce_by_shares, 16385, UINT64_MAX, 0},
    {"tree", RDT_COLL_BROADCAST, &rdti_broadcast_binomial, broadcast_by_tree, 0, UINT64_MAX, 0},
    {"ring", RDT_COLL_BROADCAST, &rdti_broadcast_ring, broadcast_by_ring, 16385, UINT64_MAX, 0},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static bool
is_of(const struct way *way, uint32_t op, uint64_t len_bytes)
{
    return way->op == op && len_bytes >= way->least_bytes && len_bytes <= way->most_bytes;
}

/* Ranks, each on a host of its own; what is small is all chosen for as 4 KiB. */
static void
check_cheapest(const struct rdti_costs *costs, uint32_t op, uint32_t size, uint64_t len_bytes)
{
    const struct rdti_path_cost *path = &costs->paths[costs->far];
    const struct ground on = {.alpha_ns = (double)path->alpha_ns,
                              .beta_ns = (double)path->beta_ps / 1000,
                              .gamma_ns = (double)costs->gamma_ps / 1000,
                              .duplex = (double)path->duplex_permille / 1000,
                              .size = size,
                              .len_bytes = len_bytes <= 16384 ? 4096 : (double)len_bytes};
    const struct rdti_cost_plan plan = rdti_cost_flat(costs, op, size, NULL, len_bytes);
    double least_ns = -1;
    double chosen_ns = -1;

    for (size_t i = 0; i < WAYS; i++) {
        if (!is_of(&ways[i], op, len_bytes))
            continue;
        const double cost_ns = ways[i].cost_ns(&on);
        least_ns = least_ns < 0 || cost_ns < least_ns ? cost_ns : least_ns;
        if (plan.algorithm != ways[i].algorithm)
            continue;
        chosen_ns = cost_ns;
        ways[i].chosen++;
    }
    CHECK_MSG(chosen_ns >= 0, "operation %u of %u ranks, %llu bytes: none that is known", op, size,
              (unsigned long long)len_bytes);
    /* Whole picoseconds and shares of whole bytes there, none of them here. */
    CHECK_MSG(chosen_ns <= 1.003 * least_ns, "operation %u of %u ranks, %llu bytes: %g, not %g ns",
              op, size, (unsigned long long)len_bytes, chosen_ns, least_ns);
}

TEST(each_operation_goes_by_the_cheapest_of_its_algorithms)
{
    static const uint32_t ops[] = {RDT_COLL_ALLGATHER, RDT_COLL_REDUCE_SCATTER, RDT_COLL_REDUCE,
                                   RDT_COLL_BROADCAST};
    struct rdti_costs costs = rdti_costs_built_in;
    struct rdti_path_cost *path = &costs.paths[costs.far];
    uint64_t random = 3;

    for (size_t i = 0; i < WAYS; i++)
        ways[i].chosen = 0;
    for (int round = 0; round < 20000; round++) {
        path->alpha_ns = 1000 + fake_random(&random) % 100000;
        path->beta_ps = 50 + fake_random(&random) % 2000;
        path->duplex_permille = 1000 + fake_random(&random) % 1001;
        costs.gamma_ps = 50 + fake_random(&random) % 500;
        const uint32_t size = 2 + (uint32_t)(fake_random(&random) % 40);
        const uint64_t len_bytes = UINT64_C(1) << (fake_random(&random) % 27);
        check_cheapest(&costs, ops[round % 4], size, len_bytes + fake_random(&random) % 100);
    }
    for (size_t i = 0; i < WAYS; i++)
        CHECK_MSG(ways[i].chosen > 20, "%s of operation %u was chosen %u times",
                  ways[i].algorithm->name, ways[i].op, ways[i].chosen);
}

/* ---- Each of them, forced ---- */

static struct rdt_coll_args args; /* of the ranks of a world; buffers are each one's own */

/* Element i of what a rank gets; element i of its input is fake_value(rank, i). */
static int32_t
result_of(uint32_t rank, uint64_t i)
{
    switch (args.op) {
    case RDT_COLL_BROADCAST:
        return fake_value(args.root, i);
    case RDT_COLL_ALLGATHER:
        return fake_value((uint32_t)(i / args.count), i % args.count);
    case RDT_COLL_REDUCE_SCATTER:
        return fake_sum(world.size, rank * args.count + i);
    default:
        return rank == args.root ? fake_sum(world.size, i) : fake_value(rank, i);
    }
}

static void *
run_once(void *arg)
{
    rdt_group *group = arg;
    struct rdt_coll_args own = args;
    struct rdt_error err = {0};
    const bool gets_all = args.op == RDT_COLL_ALLGATHER;
    const bool gives_all = args.op == RDT_COLL_REDUCE_SCATTER;
    const bool is_in_place = !gets_all && !gives_all;
    const uint64_t all = args.count * world.size;
    const uint64_t out_count = gets_all ? all : args.count;
    int32_t *in = calloc(all + 1, sizeof(*in));
    int32_t *out = calloc(all + 1, sizeof(*out));

    CHECK(in != NULL && out != NULL);
    for (uint64_t i = 0; i < all; i++)
        in[i] = out[i] = fake_value(group->rank, i);
    out[out_count] = 77; /* nobody writes past the end */
    own.send = args.op == RDT_COLL_BROADCAST ? NULL : is_in_place ? out : in;
    own.recv = out;
    CHECK_OK(fake_run_coll(group, &own, &err), &err);
    for (uint64_t i = 0; i < out_count; i++)
        if (out[i] != result_of(group->rank, i))
            FAIL("rank %u of %u: [%llu] is %d, not %d", group->rank, world.size,
                 (unsigned long long)i, out[i], result_of(group->rank, i));
    CHECK_INT_EQ(out[out_count], 77);
    free(in);
    free(out);
    return NULL;
}

/* Ranks that share no memory. */
static void
run_apart(const char *forced, uint32_t size, uint32_t op, uint32_t root, uint64_t count)
{
    args = (struct rdt_coll_args){.struct_size = sizeof(args),
                                  .op = op,
                                  .dtype = RDT_I32,
                                  .reduce_op = RDT_SUM,
                                  .root = root,
                                  .count = count};
    if (op == RDT_COLL_BROADCAST || op == RDT_COLL_ALLGATHER)
        args.reduce_op = 0;
    fake_force(forced);
    fake_world_init(&world, size, size + count);
    world.is_apart = true;
    fake_world_run(&world, run_once);
    CHECK_UINT_EQ(world.aborts, 0);
}

static void
check_ran(const char *name)
{
    for (uint32_t rank = 0; rank < world.size; rank++) {
        const struct rdti_team *team = world.groups[rank].attached;
        CHECK_STR_EQ(team->ran[0].name, name);
        CHECK(team->ran[1].name == NULL);
    }
}

TEST_TIMEOUT(each_algorithm_that_is_forced_runs_and_is_right, 60)
{
    static const uint64_t counts[] = {0, 1, 5, 20001};

    for (size_t w = 0; w < WAYS; w++)
        for (size_t s = 0; s < SIZES; s++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                const bool has_root =
                    ways[w].op == RDT_COLL_BROADCAST || ways[w].op == RDT_COLL_REDUCE;
                run_apart(ways[w].forced, sizes[s], ways[w].op,
                          has_root ? (uint32_t)(c % sizes[s]) : 0, counts[c]);
                check_ran(ways[w].algorithm->name);
                fake_world_fini(&world);
            }
}

/* No member gets a byte twice, and none sends more than twice what there is. */
TEST(a_ring_brings_what_is_broadcast_to_each_member_once)
{
    enum { COUNT = 70001, LEN_BYTES = COUNT * 4 };

    for (size_t s = 0; s < SIZES; s++) {
        run_apart("ring", sizes[s], RDT_COLL_BROADCAST, 1, COUNT);
        for (uint32_t rank = 0; rank < world.size; rank++) {
            uint64_t got_bytes = 0;
            uint64_t sent_bytes = 0;
            for (uint32_t peer = 0; peer < world.size; peer++) {
                got_bytes += world.sent_bytes[peer][rank];
                sent_bytes += world.sent_bytes[rank][peer];
            }
            CHECK_UINT_EQ(got_bytes, rank == 1 ? 0 : LEN_BYTES);
            CHECK_UINT_LE(sent_bytes, 2 * LEN_BYTES);
        }
        fake_world_fini(&world);
    }
}

/* ---- What is told ---- */

static void
describe(uint32_t rank, char *text, size_t cap)
{
    struct rdt_error err = {0};
    size_t needed = 0;

    CHECK_OK(rdt_group_coll_describe(&world.groups[rank], text, cap, &needed, &err), &err);
}

/* From how many bytes of a block on it says that an all_gather goes by ring. */
static uint64_t
told_change(void)
{
    static const char before[] = "\"all_gather\":{\"0\":\"direct\",\"";
    char first[8192];
    char other[8192];
    char *end;

    describe(0, first, sizeof(first));
    const char *chosen = strstr(first, "\"chosen\":{\"broadcast\":{\"0\":\"binomial\"");
    CHECK_NOT_NULL(chosen);
    for (uint32_t rank = 1; rank < world.size; rank++) {
        describe(rank, other, sizeof(other));
        CHECK_STR_CONTAINS(other, chosen);
    }
    CHECK_STR_CONTAINS(chosen, "\"gather\":{\"0\":\"direct\"},\"scatter\":{\"0\":\"direct\"}");
    const char *at = strstr(chosen, before);
    CHECK_NOT_NULL(at);
    const uint64_t bytes = strtoull(at + strlen(before), &end, 10);
    CHECK_MSG(strncmp(end, "\":\"ring\"}", 9) == 0, "no ring at last: %s", at);
    return bytes;
}

TEST(what_is_chosen_is_told_and_is_what_runs)
{
    run_apart("messages", 3, RDT_COLL_ALLGATHER, 0, 1);
    const uint64_t bytes = told_change() / 4 * 4;
    fake_world_fini(&world);
    CHECK(bytes > 16384 && bytes <= 65536);
    run_apart("messages", 3, RDT_COLL_ALLGATHER, 0, bytes / 4 - 1);
    check_ran("direct");
    fake_world_fini(&world);
    run_apart("messages", 3, RDT_COLL_ALLGATHER, 0, bytes / 4 + 1);
    check_ran("ring");
    fake_world_fini(&world);
}

TEST_MAIN()
