/* SPDX-License-Identifier: Apache-2.0
 * A worker or a server is killed at a step of the protocol: before each write, and after each
 * notification. The others end the job with the right numbers, or with an error that names the dead
 * one. Ranks 0 and 1 are workers, ranks 2 and 3 servers. */
#include "integration/ranks_rig.h"

#include "rdmatensor_ext.h"
#include "rdmatensor_ps.h"

enum { WORKERS = 2, SERVERS = 2, RANKS = WORKERS + SERVERS, SLOTS = 4, SLOT_BYTES = 1024 };
enum { CHUNKS = 12, TOTALS = 2 * CHUNKS, ROWS = TOTALS + SERVERS, POINTS = 20 };
#define OPERATION_NS (20 * RANKS_S)

/* What a run does; the ranks inherit it. */
static struct {
    uint32_t mode;
    uint32_t goes_on;
    int32_t victim; /* -1: none */
    uint64_t die_at;
} plan;

/* What the ranks share. */
struct kills_board {
    _Atomic uint32_t stages[RANKS];
    struct rdt_remote_region inboxes[SERVERS][WORKERS];
    struct rdt_remote_region outboxes[WORKERS][SERVERS];
    struct rdt_remote_region rows[SERVERS];
    _Atomic uint64_t steps[RANKS];
    int32_t statuses[WORKERS]; /* how a worker's part ended */
    int32_t peers[WORKERS];
    char messages[WORKERS][RDT_ERROR_MESSAGE_BYTES];
    float values[WORKERS][ROWS];
};
static struct kills_board *shared;
static _Atomic int32_t own_rank = -1; /* from where on steps count */

static void
count_step(void)
{
    const int32_t rank = atomic_load(&own_rank);

    if (rank < 0)
        return;
    const uint64_t step = atomic_fetch_add(&shared->steps[rank], 1) + 1;
    if (rank == plan.victim && step == plan.die_at)
        (void)raise(SIGKILL);
}

rdt_status __real_rdt_endpoint_write(rdt_endpoint *ep, const void *src, uint64_t len_bytes,
                                     const struct rdt_remote_region *dst, uint64_t dst_off,
                                     uint32_t notify, rdt_transfer **out, struct rdt_error *err);
rdt_status __wrap_rdt_endpoint_write(rdt_endpoint *ep, const void *src, uint64_t len_bytes,
                                     const struct rdt_remote_region *dst, uint64_t dst_off,
                                     uint32_t notify, rdt_transfer **out, struct rdt_error *err);
rdt_status __real_rdt_endpoint_wait_notify(rdt_endpoint *ep, uint64_t timeout_ns, uint32_t *out,
                                           struct rdt_error *err);
rdt_status __wrap_rdt_endpoint_wait_notify(rdt_endpoint *ep, uint64_t timeout_ns, uint32_t *out,
                                           struct rdt_error *err);

rdt_status
__wrap_rdt_endpoint_write(rdt_endpoint *ep, const void *src, uint64_t len_bytes,
                          const struct rdt_remote_region *dst, uint64_t dst_off, uint32_t notify,
                          rdt_transfer **out, struct rdt_error *err)
{
    count_step();
    return __real_rdt_endpoint_write(ep, src, len_bytes, dst, dst_off, notify, out, err);
}

rdt_status
__wrap_rdt_endpoint_wait_notify(rdt_endpoint *ep, uint64_t timeout_ns, uint32_t *out,
                                struct rdt_error *err)
{
    const rdt_status status = __real_rdt_endpoint_wait_notify(ep, timeout_ns, out, err);

    if (status == RDT_OK)
        count_step();
    return status;
}

static struct rdt_ps_table_opts
table_opts(void)
{
    const struct rdt_ps_table_opts opts = {.struct_size = sizeof(opts),
                                           .dim = 1,
                                           .rows = ROWS,
                                           .rule = {.struct_size = sizeof(opts.rule),
                                                    .kind = RDT_PS_ADD}};

    return opts;
}

