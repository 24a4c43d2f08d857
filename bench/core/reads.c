/* SPDX-License-Identifier: Apache-2.0
 *
 * reads - one-sided reads of one size by the first process out of the second's memory: each alone,
 * or in a row with several under way, and what each side's processor spends on them; beside their
 * floor in the same run.
 *
 *   rdtperf reads [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--depth N]
 *           [--count N] [--rounds N]
 *
 * Defaults: shm, spin, 65536 bytes, depth 1, 200 reads a round, 5 rounds. With depth 1 a sample is
 * one read, from its call until its bytes are here; else the mean of a round's reads, of which at
 * most `depth` are under way. The floor over shared memory is memcpy out of the same memory, by the
 * mapping that the library has of it, and has no depth; over TCP a question of 8 B for each read,
 * answered with the bytes over one connection. Who owns the memory waits until the reader has all:
 * in rdt_endpoint_wait_notify(), whose notification is not timed, or at its socket. Nobody writes
 * what is read, so small sizes come out of the reader's own caches, ours and the floor's. Processor
 * time is getrusage()'s, of the process with all its threads; who spins uses its core. What is read
 * is compared in a pass of its own, first.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "flow.h"
#include "rdtperf.h"

#define MAX_BYTES ((size_t)64 << 20)

enum { READER, OWNER };

struct ends {
    struct pair *pair;
    const struct contest *settings;
    rdt_region *region;              /* the owner's */
    struct rdt_remote_region remote; /* the reader's, as the next two */
    char *dst;
    const void *mapped; /* the owner's region, over shm */
    struct raw_tcp raw;
    uint64_t samples;
};

/* ---- Ours -------------------------------------------------------------------------------- */

static rdt_transfer *
post(struct ends *e)
{
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_endpoint_read(e->pair->ep, e->dst, e->settings->len_bytes, &e->remote, 0,
                                 &transfer, &err),
               &err, "rdt_endpoint_read");
    return transfer;
}

static void
read_ours(struct ends *e, uint64_t count)
{
    const uint64_t depth = e->settings->depth;
    rdt_transfer *in_flight[CONTEST_MAX_DEPTH];
    struct rdt_error err;

    for (uint64_t posted = 0, done = 0; done < count; done++) {
        for (; posted < count && posted - done < depth; posted++)
            in_flight[posted % depth] = post(e);
        pair_check(rdt_transfer_wait(in_flight[done % depth], PAIR_TIMEOUT_NS, &err), &err,
                   "rdt_transfer_wait");
        rdt_transfer_free(in_flight[done % depth]);
    }
}

/* ---- The floor --------------------------------------------------------------------------- */

static void
move_sockets(struct ends *e, uint64_t count)
{
    const struct contest *settings = e->settings;
    const bool is_reader = e->pair->side == READER;
    const struct flow_place bytes = {.addr = is_reader ? e->dst : rdt_region_addr(e->region),
                                     .len_bytes = settings->len_bytes};
    struct flow flow = {
        .fd = e->raw.fds[0],
        .is_asking = is_reader,
        .depth = settings->depth,
        .in_message_bytes = is_reader ? settings->len_bytes : FLOW_WORD_BYTES,
        .out_message_bytes = is_reader ? FLOW_WORD_BYTES : settings->len_bytes,
        .in = is_reader ? bytes : flow_words(),
        .out = is_reader ? flow_words() : bytes,
    };

    flow_run(&flow, 1, count, settings->sleeps);
}

static void
read_floor(struct ends *e, uint64_t count)
{
    if (e->mapped == NULL) {
        move_sockets(e, count);
        return;
    }
    for (; count > 0; count--) {
        memcpy(e->dst, e->mapped, e->settings->len_bytes);
        __asm__ volatile("" : : "r"(e->dst) : "memory"); /* every one of them counts */
    }
}

/* ---- Samples ----------------------------------------------------------------------------- */

static void (*const reads[CONTESTANTS])(struct ends *e, uint64_t count) = {read_ours, read_floor};

