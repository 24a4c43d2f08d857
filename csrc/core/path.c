/* SPDX-License-Identifier: Apache-2.0
 * How an endpoint comes to be: places are tried in turn, the best path that both sides can use is proved by a real write in both
 * directions, and every path that was not taken leaves its reason.
 *
 *   connector                               listener
 *   HELLO, AUTH (handshake.c)
 *                                           makes its half of a lane -> PATH
 *   makes its half, connects -> PATH        connects
 *   writes its nonce into the peer's ring   the same
 *   sees the peer's nonce in its ring -> READY on the side channel, both ways
 *   READY seen and said: the endpoint is ready
 *
 * Crossing connections: the one whose connector has the smaller uuid goes on, the other is refused with RDT_EBUSY and its side waits.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/fork.h"
#include "base/log.h"
#include "base/text.h"
#include "core/endpoint_impl.h"
#include "core/listener.h"
#include "core/mailbox.h"
#include "core/netaddr.h"
#include "core/slot.h"
#include "wire/notify.h"

/* One place may take this long before the next is tried: a packet that a firewall drops is answered by nobody. */
#define ATTEMPT_NS UINT64_C(5000000000)
/* A peer publishes its address only after it listens, so a refusal means that it is gone (or a firewall): this long it may be a
 * matter of order, e.g. a goodbye of an earlier endpoint on its way. */
#define REFUSED_GRACE_NS UINT64_C(2000000000)
#define RETRY_NS UINT64_C(20000000)

static const char *
transport_name(uint32_t id)
{
    static const char *const names[RDTI_TRANSPORT_COUNT] = {"auto", "shm", "tcp", "verbs"};

    return id < RDTI_TRANSPORT_COUNT ? names[id] : "?";
}

static void
note_reason(rdt_endpoint *ep, const char *text)
{
    char *reasons = ep->setup->reasons;
    const size_t used = strlen(reasons);

    if (strstr(reasons, text) == NULL)
        (void)snprintf(reasons + used, sizeof(ep->setup->reasons) - used, "%s%s",
                       used > 0 ? "; " : "", text);
}

/* ---- Birth and end of set-up -------------------------------------------------------------- */

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

static rdt_status
create_endpoint(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES], int32_t rank,
                const char *job_id, uint64_t timeout_ns, rdt_endpoint **out, struct rdt_error *err)
{
    rdt_endpoint *ep = calloc(1, sizeof(*ep));
    rdt_status status;

    if (ep == NULL || (ep->setup = calloc(1, sizeof(*ep->setup))) == NULL) {
        free(ep);
        return rdti_error_set(err, RDT_ENOMEM, 0, "an endpoint of %zu bytes", sizeof(*ep));
    }
    ep->ctx = ctx;
    ep->rank = rank;
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
    status = rdti_mailbox_create(ep, &ep->mailbox, err);
    if (status != RDT_OK)
        goto err_free_ring;
    status = rdti_slots_create(ep, &ep->slots, err);
    if (status != RDT_OK)
        goto err_destroy_mailbox;
    rdti_list_append(&ctx->endpoints, &ep->link);
    *out = ep;
    return RDT_OK;

err_destroy_mailbox:
    rdti_mailbox_destroy(ep->mailbox);
err_free_ring:
    rdt_region_free(ep->ring, NULL, NULL);
err_free_ep:
    free(ep->setup);
    free(ep);
    return status;
}

/* ---- Connector: places ------------------------------------------------------------------- */

static void
add_unix_place(struct rdti_setup *setup, const struct rdti_blob *blob)
{
    struct rdti_place *place = &setup->places[setup->place_count++];
    struct sockaddr_un *addr = (struct sockaddr_un *)(void *)&place->addr;
    const size_t name_bytes = strnlen(blob->unix_name, sizeof(blob->unix_name));

    place->is_unix = true;
    addr->sun_family = AF_UNIX;
    memcpy(addr->sun_path + 1, blob->unix_name, name_bytes);
    place->addr_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes);
    (void)snprintf(place->text, sizeof(place->text), "shm: Unix socket @%.40s", blob->unix_name);
}

static void
add_tcp_places(struct rdti_setup *setup, const struct rdti_blob *blob, bool is_maybe_here,
               bool loopback)
{
    for (uint32_t i = 0; i < blob->addr_count && setup->place_count < RDTI_PLACES_MAX; i++) {
        const struct rdti_blob_addr *addr = &blob->addrs[i];
        /* Another host's loopback address leads to ourselves. */
        if ((addr->is_loopback != 0) != loopback || (loopback && !is_maybe_here))
            continue;
        struct rdti_place *place = &setup->places[setup->place_count++];
        char text[80];
        place->addr_bytes = rdti_sockaddr_from_blob(addr, &place->addr);
        rdti_sockaddr_text((const struct sockaddr *)&place->addr, text, sizeof(text));
        (void)snprintf(place->text, sizeof(place->text), "tcp: %s", text);
    }
}

