/* SPDX-License-Identifier: Apache-2.0
 * Memory that takes long to register: others go on meanwhile, and nothing is lost, whatever ends
 * before it. On the sim, which holds such registrations back. */
#include "../harness.h"

#include "base/error.h"
#include "verbs_large_rig.h"

TEST(others_move_while_a_target_is_registered)
{
    const struct sim_config config = sim_default();
    uint8_t *memory = map_large();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    hold_target(&p, fake_region_private(&p.b, memory, LARGE_BYTES), &op);
    check_others_move(&p);
    CHECK(!fake_op_is_done(&op));
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == 1);
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(memory + LARGE_BYTES - 8, "12345678", 8);
    verbs_pair_close(&p);
    unmap_large(memory);
}

TEST(others_move_while_a_source_is_registered)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op ops[2];

    verbs_pair_open(&p, &config);
    struct fake_region *source = fake_region(&p.b, LARGE_BYTES);
    struct fake_region *target = fake_region(&p.a, 1 << 20);
    verbs_pattern(source->addr, 1 << 20, 5);
    sim_hold_mrs(LARGE_BYTES);
    for (uint32_t i = 0; i < 2; i++) {
        fake_write(&ops[i], source->addr, 1 << 20, &target->remote, 0, i);
        fake_must_start(&p.ba, &ops[i]);
    }
    VERBS_PUMP(&p, sim_held_mrs() == 1);
    verbs_write_and_check(&p, 100000, false); /* a to b */
    CHECK(!fake_op_is_done(&ops[0]));
    CHECK_UINT_EQ(p.ab.notify_count, 0); /* nor is an order broken */
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&ops[1]) && p.ab.notify_count == 2);
    for (int i = 0; i < 2; i++)
        CHECK_INT_EQ(ops[i].status, RDT_OK);
    CHECK_MEM_EQ(target->addr, source->addr, 1 << 20);
    CHECK_UINT_EQ(p.b.counters.copied_bytes[RDTI_TRAFFIC_PLANNED], 0);
    verbs_pair_close(&p);
}

/* One piece for writing, for reading, and as a source, wanted at once. */
TEST(one_piece_may_be_wanted_for_several_things)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op ops[3];

    verbs_pair_open(&p, &config);
    struct fake_region *large = fake_region(&p.b, LARGE_BYTES);
    struct fake_region *second = fake_region_in(&p.b, large->remote.segment, 4096, 4096);
    uint8_t *own = fake_region(&p.a, 4096)->addr;
    memcpy(large->addr + 1000, "abcdefgh", 8);
    sim_hold_mrs(LARGE_BYTES);
    fake_write(&ops[0], "12345678", 8, &large->remote, 0, 1);
    fake_read(&ops[1], own, 8, &second->remote, 0);
    fake_write(&ops[2], large->addr + 1000, 1000, &fake_region(&p.a, 4096)->remote, 0, 2);
    fake_must_start(&p.ba, &ops[2]);
    fake_must_start(&p.ab, &ops[0]);
    fake_must_start(&p.ab, &ops[1]); /* asks for its key when the write has gone */
    VERBS_PUMP(&p, sim_held_mrs() == 1);
    pump_a_little(&p);
    CHECK_UINT_EQ(sim_held_mrs(), 1);
    sim_hold_mrs(0);
    for (int i = 0; i < 3; i++) {
        VERBS_PUMP(&p, fake_op_is_done(&ops[i]));
        CHECK_INT_EQ(ops[i].status, RDT_OK);
    }
    CHECK_MEM_EQ(large->addr, "12345678", 8);
    verbs_pair_close(&p);
}

/* ---- Failures ------------------------------------------------------------------------------- */

TEST(a_target_that_cannot_be_registered_is_said_later)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_limit_memlock(8 << 20);
    config.memlock_bytes = 8 << 20;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    hold_target(&p, region, &op);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_ENOMEM);
    CHECK_STR_CONTAINS(op.error.message, "rank 1 cannot register the 68161536 bytes");
    CHECK_STR_CONTAINS(op.error.message, "RLIMIT_MEMLOCK is 8388608");
    CHECK_STR_CONTAINS(op.error.message, "limits.conf");
    verbs_write_and_check(&p, 1000, false); /* the lane stands */
    verbs_pair_close(&p);
}

TEST(a_device_that_refuses_is_said_later_and_asked_again)
{
    const struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    sim_fail_named("reg_mr", 0, 1, EFAULT);
    hold_target(&p, region, &op);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_EDEVICE);
    CHECK_INT_EQ(op.error.sys_errno, EFAULT);
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL); /* another peer, another try */
    fake_write(&op, "12345678", 8, &region->remote, 0, 7);
    fake_must_start(&ab2, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

TEST(a_large_source_that_cannot_be_registered_is_copied_and_said)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[1024];
    struct fake_op op;

    verbs_limit_memlock(8 << 20);
    config.memlock_bytes = 8 << 20;
    verbs_pair_open(&p, &config);
    struct fake_region *target = fake_region(&p.b, 1 << 20);
    uint8_t *source = fake_region(&p.a, LARGE_BYTES)->addr;
    verbs_pattern(source, 1 << 20, 4);
    for (int i = 0; i < 3; i++) {
        fake_write(&op, source, 1 << 20, &target->remote, 0, 1);
        fake_must_start(&p.ab, &op);
        VERBS_PUMP(&p, fake_op_is_done(&op));
        CHECK_INT_EQ(op.status, RDT_OK);
    }
    CHECK_MEM_EQ(target->addr, source, 1 << 20);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "3 sends copied: 68161536 bytes cannot be locked");
    verbs_pair_close(&p);
}

