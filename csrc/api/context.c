/* SPDX-License-Identifier: Apache-2.0
 * The per-process context: opening, closing, regions that are freed. */
#include "process/process.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/text.h"
#include "connect/listener.h"
#include "endpoint/endpoint_impl.h"
#include "group/group.h"
#include "message/checksum.h"
#include "message/mailbox.h"
#include "message/mailboxes.h"
#include "slot/slot.h"
#include "wire/address.h"
#include "wire/fields.h"
#include "wire/endpoint/stream.h"

/* Defaults of struct rdt_context_opts. */
#define DEFAULT_TIMEOUT_NS \
    UINT64_C(300000000000) /* five minutes: longer than any set-up, shorter than a night */
#define DEFAULT_PEER_TIMEOUT_NS UINT64_C(10000000000) /* ten heartbeats */
#define DEFAULT_CHUNK_BYTES (UINT64_C(64) << 20)
/* Goodbyes at close: each endpoint lingers at most two seconds, all at the same time. */
#define CONTEXT_CLOSE_NS UINT64_C(3000000000)

static const struct rdti_upcalls upcalls = {
    .protocols = {[RDTI_PROTOCOL_MESSAGES] = &rdti_message_protocol,
                  [RDTI_PROTOCOL_SLOTS] = &rdti_slot_protocol},
    .membership = &rdti_group_membership,
    .filter = &rdti_sums_filter,
};

/* The peer may write to the region without a check of its generation here, or hold it. This counts
 * from the moment when the lane's offer was sent: the peer may be ready before this side. A
 * lingering endpoint answers by its end; after its last words it can get hold of nothing. */
static bool
context_may_use(const rdt_endpoint *ep, uint64_t exported_as)
{
    return ep->lane != NULL && ep->channel != NULL && !ep->lane->transport->caps.target_checks &&
           !(ep->is_buried && ep->is_peer_done) && /* it lingers as this side uses its memory */
           (ep->last_export == 0 || exported_as <= ep->last_export);
}

/* A region was freed: notifies peers that check nothing themselves, and awaits their answers. */
static void
context_on_revoke(void *arg, uint32_t index, uint32_t generation)
{
    rdt_context *ctx = arg;
    const struct rdti_revoke revoke = {.index = index, .generation = generation};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    const size_t payload_bytes = rdti_revoke_encode(&revoke, payload);
    uint32_t count = 0;

    rdti_engine_enter(ctx->engine);
    const uint64_t exported_as = rdti_regions_exported_as(ctx->regions, index);
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        const rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (context_may_use(ep, exported_as))
            count++;
    }
    if (count > 0)
        rdti_regions_expect(ctx->regions, index, generation, count);
    for (struct rdti_list *node = ctx->endpoints.next; count > 0 && node != &ctx->endpoints;
         node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (!context_may_use(ep, exported_as))
            continue;
        if (rdti_endpoint_push_revoke(&ep->revokes, &ep->revoke_count, &ep->revoke_cap, &revoke) !=
            RDT_OK)
            rdti_endpoint_forgo_answer(ep, &revoke);
        else if (!ep->is_lingering)
            rdti_channel_send(ep->channel, RDTI_FRAME_REVOKE, payload, payload_bytes, NULL, 0);
    }
    rdti_engine_leave(ctx->engine);
}

/* A region has left quarantine: a device that knows its bytes forgets them first. Of the transports
 * only verbs has devices. */
static bool
context_on_region_gone(void *arg, uint32_t index, uint32_t generation, void (*then)(void *arg),
                       void *then_arg)
{
    const rdt_context *ctx = arg;
    const struct rdti_found *found = &ctx->found[RDT_TRANSPORT_VERBS];

    return !found->is_viable ||
           found->transport->forget_region(found->state, index, generation, then, then_arg);
}

/* ---- Open and close ----------------------------------------------------------------------- */

