/* SPDX-License-Identifier: Apache-2.0
 * The receive state machine of one stream: a head, for some ops a list, then payload directly into
 * its place. The vector of the payload's recvmsg ends with room for the next head, so that a run of
 * messages costs one call each. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/error.h"
#include "transport/tcp/tcp.h"

enum outcome {
    OUTCOME_GO,    /* the state has advanced */
    OUTCOME_WAIT,  /* no room for the announced part: retry in a later pass */
    OUTCOME_EMPTY, /* ended without payload: no sign that more has arrived */
    OUTCOME_BROKEN /* the lane has failed */
};

/* Fails the lane, because the peer broke the protocol or memory is short. The error adds the peer
 * to the cause. */
static enum outcome
rx_fail_part(struct rdti_tcp_stream *s, const struct rdt_error *why)
{
    struct rdt_error err;

    if (why->status == RDT_ENOMEM) {
        rdti_tcp_fail_socket(s, why->message, ENOMEM);
        return OUTCOME_BROKEN;
    }
    (void)rdti_error_set_rank(&err, (rdt_status)why->status, s->lane->args.peer_rank,
                              "rank %d at %s, stream %u: %s; both sides need the same version, and "
                              "no other process may write into the connection",
                              s->lane->args.peer_rank, s->lane->peer_text, s->index, why->message);
    rdti_tcp_fail(s->lane, &err);
    return OUTCOME_BROKEN;
}

static enum outcome
rx_end_part(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_rx *rx = &s->rx;
    const bool is_empty = rx->head_have == 0;

    rdti_tcp_release_part(s);
    rx->state = RDTI_TCP_RX_HEAD;
    if (rx->head.op == RDTI_STREAM_READ_DATA)
        rdti_tcp_read_part_done(s->lane, rx->head.value);
    else
        rdti_tcp_part_done(s);
    return is_empty ? OUTCOME_EMPTY : OUTCOME_GO;
}

static enum outcome
rx_begin_payload(struct rdti_tcp_stream *s, enum rdti_tcp_rx_state state, uint64_t len_bytes)
{
    s->rx.state = state;
    s->rx.left = len_bytes;
    s->rx.iov_at = 0;
    return len_bytes == 0 ? rx_end_part(s) : OUTCOME_GO;
}

/* Pins the whole range of a part, even if only a stripe arrives here: a part is refused as a whole.
 * NULL: refused, rx.refused has the reason. */
static uint8_t *
rx_acquire(struct rdti_tcp_stream *s, uint64_t off_bytes, uint64_t len_bytes)
{
    const struct rdti_host *host = s->lane->tcp->host;
    struct rdti_tcp_rx *rx = &s->rx;

    rx->refused = s->index == 0 ? s->lane->refusing : RDT_OK;
    if (rx->refused == RDT_OK) {
        struct rdt_error why;

        rx->refused = host->target_acquire(host->core, rx->head.index, rx->head.generation,
                                           off_bytes, len_bytes, &rx->target, &why);
        rx->has_target = rx->refused == RDT_OK;
    }
    if (s->index == 0)
        s->lane->refusing = (rx->head.flags & RDTI_STREAM_MORE) != 0 ? rx->refused : RDT_OK;
    return rx->has_target ? rx->target.addr : NULL;
}

static enum outcome
rx_expect_list(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_rx *rx = &s->rx;
    struct rdt_error err;

    rx->list = rdti_tcp_pool_take(&s->lane->tcp->lists);
    if (rx->list == NULL) {
        (void)rdti_error_set(&err, RDT_ENOMEM, 0, "a list of %zu bytes", sizeof(*rx->list));
        return rx_fail_part(s, &err);
    }
    rx->list_have = 0;
    rx->state = RDTI_TCP_RX_LIST;
    return OUTCOME_GO;
}

/* All payload goes to one address. */
static void
rx_aim_at(struct rdti_tcp_rx *rx, uint8_t *at, uint32_t len_bytes)
{
    rx->iov = rx->lone;
    rx->iov[0] = (struct iovec){.iov_base = at, .iov_len = len_bytes};
    rx->iov_count = 1;
}

