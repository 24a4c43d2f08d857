/* SPDX-License-Identifier: Apache-2.0
 * The path over RDMA is lost permanently, and tcp takes its place: once in an endpoint's life, and
 * not back. Both sides do the same:
 *
 *   the lane's last link breaks, or the peer's MOVE says that its last did
 *   the lane is fenced            what the peer sent is in place and delivered, or never will be
 *   a half of a tcp lane is made -> MOVE, with the number of notifications that were delivered
 *   MOVE has come, and the streams have joined
 *   the old lane hands over       its QPs are destroyed; what the peer has is complete
 *   what is left goes again, in order; then what was posted meanwhile
 *
 * A side sends over tcp only once the other's MOVE has arrived. Therefore nothing that was in
 * flight over RDMA arrives after it, or lands after an op was completed. Ops that other threads
 * post wait from the fence on (is_moving).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/system/sockaddr.h"
#include "base/text.h"
#include "endpoint/endpoint_impl.h"
#include "endpoint/failures.h"

/* Least time for a move, from the fence or MOVE, whichever is first; never less than a peer may be
 * silent. A dead peer is found earlier, by its side channel or its silence. */
#define MOVE_LEAST_NS UINT64_C(10000000000)

static bool
failover_allows_tcp(uint32_t force, uint32_t require)
{
    return force == RDT_TRANSPORT_AUTO &&
           (require == RDT_TRANSPORT_AUTO || require == RDT_TRANSPORT_TCP);
}

/* Both sides decide alike. */
void
rdti_failover_prepare(rdt_endpoint *ep)
{
    const struct rdti_authenticated *with = &ep->setup->authenticated;
    const uint32_t both = with->hello.transports & with->challenge.transports;

    ep->may_fail_over =
        rdti_endpoint_transport_id(ep) == RDT_TRANSPORT_VERBS &&
        (both & 1u << RDT_TRANSPORT_TCP) != 0 &&
        failover_allows_tcp(with->hello.force_transport, with->hello.require_transport) &&
        failover_allows_tcp(with->challenge.force_transport, with->challenge.require_transport);
    ep->is_connector = with->is_connector;
    ep->peer_addr = with->peer;
    ep->peer_addr_bytes = with->peer_bytes;
}

bool
rdti_failover_may(const rdt_endpoint *ep)
{
    const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);

    return ep->may_fail_over && !ep->has_moved && ep->channel != NULL && !ep->said_goodbye &&
           ep->lane_broken_ns == 0 && (state == RDTI_EP_READY || state == RDTI_EP_CLOSING);
}

static struct rdti_failover *
failover_begin(rdt_endpoint *ep, const struct rdt_error *why)
{
    struct rdt_error err;

    if (ep->failover != NULL)
        return ep->failover;
    ep->failover = calloc(1, sizeof(*ep->failover));
    if (ep->failover == NULL) {
        (void)rdti_error_set_rank(&err, RDT_ENOMEM, rdti_endpoint_rank(ep),
                                  "no memory to move rank %d from verbs to tcp",
                                  (int)rdti_endpoint_rank(ep));
        rdti_endpoint_on_lane_error(ep, &err);
        return NULL;
    }
    ep->failover->why = *why;
    ep->failover->begun_ns = rdti_now_ns();
    ep->failover->patience_ns = ep->ctx->opts.peer_timeout_ns > MOVE_LEAST_NS
                                    ? ep->ctx->opts.peer_timeout_ns
                                    : MOVE_LEAST_NS;
    ep->failover->deadline_ns = rdti_deadline_after(ep->failover->patience_ns);
    return ep->failover;
}

void
rdti_failover_on_lane_error(rdt_endpoint *ep, const struct rdt_error *err)
{
    const struct rdt_error *why = &ep->failover->why;
    struct rdt_error both;

    (void)rdti_error_set_rank(&both, (rdt_status)why->status, rdti_endpoint_rank(ep),
                              "%.250s; and tcp does not take its place: %.200s", why->message,
                              err->message);
    both.wc_status = why->wc_status;
    both.vendor_err = why->vendor_err;
    rdti_endpoint_on_lane_error(ep, &both);
}

static void
failover_connect_lane(rdt_endpoint *ep)
{
    struct rdti_failover *failover = ep->failover;
    struct rdt_error err;

    if (failover->lane->transport->connect(failover->lane, &failover->peer_offer, &err) != RDT_OK)
        rdti_failover_on_lane_error(ep, &err);
}

/* ---- The fence ------------------------------------------------------------------------------ */

