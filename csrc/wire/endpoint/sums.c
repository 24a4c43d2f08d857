/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes checksums of payload. */
#include "wire/endpoint/sums.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "wire/bytes.h"
#include "wire/fields.h"

size_t
rdti_sums_encode(const struct rdti_sums *in, uint8_t out[RDTI_SUMS_BYTES_MAX])
{
    struct rdti_writer w = {.p = out, .left = RDTI_SUMS_BYTES_MAX, .is_ok = true};

    rdti_write_u64(&w, in->off_bytes);
    rdti_write_u64(&w, in->len_bytes);
    rdti_write_u32(&w, in->index);
    rdti_write_u32(&w, in->generation);
    rdti_write_u32(&w, in->notification);
    rdti_write_u32(&w, in->count);
    for (uint32_t i = 0; i < in->count; i++)
        rdti_write_u32(&w, in->sums[i]);
    return RDTI_SUMS_FIXED_BYTES + 4 * (size_t)in->count;
}

rdt_status
rdti_sums_decode(const uint8_t *buf, size_t len_bytes, struct rdti_sums *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_sums sums = {0};

    if (len_bytes < RDTI_SUMS_FIXED_BYTES || len_bytes > RDTI_SUMS_BYTES_MAX)
        return rdti_error_set(err, RDT_EPROTO, 0, "sums: %zu bytes, want %d to %d", len_bytes,
                              RDTI_SUMS_FIXED_BYTES, RDTI_SUMS_BYTES_MAX);
    rdt_status status = rdti_fields_begin(&f, "sums", buf, len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    sums.off_bytes = rdti_read_u64(&f.r);
    sums.len_bytes = rdti_read_u64(&f.r);
    sums.index = rdti_read_u32(&f.r);
    sums.generation = rdti_read_u32(&f.r);
    sums.notification = rdti_read_u32(&f.r);
    sums.count = rdti_read_u32(&f.r);
    rdti_fields_require(&f, sums.count <= RDTI_SUMS_MAX, "too many sums");
    rdti_fields_require(&f, rdti_sum_count(sums.len_bytes) == sums.count,
                        "not as many sums as the bytes have");
    rdti_fields_require(&f, sums.off_bytes + sums.len_bytes >= sums.off_bytes,
                        "the range exceeds 64 bits");
    for (uint32_t i = 0; f.fault == NULL && i < sums.count; i++)
        sums.sums[i] = rdti_read_u32(&f.r);
    status = rdti_fields_end(&f, "sums", err);
    if (status == RDT_OK)
        *out = sums;
    return status;
}

void
rdti_sums_get_encode(const struct rdti_sums_get *in, uint8_t out[RDTI_SUMS_GET_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_SUMS_GET_BYTES, .is_ok = true};

    rdti_write_u64(&w, in->off_bytes);
    rdti_write_u64(&w, in->len_bytes);
    rdti_write_u32(&w, in->index);
    rdti_write_u32(&w, in->generation);
}

rdt_status
rdti_sums_get_decode(const uint8_t *buf, size_t len_bytes, struct rdti_sums_get *out,
                     struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_sums_get get = {0};

    rdt_status status = rdti_fields_begin(&f, "SUMS_GET", buf, len_bytes, RDTI_SUMS_GET_BYTES, err);
    if (status != RDT_OK)
        return status;
    get.off_bytes = rdti_read_u64(&f.r);
    get.len_bytes = rdti_read_u64(&f.r);
    get.index = rdti_read_u32(&f.r);
    get.generation = rdti_read_u32(&f.r);
    rdti_fields_require(&f,
                        get.len_bytes > 0 &&
                            get.len_bytes <= (uint64_t)RDTI_SUMS_MAX * RDT_SUM_CHUNK_BYTES,
                        "no bytes, or too many");
    rdti_fields_require(&f, get.off_bytes + get.len_bytes >= get.off_bytes,
                        "the range exceeds 64 bits");
    status = rdti_fields_end(&f, "SUMS_GET", err);
    if (status == RDT_OK)
        *out = get;
    return status;
}
