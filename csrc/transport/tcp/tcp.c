/* SPDX-License-Identifier: Apache-2.0
 * The tcp transport's table of operations and its pass over the lanes. */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"

/* ---- Attention ----------------------------------------------------------------------------- */

static void
tcp_take_attention(struct rdti_tcp *tcp)
{
    struct rdti_list *node;

    if (!atomic_load_explicit(&tcp->has_attention, memory_order_acquire))
        return;
    (void)pthread_mutex_lock(&tcp->attention_lock);
    while ((node = rdti_list_take_first(&tcp->attention)) != NULL)
        rdti_tcp_make_hot(RDTI_CONTAINER(node, struct rdti_tcp_lane, attention_link));
    /* relaxed: under the lock of the threads that set it */
    atomic_store_explicit(&tcp->has_attention, false, memory_order_relaxed);
    (void)pthread_mutex_unlock(&tcp->attention_lock);
}

/* ---- The pass ------------------------------------------------------------------------------ */

static uint32_t
tcp_receive_all(struct rdti_tcp_lane *lane)
{
    uint64_t budget_bytes = RDTI_TCP_PASS_BYTES;
    uint32_t work = 0;

    for (uint32_t i = 0; i < lane->stream_count; i++) {
        /* Starts with another stream each time, so that no stream always uses up the budget. */
        const uint32_t index = (i + lane->tcp->pass) % lane->stream_count;
        struct rdti_tcp_stream *s = lane->streams[index];

        if (s == NULL || s->is_connecting || rdti_tcp_phase_of(lane) == RDTI_TCP_FAILED)
            continue;
        if (s->hot_left == 0 && !s->is_stalled)
            continue;
        const uint32_t done = rdti_tcp_receive(s, &budget_bytes);
        work += done;
        if (done > 0)
            s->hot_left = RDTI_TCP_HOT_PASSES;
        else if (s->hot_left > 0)
            s->hot_left--;
    }
    return work;
}

/* A stalled stream must not wake a sleeper repeatedly. */
static void
tcp_watch_stalled(struct rdti_tcp_lane *lane)
{
    for (uint32_t i = 0; i < lane->stream_count; i++) {
        struct rdti_tcp_stream *s = lane->streams[i];

        if (s == NULL || s->is_connecting ||
            atomic_load_explicit(&s->wants_in, memory_order_relaxed) == !s->is_stalled)
            continue;
        atomic_store_explicit(&s->wants_in, !s->is_stalled, memory_order_relaxed);
        rdti_tcp_update_watch(s);
    }
}

static uint32_t
tcp_send_all(struct rdti_tcp_lane *lane)
{
    const uint32_t kicks = lane->kicks;
    uint64_t budget_bytes = RDTI_TCP_PASS_BYTES;
    uint32_t work = 0;

    lane->kicks = 0;
    for (uint32_t i = 0; i < lane->stream_count; i++) {
        const uint32_t index = (i + lane->tcp->pass) % lane->stream_count;
        struct rdti_tcp_stream *s = lane->streams[index];

        /* relaxed: only a hint, push() checks under the lock; seq_cst: see rdti_tcp_write() */
        if ((kicks >> index & 1) == 0 &&
            !atomic_load_explicit(&s->wants_out, memory_order_relaxed) &&
            (index > 0 || !atomic_load_explicit(&lane->has_riders, memory_order_seq_cst)))
            continue;
        const uint64_t sent = rdti_tcp_push(s, budget_bytes);
        work += sent > 0;
        budget_bytes -= sent < budget_bytes ? sent : budget_bytes;
    }
    return work;
}

static void
tcp_fail_sending(struct rdti_tcp_lane *lane)
{
    /* relaxed: a hint, the lock orders the values */
    if (!atomic_load_explicit(&lane->is_tx_broken, memory_order_relaxed))
        return;
    (void)pthread_mutex_lock(&lane->lock);
    const int sys_errno = lane->tx_errno;
    const uint32_t index = lane->tx_errno_stream;
    (void)pthread_mutex_unlock(&lane->lock);
    if (sys_errno != 0)
        rdti_tcp_fail_socket(lane->streams[index], "sending failed", sys_errno);
}

