/* SPDX-License-Identifier: Apache-2.0
 * The life of a collective: begun, driven by whoever comes by, ended or drained after an error. */
#include "collectives/coll.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Whose turn it is to work on a collective. */
enum {
    TURN_FREE = 0,
    TURN_TAKEN,
    TURN_AGAIN, /* taken, and somebody came by meanwhile: look once more */
};

static uint64_t
now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* False: another thread has the turn, and will look once more because of us. */
static bool
take_turn(struct rdti_coll *coll)
{
    for (;;) {
        unsigned seen = TURN_FREE;
        /* acquire: pairs with the release in end_turn(); what the other did is seen */
        if (atomic_compare_exchange_strong_explicit(&coll->turn, &seen, TURN_TAKEN,
                                                    memory_order_acquire, memory_order_relaxed))
            return true;
        /* release: pairs with the acquire in end_turn(); what we saw ended is seen by the other */
        if (seen == TURN_AGAIN ||
            atomic_compare_exchange_strong_explicit(&coll->turn, &seen, TURN_AGAIN,
                                                    memory_order_release, memory_order_relaxed))
            return false;
    }
}

/* False: somebody came by, the turn is still ours and there may be more to do. */
static bool
end_turn(struct rdti_coll *coll)
{
    unsigned seen = TURN_TAKEN;

    /* release, acquire on failure: partners in take_turn() */
    if (atomic_compare_exchange_strong_explicit(&coll->turn, &seen, TURN_FREE, memory_order_release,
                                                memory_order_acquire))
        return true;
    atomic_store_explicit(&coll->turn, TURN_TAKEN, memory_order_relaxed); /* between our own */
    return false;
}

static void
drop(struct rdti_coll *coll)
{
    /* acq_rel: whoever frees it sees all that the other did; partner: the other's drop() */
    if (atomic_fetch_sub_explicit(&coll->refs, 1, memory_order_acq_rel) == 1)
        free(coll);
}

static void
finish(struct rdti_coll *coll, rdt_status status)
{
    rdt_transfer *transfer = coll->transfer;

    coll->algorithm->release(coll);
    rdt_group_release(coll->group);
    coll->group = NULL;
    coll->state = RDTI_COLL_FINISHED;
    rdt_transfer_finish(transfer, status, status == RDT_OK ? NULL : &coll->error);
}

/*
 * The first error of the collective. The members cannot agree any more, so that the group ends on
 * all of them, which also ends what is in flight here; where the group was destroyed or the process
 * forked there is nobody to tell.
 */
static void
begin_draining(struct rdti_coll *coll, rdt_status status, const struct rdt_error *err)
{
    char reason[RDT_ERROR_MESSAGE_BYTES + RDTI_COLL_RANK_BYTES + 4];

    coll->state = RDTI_COLL_DRAINING;
    coll->error = *err;
    coll->error.status = status;
    if (status == RDT_ECANCELED || status == RDT_ECLOSED || status == RDT_EFORKED)
        return;
    (void)snprintf(reason, sizeof(reason), "%s: %s", rdti_coll_rank_name(coll, coll->rank).text,
                   err->message);
    rdt_group_abort(coll->group, reason);
}

/* While the algorithm waits: has the group broken or the deadline passed? */
static rdt_status
check_patience(struct rdti_coll *coll, struct rdt_error *err)
{
    char waiting[384];
    const rdt_status status = rdt_group_error(coll->group, err);

    if (status != RDT_OK)
        return status;
    const uint64_t waited_ns = now_ns() - coll->start_ns;
    if (waited_ns < coll->timeout_ns)
        return RDT_EAGAIN;
    coll->algorithm->describe(coll, waiting, sizeof(waiting));
    return rdti_coll_error_set(err, RDT_ETIMEDOUT, "%s #%llu: after %.1f s %s",
                               rdti_coll_name(coll->args.op), (unsigned long long)coll->sequence,
                               (double)waited_ns * 1e-9, waiting);
}