static void
list_places(rdt_endpoint *ep, const struct rdti_blob *blob)
{
    const rdt_context *ctx = ep->ctx;
    const uint32_t force = ctx->opts.force_transport;
    const bool is_maybe_here =
        memcmp(blob->host_hint, rdti_listener_blob(ctx->listener)->host_hint, 16) == 0;

    if (force != RDT_TRANSPORT_AUTO && force != RDT_TRANSPORT_SHM)
        note_reason(ep,
                    force == RDT_TRANSPORT_TCP ? "tcp was forced here" : "verbs was forced here");
    else if (!ctx->found[RDT_TRANSPORT_SHM].is_viable)
        note_reason(ep, ctx->found[RDT_TRANSPORT_SHM].reason);
    else if (blob->unix_name[0] == '\0')
        note_reason(ep, "the peer offers no shared memory");
    else
        add_unix_place(ep->setup, blob);
    if (force == RDT_TRANSPORT_SHM)
        return;
    add_tcp_places(ep->setup, blob, is_maybe_here,
                   true); /* on one host loopback is the fastest way */
    add_tcp_places(ep->setup, blob, is_maybe_here, false);
}

static void try_next_place(rdt_endpoint *ep);

/* Errors that no other place and no patience can mend. */
static bool
is_final(int32_t status)
{
    return status == RDT_EAUTH || status == RDT_EVERSION || status == RDT_EMISMATCH ||
           status == RDT_EFORKED;
}

static void
attempt_failed(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;

    if (err->status == RDT_EBUSY) {
        setup->is_passive = true; /* the peer's own connection is on its way to us */
        return;
    }
    setup->last_error = *err;
    if (is_final(err->status)) {
        rdti_endpoint_fail(ep, err, false);
        return;
    }
    if (err->status == RDT_EAGAIN) { /* it still holds an earlier endpoint to us */
        setup->next_place = 0;
        setup->retry_ns = rdti_deadline_after(RETRY_NS);
        return;
    }
    note_reason(ep, err->message);
    try_next_place(ep);
}

static void
out_of_places(rdt_endpoint *ep)
{
    struct rdti_setup *setup = ep->setup;
    struct rdt_error err = {.peer_rank = ep->rank};

    if (rdti_now_ns() - setup->begun_ns < REFUSED_GRACE_NS) {
        setup->next_place = 0;
        setup->retry_ns = rdti_deadline_after(RETRY_NS);
        return;
    }
    (void)rdti_error_set_rank(&err, RDT_EPEER, ep->rank,
                              "rank %d cannot be reached: it has exited, or a firewall or another "
                              "network lies between (%s)",
                              (int)ep->rank,
                              setup->reasons[0] != '\0' ? setup->reasons
                                                        : "it offers no address for this path");
    rdti_endpoint_fail(ep, &err, true);
}

static void
try_next_place(rdt_endpoint *ep)
{
    struct rdti_setup *setup = ep->setup;
    struct rdt_error err = {.peer_rank = ep->rank};

    while (setup->next_place < setup->place_count) {
        const struct rdti_place *place = &setup->places[setup->next_place++];
        const struct rdti_job *job = rdti_context_find_job(ep->ctx, ep->job_id);
        uint64_t deadline_ns = rdti_deadline_after(ATTEMPT_NS);
        if (deadline_ns > setup->deadline_ns)
            deadline_ns = setup->deadline_ns;
        if (rdti_handshake_connect(ep->ctx, place, &setup->hello, job, deadline_ns,
                                   &rdti_path_handshake_events, ep,
                                   rdti_listener_handshakes(ep->ctx->listener), &setup->handshake,
                                   &err) == RDT_OK)
            return;
        setup->last_error = err;
        note_reason(ep, err.message);
    }
    out_of_places(ep);
}

static void
fill_hello(const rdt_context *ctx, const struct rdti_job *job, const uint8_t peer[RDT_UUID_BYTES],
           struct rdti_hello *out)
{
    *out = (struct rdti_hello){
        .epoch = job->epoch,
        .rank = job->rank,
        .force_transport = ctx->opts.force_transport,
        .require_transport = ctx->opts.require_transport,
    };
    rdti_text_copy(out->library_version, sizeof(out->library_version), rdt_version());
    rdti_text_copy(out->job_id, sizeof(out->job_id), job->job_id);
    memcpy(out->connector, ctx->uuid, RDT_UUID_BYTES);
    memcpy(out->listener, peer, RDT_UUID_BYTES);
    for (uint32_t id = 1; id < RDTI_TRANSPORT_COUNT; id++)
        if (ctx->found[id].is_viable)
            out->transports |= 1u << id;
}

