/* SPDX-License-Identifier: Apache-2.0
 * Two connected processes; see pair.h. */
#include "pair.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

static const uint8_t secret[32] = "benchmarks hide nothing";
static const char job_id[] = "bench";

void
pair_check(rdt_status status, const struct rdt_error *err, const char *call)
{
    if (status != RDT_OK)
        bench_fail("%s: %s: %s", call, rdt_status_name(status), err->message);
}

static uint32_t
transport_number(const struct pair_opts *opts)
{
    if (strcmp(opts->transport, "shm") == 0)
        return RDT_TRANSPORT_SHM;
    if (strcmp(opts->transport, "tcp") == 0)
        return RDT_TRANSPORT_TCP;
    if (strcmp(opts->transport, "verbs") == 0)
        return RDT_TRANSPORT_VERBS;
    bench_fail("no transport is called \"%s\"", opts->transport);
}

rdt_context *
pair_open_context(const struct pair_opts *opts, int rank)
{
    const struct rdt_context_opts context_opts = {
        .struct_size = sizeof(context_opts),
        .force_transport = transport_number(opts),
        .loopback_only = 1,
        .local_ranks = opts->sleeps ? RDT_LOCAL_RANKS_SLEEP : 2,
        .timeout_ns = PAIR_TIMEOUT_NS,
    };
    struct rdt_error err;
    rdt_context *ctx;

    pair_check(rdt_context_open(&context_opts, &ctx, &err), &err, "rdt_context_open");
    pair_check(rdt_context_add_job(ctx, job_id, secret, sizeof(secret), 0, rank, &err), &err,
               "rdt_context_add_job");
    return ctx;
}

static rdt_endpoint *
open_endpoint(rdt_context *ctx, const uint8_t *address, size_t address_bytes, int peer_rank)
{
    const struct rdt_endpoint_opts endpoint_opts = {.struct_size = sizeof(endpoint_opts),
                                                    .peer_rank = peer_rank,
                                                    .job_id = job_id};
    struct rdt_error err;
    rdt_endpoint *ep;

    pair_check(rdt_endpoint_open(ctx, address, address_bytes, &endpoint_opts, &ep, &err), &err,
               "rdt_endpoint_open");
    return ep;
}

static void
require_transport(const struct pair_opts *opts, rdt_endpoint *ep)
{
    if (rdt_endpoint_transport(ep) != transport_number(opts))
        bench_fail("wanted %s, the endpoint is over transport %u", opts->transport,
                   rdt_endpoint_transport(ep));
}

/* Until `*word` differs from `expected`, or a while has passed. */
static void
sleep_on(_Atomic uint32_t *word, uint32_t expected)
{
    const struct timespec a_while = {.tv_nsec = 100000000};

    if (syscall(SYS_futex, word, FUTEX_WAIT, expected, &a_while, NULL, 0) != 0 && errno != EAGAIN &&
        errno != ETIMEDOUT && errno != EINTR)
        bench_die("futex");
}

void
pair_barrier(struct pair *p)
{
    _Atomic uint32_t *own = &p->board->arrived[p->side];
    _Atomic uint32_t *others = &p->board->arrived[1 - p->side];
    const uint32_t round = ++p->barriers;
    const uint64_t deadline_ns = bench_now_ns() + 2 * PAIR_TIMEOUT_NS;
    uint32_t seen;

    /* release: pairs with the acquire below, on the other side */
    atomic_store_explicit(own, round, memory_order_release);
    if (syscall(SYS_futex, own, FUTEX_WAKE, 1, NULL, NULL, 0) < 0)
        bench_die("futex");
    while ((seen = atomic_load_explicit(others, memory_order_acquire)) < round) {
        sleep_on(others, seen);
        if (bench_now_ns() > deadline_ns)
            bench_fail("side %d: the other side does not arrive", p->side);
    }
}

void
pair_meet(struct pair *p, size_t word, uint64_t value)
{
    _Atomic uint64_t (*ping)[32] = p->board->ping;

    /* release: pairs with the acquire in bench_await() opposite */
    atomic_store_explicit(&ping[p->side][word], value, memory_order_release);
    bench_await(&ping[1 - p->side][word], value, "the other side");
}

