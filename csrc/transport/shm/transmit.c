/* SPDX-License-Identifier: Apache-2.0
 * write(), read() and map(), which run in the callers' threads. */
#include "base/memory/copy.h"
#include "base/error.h"
#include "base/range.h"
#include "transport/shm/attempt.h"

static rdt_status
transmit_check_range(const struct rdti_op *op, struct rdt_error *err)
{
    for (uint32_t i = 0; i < op->block_count; i++) {
        const struct rdt_block *block = &op->blocks[i];

        if (!rdti_range_ok(block->dst_off, block->len_bytes, op->remote.len_bytes))
            return rdti_error_set(err, RDT_ERANGE, 0,
                                  "block %u: offset %llu + %llu bytes leaves region %u of %llu "
                                  "bytes",
                                  i, (unsigned long long)block->dst_off,
                                  (unsigned long long)block->len_bytes, op->remote.index,
                                  (unsigned long long)op->remote.len_bytes);
    }
    return RDT_OK;
}

/* Checks that need no lock: the op's own fields and immutable state. */
static rdt_status
transmit_check_op(const struct shm_lane *l, const struct rdti_op *op, struct rdt_error *err)
{
    if (!l->is_connected)
        return rdti_error_set(err, RDT_EAGAIN, 0, "shm: the peer's offer has not come");
    const rdt_status status = transmit_check_range(op, err);
    if (status != RDT_OK)
        return status;
    if (op->remote.segment == RDT_SEGMENT_NONE && op->len_bytes > 0)
        return rdti_shm_process_require(&l->process, err);
    return RDT_OK;
}

/* Queued after other ops: makes only the checks that can refuse it now. Under tx_lock. */
static enum shm_progress
transmit_queue_behind(struct shm_lane *l, struct rdti_op *op, struct shm_attempt *attempt)
{
    if (shm_names_region(op) && rdti_shm_check_generation(l, &op->remote, attempt) != SHM_DONE)
        return SHM_REFUSED;
    return SHM_NEEDS_ROOM; /* or whatever the op before it needs */
}

rdt_status
rdti_shm_write(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err)
{
    struct shm_lane *l = shm_lane_of(lane);
    struct rdt_error why; /* used if the caller passes no err */
    struct shm_attempt attempt = {.err = err != NULL ? err : &why};
    enum shm_progress progress = SHM_REFUSED;

    const rdt_status status = transmit_check_op(l, op, err);
    if (status != RDT_OK)
        return status;
    rdti_shm_lock(&l->tx_lock);
    if (l->is_failed)
        attempt.status = rdti_error_copy(attempt.err, &l->error);
    else if (!rdti_list_is_empty(&l->queue))
        progress = transmit_queue_behind(l, op, &attempt);
    else
        progress = rdti_shm_execute_write(l, op, &attempt);
    if (progress == SHM_NEEDS_SEGMENT || progress == SHM_NEEDS_ROOM)
        rdti_shm_enqueue(l, op);
    else if (progress == SHM_FAILED)
        rdti_shm_fail_locked(l, attempt.err);
    rdti_shm_unlock(&l->tx_lock);
    rdti_shm_follow_up(l, &attempt);
    if (progress == SHM_DONE)
        rdti_shm_finish(l, op);
    return attempt.status;
}

/* Under read_lock; takes tx_lock only to find the region, and to queue. */
static enum shm_progress
transmit_begin_read(struct shm_lane *l, struct rdti_op *op, struct shm_attempt *attempt,
                    uint8_t **base_out)
{
    enum shm_progress progress = SHM_REFUSED;

    rdti_shm_lock(&l->tx_lock);
    if (l->is_failed)
        attempt->status = rdti_error_copy(attempt->err, &l->error);
    else if (op->len_bytes == 0 || op->remote.segment == RDT_SEGMENT_NONE)
        progress = rdti_shm_check_generation(l, &op->remote, attempt);
    else
        progress = rdti_shm_reach(l, &op->remote, op->blocks, 1, attempt, base_out);
    if (progress == SHM_NEEDS_SEGMENT)
        rdti_shm_enqueue(l, op);
    rdti_shm_unlock(&l->tx_lock);
    return progress;
}

