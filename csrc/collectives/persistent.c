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
#include "wire/group/persistent.h"

enum persistent_state { EXCHANGING, IDLE, RUNNING, FAILED };

struct rdt_persistent {
    struct rdti_coll coll;  /* what each start begins as; never run */
    bool is_reused;         /* what is prepared serves each start */
    atomic_bool is_settled; /* the votes were counted: nothing of what starts use changes */
    atomic_uint state;
    atomic_uint refs;
    atomic_ullong starts;
    uint32_t landing;                 /* why it is not in place */
    uint32_t rank;                    /* of the member that this is about */
    struct rdti_persistent_vote vote; /* zero: not yet */
    struct rdt_error why;             /* of RDTI_VOTE_FAILED */
    uint8_t own_vote[RDTI_PERSISTENT_VOTE_BYTES];
    uint8_t own[RDTI_PERSISTENT_RECORD_BYTES];
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
    if (!run->is_start && status == RDT_OK && p->vote.vote != 0)
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
    struct rdti_persistent_record record = {.op = desc.op,
                                            .dtype = desc.dtype,
                                            .reduce_op = desc.reduce_op,
                                            .root = desc.root,
                                            .count = desc.count};

    rdti_landing_offer(&p->coll, &record);
    rdti_persistent_record_encode(&record, p->own);
}