static void
connect_sides(struct pair *p, const struct pair_opts *opts)
{
    struct pair_board *board = p->board;
    const int other = 1 - p->side;
    struct rdt_error err;

    pair_check(rdt_context_address(p->ctx, board->address[p->side], RDT_ADDRESS_MAX_BYTES,
                                   &board->address_bytes[p->side], &err),
               &err, "rdt_context_address");
    pair_barrier(p);
    const uint64_t start_ns = bench_now_ns();
    p->ep = open_endpoint(p->ctx, board->address[other], board->address_bytes[other], other);
    pair_check(rdt_endpoint_wait_ready(p->ep, PAIR_TIMEOUT_NS, &err), &err,
               "rdt_endpoint_wait_ready");
    p->connect_ns = bench_now_ns() - start_ns;
    require_transport(opts, p->ep);
}

static void
run_side(struct pair *p, const struct pair_opts *opts, pair_side_fn side)
{
    struct rdt_error err;

    const uint64_t start_ns = bench_now_ns();
    p->ctx = pair_open_context(opts, p->side);
    p->open_ns = bench_now_ns() - start_ns;
    connect_sides(p, opts);
    if (!bench_pin(p->side))
        bench_die("sched_setaffinity");
    pair_barrier(p);
    side(p);
    pair_barrier(p);
    rdt_endpoint_close(p->ep);
    pair_check(rdt_context_close(p->ctx, &err), &err, "rdt_context_close");
}

void
pair_run(const struct pair_opts *opts, pair_side_fn first, pair_side_fn second, const void *arg)
{
    struct pair p = {.board = bench_map(PAIR_BOARD_BYTES, MAP_SHARED), .arg = arg};
    const pid_t parent = getpid();
    int status;

    _Static_assert(sizeof(struct pair_board) <= PAIR_BOARD_BYTES, "the board fits");
    if (bench_cores() < 2) {
        (void)fprintf(stderr, "%s: needs 2 cores\n", bench_name);
        exit(BENCH_EXIT_SKIP);
    }
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child < 0)
        bench_die("fork");
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
            bench_fail("the first process is gone");
        p.side = 1;
        run_side(&p, opts, second);
        exit(0);
    }
    run_side(&p, opts, first);
    if (waitpid(child, &status, 0) != child || status != 0)
        bench_fail("the second process failed");
    (void)munmap(p.board, PAIR_BOARD_BYTES);
}

rdt_region *
pair_offer(struct pair *p, uint64_t len_bytes)
{
    struct rdt_remote_region remote;
    struct rdt_error err;
    rdt_region *region;

    pair_check(rdt_region_alloc(p->ctx, len_bytes, RDT_REGION_ZERO, &region, &err), &err,
               "rdt_region_alloc");
    pair_check(rdt_region_export(region, &remote, &err), &err, "rdt_region_export");
    rdt_remote_region_encode(&remote, p->board->remote[p->side]);
    pair_barrier(p);
    return region;
}

struct rdt_remote_region
pair_take_offer(struct pair *p)
{
    struct rdt_remote_region remote;
    struct rdt_error err;

    pair_barrier(p);
    pair_check(rdt_remote_region_decode(p->board->remote[1 - p->side], RDT_REMOTE_REGION_BYTES,
                                        &remote, &err),
               &err, "rdt_remote_region_decode");
    return remote;
}

void
pair_finish(rdt_transfer *transfer)
{
    struct rdt_error err;

    pair_check(rdt_transfer_wait(transfer, PAIR_TIMEOUT_NS, &err), &err, "rdt_transfer_wait");
    rdt_transfer_free(transfer);
}

void
pair_write(struct pair *p, const void *src, uint64_t len_bytes, const struct rdt_remote_region *dst,
           uint64_t dst_off, uint32_t notify)
{
    rdt_transfer *transfer;
    struct rdt_error err;

    pair_check(rdt_endpoint_write(p->ep, src, len_bytes, dst, dst_off, notify, &transfer, &err),
               &err, "rdt_endpoint_write");
    pair_finish(transfer);
}

uint32_t
pair_wait_notify(struct pair *p)
{
    struct rdt_error err;
    uint32_t value;

    pair_check(rdt_endpoint_wait_notify(p->ep, PAIR_TIMEOUT_NS, &value, &err), &err,
               "rdt_endpoint_wait_notify");
    return value;
}

struct rdt_counters
pair_counters(struct pair *p)
{
    struct rdt_counters counters = {.struct_size = sizeof(counters)};

    rdt_context_counters(p->ctx, &counters);
    return counters;
}
