/* SPDX-License-Identifier: Apache-2.0
 *
 * fake_group.h - the public calls that the collectives stand on, in one process: every rank is a
 * thread, its context a list of tasks, the mailbox two lists under one mutex. Messages end after
 * random delays and in random order; some are buffered, the others read and write the user's
 * buffers only when they end, also when they end in failure, so that a buffer that was given up too
 * early is found. Regions are memory of this process, which goes when it is freed and nobody holds
 * it.
 *
 * This is a header, and not part of the library that all tests share, because the tests of the
 * core need the real calls. Include it in one file of a program.
 *
 * over budget: one fake of one interface, read as a whole.
 */
#ifndef RDT_TESTS_COLLECTIVES_FAKE_GROUP_H
#define RDT_TESTS_COLLECTIVES_FAKE_GROUP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "collectives/temps.h"
#include "harness.h"
#include "rdmatensor.h"

enum {
    FAKE_RANKS_MAX = 8,
    FAKE_TICKS_MAX = 4, /* a message ends after so many looks at the world, at most */
    FAKE_TASKS_MAX = 64,
    FAKE_REGIONS_MAX = 1024, /* of all ranks at once: what each keeps, for eight of them */
    FAKE_WAIT_S = 20,        /* no test waits longer for one collective */
};

/* The n-th call of a kind in the whole world fails, counted from 1; 0: none. */
enum fake_call {
    FAKE_SEND,
    FAKE_RECV,
    FAKE_DELIVERY, /* a message that was under way ends badly for both */
    FAKE_CREATE,
    FAKE_TASK,
    FAKE_ENDPOINT,
    FAKE_ALLOC,
    FAKE_HOLD,
    FAKE_CALLS
};

struct fake_message {
    struct fake_message *next;
    uint32_t src;
    uint32_t dst;
    uint64_t tag;
    const void *from;
    void *buffered; /* owned copy, else NULL */
    uint64_t send_bytes;
    void *to;
    uint64_t recv_bytes;
    struct rdt_message_desc send_desc;
    struct rdt_message_desc recv_desc;
    rdt_transfer *send; /* NULL: not posted, or buffered and over */
    rdt_transfer *recv; /* NULL: not posted */
    bool is_sent;
    bool is_received;
    bool is_doomed;
    unsigned ticks;
};

struct rdt_transfer {
    struct fake_world *world;
    unsigned refs; /* of the handle and of whoever ends it */
    bool is_done;
    rdt_status status;
    struct rdt_error error;
    uint64_t len_bytes;
};

struct rdt_endpoint {
    struct fake_world *world;
    unsigned holds;
    uint32_t owner; /* a rank, as is `peer` */
    uint32_t peer;
    bool has_left; /* the peer; the world's lock */
};

struct rdt_region {
    uint32_t generation; /* no two regions of a test have the same */
    struct fake_world *world;
    rdt_context *context;
    uint64_t len_bytes;
    unsigned holds;
    bool is_freed;
    _Alignas(64) uint8_t bytes[];
};

uint32_t
rdt_context_verifies(const rdt_context *ctx)
{
    (void)ctx;
    return RDT_VERIFY_OFF;
}

struct rdt_context {
    struct fake_world *world;
    pthread_mutex_t engine; /* held while tasks run */
    pthread_mutex_t lock;   /* of the list */
    struct {
        rdt_task_fn step;
        void *arg;
    } tasks[FAKE_TASKS_MAX];
    unsigned task_count;
    pthread_t progress;
    struct rdt_counters counted; /* by rdt_context_count() */
    unsigned attending;
};

struct rdt_group {
    struct fake_world *world;
    struct rdt_context context;
    struct rdt_endpoint endpoints[FAKE_RANKS_MAX];
    void *attached;
    void (*detach)(void *state);
    uint32_t rank;
    uint64_t timeout_ns;
    uint64_t sequence;
};

