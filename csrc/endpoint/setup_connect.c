/* SPDX-License-Identifier: Apache-2.0
 * The connector's side of set-up: places are tried in turn until a handshake succeeds. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/sockaddr.h"
#include "base/text.h"
#include "connect/listener.h"
#include "connect/netaddr.h"
#include "endpoint/failures.h"
#include "endpoint/setup.h"

/* A peer publishes its address only after it listens. If nothing listens there, the peer is gone,
 * or a firewall says so: two attempts are certain enough. */
#define REFUSED_GRACE_NS UINT64_C(100000000)
/* The connection was closed otherwise: the peer may have had too many at once. */
#define UNREACHED_GRACE_NS UINT64_C(2000000000)
/* Between two rounds over all places within the grace. */
#define UNREACHED_NS UINT64_C(50000000)

static void
setup_connect_add_unix_contact(struct rdti_setup *setup, const struct rdti_address *address)
{
    struct rdti_contact *contact = &setup->contacts[setup->contact_count++];
    struct sockaddr_un *addr = (struct sockaddr_un *)(void *)&contact->addr;
    const size_t name_bytes = strnlen(address->unix_name, sizeof(address->unix_name));

    contact->is_unix = true;
    addr->sun_family = AF_UNIX;
    memcpy(addr->sun_path + 1, address->unix_name, name_bytes);
    contact->addr_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes);
    (void)snprintf(contact->text, sizeof(contact->text), "shm: Unix socket @%.40s",
                   address->unix_name);
}

static void
setup_connect_add_tcp_contacts(struct rdti_setup *setup, const struct rdti_address *address,
                               bool is_maybe_here, bool loopback)
{
    for (uint32_t i = 0; i < address->addr_count && setup->contact_count < RDTI_SETUP_CONTACTS_MAX;
         i++) {
        const struct rdti_address_ip *addr = &address->addrs[i];
        /* Another host's loopback address leads to this process's own host. */
        if ((addr->is_loopback != 0) != loopback || (loopback && !is_maybe_here))
            continue;
        struct rdti_contact *contact = &setup->contacts[setup->contact_count++];
        char text[80];
        contact->addr_bytes = rdti_sockaddr_of_ip(addr, &contact->addr);
        rdti_sockaddr_text((const struct sockaddr *)&contact->addr, text, sizeof(text));
        (void)snprintf(contact->text, sizeof(contact->text), "tcp: %s", text);
    }
}

static void
setup_connect_list_contacts(rdt_endpoint *ep, const struct rdti_address *address)
{
    const rdt_context *ctx = ep->ctx;
    const uint32_t force = ctx->opts.force_transport;
    const bool is_maybe_here =
        memcmp(address->host_hint, rdti_listener_address(ctx->listener)->host_hint,
               RDTI_HOST_HINT_BYTES) == 0;
    const bool is_test = rdti_listener_is_test_host(ctx->listener);

    if (is_test && !is_maybe_here)
        rdti_path_note(ep, "RDMATENSOR_TEST_HOST says that the peer is on another host");
    else if (force != RDT_TRANSPORT_AUTO && force != RDT_TRANSPORT_SHM)
        rdti_path_note(ep, force == RDT_TRANSPORT_TCP ? "tcp was forced here"
                                                      : "verbs was forced here");
    else if (!ctx->found[RDT_TRANSPORT_SHM].is_viable)
        rdti_path_note(ep, ctx->found[RDT_TRANSPORT_SHM].reason);
    else if (address->unix_name[0] == '\0')
        rdti_path_note(ep, "the peer offers no shared memory");
    else
        setup_connect_add_unix_contact(ep->setup, address);
    if (force == RDT_TRANSPORT_SHM)
        return;
    /* On one host loopback is the fastest path; the "other host" of a test is this one. */
    setup_connect_add_tcp_contacts(ep->setup, address, is_maybe_here || is_test, true);
    setup_connect_add_tcp_contacts(ep->setup, address, is_maybe_here || is_test, false);
}

