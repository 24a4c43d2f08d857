/* SPDX-License-Identifier: Apache-2.0
 * Endpoints in use: posting, notifications, ends. How they come to be is path.c. */
#include "core/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/range.h"
#include "base/text.h"
#include "core/endpoint_impl.h"
#include "core/group.h"
#include "core/mailbox.h"
#include "core/slot.h"
#include "wire/notify.h"

/* User notifications that wait for rdt_endpoint_wait_notify(); more of them is a program that never looks. */
#define INBOX_MAX 65536
/* A lane that broke while the side channel still stands: how long the channel may take to say whether the peer left or died. Between hosts the
 * end of a data stream can overtake the goodbye on another connection. */
#define LANE_GRACE_NS UINT64_C(200000000)
/* A closing endpoint that the peer does not answer is closed all the same. */
#define CLOSE_LINGER_NS UINT64_C(2000000000)

enum rdti_endpoint_state
rdti_endpoint_get_state(const rdt_endpoint *ep)
{
    /* seq_cst: pairs with set_state(), see rdti_endpoint_post(). */
    return (enum rdti_endpoint_state)atomic_load_explicit(&ep->state, memory_order_seq_cst);
}

void
rdti_endpoint_set_state(rdt_endpoint *ep, enum rdti_endpoint_state state)
{
    atomic_store_explicit(&ep->state, state, memory_order_seq_cst);
    rdti_engine_wake(ep->ctx->engine);
}

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

int32_t
rdti_endpoint_rank(const rdt_endpoint *ep)
{
    return ep->rank;
}

struct rdti_mailbox *
rdti_endpoint_mailbox(rdt_endpoint *ep)
{
    return ep->mailbox;
}

struct rdti_slots *
rdti_endpoint_slots(rdt_endpoint *ep)
{
    return ep->slots;
}

struct rdti_transport_caps
rdti_endpoint_caps(const rdt_endpoint *ep)
{
    if (ep->lane == NULL)
        return (struct rdti_transport_caps){0};
    return ep->lane->transport->caps;
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
rdti_endpoint_is_ended(const rdt_endpoint *ep)
{
    const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);

    return state == RDTI_EP_LEFT || state == RDTI_EP_FAILED;
}

rdt_status
rdti_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err)
{
    if (rdti_endpoint_is_ended(ep))
        return rdti_error_copy(err, &ep->error);
    if (rdti_endpoint_get_state(ep) == RDTI_EP_CLOSING)
        return rdti_error_set_rank(err, RDT_ECLOSED, ep->rank,
                                   "the endpoint to rank %d was closed here", (int)ep->rank);
    return RDT_OK;
}

rdt_endpoint *
rdti_endpoint_find(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);
        if ((state == RDTI_EP_CONNECTING || state == RDTI_EP_READY) &&
            memcmp(ep->uuid, uuid, RDT_UUID_BYTES) == 0)
            return ep;
    }
    return NULL;
}

void
rdti_endpoint_ref(rdt_endpoint *ep)
{
    ep->refs++;
}

void
rdti_endpoint_pin_mapping(rdt_endpoint *ep)
{
    /* seq_cst: counted before the generation is looked at; pairs with answer_revocations(). */
    (void)atomic_fetch_add_explicit(&ep->map_pins, 1, memory_order_seq_cst);
}

void
rdti_endpoint_unpin_mapping(rdt_endpoint *ep)
{
    (void)atomic_fetch_sub_explicit(&ep->map_pins, 1, memory_order_seq_cst);
}

bool
rdti_endpoint_hold(rdt_endpoint *ep)
{
    const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);

    if (state != RDTI_EP_CONNECTING && state != RDTI_EP_READY)
        return false;
    ep->refs++;
    return true;
}

/* ---- Posting ----------------------------------------------------------------------------- */

static rdt_status
give_to_lane(rdt_endpoint *ep, struct rdti_op *op, struct rdt_error *err)
{
    struct rdti_lane *lane = ep->lane;

    return op->kind == RDTI_OP_WRITE ? lane->transport->write(lane, op, err)
                                     : lane->transport->read(lane, op, err);
}

