/* SPDX-License-Identifier: Apache-2.0
 * The public calls on a context that pass on to its parts: the engine, the regions, the trace. */
#include "process/process.h"

#include "base/error.h"
#include "progress/trace.h"
#include "rdmatensor_ext.h"

uint32_t
rdt_context_linger(rdt_context *ctx, uint64_t since_ns, uint32_t look)
{
    return rdti_engine_linger(ctx->engine, since_ns, look);
}

void
rdt_context_attend(rdt_context *ctx)
{
    if (rdti_context_check(ctx, "context_attend", NULL) == RDT_OK)
        rdti_engine_attend(ctx->engine);
}

void
rdt_context_unattend(rdt_context *ctx)
{
    if (rdti_context_check(ctx, "context_unattend", NULL) == RDT_OK)
        rdti_engine_unattend(ctx->engine);
}

rdt_status
rdt_context_progress(rdt_context *ctx)
{
    const rdt_status status = rdti_context_check(ctx, "context_progress", NULL);

    if (status != RDT_OK)
        return status;
    /* acquire: pairs with rdt_context_fd() */
    if (atomic_load_explicit(&ctx->has_fd_user, memory_order_acquire) != 0)
        (void)rdti_engine_arm_fd(ctx->engine);
    (void)rdti_engine_progress(ctx->engine);
    return RDT_OK;
}

int
rdt_context_fd(rdt_context *ctx)
{
    uint32_t none = 0;

    if (rdti_context_check(ctx, "context_fd", NULL) != RDT_OK)
        return -1;
    const int fd = rdti_engine_arm_fd(ctx->engine);
    /* From now on every notification rings the doorbell, so that the progress thread sees it and
     * signals. release: the descriptor is armed */
    if (atomic_compare_exchange_strong_explicit(&ctx->has_fd_user, &none, 1, memory_order_release,
                                                memory_order_relaxed))
        rdti_engine_async_add(ctx->engine, 1);
    return fd;
}

rdt_status
rdt_context_add_task(rdt_context *ctx, rdt_task_fn step, void *arg, struct rdt_error *err)
{
    const rdt_status status = rdti_context_check(ctx, "add_task", err);

    return status == RDT_OK ? rdti_engine_add_task(ctx->engine, step, arg, err) : status;
}

rdt_status
rdt_region_alloc(rdt_context *ctx, uint64_t len_bytes, uint32_t flags, rdt_region **out,
                 struct rdt_error *err)
{
    const rdt_status status = rdti_context_check(ctx, "region_alloc", err);

    return status == RDT_OK ? rdti_regions_alloc(ctx->regions, len_bytes, flags, out, err) : status;
}

rdt_status
rdt_region_register(rdt_context *ctx, void *addr, uint64_t len_bytes, rdt_region **out,
                    struct rdt_error *err)
{
    const rdt_status status = rdti_context_check(ctx, "region_register", err);

    return status == RDT_OK ? rdti_regions_register(ctx->regions, addr, len_bytes, out, err)
                            : status;
}

rdt_region *
rdt_region_find(rdt_context *ctx, const void *addr, uint64_t len_bytes)
{
    return rdti_context_check(ctx, "region_find", NULL) == RDT_OK
               ? rdti_regions_find(ctx->regions, addr, len_bytes)
               : NULL;
}

uint32_t
rdt_context_verifies(const rdt_context *ctx)
{
    return ctx->opts.verify;
}

rdt_status
rdt_context_trace_start(rdt_context *ctx, uint32_t capacity, struct rdt_error *err)
{
    const rdt_status status = rdti_context_check(ctx, "trace_start", err);

    return status == RDT_OK ? rdti_transfer_pool_trace(ctx->pool, capacity, err) : status;
}

uint32_t
rdt_context_trace_read(rdt_context *ctx, uint64_t first, struct rdt_trace_event *events,
                       uint32_t cap, uint64_t *next_out)
{
    struct rdti_trace *trace = NULL;

    if (rdti_context_check(ctx, "trace_read", NULL) == RDT_OK && events != NULL && next_out != NULL)
        trace = rdti_transfer_pool_get_trace(ctx->pool);
    return trace != NULL ? rdti_trace_read(trace, first, events, cap, next_out) : 0;
}

rdt_status
rdt_context_trace_histogram(rdt_context *ctx, uint32_t index, struct rdt_trace_histogram *out)
{
    rdt_status status = rdti_context_check(ctx, "trace_histogram", NULL);
    struct rdti_trace *trace = NULL;

    if (status == RDT_OK && out == NULL)
        status = RDT_EINVAL;
    if (status != RDT_OK)
        return status;
    trace = rdti_transfer_pool_get_trace(ctx->pool);
    return trace != NULL ? rdti_trace_histogram(trace, index, out) : RDT_ERANGE;
}

rdt_status
rdt_transfer_create(rdt_context *ctx, rdt_transfer **out, struct rdt_error *err)
{
    const rdt_status status = rdti_context_check(ctx, "transfer_create", err);

    if (status != RDT_OK)
        return status;
    rdt_transfer *t = rdti_transfer_new(ctx->pool);
    if (t == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer of %zu bytes", sizeof(*t));
    *out = t;
    return RDT_OK;
}
