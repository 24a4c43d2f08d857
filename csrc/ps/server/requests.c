/* SPDX-License-Identifier: Apache-2.0
 * Requests of workers. The bytes come from a peer, which may change them meanwhile: each is copied
 * once, and then checked. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ps/server/server_impl.h"
#include "wire/bytes.h"

/* One request that is being carried out. */
struct requests_one {
    rdt_ps_server *server;
    struct rdti_ps_client *client;
    uint32_t worker;
    uint32_t slot;
    struct rdti_ps_request head;
    const uint8_t *payload; /* in the inbox */
    struct rdt_error err;
};

static struct rdti_ps_table *
requests_table(struct requests_one *one)
{
    if (one->head.table >= one->server->counters.tables) {
        (void)rdti_error_set(&one->err, RDT_EINVAL, 0, "table %u does not exist", one->head.table);
        return NULL;
    }
    struct rdti_ps_table *table = one->server->tables[one->head.table];
    const uint32_t version = table->map.version + (one->client->has_switched ? 1 : 0);
    if (one->head.map_version == version)
        return table;
    (void)rdti_error_set(&one->err, RDT_ESTALE, 0,
                         "the map of table %u has version %u, and the worker has version %u",
                         one->head.table, version, one->head.map_version);
    return NULL;
}

static rdt_status
requests_check_bytes(struct requests_one *one, uint64_t want)
{
    if (one->head.payload_bytes == want)
        return RDT_OK;
    return rdti_error_set(&one->err, RDT_EPROTO, 0, "a request for %u rows has %u B, not %llu B",
                          one->head.count, one->head.payload_bytes, (unsigned long long)want);
}

static rdt_status
requests_push(struct requests_one *one)
{
    rdt_ps_server *server = one->server;
    struct rdti_ps_table *table = requests_table(one);
    const uint64_t count = one->head.count;
    struct rdti_ps_staged entry = {.table = one->head.table,
                                   .is_unique = (one->head.flags & RDTI_PS_FLAG_UNIQUE) != 0,
                                   .count = count};
    uint64_t *ids;
    float *rows;

    if (table == NULL)
        return one->err.status;
    if (one->client->has_tick)
        return rdti_error_set(&one->err, RDT_EBUSY, 0, "a push before the last tick was answered");
    entry.has_marks = table->pool != NULL;
    const uint64_t rows_bytes = count * table->opts.dim * sizeof(float);
    rdt_status status = requests_check_bytes(one, count * sizeof(*ids) + rows_bytes);
    if (status == RDT_OK)
        status = rdti_ps_stage_reserve(&one->client->stage, &entry, table->opts.dim,
                                       server->opts.staged_max_bytes, &ids, &rows, &one->err);
    if (status != RDT_OK)
        return status;
    memcpy(ids, one->payload, count * sizeof(*ids));
    status = rdti_ps_table_check_ids(table, server->opts.index, ids, count, &one->err);
    if (status == RDT_OK)
        status = rdti_ps_table_reserve(table, ids, count, (uint8_t *)rows + rows_bytes, &one->err);
    if (status != RDT_OK)
        return status;
    memcpy(rows, one->payload + count * sizeof(*ids), rows_bytes);
    const uint64_t before = one->client->stage.used_bytes;
    rdti_ps_stage_keep(&one->client->stage);
    server->counters.staged_bytes += one->client->stage.used_bytes - before;
    server->counters.pushed_rows += count;
    rdti_ps_answer_send(server, one->worker, one->slot, 0);
    return RDT_OK;
}

