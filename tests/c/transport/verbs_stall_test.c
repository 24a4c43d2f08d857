/* SPDX-License-Identifier: Apache-2.0
 * A process that stands still while a link breaks: its deadlines pass before it has looked at what
 * was there in time. On the sim. */
#include "../harness.h"

#include "base/error.h"
#include "transport/verbs/down.h"
#include "verbs_rig.h"
#include "wire/notify.h"

enum { COUNT = 6 * RDTI_VERBS_WCS };

static struct verbs_pair p;
static struct fake_op ops[COUNT];
static uint64_t told; /* by a */
static bool is_fenced;

/* A pass does not see to all of them: COUNT messages to a, which stand in its CQ. */
static void
begin(uint32_t device_count)
{
    struct sim_config config = sim_default();

    config.device_count = device_count;
    is_fenced = false;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.a, 8);
    fake_write(&ops[0], "12345678", 8, &region->remote, 0, 1); /* so that the key is here */
    fake_must_start(&p.ba, &ops[0]);
    VERBS_PUMP(&p, fake_op_is_done(&ops[0]) && p.ab.notify_count == 1);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], "12345678", 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ba, &ops[i]);
    }
    FAKE_PUMP_UNTIL(&p.b, NULL, fake_op_is_done(&ops[COUNT - 1]), 10);
    CHECK_UINT_EQ(p.ab.notify_count, 1);
}

static void
break_link(uint32_t index)
{
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
    struct rdt_error err;

    (void)rdti_error_set(&err, RDT_EDEVICE, 0, "a QP event");
    CHECK_INT_EQ(pthread_mutex_lock(&p.a.engine), 0);
    rdti_verbs_break_link(&lane->links[index], &err);
    for (uint32_t i = 0; i < lane->link_count; i++)
        if (lane->links[i].state == RDTI_VERBS_LINK_DRAINING)
            lane->links[i].down_deadline_ns = test_now_ns(); /* it stood still since */
    CHECK_INT_EQ(pthread_mutex_unlock(&p.a.engine), 0);
}

TEST(what_came_before_a_stall_is_told_to_the_peer)
{
    begin(2);
    break_link(0);
    VERBS_PUMP(&p, p.ab.notify_count == 1 + COUNT);
    verbs_write_and_check(&p, 3 << 20, false); /* the other link carries on */
    CHECK_UINT_EQ(p.ab.error_count + p.ba.error_count, 0);
    verbs_pair_close(&p);
}

/* The last that comes, where the other link's part was there before: nothing else moves us. */
TEST(what_came_before_a_stall_is_delivered_without_another_word)
{
    begin(2);
    struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
    CHECK_INT_EQ(pthread_mutex_lock(&p.a.engine), 0);
    while (rdti_verbs_poll_link(&lane->links[1]) > 0)
        ;
    CHECK_INT_EQ(pthread_mutex_unlock(&p.a.engine), 0);
    CHECK_UINT_EQ(p.ab.notify_count, 1);
    break_link(0);
    FAKE_PUMP_UNTIL(&p.a, NULL, p.ab.notify_count == 1 + COUNT, 10);
    CHECK_UINT_EQ(p.ab.error_count, 0);
    verbs_pair_close(&p);
}

static bool
may_move(void *core, const struct rdti_lane *lane)
{
    (void)core;
    (void)lane;
    return true;
}

static void
on_fenced(void *core, struct rdti_lane *lane, uint64_t delivered, const struct rdt_error *why)
{
    (void)core;
    (void)lane;
    (void)why;
    told = delivered;
    is_fenced = true;
}

TEST(what_came_before_a_stall_is_delivered_by_a_lane_that_is_lost)
{
    begin(1);
    p.a.host.may_move = may_move;
    p.a.host.on_fenced = on_fenced;
    break_link(0);
    FAKE_PUMP_UNTIL(&p.a, NULL, is_fenced, 10);
    CHECK_UINT_EQ(told, 1 + COUNT);
    CHECK_UINT_EQ(p.ab.notify_count, 1 + COUNT);
    CHECK_UINT_EQ(p.ab.error_count, 0);
    verbs_pair_close(&p);
}

/* The peer has answered long ago, and the answer is not read yet. */
TEST(an_answer_that_came_before_a_stall_is_read)
{
    begin(2);
    break_link(0);
    struct rdti_verbs_link *link = &((struct rdti_verbs_lane *)p.ab.lane)->links[0];
    FAKE_PUMP_UNTIL(&p.a, NULL, link->state == RDTI_VERBS_LINK_TOLD, 10);
    link->down_deadline_ns = test_now_ns();
    CHECK_INT_EQ(pthread_mutex_lock(&p.a.engine), 0);
    rdti_verbs_watch_links((struct rdti_verbs_lane *)p.ab.lane);
    CHECK_INT_EQ(pthread_mutex_unlock(&p.a.engine), 0);
    VERBS_PUMP(&p, p.ab.notify_count == 1 + COUNT && link->state == RDTI_VERBS_LINK_IS_DOWN);
    CHECK_UINT_EQ(p.ab.error_count + p.ba.error_count, 0);
    verbs_pair_close(&p);
}

TEST_MAIN()
