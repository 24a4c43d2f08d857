/* SPDX-License-Identifier: Apache-2.0
 * The tables by which endpoints and messages call groups. */
#include "group/group.h"
#include "group/group_impl.h"

static void
membership_on_death(rdt_context *ctx, const struct rdti_obituary *news)
{
    rdti_groups_on_death(ctx->groups, news);
}

static void
membership_on_left(rdt_context *ctx, rdt_endpoint *ep, const struct rdt_error *err)
{
    rdti_groups_on_left(ctx->groups, ep, err);
}

static void
membership_on_abort(rdt_context *ctx, const struct rdti_abort *abort, rdt_endpoint *source)
{
    rdti_groups_on_abort(ctx->groups, abort, source);
}

static uint64_t
membership_rank_count(const rdt_context *ctx)
{
    return rdti_groups_rank_count(ctx->groups);
}

const struct rdti_membership rdti_group_membership = {
    .on_death = membership_on_death,
    .on_left = membership_on_left,
    .on_abort = membership_on_abort,
    .rank_count = membership_rank_count,
};

static void
membership_on_ready(rdt_context *ctx)
{
    rdti_groups_on_ready(ctx->groups);
}

const struct rdti_message_sink rdti_group_sink = {
    .on_arrival = rdti_group_on_arrival,
    .on_interest = rdti_group_on_interest,
    .on_ready = membership_on_ready,
    .hand_out = rdti_group_hand_out,
    .on_unused = rdti_group_free,
};
