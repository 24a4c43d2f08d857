/* SPDX-License-Identifier: Apache-2.0
 * Taking the messages that arrive in the local ring. Bytes from peers are not trusted. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "wire/endpoint/sums.h"

static rdt_status
dispatch_broken(const struct rdti_mailbox *m, struct rdt_error *err, const char *how)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);

    return rdti_error_set_rank(err, RDT_EPROTO, rank, "mailbox: rank %d %s", (int)rank, how);
}

static rdt_status
dispatch_take_credit(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    if (head->consumed - m->tx_consumed > m->tx_sent - m->tx_consumed)
        return dispatch_broken(m, err, "says that it took more out of its ring than was put there");
    if (head->delivered - m->eager_delivered > m->eager_sent - m->eager_delivered)
        return dispatch_broken(m, err, "says that it received more than was sent");
    m->tx_consumed = head->consumed;
    m->eager_delivered = head->delivered;
    return RDT_OK;
}

static rdt_status
dispatch_on_grow(struct rdti_mailbox *m, struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdt_remote_region remote;
    uint8_t body[RDT_REMOTE_REGION_BYTES];

    if (m->large != NULL)
        return dispatch_broken(m, err, "asks for a second large ring");
    rdt_status status =
        rdti_regions_alloc(m->ctx->regions, RDTI_RING_LARGE_BYTES, 0, &m->large, &why);
    if (status == RDT_OK)
        status = rdt_region_export(m->large, &remote, &why);
    if (status != RDT_OK) {
        rdti_log(RDT_LOG_WARN, "no larger mailbox ring for rank %d, messages to us are slower: %s",
                 (int)rdti_endpoint_rank(m->ep), why.message);
        rdt_region_free(m->large, NULL, NULL);
        m->large = NULL;
        return RDT_OK;
    }
    rdt_remote_region_encode(&remote, body);
    rdti_mailbox_control(m, RDTI_MESSAGE_RING, 0, 0, 0, body, sizeof(body));
    return RDT_OK;
}

static rdt_status
dispatch_on_ring(struct rdti_mailbox *m, const uint8_t *body, struct rdt_error *err)
{
    struct rdt_remote_region remote;
    const rdt_status status = rdt_remote_region_decode(body, RDT_REMOTE_REGION_BYTES, &remote, err);

    if (status != RDT_OK)
        return dispatch_broken(m, err, "offers a ring in bytes that are none");
    if (!m->has_asked_growth || m->has_next_ring || m->tx_units != RDTI_RING_SMALL_UNITS)
        return dispatch_broken(m, err, "offers a larger ring that was not requested");
    if (memcmp(remote.owner, rdti_endpoint_uuid(m->ep), RDT_UUID_BYTES) != 0 ||
        remote.len_bytes < RDTI_RING_LARGE_BYTES)
        return dispatch_broken(m, err, "offers a larger ring that is not its own or too small");
    m->next_ring = remote;
    m->has_next_ring = true;
    return RDT_OK;
}

static rdt_status
dispatch_on_switch(struct rdti_mailbox *m, struct rdt_error *err)
{
    if (m->large == NULL || m->is_large)
        return dispatch_broken(m, err, "switches to a ring that it was not given");
    m->is_large = true; /* take_message() moves there once this message is counted */
    return RDT_OK;
}

/* True where a receiver may fetch a message by itself. */
static bool
dispatch_is_summed_before(const struct rdti_mailbox *m)
{
    return rdti_context_verifies(m->ctx) && rdti_endpoint_caps(m->ep).is_same_host;
}

static rdt_status
dispatch_on_rts(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                struct rdt_error *err)
{
    struct rdti_rts rts;
    rdt_status status = rdti_rts_decode(body, RDTI_RTS_BYTES, &rts, err);

    if (status != RDT_OK)
        return status;
    if (rts.has_region && !rdti_place_holds(&rts.place, rdti_endpoint_uuid(m->ep), head->len_bytes))
        return dispatch_broken(m, err, "offers a message outside of its own memory");
    if (m->offer_count >= RDTI_OFFERS_MAX)
        return dispatch_broken(m, err, "sent more messages than can wait for a receive");
    if (dispatch_is_summed_before(m) && head->len_bytes > 0 &&
        (m->offered_sums == NULL || m->offered_id != head->id ||
         m->offered_bytes != head->len_bytes))
        return dispatch_broken(m, err, "offers a message without its sums");
    status = m->mailboxes->sink->on_arrival(m, head, NULL, &rts, err);
    free(m->offered_sums); /* unless they were taken */
    m->offered_sums = NULL;
    return status;
}

