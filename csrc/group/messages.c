/* SPDX-License-Identifier: Apache-2.0
 * Send and receive within a group: requests, messages that wait, and how they match. */
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/error.h"
#include "group/group_impl.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"

/* ---- Requests ---------------------------------------------------------------------------- */

/* The caller gave up the handle of a receive that has not matched. */
static void
on_drop(struct rdt_transfer *t)
{
    struct rdti_request *request = t->owner;
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (request->is_send || request->state != RDTI_REQUEST_POSTED)
        return;
    (void)rdti_error_set(&err, RDT_ECANCELED, 0, "the receive was given up");
    rdti_request_cancel(request, &err);
}

static struct rdti_request *
new_request(rdt_group *group, struct rdt_transfer *t, uint32_t peer, uint64_t tag, void *buf,
            uint64_t len_bytes, const struct rdt_message_desc *desc)
{
    struct rdti_request *request = rdti_pool_take(&group->groups->requests);

    if (request == NULL)
        return NULL;
    memset(request, 0,
           offsetof(struct rdti_request, rts)); /* the rest is written before it is read */
    rdti_list_init(&request->link);
    request->transfer = t;
    request->group = group;
    request->peer = peer;
    request->tag = tag;
    request->buf = buf;
    request->len_bytes = len_bytes;
    if (desc != NULL && desc->op != 0) {
        request->has_desc = true;
        request->desc = *desc;
    }
    rdti_list_append(&group->requests, &request->group_link);
    group->refs++;
    t->owner = request;
    return request;
}

/* ---- Messages that wait ------------------------------------------------------------------ */

static void
free_arrival(struct rdti_arrival *arrival, struct rdti_groups *groups)
{
    if (arrival->group != NULL)
        rdti_match_remove(&arrival->group->matcher, &arrival->match);
    rdti_list_remove(&arrival->group_link);
    rdti_list_remove(&arrival->mailbox_link);
    if (arrival->mailbox != NULL && arrival->head.kind == RDTI_MESSAGE_RTS)
        arrival->mailbox->offer_count--;
    rdti_parcel_free(arrival->parcel);
    free(arrival->sums);
    rdti_pool_give(&groups->arrivals, arrival);
}

/* Frees a message that did not become an arrival, or has been one. */
static void
refuse_message(struct rdti_mailbox *m, const struct rdti_message *head, const struct rdt_error *why)
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
    struct rdti_groups *groups = m != NULL ? m->groups : arrival->group->groups;
    const struct rdti_message head = arrival->head;

    free_arrival(arrival, groups);
    refuse_message(m, &head, why);
}

static struct rdti_arrival *
new_arrival(struct rdti_groups *groups, struct rdti_mailbox *m, const struct rdti_message *head,
            const uint8_t *payload, const struct rdti_rts *rts)
{
    struct rdti_arrival *arrival = rdti_pool_take(&groups->arrivals);
    const bool has_parcel =
        head->kind == RDTI_MESSAGE_EAGER && head->len_bytes > RDTI_MESSAGE_INLINE_BYTES;

    if (arrival == NULL)
        return NULL;
    memset(arrival, 0, offsetof(struct rdti_arrival, rts));
    if (has_parcel) {
        arrival->parcel = rdti_parcel_new(&groups->parcels, head->len_bytes);
        if (arrival->parcel == NULL) {
            rdti_pool_give(&groups->arrivals, arrival);
            return NULL;
        }
        memcpy(arrival->parcel->bytes, payload, head->len_bytes);
        rdti_count(&groups->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], head->len_bytes);
    }
    rdti_list_init(&arrival->group_link);
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

static rdt_status
store(rdt_group *group, struct rdti_arrival *arrival, struct rdt_error *err)
{
    const rdt_status status = rdti_match_store(&group->matcher, arrival->head.source,
                                               arrival->head.tag, &arrival->match, err);

    if (status != RDT_OK)
        return status;
    arrival->group = group;
    rdti_list_remove(&arrival->group_link);
    rdti_list_append(&group->arrivals, &arrival->group_link);
    return RDT_OK;
}

/* ---- A message meets its receive --------------------------------------------------------- */

