/* SPDX-License-Identifier: Apache-2.0
 * The arguments of a collective, checked before other members see anything. */
#include "base/error.h"
#include "collectives/collective.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    ARGS_LEAST_BYTES = offsetof(struct rdt_coll_args, wire), /* ABI 1.0 */
    HAS_ROOT = 1 << 0,
    HAS_REDUCTION = 1 << 1,
    /* The buffers that a member needs; those of the root only where it has one. */
    SEND_ALL = 1 << 2,
    SEND_ROOT = 1 << 3,
    RECV_ALL = 1 << 4,
    RECV_ROOT = 1 << 5,
    /* `blocks` may replace one of them. */
    BLOCKS_RECV = 1 << 6,
    BLOCKS_SEND = 1 << 7,
};

static const struct {
    const char *name;
    unsigned traits;
} operations[] = {
    [RDT_COLL_BROADCAST] = {"broadcast", HAS_ROOT | RECV_ALL},
    [RDT_COLL_ALLREDUCE] = {"all_reduce", HAS_REDUCTION | SEND_ALL | RECV_ALL},
    [RDT_COLL_REDUCE] = {"reduce", HAS_ROOT | HAS_REDUCTION | SEND_ALL | RECV_ROOT},
    [RDT_COLL_ALLGATHER] = {"all_gather", SEND_ALL | RECV_ALL | BLOCKS_RECV},
    [RDT_COLL_REDUCE_SCATTER] = {"reduce_scatter",
                                 HAS_REDUCTION | SEND_ALL | RECV_ALL | BLOCKS_SEND},
    [RDT_COLL_GATHER] = {"gather", HAS_ROOT | SEND_ALL | RECV_ROOT | BLOCKS_RECV},
    [RDT_COLL_SCATTER] = {"scatter", HAS_ROOT | SEND_ROOT | RECV_ALL | BLOCKS_SEND},
    [RDT_COLL_ALLTOALL] = {"all_to_all", 0},
    [RDT_COLL_BARRIER] = {"barrier", 0},
};

static const char *const reductions[RDTI_REDUCE_OP_LIMIT] = {
    [RDT_SUM] = "sum", [RDT_AVG] = "avg",   [RDT_PRODUCT] = "product", [RDT_MIN] = "min",
    [RDT_MAX] = "max", [RDT_BAND] = "band", [RDT_BOR] = "bor",         [RDT_BXOR] = "bxor",
};

const char *
rdti_coll_name(uint32_t op)
{
    if (op < RDT_COLL_BROADCAST || op > RDT_COLL_BARRIER)
        return "unknown";
    return operations[op].name;
}

const char *
rdti_reduction_name(uint32_t reduce_op)
{
    return reduce_op < RDTI_REDUCE_OP_LIMIT && reductions[reduce_op] != NULL ? reductions[reduce_op]
                                                                             : "unknown";
}

rdt_status
rdti_coll_end_message(rdt_transfer **transfer, uint64_t want_bytes, const char *what,
                      struct rdt_error *err)
{
    if (*transfer == NULL)
        return RDT_OK;
    rdt_status status = rdt_transfer_test(*transfer, err);
    if (status == RDT_EAGAIN)
        return status;
    if (status == RDT_OK && want_bytes > 0 && rdt_transfer_len_bytes(*transfer) != want_bytes)
        status = rdti_error_set(err, RDT_EPROTO, 0, "it sent %llu bytes of %s, not %llu",
                                (unsigned long long)rdt_transfer_len_bytes(*transfer), what,
                                (unsigned long long)want_bytes);
    rdt_transfer_free(*transfer);
    *transfer = NULL;
    return status;
}

/* Errors do not name the operation: the caller knows it, and a wrapper of the call adds it. */
static rdt_status
args_refuse(struct rdt_error *err, const char *what)
{
    return rdti_error_set(err, RDT_EINVAL, 0, "%s", what);
}

