/* SPDX-License-Identifier: Apache-2.0
 *
 * rdmatensor_ext.h - calls for code that composes operations of its own out of rdmatensor's, as the
 * library's collectives and its backend of torch.distributed do. Programs that only use rdmatensor
 * need rdmatensor.h alone.
 *
 * These calls have a version of their own: RDT_EXT_VERSION grows with every change that breaks a
 * caller, also where the major number of rdmatensor.h stays. Build such code for one version of the
 * library. The rules at the head of rdmatensor.h hold here too.
 */
#ifndef RDMATENSOR_EXT_H
#define RDMATENSOR_EXT_H

#include "rdmatensor.h"

#define RDT_EXT_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Context --------------------------------------------------------------------------- */

/*
 * The RDT_VERIFY_* setting of the context. If it verifies, payload that differs from the sent bytes
 * is never delivered: the operation, and the endpoint with all its operations, end with
 * RDT_ECORRUPT, which names the slot, message or region, the peer, the path and the offset.
 */
RDT_API uint32_t rdt_context_verifies(const rdt_context *ctx);

/* For composed operations that access peers' memory themselves (rdt_endpoint_hold): adds their
 * writes, moved_bytes (over shm; planned_bytes of these count as planned, the others as dynamic),
 * copied_bytes and control_messages (planned_copied_bytes and planned_control_messages of these
 * count as planned, the others as dynamic), credits_alone, verified_bytes and mismatches to the
 * totals. */
RDT_API void rdt_context_count(rdt_context *ctx, const struct rdt_counters *more);

/* For a caller that polls memory that a peer writes, between two polls: spins briefly, or yields
 * the core (sched_yield()) if the job has more processes than cores on this host. `look` counts the
 * polls from 1 on, since_ns is the time of the first one on the monotonic clock. 0: the caller has
 * polled for long enough, or other processes want the core, and it should wait by a call that
 * sleeps. Any thread. */
RDT_API uint32_t rdt_context_linger(rdt_context *ctx, uint64_t since_ns, uint32_t look);

/*
 * Around a call that starts an operation for which the same thread waits at once: between the two
 * no thread is woken to drive it. They nest, and cost a few ns; a long time between them delays
 * operations that other threads have started. Any thread.
 */
RDT_API void rdt_context_attend(rdt_context *ctx);
RDT_API void rdt_context_unattend(rdt_context *ctx);

/*
 * A task runs in every pass of the engine until it returns RDT_OK or an error; RDT_EAGAIN means
 * "again". It runs under the engine's lock: it may post operations but must not
 * wait. Finished and failed tasks are removed.
 */
typedef rdt_status (*rdt_task_fn)(void *arg);
RDT_API RDT_NODISCARD rdt_status rdt_context_add_task(rdt_context *ctx, rdt_task_fn step, void *arg,
                                                      struct rdt_error *err);

/* ---- Endpoints ------------------------------------------------------------------------- */

/*
 * As rdt_endpoint_map(), but without waiting. The memory stays mapped, and its bytes stay in place
 * when the owner frees the region, leaves or ends, until rdt_endpoint_unhold(). Counts as an open
 * of the endpoint. Tasks may call both.
 *   RDT_EAGAIN the path is not ready, or the segment has not arrived; else as rdt_endpoint_map()
 */
RDT_API RDT_NODISCARD rdt_status rdt_endpoint_hold(rdt_endpoint *ep,
                                                   const struct rdt_remote_region *remote,
                                                   void **out, struct rdt_error *err);
RDT_API void rdt_endpoint_unhold(rdt_endpoint *ep, const struct rdt_remote_region *remote);

/* After a seq_cst store into held memory, or into memory that the peer holds: wakes the peer's
 * waiters, so that its tasks check again. No system call while they are awake. Only with a hold. */
RDT_API void rdt_endpoint_ring(rdt_endpoint *ep);

/* ---- Transfers ------------------------------------------------------------------------- */

/*
 * A transfer that the caller finishes: the handle of an operation that is composed of others. Call
 * rdt_transfer_finish() exactly once, from any thread or task; `err` may be NULL for RDT_OK.
 */
RDT_API RDT_NODISCARD rdt_status rdt_transfer_create(rdt_context *ctx, rdt_transfer **out,
                                                     struct rdt_error *err);
RDT_API void rdt_transfer_finish(rdt_transfer *t, rdt_status status, const struct rdt_error *err);

/* Its entry in the trace, if tracing is on: call it at most once, before the transfer is
 * finished. */
