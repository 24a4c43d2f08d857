/* SPDX-License-Identifier: Apache-2.0
 * The life of a collective: begun, driven by any thread that calls, ended or drained on error. */
#include "base/clock.h"
#include "base/system/cpu.h"
#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/persistent.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

#include <assert.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* The turn to work on a collective. */
enum {
    TURN_FREE = 0,
    TURN_TAKEN,
    TURN_AGAIN, /* taken, and another thread came by: check once more */
};

/* The table of states in collective.h; a test compares the two. */
static const uint32_t may_become[] = {
    [RDTI_COLL_RUNNING] = 1u << RDTI_COLL_FINISHED | 1u << RDTI_COLL_DRAINING,
    [RDTI_COLL_DRAINING] = 1u << RDTI_COLL_FINISHED,
    [RDTI_COLL_FINISHED] = 0,
};

static void
coll_become(struct rdti_coll *coll, enum rdti_coll_state state)
{
    const bool is_legal = (may_become[coll->state] & 1u << state) != 0;

    assert(is_legal);
    (void)is_legal;
    coll->state = state;
}

/* False: another thread has the turn, and will check once more because of this call. */
static bool
coll_take_turn(struct rdti_coll *coll)
{
    for (;;) {
        unsigned seen = TURN_FREE;
        /* acquire: pairs with the release in coll_end_turn(); what the other thread did is seen */
        if (atomic_compare_exchange_strong_explicit(&coll->turn, &seen, TURN_TAKEN,
                                                    memory_order_acquire, memory_order_relaxed))
            return true;
        /* release: pairs with the acquire in coll_end_turn(); the other sees what this thread saw
         * ended */
        if (seen == TURN_AGAIN ||
            atomic_compare_exchange_strong_explicit(&coll->turn, &seen, TURN_AGAIN,
                                                    memory_order_release, memory_order_relaxed))
            return false;
    }
}

/* False: another thread came by, this one keeps the turn and there may be more to do. */
static bool
coll_end_turn(struct rdti_coll *coll)
{
    unsigned seen = TURN_TAKEN;

    /* release, acquire on failure: pair with coll_take_turn() */
    if (atomic_compare_exchange_strong_explicit(&coll->turn, &seen, TURN_FREE, memory_order_release,
                                                memory_order_acquire))
        return true;
    atomic_store_explicit(&coll->turn, TURN_TAKEN, memory_order_relaxed); /* within this turn */
    return false;
}

static void
coll_drop(struct rdti_coll *coll)
{
    /* acq_rel: the thread that frees it sees all that the other did; pairs with the other's
     * coll_drop() */
    if (atomic_fetch_sub_explicit(&coll->refs, 1, memory_order_acq_rel) == 1)
        free(coll);
}

/* Undoes coll_make() except for the transfer and the group's reference; of a start, what it has of
 * its own. */
static void
coll_fini(struct rdti_coll *coll)
{
    if (coll->is_start) {
        if (!coll->is_fresh)
            coll->algorithm->rest(coll);
        else
            coll->algorithm->release(coll);
        return;
    }
    coll->algorithm->release(coll);
    rdti_pack_free(coll);
    free(coll->arrays);
    rdti_team_release(coll->team);
    coll->team = NULL;
}

static void
coll_finish(struct rdti_coll *coll, rdt_status status)
{
    rdt_transfer *transfer = coll->transfer;

    if (status == RDT_OK)
        rdti_pack_hand_out(coll);
    if (status == RDT_OK && coll->team != NULL)
        rdti_team_count_ran(coll->team, coll->algorithm->name);
    coll_fini(coll);
    rdt_group_release(coll->group);
    coll->group = NULL;
    if (coll->persistent != NULL)
        status = rdti_persistent_end(coll->persistent, coll, status);
    coll_become(coll, RDTI_COLL_FINISHED);
    rdt_transfer_finish(transfer, status, status == RDT_OK ? NULL : &coll->error);
}

/* The error that broke the group or a path does not name the operation that it ends here, unless
 * that is the same one. */
