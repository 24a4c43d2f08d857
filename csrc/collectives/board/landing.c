/* SPDX-License-Identifier: Apache-2.0
 * Landings: the tensors of a persistent collective, which the members that use them hold from its
 * initialisation on. A start takes two ticks. The first says that the member's tensor may be used,
 * the second that the member uses no other one any more. Between them each member reads, and for
 * all_reduce writes, the tensors themselves, with no copy through a stage. A member whose
 * all_reduce has other memory in this start says so in the first tick: then all use the stages.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/range.h"
#include "collectives/board/board.h"
#include "collectives/board/in_place.h"
#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"
#include "wire/group/persistent.h"

enum {
    /* From here on two ticks and one pass over the payload take less than a stage's one tick and
     * two passes. */
    LANDED_FROM_BYTES = 128 * 1024,
    BLOCK_BYTES = 16 * 1024, /* of a sum: stays in a core's first two caches until it is stored */
};

/* ---- What peers use ---- */

static bool
landing_overlaps(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

/* Bytes of a member's tensor that others use. */
static uint64_t
landing_bytes(const struct rdti_coll *coll)
{
    return coll->args.op == RDT_COLL_REDUCE_SCATTER ? coll->size * coll->block_bytes
                                                    : coll->block_bytes;
}

/* Others use the member's tensor. Of those that the operation has, only an all_reduce writes it. */
static bool
landing_is_used(const struct rdti_coll *coll, uint32_t member)
{
    return coll->args.op != RDT_COLL_BROADCAST || member == coll->args.root;
}

static bool
landing_has(uint32_t op)
{
    return op == RDT_COLL_ALLREDUCE || op == RDT_COLL_REDUCE_SCATTER || op == RDT_COLL_ALLGATHER ||
           op == RDT_COLL_BROADCAST;
}

/* Output that overlaps input which others read is not written before they have. A member's own
 * block is read by itself alone. */
static bool
landing_is_overwritten(const struct rdti_coll *coll)
{
    const struct rdt_coll_args *args = &coll->args;
    const uint64_t all_bytes = coll->size * coll->block_bytes;

    switch (args->op) {
    case RDT_COLL_REDUCE_SCATTER:
        return args->recv != rdti_coll_send_block(coll, coll->rank) &&
               landing_overlaps(args->send, all_bytes, args->recv, coll->block_bytes);
    case RDT_COLL_ALLGATHER:
        return args->send != rdti_coll_recv_block(coll, coll->rank) &&
               landing_overlaps(args->send, coll->block_bytes, args->recv, all_bytes);
    default:
        return false;
    }
}

static const void *
landing_tensor(const struct rdti_coll *coll)
{
    return coll->args.op == RDT_COLL_BROADCAST ? coll->args.recv : coll->args.send;
}

/* Why others cannot use the local tensor, as far as the arguments say. */
static uint32_t
landing_of(const struct rdti_coll *coll)
{
    const struct rdt_coll_args *args = &coll->args;

    if (!landing_has(args->op))
        return RDT_LANDING_OPERATION;
    if (coll->block_bytes < LANDED_FROM_BYTES)
        return RDT_LANDING_SMALL;
    if (args->blocks != NULL)
        return RDT_LANDING_BLOCKS;
    if (args->op == RDT_COLL_ALLREDUCE && args->send != args->recv)
        return RDT_LANDING_APART;
    if (landing_is_overwritten(coll))
        return RDT_LANDING_OVERLAPS;
    return landing_is_used(coll, coll->rank) ? RDT_LANDING_OFFERED : RDT_LANDING_UNUSED;
}

void
rdti_landing_offer(const struct rdti_coll *coll, struct rdti_persistent_record *out)
{
    out->landing = landing_of(coll);
    if (out->landing != RDT_LANDING_OFFERED)
        return;
    struct rdti_place place = {0};
    if (rdti_placed_find(coll, landing_tensor(coll), landing_bytes(coll), &place))
        out->place = place;
    else
        out->landing = RDT_LANDING_NOT_IN_ARENA;
}

bool
rdti_landing_is_offered(const struct rdti_coll *coll, const struct rdti_persistent_record *records,
                        uint32_t *landing_out, uint32_t *rank_out)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        const bool is_used = landing_has(coll->args.op) && landing_is_used(coll, i);
        if (records[i].landing == RDT_LANDING_OFFERED ||
            (!is_used && records[i].landing == RDT_LANDING_UNUSED))
            continue;
        *landing_out = records[i].landing;
        *rank_out = *landing_out == RDT_LANDING_OPERATION || *landing_out == RDT_LANDING_SMALL
                        ? RDT_SOURCE_ANY /* of all */
                        : i;
        return false;
    }
    *landing_out = RDT_LANDING_OFFERED;
    *rank_out = RDT_SOURCE_ANY;
    return true;
}

