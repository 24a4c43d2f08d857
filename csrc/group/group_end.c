/* SPDX-License-Identifier: Apache-2.0
 * How a group ends: destroyed here, aborted by a member, broken by a death; and its part of
 * describe(). */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/system/fork.h"
#include "base/json.h"
#include "base/text.h"
#include "endpoint/endpoint.h"
#include "group/group.h"
#include "group/group_impl.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"
#include "message/request_impl.h"
#include "rdmatensor_ext.h"

/* The table of states in group.h; a test compares the two. "gone" is not among the code's
 * states. */
static const uint32_t may_become[] = {
    [RDTI_GROUP_LIVE] = 1u << RDTI_GROUP_BROKEN | 1u << RDTI_GROUP_DESTROYED,
    [RDTI_GROUP_BROKEN] = 1u << RDTI_GROUP_DESTROYED,
    [RDTI_GROUP_DESTROYED] = 0,
};

static void
group_end_become(rdt_group *group, enum rdti_group_state state)
{
    const bool is_legal = (may_become[group->state] & 1u << state) != 0;

    assert(is_legal);
    (void)is_legal;
    group->state = state;
    group->scope.is_live = state == RDTI_GROUP_LIVE;
}

/* A message that had come whole before its sender died or left. */
static bool
group_end_is_left(const rdt_group *group, const struct rdti_arrival *arrival)
{
    const rdt_endpoint *ep = group->scope.members[arrival->head.source].ep;

    return arrival->self == NULL && arrival->head.kind == RDTI_MESSAGE_EAGER && ep != NULL &&
           rdti_endpoint_is_ended(ep);
}

/* [driver] No receive that was announced can take it any more, so the next one may. It goes to the
 * end of the arrivals. */
static void
group_end_store_kept(rdt_group *group, struct rdti_arrival *arrival)
{
    struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};

    arrival->is_kept = false;
    if (rdti_arrival_store(&group->scope, arrival, &why) != RDT_OK)
        rdti_arrival_drop(arrival, &why);
}

/* [driver] Ends all operations with this error. What is left of the dead can still be received
 * until the group is destroyed. */
static void
group_end_operations(rdt_group *group, const struct rdt_error *err)
{
    struct rdti_list *arrivals = &group->scope.arrivals;
    struct rdti_list seen;

    rdti_list_init(&seen);
    while (!rdti_list_is_empty(&group->scope.requests)) { /* one may end others */
        struct rdti_list *node = rdti_list_take_first(&group->scope.requests);
        rdti_list_append(&seen, node);
        rdti_request_cancel(RDTI_CONTAINER(node, struct rdti_request, scope_link), err);
    }
    rdti_list_splice(&group->scope.requests,
                     &seen); /* those that have yet to let go of their buffers */
    rdti_stand_end_group(&group->scope);
    for (struct rdti_list *node = arrivals->next, *next; node != arrivals; node = next) {
        struct rdti_arrival *arrival = RDTI_CONTAINER(node, struct rdti_arrival, scope_link);
        next = node->next;
        if (group->state == RDTI_GROUP_DESTROYED || !group_end_is_left(group, arrival))
            rdti_arrival_drop(arrival, err);
        else if (arrival->is_kept)
            group_end_store_kept(group, arrival);
    }
}

static uint32_t
group_end_broken_by_of(const rdt_group *group)
{
    return atomic_load_explicit(&group->broken_by, memory_order_relaxed);
}

/* [driver] The group was LIVE. */
static void
group_end_break(rdt_group *group, uint32_t broken_by, const struct rdt_error *err)
{
    group_end_become(group, RDTI_GROUP_BROKEN);
    group->error = *err;
    atomic_store_explicit(&group->broken_by, broken_by, memory_order_relaxed);
    group_end_operations(group, err);
}

/* ---- Notifying others -------------------------------------------------------------------- */

