/* SPDX-License-Identifier: Apache-2.0
 * Every rank exchanges directly with every other, or with the root.
 */
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"

enum {
    EXCHANGES_IN_FLIGHT = 8 /* partners at a time in all_to_all: hides latency, bounds what waits */
};

static void
pairwise_build_allgather_direct(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;

    rdti_schedule_copy(coll, rdti_coll_recv_block(coll, coll->rank), coll->args.send, count);
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_before(coll, i);
        rdti_schedule_recv(coll, source, rdti_coll_recv_block(coll, source), count);
    }
    for (uint32_t i = 1; i < coll->size; i++)
        rdti_schedule_send(coll, rdti_coll_after(coll, i), coll->args.send, count);
}

static void
pairwise_build_gather_direct(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;

    if (coll->rank != coll->args.root) {
        rdti_schedule_send(coll, coll->args.root, coll->args.send, count);
        return;
    }
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_after(coll, i);
        rdti_schedule_recv(coll, source, rdti_coll_recv_block(coll, source), count);
    }
    rdti_schedule_copy(coll, rdti_coll_recv_block(coll, coll->rank), coll->args.send, count);
}

static void
pairwise_build_scatter_direct(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;

    if (coll->rank != coll->args.root) {
        rdti_schedule_recv(coll, coll->args.root, coll->args.recv, count);
        return;
    }
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t target = rdti_coll_after(coll, i);
        rdti_schedule_send(coll, target, rdti_coll_send_block(coll, target), count);
    }
    rdti_schedule_copy(coll, coll->args.recv, rdti_coll_send_block(coll, coll->rank), count);
}

struct pairwise_piece {
    uint64_t count;
    uint64_t off_bytes; /* in the flat buffer; unused with blocks */
};

static struct pairwise_piece
pairwise_piece_of(const struct rdti_coll *coll, const uint64_t *counts, const uint64_t *offs,
                  uint32_t member)
{
    if (counts == NULL)
        return (struct pairwise_piece){coll->args.count, member * coll->block_bytes};
    return (struct pairwise_piece){counts[member],
                                   offs == NULL ? 0 : offs[member] * coll->elem_bytes};
}

const void *
rdti_alltoall_source(const struct rdti_coll *coll, uint32_t member, uint64_t *count_out)
{
    const struct rdt_coll_args *args = &coll->args;
    const struct pairwise_piece piece =
        pairwise_piece_of(coll, args->send_counts, args->send_offs, member);

    *count_out = piece.count;
    if (args->send_blocks != NULL)
        return args->send_blocks[member];
    return rdti_coll_at_const(args->send, piece.off_bytes);
}

void *
rdti_alltoall_target(const struct rdti_coll *coll, uint32_t member, uint64_t *count_out)
{
    const struct rdt_coll_args *args = &coll->args;
    const struct pairwise_piece piece =
        pairwise_piece_of(coll, args->recv_counts, args->recv_offs, member);

    *count_out = piece.count;
    if (args->blocks != NULL)
        return args->blocks[member];
    return rdti_coll_at(args->recv, piece.off_bytes);
}

static void
pairwise_build_alltoall(struct rdti_coll *coll)
{
    uint64_t count;
    const void *own = rdti_alltoall_source(coll, coll->rank, &count);

    rdti_schedule_copy(coll, rdti_alltoall_target(coll, coll->rank, &count), own, count);
    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_before(coll, i);
        const uint32_t target = rdti_coll_after(coll, i);
        void *in = rdti_alltoall_target(coll, source, &count);
        rdti_schedule_recv(coll, source, in, count);
        const void *out = rdti_alltoall_source(coll, target, &count);
        rdti_schedule_send(coll, target, out, count);
        if (i % EXCHANGES_IN_FLIGHT == 0)
            rdti_schedule_end_round(coll);
    }
}

RDTI_SCHEDULE_ALGORITHM(allgather_direct, "direct", pairwise_build_allgather_direct);
RDTI_SCHEDULE_ALGORITHM(gather_direct, "direct", pairwise_build_gather_direct);
RDTI_SCHEDULE_ALGORITHM(scatter_direct, "direct", pairwise_build_scatter_direct);
RDTI_SCHEDULE_ALGORITHM(alltoall_pairwise, "pairwise", pairwise_build_alltoall);
