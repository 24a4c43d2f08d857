/* SPDX-License-Identifier: Apache-2.0
 *
 * tcp_floor - what TCP over loopback gives between two processes, with plain sockets and no library
 * of ours: the floor under the tcp path.
 *
 * Two processes, each pinned to a core. "latency": 8 B there and 8 B back, half of it is one way.
 * "throughput": one message, split evenly over the streams, received where it shall stay, not
 * looked at afterwards; over when the receiver's 8 B answer is there. The sender's send() takes at
 * most `chunk` bytes, the receiver's recv() all that is left. Waiting is "block" (in recv, or in
 * poll where there are several streams) or "spin" (MSG_DONTWAIT until something moves).
 * Configurations run in turn, several times over, so that a noisy moment hits all of them.
 *
 *   tcp_floor [--passes N] [--sizes N,N,...] [--quick]
 *
 * One JSON object a line, the fastest throughput of each size again at the end with "best": true.
 * Exit status: 0, 1 failed, 77 fewer than two cores.
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "raw_tcp.h"

#define MAX_BYTES ((size_t)64 << 20)
#define MAX_SAMPLES 3000
#define MAX_CONFIGS 512
#define PING_BYTES 8

struct config {
    bool is_latency;
    size_t len_bytes;
    struct raw_tcp_config tcp;
    size_t samples;
    uint64_t ns[MAX_SAMPLES];
};

static size_t
rounds_of(const struct config *config)
{
    if (config->is_latency)
        return 1000;
    return config->len_bytes > ((size_t)8 << 20) ? 5 : 60;
}

/* The other process: answer each message with 8 B. */
static void
serve(const struct raw_tcp *c, char *buf, const struct config *config)
{
    char answer[PING_BYTES] = {0};

    for (size_t i = 0; i <= rounds_of(config); i++) {
        raw_tcp_move(c, false, buf, config->len_bytes, config->tcp.streams);
        raw_tcp_move(c, true, answer, sizeof(answer), 1);
    }
}

static void
drive(const struct raw_tcp *c, char *buf, struct config *config)
{
    char answer[PING_BYTES];

    for (size_t i = 0; i <= rounds_of(config); i++) {
        const uint64_t start_ns = bench_now_ns();

        raw_tcp_move(c, true, buf, config->len_bytes, config->tcp.streams);
        raw_tcp_move(c, false, answer, sizeof(answer), 1);
        const uint64_t took_ns = bench_now_ns() - start_ns;
        if (i == 0) /* windows open, pages are touched */
            continue;
        if (config->samples < MAX_SAMPLES)
            config->ns[config->samples++] = config->is_latency ? took_ns / 2 : took_ns;
    }
}

/* One connection of one configuration, in both processes, for all its rounds. */
static void
run_once(struct config *config, char *src, char *dst)
{
    struct sockaddr_in addr;
    struct raw_tcp c;
    const int listener = raw_tcp_listen(&config->tcp, &addr);
    const pid_t parent = getpid();
    const pid_t child = fork();
    int status;

    if (child < 0)
        bench_die("fork");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || !bench_pin(1))
            _exit(1);
        raw_tcp_connect(&c, &config->tcp, &addr);
        serve(&c, dst, config);
        _exit(0);
    }
    raw_tcp_accept(&c, &config->tcp, listener);
    drive(&c, src, config);
    raw_tcp_close(&c);
    (void)close(listener);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the receiving process failed");
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
        c->is_latency ? "latency" : "throughput", c->tcp.is_spinning ? "spin" : "block",
        c->tcp.streams, c->len_bytes, c->tcp.chunk_bytes, c->tcp.buffer_bytes,
        c->tcp.congestion == NULL ? "system" : c->tcp.congestion, (unsigned long long)median_ns,
        (unsigned long long)c->ns[c->samples / 10],
        (unsigned long long)c->ns[c->samples - 1 - c->samples / 10],
        (double)c->len_bytes / (double)median_ns, c->samples, is_best ? ", \"best\": true" : "");
    (void)fflush(stdout);
}

static size_t
build_configs(struct config *configs, const char *sizes, bool is_quick)
{
    struct raw_tcp_config candidates[RAW_TCP_MAX_CANDIDATES];
    size_t n = 0;

    for (int spin = 0; spin <= 1; spin++)
        configs[n++] = (struct config){.is_latency = true,
                                       .len_bytes = PING_BYTES,
                                       .tcp = {.is_spinning = spin == 1,
                                               .streams = 1,
                                               .chunk_bytes = PING_BYTES}};
    while (*sizes != '\0') {
        char *end;
        const unsigned long long size = strtoull(sizes, &end, 10);

        if (end == sizes || size == 0 || size > MAX_BYTES || (*end != ',' && *end != '\0') ||
            n + RAW_TCP_MAX_CANDIDATES > MAX_CONFIGS)
            bench_fail("--sizes wants up to 3 sizes of at most %zu, got \"%s\"", MAX_BYTES, sizes);
        const size_t found = raw_tcp_candidates(candidates, (size_t)size, is_quick);
        for (size_t i = 0; i < found; i++)
            configs[n++] = (struct config){.len_bytes = (size_t)size, .tcp = candidates[i]};
        sizes = *end == ',' ? end + 1 : end;
    }
    return n;
}

/* Every configuration, and the fastest throughput of each size again. */
static void
report_all(struct config *configs, size_t count)
{
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
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--passes=", "--sizes=", "--quick", NULL};
    static struct config configs[MAX_CONFIGS];

    bench_name = "tcp_floor";
    bench_check_args(argc, argv, known);
    const char *sizes = bench_arg(argc, argv, "--sizes");
    const size_t passes = (size_t)bench_arg_number(argc, argv, "--passes", 3);
    if (bench_cores() < 2) {
        (void)fprintf(stderr, "tcp_floor: needs two cores\n");
        return BENCH_EXIT_SKIP;
    }

    const size_t count = build_configs(configs, sizes != NULL ? sizes : "1048576,67108864",
                                       bench_has(argc, argv, "--quick"));
    char *src = bench_map(MAX_BYTES, MAP_SHARED);
    char *dst = bench_map(MAX_BYTES, MAP_SHARED);
    memset(src, 0x5a, MAX_BYTES);
    for (size_t pass = 0; pass < passes; pass++)
        for (size_t i = 0; i < count; i++)
            run_once(&configs[i], src, dst);
    report_all(configs, count);
    return 0;
}