/* Waits until all ranks are in a stage: 1, places are exported; 2, all are attached. */
static void
meet(const struct rank *r, uint32_t stage)
{
    atomic_store_explicit(&shared->stages[r->rank], stage, memory_order_release);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        while (atomic_load_explicit(&shared->stages[rank], memory_order_acquire) < stage)
            (void)sched_yield();
}

static rdt_endpoint *
endpoint_to(struct rank *r, uint32_t rank)
{
    struct rdt_error err = {0};
    rdt_endpoint *ep = NULL;

    ranks_ok(r, rdt_group_endpoint(r->group, rank, &ep, &err), &err, "group_endpoint");
    return ep;
}

/* ---- Servers ------------------------------------------------------------------------------- */

static rdt_ps_server *
make_server(struct rank *r)
{
    const struct rdt_ps_table_opts table = table_opts();
    const struct rdt_ps_server_opts opts = {.struct_size = sizeof(opts),
                                            .mode = plan.mode,
                                            .staleness = 1,
                                            .index = r->rank - WORKERS,
                                            .servers = SERVERS,
                                            .workers = WORKERS,
                                            .slots = SLOTS,
                                            .slot_bytes = SLOT_BYTES,
                                            .goes_on = plan.goes_on};
    struct rdt_error err = {0};
    rdt_ps_server *server = NULL;
    uint32_t id;

    ranks_ok(r, rdt_ps_server_create(r->ctx, &opts, &server, &err), &err, "server_create");
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        ranks_ok(r, rdt_ps_server_inbox(server, worker, &shared->inboxes[opts.index][worker], &err),
                 &err, "server_inbox");
    ranks_ok(r, rdt_ps_server_add_table(server, &table, &id, &shared->rows[opts.index], &err), &err,
             "server_add_table");
    ranks_ok(r, rdt_ps_server_add_queue(server, CHUNKS, &id, &err), &err, "server_add_queue");
    return server;
}

static void
serve(struct rank *r)
{
    rdt_ps_server *server = make_server(r);
    uint8_t buffer[SLOT_BYTES];
    struct rdt_error err = {0};
    struct rdt_ps_call call;
    rdt_status status;

    meet(r, 1);
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        ranks_ok(r,
                 rdt_ps_server_attach(server, worker, endpoint_to(r, worker),
                                      &shared->outboxes[worker][r->rank - WORKERS], &err),
                 &err, "server_attach");
    meet(r, 2);
    atomic_store(&own_rank, (int32_t)r->rank);
    do
        status = rdt_ps_server_take(server, RANKS_S, buffer, sizeof(buffer), &call, &err);
    while (status == RDT_ETIMEDOUT || status == RDT_EPEER);
    CHECK_INT_EQ(status, RDT_ECLOSED);
    atomic_store(&own_rank, -1);
    rdt_ps_server_destroy(server);
}

/* ---- Workers ------------------------------------------------------------------------------- */

static rdt_ps_worker *
make_worker(struct rank *r, uint32_t *table_out)
{
    const struct rdt_ps_table_opts table = table_opts();
    const struct rdt_ps_worker_opts opts = {.struct_size = sizeof(opts),
                                            .mode = plan.mode,
                                            .staleness = 1,
                                            .index = r->rank,
                                            .servers = SERVERS,
                                            .slots = SLOTS,
                                            .slot_bytes = SLOT_BYTES,
                                            .maps = 1};
    const uint32_t ids[SERVERS] = {0, 0};
    struct rdt_error err = {0};
    rdt_ps_worker *worker = NULL;

    ranks_ok(r, rdt_ps_worker_create(r->ctx, &opts, &worker, &err), &err, "worker_create");
    for (uint32_t server = 0; server < SERVERS; server++)
        ranks_ok(r, rdt_ps_worker_outbox(worker, server, &shared->outboxes[r->rank][server], &err),
                 &err, "worker_outbox");
    meet(r, 1);
    for (uint32_t server = 0; server < SERVERS; server++)
        ranks_ok(r,
                 rdt_ps_worker_attach(worker, server, endpoint_to(r, WORKERS + server),
                                      &shared->inboxes[server][r->rank], &err),
                 &err, "worker_attach");
    ranks_ok(r, rdt_ps_worker_add_table(worker, &table, ids, shared->rows, table_out, &err), &err,
             "worker_add_table");
    return worker;
}

