/* SPDX-License-Identifier: Apache-2.0
 * Endpoints in use: posting and arrivals. Set-up is in setup*.c, the end in close.c. */
#include "endpoint/endpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "endpoint/endpoint_impl.h"
#include "wire/notify.h"
#include "rdmatensor_ext.h"

/* User notifications that wait for rdt_endpoint_wait_notify(). A program that exceeds this number
 * never takes them. */
#define INBOX_MAX 65536

rdt_context *
rdti_endpoint_context(const rdt_endpoint *ep)
{
    return ep->ctx;
}

const uint8_t *
rdti_endpoint_uuid(const rdt_endpoint *ep)
{
    return ep->uuid;
}

bool
rdti_endpoint_is_fallback(const rdt_endpoint *ep)
{
    return ep->lane != NULL && ep->lane->is_fallback;
}

const char *
rdti_endpoint_job_id(const rdt_endpoint *ep)
{
    return ep->job_id;
}

void *
rdti_endpoint_attached(const rdt_endpoint *ep, uint32_t protocol)
{
    return ep->attached[protocol];
}

const char *
rdti_endpoint_name_at(const rdt_endpoint *ep, uint32_t index, uint64_t *off_bytes)
{
    const struct rdti_protocol *const slots = ep->ctx->upcalls->protocols[RDTI_PROTOCOL_SLOTS];

    return slots->name_at(ep->attached[RDTI_PROTOCOL_SLOTS], index, off_bytes);
}

struct rdti_transport_caps
rdti_endpoint_caps(const rdt_endpoint *ep)
{
    /* Any thread: the lane is not read, as it may be closed now; ctx->found is immutable. */
    const uint32_t id = rdti_endpoint_transport_id(ep);

    return id == RDT_TRANSPORT_AUTO ? (struct rdti_transport_caps){0}
                                    : ep->ctx->found[id].transport->caps;
}

const struct rdt_remote_region *
rdti_endpoint_peer_ring(const rdt_endpoint *ep)
{
    return &ep->peer_ring;
}

rdt_region *
rdti_endpoint_own_ring(rdt_endpoint *ep)
{
    return ep->ring;
}

bool
rdti_endpoint_is_half_ready(const rdt_endpoint *ep)
{
    return ep->setup != NULL && ep->setup->said_ready && !rdti_endpoint_is_ended(ep);
}

rdt_status
rdti_endpoint_trouble(const rdt_endpoint *ep, struct rdt_error *err)
{
    const enum rdti_endpoint_state state = rdti_endpoint_state_of(ep);

    if (state == RDTI_EP_FAILED || (state == RDTI_EP_LEFT && ep->error.status == RDT_EPEER))
        return rdti_error_copy(err, &ep->error);
    return ep->lane_broken_ns != 0 ? rdti_error_copy(err, &ep->lane_error) : RDT_OK;
}

void
rdti_endpoint_pin_mapping(rdt_endpoint *ep)
{
    /* seq_cst: counted before the generation is read; pairs with advance_answer_revocations(). */
    (void)atomic_fetch_add_explicit(&ep->map_pins, 1, memory_order_seq_cst);
}

void
rdti_endpoint_unpin_mapping(rdt_endpoint *ep)
{
    (void)atomic_fetch_sub_explicit(&ep->map_pins, 1, memory_order_seq_cst);
}

void
rdti_endpoint_watch_flag(rdt_endpoint *ep, struct rdti_flag *flag)
{
    if (ep->lane->transport->watch_flag != NULL)
        ep->lane->transport->watch_flag(ep->lane, flag);
}

bool
rdti_endpoint_hold(rdt_endpoint *ep)
{
    const enum rdti_endpoint_state state = rdti_endpoint_state_of(ep);

    if (state != RDTI_EP_CONNECTING && state != RDTI_EP_READY)
        return false;
    rdti_endpoint_ref(ep);
    return true;
}

/* ---- Posting ----------------------------------------------------------------------------- */

static rdt_status
endpoint_give_to_lane(rdt_endpoint *ep, struct rdti_op *op, struct rdt_error *err)
{
    struct rdti_lane *lane = ep->lane;

    return op->kind == RDTI_OP_WRITE ? lane->transport->write(lane, op, err)
                                     : lane->transport->read(lane, op, err);
}

/* Closing endpoints still flush the mailbox's messages; users' handles are gone by then. */
static bool
endpoint_has_lane(enum rdti_endpoint_state state)
{
    return state == RDTI_EP_READY || state == RDTI_EP_CLOSING;
}

static bool
endpoint_is_moving(const rdt_endpoint *ep)
{
    /* seq_cst: pairs with failover.c, as the state does with advance_bury(). */
    return atomic_load_explicit(&ep->is_moving, memory_order_seq_cst);
}

