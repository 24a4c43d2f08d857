/* SPDX-License-Identifier: Apache-2.0
 * How a mailbox begins and ends with its endpoint, which calls it by the table at the end. */
#include <stdlib.h>

#include "base/crypto.h"
#include "base/error.h"
#include "message/checksum.h"
#include "message/mailbox.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/request_impl.h"

static rdt_status
lifecycle_attach(rdt_endpoint *ep, void **state_out, struct rdt_error *err)
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
    m->mailboxes = m->ctx->mailboxes;
    m->rx = rdt_region_addr(rdti_endpoint_own_ring(ep));
    m->rx_units = RDTI_RING_SMALL_UNITS;
    rdti_list_init(&m->control);
    rdti_list_init(&m->sends);
    rdti_list_init(&m->offered);
    rdti_list_init(&m->pulls);
    rdti_list_init(&m->granted);
    rdti_list_init(&m->staging);
    rdti_list_init(&m->arrivals);
    rdti_list_init(&m->orphans);
    rdti_list_init(&m->asked);
    rdti_list_init(&m->rx_streams);
    rdti_list_init(&m->tx_streams);
    rdti_list_append(&m->mailboxes->all, &m->link);
    *state_out = m;
    return RDT_OK;
}

static bool
lifecycle_is_idle(const void *state)
{
    const struct rdti_mailbox *m = state;

    return rdti_list_is_empty(&m->control) && rdti_list_is_empty(&m->sends) &&
           rdti_list_is_empty(&m->offered) && rdti_list_is_empty(&m->pulls) &&
           rdti_list_is_empty(&m->granted) && rdti_list_is_empty(&m->staging) &&
           rdti_list_is_empty(&m->asked) && rdti_stand_is_idle(m);
}

static void
lifecycle_on_beat(void *state)
{
    struct rdti_mailbox *m = state;

    if (m->is_ready && !m->has_ended)
        rdti_stand_on_beat(m);
}

static void
lifecycle_drop_arrivals(struct rdti_mailbox *m, const struct rdt_error *err)
{
    for (struct rdti_list *node = m->arrivals.next, *next; node != &m->arrivals; node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, mailbox_link);
        next = node->next;
        if (arrival->scope == NULL || arrival->head.kind == RDTI_MESSAGE_RTS) {
            rdti_arrival_drop(arrival, err);
        } else { /* it has arrived whole */
            rdti_list_remove(&arrival->mailbox_link);
            arrival->mailbox = NULL;
        }
    }
}

static void
lifecycle_finish_all(struct rdti_list *requests, const struct rdt_error *err)
{
    while (!rdti_list_is_empty(requests)) {
        struct rdti_request *request = RDTI_CONTAINER(requests->next, struct rdti_request, link);
        const struct rdt_error *why = request->is_cancelled ? &request->error : err;
        rdti_request_finish(request, (rdt_status)why->status, why);
    }
}

static void
lifecycle_on_ended(void *state, const struct rdt_error *err)
{
    struct rdti_mailbox *m = state;
    struct rdti_list *node;

    m->has_ended = true;
    while ((node = rdti_list_take_first(&m->control)) != NULL)
        rdti_parcel_free(RDTI_CONTAINER(node, struct rdti_parcel, link));
    lifecycle_finish_all(&m->sends, err);
    lifecycle_finish_all(&m->offered, err); /* the lane is closed: their bytes no longer move */
    rdti_receive_on_ended(m, err);
    rdti_stand_on_ended(m, err);
    rdti_sums_on_ended(m, err);
    lifecycle_drop_arrivals(m, err);
    rdti_mailbox_update_async(m);
}

static void
lifecycle_on_ready(void *state)
{
    struct rdti_mailbox *m = state;

    m->ring = *rdti_endpoint_peer_ring(m->ep);
    m->tx_units = RDTI_RING_SMALL_UNITS;
    m->is_ready = true;
    m->mailboxes->sink->on_ready(m->ctx);
    rdti_mailbox_flush(m);
}

void
rdti_mailbox_destroy(struct rdti_mailbox *m)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (m == NULL)
        return;
    if (!m->has_ended) { /* set-up did not reach an end */
        (void)rdti_error_set(&err, RDT_ECLOSED, 0, "the endpoint was closed");
        lifecycle_on_ended(m, &err);
    }
    rdt_region_free(m->large, NULL, NULL);
    rdt_region_free(m->bounce, NULL, NULL);
    m->large = NULL;
    m->bounce = NULL;
    m->is_destroyed = true;
    if (m->has_task)
        return; /* the task's last step frees it */
    rdti_list_remove(&m->link);
    rdti_stand_destroy(m);
    free(m->ids);
    free(m);
}

static void
lifecycle_detach(void *state)
{
    rdti_mailbox_destroy(state);
}

static rdt_status
lifecycle_on_notify(void *state, enum rdti_notify_kind kind, uint32_t value, uint32_t epoch,
                    struct rdt_error *err)
{
    return kind == RDTI_NOTIFY_IS_STREAM ? rdti_stand_on_landed(state, value, epoch, err)
                                         : rdti_mailbox_on_message(state, err);
}

const struct rdti_protocol rdti_message_protocol = {
    .attach = lifecycle_attach,
    .detach = lifecycle_detach,
    .on_ready = lifecycle_on_ready,
    .on_ended = lifecycle_on_ended,
    .on_beat = lifecycle_on_beat,
    .is_idle = lifecycle_is_idle,
    .on_notify = lifecycle_on_notify,
};

const struct rdti_filter rdti_sums_filter = {.write = rdti_sums_post, .read = rdti_sums_read};
