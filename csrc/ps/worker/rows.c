/* SPDX-License-Identifier: Apache-2.0
 * Pulls and pushes of rows: merged, sorted by server, and cut into requests. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/model/description.h"
#include "ps/model/version.h"
#include "ps/worker/worker_impl.h"
#include "wire/bytes.h"

enum { READS_MOST = 1000 }; /* of a row that changes */

rdt_status
rdti_ps_rows_scatter(struct rdt_ps_worker *worker, const struct rdti_ps_worker_slot *slot,
                     const uint8_t *payload, uint32_t payload_bytes)
{
    const uint32_t dim = worker->op.view->opts.dim;
    const uint64_t row_bytes = dim * sizeof(float);
    uint8_t *found = worker->op.found;
    const uint8_t *marks = payload + slot->count * row_bytes;

    if (payload_bytes != slot->count * (row_bytes + (found != NULL)))
        return RDT_EPROTO;
    for (uint64_t i = 0; found != NULL && i < slot->count; i++)
        found[worker->order[slot->first + i]] = marks[i] != 0;
    for (uint64_t i = 0; i < slot->count; i++)
        memcpy(worker->op.out + worker->order[slot->first + i] * dim, payload + i * row_bytes,
               row_bytes);
    return RDT_OK;
}

static rdt_status
rows_reserve(struct rdt_ps_worker *worker, uint64_t count, struct rdt_error *err)
{
    if (count <= worker->order_room)
        return RDT_OK;
    uint64_t *order = malloc(count * sizeof(*order));
    if (order == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for the order of %llu ids",
                              (unsigned long long)count);
    free(worker->order);
    worker->order = order;
    worker->order_room = count;
    return RDT_OK;
}

/* A counting sort of the indices of ids. */
static rdt_status
rows_sort(struct rdt_ps_worker *worker, const struct rdti_ps_view *view, const uint64_t *ids,
          uint64_t count, struct rdt_error *err)
{
    const uint32_t servers = worker->opts.servers;
    const rdt_status status = rows_reserve(worker, count, err);

    if (status != RDT_OK)
        return status;
    memset(worker->starts, 0, (servers + 1) * sizeof(*worker->starts));
    for (uint64_t i = 0; i < count; i++)
        worker->starts[rdti_ps_map_owner(&view->map, ids[i]) + 1]++;
    for (uint32_t server = 0; server < servers; server++) {
        worker->starts[server + 1] += worker->starts[server];
        worker->cursors[server] = worker->starts[server];
    }
    for (uint64_t i = 0; i < count; i++)
        worker->order[worker->cursors[rdti_ps_map_owner(&view->map, ids[i])]++] = i;
    for (uint32_t conn = 0; conn < worker->conn_count; conn++)
        worker->cursors[conn] = worker->starts[conn % servers];
    return RDT_OK;
}

static rdt_status
rows_check_ids(const struct rdti_ps_view *view, const int64_t *ids, uint64_t count,
               struct rdt_error *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (!view->map.is_hashed && (ids[i] < 0 || (uint64_t)ids[i] >= view->map.rows))
            return rdti_error_set(err, RDT_EINVAL, 0, "id %lld is not from 0 to %lld",
                                  (long long)ids[i], (long long)view->map.rows - 1);
    return RDT_OK;
}

/* Rows of one request: both it and its answer fit a slot. */
static uint64_t
rows_most(const struct rdt_ps_worker *worker)
{
    return worker->opts.slot_bytes / (sizeof(uint64_t) + worker->op.view->opts.dim * sizeof(float));
}

static void
rows_fill(struct rdt_ps_worker *worker, uint8_t *payload, uint64_t first, uint64_t count)
{
    const struct rdti_ps_operation *op = &worker->op;
    const uint64_t row_bytes = op->view->opts.dim * sizeof(float);
    const bool is_push = op->purpose == RDTI_PS_FOR_PUSH;
    uint8_t *rows = payload + count * sizeof(uint64_t);

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t at = worker->order[first + i];
        const uint64_t id = is_push ? worker->merge.ids[at] : (uint64_t)op->ids[at];
        rdti_put_u64(payload + i * sizeof(uint64_t), id);
        if (is_push)
            memcpy(rows + i * row_bytes, op->rows + at * op->view->opts.dim, row_bytes);
    }
}

void
rdti_ps_rows_restart(struct rdt_ps_worker *worker, uint32_t server)
{
    worker->cursors[worker->active[server]] = worker->starts[server];
}

