/* SPDX-License-Identifier: Apache-2.0
 * The mailbox: what goes out in which order, and taking what arrives. */
#include "core/mailbox.h"

#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/error.h"
#include "base/log.h"
#include "base/range.h"
#include "core/mailbox_impl.h"

#define SMALL_UNITS (RDTI_RING_SMALL_BYTES / RDTI_MESSAGE_ALIGN)
#define LARGE_UNITS (RDTI_RING_LARGE_BYTES / RDTI_MESSAGE_ALIGN)
#define RESERVE_UNITS (RDTI_RING_RESERVE_BYTES / RDTI_MESSAGE_ALIGN)
/* Credit goes alone once this part of the ring, or of the budget of unexpected bytes, was not reported.
 * The reserve holds as many CREDITs as a ring brings about. */
#define CREDIT_PARTS 4

/* ---- Life -------------------------------------------------------------------------------- */

rdt_status
rdti_mailbox_create(rdt_endpoint *ep, struct rdti_mailbox **out, struct rdt_error *err)
{
    struct rdti_mailbox *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a mailbox of %zu bytes", sizeof(*m));
    const rdt_status status = rdti_random_bytes(&m->canary, sizeof(m->canary), err);
    if (status != RDT_OK) {
        free(m);
        return status;
    }
    m->ep = ep;
    m->ctx = rdti_endpoint_context(ep);
    m->groups = m->ctx->groups;
    m->rx = rdt_region_addr(rdti_endpoint_own_ring(ep));
    m->rx_units = SMALL_UNITS;
    rdti_list_init(&m->control);
    rdti_list_init(&m->sends);
    rdti_list_init(&m->offered);
    rdti_list_init(&m->pulls);
    rdti_list_init(&m->granted);
    rdti_list_init(&m->staging);
    rdti_list_init(&m->arrivals);
    rdti_list_init(&m->orphans);
    rdti_list_append(&m->groups->mailboxes, &m->link);
    *out = m;
    return RDT_OK;
}

void
rdti_mailbox_destroy(struct rdti_mailbox *m)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (m == NULL)
        return;
    if (!m->has_ended) { /* set-up never got as far as an end */
        (void)rdti_error_set(&err, RDT_ECLOSED, 0, "the endpoint was closed");
        rdti_mailbox_on_ended(m, &err);
    }
    rdt_region_free(m->large, NULL, NULL);
    rdt_region_free(m->bounce, NULL, NULL);
    m->large = NULL;
    m->bounce = NULL;
    m->is_destroyed = true;
    if (m->has_task)
        return; /* the task's last step frees it */
    rdti_list_remove(&m->link);
    free(m->ids);
    free(m);
}

bool
rdti_mailbox_is_idle(const struct rdti_mailbox *m)
{
    return rdti_list_is_empty(&m->control) && rdti_list_is_empty(&m->sends) &&
           rdti_list_is_empty(&m->offered) && rdti_list_is_empty(&m->pulls) &&
           rdti_list_is_empty(&m->granted) && rdti_list_is_empty(&m->staging);
}

static void
drop_arrivals(struct rdti_mailbox *m)
{
    for (struct rdti_list *node = m->arrivals.next, *next; node != &m->arrivals; node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, mailbox_link);
        next = node->next;
        if (arrival->group == NULL || arrival->head.kind == RDTI_MESSAGE_RTS) {
            rdti_arrival_drop(arrival, RDT_EPEER, "");
        } else { /* it is here, whole */
            rdti_list_remove(&arrival->mailbox_link);
            arrival->mailbox = NULL;
        }
    }
}

static void
update_async(struct rdti_mailbox *m)
{
    const bool is_waiting = m->is_ready && !m->has_ended &&
                            (!rdti_list_is_empty(&m->sends) || !rdti_list_is_empty(&m->control));

    if (is_waiting == m->is_async)
        return;
    m->is_async = is_waiting;
    rdti_engine_async_add(m->ctx->engine, is_waiting ? 1 : -1);
    if (is_waiting) /* credit may have come before anybody listened for it */
        rdti_engine_poke(m->ctx->engine);
}

static void
finish_all(struct rdti_list *requests, const struct rdt_error *err)
{
    while (!rdti_list_is_empty(requests))
        rdti_request_finish(RDTI_CONTAINER(requests->next, struct rdti_request, link),
                            (rdt_status)err->status, err);
}

