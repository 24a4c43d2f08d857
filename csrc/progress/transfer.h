/* SPDX-License-Identifier: Apache-2.0
 * Transfers: one operation in flight, and the handle on it.
 *
 *   state     may the buffers still be read or written?   leaves by
 *   PENDING   yes                                          finish, once -> DONE
 *   DONE      no                                           last reference -> gone (to the pool)
 *
 * DONE with RDT_OK or an error. Cancelled is DONE with RDT_ECANCELED, closed DONE with RDT_ECLOSED:
 * in both the lane has let go of the buffers before. A transfer has one reference of its handle and
 * one of the operation in flight; whoever drops the last returns it.
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
    struct rdti_list link; /* of whoever composed the operation (mailbox), else unlinked */
    struct rdti_transfer_pool *pool;
    struct rdt_block pair[2]; /* room for op.blocks of a head and a payload */
    struct rdt_block *blocks; /* copied list of write_many, freed with the transfer */
    struct rdt_error *error;  /* set before DONE if status is not RDT_OK */
    /* At finish, before waiters see it: the result is there, and its error may be given more words.
     * May be NULL. Does not block. */
    void (*on_release)(struct rdt_transfer *t);
    void (*on_drop)(
        struct rdt_transfer *t); /* [driver] the handle was given up while PENDING; may be NULL */
    void *owner;                 /* of those two */
    void (*explain)(void *arg, struct rdt_error *err); /* [driver] or NULL */
    void *explain_arg;
    rdt_endpoint *ep;        /* that it was posted to last, or NULL */
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

/* timeout_ns: what RDT_TIMEOUT_DEFAULT means. */
rdt_status rdti_transfer_pool_create(struct rdti_engine *engine, uint64_t timeout_ns,
                                     struct rdti_transfer_pool **out, struct rdt_error *err);
/* Transfers that are still out: RDT_EBUSY for the context's close. */
uint64_t rdti_transfer_pool_live(const struct rdti_transfer_pool *pool);
void rdti_transfer_pool_destroy(struct rdti_transfer_pool *pool);
/* As rdt_context_trace_start() and rdt_context_trace_read(). */
rdt_status rdti_transfer_pool_trace(struct rdti_transfer_pool *pool, uint32_t capacity,
                                    struct rdt_error *err);
struct rdti_trace *rdti_transfer_pool_get_trace(const struct rdti_transfer_pool *pool);

/* A PENDING transfer with both references, and op.complete; op.remote and op.block are the caller's
 * to fill, the rest of op is zero. Any thread, no malloc in the steady state. */
struct rdt_transfer *rdti_transfer_new(struct rdti_transfer_pool *pool);
/* An operation that was refused before it began: gives the transfer back without an end. */
void rdti_transfer_discard(struct rdt_transfer *t);
/* Ends it and drops the reference in flight. err may be NULL. Any thread. */
void rdti_transfer_finish(struct rdt_transfer *t, rdt_status status, const struct rdt_error *err);
/* struct rdti_op's complete() */
void rdti_transfer_op_complete(struct rdti_op *op, rdt_status status, const struct rdt_error *err);

static inline bool
rdti_transfer_is_done(const struct rdt_transfer *t)
{
    /* seq_cst: the waiter's second look before sleep; pairs with the store in
     * rdti_transfer_finish(). */
    return atomic_load_explicit(&t->is_done, memory_order_seq_cst) != 0;
}

#endif
