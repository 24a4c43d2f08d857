/* SPDX-License-Identifier: Apache-2.0
 * What devices report: ports that go down, addresses that change, devices that are pulled out. On
 * the sim. */
#include "../harness.h"

#include "verbs_rig.h"
#include "wire/notify.h"

/* QPs that try for 4 ms * 3: what is to end after the retries ends soon. */
static void
set_short_retries(void)
{
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_TIMEOUT", "10", 1), 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_RETRY", "2", 1), 0);
}

/* ---- Removed -------------------------------------------------------------------------------- */

TEST(a_device_that_is_removed_ends_its_lanes_and_keeps_nobody_awake)
{
    const struct sim_config config = sim_default();
    const struct rdti_lane_args args = fake_lane_args(true);
    struct fake_link next;
    struct verbs_pair p;
    struct rdt_error err;
    int side[2];

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 1000, false);
    CHECK_UINT_EQ(p.a.watch_count, 2);
    sim_remove_device(0);
    VERBS_PUMP(&p, p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "device sim0 port 1 was removed");
    CHECK_UINT_EQ(p.a.watch_count, 0);
    CHECK_UINT_EQ(fake_pump(&p.a), 0);
    fake_side_channel(side);
    CHECK_INT_EQ(fake_link_try_open(&p.a, &next, side[0], &args, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "no device is left: sim0 port 1: the device was removed");
    CHECK_INT_EQ(close(side[1]), 0);
    verbs_pair_close(&p);
}

/* With what is in flight when it goes. */
TEST(ops_of_a_device_that_is_removed_end_with_its_name)
{
    enum { COUNT = 300 };
    const struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;
    uint32_t failed = 0;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 1 << 16);
    uint8_t *src = fake_region(&p.a, 1 << 16)->addr;
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], src, 1 << 16, &region->remote, 0, 3);
        fake_must_start(&p.ab, &ops[i]);
    }
    VERBS_PUMP(&p, p.ba.notify_count > 5);
    sim_remove_device(0);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    verbs_end_ops(&p.ab);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        failed += ops[i].status != RDT_OK;
        if (ops[i].status != RDT_OK)
            CHECK_STR_CONTAINS(ops[i].error.message, "sim0 port 1");
    }
    CHECK_INT_GT(failed, 0);
    verbs_pair_close(&p);
}

TEST(the_other_device_serves_on_and_serves_new_lanes)
{
    struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    char text[512];

    config.device_count = 2;
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 3 << 20, false);
    sim_remove_device(0);
    VERBS_PUMP(&p, p.a.watch_count == 2 && p.b.watch_count == 2);
    verbs_write_and_check(&p, 3 << 20, false); /* memory that is registered only now */
    verbs_write_and_check(&p, 3 << 20, true);
    CHECK_UINT_EQ(p.ab.error_count, 0);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 is down: ");
    CHECK_STR_CONTAINS(text, "device sim0 port 1 was removed");
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    p.a.transport->explain(ab2.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim1:1");
    CHECK(strstr(text, "sim0") == NULL);
    struct fake_region *region = fake_region(&p.b, 1 << 20);
    uint8_t *src = fake_region(&p.a, 1 << 20)->addr;
    struct fake_op op;
    memset(src, 0x6b, 1 << 20);
    fake_write(&op, src, 1 << 20, &region->remote, 0, 9);
    fake_must_start(&ab2, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op) && ba2.notify_count == 1);
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(region->addr, src, 1 << 20);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

/* ---- Down ----------------------------------------------------------------------------------- */

/* Nothing is on its way that could fail by itself. */
TEST(a_port_that_stays_down_ends_a_lane_that_rests)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[512];

    set_short_retries();
    verbs_pair_open(&p, &config);
    sim_raise_event(0, IBV_EVENT_PORT_ERR);
    (void)fake_pump(&p.a);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "the device reported: port error");
    VERBS_PUMP(&p, p.ab.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "device sim0 port 1 reports \"port error\"");
    CHECK_STR_CONTAINS(p.ab.error.message, "has been down for");
    verbs_pair_close(&p);
}

TEST(a_port_that_comes_back_in_time_ends_nothing)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;

    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_TIMEOUT", "15", 1), 0); /* 134 ms */
    verbs_pair_open(&p, &config);
    sim_raise_event(0, IBV_EVENT_PORT_ERR);
    (void)fake_pump(&p.a);
    (void)fake_pump(&p.b);
    sim_raise_event(0, IBV_EVENT_PORT_ACTIVE);
    const uint64_t until_ns = test_now_ns() + UINT64_C(1500000000);
    while (test_now_ns() < until_ns) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK_UINT_EQ(p.ab.error_count, 0);
    verbs_write_and_check(&p, 1000, false);
    verbs_pair_close(&p);
}

