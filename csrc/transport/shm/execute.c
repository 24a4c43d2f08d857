/* SPDX-License-Identifier: Apache-2.0
 * Executes the next operation: the copy, then the notification. */
#include "base/memory/copy.h"
#include "base/error.h"
#include "transport/shm/attempt.h"
#include "wire/notify.h"

/* Entries that the peer has not taken yet, according to tx_head. */
static uint32_t
execute_outstanding(const struct shm_lane *l)
{
    return l->tx.sequence - l->tx_head;
}

/* Whether an entry of the peer's ring is free. */
static bool
execute_has_room(struct shm_lane *l)
{
    if (execute_outstanding(l) < SHM_RING_ENTRIES)
        return true;
    /* acquire: the peer has read the entry that this thread is about to overwrite. */
    l->tx_head = atomic_load_explicit(&l->peer_ring->head, memory_order_acquire);
    return execute_outstanding(l) < SHM_RING_ENTRIES;
}

/*
 * Requests a wake-up when there is room, then checks again: see ring.h, "room". If the request is
 * new, it rings the peer's bell: the peer may be computing, and then its progress thread has to
 * take the entries.
 */
static bool
execute_has_room_at_last(struct shm_lane *l, struct shm_attempt *attempt)
{
    struct shm_ring *ring = l->peer_ring;

    /* seq_cst, both: pairs with shm_publish_head(). */
    const uint32_t waited =
        atomic_exchange_explicit(&ring->producer_waits, 1, memory_order_seq_cst);
    l->tx_head = atomic_load_explicit(&ring->head, memory_order_seq_cst);
    if (execute_outstanding(l) < SHM_RING_ENTRIES) {
        /* relaxed: a late store costs only an unnecessary ring of this side's bell. */
        atomic_store_explicit(&ring->producer_waits, 0, memory_order_relaxed);
        return true;
    }
    if (waited == 0) {
        attempt->rings = true;
        attempt->is_urgent = true;
    }
    return false;
}

/* SHM_DONE: an entry is free. */
static enum shm_progress
execute_find_room(struct shm_lane *l, struct shm_attempt *attempt)
{
    if (execute_has_room(l) || execute_has_room_at_last(l, attempt))
        return SHM_DONE;
    if (execute_outstanding(l) == SHM_RING_ENTRIES)
        return SHM_NEEDS_ROOM;
    attempt->status =
        rdti_error_set_rank(attempt->err, RDT_EPROTO, l->peer_rank,
                            "shm ring: the peer says it took %u entries, but %u were stored",
                            l->tx_head, l->tx.sequence);
    return SHM_FAILED;
}

/* One kind of store for all blocks: the choice depends on the total size of the op. */
static void
execute_place(const struct rdti_op *op, uint8_t *base)
{
    const enum rdti_copy_kind kind = rdti_copy_choose(op->len_bytes, RDTI_COPY_TO_PEER_READ);

    if (op->block_count == 1)
        rdti_copy_as(base + op->blocks->dst_off, op->blocks->src, op->blocks->len_bytes, kind);
    else
        rdti_copy_blocks(base, op->blocks, op->block_count, kind);
}

static enum shm_progress
execute_move_private(struct shm_lane *l, const struct rdti_op *op, struct shm_attempt *attempt)
{
    if (rdti_shm_check_generation(l, &op->remote, attempt) != SHM_DONE)
        return SHM_REFUSED;
    if (op->kind == RDTI_OP_READ)
        attempt->status = rdti_shm_process_read(&l->process, op->remote.addr, op->blocks,
                                                op->block_count, attempt->err);
    else
        attempt->status = rdti_shm_process_write(&l->process, op->remote.addr, op->blocks,
                                                 op->block_count, attempt->err);
    return rdti_shm_moved(attempt);
}

static enum shm_progress
execute_move_write(struct shm_lane *l, const struct rdti_op *op, struct shm_attempt *attempt)
{
    uint8_t *base;

    if (op->len_bytes == 0)
        return rdti_shm_check_generation(l, &op->remote, attempt);
    if (op->remote.segment == RDT_SEGMENT_NONE)
        return execute_move_private(l, op, attempt);
    const enum shm_progress reached =
        rdti_shm_reach(l, &op->remote, op->blocks, op->block_count, attempt, &base);
    if (reached == SHM_DONE)
        execute_place(op, base);
    return reached;
}

enum shm_progress
rdti_shm_execute_write(struct shm_lane *l, const struct rdti_op *op, struct shm_attempt *attempt)
{
    const bool has_notify = op->notify != RDTI_NOTIFY_NONE;
    enum shm_progress progress;

    if (has_notify) {
        progress = execute_find_room(l, attempt);
        if (progress != SHM_DONE)
            return progress;
    }
    if (shm_names_region(op)) {
        progress = execute_move_write(l, op, attempt);
        if (progress != SHM_DONE)
            return progress;
    }
    if (has_notify) {
        shm_ring_publish(l->peer_ring, &l->tx, op->notify);
        attempt->rings = true;
        attempt->is_urgent |= op->is_urgent;
    }
    return SHM_DONE;
}

enum shm_progress
rdti_shm_execute_read(struct shm_lane *l, const struct rdti_op *op, struct shm_attempt *attempt)
{
    const struct rdt_block *block = &op->blocks[0];
    uint8_t *base;

    if (op->remote.segment == RDT_SEGMENT_NONE)
        return execute_move_private(l, op, attempt);
    attempt->is_for_reading = true;
    const enum shm_progress reached = rdti_shm_reach(l, &op->remote, block, 1, attempt, &base);
    attempt->is_for_reading = false; /* it is of several operations */
    if (reached == SHM_DONE)
        rdti_copy((void *)(uintptr_t)block->src, base + block->dst_off, block->len_bytes,
                  RDTI_COPY_TO_OWN);
    return reached;
}

void
rdti_shm_follow_up(struct shm_lane *l, const struct shm_attempt *attempt)
{
    const struct rdti_host *host = l->state->host;

    if (attempt->rings) {
        const uint32_t calls = rdti_doorbell_ring(l->bell, l->event_fd, attempt->is_urgent);
        if (calls > 0)
            rdti_count(&host->counters->wakeups_sent, calls);
    }
    if (attempt->asks_segment)
        host->request_segment(host->core, &l->base, attempt->segment);
}

void
rdti_shm_finish(struct shm_lane *l, struct rdti_op *op)
{
    rdti_count_moved(l->state->host->counters, &l->base, op);
    op->complete(op, RDT_OK, NULL);
}
