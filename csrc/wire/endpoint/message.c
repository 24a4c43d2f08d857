/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes messages in a mailbox ring. */
#include "wire/endpoint/message.h"

#include "base/error.h"
#include "wire/bytes.h"
#include "wire/fields.h"

void
rdti_message_encode(const struct rdti_message *in, uint8_t out[RDTI_MESSAGE_HEAD_BYTES])
{
    out[0] = in->kind;
    out[1] = in->op;
    out[2] = in->dtype;
    out[3] = in->reduce_op;
    rdti_put_u16(out + 4, in->source);
    rdti_put_u16(out + 6, in->root);
    rdti_put_u64(out + 8, in->group_id);
    rdti_put_u64(out + 16, in->tag);
    rdti_put_u64(out + 24, in->len_bytes);
    rdti_put_u64(out + 32, in->count);
    rdti_put_u64(out + 40, in->id);
    rdti_put_u32(out + 48, in->consumed);
    rdti_put_u32(out + 52, in->delivered);
    memcpy(out + 56, in->inlined, RDTI_MESSAGE_INLINE_BYTES);
}

rdt_status
rdti_message_decode(const uint8_t *buf, size_t len_bytes, struct rdti_message *out,
                    struct rdt_error *err)
{
    if (len_bytes < RDTI_MESSAGE_HEAD_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "mailbox message: %zu bytes, want %d", len_bytes,
                              RDTI_MESSAGE_HEAD_BYTES);
    if (buf[0] < RDTI_MESSAGE_EAGER || buf[0] > RDTI_MESSAGE_POSTED)
        return rdti_error_set(err, RDT_EPROTO, 0, "mailbox message: unknown kind %u", buf[0]);

    out->kind = buf[0];
    out->op = buf[1];
    out->dtype = buf[2];
    out->reduce_op = buf[3];
    out->source = rdti_get_u16(buf + 4);
    out->root = rdti_get_u16(buf + 6);
    out->group_id = rdti_get_u64(buf + 8);
    out->tag = rdti_get_u64(buf + 16);
    out->len_bytes = rdti_get_u64(buf + 24);
    out->count = rdti_get_u64(buf + 32);
    out->id = rdti_get_u64(buf + 40);
    out->consumed = rdti_get_u32(buf + 48);
    out->delivered = rdti_get_u32(buf + 52);
    memcpy(out->inlined, buf + 56, RDTI_MESSAGE_INLINE_BYTES);
    return RDT_OK;
}

void
rdti_rts_encode(const struct rdti_rts *in, uint8_t out[RDTI_RTS_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_RTS_BYTES, .is_ok = true};

    rdti_write_u8(&w, in->has_region);
    rdti_write_u8(&w, in->has_process);
    rdti_write_u16(&w, 0);
    rdti_write_u32(&w, in->pid);
    rdti_write_u64(&w, in->addr);
    rdti_write_u64(&w, in->canary_addr);
    rdti_write_u64(&w, in->canary);
    rdti_write_place(&w, in->has_region != 0, &in->place);
}

rdt_status
rdti_rts_decode(const uint8_t *buf, size_t len_bytes, struct rdti_rts *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_rts rts = {0};

    rdt_status status = rdti_fields_begin(&f, "RTS", buf, len_bytes, RDTI_RTS_BYTES, err);
    if (status != RDT_OK)
        return status;
    rts.has_region = rdti_read_u8(&f.r);
    rts.has_process = rdti_read_u8(&f.r);
    rdti_fields_require(&f, rts.has_region <= 1 && rts.has_process <= 1, "a flag is not 0 or 1");
    rdti_fields_zeros(&f, 2, "the filler is not zero");
    rts.pid = rdti_read_u32(&f.r);
    rts.addr = rdti_read_u64(&f.r);
    rts.canary_addr = rdti_read_u64(&f.r);
    rts.canary = rdti_read_u64(&f.r);
    rdti_fields_place(&f, rts.has_region != 0, &rts.place);
    status = rdti_fields_end(&f, "RTS", err);
    if (status == RDT_OK)
        *out = rts;
    return status;
}

void
rdti_nack_encode(const struct rdti_nack *in, uint8_t out[RDTI_NACK_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_NACK_BYTES, .is_ok = true};

    rdti_write_text(&w, in->text, sizeof(in->text));
}

rdt_status
rdti_nack_decode(const uint8_t *buf, size_t len_bytes, struct rdti_nack *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_nack nack = {0};

    rdt_status status = rdti_fields_begin(&f, "NACK", buf, len_bytes, RDTI_NACK_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_text(&f, nack.text, sizeof(nack.text), "its text is not plain text");
    status = rdti_fields_end(&f, "NACK", err);
    if (status == RDT_OK)
        *out = nack;
    return status;
}

void
rdti_message_set_desc(struct rdti_message *head, const struct rdt_message_desc *desc)
{
    head->op = (uint8_t)desc->op;
    head->dtype = (uint8_t)desc->dtype;
    head->reduce_op = (uint8_t)desc->reduce_op;
    head->root = (uint16_t)desc->root;
    head->count = desc->count;
}
