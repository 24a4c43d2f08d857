/* SPDX-License-Identifier: Apache-2.0
 *
 * idle_memory - what a connection costs while nothing is sent: this process holds one context and
 * connects it to N contexts of another process, which makes N connections.
 *
 *   rdtperf idle_memory [--transport shm|tcp] [--count N]        default shm, 64 connections
 *
 * The line has, for each connection: private memory of this process, its proportional share (Pss),
 * the arena's allocated bytes (its own part, which others map), the sum of private memory and
 * arena, descriptors. The first connection is made before the first look, so that what is there
 * once for all is not counted.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"
#include "rdtperf.h"

#define MAX_CONNECTIONS 512
#define IDLE_US 500000 /* set-up's buffers are given back by then */

struct meeting {
    _Atomic uint64_t stage; /* 1: our blob, 2: theirs, 3: first look, 4: measured */
    size_t blob_bytes[1 + MAX_CONNECTIONS];
    uint8_t blob[1 + MAX_CONNECTIONS][RDT_BLOB_MAX_BYTES];
};

static void
publish(struct meeting *m, rdt_context *ctx, size_t index)
{
    struct rdt_error err;

    pair_check(rdt_context_blob(ctx, m->blob[index], RDT_BLOB_MAX_BYTES, &m->blob_bytes[index],
                                &err),
               &err, "rdt_context_blob");
}

static void
reach(struct meeting *m, uint64_t stage)
{
    /* release: pairs with await_stage() in the other process */
    atomic_store_explicit(&m->stage, stage, memory_order_release);
}

static void
await_stage(struct meeting *m, uint64_t stage)
{
    const uint64_t deadline_ns = bench_now_ns() + 6 * BENCH_PATIENCE_NS;

    /* acquire: pairs with reach() */
    while (atomic_load_explicit(&m->stage, memory_order_acquire) < stage) {
        (void)usleep(1000);
        if (bench_now_ns() > deadline_ns)
            bench_fail("stage %llu never comes", (unsigned long long)stage);
    }
}

static rdt_endpoint *
connect_ready(const struct pair_opts *opts, rdt_context *ctx, struct meeting *m, size_t index)
{
    struct rdt_error err;
    rdt_endpoint *ep = pair_open_endpoint(ctx, m->blob[index], m->blob_bytes[index], (int)index);

    pair_check(rdt_endpoint_wait_ready(ep, PAIR_TIMEOUT_NS, &err), &err, "rdt_endpoint_wait_ready");
    pair_require_transport(opts, ep);
    return ep;
}

/* The other process: N contexts that each let us in. */
static void
be_many(const struct pair_opts *opts, struct meeting *m, size_t count)
{
    rdt_context *ctx[MAX_CONNECTIONS];
    rdt_endpoint *ep[MAX_CONNECTIONS];
    struct rdt_error err;

    await_stage(m, 1);
    for (size_t i = 0; i < count; i++) {
        ctx[i] = pair_open_context(opts, (int)(i + 1));
        publish(m, ctx[i], i + 1);
    }
    reach(m, 2);
    for (size_t i = 0; i < count; i++) {
        if (i == 1)
            await_stage(m, 3); /* whoever opens first connects both: not before the first look */
        ep[i] = connect_ready(opts, ctx[i], m, 0);
    }
    await_stage(m, 4);
    for (size_t i = 0; i < count; i++) {
        rdt_endpoint_close(ep[i]);
        pair_check(rdt_context_close(ctx[i], &err), &err, "rdt_context_close");
    }
}

static void
report(const struct pair_opts *opts, size_t count, const struct process_memory *before,
       const struct process_memory *after, uint64_t arena_bytes)
{
    const double n = (double)(count - 1);
    const double private_bytes = ((double)after->private_bytes - (double)before->private_bytes) / n;

    (void)printf("{\"bench\": \"%s\", \"summary\": true, \"transport\": \"%s\", "
                 "\"connections\": %zu, \"private_bytes\": %.0f, \"pss_bytes\": %.0f, "
                 "\"rss_bytes\": %.0f, \"arena_bytes\": %.0f, \"ours_bytes\": %.0f, "
                 "\"descriptors\": %.2f}\n",
                 bench_name, opts->transport, count, private_bytes,
                 ((double)after->pss_bytes - (double)before->pss_bytes) / n,
                 ((double)after->rss_bytes - (double)before->rss_bytes) / n,
                 (double)arena_bytes / n, private_bytes + (double)arena_bytes / n,
                 ((double)after->descriptors - (double)before->descriptors) / n);
}

static void
measure(const struct pair_opts *opts, struct meeting *m, size_t count)
{
    rdt_endpoint *ep[MAX_CONNECTIONS];
    struct rdt_error err;
    rdt_context *ctx = pair_open_context(opts, 0);

    publish(m, ctx, 0);
    reach(m, 1);
    await_stage(m, 2);
    ep[0] = connect_ready(opts, ctx, m, 1);
    (void)usleep(IDLE_US);
    const struct process_memory before = process_memory_now();
    const uint64_t arena_before = process_described(ctx, "arena", "allocated_bytes");
    reach(m, 3);
    for (size_t i = 1; i < count; i++)
        ep[i] = connect_ready(opts, ctx, m, i + 1);
    (void)usleep(IDLE_US);
    const uint64_t arena_after = process_described(ctx, "arena", "allocated_bytes");
    const struct process_memory after = process_memory_now();
    report(opts, count, &before, &after, arena_after - arena_before);
    reach(m, 4);
    for (size_t i = 0; i < count; i++)
        rdt_endpoint_close(ep[i]);
    pair_check(rdt_context_close(ctx, &err), &err, "rdt_context_close");
}

void
perf_idle_memory(const struct contest *options)
{
    const struct pair_opts opts = {.transport = options->transport};
    const size_t count = (size_t)options->count;
    int status;

    if (count < 2 || count > MAX_CONNECTIONS)
        bench_fail("--count is 2 to %d", MAX_CONNECTIONS);
    struct meeting *m = bench_map(sizeof(*m), MAP_SHARED);
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        bench_die("fork");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            bench_fail("the first process is gone");
        be_many(&opts, m, count);
        exit(0);
    }
    measure(&opts, m, count);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the second process failed");
}
