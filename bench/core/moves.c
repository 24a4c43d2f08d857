/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of one size between the two processes, each with a baseline in the same run, and what
 * each side's processor spends on them. What arrives is compared in a pass of its own, first.
 *
 * latency - half a round trip of write + notify, both cores busy. The baseline over shared memory
 * is a line that each side stores into and spins on, with a memcpy before where the payload is more
 * than a word; over TCP a plain socket that is waited for in the same way.
 *
 *   rdtperf latency [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--rounds N]
 *           [--count N]
 *
 * "sleep": the library is opened as if many ranks shared the cores, and the baseline blocks. A
 * sleeper may be woken before its core has gone idle, and then takes no longer than a spinning one;
 * so each line has the voluntary context switches and the processor time of a round trip.
 *
 * streams - messages in a row, at most `depth` of them unacknowledged, one way or both ways.
 * A sample is the time for each message: from both sides' start until all are in place and both
 * sides know it. The library writes with a notification into one place. The baseline over TCP has a
 * connection for each direction, with an answer of 8 B to each message; over shared memory it is
 * memcpy and a counter without an answer, since nothing answers the library there either.
 * --silent: writes without notification and no baseline, as perftest's ib_write_bw has them.
 *
 *   rdtperf streams [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--depth N] [--both]
 *           [--silent] [--count N] [--rounds N]
 *
 * reads - one-sided reads by the first process out of the second's memory. With depth 1 a sample is
 * one read, from its call until its bytes are here; else the mean of a turn's reads. The baseline
 * over shared memory is memcpy out of the same memory, by the mapping that the library has of it,
 * and has no depth; over TCP a question of 8 B for each read. The owner of the memory waits for a
 * notification or at its socket until the reader has all. Nothing writes what is read, so small
 * sizes come out of the reader's own caches with both.
 *
 *   rdtperf reads [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--depth N]
 *           [--count N] [--rounds N]
 */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "perf.h"
#include "sockets.h"

#define LINE_BYTES 8 /* of payload in the line of the flag */

typedef uint64_t run_fn(void *ends, const struct perf_way *way, uint64_t n);

struct move {
    bool is_read;
    run_fn *library;
    run_fn *memory;
    run_fn *sockets;
    void (*end)(void *ends); /* of the library's turns */
};

struct ends {
    struct pair *pair;
    const struct perf_options *options;
    struct perf_regions regions;
    bool sends; /* bytes, also those that the other side reads */
    bool receives;
    char *own;         /* what is written to the other side, or where a read ends */
    char *shared;      /* both sides' payloads over shared memory */
    const void *other; /* the other side's region over shared memory, for reads */
    int fds[2];        /* by the side that listens */
    uint64_t number;   /* of the baseline's messages over shared memory */
};

static const struct move *chosen; /* before the fork, as: */
static char *shared_memory;

/* ---- Round trips --------------------------------------------------------------------------- */

static uint64_t
trips(struct ends *e, uint64_t n, void (*give)(struct ends *), void (*take)(struct ends *))
{
    for (; n > 0; n--) {
        if (e->pair->side == 0)
            give(e);
        take(e);
        if (e->pair->side == 1)
            give(e);
    }
    return 0;
}

static void
write_one(struct ends *e)
{
    pair_write(e->pair, e->own, e->options->len_bytes, &e->regions.other, 0, 7);
}

static void
take_notification(struct ends *e)
{
    (void)pair_wait_notify(e->pair);
}

static uint64_t
trips_library(void *ends, const struct perf_way *way, uint64_t n)
{
    (void)way;
    return trips(ends, n, write_one, take_notification);
}

static void
store_line(struct ends *e)
{
    const size_t len_bytes = e->options->len_bytes;
    _Atomic uint64_t *line = e->pair->board->ping[e->pair->side];

    if (len_bytes > LINE_BYTES)
        memcpy(e->shared + (size_t)e->pair->side * len_bytes, e->own, len_bytes);
    /* relaxed: the payload, in the line of the flag; release: pairs with bench_await() */
    atomic_store_explicit(&line[PERF_PAYLOAD], ++e->number, memory_order_relaxed);
    atomic_store_explicit(&line[PERF_FLAG], e->number, memory_order_release);
}

static void
await_line(struct ends *e)
{
    const int side = e->pair->side; /* the first sends first, so its counter is the one to come */

    bench_await(&e->pair->board->ping[1 - side][PERF_FLAG], e->number + (side == 1 ? 1 : 0),
                "the other side");
}

static uint64_t
trips_memory(void *ends, const struct perf_way *way, uint64_t n)
{
    (void)way;
    return trips(ends, n, store_line, await_line);
}

static void
send_bytes(struct ends *e)
{
    sockets_move(e->fds[0], true, e->options->sleeps, e->own, e->options->len_bytes);
}

