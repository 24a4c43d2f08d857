/* SPDX-License-Identifier: Apache-2.0
 * Two hosts of one process over tcp: set-up, ends. */
#include "../harness.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "fake_tcp.h"
#include "transport/tcp/tcp.h"
#include "wire/notify.h"

TEST(closing_one_side_fails_the_other_once_with_its_address)
{
    struct fake_tcp_pair p = {0};
    uint8_t *src = calloc(1, 64 << 20);
    struct fake_op ops[3];
    uint64_t got = 0;

    CHECK_NOT_NULL(src);
    fake_tcp_pair_open(&p, 2, AF_INET);
    struct fake_region *region = fake_region(&p.b, 64 << 20);
    fake_write(&ops[0], src, 64 << 20, &region->remote, 0, rdti_notify_user(1));
    fake_write(&ops[1], src, 8, &region->remote, 0, rdti_notify_user(2));
    fake_read(&ops[2], &got, 8, &region->remote, 0);
    for (int i = 0; i < 3; i++)
        fake_must_start(&p.ab, &ops[i]);
    fake_link_close(&p.ba, RDT_ECLOSED);
    FAKE_PUMP_UNTIL(&p.a, NULL, p.ab.error_count == 1, 10);
    CHECK_INT_EQ(p.ab.error.status, RDT_EPEER);
    CHECK_STR_CONTAINS(p.ab.error.message, "127.0.0.1:");
    for (int i = 0; i < 3; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        CHECK_INT_EQ(ops[i].status, RDT_EPEER);
    }
    struct fake_op late;
    struct rdt_error err;
    fake_write(&late, src, 8, &region->remote, 0, RDTI_NOTIFY_NONE);
    CHECK_STATUS(fake_start(&p.ab, &late, &err), RDT_EPEER);
    CHECK_STR_EQ(err.message, p.ab.error.message);
    for (int i = 0; i < 100; i++)
        (void)fake_pump(&p.a);
    CHECK(rdti_transport_tcp.is_idle(p.ab.lane));
    fake_link_close(&p.ab, RDT_ECLOSED);
    fake_link_free(&p.ab);
    fake_link_free(&p.ba);
    fake_host_close(&p.a);
    fake_host_close(&p.b);
    free(src);
}

TEST(closing_completes_what_is_left_with_its_reason)
{
    struct fake_tcp_pair p = {0};
    uint8_t *src = calloc(1, 32 << 20);
    struct fake_op op;

    CHECK_NOT_NULL(src);
    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *region = fake_region(&p.b, 32 << 20);
    fake_write(&op, src, 32 << 20, &region->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &op);
    fake_link_close(&p.ab, RDT_ECANCELED);
    CHECK(fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_ECANCELED);
    fake_link_close(&p.ba, RDT_ECLOSED);
    fake_link_free(&p.ab);
    fake_link_free(&p.ba);
    fake_host_close(&p.a);
    fake_host_close(&p.b);
    free(src);
}

TEST(nothing_leaks_over_many_lanes)
{
    struct fake_tcp_pair p = {0};

    fake_tcp_pair_open(&p, 4, AF_INET);
    fake_disconnect(&p.ab, &p.ba);
    const uint32_t fds = fake_count_fds();
    for (int i = 0; i < 20; i++) {
        fake_tcp_connect(&p.a, &p.ab, &p.b, &p.ba, i % 2 == 0 ? AF_INET : AF_INET6);
        CHECK(rdti_transport_tcp.needs_epoll(p.a.state));
        fake_disconnect(&p.ab, &p.ba);
    }
    CHECK(!rdti_transport_tcp.needs_epoll(p.a.state));
    CHECK_INT_EQ(fake_count_fds(), fds);
    fake_host_close(&p.a);
    fake_host_close(&p.b);
}

/* Two hosts whose lanes are offered, and not ready before `listener` is asked. */
struct unready {
    struct fake_host a;
    struct fake_host b;
    struct fake_link ab;
    struct fake_link ba;
    struct fake_tcp_listener listener;
    struct rdti_lane_args listener_args;
};

