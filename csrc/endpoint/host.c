/* SPDX-License-Identifier: Apache-2.0
 * The core as transports see it: struct rdti_host. */
#include "base/error.h"
#include "endpoint/endpoint_impl.h"

static void
host_on_notify(void *core, struct rdti_lane *lane, uint32_t notification)
{
    (void)core;
    rdti_endpoint_on_notify(lane->owner, notification);
}

static void
host_on_error(void *core, struct rdti_lane *lane, const struct rdt_error *err)
{
    (void)core;
    if (lane == rdti_failover_lane(lane->owner))
        rdti_failover_on_lane_error(lane->owner, err);
    else
        rdti_endpoint_on_lane_error(lane->owner, err);
}

static void
host_on_ready(void *core, struct rdti_lane *lane)
{
    (void)core;
    if (lane == rdti_failover_lane(lane->owner))
        rdti_failover_on_lane_ready(lane->owner);
    else
        rdti_path_on_lane_ready(lane->owner);
}

static bool
host_may_move(void *core, const struct rdti_lane *lane)
{
    (void)core;
    return rdti_failover_may(lane->owner);
}

static void
host_on_fenced(void *core, struct rdti_lane *lane, uint64_t delivered, const struct rdt_error *why)
{
    (void)core;
    rdti_failover_on_fenced(lane->owner, delivered, why);
}

static rdt_status
host_target_acquire(void *core, uint32_t index, uint32_t generation, uint64_t off_bytes,
                    uint64_t len_bytes, struct rdti_target *out, struct rdt_error *err)
{
    rdt_context *ctx = core;

    return rdti_regions_acquire(ctx->regions, index, generation, off_bytes, len_bytes, out, err);
}

static void
host_target_release(void *core, struct rdti_target *target)
{
    rdt_context *ctx = core;

    rdti_regions_release(ctx->regions, target);
}

static void
host_request_segment(void *core, struct rdti_lane *lane, uint32_t segment)
{
    rdt_context *ctx = core;
    const struct rdti_segment request = {.segment = segment};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    rdt_endpoint *ep = lane->owner;

    rdti_count(&ctx->counters.control_messages[RDTI_TRAFFIC_CONTROL], 1);
    /* Called from inside write() with the lane in use: advance_bury() waits for the writer, so the
     * channel cannot go away. */
    rdti_channel_send(ep->channel, RDTI_FRAME_SEGMENT_GET, payload,
                      rdti_segment_encode(&request, payload), NULL, 0);
}

static void
host_send_words(void *core, struct rdti_lane *lane, const uint8_t *bytes, uint32_t len_bytes)
{
    rdt_context *ctx = core;
    rdt_endpoint *ep = lane->owner;

    rdti_count(&ctx->counters.control_messages[RDTI_TRAFFIC_CONTROL], 1);
    rdti_channel_send(ep->channel, RDTI_FRAME_LANE_WORDS, bytes, len_bytes, NULL, 0); /* as above */
}

static rdt_status
host_memory_segment(void *core, uint32_t segment, struct rdti_memory *out, struct rdt_error *err)
{
    rdt_context *ctx = core;
    struct rdti_memory memory = {.segment = segment};

    if (rdti_arena_segment_addr(ctx->arena, segment, &memory.addr, &memory.len_bytes) != RDT_OK)
        return rdti_error_set(err, RDT_EINVAL, 0, "the arena has no piece %u", segment);
    *out = memory;
    return RDT_OK;
}

static rdt_status
host_memory_keep(void *core, uint32_t segment, struct rdt_error *err)
{
    rdt_context *ctx = core;

    return rdti_arena_keep_pages(ctx->arena, segment, err);
}

static rdt_status
host_memory_find(void *core, const void *addr, uint64_t len_bytes, struct rdti_memory *out,
                 struct rdt_error *err)
{
    rdt_context *ctx = core;
    uint64_t off_bytes;
    uint32_t segment;

    if (rdti_arena_locate(ctx->arena, addr, len_bytes, &segment, &off_bytes) != RDT_OK)
        return rdti_error_set(err, RDT_EINVAL, 0, "the arena does not hold these bytes");
    return host_memory_segment(core, segment, out, err);
}

static rdt_status
host_watch(void *core, int fd, uint32_t epoll_events, rdti_watch_fn fn, void *arg,
           struct rdti_watch **out, struct rdt_error *err)
{
    rdt_context *ctx = core;

    return rdti_engine_watch(ctx->engine, fd, epoll_events, fn, arg, out, err);
}

static void
host_rewatch(void *core, struct rdti_watch *watch, uint32_t epoll_events)
{
    rdt_context *ctx = core;

    rdti_engine_rewatch(ctx->engine, watch, epoll_events);
}

static void
host_unwatch(void *core, struct rdti_watch *watch)
{
    rdt_context *ctx = core;

    rdti_engine_unwatch(ctx->engine, watch);
}

void
rdti_context_fill_host(rdt_context *ctx)
{
    ctx->host = (struct rdti_host){
        .core = ctx,
        .on_notify = host_on_notify,
        .on_error = host_on_error,
        .on_ready = host_on_ready,
        .may_move = host_may_move,
        .on_fenced = host_on_fenced,
        .target_acquire = host_target_acquire,
        .target_release = host_target_release,
        .request_segment = host_request_segment,
        .send_words = host_send_words,
        .memory_find = host_memory_find,
        .memory_segment = host_memory_segment,
        .memory_keep = host_memory_keep,
        .watch = host_watch,
        .rewatch = host_rewatch,
        .unwatch = host_unwatch,
        .doorbell_fd = rdti_engine_doorbell_fd(ctx->engine),
        .event_fd = rdti_engine_event_fd(ctx->engine),
        .generation_fd = rdti_regions_generation_fd(ctx->regions),
        .counters = &ctx->moved,
        .tcp_streams = ctx->opts.tcp_streams,
    };
}
