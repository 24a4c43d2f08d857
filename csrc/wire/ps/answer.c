/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes heads of answers, and leases. */
#include "wire/ps/answer.h"

#include "base/error.h"
#include "wire/fields.h"

enum { ANSWER_FILLER_BYTES = 32 };

void
rdti_ps_answer_encode(const struct rdti_ps_answer *in, uint8_t out[RDTI_PS_HEAD_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_PS_HEAD_BYTES, .is_ok = true};

    rdti_write_u32(&w, RDTI_PS_ANSWER_MAGIC);
    rdti_write_u32(&w, (uint32_t)in->status);
    rdti_write_u32(&w, in->payload_bytes);
    rdti_write_zeros(&w, 4);
    rdti_write_u64(&w, in->sequence);
    rdti_write_u64(&w, in->clock);
    rdti_write_zeros(&w, ANSWER_FILLER_BYTES);
}

rdt_status
rdti_ps_answer_decode(const uint8_t *buf, size_t len_bytes, uint32_t slot_bytes,
                      struct rdti_ps_answer *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_ps_answer answer = {0};

    rdt_status status = rdti_fields_begin(&f, "answer", buf, len_bytes, RDTI_PS_HEAD_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_require(&f, rdti_read_u32(&f.r) == RDTI_PS_ANSWER_MAGIC,
                        "it does not begin as one of rdmatensor");
    answer.status = (int32_t)rdti_read_u32(&f.r);
    answer.payload_bytes = rdti_read_u32(&f.r);
    rdti_fields_zeros(&f, 4, "the filler is not zero");
    answer.sequence = rdti_read_u64(&f.r);
    answer.clock = rdti_read_u64(&f.r);
    rdti_fields_zeros(&f, ANSWER_FILLER_BYTES, "the filler is not zero");
    rdti_fields_require(&f, answer.status <= 0, "a positive status");
    rdti_fields_require(&f, answer.sequence != 0, "a sequence of 0");
    status = rdti_fields_end(&f, "answer", err);
    if (status == RDT_OK && answer.payload_bytes > slot_bytes)
        status = rdti_error_set(err, RDT_EPROTO, 0, "an answer of %u B exceeds its slot of %u B",
                                answer.payload_bytes, slot_bytes);
    if (status == RDT_OK)
        *out = answer;
    return status;
}

void
rdti_ps_answer_text(const uint8_t *bytes, size_t len_bytes, char out[RDTI_PS_TEXT_BYTES])
{
    struct rdti_writer w = {.p = (uint8_t *)out, .left = RDTI_PS_TEXT_BYTES, .is_ok = true};
    char text[RDTI_PS_TEXT_BYTES + 1] = {0};

    memcpy(text, bytes, len_bytes < RDTI_PS_TEXT_BYTES ? len_bytes : RDTI_PS_TEXT_BYTES);
    rdti_write_text(&w, text, RDTI_PS_TEXT_BYTES);
}

size_t
rdti_ps_lease_encode(const struct rdti_ps_lease *in, uint8_t *out)
{
    struct rdti_writer w = {.p = out,
                            .left = RDTI_PS_LEASE_FIXED_BYTES + RDTI_PS_MEMBERS_BYTES,
                            .is_ok = true};

    rdti_write_u64(&w, in->chunk);
    rdti_write_u32(&w, in->is_stale);
    rdti_write_u32(&w, in->members_bytes);
    (void)rdti_write_bytes(&w, in->members, in->members_bytes);
    return (size_t)(w.p - out);
}

rdt_status
rdti_ps_lease_decode(const uint8_t *buf, size_t len_bytes, struct rdti_ps_lease *out,
                     struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_ps_lease lease = {0};
    const size_t members_bytes =
        len_bytes > RDTI_PS_LEASE_FIXED_BYTES ? len_bytes - RDTI_PS_LEASE_FIXED_BYTES : 0;

    if (members_bytes > RDTI_PS_MEMBERS_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "lease: %zu bytes, want at most %d", len_bytes,
                              RDTI_PS_LEASE_FIXED_BYTES + RDTI_PS_MEMBERS_BYTES);
    rdt_status status = rdti_fields_begin(&f, "lease", buf, len_bytes,
                                          RDTI_PS_LEASE_FIXED_BYTES + members_bytes, err);
    if (status != RDT_OK)
        return status;
    lease.chunk = rdti_read_u64(&f.r);
    lease.is_stale = rdti_read_u32(&f.r);
    lease.members_bytes = rdti_read_u32(&f.r);
    rdti_fields_require(&f, lease.is_stale <= 1, "a flag is not 0 or 1");
    rdti_fields_require(&f, lease.members_bytes == members_bytes, "says another length");
    rdti_fields_copy(&f, lease.members, members_bytes);
    status = rdti_fields_end(&f, "lease", err);
    if (status == RDT_OK)
        *out = lease;
    return status;
}
