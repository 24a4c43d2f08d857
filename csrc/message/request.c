/* SPDX-License-Identifier: Apache-2.0
 * How requests begin and end. */
#include "message/request_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* The table of states in request_impl.h; a test compares the two. "finished" is not among the
 * code's states. */
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

struct rdti_request *
rdti_request_new(struct rdti_scope *scope, struct rdt_transfer *t, uint32_t peer, uint64_t tag,
                 void *buf, uint64_t len_bytes, const struct rdt_message_desc *desc)
{
    struct rdti_request *request = rdti_pool_take(&scope->mailboxes->requests);

    if (request == NULL)
        return NULL;
    memset(request, 0,
           offsetof(struct rdti_request, rts)); /* the rest is written before it is read */
    rdti_list_init(&request->link);
    request->transfer = t;
    request->scope = scope;
    request->peer = peer;
    request->tag = tag;
    request->buf = buf;
    request->len_bytes = len_bytes;
    if (desc != NULL && desc->op != 0) {
        request->has_desc = true;
        request->desc = *desc;
    }
    rdti_list_append(&scope->requests, &request->scope_link);
    scope->refs++;
    t->owner = request;
    return request;
}

static void
request_unlink(struct rdti_request *request)
{
    if (request->forget != NULL)
        request->forget(request);
    rdti_match_cancel(&request->scope->matcher, &request->posted);
    rdti_list_remove(&request->link);
    rdti_list_remove(&request->scope_link);
    free(request->sums);
    request->sums = NULL;
}

void
rdti_request_release(struct rdti_request *request)
{
    struct rdti_scope *scope = request->scope;

    request_unlink(request);
    rdti_pool_give(&scope->mailboxes->requests, request);
    rdti_scope_unref(scope);
}

void
rdti_request_finish(struct rdti_request *request, rdt_status status, const struct rdt_error *err)
{
    struct rdt_transfer *t = request->transfer;

    request_unlink(request);
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
    if (request->cancel != NULL)
        request->cancel(request, err);
    else
        rdti_request_finish(request, (rdt_status)err->status, err);
}