static enum outcome
rx_begin_write(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_rx *rx = &s->rx;
    uint32_t off = 0;
    uint32_t len = rx->head.len_bytes;

    if (!rdti_tcp_part_has_room(s))
        return OUTCOME_WAIT;
    rx->head_have = 0;
    if (rx->head.op == RDTI_STREAM_WRITE_LIST)
        return rx_expect_list(s);
    if ((rx->head.flags & RDTI_STREAM_STRIPED) != 0) {
        struct rdt_error err;

        if (rdti_tcp_stripe_begins(s, &err) != RDT_OK)
            return rx_fail_part(s, &err);
        rdti_stream_stripe(rx->head.len_bytes, s->index, s->lane->stream_count, &off, &len);
    }
    uint8_t *at = rx_acquire(s, rx->head.off_bytes, rx->head.len_bytes);
    if (at == NULL)
        return rx->head.op == RDTI_STREAM_WRITE_INLINE
                   ? rx_end_part(s)
                   : rx_begin_payload(s, RDTI_TCP_RX_DRAIN, len);
    if (rx->head.op == RDTI_STREAM_WRITE_INLINE) {
        memcpy(at, rx->head.inlined, len);
        /* A message's head and body are never as short as this. */
        rdti_count(&s->lane->tcp->host->counters->copied_bytes[RDTI_TRAFFIC_PLANNED], len);
        return rx_end_part(s);
    }
    rx_aim_at(rx, at + off, len);
    return rx_begin_payload(s, RDTI_TCP_RX_PAYLOAD, len);
}

/* The list has arrived: takes one pin over all its entries. */
static enum outcome
rx_begin_list(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_rx *rx = &s->rx;
    struct rdti_stream_entry entries[RDTI_STREAM_LIST_MAX];
    struct rdt_error err;
    uint64_t lo;
    uint64_t hi;

    if (rdti_stream_list_decode(rx->list->bytes, rx->list_have, rx->head.aux, rx->head.len_bytes,
                                entries, &lo, &hi, &err) != RDT_OK)
        return rx_fail_part(s, &err);
    uint8_t *base = rx_acquire(s, lo, hi - lo);
    if (base == NULL)
        return rx_begin_payload(s, RDTI_TCP_RX_DRAIN, rx->head.len_bytes);
    rx->iov = rx->list->iov;
    for (uint32_t i = 0; i < rx->head.aux; i++)
        rx->iov[i] = (struct iovec){.iov_base = base + (entries[i].off_bytes - lo),
                                    .iov_len = entries[i].len_bytes};
    rx->iov_count = rx->head.aux;
    return rx_begin_payload(s, RDTI_TCP_RX_PAYLOAD, rx->head.len_bytes);
}

static enum outcome
rx_begin_read_data(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_rx *rx = &s->rx;
    struct rdt_error err;
    uint8_t *dst;
    uint32_t len;

    if (rdti_tcp_claim_read(s, &dst, &len, &err) != RDT_OK)
        return rx_fail_part(s, &err);
    rx->head_have = 0;
    rx_aim_at(rx, dst, len);
    return rx_begin_payload(s, RDTI_TCP_RX_PAYLOAD, len);
}

/* Heads without payload. */
static enum outcome
rx_take_control(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;
    const struct rdti_stream_head *head = &s->rx.head;
    rdt_status status = RDT_OK;
    bool is_stalled = false;
    struct rdt_error err;

    switch (head->op) {
    case RDTI_STREAM_READ_REQUEST:
        status = rdti_tcp_take_request(lane, head, &is_stalled, &err);
        break;
    case RDTI_STREAM_READ_REFUSED:
        status = rdti_tcp_read_refused(lane, head, &err);
        break;
    default: /* ACK and REFUSED: only the ack, which is already taken */
        break;
    }
    if (status != RDT_OK)
        return rx_fail_part(s, &err);
    if (is_stalled)
        return OUTCOME_WAIT;
    s->rx.head_have = 0;
    return OUTCOME_EMPTY;
}

/* Before the lane is ready the connector accepts only READY on stream 0, and the listener nothing.
 * Stripes on the connector's other streams do not pass here. */
static enum outcome
rx_take_early(struct rdti_tcp_stream *s)
{
    struct rdt_error err;

    if (s->rx.head.op == RDTI_STREAM_READY && s->lane->args.is_connector) {
        s->rx.head_have = 0;
        rdti_tcp_become_ready(s->lane);
        return OUTCOME_GO;
    }
    (void)rdti_error_set(&err, RDT_EPROTO, 0, "tcp stream: op %u before the lane is ready",
                         s->rx.head.op);
    return rx_fail_part(s, &err);
}

