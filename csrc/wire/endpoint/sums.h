/* SPDX-License-Identifier: Apache-2.0
 * Checksums of payload, after the heads of RDTI_MESSAGE_SUMS and _WRITTEN
 * (wire/endpoint/message.h). */
#ifndef RDTI_WIRE_ENDPOINT_SUMS_H
#define RDTI_WIRE_ENDPOINT_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"

/* With its head 15 units of 64 bytes: four such messages fit the small ring of a mailbox. */
#define RDTI_SUMS_MAX 216

/* CRC-32C of each RDT_SUM_CHUNK_BYTES from off_bytes on; the last covers the remainder. */
struct rdti_sums {
    uint64_t off_bytes; /* in the region, or in the message */
    uint64_t len_bytes;
    uint32_t index; /* of the receiver's region; 0 for a message's sums, as the next two */
    uint32_t generation;
    uint32_t notification; /* due after the bytes were compared, or RDTI_NOTIFY_NONE */
    uint32_t count;
    uint32_t sums[RDTI_SUMS_MAX];
};
#define RDTI_SUMS_FIXED_BYTES 32
#define RDTI_SUMS_BYTES_MAX (RDTI_SUMS_FIXED_BYTES + 4 * RDTI_SUMS_MAX)

/* Requests the sums of these bytes: at most RDTI_SUMS_MAX chunks. */
struct rdti_sums_get {
    uint64_t off_bytes;
    uint64_t len_bytes;
    uint32_t index;
    uint32_t generation;
};
#define RDTI_SUMS_GET_BYTES 24

void rdti_sums_get_encode(const struct rdti_sums_get *in, uint8_t out[RDTI_SUMS_GET_BYTES]);
/* RDT_EPROTO: wrong length, no bytes or too many, a range over 64 bits. */
rdt_status rdti_sums_get_decode(const uint8_t *buf, size_t len_bytes, struct rdti_sums_get *out,
                                struct rdt_error *err);

/* Returns the length. */
size_t rdti_sums_encode(const struct rdti_sums *in, uint8_t out[RDTI_SUMS_BYTES_MAX]);
/* RDT_EPROTO: a length that does not match `count`, a count that does not match the bytes or
 * exceeds RDTI_SUMS_MAX, a range over 64 bits. *out is untouched on failure. */
rdt_status rdti_sums_decode(const uint8_t *buf, size_t len_bytes, struct rdti_sums *out,
                            struct rdt_error *err);

#endif
