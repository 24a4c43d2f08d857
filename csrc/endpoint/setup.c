/* SPDX-License-Identifier: Apache-2.0
 * How an endpoint is set up: places are tried in turn, the best path that both sides can use is
 * proved by a real write in both directions, and every path that was not taken leaves its reason.
 *
 *   connector                               listener
 *   HELLO, AUTH (handshake.c)
 *                                           makes its half of a lane -> PATH
 *   makes its half, connects -> PATH        connects
 *   writes its nonce into the peer's ring   the same
 *   sees the peer's nonce in its ring -> READY on the side channel, both ways
 *   READY seen and said: the endpoint is ready
 *
 * Crossing connections: the one whose connector has the smaller uuid goes on. The other is refused
 * with RDT_EBUSY, or, where both were admitted before either was authenticated, dropped. Nothing
 * changes here before a peer has proved its identity.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/system/sockaddr.h"
#include "base/text.h"
#include "endpoint/setup.h"

const char *
rdti_path_transport_name(uint32_t id)
{
    static const char *const names[RDTI_TRANSPORT_COUNT] = {"auto", "shm", "tcp", "verbs"};

    return id < RDTI_TRANSPORT_COUNT ? names[id] : "?";
}

void
rdti_path_note(rdt_endpoint *ep, const char *text)
{
    char *reasons = ep->setup->reasons;
    const size_t used = strlen(reasons);

    if (strstr(reasons, text) == NULL)
        (void)snprintf(reasons + used, sizeof(ep->setup->reasons) - used, "%s%s",
                       used > 0 ? "; " : "", text);
}

/* ---- The endpoint -------------------------------------------------------------------------- */

static rdt_status
setup_attach_protocols(rdt_endpoint *ep, struct rdt_error *err)
{
    const struct rdti_upcalls *upcalls = ep->ctx->upcalls;

    for (uint32_t i = 0; i < RDTI_PROTOCOLS; i++) {
        const rdt_status status = upcalls->protocols[i]->attach(ep, &ep->attached[i], err);
        if (status == RDT_OK)
            continue;
        while (i-- > 0)
            upcalls->protocols[i]->detach(ep->attached[i]);
        return status;
    }
    return RDT_OK;
}

rdt_status
rdti_path_create(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES], int32_t rank,
                 const char *job_id, uint64_t timeout_ns, rdt_endpoint **out, struct rdt_error *err)
{
    rdt_endpoint *ep = calloc(1, sizeof(*ep));
    rdt_status status;

    if (ep == NULL || (ep->setup = calloc(1, sizeof(*ep->setup))) == NULL) {
        free(ep);
        return rdti_error_set(err, RDT_ENOMEM, 0, "an endpoint of %zu bytes", sizeof(*ep));
    }
    ep->ctx = ctx;
    rdti_endpoint_set_rank(ep, rank);
    ep->pidfd = -1;
    memcpy(ep->uuid, uuid, RDT_UUID_BYTES);
    rdti_text_copy(ep->job_id, sizeof(ep->job_id), job_id);
    rdti_list_init(&ep->pending);
    ep->setup->begun_ns = rdti_now_ns();
    ep->setup->deadline_ns = rdti_deadline_after(timeout_ns);
    status =
        rdti_regions_alloc(ctx->regions, RDTI_RING_SMALL_BYTES, RDT_REGION_ZERO, &ep->ring, err);
    if (status != RDT_OK)
        goto err_free_ep;
    status = setup_attach_protocols(ep, err);
    if (status != RDT_OK)
        goto err_free_ring;
    rdti_list_append(&ctx->endpoints, &ep->link);
    *out = ep;
    return RDT_OK;

err_free_ring:
    rdt_region_free(ep->ring, NULL, NULL);
err_free_ep:
    free(ep->setup);
    free(ep);
    return status;
}

/* ---- Both: the authenticated socket ------------------------------------------------------- */

