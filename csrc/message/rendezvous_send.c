/* SPDX-License-Identifier: Apache-2.0
 * The sender of a rendezvous: RTS, then either the receiver reads and answers FIN, or it grants
 * places (CTS) that are written one by one, each followed by a FIN from here. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/request_impl.h"
#include "wire/notify.h"

#define RTS_UNITS \
    ((RDTI_MESSAGE_HEAD_BYTES + RDTI_RTS_BYTES + RDTI_MESSAGE_ALIGN - 1) / RDTI_MESSAGE_ALIGN)
#define IDS_AT_FIRST 16

/* ---- Numbers ----------------------------------------------------------------------------- */

/* Makes sure that there is a free number. */
static rdt_status
rndv_send_need_id(struct rdti_mailbox *m, struct rdt_error *err)
{
    if (m->free_id != 0)
        return RDT_OK;
    const uint32_t cap = m->id_cap == 0 ? IDS_AT_FIRST : m->id_cap * 2;
    struct rdti_id *ids = realloc(m->ids, sizeof(*ids) * cap);
    if (ids == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "numbers for %u messages in flight", cap);
    for (uint32_t i = m->id_cap; i < cap; i++)
        ids[i] = (struct rdti_id){.next_free = i + 1 < cap ? i + 2 : 0};
    m->free_id = m->id_cap + 1;
    m->ids = ids;
    m->id_cap = cap;
    return RDT_OK;
}

/* Returns the number, if the request has one. */
static void
rndv_send_offer_forget(struct rdti_request *request)
{
    struct rdti_mailbox *m = request->mailbox;

    if (!request->has_id)
        return;
    const uint32_t index = (uint32_t)request->id;
    request->has_id = false;
    request->forget = NULL;
    m->ids[index].request = NULL;
    m->ids[index].generation++;
    m->ids[index].next_free = m->free_id;
    m->free_id = index + 1;
}

static uint64_t
rndv_send_take_id(struct rdti_mailbox *m, struct rdti_request *send)
{
    const uint32_t index = m->free_id - 1;
    struct rdti_id *entry = &m->ids[index];

    m->free_id = entry->next_free;
    entry->request = send;
    send->forget = rndv_send_offer_forget;
    return (uint64_t)entry->generation << 32 | index;
}

static struct rdti_request *
rndv_send_find(const struct rdti_mailbox *m, uint64_t id)
{
    const uint64_t index = id & UINT32_MAX;

    if (index >= m->id_cap || m->ids[index].generation != id >> 32)
        return NULL;
    return m->ids[index].request;
}

/* ---- Offers ------------------------------------------------------------------------------ */

static void
rndv_send_describe_source(const struct rdti_mailbox *m, const struct rdti_request *send,
                          struct rdti_rts *rts)
{
    const struct rdti_transport_caps caps = rdti_endpoint_caps(m->ep);
    uint32_t segment;
    uint64_t segment_off;

    if (caps.can_map && send->len_bytes > 0 &&
        rdti_arena_locate(m->ctx->arena, send->buf, send->len_bytes, &segment, &segment_off) ==
            RDT_OK)
        rts->has_region = rdti_regions_place_at(m->ctx->regions, send->buf, send->len_bytes,
                                                &rts->place, NULL) == RDT_OK;
    if (caps.is_same_host) {
        rts->has_process = 1;
        rts->pid = (uint32_t)getpid();
        rts->addr = (uintptr_t)send->buf;
        rts->canary_addr = (uintptr_t)&m->canary;
        rts->canary = m->canary;
    }
}

static void
rndv_send_offer_cancel(struct rdti_request *send, const struct rdt_error *err)
{
    if (send->is_cancelled)
        return;
    send->is_cancelled = true;
    send->error = *err;
    if (send->state ==
        RDTI_REQUEST_OFFERED) /* the receiver may be reading: it answers once it is done */
        rdti_mailbox_nack(send->mailbox, send->id, RDTI_ID_IS_MINE, err);
}

