/* SPDX-License-Identifier: Apache-2.0
 * What algorithms cost by the table. */
#include "collectives/select/cost.h"

#include <string.h>

#include "collectives/collective.h"

enum {
    STREAMS_MAX = 16, /* at a time: more are counted as this many */
    PS_PER_NS = 1000,
    /* Limit for a message where a rank sends one to each other at the same time: larger ones are
     * offered first, and would come from all at once; and a sum has room for all that come. */
    AT_ONCE_MAX_BYTES = 64 * 1024,
    /* Packed tensors are summed as each would be alone, so all small ones have one algorithm: the
     * one for this size. In it the order of a sum does not depend on the place of an element, and
     * partners send to each other at once, so that ranks that disagree learn it from the first
     * message. */
    SMALL_BYTES = 4096,
};
#define LEN_MAX_BYTES (UINT64_C(1) << 32) /* larger ones are chosen for as this one */

/* Of a virtual AMD EPYC (Zen 4, 2 cores); a group whose members share memory needs little of it.
 */
const struct rdti_costs rdti_costs_built_in = {
    .source = RDTI_COSTS_BUILT_IN,
    .far = RDTI_PATH_TCP,
    .paths = {[RDTI_PATH_BOARD] = {1000, 150, 1500},
              [RDTI_PATH_SHM] = {3000, 200, 1500},
              [RDTI_PATH_TCP] = {30000, 600, 1300},
              [RDTI_PATH_VERBS] = {5000, 100, 1000}},
    .gamma_ps = 100,
};

static uint64_t
cost_within(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : (value > most ? most : value);
}

void
rdti_costs_clamp(struct rdti_costs *costs)
{
    for (unsigned i = 0; i < RDTI_PATHS; i++) {
        struct rdti_path_cost *path = &costs->paths[i];
        path->alpha_ns = cost_within(path->alpha_ns, 1, RDTI_COSTS_ALPHA_MAX_NS);
        path->beta_ps = cost_within(path->beta_ps, 1, RDTI_COSTS_BETA_MAX_PS);
        path->duplex_permille = cost_within(path->duplex_permille, RDTI_COSTS_DUPLEX_MIN_PERMILLE,
                                            RDTI_COSTS_DUPLEX_MAX_PERMILLE);
    }
    costs->gamma_ps = cost_within(costs->gamma_ps, 1, RDTI_COSTS_BETA_MAX_PS);
    costs->far = cost_within(costs->far, RDTI_PATH_SHM, RDTI_PATHS - 1);
    costs->source = cost_within(costs->source, 0, RDTI_COSTS_SOURCES - 1);
}

/* What algorithms run on: messages of one kind among `size` ranks. */
struct ground {
    struct rdti_path_cost path;
    uint64_t gamma_ps;
    uint64_t len_bytes;
    uint32_t size;
    uint32_t ranks_per_host;
};

static uint64_t
cost_rounds_of(uint32_t size)
{
    uint64_t rounds = 0;

    while ((UINT64_C(1) << rounds) < size)
        rounds++;
    return rounds;
}

/* The cost of each of `streams` messages at a time that begin or end at one host: they share what
 * two directions were seen to share, cores or a link. */
static uint64_t
cost_shared_ps(const struct ground *on, uint64_t cost_ps, uint64_t streams)
{
    const uint64_t more = on->path.duplex_permille - RDTI_COSTS_DUPLEX_MIN_PERMILLE;
    const uint64_t others = cost_within(streams, 1, STREAMS_MAX) - 1;

    return cost_ps / 1000 * (1000 + more * others);
}

static uint64_t
cost_messages_ps(const struct ground *on, uint64_t messages, uint64_t len_bytes, uint64_t streams)
{
    return cost_shared_ps(on,
                          messages * on->path.alpha_ns * PS_PER_NS + len_bytes * on->path.beta_ps,
                          streams);
}

/* All ranks of a host sum at once. */
static uint64_t
cost_sum_ps(const struct ground *on, uint64_t len_bytes)
{
    return cost_shared_ps(on, len_bytes * on->gamma_ps, on->ranks_per_host);
}

/* Ranks beyond a power of two join before, and get the result after. */
static uint64_t
cost_joining_ps(const struct ground *on)
{
    const bool is_power = (on->size & (on->size - 1)) == 0;

    return is_power ? 0
                    : cost_messages_ps(on, 2, 2 * on->len_bytes, on->ranks_per_host) +
                          cost_sum_ps(on, on->len_bytes);
}

static uint64_t
cost_doubling_ps(const struct ground *on)
{
    const uint64_t round =
        cost_messages_ps(on, 1, on->len_bytes, UINT64_C(2) * on->ranks_per_host) +
        cost_sum_ps(on, on->len_bytes);

    return cost_rounds_of(on->size) * round + cost_joining_ps(on);
}