static void
setup_on_pidfd(void *arg, uint32_t epoll_events)
{
    rdt_endpoint *ep = arg;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    (void)epoll_events;
    if (ep->channel != NULL)
        rdti_channel_drain(ep->channel); /* a goodbye or the socket's end says more */
    if (ep->pidfd < 0)
        return;
    rdti_endpoint_on_peer_done(ep);
    if (!rdti_endpoint_is_ended(ep) && rdti_endpoint_get_state(ep) != RDTI_EP_CONNECTING)
        rdti_endpoint_take_arrivals(ep);
    if (rdti_endpoint_is_ended(ep))
        return;
    (void)rdti_error_set_rank(&err, RDT_EPEER, rdti_endpoint_rank(ep),
                              "rank %d died: process %d has exited", (int)rdti_endpoint_rank(ep),
                              (int)ep->peer_pid);
    rdti_endpoint_fail(ep, &err, true);
}

/* A child that the peer forked may hold its sockets open: the process itself is watched too, where
 * it is visible. */
static void
setup_watch_process(rdt_endpoint *ep, int32_t pid)
{
    struct rdt_error err;

    ep->peer_pid = pid;
    if (pid <= 0)
        return;
    ep->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (ep->pidfd < 0)
        return;
    (void)rdti_fork_close_add(ep->pidfd);
    if (rdti_engine_watch(ep->ctx->engine, ep->pidfd, EPOLLIN, setup_on_pidfd, ep, &ep->pidfd_watch,
                          &err) != RDT_OK)
        rdti_path_drop_pidfd(ep);
}

static bool
setup_is_better(uint32_t a, uint32_t b)
{
    static const uint32_t order[RDTI_TRANSPORT_COUNT] = {0, 3, 1, 2}; /* tcp < verbs < shm */

    return order[a] > order[b];
}

rdt_status
rdti_path_check_floor(const rdt_endpoint *ep, uint32_t transport, uint32_t peer_floor,
                      struct rdt_error *err)
{
    const uint32_t own_floor = ep->ctx->opts.require_transport;
    const uint32_t floor = own_floor != RDT_TRANSPORT_AUTO ? own_floor : peer_floor;

    /* A pair that shares memory crosses no host: nothing is better than shm. */
    if (floor == RDT_TRANSPORT_AUTO || floor >= RDTI_TRANSPORT_COUNT ||
        !setup_is_better(floor, transport))
        return RDT_OK;
    return rdti_error_set_rank(err, RDT_EMISMATCH, rdti_endpoint_rank(ep),
                               "%s is required, but the best path to rank %d is %s: %s",
                               rdti_path_transport_name(floor), (int)rdti_endpoint_rank(ep),
                               rdti_path_transport_name(transport),
                               ep->setup->reasons[0] != '\0' ? ep->setup->reasons
                                                             : "no better one is viable");
}

uint32_t
rdti_path_choice(const struct rdti_authenticated *with)
{
    const uint32_t both = with->hello.transports & with->challenge.transports;

    if (with->is_unix)
        return RDT_TRANSPORT_SHM;
    if (with->challenge.force_transport != RDT_TRANSPORT_AUTO)
        return with->challenge.force_transport;
    if (with->hello.force_transport != RDT_TRANSPORT_AUTO)
        return with->hello.force_transport;
    return (both & 1u << RDT_TRANSPORT_VERBS) != 0 ? RDT_TRANSPORT_VERBS : RDT_TRANSPORT_TCP;
}

/* For a pair that uses tcp for want of devices: notes which side has none, in words that are right
 * on both sides, and why, as far as it is known here. */
