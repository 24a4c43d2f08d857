/* SPDX-License-Identifier: Apache-2.0
 * Queued ops, and the first error of a lane, which ends them. */
#include <unistd.h>

#include "base/error.h"
#include "transport/shm/attempt.h"

static void
queue_set_attention(struct shm_lane *l, uint32_t bit)
{
    /* release: pairs with the acquire load in poll(). */
    (void)atomic_fetch_or_explicit(&l->attention, bit, memory_order_release);
}

/* Under tx_lock. */
static void
queue_note_empty(struct shm_lane *l)
{
    if (!rdti_list_is_empty(&l->queue))
        return;
    /* relaxed: at worst poll() checks once in vain. */
    (void)atomic_fetch_and_explicit(&l->attention, ~(uint32_t)SHM_ATTENTION_QUEUE,
                                    memory_order_relaxed);
}

void
rdti_shm_enqueue(struct shm_lane *l, struct rdti_op *op)
{
    rdti_list_append(&l->queue, &op->link);
    queue_set_attention(l, SHM_ATTENTION_QUEUE);
}

void
rdti_shm_fail_locked(struct shm_lane *l, const struct rdt_error *err)
{
    if (l->is_failed)
        return;
    l->is_failed = true;
    l->error = *err;
    queue_set_attention(l, SHM_ATTENTION_ERROR);
}

void
rdti_shm_fail(struct shm_lane *l, const struct rdt_error *err)
{
    rdti_shm_lock(&l->tx_lock);
    rdti_shm_fail_locked(l, err);
    rdti_shm_unlock(&l->tx_lock);
}

void
rdti_shm_drain(struct shm_lane *l, const struct rdt_error *err)
{
    struct rdti_list left;
    struct rdti_list *node;

    rdti_list_init(&left);
    rdti_shm_lock(&l->tx_lock);
    rdti_list_splice(&left, &l->queue);
    queue_note_empty(l);
    rdti_shm_unlock(&l->tx_lock);
    while ((node = rdti_list_take_first(&left)) != NULL) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);
        op->complete(op, (rdt_status)err->status, err);
    }
}

/* The ops that one push took from the queue. */
struct batch {
    struct rdti_list done;
    uint32_t done_count;
    uint64_t done_bytes;
    struct rdti_op *refused; /* ends the batch */
    struct shm_attempt attempt;
    struct rdt_error why; /* of refused, or of the lane */
};

/* Returns false when no more can or should be pushed now. Under tx_lock. */
static bool
queue_push_one(struct shm_lane *l, struct batch *batch)
{
    struct rdti_op *op = RDTI_CONTAINER(l->queue.next, struct rdti_op, link);
    const enum shm_progress progress = op->kind == RDTI_OP_READ
                                           ? rdti_shm_execute_read(l, op, &batch->attempt)
                                           : rdti_shm_execute_write(l, op, &batch->attempt);

    const bool must_end =
        progress == SHM_REFUSED && op->is_relied_on && batch->attempt.status != RDT_ESTALE;
    if (must_end) {
        rdti_shm_fail_locked(l, &batch->why);
        return false; /* it ends with the other ops */
    }
    if (progress == SHM_DONE || progress == SHM_REFUSED)
        rdti_list_remove(&op->link);
    if (progress == SHM_REFUSED)
        batch->refused = op;
    else if (progress == SHM_FAILED)
        rdti_shm_fail_locked(l, &batch->why);
    if (progress != SHM_DONE)
        return false;
    rdti_list_append(&batch->done, &op->link);
    batch->done_count++;
    batch->done_bytes += op->len_bytes;
    return batch->done_count < SHM_PUSHES_PER_POLL && batch->done_bytes < SHM_PUSH_BYTES_PER_POLL;
}

uint32_t
rdti_shm_push(struct shm_lane *l)
{
    struct batch batch;
    struct rdti_list *node;

    rdti_list_init(&batch.done);
    batch.done_count = 0;
    batch.done_bytes = 0;
    batch.refused = NULL;
    batch.attempt = (struct shm_attempt){.err = &batch.why};
    rdti_shm_lock(&l->tx_lock);
    while (!l->is_failed && !rdti_list_is_empty(&l->queue) && queue_push_one(l, &batch))
        ;
    const bool is_failed = l->is_failed;
    queue_note_empty(l);
    rdti_shm_unlock(&l->tx_lock);
    rdti_shm_follow_up(l, &batch.attempt);
    while ((node = rdti_list_take_first(&batch.done)) != NULL)
        rdti_shm_finish(l, RDTI_CONTAINER(node, struct rdti_op, link));
    if (batch.refused != NULL)
        batch.refused->complete(batch.refused, batch.attempt.status, &batch.why);
    if (is_failed)
        rdti_shm_drain(l, &l->error); /* set once, so it may be read without the lock */
    return batch.done_count + (batch.refused != NULL ? 1 : 0);
}

/* Set the state of a requested segment. */
static void
queue_settle(struct shm_lane *l, uint32_t number, const struct shm_segment *settled)
{
    rdti_shm_lock(&l->tx_lock);
    l->segments.table[number] = *settled;
    rdti_shm_unlock(&l->tx_lock);
}

void
rdti_shm_segment_arrived(struct rdti_lane *lane, uint32_t segment, int fd, uint64_t len_bytes)
{
    struct shm_lane *l = shm_lane_of(lane);
    struct shm_segment settled = {.state = SHM_SEGMENT_REFUSED};
    struct rdt_error err;
    rdt_status status = RDT_OK;

    rdti_shm_lock(&l->tx_lock);
    const struct shm_segment *asked = shm_segments_find(&l->segments, segment);
    const bool is_asked = asked != NULL && asked->state == SHM_SEGMENT_ASKED;
    rdti_shm_unlock(&l->tx_lock);
    if (!is_asked)
        status = rdti_error_set_rank(&err, RDT_EPROTO, l->peer_rank,
                                     "segment %u arrived without a request", segment);
    else if (fd >= 0)
        status = rdti_shm_segment_map(fd, l->peer_rank, len_bytes, &settled, &err);
    if (fd >= 0)
        (void)close(fd);
    if (status != RDT_OK)
        rdti_shm_fail(l, &err);
    else
        queue_settle(l, segment, &settled);
    (void)rdti_shm_push(l);
}
