/* SPDX-License-Identifier: Apache-2.0
 * A lane whose way is lost, and which may be handed over: what it gives back by the peer's count of
 * notifications, where it may not be. On the sim; tests/c/core/failover_test.c does it for real. */
#include "../harness.h"

#include "base/error.h"
#include "verbs_rig.h"
#include "wire/notify.h"

enum { OPS = 6, TAKEN_MAX = 16 };

struct taken {
    struct rdti_op *op;
    uint32_t notify;
};

static struct verbs_pair p;
static bool is_allowed;
static uint32_t fenced_count;
static uint64_t told[2]; /* by a, by b */
static struct taken taken[TAKEN_MAX];
static uint32_t taken_count;

static bool
may_move(void *core, const struct rdti_lane *lane)
{
    (void)core;
    (void)lane;
    return is_allowed;
}

static void
on_fenced(void *core, struct rdti_lane *lane, uint64_t delivered, const struct rdt_error *why)
{
    (void)lane;
    CHECK(why->message[0] != '\0');
    fenced_count++;
    told[core == &p.b] = delivered;
}

static void
take(void *arg, struct rdti_op *op, uint32_t notify)
{
    CHECK(arg == taken);
    CHECK(taken_count < TAKEN_MAX);
    taken[taken_count++] = (struct taken){.op = op, .notify = notify};
}

static void
watch(bool allowed)
{
    is_allowed = allowed;
    fenced_count = 0;
    taken_count = 0;
    p.a.host.may_move = p.b.host.may_move = may_move;
    p.a.host.on_fenced = p.b.host.on_fenced = on_fenced;
}

static void
begin(bool allowed)
{
    struct sim_config config = sim_default();

    config.retry_ns = 500000;
    verbs_pair_open(&p, &config);
    watch(allowed);
}

/* So many messages from a to b, complete and delivered. */
static void
send_messages(struct fake_op *ops, uint32_t count)
{
    static const uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct fake_region *region = fake_region(&p.b, 64);
    const uint32_t before = p.ba.notify_count;

    for (uint32_t i = 0; i < count; i++) {
        fake_write(&ops[i], bytes, sizeof(bytes), &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    VERBS_PUMP(&p, p.ba.notify_count == before + count && fake_op_is_done(&ops[count - 1]));
}

static rdt_status
hand_over(uint64_t delivered, struct rdt_error *err)
{
    return p.ab.lane->transport->hand_over(p.ab.lane, delivered, take, taken, err);
}

static void
fence(struct fake_link *link)
{
    struct rdt_error why;

    (void)rdti_error_set(&why, RDT_EPEER, 0, "the peer says so");
    CHECK(link->lane->transport->fence(link->lane, &why));
}

/* Ops of which all was acknowledged and the notification lost, which takes two links to happen: it
 * alone goes again, as the first. */
TEST(notifications_that_were_not_delivered_come_first_and_in_order)
{
    struct fake_op ops[OPS], later, read;
    struct rdt_error err;
    uint8_t into[8];

    begin(true);
    send_messages(ops, OPS);
    struct fake_region *region = fake_region(&p.b, 64);
    fence(&p.ab);
    fake_read(&read, into, sizeof(into), &region->remote, 0);
    fake_must_start(&p.ab, &read);
    fake_write(&later, "x", 1, &region->remote, 0, rdti_notify_user(77));
    fake_must_start(&p.ab, &later); /* it is queued */
    fence(&p.ba);
    VERBS_PUMP(&p, fenced_count == 2);
    CHECK_UINT_EQ(told[0], 0);
    CHECK_UINT_EQ(told[1], OPS);
    CHECK_STATUS(hand_over(OPS + 1, &err), RDT_EPROTO); /* more than were sent */
    /* With one link nothing explains that they are acknowledged. */
    CHECK_STATUS(hand_over(OPS - 2, &err), RDT_EDEVICE);
    CHECK_UINT_EQ(taken_count, 0);
    ((struct rdti_verbs_lane *)p.ab.lane)->had_broken = true;
    CHECK_OK(hand_over(OPS - 2, &err), &err);
    CHECK_UINT_EQ(taken_count, 4);
    CHECK_HEX_EQ(taken[0].notify, rdti_notify_user(OPS - 2));
    CHECK_HEX_EQ(taken[1].notify, rdti_notify_user(OPS - 1));
    CHECK(taken[0].op == NULL && taken[1].op == NULL);
    CHECK(taken[2].op == &read.op && taken[3].op == &later.op);
    CHECK(!fake_op_is_done(&later) && !fake_op_is_done(&read));
    CHECK(p.ab.lane->transport->is_idle(p.ab.lane)); /* they are another's now */
    CHECK_UINT_EQ(p.ab.error_count + p.ba.error_count, 0);
    (void)rdti_error_set(&err, RDT_ECLOSED, 0, "over");
    later.op.complete(&later.op, RDT_ECLOSED, &err);
    read.op.complete(&read.op, RDT_ECLOSED, &err);
    verbs_pair_close(&p);
}

/* A link that never was in use took no notification along. */
TEST(a_link_that_was_left_out_explains_nothing_that_is_missing)
{
    struct sim_config config = sim_default();
    struct fake_op ops[OPS];
    struct rdt_error err;

    config.device_count = 2;
    config.retry_ns = 500000;
    sim_begin(&config);
    sim_cut_device(0, true);
    verbs_pair_open_on(&p);
    watch(true);
    send_messages(ops, OPS);
    CHECK_INT_EQ(((struct rdti_verbs_lane *)p.ab.lane)->link_count, 2);
    fence(&p.ab);
    fence(&p.ba);
    VERBS_PUMP(&p, fenced_count == 2);
    CHECK_STATUS(hand_over(OPS - 2, &err), RDT_EDEVICE);
    CHECK_STR_CONTAINS(err.message, "acknowledged messages that it did not deliver");
    CHECK_UINT_EQ(taken_count, 0);
    verbs_pair_close(&p);
}

static void
check_breaks(void)
{
    struct fake_op op;
    struct fake_region *region = fake_region(&p.b, 64);

    sim_cut_device(0, true);
    fake_write(&op, "x", 1, &region->remote, 0, 3);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    verbs_end_ops(&p.ab);
    CHECK(fake_op_is_done(&op));
    CHECK_STATUS(op.status, RDT_EPEER);
    CHECK_UINT_EQ(fenced_count, 0);
    sim_cut_device(0, false);
    verbs_pair_close(&p);
}

TEST(a_lane_breaks_where_the_host_forbids_it_to_move)
{
    struct fake_op op;

    begin(false);
    send_messages(&op, 1);
    check_breaks();
}

/* They are not counted. */
TEST(a_lane_with_flags_breaks)
{
    struct sim_config config = sim_default();
    struct fake_op op;

    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_NOTIFY", "flag", 1), 0);
    config.retry_ns = 500000;
    config.in_order = SIM_WHOLE;
    verbs_pair_open(&p, &config);
    is_allowed = true;
    p.a.host.may_move = p.b.host.may_move = may_move;
    p.a.host.on_fenced = p.b.host.on_fenced = on_fenced;
    send_messages(&op, 1);
    check_breaks();
}

TEST_MAIN()
