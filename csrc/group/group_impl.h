/* SPDX-License-Identifier: Apache-2.0
 * Groups, requests and messages that wait, shared by the files of group/ and message/ only. All of
 * it is under the engine's lock.
 */
#ifndef RDTI_GROUP_GROUP_IMPL_H
#define RDTI_GROUP_GROUP_IMPL_H

#include <stdatomic.h>

#include "group/group.h"
#include "message/buffer_pool.h"
#include "message/match.h"

struct rdti_mailbox;
struct rdti_rx_stream; /* message/persistent_impl.h */

#define RDTI_GROUP_BUCKETS 64
/* Groups that ended here, so that late messages are dropped and not kept for a later group. */
#define RDTI_GROUPS_GONE 64
/* Aborts of groups that do not exist here yet. */
#define RDTI_ABORTS_EARLY 16

struct rdti_gone {
    uint64_t group_id;
    struct rdti_abort abort; /* what broke it, for members that come late; group_id 0: nothing */
};

struct rdti_groups {
    rdt_context *ctx;
    struct rdti_list buckets[RDTI_GROUP_BUCKETS]; /* struct rdt_group by id */
    struct rdti_list all;       /* the same, and destroyed ones with requests in flight */
    struct rdti_list mailboxes; /* struct rdti_mailbox */
    uint32_t live_count;
    struct rdti_pool requests;
    struct rdti_pool arrivals;
    struct rdti_parcels parcels;
    struct rdti_gone gone[RDTI_GROUPS_GONE]; /* circular */
    uint32_t gone_count;
    struct rdti_abort early[RDTI_ABORTS_EARLY]; /* circular */
    uint32_t early_count;
};

struct rdti_member {
    rdt_endpoint *ep; /* counted, or NULL */
    bool has_uuid;
    bool has_heard; /* what broke the group */
    uint8_t uuid[RDT_UUID_BYTES];
};

enum rdti_group_state { RDTI_GROUP_LIVE, RDTI_GROUP_BROKEN, RDTI_GROUP_DESTROYED };

struct rdt_group {
    struct rdti_list bucket;
    struct rdti_list link; /* groups->all */
    struct rdti_groups *groups;
    rdt_context *ctx;
    uint64_t id;
    uint32_t rank;
    uint32_t size;
    char *name;
    char *job_id;
    int32_t *global_ranks; /* NULL: equal to group ranks */
    _Atomic uint64_t timeout_ns;
    _Atomic uint64_t sequence; /* of the last collective; 0: there was none */
    rdt_blob_fn blob;
    void *blob_arg;
    struct rdti_member *members;
    uint32_t opened; /* members with an endpoint */
    struct rdti_matcher matcher;
    struct rdti_list requests; /* every one that has not finished */
    struct rdti_list arrivals; /* every message that waits */
    uint32_t refs;             /* the handle, each request */
    enum rdti_group_state state;
    bool has_any_source;        /* a receive from any source was posted: none is persistent */
    struct rdt_error error;     /* how operations end, unless it is LIVE */
    _Atomic uint32_t broken_by; /* RDT_BROKEN_*; relaxed: `error` is read with the engine */
    _Atomic uintptr_t attached; /* a pointer of the user; release, acquire */
    void (*detach)(void *state);
    struct rdt_error cause;   /* the first member that left, or whose death another reported */
    struct rdt_error refusal; /* the first member that ended a message: its half is over */
    struct rdt_error suspect; /* the last member whose address did not come in time */
};

/*
 * A send or a receive that has not finished.
 *
 *   state     of    may others touch the buffers?          leaves by
 *   POSTED    recv  no; written, by the peer, if it was    a message matches -> PULL, STAGING or
 *                   announced with a place                 GRANTED; has landed, cancel -> finished
 *   LOCAL     send  no (to this process, waits for its     a receive matches; cancel -> finished
 *                   receive)
 *   QUEUED    send  no (waits for the path or for space    space -> LANE or OFFERED; cancel ->
 *                   in the ring)                           finished
 *   OFFERED   send  read, by the peer, until it answers    FIN, NACK -> finished; CTS: written,
 *                                                          and once all is granted -> LANE
 *   LANE      send  read, by the lane                      the lane's completion -> finished
 *   PULL      recv  written, by local reads                all read, error -> finished; the
 *                                                          kernel permits it no more -> STAGING or
 *                                                          GRANTED
 *   STAGING   recv  no (waits for the bounce buffer)       its turn -> GRANTED; cancel -> finished
 *   GRANTED   recv  written, by the peer                   FIN, NACK -> DRAINING or finished
 *   DRAINING  recv  perhaps written (quarantine)           drained -> finished
 *
 * Cancel (the group broke or was destroyed) of OFFERED, PULL, GRANTED, and of POSTED if it was
 * announced, asks the peer, or the read under way, to stop. The request finishes when nothing can
 * be touched any more.
 */
