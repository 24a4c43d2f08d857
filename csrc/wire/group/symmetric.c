/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes cards. */
#include "wire/group/symmetric.h"

#include "wire/fields.h"

void
rdti_card_encode(const struct rdti_card *in, uint8_t out[RDTI_CARD_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_CARD_BYTES, .is_ok = true};

    rdti_write_u64(&w, in->number);
    rdti_write_u64(&w, in->buffer_bytes);
    rdti_write_u64(&w, in->pad_bytes);
    rdti_write_place(&w, in->number != RDTI_CARD_NOBODYS, &in->buffer);
}

rdt_status
rdti_card_decode(const uint8_t *buf, size_t len_bytes, struct rdti_card *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_card card = {0};

    rdt_status status =
        rdti_fields_begin(&f, "card of symmetric memory", buf, len_bytes, RDTI_CARD_BYTES, err);
    if (status != RDT_OK)
        return status;
    card.number = rdti_read_u64(&f.r);
    card.buffer_bytes = rdti_read_u64(&f.r);
    card.pad_bytes = rdti_read_u64(&f.r);
    rdti_fields_place(&f, card.number != RDTI_CARD_NOBODYS, &card.buffer);
    status = rdti_fields_end(&f, "card of symmetric memory", err);
    if (status == RDT_OK)
        *out = card;
    return status;
}
