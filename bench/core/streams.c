/* SPDX-License-Identifier: Apache-2.0
 *
 * streams - messages of one size in a row, at most `depth` of them unacknowledged, one way or both
 * ways at once, what each side's processor spends on them, and a baseline in the same run.
 *
 *   rdtperf streams [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--depth N] [--both]
 *           [--silent] [--count N] [--rounds N]
 *
 * A sample is the time for each message: from both sides' start until all are in place and both
 * sides know it, over the messages of one direction. The library writes with a notification into
 * one place. The baseline over TCP has a connection for each direction, with an answer of 8 B to
 * each message; over shared memory it is memcpy and a counter without an answer, since nothing
 * answers the library there either. --silent: writes without notification and no baseline, as
 * perftest's ib_write_bw has them.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "perf.h"
#include "sockets.h"

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    bool sends;
    bool receives;
    char *src;
    char *shared;
    struct perf_regions regions;
    int fds[2];       /* by who sends */
    uint64_t counted; /* shm: messages of earlier turns */
};

static char *shared_memory; /* mapped before the fork */

static rdt_transfer *
post(struct ends *e)
{
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_endpoint_write(e->pair->ep, e->src, e->options->len_bytes, &e->regions.other, 0,
                                  e->options->is_silent ? RDT_NOTIFY_NONE : 1, &transfer, &err),
               &err, "rdt_endpoint_write");
    return transfer;
}

/* Those that are here; returns how many. */
static uint64_t
take_notifications(struct ends *e)
{
    struct rdt_error err;
    uint64_t taken = 0;
    uint32_t value;

    for (;; taken++) {
        const rdt_status status = rdt_endpoint_wait_notify(e->pair->ep, RDT_NO_WAIT, &value, &err);

        if (status == RDT_EAGAIN)
            return taken;
        pair_check(status, &err, "rdt_endpoint_wait_notify");
    }
}

static uint64_t
run_library(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    const uint64_t depth = e->options->depth;
    const uint64_t to_send = e->sends ? count : 0;
    uint64_t to_take = e->receives && !e->options->is_silent ? count : 0;
    rdt_transfer *in_flight[PERF_MAX_DEPTH];

    (void)way;
    for (uint64_t sent = 0, done = 0; done < to_send; done++) {
        for (; sent < to_send && sent - done < depth; sent++)
            in_flight[sent % depth] = post(e);
        pair_finish(in_flight[done % depth]);
        if (to_take > 0)
            to_take -= take_notifications(e);
    }
    for (; to_take > 0; to_take--)
        (void)pair_wait_notify(e->pair);
    return 0;
}

static uint64_t
run_memcpy(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    const int side = e->pair->side;
    const size_t len_bytes = e->options->len_bytes;
    _Atomic uint64_t (*ping)[32] = e->pair->board->ping;

    (void)way;
    e->counted += count;
    for (uint64_t i = e->sends ? count : 0; i > 0; i--) {
        memcpy(e->shared + (size_t)side * len_bytes, e->src, len_bytes);
        /* release: pairs with bench_await() opposite */
        atomic_store_explicit(&ping[side][PERF_FLAG], e->counted - i + 1, memory_order_release);
    }
    if (e->receives)
        bench_await(&ping[1 - side][PERF_FLAG], e->counted, "the other side");
    return 0;
}

static uint64_t
run_sockets(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    const size_t len_bytes = e->options->len_bytes;
    const struct flow_place source = {.addr = e->src, .len_bytes = len_bytes};
    const struct flow_place target = {.addr = rdt_region_addr(e->regions.own),
                                      .len_bytes = len_bytes};
    struct flow flows[FLOWS_MAX];
    size_t n = 0;

    (void)way;
    for (int from = 0; from < 2; from++) {
        const bool is_sender = e->pair->side == from;

        if (!(is_sender ? e->sends : e->receives))
            continue;
        flows[n++] = (struct flow){
            .fd = e->fds[from],
            .is_asking = is_sender,
            .depth = e->options->depth,
            .in_message_bytes = is_sender ? FLOW_WORD_BYTES : len_bytes,
            .out_message_bytes = is_sender ? len_bytes : FLOW_WORD_BYTES,
            .in = is_sender ? flow_words() : target,
            .out = is_sender ? source : flow_words(),
        };
    }
    flow_run(flows, n, count, e->options->sleeps);
    return 0;
}

static void
verify(struct ends *e, const struct perf_loop *loop)
{
    const size_t len_bytes = e->options->len_bytes;
    const uint64_t side = (uint64_t)e->pair->side;

    for (size_t i = 0; i < loop->ways_count; i++) {
        const char *found = loop->ways[i].run == run_memcpy ? e->shared + (1 - side) * len_bytes
                                                            : rdt_region_addr(e->regions.own);

        bench_fill(e->src, len_bytes, 2 * i + side);
        perf_take_one(e->pair, loop, i);
        if (e->receives)
            bench_verify(found, len_bytes, 2 * i + 1 - side, loop->ways[i].name);
    }
}

static void
run_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    const struct perf_way ways[] = {
        {.name = PERF_RDMATENSOR, .run = run_library},
        {.name = PERF_FLOOR, .run = options->is_tcp ? run_sockets : run_memcpy},
    };
    struct ends e = {.pair = p,
                     .options = options,
                     .sends = p->side == 0 || options->is_both,
                     .receives = p->side == 1 || options->is_both,
                     .src = bench_map(options->len_bytes, MAP_PRIVATE),
                     .shared = shared_memory,
                     .regions = perf_swap_regions(p, options->len_bytes)};
    const struct perf_loop loop = {
        .ways = ways,
        .ways_count = options->has_floor ? 2 : 1,
        .ends = &e,
        .sample = PERF_TOGETHER,
        .warm_up = options->count < 10 ? 1 : options->count / 10,
        .item_bytes = (double)options->len_bytes * (options->is_both ? 2 : 1),
        .fields = options->is_both ? "\"both\": true, " : "\"both\": false, ",
    };

    for (int from = 0; from < 2 && options->is_tcp; from++)
        e.fds[from] = sockets_connect(p, p->side == from);
    verify(&e, &loop);
    perf_measure(p, options, &loop);
    pair_barrier(p);
    for (int from = 0; from < 2 && options->is_tcp; from++)
        (void)close(e.fds[from]);
    rdt_region_free(e.regions.own, NULL, NULL);
    (void)munmap(e.src, options->len_bytes);
}

void
perf_streams(const struct perf_options *options)
{
    if (!options->is_tcp && options->has_floor)
        shared_memory = bench_map(2 * options->len_bytes, MAP_SHARED);
    perf_run(options, run_side, run_side);
}
