/* SPDX-License-Identifier: Apache-2.0
 * Which algorithm carries out a collective: by its kind, its bytes, and RDMATENSOR_ALGO.
 */
#include "collectives/collective.h"
#include "collectives/select/choice.h"
#include "collectives/select/cost.h"
#include "collectives/team/team.h"

enum {
    /* Below, messages are sent eagerly, and a root was ahead of one that fills a board, when that
     * still waited for the others: not measured since. Above, a board's two passes over memory cost
     * more than a tree's one. */
    BROADCAST_BY_HOSTS_MIN_BYTES = 32 * 1024,
    BROADCAST_BY_HOSTS_MAX_BYTES = 1024 * 1024,
};

bool
rdti_choice_wants_boards(unsigned choice, uint32_t size)
{
    return (choice == CHOICE_AUTO || choice == CHOICE_DIRECT || choice == CHOICE_HIERARCHICAL) &&
           size <= RDTI_TEAM_MAX;
}

/* Packed tensors are small, so that only a ring that is forced sums them by chunks: cost.c. */
bool
rdti_choice_sums_by_chunk(const struct rdti_coll *coll)
{
    return coll->team != NULL && coll->team->choice == CHOICE_RING;
}

/* NULL: each member is alone on its host. */
static const struct rdti_hosts *
select_hosts_of(const struct rdti_coll *coll)
{
    return rdti_team_verdict(coll->team) == RDTI_VERDICT_HOSTS ? &coll->team->hosts : NULL;
}

/* NULL: the operation has one algorithm. */
static const struct rdti_coll_algorithm *
select_cheapest(const struct rdti_coll *coll)
{
    /* Only a sum must go in a pack as each tensor does alone. */
    const uint64_t len_bytes =
        coll->args.op == RDT_COLL_ALLGATHER ? coll->block_bytes : rdti_pack_unit_bytes(coll);

    if (coll->team == NULL)
        return rdti_cost_flat(&rdti_costs_built_in, coll->args.op, coll->size, NULL, len_bytes)
            .algorithm;
    return rdti_cost_flat(coll->team->costs, coll->args.op, coll->size, select_hosts_of(coll),
                          len_bytes)
        .algorithm;
}

/* A small value that is divided before it is summed is 0 in f16; bf16 has the range of a float. */
static bool
select_may_divide_first(const struct rdti_coll *coll)
{
    return coll->args.dtype != RDT_F16 || !rdti_coll_averages_halves(coll);
}

/* Messages carry inputs alone, so that no partial sum is rounded. Between hosts of several members
 * a ring, which divides first, has so many times fewer bytes. */
static bool
select_sums_inputs(const struct rdti_coll *coll)
{
    return rdti_coll_averages_halves(coll) && coll->size > 2 &&
           (!select_may_divide_first(coll) || coll->args.op != RDT_COLL_REDUCE_SCATTER ||
            select_hosts_of(coll) == NULL);
}

/* The operation sums, and has to do so in rank order, or of inputs. NULL: it does not. */
static const struct rdti_coll_algorithm *
select_ordered_of(const struct rdti_coll *coll)
{
    if (coll->team == NULL || (!coll->team->is_ordered && !select_sums_inputs(coll)))
        return NULL;
    switch (coll->args.op) {
    case RDT_COLL_ALLREDUCE:
        return &rdti_allreduce_ordered;
    case RDT_COLL_REDUCE:
        return &rdti_reduce_ordered;
    case RDT_COLL_REDUCE_SCATTER:
        return &rdti_reduce_scatter_ordered;
    default:
        return NULL;
    }
}