rdt_status
rdti_coll_name_operation(const char *name, rdt_status status, struct rdt_error *err)
{
    char said[RDT_ERROR_MESSAGE_BYTES];

    if (err == NULL)
        return status;
    memcpy(said, err->message, sizeof(said));
    said[sizeof(said) - 1] = '\0';
    if (strstr(said, name) != NULL)
        return status;
    /* A message that does not fit is cut at its end. */
    const int written = snprintf(err->message, sizeof(err->message), "%s: %s", name, said);
    if (written < 0)
        memcpy(err->message, said, sizeof(said));
    return status;
}

/*
 * The first error of the collective. The members cannot agree any more, so that the group ends on
 * all of them, which also ends what is in flight here. Where the group was destroyed or the process
 * forked, no member can be notified.
 */
static void
coll_begin_draining(struct rdti_coll *coll, rdt_status status, const struct rdt_error *err)
{
    char reason[RDT_ERROR_MESSAGE_BYTES + RDTI_COLL_RANK_BYTES + 4];

    coll_become(coll, RDTI_COLL_DRAINING);
    coll->error = *err;
    coll->error.status = status;
    if (status == RDT_ECANCELED || status == RDT_ECLOSED || status == RDT_EFORKED)
        return;
    if (status == RDT_ETIMEDOUT) {
        rdt_group_give_up(coll->group, &coll->error);
        return;
    }
    (void)snprintf(reason, sizeof(reason), "%s: %s", rdti_coll_rank_name(coll, coll->rank).text,
                   err->message);
    rdt_group_abort(coll->group, reason);
}

/* Names the members that it waits for, as the error of a deadline. */
static rdt_status
coll_set_awaited(const struct rdti_coll *coll, struct rdt_error *err)
{
    char waiting[384];
    const uint32_t awaited = coll->algorithm->describe(coll, waiting, sizeof(waiting));

    (void)rdti_error_set(err, RDT_ETIMEDOUT, 0, "%s #%llu: after %.1f s %s",
                         rdti_coll_name(coll->args.op), (unsigned long long)coll->sequence,
                         (double)(rdti_now_ns() - coll->start_ns) * 1e-9, waiting);
    err->peer_rank = rdt_group_global_rank(coll->group, awaited);
    return RDT_ETIMEDOUT;
}

/* Runs where tasks run, so that no task has the turn; the starter's turn came before that. */
static void
coll_explain(void *arg, struct rdt_error *err)
{
    const struct rdti_coll *coll = arg;

    if (coll->state == RDTI_COLL_RUNNING)
        (void)coll_set_awaited(coll, err);
}

/* While the algorithm waits: has the group broken, a member left, or the deadline passed? */
static rdt_status
coll_check_patience(struct rdti_coll *coll, struct rdt_error *err)
{
    char name[64];
    rdt_status status = RDT_OK;

    if (rdt_group_broken_by(coll->group) != RDT_BROKEN_NOT)
        status = rdt_group_error(coll->group, err); /* takes a lock */
    if (status != RDT_OK) {
        (void)snprintf(name, sizeof(name), "%s #%llu", rdti_coll_name(coll->args.op),
                       (unsigned long long)coll->sequence);
        return rdti_coll_name_operation(name, status, err);
    }
    if (coll->algorithm->check_members != NULL)
        status = coll->algorithm->check_members(coll, err);
    if (status != RDT_OK)
        return status;
    return rdti_now_ns() - coll->start_ns < coll->timeout_ns ? RDT_EAGAIN
                                                             : coll_set_awaited(coll, err);
}

/* Call with the turn taken. */
static void
coll_advance(struct rdti_coll *coll)
{
    if (coll->state == RDTI_COLL_RUNNING) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        rdt_status status = coll->algorithm->advance(coll, &err);
        if (status == RDT_OK) {
            coll_finish(coll, RDT_OK);
            return;
        }
        if (status == RDT_EAGAIN)
            status = coll_check_patience(coll, &err);
        if (status == RDT_EAGAIN)
            return;
        coll_begin_draining(coll, status, &err);
    }
    if (coll->state == RDTI_COLL_DRAINING && coll->algorithm->is_quiet(coll))
        coll_finish(coll, (rdt_status)coll->error.status);
}

