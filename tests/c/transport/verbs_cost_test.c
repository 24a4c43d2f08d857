/* SPDX-License-Identifier: Apache-2.0
 * What the device is asked for: completions, bytes in requests, protection domains; and what is
 * left to it when lanes end. On the sim, which counts. */
#include "../harness.h"

#include "transport/verbs/lane.h"
#include "verbs_rig.h"
#include "wire/notify.h"

/* ---- What a request costs ------------------------------------------------------------------- */

/* One completion for each chain, whatever it holds. */
TEST(requests_of_a_chain_share_one_completion)
{
    enum { CHAINS = 3, BLOCKS = CHAINS * RDTI_VERBS_CHAIN };
    const struct sim_config config = sim_default();
    struct rdt_block blocks[BLOCKS];
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, BLOCKS * 4096);
    uint8_t *src = fake_region(&p.a, BLOCKS * 4096)->addr;
    verbs_pattern(src, BLOCKS * 4096, 5);
    fake_write(&op, src, 1, &region->remote, 0, 3); /* so that the key is here */
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    for (uint64_t i = 0; i < BLOCKS; i++)
        blocks[i] =
            (struct rdt_block){.src = src + i * 4096, .dst_off = i * 4096, .len_bytes = 4096};
    const struct sim_counts before = sim_counts();
    fake_write_many(&op, blocks, BLOCKS, &region->remote, 4);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    const struct sim_counts after = sim_counts();
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(region->addr, src, BLOCKS * 4096);
    CHECK_UINT_EQ(after.requests - before.requests, BLOCKS);
    CHECK_UINT_EQ(after.signalled - before.signalled, CHAINS);
    CHECK_UINT_EQ(after.inlined - before.inlined, 0);
    verbs_pair_close(&p);
}

/* It says so only when a QP is made. */
TEST(a_device_that_refuses_to_take_so_much_inline_is_asked_for_less)
{
    static const uint32_t has[] = {RDTI_VERBS_INLINE_BYTES / 2, 12, 0};
    static const uint32_t gives[] = {RDTI_VERBS_INLINE_BYTES / 2, 0, 0};

    for (uint32_t i = 0; i < 3; i++) {
        struct sim_config config = sim_default();
        struct verbs_pair p;

        config.inline_bytes = has[i];
        config.is_inline_strict = true;
        verbs_pair_open(&p, &config);
        CHECK_UINT_EQ(((const struct rdti_verbs_lane *)p.ab.lane)->inline_bytes, gives[i]);
        verbs_write_and_check(&p, 8, false);
        verbs_write_and_check(&p, 3 << 20, false);
        verbs_pair_close(&p);
    }
}

/* No memory is looked at for them: small bytes travel in the request, and what restocks a window
 * has none. */
TEST(small_messages_go_inline_and_credits_have_no_bytes)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 4096);
    uint8_t *src = fake_region(&p.a, 4096)->addr;
    fake_write(&op, src, RDTI_VERBS_INLINE_BYTES + 1, &region->remote, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == 1);
    const struct sim_counts before = sim_counts();
    CHECK_UINT_EQ(before.inlined, 0); /* one byte too long */
    for (uint32_t i = 1; i < RDTI_VERBS_WINDOW / 2; i++) {
        fake_write(&op, src, i % RDTI_VERBS_INLINE_BYTES + 1, &region->remote, 0,
                   rdti_notify_user(i));
        fake_must_start(&p.ab, &op);
        VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == i + 1);
    }
    const struct sim_counts after = sim_counts();
    CHECK_UINT_EQ(after.inlined - before.inlined, RDTI_VERBS_WINDOW / 2 - 1);
    CHECK_UINT_EQ(after.bare - before.bare, 1); /* half a window is told of at once */
    CHECK_UINT_EQ(after.requests - before.requests, RDTI_VERBS_WINDOW / 2);
    verbs_pair_close(&p);
}