RDT_API void rdt_transfer_trace(rdt_transfer *t, const char *name, int32_t peer_rank,
                                uint64_t len_bytes);

/*
 * Call it before any other code uses the transfer. explain() reports in err->message and
 * err->peer_rank what the transfer waits for, or does not change err. It is called while the
 * transfer is in flight, under the engine's lock as tasks are, and must not wait.
 */
RDT_API void rdt_transfer_explain(rdt_transfer *t,
                                  void (*explain)(void *arg, struct rdt_error *err), void *arg);

/* Reports what a collective in flight waits for, e.g. "barrier #3: after 0.3 s nothing from rank
 * 1"; else does not change err. Any thread. */
RDT_API void rdt_transfer_awaits(rdt_transfer *t, struct rdt_error *err);

/* ---- Groups ---------------------------------------------------------------------------- */

/*
 * For operations composed on a group: its memory stays valid until the last release, also if it is
 * destroyed meanwhile; calls on it then end with RDT_ECANCELED. Tasks may call both.
 */
RDT_API void rdt_group_retain(rdt_group *group);
RDT_API void rdt_group_release(rdt_group *group);

RDT_API rdt_context *rdt_group_context(rdt_group *group);

/* The endpoint of a member, opened at first use and owned by the group. May wait for its address.
 * RDT_EINVAL: no other member has this rank. RDT_EAGAIN: called from a task, and it is not open.
 * Else the error of the address function, rdt_endpoint_open() or rdt_group_error(). */
RDT_API RDT_NODISCARD rdt_status rdt_group_endpoint(rdt_group *group, uint32_t rank,
                                                    rdt_endpoint **out, struct rdt_error *err);

/* A counter of the group's collectives: 1, 2, ... in the order of calls. Any thread. */
RDT_API uint64_t rdt_group_next_sequence(rdt_group *group);

/*
 * Attach one pointer to the group, for code that composes operations on it. `detach(state)` is
 * called once, without a lock, when the group is destroyed. RDT_EBUSY: it already has one.
 */
RDT_API RDT_NODISCARD rdt_status rdt_group_attach(rdt_group *group, void *state,
                                                  void (*detach)(void *state),
                                                  struct rdt_error *err);

/* The attached pointer, or NULL. Any thread. */
RDT_API void *rdt_group_attached(const rdt_group *group);

/*
 * The same after a deadline has passed on this rank. err, not NULL, has the problem and the rank
 * for which this rank waited (err->peer_rank, or RDT_RANK_UNKNOWN). If a member has left or died,
 * err->peer_rank becomes that rank. Else, if exactly one other member has been silent for 2 s or
 * longer (heartbeats are sent each second), or has not answered for as long since its connection
 * began, that member is the cause: its rank and a description are added to err. Any thread; in a
 * forked child it does nothing.
 */
RDT_API void rdt_group_give_up(rdt_group *group, struct rdt_error *err);

/* Adds to err the member that rdt_group_give_up() would find: left, dead, silent, or the cause of
 * an abort. It does not end the group; a message that it reads from a member may. */
RDT_API void rdt_group_blame(rdt_group *group, struct rdt_error *err);

enum { RDT_STANDS_NOT = 0, RDT_STANDS_HERE, RDT_STANDS_ELSEWHERE };
/*
 * How a receive at dst would get a message of len_bytes bytes from `src` under a tag that is used
 * once (RDT_TAG_ONCE):
 *   RDT_STANDS_NOT        by the default path: it is small enough for a ring, the path is shared
 *                         memory or not ready yet, or it is too long to be checksummed in one piece
 *   RDT_STANDS_HERE       by a persistent receive: dst is sent to the source once for all receives
 *                         of that length there, and each posted receive is announced; the source
 *                         writes there at once
 *   RDT_STANDS_ELSEWHERE  by the rendezvous protocol, as its source cannot write dst; it could
 *                         write arena memory or registered memory
 * The answer holds now and may change. Exports the region at dst as rdt_region_export() does; takes
 * the engine's lock, and waits for no peer. Any thread, also tasks. RDT_STANDS_NOT for invalid
 * calls (group NULL, no such member, a forked child).
 */
RDT_API uint32_t rdt_group_stands(rdt_group *group, uint32_t src, const void *dst,
                                  uint64_t len_bytes);