static void
group_end_describe_abort(const rdt_group *group, struct rdti_abort *out)
{
    *out = (struct rdti_abort){.group_id = group->scope.id, .rank = group->error.peer_rank};
    rdti_text_copy(out->reason, sizeof(out->reason), group->error.message);
}

static void
group_end_send_abort(rdt_endpoint *ep, const struct rdti_abort *abort)
{
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    rdti_endpoint_send_frame(ep, RDTI_FRAME_ABORT, payload, rdti_abort_encode(abort, payload));
}

/* A working path to the member, of this group or another; NULL: none yet. */
static rdt_endpoint *
group_end_find_path(const rdt_group *group, uint32_t rank)
{
    rdt_endpoint *ep = group->scope.members[rank].ep;
    struct rdti_list *all = &group->groups->ctx->mailboxes->all;

    if (ep != NULL)
        return rdti_endpoint_get_state(ep) == RDTI_EP_READY ? ep : NULL;
    for (struct rdti_list *node = all->next; node != all; node = node->next) {
        const struct rdti_mailbox *m = RDTI_CONTAINER(node, struct rdti_mailbox, link);
        if (m->is_ready && !m->has_ended && rdti_endpoint_get_state(m->ep) == RDTI_EP_READY &&
            rdti_endpoint_rank(m->ep) == rdti_scope_global_rank(&group->scope, rank) &&
            strcmp(rdti_endpoint_job_id(m->ep), group->job_id) == 0)
            return m->ep;
    }
    return NULL;
}

void
rdti_group_spread_abort(rdt_group *group, const rdt_endpoint *source)
{
    struct rdti_abort abort;

    group_end_describe_abort(group, &abort);
    for (uint32_t i = 0; i < group->scope.size; i++) {
        struct rdti_member *member = &group->scope.members[i];
        if (i == group->scope.rank || member->has_heard)
            continue;
        rdt_endpoint *ep = group_end_find_path(group, i);
        if (ep == NULL)
            continue;
        member->has_heard = true;
        if (ep != source)
            group_end_send_abort(ep, &abort);
    }
}

void
rdti_groups_on_ready(struct rdti_groups *groups)
{
    for (struct rdti_list *node = groups->all.next; node != &groups->all; node = node->next) {
        rdt_group *group = RDTI_CONTAINER(node, rdt_group, link);
        if (group->state == RDTI_GROUP_BROKEN)
            rdti_group_spread_abort(group, NULL);
    }
}

void
rdti_groups_tell_gone(const struct rdti_gone *gone, struct rdti_mailbox *m)
{
    /* At most as many as are remembered: a peer that keeps asking would fill the queue here. */
    if (gone->abort.group_id == 0 || m->gone_told == RDTI_GROUPS_GONE)
        return;
    m->gone_told++;
    group_end_send_abort(m->ep, &gone->abort);
}

/* Notifies members that would get the reason once their path is ready, which may never happen now.
 * For such a member the path may be ready already: without the reason it would take the goodbye for
 * the first cause. */
static void
group_end_tell_half_ready(const rdt_group *group, const struct rdti_abort *abort)
{
    for (uint32_t i = 0; i < group->scope.size; i++) {
        const struct rdti_member *member = &group->scope.members[i];
        if (member->ep != NULL && !member->has_heard && rdti_endpoint_is_half_ready(member->ep))
            group_end_send_abort(member->ep, abort);
    }
}

/* ---- Ends -------------------------------------------------------------------------------- */

