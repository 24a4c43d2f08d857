/* SPDX-License-Identifier: Apache-2.0
 * Heads of requests and answers as bytes. */
#include "ps/model/wire.h"

#include <math.h>
#include <string.h>

#include "base/error.h"
#include "wire/bytes.h"

#define REQUEST_MAGIC UINT32_C(0x31515052) /* "RPQ1" */
#define ANSWER_MAGIC UINT32_C(0x31415052)  /* "RPA1" */

void
rdti_ps_request_encode(const struct rdti_ps_request *request, uint8_t out[RDTI_PS_HEAD_BYTES])
{
    uint64_t bits;

    memcpy(&bits, &request->lr_scale, sizeof(bits));
    memset(out, 0, RDTI_PS_HEAD_BYTES);
    rdti_put_u32(out, REQUEST_MAGIC);
    rdti_put_u16(out + 4, request->op);
    rdti_put_u16(out + 6, request->flags);
    rdti_put_u32(out + 8, request->table);
    rdti_put_u32(out + 12, request->map_version);
    rdti_put_u64(out + 16, request->sequence);
    rdti_put_u64(out + 24, request->clock);
    rdti_put_u64(out + 32, bits);
    rdti_put_u32(out + 40, request->count);
    rdti_put_u32(out + 44, request->payload_bytes);
    rdti_put_u64(out + 48, request->chunk);
    rdti_put_u32(out + 56, request->queue);
}

rdt_status
rdti_ps_request_decode(const uint8_t in[RDTI_PS_HEAD_BYTES], uint32_t slot_bytes,
                       struct rdti_ps_request *out, struct rdt_error *err)
{
    struct rdti_ps_request request = {
        .op = rdti_get_u16(in + 4),
        .flags = rdti_get_u16(in + 6),
        .table = rdti_get_u32(in + 8),
        .map_version = rdti_get_u32(in + 12),
        .sequence = rdti_get_u64(in + 16),
        .clock = rdti_get_u64(in + 24),
        .count = rdti_get_u32(in + 40),
        .payload_bytes = rdti_get_u32(in + 44),
        .chunk = rdti_get_u64(in + 48),
        .queue = rdti_get_u32(in + 56),
    };
    const uint64_t bits = rdti_get_u64(in + 32);

    memcpy(&request.lr_scale, &bits, sizeof(bits));
    if (rdti_get_u32(in) != REQUEST_MAGIC || request.op == 0 || request.op >= RDTI_PS_OP_LIMIT)
        return rdti_error_set(err, RDT_EPROTO, 0, "a request begins with 0x%08x and has kind %u",
                              rdti_get_u32(in), request.op);
    if (request.payload_bytes > slot_bytes)
        return rdti_error_set(err, RDT_EPROTO, 0, "a request of %u B exceeds its slot of %u B",
                              request.payload_bytes, slot_bytes);
    if (!(request.lr_scale >= 0.0) || isinf(request.lr_scale))
        return rdti_error_set(err, RDT_EPROTO, 0, "a learning rate is scaled by %g",
                              request.lr_scale);
    *out = request;
    return RDT_OK;
}

void
rdti_ps_answer_encode(const struct rdti_ps_answer *answer, uint8_t out[RDTI_PS_HEAD_BYTES])
{
    memset(out, 0, RDTI_PS_HEAD_BYTES);
    rdti_put_u32(out, ANSWER_MAGIC);
    rdti_put_u32(out + 4, (uint32_t)answer->status);
    rdti_put_u64(out + 8, answer->sequence);
    rdti_put_u64(out + 16, answer->clock);
    rdti_put_u32(out + 24, answer->payload_bytes);
}

rdt_status
rdti_ps_answer_decode(const uint8_t in[RDTI_PS_HEAD_BYTES], uint32_t slot_bytes,
                      struct rdti_ps_answer *out, struct rdt_error *err)
{
    const struct rdti_ps_answer answer = {
        .status = (int32_t)rdti_get_u32(in + 4),
        .sequence = rdti_get_u64(in + 8),
        .clock = rdti_get_u64(in + 16),
        .payload_bytes = rdti_get_u32(in + 24),
    };

    if (rdti_get_u32(in) != ANSWER_MAGIC || answer.payload_bytes > slot_bytes)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "an answer begins with 0x%08x and has %u B in a slot of %u B",
                              rdti_get_u32(in), answer.payload_bytes, slot_bytes);
    *out = answer;
    return RDT_OK;
}

rdt_status
rdti_ps_check_slots(uint32_t slots, uint32_t slot_bytes, struct rdt_error *err)
{
    if (slots < 2 || slots > RDTI_PS_SLOTS_MAX)
        return rdti_error_set(err, RDT_EINVAL, 0, "%u slots: 2 to %d are possible", slots,
                              RDTI_PS_SLOTS_MAX);
    if (slot_bytes < 1024 || slot_bytes > RDTI_PS_SLOT_BYTES_MAX || slot_bytes % 64 != 0)
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "slots of %u B: multiples of 64 from 1024 to %d are possible",
                              slot_bytes, RDTI_PS_SLOT_BYTES_MAX);
    return RDT_OK;
}
