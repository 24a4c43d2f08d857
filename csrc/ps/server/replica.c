/* SPDX-License-Identifier: Apache-2.0
 * What a server does as one of two replicas: workers send each change to both. */
#include "base/error.h"
#include "ps/server/server_impl.h"

rdt_status
rdti_ps_replica_check_reader(const rdt_ps_server *server, uint32_t worker, struct rdt_error *err)
{
    if (!rdti_ps_is_quiet(server, worker))
        return RDT_OK;
    return rdti_error_set(err, RDT_ESTALE, 0,
                          "this is the backup of server %u, and worker %u has not switched to it",
                          server->opts.index, worker);
}

rdt_status
rdti_ps_replica_switch(rdt_ps_server *server, uint32_t worker, uint32_t slot, struct rdt_error *err)
{
    struct rdti_ps_client *client = &server->clients[worker];

    if (server->opts.is_backup == 0)
        return rdti_error_set(err, RDT_EPROTO, 0, "server %u is not a backup", server->opts.index);
    if (!client->has_switched)
        server->counters.switches++;
    client->has_switched = true;
    /* The primary may have died before it wrote them. What is written now must not change before
     * it is there: a tick that waits brings them with its answer. */
    rdti_ps_dense_forget(server, worker);
    if (!client->has_tick)
        rdti_ps_dense_bring(server, worker);
    rdti_ps_answer_send(server, worker, slot, 0);
    return RDT_OK;
}

rdt_status
rdti_ps_replica_take(rdt_ps_server *server, uint32_t worker, uint32_t slot,
                     const struct rdti_ps_request *request, struct rdt_error *err)
{
    struct rdti_ps_client *client = &server->clients[worker];
    struct rdti_ps_queue *queue = &server->queues[request->queue - 1];

    if (request->chunk != RDT_PS_CHUNK_NONE && request->chunk >= queue->chunks)
        return rdti_error_set(err, RDT_EINVAL, 0, "chunk %llu of queue %u does not exist",
                              (unsigned long long)request->chunk, request->queue);
    if (client->has_lease_request || client->has_tick)
        return rdti_error_set(err, RDT_EBUSY, 0, "a chunk before the last answer");
    rdti_ps_leases_confirm(server, worker);
    /* In RDT_PS_SYNC this replica has given it a chunk too, another one if a worker died. */
    if (client->lease_queue == request->queue && client->leased != request->chunk)
        rdti_ps_queue_give_back(queue, client->leased, worker);
    rdti_ps_queue_take(queue, request->chunk, worker);
    client->lease_queue = request->queue;
    client->leased = request->chunk;
    rdti_ps_answer_send(server, worker, slot, 0);
    rdti_ps_steps_advance(server); /* a chunk may be free for another worker */
    return RDT_OK;
}