/* Closing endpoints still flush what the mailbox owes; users have given up their handles by then. */
static bool
has_lane(enum rdti_endpoint_state state)
{
    return state == RDTI_EP_READY || state == RDTI_EP_CLOSING;
}

static rdt_status
post_slowly(rdt_endpoint *ep, struct rdt_transfer *t, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    rdti_engine_enter(ep->ctx->engine);
    switch (rdti_endpoint_get_state(ep)) {
    case RDTI_EP_READY: /* it became so meanwhile, and what was queued has gone out before */
    case RDTI_EP_CLOSING:
        status = give_to_lane(ep, &t->op, err);
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

rdt_status
rdti_endpoint_post(rdt_endpoint *ep, struct rdt_transfer *t, struct rdt_error *err)
{
    rdt_status status;

    /* Counted by kind before the op may be gone. relaxed: statistics */
    rdti_count(t->op.kind == RDTI_OP_WRITE ? &ep->ctx->counters.writes : &ep->ctx->counters.reads,
               1);
    /* seq_cst, both: either this thread sees that the endpoint has ended, or bury() sees this user of the lane. */
    (void)atomic_fetch_add_explicit(&ep->lane_users, 1, memory_order_seq_cst);
    if (has_lane(rdti_endpoint_get_state(ep))) {
        status = give_to_lane(ep, &t->op, err);
        (void)atomic_fetch_sub_explicit(&ep->lane_users, 1, memory_order_seq_cst);
        return status;
    }
    (void)atomic_fetch_sub_explicit(&ep->lane_users, 1, memory_order_seq_cst);
    return post_slowly(ep, t, err);
}

rdt_status
rdti_endpoint_post_write(rdt_endpoint *ep, const struct rdt_block *blocks, uint32_t count,
                         const struct rdt_remote_region *dst, uint32_t notify, bool is_urgent,
                         void (*on_release)(struct rdt_transfer *t), void *owner,
                         struct rdt_error *err)
{
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);

    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = notify;
    t->op.is_urgent = is_urgent;
    t->op.remote = *dst;
    for (uint32_t i = 0; i < count && i < 2; i++) {
        t->pair[i] = blocks[i];
        t->op.len_bytes += blocks[i].len_bytes;
    }
    t->op.blocks = t->pair;
    t->op.block_count = count;
    t->on_release = on_release;
    t->owner = owner;
    const rdt_status status = rdti_endpoint_post(ep, t, err);
    if (status != RDT_OK)
        rdti_transfer_discard(t);
    else
        rdt_transfer_free(t);
    return status;
}

rdt_status
rdti_endpoint_post_notify(rdt_endpoint *ep, uint32_t notify, bool is_urgent, struct rdt_error *err)
{
    return rdti_endpoint_post_write(ep, NULL, 0, &ep->peer_ring, notify, is_urgent, NULL, NULL,
                                    err);
}

void
rdti_endpoint_send_frame(rdt_endpoint *ep, enum rdti_frame_type type, const uint8_t *payload,
                         size_t len_bytes)
{
    rdti_engine_enter(ep->ctx->engine); /* the channel may go at any time otherwise */
    if (ep->channel != NULL)
        rdti_channel_send(ep->channel, (uint16_t)type, payload, len_bytes, NULL, 0);
    rdti_engine_leave(ep->ctx->engine);
}

/* ---- Arrivals ---------------------------------------------------------------------------- */

static rdt_status
push_inbox(rdt_endpoint *ep, uint32_t value, struct rdt_error *err)
{
    if (ep->inbox_count == ep->inbox_cap) {
        const uint32_t cap = ep->inbox_cap == 0 ? 64 : ep->inbox_cap * 2;
        if (cap > INBOX_MAX)
            return rdti_error_set_rank(
                err, RDT_EPROTO, ep->rank,
                "%d notifications of rank %d were never taken: call wait_notify", INBOX_MAX,
                (int)ep->rank);
        uint32_t *inbox = malloc(sizeof(*inbox) * cap);
        if (inbox == NULL)
            return rdti_error_set(err, RDT_ENOMEM, 0, "room for %u notifications", cap);
        for (uint32_t i = 0; i < ep->inbox_count; i++)
            inbox[i] = ep->inbox[(ep->inbox_head + i) % ep->inbox_cap];
        free(ep->inbox);
        ep->inbox = inbox;
        ep->inbox_cap = cap;
        ep->inbox_head = 0;
    }
    ep->inbox[(ep->inbox_head + ep->inbox_count) % ep->inbox_cap] = value;
    ep->inbox_count++;
    /* seq_cst: the waiter's second look before sleep */
    atomic_store_explicit(&ep->inbox_ready, ep->inbox_count, memory_order_seq_cst);
    rdti_engine_wake(ep->ctx->engine);
    return RDT_OK;
}

void
rdti_endpoint_on_notify(rdt_endpoint *ep, uint32_t notification)
{
    struct rdt_error err = {.peer_rank = ep->rank};
    rdt_status status;
    uint32_t value;
    uint32_t epoch;

    if (rdti_endpoint_is_ended(ep))
        return;
    switch (rdti_notify_parse(notification, &value, &epoch)) {
    case RDTI_NOTIFY_IS_SLOT:
        status = rdti_slots_on_data(ep->slots, value, epoch, &err);
        break;
    case RDTI_NOTIFY_IS_CREDIT:
        status = rdti_slots_on_credit(ep->slots, value, &err);
        break;
    case RDTI_NOTIFY_IS_USER:
        status = push_inbox(ep, value, &err);
        break;
    case RDTI_NOTIFY_IS_MESSAGE:
        status = rdti_mailbox_on_message(ep->mailbox, &err);
        break;
    case RDTI_NOTIFY_IS_PROBE:
        status = rdti_path_on_probe(ep, &err);
        break;
    default:
        status = rdti_error_set_rank(&err, RDT_EPROTO, ep->rank,
                                     "rank %d sent the notification 0x%x, which means nothing",
                                     (int)ep->rank, notification);
        break;
    }
    if (status != RDT_OK)
        rdti_endpoint_fail(ep, &err, true);
}

void
rdti_endpoint_on_lane_error(rdt_endpoint *ep, const struct rdt_error *err)
{
    if (rdti_endpoint_is_ended(ep) || ep->lane_broken_ns != 0)
        return;
    ep->lane_error = *err;
    ep->lane_broken_ns = rdti_now_ns();
    ep->ctx->has_core_work = true;
}

/* ---- Ends -------------------------------------------------------------------------------- */

void
rdti_endpoint_fail(rdt_endpoint *ep, const struct rdt_error *err, bool is_death)
{
    if (rdti_endpoint_is_ended(ep))
        return;
    ep->error = *err;
    if (ep->error.status == RDT_OK)
        ep->error.status = RDT_EPEER;
    if (ep->error.peer_rank == RDT_RANK_UNKNOWN)
        ep->error.peer_rank = ep->rank;
    ep->is_death = is_death && rdti_endpoint_get_state(ep) != RDTI_EP_CLOSING;
    rdti_endpoint_set_state(ep, RDTI_EP_FAILED);
    ep->ctx->has_core_work = true;
}

void
rdti_endpoint_leave(rdt_endpoint *ep)
{
    if (rdti_endpoint_is_ended(ep))
        return;
    (void)rdti_error_set_rank(&ep->error, RDT_EPEER, ep->rank,
                              "rank %d left: it closed the connection", (int)ep->rank);
    rdti_endpoint_set_state(ep, RDTI_EP_LEFT);
    ep->ctx->has_core_work = true;
}

static void
fail_pending(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&ep->pending)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        op->complete(op, (rdt_status)err->status, err);
    }
}