/* over budget: one check per option, each with its message. */
static rdt_status
context_take_opts(rdt_context *ctx, const struct rdt_context_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size < sizeof(*opts))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "context_open: opts and its struct_size are needed");
    if (opts->force_transport > RDT_TRANSPORT_VERBS ||
        opts->require_transport > RDT_TRANSPORT_VERBS)
        return rdti_error_set(err, RDT_EINVAL, 0, "context_open: transport %u or %u is unknown",
                              opts->force_transport, opts->require_transport);
    if (opts->verify > RDT_VERIFY_CRC32C || opts->reserved != 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "context_open: verify %u or reserved %u is unknown", opts->verify,
                              opts->reserved);
    if (opts->port_from > 65535 || opts->port_to > 65535 || opts->port_from > opts->port_to)
        return rdti_error_set(err, RDT_EINVAL, 0, "context_open: ports %u to %u are no range",
                              opts->port_from, opts->port_to);
    if (opts->tcp_streams > RDTI_STREAM_STREAMS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "context_open: %u tcp streams are more than %d",
                              opts->tcp_streams, RDTI_STREAM_STREAMS_MAX);
    ctx->opts = *opts;
    if (ctx->opts.timeout_ns == 0)
        ctx->opts.timeout_ns = DEFAULT_TIMEOUT_NS;
    if (ctx->opts.peer_timeout_ns == 0)
        ctx->opts.peer_timeout_ns = DEFAULT_PEER_TIMEOUT_NS;
    if (ctx->opts.arena_chunk_bytes == 0)
        ctx->opts.arena_chunk_bytes = DEFAULT_CHUNK_BYTES;
    if (opts->ifname != NULL && (ctx->ifname = strdup(opts->ifname)) == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "context_open: a copy of ifname");
    if (opts->addr != NULL && (ctx->addr = strdup(opts->addr)) == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "context_open: a copy of addr");
    ctx->opts.ifname = ctx->ifname;
    ctx->opts.addr = ctx->addr;
    return RDT_OK;
}

static void
context_close_transports(rdt_context *ctx)
{
    for (uint32_t id = 1; id < RDTI_TRANSPORT_COUNT; id++) {
        if (ctx->found[id].is_viable)
            ctx->found[id].transport->close(ctx->found[id].state);
        ctx->found[id].is_viable = false;
    }
}

static rdt_status
context_find_transports(rdt_context *ctx, struct rdt_error *err)
{
    static const struct rdti_transport *const known[] = {&rdti_transport_shm, &rdti_transport_tcp,
                                                         &rdti_transport_verbs};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct rdti_found *found = &ctx->found[known[i]->id];
        struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
        found->transport = known[i];
        if (known[i]->open(&ctx->host, &found->state, &why) != RDT_OK) {
            rdti_text_copy(found->reason, sizeof(found->reason), why.message);
            continue;
        }
        found->is_viable = true;
        const rdt_status status = rdti_engine_add_poller(ctx->engine, known[i]->poll,
                                                         known[i]->needs_epoll, found->state, err);
        if (status != RDT_OK)
            return status;
        rdti_engine_set_arm(ctx->engine, found->state, known[i]->arm);
    }
    const uint32_t force = ctx->opts.force_transport;
    if (force != RDT_TRANSPORT_AUTO && !ctx->found[force].is_viable)
        return rdti_error_set(err, RDT_ENOTVIABLE, 0,
                              "the transport %s, which is forced, cannot be used here: %s",
                              ctx->found[force].transport->name, ctx->found[force].reason);
    return rdti_engine_add_poller(ctx->engine, rdti_endpoints_poll, rdti_endpoints_need_epoll, ctx,
                                  err);
}

/* Frees what needs no order of undoing: everything is NULL-safe. */
static void
context_free(rdt_context *ctx)
{
    struct rdti_list *node;

    if (ctx->engine != NULL)
        rdti_engine_stop(ctx->engine);
    rdti_listener_close(ctx->listener);
    rdti_endpoints_abandon(ctx);
    rdti_channels_expire(&ctx->retired, UINT64_MAX);
    context_close_transports(ctx);
    if (ctx->groups != NULL)
        (void)rdti_groups_destroy(ctx->groups, NULL);
    rdti_mailboxes_destroy(ctx->mailboxes);
    rdti_transfer_pool_destroy(ctx->pool);
    if (ctx->arena != NULL)
        rdti_arena_keep_all(ctx->arena); /* quarantine ends with the context, its bytes do not */
    if (ctx->regions != NULL)
        (void)rdti_regions_destroy(ctx->regions, NULL);
    rdti_arena_destroy(ctx->arena);
    rdti_engine_destroy(ctx->engine);
    while ((node = rdti_list_take_first(&ctx->jobs)) != NULL) {
        struct rdti_job *job = RDTI_CONTAINER(node, struct rdti_job, link);
        explicit_bzero(job, sizeof(*job)); /* it holds the secret */
        free(job);
    }
    while ((node = rdti_list_take_first(&ctx->obituaries)) != NULL)
        free(RDTI_CONTAINER(node, struct rdti_obituary, link));
    while ((node = rdti_list_take_first(&ctx->rejections)) != NULL)
        free(RDTI_CONTAINER(node, struct rdti_rejection, link));
    free(ctx->met);
    free(ctx->ifname);
    free(ctx->addr);
    free(ctx);
}

