/* SPDX-License-Identifier: Apache-2.0
 * Both ends of a tuned RPC over the library's transports, for tensors.c and for `rdmatensor bench
 * models` (bench/workers/copy_variant.py has the same structs): tensors leave in messages, with
 * their descriptions, which are copied into a ring of slots at the receiver and out of it into its
 * private memory. One call sends what is there, one receives a step: no message needs Python. */
#ifndef RDT_BENCH_COPY_RING_H
#define RDT_BENCH_COPY_RING_H

#include <stdint.h>

#include "rdmatensor.h"

/* A message holds at most so many bytes in addition to the values. */
#define COPY_RING_HEADS_BYTES 16384
#define COPY_RING_ALIGN 64

/* The library's functions: the caller has loaded them already, and they must not be there twice. */
struct copy_ring_calls {
    rdt_status (*get)(rdt_slot *slot, uint64_t timeout_ns, struct rdt_slot_view *out,
                      struct rdt_error *err);
    rdt_status (*release)(rdt_slot *slot, struct rdt_error *err);
    rdt_status (*buffer)(rdt_slot_tx *tx, uint64_t timeout_ns, void **out, struct rdt_error *err);
    rdt_status (*post)(rdt_slot_tx *tx, const uint64_t *dims, rdt_transfer **out,
                       struct rdt_error *err);
    void (*free)(rdt_transfer *transfer);
};

/* A tensor of float32 that is dense; where it is received: what it has to be, and its memory. */
struct copy_ring_tensor {
    char *values;
    uint64_t len_bytes;
    uint64_t ndim;
    uint64_t dims[RDT_MAX_NDIM];
};

/* One end of a ring. number: of the next message, as both ends count. */
struct copy_ring {
    const struct copy_ring_calls *calls;
    void *const *slots; /* rdt_slot_tx of the sender's, rdt_slot of the receiver's, in turn */
    uint64_t slots_count;
    uint64_t piece_bytes; /* of values in a message at most; a multiple of COPY_RING_ALIGN */
    uint64_t timeout_ns;  /* of each wait */
    uint64_t number;
    struct rdt_error err; /* of a call that returned less than 0 */
};

/* Send tensors[order[0]], tensors[order[1]] and so on; returns 0 when all have left. */
int copy_ring_send(struct copy_ring *ring, const struct copy_ring_tensor *tensors,
                   const uint64_t *order, uint64_t count);
/* Receive until so many bytes of values have come; returns 0 when they lie in their tensors. */
int copy_ring_receive(struct copy_ring *ring, const struct copy_ring_tensor *tensors,
                      uint64_t count, uint64_t due_bytes);

#endif
