/* SPDX-License-Identifier: Apache-2.0
 * Creates, connects, joins, watches and closes the sockets of a lane. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/system/sockaddr.h"
#include "transport/tcp/tcp.h"

/* Seconds. Detects a machine that vanished while nothing is sent, for lanes without the core's
 * heartbeat, which is much faster. TCP_USER_TIMEOUT stays unset: it would also end a connection
 * whose peer is alive but does not read, and the core decides how long that may last. */
#define KEEPALIVE_IDLE_S 30
#define KEEPALIVE_INTERVAL_S 10
#define KEEPALIVE_PROBES 3

uint32_t
rdti_tcp_streams_wanted(const struct rdti_host *host, const struct rdti_lane_args *args)
{
    uint32_t streams = host->tcp_streams;

    if (streams == 0)
        streams = args->is_loopback ? RDTI_TCP_STREAMS_LOOPBACK : RDTI_TCP_STREAMS_REMOTE;
    return streams < RDTI_STREAM_STREAMS_MAX ? streams : RDTI_STREAM_STREAMS_MAX;
}

static rdt_status
tcp_setup_set_option(int fd, int level, int name, int value, const char *text,
                     struct rdt_error *err)
{
    if (setsockopt(fd, level, name, &value, sizeof(value)) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "setsockopt(%s, %d)", text, value);
    return RDT_OK;
}

/* Loopback is never congested, but an algorithm that paces (bbr, the default of some systems) still
 * slows it down: 64 MiB at 4.9 GB/s, with reno 7.2 GB/s. reno is part of every kernel and available
 * to all users; if it is refused, the system's choice works, but slower. On a real network the
 * administrator chooses. */
static rdt_status
tcp_setup_set_congestion(int fd, const struct sockaddr_storage *peer, struct rdt_error *err)
{
    static const char name[] = "reno";

    if (!rdti_sockaddr_is_loopback((const struct sockaddr *)(const void *)peer) ||
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name) - 1) == 0)
        return RDT_OK;
    if (errno == ENOENT || errno == EPERM)
        return RDT_OK;
    return rdti_error_set(err, RDT_EDEVICE, errno, "setsockopt(TCP_CONGESTION, %s)", name);
}

/* The kernel chooses the buffer sizes: it grows them as the path needs, and would limit an explicit
 * size to net.core.rmem_max, which is less. (Loopback, 64 MiB: 5.6 GB/s, at most 5.3 with explicit
 * sizes.) */
static rdt_status
tcp_setup_set_options(int fd, const struct sockaddr_storage *peer, struct rdt_error *err)
{
    rdt_status status;

    if (peer->ss_family != AF_INET && peer->ss_family != AF_INET6)
        return RDT_OK; /* a Unix socket has none of these options */
    status = tcp_setup_set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY", err);
    if (status == RDT_OK)
        status = tcp_setup_set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE", err);
    if (status == RDT_OK)
        status = tcp_setup_set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S,
                                      "TCP_KEEPIDLE", err);
    if (status == RDT_OK)
        status = tcp_setup_set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S,
                                      "TCP_KEEPINTVL", err);
    if (status == RDT_OK)
        status = tcp_setup_set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES, "TCP_KEEPCNT",
                                      err);
    if (status == RDT_OK)
        status = tcp_setup_set_congestion(fd, peer, err);
    return status;
}

/* [driver] The socket is ready: poll it in the next pass. */
static void
tcp_setup_on_event(void *arg, uint32_t epoll_events)
{
    struct rdti_tcp_stream *stream = arg;

    (void)epoll_events;
    stream->hot_left = RDTI_TCP_HOT_PASSES;
    rdti_tcp_make_hot(stream->lane);
}

/* Creates a stream over fd, of which it takes ownership in every case. */
static rdt_status
tcp_setup_add_socket(struct rdti_tcp_lane *lane, int fd, uint32_t index, bool is_connecting,
                     struct rdt_error *err)
{
    const struct rdti_host *host = lane->tcp->host;
    const uint32_t events = is_connecting ? (uint32_t)EPOLLOUT : (uint32_t)EPOLLIN;
    rdt_status status;