static rdt_status
requests_pull(struct requests_one *one)
{
    rdt_ps_server *server = one->server;
    const struct rdti_ps_table *table = requests_table(one);
    const uint64_t count = one->head.count;

    if (table == NULL)
        return one->err.status;
    const uint64_t rows_bytes = count * table->opts.dim * sizeof(float);
    const bool is_find = (one->head.flags & RDTI_PS_FLAG_FIND) != 0;
    const uint64_t bytes = rows_bytes + (is_find ? count : 0);
    rdt_status status = rdti_ps_replica_check_reader(one->server, one->worker, &one->err);
    if (status == RDT_OK)
        status = requests_check_bytes(one, count * sizeof(uint64_t));
    if (status == RDT_OK && bytes > server->opts.slot_bytes)
        status = rdti_error_set(&one->err, RDT_EPROTO, 0, "%u rows exceed a slot of %u B",
                                one->head.count, server->opts.slot_bytes);
    if (status == RDT_OK)
        status = rdti_ps_merge_begin(&server->merge, 0, count, &one->err);
    if (status != RDT_OK)
        return status;
    uint64_t *ids = server->merge.ids; /* as memory of its own */
    if (count > 0)
        memcpy(ids, one->payload, count * sizeof(*ids));
    status = rdti_ps_table_check_ids(table, server->opts.index, ids, count, &one->err);
    uint8_t *payload = rdti_ps_answer_payload(server, one->worker, one->slot);
    if (status == RDT_OK)
        status = rdti_ps_table_gather(table, ids, count, (float *)(void *)payload,
                                      is_find ? payload + rows_bytes : NULL, &one->err);
    if (status != RDT_OK)
        return status;
    server->counters.pulled_rows += count;
    rdti_ps_answer_send(server, one->worker, one->slot, (uint32_t)bytes);
    return RDT_OK;
}

static rdt_status
requests_check_chunk(struct requests_one *one)
{
    const struct rdt_ps_server *server = one->server;

    if (one->head.queue <= server->queue_count &&
        one->head.chunk < server->queues[one->head.queue - 1].chunks)
        return RDT_OK;
    return rdti_error_set(&one->err, RDT_EINVAL, 0, "chunk %llu of queue %u does not exist",
                          (unsigned long long)one->head.chunk, one->head.queue);
}

static rdt_status
requests_check_queue(struct requests_one *one)
{
    if (one->head.queue != 0 && one->head.queue <= one->server->queue_count)
        return RDT_OK;
    return rdti_error_set(&one->err, RDT_EINVAL, 0, "queue %u does not exist", one->head.queue);
}

static rdt_status
requests_lease(struct requests_one *one)
{
    rdt_status status = requests_check_queue(one);

    /* In RDT_PS_SYNC both replicas give the same leases. */
    if (status == RDT_OK && one->server->opts.mode != RDT_PS_SYNC)
        status = rdti_ps_replica_check_reader(one->server, one->worker, &one->err);
    if (status != RDT_OK)
        return status;
    if (one->client->has_lease_request)
        return rdti_error_set(&one->err, RDT_EBUSY, 0, "a lease was asked for twice");
    if (one->client->has_tick)
        return rdti_error_set(&one->err, RDT_EBUSY, 0, "a lease before the last tick was answered");
    rdti_ps_leases_confirm(one->server, one->worker);
    one->client->has_lease_request = true;
    one->client->lease_slot = one->slot;
    one->client->lease_queue = one->head.queue;
    rdti_ps_clocks_park(&one->server->clocks, one->worker, true);
    rdti_ps_steps_advance(one->server);
    return RDT_OK;
}

/* The tables that a tick says were pushed. */
static rdt_status
requests_mark_tables(struct requests_one *one, bool is_check)
{
    for (uint32_t i = 0; i < one->head.count; i++) {
        const uint32_t table = rdti_get_u32(one->payload + i * sizeof(uint32_t));
        const uint32_t dense = table & ~RDTI_PS_IS_DENSE;
        if (table != dense && dense < one->server->dense_count) {
            if (!is_check)
                one->client->dense_mask |= UINT64_C(1) << dense;
            continue;
        }
        if (table >= one->server->counters.tables) /* also if the peer has changed it since */
            return rdti_error_set(&one->err, RDT_EINVAL, 0,
                                  "a tick names table %u, which does "
                                  "not exist",
                                  table);
        if (!is_check)
            one->server->tables[table]->is_pushed = true;
    }
    return RDT_OK;
}

static rdt_status
requests_check_tick(struct requests_one *one, uint64_t tables_bytes, uint32_t members_bytes)
{
    rdt_status status = requests_check_bytes(one, tables_bytes + members_bytes);

    if (status == RDT_OK)
        status = requests_mark_tables(one, true);
    if (status == RDT_OK && one->head.queue != 0)
        status = requests_check_chunk(one);
    if (status == RDT_OK && one->client->has_tick)
        status = rdti_error_set(&one->err, RDT_EBUSY, 0, "a tick before the last one was answered");
    if (status == RDT_OK)
        status = rdti_ps_clocks_tick(&one->server->clocks, one->worker, one->head.clock, &one->err);
    return status;
}

