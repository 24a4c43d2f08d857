/* SPDX-License-Identifier: Apache-2.0
 * Plain sockets; see raw_tcp.h. */
#include "raw_tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench.h"

#define PATIENCE_S ((int)(BENCH_PATIENCE_NS / UINT64_C(1000000000)))

static void
set_option(int fd, int level, int name, const void *value, size_t value_bytes)
{
    if (setsockopt(fd, level, name, value, (socklen_t)value_bytes) != 0)
        bench_die("setsockopt");
}

static void
tune(int fd, const struct raw_tcp_config *config)
{
    const int one = 1;
    const struct timeval patience = {.tv_sec = PATIENCE_S};

    set_option(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    set_option(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    set_option(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (config->buffer_bytes > 0) {
        set_option(fd, SOL_SOCKET, SO_SNDBUF, &config->buffer_bytes, sizeof(int));
        set_option(fd, SOL_SOCKET, SO_RCVBUF, &config->buffer_bytes, sizeof(int));
    }
    if (config->congestion != NULL)
        set_option(fd, IPPROTO_TCP, TCP_CONGESTION, config->congestion, strlen(config->congestion));
}

static int
open_socket(const struct raw_tcp_config *config)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        bench_die("socket");
    tune(fd, config); /* buffers count from before the handshake, and accept() inherits them */
    return fd;
}

int
raw_tcp_listen(const struct raw_tcp_config *config, struct sockaddr_in *out)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_bytes = sizeof(addr);
    const int fd = open_socket(config);

    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        listen(fd, RAW_TCP_MAX_STREAMS) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &addr_bytes) != 0)
        bench_die("listen");
    *out = addr;
    return fd;
}

void
raw_tcp_accept(struct raw_tcp *c, const struct raw_tcp_config *config, int listener)
{
    *c = (struct raw_tcp){.config = config};
    for (unsigned i = 0; i < config->streams; i++) {
        c->fds[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* bounded by SO_RCVTIMEO */
        if (c->fds[i] < 0)
            bench_die("accept");
        tune(c->fds[i], config);
    }
}

void
raw_tcp_connect(struct raw_tcp *c, const struct raw_tcp_config *config,
                const struct sockaddr_in *addr)
{
    *c = (struct raw_tcp){.config = config};
    for (unsigned i = 0; i < config->streams; i++) {
        c->fds[i] = open_socket(config);
        if (connect(c->fds[i], (const struct sockaddr *)addr, sizeof(*addr)) != 0)
            bench_die("connect");
    }
}

void
raw_tcp_close(struct raw_tcp *c)
{
    for (unsigned i = 0; i < c->config->streams; i++)
        (void)close(c->fds[i]);
}

/* Until one of the streams in `left` can go on. */
static void
wait_for_any(const struct raw_tcp *c, short events, const size_t left[RAW_TCP_MAX_STREAMS])
{
    struct pollfd polled[RAW_TCP_MAX_STREAMS];
    nfds_t n = 0;

    for (unsigned i = 0; i < c->config->streams; i++) {
        if (left[i] > 0)
            polled[n++] = (struct pollfd){.fd = c->fds[i], .events = events};
    }
    const int ready = poll(polled, n, PATIENCE_S * 1000);
    if (ready == 0)
        errno = ETIMEDOUT;
    if (ready <= 0 && errno != EINTR)
        bench_die("poll");
}

/* One message on its way. */
struct moving {
    const struct raw_tcp *c;
    bool is_sending;
    bool is_blocking; /* the calls themselves wait */
    size_t left[RAW_TCP_MAX_STREAMS];
    char *at[RAW_TCP_MAX_STREAMS];
};

/* One call on one stream; returns the bytes that moved. */
static size_t
move_some(struct moving *m, unsigned stream)
{
    const struct raw_tcp_config *config = m->c->config;
    const int fd = m->c->fds[stream];
    const int flags = m->is_blocking ? 0 : MSG_DONTWAIT;
    const size_t left = m->left[stream];
    ssize_t n;

    if (m->is_sending)
        n = send(fd, m->at[stream], left < config->chunk_bytes ? left : config->chunk_bytes,
                 flags | MSG_NOSIGNAL);
    else
        n = recv(fd, m->at[stream], left, flags);
    if (n == 0)
        errno = ECONNRESET;
    if (n == 0 || (n < 0 && (m->is_blocking || errno != EAGAIN)))
        bench_die(m->is_sending ? "send" : "recv");
    if (n < 0)
        return 0;
    m->at[stream] += n;
    m->left[stream] -= (size_t)n;
    return (size_t)n;
}

/* Each stream its contiguous part. */
static void
share_out(struct moving *m, char *buf, size_t len_bytes, unsigned streams)
{
    for (unsigned i = 0; i < streams; i++) {
        const size_t from = len_bytes / streams * i;

        m->at[i] = buf + from;
        m->left[i] = (i + 1 == streams ? len_bytes : len_bytes / streams * (i + 1)) - from;
    }
}

void
raw_tcp_move(const struct raw_tcp *c, bool is_sending, char *buf, size_t len_bytes,
             unsigned streams)
{
    const uint64_t deadline_ns = bench_now_ns() + BENCH_PATIENCE_NS;
    struct moving m = {.c = c,
                       .is_sending = is_sending,
                       .is_blocking = !c->config->is_spinning && streams == 1};
    size_t total = len_bytes;

    share_out(&m, buf, len_bytes, streams);
    for (unsigned spins = 1; total > 0; spins++) {
        const size_t before = total;

        for (unsigned i = 0; i < streams; i++)
            if (m.left[i] > 0)
                total -= move_some(&m, i);
        if (total < before || total == 0)
            continue;
        if (!c->config->is_spinning)
            wait_for_any(c, is_sending ? POLLOUT : POLLIN, m.left);
        else if (spins % 65536 == 0 && bench_now_ns() > deadline_ns)
            bench_fail("nothing moves over the sockets");
    }
}

size_t
raw_tcp_candidates(struct raw_tcp_config *out, size_t len_bytes)
{
    static const size_t chunks[] = {(size_t)64 << 10, (size_t)256 << 10, (size_t)1 << 20, SIZE_MAX};
    static const int buffers[] = {0, 512 << 10, 4 << 20};
    static const unsigned streams[] = {1, 2, 4};
    /* reno is in every kernel and does not pace, as the system's choice (BBR) may. */
    static const char *const congestions[] = {NULL, "reno"};
    size_t n = 0;

    /* each combination once: 3 x 4 x 3 x 2, and both waits */
    for (size_t i = 0; i < RAW_TCP_MAX_CANDIDATES; i++) {
        const size_t s = i % 3;
        const size_t k = i / 3 % 4;
        const size_t b = i / 12 % 3;
        const size_t c = i / 36 % 2;

        if (k > 0 && chunks[k - 1] >= len_bytes)
            continue; /* the same as the chunk before */
        out[n++] = (struct raw_tcp_config){.is_spinning = i / 72 == 1,
                                           .streams = streams[s],
                                           .chunk_bytes = chunks[k],
                                           .buffer_bytes = buffers[b],
                                           .congestion = congestions[c]};
    }
    return n;
}