/* ---- Work ---- */

static void
landing_gather(struct rdti_coll *coll)
{
    for (uint32_t i = 0; i < coll->size; i++) {
        void *dst = rdti_coll_recv_block(coll, i);
        if (i == coll->rank)
            rdti_direct_keep(coll, dst, coll->args.send, coll->block_bytes);
        else
            rdti_direct_take(coll, dst, coll->direct.placed->tensors[i], coll->block_bytes);
    }
}

static void
landing_fetch(struct rdti_coll *coll)
{
    if (coll->rank != coll->args.root)
        rdti_direct_take(coll, coll->args.recv, coll->direct.placed->tensors[coll->args.root],
                         coll->block_bytes);
}

/* The output may be the member's own block of the input, which only this member reads. */
static void
landing_sum_block(struct rdti_coll *coll)
{
    const uint64_t off = coll->rank * coll->block_bytes;
    const uint64_t began_ns = rdti_pass_begin(coll->block_bytes);
    const bool is_apart = coll->args.recv == rdti_coll_send_block(coll, coll->rank);
    _Alignas(64) uint8_t apart[BLOCK_BYTES];

    for (uint64_t at = 0; at < coll->block_bytes; at += BLOCK_BYTES) {
        const uint64_t left = coll->block_bytes - at;
        const uint64_t len = left < BLOCK_BYTES ? left : BLOCK_BYTES;
        const uint8_t *in[RDTI_TEAM_MAX];
        uint8_t *dst = (uint8_t *)coll->args.recv + at;
        for (uint32_t i = 0; i < coll->size; i++)
            in[i] = coll->direct.placed->tensors[i] + off + at;
        rdti_coll_fold(coll, is_apart ? apart : dst, in, coll->size, len / coll->elem_bytes, true);
        if (is_apart)
            memcpy(dst, apart, len);
    }
    rdti_team_count_pass(coll->team, RDTI_PASS_SUM, began_ns);
    coll->direct.done.moved_bytes += coll->block_bytes * (coll->size - 1);
    coll->direct.done.planned_bytes += coll->block_bytes * (coll->size - 1);
}

static void
landing_work(struct rdti_coll *coll)
{
    switch (coll->args.op) {
    case RDT_COLL_ALLREDUCE:
        rdti_placed_sum_share(coll);
        break;
    case RDT_COLL_REDUCE_SCATTER:
        landing_sum_block(coll);
        break;
    case RDT_COLL_ALLGATHER:
        landing_gather(coll);
        break;
    default: /* RDT_COLL_BROADCAST */
        landing_fetch(coll);
        break;
    }
}

static rdt_status
landing_fill(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    const struct rdti_persistent_start start = {.number = coll->direct.number,
                                                .is_aside = coll->is_aside ? 1 : 0};

    if (step > 0)
        return coll->direct.placed != NULL ? rdti_placed_work(coll, landing_work)
                                           : rdti_shares_fill(coll, step, err);
    rdti_persistent_start_encode(&start, rdti_direct_line(coll, coll->rank)->u.payload);
    return RDT_OK;
}
_Static_assert((int)RDTI_PERSISTENT_START_BYTES <= (int)RDTI_INLINE_BYTES, "it fits a line");

/* RDT_EPROTO: bytes that mean nothing; RDT_EMISMATCH: the member started another one. */
static rdt_status
landing_read_start(const struct rdti_coll *coll, uint32_t member, bool *is_aside_out,
                   struct rdt_error *err)
{
    uint8_t bytes[RDTI_PERSISTENT_START_BYTES];
    struct rdti_persistent_start start;
    struct rdt_error why; /* filled where the decoder refuses */