enum rdti_request_state {
    RDTI_REQUEST_POSTED,
    RDTI_REQUEST_LOCAL,
    RDTI_REQUEST_QUEUED,
    RDTI_REQUEST_OFFERED,
    RDTI_REQUEST_LANE,
    RDTI_REQUEST_PULL,
    RDTI_REQUEST_STAGING,
    RDTI_REQUEST_GRANTED,
    RDTI_REQUEST_DRAINING
};

struct rdti_arrival;

struct rdti_request {
    struct rdti_list link; /* of the mailbox, by state */
    struct rdti_list group_link;
    struct rdti_match_posted posted;
    struct rdt_transfer *transfer;
    rdt_group *group;
    struct rdti_mailbox *mailbox; /* from QUEUED, or from the match on */
    struct rdti_arrival *arrival; /* LOCAL */
    enum rdti_request_state state;
    bool is_send;
    bool has_desc;
    bool is_cancelled; /* `error` is its end */
    bool owns_region;
    bool is_bounced;
    bool is_process; /* PULL: by process_vm_readv, else by READ */
    bool is_nacked;  /* PULL: its sender has cancelled it */
    uint32_t peer;   /* group rank; RDT_SOURCE_ANY until it matched */
    uint64_t tag;
    void *buf;          /* of a send: only read */
    uint64_t len_bytes; /* of the message; of a receive before the match: its room */
    struct rdt_message_desc desc;
    struct rdti_rx_stream *told; /* POSTED: announced in this stream; NULL: it was not */
    uint64_t number;             /* announced: of the message */
    uint64_t place;              /* announced: where the sender may write, or RDTI_PLACE_NONE */
    uint32_t waits_since;        /* QUEUED until its receive is announced: the beat at its start */
    uint64_t id;                 /* the sender's number of the rendezvous */
    bool has_id;                 /* a local number: OFFERED */
    uint64_t done_bytes;
    uint64_t checked_bytes; /* of a receive: compared with their sums */
    uint32_t *sums;         /* of the whole message, or NULL; freed with the request */
    uint32_t ops;           /* given to the lane and not completed */
    rdt_status op_status;   /* of the first that failed */
    rdt_region *region;     /* GRANTED */
    struct rdti_rts rts;    /* PULL */
    struct rdt_error error; /* if is_cancelled, or op_status is not RDT_OK; else undefined */
};

/* A message that has not met a receive yet. */
struct rdti_arrival {
    struct rdti_match_arrival match;
    bool is_kept; /* until its sender answers that it writes no more (rdti_stand_keep()) */
    struct rdti_list group_link; /* group->arrivals, or mailbox->orphans */
    struct rdti_list mailbox_link;
    rdt_group *group;             /* NULL: none of that id exists here yet */
    struct rdti_mailbox *mailbox; /* NULL: from this process, or the endpoint has ended */
    struct rdti_request *self;    /* from this process */
    struct rdti_message head;
    struct rdti_parcel *parcel; /* eager payload that is not inlined */
    uint32_t *sums;             /* of what an RTS offers, or NULL */
    struct rdti_rts rts;
};

/* messages.c, group.c; [driver] all */

int32_t rdti_group_global_rank(const rdt_group *group, uint32_t rank);
/* How a group's messages name a member, as collectives do: "rank 1", or, where the job counts
 * otherwise, "rank 1 (global rank 3)". */
