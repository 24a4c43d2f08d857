/* SPDX-License-Identifier: Apache-2.0
 * Which member of a group a peer is, by its own statement, and the path to it. */
#include <string.h>

#include "base/error.h"
#include "group/group_impl.h"
#include "message/mailbox_impl.h"

void
rdti_member_hold(rdt_group *group, uint32_t rank, rdt_endpoint *ep)
{
    struct rdti_member *member = &group->scope.members[rank];

    if (member->ep == ep || (member->ep != NULL && !rdti_endpoint_is_ended(member->ep)) ||
        !rdti_endpoint_hold(ep))
        return;
    if (member->ep != NULL)
        rdt_endpoint_close(member->ep); /* the peer has come back */
    else
        group->opened++;
    member->ep = ep;
    member->has_heard = false;
    if (group->suspect.peer_rank == rdti_scope_global_rank(&group->scope, rank))
        group->suspect.status = RDT_OK;
    if (group->state != RDTI_GROUP_LIVE)
        rdti_group_spread_abort(group, NULL);
}

/* Decided by the uuid once the address of the member was asked for; before, by the rank of its
 * handshake, unless another job numbered it. */
static bool
group_member_may_be(const rdt_group *group, uint32_t rank, const rdt_endpoint *ep)
{
    const struct rdti_member *member = &group->scope.members[rank];
    const int32_t global_rank = rdti_scope_global_rank(&group->scope, rank);
    const int32_t told = rdti_endpoint_rank(ep);

    if (member->has_uuid)
        return memcmp(member->uuid, rdti_endpoint_uuid(ep), RDT_UUID_BYTES) == 0;
    return told == RDT_RANK_UNKNOWN || global_rank == RDT_RANK_UNKNOWN || told == global_rank ||
           strcmp(rdti_endpoint_job_id(ep), group->job_id) != 0;
}

rdt_status
rdti_member_claim(rdt_group *group, uint32_t rank, rdt_endpoint *ep, struct rdt_error *err)
{
    const int32_t told = rdti_endpoint_rank(ep);

    if (rank >= group->scope.size || rank == group->scope.rank)
        return rdti_error_set_rank(
            err, RDT_EPROTO, told,
            "mailbox: rank %d sent a message as member %u of group '%s', which cannot be it",
            (int)told, rank, group->scope.name);
    if (!group_member_may_be(group, rank, ep))
        return rdti_error_set_rank(
            err, RDT_EPROTO, told,
            "mailbox: rank %d sent a message as member %u of group '%s', which is another process",
            (int)told, rank, group->scope.name);
    rdti_member_hold(group, rank, ep);
    return RDT_OK;
}

rdt_status
rdti_group_on_interest(struct rdti_mailbox *m, uint64_t group_id, uint32_t source,
                       struct rdt_error *err)
{
    struct rdti_groups *groups = m->ctx->groups;
    rdt_group *group = rdti_groups_find(groups, group_id);
    const struct rdti_gone *gone = group == NULL ? rdti_groups_find_gone(groups, group_id) : NULL;

    if (group != NULL && group->state == RDTI_GROUP_LIVE)
        return rdti_member_claim(group, source, m->ep, err);
    if (group != NULL && source < group->scope.size && source != group->scope.rank)
        rdti_member_hold(group, source, m->ep); /* it gets the reason why the group broke */
    else if (gone != NULL)
        rdti_groups_tell_gone(gone, m);
    else if (group == NULL)
        m->interests[m->interest_count++ % RDTI_INTERESTS] =
            (struct rdti_interest){.group_id = group_id, .source = source};
    return RDT_OK;
}