static rdt_status
context_build(rdt_context *ctx, struct rdt_error *err)
{
    rdt_status status = rdti_random_bytes(ctx->uuid, sizeof(ctx->uuid), err);

    ctx->upcalls = &upcalls;
    if (status == RDT_OK)
        status = rdti_engine_create(ctx->opts.local_ranks, &ctx->engine, err);
    if (status == RDT_OK)
        status = rdti_arena_create(ctx->opts.arena_chunk_bytes, ctx->opts.arena_max_bytes,
                                   &ctx->arena, err);
    if (status == RDT_OK)
        status =
            rdti_regions_create(ctx->arena, ctx->uuid, context_on_revoke, ctx, &ctx->regions, err);
    if (status == RDT_OK) {
        rdti_regions_set_engine(ctx->regions, ctx->engine);
        rdti_regions_set_gone(ctx->regions, context_on_region_gone, ctx);
    }
    if (status == RDT_OK)
        status = rdti_transfer_pool_create(ctx->engine, ctx->opts.timeout_ns, &ctx->pool, err);
    if (status == RDT_OK)
        status = rdti_mailboxes_create(ctx, &rdti_group_sink, &ctx->mailboxes, err);
    if (status == RDT_OK)
        status = rdti_groups_create(ctx, &ctx->groups, err);
    if (status != RDT_OK)
        return status;
    rdti_context_fill_host(ctx);
    status = context_find_transports(ctx, err);
    if (status == RDT_OK)
        status = rdti_listener_open(ctx, &rdti_path_handshake_events, &ctx->listener, err);
    if (status == RDT_OK)
        status = rdti_engine_every(ctx->engine, RDTI_TICK_NS, rdti_path_tick, ctx, err);
    if (status == RDT_OK)
        status = rdti_engine_start(ctx->engine, err);
    return status;
}

rdt_status
rdt_context_open(const struct rdt_context_opts *opts, rdt_context **out, struct rdt_error *err)
{
    rdt_context *ctx;
    rdt_status status;

    if (rdti_in_forked_child())
        return rdti_error_set(err, RDT_EFORKED, 0,
                              "context_open: this is a forked child of a process that used "
                              "rdmatensor: spawn the process instead");
    rdti_fork_guard();
    ctx = calloc(1, sizeof(*ctx));
    if (ctx == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a context of %zu bytes", sizeof(*ctx));
    rdti_list_init(&ctx->jobs);
    rdti_list_init(&ctx->endpoints);
    rdti_list_init(&ctx->obituaries);
    rdti_list_init(&ctx->rejections);
    rdti_list_init(&ctx->retired);
    ctx->last_tick_ns = rdti_now_ns();
    status = context_take_opts(ctx, opts, err);
    if (status == RDT_OK)
        status = context_build(ctx, err);
    if (status != RDT_OK) {
        context_free(ctx);
        return status;
    }
    *out = ctx;
    return RDT_OK;
}

/* Tasks included: one whose operation ended may have to run once more to free what it holds.
 * Deferred work and regions that end are included too: another thread may be about to end a
 * transfer by them. Peers that still use memory of this process are not waited for: they keep it
 * after the close. */
static bool
context_is_at_rest(void *arg)
{
    rdt_context *ctx = arg;

    rdti_engine_enter(ctx->engine);
    bool is_quiet = !rdti_engine_has_tasks(ctx->engine) && !rdti_engine_has_deferred(ctx->engine) &&
                    !rdti_regions_are_ending(ctx->regions);
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next)
        is_quiet =
            is_quiet && rdti_endpoint_is_only_lingering(RDTI_CONTAINER(node, rdt_endpoint, link));
    rdti_engine_leave(ctx->engine);
    return is_quiet;
}

static bool
context_are_channels_gone(void *arg)
{
    rdt_context *ctx = arg;

    rdti_engine_enter(ctx->engine);
    const bool are_gone = rdti_list_is_empty(&ctx->retired);
    rdti_engine_leave(ctx->engine);
    return are_gone;
}

/* Peers and tasks have this long; a device that uses memory of this process has as long as it
 * takes: it ends by itself, and the memory cannot be freed before. */
static rdt_status
context_wait_for_rest(rdt_context *ctx, struct rdt_error *err)
{
    const uint64_t goodbyes_until_ns = rdti_deadline_after(CONTEXT_CLOSE_NS);
    rdt_status status;
    bool is_ending;

    do {
        is_ending = rdti_regions_are_ending(ctx->regions);
        status = rdti_engine_wait(ctx->engine, context_is_at_rest, ctx,
                                  rdti_deadline_after(CONTEXT_CLOSE_NS));
        is_ending = is_ending || rdti_regions_are_ending(ctx->regions);
    } while (status == RDT_ETIMEDOUT && is_ending);
    if (status != RDT_OK)
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "context_close: an endpoint or a task did not end in time");
    /* A peer that is stopped never closes its half; this side's half then goes with the context. */
    (void)rdti_engine_wait(ctx->engine, context_are_channels_gone, ctx, goodbyes_until_ns);
    return RDT_OK;
}