static rdt_status
persistent_coll_make(rdt_group *group, const struct rdt_coll_args *args,
                     struct rdt_persistent **out, struct rdt_error *err)
{
    const size_t size = rdt_group_size(group);
    struct rdt_persistent *p =
        calloc(1, sizeof(*p) + size * (RDTI_PERSISTENT_RECORD_BYTES + RDTI_PERSISTENT_VOTE_BYTES));
    if (p == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a persistent collective");
    struct rdti_coll *coll = &p->coll;

    p->votes = p->records + size * RDTI_PERSISTENT_RECORD_BYTES;

    rdt_status status = rdti_coll_accept(coll, group, args, err);
    if (status == RDT_OK && args->flags != 0)
        status = rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_init: flags belong to a start");
    if (status == RDT_OK && coll->args.wire != RDT_WIRE_EXACT)
        status = rdti_error_set(err, RDT_EINVAL, 0,
                                "rdt_coll_init: a lossy wire is for rdt_coll_post()");
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
    p->rank = RDT_SOURCE_ANY;
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
    status = persistent_coll_exchange(p, p->own, p->records, sizeof(p->own), exchange_out, err);
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

/* RDT_EMISMATCH on all members, RDT_EPROTO, RDT_ENOMEM. */
static rdt_status
persistent_coll_read(const struct rdt_persistent *p, struct rdti_persistent_record **out,
                     struct rdt_error *err)
{
    const struct rdt_message_desc own = rdti_coll_plain_desc(&p->coll);
    struct rdti_persistent_record *records = calloc(p->coll.size, sizeof(*records));
    rdt_status status = RDT_OK;

    if (records == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for the records of %u members",
                              p->coll.size);
    for (uint32_t i = 0; i < p->coll.size && status == RDT_OK; i++) {
        struct rdt_error why; /* filled where the decoder refuses */
        status =
            rdti_persistent_record_decode(p->records + i * (size_t)RDTI_PERSISTENT_RECORD_BYTES,
                                          RDTI_PERSISTENT_RECORD_BYTES, &records[i], &why);
        if (status != RDT_OK)
            status = rdti_error_set(err, RDT_EPROTO, 0, "%s initialised a %s",
                                    rdti_coll_rank_name(&p->coll, i).text, why.message);
    }
    for (uint32_t i = 0; i < p->coll.size && status == RDT_OK; i++) {
        const struct rdt_message_desc desc = {.op = records[i].op,
                                              .dtype = records[i].dtype,
                                              .reduce_op = records[i].reduce_op,
                                              .root = records[i].root,
                                              .count = records[i].count,
                                              .sequence = own.sequence};
        if (memcmp(&own, &desc, sizeof(own)) != 0)
            status = rdti_coll_mismatch(&p->coll, i, &desc, err);
    }
    if (status != RDT_OK)
        free(records);
    else
        *out = records;
    return status;
}

/* Of a group without boards for all. */
static uint32_t
persistent_coll_why_messages(const struct rdti_team *team)
{
    if (team->size > RDTI_TEAM_MAX)
        return RDT_LANDING_GROUP_SIZE;
    return rdti_choice_wants_boards(team->choice, team->size) ? RDT_LANDING_HOSTS
                                                              : RDT_LANDING_ALGORITHM;
}

static uint32_t
persistent_coll_land(struct rdt_persistent *p, const struct rdti_persistent_record *records)
{
    struct rdti_coll *coll = &p->coll;

    if (!coll->algorithm->is_on_boards) {
        p->landing = coll->team != NULL ? persistent_coll_why_messages(coll->team)
                                        : (uint32_t)RDT_LANDING_OFFERED;
        return RDTI_VOTE_BOUND;
    }
    if (!rdti_landing_is_offered(coll, records, &p->landing, &p->rank))
        return RDTI_VOTE_BOUND;
    const rdt_status status = rdti_landing_bind(coll, records, &p->why);
    if (status == RDT_EPROTO) /* what a peer sent has no meaning */
        return RDTI_VOTE_FAILED;
    return status == RDT_OK ? RDTI_VOTE_LANDED : RDTI_VOTE_UNHELD;
}

/* The members have exchanged their records, so that the group has chosen its way. Memory of a peer
 * that cannot be held, for example because it was freed, does not fail: all use stages then. */
static uint32_t
persistent_coll_prepare(struct rdt_persistent *p, const struct rdti_persistent_record *records)
{
    struct rdti_coll *coll = &p->coll;
    rdt_status status = RDT_EBUSY;

    coll->timeout_ns = rdti_coll_timeout(coll);
    coll->algorithm = rdti_coll_choose(coll);
    if (coll->algorithm->rest != NULL)
        status = coll->algorithm->prepare(coll, &p->why);
    if (status != RDT_OK && status != RDT_EBUSY)
        return RDTI_VOTE_FAILED;
    p->is_reused = status == RDT_OK; /* else each start takes memory that the team keeps */
    return persistent_coll_land(p, records);
}

static rdt_status
persistent_coll_vote(struct rdt_persistent *p, rdt_transfer **out, struct rdt_error *err)
{
    rdti_persistent_vote_encode(&p->vote, p->own_vote);
    atomic_store_explicit(&p->state, EXCHANGING, memory_order_relaxed); /* the caller's */
    const rdt_status status =
        persistent_coll_exchange(p, p->own_vote, p->votes, sizeof(p->own_vote), out, err);
    if (status != RDT_OK)
        atomic_store_explicit(&p->state, FAILED, memory_order_relaxed);
    return status;
}

static rdt_status
persistent_coll_bind(struct rdt_persistent *p, rdt_transfer **out, struct rdt_error *err)
{
    struct rdti_persistent_record *records = NULL;
    rdt_status status = persistent_coll_take(p, err);

    if (status != RDT_OK)
        return status;
    if (p->vote.vote != 0) {
        persistent_coll_give_back(p);
        return rdti_error_set(err, RDT_EINVAL, 0, "it was bound already");
    }
    status = persistent_coll_read(p, &records, &p->why);
    if (status == RDT_EMISMATCH) {
        persistent_coll_give_back(p);
        if (err != NULL)
            *err = p->why;
        return status;
    }
    /* What only this member may have found fails on all of them. */
    p->vote.vote =
        status == RDT_OK ? persistent_coll_prepare(p, records) : (uint32_t)RDTI_VOTE_FAILED;
    free(records);
    return persistent_coll_vote(p, out, err);
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
persistent_coll_count(struct rdt_persistent *p, struct rdt_error *err)
{
    struct rdti_persistent_vote vote = {0};

    for (uint32_t i = 0; i < p->coll.size; i++) {
        struct rdt_error why; /* filled where the decoder refuses */
        const rdt_status status =
            rdti_persistent_vote_decode(p->votes + i * (size_t)RDTI_PERSISTENT_VOTE_BYTES,
                                        RDTI_PERSISTENT_VOTE_BYTES, &vote, &why);
        if (status != RDT_OK)
            return rdti_error_set(err, status, 0, "%s sent a %s",
                                  rdti_coll_rank_name(&p->coll, i).text, why.message);
        if (vote.vote == RDTI_VOTE_FAILED)
            return rdti_error_set(err, RDT_ENOMEM, 0, "%s could not initialise it",
                                  rdti_coll_rank_name(&p->coll, i).text);
        if (vote.vote == RDTI_VOTE_BOUND && p->vote.vote != RDTI_VOTE_BOUND)
            return rdti_error_set(err, RDT_EPROTO, 0,
                                  "%s does not use the tensors that it was offered",
                                  rdti_coll_rank_name(&p->coll, i).text);
        if (vote.vote != RDTI_VOTE_UNHELD || p->landing != RDT_LANDING_OFFERED)
            continue;
        p->landing = RDT_LANDING_NOT_HELD;
        p->rank = i;
    }
    return RDT_OK;
}

static rdt_status
persistent_coll_settle(struct rdt_persistent *p, struct rdt_error *err)
{
    struct rdti_coll *coll = &p->coll;

    if (p->vote.vote == RDTI_VOTE_FAILED) {
        *err = p->why;
        return (rdt_status)p->why.status;
    }
    rdt_status status = persistent_coll_count(p, err);
    if (status == RDT_OK && p->landing != RDT_LANDING_OFFERED && rdti_direct_is_landed(coll)) {
        rdti_placed_release(coll);
        status = coll->algorithm->prepare(coll, err);
    }
    /* release: pairs with rdt_coll_get_binding() */
    atomic_store_explicit(&p->is_settled, status == RDT_OK, memory_order_release);
    return status;
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
    if (status == RDT_OK && rdt_group_broken_by(p->coll.group) != RDT_BROKEN_NOT)
        status = rdt_group_error(p->coll.group, err); /* takes a lock */
    if (status == RDT_OK)
        status = persistent_coll_take(p, err);
    if (status != RDT_OK)
        return status;
    if (!atomic_load_explicit(&p->is_settled, memory_order_relaxed)) /* acquired by its taking */
        status = rdti_error_set(err, RDT_EINVAL, 0, "it was not bound");
    if (status == RDT_OK)
        status = persistent_coll_run(p, flags, aside, &coll, err);
    if (status != RDT_OK) {
        persistent_coll_give_back(p);
        return status;
    }
    rdti_persistent_ref(p);
    (void)atomic_fetch_add_explicit(&p->starts, 1, memory_order_relaxed); /* a mere number */
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

/* ---- What it is ---- */

static uint32_t
persistent_coll_way(const struct rdt_persistent *p)
{
    if (p->coll.team == NULL)
        return RDT_WAY_ALONE;
    if (!p->coll.algorithm->is_on_boards)
        return RDT_WAY_MESSAGES;
    return rdti_direct_is_landed(&p->coll) ? RDT_WAY_IN_PLACE : RDT_WAY_STAGES;
}

void
rdt_coll_get_binding(const rdt_persistent *p, struct rdt_coll_binding *out)
{
    static const char *const ways[] = {[RDT_WAY_UNBOUND] = "unbound",
                                       [RDT_WAY_IN_PLACE] = "in place",
                                       [RDT_WAY_STAGES] = "stages",
                                       [RDT_WAY_MESSAGES] = "messages",
                                       [RDT_WAY_ALONE] = "alone"};
    static const char *const reasons[] = {
        [RDT_LANDING_OFFERED] = "",
        [RDT_LANDING_UNUSED] = "it offered no tensor that others read",
        [RDT_LANDING_OPERATION] = "the operation does not work in place",
        [RDT_LANDING_SMALL] = "the tensors are so small that copies take less time",
        [RDT_LANDING_BLOCKS] = "its tensor is given in separate blocks",
        [RDT_LANDING_APART] = "it reduces into another tensor",
        [RDT_LANDING_OVERLAPS] = "its output overlaps what the others read",
        [RDT_LANDING_NOT_IN_ARENA] = "its tensor is in no arena",
        [RDT_LANDING_NOT_HELD] = "it cannot hold the tensor of another member",
        [RDT_LANDING_HOSTS] = "the members are on several hosts, or share no memory",
        [RDT_LANDING_GROUP_SIZE] = "a group of more than 64 members sends messages",
        [RDT_LANDING_ALGORITHM] = "RDMATENSOR_ALGO names an algorithm that sends messages",
    };
    struct rdt_coll_binding all = {.struct_size = out->struct_size,
                                   .rank = RDT_SOURCE_ANY,
                                   .reason = ""};
    const size_t most = out->struct_size < sizeof(all) ? out->struct_size : sizeof(all);

    /* acquire: pairs with persistent_coll_settle() */
    if (atomic_load_explicit(&p->is_settled, memory_order_acquire)) {
        all.way = persistent_coll_way(p);
        all.landing = p->landing;
        all.rank = p->rank;
        all.starts = atomic_load_explicit(&p->starts, memory_order_relaxed);
        all.algorithm = p->coll.algorithm->name;
        all.reason = reasons[p->landing];
    }
    all.way_name = ways[all.way];
    memcpy(out, &all, most);
}
