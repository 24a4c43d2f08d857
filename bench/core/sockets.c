/* SPDX-License-Identifier: Apache-2.0
 * Plain sockets; see sockets.h. */
#include "sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench.h"

#define BUFFER_BYTES (512 << 10) /* the fastest of 0, 512 KiB and 4 MiB from 64 KiB on */
#define PATIENCE_S ((int)(BENCH_PATIENCE_NS / UINT64_C(1000000000)))

static void
set_option(int fd, int level, int name, const void *value, size_t value_bytes)
{
    if (setsockopt(fd, level, name, value, (socklen_t)value_bytes) != 0)
        bench_die("setsockopt");
}

/* Buffers count from before the handshake, and accept() inherits all of it. */
static int
open_tuned(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const int one = 1;
    const int buffer_bytes = BUFFER_BYTES;

    if (fd < 0)
        bench_die("socket");
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    set_option(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    set_option(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    set_option(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    set_option(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
    set_option(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
    return fd;
}

int
sockets_connect(struct pair *p, bool is_listening)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_bytes = sizeof(addr);
    int fd = open_tuned();

    if (is_listening) {
        const int listener = fd;

        if (bind(listener, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
            listen(listener, 1) != 0 ||
            getsockname(listener, (struct sockaddr *)&addr, &addr_bytes) != 0)
            bench_die("listen");
        memcpy(p->board->scratch, &addr, sizeof(addr));
        pair_barrier(p);
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* bounded by SO_RCVTIMEO */
        if (fd < 0)
            bench_die("accept");
        (void)close(listener);
    } else {
        pair_barrier(p);
        memcpy(&addr, p->board->scratch, sizeof(addr));
        if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) != 0)
            bench_die("connect");
    }
    pair_barrier(p);
    return fd;
}

static uint64_t
moved(ssize_t n, const char *call)
{
    if (n == 0)
        errno = ECONNRESET;
    if (n == 0 || (n < 0 && errno != EAGAIN))
        bench_die(call);
    return n < 0 ? 0 : (uint64_t)n;
}

void
sockets_move(int fd, bool is_sending, bool sleeps, char *buf, size_t len_bytes)
{
    const uint64_t deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;
    const int flags = sleeps ? 0 : MSG_DONTWAIT;

    for (unsigned spins = 1; len_bytes > 0; spins++) {
        const ssize_t n = is_sending ? send(fd, buf, len_bytes, flags | MSG_NOSIGNAL)
                                     : recv(fd, buf, len_bytes, flags);

        if (n < 0 && sleeps) /* the socket's own time-out ended it */
            bench_die("nothing moves over the sockets");
        const uint64_t some = moved(n, is_sending ? "send" : "recv");
        buf += some;
        len_bytes -= some;
        if (some == 0 && spins % 65536 == 0 && bench_now_ns() > deadline_ns)
            bench_fail("nothing moves over the sockets");
    }
}

/* ---- Flows ------------------------------------------------------------------------------- */

#define POLL_MS (PATIENCE_S * 1000)
struct flow_place
flow_words(void)
{
    static char words[4096]; /* as many as one call should take or leave */

    return (struct flow_place){.addr = words, .len_bytes = sizeof(words)};
}

/* Bytes that the flow may put on the wire now. */
static uint64_t
out_limit(const struct flow *flow, uint64_t count)
{
    const uint64_t complete = flow->in_bytes / flow->in_message_bytes;
    const uint64_t may = flow->is_asking ? complete + flow->depth : complete;

    return flow->out_message_bytes * (may < count ? may : count);
}

/* From where `done` bytes end to where the place does, but no more than `left`. */
static size_t
room(const struct flow_place *place, uint64_t done, uint64_t left)
{
    const uint64_t rest = place->len_bytes - done % place->len_bytes;

    return (size_t)(left < rest ? left : rest);
}

/* What goes without waiting. */
static uint64_t
pump(struct flow *flow, uint64_t count)
{
    const uint64_t in_left = count * flow->in_message_bytes - flow->in_bytes;
    uint64_t in = 0;
    uint64_t out = 0;

    if (in_left > 0)
        in = moved(recv(flow->fd, flow->in.addr + flow->in_bytes % flow->in.len_bytes,
                        room(&flow->in, flow->in_bytes, in_left), MSG_DONTWAIT),
                   "recv");
    flow->in_bytes += in;
    const uint64_t out_left = out_limit(flow, count) - flow->out_bytes;
    if (out_left > 0)
        out = moved(send(flow->fd, flow->out.addr + flow->out_bytes % flow->out.len_bytes,
                         room(&flow->out, flow->out_bytes, out_left), MSG_DONTWAIT | MSG_NOSIGNAL),
                    "send");
    flow->out_bytes += out;
    return in + out;
}

static bool
is_over(const struct flow *flow, uint64_t count)
{
    return flow->in_bytes == count * flow->in_message_bytes &&
           flow->out_bytes == count * flow->out_message_bytes;
}

static void
sleep_for(const struct flow *flows, size_t n, uint64_t count)
{
    struct pollfd polled[FLOWS_MAX];

    for (size_t i = 0; i < n; i++) {
        const bool has_more = out_limit(&flows[i], count) > flows[i].out_bytes;

        polled[i] = (struct pollfd){.fd = is_over(&flows[i], count) ? -1 : flows[i].fd,
                                    .events = (short)(has_more ? POLLIN | POLLOUT : POLLIN)};
    }
    if (poll(polled, n, POLL_MS) == 0)
        bench_fail("nothing moves over the sockets");
}

void
flow_run(struct flow *flows, size_t n, uint64_t count, bool sleeps)
{
    for (size_t i = 0; i < n; i++)
        flows[i].in_bytes = flows[i].out_bytes = 0;
    for (uint64_t idle = 0;;) {
        uint64_t some = 0;
        bool is_done = true;

        for (size_t i = 0; i < n; i++) {
            some += pump(&flows[i], count);
            is_done = is_done && is_over(&flows[i], count);
        }
        if (is_done)
            return;
        idle = some > 0 ? 0 : idle + 1;
        /* a spinning side looks at the clock, through poll(), once in a while */
        if (idle > 0 && (sleeps || idle % (1 << 20) == 0))
            sleep_for(flows, n, count);
    }
}
