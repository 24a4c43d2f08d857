/* SPDX-License-Identifier: Apache-2.0
 * All_reduce of large tensors. In the first tick each member announces where its tensor lies. If
 * all lie in arenas, each member sums a share in all of them directly; else the shares go over the
 * stages.
 *
 * The place of a tensor is announced once, with a number. Later the number is enough, as long as
 * the region is the same. Every member reads every such announcement, in order, so that all know
 * the same.
 *
 * A member that works in others' tensors holds them, so that their memory is not used for anything
 * else. A member that fails waits until no other one works in its own tensor (struct
 * rdti_board_flags), but not for ever: a member can claim to be working when it is not. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory/stream_copy.h"
#include "base/range.h"
#include "collectives/board/board.h"
#include "collectives/board/in_place.h"
#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "wire/group/placement.h"
#include "rdmatensor_ext.h"

enum {
    BLOCK_BYTES = 16 *
        1024, /* of a sum: stays in a core's first two caches until it is written out */
    SHARE_ALIGNMENT_BYTES = 4096, /* no two members write a page, nor a line, at once */
};

/* How long a member that fails waits for one that works in its tensor: as long as for the others,
 * within these limits. A share takes milliseconds, on a busy machine more. A stopped process is
 * given up by its silence, by default after as long as the upper limit. */
#define BUSY_LEAST_NS UINT64_C(1000000000)
#define BUSY_MOST_NS UINT64_C(10000000000)

/* Places of a member that are kept; the oldest is replaced. A step has far fewer large tensors. */
enum { PLACES = 256 };

_Static_assert(PLACES <= UINT8_MAX + 1, "a number fits its byte");

/* Tensors of one member whose places the others know. */
struct rdti_places {
    uint32_t count; /* announced so far, including those that are forgotten */
    struct rdti_place at[PLACES];
};

/* The member's table, allocated at its first use. */
static rdt_status
in_place_places_of(struct rdti_coll *coll, uint32_t member, struct rdti_places **out,
                   struct rdt_error *err)
{
    struct rdti_places **places = &coll->team->members[member].places;

    if (*places == NULL)
        *places = calloc(1, sizeof(**places));
    if (*places == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %zu bytes",
                              rdti_coll_name(coll->args.op), sizeof(**places));
    *out = *places;
    return RDT_OK;
}

/* Of one process: a region keeps its generation as long as it lives. */
static bool
in_place_is_same(const struct rdti_place *a, const struct rdti_place *b)
{
    return a->off_bytes == b->off_bytes && a->region.index == b->region.index &&
           a->region.generation == b->region.generation;
}

/* True: the others know it by *number_out; false: they learn it under that number. */
static bool
in_place_find_place(struct rdti_places *places, const struct rdti_place *place,
                    uint32_t *number_out)
{
    const uint32_t kept = places->count < PLACES ? places->count : PLACES;

    for (uint32_t i = 0; i < kept; i++) {
        if (!in_place_is_same(&places->at[i], place))
            continue;
        *number_out = i;
        return true;
    }
    *number_out = places->count++ % PLACES;
    places->at[*number_out] = *place;
    return false;
}

bool
rdti_placed_find(const struct rdti_coll *coll, const void *tensor, uint64_t len_bytes,
                 struct rdti_place *out)
{
    rdt_region *region = rdt_region_find(rdt_group_context(coll->group), tensor, len_bytes);

    if (region == NULL || rdt_region_export(region, &out->region, NULL) != RDT_OK ||
        out->region.segment == RDT_SEGMENT_NONE)
        return false;
    out->off_bytes = (uint64_t)((const uint8_t *)tensor - (uint8_t *)rdt_region_addr(region));
    return true;
}

/* The announcement of the local tensor; none where it is not in an arena. */
static rdt_status
in_place_find_own(struct rdti_coll *coll, struct rdti_placement *out, struct rdt_error *err)
{
    struct rdti_places *places = NULL;

    if (coll->args.send != coll->args.recv ||
        !rdti_placed_find(coll, coll->args.recv, coll->block_bytes, &out->place))
        return RDT_OK;
    const rdt_status status = in_place_places_of(coll, coll->rank, &places, err);
    if (status != RDT_OK)
        return status;
    coll->direct.done.credits_alone++; /* the peers may write: announced apart from any data */
    out->saying = RDTI_PLACEMENT_KNOWN;
    if (in_place_find_place(places, &out->place, &out->number))
        return RDT_OK;
    out->saying = RDTI_PLACEMENT_NEW;
    coll->direct.done.control_messages++;
    coll->direct.done.planned_control_messages++;
    return RDT_OK;
}

static rdt_status
in_place_announce(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_placement own = {.saying = RDTI_PLACEMENT_NONE};
    const rdt_status status = in_place_find_own(coll, &own, err);

    if (status == RDT_OK)
        (void)rdti_placement_encode(&own, rdti_direct_stage(coll, coll->rank, 0));
    return status;
}

