/* SPDX-License-Identifier: Apache-2.0
 * Names and descriptions of a collective's members, and copies of the caller's arrays.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "collectives/collective.h"
#include "wire/group/lossy_code.h"

enum {
    ARRAYS = 6,          /* of struct rdt_coll_args */
    NAMED_RANKS_MAX = 8, /* ranks that a message names; the others are counted */
};

/* The next of the copied arrays, or NULL where the caller has none. */
static void *
arrays_keep(uint64_t **at, uint32_t size, const void *array)
{
    uint64_t *copy = *at;

    if (array == NULL)
        return NULL;
    memcpy(copy, array, size * sizeof(*copy));
    *at += size;
    return copy;
}
_Static_assert(sizeof(void *) <= sizeof(uint64_t), "an array of addresses fits");
_Static_assert((unsigned)RDT_C128 <= RDT_DESC_MASK && (unsigned)RDT_BXOR <= RDT_DESC_MASK,
               "a descriptor has room for a number above them");
_Static_assert((unsigned)RDT_COLL_BARRIER <= RDT_DESC_MASK, "and for a lossy format");

rdt_status
rdti_coll_keep_arrays(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdt_coll_args *args = &coll->args;

    if (args->blocks == NULL && args->send_blocks == NULL && args->send_counts == NULL &&
        args->recv_counts == NULL)
        return RDT_OK;
    uint64_t *at = malloc((size_t)ARRAYS * coll->size * sizeof(*at));
    if (at == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for the addresses of %u ranks",
                              rdti_coll_name(args->op), coll->size);
    coll->arrays = at;
    args->blocks = arrays_keep(&at, coll->size, args->blocks);
    args->send_blocks = arrays_keep(&at, coll->size, args->send_blocks);
    args->send_counts = arrays_keep(&at, coll->size, args->send_counts);
    args->send_offs = arrays_keep(&at, coll->size, args->send_offs);
    args->recv_counts = arrays_keep(&at, coll->size, args->recv_counts);
    args->recv_offs = arrays_keep(&at, coll->size, args->recv_offs);
    return RDT_OK;
}

/* ---- Names ---- */

struct rdti_coll_rank
rdti_coll_rank_name(const struct rdti_coll *coll, uint32_t rank)
{
    struct rdti_coll_rank name;

    rank = rdti_coll_member(coll, rank);
    const int32_t global_rank = rdt_group_global_rank(coll->group, rank);
    if (global_rank == (int32_t)rank)
        (void)snprintf(name.text, sizeof(name.text), "rank %u", rank);
    else
        (void)snprintf(name.text, sizeof(name.text), "rank %u (global rank %d)", rank,
                       (int)global_rank);
    return name;
}

void
rdti_coll_name_ranks(const struct rdti_coll *coll, const uint32_t *ranks, uint32_t count,
                     char *text, size_t cap)
{
    const uint32_t named = count < NAMED_RANKS_MAX ? count : NAMED_RANKS_MAX;
    const char *plural = count == 1 ? "" : "s";
    char global[NAMED_RANKS_MAX * 14] = "";
    char more[32] = "";
    char own[NAMED_RANKS_MAX * 14] = "";
    size_t global_bytes = 0;
    size_t own_bytes = 0;
    bool differs = false;

    for (uint32_t i = 0; i < named; i++) {
        const uint32_t rank = rdti_coll_member(coll, ranks[i]);
        const int32_t global_rank = rdt_group_global_rank(coll->group, rank);
        const char *comma = i == 0 ? "" : ", ";
        differs |= global_rank != (int32_t)rank;
        own_bytes +=
            (size_t)snprintf(own + own_bytes, sizeof(own) - own_bytes, "%s%u", comma, rank);
        global_bytes += (size_t)snprintf(global + global_bytes, sizeof(global) - global_bytes,
                                         "%s%d", comma, (int)global_rank);
    }
    if (count > named)
        (void)snprintf(more, sizeof(more), " and %u more", count - named);
    if (differs)
        (void)snprintf(text, cap, "rank%s %s%s (global rank%s %s)", plural, own, more,
                       named == 1 ? "" : "s", global);
    else
        (void)snprintf(text, cap, "rank%s %s%s", plural, own, more);
}

uint32_t
rdti_coll_only_one(const struct rdti_coll *coll, const uint32_t *ranks, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (ranks[i] != ranks[0])
            return RDT_SOURCE_ANY;
    return count > 0 ? rdti_coll_member(coll, ranks[0]) : RDT_SOURCE_ANY;
}

