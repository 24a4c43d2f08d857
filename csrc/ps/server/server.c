/* SPDX-License-Identifier: Apache-2.0
 * A server: its memory, its thread, and the calls of the program that runs it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "ps/server/dense.h"
#include "ps/server/server_impl.h"

#define STAGED_MAX_BYTES (UINT64_C(1) << 30)
#define QUEUES_LEAST UINT32_C(64)
#define QUEUES_MAX (UINT32_C(1) << 30)

static void *
server_run(void *arg)
{
    rdt_ps_server *server = arg;
    struct rdti_ps_arrival arrival;
    bool is_stopping = false;

    while (!is_stopping) {
        if (rdti_ps_arrivals_next(server, &arrival)) {
            (void)pthread_mutex_lock(&server->lock);
            if (rdti_ps_cut_defers(server, &arrival))
                ; /* it comes again */
            else if (arrival.slot == RDTI_PS_ARRIVED_END)
                rdti_ps_request_end(server, arrival.worker);
            else
                rdti_ps_request_handle(server, arrival.worker, arrival.slot);
            rdti_ps_cut_advance(server);
            (void)pthread_mutex_unlock(&server->lock);
        }
        (void)pthread_mutex_lock(&server->arrivals_lock);
        is_stopping = server->is_stopping;
        (void)pthread_mutex_unlock(&server->arrivals_lock);
    }
    return NULL;
}

static rdt_status
server_check(const struct rdt_ps_server_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size != sizeof(*opts))
        return rdti_error_set(err, RDT_EINVAL, 0, "server: not a struct of this version");
    if (opts->servers == 0 || opts->servers > RDTI_PS_SERVERS_MAX || opts->index >= opts->servers)
        return rdti_error_set(err, RDT_EINVAL, 0, "server %u of %u", opts->index, opts->servers);
    if (opts->is_backup > 1)
        return rdti_error_set(err, RDT_EINVAL, 0, "server: is_backup is %u, not 0 or 1",
                              opts->is_backup);
    return rdti_ps_check_slots(opts->slots, opts->slot_bytes, err);
}

static rdt_status
server_make_client(rdt_ps_server *server, uint32_t worker, struct rdt_error *err)
{
    const struct rdt_ps_server_opts *opts = &server->opts;
    struct rdti_ps_client *client = &server->clients[worker];
    rdt_status status =
        rdt_region_alloc(server->ctx, rdti_ps_inbox_bytes(opts->slots, opts->slot_bytes),
                         RDT_REGION_ZERO, &client->inbox, err);

    if (status == RDT_OK)
        status = rdt_region_alloc(server->ctx, rdti_ps_outbox_bytes(opts->slots, opts->slot_bytes),
                                  RDT_REGION_ZERO, &client->answers, err);
    return status;
}

static rdt_status
server_allocate(rdt_ps_server *server, struct rdt_error *err)
{
    const struct rdt_ps_server_opts *opts = &server->opts;
    rdt_status status =
        rdti_ps_clocks_init(&server->clocks, opts->mode, opts->staleness, opts->workers, err);

    if (status != RDT_OK)
        return status;
    server->arrivals_room = opts->workers * (opts->slots + 1);
    server->arrivals = calloc(server->arrivals_room, sizeof(*server->arrivals));
    server->calls = calloc(server->arrivals_room, sizeof(*server->calls));
    server->clients = calloc(opts->workers, sizeof(*server->clients));
    if (server->arrivals == NULL || server->calls == NULL || server->clients == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "server: no memory for %u workers",
                              opts->workers);
    status = rdti_ps_cut_init(server, err);
    for (uint32_t worker = 0; worker < opts->workers && status == RDT_OK; worker++)
        status = server_make_client(server, worker, err);
    return status;
}

static rdt_status
server_start(rdt_ps_server *server, struct rdt_error *err)
{
    rdt_status status = rdti_ps_arrivals_start(server, err);
    sigset_t all;
    sigset_t before;
    int number;

    if (status != RDT_OK)
        return status;
    (void)sigfillset(&all); /* signals are for the program's threads */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    number = pthread_create(&server->thread, NULL, server_run, server);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (number != 0)
        return rdti_error_set(err, RDT_EDEVICE, number, "server: no thread can be made");
    server->has_thread = true;
    return RDT_OK;
}

