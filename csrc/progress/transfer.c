/* SPDX-License-Identifier: Apache-2.0
 * Transfers and their pool. */
#include "progress/transfer.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/system/cpu.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "progress/trace.h"
#include "rdmatensor_ext.h"

/* The hook's value after completion. Never the address of a transfer. */
#define HOOK_DONE ((uintptr_t)1)
/* Free transfers kept for the next operation; further ones are freed. Enough for a step of a large
 * model. */
#define POOL_KEEP 4096
/* 1.5 GiB of trace: more is a mistake. */
#define TRACE_MAX (UINT32_C(1) << 24)

struct rdti_transfer_pool {
    struct rdti_engine *engine;
    uint64_t timeout_ns;
    atomic_flag lock; /* held for a few instructions: a spin is shorter than any sleep */
    struct rdti_list idle;
    uint32_t idle_count;
    _Atomic uint64_t live_count;
    /* NULL until tracing is started, then constant; release, pairs with the acquire of tracers. */
    struct rdti_trace *_Atomic trace;
};

static void
transfer_pool_lock(struct rdti_transfer_pool *pool)
{
    /* acquire/release pair of the pool's lists */
    while (atomic_flag_test_and_set_explicit(&pool->lock, memory_order_acquire))
        rdti_cpu_relax();
}

static void
transfer_pool_unlock(struct rdti_transfer_pool *pool)
{
    atomic_flag_clear_explicit(&pool->lock, memory_order_release);
}

rdt_status
rdti_transfer_pool_create(struct rdti_engine *engine, uint64_t timeout_ns,
                          struct rdti_transfer_pool **out, struct rdt_error *err)
{
    struct rdti_transfer_pool *pool = calloc(1, sizeof(*pool));