static enum outcome
rx_dispatch(struct rdti_tcp_stream *s)
{
    switch (s->rx.head.op) {
    case RDTI_STREAM_WRITE:
    case RDTI_STREAM_WRITE_LIST:
    case RDTI_STREAM_WRITE_INLINE:
        return rx_begin_write(s);
    case RDTI_STREAM_READ_DATA:
        return rx_begin_read_data(s);
    default:
        return rx_take_control(s);
    }
}

/* A whole head has arrived. */
static enum outcome
rx_begin_part(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_rx *rx = &s->rx;
    struct rdti_tcp_lane *lane = s->lane;
    const bool is_ready = rdti_tcp_phase_of(lane) == RDTI_TCP_READY;
    struct rdt_error err;

    rdt_status status = rdti_stream_head_decode(rx->head_buf, sizeof(rx->head_buf), s->index,
                                                lane->stream_count, &rx->head, &err);
    if (status != RDT_OK)
        return rx_fail_part(s, &err);
    if (!is_ready && (s->index == 0 || !lane->args.is_connector))
        return rx_take_early(s);
    if (rx->head.op == RDTI_STREAM_READY) {
        (void)rdti_error_set(&err, RDT_EPROTO, 0, "tcp stream: READY again");
        return rx_fail_part(s, &err);
    }
    if (s->index == 0) {
        const bool is_refusal = rx->head.op == RDTI_STREAM_REFUSED;

        status = rdti_tcp_take_ack(lane, rx->head.ack,
                                   is_refusal ? -(rdt_status)rx->head.aux : RDT_OK, &err);
        if (status != RDT_OK)
            return rx_fail_part(s, &err);
        if (rdti_tcp_phase_of(lane) == RDTI_TCP_FAILED)
            return OUTCOME_BROKEN; /* the completion of an op has closed the lane */
    }
    return rx_dispatch(s);
}

/* ---- Bytes --------------------------------------------------------------------------------- */

/* Takes n received bytes: payload first, the rest belongs to the next head. */
static void
rx_advance_payload(struct rdti_tcp_rx *rx, size_t n)
{
    const size_t taken = n < rx->left ? n : (size_t)rx->left;
    size_t rest = taken;

    while (rest > 0 && rx->iov_at < rx->iov_count && rest >= rx->iov[rx->iov_at].iov_len)
        rest -= rx->iov[rx->iov_at++].iov_len;
    if (rest > 0) {
        rx->iov[rx->iov_at].iov_base = (uint8_t *)rx->iov[rx->iov_at].iov_base + rest;
        rx->iov[rx->iov_at].iov_len -= rest;
    }
    rx->left -= taken;
    rx->head_have = (uint32_t)(n - taken);
    rx->is_run = rx->is_run && rx->head_have > 0;
}

static ssize_t
rx_recv_payload(struct rdti_tcp_stream *s, size_t *asked_out)
{
    struct rdti_tcp_rx *rx = &s->rx;
    struct msghdr msg = {.msg_iov = rx->iov + rx->iov_at,
                         .msg_iovlen = rx->iov_count - rx->iov_at + 1};

    rx->iov[rx->iov_count] =
        (struct iovec){.iov_base = rx->head_buf, .iov_len = sizeof(rx->head_buf)};
    *asked_out = (size_t)rx->left + sizeof(rx->head_buf);
    return recvmsg(s->fd, &msg, MSG_DONTWAIT);
}

/* A small payload that arrives alone, as in a ping-pong: the plain call saves a tenth of the whole
 * latency compared with one that also asks for the next head. */
static ssize_t
rx_recv_lone_payload(struct rdti_tcp_stream *s, size_t *asked_out)
{
    const struct iovec *iov = &s->rx.iov[s->rx.iov_at];

    *asked_out = iov->iov_len;
    return recv(s->fd, iov->iov_base, iov->iov_len, MSG_DONTWAIT);
}

