/* SPDX-License-Identifier: Apache-2.0
 * Collectives of a group on several hosts, some of which hold several members: up, over the boards
 * of each host; between, by messages among members of different hosts; down, over the boards again.
 * So data that is the same for a whole host crosses to another once, and most steps are in memory.
 *
 * A sum is cut into shares, a rail each: member r of each host sums share r of its host, and
 * exchanges it with member r of the others. A small one has one rail.
 *
 * Averages of halves are divided before a host's part is rounded to a half: between hosts they are
 * parts of the average, which are in range where the sums are not.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "collectives/board/board.h"
#include "collectives/collective.h"
#include "collectives/select/cost.h"
#include "collectives/team/team.h"

enum { PART_UP, PART_BETWEEN, PART_DOWN, PARTS };

struct rdti_hierarchy {
    struct rdti_coll parts[PARTS];
    bool has[PARTS];
    bool is_begun;
    unsigned at; /* the part that is in flight */
    uint32_t rails;
    uint32_t speakers[RDTI_TEAM_MAX]; /* by host: the member of this rail, also for this host */
};

/* ---- Shares ---- */

struct hier_share {
    uint64_t off_bytes;
    uint64_t count;
};

static struct hier_share
hier_share_of(const struct rdti_coll *coll, uint32_t rail)
{
    const uint64_t count = coll->args.count;
    const uint32_t rails = coll->hierarchy->rails;
    const uint64_t begin = rdti_ring_chunk_begin(count, coll->elem_bytes, rails, rail);
    const uint64_t end = rdti_ring_chunk_begin(count, coll->elem_bytes, rails, rail + 1);

    return (struct hier_share){begin * coll->elem_bytes, end - begin};
}

/* The bytes of a share that are sent in a step, and where in the tensor they are. */
static uint64_t
hier_piece_of(const struct rdti_coll *part, uint32_t rail, uint64_t step, uint64_t *off_out)
{
    const struct hier_share share = hier_share_of(part->whole, rail);

    *off_out = share.off_bytes + step * part->direct.piece_bytes;
    return rdti_direct_piece_len(share.count * part->elem_bytes, part->direct.piece_bytes, step);
}

static void
hier_plan_steps(struct rdti_coll *part, uint64_t piece_bytes)
{
    const struct rdti_coll *whole = part->whole;

    part->direct.piece_bytes = piece_bytes;
    if (whole->hierarchy->rails == 1 && whole->block_bytes <= RDTI_INLINE_BYTES)
        part->direct.room = RDTI_ROOM_LINE;
    /* The first share is never smaller than another. */
    part->direct.steps =
        rdti_direct_steps(hier_share_of(whole, 0).count * part->elem_bytes, piece_bytes);
}

/* ---- Up: the shares of each member, and the local sum of one of them ---- */

static void
hier_plan_up(struct rdti_coll *part)
{
    hier_plan_steps(part, rdti_direct_share_bytes(RDTI_STAGE_BYTES, part->whole->hierarchy->rails));
}

static rdt_status
hier_fill_up(struct rdti_coll *part, uint64_t step, struct rdt_error *err)
{
    uint8_t *stage = rdti_direct_stage(part, part->rank, step);
    uint64_t off;

    (void)err;
    for (uint32_t rail = 0; rail < part->whole->hierarchy->rails; rail++) {
        const uint64_t len = hier_piece_of(part, rail, step, &off);
        /* The sum of two takes the local part from the user's buffer. */
        if (rail != part->rank || part->size > 2)
            rdti_direct_put(part, stage + rail * part->direct.piece_bytes,
                            rdti_coll_at_const(part->args.send, off), len);
    }
    return RDT_OK;
}

static rdt_status
hier_use_up(struct rdti_coll *part, uint64_t step, struct rdt_error *err)
{
    uint64_t off;
    const uint64_t len = hier_piece_of(part, part->rank, step, &off);

    (void)err;
    rdti_direct_fold_stages(part, step, part->rank * part->direct.piece_bytes,
                            rdti_coll_at(part->args.recv, off),
                            rdti_coll_at_const(part->args.send, off), len);
    return RDT_OK;
}

