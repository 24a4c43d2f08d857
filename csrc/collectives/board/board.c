/* SPDX-License-Identifier: Apache-2.0
 * The ticks of a collective over boards. */
#include "base/error.h"
#include "base/memory/pages.h"
#include "collectives/board/board.h"

#include <stdio.h>
#include <string.h>

#include "base/memory/cache.h"
#include "base/memory/stream_copy.h"
#include "collectives/board/in_place.h"
#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

enum {
    /* Received data is written by non-temporal stores from half of the last-level cache on, or from
     * 16 MiB on where that is less, as larger limits were not measured. all_to_all of 16 MiB, two
     * ranks, 32 MiB of last-level cache: 1.22 ms; 1.87 ms with ordinary stores. */
    PAST_CACHES_SHARE = 2,
    PAST_CACHES_LEAST_BYTES = 1024 * 1024,
    PAST_CACHES_MOST_BYTES = 16 * 1024 * 1024,
    /* A broadcast moves fewer bytes than others for what it receives. With 8 MiB of last-level
     * cache: 8 MiB in 1.18 ms, 1.30 ms with ordinary stores; 4 MiB was faster with ordinary
     * ones. */
    PAST_CACHES_BROADCAST_FROM_BYTES = 8 * 1024 * 1024,
    /* Pages that one call populates, before they are written. 64 MiB took less processor time this
     * way than with one call for all; smaller pieces were not tried. */
    POPULATE_BYTES = 1024 * 1024,
    /* A member may run ahead of the others with payloads up to this size. More was not tried: a
     * board has room for slots of almost twice as much. */
    SMALL_MAX_BYTES = 64 * 1024,
};
_Static_assert((int)SMALL_MAX_BYTES <= (int)RDTI_SLOT_BYTES, "what is small fits a slot");

static struct rdti_line *
board_line_of(const struct rdti_team *team, uint32_t member, uint64_t tick)
{
    return &team->members[member].board->ticks[tick % RDTI_AHEAD_TICKS].line;
}

uint64_t
rdti_direct_stage_bytes(const struct rdti_coll *coll)
{
    return coll->direct.room == RDTI_ROOM_STAGE ? RDTI_STAGE_BYTES : RDTI_SLOT_BYTES;
}

/* Slots of consecutive ticks lie in different stages, as do payloads that need a whole one. */
uint8_t *
rdti_direct_stage(const struct rdti_coll *coll, uint32_t member, uint64_t step)
{
    const uint64_t tick = coll->direct.base + 1 + step;
    uint8_t *stage = coll->team->members[member].board->stages[tick % 2];

    switch (coll->direct.room) {
    case RDTI_ROOM_LINE:
        return board_line_of(coll->team, member, tick)->u.payload;
    case RDTI_ROOM_SLOT:
        return stage + tick % RDTI_AHEAD_TICKS / 2 * RDTI_SLOT_BYTES;
    default:
        return stage;
    }
}

struct rdti_line *
rdti_direct_line(const struct rdti_coll *coll, uint32_t member)
{
    return board_line_of(coll->team, member, coll->direct.base + 1);
}

/* A sum finds its operands in a stage at once, so that only a piece counts. Data that is only moved
 * evicts, on its way through the caches, what lies there: all of it counts. */
static uint64_t
board_rewritten_bytes(const struct rdti_coll *coll, uint64_t len_bytes)
{
    return coll->direct.is_past_caches ? coll->direct.received_bytes : len_bytes;
}

void
rdti_direct_put(struct rdti_coll *coll, void *stage, const void *src, uint64_t len_bytes)
{
    const uint64_t began_ns = rdti_pass_begin(len_bytes);

    rdti_stream_copy(stage, src, len_bytes, board_rewritten_bytes(coll, len_bytes));
    rdti_team_count_pass(coll->team, RDTI_PASS_COPY, began_ns);
    coll->direct.done.copied_bytes += len_bytes;
}