static void
take_payload(struct rdti_request *receive, struct rdti_mailbox *m, const struct rdti_message *head,
             const uint8_t *payload)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_status status = RDT_OK;

    if (head->len_bytes > 0)
        memcpy(receive->buf, payload, head->len_bytes);
    rdti_count(&receive->group->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], head->len_bytes);
    receive->len_bytes = head->len_bytes;
    if (rdti_context_verifies(receive->group->ctx))
        status = rdti_sums_check_eager(receive, head, &err);
    rdti_request_finish(receive, status, &err);
    if (status != RDT_OK && m != NULL)
        rdti_endpoint_fail(m->ep, &err, false);
}

/* An eager message or an RTS; m is NULL if the message's endpoint has ended. */
static void
deliver(struct rdti_request *receive, struct rdti_mailbox *m, const struct rdti_message *head,
        const uint8_t *payload, const struct rdti_rts *rts)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    rdti_stand_meet(receive, head);
    receive->peer = head->source;
    const rdt_status status = rdti_match_check(receive, head->source, head, &err);
    if (status != RDT_OK) {
        rdti_request_finish(receive, status, &err);
        refuse_message(m, head, &err);
    } else if (head->kind == RDTI_MESSAGE_RTS) {
        rdti_receive_begin(m, receive, head, rts);
    } else {
        take_payload(receive, m, head, payload);
        if (m != NULL)
            rdti_mailbox_delivered(m, rdti_message_footprint(head->len_bytes));
    }
}

/* Sender and receiver are this process: one copy. */
static void
deliver_local(struct rdti_request *receive, struct rdti_request *send)
{
    struct rdti_message head = {.source = (uint16_t)send->group->rank,
                                .tag = send->tag,
                                .len_bytes = send->len_bytes};
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (send->has_desc)
        rdti_message_set_desc(&head, &send->desc);
    receive->peer = head.source;
    const rdt_status status = rdti_match_check(receive, head.source, &head, &err);
    if (status == RDT_OK) {
        if (send->len_bytes > 0)
            rdti_copy(receive->buf, send->buf, send->len_bytes, RDTI_COPY_TO_OWN);
        rdti_count(&send->group->ctx->moved.moved_bytes[0][RDTI_TRAFFIC_DYNAMIC], send->len_bytes);
        receive->len_bytes = send->len_bytes;
    }
    rdti_request_finish(receive, status, &err);
    rdti_request_finish(send, status, &err);
}

static void
take_arrival(struct rdti_request *receive, struct rdti_arrival *arrival)
{
    struct rdti_groups *groups = receive->group->groups;
    struct rdti_mailbox *m = arrival->mailbox;
    struct rdti_parcel *parcel = arrival->parcel;
    struct rdti_request *self = arrival->self;
    const struct rdti_message head = arrival->head;
    const struct rdti_rts rts = arrival->rts;

    arrival->parcel = NULL;
    receive->sums = arrival->sums;
    arrival->sums = NULL;
    free_arrival(arrival, groups);
    if (self != NULL)
        deliver_local(receive, self);
    else
        deliver(receive, m, &head, parcel != NULL ? parcel->bytes : head.inlined, &rts);
    rdti_parcel_free(parcel);
}

/* False: the group is not gone, but yet to come. The refusal has the reason too, as it may be
 * faster than the abort on the side channel. */
static bool
refuse_late(const struct rdti_groups *groups, struct rdti_mailbox *m,
            const struct rdti_message *head)
{
    const struct rdti_gone *gone = rdti_groups_find_gone(groups, head->group_id);
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};

    if (gone == NULL)
        return false;
    if (gone->abort.group_id != 0)
        (void)rdti_error_set_rank(&why, RDT_EPEER, gone->abort.rank, "%s", gone->abort.reason);
    else
        (void)rdti_error_set(&why, RDT_EPEER, 0, "the group was destroyed there");
    refuse_message(m, head, &why);
    return true;
}

/* Keeps a message whose receive was given up, or that comes after such a message. */
static void
keep(rdt_group *group, struct rdti_arrival *arrival)
{
    arrival->group = group;
    arrival->is_kept = true;
    rdti_list_append(&group->arrivals, &arrival->group_link);
}

