/* SPDX-License-Identifier: Apache-2.0
 * A member that is stopped (SIGSTOP) at a chosen moment, and missed at a deadline: the rank whose
 * deadline passes names it, and so does every other one that only hears of it. */
#include <signal.h>
#include <stdio.h>

#include "ranks_rig.h"

#define SIZE 3
#define VICTIM 2
/* Of rank 0 alone; the others' is the group's, which nobody waits for. Below the silence that
 * counts as death (ranks_rig.h), so that a deadline is what tells. */
#define DEADLINE_NS (UINT64_C(800000000))

enum moment {
    BEFORE_PATHS, /* it listens, and answers nobody */
    WITH_PATHS    /* all are connected, and have used it */
};

enum { MARK_PID = 0, MARK_TOLD, MARK_READY }; /* the last two: how many survivors */

static enum moment moment;
static uint32_t missed_op; /* RDT_COLL_* */

/* Stopped, as the kernel says. */
static bool
is_stopped(pid_t pid)
{
    char path[64];
    char stat[256] = "";

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    CHECK_NOT_NULL(file);
    CHECK(fgets(stat, sizeof(stat), file) != NULL);
    (void)fclose(file);
    const char *name_end = strrchr(stat, ')');
    CHECK_NOT_NULL(name_end);
    return name_end[2] == 'T';
}

static void
stop_here(struct ranks_board *board)
{
    atomic_store(&board->marks[MARK_PID], (uint64_t)getpid());
    (void)raise(SIGSTOP);
    _exit(1); /* nobody lets it go on */
}

static pid_t
await_stop(struct ranks_board *board)
{
    pid_t pid;

    while ((pid = (pid_t)atomic_load(&board->marks[MARK_PID])) == 0 || !is_stopped(pid))
        test_sleep_ns(1000000);
    return pid;
}

static rdt_status
run(struct rank *r, uint32_t op, uint64_t timeout_ns, struct rdt_error *err)
{
    int64_t send[SIZE * 4] = {0};
    int64_t recv[SIZE * 4] = {0};
    const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                       .op = op,
                                       .dtype = RDT_I64,
                                       .reduce_op = RDT_SUM,
                                       .count = 4,
                                       .timeout_ns = timeout_ns,
                                       .send = send,
                                       .recv = recv};
    rdt_transfer *t = NULL;
    rdt_status status = rdt_coll_post(r->group, &args, &t, err);

    if (status == RDT_OK) {
        status = rdt_transfer_wait(t, 30 * RANKS_S, err);
        rdt_transfer_free(t);
    }
    return status;
}

/* The last of the survivors ends the victim, which has closed nothing. */
static void
end_victim(struct rank *r, pid_t pid)
{
    if (atomic_fetch_add(&r->board->marks[MARK_TOLD], 1) == SIZE - 2)
        CHECK_INT_EQ(kill(pid, SIGKILL), 0);
}

static void
survive(struct rank *r)
{
    struct rdt_error err = {0};

    if (moment == WITH_PATHS)
        ranks_ok(r, run(r, RDT_COLL_BARRIER, 0, &err), &err, "barrier");
    (void)atomic_fetch_add(&r->board->marks[MARK_READY], 1);
    const pid_t pid = await_stop(r->board);
    const uint64_t began_ns = test_now_ns();
    const rdt_status status = run(r, missed_op, r->rank == 0 ? DEADLINE_NS : 0, &err);
    CHECK_STATUS(status, r->rank == 0 ? RDT_ETIMEDOUT : RDT_EPEER);
    CHECK_MSG(err.peer_rank == VICTIM, "rank %u: %s of rank %d: %s", r->rank,
              rdt_status_name(status), (int)err.peer_rank, err.message);
    CHECK_STR_CONTAINS(err.message, "rank 2");
    CHECK_UINT_LE(test_now_ns() - began_ns, rdt_group_timeout(r->group)); /* nobody waits for it */
    CHECK(rdt_group_error(r->group, &err) != RDT_OK);
    CHECK_INT_EQ(err.peer_rank, VICTIM);
    end_victim(r, pid);
    ranks_leave(r);
}

static void
live(struct rank *r)
{
    struct rdt_error err = {0};

    if (r->rank != VICTIM) {
        survive(r);
        return;
    }
    if (moment == WITH_PATHS)
        ranks_ok(r, run(r, RDT_COLL_BARRIER, 0, &err), &err, "barrier");
    while (atomic_load(&r->board->marks[MARK_READY]) < SIZE - 1)
        test_sleep_ns(1000000);
    stop_here(r->board);
}

static void
check_stopped(enum moment when, uint32_t transport, uint32_t op)
{
    int statuses[RANKS_MAX];

    moment = when;
    missed_op = op;
    ranks_run(SIZE, transport, live, statuses);
    for (uint32_t i = 0; i < SIZE; i++)
        if (i != VICTIM)
            CHECK_INT_EQ(statuses[i], 0);
    CHECK(WIFSIGNALED(statuses[VICTIM]) && WTERMSIG(statuses[VICTIM]) == SIGKILL);
}

TEST_TIMEOUT(a_rank_stopped_in_the_set_up_is_named_by_all, 60)
{
    check_stopped(BEFORE_PATHS, RDT_TRANSPORT_TCP, RDT_COLL_ALLREDUCE);
    check_stopped(BEFORE_PATHS, RDT_TRANSPORT_SHM, RDT_COLL_ALLREDUCE);
}

TEST_TIMEOUT(a_rank_stopped_later_is_named_by_all, 60)
{
    check_stopped(WITH_PATHS, RDT_TRANSPORT_SHM, RDT_COLL_ALLREDUCE);
    check_stopped(WITH_PATHS, RDT_TRANSPORT_TCP, RDT_COLL_BARRIER);
}

TEST_MAIN()