void
rdti_mailbox_on_ended(struct rdti_mailbox *m, const struct rdt_error *err)
{
    struct rdti_list *node;

    m->has_ended = true;
    while ((node = rdti_list_take_first(&m->control)) != NULL)
        rdti_parcel_free(RDTI_CONTAINER(node, struct rdti_parcel, link));
    finish_all(&m->sends, err);
    finish_all(&m->offered, err); /* the lane is closed: their bytes rest */
    rdti_receive_on_ended(m, err);
    drop_arrivals(m);
    update_async(m);
}

void
rdti_mailbox_on_ready(struct rdti_mailbox *m)
{
    m->ring = *rdti_endpoint_peer_ring(m->ep);
    m->tx_units = SMALL_UNITS;
    m->is_ready = true;
    rdti_mailbox_flush(m);
}

/* ---- Going out --------------------------------------------------------------------------- */

static void
queue_control(struct rdti_mailbox *m, const struct rdti_message *head, const void *body,
              uint32_t body_bytes)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_parcel *parcel;

    if (m->has_ended)
        return;
    parcel = rdti_parcel_new(&m->groups->parcels, RDTI_MESSAGE_HEAD_BYTES + body_bytes);
    if (parcel == NULL) {
        (void)rdti_error_set(&err, RDT_ENOMEM, 0, "a mailbox message of %u bytes", body_bytes);
        rdti_endpoint_fail(m->ep, &err, false);
        return;
    }
    parcel->head = *head;
    parcel->body_bytes = body_bytes;
    if (body_bytes > 0)
        memcpy(parcel->bytes + RDTI_MESSAGE_HEAD_BYTES, body, body_bytes);
    rdti_list_append(&m->control, &parcel->link);
    if (head->kind == RDTI_MESSAGE_CTS || head->kind == RDTI_MESSAGE_GROW ||
        head->kind == RDTI_MESSAGE_RING)
        rdti_count(&m->ctx->counters.control_messages, 1);
}

void
rdti_mailbox_control(struct rdti_mailbox *m, enum rdti_message_kind kind, uint64_t id, uint64_t tag,
                     uint64_t len_bytes, const void *body, uint32_t body_bytes)
{
    const struct rdti_message head = {.kind = (uint8_t)kind,
                                      .id = id,
                                      .tag = tag,
                                      .len_bytes = len_bytes};

    queue_control(m, &head, body, body_bytes);
    rdti_mailbox_flush(m);
}

void
rdti_mailbox_show_interest(struct rdti_mailbox *m, uint64_t group_id, uint32_t rank)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_CREDIT,
                                      .group_id = group_id,
                                      .source = (uint16_t)rank};

    queue_control(m, &head, NULL, 0);
    rdti_mailbox_flush(m);
}

void
rdti_mailbox_nack(struct rdti_mailbox *m, uint64_t id, uint64_t whose, rdt_status status,
                  const char *text)
{
    char body[RDTI_NACK_TEXT_BYTES] = "";

    memcpy(body, text, strnlen(text, sizeof(body) - 1));
    rdti_mailbox_control(m, RDTI_MESSAGE_NACK, id, whose, (uint64_t)(int64_t)status, body,
                         sizeof(body));
}

static bool
is_within_budget(const struct rdti_mailbox *m, uint64_t footprint)
{
    return (uint64_t)(m->eager_sent - m->eager_delivered) + footprint <= RDTI_UNEXPECTED_MAX_BYTES;
}

static void
ask_growth(struct rdti_mailbox *m)
{
    const struct rdti_message head = {.kind = RDTI_MESSAGE_GROW};

    if (m->has_asked_growth)
        return;
    m->has_asked_growth = true;
    queue_control(m, &head, NULL, 0);
}

/* False: no space. */
static bool
try_eager(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
          struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err)
{
    const uint32_t units = (uint32_t)(rdti_message_footprint(head->len_bytes) / RDTI_MESSAGE_ALIGN);
    const bool is_copied =
        head->len_bytes > RDTI_MESSAGE_INLINE_BYTES && !rdti_endpoint_caps(m->ep).is_same_host;
    struct rdti_parcel *parcel =
        rdti_parcel_new(&m->groups->parcels,
                        RDTI_MESSAGE_HEAD_BYTES + (is_copied ? head->len_bytes : 0));
    uint64_t off;

    if (parcel == NULL) {
        *status_out = rdti_error_set(err, RDT_ENOMEM, 0, "a message of %llu bytes",
                                     (unsigned long long)head->len_bytes);
        return true;
    }
    if (!rdti_ring_reserve(m, units, RESERVE_UNITS, &off)) {
        rdti_parcel_free(parcel);
        return false;
    }
    parcel->head = *head;
    parcel->head.kind = RDTI_MESSAGE_EAGER;
    *status_out = rdti_ring_place_eager(m, parcel, off, src, t, err);
    return true;
}

