/* SPDX-License-Identifier: Apache-2.0
 * The addresses of this host. */
#include "connect/netaddr.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/system/sockaddr.h"

void
rdti_address_text(const struct sockaddr *addr, char *buf, size_t cap)
{
    rdti_sockaddr_text(addr, buf, cap);
    if (strrchr(buf, ':') != NULL)
        *strrchr(buf, ':') = '\0';
}

socklen_t
rdti_sockaddr_of_ip(const struct rdti_address_ip *in, struct sockaddr_storage *out)
{
    memset(out, 0, sizeof(*out));
    if (in->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(in->port);
        memcpy(&v4->sin_addr, in->addr, RDTI_IPV4_BYTES);
        return sizeof(*v4);
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(in->port);
    memcpy(&v6->sin6_addr, in->addr, RDTI_IPV6_BYTES);
    return sizeof(*v6);
}

/* Lower is better: IPv4 global, IPv6 global, IPv4 loopback, IPv6 loopback. */
static int
netaddr_preference(const struct rdti_address_ip *addr)
{
    return (addr->is_loopback ? 2 : 0) + (addr->family == 4 ? 0 : 1);
}

static bool
netaddr_to_ip(const struct sockaddr *addr, struct rdti_address_ip *out)
{
    *out = (struct rdti_address_ip){.is_loopback = rdti_sockaddr_is_loopback(addr)};
    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;
        out->family = 4;
        memcpy(out->addr, &in->sin_addr, RDTI_IPV4_BYTES);
        return ntohl(in->sin_addr.s_addr) >> 16 != 0xa9fe; /* 169.254/16: link-local */
    }
    if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)addr;
        out->family = 6;
        memcpy(out->addr, &in6->sin6_addr, RDTI_IPV6_BYTES);
        return IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) == 0;
    }
    return false;
}

static bool
netaddr_parse_numeric(const char *text, struct rdti_address_ip *out)
{
    *out = (struct rdti_address_ip){0};
    if (inet_pton(AF_INET, text, out->addr) == 1)
        out->family = 4;
    else if (inet_pton(AF_INET6, text, out->addr) == 1)
        out->family = 6;
    return out->family != 0;
}

static rdt_status
netaddr_read_wanted(const char *text, bool is_loopback_only, struct rdti_address_ip *out,
                    struct rdt_error *err)
{
    struct sockaddr_storage addr;

    if (!netaddr_parse_numeric(text, out))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "address '%s' is neither IPv4 nor IPv6 in numbers", text);
    (void)rdti_sockaddr_of_ip(out, &addr);
    if (is_loopback_only && !rdti_sockaddr_is_loopback((const struct sockaddr *)&addr))
        return rdti_error_set(err, RDT_EINVAL, 0,
                              "RDMATENSOR_ADDR=%s and RDMATENSOR_LOOPBACK=1 conflict: unset one",
                              text);
    return RDT_OK;
}

/* Inserts an address in order of preference. */
static void
netaddr_insert(struct rdti_address_ip *list, uint32_t cap, uint32_t *count,
               const struct rdti_address_ip *addr)
{
    uint32_t at = *count;

    while (at > 0 && netaddr_preference(&list[at - 1]) > netaddr_preference(addr))
        at--;
    if (at >= cap)
        return;
    const uint32_t tail = *count < cap ? *count - at : cap - 1 - at;
    memmove(&list[at + 1], &list[at], tail * sizeof(*list));
    list[at] = *addr;
    if (*count < cap)
        (*count)++;
}

static void
netaddr_append_name(char *seen, size_t cap, const char *name, const struct sockaddr *addr)
{
    char text[RDTI_SOCKADDR_TEXT_BYTES];
    const size_t used = strlen(seen);

    rdti_address_text(addr, text, sizeof(text));
    (void)snprintf(seen + used, cap - used, "%s%s %s", used > 0 ? ", " : "", name, text);
}

/* Whether the caller's choice of interface, address and scope permits it. */
static bool
netaddr_is_wanted(const struct ifaddrs *entry, const struct rdti_address_ip *candidate,
                  const char *ifname, const struct rdti_address_ip *wanted, bool is_loopback_only)
{
    if (ifname != NULL && strcmp(ifname, entry->ifa_name) != 0)
        return false;
    if (wanted->family != 0 && (candidate->family != wanted->family ||
                                memcmp(candidate->addr, wanted->addr, sizeof(wanted->addr)) != 0))
        return false;
    return !is_loopback_only || candidate->is_loopback;
}

static rdt_status
netaddr_nothing_to_listen_on(const char *ifname, const char *addr, bool is_loopback_only,
                             const char *seen, struct rdt_error *err)
{
    const int wishes = (ifname != NULL) + (addr != NULL) + is_loopback_only;

    return rdti_error_set(err, RDT_EINVAL, 0,
                          "no address to listen on%s%s%s%s%s%s%s; this host has: %s",
                          wishes > 0 ? " with" : "", ifname != NULL ? " RDMATENSOR_IFNAME=" : "",
                          ifname != NULL ? ifname : "", addr != NULL ? " RDMATENSOR_ADDR=" : "",
                          addr != NULL ? addr : "",
                          is_loopback_only ? " RDMATENSOR_LOOPBACK=1" : "",
                          wishes > 1 ? ", which may conflict: unset one" : "", seen);
}

rdt_status
rdti_local_addrs(const char *ifname, const char *addr, bool is_loopback_only,
                 struct rdti_address_ip *out, uint32_t cap, uint32_t *count_out,
                 struct rdt_error *err)
{
    struct rdti_address_ip wanted = {0};
    struct ifaddrs *all = NULL;
    char seen[384] = "";
    uint32_t count = 0;

    const rdt_status status =
        addr == NULL ? RDT_OK : netaddr_read_wanted(addr, is_loopback_only, &wanted, err);
    if (status != RDT_OK)
        return status;
    if (getifaddrs(&all) != 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "getifaddrs");
    for (const struct ifaddrs *entry = all; entry != NULL; entry = entry->ifa_next) {
        struct rdti_address_ip candidate;
        if (entry->ifa_addr == NULL || (entry->ifa_flags & IFF_UP) == 0)
            continue;
        const bool is_publishable = netaddr_to_ip(entry->ifa_addr, &candidate);
        if (candidate.family == 0)
            continue;
        netaddr_append_name(seen, sizeof(seen), entry->ifa_name, entry->ifa_addr);
        if (is_publishable &&
            netaddr_is_wanted(entry, &candidate, ifname, &wanted, is_loopback_only))
            netaddr_insert(out, cap, &count, &candidate);
    }
    freeifaddrs(all);
    if (count == 0)
        return netaddr_nothing_to_listen_on(ifname, addr, is_loopback_only, seen, err);
    *count_out = count;
    return RDT_OK;
}