static void
open_unready(struct unready *u)
{
    int side[2];

    *u = (struct unready){0};
    fake_host_open(&u->a, &rdti_transport_tcp);
    fake_host_open(&u->b, &rdti_transport_tcp);
    fake_tcp_listen(&u->listener, AF_INET);
    const struct rdti_lane_args args = fake_tcp_args(&u->listener);
    u->listener_args = args;
    u->listener_args.is_connector = false;
    fake_side_channel(side);
    fake_link_open(&u->a, &u->ab, side[0], &args);
    fake_link_open(&u->b, &u->ba, side[1], &u->listener_args);
    FAKE_PUMP_UNTIL(&u->a, &u->b, u->ab.is_offered && u->ba.is_offered, 10);
    CHECK_INT_EQ(u->ab.ready_count + u->ba.ready_count, 0);
}

static void
pump_unready(struct unready *u)
{
    (void)fake_pump(&u->a);
    (void)fake_pump(&u->b);
    fake_tcp_accept(&u->listener, &u->ba, &u->listener_args);
}

static void
close_unready(struct unready *u)
{
    fake_disconnect(&u->ab, &u->ba);
    fake_tcp_unlisten(&u->listener);
    fake_host_close(&u->a);
    fake_host_close(&u->b);
}

TEST(ops_before_ready_are_queued)
{
    struct unready u;
    uint8_t *src = malloc(3 << 20);
    uint64_t got = 0;
    struct fake_op ops[4];

    CHECK_NOT_NULL(src);
    fake_tcp_pattern(src, 3 << 20, 5);
    open_unready(&u);
    struct fake_region *at_a = fake_region(&u.a, 3 << 20);
    struct fake_region *at_b = fake_region(&u.b, 3 << 20);
    fake_write(&ops[0], src, 3 << 20, &at_b->remote, 0, rdti_notify_user(1));
    fake_write(&ops[1], src, 3 << 20, &at_a->remote, 0, rdti_notify_user(2));
    fake_read(&ops[2], &got, 8, &at_b->remote, 8);
    fake_write(&ops[3], src, 8, &at_a->remote, 0, rdti_notify_user(3));
    fake_must_start(&u.ab, &ops[0]);
    fake_must_start(&u.ba, &ops[1]);
    fake_must_start(&u.ab, &ops[2]);
    fake_must_start(&u.ba, &ops[3]);
    const uint64_t deadline = fake_deadline_ns(10);
    while (u.ab.notify_count < 2 || u.ba.notify_count < 1 || !fake_op_is_done(&ops[2])) {
        pump_unready(&u);
        fake_check_deadline(deadline, __FILE__, __LINE__, "queued ops arrive");
    }
    CHECK_MEM_EQ(at_a->addr, src, 3 << 20);
    CHECK_MEM_EQ(at_b->addr, src, 3 << 20);
    close_unready(&u);
    free(src);
}

/* As many writes as a batch has room for heads, and more: its last head must end where it does. */
TEST(a_batch_takes_as_many_heads_as_it_has_room_for)
{
    enum { WRITES = 3 * RDTI_TCP_BATCH_HEAD_BYTES / RDTI_STREAM_HEAD_BYTES, BYTES = 24 };
    static uint8_t src[WRITES * BYTES];
    static struct fake_op ops[WRITES];
    struct unready u;

    fake_tcp_pattern(src, sizeof(src), 6);
    open_unready(&u);
    struct fake_region *region = fake_region(&u.b, sizeof(src));
    for (uint64_t i = 0; i < WRITES; i++) {
        fake_write(&ops[i], src + i * BYTES, BYTES, &region->remote, i * BYTES, RDTI_NOTIFY_NONE);
        fake_must_start(&u.ab, &ops[i]);
    }
    const uint64_t deadline = fake_deadline_ns(10);
    while (!fake_op_is_done(&ops[WRITES - 1])) {
        pump_unready(&u);
        fake_check_deadline(deadline, __FILE__, __LINE__, "a full batch arrives");
    }
    CHECK_MEM_EQ(region->addr, src, sizeof(src));
    close_unready(&u);
}

