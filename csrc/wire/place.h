/* SPDX-License-Identifier: Apache-2.0
 * A place: where bytes lie, or are to be written, in a process's memory. Any thread; no state. */
#ifndef RDTI_WIRE_PLACE_H
#define RDTI_WIRE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

struct rdti_place {
    uint64_t off_bytes; /* in the region, inside it */
    struct rdt_remote_region region;
};
#define RDTI_PLACE_BYTES (8 + RDT_REMOTE_REGION_BYTES)

void rdti_place_encode(const struct rdti_place *in, uint8_t out[RDTI_PLACE_BYTES]);
/* RDT_EPROTO: wrong length, a bad descriptor, an offset outside the region. *out is untouched on
 * failure. */
rdt_status rdti_place_decode(const uint8_t *buf, size_t len_bytes, struct rdti_place *out,
                             struct rdt_error *err);

/* Whether the place is in that process's memory and holds this much. */
bool rdti_place_holds(const struct rdti_place *place, const uint8_t owner[RDT_UUID_BYTES],
                      uint64_t len_bytes);

#endif
