/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes the job. */
#include "wire/group/told.h"

#include "base/error.h"
#include "wire/fields.h"
#include "wire/handshake.h"

void
rdti_told_encode(const struct rdti_told *in, uint8_t out[RDTI_TOLD_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDTI_TOLD_BYTES, .is_ok = true};

    rdti_head_write(&w, RDTI_TOLD_MAGIC, RDTI_TOLD_BYTES);
    (void)rdti_write_bytes(&w, in->id, sizeof(in->id));
    (void)rdti_write_bytes(&w, in->group_id, sizeof(in->group_id));
    rdti_write_u32(&w, in->epoch);
    rdti_write_u8(&w, (uint8_t)in->has_secret);
    rdti_write_u8(&w, (uint8_t)in->is_store_at_rank_0);
    rdti_write_zeros(&w, 2);
    if (in->has_secret != 0)
        (void)rdti_write_bytes(&w, in->secret, sizeof(in->secret));
    else
        rdti_write_zeros(&w, sizeof(in->secret));
    rdti_write_text(&w, in->algo, sizeof(in->algo));
    rdti_write_text(&w, in->deterministic, sizeof(in->deterministic));
}

/* Magic and version, which are the same in every version. */
static rdt_status
told_check_head(const uint8_t *buf, size_t len_bytes, struct rdt_error *err)
{
    if (len_bytes < RDTI_OPENING_HEAD_BYTES || rdti_get_u32(buf) != RDTI_TOLD_MAGIC)
        return rdti_error_set(err, RDT_EPROTO, 0, "job: these %zu bytes are not one of rdmatensor",
                              len_bytes);
    if (rdti_get_u16(buf + 4) != RDTI_WIRE_VERSION)
        return rdti_head_refuse_version("job", rdti_get_u16(buf + 4), NULL, err);
    return RDT_OK;
}

rdt_status
rdti_told_decode(const uint8_t *buf, size_t len_bytes, struct rdti_told *out, struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_told job = {0};

    rdt_status status = told_check_head(buf, len_bytes, err);
    if (status == RDT_OK)
        status = rdti_fields_begin(&f, "job", buf, len_bytes, RDTI_TOLD_BYTES, err);
    if (status != RDT_OK)
        return status;
    (void)rdti_read_bytes(&f.r, RDTI_OPENING_HEAD_BYTES - 2);
    rdti_fields_require(&f, rdti_read_u16(&f.r) == RDTI_TOLD_BYTES, "says another length");
    rdti_fields_copy(&f, job.id, sizeof(job.id));
    rdti_fields_copy(&f, job.group_id, sizeof(job.group_id));
    job.epoch = rdti_read_u32(&f.r);
    job.has_secret = rdti_read_u8(&f.r);
    job.is_store_at_rank_0 = rdti_read_u8(&f.r);
    rdti_fields_require(&f, job.has_secret <= 1 && job.is_store_at_rank_0 <= 1,
                        "a flag is not 0 or 1");
    rdti_fields_zeros(&f, 2, "the filler is not zero");
    if (job.has_secret != 0)
        rdti_fields_copy(&f, job.secret, sizeof(job.secret));
    else
        rdti_fields_zeros(&f, sizeof(job.secret), "a secret that it says it has not");
    rdti_fields_text(&f, job.algo, sizeof(job.algo), "a setting is not plain text");
    rdti_fields_text(&f, job.deterministic, sizeof(job.deterministic),
                     "a setting is not plain text");
    status = rdti_fields_end(&f, "job", err);
    if (status == RDT_OK)
        *out = job;
    return status;
}
