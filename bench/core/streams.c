/* SPDX-License-Identifier: Apache-2.0
 *
 * streams - messages of one size in a row, at most `depth` of them unacknowledged, one way or both
 * ways at once, and what each side's processor spends on them; beside its floor in the same run.
 *
 *   rdtperf streams [--transport shm|tcp|verbs] [--wait spin|sleep] [--size N] [--depth N] [--both]
 *           [--silent] [--count N] [--rounds N]
 *
 * Defaults: shm, spin, 65536 bytes, depth 1, one way, 200 messages in a sample, 5 samples. A sample
 * is the time for each message: from both sides' start until all are where they belong, those who
 * sent them know it, and those whom they were for too; over the messages of one direction. Ours is
 * write + notification into one place. The floor over TCP is plain sockets, one connection for each
 * direction, with an answer of 8 B to each message; over shared memory memcpy and a counter, which
 * nobody answers, since nobody answers ours there. Processor time is getrusage()'s, of the process
 * with all its threads, until its own part is done. --silent: writes without notification, and no
 * baseline, as perftest's ib_write_bw has them.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "flow.h"
#include "rdtperf.h"

#define MAX_BYTES ((size_t)1 << 30)

struct ends {
    struct pair *pair;
    const struct contest *settings;
    bool sends;
    bool receives;
    char *src;
    rdt_region *region;
    struct rdt_remote_region remote;
    struct raw_tcp raw[2]; /* by who sends */
    uint64_t counted;      /* shm: messages of earlier samples */
    uint64_t samples;
};

/* ---- Ours -------------------------------------------------------------------------------- */

