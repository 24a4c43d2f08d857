/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_floor - what TCP over loopback gives between two processes, with plain sockets and no library of
 * ours: the floor under the tcp path.
 *
 * Two processes, each pinned to a core. "latency": 8 B there and 8 B back, half of it is one way.
 * "throughput": one message, split evenly over the streams, received where it shall stay, not looked at
 * afterwards; over when the receiver's 8 B answer is there. The sender's send() takes at most `chunk`
 * bytes, the receiver's recv() all that is left. Waiting is "block" (in recv, or in poll where there are
 * several streams) or "spin" (MSG_DONTWAIT until something moves). Configurations run in turn, several
 * times over, so that a noisy moment hits all of them.
 *
 *   tcp_floor [--passes N] [--sizes N,N,...] [--quick]
 *
 * One JSON object a line, the fastest throughput of each size again at the end with "best": true.
 * Exit status: 0, 1 failed, 77 fewer than two cores.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_STREAMS 4
#define MAX_BYTES ((size_t)64 << 20)
#define MAX_SAMPLES 3000
#define MAX_CONFIGS 512
#define PING_BYTES 8
#define PATIENCE_S 20 /* of every wait: the other process is dead or stuck */

struct config {
    bool is_latency;
    bool is_spinning;
    unsigned streams;
    size_t len_bytes;
    size_t chunk_bytes;
    int buffer_bytes;       /* SO_SNDBUF and SO_RCVBUF; 0: the kernel tunes them */
    const char *congestion; /* TCP_CONGESTION; NULL: the system's */
    size_t samples;
    uint64_t ns[MAX_SAMPLES];
};

struct connection {
    const struct config *config;
    int fds[MAX_STREAMS];
};

static uint64_t
now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void
die(const char *what)
{
    (void)fprintf(stderr, "tcp_floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* Pin to the index-th core that this process may use. */
static bool
pin(int index)
{
    cpu_set_t allowed;
    cpu_set_t one;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        die("sched_getaffinity");
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || index-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        return sched_setaffinity(0, sizeof(one), &one) == 0;
    }
    return false;
}

static void
set_option(int fd, int level, int name, const void *value, size_t value_bytes)
{
    if (setsockopt(fd, level, name, value, (socklen_t)value_bytes) != 0)
        die("setsockopt");
}

static void
tune(int fd, const struct config *config)
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

/* Until one of the streams in `left` can go on. */
static void
wait_for_any(const struct connection *c, short events, const size_t left[MAX_STREAMS])
{
    struct pollfd polled[MAX_STREAMS];
    nfds_t n = 0;

    for (unsigned i = 0; i < c->config->streams; i++) {
        if (left[i] > 0)
            polled[n++] = (struct pollfd){.fd = c->fds[i], .events = events};
    }
    const int ready = poll(polled, n, PATIENCE_S * 1000);
    if (ready == 0)
        errno = ETIMEDOUT;
    if (ready <= 0 && errno != EINTR)
        die("poll");
}

static ssize_t
move_part(const struct config *config, bool is_sending, int fd, char *buf, size_t left, int flags)
{
    if (!is_sending)
        return recv(fd, buf, left, flags);
    return send(fd, buf, left < config->chunk_bytes ? left : config->chunk_bytes,
                flags | MSG_NOSIGNAL);
}

/* Send or receive len_bytes, each stream its contiguous share. */
static void
move_all(const struct connection *c, bool is_sending, char *buf, size_t len_bytes, unsigned streams)
{
    const uint64_t deadline_ns = now_ns() + PATIENCE_S * UINT64_C(1000000000);
    const bool is_blocking = !c->config->is_spinning && streams == 1;
    size_t left[MAX_STREAMS] = {0};
    char *at[MAX_STREAMS];
    size_t total = len_bytes;

    for (unsigned i = 0; i < streams; i++) {
        const size_t from = len_bytes / streams * i;

        at[i] = buf + from;
        left[i] = (i + 1 == streams ? len_bytes : len_bytes / streams * (i + 1)) - from;
    }
    for (unsigned spins = 1; total > 0; spins++) {
        const size_t before = total;

        for (unsigned i = 0; i < streams; i++) {
            if (left[i] == 0)
                continue;
            const ssize_t n = move_part(c->config, is_sending, c->fds[i], at[i], left[i],
                                        is_blocking ? 0 : MSG_DONTWAIT);
            if (n == 0)
                errno = ECONNRESET;
            if (n == 0 || (n < 0 && (is_blocking || errno != EAGAIN)))
                die(is_sending ? "send" : "recv");
            if (n > 0) {
                at[i] += n;
                left[i] -= (size_t)n;
                total -= (size_t)n;
            }
        }
        if (total < before || total == 0)
            continue;
        if (!c->config->is_spinning)
            wait_for_any(c, is_sending ? POLLOUT : POLLIN, left);
        else if (spins % 65536 == 0 && now_ns() > deadline_ns)
            die("spinning");
    }
}

static size_t
rounds_of(const struct config *config)
{
    if (config->is_latency)
        return 1000;
    return config->len_bytes > ((size_t)8 << 20) ? 5 : 60;
}

/* The other process: answer each message with 8 B. */
static void
serve(const struct connection *c, char *buf)
{
    char answer[PING_BYTES] = {0};

    for (size_t i = 0; i <= rounds_of(c->config); i++) {
        move_all(c, false, buf, c->config->len_bytes, c->config->streams);
        move_all(c, true, answer, sizeof(answer), 1);
    }
}

static void
drive(const struct connection *c, char *buf, struct config *config)
{
    char answer[PING_BYTES];

    for (size_t i = 0; i <= rounds_of(config); i++) {
        const uint64_t start_ns = now_ns();

        move_all(c, true, buf, config->len_bytes, config->streams);
        move_all(c, false, answer, sizeof(answer), 1);
        const uint64_t took_ns = now_ns() - start_ns;
        if (i == 0) /* windows open, pages are touched */
            continue;
        if (config->samples < MAX_SAMPLES)
            config->ns[config->samples++] = config->is_latency ? took_ns / 2 : took_ns;
    }
}

static int
listen_on_loopback(const struct config *config, struct sockaddr_in *out)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t addr_bytes = sizeof(addr);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        die("socket");
    tune(fd, config); /* buffers count from before the handshake, and accept() inherits them */
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, MAX_STREAMS) != 0 ||
        getsockname(fd, (struct sockaddr *)&addr, &addr_bytes) != 0)
        die("listen");
    *out = addr;
    return fd;
}

