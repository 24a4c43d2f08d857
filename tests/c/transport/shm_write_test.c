/* SPDX-License-Identifier: Apache-2.0
 * Writes, reads, notifications and maps of the shm transport between two hosts of one process. */
#include "harness.h"

#include "fake_host.h"
#include "transport/shm/limits.h"

static struct fake_host a;
static struct fake_host b;
static struct fake_link ab;
static struct fake_link ba;

static void
open_pair(void)
{
    fake_host_open(&a, &rdti_transport_shm);
    fake_host_open(&b, &rdti_transport_shm);
    fake_connect(&a, &ab, &b, &ba, NULL);
}

static void
close_pair(void)
{
    fake_disconnect(&ab, &ba);
    fake_host_close(&a);
    fake_host_close(&b);
}

/* An op that ends at once or by pumping, with RDT_OK. */
static void
finish(struct fake_op *op)
{
    fake_must_start(&ab, op);
    FAKE_PUMP_UNTIL(&a, &b, fake_op_is_done(op), 10);
    CHECK_OK(op->status, &op->error);
}

static void
map_segment_of(const struct fake_region *region)
{
    struct rdt_error err;
    void *addr = NULL;
    rdt_status status;

    FAKE_PUMP_UNTIL(&a, &b,
                    (status = a.transport->map(ab.lane, &region->remote, &addr, &err)) !=
                        RDT_EAGAIN,
                    10);
    CHECK_OK(status, &err);
}

static uint64_t
counted(_Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed); /* a statistic */
}

TEST(write_places_bytes_and_delivers_the_notification)
{
    struct fake_op op;

    open_pair();
    struct fake_region *region = fake_region(&b, 1000);
    fake_write(&op, "tensor", 6, &region->remote, 994, 0x1234);
    finish(&op);
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 1, 5);
    CHECK_HEX_EQ(ba.notifications[0], 0x1234);
    CHECK_MEM_EQ(region->addr + 994, "tensor", 6);
    CHECK_INT_EQ(region->addr[993], 0);
    CHECK_UINT_EQ(counted(&a.counters.moved_bytes[RDT_TRANSPORT_SHM][RDTI_TRAFFIC_PLANNED]), 6);
    CHECK_UINT_EQ(counted(&b.counters.notifications), 1);
    CHECK_UINT_EQ(counted(&a.counters.copied_bytes[RDTI_TRAFFIC_PLANNED]), 0);
    close_pair();
}

TEST(write_to_a_mapped_segment_is_over_when_it_returns)
{
    struct fake_op op;

    open_pair();
    struct fake_region *region = fake_region(&b, 64);
    map_segment_of(region);
    fake_write(&op, "now", 3, &region->remote, 0, RDT_NOTIFY_NONE);
    fake_must_start(&ab, &op);
    CHECK(fake_op_is_done(&op));
    CHECK_MEM_EQ(region->addr, "now", 3);
    CHECK(a.transport->is_idle(ab.lane));
    (void)fake_pump(&b);
    CHECK_UINT_EQ(ba.notify_count, 0);
    close_pair();
}

TEST(notification_alone_needs_no_region)
{
    const struct rdt_remote_region none = {0};
    struct fake_op op;

    open_pair();
    fake_write(&op, NULL, 0, &none, 0, 77);
    op.op.block_count = 0;
    fake_must_start(&ab, &op);
    CHECK(fake_op_is_done(&op));
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 1, 5);
    CHECK_UINT_EQ(ba.notifications[0], 77);
    close_pair();
}

TEST(notifications_stay_in_order_over_many_laps)
{
    static struct fake_op op;
    const uint32_t rounds = 20 * SHM_RING_ENTRIES + 7;

    open_pair();
    struct fake_region *region = fake_region(&b, 8);
    for (uint32_t i = 0; i < rounds; i++) {
        fake_write(&op, &i, sizeof(i), &region->remote, 0, i);
        finish(&op);
        FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == i + 1, 5);
        CHECK_UINT_EQ(ba.notifications[i], i);
        CHECK_MEM_EQ(region->addr, &i, sizeof(i));
    }
    close_pair();
}

