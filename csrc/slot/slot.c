/* SPDX-License-Identifier: Apache-2.0
 * The receiving half of a slot. */
#include "slot/slot.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/text.h"
#include "slot/slot_impl.h"
#include "wire/fields.h"
#include "wire/notify.h"

void
rdti_slot_end(rdt_slot *slot, const struct rdt_error *err)
{
    if (atomic_load_explicit(&slot->is_ended, memory_order_relaxed) != 0)
        return;
    slot->error = *err;
    atomic_store_explicit(&slot->is_ended, 1,
                          memory_order_seq_cst); /* pairs with slot_has_arrived() */
    rdti_engine_wake(rdti_endpoint_context(slot->ep)->engine);
}

static void
slot_announce(rdt_slot *slot)
{
    struct rdti_slot_announce info = {
        .slot_id = slot->id,
        .buffers = RDTI_SLOT_BUFFERS,
        .desc = slot->desc,
        .stride_bytes = slot->stride_bytes,
        .region = slot->remote,
    };
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    rdti_text_copy(info.name, sizeof(info.name), slot->name);
    rdti_count(&rdti_endpoint_context(slot->ep)
                    ->counters
                    .control_messages[slot->desc.kind == RDT_SLOT_DYNAMIC ? RDTI_TRAFFIC_DYNAMIC
                                                                          : RDTI_TRAFFIC_PLANNED],
               1);
    rdti_endpoint_send_frame(slot->ep, RDTI_FRAME_SLOT, payload,
                             rdti_slot_announce_encode(&info, payload));
    slot->is_announced = true;
    rdti_slot_aim_flag(slot, 0);
    rdti_endpoint_watch_flag(slot->ep, &slot->flag);
}

void
rdti_slots_on_ready(struct rdti_slots *slots)
{
    for (uint32_t i = 0; i < slots->next_id; i++)
        if (slots->table[i] != NULL && !slots->table[i]->is_announced)
            slot_announce(slots->table[i]);
}

rdt_status
rdti_slot_check_desc(const char *call, const char *name, const struct rdt_tensor_desc *desc,
                     uint64_t *payload_bytes_out, struct rdt_error *err)
{
    if (name == NULL || name[0] == '\0' || !rdti_text_is_plain(name, RDT_SLOT_NAME_BYTES))
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: a name of 1 to %d bytes of text is needed",
                              call, RDT_SLOT_NAME_BYTES - 1);
    if (desc == NULL || desc->struct_size < sizeof(*desc))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "%s: slot '%s' needs a description with its struct_size", call, name);
    if (desc->kind < RDT_SLOT_STATIC || desc->kind > RDT_SLOT_DYNAMIC ||
        desc->ndim > RDT_MAX_NDIM || rdt_dtype_bytes(desc->dtype) == 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "%s: slot '%s': kind %u, dtype %u or %u dimensions cannot be", call,
                              name, desc->kind, desc->dtype, desc->ndim);
    if (desc->kind == RDT_SLOT_DYNAMIC) {
        *payload_bytes_out = 0;
        return RDT_OK;
    }
    return rdti_tensor_bytes(desc->dtype, desc->ndim, desc->dims, payload_bytes_out, err);
}

static rdt_status
slot_register(rdt_slot *slot, struct rdt_error *err)
{
    rdt_context *ctx = rdti_endpoint_context(slot->ep);
    rdt_status status;

    rdti_engine_enter(ctx->engine);
    status = rdti_endpoint_error(slot->ep, err);
    if (status == RDT_OK)
        status = rdti_slots_add(rdti_slots_of(slot->ep), slot, err);
    if (status == RDT_OK) {
        rdti_endpoint_ref(slot->ep);
        if (rdti_endpoint_get_state(slot->ep) == RDTI_EP_READY)
            slot_announce(slot);
    }
    rdti_engine_leave(ctx->engine);
    return status;
}