/* Refused because of the lane, not because of the op itself. */
static bool
endpoint_is_of_lane(rdt_status status)
{
    return status != RDT_OK && status != RDT_ERANGE && status != RDT_ESTALE;
}

/* [driver] The lane refused the op. A moment later the side channel may know better why the lane
 * broke. Until then the op waits, as do those that were in flight, and it ends as the endpoint
 * does. */
static rdt_status
endpoint_await_verdict(rdt_endpoint *ep, struct rdt_transfer *t, rdt_status refusal,
                       struct rdt_error *err)
{
    if (rdti_endpoint_is_ended(ep))
        return rdti_endpoint_error(ep, err);
    if (ep->lane_broken_ns == 0)
        return refusal;
    rdti_list_append(&ep->pending, &t->op.link);
    return RDT_OK;
}

static rdt_status
endpoint_post_slowly(rdt_endpoint *ep, struct rdt_transfer *t, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    rdti_engine_enter(ep->ctx->engine);
    switch (rdti_endpoint_state_of(ep)) {
    case RDTI_EP_READY: /* it became READY meanwhile, and what was queued has gone out before */
    case RDTI_EP_CLOSING:
        if (endpoint_is_moving(ep))
            rdti_list_append(&ep->pending, &t->op.link);
        else
            status = endpoint_give_to_lane(ep, &t->op, err);
        if (endpoint_is_of_lane(status))
            status = endpoint_await_verdict(ep, t, status, err);
        break;
    case RDTI_EP_CONNECTING:
        rdti_list_append(&ep->pending, &t->op.link);
        break;
    default:
        status = rdti_endpoint_error(ep, err);
        break;
    }
    rdti_engine_leave(ep->ctx->engine);
    return status;
}

/* The op's name in the trace. */
static const char *
endpoint_name_of(const struct rdti_op *op)
{
    uint32_t value, epoch;

    if (op->kind == RDTI_OP_READ)
        return "read";
    return rdti_notify_parse(op->notify, &value, &epoch) == RDTI_NOTIFY_IS_SLOT ? "slot" : "write";
}

/* Replaces rdti_transfer_op_complete() for ops that are relied on. */
static void
endpoint_on_relied_over(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    rdt_endpoint *ep = RDTI_CONTAINER(op, struct rdt_transfer, op)->ep;

    if (status != RDT_OK && status != RDT_ESTALE && err != NULL) {
        rdti_engine_enter(ep->ctx->engine); /* a lane may complete in any thread */
        rdti_endpoint_on_lane_error(ep, err);
        rdti_engine_leave(ep->ctx->engine);
    }
    rdti_transfer_op_complete(op, status, err);
}

/* The peer counts what lands, credits and messages: if one were missing, it would take the next
 * one for it. Users' own numbers are only passed on. */
static void
endpoint_mark_relied(rdt_endpoint *ep, struct rdt_transfer *t)
{
    uint32_t value, epoch;

    t->ep = ep;
    if (t->op.notify != RDTI_NOTIFY_NONE &&
        rdti_notify_parse(t->op.notify, &value, &epoch) != RDTI_NOTIFY_IS_USER)
        t->op.is_relied_on = true;
    if (t->op.is_relied_on && t->op.complete == rdti_transfer_op_complete)
        t->op.complete = endpoint_on_relied_over;
}

rdt_status
rdti_endpoint_post(rdt_endpoint *ep, struct rdt_transfer *t, struct rdt_error *err)
{
    rdt_status status;

    endpoint_mark_relied(ep, t);
    /* Counted and traced by kind before the post, as the op may be gone after it. A receive reads,
     * slice by slice, with its own transfer, which has its name already. relaxed: statistics */
    if (t->trace_sequence == 0 && rdti_transfer_pool_get_trace(ep->ctx->pool) != NULL)
        rdt_transfer_trace(t, endpoint_name_of(&t->op), rdti_endpoint_rank(ep), t->op.len_bytes);
    rdti_count(t->op.kind == RDTI_OP_WRITE ? &ep->ctx->counters.writes : &ep->ctx->counters.reads,
               1);
    if (t->op.len_bytes > 0)
        rdti_count(&ep->posts, 1);
    /* seq_cst, both: either this thread sees that the endpoint has ended, or advance_bury() sees
     * this user of the lane. */
    (void)atomic_fetch_add_explicit(&ep->lane_users, 1, memory_order_seq_cst);
    if (endpoint_has_lane(rdti_endpoint_state_of(ep)) && !endpoint_is_moving(ep)) {
        status = endpoint_give_to_lane(ep, &t->op, err);
        (void)atomic_fetch_sub_explicit(&ep->lane_users, 1, memory_order_seq_cst);
        if (!endpoint_has_lane(rdti_endpoint_state_of(ep)) || endpoint_is_moving(ep))
            rdti_engine_poke(ep->ctx->engine); /* advance_bury() or a failover waits for this */
        if (!endpoint_is_of_lane(status))
            return status;
        rdti_engine_enter(ep->ctx->engine);
        status = endpoint_await_verdict(ep, t, status, err);
        rdti_engine_leave(ep->ctx->engine);
        return status;
    }
    (void)atomic_fetch_sub_explicit(&ep->lane_users, 1, memory_order_seq_cst);
    if (endpoint_is_moving(ep)) /* the failover may have counted this thread, and waits */
        rdti_engine_poke(ep->ctx->engine);
    return endpoint_post_slowly(ep, t, err);
}

