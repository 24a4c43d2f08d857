/* SPDX-License-Identifier: Apache-2.0
 * Dense models: gradients are averaged and applied where they were written. */
#include "ps/server/dense.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum { BLOCK_FLOATS = 16384 }; /* which stay in a core's cache through all passes */

void
rdti_ps_dense_destroy(struct rdti_ps_dense *dense, uint32_t workers)
{
    if (dense == NULL)
        return;
    for (uint32_t worker = 0; dense->slots != NULL && worker < workers; worker++)
        rdt_region_free(dense->slots[worker], NULL, NULL);
    for (uint32_t worker = 0; dense->copies != NULL && worker < workers; worker++)
        rdt_region_free(dense->copies[worker], NULL, NULL);
    rdt_region_free(dense->values_region, NULL, NULL);
    rdt_region_free(dense->state_region, NULL, NULL);
    free(dense->copy);
    free(dense->slots);
    free(dense->copies);
    free(dense->params);
    free(dense->sent);
    free(dense->sum);
    free(dense);
}

static rdt_status
dense_allocate_worker(rdt_ps_server *server, struct rdti_ps_dense *dense, uint32_t worker,
                      struct rdt_error *err)
{
    const uint64_t bytes = dense->opts.count * sizeof(float);
    rdt_status status =
        rdt_region_alloc(server->ctx, bytes, RDT_REGION_ZERO, &dense->slots[worker], err);

    if (status == RDT_OK && server->opts.mode != RDT_PS_SYNC)
        status = rdt_region_alloc(server->ctx, bytes, 0, &dense->copies[worker], err);
    return status;
}

static rdt_status
dense_allocate(rdt_ps_server *server, struct rdti_ps_dense *dense, struct rdt_error *err)
{
    const uint64_t bytes = dense->opts.count * sizeof(float);
    const uint64_t state_floats = rdti_ps_rule_state_floats(&dense->opts.rule, dense->opts.count);
    const uint32_t workers = server->opts.workers;
    rdt_status status;

    dense->slots = calloc(workers, sizeof(*dense->slots));
    dense->copies = calloc(workers, sizeof(*dense->copies));
    dense->params = calloc(workers, sizeof(*dense->params));
    dense->sent = calloc(workers, sizeof(*dense->sent));
    dense->sum = malloc(BLOCK_FLOATS * sizeof(*dense->sum));
    if (dense->slots == NULL || dense->copies == NULL || dense->params == NULL ||
        dense->sent == NULL || dense->sum == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a dense model for %u workers", workers);
    status = rdt_region_alloc(server->ctx, bytes, RDT_REGION_ZERO, &dense->values_region, err);
    if (status == RDT_OK)
        status = rdt_region_alloc(server->ctx, state_floats * sizeof(float), 0,
                                  &dense->state_region, err);
    for (uint32_t worker = 0; worker < workers && status == RDT_OK; worker++)
        status = dense_allocate_worker(server, dense, worker, err);
    if (status != RDT_OK)
        return status;
    dense->values = rdt_region_addr(dense->values_region);
    dense->state = rdt_region_addr(dense->state_region);
    for (uint64_t i = 0; i < state_floats; i++)
        dense->state[i] = rdti_ps_rule_initial(&dense->opts.rule);
    return RDT_OK;
}

static rdt_status
dense_check(const struct rdt_ps_dense_opts *opts, struct rdt_error *err)
{
    if (opts == NULL || opts->struct_size != sizeof(*opts))
        return rdti_error_set(err, RDT_EINVAL, 0, "dense: not a struct of this version");
    if (opts->count > UINT64_C(1) << 40 || opts->rule.kind == RDT_PS_ROW_ADAGRAD ||
        opts->rule.kind == RDT_PS_LAZY_ADAM || opts->rule.kind == RDT_PS_CUSTOM)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "dense: %llu floats with rule %u, which is for rows, or too many",
                              (unsigned long long)opts->count, opts->rule.kind);
    return rdt_ps_rule_check(&opts->rule, err);
}