static bool
tcp_is_busy(const struct rdti_tcp_lane *lane)
{
    if (lane->kicks != 0 || lane->parts_count != 0 || lane->response_in != lane->response_out)
        return true;
    for (uint32_t i = 0; i < lane->stream_count; i++) {
        const struct rdti_tcp_stream *s = lane->streams[i];

        /* relaxed: a writer that sets it also calls for attention */
        if (s->hot_left > 0 || s->is_stalled ||
            atomic_load_explicit(&s->wants_out, memory_order_relaxed))
            return true;
    }
    return false;
}

/* The clock costs as much as the rest of a pass, so it is read in a pass without work. */
static void
tcp_note_progress(struct rdti_tcp_lane *lane, uint32_t work)
{
    if (work == 0 && lane->is_progress_new)
        lane->last_progress_ns = rdti_now_ns();
    lane->is_progress_new = work > 0;
}

/* Serves one lane; a lane without work leaves the list. *hold_ns: the shortest time for which an
 * ack may still be held. */
static uint32_t
tcp_serve(struct rdti_tcp_lane *lane, uint64_t *hold_ns)
{
    uint32_t work = 0;
    uint64_t held_ns = 0;

    if (rdti_tcp_phase_of(lane) == RDTI_TCP_SETUP)
        work += rdti_tcp_setup_step(lane);
    work += tcp_receive_all(lane);
    if (rdti_tcp_phase_of(lane) == RDTI_TCP_READY) {
        if (lane->parts_count > 0)
            rdti_tcp_drain_parts(lane);
        tcp_watch_stalled(lane);
        work += tcp_send_all(lane);
        tcp_note_progress(lane, work);
        held_ns = rdti_tcp_settle_acks(lane, work == 0);
        if (lane->response_in != lane->response_out)
            rdti_tcp_release_responses(lane);
        tcp_fail_sending(lane);
    }
    if (held_ns > 0 && held_ns < *hold_ns)
        *hold_ns = held_ns;
    const uint32_t phase = rdti_tcp_phase_of(lane);
    if (phase == RDTI_TCP_FAILED || (phase == RDTI_TCP_READY && held_ns == 0 && !tcp_is_busy(lane)))
        rdti_list_remove(&lane->hot_link);
    return work;
}

/* Polls one stream of one cold lane, round robin. */
static void
tcp_try_cold(struct rdti_tcp *tcp)
{
    struct rdti_list *node = rdti_list_take_first(&tcp->lanes);

    if (node == NULL)
        return;
    rdti_list_append(&tcp->lanes, node);
    struct rdti_tcp_lane *lane = RDTI_CONTAINER(node, struct rdti_tcp_lane, all_link);
    if (rdti_tcp_phase_of(lane) != RDTI_TCP_READY)
        return;
    struct rdti_tcp_stream *s = lane->streams[tcp->pass / RDTI_TCP_COLD_EVERY % lane->stream_count];
    if (s->hot_left == 0)
        s->hot_left = 1;
    rdti_tcp_make_hot(lane);
}

/* [driver] It only ends a sleep: the next pass checks the held acknowledgements. */
static void
tcp_on_timer(void *arg, uint32_t epoll_events)
{
    struct rdti_tcp *tcp = arg;
    uint64_t expirations;

    (void)epoll_events;
    if (read(tcp->timer_fd, &expirations, sizeof(expirations)) == (ssize_t)sizeof(expirations))
        tcp->timer = RDTI_TCP_TIMER_OFF;
}

/* A running timer ends earlier, unless it is the backstop: all acks are held equally long. */
static void
tcp_arm_timer(struct rdti_tcp *tcp, enum rdti_tcp_timer timer, uint64_t delay_ns)
{
    const struct itimerspec when = {.it_value = {.tv_nsec = (long)delay_ns}};

    if (tcp->timer < timer && timerfd_settime(tcp->timer_fd, 0, &when, NULL) == 0)
        tcp->timer = timer;
}