static rdt_status
open_new(rdt_context *ctx, const struct rdti_blob *blob, const struct rdt_endpoint_opts *opts,
         const struct rdti_job *job, rdt_endpoint **out, struct rdt_error *err)
{
    const bool is_default = opts->timeout_ns == 0 || opts->timeout_ns == RDT_TIMEOUT_DEFAULT;
    const rdt_status status =
        create_endpoint(ctx, blob->uuid, opts->peer_rank, opts->job_id,
                        is_default ? ctx->opts.timeout_ns : opts->timeout_ns, out, err);

    if (status != RDT_OK)
        return status;
    (*out)->refs = 1;
    fill_hello(ctx, job, blob->uuid, &(*out)->setup->hello);
    list_places(*out, blob);
    try_next_place(*out);
    return RDT_OK;
}

rdt_status
rdt_endpoint_open(rdt_context *ctx, const uint8_t *blob_bytes, size_t blob_len,
                  const struct rdt_endpoint_opts *opts, rdt_endpoint **out, struct rdt_error *err)
{
    struct rdti_blob blob;
    rdt_endpoint *ep = NULL;
    rdt_status status = rdti_context_check(ctx, "endpoint_open", err);

    if (status == RDT_OK &&
        (opts == NULL || opts->struct_size < sizeof(*opts) || opts->job_id == NULL))
        status = rdti_error_set(err, RDT_EINVAL, 0,
                                "endpoint_open: opts, its struct_size and job_id are needed");
    if (status == RDT_OK)
        status = rdti_blob_decode(blob_bytes, blob_len, &blob, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(blob.uuid, ctx->uuid, RDT_UUID_BYTES) == 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "endpoint_open: the blob is this process's own");
    rdti_engine_enter(ctx->engine);
    const struct rdti_job *job = rdti_context_find_job(ctx, opts->job_id);
    const struct rdti_obituary *dead = rdti_context_find_obituary(ctx, blob.uuid);
    ep = rdti_endpoint_find(ctx, blob.uuid);
    if (job == NULL) {
        status =
            rdti_error_set(err, RDT_EINVAL, 0,
                           "endpoint_open: job '%s' is unknown: call add_job first", opts->job_id);
    } else if (dead != NULL) {
        status = rdti_error_set_rank(err, RDT_EPEER, dead->rank, "rank %d is dead: %s",
                                     (int)dead->rank, dead->reason);
    } else if (ep != NULL) {
        ep->refs++;
        if (ep->rank == RDT_RANK_UNKNOWN)
            ep->rank = opts->peer_rank;
    } else {
        status = open_new(ctx, &blob, opts, job, &ep, err);
    }
    rdti_engine_leave(ctx->engine);
    if (status == RDT_OK)
        *out = ep;
    return status;
}

/* ---- Listener: who may in ----------------------------------------------------------------- */

static rdt_status
check_crossing(rdt_context *ctx, const struct rdti_hello *hello, struct rdt_error *err)
{
    rdt_endpoint *ep = rdti_endpoint_find(ctx, hello->connector);

    if (ep == NULL)
        return RDT_OK;
    if (rdti_endpoint_get_state(ep) == RDTI_EP_READY || ep->channel != NULL)
        return rdti_error_set(err, RDT_EAGAIN, 0,
                              "an earlier connection between these two processes is still open");
    if (ep->setup->handshake != NULL && memcmp(ctx->uuid, hello->connector, RDT_UUID_BYTES) < 0)
        return rdti_error_set(err, RDT_EBUSY, 0, "connections crossed; this side's goes on");
    rdti_handshake_cancel(ep->setup->handshake);
    ep->setup->handshake = NULL;
    ep->setup->is_passive = true;
    return RDT_OK;
}

static rdt_status
admit(rdt_context *ctx, const struct rdti_hello *hello, bool is_unix, struct rdti_job **job_out,
      struct rdti_challenge *challenge_out, struct rdt_error *err)
{
    struct rdti_hello own;
    struct rdti_job *job = rdti_context_find_job(ctx, hello->job_id);
    const struct rdti_obituary *dead = rdti_context_find_obituary(ctx, hello->connector);
    const uint32_t force = ctx->opts.force_transport;