struct fake_world {
    pthread_mutex_t lock;
    uint32_t generations; /* of regions */
    uint32_t size;
    int32_t global_first; /* the job's rank of rank 0; the others follow */
    struct rdt_group groups[FAKE_RANKS_MAX];
    struct fake_message *messages; /* in the order of posting */
    uint64_t random;
    struct rdt_error broken;                             /* status RDT_OK: not */
    uint64_t sent_bytes[FAKE_RANKS_MAX][FAKE_RANKS_MAX]; /* by source and destination */
    unsigned live_transfers;
    unsigned live_regions;
    rdt_region *regions[FAKE_REGIONS_MAX]; /* not freed */
    uint64_t spin_ns;
    uint64_t yield_ns;
    atomic_uint met;                /* fake_world_meet(): how often all ranks together */
    bool is_apart;                  /* the members share no memory */
    bool has_streams;               /* receives of what is large stand in regions */
    uint32_t hosts[FAKE_RANKS_MAX]; /* else those with the same number do */
    unsigned aborts;
    unsigned calls[FAKE_CALLS];
    unsigned fail_at[FAKE_CALLS];
    bool has_failed; /* an injected failure happened */
    bool is_over;
};

static inline uint64_t
fake_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static inline rdt_status __attribute__((format(printf, 3, 4)))
fake_error(struct rdt_error *err, rdt_status status, const char *format, ...)
{
    va_list values;

    if (err == NULL)
        return status;
    *err = (struct rdt_error){.status = status, .peer_rank = RDT_RANK_UNKNOWN};
    va_start(values, format);
    (void)vsnprintf(err->message, sizeof(err->message), format, values);
    va_end(values);
    return status;
}

/* With the world locked. */
static inline bool
fake_must_fail(struct fake_world *world, enum fake_call call)
{
    const bool fails = ++world->calls[call] == world->fail_at[call];

    world->has_failed |= fails;
    return fails;
}

/* ---- Transfers ---- */

static inline rdt_transfer *
fake_transfer_new(struct fake_world *world)
{
    rdt_transfer *t = calloc(1, sizeof(*t));

    CHECK_NOT_NULL(t);
    t->world = world;
    t->refs = 2;
    world->live_transfers++;
    return t;
}

static inline void
fake_transfer_drop(rdt_transfer *t)
{
    CHECK(t->refs > 0);
    if (--t->refs > 0)
        return;
    t->world->live_transfers--;
    free(t);
}

static inline void
fake_transfer_end(rdt_transfer *t, rdt_status status, const struct rdt_error *err)
{
    CHECK_MSG(!t->is_done, "a transfer ended twice");
    t->is_done = true;
    t->status = status;
    if (err != NULL)
        t->error = *err;
    fake_transfer_drop(t);
}

rdt_status
rdt_transfer_test(rdt_transfer *t, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&t->world->lock);
    const rdt_status status = t->is_done ? t->status : RDT_EAGAIN;
    if (t->is_done && status != RDT_OK && err != NULL)
        *err = t->error;
    (void)pthread_mutex_unlock(&t->world->lock);
    return status;
}

uint64_t
rdt_transfer_len_bytes(const rdt_transfer *t)
{
    return t->len_bytes;
}

rdt_status
rdt_transfer_create(rdt_context *ctx, rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&ctx->world->lock);
    if (fake_must_fail(ctx->world, FAKE_CREATE))
        status = fake_error(err, RDT_ENOMEM, "injected: create");
    else
        *out = fake_transfer_new(ctx->world);
    (void)pthread_mutex_unlock(&ctx->world->lock);
    return status;
}

void
rdt_transfer_finish(rdt_transfer *t, rdt_status status, const struct rdt_error *err)
{
    struct fake_world *world = t->world;

    (void)pthread_mutex_lock(&world->lock);
    fake_transfer_end(t, status, err);
    (void)pthread_mutex_unlock(&world->lock);
}

void
rdt_transfer_free(rdt_transfer *t)
{
    if (t == NULL)
        return;
    struct fake_world *world = t->world;
    (void)pthread_mutex_lock(&world->lock);
    fake_transfer_drop(t);
    (void)pthread_mutex_unlock(&world->lock);
}

/* Nothing is traced here. */
void
rdt_transfer_trace(rdt_transfer *t, const char *name, int32_t peer_rank, uint64_t len_bytes)
{
    (void)t;
    (void)name;
    (void)peer_rank;
    (void)len_bytes;
}

/* ---- Mailbox ---- */