static void
tcp_free_lane(struct rdti_tcp_lane *lane)
{
    rdti_tcp_give_back(lane);
    for (uint32_t i = 0; i < RDTI_STREAM_STREAMS_MAX; i++)
        free(lane->streams[i]);
    (void)pthread_mutex_destroy(&lane->lock);
    (void)pthread_mutex_destroy(&lane->watch_lock);
    explicit_bzero(lane->args.session_key, sizeof(lane->args.session_key));
    free(lane);
}

/* A separate function, so that a pass without lanes costs next to nothing. */
__attribute__((noinline)) static uint32_t
tcp_poll_lanes(struct rdti_tcp *tcp)
{
    struct rdti_list *node;
    uint64_t hold_ns = UINT64_MAX;
    uint32_t work = 0;

    tcp->pass++;
    tcp_take_attention(tcp);
    if (tcp->pass % RDTI_TCP_COLD_EVERY == 0)
        tcp_try_cold(tcp);
    tcp->is_polling = true;
    for (node = tcp->hot.next; node != &tcp->hot;) {
        struct rdti_tcp_lane *lane = RDTI_CONTAINER(node, struct rdti_tcp_lane, hot_link);

        node = node->next; /* tcp_serve() removes only its own lane; close_lane() defers the free */
        work += tcp_serve(lane, &hold_ns);
    }
    tcp->is_polling = false;
    if (hold_ns != UINT64_MAX && work == 0)
        tcp_arm_timer(tcp, RDTI_TCP_TIMER_HOLD, hold_ns);
    else if (hold_ns != UINT64_MAX)
        tcp_arm_timer(tcp, RDTI_TCP_TIMER_BACKSTOP, RDTI_TCP_ACK_BACKSTOP_NS);
    while ((node = rdti_list_take_first(&tcp->graveyard)) != NULL) {
        struct rdti_tcp_lane *lane = RDTI_CONTAINER(node, struct rdti_tcp_lane, attention_link);

        rdti_list_remove(&lane->hot_link);
        tcp_free_lane(lane);
    }
    return work;
}

static uint32_t
tcp_poll(void *state)
{
    struct rdti_tcp *tcp = state;

    return rdti_list_is_empty(&tcp->lanes) && rdti_list_is_empty(&tcp->graveyard)
               ? 0
               : tcp_poll_lanes(tcp);
}

/* ---- The table ----------------------------------------------------------------------------- */

static void
tcp_open_pools(struct rdti_tcp *tcp)
{
    rdti_tcp_pool_open(&tcp->batches, sizeof(struct rdti_tcp_batch));
    rdti_tcp_pool_open(&tcp->lists, sizeof(struct rdti_tcp_rx_list));
    rdti_tcp_pool_open(&tcp->backlogs, sizeof(struct rdti_tcp_backlog));
    rdti_tcp_pool_open(&tcp->requests, RDTI_STREAM_READS_MAX * sizeof(struct rdti_tcp_request));
    rdti_tcp_pool_open(&tcp->responses, RDTI_STREAM_READS_MAX * sizeof(struct rdti_tcp_response));
}

static void
tcp_close_pools(struct rdti_tcp *tcp)
{
    rdti_tcp_pool_close(&tcp->batches);
    rdti_tcp_pool_close(&tcp->lists);
    rdti_tcp_pool_close(&tcp->backlogs);
    rdti_tcp_pool_close(&tcp->requests);
    rdti_tcp_pool_close(&tcp->responses);
}

static rdt_status
tcp_open(const struct rdti_host *host, void **state_out, struct rdt_error *err)
{
    rdt_status status;

    struct rdti_tcp *tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "tcp: %zu bytes", sizeof(*tcp));
    tcp->host = host;
    rdti_list_init(&tcp->lanes);
    rdti_list_init(&tcp->hot);
    rdti_list_init(&tcp->graveyard);
    rdti_list_init(&tcp->attention);
    (void)pthread_mutex_init(&tcp->attention_lock, NULL);
    tcp_open_pools(tcp);
    tcp->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (tcp->timer_fd < 0) {
        status = rdti_error_set(err, RDT_EDEVICE, errno, "timerfd_create");
        goto err_free;
    }
    status =
        host->watch(host->core, tcp->timer_fd, EPOLLIN, tcp_on_timer, tcp, &tcp->timer_watch, err);
    if (status != RDT_OK)
        goto err_close;
    rdti_fork_guard();
    *state_out = tcp;
    return RDT_OK;

