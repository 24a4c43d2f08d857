/* SPDX-License-Identifier: Apache-2.0
 * From the engine to the server's thread: requests, and ends of workers. */
#include <stdlib.h>
#include <time.h>

#include "base/error.h"
#include "ps/server/server_impl.h"
#include "rdmatensor_ext.h"

#define WAIT_NS UINT64_C(100000000)

static void
arrivals_put(rdt_ps_server *server, uint32_t worker, uint32_t slot)
{
    const uint32_t at = (server->arrivals_first + server->arrivals_count) % server->arrivals_room;

    server->arrivals[at] = (struct rdti_ps_arrival){.worker = worker, .slot = slot};
    server->arrivals_count++;
}

/* Under arrivals_lock. */
static void
arrivals_close(rdt_ps_server *server, uint32_t worker, const struct rdt_error *err)
{
    struct rdti_ps_client *client = &server->clients[worker];

    if (client->is_over)
        return;
    client->is_over = true;
    client->end = *err;
    arrivals_put(server, worker, RDTI_PS_ARRIVED_END);
}

/* Takes all notifications of one worker. */
static void
arrivals_poll(rdt_ps_server *server, uint32_t worker)
{
    struct rdti_ps_client *client = &server->clients[worker];
    struct rdt_error err;
    uint32_t slot;
    rdt_status status;

    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    while (!client->is_over && (status = rdt_endpoint_wait_notify(client->ep, RDT_NO_WAIT, &slot,
                                                                  &err)) != RDT_EAGAIN) {
        if (status == RDT_OK && (slot >= server->opts.slots || client->slots[slot].is_busy))
            status = rdti_error_set(&err, RDT_EPROTO, 0,
                                    "worker %u announced a request in slot %u, which is %s", worker,
                                    slot, slot < server->opts.slots ? "in use" : "none");
        if (status == RDT_OK) {
            client->slots[slot].is_busy = true;
            arrivals_put(server, worker, slot);
        } else {
            arrivals_close(server, worker, &err);
        }
    }
}

/* A task of the engine. */
static rdt_status
arrivals_step(void *arg)
{
    rdt_ps_server *server = arg;
    rdt_status status = RDT_EAGAIN;

    (void)pthread_mutex_lock(&server->arrivals_lock);
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (server->clients[worker].ep != NULL && !server->clients[worker].is_over)
            arrivals_poll(server, worker);
    if (server->arrival != NULL && !server->is_arrival_done &&
        (server->arrivals_count > 0 || server->is_stopping)) {
        server->is_arrival_done = true;
        rdt_transfer_finish(server->arrival, RDT_OK, NULL);
    }
    if (server->is_stopping) {
        server->is_task_over = true;
        status = RDT_OK;
    }
    (void)pthread_mutex_unlock(&server->arrivals_lock);
    return status;
}

rdt_status
rdti_ps_arrivals_start(rdt_ps_server *server, struct rdt_error *err)
{
    server->is_task_over = false;
    const rdt_status status = rdt_context_add_task(server->ctx, arrivals_step, server, err);
    if (status != RDT_OK)
        server->is_task_over = true;
    return status;
}

static bool
arrivals_take(rdt_ps_server *server, struct rdti_ps_arrival *out)
{
    (void)pthread_mutex_lock(&server->arrivals_lock);
    const bool has = server->arrivals_count > 0 && !server->is_stopping;
    if (has) {
        *out = server->arrivals[server->arrivals_first];
        server->arrivals_first = (server->arrivals_first + 1) % server->arrivals_room;
        server->arrivals_count--;
    }
    (void)pthread_mutex_unlock(&server->arrivals_lock);
    return has;
}

/* The transfer that the next arrival finishes. */
static rdt_transfer *
arrivals_expect(rdt_ps_server *server)
{
    rdt_transfer *fresh = NULL;

    if (server->arrival != NULL) /* only this thread makes and frees it */
        return server->arrival;
    if (rdt_transfer_create(server->ctx, &fresh, NULL) != RDT_OK)
        return NULL;
    (void)pthread_mutex_lock(&server->arrivals_lock);
    server->arrival = fresh;
    server->is_arrival_done = server->arrivals_count > 0 || server->is_stopping;
    const bool is_done = server->is_arrival_done;
    (void)pthread_mutex_unlock(&server->arrivals_lock);
    if (is_done)
        rdt_transfer_finish(fresh, RDT_OK, NULL);
    return fresh;
}

bool
rdti_ps_arrivals_next(rdt_ps_server *server, struct rdti_ps_arrival *out)
{
    if (arrivals_take(server, out))
        return true;
    rdt_transfer *arrival = arrivals_expect(server);
    if (arrival == NULL) { /* no memory: look again a little later */
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        return arrivals_take(server, out);
    }
    if (rdt_transfer_wait(arrival, WAIT_NS, NULL) == RDT_OK) {
        (void)pthread_mutex_lock(&server->arrivals_lock);
        server->arrival = NULL;
        (void)pthread_mutex_unlock(&server->arrivals_lock);
        rdt_transfer_free(arrival);
    }
    return arrivals_take(server, out);
}

rdt_status
rdti_ps_arrivals_add(rdt_ps_server *server, uint32_t worker, rdt_endpoint *ep,
                     struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&server->arrivals_lock);
    if (server->clients[worker].ep != NULL)
        status = rdti_error_set(err, RDT_EINVAL, 0, "worker %u is attached already", worker);
    else
        server->clients[worker].ep = ep;
    (void)pthread_mutex_unlock(&server->arrivals_lock);
    return status;
}

void
rdti_ps_arrivals_release(rdt_ps_server *server, uint32_t worker, uint32_t slot)
{
    (void)pthread_mutex_lock(&server->arrivals_lock);
    server->clients[worker].slots[slot].is_busy = false;
    (void)pthread_mutex_unlock(&server->arrivals_lock);
}

void
rdti_ps_arrivals_put_back(rdt_ps_server *server, const struct rdti_ps_arrival *arrivals,
                          uint32_t count)
{
    (void)pthread_mutex_lock(&server->arrivals_lock);
    for (uint32_t i = count; i-- > 0;) {
        server->arrivals_first =
            (server->arrivals_first + server->arrivals_room - 1) % server->arrivals_room;
        server->arrivals[server->arrivals_first] = arrivals[i];
        server->arrivals_count++;
    }
    if (count > 0 && server->arrival != NULL && !server->is_arrival_done) {
        server->is_arrival_done = true;
        rdt_transfer_finish(server->arrival, RDT_OK, NULL);
    }
    (void)pthread_mutex_unlock(&server->arrivals_lock);
}

void
rdti_ps_arrivals_end(rdt_ps_server *server, uint32_t worker, const struct rdt_error *err)
{
    (void)pthread_mutex_lock(&server->arrivals_lock);
    arrivals_close(server, worker, err);
    (void)pthread_mutex_unlock(&server->arrivals_lock);
}

void
rdti_ps_arrivals_stop(rdt_ps_server *server)
{
    bool is_over = false;

    (void)pthread_mutex_lock(&server->arrivals_lock);
    server->is_stopping = true;
    (void)pthread_mutex_unlock(&server->arrivals_lock);
    while (!is_over) {
        if (rdt_context_progress(server->ctx) != RDT_OK)
            return; /* a forked child, which has no thread */
        (void)pthread_mutex_lock(&server->arrivals_lock);
        is_over = server->is_task_over;
        (void)pthread_mutex_unlock(&server->arrivals_lock);
        if (!is_over)
            (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}