/* The tick counts for the clocks, and its step for nothing else. */
static void
requests_void(const struct requests_one *one)
{
    struct rdti_ps_client *client = one->client;

    rdti_ps_steps_drop(one->server, client);
    if (client->tick_queue != 0)
        rdti_ps_queue_give_back(&one->server->queues[client->tick_queue - 1], client->tick_chunk,
                                one->worker);
    client->tick_queue = 0;
    client->has_ticked_chunk = false;
}

static rdt_status
requests_tick(struct requests_one *one)
{
    struct rdti_ps_client *client = one->client;
    const uint64_t tables_bytes = (uint64_t)one->head.count * sizeof(uint32_t);
    const uint32_t members_bytes = one->head.payload_bytes > tables_bytes
                                       ? rdti_ps_members_bytes(one->server->opts.workers)
                                       : 0;
    rdt_status status = requests_check_tick(one, tables_bytes, members_bytes);

    if (status != RDT_OK)
        return status;
    rdti_ps_leases_confirm(one->server, one->worker);
    client->dense_mask = 0;
    status = requests_mark_tables(one, false);
    if (status != RDT_OK)
        return status;
    client->is_void = client->is_refused || (one->head.flags & RDTI_PS_FLAG_DROP) != 0;
    client->is_refused = false;
    client->has_tick = true;
    client->tick_slot = one->slot;
    client->lr_scale = one->head.lr_scale;
    client->age = one->head.age;
    client->members_bytes = members_bytes;
    memcpy(client->members, one->payload + tables_bytes, members_bytes);
    client->has_ticked_chunk = one->head.queue != 0;
    client->tick_queue = one->head.queue;
    client->tick_chunk = one->head.chunk;
    if (client->is_void)
        requests_void(one);
    rdti_ps_steps_tick(one->server, one->worker);
    return RDT_OK;
}

static rdt_status
requests_call(struct requests_one *one)
{
    rdt_ps_server *server = one->server;
    const uint32_t at = (server->calls_first + server->calls_count) % server->arrivals_room;

    server->calls[at] = (struct rdti_ps_arrival){.worker = one->worker, .slot = one->slot};
    server->calls_count++;
    (void)pthread_cond_signal(&server->calls_changed);
    return RDT_OK;
}

static rdt_status
requests_holders(struct requests_one *one)
{
    char text[RDTI_PS_TEXT_BYTES];

    rdti_ps_holders_text(one->server, text);
    const size_t length = strlen(text);
    memcpy(rdti_ps_answer_payload(one->server, one->worker, one->slot), text, length);
    rdti_ps_answer_send(one->server, one->worker, one->slot, (uint32_t)length);
    return RDT_OK;
}

static void
requests_drop(rdt_ps_server *server, uint32_t worker)
{
    struct rdti_ps_client *client = &server->clients[worker];

    rdti_ps_steps_drop(server, client);
    client->has_tick = false;
    client->has_lease_request = false;
    for (uint32_t i = 0; i < server->queue_count; i++)
        rdti_ps_queue_return(&server->queues[i], worker);
    rdti_ps_clocks_out(&server->clocks, worker);
}

static rdt_status
requests_leave(struct requests_one *one)
{
    rdt_ps_server *server = one->server;

    if (!one->client->has_tick) /* else other servers may not have applied the step */
        rdti_ps_leases_confirm(server, one->worker);
    requests_drop(server, one->worker);
    rdti_ps_answer_send(server, one->worker, one->slot, 0);
    one->client->has_left = true;
    (void)pthread_cond_broadcast(&server->calls_changed);
    rdti_ps_steps_advance(server);
    return RDT_OK;
}

/* What only workers with replicas send. */
static rdt_status
requests_run_replica(struct requests_one *one)
{
    if (one->head.op == RDTI_PS_OP_SWITCH)
        return rdti_ps_replica_switch(one->server, one->worker, one->slot, &one->err);
    const rdt_status status = requests_check_queue(one);
    return status == RDT_OK
               ? rdti_ps_replica_take(one->server, one->worker, one->slot, &one->head, &one->err)
               : status;
}