/* One connection of one configuration, in both processes, for all its rounds. */
static void
run_once(struct config *config, char *src, char *dst)
{
    struct sockaddr_in addr;
    struct connection c = {.config = config};
    const int listener = listen_on_loopback(config, &addr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    int status;

    if (child < 0)
        die("fork");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || !pin(1))
            _exit(1);
        for (unsigned i = 0; i < config->streams; i++) {
            c.fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (c.fds[i] < 0)
                die("socket");
            tune(c.fds[i], config);
            if (connect(c.fds[i], (struct sockaddr *)&addr, sizeof(addr)) != 0)
                die("connect");
        }
        serve(&c, dst);
        _exit(0);
    }
    for (unsigned i = 0; i < config->streams; i++) {
        c.fds[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC); /* bounded by SO_RCVTIMEO */
        if (c.fds[i] < 0)
            die("accept");
        tune(c.fds[i], config);
    }
    drive(&c, src, config);
    for (unsigned i = 0; i < config->streams; i++)
        (void)close(c.fds[i]);
    (void)close(listener);
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the receiving process failed");
}

static int
compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void
report(const struct config *c, bool is_best)
{
    const uint64_t median_ns = c->ns[c->samples / 2];

    (void)printf(
        "{\"bench\": \"tcp_floor\", \"what\": \"%s\", \"wait\": \"%s\", \"streams\": %u, "
        "\"size\": %zu, \"chunk\": %zu, \"sockbuf\": %d, \"congestion\": \"%s\", "
        "\"median_ns\": %llu, \"p10\": %llu, \"p90\": %llu, \"gbps\": %.3f, \"samples\": %zu%s}\n",
        c->is_latency ? "latency" : "throughput", c->is_spinning ? "spin" : "block", c->streams,
        c->len_bytes, c->chunk_bytes, c->buffer_bytes,
        c->congestion == NULL ? "system" : c->congestion, (unsigned long long)median_ns,
        (unsigned long long)c->ns[c->samples / 10],
        (unsigned long long)c->ns[c->samples - 1 - c->samples / 10],
        (double)c->len_bytes / (double)median_ns, c->samples, is_best ? ", \"best\": true" : "");
    (void)fflush(stdout);
}