    struct rdti_tcp_stream *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        status = rdti_error_set(err, RDT_ENOMEM, 0, "tcp stream: %zu bytes", sizeof(*s));
        goto err_close;
    }
    s->lane = lane;
    s->index = index;
    s->fd = fd;
    s->is_connecting = is_connecting;
    s->hot_left = RDTI_TCP_HOT_PASSES;
    s->watched_events = events;
    atomic_init(&s->wants_in, !is_connecting);
    atomic_init(&s->wants_out, is_connecting);
    if (!rdti_fork_close_add(fd)) {
        status = rdti_error_set(err, RDT_EDEVICE, 0,
                                "tcp stream: descriptor %d is too large to be closed in a forked "
                                "child; lower the limit of open files",
                                fd);
        goto err_free;
    }
    status = host->watch(host->core, fd, events, tcp_setup_on_event, s, &s->watch, err);
    if (status != RDT_OK)
        goto err_forget;

    lane->streams_present++;
    rdti_tcp_start_stream(s);
    return RDT_OK;

err_forget:
    rdti_fork_close_remove(fd);
err_free:
    free(s);
err_close:
    (void)close(fd);
    return status;
}

static rdt_status
tcp_setup_connect_one(struct rdti_tcp_lane *lane, uint32_t index, struct rdt_error *err)
{
    const int family = lane->peer_sockaddr.ss_family;
    const struct sockaddr *addr = (const struct sockaddr *)(const void *)&lane->peer_sockaddr;
    rdt_status status;

    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "socket(family %d) for stream %u", family,
                              index);
    status = tcp_setup_set_options(fd, &lane->peer_sockaddr, err);
    if (status != RDT_OK)
        goto err_close;
    if (connect(fd, addr, lane->args.peer_sockaddr_bytes) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        status = rdti_error_set(err, RDT_ENOTVIABLE, errno, "tcp: connect to %s", lane->peer_text);
        goto err_close;
    }
    return tcp_setup_add_socket(lane, fd, index, true, err); /* takes ownership of fd */

err_close:
    (void)close(fd);
    return status;
}

rdt_status
rdti_tcp_connect_streams(struct rdti_tcp_lane *lane, struct rdt_error *err)
{
    const struct rdti_lane_args *args = &lane->args;

    if (args->peer_sockaddr == NULL || args->peer_sockaddr_bytes > sizeof(lane->peer_sockaddr) ||
        args->peer_sockaddr_bytes < sizeof(sa_family_t))
        return rdti_error_set(err, RDT_EINVAL, 0, "tcp: an address of %u bytes to connect to",
                              args->peer_sockaddr_bytes);
    rdti_sockaddr_text((const struct sockaddr *)(const void *)&lane->peer_sockaddr, lane->peer_text,
                       sizeof(lane->peer_text));
    for (uint32_t i = 0; i < lane->stream_count; i++) {
        const rdt_status status = tcp_setup_connect_one(lane, i, err);

        if (status != RDT_OK)
            return status;
    }
    return RDT_OK;
}

rdt_status
rdti_tcp_adopt_stream(struct rdti_tcp_lane *lane, int fd, uint32_t index, struct rdt_error *err)
{
    struct sockaddr_storage addr = {0};
    socklen_t addr_bytes = sizeof(addr);
    rdt_status status;

    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        getpeername(fd, (struct sockaddr *)(void *)&addr, &addr_bytes) != 0) {
        status = rdti_error_set(err, RDT_EPEER, errno, "tcp: taking stream %u over", index);
        goto err_close;
    }
    status = tcp_setup_set_options(fd, &addr, err);
    if (status != RDT_OK)
        goto err_close;
    rdti_sockaddr_text((const struct sockaddr *)(const void *)&addr, lane->peer_text,
                       sizeof(lane->peer_text));
    return tcp_setup_add_socket(lane, fd, index, false, err); /* takes ownership of fd */

err_close:
    (void)close(fd);
    return status;
}

/* ---- Steps --------------------------------------------------------------------------------- */

void
rdti_tcp_become_ready(struct rdti_tcp_lane *lane)
{
    const struct rdti_host *host = lane->tcp->host;

    (void)pthread_mutex_lock(&lane->lock);
    lane->owes_ready = !lane->args.is_connector;
    /* release: pairs with rdti_tcp_phase_of() */
    atomic_store_explicit(&lane->phase, RDTI_TCP_READY, memory_order_release);
    (void)pthread_mutex_unlock(&lane->lock);
    lane->last_progress_ns = rdti_now_ns();
    for (uint32_t i = 0; i < lane->stream_count; i++) /* READY, and queued ops */
        (void)rdti_tcp_push(lane->streams[i], RDTI_TCP_PASS_BYTES);
    host->on_ready(host->core, &lane->base);
}

