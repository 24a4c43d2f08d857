/* SPDX-License-Identifier: Apache-2.0
 * Set-up after the handshake: exchange of lane halves, proof of the path by a write each way. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/system/sockaddr.h"
#include "base/text.h"
#include "connect/listener.h"
#include "endpoint/failures.h"
#include "endpoint/setup.h"
#include "wire/notify.h"

/* Where a floor is not met, the peer gets only the reasons: it makes that sentence itself. */
static const char *
setup_probe_words_for_peer(const rdt_endpoint *ep, const struct rdt_error *err)
{
    const char *reasons = ep->setup->reasons;

    return err->status == RDT_EMISMATCH && reasons[0] != '\0' &&
                   strstr(err->message, reasons) != NULL
               ? reasons
               : err->message;
}

void
rdti_path_tell_failure(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdti_text text = {0};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    rdti_text_copy(text.text, sizeof(text.text), setup_probe_words_for_peer(ep, err));
    rdti_channel_send(ep->channel, RDTI_FRAME_PATH_FAILED, payload,
                      rdti_text_encode(&text, payload), NULL, 0);
}

/* Devices that cannot reach each other will not at the next attempt either: the connector no longer
 * offers verbs, and begins with its first place again. */
static void
setup_probe_drop_verbs(rdt_endpoint *ep)
{
    struct rdti_setup *setup = ep->setup;
    const uint32_t bit = 1u << RDT_TRANSPORT_VERBS;

    if (rdti_endpoint_transport_id(ep) == RDT_TRANSPORT_VERBS)
        setup->has_lost_verbs = true;

    if (setup->is_passive || rdti_endpoint_transport_id(ep) != RDT_TRANSPORT_VERBS ||
        (setup->hello.transports & bit) == 0)
        return;
    setup->hello.transports &= ~bit;
    setup->next_contact = 0;
}

/* The connector goes on with the next place; the listener waits for it, but not for ever. */
void
rdti_path_abandon(rdt_endpoint *ep, const struct rdt_error *err)
{
    const struct rdt_error why = *err; /* a copy: err may lie in what is released */

    setup_probe_drop_verbs(ep);
    rdti_endpoint_release_path(ep, &why);
    if (!ep->setup->is_passive) {
        rdti_path_attempt_failed(ep, &why);
        return;
    }
    rdti_path_note(ep, why.message);
    if (ep->setup->is_prepared)
        rdti_path_retry(ep, RDTI_CROSSED_NS);
}

/* Both sides saw that devices do not reach each other, or that one has none. If a floor rules out
 * anything less, the endpoint ends, with the same words on both sides. */
static bool
setup_probe_fails_floor(rdt_endpoint *ep, const struct rdt_error *why)
{
    const struct rdti_authenticated *with = &ep->setup->authenticated;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    if (rdti_endpoint_transport_id(ep) != RDT_TRANSPORT_VERBS &&
        rdti_endpoint_transport_id(ep) != RDT_TRANSPORT_TCP)
        return false;
    rdti_path_note(ep, why->message);
    if (rdti_path_check_floor(ep, RDT_TRANSPORT_TCP,
                              with->is_connector ? with->challenge.require_transport
                                                 : with->hello.require_transport,
                              &err) == RDT_OK)
        return false;
    rdti_endpoint_fail(ep, &err, false);
    return true;
}

void
rdti_path_refuse(rdt_endpoint *ep, const struct rdt_error *err)
{
    rdti_path_tell_failure(ep, err);
    if (err->status == RDT_EMISMATCH)
        rdti_endpoint_fail(ep, err, false);
    else if (!setup_probe_fails_floor(ep, err))
        rdti_path_note(ep, err->message);
}

void
rdti_path_give_up(rdt_endpoint *ep, const struct rdt_error *err)
{
    if (ep->channel != NULL)
        rdti_path_tell_failure(ep, err);
    if (!setup_probe_fails_floor(ep, err))
        rdti_path_abandon(ep, err);
}

void
rdti_path_channel_lost(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdt_error again = *err;

    if (ep->refs == 0 && !ep->is_close_due) { /* not opened here */
        rdti_endpoint_fail(ep, err, false);
        return;
    }
    /* Before its PATH a listener closes only connections that crossed. If it is gone, the next
     * attempt will say so. */
    if (!ep->setup->is_passive && !ep->setup->has_path_in && err->status == RDT_EPEER)
        again.status = RDT_EAGAIN;
    rdti_path_abandon(ep, &again);
}

static rdt_status
setup_probe_connect_lane(rdt_endpoint *ep, struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;
    struct rdti_offer offer = {.len_bytes = setup->peer_path.offer_bytes};

    memcpy(offer.bytes, setup->peer_path.offer, offer.len_bytes);
    offer.fd_count = rdti_channel_take_fds(ep->channel, offer.fds, RDTI_OFFER_MAX_FDS);
    ep->peer_ring = setup->peer_path.ring;
    if (setup->peer_path.reason[0] != '\0')
        rdti_path_note(ep, setup->peer_path.reason);
    setup->has_path_in = true;
    return ep->lane->transport->connect(ep->lane, &offer, err);
}

