/* SPDX-License-Identifier: Apache-2.0
 * What rank 0 of a group tells the others through a store that they share: who they are, and what
 * all have to go by alike. Whoever reaches the store can write there. */
#ifndef RDTI_WIRE_TOLD_H
#define RDTI_WIRE_TOLD_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_TOLD_MAGIC UINT32_C(0x47544452)
#define RDTI_TOLD_NAME_BYTES 12
#define RDTI_TOLD_SECRET_BYTES 32
#define RDTI_TOLD_SETTING_BYTES 64 /* with the final NUL: no word that is one has more than 16 */

struct rdti_told {
    uint8_t id[RDTI_TOLD_NAME_BYTES];
    uint8_t group_id[RDTI_TOLD_NAME_BYTES];
    uint32_t epoch;
    uint32_t has_secret; /* a byte, as the next; 0: it is given to each rank from outside */
    uint32_t is_store_at_rank_0;
    uint8_t secret[RDTI_TOLD_SECRET_BYTES]; /* zeros without one */
    char algo[RDTI_TOLD_SETTING_BYTES];     /* RDMATENSOR_ALGO */
    char deterministic[RDTI_TOLD_SETTING_BYTES];
};
#define RDTI_TOLD_BYTES \
    (8 + 2 * RDTI_TOLD_NAME_BYTES + 8 + RDTI_TOLD_SECRET_BYTES + 2 * RDTI_TOLD_SETTING_BYTES)

/* Begins with the head of handshake.h. */
void rdti_told_encode(const struct rdti_told *in, uint8_t out[RDTI_TOLD_BYTES]);
/* RDT_EPROTO, RDT_EVERSION (naming both wire versions). *out is untouched on failure. */
rdt_status rdti_told_decode(const uint8_t *buf, size_t len_bytes, struct rdti_told *out,
                            struct rdt_error *err);

#endif
