/* SPDX-License-Identifier: Apache-2.0
 * describe() and counters: what the context is doing, from live state, as JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory/copy.h"
#include "base/system/cpu.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory/numa.h"
#include "base/system/sockaddr.h"
#include "connect/listener.h"
#include "connect/netaddr.h"
#include "endpoint/endpoint_impl.h"
#include "group/group.h"
#include "rdmatensor_ext.h"

#define NS_PER_S_DIGITS 9
#define NS_PER_MS_DIGITS 6

static const char *
describe_path_name(uint32_t transport)
{
    static const char *const names[RDTI_TRANSPORT_COUNT] = {"none", "shm", "tcp", "verbs"};

    return transport < RDTI_TRANSPORT_COUNT ? names[transport] : "?";
}

static void
describe_put_endpoint(struct rdti_json *json, rdt_endpoint *ep)
{
    static const char *const states[] = {"connecting", "ready", "closing", "left", "failed"};
    const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);
    char lane[1024] = ""; /* every link, and the first error of those that are down */

    if (ep->lane != NULL && state == RDTI_EP_READY)
        ep->lane->transport->explain(ep->lane, lane, sizeof(lane));
    rdti_json_put(json, "{\"rank\":%d,\"uuid\":", (int)rdti_endpoint_rank(ep));
    rdti_json_put_hex(json, ep->uuid, RDT_UUID_BYTES);
    rdti_json_put(json, ",\"state\":\"%s\",\"path\":\"%s\",\"lane\":", states[state],
                  describe_path_name(rdti_endpoint_transport_id(ep)));
    rdti_json_put_string(json, lane);
    rdti_json_put(json, ",\"is_fallback\":%s", rdti_endpoint_is_fallback(ep) ? "true" : "false");
    rdti_json_put(json, ",\"why_not_better\":");
    rdti_json_put_string(json, ep->setup != NULL ? ep->setup->reasons : ep->reason);
    rdti_json_put(json, ",\"error\":");
    rdti_json_put_string(json, rdti_endpoint_is_ended(ep) ? ep->error.message : "");
    rdti_json_put(json, ",\"set_up_ms\":");
    rdti_json_put_decimal(json, ep->ready_after_ns, NS_PER_MS_DIGITS);
    rdti_json_put(json, ",\"pid\":%d}", (int)ep->peer_pid);
}

static void
describe_put_settings(struct rdti_json *json, const rdt_context *ctx)
{
    rdti_json_put(json, ",\"forced_path\":\"%s\",\"required_path\":\"%s\",\"timeout_s\":",
                  describe_path_name(ctx->opts.force_transport),
                  describe_path_name(ctx->opts.require_transport));
    rdti_json_put_decimal(json, ctx->opts.timeout_ns, NS_PER_S_DIGITS);
    rdti_json_put(json, ",\"peer_timeout_s\":");
    rdti_json_put_decimal(json, ctx->opts.peer_timeout_ns, NS_PER_S_DIGITS);
    rdti_json_put(json, ",\"verify\":\"%s\",\"usable_cpus\":%u,\"copies_tuned_for\":\"%s\",",
                  rdti_context_verifies(ctx) ? "crc32c" : "off", rdti_cpu_usable(),
                  rdti_copy_table()->measured_on);
}

static void
describe_put_transports(struct rdti_json *json, const rdt_context *ctx)
{
    rdti_json_put(json, "\"transports\":{");
    for (uint32_t id = 1; id < RDTI_TRANSPORT_COUNT; id++) {
        rdti_json_put(json, "%s\"%s\":{\"is_viable\":%s,\"reason\":", id > 1 ? "," : "",
                      describe_path_name(id), ctx->found[id].is_viable ? "true" : "false");
        rdti_json_put_string(json, ctx->found[id].reason);
        rdti_json_put(json, "}");
    }
    rdti_json_put(json, "},");
}

struct placement {
    int bytes_errno; /* 0, or why they are unknown */
    int cpu_errno;
    uint64_t node_bytes[RDTI_NUMA_NODES];
    bool is_cpu_node[RDTI_NUMA_NODES];
};

static bool
describe_is_in_arena(void *user, uintptr_t addr)
{
    uint32_t segment;
    uint64_t off_bytes;

    return rdti_arena_locate(user, (const void *)addr, 1, &segment, &off_bytes) == RDT_OK;
}

/* Call without the engine's lock: the kernel inspects each page of the process. */
static void
describe_find_placement(rdt_context *ctx, struct placement *out)
{
    out->bytes_errno = rdti_numa_bytes("", describe_is_in_arena, ctx->arena, out->node_bytes);
    out->cpu_errno = rdti_numa_cpu_nodes("", out->is_cpu_node);
}