/* One system call; *asked_out is the number of bytes requested. */
static ssize_t
rx_recv_some(struct rdti_tcp_stream *s, size_t *asked_out)
{
    struct rdti_tcp_rx *rx = &s->rx;
    struct rdti_tcp *tcp = s->lane->tcp;
    uint8_t *at;

    switch (rx->state) {
    case RDTI_TCP_RX_HEAD:
        at = rx->head_buf + rx->head_have;
        *asked_out = sizeof(rx->head_buf) - rx->head_have;
        break;
    case RDTI_TCP_RX_LIST:
        at = rx->list->bytes + rx->list_have;
        *asked_out = (size_t)rx->head.aux * RDTI_STREAM_ENTRY_BYTES - rx->list_have;
        break;
    case RDTI_TCP_RX_DRAIN:
        at = tcp->drain;
        *asked_out = rx->left < sizeof(tcp->drain) ? (size_t)rx->left : sizeof(tcp->drain);
        break;
    default:
        if (!rx->is_run && rx->left < RDTI_TCP_LONE_MAX_BYTES && rx->iov_at + 1 == rx->iov_count)
            return rx_recv_lone_payload(s, asked_out);
        return rx_recv_payload(s, asked_out);
    }
    return recv(s->fd, at, *asked_out, MSG_DONTWAIT);
}

static enum outcome
rx_take_bytes(struct rdti_tcp_stream *s, size_t n)
{
    struct rdti_tcp_rx *rx = &s->rx;

    switch (rx->state) {
    case RDTI_TCP_RX_HEAD:
        rx->is_run = rx->was_busy && rx->head_have == 0;
        rx->head_have += (uint32_t)n;
        return OUTCOME_GO; /* the loop checks that it is whole */
    case RDTI_TCP_RX_LIST:
        rx->list_have += (uint32_t)n;
        if (rx->list_have < (uint32_t)rx->head.aux * RDTI_STREAM_ENTRY_BYTES)
            return OUTCOME_GO;
        return rx_begin_list(s);
    case RDTI_TCP_RX_DRAIN:
        rx->left -= n;
        break;
    default:
        rx_advance_payload(rx, n);
        break;
    }
    return rx->left == 0 ? rx_end_part(s) : OUTCOME_GO;
}

/* Received n <= 0: whether to continue, and whether the lane broke. */
static enum outcome
rx_take_end(struct rdti_tcp_stream *s, ssize_t n, int sys_errno)
{
    if (n == 0) {
        rdti_tcp_fail_socket(s, "the peer closed the connection", 0);
        return OUTCOME_BROKEN;
    }
    if (sys_errno == EINTR)
        return OUTCOME_GO;
    if (sys_errno == EAGAIN || sys_errno == EWOULDBLOCK)
        return OUTCOME_EMPTY;
    rdti_tcp_fail_socket(s, "receiving failed", sys_errno);
    return OUTCOME_BROKEN;
}

/* Begins the part of a received head, unless it must wait. */
static enum outcome
rx_step_head(struct rdti_tcp_stream *s)
{
    const enum outcome outcome = rx_begin_part(s);

    if (outcome != OUTCOME_BROKEN)
        s->is_stalled = outcome == OUTCOME_WAIT;
    return outcome;
}

uint32_t
rdti_tcp_receive(struct rdti_tcp_stream *stream, uint64_t *budget_bytes)
{
    struct rdti_tcp_rx *rx = &stream->rx;
    enum outcome outcome = OUTCOME_GO;
    uint32_t work = 0;

    while (outcome == OUTCOME_GO && *budget_bytes > 0) {
        size_t asked;

        if (rx->state == RDTI_TCP_RX_HEAD && rx->head_have == sizeof(rx->head_buf)) {
            const bool was_stalled = stream->is_stalled;

            outcome = rx_step_head(stream);
            work += outcome != OUTCOME_WAIT || !was_stalled;
            continue;
        }
        const ssize_t n = rx_recv_some(stream, &asked);
        if (n <= 0) {
            outcome = rx_take_end(stream, n, errno);
            continue;
        }
        work++;
        *budget_bytes -= (uint64_t)n < *budget_bytes ? (uint64_t)n : *budget_bytes;
        outcome = rx_take_bytes(stream, (size_t)n);
        if (outcome == OUTCOME_GO && (size_t)n < asked && rx->head_have < sizeof(rx->head_buf))
            outcome = OUTCOME_EMPTY; /* the socket is empty */
    }
    rx->was_busy = work > 0;
    return work;
}
