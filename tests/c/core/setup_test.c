/* SPDX-License-Identifier: Apache-2.0
 * Set-up of endpoints: crossing connections, many at once, settings, refusals, and that nothing is
 * left. */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>

#include "base/log.h"
#include "pair_rig.h"
#include "process/process.h"
#include "wire/address.h"
#include "rdmatensor_ext.h"

static const uint32_t transports[] = {RDT_TRANSPORT_AUTO, RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP,
                                      RDT_TRANSPORT_VERBS};

#define MS UINT64_C(1000000)

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* ---- Crossing connections ------------------------------------------------------------------- */

struct opener {
    rdt_context *from;
    rdt_context *to;
    pthread_barrier_t *barrier;
    rdt_endpoint *ep;
    int32_t to_rank;
};

static void *
open_at_once(void *arg)
{
    struct opener *opener = arg;
    struct rdt_error err = {0};

    (void)pthread_barrier_wait(opener->barrier);
    endpoint_make(opener->from, opener->to, opener->to_rank, &opener->ep);
    check_ok(rdt_endpoint_wait_ready(opener->ep, 15 * RIG_S, &err), &err, "wait_ready");
    return NULL;
}

/* Proves that both ends belong to one connection. */
static void
check_talks(const struct pair *pair, uint32_t value)
{
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    rdt_transfer *t;
    uint32_t got = 0;

    for (int i = 0; i < 2; i++) {
        check_ok(rdt_region_alloc(pair->ctx[1 - i], 64, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        check_ok(rdt_endpoint_write(pair->ep[i], &value, 4, &remote, 0, value, &t, &err), &err,
                 "write");
        check_ok(rdt_endpoint_wait_notify(pair->ep[1 - i], 10 * RIG_S, &got, &err), &err, "notify");
        CHECK_UINT_EQ(got, value);
        check_ok(rdt_transfer_wait(t, 10 * RIG_S, &err), &err, "transfer_wait");
        rdt_transfer_free(t);
        rdt_region_free(region, NULL, NULL);
    }
}

static void
cross(uint32_t force, uint32_t rounds, uint64_t median_ns)
{
    uint64_t *took_ns = calloc(rounds, sizeof(*took_ns));
    pthread_barrier_t barrier;
    struct pair pair;

    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    for (int i = 0; i < 2; i++)
        context_make(&pair.ctx[i], force, "secret", i);
    for (uint32_t round = 0; round < rounds; round++) {
        struct opener openers[2];
        pthread_t thread;
        for (int i = 0; i < 2; i++)
            openers[i] = (struct opener){.from = pair.ctx[i],
                                         .to = pair.ctx[1 - i],
                                         .to_rank = 1 - i,
                                         .barrier = &barrier};
        CHECK(pthread_create(&thread, NULL, open_at_once, &openers[0]) == 0);
        const uint64_t before_ns = test_now_ns();
        (void)open_at_once(&openers[1]);
        (void)pthread_join(thread, NULL);
        took_ns[round] = test_now_ns() - before_ns;
        for (int i = 0; i < 2; i++)
            pair.ep[i] = openers[i].ep;
        check_talks(&pair, round & 0xffff);
        /* A path that was not needed is no way out of a crossing. */
        const uint32_t want = force == RDT_TRANSPORT_AUTO ? RDT_TRANSPORT_SHM : force;
        for (int i = 0; i < 2; i++)
            CHECK_UINT_EQ(rdt_endpoint_transport(pair.ep[i]), want);
        for (int i = 0; i < 2; i++)
            rdt_endpoint_close(pair.ep[i]);
    }
    qsort(took_ns, rounds, sizeof(*took_ns), by_value);
    CHECK_UINT_LE(took_ns[rounds / 2], (uint64_t)((double)median_ns * test_timeout_scale()));
    free(took_ns);
    for (int i = 0; i < 2; i++)
        CHECK_STATUS(rdt_context_close(pair.ctx[i], NULL), RDT_OK);
}

TEST_TIMEOUT(crossing_connections_leave_exactly_one, 120)
{
    for (int t = 0; t < 4; t++)
        cross(transports[t], 500 / TEST_TSAN_SHARE, 15 * MS);
}

/* ---- Many ---------------------------------------------------------------------------------- */

TEST_TIMEOUT(one_context_has_128_endpoints, 60)
{
    enum { COUNT = 128 };

    for (int t = 1; t < 4; t++) {
        struct rdt_error err = {0};
        rdt_context *hub;
        rdt_context *others[COUNT];
        rdt_endpoint *out[COUNT];
        rdt_endpoint *in[COUNT];
        context_make(&hub, transports[t], "secret", 1000);
        for (int i = 0; i < COUNT; i++)
            context_make(&others[i], transports[t], "secret", i);
        for (int i = 0; i < COUNT; i++) { /* half of them cross */
            endpoint_make(hub, others[i], i, &out[i]);
            if (i % 2 == 0)
                endpoint_make(others[i], hub, 1000, &in[i]);
        }
        for (int i = 0; i < COUNT; i++) {
            check_ok(rdt_endpoint_wait_ready(out[i], 15 * RIG_S, &err), &err, "wait_ready");
            if (i % 2 == 0)
                check_ok(rdt_endpoint_wait_ready(in[i], 15 * RIG_S, &err), &err, "wait_ready");
        }
        for (int i = 0; i < COUNT; i++) {
            rdt_endpoint_close(out[i]);
            if (i % 2 == 0)
                rdt_endpoint_close(in[i]);
        }
        check_ok(rdt_context_close(hub, &err), &err, "context_close");
        for (int i = 0; i < COUNT; i++)
            check_ok(rdt_context_close(others[i], &err), &err, "context_close");
    }
}

/* ---- Refusals ------------------------------------------------------------------------------ */

static rdt_status
open_with(rdt_context *from, rdt_context *to, const char *job, struct rdt_error *err)
{
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                           .peer_rank = RDT_RANK_UNKNOWN,
                                           .job_id = job};
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    size_t address_bytes = 0;
    rdt_endpoint *ep;

    check_ok(rdt_context_address(to, address, sizeof(address), &address_bytes, err), err,
             "address");
    rdt_status status = rdt_endpoint_open(from, address, address_bytes, &opts, &ep, err);
    if (status != RDT_OK)
        return status;
    status = rdt_endpoint_wait_ready(ep, 10 * RIG_S, err);
    rdt_endpoint_close(ep);
    return status;
}

TEST(a_skew_is_an_error_that_names_both)
{
    for (int t = 1; t < 4; t++) {
        struct rdt_error err = {0};
        rdt_context *ctx[2];
        for (int i = 0; i < 2; i++)
            context_make(&ctx[i], transports[t], "secret", i);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_add_job(ctx[i], "other", (const uint8_t *)"x", 1, i == 0 ? 7 : 8,
                                         i, &err),
                     &err, "add_job");
        CHECK_STATUS(open_with(ctx[0], ctx[1], "other", &err), RDT_EMISMATCH);
        CHECK_STR_CONTAINS(err.message, "epoch 7 at rank 0 and in 8 at rank 1");
        check_ok(rdt_context_add_job(ctx[0], "mine", (const uint8_t *)"x", 1, 1, 0, &err), &err,
                 "add_job");
        CHECK_STATUS(open_with(ctx[0], ctx[1], "mine", &err), RDT_EAUTH);
        CHECK_STR_CONTAINS(err.message, "job 'mine' is unknown");
        CHECK_STATUS(open_with(ctx[0], ctx[1], "nobody's", &err), RDT_EINVAL);
        CHECK_STATUS(open_with(ctx[0], ctx[0], "job", &err), RDT_EINVAL);
        CHECK_STATUS(open_with(ctx[0], ctx[1], "job", &err), RDT_OK); /* none of it did harm */
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_close(ctx[i], &err), &err, "context_close");
    }
}