/* The task. Its result is the collective's end, never its status: a transfer carries that. */
static rdt_status
coll_drive(void *arg)
{
    struct rdti_coll *coll = arg;

    if (!coll_take_turn(coll))
        return RDT_EAGAIN;
    do
        coll_advance(coll);
    while (!coll_end_turn(coll));
    /* FINISHED is final, and only the holder of the turn gets there, so that it may be read now. */
    if (coll->state != RDTI_COLL_FINISHED)
        return RDT_EAGAIN;
    coll_drop(coll);
    return RDT_OK;
}

uint64_t
rdti_coll_timeout(const struct rdti_coll *coll)
{
    const uint64_t asked_ns = coll->args.timeout_ns;

    return asked_ns == 0 || asked_ns == RDT_TIMEOUT_DEFAULT ? rdt_group_timeout(coll->group)
                                                            : asked_ns;
}

/* Several tensors that are sent as one; NULL in place of it: args describe one. */
struct parts {
    const struct rdt_coll_part *list;
    uint32_t count;
};

rdt_status
rdti_coll_make_transfer(struct rdti_coll *coll, struct rdt_error *err)
{
    const rdt_status status =
        rdt_transfer_create(rdt_group_context(coll->group), &coll->transfer, err);

    if (status != RDT_OK)
        return status;
    rdt_transfer_trace(coll->transfer, rdti_coll_name(coll->args.op), RDT_RANK_UNKNOWN,
                       coll->block_bytes);
    rdt_transfer_explain(coll->transfer, coll_explain, coll);
    rdt_group_retain(coll->group); /* it may be destroyed between two rounds of this one */
    return RDT_OK;
}

/* Everything that can be refused; other members see nothing of it. */
static rdt_status
coll_make(rdt_group *group, const struct rdt_coll_args *args, const struct parts *parts,
          struct rdti_coll **out, struct rdt_error *err)
{
    struct rdti_coll *coll = calloc(1, sizeof(*coll));
    rdt_status status;

    if (coll == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %zu bytes",
                              rdti_coll_name(args->op), sizeof(*coll));
    status = rdti_coll_accept(coll, group, args, err);
    if (status != RDT_OK)
        goto err_free;
    coll->start_ns = rdti_now_ns();
    coll->timeout_ns = rdti_coll_timeout(coll);
    if (coll->size > 1)
        status = rdti_team_get(group, &coll->team, err);
    if (status != RDT_OK)
        goto err_free;
    if (parts != NULL)
        status = rdti_pack_make(coll, parts->list, parts->count, err);
    if (status != RDT_OK)
        goto err_release_team;
    coll->algorithm = rdti_coll_choose(coll);
    status = coll->algorithm->prepare(coll, err);
    if (status != RDT_OK)
        goto err_release_team;
    status = rdti_coll_make_transfer(coll, err);
    if (status != RDT_OK)
        goto err_fini;
    *out = coll;
    return RDT_OK;

err_fini:
    coll_fini(coll);
    goto err_free;
err_release_team:
    rdti_pack_free(coll);
    free(coll->arrays);
    rdti_team_release(coll->team);
err_free:
    free(coll);
    return status;
}

static void
coll_take_ticket(struct rdti_coll *coll)
{
    struct rdti_direct *d = &coll->direct;

    /* relaxed: calls from two threads at once have no order to keep */
    d->ticket = atomic_fetch_add_explicit(&coll->team->next_ticket, 1, memory_order_relaxed);
    d->ticket_after = d->ticket + 1;
}