void
rdti_tcp_check_ready(struct rdti_tcp_lane *lane)
{
    if (!lane->args.is_connector && lane->stream_count > 0 &&
        lane->streams_present == lane->stream_count && rdti_tcp_phase_of(lane) == RDTI_TCP_SETUP)
        rdti_tcp_become_ready(lane);
}

/* Sends the first bytes of a stream; they fit into the empty buffer of a new socket. */
static rdt_status
tcp_setup_send_join(struct rdti_tcp_stream *s, struct rdt_error *err)
{
    const struct rdti_lane_args *args = &s->lane->args;
    struct rdti_join join = {.index = s->index};
    uint8_t bytes[RDTI_JOIN_BYTES];

    memcpy(join.session_id, args->session_id, sizeof(join.session_id));
    const rdt_status status = rdti_random_bytes(join.nonce, sizeof(join.nonce), err);
    if (status != RDT_OK)
        return status;
    rdti_join_encode(&join, bytes);
    rdti_join_mac(args->session_key, bytes, join.mac);
    rdti_join_encode(&join, bytes);
    const ssize_t n = send(s->fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n != (ssize_t)sizeof(bytes))
        return rdti_error_set(err, RDT_EPEER, n < 0 ? errno : 0,
                              "tcp: JOIN of stream %u to %s: %zd of %zu bytes sent", s->index,
                              s->lane->peer_text, n, sizeof(bytes));
    rdti_count(&s->lane->tcp->host->counters->wire_bytes, sizeof(bytes));
    return RDT_OK;
}

static void
tcp_setup_finish_connect(struct rdti_tcp_stream *s)
{
    struct rdti_tcp_lane *lane = s->lane;
    int sys_errno = 0;
    socklen_t errno_bytes = sizeof(sys_errno);
    struct rdt_error err;

    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &sys_errno, &errno_bytes) != 0)
        sys_errno = errno;
    if (sys_errno != 0) {
        rdti_tcp_fail_socket(s, "connecting failed", sys_errno);
        return;
    }
    s->is_connecting = false;
    /* relaxed: see the fields */
    atomic_store_explicit(&s->wants_out, false, memory_order_relaxed);
    atomic_store_explicit(&s->wants_in, true, memory_order_relaxed);
    rdti_tcp_update_watch(s);
    if (tcp_setup_send_join(s, &err) != RDT_OK)
        rdti_tcp_fail(lane, &err);
}

/* Polls the sockets in each pass in addition to events: there are few passes before ready. */
static uint32_t
tcp_setup_check_connecting(struct rdti_tcp_lane *lane)
{
    uint32_t work = 0;

    for (uint32_t i = 0; i < lane->stream_count; i++) {
        struct rdti_tcp_stream *s = lane->streams[i];

        if (s == NULL || !s->is_connecting || rdti_tcp_phase_of(lane) == RDTI_TCP_FAILED)
            continue;
        struct pollfd pfd = {.fd = s->fd, .events = POLLOUT};
        if (poll(&pfd, 1, 0) <= 0)
            continue; /* not yet, or interrupted: retried in the next pass */
        tcp_setup_finish_connect(s);
        work++;
    }
    return work;
}

uint32_t
rdti_tcp_setup_step(struct rdti_tcp_lane *lane)
{
    const uint32_t work = lane->args.is_connector ? tcp_setup_check_connecting(lane) : 0;
    struct rdt_error err;

    if (rdti_tcp_phase_of(lane) != RDTI_TCP_SETUP || rdti_remaining_ns(lane->args.deadline_ns) > 0)
        return work;
    (void)rdti_error_set_rank(
        &err, RDT_ETIMEDOUT, lane->args.peer_rank,
        "tcp lane to rank %d at %s: not ready within its deadline, %u of %u streams; check that a "
        "firewall lets the listening ports through (RDMATENSOR_PORT_RANGE) and that the address is "
        "one the peer can be reached at (RDMATENSOR_IFNAME, RDMATENSOR_ADDR)",
        lane->args.peer_rank, lane->peer_text[0] != '\0' ? lane->peer_text : "an unknown address",
        lane->streams_present, lane->stream_count);
    rdti_tcp_fail(lane, &err);
    return work + 1;
}
