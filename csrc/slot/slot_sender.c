/* SPDX-License-Identifier: Apache-2.0
 * The sender's half of a slot. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "slot/slot_impl.h"
#include "wire/notify.h"
#include "rdmatensor_ext.h"

/* The user's own memory, lent for one send; the result is kept until the last read is over. */
struct rdti_lent {
    rdt_region *region;
    struct rdt_transfer *transfer;
    rdt_status status;
    struct rdt_error error;
};

static void
sender_on_lent_drained(void *arg)
{
    struct rdti_lent *lent = arg;

    rdti_transfer_finish(lent->transfer, lent->status, &lent->error);
    free(lent);
}

void
rdti_slot_tx_end_dynamic(rdt_slot_tx *tx, uint32_t epoch, rdt_status status,
                         const struct rdt_error *err)
{
    struct rdti_dynamic *dynamic = &tx->dynamic[epoch % RDTI_SLOT_BUFFERS];
    struct rdt_transfer *transfer = dynamic->transfer;
    struct rdti_lent *lent = dynamic->lent;

    *dynamic = (struct rdti_dynamic){0};
    if (transfer == NULL)
        return;
    if (lent == NULL) {
        rdti_transfer_finish(transfer, status, err);
        return;
    }
    lent->transfer = transfer;
    lent->status = status;
    if (err != NULL)
        lent->error = *err;
    if (status == RDT_OK) /* a credit: the only reader has read it */
        rdti_regions_end_lent(lent->region, sender_on_lent_drained, lent);
    else
        rdt_region_free(lent->region, sender_on_lent_drained, lent);
}

void
rdti_slot_tx_end(rdt_slot_tx *tx, const struct rdt_error *err)
{
    if (atomic_load_explicit(&tx->is_ended, memory_order_relaxed) != 0)
        return;
    tx->error = *err;
    for (uint32_t i = 0; i < RDTI_SLOT_BUFFERS; i++)
        rdti_slot_tx_end_dynamic(tx, i, (rdt_status)err->status, err);
    atomic_store_explicit(&tx->is_ended, 1,
                          memory_order_seq_cst); /* pairs with sender_has_credit() */
    rdti_engine_wake(rdti_endpoint_context(tx->ep)->engine);
}

/* ---- Credit ------------------------------------------------------------------------------ */

static bool
sender_has_credit(void *arg)
{
    const rdt_slot_tx *tx = arg;
    const uint32_t sent =
        atomic_load_explicit(&tx->sent, memory_order_relaxed); /* this thread's own */

    return sent - atomic_load_explicit(&tx->returned, memory_order_seq_cst) < RDTI_SLOT_BUFFERS ||
           atomic_load_explicit(&tx->is_ended, memory_order_seq_cst) != 0;
}

static rdt_status
sender_wait_credit(rdt_slot_tx *tx, const char *call, uint64_t timeout_ns, struct rdt_error *err)
{
    rdt_context *ctx = rdti_endpoint_context(tx->ep);
    const int32_t rank = rdti_endpoint_rank(tx->ep);
    rdt_status status = rdti_context_check(ctx, call, err);

    if (status != RDT_OK)
        return status;
    if (timeout_ns == RDT_TIMEOUT_DEFAULT)
        timeout_ns = ctx->opts.timeout_ns;
    status = rdti_engine_wait_counted(ctx->engine, sender_has_credit, tx,
                                      rdti_deadline_after(timeout_ns));
    if (status == RDT_ETIMEDOUT)
        return rdti_error_set_rank(err, status, rank,
                                   "%s: rank %d released no buffer of slot '%s' within %.3f s",
                                   call, (int)rank, tx->info.name, (double)timeout_ns / 1e9);
    if (status != RDT_OK)
        return rdti_error_set(err, status, 0, "%s: called from a task, which must not wait", call);
    if (atomic_load_explicit(&tx->is_ended, memory_order_seq_cst) != 0)
        return rdti_error_copy(err, &tx->error);
    return RDT_OK;
}