static void
drop_revocations(rdt_endpoint *ep)
{
    /* The lane is closed: this peer can write nothing any more, which is what the acknowledgement would have said. */
    for (uint32_t i = 0; i < ep->revoke_count; i++)
        (void)rdti_regions_acknowledge(ep->ctx->regions, ep->revokes[i].index,
                                       ep->revokes[i].generation);
    ep->revoke_count = 0;
}

void
rdti_endpoint_release_path(rdt_endpoint *ep, const struct rdt_error *err)
{
    if (ep->lane != NULL) {
        ep->lane->transport->close_lane(ep->lane, err);
        ep->lane = NULL;
    }
    if (rdti_endpoint_get_state(ep) == RDTI_EP_LEFT)
        rdti_channel_retire(ep->channel, &ep->ctx->retired);
    else
        rdti_channel_destroy(ep->channel);
    ep->channel = NULL;
    rdti_path_drop_pidfd(ep);
    drop_revocations(ep);
}

/* [driver] The state says LEFT or FAILED; now nothing of it may move any more. False: a writer is still inside the lane. */
static bool
bury(rdt_endpoint *ep)
{
    /* seq_cst: pairs with rdti_endpoint_post(). */
    if (atomic_load_explicit(&ep->lane_users, memory_order_seq_cst) > 0)
        return false;
    ep->is_buried = true;
    rdti_path_end_setup(ep);
    ep->transport_id = RDT_TRANSPORT_AUTO;
    rdti_endpoint_release_path(ep, &ep->error);
    fail_pending(ep, &ep->error);
    if (ep->is_death) {
        struct rdti_obituary news = {.rank = ep->rank};
        memcpy(news.uuid, ep->uuid, RDT_UUID_BYTES);
        rdti_text_copy(news.reason, sizeof(news.reason), ep->error.message);
        rdti_context_announce_death(ep->ctx, &news, ep);
    }
    rdti_mailbox_on_ended(ep->mailbox, &ep->error);
    rdti_slots_on_ended(ep->slots, &ep->error);
    rdti_groups_on_left(ep->ctx->groups, ep, &ep->error);
    if (ep->error.status != RDT_EPEER || ep->is_death)
        rdti_log(RDT_LOG_INFO, "endpoint to rank %d ended: %s", (int)ep->rank, ep->error.message);
    rdti_engine_wake(ep->ctx->engine);
    return true;
}

