/* SPDX-License-Identifier: Apache-2.0
 * A lane of the shm transport, and the rules that its parts follow.
 *
 * Transmit. write() copies into the peer's mapped memory and publishes the notification, in the
 * caller's thread under tx_lock: if it returns without queueing, the op is complete. It queues in
 * three cases: an op is already queued (order), the segment is not mapped yet, or the ring is full.
 * poll() and the arrival of a segment push queued ops, in order.
 *
 *   state of an op   may its source be read?   leaves by
 *   in write()       yes                       done -> complete(RDT_OK); else QUEUED, or refused
 *   QUEUED           yes                       pushed -> complete(RDT_OK); its generation over ->
 *                                              complete(RDT_ESTALE); the lane's error or
 *                                              close_lane() -> complete(that)
 *
 * Revocation. The owner of a region ends its generation in the table (shared memory) and only then
 * requests the acknowledgement, through a socket. Each access compares the generation just before
 * its copy, a queued one again when it is pushed. So an access that saw the old generation has
 * ended when its write() or read() returns (the core counts the threads inside and acknowledges
 * when it has seen none), and no later access sees the old generation. Without that count,
 * is_idle() is the barrier: it takes both locks, so that every earlier access has ended when it
 * returns, whatever its result. This is cooperation, not isolation: a peer that does not check can
 * write anywhere in a segment that it mapped.
 *
 * Receive. Only poll() takes from the inbound ring, under the engine's lock; it needs no lock of
 * the lane.
 *
 * Locks: engine, then read_lock, then tx_lock. No callback and no completion runs under the lane's
 * locks, and no system call except the copy itself (process_vm_writev) and the preparation of its
 * first one (MADV_POPULATE_WRITE).
 */
#ifndef RDTI_SHM_LANE_H
#define RDTI_SHM_LANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/system/doorbell.h"
#include "base/list.h"
#include "transport/shm/limits.h"
#include "transport/shm/process.h"
#include "transport/shm/ring.h"
#include "transport/shm/segments.h"
#include "transport/transport.h"

struct shm_state {
    const struct rdti_host *host;
    struct rdti_list lanes;  /* [driver] connected or not */
    struct rdti_list closed; /* [driver] closed inside a callback of poll(), freed at its end */
    bool is_polling;         /* [driver] */
};

/* Bits of `attention`: poll() has work in addition to the ring. */
enum { SHM_ATTENTION_QUEUE = 1, SHM_ATTENTION_ERROR = 2 };

struct shm_lane {
    struct rdti_lane base;
    struct rdti_list node; /* [driver] in the state's lists */
    struct shm_state *state;
    int32_t peer_rank;
    bool is_connected;      /* [driver]; set once, before on_ready() */
    bool is_closed;         /* [driver] */
    bool is_error_reported; /* [driver] */
    int ring_fd;            /* of `ring`, for the offer */
    struct shm_ring *ring;  /* inbound, owned */

    /* Receive side [driver]. */
    _Alignas(SHM_LINE_BYTES) struct shm_cursor rx;
    uint32_t rx_unpublished; /* entries taken since head was stored */

    /* Immutable after connect(). */
    struct shm_ring *peer_ring;          /* outbound, the peer's */
    struct rdti_doorbell *bell;          /* the peer's */
    int event_fd;                        /* the peer's */
    const _Atomic uint32_t *generations; /* the peer's, read-only */
    uint32_t generation_count;
    struct shm_process process;

    /* Transmit side, under tx_lock. */
    _Alignas(SHM_LINE_BYTES) pthread_mutex_t tx_lock;
    struct shm_cursor tx;
    uint32_t tx_head; /* the peer's head as last read */
    struct rdti_list queue;
    struct shm_segments segments;
    bool is_failed;
    struct rdt_error error;    /* the first, if is_failed */
    pthread_mutex_t read_lock; /* one read at a time, so that is_idle() can wait for it */

    /* Set under tx_lock, read by poll() without it: acquire pairs with the release of the
     * setter. */
    _Alignas(SHM_LINE_BYTES) _Atomic uint32_t attention;

    /* The peer reads it to check that this is the process of the offer. */
    uint8_t nonce[SHM_NONCE_BYTES];
};

static inline struct shm_lane *
shm_lane_of(struct rdti_lane *lane)
{
    return RDTI_CONTAINER(lane, struct shm_lane, base);
}

/* Spins briefly before it sleeps: most holders release the lock sooner than a sleep takes. */
void rdti_shm_lock(pthread_mutex_t *lock);
void rdti_shm_unlock(pthread_mutex_t *lock);

/* lane.c: checks that sealed memfds can be created and mapped here. RDT_ENOTVIABLE. */
rdt_status rdti_shm_viable(struct rdt_error *err);
/* lane.c: set-up and end; entries of struct rdti_transport. */
rdt_status rdti_shm_make_offer(void *state, const struct rdti_lane_args *args,
                               struct rdti_lane **out, struct rdti_offer *offer,
                               struct rdt_error *err);
rdt_status rdti_shm_connect(struct rdti_lane *lane, struct rdti_offer *peer, struct rdt_error *err);
void rdti_shm_fail_lane(struct rdti_lane *lane, const struct rdt_error *err);
void rdti_shm_close_lane(struct rdti_lane *lane, const struct rdt_error *err);
/* Unmap and free a lane whose ops are all complete. */
void rdti_shm_lane_free(struct shm_lane *l);

/* transmit.c: entries of struct rdti_transport. */
rdt_status rdti_shm_write(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);
rdt_status rdti_shm_read(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err);
rdt_status rdti_shm_map_region(struct rdti_lane *lane, const struct rdt_remote_region *remote,
                               void **out, struct rdt_error *err);
bool rdti_shm_is_idle(struct rdti_lane *lane);

/* queue.c. [driver] fd -1: the peer has no such segment. */
void rdti_shm_segment_arrived(struct rdti_lane *lane, uint32_t segment, int fd, uint64_t len_bytes);
/* [driver] Push queued ops; after the lane failed, complete them with its error. Returns their
 * number. */
uint32_t rdti_shm_push(struct shm_lane *l);
/* Make *err the lane's first error, unless it has one. */
void rdti_shm_fail(struct shm_lane *l, const struct rdt_error *err);
/* [driver] Complete every queued op with *err. */
void rdti_shm_drain(struct shm_lane *l, const struct rdt_error *err);

#endif