/* Both phases of halving and of a ring move all but a rank's own share. */
static uint64_t
cost_shares_ps(const struct ground *on, uint64_t messages)
{
    const uint64_t moved = on->len_bytes - on->len_bytes / on->size;

    return cost_messages_ps(on, 2 * messages, 2 * moved, UINT64_C(2) * on->ranks_per_host) +
           cost_sum_ps(on, moved);
}

static uint64_t
cost_halving_ps(const struct ground *on)
{
    return cost_shares_ps(on, cost_rounds_of(on->size)) + cost_joining_ps(on);
}

static uint64_t
cost_ring_ps(const struct ground *on)
{
    return cost_shares_ps(on, on->size - 1);
}

/* Up and down, in each round one direction only. */
static uint64_t
cost_tree_ps(const struct ground *on)
{
    return cost_rounds_of(on->size) *
           (cost_messages_ps(on, 2, 2 * on->len_bytes, on->ranks_per_host) +
            cost_sum_ps(on, on->len_bytes));
}

/* A block of `len_bytes` to each of the others, or one from each. */
static uint64_t
cost_to_others(const struct ground *on, uint64_t len_bytes)
{
    return cost_within((on->size - 1) * len_bytes, 0, LEN_MAX_BYTES);
}

static uint64_t
cost_gather_ring_ps(const struct ground *on)
{
    return cost_messages_ps(on, on->size - 1, cost_to_others(on, on->len_bytes),
                            UINT64_C(2) * on->ranks_per_host);
}

/* With all others at once, both ways. */
static uint64_t
cost_at_once_ps(const struct ground *on, uint64_t len_bytes)
{
    const uint64_t streams = UINT64_C(2) * (on->size - 1) * on->ranks_per_host;

    return cost_messages_ps(on, 1, cost_to_others(on, len_bytes), streams);
}

static uint64_t
cost_gather_direct_ps(const struct ground *on)
{
    return cost_at_once_ps(on, on->len_bytes);
}

static uint64_t
cost_scatter_ring_ps(const struct ground *on)
{
    return cost_gather_ring_ps(on) + cost_sum_ps(on, cost_to_others(on, on->len_bytes));
}

/* The local block is copied too, and the sum to its place: counted as summing. */
static uint64_t
cost_scatter_direct_ps(const struct ground *on)
{
    return cost_gather_direct_ps(on) +
           cost_sum_ps(on, cost_to_others(on, on->len_bytes) + 2 * on->len_bytes);
}

static uint64_t
cost_reduce_tree_ps(const struct ground *on)
{
    return cost_rounds_of(on->size) * (cost_messages_ps(on, 1, on->len_bytes, on->ranks_per_host) +
                                       cost_sum_ps(on, on->len_bytes));
}

/* Each rank sums a share of all, copied twice as above, and the root gets the others'. */
static uint64_t
cost_reduce_direct_ps(const struct ground *on)
{
    const uint64_t moved = on->len_bytes - on->len_bytes / on->size;
    const uint64_t streams = (uint64_t)(on->size - 1) * on->ranks_per_host;

    return cost_at_once_ps(on, on->len_bytes / on->size) +
           cost_sum_ps(on, moved + 2 * (on->len_bytes / on->size)) +
           cost_messages_ps(on, 1, moved, streams);
}

static uint64_t
cost_broadcast_tree_ps(const struct ground *on)
{
    const uint64_t rounds = cost_rounds_of(on->size);

    return rounds * cost_messages_ps(on, 1, on->len_bytes, on->ranks_per_host);
}

/* Halves, quarters and so on down the tree, then all but a share round the ring. */
static uint64_t
cost_broadcast_ring_ps(const struct ground *on)
{
    const uint64_t moved = on->len_bytes - on->len_bytes / on->size;

    return cost_messages_ps(on, cost_rounds_of(on->size), moved, on->ranks_per_host) +
           cost_messages_ps(on, on->size - 1, moved, UINT64_C(2) * on->ranks_per_host);
}

