/* SPDX-License-Identifier: Apache-2.0
 *
 * latency - one way of a small write: a ping-pong of write + notify, half a round trip, both cores
 * busy, beside its floor in the same run: over shared memory two lines that the sides store into
 * and spin on, with a memcpy before where the payload is more than a word; over TCP a plain socket
 * that is waited for in the same way, with the congestion control of our sockets and the buffers
 * that win heats of tcp_throughput. What arrives is compared in a pass of its own, first.
 *
 *   latency [--transport shm|tcp] [--wait spin|sleep] [--size N] [--rounds N] [--trips N]
 *
 * Each round gives each contestant a fifth of `trips` round trips, at least 5, untimed, then
 * `trips` in one sample, and some that are timed alone: their median ignores the moments in which
 * others had a core. Defaults: shm, spin, 8 bytes, 50 rounds of 1000 trips. "spin": the library may
 * spin, as it does where cores allow; "sleep": it is told that many ranks share the cores, and the
 * floor blocks. Who sleeps may be woken before its core has gone idle, and then takes no longer
 * than who spins; so each record has what the first side's process did for a round trip: how often
 * its threads slept (voluntary context switches) and its processor time, of all timed trips.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "contest.h"
#include "pair.h"
#include "raw_tcp.h"

#define MAX_BYTES ((size_t)64 << 20)
#define LINE_BYTES 8             /* of payload in the floor's line */
#define BUFFER_BYTES (512 << 10) /* what wins the heats of tcp_throughput from 64 KiB on */

struct settings {
    const char *transport;
    bool sleeps;
    size_t len_bytes;
    size_t rounds;
    size_t trips;
    const struct raw_tcp_config *raw;
    char *floor; /* shared by both sides: a payload of each */
};

/* One side's ends of both contestants. */
struct ends {
    struct pair *pair;
    const struct settings *settings;
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
    const struct settings *settings = e->settings;
    const int side = e->pair->side;

    if (strcmp(settings->transport, "tcp") == 0) {
        raw_tcp_move(&e->raw, true, e->src, settings->len_bytes, 1);
        return;
    }
    if (settings->len_bytes > LINE_BYTES)
        memcpy(settings->floor + (size_t)side * settings->len_bytes, e->src, settings->len_bytes);
    /* relaxed: the payload, in the line of the flag; release: pairs with bench_await() opposite */
    atomic_store_explicit(&e->pair->board->ping[side][1], ++e->line_round, memory_order_relaxed);
    atomic_store_explicit(&e->pair->board->ping[side][0], e->line_round, memory_order_release);
}

static void
recv_floor(struct ends *e)
{
    const struct settings *settings = e->settings;
    const int side = e->pair->side;

    if (strcmp(settings->transport, "tcp") == 0) {
        raw_tcp_move(&e->raw, false, e->src, settings->len_bytes, 1);
        return;
    }
    /* The first side sends first, so its counter is the one to come. */
    bench_await(&e->pair->board->ping[1 - side][0], e->line_round + (side == 1 ? 1 : 0),
                "the other side");
}

/* Untimed: both sides are here, and threads that served while nobody waited have noticed. */
static size_t
warm_up(const struct settings *settings)
{
    return bench_warm_up(settings->trips);
}

/* Trips of each round that are timed alone. */
static size_t
singles(const struct settings *settings)
{
    return settings->trips / 2 + 1;
}

struct way {
    const char *name;
    void (*send)(struct ends *e);
    void (*recv)(struct ends *e);
    struct bench_series batch;
    struct bench_series single;
    struct bench_spent spent; /* in all timed trips */
};

static const struct way ways[2] = {
    {.name = "ours", .send = send_ours, .recv = recv_ours},
    {.name = "floor", .send = send_floor, .recv = recv_floor},
};