    if (ctx->is_closing)
        return rdti_error_set(err, RDT_EPEER, 0, "this process is leaving");
    if (memcmp(hello->listener, ctx->uuid, RDT_UUID_BYTES) != 0)
        return rdti_error_set(err, RDT_EPEER, 0,
                              "you look for another process than the one that listens here");
    if (job == NULL)
        return rdti_error_set(err, RDT_EAUTH, 0, "job '%s' is unknown here", hello->job_id);
    if (job->epoch != hello->epoch)
        return rdti_error_set_rank(
            err, RDT_EMISMATCH, hello->rank,
            "job '%s' is in membership epoch %u at rank %d and in %u at rank %d", job->job_id,
            hello->epoch, (int)hello->rank, job->epoch, (int)job->rank);
    if (dead != NULL)
        return rdti_error_set(err, RDT_EPEER, 0, "this process was declared dead: %s",
                              dead->reason);
    if (is_unix && (force != RDT_TRANSPORT_AUTO && force != RDT_TRANSPORT_SHM))
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "shm: rank %d forces %s", (int)job->rank,
                              transport_name(force));
    if (!is_unix && force == RDT_TRANSPORT_SHM)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "tcp: rank %d forces shm", (int)job->rank);
    const rdt_status status = check_crossing(ctx, hello, err);
    if (status != RDT_OK)
        return status;
    fill_hello(ctx, job, hello->connector, &own);
    *challenge_out = (struct rdti_challenge){
        .epoch = own.epoch,
        .rank = own.rank,
        .transports = own.transports,
        .force_transport = own.force_transport,
        .require_transport = own.require_transport,
    };
    memcpy(challenge_out->library_version, own.library_version, sizeof(own.library_version));
    memcpy(challenge_out->listener, ctx->uuid, RDT_UUID_BYTES);
    *job_out = job;
    return RDT_OK;
}

/* ---- Both: the authenticated socket ------------------------------------------------------- */

static void
on_pidfd(void *arg, uint32_t epoll_events)
{
    rdt_endpoint *ep = arg;
    struct rdt_error err = {.peer_rank = ep->rank};

    (void)epoll_events;
    if (ep->channel != NULL)
        rdti_channel_drain(ep->channel); /* a goodbye or the socket's end say more */
    if (rdti_endpoint_is_ended(ep) || ep->pidfd < 0)
        return;
    (void)rdti_error_set_rank(&err, RDT_EPEER, ep->rank, "rank %d died: process %d has exited",
                              (int)ep->rank, (int)ep->peer_pid);
    rdti_endpoint_fail(ep, &err, true);
}

/* A child that the peer forked may hold its sockets open: the process itself is watched too, where it can be seen. */
static void
watch_process(rdt_endpoint *ep, int32_t pid)
{
    struct rdt_error err;

    ep->peer_pid = pid;
    if (pid <= 0)
        return;
    ep->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (ep->pidfd < 0)
        return;
    (void)rdti_fork_close_add(ep->pidfd);
    if (rdti_engine_watch(ep->ctx->engine, ep->pidfd, EPOLLIN, on_pidfd, ep, &ep->pidfd_watch,
                          &err) != RDT_OK)
        rdti_path_drop_pidfd(ep);
}

static bool
is_better(uint32_t a, uint32_t b)
{
    static const uint32_t order[RDTI_TRANSPORT_COUNT] = {0, 3, 1, 2}; /* tcp < verbs < shm */

    return order[a] > order[b];
}

static rdt_status
check_floor(const rdt_endpoint *ep, uint32_t transport, uint32_t peer_floor, struct rdt_error *err)
{
    const uint32_t own_floor = ep->ctx->opts.require_transport;
    const uint32_t floor = own_floor != RDT_TRANSPORT_AUTO ? own_floor : peer_floor;

    /* A pair that shares memory crosses no host: nothing is better than shm. */
    if (floor == RDT_TRANSPORT_AUTO || floor >= RDTI_TRANSPORT_COUNT ||
        !is_better(floor, transport))
        return RDT_OK;
    return rdti_error_set_rank(err, RDT_EMISMATCH, ep->rank,
                               "%s is required, but the best path to rank %d is %s: %s",
                               transport_name(floor), (int)ep->rank, transport_name(transport),
                               ep->setup->reasons[0] != '\0' ? ep->setup->reasons
                                                             : "no better one is viable");
}

