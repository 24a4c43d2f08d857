/* SPDX-License-Identifier: Apache-2.0
 * Steps: staged pushes are applied when the clocks permit, and ticks are answered. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "ps/server/dense.h"
#include "ps/server/server_impl.h"
#include "rdmatensor_ext.h"

/* The pushes that are applied together: of all members, or of one worker. */
struct steps_pushes {
    rdt_ps_server *server;
    uint32_t first; /* workers, in the order of their ranks */
    uint32_t end;
    uint32_t divisor;
    double lr_scale;
};

/* Whether a worker's stage takes part: in a round, that of each worker that has ticked. */
static bool
steps_takes(const struct steps_pushes *pushes, uint32_t worker)
{
    return pushes->server->clients[worker].has_tick;
}

/* The pushes are about to be applied, or are dropped. */
static void
steps_unreserve(rdt_ps_server *server, const struct rdti_ps_client *client)
{
    const struct rdti_ps_stage *stage = &client->stage;

    for (uint32_t i = 0; i < stage->count; i++)
        if (stage->entries[i].has_marks)
            rdti_ps_table_unreserve(server->tables[stage->entries[i].table],
                                    rdti_ps_stage_ids(stage, &stage->entries[i]),
                                    stage->entries[i].count,
                                    rdti_ps_stage_marks(stage, &stage->entries[i]));
}

static void
steps_clear(rdt_ps_server *server, struct rdti_ps_client *client)
{
    server->counters.staged_bytes -= client->stage.used_bytes;
    rdti_ps_stage_clear(&client->stage);
}

void
rdti_ps_steps_drop(rdt_ps_server *server, struct rdti_ps_client *client)
{
    steps_unreserve(server, client);
    steps_clear(server, client);
}

/* Drops the pushes for chunks that were applied before: a worker died after this server had applied
 * its step and before another one had, and a second worker repeated the chunk. */
static void
steps_drop_repeated(const struct steps_pushes *pushes)
{
    rdt_ps_server *server = pushes->server;

    for (uint32_t worker = pushes->first; worker < pushes->end; worker++) {
        struct rdti_ps_client *client = &server->clients[worker];
        if (!client->has_tick || client->is_void || client->tick_queue == 0 ||
            rdti_ps_queue_apply(&server->queues[client->tick_queue - 1], client->tick_chunk))
            continue;
        client->is_void = true;
        server->counters.replays++;
        rdti_ps_steps_drop(server, client);
    }
}

/* The entries of one table: their number, the ids in them, and one of them. */
static uint32_t
steps_count(const struct steps_pushes *pushes, uint32_t table, uint64_t *ids, uint32_t *worker_out,
            const struct rdti_ps_staged **entry_out)
{
    uint32_t entries = 0;

    *ids = 0;
    for (uint32_t worker = pushes->first; worker < pushes->end; worker++) {
        const struct rdti_ps_stage *stage = &pushes->server->clients[worker].stage;
        for (uint32_t i = 0; steps_takes(pushes, worker) && i < stage->count; i++) {
            if (stage->entries[i].table != table)
                continue;
            entries++;
            *ids += stage->entries[i].count;
            *worker_out = worker;
            *entry_out = &stage->entries[i];
        }
    }
    return entries;
}

/* One push with distinct ids is applied out of the stage. */
static rdt_status
steps_apply_single(const struct steps_pushes *pushes, struct rdti_ps_table *table, uint32_t worker,
                   const struct rdti_ps_staged *entry, struct rdt_error *err)
{
    rdt_ps_server *server = pushes->server;
    const struct rdti_ps_stage *stage = &server->clients[worker].stage;
    float *rows = rdti_ps_stage_rows(stage, entry);

    if (pushes->divisor > 1 && rdti_ps_rule_is_mean(&table->opts.rule))
        server->kernels->divide(rows, (float)pushes->divisor, entry->count * table->opts.dim);
    server->counters.applied_rows += entry->count;
    return rdti_ps_table_apply(table, server->kernels, pushes->lr_scale,
                               rdti_ps_stage_ids(stage, entry), rows, entry->count, err);
}

static void
steps_merge(const struct steps_pushes *pushes, uint32_t number)
{
    rdt_ps_server *server = pushes->server;
    const struct rdt_ps_table_opts *opts = &server->tables[number]->opts;
    const bool is_last = rdti_ps_rule_is_last(&opts->rule) != 0;

    for (uint32_t worker = pushes->first; worker < pushes->end; worker++) {
        const struct rdti_ps_stage *stage = &server->clients[worker].stage;
        for (uint32_t i = 0; steps_takes(pushes, worker) && i < stage->count; i++) {
            const struct rdti_ps_staged *entry = &stage->entries[i];
            const uint64_t *ids = rdti_ps_stage_ids(stage, entry);
            const float *rows = rdti_ps_stage_rows(stage, entry);
            for (uint64_t k = 0; entry->table == number && k < entry->count; k++)
                rdti_ps_merge_row(&server->merge, server->kernels, ids[k], rows + k * opts->dim,
                                  is_last);
        }
    }
}

