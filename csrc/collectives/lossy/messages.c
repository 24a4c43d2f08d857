/* SPDX-License-Identifier: Apache-2.0
 * Lossy collectives by messages. Chunks go in pieces, and a piece moves on by a step in each round:
 *
 *   round k      each member encodes its piece k of the others' chunks
 *         k + 1  and sends it to their owners
 *         k + 2  the owner sums piece k of its chunk and encodes the result
 *         k + 3  and sends it to all
 *         k + 4  which decode it
 *
 * So messages are on their way while a member computes. A round computes after it has posted its
 * messages, and never what it sends or receives itself. Where one half is lacking, its rounds are,
 * too: the result of all_gather is encoded in round k.
 */
#include "collectives/collective.h"
#include "collectives/lossy/lossy.h"
#include "collectives/schedule/schedule.h"

enum {
    ALIGNMENT_BYTES = 64,
    /* At most, but for chunks of more than 2^14 pieces, as messages have numbers of 16 bits. Not
     * tuned. */
    PIECE_ELEMENTS = 128 * 1024,
    PIECES_MAX = 1 << 14,
    ROUNDS_TO_RESULT = 2, /* between sending for a sum and sending the result */
};

/* The same on all members. */
struct plan {
    uint64_t piece;  /* elements */
    uint64_t pieces; /* of each chunk; of a shorter one the last may be empty */
    uint64_t stride; /* bytes between encoded pieces */
    uint64_t begun;  /* the round in which the first result is sent */
};

static struct plan
messages_plan(const struct rdti_coll *coll)
{
    const uint64_t block = coll->lossy.block;
    const uint64_t longest = rdti_lossy_longest(coll);
    const uint64_t most = longest / PIECES_MAX > PIECE_ELEMENTS
                              ? longest / PIECES_MAX / block * block + block
                              : (uint64_t)PIECE_ELEMENTS;
    const uint64_t wanted = longest == 0 ? 1 : (longest - 1) / most + 1;
    const uint64_t share = longest / wanted + (longest % wanted != 0);
    const uint64_t piece = (share + block - 1) / block * block;
    const uint64_t bytes = rdti_lossy_bytes(coll, piece);

    return (struct plan){
        .piece = piece,
        .pieces = longest == 0 ? 1 : (longest - 1) / piece + 1,
        .stride = (bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES,
        .begun = rdti_lossy_has_sum(coll) ? 1 + ROUNDS_TO_RESULT : 1,
    };
}

/* Encoded pieces of chunks; NULL where the half has none. */
struct buffers {
    struct plan plan;
    uint8_t *out;     /* for the others' chunks, by member; then their results land there */
    uint8_t *in;      /* of the own chunk, from the others, by member */
    uint8_t *results; /* of the own chunk */
    uint8_t **inputs; /* of each own piece, an address for each member */
};

/* The others in rank order. */
static uint64_t
messages_slot_of(const struct rdti_coll *coll, uint32_t member)
{
    return member < coll->rank ? member : member - 1;
}

static uint8_t *
messages_at(const struct rdti_coll *coll, const struct buffers *b, uint8_t *base, uint32_t member,
            uint64_t k)
{
    return base + (messages_slot_of(coll, member) * b->plan.pieces + k) * b->plan.stride;
}

static struct rdti_lossy_chunk
messages_piece_of(const struct rdti_coll *coll, const struct plan *plan, uint32_t member,
                  uint64_t k)
{
    const struct rdti_lossy_chunk chunk = rdti_lossy_chunk_of(coll, member);

    return rdti_lossy_cut(&chunk, k * plan->piece, plan->piece);
}

static uint64_t
messages_piece_bytes(const struct rdti_coll *coll, const struct buffers *b, uint32_t member,
                     uint64_t k)
{
    return rdti_lossy_bytes(coll, messages_piece_of(coll, &b->plan, member, k).count);
}

/* ---- What a round computes: of piece `number` of the member's chunk ---- */

static void
messages_encode(struct rdti_coll *coll, const struct rdti_call *call)
{
    const struct plan plan = messages_plan(coll);
    const struct rdti_lossy_chunk piece =
        messages_piece_of(coll, &plan, call->member, call->number);

    rdti_lossy_encode(coll, call->out, &piece);
    if (call->member == coll->rank) /* a result, of which this member takes the same */
        rdti_lossy_decode(coll, piece.dst, call->out, piece.count);
}

static void
messages_sum(struct rdti_coll *coll, const struct rdti_call *call)
{
    const struct plan plan = messages_plan(coll);
    const struct rdti_lossy_chunk piece =
        messages_piece_of(coll, &plan, call->member, call->number);

    if (call->out != NULL)
        rdti_lossy_sum_and_encode(coll, call->out, &piece, call->in);
    else
        rdti_lossy_sum(coll, &piece, call->in);
}

static void
messages_decode(struct rdti_coll *coll, const struct rdti_call *call)
{
    const struct plan plan = messages_plan(coll);
    const struct rdti_lossy_chunk piece =
        messages_piece_of(coll, &plan, call->member, call->number);

    rdti_lossy_decode(coll, piece.dst, call->in, piece.count);
}

/* ---- Rounds ---- */

static void
messages_add_receives(struct rdti_coll *coll, const struct buffers *b, uint64_t round)
{
    const uint64_t k = round - 1;
    const uint64_t result = round - b->plan.begun;

    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t source = rdti_coll_before(coll, i);
        if (b->in != NULL && round >= 1 && k < b->plan.pieces)
            rdti_schedule_recv(coll, source, messages_at(coll, b, b->in, source, k),
                               messages_piece_bytes(coll, b, coll->rank, k));
        if (b->results != NULL && round >= b->plan.begun && result < b->plan.pieces)
            rdti_schedule_recv(coll, source, messages_at(coll, b, b->out, source, result),
                               messages_piece_bytes(coll, b, source, result));
    }
}

