/* SPDX-License-Identifier: Apache-2.0
 * Small tensors that are sent as one: copied together before the collective, and apart after it. */
#include "base/error.h"
#include "collectives/coalesce.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/collective.h"
#include "collectives/team/team.h"
#include "rdmatensor_ext.h"

enum {
    MEMORY_ALIGNMENT = 64, /* a cache line, and the widest vector */
    /* The mailbox has 16 bits where other operations have a root: digests have the highest one,
     * labels do not. */
    DIGEST_BITS = 15,
};

struct rdti_pack {
    uint8_t *memory;
    uint64_t unit_bytes;  /* of the largest part */
    uint64_t chunk_elems; /* of one chunk of a block */
    uint32_t chunks;      /* of each block: the ring's, or one */
    uint32_t digest;
    uint32_t part_count;
    struct rdt_coll_part parts[];
};

/* The elements of a part that belong to a chunk. */
static uint64_t
coalesce_chunk_of_part(const struct rdti_coll *coll, const struct rdt_coll_part *part,
                       uint32_t chunk, uint64_t *begin_out)
{
    *begin_out = 0;
    if (coll->pack->chunks == 1)
        return part->count;
    *begin_out = rdti_ring_chunk_begin(part->count, coll->elem_bytes, coll->size, chunk);
    return rdti_ring_chunk_begin(part->count, coll->elem_bytes, coll->size, chunk + 1) - *begin_out;
}

static rdt_status
coalesce_accept_part(const struct rdti_coll *coll, const struct rdt_coll_part *part,
                     uint32_t number, struct rdt_error *err)
{
    if (part->count > RDT_COLL_PART_MAX_BYTES / coll->elem_bytes)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "part %u has %llu elements of %s, more than %u bytes", number,
                              (unsigned long long)part->count, rdt_dtype_name(coll->args.dtype),
                              (unsigned)RDT_COLL_PART_MAX_BYTES);
    if (part->count > 0 && (part->send == NULL || part->recv == NULL))
        return rdti_error_set(err, RDT_EINVAL, 0, "%s of part %u is NULL",
                              part->send == NULL ? "send" : "recv", number);
    return RDT_OK;
}

/* FNV-1a over the counts, folded to what there is room for. */
static uint32_t
coalesce_digest_of(const struct rdti_pack *pack)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (uint32_t i = 0; i < pack->part_count; i++)
        hash = (hash ^ pack->parts[i].count) * UINT64_C(0x100000001b3);
    hash ^= hash >> 32;
    hash ^= hash >> DIGEST_BITS;
    return RDTI_PACK_DIGEST_FLAG | ((uint32_t)hash & (RDTI_PACK_DIGEST_FLAG - 1));
}

/*
 * If an element is summed in an order that depends on its chunk, each chunk of the pack has that
 * chunk of every part, so that the order stays. The first chunk is never smaller than another one;
 * whole cache lines make the ring cut there.
 */
static void
coalesce_lay_out(struct rdti_coll *coll)
{
    struct rdti_pack *pack = coll->pack;
    const uint64_t granule = MEMORY_ALIGNMENT / coll->elem_bytes;
    uint64_t first_chunk = 0;
    uint64_t begin;

    pack->chunks =
        coll->args.op == RDT_COLL_ALLREDUCE && rdti_choice_sums_by_chunk(coll) ? coll->size : 1;
    for (uint32_t i = 0; i < pack->part_count; i++) {
        const uint64_t len_bytes = pack->parts[i].count * coll->elem_bytes;
        pack->unit_bytes = len_bytes > pack->unit_bytes ? len_bytes : pack->unit_bytes;
        first_chunk += coalesce_chunk_of_part(coll, &pack->parts[i], 0, &begin);
    }
    pack->chunk_elems = first_chunk;
    if (pack->chunks > 1)
        pack->chunk_elems = (first_chunk + granule - 1) / granule * granule;
}

/*
 * Copies between a block of the pack and the parts; `member` selects the block of each part. Also
 * writes the bytes that belong to no part: they are summed with the rest.
 */
static uint64_t
coalesce_copy_block(const struct rdti_coll *coll, uint8_t *block, uint32_t member, bool is_out)
{
    const struct rdti_pack *pack = coll->pack;
    const uint64_t chunk_bytes = pack->chunk_elems * coll->elem_bytes;
    uint64_t begin;
    uint64_t copied_bytes = 0;

    for (uint32_t chunk = 0; chunk < pack->chunks; chunk++) {
        uint8_t *at = block + chunk * chunk_bytes;
        uint8_t *end = at + chunk_bytes;
        for (uint32_t i = 0; i < pack->part_count; i++) {
            const struct rdt_coll_part *part = &pack->parts[i];
            const uint64_t len =
                coalesce_chunk_of_part(coll, part, chunk, &begin) * coll->elem_bytes;
            const uint64_t off = (member * part->count + begin) * coll->elem_bytes;
            if (len == 0)
                continue;
            if (is_out)
                memcpy((uint8_t *)part->recv + off, at, len);
            else
                memcpy(at, (const uint8_t *)part->send + off, len);
            at += len;
            copied_bytes += len;
        }
        if (!is_out && at < end)
            memset(at, 0, (size_t)(end - at));
    }
    return copied_bytes;
}