static void
recv_bytes(struct ends *e)
{
    sockets_move(e->fds[0], false, e->options->sleeps, rdt_region_addr(e->regions.own),
                 e->options->len_bytes);
}

static uint64_t
trips_sockets(void *ends, const struct perf_way *way, uint64_t n)
{
    (void)way;
    return trips(ends, n, send_bytes, recv_bytes);
}

/* ---- Messages in a row --------------------------------------------------------------------- */

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

static rdt_transfer *
post(struct ends *e)
{
    const size_t len_bytes = e->options->len_bytes;
    rdt_endpoint *ep = e->pair->ep;
    rdt_transfer *transfer;
    struct rdt_error err;

    if (chosen->is_read)
        pair_check(rdt_endpoint_read(ep, e->own, len_bytes, &e->regions.other, 0, &transfer, &err),
                   &err, "rdt_endpoint_read");
    else
        pair_check(rdt_endpoint_write(ep, e->own, len_bytes, &e->regions.other, 0,
                                      e->options->is_silent ? RDT_NOTIFY_NONE : 1, &transfer, &err),
                   &err, "rdt_endpoint_write");
    return transfer;
}

/* Post, at most `depth` at once; returns the notifications that came meanwhile. */
static uint64_t
post_all(struct ends *e, uint64_t count, bool takes)
{
    const uint64_t depth = e->options->depth;
    rdt_transfer *in_flight[PERF_MAX_DEPTH];
    uint64_t taken = 0;

    for (uint64_t posted = 0, done = 0; done < count; done++) {
        for (; posted < count && posted - done < depth; posted++)
            in_flight[posted % depth] = post(e);
        pair_finish(in_flight[done % depth]);
        if (takes)
            taken += take_notifications(e);
    }
    return taken;
}

static uint64_t
row_library(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    const uint64_t due = e->receives && !e->options->is_silent ? count : 0;

    (void)way;
    for (uint64_t taken = post_all(e, e->sends ? count : 0, due > 0); taken < due; taken++)
        take_notification(e);
    return 0;
}

static uint64_t
row_memory(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    const int side = e->pair->side;
    const size_t len_bytes = e->options->len_bytes;
    _Atomic uint64_t (*ping)[32] = e->pair->board->ping;

    (void)way;
    e->number += count;
    for (uint64_t i = e->sends ? count : 0; i > 0; i--) {
        memcpy(e->shared + (size_t)side * len_bytes, e->own, len_bytes);
        /* release: pairs with bench_await() opposite */
        atomic_store_explicit(&ping[side][PERF_FLAG], e->number - i + 1, memory_order_release);
    }
    if (e->receives)
        bench_await(&ping[1 - side][PERF_FLAG], e->number, "the other side");
    return 0;
}

/* One side of a flow of messages: the bytes' sender or, for reads, their receiver asks. */
static struct flow
flow_of(const struct ends *e, int fd, bool is_sender)
{
    const size_t len_bytes = e->options->len_bytes;
    char *at = is_sender == chosen->is_read ? rdt_region_addr(e->regions.own) : e->own;
    const struct flow_place bytes = {.addr = at, .len_bytes = len_bytes};

    return (struct flow){
        .fd = fd,
        .is_asking = is_sender != chosen->is_read,
        .depth = e->options->depth,
        .in_message_bytes = is_sender ? FLOW_WORD_BYTES : len_bytes,
        .out_message_bytes = is_sender ? len_bytes : FLOW_WORD_BYTES,
        .in = is_sender ? flow_words() : bytes,
        .out = is_sender ? bytes : flow_words(),
    };
}

static uint64_t
row_sockets(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;
    struct flow flows[FLOWS_MAX];
    size_t n = 0;

    (void)way;
    for (int from = 0; from < 2; from++) {
        const bool is_sender = e->pair->side == from;

        if (is_sender ? e->sends : e->receives)
            flows[n++] = flow_of(e, e->fds[from], is_sender);
    }
    flow_run(flows, n, count, e->options->sleeps);
    return 0;
}

/* ---- Reads --------------------------------------------------------------------------------- */

static uint64_t
read_library(void *ends, const struct perf_way *way, uint64_t count)
{
    struct ends *e = ends;

    (void)way;
    if (e->receives)
        (void)post_all(e, count, false);
    else
        take_notification(e); /* of end_reads() */
    return 0;
}

static void
end_reads(void *ends)
{
    const struct ends *e = ends;

    if (e->receives)
        pair_write(e->pair, NULL, 0, &e->regions.other, 0, 1);
}

static uint64_t
read_memory(void *ends, const struct perf_way *way, uint64_t count)
{
    const struct ends *e = ends;

    (void)way;
    for (; count > 0 && e->receives; count--) {
        memcpy(e->own, e->other, e->options->len_bytes);
        __asm__ volatile("" : : "r"(e->own) : "memory"); /* every one of them counts */
    }
    return 0;
}