/* Closes endpoints that only peers opened, and those that still say goodbye. */
static rdt_status
context_close_endpoints(rdt_context *ctx, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    rdti_engine_enter(ctx->engine);
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        const rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        if (ep->refs > 0)
            status = rdti_error_set(
                err, RDT_EBUSY, 0,
                "context_close: the endpoint to rank %d, or a slot or group on it, is open",
                (int)rdti_endpoint_rank(ep));
    }
    for (struct rdti_list *node = ctx->endpoints.next; status == RDT_OK && node != &ctx->endpoints;
         node = node->next) {
        rdt_endpoint *ep = RDTI_CONTAINER(node, rdt_endpoint, link);
        ep->refs++; /* dropped by the close below */
        rdt_endpoint_close(ep);
    }
    ctx->is_closing = status == RDT_OK;
    rdti_engine_leave(ctx->engine);
    return status == RDT_OK ? context_wait_for_rest(ctx, err) : status;
}

static rdt_status
context_check_childless(rdt_context *ctx, struct rdt_error *err)
{
    const uint64_t transfers = rdti_transfer_pool_live(ctx->pool);
    struct rdti_region_stats stats;

    rdti_regions_get_stats(ctx->regions, &stats);
    if (stats.live_count > 0)
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "context_close: %llu regions (%llu bytes) are live",
                              (unsigned long long)stats.live_count,
                              (unsigned long long)stats.live_bytes);
    if (transfers > 0)
        return rdti_error_set(err, RDT_EBUSY, 0, "context_close: %llu transfers were not freed",
                              (unsigned long long)transfers);
    return rdti_groups_check_empty(ctx->groups, err);
}

rdt_status
rdt_context_close(rdt_context *ctx, struct rdt_error *err)
{
    rdt_status status;

    if (ctx == NULL)
        return RDT_OK;
    status = rdti_context_check(ctx, "context_close", err);
    if (status != RDT_OK)
        return status;
    if (rdti_regions_in_drained()) /* it would wait for itself */
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "context_close: called from a region's drained callback");
    status = context_close_endpoints(ctx, err);
    if (status == RDT_OK)
        status = context_check_childless(ctx, err);
    if (status == RDT_OK) {
        context_free(ctx);
        return RDT_OK;
    }
    rdti_engine_enter(ctx->engine); /* the context goes on, and admits peers again */
    ctx->is_closing = false;
    rdti_engine_leave(ctx->engine);
    return status;
}

/* ---- Small calls --------------------------------------------------------------------------- */

void
rdt_context_uuid(const rdt_context *ctx, uint8_t uuid_out[RDT_UUID_BYTES])
{
    memcpy(uuid_out, ctx->uuid, RDT_UUID_BYTES);
}

rdt_status
rdt_context_add_job(rdt_context *ctx, const char *job_id, const uint8_t *secret,
                    uint32_t secret_bytes, uint32_t epoch, int32_t rank, struct rdt_error *err)
{
    rdt_status status = rdti_context_check(ctx, "add_job", err);

    if (status != RDT_OK)
        return status;
    if (job_id == NULL || job_id[0] == '\0' ||
        strnlen(job_id, RDTI_JOB_ID_BYTES) == RDTI_JOB_ID_BYTES ||
        !rdti_text_is_plain(job_id, RDTI_JOB_ID_BYTES))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "add_job: job_id must be 1 to %d bytes of plain text",
                              RDTI_JOB_ID_BYTES - 1);
    if (secret == NULL || secret_bytes == 0 || secret_bytes > RDTI_SECRET_MAX_BYTES)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "add_job: the secret of job '%s' must have 1 to %d bytes, not %u",
                              job_id, RDTI_SECRET_MAX_BYTES, secret_bytes);
    rdti_engine_enter(ctx->engine);
    struct rdti_job *job = rdti_context_find_job(ctx, job_id);
    if (job == NULL && (job = calloc(1, sizeof(*job))) != NULL) {
        rdti_text_copy(job->job_id, sizeof(job->job_id), job_id);
        rdti_list_append(&ctx->jobs, &job->link);
    }
    if (job != NULL) {
        memset(job->secret, 0, sizeof(job->secret));
        memcpy(job->secret, secret, secret_bytes);
        job->secret_bytes = secret_bytes;
        job->epoch = epoch;
        job->rank = rank;
    }
    rdti_engine_leave(ctx->engine);
    return job != NULL ? RDT_OK
                       : rdti_error_set(err, RDT_ENOMEM, 0, "add_job: %zu bytes", sizeof(*job));
}

rdt_status
rdt_context_address(rdt_context *ctx, uint8_t *buf, size_t cap, size_t *len_out,
                    struct rdt_error *err)
{
    const rdt_status status = rdti_context_check(ctx, "context_address", err);

    return status == RDT_OK
               ? rdti_address_encode(rdti_listener_address(ctx->listener), buf, cap, len_out, err)
               : status;
}
