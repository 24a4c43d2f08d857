/* SPDX-License-Identifier: Apache-2.0
 * Leases: which worker processes which chunk next. */
#include <string.h>

#include "base/error.h"
#include "ps/server/server_impl.h"

/* RDT_PS_SYNC: leases are given when all members wait for one, so that they do not depend on the
 * order in which workers ask. A member whose tick is held by one without a lease waits, too: the
 * other replica may have given that one a chunk when a worker died. */
static bool
leases_are_due(const rdt_ps_server *server)
{
    if (server->opts.mode != RDT_PS_SYNC)
        return true;
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (server->clocks.of[worker].state == RDTI_PS_IN && !server->clients[worker].has_tick)
            return false;
    return true;
}

static void
leases_give(rdt_ps_server *server, uint32_t worker, uint64_t chunk, const uint8_t *members,
            uint32_t members_bytes)
{
    struct rdti_ps_client *client = &server->clients[worker];
    struct rdti_ps_lease lease = {.chunk = chunk,
                                  .is_stale = rdti_ps_dense_is_stale(server, worker),
                                  .members_bytes = members_bytes};

    memcpy(lease.members, members, members_bytes);
    client->has_lease_request = false;
    rdti_ps_clocks_park(&server->clocks, worker, false);
    const size_t len_bytes =
        rdti_ps_lease_encode(&lease, rdti_ps_answer_payload(server, worker, client->lease_slot));
    rdti_ps_answer_send(server, worker, client->lease_slot, (uint32_t)len_bytes);
}

void
rdti_ps_leases_confirm(rdt_ps_server *server, uint32_t worker)
{
    struct rdti_ps_client *client = &server->clients[worker];

    if (client->has_ticked_chunk)
        rdti_ps_queue_confirm(&server->queues[client->tick_queue - 1], client->tick_chunk, worker);
    client->has_ticked_chunk = false;
}

void
rdti_ps_leases_advance(rdt_ps_server *server)
{
    const uint32_t members_bytes =
        server->opts.mode == RDT_PS_SYNC ? rdti_ps_members_bytes(server->opts.workers) : 0;
    uint8_t members[RDTI_PS_MEMBERS_BYTES] = {0};

    if (!leases_are_due(server))
        return;
    for (uint32_t worker = 0; worker < server->opts.workers; worker++) {
        struct rdti_ps_client *client = &server->clients[worker];
        if (!client->has_lease_request)
            continue;
        struct rdti_ps_queue *queue = &server->queues[client->lease_queue - 1];
        client->leased = rdti_ps_queue_lease(queue, worker);
        client->is_lease_due = client->leased != RDT_PS_CHUNK_NONE || rdti_ps_queue_is_over(queue);
        if (client->leased != RDT_PS_CHUNK_NONE)
            members[worker / 8] |= (uint8_t)(1u << worker % 8);
    }
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (server->clients[worker].has_lease_request && server->clients[worker].is_lease_due)
            leases_give(server, worker, server->clients[worker].leased, members, members_bytes);
}

rdt_status
rdt_ps_server_extend_queue(rdt_ps_server *server, uint32_t id, uint64_t chunks, uint32_t is_last,
                           struct rdt_error *err)
{
    rdt_status status;

    (void)pthread_mutex_lock(&server->lock);
    if (id == 0 || id > server->queue_count)
        status = rdti_error_set(err, RDT_EINVAL, 0, "queue %u does not exist", id);
    else
        status = rdti_ps_queue_extend(&server->queues[id - 1], chunks, is_last != 0, err);
    if (status == RDT_OK && server->failure.status == RDT_OK)
        rdti_ps_leases_advance(server);
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

rdt_status
rdt_ps_server_observe(rdt_ps_server *server, uint32_t worker, struct rdt_error *err)
{
    if (worker >= server->opts.workers)
        return rdti_error_set(err, RDT_EINVAL, 0, "worker %u is not one of %u", worker,
                              server->opts.workers);
    (void)pthread_mutex_lock(&server->lock);
    rdti_ps_clocks_park(&server->clocks, worker, true);
    rdti_ps_steps_advance(server);
    (void)pthread_mutex_unlock(&server->lock);
    return RDT_OK;
}
