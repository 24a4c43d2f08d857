/* SPDX-License-Identifier: Apache-2.0
 * What the ranks of a fake world share, and which of its calls fail. For fake_group.h. */
#ifndef RDT_TESTS_COLLECTIVES_FAKE_WORLD_H
#define RDT_TESTS_COLLECTIVES_FAKE_WORLD_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "rdmatensor_ext.h"

enum {
    FAKE_RANKS_MAX = 8,
    FAKE_TICKS_MAX = 4, /* a message ends after so many looks at the world, at most */
    FAKE_TASKS_MAX = 64,
    FAKE_REGIONS_MAX = 1024, /* of all ranks at once: what each keeps, for eight of them */
    FAKE_WAIT_S = 20,        /* no test waits longer for one collective */
    FAKE_POSTED_MAX = 63,    /* messages of a rank whose order is kept */
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

/* A byte of every message of one rank under one tag arrives with other bits; no bits: no lie. */
struct fake_lie {
    uint32_t src;
    uint64_t tag;
    uint64_t off_bytes;
    uint8_t bits;
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
    uint64_t shortest_bytes;                             /* of all messages with bytes; 0: none */
    char posted[FAKE_RANKS_MAX][FAKE_POSTED_MAX + 1]; /* by rank: s for a send, r for a receive */
    unsigned live_transfers;
    unsigned live_regions;
    rdt_region *regions[FAKE_REGIONS_MAX]; /* not freed */
    uint64_t spin_ns;
    uint64_t yield_ns;
    atomic_ullong rings;            /* of doorbells, by all ranks */
    atomic_uint met;                /* fake_world_meet(): how often all ranks together */
    bool is_apart;                  /* the members share no memory */
    bool has_streams;               /* receives of what is large stand in regions */
    uint32_t hosts[FAKE_RANKS_MAX]; /* else those with the same number do */
    unsigned aborts;
    unsigned calls[FAKE_CALLS];
    unsigned fail_at[FAKE_CALLS];
    bool has_failed; /* an injected failure happened */
    struct fake_lie lie;
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

#endif