/*
 * 1 if the call that sends a message of len_bytes bytes to rank `dst` under a tag that is used once
 * (RDT_TAG_ONCE) would write it at once, because its receive has been announced. Else 0, also for
 * invalid calls (group NULL, no such member or this rank, another tag, a forked child). If it is 1,
 * a caller that both sends and receives posts the receive first: after a message that fills the
 * link, the announcement would reach the peer too late. If it is 0, it posts the send first: its
 * RTS would otherwise wait for the transfer that the answer to the peer's RTS starts. The answer
 * holds now and may change. Takes the engine's lock, and waits for no peer. Any thread, also tasks.
 */
RDT_API uint32_t rdt_group_is_told(rdt_group *group, uint32_t dst, uint64_t tag,
                                   uint64_t len_bytes);

enum {
    RDT_BROKEN_NOT = 0,     /* it works */
    RDT_BROKEN_BY_DEADLINE, /* a deadline passed on this rank: rdt_group_give_up() */
    RDT_BROKEN_BY_LOSS,     /* a member died, left or is unreachable */
    RDT_BROKEN_BY_ABORT,    /* this rank aborted or destroyed it: rdt_group_abort() */
    RDT_BROKEN_BY_MEMBER    /* another member reported its own deadline or abort */
};
/* Why the group broke. RDT_BROKEN_BY_MEMBER becomes RDT_BROKEN_BY_LOSS when this rank learns that
 * the member which that report blamed is dead. Any thread; RDT_BROKEN_NOT in a forked child. */
RDT_API uint32_t rdt_group_broken_by(rdt_group *group);

/* ---- Collectives ------------------------------------------------------------------------ */

/* As rdt_coll_start(), for ALLREDUCE, which in this start on this member reads and writes `memory`,
 * of as many elements, in place of its tensors, which peers do not use meanwhile. RDT_EINVAL also
 * for another operation. */
RDT_API RDT_NODISCARD rdt_status rdt_coll_start_aside(rdt_persistent *persistent, void *memory,
                                                      uint32_t flags, rdt_transfer **out,
                                                      struct rdt_error *err);

/* One of several small tensors in one collective; the fields are those of struct rdt_coll_args. */
struct rdt_coll_part {
    const void *send;
    void *recv;
    uint64_t count;
};
/* Maximum size of a part's `count` elements. Parts are copied twice, which up to this size costs no
 * more than separate messages (collectives.md); send larger tensors separately, in place. */
#define RDT_COLL_PART_MAX_BYTES 16384
/*
 * Start one collective that does for every part what rdt_coll_post() would, bit for bit:
 * ALLREDUCE, ALLGATHER or REDUCE_SCATTER. It ignores count, send, recv and blocks of `args`.
 * Members give the same counts in the same order; parts must not overlap. `parts` is copied; the
 * bytes at send are read before the call returns, those at recv are written at the end. Errors as
 * rdt_coll_post(); RDT_EINVAL also for another operation or a larger part.
 */
RDT_API RDT_NODISCARD rdt_status rdt_coll_post_packed(rdt_group *group,
                                                      const struct rdt_coll_args *args,
                                                      const struct rdt_coll_part *parts,
                                                      uint32_t part_count, rdt_transfer **out,
                                                      struct rdt_error *err);

/* Totals of a group's collectives on this rank; a group of one counts none. */
struct rdt_coll_counters {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t calls; /* started; a packed one counts once */
    uint64_t packs; /* those of rdt_coll_post_packed() */
    uint64_t packed_parts;
    uint64_t writes; /* messages sent to members, or fills of the memory that all members read */
};
/* The caller sets out->struct_size; of a shorter struct only its fields are filled. Any thread. */
RDT_API void rdt_group_coll_counters(const rdt_group *group, struct rdt_coll_counters *out);
/*
 * A JSON object that describes the group's collectives: "way" (shared memory, hosts, messages, or
 * undecided before the first), "algorithm" (RDMATENSOR_ALGO), "ran" (the number carried out by each
 * algorithm), the time of passes over 4 KiB and more on this rank ("summing_s", "copying_s"). After
 * lossy ones "wire": the bytes that they sent, and that exact ones would have sent, blocks that
 * were not finite or beyond the largest scale, and the time of encoding and decoding. With
 * messages also the table of "costs", and the algorithm that each operation has "chosen" by it,
 * with the block size in bytes from which it applies (of rank 0, if there is a root); for hosts
 * "hosts", the host number of each member. `needed_out` gets the bytes without the final NUL;
 * RDT_EINVAL with it set if cap is too small. Any thread.
 */
RDT_API RDT_NODISCARD rdt_status rdt_group_coll_describe(const rdt_group *group, char *buf,
                                                         size_t cap, size_t *needed_out,
                                                         struct rdt_error *err);

#ifdef __cplusplus
}
#endif

#endif
