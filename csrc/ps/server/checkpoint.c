/* SPDX-License-Identifier: Apache-2.0
 * What a checkpoint has: read after the cut, and put back into another server. */
#include <inttypes.h>
#include <string.h>

#include "base/error.h"
#include "ps/server/dense.h"
#include "ps/server/server_impl.h"

/* Each under server->lock. */
static struct rdti_ps_table *
checkpoint_table(rdt_ps_server *server, uint32_t table, struct rdt_error *err)
{
    if (table < server->counters.tables)
        return server->tables[table];
    (void)rdti_error_set(err, RDT_EINVAL, 0, "table %u does not exist", table);
    return NULL;
}

static struct rdti_ps_dense *
checkpoint_dense(rdt_ps_server *server, uint32_t id, struct rdt_error *err)
{
    if (id < server->dense_count)
        return server->dense[id];
    (void)rdti_error_set(err, RDT_EINVAL, 0, "dense model %u does not exist", id);
    return NULL;
}

static rdt_status
checkpoint_no_queue(uint32_t id, uint64_t chunks, struct rdt_error *err)
{
    return rdti_error_set(err, RDT_EINVAL, 0, "queue %u of %" PRIu64 " chunks does not exist", id,
                          chunks);
}

static struct rdti_ps_queue *
checkpoint_queue(rdt_ps_server *server, uint32_t id, uint64_t chunks, struct rdt_error *err)
{
    if (id > 0 && id <= server->queue_count && server->queues[id - 1].chunks == chunks)
        return &server->queues[id - 1];
    (void)checkpoint_no_queue(id, chunks, err);
    return NULL;
}

static rdt_status
checkpoint_no_copy(struct rdt_error *err)
{
    return rdti_error_set(err, RDT_EINVAL, 0, "no checkpoint that is read has it");
}

static rdt_status
checkpoint_read_rows(rdt_ps_server *server, struct rdti_ps_table *table, uint32_t partition,
                     uint64_t *next, uint8_t *buf, uint64_t cap, uint64_t *len_out,
                     struct rdt_error *err)
{
    if (table->snapshot == NULL || partition >= RDT_PS_PARTITIONS ||
        table->map.owner[partition] != server->opts.index)
        return checkpoint_no_copy(err);
    if (table->snapshot->has_failed)
        return rdti_error_set(err, RDT_ENOMEM, 0,
                              "no memory for rows that have changed while they were saved");
    if (cap < rdti_ps_table_record_bytes(table))
        return rdti_error_set(err, RDT_ERANGE, 0, "%" PRIu64 " B are less than a row's record",
                              cap);
    return rdti_ps_table_read(table, partition, next, buf, cap, len_out, err);
}

rdt_status
rdt_ps_server_record_bytes(rdt_ps_server *server, uint32_t table, uint64_t *bytes_out,
                           struct rdt_error *err)
{
    (void)pthread_mutex_lock(&server->lock);
    const struct rdti_ps_table *one = checkpoint_table(server, table, err);
    if (one != NULL)
        *bytes_out = rdti_ps_table_record_bytes(one);
    (void)pthread_mutex_unlock(&server->lock);
    return one != NULL ? RDT_OK : RDT_EINVAL;
}

