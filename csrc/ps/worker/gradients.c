/* SPDX-License-Identifier: Apache-2.0
 * Dense models of a worker: gradients are written where the servers sum them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ps/worker/worker_impl.h"

static void
gradients_free_one(struct rdti_ps_gradients *dense)
{
    free(dense->starts);
    free(dense->ids);
    free(dense->slots);
    *dense = (struct rdti_ps_gradients){0};
}

void
rdti_ps_gradients_free(struct rdt_ps_worker *worker)
{
    for (uint32_t i = 0; i < worker->dense_count; i++)
        gradients_free_one(&worker->dense[i]);
}

static rdt_status
gradients_check(const rdt_ps_worker *worker, uint64_t floats, const uint64_t *starts,
                const struct rdt_remote_region *slots, struct rdt_error *err)
{
    const uint32_t servers = worker->opts.servers;

    if (worker->dense_count == RDTI_PS_DENSE_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "there are %d dense models already",
                              RDTI_PS_DENSE_MAX);
    for (uint32_t conn = 0; conn < worker->conn_count; conn++) {
        const uint32_t server = conn % servers;
        if (starts[server] > starts[server + 1] ||
            (!worker->conns[conn].is_lost &&
             slots[conn].len_bytes != (starts[server + 1] - starts[server]) * sizeof(float)))
            return rdti_error_set(err, RDT_EINVAL, 0, "dense: server %u has a slot of %llu B",
                                  server, (unsigned long long)slots[conn].len_bytes);
    }
    if (starts[0] != 0 || starts[servers] != floats)
        return rdti_error_set(err, RDT_EINVAL, 0, "dense: the servers' parts are not %llu floats",
                              (unsigned long long)floats);
    return RDT_OK;
}

rdt_status
rdt_ps_worker_add_dense(rdt_ps_worker *worker, const float *gradients, uint64_t floats,
                        const uint64_t *starts, const uint32_t *ids,
                        const struct rdt_remote_region *slots, uint32_t *dense_out,
                        struct rdt_error *err)
{
    const uint32_t servers = worker->opts.servers;
    const rdt_status status = gradients_check(worker, floats, starts, slots, err);

    if (status != RDT_OK)
        return status;
    struct rdti_ps_gradients dense = {
        .floats = gradients,
        .starts = malloc((servers + 1) * sizeof(*dense.starts)),
        .ids = malloc(worker->conn_count * sizeof(*dense.ids)),
        .slots = malloc(worker->conn_count * sizeof(*dense.slots)),
    };
    if (dense.starts == NULL || dense.ids == NULL || dense.slots == NULL) {
        gradients_free_one(&dense);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a dense model over %u servers", servers);
    }
    memcpy(dense.starts, starts, (servers + 1) * sizeof(*dense.starts));
    memcpy(dense.ids, ids, worker->conn_count * sizeof(*dense.ids));
    memcpy(dense.slots, slots, worker->conn_count * sizeof(*dense.slots));
    *dense_out = worker->dense_count;
    worker->dense[worker->dense_count++] = dense;
    return RDT_OK;
}

static rdt_status
gradients_check_use(const rdt_ps_worker *worker, uint32_t dense, struct rdt_error *err)
{
    if (worker->op.purpose != RDTI_PS_FREE)
        return rdti_error_set(err, RDT_EBUSY, 0, "another operation of this worker is in flight");
    if (dense >= worker->dense_count)
        return rdti_error_set(err, RDT_EINVAL, 0, "dense model %u does not exist", dense);
    return rdti_ps_operation_check(worker, RDTI_PS_FOR_PUSH, err);
}

rdt_status
rdt_ps_worker_commit_dense(rdt_ps_worker *worker, uint32_t dense, struct rdt_error *err)
{
    const rdt_status status = gradients_check_use(worker, dense, err);

    if (status == RDT_OK)
        worker->dense[dense].is_pushed = true;
    return status;
}

rdt_status
rdt_ps_worker_push_dense(rdt_ps_worker *worker, uint32_t dense, uint64_t first, uint64_t count,
                         struct rdt_error *err)
{
    rdt_status checked = gradients_check_use(worker, dense, err);

    if (checked != RDT_OK)
        return checked;
    const struct rdti_ps_gradients *one = &worker->dense[dense];
    if (first > one->starts[worker->opts.servers] ||
        count > one->starts[worker->opts.servers] - first)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "dense: gradients %" PRIu64 " to %" PRIu64 " do not exist", first,
                              first + count);
    for (uint32_t conn = 0; conn < worker->conn_count; conn++) {
        const uint32_t server = conn % worker->opts.servers;
        const uint64_t from = first > one->starts[server] ? first : one->starts[server];
        const uint64_t part_end = one->starts[server + 1];
        const uint64_t end = first + count < part_end ? first + count : part_end;
        if (from >= end || worker->conns[conn].is_lost)
            continue;
        rdt_status status = rdt_endpoint_write(worker->conns[conn].ep, one->floats + from,
                                               (end - from) * sizeof(float), &one->slots[conn],
                                               (from - one->starts[server]) * sizeof(float),
                                               RDT_NOTIFY_NONE, NULL, err);
        if (status != RDT_OK)
            status = rdti_ps_replicas_lose(worker, conn, status, err);
        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}