void
rdti_path_retry(rdt_endpoint *ep, uint64_t after_ns)
{
    ep->setup->next_contact = 0;
    ep->setup->last_error = (struct rdt_error){0}; /* a shortage may be over the next time */
    ep->setup->retry_ns = rdti_deadline_after(after_ns);
    rdti_engine_hurry(ep->ctx->engine, rdti_path_tick, ep->ctx, ep->setup->retry_ns);
}

/* Errors that neither another place nor patience can mend. */
static bool
setup_connect_is_final(int32_t status)
{
    return status == RDT_EAUTH || status == RDT_EVERSION || status == RDT_EMISMATCH ||
           status == RDT_EFORKED;
}

/* A shortage of descriptors here: another place may need fewer, but the peer is not to blame. */
static bool
setup_connect_is_shortage(const struct rdt_error *err)
{
    return err->sys_errno == EMFILE || err->sys_errno == ENFILE;
}

static void
setup_connect_note_failure(struct rdti_setup *setup, const struct rdt_error *err)
{
    if (!setup_connect_is_shortage(&setup->last_error))
        setup->last_error = *err;
    setup->was_silent = setup->was_silent || err->status == RDT_ETIMEDOUT;
    setup->was_answered = setup->was_answered || (err->sys_errno != ECONNREFUSED &&
                                                  err->status != (int32_t)RDT_ENOTVIABLE);
}

void
rdti_path_attempt_failed(rdt_endpoint *ep, const struct rdt_error *err)
{
    struct rdti_setup *setup = ep->setup;

    if (err->status == RDT_EBUSY) { /* the peer's own connection is on its way */
        rdti_path_retry(ep, RDTI_CROSSED_NS);
        return;
    }
    setup_connect_note_failure(setup, err);
    if (setup_connect_is_final(err->status)) {
        rdti_endpoint_fail(ep, err, false);
        return;
    }
    if (err->status == RDT_EAGAIN) { /* the peer still has an earlier endpoint */
        rdti_path_retry(ep, RDTI_RETRY_NS);
        return;
    }
    rdti_path_note(ep, err->message);
    rdti_path_try_next(ep);
}

static void
setup_connect_out_of_contacts(rdt_endpoint *ep)
{
    struct rdti_setup *setup = ep->setup;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    if (setup_connect_is_shortage(&setup->last_error)) {
        err = setup->last_error;
        (void)rdti_error_set_rank(&err, RDT_EDEVICE, rdti_endpoint_rank(ep),
                                  "this process has no descriptor for a path to rank %d: %s",
                                  (int)rdti_endpoint_rank(ep), setup->last_error.message);
        err.sys_errno = setup->last_error.sys_errno;
        rdti_endpoint_fail(ep, &err, false);
        return;
    }
    /* A silent peer may be stopped or busy; the deadline limits how long that is tolerated. */
    const uint64_t grace_ns = setup->was_answered ? UNREACHED_GRACE_NS : REFUSED_GRACE_NS;
    if (setup->was_silent || rdti_now_ns() - setup->begun_ns < grace_ns) {
        setup->was_silent = false;
        setup->was_answered = false;
        rdti_path_retry(ep, UNREACHED_NS);
        return;
    }
    if (setup->has_refused_crossing) {
        /* The peer's connection was refused for this side's: now it may come. */
        setup->has_refused_crossing = false;
        rdti_path_retry(ep, 3 * RDTI_CROSSED_NS);
        return;
    }
    const struct rdt_error *known = rdti_context_find_rejection(ep->ctx, ep->uuid);
    if (known != NULL) { /* the peer has gone with the same error */
        rdti_endpoint_fail(ep, known, false);
        return;
    }
    const bool is_refused = setup->last_error.status == (int32_t)RDT_ENOTVIABLE;
    (void)rdti_error_set_rank(&err, RDT_EPEER, rdti_endpoint_rank(ep),
                              "rank %d cannot be reached: %s%s%s", (int)rdti_endpoint_rank(ep),
                              is_refused ? ""
                                         : "it has exited, or a firewall or another network lies "
                                           "between (",
                              setup->reasons[0] != '\0' ? setup->reasons
                                                        : "it offers no address for this path",
                              is_refused ? "" : ")");
    /* A refusal with a reason is not a death. */
    rdti_endpoint_fail(ep, &err, setup->last_error.status == RDT_EPEER);
}