/*
 * Reads are not ordered, so a read whose segment is mapped bypasses the queue. The copy runs
 * without tx_lock, which writers need, and under read_lock, for which is_idle() waits.
 */
rdt_status
rdti_shm_read(struct rdti_lane *lane, struct rdti_op *op, struct rdt_error *err)
{
    struct shm_lane *l = shm_lane_of(lane);
    const struct rdt_block *block = &op->blocks[0];
    struct rdt_error why;
    struct shm_attempt attempt = {.err = err != NULL ? err : &why, .is_for_reading = true};
    uint8_t *base = NULL;

    const rdt_status status = transmit_check_op(l, op, err);
    if (status != RDT_OK)
        return status;
    rdti_shm_lock(&l->read_lock);
    enum shm_progress progress = transmit_begin_read(l, op, &attempt, &base);
    if (progress == SHM_DONE && base != NULL) {
        rdti_copy((void *)(uintptr_t)block->src, base + block->dst_off, block->len_bytes,
                  RDTI_COPY_TO_OWN);
    } else if (progress == SHM_DONE && op->len_bytes > 0) {
        attempt.status = rdti_shm_process_read(&l->process, op->remote.addr, block, 1, attempt.err);
        progress = rdti_shm_moved(&attempt);
    }
    rdti_shm_unlock(&l->read_lock);
    rdti_shm_follow_up(l, &attempt);
    if (progress == SHM_FAILED)
        rdti_shm_fail(l, attempt.err);
    else if (progress == SHM_DONE)
        rdti_shm_finish(l, op);
    return attempt.status;
}

rdt_status
rdti_shm_map_region(struct rdti_lane *lane, const struct rdt_remote_region *remote, void **out,
                    struct rdt_error *err)
{
    struct shm_lane *l = shm_lane_of(lane);
    const struct rdt_block whole = {.len_bytes = remote->len_bytes};
    struct rdt_error why;
    struct shm_attempt attempt = {.err = err != NULL ? err : &why, .is_for_reading = true};
    enum shm_progress progress = SHM_REFUSED;
    uint8_t *base = NULL;

    if (remote->segment == RDT_SEGMENT_NONE)
        return rdti_error_set(err, RDT_ENOTSUP, 0,
                              "region %u is registered private memory of its owner, which no other "
                              "process can map; allocate it in the arena (rdt_region_alloc)",
                              remote->index);
    if (!l->is_connected)
        return rdti_error_set(err, RDT_EAGAIN, 0, "shm: the peer's offer has not come");
    rdti_shm_lock(&l->tx_lock);
    if (l->is_failed)
        attempt.status = rdti_error_copy(attempt.err, &l->error);
    else
        progress = rdti_shm_reach(l, remote, &whole, 1, &attempt, &base);
    if (progress == SHM_FAILED)
        rdti_shm_fail_locked(l, attempt.err);
    rdti_shm_unlock(&l->tx_lock);
    rdti_shm_follow_up(l, &attempt);
    if (progress == SHM_NEEDS_SEGMENT)
        return rdti_error_set(err, RDT_EAGAIN, 0, "segment %u of the peer is on its way",
                              remote->segment);
    if (progress == SHM_DONE)
        *out = base;
    return attempt.status;
}

bool
rdti_shm_is_idle(struct rdti_lane *lane)
{
    struct shm_lane *l = shm_lane_of(lane);

    rdti_shm_lock(&l->read_lock);
    rdti_shm_lock(&l->tx_lock);
    const bool is_idle = rdti_list_is_empty(&l->queue);
    rdti_shm_unlock(&l->tx_lock);
    rdti_shm_unlock(&l->read_lock);
    return is_idle;
}
