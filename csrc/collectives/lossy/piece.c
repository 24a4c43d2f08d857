/* SPDX-License-Identifier: Apache-2.0
 * Chunks, pieces of them, and the passes over a piece. */
#include "collectives/collective.h"
#include "collectives/lossy/lossy.h"
#include "collectives/team/team.h"

#include <string.h>

enum {
    ALIGNMENT = 64,
    /* A multiple of every block. Summed values stay in the first-level cache until they are
     * encoded. */
    SUM_ELEMENTS = 2048,
};
_Static_assert(SUM_ELEMENTS % RDTI_Q8_BLOCK_MOST == 0, "blocks are not cut");

bool
rdti_lossy_has_sum(const struct rdti_coll *coll)
{
    return coll->args.op != RDT_COLL_ALLGATHER;
}

bool
rdti_lossy_has_result(const struct rdti_coll *coll)
{
    return coll->args.op != RDT_COLL_REDUCE_SCATTER;
}

/* ---- Chunks ---- */

/* Of all_reduce: the first element of a member's chunk. Earlier chunks have a block more. */
static uint64_t
piece_chunk_begin(const struct rdti_coll *coll, uint32_t member)
{
    const uint64_t count = coll->args.count;
    const uint64_t blocks = count / coll->lossy.block + (count % coll->lossy.block != 0);
    const uint64_t more = blocks % coll->size;
    const uint64_t first = blocks / coll->size * member + (member < more ? member : more);
    const uint64_t begin = first * coll->lossy.block;

    return begin < count ? begin : count;
}

static float *
piece_at(float *floats, uint64_t off)
{
    return floats == NULL ? NULL : floats + off;
}

struct rdti_lossy_chunk
rdti_lossy_chunk_of(const struct rdti_coll *coll, uint32_t member)
{
    const struct rdt_coll_args *args = &coll->args;
    const bool is_own = member == coll->rank;
    uint64_t begin;

    switch (args->op) {
    case RDT_COLL_ALLREDUCE:
        begin = piece_chunk_begin(coll, member);
        return (struct rdti_lossy_chunk){
            .src = rdti_coll_at_const(args->send, begin * sizeof(float)),
            .dst = rdti_coll_at(args->recv, begin * sizeof(float)),
            .residual = piece_at(args->residual, begin),
            .count = piece_chunk_begin(coll, member + 1) - begin,
        };
    case RDT_COLL_REDUCE_SCATTER:
        return (struct rdti_lossy_chunk){
            .src = rdti_coll_send_block(coll, member),
            .dst = is_own ? args->recv : NULL,
            .residual = is_own ? NULL : piece_at(args->residual, member * args->count),
            .count = args->count,
        };
    default: /* RDT_COLL_ALLGATHER */
        return (struct rdti_lossy_chunk){
            .src = is_own ? args->send : NULL,
            .dst = rdti_coll_recv_block(coll, member),
            .residual = is_own ? args->residual : NULL,
            .count = args->count,
        };
    }
}

struct rdti_lossy_chunk
rdti_lossy_cut(const struct rdti_lossy_chunk *chunk, uint64_t begin, uint64_t most)
{
    const uint64_t off = begin < chunk->count ? begin : chunk->count;
    const uint64_t left = chunk->count - off;

    return (struct rdti_lossy_chunk){
        .src = chunk->src == NULL ? NULL : chunk->src + off,
        .dst = piece_at(chunk->dst, off),
        .residual = piece_at(chunk->residual, off),
        .count = left < most ? left : most,
    };
}

uint64_t
rdti_lossy_longest(const struct rdti_coll *coll)
{
    return rdti_lossy_chunk_of(coll, 0).count;
}

/* ---- Encoded pieces ---- */

