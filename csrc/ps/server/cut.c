/* SPDX-License-Identifier: Apache-2.0
 * The moment of a checkpoint: steps are held until all servers are at the same ones. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "ps/server/dense.h"
#include "ps/server/server_impl.h"
#include "wire/ps/request.h"

rdt_status
rdti_ps_cut_init(rdt_ps_server *server, struct rdt_error *err)
{
    struct rdti_ps_cut *cut = &server->cut;

    cut->goals = calloc(server->opts.workers, sizeof(*cut->goals));
    cut->deferred = calloc(server->arrivals_room, sizeof(*cut->deferred));
    if (cut->goals == NULL || cut->deferred == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "server: no memory for the steps of %u workers",
                              server->opts.workers);
    return RDT_OK;
}

void
rdti_ps_cut_free(rdt_ps_server *server)
{
    free(server->cut.goals);
    free(server->cut.deferred);
}

/* The steps of a worker that were applied. A step of RDT_PS_SYNC waits for its round. */
static uint64_t
cut_applied(const rdt_ps_server *server, uint32_t worker)
{
    const bool waits = server->opts.mode == RDT_PS_SYNC && server->clients[worker].has_tick;

    return server->clocks.of[worker].ticks - (waits ? 1 : 0);
}

bool
rdti_ps_cut_defers(rdt_ps_server *server, const struct rdti_ps_arrival *arrival)
{
    struct rdti_ps_cut *cut = &server->cut;
    struct rdti_ps_client *client = &server->clients[arrival->worker];
    struct rdti_ps_request head;
    uint8_t bytes[RDTI_PS_HEAD_BYTES];

    if (cut->phase == RDTI_PS_CUT_NONE)
        return false;
    if (!client->is_deferred && arrival->slot != RDTI_PS_ARRIVED_END) {
        memcpy(bytes,
               (const uint8_t *)rdt_region_addr(client->inbox) +
                   arrival->slot * rdti_ps_slot_stride(server->opts.slot_bytes),
               sizeof(bytes));
        client->is_deferred =
            rdti_ps_request_decode(bytes, sizeof(bytes), server->opts.slot_bytes, &head, NULL) ==
                RDT_OK &&
            head.op == RDTI_PS_OP_TICK &&
            (cut->phase == RDTI_PS_CUT_HOLDS || head.clock > cut->goals[arrival->worker]);
    }
    /* The end of the worker that takes the checkpoint ends the hold. */
    if (!client->is_deferred ||
        (arrival->slot == RDTI_PS_ARRIVED_END && arrival->worker == cut->worker))
        return false;
    cut->deferred[cut->deferred_count++] = *arrival;
    return true;
}

/* What was deferred arrives again. */
static void
cut_resume(rdt_ps_server *server)
{
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        server->clients[worker].is_deferred = false;
    rdti_ps_arrivals_put_back(server, server->cut.deferred, server->cut.deferred_count);
    server->cut.deferred_count = 0;
}

static void
cut_end(rdt_ps_server *server, const struct rdt_error *end)
{
    server->cut.phase = RDTI_PS_CUT_NONE;
    server->cut.end = *end;
    cut_resume(server);
    (void)pthread_cond_broadcast(&server->calls_changed);
}

/* Whether each worker's steps are those of the cut. A worker that has died has no more of them. */
static bool
cut_is_reached(const rdt_ps_server *server, struct rdt_error *err)
{
    bool is_reached = true;

    for (uint32_t worker = 0; worker < server->opts.workers; worker++) {
        const uint64_t goal = server->cut.goals[worker];
        if (goal == RDT_PS_NO_CLOCK)
            continue;
        if (cut_applied(server, worker) > goal) {
            (void)rdti_error_set(err, RDT_ECANCELED, 0,
                                 "worker %u has gone on to step %llu, as another one has died: "
                                 "save again",
                                 worker, (unsigned long long)cut_applied(server, worker));
            return false;
        }
        if (server->clocks.of[worker].state != RDTI_PS_OUT && cut_applied(server, worker) < goal)
            is_reached = false;
    }
    return is_reached;
}

/* ---- What the checkpoint has ------------------------------------------------------------- */