void
rdti_group_hand_out(rdt_group *group, struct rdti_mailbox *m, uint64_t tag)
{
    struct rdti_list kept;
    struct rdti_list *taken;

    rdti_list_init(&kept);
    for (struct rdti_list *node = group->arrivals.next, *next; node != &group->arrivals;
         node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, group_link);
        next = node->next;
        if (!arrival->is_kept || arrival->mailbox != m || arrival->head.tag != tag)
            continue;
        rdti_list_remove(node);
        rdti_list_append(&kept, node);
    }
    while ((taken = rdti_list_take_first(&kept)) != NULL) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(taken, struct rdti_arrival, group_link);
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct rdti_match_posted *posted =
            m->has_ended ? NULL
                         : rdti_match_take_posted(&group->matcher, arrival->head.source, tag);
        arrival->is_kept = false;
        if (posted != NULL) {
            take_arrival(RDTI_CONTAINER(posted, struct rdti_request, posted), arrival);
        } else if (store(group, arrival, &err) != RDT_OK) {
            rdti_arrival_drop(arrival, &err);
            rdti_endpoint_fail(m->ep, &err, false);
        }
    }
}

/* The receive that the message is for. NULL: it waits, and if *is_kept, not for the next
 * receive. */
static struct rdti_request *
find_receive(rdt_group *group, struct rdti_mailbox *m, const struct rdti_message *head,
             bool *is_kept)
{
    *is_kept = rdti_stand_keeps(m, group->id, head->tag);
    struct rdti_match_posted *posted =
        *is_kept ? NULL : rdti_match_take_posted(&group->matcher, head->source, head->tag);
    if (posted == NULL)
        return NULL;
    struct rdti_request *receive = RDTI_CONTAINER(posted, struct rdti_request, posted);
    if (!receive->is_cancelled)
        return receive;
    *is_kept = rdti_stand_keep(receive);
    return NULL;
}

rdt_status
rdti_groups_on_arrival(struct rdti_groups *groups, struct rdti_mailbox *m,
                       const struct rdti_message *head, const uint8_t *payload,
                       const struct rdti_rts *rts, struct rdt_error *err)
{
    rdt_group *group = rdti_groups_find(groups, head->group_id);
    struct rdti_request *receive = NULL;
    bool is_kept = false;

    if (group == NULL && refuse_late(groups, m, head))
        return RDT_OK;
    if (group != NULL) {
        const rdt_status status = rdti_member_claim(group, head->source, m->ep, err);
        if (status != RDT_OK)
            return status;
        if (group->state != RDTI_GROUP_LIVE) {
            refuse_message(m, head, &group->error);
            return RDT_OK;
        }
        receive = find_receive(group, m, head, &is_kept);
    }
    if (receive != NULL) {
        deliver(receive, m, head, payload, rts);
        return RDT_OK;
    }
    struct rdti_arrival *arrival = new_arrival(groups, m, head, payload, rts);
    if (arrival == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a message of %llu bytes that has no receive yet",
                              (unsigned long long)head->len_bytes);
    if (group == NULL) {
        rdti_list_append(&m->orphans, &arrival->group_link);
        return RDT_OK;
    }
    if (is_kept) {
        keep(group, arrival);
        return RDT_OK;
    }
    const rdt_status status = store(group, arrival, err);
    if (status != RDT_OK)
        free_arrival(arrival, groups);
    return status;
}

void
rdti_group_adopt(rdt_group *group, struct rdti_list *orphans)
{
    for (struct rdti_list *node = orphans->next, *next; node != orphans; node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, group_link);
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        next = node->next;
        if (arrival->head.group_id != group->id)
            continue;
        rdt_status status =
            rdti_member_claim(group, arrival->head.source, arrival->mailbox->ep, &err);
        if (status == RDT_OK)
            status = store(group, arrival, &err);
        if (status != RDT_OK)
            rdti_endpoint_fail(arrival->mailbox->ep, &err, false);
    }
}

void
rdti_group_end_receives(rdt_group *group, uint32_t rank, const struct rdt_error *err)
{
    for (struct rdti_list *node = group->requests.next, *next; node != &group->requests;
         node = next) {
        struct rdti_request *request = RDTI_CONTAINER(node, struct rdti_request, group_link);
        next = node->next;
        if (!request->is_send && request->state == RDTI_REQUEST_POSTED && request->peer == rank)
            rdti_request_finish(request, (rdt_status)err->status, err);
    }
}