static uint64_t
piece_scales_bytes(const struct rdti_coll *coll, uint64_t count)
{
    const uint32_t block = coll->lossy.block;
    const uint64_t blocks = count / block + (count % block != 0);
    const uint64_t bytes = blocks * sizeof(uint16_t);

    if (coll->args.wire == RDT_WIRE_BF16)
        return 0;
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static uint64_t
piece_element_bytes(const struct rdti_coll *coll)
{
    return coll->args.wire == RDT_WIRE_BF16 ? sizeof(uint16_t) : sizeof(int8_t);
}

uint64_t
rdti_lossy_bytes(const struct rdti_coll *coll, uint64_t count)
{
    return piece_scales_bytes(coll, count) + count * piece_element_bytes(coll);
}

uint64_t
rdti_lossy_count_within(const struct rdti_coll *coll, uint64_t len_bytes)
{
    const bool has_scales = coll->args.wire != RDT_WIRE_BF16;
    const uint64_t block_bytes = coll->lossy.block * piece_element_bytes(coll);
    const uint64_t padding = has_scales ? ALIGNMENT - 1 : 0;
    const uint64_t scale_bytes = has_scales ? sizeof(uint16_t) : 0;

    return (len_bytes - padding) / (block_bytes + scale_bytes) * coll->lossy.block;
}

/* The elements from `off` on, a multiple of a block, of an encoded piece of `count`. */
static struct rdti_lossy_view
piece_view(const struct rdti_coll *coll, uint8_t *piece, uint64_t count, uint64_t off)
{
    return (struct rdti_lossy_view){
        .scales = (uint16_t *)(void *)piece + off / coll->lossy.block,
        .data = piece + piece_scales_bytes(coll, count) + off * piece_element_bytes(coll),
    };
}

static void
piece_count_odd(const struct rdti_coll *coll, const struct rdti_lossy_odd *odd)
{
    if (odd->not_finite == 0 && odd->saturated == 0)
        return;
    (void)atomic_fetch_add_explicit(&coll->team->lossy.not_finite, odd->not_finite,
                                    memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&coll->team->lossy.saturated, odd->saturated,
                                    memory_order_relaxed);
}

void
rdti_lossy_encode(struct rdti_coll *coll, uint8_t *out, const struct rdti_lossy_chunk *piece)
{
    const uint64_t began_ns = rdti_pass_begin(piece->count * sizeof(float));
    struct rdti_lossy_odd odd = {0};

    if (piece->count == 0)
        return;
    coll->lossy.loops->encode(piece_view(coll, out, piece->count, 0), piece->src, piece->residual,
                              piece->count, coll->lossy.block, &odd);
    piece_count_odd(coll, &odd);
    rdti_team_count_pass(coll->team, RDTI_PASS_LOSSY, began_ns);
}

void
rdti_lossy_decode(struct rdti_coll *coll, float *dst, uint8_t *in, uint64_t count)
{
    const uint64_t began_ns = rdti_pass_begin(count * sizeof(float));

    if (count == 0)
        return;
    coll->lossy.loops->decode(dst, piece_view(coll, in, count, 0), count, coll->lossy.block);
    rdti_team_count_pass(coll->team, RDTI_PASS_LOSSY, began_ns);
}

/* The sum of `some` elements from `off` on, apart from dst, which may be where the own values
 * are. */
static void
piece_sum_some(const struct rdti_coll *coll, float *sum, const struct rdti_lossy_chunk *piece,
               uint8_t *const *in, uint64_t off, uint64_t some)
{
    const struct rdti_lossy_loops *loops = coll->lossy.loops;

    for (uint32_t i = 0; i < coll->size; i++) {
        const bool is_own = i == coll->rank;
        const struct rdti_lossy_view view =
            is_own ? (struct rdti_lossy_view){0} : piece_view(coll, in[i], piece->count, off);
        if (is_own && i == 0)
            memcpy(sum, piece->src + off, some * sizeof(*sum));
        else if (is_own)
            coll->reduce(sum, sum, piece->src + off, some);
        else if (i == 0)
            loops->decode(sum, view, some, coll->lossy.block);
        else
            loops->add(sum, view, some, coll->lossy.block);
    }
    if (coll->divide != NULL)
        coll->divide(sum, some, coll->divisor);
}

/* out NULL: the sum itself is the result. */
static void
piece_sum(struct rdti_coll *coll, uint8_t *out, const struct rdti_lossy_chunk *piece,
          uint8_t *const *in)
{
    const uint64_t began_ns = rdti_pass_begin(piece->count * sizeof(float));
    const uint32_t block = coll->lossy.block;
    _Alignas(ALIGNMENT) float sum[SUM_ELEMENTS];
    struct rdti_lossy_odd odd = {0};

    for (uint64_t off = 0; off < piece->count; off += SUM_ELEMENTS) {
        const struct rdti_lossy_chunk some = rdti_lossy_cut(piece, off, SUM_ELEMENTS);
        piece_sum_some(coll, sum, piece, in, off, some.count);
        if (out == NULL) {
            memcpy(some.dst, sum, some.count * sizeof(*sum));
            continue;
        }
        const struct rdti_lossy_view view = piece_view(coll, out, piece->count, off);
        coll->lossy.loops->encode(view, sum, some.residual, some.count, block, &odd);
        coll->lossy.loops->decode(some.dst, view, some.count, block);
    }
    piece_count_odd(coll, &odd);
    rdti_team_count_pass(coll->team, RDTI_PASS_LOSSY, began_ns);
}

void
rdti_lossy_sum(struct rdti_coll *coll, const struct rdti_lossy_chunk *piece, uint8_t *const *in)
{
    piece_sum(coll, NULL, piece, in);
}

void
rdti_lossy_sum_and_encode(struct rdti_coll *coll, uint8_t *out,
                          const struct rdti_lossy_chunk *piece, uint8_t *const *in)
{
    piece_sum(coll, out, piece, in);
}

/* ---- Counters ---- */

static uint64_t
piece_chunk_bytes(const struct rdti_coll *coll, uint32_t member, uint64_t piece)
{
    const uint64_t count = rdti_lossy_chunk_of(coll, member).count;
    const uint64_t whole = piece == 0 ? 0 : count / piece;

    return whole * rdti_lossy_bytes(coll, piece) + rdti_lossy_bytes(coll, count - whole * piece);
}

void
rdti_lossy_count_sent(const struct rdti_coll *coll, uint64_t piece)
{
    const uint64_t own = rdti_lossy_chunk_of(coll, coll->rank).count;
    uint64_t bytes = 0;
    uint64_t elements = 0;

    for (uint32_t i = 0; i < coll->size && rdti_lossy_has_sum(coll); i++) {
        if (i == coll->rank)
            continue;
        bytes += piece_chunk_bytes(coll, i, piece);
        elements += rdti_lossy_chunk_of(coll, i).count;
    }
    if (rdti_lossy_has_result(coll)) {
        bytes += (coll->size - 1) * piece_chunk_bytes(coll, coll->rank, piece);
        elements += (coll->size - 1) * own;
    }
    (void)atomic_fetch_add_explicit(&coll->team->lossy.sent_bytes, bytes, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&coll->team->lossy.exact_bytes, elements * sizeof(float),
                                    memory_order_relaxed);
}
