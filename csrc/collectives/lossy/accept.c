/* SPDX-License-Identifier: Apache-2.0
 * The lossy wire of a call, checked before other members see anything. */
#include "base/error.h"
#include "collectives/collective.h"
#include "collectives/lossy/lossy.h"
#include "wire/group/lossy_code.h"

static const char *
accept_wire_name(uint32_t wire)
{
    return wire == RDT_WIRE_BF16 ? "bf16" : "q8";
}

static rdt_status
accept_operation(const struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_coll_args *args = &coll->args;
    const char *wire = accept_wire_name(args->wire);
    const bool is_sum = args->op == RDT_COLL_ALLREDUCE || args->op == RDT_COLL_REDUCE_SCATTER;

    if (!is_sum && args->op != RDT_COLL_ALLGATHER)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "the wire %s is for all_reduce, reduce_scatter and all_gather, not "
                              "for %s",
                              wire, rdti_coll_name(args->op));
    if (args->dtype != RDT_F32)
        return rdti_error_set(err, RDT_EINVAL, 0, "the wire %s is for float32, not for %s", wire,
                              rdt_dtype_name(args->dtype));
    if (is_sum && args->reduce_op != RDT_SUM && args->reduce_op != RDT_AVG)
        return rdti_error_set(err, RDT_EINVAL, 0, "the wire %s is for sum and avg, not for %s",
                              wire, rdti_reduction_name(args->reduce_op));
    return RDT_OK;
}

static bool
accept_overlaps(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    return a != NULL && b != NULL && (const uint8_t *)a < (const uint8_t *)b + b_bytes &&
           (const uint8_t *)b < (const uint8_t *)a + a_bytes;
}

/* Encoding reads the source and writes the residual at the same time. */
static rdt_status
accept_residual(const struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_coll_args *args = &coll->args;
    const uint64_t block_bytes = args->count * sizeof(float);
    const uint64_t send_bytes =
        args->op == RDT_COLL_REDUCE_SCATTER ? block_bytes * coll->size : block_bytes;
    const uint64_t recv_bytes =
        args->op == RDT_COLL_ALLGATHER ? block_bytes * coll->size : block_bytes;
    bool is_shared = accept_overlaps(args->residual, send_bytes, args->send, send_bytes) ||
                     accept_overlaps(args->residual, send_bytes, args->recv, recv_bytes);

    for (uint32_t i = 0; args->blocks != NULL && i < coll->size; i++)
        is_shared =
            is_shared || accept_overlaps(args->residual, send_bytes, args->blocks[i], block_bytes);
    if (is_shared)
        return rdti_error_set(err, RDT_EINVAL, 0, "the residual overlaps what is sent or received");
    return RDT_OK;
}

/* Fills coll->lossy, which is right where the operation is accepted, too. */
static rdt_status
accept_format(struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_coll_args *args = &coll->args;
    const struct rdti_lossy_table *table = rdti_lossy_best();
    const bool is_q8 = args->wire == RDT_WIRE_Q8;
    const uint32_t block = is_q8 && args->wire_block == 0 ? RDT_WIRE_BLOCK : args->wire_block;
    const uint32_t code = rdti_lossy_code(args->wire, block);

    if (args->wire > RDT_WIRE_Q8)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u is not a valid wire", args->wire);
    if (code == 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u is not a valid block of %s; expected %s",
                              args->wire_block, accept_wire_name(args->wire),
                              is_q8 ? "a power of two from 32 to 1024" : "0");
    coll->lossy = (struct rdti_lossy){.code = code,
                                      .block = is_q8 ? block : RDT_WIRE_BLOCK,
                                      .loops = is_q8 ? &table->q8 : &table->bf16};
    return RDT_OK;
}

rdt_status
rdti_lossy_accept(struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_coll_args *args = &coll->args;

    if (args->wire == RDT_WIRE_EXACT && (args->residual != NULL || args->wire_block != 0))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "a residual or a block needs a lossy wire, and this is exact");
    if (args->wire == RDT_WIRE_EXACT)
        return RDT_OK;
    rdt_status status = accept_format(coll, err);
    if (status == RDT_OK)
        status = accept_operation(coll, err);
    if (status == RDT_OK)
        status = accept_residual(coll, err);
    if (coll->size == 1) /* nothing is sent */
        coll->lossy = (struct rdti_lossy){0};
    return status;
}
