/* SPDX-License-Identifier: Apache-2.0
 * Send and receive within a group: requests, messages that wait, and how they match. */
#include <stdlib.h>
#include <string.h>

#include "base/memory/copy.h"
#include "base/error.h"
#include "group/group_impl.h"
#include "message/checksum.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/request_impl.h"
#include "rdmatensor_ext.h"

/* The caller gave up the handle of a receive that has not matched. */
static void
messages_on_drop(struct rdt_transfer *t)
{
    struct rdti_request *request = t->owner;
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (request->is_send || request->state != RDTI_REQUEST_POSTED)
        return;
    (void)rdti_error_set(&err, RDT_ECANCELED, 0, "the receive was given up");
    rdti_request_cancel(request, &err);
}

/* ---- A message meets its receive --------------------------------------------------------- */

static void
messages_take_payload(struct rdti_request *receive, struct rdti_mailbox *m,
                      const struct rdti_message *head, const uint8_t *payload)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_status status = RDT_OK;

    if (head->len_bytes > 0)
        memcpy(receive->buf, payload, head->len_bytes);
    rdti_count(&receive->scope->ctx->counters.copied_bytes[RDTI_TRAFFIC_DYNAMIC], head->len_bytes);
    receive->len_bytes = head->len_bytes;
    if (rdti_context_verifies(receive->scope->ctx))
        status = rdti_sums_check_eager(receive, head, &err);
    rdti_request_finish(receive, status, &err);
    if (status != RDT_OK && m != NULL)
        rdti_endpoint_fail(m->ep, &err, false);
}

/* An eager message or an RTS; m is NULL if the message's endpoint has ended. */
static void
messages_deliver(struct rdti_request *receive, struct rdti_mailbox *m,
                 const struct rdti_message *head, const uint8_t *payload,
                 const struct rdti_rts *rts)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    rdti_stand_meet(receive, head);
    receive->peer = head->source;
    const rdt_status status = rdti_match_check(receive, head->source, head, &err);
    if (status != RDT_OK) {
        rdti_request_finish(receive, status, &err);
        rdti_arrival_refuse(m, head, &err);
    } else if (head->kind == RDTI_MESSAGE_RTS) {
        rdti_receive_begin(m, receive, head, rts);
    } else {
        messages_take_payload(receive, m, head, payload);
        if (m != NULL)
            rdti_mailbox_delivered(m, rdti_message_footprint(head->len_bytes));
    }
}

/* Sender and receiver are this process: one copy. */
static void
messages_deliver_local(struct rdti_request *receive, struct rdti_request *send)
{
    struct rdti_message head = {.source = (uint16_t)send->scope->rank,
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
        rdti_count(&send->scope->ctx->moved.moved_bytes[0][RDTI_TRAFFIC_DYNAMIC], send->len_bytes);
        receive->len_bytes = send->len_bytes;
    }
    rdti_request_finish(receive, status, &err);
    rdti_request_finish(send, status, &err);
}

static void
messages_take_arrival(struct rdti_request *receive, struct rdti_arrival *arrival)
{
    struct rdti_mailboxes *mailboxes = receive->scope->mailboxes;
    struct rdti_mailbox *m = arrival->mailbox;
    struct rdti_parcel *parcel = arrival->parcel;
    struct rdti_request *self = arrival->self;
    const struct rdti_message head = arrival->head;
    const struct rdti_rts rts = arrival->rts;

    arrival->parcel = NULL;
    receive->sums = arrival->sums;
    arrival->sums = NULL;
    rdti_arrival_free(arrival, mailboxes);
    if (self != NULL)
        messages_deliver_local(receive, self);
    else
        messages_deliver(receive, m, &head, parcel != NULL ? parcel->bytes : head.inlined, &rts);
    rdti_parcel_free(parcel);
}

/* False: the group is not gone, but yet to come. The refusal has the reason too, as it may be
 * faster than the abort on the side channel. */
static bool
messages_refuse_late(const struct rdti_groups *groups, struct rdti_mailbox *m,
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
    rdti_arrival_refuse(m, head, &why);
    return true;
}