/* Each side comes for another job; there is one connection, and each knows the other by its own
 * rank there. */
TEST(two_jobs_share_a_pair_of_processes)
{
    static const char *const jobs[2] = {"job", "other"};

    for (int t = 0; t < 4; t++) {
        struct rdt_error err = {0};
        struct pair pair;
        for (int i = 0; i < 2; i++) {
            context_make(&pair.ctx[i], transports[t], "secret", i);
            check_ok(rdt_context_add_job(pair.ctx[i], "other", (const uint8_t *)"x", 1, 3, 5 + i,
                                         &err),
                     &err, "add_job");
        }
        for (int i = 0; i < 2; i++) {
            const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts),
                                                   .peer_rank = i == 0 ? 1 : 5,
                                                   .job_id = jobs[i]};
            uint8_t address[RDT_ADDRESS_MAX_BYTES];
            size_t address_bytes = 0;
            check_ok(rdt_context_address(pair.ctx[1 - i], address, sizeof(address), &address_bytes,
                                         &err),
                     &err, "address");
            check_ok(rdt_endpoint_open(pair.ctx[i], address, address_bytes, &opts, &pair.ep[i],
                                       &err),
                     &err, "endpoint_open");
        }
        for (int i = 0; i < 2; i++)
            check_ok(rdt_endpoint_wait_ready(pair.ep[i], 10 * RIG_S, &err), &err, "wait_ready");
        check_talks(&pair, 9);
        pair_close(&pair);
    }
}