static inline struct fake_message *
fake_message_find(struct fake_world *world, uint32_t src, uint32_t dst, uint64_t tag,
                  bool wants_send)
{
    for (struct fake_message *m = world->messages; m != NULL; m = m->next)
        if (m->src == src && m->dst == dst && m->tag == tag && !m->is_doomed &&
            (wants_send ? m->is_sent && !m->is_received : m->is_received && !m->is_sent))
            return m;
    return NULL;
}

static inline struct fake_message *
fake_message_add(struct fake_world *world, uint32_t src, uint32_t dst, uint64_t tag)
{
    struct fake_message **end = &world->messages;
    struct fake_message *m = calloc(1, sizeof(*m));

    CHECK_NOT_NULL(m);
    while (*end != NULL)
        end = &(*end)->next;
    *end = m;
    m->src = src;
    m->dst = dst;
    m->tag = tag;
    m->ticks = (unsigned)(fake_random(&world->random) % (FAKE_TICKS_MAX + 1));
    return m;
}

rdt_status
rdt_group_send(rdt_group *group, uint32_t dst, uint64_t tag, const void *src, uint64_t len_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    struct fake_world *world = group->world;
    rdt_status status = RDT_OK;

    CHECK(dst < world->size && dst != group->rank && desc != NULL);
    (void)pthread_mutex_lock(&world->lock);
    if (world->broken.status != RDT_OK) {
        status = fake_error(err, (rdt_status)world->broken.status, "%s", world->broken.message);
    } else if (fake_must_fail(world, FAKE_SEND)) {
        status = fake_error(err, RDT_EDEVICE, "injected: send");
    } else {
        struct fake_message *m = fake_message_find(world, group->rank, dst, tag, false);
        if (m == NULL)
            m = fake_message_add(world, group->rank, dst, tag);
        world->sent_bytes[group->rank][dst] += len_bytes;
        m->is_sent = true;
        m->from = src;
        m->send_bytes = len_bytes;
        m->send_desc = *desc;
        rdt_transfer *t = fake_transfer_new(world);
        if (fake_random(&world->random) % 2 == 0) {
            m->buffered = malloc(len_bytes + 1);
            CHECK_NOT_NULL(m->buffered);
            if (len_bytes > 0)
                memcpy(m->buffered, src, len_bytes);
            m->from = m->buffered;
            fake_transfer_end(t, RDT_OK, NULL);
        } else {
            m->send = t;
        }
        *out = t;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return status;
}

rdt_status
rdt_group_recv(rdt_group *group, uint32_t src, uint64_t tag, void *dst, uint64_t cap_bytes,
               const struct rdt_message_desc *desc, rdt_transfer **out, struct rdt_error *err)
{
    struct fake_world *world = group->world;
    rdt_status status = RDT_OK;

    CHECK(src < world->size && src != group->rank && desc != NULL);
    (void)pthread_mutex_lock(&world->lock);
    if (world->broken.status != RDT_OK) {
        status = fake_error(err, (rdt_status)world->broken.status, "%s", world->broken.message);
    } else if (fake_must_fail(world, FAKE_RECV)) {
        status = fake_error(err, RDT_EDEVICE, "injected: recv");
    } else {
        struct fake_message *m = fake_message_find(world, src, group->rank, tag, true);
        if (m == NULL)
            m = fake_message_add(world, src, group->rank, tag);
        m->is_received = true;
        m->to = dst;
        m->recv_bytes = cap_bytes;
        m->recv_desc = *desc;
        m->recv = fake_transfer_new(world);
        *out = m->recv;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return status;
}

/* The end of a message that is doomed or has both sides. */
static inline void
fake_message_end(struct fake_world *world, struct fake_message *m)
{
    struct rdt_error err = world->broken;
    rdt_status status = m->is_doomed ? (rdt_status)world->broken.status : RDT_OK;
    const uint64_t len_bytes = m->send_bytes < m->recv_bytes ? m->send_bytes : m->recv_bytes;

    /* Bytes move also if it ends badly: until the end they may. */
    if (m->is_sent && m->is_received && len_bytes > 0)
        memcpy(m->to, m->from, len_bytes);
    if (!m->is_doomed && fake_must_fail(world, FAKE_DELIVERY))
        status = fake_error(&err, RDT_EPEER, "injected: delivery");
    if (m->send != NULL)
        fake_transfer_end(m->send, status, &err);
    if (status == RDT_OK && memcmp(&m->send_desc, &m->recv_desc, sizeof(m->send_desc)) != 0)
        status =
            fake_error(&err, RDT_EMISMATCH, "it calls operation %u, we %u; count %llu, ours %llu",
                       m->send_desc.op, m->recv_desc.op, (unsigned long long)m->send_desc.count,
                       (unsigned long long)m->recv_desc.count);
    if (m->recv != NULL) {
        m->recv->len_bytes = len_bytes;
        fake_transfer_end(m->recv, status, &err);
    }
    free(m->buffered);
    free(m);
}

static inline void
fake_world_tick(struct fake_world *world)
{
    (void)pthread_mutex_lock(&world->lock);
    for (struct fake_message **at = &world->messages; *at != NULL;) {
        struct fake_message *m = *at;
        if (!(m->is_doomed || (m->is_sent && m->is_received)) || m->ticks-- > 0) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        fake_message_end(world, m);
    }
    (void)pthread_mutex_unlock(&world->lock);
}

/* ---- Group and context ---- */

static inline void
fake_abort(rdt_group *group, const char *reason, int32_t peer_rank)
{
    struct fake_world *world = group->world;

    (void)pthread_mutex_lock(&world->lock);
    world->aborts++;
    if (world->broken.status == RDT_OK) {
        (void)fake_error(&world->broken, RDT_EPEER, "aborted: %.700s", reason);
        world->broken.peer_rank = peer_rank;
    }
    for (struct fake_message *m = world->messages; m != NULL; m = m->next) {
        if (m->is_doomed)
            continue;
        m->is_doomed = true;
        m->ticks = (unsigned)(fake_random(&world->random) % (FAKE_TICKS_MAX + 1));
    }
    (void)pthread_mutex_unlock(&world->lock);
}

void
rdt_group_abort(rdt_group *group, const char *reason)
{
    fake_abort(group, reason, RDT_RANK_UNKNOWN);
}

void
rdt_group_give_up(rdt_group *group, struct rdt_error *err)
{
    char reason[RDT_ERROR_MESSAGE_BYTES];

    if (group->world->global_first == 0)
        (void)snprintf(reason, sizeof(reason), "rank %u: %.600s", group->rank, err->message);
    else
        (void)snprintf(reason, sizeof(reason), "rank %u (global rank %d): %.600s", group->rank,
                       (int)rdt_group_global_rank(group, group->rank), err->message);
    fake_abort(group, reason, err->peer_rank);
}

rdt_status
rdt_group_error(rdt_group *group, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&group->world->lock);
    const rdt_status status = (rdt_status)group->world->broken.status;
    if (status != RDT_OK && err != NULL)
        *err = group->world->broken;
    (void)pthread_mutex_unlock(&group->world->lock);
    return status;
}

uint32_t
rdt_group_rank(const rdt_group *group)
{
    return group->rank;
}

int32_t
rdt_group_global_rank(const rdt_group *group, uint32_t rank)
{
    return rank < group->world->size ? group->world->global_first + (int32_t)rank
                                     : RDT_RANK_UNKNOWN;
}

uint32_t
rdt_group_size(const rdt_group *group)
{
    return group->world->size;
}

rdt_context *
rdt_group_context(rdt_group *group)
{
    return &group->context;
}

uint64_t
rdt_group_timeout(const rdt_group *group)
{
    return group->timeout_ns;
}

void
rdt_group_retain(rdt_group *group)
{
    (void)group; /* the fake's groups outlive their operations */
}

void
rdt_group_release(rdt_group *group)
{
    (void)group;
}

uint64_t
rdt_group_next_sequence(rdt_group *group)
{
    (void)pthread_mutex_lock(&group->world->lock);
    const uint64_t sequence = group->sequence++;
    (void)pthread_mutex_unlock(&group->world->lock);
    return sequence;
}

rdt_status
rdt_group_endpoint(rdt_group *group, uint32_t rank, rdt_endpoint **out, struct rdt_error *err)
{
    CHECK(rank < group->world->size && rank != group->rank);
    (void)pthread_mutex_lock(&group->world->lock);
    const bool fails = fake_must_fail(group->world, FAKE_ENDPOINT);
    (void)pthread_mutex_unlock(&group->world->lock);
    if (fails)
        return fake_error(err, RDT_EPEER, "injected: endpoint");
    *out = &group->endpoints[rank];
    return RDT_OK;
}

rdt_status
rdt_group_attach(rdt_group *group, void *state, void (*detach)(void *state), struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&group->world->lock);
    if (group->attached != NULL) {
        status = fake_error(err, RDT_EBUSY, "attached twice");
    } else {
        group->attached = state;
        group->detach = detach;
    }
    (void)pthread_mutex_unlock(&group->world->lock);
    return status;
}