static rdt_status
failover_make_half(rdt_endpoint *ep, struct rdti_failover *failover, struct rdti_offer *offer,
                   struct rdt_error *err)
{
    const struct rdti_found *found = &ep->ctx->found[RDT_TRANSPORT_TCP];
    struct rdti_lane_args args = {
        .is_connector = ep->is_connector,
        .peer_rank = rdti_endpoint_rank(ep),
        .is_loopback = rdti_sockaddr_is_loopback((const struct sockaddr *)&ep->peer_addr),
        .peer_sockaddr = ep->is_connector ? &ep->peer_addr : NULL,
        .peer_sockaddr_bytes = ep->is_connector ? ep->peer_addr_bytes : 0,
        .deadline_ns = failover->deadline_ns,
    };

    memcpy(args.session_id, ep->session_id, sizeof(args.session_id));
    memcpy(args.session_key, ep->session_key, sizeof(args.session_key));
    const rdt_status status =
        found->transport->make_offer(found->state, &args, &failover->lane, offer, err);
    if (status == RDT_OK)
        failover->lane->owner = ep;
    return status;
}

void
rdti_failover_on_fenced(rdt_endpoint *ep, uint64_t delivered, const struct rdt_error *why)
{
    struct rdti_move move = {.transport = RDT_TRANSPORT_TCP, .delivered = delivered};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    struct rdti_offer offer;
    struct rdt_error err;

    if (rdti_endpoint_is_ended(ep) || ep->lane_broken_ns != 0 || ep->said_goodbye)
        return; /* meanwhile; its ops end with that */
    struct rdti_failover *failover = failover_begin(ep, why);
    if (failover == NULL)
        return;
    failover->is_fenced = true;
    failover->why = *why; /* the local reason, where both noticed */
    atomic_store_explicit(&ep->is_moving, true, memory_order_seq_cst);
    if (failover_make_half(ep, failover, &offer, &err) != RDT_OK) {
        rdti_failover_on_lane_error(ep, &err);
        return;
    }
    rdti_text_copy(move.reason, sizeof(move.reason), why->message);
    move.offer_bytes = offer.len_bytes;
    memcpy(move.offer, offer.bytes, offer.len_bytes);
    rdti_count(&ep->ctx->counters.control_messages[RDTI_TRAFFIC_CONTROL], 1);
    rdti_channel_send(ep->channel, RDTI_FRAME_MOVE, payload, rdti_move_encode(&move, payload), NULL,
                      0);
    if (failover->has_move_in)
        failover_connect_lane(ep);
}

/* False where the peer is about to receive this side's end or goodbye. */
static bool
failover_can_answer(const rdt_endpoint *ep)
{
    return ep->lane_broken_ns == 0 && !ep->said_goodbye && ep->lane->transport->fence != NULL;
}

static bool
failover_is_in_turn(const rdt_endpoint *ep)
{
    return ep->setup == NULL && ep->may_fail_over && !ep->has_moved &&
           (ep->failover == NULL || !ep->failover->has_move_in);
}

rdt_status
rdti_failover_on_move(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                      struct rdt_error *err)
{
    const int rank = (int)rdti_endpoint_rank(ep);
    struct rdti_failover *failover;
    struct rdt_error why;
    struct rdti_move move;
    const rdt_status status = rdti_move_decode(payload, payload_bytes, &move, err);

    if (status != RDT_OK)
        return status;
    if (!failover_is_in_turn(ep))
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "rank %d moves to tcp out of turn, or where that is forbidden",
                                   rank);
    if (move.delivered == 0) /* it was READY, so it has received the probe */
        return rdti_error_set_rank(err, RDT_EPROTO, rank,
                                   "rank %d moves to tcp and has heard of nothing", rank);
    if (!failover_can_answer(ep))
        return RDT_OK;
    (void)rdti_error_set_rank(&why, RDT_EPEER, rank, "rank %d lost the path: %s", rank,
                              move.reason);
    failover = failover_begin(ep, &why);
    if (failover == NULL)
        return RDT_OK;
    failover->has_move_in = true;
    failover->peer_delivered = move.delivered;
    failover->peer_offer = (struct rdti_offer){.len_bytes = move.offer_bytes};
    memcpy(failover->peer_offer.bytes, move.offer, move.offer_bytes);
    if (failover->is_fenced && failover->lane != NULL) {
        failover_connect_lane(ep);
        return RDT_OK;
    }
    if (!ep->lane->transport->fence(ep->lane, &why)) /* where it broke just now, that error stays */
        rdti_endpoint_on_lane_error(ep, &why);
    return RDT_OK;
}

/* ---- The move ------------------------------------------------------------------------------- */

void
rdti_failover_on_lane_ready(rdt_endpoint *ep)
{
    ep->failover->is_lane_ready = true;
    ep->ctx->has_core_work = true;
}

struct collected {
    rdt_endpoint *ep;
    struct rdti_list ops;
    uint32_t count;
    rdt_status status;
    struct rdt_error err;
};