/* Keeps a message whose receive was given up, or that comes after such a message. */
static void
messages_keep(rdt_group *group, struct rdti_arrival *arrival)
{
    arrival->scope = &group->scope;
    arrival->is_kept = true;
    rdti_list_append(&group->scope.arrivals, &arrival->scope_link);
}

void
rdti_group_hand_out(struct rdti_scope *scope, struct rdti_mailbox *m, uint64_t tag)
{
    rdt_group *group = rdti_group_of(scope);
    struct rdti_list kept;
    struct rdti_list *taken;

    rdti_list_init(&kept);
    for (struct rdti_list *node = group->scope.arrivals.next, *next; node != &group->scope.arrivals;
         node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, scope_link);
        next = node->next;
        if (!arrival->is_kept || arrival->mailbox != m || arrival->head.tag != tag)
            continue;
        rdti_list_remove(node);
        rdti_list_append(&kept, node);
    }
    while ((taken = rdti_list_take_first(&kept)) != NULL) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(taken, struct rdti_arrival, scope_link);
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct rdti_match_posted *posted =
            m->has_ended ? NULL
                         : rdti_match_take_posted(&group->scope.matcher, arrival->head.source, tag);
        arrival->is_kept = false;
        if (posted != NULL) {
            messages_take_arrival(RDTI_CONTAINER(posted, struct rdti_request, posted), arrival);
        } else if (rdti_arrival_store(&group->scope, arrival, &err) != RDT_OK) {
            rdti_arrival_drop(arrival, &err);
            rdti_endpoint_fail(m->ep, &err, false);
        }
    }
}

/* The receive that the message is for. NULL: it waits, and if *is_kept, not for the next
 * receive. */
static struct rdti_request *
messages_find_receive(rdt_group *group, struct rdti_mailbox *m, const struct rdti_message *head,
                      bool *is_kept)
{
    *is_kept = rdti_stand_keeps(m, group->scope.id, head->tag);
    struct rdti_match_posted *posted =
        *is_kept ? NULL : rdti_match_take_posted(&group->scope.matcher, head->source, head->tag);
    if (posted == NULL)
        return NULL;
    struct rdti_request *receive = RDTI_CONTAINER(posted, struct rdti_request, posted);
    if (!receive->is_cancelled)
        return receive;
    *is_kept = rdti_stand_keep(receive);
    return NULL;
}

rdt_status
rdti_group_on_arrival(struct rdti_mailbox *m, const struct rdti_message *head,
                      const uint8_t *payload, const struct rdti_rts *rts, struct rdt_error *err)
{
    struct rdti_groups *groups = m->ctx->groups;
    rdt_group *group = rdti_groups_find(groups, head->group_id);
    struct rdti_request *receive = NULL;
    bool is_kept = false;

    if (group == NULL && messages_refuse_late(groups, m, head))
        return RDT_OK;
    if (group != NULL) {
        const rdt_status status = rdti_member_claim(group, head->source, m->ep, err);
        if (status != RDT_OK)
            return status;
        if (group->state != RDTI_GROUP_LIVE) {
            rdti_arrival_refuse(m, head, &group->error);
            return RDT_OK;
        }
        receive = messages_find_receive(group, m, head, &is_kept);
    }
    if (receive != NULL) {
        messages_deliver(receive, m, head, payload, rts);
        return RDT_OK;
    }
    struct rdti_arrival *arrival = rdti_arrival_new(m->mailboxes, m, head, payload, rts);
    if (arrival == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a message of %llu bytes that has no receive yet",
                              (unsigned long long)head->len_bytes);
    if (group == NULL) {
        rdti_list_append(&m->orphans, &arrival->scope_link);
        return RDT_OK;
    }
    if (is_kept) {
        messages_keep(group, arrival);
        return RDT_OK;
    }
    const rdt_status status = rdti_arrival_store(&group->scope, arrival, err);
    if (status != RDT_OK)
        rdti_arrival_free(arrival, m->mailboxes);
    return status;
}

