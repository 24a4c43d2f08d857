/* SPDX-License-Identifier: Apache-2.0
 * Recursive halving, then doubling: the bytes of a ring, in a number of rounds that grows as the
 * logarithm of the ranks.
 */
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"

enum { SHARE_ALIGNMENT_BYTES = 64 /* as chunks of rings: no two ranks share a cache line */ };

/* Where share `number` of `shares` begins, in elements. */
static uint64_t
halving_share_begin(const struct rdti_coll *coll, uint32_t shares, uint32_t number)
{
    const uint64_t granule = SHARE_ALIGNMENT_BYTES / coll->elem_bytes;
    const uint64_t count = coll->args.count;
    const uint64_t share = count / shares + (count % shares != 0);
    const uint64_t step = (share + granule - 1) / granule * granule;

    return step != 0 && number > count / step ? count : number * step;
}

/* Shares [first, first + shares) of all, as elements. */
struct part {
    uint64_t off_bytes;
    uint64_t count;
};

static struct part
halving_part_of(const struct rdti_coll *coll, uint32_t players, uint32_t first, uint32_t shares)
{
    const uint64_t begin = halving_share_begin(coll, players, first);

    return (struct part){begin * coll->elem_bytes,
                         halving_share_begin(coll, players, first + shares) - begin};
}

static uint32_t
halving_rank_of_player(uint32_t player, uint32_t extra)
{
    return player < extra ? 2 * player + 1 : player + extra;
}

/* In each round half of what a player still sums goes to its partner; both compute "lower op
 * upper" of their own half. Returns where the sums are. */
static const void *
halving_build_halving(struct rdti_coll *coll, uint32_t player, uint32_t players, uint32_t extra,
                      void *landing, const void *sum)
{
    void *recv = coll->args.recv;
    uint32_t first = 0;

    for (uint32_t half = players / 2; half > 0; half /= 2) {
        const uint32_t other = player ^ half;
        const bool is_upper = (player & half) != 0;
        const uint32_t keep_from = first + (is_upper ? half : 0);
        const struct part keep = halving_part_of(coll, players, keep_from, half);
        const struct part give =
            halving_part_of(coll, players, first + (is_upper ? 0 : half), half);
        const uint32_t peer = halving_rank_of_player(other, extra);
        const struct rdti_operand_in in = {.peer = peer,
                                           .landing = landing,
                                           .dst = rdti_coll_at(recv, keep.off_bytes),
                                           .own = rdti_coll_at_const(sum, keep.off_bytes),
                                           .is_own_left = !is_upper,
                                           .is_last = half == 1,
                                           .count = keep.count};
        const struct rdti_operand_out out = {.peer = peer,
                                             .src = rdti_coll_at_const(sum, give.off_bytes),
                                             .count = give.count};
        rdti_schedule_operands(coll, &in, &out);
        sum = recv;
        first = keep_from;
    }
    return sum;
}

static void
halving_build_doubling(struct rdti_coll *coll, uint32_t player, uint32_t players, uint32_t extra)
{
    for (uint32_t half = 1; half < players; half *= 2) {
        const uint32_t first = player & ~(half - 1);
        const struct part give = halving_part_of(coll, players, first, half);
        const struct part take = halving_part_of(coll, players, first ^ half, half);
        const uint32_t peer = halving_rank_of_player(player ^ half, extra);
        rdti_schedule_recv(coll, peer, rdti_coll_at(coll->args.recv, take.off_bytes), take.count);
        rdti_schedule_send(coll, peer, rdti_coll_at(coll->args.recv, give.off_bytes), give.count);
        rdti_schedule_end_round(coll);
    }
}

/* With 2^k + extra ranks, the first 2 * extra ranks join in pairs before and part after. */
static void
halving_build_allreduce(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;
    const uint32_t rank = coll->rank;
    void *recv = coll->args.recv;
    const void *sum = coll->args.send;
    uint32_t players = 1;

    while (players <= coll->size / 2)
        players *= 2;
    const uint32_t extra = coll->size - players;
    const bool is_paired = rank < 2 * extra;
    /* A rank that joins sends all of it, a partner half; the lower half is the larger one. */
    const uint64_t landing_bytes = rdti_schedule_landing_bytes(
        coll, is_paired ? count : halving_part_of(coll, players, 0, players / 2).count);
    if (is_paired && rank % 2 == 0) {
        const struct rdti_operand_out out = {.peer = rank + 1, .src = sum, .count = count};
        rdti_schedule_operands(coll, NULL, &out);
        rdti_schedule_recv(coll, rank + 1, recv, count);
        return;
    }
    void *landing = coll->size > 1 ? rdti_schedule_temp(coll, landing_bytes) : NULL;
    if (is_paired) {
        const struct rdti_operand_in in = {
            .peer = rank - 1, .landing = landing, .dst = recv, .own = sum, .count = count};
        rdti_schedule_operands(coll, &in, NULL);
        sum = recv;
    }
    const uint32_t player = is_paired ? rank / 2 : rank - extra;
    sum = halving_build_halving(coll, player, players, extra, landing, sum);
    rdti_schedule_copy(coll, recv, sum, count); /* of a group of one, whose average it is, too */
    halving_build_doubling(coll, player, players, extra);
    if (is_paired)
        rdti_schedule_send(coll, rank - 1, recv, count);
}

RDTI_SCHEDULE_ALGORITHM(allreduce_halving, "halving-doubling", halving_build_allreduce);