/* Listener: the best transport that both sides have for this kind of socket. */
static uint32_t
choose_transport(rdt_endpoint *ep, const struct rdti_authenticated *result)
{
    const rdt_context *ctx = ep->ctx;
    char text[RDT_ERROR_MESSAGE_BYTES];

    if (result->is_unix)
        return RDT_TRANSPORT_SHM;
    const uint32_t force = ctx->opts.force_transport != RDT_TRANSPORT_AUTO
                               ? ctx->opts.force_transport
                               : result->hello.force_transport;
    if (force != RDT_TRANSPORT_AUTO)
        return force;
    if (ctx->found[RDT_TRANSPORT_VERBS].is_viable &&
        (result->hello.transports & 1u << RDT_TRANSPORT_VERBS) != 0)
        return RDT_TRANSPORT_VERBS;
    (void)snprintf(text, sizeof(text), "verbs: %.300s",
                   ctx->found[RDT_TRANSPORT_VERBS].is_viable
                       ? "the peer has none"
                       : ctx->found[RDT_TRANSPORT_VERBS].reason);
    note_reason(ep, text);
    return RDT_TRANSPORT_TCP;
}

static rdt_status
make_half(rdt_endpoint *ep, uint32_t transport, const struct rdti_authenticated *result,
          struct rdt_error *err)
{
    rdt_context *ctx = ep->ctx;
    struct rdti_setup *setup = ep->setup;
    const struct rdti_found *found = &ctx->found[transport];
    struct rdti_offer offer = {0};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    struct rdti_lane_args args = {
        .is_connector = result->is_connector,
        .peer_rank = ep->rank,
        .is_loopback =
            !result->is_unix && rdti_sockaddr_is_loopback((const struct sockaddr *)&result->peer),
        .peer_sockaddr = result->is_connector && !result->is_unix ? &result->peer : NULL,
        .peer_sockaddr_bytes = result->is_connector && !result->is_unix ? result->peer_bytes : 0,
        .deadline_ns = setup->deadline_ns,
    };

    if (!found->is_viable)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "%s: %s", transport_name(transport),
                              found->reason);
    memcpy(args.session_id, ep->session_id, sizeof(args.session_id));
    memcpy(args.session_key, ep->session_key, sizeof(args.session_key));
    rdt_status status = found->transport->make_offer(found->state, &args, &ep->lane, &offer, err);
    if (status != RDT_OK)
        return status;
    ep->lane->owner = ep;
    ep->transport_id = transport;
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

/* The endpoint of an authenticated connector, which may be one that was opened here too. */
static rdt_status
endpoint_of(rdt_context *ctx, const struct rdti_authenticated *result, rdt_endpoint **out,
            struct rdt_error *err)
{
    rdt_endpoint *ep = rdti_endpoint_find(ctx, result->hello.connector);

    if (ep == NULL)
        return create_endpoint(ctx, result->hello.connector, result->hello.rank,
                               result->hello.job_id, ctx->opts.timeout_ns, out, err);
    if (ep->channel != NULL)
        return rdti_error_set(err, RDT_EBUSY, 0, "rank %d connected twice at once",
                              (int)result->hello.rank);
    rdti_handshake_cancel(ep->setup->handshake);
    ep->setup->handshake = NULL;
    *out = ep;
    return RDT_OK;
}

static void
on_authenticated(rdt_context *ctx, void *arg, const struct rdti_authenticated *result)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = arg;

    if (ep != NULL)
        ep->setup->handshake = NULL;
    else if (endpoint_of(ctx, result, &ep, &err) != RDT_OK) {
        rdti_log(RDT_LOG_INFO, "dropped a connection: %s", err.message);
        rdti_fork_close_remove(result->fd);
        (void)close(result->fd);
        return;
    }
    if (ep->rank == RDT_RANK_UNKNOWN)
        ep->rank = result->is_connector ? result->challenge.rank : result->hello.rank;
    memcpy(ep->session_key, result->session_key, sizeof(ep->session_key));
    ep->setup->is_passive = !result->is_connector;
    rdt_status status = rdti_channel_create(ctx->engine, result->fd, result->is_unix,
                                            &rdti_endpoint_channel_events, ep, &ep->channel, &err);
    if (status != RDT_OK) {
        rdti_fork_close_remove(result->fd);
        (void)close(result->fd);
        rdti_endpoint_fail(ep, &err, false);
        return;
    }
    watch_process(ep, result->is_unix ? result->peer_pid : 0);
    ep->setup->authenticated = *result;
    if (result->is_connector)
        return; /* the listener speaks first */
    const uint32_t transport = choose_transport(ep, result);
    status = check_floor(ep, transport, result->hello.require_transport, &err);
    if (status == RDT_OK)
        status = rdti_random_bytes(ep->session_id, sizeof(ep->session_id), &err);
    if (status == RDT_OK)
        status = make_half(ep, transport, result, &err);
    if (status != RDT_OK) {
        struct rdti_text text = {0};
        uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
        rdti_text_copy(text.text, sizeof(text.text), err.message);
        rdti_channel_send(ep->channel, RDTI_FRAME_PATH_FAILED, payload,
                          rdti_text_encode(&text, payload), NULL, 0);
        if (err.status == RDT_EMISMATCH)
            rdti_endpoint_fail(ep, &err, false);
    }
}

