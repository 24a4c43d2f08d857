/* SPDX-License-Identifier: Apache-2.0
 * Memory of a peer on this host that is used like local memory: it is held, and the peer is woken
 * after a store.
 */
#include <string.h>

#include "base/error.h"
#include "base/system/fork.h"
#include "endpoint/endpoint.h"
#include "endpoint/endpoint_impl.h"
#include "process/process.h"
#include "rdmatensor_ext.h"

/* [driver] */
static rdt_status
map_hold(rdt_endpoint *ep, const struct rdt_remote_region *remote, void **out,
         struct rdt_error *err)
{
    const struct rdti_revoke held = {.index = remote->index, .generation = remote->generation};
    void *addr = NULL;

    rdt_status status = rdti_endpoint_error(ep, err);
    if (status != RDT_OK)
        return status;
    if (rdti_endpoint_get_state(ep) != RDTI_EP_READY)
        return rdti_error_set(err, RDT_EAGAIN, 0, "hold: the path to rank %d is not ready",
                              (int)rdti_endpoint_rank(ep));
    if (ep->lane->transport->map == NULL)
        return rdti_error_set(err, RDT_ENOTSUP, 0,
                              "hold: the path to rank %d is %s, which shares no memory",
                              (int)rdti_endpoint_rank(ep), ep->lane->transport->name);
    status = ep->lane->transport->map(ep->lane, remote, &addr, err);
    if (status != RDT_OK)
        return status;
    /* The generation was live under this lock; its end is answered under the same lock. */
    if (rdti_endpoint_push_revoke(&ep->holds, &ep->hold_count, &ep->hold_cap, &held) != RDT_OK)
        return rdti_error_set(err, RDT_ENOMEM, 0, "hold: no memory for hold %u", ep->hold_count);
    ep->refs++;
    *out = addr;
    return RDT_OK;
}

rdt_status
rdt_endpoint_hold(rdt_endpoint *ep, const struct rdt_remote_region *remote, void **out,
                  struct rdt_error *err)
{
    if (ep == NULL || remote == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "hold: %s is NULL",
                              ep == NULL ? "the endpoint"
                                         : (remote == NULL ? "the remote region" : "out"));
    rdt_status status = rdti_context_check(ep->ctx, "hold", err);
    if (status != RDT_OK)
        return status;
    if (memcmp(remote->owner, ep->uuid, RDT_UUID_BYTES) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "hold: the remote region belongs to another process than rank %d",
                              (int)rdti_endpoint_rank(ep));
    rdti_engine_enter(ep->ctx->engine);
    status = map_hold(ep, remote, out, err);
    rdti_engine_leave(ep->ctx->engine);
    return status;
}

void
rdt_endpoint_unhold(rdt_endpoint *ep, const struct rdt_remote_region *remote)
{
    if (ep == NULL || remote == NULL || rdti_in_forked_child())
        return;
    rdt_context *ctx = ep->ctx; /* outlives the endpoint */
    rdti_engine_enter(ctx->engine);
    for (uint32_t i = 0; i < ep->hold_count; i++) {
        if (ep->holds[i].index != remote->index || ep->holds[i].generation != remote->generation)
            continue;
        ep->holds[i] = ep->holds[--ep->hold_count];
        if (ep->answer_count > 0 || ep->is_buried) {
            ctx->has_core_work = true;
            rdti_engine_poke(ctx->engine); /* the owner waits for the answer */
        }
        if (--ep->refs == 0)
            rdti_endpoint_begin_close(ep);
        break;
    }
    rdti_engine_leave(ctx->engine);
}

void
rdt_endpoint_ring(rdt_endpoint *ep)
{
    /* The lane stays as long as the caller's hold. */
    if (!rdti_in_forked_child())
        ep->lane->transport->ring(ep->lane);
}