void
rdti_path_try_next(rdt_endpoint *ep)
{
    struct rdti_setup *setup = ep->setup;
    struct rdt_error err = {.peer_rank = rdti_endpoint_rank(ep)};

    while (setup->next_contact < setup->contact_count) {
        const struct rdti_contact *contact = &setup->contacts[setup->next_contact++];
        const struct rdti_job *job = rdti_context_find_job(ep->ctx, ep->job_id);
        uint64_t deadline_ns = rdti_deadline_after(RDTI_ATTEMPT_NS);
        if (deadline_ns > setup->deadline_ns)
            deadline_ns = setup->deadline_ns;
        if (rdti_handshake_connect(ep->ctx, contact, &setup->hello, job, deadline_ns,
                                   &rdti_path_handshake_events, ep, &setup->handshake,
                                   &err) == RDT_OK)
            return;
        if (err.status == RDT_EAGAIN) { /* the peer's backlog is full */
            rdti_path_retry(ep, RDTI_RETRY_NS);
            return;
        }
        setup_connect_note_failure(setup, &err);
        rdti_path_note(ep, err.message);
    }
    setup_connect_out_of_contacts(ep);
}

void
rdti_path_fill_hello(const rdt_context *ctx, const struct rdti_job *job,
                     const uint8_t peer[RDT_UUID_BYTES], struct rdti_hello *out)
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
    if (rdti_context_verifies(ctx))
        out->transports |= RDTI_TRANSPORTS_VERIFY;
    for (uint32_t id = 1; id < RDTI_TRANSPORT_COUNT; id++)
        if (ctx->found[id].is_viable)
            out->transports |= 1u << id;
}

/* Fills in what an endpoint needs to connect; one that only the peer opened has none of it. */
static void
setup_connect_prepare(rdt_endpoint *ep, const struct rdti_address *address,
                      const struct rdti_job *job)
{
    ep->setup->is_prepared = true;
    rdti_path_fill_hello(ep->ctx, job, address->uuid, &ep->setup->hello);
    setup_connect_list_contacts(ep, address);
}

static rdt_status
setup_connect_open_new(rdt_context *ctx, const struct rdti_address *address,
                       const struct rdt_endpoint_opts *opts, const struct rdti_job *job,
                       rdt_endpoint **out, struct rdt_error *err)
{
    const bool is_default = opts->timeout_ns == 0 || opts->timeout_ns == RDT_TIMEOUT_DEFAULT;
    const rdt_status status =
        rdti_path_create(ctx, address->uuid, opts->peer_rank, opts->job_id,
                         is_default ? ctx->opts.timeout_ns : opts->timeout_ns, out, err);

    if (status != RDT_OK)
        return status;
    (*out)->refs = 1;
    setup_connect_prepare(*out, address, job);
    rdti_path_try_next(*out);
    return RDT_OK;
}

static void
setup_connect_open_again(rdt_endpoint *ep, const struct rdti_address *address,
                         const struct rdt_endpoint_opts *opts, const struct rdti_job *job)
{
    rdti_endpoint_ref(ep);
    if (rdti_endpoint_rank(ep) == RDT_RANK_UNKNOWN)
        rdti_endpoint_set_rank(ep, opts->peer_rank);
    if (ep->setup == NULL || ep->setup->is_prepared)
        return;
    setup_connect_prepare(ep, address, job);
    if (ep->channel == NULL) /* the peer's path failed just now */
        rdti_path_retry(ep, RDTI_CROSSED_NS);
}

/* An endpoint that only the peer opened lives as long as the peer wants it. Its goodbye may have
 * come in already, and a call that opens now means the time after it. */
