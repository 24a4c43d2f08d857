/* SPDX-License-Identifier: Apache-2.0
 *
 * latency - one way of a small write: a ping-pong of write + notify, half a round trip, both cores
 * busy, beside its floor in the same run: over shared memory two lines that the sides store into
 * and spin on, with a memcpy before where the payload is more than a word; over TCP a plain socket
 * that is waited for in the same way, with the congestion control of our sockets and the buffers
 * that win heats of tcp_throughput. What arrives is compared in a pass of its own, first.
 *
 *   rdtperf latency [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--rounds N]
 *           [--count N]
 *
 * Each round gives each of both a fifth of `count` round trips, at least 5, untimed, then `count`
 * that are timed alone: their median ignores the moments in which other processes had a core.
 * Defaults: shm, spin, 8 bytes, 50 rounds of 1000 trips. "spin": the library may spin, as it does
 * where cores allow; "sleep": it is opened as if many ranks shared the cores, and the baseline
 * blocks. A sleeper may be woken before its core has gone idle, and then takes no longer than a
 * spinning one; so each record has the voluntary context switches and the processor time of the
 * first side's process for a round trip, over all timed trips. Over verbs there is no baseline.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "rdtperf.h"

#define LINE_BYTES 8 /* of payload in the floor's line */

/* One side's ends of both contestants. */
struct ends {
    struct pair *pair;
    const struct contest *settings;
    rdt_region *region;
    struct rdt_remote_region remote;
    char *src;
    struct raw_tcp raw;
    uint64_t line_round;
};

static void
send_ours(struct ends *e)
{
    pair_write(e->pair, e->src, e->settings->len_bytes, &e->remote, 0, 7);
}

static void
recv_ours(struct ends *e)
{
    (void)pair_wait_notify(e->pair);
}

static void
send_floor(struct ends *e)
{
    const struct contest *settings = e->settings;
    const int side = e->pair->side;

    if (settings->is_tcp) {
        raw_tcp_move(&e->raw, true, e->src, settings->len_bytes, 1);
        return;
    }
    if (settings->len_bytes > LINE_BYTES)
        memcpy(settings->shared + (size_t)side * settings->len_bytes, e->src, settings->len_bytes);
    /* relaxed: the payload, in the line of the flag; release: pairs with bench_await() opposite */
    atomic_store_explicit(&e->pair->board->ping[side][1], ++e->line_round, memory_order_relaxed);
    atomic_store_explicit(&e->pair->board->ping[side][0], e->line_round, memory_order_release);
}

static void
recv_floor(struct ends *e)
{
    const struct contest *settings = e->settings;
    const int side = e->pair->side;

    if (settings->is_tcp) {
        raw_tcp_move(&e->raw, false, e->src, settings->len_bytes, 1);
        return;
    }
    /* The first side sends first, so its counter is the one to come. */
    bench_await(&e->pair->board->ping[1 - side][0], e->line_round + (side == 1 ? 1 : 0),
                "the other side");
}

struct way {
    const char *name;
    void (*send)(struct ends *e);
    void (*recv)(struct ends *e);
    struct bench_series ns;
    struct bench_spent spent; /* in all timed trips */
};

static const struct way ways[CONTESTANTS] = {
    {.name = "ours", .send = send_ours, .recv = recv_ours},
    {.name = "floor", .send = send_floor, .recv = recv_floor},
};

static void
open_ends(struct ends *e, struct pair *p)
{
    const struct contest *settings = p->arg;

    *e = (struct ends){.pair = p, .settings = settings};
    for (int side = 0; side < 2; side++) {
        if (p->side == side)
            e->region = pair_offer(p, settings->len_bytes);
        else
            e->remote = pair_take_offer(p);
        pair_barrier(p);
    }
    e->src = calloc(1, settings->len_bytes);
    if (e->src == NULL)
        bench_die("calloc");
    if (settings->is_tcp)
        contest_connect(p, &settings->raw, p->side == 0, &e->raw);
}

