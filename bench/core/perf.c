/* SPDX-License-Identifier: Apache-2.0
 * The loop of rdtperf; see perf.h. */
#include "perf.h"

#include <stdio.h>
#include <string.h>

/* What the turns of one way have come to. */
struct perf_found {
    struct bench_series ns;
    struct bench_spent spent; /* of the first side */
    uint64_t cpu_ns[2];
    uint64_t wire_bytes;
    uint64_t wakeups;
};

void
perf_run(const struct perf_options *options, pair_side_fn first, pair_side_fn second)
{
    const struct pair_opts opts = {.transport = options->transport, .sleeps = options->sleeps};

    pair_run(&opts, first, second, options);
}

struct perf_regions
perf_swap_regions(struct pair *p, uint64_t len_bytes)
{
    struct perf_regions regions = {0};

    for (int side = 0; side < 2; side++) {
        if (p->side == side)
            regions.own = pair_offer(p, len_bytes);
        else
            regions.other = pair_take_offer(p);
        pair_barrier(p);
    }
    return regions;
}

/* Meet the other side, and add up the processor time of both. */
static void
perf_end_turn(struct pair *p, uint64_t spent_ns, uint64_t cpu_ns[2])
{
    _Atomic uint64_t (*ping)[32] = p->board->ping;

    /* relaxed: pair_meet() publishes it */
    atomic_store_explicit(&ping[p->side][PERF_CPU_NS], spent_ns, memory_order_relaxed);
    pair_meet(p, PERF_END, p->turns);
    for (int side = 0; side < 2; side++) /* before the other side can end its next turn */
        cpu_ns[side] += atomic_load_explicit(&ping[side][PERF_CPU_NS], memory_order_relaxed);
}

/* One item's: what its way measured itself, else from its start until now. */
static uint64_t
perf_sample_of(const struct perf_loop *loop, uint64_t own_ns, uint64_t start_ns)
{
    if (own_ns > 0)
        return own_ns;
    return (bench_now_ns() - start_ns) / (loop->sample == PERF_TRIP ? 2 : 1);
}

static bool
perf_times_items(const struct perf_loop *loop, const struct perf_found *found)
{
    return found != NULL && (loop->sample == PERF_EACH || loop->sample == PERF_TRIP);
}

static void
perf_turn(struct pair *p, const struct perf_loop *loop, size_t number, uint64_t count,
          struct perf_found *found)
{
    const struct perf_way *way = &loop->ways[number];
    const bool is_alone = perf_times_items(loop, found);
    const uint64_t each = is_alone && p->side == 0 ? 1 : count;
    uint64_t unused[2] = {0};

    p->turns++;
    pair_meet(p, PERF_START, p->turns);
    const struct bench_spent before = bench_spent_now();
    const uint64_t begun_ns = bench_now_ns();
    for (uint64_t done = 0; done < count; done += each) {
        const uint64_t start_ns = bench_now_ns();
        const uint64_t own_ns = way->run(loop->ends, way, each);

        if (is_alone)
            bench_series_add(&found->ns, perf_sample_of(loop, own_ns, start_ns));
    }
    const uint64_t alone_ns = bench_now_ns() - begun_ns;
    const struct bench_spent after = bench_spent_now();
    if (way->end != NULL)
        way->end(loop->ends);
    perf_end_turn(p, after.cpu_ns - before.cpu_ns, found != NULL ? found->cpu_ns : unused);
    if (found == NULL)
        return;
    if (loop->sample == PERF_MEAN)
        bench_series_add(&found->ns, alone_ns / count);
    if (loop->sample == PERF_TOGETHER)
        bench_series_add(&found->ns, (bench_now_ns() - begun_ns) / count);
    found->spent.cpu_ns += after.cpu_ns - before.cpu_ns;
    found->spent.switches += after.switches - before.switches;
}

void
perf_take_one(struct pair *p, const struct perf_loop *loop, size_t way)
{
    perf_turn(p, loop, way, 1, NULL);
}

static void
perf_print(const struct perf_options *options, const struct perf_loop *loop,
           const struct perf_found *found)
{
    const double items = (double)(options->rounds * options->count);
    const double gb = loop->item_bytes * items / 1e9;
    char fields[640];

    (void)snprintf(fields, sizeof(fields),
                   "\"transport\": \"%s\", \"wait\": \"%s\", \"size\": %zu, \"depth\": %llu, "
                   "\"count\": %llu, %s\"first_cpu_s_per_gb\": %.6f, \"second_cpu_s_per_gb\": "
                   "%.6f, \"switches_per_trip\": %.3f, \"cpu_ns_per_trip\": %.0f, "
                   "\"wire_bytes_per_item\": %.2f, \"wakeups_per_item\": %.4f",
                   options->transport, options->sleeps ? "sleep" : "spin", options->len_bytes,
                   (unsigned long long)options->depth, (unsigned long long)options->count,
                   loop->fields != NULL ? loop->fields : "", (double)found->cpu_ns[0] / 1e9 / gb,
                   (double)found->cpu_ns[1] / 1e9 / gb, (double)found->spent.switches / items,
                   (double)found->spent.cpu_ns / items, (double)found->wire_bytes / items,
                   (double)found->wakeups / items);
    bench_series_print(&found->ns, fields);
}

void
perf_measure(struct pair *p, const struct perf_options *options, const struct perf_loop *loop)
{
    const uint64_t warm_up = loop->warm_up > 0 ? loop->warm_up : bench_warm_up(options->count);
    struct perf_found found[PERF_MAX_WAYS] = {0};

    for (size_t i = 0; i < loop->ways_count; i++)
        bench_series_init(&found[i].ns, loop->ways[i].name, options->rounds * options->count);
    for (size_t round = 0; round < options->rounds; round++) {
        for (size_t i = 0; i < loop->ways_count; i++) {
            perf_turn(p, loop, i, warm_up, NULL);
            const struct rdt_counters before = pair_counters(p);
            perf_turn(p, loop, i, options->count, &found[i]);
            const struct rdt_counters after = pair_counters(p);
            found[i].wire_bytes += after.wire_bytes - before.wire_bytes;
            found[i].wakeups += after.wakeups_sent - before.wakeups_sent;
        }
    }
    for (size_t i = 0; i < loop->ways_count; i++) {
        if (p->side == 0)
            perf_print(options, loop, &found[i]);
        bench_series_free(&found[i].ns);
    }
}
