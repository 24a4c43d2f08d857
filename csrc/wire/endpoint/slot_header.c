/* SPDX-License-Identifier: Apache-2.0
 * The header of bounded and dynamic slots, and the size of a tensor. */
#include "wire/endpoint/slot_header.h"

#include "base/error.h"
#include "wire/fields.h"

#define UNPADDED_BYTES (16 + 8 * RDT_MAX_NDIM + RDTI_PLACE_BYTES)

_Static_assert(UNPADDED_BYTES <= RDTI_SLOT_HEADER_BYTES, "the padding is not negative");
_Static_assert(RDTI_SLOT_HEADER_BYTES % RDTI_SLOT_ALIGN == 0,
               "payload after it is aligned as tensors are");

static bool
slot_header_has_region(const struct rdt_remote_region *region)
{
    static const struct rdt_remote_region none;

    return memcmp(region, &none, sizeof(none)) != 0; /* the struct has no padding */
}

_Static_assert(sizeof(struct rdt_remote_region) == RDT_UUID_BYTES + 3 * 8 + 4 * 4,
               "compared as bytes");

void
rdti_slot_header_encode(const struct rdti_slot_header *in, uint8_t out[RDTI_SLOT_HEADER_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_SLOT_HEADER_BYTES, .is_ok = true};

    rdti_write_u32(&w, in->epoch);
    rdti_write_u32(&w, in->dtype);
    rdti_write_u32(&w, in->ndim);
    rdti_write_u32(&w, 0);
    for (uint32_t i = 0; i < RDT_MAX_NDIM; i++)
        rdti_write_u64(&w, i < in->ndim ? in->dims[i] : 0);
    rdti_write_place(&w, slot_header_has_region(&in->place.region), &in->place);
    rdti_write_zeros(&w, RDTI_SLOT_HEADER_BYTES - UNPADDED_BYTES);
}

/* A place or zeros, at the reader's position. */
static void
slot_header_read_optional_place(struct rdti_fields *f, struct rdti_place *out)
{
    static const uint8_t none[RDTI_PLACE_BYTES];
    const bool is_present = f->r.left >= sizeof(none) && memcmp(f->r.p, none, sizeof(none)) != 0;

    rdti_fields_place(f, is_present, out);
    /* The encoder writes a zero struct as zeros; its descriptor would be a second encoding. */
    rdti_fields_require(f, is_present == slot_header_has_region(&out->region),
                        "a descriptor of no region");
}

rdt_status
rdti_slot_header_decode(const uint8_t *buf, size_t len_bytes, struct rdti_slot_header *out,
                        struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_slot_header header = {0};
    uint64_t tensor_bytes;

    rdt_status status =
        rdti_fields_begin(&f, "slot header", buf, len_bytes, RDTI_SLOT_HEADER_BYTES, err);
    if (status != RDT_OK)
        return status;
    header.epoch = rdti_read_u32(&f.r);
    header.dtype = rdti_read_u32(&f.r);
    header.ndim = rdti_read_u32(&f.r);
    rdti_fields_zeros(&f, 4, "the filler is not zero");
    for (uint32_t i = 0; i < RDT_MAX_NDIM; i++) {
        header.dims[i] = rdti_read_u64(&f.r);
        rdti_fields_require(&f, i < header.ndim || header.dims[i] == 0, "dims beyond ndim");
    }
    slot_header_read_optional_place(&f, &header.place);
    rdti_fields_zeros(&f, RDTI_SLOT_HEADER_BYTES - UNPADDED_BYTES, "the padding is not zero");
    rdti_fields_require(&f,
                        rdti_tensor_bytes(header.dtype, header.ndim, header.dims, &tensor_bytes,
                                          NULL) == RDT_OK,
                        "unknown dtype, too many dims, or a product over 63 bits");
    status = rdti_fields_end(&f, "slot header", err);
    if (status == RDT_OK)
        *out = header;
    return status;
}

rdt_status
rdti_tensor_bytes(uint32_t dtype, uint32_t ndim, const uint64_t *dims, uint64_t *out,
                  struct rdt_error *err)
{
    uint64_t bytes = rdt_dtype_bytes(dtype);
    bool is_empty = false;

    if (bytes == 0)
        return rdti_error_set(err, RDT_EINVAL, 0, "tensor: unknown dtype %u", dtype);
    if (ndim > RDT_MAX_NDIM)
        return rdti_error_set(err, RDT_EINVAL, 0, "tensor: %u dims, at most %d", ndim,
                              RDT_MAX_NDIM);
    for (uint32_t i = 0; i < ndim; i++) {
        if (dims[i] == 0) {
            is_empty = true;
            continue;
        }
        if (bytes > (uint64_t)INT64_MAX / dims[i])
            return rdti_error_set(err, RDT_EINVAL, 0,
                                  "tensor: its size exceeds 63 bits at dims[%u] = %llu", i,
                                  (unsigned long long)dims[i]);
        bytes *= dims[i];
    }
    *out = is_empty ? 0 : bytes;
    return RDT_OK;
}
