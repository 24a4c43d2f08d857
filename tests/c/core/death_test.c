/* SPDX-License-Identifier: Apache-2.0
 * Peers that die, stop, leave or fork: everybody else learns who it was, soon, and no memory is
 * touched that is not theirs. */
#include <dirent.h>
#include <sys/stat.h>

#include "proc_rig.h"
#include "process/process.h"
#include "rdmatensor_ext.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};

/* The sim is memory of one process: over verbs only where there is a device. */
static int
transport_count(void)
{
    return sim_is_off() ? 3 : 2;
}

static int
by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a;
    const uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Waits for a notification that never comes, and tells why it ended. */
static void
wait_for_end(rdt_endpoint *ep, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    uint32_t value;

    const rdt_status status = rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err);
    proc_tell(fd, status, &err);
}

static void
live_as_peer(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {0};

    (void)rank;
    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    proc_say(fd);
    wait_for_end(ep, fd);
    rdt_endpoint_close(ep);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

static void
begin_pair(struct proc procs[2], const struct proc_opts *opts, proc_fn life)
{
    for (int i = 0; i < 2; i++)
        proc_begin(&procs[i], opts, i, life);
    for (int i = 0; i < 2; i++)
        proc_introduce(&procs[i], &procs[1 - i]);
    for (int i = 0; i < 2; i++)
        proc_hear(procs[i].fd);
}

/* ---- Killed -------------------------------------------------------------------------------- */

TEST_TIMEOUT(a_killed_peer_is_named_at_once, 60)
{
    enum { ROUNDS = 10 };

    for (int t = 0; t < transport_count(); t++) {
        uint64_t took_ns[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            const struct proc_opts opts = {.force = transports[t]};
            struct proc_report report;
            struct proc procs[2];
            begin_pair(procs, &opts, live_as_peer);
            test_sleep_ns((uint64_t)round * 7 * PROC_MS);
            const uint64_t before_ns = test_now_ns();
            CHECK_INT_EQ(proc_end(&procs[0], SIGKILL), -SIGKILL);
            proc_read(procs[1].fd, &report, sizeof(report));
            took_ns[round] = report.at_ns > before_ns ? report.at_ns - before_ns : 0;
            CHECK_INT_EQ(report.status, RDT_EPEER);
            CHECK_INT_EQ(report.rank, 0);
            CHECK_STR_CONTAINS(report.message, "rank 0 died");
            CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
        }
        qsort(took_ns, ROUNDS, sizeof(took_ns[0]), by_value);
        CHECK_UINT_LE(took_ns[ROUNDS / 2], (uint64_t)(100e6 * test_timeout_scale()));
        CHECK_UINT_LE(took_ns[ROUNDS - 1], (uint64_t)(500e6 * test_timeout_scale()));
    }
}

static void
live_until_heard(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdt_remote_region remote;
    rdt_region *region;
    uint32_t value = 0;

    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    check_ok(rdt_region_alloc(ctx, 4096, RDT_REGION_ZERO, &region, &err), &err, "alloc");
    proc_say(fd);
    if (rank == 0) {
        rdt_transfer *transfer;
        memset(rdt_region_addr(region), 7, 4096);
        proc_read(fd, &remote, sizeof(remote));
        check_ok(rdt_endpoint_write(ep, rdt_region_addr(region), 4096, &remote, 0, 7, &transfer,
                                    &err),
                 &err, "write");
        proc_say(fd);
        proc_hear(fd); /* killed here */
        return;
    }
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    proc_write(fd, &remote, sizeof(remote));
    proc_hear(fd);
    rdti_engine_enter(ctx->engine); /* deaf, until the peer has written and is dead */
    proc_say(fd);
    proc_hear(fd);
    rdti_engine_leave(ctx->engine);
    CHECK_STATUS(rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err), RDT_OK);
    CHECK_UINT_EQ(value, 7);
    CHECK_INT_EQ(((const char *)rdt_region_addr(region))[4095], 7);
    CHECK_STATUS(rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err), RDT_EPEER);
    rdt_endpoint_close(ep);
    rdt_region_free(region, NULL, NULL);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

