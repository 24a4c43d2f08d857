/* SPDX-License-Identifier: Apache-2.0
 * Turns of ours and a floor; see contest.h. */
#include "contest.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES (512 << 10) /* what wins the heats of tcp_throughput from 64 KiB on */

const char *const contest_names[CONTESTANTS] = {"ours", "floor"};

static void
check(const struct contest *contest, size_t most_bytes)
{
    if (contest->len_bytes > most_bytes || contest->depth > CONTEST_MAX_DEPTH)
        bench_fail("--size is at most %zu, --depth %d", most_bytes, CONTEST_MAX_DEPTH);
    if (!contest->is_tcp && strcmp(contest->transport, "shm") != 0)
        bench_fail("a floor is known over shm and tcp, not over \"%s\"", contest->transport);
    if (contest->sleeps && !contest->is_tcp)
        bench_fail("--wait sleep has a floor on tcp only");
}

struct contest
contest_of(int argc, char **argv, size_t most_bytes)
{
    const char *transport = bench_arg(argc, argv, "--transport");
    const char *wait = bench_arg(argc, argv, "--wait");
    const bool sleeps = wait != NULL && strcmp(wait, "sleep") == 0;
    const bool is_tcp = transport != NULL && strcmp(transport, "tcp") == 0;
    const struct contest contest = {
        .transport = transport != NULL ? transport : "shm",
        .is_tcp = is_tcp,
        .sleeps = sleeps,
        .len_bytes = (size_t)bench_arg_number(argc, argv, "--size", 65536),
        .depth = (uint64_t)bench_arg_number(argc, argv, "--depth", 1),
        .count = (uint64_t)bench_arg_number(argc, argv, "--count", 200),
        .rounds = (size_t)bench_arg_number(argc, argv, "--rounds", 5),
        .raw = {.is_spinning = !sleeps,
                .streams = 1,
                .chunk_bytes = most_bytes,
                .buffer_bytes = BUFFER_BYTES,
                .congestion = "reno"}, /* it does not pace */
    };

    if (wait != NULL && !sleeps && strcmp(wait, "spin") != 0)
        bench_fail("--wait is spin or sleep, not \"%s\"", wait);
    check(&contest, most_bytes);
    return contest;
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
