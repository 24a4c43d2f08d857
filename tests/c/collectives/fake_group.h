/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_group.h - the public calls that the collectives stand on, in one process: every rank is a
 * thread, its context a list of tasks, the mailbox two lists under one mutex. Messages end after
 * random delays and in random order; some are buffered, the others read and write the user's
 * buffers only when they end, also when they end in failure, so that a buffer that was given up too
 * early is found. Regions are memory of this process, which goes when it is freed and nobody holds
 * it.
 *
 * This is a header, and so are its parts, and not part of the library that all tests share, because
 * the tests of the core need the real calls. Include it in one file of a program.
 */
#ifndef RDT_TESTS_COLLECTIVES_FAKE_GROUP_H
#define RDT_TESTS_COLLECTIVES_FAKE_GROUP_H

#include <sched.h>
#include <stdlib.h>

#include "collectives/fake_context.h"
#include "collectives/fake_messages.h"
#include "collectives/fake_regions.h"
#include "collectives/fake_world.h"
#include "harness.h"
#include "rdmatensor_ext.h"

/* ---- Values that ranks put in: element i of one's, and of the sum over so many of them ---- */

static inline int32_t
fake_value(uint32_t rank, uint64_t i)
{
    return (int32_t)(i * 2654435761U) % 1000 + (int32_t)rank * 3;
}

static inline int32_t
fake_sum(uint32_t size, uint64_t i)
{
    int32_t sum = 0;

    for (uint32_t rank = 0; rank < size; rank++)
        sum += fake_value(rank, i);
    return sum;
}

/* The values of a rank, to be freed, and a 77 after them, past which nobody writes. */
static inline int32_t *
fake_values(uint64_t count, uint32_t rank)
{
    int32_t *values = malloc((count + 1) * sizeof(*values));

    CHECK_NOT_NULL(values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = fake_value(rank, i);
    values[count] = 77;
    return values;
}

/* ---- Group ---- */

static inline void
fake_abort(rdt_group *group, const char *reason, int32_t peer_rank)
{
    struct fake_world *world = group->world;

    (void)pthread_mutex_lock(&world->lock);
    world->aborts++;
    if (world->broken.status == RDT_OK) {
        (void)fake_error(&world->broken, RDT_EPEER, "aborted: %.700s", reason);
        world->broken.peer_rank = peer_rank;
    }
    for (struct fake_message *m = world->messages; m != NULL; m = m->next) {
        if (m->is_doomed)
            continue;
        m->is_doomed = true;
        m->ticks = (unsigned)(fake_random(&world->random) % (FAKE_TICKS_MAX + 1));
    }
    (void)pthread_mutex_unlock(&world->lock);
}

void
rdt_group_abort(rdt_group *group, const char *reason)
{
    fake_abort(group, reason, RDT_RANK_UNKNOWN);
}

void
rdt_group_give_up(rdt_group *group, struct rdt_error *err)
{
    char reason[RDT_ERROR_MESSAGE_BYTES];

    if (group->world->global_first == 0)
        (void)snprintf(reason, sizeof(reason), "rank %u: %.600s", group->rank, err->message);
    else
        (void)snprintf(reason, sizeof(reason), "rank %u (global rank %d): %.600s", group->rank,
                       (int)rdt_group_global_rank(group, group->rank), err->message);
    fake_abort(group, reason, err->peer_rank);
}

rdt_status
rdt_group_error(rdt_group *group, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&group->world->lock);
    const rdt_status status = (rdt_status)group->world->broken.status;
    if (status != RDT_OK && err != NULL)
        *err = group->world->broken;
    (void)pthread_mutex_unlock(&group->world->lock);
    return status;
}

uint32_t
rdt_group_broken_by(rdt_group *group)
{
    return rdt_group_error(group, NULL) == RDT_OK ? RDT_BROKEN_NOT : RDT_BROKEN_BY_ABORT;
}

uint32_t
rdt_group_rank(const rdt_group *group)
{
    return group->rank;
}

int32_t
rdt_group_global_rank(const rdt_group *group, uint32_t rank)
{
    return rank < group->world->size ? group->world->global_first + (int32_t)rank
                                     : RDT_RANK_UNKNOWN;
}

uint32_t
rdt_group_size(const rdt_group *group)
{
    return group->world->size;
}

rdt_context *
rdt_group_context(rdt_group *group)
{
    return &group->context;
}

uint64_t
rdt_group_timeout(const rdt_group *group)
{
    return group->timeout_ns;
}

void
rdt_group_retain(rdt_group *group)
{
    (void)group; /* the fake's groups outlive their operations */
}

void
rdt_group_release(rdt_group *group)
{
    (void)group;
}

uint64_t
rdt_group_next_sequence(rdt_group *group)
{
    (void)pthread_mutex_lock(&group->world->lock);
    const uint64_t sequence = ++group->sequence;
    (void)pthread_mutex_unlock(&group->world->lock);
    return sequence;
}

rdt_status
rdt_group_endpoint(rdt_group *group, uint32_t rank, rdt_endpoint **out, struct rdt_error *err)
{
    CHECK(rank < group->world->size && rank != group->rank);
    (void)pthread_mutex_lock(&group->world->lock);
    const bool fails = fake_must_fail(group->world, FAKE_ENDPOINT);
    (void)pthread_mutex_unlock(&group->world->lock);
    if (fails)
        return fake_error(err, RDT_EPEER, "injected: endpoint");
    *out = &group->endpoints[rank];
    return RDT_OK;
}

rdt_status
rdt_group_attach(rdt_group *group, void *state, void (*detach)(void *state), struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&group->world->lock);
    if (group->attached != NULL) {
        status = fake_error(err, RDT_EBUSY, "attached twice");
    } else {
        group->attached = state;
        group->detach = detach;
    }
    (void)pthread_mutex_unlock(&group->world->lock);
    return status;
}

