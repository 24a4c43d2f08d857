/* SPDX-License-Identifier: Apache-2.0
 * The shared state of a process's context, which endpoints and all layers above them use. */
#ifndef RDTI_PROCESS_PROCESS_H
#define RDTI_PROCESS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "memory/arena.h"
#include "memory/region.h"
#include "process/refusal_log.h"
#include "progress/engine.h"
#include "progress/transfer.h"
#include "rdmatensor.h"
#include "transport/transport.h"
#include "wire/endpoint/frame.h"
#include "wire/handshake.h"

/* Period of the check of set-up deadlines, and of the progress thread's heartbeats. */
#define RDTI_TICK_NS UINT64_C(50000000)
#define RDTI_HEARTBEAT_NS UINT64_C(1000000000)

/* A block of SHA-256: HMAC hashes a longer key to half of that. */
#define RDTI_SECRET_MAX_BYTES 64

struct rdti_listener;
struct rdti_groups;
struct rdti_mailboxes;
struct rdti_upcalls; /* endpoint/protocol.h */

/* The core increments them; relaxed, read by rdt_context_counters(). `moved` has the counters of
 * the transports. */
struct rdti_core_counters {
    _Atomic uint64_t writes;
    _Atomic uint64_t reads;
    _Atomic uint64_t copied_bytes[RDTI_TRAFFIC_COUNT];
    _Atomic uint64_t control_messages[RDTI_TRAFFIC_COUNT];
    _Atomic uint64_t credits_alone;
    _Atomic uint64_t mailbox_eager;
    _Atomic uint64_t mailbox_rendezvous;
    _Atomic uint64_t verified_bytes;
    _Atomic uint64_t mismatches;
    _Atomic uint64_t failovers;
    _Atomic uint64_t mailbox_placed;
    _Atomic uint64_t reconnections;
    _Atomic uint64_t side_channel_bytes;
};

struct rdti_job {
    struct rdti_list link;
    char job_id[RDTI_JOB_ID_BYTES];
    uint8_t secret[RDTI_SECRET_MAX_BYTES];
    uint32_t secret_bytes;
    uint32_t epoch;
    int32_t rank;
};

/* A transport, and whether the context can use it. */
struct rdti_found {
    const struct rdti_transport *transport;
    void *state;
    bool is_viable;
    char reason[RDT_ERROR_MESSAGE_BYTES]; /* why it is not viable */
};

/* A process that is known to be dead or gone. Recorded so that every error names the process that
 * died first. */
struct rdti_obituary {
    struct rdti_list link;
    uint8_t uuid[RDT_UUID_BYTES];
    int32_t rank;
    char reason[RDTI_REASON_BYTES];
};

/* A permanent error of connecting with a peer. Recorded so that a later attempt of this process to
 * connect reports it. */
struct rdti_rejection {
    struct rdti_list link;
    uint8_t uuid[RDT_UUID_BYTES];
    struct rdt_error error;
};

struct rdt_context {
    struct rdt_context_opts opts; /* with defaults filled in; strings are the copies below */
    char *ifname;
    char *addr;
    uint8_t uuid[RDT_UUID_BYTES];
    const struct rdti_upcalls *upcalls;
    struct rdti_engine *engine;
    struct rdti_arena *arena;
    struct rdti_regions *regions;
    struct rdti_transfer_pool *pool;
    struct rdti_listener *listener;
    struct rdti_host host; /* the transports' view of the context */
    struct rdti_counters_ref moved;
    struct rdti_core_counters counters;
    struct rdti_found found[RDTI_TRANSPORT_COUNT];

    /* Under the engine's lock: */
    struct rdti_list jobs;       /* struct rdti_job */
    struct rdti_list endpoints;  /* every endpoint that is not freed, by its link */
    struct rdti_list retired;    /* side channels that wait until the peer closes */
    struct rdti_list obituaries; /* in the order of death */
    struct rdti_list rejections; /* of peers, the oldest first */
    uint32_t rejection_count;
    uint8_t (*met)[RDT_UUID_BYTES]; /* processes that a path has reached; it grows */
    uint32_t met_count;
    uint32_t met_cap;
    uint64_t hearsay_count;     /* obituaries of processes that no path has reached */
    bool has_warned_of_hearsay; /* that no more of those are recorded */
    struct rdti_refusals refusals;
    struct rdti_mailboxes *mailboxes;
    struct rdti_groups *groups;
    _Atomic uint32_t has_fd_user; /* rdt_context_fd() was called */
    bool has_core_work;           /* rdti_endpoints_poll() has something to check */
    uint64_t last_tick_ns;
    uint64_t last_beat_ns;
    uint64_t resumed_ns; /* time at which this process ran again after a stop or starvation */
    bool is_closing;     /* no connection is admitted any more */
};

/* RDT_EFORKED in a forked child, RDT_EINVAL for NULL; `call` is for the message. */
rdt_status rdti_context_check(const rdt_context *ctx, const char *call, struct rdt_error *err);

static inline bool
rdti_context_verifies(const rdt_context *ctx)
{
    return ctx->opts.verify != RDT_VERIFY_OFF;
}

/* [driver] The job, or NULL. */
struct rdti_job *rdti_context_find_job(rdt_context *ctx, const char *job_id);

#endif
