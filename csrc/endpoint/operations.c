/* SPDX-License-Identifier: Apache-2.0
 * The public calls on endpoints; rdt_endpoint_open() is in setup_connect.c. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/range.h"
#include "endpoint/endpoint_impl.h"
#include "wire/notify.h"

static rdt_status
endpoint_op_check_usable(const rdt_endpoint *ep, const char *call, struct rdt_error *err)
{
    if (ep == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the endpoint is NULL", call);
    return rdti_context_check(ep->ctx, call, err);
}

static rdt_status
endpoint_op_check_remote(const rdt_endpoint *ep, const char *call,
                         const struct rdt_remote_region *remote, uint64_t off_bytes,
                         uint64_t len_bytes, struct rdt_error *err)
{
    if (remote == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: the remote region is NULL", call);
    if (memcmp(remote->owner, ep->uuid, RDT_UUID_BYTES) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "%s: the remote region belongs to another process than rank %d", call,
                              (int)rdti_endpoint_rank(ep));
    if (!rdti_range_ok(off_bytes, len_bytes, remote->len_bytes))
        return rdti_error_set(err, RDT_ERANGE, 0,
                              "%s: offset %llu + %llu bytes leaves the region of %llu bytes", call,
                              (unsigned long long)off_bytes, (unsigned long long)len_bytes,
                              (unsigned long long)remote->len_bytes);
    return RDT_OK;
}

/* The path with sums. Out of line, so that it costs the other calls nothing. */
__attribute__((noinline)) static rdt_status
endpoint_op_start_summed(rdt_endpoint *ep, struct rdt_transfer *t, rdt_transfer **out,
                         struct rdt_error *err)
{
    const struct rdti_filter *filter = ep->ctx->upcalls->filter;
    const rdt_status status =
        t->op.kind == RDTI_OP_READ ? filter->read(ep, &t, err) : filter->write(ep, t, NULL, err);

    if (status != RDT_OK)
        rdti_transfer_discard(t);
    else if (out != NULL)
        *out = t;
    else
        rdt_transfer_free(t);
    return status;
}

static rdt_status
endpoint_op_start(rdt_endpoint *ep, struct rdt_transfer *t, rdt_transfer **out,
                  struct rdt_error *err)
{
    if (rdti_context_verifies(ep->ctx))
        return endpoint_op_start_summed(ep, t, out, err);
    const rdt_status status = rdti_endpoint_post(ep, t, err);

    if (status != RDT_OK)
        rdti_transfer_discard(t);
    else if (out != NULL)
        *out = t;
    else
        rdt_transfer_free(t);
    return status;
}

static rdt_status
endpoint_op_notify_word(const char *call, uint32_t notify, uint32_t *out, struct rdt_error *err)
{
    if (notify == RDT_NOTIFY_NONE)
        *out = RDTI_NOTIFY_NONE;
    else if (notify <= RDT_NOTIFY_MAX)
        *out = rdti_notify_user(notify);
    else
        return rdti_error_set(err, RDT_EINVAL, 0, "%s: notification %u is over %u", call, notify,
                              RDT_NOTIFY_MAX);
    return RDT_OK;
}

rdt_status
rdt_endpoint_write(rdt_endpoint *ep, const void *src, uint64_t len_bytes,
                   const struct rdt_remote_region *dst, uint64_t dst_off, uint32_t notify,
                   rdt_transfer **out, struct rdt_error *err)
{
    uint32_t word = RDTI_NOTIFY_NONE;
    rdt_status status = endpoint_op_check_usable(ep, "write", err);

    if (status == RDT_OK)
        status = endpoint_op_check_remote(ep, "write", dst, dst_off, len_bytes, err);
    if (status == RDT_OK)
        status = endpoint_op_notify_word("write", notify, &word, err);
    if (status != RDT_OK)
        return status;
    if (src == NULL && len_bytes > 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "write: the source is NULL");
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = word;
    t->op.remote = *dst;
    t->op.block = (struct rdt_block){.src = src, .len_bytes = len_bytes, .dst_off = dst_off};
    t->op.blocks = &t->op.block;
    t->op.block_count = len_bytes > 0 ? 1 : 0;
    t->op.len_bytes = len_bytes;
    return endpoint_op_start(ep, t, out, err);
}

