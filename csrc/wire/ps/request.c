/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes heads of requests. */
#include "wire/ps/request.h"

#include <math.h>

#include "base/error.h"
#include "wire/fields.h"

/* What an op has; all other fields are zero. */
enum {
    HAS_TABLE = 1, /* and the version of its map */
    HAS_COUNT = 2,
    HAS_PAYLOAD = 4,
    HAS_CLOCK = 8, /* the learning rate's scale, and the age of rows */
    HAS_QUEUE = 16,
    HAS_CHUNK = 32,
};

struct request_kind {
    uint32_t has;
    uint32_t flags;
};

static const struct request_kind request_kinds[] = {
    [RDTI_PS_OP_PUSH] = {HAS_TABLE | HAS_COUNT | HAS_PAYLOAD, RDTI_PS_FLAG_UNIQUE},
    [RDTI_PS_OP_PULL] = {HAS_TABLE | HAS_COUNT | HAS_PAYLOAD, RDTI_PS_FLAG_FIND},
    [RDTI_PS_OP_TICK] = {HAS_COUNT | HAS_PAYLOAD | HAS_CLOCK | HAS_QUEUE | HAS_CHUNK,
                         RDTI_PS_FLAG_DROP},
    [RDTI_PS_OP_CALL] = {HAS_PAYLOAD, 0},
    [RDTI_PS_OP_LEASE] = {HAS_QUEUE, 0},
    [RDTI_PS_OP_LEAVE] = {0, 0},
    [RDTI_PS_OP_VALUES] = {0, 0},
    [RDTI_PS_OP_HOLDERS] = {0, 0},
    [RDTI_PS_OP_SWITCH] = {0, 0},
    [RDTI_PS_OP_TAKE] = {HAS_QUEUE | HAS_CHUNK, 0},
};
#define KINDS (sizeof(request_kinds) / sizeof(request_kinds[0]))

static uint64_t
request_bits(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

void
rdti_ps_request_encode(const struct rdti_ps_request *in, uint8_t out[RDTI_PS_HEAD_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_PS_HEAD_BYTES, .is_ok = true};

    rdti_write_u32(&w, RDTI_PS_REQUEST_MAGIC);
    rdti_write_u16(&w, in->op);
    rdti_write_u16(&w, in->flags);
    rdti_write_u32(&w, in->table);
    rdti_write_u32(&w, in->map_version);
    rdti_write_u32(&w, in->payload_bytes);
    rdti_write_u32(&w, in->count);
    rdti_write_u32(&w, in->queue);
    rdti_write_u32(&w, in->age);
    rdti_write_u64(&w, in->sequence);
    rdti_write_u64(&w, in->clock);
    rdti_write_u64(&w, request_bits(in->lr_scale));
    rdti_write_u64(&w, in->chunk);
}

/* A field that the op has not is zero. */
static void
request_require_fields(struct rdti_fields *f, const struct rdti_ps_request *request)
{
    const struct request_kind kind = request_kinds[request->op];
    const struct {
        uint32_t has;
        bool is_set;
    } fields[] = {
        {HAS_TABLE, request->table != 0 || request->map_version != 0},
        {HAS_COUNT, request->count != 0},
        {HAS_PAYLOAD, request->payload_bytes != 0},
        {HAS_CLOCK,
         request->clock != 0 || request->age != 0 || request_bits(request->lr_scale) != 0},
        {HAS_QUEUE, request->queue != 0},
        {HAS_CHUNK, request->chunk != 0},
    };
    bool is_right = (request->flags & ~kind.flags) == 0;

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        is_right = is_right && (!fields[i].is_set || (kind.has & fields[i].has) != 0);
    rdti_fields_require(f, is_right, "a field or a flag that its op has not");
    rdti_fields_require(f, request->chunk == 0 || request->queue != 0, "a chunk of no queue");
    rdti_fields_require(f,
                        (request->op != RDTI_PS_OP_LEASE && request->op != RDTI_PS_OP_TAKE) ||
                            request->queue != 0,
                        "a lease of no queue");
    rdti_fields_require(f, (kind.has & HAS_CLOCK) == 0 || request->clock != 0, "a clock of 0");
}

/* A server checks the rows of a push, whose length it knows. */
static void
request_require_payload(struct rdti_fields *f, const struct rdti_ps_request *request)
{
    const uint64_t count = request->count;
    const uint64_t have = request->payload_bytes;
    bool is_right = true;

    if (request->op == RDTI_PS_OP_PUSH)
        is_right = have >= count * sizeof(uint64_t);
    else if (request->op == RDTI_PS_OP_PULL)
        is_right = have == count * sizeof(uint64_t);
    else if (request->op == RDTI_PS_OP_TICK)
        is_right = have >= count * sizeof(uint32_t) &&
                   have - count * sizeof(uint32_t) <= RDTI_PS_MEMBERS_BYTES;
    rdti_fields_require(f, is_right, "its payload does not fit its count");
}

rdt_status
rdti_ps_request_decode(const uint8_t *buf, size_t len_bytes, uint32_t slot_bytes,
                       struct rdti_ps_request *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_ps_request request = {0};
    uint64_t bits;

    rdt_status status = rdti_fields_begin(&f, "request", buf, len_bytes, RDTI_PS_HEAD_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_require(&f, rdti_read_u32(&f.r) == RDTI_PS_REQUEST_MAGIC,
                        "it does not begin as one of rdmatensor");
    request.op = rdti_read_u16(&f.r);
    request.flags = rdti_read_u16(&f.r);
    request.table = rdti_read_u32(&f.r);
    request.map_version = rdti_read_u32(&f.r);
    request.payload_bytes = rdti_read_u32(&f.r);
    request.count = rdti_read_u32(&f.r);
    request.queue = rdti_read_u32(&f.r);
    request.age = rdti_read_u32(&f.r);
    request.sequence = rdti_read_u64(&f.r);
    request.clock = rdti_read_u64(&f.r);
    bits = rdti_read_u64(&f.r);
    memcpy(&request.lr_scale, &bits, sizeof(bits));
    request.chunk = rdti_read_u64(&f.r);
    rdti_fields_require(&f, request.sequence != 0, "a sequence of 0");
    rdti_fields_require(&f, request.lr_scale >= 0.0 && !isinf(request.lr_scale),
                        "a learning rate is scaled by no number from 0 on");
    rdti_fields_require(&f, request.op != 0 && request.op < KINDS, "no such op");
    if (f.fault == NULL) {
        request_require_fields(&f, &request);
        request_require_payload(&f, &request);
    }
    status = rdti_fields_end(&f, "request", err);
    if (status == RDT_OK && request.payload_bytes > slot_bytes)
        status = rdti_error_set(err, RDT_EPROTO, 0, "a request of %u B exceeds its slot of %u B",
                                request.payload_bytes, slot_bytes);
    if (status == RDT_OK)
        *out = request;
    return status;
}
