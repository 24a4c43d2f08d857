/* SPDX-License-Identifier: Apache-2.0
 * Options and turns; see contest.h. */
#include "contest.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES (512 << 10) /* what wins the heats of tcp_throughput from 64 KiB on */

const char *const contest_names[CONTESTANTS] = {"ours", "floor"};

static bool
is_sleeping(int argc, char **argv)
{
    const char *wait = bench_arg(argc, argv, "--wait");

    if (wait != NULL && strcmp(wait, "sleep") != 0 && strcmp(wait, "spin") != 0)
        bench_fail("--wait is spin or sleep, not \"%s\"", wait);
    return wait != NULL && strcmp(wait, "sleep") == 0;
}

struct contest
contest_of(int argc, char **argv, const struct contest *defaults, size_t most_bytes)
{
    const char *transport = bench_arg(argc, argv, "--transport");
    struct contest c = *defaults;

    if (transport != NULL || c.transport == NULL)
        c.transport = transport != NULL ? transport : "shm";
    c.is_tcp = strcmp(c.transport, "tcp") == 0;
    c.sleeps = is_sleeping(argc, argv);
    c.is_both = bench_has(argc, argv, "--both");
    c.is_silent = bench_has(argc, argv, "--silent");
    c.len_bytes = (size_t)bench_arg_number(argc, argv, "--size", (double)c.len_bytes);
    c.depth = (uint64_t)bench_arg_number(argc, argv, "--depth", (double)c.depth);
    c.count = (uint64_t)bench_arg_number(argc, argv, "--count", (double)c.count);
    c.rounds = (size_t)bench_arg_number(argc, argv, "--rounds", (double)c.rounds);
    c.seconds = bench_arg_number(argc, argv, "--seconds", c.seconds);
    c.chunk_bytes = (size_t)bench_arg_number(argc, argv, "--chunk", c.is_tcp ? 1 << 20 : 65536);
    c.contestants = strcmp(c.transport, "verbs") == 0 || c.is_silent ? 1 : CONTESTANTS;
    c.raw = (struct raw_tcp_config){.is_spinning = !c.sleeps,
                                    .streams = 1,
                                    .chunk_bytes = most_bytes,
                                    .buffer_bytes = BUFFER_BYTES,
                                    .congestion = "reno"}; /* it does not pace */
    if (c.len_bytes > most_bytes || c.depth > CONTEST_MAX_DEPTH)
        bench_fail("--size is at most %zu, --depth %d", most_bytes, CONTEST_MAX_DEPTH);
    if (c.sleeps && !c.is_tcp)
        bench_fail("--wait sleep has a baseline on tcp only");
    return c;
}

void
contest_run(const struct contest *contest, pair_side_fn first, pair_side_fn second)
{
    const struct pair_opts opts = {.transport = contest->transport, .sleeps = contest->sleeps};

    pair_run(&opts, first, second, contest);
}

void
contest_connect(struct pair *p, const struct raw_tcp_config *config, bool is_listening,
                struct raw_tcp *out)
{
    struct sockaddr_in addr;

    if (is_listening) {
        const int listener = raw_tcp_listen(config, &addr);

        memcpy(p->board->scratch, &addr, sizeof(addr));
        pair_barrier(p);
        raw_tcp_accept(out, config, listener);
        (void)close(listener);
    } else {
        pair_barrier(p);
        memcpy(&addr, p->board->scratch, sizeof(addr));
        raw_tcp_connect(out, config, &addr);
    }
    pair_barrier(p);
}

void
contest_end_turn(struct pair *p, uint64_t number, uint64_t spent_ns, uint64_t cpu[2])
{
    _Atomic uint64_t (*ping)[32] = p->board->ping;

    /* relaxed: pair_meet() publishes it */
    atomic_store_explicit(&ping[p->side][CONTEST_CPU_NS], spent_ns, memory_order_relaxed);
    pair_meet(p, CONTEST_END, number);
    for (int k = 0; k < 2; k++) /* before the other side can come to its next turn's end */
        cpu[k] += atomic_load_explicit(&ping[k][CONTEST_CPU_NS], memory_order_relaxed);
}

void
contest_print(const struct bench_series *ns, const struct contest *contest, const char *more,
              uint64_t first_cpu_ns, uint64_t second_cpu_ns, double bytes)
{
    char fields[320];

    (void)snprintf(fields, sizeof(fields),
                   "\"transport\": \"%s\", \"wait\": \"%s\", \"size\": %zu, \"depth\": %llu, %s"
                   "\"count\": %llu, \"first_cpu_s_per_gb\": %.6f, "
                   "\"second_cpu_s_per_gb\": %.6f",
                   contest->transport, contest->sleeps ? "sleep" : "spin", contest->len_bytes,
                   (unsigned long long)contest->depth, more, (unsigned long long)contest->count,
                   (double)first_cpu_ns / bytes, (double)second_cpu_ns / bytes);
    bench_series_print(ns, fields);
}