static rdt_status
steps_apply_table(const struct steps_pushes *pushes, uint32_t number, struct rdt_error *err)
{
    rdt_ps_server *server = pushes->server;
    struct rdti_ps_table *table = server->tables[number];
    struct rdti_ps_merge *merge = &server->merge;
    const struct rdti_ps_staged *entry = NULL;
    uint32_t worker = 0;
    uint64_t ids;
    const uint32_t entries = steps_count(pushes, number, &ids, &worker, &entry);
    rdt_status status;

    if (entries == 1 && entry->is_unique)
        return steps_apply_single(pushes, table, worker, entry, err);
    status = rdti_ps_merge_begin(merge, table->opts.dim, ids, err);
    if (status == RDT_OK)
        status = rdti_ps_merge_reserve_rows(merge, ids, err);
    if (status != RDT_OK)
        return status;
    steps_merge(pushes, number);
    if (pushes->divisor > 1 && rdti_ps_rule_is_mean(&table->opts.rule))
        server->kernels->divide(merge->rows, (float)pushes->divisor,
                                merge->count * table->opts.dim);
    server->counters.applied_rows += merge->count;
    return rdti_ps_table_apply(table, server->kernels, pushes->lr_scale, merge->ids, merge->rows,
                               merge->count, err);
}

/* Memory for the largest merge, before anything is applied. */
static rdt_status
steps_reserve(const struct steps_pushes *pushes, struct rdt_error *err)
{
    rdt_ps_server *server = pushes->server;
    const struct rdti_ps_staged *entry = NULL;
    rdt_status status = RDT_OK;
    uint32_t worker;
    uint64_t ids;

    for (uint32_t i = 0; i < server->counters.tables && status == RDT_OK; i++) {
        const uint32_t entries =
            server->tables[i]->is_pushed ? steps_count(pushes, i, &ids, &worker, &entry) : 0;
        if (entries == 0 || (entries == 1 && entry->is_unique))
            continue;
        status = rdti_ps_merge_begin(&server->merge, server->tables[i]->opts.dim, ids, err);
        if (status == RDT_OK)
            status = rdti_ps_merge_reserve_rows(&server->merge, ids, err);
    }
    return status;
}

/* A mean is over the workers whose step counts, whatever they have pushed. */
static void
steps_count_workers(struct steps_pushes *pushes)
{
    pushes->divisor = 0;
    for (uint32_t worker = pushes->first; worker < pushes->end; worker++) {
        const struct rdti_ps_client *client = &pushes->server->clients[worker];
        if (client->has_tick && !client->is_void)
            pushes->divisor++;
    }
}

/* The application's entry in the trace; NULL without memory. */
static rdt_transfer *
steps_trace(rdt_ps_server *server)
{
    rdt_transfer *span;

    if (rdt_transfer_create(server->ctx, &span, NULL) != RDT_OK)
        return NULL;
    rdt_transfer_trace(span, "ps apply", RDT_RANK_UNKNOWN, server->counters.staged_bytes);
    return span;
}

static void
steps_trace_end(rdt_transfer *span, rdt_status status, const struct rdt_error *err)
{
    if (span != NULL)
        rdt_transfer_finish(span, status, err);
    rdt_transfer_free(span);
}

static void
steps_apply(struct steps_pushes *pushes)
{
    rdt_ps_server *server = pushes->server;
    const uint64_t start_ns = rdti_now_ns();
    rdt_transfer *span = steps_trace(server);
    struct rdt_error err;
    rdt_status status = RDT_OK;

    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    steps_drop_repeated(pushes);
    steps_count_workers(pushes);
    status = steps_reserve(pushes, &err);
    for (uint32_t worker = pushes->first; worker < pushes->end; worker++)
        if (steps_takes(pushes, worker))
            steps_unreserve(server, &server->clients[worker]);
    for (uint32_t i = 0; i < server->counters.tables && status == RDT_OK; i++) {
        if (server->tables[i]->is_pushed)
            status = steps_apply_table(pushes, i, &err);
        server->tables[i]->is_pushed = false;
    }
    for (uint32_t i = 0; i < server->dense_count && status == RDT_OK; i++)
        rdti_ps_dense_apply(&(struct rdti_ps_dense_step){.server = server,
                                                         .first = pushes->first,
                                                         .end = pushes->end,
                                                         .divisor = pushes->divisor,
                                                         .lr_scale = pushes->lr_scale},
                            server->dense[i]);
    for (uint32_t worker = pushes->first; worker < pushes->end; worker++) {
        struct rdti_ps_client *client = &server->clients[worker];
        if (!client->has_tick)
            continue;
        steps_clear(server, client);
        rdti_ps_clocks_applied(&server->clocks, worker, client->age);
    }
    server->counters.apply_ns += rdti_now_ns() - start_ns;
    steps_trace_end(span, status, &err);
    if (status != RDT_OK)
        rdti_ps_server_fail(server, &err);
}

/* The members of the round that has begun to end: NULL for all workers. */
static const uint8_t *
steps_members(const rdt_ps_server *server)
{
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (server->clients[worker].has_tick && server->clients[worker].members_bytes > 0)
            return server->clients[worker].members;
    return NULL;
}

