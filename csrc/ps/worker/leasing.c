/* SPDX-License-Identifier: Apache-2.0
 * Leases of chunks, from server 0. With replicas the active one decides, and the other one takes
 * its decision before the worker begins the chunk: if the active one dies, no chunk that a worker
 * has is given out again. In RDT_PS_SYNC leases are given in rounds, which both replicas must know:
 * both are asked, and give the same chunks while no worker dies. */
#include <string.h>

#include "base/error.h"
#include "ps/worker/worker_impl.h"

/* The other replica of server 0, or none. */
static bool
leasing_other(const struct rdt_ps_worker *worker, uint32_t conn, uint32_t *out)
{
    *out = rdti_ps_replicas_other(worker, conn);
    return *out != conn && !worker->conns[*out].is_lost;
}

static uint32_t
leasing_replica(const struct rdt_ps_worker *worker, uint32_t conn)
{
    return conn / worker->opts.servers;
}

static rdt_status
leasing_post(struct rdt_ps_worker *worker, uint32_t conn, struct rdti_ps_request *request,
             uint32_t purpose, uint32_t *blocked, struct rdt_error *err)
{
    uint32_t slot;
    rdt_status status = rdti_ps_conn_find_slot(worker, conn, &slot);

    *blocked = conn;
    request->queue = worker->queues[conn];
    if (status == RDT_OK)
        status = rdti_ps_conn_post(worker, conn, slot, request, purpose, err);
    if (status == RDT_OK || status == RDT_EAGAIN)
        return status;
    return rdti_ps_replicas_lose(worker, conn, status, err);
}

static rdt_status
leasing_ask(struct rdt_ps_worker *worker, uint32_t conn, uint32_t *blocked, struct rdt_error *err)
{
    struct rdti_ps_leasing *leasing = &worker->op.leasing;
    struct rdti_ps_request request = {.op = RDTI_PS_OP_LEASE};
    const uint32_t replica = leasing_replica(worker, conn);

    if (leasing->is_asked[replica])
        return RDT_OK;
    const rdt_status status = leasing_post(worker, conn, &request, RDTI_PS_FOR_LEASE, blocked, err);
    if (status == RDT_OK)
        leasing->is_asked[replica] = true;
    return status;
}

/* Tells the other replica, unless it has decided the same. */
static rdt_status
leasing_tell(struct rdt_ps_worker *worker, uint32_t *blocked, struct rdt_error *err)
{
    struct rdti_ps_leasing *leasing = &worker->op.leasing;
    const uint32_t giver = leasing_replica(worker, leasing->giver);
    struct rdti_ps_request request = {.op = RDTI_PS_OP_TAKE,
                                      .chunk = leasing->answers[giver].chunk};
    uint32_t other;

    if (leasing->is_taken || !leasing_other(worker, leasing->giver, &other))
        return RDT_OK;
    if (leasing->has_answer[1 - giver] &&
        leasing->answers[1 - giver].chunk == leasing->answers[giver].chunk)
        return RDT_OK;
    const rdt_status status = leasing_post(worker, other, &request, RDTI_PS_FOR_TAKE, blocked, err);
    if (status == RDT_OK)
        leasing->is_taken = true;
    return status;
}

rdt_status
rdti_ps_leasing_send(struct rdt_ps_worker *worker, uint32_t *blocked, struct rdt_error *err)
{
    const struct rdti_ps_leasing *leasing = &worker->op.leasing;
    uint32_t other;
    rdt_status status = RDT_OK;

    if (worker->op.error.status != RDT_OK)
        return RDT_OK;
    if (!leasing->is_decided || worker->opts.mode == RDT_PS_SYNC)
        status = leasing_ask(worker, worker->active[0], blocked, err);
    if (status == RDT_OK && worker->opts.mode == RDT_PS_SYNC &&
        leasing_other(worker, worker->active[0], &other))
        status = leasing_ask(worker, other, blocked, err);
    if (status != RDT_OK)
        return status;
    for (uint32_t conn = 0; conn < worker->conn_count; conn++)
        if (worker->conns[conn].of_operation > 0)
            return RDT_OK; /* its answer comes first */
    return leasing->is_decided ? leasing_tell(worker, blocked, err) : RDT_OK;
}

void
rdti_ps_leasing_answered(struct rdt_ps_worker *worker, uint32_t conn, const uint8_t *payload,
                         uint32_t payload_bytes)
{
    struct rdti_ps_leasing *leasing = &worker->op.leasing;
    const uint32_t replica = leasing_replica(worker, conn);
    struct rdt_error why;

    if (rdti_ps_lease_decode(payload, payload_bytes, &leasing->answers[replica], &why) != RDT_OK) {
        (void)rdti_error_set(&worker->op.error, RDT_EPROTO, 0, "server %u: %s",
                             conn % worker->opts.servers, why.message);
        return;
    }
    leasing->has_answer[replica] = true;
    if (conn == worker->active[0] && !leasing->is_decided) {
        leasing->is_decided = true;
        leasing->giver = conn;
    }
}

void
rdti_ps_leasing_lose(struct rdt_ps_worker *worker)
{
    struct rdti_ps_leasing *leasing = &worker->op.leasing;
    const uint32_t active = worker->active[0];

    if (!leasing->is_decided && leasing->has_answer[leasing_replica(worker, active)]) {
        leasing->is_decided = true;
        leasing->giver = active;
    }
}

void
rdti_ps_leasing_end(struct rdt_ps_worker *worker)
{
    const struct rdti_ps_leasing *leasing = &worker->op.leasing;
    const struct rdti_ps_lease *lease = &leasing->answers[leasing_replica(worker, leasing->giver)];

    *worker->op.chunk_out = lease->chunk;
    *worker->op.stale_out = lease->is_stale;
    if (lease->chunk == RDT_PS_CHUNK_NONE)
        return;
    worker->has_chunk = true;
    worker->chunk = lease->chunk;
    worker->members_bytes = lease->members_bytes;
    memcpy(worker->members, lease->members, lease->members_bytes);
}

rdt_status
rdt_ps_worker_lease(rdt_ps_worker *worker, const uint32_t *ids, uint64_t *chunk_out,
                    uint32_t *stale_out, uint64_t timeout_ns, struct rdt_error *err)
{
    rdt_status status;

    if (worker->has_chunk)
        return rdti_error_set(err, RDT_EINVAL, 0, "chunk %llu has not ended by a tick yet",
                              (unsigned long long)worker->chunk);
    status = rdti_ps_operation_begin(worker, RDTI_PS_FOR_LEASE, 0, err);
    if (status != RDT_OK)
        return status;
    worker->op.chunk_out = chunk_out;
    worker->op.stale_out = stale_out;
    memcpy(worker->queues, ids, worker->conn_count * sizeof(*ids));
    return rdt_ps_worker_resume(worker, timeout_ns, err);
}