    if (pool == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a transfer pool of %zu bytes", sizeof(*pool));
    pool->engine = engine;
    pool->timeout_ns = timeout_ns;
    atomic_flag_clear(&pool->lock);
    rdti_list_init(&pool->idle);
    *out = pool;
    return RDT_OK;
}

uint64_t
rdti_transfer_pool_live(const struct rdti_transfer_pool *pool)
{
    /* acquire: sees what the last release wrote before the pool is destroyed */
    return atomic_load_explicit(&pool->live_count, memory_order_acquire);
}

void
rdti_transfer_pool_destroy(struct rdti_transfer_pool *pool)
{
    struct rdti_list *node;

    if (pool == NULL)
        return;
    while ((node = rdti_list_take_first(&pool->idle)) != NULL)
        free(RDTI_CONTAINER(node, struct rdt_transfer, link));
    rdti_trace_destroy(rdti_transfer_pool_get_trace(pool));
    free(pool);
}

rdt_status
rdti_transfer_pool_trace(struct rdti_transfer_pool *pool, uint32_t capacity, struct rdt_error *err)
{
    struct rdti_trace *none = NULL;

    if (capacity < 1 || capacity > TRACE_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "trace: room for %u transfers; 1 to %u can be",
                              capacity, TRACE_MAX);
    struct rdti_trace *trace = rdti_trace_create(capacity);
    if (trace == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a trace of %u transfers", capacity);
    if (!atomic_compare_exchange_strong_explicit(&pool->trace, &none, trace, memory_order_release,
                                                 memory_order_relaxed)) {
        rdti_trace_destroy(trace);
        return rdti_error_set(err, RDT_EINVAL, 0, "trace: it is on already");
    }
    return RDT_OK;
}

struct rdti_trace *
rdti_transfer_pool_get_trace(const struct rdti_transfer_pool *pool)
{
    return atomic_load_explicit(&pool->trace, memory_order_acquire);
}

static void
transfer_run_done_hook(struct rdti_deferred *node)
{
    struct rdt_transfer *t = RDTI_CONTAINER(node, struct rdt_transfer, deferred);

    t->done_fn(t->done_arg);
    rdti_engine_async_add(t->pool->engine, -1);
    rdt_transfer_free(t); /* the hook's own reference */
}

/* Sets it to PENDING. Field by field: clearing all of it would use a string instruction, which is
 * slow to start, and takes some hundred steps on an emulated machine. The caller that starts the op
 * fills op.remote, op.block and pair; the lane owns op.scratch. */
static void
transfer_reset(struct rdt_transfer *t, struct rdti_transfer_pool *pool)
{
    struct rdti_op *op = &t->op;

    rdti_list_init(&op->link);
    op->kind = 0;
    op->notify = 0;
    op->blocks = NULL;
    op->block_count = 0;
    op->is_urgent = false;
    op->may_ride = false;
    op->has_ridden = false;
    op->is_relied_on = false;
    op->traffic = RDTI_TRAFFIC_PLANNED;
    op->flag_sequence = 0;
    op->flag_off = 0;
    op->len_bytes = 0;
    op->complete = rdti_transfer_op_complete;
    rdti_list_init(&t->link);
    t->pool = pool;
    t->blocks = NULL;
    t->error = NULL;
    t->on_release = NULL;
    t->on_drop = NULL;
    t->owner = NULL;
    t->explain = NULL;
    t->ep = NULL;
    t->trace_sequence = 0;
    t->len_bytes = 0;
    t->source = RDT_RANK_UNKNOWN;
    t->status = RDT_OK;
    /* relaxed, all: published with the handle */
    atomic_store_explicit(&t->is_done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->refs, 2, memory_order_relaxed);
    atomic_store_explicit(&t->hook, 0, memory_order_relaxed);
    t->deferred.run = transfer_run_done_hook;
    t->done_fn = NULL;
    t->done_arg = NULL;
}

struct rdt_transfer *
rdti_transfer_new(struct rdti_transfer_pool *pool)
{
    struct rdti_list *node;

    transfer_pool_lock(pool);
    node = rdti_list_take_first(&pool->idle);
    if (node != NULL)
        pool->idle_count--;
    transfer_pool_unlock(pool);
    struct rdt_transfer *t =
        node != NULL ? RDTI_CONTAINER(node, struct rdt_transfer, link) : malloc(sizeof(*t));
    if (t == NULL)
        return NULL;
    transfer_reset(t, pool);
    (void)atomic_fetch_add_explicit(&pool->live_count, 1, memory_order_relaxed);
    return t;
}

static void
transfer_release(struct rdt_transfer *t)
{
    struct rdti_transfer_pool *pool = t->pool;
    bool kept = false;

    free(t->blocks);
    free(t->error);
    transfer_pool_lock(pool);
    if (pool->idle_count < POOL_KEEP) {
        rdti_list_init(&t->link);
        rdti_list_append(&pool->idle, &t->link);
        pool->idle_count++;
        kept = true;
    }
    transfer_pool_unlock(pool);
    if (!kept)
        free(t);
    (void)atomic_fetch_sub_explicit(&pool->live_count, 1, memory_order_release);
}

static void
transfer_drop(struct rdt_transfer *t)
{
    /* acq_rel: the last one sees all that the others wrote */
    if (atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) == 1)
        transfer_release(t);
}

static void
transfer_trace_end(const struct rdt_transfer *t, rdt_status status)
{
    if (t->trace_sequence != 0)
        rdti_trace_end(rdti_transfer_pool_get_trace(t->pool), t->trace_sequence, status,
                       t->len_bytes);
}

void
rdti_transfer_discard(struct rdt_transfer *t)
{
    transfer_trace_end(t, RDT_ECANCELED);
    transfer_release(t);
}

void
rdti_transfer_finish(struct rdt_transfer *t, rdt_status status, const struct rdt_error *err)
{
    assert(!rdti_transfer_is_done(t)); /* PENDING -> DONE, once */
    t->status = status;
    if (status != RDT_OK && err != NULL && (t->error = malloc(sizeof(*t->error))) != NULL)
        *t->error = *err; /* without memory only the status is reported */
    if (t->on_release != NULL)
        t->on_release(t);
    transfer_trace_end(t, status);
    /* seq_cst: publishes the result; pairs with rdti_transfer_is_done() before a sleep. */
    atomic_store_explicit(&t->is_done, 1, memory_order_seq_cst);
    if (atomic_exchange_explicit(&t->hook, HOOK_DONE, memory_order_acq_rel) != 0)
        rdti_engine_defer(t->pool->engine, &t->deferred);
    struct rdti_engine *engine = t->pool->engine;
    transfer_drop(t);
    rdti_engine_wake(engine);
}

void
rdti_transfer_op_complete(struct rdti_op *op, rdt_status status, const struct rdt_error *err)
{
    struct rdt_transfer *t = RDTI_CONTAINER(op, struct rdt_transfer, op);

    if (status == RDT_OK)
        t->len_bytes = op->len_bytes;
    rdti_transfer_finish(t, status, err);
}

/* ---- Public ------------------------------------------------------------------------------ */

static rdt_status
transfer_result(const struct rdt_transfer *t, struct rdt_error *err)
{
    if (t->status != RDT_OK && t->error != NULL)
        return rdti_error_copy(err, t->error);
    if (t->status != RDT_OK)
        return rdti_error_set(err, t->status, 0, "the transfer ended with %s",
                              rdt_status_name(t->status));
    return RDT_OK;
}

rdt_status
rdt_transfer_test(rdt_transfer *t, struct rdt_error *err)
{
    return rdti_transfer_is_done(t) ? transfer_result(t, err) : RDT_EAGAIN;
}

static bool
transfer_is_done(void *arg)
{
    return rdti_transfer_is_done(arg);
}

rdt_status
rdt_transfer_wait(rdt_transfer *t, uint64_t timeout_ns, struct rdt_error *err)
{
    if (rdti_transfer_is_done(t)) {
        rdti_engine_note_wait(t->pool->engine);
        return transfer_result(t, err);
    }
    if (rdti_in_forked_child())
        return rdti_error_set(err, RDT_EFORKED, 0,
                              "wait: this is a forked child; only its parent may use the context: "
                              "spawn the process instead");
    if (rdti_engine_is_soon(t->pool->engine, transfer_is_done, t, false))
        return transfer_result(t, err);
    if (timeout_ns == RDT_TIMEOUT_DEFAULT)
        timeout_ns = t->pool->timeout_ns;
    const rdt_status status = rdti_engine_wait_counted(t->pool->engine, transfer_is_done, t,
                                                       rdti_deadline_after(timeout_ns));
    if (status == RDT_OK)
        return transfer_result(t, err);
    if (status == RDT_EINVAL)
        return rdti_error_set(err, RDT_EINVAL, 0, "wait: called from a task, which must not wait");
    return rdti_error_set(err, status, 0, "the transfer was not done within %.3f s",
                          (double)timeout_ns / 1e9);
}

void
rdt_transfer_on_done(rdt_transfer *t, void (*done)(void *arg), void *arg)
{
    uintptr_t none = 0;

    if (rdti_in_forked_child())
        return; /* the parent sees the completion */
    t->done_fn = done;
    t->done_arg = arg;
    rdti_engine_async_add(t->pool->engine, 1);
    (void)atomic_fetch_add_explicit(&t->refs, 1,
                                    memory_order_relaxed); /* this thread holds a reference */
    /* acq_rel: hands done_fn to the thread in rdti_transfer_finish(), or sees that it has already
     * finished. */
    if (!atomic_compare_exchange_strong_explicit(&t->hook, &none, (uintptr_t)t,
                                                 memory_order_acq_rel, memory_order_acquire))
        transfer_run_done_hook(&t->deferred);
}

void
rdt_transfer_explain(rdt_transfer *t, void (*explain)(void *arg, struct rdt_error *err), void *arg)
{
    t->explain = explain;
    t->explain_arg = arg;
}

void
rdt_transfer_awaits(rdt_transfer *t, struct rdt_error *err)
{
    if (t->explain == NULL || rdti_transfer_is_done(t) || rdti_in_forked_child())
        return;
    rdti_engine_enter(t->pool->engine); /* a thread that ends it holds this lock */
    if (!rdti_transfer_is_done(t))
        t->explain(t->explain_arg, err);
    rdti_engine_leave(t->pool->engine);
}

uint64_t
rdt_transfer_len_bytes(const rdt_transfer *t)
{
    return t->len_bytes;
}

int32_t
rdt_transfer_source(const rdt_transfer *t)
{
    return t->source;
}

void
rdt_transfer_free(rdt_transfer *t)
{
    if (t == NULL || rdti_in_forked_child())
        return;
    if (t->on_drop != NULL && !rdti_transfer_is_done(t)) {
        rdti_engine_enter(t->pool->engine);
        if (!rdti_transfer_is_done(t))
            t->on_drop(t);
        rdti_engine_leave(t->pool->engine);
    }
    transfer_drop(t);
}

void
rdt_transfer_finish(rdt_transfer *t, rdt_status status, const struct rdt_error *err)
{
    if (!rdti_in_forked_child())
        rdti_transfer_finish(t, status, err);
}

void
rdt_transfer_trace(rdt_transfer *t, const char *name, int32_t peer_rank, uint64_t len_bytes)
{
    struct rdti_trace *trace = rdti_transfer_pool_get_trace(t->pool);

    if (trace != NULL && !rdti_in_forked_child())
        t->trace_sequence = rdti_trace_begin(trace, name, peer_rank, len_bytes);
}
