/* SPDX-License-Identifier: Apache-2.0
 *
 * reads - one-sided reads of one size by the first process out of the second's memory, each alone
 * or several under way, what each side's processor spends on them, and a baseline in the same run.
 *
 *   rdtperf reads [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--depth N]
 *           [--count N] [--rounds N]
 *
 * With depth 1 a sample is one read, from its call until its bytes are here; else the mean of a
 * turn's reads. The baseline over shared memory is memcpy out of the same memory, by the mapping
 * that the library has of it, and has no depth; over TCP a question of 8 B for each read. The owner
 * of the memory waits for a notification or at its socket until the reader has all. Nothing writes
 * what is read, so small sizes come out of the reader's own caches with both. What is read is
 * compared in a pass of its own, first.
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "perf.h"
#include "sockets.h"

enum { READER, OWNER };

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    struct perf_regions regions;
    char *dst;
    const void *mapped; /* the owner's region, over shm */
    int fd;
};

static uint64_t
run_library(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    const uint64_t depth = e->options->depth;
    rdt_transfer *in_flight[PERF_MAX_DEPTH];
    struct rdt_error err;

    (void)way;
    if (e->pair->side == OWNER) {
        (void)pair_wait_notify(e->pair); /* of end_library() */
        return 0;
    }
    for (uint64_t posted = 0, done = 0; done < count; done++) {
        for (; posted < count && posted - done < depth; posted++)
            pair_check(rdt_endpoint_read(e->pair->ep, e->dst, e->options->len_bytes,
                                         &e->regions.other, 0, &in_flight[posted % depth], &err),
                       &err, "rdt_endpoint_read");
        pair_finish(in_flight[done % depth]);
    }
    return 0;
}

static void
end_library(void *ends)
{
    const struct ends *e = ends;

    if (e->pair->side == READER)
        pair_write(e->pair, NULL, 0, &e->regions.other, 0, 1);
}

static uint64_t
run_memcpy(void *ends, const struct perf_way *way, uint64_t count)
{
    const struct ends *e = ends;

    (void)way;
    for (; count > 0 && e->pair->side == READER; count--) {
        memcpy(e->dst, e->mapped, e->options->len_bytes);
        __asm__ volatile("" : : "r"(e->dst) : "memory"); /* every one of them counts */
    }
    return 0;
}

static uint64_t
run_sockets(void *ends, const struct perf_way *way, uint64_t count)
{
    const struct ends *e = ends;
    const bool is_reader = e->pair->side == READER;
    const size_t len_bytes = e->options->len_bytes;
    const struct flow_place bytes = {.addr = is_reader ? e->dst : rdt_region_addr(e->regions.own),
                                     .len_bytes = len_bytes};
    struct flow flow = {
        .fd = e->fd,
        .is_asking = is_reader,
        .depth = e->options->depth,
        .in_message_bytes = is_reader ? len_bytes : FLOW_WORD_BYTES,
        .out_message_bytes = is_reader ? FLOW_WORD_BYTES : len_bytes,
        .in = is_reader ? bytes : flow_words(),
        .out = is_reader ? flow_words() : bytes,
    };

    (void)way;
    flow_run(&flow, 1, count, e->options->sleeps);
    return 0;
}

static void
verify(struct ends *e, const struct perf_loop *loop)
{
    const size_t len_bytes = e->options->len_bytes;

    for (size_t i = 0; i < loop->ways_count; i++) {
        if (e->pair->side == OWNER)
            bench_fill(rdt_region_addr(e->regions.own), len_bytes, i);
        perf_take_one(e->pair, loop, i);
        if (e->pair->side == READER)
            bench_verify(e->dst, len_bytes, i, loop->ways[i].name);
    }
}

static void
run_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    const struct perf_way ways[] = {
        {.name = PERF_RDMATENSOR, .run = run_library, .end = end_library},
        {.name = PERF_FLOOR, .run = options->is_tcp ? run_sockets : run_memcpy},
    };
    struct ends e = {.pair = p,
                     .options = options,
                     .regions = perf_swap_regions(p, options->len_bytes),
                     .dst = bench_map(options->len_bytes, MAP_PRIVATE)};
    const struct perf_loop loop = {.ways = ways,
                                   .ways_count = options->has_floor ? 2 : 1,
                                   .ends = &e,
                                   .sample = options->depth == 1 ? PERF_EACH : PERF_MEAN,
                                   .item_bytes = (double)options->len_bytes};
    struct rdt_error err;

    if (options->is_tcp) {
        e.fd = sockets_connect(p, p->side == OWNER);
    } else if (p->side == READER && options->has_floor) {
        void *mapped;

        pair_check(rdt_endpoint_map(p->ep, &e.regions.other, &mapped, &err), &err,
                   "rdt_endpoint_map");
        e.mapped = mapped;
    }
    verify(&e, &loop);
    perf_measure(p, options, &loop);
    pair_barrier(p);
    if (options->is_tcp)
        (void)close(e.fd);
    rdt_region_free(e.regions.own, NULL, NULL);
    (void)munmap(e.dst, options->len_bytes);
}

void
perf_reads(const struct perf_options *options)
{
    perf_run(options, run_side, run_side);
}
