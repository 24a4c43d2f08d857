/* SPDX-License-Identifier: Apache-2.0
 * The core's pass over the endpoints: what ends does so step by step, and is buried and freed. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "endpoint/endpoint_impl.h"
#include "endpoint/failures.h"

/* A lane broke while the side channel is still open: how long to wait for the channel to report
 * whether the peer left or died. Between hosts the end of a data stream can overtake the goodbye,
 * which travels on another connection. */
#define LANE_GRACE_NS UINT64_C(200000000)

static void
advance_fail_pending(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&ep->pending)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        op->complete(op, (rdt_status)err->status, err);
    }
}

/* [driver] The state is LEFT or FAILED; from here on nothing of the endpoint may move. Returns
 * false while a writer is still inside the lane. */
static bool
advance_bury(rdt_endpoint *ep)
{
    /* seq_cst: pairs with rdti_endpoint_post(). */
    if (atomic_load_explicit(&ep->lane_users, memory_order_seq_cst) > 0)
        return false;
    ep->is_buried = true;
    rdti_endpoint_release_path(ep, &ep->error); /* the lane may still refer to bytes of set-up */
    rdti_path_end_setup(ep);
    advance_fail_pending(ep, &ep->error);
    if (ep->is_death) {
        struct rdti_obituary news = {.rank = rdti_endpoint_rank(ep)};
        memcpy(news.uuid, ep->uuid, RDT_UUID_BYTES);
        rdti_text_copy(news.reason, sizeof(news.reason), ep->error.message);
        rdti_context_announce_death(ep->ctx, &news, ep);
    }
    if (ep->error.status == RDT_EMISMATCH && ep->refs == 0)
        rdti_context_note_rejection(ep->ctx, ep->uuid, &ep->error);
    for (uint32_t i = 0; i < RDTI_PROTOCOLS; i++)
        ep->ctx->upcalls->protocols[i]->on_ended(ep->attached[i], &ep->error);
    ep->ctx->upcalls->membership->on_left(ep->ctx, ep, &ep->error);
    rdti_context_recount_local(ep->ctx);
    if (ep->error.status != RDT_EPEER || ep->is_death)
        rdti_log(RDT_LOG_INFO, "endpoint to rank %d ended: %s", (int)rdti_endpoint_rank(ep),
                 ep->error.message);
    rdti_engine_wake(ep->ctx->engine);
    return true;
}

/* For a buried endpoint without handles: if it lingers, it keeps only what the wait needs. */
static void
advance_strip(rdt_endpoint *ep)
{
    for (uint32_t i = 0; i < RDTI_PROTOCOLS; i++) {
        ep->ctx->upcalls->protocols[i]->detach(ep->attached[i]);
        ep->attached[i] = NULL;
    }
    rdt_region_free(ep->ring, NULL, NULL);
    ep->ring = NULL;
}

static void
advance_free_endpoint(rdt_endpoint *ep)
{
    rdti_failover_drop(ep, &ep->error);
    if (ep->lane != NULL)
        ep->lane->transport->close_lane(ep->lane, &ep->error);
    rdti_list_remove(&ep->link);
    advance_strip(ep);
    free(ep->setup);
    free(ep->inbox);
    free(ep->revokes);
    free(ep->holds);
    free(ep->answers);
    free(ep);
}

static bool
advance_is_held(const rdt_endpoint *ep, const struct rdti_revoke *revoke)
{
    for (uint32_t i = 0; i < ep->hold_count; i++)
        if (ep->holds[i].index == revoke->index && ep->holds[i].generation == revoke->generation)
            return true;
    return false;
}