/* Nobody takes: ops queue in order behind a full ring, and go once the peer takes. */
TEST(full_ring_queues_and_keeps_order)
{
    enum { OPS = 5 * SHM_RING_ENTRIES };
    static struct fake_op ops[OPS];
    static uint32_t values[OPS];

    open_pair();
    struct fake_region *region = fake_region(&b, sizeof(values));
    map_segment_of(region);
    for (uint32_t i = 0; i < OPS; i++) {
        values[i] = i * 3;
        fake_write(&ops[i], &values[i], 4, &region->remote, i * UINT64_C(4), i);
        fake_must_start(&ab, &ops[i]);
        CHECK_INT_EQ(fake_op_is_done(&ops[i]), i < SHM_RING_ENTRIES);
    }
    CHECK(!a.transport->is_idle(ab.lane));
    (void)fake_pump(&a);
    CHECK(!fake_op_is_done(&ops[SHM_RING_ENTRIES]));
    CHECK_INT_EQ(region->addr[4 * SHM_RING_ENTRIES], 0);
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == OPS, 10);
    for (uint32_t i = 0; i < OPS; i++) {
        CHECK_UINT_EQ(ba.notifications[i], i);
        CHECK(fake_op_is_done(&ops[i]));
        CHECK_OK(ops[i].status, &ops[i].error);
    }
    CHECK_MEM_EQ(region->addr, values, sizeof(values));
    CHECK(a.transport->is_idle(ab.lane));
    close_pair();
}

/* A write without a notification waits too: it would overtake. */
TEST(silent_write_does_not_overtake_the_queue)
{
    static struct fake_op fill[SHM_RING_ENTRIES + 1];
    struct fake_op silent;

    open_pair();
    struct fake_region *region = fake_region(&b, 8);
    map_segment_of(region);
    for (uint32_t i = 0; i <= SHM_RING_ENTRIES; i++) {
        fake_write(&fill[i], "1", 1, &region->remote, 0, i);
        fake_must_start(&ab, &fill[i]);
    }
    fake_write(&silent, "2", 1, &region->remote, 0, RDT_NOTIFY_NONE);
    fake_must_start(&ab, &silent);
    CHECK(!fake_op_is_done(&silent));
    CHECK_MEM_EQ(region->addr, "1", 1);
    FAKE_PUMP_UNTIL(&a, &b, fake_op_is_done(&silent), 5);
    CHECK_MEM_EQ(region->addr, "2", 1);
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == SHM_RING_ENTRIES + 1, 5);
    close_pair();
}

TEST(unknown_segment_queues_and_is_asked_for_once)
{
    static struct fake_op ops[4];

    open_pair();
    ba.is_holding = true;
    struct fake_region *first = fake_region(&b, 64);
    struct fake_region *second = fake_region(&b, 64);
    struct fake_region *const order[] = {first, first, second, first};
    for (uint32_t i = 0; i < 4; i++) {
        fake_write(&ops[i], "abcd" + i, 1, &order[i]->remote, i, i);
        fake_must_start(&ab, &ops[i]);
    }
    FAKE_PUMP_UNTIL(&a, &b, ba.held_count == 1, 5);
    for (uint32_t i = 0; i < 50; i++) {
        (void)fake_pump(&a);
        (void)fake_pump(&b);
    }
    CHECK_UINT_EQ(ba.held_count, 1);
    CHECK_UINT_EQ(ba.notify_count, 0);
    CHECK(!fake_op_is_done(&ops[0]));
    fake_link_answer(&ba);
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 4, 5);
    for (uint32_t i = 0; i < 4; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        CHECK_UINT_EQ(ba.notifications[i], i);
        CHECK_INT_EQ(order[i]->addr[i], "abcd"[i]);
    }
    CHECK_UINT_EQ(atomic_load_explicit(&ab.segment_requests, memory_order_seq_cst), 2);
    close_pair();
}

TEST(range_errors_are_refused_at_once)
{
    static const uint64_t cases[][2] = {{101, 0},        {100, 1},        {0, 101},
                                        {UINT64_MAX, 1}, {1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}};
    struct rdt_error err;
    struct fake_op op;

    open_pair();
    struct fake_region *region = fake_region(&b, 100);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fake_write(&op, "x", cases[i][1], &region->remote, cases[i][0], 1);
        CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ERANGE);
        CHECK_INT_EQ(err.status, RDT_ERANGE);
        fake_read(&op, NULL, cases[i][1], &region->remote, cases[i][0]);
        CHECK_STATUS(fake_start(&ab, &op, NULL), RDT_ERANGE);
        CHECK(!fake_op_is_done(&op));
    }
    fake_write(&op, NULL, 0, &region->remote, 100, 1);
    finish(&op);
    close_pair();
}

