/* SPDX-License-Identifier: Apache-2.0
 * The listener's side of set-up: admission, and which endpoint a data stream belongs to. */
#include <string.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "endpoint/failures.h"
#include "endpoint/setup.h"

static rdt_status
setup_accept_check_crossing(rdt_context *ctx, const struct rdti_hello *hello, struct rdt_error *err)
{
    rdt_endpoint *ep = rdti_endpoint_find(ctx, hello->connector);

    if (ep == NULL)
        return RDT_OK;
    if (strcmp(ep->job_id, hello->job_id) == 0 &&
        rdti_path_check_rank(hello->job_id, rdti_endpoint_rank(ep), hello->rank, err) != RDT_OK)
        return RDT_EMISMATCH;
    if (rdti_endpoint_get_state(ep) == RDTI_EP_READY || ep->channel != NULL)
        return rdti_error_set(err, RDT_EAGAIN, 0,
                              "an earlier connection between these two processes is still open");
    if (ep->setup->handshake != NULL && memcmp(ctx->uuid, hello->connector, RDT_UUID_BYTES) < 0) {
        ep->setup->has_refused_crossing = true;
        return rdti_error_set(err, RDT_EBUSY, 0, "connections crossed; this side's goes on");
    }
    return RDT_OK; /* this side's goes on until the peer's is authenticated: setup_endpoint_of() */
}

rdt_status
rdti_path_check_rank(const char *job_id, int32_t opened, int32_t told, struct rdt_error *err)
{
    if (opened == RDT_RANK_UNKNOWN || told == RDT_RANK_UNKNOWN || opened == told)
        return RDT_OK;
    return rdti_error_set_rank(err, RDT_EMISMATCH, told,
                               "the process that says it is rank %d of job '%s' was opened as rank "
                               "%d: its address was given for another's",
                               (int)told, job_id, (int)opened);
}

rdt_status
rdti_path_check_sums(const rdt_context *ctx, bool is_theirs, int32_t their_rank, int32_t own_rank,
                     struct rdt_error *err)
{
    if (is_theirs == rdti_context_verifies(ctx))
        return RDT_OK;
    return rdti_error_set_rank(err, RDT_EMISMATCH, their_rank,
                               "rank %d sums its payload and rank %d does not: set "
                               "RDMATENSOR_VERIFY alike on all ranks",
                               is_theirs ? (int)their_rank : (int)own_rank,
                               is_theirs ? (int)own_rank : (int)their_rank);
}

/* over budget: each reason to refuse a peer, in the order of the checks. */
rdt_status
rdti_path_admit(rdt_context *ctx, const struct rdti_hello *hello, bool is_unix,
                struct rdti_job **job_out, struct rdti_challenge *challenge_out,
                struct rdt_error *err)
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
    if (rdti_path_check_sums(ctx, (hello->transports & RDTI_TRANSPORTS_VERIFY) != 0, hello->rank,
                             job->rank, err) != RDT_OK)
        return RDT_EMISMATCH;
    if (dead != NULL)
        return rdti_error_set(err, RDT_EPEER, 0, "this process was declared dead: %s",
                              dead->reason);
    if (is_unix && (force != RDT_TRANSPORT_AUTO && force != RDT_TRANSPORT_SHM))
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "shm: rank %d forces %s", (int)job->rank,
                              rdti_path_transport_name(force));
    if (!is_unix && force == RDT_TRANSPORT_SHM)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0, "tcp: rank %d forces shm", (int)job->rank);
    const rdt_status status = setup_accept_check_crossing(ctx, hello, err);
    if (status != RDT_OK)
        return status;
    rdti_path_fill_hello(ctx, job, hello->connector, &own);
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

/* The JOIN proves its sender, but not that it is new: a stream that has no place is refused, and
 * ends nothing. */
static void
setup_accept_add_stream(rdt_context *ctx, rdt_endpoint *ep, struct rdti_lane *lane, int fd,
                        uint32_t index)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_status status;

    rdti_fork_close_remove(fd); /* the lane registers it again */
    status = lane->transport->add_stream(lane, fd, index, &err);
    if (status == RDT_EPROTO)
        rdti_refusal_log(&ctx->refusals, RDTI_REFUSAL_STREAM, "refused a data stream: %s",
                         err.message);
    else if (status != RDT_OK && lane == rdti_failover_lane(ep))
        rdti_failover_on_lane_error(ep, &err);
    else if (status != RDT_OK)
        rdti_endpoint_on_lane_error(ep, &err);
}

void
rdti_path_on_join(rdt_context *ctx, int fd, const uint8_t *join_bytes)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    uint8_t want[RDTI_SHA256_BYTES];
    struct rdti_join join;

    if (rdti_join_decode(join_bytes, RDTI_JOIN_BYTES, &join, &err) != RDT_OK)
        goto refuse;
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        struct rdti_lane *next = rdti_failover_lane(ep);
        struct rdti_lane *lane = next != NULL ? next : ep->lane;
        if (lane == NULL || lane->transport->add_stream == NULL || rdti_endpoint_is_ended(ep) ||
            memcmp(ep->session_id, join.session_id, sizeof(ep->session_id)) != 0)
            continue;
        rdti_join_mac(ep->session_key, join_bytes, want);
        if (!rdti_equal_constant_time(want, join.mac, sizeof(want)))
            break;
        setup_accept_add_stream(ctx, ep, lane, fd, join.index);
        return;
    }
refuse:
    rdti_refusal_log(&ctx->refusals, RDTI_REFUSAL_STREAM,
                     "refused a data stream that belongs to no endpoint of this process");
    rdti_fork_close_remove(fd);
    (void)close(fd);
}