/* over budget: all that a peer may get wrong in a PATH is checked in one place, in order. */
rdt_status
rdti_path_on_path(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                  struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;

    if (setup == NULL || setup->has_path_in)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d sent a second PATH",
                              (int)rdti_endpoint_rank(ep));
    rdt_status status = rdti_path_decode(payload, payload_bytes, &setup->peer_path, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(setup->peer_path.ring.owner, ep->uuid, RDT_UUID_BYTES) != 0 ||
        setup->peer_path.ring.len_bytes < RDTI_RING_SMALL_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "rank %d offers a mailbox ring that is not its own or too small",
                              (int)rdti_endpoint_rank(ep));
    if (ep->lane == NULL && !setup->authenticated.is_connector)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d answers a path that was given up",
                              (int)rdti_endpoint_rank(ep));
    if (ep->lane == NULL) {
        const uint32_t transport = setup->peer_path.transport;
        if (setup->authenticated.is_unix != (transport == RDT_TRANSPORT_SHM))
            return rdti_error_set(err, RDT_EPROTO, 0,
                                  "rank %d offers %s over the wrong kind of socket",
                                  (int)rdti_endpoint_rank(ep), rdti_path_transport_name(transport));
        memcpy(ep->session_id, setup->peer_path.session_id, sizeof(ep->session_id));
        status = rdti_path_check_floor(ep, transport,
                                       setup->authenticated.challenge.require_transport, err);
        if (status != RDT_OK) {
            rdti_endpoint_fail(ep, err, false);
            return RDT_OK;
        }
        status = rdti_path_make_half(ep, transport, &setup->authenticated, err);
    } else if (setup->peer_path.transport != rdti_endpoint_transport_id(ep)) {
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d answers %s with %s",
                              (int)rdti_endpoint_rank(ep),
                              rdti_path_transport_name(rdti_endpoint_transport_id(ep)),
                              rdti_path_transport_name(setup->peer_path.transport));
    }
    if (status == RDT_OK)
        status = setup_probe_connect_lane(ep, err);
    if (status == RDT_EPROTO)
        return status;
    if (status != RDT_OK)
        rdti_path_give_up(ep, err);
    return RDT_OK;
}

rdt_status
rdti_path_on_path_failed(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                         struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = rdti_endpoint_rank(ep)};
    struct rdti_text text;
    const rdt_status status = rdti_text_decode(payload, payload_bytes, &text, err);

    if (status != RDT_OK)
        return status;
    if (ep->setup == NULL)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d gives up a path that was proved",
                              (int)rdti_endpoint_rank(ep));
    if (ep->lane == NULL) /* no PATH came: the listener could not offer it */
        rdti_endpoint_set_transport_id(ep, rdti_path_choice(&ep->setup->authenticated));
    if (strstr(ep->setup->reasons, text.text) != NULL) /* as this side found by itself */
        (void)rdti_error_set_rank(&why, RDT_ENOTVIABLE, rdti_endpoint_rank(ep), "%s", text.text);
    else
        (void)rdti_error_set_rank(&why, RDT_ENOTVIABLE, rdti_endpoint_rank(ep), "rank %d: %s",
                                  (int)rdti_endpoint_rank(ep), text.text);
    if (!setup_probe_fails_floor(ep, &why))
        rdti_path_abandon(ep, &why);
    return RDT_OK;
}

/* Whether the pair should have had a better path: verbs was tried and given up, or both have shared
 * memory and meet over the loopback address all the same. */
static bool
setup_probe_is_fallback(const rdt_endpoint *ep)
{
    const struct rdti_setup *setup = ep->setup;
    const struct rdti_authenticated *with = &setup->authenticated;
    const uint32_t both = with->hello.transports & with->challenge.transports;
    const bool is_forced = with->hello.force_transport != RDT_TRANSPORT_AUTO ||
                           with->challenge.force_transport != RDT_TRANSPORT_AUTO;

    if (is_forced || rdti_endpoint_transport_id(ep) == RDT_TRANSPORT_SHM)
        return false;
    if (rdti_endpoint_transport_id(ep) == RDT_TRANSPORT_TCP && setup->has_lost_verbs)
        return true;
    return (both & 1u << RDT_TRANSPORT_SHM) != 0 &&
           !rdti_listener_is_test_host(ep->ctx->listener) &&
           rdti_sockaddr_is_loopback((const struct sockaddr *)&with->peer);
}

