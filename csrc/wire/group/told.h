/* SPDX-License-Identifier: Apache-2.0
 * The record that rank 0 of a group publishes to the other ranks through a shared store: the
 * identity of the job, and the settings that must be equal on all ranks. Any process that reaches
 * the store can write it. */
#ifndef RDTI_WIRE_GROUP_TOLD_H
#define RDTI_WIRE_GROUP_TOLD_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

#define RDTI_TOLD_MAGIC UINT32_C(0x47544452)
#define RDTI_TOLD_NAME_BYTES 12
#define RDTI_TOLD_SECRET_BYTES 32
#define RDTI_TOLD_SETTING_BYTES 64 /* with the final NUL: no valid value is longer than 16 */

struct rdti_told {
    uint8_t id[RDTI_TOLD_NAME_BYTES];
    uint8_t group_id[RDTI_TOLD_NAME_BYTES];
    uint32_t epoch;
    uint32_t has_secret; /* a byte, as the next; 0: each rank gets the secret from elsewhere */
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