    memcpy(bytes, rdti_direct_line(coll, member)->u.payload, sizeof(bytes)); /* it may store on */
    if (rdti_persistent_start_decode(bytes, sizeof(bytes), &start, &why) != RDT_OK)
        return rdti_error_set(err, RDT_EPROTO, 0, "%s sent a %s",
                              rdti_coll_rank_name(coll, member).text, why.message);
    *is_aside_out = start.is_aside != 0;
    if (start.number == coll->direct.number)
        return RDT_OK;
    return rdti_error_set(err, RDT_EMISMATCH, 0,
                          "%s started the persistent collective that the group's collective #%llu "
                          "initialised, %s (this one) that of #%llu",
                          rdti_coll_rank_name(coll, member).text, (unsigned long long)start.number,
                          rdti_coll_rank_name(coll, coll->rank).text,
                          (unsigned long long)coll->direct.number);
}

/* Two persistent collectives of one description have different memory. */
static rdt_status
landing_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    bool is_aside = false;

    if (step > 0)
        return coll->direct.placed != NULL ? RDT_OK : rdti_shares_use(coll, step, err);
    for (uint32_t i = 0; i < coll->size; i++) {
        bool is_members = false;
        const rdt_status status = landing_read_start(coll, i, &is_members, err);
        if (status != RDT_OK)
            return status;
        is_aside |= is_members;
    }
    if (is_aside) {
        coll->direct.placed = NULL; /* the persistent collective keeps it */
        coll->direct.room = RDTI_ROOM_STAGE;
        coll->direct.first = 1;
        rdti_shares_plan(coll);
    }
    return RDT_OK;
}

static void
landing_plan(struct rdti_coll *coll)
{
    coll->direct.room = RDTI_ROOM_LINE;
    coll->direct.steps = 2;
}

const struct rdti_direct_op rdti_direct_landed = {landing_plan, landing_fill, landing_use};

bool
rdti_direct_is_landed(const struct rdti_coll *coll)
{
    return coll->direct.op == &rdti_direct_landed;
}

/* ---- Binding ---- */

static rdt_status
landing_take(struct rdti_coll *coll, struct rdti_placed *placed, uint32_t member,
             const struct rdti_place *place, struct rdt_error *err)
{
    const uint64_t len_bytes = landing_bytes(coll);

    if (!rdti_range_ok(place->off_bytes, len_bytes, place->region.len_bytes))
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "%s sent the place of a tensor that does not fit there",
                              rdti_coll_rank_name(coll, member).text);
    placed->places[member] = *place;
    return RDT_OK;
}

/* A segment that a peer has just added is on its way. */
static rdt_status
landing_hold(struct rdti_coll *coll, struct rdt_error *err)
{
    rdt_context *ctx = rdt_group_context(coll->group);
    const uint64_t since_ns = rdti_now_ns();
    rdt_status status = rdti_placed_hold(coll, err);

    while (status == RDT_EAGAIN && rdti_now_ns() - since_ns < coll->timeout_ns &&
           rdt_group_error(coll->group, NULL) == RDT_OK) {
        status = rdt_context_progress(ctx);
        (void)sched_yield();
        if (status == RDT_OK || status == RDT_EAGAIN)
            status = rdti_placed_hold(coll, err);
    }
    return status;
}

rdt_status
rdti_landing_bind(struct rdti_coll *coll, const struct rdti_persistent_record *records,
                  struct rdt_error *err)
{
    struct rdti_placed *placed = calloc(1, sizeof(*placed));
    rdt_status status = RDT_OK;

    if (placed == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %zu bytes",
                              rdti_coll_name(coll->args.op), sizeof(*placed));
    coll->direct.placed = placed;
    placed->tensors[coll->rank] = (uint8_t *)(uintptr_t)landing_tensor(coll);
    for (uint32_t i = 0; i < coll->size && status == RDT_OK; i++)
        if (i != coll->rank && landing_is_used(coll, i))
            status = landing_take(coll, placed, i, &records[i].place, err);
    if (status == RDT_OK)
        status = landing_hold(coll, err);
    if (status != RDT_OK) {
        rdti_placed_release(coll);
        return status;
    }
    rdti_direct_plan(coll, &rdti_direct_landed, RDTI_NEEDS_ALL);
    coll->direct.is_source = false; /* its waiters need all members now */
    return RDT_OK;
}
