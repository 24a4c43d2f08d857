/* SPDX-License-Identifier: Apache-2.0
 * How endpoints end: goodbye, release of the path, and the waits while memory is still in use. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "endpoint/endpoint_impl.h"
#include "endpoint/failures.h"

/* After the peer's goodbye: how long to wait for the acknowledgement of the last local writes. Half
 * of the time that the peer waits for the answer (CLOSE_LINGER_NS); a lost packet takes 200 ms. */
#define GOODBYE_GRACE_NS UINT64_C(1000000000)

bool
rdti_endpoint_end_lossy(rdt_endpoint *ep)
{
    const enum rdti_channel_loss loss =
        ep->channel != NULL ? rdti_channel_get_loss(ep->channel) : RDTI_CHANNEL_LOSS_NONE;
    const int rank = (int)rdti_endpoint_rank(ep);
    struct rdt_error err;

    if (loss == RDTI_CHANNEL_LOSS_NONE)
        return false;
    if (loss == RDTI_CHANNEL_LOSS_MEMORY)
        (void)rdti_error_set_rank(&err, RDT_ENOMEM, rank,
                                  "no memory for a frame to rank %d: the connection ends", rank);
    else
        (void)rdti_error_set_rank(&err, RDT_EPEER, rank,
                                  "rank %d does not read its side channel: it is stuck", rank);
    rdti_endpoint_fail(ep, &err, loss == RDTI_CHANNEL_LOSS_UNREAD);
    return true;
}

void
rdti_endpoint_leave(rdt_endpoint *ep)
{
    if (rdti_endpoint_is_ended(ep))
        return;
    (void)rdti_error_set_rank(&ep->error, RDT_EPEER, rdti_endpoint_rank(ep),
                              "rank %d left: it closed the connection",
                              (int)rdti_endpoint_rank(ep));
    rdti_endpoint_set_state(ep, RDTI_EP_LEFT);
    ep->ctx->has_core_work = true;
}

void
rdti_endpoint_hear_last_words(rdt_endpoint *ep, bool may_use_on)
{
    ep->last_export = rdti_regions_export_count(ep->ctx->regions);
    if (!may_use_on || ep->lane == NULL || ep->lane->transport->map == NULL)
        rdti_endpoint_on_peer_done(ep);
    else
        rdti_endpoint_drop_unmapped(ep);
}

void
rdti_endpoint_end_goodbye(rdt_endpoint *ep)
{
    if (rdti_endpoint_is_ended(ep))
        return;
    ep->goodbye_ns = 0;
    rdti_endpoint_hear_last_words(ep, ep->said_goodbye); /* true: this goodbye is an answer */
    rdti_endpoint_leave(ep);
}

/* The last local writes are in the peer's memory. Their acknowledgement comes over the lane, and
 * the goodbye may overtake it. The peer keeps its half of the lane open until this side answers. */
static bool
close_is_word_awaited(const rdt_endpoint *ep)
{
    return ep->lane != NULL && ep->lane_broken_ns == 0 && ep->failover == NULL &&
           !ep->lane->transport->is_idle(ep->lane);
}

void
rdti_endpoint_on_goodbye(rdt_endpoint *ep)
{
    if (rdti_endpoint_is_ended(ep) || ep->goodbye_ns != 0)
        return;
    ep->goodbye_ns = rdti_now_ns();
    ep->ctx->has_core_work = true;
    if (!close_is_word_awaited(ep))
        rdti_endpoint_end_goodbye(ep);
}

/* [driver] Bounded: a thread that keeps writing would keep the lane busy for ever. */
void
rdti_endpoint_advance_goodbye(rdt_endpoint *ep)
{
    if (!close_is_word_awaited(ep) || rdti_now_ns() - ep->goodbye_ns > GOODBYE_GRACE_NS)
        rdti_endpoint_end_goodbye(ep);
}

static void
close_drop_revocations(rdt_endpoint *ep)
{
    /* The peer uses no memory of this process any more, as its acknowledgements would have said. */
    for (uint32_t i = 0; i < ep->revoke_count; i++)
        (void)rdti_regions_acknowledge(ep->ctx->regions, ep->revokes[i].index,
                                       ep->revokes[i].generation);
    ep->revoke_count = 0;
    for (uint32_t i = 0; i < ep->forgone_count; i++)
        (void)rdti_regions_acknowledge(ep->ctx->regions, ep->forgone[i].index,
                                       ep->forgone[i].generation);
    ep->forgone_count = 0;
}

void
rdti_endpoint_forgo_answer(rdt_endpoint *ep, const struct rdti_revoke *revoke)
{
    struct rdt_error err;

    (void)rdti_error_set_rank(&err, RDT_ENOMEM, rdti_endpoint_rank(ep),
                              "no memory to await rank %d's word that it uses a freed region no "
                              "more: the connection ends instead",
                              (int)rdti_endpoint_rank(ep));
    if (ep->forgone_count < RDTI_FORGONE_MAX)
        ep->forgone[ep->forgone_count++] = *revoke;
    else
        rdti_log(RDT_LOG_WARN, "%s; a freed region stays in quarantine", err.message);
    rdti_endpoint_fail(ep, &err, false);
}

