/* SPDX-License-Identifier: Apache-2.0
 * Sums of payload: behind the heads of RDTI_MESSAGE_SUMS and _WRITTEN (wire/message.h). */
#ifndef RDTI_WIRE_SUMS_H
#define RDTI_WIRE_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* With its head 15 units of 64 bytes: four of them fit the small ring of a mailbox. */
#define RDTI_SUMS_MAX 216

/* CRC-32C of each RDT_SUM_CHUNK_BYTES from off_bytes on, the last of what is left. */
struct rdti_sums {
    uint64_t off_bytes; /* in the region, or in the message */
    uint64_t len_bytes;
    uint32_t index; /* of the receiver's region; of a message's sums 0, as the next two */
    uint32_t generation;
    uint32_t notification; /* due once the bytes were compared, or RDTI_NOTIFY_NONE */
    uint32_t count;
    uint32_t sums[RDTI_SUMS_MAX];
};
#define RDTI_SUMS_FIXED_BYTES 32
#define RDTI_SUMS_BYTES_MAX (RDTI_SUMS_FIXED_BYTES + 4 * RDTI_SUMS_MAX)

/* The sums of these bytes, please: RDTI_SUMS_MAX chunks at most. */
struct rdti_sums_get {
    uint64_t off_bytes;
    uint64_t len_bytes;
    uint32_t index;
    uint32_t generation;
};
#define RDTI_SUMS_GET_BYTES 24

void rdti_sums_get_encode(const struct rdti_sums_get *in, uint8_t out[RDTI_SUMS_GET_BYTES]);
/* RDT_EPROTO: another length, no bytes or too many, a range over 64 bits. */
rdt_status rdti_sums_get_decode(const uint8_t *buf, size_t len_bytes, struct rdti_sums_get *out,
                                struct rdt_error *err);

/* Returns the length. */
size_t rdti_sums_encode(const struct rdti_sums *in, uint8_t out[RDTI_SUMS_BYTES_MAX]);
/* RDT_EPROTO: another length than `count` says, a count that is not that of the bytes, or more than
 * RDTI_SUMS_MAX, a range over 64 bits. *out is untouched on failure. */
rdt_status rdti_sums_decode(const uint8_t *buf, size_t len_bytes, struct rdti_sums *out,
                            struct rdt_error *err);

#endif