static bool
steps_is_member(const rdt_ps_server *server, const uint8_t *members, uint32_t worker)
{
    if (server->clocks.of[worker].state == RDTI_PS_OUT)
        return false;
    if (members != NULL)
        return (members[worker / 8] >> worker % 8 & 1) != 0;
    return server->clocks.of[worker].state == RDTI_PS_IN;
}

/* RDT_PS_SYNC: whether all members have ticked; then their number, and that they agree. */
static bool
steps_is_round(rdt_ps_server *server, struct steps_pushes *pushes, struct rdt_error *err)
{
    const struct rdti_ps_client *one = NULL;
    const uint8_t *members = steps_members(server);

    *pushes = (struct steps_pushes){.server = server, .end = server->opts.workers};
    for (uint32_t worker = 0; worker < server->opts.workers; worker++) {
        const struct rdti_ps_client *client = &server->clients[worker];
        if (!steps_is_member(server, members, worker))
            continue;
        if (!client->has_tick)
            return false;
        if (one != NULL &&
            !(client->lr_scale >= one->lr_scale && client->lr_scale <= one->lr_scale))
            (void)rdti_error_set(err, RDT_EMISMATCH, 0,
                                 "worker %u scales the learning rate of this step by %g, and "
                                 "another one by %g",
                                 worker, client->lr_scale, one->lr_scale);
        one = client;
        pushes->lr_scale = client->lr_scale;
    }
    return one != NULL;
}

/* Server 0 alone knows which workers wait for leases: the other servers would wait for their ticks
 * in a round that names no members. */
static void
steps_check_parked(const rdt_ps_server *server, struct rdt_error *err)
{
    if (server->opts.index != 0 || server->opts.servers == 1 || steps_members(server) != NULL)
        return;
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        if (server->clients[worker].has_lease_request) { /* an observer is parked without one */
            (void)rdti_error_set(err, RDT_EPROTO, 0,
                                 "a worker called clock() without a batch while worker %u waits "
                                 "for one: in \"sync\" with several servers each clock() ends a "
                                 "batch until all are done",
                                 worker);
            return;
        }
}

static void
steps_answer(rdt_ps_server *server, bool is_round)
{
    for (uint32_t worker = 0; worker < server->opts.workers; worker++) {
        struct rdti_ps_client *client = &server->clients[worker];
        const uint64_t own = server->clocks.of[worker].ticks;
        const bool is_quiet = rdti_ps_is_quiet(server, worker);
        /* With SSP, server 0 alone holds workers: it knows which of them wait for leases. */
        const uint64_t needed =
            server->opts.index != 0 || is_quiet
                ? 0
                : rdti_ps_clocks_needed(server->opts.mode, server->opts.staleness, own);
        if (!client->has_tick ||
            (server->opts.mode == RDT_PS_SYNC ? !is_round
                                              : rdti_ps_clocks_least(&server->clocks) < needed))
            continue;
        client->has_tick = false;
        if (is_quiet)
            rdti_ps_dense_skip(server, worker);
        else if (server->opts.mode != RDT_PS_SSP ||
                 server->opts.index == 0) /* else they are asked for */
            rdti_ps_dense_bring(server, worker);
        rdti_ps_answer_send(server, worker, client->tick_slot, 0);
    }
}

void
rdti_ps_steps_advance(rdt_ps_server *server)
{
    struct steps_pushes pushes;
    struct rdt_error err;
    bool is_round = false;

    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    if (server->failure.status != RDT_OK)
        return;
    if (server->opts.mode == RDT_PS_SYNC) {
        is_round = steps_is_round(server, &pushes, &err);
        if (is_round && err.status == RDT_OK)
            steps_check_parked(server, &err);
        if (is_round && err.status != RDT_OK) {
            rdti_ps_server_fail(server, &err);
            return;
        }
        if (is_round) {
            steps_apply(&pushes);
            server->counters.rounds++;
        }
    }
    if (server->failure.status == RDT_OK) {
        steps_answer(server, is_round);
        rdti_ps_leases_advance(server);
    }
}

bool
rdti_ps_steps_needs(const rdt_ps_server *server, uint32_t worker)
{
    bool has_tick = false;

    for (uint32_t other = 0; other < server->opts.workers; other++)
        has_tick = has_tick || server->clients[other].has_tick;
    return has_tick && !server->clients[worker].has_tick &&
           steps_is_member(server, steps_members(server), worker);
}

void
rdti_ps_steps_tick(rdt_ps_server *server, uint32_t worker)
{
    server->counters.ticks++;
    if (server->opts.mode != RDT_PS_SYNC) {
        struct steps_pushes own = {.server = server,
                                   .first = worker,
                                   .end = worker + 1,
                                   .lr_scale = server->clients[worker].lr_scale};
        steps_apply(&own);
    }
    rdti_ps_steps_advance(server);
}

void
rdti_ps_server_fail(rdt_ps_server *server, const struct rdt_error *err)
{
    if (server->failure.status != RDT_OK)
        return;
    server->failure = *err;
    rdti_ps_answer_failure(server);
    (void)pthread_cond_broadcast(&server->calls_changed);
}
