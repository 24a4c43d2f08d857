/* SPDX-License-Identifier: Apache-2.0
 * Stripes that come late, alone or spoiled; the peer is two bare sockets. */
#include "../harness.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "fake_victim.h"
#include "transport/tcp/tcp.h"
#include "wire/notify.h"

/* As fake_victim_lane(), over two streams; fds[i] is the peer's end of stream i. */
static void
victim_two_streams(struct fake_victim *v, int fds[2])
{
    struct rdti_offer offer;
    struct rdti_offer peer = {.len_bytes = RDTI_STREAM_OFFER_BYTES};
    struct rdt_error err;

    memset(&v->link, 0, sizeof(v->link));
    v->host.host.tcp_streams = 2;
    const struct rdti_lane_args args = fake_lane_args(false);
    fake_link_offer(&v->host, &v->link, -1, &args, &offer);
    rdti_stream_offer_encode(2, peer.bytes);
    CHECK_OK(rdti_transport_tcp.connect(v->link.lane, &peer, &err), &err);
    for (uint32_t i = 0; i < 2; i++) {
        int pair[2];

        CHECK_INT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        fds[i] = pair[0];
        CHECK_OK(rdti_transport_tcp.add_stream(v->link.lane, pair[1], i, &err), &err);
    }
    v->fd = fds[0];
    CHECK_INT_EQ(fcntl(v->fd, F_SETFL, O_NONBLOCK), 0);
}

/* One striped write: what each stream carries of it. */
static void
add_stripe(struct fake_script s[2], uint32_t generation, uint32_t off_bytes, uint32_t len_bytes)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct rdti_stream_head head = {.op = RDTI_STREAM_WRITE,
                                        .flags = RDTI_STREAM_STRIPED,
                                        .index = 1,
                                        .generation = generation,
                                        .len_bytes = len_bytes,
                                        .off_bytes = off_bytes};
        uint32_t off;
        uint32_t len;

        if (i == 0) {
            head.flags |= RDTI_STREAM_NOTIFY;
            head.value = rdti_notify_user(len_bytes);
        }
        rdti_stream_stripe(len_bytes, i, 2, &off, &len);
        fake_script_add(&s[i], head, len);
    }
}

TEST(a_striped_message_is_over_when_its_last_stripe_is)
{
    struct fake_victim v;
    struct fake_script s[2] = {{.len_bytes = 0}, {.len_bytes = 0}};
    int fds[2];

    fake_victim_open(&v);
    fake_victim_end_lane(&v);
    victim_two_streams(&v, fds);
    add_stripe(s, v.region->remote.generation, 0, 4096); /* all on stream 0, a head on stream 1 */
    add_stripe(s, v.region->remote.generation, 96, 4000);
    fake_victim_send(&v, s[0].bytes, s[0].len_bytes);
    fake_victim_pump(&v);
    CHECK_INT_EQ(v.link.notify_count, 0);
    CHECK_INT_EQ(send(fds[1], s[1].bytes, RDTI_STREAM_HEAD_BYTES, 0), RDTI_STREAM_HEAD_BYTES);
    fake_victim_pump(&v);
    CHECK_INT_EQ(v.link.notify_count, 1);
    CHECK_INT_EQ(send(fds[1], s[1].bytes, RDTI_STREAM_HEAD_BYTES, 0), RDTI_STREAM_HEAD_BYTES);
    fake_victim_pump(&v);
    CHECK_INT_EQ(v.link.notify_count, 1); /* it was of 4096 bytes, the message is of 4000 */
    CHECK_INT_EQ(v.link.error_count, 1);
    CHECK_INT_EQ(v.link.error.status, RDT_EPROTO);
    CHECK_INT_EQ(close(fds[1]), 0);
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
}

/* Stripes of which stream 0 never hears: they are taken up to a bound, then their stream is not
 * read. */
TEST(stripes_without_their_message_stop_their_stream)
{
    struct fake_victim v;
    struct fake_script s[2] = {{.len_bytes = 0}, {.len_bytes = 0}};
    uint32_t sent = 0;
    int fds[2];

    fake_victim_open(&v);
    fake_victim_end_lane(&v);
    victim_two_streams(&v, fds);
    add_stripe(s, v.region->remote.generation, 0, 64);
    CHECK_INT_EQ(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
    while (send(fds[1], s[1].bytes, s[1].len_bytes, 0) == (ssize_t)s[1].len_bytes) {
        CHECK_UINT_LE(++sent, 1000000);
        (void)fake_pump(&v.host);
    }
    const struct rdti_tcp_lane *lane = (const struct rdti_tcp_lane *)v.link.lane;
    CHECK_INT_EQ(lane->streams[1]->stripes_taken, RDTI_TCP_STRIPES_MAX);
    for (int i = 0; i < 10; i++)
        (void)fake_pump(&v.host);
    CHECK_INT_EQ(fake_pump(&v.host), 0); /* without spinning over it */
    for (uint32_t i = 0; i < sent; i++) {
        fake_victim_send(&v, s[0].bytes, s[0].len_bytes);
        fake_victim_pump(&v);
    }
    CHECK_UINT_EQ(v.link.notify_count, sent);
    CHECK_INT_EQ(v.link.error_count, 0);
    CHECK_INT_EQ(close(fds[1]), 0);
    fake_victim_end_lane(&v);
    fake_victim_close(&v);
}

TEST_TIMEOUT(mutated_stripes_never_harm, 120)
{
    struct fake_victim v;

    fake_random_state = 362436069u;
    fake_victim_open(&v);
    fake_victim_end_lane(&v);
    for (int round = 0; round < 4000; round++) {
        struct fake_script s[2] = {{.len_bytes = 0}, {.len_bytes = 0}};
        const uint64_t first = fake_random_u64() % 2;
        struct fake_script *hit = &s[fake_random_u64() % 2];
        int fds[2];

        add_stripe(s, v.region->remote.generation, 0, 4096);
        add_stripe(s, v.region->remote.generation, 96, 4000);
        fake_mutate(hit->bytes, &hit->len_bytes);
        victim_two_streams(&v, fds);
        for (uint64_t i = 0; i < 2; i++) {
            const struct fake_script *one = &s[first ^ i];

            (void)!send(fds[first ^ i], one->bytes, one->len_bytes, MSG_NOSIGNAL);
            fake_victim_pump(&v);
        }
        CHECK_INT_EQ(close(fds[1]), 0);
        fake_victim_end_lane(&v);
    }
    fake_victim_close(&v);
}

TEST_MAIN()