/* Copies in pieces; one call populates the pages of a piece, where they are new. */
static void
board_stream_in(void *dst, const void *src, uint64_t len_bytes)
{
    for (uint64_t off = 0; off < len_bytes; off += POPULATE_BYTES) {
        const uint64_t left = len_bytes - off;
        const uint64_t len = left < POPULATE_BYTES ? left : POPULATE_BYTES;
        rdti_pages_populate((uint8_t *)dst + off, len);
        rdti_stream_copy((uint8_t *)dst + off, (const uint8_t *)src + off, len, UINT64_MAX);
    }
}

void
rdti_direct_take(struct rdti_coll *coll, void *dst, const void *stage, uint64_t len_bytes)
{
    if (len_bytes == 0)
        return;
    const uint64_t began_ns = rdti_pass_begin(len_bytes);
    if (coll->direct.is_past_caches)
        board_stream_in(dst, stage, len_bytes);
    else
        memcpy(dst, stage, len_bytes);
    rdti_team_count_pass(coll->team, RDTI_PASS_COPY, began_ns);
    coll->direct.done.moved_bytes += len_bytes;
}

static bool
board_overlaps(const void *a, const void *b, uint64_t len_bytes)
{
    return (uintptr_t)a < (uintptr_t)b + len_bytes && (uintptr_t)b < (uintptr_t)a + len_bytes;
}

bool
rdti_direct_keeps_as_it_goes(const struct rdti_coll *coll, const void *dst, const void *src)
{
    return coll->direct.is_past_caches && !board_overlaps(dst, src, coll->block_bytes);
}

void
rdti_direct_put_and_keep(struct rdti_coll *coll, void *stage, void *dst, const void *src,
                         uint64_t len_bytes)
{
    const uint64_t began_ns = rdti_pass_begin(len_bytes);

    rdti_pages_populate(dst, len_bytes);
    rdti_stream_copy_twice(stage, dst, src, len_bytes, board_rewritten_bytes(coll, len_bytes));
    rdti_team_count_pass(coll->team, RDTI_PASS_COPY, began_ns);
    coll->direct.done.copied_bytes += 2 * len_bytes;
}

void
rdti_direct_keep(struct rdti_coll *coll, void *dst, const void *src, uint64_t len_bytes)
{
    if (dst == src || len_bytes == 0)
        return;
    const uint64_t began_ns = rdti_pass_begin(len_bytes);
    if (coll->direct.is_past_caches && !board_overlaps(dst, src, len_bytes))
        board_stream_in(dst, src, len_bytes);
    else
        memmove(dst, src, len_bytes);
    rdti_team_count_pass(coll->team, RDTI_PASS_COPY, began_ns);
    coll->direct.done.copied_bytes += len_bytes;
}

/* The member has stored `tick`, which this member has stored, or is about to: it cannot have stored
 * a later one into the same line, for which it waits for this member. A line with a later tick does
 * not count, or the member could send this one through ticks without end. */
static bool
board_has_come(const struct rdti_team *team, uint32_t member, uint64_t tick)
{
    /* seq_cst: pairs with the store in board_publish(); everything stored before is seen. In the
     * total order, either the last member to store sees that all have come, and rings, or they see
     * its store. */
    return atomic_load_explicit(&board_line_of(team, member, tick)->tick, memory_order_seq_cst) ==
           tick;
}

static bool
board_have_all_come(const struct rdti_team *team, uint64_t tick)
{
    for (uint32_t i = 0; i < team->size; i++)
        if (i != team->rank && !board_has_come(team, i, tick))
            return false;
    return true;
}

/* The member has stored `tick`, which this member has left behind, or a later one: of those only
 * tick + RDTI_AHEAD_TICKS can be in its line, as it waits for this member. */
static bool
board_has_passed(const struct rdti_team *team, uint32_t member, uint64_t tick)
{
    /* seq_cst: as in board_has_come() */
    const uint64_t stored =
        atomic_load_explicit(&board_line_of(team, member, tick)->tick, memory_order_seq_cst);

    return stored == tick || stored == tick + RDTI_AHEAD_TICKS;
}

static bool
board_have_all_passed(const struct rdti_team *team, uint64_t tick)
{
    for (uint32_t i = 0; i < team->size; i++)
        if (i != team->rank && !board_has_passed(team, i, tick))
            return false;
    return true;
}

