/* SPDX-License-Identifier: Apache-2.0
 * Initialises, starts and frees persistent collectives. */
#include "collectives/persistent.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "collectives/board/in_place.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"
#include "wire/bytes.h"
#include "wire/group/placement.h"

enum persistent_state { EXCHANGING, IDLE, RUNNING, FAILED };

/* What a member says of itself: its descriptor and its landing. */
enum { DESC_BYTES = 24, RECORD_BYTES = DESC_BYTES + RDTI_PLACEMENT_BYTES };

/* What a member says after it has bound. */
enum vote { VOTE_NONE, VOTE_STAGES, VOTE_LANDED, VOTE_FAILED };

struct rdt_persistent {
    struct rdti_coll coll; /* what each start begins as; never run */
    bool is_settled;       /* the votes were counted */
    bool is_reused;        /* what is prepared serves each start; likewise */
    atomic_uint state;
    atomic_uint refs;
    uint8_t vote;
    struct rdt_error why; /* of VOTE_FAILED */
    uint8_t own[RECORD_BYTES];
    uint8_t *votes;    /* of all members, in rank order; behind the records */
    uint8_t records[]; /* likewise */
};

static void
persistent_coll_unref(struct rdt_persistent *p)
{
    struct rdti_coll *coll = &p->coll;

    /* acq_rel: the thread that frees it sees all that the others did; pairs with itself */
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (p->is_reused)
        coll->algorithm->release(coll);
    free(coll->arrays);
    rdti_team_release(coll->team);
    rdt_group_release(coll->group);
    free(p);
}

void
rdti_persistent_ref(struct rdt_persistent *p)
{
    (void)atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed); /* the caller has one */
}

static rdt_status persistent_coll_settle(struct rdt_persistent *p, struct rdt_error *err);

rdt_status
rdti_persistent_end(struct rdt_persistent *p, struct rdti_coll *run, rdt_status status)
{
    if (!run->is_start && status == RDT_OK && p->vote != VOTE_NONE)
        status = persistent_coll_settle(p, &run->error);
    const unsigned next = run->is_start || status == RDT_OK ? IDLE : FAILED;

    if (!run->is_start) { /* all members have the same number for it */
        if (p->coll.sequence == 0)
            p->coll.sequence = run->sequence;
        p->coll.direct.number = p->coll.sequence;
    }
    /* release: pairs with the acquire in persistent_coll_take(); the records and the schedule are
     * as this thread left them */
    atomic_store_explicit(&p->state, next, memory_order_release);
    persistent_coll_unref(p);
    return status;
}

/* ---- Initialisation ---- */

static void
persistent_coll_describe(struct rdt_persistent *p)
{
    const struct rdt_message_desc desc = rdti_coll_plain_desc(&p->coll);
    struct rdti_placement landing;

    rdti_put_u32(p->own, desc.op);
    rdti_put_u32(p->own + 4, desc.dtype);
    rdti_put_u32(p->own + 8, desc.reduce_op);
    rdti_put_u32(p->own + 12, desc.root);
    rdti_put_u64(p->own + 16, desc.count);
    rdti_landing_export(&p->coll, &landing);
    (void)rdti_placement_encode(&landing, p->own + DESC_BYTES);
}

