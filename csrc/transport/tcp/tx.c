/* SPDX-License-Identifier: Apache-2.0
 * Sending: sendmsg until the socket is full, and the entries write() and read(), which send in the
 * caller's thread. tcp.h has the access rules. */
#include <errno.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/range.h"
#include "transport/tcp/tcp.h"

static bool
tcp_tx_batch_is_sent(const struct rdti_tcp_batch *b)
{
    return b->iov_at == b->iov_count;
}

static void
tcp_tx_pass_marks(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_batch *b = s->batch;

    while (b->mark_at < b->mark_count && b->marks[b->mark_at].iov_end <= b->iov_at) {
        const struct rdti_tcp_mark *mark = &b->marks[b->mark_at++];

        if (mark->is_response)
            s->lane->responses[mark->number % RDTI_STREAM_READS_MAX].streams_left--;
    }
}

static void
tcp_tx_consume(struct rdti_tcp_stream *s, size_t sent)
{
    struct rdti_tcp_batch *b = s->batch;

    while (b->iov_at < b->iov_count && sent >= b->iov[b->iov_at].iov_len)
        sent -= b->iov[b->iov_at++].iov_len;
    if (sent > 0) {
        b->iov[b->iov_at].iov_base = (uint8_t *)b->iov[b->iov_at].iov_base + sent;
        b->iov[b->iov_at].iov_len -= sent;
    }
    tcp_tx_pass_marks(s);
}

