/* SPDX-License-Identifier: Apache-2.0
 * Listening sockets. */
#include "connect/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/system/fork.h"
#include "base/log.h"
#include "base/system/sockaddr.h"
#include "base/text.h"
#include "connect/netaddr.h"

#define SOCKETS_MAX (1 + RDTI_ADDRESS_IPS_MAX)
/* All peers of a large job may connect at the same time. */
#define BACKLOG 512
#define TEST_HOST_MAX_BYTES 63 /* the maximum of a DNS label */
#define EXPIRE_PERIOD_NS UINT64_C(100000000)

struct listening {
    struct rdti_listener *listener;
    struct rdti_watch *watch;
    int fd;
    bool is_unix;
    bool is_paused; /* no free descriptors: not watched until the next listener_expire() */
};

struct rdti_listener {
    rdt_context *ctx;
    const struct rdti_handshake_events *events;
    struct rdti_list handshakes;
    struct listening sockets[SOCKETS_MAX];
    uint32_t socket_count;
    struct rdti_address address;
    bool is_test_host;
};

static bool
listener_is_same_user(rdt_context *ctx, int fd)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
        return false;
    if (cred.uid == geteuid())
        return true;
    rdti_refusal_log(
        &ctx->refusals, RDTI_REFUSAL_USER,
        "refused process %d of user %u at the Unix socket: this process belongs to user %u",
        (int)cred.pid, (unsigned)cred.uid, (unsigned)geteuid());
    return false;
}

/* A process without free descriptors would be woken repeatedly for the same connection. */
static void
listener_pause_accept(struct listening *socket, int sys_errno)
{
    rdti_log(RDT_LOG_WARN, "accept: %s: a connection waits until something is closed",
             strerror(sys_errno));
    socket->is_paused = true;
    rdti_engine_rewatch(socket->listener->ctx->engine, socket->watch, 0);
}

static void
listener_on_accept(void *arg, uint32_t epoll_events)
{
    struct listening *socket = arg;
    struct rdti_listener *listener = socket->listener;

    (void)epoll_events;
    for (int i = 0; i < 64; i++) { /* further connections wait for the next pass */
        const int fd = accept4(socket->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED)
                listener_pause_accept(socket, errno);
            return;
        }
        if (socket->is_unix && !listener_is_same_user(listener->ctx, fd)) {
            (void)close(fd);
            continue;
        }
        rdti_handshake_accept(listener->ctx, fd, socket->is_unix, listener->events,
                              &listener->handshakes);
    }
}

static rdt_status
listener_add_socket(struct rdti_listener *listener, int fd, bool is_unix, struct rdt_error *err)
{
    struct listening *socket = &listener->sockets[listener->socket_count];

    *socket = (struct listening){.listener = listener, .fd = fd, .is_unix = is_unix};
    const rdt_status status = rdti_engine_watch(listener->ctx->engine, fd, EPOLLIN,
                                                listener_on_accept, socket, &socket->watch, err);
    if (status != RDT_OK)
        return status;
    (void)rdti_fork_close_add(fd);
    listener->socket_count++;
    return RDT_OK;
}

static rdt_status
listener_listen_unix(struct rdti_listener *listener, struct rdt_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const uint8_t *u = listener->ctx->uuid;

    (void)snprintf(listener->address.unix_name, sizeof(listener->address.unix_name),
                   "rdmatensor-%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x%02x",
                   u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
                   u[13], u[14], u[15]);
    const size_t name_bytes = strlen(listener->address.unix_name);
    memcpy(addr.sun_path + 1, listener->address.unix_name, name_bytes);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "socket(AF_UNIX)");
    if (bind(fd, (const struct sockaddr *)&addr,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name_bytes)) != 0 ||
        listen(fd, BACKLOG) != 0) {
        const int sys_errno = errno;
        (void)close(fd);
        return rdti_error_set(err, RDT_EDEVICE, sys_errno, "listening on the Unix socket @%s",
                              listener->address.unix_name);
    }
    const rdt_status status = listener_add_socket(listener, fd, true, err);
    if (status != RDT_OK)
        (void)close(fd);
    return status;
}