static rdt_status
dispatch_on_eager(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                  struct rdt_error *err)
{
    const bool is_inlined = head->len_bytes <= RDTI_MESSAGE_INLINE_BYTES;

    const uint64_t footprint = rdti_message_footprint(head->len_bytes);

    if ((uint64_t)(m->eager_received - m->delivered) + footprint > RDTI_UNEXPECTED_MAX_BYTES)
        return dispatch_broken(m, err, "sent more bytes that are not received than it may");
    m->eager_received += (uint32_t)footprint;
    return m->mailboxes->sink->on_arrival(m, head, is_inlined ? head->inlined : body, NULL, err);
}

static rdt_status
dispatch_on_nack(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
                 struct rdt_error *err)
{
    const int32_t peer_rank = rdti_endpoint_rank(m->ep);
    const int64_t sent = (int64_t)head->len_bytes;
    const int64_t rank = (int64_t)head->count;
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_nack nack;
    const rdt_status decoded = rdti_nack_decode(body, RDTI_NACK_BYTES, &nack, err);

    if (decoded != RDT_OK)
        return decoded;
    if (sent >= RDT_OK || sent < RDT_ECORRUPT || rank < RDT_RANK_UNKNOWN || rank > INT32_MAX)
        return dispatch_broken(m, err, "refuses a message with a status or a rank that is none");
    /* Cancelled or closed there does not mean cancelled or closed here. */
    const bool is_theirs = sent == RDT_ECANCELED || sent == RDT_ECLOSED;
    const rdt_status status = is_theirs ? RDT_EPEER : (rdt_status)sent;
    if (rank == RDT_RANK_UNKNOWN || rank == peer_rank)
        (void)rdti_error_set_rank(&why, status, peer_rank, "rank %d ended the message: %s",
                                  (int)peer_rank, nack.text);
    else
        (void)rdti_error_set_rank(&why, status, (int32_t)rank, "%s", nack.text);
    if (head->tag == RDTI_ID_IS_YOURS)
        rdti_offer_on_nack(m, head->id, &why);
    else
        rdti_receive_on_nack(m, head->id, &why);
    return RDT_OK;
}

/* The same for messages of sums; 0 for others. Any count: the ring bounds it, then its decoder. */
static uint64_t
dispatch_sums_bytes_of(const struct rdti_message *head)
{
    if (head->kind < RDTI_MESSAGE_SUMS || head->kind > RDTI_MESSAGE_SUMS_READ)
        return 0;
    if (head->kind == RDTI_MESSAGE_SUMS_GET)
        return RDTI_SUMS_GET_BYTES;
    return head->count <= RDTI_SUMS_MAX ? RDTI_SUMS_FIXED_BYTES + 4 * head->count : UINT64_MAX;
}

/* Bytes after the head, as far as the kind and the head say; RDT_EPROTO for more than any ring can
 * hold. */
static rdt_status
dispatch_body_bytes_of(const struct rdti_mailbox *m, const struct rdti_message *head, uint64_t *out,
                       struct rdt_error *err)
{
    switch ((enum rdti_message_kind)head->kind) {
    case RDTI_MESSAGE_EAGER:
        *out = head->len_bytes <= RDTI_MESSAGE_INLINE_BYTES ? 0 : head->len_bytes;
        break;
    case RDTI_MESSAGE_RTS:
        *out = RDTI_RTS_BYTES;
        break;
    case RDTI_MESSAGE_CTS:
    case RDTI_MESSAGE_PLACE:
        *out = RDTI_PLACE_BYTES;
        break;
    case RDTI_MESSAGE_RING:
        *out = RDT_REMOTE_REGION_BYTES;
        break;
    case RDTI_MESSAGE_NACK:
        *out = RDTI_NACK_BYTES;
        break;
    default:
        *out = dispatch_sums_bytes_of(head);
        break;
    }
    const uint64_t room =
        (uint64_t)(m->rx_units - m->rx_pos) * RDTI_MESSAGE_ALIGN - RDTI_MESSAGE_HEAD_BYTES;
    if (*out > room)
        return dispatch_broken(m, err, "sent a message that leaves the ring");
    return RDT_OK;
}

static rdt_status
dispatch_sums(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
              uint64_t body_bytes, struct rdt_error *err)
{
    if (!rdti_context_verifies(m->ctx))
        return dispatch_broken(m, err, "sent sums that were not requested");
    switch ((enum rdti_message_kind)head->kind) {
    case RDTI_MESSAGE_SUMS:
        return rdti_sums_on_message_sums(m, head, body, body_bytes, err);
    case RDTI_MESSAGE_WRITTEN:
        return rdti_sums_on_written(m, body, body_bytes, err);
    case RDTI_MESSAGE_SUMS_GET:
        return rdti_sums_on_get(m, head, body, err);
    default:
        return rdti_sums_on_read(m, head, body, body_bytes, err);
    }
}