static void
free_endpoint(rdt_endpoint *ep)
{
    rdti_list_remove(&ep->link);
    rdti_mailbox_destroy(ep->mailbox);
    rdti_slots_destroy(ep->slots);
    rdt_region_free(ep->ring, NULL, NULL);
    free(ep->setup);
    free(ep->inbox);
    free(ep->revokes);
    free(ep->answers);
    free(ep);
}

/* A closing endpoint: goodbye once idle; gone once the peer answered or the linger is over. */
static void
advance_closing(rdt_endpoint *ep)
{
    const bool is_late = rdti_now_ns() >= ep->linger_until_ns;
    struct rdt_error err = {.peer_rank = ep->rank};

    if (ep->channel == NULL || ep->lane == NULL || ep->lane_broken_ns != 0 || is_late) {
        (void)rdti_error_set_rank(&err, RDT_ECLOSED, ep->rank,
                                  "the endpoint to rank %d was closed here", (int)ep->rank);
        ep->error = err;
        rdti_endpoint_set_state(ep, RDTI_EP_LEFT);
        return;
    }
    if (!ep->said_goodbye && rdti_mailbox_is_idle(ep->mailbox) &&
        ep->lane->transport->is_idle(ep->lane)) {
        ep->said_goodbye = true;
        rdti_channel_send(ep->channel, RDTI_FRAME_GOODBYE, NULL, 0, NULL, 0);
    }
}

static void
answer_revocations(rdt_endpoint *ep)
{
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    /* seq_cst: a write that began before the generation ended is counted here until it is over. */
    if (ep->answer_count == 0 || atomic_load_explicit(&ep->lane_users, memory_order_seq_cst) > 0 ||
        atomic_load_explicit(&ep->map_pins, memory_order_seq_cst) > 0)
        return;
    for (uint32_t i = 0; i < ep->answer_count && ep->channel != NULL; i++)
        rdti_channel_send(ep->channel, RDTI_FRAME_REVOKED, payload,
                          rdti_revoke_encode(&ep->answers[i], payload), NULL, 0);
    ep->answer_count = 0;
}