/* ---- Both sides ---------------------------------------------------------------------------- */

/* Where what came lies; NULL: in the line of the flag. */
static const char *
landing(const struct ends *e, run_fn *run)
{
    const size_t len_bytes = e->options->len_bytes;

    if (chosen->is_read)
        return e->own;
    if (run != chosen->memory)
        return rdt_region_addr(e->regions.own);
    if (run == trips_memory && len_bytes <= LINE_BYTES)
        return NULL;
    return e->shared + (size_t)(1 - e->pair->side) * len_bytes;
}

static void
verify(struct ends *e, const struct perf_loop *loop)
{
    const size_t len_bytes = e->options->len_bytes;
    const uint64_t side = (uint64_t)e->pair->side;

    for (size_t i = 0; i < loop->ways_count; i++) {
        const char *found = landing(e, loop->ways[i].run);

        if (e->sends)
            bench_fill(chosen->is_read ? rdt_region_addr(e->regions.own) : e->own, len_bytes,
                       2 * i + side);
        perf_take_one(e->pair, loop, i);
        if (e->receives && found != NULL)
            bench_verify(found, len_bytes, 2 * i + 1 - side, loop->ways[i].name);
    }
}

static enum perf_sample
sample_of(const struct perf_options *options)
{
    if (chosen->library == trips_library)
        return PERF_TRIP;
    if (chosen->is_read)
        return options->depth == 1 ? PERF_EACH : PERF_MEAN;
    return PERF_TOGETHER;
}

static void
open_baseline(struct ends *e)
{
    struct rdt_error err;
    void *mapped;

    for (int from = 0; from < 2 && e->options->is_tcp; from++)
        e->fds[from] = sockets_connect(e->pair, e->pair->side == from);
    if (chosen->is_read && e->receives && e->options->has_floor && !e->options->is_tcp) {
        pair_check(rdt_endpoint_map(e->pair->ep, &e->regions.other, &mapped, &err), &err,
                   "rdt_endpoint_map");
        e->other = mapped;
    }
}

static struct ends
open_ends(struct pair *p, bool is_both)
{
    const struct perf_options *options = p->arg;
    struct ends e = {.pair = p,
                     .options = options,
                     .sends = is_both || p->side == (chosen->is_read ? 1 : 0),
                     .receives = is_both || p->side == (chosen->is_read ? 0 : 1),
                     .own = bench_map(options->len_bytes, MAP_PRIVATE),
                     .shared = shared_memory,
                     .regions = perf_swap_regions(p, options->len_bytes)};

    open_baseline(&e);
    return e;
}

static void
run_side(struct pair *p)
{
    const struct perf_options *options = p->arg;
    const struct perf_way ways[] = {
        {.name = PERF_RDMATENSOR, .run = chosen->library, .end = chosen->end},
        {.name = PERF_FLOOR, .run = options->is_tcp ? chosen->sockets : chosen->memory},
    };
    const bool is_both = chosen->library == trips_library || options->is_both;
    struct ends e = open_ends(p, is_both);
    struct perf_loop loop = {
        .ways = ways,
        .ways_count = options->has_floor ? 2 : 1,
        .ends = &e,
        .sample = sample_of(options),
        .item_bytes = (double)options->len_bytes * (is_both ? 2 : 1),
    };

    if (chosen->library == row_library) {
        loop.warm_up = options->count < 10 ? 1 : options->count / 10;
        loop.fields = is_both ? "\"both\": true, " : "\"both\": false, ";
    }
    verify(&e, &loop);
    perf_measure(p, options, &loop);
    pair_barrier(p);
    for (int from = 0; from < 2 && options->is_tcp; from++)
        (void)close(e.fds[from]);
    rdt_region_free(e.regions.own, NULL, NULL);
    (void)munmap(e.own, options->len_bytes);
}

static void
run(const struct perf_options *options, const struct move *move)
{
    chosen = move;
    if (!options->is_tcp && options->has_floor && !move->is_read)
        shared_memory = bench_map(2 * options->len_bytes, MAP_SHARED);
    perf_run(options, run_side, run_side);
}

void
perf_latency(const struct perf_options *options)
{
    static const struct move move = {.library = trips_library,
                                     .memory = trips_memory,
                                     .sockets = trips_sockets};

    run(options, &move);
}

void
perf_streams(const struct perf_options *options)
{
    static const struct move move = {.library = row_library,
                                     .memory = row_memory,
                                     .sockets = row_sockets};

    run(options, &move);
}

void
perf_reads(const struct perf_options *options)
{
    static const struct move move = {.is_read = true,
                                     .library = read_library,
                                     .memory = read_memory,
                                     .sockets = row_sockets,
                                     .end = end_reads};

    run(options, &move);
}
