/* SPDX-License-Identifier: Apache-2.0
 * A job of two workers and two servers, one of which is killed at a step of the protocol: before a
 * write, or after a notification. Ranks 0 and 1 are workers, ranks 2 and 3 servers; with replicas
 * ranks 4 and 5 are their backups, and the workers train a dense model too. */
#ifndef RDTI_TESTS_KILLS_RIG_H
#define RDTI_TESTS_KILLS_RIG_H

#include "integration/ranks_rig.h"

#include "rdmatensor_ext.h"
#include "rdmatensor_ps.h"

enum { WORKERS = 2, SERVERS = 2, CONNS_MAX = 2 * SERVERS, SLOTS = 4, SLOT_BYTES = 1024 };
enum { CHUNKS = 12, TOTALS = 2 * CHUNKS, ROWS = TOTALS + SERVERS, FLOATS = 6 };
#define OPERATION_NS (20 * RANKS_S)

/* What a run does; the ranks inherit it. */
static struct {
    uint32_t mode;
    uint32_t goes_on;
    uint32_t replicas;
    int32_t victim; /* -1: none */
    int signal;     /* SIGKILL, or SIGSTOP, after which worker 0 kills it */
    uint64_t die_at;
} plan;

/* What the ranks share. */
struct kills_board {
    _Atomic uint32_t stages[WORKERS + CONNS_MAX];
    pid_t pids[WORKERS + CONNS_MAX];
    struct rdt_remote_region inboxes[CONNS_MAX][WORKERS];
    struct rdt_remote_region outboxes[WORKERS][CONNS_MAX];
    struct rdt_remote_region rows[CONNS_MAX];
    struct rdt_remote_region params[WORKERS];
    struct rdt_remote_region slots[WORKERS][CONNS_MAX]; /* of gradients */
    _Atomic uint64_t steps[WORKERS + CONNS_MAX];
    int32_t statuses[WORKERS]; /* how a worker's part ended */
    int32_t peers[WORKERS];
    char messages[WORKERS][RDT_ERROR_MESSAGE_BYTES];
    float values[WORKERS][ROWS];
    float model[WORKERS][FLOATS];
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
        (void)raise(plan.signal);
}

static uint32_t
count_conns(void)
{
    return SERVERS * (1 + plan.replicas);
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
    shared->pids[r->rank] = getpid();
    atomic_store_explicit(&shared->stages[r->rank], stage, memory_order_release);
    for (uint32_t rank = 0; rank < r->size; rank++)
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
                                            .index = (r->rank - WORKERS) % SERVERS,
                                            .is_backup = r->rank - WORKERS >= SERVERS,
                                            .servers = SERVERS,
                                            .workers = WORKERS,
                                            .slots = SLOTS,
                                            .slot_bytes = SLOT_BYTES,
                                            .goes_on = plan.goes_on};
    struct rdt_error err = {0};
    const uint32_t conn = r->rank - WORKERS;
    rdt_ps_server *server = NULL;
    uint32_t id;

    ranks_ok(r, rdt_ps_server_create(r->ctx, &opts, &server, &err), &err, "server_create");
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        ranks_ok(r, rdt_ps_server_inbox(server, worker, &shared->inboxes[conn][worker], &err), &err,
                 "server_inbox");
    ranks_ok(r, rdt_ps_server_add_table(server, &table, &id, &shared->rows[conn], &err), &err,
             "server_add_table");
    ranks_ok(r, rdt_ps_server_add_queue(server, CHUNKS, &id, &err), &err, "server_add_queue");
    return server;
}