rdt_status
rdt_ps_server_read_rows(rdt_ps_server *server, uint32_t table, uint32_t partition, uint64_t *next,
                        uint8_t *buf, uint64_t cap, uint64_t *len_out, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_table *one = checkpoint_table(server, table, err);
    if (one != NULL)
        status = checkpoint_read_rows(server, one, partition, next, buf, cap, len_out, err);
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* Whether the elements exist. */
static bool
checkpoint_has_span(const struct rdti_ps_dense *dense, uint32_t array, uint64_t first,
                    uint64_t count, struct rdt_error *err)
{
    if (array < rdti_ps_dense_arrays(dense) && first <= dense->opts.count &&
        count <= dense->opts.count - first)
        return true;
    (void)rdti_error_set(err, RDT_EINVAL, 0,
                         "dense: elements %" PRIu64 " to %" PRIu64 " of array %u do not exist",
                         first, first + count, array);
    return false;
}

rdt_status
rdt_ps_server_read_dense(rdt_ps_server *server, uint32_t id, uint32_t array, uint64_t first,
                         uint64_t count, float *out, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    const struct rdti_ps_dense *dense = checkpoint_dense(server, id, err);
    if (dense != NULL && dense->copy == NULL)
        status = checkpoint_no_copy(err);
    else if (dense != NULL && checkpoint_has_span(dense, array, first, count, err)) {
        memcpy(out, dense->copy + array * dense->opts.count + first, count * sizeof(float));
        status = RDT_OK;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

rdt_status
rdt_ps_server_read_queue(rdt_ps_server *server, uint32_t id, uint8_t *out, uint64_t chunks,
                         struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    const bool is_there = id > 0 && id <= server->queue_count;
    const struct rdti_ps_queue *queue = is_there ? &server->queues[id - 1] : NULL;
    if (queue != NULL && queue->saved == NULL) {
        status = checkpoint_no_copy(err);
    } else if (queue == NULL || queue->saved_chunks != chunks) { /* it may have grown since */
        (void)checkpoint_no_queue(id, chunks, err);
    } else {
        memcpy(out, queue->saved, chunks);
        status = RDT_OK;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* Where a step is counted; of the copy, or of what a server holds. */
static uint64_t *
checkpoint_step(rdt_ps_server *server, uint32_t kind, uint32_t id, bool is_copy,
                struct rdt_error *err)
{
    if (kind == RDT_PS_TABLE) {
        struct rdti_ps_table *table = checkpoint_table(server, id, err);
        if (table == NULL || (is_copy && table->snapshot == NULL))
            return NULL;
        return is_copy ? &table->snapshot->step : &table->step;
    }
    struct rdti_ps_dense *dense = checkpoint_dense(server, id, err);
    if (dense == NULL || (is_copy && dense->copy == NULL))
        return NULL;
    return is_copy ? &dense->copy_step : &dense->step;
}

rdt_status
rdt_ps_server_read_step(rdt_ps_server *server, uint32_t kind, uint32_t id, uint64_t *step_out,
                        struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    (void)pthread_mutex_lock(&server->lock);
    const uint64_t *step = checkpoint_step(server, kind, id, true, err);
    if (step == NULL)
        status = checkpoint_no_copy(err);
    else
        *step_out = *step;
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* ---- Putting back ------------------------------------------------------------------------ */

rdt_status
rdt_ps_server_write_rows(rdt_ps_server *server, uint32_t table, const uint8_t *records,
                         uint64_t count, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_table *one = checkpoint_table(server, table, err);
    if (one != NULL)
        status = rdti_ps_table_write(one, server->opts.index, records, count, err);
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

rdt_status
rdt_ps_server_write_dense(rdt_ps_server *server, uint32_t id, uint32_t array, uint64_t first,
                          uint64_t count, const float *in, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    const struct rdti_ps_dense *dense = checkpoint_dense(server, id, err);
    if (dense != NULL && checkpoint_has_span(dense, array, first, count, err)) {
        for (uint64_t done = 0; done < count;) {
            uint64_t some = count - done;
            float *to = rdti_ps_dense_span(dense, array, first + done, &some);
            memcpy(to, in + done, some * sizeof(float));
            done += some;
        }
        status = RDT_OK;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

rdt_status
rdt_ps_server_write_queue(rdt_ps_server *server, uint32_t id, const uint8_t *in, uint64_t chunks,
                          struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_queue *queue = checkpoint_queue(server, id, chunks, err);
    if (queue != NULL && queue->applied + queue->next > 0) {
        (void)rdti_error_set(err, RDT_EINVAL, 0, "queue %u is in use", id);
    } else if (queue != NULL) {
        rdti_ps_queue_restore(queue, in);
        status = RDT_OK;
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

rdt_status
rdt_ps_server_write_step(rdt_ps_server *server, uint32_t kind, uint32_t id, uint64_t step,
                         struct rdt_error *err)
{
    (void)pthread_mutex_lock(&server->lock);
    uint64_t *to = checkpoint_step(server, kind, id, false, err);
    if (to != NULL)
        *to = step;
    (void)pthread_mutex_unlock(&server->lock);
    return to != NULL ? RDT_OK : RDT_EINVAL;
}

void
rdt_ps_server_write_clocks(rdt_ps_server *server, const uint64_t *clocks)
{
    (void)pthread_mutex_lock(&server->lock);
    for (uint32_t worker = 0; worker < server->opts.workers; worker++)
        server->clocks.of[worker].ticks = clocks[worker];
    (void)pthread_mutex_unlock(&server->lock);
}
