/* SPDX-License-Identifier: Apache-2.0
 *
 * verbs_write - our half of a comparison with perftest: writes over RDMA between two processes of
 * one host. One line of JSON; bench/rdma.py gives perftest its turns beside it.
 *
 *   verbs_write [--size N] [--count N] [--depth N] [--latency [--slot | --read]]
 *
 * Bandwidth (defaults: 1 MiB, 64 writes, 16 in flight): from the first write's call to the last
 * completion, as ib_write_bw takes it: no notification, the target does nothing. With --latency
 * (defaults: 8 B, 1000 trips): a ping-pong of write + notify; half of the median round trip, as
 * ib_write_lat takes it, and of the first and the last decile. Each side waits for the completion
 * of its own write before it looks for the answer, as ib_write_lat does. With --slot the trips are
 * a tensor's: put, get and release, whose credit is a message more; how it is announced
 * RDMATENSOR_VERBS_NOTIFY says. With --read the first process reads, and the other does nothing: a
 * whole trip counts, until the bytes are here, as ib_read_lat takes it ("one_way_ns" is then that
 * trip's). The CPU time is both sides', of the timed part. raw_ns: of each trip, as one way counts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"
#include "pair.h"

#define MAX_BYTES ((size_t)64 << 20)
#define MAX_DEPTH 64
#define MAX_TRIPS 100000
#define WARM_UP_SHARE 8

static uint64_t trip_ns[MAX_TRIPS]; /* in the order of the run */
static uint64_t sorted_ns[MAX_TRIPS];

struct settings {
    size_t len_bytes;
    size_t count;
    size_t depth;
    bool is_latency;
    bool is_slot;
    bool is_read;
};

struct ends {
    rdt_region *region;
    rdt_region *source;
    char *src; /* with --read what is read lands here */
    struct rdt_remote_region dst;
    rdt_slot *slot; /* these two with --slot */
    rdt_slot_tx *peers_slot;
};

static uint64_t
cpu_ns(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_SELF, &usage) != 0)
        bench_die("getrusage");
    return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000 +
           (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000;
}

static void
finish(rdt_transfer *transfer)
{
    struct rdt_error err;

    pair_check(rdt_transfer_wait(transfer, PAIR_TIMEOUT_NS, &err), &err, "rdt_transfer_wait");
    rdt_transfer_free(transfer);
}

static void
stream(struct pair *p, const struct ends *e, size_t count)
{
    const struct settings *settings = p->arg;
    rdt_transfer *flying[MAX_DEPTH] = {0};
    struct rdt_error err;

    for (size_t i = 0; i < count; i++) {
        rdt_transfer **place = &flying[i % settings->depth];
        if (*place != NULL)
            finish(*place);
        pair_check(rdt_endpoint_write(p->ep, e->src, settings->len_bytes, &e->dst, 0,
                                      RDT_NOTIFY_NONE, place, &err),
                   &err, "rdt_endpoint_write");
    }
    for (size_t i = 0; i < settings->depth; i++)
        if (flying[(count + i) % settings->depth] != NULL)
            finish(flying[(count + i) % settings->depth]);
}

static void
send_one(struct pair *p, const struct ends *e)
{
    const struct settings *settings = p->arg;
    rdt_transfer *transfer;
    struct rdt_error err;

    if (!settings->is_slot) {
        pair_write(p, e->src, settings->len_bytes, &e->dst, 0, 7);
        return;
    }
    pair_check(rdt_slot_tx_put(e->peers_slot, e->src, NULL, PAIR_TIMEOUT_NS, &transfer, &err), &err,
               "rdt_slot_tx_put");
    finish(transfer);
}

static void
take_one(struct pair *p, const struct ends *e)
{
    const struct settings *settings = p->arg;
    struct rdt_slot_view view;
    struct rdt_error err;

    if (!settings->is_slot) {
        (void)pair_wait_notify(p);
        return;
    }
    pair_check(rdt_slot_get(e->slot, PAIR_TIMEOUT_NS, &view, &err), &err, "rdt_slot_get");
    pair_check(rdt_slot_release(e->slot, &err), &err, "rdt_slot_release");
}