void
rdti_endpoint_drop_unmapped(rdt_endpoint *ep)
{
    struct rdti_regions *regions = ep->ctx->regions;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < ep->revoke_count; i++) {
        const struct rdti_revoke revoke = ep->revokes[i];
        if (rdti_regions_exported_as(regions, revoke.index) == RDTI_EXPORT_UNMAPPED)
            (void)rdti_regions_acknowledge(regions, revoke.index, revoke.generation);
        else
            ep->revokes[kept++] = revoke;
    }
    ep->revoke_count = kept;
}

/* While the endpoint has handles, the peer's memory stays mapped: a user may be in the middle of a
 * buffer. */
static void
close_end_lane(rdt_endpoint *ep, const struct rdt_error *err)
{
    const bool is_kept = rdti_endpoint_get_state(ep) != RDTI_EP_CONNECTING;

    rdti_endpoint_set_transport_id(ep, RDT_TRANSPORT_AUTO);
    if (ep->lane == NULL)
        return;
    if (is_kept && ep->lane->transport->fail_lane != NULL) {
        ep->lane->transport->fail_lane(ep->lane, err);
        return;
    }
    ep->lane->transport->close_lane(ep->lane, err);
    ep->lane = NULL;
}

/*
 * Closing the local half of a shared-memory lane does not stop the peer from using it. A peer that
 * this side gave up (it is stopped, or it broke the protocol) may be in the middle of a write into
 * local memory, and a peer that this side left may hold some. The peer is done only when it left
 * first, its process has ended, or it has closed its half of the side channel. It closes that half
 * after its last writer has left its lane and its last hold is given up.
 */
static bool
close_is_peer_awaited(const rdt_endpoint *ep)
{
    /* The lane: kept after its end where memory is shared. */
    return ep->lane != NULL && ep->channel != NULL && !ep->is_peer_done &&
           rdti_endpoint_get_state(ep) != RDTI_EP_CONNECTING;
}

/* The reverse: while this holds, the local half of the side channel stays open. */
static bool
close_is_using_peer(const rdt_endpoint *ep)
{
    /* seq_cst: as in advance_answer_revocations() */
    return ep->hold_count > 0 || atomic_load_explicit(&ep->map_pins, memory_order_seq_cst) > 0;
}

static void
close_begin_linger(rdt_endpoint *ep)
{
    ep->is_lingering = true;
    ep->answer_count = 0; /* the end of the channel answers all */
    if (!rdti_channel_linger(ep->channel) && !ep->is_peer_done)
        rdti_log(RDT_LOG_WARN, "rank %d's end will not be seen: freed regions stay in quarantine",
                 (int)rdti_endpoint_rank(ep));
}

/* The end of the channel; the frame that was queued last is still sent. */
static void
close_end_channel(rdt_endpoint *ep)
{
    if (ep->said_goodbye)
        rdti_channel_retire(ep->channel, &ep->ctx->retired);
    else
        rdti_channel_destroy(ep->channel);
    ep->channel = NULL;
    ep->is_lingering = false;
    close_drop_revocations(ep);
}

/* Returns true while there is something to wait for that no arrival and no call announces. */
bool
rdti_endpoint_advance_lingering(rdt_endpoint *ep)
{
    const bool is_user = close_is_using_peer(ep);

    if (ep->is_peer_done)
        close_drop_revocations(ep);
    if (!is_user)
        rdti_channel_shut(ep->channel);
    if (!is_user && ep->is_peer_done)
        close_end_channel(ep);
    return is_user && ep->hold_count == 0;
}

bool
rdti_endpoint_is_only_lingering(const rdt_endpoint *ep)
{
    return ep->is_buried && ep->is_lingering && ep->ring == NULL && /* stripped: no handle left */
           (rdti_channel_is_flushed(ep->channel) || rdti_now_ns() >= ep->linger_until_ns);
}

/* Sends the peer the reason, so that it does not take this end for a death. Called once the lane
 * has ended, which is what a goodbye promises. */
static void
close_say_last_words(rdt_endpoint *ep)
{
    const struct rdti_job *job = rdti_context_find_job(ep->ctx, ep->job_id);
    struct rdti_death words = {.rank = job != NULL ? job->rank : RDT_RANK_UNKNOWN, .is_left = 1};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    const bool was_seen_ready = ep->setup == NULL || ep->setup->said_ready;

    if (!rdti_endpoint_is_ended(ep) || !was_seen_ready || ep->channel == NULL || ep->said_goodbye)
        return;
    ep->said_goodbye = true;
    if (rdti_endpoint_get_state(ep) == RDTI_EP_LEFT) {
        if (ep->setup != NULL) /* else sent when it was READY */
            rdti_context_tell_obituaries(ep->ctx, ep);
        rdti_channel_send_last(ep->channel, RDTI_FRAME_GOODBYE, NULL, 0);
        return;
    }
    memcpy(words.uuid, ep->ctx->uuid, RDT_UUID_BYTES);
    if (ep->is_death) { /* the peer may be stopped, or on the other side of a broken link */
        memcpy(words.uuid, ep->uuid, RDT_UUID_BYTES);
        words.rank = rdti_endpoint_rank(ep);
        words.is_left = 0;
    }
    rdti_text_copy(words.reason, sizeof(words.reason), ep->error.message);
    rdti_channel_send_last(ep->channel, RDTI_FRAME_DEATH, payload,
                           rdti_death_encode(&words, payload));
}