static void
on_handshake_failed(rdt_context *ctx, void *arg, const struct rdt_error *err)
{
    rdt_endpoint *ep = arg;

    (void)ctx;
    ep->setup->handshake = NULL;
    attempt_failed(ep, err);
}

static void
on_join(rdt_context *ctx, int fd, const uint8_t *join_bytes)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    uint8_t want[RDTI_SHA256_BYTES];
    struct rdti_join join;

    if (rdti_join_decode(join_bytes, RDTI_JOIN_BYTES, &join, &err) != RDT_OK)
        goto refuse;
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (ep->lane == NULL || ep->lane->transport->add_stream == NULL ||
            rdti_endpoint_is_ended(ep) ||
            memcmp(ep->session_id, join.session_id, sizeof(ep->session_id)) != 0)
            continue;
        rdti_join_mac(ep->session_key, join_bytes, want);
        if (!rdti_equal_constant_time(want, join.mac, sizeof(want)))
            break;
        rdti_fork_close_remove(fd); /* the lane registers it anew */
        if (ep->lane->transport->add_stream(ep->lane, fd, join.index, &err) != RDT_OK)
            rdti_endpoint_on_lane_error(ep, &err);
        return;
    }
refuse:
    rdti_log(RDT_LOG_WARN, "refused a data stream that belongs to no endpoint of this process");
    rdti_fork_close_remove(fd);
    (void)close(fd);
}

const struct rdti_handshake_events rdti_path_handshake_events = {
    .admit = admit,
    .done = on_authenticated,
    .failed = on_handshake_failed,
    .join = on_join,
};

/* ---- Frames of set-up --------------------------------------------------------------------- */

/* This path will not do. The connector goes on with the next place, the listener waits for it. */
static void
abandon_path(rdt_endpoint *ep, const struct rdt_error *err)
{
    rdti_endpoint_release_path(ep, err);
    ep->setup->has_path_in = false;
    ep->setup->is_lane_ready = false;
    ep->setup->said_ready = false;
    ep->setup->heard_ready = false;
    ep->transport_id = RDT_TRANSPORT_AUTO;
    if (!ep->setup->is_passive)
        attempt_failed(ep, err);
    else
        note_reason(ep, err->message);
}

void
rdti_path_channel_lost(rdt_endpoint *ep, const struct rdt_error *err)
{
    if (ep->refs == 0)
        rdti_endpoint_fail(ep, err, false); /* nobody here asked for it */
    else
        abandon_path(ep, err);
}

static rdt_status
connect_lane(rdt_endpoint *ep, struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;
    struct rdti_offer offer = {.len_bytes = setup->peer_path.offer_bytes};

    memcpy(offer.bytes, setup->peer_path.offer, offer.len_bytes);
    offer.fd_count = rdti_channel_take_fds(ep->channel, offer.fds, RDTI_OFFER_MAX_FDS);
    ep->peer_ring = setup->peer_path.ring;
    if (setup->peer_path.reason[0] != '\0')
        note_reason(ep, setup->peer_path.reason);
    setup->has_path_in = true;
    return ep->lane->transport->connect(ep->lane, &offer, err);
}

rdt_status
rdti_path_on_path(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                  struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;

    if (setup == NULL || setup->has_path_in)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d sent a second PATH", (int)ep->rank);
    rdt_status status = rdti_path_decode(payload, payload_bytes, &setup->peer_path, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(setup->peer_path.ring.owner, ep->uuid, RDT_UUID_BYTES) != 0 ||
        setup->peer_path.ring.len_bytes < RDTI_RING_SMALL_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "rank %d offers a mailbox ring that is not its own or too small",
                              (int)ep->rank);
    if (ep->lane == NULL) { /* connector */
        const uint32_t transport = setup->peer_path.transport;
        if (setup->authenticated.is_unix != (transport == RDT_TRANSPORT_SHM))
            return rdti_error_set(err, RDT_EPROTO, 0,
                                  "rank %d offers %s over the wrong kind of socket", (int)ep->rank,
                                  transport_name(transport));
        memcpy(ep->session_id, setup->peer_path.session_id, sizeof(ep->session_id));
        status = check_floor(ep, transport, setup->authenticated.challenge.require_transport, err);
        if (status != RDT_OK) {
            rdti_endpoint_fail(ep, err, false);
            return RDT_OK;
        }
        status = make_half(ep, transport, &setup->authenticated, err);
    } else if (setup->peer_path.transport != ep->transport_id) {
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d answers %s with %s", (int)ep->rank,
                              transport_name(ep->transport_id),
                              transport_name(setup->peer_path.transport));
    }
    if (status == RDT_OK)
        status = connect_lane(ep, err);
    if (status == RDT_EPROTO)
        return status;
    if (status != RDT_OK) {
        struct rdti_text text = {0};
        uint8_t out[RDTI_FRAME_PAYLOAD_MAX];
        rdti_text_copy(text.text, sizeof(text.text), err->message);
        rdti_channel_send(ep->channel, RDTI_FRAME_PATH_FAILED, out, rdti_text_encode(&text, out),
                          NULL, 0);
        abandon_path(ep, err);
    }
    return RDT_OK;
}