TEST(forced_paths_that_differ_are_refused_with_both_names)
{
    struct rdt_error err = {0};
    rdt_context *ctx[2];

    context_make(&ctx[0], RDT_TRANSPORT_SHM, "secret", 0);
    context_make(&ctx[1], RDT_TRANSPORT_TCP, "secret", 1);
    CHECK_STATUS(open_with(ctx[0], ctx[1], "job", &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "forces tcp");
    CHECK(strstr(err.message, "exited") == NULL); /* it answered */
    CHECK_STATUS(open_with(ctx[1], ctx[0], "job", &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "forces shm");
    CHECK(strstr(err.message, "exited") == NULL);
    for (int i = 0; i < 2; i++)
        check_ok(rdt_context_close(ctx[i], &err), &err, "context_close");
}

/* What one side closed, the other must not take for open, however short ago that was. */
TEST(an_endpoint_opens_again_at_once_from_the_other_side)
{
    for (int t = 1; t < 3; t++) {
        struct rdt_error err = {0};
        rdt_context *ctx[2];
        for (int i = 0; i < 2; i++)
            context_make(&ctx[i], transports[t], "secret", i);
        for (int round = 0; round < 50; round++)
            CHECK_OK(open_with(ctx[round % 2], ctx[1 - round % 2], "job", &err), &err);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_close(ctx[i], &err), &err, "context_close");
    }
}

/* ---- Settings ------------------------------------------------------------------------------ */

static rdt_status
try_context(const struct rdt_context_opts *wanted, rdt_context **out, struct rdt_error *err)
{
    struct rdt_context_opts opts = *wanted;

    opts.struct_size = sizeof(opts);
    opts.arena_chunk_bytes = 1 << 20;
    return rdt_context_open(&opts, out, err);
}

static struct rdti_address
address_of(rdt_context *ctx)
{
    struct rdt_error err = {0};
    uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    size_t len = 0;
    struct rdti_address address;

    check_ok(rdt_context_address(ctx, bytes, sizeof(bytes), &len, &err), &err, "address");
    check_ok(rdti_address_decode(bytes, len, &address, &err), &err, "address_decode");
    return address;
}

TEST(ports_stay_in_their_range)
{
    const struct rdt_context_opts opts = {.port_from = 27311,
                                          .port_to = 27312,
                                          .addr = "127.0.0.1",
                                          .force_transport = RDT_TRANSPORT_TCP};
    struct rdt_error err = {0};
    rdt_context *ctx[2];
    rdt_context *third;

    for (int round = 0; round < 3;
         round++) { /* the next job begins where the last one's sockets linger */
        for (int i = 0; i < 2; i++) {
            check_ok(try_context(&opts, &ctx[i], &err), &err, "context_open");
            check_ok(rdt_context_add_job(ctx[i], "job", (const uint8_t *)"s", 1, 1, i, &err), &err,
                     "add_job");
            const struct rdti_address address = address_of(ctx[i]);
            CHECK_UINT_EQ(address.addr_count, 1);
            CHECK_UINT_EQ(address.addrs[0].port, 27311 + (uint64_t)i);
        }
        CHECK_STATUS(try_context(&opts, &third, &err), RDT_EDEVICE);
        CHECK_STR_CONTAINS(err.message, "RDMATENSOR_PORTS=27311-27312: each process");
        CHECK_OK(open_with(ctx[round % 2], ctx[1 - round % 2], "job", &err), &err);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_close(ctx[i], &err), &err, "context_close");
    }
    const struct rdt_context_opts backwards = {.port_from = 5, .port_to = 4};
    CHECK_STATUS(try_context(&backwards, &third, &err), RDT_EINVAL);
}

