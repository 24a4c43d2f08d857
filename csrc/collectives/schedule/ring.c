/* SPDX-License-Identifier: Apache-2.0
 * Rings: a rank receives from the one before and sends to the one after, size - 1 times. Each byte
 * crosses each link once per phase, the least possible, and no link carries two messages.
 */
#include "collectives/collective.h"
#include "collectives/schedule/schedule.h"

/* Chunk boundaries of an all_reduce lie on cache lines, so that no two ranks share one. */
#define CHUNK_ALIGNMENT_BYTES 64

uint64_t
rdti_ring_chunk_begin(uint64_t count, uint64_t elem_bytes, uint32_t size, uint32_t chunk)
{
    const uint64_t granule = CHUNK_ALIGNMENT_BYTES / elem_bytes;
    const uint64_t share = count / size + (count % size != 0);
    const uint64_t step = (share + granule - 1) / granule * granule;

    return step != 0 && chunk > count / step ? count : chunk * step;
}

static uint64_t
ring_chunk_begin(const struct rdti_coll *coll, uint32_t chunk)
{
    return rdti_ring_chunk_begin(coll->args.count, coll->elem_bytes, coll->size, chunk);
}

static uint64_t
ring_chunk_count(const struct rdti_coll *coll, uint32_t chunk)
{
    return ring_chunk_begin(coll, chunk + 1) - ring_chunk_begin(coll, chunk);
}

/*
 * Reduce-scatter, then all-gather, both in recv. The sum of chunk c begins at rank c + 1 and ends
 * at rank c, "partial op own" at each: one rank completes each chunk, and all get its bits.
 */
static void
ring_build_allreduce(struct rdti_coll *coll)
{
    const uint32_t n = coll->size;
    const uint32_t next = rdti_coll_after(coll, 1);
    const uint32_t last = rdti_coll_before(coll, 1);
    const void *send = coll->args.send;
    void *recv = coll->args.recv;
    void *landing =
        n > 1
            ? rdti_schedule_temp(coll, rdti_schedule_landing_bytes(coll, ring_chunk_begin(coll, 1)))
            : NULL;

    for (uint32_t i = 0; i + 1 < n; i++) {
        const uint32_t giving = rdti_coll_before(coll, i + 1);
        const uint32_t taking = rdti_coll_before(coll, i + 2);
        const uint64_t out_off = ring_chunk_begin(coll, giving) * coll->elem_bytes;
        const uint64_t in_off = ring_chunk_begin(coll, taking) * coll->elem_bytes;
        const struct rdti_operand_in in = {.peer = last,
                                           .landing = landing,
                                           .dst = rdti_coll_at(recv, in_off),
                                           .own = rdti_coll_at_const(send, in_off),
                                           .is_last = i + 2 == n,
                                           .count = ring_chunk_count(coll, taking)};
        const struct rdti_operand_out out = {.peer = next,
                                             .src =
                                                 rdti_coll_at_const(i == 0 ? send : recv, out_off),
                                             .count = ring_chunk_count(coll, giving)};
        rdti_schedule_operands(coll, &in, &out);
    }
    if (n == 1) /* whose average it is, too */
        rdti_schedule_copy(coll, recv, send, coll->args.count);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const uint32_t out = rdti_coll_before(coll, i);
        const uint32_t in = rdti_coll_before(coll, i + 1);
        rdti_schedule_recv(coll, last,
                           rdti_coll_at(recv, ring_chunk_begin(coll, in) * coll->elem_bytes),
                           ring_chunk_count(coll, in));
        rdti_schedule_send(coll, next,
                           rdti_coll_at(recv, ring_chunk_begin(coll, out) * coll->elem_bytes),
                           ring_chunk_count(coll, out));
        rdti_schedule_end_round(coll);
    }
}

/* A member's block of the input; with `part`, its part of an average, which is made there. */
static const void *
ring_own_block(struct rdti_coll *coll, uint32_t member, void *part)
{
    const void *own = rdti_coll_send_block(coll, member);

    if (part == NULL)
        return own;
    rdti_schedule_divide(coll, part, own, coll->args.count);
    return part;
}

/*
 * As the first phase above, but the input must not be changed: partial sums live in two temporaries
 * in turn, one being sent while the other is filled. recv may be the rank's own block of send. When
 * halves are averaged, each rank divides its own before it adds them.
 */
static void
ring_build_reduce_scatter(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;
    const uint32_t n = coll->size;
    const bool divides_first = n > 2 && rdti_coll_averages_halves(coll);
    void *sums[2] = {NULL, NULL};
    void *part = divides_first ? rdti_schedule_temp(coll, coll->block_bytes) : NULL;
    void *landing =
        n > 1 ? rdti_schedule_temp(coll, rdti_schedule_landing_bytes(coll, count)) : NULL;

    for (uint32_t i = 0; i < 2 && (i + 2 < n || divides_first); i++)
        sums[i] = rdti_schedule_temp(coll, coll->block_bytes);
    const void *sent =
        ring_own_block(coll, rdti_coll_before(coll, 1), divides_first ? sums[1] : NULL);
    for (uint32_t i = 0; i + 1 < n; i++) {
        const bool is_last = i + 2 == n;
        const struct rdti_operand_in in = {.peer = rdti_coll_before(coll, 1),
                                           .landing = landing,
                                           .dst = is_last ? coll->args.recv : sums[i % 2],
                                           .own =
                                               ring_own_block(coll, rdti_coll_before(coll, i + 2),
                                                              part),
                                           .is_last = is_last && !divides_first,
                                           .count = count};
        const struct rdti_operand_out out = {.peer = rdti_coll_after(coll, 1),
                                             .src = sent,
                                             .count = count};
        rdti_schedule_operands(coll, &in, &out);
        sent = in.dst;
    }
    if (n == 1) /* whose average it is, too */
        rdti_schedule_copy(coll, coll->args.recv, sent, count);
}

static void
ring_build_allgather(struct rdti_coll *coll)
{
    const uint64_t count = coll->args.count;

    rdti_schedule_copy(coll, rdti_coll_recv_block(coll, coll->rank), coll->args.send, count);
    for (uint32_t i = 0; i + 1 < coll->size; i++) {
        const void *out = rdti_coll_recv_block(coll, rdti_coll_before(coll, i));
        rdti_schedule_recv(coll, rdti_coll_before(coll, 1),
                           rdti_coll_recv_block(coll, rdti_coll_before(coll, i + 1)), count);
        rdti_schedule_send(coll, rdti_coll_after(coll, 1), out, count);
        rdti_schedule_end_round(coll);
    }
}

RDTI_SCHEDULE_ALGORITHM(allreduce_ring, "ring", ring_build_allreduce);
RDTI_SCHEDULE_ALGORITHM(reduce_scatter_ring, "ring", ring_build_reduce_scatter);
RDTI_SCHEDULE_ALGORITHM(allgather_ring, "ring", ring_build_allgather);