/* The end of its side channel and its last bytes come by different ways. */
TEST(what_a_dead_peer_has_sent_is_heard)
{
    for (int t = 0; t < 2; t++) { /* over verbs nobody knows what is still on its way */
        const struct proc_opts opts = {.force = transports[t]};
        struct rdt_remote_region remote;
        struct proc procs[2];
        begin_pair(procs, &opts, live_until_heard);
        proc_read(procs[1].fd, &remote, sizeof(remote));
        proc_say(procs[1].fd);
        proc_hear(procs[1].fd); /* it is deaf now */
        proc_write(procs[0].fd, &remote, sizeof(remote));
        proc_hear(procs[0].fd);
        CHECK_INT_EQ(proc_end(&procs[0], SIGKILL), -SIGKILL);
        proc_say(procs[1].fd);
        CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
    }
}

/* Rank 1 stands between 0 and 2, which never meet. */
static void
live_between(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *eps[2];
    const int count = rank == 1 ? 2 : 1;

    for (int i = 0; i < count; i++)
        eps[i] = proc_take_peer(ctx, fd);
    proc_say(fd);
    if (rank == 1)
        wait_for_end(eps[0], fd); /* rank 0 */
    proc_hear(fd);
    if (rank == 2) {
        uint8_t address[RDT_ADDRESS_MAX_BYTES];
        size_t address_bytes = 0;
        rdt_endpoint *ep;
        proc_read(fd, &address_bytes, sizeof(address_bytes));
        proc_read(fd, address, address_bytes);
        const rdt_status status =
            proc_open(ctx, address, address_bytes, RDT_RANK_UNKNOWN, &ep, &err);
        proc_tell(fd, status, &err);
    }
    proc_hear(fd);
    for (int i = 0; i < count; i++)
        rdt_endpoint_close(eps[i]);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST(a_death_is_known_where_nobody_was_connected_to_it)
{
    for (int t = 0; t < transport_count(); t++) {
        const struct proc_opts opts = {.force = transports[t]};
        struct proc_report report;
        struct proc procs[3];
        for (int i = 0; i < 3; i++)
            proc_begin(&procs[i], &opts, i, live_between);
        proc_introduce(&procs[0], &procs[1]);
        proc_introduce(&procs[1], &procs[0]);
        proc_introduce(&procs[1], &procs[2]);
        proc_introduce(&procs[2], &procs[1]);
        for (int i = 0; i < 3; i++)
            proc_hear(procs[i].fd);
        CHECK_INT_EQ(proc_end(&procs[0], SIGKILL), -SIGKILL);
        proc_read(procs[1].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.rank, 0);
        test_sleep_ns((uint64_t)(100e6 * test_timeout_scale()));
        proc_say(procs[1].fd);
        proc_say(procs[2].fd);
        proc_write(procs[2].fd, &procs[0].address_bytes, sizeof(procs[0].address_bytes));
        proc_write(procs[2].fd, procs[0].address, procs[0].address_bytes);
        proc_read(procs[2].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.status, RDT_EPEER);
        CHECK_INT_EQ(report.rank, 0);
        CHECK_STR_CONTAINS(report.message, "rank 0 is dead");
        for (int i = 1; i < 3; i++) {
            proc_say(procs[i].fd);
            CHECK_INT_EQ(proc_end(&procs[i], 0), 0);
        }
    }
}

TEST_TIMEOUT(a_death_at_any_point_of_set_up_ends_the_wait, 120)
{
    unsigned seed = 4711;
    int failed = 0;

    for (int round = 0; round < 30; round++) {
        const struct proc_opts opts = {.force = transports[round % transport_count()]};
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct proc proc;
        rdt_context *ctx;
        rdt_endpoint *ep;
        uint32_t value;
        /* The context of the test's own process comes after the fork, and goes with a process,
         * too. */
        proc_begin(&proc, &opts, 1, live_as_peer);
        const pid_t tester = fork();
        if (tester == 0) {
            proc_context(&ctx, &opts, 0);
            check_ok(proc_open(ctx, proc.address, proc.address_bytes, 1, &ep, &err), &err, "open");
            test_sleep_ns((uint64_t)(rand_r(&seed) % 2500) * 1000);
            CHECK(kill(proc.pid, SIGKILL) == 0);
            rdt_status status = rdt_endpoint_wait_ready(ep, 8 * RIG_S, &err);
            const bool is_early = status != RDT_OK;
            if (status == RDT_OK)
                status = rdt_endpoint_wait_notify(ep, 8 * RIG_S, &value, &err);
            CHECK_INT_EQ(status, RDT_EPEER);
            CHECK_INT_EQ(err.peer_rank, 1);
            CHECK_STR_CONTAINS(err.message, "rank 1");
            rdt_endpoint_close(ep);
            check_ok(rdt_context_close(ctx, &err), &err, "context_close");
            _exit(is_early ? 3 : 4);
        }
        (void)rand_r(&seed); /* the child has its own copy */
        int status;
        CHECK(waitpid(tester, &status, 0) == tester);
        CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 3 || WEXITSTATUS(status) == 4));
        failed += WEXITSTATUS(status) == 3;
        CHECK_INT_EQ(proc_end(&proc, 0), -SIGKILL);
    }
    CHECK_MSG(failed > 3, "only %d of the deaths fell into set-up", failed);
}