void *
rdt_group_attached(const rdt_group *group)
{
    (void)pthread_mutex_lock(&group->world->lock);
    void *state = group->attached;
    (void)pthread_mutex_unlock(&group->world->lock);
    return state;
}

/* ---- Memory that ranks share ---- */

/* Puts `to` where `from` was found. */
static inline void
fake_region_list(struct fake_world *world, rdt_region *from, rdt_region *to)
{
    unsigned i = 0;

    (void)pthread_mutex_lock(&world->lock);
    while (i < FAKE_REGIONS_MAX && world->regions[i] != from)
        i++;
    CHECK(i < FAKE_REGIONS_MAX);
    world->regions[i] = to;
    (void)pthread_mutex_unlock(&world->lock);
}

rdt_region *
rdt_region_find(rdt_context *ctx, const void *addr, uint64_t len_bytes)
{
    rdt_region *found = NULL;

    (void)pthread_mutex_lock(&ctx->world->lock);
    for (unsigned i = 0; i < FAKE_REGIONS_MAX; i++) {
        rdt_region *region = ctx->world->regions[i];
        const uintptr_t at = (uintptr_t)addr;
        if (region != NULL && region->context == ctx && at >= (uintptr_t)region->bytes &&
            at + len_bytes <= (uintptr_t)region->bytes + region->len_bytes)
            found = region;
    }
    (void)pthread_mutex_unlock(&ctx->world->lock);
    return found;
}

