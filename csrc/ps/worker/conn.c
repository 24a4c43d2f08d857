/* SPDX-License-Identifier: Apache-2.0
 * A worker's connection to one server: slots, requests and answers. */
#include <string.h>

#include "base/error.h"
#include "ps/worker/worker_impl.h"

rdt_status
rdti_ps_conn_find_slot(struct rdt_ps_worker *worker, uint32_t server, uint32_t *out)
{
    const struct rdti_ps_conn *conn = &worker->conns[server];

    for (uint32_t slot = 0; slot < worker->opts.slots; slot++)
        if (conn->slots[slot].purpose == RDTI_PS_FREE) {
            *out = slot;
            return RDT_OK;
        }
    return RDT_EAGAIN;
}

static uint8_t *
conn_slot(struct rdt_ps_worker *worker, uint32_t server, uint32_t slot)
{
    const struct rdti_ps_conn *conn = &worker->conns[server];
    uint8_t *start = conn->mapped != NULL ? conn->mapped : rdt_region_addr(conn->staging);

    return start + slot * rdti_ps_slot_stride(worker->opts.slot_bytes);
}

uint8_t *
rdti_ps_conn_payload(struct rdt_ps_worker *worker, uint32_t server, uint32_t slot)
{
    return conn_slot(worker, server, slot) + RDTI_PS_HEAD_BYTES;
}

/* A source that is not mapped stays as it is until its answer has come: no handle is needed. */
rdt_status
rdti_ps_conn_post(struct rdt_ps_worker *worker, uint32_t server, uint32_t slot,
                  struct rdti_ps_request *request, uint32_t purpose, struct rdt_error *err)
{
    struct rdti_ps_conn *conn = &worker->conns[server];
    uint8_t *at = conn_slot(worker, server, slot);
    const uint64_t len_bytes =
        conn->mapped != NULL ? 0 : (uint64_t)RDTI_PS_HEAD_BYTES + request->payload_bytes;
    rdt_status status;

    request->sequence = conn->sequence + 1;
    rdti_ps_request_encode(request, at);
    status =
        rdt_endpoint_write(conn->ep, at, len_bytes, &conn->inbox,
                           slot * rdti_ps_slot_stride(worker->opts.slot_bytes), slot, NULL, err);
    if (status != RDT_OK)
        return status;
    conn->sequence++;
    conn->slots[slot].purpose = purpose;
    conn->slots[slot].is_given_up = false;
    conn->slots[slot].sequence = request->sequence;
    conn->in_flight++;
    if (purpose == RDTI_PS_FOR_PUSH)
        conn->pushes++;
    else if (purpose != RDTI_PS_FOR_HOLDERS)
        conn->of_operation++;
    return RDT_OK;
}

static rdt_status
conn_take_failure(struct rdt_ps_worker *worker, uint32_t server, struct rdt_error *err)
{
    char text[RDTI_PS_TEXT_BYTES];

    worker->conns[server].has_failed = true;
    rdti_ps_answer_text(rdt_region_addr(worker->conns[server].outbox), sizeof(text), text);
    if (worker->ended.status == RDT_OK)
        (void)rdti_error_set(&worker->ended, RDT_EPEER, 0, "server %u ended the job: %s",
                             server % worker->opts.servers, text);
    return rdti_error_copy(err, &worker->ended);
}

static rdt_status
conn_take_answer(struct rdt_ps_worker *worker, uint32_t server, uint32_t number,
                 struct rdt_error *err)
{
    struct rdti_ps_conn *conn = &worker->conns[server];
    struct rdti_ps_worker_slot *slot = &conn->slots[number];
    const uint8_t *at = (const uint8_t *)rdt_region_addr(conn->outbox) + RDTI_PS_TEXT_BYTES +
                        number * rdti_ps_slot_stride(worker->opts.slot_bytes);
    uint8_t head[RDTI_PS_HEAD_BYTES];
    struct rdti_ps_answer answer;

    memcpy(head, at, sizeof(head));
    const rdt_status status =
        rdti_ps_answer_decode(head, sizeof(head), worker->opts.slot_bytes, &answer, err);
    if (status != RDT_OK)
        return status;
    if (slot->purpose == RDTI_PS_FREE || answer.sequence != slot->sequence)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "server %u answered request %llu in slot %u with %d", server,
                              (unsigned long long)answer.sequence, number, answer.status);
    const struct rdti_ps_worker_slot done = *slot;
    slot->purpose = RDTI_PS_FREE;
    conn->in_flight--;
    if (done.purpose == RDTI_PS_FOR_PUSH)
        conn->pushes--;
    else if (!done.is_given_up && done.purpose != RDTI_PS_FOR_HOLDERS)
        conn->of_operation--;
    if (done.purpose == RDTI_PS_FOR_LEAVE && answer.status == RDT_OK)
        conn->has_let_go = true;
    if (!done.is_given_up)
        rdti_ps_operation_answered(worker, server, &done, (rdt_status)answer.status,
                                   at + RDTI_PS_HEAD_BYTES, answer.payload_bytes);
    return RDT_OK;
}

rdt_status
rdti_ps_conn_take(struct rdt_ps_worker *worker, uint32_t server, uint32_t notification,
                  struct rdt_error *err)
{
    if (notification == RDTI_PS_NOTIFY_FAILED)
        return conn_take_failure(worker, server, err);
    if (notification < worker->opts.slots)
        return conn_take_answer(worker, server, notification, err);
    return rdti_error_set(err, RDT_EPROTO, 0, "server %u sent notification %u", server,
                          notification);
}

rdt_status
rdti_ps_conn_receive(struct rdt_ps_worker *worker, uint32_t server, uint64_t wait_ns,
                     struct rdt_error *err)
{
    rdt_endpoint *ep = worker->conns[server].ep;
    uint32_t notification;
    rdt_status status = rdt_endpoint_wait_notify(ep, wait_ns, &notification, err);

    if (status != RDT_OK)
        return status == RDT_EAGAIN ? RDT_OK : status;
    status = rdti_ps_conn_take(worker, server, notification, err);
    /* A server may close after its last answer, which does not concern this operation. */
    while (status == RDT_OK && worker->conns[server].in_flight > 0) {
        status = rdt_endpoint_wait_notify(ep, RDT_NO_WAIT, &notification, err);
        if (status == RDT_EAGAIN)
            return RDT_OK;
        if (status == RDT_OK)
            status = rdti_ps_conn_take(worker, server, notification, err);
    }
    return status;
}
