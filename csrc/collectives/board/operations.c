/* SPDX-License-Identifier: Apache-2.0
 * What each operation does in a tick. Reductions use rank order, so that they have the same bits on
 * all ranks and in every run. */
#include "base/error.h"
#include "collectives/board/board.h"
#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "wire/bytes.h"

enum {
    /* Up to here a tick of all_reduce carries everything to all; above it each rank sums a share
     * and sends the sum round, which is a tick more and fewer bytes. Two ranks: 64 KiB 10 us in one
     * shot, 11 to 13 in two; 256 KiB 31 and 25. */
    ONE_SHOT_MAX_BYTES = 64 * 1024,
    /* From here on a tick more is worth it, to learn whether the tensors can be summed in place. */
    PLACED_FROM_BYTES = 256 * 1024,
    PIECE_ALIGNMENT_BYTES = 64,
};

static uint64_t
board_op_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ceil(total / piece), and 1 for nothing: ranks learn of each other by a tick. */
uint64_t
rdti_direct_steps(uint64_t total_bytes, uint64_t piece_bytes)
{
    return total_bytes == 0 ? 1 : (total_bytes - 1) / piece_bytes + 1;
}

/* Bytes of step `step`, which begin at step * piece_bytes. */
uint64_t
rdti_direct_piece_len(uint64_t total_bytes, uint64_t piece_bytes, uint64_t step)
{
    const uint64_t begin = step * piece_bytes;

    return begin >= total_bytes ? 0 : board_op_least(total_bytes - begin, piece_bytes);
}

/* A stage in equal shares of whole lines. */
uint64_t
rdti_direct_share_bytes(uint64_t stage_bytes, uint32_t shares)
{
    return stage_bytes / shares / PIECE_ALIGNMENT_BYTES * PIECE_ALIGNMENT_BYTES;
}

/*
 * Folds the members' parts at `stage_off` of their stages. The local part is the user's buffer
 * where two are summed, else its copy in the local stage: the sum may be written where the buffer
 * is.
 */
void
rdti_direct_fold_stages(struct rdti_coll *coll, uint64_t step, uint64_t stage_off, void *dst,
                        const void *own, uint64_t len_bytes)
{
    const uint8_t *in[RDTI_TEAM_MAX];

    if (len_bytes == 0)
        return;
    for (uint32_t i = 0; i < coll->size; i++)
        in[i] = rdti_direct_stage(coll, i, step) + stage_off;
    if (coll->size == 2)
        in[coll->rank] = own;
    const uint64_t began_ns = rdti_pass_begin(len_bytes);
    rdti_coll_fold(coll, dst, in, coll->size, len_bytes / coll->elem_bytes, true);
    rdti_team_count_pass(coll->team, RDTI_PASS_SUM, began_ns);
    coll->direct.done.moved_bytes += len_bytes;
}

static void
board_op_plan_blocks(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    if (coll->block_bytes <= RDTI_INLINE_BYTES)
        d->room = RDTI_ROOM_LINE;
    d->piece_bytes = rdti_direct_stage_bytes(coll);
    d->steps = rdti_direct_steps(coll->block_bytes, d->piece_bytes);
}

static void
board_op_fill_block(struct rdti_coll *coll, uint64_t step, const void *src)
{
    const uint64_t off = step * coll->direct.piece_bytes;
    const uint64_t len = rdti_direct_piece_len(coll->block_bytes, coll->direct.piece_bytes, step);

    rdti_direct_put(coll, rdti_direct_stage(coll, coll->rank, step), rdti_coll_at_const(src, off),
                    len);
}

static void
board_op_use_block(struct rdti_coll *coll, uint64_t step, uint32_t member, void *dst)
{
    const uint64_t off = step * coll->direct.piece_bytes;
    const uint64_t len = rdti_direct_piece_len(coll->block_bytes, coll->direct.piece_bytes, step);

    rdti_direct_take(coll, rdti_coll_at(dst, off), rdti_direct_stage(coll, member, step), len);
}

/* ---- all_reduce in one shot, reduce ---- */

static rdt_status
board_op_fill_send(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    /* The sum of two takes the root's own part from the user's buffer. */
    if (coll->args.op == RDT_COLL_REDUCE && coll->rank == coll->args.root && coll->size == 2)
        return RDT_OK;
    board_op_fill_block(coll, step, coll->args.send);
    (void)err;
    return RDT_OK;
}

static rdt_status
board_op_use_fold(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t off = step * coll->direct.piece_bytes;

    (void)err;
    rdti_direct_fold_stages(coll, step, 0, rdti_coll_at(coll->args.recv, off),
                            rdti_coll_at_const(coll->args.send, off),
                            rdti_direct_piece_len(coll->block_bytes, coll->direct.piece_bytes,
                                                  step));
    return RDT_OK;
}

