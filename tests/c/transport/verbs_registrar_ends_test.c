/* SPDX-License-Identifier: Apache-2.0
 * How memory that takes long to register ends: with it, before its turn, behind others; and what is
 * counted of it. */
#include "../harness.h"

#include <pthread.h>
#include <stdatomic.h>

#include "verbs_large_rig.h"

struct ended {
    _Atomic uint32_t count; /* release by the registrar, acquire here */
    uint8_t *memory;        /* unmapped then, or NULL */
};

static void
on_ended(void *arg)
{
    struct ended *ended = arg;

    if (ended->memory != NULL)
        unmap_large(ended->memory);
    (void)atomic_fetch_add_explicit(&ended->count, 1, memory_order_release);
}

static uint32_t
ended_count(const struct ended *ended)
{
    return atomic_load_explicit(&ended->count, memory_order_acquire);
}

/* True: nothing was to be waited for. */
static bool
forget(struct verbs_pair *p, struct fake_region *region, struct ended *ended)
{
    fake_region_revoke(&p->b, region);
    return p->b.transport->forget_region(p->b.state, region->remote.index,
                                         region->remote.generation, on_ended, ended);
}

/* ---- Counters ------------------------------------------------------------------------------- */

TEST(registering_is_counted_in_bytes_and_time)
{
    const struct sim_config config = sim_default();
    struct ended ended = {.memory = map_large()};
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 1000, false);
    CHECK_UINT_EQ(p.b.counters.registered_bytes, 4096); /* the piece that it went to */
    const uint64_t before_ns = p.b.counters.registration_ns;
    struct fake_region *region = fake_region_private(&p.b, ended.memory, LARGE_BYTES);
    hold_target(&p, region, &op);
    test_sleep_ns(50000000);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_UINT_EQ(p.b.counters.registered_bytes, 4096 + LARGE_BYTES);
    CHECK_UINT_GE(p.b.counters.registration_ns - before_ns, 50000000);
    const uint64_t registered_ns = p.b.counters.registration_ns;
    sim_hold_mrs(LARGE_BYTES);
    CHECK(!forget(&p, region, &ended));
    VERBS_PUMP(&p, sim_held_mrs() == 1);
    test_sleep_ns(50000000);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, ended_count(&ended) == 1);
    CHECK_UINT_EQ(p.b.counters.registered_bytes, 4096 + LARGE_BYTES);
    CHECK_UINT_GE(p.b.counters.registration_ns - registered_ns, 50000000);
    verbs_pair_close(&p);
}

TEST(a_registration_that_fails_takes_time_and_no_bytes)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    sim_fail_named("reg_mr", 0, 1, EFAULT);
    hold_target(&p, fake_region(&p.b, LARGE_BYTES), &op);
    test_sleep_ns(20000000);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_EDEVICE);
    CHECK_UINT_EQ(p.b.counters.registered_bytes, 0);
    CHECK_UINT_GE(p.b.counters.registration_ns, 20000000);
    verbs_pair_close(&p);
}

TEST(what_one_device_registers_and_another_refuses_is_not_counted)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    config.device_count = 2;
    verbs_pair_open(&p, &config);
    const uint64_t before = p.b.counters.registered_bytes;
    sim_fail_named("reg_mr", 1, 1, EFAULT);
    hold_target(&p, fake_region(&p.b, LARGE_BYTES), &op);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_EDEVICE);
    CHECK_UINT_EQ(p.b.counters.registered_bytes, before);
    verbs_pair_close(&p);
}

/* ---- Ends ----------------------------------------------------------------------------------- */

TEST(a_region_that_ends_meanwhile_is_given_back_behind_it)
{
    const struct sim_config config = sim_default();
    struct ended ended = {.memory = map_large()};
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    const uint32_t before = sim_live_objects();
    struct fake_region *region = fake_region_private(&p.b, ended.memory, LARGE_BYTES);
    hold_target(&p, region, &op);
    CHECK(p.a.transport->revoke(p.ab.lane, region->remote.index, region->remote.generation));
    CHECK(!forget(&p, region, &ended));
    pump_a_little(&p);
    CHECK_UINT_EQ(ended_count(&ended), 0); /* the device is still at it */
    sim_hold_mrs(0);
    VERBS_PUMP(&p, ended_count(&ended) == 1 && fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_ESTALE);
    CHECK_INT_EQ(sim_live_objects(), before);
    CHECK_UINT_EQ(p.ba.notify_count, 0);
    verbs_write_and_check(&p, 1000, false);
    verbs_pair_close(&p);
}

/* It waits behind another one, and is not even begun. */
TEST(a_region_that_ends_before_its_turn_is_not_registered)
{
    const struct sim_config config = sim_default();
    struct ended ended = {.memory = map_large()};
    uint8_t *first = map_large();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    struct fake_op ops[2];

    verbs_pair_open(&p, &config);
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    hold_target(&p, fake_region_private(&p.b, first, LARGE_BYTES), &ops[0]);
    struct fake_region *second = fake_region_private(&p.b, ended.memory, LARGE_BYTES);
    fake_write(&ops[1], "12345678", 8, &second->remote, 0, 1);
    fake_must_start(&ab2, &ops[1]);
    pump_a_little(&p);
    CHECK(!forget(&p, second, &ended));
    sim_fail_named("reg_mr", 1, UINT32_MAX, EFAULT); /* behind the first, which is under way */
    sim_hold_mrs(0);
    VERBS_PUMP(&p, ended_count(&ended) == 1 && fake_op_is_done(&ops[0]));
    VERBS_PUMP(&p, fake_op_is_done(&ops[1]));
    CHECK_INT_EQ(ops[0].status, RDT_OK);
    CHECK_INT_EQ(ops[1].status, RDT_ESTALE);
    CHECK_NULL(sim_failed_call());
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
    unmap_large(first);
}

