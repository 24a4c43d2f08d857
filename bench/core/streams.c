/* SPDX-License-Identifier: Apache-2.0
 *
 * streams - messages of one size in a row, at most `depth` of them unacknowledged, one way or both
 * ways at once, and what each side's processor spends on them; beside its floor in the same run.
 *
 *   streams [--transport shm|tcp] [--wait spin|sleep] [--size N] [--depth N] [--both]
 *           [--count N] [--rounds N]
 *
 * Defaults: shm, spin, 65536 bytes, depth 1, one way, 200 messages in a sample, 5 samples. A sample
 * is the time for each message: from both sides' start until all are where they belong, those who
 * sent them know it, and those whom they were for too; over the messages of one direction. Ours is
 * write + notification into one place. The floor over TCP is plain sockets, one connection for each
 * direction, with an answer of 8 B to each message; over shared memory memcpy and a counter, which
 * nobody answers, since nobody answers ours there. Processor time is getrusage()'s, of the process
 * with all its threads, until its own part is done. Who spins uses its core while it waits.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"
#include "pair.h"
#include "raw_tcp.h"

#define MAX_BYTES ((size_t)1 << 30)
#define MAX_DEPTH 256
#define ANSWER_BYTES 8
#define BUFFER_BYTES (512 << 10) /* what wins the heats of tcp_throughput from 64 KiB on */
#define POLL_MS 20000

enum { OURS, FLOOR, CONTESTANTS };
enum { BOARD_COUNT, BOARD_START, BOARD_END, BOARD_CPU_NS }; /* words of board->ping[side] */

struct settings {
    const char *transport;
    bool sleeps;
    bool is_both;
    size_t len_bytes;
    uint64_t depth;
    uint64_t count;
    size_t rounds;
    char *floor; /* shm: what each side sends, shared by both */
    const struct raw_tcp_config *raw;
};

/* One direction of the floor over TCP, as one side sees it. */
struct flow {
    int fd;
    bool is_sender;
    uint64_t in_bytes;
    uint64_t out_bytes;
};

struct ends {
    struct pair *pair;
    const struct settings *settings;
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