/* From here on the members count on this one: everything that can be refused was checked. */
static void
coll_take_place(struct rdti_coll *coll)
{
    struct rdti_team *team = coll->team;

    coll->sequence = rdt_group_next_sequence(coll->group);
    if (team == NULL)
        return;
    if (coll->algorithm->takes_turns)
        coll_take_ticket(coll);
    (void)atomic_fetch_add_explicit(&team->calls, 1, memory_order_relaxed);
    if (coll->pack == NULL)
        return;
    (void)atomic_fetch_add_explicit(&team->packs, 1, memory_order_relaxed);
    (void)atomic_fetch_add_explicit(&team->packed_parts, rdti_pack_part_count(coll),
                                    memory_order_relaxed);
}

static bool
coll_can_spin(const struct rdti_coll *coll)
{
    return (coll->args.flags & RDT_COLL_SPIN) != 0 && coll->algorithm->is_on_boards;
}

/* The caller waits at once, so that no thread is woken to drive it. Over boards nothing rings. */
static bool
coll_is_attended(const struct rdti_coll *coll)
{
    return (coll->args.flags & RDT_COLL_SPIN) != 0 && coll->size > 1 && !coll_can_spin(coll);
}

/* This thread has the turn, and no other one knows the collective. True: it is over. */
static bool
coll_spin(struct rdti_coll *coll)
{
    rdt_context *ctx = rdt_group_context(coll->group);

    for (uint32_t i = 1;; i++) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        const rdt_status status = coll->algorithm->advance(coll, &err);
        if (status == RDT_OK) {
            coll_finish(coll, RDT_OK);
            return true;
        }
        if (status != RDT_EAGAIN) {
            coll_begin_draining(coll, status, &err);
            return false;
        }
        if (rdt_context_linger(ctx, coll->start_ns, i) == 0)
            return false;
    }
}

/*
 * Over boards only the collective itself has to be driven, so that a caller that waits needs no
 * task as long as it spins. False: it goes on as any other, and has begun.
 */
static bool
coll_run_at_once(struct rdti_coll *coll)
{
    if (!coll_can_spin(coll))
        return false;
    coll_take_place(coll);
    return coll_spin(coll);
}

/* The collective cannot be driven on, and the members count on it already. */
static void
coll_give_up(struct rdti_coll *coll, rdt_status status, const struct rdt_error *err)
{
    if (coll->state == RDTI_COLL_RUNNING)
        coll_begin_draining(coll, status, err);
    while (!coll->algorithm->is_quiet(coll))
        rdti_cpu_relax();
    coll_finish(coll, (rdt_status)coll->error.status);
}

/* Other members saw nothing of it. An unfinished transfer may not be dropped, so it is ended. */
static void
coll_take_back(struct rdti_coll *coll, rdt_status status)
{
    rdt_transfer *transfer = coll->transfer;

    coll_finish(coll, status);
    rdt_transfer_free(transfer);
    free(coll);
}

/*
 * The task is there before anything is posted, because posted messages cannot be taken back. This
 * thread has the turn before the task can run. Relaxed: coll_add_task() publishes both. A group of
 * one posts nothing and needs none.
 */
static rdt_status
coll_add_task(struct rdti_coll *coll, struct rdt_error *err)
{
    const bool needs_task = coll->size > 1;
    rdt_status status = RDT_OK;

    atomic_init(&coll->turn, TURN_TAKEN);
    atomic_init(&coll->refs, needs_task ? 2 : 1);
    /* Schedules have what they need of the arrays, and a persistent collective its own. */
    if (coll->algorithm->takes_turns && !coll->is_start)
        status = rdti_coll_keep_arrays(coll, err);
    if (status == RDT_OK && needs_task)
        status = rdt_context_add_task(rdt_group_context(coll->group), coll_drive, coll, err);
    return status;
}

/* Takes coll over; its transfer is the caller's if RDT_OK is returned. */
static rdt_status
coll_begin(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    const bool has_begun = coll_can_spin(coll);

    if (coll_run_at_once(coll)) {
        free(coll);
        return RDT_OK;
    }
    const rdt_status status = coll_add_task(coll, &why);
    if (status != RDT_OK && has_begun) {
        coll_give_up(coll, status, &why);
        free(coll);
        return RDT_OK;
    }
    if (status != RDT_OK) {
        coll_take_back(coll, status);
        if (err != NULL)
            *err = why;
        return status;
    }
    if (!has_begun)
        coll_take_place(coll);
    do
        coll_advance(coll);
    while (!coll_end_turn(coll));
    coll_drop(coll);
    return RDT_OK;
}