rdt_status
rdti_endpoint_post_verified(rdt_endpoint *ep, struct rdt_transfer *t,
                            const struct rdt_block *in_place, struct rdt_error *err)
{
    return rdti_context_verifies(ep->ctx) ? ep->ctx->upcalls->filter->write(ep, t, in_place, err)
                                          : rdti_endpoint_post(ep, t, err);
}

rdt_status
rdti_endpoint_post_write(rdt_endpoint *ep, const struct rdt_block *block,
                         const struct rdt_remote_region *dst, enum rdti_traffic traffic,
                         uint32_t notify, bool is_urgent,
                         void (*on_release)(struct rdt_transfer *t), void *owner,
                         struct rdt_error *err)
{
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);

    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.traffic = (uint8_t)traffic;
    t->op.notify = notify;
    t->op.is_urgent = is_urgent;
    t->op.is_relied_on = true;
    t->op.remote = *dst;
    t->op.block = *block;
    t->op.blocks = &t->op.block;
    t->op.block_count = 1;
    t->op.len_bytes = block->len_bytes;
    t->on_release = on_release;
    t->owner = owner;
    const rdt_status status = rdti_endpoint_post(ep, t, err);
    if (status != RDT_OK)
        rdti_transfer_discard(t);
    else
        rdt_transfer_free(t);
    return status;
}

uint64_t
rdti_endpoint_posts(const rdt_endpoint *ep)
{
    return atomic_load_explicit(&ep->posts, memory_order_relaxed);
}

static void
endpoint_count_credit(struct rdt_transfer *t)
{
    rdt_context *ctx = t->owner;

    if (!t->op.has_ridden)
        rdti_count(&ctx->counters.credits_alone, 1);
}

rdt_status
rdti_endpoint_post_credit(rdt_endpoint *ep, uint32_t notify, bool may_ride, struct rdt_error *err)
{
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);

    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = notify;
    t->op.may_ride = may_ride;
    t->op.remote = ep->peer_ring;
    t->op.blocks = t->pair;
    t->on_release = endpoint_count_credit;
    t->owner = ep->ctx;
    const rdt_status status = rdti_endpoint_post(ep, t, err);
    if (status != RDT_OK)
        rdti_transfer_discard(t);
    else
        rdt_transfer_free(t);
    return status;
}

void
rdti_endpoint_send_frame(rdt_endpoint *ep, enum rdti_frame_type type, const uint8_t *payload,
                         size_t len_bytes)
{
    rdti_engine_enter(ep->ctx->engine); /* else the channel may go at any time */
    if (ep->channel != NULL)
        rdti_channel_send(ep->channel, (uint16_t)type, payload, len_bytes, NULL, 0);
    rdti_engine_leave(ep->ctx->engine);
}

/* ---- Arrivals ---------------------------------------------------------------------------- */

static rdt_status
endpoint_push_inbox(rdt_endpoint *ep, uint32_t value, struct rdt_error *err)
{
    if (ep->inbox_count == ep->inbox_cap) {
        const uint32_t cap = ep->inbox_cap == 0 ? 64 : ep->inbox_cap * 2;
        if (cap > INBOX_MAX)
            return rdti_error_set_rank(
                err, RDT_ENOMEM, rdti_endpoint_rank(ep),
                "%d notifications of rank %d were never taken: call wait_notify", INBOX_MAX,
                (int)rdti_endpoint_rank(ep));
        uint32_t *inbox = malloc(sizeof(*inbox) * cap);
        if (inbox == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "room for %u notifications", cap);
        for (uint32_t i = 0; i < ep->inbox_count; i++)
            inbox[i] = ep->inbox[(ep->inbox_head + i) & (ep->inbox_cap - 1)];
        free(ep->inbox);
        ep->inbox = inbox;
        ep->inbox_cap = cap;
        ep->inbox_head = 0;
    }
    ep->inbox[(ep->inbox_head + ep->inbox_count) & (ep->inbox_cap - 1)] = value;
    ep->inbox_count++;
    /* seq_cst: pairs with the waiter's second check before sleep */
    atomic_store_explicit(&ep->inbox_ready, ep->inbox_count, memory_order_seq_cst);
    rdti_engine_wake(ep->ctx->engine);
    return RDT_OK;
}