/* A chunk adds a value of its own to a row on each server, and its number to each one's total. */
static rdt_status
work_chunk(rdt_ps_worker *worker, uint32_t table, uint64_t chunk, struct rdt_error *err)
{
    const int64_t ids[] = {(int64_t)(2 * chunk), (int64_t)(2 * chunk + 1), TOTALS, TOTALS + 1};
    const float number = (float)(chunk + 1);
    const float rows[] = {0.1f * number, 0.3f * number, number, number};
    rdt_status status = rdt_ps_worker_push(worker, table, ids, rows, 2, OPERATION_NS, err);

    if (status == RDT_OK)
        status = rdt_ps_worker_push(worker, table, ids + 2, rows + 2, 2, OPERATION_NS, err);
    if (status == RDT_OK)
        status = rdt_ps_worker_tick(worker, 1.0, OPERATION_NS, err);
    return status;
}

static rdt_status
work_all(rdt_ps_worker *worker, uint32_t table, bool is_slow, float *values, struct rdt_error *err)
{
    const uint32_t queues[SERVERS] = {1, 1};
    int64_t ids[ROWS];
    rdt_status status = RDT_OK;

    while (status == RDT_OK) {
        uint64_t chunk;
        uint32_t is_stale;
        status = rdt_ps_worker_lease(worker, queues, &chunk, &is_stale, OPERATION_NS, err);
        if (status == RDT_OK && chunk == RDT_PS_CHUNK_NONE)
            break;
        if (is_slow) /* the other one gets most chunks */
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (status == RDT_OK)
            status = work_chunk(worker, table, chunk, err);
    }
    for (int64_t id = 0; id < ROWS; id++)
        ids[id] = id;
    if (status == RDT_OK)
        status = rdt_ps_worker_pull(worker, table, ids, ROWS, values, OPERATION_NS, err);
    if (status == RDT_OK)
        status = rdt_ps_worker_leave(worker, OPERATION_NS, err);
    return status;
}

static void
work(struct rank *r)
{
    uint32_t table = 0;
    rdt_ps_worker *worker = make_worker(r, &table);
    struct rdt_error err = {.peer_rank = RDT_RANK_UNKNOWN};

    meet(r, 2);
    atomic_store(&own_rank, (int32_t)r->rank);
    shared->statuses[r->rank] =
        work_all(worker, table, r->rank == 0, shared->values[r->rank], &err);
    atomic_store(&own_rank, -1);
    shared->peers[r->rank] = err.peer_rank;
    memcpy(shared->messages[r->rank], err.message, sizeof(err.message));
    rdt_ps_worker_destroy(worker);
}

static void
play(struct rank *r)
{
    if (r->rank < WORKERS)
        work(r);
    else
        serve(r);
    ranks_leave(r);
}

/* ---- The sweep ----------------------------------------------------------------------------- */

/* Returns whether the victim was killed: it may have had fewer steps than before. */
static bool
run(uint32_t transport, int32_t victim, uint64_t die_at)
{
    int statuses[RANKS_MAX];

    plan.victim = victim;
    plan.die_at = die_at;
    memset(shared, 0, sizeof(*shared));
    ranks_run(RANKS, transport, play, statuses);
    const bool is_killed = victim >= 0 && atomic_load(&shared->steps[victim]) >= die_at;
    for (int32_t rank = 0; rank < RANKS; rank++)
        CHECK_MSG(statuses[rank] == (is_killed && rank == victim ? SIGKILL : 0),
                  "rank %d, with rank %d killed at step %llu: status %d, %s", rank, victim,
                  (unsigned long long)die_at, statuses[rank],
                  rank < WORKERS ? shared->messages[rank] : "a server");
    return is_killed;
}

