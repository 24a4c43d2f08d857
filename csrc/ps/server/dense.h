/* SPDX-License-Identifier: Apache-2.0
 * A server's part of a dense model: values, their state, and a slot of gradients for each worker.
 * Workers write gradients into their slots, and the server writes values into their parameters, at
 * addresses that were exchanged once. */
#ifndef RDTI_PS_SERVER_DENSE_H
#define RDTI_PS_SERVER_DENSE_H

#include "ps/server/server_impl.h"

/* A round or a step: which workers' slots are averaged. */
struct rdti_ps_dense_step {
    rdt_ps_server *server;
    uint32_t first; /* workers with has_tick */
    uint32_t end;
    uint32_t divisor;
    double lr_scale;
};

struct rdti_ps_dense {
    struct rdt_ps_dense_opts opts;
    float *values;
    float *state; /* of the whole part, or of each block where the rule has one sum for a span */
    float *sum;   /* of one block */
    rdt_region *values_region;
    rdt_region *state_region;
    rdt_region **slots;  /* of each worker */
    rdt_region **copies; /* of the values on their way to each worker; not in RDT_PS_SYNC */
    struct rdt_remote_region *params;
    uint64_t *sent; /* the step whose values each worker has */
    uint32_t number;
    uint64_t step; /* applications so far */
    float *copy;   /* of the values and the state, array after array, for a checkpoint; or NULL */
    uint64_t copy_step;
};

void rdti_ps_dense_destroy(struct rdti_ps_dense *dense, uint32_t workers); /* NULL is legal */
/* Values and arrays of state. */
uint32_t rdti_ps_dense_arrays(const struct rdti_ps_dense *dense);
/* Where element `first` of an array is, with *count of them or less. */
float *rdti_ps_dense_span(const struct rdti_ps_dense *dense, uint32_t array, uint64_t first,
                          uint64_t *count);
/* Applies the slots' gradients. */
void rdti_ps_dense_apply(const struct rdti_ps_dense_step *step, struct rdti_ps_dense *dense);

#endif