void
rdti_path_flush_pending(rdt_endpoint *ep)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&ep->pending)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};
        const rdt_status status = op->kind == RDTI_OP_WRITE
                                      ? ep->lane->transport->write(ep->lane, op, &err)
                                      : ep->lane->transport->read(ep->lane, op, &err);
        if (status != RDT_OK)
            op->complete(op, status, &err);
    }
}

static struct rdti_op *
failover_bare_notification(struct collected *all, uint32_t notify)
{
    rdt_endpoint *ep = all->ep;
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);

    if (t == NULL) {
        all->status =
            rdti_error_set(&all->err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
        return NULL;
    }
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = notify;
    t->op.is_urgent = true; /* the original op's urgency is unknown */
    t->op.remote = ep->peer_ring;
    t->op.blocks = t->pair;
    rdt_transfer_free(t); /* no handle is kept; it ends with the op */
    return &t->op;
}

static void
failover_collect(void *arg, struct rdti_op *op, uint32_t notify)
{
    struct collected *all = arg;

    if (op == NULL)
        op = failover_bare_notification(all, notify);
    if (op == NULL)
        return;
    op->has_ridden = false;
    rdti_list_append(&all->ops, &op->link);
    all->count++;
}

/* For describe(): the reason, and the time. */
static void
failover_note_reason(rdt_endpoint *ep, const struct rdt_error *why)
{
    const time_t now = time(NULL);
    struct tm utc;
    char when[32] = "";

    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", &utc);
    (void)snprintf(ep->reason, sizeof(ep->reason), "verbs failed at %s: %.320s", when,
                   why->message);
}

static void
failover_move(rdt_endpoint *ep)
{
    struct rdti_failover *failover = ep->failover;
    struct collected all = {.ep = ep, .status = RDT_OK};
    struct rdti_lane *old = ep->lane;
    const struct rdt_error why = failover->why;
    rdt_status status;

    rdti_list_init(&all.ops);
    status =
        old->transport->hand_over(old, failover->peer_delivered, failover_collect, &all, &all.err);
    rdti_list_splice(&all.ops, &ep->pending); /* these were posted later */
    rdti_list_splice(&ep->pending, &all.ops);
    if (status != RDT_OK || all.status != RDT_OK) {
        rdti_endpoint_fail(ep, &all.err, status == RDT_EPROTO);
        return;
    }
    ep->lane = failover->lane;
    ep->lane->is_fallback = true;
    ep->has_moved = true;
    rdti_endpoint_set_transport_id(ep, RDT_TRANSPORT_TCP);
    old->transport->close_lane(old, &why);
    failover_note_reason(ep, &why);
    rdti_count(&ep->ctx->counters.failovers, 1);
    rdti_context_note_met(ep->ctx, ep->uuid);
    rdti_log(RDT_LOG_WARN,
             "rank %d is reached over tcp from now on, and slower: verbs failed, and %u operations "
             "go again (%.1f ms): %s",
             (int)rdti_endpoint_rank(ep), all.count,
             (double)(rdti_now_ns() - failover->begun_ns) / 1e6, why.message);
    ep->failover = NULL;
    free(failover);
    rdti_path_flush_pending(ep); /* before other threads may pass them */
    atomic_store_explicit(&ep->is_moving, false, memory_order_seq_cst);
    rdti_engine_wake(ep->ctx->engine);
}

bool
rdti_failover_advance(rdt_endpoint *ep)
{
    const struct rdti_failover *failover = ep->failover;
    struct rdt_error err;
    /* seq_cst: pairs with rdti_endpoint_post(). */
    const bool has_users = atomic_load_explicit(&ep->lane_users, memory_order_seq_cst) > 0;
    const bool is_due = failover->is_fenced && failover->has_move_in && failover->is_lane_ready;

    if (is_due && !has_users) {
        failover_move(ep);
        return false;
    }
    if (rdti_now_ns() >= failover->deadline_ns) {
        (void)rdti_error_set_rank(&err, RDT_ETIMEDOUT, rdti_endpoint_rank(ep),
                                  "rank %d %s within %.0f s", (int)rdti_endpoint_rank(ep),
                                  is_due ? "is not moved: a thread here is still in the lost lane"
                                  : failover->has_move_in ? "is not reached over it"
                                                          : "does not answer",
                                  (double)failover->patience_ns / 1e9);
        rdti_failover_on_lane_error(ep, &err);
    }
    return is_due;
}

void
rdti_failover_drop(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdti_failover *failover = ep->failover;

    if (failover == NULL)
        return;
    ep->failover = NULL;
    if (failover->lane != NULL)
        failover->lane->transport->close_lane(failover->lane, err);
    free(failover);
    atomic_store_explicit(&ep->is_moving, false, memory_order_seq_cst);
}
