/* SPDX-License-Identifier: Apache-2.0
 * From ops to bytes: turns the pending work of a stream into parts, gathered into a batch that is
 * sent with as few sendmsg calls as the socket allows. All of it runs under lane->lock. */
#include <errno.h>
#include <string.h>

#include "transport/tcp/tcp.h"
#include "wire/notify.h"

bool
rdti_tcp_is_striped(const struct rdti_tcp_lane *lane, uint64_t len_bytes)
{
    return lane->stream_count > 1 && len_bytes >= RDTI_TCP_STRIPE_MIN_BYTES;
}

uint32_t
rdti_tcp_read_chunk_bytes(const struct rdti_tcp_lane *lane)
{
    return RDTI_STREAM_PART_MAX_BYTES * lane->stream_count;
}

/* ---- Batches ------------------------------------------------------------------------------- */

/* Room for the smallest part: batch_gather() writes an entry after the head even if none will be
 * sent. */
static bool
batch_has_room(const struct rdti_tcp_batch *b)
{
    return b->bytes < RDTI_TCP_BATCH_BYTES && b->mark_count < RDTI_TCP_BATCH_MARKS &&
           b->iov_count + 2 <= RDTI_TCP_BATCH_IOVS &&
           b->head_bytes + RDTI_STREAM_HEAD_BYTES + RDTI_STREAM_ENTRY_BYTES <=
               RDTI_TCP_BATCH_HEAD_BYTES;
}

static void
batch_add_iov(struct rdti_tcp_batch *b, const void *src, uint64_t len_bytes)
{
    if (len_bytes == 0)
        return;
    b->bytes += len_bytes;
    /* Not across a mark: the mark's op counts as sent after its own last byte. */
    if (b->iov_count > 0 &&
        (b->mark_count == 0 || b->marks[b->mark_count - 1].iov_end < b->iov_count)) {
        struct iovec *last = &b->iov[b->iov_count - 1];
        const uint8_t *end = (const uint8_t *)last->iov_base + last->iov_len;

        if (end == src) {
            last->iov_len += len_bytes;
            return;
        }
    }
    b->iov[b->iov_count++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)src, .iov_len = len_bytes};
}

static void
batch_add_mark(struct rdti_tcp_batch *b, bool is_response, uint32_t number)
{
    b->marks[b->mark_count++] = (struct rdti_tcp_mark){.iov_end = b->iov_count,
                                                       .is_response = is_response,
                                                       .number = number};
}

/* Writes the head at `at`, which lies in the batch; on stream 0 it carries the ack. */
static void
batch_encode_head(struct rdti_tcp_stream *s, struct rdti_stream_head *head, uint8_t *at)
{
    struct rdti_tcp_lane *lane = s->lane;

    if (s->index == 0) {
        const uint32_t built = atomic_load_explicit(&lane->ack_built, memory_order_relaxed);

        if (head->op != RDTI_STREAM_REFUSED)
            head->ack = atomic_load_explicit(&lane->rx_done, memory_order_relaxed);
        if (head->op != RDTI_STREAM_ACK && head->ack != built)
            (void)atomic_fetch_add_explicit(&lane->acks_ridden, 1, memory_order_relaxed);
        atomic_store_explicit(&lane->ack_built, head->ack, memory_order_relaxed);
        lane->owes_ack = false;
    }
    rdti_stream_head_encode(head, at);
}

static void
batch_add_head(struct rdti_tcp_stream *s, struct rdti_stream_head *head)
{
    struct rdti_tcp_batch *b = s->batch;
    uint8_t *at = b->heads + b->head_bytes;

    batch_encode_head(s, head, at);
    b->head_bytes += RDTI_STREAM_HEAD_BYTES;
    batch_add_iov(b, at, RDTI_STREAM_HEAD_BYTES);
}

/* ---- Controls ------------------------------------------------------------------------------ */

static bool
batch_take_requests(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;

    lane->requests = rdti_tcp_pool_take(&lane->tcp->requests);
    if (lane->requests == NULL) {
        rdti_tcp_break_sending(s, ENOMEM);
        return false;
    }
    for (uint32_t i = 0; i < RDTI_STREAM_READS_MAX; i++)
        lane->requests[i].op = NULL;
    return true;
}

