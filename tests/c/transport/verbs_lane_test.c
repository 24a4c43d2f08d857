/* SPDX-License-Identifier: Apache-2.0
 * Two hosts of one process over verbs: writes, lists, reads, windows, several QPs and links. */
#include "../harness.h"

#include "transport/verbs/lane.h"
#include "verbs_rig.h"
#include "wire/notify.h"

static void
set_qps(const char *count)
{
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", count, 1), 0);
}

static void
write_sizes(const struct sim_config *config, bool is_private)
{
    static const uint64_t sizes[] = {0,
                                     1,
                                     8,
                                     63,
                                     64,
                                     65,
                                     4096,
                                     65535,
                                     65536,
                                     65537,
                                     (1 << 20) + 3,
                                     (8 << 20) - 1,
                                     8 << 20,
                                     (8 << 20) + 1,
                                     (19 << 20) + 5};
    struct verbs_pair p;

    verbs_pair_open(&p, config);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        verbs_write_and_check(&p, sizes[i], is_private);
    verbs_pair_close(&p);
}

TEST_TIMEOUT(writes_of_every_size_arrive, 60)
{
    const struct sim_config config = sim_default();

    write_sizes(&config, false);
}

TEST_TIMEOUT(writes_from_private_memory_arrive, 60)
{
    const struct sim_config config = sim_default();

    write_sizes(&config, true);
}

TEST_TIMEOUT(writes_go_over_four_qps, 60)
{
    struct sim_config config = sim_default();

    config.delay_us = 50;
    config.is_scattering = true;
    set_qps("4");
    write_sizes(&config, false);
}

TEST_TIMEOUT(writes_go_over_two_links_of_two_qps, 60)
{
    struct sim_config config = sim_default();

    if (verbs_is_real())
        SKIP("needs the sim");
    config.device_count = 2;
    config.delay_us = 50;
    config.duplicates = 20;
    set_qps("2");
    write_sizes(&config, true);
}

TEST(a_device_without_inline_is_no_hindrance)
{
    struct sim_config config = sim_default();

    config.inline_bytes = 0;
    write_sizes(&config, true);
}

static void
read_sizes(bool is_private)
{
    static const uint64_t sizes[] = {0, 1, 8, 4096, 65537, (8 << 20) + 1};
    const struct sim_config config = sim_default();
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct fake_region *region = fake_region(&p.b, sizes[i] + 16);
        uint8_t *private_dst = calloc(1, sizes[i] + 1);
        uint8_t *dst = is_private ? private_dst : fake_region(&p.a, sizes[i] + 1)->addr;
        struct fake_op op;

        CHECK_NOT_NULL(private_dst);
        verbs_pattern(region->addr, sizes[i] + 16, 3);
        fake_read(&op, dst, sizes[i], &region->remote, 16);
        fake_must_start(&p.ab, &op);
        VERBS_PUMP(&p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
        CHECK_MEM_EQ(dst, region->addr + 16, sizes[i]);
        CHECK_INT_EQ(dst[sizes[i]], 0);
        free(private_dst);
    }
    verbs_pair_close(&p);
}

TEST(reads_of_every_size_arrive)
{
    read_sizes(false);
}

TEST(reads_into_private_memory_arrive)
{
    read_sizes(true);
}