static uint64_t
sender_next_off(const rdt_slot_tx *tx)
{
    return atomic_load_explicit(&tx->sent, memory_order_relaxed) % RDTI_SLOT_BUFFERS *
           tx->info.stride_bytes;
}

/* ---- Sending ----------------------------------------------------------------------------- */

static rdt_status
sender_actual_bytes(const rdt_slot_tx *tx, const char *call, const uint64_t *dims,
                    struct rdt_tensor_desc *actual, uint64_t *out, struct rdt_error *err)
{
    *actual = tx->info.desc;
    if (dims != NULL)
        memcpy(actual->dims, dims, sizeof(dims[0]) * actual->ndim);
    else if (actual->kind == RDT_SLOT_DYNAMIC)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: slot '%s' is dynamic: its dims are needed",
                              call, tx->info.name);
    for (uint32_t i = 0; dims != NULL && actual->kind != RDT_SLOT_DYNAMIC && i < actual->ndim;
         i++) {
        const uint64_t most = tx->info.desc.dims[i];
        if (dims[i] > most || (actual->kind == RDT_SLOT_STATIC && dims[i] != most))
            return rdti_error_set(
                err, RDT_EMISMATCH, 0,
                "%s: dimension %u of slot '%s': the slot has %llu, the tensor %llu", call, i,
                tx->info.name, (unsigned long long)most, (unsigned long long)dims[i]);
    }
    return rdti_tensor_bytes(actual->dtype, actual->ndim, actual->dims, out, err);
}

/* Returns the block that sends it. */
static struct rdt_block
sender_fill_header(rdt_slot_tx *tx, const struct rdt_tensor_desc *actual,
                   const struct rdti_place *place)
{
    const uint32_t epoch = atomic_load_explicit(&tx->sent, memory_order_relaxed);
    struct rdti_slot_header header = {.epoch = epoch, .dtype = actual->dtype, .ndim = actual->ndim};

    memcpy(header.dims, actual->dims, sizeof(header.dims[0]) * actual->ndim);
    if (place != NULL)
        header.place = *place;
    rdti_slot_header_encode(&header, tx->headers[epoch % RDTI_SLOT_BUFFERS]);
    return (struct rdt_block){.src = tx->headers[epoch % RDTI_SLOT_BUFFERS],
                              .len_bytes = RDTI_SLOT_HEADER_BYTES,
                              .dst_off = sender_next_off(tx) + tx->header_off};
}

static void
sender_drop_user(rdt_slot_tx *tx)
{
    /* acq_rel: the last one sees what the others did */
    if (atomic_fetch_sub_explicit(&tx->users, 1, memory_order_acq_rel) != 1)
        return;
    rdt_region_free(tx->staging, NULL, NULL);
    free(tx);
}

static void
sender_on_write_over(struct rdt_transfer *t)
{
    rdti_slot_name_end(t, ((rdt_slot_tx *)t->owner)->info.name);
    sender_drop_user(t->owner);
}