/* Bytes sent; 0 if the socket is full; -1 after an error, which is in lane->tx_errno. */
static ssize_t
tcp_tx_send_some(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_batch *b = s->batch;
    struct msghdr msg = {.msg_iov = b->iov + b->iov_at, .msg_iovlen = b->iov_count - b->iov_at};
    ssize_t n;

    do {
        if (msg.msg_iovlen == 1) /* copying in a msghdr adds to the latency of a small write */
            n = send(s->fd, msg.msg_iov->iov_base, msg.msg_iov->iov_len,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
        else
            n = sendmsg(s->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n >= 0) {
        rdti_count(&s->lane->tcp->host->counters->wire_bytes, (uint64_t)n);
        tcp_tx_consume(s, (size_t)n);
        return n;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return 0;
    rdti_tcp_break_sending(s, errno);
    return -1;
}

static bool
tcp_tx_take_batch(struct rdti_tcp_stream *s)
{
    s->batch = rdti_tcp_pool_take(&s->lane->tcp->batches);
    if (s->batch == NULL) {
        rdti_tcp_break_sending(s, ENOMEM);
        return false;
    }
    s->batch->iov_at = s->batch->iov_count = 0; /* as if it were sent */
    return true;
}

/* Gives back a batch that was sent whole, so that an idle stream has none. */
static void
tcp_tx_give_batch(struct rdti_tcp_stream *s)
{
    rdti_tcp_pool_give(&s->lane->tcp->batches, s->batch);
    s->batch = NULL;
}

/* Waiting ops on stream 0 are sent with an op that was just added. lock */
static void
tcp_tx_take_riders(struct rdti_tcp_lane *lane)
{
    struct rdti_list *node;

    if (lane->streams[0]->cursor == NULL ||
        !atomic_load_explicit(&lane->has_riders, memory_order_relaxed)) /* lock */
        return;
    for (node = &lane->streams[0]->cursor->link; node != &lane->ops; node = node->next) {
        struct rdti_op *op = RDTI_CONTAINER(node, struct rdti_op, link);

        op->has_ridden = op->may_ride;
    }
}

/* Send until nothing is left, the socket is full or the budget is used up. lock */
static uint64_t
tcp_tx_pump(struct rdti_tcp_stream *s, uint64_t budget_bytes)
{
    uint64_t sent = 0;
    bool is_more = false;

    if (s->index == 0) /* relaxed: threads that set it hold the lock */
        atomic_store_explicit(&s->lane->has_riders, false, memory_order_relaxed);
    while (s->lane->tx_errno == 0 && (s->batch != NULL || tcp_tx_take_batch(s))) {
        if (tcp_tx_batch_is_sent(s->batch) && !rdti_tcp_fill(s)) {
            if (s->lane->tx_errno == 0)
                tcp_tx_give_batch(s);
            break;
        }
        if (sent >= budget_bytes) {
            is_more = true;
            break;
        }
        const ssize_t n = tcp_tx_send_some(s);
        sent += n > 0 ? (uint64_t)n : 0;
        if (!tcp_tx_batch_is_sent(s->batch)) {
            is_more = true;
            break;
        }
    }
    /* relaxed: see the field */
    atomic_store_explicit(&s->wants_out, is_more, memory_order_relaxed);
    return sent;
}

/* tcp_tx_pump() a set of streams; lock is held, and released. True if the driver has to continue.
 * */
static bool
tcp_tx_pump_and_unlock(struct rdti_tcp_lane *lane, uint32_t streams, uint64_t budget_bytes,
                       uint64_t *sent)
{
    uint32_t changed = 0;
    bool is_more = false;

    for (uint32_t i = 0; i < lane->stream_count; i++) {
        struct rdti_tcp_stream *s = lane->streams[i];

        if ((streams >> i & 1) == 0)
            continue;
        const bool wanted = atomic_load_explicit(&s->wants_out, memory_order_relaxed);
        *sent += tcp_tx_pump(s, budget_bytes);
        const bool wants = atomic_load_explicit(&s->wants_out, memory_order_relaxed);
        changed |= (uint32_t)(wants != wanted) << i;
        is_more |= wants && !wanted;
    }
    is_more |= lane->tx_errno != 0;
    (void)pthread_mutex_unlock(&lane->lock);
    for (uint32_t i = 0; changed >> i != 0; i++)
        if ((changed >> i & 1) != 0)
            rdti_tcp_update_watch(lane->streams[i]);
    return is_more;
}

uint64_t
rdti_tcp_push(struct rdti_tcp_stream *stream, uint64_t budget_bytes)
{
    struct rdti_tcp_lane *lane = stream->lane;
    uint64_t sent = 0;

    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_tcp_phase_of(lane) != RDTI_TCP_READY) {
        (void)pthread_mutex_unlock(&lane->lock);
        return 0;
    }
    if (tcp_tx_pump_and_unlock(lane, UINT32_C(1) << stream->index, budget_bytes, &sent))
        rdti_tcp_make_hot(lane);
    return sent;
}

void
rdti_tcp_start_stream(struct rdti_tcp_stream *stream)
{
    struct rdti_tcp_lane *lane = stream->lane;

    (void)pthread_mutex_lock(&lane->lock);
    lane->streams[stream->index] = stream;
    if (!rdti_list_is_empty(&lane->ops))
        rdti_tcp_set_cursor(stream, RDTI_CONTAINER(lane->ops.next, struct rdti_op, link));
    (void)pthread_mutex_unlock(&lane->lock);
}

uint32_t
rdti_tcp_sent_number(const struct rdti_tcp_lane *lane)
{
    uint32_t behind = 0; /* relative to tx_number: numbers wrap, their distances do not */

    for (uint32_t i = 0; i < lane->stream_count; i++) {
        const struct rdti_tcp_stream *s = lane->streams[i];
        const struct rdti_tcp_batch *b = s->batch;
        uint32_t next = lane->tx_number + 1; /* the first that this stream has not sent */

        if (s->cursor != NULL)
            next = (uint32_t)s->cursor->scratch[RDTI_TCP_OP_NUMBER];
        for (uint32_t m = b != NULL ? b->mark_at : 0; b != NULL && m < b->mark_count; m++) {
            if (b->marks[m].is_response)
                continue;
            next = b->marks[m].number;
            break;
        }
        if (lane->tx_number + 1 - next > behind)
            behind = lane->tx_number + 1 - next;
    }
    return lane->tx_number - behind;
}

/* ---- Entries ------------------------------------------------------------------------------- */

static rdt_status
tcp_tx_check_blocks(const struct rdti_tcp_lane *lane, const struct rdti_op *op,
                    bool *is_striped_out, struct rdt_error *err)
{
    bool is_striped = false;

    if (lane->stream_count == 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "tcp: operation on a lane before connect()");
    for (uint32_t i = 0; i < op->block_count; i++) {
        const struct rdt_block *b = &op->blocks[i];

        if (!rdti_range_ok(b->dst_off, b->len_bytes, op->remote.len_bytes))
            return rdti_error_set(err, RDT_ERANGE, 0,
                                  "%s of %llu bytes at offset %llu: the remote region has %llu",
                                  op->kind == RDTI_OP_READ ? "read" : "write",
                                  (unsigned long long)b->len_bytes, (unsigned long long)b->dst_off,
                                  (unsigned long long)op->remote.len_bytes);
        is_striped |= rdti_tcp_is_striped(lane, b->len_bytes);
    }
    *is_striped_out = is_striped;
    return RDT_OK;
}

/* Takes lock; on failure releases it. */
static rdt_status
tcp_tx_lock_open_lane(struct rdti_tcp_lane *lane, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&lane->lock);
    if (rdti_tcp_phase_of(lane) != RDTI_TCP_FAILED)
        return RDT_OK;
    const rdt_status status = rdti_error_copy(err, &lane->error);
    (void)pthread_mutex_unlock(&lane->lock);
    return status;
}

rdt_status
rdti_tcp_write(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;
    uint32_t idle_streams = 0;
    uint64_t sent = 0;
    bool is_striped = false;

    rdt_status status = tcp_tx_check_blocks(lane, op, &is_striped, err);
    if (status == RDT_OK)
        status = tcp_tx_lock_open_lane(lane, err);
    if (status != RDT_OK)
        return status;

    op->scratch[RDTI_TCP_OP_NUMBER] = ++lane->tx_number;
    op->scratch[RDTI_TCP_OP_IS_STRIPED] = is_striped;
    op->scratch[RDTI_TCP_OP_STATUS] = RDT_OK;
    rdti_list_append(&lane->ops, &op->link);
    (void)atomic_fetch_add_explicit(&lane->ops_open, 1, memory_order_acq_rel);
    for (uint32_t i = 0; i < (is_striped ? lane->stream_count : 1); i++) {
        struct rdti_tcp_stream *s = lane->streams[i];

        if (s == NULL)
            continue; /* not joined yet: rdti_tcp_start_stream() sets its cursor */
        if (s->cursor == NULL)
            rdti_tcp_set_cursor(s, op);
        if (!atomic_load_explicit(&s->wants_out, memory_order_relaxed))
            idle_streams |= UINT32_C(1) << i;
    }
    if (rdti_tcp_phase_of(lane) != RDTI_TCP_READY) {
        (void)pthread_mutex_unlock(&lane->lock); /* sent when the lane is ready */
        return RDT_OK;
    }
    if (op->may_ride && op->len_bytes == 0) {
        /* seq_cst: pairs with the load of a pass, after the receives of that pass */
        atomic_store_explicit(&lane->has_riders, true, memory_order_seq_cst);
        (void)pthread_mutex_unlock(&lane->lock);
        rdti_tcp_call_attention(lane);
        return RDT_OK;
    }
    tcp_tx_take_riders(lane);
    if (tcp_tx_pump_and_unlock(lane, idle_streams, RDTI_TCP_PASS_BYTES, &sent))
        rdti_tcp_call_attention(lane);
    return RDT_OK;
}

rdt_status
rdti_tcp_read(struct rdti_lane *base, struct rdti_op *op, struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;
    uint64_t sent = 0;
    bool is_striped = false;

    rdt_status status = tcp_tx_check_blocks(lane, op, &is_striped, err);
    if (status == RDT_OK)
        status = tcp_tx_lock_open_lane(lane, err);
    if (status != RDT_OK)
        return status;

    const uint64_t chunk = rdti_tcp_read_chunk_bytes(lane);
    op->scratch[RDTI_TCP_OP_NEXT_OFF] = 0;
    op->scratch[RDTI_TCP_OP_CHUNKS_LEFT] = op->len_bytes == 0 ? 1 : (op->len_bytes - 1) / chunk + 1;
    op->scratch[RDTI_TCP_OP_STATUS] = RDT_OK;
    rdti_list_append(&lane->reads, &op->link);
    (void)atomic_fetch_add_explicit(&lane->ops_open, 1, memory_order_acq_rel);
    if (lane->read_cursor == NULL)
        lane->read_cursor = op;
    if (rdti_tcp_phase_of(lane) != RDTI_TCP_READY ||
        atomic_load_explicit(&lane->streams[0]->wants_out, memory_order_relaxed)) {
        (void)pthread_mutex_unlock(&lane->lock);
        return RDT_OK;
    }
    if (tcp_tx_pump_and_unlock(lane, 1, RDTI_TCP_PASS_BYTES, &sent))
        rdti_tcp_call_attention(lane);
    return RDT_OK;
}