#define RDTI_RANK_NAME_BYTES 48
struct rdti_rank_name {
    char text[RDTI_RANK_NAME_BYTES];
};
struct rdti_rank_name rdti_group_rank_name(const rdt_group *group, uint32_t rank);
/* Ends the request: its buffers are not touched any more. It is gone afterwards, perhaps its
 * group too. */
void rdti_request_finish(struct rdti_request *request, rdt_status status,
                         const struct rdt_error *err);
/* Kept messages of a mailbox and tag are matched with receives now, or wait for them. */
void rdti_group_hand_out(rdt_group *group, struct rdti_mailbox *m, uint64_t tag);
/* The group broke: ends the request as the table of states says. */
void rdti_request_cancel(struct rdti_request *request, const struct rdt_error *err);
/* [driver] Only transitions of the table of states. */
void rdti_request_become(struct rdti_request *request, enum rdti_request_state state);
/* Frees the request without ending its transfer, which has another owner now. */
void rdti_request_release(struct rdti_request *request);
void rdti_group_unref(rdt_group *group);
/* NULL: no live group has that id here. */
rdt_group *rdti_groups_find(struct rdti_groups *groups, uint64_t id);
/* NULL: no group with that id ended here lately. */
const struct rdti_gone *rdti_groups_find_gone(const struct rdti_groups *groups, uint64_t id);
/* [driver] What to blame if the group is aborted here; the first counts. */
void rdti_group_note_cause(rdt_group *group, const struct rdt_error *err);
/* The group broke: notifies each member that has a path, of this group or another, and was not
 * notified. Called again whenever a path becomes ready. `source`, or NULL, is the reporter. */
void rdti_group_spread_abort(rdt_group *group, const rdt_endpoint *source);
/* A path has become ready. */
void rdti_groups_on_ready(struct rdti_groups *groups);
/* Sends the reason to a member that comes for a group that is gone. */
void rdti_groups_tell_gone(const struct rdti_gone *gone, struct rdti_mailbox *mailbox);
/*
 * An eager message or an RTS came through a mailbox. The payload is copied where it is kept.
 * RDT_EPROTO: no such member, RDT_ENOMEM.
 */
rdt_status rdti_groups_on_arrival(struct rdti_groups *groups, struct rdti_mailbox *mailbox,
                                  const struct rdti_message *head, const uint8_t *payload,
                                  const struct rdti_rts *rts, struct rdt_error *err);
/* Hands the messages that came too early to a group that now exists. */
void rdti_group_adopt(rdt_group *group, struct rdti_list *orphans);
/*
 * Takes the engine's lock with a group that works and the endpoint of `peer` (of all members, for
 * RDT_SOURCE_ANY) opened. An error: the lock is not held. RDT_EAGAIN: a task calls and it is not
 * open.
 */
rdt_status rdti_group_enter(rdt_group *group, uint32_t peer, struct rdt_error *err);
/* Whether a message from `src` can still come. */
rdt_status rdti_group_can_receive(rdt_group *group, uint32_t src, struct rdt_error *err);
/* The peer uses this path for the group, which keeps it as long as it lives. RDT_EPROTO: the peer
 * cannot be the member that it says it is. */
rdt_status rdti_groups_on_interest(struct rdti_groups *groups, struct rdti_mailbox *mailbox,
                                   uint64_t group_id, uint32_t source, struct rdt_error *err);
/* Sets the member's endpoint, unless it has a live one. */
void rdti_member_hold(rdt_group *group, uint32_t rank, rdt_endpoint *ep);
/* The same for a peer that says it is the member. RDT_EPROTO: it cannot be. */
rdt_status rdti_member_claim(rdt_group *group, uint32_t rank, rdt_endpoint *ep,
                             struct rdt_error *err);
/* Drops a message; the sender of an RTS gets the reason. */
void rdti_arrival_drop(struct rdti_arrival *arrival, const struct rdt_error *why);
/* Ends the receives that wait for `rank`. */
void rdti_group_end_receives(rdt_group *group, uint32_t rank, const struct rdt_error *err);

/* mismatch.c: RDT_EMISMATCH, with a description, if the message does not fit the receive; the
 * receive's own error if it was cancelled. `source`: group rank. */
rdt_status rdti_match_check(const struct rdti_request *receive, uint32_t source,
                            const struct rdti_message *head, struct rdt_error *err);

#endif