bool
rdti_offer_send(struct rdti_mailbox *m, struct rdti_request *send)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_rts rts = {0};
    uint64_t off;
    struct rdti_parcel *parcel =
        rdti_parcel_new(&m->mailboxes->parcels, RDTI_MESSAGE_HEAD_BYTES + RDTI_RTS_BYTES);
    rdt_status status = rndv_send_need_id(m, &err);

    if (status == RDT_OK && parcel == NULL)
        status = rdti_error_set(&err, RDT_ENOMEM, 0, "a message of %d bytes", RDTI_RTS_BYTES);
    if (status != RDT_OK) {
        rdti_parcel_free(parcel);
        rdti_stand_not_sent(m, send);
        rdti_request_finish(send, status, &err);
        return true;
    }
    const bool is_summed = rdti_context_verifies(m->ctx) && rdti_endpoint_caps(m->ep).is_same_host;
    if (!is_summed && !rdti_ring_reserve(m, RTS_UNITS, RDTI_RING_RESERVE_UNITS, &off)) {
        rdti_parcel_free(parcel);
        return false;
    }
    rndv_send_describe_source(m, send, &rts);
    rdti_request_become(send, RDTI_REQUEST_OFFERED);
    send->cancel = rndv_send_offer_cancel;
    send->id = rndv_send_take_id(m, send);
    send->has_id = true;
    rdti_list_remove(&send->link);
    rdti_list_append(&m->offered, &send->link);
    parcel->head = (struct rdti_message){
        .kind = RDTI_MESSAGE_RTS,
        .source = (uint16_t)send->scope->rank,
        .group_id = send->scope->id,
        .tag = send->tag,
        .len_bytes = send->len_bytes,
        .id = send->id,
    };
    if (send->has_desc)
        rdti_message_set_desc(&parcel->head, &send->desc);
    rdti_rts_encode(&rts, parcel->bytes + RDTI_MESSAGE_HEAD_BYTES);
    parcel->body_bytes = RDTI_RTS_BYTES;
    rdti_count(&m->ctx->counters.mailbox_rendezvous, 1);
    rdti_count(&m->ctx->counters.control_messages[RDTI_TRAFFIC_DYNAMIC], 1);
    if (!is_summed) {
        rdti_ring_place(m, parcel, off);
        return true;
    }
    /* Both in sequence: the flush that called sends them. */
    if (rdti_sums_tell_message(m, send))
        rdti_list_append(&m->control, &parcel->link);
    else
        rdti_parcel_free(parcel);
    return true;
}

/* ---- Answers ----------------------------------------------------------------------------- */

/* Ends a send, at once or when the lane has let go of it. */
static void
rndv_send_end(struct rdti_request *send, rdt_status status, const struct rdt_error *err)
{
    rndv_send_offer_forget(send);
    if (status != RDT_OK && !send->is_cancelled) {
        send->is_cancelled = true;
        send->error = *err;
        send->error.status = status;
    }
    if (send->ops > 0) {
        rdti_request_become(send, RDTI_REQUEST_LANE);
        return;
    }
    if (send->is_cancelled)
        rdti_request_finish(send, (rdt_status)send->error.status, &send->error);
    else
        rdti_request_finish(send, RDT_OK, NULL);
}

/* The lane reports that a granted place was written. It must not be called from here. */
static void
rndv_send_on_written(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    struct rdt_transfer *t = RDTI_CONTAINER(op, struct rdt_transfer, op);
    struct rdti_request *send = t->owner;
    struct rdti_engine *engine = send->scope->ctx->engine;
    const int32_t rank = rdti_scope_global_rank(send->scope, send->peer);
    struct rdt_error why = {.peer_rank = rank};

    if (status != RDT_OK && status != RDT_ESTALE && err != NULL) /* the endpoint is about to end */
        why = *err;
    else if (status != RDT_OK) /* the receiver has taken its place back */
        (void)rdti_error_set_rank(&why, RDT_EPEER, rank, "%s gave up the receive of this message",
                                  rdti_scope_rank_name(send->scope, send->peer).text);
    rdti_engine_enter(engine); /* a lane may complete in any thread */
    rdti_transfer_op_complete(op, status, err);
    send->ops--;
    /* Else the receiver would take the bytes there for the message. */
    if (status != RDT_OK && status != RDT_ESTALE)
        rdti_endpoint_on_lane_error(send->mailbox->ep, &why);
    if (status != RDT_OK && send->is_in_place)
        rdti_stand_on_refused(send->mailbox, send->id);
    if (status != RDT_OK)
        rndv_send_end(send, (rdt_status)why.status, &why);
    else if (send->state == RDTI_REQUEST_LANE && send->ops == 0)
        rndv_send_end(send, RDT_OK, NULL);
    rdti_engine_leave(engine);
}

static rdt_status
rndv_send_post(struct rdti_mailbox *m, struct rdti_request *send, const struct rdti_place *place,
               uint64_t len_bytes, enum rdti_traffic traffic, uint32_t notification,
               struct rdt_error *err)
{
    struct rdt_transfer *t = rdti_transfer_new(m->ctx->pool);

    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.traffic = (uint8_t)traffic;
    t->op.notify = notification;
    t->op.is_relied_on = true; /* a FIN or its sums may follow it */
    t->op.remote = place->region;
    t->op.block = (struct rdt_block){.src = (const char *)send->buf + send->done_bytes,
                                     .len_bytes = len_bytes,
                                     .dst_off = place->off_bytes};
    t->op.blocks = &t->op.block;
    t->op.block_count = 1;
    t->op.len_bytes = len_bytes;
    t->op.complete = rndv_send_on_written;
    t->owner = send;
    send->ops++;
    send->done_bytes += len_bytes; /* before: a lane may end the send inside the call */
    const rdt_status status = rdti_endpoint_post(m->ep, t, err);
    if (status != RDT_OK) {
        send->ops--;
        rdti_transfer_discard(t);
        return status;
    }
    rdt_transfer_free(t);
    return RDT_OK;
}