TEST(only_the_wanted_addresses_are_published)
{
    struct rdt_error err = {0};
    rdt_context *ctx;

    const struct rdt_context_opts loopback = {.loopback_only = 1};
    check_ok(try_context(&loopback, &ctx, &err), &err, "context_open");
    const struct rdti_address address = address_of(ctx);
    CHECK_UINT_GE(address.addr_count, 1);
    for (uint32_t i = 0; i < address.addr_count; i++)
        CHECK(address.addrs[i].is_loopback);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");

    const struct rdt_context_opts by_name = {.ifname = "lo"};
    check_ok(try_context(&by_name, &ctx, &err), &err, "context_open");
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
    const struct rdt_context_opts no_such = {.ifname = "nosuch0"};
    CHECK_STATUS(try_context(&no_such, &ctx, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "RDMATENSOR_IFNAME=nosuch0;");
    CHECK_STR_CONTAINS(err.message, "lo 127.0.0.1");
    const struct rdt_context_opts elsewhere = {.addr = "192.0.2.77"};
    CHECK_STATUS(try_context(&elsewhere, &ctx, &err), RDT_EINVAL);
    CHECK_STR_CONTAINS(err.message, "RDMATENSOR_ADDR=192.0.2.77;");
    const struct rdt_context_opts words = {.addr = "localhost"};
    CHECK_STATUS(try_context(&words, &ctx, &err), RDT_EINVAL);
    struct sim_config no_device = sim_default();
    no_device.device_count = 0;
    sim_begin(&no_device);
    const struct rdt_context_opts verbs = {.force_transport = RDT_TRANSPORT_VERBS};
    CHECK_STATUS(try_context(&verbs, &ctx, &err), RDT_ENOTVIABLE);
}

/* ---- A loop of the program's own ------------------------------------------------------------- */

TEST(a_poll_loop_hears_of_every_transfer)
{
    for (int t = 1; t < 4; t++) {
        struct rdt_error err = {0};
        struct rdt_remote_region remote;
        struct pair pair;
        rdt_region *region;
        uint32_t value = 0;
        pair_open(&pair, transports[t]);
        check_ok(rdt_region_alloc(pair.ctx[1], 4096, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        struct pollfd fd = {.fd = rdt_context_fd(pair.ctx[1]), .events = POLLIN};
        for (uint32_t i = 0; i < 300; i++) {
            rdt_transfer *transfer;
            check_ok(rdt_endpoint_write(pair.ep[0], &i, 4, &remote, 0, i, &transfer, &err), &err,
                     "write");
            while (rdt_endpoint_wait_notify(pair.ep[1], RDT_NO_WAIT, &value, &err) == RDT_EAGAIN) {
                CHECK_MSG(poll(&fd, 1, 5000) == 1, "notification %u was never told", i);
                CHECK_STATUS(rdt_context_progress(pair.ctx[1]), RDT_OK);
            }
            CHECK_UINT_EQ(value, i);
            check_ok(rdt_transfer_wait(transfer, 5 * RIG_S, &err), &err, "transfer_wait");
            rdt_transfer_free(transfer);
        }
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
    }
}

/* ---- Time and children ----------------------------------------------------------------------- */

TEST(the_default_time_out_is_the_contexts)
{
    const struct rdt_context_opts opts = {.timeout_ns = 50 * MS, .loopback_only = 1};
    struct rdt_error err = {0};
    rdt_context *ctx;
    rdt_transfer *t;

    check_ok(try_context(&opts, &ctx, &err), &err, "context_open");
    check_ok(rdt_transfer_create(ctx, &t, &err), &err, "transfer_create");
    CHECK_STATUS(rdt_transfer_wait(t, RDT_TIMEOUT_DEFAULT, &err), RDT_ETIMEDOUT);
    CHECK_STATUS(rdt_context_close(ctx, &err), RDT_EBUSY);
    rdt_transfer_finish(t, RDT_OK, NULL);
    rdt_transfer_free(t);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST(a_context_that_refuses_to_close_goes_on)
{
    for (int t = 1; t < 4; t++) {
        struct rdt_error err = {0};
        struct pair pair;
        rdt_region *region;
        pair_open(&pair, transports[t]);
        CHECK_STATUS(rdt_context_close(pair.ctx[0], &err), RDT_EBUSY); /* an endpoint */
        check_talks(&pair, 1);
        for (int i = 0; i < 2; i++)
            rdt_endpoint_close(pair.ep[i]);
        check_ok(rdt_region_alloc(pair.ctx[0], 64, 0, &region, &err), &err, "alloc");
        CHECK_STATUS(rdt_context_close(pair.ctx[0], &err), RDT_EBUSY); /* a region */
        CHECK_OK(open_with(pair.ctx[1], pair.ctx[0], "job", &err), &err);
        CHECK_OK(open_with(pair.ctx[0], pair.ctx[1], "job", &err), &err);
        rdt_region_free(region, NULL, NULL);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_close(pair.ctx[i], &err), &err, "context_close");
    }
}

struct drain {
    struct rdti_engine *engine;
    _Atomic int calls;
    bool had_lock;
};

static void
on_drained(void *arg)
{
    struct drain *drain = arg;

    drain->had_lock = drain->had_lock || rdti_engine_is_driver(drain->engine);
    (void)atomic_fetch_add(&drain->calls, 1);
}

/* The last acknowledgement comes in by the side channel, under the engine's lock. */
TEST(a_drained_callback_runs_without_a_lock)
{
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    struct pair pair;
    rdt_region *region;
    static char memory[4096];

    pair_open(&pair, RDT_TRANSPORT_SHM);
    struct drain drain = {.engine = pair.ctx[1]->engine};
    for (int i = 1; i <= 300; i++) {
        check_ok(rdt_region_register(pair.ctx[1], memory, sizeof(memory), &region, &err), &err,
                 "register");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        rdt_region_free(region, on_drained, &drain);
        CHECK_EVENTUALLY(atomic_load(&drain.calls) == i, 5);
    }
    CHECK(!drain.had_lock);
    pair_close(&pair);
}

/* ---- Nothing is left ------------------------------------------------------------------------ */

static uint32_t
count_entries(const char *path, const char *part)
{
    DIR *dir = opendir(path);
    const struct dirent *entry;
    uint32_t count = 0;

    if (dir == NULL)
        return 0;
    while ((entry = readdir(dir)) != NULL)
        count += strstr(entry->d_name, part) != NULL;
    (void)closedir(dir);
    return count;
}

TEST(nothing_is_left_after_close)
{
    struct pair pair;

    pair_open(&pair, RDT_TRANSPORT_AUTO); /* what the process keeps from its first context on */
    pair_close(&pair);
    const uint32_t fds = count_entries("/proc/self/fd", "");
    const uint32_t threads = count_entries("/proc/self/task", "");
    for (int t = 0; t < 4; t++) {
        pair_open(&pair, transports[t]);
        check_talks(&pair, 3);
        CHECK_UINT_EQ(count_entries("/dev/shm", "rdmatensor"), 0);
        CHECK_UINT_EQ(count_entries("/tmp", "rdmatensor-"), 0);
        pair_close(&pair);
        CHECK_UINT_EQ(count_entries("/proc/self/fd", ""), fds);
        CHECK_UINT_EQ(count_entries("/proc/self/task", ""), threads);
    }
}

TEST_MAIN()