/* Where what the other side sent lies; NULL: in no memory of the way's own. */
static const void *
landing(const struct ends *e, bool is_floor)
{
    if (!is_floor)
        return rdt_region_addr(e->region);
    if (e->settings->is_tcp)
        return e->src;
    if (e->settings->len_bytes <= LINE_BYTES)
        return NULL;
    return e->settings->shared + (size_t)(1 - e->pair->side) * e->settings->len_bytes;
}

/* A payload each way, compared; both sides. */
static void
verify(struct ends *e)
{
    const size_t len_bytes = e->settings->len_bytes;

    for (size_t i = 0; i < e->settings->contestants; i++) {
        const uint64_t mine = 2 * i + (uint64_t)e->pair->side;
        const uint64_t theirs = 2 * i + 1 - (uint64_t)e->pair->side;
        const bool is_first = e->pair->side == 0;

        for (size_t k = 0; k < 2; k++) {
            if (is_first == (k == 0)) {
                bench_fill(e->src, len_bytes, mine);
                ways[i].send(e);
                continue;
            }
            ways[i].recv(e);
            const void *found = landing(e, i == 1);
            if (found != NULL)
                bench_verify(found, len_bytes, theirs, ways[i].name);
        }
    }
}

static void
close_ends(struct ends *e)
{
    if (e->settings->is_tcp)
        raw_tcp_close(&e->raw);
    rdt_region_free(e->region, NULL, NULL);
    free(e->src);
}

static void
report(struct way *w, const struct contest *settings)
{
    const double trips = (double)(settings->rounds * settings->count);
    char fields[240];

    (void)snprintf(fields, sizeof(fields),
                   "\"transport\": \"%s\", \"wait\": \"%s\", \"size\": %zu, "
                   "\"switches_per_trip\": %.3f, \"cpu_ns_per_trip\": %.0f",
                   settings->transport, settings->sleeps ? "sleep" : "spin", settings->len_bytes,
                   (double)w->spent.switches / trips, (double)w->spent.cpu_ns / trips);
    bench_series_print(&w->ns, fields);
    bench_series_free(&w->ns);
}

/* Half of each round trip; into: NULL, or its samples. */
static void
ping(struct ends *e, const struct way *w, uint64_t trips, struct bench_series *into)
{
    for (uint64_t i = 0; i < trips; i++) {
        const uint64_t start_ns = bench_now_ns();

        w->send(e);
        w->recv(e);
        if (into != NULL)
            bench_series_add(into, (bench_now_ns() - start_ns) / 2);
    }
}

static void
first_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    struct way mine[CONTESTANTS] = {ways[0], ways[1]};
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t i = 0; i < settings->contestants; i++)
        bench_series_init(&mine[i].ns, mine[i].name, settings->rounds * settings->count);
    for (size_t round = 0; round < settings->rounds; round++) {
        for (size_t i = 0; i < settings->contestants; i++) {
            ping(&e, &mine[i], bench_warm_up(settings->count), NULL);
            const struct bench_spent before = bench_spent_now();
            ping(&e, &mine[i], settings->count, &mine[i].ns);
            const struct bench_spent after = bench_spent_now();
            mine[i].spent.cpu_ns += after.cpu_ns - before.cpu_ns;
            mine[i].spent.switches += after.switches - before.switches;
        }
    }
    for (size_t i = 0; i < settings->contestants; i++)
        report(&mine[i], settings);
    close_ends(&e);
}

static void
second_side(struct pair *p)
{
    const struct contest *settings = p->arg;
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t round = 0; round < settings->rounds; round++) {
        for (size_t i = 0; i < settings->contestants; i++) {
            for (size_t k = 0; k < bench_warm_up(settings->count) + settings->count; k++) {
                ways[i].recv(&e);
                ways[i].send(&e);
            }
        }
    }
    close_ends(&e);
}

void
perf_latency(const struct contest *options)
{
    struct contest settings = *options;

    settings.shared = bench_map(2 * settings.len_bytes, MAP_SHARED);
    contest_run(&settings, first_side, second_side);
}