static rdt_endpoint *
setup_connect_find_open(rdt_context *ctx, const uint8_t uuid[RDT_UUID_BYTES])
{
    rdt_endpoint *ep = rdti_endpoint_find(ctx, uuid);

    if (ep == NULL || ep->refs > 0 || ep->channel == NULL)
        return ep;
    rdti_channel_drain(ep->channel);
    return rdti_endpoint_find(ctx, uuid);
}

static rdt_status
setup_connect_open_locked(rdt_context *ctx, const struct rdti_address *address,
                          const struct rdt_endpoint_opts *opts, rdt_endpoint **out,
                          struct rdt_error *err)
{
    const struct rdti_job *job = rdti_context_find_job(ctx, opts->job_id);
    const struct rdti_obituary *dead = rdti_context_find_obituary(ctx, address->uuid);
    rdt_endpoint *ep = setup_connect_find_open(ctx, address->uuid);

    if (job == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "endpoint_open: job '%s' is unknown: call add_job first",
                              opts->job_id);
    if (dead != NULL)
        return rdti_error_set_rank(err, RDT_EPEER, dead->rank, "rank %d is dead: %s",
                                   (int)dead->rank, dead->reason);
    /* Checked before either side connects: the first to connect may be gone, with its error, before
     * the other comes. */
    if (rdti_path_check_sums(ctx, address->verify != RDT_VERIFY_OFF, opts->peer_rank, job->rank,
                             err) != RDT_OK)
        return RDT_EMISMATCH;
    if (ep == NULL)
        return setup_connect_open_new(ctx, address, opts, job, out, err);
    /* The peer came first, and stated its rank. */
    if (ep->refs == 0 && strcmp(ep->job_id, opts->job_id) == 0 &&
        rdti_path_check_rank(ep->job_id, opts->peer_rank, rdti_endpoint_rank(ep), err) != RDT_OK)
        return RDT_EMISMATCH;
    setup_connect_open_again(ep, address, opts, job);
    *out = ep;
    return RDT_OK;
}

rdt_status
rdt_endpoint_open(rdt_context *ctx, const uint8_t *address_bytes, size_t address_len,
                  const struct rdt_endpoint_opts *opts, rdt_endpoint **out, struct rdt_error *err)
{
    struct rdti_address address;
    rdt_endpoint *ep = NULL;
    rdt_status status = rdti_context_check(ctx, "endpoint_open", err);

    if (status == RDT_OK &&
        (opts == NULL || opts->struct_size < sizeof(*opts) || opts->job_id == NULL))
        status = rdti_error_set(err, RDT_EINVAL, 0,
                                "endpoint_open: opts, its struct_size and job_id are needed");
    if (status == RDT_OK)
        status = rdti_address_decode(address_bytes, address_len, &address, err);
    if (status != RDT_OK)
        return status;
    if (memcmp(address.uuid, ctx->uuid, RDT_UUID_BYTES) == 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "endpoint_open: the address is this process's own");
    rdti_engine_enter(ctx->engine);
    status = setup_connect_open_locked(ctx, &address, opts, &ep, err);
    rdti_engine_leave(ctx->engine);
    if (status == RDT_OK)
        *out = ep;
    return status;
}

static bool
setup_connect_is_settled(void *arg)
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
    status = rdti_engine_wait(ep->ctx->engine, setup_connect_is_settled, ep,
                              rdti_deadline_after(timeout_ns));
    if (status == RDT_ETIMEDOUT)
        return rdti_error_set_rank(err, RDT_ETIMEDOUT, rdti_endpoint_rank(ep),
                                   "the endpoint to rank %d was not ready within %.3f s",
                                   (int)rdti_endpoint_rank(ep), (double)timeout_ns / 1e9);
    if (status != RDT_OK)
        return rdti_error_set(err, status, 0,
                              "wait_ready: called from a task, which must not wait");
    rdti_engine_enter(ep->ctx->engine);
    status = rdti_endpoint_error(ep, err);
    rdti_engine_leave(ep->ctx->engine);
    return status;
}