TEST(a_lane_that_does_not_get_ready_in_time_fails_by_name)
{
    struct fake_host a;
    struct fake_link ab = {0};
    struct fake_tcp_listener listener;
    struct rdti_offer offer;
    struct rdti_offer peer = {.len_bytes = RDTI_STREAM_OFFER_BYTES};
    struct rdt_error err;

    fake_host_open(&a, &rdti_transport_tcp);
    fake_tcp_listen(&listener, AF_INET);
    struct rdti_lane_args args = fake_tcp_args(&listener);
    args.deadline_ns = rdti_deadline_after(UINT64_C(50000000));
    fake_link_offer(&a, &ab, -1, &args, &offer);
    rdti_stream_offer_encode(2, peer.bytes);
    CHECK_OK(rdti_transport_tcp.connect(ab.lane, &peer, &err), &err);
    FAKE_PUMP_UNTIL(&a, NULL, ab.error_count == 1,
                    10); /* accepted by nobody: READY does not come */
    CHECK_INT_EQ(ab.error.status, RDT_ETIMEDOUT);
    CHECK_STR_CONTAINS(ab.error.message, "2 of 2 streams");
    fake_link_close(&ab, RDT_ECLOSED);
    fake_link_free(&ab);
    fake_tcp_unlisten(&listener);
    fake_host_close(&a);
}

TEST(connecting_to_a_closed_port_fails_with_the_address)
{
    struct fake_host a;
    struct fake_link ab = {0};
    struct fake_tcp_listener listener;
    struct rdti_offer offer;
    struct rdti_offer peer = {.len_bytes = RDTI_STREAM_OFFER_BYTES};
    struct rdt_error err;
    char port[16];

    fake_host_open(&a, &rdti_transport_tcp);
    fake_tcp_listen(&listener, AF_INET);
    const struct rdti_lane_args args = fake_tcp_args(&listener);
    fake_tcp_unlisten(&listener);
    fake_link_offer(&a, &ab, -1, &args, &offer);
    rdti_stream_offer_encode(1, peer.bytes);
    const rdt_status status = rdti_transport_tcp.connect(ab.lane, &peer, &err);
    if (status == RDT_OK) {
        FAKE_PUMP_UNTIL(&a, NULL, ab.error_count == 1, 10);
        err = ab.error;
        CHECK_INT_EQ(err.status, RDT_EPEER);
    }
    CHECK_INT_EQ(err.sys_errno, ECONNREFUSED);
    (void)snprintf(port, sizeof(port), ":%u",
                   ntohs(((struct sockaddr_in *)(void *)&listener.addr)->sin_port));
    CHECK_STR_CONTAINS(err.message, port);
    fake_link_close(&ab, RDT_ECLOSED);
    fake_link_free(&ab);
    fake_host_close(&a);
}

TEST(malformed_offers_are_refused)
{
    const struct {
        uint8_t bytes[5];
        uint32_t len_bytes;
        rdt_status want;
    } cases[] = {
        {{0}, 0, RDT_EPROTO},
        {{1}, 1, RDT_EPROTO},
        {{1, 0, 1}, 3, RDT_EPROTO},
        {{1, 0, 0, 0}, 4, RDT_EPROTO},
        {{1, 0, 17, 0}, 4, RDT_EPROTO},
        {{2, 0, 1, 0}, 4, RDT_EVERSION},
        {{1, 0, 1, 0, 0}, 5, RDT_EPROTO},
    };
    struct fake_host a;

    fake_host_open(&a, &rdti_transport_tcp);
    const uint32_t fds = fake_count_fds();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct rdti_lane_args args = fake_lane_args(false);
        struct rdti_offer peer = {.len_bytes = cases[i].len_bytes, .fd_count = 1};
        struct fake_link link = {0};
        struct rdti_offer offer;
        struct rdt_error err;

        fake_link_offer(&a, &link, -1, &args, &offer);
        memcpy(peer.bytes, cases[i].bytes, 5);
        peer.fd_count = 0;
        CHECK_STATUS(rdti_transport_tcp.connect(link.lane, &peer, &err), cases[i].want);
        CHECK_INT_EQ(err.status, cases[i].want);
        fake_link_close(&link, RDT_ECLOSED);
        fake_link_free(&link);
    }
    struct rdti_offer with_fd = {.len_bytes = 4, .fd_count = 1, .fds = {dup(0)}};
    const struct rdti_lane_args args = fake_lane_args(false);
    struct fake_link link = {0};
    struct rdti_offer offer;
    rdti_stream_offer_encode(1, with_fd.bytes);
    fake_link_offer(&a, &link, -1, &args, &offer);
    CHECK_STATUS(rdti_transport_tcp.connect(link.lane, &with_fd, NULL), RDT_EPROTO);
    fake_link_close(&link, RDT_ECLOSED);
    fake_link_free(&link);
    CHECK_INT_EQ(fake_count_fds(), fds);
    fake_host_close(&a);
}