/* ---- all_reduce in two shots ----
 *
 * A chunk is a share for each rank, one after the other. In each step the stage has the inputs of
 * one, followed by the local sum of the chunk before.
 */

void
rdti_shares_plan(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;
    const uint64_t share = rdti_direct_share_bytes(RDTI_STAGE_BYTES, coll->size + 1);
    const uint64_t chunks = rdti_direct_steps(coll->block_bytes, share * coll->size);
    const uint64_t even = coll->block_bytes / chunks / coll->size + 1;

    /* Equal chunks: the ranks would wait for the longer ones if the last were shorter. */
    d->piece_bytes =
        (even + PIECE_ALIGNMENT_BYTES - 1) / PIECE_ALIGNMENT_BYTES * PIECE_ALIGNMENT_BYTES;
    if (d->piece_bytes > share)
        d->piece_bytes = share;
    d->steps = d->first + rdti_direct_steps(coll->block_bytes, d->piece_bytes * coll->size) + 1;
}

/* The share of a member in a chunk, in bytes of the buffers. */
static uint64_t
board_op_share_at(const struct rdti_coll *coll, uint64_t chunk, uint32_t member, uint64_t *len_out)
{
    const uint64_t number = chunk * coll->size + member;

    *len_out = rdti_direct_piece_len(coll->block_bytes, coll->direct.piece_bytes, number);
    return number * coll->direct.piece_bytes;
}

rdt_status
rdti_shares_fill(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;
    const uint64_t chunk = step - coll->direct.first;
    uint8_t *stage = rdti_direct_stage(coll, coll->rank, step);
    uint64_t len = 0;

    if (chunk > 0) {
        const uint64_t off = board_op_share_at(coll, chunk - 1, coll->rank, &len);
        rdti_direct_put(coll, stage + piece * coll->size, rdti_coll_at(coll->args.recv, off), len);
    }
    for (uint32_t i = 0; i < coll->size && step + 1 < coll->direct.steps; i++) {
        const uint64_t off = board_op_share_at(coll, chunk, i, &len);
        if (i != coll->rank || coll->size > 2)
            rdti_direct_put(coll, stage + piece * i, rdti_coll_at_const(coll->args.send, off), len);
    }
    (void)err;
    return RDT_OK;
}

rdt_status
rdti_shares_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;
    const uint64_t chunk = step - coll->direct.first;
    uint64_t len = 0;
    uint64_t off;

    (void)err;
    for (uint32_t i = 0; i < coll->size && chunk > 0; i++) {
        off = board_op_share_at(coll, chunk - 1, i, &len);
        if (i != coll->rank)
            rdti_direct_take(coll, rdti_coll_at(coll->args.recv, off),
                             rdti_direct_stage(coll, i, step) + piece * coll->size, len);
    }
    if (step + 1 == coll->direct.steps)
        return RDT_OK;
    off = board_op_share_at(coll, chunk, coll->rank, &len);
    rdti_direct_fold_stages(coll, step, piece * coll->rank, rdti_coll_at(coll->args.recv, off),
                            rdti_coll_at_const(coll->args.send, off), len);
    return RDT_OK;
}

/* ---- reduce_scatter: a piece of each member's block ---- */

static void
board_op_plan_pieces(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    d->piece_bytes = rdti_direct_share_bytes(rdti_direct_stage_bytes(coll), coll->size);
    d->steps = rdti_direct_steps(coll->block_bytes, d->piece_bytes);
}

static rdt_status
board_op_fill_pieces(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const bool is_reduction = coll->args.op == RDT_COLL_REDUCE_SCATTER;
    const uint64_t piece = coll->direct.piece_bytes;
    const uint64_t off = step * piece;
    const uint64_t len = rdti_direct_piece_len(coll->block_bytes, piece, step);

    if (!is_reduction && coll->rank != coll->args.root)
        return RDT_OK;
    if (!is_reduction && step == 0)
        rdti_direct_keep(coll, coll->args.recv, rdti_coll_send_block(coll, coll->rank),
                         coll->block_bytes);
    for (uint32_t i = 0; i < coll->size; i++)
        if (i != coll->rank || (is_reduction && coll->size > 2))
            rdti_direct_put(coll, rdti_direct_stage(coll, coll->rank, step) + piece * i,
                            rdti_coll_at_const(rdti_coll_send_block(coll, i), off), len);
    (void)err;
    return RDT_OK;
}