/* The tick that all have to have stored before this member fills the room of `tick`. */
static uint64_t
board_tick_to_pass(const struct rdti_coll *coll, uint64_t tick)
{
    const uint64_t ahead = RDTI_AHEAD_TICKS - 1;
    const uint64_t line = tick <= ahead ? 0 : tick - ahead;
    const uint64_t whole = coll->team->whole[tick % 2];

    switch (coll->direct.room) {
    case RDTI_ROOM_LINE:
        return line;
    case RDTI_ROOM_SLOT:
        return whole != 0 && line <= whole ? whole + 1 : line;
    default:
        return tick - 1;
    }
}

static bool
board_have_needed_come(const struct rdti_coll *coll, uint64_t tick)
{
    switch (coll->direct.needs) {
    case RDTI_NEEDS_ALL:
        return board_have_all_come(coll->team, tick);
    case RDTI_NEEDS_ROOT:
        return board_has_come(coll->team, coll->args.root, tick);
    default:
        return true;
    }
}

/*
 * A waiter waits for all members or for the root: the last member that comes wakes them, and a root
 * does. Other wake-ups would be in vain, and n members would make n of them.
 */
static void
board_publish(const struct rdti_coll *coll, uint64_t tick)
{
    const struct rdti_team *team = coll->team;

    rdti_team_count_write(coll->team);
    /* seq_cst: pairs with board_has_come() and with the doorbell */
    atomic_store_explicit(&board_line_of(team, team->rank, tick)->tick, tick, memory_order_seq_cst);
    if (!coll->direct.is_source && !board_have_all_come(team, tick))
        return;
    for (uint32_t i = 0; i < team->size; i++)
        if (i != team->rank)
            rdt_endpoint_ring(team->members[i].endpoint);
}

static rdt_status
board_check_peer(const struct rdti_coll *coll, uint32_t peer, uint64_t tick, struct rdt_error *err)
{
    const struct rdt_message_desc own = rdti_coll_desc(coll);
    const struct rdt_message_desc theirs = board_line_of(coll->team, peer, tick)->desc;

    if (memcmp(&own, &theirs, sizeof(own)) == 0)
        return RDT_OK;
    return rdti_coll_mismatch(coll, peer, &theirs, err);
}

static rdt_status
board_check_needed(const struct rdti_coll *coll, uint64_t tick, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (coll->direct.needs == RDTI_NEEDS_ROOT)
        return board_check_peer(coll, coll->args.root, tick, err);
    for (uint32_t i = 0; i < coll->size && status == RDT_OK; i++)
        if (i != coll->rank && coll->direct.needs == RDTI_NEEDS_ALL)
            status = board_check_peer(coll, i, tick, err);
    return status;
}

static rdt_status
board_fill(struct rdti_coll *coll, uint64_t tick, struct rdt_error *err)
{
    struct rdti_direct *d = &coll->direct;

    if (!board_have_all_passed(coll->team, board_tick_to_pass(coll, tick)))
        return RDT_EAGAIN;
    if (d->room == RDTI_ROOM_STAGE)
        coll->team->whole[tick % 2] = tick;
    if (d->step == 0)
        board_line_of(coll->team, coll->rank, tick)->desc = rdti_coll_desc(coll);
    const rdt_status status = d->op->fill != NULL ? d->op->fill(coll, d->step, err) : RDT_OK;
    if (status != RDT_OK)
        return status;
    board_publish(coll, tick);
    d->is_filled = true;
    return RDT_OK;
}

/* The collective's turn has come: everything before it is over. */
static bool
board_begin(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    /* acquire: pairs with the release in board_end(); the team's tick is seen */
    if (atomic_load_explicit(&coll->team->serving, memory_order_acquire) != d->ticket)
        return false;
    d->base = coll->team->tick;
    d->is_begun = true;
    return true;
}

static void
board_end(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    d->done.struct_size = sizeof(d->done);
    rdt_context_count(rdt_group_context(coll->group), &d->done);
    coll->team->tick = d->base + d->steps;
    /* release: pairs with the acquire in board_begin() */
    atomic_store_explicit(&coll->team->serving, d->ticket_after, memory_order_release);
}