static void
ping(struct pair *p, const struct ends *e, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint64_t start_ns = bench_now_ns();
        if (p->side == 1)
            take_one(p, e);
        send_one(p, e);
        if (p->side == 0)
            take_one(p, e);
        trip_ns[i] = bench_now_ns() - start_ns;
    }
}

static void
read_each(struct pair *p, const struct ends *e, size_t count)
{
    const struct settings *settings = p->arg;
    rdt_transfer *transfer;
    struct rdt_error err;

    for (size_t i = 0; i < count; i++) {
        const uint64_t start_ns = bench_now_ns();
        pair_check(rdt_endpoint_read(p->ep, e->src, settings->len_bytes, &e->dst, 0, &transfer,
                                     &err),
                   &err, "rdt_endpoint_read");
        finish(transfer);
        trip_ns[i] = bench_now_ns() - start_ns;
    }
}

/* A payload each way, or of a read the one that is read, compared; both sides. */
static void
verify(struct pair *p, const struct ends *e)
{
    const struct settings *settings = p->arg;
    const uint64_t mine = 1 + (uint64_t)p->side;
    const uint64_t theirs = 2 - (uint64_t)p->side;
    void *const region = rdt_region_addr(e->region);
    struct rdt_slot_view view;
    struct rdt_error err;

    bench_fill(settings->is_read ? region : e->src, settings->len_bytes, mine);
    pair_barrier(p);
    if (settings->is_read) {
        read_each(p, e, 1);
        bench_verify(e->src, settings->len_bytes, theirs, "what was read");
    } else if (settings->is_slot) {
        send_one(p, e);
        pair_check(rdt_slot_get(e->slot, PAIR_TIMEOUT_NS, &view, &err), &err, "rdt_slot_get");
        bench_verify(view.addr, settings->len_bytes, theirs, "what came by the slot");
        pair_check(rdt_slot_release(e->slot, &err), &err, "rdt_slot_release");
    } else {
        send_one(p, e);
        (void)pair_wait_notify(p);
        bench_verify(region, settings->len_bytes, theirs, "what was written");
    }
    pair_barrier(p);
}

