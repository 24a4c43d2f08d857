/* SPDX-License-Identifier: Apache-2.0
 * The header that is written with the payload of a bounded slot, and instead of it for a dynamic
 * slot. */
#ifndef RDTI_WIRE_ENDPOINT_SLOT_HEADER_H
#define RDTI_WIRE_ENDPOINT_SLOT_HEADER_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/place.h"

struct rdti_slot_header {
    uint32_t epoch;
    uint32_t dtype;
    uint32_t ndim;
    uint64_t dims[RDT_MAX_NDIM];
    struct rdti_place place; /* dynamic only, else zero */
};
/* epoch, dtype, ndim, zero; dims; place or zeros: 152 bytes, padded with zeros */
#define RDTI_SLOT_HEADER_BYTES 192
/* The header lies at a multiple of this after the payload, and the data after it is aligned as
 * tensors are. */
#define RDTI_SLOT_ALIGN 64

void rdti_slot_header_encode(const struct rdti_slot_header *in,
                             uint8_t out[RDTI_SLOT_HEADER_BYTES]);
/* RDT_EPROTO: ndim over RDT_MAX_NDIM, dims that rdti_tensor_bytes() refuses or are not zero beyond
 * ndim, unknown dtype, a bad descriptor, an offset outside of it. *out is untouched on failure. */
rdt_status rdti_slot_header_decode(const uint8_t *buf, size_t len_bytes,
                                   struct rdti_slot_header *out, struct rdt_error *err);

/*
 * Product of dims times element bytes. RDT_EINVAL: unknown dtype, ndim over RDT_MAX_NDIM, or the
 * product, with ones in place of zero dims, exceeds 63 bits, so that no stride of the tensor
 * overflows either.
 */
rdt_status rdti_tensor_bytes(uint32_t dtype, uint32_t ndim, const uint64_t *dims, uint64_t *out,
                             struct rdt_error *err);

#endif