static void
batch_add_requests(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;

    while (lane->read_cursor != NULL && batch_has_room(s->batch)) {
        struct rdti_op *op = lane->read_cursor;
        const uint64_t off = op->scratch[RDTI_TCP_OP_NEXT_OFF];
        const uint64_t left = op->len_bytes - off;
        const uint32_t chunk = rdti_tcp_read_chunk_bytes(lane);
        const uint32_t len = left < chunk ? (uint32_t)left : chunk;

        if (lane->requests == NULL && !batch_take_requests(s))
            return;
        struct rdti_tcp_request *r = &lane->requests[lane->request_next % RDTI_STREAM_READS_MAX];
        if (r->op != NULL)
            return; /* the maximum is unanswered, or an old request still is */
        *r = (struct rdti_tcp_request){.op = op,
                                       .dst = (uint8_t *)(uintptr_t)op->blocks[0].src + off,
                                       .id = lane->request_next,
                                       .len_bytes = len};
        batch_add_head(s, &(struct rdti_stream_head){.op = RDTI_STREAM_READ_REQUEST,
                                                     .value = lane->request_next,
                                                     .index = op->remote.index,
                                                     .generation = op->remote.generation,
                                                     .len_bytes = len,
                                                     .off_bytes = op->blocks[0].dst_off + off});
        lane->request_next++;
        lane->requests_open++;
        op->scratch[RDTI_TCP_OP_NEXT_OFF] = off + len;
        if (len == left)
            lane->read_cursor = op->link.next == &lane->reads
                                    ? NULL
                                    : RDTI_CONTAINER(op->link.next, struct rdti_op, link);
    }
}

/* Refusals precede all heads that acknowledge a later message: see wire/endpoint/stream.h. All of
 * them fit. */
static void
batch_add_controls(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;

    if (lane->owes_ready) {
        lane->owes_ready = false;
        batch_add_head(s, &(struct rdti_stream_head){.op = RDTI_STREAM_READY});
    }
    while (lane->refusal_count > 0) {
        const struct rdti_tcp_refusal *r = &lane->refusals[lane->refusal_first];
        struct rdti_stream_head head = {.op = RDTI_STREAM_REFUSED, .aux = r->status};

        if (r->is_read) {
            head.op = RDTI_STREAM_READ_REFUSED;
            head.value = r->number;
        } else {
            head.ack = r->number;
        }
        lane->refusal_first = (lane->refusal_first + 1) % RDTI_TCP_REFUSALS_MAX;
        lane->refusal_count--;
        batch_add_head(s, &head);
    }
    batch_add_requests(s);
}

_Static_assert((RDTI_TCP_REFUSALS_MAX + 1) * RDTI_STREAM_HEAD_BYTES <= RDTI_TCP_BATCH_HEAD_BYTES,
               "READY and every refusal fit into one batch");

/* ---- Answers to reads ---------------------------------------------------------------------- */

static bool
batch_has_response(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;

    /* Answers released without this stream were not striped, and their places may be reused. */
    if (s->response_next - lane->response_out > RDTI_STREAM_READS_MAX)
        s->response_next = lane->response_out;
    while (s->response_next != lane->response_in) {
        if (s->index == 0 || lane->responses[s->response_next % RDTI_STREAM_READS_MAX].is_striped)
            return true;
        s->response_next++;
    }
    return false;
}

static void
batch_add_response(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;
    const struct rdti_tcp_response *r = &lane->responses[s->response_next % RDTI_STREAM_READS_MAX];
    uint32_t off = 0;
    uint32_t len = r->len_bytes;

    if (r->is_striped)
        rdti_stream_stripe(r->len_bytes, s->index, lane->stream_count, &off, &len);
    batch_add_head(s, &(struct rdti_stream_head){.op = RDTI_STREAM_READ_DATA,
                                                 .flags = r->is_striped ? RDTI_STREAM_STRIPED : 0,
                                                 .value = r->id,
                                                 .len_bytes = r->len_bytes});
    batch_add_iov(s->batch, (const uint8_t *)r->target.addr + off, len);
    batch_add_mark(s->batch, true, s->response_next);
    s->response_next++;
}

/* ---- Writes -------------------------------------------------------------------------------- */

/* Moves the cursor to the next bytes that this stream carries; false at the end of the op. */
static bool
batch_seek_in_op(struct rdti_tcp_stream *s)
{
    const struct rdti_op *op = s->cursor;

    for (; s->cursor_block < op->block_count; s->cursor_block++, s->cursor_off = 0) {
        const uint64_t left = op->blocks[s->cursor_block].len_bytes - s->cursor_off;

        if (s->index == 0 ? left > 0 : rdti_tcp_is_striped(s->lane, left))
            return true;
    }
    return false;
}

