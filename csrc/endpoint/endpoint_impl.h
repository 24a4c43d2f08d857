/* SPDX-License-Identifier: Apache-2.0
 * The endpoint's body, visible to the files of this folder, and to those that read all endpoints:
 * api/context.c, api/describe.c. */
#ifndef RDTI_ENDPOINT_ENDPOINT_IMPL_H
#define RDTI_ENDPOINT_ENDPOINT_IMPL_H

#include <stdatomic.h>

#include "connect/channel.h"
#include "connect/handshake.h"
#include "endpoint/endpoint.h"
#include "endpoint/protocol.h"
#include "wire/address.h"
#include "wire/endpoint/frame.h"

/* In the inbox: a notification whose bytes were freed before they could be compared. */
#define RDTI_INBOX_STALE UINT32_C(0xffffffff)

#define RDTI_SETUP_CONTACTS_MAX (1 + RDTI_ADDRESS_IPS_MAX)

/* What an endpoint needs only until it is READY. */
struct rdti_setup {
    struct rdti_contact contacts[RDTI_SETUP_CONTACTS_MAX];
    uint32_t contact_count;
    uint32_t next_contact;
    struct rdti_handshake *handshake; /* own, under way; NULL while none or once authenticated */
    uint64_t begun_ns;
    uint64_t deadline_ns;
    uint64_t retry_ns;               /* try all places again at this time; 0: no */
    struct rdti_hello hello;         /* own, as connector */
    char reasons[RDTI_REASON_BYTES]; /* why better paths failed, for describe() */
    struct rdt_error last_error;
    struct rdti_authenticated authenticated; /* fd is the channel's */
    struct rdti_path own_path;
    struct rdti_path peer_path;
    uint64_t path_deadline_ns; /* of the path that is being proved */
    bool is_prepared;          /* hello and places are filled in: it was opened here */
    bool is_passive;           /* the channel was opened by the peer */
    bool has_refused_crossing; /* the peer got RDT_EBUSY: it waits for a connection from here */
    bool was_answered;         /* a place of this round neither refused nor ruled out this path */
    bool was_silent;           /* a place of this round gave no answer */
    bool has_lost_verbs;       /* a path over verbs was begun and given up */
    bool has_path_in;
    bool is_lane_ready;
    bool said_ready;
    bool heard_ready;
};

/* Freed regions for whose answer there was no memory. The first ends the endpoint, so that only
 * regions freed until its peer has gone can follow. */
#define RDTI_FORGONE_MAX 16

/* The move to another lane, while it is under way (failover.c). */
struct rdti_failover {
    struct rdti_lane *lane; /* tcp; NULL until the local half is made */
    struct rdti_offer peer_offer;
    struct rdt_error why;
    uint64_t begun_ns;
    uint64_t deadline_ns;
    uint64_t patience_ns;
    uint64_t peer_delivered;
    bool is_fenced;
    bool has_move_in;
    bool is_lane_ready;
};

struct rdt_endpoint {
    struct rdti_list link; /* ctx->endpoints */
    rdt_context *ctx;
    uint8_t uuid[RDT_UUID_BYTES];
    _Atomic int32_t rank; /* for messages; never changes once known */
    char job_id[RDTI_JOB_ID_BYTES];
    uint32_t refs; /* handles, groups and slots; 0 for one that only the peer opened */
    _Atomic uint32_t state;
    _Atomic uint32_t lane_users; /* threads inside the lane's write() or read() */
    _Atomic uint64_t posts;      /* ops that move bytes; relaxed, a statistic */
    _Atomic uint32_t map_pins;   /* mapped buffers of the peer that users have */
    struct rdti_lane *lane;
    struct rdti_channel *channel;
    struct rdti_watch *pidfd_watch;
    int pidfd;
    int32_t peer_pid;
    _Atomic uint32_t transport_id;  /* of the path in use; stored by drivers, read by any thread */
    char reason[RDTI_REASON_BYTES]; /* why this path and not a better one */
    uint8_t session_id[RDTI_SESSION_ID_BYTES];
    uint8_t session_key[RDTI_SHA256_BYTES];
    struct rdti_list pending; /* ops posted while CONNECTING, or while it moves */
    /* The lane is fenced: ops queue here until another one has replaced it. seq_cst, as `state`. */
    _Atomic bool is_moving;
    bool may_fail_over; /* both sides have tcp and allow it */
    bool has_moved;
    bool is_connector; /* this and the next two: of the side channel, for a lane that comes later */
    struct sockaddr_storage peer_addr;
    socklen_t peer_addr_bytes;
    struct rdti_failover *failover; /* NULL: none is under way */
    struct rdt_error error;         /* LEFT, FAILED */
    struct rdt_error lane_error;
    uint64_t lane_broken_ns;
    uint64_t linger_until_ns;
    uint64_t goodbye_ns; /* when the peer's came, while local ops are not acknowledged; else 0 */
    uint64_t ready_after_ns; /* how long set-up took, for describe() */
    bool is_local;           /* shares this host's cores: shm, or loopback */
    bool is_death;
    bool is_buried;
    bool is_peer_done;       /* it is done with local memory: it said so, closed or exited */
    bool is_lingering;       /* buried, but one side still uses memory of the other */
    bool is_ready_frame_due; /* the peer's data has overtaken its READY */
    bool said_goodbye;
    bool is_close_due; /* the last handle is closed; ops posted before are flushed first */
    rdt_region *ring;
    struct rdt_remote_region peer_ring;
    struct rdti_op probe; /* owned by the lane until it completes; set-up may end before */
    uint8_t probe_nonce[RDTI_PROBE_NONCE_BYTES]; /* the bytes it writes */
    struct rdti_setup *setup;
    void *attached[RDTI_PROTOCOLS]; /* NULL once it only lingers */
    uint32_t *inbox;                /* circular: user notifications */
    uint32_t inbox_cap;             /* a power of two, or 0 */
    uint32_t inbox_head;
    uint32_t inbox_count;
    _Atomic uint32_t inbox_ready; /* inbox_count for waiters */
    struct rdti_revoke *revokes;  /* sent to this peer and not acknowledged */
    uint32_t revoke_count;
    uint32_t revoke_cap;
    struct rdti_revoke forgone[RDTI_FORGONE_MAX]; /* not awaited: the end answers them */
    uint32_t forgone_count;
    struct rdti_revoke
        *answers; /* of this peer, to acknowledge once no writer is inside the lane */
    uint32_t answer_count;
    uint32_t answer_cap;
    struct rdti_revoke *holds; /* of this peer's regions: answered only once they are given up */
    uint32_t hold_count;
    uint32_t hold_cap;
    uint64_t last_export; /* exports before its last words: it uses no later one; 0: not heard */
};

