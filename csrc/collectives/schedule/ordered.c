/* SPDX-License-Identifier: Apache-2.0
 * Sums in rank order, whatever the size: each rank gets its share of all ranks' numbers, adds them
 * up from rank 0 on, and the shares are sent round. RDMATENSOR_DETERMINISTIC=1 asks for it. A ring
 * moves no fewer bytes, but here a rank has room for one buffer more and every rank sends to every
 * other.
 */
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"

struct ordered_share {
    uint64_t off_bytes;
    uint64_t count;
};

/* As the chunks of a ring. */
static struct ordered_share
ordered_share_of(const struct rdti_coll *coll, uint32_t member)
{
    const uint64_t count = coll->args.count;
    const uint64_t begin = rdti_ring_chunk_begin(count, coll->elem_bytes, coll->size, member);
    const uint64_t end = rdti_ring_chunk_begin(count, coll->elem_bytes, coll->size, member + 1);

    return (struct ordered_share){begin * coll->elem_bytes, end - begin};
}

/* The part of the local input for a member's sum, and its size. */
static const void *
ordered_given(const struct rdti_coll *coll, uint32_t member, uint64_t *count_out)
{
    if (coll->args.op == RDT_COLL_REDUCE_SCATTER) {
        *count_out = coll->args.count;
        return rdti_coll_send_block(coll, member);
    }
    const struct ordered_share share = ordered_share_of(coll, member);
    *count_out = share.count;
    return rdti_coll_at_const(coll->args.send, share.off_bytes);
}

/* Returns the local sum, in memory of the schedule: the input may be where the output goes. */
static void *
ordered_build_sum(struct rdti_coll *coll)
{
    uint64_t count;
    const void *own = ordered_given(coll, coll->rank, &count);
    const uint64_t bytes = count * coll->elem_bytes;
    uint8_t *pieces = rdti_schedule_temp(coll, bytes * coll->size);
    const uint8_t **in = rdti_schedule_temp(coll, coll->size * sizeof(*in));

    if (pieces == NULL || in == NULL) /* the schedule has the error */
        return NULL;
    for (uint32_t member = 0; member < coll->size; member++)
        in[member] = pieces + member * bytes;
    rdti_schedule_copy(coll, pieces + coll->rank * bytes, own, count);
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_before(coll, i);
        rdti_schedule_recv(coll, source, pieces + source * bytes, count);
    }
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t target = rdti_coll_after(coll, i);
        uint64_t target_count;
        const void *out = ordered_given(coll, target, &target_count);
        rdti_schedule_send(coll, target, out, target_count);
    }
    rdti_schedule_end_round(coll);
    rdti_schedule_fold(coll, pieces, in, count);
    return pieces;
}

static void
ordered_build_allreduce(struct rdti_coll *coll)
{
    const struct ordered_share own = ordered_share_of(coll, coll->rank);
    const void *sum = ordered_build_sum(coll);

    rdti_schedule_copy(coll, rdti_coll_at(coll->args.recv, own.off_bytes), sum, own.count);
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_before(coll, i);
        const struct ordered_share share = ordered_share_of(coll, source);
        rdti_schedule_recv(coll, source, rdti_coll_at(coll->args.recv, share.off_bytes),
                           share.count);
    }
    for (uint32_t i = 1; i < coll->size; i++)
        rdti_schedule_send(coll, rdti_coll_after(coll, i), sum, own.count);
}

static void
ordered_build_reduce(struct rdti_coll *coll)
{
    const struct ordered_share own = ordered_share_of(coll, coll->rank);
    const void *sum = ordered_build_sum(coll);

    if (coll->rank != coll->args.root) {
        rdti_schedule_send(coll, coll->args.root, sum, own.count);
        return;
    }
    rdti_schedule_copy(coll, rdti_coll_at(coll->args.recv, own.off_bytes), sum, own.count);
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_before(coll, i);
        const struct ordered_share share = ordered_share_of(coll, source);
        rdti_schedule_recv(coll, source, rdti_coll_at(coll->args.recv, share.off_bytes),
                           share.count);
    }
}

static void
ordered_build_reduce_scatter(struct rdti_coll *coll)
{
    const void *sum = ordered_build_sum(coll);

    rdti_schedule_copy(coll, coll->args.recv, sum, coll->args.count);
}

RDTI_SCHEDULE_ALGORITHM(allreduce_ordered, "in rank order", ordered_build_allreduce);
RDTI_SCHEDULE_ALGORITHM(reduce_ordered, "in rank order", ordered_build_reduce);
RDTI_SCHEDULE_ALGORITHM(reduce_scatter_ordered, "in rank order", ordered_build_reduce_scatter);