uint32_t
rdti_endpoints_poll(void *state)
{
    rdt_context *ctx = state;
    uint32_t work = 0;

    if (!ctx->has_core_work)
        return 0;
    ctx->has_core_work = false;
    for (struct rdti_list *node = ctx->endpoints.next, *next; node != &ctx->endpoints;
         node = next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        next = node->next;
        if (ep->lane_broken_ns != 0 && !rdti_endpoint_is_ended(ep)) {
            if (ep->channel != NULL)
                rdti_channel_drain(ep->channel); /* did it say goodbye? */
            if (!rdti_endpoint_is_ended(ep) && rdti_now_ns() - ep->lane_broken_ns > LANE_GRACE_NS)
                rdti_endpoint_fail(ep, &ep->lane_error, true);
        }
        if (rdti_endpoint_get_state(ep) == RDTI_EP_CLOSING)
            advance_closing(ep);
        answer_revocations(ep);
        if (rdti_endpoint_is_ended(ep) && !ep->is_buried)
            work += bury(ep) ? 1 : 0;
        const bool is_waiting = ep->lane_broken_ns != 0 || ep->answer_count > 0 ||
                                rdti_endpoint_get_state(ep) == RDTI_EP_CLOSING;
        if (ep->is_buried && ep->refs == 0)
            free_endpoint(ep);
        else if ((is_waiting || rdti_endpoint_is_ended(ep)) && !ep->is_buried)
            ctx->has_core_work = true;
    }
    return work;
}

bool
rdti_endpoints_need_epoll(void *state)
{
    (void)state;
    return false; /* side channels are watched by the progress thread; waiters look once in a slice */
}

/* ---- Public ------------------------------------------------------------------------------ */

static rdt_status
check_usable(const rdt_endpoint *ep, const char *call, struct rdt_error *err)
{
    if (ep == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the endpoint is NULL", call);
    return rdti_context_check(ep->ctx, call, err);
}

static rdt_status
check_remote(const rdt_endpoint *ep, const char *call, const struct rdt_remote_region *remote,
             uint64_t off_bytes, uint64_t len_bytes, struct rdt_error *err)
{
    if (remote == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the remote region is NULL", call);
    if (memcmp(remote->owner, ep->uuid, RDT_UUID_BYTES) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "%s: the remote region belongs to another process than rank %d", call,
                              (int)ep->rank);
    if (!rdti_range_ok(off_bytes, len_bytes, remote->len_bytes))
        return rdti_error_set(err, RDT_ERANGE, 0,
                              "%s: offset %llu + %llu bytes leaves the region of %llu bytes", call,
                              (unsigned long long)off_bytes, (unsigned long long)len_bytes,
                              (unsigned long long)remote->len_bytes);
    return RDT_OK;
}

static rdt_status
start_op(rdt_endpoint *ep, struct rdt_transfer *t, rdt_transfer **out, struct rdt_error *err)
{
    const rdt_status status = rdti_endpoint_post(ep, t, err);

    if (status != RDT_OK)
        rdti_transfer_discard(t);
    else if (out != NULL)
        *out = t;
    else
        rdt_transfer_free(t);
    return status;
}

static rdt_status
notify_word(const char *call, uint32_t notify, uint32_t *out, struct rdt_error *err)
{
    if (notify == RDT_NOTIFY_NONE)
        *out = RDTI_NOTIFY_NONE;
    else if (notify <= RDT_NOTIFY_MAX)
        *out = rdti_notify_user(notify);
    else
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: notification %u is over %u", call, notify,
                              RDT_NOTIFY_MAX);
    return RDT_OK;
}

rdt_status
rdt_endpoint_write(rdt_endpoint *ep, const void *src, uint64_t len_bytes,
                   const struct rdt_remote_region *dst, uint64_t dst_off, uint32_t notify,
                   rdt_transfer **out, struct rdt_error *err)
{
    uint32_t word = RDTI_NOTIFY_NONE;
    rdt_status status = check_usable(ep, "write", err);

    if (status == RDT_OK)
        status = check_remote(ep, "write", dst, dst_off, len_bytes, err);
    if (status == RDT_OK)
        status = notify_word("write", notify, &word, err);
    if (status != RDT_OK)
        return status;
    if (src == NULL && len_bytes > 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "write: the source is NULL");
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = word;
    t->op.remote = *dst;
    t->op.block = (struct rdt_block){.src = src, .len_bytes = len_bytes, .dst_off = dst_off};
    t->op.blocks = &t->op.block;
    t->op.block_count = len_bytes > 0 ? 1 : 0;
    t->op.len_bytes = len_bytes;
    return start_op(ep, t, out, err);
}

rdt_status
rdt_endpoint_write_many(rdt_endpoint *ep, const struct rdt_block *blocks, uint32_t count,
                        const struct rdt_remote_region *dst, uint32_t notify, rdt_transfer **out,
                        struct rdt_error *err)
{
    uint32_t word = RDTI_NOTIFY_NONE;
    uint64_t total = 0;
    rdt_status status = check_usable(ep, "write_many", err);

    if (status == RDT_OK && (blocks == NULL || count == 0))
        status = rdti_error_set(err, RDT_EINVAL, 0, "write_many: no blocks");
    for (uint32_t i = 0; status == RDT_OK && i < count; i++) {
        status = check_remote(ep, "write_many", dst, blocks[i].dst_off, blocks[i].len_bytes, err);
        if (status == RDT_OK && blocks[i].src == NULL && blocks[i].len_bytes > 0)
            status =
                rdti_error_set(err, RDT_EINVAL, 0, "write_many: the source of block %u is NULL", i);
        if (status == RDT_OK && total + blocks[i].len_bytes < total)
            status = rdti_error_set(err, RDT_ERANGE, 0, "write_many: the blocks' sum overflows");
        total += blocks[i].len_bytes;
    }
    if (status == RDT_OK)
        status = notify_word("write_many", notify, &word, err);
    if (status != RDT_OK)
        return status;
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL || (t->blocks = malloc(sizeof(*blocks) * count)) == NULL) {
        if (t != NULL)
            rdti_transfer_discard(t);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %u blocks", count);
    }
    memcpy(t->blocks, blocks, sizeof(*blocks) * count);
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = word;
    t->op.remote = *dst;
    t->op.blocks = t->blocks;
    t->op.block_count = count;
    t->op.len_bytes = total;
    return start_op(ep, t, out, err);
}