/* Each chunk counts once, on each server: the sums in double precision. */
static void
check_values(uint32_t worker)
{
    const float *values = shared->values[worker];
    double total = 0;

    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        const double number = chunk + 1.0;
        CHECK(values[2 * chunk] == 0.1f * (float)number);
        CHECK(values[2 * chunk + 1] == 0.3f * (float)number);
        total += number;
    }
    CHECK((double)values[TOTALS] == total && (double)values[TOTALS + 1] == total);
}

/* The worker has ended with the right numbers, or has the error; whether it has the error. */
static bool
check_worker(uint32_t worker, const char *words)
{
    if (shared->statuses[worker] == RDT_OK) {
        check_values(worker);
        return false;
    }
    CHECK_MSG(shared->statuses[worker] == RDT_EPEER, "worker %u: %d: %s", worker,
              shared->statuses[worker], shared->messages[worker]);
    CHECK_STR_CONTAINS(shared->messages[worker], words);
    return true;
}

static void
sweep(uint32_t transport, uint32_t mode, uint32_t goes_on, int32_t victim)
{
    const char *words = victim < WORKERS ? "worker 1 is gone" : victim == 2 ? "rank 2" : "rank 3";
    uint32_t killed = 0;
    uint32_t errors = 0;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    plan.mode = mode;
    plan.goes_on = goes_on;
    CHECK(!run(transport, -1, 0));
    check_values(0);
    const uint64_t steps = atomic_load(&shared->steps[victim]);
    CHECK_MSG(steps > POINTS, "%llu steps", (unsigned long long)steps);
    for (uint64_t point = 0; point < POINTS; point++) {
        if (!run(transport, victim, 1 + point * (steps - 1) / POINTS))
            continue;
        killed++;
        const bool has_error = check_worker(0, words);
        errors += has_error;
        if (victim >= WORKERS)
            (void)check_worker(1, words);
        CHECK_MSG(victim >= WORKERS || goes_on == 0 || !has_error, "%s", shared->messages[0]);
    }
    printf("     %u of %d died within %llu steps, %u errors\n", killed, POINTS,
           (unsigned long long)steps, errors);
    CHECK(killed >= POINTS / 2);
    CHECK((errors >= killed / 2) == (victim >= WORKERS || goes_on == 0));
}

#define SWEEP(name, transport, mode, goes_on, victim)            \
    TEST_TIMEOUT(name, 120)                                      \
    {                                                            \
        sweep(RDT_TRANSPORT_##transport, mode, goes_on, victim); \
    }

SWEEP(a_worker_dies_in_sync_over_shm, SHM, RDT_PS_SYNC, 1, 1)
SWEEP(a_worker_dies_in_async_over_shm, SHM, RDT_PS_ASYNC, 1, 1)
SWEEP(a_worker_dies_in_ssp_over_shm, SHM, RDT_PS_SSP, 1, 1)
SWEEP(a_worker_dies_in_sync_over_tcp, TCP, RDT_PS_SYNC, 1, 1)
SWEEP(a_worker_dies_in_ssp_over_tcp, TCP, RDT_PS_SSP, 1, 1)
SWEEP(all_end_when_a_worker_dies, SHM, RDT_PS_SYNC, 0, 1)
SWEEP(the_first_server_dies_over_shm, SHM, RDT_PS_SSP, 1, 2)
SWEEP(the_last_server_dies_over_tcp, TCP, RDT_PS_SYNC, 1, 3)

TEST_MAIN()