static uint64_t
describe_far_bytes(const struct placement *at)
{
    uint64_t sum = 0;

    for (uint32_t node = 0; node < RDTI_NUMA_NODES; node++)
        sum += at->is_cpu_node[node] ? 0 : at->node_bytes[node];
    return sum;
}

static void
describe_put_node_bytes(struct rdti_json *json, const struct placement *at)
{
    const char *comma = "";

    rdti_json_put(json, "{");
    for (uint32_t node = 0; node < RDTI_NUMA_NODES; node++) {
        if (at->node_bytes[node] == 0)
            continue;
        rdti_json_put(json, "%s\"%u\":%" PRIu64, comma, node, at->node_bytes[node]);
        comma = ",";
    }
    rdti_json_put(json, "}");
}

static void
describe_put_cpu_nodes(struct rdti_json *json, const struct placement *at)
{
    const char *comma = "";

    rdti_json_put(json, "[");
    for (uint32_t node = 0; node < RDTI_NUMA_NODES; node++) {
        if (!at->is_cpu_node[node])
            continue;
        rdti_json_put(json, "%s%u", comma, node);
        comma = ",";
    }
    rdti_json_put(json, "]");
}

/* Data that the kernel does not give is null, all of it, and `reason` says so. */
static void
describe_put_placement(struct rdti_json *json, const struct placement *at)
{
    const int sys_errno = at->bytes_errno != 0 ? at->bytes_errno : at->cpu_errno;
    char reason[128];

    rdti_json_put(json, "{\"node_bytes\":");
    if (sys_errno == 0) {
        describe_put_node_bytes(json, at);
        rdti_json_put(json, ",\"cpu_nodes\":");
        describe_put_cpu_nodes(json, at);
        rdti_json_put(json, ",\"far_bytes\":%" PRIu64 ",\"reason\":\"\"}", describe_far_bytes(at));
        return;
    }
    (void)snprintf(reason, sizeof(reason), "not told by the kernel: %s: %s",
                   at->bytes_errno != 0 ? "/proc/self/numa_maps" : "/sys/devices/system/node",
                   strerror(sys_errno));
    rdti_json_put(json, "null,\"cpu_nodes\":null,\"far_bytes\":null,\"reason\":");
    rdti_json_put_string(json, reason);
    rdti_json_put(json, "}");
}

static void
describe_put_memory(struct rdti_json *json, rdt_context *ctx)
{
    struct rdti_arena_stats arena;
    struct rdti_region_stats regions;

    rdti_arena_get_stats(ctx->arena, &arena);
    rdti_regions_get_stats(ctx->regions, &regions);
    rdti_json_put(json,
                  "\"arena\":{\"segments\":%" PRIu64 ",\"mapped_bytes\":%" PRIu64
                  ",\"allocated_bytes\":%" PRIu64 ",\"peak_allocated_bytes\":%" PRIu64
                  ",\"huge_bytes\":%" PRIu64 ",\"populated_bytes\":%" PRIu64 ",\"populate_s\":",
                  arena.segment_count, arena.mapped_bytes, arena.allocated_bytes,
                  arena.peak_allocated_bytes, arena.huge_bytes, arena.populated_bytes);
    rdti_json_put_decimal(json, arena.populate_ns, NS_PER_S_DIGITS);
    rdti_json_put(json, "},");
    rdti_json_put(json,
                  "\"regions\":{\"live\":%" PRIu64 ",\"live_bytes\":%" PRIu64
                  ",\"exported\":%" PRIu64 ",\"quarantine\":%" PRIu64
                  ",\"quarantine_bytes\":%" PRIu64 ",\"registrations\":%" PRIu64 "},",
                  regions.live_count, regions.live_bytes, regions.exported_count,
                  regions.quarantine_count, regions.quarantine_bytes, regions.registrations);
}

