/* SPDX-License-Identifier: Apache-2.0
 * Where a member's tensor lies: the first bytes of a stage of its board, by which the others come
 * to write there (collectives/team/team.h). */
#ifndef RDTI_WIRE_PLACEMENT_H
#define RDTI_WIRE_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

enum {
    RDTI_PLACEMENT_NONE = 0,
    RDTI_PLACEMENT_NEW = 1,
    RDTI_PLACEMENT_KNOWN = 2,
};

struct rdti_placement {
    uint32_t saying;                 /* one byte, as the next */
    uint32_t number;                 /* 0 of none */
    struct rdt_remote_region region; /* of a new one, as the next; else zeros */
    uint64_t off_bytes;              /* of the tensor in the region, inside it */
};
#define RDTI_PLACEMENT_BYTES (2 + RDT_REMOTE_REGION_BYTES + 8)
#define RDTI_PLACEMENT_BRIEF_BYTES 2

/* Returns the length. */
size_t rdti_placement_encode(const struct rdti_placement *in, uint8_t out[RDTI_PLACEMENT_BYTES]);
/* The front of buf, behind which there may be more. RDT_EPROTO: no such saying, a number of none, a
 * bad descriptor, an offset that leaves the region. *out is untouched on failure. */
rdt_status rdti_placement_decode(const uint8_t *buf, size_t len_bytes, struct rdti_placement *out,
                                 struct rdt_error *err);

#endif
