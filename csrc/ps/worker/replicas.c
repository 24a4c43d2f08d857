/* SPDX-License-Identifier: Apache-2.0
 * A server's two replicas, and what happens when a worker loses one of them. */
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "ps/worker/worker_impl.h"

uint32_t
rdti_ps_replicas_other(const struct rdt_ps_worker *worker, uint32_t conn)
{
    const uint32_t servers = worker->opts.servers;

    if (worker->opts.replicas == 0)
        return conn;
    return conn < servers ? conn + servers : conn - servers;
}

/* What it has sent before its end counts. */
static void
replicas_drain(struct rdt_ps_worker *worker, uint32_t conn)
{
    struct rdt_error scrap;

    rdti_error_init(&scrap, RDT_RANK_UNKNOWN);
    for (uint32_t i = 0; i <= worker->opts.slots; i++)
        if (rdti_ps_conn_receive(worker, conn, RDT_NO_WAIT, &scrap) != RDT_OK)
            return;
}

static void
replicas_drop_requests(struct rdti_ps_conn *conn)
{
    for (uint32_t i = 0; i < RDTI_PS_SLOTS_MAX; i++)
        conn->slots[i].purpose = RDTI_PS_FREE;
    conn->in_flight = 0;
    conn->of_operation = 0;
    conn->pushes = 0;
}

static void
replicas_switch(struct rdt_ps_worker *worker, uint32_t server, uint32_t to)
{
    worker->active[server] = to;
    worker->conns[to].owes_switch = true;
    for (uint32_t i = 0; i < worker->view_count; i++)
        rdti_ps_rows_switch(worker, worker->views[i], server);
    if (worker->op.purpose == RDTI_PS_FOR_PULL)
        rdti_ps_rows_restart(worker, server);
}

/* A call is for one replica: the caller asks the other one. */
static void
replicas_end_call(struct rdt_ps_worker *worker, uint32_t conn, bool has_request)
{
    struct rdti_ps_operation *op = &worker->op;
    const uint32_t server = conn % worker->opts.servers;

    if (op->purpose != RDTI_PS_FOR_CALL || op->server != conn || (op->next > 0 && !has_request))
        return;
    op->next = 1;
    if (op->error.status == RDT_OK)
        (void)rdti_error_set(&op->error, RDT_ECANCELED, 0,
                             "server %u is lost, and its other replica goes on", server);
}

/* The other replica goes on. */
static void
replicas_go_on(struct rdt_ps_worker *worker, uint32_t conn)
{
    const uint32_t server = conn % worker->opts.servers;
    struct rdti_ps_conn *lost = &worker->conns[conn];
    const bool has_request = lost->of_operation > 0;

    lost->is_lost = true;
    worker->losses++;
    replicas_drop_requests(lost);
    if (worker->active[server] == conn)
        replicas_switch(worker, server, rdti_ps_replicas_other(worker, conn));
    replicas_end_call(worker, conn, has_request);
    if (worker->op.purpose == RDTI_PS_FOR_LEASE && server == 0)
        rdti_ps_leasing_lose(worker);
}

rdt_status
rdti_ps_replicas_lose(struct rdt_ps_worker *worker, uint32_t conn, rdt_status status,
                      struct rdt_error *err)
{
    const uint32_t server = conn % worker->opts.servers;
    const uint32_t other = rdti_ps_replicas_other(worker, conn);
    struct rdti_ps_conn *lost = &worker->conns[conn];

    if (status != RDT_EPEER || other == conn || lost->has_failed)
        return status;
    replicas_drain(worker, conn);
    if (lost->has_failed) /* it has not died: it ends the job */
        return rdti_error_copy(err, &worker->ended);
    if (worker->conns[other].is_lost)
        return status;
    rdti_log(RDT_LOG_WARN, "server %u: this worker goes on with the %s, as %s", server,
             conn < other ? "backup" : "primary alone", err != NULL ? err->message : "it is lost");
    replicas_go_on(worker, conn);
    return RDT_OK;
}

void
rdti_ps_replicas_ticked(struct rdt_ps_worker *worker, uint32_t conn)
{
    if (worker->opts.replicas > 0 && worker->active[conn % worker->opts.servers] == conn)
        worker->op.primary_ns = rdti_now_ns();
}

void
rdti_ps_replicas_end_tick(struct rdt_ps_worker *worker)
{
    if (worker->op.primary_ns != 0)
        worker->backup_ns += rdti_now_ns() - worker->op.primary_ns;
}

rdt_status
rdti_ps_replicas_send(struct rdt_ps_worker *worker, uint32_t *blocked, struct rdt_error *err)
{
    if (worker->op.purpose == RDTI_PS_FOR_LEAVE)
        return RDT_OK; /* it may have left already */
    for (uint32_t conn = worker->opts.servers; conn < worker->conn_count; conn++) {
        struct rdti_ps_request request = {.op = RDTI_PS_OP_SWITCH};
        struct rdti_ps_conn *backup = &worker->conns[conn];
        uint32_t slot;

        if (!backup->owes_switch || backup->is_lost)
            continue;
        *blocked = conn;
        rdt_status status = rdti_ps_conn_find_slot(worker, conn, &slot);
        if (status == RDT_OK)
            status = rdti_ps_conn_post(worker, conn, slot, &request, RDTI_PS_FOR_SWITCH, err);
        if (status == RDT_OK) {
            backup->owes_switch = false;
            backup->is_switched = true;
        } else if (status != RDT_EAGAIN) {
            status = rdti_ps_replicas_lose(worker, conn, status, err);
        }
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

uint32_t
rdt_ps_worker_active(const rdt_ps_worker *worker, uint32_t server)
{
    return server < worker->opts.servers ? worker->active[server] : UINT32_MAX;
}

uint32_t
rdt_ps_worker_is_lost(const rdt_ps_worker *worker, uint32_t connection)
{
    return connection < worker->conn_count && worker->conns[connection].is_lost;
}

uint32_t
rdt_ps_worker_losses(const rdt_ps_worker *worker)
{
    return worker->losses;
}

uint64_t
rdt_ps_worker_backup_ns(const rdt_ps_worker *worker)
{
    return worker->backup_ns;
}
