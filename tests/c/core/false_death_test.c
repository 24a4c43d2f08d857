/* SPDX-License-Identifier: Apache-2.0
 * Who lives is not called dead: whatever ends a connection besides a death says so. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proc_rig.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};

/* ---- Given up, and back --------------------------------------------------------------------- */

/* Three that know each other; each tells how its connection to `eps[watched]` ended. */
static void
live_as_one_of_three(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    rdt_endpoint *eps[2];
    uint32_t value;

    for (int i = 0; i < 2; i++)
        eps[i] = proc_take_peer(ctx, fd);
    proc_say(fd);
    rdt_status status = rdt_endpoint_wait_notify(eps[rank == 0 ? 1 : 0], 15 * RIG_S, &value, &err);
    proc_tell(fd, status, &err);
    proc_hear(fd);
    err = (struct rdt_error){.peer_rank = RDT_RANK_UNKNOWN};
    status = rdt_endpoint_wait_ready(eps[1], 0, &err);
    proc_tell(fd, status, &err);
    proc_hear(fd);
    for (int i = 0; i < 2; i++)
        rdt_endpoint_close(eps[i]);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
}

static void
check_report(const struct proc *proc, rdt_status status, int32_t rank, const char *words)
{
    struct proc_report report;

    proc_read(proc->fd, &report, sizeof(report));
    CHECK_MSG(report.status == (int32_t)status, "rank %d: %s", (int)proc->rank, report.message);
    if (status == RDT_OK)
        return;
    CHECK_INT_EQ(report.rank, rank);
    CHECK_STR_CONTAINS(report.message, words);
}

TEST_TIMEOUT(who_was_given_up_accuses_nobody_when_it_is_back, 60)
{
    for (int t = 0; t < 2; t++) {
        struct proc procs[3];
        for (int i = 0; i < 3; i++) { /* only rank 1 loses patience */
            const struct proc_opts opts = {.force = transports[t],
                                           .peer_timeout_ns = (i == 1 ? 1500 : 60000) * PROC_MS};
            proc_begin(&procs[i], &opts, i, live_as_one_of_three);
        }
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 3; j++)
                if (i != j)
                    proc_introduce(&procs[i], &procs[j]);
        for (int i = 0; i < 3; i++)
            proc_hear(procs[i].fd);
        CHECK(kill(procs[0].pid, SIGSTOP) == 0);
        check_report(&procs[1], RDT_EPEER, 0, "rank 0 is silent");
        check_report(&procs[2], RDT_EPEER, 0, "rank 0 is silent"); /* as rank 1 says */
        CHECK(kill(procs[0].pid, SIGCONT) == 0);
        check_report(&procs[0], RDT_EPEER, 2, "gave this process up for dead: rank 0 is silent");
        test_sleep_ns((uint64_t)(300e6 * test_timeout_scale()));
        for (int i = 0; i < 3; i++)
            proc_say(procs[i].fd);
        check_report(&procs[0], RDT_EPEER, 2, "gave this process up");
        for (int i = 1; i < 3; i++)
            check_report(&procs[i], RDT_OK, 0, "");
        for (int i = 0; i < 3; i++) {
            proc_say(procs[i].fd);
            CHECK_INT_EQ(proc_end(&procs[i], 0), 0);
        }
    }
}

/* ---- Suspended ------------------------------------------------------------------------------ */

static void
live_through(rdt_context *ctx, int32_t rank, int fd)
{
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
    struct rdt_remote_region remote;
    uint32_t value = 0;

    rdt_endpoint *ep = proc_take_peer(ctx, fd);
    rdt_region *region = proc_trade_region(ctx, fd, &remote);
    proc_hear(fd); /* now: rank 0 is suspended, and rank 1 writes to it and waits for its answer */
    rdt_status status = RDT_OK;
    for (uint32_t i = 0; status == RDT_OK && i < 100; i++) {
        status = rdt_endpoint_write(ep, &i, 4, &remote, 0, i, NULL, &err);
        if (status == RDT_OK)
            status = rdt_endpoint_wait_notify(ep, 15 * RIG_S, &value, &err);
        CHECK(status != RDT_OK || value == i);
    }
    proc_tell(fd, status, &err);
    proc_hear(fd);
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(ep);
    check_ok(rdt_context_close(ctx, &err), &err, "context_close");
    (void)rank;
}

/* For less than what counts as death: it costs its time and nothing else. */
TEST_TIMEOUT(who_is_suspended_for_a_while_goes_on, 60)
{
    for (int t = 0; t < 2; t++) {
        const struct proc_opts opts = {.force = transports[t], .peer_timeout_ns = 30 * RIG_S};
        struct proc procs[2];
        for (int i = 0; i < 2; i++)
            proc_begin(&procs[i], &opts, i, live_through);
        for (int i = 0; i < 2; i++)
            proc_introduce(&procs[i], &procs[1 - i]);
        proc_swap_regions(procs);
        CHECK(kill(procs[0].pid, SIGSTOP) == 0);
        for (int i = 0; i < 2; i++)
            proc_say(procs[i].fd);
        test_sleep_ns(2500 * PROC_MS); /* of heartbeats two are missing, at least */
        struct pollfd pollfd = {.fd = procs[1].fd, .events = POLLIN};
        CHECK_INT_EQ(poll(&pollfd, 1, 0), 0); /* it waits, and has no error */
        CHECK(kill(procs[0].pid, SIGCONT) == 0);
        for (int i = 0; i < 2; i++)
            check_report(&procs[i], RDT_OK, 0, "");
        for (int i = 0; i < 2; i++) {
            proc_say(procs[i].fd);
            CHECK_INT_EQ(proc_end(&procs[i], 0), 0);
        }
    }
}