void
rdti_endpoint_release_path(rdt_endpoint *ep, const struct rdt_error *err)
{
    rdti_failover_drop(ep, err);
    close_end_lane(ep, err);
    rdti_path_drop_pidfd(ep);
    close_say_last_words(ep);
    if (close_is_peer_awaited(ep) || (ep->channel != NULL && close_is_using_peer(ep)))
        close_begin_linger(ep);
    else
        close_end_channel(ep);
    ep->lane_broken_ns = 0;
    if (ep->setup == NULL)
        return;
    ep->setup->has_path_in = false;
    ep->setup->is_lane_ready = false;
    ep->setup->said_ready = false;
    ep->setup->heard_ready = false;
}

static bool
close_are_protocols_idle(const rdt_endpoint *ep)
{
    for (uint32_t i = 0; i < RDTI_PROTOCOLS; i++) {
        const struct rdti_protocol *protocol = ep->ctx->upcalls->protocols[i];
        if (protocol->is_idle != NULL && !protocol->is_idle(ep->attached[i]))
            return false;
    }
    return true;
}

/* How long a closing endpoint waits for the peer's answer; then it closes without one. */
#define CLOSE_LINGER_NS UINT64_C(2000000000)
/* How long a close waits for the goodbye to go out: the peer's acknowledgements are on their way,
 * unless the peer is stopped. */
#define GOODBYE_WAIT_NS UINT64_C(20000000)

/* Says goodbye once the endpoint is idle; ends it when the peer answered or the linger is over. */
void
rdti_endpoint_advance_closing(rdt_endpoint *ep)
{
    const bool is_late = rdti_now_ns() >= ep->linger_until_ns;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    if (ep->lane_broken_ns != 0 && ep->channel != NULL) {
        rdti_channel_drain(ep->channel); /* a goodbye may lie unread */
        if (!rdti_endpoint_is_ended(ep)) /* the peer may not know yet that the path is broken */
            rdti_endpoint_fail(ep, &ep->lane_error, false);
        return;
    }
    if (ep->channel == NULL || ep->lane == NULL || is_late) {
        (void)rdti_error_set_rank(&err, RDT_ECLOSED, rdti_endpoint_rank(ep),
                                  "the endpoint to rank %d was closed here",
                                  (int)rdti_endpoint_rank(ep));
        ep->error = err;
        rdti_endpoint_set_state(ep, RDTI_EP_LEFT);
        return;
    }
    if (!ep->said_goodbye && ep->failover == NULL && close_are_protocols_idle(ep) &&
        ep->lane->transport->is_idle(ep->lane)) {
        ep->said_goodbye = true;
        rdti_channel_send_last(ep->channel, RDTI_FRAME_GOODBYE, NULL, 0);
    }
}

void
rdti_endpoint_close_unready(rdt_endpoint *ep)
{
    (void)rdti_error_set_rank(&ep->error, RDT_ECLOSED, rdti_endpoint_rank(ep),
                              "the endpoint to rank %d was closed here",
                              (int)rdti_endpoint_rank(ep));
    rdti_endpoint_set_state(ep, RDTI_EP_LEFT);
}

void
rdti_endpoint_begin_close(rdt_endpoint *ep)
{
    ep->linger_until_ns = rdti_deadline_after(CLOSE_LINGER_NS);
    ep->is_close_due = true;
    if (rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING) {
        if (rdti_list_is_empty(&ep->pending)) /* else set-up goes on: these ops are to be flushed */
            rdti_endpoint_close_unready(ep);
    } else if (rdti_endpoint_get_state(ep) == RDTI_EP_READY) {
        rdti_endpoint_set_state(ep, RDTI_EP_CLOSING);
        rdti_endpoint_advance_closing(ep);
    }
    ep->ctx->has_core_work = true;
    /* The progress thread completes the close; it may be asleep. */
    rdti_engine_poke(ep->ctx->engine);
}

static bool
close_is_goodbye_said(void *arg)
{
    rdt_context *ctx = arg;
    bool is_said = true;

    rdti_engine_enter(ctx->engine);
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        const rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (rdti_endpoint_get_state(ep) == RDTI_EP_CLOSING && !ep->said_goodbye)
            is_said = false;
    }
    rdti_engine_leave(ctx->engine);
    return is_said;
}

void
rdti_endpoints_await_goodbyes(rdt_context *ctx)
{
    /* A late goodbye is not an error: the progress thread says it then. A driver must not wait. */
    (void)rdti_engine_wait(ctx->engine, close_is_goodbye_said, ctx,
                           rdti_deadline_after(GOODBYE_WAIT_NS));
}

void
rdti_endpoint_on_peer_done(rdt_endpoint *ep)
{
    ep->is_peer_done = true;
    ep->ctx->has_core_work = true;
}