/* Blocks small and large, scattered, adjacent and empty, under one notification. */
static void
write_many_blocks(const struct sim_config *config)
{
    enum { COUNT = 700, CAP = 16 << 20 };
    static struct rdt_block blocks[COUNT];
    struct verbs_pair p;
    uint8_t *want = calloc(1, CAP);
    struct fake_op op;
    uint64_t at = 0;

    CHECK_NOT_NULL(want);
    verbs_pair_open(&p, config);
    uint8_t *src = fake_region(&p.a, CAP)->addr;
    verbs_pattern(src, CAP, 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint64_t len = i % 97 == 5 ? 70000 : (i % 7) * 16;
        if (i % 300 == 299)
            len = 5 << 20;
        at += i % 3 == 0 ? 0 : 24;
        blocks[i] =
            (struct rdt_block){.src = src + (i * 977) % 4096, .len_bytes = len, .dst_off = at};
        memcpy(want + at, blocks[i].src, len);
        at += len;
        CHECK(at < CAP);
    }
    struct fake_region *region = fake_region(&p.b, CAP);
    fake_write_many(&op, blocks, COUNT, &region->remote, rdti_notify_user(1));
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    VERBS_PUMP(&p, p.ba.notify_count == 1);
    CHECK_MEM_EQ(region->addr, want, CAP);
    verbs_pair_close(&p);
    free(want);
}

TEST(a_write_of_many_blocks_is_one_message)
{
    const struct sim_config config = sim_default();

    write_many_blocks(&config);
}

TEST(a_write_of_many_blocks_is_one_message_on_three_qps)
{
    struct sim_config config = sim_default();

    config.delay_us = 20;
    set_qps("3");
    write_many_blocks(&config);
}

/* Every notification has its bytes, and they come in the order of write(), whatever the wire does
 * between QPs and however often it tells of one completion. */
static void
check_order(const struct sim_config *config, uint32_t count)
{
    enum { CELL = 4096 };
    struct verbs_pair p;
    struct fake_op *ops = calloc(count, sizeof(*ops));

    CHECK_NOT_NULL(ops);
    verbs_pair_open(&p, config);
    uint8_t *src = fake_region(&p.a, CELL * 64)->addr;
    struct fake_region *region = fake_region(&p.b, CELL * 64);
    verbs_pattern(src, CELL * 64, 5);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t len = i % 5 == 0 ? CELL * 64 : i % 200;
        fake_write(&ops[i], src, len, &region->remote, 0, rdti_notify_user(i & 0x3ffff));
        fake_must_start(&p.ab, &ops[i]);
        if (i % 50 == 0)
            (void)fake_pump(&p.a);
    }
    VERBS_PUMP(&p, p.ba.notify_count == count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_HEX_EQ(p.ba.notifications[i], rdti_notify_user(i & 0x3ffff));
    for (uint32_t i = 0; i < count; i++)
        VERBS_PUMP(&p, fake_op_is_done(&ops[i]));
    CHECK_MEM_EQ(region->addr, src, CELL * 64);
    verbs_pair_close(&p);
    free(ops);
}

TEST_TIMEOUT(notifications_keep_their_order, 60)
{
    const struct sim_config config = sim_default();

    check_order(&config, 3000);
}

TEST_TIMEOUT(notifications_keep_their_order_over_links_and_qps, 60)
{
    struct sim_config config = sim_default();

    for (uint32_t seed = 1; seed <= 3; seed++) {
        config.seed = seed;
        config.device_count = verbs_is_real() ? 1 : 2;
        config.delay_us = 30;
        config.duplicates = 10;
        config.is_scattering = true;
        set_qps(seed == 2 ? "1" : "3");
        check_order(&config, 1000);
    }
}

/* What could go at once waits behind what cannot. */
TEST(a_small_write_does_not_overtake_one_that_waits_for_a_key)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op ops[3];

    verbs_pair_open(&p, &config);
    struct fake_region *known = fake_region(&p.b, 4096);
    struct fake_region *unknown = fake_region(&p.b, 4096);
    fake_write(&ops[0], "12345678", 8, &known->remote, 0, rdti_notify_user(1));
    fake_must_start(&p.ab, &ops[0]);
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]) && p.ba.notify_count == 1);
    fake_write(&ops[1], "abcdefgh", 8, &unknown->remote, 0, rdti_notify_user(2));
    fake_must_start(&p.ab, &ops[1]);
    CHECK_UINT_EQ(ops[1].op.scratch[RDTI_VERBS_OP_STEP], 0);
    fake_write(&ops[2], "87654321", 8, &known->remote, 0, rdti_notify_user(3));
    fake_must_start(&p.ab, &ops[2]);
    CHECK_UINT_EQ(ops[2].op.scratch[RDTI_VERBS_OP_STEP], 0);
    VERBS_PUMP(&p, fake_op_is_done(&ops[2]) && p.ba.notify_count == 3);
    for (uint32_t i = 0; i < 3; i++)
        CHECK_HEX_EQ(p.ba.notifications[i], rdti_notify_user(i + 1));
    CHECK_MEM_EQ(unknown->addr, "abcdefgh", 8);
    CHECK_MEM_EQ(known->addr, "87654321", 8);
    verbs_pair_close(&p);
}

