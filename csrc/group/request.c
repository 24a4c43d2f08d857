/* SPDX-License-Identifier: Apache-2.0
 * How requests end. */
#include <assert.h>
#include <stdlib.h>

#include "group/group_impl.h"
#include "message/mailbox_impl.h"
#include "message/persistent.h"

/* The table of states in group_impl.h; a test compares the two. "finished" is not among the code's
 * states. */
static const uint32_t may_become[] = {
    [RDTI_REQUEST_POSTED] =
        1u << RDTI_REQUEST_PULL | 1u << RDTI_REQUEST_STAGING | 1u << RDTI_REQUEST_GRANTED,
    [RDTI_REQUEST_LOCAL] = 0,
    [RDTI_REQUEST_QUEUED] = 1u << RDTI_REQUEST_LANE | 1u << RDTI_REQUEST_OFFERED,
    [RDTI_REQUEST_OFFERED] = 1u << RDTI_REQUEST_LANE,
    [RDTI_REQUEST_LANE] = 0,
    [RDTI_REQUEST_PULL] = 1u << RDTI_REQUEST_STAGING | 1u << RDTI_REQUEST_GRANTED,
    [RDTI_REQUEST_STAGING] = 1u << RDTI_REQUEST_GRANTED,
    [RDTI_REQUEST_GRANTED] = 1u << RDTI_REQUEST_DRAINING,
    [RDTI_REQUEST_DRAINING] = 0,
};

void
rdti_request_become(struct rdti_request *request, enum rdti_request_state state)
{
    const bool is_legal =
        request->state == state || (may_become[request->state] & 1u << state) != 0;

    assert(is_legal);
    (void)is_legal;
    request->state = state;
}

static void
unlink_request(struct rdti_request *request)
{
    rdti_offer_forget(request);
    rdti_stand_untell(request);
    rdti_match_cancel(&request->group->matcher, &request->posted);
    rdti_list_remove(&request->link);
    rdti_list_remove(&request->group_link);
    free(request->sums);
    request->sums = NULL;
}

void
rdti_request_release(struct rdti_request *request)
{
    rdt_group *group = request->group;

    unlink_request(request);
    rdti_pool_give(&group->groups->requests, request);
    rdti_group_unref(group);
}

void
rdti_request_finish(struct rdti_request *request, rdt_status status, const struct rdt_error *err)
{
    struct rdt_transfer *t = request->transfer;

    unlink_request(request);
    if (status == RDT_OK)
        t->len_bytes = request->len_bytes;
    if (!request->is_send && request->peer != RDT_SOURCE_ANY)
        t->source = (int32_t)request->peer;
    rdti_transfer_finish(t, status, status == RDT_OK ? NULL : err); /* err may lie in the request */
    rdti_request_release(request);
}

void
rdti_request_cancel(struct rdti_request *request, const struct rdt_error *err)
{
    switch (request->state) {
    case RDTI_REQUEST_LOCAL:
        request->arrival->self = NULL;
        rdti_arrival_drop(request->arrival, err);
        rdti_request_finish(request, (rdt_status)err->status, err);
        return;
    case RDTI_REQUEST_POSTED:
        if (request->told != NULL)
            rdti_stand_cancel(request, err);
        else
            rdti_request_finish(request, (rdt_status)err->status, err);
        return;
    case RDTI_REQUEST_QUEUED:
        rdti_request_finish(request, (rdt_status)err->status, err);
        return;
    case RDTI_REQUEST_OFFERED:
    case RDTI_REQUEST_LANE:
        rdti_offer_cancel(request, err);
        return;
    default:
        rdti_receive_cancel(request, err);
        return;
    }
}