static rdt_status
persistent_coll_make(rdt_group *group, const struct rdt_coll_args *args,
                     struct rdt_persistent **out, struct rdt_error *err)
{
    const size_t size = rdt_group_size(group);
    struct rdt_persistent *p = calloc(1, sizeof(*p) + size * (RECORD_BYTES + 1));
    if (p == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a persistent collective");
    struct rdti_coll *coll = &p->coll;

    p->votes = p->records + size * RECORD_BYTES;

    rdt_status status = rdti_coll_accept(coll, group, args, err);
    if (status == RDT_OK && args->flags != 0)
        status = rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_init: flags belong to a start");
    if (status == RDT_OK && coll->size > 1)
        status = rdti_team_get(group, &coll->team, err);
    if (status == RDT_OK)
        status = rdti_coll_keep_arrays(coll, err);
    if (status != RDT_OK) {
        rdti_team_release(coll->team);
        free(p);
        return status;
    }
    rdt_group_retain(group);
    coll->persistent = p;
    coll->is_start = true;
    atomic_init(&p->state, EXCHANGING);
    atomic_init(&p->refs, 1); /* the user's */
    persistent_coll_describe(p);
    *out = p;
    return RDT_OK;
}

static rdt_status
persistent_coll_exchange(struct rdt_persistent *p, const void *own, void *all, uint64_t len_bytes,
                         rdt_transfer **out, struct rdt_error *err)
{
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = RDT_COLL_ALLGATHER,
                                       .dtype = RDT_U8,
                                       .count = len_bytes,
                                       .send = own,
                                       .recv = all,
                                       .timeout_ns = p->coll.args.timeout_ns};

    return rdti_coll_post_exchange(p->coll.group, &args, p, out, err);
}

rdt_status
rdt_coll_init(rdt_group *group, const struct rdt_coll_args *args, rdt_persistent **out,
              rdt_transfer **exchange_out, struct rdt_error *err)
{
    struct rdt_persistent *p = NULL;

    if (group == NULL || args == NULL || out == NULL || exchange_out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "rdt_coll_init: group, args, out or exchange_out is NULL");
    rdt_status status = persistent_coll_make(group, args, &p, err);
    if (status != RDT_OK)
        return status;
    status = persistent_coll_exchange(p, p->own, p->records, RECORD_BYTES, exchange_out, err);
    if (status != RDT_OK) {
        persistent_coll_unref(p);
        return status;
    }
    *out = p;
    return RDT_OK;
}

void
rdt_coll_free(rdt_persistent *p)
{
    if (p != NULL)
        persistent_coll_unref(p);
}

/* ---- Binding ---- */

/* RDT_OK: it is the caller's to bind or start. */
static rdt_status
persistent_coll_take(struct rdt_persistent *p, struct rdt_error *err)
{
    unsigned seen = IDLE;

    /* acquire: pairs with rdti_persistent_end() */
    if (atomic_compare_exchange_strong_explicit(&p->state, &seen, RUNNING, memory_order_acquire,
                                                memory_order_relaxed))
        return RDT_OK;
    if (seen == RUNNING)
        return rdti_error_set(err, RDT_EBUSY, 0, "it was started, and that start has not ended");
    if (seen == EXCHANGING)
        return rdti_error_set(err, RDT_EBUSY, 0, "its initialisation has not ended");
    return rdti_error_set(err, RDT_EINVAL, 0, "its initialisation failed");
}

static void
persistent_coll_give_back(struct rdt_persistent *p)
{
    atomic_store_explicit(&p->state, IDLE, memory_order_release); /* as rdti_persistent_end() */
}

static rdt_status
persistent_coll_compare(const struct rdt_persistent *p, struct rdt_error *err)
{
    const struct rdt_message_desc own = rdti_coll_plain_desc(&p->coll);

    for (uint32_t i = 0; i < p->coll.size; i++) {
        const uint8_t *record = p->records + i * (size_t)RECORD_BYTES;
        const struct rdt_message_desc desc = {.op = rdti_get_u32(record),
                                              .dtype = rdti_get_u32(record + 4),
                                              .reduce_op = rdti_get_u32(record + 8),
                                              .root = rdti_get_u32(record + 12),
                                              .count = rdti_get_u64(record + 16),
                                              .sequence = own.sequence};
        if (memcmp(&own, &desc, sizeof(own)) != 0)
            return rdti_coll_mismatch(&p->coll, i, &desc, err);
    }
    return RDT_OK;
}