static rdt_status
requests_run(struct requests_one *one)
{
    if (one->server->failure.status != RDT_OK)
        return rdti_error_copy(&one->err, &one->server->failure);
    if (one->client->has_left)
        return rdti_error_set(&one->err, RDT_EPROTO, 0, "worker %u has left", one->worker);
    switch (one->head.op) {
    case RDTI_PS_OP_PUSH:
        return requests_push(one);
    case RDTI_PS_OP_PULL:
        return requests_pull(one);
    case RDTI_PS_OP_TICK:
        return requests_tick(one);
    case RDTI_PS_OP_CALL:
        return requests_call(one);
    case RDTI_PS_OP_LEASE:
        return requests_lease(one);
    case RDTI_PS_OP_VALUES:
        rdti_ps_dense_bring(one->server, one->worker);
        rdti_ps_answer_send(one->server, one->worker, one->slot, 0);
        return RDT_OK;
    case RDTI_PS_OP_HOLDERS:
        return requests_holders(one);
    case RDTI_PS_OP_SWITCH:
    case RDTI_PS_OP_TAKE:
        return requests_run_replica(one);
    default:
        return requests_leave(one);
    }
}

/* Sequence numbers make each request happen once: 0 answered as a replay, 1 is new. */
static int
requests_is_new(struct requests_one *one)
{
    if (one->head.sequence > one->client->sequence)
        return 1;
    one->server->counters.replays++;
    rdti_ps_answer_send(one->server, one->worker, one->slot, 0);
    return 0;
}

void
rdti_ps_request_handle(rdt_ps_server *server, uint32_t worker, uint32_t slot)
{
    struct requests_one one = {.server = server,
                               .client = &server->clients[worker],
                               .worker = worker,
                               .slot = slot};
    const uint8_t *at = (const uint8_t *)rdt_region_addr(one.client->inbox) +
                        slot * rdti_ps_slot_stride(server->opts.slot_bytes);
    uint8_t head[RDTI_PS_HEAD_BYTES];

    rdti_error_init(&one.err, RDT_RANK_UNKNOWN);
    memcpy(head, at, sizeof(head));
    one.payload = at + RDTI_PS_HEAD_BYTES;
    if (rdti_ps_request_decode(head, sizeof(head), server->opts.slot_bytes, &one.head, &one.err) !=
        RDT_OK) {
        rdti_ps_answer_end(server, worker, one.err.message);
        rdti_ps_arrivals_end(server, worker, &one.err);
        return;
    }
    server->counters.requests++;
    one.client->heard_ns = rdti_now_ns();
    one.client->slots[slot].sequence = one.head.sequence;
    if (!requests_is_new(&one))
        return;
    one.client->sequence = one.head.sequence;
    const rdt_status status = requests_run(&one);
    if (status != RDT_OK && one.head.op == RDTI_PS_OP_PUSH)
        one.client->is_refused = true;
    if (status != RDT_OK)
        rdti_ps_answer_error(server, worker, slot, status, one.err.message);
}

void
rdti_ps_request_end(rdt_ps_server *server, uint32_t worker)
{
    struct rdti_ps_client *client = &server->clients[worker];
    const bool has_waited = client->has_tick || client->has_lease_request;
    char holders[RDTI_PS_TEXT_BYTES] = "";
    struct rdt_error err;

    if (client->has_left)
        return;
    if (has_waited)
        rdti_ps_holders_text(server, holders);
    requests_drop(server, worker);
    client->is_dead = true;
    server->counters.workers_dead++;
    (void)pthread_cond_broadcast(&server->calls_changed);
    if (server->opts.goes_on) {
        rdti_ps_steps_advance(server);
        return;
    }
    (void)rdti_error_set_rank(&err, RDT_EPEER, client->end.peer_rank,
                              holders[0] != '\0'
                                  ? "worker %u is gone: %.200s; it had waited: %.200s"
                                  : "worker %u is gone: %.400s%s",
                              worker, client->end.message, holders);
    rdti_ps_server_fail(server, &err);
}