/* With the turn taken. */
static void
advance(struct rdti_coll *coll)
{
    if (coll->state == RDTI_COLL_RUNNING) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        rdt_status status = coll->algorithm->advance(coll, &err);
        if (status == RDT_OK) {
            finish(coll, RDT_OK);
            return;
        }
        if (status == RDT_EAGAIN)
            status = check_patience(coll, &err);
        if (status == RDT_EAGAIN)
            return;
        begin_draining(coll, status, &err);
    }
    if (coll->state == RDTI_COLL_DRAINING && coll->algorithm->is_quiet(coll))
        finish(coll, (rdt_status)coll->error.status);
}

/* The task. Its result is the collective's end, never its status: a transfer carries that. */
static rdt_status
drive(void *arg)
{
    struct rdti_coll *coll = arg;

    if (!take_turn(coll))
        return RDT_EAGAIN;
    do
        advance(coll);
    while (!end_turn(coll));
    /* FINISHED is final, and only the holder of the turn gets there, so that it may be read now. */
    if (coll->state != RDTI_COLL_FINISHED)
        return RDT_EAGAIN;
    drop(coll);
    return RDT_OK;
}

static uint64_t
timeout_of(const struct rdti_coll *coll)
{
    const uint64_t asked_ns = coll->args.timeout_ns;

    return asked_ns == 0 || asked_ns == RDT_TIMEOUT_DEFAULT ? rdt_group_timeout(coll->group)
                                                            : asked_ns;
}

/* Everything that can be refused; nothing of it is seen by other members. */
static rdt_status
make(rdt_group *group, const struct rdt_coll_args *args, struct rdti_coll **out,
     struct rdt_error *err)
{
    struct rdti_coll *coll = calloc(1, sizeof(*coll));
    rdt_status status;

    if (coll == NULL)
        return rdti_coll_error_set(err, RDT_ENOMEM, "%s: no memory for %zu bytes",
                                   rdti_coll_name(args->op), sizeof(*coll));
    status = rdti_coll_accept(coll, group, args, err);
    if (status != RDT_OK)
        goto err_free;
    coll->start_ns = now_ns();
    coll->timeout_ns = timeout_of(coll);
    coll->algorithm = rdti_coll_choose(coll);
    status = coll->algorithm->prepare(coll, err);
    if (status != RDT_OK)
        goto err_free;
    status = rdt_transfer_create(rdt_group_context(group), &coll->transfer, err);
    if (status != RDT_OK)
        goto err_release;
    rdt_group_retain(group); /* it may be destroyed while we are between two rounds */
    *out = coll;
    return RDT_OK;

err_release:
    coll->algorithm->release(coll);
err_free:
    free(coll);
    return status;
}

rdt_status
rdt_coll_start(rdt_group *group, const struct rdt_coll_args *args, rdt_transfer **out,
               struct rdt_error *err)
{
    struct rdti_coll *coll = NULL;

    if (group == NULL || args == NULL || out == NULL)
        return rdti_coll_error_set(err, RDT_EINVAL, "rdt_coll_start: %s is NULL",
                                   group == NULL ? "group" : (args == NULL ? "args" : "out"));
    rdt_status status = make(group, args, &coll, err);
    if (status != RDT_OK)
        return status;
    /* The turn is ours before the task can run; the task is there before anything is posted,
     * because what is posted cannot be taken back. Relaxed: add_task() publishes both. A group of
     * one posts nothing and is done below. */
    const bool needs_task = coll->size > 1;
    atomic_init(&coll->turn, TURN_TAKEN);
    atomic_init(&coll->refs, needs_task ? 2 : 1);
    if (needs_task)
        status = rdt_context_add_task(rdt_group_context(group), drive, coll, err);
    if (status != RDT_OK) {
        /* An unfinished transfer may not be dropped, so that it is ended first. */
        coll->algorithm->release(coll);
        rdt_group_release(group);
        rdt_transfer_finish(coll->transfer, status, err);
        rdt_transfer_free(coll->transfer);
        free(coll);
        return status;
    }
    coll->sequence = rdt_group_next_sequence(group); /* from here on the members count on us */
    *out = coll->transfer;
    do
        advance(coll);
    while (!end_turn(coll));
    drop(coll);
    return RDT_OK;
}