bool
rdti_mailbox_send_now(struct rdti_mailbox *m, const struct rdti_message *head, const void *src,
                      struct rdt_transfer *t, rdt_status *status_out, struct rdt_error *err)
{
    if (!m->is_ready || m->has_ended || m->has_next_ring || !rdti_list_is_empty(&m->sends) ||
        !rdti_list_is_empty(&m->control) || head->len_bytes > rdti_ring_eager_max(m, m->tx_units) ||
        !is_within_budget(m, rdti_message_footprint(head->len_bytes)))
        return false;
    return try_eager(m, head, src, t, status_out, err);
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
start_send(struct rdti_mailbox *m, struct rdti_request *send)
{
    struct rdti_message head = {.source = (uint16_t)send->group->rank,
                                .group_id = send->group->id,
                                .tag = send->tag,
                                .len_bytes = send->len_bytes};
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_status status;

    if (send->len_bytes > rdti_ring_eager_max(m, m->tx_units)) {
        if (send->len_bytes <= rdti_ring_eager_max(m, LARGE_UNITS))
            ask_growth(m);
        return rdti_offer_send(m, send);
    }
    if (!is_within_budget(m, rdti_message_footprint(send->len_bytes)))
        return rdti_offer_send(m, send);
    if (send->has_desc)
        rdti_message_set_desc(&head, &send->desc);
    if (!try_eager(m, &head, send->buf, send->transfer, &status, &err)) {
        ask_growth(m);
        return false;
    }
    if (status == RDT_OK)
        rdti_request_release(send);
    else
        rdti_request_finish(send, status, &err);
    return true;
}

static void
switch_ring(struct rdti_mailbox *m)
{
    struct rdti_parcel *parcel = rdti_parcel_new(&m->groups->parcels, RDTI_MESSAGE_HEAD_BYTES);
    uint64_t off;

    if (parcel == NULL || !rdti_ring_reserve(m, 1, RESERVE_UNITS, &off)) {
        rdti_parcel_free(parcel); /* the small ring works too, and the next flush tries again */
        return;
    }
    parcel->head = (struct rdti_message){.kind = RDTI_MESSAGE_SWITCH};
    rdti_ring_place(m, parcel, off);
    m->ring = m->next_ring;
    m->has_next_ring = false;
    m->tx_units = LARGE_UNITS;
    m->tx_pos = 0;
}

/* False: one is left that has no space. */
static bool
flush_control(struct rdti_mailbox *m)
{
    uint64_t off;

    while (!rdti_list_is_empty(&m->control)) {
        struct rdti_parcel *parcel = RDTI_CONTAINER(m->control.next, struct rdti_parcel, link);
        const uint64_t footprint = RDTI_MESSAGE_HEAD_BYTES + (uint64_t)parcel->body_bytes;
        const uint32_t units =
            (uint32_t)((footprint + RDTI_MESSAGE_ALIGN - 1) / RDTI_MESSAGE_ALIGN);
        if (!rdti_ring_reserve(m, units, RESERVE_UNITS, &off))
            return false;
        rdti_list_remove(&parcel->link);
        rdti_ring_place(m, parcel, off);
    }
    return true;
}

static void
report_credit(struct rdti_mailbox *m)
{
    uint64_t off;

    if (!m->is_ready || m->has_ended ||
        (m->rx_consumed - m->rx_reported < m->rx_units / CREDIT_PARTS &&
         m->delivered - m->delivered_reported < RDTI_UNEXPECTED_MAX_BYTES / CREDIT_PARTS))
        return;
    struct rdti_parcel *parcel = rdti_parcel_new(&m->groups->parcels, RDTI_MESSAGE_HEAD_BYTES);
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
        switch_ring(m);
    while (has_space && (!rdti_list_is_empty(&m->control) || !rdti_list_is_empty(&m->sends))) {
        has_space = flush_control(m);
        if (has_space && !rdti_list_is_empty(&m->sends))
            has_space = start_send(m, RDTI_CONTAINER(m->sends.next, struct rdti_request, link));
    }
    if (!has_space)
        (void)flush_control(m); /* a send may have asked for a larger ring */
    report_credit(m);
    update_async(m);
}

void
rdti_mailbox_delivered(struct rdti_mailbox *m, uint64_t bytes)
{
    m->delivered += (uint32_t)bytes;
    report_credit(m);
}

/* ---- Coming in --------------------------------------------------------------------------- */

static rdt_status
broken(const struct rdti_mailbox *m, struct rdt_error *err, const char *how)
{
    const int32_t rank = rdti_endpoint_rank(m->ep);

    return rdti_error_set_rank(err, RDT_EPROTO, rank, "mailbox: rank %d %s", (int)rank, how);
}

static rdt_status
take_credit(struct rdti_mailbox *m, const struct rdti_message *head, struct rdt_error *err)
{
    if (head->consumed - m->tx_consumed > m->tx_sent - m->tx_consumed)
        return broken(m, err, "says that it took more out of its ring than was put there");
    if (head->delivered - m->eager_delivered > m->eager_sent - m->eager_delivered)
        return broken(m, err, "says that it received more than was sent");
    m->tx_consumed = head->consumed;
    m->eager_delivered = head->delivered;
    return RDT_OK;
}

static rdt_status
on_grow(struct rdti_mailbox *m, struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_message head = {.kind = RDTI_MESSAGE_RING};
    struct rdt_remote_region remote;
    uint8_t body[RDT_REMOTE_REGION_BYTES];

    if (m->large != NULL)
        return broken(m, err, "asks for a second large ring");
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
    queue_control(m, &head, body, sizeof(body));
    return RDT_OK;
}

static rdt_status
on_ring(struct rdti_mailbox *m, const uint8_t *body, struct rdt_error *err)
{
    struct rdt_remote_region remote;
    const rdt_status status = rdt_remote_region_decode(body, RDT_REMOTE_REGION_BYTES, &remote, err);

    if (status != RDT_OK)
        return broken(m, err, "offers a ring in bytes that are none");
    if (!m->has_asked_growth || m->has_next_ring || m->tx_units != SMALL_UNITS)
        return broken(m, err, "offers a larger ring that nobody asked for");
    if (memcmp(remote.owner, rdti_endpoint_uuid(m->ep), RDT_UUID_BYTES) != 0 ||
        remote.len_bytes < RDTI_RING_LARGE_BYTES)
        return broken(m, err, "offers a larger ring that is not its own or too small");
    m->next_ring = remote;
    m->has_next_ring = true;
    return RDT_OK;
}

static rdt_status
on_switch(struct rdti_mailbox *m, struct rdt_error *err)
{
    if (m->large == NULL || m->is_large)
        return broken(m, err, "switches to a ring that it was not given");
    m->is_large = true; /* take_message() goes there once this message is counted */
    return RDT_OK;
}

static rdt_status
on_rts(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
       struct rdt_error *err)
{
    struct rdti_rts rts;
    rdt_status status = rdti_rts_decode(body, RDTI_RTS_BYTES, &rts, err);