static void
setup_note_no_verbs(rdt_endpoint *ep, const struct rdti_authenticated *with)
{
    const struct rdti_found *own = &ep->ctx->found[RDT_TRANSPORT_VERBS];
    char text[RDT_ERROR_MESSAGE_BYTES];

    if (rdti_path_choice(with) != RDT_TRANSPORT_TCP ||
        ep->ctx->opts.force_transport != RDT_TRANSPORT_AUTO ||
        with->hello.force_transport != RDT_TRANSPORT_AUTO ||
        with->challenge.force_transport != RDT_TRANSPORT_AUTO)
        return;
    if (!own->is_viable)
        (void)snprintf(text, sizeof(text), "verbs: rank %d has none: %.300s",
                       (int)(with->is_connector ? with->hello.rank : with->challenge.rank),
                       own->reason);
    else if (!with->is_connector) /* the connector receives it from the listener, with the reason */
        (void)snprintf(text, sizeof(text), "verbs: rank %d has none", (int)rdti_endpoint_rank(ep));
    else
        return;
    rdti_path_note(ep, text);
}

rdt_status
rdti_path_make_half(rdt_endpoint *ep, uint32_t transport, const struct rdti_authenticated *result,
                    struct rdt_error *err)
{
    rdt_context *ctx = ep->ctx;
    struct rdti_setup *setup = ep->setup;
    const struct rdti_found *found = &ctx->found[transport];
    struct rdti_offer offer = {0};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    struct rdti_lane_args args = {
        .is_connector = result->is_connector,
        .peer_rank = rdti_endpoint_rank(ep),
        .is_loopback =
            !result->is_unix && rdti_sockaddr_is_loopback((const struct sockaddr *)&result->peer),
        .peer_sockaddr = result->is_connector && !result->is_unix ? &result->peer : NULL,
        .peer_sockaddr_bytes = result->is_connector && !result->is_unix ? result->peer_bytes : 0,
        .deadline_ns = setup->deadline_ns,
    };

    rdti_endpoint_set_transport_id(ep, transport); /* later failures are of this path */
    if (!found->is_viable)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "%s: %s", rdti_path_transport_name(transport),
                              found->reason);
    memcpy(args.session_id, ep->session_id, sizeof(args.session_id));
    memcpy(args.session_key, ep->session_key, sizeof(args.session_key));
    rdt_status status = found->transport->make_offer(found->state, &args, &ep->lane, &offer, err);
    if (status != RDT_OK)
        return status;
    ep->lane->owner = ep;
    setup->own_path.transport = transport;
    memcpy(setup->own_path.session_id, ep->session_id, sizeof(ep->session_id));
    rdti_text_copy(setup->own_path.reason, sizeof(setup->own_path.reason), setup->reasons);
    setup->own_path.offer_bytes = offer.len_bytes;
    memcpy(setup->own_path.offer, offer.bytes, offer.len_bytes);
    status = rdti_random_bytes(setup->own_path.nonce, sizeof(setup->own_path.nonce), err);
    if (status == RDT_OK)
        status = rdt_region_export(ep->ring, &setup->own_path.ring, err);
    if (status != RDT_OK)
        return status;
    rdti_channel_send(ep->channel, RDTI_FRAME_PATH, payload,
                      rdti_path_encode(&setup->own_path, payload), offer.fds, offer.fd_count);
    return RDT_OK;
}

/* A channel to this peer exists already. Both sides decide alike, so that exactly one survives. */
static rdt_status
setup_check_second(rdt_endpoint *ep, const struct rdti_authenticated *result, struct rdt_error *err)
{
    const bool is_crossing = rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING &&
                             ep->setup->authenticated.is_connector && !ep->setup->has_path_in;

    if (is_crossing && memcmp(result->hello.connector, ep->ctx->uuid, RDT_UUID_BYTES) < 0) {
        rdti_endpoint_release_path(ep, &ep->error);
        return RDT_OK;
    }
    return rdti_error_set(err, RDT_EBUSY, 0, "rank %d connected twice at once",
                          (int)result->hello.rank);
}

/* The endpoint of an authenticated connector, which may have been opened here too. */
static rdt_status
setup_endpoint_of(rdt_context *ctx, const struct rdti_authenticated *result, rdt_endpoint **out,
                  struct rdt_error *err)
{
    rdt_endpoint *ep = rdti_endpoint_find(ctx, result->hello.connector);
    rdt_status status = RDT_OK;