static int
compare_ns(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left;
    const uint64_t b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static const char *
what_of(const struct settings *settings)
{
    if (settings->is_slot)
        return "slot latency";
    if (settings->is_read)
        return "read latency";
    return settings->is_latency ? "latency" : "bandwidth";
}

static void
report(const struct settings *settings, uint64_t ns, const uint64_t cpu[2])
{
    double each_ns = (double)ns / (double)settings->count;
    const double ways = settings->is_read ? 1 : 2; /* that a trip has */

    if (settings->is_latency)
        each_ns = (double)sorted_ns[settings->count / 2];
    (void)printf("{\"bench\": \"%s\", \"what\": \"%s\", \"size\": %zu, \"count\": %zu, "
                 "\"depth\": %zu, \"one_way_ns\": %.1f, \"mib_per_s\": %.3f, "
                 "\"cpu_s\": [%.6f, %.6f]",
                 bench_name, what_of(settings), settings->len_bytes, settings->count,
                 settings->depth, settings->is_latency ? each_ns / ways : each_ns,
                 (double)settings->len_bytes / each_ns * 1e9 / (1 << 20), (double)cpu[0] * 1e-9,
                 (double)cpu[1] * 1e-9);
    if (settings->is_latency) { /* two modes show here, and in no median */
        (void)printf(", \"one_way_p10_ns\": %.1f, \"one_way_p90_ns\": %.1f, \"raw_ns\": [",
                     (double)sorted_ns[settings->count / 10] / ways,
                     (double)sorted_ns[settings->count * 9 / 10] / ways);
        for (size_t i = 0; i < settings->count; i++)
            (void)printf("%s%.1f", i > 0 ? ", " : "", (double)trip_ns[i] / ways);
        (void)printf("]");
    }
    (void)printf("}\n");
}

static void
open_ends(struct pair *p, struct ends *e)
{
    const struct settings *settings = p->arg;
    const struct rdt_tensor_desc desc = {.struct_size = sizeof(desc),
                                         .kind = RDT_SLOT_STATIC,
                                         .dtype = RDT_U8,
                                         .ndim = 1,
                                         .dims = {settings->len_bytes}};
    struct rdt_error err;

    *e = (struct ends){.region = pair_offer(p, settings->len_bytes)};
    e->dst = pair_take_offer(p);
    pair_barrier(p);
    pair_check(rdt_region_alloc(p->ctx, settings->len_bytes, 0, &e->source, &err), &err,
               "rdt_region_alloc");
    e->src = rdt_region_addr(e->source);
    if (!settings->is_slot)
        return;
    pair_check(rdt_slot_create(p->ep, "trip", &desc, &e->slot, &err), &err, "rdt_slot_create");
    pair_check(rdt_slot_tx_open(p->ep, "trip", &desc, PAIR_TIMEOUT_NS, &e->peers_slot, &err), &err,
               "rdt_slot_tx_open");
}

/* Both sides are here, and nothing is on its way. */
static void
close_ends(struct ends *e)
{
    rdt_slot_tx_destroy(e->peers_slot);
    rdt_slot_destroy(e->slot);
    rdt_region_free(e->source, NULL, NULL);
    rdt_region_free(e->region, NULL, NULL);
}

static void (*act_of(const struct settings *settings))(struct pair *, const struct ends *, size_t)
{
    if (settings->is_read)
        return read_each;
    return settings->is_latency ? ping : stream;
}

static void
either_side(struct pair *p)
{
    const struct settings *settings = p->arg;
    const size_t warm_up = settings->count / WARM_UP_SHARE + 1;
    const bool is_active = p->side == 0 || (settings->is_latency && !settings->is_read);
    uint64_t cpu[2] = {0};
    struct ends e;

    open_ends(p, &e);
    verify(p, &e);
    void (*const act)(struct pair *, const struct ends *, size_t) = act_of(settings);
    if (is_active)
        act(p, &e, warm_up);
    pair_barrier(p);
    cpu[p->side] = cpu_ns();
    const uint64_t start_ns = bench_now_ns();
    if (is_active)
        act(p, &e, settings->count);
    const uint64_t ns = bench_now_ns() - start_ns;
    pair_barrier(p);
    cpu[p->side] = cpu_ns() - cpu[p->side];
    uint64_t *shared = (uint64_t *)(void *)p->board->scratch;
    shared[p->side] = cpu[p->side];
    pair_barrier(p);
    if (p->side == 0) {
        memcpy(sorted_ns, trip_ns, settings->count * sizeof(trip_ns[0]));
        qsort(sorted_ns, settings->count, sizeof(sorted_ns[0]), compare_ns);
        report(settings, ns, shared);
    }
    close_ends(&e);
}

static void
check(const struct settings *settings)
{
    if ((settings->is_slot || settings->is_read) && !settings->is_latency)
        bench_fail("--slot and --read want --latency");
    if (settings->is_slot && settings->is_read)
        bench_fail("--slot or --read, not both");
    if (settings->len_bytes == 0 || settings->len_bytes > MAX_BYTES || settings->count == 0 ||
        settings->count > MAX_TRIPS || settings->depth == 0 || settings->depth > MAX_DEPTH)
        bench_fail("sizes from 1 to %zu, counts from 1 to %d, depths from 1 to %d", MAX_BYTES,
                   MAX_TRIPS, MAX_DEPTH);
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--size=", "--count=", "--depth=", "--latency",
                                        "--slot",  "--read",   NULL};

    bench_name = "verbs_write";
    bench_check_args(argc, argv, known);
    const bool is_latency = bench_has(argc, argv, "--latency");
    const struct settings settings = {
        .len_bytes = (size_t)bench_arg_number(argc, argv, "--size", is_latency ? 8 : 1 << 20),
        .count = (size_t)bench_arg_number(argc, argv, "--count", is_latency ? 1000 : 64),
        .depth = (size_t)bench_arg_number(argc, argv, "--depth", 16),
        .is_latency = is_latency,
        .is_slot = bench_has(argc, argv, "--slot"),
        .is_read = bench_has(argc, argv, "--read"),
    };
    check(&settings);
    const struct pair_opts opts = {.transport = "verbs"};
    pair_run(&opts, either_side, either_side, &settings);
    return 0;
}
