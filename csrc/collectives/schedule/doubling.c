/* SPDX-License-Identifier: Apache-2.0
 *
 * Algorithms whose partners' distance doubles: few rounds, for small messages.
 */
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"

/*
 * With 2^k + extra ranks, the first 2 * extra ranks join in pairs before and part after. Partners
 * hold the sums of neighbouring ranges and both compute "lower op upper", so that all end with the
 * same bits, whatever the operation.
 */
static void
doubling_build_allreduce(struct rdti_coll *coll)
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
    if (is_paired && rank % 2 == 0) {
        rdti_schedule_send(coll, rank + 1, sum, count);
        rdti_schedule_end_round(coll);
        rdti_schedule_recv(coll, rank + 1, recv, count);
        return;
    }
    void *landing = coll->size > 1 ? rdti_schedule_temp(coll, coll->block_bytes) : NULL;
    if (is_paired) {
        rdti_schedule_recv_reduce(coll, rank - 1, landing, recv, landing, sum, count);
        rdti_schedule_end_round(coll);
        sum = recv;
    }
    const uint32_t player = is_paired ? rank / 2 : rank - extra;
    for (uint32_t bit = 1; bit < players; bit *= 2) {
        const uint32_t other = player ^ bit;
        const uint32_t peer = other < extra ? 2 * other + 1 : other + extra;
        rdti_schedule_recv(coll, peer, landing, count);
        rdti_schedule_send(coll, peer, sum, count);
        rdti_schedule_end_round(coll); /* `sum` may be `recv`, which is being sent until here */
        if (other < player)
            rdti_schedule_reduce(coll, recv, landing, sum, count, 2 * bit >= players);
        else
            rdti_schedule_reduce(coll, recv, sum, landing, count, 2 * bit >= players);
        sum = recv;
    }
    rdti_schedule_copy(coll, recv, sum, count); /* of a group of one, whose average it is, too */
    if (is_paired)
        rdti_schedule_send(coll, rank - 1, recv, count);
}

/* After round k a rank knows that the 2^(k+1) - 1 ranks before it have come. */
static void
doubling_build_barrier(struct rdti_coll *coll)
{
    for (uint64_t distance = 1; distance < coll->size; distance *= 2) {
        rdti_schedule_recv(coll, rdti_coll_before(coll, (uint32_t)distance), NULL, 0);
        rdti_schedule_send(coll, rdti_coll_after(coll, (uint32_t)distance), NULL, 0);
        rdti_schedule_end_round(coll);
    }
}

RDTI_SCHEDULE_ALGORITHM(allreduce_doubling, "doubling", doubling_build_allreduce);
RDTI_SCHEDULE_ALGORITHM(barrier_dissemination, "dissemination", doubling_build_barrier);