static rdt_status
in_place_read_placement(const struct rdti_coll *coll, uint32_t member, struct rdti_placement *out,
                        struct rdt_error *err)
{
    uint8_t bytes[RDTI_PLACEMENT_BYTES];
    struct rdt_error why; /* filled where the decoder refuses */

    memcpy(bytes, rdti_direct_stage(coll, member, 0), sizeof(bytes)); /* it may store on */
    const rdt_status status = rdti_placement_decode(bytes, sizeof(bytes), out, &why);
    if (status == RDT_OK)
        return RDT_OK;
    return rdti_error_set(err, status, 0,
                          "%s said where its tensor lies in bytes that mean "
                          "nothing: %s",
                          rdti_coll_rank_name(coll, member).text, why.message);
}

/* Learns a new place, or looks a known one up; RDT_EPROTO for a number that was never given. */
static rdt_status
in_place_read_place(struct rdti_coll *coll, struct rdti_placed *placed, uint32_t member,
                    const struct rdti_placement *said, struct rdt_error *err)
{
    struct rdti_places *places = NULL;
    const rdt_status status = in_place_places_of(coll, member, &places, err);

    if (status != RDT_OK)
        return status;
    if (said->saying == RDTI_PLACEMENT_NEW) {
        places->at[said->number] = said->place;
    } else if (places->at[said->number].region.len_bytes == 0) {
        return rdti_error_set(err, RDT_EPROTO, 0, "%s named a place that it had not told",
                              rdti_coll_rank_name(coll, member).text);
    }
    placed->places[member] = places->at[said->number];
    return RDT_OK;
}

/* RDT_OK with placed->places, or with *all_out false. */
static rdt_status
in_place_read_places(struct rdti_coll *coll, struct rdti_placed *placed, bool *all_out,
                     struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    *all_out = true;
    for (uint32_t i = 0; i < coll->size && status == RDT_OK; i++) {
        struct rdti_placement said = {.saying = RDTI_PLACEMENT_NONE};
        status = in_place_read_placement(coll, i, &said, err);
        const bool is_placed = said.saying != RDTI_PLACEMENT_NONE;
        *all_out &= is_placed;
        if (i == coll->rank || !is_placed)
            continue;
        status = in_place_read_place(coll, placed, i, &said, err);
        if (status == RDT_OK && !rdti_range_ok(placed->places[i].off_bytes, coll->block_bytes,
                                               placed->places[i].region.len_bytes))
            status = rdti_error_set(err, RDT_EPROTO, 0,
                                    "%s said that its tensor lies where it does not fit",
                                    rdti_coll_rank_name(coll, i).text);
    }
    return status;
}

static rdt_status
in_place_choose_way(struct rdti_coll *coll, struct rdt_error *err)
{
    bool all_are_placed = false;

    struct rdti_placed *placed = calloc(1, sizeof(*placed));
    if (placed == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %zu bytes",
                              rdti_coll_name(coll->args.op), sizeof(*placed));
    const rdt_status status = in_place_read_places(coll, placed, &all_are_placed, err);
    if (status != RDT_OK || !all_are_placed) {
        free(placed);
        coll->direct.first = 1;
        rdti_shares_plan(coll);
        return status;
    }
    placed->tensors[coll->rank] = coll->args.recv;
    coll->direct.placed = placed;
    coll->direct.steps = 2;
    return RDT_OK;
}

rdt_status
rdti_placed_hold(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_placed *placed = coll->direct.placed;
    rdt_status status = RDT_OK;

    for (uint32_t i = 0; i < coll->size && status == RDT_OK; i++) {
        void *base = NULL;
        if (placed->tensors[i] != NULL || placed->places[i].region.len_bytes == 0)
            continue;
        status = rdt_endpoint_hold(coll->team->members[i].endpoint, &placed->places[i].region,
                                   &base, err);
        if (status == RDT_OK)
            placed->tensors[i] = (uint8_t *)base + placed->places[i].off_bytes;
    }
    return status;
}

