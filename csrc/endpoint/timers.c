/* SPDX-License-Identifier: Apache-2.0
 * Timers of endpoints: deadlines and retries of set-up, heartbeats. */
#include "base/clock.h"
#include "base/error.h"
#include "endpoint/setup.h"

static void
timers_tick_setup(rdt_endpoint *ep, uint64_t now_ns)
{
    struct rdti_setup *setup = ep->setup;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    if (ep->is_close_due && now_ns >= ep->linger_until_ns) {
        rdti_endpoint_close_unready(ep);
        ep->ctx->has_core_work = true;
    } else if (now_ns >= setup->deadline_ns) {
        (void)rdti_error_set_rank(&err, RDT_ETIMEDOUT, rdti_endpoint_rank(ep),
                                  "no path to rank %d was proved within %.1f s%s%s",
                                  (int)rdti_endpoint_rank(ep),
                                  (double)(now_ns - setup->begun_ns) / 1e9,
                                  setup->reasons[0] != '\0' ? ": " : "", setup->reasons);
        rdti_endpoint_fail(ep, &err, false);
    } else if (ep->channel != NULL && now_ns >= setup->path_deadline_ns) {
        (void)rdti_error_set_rank(&err, RDT_ETIMEDOUT, rdti_endpoint_rank(ep),
                                  "%s: the path was not proved in time",
                                  rdti_path_transport_name(rdti_endpoint_transport_id(ep)));
        rdti_path_give_up(ep, &err);
    } else if (setup->retry_ns != 0 && now_ns >= setup->retry_ns && setup->handshake == NULL &&
               ep->channel == NULL) {
        setup->retry_ns = 0;
        setup->is_passive = false;
        rdti_path_try_next(ep);
    } else if (setup->retry_ns > now_ns) {
        rdti_engine_hurry(ep->ctx->engine, rdti_path_tick, ep->ctx, setup->retry_ns);
    }
}

/* If this process had no core, the last message of a proof may lie here unread; the peer, which has
 * this side's, takes the path for ready. */
static void
timers_tick_unready(rdt_endpoint *ep, uint64_t now_ns)
{
    if (now_ns >= ep->setup->deadline_ns || now_ns >= ep->setup->path_deadline_ns)
        rdti_endpoint_hear(ep);
    if (ep->setup != NULL && !rdti_endpoint_is_ended(ep))
        timers_tick_setup(ep, now_ns);
}

static void
timers_tick_ready(rdt_endpoint *ep, bool beat)
{
    const uint64_t last_heard_ns = rdti_channel_last_heard_ns(ep->channel);
    const uint64_t silence_ns = rdti_endpoint_silence_ns(ep);
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    if (beat) {
        rdti_channel_send(ep->channel, RDTI_FRAME_HEARTBEAT, NULL, 0, NULL, 0);
        for (uint32_t i = 0; i < RDTI_PROTOCOLS; i++)
            if (ep->ctx->upcalls->protocols[i]->on_beat != NULL)
                ep->ctx->upcalls->protocols[i]->on_beat(ep->attached[i]);
    }
    if (rdti_endpoint_is_ended(ep)) /* because of what was sent above */
        return;
    if (silence_ns <= ep->ctx->opts.peer_timeout_ns)
        return;
    rdti_endpoint_hear(ep);
    if (rdti_endpoint_is_ended(ep) || rdti_channel_last_heard_ns(ep->channel) != last_heard_ns)
        return;
    (void)rdti_error_set_rank(
        &err, RDT_EPEER, rdti_endpoint_rank(ep),
        "rank %d is silent for %.1f s: its process is stopped, or its host or the network is down",
        (int)rdti_endpoint_rank(ep), (double)silence_ns / 1e9);
    rdti_endpoint_fail(ep, &err, true);
}

void
rdti_path_tick(void *arg)
{
    rdt_context *ctx = arg;
    const uint64_t now_ns = rdti_now_ns();
    const bool was_stopped = now_ns - ctx->last_tick_ns > 10 * RDTI_TICK_NS;
    const bool beat = now_ns - ctx->last_beat_ns >= RDTI_HEARTBEAT_NS;

    ctx->last_tick_ns = now_ns;
    if (was_stopped)
        ctx->resumed_ns = now_ns;
    rdti_channels_expire(&ctx->retired, now_ns);
    if (beat)
        ctx->last_beat_ns = now_ns;
    for (struct rdti_list *node = ctx->endpoints.next, *next; node != &ctx->endpoints;
         node = next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        next = node->next;
        if (rdti_endpoint_is_ended(ep))
            continue;
        if (ep->channel != NULL)
            rdti_channel_flush(ep->channel);
        if (ep->failover != NULL)
            ctx->has_core_work = true; /* the move has a deadline */
        if (rdti_endpoint_end_lossy(ep))
            continue;
        if (ep->setup != NULL)
            timers_tick_unready(ep, now_ns);
        else if (ep->channel != NULL)
            timers_tick_ready(ep, beat);
    }
}