/* Writes the next bytes there. With sums the notification comes after these. On an error nothing
 * was sent. May end the send, and the path. */
static rdt_status
rndv_send_write(struct rdti_mailbox *m, struct rdti_request *send, const struct rdti_place *place,
                uint64_t len_bytes, enum rdti_traffic traffic, uint32_t notification,
                struct rdt_error *err)
{
    const bool has_sums = send->is_in_place || !rdti_endpoint_caps(m->ep).is_same_host;

    if (!has_sums || !rdti_context_verifies(m->ctx))
        return rndv_send_post(m, send, place, len_bytes, traffic, notification, err);
    uint32_t *sums = rdti_sums_of_granted(send, len_bytes);
    if (sums == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "sums of %llu bytes",
                              (unsigned long long)len_bytes);
    const rdt_status status =
        rndv_send_post(m, send, place, len_bytes, traffic, RDTI_NOTIFY_NONE, err);
    if (status == RDT_OK) /* after the write: the lane delivers in this order */
        rdti_sums_tell_written(m, &place->region, place->off_bytes, len_bytes, sums, notification);
    free(sums);
    return status;
}

bool
rdti_offer_write(struct rdti_mailbox *m, struct rdti_request *send, const struct rdti_place *place,
                 uint32_t notification)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    rdti_request_become(send, RDTI_REQUEST_LANE);
    send->cancel = rndv_send_offer_cancel;
    rdti_list_append(&m->offered, &send->link);
    const rdt_status status =
        rndv_send_write(m, send, place, send->len_bytes, RDTI_TRAFFIC_PLANNED, notification, &err);
    if (status != RDT_OK)
        rndv_send_end(send, status, &err);
    return status == RDT_OK;
}

rdt_status
rdti_offer_on_cts(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                  struct rdt_error *err)
{
    struct rdti_request *send = rndv_send_find(m, head->id);
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_place place;
    rdt_status status = rdti_place_decode(body, RDTI_PLACE_BYTES, &place, err);

    if (status != RDT_OK)
        return status;
    if (send == NULL || send->is_cancelled)
        return RDT_OK; /* the receiver has, or gets, the local NACK */
    const uint64_t granted = place.region.len_bytes - place.off_bytes;
    const uint64_t left = send->len_bytes - send->done_bytes;
    const uint64_t len_bytes = granted < left ? granted : left;
    if (len_bytes == 0 || !rdti_place_holds(&place, rdti_endpoint_uuid(m->ep), len_bytes))
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                                   "mailbox: rank %d grants a place that is empty or not its own",
                                   (int)rdti_endpoint_rank(m->ep));
    const uint64_t id = send->id;
    if (len_bytes == left)
        rdti_request_become(send, RDTI_REQUEST_LANE);
    status =
        rndv_send_write(m, send, &place, len_bytes, RDTI_TRAFFIC_DYNAMIC, RDTI_NOTIFY_NONE, &why);
    if (status != RDT_OK) {
        rndv_send_end(send, status, &why);
        rdti_mailbox_nack(m, id, RDTI_ID_IS_MINE, &why);
        return RDT_OK;
    }
    /* After the write: the lane delivers in this order. */
    rdti_mailbox_control(m, RDTI_MESSAGE_FIN, id, RDTI_ID_IS_MINE, 0, NULL, 0);
    return RDT_OK;
}

rdt_status
rdti_offer_on_fin(struct rdti_mailbox *m, uint64_t id, struct rdt_error *err)
{
    struct rdti_request *send = rndv_send_find(m, id);

    if (send == NULL)
        return RDT_OK;
    if (send->done_bytes > 0)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(m->ep),
                                   "mailbox: rank %d ends a message that it asked us to write",
                                   (int)rdti_endpoint_rank(m->ep));
    rndv_send_end(send, RDT_OK, NULL);
    return RDT_OK;
}

void
rdti_offer_on_nack(struct rdti_mailbox *m, uint64_t id, const struct rdt_error *why)
{
    struct rdti_request *send = rndv_send_find(m, id);

    if (send == NULL)
        return;
    const bool knows = send->is_cancelled; /* this is the answer to the local NACK */
    rdti_mailbox_note_cause(m, send->scope, why);
    rndv_send_end(send, (rdt_status)why->status, why);
    if (!knows)
        rdti_mailbox_nack(m, id, RDTI_ID_IS_MINE, why);
}