void
rdt_group_destroy(rdt_group *group)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (group == NULL || rdti_in_forked_child())
        return;
    rdt_context *ctx = group->scope.ctx;
    struct rdti_groups *groups = ctx->groups;
    void (*const group_detach)(void *state) = group->detach; /* outlive the group */
    void *const attached = rdt_group_attached(group);
    (void)rdti_error_set(&err, RDT_ECANCELED, 0, "the group '%s' was destroyed", group->scope.name);
    rdti_engine_enter(ctx->engine);
    const bool was_broken = group->state == RDTI_GROUP_BROKEN;
    group_end_become(group, RDTI_GROUP_DESTROYED);
    rdti_scope_remove(&group->scope);
    groups->live_count--;
    struct rdti_gone *gone = &groups->gone[groups->gone_count++ % RDTI_GROUPS_GONE];
    *gone = (struct rdti_gone){.group_id = group->scope.id};
    if (was_broken) {
        group_end_describe_abort(group, &gone->abort);
        group_end_tell_half_ready(group, &gone->abort);
    } else {
        group->error = err;
        atomic_store_explicit(&group->broken_by, RDT_BROKEN_BY_ABORT, memory_order_relaxed);
    }
    group_end_operations(group, &err);
    for (uint32_t i = 0; i < group->scope.size; i++) {
        rdt_endpoint_close(group->scope.members[i].ep);
        group->scope.members[i].ep = NULL;
    }
    rdti_scope_unref(&group->scope);
    rdti_engine_leave(ctx->engine);
    if (attached != NULL)
        group_detach(attached);
    rdti_endpoints_await_goodbyes(ctx);
}

static uint32_t
group_end_find_member(const rdt_group *group, const uint8_t uuid[RDT_UUID_BYTES])
{
    for (uint32_t i = 0; i < group->scope.size; i++) {
        const struct rdti_member *member = &group->scope.members[i];
        if ((member->has_uuid && memcmp(member->uuid, uuid, RDT_UUID_BYTES) == 0) ||
            (member->ep != NULL &&
             memcmp(rdti_endpoint_uuid(member->ep), uuid, RDT_UUID_BYTES) == 0))
            return i;
    }
    return group->scope.size;
}

/* "rank 1 (global rank 2) died: ..." */
static void
group_end_obituary_error(const rdt_group *group, uint32_t rank, const struct rdti_obituary *news,
                         struct rdt_error *err)
{
    const int32_t global_rank = rdti_scope_global_rank(&group->scope, rank);
    const char *reason = news->reason;
    char prefix[48];

    (void)snprintf(prefix, sizeof(prefix), "rank %d died: ", (int)global_rank);
    if (strncmp(reason, prefix, strlen(prefix)) == 0)
        reason += strlen(prefix);
    (void)rdti_error_set_rank(err, RDT_EPEER, global_rank, "%s died: %s",
                              rdti_scope_rank_name(&group->scope, rank).text, reason);
}

/* [driver] A member left by itself: operations that need it end, the rest of the group goes on. */
static void
group_end_on_member_left(rdt_group *group, uint32_t rank, const struct rdt_error *err)
{
    bool is_anybody_left = false;

    rdti_scope_note_cause(&group->scope, err);
    rdti_group_end_receives(group, rank, err);
    for (uint32_t i = 0; i < group->scope.size; i++)
        is_anybody_left |= i != group->scope.rank && i != rank &&
                           (group->scope.members[i].ep == NULL ||
                            !rdti_endpoint_is_ended(group->scope.members[i].ep));
    if (!is_anybody_left)
        rdti_group_end_receives(group, RDT_SOURCE_ANY, err);
}

uint64_t
rdti_groups_rank_count(const struct rdti_groups *groups)
{
    uint64_t count = 0;

    for (const struct rdti_list *node = groups->all.next; node != &groups->all; node = node->next)
        count += RDTI_CONTAINER(node, const rdt_group, link)->scope.size;
    return count;
}

void
rdti_groups_on_death(struct rdti_groups *groups, const struct rdti_obituary *news)
{
    for (struct rdti_list *node = groups->all.next, *next; node != &groups->all; node = next) {
        rdt_group *group = RDTI_CONTAINER(node, rdt_group, link);
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        next = node->next;
        const bool is_destroyed = group->state == RDTI_GROUP_DESTROYED;
        const uint32_t rank =
            is_destroyed ? group->scope.size : group_end_find_member(group, news->uuid);
        if (rank == group->scope.size)
            continue;
        group_end_obituary_error(group, rank, news, &err);
        group->scope.refs++; /* its requests end */
        if (group->state == RDTI_GROUP_LIVE) {
            group_end_break(group, RDT_BROKEN_BY_LOSS, &err);
            /* members that do not know the process by its uuid yet */
            rdti_group_spread_abort(group, NULL);
        } else if (group_end_broken_by_of(group) == RDT_BROKEN_BY_MEMBER &&
                   group->error.peer_rank == err.peer_rank) {
            /* that member had received the news before */
            atomic_store_explicit(&group->broken_by, RDT_BROKEN_BY_LOSS, memory_order_relaxed);
        }
        next = node->next;
        rdti_scope_unref(&group->scope);
    }
}

