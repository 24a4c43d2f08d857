/* SPDX-License-Identifier: Apache-2.0
 * Two hosts of one process over tcp: writes, lists, reads, stripes, refusals. */
#include "../harness.h"

#include "fake_tcp.h"
#include "transport/tcp/tcp.h"
#include "wire/notify.h"

static void
write_sizes(uint32_t streams, int family)
{
    static const uint64_t sizes[] = {0,
                                     1,
                                     8,
                                     31,
                                     32,
                                     33,
                                     4096,
                                     65535,
                                     65536,
                                     65537,
                                     524287,
                                     524288,
                                     1 << 20,
                                     (4 << 20) - 1,
                                     4 << 20,
                                     (4 << 20) + 1,
                                     (9 << 20) + 5};
    struct fake_tcp_pair p = {0};

    fake_tcp_pair_open(&p, streams, family);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        fake_tcp_write_and_check(&p, sizes[i]);
    fake_tcp_pair_close(&p);
}

TEST(writes_of_every_size_arrive_on_one_stream)
{
    write_sizes(1, AF_INET);
}

TEST(writes_of_every_size_arrive_on_two_streams)
{
    write_sizes(2, AF_INET);
}

TEST(writes_of_every_size_arrive_on_four_streams_over_ipv6)
{
    write_sizes(4, AF_INET6);
}

static void
read_sizes(uint32_t streams)
{
    static const uint64_t sizes[] = {0, 1, 8, 4096, 524288, (4 << 20) + 1, (33 << 20) + 3};
    struct fake_tcp_pair p = {0};

    fake_tcp_pair_open(&p, streams, AF_INET);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct fake_region *region = fake_region(&p.b, sizes[i] + 16);
        uint8_t *dst = calloc(1, sizes[i] + 1);
        struct fake_op op;

        CHECK_NOT_NULL(dst);
        fake_tcp_pattern(region->addr, sizes[i] + 16, 3);
        fake_read(&op, dst, sizes[i], &region->remote, 16);
        fake_must_start(&p.ab, &op);
        FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
        CHECK_MEM_EQ(dst, region->addr + 16, sizes[i]);
        CHECK_INT_EQ(dst[sizes[i]], 0);
        CHECK_INT_EQ(region->pins, 0);
        free(dst);
    }
    fake_tcp_pair_close(&p);
}

TEST(reads_of_every_size_arrive_on_one_stream)
{
    read_sizes(1);
}

TEST(reads_of_every_size_arrive_on_three_streams)
{
    read_sizes(3);
}