static rdt_status
endpoint_op_check_blocks(const rdt_endpoint *ep, const struct rdt_block *blocks, uint32_t count,
                         const struct rdt_remote_region *dst, uint64_t *total_out,
                         struct rdt_error *err)
{
    uint64_t total = 0;

    if (blocks == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "write_many: the blocks are NULL");
    for (uint32_t i = 0; i < count; i++) {
        const rdt_status status = endpoint_op_check_remote(ep, "write_many", dst, blocks[i].dst_off,
                                                           blocks[i].len_bytes, err);
        if (status != RDT_OK)
            return status;
        if (blocks[i].src == NULL && blocks[i].len_bytes > 0)
            return rdti_error_set(err, RDT_EINVAL, 0, "write_many: the source of block %u is NULL",
                                  i);
        if (total + blocks[i].len_bytes < total)
            return rdti_error_set(err, RDT_ERANGE, 0, "write_many: the blocks' sum overflows");
        total += blocks[i].len_bytes;
    }
    *total_out = total;
    return RDT_OK;
}

rdt_status
rdt_endpoint_write_many(rdt_endpoint *ep, const struct rdt_block *blocks, uint32_t count,
                        const struct rdt_remote_region *dst, uint32_t notify, rdt_transfer **out,
                        struct rdt_error *err)
{
    uint32_t word = RDTI_NOTIFY_NONE;
    uint64_t total = 0;
    rdt_status status = endpoint_op_check_usable(ep, "write_many", err);

    if (status == RDT_OK && count == 0) /* only its notification */
        return rdt_endpoint_write(ep, NULL, 0, dst, 0, notify, out, err);
    if (status == RDT_OK)
        status = endpoint_op_check_blocks(ep, blocks, count, dst, &total, err);
    if (status == RDT_OK)
        status = endpoint_op_notify_word("write_many", notify, &word, err);
    if (status != RDT_OK)
        return status;
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL || (t->blocks = malloc(sizeof(*blocks) * count)) == NULL) {
        if (t != NULL)
            rdti_transfer_discard(t);
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %u blocks", count);
    }
    memcpy(t->blocks, blocks, sizeof(*blocks) * count);
    t->op.kind = RDTI_OP_WRITE;
    t->op.notify = word;
    t->op.remote = *dst;
    t->op.blocks = t->blocks;
    t->op.block_count = count;
    t->op.len_bytes = total;
    return endpoint_op_start(ep, t, out, err);
}

rdt_status
rdti_endpoint_read(rdt_endpoint *ep, void *dst, uint64_t len_bytes,
                   const struct rdt_remote_region *src, uint64_t src_off, enum rdti_traffic traffic,
                   rdt_transfer **out, struct rdt_error *err)
{
    rdt_status status = endpoint_op_check_usable(ep, "read", err);

    if (status == RDT_OK)
        status = endpoint_op_check_remote(ep, "read", src, src_off, len_bytes, err);
    if (status == RDT_OK && dst == NULL && len_bytes > 0)
        status = rdti_error_set(err, RDT_EINVAL, 0, "read: the destination is NULL");
    if (status != RDT_OK)
        return status;
    struct rdt_transfer *t = rdti_transfer_new(ep->ctx->pool);
    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    t->op.kind = RDTI_OP_READ;
    t->op.traffic = (uint8_t)traffic;
    t->op.notify = RDTI_NOTIFY_NONE;
    t->op.remote = *src;
    t->op.block = (struct rdt_block){.src = dst, .len_bytes = len_bytes, .dst_off = src_off};
    t->op.blocks = &t->op.block;
    t->op.block_count = 1;
    t->op.len_bytes = len_bytes;
    return endpoint_op_start(ep, t, out, err);
}