static rdt_status
board_op_use_fold_piece(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;
    const uint64_t off = step * piece;

    (void)err;
    rdti_direct_fold_stages(coll, step, piece * coll->rank, rdti_coll_at(coll->args.recv, off),
                            rdti_coll_at_const(rdti_coll_send_block(coll, coll->rank), off),
                            rdti_direct_piece_len(coll->block_bytes, piece, step));
    return RDT_OK;
}

/* ---- scatter ---- */

static rdt_status
board_op_use_piece(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;
    const uint64_t len = rdti_direct_piece_len(coll->block_bytes, piece, step);

    (void)err;
    rdti_direct_take(coll, rdti_coll_at(coll->args.recv, step * piece),
                     rdti_direct_stage(coll, coll->args.root, step) + piece * coll->rank, len);
    return RDT_OK;
}

/* ---- broadcast ---- */

static rdt_status
board_op_fill_root(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    if (coll->rank == coll->args.root)
        board_op_fill_block(coll, step, coll->args.recv);
    (void)err;
    return RDT_OK;
}

static rdt_status
board_op_use_root(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    (void)err;
    board_op_use_block(coll, step, coll->args.root, coll->args.recv);
    return RDT_OK;
}

/* ---- gather ---- */

static rdt_status
board_op_fill_own_block(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const bool is_root = coll->rank == coll->args.root;

    if (step == 0 && is_root)
        rdti_direct_keep(coll, rdti_coll_recv_block(coll, coll->rank), coll->args.send,
                         coll->block_bytes);
    if (!is_root)
        board_op_fill_block(coll, step, coll->args.send);
    (void)err;
    return RDT_OK;
}

/* For all_gather: the local block goes to all, and has a place here as well. */
static rdt_status
board_op_fill_and_keep(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;
    const uint64_t off = step * piece;
    void *own = rdti_coll_recv_block(coll, coll->rank);

    (void)err;
    if (rdti_direct_keeps_as_it_goes(coll, own, coll->args.send)) {
        rdti_direct_put_and_keep(coll, rdti_direct_stage(coll, coll->rank, step),
                                 rdti_coll_at(own, off), rdti_coll_at_const(coll->args.send, off),
                                 rdti_direct_piece_len(coll->block_bytes, piece, step));
        return RDT_OK;
    }
    if (step == 0)
        rdti_direct_keep(coll, own, coll->args.send, coll->block_bytes);
    board_op_fill_block(coll, step, coll->args.send);
    return RDT_OK;
}

static rdt_status
board_op_use_blocks(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    (void)err;
    for (uint32_t i = 0; i < coll->size; i++)
        if (i != coll->rank)
            board_op_use_block(coll, step, i, rdti_coll_recv_block(coll, i));
    return RDT_OK;
}

/* ---- all_to_all ----
 *
 * The stage begins with the number of bytes that the owner sends to each member altogether; pieces
 * follow. Only the owner knows for how many ticks it has something to send, so the first line says
 * so, and all go on as long as one of them needs.
 */

enum { COUNTS_BYTES = RDTI_TEAM_MAX * sizeof(uint64_t) };

static const void *
board_op_send_to(const struct rdti_coll *coll, uint32_t member, uint64_t *len_out)
{
    uint64_t count = 0;
    const void *src = rdti_alltoall_source(coll, member, &count);

    *len_out = count * coll->elem_bytes;
    return src;
}

static void *
board_op_recv_from(const struct rdti_coll *coll, uint32_t member, uint64_t *len_out)
{
    uint64_t count = 0;
    void *dst = rdti_alltoall_target(coll, member, &count);

    *len_out = count * coll->elem_bytes;
    return dst;
}

static void
board_op_plan_exchange(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    d->piece_bytes = rdti_direct_share_bytes(RDTI_STAGE_BYTES - COUNTS_BYTES, coll->size);
    for (uint32_t i = 0; i < coll->size; i++) {
        uint64_t len = 0;
        (void)board_op_send_to(coll, i, &len);
        if (i != coll->rank && rdti_direct_steps(len, d->piece_bytes) > d->steps)
            d->steps = rdti_direct_steps(len, d->piece_bytes);
    }
}

static void
board_op_begin_exchange(struct rdti_coll *coll)
{
    uint8_t *counts = rdti_direct_stage(coll, coll->rank, 0);
    uint64_t len = 0;

    for (uint32_t i = 0; i < coll->size; i++) {
        const void *src = board_op_send_to(coll, i, &len);
        rdti_put_u64(counts + i * sizeof(uint64_t), len);
        if (i == coll->rank)
            rdti_direct_keep(coll, board_op_recv_from(coll, i, &len), src, len);
    }
    rdti_direct_line(coll, coll->rank)->u.steps = coll->direct.steps;
}