rdt_status
rdt_ps_server_add_dense(rdt_ps_server *server, const struct rdt_ps_dense_opts *opts,
                        uint32_t *id_out, struct rdt_error *err)
{
    rdt_status status = dense_check(opts, err);

    if (status != RDT_OK)
        return status;
    struct rdti_ps_dense *dense = calloc(1, sizeof(*dense));
    if (dense == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a dense model");
    dense->opts = *opts;
    status = dense_allocate(server, dense, err);
    (void)pthread_mutex_lock(&server->lock);
    if (status == RDT_OK && server->dense_count == RDTI_PS_DENSE_MAX)
        status = rdti_error_set(err, RDT_EINVAL, 0, "there are %d dense models already",
                                RDTI_PS_DENSE_MAX);
    if (status == RDT_OK) {
        dense->number = server->dense_count;
        *id_out = server->dense_count;
        server->dense[server->dense_count++] = dense;
    }
    (void)pthread_mutex_unlock(&server->lock);
    if (status != RDT_OK)
        rdti_ps_dense_destroy(dense, server->opts.workers);
    return status;
}

/* Under server->lock. */
static struct rdti_ps_dense *
dense_find(rdt_ps_server *server, uint32_t id, uint32_t worker, struct rdt_error *err)
{
    if (id < server->dense_count && worker < server->opts.workers)
        return server->dense[id];
    (void)rdti_error_set(err, RDT_EINVAL, 0, "dense model %u of worker %u does not exist", id,
                         worker);
    return NULL;
}

rdt_status
rdt_ps_server_attach_dense(rdt_ps_server *server, uint32_t id, uint32_t worker,
                           const struct rdt_remote_region *params,
                           struct rdt_remote_region *slot_out, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_dense *dense = dense_find(server, id, worker, err);
    if (dense != NULL &&
        (dense->opts.params_off + dense->opts.count) * sizeof(float) > params->len_bytes) {
        status = rdti_error_set(err, RDT_EINVAL, 0, "dense: parameters of %llu B are too few",
                                (unsigned long long)params->len_bytes);
    } else if (dense != NULL) {
        dense->params[worker] = *params;
        status = rdt_region_export(dense->slots[worker], slot_out, err);
    }
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* What is written to a worker. It must not change until the worker has taken the answer that
 * follows: in RDT_PS_SYNC it does not until the worker's next tick, else it is a copy. */
static const float *
dense_source(const rdt_ps_server *server, const struct rdti_ps_dense *dense, uint32_t worker)
{
    if (server->opts.mode == RDT_PS_SYNC)
        return dense->values;
    float *copy = rdt_region_addr(dense->copies[worker]);
    memcpy(copy, dense->values, dense->opts.count * sizeof(float));
    return copy;
}

static rdt_status
dense_send(rdt_ps_server *server, struct rdti_ps_dense *dense, uint32_t worker,
           struct rdt_error *err)
{
    const struct rdti_ps_client *client = &server->clients[worker];

    if (client->ep == NULL || client->is_dead || client->has_left ||
        dense->params[worker].len_bytes == 0)
        return RDT_OK;
    dense->sent[worker] = dense->step;
    return rdt_endpoint_write(client->ep, dense_source(server, dense, worker),
                              dense->opts.count * sizeof(float), &dense->params[worker],
                              dense->opts.params_off * sizeof(float), RDT_NOTIFY_NONE, NULL, err);
}

bool
rdti_ps_dense_is_stale(const rdt_ps_server *server, uint32_t worker)
{
    for (uint32_t i = 0; i < server->dense_count; i++)
        if (server->dense[i]->params[worker].len_bytes != 0 &&
            server->dense[i]->sent[worker] != server->dense[i]->step)
            return true;
    return false;
}

void
rdti_ps_dense_bring(rdt_ps_server *server, uint32_t worker)
{
    struct rdt_error err;

    rdti_error_init(&err, RDT_RANK_UNKNOWN);
    for (uint32_t i = 0; i < server->dense_count; i++) {
        struct rdti_ps_dense *dense = server->dense[i];
        if (dense->sent[worker] == dense->step)
            continue;
        if (dense_send(server, dense, worker, &err) != RDT_OK) {
            rdti_ps_arrivals_end(server, worker, &err);
            return;
        }
    }
}

void
rdti_ps_dense_forget(rdt_ps_server *server, uint32_t worker)
{
    for (uint32_t i = 0; i < server->dense_count; i++)
        server->dense[i]->sent[worker] = UINT64_MAX;
}

void
rdti_ps_dense_skip(rdt_ps_server *server, uint32_t worker)
{
    for (uint32_t i = 0; i < server->dense_count; i++)
        server->dense[i]->sent[worker] = server->dense[i]->step;
}

rdt_status
rdt_ps_server_load_dense(rdt_ps_server *server, uint32_t id, uint32_t worker, struct rdt_error *err)
{
    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_dense *dense = dense_find(server, id, worker, err);
    if (dense != NULL)
        memcpy(dense->values, rdt_region_addr(dense->slots[worker]),
               dense->opts.count * sizeof(float));
    (void)pthread_mutex_unlock(&server->lock);
    return dense != NULL ? RDT_OK : RDT_EINVAL;
}

rdt_status
rdt_ps_server_send_dense(rdt_ps_server *server, uint32_t id, uint32_t worker, struct rdt_error *err)
{
    rdt_status status = RDT_EINVAL;

    (void)pthread_mutex_lock(&server->lock);
    struct rdti_ps_dense *dense = dense_find(server, id, worker, err);
    if (dense != NULL)
        status = dense_send(server, dense, worker, err);
    (void)pthread_mutex_unlock(&server->lock);
    return status;
}

/* Whether a worker's gradients take part. */
static bool
dense_takes(const struct rdti_ps_dense_step *step, const struct rdti_ps_dense *dense,
            uint32_t worker)
{
    const struct rdti_ps_client *client = &step->server->clients[worker];

    return client->has_tick && !client->is_void && (client->dense_mask >> dense->number & 1) != 0;
}

static bool
dense_has_gradients(const struct rdti_ps_dense_step *step, const struct rdti_ps_dense *dense)
{
    for (uint32_t worker = step->first; worker < step->end; worker++)
        if (dense_takes(step, dense, worker))
            return true;
    return false;
}

/* The mean of the slots' blocks, in the order of ranks; in place if there is one worker. A worker
 * that has pushed none counts as one that has pushed zeros. */
static const float *
dense_mean(const struct rdti_ps_dense_step *step, const struct rdti_ps_dense *dense, uint64_t first,
           uint64_t count)
{
    const struct rdti_ps_kernels *kernels = step->server->kernels;
    const float *only = NULL;
    uint32_t slots = 0;

    for (uint32_t worker = step->first; worker < step->end; worker++) {
        if (!dense_takes(step, dense, worker))
            continue;
        const float *slot = (const float *)rdt_region_addr(dense->slots[worker]) + first;
        slots++;
        if (slots == 1) {
            only = slot;
            continue;
        }
        if (slots == 2)
            memcpy(dense->sum, only, count * sizeof(float));
        kernels->add(dense->sum, slot, count);
    }
    const bool is_divided = step->divisor > 1 && rdti_ps_rule_is_mean(&dense->opts.rule);
    if (slots <= 1 && !is_divided)
        return only;
    if (slots == 1)
        memcpy(dense->sum, only, count * sizeof(float));
    if (is_divided)
        kernels->divide(dense->sum, (float)step->divisor, count);
    return dense->sum;
}

/* The state of a block is together, as the kernels want it: array after array. */
static void
dense_update(const struct rdti_ps_dense *dense, const struct rdti_ps_kernels *kernels,
             const struct rdti_ps_factors *factors, const float *gradient, uint64_t first,
             uint64_t count)
{
    const uint64_t arrays = rdti_ps_rule_state_floats(&dense->opts.rule, 1);

    kernels->update[dense->opts.rule.kind](factors, dense->values + first,
                                           dense->state + arrays * first, gradient, count);
}

void
rdti_ps_dense_apply(const struct rdti_ps_dense_step *step, struct rdti_ps_dense *dense)
{
    const rdt_ps_server *server = step->server;
    struct rdti_ps_factors factors;

    if (!dense_has_gradients(step, dense))
        return;
    dense->step++;
    rdti_ps_rule_factors(&dense->opts.rule, dense->step, step->lr_scale, &factors);
    for (uint64_t first = 0; first < dense->opts.count; first += BLOCK_FLOATS) {
        const uint64_t left = dense->opts.count - first;
        const uint64_t count = left < BLOCK_FLOATS ? left : BLOCK_FLOATS;
        dense_update(dense, server->kernels, &factors, dense_mean(step, dense, first, count), first,
                     count);
    }
}

uint32_t
rdti_ps_dense_arrays(const struct rdti_ps_dense *dense)
{
    return 1 + (uint32_t)rdti_ps_rule_state_floats(&dense->opts.rule, 1);
}

float *
rdti_ps_dense_span(const struct rdti_ps_dense *dense, uint32_t array, uint64_t first,
                   uint64_t *count)
{
    const uint64_t block = first / BLOCK_FLOATS * BLOCK_FLOATS;
    const uint64_t left = dense->opts.count - block;
    const uint64_t floats = left < BLOCK_FLOATS ? left : BLOCK_FLOATS;

    if (array == 0)
        return dense->values + first;
    if (*count > block + floats - first)
        *count = block + floats - first;
    return dense->state + (rdti_ps_dense_arrays(dense) - 1) * block + (array - 1) * floats +
           (first - block);
}