TEST(a_forked_child_has_no_socket_of_ours)
{
    struct fake_tcp_pair p = {0};
    int status;

    fake_tcp_pair_open(&p, 2, AF_INET);
    struct rdti_tcp_lane *lane = (struct rdti_tcp_lane *)p.ab.lane;
    fflush(NULL);
    const pid_t child = fork();
    CHECK_INT_GE(child, 0);
    if (child == 0)
        _exit(fcntl(lane->streams[0]->fd, F_GETFD) == -1 && errno == EBADF &&
                      fcntl(lane->streams[1]->fd, F_GETFD) == -1
                  ? 0
                  : 1);
    CHECK_INT_EQ(waitpid(child, &status, 0), child);
    CHECK_INT_EQ(status, 0);
    fake_tcp_write_and_check(&p, 100);
    CHECK_INT_EQ(fcntl(lane->streams[0]->fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    fake_tcp_pair_close(&p);
}

/* A join may overtake the offer; what does not fit is refused, closed, and harms nothing. */
TEST(streams_join_in_any_order_and_once)
{
    struct fake_host a;
    struct fake_link link = {0};
    struct rdti_offer offer;
    struct rdti_offer peer = {.len_bytes = RDTI_STREAM_OFFER_BYTES};
    struct rdt_error err;
    int pairs[5][2];

    fake_host_open(&a, &rdti_transport_tcp);
    const uint32_t fds = fake_count_fds();
    for (int i = 0; i < 5; i++)
        CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[i]), 0);
    const struct rdti_lane_args args = fake_lane_args(false);
    fake_link_offer(&a, &link, -1, &args, &offer);
    const struct rdti_transport *tcp = &rdti_transport_tcp;
    CHECK_OK(tcp->add_stream(link.lane, pairs[0][1], 1, &err), &err);
    CHECK_STATUS(tcp->add_stream(link.lane, pairs[1][1], 1, &err), RDT_EPROTO);
    CHECK_STATUS(tcp->add_stream(link.lane, pairs[2][1], 2, &err), RDT_EPROTO);
    rdti_stream_offer_encode(2, peer.bytes);
    CHECK_OK(tcp->connect(link.lane, &peer, &err), &err);
    (void)fake_pump(&a);
    CHECK_INT_EQ(link.ready_count, 0);
    CHECK_OK(tcp->add_stream(link.lane, pairs[3][1], 0, &err), &err);
    CHECK_INT_EQ(link.ready_count, 1);
    CHECK_STATUS(tcp->add_stream(link.lane, pairs[4][1], 0, &err), RDT_EPROTO);
    CHECK_INT_EQ(link.error_count, 0);
    for (int i = 0; i < 5; i++)
        CHECK_INT_EQ(close(pairs[i][0]), 0);
    FAKE_PUMP_UNTIL(&a, NULL, link.error_count == 1, 10);
    CHECK_INT_EQ(link.error.status, RDT_EPEER);
    fake_link_close(&link, RDT_ECLOSED);
    fake_link_free(&link);
    CHECK_INT_EQ(fake_count_fds(), fds);
    fake_host_close(&a);
}

TEST(sockets_have_the_options_that_lanes_need)
{
    struct fake_tcp_pair p = {0};

    fake_tcp_pair_open(&p, 2, AF_INET);
    const struct rdti_tcp_lane *lanes[2] = {(const struct rdti_tcp_lane *)p.ab.lane,
                                            (const struct rdti_tcp_lane *)p.ba.lane};
    for (uint32_t i = 0; i < 4; i++) {
        const int fd = lanes[i / 2]->streams[i % 2]->fd;
        int value = 0;
        socklen_t value_bytes = sizeof(value);
        char congestion[16] = "";
        socklen_t congestion_bytes = sizeof(congestion);

        CHECK_INT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &value_bytes), 0);
        CHECK_INT_EQ(value, 1);
        CHECK_INT_EQ(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &value_bytes), 0);
        CHECK_INT_EQ(value, 1);
        CHECK_INT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, &congestion_bytes), 0);
        CHECK_STR_EQ(congestion, "reno");
        CHECK_INT_EQ(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        CHECK_INT_EQ(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    }
    fake_tcp_pair_close(&p);
}

TEST_MAIN()