    if (status != RDT_OK)
        return status;
    if (rts.has_region &&
        (memcmp(rts.region.owner, rdti_endpoint_uuid(m->ep), RDT_UUID_BYTES) != 0 ||
         !rdti_range_ok(rts.region_off, head->len_bytes, rts.region.len_bytes)))
        return broken(m, err, "offers a message outside of its own memory");
    if (m->offer_count >= RDTI_OFFERS_MAX)
        return broken(m, err, "sent more messages than can wait for a receive");
    return rdti_groups_on_arrival(m->groups, m, head, NULL, &rts, err);
}

static rdt_status
on_eager(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
         struct rdt_error *err)
{
    const bool is_inlined = head->len_bytes <= RDTI_MESSAGE_INLINE_BYTES;

    const uint64_t footprint = rdti_message_footprint(head->len_bytes);

    if ((uint64_t)(m->eager_received - m->delivered) + footprint > RDTI_UNEXPECTED_MAX_BYTES)
        return broken(m, err, "sent more bytes that nobody receives than it may");
    m->eager_received += (uint32_t)footprint;
    return rdti_groups_on_arrival(m->groups, m, head, is_inlined ? head->inlined : body, NULL, err);
}

/* The peer's status and words, made harmless. */
static rdt_status
on_nack(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *body,
        struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = rdti_endpoint_rank(m->ep)};
    const int64_t status = (int64_t)head->len_bytes;
    char text[RDTI_NACK_TEXT_BYTES];

