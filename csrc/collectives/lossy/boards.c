/* SPDX-License-Identifier: Apache-2.0
 * Lossy collectives over boards. In each step the stage has a share for each member, with a piece
 * of its chunk, followed by the local result of the piece before. */
#include "collectives/board/board.h"
#include "collectives/collective.h"
#include "collectives/lossy/lossy.h"
#include "collectives/team/team.h"

static uint32_t
boards_shares(const struct rdti_coll *coll)
{
    return (rdti_lossy_has_sum(coll) ? coll->size : 0) + rdti_lossy_has_result(coll);
}

/* Steps by which the result of a piece is later than its sum. */
static uint64_t
boards_delay(const struct rdti_coll *coll)
{
    return rdti_lossy_has_sum(coll) && rdti_lossy_has_result(coll) ? 1 : 0;
}

/* Elements of a piece. */
static uint64_t
boards_piece(const struct rdti_coll *coll)
{
    return rdti_lossy_count_within(coll, coll->direct.piece_bytes);
}

static uint64_t
boards_pieces(const struct rdti_coll *coll)
{
    return rdti_direct_steps(rdti_lossy_longest(coll), boards_piece(coll));
}

static void
boards_plan(struct rdti_coll *coll)
{
    coll->direct.piece_bytes = rdti_direct_share_bytes(RDTI_STAGE_BYTES, boards_shares(coll));
    coll->direct.steps = boards_pieces(coll) + boards_delay(coll);
    rdti_lossy_count_sent(coll, boards_piece(coll));
}

static struct rdti_lossy_chunk
boards_piece_of(const struct rdti_coll *coll, uint32_t member, uint64_t number)
{
    const struct rdti_lossy_chunk chunk = rdti_lossy_chunk_of(coll, member);
    const uint64_t piece = boards_piece(coll);

    return rdti_lossy_cut(&chunk, number * piece, piece);
}

/* Where the member's encoded piece for the sum of `owner` is. */
static uint8_t *
boards_sum_at(const struct rdti_coll *coll, uint32_t member, uint32_t owner, uint64_t step)
{
    return rdti_direct_stage(coll, member, step) + owner * coll->direct.piece_bytes;
}

static uint8_t *
boards_result_at(const struct rdti_coll *coll, uint32_t member, uint64_t step)
{
    return rdti_direct_stage(coll, member, step) +
           (boards_shares(coll) - 1) * coll->direct.piece_bytes;
}

/* The sum lies in dst already, where encoding finds it. */
static void
boards_fill_result(struct rdti_coll *coll, uint64_t step)
{
    struct rdti_lossy_chunk piece = boards_piece_of(coll, coll->rank, step - boards_delay(coll));
    uint8_t *out = boards_result_at(coll, coll->rank, step);

    if (rdti_lossy_has_sum(coll))
        piece.src = piece.dst;
    rdti_lossy_encode(coll, out, &piece);
    rdti_lossy_decode(coll, piece.dst, out, piece.count);
}

static rdt_status
boards_fill(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    (void)err;
    if (rdti_lossy_has_result(coll) && step >= boards_delay(coll))
        boards_fill_result(coll, step);
    if (!rdti_lossy_has_sum(coll) || step == boards_pieces(coll))
        return RDT_OK;
    for (uint32_t i = 0; i < coll->size; i++) {
        const struct rdti_lossy_chunk piece = boards_piece_of(coll, i, step);
        if (i != coll->rank)
            rdti_lossy_encode(coll, boards_sum_at(coll, coll->rank, i, step), &piece);
    }
    return RDT_OK;
}

static void
boards_use_sums(struct rdti_coll *coll, uint64_t step)
{
    const struct rdti_lossy_chunk piece = boards_piece_of(coll, coll->rank, step);
    uint8_t *in[RDTI_TEAM_MAX];

    for (uint32_t i = 0; i < coll->size; i++)
        in[i] = boards_sum_at(coll, i, coll->rank, step);
    rdti_lossy_sum(coll, &piece, in);
    coll->direct.done.moved_bytes += (coll->size - 1) * rdti_lossy_bytes(coll, piece.count);
}

static rdt_status
boards_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t delay = boards_delay(coll);

    (void)err;
    for (uint32_t i = 0; i < coll->size; i++) {
        if (i == coll->rank || !rdti_lossy_has_result(coll) || step < delay)
            continue;
        const struct rdti_lossy_chunk piece = boards_piece_of(coll, i, step - delay);
        rdti_lossy_decode(coll, piece.dst, boards_result_at(coll, i, step), piece.count);
        coll->direct.done.moved_bytes += rdti_lossy_bytes(coll, piece.count);
    }
    if (rdti_lossy_has_sum(coll) && step < boards_pieces(coll))
        boards_use_sums(coll, step);
    return RDT_OK;
}

const struct rdti_direct_op rdti_lossy_boards = {boards_plan, boards_fill, boards_use};
