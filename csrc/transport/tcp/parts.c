/* SPDX-License-Identifier: Apache-2.0
 * Puts arrivals in order: messages made of parts and stripes, notifications, acknowledgements of
 * both directions, reads. All of it runs in the driver; see tcp.h. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "transport/tcp/tcp.h"

/* ---- Acknowledgements received ------------------------------------------------------------- */

rdt_status
rdti_tcp_take_ack(struct rdti_tcp_lane *lane, uint32_t ack, rdt_status refused,
                  struct rdt_error *err)
{
    const uint32_t before = lane->tx_acked;
    struct rdti_list done;

    if (ack == before && refused == RDT_OK)
        return RDT_OK;
    rdti_list_init(&done);
    (void)pthread_mutex_lock(&lane->lock);
    const uint32_t sent = rdti_tcp_sent_number(lane);
    const bool is_honest = ack - before <= sent - before && (refused == RDT_OK || ack != before);
    for (uint32_t n = before; is_honest && n != ack; n++) {
        struct rdti_list *node = rdti_list_take_first(&lane->ops);

        assert(node != NULL); /* one op for each number up to `sent` */
        if (n + 1 == ack)
            RDTI_CONTAINER(node, struct rdti_op, link)->scratch[RDTI_TCP_OP_STATUS] =
                (uint64_t)refused;
        rdti_list_append(&done, node);
    }
    (void)pthread_mutex_unlock(&lane->lock);
    if (!is_honest)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "tcp stream: acknowledgement %u after %u, with %u writes sent", ack,
                              before, sent);
    lane->tx_acked = ack;
    rdti_tcp_complete_all(lane, &done, NULL);
    return RDT_OK;
}

/* ---- Messages in order --------------------------------------------------------------------- */

static uint32_t
parts_max(const struct rdti_tcp_lane *lane)
{
    return lane->backlog != NULL ? RDTI_TCP_PARTS_MAX : 1;
}

/* Place i of the ring. */
static struct rdti_tcp_part *
parts_at(struct rdti_tcp_lane *lane, uint32_t i)
{
    return lane->backlog != NULL ? &lane->backlog->parts[i % RDTI_TCP_PARTS_MAX] : &lane->lone_part;
}

static struct rdti_tcp_stripe *
parts_stripe_at(struct rdti_tcp_lane *lane, uint32_t ordinal)
{
    return &lane->backlog->stripes[ordinal % RDTI_TCP_STRIPES_MAX];
}