static void
describe_put_counters(struct rdti_json *json, rdt_context *ctx)
{
    struct rdt_counters c = {.struct_size = sizeof(c)};

    rdt_context_counters(ctx, &c);
    rdti_json_put(json,
                  "\"counters\":{\"writes\":%" PRIu64 ",\"reads\":%" PRIu64
                  ",\"notifications\":%" PRIu64 ",\"moved_bytes\":%" PRIu64
                  ",\"copied_bytes\":%" PRIu64 ",\"control_messages\":%" PRIu64
                  ",\"credits_alone\":%" PRIu64 ",\"registrations\":%" PRIu64
                  ",\"wakeups_sent\":%" PRIu64 ",\"wire_bytes\":%" PRIu64
                  ",\"mailbox_eager\":%" PRIu64 ",\"mailbox_rendezvous\":%" PRIu64
                  ",\"verified_bytes\":%" PRIu64 ",\"mismatches\":%" PRIu64
                  ",\"registered_bytes\":%" PRIu64 ",\"registration_s\":",
                  c.writes, c.reads, c.notifications, c.moved_bytes, c.copied_bytes,
                  c.control_messages, c.credits_alone, c.registrations, c.wakeups_sent,
                  c.wire_bytes, c.mailbox_eager, c.mailbox_rendezvous, c.verified_bytes,
                  c.mismatches, c.registered_bytes);
    rdti_json_put_decimal(json, c.registration_ns, NS_PER_S_DIGITS);
    rdti_json_put(json, ",\"wait_s\":");
    rdti_json_put_decimal(json, c.wait_ns, NS_PER_S_DIGITS);
    rdti_json_put(json,
                  ",\"failovers\":%" PRIu64 ",\"mailbox_placed\":%" PRIu64 ",\"shm_bytes\":%" PRIu64
                  ",\"tcp_bytes\":%" PRIu64 ",\"verbs_bytes\":%" PRIu64
                  ",\"planned_bytes\":%" PRIu64 ",\"dynamic_bytes\":%" PRIu64
                  ",\"control_bytes\":%" PRIu64 ",\"fallback_bytes\":%" PRIu64
                  ",\"reconnections\":%" PRIu64 ",\"side_channel_bytes\":%" PRIu64
                  ",\"planned_copied_bytes\":%" PRIu64 ",\"dynamic_copied_bytes\":%" PRIu64
                  ",\"planned_control_messages\":%" PRIu64 ",\"dynamic_control_messages\":%" PRIu64
                  "}",
                  c.failovers, c.mailbox_placed, c.shm_bytes, c.tcp_bytes, c.verbs_bytes,
                  c.planned_bytes, c.dynamic_bytes, c.control_bytes, c.fallback_bytes,
                  c.reconnections, c.side_channel_bytes, c.planned_copied_bytes,
                  c.dynamic_copied_bytes, c.planned_control_messages, c.dynamic_control_messages);
}

static uint64_t
describe_load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed); /* a statistic */
}

/* What the transports moved, by path and by class. */
static void
describe_put_traffic(struct rdti_json *json, const rdt_context *ctx)
{
    static const char *const paths[RDTI_TRANSPORT_COUNT] = {"within_process", "shm", "tcp",
                                                            "verbs"};
    static const char *const classes[RDTI_TRAFFIC_COUNT] = {"planned_bytes", "dynamic_bytes",
                                                            "control_bytes"};

    rdti_json_put(json, ",\"traffic\":{");
    for (uint32_t path = 0; path < RDTI_TRANSPORT_COUNT; path++) {
        rdti_json_put(json, "%s\"%s\":{", path > 0 ? "," : "", paths[path]);
        for (uint32_t i = 0; i < RDTI_TRAFFIC_COUNT; i++)
            rdti_json_put(json, "%s\"%s\":%" PRIu64, i > 0 ? "," : "", classes[i],
                          describe_load(&ctx->moved.moved_bytes[path][i]));
        rdti_json_put(json, "}");
    }
    rdti_json_put(json, "}");
}

/* Bytes moved and copied and messages sent, by class. */
static void
describe_put_classes(struct rdti_json *json, rdt_context *ctx)
{
    struct rdt_counters c = {.struct_size = sizeof(c)};

    rdt_context_counters(ctx, &c);
    rdti_json_put(json,
                  ",\"classes\":{\"planned\":{\"moved_bytes\":%" PRIu64 ",\"copied_bytes\":%" PRIu64
                  ",\"control_messages\":%" PRIu64 "},\"dynamic\":{\"moved_bytes\":%" PRIu64
                  ",\"copied_bytes\":%" PRIu64 ",\"control_messages\":%" PRIu64
                  "},\"control\":{\"moved_bytes\":%" PRIu64 ",\"copied_bytes\":%" PRIu64
                  ",\"control_messages\":%" PRIu64 "}}",
                  c.planned_bytes, c.planned_copied_bytes, c.planned_control_messages,
                  c.dynamic_bytes, c.dynamic_copied_bytes, c.dynamic_control_messages,
                  c.control_bytes, c.copied_bytes - c.planned_copied_bytes - c.dynamic_copied_bytes,
                  c.control_messages - c.planned_control_messages - c.dynamic_control_messages);
}

