/* SPDX-License-Identifier: Apache-2.0
 * The bodies of groups, for the files of group/ only. All of it is under the engine's lock.
 */
#ifndef RDTI_GROUP_GROUP_IMPL_H
#define RDTI_GROUP_GROUP_IMPL_H

#include <stdatomic.h>

#include "group/group.h"
#include "message/mailboxes.h"
#include "message/match/scope.h"

struct rdti_mailbox;
struct rdti_request;

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
    struct rdti_list all; /* struct rdt_group, also destroyed ones with requests in flight */
    uint32_t live_count;
    struct rdti_gone gone[RDTI_GROUPS_GONE]; /* circular */
    uint32_t gone_count;
    struct rdti_abort early[RDTI_ABORTS_EARLY]; /* circular */
    uint32_t early_count;
};

enum rdti_group_state { RDTI_GROUP_LIVE, RDTI_GROUP_BROKEN, RDTI_GROUP_DESTROYED };

struct rdt_group {
    struct rdti_scope scope; /* what messages see of it */
    struct rdti_list link;   /* groups->all */
    struct rdti_groups *groups;
    char *job_id;
    _Atomic uint64_t timeout_ns;
    _Atomic uint64_t sequence; /* of the last collective; 0: there was none */
    rdt_address_fn address;
    void *address_arg;
    uint32_t opened; /* members with an endpoint */
    enum rdti_group_state state;
    struct rdt_error error;     /* how operations end, unless it is LIVE */
    _Atomic uint32_t broken_by; /* RDT_BROKEN_*; relaxed: `error` is read with the engine */
    _Atomic uintptr_t attached; /* a pointer of the user; release, acquire */
    void (*detach)(void *state);
    struct rdt_error suspect; /* the last member whose address did not come in time */
};

/* messages.c, group.c; [driver] all */

static inline rdt_group *
rdti_group_of(struct rdti_scope *scope)
{
    return RDTI_CONTAINER(scope, rdt_group, scope);
}

/* NULL: no live group has that id here. */
rdt_group *rdti_groups_find(struct rdti_groups *groups, uint64_t id);
/* NULL: no group with that id ended here lately. */
const struct rdti_gone *rdti_groups_find_gone(const struct rdti_groups *groups, uint64_t id);
/* The group broke: notifies each member that has a path, of this group or another, and was not
 * notified. Called again whenever a path becomes ready. `source`, or NULL, is the reporter. */
void rdti_group_spread_abort(rdt_group *group, const rdt_endpoint *source);
/* A path has become ready. */
void rdti_groups_on_ready(struct rdti_groups *groups);
/* Sends the reason to a member that comes for a group that is gone. */
void rdti_groups_tell_gone(const struct rdti_gone *gone, struct rdti_mailbox *mailbox);
/* As struct rdti_message_sink says, like the next three. */
rdt_status rdti_group_on_arrival(struct rdti_mailbox *m, const struct rdti_message *head,
                                 const uint8_t *payload, const struct rdti_rts *rts,
                                 struct rdt_error *err);
rdt_status rdti_group_on_interest(struct rdti_mailbox *m, uint64_t group_id, uint32_t source,
                                  struct rdt_error *err);
void rdti_group_hand_out(struct rdti_scope *scope, struct rdti_mailbox *m, uint64_t tag);
void rdti_group_free(struct rdti_scope *scope);
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
/* Sets the member's endpoint, unless it has a live one. */
void rdti_member_hold(rdt_group *group, uint32_t rank, rdt_endpoint *ep);
/* The same for a peer that says it is the member. RDT_EPROTO: it cannot be. */
rdt_status rdti_member_claim(rdt_group *group, uint32_t rank, rdt_endpoint *ep,
                             struct rdt_error *err);
/* Ends the receives that wait for `rank`. */
void rdti_group_end_receives(rdt_group *group, uint32_t rank, const struct rdt_error *err);

/* mismatch.c: RDT_EMISMATCH, with a description, if the message does not fit the receive; the
 * receive's own error if it was cancelled. `source`: group rank. */
rdt_status rdti_match_check(const struct rdti_request *receive, uint32_t source,
                            const struct rdti_message *head, struct rdt_error *err);

#endif