void
rdti_placed_sum_share(struct rdti_coll *coll)
{
    struct rdt_counters *done = &coll->direct.done;
    const struct rdti_placed *placed = coll->direct.placed;
    const uint64_t even = coll->block_bytes / coll->size + 1;
    const uint64_t share =
        (even + SHARE_ALIGNMENT_BYTES - 1) / SHARE_ALIGNMENT_BYTES * SHARE_ALIGNMENT_BYTES;
    const uint64_t begin = coll->rank * share;
    const uint64_t stop = begin + share < coll->block_bytes ? begin + share : coll->block_bytes;
    const uint64_t began_ns = rdti_pass_begin(share);
    _Alignas(64) uint8_t apart[BLOCK_BYTES];

    for (uint64_t at = begin; at < stop; at += BLOCK_BYTES) {
        const uint64_t len = stop - at < BLOCK_BYTES ? stop - at : BLOCK_BYTES;
        const uint8_t *in[RDTI_TEAM_MAX];
        /* The local lines are in the cache, as they were just read: non-temporal stores would evict
         * them. With more than two members, a sum in place would overwrite the local part before
         * its turn. */
        uint8_t *own = placed->tensors[coll->rank] + at;
        uint8_t *sum = coll->size == 2 ? own : apart;
        for (uint32_t i = 0; i < coll->size; i++)
            in[i] = placed->tensors[i] + at;
        rdti_coll_fold(coll, sum, in, coll->size, len / coll->elem_bytes, true);
        /* Decided by the piece: on a Xeon 64 MiB took 21 ms with ordinary stores, 25 ms with
         * non-temporal ones. */
        for (uint32_t i = 0; i < coll->size; i++)
            if (i != coll->rank)
                rdti_stream_write(placed->tensors[i] + at, sum, len);
        if (sum != own)
            memcpy(own, sum, len);
        done->moved_bytes += len * coll->size;
        done->planned_bytes += len * coll->size;
    }
    rdti_team_count_pass(coll->team, RDTI_PASS_SUM, began_ns);
    done->writes += coll->size - 1;
}

rdt_status
rdti_placed_work(struct rdti_coll *coll, void (*work)(struct rdti_coll *coll))
{
    const struct rdti_team *team = coll->team;
    struct rdti_board_flags *own = &team->members[coll->rank].board->place;
    bool may_work = true;

    atomic_store_explicit(&own->is_busy, 1, memory_order_seq_cst); /* see struct rdti_board_flags */
    for (uint32_t i = 0; i < coll->size; i++)
        if (atomic_load_explicit(&team->members[i].board->place.has_stopped,
                                 memory_order_seq_cst) != 0)
            may_work = false;
    if (may_work)
        work(coll);
    atomic_store_explicit(&own->is_busy, 0, memory_order_seq_cst);
    /* The member that stopped breaks the group, which is seen here soon. */
    return may_work ? RDT_OK : RDT_EAGAIN;
}

static rdt_status
in_place_work(struct rdti_coll *coll, struct rdt_error *err)
{
    const rdt_status status = rdti_placed_hold(coll, err);

    return status == RDT_OK ? rdti_placed_work(coll, rdti_placed_sum_share) : status;
}

static void
in_place_plan(struct rdti_coll *coll)
{
    coll->direct.steps = 2; /* until in_place_choose_way() knows */
}

static rdt_status
in_place_fill(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    if (step == 0)
        return in_place_announce(coll, err);
    if (coll->direct.placed != NULL)
        return in_place_work(coll, err);
    return rdti_shares_fill(coll, step, err);
}

static rdt_status
in_place_use(struct rdti_coll *coll, uint64_t step, struct rdt_error *err)
{
    if (step == 0)
        return in_place_choose_way(coll, err);
    return coll->direct.placed != NULL ? RDT_OK : rdti_shares_use(coll, step, err);
}

const struct rdti_direct_op rdti_direct_placed = {in_place_plan, in_place_fill, in_place_use};

static uint64_t
in_place_patience_ns(const struct rdti_coll *coll)
{
    if (coll->timeout_ns < BUSY_LEAST_NS)
        return BUSY_LEAST_NS;
    return coll->timeout_ns < BUSY_MOST_NS ? coll->timeout_ns : BUSY_MOST_NS;
}

static bool
in_place_is_anybody_at_work(const struct rdti_coll *coll)
{
    const struct rdti_team *team = coll->team;

    for (uint32_t i = 0; i < coll->size; i++)
        if (i != coll->rank &&
            atomic_load_explicit(&team->members[i].board->place.is_busy, memory_order_seq_cst) !=
                0 &&
            rdt_endpoint_transport(team->members[i].endpoint) != RDT_TRANSPORT_AUTO)
            return true;
    return false;
}

bool
rdti_placed_is_quiet(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    if ((d->op != &rdti_direct_placed && d->op != &rdti_direct_landed) || !d->is_begun)
        return true;
    if (d->stopped_ns == 0) {
        d->stopped_ns = rdti_now_ns();
        atomic_store_explicit(&coll->team->members[coll->rank].board->place.has_stopped, 1,
                              memory_order_seq_cst); /* see struct rdti_board_flags */
    }
    return !in_place_is_anybody_at_work(coll) ||
           rdti_now_ns() - d->stopped_ns >= in_place_patience_ns(coll);
}

void
rdti_placed_release(struct rdti_coll *coll)
{
    struct rdti_placed *placed = coll->direct.placed;

    for (uint32_t i = 0; placed != NULL && i < coll->size; i++)
        if (i != coll->rank && placed->tensors[i] != NULL)
            rdt_endpoint_unhold(coll->team->members[i].endpoint, &placed->places[i].region);
    free(placed);
    coll->direct.placed = NULL;
}