rdt_status
rdti_path_on_path_failed(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                         struct rdt_error *err)
{
    struct rdt_error why = {.peer_rank = ep->rank};
    struct rdti_text text;
    const rdt_status status = rdti_text_decode(payload, payload_bytes, &text, err);

    if (status != RDT_OK)
        return status;
    if (ep->setup == NULL)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d gives up a path that was proved",
                              (int)ep->rank);
    (void)rdti_error_set_rank(&why, RDT_ENOTVIABLE, ep->rank, "rank %d: %s", (int)ep->rank,
                              text.text);
    abandon_path(ep, &why);
    return RDT_OK;
}

static void
flush_pending(rdt_endpoint *ep)
{
    struct rdti_list *node;

    while ((node = rdti_list_take_first(&ep->pending)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        struct rdt_error err = {.peer_rank = ep->rank};
        const rdt_status status = op->kind == RDTI_OP_WRITE
                                      ? ep->lane->transport->write(ep->lane, op, &err)
                                      : ep->lane->transport->read(ep->lane, op, &err);
        if (status != RDT_OK)
            op->complete(op, status, &err);
    }
}

static void
become_ready(rdt_endpoint *ep)
{
    rdti_text_copy(ep->reason, sizeof(ep->reason), ep->setup->reasons);
    ep->ready_after_ns = rdti_now_ns() - ep->setup->begun_ns;
    ep->is_local =
        ep->setup->authenticated.is_unix ||
        rdti_sockaddr_is_loopback((const struct sockaddr *)&ep->setup->authenticated.peer);
    rdti_path_end_setup(ep);
    flush_pending(ep); /* before the state allows others past it */
    rdti_endpoint_set_state(ep, RDTI_EP_READY);
    rdti_mailbox_on_ready(ep->mailbox);
    rdti_slots_on_ready(ep->slots);
    rdti_context_recount_local(ep->ctx);
    rdti_log(RDT_LOG_INFO, "rank %d is reached over %s (%.1f ms)%s%s", (int)ep->rank,
             transport_name(ep->transport_id), (double)ep->ready_after_ns / 1e6,
             ep->reason[0] != '\0' ? "; not better because " : "", ep->reason);
}

static void
check_ready(rdt_endpoint *ep)
{
    if (ep->setup->said_ready && ep->setup->heard_ready)
        become_ready(ep);
}

rdt_status
rdti_path_on_ready_frame(rdt_endpoint *ep, struct rdt_error *err)
{
    if (ep->setup == NULL || ep->setup->heard_ready)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d said READY twice", (int)ep->rank);
    ep->setup->heard_ready = true;
    check_ready(ep);
    return RDT_OK;
}

/* ---- The probe ---------------------------------------------------------------------------- */

void
rdti_path_on_lane_ready(rdt_endpoint *ep)
{
    struct rdt_error err = {.peer_rank = ep->rank};
    struct rdti_setup *setup = ep->setup;

    if (setup == NULL || setup->is_lane_ready)
        return;
    setup->is_lane_ready = true;
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL) {
        (void)rdti_error_set(&err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
        rdti_endpoint_fail(ep, &err, false);
        return;
    }
    /* The nonce lives on the transfer's side of set-up: setup ends only after the peer has seen it, or with the lane. */
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = RDTI_NOTIFY_PROBE;
    t->op.is_urgent = true;
    t->op.remote = ep->peer_ring;
    t->op.block = (struct rdt_block){.src = setup->own_path.nonce,
                                     .len_bytes = sizeof(setup->own_path.nonce)};
    t->op.blocks = &t->op.block;
    t->op.block_count = 1;
    t->op.len_bytes = sizeof(setup->own_path.nonce);
    if (ep->lane->transport->write(ep->lane, &t->op, &err) != RDT_OK) {
        rdti_transfer_discard(t);
        rdti_endpoint_on_lane_error(ep, &err);
        return;
    }
    rdt_transfer_free(t);
}

rdt_status
rdti_path_on_probe(rdt_endpoint *ep, struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;

    if (setup == NULL || !setup->has_path_in || setup->said_ready)
        return rdti_error_set(err, RDT_EPROTO, 0, "rank %d sent a probe out of turn",
                              (int)ep->rank);
    if (memcmp(rdt_region_addr(ep->ring), setup->peer_path.nonce, sizeof(setup->peer_path.nonce)) !=
        0)
        return rdti_error_set(
            err, RDT_EPROTO, 0,
            "the probe of rank %d over %s arrived with other bytes than were sent", (int)ep->rank,
            transport_name(ep->transport_id));
    setup->said_ready = true;
    rdti_channel_send(ep->channel, RDTI_FRAME_READY, NULL, 0, NULL, 0);
    check_ready(ep);
    return RDT_OK;
}

/* ---- Time --------------------------------------------------------------------------------- */

static void
tick_setup(rdt_endpoint *ep, uint64_t now_ns)
{
    struct rdti_setup *setup = ep->setup;
    struct rdt_error err = {.peer_rank = ep->rank};

    if (now_ns >= setup->deadline_ns) {
        (void)rdti_error_set_rank(&err, RDT_ETIMEDOUT, ep->rank,
                                  "no path to rank %d was proved within %.1f s%s%s", (int)ep->rank,
                                  (double)(now_ns - setup->begun_ns) / 1e9,
                                  setup->reasons[0] != '\0' ? ": " : "", setup->reasons);
        rdti_endpoint_fail(ep, &err, false);
    } else if (setup->retry_ns != 0 && now_ns >= setup->retry_ns && !setup->is_passive) {
        setup->retry_ns = 0;
        try_next_place(ep);
    }
}

static void
tick_ready(rdt_endpoint *ep, uint64_t now_ns, bool beat)
{
    const uint64_t heard_ns = rdti_channel_last_heard_ns(ep->channel);
    const uint64_t limit_ns = ep->ctx->opts.peer_timeout_ns;
    struct rdt_error err = {.peer_rank = ep->rank};

    if (beat)
        rdti_channel_send(ep->channel, RDTI_FRAME_HEARTBEAT, NULL, 0, NULL, 0);
    if (now_ns <= heard_ns || now_ns - heard_ns <= limit_ns)
        return;
    rdti_channel_drain(ep->channel);
    if (rdti_endpoint_is_ended(ep) || rdti_channel_last_heard_ns(ep->channel) != heard_ns)
        return;
    (void)rdti_error_set_rank(
        &err, RDT_EPEER, ep->rank,
        "rank %d is silent for %.1f s: its process is stopped, or its host or the network is down",
        (int)ep->rank, (double)(now_ns - heard_ns) / 1e9);
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
    rdti_channels_expire(&ctx->retired, now_ns);
    if (beat)
        ctx->last_beat_ns = now_ns;
    for (struct rdti_list *node = ctx->endpoints.next, *next; node != &ctx->endpoints;
         node = next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        next = node->next;
        if (rdti_endpoint_is_ended(ep))
            continue;
        if (ep->setup != NULL)
            tick_setup(ep, now_ns);
        else if (ep->channel != NULL &&
                 !was_stopped) /* we slept, not the peers: give their bytes a round to come in */
            tick_ready(ep, now_ns, beat);
    }
}

static bool
is_settled(void *arg)
{
    return rdti_endpoint_get_state(arg) != RDTI_EP_CONNECTING;
}

rdt_status
rdt_endpoint_wait_ready(rdt_endpoint *ep, uint64_t timeout_ns, struct rdt_error *err)
{
    rdt_status status;

    if (ep == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "wait_ready: the endpoint is NULL");
    status = rdti_context_check(ep->ctx, "wait_ready", err);
    if (status != RDT_OK)
        return status;
    timeout_ns = timeout_ns == RDT_TIMEOUT_DEFAULT ? ep->ctx->opts.timeout_ns : timeout_ns;
    status = rdti_engine_wait(ep->ctx->engine, is_settled, ep, rdti_deadline_after(timeout_ns));
    if (status == RDT_ETIMEDOUT)
        return rdti_error_set_rank(err, RDT_ETIMEDOUT, ep->rank,
                                   "the endpoint to rank %d was not ready within %.3f s",
                                   (int)ep->rank, (double)timeout_ns / 1e9);
    if (status != RDT_OK)
        return rdti_error_set(err, status, 0,
                              "wait_ready: called from a task, which must not wait");
    rdti_engine_enter(ep->ctx->engine);
    status = rdti_endpoint_error(ep, err);
    rdti_engine_leave(ep->ctx->engine);
    return status;
}