uint32_t
rdt_group_stands(rdt_group *group, uint32_t src, const void *dst, uint64_t len_bytes)
{
    CHECK(src < group->world->size && src != group->rank);
    if (!group->world->has_streams || len_bytes <= RDTI_TEMPS_MIN_BYTES)
        return RDT_STANDS_NOT;
    return rdt_region_find(&group->context, dst, len_bytes) != NULL ? RDT_STANDS_HERE
                                                                    : RDT_STANDS_ELSEWHERE;
}

/* Most of a board is never touched. Pages of the kernel's are zeros that cost nothing, where all
 * that is written costs ThreadSanitizer five times as much; AddressSanitizer finds what goes beyond
 * the end of its own allocations only. */
static inline rdt_region *
fake_region_memory(uint64_t len_bytes)
{
    const size_t all_bytes = (sizeof(rdt_region) + len_bytes + 63) / 64 * 64;
#ifdef __SANITIZE_ADDRESS__
    rdt_region *region = aligned_alloc(64, all_bytes);
    CHECK_NOT_NULL(region);
    memset(region, 0, all_bytes);
#else
    rdt_region *region =
        mmap(NULL, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(region != MAP_FAILED);
#endif
    region->len_bytes = len_bytes;
    return region;
}

static inline void
fake_region_give_back(rdt_region *region)
{
#ifdef __SANITIZE_ADDRESS__
    free(region);
#else
    CHECK_INT_EQ(munmap(region, (sizeof(*region) + region->len_bytes + 63) / 64 * 64), 0);
#endif
}

rdt_status
rdt_region_alloc(rdt_context *ctx, uint64_t len_bytes, uint32_t flags, rdt_region **out,
                 struct rdt_error *err)
{
    rdt_region *region = fake_region_memory(len_bytes);

    CHECK(flags == RDT_REGION_ZERO || flags == 0);
    (void)pthread_mutex_lock(&ctx->world->lock);
    const bool fails = fake_must_fail(ctx->world, FAKE_ALLOC);
    ctx->world->live_regions += fails ? 0 : 1;
    const uint32_t generation = ++ctx->world->generations;
    (void)pthread_mutex_unlock(&ctx->world->lock);
    if (fails) {
        fake_region_give_back(region);
        return fake_error(err, RDT_ENOMEM, "injected: alloc");
    }
    *region = (rdt_region){.generation = generation,
                           .world = ctx->world,
                           .context = ctx,
                           .len_bytes = len_bytes};
    if (flags == 0)
        memset(region->bytes, 0xa5, len_bytes);
    fake_region_list(ctx->world, NULL, region);
    *out = region;
    return RDT_OK;
}

void *
rdt_region_addr(const rdt_region *region)
{
    return (void *)(uintptr_t)region->bytes;
}

rdt_status
rdt_region_export(rdt_region *region, struct rdt_remote_region *out, struct rdt_error *err)
{
    (void)err;
    *out = (struct rdt_remote_region){.addr = (uintptr_t)region,
                                      .len_bytes = region->len_bytes,
                                      .generation = region->generation};
    return RDT_OK;
}

void
rdt_remote_region_encode(const struct rdt_remote_region *remote,
                         uint8_t out[RDT_REMOTE_REGION_BYTES])
{
    memcpy(out, remote, sizeof(*remote));
}

rdt_status
rdt_remote_region_decode(const uint8_t *buf, size_t len_bytes, struct rdt_remote_region *out,
                         struct rdt_error *err)
{
    if (len_bytes != RDT_REMOTE_REGION_BYTES)
        return fake_error(err, RDT_EPROTO, "not a region");
    memcpy(out, buf, sizeof(*out));
    return RDT_OK;
}

/* With the world locked. */
static inline void
fake_region_drop(rdt_region *region)
{
    if (!region->is_freed || region->holds > 0)
        return;
    region->world->live_regions--;
    fake_region_give_back(region);
}

void
rdt_region_free(rdt_region *region, void (*drained)(void *arg), void *arg)
{
    if (region == NULL)
        return;
    CHECK(drained == NULL && arg == NULL);
    struct fake_world *world = region->world;
    fake_region_list(world, region, NULL);
    (void)pthread_mutex_lock(&world->lock);
    region->is_freed = true;
    fake_region_drop(region);
    (void)pthread_mutex_unlock(&world->lock);
}

/* With the world locked. */
static inline bool
fake_is_listed(const struct fake_world *world, const rdt_region *region)
{
    for (unsigned i = 0; i < FAKE_REGIONS_MAX; i++)
        if (world->regions[i] == region)
            return true;
    return false;
}

rdt_status
rdt_endpoint_hold(rdt_endpoint *ep, const struct rdt_remote_region *remote, void **out,
                  struct rdt_error *err)
{
    rdt_region *region = (rdt_region *)(uintptr_t)remote->addr;
    struct fake_world *world = ep->world;
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&world->lock);
    if (fake_must_fail(world, FAKE_HOLD)) {
        status = fake_error(err, RDT_EPEER, "injected: hold");
    } else if (world->is_apart || world->hosts[ep->owner] != world->hosts[ep->peer]) {
        status = fake_error(err, RDT_ENOTSUP, "on another host");
    } else if (fake_random(&world->random) % 3 == 0) {
        status = fake_error(err, RDT_EAGAIN, "on its way");
    } else if (!fake_is_listed(world, region)) {
        status = fake_error(err, RDT_ESTALE, "injected before: its owner freed it");
    } else {
        region->holds++;
        ep->holds++;
        *out = region->bytes;
    }
    (void)pthread_mutex_unlock(&world->lock);
    return status;
}