void
rdti_groups_on_left(struct rdti_groups *groups, rdt_endpoint *ep, const struct rdt_error *err)
{
    for (struct rdti_list *node = groups->all.next; node != &groups->all; node = node->next) {
        rdt_group *group = RDTI_CONTAINER(node, rdt_group, link);
        for (uint32_t i = 0; group->state != RDTI_GROUP_DESTROYED && i < group->scope.size; i++)
            if (group->scope.members[i].ep == ep)
                group_end_on_member_left(group, i, err);
    }
}

void
rdti_groups_on_abort(struct rdti_groups *groups, const struct rdti_abort *abort,
                     rdt_endpoint *source)
{
    rdt_group *group = rdti_groups_find(groups, abort->group_id);
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (group == NULL) {
        if (rdti_groups_find_gone(groups, abort->group_id) == NULL)
            groups->early[groups->early_count++ % RDTI_ABORTS_EARLY] = *abort;
        return;
    }
    (void)rdti_error_set_rank(&err, RDT_EPEER, abort->rank, "%s", abort->reason);
    if (group->state == RDTI_GROUP_LIVE)
        group_end_break(group, RDT_BROKEN_BY_MEMBER, &err);
    rdti_group_spread_abort(group, source);
}

/* [driver] Finds a member whose path has just broken, or which has just left: the groups have yet
 * to receive its end. */
static bool
group_end_find_lost_member(const rdt_group *group, struct rdt_error *err)
{
    for (uint32_t i = 0; i < group->scope.size; i++) {
        struct rdt_error why = {.peer_rank = RDT_RANK_UNKNOWN};
        if (group->scope.members[i].ep == NULL ||
            rdti_endpoint_trouble(group->scope.members[i].ep, &why) == RDT_OK)
            continue;
        (void)rdti_error_set_rank(err, RDT_EPEER, rdti_scope_global_rank(&group->scope, i),
                                  "%s is lost: %s", rdti_scope_rank_name(&group->scope, i).text,
                                  why.message);
        return true;
    }
    return false;
}

/* [driver] The member that left or died first is the cause, not the one that noticed.
 * RDT_BROKEN_NOT: no cause is known. */
static uint32_t
group_end_find_cause(const rdt_group *group, struct rdt_error *err)
{
    if (group->state == RDTI_GROUP_BROKEN &&
        (group_end_broken_by_of(group) == RDT_BROKEN_BY_LOSS ||
         group_end_broken_by_of(group) == RDT_BROKEN_BY_MEMBER)) {
        *err = group->error; /* others have reported it, perhaps a moment ago */
        return group_end_broken_by_of(group);
    }
    if (group->scope.cause.status != RDT_OK)
        *err = group->scope.cause;
    if (group->scope.cause.status != RDT_OK || group_end_find_lost_member(group, err))
        return RDT_BROKEN_BY_LOSS;
    if (group->scope.refusal.status == RDT_OK)
        return RDT_BROKEN_NOT;
    *err = group->scope.refusal;
    return RDT_BROKEN_BY_MEMBER;
}

/* [driver] Ends the group unless it has ended, and notifies the others. */
static void
group_end_abort(rdt_group *group, uint32_t broken_by, const struct rdt_error *err)
{
    if (group->state == RDTI_GROUP_LIVE)
        group_end_break(group, broken_by, err);
    rdti_group_spread_abort(group, NULL);
}