/* ---- Stopped ------------------------------------------------------------------------------- */

TEST(a_stopped_peer_is_silent_and_named)
{
    for (int t = 0; t < transport_count(); t++) {
        const struct proc_opts opts = {.force = transports[t], .peer_timeout_ns = 1500 * PROC_MS};
        struct proc_report report;
        struct proc procs[2];
        begin_pair(procs, &opts, live_as_peer);
        const uint64_t before_ns = test_now_ns();
        CHECK(kill(procs[0].pid, SIGSTOP) == 0);
        proc_read(procs[1].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.status, RDT_EPEER);
        CHECK_INT_EQ(report.rank, 0);
        CHECK_STR_CONTAINS(report.message, "rank 0 is silent");
        CHECK_UINT_GE(report.at_ns - before_ns, 400 * PROC_MS); /* a heartbeat may be 1 s old */
        CHECK_UINT_LE(report.at_ns - before_ns, (uint64_t)(2500e6 * test_timeout_scale()));
        CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
        CHECK(kill(procs[0].pid, SIGCONT) == 0);
        proc_read(procs[0].fd, &report, sizeof(report)); /* it hears that it was left */
        CHECK_INT_EQ(report.status, RDT_EPEER);
        CHECK_INT_EQ(proc_end(&procs[0], 0), 0);
    }
}

TEST(who_was_stopped_itself_accuses_nobody)
{
    for (int t = 0; t < transport_count(); t++) {
        const struct proc_opts opts = {.force = transports[t], .peer_timeout_ns = 1500 * PROC_MS};
        struct proc procs[2];
        begin_pair(procs, &opts, live_as_peer);
        for (int i = 0; i < 2; i++)
            CHECK(kill(procs[i].pid, SIGSTOP) == 0);
        test_sleep_ns(3500 * PROC_MS);
        for (int i = 0; i < 2; i++)
            CHECK(kill(procs[i].pid, SIGCONT) == 0);
        for (int i = 0; i < 2; i++) {
            struct pollfd pollfd = {.fd = procs[i].fd, .events = POLLIN};
            struct proc_report report;
            if (poll(&pollfd, 1, i == 0 ? 2500 : 1) == 0)
                continue;
            proc_read(procs[i].fd, &report, sizeof(report));
            FAIL("rank %d: %s", i, report.message);
        }
        for (int i = 0; i < 2; i++) /* one that lives sees the other's end, and goes */
            CHECK(kill(procs[i].pid, SIGKILL) == 0);
        for (int i = 0; i < 2; i++)
            (void)proc_end(&procs[i], 0);
    }
}