err_close:
    (void)close(tcp->timer_fd);
err_free:
    tcp_close_pools(tcp);
    (void)pthread_mutex_destroy(&tcp->attention_lock);
    free(tcp);
    return status;
}

static void
tcp_close(void *state)
{
    struct rdti_tcp *tcp = state;

    tcp->host->unwatch(tcp->host->core, tcp->timer_watch);
    (void)close(tcp->timer_fd);
    tcp_close_pools(tcp);
    (void)pthread_mutex_destroy(&tcp->attention_lock);
    free(tcp);
}

static rdt_status
tcp_make_offer(void *state, const struct rdti_lane_args *args, struct rdti_lane **out,
               struct rdti_offer *offer, struct rdt_error *err)
{
    struct rdti_tcp *tcp = state;
    struct rdti_tcp_lane *lane = calloc(1, sizeof(*lane));

    if (lane == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "tcp lane: %zu bytes", sizeof(*lane));
    lane->base.transport = &rdti_transport_tcp;
    lane->tcp = tcp;
    lane->args = *args;
    if (args->peer_sockaddr != NULL && args->peer_sockaddr_bytes <= sizeof(lane->peer_sockaddr)) {
        memcpy(&lane->peer_sockaddr, args->peer_sockaddr, args->peer_sockaddr_bytes);
        lane->args.peer_sockaddr = &lane->peer_sockaddr;
    }
    lane->streams_offered = rdti_tcp_streams_wanted(tcp->host, args);
    (void)pthread_mutex_init(&lane->lock, NULL);
    (void)pthread_mutex_init(&lane->watch_lock, NULL);
    lane->is_patient = true;
    rdti_list_init(&lane->ops);
    rdti_list_init(&lane->reads);
    rdti_list_init(&lane->hot_link);
    rdti_list_init(&lane->attention_link);
    rdti_list_append(&tcp->lanes, &lane->all_link);
    rdti_tcp_make_hot(lane); /* passes check the deadline of its set-up */
    (void)atomic_fetch_add_explicit(&tcp->lane_count, 1, memory_order_relaxed);

    memset(offer, 0, sizeof(*offer));
    rdti_stream_offer_encode((uint16_t)lane->streams_offered, offer->bytes);
    offer->len_bytes = RDTI_STREAM_OFFER_BYTES;
    *out = &lane->base;
    return RDT_OK;
}

static rdt_status
tcp_connect(struct rdti_lane *base, struct rdti_offer *peer, struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;
    struct rdt_error why;
    uint16_t streams = 0;
    rdt_status status;

    for (uint32_t i = 0; i < peer->fd_count && i < RDTI_OFFER_MAX_FDS; i++)
        (void)close(peer->fds[i]); /* connect() owns them; tcp uses none */
    if (peer->fd_count > 0)
        status =
            rdti_error_set(&why, RDT_EPROTO, 0, "tcp offer with %u descriptors", peer->fd_count);
    else
        status = rdti_stream_offer_decode(peer->bytes, peer->len_bytes, &streams, &why);
    if (status != RDT_OK)
        goto err_teardown;

    lane->stream_count = streams < lane->streams_offered ? streams : lane->streams_offered;
    for (uint32_t i = lane->stream_count; i < lane->streams_offered; i++) {
        if (lane->streams[i] == NULL)
            continue;
        status = rdti_error_set(&why, RDT_EPROTO, 0, "tcp stream %u joined, the peer offered %u", i,
                                streams);
        goto err_teardown;
    }
    if (lane->args.is_connector) {
        status = rdti_tcp_connect_streams(lane, &why);
        if (status != RDT_OK)
            goto err_teardown;
    }
    rdti_tcp_make_hot(lane);
    rdti_tcp_check_ready(lane);
    return RDT_OK;

err_teardown:
    rdti_tcp_teardown(lane, &why);
    return rdti_error_copy(err, &why);
}