void
rdt_group_abort(rdt_group *group, const char *reason)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    if (group == NULL || rdti_in_forked_child())
        return;
    const int32_t own_rank = rdti_scope_global_rank(&group->scope, group->scope.rank);
    const char *said = reason != NULL ? reason : "no reason was given";
    rdti_engine_enter(group->scope.ctx->engine);
    const bool is_suspected = group->suspect.status != RDT_OK;
    uint32_t broken_by = group_end_find_cause(group, &err);
    if (broken_by == RDT_BROKEN_NOT) {
        broken_by = is_suspected ? RDT_BROKEN_BY_DEADLINE : RDT_BROKEN_BY_ABORT;
        (void)rdti_error_set_rank(&err, RDT_ECANCELED,
                                  is_suspected ? group->suspect.peer_rank : own_rank,
                                  "%s aborted the group '%s': %s%s%s",
                                  rdti_scope_rank_name(&group->scope, group->scope.rank).text,
                                  group->scope.name, said,
                                  is_suspected ? "; it had waited in vain: " : "",
                                  is_suspected ? group->suspect.message : "");
    }
    group_end_abort(group, broken_by, &err);
    rdti_engine_leave(group->scope.ctx->engine);
}

/* ---- Deadlines --------------------------------------------------------------------------- */

/* A live process is heard at every heartbeat; one of them may be late. */
#define SILENCE_NS (2 * RDTI_HEARTBEAT_NS)

/* [driver] */
static bool
group_end_is_silent(const rdt_group *group, uint32_t rank)
{
    const rdt_endpoint *ep = group->scope.members[rank].ep;

    return ep != NULL && !rdti_endpoint_is_ended(ep) && rdti_endpoint_silence_ns(ep) >= SILENCE_NS;
}

/* [driver] A member that has sent something is not silent, even if no thread has read it yet. May
 * break the group, or show which member left. */
static void
group_end_hear_silent_members(rdt_group *group)
{
    for (uint32_t i = 0; i < group->scope.size; i++)
        if (group_end_is_silent(group, i))
            rdti_endpoint_hear(group->scope.members[i].ep);
}

/* [driver] The only member that is silent, or size. A member that waits for another, which waits
 * for a third, hears the second all the time. */
static uint32_t
group_end_find_silent_member(const rdt_group *group)
{
    uint32_t found = group->scope.size;

    for (uint32_t i = 0; i < group->scope.size; i++) {
        if (!group_end_is_silent(group, i))
            continue;
        if (found != group->scope.size)
            return group->scope.size;
        found = i;
    }
    return found;
}

/* [driver] Adds to err that it is this member's fault, and why; the text is cut to what fits. */
static void
group_end_blame(const rdt_group *group, uint32_t rank, const char *why, struct rdt_error *err)
{
    const size_t used = strnlen(err->message, sizeof(err->message) - 1);

    err->peer_rank = rdti_scope_global_rank(&group->scope, rank);
    (void)snprintf(err->message + used, sizeof(err->message) - used, "%s%s %s",
                   used > 0 ? "; " : "", rdti_scope_rank_name(&group->scope, rank).text, why);
}

/* [driver] */
static void
group_end_blame_silent_member(const rdt_group *group, struct rdt_error *err)
{
    const uint32_t rank = group_end_find_silent_member(group);
    char why[48];

    if (rank == group->scope.size || rdti_scope_global_rank(&group->scope, rank) == err->peer_rank)
        return;
    const rdt_endpoint *ep = group->scope.members[rank].ep;
    (void)snprintf(why, sizeof(why), "%s for %.1f s",
                   rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING ? "has not answered"
                                                                     : "is silent",
                   (double)rdti_endpoint_silence_ns(ep) / 1e9);
    group_end_blame(group, rank, why, err);
}