static rdt_transfer *
post(struct ends *e)
{
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_endpoint_write(e->pair->ep, e->src, e->settings->len_bytes, &e->remote, 0,
                                  e->settings->is_silent ? RDT_NOTIFY_NONE : 1, &transfer, &err),
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

static void
move_ours(struct ends *e, uint64_t count, char *dst)
{
    const uint64_t depth = e->settings->depth;
    const uint64_t to_send = e->sends ? count : 0;
    uint64_t to_take = e->receives && !e->settings->is_silent ? count : 0;
    rdt_transfer *in_flight[CONTEST_MAX_DEPTH];
    struct rdt_error err;

    (void)dst; /* the region, always */
    for (uint64_t sent = 0, done = 0; done < to_send; done++) {
        for (; sent < to_send && sent - done < depth; sent++)
            in_flight[sent % depth] = post(e);
        pair_check(rdt_transfer_wait(in_flight[done % depth], PAIR_TIMEOUT_NS, &err), &err,
                   "rdt_transfer_wait");
        rdt_transfer_free(in_flight[done % depth]);
        if (to_take > 0)
            to_take -= take_notifications(e);
    }
    for (; to_take > 0; to_take--)
        (void)pair_wait_notify(e->pair);
}

/* ---- The floor over shared memory -------------------------------------------------------- */

static void
move_memcpy(struct ends *e, uint64_t count)
{
    const struct contest *settings = e->settings;
    const int side = e->pair->side;
    char *to = e->settings->shared + (size_t)side * settings->len_bytes;

    e->counted += count;
    for (uint64_t i = e->sends ? count : 0; i > 0; i--) {
        memcpy(to, e->src, settings->len_bytes);
        /* release: pairs with bench_await() opposite */
        atomic_store_explicit(&e->pair->board->ping[side][CONTEST_COUNT], e->counted - i + 1,
                              memory_order_release);
    }
    if (e->receives)
        bench_await(&e->pair->board->ping[1 - side][CONTEST_COUNT], e->counted, "the other side");
}

/* ---- The floor over TCP ------------------------------------------------------------------ */

static void
move_sockets(struct ends *e, uint64_t count, char *dst)
{
    const struct contest *settings = e->settings;
    const struct flow_place source = {.addr = e->src, .len_bytes = settings->len_bytes};
    const struct flow_place target = {.addr = dst, .len_bytes = settings->len_bytes};
    struct flow flows[FLOWS_MAX];
    size_t n = 0;

    for (int from = 0; from < 2; from++) {
        const bool is_sender = e->pair->side == from;

        if (!(is_sender ? e->sends : e->receives))
            continue;
        flows[n++] = (struct flow){
            .fd = e->raw[from].fds[0],
            .is_asking = is_sender,
            .depth = settings->depth,
            .in_message_bytes = is_sender ? FLOW_WORD_BYTES : settings->len_bytes,
            .out_message_bytes = is_sender ? settings->len_bytes : FLOW_WORD_BYTES,
            .in = is_sender ? flow_words() : target,
            .out = is_sender ? source : flow_words(),
        };
    }
    flow_run(flows, n, count, settings->sleeps);
}

static void
move_floor(struct ends *e, uint64_t count, char *dst)
{
    if (e->settings->is_tcp)
        move_sockets(e, count, dst);
    else
        move_memcpy(e, count);
}

/* ---- Samples ----------------------------------------------------------------------------- */

static void (*const moves[CONTESTANTS])(struct ends *e, uint64_t count, char *dst) = {move_ours,
                                                                                      move_floor};

/* Returns ns of all messages of one direction; cpu[side] grows by what each side spent. */
static uint64_t
sample(struct ends *e, size_t contestant, uint64_t count, char *dst, uint64_t cpu[2])
{
    e->samples++;
    pair_meet(e->pair, CONTEST_START, e->samples);
    const uint64_t start_ns = bench_now_ns();
    const uint64_t start_cpu_ns = bench_spent_now().cpu_ns;
    moves[contestant](e, count, dst);
    const uint64_t spent_ns = bench_spent_now().cpu_ns - start_cpu_ns;
    contest_end_turn(e->pair, e->samples, spent_ns, cpu);
    return bench_now_ns() - start_ns;
}

static void
verify(struct ends *e)
{
    const size_t len_bytes = e->settings->len_bytes;
    const int side = e->pair->side;
    uint64_t unused[2] = {0};

    for (size_t i = 0; i < e->settings->contestants; i++) {
        const uint64_t seed = 2 * i;
        char *dst = rdt_region_addr(e->region);
        const bool is_memcpy = i == CONTEST_FLOOR && !e->settings->is_tcp;
        const char *found = is_memcpy ? e->settings->shared + (size_t)(1 - side) * len_bytes : dst;

        bench_fill(e->src, len_bytes, seed + (uint64_t)side);
        (void)sample(e, i, 1, dst, unused);
        if (e->receives)
            bench_verify(found, len_bytes, seed + 1 - (uint64_t)side, contest_names[i]);
    }
}

static void
open_ends(struct ends *e, struct pair *p)
{
    const struct contest *contest = p->arg;

    *e = (struct ends){.pair = p,
                       .settings = contest,
                       .sends = p->side == 0 || contest->is_both,
                       .receives = p->side == 1 || contest->is_both};
    for (int side = 0; side < 2; side++) {
        /* a side that receives nothing offers a byte, for the sake of the meeting */
        if (p->side == side)
            e->region = pair_offer(p, e->receives ? contest->len_bytes : 1);
        else
            e->remote = pair_take_offer(p);
        pair_barrier(p);
        if (contest->is_tcp)
            contest_connect(p, &contest->raw, p->side == side, &e->raw[side]);
    }
    e->src = bench_map(contest->len_bytes, MAP_PRIVATE);
}

static void
close_ends(struct ends *e)
{
    pair_barrier(e->pair);
    if (e->settings->is_tcp)
        for (int i = 0; i < 2; i++)
            raw_tcp_close(&e->raw[i]);
    rdt_region_free(e->region, NULL, NULL);
    (void)munmap(e->src, e->settings->len_bytes);
}

static void
side(struct pair *p)
{
    const struct contest *contest = p->arg;
    const double bytes = (double)contest->len_bytes * (double)contest->count *
                         (double)contest->rounds * (contest->is_both ? 2 : 1);
    const char *more = contest->is_both ? "\"both\": true, " : "\"both\": false, ";
    struct bench_series ns[CONTESTANTS];
    uint64_t cpu[CONTESTANTS][2] = {0};
    uint64_t unused[2] = {0};
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t i = 0; i < contest->contestants; i++)
        bench_series_init(&ns[i], contest_names[i], contest->rounds);
    for (size_t round = 0; round < contest->rounds; round++) {
        for (size_t i = 0; i < contest->contestants; i++) {
            char *dst = rdt_region_addr(e.region);

            if (contest->count >= 10) /* of few and large ones verify() was enough */
                (void)sample(&e, i, contest->count / 10, dst, unused);
            bench_series_add(&ns[i], sample(&e, i, contest->count, dst, cpu[i]) / contest->count);
        }
    }
    for (size_t i = 0; i < contest->contestants; i++) {
        if (p->side == 0)
            contest_print(&ns[i], contest, more, cpu[i][0], cpu[i][1], bytes);
        bench_series_free(&ns[i]);
    }
    close_ends(&e);
}

void
perf_streams(const struct contest *options)
{
    struct contest settings = *options;

    if (!settings.is_tcp && settings.contestants == CONTESTANTS)
        settings.shared = bench_map(2 * settings.len_bytes, MAP_SHARED);
    contest_run(&settings, side, side);
}