static rdt_status
tcp_add_stream(struct rdti_lane *base, int fd, uint32_t index, struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;
    const uint32_t bound = lane->stream_count > 0 ? lane->stream_count : lane->streams_offered;
    rdt_status status;

    if (rdti_tcp_phase_of(lane) == RDTI_TCP_FAILED)
        status = rdti_error_copy(err, &lane->error); /* the driver, this thread, wrote it */
    else if (lane->args.is_connector || index >= bound || lane->streams[index] != NULL)
        status = rdti_error_set(err, RDT_EPROTO, 0, "tcp: stream %u of %u joined%s", index, bound,
                                index < bound ? " again" : "");
    else {
        status = rdti_tcp_adopt_stream(lane, fd, index, err); /* takes ownership of fd */
        if (status == RDT_OK) {
            rdti_tcp_make_hot(lane);
            rdti_tcp_check_ready(lane);
        }
        return status;
    }
    (void)close(fd);
    return status;
}

static bool
tcp_needs_epoll(void *state)
{
    struct rdti_tcp *tcp = state;

    return atomic_load_explicit(&tcp->lane_count, memory_order_relaxed) > 0;
}

static void
tcp_hear(struct rdti_lane *base)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;

    if (rdti_tcp_phase_of(lane) != RDTI_TCP_READY)
        return;
    for (uint32_t i = 0; i < lane->stream_count; i++)
        lane->streams[i]->hot_left = RDTI_TCP_HOT_PASSES;
    rdti_tcp_make_hot(lane);
}

static void
tcp_explain(const struct rdti_lane *base, char *buf, size_t cap)
{
    const struct rdti_tcp_lane *lane = (const struct rdti_tcp_lane *)base;

    (void)snprintf(buf, cap, "%u of %u streams to %s%s", lane->streams_present, lane->stream_count,
                   lane->peer_text[0] != '\0' ? lane->peer_text : "a peer that has not joined",
                   lane->args.is_loopback ? " (loopback)" : "");
}

static bool
tcp_is_idle(struct rdti_lane *base)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;

    /* acquire: pairs with the decrement before complete() */
    return atomic_load_explicit(&lane->ops_open, memory_order_acquire) == 0;
}

static void
tcp_close_lane(struct rdti_lane *base, const struct rdt_error *err)
{
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)base;
    struct rdti_tcp *tcp = lane->tcp;

    if (rdti_tcp_phase_of(lane) == RDTI_TCP_READY) {
        /* Acknowledges the peer's last writes while that is possible: they succeeded. */
        (void)pthread_mutex_lock(&lane->lock);
        lane->owes_ack = atomic_load_explicit(&lane->rx_done, memory_order_relaxed) !=
                         atomic_load_explicit(&lane->ack_built, memory_order_relaxed);
        (void)pthread_mutex_unlock(&lane->lock);
        (void)rdti_tcp_push(lane->streams[0], RDTI_TCP_PASS_BYTES);
    }
    lane->is_closed = true;
    rdti_tcp_teardown(lane, err);
    rdti_list_remove(&lane->all_link);
    (void)atomic_fetch_sub_explicit(&tcp->lane_count, 1, memory_order_relaxed);
    (void)pthread_mutex_lock(&tcp->attention_lock);
    rdti_list_remove(&lane->attention_link);
    (void)pthread_mutex_unlock(&tcp->attention_lock);
    if (tcp->is_polling) {
        rdti_list_append(&tcp->graveyard, &lane->attention_link);
        return;
    }
    rdti_list_remove(&lane->hot_link);
    tcp_free_lane(lane);
}

const struct rdti_transport rdti_transport_tcp = {
    .name = "tcp",
    .id = RDT_TRANSPORT_TCP,
    .caps = {.can_map = false,
             .target_checks = true,
             .is_same_host = false,
             .eager_max_bytes = RDTI_TCP_EAGER_MAX_BYTES},
    .open = tcp_open,
    .close = tcp_close,
    .make_offer = tcp_make_offer,
    .connect = tcp_connect,
    .add_stream = tcp_add_stream,
    .write = rdti_tcp_write,
    .read = rdti_tcp_read,
    .poll = tcp_poll,
    .needs_epoll = tcp_needs_epoll,
    .hear = tcp_hear,
    .explain = tcp_explain,
    .is_idle = tcp_is_idle,
    .close_lane = tcp_close_lane,
};