void
rdt_endpoint_unhold(rdt_endpoint *ep, const struct rdt_remote_region *remote)
{
    rdt_region *region = (rdt_region *)(uintptr_t)remote->addr;

    (void)pthread_mutex_lock(&ep->world->lock);
    CHECK(region->holds-- > 0 && ep->holds-- > 0);
    fake_region_drop(region);
    (void)pthread_mutex_unlock(&ep->world->lock);
}

uint32_t
rdt_endpoint_transport(const rdt_endpoint *ep)
{
    (void)ep;
    return RDT_TRANSPORT_SHM; /* members of the fake do not die */
}

rdt_status
rdt_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&ep->world->lock);
    const bool has_left = ep->has_left;
    (void)pthread_mutex_unlock(&ep->world->lock);
    return has_left ? fake_error(err, RDT_EPEER, "rank 1 left") : RDT_OK;
}

/* Waiters of the fake never sleep for long. */
void
rdt_endpoint_ring(rdt_endpoint *ep)
{
    CHECK_MSG(ep->holds > 0, "rung without a hold");
}

uint64_t
rdt_context_spin_ns(const rdt_context *ctx)
{
    return ctx->world->spin_ns;
}

uint64_t
rdt_context_yield_ns(const rdt_context *ctx)
{
    return ctx->world->yield_ns;
}