/* ---- Down: each share from the member that has its sum ---- */

static void
hier_plan_down(struct rdti_coll *part)
{
    hier_plan_steps(part, RDTI_STAGE_BYTES);
}

static rdt_status
hier_fill_down(struct rdti_coll *part, uint64_t step, struct rdt_error *err)
{
    uint64_t off;

    (void)err;
    if (part->rank >= part->whole->hierarchy->rails)
        return RDT_OK;
    const uint64_t len = hier_piece_of(part, part->rank, step, &off);
    rdti_direct_put(part, rdti_direct_stage(part, part->rank, step),
                    rdti_coll_at(part->args.recv, off), len);
    return RDT_OK;
}

static rdt_status
hier_use_down(struct rdti_coll *part, uint64_t step, struct rdt_error *err)
{
    uint64_t off;

    (void)err;
    for (uint32_t rail = 0; rail < part->whole->hierarchy->rails; rail++) {
        const uint64_t len = hier_piece_of(part, rail, step, &off);
        if (rail != part->rank)
            rdti_direct_take(part, rdti_coll_at(part->args.recv, off),
                             rdti_direct_stage(part, rail, step), len);
    }
    return RDT_OK;
}

static const struct rdti_direct_op sum_up = {hier_plan_up, hier_fill_up, hier_use_up};
static const struct rdti_direct_op sum_down = {hier_plan_down, hier_fill_down, hier_use_down};
static const struct rdti_direct_op nothing = {NULL, NULL, NULL};

/* ---- Parts ---- */

static struct rdti_coll *
hier_add_part(struct rdti_coll *coll, unsigned number)
{
    const struct rdti_hosts *hosts = &coll->team->hosts;
    struct rdti_coll *part = &coll->hierarchy->parts[number];
    const bool is_between = number == PART_BETWEEN;

    *part = (struct rdti_coll){
        .algorithm = &rdti_direct,
        .group = coll->group,
        .args = coll->args,
        .team = is_between ? coll->team : coll->team->local,
        .whole = coll,
        .members = is_between ? coll->hierarchy->speakers : hosts->ranks + hosts->first[hosts->own],
        .rank = is_between ? hosts->own : hosts->index,
        .size = is_between ? hosts->count : coll->team->local->size,
        .elem_bytes = coll->elem_bytes,
        .block_bytes = coll->block_bytes,
        .reduce = coll->reduce, /* the average is made once, of all */
        .fold = coll->fold,
        .divisor = 1,
        .start_ns = coll->start_ns,
        .timeout_ns = coll->timeout_ns,
    };
    part->args.root = 0;
    coll->hierarchy->has[number] = true;
    return part;
}

/* Up: one member of this host needs what all have. */
static void
hier_add_gathering(struct rdti_coll *coll, const struct rdti_direct_op *op, uint32_t rails)
{
    struct rdti_coll *part;

    if (coll->team->local->size == 1)
        return;
    part = hier_add_part(coll, PART_UP);
    if (rdti_coll_averages_halves(coll)) {
        part->divide = coll->divide;
        part->divisor = coll->divisor;
    }
    rdti_direct_plan(part, op, part->rank < rails ? RDTI_NEEDS_ALL : RDTI_NEEDS_NONE);
}

/* Down: all need what one member has, or several. */
static void
hier_add_spreading(struct rdti_coll *coll, const struct rdti_direct_op *op, uint32_t rails,
                   uint32_t speaker)
{
    enum rdti_direct_needs needs = RDTI_NEEDS_ALL;
    struct rdti_coll *part;

    if (coll->team->local->size == 1)
        return;
    part = hier_add_part(coll, PART_DOWN);
    part->args.root = speaker;
    part->direct.is_source = rails == 1 && part->rank == speaker;
    if (rails == 1)
        needs = part->rank == speaker ? RDTI_NEEDS_NONE : RDTI_NEEDS_ROOT;
    rdti_direct_plan(part, op, needs);
}