void
rdt_group_give_up(rdt_group *group, struct rdt_error *err)
{
    struct rdt_error cause = {.peer_rank = RDT_RANK_UNKNOWN};

    if (group == NULL || rdti_in_forked_child())
        return;
    const int32_t own_rank = rdti_scope_global_rank(&group->scope, group->scope.rank);
    rdti_engine_enter(group->scope.ctx->engine);
    group_end_hear_silent_members(group);
    uint32_t broken_by = group_end_find_cause(group, &cause);
    if (broken_by != RDT_BROKEN_NOT) {
        err->peer_rank = cause.peer_rank;
    } else {
        broken_by = RDT_BROKEN_BY_DEADLINE;
        group_end_blame_silent_member(group, err);
        (void)rdti_error_set_rank(&cause, RDT_ECANCELED,
                                  err->peer_rank != RDT_RANK_UNKNOWN ? err->peer_rank : own_rank,
                                  "%s aborted the group '%s': %s",
                                  rdti_scope_rank_name(&group->scope, group->scope.rank).text,
                                  group->scope.name, err->message);
    }
    group_end_abort(group, broken_by, &cause);
    rdti_engine_leave(group->scope.ctx->engine);
}

static void
group_end_blame_cause(const struct rdt_error *cause, struct rdt_error *err)
{
    const size_t used = strnlen(err->message, sizeof(err->message) - 1);

    err->peer_rank = cause->peer_rank;
    (void)snprintf(err->message + used, sizeof(err->message) - used, "%s%s", used > 0 ? "; " : "",
                   cause->message);
}

void
rdt_group_blame(rdt_group *group, struct rdt_error *err)
{
    struct rdt_error cause = {.peer_rank = RDT_RANK_UNKNOWN};

    if (group == NULL || rdti_in_forked_child())
        return;
    rdti_engine_enter(group->scope.ctx->engine);
    group_end_hear_silent_members(group);
    if (group_end_find_cause(group, &cause) != RDT_BROKEN_NOT)
        group_end_blame_cause(&cause, err);
    else
        group_end_blame_silent_member(group, err);
    rdti_engine_leave(group->scope.ctx->engine);
}

/* ---- What broke it ----------------------------------------------------------------------- */

rdt_status
rdt_group_error(rdt_group *group, struct rdt_error *err)
{
    rdt_status status = rdti_context_check(group->scope.ctx, "group_error", err);

    if (status != RDT_OK)
        return status;
    /* The thread that ends an operation by a death breaks the group before it lets go of this. */
    rdti_engine_enter(group->scope.ctx->engine);
    status = group->state != RDTI_GROUP_LIVE ? rdti_error_copy(err, &group->error) : RDT_OK;
    rdti_engine_leave(group->scope.ctx->engine);
    return status;
}

uint32_t
rdt_group_broken_by(rdt_group *group)
{
    if (rdti_context_check(group->scope.ctx, "group_broken_by", NULL) != RDT_OK)
        return RDT_BROKEN_NOT;
    return group_end_broken_by_of(group);
}

/* ---- describe() -------------------------------------------------------------------------- */

void
rdti_groups_describe(const struct rdti_groups *groups, struct rdti_json *json)
{
    bool is_first = true;

    rdti_json_put(json, "[");
    for (const struct rdti_list *node = groups->all.next; node != &groups->all; node = node->next) {
        const rdt_group *group = RDTI_CONTAINER(node, rdt_group, link);
        if (group->state == RDTI_GROUP_DESTROYED)
            continue;
        rdti_json_put(json, "%s{\"name\":", is_first ? "" : ",");
        is_first = false;
        rdti_json_put_string(json, group->scope.name);
        rdti_json_put(json, ",\"rank\":%u,\"size\":%u,\"opened\":%u,\"collectives\":%" PRIu64,
                      group->scope.rank, group->scope.size, group->opened,
                      atomic_load_explicit(&group->sequence, memory_order_relaxed));
        rdti_json_put(json, ",\"error\":");
        if (group->state == RDTI_GROUP_LIVE)
            rdti_json_put(json, "null");
        else
            rdti_json_put_string(json, group->error.message);
        rdti_json_put(json, "}");
    }
    rdti_json_put(json, "]");
}
