/* SPDX-License-Identifier: Apache-2.0
 * Landings: the tensors of a persistent collective, which the members hold from its initialisation
 * on. A start takes two ticks. The first says that the member's tensor may be used, the second that
 * the member uses no other one any more. Between them each member reads, and for all_reduce writes,
 * the tensors themselves, with no copy through a stage. A member whose all_reduce has other memory
 * in this start says so in the first tick, and then all go over the stages.
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
#include "wire/bytes.h"
#include "wire/group/placement.h"

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

/* NULL: nothing. Output that overlaps input which peers read is not written before they have: such
 * members use stages. A member's own block is read by itself alone. */
static const void *
landing_of(const struct rdti_coll *coll, uint64_t *len_bytes)
{
    const struct rdt_coll_args *args = &coll->args;
    const uint64_t all_bytes = coll->size * coll->block_bytes;

    *len_bytes = coll->block_bytes;
    if (args->blocks != NULL || coll->block_bytes < LANDED_FROM_BYTES)
        return NULL;
    switch (args->op) {
    case RDT_COLL_ALLREDUCE:
        return args->send == args->recv ? args->recv : NULL;
    case RDT_COLL_REDUCE_SCATTER:
        *len_bytes = all_bytes;
        return args->recv == rdti_coll_send_block(coll, coll->rank) ||
                       !landing_overlaps(args->send, all_bytes, args->recv, coll->block_bytes)
                   ? args->send
                   : NULL;
    case RDT_COLL_ALLGATHER:
        return args->send == rdti_coll_recv_block(coll, coll->rank) ||
                       !landing_overlaps(args->send, coll->block_bytes, args->recv, all_bytes)
                   ? args->send
                   : NULL;
    case RDT_COLL_BROADCAST:
        return args->recv;
    default:
        return NULL;
    }
}

void
rdti_landing_export(const struct rdti_coll *coll, struct rdti_placement *out)
{
    uint64_t len_bytes;
    const uint8_t *tensor = landing_of(coll, &len_bytes);

    *out = (struct rdti_placement){.saying = RDTI_PLACEMENT_NONE};
    if (tensor != NULL && rdti_placed_find(coll, tensor, len_bytes, &out->place))
        out->saying = RDTI_PLACEMENT_NEW;
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
    uint8_t *payload = rdti_direct_line(coll, coll->rank)->u.payload;

    if (step > 0)
        return coll->direct.placed != NULL ? rdti_placed_work(coll, landing_work)
                                           : rdti_shares_fill(coll, step, err);
    rdti_put_u64(payload, coll->direct.number);
    rdti_put_u64(payload + 8, coll->is_aside ? 1 : 0);
    return RDT_OK;
}

/* Two persistent collectives of one description have different memory. */
static rdt_status
landing_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    bool is_aside = false;

    if (step > 0)
        return coll->direct.placed != NULL ? RDT_OK : rdti_shares_use(coll, step, err);
    for (uint32_t i = 0; i < coll->size; i++) {
        const uint8_t *payload = rdti_direct_line(coll, i)->u.payload;
        const uint64_t theirs = rdti_get_u64(payload);
        is_aside |= rdti_get_u64(payload + 8) != 0;
        if (i == coll->rank || theirs == coll->direct.number)
            continue;
        return rdti_error_set(err, RDT_EMISMATCH, 0,
                              "%s started the persistent collective that the group's collective "
                              "#%llu initialised, %s (this one) that of #%llu",
                              rdti_coll_rank_name(coll, i).text, (unsigned long long)theirs,
                              rdti_coll_rank_name(coll, coll->rank).text,
                              (unsigned long long)coll->direct.number);
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
    uint64_t len_bytes;

    (void)landing_of(coll, &len_bytes);
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
rdti_landing_bind(struct rdti_coll *coll, const struct rdti_placement *places,
                  struct rdt_error *err)
{
    uint64_t len_bytes;
    const uint8_t *own = landing_of(coll, &len_bytes);
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < coll->size; i++)
        if (places[i].saying == RDTI_PLACEMENT_NONE)
            return RDT_OK;
    struct rdti_placed *placed = calloc(1, sizeof(*placed));
    if (placed == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %zu bytes",
                              rdti_coll_name(coll->args.op), sizeof(*placed));
    coll->direct.placed = placed;
    placed->tensors[coll->rank] = (uint8_t *)(uintptr_t)own;
    for (uint32_t i = 0; i < coll->size && status == RDT_OK; i++)
        if (i != coll->rank)
            status = landing_take(coll, placed, i, &places[i].place, err);
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