/* A forced algorithm counts where the operation has it. */
static const struct rdti_coll_algorithm *
select_choose_messages(const struct rdti_coll *coll, unsigned choice)
{
    static const struct rdti_coll_algorithm *const forced[][CHOICES] = {
        [RDT_COLL_BROADCAST] = {[CHOICE_RING] = &rdti_broadcast_ring,
                                [CHOICE_TREE] = &rdti_broadcast_binomial},
        [RDT_COLL_REDUCE] = {[CHOICE_DIRECT] = &rdti_reduce_ordered,
                             [CHOICE_TREE] = &rdti_reduce_binomial},
        [RDT_COLL_ALLREDUCE] = {[CHOICE_DIRECT] = &rdti_allreduce_doubling,
                                [CHOICE_RING] = &rdti_allreduce_ring,
                                [CHOICE_HALVING] = &rdti_allreduce_halving,
                                [CHOICE_TREE] = &rdti_allreduce_tree},
        [RDT_COLL_ALLGATHER] = {[CHOICE_DIRECT] = &rdti_allgather_direct,
                                [CHOICE_RING] = &rdti_allgather_ring},
        [RDT_COLL_REDUCE_SCATTER] = {[CHOICE_DIRECT] = &rdti_reduce_scatter_ordered,
                                     [CHOICE_RING] = &rdti_reduce_scatter_ring},
    };
    static const struct rdti_coll_algorithm *const only[] = {
        [RDT_COLL_GATHER] = &rdti_gather_direct,
        [RDT_COLL_SCATTER] = &rdti_scatter_direct,
        [RDT_COLL_ALLTOALL] = &rdti_alltoall_pairwise,
        [RDT_COLL_BARRIER] = &rdti_barrier_dissemination,
    };
    const uint32_t op = coll->args.op;

    if (select_ordered_of(coll) != NULL)
        return select_ordered_of(coll);
    if (op < sizeof(forced) / sizeof(forced[0]) && forced[op][choice] != NULL)
        return forced[op][choice];
    const struct rdti_coll_algorithm *algorithm = select_cheapest(coll);
    return algorithm != NULL ? algorithm : only[op];
}

/* Messages of a binomial tree that go to another host; by way of hosts there is one for each. */
static bool
select_crosses_more_than_once(const struct rdti_coll *coll)
{
    const struct rdti_hosts *hosts = &coll->team->hosts;
    uint32_t crossing = 0;

    for (uint32_t member = 1; member < coll->size; member++) {
        const uint32_t above = member & (member - 1);
        const uint32_t root = coll->args.root;
        if (hosts->of[(root + member) % coll->size] != hosts->of[(root + above) % coll->size])
            crossing++;
    }
    return crossing >= hosts->count;
}

static bool
select_goes_by_hosts(const struct rdti_coll *coll)
{
    const struct rdti_team *team = coll->team;
    const uint64_t bytes = rdti_pack_unit_bytes(coll);

    if (team->choice == CHOICE_DIRECT || !rdti_hierarchical_has(coll->args.op) ||
        !select_may_divide_first(coll) || (team->is_ordered && select_ordered_of(coll) != NULL))
        return false;
    if (team->choice == CHOICE_HIERARCHICAL)
        return true;
    if (coll->args.op == RDT_COLL_BROADCAST)
        return bytes >= BROADCAST_BY_HOSTS_MIN_BYTES && bytes <= BROADCAST_BY_HOSTS_MAX_BYTES &&
               select_crosses_more_than_once(coll);
    if (coll->args.op != RDT_COLL_ALLREDUCE)
        return true;
    return rdti_cost_by_hosts(team->costs, &team->hosts, bytes).cost_ps <
           rdti_cost_flat(team->costs, RDT_COLL_ALLREDUCE, coll->size, &team->hosts, bytes).cost_ps;
}

/* For a group that sends messages. */
static const struct rdti_coll_algorithm *
select_choose_by_costs(const struct rdti_coll *coll)
{
    if (rdti_team_verdict(coll->team) == RDTI_VERDICT_HOSTS && select_goes_by_hosts(coll))
        return &rdti_hierarchical;
    return select_choose_messages(coll, coll->team->choice);
}

const struct rdti_coll_algorithm *
rdti_coll_choose(const struct rdti_coll *coll)
{
    if (coll->team == NULL) /* a group of one */
        return select_choose_messages(coll, CHOICE_AUTO);
    switch (rdti_team_verdict(coll->team)) {
    case RDTI_VERDICT_DIRECT:
        return &rdti_direct;
    case RDTI_VERDICT_UNDECIDED:
        return &rdti_undecided;
    default: /* RDTI_VERDICT_HOSTS, RDTI_VERDICT_MESSAGES */
        if (coll->lossy.code != 0)
            return &rdti_lossy_messages;
        return select_choose_by_costs(coll);
    }
}

const char *
rdti_choice_at(struct rdti_team *team, uint32_t op, uint64_t len_bytes)
{
    const struct rdti_coll coll = {.args = {.op = op, .dtype = RDT_U8, .count = len_bytes},
                                   .team = team,
                                   .rank = team->rank,
                                   .size = team->size,
                                   .elem_bytes = 1,
                                   .block_bytes = len_bytes};

    return select_choose_by_costs(&coll)->name;
}