/* Everything worth trying at one size; returns how many. */
static size_t
add_configs(struct config *out, size_t len_bytes, bool is_quick)
{
    static const size_t chunks[] = {(size_t)64 << 10, (size_t)256 << 10, (size_t)1 << 20,
                                    MAX_BYTES};
    static const int buffers[] = {0, 512 << 10, 4 << 20};
    static const unsigned streams[] = {1, 2, 4};
    /* reno is in every kernel and does not pace, as the system's choice (BBR) may. */
    static const char *const congestions[] = {NULL, "reno"};
    size_t n = 0;

    for (size_t i = 0; i < 144; i++) { /* each combination once: 3 x 4 x 3 x 2, and both waits */
        const size_t s = i % 3;
        const size_t k = i / 3 % 4;
        const size_t b = i / 12 % 3;
        const size_t c = i / 36 % 2;

        if (k > 0 && chunks[k - 1] >= len_bytes)
            continue; /* the same as the chunk before */
        if (is_quick && (b == 2 || s == 2 || (k < 2 && chunks[k] < len_bytes)))
            continue;
        out[n++] = (struct config){.is_spinning = i / 72 == 1,
                                   .streams = streams[s],
                                   .len_bytes = len_bytes,
                                   .chunk_bytes = chunks[k],
                                   .buffer_bytes = buffers[b],
                                   .congestion = congestions[c]};
    }
    return n;
}

static char *
map_or_die(void)
{
    char *p = mmap(NULL, MAX_BYTES, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

static size_t
build_configs(struct config *configs, const char *sizes, bool is_quick)
{
    size_t n = 0;

    for (int spin = 0; spin <= 1; spin++)
        configs[n++] = (struct config){.is_latency = true,
                                       .is_spinning = spin == 1,
                                       .streams = 1,
                                       .len_bytes = PING_BYTES,
                                       .chunk_bytes = PING_BYTES};
    while (*sizes != '\0') {
        char *end;
        const unsigned long long size = strtoull(sizes, &end, 10);

        if (end == sizes || size == 0 || size > MAX_BYTES || (*end != ',' && *end != '\0') ||
            n + 144 > MAX_CONFIGS) {
            (void)fprintf(stderr,
                          "tcp_floor: --sizes wants up to 3 sizes of at most %zu, got \"%s\"\n",
                          MAX_BYTES, sizes);
            exit(1);
        }
        n += add_configs(configs + n, (size_t)size, is_quick);
        sizes = *end == ',' ? end + 1 : end;
    }
    return n;
}

int
main(int argc, char **argv)
{
    static struct config configs[MAX_CONFIGS];
    const char *sizes = "1048576,67108864";
    unsigned long passes = 3;
    bool is_quick = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            is_quick = true;
        } else if (strcmp(argv[i], "--passes") == 0 && i + 1 < argc) {
            passes = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--sizes") == 0 && i + 1 < argc) {
            sizes = argv[++i];
        } else {
            (void)fprintf(stderr, "usage: tcp_floor [--passes N] [--sizes N,N,...] [--quick]\n");
            return 1;
        }
    }
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0 && CPU_COUNT(&allowed) < 2) {
        (void)fprintf(stderr, "tcp_floor: needs two cores\n");
        return 77;
    }

    const size_t count = build_configs(configs, sizes, is_quick);
    char *src = map_or_die();
    char *dst = map_or_die();
    memset(src, 0x5a, MAX_BYTES);
    for (unsigned long pass = 0; pass < (passes > 0 ? passes : 1); pass++)
        for (size_t i = 0; i < count; i++)
            run_once(&configs[i], src, dst);

    const struct config *best = NULL;
    for (size_t i = 0; i < count; i++) {
        struct config *c = &configs[i];

        qsort(c->ns, c->samples, sizeof(c->ns[0]), compare);
        report(c, false);
        if (!c->is_latency && (best == NULL || best->len_bytes != c->len_bytes ||
                               c->ns[c->samples / 2] < best->ns[best->samples / 2]))
            best = c;
        if (best != NULL && (i + 1 == count || configs[i + 1].len_bytes != best->len_bytes))
            report(best, true);
    }
    return 0;
}
