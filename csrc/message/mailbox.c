/* SPDX-License-Identifier: Apache-2.0
 * The outbound side of a mailbox: what is sent, and in which order. */
#include "message/mailbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/crypto.h"
#include "base/error.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/request_impl.h"

/* Credit is sent alone once this part of the ring, or of the budget of unexpected bytes, was not
 * reported. The reserve holds as many CREDITs as a ring brings about. */
#define CREDIT_PARTS 4

/* ---- Going out --------------------------------------------------------------------------- */

void
rdti_mailbox_update_async(struct rdti_mailbox *m)
{
    const bool is_waiting = m->is_ready && !m->has_ended &&
                            (!rdti_list_is_empty(&m->sends) || !rdti_list_is_empty(&m->control));

    if (is_waiting == m->is_async)
        return;
    m->is_async = is_waiting;
    rdti_engine_async_add(m->ctx->engine, is_waiting ? 1 : -1);
    /* Credit may have come before any thread listened for it; an attending thread makes a pass. */
    if (is_waiting && !rdti_engine_is_attended(m->ctx->engine))
        rdti_engine_poke(m->ctx->engine);
}

/* Answers to requests that a peer may make as often as it likes. */
static bool
mailbox_is_answer(const struct rdti_message *head)
{
    return head->kind == RDTI_MESSAGE_SUMS_READ || head->kind == RDTI_MESSAGE_STOOD;
}

static void
mailbox_queue(struct rdti_mailbox *m, const struct rdti_message *head, const void *body,
              uint32_t body_bytes, bool is_quiet)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_parcel *parcel;

    if (m->has_ended)
        return;
    parcel = rdti_parcel_new(&m->mailboxes->parcels, RDTI_MESSAGE_HEAD_BYTES + body_bytes);
    if (parcel == NULL) {
        (void)rdti_error_set(&err, RDT_ENOMEM, 0, "a mailbox message of %u bytes", body_bytes);
        rdti_endpoint_fail(m->ep, &err, false);
        return;
    }
    parcel->head = *head;
    parcel->body_bytes = body_bytes;
    parcel->is_quiet = is_quiet;
    if (body_bytes > 0)
        memcpy(parcel->bytes + RDTI_MESSAGE_HEAD_BYTES, body, body_bytes);
    rdti_list_append(&m->control, &parcel->link);
    m->answer_count += mailbox_is_answer(head);
    if (head->kind == RDTI_MESSAGE_STAND || head->kind == RDTI_MESSAGE_PLACE)
        rdti_count(&m->ctx->counters.control_messages[RDTI_TRAFFIC_PLANNED], 1);
    else if (head->kind == RDTI_MESSAGE_CTS || head->kind == RDTI_MESSAGE_GROW ||
             head->kind == RDTI_MESSAGE_RING)
        rdti_count(&m->ctx->counters.control_messages[RDTI_TRAFFIC_DYNAMIC], 1);
}

void
rdti_mailbox_queue(struct rdti_mailbox *m, const struct rdti_message *head, const void *body,
                   uint32_t body_bytes)
{
    mailbox_queue(m, head, body, body_bytes, false);
}

void
rdti_mailbox_queue_quietly(struct rdti_mailbox *m, const struct rdti_message *head)
{
    mailbox_queue(m, head, NULL, 0, true);
}

void
rdti_mailbox_control(struct rdti_mailbox *m, enum rdti_message_kind kind, uint64_t id, uint64_t tag,
                     uint64_t len_bytes, const void *body, uint32_t body_bytes)
{
    const struct rdti_message head = {.kind = (uint8_t)kind,
                                      .id = id,
                                      .tag = tag,
                                      .len_bytes = len_bytes};

    rdti_mailbox_queue(m, &head, body, body_bytes);
    rdti_mailbox_flush(m);
}

void
rdti_mailbox_show_interest(struct rdti_mailbox *m, uint64_t group_id, uint32_t rank)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_CREDIT,
                                      .group_id = group_id,
                                      .source = (uint16_t)rank};

    rdti_mailbox_queue(m, &head, NULL, 0);
    rdti_mailbox_flush(m);
}