rdt_status
rdt_ps_server_create(rdt_context *ctx, const struct rdt_ps_server_opts *opts, rdt_ps_server **out,
                     struct rdt_error *err)
{
    rdt_ps_server *server;
    pthread_condattr_t attr;
    rdt_status status = server_check(opts, err);

    if (status != RDT_OK)
        return status;
    server = calloc(1, sizeof(*server));
    if (server == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a server of %zu B", sizeof(*server));
    server->ctx = ctx;
    server->opts = *opts;
    if (server->opts.staged_max_bytes == 0)
        server->opts.staged_max_bytes = STAGED_MAX_BYTES;
    server->kernels = rdti_ps_kernels_best();
    server->is_task_over = true;
    (void)pthread_mutex_init(&server->arrivals_lock, NULL);
    (void)pthread_mutex_init(&server->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&server->calls_changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    status = server_allocate(server, err);
    if (status == RDT_OK)
        status = server_start(server, err);
    if (status != RDT_OK) {
        rdt_ps_server_destroy(server);
        return status;
    }
    *out = server;
    return RDT_OK;
}

void
rdt_ps_server_destroy(rdt_ps_server *server)
{
    if (server == NULL)
        return;
    rdti_ps_arrivals_stop(server);
    if (server->has_thread)
        (void)pthread_join(server->thread, NULL);
    rdt_transfer_free(server->arrival);
    for (uint32_t i = 0; i < server->counters.tables; i++)
        rdti_ps_table_destroy(server->tables[i]);
    for (uint32_t i = 0; i < server->dense_count; i++)
        rdti_ps_dense_destroy(server->dense[i], server->opts.workers);
    for (uint32_t worker = 0; server->clients != NULL && worker < server->opts.workers; worker++) {
        rdt_region_free(server->clients[worker].inbox, NULL, NULL);
        rdt_region_free(server->clients[worker].answers, NULL, NULL);
        rdti_ps_stage_free(&server->clients[worker].stage);
    }
    for (uint32_t i = 0; i < server->queue_count; i++)
        rdti_ps_queue_free(&server->queues[i]);
    free(server->queues);
    rdti_ps_cut_free(server);
    rdti_ps_merge_free(&server->merge);
    rdti_ps_clocks_free(&server->clocks);
    free(server->clients);
    free(server->arrivals);
    free(server->calls);
    (void)pthread_cond_destroy(&server->calls_changed);
    (void)pthread_mutex_destroy(&server->lock);
    (void)pthread_mutex_destroy(&server->arrivals_lock);
    free(server);
}

static rdt_status
server_check_worker(const rdt_ps_server *server, uint32_t worker, struct rdt_error *err)
{
    if (worker < server->opts.workers)
        return RDT_OK;
    return rdti_error_set(err, RDT_EINVAL, 0, "worker %u is not one of %u", worker,
                          server->opts.workers);
}

rdt_status
rdt_ps_server_inbox(rdt_ps_server *server, uint32_t worker, struct rdt_remote_region *out,
                    struct rdt_error *err)
{
    const rdt_status status = server_check_worker(server, worker, err);

    return status == RDT_OK ? rdt_region_export(server->clients[worker].inbox, out, err) : status;
}

rdt_status
rdt_ps_server_attach(rdt_ps_server *server, uint32_t worker, rdt_endpoint *ep,
                     const struct rdt_remote_region *outbox, struct rdt_error *err)
{
    const uint64_t want = rdti_ps_outbox_bytes(server->opts.slots, server->opts.slot_bytes);
    const rdt_status status = server_check_worker(server, worker, err);

    if (status != RDT_OK)
        return status;
    if (outbox->len_bytes != want)
        return rdti_error_set(err, RDT_EINVAL, 0, "the outbox of worker %u has %llu B, not %llu B",
                              worker, (unsigned long long)outbox->len_bytes,
                              (unsigned long long)want);
    (void)pthread_mutex_lock(&server->lock);
    server->clients[worker].outbox = *outbox;
    const rdt_status added = rdti_ps_arrivals_add(server, worker, ep, err);
    (void)pthread_mutex_unlock(&server->lock);
    return added;
}

/* What workers do not give. */
static rdt_status
server_check_table(const struct rdt_ps_table_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size != sizeof(*opts))
        return RDT_OK; /* refused later */
    if ((opts->spill != NULL) != (opts->memory_bytes > 0))
        return rdti_error_set(err, RDT_EINVAL, 0, "table: spill and memory_bytes come together");
    if ((opts->apply != NULL) != (opts->rule.kind == RDT_PS_CUSTOM))
        return rdti_error_set(err, RDT_EINVAL, 0, "table: apply comes with RDT_PS_CUSTOM");
    return RDT_OK;
}

rdt_status
rdt_ps_server_add_table(rdt_ps_server *server, const struct rdt_ps_table_opts *opts,
                        uint32_t *id_out, struct rdt_remote_region *rows_out, struct rdt_error *err)
{
    struct rdti_ps_table *table;
    rdt_status status = server_check_table(opts, err);
    if (status != RDT_OK)
        return status;
    status = rdti_ps_table_create(server->ctx, opts, server->opts.index, server->opts.servers,
                                  &table, err);

    if (status == RDT_OK)
        status = rdt_region_export(table->values, rows_out, err);
    else
        return status;
    (void)pthread_mutex_lock(&server->lock);
    if (status == RDT_OK && server->counters.tables == RDTI_PS_TABLES_MAX)
        status =
            rdti_error_set(err, RDT_EINVAL, 0, "there are %d tables already", RDTI_PS_TABLES_MAX);
    if (status == RDT_OK) {
        *id_out = server->counters.tables;
        server->tables[server->counters.tables++] = table;
    }
    (void)pthread_mutex_unlock(&server->lock);
    if (status != RDT_OK)
        rdti_ps_table_destroy(table);
    return status;
}

/* Under server->lock. */
static rdt_status
server_reserve_queue(rdt_ps_server *server, struct rdt_error *err)
{
    const uint32_t room = server->queue_room > 0 ? 2 * server->queue_room : QUEUES_LEAST;

    if (server->queue_count < server->queue_room)
        return RDT_OK;
    struct rdti_ps_queue *queues =
        room < QUEUES_MAX ? realloc(server->queues, room * sizeof(*queues)) : NULL;
    if (queues == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "no memory for %u queues", room);
    server->queues = queues;
    server->queue_room = room;
    return RDT_OK;
}

rdt_status
rdt_ps_server_add_queue(rdt_ps_server *server, uint64_t chunks, uint32_t *id_out,
                        struct rdt_error *err)
{
    struct rdti_ps_queue queue;
    rdt_status status = rdti_ps_queue_init(&queue, chunks, err);

