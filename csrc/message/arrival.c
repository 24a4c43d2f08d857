/* SPDX-License-Identifier: Apache-2.0
 * Messages that wait for their receives. */
#include <stdlib.h>
#include <string.h>

#include "message/mailbox_impl.h"
#include "message/request_impl.h"

void
rdti_arrival_free(struct rdti_arrival *arrival, struct rdti_mailboxes *mailboxes)
{
    if (arrival->scope != NULL)
        rdti_match_remove(&arrival->scope->matcher, &arrival->match);
    rdti_list_remove(&arrival->scope_link);
    rdti_list_remove(&arrival->mailbox_link);
    if (arrival->mailbox != NULL && arrival->head.kind == RDTI_MESSAGE_RTS)
        arrival->mailbox->offer_count--;
    rdti_parcel_free(arrival->parcel);
    free(arrival->sums);
    rdti_pool_give(&mailboxes->arrivals, arrival);
}

void
rdti_arrival_refuse(struct rdti_mailbox *m, const struct rdti_message *head,
                    const struct rdt_error *why)
{
    if (m == NULL || m->has_ended)
        return;
    if (head->kind == RDTI_MESSAGE_RTS)
        rdti_mailbox_nack(m, head->id, RDTI_ID_IS_YOURS, why);
    else
        rdti_mailbox_delivered(m, rdti_message_footprint(head->len_bytes));
}

void
rdti_arrival_drop(struct rdti_arrival *arrival, const struct rdt_error *why)
{
    struct rdti_mailbox *m = arrival->mailbox;
    struct rdti_mailboxes *mailboxes = m != NULL ? m->mailboxes : arrival->scope->mailboxes;
    const struct rdti_message head = arrival->head;

    rdti_arrival_free(arrival, mailboxes);
    rdti_arrival_refuse(m, &head, why);
}

struct rdti_arrival *
rdti_arrival_new(struct rdti_mailboxes *mailboxes, struct rdti_mailbox *m,
                 const struct rdti_message *head, const uint8_t *payload,
                 const struct rdti_rts *rts)
{
    struct rdti_arrival *arrival = rdti_pool_take(&mailboxes->arrivals);
    const bool has_parcel =
        head->kind == RDTI_MESSAGE_EAGER && head->len_bytes > RDTI_MESSAGE_INLINE_BYTES;

    if (arrival == NULL)
        return NULL;
    memset(arrival, 0, offsetof(struct rdti_arrival, rts));
    if (has_parcel) {
        arrival->parcel = rdti_parcel_new(&mailboxes->parcels, head->len_bytes);
        if (arrival->parcel == NULL) {
            rdti_pool_give(&mailboxes->arrivals, arrival);
            return NULL;
        }
        memcpy(arrival->parcel->bytes, payload, head->len_bytes);
        rdti_count(&mailboxes->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], head->len_bytes);
    }
    rdti_list_init(&arrival->scope_link);
    rdti_list_init(&arrival->mailbox_link);
    arrival->mailbox = m;
    arrival->head = *head;
    if (rts != NULL)
        arrival->rts = *rts;
    if (m != NULL && rts != NULL) {
        arrival->sums = m->offered_sums;
        m->offered_sums = NULL;
    }
    if (m != NULL) {
        rdti_list_append(&m->arrivals, &arrival->mailbox_link);
        m->offer_count += head->kind == RDTI_MESSAGE_RTS ? 1 : 0;
    }
    return arrival;
}

rdt_status
rdti_arrival_store(struct rdti_scope *scope, struct rdti_arrival *arrival, struct rdt_error *err)
{
    const rdt_status status = rdti_match_store(&scope->matcher, arrival->head.source,
                                               arrival->head.tag, &arrival->match, err);

    if (status != RDT_OK)
        return status;
    arrival->scope = scope;
    rdti_list_remove(&arrival->scope_link);
    rdti_list_append(&scope->arrivals, &arrival->scope_link);
    return RDT_OK;
}