void
rdti_mailbox_nack(struct rdti_mailbox *m, uint64_t id, uint64_t whose, const struct rdt_error *why)
{
    const struct rdti_message head = {
        .kind = RDTI_MESSAGE_NACK,
        .id = id,
        .tag = whose,
        .len_bytes = (uint64_t)(int64_t)why->status,
        .count = (uint64_t)(int64_t)why->peer_rank,
    };
    struct rdti_nack nack;
    uint8_t body[RDTI_NACK_BYTES];

    memcpy(nack.text, why->message, sizeof(nack.text)); /* the encoder cuts it where UTF-8 allows */
    rdti_nack_encode(&nack, body);
    rdti_mailbox_queue(m, &head, body, sizeof(body));
    rdti_mailbox_flush(m);
}

void
rdti_mailbox_note_cause(const struct rdti_mailbox *m, struct rdti_scope *scope,
                        const struct rdt_error *why)
{
    if (why->status != RDT_EPEER || why->peer_rank == RDT_RANK_UNKNOWN)
        return;
    if (why->peer_rank != rdti_endpoint_rank(m->ep))
        rdti_scope_note_cause(scope, why);
    else if (scope->refusal.status == RDT_OK)
        scope->refusal = *why;
}

static bool
mailbox_is_within_budget(const struct rdti_mailbox *m, uint64_t footprint)
{
    return (uint64_t)(m->eager_sent - m->eager_delivered) + footprint <= RDTI_UNEXPECTED_MAX_BYTES;
}

void
rdti_mailbox_ask_growth(struct rdti_mailbox *m)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_GROW};

    if (m->has_asked_growth)
        return;
    m->has_asked_growth = true;
    rdti_mailbox_queue(m, &head, NULL, 0);
}

/* False: no space. */
static bool
mailbox_try_eager(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                  struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err)
{
    const uint32_t units = (uint32_t)(rdti_message_footprint(head->len_bytes) / RDTI_MESSAGE_ALIGN);
    const bool is_copied =
        head->len_bytes > RDTI_MESSAGE_INLINE_BYTES && !rdti_endpoint_caps(m->ep).is_same_host;
    struct rdti_parcel *parcel =
        rdti_parcel_new(&m->mailboxes->parcels,
                        RDTI_MESSAGE_HEAD_BYTES + (is_copied ? head->len_bytes : 0));
    uint64_t off;

    if (parcel == NULL) {
        *status_out = rdti_error_set(err, RDT_ENOMEM, 0, "a message of %llu bytes",
                                     (unsigned long long)head->len_bytes);
        return true;
    }
    if (!rdti_ring_reserve(m, units, RDTI_RING_RESERVE_UNITS, &off)) {
        rdti_parcel_free(parcel);
        return false;
    }
    parcel->head = *head;
    parcel->head.kind = RDTI_MESSAGE_EAGER;
    if (rdti_context_verifies(m->ctx))
        parcel->head.id = rdti_crc32c(src, head->len_bytes);
    *status_out = rdti_ring_place_eager(m, parcel, off, src, t, err);
    return true;
}

bool
rdti_mailbox_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                      struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err)
{
    if (!m->is_ready || m->has_ended || m->has_next_ring || !rdti_list_is_empty(&m->sends) ||
        !rdti_list_is_empty(&m->control) || head->len_bytes > rdti_ring_eager_max(m, m->tx_units) ||
        !mailbox_is_within_budget(m, rdti_message_footprint(head->len_bytes)) ||
        (rdti_ring_is_filling(m) && !m->has_asked_growth))
        return false;
    return mailbox_try_eager(m, head, src, t, status_out, err);
}

void
rdti_mailbox_send(struct rdti_mailbox *m, struct rdti_request *request)
{
    request->mailbox = m;
    request->state = RDTI_REQUEST_QUEUED;
    rdti_list_append(&m->sends, &request->link);
    rdti_mailbox_flush(m);
}