/* A receiver that does not look for a while is no error: its window is not overrun, and the rest
 * waits here. */
TEST(a_receiver_may_be_busy_with_other_things)
{
    enum { COUNT = 5 * RDTI_VERBS_WINDOW };
    const struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 8);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], "12345678", 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    const uint64_t until_ns = test_now_ns() + 50 * UINT64_C(1000000);
    while (test_now_ns() < until_ns)
        (void)fake_pump(&p.a);
    CHECK_INT_EQ(p.ab.error_count, 0);
    CHECK(!p.a.transport->is_idle(p.ab.lane));
    CHECK(!fake_op_is_done(&ops[COUNT - 1]));
    VERBS_PUMP(&p, p.ba.notify_count == COUNT);
    for (uint32_t i = 0; i < COUNT; i++)
        VERBS_PUMP(&p, fake_op_is_done(&ops[i]));
    CHECK(p.a.transport->is_idle(p.ab.lane));
    verbs_pair_close(&p);
}

/* Both ways at once, so that restocking messages and data share queues. */
TEST_TIMEOUT(both_directions_at_once, 60)
{
    enum { COUNT = 4000 };
    struct sim_config config = sim_default();
    static struct fake_op ops[2][COUNT];
    struct verbs_pair p;

    config.queue_depth = 64; /* a device with short queues: windows turn often */
    verbs_pair_open(&p, &config);
    struct fake_region *at_b = fake_region(&p.b, 8);
    struct fake_region *at_a = fake_region(&p.a, 8);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[0][i], &i, 4, &at_b->remote, 0, rdti_notify_user(i));
        fake_write(&ops[1][i], &i, 4, &at_a->remote, 0, rdti_notify_user(i));
        /* the source is on this stack frame: it must have left before it changes */
        fake_must_start(&p.ab, &ops[0][i]);
        fake_must_start(&p.ba, &ops[1][i]);
        if (i % 16 == 15)
            VERBS_PUMP(&p, fake_op_is_done(&ops[0][i]) && fake_op_is_done(&ops[1][i]));
    }
    VERBS_PUMP(&p, p.ab.notify_count == COUNT && p.ba.notify_count == COUNT);
    verbs_pair_close(&p);
}

/* A sleeper is woken by a notification, by a restocked window and by its own completions. */
TEST_TIMEOUT(sleepers_are_woken, 60)
{
    enum { ROUNDS = 200 };
    const struct sim_config config = sim_default();
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 8);
    struct fake_op first;
    fake_write(&first, "abcdefgh", 8, &region->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &first);
    VERBS_PUMP(&p, fake_op_is_done(&first)); /* the key is here: sleepers hear no side channel */
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        const uint64_t deadline_ns = fake_deadline_ns(5);
        struct fake_op op;

        fake_write(&op, "abcdefgh", 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &op);
        /* Only sleeps: 5 s each, so that one lost wake-up is a test that fails. */
        while (p.ba.notify_count < i) {
            (void)fake_pump_or_sleep(&p.b, 5 * UINT64_C(1000000000));
            fake_check_deadline(deadline_ns, __FILE__, __LINE__, "woken by a notification");
        }
        while (!fake_op_is_done(&op)) {
            (void)fake_pump_or_sleep(&p.a, 5 * UINT64_C(1000000000));
            fake_check_deadline(deadline_ns, __FILE__, __LINE__, "woken by a completion");
        }
    }
    verbs_pair_close(&p);
}