static rdt_status
board_advance(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_direct *d = &coll->direct;
    rdt_status status = RDT_OK;

    if (!d->is_begun && !board_begin(coll))
        return RDT_EAGAIN;
    for (; d->step < d->steps; d->step++) {
        const uint64_t tick = d->base + 1 + d->step;
        if (!d->is_filled)
            status = board_fill(coll, tick, err);
        if (status != RDT_OK)
            return status;
        if (!board_have_needed_come(coll, tick))
            return RDT_EAGAIN;
        if (d->step == 0)
            status = board_check_needed(coll, tick, err);
        if (status == RDT_OK && d->op->use != NULL && d->needs != RDTI_NEEDS_NONE)
            status = d->op->use(coll, d->step, err);
        if (status != RDT_OK)
            return status;
        d->is_filled = false;
    }
    board_end(coll);
    return RDT_OK;
}

static enum rdti_direct_needs
board_needs_of(const struct rdti_coll *coll)
{
    const bool is_root = coll->rank == coll->args.root;

    switch (coll->args.op) {
    case RDT_COLL_BROADCAST:
    case RDT_COLL_SCATTER:
        return is_root ? RDTI_NEEDS_NONE : RDTI_NEEDS_ROOT;
    case RDT_COLL_GATHER:
    case RDT_COLL_REDUCE:
        return is_root ? RDTI_NEEDS_ALL : RDTI_NEEDS_NONE;
    default:
        return RDTI_NEEDS_ALL;
    }
}

/* Bytes that are stored here; 0 for sums, which are written where a tick has just read. */
static uint64_t
board_received_bytes(const struct rdti_coll *coll)
{
    uint64_t total = 0;
    uint64_t count = 0;

    switch (coll->args.op) {
    case RDT_COLL_ALLGATHER:
    case RDT_COLL_GATHER:
        return coll->size * coll->block_bytes;
    case RDT_COLL_BROADCAST:
    case RDT_COLL_SCATTER:
        return coll->block_bytes;
    case RDT_COLL_ALLTOALL:
        for (uint32_t i = 0; i < coll->size; i++) {
            (void)rdti_alltoall_target(coll, i, &count);
            total += count;
        }
        return total * coll->elem_bytes;
    default:
        return 0;
    }
}

static bool
board_is_past_caches(const struct rdti_coll *coll, uint64_t bytes)
{
    uint64_t from = rdti_cache_last_bytes() / PAST_CACHES_SHARE;

    if (from > PAST_CACHES_MOST_BYTES)
        from = PAST_CACHES_MOST_BYTES;
    if (from < PAST_CACHES_LEAST_BYTES)
        from = PAST_CACHES_LEAST_BYTES;
    if (coll->args.op == RDT_COLL_BROADCAST && from < PAST_CACHES_BROADCAST_FROM_BYTES)
        from = PAST_CACHES_BROADCAST_FROM_BYTES;
    return bytes >= from;
}

/* A member needs no other, and what each member stores fits a slot; all members agree on it. */
static bool
board_is_small(const struct rdti_coll *coll)
{
    switch (coll->args.op) {
    case RDT_COLL_BROADCAST:
    case RDT_COLL_GATHER:
    case RDT_COLL_REDUCE:
        return coll->block_bytes <= SMALL_MAX_BYTES;
    case RDT_COLL_SCATTER:
        return coll->block_bytes <= SMALL_MAX_BYTES / coll->size;
    default:
        return false;
    }
}

void
rdti_direct_plan(struct rdti_coll *coll, const struct rdti_direct_op *op,
                 enum rdti_direct_needs needs)
{
    struct rdti_direct *d = &coll->direct;

    d->op = op;
    d->needs = needs;
    d->steps = 1;
    d->received_bytes = board_received_bytes(coll);
    d->is_past_caches = board_is_past_caches(coll, d->received_bytes);
    d->room = d->op->fill == NULL    ? RDTI_ROOM_LINE
              : board_is_small(coll) ? RDTI_ROOM_SLOT
                                     : RDTI_ROOM_STAGE;
    if (d->op->plan != NULL)
        d->op->plan(coll);
}

