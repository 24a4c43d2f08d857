/* SPDX-License-Identifier: Apache-2.0
 * The address: the addresses at which a process listens. Its owner publishes it in a key-value
 * store, so it is untrusted input. */
#ifndef RDTI_WIRE_ADDRESS_H
#define RDTI_WIRE_ADDRESS_H

#include <stddef.h>
#include <stdint.h>

#include "rdmatensor.h"
#include "wire/handshake.h"

#define RDTI_ADDRESS_IPS_MAX 16
#define RDTI_HOST_HINT_BYTES 16
#define RDTI_IPV4_BYTES 4
#define RDTI_IPV6_BYTES 16
#define RDTI_UNIX_NAME_BYTES \
    64 /* abstract name without the leading NUL, NUL-terminated; empty: none */

#define RDTI_ADDRESS_FIXED_BYTES \
    (8 + RDTI_VERSION_BYTES + RDT_UUID_BYTES + RDTI_HOST_HINT_BYTES + 4 + RDTI_UNIX_NAME_BYTES + 4)
#define RDTI_ADDRESS_IP_BYTES (8 + RDTI_IPV6_BYTES)
#define RDTI_ADDRESS_BYTES_MAX \
    (RDTI_ADDRESS_FIXED_BYTES + RDTI_ADDRESS_IPS_MAX * RDTI_ADDRESS_IP_BYTES)

struct rdti_address_ip {
    uint8_t family; /* 4 or 6 */
    uint8_t is_loopback;
    uint16_t port;
    uint32_t scope_id; /* always 0 on the wire: link-local addresses are not published */
    uint8_t addr[RDTI_IPV6_BYTES]; /* network order; IPv4 in the first 4 bytes */
};

struct rdti_address {
    char library_version[RDTI_VERSION_BYTES];
    uint8_t uuid[RDT_UUID_BYTES];
    /* hash of the boot id: equal hashes only suggest the same host */
    uint8_t host_hint[RDTI_HOST_HINT_BYTES];
    uint32_t pid_hint;
    char unix_name[RDTI_UNIX_NAME_BYTES];
    uint32_t addr_count; /* 16 bits, as the next */
    uint32_t verify;     /* RDT_VERIFY_*: a rank with another setting fails at once */
    struct rdti_address_ip addrs[RDTI_ADDRESS_IPS_MAX];
};

/* Writes at most RDTI_ADDRESS_BYTES_MAX; RDT_EINVAL if cap is too small or a field is out of range.
 * The address begins with the head of handshake.h. */
rdt_status rdti_address_encode(const struct rdti_address *in, uint8_t *buf, size_t cap,
                               size_t *len_out, struct rdt_error *err);
/* RDT_EPROTO, RDT_EVERSION (naming both wire and library versions). *out is untouched on
 * failure. */
rdt_status rdti_address_decode(const uint8_t *buf, size_t len_bytes, struct rdti_address *out,
                               struct rdt_error *err);

#endif