/* Frees a region that a stopped peer may be writing to, and tells what became of it. */
static void
live_as_owner(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdti_region_stats stats;
    struct rdt_remote_region remote;
    rdt_region *before;
    rdt_region *after;
    uint32_t value;

    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    check_ok(rdt_region_alloc(ctx, 65536, 0, &before, &err), &err, "alloc");
    check_ok(rdt_region_alloc(ctx, 65536, 0, &after, &err), &err, "alloc");
    check_ok(rdt_region_export(before, &remote, &err), &err, "export");
    check_ok(rdt_region_export(after, &remote, &err), &err, "export");
    proc_say(fd);
    if (rank == 0)
        rdt_region_free(before, NULL, NULL); /* while the peer lives: it answers */
    proc_hear(fd);
    rdti_regions_get_stats(ctx->regions, &stats);
    if (rank == 0)
        CHECK_UINT_EQ(stats.quarantine_count, 0);
    CHECK_STATUS(rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err), RDT_EPEER);
    rdt_region_free(after, NULL, NULL);
    rdt_endpoint_close(ep);
    test_sleep_ns(300 * PROC_MS);
    rdti_regions_get_stats(ctx->regions, &stats);
    proc_write(fd, &stats.quarantine_count, sizeof(stats.quarantine_count));
    proc_hear(fd);
    for (int i = 0; i < 200 && stats.quarantine_count > 0; i++) {
        test_sleep_ns(10 * PROC_MS);
        rdti_regions_get_stats(ctx->regions, &stats);
    }
    proc_write(fd, &stats.quarantine_count, sizeof(stats.quarantine_count));
    if (rank != 0)
        rdt_region_free(before, NULL, NULL);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

/* Over shared memory nobody but the stopped process itself ends its writes: given up is not
 * gone. */
TEST(freed_memory_waits_for_a_stopped_writer)
{
    for (int end = 0; end < 2; end++) {
        const struct proc_opts opts = {.force = RDT_TRANSPORT_SHM,
                                       .peer_timeout_ns = 1500 * PROC_MS};
        uint64_t count = 0;
        struct proc procs[2];
        begin_pair(procs, &opts, live_as_owner);
        test_sleep_ns(100 * PROC_MS);
        CHECK(kill(procs[1].pid, SIGSTOP) == 0);
        proc_say(procs[0].fd);
        proc_read(procs[0].fd, &count, sizeof(count));
        CHECK_UINT_GE(count, 1);
        CHECK(kill(procs[1].pid, end == 0 ? SIGCONT : SIGKILL) == 0);
        proc_say(procs[0].fd);
        proc_read(procs[0].fd, &count, sizeof(count));
        CHECK_UINT_EQ(count, 0);
        CHECK_INT_EQ(proc_end(&procs[0], 0), 0);
        if (end == 0)
            CHECK(kill(procs[1].pid, SIGKILL) == 0);
        CHECK_INT_EQ(proc_end(&procs[1], 0), -SIGKILL);
    }
}

/* ---- Left ---------------------------------------------------------------------------------- */

