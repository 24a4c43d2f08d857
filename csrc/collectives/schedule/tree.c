/* SPDX-License-Identifier: Apache-2.0
 * Binomial trees. Members are counted from the root: the parent of member v is v without its lowest
 * set bit, so that a subtree is a contiguous range of members.
 */
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"

static uint32_t
tree_rank_of(const struct rdti_coll *coll, uint32_t member)
{
    return (uint32_t)(((uint64_t)coll->args.root + member) % coll->size);
}

static uint32_t
tree_member_of(const struct rdti_coll *coll)
{
    return (uint32_t)(((uint64_t)coll->rank + coll->size - coll->args.root) % coll->size);
}

static void
tree_build_broadcast_binomial(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;
    const uint32_t member = tree_member_of(coll);
    uint64_t bit = 1;

    while (bit < coll->size && (member & bit) == 0)
        bit <<= 1;
    if (member != 0) {
        rdti_schedule_recv(coll, tree_rank_of(coll, member - (uint32_t)bit), coll->args.recv,
                           count);
        rdti_schedule_end_round(coll);
    }
    /* The largest subtree first: it has the longest way to go. */
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (member + bit < coll->size)
            rdti_schedule_send(coll, tree_rank_of(coll, member + (uint32_t)bit), coll->args.recv,
                               count);
}

/* Whether the tree below, which cuts the buffer into a chunk for each member, brings this one. */
static bool
tree_has_chunk(const struct rdti_coll *coll, uint32_t member, uint32_t chunk)
{
    const uint32_t subtree = member == 0 ? coll->size : member & (0 - member);

    return chunk >= member && chunk - member < subtree;
}

/* Where a chunk begins, in elements. */
static uint64_t
tree_chunk_begin(const struct rdti_coll *coll, uint32_t chunk)
{
    return rdti_ring_chunk_begin(coll->args.count, coll->elem_bytes, coll->size,
                                 chunk < coll->size ? chunk : coll->size);
}

/* A message with chunks [first, end), down to a child or from above. */
static void
tree_add_chunks(struct rdti_coll *coll, bool is_sent, uint32_t member, uint32_t first, uint32_t end)
{
    const uint64_t begin = tree_chunk_begin(coll, first);
    const uint64_t count = tree_chunk_begin(coll, end) - begin;
    uint8_t *at = rdti_coll_at(coll->args.recv, begin * coll->elem_bytes);

    if (is_sent)
        rdti_schedule_send(coll, tree_rank_of(coll, member), at, count);
    else
        rdti_schedule_recv(coll, tree_rank_of(coll, member), at, count);
}

/*
 * Down the tree a member gets the chunks of its subtree only; the others come round the ring, from
 * the member before. So each member sends a buffer twice at most, however many there are. First
 * messages take the edges of the tree above, so that members that disagree on the length learn it.
 */
static void
tree_build_broadcast_ring(struct rdti_coll *coll)
{
    const uint32_t n = coll->size;
    const uint32_t member = tree_member_of(coll);
    uint32_t bit = 1;

    while (bit < n && (member & bit) == 0)
        bit <<= 1;
    if (member != 0)
        tree_add_chunks(coll, false, member - bit, member, member + bit);
    rdti_schedule_end_round(coll);
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (member + bit < n)
            tree_add_chunks(coll, true, member + bit, member + bit, member + 2 * bit);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const uint32_t out = (member + n - i) % n;
        const uint32_t in = (member + n - i - 1) % n;
        if (member != 0 && !tree_has_chunk(coll, member, in))
            tree_add_chunks(coll, false, member - 1, in, in + 1);
        if (member + 1 != n && !tree_has_chunk(coll, member + 1, out))
            tree_add_chunks(coll, true, member + 1, out, out + 1);
        rdti_schedule_end_round(coll);
    }
}

/* Order of summation: a subtree's own values left of those of its children, small children
 * first. */
static void
tree_build_reduce_binomial(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;
    const uint32_t member = tree_member_of(coll);
    const bool is_leaf = (member & 1) != 0 || member + 1 == coll->size;
    const void *sum = coll->args.send;
    void *landing = NULL;
    void *work = coll->args.recv;

    if (!is_leaf) {
        landing = rdti_schedule_temp(coll, rdti_schedule_landing_bytes(coll, count));
        if (member != 0)
            work = rdti_schedule_temp(coll, coll->block_bytes);
    }
    uint64_t bit = 1;
    for (; bit < coll->size && (member & bit) == 0; bit <<= 1) {
        if (member + bit >= coll->size)
            continue;
        const struct rdti_operand_in in = {.peer = tree_rank_of(coll, member + (uint32_t)bit),
                                           .landing = landing,
                                           .dst = work,
                                           .own = sum,
                                           .is_own_left = true,
                                           .is_last = member == 0 && 2 * bit >= coll->size,
                                           .count = count};
        rdti_schedule_operands(coll, &in, NULL);
        sum = work;
    }
    if (member != 0) {
        const struct rdti_operand_out out = {.peer = tree_rank_of(coll, member - (uint32_t)bit),
                                             .src = sum,
                                             .count = count};
        rdti_schedule_operands(coll, NULL, &out);
        return;
    }
    rdti_schedule_copy(coll, work, sum, count); /* of a group of one, whose average it is, too */
    rdti_schedule_end_round(coll);
}

/* The sum goes up to rank 0 and down again; recv is where both leave it. */
static void
tree_build_allreduce(struct rdti_coll *coll)
{
    tree_build_reduce_binomial(coll);
    tree_build_broadcast_binomial(coll);
}

RDTI_SCHEDULE_ALGORITHM(allreduce_tree, "tree", tree_build_allreduce);
RDTI_SCHEDULE_ALGORITHM(broadcast_binomial, "binomial", tree_build_broadcast_binomial);
RDTI_SCHEDULE_ALGORITHM(broadcast_ring, "ring", tree_build_broadcast_ring);
RDTI_SCHEDULE_ALGORITHM(reduce_binomial, "binomial", tree_build_reduce_binomial);