/* The sender takes all room that it knows of, and only then the receiver looks once. */
static void
fill_and_look(struct verbs_pair *p)
{
    uint64_t before;

    do {
        before = sim_executed();
        (void)fake_pump(&p->a);
        test_sleep_ns(100000);
    } while (sim_executed() != before);
    (void)fake_pump(&p->b);
}

/* Receives stand before the sender hears of room for them. The first messages leave a batch of
 * receives that is not whole, and so not posted again yet when the first half window is told of. */
TEST(no_message_finds_the_receive_queue_empty)
{
    enum { FIRST = 27, COUNT = 4 * RDTI_VERBS_WINDOW };
    const struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 8);
    uint8_t *src = fake_region(&p.a, 8)->addr;
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], src, 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
        if (i + 1 == FIRST)
            VERBS_PUMP(&p, p.ba.notify_count == FIRST);
    }
    const uint64_t deadline_ns = fake_deadline_ns(10);
    while (p.ba.notify_count < COUNT) {
        fill_and_look(&p);
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "all have come");
    }
    CHECK_UINT_EQ(sim_counts().starved, 0);
    verbs_pair_close(&p);
}

static void
check_pds(const struct fake_link *link)
{
    const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)link->lane;

    CHECK_UINT_EQ(lane->link_count, 2);
    for (uint32_t i = 0; i < lane->link_count; i++)
        for (uint32_t q = 0; q < lane->links[i].qp_count; q++)
            CHECK_PTR_EQ(lane->links[i].qps[q]->qp->pd, lane->links[i].nic->pd);
}

/* So that a key given to one peer is of no use but on QPs of the same context, whatever else the
 * process does with the device. */
TEST(each_port_of_a_context_has_one_protection_domain)
{
    struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;

    config.device_count = 2;
    verbs_pair_open(&p, &config);
    CHECK_UINT_EQ(sim_live_pds(), 4); /* two contexts */
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    verbs_write_and_check(&p, 3 << 20, true);
    CHECK_UINT_EQ(sim_live_pds(), 4);
    check_pds(&p.ab);
    check_pds(&p.ba);
    check_pds(&ab2);
    check_pds(&ba2);
    const struct rdti_verbs *a = p.a.state;
    const struct rdti_verbs *b = p.b.state;
    CHECK(a->nics[0].pd != a->nics[1].pd && a->nics[0].pd != b->nics[0].pd);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

/* ---- Ending --------------------------------------------------------------------------------- */

/* ERR first, so that all that was posted comes back, and is taken before the QPs go. */
TEST(a_lane_that_closes_is_stopped_and_drained)
{
    enum { COUNT = 100 };
    struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;

    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", "2", 1), 0);
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    struct fake_region *region = fake_region(&p.b, 8);
    uint8_t *src = fake_region(&p.a, 8)->addr;
    fake_write(&ops[0], src, 8, &region->remote, 0, 1);
    fake_must_start(&p.ab, &ops[0]); /* so that the key is here */
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]));
    sim_cut_device(0, true); /* nothing posted from here on is over before the lane closes */
    const struct sim_counts before = sim_counts();
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], src, 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    CHECK_UINT_EQ(sim_counts().requests - before.requests, 2 * COUNT); /* one on each QP */
    fake_link_close(&p.ab, RDT_ECLOSED);
    const struct sim_counts after = sim_counts();
    CHECK_UINT_EQ(after.stopped - before.stopped, 2);
    CHECK_UINT_EQ(after.running, 0);
    CHECK_UINT_EQ(after.untaken, 0);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK(fake_op_is_done(&ops[i]) && ops[i].status == RDT_ECLOSED);
    fake_link_close(&p.ba, RDT_ECLOSED);
    CHECK_UINT_EQ(sim_counts().running, 0);
    fake_link_free(&p.ab);
    fake_link_free(&p.ba);
    fake_host_close(&p.a);
    fake_host_close(&p.b);
    sim_end();
}

TEST_MAIN()