static rdt_status
persistent_coll_land(struct rdt_persistent *p, struct rdt_error *err)
{
    struct rdti_placement *landings = calloc(p->coll.size, sizeof(*landings));
    rdt_status status = RDT_OK;

    if (landings == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for the places of %u tensors",
                              p->coll.size);
    for (uint32_t i = 0; i < p->coll.size && status == RDT_OK; i++)
        status = rdti_placement_decode(p->records + i * (size_t)RECORD_BYTES + DESC_BYTES,
                                       RDTI_PLACEMENT_BYTES, &landings[i], err);
    if (status == RDT_OK)
        status = rdti_landing_bind(&p->coll, landings, err);
    free(landings);
    return status;
}

/* The members have exchanged their records, so that the group has chosen its way. Memory of a peer
 * that cannot be held, for example because it was freed, does not fail: all use stages then. */
static enum vote
persistent_coll_prepare(struct rdt_persistent *p)
{
    struct rdti_coll *coll = &p->coll;

    coll->timeout_ns = rdti_coll_timeout(coll);
    coll->algorithm = rdti_coll_choose(coll);
    if (coll->algorithm->rest == NULL)
        return VOTE_STAGES;
    rdt_status status = coll->algorithm->prepare(coll, &p->why);
    if (status == RDT_EBUSY) /* each start takes temporary memory that the team keeps */
        return VOTE_STAGES;
    if (status != RDT_OK)
        return VOTE_FAILED;
    p->is_reused = true;
    if (!coll->algorithm->is_on_boards)
        return VOTE_STAGES;
    status = persistent_coll_land(p, &p->why);
    if (status == RDT_EPROTO) /* what a peer sent has no meaning */
        return VOTE_FAILED;
    return status == RDT_OK && rdti_direct_is_landed(coll) ? VOTE_LANDED : VOTE_STAGES;
}

static rdt_status
persistent_coll_bind(struct rdt_persistent *p, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = persistent_coll_take(p, err);

    if (status != RDT_OK)
        return status;
    status = persistent_coll_compare(p, err);
    if (status == RDT_OK && p->vote != VOTE_NONE)
        status = rdti_error_set(err, RDT_EINVAL, 0, "it was bound already");
    if (status != RDT_OK) {
        persistent_coll_give_back(p);
        return status;
    }
    p->vote = (uint8_t)persistent_coll_prepare(p);
    atomic_store_explicit(&p->state, EXCHANGING, memory_order_relaxed); /* the caller's */
    status = persistent_coll_exchange(p, &p->vote, p->votes, 1, out, err);
    if (status != RDT_OK)
        atomic_store_explicit(&p->state, FAILED, memory_order_relaxed);
    return status;
}

rdt_status
rdt_coll_bind(rdt_persistent *p, rdt_transfer **out, struct rdt_error *err)
{
    if (p == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_bind: %s is NULL",
                              p == NULL ? "persistent" : "out");
    const rdt_status status = persistent_coll_bind(p, out, err);
    return status == RDT_OK
               ? status
               : rdti_coll_name_operation(rdti_coll_name(p->coll.args.op), status, err);
}

/* ---- Starts ---- */

/* Counts the votes, as all members do. */
static rdt_status
persistent_coll_settle(struct rdt_persistent *p, struct rdt_error *err)
{
    struct rdti_coll *coll = &p->coll;
    bool all_landed = true;

    if (p->vote == VOTE_FAILED) {
        *err = p->why;
        return (rdt_status)p->why.status;
    }
    for (uint32_t i = 0; i < coll->size; i++) {
        all_landed &= p->votes[i] == VOTE_LANDED;
        if (p->votes[i] != VOTE_STAGES && p->votes[i] != VOTE_LANDED)
            return rdti_error_set(err, RDT_ENOMEM, 0, "%s could not initialise it",
                                  rdti_coll_rank_name(coll, i).text);
    }
    p->is_settled = true;
    if (all_landed || !rdti_direct_is_landed(coll))
        return RDT_OK;
    rdti_placed_release(coll);
    return coll->algorithm->prepare(coll, err);
}