    pair_check(rdt_endpoint_write(e->pair->ep, e->src, e->settings->len_bytes, &e->remote, 0, 1,
                                  &transfer, &err),
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
    uint64_t to_take = e->receives ? count : 0;
    rdt_transfer *in_flight[MAX_DEPTH];
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
    const struct settings *settings = e->settings;
    const int side = e->pair->side;
    char *to = settings->floor + (size_t)side * settings->len_bytes;

    e->counted += count;
    for (uint64_t i = e->sends ? count : 0; i > 0; i--) {
        memcpy(to, e->src, settings->len_bytes);
        /* release: pairs with bench_await() opposite */
        atomic_store_explicit(&e->pair->board->ping[side][BOARD_COUNT], e->counted - i + 1,
                              memory_order_release);
    }
    if (e->receives)
        bench_await(&e->pair->board->ping[1 - side][BOARD_COUNT], e->counted, "the other side");
}

/* ---- The floor over TCP ------------------------------------------------------------------ */

/* Bytes that the flow may put on the wire now, and those that it still waits for. */
static uint64_t
out_limit(const struct flow *flow, const struct settings *settings, uint64_t count)
{
    const uint64_t len_bytes = settings->len_bytes;
    const uint64_t answered = flow->in_bytes / ANSWER_BYTES;

    if (!flow->is_sender)
        return flow->in_bytes / len_bytes * ANSWER_BYTES;
    return len_bytes * (count < answered + settings->depth ? count : answered + settings->depth);
}

static uint64_t
in_total(const struct flow *flow, const struct settings *settings, uint64_t count)
{
    return count * (flow->is_sender ? ANSWER_BYTES : settings->len_bytes);
}

static uint64_t
moved(ssize_t n, const char *call)
{
    if (n == 0)
        errno = ECONNRESET;
    if (n == 0 || (n < 0 && errno != EAGAIN))
        bench_die(call);
    return n < 0 ? 0 : (uint64_t)n;
}

/* What goes without waiting; messages of all count lie in one place. */
static uint64_t
pump(struct flow *flow, const struct ends *e, uint64_t count, char *dst)
{
    static char answers[4096];
    const struct settings *settings = e->settings;
    const uint64_t len_bytes = settings->len_bytes;
    const uint64_t in_left = in_total(flow, settings, count) - flow->in_bytes;
    const uint64_t place = flow->is_sender ? 0 : flow->in_bytes % len_bytes;
    const uint64_t room = flow->is_sender ? sizeof(answers) : len_bytes - place;
    uint64_t in = 0;
    uint64_t out = 0;

    if (in_left > 0)
        in = moved(recv(flow->fd, flow->is_sender ? answers : dst + place,
                        (size_t)(in_left < room ? in_left : room), MSG_DONTWAIT),
                   "recv");
    flow->in_bytes += in;
    const uint64_t out_left = out_limit(flow, settings, count) - flow->out_bytes;
    const uint64_t from = flow->is_sender ? flow->out_bytes % len_bytes : 0;
    const uint64_t more = flow->is_sender ? len_bytes - from : sizeof(answers);
    if (out_left > 0)
        out = moved(send(flow->fd, flow->is_sender ? e->src + from : answers,
                         (size_t)(out_left < more ? out_left : more), MSG_DONTWAIT | MSG_NOSIGNAL),
                    "send");
    flow->out_bytes += out;
    return in + out;
}

static bool
is_over(const struct flow *flow, const struct settings *settings, uint64_t count)
{
    const uint64_t answers = flow->is_sender ? settings->len_bytes : ANSWER_BYTES;

    return flow->in_bytes == in_total(flow, settings, count) && flow->out_bytes == count * answers;
}

static void
sleep_for(const struct flow *flows, size_t n, const struct settings *settings, uint64_t count)
{
    struct pollfd polled[2];

    for (size_t i = 0; i < n; i++) {
        const bool has_more = out_limit(&flows[i], settings, count) > flows[i].out_bytes;

        polled[i] = (struct pollfd){.fd = is_over(&flows[i], settings, count) ? -1 : flows[i].fd,
                                    .events = (short)(has_more ? POLLIN | POLLOUT : POLLIN)};
    }
    if (poll(polled, n, POLL_MS) == 0)
        bench_fail("nothing moves over the sockets");
}

static void
move_sockets(struct ends *e, uint64_t count, char *dst)
{
    const struct settings *settings = e->settings;
    struct flow flows[2];
    size_t n = 0;

    for (int from = 0; from < 2; from++) {
        const bool is_sender = e->pair->side == from;

        if (is_sender ? e->sends : e->receives)
            flows[n++] = (struct flow){.fd = e->raw[from].fds[0], .is_sender = is_sender};
    }
    for (uint64_t idle = 0;;) {
        uint64_t some = 0;
        bool is_done = true;

        for (size_t i = 0; i < n; i++) {
            some += pump(&flows[i], e, count, dst);
            is_done = is_done && is_over(&flows[i], settings, count);
        }
        if (is_done)
            return;
        idle = some > 0 ? 0 : idle + 1;
        /* who spins looks at the clock, through poll(), once in a while */
        if (idle > 0 && (settings->sleeps || idle % (1 << 20) == 0))
            sleep_for(flows, n, settings, count);
    }
}

static void
move_floor(struct ends *e, uint64_t count, char *dst)
{
    if (strcmp(e->settings->transport, "tcp") == 0)
        move_sockets(e, count, dst);
    else
        move_memcpy(e, count);
}

/* ---- Samples ----------------------------------------------------------------------------- */

static void (*const moves[CONTESTANTS])(struct ends *e, uint64_t count, char *dst) = {move_ours,
                                                                                      move_floor};
static const char *const names[CONTESTANTS] = {"ours", "floor"};

/* Both sides are here; spins, so that both go on at once. */
static void
meet(struct ends *e, size_t word)
{
    _Atomic uint64_t (*ping)[32] = e->pair->board->ping;

    /* release: pairs with the acquire in bench_await() opposite */
    atomic_store_explicit(&ping[e->pair->side][word], e->samples, memory_order_release);
    bench_await(&ping[1 - e->pair->side][word], e->samples, "the other side");
}

/* Returns ns of all messages of one direction; cpu[side] grows by what each side spent. */
static uint64_t
sample(struct ends *e, size_t contestant, uint64_t count, char *dst, uint64_t cpu[2])
{
    _Atomic uint64_t (*ping)[32] = e->pair->board->ping;
    const int side = e->pair->side;

    e->samples++;
    meet(e, BOARD_START);
    const uint64_t start_ns = bench_now_ns();
    const uint64_t start_cpu_ns = bench_spent_now().cpu_ns;
    moves[contestant](e, count, dst);
    const uint64_t spent_ns = bench_spent_now().cpu_ns - start_cpu_ns;
    /* relaxed: meet() publishes it */
    atomic_store_explicit(&ping[side][BOARD_CPU_NS], spent_ns, memory_order_relaxed);
    meet(e, BOARD_END);
    const uint64_t took_ns = bench_now_ns() - start_ns;
    for (int k = 0; k < 2; k++) /* before the other side can come to its next sample's end */
        cpu[k] += atomic_load_explicit(&ping[k][BOARD_CPU_NS], memory_order_relaxed);
    return took_ns;
}

static void
verify(struct ends *e)
{
    const size_t len_bytes = e->settings->len_bytes;
    const int side = e->pair->side;
    uint64_t cpu[2];

    for (size_t i = 0; i < CONTESTANTS; i++) {
        const uint64_t seed = 2 * i;
        char *dst = rdt_region_addr(e->region);
        const bool is_memcpy = i == FLOOR && strcmp(e->settings->transport, "tcp") != 0;
        const char *found = is_memcpy ? e->settings->floor + (size_t)(1 - side) * len_bytes : dst;

        bench_fill(e->src, len_bytes, seed + (uint64_t)side);
        (void)sample(e, i, 1, dst, cpu);
        if (e->receives)
            bench_verify(found, len_bytes, seed + 1 - (uint64_t)side, names[i]);
    }
}

static void
open_socket(struct ends *e, int from)
{
    struct pair *p = e->pair;
    struct sockaddr_in addr;

    if (p->side == from) {
        const int listener = raw_tcp_listen(e->settings->raw, &addr);

        memcpy(p->board->scratch, &addr, sizeof(addr));
        pair_barrier(p);
        raw_tcp_accept(&e->raw[from], e->settings->raw, listener);
        (void)close(listener);
    } else {
        pair_barrier(p);
        memcpy(&addr, p->board->scratch, sizeof(addr));
        raw_tcp_connect(&e->raw[from], e->settings->raw, &addr);
    }
    pair_barrier(p);
}

static void
open_ends(struct ends *e, struct pair *p)
{
    const struct settings *settings = p->arg;

    *e = (struct ends){.pair = p,
                       .settings = settings,
                       .sends = p->side == 0 || settings->is_both,
                       .receives = p->side == 1 || settings->is_both};
    for (int side = 0; side < 2; side++) {
        /* a side that receives nothing offers a byte, for the sake of the meeting */
        if (p->side == side)
            e->region = pair_offer(p, e->receives ? settings->len_bytes : 1);
        else
            e->remote = pair_take_offer(p);
        pair_barrier(p);
        if (strcmp(settings->transport, "tcp") == 0)
            open_socket(e, side);
    }
    e->src = bench_map(settings->len_bytes, MAP_PRIVATE);
}

static void
close_ends(struct ends *e)
{
    pair_barrier(e->pair);
    if (strcmp(e->settings->transport, "tcp") == 0)
        for (int i = 0; i < 2; i++)
            raw_tcp_close(&e->raw[i]);
    rdt_region_free(e->region, NULL, NULL);
    (void)munmap(e->src, e->settings->len_bytes);
}

static void
report(struct bench_series *ns, const struct settings *settings, const uint64_t cpu[2])
{
    const double bytes = (double)settings->len_bytes * (double)settings->count *
                         (double)settings->rounds * (settings->is_both ? 2 : 1);
    char fields[320];

    (void)snprintf(fields, sizeof(fields),
                   "\"transport\": \"%s\", \"wait\": \"%s\", \"size\": %zu, \"depth\": %llu, "
                   "\"both\": %s, \"count\": %llu, \"first_cpu_s_per_gb\": %.6f, "
                   "\"second_cpu_s_per_gb\": %.6f",
                   settings->transport, settings->sleeps ? "sleep" : "spin", settings->len_bytes,
                   (unsigned long long)settings->depth, settings->is_both ? "true" : "false",
                   (unsigned long long)settings->count, (double)cpu[0] / bytes,
                   (double)cpu[1] / bytes);
    bench_series_print(ns, fields);
}

static void
side(struct pair *p)
{
    const struct settings *settings = p->arg;
    struct bench_series ns[CONTESTANTS];
    uint64_t cpu[CONTESTANTS][2] = {0};
    uint64_t unused[2] = {0};
    struct ends e;

    open_ends(&e, p);
    verify(&e);
    for (size_t i = 0; i < CONTESTANTS; i++)
        bench_series_init(&ns[i], names[i], settings->rounds);
    for (size_t round = 0; round < settings->rounds; round++) {
        for (size_t i = 0; i < CONTESTANTS; i++) {
            char *dst = rdt_region_addr(e.region);

            if (settings->count >= 10) /* of few and large ones verify() was enough */
                (void)sample(&e, i, settings->count / 10, dst, unused);
            bench_series_add(&ns[i], sample(&e, i, settings->count, dst, cpu[i]) / settings->count);
        }
    }
    for (size_t i = 0; i < CONTESTANTS; i++) {
        if (p->side == 0)
            report(&ns[i], settings, cpu[i]);
        bench_series_free(&ns[i]);
    }
    close_ends(&e);
}

int
main(int argc, char **argv)
{
    static const char *const known[] = {"--transport=", "--wait=",  "--size=",   "--depth=",
                                        "--both",       "--count=", "--rounds=", NULL};

    bench_name = "streams";
    bench_check_args(argc, argv, known);
    const char *transport = bench_arg(argc, argv, "--transport");
    const char *wait = bench_arg(argc, argv, "--wait");
    if (wait != NULL && strcmp(wait, "sleep") != 0 && strcmp(wait, "spin") != 0)
        bench_fail("--wait is spin or sleep, not \"%s\"", wait);
    const bool sleeps = wait != NULL && strcmp(wait, "sleep") == 0;
    const struct raw_tcp_config raw = {.is_spinning = !sleeps,
                                       .streams = 1,
                                       .chunk_bytes = MAX_BYTES,
                                       .buffer_bytes = BUFFER_BYTES,
                                       .congestion = "reno"}; /* it does not pace */
    struct settings settings = {
        .transport = transport != NULL ? transport : "shm",
        .sleeps = sleeps,
        .is_both = bench_has(argc, argv, "--both"),
        .len_bytes = (size_t)bench_arg_number(argc, argv, "--size", 65536),
        .depth = (uint64_t)bench_arg_number(argc, argv, "--depth", 1),
        .count = (uint64_t)bench_arg_number(argc, argv, "--count", 200),
        .rounds = (size_t)bench_arg_number(argc, argv, "--rounds", 5),
        .raw = &raw,
    };
    if (settings.len_bytes > MAX_BYTES || settings.depth > MAX_DEPTH)
        bench_fail("--size is at most %zu, --depth %d", MAX_BYTES, MAX_DEPTH);
    if (sleeps && strcmp(settings.transport, "tcp") != 0)
        bench_fail("--wait sleep has a floor on tcp only");
    if (strcmp(settings.transport, "tcp") != 0)
        settings.floor = bench_map(2 * settings.len_bytes, MAP_SHARED);
    const struct pair_opts opts = {.transport = settings.transport, .sleeps = sleeps};
    pair_run(&opts, side, side, &settings);
    return 0;
}