void *
rdt_group_attached(const rdt_group *group)
{
    (void)pthread_mutex_lock(&group->world->lock);
    void *state = group->attached;
    (void)pthread_mutex_unlock(&group->world->lock);
    return state;
}

/* ---- What tests call ---- */

/* Drive until the transfer is over, and free it. */
static inline rdt_status
fake_wait(rdt_group *group, rdt_transfer *t, struct rdt_error *err)
{
    const uint64_t end_ns = test_now_ns() + (uint64_t)(FAKE_WAIT_S * 1e9 * test_timeout_scale());
    rdt_status status;

    fake_drive(&group->context); /* also if it is over: its task waits to be dropped */
    while ((status = rdt_transfer_test(t, err)) == RDT_EAGAIN) {
        fake_drive(&group->context);
        if (test_now_ns() > end_ns)
            FAIL("rank %u: a collective hangs", group->rank);
        (void)sched_yield();
    }
    rdt_transfer_free(t);
    return status;
}

/* A collective from start to end. */
static inline rdt_status
fake_run_coll(rdt_group *group, const struct rdt_coll_args *args, struct rdt_error *err)
{
    rdt_transfer *t = NULL;
    const rdt_status status = rdt_coll_post(group, args, &t, err);

    return status == RDT_OK ? fake_wait(group, t, err) : status;
}

static inline void *
fake_progress_main(void *arg)
{
    rdt_context *ctx = arg;
    bool is_over = false;

    while (!is_over || fake_task_count(ctx) > 0) {
        fake_drive(ctx);
        test_sleep_ns(50000);
        (void)pthread_mutex_lock(&ctx->world->lock);
        is_over = ctx->world->is_over;
        (void)pthread_mutex_unlock(&ctx->world->lock);
    }
    return NULL;
}

/* What collectives stand on from the next world on: RDMATENSOR_ALGO. */
static inline void
fake_force(const char *algorithm)
{
    CHECK_INT_EQ(setenv("RDMATENSOR_ALGO", algorithm, 1), 0);
}

static inline void
fake_world_init(struct fake_world *world, uint32_t size, uint64_t seed)
{
    *world = (struct fake_world){.size = size, .random = seed};
    CHECK(size <= FAKE_RANKS_MAX);
    CHECK_INT_EQ(pthread_mutex_init(&world->lock, NULL), 0);
    for (uint32_t rank = 0; rank < size; rank++) {
        struct rdt_group *group = &world->groups[rank];
        group->world = world;
        group->rank = rank;
        group->timeout_ns = UINT64_C(60000000000);
        group->context.world = world;
        for (uint32_t peer = 0; peer < size; peer++)
            group->endpoints[peer] =
                (struct rdt_endpoint){.world = world, .owner = rank, .peer = peer};
        CHECK_INT_EQ(pthread_mutex_init(&group->context.engine, NULL), 0);
        CHECK_INT_EQ(pthread_mutex_init(&group->context.lock, NULL), 0);
    }
}

/* Wait until all ranks have called this as often: what one of them begins next, and what goes wrong
 * with it, then reaches nobody who is in what came before. */
static inline void
fake_world_meet(struct fake_world *world)
{
    const unsigned turn = atomic_fetch_add(&world->met, 1) / world->size;

    while (atomic_load(&world->met) < (turn + 1) * world->size)
        test_sleep_ns(10000);
}

/* Run `rank_main` with each rank's group, each in a thread with a progress thread next to it. */
static inline void
fake_world_run(struct fake_world *world, void *(*rank_main)(void *group))
{
    pthread_t threads[FAKE_RANKS_MAX];

    for (uint32_t rank = 0; rank < world->size; rank++) {
        struct rdt_group *group = &world->groups[rank];
        CHECK_INT_EQ(pthread_create(&group->context.progress, NULL, fake_progress_main,
                                    &group->context),
                     0);
        CHECK_INT_EQ(pthread_create(&threads[rank], NULL, rank_main, group), 0);
    }
    for (uint32_t rank = 0; rank < world->size; rank++)
        CHECK_INT_EQ(pthread_join(threads[rank], NULL), 0);
    (void)pthread_mutex_lock(&world->lock);
    world->is_over = true;
    (void)pthread_mutex_unlock(&world->lock);
    for (uint32_t rank = 0; rank < world->size; rank++)
        CHECK_INT_EQ(pthread_join(world->groups[rank].context.progress, NULL), 0);
}

/* All is given back: no transfer, no task, no memory; messages that nobody received go. */
static inline void
fake_world_fini(struct fake_world *world)
{
    for (uint32_t rank = 0; rank < world->size; rank++)
        if (world->groups[rank].attached != NULL)
            world->groups[rank].detach(world->groups[rank].attached);
    CHECK_UINT_EQ(world->live_regions, 0);
    for (uint32_t rank = 0; rank < world->size; rank++) {
        CHECK_UINT_EQ(world->groups[rank].context.task_count, 0);
        (void)pthread_mutex_destroy(&world->groups[rank].context.engine);
        (void)pthread_mutex_destroy(&world->groups[rank].context.lock);
    }
    while (world->messages != NULL) {
        struct fake_message *m = world->messages;
        world->messages = m->next;
        if (m->send != NULL)
            fake_transfer_end(m->send, RDT_ECANCELED, NULL);
        if (m->recv != NULL)
            fake_transfer_end(m->recv, RDT_ECANCELED, NULL);
        free(m->buffered);
        free(m);
    }
    CHECK_UINT_EQ(world->live_transfers, 0);
    (void)pthread_mutex_destroy(&world->lock);
}

#endif