TEST(a_port_that_stays_down_leaves_the_others)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[512];

    set_short_retries();
    config.device_count = 2;
    verbs_pair_open(&p, &config);
    sim_cut_device(1, true);
    sim_raise_event(1, IBV_EVENT_PORT_ERR);
    const uint64_t deadline_ns = fake_deadline_ns(10);
    do {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
        p.a.transport->explain(p.ab.lane, text, sizeof(text));
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "sim1 is given up");
    } while (strstr(text, "sim1:1 is down: ") == NULL);
    verbs_write_and_check(&p, 1 << 20, false);
    CHECK_UINT_EQ(p.ab.error_count, 0);
    verbs_pair_close(&p);
}

/* ---- Changed -------------------------------------------------------------------------------- */

TEST(an_address_that_goes_ends_the_paths_that_use_it)
{
    const struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    char text[512];

    verbs_pair_open(&p, &config);
    sim_change_gid(0, 5, "2001:db8::5"); /* one more harms nobody */
    for (int i = 0; i < 100; i++) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK_UINT_EQ(p.ab.error_count, 0);
    sim_change_gid(0, 1, "::ffff:10.7.7.7");
    VERBS_PUMP(&p, p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "device sim0 port 1 reports \"GID table change\"");
    CHECK_STR_CONTAINS(p.ab.error.message, "the address of this path is gone");
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL); /* by the new one */
    p.a.transport->explain(ab2.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "::ffff:10.7.7.7");
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

TEST(each_link_that_does_not_meet_has_its_own_reason)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    int side[2];

    config.device_count = 2;
    memset(&p, 0, sizeof(p));
    sim_begin(&config);
    sim_cut_device(0, true);
    sim_cut_device(1, true);
    fake_host_open(&p.a, &rdti_transport_verbs);
    fake_host_open(&p.b, &rdti_transport_verbs);
    fake_side_channel(side);
    const struct rdti_lane_args listener = fake_lane_args(false);
    const struct rdti_lane_args connector = fake_lane_args(true);
    fake_link_open(&p.b, &p.ba, side[1], &listener);
    fake_link_open(&p.a, &p.ab, side[0], &connector);
    VERBS_PUMP(&p, p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_STR_CONTAINS(p.ab.error.message, "sim0 port 1, GID");
    CHECK_STR_CONTAINS(p.ab.error.message, "sim1 port 1, GID");
    verbs_pair_close(&p);
}

/* ---- A device that refuses ------------------------------------------------------------------ */

/* What the first link lost fills a chain, which goes when SETTLED is added: nothing is left then
 * for the op that waits after it. */
TEST(the_last_device_may_refuse_what_another_lost)
{
    static const uint8_t byte = 7;
    struct sim_config config = sim_default();
    struct fake_op ops[RDTI_VERBS_CHAIN + 1];
    struct verbs_pair p;

    config.device_count = 2;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 64);
    const struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
    fake_write(&ops[0], &byte, 1, &region->remote, 0, RDTI_NOTIFY_NONE);
    fake_must_start(&p.ab, &ops[0]);
    VERBS_PUMP(&p, fake_op_is_done(&ops[0])); /* the key is here */
    sim_cut_device(0, true);
    for (uint32_t i = 0; i <= RDTI_VERBS_CHAIN; i++) {
        if (i == RDTI_VERBS_CHAIN)
            VERBS_PUMP(&p, lane->links[0].state > RDTI_VERBS_LINK_GOOD);
        fake_write(&ops[i], &byte, 1, &region->remote, i, RDTI_NOTIFY_NONE);
        fake_must_start(&p.ab, &ops[i]);
    }
    sim_fail_named("post_send", 0, 1, EIO);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    CHECK_INT_EQ(p.ab.error.sys_errno, EIO);
    CHECK_STR_CONTAINS(p.ab.error.message, "ibv_post_send on sim1");
    verbs_end_ops(&p.ab);
    for (uint32_t i = 0; i <= RDTI_VERBS_CHAIN; i++)
        CHECK(fake_op_is_done(&ops[i]));
    verbs_pair_close(&p);
}

/* Once breaks its link alone, which is drained; for ever ends the lane: what is there, nobody can
 * say. */
TEST(a_queue_that_cannot_be_polled_ends_its_link_or_its_lane)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct sim_config config = sim_default();
        struct verbs_pair p;

        config.device_count = 2;
        verbs_pair_open(&p, &config);
        const struct rdti_verbs_lane *lane = (struct rdti_verbs_lane *)p.ab.lane;
        sim_fail_named("poll_cq", 0, i == 0 ? 1 : UINT32_MAX, EIO);
        (void)fake_pump(&p.a);
        if (i == 0) {
            CHECK_INT_EQ(lane->links[0].state, RDTI_VERBS_LINK_DRAINING);
            CHECK_INT_EQ(lane->links[0].error.sys_errno, EIO);
            verbs_write_and_check(&p, 3 << 20, false);
            CHECK_UINT_EQ(p.ab.error_count, 0);
        } else {
            VERBS_PUMP(&p, p.ab.error_count == 1);
            CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
            CHECK_INT_EQ(p.ab.error.sys_errno, EIO);
            CHECK_STR_CONTAINS(p.ab.error.message, "ibv_poll_cq on sim");
        }
        sim_fail_named("poll_cq", 0, 0, 0);
        verbs_pair_close(&p);
    }
}

