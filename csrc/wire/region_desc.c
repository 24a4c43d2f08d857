/* SPDX-License-Identifier: Apache-2.0
 * Encodes and decodes the descriptor of a remote region. */
#include "wire/region_desc.h"

#include "base/crypto.h"
#include "base/error.h"
#include "base/range.h"
#include "rdmatensor.h"
#include "wire/bytes.h"
#include "wire/handshake.h"

_Static_assert(RDTI_REGION_SUM_OFF + 4 == RDT_REMOTE_REGION_BYTES, "the sum ends the descriptor");

static uint32_t
region_desc_sum_of(const uint8_t *buf)
{
    const uint64_t hash = rdti_hash64(buf, RDTI_REGION_SUM_OFF);

    return (uint32_t)(hash ^ hash >> 32);
}

void
rdt_remote_region_encode(const struct rdt_remote_region *remote,
                         uint8_t out[RDT_REMOTE_REGION_BYTES])
{
    struct rdti_writer w = {.p = out, .left = RDT_REMOTE_REGION_BYTES, .is_ok = true};

    (void)rdti_write_bytes(&w, remote->owner, sizeof(remote->owner));
    rdti_write_u64(&w, remote->addr);
    rdti_write_u64(&w, remote->len_bytes);
    rdti_write_u64(&w, remote->segment_off);
    rdti_write_u32(&w, remote->segment);
    rdti_write_u32(&w, remote->index);
    rdti_write_u32(&w, remote->generation);
    rdti_write_u32(&w, remote->rkey);
    rdti_write_u16(&w, RDTI_REGION_MAGIC);
    rdti_write_u16(&w, RDTI_WIRE_VERSION);
    rdti_write_u32(&w, region_desc_sum_of(out));
}

/* The first fault of the bytes; NULL if there is none. */
static const char *
region_desc_fault_of(const uint8_t *buf)
{
    if (rdti_get_u16(buf + RDTI_REGION_MAGIC_OFF) != RDTI_REGION_MAGIC)
        return "these are not the bytes of a region";
    if (rdti_get_u32(buf + RDTI_REGION_SUM_OFF) != region_desc_sum_of(buf))
        return "the bytes were damaged: their sum is wrong";
    return NULL;
}

rdt_status
rdt_remote_region_decode(const uint8_t *buf, size_t len_bytes, struct rdt_remote_region *out,
                         struct rdt_error *err)
{
    if (buf == NULL || out == NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "remote_region_decode: buf or out is NULL");
    if (len_bytes != RDT_REMOTE_REGION_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "remote region: %zu bytes, want %d", len_bytes,
                              RDT_REMOTE_REGION_BYTES);
    const char *fault = region_desc_fault_of(buf);
    if (fault != NULL)
        return rdti_error_set(err, RDT_EPROTO, 0, "remote region: %s", fault);
    const uint16_t version = rdti_get_u16(buf + RDTI_REGION_VERSION_OFF);
    if (version != RDTI_WIRE_VERSION)
        return rdti_error_set(err, RDT_EVERSION, 0,
                              "remote region: wire version %u, this process has %d", version,
                              RDTI_WIRE_VERSION);

    struct rdti_reader r = {.p = buf, .left = len_bytes, .is_ok = true};
    struct rdt_remote_region remote;
    memcpy(remote.owner, rdti_read_bytes(&r, sizeof(remote.owner)), sizeof(remote.owner));
    remote.addr = rdti_read_u64(&r);
    remote.len_bytes = rdti_read_u64(&r);
    remote.segment_off = rdti_read_u64(&r);
    remote.segment = rdti_read_u32(&r);
    remote.index = rdti_read_u32(&r);
    remote.generation = rdti_read_u32(&r);
    remote.rkey = rdti_read_u32(&r);
    if (!rdti_range_ok(remote.addr, remote.len_bytes, UINT64_MAX) ||
        !rdti_range_ok(remote.segment_off, remote.len_bytes, UINT64_MAX))
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "remote region: 0x%llx bytes from 0x%llx or 0x%llx leave 64 bits",
                              (unsigned long long)remote.len_bytes, (unsigned long long)remote.addr,
                              (unsigned long long)remote.segment_off);
    *out = remote;
    return RDT_OK;
}