rdt_status
rdt_endpoint_read(rdt_endpoint *ep, void *dst, uint64_t len_bytes,
                  const struct rdt_remote_region *src, uint64_t src_off, rdt_transfer **out,
                  struct rdt_error *err)
{
    rdt_status status = check_usable(ep, "read", err);

    if (status == RDT_OK)
        status = check_remote(ep, "read", src, src_off, len_bytes, err);
    if (status == RDT_OK && dst == NULL && len_bytes > 0)
        status = rdti_error_set(err, RDT_EINVAL, 0, "read: the destination is NULL");
    if (status != RDT_OK)
        return status;
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_READ;
    t->op.notify = RDTI_NOTIFY_NONE;
    t->op.remote = *src;
    t->op.block = (struct rdt_block){.src = dst, .len_bytes = len_bytes, .dst_off = src_off};
    t->op.blocks = &t->op.block;
    t->op.block_count = 1;
    t->op.len_bytes = len_bytes;
    return start_op(ep, t, out, err);
}

static bool
has_notify(void *arg)
{
    const rdt_endpoint *ep = arg;

    return atomic_load_explicit(&ep->inbox_ready, memory_order_seq_cst) > 0 ||
           (rdti_endpoint_get_state(ep) != RDTI_EP_READY &&
            rdti_endpoint_get_state(ep) != RDTI_EP_CONNECTING);
}

static rdt_status
pop_inbox(rdt_endpoint *ep, uint32_t *out, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    rdti_engine_enter(ep->ctx->engine);
    if (ep->inbox_count > 0) {
        *out = ep->inbox[ep->inbox_head];
        ep->inbox_head = (ep->inbox_head + 1) % ep->inbox_cap;
        ep->inbox_count--;
        atomic_store_explicit(&ep->inbox_ready, ep->inbox_count, memory_order_seq_cst);
    } else {
        status = rdti_endpoint_error(ep, err);
        if (status == RDT_OK)
            status = RDT_EAGAIN;
    }
    rdti_engine_leave(ep->ctx->engine);
    return status;
}

rdt_status
rdt_endpoint_wait_notify(rdt_endpoint *ep, uint64_t timeout_ns, uint32_t *out,
                         struct rdt_error *err)
{
    rdt_status status = check_usable(ep, "wait_notify", err);