/* ---- Our own fault -------------------------------------------------------------------------- */

TEST_TIMEOUT(who_takes_no_notifications_is_not_dead_and_kills_nobody, 60)
{
    enum { MANY = 70000 };

    for (int t = 0; t < 2; t++) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct rdt_remote_region remote;
        rdt_status status = RDT_OK;
        struct pair pair;
        rdt_endpoint *third_ep[2];
        rdt_context *third;
        rdt_region *region;
        uint32_t value;
        pair_open(&pair, transports[t]);
        context_make(&third, transports[t], "secret", 2);
        for (int i = 0; i < 2; i++) {
            endpoint_make(third, pair.ctx[i], i, &third_ep[i]);
            check_ok(rdt_endpoint_wait_ready(third_ep[i], 10 * RIG_S, &err), &err, "wait_ready");
        }
        check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        for (int i = 0; i < MANY && status == RDT_OK; i++) {
            rdt_transfer *transfer = NULL;
            status = rdt_endpoint_write(pair.ep[0], &i, 4, &remote, 0, 1, &transfer, &err);
            if (status == RDT_OK)
                status = rdt_transfer_wait(transfer, 10 * RIG_S, &err);
            if (transfer != NULL)
                rdt_transfer_free(transfer);
        }
        CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[0], 10 * RIG_S, &value, &err), RDT_EPEER);
        CHECK_INT_EQ(err.peer_rank, 1);
        CHECK_STR_CONTAINS(err.message, "rank 1 closed the connection: 65536 notifications");
        for (int i = 0; i < 65536; i++) /* none of them is lost */
            check_ok(rdt_endpoint_wait_notify(pair.ep[1], 0, &value, &err), &err, "wait_notify");
        CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[1], 5 * RIG_S, &value, &err), RDT_ENOMEM);
        CHECK_STR_CONTAINS(err.message, "never taken");
        for (int i = 0; i < 2; i++) {
            check_ok(rdt_endpoint_wait_ready(third_ep[i], 0, &err), &err, "the third");
            rdt_endpoint_close(third_ep[i]);
            rdt_endpoint_close(pair.ep[i]);
        }
        for (int i = 0; i < 2; i++) /* and they may try again */
            endpoint_make(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_endpoint_wait_ready(pair.ep[i], 10 * RIG_S, &err), &err, "again");
        rdt_region_free(region, NULL, NULL);
        pair_close(&pair);
        check_ok(rdt_context_close(third, &err), &err, "context_close");
    }
}

/* ---- Closed during set-up -------------------------------------------------------------------- */

TEST_TIMEOUT(who_closes_during_set_up_is_not_dead, 60)
{
    for (int t = 0; t < 2; t++) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        rdt_context *ctx[2];
        for (int i = 0; i < 2; i++)
            context_make(&ctx[i], transports[t], "secret", i);
        for (uint64_t round = 0; round < 16; round++) {
            rdt_endpoint *ep[2];
            for (int i = 0; i < 2; i++)
                endpoint_make(ctx[i], ctx[1 - i], 1 - i, &ep[i]);
            test_sleep_ns(round * 125000); /* set-up takes about a millisecond */
            rdt_endpoint_close(ep[0]);
            rdt_status status = rdt_endpoint_wait_ready(ep[1], 10 * RIG_S, &err);
            CHECK_MSG(status == RDT_OK || strstr(err.message, "died") == NULL, "round %d: %s",
                      (int)round, err.message);
            rdt_endpoint_close(ep[1]);
        }
        struct pair pair = {.ctx = {ctx[0], ctx[1]}};
        for (int i = 0; i < 2; i++) /* nobody holds the other for dead */
            endpoint_make(ctx[i], ctx[1 - i], 1 - i, &pair.ep[i]);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_endpoint_wait_ready(pair.ep[i], 10 * RIG_S, &err), &err, "wait_ready");
        pair_close(&pair);
    }
}

TEST(what_was_posted_before_close_arrives)
{
    for (int t = 0; t < 2; t++) {
        struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};
        struct rdt_remote_region remote;
        rdt_endpoint *ep;
        rdt_endpoint *back;
        rdt_context *ctx[2];
        rdt_region *region;
        rdt_transfer *transfer;
        uint32_t value = 0;
        for (int i = 0; i < 2; i++)
            context_make(&ctx[i], transports[t], "secret", i);
        check_ok(rdt_region_alloc(ctx[1], 64, RDT_REGION_ZERO, &region, &err), &err, "alloc");
        check_ok(rdt_region_export(region, &remote, &err), &err, "export");
        endpoint_make(ctx[1], ctx[0], 0, &back);
        endpoint_make(ctx[0], ctx[1], 1, &ep);
        check_ok(rdt_endpoint_write(ep, "tensor", 7, &remote, 0, 9, &transfer, &err), &err,
                 "write");
        rdt_endpoint_close(ep);
        check_ok(rdt_endpoint_wait_notify(back, 10 * RIG_S, &value, &err), &err, "wait_notify");
        CHECK_UINT_EQ(value, 9);
        CHECK(strcmp(rdt_region_addr(region), "tensor") == 0);
        check_ok(rdt_transfer_wait(transfer, 10 * RIG_S, &err), &err, "transfer_wait");
        rdt_transfer_free(transfer);
        rdt_endpoint_close(back);
        rdt_region_free(region, NULL, NULL);
        for (int i = 0; i < 2; i++)
            check_ok(rdt_context_close(ctx[i], &err), &err, "context_close");
    }
}

TEST_MAIN()