static void
messages_add_sends(struct rdti_coll *coll, const struct buffers *b, uint64_t round)
{
    const uint64_t k = round - 1;
    const uint64_t result = round - b->plan.begun;

    for (uint32_t i = 1; i < coll->size; i++) {
        const uint32_t target = rdti_coll_after(coll, i);
        if (b->in != NULL && round >= 1 && k < b->plan.pieces)
            rdti_schedule_send(coll, target, messages_at(coll, b, b->out, target, k),
                               messages_piece_bytes(coll, b, target, k));
        if (b->results != NULL && round >= b->plan.begun && result < b->plan.pieces)
            rdti_schedule_send(coll, target, b->results + result * b->plan.stride,
                               messages_piece_bytes(coll, b, coll->rank, result));
    }
}

static void
messages_add_sum(struct rdti_coll *coll, const struct buffers *b, uint64_t k)
{
    uint8_t **inputs = b->inputs + k * coll->size;

    for (uint32_t i = 0; i < coll->size; i++)
        inputs[i] = i == coll->rank ? NULL : messages_at(coll, b, b->in, i, k);
    rdti_schedule_call(coll, messages_sum,
                       &(struct rdti_call){
                           .member = coll->rank,
                           .number = k,
                           .out = b->results == NULL ? NULL : b->results + k * b->plan.stride,
                           .in = inputs,
                       });
}

/* For the other's chunks, or of all_gather for the own one. */
static void
messages_add_encodings(struct rdti_coll *coll, const struct buffers *b, uint64_t k)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        const bool is_own = i == coll->rank;
        if (is_own != (b->in != NULL))
            rdti_schedule_call(coll, messages_encode,
                               &(struct rdti_call){
                                   .member = i,
                                   .number = k,
                                   .out = is_own ? b->results + k * b->plan.stride
                                                 : messages_at(coll, b, b->out, i, k),
                               });
    }
}

static void
messages_add_decodings(struct rdti_coll *coll, const struct buffers *b, uint64_t k)
{
    for (uint32_t i = 0; i < coll->size; i++)
        if (i != coll->rank)
            rdti_schedule_call(coll, messages_decode,
                               &(struct rdti_call){
                                   .member = i,
                                   .number = k,
                                   .in = messages_at(coll, b, b->out, i, k),
                               });
}

static void
messages_add_calls(struct rdti_coll *coll, const struct buffers *b, uint64_t round)
{
    const uint64_t pieces = b->plan.pieces;
    const uint64_t arrived = b->plan.begun + 1; /* the round after the first result */

    if (round < pieces)
        messages_add_encodings(coll, b, round);
    if (b->in != NULL && round >= 2 && round - 2 < pieces)
        messages_add_sum(coll, b, round - 2);
    if (b->results != NULL && round >= arrived && round - arrived < pieces)
        messages_add_decodings(coll, b, round - arrived);
}

static void
messages_build(struct rdti_coll *coll)
{
    struct buffers b = {.plan = messages_plan(coll)};
    const uint64_t chunk_bytes = b.plan.pieces * b.plan.stride;
    const uint64_t others = coll->size - 1;

    b.out = rdti_schedule_temp(coll, others * chunk_bytes);
    if (rdti_lossy_has_sum(coll)) {
        b.in = rdti_schedule_temp(coll, others * chunk_bytes);
        b.inputs = rdti_schedule_temp(coll, b.plan.pieces * coll->size * sizeof(*b.inputs));
    }
    if (rdti_lossy_has_result(coll))
        b.results = rdti_schedule_temp(coll, chunk_bytes);
    if (coll->schedule.status != RDT_OK)
        return;
    /* The last piece of the half that comes last, and the round that uses it. */
    const uint64_t rounds = b.plan.pieces + (b.results != NULL ? b.plan.begun : 1) + 1;
    for (uint64_t round = 0; round < rounds; round++) {
        messages_add_receives(coll, &b, round);
        messages_add_sends(coll, &b, round);
        messages_add_calls(coll, &b, round);
        rdti_schedule_end_round(coll);
    }
    rdti_lossy_count_sent(coll, b.plan.piece);
}

RDTI_SCHEDULE_ALGORITHM(lossy_messages, "lossy", messages_build);