void
rdt_context_attend(rdt_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->attending++;
    (void)pthread_mutex_unlock(&ctx->lock);
}

void
rdt_context_unattend(rdt_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    CHECK_MSG(ctx->attending > 0, "not attended");
    ctx->attending--;
    (void)pthread_mutex_unlock(&ctx->lock);
}

/* ---- Tasks ---- */

void
rdt_context_count(rdt_context *ctx, const struct rdt_counters *more)
{
    (void)pthread_mutex_lock(&ctx->lock);
    ctx->counted.writes += more->writes;
    ctx->counted.moved_bytes += more->moved_bytes;
    ctx->counted.copied_bytes += more->copied_bytes;
    ctx->counted.control_messages += more->control_messages;
    ctx->counted.credits_alone += more->credits_alone;
    (void)pthread_mutex_unlock(&ctx->lock);
}

rdt_status
rdt_context_add_task(rdt_context *ctx, rdt_task_fn step, void *arg, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&ctx->world->lock);
    const bool fails = fake_must_fail(ctx->world, FAKE_TASK);
    (void)pthread_mutex_unlock(&ctx->world->lock);
    if (fails)
        return fake_error(err, RDT_ENOMEM, "injected: task");
    (void)pthread_mutex_lock(&ctx->lock);
    CHECK(ctx->task_count < FAKE_TASKS_MAX);
    ctx->tasks[ctx->task_count].step = step;
    ctx->tasks[ctx->task_count++].arg = arg;
    (void)pthread_mutex_unlock(&ctx->lock);
    return RDT_OK;
}

/* One pass of the engine; nothing if another thread drives. */
static inline void
fake_drive(rdt_context *ctx)
{
    if (pthread_mutex_trylock(&ctx->engine) != 0)
        return;
    fake_world_tick(ctx->world);
    (void)pthread_mutex_lock(&ctx->lock);
    for (unsigned i = 0; i < ctx->task_count;) {
        const rdt_task_fn step = ctx->tasks[i].step;
        void *arg = ctx->tasks[i].arg;
        (void)pthread_mutex_unlock(&ctx->lock);
        const rdt_status status = step(arg);
        (void)pthread_mutex_lock(&ctx->lock);
        if (status == RDT_EAGAIN)
            i++;
        else
            ctx->tasks[i] = ctx->tasks[--ctx->task_count];
    }
    (void)pthread_mutex_unlock(&ctx->lock);
    (void)pthread_mutex_unlock(&ctx->engine);
}

static inline unsigned
fake_task_count(rdt_context *ctx)
{
    (void)pthread_mutex_lock(&ctx->lock);
    const unsigned count = ctx->task_count;
    (void)pthread_mutex_unlock(&ctx->lock);
    return count;
}

/* ---- What tests call ---- */

/* Drive until the transfer is over, and free it. */
static inline rdt_status
fake_wait(rdt_group *group, rdt_transfer *t, struct rdt_error *err)
{
    const uint64_t end_ns = test_now_ns() + (uint64_t)(FAKE_WAIT_S * 1e9 * test_timeout_scale());
    rdt_status status;

    fake_drive(&group->context); /* also if it is over: its task waits to be dropped */
    while ((status = rdt_transfer_test(t, err)) == RDT_EAGAIN) {
        fake_drive(&group->context);
        if (test_now_ns() > end_ns)
            FAIL("rank %u: a collective hangs", group->rank);
        (void)sched_yield();
    }
    rdt_transfer_free(t);
    return status;
}

/* A collective from start to end. */
static inline rdt_status
fake_run_coll(rdt_group *group, const struct rdt_coll_args *args, struct rdt_error *err)
{
    rdt_transfer *t = NULL;
    const rdt_status status = rdt_coll_start(group, args, &t, err);

    return status == RDT_OK ? fake_wait(group, t, err) : status;
}