/* ---- Public ------------------------------------------------------------------------------ */

static rdt_status
check_call(rdt_group *group, const char *call, uint32_t peer, const void *buf, uint64_t len_bytes,
           const struct rdt_message_desc *desc, struct rdt_error *err)
{
    if (group == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the group is NULL", call);
    const rdt_status status = rdti_context_check(group->ctx, call, err);
    if (status != RDT_OK)
        return status;
    if (peer >= group->size && peer != RDT_SOURCE_ANY)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: rank %u of a group of %u", call, peer,
                              group->size);
    if (buf == NULL && len_bytes > 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the buffer is NULL", call);
    if (desc != NULL && (desc->op > UINT8_MAX || desc->dtype > UINT8_MAX ||
                         desc->reduce_op > UINT8_MAX || desc->root > UINT16_MAX))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "%s: op %u, dtype %u, reduce_op %u or root %u is out of range", call,
                              desc->op, desc->dtype, desc->reduce_op, desc->root);
    return RDT_OK;
}

static rdt_status
no_memory(struct rdt_error *err)
{
    return rdti_error_set(err, RDT_ENOMEM, 0, "a message of %zu bytes",
                          sizeof(struct rdti_request));
}

static rdt_status
send_local(rdt_group *group, uint64_t tag, const void *src, uint64_t len_bytes,
           const struct rdt_message_desc *desc, struct rdt_transfer *t, struct rdt_error *err)
{
    struct rdti_request *send =
        new_request(group, t, group->rank, tag, (void *)(uintptr_t)src, len_bytes, desc);
    const struct rdti_message head = {.source = (uint16_t)group->rank,
                                      .tag = tag,
                                      .len_bytes = len_bytes};

    if (send == NULL)
        return no_memory(err);
    send->is_send = true;
    struct rdti_match_posted *posted = rdti_match_take_posted(&group->matcher, group->rank, tag);
    if (posted != NULL) {
        deliver_local(RDTI_CONTAINER(posted, struct rdti_request, posted), send);
        return RDT_OK;
    }
    struct rdti_arrival *arrival = new_arrival(group->groups, NULL, &head, NULL, NULL);
    rdt_status status = arrival != NULL ? store(group, arrival, err) : no_memory(err);
    if (status != RDT_OK) {
        if (arrival != NULL)
            free_arrival(arrival, group->groups);
        rdti_request_release(send);
        return status;
    }
    arrival->self = send;
    send->arrival = arrival;
    send->state = RDTI_REQUEST_LOCAL;
    return RDT_OK;
}

static rdt_status
send_remote(rdt_group *group, uint32_t dst, uint64_t tag, const void *src, uint64_t len_bytes,
            const struct rdt_message_desc *desc, uint32_t **sums, struct rdt_transfer *t,
            struct rdt_error *err)
{
    struct rdti_mailbox *m = rdti_mailbox_of(group->members[dst].ep);
    struct rdti_message head = {.source = (uint16_t)group->rank,
                                .group_id = group->id,
                                .tag = tag,
                                .len_bytes = len_bytes};
    rdt_status status = rdti_endpoint_error(group->members[dst].ep, err);

    if (status != RDT_OK)
        return status;
    if (desc != NULL)
        rdti_message_set_desc(&head, desc);
    if (rdti_stand_send_now(m, &head, src, t, &status, err))
        return status;
    struct rdti_request *send =
        new_request(group, t, dst, tag, (void *)(uintptr_t)src, len_bytes, desc);
    if (send == NULL)
        return no_memory(err);
    send->is_send = true;
    send->sums = *sums;
    *sums = NULL;
    rdti_stand_send(m, send);
    return RDT_OK;
}

/* Bytes that may be written in place are summed without the lock. */
static rdt_status
sum_before(const rdt_group *group, uint32_t dst, const void *src, uint64_t len_bytes,
           uint32_t **out, struct rdt_error *err)
{
    if (!rdti_context_verifies(group->ctx) || dst == group->rank ||
        len_bytes <= RDTI_RING_LARGE_BYTES / 4)
        return RDT_OK;
    *out = rdti_sums_make(src, len_bytes);
    return *out != NULL ? RDT_OK : no_memory(err);
}

