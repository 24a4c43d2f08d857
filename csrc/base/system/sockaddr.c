/* SPDX-License-Identifier: Apache-2.0
 * Socket addresses; the header has the rules. */
#include "base/system/sockaddr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>

void
rdti_sockaddr_text(const struct sockaddr *addr, char *buf, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;

        (void)inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host)); /* host is large enough */
        (void)snprintf(buf, cap, "%s:%u", host, (unsigned)ntohs(in->sin_port));
    } else if (addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)addr;

        (void)inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        (void)snprintf(buf, cap, "[%s]:%u", host, (unsigned)ntohs(in6->sin6_port));
    } else {
        (void)snprintf(buf, cap, "a socket of family %u", (unsigned)addr->sa_family);
    }
}

bool
rdti_sockaddr_is_loopback(const struct sockaddr *addr)
{
    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)addr;

        return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)addr;
    return addr->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
}