static rdt_status
parts_take_backlog(struct rdti_tcp_lane *lane, struct rdt_error *err)
{
    struct rdti_tcp_backlog *backlog = rdti_tcp_pool_take(&lane->tcp->backlogs);

    if (backlog == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a backlog of %zu bytes", sizeof(*backlog));
    memset(backlog->stripes, 0, sizeof(backlog->stripes));
    backlog->parts[0] = lane->lone_part;
    lane->parts_first = 0;
    lane->backlog = backlog;
    return RDT_OK;
}

/* Frees the backlog when no stripe is in flight on any stream. */
static void
parts_drop_backlog(struct rdti_tcp_lane *lane)
{
    if (lane->backlog == NULL || lane->parts_count > 0 ||
        parts_stripe_at(lane, lane->stripes_first)->begun > 0)
        return;
    rdti_tcp_pool_give(&lane->tcp->backlogs, lane->backlog);
    lane->backlog = NULL;
}

bool
rdti_tcp_part_has_room(const struct rdti_tcp_stream *stream)
{
    const struct rdti_tcp_lane *lane = stream->lane;

    if (stream->index == 0 && lane->parts_count == parts_max(lane))
        return false;
    return (stream->rx.head.flags & RDTI_STREAM_STRIPED) == 0 ||
           stream->stripes_taken - lane->stripes_first < RDTI_TCP_STRIPES_MAX;
}

rdt_status
rdti_tcp_stripe_begins(struct rdti_tcp_stream *stream, struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = stream->lane;
    const struct rdti_stream_head *head = &stream->rx.head;

    if (lane->backlog == NULL) {
        const rdt_status status = parts_take_backlog(lane, err);

        if (status != RDT_OK)
            return status;
    }
    struct rdti_tcp_stripe *stripe = parts_stripe_at(lane, stream->stripes_taken);
    if (stripe->begun++ == 0)
        stripe->head = *head;
    if (stripe->head.index == head->index && stripe->head.generation == head->generation &&
        stripe->head.len_bytes == head->len_bytes && stripe->head.off_bytes == head->off_bytes)
        return RDT_OK;
    return rdti_error_set(err, RDT_EPROTO, 0,
                          "tcp stream: a stripe of another write than on the other streams");
}

void
rdti_tcp_part_done(struct rdti_tcp_stream *stream)
{
    struct rdti_tcp_lane *lane = stream->lane;
    const struct rdti_stream_head *head = &stream->rx.head;

    if ((head->flags & RDTI_STREAM_STRIPED) != 0) {
        struct rdti_tcp_stripe *stripe = parts_stripe_at(lane, stream->stripes_taken++);

        stripe->done++;
        if (stripe->refused == RDT_OK)
            stripe->refused = stream->rx.refused;
    }
    if (stream->index == 0)
        *parts_at(lane, lane->parts_first + lane->parts_count++) =
            (struct rdti_tcp_part){.flags = head->flags,
                                   .refused = stream->rx.refused,
                                   .notify = head->value,
                                   .len_bytes = head->len_bytes};
    rdti_tcp_drain_parts(lane);
}

/* Queues the refusal of `number`; false if the queue is full. */
static bool
parts_push_refusal(struct rdti_tcp_lane *lane, bool is_read, uint32_t number, rdt_status status)
{
    bool has_room;

    (void)pthread_mutex_lock(&lane->lock);
    has_room = lane->refusal_count < RDTI_TCP_REFUSALS_MAX;
    if (has_room) {
        const uint32_t at = (lane->refusal_first + lane->refusal_count++) % RDTI_TCP_REFUSALS_MAX;

        lane->refusals[at] = (struct rdti_tcp_refusal){.is_read = is_read,
                                                       .status = (uint16_t)-status,
                                                       .number = number};
        if (!is_read) /* relaxed; under lock, so that no head acknowledges it before the refusal */
            atomic_store_explicit(&lane->rx_done, number, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&lane->lock);
    lane->kicks |= 1;
    return has_room;
}

/* The last part of a message is in place. False: retry later. */
static bool
parts_finish_message(struct rdti_tcp_lane *lane, const struct rdti_tcp_part *part,
                     rdt_status refused)
{
    const uint32_t number = atomic_load_explicit(&lane->rx_done, memory_order_relaxed) +
                            1; /* only the driver changes it */

    if (refused != RDT_OK) {
        if (!parts_push_refusal(lane, false, number, refused))
            return false;
        lane->rx_messages++;
        return true;
    }
    atomic_store_explicit(&lane->rx_done, number, memory_order_relaxed);
    lane->rx_messages++;
    lane->is_ack_now |= (part->flags & RDTI_STREAM_ACK_NOW) != 0;
    return true;
}

static void
parts_deliver(struct rdti_tcp_lane *lane, const struct rdti_tcp_part *part)
{
    const struct rdti_host *host = lane->tcp->host;

    if ((part->flags & RDTI_STREAM_NOTIFY) == 0)
        return;
    rdti_count(&host->counters->notifications, 1);
    host->on_notify(host->core, &lane->base, part->notify);
}

void
rdti_tcp_drain_parts(struct rdti_tcp_lane *lane)
{
    while (lane->parts_count > 0 && rdti_tcp_phase_of(lane) == RDTI_TCP_READY) {
        const struct rdti_tcp_part part = *parts_at(lane, lane->parts_first);
        struct rdti_tcp_stripe *stripe = NULL;
        rdt_status refused = lane->message_refused != RDT_OK ? lane->message_refused : part.refused;

        if ((part.flags & RDTI_STREAM_STRIPED) != 0) {
            stripe = parts_stripe_at(lane, lane->stripes_first);
            if (stripe->done < lane->stream_count)
                return;
            refused = refused != RDT_OK ? refused : stripe->refused;
        }
        const bool is_last = (part.flags & RDTI_STREAM_MORE) == 0;
        if (is_last && !parts_finish_message(lane, &part, refused))
            return;
        lane->message_refused = is_last ? RDT_OK : refused;
        lane->ack_bytes += part.len_bytes;
        if (stripe != NULL) {
            *stripe = (struct rdti_tcp_stripe){0};
            lane->stripes_first++;
        }
        lane->parts_first++;
        lane->parts_count--;
        if (refused == RDT_OK)
            parts_deliver(lane, &part);
    }
    parts_drop_backlog(lane);
}

/* ---- Acknowledgements to send -------------------------------------------------------------- */

static void
parts_send_ack_alone(struct rdti_tcp_lane *lane)
{
    if (atomic_load_explicit(&lane->streams[0]->wants_out, memory_order_relaxed))
        return; /* the socket is full, and the next head that is sent carries it */
    (void)pthread_mutex_lock(&lane->lock);
    lane->owes_ack = true;
    (void)pthread_mutex_unlock(&lane->lock);
    (void)rdti_tcp_push(lane->streams[0], RDTI_TCP_PASS_BYTES);
}

/* A hold was in vain: acks are sent at once, until the next trial holds them. */
static void
parts_lose_patience(struct rdti_tcp_lane *lane)
{
    const uint32_t ridden = atomic_exchange_explicit(&lane->acks_ridden, 0, memory_order_relaxed);
    const uint32_t first =
        RDTI_TCP_TRIAL_FIRST * (lane->args.is_connector ? 1 : RDTI_TCP_TRIAL_LATER);

    if (ridden >= RDTI_TCP_RIDES_PAY)
        lane->trial_gap = RDTI_TCP_TRIAL_FEW;
    else if (lane->trial_gap < first)
        lane->trial_gap = first;
    else if (lane->trial_gap < RDTI_TCP_TRIAL_MOST)
        lane->trial_gap *= 2;
    lane->trial_in = lane->trial_gap;
    lane->is_patient = false;
}

/* Counts an ack that is sent alone without a hold. */
static void
parts_approach_trial(struct rdti_tcp_lane *lane)
{
    if (--lane->trial_in > 0)
        return;
    atomic_store_explicit(&lane->acks_ridden, 0, memory_order_relaxed);
    lane->is_patient = true;
}

uint64_t
rdti_tcp_settle_acks(struct rdti_tcp_lane *lane, bool is_idle)
{
    const uint32_t built = atomic_load_explicit(&lane->ack_built, memory_order_relaxed);
    const uint32_t owed = atomic_load_explicit(&lane->rx_done, memory_order_relaxed) - built;

    if (owed == 0 || built != lane->ack_seen) {
        lane->ack_seen = built; /* a head carried some; the rest gets its own hold time */
        lane->ack_bytes = 0;
        lane->ack_since_ns = 0;
    }
    if (owed == 0) {
        lane->is_ack_now = false;
        return 0;
    }
    if (lane->is_ack_now || owed >= RDTI_TCP_ACK_MESSAGES ||
        lane->ack_bytes >= RDTI_TCP_ACK_BYTES) {
        parts_send_ack_alone(lane);
        return 0;
    }
    if (atomic_load_explicit(&lane->streams[0]->wants_out, memory_order_relaxed))
        return 0; /* the socket is full: the next head carries it; does not count as a trial */
    if (!lane->is_patient) {
        parts_approach_trial(lane);
        parts_send_ack_alone(lane);
        return 0;
    }
    if (!is_idle)
        return RDTI_TCP_ACK_HOLD_NS; /* the caller may be about to reply */
    const uint64_t now_ns = rdti_now_ns();
    if (lane->ack_since_ns == 0)
        lane->ack_since_ns = now_ns;
    if (now_ns - lane->ack_since_ns < RDTI_TCP_ACK_HOLD_NS)
        return RDTI_TCP_ACK_HOLD_NS - (now_ns - lane->ack_since_ns);
    parts_lose_patience(lane);
    parts_send_ack_alone(lane);
    return 0;
}

/* ---- Reads of the peer --------------------------------------------------------------------- */

/* Releases the answers that every stream has sent. */
void
rdti_tcp_release_responses(struct rdti_tcp_lane *lane)
{
    while (true) {
        struct rdti_target target;
        bool is_sent = false;

        (void)pthread_mutex_lock(&lane->lock);
        if (lane->response_out != lane->response_in) {
            struct rdti_tcp_response *r =
                &lane->responses[lane->response_out % RDTI_STREAM_READS_MAX];

            is_sent = r->streams_left == 0;
            target = r->target;
            lane->response_out += is_sent;
        } else {
            rdti_tcp_pool_give(&lane->tcp->responses, lane->responses);
            lane->responses = NULL;
        }
        (void)pthread_mutex_unlock(&lane->lock);
        if (!is_sent)
            return;
        lane->tcp->host->target_release(lane->tcp->host->core, &target);
    }
}

rdt_status
rdti_tcp_take_request(struct rdti_tcp_lane *lane, const struct rdti_stream_head *head,
                      bool *is_stalled_out, struct rdt_error *err)
{
    const struct rdti_host *host = lane->tcp->host;
    const bool is_striped = rdti_tcp_is_striped(lane, head->len_bytes);
    struct rdti_target target;
    struct rdt_error why;

    *is_stalled_out = false;
    rdti_tcp_release_responses(lane);
    if (lane->response_in - lane->response_out == RDTI_STREAM_READS_MAX)
        return rdti_error_set(err, RDT_EPROTO, 0, "tcp stream: more than %d reads unanswered",
                              RDTI_STREAM_READS_MAX);
    const rdt_status status = host->target_acquire(host->core, head->index, head->generation,
                                                   head->off_bytes, head->len_bytes, &target, &why);
    if (status != RDT_OK) {
        *is_stalled_out = !parts_push_refusal(lane, true, head->value, status);
        return RDT_OK;
    }
    (void)pthread_mutex_lock(&lane->lock);
    if (lane->responses == NULL)
        lane->responses = rdti_tcp_pool_take(&lane->tcp->responses);
    if (lane->responses == NULL) {
        (void)pthread_mutex_unlock(&lane->lock);
        host->target_release(host->core, &target);
        return rdti_error_set(err, RDT_ENOMEM, 0, "answers of %zu bytes",
                              lane->tcp->responses.item_bytes);
    }
    lane->responses[lane->response_in++ % RDTI_STREAM_READS_MAX] =
        (struct rdti_tcp_response){.target = target,
                                   .id = head->value,
                                   .len_bytes = head->len_bytes,
                                   .streams_left = is_striped ? lane->stream_count : 1,
                                   .is_striped = is_striped};
    (void)pthread_mutex_unlock(&lane->lock);
    lane->kicks |= is_striped ? (UINT32_C(1) << lane->stream_count) - 1 : 1;
    return RDT_OK;
}

/* ---- Reads of this side -------------------------------------------------------------------- */

static struct rdti_tcp_request *
parts_find_request(struct rdti_tcp_lane *lane, uint32_t id)
{
    if (lane->requests == NULL)
        return NULL;
    struct rdti_tcp_request *r = &lane->requests[id % RDTI_STREAM_READS_MAX];

    return r->op != NULL && r->id == id ? r : NULL;
}

rdt_status
rdti_tcp_claim_read(struct rdti_tcp_stream *stream, uint8_t **dst_out, uint32_t *len_out,
                    struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = stream->lane;
    const struct rdti_stream_head *head = &stream->rx.head;
    const bool is_striped = (head->flags & RDTI_STREAM_STRIPED) != 0;
    const uint32_t bit = UINT32_C(1) << stream->index;
    uint32_t off = 0;
    uint32_t len = head->len_bytes;

    if (is_striped)
        rdti_stream_stripe(head->len_bytes, stream->index, lane->stream_count, &off, &len);
    (void)pthread_mutex_lock(&lane->lock);
    struct rdti_tcp_request *r = parts_find_request(lane, head->value);
    const bool is_first = r != NULL && r->seen == 0;
    const bool is_honest = r != NULL && r->len_bytes == head->len_bytes && (r->seen & bit) == 0 &&
                           (is_first || (is_striped && r->is_striped));
    if (is_honest) {
        if (is_first) {
            r->is_striped = is_striped;
            r->parts_left = is_striped ? lane->stream_count : 1;
        }
        r->seen |= bit;
        *dst_out = r->dst + off;
        *len_out = len;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    if (is_honest)
        return RDT_OK;
    return rdti_error_set(
        err, RDT_EPROTO, 0,
        "tcp stream: %u bytes of an answer to read %u, which does not wait for them",
        head->len_bytes, head->value);
}

/* Ends a request, and its op if this was the op's last request. */
static void
parts_end_request(struct rdti_tcp_lane *lane, struct rdti_tcp_request *r, rdt_status status)
{
    struct rdti_op *op = r->op;
    struct rdti_list done;

    rdti_list_init(&done);
    r->op = NULL;
    if (--lane->requests_open == 0) {
        rdti_tcp_pool_give(&lane->tcp->requests, lane->requests);
        lane->requests = NULL;
    }
    if (op->scratch[RDTI_TCP_OP_STATUS] == RDT_OK)
        op->scratch[RDTI_TCP_OP_STATUS] = (uint64_t)status;
    if (--op->scratch[RDTI_TCP_OP_CHUNKS_LEFT] == 0) {
        rdti_list_remove(&op->link);
        rdti_list_append(&done, &op->link);
    }
    if (lane->read_cursor != NULL)
        lane->kicks |= 1; /* there is room for another request */
    (void)pthread_mutex_unlock(&lane->lock);
    rdti_tcp_complete_all(lane, &done, NULL);
}

void
rdti_tcp_read_part_done(struct rdti_tcp_lane *lane, uint32_t id)
{
    (void)pthread_mutex_lock(&lane->lock);
    struct rdti_tcp_request *r = parts_find_request(lane, id);

    assert(r != NULL && r->parts_left > 0); /* claimed, and claims are counted */
    if (--r->parts_left == 0)
        parts_end_request(lane, r, RDT_OK); /* releases the lock */
    else
        (void)pthread_mutex_unlock(&lane->lock);
}

rdt_status
rdti_tcp_read_refused(struct rdti_tcp_lane *lane, const struct rdti_stream_head *head,
                      struct rdt_error *err)
{
    (void)pthread_mutex_lock(&lane->lock);
    struct rdti_tcp_request *r = parts_find_request(lane, head->value);

    if (r == NULL || r->seen != 0) {
        (void)pthread_mutex_unlock(&lane->lock);
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "tcp stream: a refusal of read %u, which does not wait for one",
                              head->value);
    }
    parts_end_request(lane, r, -(rdt_status)head->aux); /* releases the lock */
    return RDT_OK;
}