    if (ctx->is_closing)
        return rdti_error_set(err, RDT_ECLOSED, 0, "this process is leaving");
    if (ep == NULL)
        return rdti_path_create(ctx, result->hello.connector, result->hello.rank,
                                result->hello.job_id, ctx->opts.timeout_ns, out, err);
    if (strcmp(ep->job_id, result->hello.job_id) == 0) /* it may be opened since the admission */
        status = rdti_path_check_rank(ep->job_id, rdti_endpoint_rank(ep), result->hello.rank, err);
    if (status == RDT_OK && ep->channel != NULL)
        status = setup_check_second(ep, result, err);
    if (status != RDT_OK)
        return status;
    rdti_handshake_cancel(ep->setup->handshake);
    ep->setup->handshake = NULL;
    *out = ep;
    return RDT_OK;
}

/* over budget: both roles pass here, and each step may fail with its own undoing. */
static void
setup_on_authenticated(rdt_context *ctx, void *arg, const struct rdti_authenticated *result)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = arg;

    if (ep != NULL)
        ep->setup->handshake = NULL;
    else if (setup_endpoint_of(ctx, result, &ep, &err) != RDT_OK) {
        rdti_log(RDT_LOG_INFO, "dropped a connection: %s", err.message);
        rdti_fork_close_remove(result->fd);
        (void)close(result->fd);
        return;
    }
    if (rdti_endpoint_rank(ep) == RDT_RANK_UNKNOWN)
        rdti_endpoint_set_rank(ep,
                               result->is_connector ? result->challenge.rank : result->hello.rank);
    memcpy(ep->session_key, result->session_key, sizeof(ep->session_key));
    ep->setup->is_passive = !result->is_connector;
    ep->setup->retry_ns = 0;
    /* The connector gives a path up first; the listener only if the connector does not. */
    ep->setup->path_deadline_ns =
        rdti_deadline_after((result->is_connector ? 1 : 2) * RDTI_ATTEMPT_NS);
    rdt_status status =
        rdti_channel_create(ctx->engine, result->fd, result->is_unix, &rdti_endpoint_channel_events,
                            ep, &ctx->counters.side_channel_bytes, &ep->channel, &err);
    if (status != RDT_OK) {
        rdti_fork_close_remove(result->fd);
        (void)close(result->fd);
        rdti_endpoint_fail(ep, &err, false);
        return;
    }
    setup_watch_process(ep, result->is_unix ? result->peer_pid : 0);
    ep->setup->authenticated = *result;
    setup_note_no_verbs(ep, result);
    if (result->is_connector)
        return; /* the listener speaks first */
    const uint32_t transport = rdti_path_choice(result);
    status = rdti_path_check_floor(ep, transport, result->hello.require_transport, &err);
    if (status == RDT_OK)
        status = rdti_random_bytes(ep->session_id, sizeof(ep->session_id), &err);
    if (status == RDT_OK)
        status = rdti_path_make_half(ep, transport, result, &err);
    if (status != RDT_OK)
        rdti_path_refuse(ep, &err);
}

static rdt_status
setup_confirm(void *arg, const struct rdti_challenge *challenge, struct rdt_error *err)
{
    const rdt_endpoint *ep = arg;

    return rdti_path_check_rank(ep->job_id, rdti_endpoint_rank(ep), challenge->rank, err);
}

static void
setup_on_handshake_failed(rdt_context *ctx, void *arg, const struct rdt_error *err)
{
    rdt_endpoint *ep = arg;

    (void)ctx;
    ep->setup->handshake = NULL;
    rdti_path_attempt_failed(ep, err);
}

const struct rdti_handshake_events rdti_path_handshake_events = {
    .admit = rdti_path_admit,
    .confirm = setup_confirm,
    .done = setup_on_authenticated,
    .failed = setup_on_handshake_failed,
    .join = rdti_path_on_join,
};