/* The write of a put or post: up to two blocks, the slot's notification. Takes the credit. */
static rdt_status
sender_post_blocks(rdt_slot_tx *tx, const struct rdt_block *blocks, uint32_t count,
                   const struct rdt_block *in_place, rdt_transfer **out, struct rdt_error *err)
{
    const uint32_t epoch = atomic_load_explicit(&tx->sent, memory_order_relaxed);
    struct rdt_transfer *t = rdti_transfer_new(rdti_endpoint_context(tx->ep)->pool);

    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = rdti_notify_slot(tx->info.slot_id, epoch);
    t->op.remote = tx->info.region;
    for (uint32_t i = 0; i < count; i++) {
        t->pair[i] = blocks[i];
        t->op.len_bytes += blocks[i].len_bytes;
    }
    t->op.blocks = t->pair;
    t->op.block_count = count;
    rdti_slot_mark(&t->op, tx->info.desc.kind, epoch);
    t->op.flag_off =
        sender_next_off(tx) + rdti_slot_flag_off(tx->info.desc.kind, tx->payload_bytes);
    t->on_release = sender_on_write_over;
    t->owner = tx;
    (void)atomic_fetch_add_explicit(&tx->users, 1, memory_order_relaxed); /* the caller has a use */
    /* release: before the peer can answer with a credit; pairs with rdti_slots_on_credit() */
    atomic_store_explicit(&tx->sent, epoch + 1, memory_order_release);
    const rdt_status status = rdti_endpoint_post_verified(tx->ep, t, in_place, err);
    if (status != RDT_OK) {
        atomic_store_explicit(&tx->sent, epoch, memory_order_release);
        rdti_transfer_discard(t);
        sender_drop_user(tx);
        if (status == RDT_ESTALE) /* its notice is on its way */
            return rdti_error_set_rank(err, RDT_ECLOSED, rdti_endpoint_rank(tx->ep),
                                       "rank %d destroyed slot '%s'",
                                       (int)rdti_endpoint_rank(tx->ep), tx->info.name);
        return status;
    }
    if (out != NULL)
        *out = t;
    else
        rdt_transfer_free(t);
    return RDT_OK;
}

static rdt_status
sender_lend(rdt_context *ctx, const void *src, uint64_t len_bytes, struct rdti_lent **out,
            struct rdti_place *place_out, struct rdt_error *err)
{
    struct rdti_lent *lent = calloc(1, sizeof(*lent));

    if (lent == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a send of %zu bytes", sizeof(*lent));
    rdt_status status =
        rdti_regions_lend(ctx->regions, (void *)(uintptr_t)src, len_bytes, &lent->region, err);
    if (status == RDT_OK)
        status = rdt_region_export(lent->region, &place_out->region, err);
    if (status != RDT_OK) {
        rdt_region_free(lent->region, NULL, NULL);
        free(lent);
        return status;
    }
    place_out->off_bytes = 0;
    *out = lent;
    return RDT_OK;
}

/* Sends the address of the tensor; the receiver reads it, and its credit ends the transfer. */
static rdt_status
sender_put_dynamic(rdt_slot_tx *tx, const void *src, const struct rdt_tensor_desc *actual,
                   uint64_t len_bytes, rdt_transfer **out, struct rdt_error *err)
{
    rdt_context *ctx = rdti_endpoint_context(tx->ep);
    const uint32_t epoch = atomic_load_explicit(&tx->sent, memory_order_relaxed);
    struct rdti_dynamic *dynamic = &tx->dynamic[epoch % RDTI_SLOT_BUFFERS];
    struct rdti_dynamic made = {0};
    struct rdti_place place;
    rdt_status status = rdti_regions_place_at(ctx->regions, src, len_bytes, &place, err);

    if (status == RDT_EAGAIN)
        status = sender_lend(ctx, src, len_bytes, &made.lent, &place, err);
    if (status == RDT_OK && (made.transfer = rdti_transfer_new(ctx->pool)) == NULL)
        status = rdti_error_set(err, RDT_ENOMEM, 0, "a transfer");
    if (status != RDT_OK)
        goto err_take_back;
    rdt_transfer_trace(made.transfer, "slot, pulled", rdti_endpoint_rank(tx->ep), len_bytes);
    made.transfer->len_bytes = len_bytes;
    rdti_count(&ctx->counters.control_messages[RDTI_TRAFFIC_DYNAMIC], 1); /* an address is sent */
    rdti_engine_enter(ctx->engine); /* the credit must find it */
    if (atomic_load_explicit(&tx->is_ended, memory_order_relaxed) != 0) {
        status = rdti_error_copy(err, &tx->error); /* nothing would end the transfer */
        rdti_engine_leave(ctx->engine);
        goto err_take_back;
    }
    *dynamic = made;
    const struct rdt_block block = sender_fill_header(tx, actual, &place);
    status = sender_post_blocks(tx, &block, 1, NULL, NULL, err);
    if (status != RDT_OK)
        *dynamic = (struct rdti_dynamic){0};
    rdti_engine_leave(ctx->engine);
    if (status != RDT_OK)
        goto err_take_back;
    *out = made.transfer;
    return RDT_OK;

err_take_back:
    if (made.transfer != NULL)
        rdti_transfer_discard(made.transfer);
    if (made.lent != NULL)
        rdt_region_free(made.lent->region, NULL, NULL); /* its address was not sent */
    free(made.lent);
    return status;
}

static rdt_status
sender_check_put(const rdt_slot_tx *tx, const void *src, const uint64_t *dims, bool has_out,
                 struct rdt_tensor_desc *actual, uint64_t *len_bytes_out, struct rdt_error *err)
{
    rdt_status status;