TEST(ranges_that_leave_the_region_are_refused)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct rdt_error err;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 100);
    fake_write(&op, "12345678", 8, &region->remote, 93, RDTI_NOTIFY_NONE);
    CHECK_INT_EQ(fake_start(&p.ab, &op, &err), RDT_ERANGE);
    fake_write(&op, "12345678", 8, &region->remote, UINT64_MAX - 3, RDTI_NOTIFY_NONE);
    CHECK_INT_EQ(fake_start(&p.ab, &op, &err), RDT_ERANGE);
    CHECK(p.a.transport->is_idle(p.ab.lane));
    verbs_pair_close(&p);
}

/* A region over memory that is not the arena's has a key of its own, which goes with it. */
TEST(regions_over_other_memory_are_reached_and_forgotten)
{
    static uint8_t memory[10000];
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region_private(&p.b, memory + 100, 8000);
    fake_write(&op, "12345678", 8, &region->remote, 7992, 3);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == 1);
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(memory + 8092, "12345678", 8);
    fake_region_revoke(&p.b, region);
    CHECK(p.a.transport->revoke(p.ab.lane, region->remote.index, region->remote.generation));
    const uint32_t before = verbs_is_real() ? 0 : sim_live_objects();
    CHECK(p.b.transport->forget_region(p.b.state, region->remote.index, region->remote.generation,
                                       NULL, NULL));
    if (!verbs_is_real())
        CHECK_INT_EQ(sim_live_objects(), before - 1);
    struct rdt_error err;
    fake_write(&op, "12345678", 8, &region->remote, 0, 3);
    CHECK_INT_EQ(fake_start(&p.ab, &op, &err), RDT_ESTALE);
    CHECK_STR_CONTAINS(err.message, "freed");
    verbs_pair_close(&p);
}

/* The owner may use the bytes again only when revoke() says that nothing is in flight. */
TEST(revocation_waits_for_what_is_in_flight)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;
    struct fake_op late;

    if (verbs_is_real())
        SKIP("needs the sim");
    config.delay_us = 30000;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 4096);
    uint8_t *src = fake_region(&p.a, 4096)->addr;
    fake_write(&op, src, 4096, &region->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, op.op.scratch[RDTI_VERBS_OP_STEP] == 1); /* the key is here, it is posted */
    fake_region_revoke(&p.b, region);
    const bool was_over =
        p.a.transport->revoke(p.ab.lane, region->remote.index, region->remote.generation);
    CHECK(was_over == fake_op_is_done(&op));
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK(p.a.transport->revoke(p.ab.lane, region->remote.index, region->remote.generation));
    struct rdt_error err;
    fake_write(&late, src, 1, &region->remote, 0, RDTI_NOTIFY_NONE);
    CHECK_INT_EQ(fake_start(&p.ab, &late, &err), RDT_ESTALE);
    verbs_pair_close(&p);
}

/* It has been cut, and waits for a place in the peer's window, when the region's end is heard: the
 * owner may give the bytes to others as soon as that is acknowledged. */