/* over budget: everything begun is undone in one place. */
rdt_status
rdt_group_send(rdt_group *group, uint32_t dst, uint64_t tag, const void *src, uint64_t len_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = check_call(group, "group_send", dst, src, len_bytes, desc, err);

    if (status == RDT_OK && dst == RDT_SOURCE_ANY)
        status = rdti_error_set(err, RDT_EINVAL, 0, "group_send: to no rank");
    uint32_t *sums = NULL;
    if (status == RDT_OK)
        status = sum_before(group, dst, src, len_bytes, &sums, err);
    if (status == RDT_OK)
        status = rdti_group_enter(group, dst, err);
    if (status != RDT_OK) {
        free(sums);
        return status;
    }
    struct rdt_transfer *t = rdti_transfer_new(group->ctx->pool);
    if (t != NULL)
        rdt_transfer_trace(t, "send", rdti_group_global_rank(group, dst), len_bytes);
    if (t == NULL)
        status = no_memory(err);
    else if (dst == group->rank)
        status = send_local(group, tag, src, len_bytes, desc, t, err);
    else
        status = send_remote(group, dst, tag, src, len_bytes, desc, &sums, t, err);
    rdti_engine_leave(group->ctx->engine);
    free(sums);
    if (status == RDT_OK && out != NULL)
        *out = t;
    else if (status == RDT_OK)
        rdt_transfer_free(t);
    else if (t != NULL)
        rdti_transfer_discard(t);
    return status;
}

static rdt_status
post_receive(rdt_group *group, uint32_t src, uint64_t tag, void *dst, uint64_t cap_bytes,
             const struct rdt_message_desc *desc, struct rdt_transfer *t, struct rdt_error *err)
{
    const bool has_desc = desc != NULL && desc->op != 0;
    struct rdti_rx_stream *stream = rdti_stand_find(group, src, tag, dst, cap_bytes, has_desc);
    struct rdti_request *receive = new_request(group, t, src, tag, dst, cap_bytes, desc);

    if (receive == NULL)
        return no_memory(err);
    t->on_drop = on_drop;
    struct rdti_match_arrival *match = rdti_match_take_arrival(&group->matcher, src, tag);
    if (match != NULL) {
        rdti_stand_skip(stream);
        take_arrival(receive, RDTI_CONTAINER(match, struct rdti_arrival, match));
        if (src != RDT_SOURCE_ANY && has_desc && rdti_tag_is_once(tag))
            rdti_stand_missed(group, src, dst, cap_bytes);
        return RDT_OK;
    }
    rdt_status status = rdti_group_can_receive(group, src, err);
    if (status == RDT_OK)
        status = rdti_match_post(&group->matcher, src, tag, &receive->posted, err);
    if (status != RDT_OK)
        rdti_request_release(receive);
    else
        rdti_stand_posted(stream, receive);
    return status;
}

rdt_status
rdt_group_recv(rdt_group *group, uint32_t src, uint64_t tag, void *dst, uint64_t cap_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = check_call(group, "group_recv", src, dst, cap_bytes, desc, err);

    if (status == RDT_OK && out == NULL)
        status = rdti_error_set(err, RDT_EINVAL, 0, "group_recv: out is NULL");
    if (status == RDT_OK)
        status = rdti_group_enter(group, src, err);
    if (status != RDT_OK)
        return status;
    struct rdt_transfer *t = rdti_transfer_new(group->ctx->pool);
    if (t != NULL)
        rdt_transfer_trace(t, "receive",
                           src == RDT_SOURCE_ANY ? RDT_RANK_UNKNOWN
                                                 : rdti_group_global_rank(group, src),
                           cap_bytes);
    status =
        t == NULL ? no_memory(err) : post_receive(group, src, tag, dst, cap_bytes, desc, t, err);
    rdti_engine_leave(group->ctx->engine);
    if (status == RDT_OK)
        *out = t;
    else if (t != NULL)
        rdti_transfer_discard(t);
    return status;
}