/* Somebody may wait for it who has no interest in the others. */
TEST(a_region_ends_before_others_are_registered)
{
    const struct sim_config config = sim_default();
    struct ended ended = {.memory = map_large()};
    uint8_t *others[2] = {map_large(), map_large()};
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    struct fake_op ops[3];

    verbs_pair_open(&p, &config);
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    struct fake_region *first = fake_region_private(&p.b, ended.memory, LARGE_BYTES);
    fake_write(&ops[0], "12345678", 8, &first->remote, 0, 7);
    fake_must_start(&p.ab, &ops[0]);
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]));
    hold_target(&p, fake_region_private(&p.b, others[0], LARGE_BYTES), &ops[1]);
    fake_write(&ops[2], "12345678", 8, &fake_region_private(&p.b, others[1], LARGE_BYTES)->remote,
               0, 1);
    fake_must_start(&ab2, &ops[2]);
    pump_a_little(&p);
    CHECK(!forget(&p, first, &ended));
    for (int i = 0; i < 2; i++) {
        sim_let_mr();
        VERBS_PUMP(&p, i == 0 ? fake_op_is_done(&ops[1]) : ended_count(&ended) == 1);
    }
    CHECK(!fake_op_is_done(&ops[2]));
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&ops[2]));
    for (int i = 0; i < 3; i++)
        CHECK_INT_EQ(ops[i].status, RDT_OK);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
    for (int i = 0; i < 2; i++)
        unmap_large(others[i]);
}

TEST(others_move_while_a_region_is_deregistered)
{
    const struct sim_config config = sim_default();
    struct ended ended = {.memory = map_large()};
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region_private(&p.b, ended.memory, LARGE_BYTES);
    fake_write(&op, "12345678", 8, &region->remote, 0, 7);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    sim_hold_mrs(LARGE_BYTES);
    CHECK(!forget(&p, region, &ended));
    check_others_move(&p);
    CHECK_UINT_EQ(ended_count(&ended), 0);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, ended_count(&ended) == 1);
    verbs_pair_close(&p);
}

/* The peer is dead, or closes: its op ends at once, and nobody answers it. */
TEST(a_lane_may_end_meanwhile)
{
    const struct sim_config config = sim_default();
    uint8_t *memory = map_large();
    struct verbs_pair p;
    struct fake_op ops[2];

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region_private(&p.b, memory, LARGE_BYTES);
    uint8_t *source = fake_region(&p.a, LARGE_BYTES)->addr;
    hold_target(&p, region, &ops[0]);
    fake_write(&ops[1], source, 1 << 20, &fake_region(&p.b, 1 << 20)->remote, 0, 2);
    fake_must_start(&p.ab, &ops[1]);
    fake_disconnect(&p.ab, &p.ba);
    for (int i = 0; i < 2; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        CHECK_INT_EQ(ops[i].status, RDT_ECLOSED);
    }
    CHECK_UINT_EQ(sim_held_mrs(), 1);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL); /* its next life finds what was made */
    fake_write(&ops[0], "abcdefgh", 8, &region->remote, 0, 3);
    fake_must_start(&p.ab, &ops[0]);
    pump_a_little(&p);
    sim_hold_mrs(0);
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]));
    CHECK_INT_EQ(ops[0].status, RDT_OK);
    CHECK_MEM_EQ(memory, "abcdefgh", 8);
    verbs_pair_close(&p);
    unmap_large(memory);
}

static void *
release_soon(void *arg)
{
    const struct timespec a_while = {.tv_nsec = 200000000};

    (void)nanosleep(&a_while, NULL);
    *(_Atomic bool *)arg = true;
    sim_hold_mrs(0);
    return NULL;
}

/* Closing waits for what is under way, drops what waits, and ends what ends. */
TEST(closing_meanwhile_leaves_nothing)
{
    const struct sim_config config = sim_default();
    struct ended ended = {.memory = map_large()};
    _Atomic bool is_released = false;
    struct verbs_pair p;
    struct fake_op ops[2];
    pthread_t thread;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region_private(&p.b, ended.memory, LARGE_BYTES);
    hold_target(&p, region, &ops[0]);
    fake_write(&ops[1], fake_region(&p.b, LARGE_BYTES)->addr, 1 << 20,
               &fake_region(&p.a, 1 << 20)->remote, 0, 2);
    fake_must_start(&p.ba, &ops[1]);
    pump_a_little(&p);
    fake_disconnect(&p.ab, &p.ba);
    CHECK(!forget(&p, region, &ended));
    CHECK_INT_EQ(pthread_create(&thread, NULL, release_soon, &is_released), 0);
    fake_host_close(&p.b);
    CHECK(is_released);
    CHECK_UINT_EQ(ended_count(&ended), 1);
    CHECK_INT_EQ(pthread_join(thread, NULL), 0);
    fake_host_close(&p.a);
    verbs_end();
}

TEST_MAIN()
