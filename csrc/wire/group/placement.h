/* SPDX-License-Identifier: Apache-2.0
 * The place of a member's tensor, in the first bytes of a stage of its board: the other members use
 * it to write to the tensor (collectives/team/team.h). */
#ifndef RDTI_WIRE_GROUP_PLACEMENT_H
#define RDTI_WIRE_GROUP_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/place.h"

enum {
    RDTI_PLACEMENT_NONE = 0,
    RDTI_PLACEMENT_NEW = 1,
    RDTI_PLACEMENT_KNOWN = 2,
};

struct rdti_placement {
    uint32_t saying;         /* RDTI_PLACEMENT_*; one byte, as the next */
    uint32_t number;         /* 0 for NONE */
    struct rdti_place place; /* for NEW; else zeros */
};
#define RDTI_PLACEMENT_BYTES (2 + RDTI_PLACE_BYTES)
#define RDTI_PLACEMENT_BRIEF_BYTES 2

/* Returns the length. */
size_t rdti_placement_encode(const struct rdti_placement *in, uint8_t out[RDTI_PLACEMENT_BYTES]);
/* Reads the front of buf; more bytes may follow. RDT_EPROTO: an unknown saying, a number with NONE,
 * a bad descriptor, an offset outside the region. *out is untouched on failure. */
rdt_status rdti_placement_decode(const uint8_t *buf, size_t len_bytes, struct rdti_placement *out,
                                 struct rdt_error *err);

#endif