rdt_status
rdt_endpoint_read(rdt_endpoint *ep, void *dst, uint64_t len_bytes,
                  const struct rdt_remote_region *src, uint64_t src_off, rdt_transfer **out,
                  struct rdt_error *err)
{
    return rdti_endpoint_read(ep, dst, len_bytes, src, src_off, RDTI_TRAFFIC_PLANNED, out, err);
}

static bool
endpoint_op_has_notify(void *arg)
{
    const rdt_endpoint *ep = arg;
    /* Read once: it may become READY in between. */
    const enum rdti_endpoint_state state = rdti_endpoint_get_state(ep);

    return atomic_load_explicit(&ep->inbox_ready, memory_order_seq_cst) > 0 ||
           (state != RDTI_EP_READY && state != RDTI_EP_CONNECTING);
}

static rdt_status
endpoint_op_lost_notification(const rdt_endpoint *ep, struct rdt_error *err)
{
    return rdti_error_set_rank(err, RDT_ESTALE, rdti_endpoint_rank(ep),
                               "wait_notify: rank %d wrote to a region that was freed here before "
                               "the bytes could be compared",
                               (int)rdti_endpoint_rank(ep));
}

static rdt_status
endpoint_op_pop_inbox(rdt_endpoint *ep, uint32_t *out, struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    rdti_engine_enter(ep->ctx->engine);
    if (ep->inbox_count > 0) {
        const uint32_t value = ep->inbox[ep->inbox_head];
        ep->inbox_head = (ep->inbox_head + 1) & (ep->inbox_cap - 1);
        ep->inbox_count--;
        atomic_store_explicit(&ep->inbox_ready, ep->inbox_count, memory_order_seq_cst);
        if (value != RDTI_INBOX_STALE)
            *out = value;
        else
            status = endpoint_op_lost_notification(ep, err);
    } else {
        status = rdti_endpoint_error(ep, err);
        if (status == RDT_OK)
            status = RDT_EAGAIN;
    }
    rdti_engine_leave(ep->ctx->engine);
    return status;
}

struct notify_wait {
    rdt_endpoint *ep;
    uint32_t *out;
    rdt_status status;
    struct rdt_error *err;
};

static bool
endpoint_op_take_notify(void *arg)
{
    struct notify_wait *wait = arg;

    if (wait->status == RDT_EAGAIN && endpoint_op_has_notify(wait->ep))
        wait->status = endpoint_op_pop_inbox(wait->ep, wait->out, wait->err);
    return wait->status != RDT_EAGAIN; /* else there is none, or another thread took it */
}

rdt_status
rdt_endpoint_wait_notify(rdt_endpoint *ep, uint64_t timeout_ns, uint32_t *out,
                         struct rdt_error *err)
{
    struct notify_wait wait = {.ep = ep, .out = out, .status = RDT_EAGAIN, .err = err};
    rdt_status status = endpoint_op_check_usable(ep, "wait_notify", err);

    if (status != RDT_OK)
        return status;
    if (timeout_ns == RDT_NO_WAIT) {
        if (!endpoint_op_has_notify(ep))
            rdti_engine_poll(ep->ctx->engine);
        return endpoint_op_pop_inbox(ep, out, err);
    }
    if (rdti_engine_is_soon(ep->ctx->engine, endpoint_op_take_notify, &wait, true))
        return wait.status;
    timeout_ns = timeout_ns == RDT_TIMEOUT_DEFAULT ? ep->ctx->opts.timeout_ns : timeout_ns;
    status = rdti_engine_wait_taking(ep->ctx->engine, endpoint_op_take_notify, &wait,
                                     rdti_deadline_after(timeout_ns));
    if (status == RDT_ETIMEDOUT)
        return rdti_error_set_rank(err, RDT_ETIMEDOUT, rdti_endpoint_rank(ep),
                                   "no notification of rank %d within %.3f s",
                                   (int)rdti_endpoint_rank(ep), (double)timeout_ns / 1e9);
    if (status != RDT_OK)
        return rdti_error_set(err, status, 0,
                              "wait_notify: called from a task, which must not wait");
    return wait.status;
}