void
rdti_group_adopt(rdt_group *group, struct rdti_list *orphans)
{
    for (struct rdti_list *node = orphans->next, *next; node != orphans; node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, scope_link);
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        next = node->next;
        if (arrival->head.group_id != group->scope.id)
            continue;
        rdt_status status =
            rdti_member_claim(group, arrival->head.source, arrival->mailbox->ep, &err);
        if (status == RDT_OK)
            status = rdti_arrival_store(&group->scope, arrival, &err);
        if (status != RDT_OK)
            rdti_endpoint_fail(arrival->mailbox->ep, &err, false);
    }
}

void
rdti_group_end_receives(rdt_group *group, uint32_t rank, const struct rdt_error *err)
{
    for (struct rdti_list *node = group->scope.requests.next, *next; node != &group->scope.requests;
         node = next) {
        struct rdti_request *request = RDTI_CONTAINER(node, struct rdti_request, scope_link);
        next = node->next;
        if (!request->is_send && request->state == RDTI_REQUEST_POSTED && request->peer == rank)
            rdti_request_finish(request, (rdt_status)err->status, err);
    }
}

/* ---- Public ------------------------------------------------------------------------------ */

static rdt_status
messages_check_call(rdt_group *group, const char *call, uint32_t peer, const void *buf,
                    uint64_t len_bytes, const struct rdt_message_desc *desc, struct rdt_error *err)
{
    if (group == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the group is NULL", call);
    const rdt_status status = rdti_context_check(group->scope.ctx, call, err);
    if (status != RDT_OK)
        return status;
    if (peer >= group->scope.size && peer != RDT_SOURCE_ANY)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: rank %u of a group of %u", call, peer,
                              group->scope.size);
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
messages_no_memory(struct rdt_error *err)
{
    return rdti_error_set(err, RDT_ENOMEM, 0, "a message of %zu bytes",
                          sizeof(struct rdti_request));
}

/* No receive has taken it. */
static void
messages_cancel_local(struct rdti_request *send, const struct rdt_error *err)
{
    send->arrival->self = NULL;
    rdti_arrival_drop(send->arrival, err);
    rdti_request_finish(send, (rdt_status)err->status, err);
}

static rdt_status
messages_send_local(rdt_group *group, uint64_t tag, const void *src, uint64_t len_bytes,
                    const struct rdt_message_desc *desc, struct rdt_transfer *t,
                    struct rdt_error *err)
{
    struct rdti_request *send = rdti_request_new(&group->scope, t, group->scope.rank, tag,
                                                 (void *)(uintptr_t)src, len_bytes, desc);
    const struct rdti_message head = {.source = (uint16_t)group->scope.rank,
                                      .tag = tag,
                                      .len_bytes = len_bytes};

    if (send == NULL)
        return messages_no_memory(err);
    send->is_send = true;
    struct rdti_match_posted *posted =
        rdti_match_take_posted(&group->scope.matcher, group->scope.rank, tag);
    if (posted != NULL) {
        messages_deliver_local(RDTI_CONTAINER(posted, struct rdti_request, posted), send);
        return RDT_OK;
    }
    struct rdti_arrival *arrival =
        rdti_arrival_new(group->scope.mailboxes, NULL, &head, NULL, NULL);
    rdt_status status =
        arrival != NULL ? rdti_arrival_store(&group->scope, arrival, err) : messages_no_memory(err);
    if (status != RDT_OK) {
        if (arrival != NULL)
            rdti_arrival_free(arrival, group->scope.mailboxes);
        rdti_request_release(send);
        return status;
    }
    arrival->self = send;
    send->arrival = arrival;
    send->cancel = messages_cancel_local;
    send->state = RDTI_REQUEST_LOCAL;
    return RDT_OK;
}

static rdt_status
messages_send_remote(rdt_group *group, uint32_t dst, uint64_t tag, const void *src,
                     uint64_t len_bytes, const struct rdt_message_desc *desc, uint32_t **sums,
                     struct rdt_transfer *t, struct rdt_error *err)
{
    struct rdti_mailbox *m = rdti_mailbox_of(group->scope.members[dst].ep);
    struct rdti_message head = {.source = (uint16_t)group->scope.rank,
                                .group_id = group->scope.id,
                                .tag = tag,
                                .len_bytes = len_bytes};
    rdt_status status = rdti_endpoint_error(group->scope.members[dst].ep, err);

    if (status != RDT_OK)
        return status;
    if (desc != NULL)
        rdti_message_set_desc(&head, desc);
    if (rdti_stand_send_now(m, &head, src, t, &status, err))
        return status;
    struct rdti_request *send =
        rdti_request_new(&group->scope, t, dst, tag, (void *)(uintptr_t)src, len_bytes, desc);
    if (send == NULL)
        return messages_no_memory(err);
    send->is_send = true;
    send->sums = *sums;
    *sums = NULL;
    rdti_stand_send(m, send);
    return RDT_OK;
}

/* Bytes that may be written in place are summed without the lock. */
static rdt_status
messages_sum_before(const rdt_group *group, uint32_t dst, const void *src, uint64_t len_bytes,
                    uint32_t **out, struct rdt_error *err)
{
    if (!rdti_context_verifies(group->scope.ctx) || dst == group->scope.rank ||
        len_bytes <= RDTI_RING_LARGE_BYTES / 4)
        return RDT_OK;
    *out = rdti_sums_make(src, len_bytes);
    return *out != NULL ? RDT_OK : messages_no_memory(err);
}

/* over budget: everything begun is undone in one place. */
rdt_status
rdt_group_send(rdt_group *group, uint32_t dst, uint64_t tag, const void *src, uint64_t len_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = messages_check_call(group, "group_send", dst, src, len_bytes, desc, err);

    if (status == RDT_OK && dst == RDT_SOURCE_ANY)
        status = rdti_error_set(err, RDT_EINVAL, 0, "group_send: to no rank");
    uint32_t *sums = NULL;
    if (status == RDT_OK)
        status = messages_sum_before(group, dst, src, len_bytes, &sums, err);
    if (status == RDT_OK)
        status = rdti_group_enter(group, dst, err);
    if (status != RDT_OK) {
        free(sums);
        return status;
    }
    struct rdt_transfer *t = rdti_transfer_new(group->scope.ctx->pool);
    if (t != NULL)
        rdt_transfer_trace(t, "send", rdti_scope_global_rank(&group->scope, dst), len_bytes);
    if (t == NULL)
        status = messages_no_memory(err);
    else if (dst == group->scope.rank)
        status = messages_send_local(group, tag, src, len_bytes, desc, t, err);
    else
        status = messages_send_remote(group, dst, tag, src, len_bytes, desc, &sums, t, err);
    rdti_engine_leave(group->scope.ctx->engine);
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
messages_post_receive(rdt_group *group, uint32_t src, uint64_t tag, void *dst, uint64_t cap_bytes,
                      const struct rdt_message_desc *desc, struct rdt_transfer *t,
                      struct rdt_error *err)
{
    const bool has_desc = desc != NULL && desc->op != 0;
    struct rdti_rx_stream *stream =
        rdti_stand_find(&group->scope, src, tag, dst, cap_bytes, has_desc);
    struct rdti_request *receive =
        rdti_request_new(&group->scope, t, src, tag, dst, cap_bytes, desc);

    if (receive == NULL)
        return messages_no_memory(err);
    t->on_drop = messages_on_drop;
    struct rdti_match_arrival *match = rdti_match_take_arrival(&group->scope.matcher, src, tag);
    if (match != NULL) {
        rdti_stand_skip(stream);
        messages_take_arrival(receive, RDTI_CONTAINER(match, struct rdti_arrival, match));
        if (src != RDT_SOURCE_ANY && has_desc && rdti_tag_is_once(tag))
            rdti_stand_missed(&group->scope, src, dst, cap_bytes);
        return RDT_OK;
    }
    rdt_status status = group->state == RDTI_GROUP_LIVE ? rdti_group_can_receive(group, src, err)
                                                        : rdti_error_copy(err, &group->error);
    if (status == RDT_OK)
        status = rdti_match_post(&group->scope.matcher, src, tag, &receive->posted, err);
    if (status != RDT_OK)
        rdti_request_release(receive);
    else
        rdti_stand_posted(stream, receive);
    return status;
}

/* As rdti_group_enter(), also where the group is broken and has such a message of a dead member. */
static rdt_status
messages_enter_to_receive(rdt_group *group, uint32_t src, uint64_t tag, bool has_desc,
                          struct rdt_error *err)
{
    const struct rdti_list *arrivals = &group->scope.arrivals;
    struct rdti_engine *engine = group->scope.ctx->engine;
    const rdt_status status = rdti_group_enter(group, src, err);

    if (status == RDT_OK || has_desc)
        return status;
    rdti_engine_enter(engine);
    for (const struct rdti_list *node = arrivals->next;
         group->state == RDTI_GROUP_BROKEN && node != arrivals; node = node->next) {
        const struct rdti_arrival *arrival =
            RDTI_CONTAINER(node, const struct rdti_arrival, scope_link);
        if (!arrival->is_kept && arrival->head.tag == tag &&
            (src == RDT_SOURCE_ANY || arrival->head.source == src))
            return RDT_OK;
    }
    rdti_engine_leave(engine);
    return status;
}

rdt_status
rdt_group_recv(rdt_group *group, uint32_t src, uint64_t tag, void *dst, uint64_t cap_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = messages_check_call(group, "group_recv", src, dst, cap_bytes, desc, err);

    if (status == RDT_OK && out == NULL)
        status = rdti_error_set(err, RDT_EINVAL, 0, "group_recv: out is NULL");
    if (status == RDT_OK)
        status = messages_enter_to_receive(group, src, tag, desc != NULL && desc->op != 0, err);
    if (status != RDT_OK)
        return status;
    struct rdt_transfer *t = rdti_transfer_new(group->scope.ctx->pool);
    if (t != NULL)
        rdt_transfer_trace(t, "receive",
                           src == RDT_SOURCE_ANY ? RDT_RANK_UNKNOWN
                                                 : rdti_scope_global_rank(&group->scope, src),
                           cap_bytes);
    status = t == NULL ? messages_no_memory(err)
                       : messages_post_receive(group, src, tag, dst, cap_bytes, desc, t, err);
    rdti_engine_leave(group->scope.ctx->engine);
    if (status == RDT_OK)
        *out = t;
    else if (t != NULL)
        rdti_transfer_discard(t);
    return status;
}

uint32_t
rdt_group_stands(rdt_group *group, uint32_t src, const void *dst, uint64_t len_bytes)
{
    if (group == NULL || len_bytes < RDTI_KEYED_MIN_BYTES || src >= group->scope.size ||
        rdti_context_check(group->scope.ctx, "group_stands", NULL) != RDT_OK)
        return RDT_STANDS_NOT;
    rdti_engine_enter(group->scope.ctx->engine);
    const uint32_t reach = rdti_stand_reach(&group->scope, src, dst, len_bytes);
    rdti_engine_leave(group->scope.ctx->engine);
    return reach;
}

uint32_t
rdt_group_is_told(rdt_group *group, uint32_t dst, uint64_t tag, uint64_t len_bytes)
{
    if (group == NULL || len_bytes < RDTI_KEYED_MIN_BYTES || dst >= group->scope.size ||
        dst == group->scope.rank || !rdti_tag_is_once(tag) ||
        rdti_context_check(group->scope.ctx, "group_is_told", NULL) != RDT_OK)
        return 0;
    rdti_engine_enter(group->scope.ctx->engine);
    const bool is = rdti_stand_is_told(&group->scope, dst, tag, len_bytes);
    rdti_engine_leave(group->scope.ctx->engine);
    return is ? 1 : 0;
}