    if (tx == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_tx_put: the slot is NULL");
    if (tx->is_filling)
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "slot_tx_put: slot '%s' has a buffer that was not posted",
                              tx->info.name);
    status = sender_actual_bytes(tx, "slot_tx_put", dims, actual, len_bytes_out, err);
    if (status != RDT_OK)
        return status;
    if (src == NULL && *len_bytes_out > 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_tx_put: the source is NULL");
    if (!has_out && (actual->kind == RDT_SLOT_DYNAMIC || !rdti_endpoint_caps(tx->ep).is_same_host))
        return rdti_error_set(
            err, RDT_EINVAL, 0,
            "slot_tx_put: only a transfer says when the source is free on this path");
    return RDT_OK;
}

/* Without a transfer the source must be free on return. It is free at once, unless the first write
 * waits for the peer's memory. */
static rdt_status
sender_wait_over(rdt_transfer *t, uint64_t deadline_ns, struct rdt_error *err)
{
    const rdt_status status = rdt_transfer_wait(t, rdti_remaining_ns(deadline_ns), err);

    rdt_transfer_free(t);
    return status;
}

rdt_status
rdt_slot_tx_put(rdt_slot_tx *tx, const void *src, const uint64_t *dims, uint64_t timeout_ns,
                rdt_transfer **out, struct rdt_error *err)
{
    struct rdt_tensor_desc actual;
    struct rdt_block blocks[2];
    rdt_transfer *t = NULL;
    uint64_t len_bytes = 0;
    uint32_t count = 0;
    rdt_status status = sender_check_put(tx, src, dims, out != NULL, &actual, &len_bytes, err);

    if (status != RDT_OK)
        return status;
    if (timeout_ns == RDT_TIMEOUT_DEFAULT)
        timeout_ns = rdti_endpoint_context(tx->ep)->opts.timeout_ns;
    const uint64_t deadline_ns = rdti_deadline_after(timeout_ns);
    status = sender_wait_credit(tx, "slot_tx_put", timeout_ns, err);
    if (status != RDT_OK)
        return status;
    if (actual.kind == RDT_SLOT_DYNAMIC)
        return sender_put_dynamic(tx, src, &actual, len_bytes, out, err);
    if (len_bytes > 0)
        blocks[count++] =
            (struct rdt_block){.src = src, .len_bytes = len_bytes, .dst_off = sender_next_off(tx)};
    if (actual.kind == RDT_SLOT_BOUNDED)
        blocks[count++] = sender_fill_header(tx, &actual, NULL);
    status = sender_post_blocks(tx, blocks, count, NULL, &t, err);
    if (status != RDT_OK)
        return status;
    if (out == NULL)
        return sender_wait_over(t, deadline_ns, err);
    *out = t;
    return RDT_OK;
}

rdt_status
rdt_slot_tx_buffer(rdt_slot_tx *tx, uint64_t timeout_ns, void **out, struct rdt_error *err)
{
    rdt_context *ctx;
    void *base = NULL;
    rdt_status status;

    if (tx == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_tx_buffer: a NULL argument");
    ctx = rdti_endpoint_context(tx->ep);
    if (tx->info.desc.kind == RDT_SLOT_DYNAMIC)
        return rdti_error_set(err, RDT_ENOTSUP, 0,
                              "slot_tx_buffer: slot '%s' is dynamic: allocate and put",
                              tx->info.name);
    if (tx->is_filling)
        return rdti_error_set(err, RDT_EBUSY, 0,
                              "slot_tx_buffer: slot '%s' has a buffer that was not posted",
                              tx->info.name);
    if (timeout_ns == RDT_TIMEOUT_DEFAULT)
        timeout_ns = ctx->opts.timeout_ns;
    const uint64_t deadline_ns = rdti_deadline_after(timeout_ns);
    status = sender_wait_credit(tx, "slot_tx_buffer", timeout_ns, err);
    if (status != RDT_OK)
        return status;
    if (rdti_endpoint_caps(tx->ep).can_map) {
        rdti_endpoint_pin_mapping(tx->ep);
        status = rdti_endpoint_map_until(tx->ep, &tx->info.region, deadline_ns, &base, err);
        if (status != RDT_OK)
            rdti_endpoint_unpin_mapping(tx->ep);
        tx->is_mapped = status == RDT_OK;
    } else {
        if (tx->staging == NULL)
            status = rdti_regions_alloc(ctx->regions, tx->info.stride_bytes * RDTI_SLOT_BUFFERS, 0,
                                        &tx->staging, err);
        if (status == RDT_OK)
            base = rdt_region_addr(tx->staging);
    }
    if (status != RDT_OK)
        return status;
    tx->is_filling = true;
    *out = tx->filling = (uint8_t *)base + sender_next_off(tx);
    return RDT_OK;
}

rdt_status
rdt_slot_tx_post(rdt_slot_tx *tx, const uint64_t *dims, rdt_transfer **out, struct rdt_error *err)
{
    struct rdt_tensor_desc actual;
    struct rdt_block blocks[2];
    uint64_t len_bytes = 0;
    uint32_t count = 0;
    rdt_status status;

    if (tx == NULL || !tx->is_filling)
        return rdti_error_set(err, RDT_EINVAL, 0, "slot_tx_post: rdt_slot_tx_buffer() comes first");
    status = rdti_context_check(rdti_endpoint_context(tx->ep), "slot_tx_post", err);
    if (status == RDT_OK)
        status = sender_actual_bytes(tx, "slot_tx_post", dims, &actual, &len_bytes, err);
    if (status != RDT_OK)
        return status;
    if (!tx->is_mapped && len_bytes > 0)
        blocks[count++] = (struct rdt_block){.src = (const uint8_t *)rdt_region_addr(tx->staging) +
                                                    sender_next_off(tx),
                                             .len_bytes = len_bytes,
                                             .dst_off = sender_next_off(tx)};
    if (actual.kind == RDT_SLOT_BOUNDED)
        blocks[count++] = sender_fill_header(tx, &actual, NULL);
    const struct rdt_block in_place = {tx->filling, tx->is_mapped ? len_bytes : 0,
                                       sender_next_off(tx)};
    status = sender_post_blocks(tx, blocks, count, &in_place, out, err);
    if (tx->is_mapped)
        rdti_endpoint_unpin_mapping(tx->ep);
    tx->is_mapped = tx->is_filling = false;
    return status;
}

void
rdt_slot_tx_destroy(rdt_slot_tx *tx)
{
    struct rdt_error err;

    if (tx == NULL || rdti_in_forked_child())
        return;
    rdt_context *ctx = rdti_endpoint_context(tx->ep);
    rdti_engine_enter(ctx->engine);
    if (tx->announced != NULL) {
        tx->announced->tx = NULL;
        tx->announced->sent = atomic_load_explicit(&tx->sent, memory_order_relaxed);
        tx->announced->returned = atomic_load_explicit(&tx->returned, memory_order_relaxed);
    }
    (void)rdti_error_set(&err, RDT_ECLOSED, 0, "slot '%s' was closed here", tx->info.name);
    rdti_slot_tx_end(tx, &err);
    rdti_engine_leave(ctx->engine);
    if (tx->is_mapped)
        rdti_endpoint_unpin_mapping(tx->ep);
    rdt_endpoint_close(tx->ep);
    sender_drop_user(tx);
}