    if (status >= RDT_OK || status < RDT_EINTERNAL)
        return broken(m, err, "refuses a message with a status that is none");
    memcpy(text, body, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    for (char *c = text; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    (void)rdti_error_set_rank(&why, (rdt_status)status, why.peer_rank,
                              "rank %d ended the message: %s", (int)why.peer_rank, text);
    if (head->tag == RDTI_ID_IS_YOURS)
        rdti_offer_on_nack(m, head->id, &why);
    else
        rdti_receive_on_nack(m, head->id, &why);
    return RDT_OK;
}

/* Bytes behind the head, as far as the kind and the head say; RDT_EPROTO for what no ring can hold. */
static rdt_status
body_bytes_of(const struct rdti_mailbox *m, const struct rdti_message *head, uint64_t *out,
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
        *out = RDTI_CTS_BYTES;
        break;
    case RDTI_MESSAGE_RING:
        *out = RDT_REMOTE_REGION_BYTES;
        break;
    case RDTI_MESSAGE_NACK:
        *out = RDTI_NACK_TEXT_BYTES;
        break;
    default:
        *out = 0;
        break;
    }
    const uint64_t room =
        (uint64_t)(m->rx_units - m->rx_pos) * RDTI_MESSAGE_ALIGN - RDTI_MESSAGE_HEAD_BYTES;
    if (*out > room)
        return broken(m, err, "sent a message that leaves the ring");
    return RDT_OK;
}

static rdt_status
dispatch(struct rdti_mailbox *m, const struct rdti_message *head, const uint8_t *in_ring,
         uint64_t body_bytes, struct rdt_error *err)
{
    uint8_t body
        [RDTI_NACK_TEXT_BYTES]; /* the largest of all but EAGER; a copy, as the peer may write on */

    if (head->kind == RDTI_MESSAGE_EAGER)
        return on_eager(m, head, in_ring, err);
    memcpy(body, in_ring, body_bytes);
    switch ((enum rdti_message_kind)head->kind) {
    case RDTI_MESSAGE_RTS:
        return on_rts(m, head, body, err);
    case RDTI_MESSAGE_CTS:
        return rdti_offer_on_cts(m, head, body, err);
    case RDTI_MESSAGE_FIN:
        if (head->tag == RDTI_ID_IS_YOURS)
            return rdti_offer_on_fin(m, head->id, err);
        rdti_receive_on_fin(m, head->id);
        return RDT_OK;
    case RDTI_MESSAGE_CREDIT:
        if (head->group_id != 0)
            rdti_groups_on_interest(m->groups, m, head->group_id, head->source);
        return RDT_OK;
    case RDTI_MESSAGE_GROW:
        return on_grow(m, err);
    case RDTI_MESSAGE_RING:
        return on_ring(m, body, err);
    case RDTI_MESSAGE_SWITCH:
        return on_switch(m, err);
    case RDTI_MESSAGE_NACK:
        return on_nack(m, head, body, err);
    default:
        return broken(m, err, "sent padding in the place of a message");
    }
}

static rdt_status
read_head(struct rdti_mailbox *m, struct rdti_message *head, struct rdt_error *err)
{
    uint8_t bytes[RDTI_MESSAGE_HEAD_BYTES];

    memcpy(bytes, m->rx + (size_t)m->rx_pos * RDTI_MESSAGE_ALIGN, sizeof(bytes));
    return rdti_message_decode(bytes, sizeof(bytes), head, err);
}

rdt_status
rdti_mailbox_on_message(struct rdti_mailbox *m, struct rdt_error *err)
{
    struct rdti_message head;
    uint64_t body_bytes;
    rdt_status status = read_head(m, &head, err);

    if (status == RDT_OK && head.kind == RDTI_MESSAGE_PAD) {
        m->rx_consumed += m->rx_units - m->rx_pos;
        m->rx_pos = 0;
        status = read_head(m, &head, err);
    }
    if (status == RDT_OK)
        status = body_bytes_of(m, &head, &body_bytes, err);
    if (status == RDT_OK)
        status = take_credit(m, &head, err);
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
        m->rx_units = LARGE_UNITS;
        m->rx_pos = 0;
    }
    rdti_mailbox_flush(m);
    return RDT_OK;
}