static in_port_t *
listener_port_of(struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET ? &((struct sockaddr_in *)(void *)addr)->sin_port
                                      : &((struct sockaddr_in6 *)(void *)addr)->sin6_port;
}

/* A listening socket, or -1 with errno. */
static int
listener_listen_at(const struct sockaddr_storage *addr, socklen_t addr_bytes)
{
    const int one = 1;
    const int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (addr->ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    /* An earlier job may have left connections in TIME_WAIT on the ports of a narrow range. A
     * second listener on a port is still refused, by listen(). */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (const struct sockaddr *)addr, addr_bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int sys_errno = errno;
    (void)close(fd);
    errno = sys_errno;
    return -1;
}

/* Listens at the first free port of the range; 0 to 0 means any port. */
static int
listener_listen_in_range(struct sockaddr_storage *addr, socklen_t addr_bytes, uint32_t from,
                         uint32_t to)
{
    for (uint32_t port = from;; port++) {
        *listener_port_of(addr) = htons((uint16_t)port);
        const int fd = listener_listen_at(addr, addr_bytes);
        if (fd >= 0 || errno != EADDRINUSE || port >= to)
            return fd;
    }
}

static rdt_status
listener_listen_tcp(struct rdti_listener *listener, struct rdti_address_ip *address_ip,
                    struct rdt_error *err)
{
    const struct rdt_context_opts *opts = &listener->ctx->opts;
    struct sockaddr_storage addr;
    socklen_t addr_bytes = rdti_sockaddr_of_ip(address_ip, &addr);
    char text[96];

    rdti_address_text((const struct sockaddr *)&addr, text, sizeof(text));
    const int fd = listener_listen_in_range(&addr, addr_bytes, opts->port_from, opts->port_to);
    if (fd < 0 && errno == EADDRINUSE && opts->port_from != 0)
        return rdti_error_set(
            err, RDT_EDEVICE, errno,
            "no free port at %s in RDMATENSOR_PORTS=%u-%u: each process on a host "
            "needs one, so widen the range",
            text, opts->port_from, opts->port_to);
    if (fd < 0)
        return rdti_error_set(err, RDT_EDEVICE, errno, "listening on %s", text);
    if (getsockname(fd, (struct sockaddr *)&addr, &addr_bytes) != 0) {
        const int sys_errno = errno;
        (void)close(fd);
        return rdti_error_set(err, RDT_EDEVICE, sys_errno, "getsockname at %s", text);
    }
    address_ip->port = ntohs(*listener_port_of(&addr));
    const rdt_status status = listener_add_socket(listener, fd, false, err);
    if (status != RDT_OK)
        (void)close(fd);
    return status;
}

/* One socket per address: binds exactly the published addresses, and no other address of the
 * host. */
static rdt_status
listener_listen_all_tcp(struct rdti_listener *listener, struct rdt_error *err)
{
    const struct rdt_context_opts *opts = &listener->ctx->opts;
    struct rdti_address_ip addrs[RDTI_ADDRESS_IPS_MAX];
    struct rdt_error last = {.peer_rank = RDT_RANK_UNKNOWN};
    uint32_t count = 0;
    rdt_status status =
        rdti_local_addrs(listener->ctx->ifname, listener->ctx->addr, opts->loopback_only != 0,
                         addrs, RDTI_ADDRESS_IPS_MAX, &count, err);

    if (status != RDT_OK)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        status = listener_listen_tcp(listener, &addrs[i], &last);
        if (status == RDT_OK)
            listener->address.addrs[listener->address.addr_count++] = addrs[i];
    }
    if (listener->address.addr_count == 0)
        return rdti_error_copy(err, &last);
    return RDT_OK;
}

/* The name that replaces the host in tests; NULL: RDMATENSOR_TEST_HOST is not set. */
static rdt_status
listener_read_test_host(const char **out, struct rdt_error *err)
{
    const char *name = getenv("RDMATENSOR_TEST_HOST");

    *out = NULL;
    if (name == NULL || name[0] == '\0')
        return RDT_OK;
    if (strlen(name) > TEST_HOST_MAX_BYTES ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") !=
            strlen(name))
        return rdti_error_set(
            err, RDT_EINVAL, 0,
            "RDMATENSOR_TEST_HOST is '%.80s'; want 1 to %d letters, digits, dots, "
            "dashes and underscores",
            name, (int)TEST_HOST_MAX_BYTES);
    *out = name;
    return RDT_OK;
}

