/* SPDX-License-Identifier: Apache-2.0
 * Opening the sender's half of a slot: announced by name, with one description on both sides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "slot/slot_impl.h"

struct open_wait {
    rdt_endpoint *ep;
    const char *name;
    uint32_t seen;
    bool is_found;
};

static bool
slot_open_is_announced(void *arg)
{
    struct open_wait *wait = arg;
    struct rdti_slots *slots = rdti_slots_of(wait->ep);
    const uint32_t count = atomic_load_explicit(&slots->announce_count, memory_order_seq_cst);
    const enum rdti_endpoint_state state = rdti_endpoint_get_state(wait->ep);

    if (count != wait->seen) {
        wait->seen = count;
        rdti_engine_enter(rdti_endpoint_context(wait->ep)->engine);
        wait->is_found = rdti_slots_find_announced(slots, wait->name) != NULL;
        rdti_engine_leave(rdti_endpoint_context(wait->ep)->engine);
    }
    return wait->is_found || (state != RDTI_EP_CONNECTING && state != RDTI_EP_READY);
}

static void
slot_open_describe_desc(const struct rdt_tensor_desc *desc, char *buf, size_t cap)
{
    static const char *const kinds[] = {"?", "static", "bounded", "dynamic"};
    size_t used = (size_t)snprintf(buf, cap, "%s %s [",
                                   kinds[desc->kind <= RDT_SLOT_DYNAMIC ? desc->kind : 0],
                                   rdt_dtype_name(desc->dtype));

    for (uint32_t i = 0; i < desc->ndim && used < cap; i++)
        used += (size_t)snprintf(buf + used, cap - used, "%s%llu", i > 0 ? ", " : "",
                                 (unsigned long long)desc->dims[i]);
    if (used < cap)
        (void)snprintf(buf + used, cap - used, "]");
}

static bool
slot_open_is_same_desc(const struct rdt_tensor_desc *a, const struct rdt_tensor_desc *b)
{
    if (a->kind != b->kind || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    return a->kind == RDT_SLOT_DYNAMIC ||
           memcmp(a->dims, b->dims, sizeof(a->dims[0]) * a->ndim) == 0;
}

static rdt_status
slot_open_refuse(rdt_endpoint *ep, const struct rdti_slot_announce *info,
                 const struct rdt_tensor_desc *desc, struct rdt_error *err)
{
    struct rdti_slot_gone refused = {.slot_id = info->slot_id};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    char theirs[128];
    char ours[128];

    slot_open_describe_desc(&info->desc, theirs, sizeof(theirs));
    slot_open_describe_desc(desc, ours, sizeof(ours));
    (void)snprintf(refused.text, sizeof(refused.text),
                   "slot '%.64s': the receiver has %s, the sender wants %s", info->name, theirs,
                   ours);
    rdti_endpoint_send_frame(ep, RDTI_FRAME_SLOT_REFUSED, payload,
                             rdti_slot_gone_encode(&refused, payload));
    return rdti_error_set_rank(err, RDT_EMISMATCH, rdti_endpoint_rank(ep), "%s", refused.text);
}

/* [driver] */
static rdt_status
slot_open_bind_tx(rdt_endpoint *ep, const char *name, const struct rdt_tensor_desc *desc,
                  uint64_t payload_bytes, rdt_slot_tx *tx, struct rdt_error *err)
{
    struct rdti_announced *announced = rdti_slots_find_announced(rdti_slots_of(ep), name);
    const rdt_status status = rdti_endpoint_error(ep, err);

    if (status != RDT_OK)
        return status;
    if (announced == NULL)
        return rdti_error_set(err, RDT_ECLOSED, 0,
                              "slot_tx_open: the peer destroyed slot '%s' just now", name);
    if (announced->tx != NULL)
        return rdti_error_set(err, RDT_EBUSY, 0, "slot_tx_open: slot '%s' is open already", name);
    if (!slot_open_is_same_desc(&announced->info.desc, desc))
        return slot_open_refuse(ep, &announced->info, desc, err);
    tx->ep = ep;
    tx->announced = announced;
    tx->info = announced->info;
    tx->payload_bytes = payload_bytes;
    tx->header_off = rdti_slot_header_off(payload_bytes);
    const uint64_t needed = rdti_slot_buffer_bytes(desc->kind, payload_bytes);
    if (tx->info.stride_bytes < needed)
        return rdti_error_set_rank(err, RDT_EPROTO, rdti_endpoint_rank(ep),
                                   "slot '%s': buffers of %llu bytes hold no tensor of %llu", name,
                                   (unsigned long long)tx->info.stride_bytes,
                                   (unsigned long long)needed);
    atomic_store_explicit(&tx->sent, announced->sent, memory_order_relaxed);
    atomic_store_explicit(&tx->returned, announced->returned, memory_order_relaxed);
    atomic_store_explicit(&tx->users, 1, memory_order_relaxed); /* not shared yet, all three */
    announced->tx = tx;
    rdti_endpoint_ref(ep);
    return RDT_OK;
}

rdt_status
rdt_slot_tx_open(rdt_endpoint *ep, const char *name, const struct rdt_tensor_desc *desc,
                 uint64_t timeout_ns, rdt_slot_tx **out, struct rdt_error *err)
{
    struct open_wait wait = {.ep = ep, .name = name, .seen = UINT32_MAX};
    uint64_t payload_bytes = 0;
    rdt_status status;

    if (ep == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_tx_open: the endpoint is NULL");
    rdt_context *ctx = rdti_endpoint_context(ep);
    status = rdti_context_check(ctx, "slot_tx_open", err);
    if (status == RDT_OK)
        status = rdti_slot_check_desc("slot_tx_open", name, desc, &payload_bytes, err);
    if (status != RDT_OK)
        return status;
    if (timeout_ns == RDT_TIMEOUT_DEFAULT)
        timeout_ns = ctx->opts.timeout_ns;
    status = rdti_engine_wait(ctx->engine, slot_open_is_announced, &wait,
                              rdti_deadline_after(timeout_ns));
    if (status == RDT_EINVAL)
        return rdti_error_set(err, status, 0,
                              "slot_tx_open: called from a task, which must not wait");
    if (status != RDT_OK)
        return rdti_error_set_rank(err, status, rdti_endpoint_rank(ep),
                                   "rank %d announced no slot '%s' within %.3f s",
                                   (int)rdti_endpoint_rank(ep), name, (double)timeout_ns / 1e9);
    rdt_slot_tx *tx = calloc(1, sizeof(*tx));
    if (tx == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a slot of %zu bytes", sizeof(*tx));
    rdti_engine_enter(ctx->engine);
    status = slot_open_bind_tx(ep, name, desc, payload_bytes, tx, err);
    rdti_engine_leave(ctx->engine);
    if (status != RDT_OK) {
        free(tx);
        return status;
    }
    *out = tx;
    return RDT_OK;
}