static void
open_ends(struct ends *e, struct pair *p)
{
    const struct settings *settings = p->arg;

    *e = (struct ends){.pair = p, .settings = settings};
    if (p->side == 0) {
        e->region = pair_offer(p, settings->len_bytes);
        pair_barrier(p);
        e->remote = pair_take_offer(p);
        pair_barrier(p);
    } else {
        e->remote = pair_take_offer(p);
        pair_barrier(p);
        e->region = pair_offer(p, settings->len_bytes);
        pair_barrier(p);
    }
    e->src = calloc(1, settings->len_bytes);
    if (e->src == NULL)
        bench_die("calloc");
    if (strcmp(settings->transport, "tcp") != 0)
        return;
    contest_connect(p, settings->raw, p->side == 0, &e->raw);
}

/* Where what the other side sent lies; NULL: in no memory of the way's own. */
static const void *
landing(const struct ends *e, bool is_floor)
{
    if (!is_floor)
        return rdt_region_addr(e->region);
    if (strcmp(e->settings->transport, "tcp") == 0)
        return e->src;
    if (e->settings->len_bytes <= LINE_BYTES)
        return NULL;
    return e->settings->floor + (size_t)(1 - e->pair->side) * e->settings->len_bytes;
}

/* A payload each way, compared; both sides. */
static void
verify(struct ends *e)
{
    const size_t len_bytes = e->settings->len_bytes;

    for (size_t i = 0; i < 2; i++) {
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
    if (strcmp(e->settings->transport, "tcp") == 0)
        raw_tcp_close(&e->raw);
    rdt_region_free(e->region, NULL, NULL);
    free(e->src);
}

static double
per_trip(uint64_t of_all, const struct settings *settings)
{
    return (double)of_all / (double)(settings->rounds * (settings->trips + singles(settings)));
}

static void
report(struct way *w, const struct settings *settings)
{
    struct bench_series *const series[] = {&w->batch, &w->single};
    const size_t trips[] = {settings->trips, 1};
    char fields[240];

    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(fields, sizeof(fields),
                       "\"transport\": \"%s\", \"wait\": \"%s\", \"size\": %zu, \"trips\": %zu, "
                       "\"switches_per_trip\": %.3f, \"cpu_ns_per_trip\": %.0f",
                       settings->transport, settings->sleeps ? "sleep" : "spin",
                       settings->len_bytes, trips[i], per_trip(w->spent.switches, settings),
                       per_trip(w->spent.cpu_ns, settings));
        bench_series_print(series[i], fields);
        bench_series_free(series[i]);
    }
}

static void
report_all(struct way *mine, const struct settings *settings)
{
    const uint64_t ours_ns = bench_series_quantile(&mine[0].batch, 0.5);
    const uint64_t floor_ns = bench_series_quantile(&mine[1].batch, 0.5);
    const uint64_t ours_single_ns = bench_series_quantile(&mine[0].single, 0.5);
    const uint64_t floor_single_ns = bench_series_quantile(&mine[1].single, 0.5);

    (void)printf("{\"bench\": \"%s\", \"summary\": true, \"transport\": \"%s\", \"wait\": \"%s\", "
                 "\"size\": %zu, \"ours_ns\": %llu, \"floor_ns\": %llu, \"times_floor\": %.3f, "
                 "\"ours_single_ns\": %llu, \"floor_single_ns\": %llu, "
                 "\"times_floor_single\": %.3f, \"ours_switches_per_trip\": %.3f, "
                 "\"floor_switches_per_trip\": %.3f}\n",
                 bench_name, settings->transport, settings->sleeps ? "sleep" : "spin",
                 settings->len_bytes, (unsigned long long)ours_ns, (unsigned long long)floor_ns,
                 (double)ours_ns / (double)floor_ns, (unsigned long long)ours_single_ns,
                 (unsigned long long)floor_single_ns,
                 (double)ours_single_ns / (double)floor_single_ns,
                 per_trip(mine[0].spent.switches, settings),
                 per_trip(mine[1].spent.switches, settings));
    for (size_t i = 0; i < 2; i++)
        report(&mine[i], settings);
}