/* Its half of the dense model. */
static void
add_dense(struct rank *r, rdt_ps_server *server)
{
    const uint32_t conn = r->rank - WORKERS;
    const struct rdt_ps_dense_opts opts = {.struct_size = sizeof(opts),
                                           .count = FLOATS / SERVERS,
                                           .params_off = conn % SERVERS * (FLOATS / SERVERS),
                                           .rule = {.struct_size = sizeof(opts.rule),
                                                    .kind = RDT_PS_MOMENTUM,
                                                    .lr = 0.1,
                                                    .momentum = 0.9}};
    struct rdt_error err = {0};
    uint32_t id;

    ranks_ok(r, rdt_ps_server_add_dense(server, &opts, &id, &err), &err, "add_dense");
    for (uint32_t worker = 0; worker < WORKERS; worker++)
        ranks_ok(r,
                 rdt_ps_server_attach_dense(server, id, worker, &shared->params[worker],
                                            &shared->slots[worker][conn], &err),
                 &err, "attach_dense");
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
    if (plan.replicas > 0)
        add_dense(r, server);
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

/* The dense model of a worker. */
static struct {
    rdt_region *params;
    rdt_region *gradients;
    uint32_t id;
} model;

static void
make_model(struct rank *r)
{
    struct rdt_error err = {0};

    ranks_ok(r, rdt_region_alloc(r->ctx, FLOATS * 4, RDT_REGION_ZERO, &model.params, &err), &err,
             "region_alloc");
    ranks_ok(r, rdt_region_alloc(r->ctx, FLOATS * 4, RDT_REGION_ZERO, &model.gradients, &err), &err,
             "region_alloc");
    ranks_ok(r, rdt_region_export(model.params, &shared->params[r->rank], &err), &err, "export");
}

static void
free_model(void)
{
    rdt_region_free(model.params, NULL, NULL);
    rdt_region_free(model.gradients, NULL, NULL);
}

static void
add_model(struct rank *r, rdt_ps_worker *worker)
{
    const uint64_t starts[SERVERS + 1] = {0, FLOATS / SERVERS, FLOATS};
    const uint32_t ids[CONNS_MAX] = {0};
    struct rdt_error err = {0};

    ranks_ok(r,
             rdt_ps_worker_add_dense(worker, rdt_region_addr(model.gradients), FLOATS, starts, ids,
                                     shared->slots[r->rank], &model.id, &err),
             &err, "add_dense");
}

/* Gradients that depend on the chunk and on the values that came. */
static rdt_status
push_model(rdt_ps_worker *worker, float number, struct rdt_error *err)
{
    const float *params = rdt_region_addr(model.params);
    float *gradients = rdt_region_addr(model.gradients);

    for (uint32_t i = 0; i < FLOATS; i++)
        gradients[i] = 0.1f * number * (float)(i + 1) + 0.3f * params[i];
    const rdt_status status = rdt_ps_worker_push_dense(worker, model.id, 0, FLOATS, err);
    return status == RDT_OK ? rdt_ps_worker_commit_dense(worker, model.id, err) : status;
}

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
                                            .replicas = plan.replicas,
                                            .maps = 1};
    const uint32_t ids[CONNS_MAX] = {0};
    struct rdt_error err = {0};
    rdt_ps_worker *worker = NULL;

    ranks_ok(r, rdt_ps_worker_create(r->ctx, &opts, &worker, &err), &err, "worker_create");
    for (uint32_t server = 0; server < count_conns(); server++)
        ranks_ok(r, rdt_ps_worker_outbox(worker, server, &shared->outboxes[r->rank][server], &err),
                 &err, "worker_outbox");
    make_model(r);
    meet(r, 1);
    for (uint32_t server = 0; server < count_conns(); server++)
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
    if (status == RDT_OK && plan.replicas > 0)
        status = push_model(worker, number, err);
    if (status == RDT_OK)
        status = rdt_ps_worker_tick(worker, 1.0, OPERATION_NS, err);
    return status;
}

static rdt_status
work_all(rdt_ps_worker *worker, uint32_t table, bool is_slow, float *values, struct rdt_error *err)
{
    const uint32_t queues[CONNS_MAX] = {1, 1, 1, 1};
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
    if (plan.replicas > 0)
        add_model(r, worker);
    atomic_store(&own_rank, (int32_t)r->rank);
    shared->statuses[r->rank] =
        work_all(worker, table, r->rank == 0, shared->values[r->rank], &err);
    atomic_store(&own_rank, -1);
    shared->peers[r->rank] = err.peer_rank;
    memcpy(shared->messages[r->rank], err.message, sizeof(err.message));
    memcpy(shared->model[r->rank], rdt_region_addr(model.params), sizeof(shared->model[0]));
    rdt_ps_worker_destroy(worker);
    free_model();
    if (plan.signal == SIGSTOP && r->rank == 0 && plan.victim >= 0)
        (void)kill(shared->pids[plan.victim], SIGKILL);
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

/* ---- Runs ---------------------------------------------------------------------------------- */

/* Returns whether the victim was killed: it may have had fewer steps than before. */
static bool
run(uint32_t transport, int32_t victim, uint64_t die_at)
{
    const int32_t size = (int32_t)(WORKERS + count_conns());
    int statuses[RANKS_MAX];

    plan.victim = victim;
    plan.die_at = die_at;
    memset(shared, 0, sizeof(*shared));
    ranks_run((uint32_t)size, transport, play, statuses);
    const bool is_killed = victim >= 0 && atomic_load(&shared->steps[victim]) >= die_at;
    for (int32_t rank = 0; rank < size; rank++)
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

#endif