static void
setup_probe_become_ready(rdt_endpoint *ep)
{
    ep->lane->is_fallback = setup_probe_is_fallback(ep);
    rdti_context_note_met(ep->ctx, ep->uuid);
    rdti_text_copy(ep->reason, sizeof(ep->reason), ep->setup->reasons);
    ep->ready_after_ns = rdti_now_ns() - ep->setup->begun_ns;
    ep->is_local =
        ep->setup->authenticated.is_unix ||
        rdti_sockaddr_is_loopback((const struct sockaddr *)&ep->setup->authenticated.peer);
    rdti_failover_prepare(ep);
    rdti_path_end_setup(ep);
    rdti_path_flush_pending(ep); /* before the state allows others past it */
    rdti_endpoint_set_state(ep, RDTI_EP_READY);
    rdti_context_tell_obituaries(ep->ctx, ep);
    for (uint32_t i = 0; i < RDTI_PROTOCOLS; i++)
        ep->ctx->upcalls->protocols[i]->on_ready(ep->attached[i]);
    rdti_context_recount_local(ep->ctx);
    rdti_log(RDT_LOG_INFO, "rank %d is reached over %s (%.1f ms)%s%s", (int)rdti_endpoint_rank(ep),
             rdti_path_transport_name(rdti_endpoint_transport_id(ep)),
             (double)ep->ready_after_ns / 1e6, ep->reason[0] != '\0' ? "; not better because " : "",
             ep->reason);
    if (ep->is_close_due)
        rdti_endpoint_begin_close(ep);
}

static void
setup_probe_check_ready(rdt_endpoint *ep)
{
    if (ep->setup->said_ready && ep->setup->heard_ready)
        setup_probe_become_ready(ep);
}

rdt_status
rdti_path_on_ready_frame(rdt_endpoint *ep, struct rdt_error *err)
{
    if (ep->is_ready_frame_due) { /* what it wrote then was faster */
        ep->is_ready_frame_due = false;
        return RDT_OK;
    }
    if (ep->setup == NULL || ep->setup->heard_ready)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d said READY twice",
                              (int)rdti_endpoint_rank(ep));
    ep->setup->heard_ready = true;
    setup_probe_check_ready(ep);
    return RDT_OK;
}

rdt_status
rdti_path_on_early(rdt_endpoint *ep, struct rdt_error *err)
{
    if (ep->setup == NULL || !ep->setup->said_ready)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d used a path that is not proved",
                              (int)rdti_endpoint_rank(ep));
    ep->is_ready_frame_due = !ep->setup->heard_ready;
    ep->setup->heard_ready = true;
    setup_probe_check_ready(ep);
    return RDT_OK;
}

/* ---- The probe ---------------------------------------------------------------------------- */

/* The peer cannot be written to, for want of memory that its device may reach, say: this path does
 * not work. */
static void
setup_probe_on_done(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    rdt_endpoint *ep = RDTI_CONTAINER(op, rdt_endpoint, probe);

    if (status != RDT_OK && ep->setup != NULL)
        rdti_endpoint_on_lane_error(ep, err);
}

void
rdti_path_on_lane_ready(rdt_endpoint *ep)
{
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};
    struct rdti_setup *setup = ep->setup;

    if (setup == NULL || setup->is_lane_ready)
        return;
    setup->is_lane_ready = true;
    /* A copy: set-up ends once the peer says that it has seen the nonce, while a lane that breaks
     * then may write it again. */
    memcpy(ep->probe_nonce, setup->own_path.nonce, sizeof(ep->probe_nonce));
    ep->probe = (struct rdti_op){
        .kind = RDTI_OP_WRITE,
        .traffic = RDTI_TRAFFIC_CONTROL,
        .notify = RDTI_NOTIFY_PROBE,
        .is_urgent = true,
        .remote = ep->peer_ring,
        .block = {.src = ep->probe_nonce, .len_bytes = sizeof(ep->probe_nonce)},
        .blocks = &ep->probe.block,
        .block_count = 1,
        .len_bytes = sizeof(ep->probe_nonce),
        .complete = setup_probe_on_done,
    };
    if (ep->lane->transport->write(ep->lane, &ep->probe, &err) != RDT_OK)
        rdti_endpoint_on_lane_error(ep, &err);
}

rdt_status
rdti_path_on_probe(rdt_endpoint *ep, struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;

    if (setup == NULL || !setup->has_path_in || setup->said_ready)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d sent a probe out of turn",
                              (int)rdti_endpoint_rank(ep));
    if (memcmp(rdt_region_addr(ep->ring), setup->peer_path.nonce, sizeof(setup->peer_path.nonce)) !=
        0)
        return rdti_error_set(
            err, RDT_EPROTO, 0,
            "the probe of rank %d over %s arrived with other bytes than were sent",
            (int)rdti_endpoint_rank(ep), rdti_path_transport_name(rdti_endpoint_transport_id(ep)));
    setup->said_ready = true;
    rdti_channel_send(ep->channel, RDTI_FRAME_READY, NULL, 0, NULL, 0);
    setup_probe_check_ready(ep);
    return RDT_OK;
}
