/* SPDX-License-Identifier: Apache-2.0
 * The address as bytes. */
#include "wire/address.h"

#include "base/error.h"
#include "wire/fields.h"

_Static_assert(RDTI_ADDRESS_BYTES_MAX <= RDT_ADDRESS_MAX_BYTES,
               "what users make room for is enough");

/* Why an address is invalid; NULL: it is valid. The same rules apply on both sides. */
static const char *
address_ip_fault(const struct rdti_address_ip *addr)
{
    if (addr->family != 4 && addr->family != 6)
        return "an address is of neither family 4 nor 6";
    if (addr->is_loopback > 1)
        return "a loopback flag is not 0 or 1";
    if (addr->port == 0)
        return "port 0";
    if (addr->scope_id != 0)
        return "a link-local address";
    if (addr->family == 4) {
        for (size_t i = RDTI_IPV4_BYTES; i < sizeof(addr->addr); i++) {
            if (addr->addr[i] != 0)
                return "an IPv4 address longer than 4 bytes";
        }
    }
    return NULL;
}

static const char *
address_fault(const struct rdti_address *address)
{
    if (address->addr_count > RDTI_ADDRESS_IPS_MAX)
        return "too many addresses";
    if (address->verify > RDT_VERIFY_CRC32C)
        return "an unknown way to verify";
    for (uint32_t i = 0; i < address->addr_count; i++) {
        const char *fault = address_ip_fault(&address->addrs[i]);
        if (fault != NULL)
            return fault;
    }
    return NULL;
}

rdt_status
rdti_address_encode(const struct rdti_address *in, uint8_t *buf, size_t cap, size_t *len_out,
                    struct rdt_error *err)
{
    const char *fault = address_fault(in);
    if (fault != NULL)
        return rdti_error_set(err, RDT_EINVAL, 0, "address: %s", fault);
    const size_t len = RDTI_ADDRESS_FIXED_BYTES + in->addr_count * (size_t)RDTI_ADDRESS_IP_BYTES;
    if (cap < len)
        return rdti_error_set(err, RDT_EINVAL, 0, "address: %zu bytes, room for %zu", len, cap);

    struct rdti_writer w = {.p = buf, .left = len, .is_ok = true};
    rdti_head_write(&w, RDTI_ADDRESS_MAGIC, (uint16_t)len);
    rdti_write_text(&w, in->library_version, sizeof(in->library_version));
    (void)rdti_write_bytes(&w, in->uuid, sizeof(in->uuid));
    (void)rdti_write_bytes(&w, in->host_hint, sizeof(in->host_hint));
    rdti_write_u32(&w, in->pid_hint);
    rdti_write_text(&w, in->unix_name, sizeof(in->unix_name));
    rdti_write_u16(&w, (uint16_t)in->addr_count);
    rdti_write_u16(&w, (uint16_t)in->verify);
    for (uint32_t i = 0; i < in->addr_count; i++) {
        const struct rdti_address_ip *addr = &in->addrs[i];
        rdti_write_u8(&w, addr->family);
        rdti_write_u8(&w, addr->is_loopback);
        rdti_write_u16(&w, addr->port);
        rdti_write_u32(&w, addr->scope_id);
        (void)rdti_write_bytes(&w, addr->addr, sizeof(addr->addr));
    }
    *len_out = len;
    return RDT_OK;
}

/* Magic, version and length, which are the same in every version. */
static rdt_status
address_check_head(const uint8_t *buf, size_t len_bytes, struct rdt_error *err)
{
    const size_t with_library = RDTI_OPENING_HEAD_BYTES + RDTI_VERSION_BYTES;

    if (len_bytes < RDTI_OPENING_HEAD_BYTES || rdti_get_u32(buf) != RDTI_ADDRESS_MAGIC)
        return rdti_error_set(err, RDT_EPROTO, 0,
                              "address: these %zu bytes are not one of rdmatensor", len_bytes);
    if (rdti_get_u16(buf + 4) != RDTI_WIRE_VERSION)
        return rdti_head_refuse_version("address", rdti_get_u16(buf + 4),
                                        len_bytes >= with_library ? buf + RDTI_OPENING_HEAD_BYTES
                                                                  : NULL,
                                        err);
    if (len_bytes != rdti_get_u16(buf + 6) || len_bytes < RDTI_ADDRESS_FIXED_BYTES)
        return rdti_error_set(err, RDT_EPROTO, 0, "address: says %u bytes, is %zu",
                              rdti_get_u16(buf + 6), len_bytes);
    return RDT_OK;
}

static void
address_read_ip(struct rdti_fields *f, struct rdti_address_ip *out)
{
    out->family = rdti_read_u8(&f->r);
    out->is_loopback = rdti_read_u8(&f->r);
    out->port = rdti_read_u16(&f->r);
    out->scope_id = rdti_read_u32(&f->r);
    rdti_fields_copy(f, out->addr, sizeof(out->addr));
}

rdt_status
rdti_address_decode(const uint8_t *buf, size_t len_bytes, struct rdti_address *out,
                    struct rdt_error *err)
{
    struct rdti_fields f;
    struct rdti_address address = {0};

    rdt_status status = address_check_head(buf, len_bytes, err);
    if (status != RDT_OK)
        return status;
    status = rdti_fields_begin(&f, "address", buf, len_bytes, len_bytes, err);
    if (status != RDT_OK)
        return status;
    (void)rdti_read_bytes(&f.r, RDTI_OPENING_HEAD_BYTES);
    rdti_fields_text(&f, address.library_version, sizeof(address.library_version),
                     "library version is not plain text");
    rdti_fields_copy(&f, address.uuid, sizeof(address.uuid));
    rdti_fields_copy(&f, address.host_hint, sizeof(address.host_hint));
    address.pid_hint = rdti_read_u32(&f.r);
    rdti_fields_text(&f, address.unix_name, sizeof(address.unix_name),
                     "unix name is not plain text");
    address.addr_count = rdti_read_u16(&f.r);
    address.verify = rdti_read_u16(&f.r);
    for (uint32_t i = 0; i < address.addr_count && i < RDTI_ADDRESS_IPS_MAX; i++)
        address_read_ip(&f, &address.addrs[i]);
    if (f.r.is_ok && f.r.left == 0) {
        const char *fault = address_fault(&address);
        rdti_fields_require(&f, fault == NULL, fault);
    }
    status = rdti_fields_end(&f, "address", err);
    if (status == RDT_OK)
        *out = address;
    return status;
}