    if (status != RDT_OK)
        return status;
    if (timeout_ns == RDT_NO_WAIT) {
        if (!has_notify(ep))
            (void)rdti_engine_progress(ep->ctx->engine);
        return pop_inbox(ep, out, err);
    }
    timeout_ns = timeout_ns == RDT_TIMEOUT_DEFAULT ? ep->ctx->opts.timeout_ns : timeout_ns;
    status = rdti_engine_wait(ep->ctx->engine, has_notify, ep, rdti_deadline_after(timeout_ns));
    if (status == RDT_ETIMEDOUT)
        return rdti_error_set_rank(err, RDT_ETIMEDOUT, ep->rank,
                                   "no notification of rank %d within %.3f s", (int)ep->rank,
                                   (double)timeout_ns / 1e9);
    if (status != RDT_OK)
        return rdti_error_set(err, status, 0,
                              "wait_notify: called from a task, which must not wait");
    return pop_inbox(ep, out, err);
}

struct map_wait {
    rdt_endpoint *ep;
    const struct rdt_remote_region *remote;
    void *addr;
    rdt_status status;
    struct rdt_error err;
};

static rdt_status
try_map(struct map_wait *wait)
{
    rdt_endpoint *ep = wait->ep;
    rdt_status status;

    rdti_engine_enter(ep->ctx->engine);
    status = rdti_endpoint_error(ep, &wait->err);
    if (status == RDT_OK && rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING)
        status = RDT_EAGAIN;
    else if (status == RDT_OK && ep->lane->transport->map == NULL)
        status = rdti_error_set(&wait->err, RDT_ENOTSUP, 0,
                                "map: the path to rank %d is %s, which shares no memory",
                                (int)ep->rank, ep->lane->transport->name);
    else if (status == RDT_OK)
        status = ep->lane->transport->map(ep->lane, wait->remote, &wait->addr, &wait->err);
    rdti_engine_leave(ep->ctx->engine);
    return status;
}

static bool
is_mapped(void *arg)
{
    struct map_wait *wait = arg;

    wait->status = try_map(wait);
    return wait->status != RDT_EAGAIN;
}

rdt_status
rdt_endpoint_map(rdt_endpoint *ep, const struct rdt_remote_region *remote, void **out,
                 struct rdt_error *err)
{
    struct map_wait wait = {.ep = ep, .remote = remote};
    rdt_status status = check_usable(ep, "map", err);

    if (status == RDT_OK)
        status = check_remote(ep, "map", remote, 0, 0, err);
    if (status != RDT_OK)
        return status;
    status = rdti_engine_wait(ep->ctx->engine, is_mapped, &wait,
                              rdti_deadline_after(ep->ctx->opts.timeout_ns));
    if (status != RDT_OK)
        return rdti_error_set_rank(err, status, ep->rank,
                                   "map: rank %d did not hand over its memory in time",
                                   (int)ep->rank);
    if (wait.status != RDT_OK)
        return rdti_error_copy(err, &wait.err);
    *out = wait.addr;
    return RDT_OK;
}

uint32_t
rdt_endpoint_transport(const rdt_endpoint *ep)
{
    return rdti_endpoint_get_state(ep) == RDTI_EP_READY ? ep->transport_id : RDT_TRANSPORT_AUTO;
}

void
rdt_endpoint_close(rdt_endpoint *ep)
{
    if (ep == NULL || rdti_in_forked_child())
        return;
    rdti_engine_enter(ep->ctx->engine);
    if (--ep->refs == 0) {
        if (rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING) {
            (void)rdti_error_set_rank(&ep->error, RDT_ECLOSED, ep->rank,
                                      "the endpoint to rank %d was closed here", (int)ep->rank);
            rdti_endpoint_set_state(ep, RDTI_EP_LEFT);
        } else if (rdti_endpoint_get_state(ep) == RDTI_EP_READY) {
            ep->linger_until_ns = rdti_deadline_after(CLOSE_LINGER_NS);
            rdti_endpoint_set_state(ep, RDTI_EP_CLOSING);
        }
        ep->ctx->has_core_work = true;
        /* The progress thread sees it through; it may be asleep. */
        rdti_engine_poke(ep->ctx->engine);
    }
    rdti_engine_leave(ep->ctx->engine);
}