TEST(what_waits_for_the_window_is_refused_after_the_revocation)
{
    const struct sim_config config = sim_default();
    struct fake_op *filling = calloc(RDTI_VERBS_WINDOW, sizeof(*filling));
    struct verbs_pair p;
    struct fake_op late;
    uint32_t sent = 0;

    if (verbs_is_real())
        SKIP("needs the sim");
    CHECK_NOT_NULL(filling);
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 4096);
    struct fake_region *spare = fake_region(&p.b, 4096);
    uint8_t *src = fake_region(&p.a, 4096)->addr;
    memset(src, 0x5a, 4096);
    for (int i = 0; i < 2; i++) { /* so that the keys are here */
        fake_write(&late, "", 1, i == 0 ? &region->remote : &spare->remote, 0, RDTI_NOTIFY_NONE);
        fake_must_start(&p.ab, &late);
        VERBS_PUMP(&p, fake_op_is_done(&late));
    }
    const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)p.ab.lane;
    while (lane->tx_messages < lane->tx_window) { /* nobody looks on the other side */
        if (lane->cursor == NULL) {               /* else one waits for a place in the send queue */
            fake_write(&filling[sent], src, 1, &spare->remote, 0, 3);
            fake_must_start(&p.ab, &filling[sent++]);
        }
        (void)fake_pump(&p.a);
    }
    fake_write(&late, src, 4096, &region->remote, 0, 4);
    fake_must_start(&p.ab, &late);
    CHECK_UINT_GE(late.op.scratch[RDTI_VERBS_OP_STEPS], 1);
    CHECK_UINT_EQ(late.op.scratch[RDTI_VERBS_OP_STEP], 0);
    fake_region_revoke(&p.b, region);
    CHECK(p.a.transport->revoke(p.ab.lane, region->remote.index, region->remote.generation));
    VERBS_PUMP(&p, fake_op_is_done(&late));
    CHECK_INT_EQ(late.status, RDT_ESTALE);
    for (uint32_t i = 0; i < 4096; i++)
        CHECK_UINT_EQ(region->addr[i], 0);
    for (uint32_t i = 0; i < sent; i++)
        VERBS_PUMP(&p, fake_op_is_done(&filling[i]));
    verbs_pair_close(&p);
    free(filling);
}

/* One link's packets do not arrive for a while, and the other's do: what is written behind may be
 * there first, but is not complete, since the first may have to go a second time. */
TEST(no_write_is_complete_before_those_before_it)
{
    enum { LARGE_BYTES = 1 << 20 };
    struct sim_config config = sim_default();
    struct fake_op large, small, read;
    struct verbs_pair p;
    uint8_t into[8];

    if (verbs_is_real())
        SKIP("needs the sim");
    config.device_count = 2;
    config.retry_ns = UINT64_C(30000000000);
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    uint8_t *src = fake_region(&p.a, LARGE_BYTES)->addr;
    fake_write(&small, src, 1, &region->remote, 0, RDTI_NOTIFY_NONE); /* the keys are here then */
    fake_must_start(&p.ab, &small);
    VERBS_PUMP(&p, fake_op_is_done(&small));
    memset(src, 0x5a, LARGE_BYTES);
    sim_cut_device(1, true);
    fake_write(&large, src, LARGE_BYTES, &region->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &large);
    fake_write(&small, "behind", 6, &region->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &small);
    fake_read(&read, into, 6, &region->remote, 0);
    fake_must_start(&p.ab, &read);
    VERBS_PUMP(&p, fake_op_is_done(&read)); /* ordered behind nothing, on the same QP */
    CHECK_MEM_EQ(into, "behind", 6);
    for (int i = 0; i < 1000; i++) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK_MSG(!fake_op_is_done(&large), "a link that is cut delivers");
    CHECK_MSG(!fake_op_is_done(&small), "complete before what was written first");
    sim_cut_device(1, false);
    VERBS_PUMP(&p, fake_op_is_done(&small));
    CHECK(fake_op_is_done(&large));
    CHECK_INT_EQ(large.status, RDT_OK);
    CHECK_INT_EQ(small.status, RDT_OK);
    verbs_pair_close(&p);
}

TEST(lanes_explain_themselves)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[256];

    verbs_pair_open(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "GID");
    CHECK_STR_CONTAINS(text, "notify imm");
    if (!verbs_is_real()) {
        CHECK_STR_CONTAINS(text, "sim0:1 GID 1 ::ffff:10.0.0.1 to ::ffff:10.0.0.1, 1 QPs");
        CHECK_STR_CONTAINS(text, "out of sequence 0");
    }
    verbs_pair_close(&p);
}

TEST_MAIN()