rdt_status
rdti_coll_begin(struct rdti_coll *coll, rdt_transfer **out, struct rdt_error *err)
{
    rdt_transfer *transfer = coll->transfer;
    rdt_context *ctx = coll_is_attended(coll) ? rdt_group_context(coll->group) : NULL;

    if (ctx != NULL)
        rdt_context_attend(ctx);
    const rdt_status status = coll_begin(coll, err);
    if (ctx != NULL)
        rdt_context_unattend(ctx);
    if (status == RDT_OK)
        *out = transfer;
    return status;
}

/* persistent: whose exchange it is, or NULL. */
static rdt_status
coll_start(rdt_group *group, const struct rdt_coll_args *args, const struct parts *parts,
           struct rdt_persistent *persistent, rdt_transfer **out, struct rdt_error *err)
{
    struct rdti_coll *coll = NULL;
    rdt_status status = RDT_OK;

    /* A collective over boards checks no connection: it would succeed in a group that has ended, as
     * long as all members call it. */
    if (rdt_group_broken_by(group) != RDT_BROKEN_NOT)
        status = rdt_group_error(group, err);
    if (status != RDT_OK)
        return rdti_coll_name_operation(rdti_coll_name(args->op), status, err);
    status = coll_make(group, args, parts, &coll, err);
    if (status == RDT_EINVAL) /* of an argument: the caller knows what it called */
        return status;
    if (status != RDT_OK)
        return rdti_coll_name_operation(rdti_coll_name(args->op), status, err);
    coll->persistent = persistent;
    if (persistent != NULL)
        rdti_persistent_ref(persistent);
    return rdti_coll_begin(coll, out, err);
}

rdt_status
rdti_coll_post_exchange(rdt_group *group, const struct rdt_coll_args *args,
                        struct rdt_persistent *persistent, rdt_transfer **out,
                        struct rdt_error *err)
{
    return coll_start(group, args, NULL, persistent, out, err);
}

rdt_status
rdt_coll_post(rdt_group *group, const struct rdt_coll_args *args, rdt_transfer **out,
              struct rdt_error *err)
{
    if (group == NULL || args == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_post: %s is NULL",
                              group == NULL ? "group" : (args == NULL ? "args" : "out"));
    return coll_start(group, args, NULL, NULL, out, err);
}

rdt_status
rdt_coll_post_packed(rdt_group *group, const struct rdt_coll_args *args,
                     const struct rdt_coll_part *parts, uint32_t part_count, rdt_transfer **out,
                     struct rdt_error *err)
{
    if (group == NULL || args == NULL || out == NULL || (parts == NULL && part_count > 0))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "rdt_coll_post_packed: group, args, parts or out is NULL");
    struct rdt_coll_args plain = rdti_coll_args_known(args);

    if (plain.wire != RDT_WIRE_EXACT)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "rdt_coll_post_packed: a lossy wire is for single tensors");
    plain.count = 0;
    plain.send = NULL;
    plain.recv = NULL;
    plain.blocks = NULL;
    return coll_start(group, &plain, &(struct parts){parts, part_count}, NULL, out, err);
}

void
rdt_group_coll_counters(const rdt_group *group, struct rdt_coll_counters *out)
{
    const struct rdti_team *team = rdt_group_attached(group);
    struct rdt_coll_counters all = {.struct_size = out->struct_size};
    const size_t most = out->struct_size < sizeof(all) ? out->struct_size : sizeof(all);

    if (team != NULL) {
        all.calls = atomic_load_explicit(&team->calls, memory_order_relaxed);
        all.packs = atomic_load_explicit(&team->packs, memory_order_relaxed);
        all.packed_parts = atomic_load_explicit(&team->packed_parts, memory_order_relaxed);
        all.writes = rdti_team_writes(team);
    }
    memcpy(out, &all, most);
}