/* ns of `trips` round trips over two, for each trip. */
static uint64_t
ping(struct ends *e, const struct way *w, size_t trips)
{
    const uint64_t start_ns = bench_now_ns();

    for (size_t i = 0; i < trips; i++) {
        w->send(e);
        w->recv(e);
    }
    return (bench_now_ns() - start_ns) / (2 * trips);
}

static void
first_side(struct pair *p)
{
    const struct settings *settings = p->arg;
    struct way mine[2] = {ways[0], ways[1]};
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t i = 0; i < 2; i++) {
        bench_series_init(&mine[i].batch, mine[i].name, settings->rounds);
        bench_series_init(&mine[i].single, mine[i].name, settings->rounds * singles(settings));
    }
    for (size_t round = 0; round <= settings->rounds; round++) {
        for (size_t i = 0; i < 2; i++) {
            (void)ping(&e, &mine[i], warm_up(settings));
            const struct bench_spent before = bench_spent_now();
            const uint64_t batch_ns = ping(&e, &mine[i], settings->trips);
            for (size_t k = 0; k < singles(settings); k++) {
                const uint64_t single_ns = ping(&e, &mine[i], 1);
                if (round > 0)
                    bench_series_add(&mine[i].single, single_ns);
            }
            if (round == 0)
                continue;
            const struct bench_spent after = bench_spent_now();
            mine[i].spent.cpu_ns += after.cpu_ns - before.cpu_ns;
            mine[i].spent.switches += after.switches - before.switches;
            bench_series_add(&mine[i].batch, batch_ns);
        }
    }
    report_all(mine, settings);
    close_ends(&e);
}

static void
second_side(struct pair *p)
{
    const struct settings *settings = p->arg;
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t round = 0; round <= settings->rounds; round++) {
        for (size_t i = 0; i < 2; i++) {
            for (size_t k = 0; k < warm_up(settings) + settings->trips + singles(settings); k++) {
                ways[i].recv(&e);
                ways[i].send(&e);
            }
        }
    }
    close_ends(&e);
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--transport=", "--wait=",  "--size=",
                                        "--rounds=",    "--trips=", NULL};

    bench_name = "latency";
    bench_check_args(argc, argv, known);
    const char *transport = bench_arg(argc, argv, "--transport");
    const char *wait = bench_arg(argc, argv, "--wait");
    const bool sleeps = wait != NULL && strcmp(wait, "sleep") == 0;
    if (wait != NULL && !sleeps && strcmp(wait, "spin") != 0)
        bench_fail("--wait is spin or sleep, not \"%s\"", wait);
    if (sleeps && (transport == NULL || strcmp(transport, "tcp") != 0))
        bench_fail("--wait sleep has a floor on tcp only");
    const struct raw_tcp_config raw = {.is_spinning = !sleeps,
                                       .streams = 1,
                                       .chunk_bytes = MAX_BYTES,
                                       .buffer_bytes = BUFFER_BYTES,
                                       .congestion = "reno"}; /* as ours on loopback: no pacing */
    struct settings settings = {
        .transport = transport != NULL ? transport : "shm",
        .sleeps = sleeps,
        .len_bytes = (size_t)bench_arg_number(argc, argv, "--size", 8),
        .rounds = (size_t)bench_arg_number(argc, argv, "--rounds", 50),
        .trips = (size_t)bench_arg_number(argc, argv, "--trips", 1000),
        .raw = &raw,
    };
    if (settings.len_bytes > MAX_BYTES)
        bench_fail("--size is at most %zu", MAX_BYTES);
    settings.floor = bench_map(2 * settings.len_bytes, MAP_SHARED);
    const struct pair_opts opts = {.transport = settings.transport, .sleeps = sleeps};
    pair_run(&opts, first_side, second_side, &settings);
    return 0;
}