static const struct {
    uint32_t op;
    const struct rdti_coll_algorithm *algorithm;
    uint64_t (*cost_ps)(const struct ground *on);
    bool is_for_small;
    uint64_t most_bytes; /* of a block */
} ways[] = {
    /* Of equal costs the first one counts. */
    {RDT_COLL_ALLREDUCE, &rdti_allreduce_doubling, cost_doubling_ps, true, UINT64_MAX},
    {RDT_COLL_ALLREDUCE, &rdti_allreduce_tree, cost_tree_ps, false, UINT64_MAX},
    {RDT_COLL_ALLREDUCE, &rdti_allreduce_halving, cost_halving_ps, true, UINT64_MAX},
    {RDT_COLL_ALLREDUCE, &rdti_allreduce_ring, cost_ring_ps, false, UINT64_MAX},
    {RDT_COLL_ALLGATHER, &rdti_allgather_ring, cost_gather_ring_ps, false, UINT64_MAX},
    {RDT_COLL_ALLGATHER, &rdti_allgather_direct, cost_gather_direct_ps, true, AT_ONCE_MAX_BYTES},
    {RDT_COLL_REDUCE_SCATTER, &rdti_reduce_scatter_ring, cost_scatter_ring_ps, true, UINT64_MAX},
    {RDT_COLL_REDUCE_SCATTER, &rdti_reduce_scatter_ordered, cost_scatter_direct_ps, true,
     AT_ONCE_MAX_BYTES},
    {RDT_COLL_REDUCE, &rdti_reduce_binomial, cost_reduce_tree_ps, true, UINT64_MAX},
    {RDT_COLL_REDUCE, &rdti_reduce_ordered, cost_reduce_direct_ps, false, UINT64_MAX},
    {RDT_COLL_BROADCAST, &rdti_broadcast_binomial, cost_broadcast_tree_ps, true, UINT64_MAX},
    {RDT_COLL_BROADCAST, &rdti_broadcast_ring, cost_broadcast_ring_ps, false, UINT64_MAX},
};

static struct rdti_cost_plan
cost_best_of(uint32_t op, const struct ground *on, bool is_small)
{
    struct rdti_cost_plan best = {.cost_ps = UINT64_MAX};

    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (ways[i].op != op || on->len_bytes > ways[i].most_bytes ||
            (is_small && !ways[i].is_for_small))
            continue;
        const uint64_t cost_ps = ways[i].cost_ps(on);
        if (cost_ps < best.cost_ps)
            best = (struct rdti_cost_plan){.algorithm = ways[i].algorithm, .cost_ps = cost_ps};
    }
    return best;
}

static bool
cost_is_small(uint64_t len_bytes)
{
    return len_bytes <= RDT_COLL_PART_MAX_BYTES;
}

static uint64_t
cost_len_for(uint64_t len_bytes)
{
    return cost_is_small(len_bytes) ? SMALL_BYTES : cost_within(len_bytes, 0, LEN_MAX_BYTES);
}

struct rdti_cost_plan
rdti_cost_flat(const struct rdti_costs *costs, uint32_t op, uint32_t size,
               const struct rdti_hosts *hosts, uint64_t len_bytes)
{
    const struct ground on = {.path = costs->paths[costs->far],
                              .gamma_ps = costs->gamma_ps,
                              .len_bytes = cost_len_for(len_bytes),
                              .size = size,
                              .ranks_per_host = hosts == NULL ? 1 : hosts->most};

    return cost_best_of(op, &on, cost_is_small(len_bytes));
}

/* Up and down over the boards of the largest host: every rank stores what the rails sum, a rail
 * reads a share of all, stores the sum, and all read it. */
static uint64_t
cost_boards_ps(const struct rdti_costs *costs, uint32_t members, uint32_t rails, uint64_t len_bytes)
{
    const struct rdti_path_cost *board = &costs->paths[RDTI_PATH_BOARD];
    const struct ground on = {.path = *board};
    const uint64_t ticks = 2 + len_bytes * (rails + 1) / rails / RDTI_STAGE_BYTES;
    const uint64_t sums_ps = (members - 1) * (len_bytes / rails) * costs->gamma_ps;

    if (members == 1)
        return 0;
    return cost_messages_ps(&on, ticks, 2 * len_bytes, members) +
           cost_shared_ps(&on, sums_ps, rails);
}

struct rdti_cost_plan
rdti_cost_by_hosts(const struct rdti_costs *costs, const struct rdti_hosts *hosts,
                   uint64_t len_bytes)
{
    const uint32_t most_rails = cost_is_small(len_bytes) ? 1 : hosts->least;
    struct rdti_cost_plan best = {.cost_ps = UINT64_MAX};

    /* One rail, or as many as possible: the cost of numbers in between lies in between. */
    for (uint32_t rails = 1; rails <= most_rails; rails = rails < most_rails ? most_rails : 65) {
        const uint64_t len = cost_len_for(len_bytes);
        const struct ground on = {.path = costs->paths[costs->far],
                                  .gamma_ps = costs->gamma_ps,
                                  .len_bytes = len / rails,
                                  .size = hosts->count,
                                  .ranks_per_host = rails};
        struct rdti_cost_plan plan =
            cost_best_of(RDT_COLL_ALLREDUCE, &on, cost_is_small(len_bytes));
        plan.cost_ps += cost_boards_ps(costs, hosts->most, rails, len);
        plan.rails = rails;
        if (plan.cost_ps < best.cost_ps)
            best = plan;
    }
    return best;
}