static void
describe_put_listener(struct rdti_json *json, const rdt_context *ctx)
{
    const struct rdti_address *address = rdti_listener_address(ctx->listener);

    rdti_json_put(json, "\"listens\":[");
    for (uint32_t i = 0; i < address->addr_count; i++) {
        struct sockaddr_storage addr;
        char text[RDTI_SOCKADDR_TEXT_BYTES];
        (void)rdti_sockaddr_of_ip(&address->addrs[i], &addr);
        rdti_sockaddr_text((const struct sockaddr *)&addr, text, sizeof(text));
        rdti_json_put(json, "%s\"%s\"", i > 0 ? "," : "", text);
    }
    rdti_json_put(json, "],");
}

rdt_status
rdt_context_describe(rdt_context *ctx, char *buf, size_t cap, size_t *needed_out,
                     struct rdt_error *err)
{
    struct rdti_json json;
    const rdt_status status = rdti_context_check(ctx, "describe", err);
    bool is_first = true;

    if (status != RDT_OK)
        return status;
    rdti_json_init(&json, buf, cap);
    rdti_engine_enter(ctx->engine);
    rdti_json_put(&json, "{\"version\":\"%s\",\"uuid\":", rdt_version());
    rdti_json_put_hex(&json, ctx->uuid, RDT_UUID_BYTES);
    describe_put_settings(&json, ctx);
    describe_put_transports(&json, ctx);
    describe_put_listener(&json, ctx);
    describe_put_memory(&json, ctx);
    rdti_json_put(&json, "\"endpoints\":[");
    for (struct rdti_list *node = ctx->endpoints.next; node != &ctx->endpoints; node = node->next) {
        rdti_json_put(&json, "%s", is_first ? "" : ",");
        describe_put_endpoint(&json, RDTI_CONTAINER(node, rdt_endpoint, link));
        is_first = false;
    }
    rdti_json_put(&json, "],\"groups\":");
    rdti_groups_describe(ctx->groups, &json);
    rdti_json_put(&json, ",");
    describe_put_counters(&json, ctx);
    describe_put_traffic(&json, ctx);
    describe_put_classes(&json, ctx);
    rdti_json_put(&json, "}");
    rdti_engine_leave(ctx->engine);
    return rdti_json_finish(&json, "describe", needed_out, err);
}

rdt_status
rdt_context_placement(rdt_context *ctx, char *buf, size_t cap, size_t *needed_out,
                      struct rdt_error *err)
{
    struct rdti_json json;
    struct placement at = {0};
    const rdt_status status = rdti_context_check(ctx, "placement", err);

    if (status != RDT_OK)
        return status;
    describe_find_placement(ctx, &at);
    rdti_json_init(&json, buf, cap);
    describe_put_placement(&json, &at);
    return rdti_json_finish(&json, "placement", needed_out, err);
}

static void
describe_add(_Atomic uint64_t *counter, uint64_t more)
{
    if (more > 0)
        rdti_count(counter, more);
}

static uint64_t
describe_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

void
rdt_context_count(rdt_context *ctx, const struct rdt_counters *more)
{
    _Atomic uint64_t *moved = ctx->moved.moved_bytes[RDT_TRANSPORT_SHM];
    struct rdti_core_counters *core = &ctx->counters;
    struct rdt_counters told = {0}; /* an older caller's struct ends before the last of these */
    const size_t told_bytes = more->struct_size < sizeof(told) ? more->struct_size : sizeof(told);

    memcpy(&told, more, told_bytes);
    const uint64_t planned = describe_least(told.planned_bytes, told.moved_bytes);
    const uint64_t planned_copies = describe_least(told.planned_copied_bytes, told.copied_bytes);
    const uint64_t planned_messages =
        describe_least(told.planned_control_messages, told.control_messages);

    describe_add(&ctx->counters.writes, more->writes);
    describe_add(&moved[RDTI_TRAFFIC_PLANNED], planned);
    describe_add(&moved[RDTI_TRAFFIC_DYNAMIC], more->moved_bytes - planned);
    describe_add(&core->copied_bytes[RDTI_TRAFFIC_PLANNED], planned_copies);
    describe_add(&core->copied_bytes[RDTI_TRAFFIC_DYNAMIC], more->copied_bytes - planned_copies);
    describe_add(&core->control_messages[RDTI_TRAFFIC_PLANNED], planned_messages);
    describe_add(&core->control_messages[RDTI_TRAFFIC_DYNAMIC],
                 more->control_messages - planned_messages);
    describe_add(&ctx->counters.credits_alone, more->credits_alone);
    describe_add(&ctx->counters.verified_bytes, more->verified_bytes);
    describe_add(&ctx->counters.mismatches, more->mismatches);
}