/* ns: NULL, or what gets the samples. */
static void
read_all(struct ends *e, size_t contestant, uint64_t count, struct bench_series *ns)
{
    const uint64_t each = e->settings->depth == 1 ? 1 : count; /* reads of a sample */

    for (uint64_t done = 0; done < count; done += each) {
        const uint64_t start_ns = bench_now_ns();

        reads[contestant](e, each);
        if (ns != NULL)
            bench_series_add(ns, (bench_now_ns() - start_ns) / each);
    }
}

/* The owner's part, until the reader has all. */
static void
serve(struct ends *e, size_t contestant, uint64_t count)
{
    if (contestant == CONTEST_OURS)
        (void)pair_wait_notify(e->pair);
    else if (e->settings->is_tcp)
        move_sockets(e, count);
}

/* cpu[side] grows by what each side spent. */
static void
take_turn(struct ends *e, size_t contestant, uint64_t count, struct bench_series *ns,
          uint64_t cpu[2])
{
    const int side = e->pair->side;

    e->samples++;
    pair_meet(e->pair, CONTEST_START, e->samples);
    const uint64_t start_cpu_ns = bench_spent_now().cpu_ns;
    if (side == READER)
        read_all(e, contestant, count, ns);
    else
        serve(e, contestant, count);
    const uint64_t spent_ns = bench_spent_now().cpu_ns - start_cpu_ns;
    if (side == READER && contestant == CONTEST_OURS)
        pair_write(e->pair, NULL, 0, &e->remote, 0, 1);
    contest_end_turn(e->pair, e->samples, spent_ns, cpu);
}

static void
verify(struct ends *e)
{
    const size_t len_bytes = e->settings->len_bytes;
    uint64_t unused[2] = {0};

    for (size_t i = 0; i < e->settings->contestants; i++) {
        if (e->pair->side == OWNER)
            bench_fill(rdt_region_addr(e->region), len_bytes, i);
        take_turn(e, i, 1, NULL, unused);
        if (e->pair->side == READER)
            bench_verify(e->dst, len_bytes, i, contest_names[i]);
    }
}

static void
open_ends(struct ends *e, struct pair *p)
{
    const struct contest *settings = p->arg;
    struct rdt_error err;
    void *mapped;

    *e = (struct ends){.pair = p, .settings = settings};
    if (p->side == OWNER) {
        e->region = pair_offer(p, settings->len_bytes);
    } else {
        e->remote = pair_take_offer(p);
        e->dst = bench_map(settings->len_bytes, MAP_PRIVATE);
    }
    if (settings->is_tcp)
        contest_connect(p, &settings->raw, p->side == OWNER, &e->raw);
    if (settings->is_tcp || p->side == OWNER || settings->contestants < CONTESTANTS)
        return;
    pair_check(rdt_endpoint_map(p->ep, &e->remote, &mapped, &err), &err, "rdt_endpoint_map");
    e->mapped = mapped;
}

static void
close_ends(struct ends *e)
{
    pair_barrier(e->pair);
    if (e->settings->is_tcp)
        raw_tcp_close(&e->raw);
    if (e->pair->side == OWNER)
        rdt_region_free(e->region, NULL, NULL);
    else
        (void)munmap(e->dst, e->settings->len_bytes);
}

static void
side(struct pair *p)
{
    const struct contest *settings = p->arg;
    struct bench_series ns[CONTESTANTS];
    uint64_t cpu[CONTESTANTS][2] = {0};
    uint64_t unused[2] = {0};
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t i = 0; i < settings->contestants; i++)
        bench_series_init(&ns[i], contest_names[i], settings->rounds * settings->count);
    for (size_t round = 0; round < settings->rounds; round++) {
        for (size_t i = 0; i < settings->contestants; i++) {
            if (settings->count >= 10) /* of few and large ones verify() was enough */
                take_turn(&e, i, bench_warm_up(settings->count), NULL, unused);
            take_turn(&e, i, settings->count, &ns[i], cpu[i]);
        }
    }
    const double bytes =
        (double)settings->len_bytes * (double)settings->count * (double)settings->rounds;
    for (size_t i = 0; i < settings->contestants; i++) {
        if (p->side == READER)
            contest_print(&ns[i], settings, "", cpu[i][READER], cpu[i][OWNER], bytes);
        bench_series_free(&ns[i]);
    }
    close_ends(&e);
}

void
perf_reads(const struct contest *options)
{
    contest_run(options, side, side);
}
