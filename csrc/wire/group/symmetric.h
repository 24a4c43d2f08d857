/* SPDX-License-Identifier: Apache-2.0
 * What the members of a group exchange about an allocation of symmetric memory: each member
 * contributes a card to an all-gather. */
#ifndef RDTI_WIRE_GROUP_SYMMETRIC_H
#define RDTI_WIRE_GROUP_SYMMETRIC_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/place.h"

/* The number of a card without memory: a member that has none sends it, and all members stop. */
#define RDTI_CARD_NOBODYS UINT64_MAX

struct rdti_card {
    uint64_t number; /* of the group's rendezvous */
    uint64_t buffer_bytes;
    uint64_t pad_bytes;
    struct rdti_place buffer; /* zeros on a card without memory */
};
#define RDTI_CARD_BYTES (3 * 8 + RDTI_PLACE_BYTES)

void rdti_card_encode(const struct rdti_card *in, uint8_t out[RDTI_CARD_BYTES]);
/* RDT_EPROTO: wrong length, a bad descriptor, an offset outside the region. The caller checks that
 * the card belongs to this rendezvous and that the buffer fits. *out is untouched on failure. */
rdt_status rdti_card_decode(const uint8_t *buf, size_t len_bytes, struct rdti_card *out,
                            struct rdt_error *err);

#endif