/* ---- Descriptions ---- */

struct rdt_message_desc
rdti_coll_plain_desc(const struct rdti_coll *coll)
{
    if (coll->whole != NULL)
        coll = coll->whole;
    const struct rdt_coll_args *args = &coll->args;

    return (struct rdt_message_desc){
        .op = args->op | coll->lossy.code << RDT_DESC_BITS,
        .dtype = args->dtype,
        .reduce_op = args->reduce_op,
        .root = coll->pack != NULL               ? rdti_pack_digest(coll)
                : args->op == RDT_COLL_ALLREDUCE ? args->flags >> RDTI_COLL_LABEL_SHIFT
                                                 : args->root,
        .count = args->op == RDT_COLL_ALLTOALL ? 0 : args->count, /* counts may be uneven */
        .sequence = coll->sequence,
    };
}

struct rdt_message_desc
rdti_coll_desc(const struct rdti_coll *coll)
{
    struct rdt_message_desc desc = rdti_coll_plain_desc(coll);

    if (coll->whole != NULL)
        coll = coll->whole;
    if (!coll->is_start)
        return desc;
    /* 1 to 255: two of a group that differ by a multiple of that are not told apart here */
    const uint32_t number = (uint32_t)(1 + coll->direct.number % UINT8_MAX);
    desc.dtype |= number >> RDT_DESC_BITS << RDT_DESC_BITS;
    desc.reduce_op |= (number & RDT_DESC_MASK) << RDT_DESC_BITS;
    return desc;
}

/* "all_reduce (sum) of 4 float32", "broadcast of 4 float32 with root 0", "barrier". */
static void
arrays_in_words(const struct rdt_message_desc *desc, char *words, size_t cap)
{
    const uint32_t number =
        (desc->dtype & ~RDT_DESC_MASK) | (desc->reduce_op & ~RDT_DESC_MASK) >> RDT_DESC_BITS;
    const uint32_t reduce_op = desc->reduce_op & RDT_DESC_MASK;
    const uint32_t op = desc->op & RDT_DESC_MASK;
    char kind[40] = "";
    const bool is_reduction =
        op == RDT_COLL_ALLREDUCE || op == RDT_COLL_REDUCE || op == RDT_COLL_REDUCE_SCATTER;
    const bool has_root = op == RDT_COLL_BROADCAST || op == RDT_COLL_SCATTER ||
                          op == RDT_COLL_REDUCE || op == RDT_COLL_GATHER;
    char reduction[24] = "";
    char root[40] = "";

    if (number != 0)
        (void)snprintf(kind, sizeof(kind), "the persistent (number %u) ", number);
    if (op == RDT_COLL_BARRIER) {
        (void)snprintf(words, cap, "%sbarrier", kind);
        return;
    }
    if (is_reduction)
        (void)snprintf(reduction, sizeof(reduction), " (%s)", rdti_reduction_name(reduce_op));
    if (has_root)
        (void)snprintf(root, sizeof(root), " with root %u", desc->root);
    else if ((desc->root & RDTI_PACK_DIGEST_FLAG) != 0)
        (void)snprintf(root, sizeof(root), " in parts (digest 0x%04x)", desc->root);
    else if (desc->root != 0)
        (void)snprintf(root, sizeof(root), " with label %u", desc->root);
    (void)snprintf(words, cap, "%s%s%s of %llu %s%s%s", kind, rdti_coll_name(op), reduction,
                   (unsigned long long)desc->count, rdt_dtype_name(desc->dtype & RDT_DESC_MASK),
                   rdti_lossy_words(desc->op), root);
}

rdt_status
rdti_coll_mismatch(const struct rdti_coll *coll, uint32_t peer,
                   const struct rdt_message_desc *theirs, struct rdt_error *err)
{
    const struct rdt_message_desc ours = rdti_coll_desc(coll);
    char they[160];
    char we[160];

    arrays_in_words(theirs, they, sizeof(they));
    arrays_in_words(&ours, we, sizeof(we));
    const rdt_status status =
        rdti_error_set(err, RDT_EMISMATCH, 0,
                       "%s called %s as collective #%llu of the group, %s (this one) %s as "
                       "#%llu",
                       rdti_coll_rank_name(coll, peer).text, they,
                       (unsigned long long)theirs->sequence,
                       rdti_coll_rank_name(coll, coll->rank).text, we,
                       (unsigned long long)ours.sequence);
    if (err != NULL)
        err->peer_rank = rdt_group_global_rank(coll->group, rdti_coll_member(coll, peer));
    return status;
}