/* The notification has to come after its sums: rdti_endpoint_on_summed(). */
static rdt_status
endpoint_refuse_unsummed(const rdt_endpoint *ep, uint32_t notification, struct rdt_error *err)
{
    return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                               "rank %d sent the notification 0x%x without sums",
                               (int)rdti_endpoint_rank(ep), notification);
}

static uint32_t
endpoint_protocol_of(enum rdti_notify_kind kind)
{
    return kind == RDTI_NOTIFY_IS_STREAM ? RDTI_PROTOCOL_MESSAGES : RDTI_PROTOCOL_SLOTS;
}

static rdt_status
endpoint_notify_protocol(rdt_endpoint *ep, uint32_t protocol, enum rdti_notify_kind kind,
                         uint32_t value, uint32_t epoch, struct rdt_error *err)
{
    return ep->ctx->upcalls->protocols[protocol]->on_notify(ep->attached[protocol], kind, value,
                                                            epoch, err);
}

/* over budget: one branch per kind of notification; a table would hide which calls may fail. */
void
rdti_endpoint_on_notify(rdt_endpoint *ep, uint32_t notification)
{
    struct rdt_error err;
    rdt_status status;
    uint32_t value;
    uint32_t epoch;

    if (rdti_endpoint_is_ended(ep) || ep->lane_broken_ns != 0)
        return;
    rdti_error_init(&err, rdti_endpoint_rank(ep));
    const enum rdti_notify_kind kind = rdti_notify_parse(notification, &value, &epoch);
    if (kind != RDTI_NOTIFY_IS_PROBE && rdti_endpoint_state_of(ep) == RDTI_EP_CONNECTING &&
        rdti_path_on_early(ep, &err) != RDT_OK) {
        rdti_endpoint_on_lane_error(ep, &err);
        return;
    }
    switch (kind) {
    case RDTI_NOTIFY_IS_SLOT:
    case RDTI_NOTIFY_IS_STREAM:
        status = rdti_context_verifies(ep->ctx)
                     ? endpoint_refuse_unsummed(ep, notification, &err)
                     : endpoint_notify_protocol(ep, endpoint_protocol_of(kind), kind, value, epoch,
                                                &err);
        break;
    case RDTI_NOTIFY_IS_CREDIT:
        status = endpoint_notify_protocol(ep, RDTI_PROTOCOL_SLOTS, kind, value, epoch, &err);
        break;
    case RDTI_NOTIFY_IS_USER:
        status = rdti_context_verifies(ep->ctx) ? endpoint_refuse_unsummed(ep, notification, &err)
                                                : endpoint_push_inbox(ep, value, &err);
        break;
    case RDTI_NOTIFY_IS_MESSAGE:
        status = endpoint_notify_protocol(ep, RDTI_PROTOCOL_MESSAGES, kind, value, epoch, &err);
        break;
    case RDTI_NOTIFY_IS_PROBE:
        status = rdti_path_on_probe(ep, &err);
        break;
    default:
        status = rdti_error_set_rank(&err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                     "rank %d sent the notification 0x%x, which means nothing",
                                     (int)rdti_endpoint_rank(ep), notification);
        break;
    }
    if (status != RDT_OK && rdti_endpoint_state_of(ep) == RDTI_EP_CONNECTING)
        rdti_endpoint_on_lane_error(ep, &err); /* another path may work */
    else if (status != RDT_OK)
        rdti_endpoint_fail(ep, &err, status == RDT_EPROTO); /* else the fault is local */
}

rdt_status
rdti_endpoint_on_summed(rdt_endpoint *ep, uint32_t notification, bool is_stale,
                        struct rdt_error *err)
{
    uint32_t value;
    uint32_t epoch;

    if (notification == RDTI_NOTIFY_NONE)
        return RDT_OK;
    const enum rdti_notify_kind kind = rdti_notify_parse(notification, &value, &epoch);
    switch (kind) {
    case RDTI_NOTIFY_IS_SLOT: /* of a destroyed slot it means nothing */
    case RDTI_NOTIFY_IS_STREAM:
        return endpoint_notify_protocol(ep, endpoint_protocol_of(kind), kind, value, epoch, err);
    case RDTI_NOTIFY_IS_USER:
        return endpoint_push_inbox(ep, is_stale ? RDTI_INBOX_STALE : value, err);
    default:
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "rank %d sent sums with the notification 0x%x",
                                   (int)rdti_endpoint_rank(ep), notification);
    }
}