/* What the region says of itself is checked against the segment that arrived. */
TEST(region_that_leaves_its_segment_is_refused)
{
    struct fake_op op;
    struct rdt_error err;
    void *addr = NULL;

    open_pair();
    struct fake_region *region = fake_region(&b, 100);
    map_segment_of(region);
    struct rdt_remote_region lie = region->remote;
    lie.len_bytes = 8193;
    fake_write(&op, "x", 1, &lie, 8192, 1);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ERANGE);
    lie.len_bytes = 100;
    lie.segment_off = UINT64_MAX - 50;
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ERANGE);
    CHECK_STATUS(a.transport->map(ab.lane, &lie, &addr, &err), RDT_ERANGE);
    CHECK_NULL(addr);
    CHECK_UINT_EQ(ab.error_count, 0);
    close_pair();
}

TEST(stale_generation_is_refused)
{
    struct rdt_error err;
    struct fake_op op;
    void *addr = NULL;

    open_pair();
    struct fake_region *region = fake_region(&b, 8);
    map_segment_of(region);
    fake_region_revoke(&b, region);
    fake_write(&op, "x", 1, &region->remote, 0, 1);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ESTALE);
    CHECK_STR_CONTAINS(err.message, "freed by its owner");
    CHECK_INT_EQ(err.peer_rank, fake_lane_args(true).peer_rank);
    fake_write(&op, NULL, 0, &region->remote, 0, 1);
    CHECK_STATUS(fake_start(&ab, &op, NULL), RDT_ESTALE);
    fake_read(&op, NULL, 1, &region->remote, 0);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ESTALE);
    CHECK_STATUS(a.transport->map(ab.lane, &region->remote, &addr, &err), RDT_ESTALE);
    struct rdt_remote_region beyond = region->remote;
    beyond.index = UINT32_MAX;
    fake_write(&op, "x", 1, &beyond, 0, 1);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ESTALE);
    CHECK_INT_EQ(region->addr[0], 0);
    (void)fake_pump(&b);
    CHECK_UINT_EQ(ba.notify_count, 0);
    close_pair();
}

/* The generation ends while the op waits: it must not be written, those after it must. */
TEST(queued_write_looks_at_the_generation_again)
{
    struct fake_op stale;
    struct fake_op live;

    open_pair();
    ba.is_holding = true;
    const uint32_t segment = fake_segment(&b, 4096);
    struct fake_region *freed = fake_region_in(&b, segment, 0, 64);
    struct fake_region *kept = fake_region_in(&b, segment, 64, 64);
    fake_write(&stale, "bad", 3, &freed->remote, 0, 1);
    fake_write(&live, "good", 4, &kept->remote, 0, 2);
    fake_must_start(&ab, &stale);
    fake_must_start(&ab, &live);
    fake_region_revoke(&b, freed);
    FAKE_PUMP_UNTIL(&a, &b, ba.held_count == 1, 5);
    fake_link_answer(&ba);
    FAKE_PUMP_UNTIL(&a, &b, fake_op_is_done(&stale) && fake_op_is_done(&live), 5);
    CHECK_STATUS(stale.status, RDT_ESTALE);
    CHECK_OK(live.status, &live.error);
    CHECK_INT_EQ(freed->addr[0], 0);
    CHECK_MEM_EQ(kept->addr, "good", 4);
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 1, 5);
    CHECK_UINT_EQ(ba.notifications[0], 2);
    CHECK_UINT_EQ(ab.error_count, 0);
    close_pair();
}

TEST(read_fetches_bytes_also_before_the_segment_is_mapped)
{
    struct fake_op op;
    uint8_t got[300];

    open_pair();
    struct fake_region *region = fake_region(&b, 4096);
    for (uint32_t i = 0; i < 4096; i++)
        region->addr[i] = (uint8_t)(i * 7);
    for (uint64_t off = 0; off < 2; off++) {
        memset(got, 0, sizeof(got));
        fake_read(&op, got, sizeof(got), &region->remote, 1000 + off);
        fake_must_start(&ab, &op);
        CHECK_INT_EQ(fake_op_is_done(&op), off == 1);
        FAKE_PUMP_UNTIL(&a, &b, fake_op_is_done(&op), 5);
        CHECK_OK(op.status, &op.error);
        CHECK_MEM_EQ(got, region->addr + 1000 + off, sizeof(got));
    }
    fake_read(&op, NULL, 0, &region->remote, 4096);
    finish(&op);
    close_pair();
}

TEST(map_gives_the_same_memory)
{
    struct rdt_error err;
    void *addr = NULL;

    open_pair();
    struct fake_region *region = fake_region_in(&b, fake_segment(&b, 5 << 20), 3 << 20, 2 << 20);
    CHECK_STATUS(a.transport->map(ab.lane, &region->remote, &addr, &err), RDT_EAGAIN);
    CHECK_NULL(addr);
    map_segment_of(region);
    CHECK_OK(a.transport->map(ab.lane, &region->remote, &addr, &err), &err);
    uint8_t *mapped = addr;
    mapped[0] = 17;
    mapped[(2 << 20) - 1] = 18;
    CHECK_INT_EQ(region->addr[0], 17);
    CHECK_INT_EQ(region->addr[(2 << 20) - 1], 18);
    close_pair();
}