static inline void *
fake_progress_main(void *arg)
{
    rdt_context *ctx = arg;
    bool is_over = false;

    while (!is_over || fake_task_count(ctx) > 0) {
        fake_drive(ctx);
        test_sleep_ns(50000);
        (void)pthread_mutex_lock(&ctx->world->lock);
        is_over = ctx->world->is_over;
        (void)pthread_mutex_unlock(&ctx->world->lock);
    }
    return NULL;
}

/* What collectives stand on from the next world on: RDMATENSOR_ALGO. */
static inline void
fake_force(const char *algorithm)
{
    CHECK_INT_EQ(setenv("RDMATENSOR_ALGO", algorithm, 1), 0);
}

static inline void
fake_world_init(struct fake_world *world, uint32_t size, uint64_t seed)
{
    *world = (struct fake_world){.size = size, .random = seed};
    CHECK(size <= FAKE_RANKS_MAX);
    CHECK_INT_EQ(pthread_mutex_init(&world->lock, NULL), 0);
    for (uint32_t rank = 0; rank < size; rank++) {
        struct rdt_group *group = &world->groups[rank];
        group->world = world;
        group->rank = rank;
        group->timeout_ns = UINT64_C(60000000000);
        group->context.world = world;
        for (uint32_t peer = 0; peer < size; peer++)
            group->endpoints[peer] =
                (struct rdt_endpoint){.world = world, .owner = rank, .peer = peer};
        CHECK_INT_EQ(pthread_mutex_init(&group->context.engine, NULL), 0);
        CHECK_INT_EQ(pthread_mutex_init(&group->context.lock, NULL), 0);
    }
}

/* Wait until all ranks have called this as often: what one of them begins next, and what goes wrong
 * with it, then reaches nobody who is in what came before. */
static inline void
fake_world_meet(struct fake_world *world)
{
    const unsigned turn = atomic_fetch_add(&world->met, 1) / world->size;

    while (atomic_load(&world->met) < (turn + 1) * world->size)
        test_sleep_ns(10000);
}

/* Run `rank_main` with each rank's group, each in a thread with a progress thread beside it. */
static inline void
fake_world_run(struct fake_world *world, void *(*rank_main)(void *group))
{
    pthread_t threads[FAKE_RANKS_MAX];

    for (uint32_t rank = 0; rank < world->size; rank++) {
        struct rdt_group *group = &world->groups[rank];
        CHECK_INT_EQ(pthread_create(&group->context.progress, NULL, fake_progress_main,
                                    &group->context),
                     0);
        CHECK_INT_EQ(pthread_create(&threads[rank], NULL, rank_main, group), 0);
    }
    for (uint32_t rank = 0; rank < world->size; rank++)
        CHECK_INT_EQ(pthread_join(threads[rank], NULL), 0);
    (void)pthread_mutex_lock(&world->lock);
    world->is_over = true;
    (void)pthread_mutex_unlock(&world->lock);
    for (uint32_t rank = 0; rank < world->size; rank++)
        CHECK_INT_EQ(pthread_join(world->groups[rank].context.progress, NULL), 0);
}

/* All is given back: no transfer, no task, no memory; messages that nobody received go. */
static inline void
fake_world_fini(struct fake_world *world)
{
    for (uint32_t rank = 0; rank < world->size; rank++)
        if (world->groups[rank].attached != NULL)
            world->groups[rank].detach(world->groups[rank].attached);
    CHECK_UINT_EQ(world->live_regions, 0);
    for (uint32_t rank = 0; rank < world->size; rank++) {
        CHECK_UINT_EQ(world->groups[rank].context.task_count, 0);
        (void)pthread_mutex_destroy(&world->groups[rank].context.engine);
        (void)pthread_mutex_destroy(&world->groups[rank].context.lock);
    }
    while (world->messages != NULL) {
        struct fake_message *m = world->messages;
        world->messages = m->next;
        if (m->send != NULL)
            fake_transfer_end(m->send, RDT_ECANCELED, NULL);
        if (m->recv != NULL)
            fake_transfer_end(m->recv, RDT_ECANCELED, NULL);
        free(m->buffered);
        free(m);
    }
    CHECK_UINT_EQ(world->live_transfers, 0);
    (void)pthread_mutex_destroy(&world->lock);
}

#endif