/* over budget: a branch for each kind of message. */
static rdt_status
dispatch(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *in_ring,
         uint64_t body_bytes, struct rdt_error *err)
{
    uint8_t body
        [RDTI_SUMS_BYTES_MAX]; /* the largest of all but EAGER; a copy, as the peer may write on */

    if (head->kind == RDTI_MESSAGE_EAGER)
        return dispatch_on_eager(m, head, in_ring, err);
    memcpy(body, in_ring, body_bytes);
    switch ((enum rdti_message_kind)head->kind) {
    case RDTI_MESSAGE_RTS:
        return dispatch_on_rts(m, head, body, err);
    case RDTI_MESSAGE_CTS:
        return rdti_offer_on_cts(m, head, body, err);
    case RDTI_MESSAGE_FIN:
        if (head->tag == RDTI_ID_IS_YOURS)
            return rdti_offer_on_fin(m, head->id, err);
        rdti_receive_on_fin(m, head->id);
        return RDT_OK;
    case RDTI_MESSAGE_CREDIT:
        if (head->group_id == 0)
            return RDT_OK;
        return m->mailboxes->sink->on_interest(m, head->group_id, head->source, err);
    case RDTI_MESSAGE_GROW:
        return dispatch_on_grow(m, err);
    case RDTI_MESSAGE_RING:
        return dispatch_on_ring(m, body, err);
    case RDTI_MESSAGE_SWITCH:
        return dispatch_on_switch(m, err);
    case RDTI_MESSAGE_NACK:
        return dispatch_on_nack(m, head, body, err);
    case RDTI_MESSAGE_STAND:
        return rdti_stand_on_stand(m, head, err);
    case RDTI_MESSAGE_STOOD:
        return rdti_stand_on_stood(m, head, err);
    case RDTI_MESSAGE_PLACE:
        return rdti_stand_on_place(m, head, body, err);
    case RDTI_MESSAGE_POSTED:
        return rdti_stand_on_posted(m, head, err);
    case RDTI_MESSAGE_PAD:
        return dispatch_broken(m, err, "sent padding in the place of a message");
    default:
        return dispatch_sums(m, head, body, body_bytes, err);
    }
}

static rdt_status
dispatch_read_head(struct rdti_mailbox *m, struct rdti_message *head, struct rdt_error *err)
{
    uint8_t bytes[RDTI_MESSAGE_HEAD_BYTES];

    memcpy(bytes, m->rx + (size_t)m->rx_pos * RDTI_MESSAGE_ALIGN, sizeof(bytes));
    return rdti_message_decode(bytes, sizeof(bytes), head, err);
}

rdt_status
rdti_mailbox_on_message(struct rdti_mailbox *m, struct rdt_error *err)
{
    struct rdti_message head;
    uint64_t body_bytes = 0;
    rdt_status status = dispatch_read_head(m, &head, err);

    if (status == RDT_OK && head.kind == RDTI_MESSAGE_PAD) {
        m->rx_consumed += m->rx_units - m->rx_pos;
        m->rx_pos = 0;
        status = dispatch_read_head(m, &head, err);
    }
    if (status == RDT_OK)
        status = dispatch_body_bytes_of(m, &head, &body_bytes, err);
    if (status == RDT_OK)
        status = dispatch_take_credit(m, &head, err);
    if (status == RDT_OK)
        status = dispatch(m, &head,
                          m->rx + (size_t)m->rx_pos * RDTI_MESSAGE_ALIGN + RDTI_MESSAGE_HEAD_BYTES,
                          body_bytes, err);
    if (status != RDT_OK)
        return status;
    const uint32_t units =
        (uint32_t)((RDTI_MESSAGE_HEAD_BYTES + body_bytes + RDTI_MESSAGE_ALIGN - 1) /
                   RDTI_MESSAGE_ALIGN);
    m->rx_consumed += units;
    m->rx_pos = m->rx_pos + units == m->rx_units ? 0 : m->rx_pos + units;
    if (head.kind == RDTI_MESSAGE_SWITCH) {
        m->rx = rdt_region_addr(m->large);
        m->rx_units = RDTI_RING_LARGE_UNITS;
        m->rx_pos = 0;
    }
    rdti_mailbox_flush(m);
    return RDT_OK;
}