/* Keeps the ticket, which the collective has from its start, or gets later. */
static rdt_status
board_prepare(struct rdti_coll *coll, struct rdt_error *err)
{
    const uint32_t op = coll->args.op;

    (void)err;
    coll->direct.is_source =
        coll->rank == coll->args.root && (op == RDT_COLL_BROADCAST || op == RDT_COLL_SCATTER);
    rdti_direct_plan(coll, rdti_direct_op_of(coll), board_needs_of(coll));
    return RDT_OK;
}

static bool
board_is_awaited(const struct rdti_coll *coll, uint32_t member)
{
    const struct rdti_direct *d = &coll->direct;
    const uint64_t tick = d->base + 1 + d->step;

    if (member == coll->rank)
        return false;
    if (!d->is_filled)
        return !board_has_passed(coll->team, member, board_tick_to_pass(coll, tick));
    return (d->needs != RDTI_NEEDS_ROOT || member == coll->args.root) &&
           !board_has_come(coll->team, member, tick);
}

/* A member that leaves in order, as by an exception, breaks no group; it will never come. */
static rdt_status
board_check_members(const struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdt_error why;

    if (!coll->direct.is_begun)
        return RDT_OK; /* the collective whose turn it is reports */
    for (uint32_t i = 0; i < coll->size; i++) {
        if (!board_is_awaited(coll, i))
            continue;
        memset(&why, 0, sizeof(why));
        const rdt_status status = rdt_endpoint_error(coll->team->members[i].endpoint, &why);
        /* Checked again: the member's last store came before it left. */
        if (status == RDT_OK || !board_is_awaited(coll, i))
            continue;
        (void)rdti_error_set(err, status, 0, "%s #%llu, round %llu of %llu: %s",
                             rdti_coll_name(coll->args.op), (unsigned long long)coll->sequence,
                             (unsigned long long)coll->direct.step + 1,
                             (unsigned long long)coll->direct.steps, why.message);
        err->peer_rank = why.peer_rank;
        return status;
    }
    return RDT_OK;
}

static uint32_t
board_describe(const struct rdti_coll *coll, char *text, size_t cap)
{
    const struct rdti_direct *d = &coll->direct;
    const uint64_t tick = d->base + 1 + d->step;
    char ranks[RDTI_COLL_RANKS_BYTES];
    char since[40] = "";
    uint32_t late[RDTI_TEAM_MAX];
    uint32_t count = 0;

    if (!d->is_begun) {
        (void)snprintf(text, cap, "an earlier collective of this rank is not done");
        return RDT_SOURCE_ANY;
    }
    if (!d->is_filled && tick - board_tick_to_pass(coll, tick) > 1)
        (void)snprintf(since, sizeof(since), " for %llu rounds",
                       (unsigned long long)(tick - board_tick_to_pass(coll, tick)));
    for (uint32_t i = 0; i < coll->size; i++)
        if (board_is_awaited(coll, i))
            late[count++] = i;
    rdti_coll_name_ranks(coll, late, count, ranks, sizeof(ranks));
    (void)snprintf(text, cap, "nothing from %s%s (round %llu of %llu)", ranks, since,
                   (unsigned long long)d->step + 1, (unsigned long long)d->steps);
    return rdti_coll_only_one(coll, late, count);
}

/* What board_prepare() planned is numbers, of which each run has a copy. Landed tensors are the
 * persistent collective's. */
static void
board_rest(struct rdti_coll *coll)
{
    if (!rdti_direct_is_landed(coll))
        rdti_placed_release(coll);
}

const struct rdti_coll_algorithm rdti_direct = {
    .name = "direct",
    .takes_turns = true,
    .is_on_boards = true,
    .prepare = board_prepare,
    .advance = board_advance,
    .is_quiet = rdti_placed_is_quiet,
    .check_members = board_check_members,
    .describe = board_describe,
    .rest = board_rest,
    .release = rdti_placed_release,
};
