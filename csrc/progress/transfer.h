/* SPDX-License-Identifier: Apache-2.0
 * Transfers: one operation in flight, and its handle.
 *
 *   state     may the buffers still be read or written?   leaves by
 *   PENDING   yes                                          finish, once -> DONE
 *   DONE      no                                           last reference -> gone (to the pool)
 *
 * DONE with RDT_OK or an error. A cancelled transfer is DONE with RDT_ECANCELED, a closed one DONE
 * with RDT_ECLOSED; in both cases the lane has released the buffers before. The handle and the
 * operation in flight each hold a reference; the thread that drops the last one returns the
 * transfer to the pool.
 */
#ifndef RDTI_PROGRESS_TRANSFER_H
#define RDTI_PROGRESS_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "progress/engine.h"
#include "rdmatensor.h"
#include "transport/transport.h"

struct rdti_transfer_pool;

struct rdt_transfer {
    struct rdti_op op;     /* for a lane; op.complete is rdti_transfer_op_complete */
    struct rdti_list link; /* for the composer of the operation (mailbox), else unlinked */
    struct rdti_transfer_pool *pool;
    struct rdt_block pair[2]; /* room for op.blocks of a head and a payload */
    struct rdt_block *blocks; /* copied list of write_many, freed with the transfer */
    struct rdt_error *error;  /* set before DONE if status is not RDT_OK */
    /* At finish, before waiters see it: the result is set, and the hook may extend its error. May
     * be NULL. Does not block. */
    void (*on_release)(struct rdt_transfer *t);
    void (*on_drop)(
        struct rdt_transfer *t); /* [driver] the handle was freed while PENDING; may be NULL */
    void *owner;                 /* for those two */
    void (*explain)(void *arg, struct rdt_error *err); /* [driver] or NULL */
    void *explain_arg;
    rdt_endpoint *ep;        /* it was last posted to this endpoint, or NULL */
    uint64_t trace_sequence; /* 0: not traced */
    uint64_t len_bytes;      /* result: bytes that moved */
    int32_t source;          /* result: group rank, or RDT_RANK_UNKNOWN */
    rdt_status status;
    _Atomic uint32_t is_done;
    _Atomic uint32_t refs;
    _Atomic uintptr_t hook; /* 0, the transfer itself once a hook is set, or HOOK_DONE */
    struct rdti_deferred deferred;
    void (*done_fn)(void *arg);
    void *done_arg;
};

/* timeout_ns: the value of RDT_TIMEOUT_DEFAULT. */
rdt_status rdti_transfer_pool_create(struct rdti_engine *engine, uint64_t timeout_ns,
                                     struct rdti_transfer_pool **out, struct rdt_error *err);
/* Number of live transfers; the context's close returns RDT_EBUSY while there are any. */
uint64_t rdti_transfer_pool_live(const struct rdti_transfer_pool *pool);
void rdti_transfer_pool_destroy(struct rdti_transfer_pool *pool);
/* As rdt_context_trace_start() and rdt_context_trace_read(). */
rdt_status rdti_transfer_pool_trace(struct rdti_transfer_pool *pool, uint32_t capacity,
                                    struct rdt_error *err);
struct rdti_trace *rdti_transfer_pool_get_trace(const struct rdti_transfer_pool *pool);

/* A PENDING transfer with both references and op.complete set. The caller fills op.remote and
 * op.block; the rest of op is zero. Any thread, no malloc in the steady state. */
struct rdt_transfer *rdti_transfer_new(struct rdti_transfer_pool *pool);
/* For an operation that was refused before it began: frees the transfer without finishing it. */
void rdti_transfer_discard(struct rdt_transfer *t);
/* Ends it and drops the reference in flight. err may be NULL. Any thread. */
void rdti_transfer_finish(struct rdt_transfer *t, rdt_status status, const struct rdt_error *err);
/* struct rdti_op's complete() */
void rdti_transfer_op_complete(struct rdti_op *op, rdt_status status, const struct rdt_error *err);

static inline bool
rdti_transfer_is_done(const struct rdt_transfer *t)
{
    /* seq_cst: the waiter's second check before it sleeps; pairs with the store in
     * rdti_transfer_finish(). */
    return atomic_load_explicit(&t->is_done, memory_order_seq_cst) != 0;
}

#endif