TEST(many_blocks_and_one_notification)
{
    enum { BLOCKS = 4096, BLOCK_BYTES = 1000 };
    static struct rdt_block blocks[BLOCKS];
    static uint8_t src[BLOCKS * BLOCK_BYTES];
    struct fake_op op;

    open_pair();
    struct fake_region *region = fake_region(&b, sizeof(src) + BLOCKS);
    for (size_t i = 0; i < sizeof(src); i++)
        src[i] = (uint8_t)(i * 2654435761u >> 11);
    for (uint64_t i = 0; i < BLOCKS; i++)
        blocks[i] = (struct rdt_block){.src = src + i * BLOCK_BYTES,
                                       .len_bytes = BLOCK_BYTES,
                                       .dst_off = (BLOCKS - 1 - i) * (BLOCK_BYTES + 1)};
    fake_write_many(&op, blocks, BLOCKS, &region->remote, 5);
    finish(&op);
    FAKE_PUMP_UNTIL(&a, &b, ba.notify_count == 1, 5);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        CHECK_MEM_EQ(region->addr + blocks[i].dst_off, blocks[i].src, BLOCK_BYTES);
        CHECK_INT_EQ(region->addr[blocks[i].dst_off + BLOCK_BYTES], 0);
    }
    blocks[BLOCKS - 1].dst_off = region->remote.len_bytes - BLOCK_BYTES + 1;
    fake_write_many(&op, blocks, BLOCKS, &region->remote, 5);
    CHECK_STATUS(fake_start(&ab, &op, NULL), RDT_ERANGE);
    close_pair();
}

/* A refused number: the op ends, the lane lives. */
TEST(segment_that_the_peer_has_not_ends_the_op)
{
    struct rdt_error err;
    struct fake_op op;

    open_pair();
    struct fake_region *region = fake_region(&b, 64);
    struct rdt_remote_region lie = region->remote;
    lie.segment = 40;
    fake_write(&op, "x", 1, &lie, 0, 1);
    fake_must_start(&ab, &op);
    FAKE_PUMP_UNTIL(&a, &b, fake_op_is_done(&op), 5);
    CHECK_STATUS(op.status, RDT_ESTALE);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ESTALE);
    lie.segment = SHM_SEGMENTS_MAX;
    fake_write(&op, "x", 1, &lie, 0, 1);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_EPROTO);
    fake_write(&op, "y", 1, &region->remote, 0, 1);
    finish(&op);
    CHECK_UINT_EQ(ab.error_count, 0);
    close_pair();
}

TEST(close_completes_what_is_queued)
{
    static struct fake_op ops[3];
    uint8_t got[4];

    open_pair();
    ba.is_holding = true;
    struct fake_region *region = fake_region(&b, 64);
    fake_write(&ops[0], "x", 1, &region->remote, 0, 1);
    fake_write(&ops[1], "y", 1, &region->remote, 0, 1);
    fake_read(&ops[2], got, sizeof(got), &region->remote, 0);
    for (int i = 0; i < 3; i++)
        fake_must_start(&ab, &ops[i]);
    fake_link_close(&ab, RDT_EPEER);
    for (int i = 0; i < 3; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        CHECK_STATUS(ops[i].status, RDT_EPEER);
    }
    fake_link_free(&ab);
    fake_link_close(&ba, RDT_ECLOSED);
    fake_link_free(&ba);
    fake_host_close(&a);
    fake_host_close(&b);
}

TEST(write_before_connect_is_refused)
{
    const struct rdti_lane_args args = fake_lane_args(true);
    const struct rdt_remote_region remote = {.len_bytes = 8, .index = 1};
    struct rdti_offer offer;
    struct fake_op op;
    void *addr = NULL;

    fake_host_open(&a, &rdti_transport_shm);
    fake_link_offer(&a, &ab, -1, &args, &offer);
    fake_write(&op, "x", 1, &remote, 0, 1);
    CHECK_STATUS(fake_start(&ab, &op, NULL), RDT_EAGAIN);
    CHECK_STATUS(a.transport->map(ab.lane, &remote, &addr, NULL), RDT_EAGAIN);
    CHECK(a.transport->is_idle(ab.lane));
    fake_link_close(&ab, RDT_ECLOSED);
    fake_link_free(&ab);
    fake_host_close(&a);
}

