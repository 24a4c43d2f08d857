/* SPDX-License-Identifier: Apache-2.0
 * An endpoint's state, and what all other files do to it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "endpoint/endpoint_impl.h"

/* Passes over a transport at a goodbye, unless the transport says otherwise: each takes what a
 * whole ring holds, and there is one ring a peer. */
#define ARRIVAL_PASSES 16

enum rdti_endpoint_state
rdti_endpoint_get_state(const rdt_endpoint *ep)
{
    return rdti_endpoint_state_of(ep);
}

/* The table of states in endpoint.h; a test compares the two. */
static const uint32_t may_become[] = {
    [RDTI_EP_CONNECTING] = 1u << RDTI_EP_READY | 1u << RDTI_EP_FAILED | 1u << RDTI_EP_LEFT,
    [RDTI_EP_READY] = 1u << RDTI_EP_FAILED | 1u << RDTI_EP_LEFT | 1u << RDTI_EP_CLOSING,
    [RDTI_EP_CLOSING] = 1u << RDTI_EP_LEFT | 1u << RDTI_EP_FAILED,
    [RDTI_EP_LEFT] = 0,
    [RDTI_EP_FAILED] = 0,
};

void
rdti_endpoint_set_state(rdt_endpoint *ep, enum rdti_endpoint_state state)
{
    const bool is_legal = (may_become[rdti_endpoint_get_state(ep)] & 1u << state) != 0;

    assert(is_legal);
    (void)is_legal;
    atomic_store_explicit(&ep->state, state, memory_order_seq_cst);
    rdti_engine_wake(ep->ctx->engine);
}

int32_t
rdti_endpoint_rank(const rdt_endpoint *ep)
{
    return atomic_load_explicit(&ep->rank, memory_order_relaxed); /* for messages */
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
        return rdti_error_set_rank(err, RDT_ECLOSED, rdti_endpoint_rank(ep),
                                   "the endpoint to rank %d was closed here",
                                   (int)rdti_endpoint_rank(ep));
    return RDT_OK;
}

uint64_t
rdti_endpoint_silence_ns(const rdt_endpoint *ep)
{
    const uint64_t now_ns = rdti_now_ns();
    /* While this process was stopped, the peers may have been stopped as well: their silence counts
     * from its return. */
    uint64_t heard_ns = ep->ctx->resumed_ns;

    if (rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING && ep->setup->begun_ns > heard_ns)
        heard_ns = ep->setup->begun_ns;
    if (ep->channel != NULL && rdti_channel_last_heard_ns(ep->channel) > heard_ns)
        heard_ns = rdti_channel_last_heard_ns(ep->channel);
    return now_ns > heard_ns ? now_ns - heard_ns : 0;
}

void
rdti_endpoint_hear(rdt_endpoint *ep)
{
    if (ep->channel != NULL)
        rdti_channel_drain(ep->channel);
}

rdt_endpoint *
rdti_endpoint_find(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);
        if ((state == RDTI_EP_CONNECTING || state == RDTI_EP_READY) && ep->goodbye_ns == 0 &&
            memcmp(ep->uuid, uuid, RDT_UUID_BYTES) == 0)
            return ep;
    }
    return NULL;
}

void
rdti_endpoint_ref(rdt_endpoint *ep)
{
    ep->is_close_due = false;
    ep->refs++;
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

void
rdti_context_recount_local(rdt_context *ctx)
{
    uint32_t count = 1;

    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        const rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (rdti_endpoint_get_state(ep) == RDTI_EP_READY && ep->is_local)
            count++;
    }
    rdti_engine_set_local_ranks(ctx->engine,
                                ctx->opts.local_ranks > count ? ctx->opts.local_ranks : count);
}

void
rdti_endpoint_fail(rdt_endpoint *ep, const struct rdt_error *err, bool is_death)
{
    if (rdti_endpoint_is_ended(ep))
        return;
    ep->error = *err;
    if (ep->error.status == RDT_OK)
        ep->error.status = RDT_EPEER;
    if (ep->error.peer_rank == RDT_RANK_UNKNOWN)
        ep->error.peer_rank = rdti_endpoint_rank(ep);
    ep->is_death = is_death && rdti_endpoint_get_state(ep) != RDTI_EP_CLOSING;
    rdti_endpoint_set_state(ep, RDTI_EP_FAILED);
    ep->ctx->has_core_work = true;
}

void
rdti_path_end_setup(rdt_endpoint *ep)
{
    if (ep->setup == NULL)
        return;
    rdti_handshake_cancel(ep->setup->handshake);
    free(ep->setup);
    ep->setup = NULL;
}

void
rdti_path_drop_pidfd(rdt_endpoint *ep)
{
    if (ep->pidfd < 0)
        return;
    rdti_engine_unwatch(ep->ctx->engine, ep->pidfd_watch);
    ep->pidfd_watch = NULL;
    rdti_fork_close_remove(ep->pidfd);
    (void)close(ep->pidfd);
    ep->pidfd = -1;
}

void
rdti_endpoint_take_arrivals(rdt_endpoint *ep)
{
    struct rdti_lane *next = rdti_failover_lane(ep); /* the peer has moved already */
    struct rdti_lane *lane = next != NULL ? next : ep->lane;
    const uint32_t id = next != NULL ? next->transport->id : rdti_endpoint_transport_id(ep);
    const struct rdti_found *found = &ep->ctx->found[id];
    const uint32_t own = id == RDT_TRANSPORT_AUTO ? 0 : found->transport->caps.arrival_passes;
    const uint32_t passes = own != 0 ? own : ARRIVAL_PASSES;

    if (lane != NULL && lane->transport->hear != NULL)
        lane->transport->hear(lane);
    /* Bounded: the peer writes nothing more, but other lanes of the transport may. */
    for (uint32_t i = 0; i < passes && ep->lane != NULL && found->transport->poll(found->state) > 0;
         i++)
        continue;
}
