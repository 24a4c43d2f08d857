/* SPDX-License-Identifier: Apache-2.0
 *
 * latency - half a round trip of write + notify, both cores busy, and of a baseline in the same
 * run: over shared memory a line that each side stores into and spins on, with a memcpy before
 * where the payload is more than a word; over TCP a plain socket that is waited for in the same
 * way. What arrives is compared in a pass of its own, first. Over verbs there is no baseline.
 *
 *   rdtperf latency [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--rounds N]
 *           [--count N]
 *
 * "sleep": the library is opened as if many ranks shared the cores, and the baseline blocks. A
 * sleeper may be woken before its core has gone idle, and then takes no longer than a spinning one;
 * so each line has the voluntary context switches and the processor time of a round trip.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "perf.h"
#include "sockets.h"

#define LINE_BYTES 8 /* of payload in the line of the flag */

enum { LATENCY_LIBRARY, LATENCY_LINES, LATENCY_SOCKET };

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    struct perf_regions regions;
    char *src;
    char *shared; /* both sides' payloads, over shared memory */
    int fd;
    uint64_t line_round;
};

static char *shared_memory; /* mapped before the fork */

static void
send_one(struct ends *e, size_t number)
{
    const size_t len_bytes = e->options->len_bytes;
    _Atomic uint64_t *line = e->pair->board->ping[e->pair->side];

    if (number == LATENCY_LIBRARY) {
        pair_write(e->pair, e->src, len_bytes, &e->regions.other, 0, 7);
    } else if (number == LATENCY_SOCKET) {
        sockets_move(e->fd, true, e->options->sleeps, e->src, len_bytes);
    } else {
        if (len_bytes > LINE_BYTES)
            memcpy(e->shared + (size_t)e->pair->side * len_bytes, e->src, len_bytes);
        /* relaxed: the payload, in the line of the flag; release: pairs with bench_await() */
        atomic_store_explicit(&line[PERF_PAYLOAD], ++e->line_round, memory_order_relaxed);
        atomic_store_explicit(&line[PERF_FLAG], e->line_round, memory_order_release);
    }
}

static void
recv_one(struct ends *e, size_t number)
{
    const int side = e->pair->side;

    if (number == LATENCY_LIBRARY)
        (void)pair_wait_notify(e->pair);
    else if (number == LATENCY_SOCKET)
        sockets_move(e->fd, false, e->options->sleeps, e->src, e->options->len_bytes);
    else /* the first side sends first, so its counter is the one to come */
        bench_await(&e->pair->board->ping[1 - side][PERF_FLAG], e->line_round + (side == 1 ? 1 : 0),
                    "the other side");
}

static uint64_t
run_trips(void *ends, const struct perf_way *way, uint64_t n)
{
    struct ends *e = ends;

    for (; n > 0; n--) {
        if (e->pair->side == 0)
            send_one(e, way->number);
        recv_one(e, way->number);
        if (e->pair->side == 1)
            send_one(e, way->number);
    }
    return 0;
}

/* Where what the other side sent lies; NULL: in no memory of the way's own. */
static const void *
landing(const struct ends *e, size_t number)
{
    if (number == LATENCY_LIBRARY)
        return rdt_region_addr(e->regions.own);
    if (number == LATENCY_SOCKET)
        return e->src;
    if (e->options->len_bytes <= LINE_BYTES)
        return NULL;
    return e->shared + (size_t)(1 - e->pair->side) * e->options->len_bytes;
}

/* A payload each way, compared; both sides. */
static void
verify(struct ends *e, const struct perf_way *way)
{
    const size_t len_bytes = e->options->len_bytes;
    const uint64_t side = (uint64_t)e->pair->side;

    for (uint64_t sender = 0; sender < 2; sender++) {
        if (sender == side) {
            bench_fill(e->src, len_bytes, 2 * way->number + side);
            send_one(e, way->number);
            continue;
        }
        recv_one(e, way->number);
        const void *found = landing(e, way->number);
        if (found != NULL)
            bench_verify(found, len_bytes, 2 * way->number + sender, way->name);
    }
}

static void
run_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    const struct perf_way ways[] = {
        {.name = PERF_RDMATENSOR, .run = run_trips, .number = LATENCY_LIBRARY},
        {.name = PERF_FLOOR,
         .run = run_trips,
         .number = options->is_tcp ? LATENCY_SOCKET : LATENCY_LINES},
    };
    struct ends e = {.pair = p,
                     .options = options,
                     .regions = perf_swap_regions(p, options->len_bytes),
                     .src = bench_map(options->len_bytes, MAP_PRIVATE),
                     .shared = shared_memory};
    const struct perf_loop loop = {.ways = ways,
                                   .ways_count = options->has_floor ? 2 : 1,
                                   .ends = &e,
                                   .sample = PERF_TRIP,
                                   .item_bytes = 2.0 * (double)options->len_bytes};

    if (options->is_tcp)
        e.fd = sockets_connect(p, p->side == 0);
    for (size_t i = 0; i < loop.ways_count; i++)
        verify(&e, &ways[i]);
    perf_measure(p, options, &loop);
    if (options->is_tcp)
        (void)close(e.fd);
    rdt_region_free(e.regions.own, NULL, NULL);
    (void)munmap(e.src, options->len_bytes);
}

void
perf_latency(const struct perf_options *options)
{
    shared_memory = bench_map(2 * options->len_bytes, MAP_SHARED);
    perf_run(options, run_side, run_side);
}