/* relaxed: the rank is for messages, see rdti_endpoint_rank(). */
static inline enum rdti_endpoint_state
rdti_endpoint_state_of(const rdt_endpoint *ep)
{
    /* seq_cst: pairs with rdti_endpoint_set_state(), see rdti_endpoint_post(). */
    return (enum rdti_endpoint_state)atomic_load_explicit(&ep->state, memory_order_seq_cst);
}

static inline void
rdti_endpoint_set_rank(rdt_endpoint *ep, int32_t rank)
{
    atomic_store_explicit(&ep->rank, rank, memory_order_relaxed);
}

/* relaxed, both: the id orders nothing, it is an index into ctx->found, which is immutable. A user
 * of the lane is ordered by the state, or holds the lock. */
static inline uint32_t
rdti_endpoint_transport_id(const rdt_endpoint *ep)
{
    return atomic_load_explicit(&ep->transport_id, memory_order_relaxed);
}

static inline void
rdti_endpoint_set_transport_id(rdt_endpoint *ep, uint32_t transport)
{
    atomic_store_explicit(&ep->transport_id, transport, memory_order_relaxed);
}

/* endpoint.c: in use; close.c: the end; state.c: fail() and the like of endpoint.h */
void rdti_endpoint_set_state(rdt_endpoint *ep, enum rdti_endpoint_state state);
void rdti_endpoint_on_notify(rdt_endpoint *ep, uint32_t notification);
/* The peer's process is gone, or it uses no local memory any more. */
void rdti_endpoint_on_peer_done(rdt_endpoint *ep);
/* [driver] Memory is lacking to await the peer's answer to a revocation: the endpoint ends, which
 * is an answer as well. */
void rdti_endpoint_forgo_answer(rdt_endpoint *ep, const struct rdti_revoke *revoke);
/* [driver] Ends the endpoint if a frame to it was lost, and sends the peer the reason: want of
 * memory here, which is not a death, or the peer does not read and is given up. */
bool rdti_endpoint_end_lossy(rdt_endpoint *ep);
/* [driver] The peer has left its lane, which was its only way to memory that it cannot map. */
void rdti_endpoint_drop_unmapped(rdt_endpoint *ep);
/* [driver] The last handle is closed. */
void rdti_endpoint_begin_close(rdt_endpoint *ep);
/* CONNECTING -> LEFT, by this side. */
void rdti_endpoint_close_unready(rdt_endpoint *ep);
/* The peer said goodbye: the endpoint ends once the local ops in flight are acknowledged, or after
 * GOODBYE_GRACE_NS. */
void rdti_endpoint_on_goodbye(rdt_endpoint *ep);
/* Ends an endpoint whose peer said goodbye. */
void rdti_endpoint_end_goodbye(rdt_endpoint *ep);
/* The peer has left. */
void rdti_endpoint_leave(rdt_endpoint *ep);
/* The peer begins nothing more, and has left its lane. Where memory is shared, it may use on what
 * it has mapped here, until it closes its half of the socket; but if it leaves of its own accord,
 * it gave up all. */