static rdt_status
cut_copy_dense(struct rdti_ps_dense *dense, struct rdt_error *err)
{
    const uint32_t arrays = rdti_ps_dense_arrays(dense);

    dense->copy = malloc((arrays * dense->opts.count + 1) * sizeof(float));
    if (dense->copy == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a copy of a dense model");
    dense->copy_step = dense->step;
    for (uint32_t array = 0; array < arrays; array++)
        for (uint64_t first = 0; first < dense->opts.count;) {
            uint64_t count = dense->opts.count - first;
            const float *from = rdti_ps_dense_span(dense, array, first, &count);
            memcpy(dense->copy + array * dense->opts.count + first, from, count * sizeof(float));
            first += count;
        }
    return RDT_OK;
}

static rdt_status
cut_copy_queue(struct rdti_ps_queue *queue, struct rdt_error *err)
{
    queue->saved = malloc(queue->chunks + 1);
    if (queue->saved == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for a copy of a queue");
    queue->saved_chunks = queue->chunks;
    rdti_ps_queue_save(queue, queue->saved);
    return RDT_OK;
}

static void
cut_free_copies(rdt_ps_server *server, bool is_saved)
{
    for (uint32_t i = 0; i < server->counters.tables; i++)
        rdti_ps_table_end_snapshot(server->tables[i], is_saved);
    for (uint32_t i = 0; i < server->dense_count; i++) {
        free(server->dense[i]->copy);
        server->dense[i]->copy = NULL;
    }
    for (uint32_t i = 0; i < server->queue_count; i++) {
        free(server->queues[i].saved);
        server->queues[i].saved = NULL;
    }
    server->cut.is_begun = false;
}

static rdt_status
cut_begin(rdt_ps_server *server, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    server->cut.applied = 0;
    for (uint32_t i = 0; i < server->queue_count; i++)
        server->cut.applied += server->queues[i].applied;
    for (uint32_t i = 0; i < server->counters.tables && status == RDT_OK; i++)
        status = rdti_ps_table_begin_snapshot(server->tables[i], server->cut.is_increment, err);
    for (uint32_t i = 0; i < server->dense_count && status == RDT_OK; i++)
        status = cut_copy_dense(server->dense[i], err);
    for (uint32_t i = 0; i < server->queue_count && status == RDT_OK; i++)
        status = cut_copy_queue(&server->queues[i], err);
    if (status != RDT_OK)
        cut_free_copies(server, false);
    server->cut.is_begun = status == RDT_OK;
    return status;
}

void
rdti_ps_cut_advance(rdt_ps_server *server)
{
    const struct rdti_ps_client *taker = &server->clients[server->cut.worker];
    struct rdt_error err;

    if (server->cut.phase == RDTI_PS_CUT_NONE)
        return;
    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    if (server->failure.status != RDT_OK)
        (void)rdti_error_copy(&err, &server->failure);
    else if (taker->is_dead || taker->has_left)
        (void)rdti_error_set(&err, RDT_ECLOSED, 0, "worker %u, which saved, is gone",
                             server->cut.worker);
    else if (server->cut.phase == RDTI_PS_CUT_HOLDS ||
             (!cut_is_reached(server, &err) && err.status == RDT_OK))
        return;
    else if (err.status == RDT_OK)
        (void)cut_begin(server, &err);
    cut_end(server, &err);
}

/* ---- Calls of the program ---------------------------------------------------------------- */

rdt_status
rdt_ps_server_hold(rdt_ps_server *server, uint32_t worker, uint64_t *clocks_out,
                   struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&server->lock);
    if (server->cut.phase != RDTI_PS_CUT_NONE || server->cut.is_begun)
        status = rdti_error_set(err, RDT_EBUSY, 0, "another checkpoint has not ended");
    else if (worker >= server->opts.workers || server->clients[worker].is_dead ||
             server->clients[worker].has_left)
        status = rdti_error_set(err, RDT_ECLOSED, 0, "worker %u is gone", worker);
    if (status == RDT_OK) {
        server->cut.phase = RDTI_PS_CUT_HOLDS;
        server->cut.worker = worker;
        for (uint32_t i = 0; i < server->opts.workers; i++)
            clocks_out[i] = server->clocks.of[i].state == RDTI_PS_OUT ? RDT_PS_NO_CLOCK
                                                                      : cut_applied(server, i);
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* Under server->lock. */
static rdt_status
cut_await(rdt_ps_server *server, uint64_t deadline_ns, struct rdt_error *err)
{
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                                   .tv_nsec = (long)(deadline_ns % 1000000000)};

    while (server->cut.phase == RDTI_PS_CUT_WAITS)
        if (pthread_cond_timedwait(&server->calls_changed, &server->lock, &until) != 0 &&
            rdti_remaining_ns(deadline_ns) == 0)
            break;
    if (server->cut.phase == RDTI_PS_CUT_WAITS)
        return rdti_error_set(err, RDT_ETIMEDOUT, 0,
                              "steps that another server has applied have not arrived");
    return server->cut.end.status == RDT_OK ? RDT_OK : rdti_error_copy(err, &server->cut.end);
}

rdt_status
rdt_ps_server_cut(rdt_ps_server *server, uint64_t *clocks, uint32_t is_increment,
                  uint64_t timeout_ns, uint64_t *applied_out, struct rdt_error *err)
{
    rdt_status status;

    (void)pthread_mutex_lock(&server->lock);
    if (server->cut.phase == RDTI_PS_CUT_NONE) {
        status = rdti_error_set(err, RDT_EINVAL, 0, "no steps are held");
    } else {
        if (server->cut.phase == RDTI_PS_CUT_HOLDS) {
            memcpy(server->cut.goals, clocks, server->opts.workers * sizeof(*clocks));
            server->cut.phase = RDTI_PS_CUT_WAITS;
            server->cut.is_increment = is_increment != 0;
            cut_resume(server);
            rdti_ps_cut_advance(server);
        }
        status = cut_await(server, rdti_deadline_after(timeout_ns), err);
    }
    for (uint32_t i = 0; i < server->opts.workers && status == RDT_OK; i++)
        if (clocks[i] == RDT_PS_NO_CLOCK)
            clocks[i] = cut_applied(server, i);
    *applied_out = server->cut.applied;
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

void
rdt_ps_server_release(rdt_ps_server *server)
{
    struct rdt_error end;

    rdti_error_init(&end, RDT_RANK_UNKNOWN);
    (void)rdti_error_set(&end, RDT_ECANCELED, 0, "the checkpoint was given up");
    (void)pthread_mutex_lock(&server->lock);
    if (server->cut.phase != RDTI_PS_CUT_NONE)
        cut_end(server, &end);
    (void)pthread_mutex_unlock(&server->lock);
}

void
rdt_ps_server_end_cut(rdt_ps_server *server, uint32_t is_saved)
{
    (void)pthread_mutex_lock(&server->lock);
    cut_free_copies(server, is_saved != 0);
    (void)pthread_mutex_unlock(&server->lock);
}