rdt_status
rdt_slot_create(rdt_endpoint *ep, const char *name, const struct rdt_tensor_desc *desc,
                rdt_slot **out, struct rdt_error *err)
{
    uint64_t payload_bytes = 0;
    rdt_status status;

    if (ep == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_create: the endpoint is NULL");
    rdt_context *ctx = rdti_endpoint_context(ep);
    status = rdti_context_check(ctx, "slot_create", err);
    if (status == RDT_OK)
        status = rdti_slot_check_desc("slot_create", name, desc, &payload_bytes, err);
    if (status != RDT_OK)
        return status;
    rdt_slot *slot = calloc(1, sizeof(*slot));
    if (slot == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a slot of %zu bytes", sizeof(*slot));
    slot->ep = ep;
    slot->desc = *desc;
    slot->payload_bytes = payload_bytes;
    slot->header_off = rdti_slot_header_off(payload_bytes);
    slot->flag_off = rdti_slot_flag_off(desc->kind, payload_bytes);
    slot->stride_bytes = rdti_slot_buffer_bytes(desc->kind, payload_bytes);
    slot->stride_bytes =
        (slot->stride_bytes + RDTI_SLOT_ALIGN - 1) / RDTI_SLOT_ALIGN * RDTI_SLOT_ALIGN;
    rdti_list_init(&slot->flag.link);
    rdti_text_copy(slot->name, sizeof(slot->name), name);
    status = rdti_regions_alloc(ctx->regions, slot->stride_bytes * RDTI_SLOT_BUFFERS, 0,
                                &slot->region, err);
    if (status != RDT_OK)
        goto err_free_slot;
    /* Old content must not look like a flag. */
    for (uint32_t i = 0; i < RDTI_SLOT_BUFFERS; i++)
        memset((uint8_t *)rdt_region_addr(slot->region) + i * slot->stride_bytes + slot->flag_off,
               0, RDTI_FLAG_BYTES);
    status = rdt_region_export(slot->region, &slot->remote, err);
    if (status != RDT_OK)
        goto err_free_region;
    status = slot_register(slot, err);
    if (status != RDT_OK)
        goto err_free_region;
    *out = slot;
    return RDT_OK;

err_free_region:
    rdt_region_free(slot->region, NULL, NULL);
err_free_slot:
    free(slot);
    return status;
}

static bool
slot_has_arrived(void *arg)
{
    const rdt_slot *slot = arg;

    return atomic_load_explicit(&slot->arrived, memory_order_seq_cst) != slot->got ||
           atomic_load_explicit(&slot->is_ended, memory_order_seq_cst) != 0;
}

/* Whether something was posted to the peer since the last release: then more is expected. */
static bool
slot_goes_both_ways(rdt_slot *slot)
{
    const uint64_t posts = rdti_endpoint_posts(slot->ep);
    const bool has_posted = posts != slot->posts_seen;

    slot->posts_seen = posts;
    return has_posted;
}

/*
 * Whether the sender can do without this credit for a while: it has another one, and the data that
 * it sends for that one makes a driver pass, which takes waiting credits along. The credit of a
 * dynamic tensor must not wait: it ends the sender's transfer.
 */
static bool
slot_may_credit_ride(const rdt_slot *slot, uint32_t released)
{
    /* seq_cst: pairs with rdti_slots_on_data(): either this thread sees the arrival, or the pass
     * that stored the arrival sees the waiting credit */
    return slot->desc.kind != RDT_SLOT_DYNAMIC &&
           atomic_load_explicit(&slot->arrived, memory_order_seq_cst) == released;
}

/* The credit goes first: if it cannot be sent, nothing has happened and a retry is possible. */
static rdt_status
slot_release_oldest(rdt_slot *slot, struct rdt_error *err)
{
    rdt_context *ctx = rdti_endpoint_context(slot->ep);
    const uint32_t released =
        atomic_load_explicit(&slot->released, memory_order_relaxed); /* this thread's own */
    rdt_region **pulled = &slot->pulled[released % RDTI_SLOT_BUFFERS];

    /* release: the reads of the buffer come before; pairs with rdti_slots_on_data(). Stored before
     * the credit goes, as the peer may answer it with data at once. */
    atomic_store_explicit(&slot->released, released + 1, memory_order_release);
    if (atomic_load_explicit(&slot->is_ended, memory_order_seq_cst) == 0) {
        const bool may_ride = slot_goes_both_ways(slot) && slot_may_credit_ride(slot, released + 1);
        const rdt_status status =
            rdti_endpoint_post_credit(slot->ep, rdti_notify_credit(slot->id), may_ride, err);
        const enum rdti_endpoint_state state = rdti_endpoint_get_state(slot->ep);
        /* An ended endpoint needs no credit. */
        if (status != RDT_OK && state != RDTI_EP_LEFT && state != RDTI_EP_FAILED) {
            atomic_store_explicit(&slot->released, released, memory_order_release);
            return status;
        }
        if (may_ride &&
            !slot_may_credit_ride(slot, released + 1)) /* that pass may have been the last */
            rdti_engine_poke(ctx->engine);
    }
    rdt_region_free(*pulled, NULL, NULL);
    *pulled = NULL;
    rdti_slot_check_buffers(slot);
    return RDT_OK;
}

/* A tensor that could not be read is returned like the others: after all that are still held. If
 * its credit cannot be sent now, the next call sends it. */
static void
slot_release_skipped(rdt_slot *slot)
{
    struct rdt_error err;

    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    /* relaxed: this thread's own */
    if (slot->has_skipped &&
        slot->got - atomic_load_explicit(&slot->released, memory_order_relaxed) == 1 &&
        slot_release_oldest(slot, &err) == RDT_OK)
        slot->has_skipped = false;
}

rdt_status
rdt_slot_get(rdt_slot *slot, uint64_t timeout_ns, struct rdt_slot_view *out, struct rdt_error *err)
{
    struct rdt_slot_view view;
    rdt_status status;

    if (slot == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_get: a NULL argument");
    rdt_context *ctx = rdti_endpoint_context(slot->ep);
    status = rdti_context_check(ctx, "slot_get", err);
    if (status != RDT_OK)
        return status;
    if (timeout_ns == RDT_TIMEOUT_DEFAULT)
        timeout_ns = ctx->opts.timeout_ns;
    slot_release_skipped(slot);
    if (slot->got - atomic_load_explicit(&slot->released, memory_order_relaxed) ==
        RDTI_SLOT_BUFFERS)
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "slot_get: both buffers of slot '%s' are held: release one first",
                              slot->name);
    const uint64_t deadline_ns = rdti_deadline_after(timeout_ns);
    status = rdti_engine_wait_counted(ctx->engine, slot_has_arrived, slot, deadline_ns);
    if (status == RDT_ETIMEDOUT)
        return rdti_error_set_rank(err, status, rdti_endpoint_rank(slot->ep),
                                   "slot '%s': nothing from rank %d within %.3f s", slot->name,
                                   (int)rdti_endpoint_rank(slot->ep), (double)timeout_ns / 1e9);
    if (status != RDT_OK)
        return rdti_error_set(err, status, 0, "slot_get: called from a task, which must not wait");
    /* Tensors that arrived whole are given out even after the end. */
    if (atomic_load_explicit(&slot->arrived, memory_order_seq_cst) == slot->got)
        return rdti_error_copy(err, &slot->error);
    status = rdti_slot_view(slot, deadline_ns, &view, err);
    if (status != RDT_OK && status != RDT_ESTALE)
        return status;
    slot->got++;
    rdti_slot_check_buffers(slot);
    if (status == RDT_ESTALE) { /* its sender took it back: the next one may come */
        slot->has_skipped = true;
        slot_release_skipped(slot);
        return status;
    }
    *out = view;
    return RDT_OK;
}

rdt_status
rdt_slot_release(rdt_slot *slot, struct rdt_error *err)
{
    rdt_status status;

    if (slot == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_release: the slot is NULL");
    rdt_context *ctx = rdti_endpoint_context(slot->ep);
    status = rdti_context_check(ctx, "slot_release", err);
    if (status != RDT_OK)
        return status;
    /* relaxed: this thread's own */
    if (atomic_load_explicit(&slot->released, memory_order_relaxed) == slot->got)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_release: nothing of slot '%s' is held",
                              slot->name);
    status = slot_release_oldest(slot, err);
    slot_release_skipped(slot);
    return status;
}

static void
slot_free_pulled(void *region)
{
    rdt_region_free(region, NULL, NULL);
}

void
rdt_slot_destroy(rdt_slot *slot)
{
    struct rdti_slot_gone gone = {0};
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];

    if (slot == NULL || rdti_in_forked_child())
        return;
    rdt_context *ctx = rdti_endpoint_context(slot->ep);
    rdti_engine_enter(ctx->engine);
    rdti_slots_of(slot->ep)->table[slot->id] = NULL;
    rdti_list_remove(&slot->flag.link);
    gone.slot_id = slot->id;
    /* relaxed: stored by the thread that uses the slot, which is this one */
    gone.released = atomic_load_explicit(&slot->released, memory_order_relaxed);
    if (slot->is_announced)
        rdti_endpoint_send_frame(slot->ep, RDTI_FRAME_SLOT_GONE, payload,
                                 rdti_slot_gone_encode(&gone, payload));
    rdti_engine_leave(ctx->engine);
    if (slot->pulling != NULL) { /* its region must stay while it may be written */
        rdt_region **region = &slot->pulled[slot->got % RDTI_SLOT_BUFFERS];
        rdt_transfer_on_done(slot->pulling, slot_free_pulled, *region);
        rdt_transfer_free(slot->pulling);
        *region = NULL;
    }
    for (int i = 0; i < RDTI_SLOT_BUFFERS; i++)
        rdt_region_free(slot->pulled[i], NULL, NULL);
    rdt_region_free(slot->region, NULL,
                    NULL); /* quarantine keeps the bytes while the peer may write */
    rdt_endpoint_close(slot->ep);
    free(slot);
}