/* Returns true while an answer is due that no call announces. */
static bool
advance_answer_revocations(rdt_endpoint *ep)
{
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    uint32_t left = 0;
    bool is_due = false;

    /* seq_cst: a write that began before the generation ended is counted here until it is over. */
    if (ep->answer_count == 0 || atomic_load_explicit(&ep->lane_users, memory_order_seq_cst) > 0 ||
        atomic_load_explicit(&ep->map_pins, memory_order_seq_cst) > 0)
        return ep->answer_count > 0;
    for (uint32_t i = 0; i < ep->answer_count && ep->channel != NULL; i++) {
        const struct rdti_revoke *revoke = &ep->answers[i];
        if (advance_is_held(ep, revoke)) { /* rdt_endpoint_unhold() triggers another check */
            ep->answers[left++] = *revoke;
            continue;
        }
        if (ep->lane != NULL && ep->lane->transport->revoke != NULL &&
            !ep->lane->transport->revoke(ep->lane, revoke->index, revoke->generation)) {
            ep->answers[left++] = *revoke; /* a device still moves bytes of the region */
            is_due = true;
            continue;
        }
        rdti_channel_send(ep->channel, RDTI_FRAME_REVOKED, payload,
                          rdti_revoke_encode(revoke, payload), NULL, 0);
    }
    ep->answer_count = left;
    return is_due;
}

static void
advance_broken(rdt_endpoint *ep)
{
    const struct rdt_error err = ep->lane_error; /* a copy: it outlives what is released */

    if (rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING) {
        rdti_path_give_up(ep, &err);
        return;
    }
    if (ep->channel != NULL)
        rdti_channel_drain(ep->channel); /* a goodbye may lie unread */
    if (!rdti_endpoint_is_ended(ep) && rdti_now_ns() - ep->lane_broken_ns > LANE_GRACE_NS)
        rdti_endpoint_fail(ep, &err, err.status == RDT_EPEER || err.status == RDT_EPROTO);
}

/* Returns true while there is something to wait for that no arrival announces.
 * over budget: the endings of an endpoint in the order in which they can follow each other. */
static bool
advance(rdt_endpoint *ep, uint32_t *work)
{
    bool has_answers = false;
    bool has_users = false;

    if (ep->lane_broken_ns != 0 && !rdti_endpoint_is_ended(ep))
        advance_broken(ep);
    else if (ep->failover != NULL && !rdti_endpoint_is_ended(ep))
        has_users = rdti_failover_advance(ep);
    if (ep->goodbye_ns != 0 && !rdti_endpoint_is_ended(ep))
        rdti_endpoint_advance_goodbye(ep);
    if (rdti_endpoint_get_state(ep) == RDTI_EP_CLOSING)
        rdti_endpoint_advance_closing(ep);
    if (!ep->is_buried)
        has_answers = advance_answer_revocations(ep);
    if (rdti_endpoint_is_ended(ep) && !ep->is_buried)
        *work += advance_bury(ep) ? 1 : 0;
    if (ep->is_buried)
        return ep->is_lingering && rdti_endpoint_advance_lingering(ep);
    return ep->lane_broken_ns != 0 || ep->goodbye_ns != 0 || has_answers || has_users ||
           rdti_endpoint_is_ended(ep) || rdti_endpoint_get_state(ep) == RDTI_EP_CLOSING;
}

/* Out of line: most passes find nothing to do here. */
__attribute__((noinline)) static uint32_t
advance_all(rdt_context *ctx)
{
    uint32_t work = 0;

    ctx->has_core_work = false;
    for (struct rdti_list *node = ctx->endpoints.next, *next; node != &ctx->endpoints;
         node = next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        next = node->next;
        if (advance(ep, &work))
            ctx->has_core_work = true;
        if (ep->is_buried && ep->refs == 0 && ep->is_lingering)
            advance_strip(ep);
        else if (ep->is_buried && ep->refs == 0)
            advance_free_endpoint(ep);
    }
    return work;
}

uint32_t
rdti_endpoints_poll(void *state)
{
    rdt_context *ctx = state;

    return ctx->has_core_work ? advance_all(ctx) : 0;
}

void
rdti_endpoints_abandon(rdt_context *ctx)
{
    if (rdti_list_is_empty(&ctx->endpoints))
        return;
    rdti_engine_enter(ctx->engine);
    for (struct rdti_list *node = ctx->endpoints.next, *next; node != &ctx->endpoints;
         node = next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        next = node->next;
        rdti_channel_destroy(ep->channel);
        advance_free_endpoint(ep);
    }
    rdti_engine_leave(ctx->engine);
}

bool
rdti_endpoints_need_epoll(void *state)
{
    (void)state;
    return false; /* the progress thread polls side channels; waiters do so once in a slice */
}
