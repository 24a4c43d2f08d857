/* SPDX-License-Identifier: Apache-2.0
 * See fake_tcp.h. */
#include "fake_tcp.h"

#include <arpa/inet.h>

#include "../harness.h"
#include "wire/handshake.h"
#include "wire/notify.h"

void
fake_tcp_listen(struct fake_tcp_listener *listener, int family)
{
    memset(listener, 0, sizeof(*listener));
    if (family == AF_INET) {
        struct sockaddr_in *in = (struct sockaddr_in *)(void *)&listener->addr;
        in->sin_family = AF_INET;
        in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener->addr_bytes = sizeof(*in);
    } else {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)(void *)&listener->addr;
        in6->sin6_family = AF_INET6;
        in6->sin6_addr = in6addr_loopback;
        listener->addr_bytes = sizeof(*in6);
    }
    listener->fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK_INT_GE(listener->fd, 0);
    struct sockaddr *addr = (struct sockaddr *)(void *)&listener->addr;
    CHECK_INT_EQ(bind(listener->fd, addr, listener->addr_bytes), 0);
    CHECK_INT_EQ(getsockname(listener->fd, addr, &listener->addr_bytes), 0);
    CHECK_INT_EQ(listen(listener->fd, 64), 0);
}

void
fake_tcp_unlisten(struct fake_tcp_listener *listener)
{
    CHECK_INT_EQ(close(listener->fd), 0);
    listener->fd = -1;
}

struct rdti_lane_args
fake_tcp_args(const struct fake_tcp_listener *listener)
{
    struct rdti_lane_args args = fake_lane_args(true);

    args.peer_sockaddr = &listener->addr;
    args.peer_sockaddr_bytes = (uint32_t)listener->addr_bytes;
    return args;
}

/* The JOIN and not a byte more: what follows is the lane's. */
static uint32_t
read_join(int fd, const struct rdti_lane_args *args)
{
    uint8_t bytes[RDTI_JOIN_BYTES];
    uint8_t mac[RDTI_SHA256_BYTES];
    struct rdti_join join;
    struct rdt_error err;

    CHECK_INT_EQ(recv(fd, bytes, sizeof(bytes), MSG_WAITALL), sizeof(bytes));
    CHECK_OK(rdti_join_decode(bytes, sizeof(bytes), &join, &err), &err);
    CHECK_MEM_EQ(join.session_id, args->session_id, sizeof(join.session_id));
    rdti_join_mac(args->session_key, bytes, mac);
    CHECK(rdti_equal_constant_time(mac, join.mac, sizeof(mac)));
    return join.index;
}

void
fake_tcp_accept(struct fake_tcp_listener *listener, struct fake_link *link,
                const struct rdti_lane_args *args)
{
    struct rdt_error err;
    int fd;

    while ((fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        const uint32_t index = read_join(fd, args);

        CHECK_INT_EQ(pthread_mutex_lock(&link->host->engine), 0);
        CHECK_OK(link->host->transport->add_stream(link->lane, fd, index, &err), &err);
        CHECK_INT_EQ(pthread_mutex_unlock(&link->host->engine), 0);
        listener->accepted++;
    }
    CHECK(errno == EAGAIN || errno == EINTR);
}

static struct rdti_lane_args
other_side(const struct rdti_lane_args *connector)
{
    struct rdti_lane_args args = *connector;

    args.is_connector = false;
    args.peer_sockaddr = NULL;
    args.peer_sockaddr_bytes = 0;
    return args;
}

void
fake_tcp_connect(struct fake_host *a, struct fake_link *ab, struct fake_host *b,
                 struct fake_link *ba, int family)
{
    struct fake_tcp_listener listener;
    int side[2];

    fake_tcp_listen(&listener, family);
    const struct rdti_lane_args connector = fake_tcp_args(&listener);
    const struct rdti_lane_args accepting = other_side(&connector);
    fake_side_channel(side);
    fake_link_open(a, ab, side[0], &connector);
    fake_link_open(b, ba, side[1], &accepting);
    const uint64_t deadline = fake_deadline_ns(10);
    while (ab->ready_count == 0 || ba->ready_count == 0) {
        (void)fake_pump(a);
        (void)fake_pump(b);
        fake_tcp_accept(&listener, ba, &accepting);
        fake_check_deadline(deadline, __FILE__, __LINE__, "both sides are ready");
    }
    CHECK_OK(ab->connect_status, &ab->connect_error);
    CHECK_OK(ba->connect_status, &ba->connect_error);
    fake_tcp_unlisten(&listener);
}

void
fake_tcp_join(struct fake_host *host, struct fake_link *link, int side_fd,
              struct fake_tcp_listener *listener, const struct rdti_lane_args *args)
{
    const struct rdti_lane_args mine = listener != NULL ? other_side(args) : *args;
    const uint64_t deadline = fake_deadline_ns(20);

    fake_link_open(host, link, side_fd, &mine);
    while (link->ready_count == 0) {
        (void)fake_pump(host);
        if (listener != NULL)
            fake_tcp_accept(listener, link, &mine);
        CHECK_MSG(link->error_count == 0, "%s", link->error.message);
        fake_check_deadline(deadline, __FILE__, __LINE__, "the lane is ready");
    }
    CHECK_OK(link->connect_status, &link->connect_error);
}

void
fake_tcp_pair_open(struct fake_tcp_pair *p, uint32_t streams, int family)
{
    fake_host_open(&p->a, &rdti_transport_tcp);
    fake_host_open(&p->b, &rdti_transport_tcp);
    p->a.host.tcp_streams = streams;
    p->b.host.tcp_streams = streams;
    fake_tcp_connect(&p->a, &p->ab, &p->b, &p->ba, family);
}

void
fake_tcp_pair_close(struct fake_tcp_pair *p)
{
    fake_disconnect(&p->ab, &p->ba);
    fake_host_close(&p->a);
    fake_host_close(&p->b);
}

void
fake_tcp_pattern(uint8_t *at, uint64_t len_bytes, uint32_t seed)
{
    for (uint64_t i = 0; i < len_bytes; i++)
        at[i] = (uint8_t)((i * 2654435761u + seed) >> 7);
}

void
fake_tcp_write_and_check(struct fake_tcp_pair *p, uint64_t len_bytes)
{
    struct fake_region *region = fake_region(&p->b, len_bytes + 64);
    uint8_t *src = malloc(len_bytes + 1);
    struct fake_op op;

    CHECK_NOT_NULL(src);
    fake_tcp_pattern(src, len_bytes, 7);
    fake_write(&op, src, len_bytes, &region->remote, 32, rdti_notify_user(5));
    fake_must_start(&p->ab, &op);
    const uint32_t before = p->ba.notify_count;
    FAKE_TCP_PUMP(p, p->ba.notify_count == before + 1);
    CHECK_HEX_EQ(p->ba.notifications[before], rdti_notify_user(5));
    CHECK_MEM_EQ(region->addr + 32, src, len_bytes);
    for (int i = 0; i < 32; i++) {
        CHECK_INT_EQ(region->addr[i], 0);
        CHECK_INT_EQ(region->addr[32 + len_bytes + (uint64_t)i], 0);
    }
    FAKE_TCP_PUMP(p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK(rdti_transport_tcp.is_idle(p->ab.lane));
    free(src);
}