/* The member of each host that speaks for it on a rail. */
static void
hier_choose_speakers(struct rdti_coll *coll, uint32_t rail)
{
    const struct rdti_hosts *hosts = &coll->team->hosts;

    for (uint32_t host = 0; host < hosts->count; host++)
        coll->hierarchy->speakers[host] = hosts->ranks[hosts->first[host] + rail];
}

static rdt_status
hier_prepare_allreduce(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_hierarchy *h = coll->hierarchy;
    const uint32_t rail = coll->team->hosts.index;

    const struct rdti_cost_plan plan =
        rdti_cost_by_hosts(coll->team->costs, &coll->team->hosts, rdti_pack_unit_bytes(coll));
    h->rails = plan.rails;
    hier_add_gathering(coll, &sum_up, h->rails);
    hier_add_spreading(coll, &sum_down, h->rails, 0);
    if (rail >= h->rails)
        return RDT_OK;
    hier_choose_speakers(coll, rail);
    struct rdti_coll *part = hier_add_part(coll, PART_BETWEEN);
    const struct hier_share share = hier_share_of(coll, rail);
    part->args.count = share.count;
    part->block_bytes = share.count * part->elem_bytes;
    part->args.recv = rdti_coll_at(coll->args.recv, share.off_bytes);
    part->args.send = coll->team->local->size == 1 && !rdti_coll_averages_halves(coll)
                          ? rdti_coll_at_const(coll->args.send, share.off_bytes)
                          : part->args.recv;
    part->algorithm = plan.algorithm;
    if (rdti_coll_averages_halves(coll) &&
        part->size > 2) /* what it sends is rounded no more often */
        part->algorithm = &rdti_allreduce_ordered;
    return part->algorithm->prepare(part, err);
}

static rdt_status
hier_prepare_broadcast(struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdti_hosts *hosts = &coll->team->hosts;
    const uint32_t root_host = hosts->of[coll->args.root];
    rdt_status status = RDT_OK;
    uint32_t speaker = 0;

    hier_choose_speakers(coll, 0);
    coll->hierarchy->speakers[root_host] = coll->args.root;
    while (hosts->ranks[hosts->first[hosts->own] + speaker] !=
           coll->hierarchy->speakers[hosts->own])
        speaker++;
    if (hosts->index == speaker) {
        struct rdti_coll *part = hier_add_part(coll, PART_BETWEEN);
        part->args.root = root_host;
        part->algorithm = &rdti_broadcast_binomial;
        status = part->algorithm->prepare(part, err);
    }
    if (coll->team->local->size > 1) {
        struct rdti_coll *part = hier_add_part(coll, PART_DOWN);
        part->args.root = speaker;
        (void)part->algorithm->prepare(part, err); /* on boards nothing is prepared that can fail */
    }
    return status;
}

static rdt_status
hier_prepare_barrier(struct rdti_coll *coll, struct rdt_error *err)
{
    hier_add_gathering(coll, &nothing, 1);
    hier_add_spreading(coll, &nothing, 1, 0);
    if (coll->team->hosts.index > 0)
        return RDT_OK;
    hier_choose_speakers(coll, 0);
    struct rdti_coll *part = hier_add_part(coll, PART_BETWEEN);
    part->algorithm = &rdti_barrier_dissemination;
    return part->algorithm->prepare(part, err);
}

static rdt_status (*const prepare_of[])(struct rdti_coll *coll, struct rdt_error *err) = {
    [RDT_COLL_ALLREDUCE] = hier_prepare_allreduce,
    [RDT_COLL_BROADCAST] = hier_prepare_broadcast,
    [RDT_COLL_BARRIER] = hier_prepare_barrier,
};

bool
rdti_hierarchical_has(uint32_t op)
{
    return op < sizeof(prepare_of) / sizeof(prepare_of[0]) && prepare_of[op] != NULL;
}

static void
hier_release(struct rdti_coll *coll)
{
    struct rdti_hierarchy *h = coll->hierarchy;

    for (unsigned i = 0; i < PARTS; i++)
        if (h->has[i])
            h->parts[i].algorithm->release(&h->parts[i]);
    free(h);
    coll->hierarchy = NULL;
}

