/* SPDX-License-Identifier: Apache-2.0
 * What the commands of rdtperf share: their options, and one loop in which the library and its
 * baselines take turns, with its samples and its line of JSON for each of them. */
#ifndef RDT_BENCH_PERF_H
#define RDT_BENCH_PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bench.h"
#include "pair.h"

/* Words of board->ping[side]; FLAG and PAYLOAD are one line of the baseline over shared memory. */
enum {
    PERF_FLAG,
    PERF_PAYLOAD,
    PERF_START,
    PERF_END,
    PERF_CPU_NS,
    PERF_REQUEST,
    PERF_READY,
    PERF_PUBLISHED,
    PERF_SEEN_NS,
    PERF_ANSWER,
};

#define PERF_RDMATENSOR "rdmatensor"
#define PERF_FLOOR "floor"
#define PERF_MAX_DEPTH 256
#define PERF_MAX_WAYS 16

struct perf_options {
    const char *transport;
    bool is_tcp;
    bool sleeps; /* --wait sleep: the library is opened as if many ranks shared the cores */
    bool is_both;
    bool is_silent;
    bool has_floor;   /* over verbs and --silent there is none */
    size_t len_bytes; /* --size */
    uint64_t depth;
    uint64_t count; /* items of a turn */
    size_t rounds;
    uint64_t blocks;
    size_t chunk_bytes;
};

/* How a turn's items become samples. */
enum perf_sample {
    PERF_EACH,     /* each item alone, by the first side */
    PERF_TRIP,     /* half of each item */
    PERF_MEAN,     /* the mean of all items, by the first side */
    PERF_TOGETHER, /* the mean of all, until both sides are through */
};

/* The library or a baseline. Both sides call the functions, with the same n. */
struct perf_way {
    const char *name;
    /* Move n items. Returns nanoseconds that replace the loop's own clock for one item, else 0. */
    uint64_t (*run)(void *ends, const struct perf_way *way, uint64_t n);
    void (*end)(void *ends); /* after a turn, untimed; NULL: nothing */
    size_t number;           /* the command's own */
};

struct perf_loop {
    const struct perf_way *ways;
    size_t ways_count;
    void *ends;
    enum perf_sample sample;
    uint64_t warm_up;   /* items before a turn; 0: bench_warm_up() */
    double item_bytes;  /* of both directions; processor time is for 10^9 of them */
    const char *fields; /* of the lines, each with ", " at its end */
};

/* Take all rounds, on both sides; the first prints. */
void perf_measure(struct pair *p, const struct perf_options *options, const struct perf_loop *loop);

/* One item of one way, untimed: for a pass that compares what arrives. */
void perf_take_one(struct pair *p, const struct perf_loop *loop, size_t way);

/* Run both sides over the path of the options, which they have as p->arg. */
void perf_run(const struct perf_options *options, pair_side_fn first, pair_side_fn second);

/* Each side's region of so many bytes, and where the other's is. */
struct perf_regions {
    rdt_region *own;
    struct rdt_remote_region other;
};
struct perf_regions perf_swap_regions(struct pair *p, uint64_t len_bytes);

void perf_latency(const struct perf_options *options);
void perf_reads(const struct perf_options *options);
void perf_registration(const struct perf_options *options);
void perf_shm_write(const struct perf_options *options);
void perf_streams(const struct perf_options *options);
void perf_tensors(const struct perf_options *options);
void perf_write_many(const struct perf_options *options);

#endif