/* Counted by the core and by the transports. */
static uint64_t
describe_copied_of(const rdt_context *ctx, enum rdti_traffic traffic)
{
    return describe_load(&ctx->counters.copied_bytes[traffic]) +
           describe_load(&ctx->moved.copied_bytes[traffic]);
}

/* copied_bytes and control_messages, and their parts. */
static void
describe_sum_classes(const rdt_context *ctx, struct rdt_counters *out)
{
    const _Atomic uint64_t *messages = ctx->counters.control_messages;

    out->planned_copied_bytes = describe_copied_of(ctx, RDTI_TRAFFIC_PLANNED);
    out->dynamic_copied_bytes = describe_copied_of(ctx, RDTI_TRAFFIC_DYNAMIC);
    out->copied_bytes = out->planned_copied_bytes + out->dynamic_copied_bytes +
                        describe_copied_of(ctx, RDTI_TRAFFIC_CONTROL);
    out->planned_control_messages = describe_load(&messages[RDTI_TRAFFIC_PLANNED]);
    out->dynamic_control_messages = describe_load(&messages[RDTI_TRAFFIC_DYNAMIC]);
    out->control_messages = out->planned_control_messages + out->dynamic_control_messages +
                            describe_load(&messages[RDTI_TRAFFIC_CONTROL]);
}

/* moved_bytes and its parts. */
static void
describe_sum_moved(const rdt_context *ctx, struct rdt_counters *out)
{
    uint64_t paths[RDTI_TRANSPORT_COUNT] = {0};
    uint64_t classes[RDTI_TRAFFIC_COUNT] = {0};

    for (uint32_t path = 0; path < RDTI_TRANSPORT_COUNT; path++) {
        for (uint32_t i = 0; i < RDTI_TRAFFIC_COUNT; i++) {
            const uint64_t bytes = describe_load(&ctx->moved.moved_bytes[path][i]);
            paths[path] += bytes;
            classes[i] += bytes;
        }
        out->moved_bytes += paths[path];
    }
    out->shm_bytes = paths[RDT_TRANSPORT_SHM];
    out->tcp_bytes = paths[RDT_TRANSPORT_TCP];
    out->verbs_bytes = paths[RDT_TRANSPORT_VERBS];
    out->planned_bytes = classes[RDTI_TRAFFIC_PLANNED];
    out->dynamic_bytes = classes[RDTI_TRAFFIC_DYNAMIC];
    out->control_bytes = classes[RDTI_TRAFFIC_CONTROL];
}

void
rdt_context_counters(rdt_context *ctx, struct rdt_counters *out)
{
    struct rdti_region_stats regions = {0};
    const uint32_t struct_size = out->struct_size;
    const struct rdti_core_counters *core = &ctx->counters;

    rdti_regions_get_stats(ctx->regions, &regions);
    struct rdt_counters all = {
        .struct_size = struct_size,
        .writes = describe_load(&core->writes),
        .reads = describe_load(&core->reads),
        .notifications = describe_load(&ctx->moved.notifications),
        .credits_alone = describe_load(&core->credits_alone),
        .registrations = regions.registrations,
        .wakeups_sent = describe_load(&ctx->moved.wakeups_sent),
        .wire_bytes = describe_load(&ctx->moved.wire_bytes),
        .mailbox_eager = describe_load(&core->mailbox_eager),
        .mailbox_rendezvous = describe_load(&core->mailbox_rendezvous),
        .verified_bytes = describe_load(&core->verified_bytes),
        .mismatches = describe_load(&core->mismatches),
        .registered_bytes = describe_load(&ctx->moved.registered_bytes),
        .registration_ns = describe_load(&ctx->moved.registration_ns),
        .wait_ns = rdti_engine_waited_ns(ctx->engine),
        .failovers = describe_load(&core->failovers),
        .mailbox_placed = describe_load(&core->mailbox_placed),
        .fallback_bytes = describe_load(&ctx->moved.fallback_bytes),
        .reconnections = describe_load(&core->reconnections),
        .side_channel_bytes = describe_load(&core->side_channel_bytes),
    };

    describe_sum_moved(ctx, &all);
    describe_sum_classes(ctx, &all);
    /* An older caller's struct is shorter: fields are only ever added at the end. */
    memcpy(out, &all, struct_size < sizeof(all) ? struct_size : sizeof(all));
}