    if (status != RDT_OK)
        return status;
    (void)pthread_mutex_lock(&server->lock);
    status = server_reserve_queue(server, err);
    if (status == RDT_OK) {
        server->queues[server->queue_count++] = queue;
        *id_out = server->queue_count;
    }
    (void)pthread_mutex_unlock(&server->lock);
    if (status != RDT_OK)
        rdti_ps_queue_free(&queue);
    return status;
}

/* ---- Calls: under server->lock ----------------------------------------------------------- */

static bool
server_has_workers(const rdt_ps_server *server)
{
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (!server->clients[worker].has_left && !server->clients[worker].is_dead)
            return true;
    return false;
}

static rdt_status
server_take(rdt_ps_server *server, uint8_t *buf, struct rdt_ps_call *out, struct rdt_error *err)
{
    while (server->calls_count > 0) {
        const struct rdti_ps_arrival call = server->calls[server->calls_first];
        struct rdti_ps_client *client = &server->clients[call.worker];
        const uint8_t *at = (const uint8_t *)rdt_region_addr(client->inbox) +
                            call.slot * rdti_ps_slot_stride(server->opts.slot_bytes);
        struct rdti_ps_request head;
        uint8_t bytes[RDTI_PS_HEAD_BYTES];

        server->calls_first = (server->calls_first + 1) % server->arrivals_room;
        server->calls_count--;
        memcpy(bytes, at, sizeof(bytes));
        if (client->is_dead || rdti_ps_request_decode(bytes, sizeof(bytes), server->opts.slot_bytes,
                                                      &head, NULL) != RDT_OK)
            continue; /* a peer that changes its request meanwhile gets no answer */
        memcpy(buf, at + RDTI_PS_HEAD_BYTES, head.payload_bytes);
        client->slots[call.slot].is_taken = true;
        *out = (struct rdt_ps_call){.worker = call.worker,
                                    .slot = call.slot,
                                    .sequence = client->slots[call.slot].sequence,
                                    .len_bytes = head.payload_bytes};
        return RDT_OK;
    }
    if (server->failure.status != RDT_OK && !server->is_failure_taken) {
        server->is_failure_taken = true;
        return rdti_error_copy(err, &server->failure);
    }
    if (!server_has_workers(server))
        return rdti_error_set(err, RDT_ECLOSED, 0, "all workers have left");
    return RDT_EAGAIN;
}

rdt_status
rdt_ps_server_take(rdt_ps_server *server, uint64_t timeout_ns, uint8_t *buf, size_t cap,
                   struct rdt_ps_call *out, struct rdt_error *err)
{
    const uint64_t deadline_ns = rdti_deadline_after(timeout_ns);
    const struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                                   .tv_nsec = (long)(deadline_ns % 1000000000)};
    rdt_status status;