struct map_wait {
    rdt_endpoint *ep;
    const struct rdt_remote_region *remote;
    void *addr;
    rdt_status status;
    struct rdt_error err;
};

static rdt_status
endpoint_op_try_map(struct map_wait *wait)
{
    rdt_endpoint *ep = wait->ep;
    rdt_status status;

    rdti_engine_enter(ep->ctx->engine);
    status = rdti_endpoint_error(ep, &wait->err);
    if (status == RDT_OK && rdti_endpoint_get_state(ep) == RDTI_EP_CONNECTING)
        status = RDT_EAGAIN;
    else if (status == RDT_OK && ep->lane->transport->map == NULL)
        status = rdti_error_set(&wait->err, RDT_ENOTSUP, 0,
                                "map: the path to rank %d is %s, which shares no memory",
                                (int)rdti_endpoint_rank(ep), ep->lane->transport->name);
    else if (status == RDT_OK)
        status = ep->lane->transport->map(ep->lane, wait->remote, &wait->addr, &wait->err);
    rdti_engine_leave(ep->ctx->engine);
    return status;
}

static bool
endpoint_op_is_mapped(void *arg)
{
    struct map_wait *wait = arg;

    wait->status = endpoint_op_try_map(wait);
    return wait->status != RDT_EAGAIN;
}

rdt_status
rdti_endpoint_map_until(rdt_endpoint *ep, const struct rdt_remote_region *remote,
                        uint64_t deadline_ns, void **out, struct rdt_error *err)
{
    struct map_wait wait = {.ep = ep, .remote = remote};
    rdt_status status = endpoint_op_check_usable(ep, "map", err);

    if (status == RDT_OK)
        status = endpoint_op_check_remote(ep, "map", remote, 0, 0, err);
    if (status != RDT_OK)
        return status;
    status = rdti_engine_wait(ep->ctx->engine, endpoint_op_is_mapped, &wait, deadline_ns);
    if (status != RDT_OK)
        return rdti_error_set_rank(err, status, rdti_endpoint_rank(ep),
                                   "map: rank %d did not hand over its memory in time",
                                   (int)rdti_endpoint_rank(ep));
    if (wait.status != RDT_OK)
        return rdti_error_copy(err, &wait.err);
    *out = wait.addr;
    return RDT_OK;
}

rdt_status
rdt_endpoint_map(rdt_endpoint *ep, const struct rdt_remote_region *remote, void **out,
                 struct rdt_error *err)
{
    const rdt_status status = endpoint_op_check_usable(ep, "map", err);

    return status == RDT_OK
               ? rdti_endpoint_map_until(ep, remote, rdti_deadline_after(ep->ctx->opts.timeout_ns),
                                         out, err)
               : status;
}

uint32_t
rdt_endpoint_transport(const rdt_endpoint *ep)
{
    return rdti_endpoint_get_state(ep) == RDTI_EP_READY ? rdti_endpoint_transport_id(ep)
                                                        : RDT_TRANSPORT_AUTO;
}

rdt_status
rdt_endpoint_error(const rdt_endpoint *ep, struct rdt_error *err)
{
    return rdti_endpoint_error(ep, err);
}

void
rdt_endpoint_close(rdt_endpoint *ep)
{
    if (ep == NULL || rdti_in_forked_child())
        return;
    rdt_context *ctx = ep->ctx; /* outlives the endpoint */
    rdti_engine_enter(ctx->engine);
    const bool is_last = --ep->refs == 0;
    if (is_last)
        rdti_endpoint_begin_close(ep);
    rdti_engine_leave(ctx->engine);
    if (is_last)
        rdti_endpoints_await_goodbyes(ctx);
}
