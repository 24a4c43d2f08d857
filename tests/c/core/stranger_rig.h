/* SPDX-License-Identifier: Apache-2.0
 * Connections of nobody's to a context that listens. */
#ifndef RDTI_TESTS_STRANGER_RIG_H
#define RDTI_TESTS_STRANGER_RIG_H

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "connect/netaddr.h"
#include "pair_rig.h"
#include "wire/address.h"

static inline struct rdti_address
address_of(rdt_context *ctx)
{
    struct rdt_error err = {0};
    uint8_t bytes[RDT_ADDRESS_MAX_BYTES];
    size_t len = 0;
    struct rdti_address address;

    check_ok(rdt_context_address(ctx, bytes, sizeof(bytes), &len, &err), &err, "address");
    check_ok(rdti_address_decode(bytes, len, &address, &err), &err, "address_decode");
    return address;
}

/* A connection of nobody's. */
static inline int
knock(const struct rdti_address *address, bool is_unix)
{
    struct sockaddr_storage addr = {0};
    socklen_t addr_bytes;

    if (is_unix) {
        struct sockaddr_un *un = (struct sockaddr_un *)(void *)&addr;
        const size_t name_bytes = strlen(address->unix_name);
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path + 1, address->unix_name, name_bytes);
        addr_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes);
    } else {
        addr_bytes = rdti_sockaddr_of_ip(&address->addrs[0], &addr);
    }
    const int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_MSG(connect(fd, (struct sockaddr *)&addr, addr_bytes) == 0, "connect: %s",
              strerror(errno));
    return fd;
}

static inline void
say(int fd, const void *bytes, size_t len)
{
    /* The other side may have had enough in the middle of it. */
    const ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
    CHECK(sent == (ssize_t)len || errno == EPIPE || errno == ECONNRESET);
}

static inline bool
is_closed(int fd, int timeout_ms)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    char byte;

    return poll(&pollfd, 1, timeout_ms) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

#endif