/* More reads than may be unanswered: the rest waits its turn. */
TEST(many_reads_at_once_are_all_answered)
{
    enum { COUNT = 5 * RDTI_STREAM_READS_MAX };
    struct fake_tcp_pair p = {0};
    static struct fake_op ops[COUNT];
    static uint32_t values[COUNT];

    fake_tcp_pair_open(&p, 2, AF_INET);
    struct fake_region *region = fake_region(&p.b, sizeof(values));
    fake_tcp_pattern(region->addr, sizeof(values), 11);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_read(&ops[i], &values[i], 4, &region->remote, 4 * i);
        fake_must_start(&p.ab, &ops[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        FAKE_TCP_PUMP(&p, fake_op_is_done(&ops[i]));
    CHECK_MEM_EQ(values, region->addr, sizeof(values));
    fake_tcp_pair_close(&p);
}

/* Blocks small and large, scattered, adjacent and empty, under one notification. */
static void
write_many_blocks(uint32_t streams)
{
    enum { COUNT = 1500, CAP = 24 << 20 };
    static struct rdt_block blocks[COUNT];
    struct fake_tcp_pair p = {0};
    uint8_t *src = malloc(CAP);
    uint8_t *want = calloc(1, CAP);
    struct fake_op op;
    uint64_t at = 0;

    CHECK(src != NULL && want != NULL);
    fake_tcp_pattern(src, CAP, 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t len = i % 97 == 5 ? 70000 : (i % 7) * 16;
        if (i % 500 == 499)
            len = 5 << 20; /* several parts, striped where there are streams */
        const uint64_t gap = i % 3 == 0 ? 0 : 24; /* every third is adjacent to the one before */
        at += gap;
        blocks[i] =
            (struct rdt_block){.src = src + (i * 977) % 4096, .len_bytes = len, .dst_off = at};
        memcpy(want + at, blocks[i].src, len);
        at += len;
        CHECK(at < CAP);
    }
    fake_tcp_pair_open(&p, streams, AF_INET);
    struct fake_region *region = fake_region(&p.b, CAP);
    const uint64_t before = atomic_load(&p.a.counters.wire_bytes);
    fake_write_many(&op, blocks, COUNT, &region->remote, rdti_notify_user(1));
    fake_must_start(&p.ab, &op);
    FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_INT_EQ(p.ba.notify_count, 1);
    CHECK_MEM_EQ(region->addr, want, CAP);
    /* A list entry is 12 bytes; heads are few. */
    const uint64_t sent = atomic_load(&p.a.counters.wire_bytes) - before;
    CHECK_UINT_LE(sent, op.op.len_bytes + COUNT * 12 + 100 * 32);
    fake_tcp_pair_close(&p);
    free(src);
    free(want);
}

TEST(a_write_of_many_blocks_is_one_message_on_one_stream)
{
    write_many_blocks(1);
}

TEST(a_write_of_many_blocks_is_one_message_on_four_streams)
{
    write_many_blocks(4);
}

TEST(adjacent_blocks_need_no_list)
{
    struct fake_tcp_pair p = {0};
    struct rdt_block blocks[64];
    uint8_t src[64 * 10];
    struct fake_op op;

    fake_tcp_pattern(src, sizeof(src), 9);
    for (uint32_t i = 0; i < 64; i++)
        blocks[i] = (struct rdt_block){.src = src + i * 10, .len_bytes = 10, .dst_off = i * 10};
    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *region = fake_region(&p.b, sizeof(src));
    const uint64_t before = atomic_load(&p.a.counters.wire_bytes);
    fake_write_many(&op, blocks, 64, &region->remote, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &op);
    FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
    CHECK_MEM_EQ(region->addr, src, sizeof(src));
    CHECK_UINT_EQ(atomic_load(&p.a.counters.wire_bytes) - before, sizeof(src) + 32);
    fake_tcp_pair_close(&p);
}

/* Stripes of a large message are on the way while small ones pass on stream 0: order holds. */
TEST(notifications_keep_their_order_over_several_streams)
{
    enum { COUNT = 300 };
    struct fake_tcp_pair p = {0};
    static struct fake_op ops[COUNT];
    uint8_t *src = calloc(1, 4 << 20);

    CHECK_NOT_NULL(src);
    fake_tcp_pair_open(&p, 4, AF_INET);
    struct fake_region *region = fake_region(&p.b, 4 << 20);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint64_t len = i % 5 == 0 ? (1 << 20) + i : i;
        fake_write(&ops[i], src, len, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    FAKE_TCP_PUMP(&p, p.ba.notify_count == COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK_HEX_EQ(p.ba.notifications[i], rdti_notify_user(i));
    for (uint32_t i = 0; i < COUNT; i++)
        FAKE_TCP_PUMP(&p, fake_op_is_done(&ops[i]));
    fake_tcp_pair_close(&p);
    free(src);
}

TEST(a_stale_region_refuses_writes_and_reads_and_the_lane_lives)
{
    for (uint32_t streams = 1; streams <= 3; streams += 2) {
        const uint64_t sizes[] = {0, 8, 70000, 5 << 20};
        struct fake_tcp_pair p = {0};
        uint8_t *buf = malloc(5 << 20);

        CHECK_NOT_NULL(buf);
        memset(buf, 0xaa, 5 << 20);
        fake_tcp_pair_open(&p, streams, AF_INET);
        struct fake_region *region = fake_region(&p.b, 5 << 20);
        const struct rdt_remote_region stale = region->remote;
        fake_region_revoke(&p.b, region);
        for (uint32_t i = 0; i < 4; i++) {
            struct fake_op op;

            fake_write(&op, buf, sizes[i], &stale, 0, rdti_notify_user(i));
            fake_must_start(&p.ab, &op);
            FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
            CHECK_INT_EQ(op.status, RDT_ESTALE);
            CHECK_STR_CONTAINS(op.error.message, "refused");
            fake_read(&op, buf, sizes[i], &stale, 0);
            fake_must_start(&p.ab, &op);
            FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
            CHECK_INT_EQ(op.status, RDT_ESTALE);
        }
        for (uint32_t i = 0; i < 5 << 20; i++)
            CHECK_INT_EQ(region->addr[i], 0);
        CHECK_INT_EQ(p.ba.notify_count, 0);
        fake_tcp_write_and_check(&p, 100);
        CHECK_INT_EQ(p.ba.error_count + p.ab.error_count, 0);
        fake_tcp_pair_close(&p);
        free(buf);
    }
}

/* A remote region that claims more than there is: the target checks, and no byte of any stripe
 * lands. */
TEST(a_range_beyond_the_region_is_refused_at_the_target)
{
    struct fake_tcp_pair p = {0};
    uint8_t *src = malloc(2 << 20);
    struct rdt_block blocks[3];
    struct fake_op ops[4];

    CHECK_NOT_NULL(src);
    memset(src, 0xbb, 2 << 20);
    fake_tcp_pair_open(&p, 2, AF_INET);
    struct fake_region *region = fake_region(&p.b, 1 << 20);
    struct rdt_remote_region lie = region->remote;
    lie.len_bytes = UINT64_MAX;
    fake_write(&ops[0], src, 2 << 20, &lie, 0, rdti_notify_user(1));
    fake_write(&ops[1], src, 8, &lie, UINT64_MAX - 8, rdti_notify_user(1));
    for (uint32_t i = 0; i < 3; i++)
        blocks[i] = (struct rdt_block){.src = src, .len_bytes = 8, .dst_off = i * UINT64_C(700000)};
    fake_write_many(&ops[2], blocks, 3, &lie, rdti_notify_user(1));
    fake_read(&ops[3], src, 8, &lie, 1 << 20);
    for (uint32_t i = 0; i < 4; i++)
        fake_must_start(&p.ab, &ops[i]);
    for (uint32_t i = 0; i < 4; i++) {
        FAKE_TCP_PUMP(&p, fake_op_is_done(&ops[i]));
        CHECK_INT_EQ(ops[i].status, RDT_ERANGE);
    }
    for (uint32_t i = 0; i < 1 << 20; i++)
        CHECK_INT_EQ(region->addr[i], 0);
    CHECK_INT_EQ(p.ba.notify_count, 0);
    fake_tcp_write_and_check(&p, 1000);
    fake_tcp_pair_close(&p);
    free(src);
}

TEST(a_range_beyond_what_was_exported_is_refused_at_once)
{
    struct fake_tcp_pair p = {0};
    uint8_t src[64] = {0};
    struct fake_op op;

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *region = fake_region(&p.b, 64);
    fake_write(&op, src, 64, &region->remote, 1, RDTI_NOTIFY_NONE);
    CHECK_STATUS(fake_start(&p.ab, &op, NULL), RDT_ERANGE);
    fake_read(&op, src, 1, &region->remote, 64);
    CHECK_STATUS(fake_start(&p.ab, &op, NULL), RDT_ERANGE);
    fake_read(&op, src, 2, &region->remote, UINT64_MAX);
    CHECK_STATUS(fake_start(&p.ab, &op, NULL), RDT_ERANGE);
    CHECK(!fake_op_is_done(&op));
    CHECK(rdti_transport_tcp.is_idle(p.ab.lane));
    fake_tcp_pair_close(&p);
}

/* More refusals than there is room for at once, with messages that succeed between them. */
TEST(refusals_come_in_order_with_successes)
{
    enum { COUNT = 4 * RDTI_TCP_REFUSALS_MAX };
    struct fake_tcp_pair p = {0};
    static struct fake_op ops[COUNT];
    uint64_t value = 1;

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *live = fake_region(&p.b, 64);
    struct fake_region *dead = fake_region(&p.b, 64);
    const struct rdt_remote_region stale = dead->remote;
    fake_region_revoke(&p.b, dead);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], &value, 8, i % 3 == 0 ? &live->remote : &stale, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        FAKE_TCP_PUMP(&p, fake_op_is_done(&ops[i]));
        CHECK_INT_EQ(ops[i].status, i % 3 == 0 ? RDT_OK : RDT_ESTALE);
    }
    CHECK_INT_EQ(p.ba.notify_count, (COUNT + 2) / 3);
    fake_tcp_pair_close(&p);
}

/* ---- What a sender may rely on --------------------------------------------------------------- */

static struct sockaddr_in
own_end(const struct fake_link *link)
{
    const struct rdti_tcp_lane *lane = (const struct rdti_tcp_lane *)link->lane;
    struct sockaddr_in addr = {0};
    socklen_t addr_bytes = sizeof(addr);

    CHECK(getsockname(lane->streams[0]->fd, (struct sockaddr *)&addr, &addr_bytes) == 0);
    return addr;
}

/* The kernels have taken all of it, and nobody has looked: that is no acknowledgement. */
TEST(a_write_is_over_once_its_target_has_placed_it)
{
    static const uint8_t zeros[4096];
    struct fake_tcp_pair p = {0};
    uint8_t src[4096];
    struct fake_op op;

    fake_tcp_pair_open(&p, 1, AF_INET);
    fake_tcp_write_and_check(&p, 100);
    struct fake_region *region = fake_region(&p.b, sizeof(src));
    const uint64_t before = atomic_load(&p.a.counters.wire_bytes);
    fake_tcp_pattern(src, sizeof(src), 3);
    fake_write(&op, src, sizeof(src), &region->remote, 0, rdti_notify_user(1));
    fake_must_start(&p.ab, &op);
    for (int i = 0; i < 50; i++) {
        (void)fake_pump(&p.a);
        test_sleep_ns(1000000);
        CHECK(!fake_op_is_done(&op));
    }
    CHECK_UINT_GE(atomic_load(&p.a.counters.wire_bytes) - before, sizeof(src));
    CHECK_MEM_EQ(region->addr, zeros, sizeof(src));
    FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(region->addr, src, sizeof(src));
    fake_tcp_pair_close(&p);
}

/* A write into the sockets of a quiet lane is delivered before its event was seen. */
TEST(a_quiet_lane_is_heard_without_an_event)
{
    struct fake_tcp_pair p = {0};
    struct fake_op op;

    fake_tcp_pair_open(&p, 2, AF_INET);
    struct fake_region *region = fake_region(&p.b, 64);
    for (int i = 0; i < 1000; i++) /* until b polls no socket on its own */
        (void)fake_pump(&p.b);
    fake_write(&op, "12345678", 8, &region->remote, 0, rdti_notify_user(1));
    fake_must_start(&p.ab, &op);
    for (int i = 0; i < 50; i++) {
        (void)fake_pump(&p.a);
        test_sleep_ns(1000000);
    }
    CHECK_INT_EQ(p.ba.notify_count, 0);
    (void)pthread_mutex_lock(&p.b.engine);
    p.b.transport->hear(p.ba.lane);
    (void)p.b.transport->poll(p.b.state);
    (void)pthread_mutex_unlock(&p.b.engine);
    CHECK_INT_EQ(p.ba.notify_count, 1);
    CHECK_MEM_EQ(region->addr, "12345678", 8);
    FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
    fake_tcp_pair_close(&p);
}

/* No port is used up by traffic: the sockets of a pair are those of its first write. */
TEST(a_thousand_writes_need_no_other_socket)
{
    struct fake_tcp_pair p = {0};

    fake_tcp_pair_open(&p, 1, AF_INET);
    struct fake_region *region = fake_region(&p.b, 64);
    const struct sockaddr_in before = own_end(&p.ab);
    for (int i = 0; i < 1000; i++) {
        struct fake_op op;

        fake_write(&op, "12345678", 8, &region->remote, 0, rdti_notify_user(1));
        fake_must_start(&p.ab, &op);
        FAKE_TCP_PUMP(&p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
    }
    const struct sockaddr_in after = own_end(&p.ab);
    CHECK_INT_EQ(after.sin_port, before.sin_port);
    fake_tcp_pair_close(&p);
}

TEST_MAIN()