void
rdti_ps_rows_switch(struct rdt_ps_worker *worker, struct rdti_ps_view *view, uint32_t server)
{
    const uint32_t conn = worker->active[server];

    view->rows[server] = view->rows[conn];
    view->versions[server] = view->versions[conn];
    view->is_mapped = !rdti_ps_is_pooled(&view->opts);
    for (uint32_t i = 0; i < worker->opts.servers; i++)
        view->is_mapped = view->is_mapped && worker->conns[worker->active[i]].mapped != NULL &&
                          (view->rows[i] != NULL || rdti_ps_map_rows(&view->map, i) == 0);
}

/* Sends as much on one connection as it has slots for. RDT_EAGAIN: there is more. */
rdt_status
rdti_ps_rows_send(struct rdt_ps_worker *worker, uint32_t conn, struct rdt_error *err)
{
    struct rdti_ps_operation *op = &worker->op;
    const uint64_t end = worker->starts[conn % worker->opts.servers + 1];
    const uint64_t most = rows_most(worker);
    const bool is_push = op->purpose == RDTI_PS_FOR_PUSH;
    uint32_t slot;
    rdt_status status = RDT_OK;

    while (worker->cursors[conn] < end && status == RDT_OK) {
        const uint64_t left = end - worker->cursors[conn];
        const uint64_t count = left < most ? left : most;
        const uint64_t row_bytes = is_push ? op->view->opts.dim * sizeof(float) : 0;
        struct rdti_ps_request request = {
            .op = is_push ? RDTI_PS_OP_PUSH : RDTI_PS_OP_PULL,
            .flags = is_push             ? RDTI_PS_FLAG_UNIQUE
                     : op->found != NULL ? RDTI_PS_FLAG_FIND
                                         : 0,
            .table = op->view->ids[conn],
            .map_version = op->view->map.version + (worker->conns[conn].is_switched ? 1 : 0),
            .count = (uint32_t)count,
            .payload_bytes = (uint32_t)(count * (sizeof(uint64_t) + row_bytes)),
        };
        status = rdti_ps_conn_find_slot(worker, conn, &slot);
        if (status != RDT_OK)
            return status;
        worker->conns[conn].slots[slot].first = worker->cursors[conn];
        worker->conns[conn].slots[slot].count = count;
        rows_fill(worker, rdti_ps_conn_payload(worker, conn, slot), worker->cursors[conn], count);
        status = rdti_ps_conn_post(worker, conn, slot, &request, op->purpose, err);
        if (status == RDT_OK)
            worker->cursors[conn] += count;
    }
    return status;
}

static void
rows_gather(const struct rdti_ps_view *view, const int64_t *ids, uint64_t count, float *out)
{
    const uint32_t dim = view->opts.dim;
    const uint64_t stride = rdti_ps_row_stride(dim);

    for (uint64_t i = 0; i < count; i++) {
        const uint64_t id = (uint64_t)ids[i];
        memcpy(out + i * dim,
               view->rows[rdti_ps_map_owner(&view->map, id)] +
                   rdti_ps_map_local(&view->map, id) * stride,
               dim * sizeof(float));
    }
}

/* Reads a row until it is one of one version. False: the server was writing it for too long, as
 * one that is stopped or dead does. */
static bool
rows_read_whole(const struct rdti_ps_view *view, uint64_t id, float *out)
{
    const uint32_t server = rdti_ps_map_owner(&view->map, id);
    const uint64_t local = rdti_ps_map_local(&view->map, id);
    const _Atomic uint32_t *version = view->versions[server] + local;
    const uint8_t *row = view->rows[server] + local * rdti_ps_row_stride(view->opts.dim);

    for (uint32_t tries = 0; tries < READS_MOST; tries++) {
        const uint32_t before = rdti_ps_version_read(version);
        memcpy(out, row, view->opts.dim * sizeof(float));
        if (rdti_ps_version_is_same(version, before))
            return true;
    }
    return false;
}

/* Reads rows in place. False: a server must be asked for them. */
static bool
rows_read(const struct rdti_ps_view *view, const int64_t *ids, uint64_t count, float *out)
{
    if (view->opts.consistency == RDT_PS_RELAXED) {
        rows_gather(view, ids, count, out);
        return true;
    }
    for (uint64_t i = 0; i < count; i++)
        if (!rows_read_whole(view, (uint64_t)ids[i], out + i * view->opts.dim))
            return false;
    return true;
}