    if (cap < server->opts.slot_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0, "a buffer of %zu B is less than a slot", cap);
    (void)pthread_mutex_lock(&server->lock);
    while ((status = server_take(server, buf, out, err)) == RDT_EAGAIN)
        if (pthread_cond_timedwait(&server->calls_changed, &server->lock, &until) != 0 &&
            rdti_remaining_ns(deadline_ns) == 0)
            break;
    (void)pthread_mutex_unlock(&server->lock);
    if (status == RDT_EAGAIN)
        return rdti_error_set(err, RDT_ETIMEDOUT, 0, "no call of a worker within %.3f s",
                              (double)timeout_ns / 1e9);
    return status;
}

rdt_status
rdt_ps_server_answer(rdt_ps_server *server, const struct rdt_ps_call *call, int32_t result,
                     const uint8_t *bytes, size_t len_bytes, struct rdt_error *err)
{
    rdt_status status = server_check_worker(server, call->worker, err);

    if (status != RDT_OK)
        return status;
    if (call->slot >= server->opts.slots || len_bytes > server->opts.slot_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0, "an answer of %zu B in slot %u", len_bytes,
                              call->slot);
    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_client *client = &server->clients[call->worker];
    const struct rdti_ps_server_slot *slot = &client->slots[call->slot];
    if (!slot->is_taken || slot->sequence != call->sequence) {
        status = rdti_error_set(err, RDT_EINVAL, 0, "no call of worker %u waits in slot %u",
                                call->worker, call->slot);
    } else {
        if (len_bytes > 0)
            memcpy(rdti_ps_answer_payload(server, call->worker, call->slot), bytes, len_bytes);
        rdti_ps_answer_result(server, call->worker, call->slot, result, (uint32_t)len_bytes);
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* Under server->lock. */
static struct rdti_ps_table *
server_table(rdt_ps_server *server, uint32_t id, struct rdt_error *err)
{
    if (id < server->counters.tables)
        return server->tables[id];
    (void)rdti_error_set(err, RDT_EINVAL, 0, "table %u does not exist", id);
    return NULL;
}

rdt_status
rdt_ps_server_table_counters(rdt_ps_server *server, uint32_t id, struct rdt_ps_table_counters *out,
                             struct rdt_error *err)
{
    const uint32_t size =
        out->struct_size < sizeof(*out) ? out->struct_size : (uint32_t)sizeof(*out);
    struct rdt_ps_table_counters found = {.struct_size = out->struct_size};

    (void)pthread_mutex_lock(&server->lock);
    const struct rdti_ps_table *table = server_table(server, id, err);
    if (table != NULL && table->pool != NULL)
        rdti_ps_pool_counters(table->pool, &found);
    (void)pthread_mutex_unlock(&server->lock);
    if (table == NULL)
        return RDT_EINVAL;
    memcpy(out, &found, size);
    return RDT_OK;
}

rdt_status
rdt_ps_server_set_epoch(rdt_ps_server *server, uint32_t id, uint32_t epoch, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    const struct rdti_ps_table *table = server_table(server, id, err);
    if (table != NULL && !table->map.is_hashed)
        status = rdti_error_set(err, RDT_EINVAL, 0, "table %u has no keys, and so no epoch", id);
    if (table != NULL && table->map.is_hashed) {
        if (epoch > table->pool->keys.epoch)
            table->pool->keys.epoch = epoch;
        status = RDT_OK;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}
