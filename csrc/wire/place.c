/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes places. */
#include "wire/place.h"

#include "base/range.h"
#include "wire/fields.h"

void
rdti_place_encode(const struct rdti_place *in, uint8_t out[RDTI_PLACE_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_PLACE_BYTES, .is_ok = true};

    rdti_write_place(&w, true, in);
}

rdt_status
rdti_place_decode(const uint8_t *buf, size_t len_bytes, struct rdti_place *out,
                  struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_place place = {0};

    rdt_status status = rdti_fields_begin(&f, "place", buf, len_bytes, RDTI_PLACE_BYTES, err);
    if (status != RDT_OK)
        return status;
    rdti_fields_place(&f, true, &place);
    status = rdti_fields_end(&f, "place", err);
    if (status == RDT_OK)
        *out = place;
    return status;
}

bool
rdti_place_holds(const struct rdti_place *place, const uint8_t owner[RDT_UUID_BYTES],
                 uint64_t len_bytes)
{
    return memcmp(place->region.owner, owner, RDT_UUID_BYTES) == 0 &&
           rdti_range_ok(place->off_bytes, len_bytes, place->region.len_bytes);
}