/* True: the send has left the queue. */
static bool
mailbox_start_send(struct rdti_mailbox *m, struct rdti_request *send)
{
    struct rdti_message head = {.source = (uint16_t)send->scope->rank,
                                .group_id = send->scope->id,
                                .tag = send->tag,
                                .len_bytes = send->len_bytes};
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_status status;

    if (rdti_stand_is_awaited(m, head.group_id, send->tag, send->has_desc, send->len_bytes))
        return rdti_offer_send(m, send);
    if (send->len_bytes > rdti_ring_eager_max(m, m->tx_units)) {
        if (send->len_bytes <= rdti_ring_eager_max(m, RDTI_RING_LARGE_UNITS))
            rdti_mailbox_ask_growth(m);
        return rdti_offer_send(m, send);
    }
    if (!mailbox_is_within_budget(m, rdti_message_footprint(send->len_bytes)))
        return rdti_offer_send(m, send);
    if (send->has_desc)
        rdti_message_set_desc(&head, &send->desc);
    if (rdti_ring_is_filling(m))
        rdti_mailbox_ask_growth(m);
    if (!mailbox_try_eager(m, &head, send->buf, send->transfer, &status, &err)) {
        rdti_mailbox_ask_growth(m);
        return false;
    }
    if (status == RDT_OK) {
        rdti_request_release(send);
        return true;
    }
    rdti_stand_not_sent(m, send);
    rdti_request_finish(send, status, &err);
    return true;
}

static void
mailbox_switch_ring(struct rdti_mailbox *m)
{
    struct rdti_parcel *parcel = rdti_parcel_new(&m->mailboxes->parcels, RDTI_MESSAGE_HEAD_BYTES);
    uint64_t off;

    if (parcel == NULL || !rdti_ring_reserve(m, 1, RDTI_RING_RESERVE_UNITS, &off)) {
        rdti_parcel_free(parcel); /* the small ring works too, and the next flush tries again */
        return;
    }
    parcel->head = (struct rdti_message){.kind = RDTI_MESSAGE_SWITCH};
    rdti_ring_place(m, parcel, off);
    m->ring = m->next_ring;
    m->has_next_ring = false;
    m->tx_units = RDTI_RING_LARGE_UNITS;
    m->tx_pos = 0;
}

/* False: a message is left that has no space. */
static bool
mailbox_flush_control(struct rdti_mailbox *m)
{
    uint64_t off;

    while (!rdti_list_is_empty(&m->control)) {
        struct rdti_parcel *parcel = RDTI_CONTAINER(m->control.next, struct rdti_parcel, link);
        const uint64_t footprint = RDTI_MESSAGE_HEAD_BYTES + (uint64_t)parcel->body_bytes;
        const uint32_t units =
            (uint32_t)((footprint + RDTI_MESSAGE_ALIGN - 1) / RDTI_MESSAGE_ALIGN);
        if (!rdti_ring_reserve(m, units, RDTI_RING_RESERVE_UNITS, &off))
            return false;
        rdti_list_remove(&parcel->link);
        m->answer_count -= mailbox_is_answer(&parcel->head);
        rdti_ring_place(m, parcel, off);
    }
    return true;
}

static void
mailbox_report_credit(struct rdti_mailbox *m)
{
    uint64_t off;

    if (!m->is_ready || m->has_ended ||
        (m->rx_consumed - m->rx_reported < m->rx_units / CREDIT_PARTS &&
         m->delivered - m->delivered_reported < RDTI_UNEXPECTED_MAX_BYTES / CREDIT_PARTS))
        return;
    struct rdti_parcel *parcel = rdti_parcel_new(&m->mailboxes->parcels, RDTI_MESSAGE_HEAD_BYTES);
    if (parcel == NULL || !rdti_ring_reserve(m, 1, 0, &off)) {
        rdti_parcel_free(parcel); /* still owed: the next arrival or delivery tries again */
        return;
    }
    parcel->head = (struct rdti_message){.kind = RDTI_MESSAGE_CREDIT};
    rdti_ring_place(m, parcel, off);
    rdti_count(&m->ctx->counters.credits_alone, 1);
}

void
rdti_mailbox_flush(struct rdti_mailbox *m)
{
    bool has_space = true;

    if (!m->is_ready || m->has_ended)
        return;
    if (m->has_next_ring)
        mailbox_switch_ring(m);
    while (has_space && (!rdti_list_is_empty(&m->control) || !rdti_list_is_empty(&m->sends))) {
        has_space = mailbox_flush_control(m);
        if (has_space && !rdti_list_is_empty(&m->sends))
            has_space =
                mailbox_start_send(m, RDTI_CONTAINER(m->sends.next, struct rdti_request, link));
    }
    if (!has_space)
        (void)mailbox_flush_control(m); /* a send may have asked for a larger ring */
    mailbox_report_credit(m);
    rdti_mailbox_update_async(m);
}

void
rdti_mailbox_delivered(struct rdti_mailbox *m, uint64_t bytes)
{
    m->delivered += (uint32_t)bytes;
    mailbox_report_credit(m);
}
