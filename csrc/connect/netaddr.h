/* SPDX-License-Identifier: Apache-2.0
 * The addresses of this host, and their form on the wire. */
#ifndef RDTI_CONNECT_NETADDR_H
#define RDTI_CONNECT_NETADDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "rdmatensor.h"
#include "wire/address.h"

/* As rdti_sockaddr_text(), without the port. */
void rdti_address_text(const struct sockaddr *addr, char *buf, size_t cap);
/* Converts between the wire format and the system's format; returns the length. */
socklen_t rdti_sockaddr_of_ip(const struct rdti_address_ip *in, struct sockaddr_storage *out);

/*
 * The addresses of this host that may be published, best first: only of `ifname`, if not NULL; only
 * `addr`, if not NULL; only loopback, if requested. Link-local ones are left out. IPv4 comes before
 * IPv6, global before loopback.
 *   RDT_EINVAL  no such interface or address here: the message lists the existing ones
 */
rdt_status rdti_local_addrs(const char *ifname, const char *addr, bool is_loopback_only,
                            struct rdti_address_ip *out, uint32_t cap, uint32_t *count_out,
                            struct rdt_error *err);

#endif