void
rdti_tcp_set_cursor(struct rdti_tcp_stream *s, struct rdti_op *op)
{
    s->cursor_block = 0;
    s->cursor_off = 0;
    while (op != NULL && s->index > 0 && op->scratch[RDTI_TCP_OP_IS_STRIPED] == 0)
        op = op->link.next == &s->lane->ops ? NULL
                                            : RDTI_CONTAINER(op->link.next, struct rdti_op, link);
    s->cursor = op;
    if (op != NULL)
        (void)batch_seek_in_op(s);
}

/* After a part: moves to the next op if this part was the op's last. */
static void
batch_step_cursor(struct rdti_tcp_stream *s)
{
    struct rdti_op *op = s->cursor;

    if (batch_seek_in_op(s))
        return;
    batch_add_mark(s->batch, false, (uint32_t)op->scratch[RDTI_TCP_OP_NUMBER]);
    rdti_tcp_set_cursor(s, op->link.next == &s->lane->ops
                               ? NULL
                               : RDTI_CONTAINER(op->link.next, struct rdti_op, link));
}

/* Sets the flags and notification of a part on stream 0; the cursor is already past the part. */
static void
batch_finish_head(struct rdti_tcp_stream *s, struct rdti_stream_head *head)
{
    const struct rdti_op *op = s->cursor;

    head->index = op->remote.index;
    head->generation = op->remote.generation;
    if (s->index != 0)
        return;
    if (batch_seek_in_op(s)) {
        head->flags |= RDTI_STREAM_MORE;
        return;
    }
    if (op->notify != RDTI_NOTIFY_NONE) {
        head->flags |= RDTI_STREAM_NOTIFY;
        head->value = op->notify;
    }
    if (op->notify == RDTI_NOTIFY_NONE || op->len_bytes >= RDTI_TCP_ACK_NOW_BYTES)
        head->flags |= RDTI_STREAM_ACK_NOW;
}

/* Adds one block, or a piece of it, as a separate part. */
static void
batch_add_large(struct rdti_tcp_stream *s)
{
    const struct rdt_block *block = &s->cursor->blocks[s->cursor_block];
    const uint64_t left = block->len_bytes - s->cursor_off;
    const bool is_striped = rdti_tcp_is_striped(s->lane, left);
    const uint64_t max =
        (uint64_t)RDTI_STREAM_PART_MAX_BYTES * (is_striped ? s->lane->stream_count : 1);
    const uint8_t *src = (const uint8_t *)block->src + s->cursor_off;
    uint32_t len = (uint32_t)(left < max ? left : max);
    uint32_t off = 0;
    struct rdti_stream_head head = {.op = RDTI_STREAM_WRITE,
                                    .flags = is_striped ? RDTI_STREAM_STRIPED : 0,
                                    .len_bytes = len,
                                    .off_bytes = block->dst_off + s->cursor_off};

    s->cursor_off += len;
    if (is_striped)
        rdti_stream_stripe(head.len_bytes, s->index, s->lane->stream_count, &off, &len);
    batch_finish_head(s, &head);
    batch_add_head(s, &head);
    batch_add_iov(s->batch, src + off, len);
    batch_step_cursor(s);
}

/* Gathers small blocks from the cursor on: their entries at `list`, their vectors in the batch. */
static uint32_t
batch_gather(struct rdti_tcp_stream *s, uint8_t *list, struct rdti_stream_entry *first,
             uint32_t *len_out)
{
    struct rdti_tcp_batch *b = s->batch;
    struct rdti_stream_entry last = {0};
    uint32_t count = 0;
    uint64_t total = 0;

    *first = last;
    while (batch_seek_in_op(s) && b->iov_count < RDTI_TCP_BATCH_IOVS) {
        const struct rdt_block *block = &s->cursor->blocks[s->cursor_block];
        const uint64_t len = block->len_bytes - s->cursor_off;
        const uint64_t off = block->dst_off + s->cursor_off;

        if (len >= RDTI_TCP_LIST_BLOCK_MAX_BYTES || total + len > RDTI_STREAM_PART_MAX_BYTES)
            break;
        if (count > 0 && last.off_bytes + last.len_bytes == off) {
            last.len_bytes += (uint32_t)len;
        } else {
            if (count == RDTI_STREAM_LIST_MAX)
                break;
            count++;
            last = (struct rdti_stream_entry){.off_bytes = off, .len_bytes = (uint32_t)len};
        }
        rdti_stream_entry_encode(&last, list + (size_t)(count - 1) * RDTI_STREAM_ENTRY_BYTES);
        if (count == 1)
            *first = last;
        total += len;
        batch_add_iov(b, (const uint8_t *)block->src + s->cursor_off, len);
        s->cursor_off += len;
    }
    *len_out = (uint32_t)total;
    return count;
}