static void
coalesce_count_copied(const struct rdti_coll *coll, uint64_t bytes)
{
    const struct rdt_counters done = {.struct_size = sizeof(done), .copied_bytes = bytes};

    rdt_context_count(rdt_group_context(coll->group), &done);
}

/* All_reduce works in place. For the others the side with a block for each member comes first, then
 * the side with one. */
static rdt_status
coalesce_gather(struct rdti_coll *coll, struct rdt_error *err)
{
    struct rdti_pack *pack = coll->pack;
    struct rdt_coll_args *args = &coll->args;
    const bool is_in_place = args->op == RDT_COLL_ALLREDUCE;
    const uint64_t whole_bytes = is_in_place ? 0 : coll->block_bytes * coll->size;
    /* Cannot overflow: 2^32 parts of 2^14 bytes for fewer than 2^16 ranks. */
    const uint64_t memory_bytes =
        ((whole_bytes + coll->block_bytes) / MEMORY_ALIGNMENT + 1) * MEMORY_ALIGNMENT;

    pack->memory = aligned_alloc(MEMORY_ALIGNMENT, memory_bytes);
    if (pack->memory == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory to pack %llu bytes",
                              rdti_coll_name(args->op), (unsigned long long)memory_bytes);
    uint8_t *one = pack->memory + whole_bytes;
    const bool is_sent_whole = args->op == RDT_COLL_REDUCE_SCATTER;
    args->send = is_sent_whole ? pack->memory : one;
    args->recv = args->op == RDT_COLL_ALLGATHER ? pack->memory : one;
    uint64_t copied_bytes = 0;
    for (uint32_t i = 0; i < (is_sent_whole ? coll->size : 1); i++)
        copied_bytes +=
            coalesce_copy_block(coll, (is_sent_whole ? pack->memory : one) + i * coll->block_bytes,
                                i, false);
    coalesce_count_copied(coll, copied_bytes);
    return RDT_OK;
}

rdt_status
rdti_pack_make(struct rdti_coll *coll, const struct rdt_coll_part *parts, uint32_t part_count,
               struct rdt_error *err)
{
    const uint32_t op = coll->args.op;
    rdt_status status = RDT_OK;

    if (op != RDT_COLL_ALLREDUCE && op != RDT_COLL_ALLGATHER && op != RDT_COLL_REDUCE_SCATTER)
        return rdti_error_set(err, RDT_EINVAL, 0, "%s does not go in parts", rdti_coll_name(op));
    for (uint32_t i = 0; i < part_count && status == RDT_OK; i++)
        status = coalesce_accept_part(coll, &parts[i], i, err);
    if (status != RDT_OK)
        return status;
    struct rdti_pack *pack = malloc(sizeof(*pack) + part_count * sizeof(parts[0]));
    if (pack == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "%s: no memory for %u parts", rdti_coll_name(op),
                              part_count);
    *pack = (struct rdti_pack){.part_count = part_count};
    if (part_count > 0)
        memcpy(pack->parts, parts, part_count * sizeof(parts[0]));
    pack->digest = coalesce_digest_of(pack);
    coll->pack = pack;
    coalesce_lay_out(coll);
    coll->args.count = pack->chunks * pack->chunk_elems;
    coll->block_bytes = coll->args.count * coll->elem_bytes;
    status = coalesce_gather(coll, err);
    if (status != RDT_OK)
        rdti_pack_free(coll);
    return status;
}

void
rdti_pack_hand_out(struct rdti_coll *coll)
{
    const bool is_gather = coll->args.op == RDT_COLL_ALLGATHER;

    if (coll->pack == NULL)
        return;
    uint64_t copied_bytes = 0;
    for (uint32_t i = 0; i < (is_gather ? coll->size : 1); i++)
        copied_bytes +=
            coalesce_copy_block(coll, (uint8_t *)coll->args.recv + i * coll->block_bytes, i, true);
    coalesce_count_copied(coll, copied_bytes);
}

void
rdti_pack_free(struct rdti_coll *coll)
{
    if (coll->pack == NULL)
        return;
    free(coll->pack->memory);
    free(coll->pack);
    coll->pack = NULL;
}

uint64_t
rdti_pack_unit_bytes(const struct rdti_coll *coll)
{
    return coll->pack == NULL ? coll->block_bytes : coll->pack->unit_bytes;
}

uint32_t
rdti_pack_digest(const struct rdti_coll *coll)
{
    return coll->pack == NULL ? 0 : coll->pack->digest;
}

uint32_t
rdti_pack_part_count(const struct rdti_coll *coll)
{
    return coll->pack == NULL ? 0 : coll->pack->part_count;
}
