/* SPDX-License-Identifier: Apache-2.0
 * Groups of processes over the real core: mailbox, collectives, deaths. */
#include "ranks_rig.h"

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP};
static const uint64_t counts[] = {0, 1, 3, 1023, 40000, 600001};

static rdt_status
run_coll(struct rank *r, const struct rdt_coll_args *args, struct rdt_error *err)
{
    rdt_transfer *t = NULL;
    rdt_status status = rdt_coll_post(r->group, args, &t, err);

    if (status == RDT_OK) {
        status = rdt_transfer_wait(t, 30 * RANKS_S, err);
        rdt_transfer_free(t);
    }
    return status;
}

static int64_t
value(uint32_t rank, uint64_t i, uint64_t round)
{
    return (int64_t)(rank + 1) * 1000003 + (int64_t)(i * 7919 + round * 104729);
}

static void
all_reduce_body(struct rank *r)
{
    struct rdt_error err = {0};

    for (uint64_t round = 0; round < sizeof(counts) / sizeof(counts[0]); round++) {
        const uint64_t count = counts[round];
        int64_t *data = malloc(sizeof(int64_t) * (count + 1));
        for (uint64_t i = 0; i < count; i++)
            data[i] = value(r->rank, i, round);
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op = RDT_COLL_ALLREDUCE,
                                           .dtype = RDT_I64,
                                           .reduce_op = RDT_SUM,
                                           .count = count,
                                           .send = data,
                                           .recv = data};
        ranks_ok(r, run_coll(r, &args, &err), &err, "all_reduce");
        for (uint64_t i = 0; i < count; i++) {
            int64_t want = 0;
            for (uint32_t k = 0; k < r->size; k++)
                want += value(k, i, round);
            CHECK_INT_EQ(data[i], want);
        }
        free(data);
    }
    const struct rdt_coll_args barrier = {.struct_size = sizeof(barrier), .op = RDT_COLL_BARRIER};
    for (int i = 0; i < 200; i++)
        ranks_ok(r, run_coll(r, &barrier, &err), &err, "barrier");
    ranks_leave(r);
}

TEST_TIMEOUT(all_reduce_sums_over_processes, 120)
{
    for (int i = 0; i < 2; i++)
        for (uint32_t size = 2; size <= 5; size++)
            ranks_run_ok(size, transports[i], all_reduce_body);
}

static void
all_to_all_body(struct rank *r)
{
    struct rdt_error err = {0};

    for (uint64_t round = 0; round < sizeof(counts) / sizeof(counts[0]); round++) {
        const uint64_t count = counts[round];
        int64_t *send = malloc(sizeof(int64_t) * (count * r->size + 1));
        int64_t *recv = malloc(sizeof(int64_t) * (count * r->size + 1));
        for (uint64_t i = 0; i < count * r->size; i++)
            send[i] = value(r->rank, i, round);
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op = RDT_COLL_ALLTOALL,
                                           .dtype = RDT_I64,
                                           .count = count,
                                           .send = send,
                                           .recv = recv};
        ranks_ok(r, run_coll(r, &args, &err), &err, "all_to_all");
        for (uint32_t k = 0; k < r->size; k++)
            for (uint64_t i = 0; i < count; i++)
                CHECK_INT_EQ(recv[k * count + i], value(k, r->rank * count + i, round));
        free(send);
        free(recv);
    }
    ranks_leave(r);
}

TEST_TIMEOUT(all_to_all_exchanges_blocks, 120)
{
    for (int i = 0; i < 2; i++) {
        ranks_run_ok(2, transports[i], all_to_all_body);
        ranks_run_ok(3, transports[i], all_to_all_body);
    }
}

/* Rank 1 of 3 kills itself in mid-stream; everybody else names it within two seconds. */
static void
death_body(struct rank *r)
{
    struct rdt_error err = {0};
    rdt_status status = RDT_OK;
    int64_t data[64] = {0};
    struct timespec began;
    struct timespec ended;

    for (int i = 0; status == RDT_OK && i < 1000000; i++) {
        const struct rdt_coll_args args = {.struct_size = sizeof(args),
                                           .op = RDT_COLL_ALLREDUCE,
                                           .dtype = RDT_I64,
                                           .reduce_op = RDT_SUM,
                                           .count = 64,
                                           .send = data,
                                           .recv = data};
        if (r->rank == 1 && i == 300) {
            (void)clock_gettime(CLOCK_MONOTONIC, &began);
            atomic_store(&r->board->marks[1],
                         (uint64_t)began.tv_sec * RANKS_S + (uint64_t)began.tv_nsec);
            (void)raise(SIGKILL);
        }
        status = run_coll(r, &args, &err);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &ended);
    const uint64_t took_ns = (uint64_t)ended.tv_sec * RANKS_S + (uint64_t)ended.tv_nsec -
                             atomic_load(&r->board->marks[1]);
    CHECK_INT_EQ(status, RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 1");
    /* With its number, unless the news came between two sums: one that is all there ends well. */
    if (strncmp(err.message, "all_reduce: rank 1 died", strlen("all_reduce: rank 1 died")) != 0)
        CHECK_STR_CONTAINS(err.message, "all_reduce #");
    CHECK_UINT_LE(took_ns, 2 * RANKS_S);
    ranks_leave(r);
}

TEST_TIMEOUT(a_killed_rank_is_named_by_all, 120)
{
    for (int i = 0; i < 2; i++)
        for (uint32_t size = 2; size <= 4; size++) {
            int statuses[RANKS_MAX];
            ranks_run(size, transports[i], death_body, statuses);
            for (uint32_t k = 0; k < size; k++) {
                if (k == 1)
                    CHECK(WIFSIGNALED(statuses[k]) && WTERMSIG(statuses[k]) == SIGKILL);
                else
                    CHECK_INT_EQ(statuses[k], 0);
            }
        }
}

static void
any_source_body(struct rank *r)
{
    struct rdt_error err = {0};
    rdt_transfer *t = NULL;

    if (r->rank != 0) {
        for (uint64_t i = 0; i < 500; i++) {
            const uint64_t word = r->rank * 1000 + i;
            ranks_ok(r, rdt_group_send(r->group, 0, 5, &word, sizeof(word), NULL, &t, &err), &err,
                     "send");
            ranks_ok(r, rdt_transfer_wait(t, 20 * RANKS_S, &err), &err, "wait");
            rdt_transfer_free(t);
        }
    } else {
        uint64_t next[RANKS_MAX] = {0};
        for (uint64_t i = 0; i < 500 * (r->size - 1); i++) {
            uint64_t word = 0;
            ranks_ok(r,
                     rdt_group_recv(r->group, RDT_SOURCE_ANY, 5, &word, sizeof(word), NULL, &t,
                                    &err),
                     &err, "recv");
            ranks_ok(r, rdt_transfer_wait(t, 20 * RANKS_S, &err), &err, "wait");
            const uint32_t source = (uint32_t)rdt_transfer_source(t);
            CHECK_UINT_EQ(word, source * 1000 + next[source]++);
            rdt_transfer_free(t);
        }
    }
    const struct rdt_coll_args barrier = {.struct_size = sizeof(barrier), .op = RDT_COLL_BARRIER};
    ranks_ok(r, run_coll(r, &barrier, &err), &err, "barrier");
    ranks_leave(r);
}

TEST_TIMEOUT(any_source_keeps_the_order_of_each, 60)
{
    for (int i = 0; i < 2; i++)
        ranks_run_ok(4, transports[i], any_source_body);
}

TEST_MAIN()
