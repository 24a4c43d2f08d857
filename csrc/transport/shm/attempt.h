/* SPDX-License-Identifier: Apache-2.0
 * One attempt to do an operation now: its progress, and the work to do after the locks are
 * released. */
#ifndef RDTI_SHM_ATTEMPT_H
#define RDTI_SHM_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/shm/lane.h"

enum shm_progress {
    SHM_DONE,          /* in place, and published */
    SHM_REFUSED,       /* stale or out of range: ends this op only */
    SHM_FAILED,        /* a copy that failed in the middle: ends the lane */
    SHM_NEEDS_SEGMENT, /* wait for segment_arrived() */
    SHM_NEEDS_ROOM     /* wait until the peer takes from its ring */
};

struct shm_attempt {
    struct rdt_error *err; /* not NULL; filled with SHM_REFUSED and SHM_FAILED */
    rdt_status status;     /* of err, else RDT_OK */
    bool is_for_reading;   /* else a segment that is mapped for reading refuses */
    bool asks_segment;
    uint32_t segment;
    bool rings;
    bool is_urgent;
};

/*
 * The address of a peer's region in this process, if its generation is live and its segment is
 * mapped. Enters the ranges of the blocks, which lie in the region, into this process's page table.
 * Under tx_lock.
 */
enum shm_progress rdti_shm_reach(struct shm_lane *l, const struct rdt_remote_region *remote,
                                 const struct rdt_block *blocks, uint32_t count,
                                 struct shm_attempt *attempt, uint8_t **base_out);

/* SHM_DONE or SHM_REFUSED. Under tx_lock or read_lock: see lane.h, Revocation. */
enum shm_progress rdti_shm_check_generation(const struct shm_lane *l,
                                            const struct rdt_remote_region *remote,
                                            struct shm_attempt *attempt);

/* Of a copy through the kernel: if the permission has been withdrawn, only this op ends. */
static inline enum shm_progress
rdti_shm_moved(const struct shm_attempt *attempt)
{
    if (attempt->status == RDT_OK)
        return SHM_DONE;
    return attempt->status == RDT_ENOTSUP ? SHM_REFUSED : SHM_FAILED;
}

/* Do the write or read that is next. Under tx_lock. */
enum shm_progress rdti_shm_execute_write(struct shm_lane *l, const struct rdti_op *op,
                                         struct shm_attempt *attempt);
enum shm_progress rdti_shm_execute_read(struct shm_lane *l, const struct rdti_op *op,
                                        struct shm_attempt *attempt);

/* Rings the bell and requests the segment, without a lock. */
void rdti_shm_follow_up(struct shm_lane *l, const struct shm_attempt *attempt);

/* Count and complete an op that is done, without a lock. */
void rdti_shm_finish(struct shm_lane *l, struct rdti_op *op);

/* queue.c, under tx_lock. */
void rdti_shm_enqueue(struct shm_lane *l, struct rdti_op *op);
void rdti_shm_fail_locked(struct shm_lane *l, const struct rdt_error *err);

/* Whether a write names a region at all: a notification alone has index 0, which no region has. */
static inline bool
shm_names_region(const struct rdti_op *op)
{
    return op->len_bytes > 0 || op->remote.index != 0;
}

#endif