/* A small write from b into a piece of a's, which has its key then. */
static struct fake_region *
known_target(struct verbs_pair *p)
{
    struct fake_region *target = fake_region(&p->a, 1 << 20);
    struct fake_op op;

    fake_write(&op, "12345678", 8, &target->remote, 0, 1);
    fake_must_start(&p->ba, &op);
    VERBS_PUMP(p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    return target;
}

static void
check_copied(struct verbs_pair *p, uint32_t count)
{
    char text[1024];
    char expected[64];

    p->b.transport->explain(p->ba.lane, text, sizeof(text));
    (void)snprintf(expected, sizeof(expected), "%u sends copied: ibv_reg_mr", count);
    CHECK_STR_CONTAINS(text, expected);
}

/* Pinning gigabytes once more would end no better. */
TEST(a_registration_for_a_peer_that_fails_fails_for_our_own_ops_too)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op ops[2];

    verbs_pair_open(&p, &config);
    struct fake_region *target = known_target(&p);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    verbs_pattern(region->addr, 1 << 20, 6);
    hold_target(&p, region, &ops[0]);
    fake_write(&ops[1], region->addr, 1 << 20, &target->remote, 0, 2);
    fake_must_start(&p.ba, &ops[1]);
    pump_a_little(&p);
    CHECK(!fake_op_is_done(&ops[1]));
    sim_fail_named("reg_mr", 0, 1, EFAULT);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]) && fake_op_is_done(&ops[1]));
    CHECK_INT_EQ(ops[0].status, RDT_EDEVICE);
    CHECK_INT_EQ(ops[1].status, RDT_OK);
    CHECK_MEM_EQ(target->addr, region->addr, 1 << 20);
    check_copied(&p, 1);
    verbs_pair_close(&p);
}

/* Peers that ask for what fails, again and again, would keep our ops waiting for ever. */
TEST(our_own_ops_do_not_wait_for_whatever_peers_ask_next)
{
    const struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    struct fake_op ops[4];

    verbs_pair_open(&p, &config);
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    struct fake_region *target = known_target(&p);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    sim_hold_mrs(LARGE_BYTES);
    fake_read(&ops[0], fake_region(&p.a, 4096)->addr, 8, &region->remote, 0);
    fake_must_start(&p.ab, &ops[0]);
    VERBS_PUMP(&p, sim_held_mrs() == 1);
    fake_write(&ops[1], "12345678", 8, &region->remote, 0, 7);
    fake_must_start(&ab2, &ops[1]);
    fake_write(&ops[2], region->addr, 1 << 20, &target->remote, 0, 2);
    fake_must_start(&p.ba, &ops[2]);
    pump_a_little(&p);
    sim_fail_named("reg_mr", 0, 1, EFAULT);
    sim_let_mr();
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]) && fake_op_is_done(&ops[2]));
    CHECK_INT_EQ(ops[0].status, RDT_EDEVICE);
    CHECK_INT_EQ(ops[2].status, RDT_OK);
    fake_write(&ops[3], region->addr, 1 << 20, &target->remote, 0, 2); /* nor does the next */
    fake_must_start(&p.ba, &ops[3]);
    VERBS_PUMP(&p, fake_op_is_done(&ops[3]));
    CHECK_INT_EQ(ops[3].status, RDT_OK);
    check_copied(&p, 2);
    CHECK(!fake_op_is_done(&ops[1]));
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&ops[1]));
    CHECK_INT_EQ(ops[1].status, RDT_OK);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

/* The others do without it. */
TEST(a_device_that_goes_meanwhile_is_left_out)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    config.device_count = 2;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    hold_target(&p, region, &op);
    sim_remove_device(1);
    pump_a_little(&p);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(region->addr + LARGE_BYTES - 8, "12345678", 8);
    verbs_pair_close(&p);
}

/* What is remembered of a peer's requests is bounded: one who asks again has not waited. */
TEST(a_peer_that_asks_twice_breaks_the_protocol)
{
    const struct sim_config config = sim_default();
    uint8_t bytes[RDTI_LANE_WORDS_MAX_BYTES];
    struct rdt_error err = {0};
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, LARGE_BYTES);
    hold_target(&p, region, &op);
    struct rdti_verbs_words get = {.kind = RDTI_VERBS_KEY_GET,
                                   .access = RDTI_VERBS_MAY_READ,
                                   .segment = region->remote.segment,
                                   .index = region->remote.index,
                                   .generation = region->remote.generation};
    uint32_t len = (uint32_t)rdti_verbs_words_encode(&get, bytes);
    CHECK_OK(p.b.transport->words_arrived(p.ba.lane, bytes, len, &err), &err);
    get.access = RDTI_VERBS_MAY_WRITE;
    len = (uint32_t)rdti_verbs_words_encode(&get, bytes);
    CHECK_INT_EQ(p.b.transport->words_arrived(p.ba.lane, bytes, len, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "asks twice");
    sim_hold_mrs(0);
    verbs_pair_close(&p); /* whatever is left of it */
}

TEST_MAIN()