/* A schedule has the addresses of what it sends and receives, boards do not. */
static bool
persistent_coll_is_fresh(const struct rdt_persistent *p, const void *aside)
{
    return !p->is_reused || (aside != NULL && !p->coll.algorithm->is_on_boards);
}

/* A run of it; aside as in persistent_coll_start(). On failure nothing of the run is left. */
static rdt_status
persistent_coll_run(struct rdt_persistent *p, uint32_t flags, void *aside, struct rdti_coll **out,
                    struct rdt_error *err)
{
    struct rdti_coll *coll = malloc(sizeof(*coll));
    rdt_status status = RDT_OK;

    if (coll == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %zu bytes", sizeof(*coll));
    *coll = p->coll;
    coll->args.flags = flags;
    coll->start_ns = rdti_now_ns();
    coll->timeout_ns = rdti_coll_timeout(coll);
    coll->is_fresh = persistent_coll_is_fresh(p, aside);
    if (aside != NULL) {
        coll->is_aside = true;
        coll->args.send = aside;
        coll->args.recv = aside;
    }
    if (coll->is_fresh) {
        coll->schedule = (struct rdti_schedule){0};
        coll->algorithm = rdti_coll_choose(coll);
        status = coll->algorithm->prepare(coll, err);
    }
    if (status == RDT_OK) {
        status = rdti_coll_make_transfer(coll, err);
        if (status != RDT_OK && coll->is_fresh)
            coll->algorithm->release(coll);
    }
    if (status != RDT_OK)
        free(coll);
    else
        *out = coll;
    return status;
}

/* aside: memory of this start, or NULL: the bound tensors. */
static rdt_status
persistent_coll_start(struct rdt_persistent *p, uint32_t flags, void *aside, rdt_transfer **out,
                      struct rdt_error *err)
{
    struct rdt_coll_args wanted = p->coll.args;
    struct rdti_coll *coll = NULL;
    rdt_status status = RDT_OK;

    wanted.flags = flags;
    status = rdti_coll_accept_flags(&wanted, err);
    if (status == RDT_OK)
        status = rdt_group_error(p->coll.group, err);
    if (status == RDT_OK)
        status = persistent_coll_take(p, err);
    if (status != RDT_OK)
        return status;
    if (!p->is_settled)
        status = rdti_error_set(err, RDT_EINVAL, 0, "it was not bound");
    if (status == RDT_OK)
        status = persistent_coll_run(p, flags, aside, &coll, err);
    if (status != RDT_OK) {
        persistent_coll_give_back(p);
        return status;
    }
    rdti_persistent_ref(p);
    return rdti_coll_begin(coll, out, err);
}

static rdt_status
persistent_coll_start_named(struct rdt_persistent *p, uint32_t flags, void *aside,
                            rdt_transfer **out, struct rdt_error *err)
{
    const rdt_status status = persistent_coll_start(p, flags, aside, out, err);

    return status == RDT_OK
               ? status
               : rdti_coll_name_operation(rdti_coll_name(p->coll.args.op), status, err);
}

rdt_status
rdt_coll_start(rdt_persistent *p, uint32_t flags, rdt_transfer **out, struct rdt_error *err)
{
    if (p == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_start: %s is NULL",
                              p == NULL ? "persistent" : "out");
    return persistent_coll_start_named(p, flags, NULL, out, err);
}

rdt_status
rdt_coll_start_aside(rdt_persistent *p, void *memory, uint32_t flags, rdt_transfer **out,
                     struct rdt_error *err)
{
    if (p == NULL || memory == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "rdt_coll_start_aside: persistent, memory or out is NULL");
    if (p->coll.args.op != RDT_COLL_ALLREDUCE)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: only all_reduce takes other memory",
                              rdti_coll_name(p->coll.args.op));
    return persistent_coll_start_named(p, flags, memory, out, err);
}
