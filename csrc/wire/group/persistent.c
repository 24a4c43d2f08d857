/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes records, votes and starts of persistent collectives. */
#include "wire/group/persistent.h"

#include "wire/fields.h"

/* ---- Records ---- */

void
rdti_persistent_record_encode(const struct rdti_persistent_record *in,
                              uint8_t out[RDTI_PERSISTENT_RECORD_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_PERSISTENT_RECORD_BYTES, .is_ok = true};

    rdti_write_u8(&w, (uint8_t)in->op);
    rdti_write_u8(&w, (uint8_t)in->dtype);
    rdti_write_u8(&w, (uint8_t)in->reduce_op);
    rdti_write_u8(&w, (uint8_t)in->landing);
    rdti_write_u32(&w, in->root);
    rdti_write_u64(&w, in->count);
    rdti_write_place(&w, in->landing == RDT_LANDING_OFFERED, &in->place);
}

static bool
persistent_reduces(uint32_t op)
{
    return op == RDT_COLL_ALLREDUCE || op == RDT_COLL_REDUCE || op == RDT_COLL_REDUCE_SCATTER;
}

static bool
persistent_has_root(uint32_t op)
{
    return op == RDT_COLL_BROADCAST || op == RDT_COLL_REDUCE || op == RDT_COLL_GATHER ||
           op == RDT_COLL_SCATTER;
}

/* Such numbers are compared with the reader's own and named in its error. */
static void
persistent_require_operation(struct rdti_fields *f, const struct rdti_persistent_record *record)
{
    const uint32_t op = record->op;
    const bool is_barrier = op == RDT_COLL_BARRIER;
    const bool reduces = persistent_reduces(op);

    rdti_fields_require(f, op >= RDT_COLL_BROADCAST && op <= RDT_COLL_BARRIER, "no such operation");
    rdti_fields_require(f, is_barrier ? record->dtype == 0 : rdt_dtype_bytes(record->dtype) != 0,
                        "no such dtype");
    rdti_fields_require(f,
                        reduces ? record->reduce_op >= RDT_SUM && record->reduce_op <= RDT_BXOR
                                : record->reduce_op == 0,
                        "no such reduction");
    rdti_fields_require(f, persistent_has_root(op) || record->root == 0, "a root without a use");
    rdti_fields_require(f, (!is_barrier && op != RDT_COLL_ALLTOALL) || record->count == 0,
                        "a count without a use");
}

rdt_status
rdti_persistent_record_decode(const uint8_t *buf, size_t len_bytes,
                              struct rdti_persistent_record *out, struct rdt_error *err)
{
    static const char what[] = "persistent collective";
    struct rdti_persistent_record record = {0};
    struct rdti_fields f;

    rdt_status status =
        rdti_fields_begin(&f, what, buf, len_bytes, RDTI_PERSISTENT_RECORD_BYTES, err);
    if (status != RDT_OK)
        return status;
    record.op = rdti_read_u8(&f.r);
    record.dtype = rdti_read_u8(&f.r);
    record.reduce_op = rdti_read_u8(&f.r);
    record.landing = rdti_read_u8(&f.r);
    record.root = rdti_read_u32(&f.r);
    record.count = rdti_read_u64(&f.r);
    persistent_require_operation(&f, &record);
    rdti_fields_require(&f, record.landing <= RDT_LANDING_NOT_IN_ARENA, "no such landing");
    rdti_fields_place(&f, record.landing == RDT_LANDING_OFFERED, &record.place);
    status = rdti_fields_end(&f, what, err);
    if (status == RDT_OK)
        *out = record;
    return status;
}

/* ---- Votes ---- */

void
rdti_persistent_vote_encode(const struct rdti_persistent_vote *in,
                            uint8_t out[RDTI_PERSISTENT_VOTE_BYTES])
{
    out[0] = (uint8_t)in->vote;
}

rdt_status
rdti_persistent_vote_decode(const uint8_t *buf, size_t len_bytes, struct rdti_persistent_vote *out,
                            struct rdt_error *err)
{
    static const char what[] = "vote for a persistent collective";
    struct rdti_persistent_vote vote = {0};
    struct rdti_fields f;

    rdt_status status =
        rdti_fields_begin(&f, what, buf, len_bytes, RDTI_PERSISTENT_VOTE_BYTES, err);
    if (status != RDT_OK)
        return status;
    vote.vote = rdti_read_u8(&f.r);
    rdti_fields_require(&f, vote.vote >= RDTI_VOTE_BOUND && vote.vote <= RDTI_VOTE_FAILED,
                        "no such vote");
    status = rdti_fields_end(&f, what, err);
    if (status == RDT_OK)
        *out = vote;
    return status;
}

/* ---- Starts ---- */

void
rdti_persistent_start_encode(const struct rdti_persistent_start *in,
                             uint8_t out[RDTI_PERSISTENT_START_BYTES])
{
    rdti_put_u64(out, in->number);
    rdti_put_u64(out + 8, in->is_aside);
}

rdt_status
rdti_persistent_start_decode(const uint8_t *buf, size_t len_bytes,
                             struct rdti_persistent_start *out, struct rdt_error *err)
{
    static const char what[] = "start of a persistent collective";
    struct rdti_persistent_start start = {0};
    struct rdti_fields f;

    rdt_status status =
        rdti_fields_begin(&f, what, buf, len_bytes, RDTI_PERSISTENT_START_BYTES, err);
    if (status != RDT_OK)
        return status;
    start.number = rdti_read_u64(&f.r);
    start.is_aside = rdti_read_u64(&f.r);
    rdti_fields_require(&f, start.is_aside <= 1, "the flag is not 0 or 1");
    status = rdti_fields_end(&f, what, err);
    if (status == RDT_OK)
        *out = start;
    return status;
}