void rdti_endpoint_hear_last_words(rdt_endpoint *ep, bool may_use_on);
/* Ends lane and channel, completing the lane's ops with err. */
void rdti_endpoint_release_path(rdt_endpoint *ep, const struct rdt_error *err);
/* [driver] Bounded: a thread that keeps writing would keep the lane busy for ever. */
void rdti_endpoint_advance_goodbye(rdt_endpoint *ep);
/* Says goodbye once the endpoint is idle; ends it when the peer answered or the linger is over. */
void rdti_endpoint_advance_closing(rdt_endpoint *ep);
/* Returns true while there is something to wait for that no arrival and no call announces. */
bool rdti_endpoint_advance_lingering(rdt_endpoint *ep);

/* advance.c */
/* The engine's poller of the core: ends, goodbyes, acknowledgements. state is the context. */
uint32_t rdti_endpoints_poll(void *state);
/* [driver] No handle is left and the last words have gone out; it waits for the peer to be done
 * with local memory. Also true once it has waited long for the words to go out. */
bool rdti_endpoint_is_only_lingering(const rdt_endpoint *ep);
/* Lingering endpoints end here, with the context: memory that peers use goes with the arena. The
 * progress thread has stopped. */
void rdti_endpoints_abandon(rdt_context *ctx);
bool rdti_endpoints_need_epoll(void *state);

/* state.c */
void rdti_path_end_setup(rdt_endpoint *ep);
void rdti_path_drop_pidfd(rdt_endpoint *ep);
/* Takes what the peer wrote before its goodbye, or its death. It lies in place already
 * and must not be missed because the side channel was polled first. [driver], outside of a
 * transport's poll. */
void rdti_endpoint_take_arrivals(rdt_endpoint *ep);

/* setup.c */
extern const struct rdti_handshake_events rdti_path_handshake_events;

/* setup_probe.c */
rdt_status rdti_path_on_probe(rdt_endpoint *ep, struct rdt_error *err);
void rdti_path_on_lane_ready(rdt_endpoint *ep);
/* A notification other than a probe came while CONNECTING: each side has seen the other's probe,
 * and the peer's READY is on its way on another connection. */
rdt_status rdti_path_on_early(rdt_endpoint *ep, struct rdt_error *err);
/* The lane broke while CONNECTING, or failed its proof: try the next path. */
void rdti_path_give_up(rdt_endpoint *ep, const struct rdt_error *err);
/* The frames of set-up. */
rdt_status rdti_path_on_path(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                             struct rdt_error *err);
rdt_status rdti_path_on_path_failed(rdt_endpoint *ep, const uint8_t *payload,
                                    uint32_t payload_bytes, struct rdt_error *err);
rdt_status rdti_path_on_ready_frame(rdt_endpoint *ep, struct rdt_error *err);
/* The channel ended while CONNECTING: try the next place. */
void rdti_path_channel_lost(rdt_endpoint *ep, const struct rdt_error *err);

/* failover.c: another lane takes the place of a lost one. All [driver]. */
/* READY is near: remember what a later lane needs. */
void rdti_failover_prepare(rdt_endpoint *ep);
/* The host's may_move() and on_fenced(). */
bool rdti_failover_may(const rdt_endpoint *ep);
void rdti_failover_on_fenced(rdt_endpoint *ep, uint64_t delivered, const struct rdt_error *why);
rdt_status rdti_failover_on_move(rdt_endpoint *ep, const uint8_t *payload, uint32_t payload_bytes,
                                 struct rdt_error *err);
/* The lane that is to replace the old one, or NULL. */
static inline struct rdti_lane *
rdti_failover_lane(const rdt_endpoint *ep)
{
    return ep->failover != NULL ? ep->failover->lane : NULL;
}
/* Gives queued ops to the lane. The state, or is_moving, keeps others out before. */
void rdti_path_flush_pending(rdt_endpoint *ep);
void rdti_failover_on_lane_ready(rdt_endpoint *ep);
void rdti_failover_on_lane_error(rdt_endpoint *ep, const struct rdt_error *err);
/* Advances a failover that is under way. True: a thread is inside the old lane. */
bool rdti_failover_advance(rdt_endpoint *ep);
/* The endpoint ends. */
void rdti_failover_drop(rdt_endpoint *ep, const struct rdt_error *err);

/* timers.c */
/* Deadlines, retries, heartbeats: the engine's tick; arg is the context. */
void rdti_path_tick(void *arg);

/* frames.c: the side channel's frames once it is authenticated. */
extern const struct rdti_channel_events rdti_endpoint_channel_events;
/* frames.c: append to a list of revocations that grows within bounds. */
rdt_status rdti_endpoint_push_revoke(struct rdti_revoke **list, uint32_t *count, uint32_t *cap,
                                     const struct rdti_revoke *revoke);

#endif
