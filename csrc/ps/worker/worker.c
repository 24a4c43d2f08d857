/* SPDX-License-Identifier: Apache-2.0
 * A worker: its memory, its servers and its tables. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/description.h"
#include "ps/worker/worker_impl.h"

static rdt_status
worker_check(const struct rdt_ps_worker_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size != sizeof(*opts))
        return rdti_error_set(err, RDT_EINVAL, 0, "worker: not a struct of this version");
    if (opts->servers == 0 || opts->servers > RDTI_PS_SERVERS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u servers: 1 to %d are possible", opts->servers,
                              RDTI_PS_SERVERS_MAX);
    if (opts->mode < RDT_PS_SYNC || opts->mode > RDT_PS_SSP)
        return rdti_error_set(err, RDT_EINVAL, 0, "mode %u is not RDT_PS_SYNC, ASYNC or SSP",
                              opts->mode);
    if (opts->replicas > 1 || opts->servers <= opts->replicas)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "%u replicas of %u servers: 0, or 1 of at least 2 servers",
                              opts->replicas, opts->servers);
    return rdti_ps_check_slots(opts->slots, opts->slot_bytes, err);
}

static rdt_status
worker_allocate(rdt_ps_worker *worker, struct rdt_error *err)
{
    const struct rdt_ps_worker_opts *opts = &worker->opts;
    rdt_status status = RDT_OK;

    worker->conn_count = opts->servers * (1 + opts->replicas);
    worker->conns = calloc(worker->conn_count, sizeof(*worker->conns));
    worker->active = calloc(opts->servers, sizeof(*worker->active));
    worker->starts = calloc(opts->servers + 1, sizeof(*worker->starts));
    worker->cursors = calloc(worker->conn_count, sizeof(*worker->cursors));
    worker->queues = calloc(worker->conn_count, sizeof(*worker->queues));
    if (worker->conns == NULL || worker->active == NULL || worker->starts == NULL ||
        worker->cursors == NULL || worker->queues == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "worker: no memory for %u servers",
                              opts->servers);
    for (uint32_t server = 0; server < opts->servers; server++)
        worker->active[server] = server;
    for (uint32_t conn = 0; conn < worker->conn_count && status == RDT_OK; conn++)
        status = rdt_region_alloc(worker->ctx, rdti_ps_outbox_bytes(opts->slots, opts->slot_bytes),
                                  RDT_REGION_ZERO, &worker->conns[conn].outbox, err);
    return status;
}

rdt_status
rdt_ps_worker_create(rdt_context *ctx, const struct rdt_ps_worker_opts *opts, rdt_ps_worker **out,
                     struct rdt_error *err)
{
    rdt_ps_worker *worker;
    rdt_status status = worker_check(opts, err);

    if (status != RDT_OK)
        return status;
    worker = calloc(1, sizeof(*worker));
    if (worker == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a worker of %zu B", sizeof(*worker));
    worker->ctx = ctx;
    worker->opts = *opts;
    worker->kernels = rdti_ps_kernels_best();
    status = worker_allocate(worker, err);
    if (status != RDT_OK) {
        rdt_ps_worker_destroy(worker);
        return status;
    }
    *out = worker;
    return RDT_OK;
}

static void
worker_free_view(struct rdti_ps_view *view)
{
    if (view == NULL)
        return;
    free(view->ids);
    free(view->rows);
    free(view->versions);
    free(view);
}

void
rdt_ps_worker_drop(rdt_ps_worker *worker)
{
    if (worker->op.purpose == RDTI_PS_FOR_TICK) /* servers may have its first half */
        return;
    if (worker->push_error.status == RDT_OK)
        (void)rdti_error_set(&worker->push_error, RDT_ECANCELED, 0,
                             "the program gave up what it had pushed since the last clock()");
}

