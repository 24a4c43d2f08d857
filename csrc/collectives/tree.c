/* SPDX-License-Identifier: Apache-2.0
 *
 * Binomial trees. Members are counted from the root: member v hangs below v without its lowest set
 * bit, so that a subtree is a contiguous range of members.
 */
#include "collectives/coll.h"
#include "collectives/schedule.h"

static uint32_t
rank_of(const struct rdti_coll *coll, uint32_t member)
{
    return (uint32_t)(((uint64_t)coll->args.root + member) % coll->size);
}

static uint32_t
member_of(const struct rdti_coll *coll)
{
    return (uint32_t)(((uint64_t)coll->rank + coll->size - coll->args.root) % coll->size);
}

static void
build_broadcast_binomial(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;
    const uint32_t member = member_of(coll);
    uint64_t bit = 1;

    while (bit < coll->size && (member & bit) == 0)
        bit <<= 1;
    if (member != 0) {
        rdti_schedule_recv(coll, rank_of(coll, member - (uint32_t)bit), coll->args.recv, count);
        rdti_schedule_end_round(coll);
    }
    /* The largest subtree first: it has the longest way to go. */
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (member + bit < coll->size)
            rdti_schedule_send(coll, rank_of(coll, member + (uint32_t)bit), coll->args.recv, count);
}

/* Order of summation: a subtree's own values left of those of its children, small children
 * first. */
static void
build_reduce_binomial(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;
    const uint32_t member = member_of(coll);
    const bool is_leaf = (member & 1) != 0 || member + 1 == coll->size;
    const void *sum = coll->args.send;
    void *landing = NULL;
    void *work = coll->args.recv;

    if (!is_leaf) {
        landing = rdti_schedule_temp(coll, coll->block_bytes);
        if (member != 0)
            work = rdti_schedule_temp(coll, coll->block_bytes);
    }
    uint64_t bit = 1;
    for (; bit < coll->size && (member & bit) == 0; bit <<= 1) {
        if (member + bit >= coll->size)
            continue;
        rdti_schedule_recv_reduce(coll, rank_of(coll, member + (uint32_t)bit), landing, work, sum,
                                  landing, count);
        rdti_schedule_end_round(coll);
        sum = work;
    }
    if (member != 0) {
        rdti_schedule_send(coll, rank_of(coll, member - (uint32_t)bit), sum, count);
        return;
    }
    rdti_schedule_copy(coll, work, sum, count);
    rdti_schedule_average(coll, work, count);
}

/* The sum goes up to rank 0 and down again; recv is where both leave it. */
static void
build_allreduce_tree(struct rdti_coll *coll)
{
    build_reduce_binomial(coll);
    rdti_schedule_end_round(coll);
    build_broadcast_binomial(coll);
}

RDTI_SCHEDULE_ALGORITHM(allreduce_tree, "tree");
RDTI_SCHEDULE_ALGORITHM(broadcast_binomial, "binomial");
RDTI_SCHEDULE_ALGORITHM(reduce_binomial, "binomial");