static void
live_and_leave(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {0};
    rdt_endpoint *ep = proc_take_peer(ctx, fd);

    proc_say(fd);
    if (rank == 1)
        wait_for_end(ep, fd);
    else
        proc_hear(fd);
    rdt_endpoint_close(ep);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST(a_peer_that_leaves_did_not_die)
{
    for (int t = 0; t < transport_count(); t++) {
        const struct proc_opts opts = {.force = transports[t]};
        struct proc_report report;
        struct proc procs[2];
        begin_pair(procs, &opts, live_and_leave);
        proc_say(procs[0].fd);
        proc_read(procs[1].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.status, RDT_EPEER);
        CHECK_STR_CONTAINS(report.message, "rank 0 left");
        for (int i = 0; i < 2; i++)
            CHECK_INT_EQ(proc_end(&procs[i], 0), 0);
    }
}

/* It neither answers a goodbye nor closes its half, and its silence is not long enough to be death:
 * who leaves does not stay for it, and that is no failure of its own. */
TEST(who_leaves_a_stopped_peer_leaves)
{
    for (int t = 0; t < transport_count(); t++) {
        const struct proc_opts opts = {.force = transports[t], .peer_timeout_ns = 20 * RIG_S};
        struct proc_report report;
        struct proc procs[2];
        begin_pair(procs, &opts, live_and_leave);
        CHECK(kill(procs[1].pid, SIGSTOP) == 0);
        proc_say(procs[0].fd);
        CHECK_INT_EQ(proc_end(&procs[0], 0), 0);
        CHECK(kill(procs[1].pid, SIGCONT) == 0);
        proc_read(procs[1].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.status, RDT_EPEER);
        CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
    }
}

/* ---- Memory of the dead --------------------------------------------------------------------- */

static const struct rdt_tensor_desc big_desc = {.struct_size = sizeof(big_desc),
                                                .kind = RDT_SLOT_STATIC,
                                                .dtype = RDT_U8,
                                                .ndim = 1,
                                                .dims = {1 << 20}};

static void
live_in_a_buffer(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    rdt_slot_tx *tx;
    rdt_slot *slot;
    uint32_t value;
    void *buffer;

    if (rank == 0) {
        check_ok(rdt_slot_create(ep, "acts", &big_desc, &slot, &err), &err, "slot_create");
        proc_say(fd);
        proc_hear(fd); /* never comes */
        return;
    }
    check_ok(rdt_slot_tx_open(ep, "acts", &big_desc, 5 * RIG_S, &tx, &err), &err, "tx_open");
    check_ok(rdt_slot_tx_buffer(tx, 5 * RIG_S, &buffer, &err), &err, "buffer");
    proc_say(fd);
    CHECK_STATUS(rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err), RDT_EPEER);
    test_sleep_ns(100 * PROC_MS);
    memset(buffer, 7, 1 << 20); /* the tensor is being born still: no SIGSEGV, no SIGBUS */
    CHECK_STATUS(rdt_slot_tx_post(tx, NULL, NULL, &err), RDT_EPEER);
    CHECK_INT_EQ(err.peer_rank, 0);
    rdt_slot_tx_destroy(tx);
    rdt_endpoint_close(ep);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

TEST(a_mapped_buffer_outlives_its_owner)
{
    const struct proc_opts opts = {.force = RDT_TRANSPORT_SHM};
    struct proc procs[2];

    begin_pair(procs, &opts, live_in_a_buffer);
    CHECK_INT_EQ(proc_end(&procs[0], SIGKILL), -SIGKILL);
    CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
}

/* ---- Forked -------------------------------------------------------------------------------- */

static void
check_child(rdt_context *ctx, rdt_endpoint *ep, rdt_region *region, rdt_transfer *t)
{
    struct rdt_error err = {0};
    struct rdt_remote_region remote = {0};
    uint8_t buf[64];
    size_t len;
    uint32_t value;
    rdt_context *other;
    rdt_slot *slot;
    void *addr;

    CHECK_STATUS(rdt_endpoint_write(ep, buf, 1, &remote, 0, 1, NULL, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_endpoint_read(ep, buf, 1, &remote, 0, &t, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_endpoint_wait_notify(ep, RIG_S, &value, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_endpoint_wait_ready(ep, RIG_S, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_endpoint_map(ep, &remote, &addr, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_slot_create(ep, "x", &big_desc, &slot, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_region_alloc(ctx, 64, 0, &region, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_region_export(region, &remote, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_context_describe(ctx, (char *)buf, sizeof(buf), &len, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_context_progress(ctx), RDT_EFORKED);
    CHECK_STATUS(rdt_transfer_wait(t, RIG_S, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_context_close(ctx, &err), RDT_EFORKED);
    CHECK_STATUS(rdt_context_open(&(struct rdt_context_opts){.struct_size =
                                                                 sizeof(struct rdt_context_opts)},
                                  &other, &err),
                 RDT_EFORKED);
    CHECK_INT_EQ(rdt_context_fd(ctx), -1);
    rdt_transfer_on_done(t, free, NULL);
    rdt_transfer_finish(t, RDT_OK, NULL);
    rdt_transfer_free(t);
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(ep);
}

/* A child that keeps one of these open keeps a peer from seeing its parent's end. */
static void
check_no_sockets(const int *allowed, int allowed_count)
{
    DIR *dir = opendir("/proc/self/fd");
    const struct dirent *entry;

    CHECK(dir != NULL);
    while ((entry = readdir(dir)) != NULL) {
        const int fd = atoi(entry->d_name);
        char target[128] = "";
        char path[64];
        bool is_allowed = false;
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof(target) - 1) < 0)
            continue;
        for (int i = 0; i < allowed_count; i++)
            is_allowed = is_allowed || allowed[i] == fd;
        const bool is_ours = strstr(target, "socket:") != NULL ||
                             strstr(target, "[eventpoll]") != NULL ||
                             strstr(target, "[pidfd]") != NULL;
        CHECK_MSG(is_allowed || !is_ours, "descriptor %d is %s", fd, target);
    }
    (void)closedir(dir);
}

static void
live_and_fork(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    rdt_region *region;
    rdt_transfer *t;
    int status;

    if (rank == 1) {
        proc_say(fd);
        wait_for_end(ep, fd);
        return;
    }
    check_ok(rdt_region_alloc(ctx, 4096, 0, &region, &err), &err, "alloc");
    check_ok(rdt_transfer_create(ctx, &t, &err), &err, "transfer_create");
    const pid_t checker = fork();
    if (checker == 0) {
        check_no_sockets(&fd, 1);
        check_child(ctx, ep, region, t);
        exit(0); /* with exit handlers, as Python's workers do */
    }
    CHECK(waitpid(checker, &status, 0) == checker);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    const pid_t worker = fork();
    if (worker == 0) {
        test_sleep_ns(5 * RIG_S); /* outlives its parent */
        _exit(0);
    }
    proc_write(fd, "r", 1);
    proc_write(fd, &worker, sizeof(worker));
    test_sleep_ns(60 * RIG_S);
}

TEST(a_forked_worker_does_not_hide_its_parents_death)
{
    for (int t = 0; t < transport_count(); t++) {
        const struct proc_opts opts = {.force = transports[t]};
        struct proc_report report;
        struct proc procs[2];
        pid_t worker;
        begin_pair(procs, &opts, live_and_fork);
        proc_read(procs[0].fd, &worker, sizeof(worker));
        const uint64_t before_ns = test_now_ns();
        CHECK_INT_EQ(proc_end(&procs[0], SIGKILL), -SIGKILL);
        proc_read(procs[1].fd, &report, sizeof(report));
        CHECK_INT_EQ(report.rank, 0);
        CHECK_UINT_LE(report.at_ns - before_ns, (uint64_t)(500e6 * test_timeout_scale()));
        CHECK(kill(worker, 0) == 0); /* it lived all the while */
        CHECK(kill(worker, SIGKILL) == 0);
        CHECK_INT_EQ(proc_end(&procs[1], 0), 0);
    }
}

TEST_MAIN()