/* Equal hints of two processes only suggest the same host: a container may see the host's boot id
 * from another namespace. */
static void
listener_make_host_hint(const char *test_host, uint8_t out[RDTI_HOST_HINT_BYTES])
{
    char boot_id[64] = {0};
    char seen[64 + TEST_HOST_MAX_BYTES + 1] = {0};
    uint8_t digest[RDTI_SHA256_BYTES];
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        (void)!read(fd, boot_id,
                    sizeof(boot_id) -
                        1); /* on failure all such hosts have the same hint, which is only a hint */
        (void)close(fd);
    }
    memcpy(seen, boot_id, sizeof(boot_id));
    if (test_host != NULL)
        rdti_text_copy(seen + sizeof(boot_id), TEST_HOST_MAX_BYTES + 1, test_host);
    rdti_sha256(seen, test_host == NULL ? sizeof(boot_id) : sizeof(seen), digest);
    memcpy(out, digest, RDTI_HOST_HINT_BYTES);
}

static void
listener_expire(void *arg)
{
    struct rdti_listener *listener = arg;

    rdti_handshakes_expire(&listener->handshakes, rdti_now_ns());
    rdti_refusals_tell(&listener->ctx->refusals, rdti_now_ns());
    for (uint32_t i = 0; i < listener->socket_count; i++) {
        struct listening *socket = &listener->sockets[i];
        if (socket->is_paused)
            rdti_engine_rewatch(listener->ctx->engine, socket->watch, EPOLLIN);
        socket->is_paused = false;
    }
}

rdt_status
rdti_listener_open(rdt_context *ctx, const struct rdti_handshake_events *events,
                   struct rdti_listener **out, struct rdt_error *err)
{
    struct rdti_listener *listener = calloc(1, sizeof(*listener));
    const char *test_host = NULL;

    if (listener == NULL)
        return rdti_error_set(err, RDT_ENOMEM, 0, "a listener of %zu bytes", sizeof(*listener));
    listener->ctx = ctx;
    listener->events = events;
    rdti_list_init(&listener->handshakes);
    rdti_text_copy(listener->address.library_version, sizeof(listener->address.library_version),
                   rdt_version());
    memcpy(listener->address.uuid, ctx->uuid, RDT_UUID_BYTES);
    listener->address.pid_hint = (uint32_t)getpid();
    listener->address.verify = ctx->opts.verify;
    rdt_status status = listener_read_test_host(&test_host, err);
    if (status == RDT_OK)
        listener_make_host_hint(test_host, listener->address.host_hint);
    listener->is_test_host = test_host != NULL;
    if (status == RDT_OK && ctx->found[RDT_TRANSPORT_SHM].is_viable)
        status = listener_listen_unix(listener, err);
    if (status == RDT_OK)
        status = listener_listen_all_tcp(listener, err);
    if (status == RDT_OK)
        status = rdti_engine_every(ctx->engine, EXPIRE_PERIOD_NS, listener_expire, listener, err);
    if (status != RDT_OK) {
        rdti_listener_close(listener);
        return status;
    }
    *out = listener;
    return RDT_OK;
}

void
rdti_listener_close(struct rdti_listener *listener)
{
    if (listener == NULL)
        return;
    rdti_handshakes_cancel_all(&listener->handshakes);
    rdti_refusals_tell(&listener->ctx->refusals, UINT64_MAX);
    for (uint32_t i = 0; i < listener->socket_count; i++) {
        rdti_engine_unwatch(listener->ctx->engine, listener->sockets[i].watch);
        rdti_fork_close_remove(listener->sockets[i].fd);
        (void)close(listener->sockets[i].fd);
    }
    free(listener);
}

struct rdti_list *
rdti_listener_handshakes(struct rdti_listener *listener)
{
    return &listener->handshakes;
}

const struct rdti_address *
rdti_listener_address(const struct rdti_listener *listener)
{
    return &listener->address;
}

bool
rdti_listener_is_test_host(const struct rdti_listener *listener)
{
    return listener->is_test_host;
}
