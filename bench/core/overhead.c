/* SPDX-License-Identifier: Apache-2.0
 *
 * overhead - what a write costs besides its payload: system calls of the threads that write and
 * wait, while both sides are awake, wake-ups sent, and on TCP the bytes that go to the sockets.
 *
 *   rdtperf overhead [--transport shm|tcp] [--count N] [--size N]    default shm, 20000 writes, 8 B
 *
 * A ping-pong of write + notify, so that each side makes N writes and waits N times. System calls
 * are counted in the calling threads by a seccomp trap; "calls" names them. On TCP each write is
 * answered by a write, so a side's wire bytes are its writes and its acknowledgements.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"
#include "rdtperf.h"

#define MAX_BYTES ((size_t)1 << 20)
#define WARM_UP 2000

struct ends {
    rdt_region *region;
    struct rdt_remote_region remote;
    char *src;
};

static void
ping(struct pair *p, struct ends *e, size_t len_bytes, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (p->side == 1)
            (void)pair_wait_notify(p);
        pair_write(p, e->src, len_bytes, &e->remote, 0, 7);
        if (p->side == 0)
            (void)pair_wait_notify(p);
    }
}

static void
print_calls(void)
{
    bool is_first = true;

    (void)printf("\"calls\": {");
    for (uint32_t i = 0; i < PROCESS_CALLS_MAX; i++) {
        if (process_calls(i) == 0)
            continue;
        (void)printf("%s\"%u\": %llu", is_first ? "" : ", ", i,
                     (unsigned long long)process_calls(i));
        is_first = false;
    }
    (void)printf("}");
}

static void
report(const struct pair *p, const struct contest *settings, const struct rdt_counters *before,
       const struct rdt_counters *after, uint64_t calls, bool is_counted)
{
    const double n = (double)settings->count;

    (void)printf("{\"bench\": \"%s\", \"summary\": true, \"transport\": \"%s\", \"side\": %d, "
                 "\"size\": %zu, \"writes\": %llu, \"writes_counted\": %llu, ",
                 bench_name, settings->transport, p->side, settings->len_bytes,
                 (unsigned long long)settings->count,
                 (unsigned long long)(after->writes - before->writes));
    if (is_counted)
        (void)printf("\"calls_per_write\": %.4f, ", (double)calls / n);
    else
        (void)printf("\"calls_per_write\": null, ");
    print_calls();
    (void)printf(
        ", \"wakeups_per_write\": %.4f, \"copied_bytes\": %llu, \"control_messages\": %llu, "
        "\"wire_bytes_per_write\": %.2f, \"wire_overhead_bytes\": %.2f}\n",
        (double)(after->wakeups_sent - before->wakeups_sent) / n,
        (unsigned long long)(after->copied_bytes - before->copied_bytes),
        (unsigned long long)(after->control_messages - before->control_messages),
        (double)(after->wire_bytes - before->wire_bytes) / n,
        after->wire_bytes == before->wire_bytes
            ? 0.0
            : (double)(after->wire_bytes - before->wire_bytes) / n - (double)settings->len_bytes);
    (void)fflush(stdout);
}

static void
run(struct pair *p, struct ends *e)
{
    const struct contest *settings = p->arg;

    ping(p, e, settings->len_bytes, WARM_UP);
    pair_barrier(p);
    ping(p, e, settings->len_bytes, WARM_UP); /* after the barrier's sleep */
    const bool is_counted = process_count_calls();
    ping(p, e, settings->len_bytes,
         WARM_UP); /* the filter's set-up took the other side by surprise */
    const struct rdt_counters before = pair_counters(p);
    const uint64_t calls_before = process_calls_total();
    ping(p, e, settings->len_bytes, settings->count);
    const uint64_t calls = process_calls_total() - calls_before;
    const struct rdt_counters after = pair_counters(p);
    report(p, settings, &before, &after, calls, is_counted);
}

static void
either_side(struct pair *p)
{
    struct ends e = {.src = calloc(1, MAX_BYTES)};

    if (e.src == NULL)
        bench_die("calloc");
    for (int side = 0; side < 2; side++) {
        if (p->side == side)
            e.region = pair_offer(p, MAX_BYTES);
        else
            e.remote = pair_take_offer(p);
        pair_barrier(p);
    }
    run(p, &e);
    rdt_region_free(e.region, NULL, NULL);
    free(e.src);
}

void
perf_overhead(const struct contest *options)
{
    contest_run(options, either_side, either_side);
}