static void
close_other_lane(struct fake_link *link, uint32_t notification, void *arg)
{
    struct rdt_error err = {.status = RDT_ECLOSED};
    struct fake_link *other = arg;

    (void)link;
    (void)notification;
    if (other->lane != NULL)
        other->host->transport->close_lane(other->lane, &err);
    other->lane = NULL;
}

/* Also the very lane whose notification is being delivered. */
TEST(lane_may_be_closed_in_a_callback_of_poll)
{
    const struct rdt_remote_region none = {0};
    struct fake_op op;

    for (int round = 0; round < 2; round++) {
        struct fake_link ab2;
        struct fake_link ba2;

        open_pair();
        fake_connect(&a, &ab2, &b, &ba2, NULL);
        ba.on_notify = close_other_lane;
        ba.on_notify_arg = round == 0 ? &ba : &ba2;
        fake_write(&op, NULL, 0, &none, 0, 1);
        fake_must_start(&ab, &op);
        fake_write(&op, NULL, 0, &none, 0, 2);
        fake_must_start(&ab2, &op);
        struct fake_link *closed = round == 0 ? &ba : &ba2;
        FAKE_PUMP_UNTIL(&b, NULL, closed->lane == NULL, 5);
        rdti_list_remove(&closed->node);
        CHECK_INT_EQ(close(closed->side_fd), 0);
        fake_link_free(closed);
        struct fake_link *open = round == 0 ? &ba2 : &ba;
        fake_link_close(open, RDT_ECLOSED);
        fake_link_free(open);
        fake_disconnect(&ab, &ab2);
        fake_host_close(&a);
        fake_host_close(&b);
    }
}

/* ---- Registered private memory ----------------------------------------------------------- */

static bool
has_process_vm(void)
{
    char text[256];

    a.transport->explain(ab.lane, text, sizeof(text));
    return strstr(text, "process_vm_writev") != NULL;
}

TEST(private_memory_goes_through_the_kernel)
{
    static uint8_t owned[1 << 20];
    static uint8_t src[1 << 20];
    static uint8_t got[1 << 20];
    static struct rdt_block blocks[1000];
    struct rdt_error err;
    struct fake_op op;
    void *addr = NULL;

    open_pair();
    if (!has_process_vm())
        SKIP("process_vm_readv is not permitted");
    struct fake_region *region = fake_region_private(&b, owned, sizeof(owned));
    for (size_t i = 0; i < sizeof(src); i++)
        src[i] = (uint8_t)(i * 2654435761u >> 9);
    fake_write(&op, src, sizeof(src), &region->remote, 0, 9);
    finish(&op);
    CHECK_MEM_EQ(owned, src, sizeof(src));
    fake_read(&op, got, 1001, &region->remote, 77);
    finish(&op);
    CHECK_MEM_EQ(got, src + 77, 1001);
    for (uint64_t i = 0; i < 1000; i++)
        blocks[i] = (struct rdt_block){.src = src + i,
                                       .len_bytes = i % 3 == 0 ? 0 : 50,
                                       .dst_off = i * 100};
    fake_write_many(&op, blocks, 1000, &region->remote, RDT_NOTIFY_NONE);
    finish(&op);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK_MEM_EQ(owned + i * 100, src + i, blocks[i].len_bytes);
    CHECK_STATUS(a.transport->map(ab.lane, &region->remote, &addr, &err), RDT_ENOTSUP);
    CHECK_STR_CONTAINS(err.message, "rdt_region_alloc");
    fake_region_revoke(&b, region);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_ESTALE);
    close_pair();
}

/* The owner's memory is gone: an error ends the lane, and every later op gets the same one. */
TEST(private_memory_that_vanished_ends_the_lane)
{
    struct rdt_error err;
    struct rdt_error again;
    struct fake_op op;

    open_pair();
    if (!has_process_vm())
        SKIP("process_vm_readv is not permitted");
    struct fake_region *region = fake_region_private(&b, (void *)(uintptr_t)4096, 4096);
    fake_write(&op, "x", 1, &region->remote, 0, 9);
    CHECK_STATUS(fake_start(&ab, &op, &err), RDT_EDEVICE);
    CHECK_INT_EQ(err.sys_errno, EFAULT);
    CHECK(!fake_op_is_done(&op));
    FAKE_PUMP_UNTIL(&a, &b, ab.error_count == 1, 5);
    CHECK_STATUS(fake_start(&ab, &op, &again), RDT_EDEVICE);
    CHECK_STR_EQ(again.message, err.message);
    (void)fake_pump(&a);
    CHECK_UINT_EQ(ab.error_count, 1);
    close_pair();
}

TEST_MAIN()