/* Fills the merge with the distinct ids. Rows are copied only if an id repeats. */
static rdt_status
rows_merge(struct rdt_ps_worker *worker, const int64_t *ids, const float *rows, uint64_t count,
           struct rdt_error *err)
{
    const struct rdti_ps_view *view = worker->op.view;
    const bool is_last = rdti_ps_rule_is_last(&view->opts.rule) != 0;
    struct rdti_ps_merge *merge = &worker->merge;
    bool is_new = true;
    rdt_status status = rdti_ps_merge_begin(merge, view->opts.dim, count, err);

    worker->op.rows = rows;
    for (uint64_t i = 0; i < count && is_new && status == RDT_OK; i++)
        (void)rdti_ps_merge_find(merge, (uint64_t)ids[i], &is_new);
    if (is_new || status != RDT_OK)
        return status;
    status = rdti_ps_merge_begin(merge, view->opts.dim, count, err);
    if (status == RDT_OK)
        status = rdti_ps_merge_reserve_rows(merge, count, err);
    for (uint64_t i = 0; i < count && status == RDT_OK; i++)
        rdti_ps_merge_row(merge, worker->kernels, (uint64_t)ids[i], rows + i * view->opts.dim,
                          is_last);
    worker->op.rows = merge->rows;
    return status;
}

static rdt_status
rows_begin(struct rdt_ps_worker *worker, uint32_t purpose, uint32_t table, const int64_t *ids,
           uint64_t count, struct rdt_error *err)
{
    if (table >= worker->view_count)
        return rdti_error_set(err, RDT_EINVAL, 0, "table %u does not exist", table);
    rdt_status status = rows_check_ids(worker->views[table], ids, count, err);
    if (status == RDT_OK)
        status =
            rdti_ps_operation_begin(worker, purpose,
                                    count * worker->views[table]->opts.dim * sizeof(float), err);
    if (status == RDT_OK)
        worker->op.view = worker->views[table];
    return status;
}

/* Ends an operation that was begun, and of which nothing was sent. */
static rdt_status
rows_undo(struct rdt_ps_worker *worker, rdt_status status)
{
    rdti_ps_operation_finish(worker, status);
    return status;
}

rdt_status
rdt_ps_worker_find(rdt_ps_worker *worker, uint32_t table, const int64_t *ids, uint64_t count,
                   float *out, uint8_t *found, uint64_t timeout_ns, struct rdt_error *err)
{
    rdt_status status = rows_begin(worker, RDTI_PS_FOR_PULL, table, ids, count, err);

    if (status != RDT_OK)
        return status;
    while (worker->op.view->is_mapped && rows_read(worker->op.view, ids, count, out)) {
        const uint32_t losses = worker->losses;
        if (found != NULL)
            memset(found, 1, count);
        status = rdti_ps_operation_poll(worker, err); /* a dead one's are old */
        if (status != RDT_OK || worker->losses == losses)
            return rows_undo(worker, status);
    }
    worker->op.ids = ids;
    worker->op.out = out;
    worker->op.found = found;
    /* int64_t and uint64_t may alias, and the ids were checked. */
    status = rows_sort(worker, worker->op.view, (const uint64_t *)ids, count, err);
    if (status != RDT_OK)
        return rows_undo(worker, status);
    return rdt_ps_worker_resume(worker, timeout_ns, err);
}

rdt_status
rdt_ps_worker_pull(rdt_ps_worker *worker, uint32_t table, const int64_t *ids, uint64_t count,
                   float *out, uint64_t timeout_ns, struct rdt_error *err)
{
    return rdt_ps_worker_find(worker, table, ids, count, out, NULL, timeout_ns, err);
}

rdt_status
rdt_ps_worker_push(rdt_ps_worker *worker, uint32_t table, const int64_t *ids, const float *rows,
                   uint64_t count, uint64_t timeout_ns, struct rdt_error *err)
{
    rdt_status status = rows_begin(worker, RDTI_PS_FOR_PUSH, table, ids, count, err);

    if (status != RDT_OK)
        return status;
    if (worker->push_error.status != RDT_OK) /* the step is dropped already */
        return rows_undo(worker, rdti_error_copy(err, &worker->push_error));
    status = rows_merge(worker, ids, rows, count, err);
    if (status == RDT_OK)
        status = rows_sort(worker, worker->op.view, worker->merge.ids, worker->merge.count, err);
    if (status != RDT_OK)
        return rows_undo(worker, status);
    worker->op.view->is_pushed = true;
    return rdt_ps_worker_resume(worker, timeout_ns, err);
}