void
rdt_ps_worker_destroy(rdt_ps_worker *worker)
{
    if (worker == NULL)
        return;
    rdt_ps_worker_abandon(worker);
    for (uint32_t i = 0; i < worker->view_count; i++)
        worker_free_view(worker->views[i]);
    for (uint32_t conn = 0; worker->conns != NULL && conn < worker->conn_count; conn++) {
        rdt_region_free(worker->conns[conn].outbox, NULL, NULL);
        rdt_region_free(worker->conns[conn].staging, NULL, NULL);
    }
    rdti_ps_gradients_free(worker);
    rdti_ps_merge_free(&worker->merge);
    free(worker->order);
    free(worker->active);
    free(worker->starts);
    free(worker->cursors);
    free(worker->queues);
    free(worker->conns);
    free(worker);
}

static rdt_status
worker_check_server(const rdt_ps_worker *worker, uint32_t server, struct rdt_error *err)
{
    if (server < worker->conn_count)
        return RDT_OK;
    return rdti_error_set(err, RDT_EINVAL, 0, "server %u is not one of %u", server,
                          worker->conn_count);
}

rdt_status
rdt_ps_worker_outbox(rdt_ps_worker *worker, uint32_t server, struct rdt_remote_region *out,
                     struct rdt_error *err)
{
    const rdt_status status = worker_check_server(worker, server, err);

    return status == RDT_OK ? rdt_region_export(worker->conns[server].outbox, out, err) : status;
}

rdt_status
rdt_ps_worker_attach(rdt_ps_worker *worker, uint32_t server, rdt_endpoint *ep,
                     const struct rdt_remote_region *inbox, struct rdt_error *err)
{
    const uint64_t bytes = rdti_ps_inbox_bytes(worker->opts.slots, worker->opts.slot_bytes);
    rdt_status status = worker_check_server(worker, server, err);

    if (status != RDT_OK)
        return status;
    struct rdti_ps_conn *conn = &worker->conns[server];
    if (conn->ep != NULL || inbox->len_bytes != bytes)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "server %u is attached already, or its inbox of %llu B has not "
                              "%llu B",
                              server, (unsigned long long)inbox->len_bytes,
                              (unsigned long long)bytes);
    status = rdt_endpoint_wait_ready(ep, RDT_TIMEOUT_DEFAULT, err);
    if (status != RDT_OK)
        return status;
    if (worker->opts.maps && rdt_endpoint_transport(ep) == RDT_TRANSPORT_SHM)
        status = rdt_endpoint_map(ep, inbox, (void **)(void *)&conn->mapped, err);
    else
        status = rdt_region_alloc(worker->ctx, bytes, RDT_REGION_ZERO, &conn->staging, err);
    if (status != RDT_OK)
        return status;
    conn->inbox = *inbox;
    conn->ep = ep;
    return RDT_OK;
}

static rdt_status
worker_map_rows(rdt_ps_worker *worker, struct rdti_ps_view *view,
                const struct rdt_remote_region *rows, struct rdt_error *err)
{
    for (uint32_t conn = 0; conn < worker->conn_count; conn++) {
        const uint32_t server = conn % worker->opts.servers;
        const uint64_t count =
            rdti_ps_is_pooled(&view->opts) ? 0 : rdti_ps_map_rows(&view->map, server);
        const uint64_t want = rdti_ps_rows_bytes(&view->opts, count);
        void *addr = NULL;
        if (worker->conns[conn].is_lost)
            continue;
        if (rows[conn].len_bytes != want)
            return rdti_error_set(err, RDT_EINVAL, 0, "server %u has %llu B of rows, not %llu B",
                                  server, (unsigned long long)rows[conn].len_bytes,
                                  (unsigned long long)want);
        if (worker->conns[conn].mapped == NULL || rdti_ps_is_pooled(&view->opts))
            continue;
        const rdt_status status = rdt_endpoint_map(worker->conns[conn].ep, &rows[conn], &addr, err);
        if (status == RDT_EPEER && worker->opts.replicas > 0)
            continue; /* the next operation notices the loss, or ends by it */
        if (status != RDT_OK)
            return status;
        view->rows[conn] = addr;
        view->versions[conn] =
            (const _Atomic uint32_t *)(const void *)(view->rows[conn] +
                                                     count * rdti_ps_row_stride(view->opts.dim));
    }
    for (uint32_t server = 0; server < worker->opts.servers; server++)
        rdti_ps_rows_switch(worker, view, server);
    return RDT_OK;
}