static rdt_status
board_op_fill_exchange(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;
    uint8_t *stage = rdti_direct_stage(coll, coll->rank, step) + COUNTS_BYTES;

    if (step == 0)
        board_op_begin_exchange(coll);
    for (uint32_t i = 0; i < coll->size; i++) {
        uint64_t len = 0;
        const void *src = board_op_send_to(coll, i, &len);
        if (i != coll->rank)
            rdti_direct_put(coll, stage + piece * i, rdti_coll_at_const(src, step * piece),
                            rdti_direct_piece_len(len, piece, step));
    }
    (void)err;
    return RDT_OK;
}

/* A peer's values are not trusted: a size that does not fit is an error, and more ticks than any
 * member can need end at the local deadline. */
static rdt_status
board_op_agree_on_exchange(struct rdti_coll *coll, struct rdt_error *err)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        const uint8_t *counts = rdti_direct_stage(coll, i, 0);
        uint64_t want_bytes = 0;
        if (i == coll->rank)
            continue;
        (void)board_op_recv_from(coll, i, &want_bytes);
        const uint64_t sent_bytes = rdti_get_u64(counts + coll->rank * sizeof(uint64_t));
        if (sent_bytes != want_bytes)
            return rdti_error_set(
                err, RDT_EMISMATCH, 0,
                "%s #%llu, round 1 of %llu, receive from %s: it sends %llu bytes, we expect %llu",
                rdti_coll_name(coll->args.op), (unsigned long long)coll->sequence,
                (unsigned long long)coll->direct.steps, rdti_coll_rank_name(coll, i).text,
                (unsigned long long)sent_bytes, (unsigned long long)want_bytes);
        const uint64_t steps = rdti_direct_line(coll, i)->u.steps;
        if (steps > coll->direct.steps)
            coll->direct.steps = steps;
    }
    return RDT_OK;
}

static rdt_status
board_op_use_exchange(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const uint64_t piece = coll->direct.piece_bytes;

    if (step == 0) {
        const rdt_status status = board_op_agree_on_exchange(coll, err);
        if (status != RDT_OK)
            return status;
    }
    for (uint32_t i = 0; i < coll->size; i++) {
        uint64_t total = 0;
        void *dst = board_op_recv_from(coll, i, &total);
        const uint64_t len = rdti_direct_piece_len(total, piece, step);
        if (i != coll->rank)
            rdti_direct_take(coll, rdti_coll_at(dst, step * piece),
                             rdti_direct_stage(coll, i, step) + COUNTS_BYTES + piece * coll->rank,
                             len);
    }
    return RDT_OK;
}

/* ---- The table ---- */

const struct rdti_direct_op *
rdti_direct_op_of(const struct rdti_coll *coll)
{
    static const struct rdti_direct_op one_shot = {board_op_plan_blocks, board_op_fill_send,
                                                   board_op_use_fold};
    static const struct rdti_direct_op two_shots = {rdti_shares_plan, rdti_shares_fill,
                                                    rdti_shares_use};
    static const struct rdti_direct_op operations[] = {
        [RDT_COLL_BROADCAST] = {board_op_plan_blocks, board_op_fill_root, board_op_use_root},
        [RDT_COLL_REDUCE] = {board_op_plan_blocks, board_op_fill_send, board_op_use_fold},
        [RDT_COLL_ALLGATHER] = {board_op_plan_blocks, board_op_fill_and_keep, board_op_use_blocks},
        [RDT_COLL_REDUCE_SCATTER] = {board_op_plan_pieces, board_op_fill_pieces,
                                     board_op_use_fold_piece},
        [RDT_COLL_GATHER] = {board_op_plan_blocks, board_op_fill_own_block, board_op_use_blocks},
        [RDT_COLL_SCATTER] = {board_op_plan_pieces, board_op_fill_pieces, board_op_use_piece},
        [RDT_COLL_ALLTOALL] = {board_op_plan_exchange, board_op_fill_exchange,
                               board_op_use_exchange},
        [RDT_COLL_BARRIER] = {NULL, NULL, NULL},
    };

    if (coll->lossy.code != 0)
        return &rdti_lossy_boards;
    if (coll->args.op != RDT_COLL_ALLREDUCE)
        return &operations[coll->args.op];
    if (coll->block_bytes >= PLACED_FROM_BYTES && coll->pack == NULL)
        return &rdti_direct_placed;
    /* Each rank reads all of what the others wrote: with more ranks the cross-over is lower. */
    return coll->block_bytes * (coll->size - 1) <= ONE_SHOT_MAX_BYTES ? &one_shot : &two_shots;
}