/* Whether or not anybody wants flags. */
TEST(a_lane_says_what_its_device_promises_and_bears)
{
    for (int i = 0; i < 2; i++) {
        struct sim_config config = sim_default();
        struct verbs_pair p;
        char text[512];
        if (i == 1)
            config.in_order = SIM_WHOLE;
        config.max_msg_bytes = 1 << 20;
        verbs_pair_open(&p, &config);
        verbs_write_and_check(&p, 1 << 10, true);
        p.a.transport->explain(p.ab.lane, text, sizeof(text));
        CHECK_STR_CONTAINS(text, "messages of up to 1048576 B");
        CHECK_STR_CONTAINS(text, i == 1 ? "bytes promised" : "bytes not promised");
        verbs_pair_close(&p);
    }
}

/* ---- Reported ------------------------------------------------------------------------------- */

struct report {
    enum ibv_event_type type;
    const char *words;
};

/* Of one QP or CQ: its lane ends, and another on the same device does not. */
static const struct report reports[] = {
    {IBV_EVENT_QP_FATAL, "local work queue catastrophic error"},
    {IBV_EVENT_QP_REQ_ERR, "invalid request local work queue error"},
    {IBV_EVENT_QP_ACCESS_ERR, "local access violation work queue error"},
    {IBV_EVENT_PATH_MIG_ERR, "path migration request error"},
    {IBV_EVENT_CQ_ERR, "CQ error"},
};

static void
check_report(const struct report *report)
{
    const struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    char want[128];

    verbs_pair_open(&p, &config);
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    const struct rdti_verbs_link *link = &((const struct rdti_verbs_lane *)ab2.lane)->links[0];
    if (report->type == IBV_EVENT_CQ_ERR)
        sim_raise_cq_event(link->cq, report->type);
    else
        sim_raise_qp_event(link->qps[0]->qp, report->type);
    VERBS_PUMP(&p, ab2.error_count == 1);
    (void)snprintf(want, sizeof(want), "verbs lane to rank %d: device sim0 port 1 reports \"%s\"",
                   fake_lane_args(true).peer_rank, report->words);
    CHECK_INT_EQ(ab2.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(ab2.error.message, want);
    CHECK_STR_CONTAINS(ab2.error.message, "look at dmesg");
    verbs_write_and_check(&p, 5000, false);
    CHECK_UINT_EQ(p.ab.error_count, 0);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

TEST(what_a_device_reports_of_a_queue_ends_its_lane)
{
    for (size_t i = 0; i < sizeof(reports) / sizeof(reports[0]); i++)
        check_report(&reports[i]);
}

/* A table in which nothing of ours changes harms nobody; one without our partition does. */
TEST(a_partition_that_goes_ends_the_paths_in_it)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;

    config.devices[0].pkeys[1] = 0x8123;
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_PKEY", "0x8123", 1), 0);
    verbs_pair_open(&p, &config);
    sim_change_pkey(0, 2, 0x8456);
    for (int i = 0; i < 100; i++) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK_UINT_EQ(p.ab.error_count, 0);
    verbs_write_and_check(&p, 5000, false);
    sim_change_pkey(0, 1, 0);
    VERBS_PUMP(&p, p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "device sim0 port 1 reports \"P_Key table change\"");
    CHECK_STR_CONTAINS(p.ab.error.message, "its PKEY stands elsewhere in the table now");
    verbs_pair_close(&p);
}

/* ---- Counters ------------------------------------------------------------------------------- */

/* What a device counted before it was opened is not ours. */
TEST(counters_show_what_was_counted_since_open)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[512];

    memset(&p, 0, sizeof(p));
    sim_begin(&config);
    sim_set_counter("out_of_sequence", 1000);
    sim_set_counter("roce_adp_retrans", 70);
    sim_set_counter("rcvd_rnr_err", 5);
    fake_host_open(&p.a, &rdti_transport_verbs);
    fake_host_open(&p.b, &rdti_transport_verbs);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    sim_set_counter("out_of_sequence", 1003);
    sim_set_counter("roce_adp_retrans", 81);
    sim_set_counter("local_ack_timeout_err", 9); /* one that was not there at open stays out */
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "device since open: retries 11, out of sequence 3, RNR 0");
    CHECK(strstr(text, "timeouts") == NULL);
    verbs_pair_close(&p);
}

TEST_MAIN()