rdt_status
rdt_ps_worker_add_table(rdt_ps_worker *worker, const struct rdt_ps_table_opts *opts,
                        const uint32_t *ids, const struct rdt_remote_region *rows,
                        uint32_t *table_out, struct rdt_error *err)
{
    const uint32_t conns = worker->conn_count;
    struct rdti_ps_view *view;
    rdt_status status = rdti_ps_description_check(opts, err);

    if (status != RDT_OK)
        return status;
    if (opts->dim * sizeof(float) + sizeof(uint64_t) > worker->opts.slot_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0, "a row of dim %u does not fit a slot of %u B",
                              opts->dim, worker->opts.slot_bytes);
    view = calloc(1, sizeof(*view));
    if (view == NULL || worker->view_count == RDTI_PS_WORKER_TABLES_MAX) {
        free(view);
        return rdti_error_set(err, RDT_ENOMEM, 0, "no room for table %u", worker->view_count);
    }
    view->opts = *opts;
    view->ids = calloc(conns, sizeof(*view->ids));
    view->rows = calloc(conns, sizeof(*view->rows));
    view->versions = calloc(conns, sizeof(*view->versions));
    if (view->ids == NULL || view->rows == NULL || view->versions == NULL)
        status = rdti_error_set(err, RDT_ENOMEM, 0, "a table over %u servers", conns);
    if (status == RDT_OK)
        status = rdti_ps_map_init(&view->map, worker->opts.servers, opts->rows, err);
    view->map.is_hashed = opts->keys != RDT_PS_KEYS_DENSE;
    if (status == RDT_OK)
        status = worker_map_rows(worker, view, rows, err);
    if (status != RDT_OK) {
        worker_free_view(view);
        return status;
    }
    memcpy(view->ids, ids, conns * sizeof(*ids));
    *table_out = worker->view_count;
    worker->views[worker->view_count++] = view;
    return RDT_OK;
}

void
rdt_ps_worker_write_clock(rdt_ps_worker *worker, uint64_t clock)
{
    worker->clock = clock;
}

uint64_t
rdt_ps_worker_clock(const rdt_ps_worker *worker)
{
    return worker->clock;
}

rdt_status
rdt_ps_worker_use(rdt_ps_worker *worker, uint64_t clock, struct rdt_error *err)
{
    if (clock > worker->clock)
        return rdti_error_set(err, RDT_EINVAL, 0, "rows of clock %llu, and the clock is %llu",
                              (unsigned long long)clock, (unsigned long long)worker->clock);
    if (worker->clock - clock > worker->age)
        worker->age = worker->clock - clock;
    return RDT_OK;
}

rdt_status
rdt_ps_worker_call(rdt_ps_worker *worker, uint32_t server, const uint8_t *bytes, uint64_t len_bytes,
                   uint8_t *answer, uint64_t cap, uint64_t *len_out, uint64_t timeout_ns,
                   struct rdt_error *err)
{
    rdt_status status;

    if (server >= worker->conn_count || len_bytes > worker->opts.slot_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0, "a call of %llu B to server %u: at most %u B",
                              (unsigned long long)len_bytes, server, worker->opts.slot_bytes);
    if (worker->conns[server].is_lost)
        return rdti_error_set(err, RDT_ECANCELED, 0,
                              "server %u is lost, and its other replica goes on",
                              server % worker->opts.servers);
    status = rdti_ps_operation_begin(worker, RDTI_PS_FOR_CALL, len_bytes, err);
    if (status != RDT_OK)
        return status;
    worker->op.server = server;
    worker->op.bytes = bytes;
    worker->op.len_bytes = len_bytes;
    worker->op.answer = answer;
    worker->op.cap = cap;
    worker->op.len_out = len_out;
    return rdt_ps_worker_resume(worker, timeout_ns, err);
}

uint32_t
rdt_ps_worker_is_mapped(const rdt_ps_worker *worker, uint32_t server)
{
    return server < worker->conn_count && worker->conns[server].mapped != NULL;
}
