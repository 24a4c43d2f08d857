/* SPDX-License-Identifier: Apache-2.0
 * Several contexts in one process, each a member of one group, for tests of the whole core. */
#ifndef RDTI_TESTS_GROUP_RIG_H
#define RDTI_TESTS_GROUP_RIG_H

#include <stdlib.h>
#include <string.h>

#include "group/group_impl.h"
#include "harness.h"
#include "rdmatensor_ext.h"
#include "sim/sim.h"

#define RIG_RANKS_MAX 4

/* Paths to other hosts, for tests over each; a device alone where there is one, as it is slow in an
 * emulated machine. */
struct rig_paths {
    uint32_t count;
    uint32_t transports[2];
};

static inline struct rig_paths
rig_far_paths(void)
{
    if (sim_is_off())
        return (struct rig_paths){1, {RDT_TRANSPORT_VERBS}};
    return (struct rig_paths){2, {RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS}};
}

/* How long anything here may take. Below a test's own alarm, so that what hangs is named. */
static inline uint64_t
rig_patience_ns(void)
{
    return (uint64_t)(15e9 * test_timeout_scale());
}

struct rig {
    uint32_t size;
    rdt_context *ctx[RIG_RANKS_MAX];
    rdt_group *group[RIG_RANKS_MAX];
    const int32_t *global_ranks; /* NULL: equal to group ranks */
};

static inline rdt_status
rig_address(void *arg, uint32_t rank, uint64_t timeout_ns, uint8_t *buf, size_t cap,
            size_t *len_out, struct rdt_error *err)
{
    const struct rig *rig = arg;

    (void)timeout_ns;
    return rdt_context_address(rig->ctx[rank], buf, cap, len_out, err);
}

static inline rdt_group *
rig_group(struct rig *rig, uint32_t rank, const char *name)
{
    struct rdt_error err = {0};
    rdt_group *group = NULL;
    const struct rdt_group_opts opts = {
        .struct_size = sizeof(opts),
        .rank = rank,
        .size = rig->size,
        .name = name,
        .job_id = "job",
        .global_ranks = rig->global_ranks,
        .timeout_ns = rig_patience_ns(),
        .address = rig_address,
        .address_arg = rig,
    };

    CHECK_OK(rdt_group_create(rig->ctx[rank], &opts, &group, &err), &err);
    return group;
}

static inline rdt_context *
rig_context(uint32_t transport, int32_t rank)
{
    struct rdt_error err = {0};
    rdt_context *ctx = NULL;
    const struct rdt_context_opts opts = {
        .struct_size = sizeof(opts),
        .force_transport = transport,
        .loopback_only = 1,
        .timeout_ns = rig_patience_ns(),
        .arena_chunk_bytes = 1 << 20,
    };

    if (transport == RDT_TRANSPORT_VERBS)
        sim_use();
    CHECK_OK(rdt_context_open(&opts, &ctx, &err), &err);
    CHECK_OK(rdt_context_add_job(ctx, "job", (const uint8_t *)"secret", 6, 1, rank, &err), &err);
    return ctx;
}

static inline void
rig_open_as(struct rig *rig, uint32_t size, uint32_t transport, const int32_t *global_ranks)
{
    *rig = (struct rig){.size = size, .global_ranks = global_ranks};
    for (uint32_t i = 0; i < size; i++)
        rig->ctx[i] = rig_context(transport, global_ranks != NULL ? global_ranks[i] : (int32_t)i);
    for (uint32_t i = 0; i < size; i++)
        rig->group[i] = rig_group(rig, i, "world");
}

static inline void
rig_open(struct rig *rig, uint32_t size, uint32_t transport)
{
    rig_open_as(rig, size, transport, NULL);
}

static inline void
rig_close_context(rdt_context *ctx)
{
    struct rdt_error err = {0};
    rdt_status status;
    const uint64_t deadline_ns = test_now_ns() + rig_patience_ns();

    while ((status = rdt_context_close(ctx, &err)) == RDT_EBUSY && test_now_ns() < deadline_ns)
        test_sleep_ns(1000000);
    CHECK_OK(status, &err);
}

static inline void
rig_close(struct rig *rig)
{
    for (uint32_t i = 0; i < rig->size; i++)
        rdt_group_destroy(rig->group[i]);
    for (uint32_t i = 0; i < rig->size; i++)
        rig_close_context(rig->ctx[i]);
}

/* The path from this member to that one, once messages can go over it. */
static inline rdt_endpoint *
rig_ready(rdt_group *group, uint32_t rank)
{
    struct rdt_error err = {0};
    rdt_endpoint *ep;

    CHECK_OK(rdt_group_endpoint(group, rank, &ep, &err), &err);
    CHECK_OK(rdt_endpoint_wait_ready(ep, rig_patience_ns(), &err), &err);
    return ep;
}

/* Whether the member has a path to `rank`, opened here or kept because the peer uses it. */
static inline bool
rig_holds(rdt_group *group, uint32_t rank)
{
    rdti_engine_enter(group->scope.ctx->engine);
    const bool is_held = group->scope.members[rank].ep != NULL;
    rdti_engine_leave(group->scope.ctx->engine);
    return is_held;
}

/* Waits for a transfer and gives it up. */
static inline rdt_status
rig_end(rdt_transfer *t, struct rdt_error *err)
{
    const rdt_status status = rdt_transfer_wait(t, rig_patience_ns(), err);

    rdt_transfer_free(t);
    return status;
}

static inline rdt_transfer *
rig_send(struct rig *rig, uint32_t from, uint32_t to, uint64_t tag, const void *src,
         uint64_t len_bytes)
{
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_group_send(rig->group[from], to, tag, src, len_bytes, NULL, &t, &err), &err);
    return t;
}

static inline rdt_transfer *
rig_recv(struct rig *rig, uint32_t at, uint32_t from, uint64_t tag, void *dst, uint64_t cap_bytes)
{
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    CHECK_OK(rdt_group_recv(rig->group[at], from, tag, dst, cap_bytes, NULL, &t, &err), &err);
    return t;
}

static inline void
rig_fill(uint8_t *buf, uint64_t len_bytes, uint64_t seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (uint64_t i = 0; i < len_bytes; i += sizeof(x)) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t word = x ^ x >> 32; /* the lower bits of x alone repeat soon */
        memcpy(buf + i, &word, len_bytes - i < sizeof(word) ? len_bytes - i : sizeof(word));
    }
}

#endif
