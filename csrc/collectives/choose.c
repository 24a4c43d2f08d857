/* SPDX-License-Identifier: Apache-2.0
 * Which algorithm carries a collective out, by its kind and its bytes. */
#include "collectives/coll.h"

enum {
    /* Above this, fewer bytes per rank beat fewer messages one after another: a message costs
     * about as much as some ten KiB of copying, and the logarithm of usual groups is near three. */
    ALLREDUCE_DOUBLING_MAX_BYTES = 64 * 1024,
    /* As above, per block: all at once for small ones, one neighbour at a time for large ones,
     * which would flood receivers that are not ready. */
    ALLGATHER_DIRECT_MAX_BYTES = 16 * 1024,
};

const struct rdti_coll_algorithm *
rdti_coll_choose(const struct rdti_coll *coll)
{
    switch (coll->args.op) {
    case RDT_COLL_BROADCAST:
        return &rdti_broadcast_binomial;
    case RDT_COLL_ALLREDUCE:
        return coll->block_bytes <= ALLREDUCE_DOUBLING_MAX_BYTES ? &rdti_allreduce_doubling
                                                                 : &rdti_allreduce_ring;
    case RDT_COLL_REDUCE:
        return &rdti_reduce_binomial;
    case RDT_COLL_ALLGATHER:
        return coll->block_bytes <= ALLGATHER_DIRECT_MAX_BYTES ? &rdti_allgather_direct
                                                               : &rdti_allgather_ring;
    case RDT_COLL_REDUCE_SCATTER:
        return &rdti_reduce_scatter_ring;
    case RDT_COLL_GATHER:
        return &rdti_gather_direct;
    case RDT_COLL_SCATTER:
        return &rdti_scatter_direct;
    case RDT_COLL_ALLTOALL:
        return &rdti_alltoall_pairwise;
    default: /* RDT_COLL_BARRIER: rdti_coll_accept() refused the rest */
        return &rdti_barrier_dissemination;
    }
}