static rdt_status
hier_prepare(struct rdti_coll *coll, struct rdt_error *err)
{
    coll->hierarchy = calloc(1, sizeof(*coll->hierarchy));
    if (coll->hierarchy == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %zu bytes",
                              rdti_coll_name(coll->args.op), sizeof(*coll->hierarchy));
    const rdt_status status = prepare_of[coll->args.op](coll, err);
    if (status != RDT_OK)
        hier_release(coll);
    return status;
}

/* The part of the average of a member that is alone on its host. */
static void
hier_divide_own(struct rdti_coll *coll)
{
    struct rdti_hierarchy *h = coll->hierarchy;
    const struct rdti_coll *part = &h->parts[PART_BETWEEN];

    if (!rdti_coll_averages_halves(coll) || h->has[PART_UP] || !h->has[PART_BETWEEN])
        return;
    const uint8_t *own =
        rdti_coll_at_const(coll->args.send, hier_share_of(coll, coll->team->hosts.index).off_bytes);
    coll->fold(part->args.recv, &own, 1, part->args.count, coll->divisor);
}

/* Its place among the group's collectives is known. False: it has no part on boards, and waits to
 * pass its turn on. */
static bool
hier_begin(struct rdti_coll *coll)
{
    struct rdti_hierarchy *h = coll->hierarchy;

    if (!h->has[PART_UP] && !h->has[PART_DOWN] &&
        !rdti_team_pass_turn(coll->team->local, &coll->direct))
        return false;
    for (unsigned i = 0; i < PARTS; i++) {
        h->parts[i].sequence = coll->sequence;
        h->parts[i].direct.ticket = coll->direct.ticket;
        h->parts[i].direct.ticket_after = coll->direct.ticket_after;
    }
    if (h->has[PART_DOWN]) /* the turn is kept until then */
        h->parts[PART_UP].direct.ticket_after = coll->direct.ticket;
    hier_divide_own(coll);
    h->is_begun = true;
    return true;
}

static rdt_status
hier_advance(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_hierarchy *h = coll->hierarchy;

    if (!h->is_begun && !hier_begin(coll))
        return RDT_EAGAIN;
    for (; h->at < PARTS; h->at++) {
        struct rdti_coll *part = &h->parts[h->at];
        if (!h->has[h->at])
            continue;
        const rdt_status status = part->algorithm->advance(part, err);
        if (status != RDT_OK)
            return status;
        if (h->at == PART_BETWEEN && coll->divide != NULL && !rdti_coll_averages_halves(coll))
            coll->divide(part->args.recv, part->args.count, coll->divisor);
    }
    return RDT_OK;
}

/* What is in flight; NULL before the turn has come and after the end. */
static struct rdti_coll *
hier_part_in_flight(const struct rdti_coll *coll)
{
    struct rdti_hierarchy *h = coll->hierarchy;
    unsigned at = h->at;

    while (at < PARTS && !h->has[at])
        at++;
    return h->is_begun && at < PARTS ? &h->parts[at] : NULL;
}

static bool
hier_is_quiet(struct rdti_coll *coll)
{
    struct rdti_coll *part = hier_part_in_flight(coll);

    return part == NULL || part->algorithm->is_quiet(part);
}

static rdt_status
hier_check_members(const struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdti_coll *part = hier_part_in_flight(coll);

    return part == NULL || part->algorithm->check_members == NULL
               ? RDT_OK
               : part->algorithm->check_members(part, err);
}

static uint32_t
hier_describe(const struct rdti_coll *coll, char *text, size_t cap)
{
    const struct rdti_coll *part = hier_part_in_flight(coll);

    if (part != NULL)
        return part->algorithm->describe(part, text, cap);
    (void)snprintf(text, cap, "an earlier collective of this rank is not done");
    return RDT_SOURCE_ANY;
}

const struct rdti_coll_algorithm rdti_hierarchical = {
    .name = "hierarchical",
    .takes_turns = true,
    .prepare = hier_prepare,
    .advance = hier_advance,
    .is_quiet = hier_is_quiet,
    .check_members = hier_check_members,
    .describe = hier_describe,
    .release = hier_release,
};
