/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes placements. */
#include "wire/group/placement.h"

#include "wire/fields.h"

static size_t
placement_length_of(uint32_t saying)
{
    return saying == RDTI_PLACEMENT_NEW ? RDTI_PLACEMENT_BYTES : RDTI_PLACEMENT_BRIEF_BYTES;
}

size_t
rdti_placement_encode(const struct rdti_placement *in, uint8_t out[RDTI_PLACEMENT_BYTES])
{
    const size_t len_bytes = placement_length_of(in->saying);
    struct rdti_writer w = {.p = out, .left = len_bytes, .is_ok = true};

    rdti_write_u8(&w, (uint8_t)in->saying);
    rdti_write_u8(&w, (uint8_t)in->number);
    if (in->saying == RDTI_PLACEMENT_NEW)
        rdti_write_place(&w, true, &in->place);
    return len_bytes;
}

rdt_status
rdti_placement_decode(const uint8_t *buf, size_t len_bytes, struct rdti_placement *out,
                      struct rdt_error *err)
{
    const size_t want_bytes = placement_length_of(len_bytes > 0 ? buf[0] : RDTI_PLACEMENT_NONE);
    const size_t front_bytes = len_bytes < want_bytes ? len_bytes : want_bytes;
    struct rdti_fields f;
    struct rdti_placement placement = {0};

    rdt_status status =
        rdti_fields_begin(&f, "place of a tensor", buf, front_bytes, want_bytes, err);
    if (status != RDT_OK)
        return status;
    placement.saying = rdti_read_u8(&f.r);
    placement.number = rdti_read_u8(&f.r);
    rdti_fields_require(&f, placement.saying <= RDTI_PLACEMENT_KNOWN, "no such saying");
    rdti_fields_require(&f, placement.saying != RDTI_PLACEMENT_NONE || placement.number == 0,
                        "none has a number");
    if (placement.saying == RDTI_PLACEMENT_NEW)
        rdti_fields_place(&f, true, &placement.place);
    status = rdti_fields_end(&f, "place of a tensor", err);
    if (status == RDT_OK)
        *out = placement;
    return status;
}