static rdt_status
args_accept_dtype(struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_coll_args *args = &coll->args;
    uint64_t total_bytes;

    coll->elem_bytes = rdt_dtype_bytes(args->dtype);
    if (coll->elem_bytes == 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u is not a valid dtype", args->dtype);
    /* Half of the 64 bits, so that sums of an address and a size stay clear of the end. */
    if (__builtin_mul_overflow(args->count, coll->elem_bytes, &coll->block_bytes) ||
        __builtin_mul_overflow(coll->block_bytes, coll->size, &total_bytes) ||
        total_bytes > INT64_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%llu elements of %s from %u ranks exceed memory",
                              (unsigned long long)args->count, rdt_dtype_name(args->dtype),
                              coll->size);
    return RDT_OK;
}

static rdt_status
args_accept_reduction(struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdti_reduce_table *table = rdti_reduce_best();
    const uint32_t dtype = coll->args.dtype;
    const uint32_t op = coll->args.reduce_op;

    if (op >= RDTI_REDUCE_OP_LIMIT || reductions[op] == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u is not a valid reduction", op);
    coll->reduce = table->reduce[dtype][op];
    if (coll->reduce == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s is not defined for %s", reductions[op],
                              rdt_dtype_name(dtype));
    coll->divide = op == RDT_AVG ? table->divide[dtype] : NULL;
    coll->divisor = op == RDT_AVG ? coll->size : 1;
    coll->fold = table->fold[dtype][op];
    return RDT_OK;
}

static rdt_status
args_accept_blocks(const struct rdti_coll *coll, void *const *blocks, const uint64_t *counts,
                   const char *name, struct rdt_error *err)
{
    for (uint32_t i = 0; i < coll->size; i++)
        if (blocks[i] == NULL && (counts == NULL ? coll->args.count : counts[i]) > 0)
            return rdti_error_set(err, RDT_EINVAL, 0, "%s[%u] is NULL", name, i);
    return RDT_OK;
}

static bool
args_needs(const struct rdti_coll *coll, unsigned traits, unsigned of_all, unsigned of_root)
{
    return (traits & of_all) != 0 || ((traits & of_root) != 0 && coll->rank == coll->args.root);
}

/* A buffer that this member needs: `blocks`, where they may replace it and do, else `flat`. */
static rdt_status
args_accept_buffer(const struct rdti_coll *coll, bool may_be_blocks, const void *flat,
                   const char *name, struct rdt_error *err)
{
    if (may_be_blocks && coll->args.blocks != NULL)
        return args_accept_blocks(coll, coll->args.blocks, NULL, "blocks", err);
    if (flat == NULL && coll->args.count > 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s is NULL", name);
    return RDT_OK;
}

/* Also clears `blocks` where they have no meaning. */
static rdt_status
args_accept_buffers(struct rdti_coll *coll, unsigned traits, struct rdt_error *err)
{
    struct rdt_coll_args *args = &coll->args;
    const bool needs_send = args_needs(coll, traits, SEND_ALL, SEND_ROOT);
    const bool needs_recv = args_needs(coll, traits, RECV_ALL, RECV_ROOT);
    const bool may_send_blocks = needs_send && (traits & BLOCKS_SEND) != 0;
    const bool may_recv_blocks = needs_recv && (traits & BLOCKS_RECV) != 0;
    rdt_status status = RDT_OK;

    if (!may_send_blocks && !may_recv_blocks)
        args->blocks = NULL;
    if (needs_send)
        status = args_accept_buffer(coll, may_send_blocks, args->send, "send", err);
    if (status == RDT_OK && needs_recv)
        status = args_accept_buffer(coll, may_recv_blocks, args->recv, "recv", err);
    return status;
}

/* [0, off + count) elements lie within what an address can reach. */
static bool
args_is_reachable(const struct rdti_coll *coll, uint64_t off, uint64_t count)
{
    uint64_t end;
    uint64_t end_bytes;

    return !__builtin_add_overflow(off, count, &end) &&
           !__builtin_mul_overflow(end, coll->elem_bytes, &end_bytes) && end_bytes <= INT64_MAX;
}

/* One direction of ALLTOALL: counts with offsets or blocks, or neither and args->count each. */
static rdt_status
args_accept_uneven(const struct rdti_coll *coll, const uint64_t *counts, const uint64_t *offs,
                   void *const *blocks, const void *flat, struct rdt_error *err)
{
    uint64_t any = counts == NULL ? coll->args.count : 0;

    if (counts != NULL && offs == NULL && blocks == NULL)
        return args_refuse(err, "counts without offsets");
    for (uint32_t i = 0; counts != NULL && i < coll->size; i++) {
        if (!args_is_reachable(coll, offs == NULL ? 0 : offs[i], counts[i]))
            return args_refuse(err, "a count or an offset exceeds memory");
        any |= counts[i];
    }
    if (blocks != NULL)
        return args_accept_blocks(coll, blocks, counts, "blocks", err);
    return flat == NULL && any > 0 ? args_refuse(err, "send or recv is NULL") : RDT_OK;
}

static rdt_status
args_accept_alltoall(const struct rdti_coll *coll, struct rdt_error *err)
{
    const struct rdt_coll_args *args = &coll->args;
    rdt_status status = args_accept_uneven(coll, args->send_counts, args->send_offs,
                                           args->send_blocks, args->send, err);

    if (status == RDT_OK)
        status = args_accept_uneven(coll, args->recv_counts, args->recv_offs, args->blocks,
                                    args->recv, err);
    if (status != RDT_OK)
        return status;
    const uint64_t to_self =
        args->send_counts == NULL ? args->count : args->send_counts[coll->rank];
    const uint64_t of_self =
        args->recv_counts == NULL ? args->count : args->recv_counts[coll->rank];
    if (to_self != of_self)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "rank %u sends itself %llu elements and receives %llu", coll->rank,
                              (unsigned long long)to_self, (unsigned long long)of_self);
    if (coll->size > 1 && args->send != NULL && args->send == args->recv &&
        args->send_blocks == NULL && args->blocks == NULL)
        return args_refuse(err, "send and recv are the same, and it does not work in place");
    return RDT_OK;
}

struct rdt_coll_args
rdti_coll_args_known(const struct rdt_coll_args *args)
{
    struct rdt_coll_args known = {0};

    memcpy(&known, args, args->struct_size < sizeof(known) ? args->struct_size : sizeof(known));
    return known;
}

/* Fields without a meaning for the operation must not make members differ. */
static void
args_clear_unused(struct rdt_coll_args *args, unsigned traits)
{
    if ((traits & HAS_ROOT) == 0)
        args->root = 0;
    if ((traits & HAS_REDUCTION) == 0)
        args->reduce_op = 0;
    if (args->op == RDT_COLL_BARRIER) {
        args->dtype = 0;
        args->count = 0;
    }
}

rdt_status
rdti_coll_accept_flags(const struct rdt_coll_args *args, struct rdt_error *err)
{
    const uint32_t label = args->flags >> RDTI_COLL_LABEL_SHIFT;

    if ((args->flags & UINT16_MAX & ~(uint32_t)RDT_COLL_SPIN) != 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_args.flags 0x%x has unknown bits",
                              args->flags);
    if (label >= RDTI_PACK_DIGEST_FLAG)
        return rdti_error_set(err, RDT_EINVAL, 0, "the label %u is more than %d", label,
                              RDTI_PACK_DIGEST_FLAG - 1);
    if (label != 0 && args->op != RDT_COLL_ALLREDUCE)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s has a label, which only all_reduce has",
                              rdti_coll_name(args->op));
    return RDT_OK;
}

rdt_status
rdti_coll_accept(struct rdti_coll *coll, rdt_group *group, const struct rdt_coll_args *args,
                 struct rdt_error *err)
{
    rdt_status status = RDT_OK;

    if (args->struct_size < ARGS_LEAST_BYTES)
        return rdti_error_set(err, RDT_EINVAL, 0, "rdt_coll_args.struct_size is %u, want %zu",
                              args->struct_size, sizeof(*args));
    if (args->op < RDT_COLL_BROADCAST || args->op > RDT_COLL_BARRIER)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u is not a valid collective", args->op);
    coll->group = group;
    coll->rank = rdt_group_rank(group);
    coll->size = rdt_group_size(group);
    coll->args = rdti_coll_args_known(args);
    status = rdti_coll_accept_flags(args, err);
    if (status != RDT_OK)
        return status;
    const unsigned traits = operations[args->op].traits;
    args_clear_unused(&coll->args, traits);
    if (coll->args.root >= coll->size)
        return rdti_error_set(err, RDT_EINVAL, 0, "root %u of a group of %u", args->root,
                              coll->size);
    if (args->op != RDT_COLL_BARRIER)
        status = args_accept_dtype(coll, err);
    if (status == RDT_OK && (traits & HAS_REDUCTION) != 0)
        status = args_accept_reduction(coll, err);
    if (status == RDT_OK)
        status = args->op == RDT_COLL_ALLTOALL ? args_accept_alltoall(coll, err)
                                               : args_accept_buffers(coll, traits, err);
    return status == RDT_OK ? rdti_lossy_accept(coll, err) : status;
}