/* Small blocks: one head, a list if there are several, then all bytes. */
static void
batch_add_small(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_batch *b = s->batch;
    const struct rdti_op *op = s->cursor;
    uint8_t *at = b->heads + b->head_bytes;
    struct rdti_stream_head head = {.op = RDTI_STREAM_WRITE};
    struct rdti_stream_entry first;
    uint32_t head_bytes = RDTI_STREAM_HEAD_BYTES;

    struct iovec *head_iov = &b->iov[b->iov_count++];
    *head_iov = (struct iovec){.iov_base = at, .iov_len = RDTI_STREAM_HEAD_BYTES};
    const uint32_t count = batch_gather(s, at + RDTI_STREAM_HEAD_BYTES, &first, &head.len_bytes);
    if (count > 1) {
        head.op = RDTI_STREAM_WRITE_LIST;
        head.aux = (uint16_t)count;
        head_bytes += count * RDTI_STREAM_ENTRY_BYTES;
    } else if (count == 1) {
        head.off_bytes = first.off_bytes;
    } else if (op->block_count > 0) {
        head.off_bytes = op->blocks[0].dst_off; /* no bytes: the target checks the offset anyway */
    }
    head_iov->iov_len = head_bytes;
    b->head_bytes += head_bytes;
    b->bytes += head_bytes;
    batch_finish_head(s, &head);
    batch_encode_head(s, &head, at);
    batch_step_cursor(s);
}

/* A block that fits into the head itself. */
static bool
batch_can_inline(const struct rdti_op *op)
{
    return op->block_count == 1 && op->len_bytes > 0 && op->len_bytes <= RDTI_STREAM_INLINE_BYTES &&
           op->blocks[0].dst_off <= UINT32_MAX;
}

static void
batch_add_inline(struct rdti_tcp_stream *s)
{
    const struct rdt_block *block = s->cursor->blocks;
    struct rdti_stream_head head = {.op = RDTI_STREAM_WRITE_INLINE,
                                    .len_bytes = (uint32_t)block->len_bytes,
                                    .off_bytes = block->dst_off};

    memcpy(head.inlined, block->src, block->len_bytes);
    s->cursor_off = block->len_bytes;
    batch_finish_head(s, &head);
    batch_add_head(s, &head);
    batch_step_cursor(s);
}

/* False if the batch has no room for it. */
static bool
batch_add_write(struct rdti_tcp_stream *s)
{
    const struct rdti_tcp_batch *b = s->batch;
    const struct rdti_op *op = s->cursor;

    if (batch_can_inline(op)) {
        batch_add_inline(s);
        return true;
    }
    const bool has_bytes = batch_seek_in_op(s);
    if (has_bytes &&
        op->blocks[s->cursor_block].len_bytes - s->cursor_off >= RDTI_TCP_LIST_BLOCK_MAX_BYTES) {
        batch_add_large(s);
        return true;
    }
    /* A list that is split for lack of room costs a further head and system call. */
    const bool is_list = op->block_count - s->cursor_block > 1;
    if (is_list && b->iov_count > 0)
        return false;
    batch_add_small(s);
    return true;
}

_Static_assert(RDTI_STREAM_HEAD_BYTES + RDTI_STREAM_LIST_MAX * RDTI_STREAM_ENTRY_BYTES <=
                   RDTI_TCP_BATCH_HEAD_BYTES,
               "a full list fits into an empty batch");

/* ---- Filling ------------------------------------------------------------------------------- */

bool
rdti_tcp_fill(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;
    struct rdti_tcp_batch *b = s->batch;

    b->iov_at = b->iov_count = b->mark_at = b->mark_count = b->head_bytes = 0;
    b->bytes = 0;
    if (rdti_tcp_phase_of(lane) != RDTI_TCP_READY)
        return false;
    if (s->index == 0)
        batch_add_controls(s);
    while (batch_has_room(b)) {
        const bool can_respond = batch_has_response(s);

        if (can_respond && (lane->is_response_turn || s->cursor == NULL)) {
            batch_add_response(s);
            lane->is_response_turn = false;
            continue;
        }
        if (s->cursor == NULL || !batch_add_write(s))
            break;
        lane->is_response_turn = true;
    }
    if (s->index == 0 && lane->owes_ack && b->iov_count == 0)
        batch_add_head(s, &(struct rdti_stream_head){.op = RDTI_STREAM_ACK});
    return b->iov_count > 0;
}
