/* SPDX-License-Identifier: Apache-2.0
 * What may go wrong over verbs: pairs that do not meet, links that break, peers that lie. On the
 * sim. */
#include "../harness.h"

#include "base/error.h"
#include "verbs_rig.h"
#include "wire/notify.h"

/* ---- Opening -------------------------------------------------------------------------------- */

TEST(a_machine_that_cannot_says_why)
{
    struct sim_config config = sim_default();
    struct rdt_error err;

    config.list_errno = ENOSYS;
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_INT_EQ(err.sys_errno, ENOSYS);
    config = sim_default();
    config.device_count = 0;
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "no device was found");
    config = sim_default();
    config.devices[0].is_refused = true;
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "/dev/infiniband");
    config = sim_default();
    config.devices[0].is_down = true;
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "not active");
    config = sim_default();
    memset(config.devices[0].gids, 0, sizeof(config.devices[0].gids));
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "GID table is empty");
    config = sim_default();
    config.queue_depth = 16;
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "16 work requests");
}

TEST(one_bad_port_does_not_spoil_the_others)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[256];

    config.device_count = 3;
    config.devices[0].is_refused = true;
    config.devices[1].is_down = true;
    verbs_pair_open(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim2:1");
    verbs_write_and_check(&p, 5000, false);
    verbs_pair_close(&p);
}

/* ---- Pairs ---------------------------------------------------------------------------------- */

TEST(the_next_pair_of_gids_is_tried_where_the_best_is_blocked)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[256];

    config.devices[0].gids[4] = (struct sim_gid){.text = "2001:db8::1"};
    sim_begin(&config);
    sim_block_gid("::ffff:10.0.0.1");
    verbs_pair_open_on(&p);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "2001:db8::1 to 2001:db8::1");
    verbs_write_and_check(&p, 1 << 20, false);
    verbs_pair_close(&p);
}

TEST(two_that_cannot_meet_hear_it_at_once)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    int side[2];

    memset(&p, 0, sizeof(p));
    sim_begin(&config);
    sim_cut_device(0, true);
    fake_host_open(&p.a, &rdti_transport_verbs);
    fake_host_open(&p.b, &rdti_transport_verbs);
    fake_side_channel(side);
    const struct rdti_lane_args listener = fake_lane_args(false);
    const struct rdti_lane_args connector = fake_lane_args(true);
    fake_link_open(&p.b, &p.ba, side[1], &listener);
    fake_link_open(&p.a, &p.ab, side[0], &connector);
    VERBS_PUMP(&p, p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(p.ab.error.message, "no write reached rank");
    CHECK_STR_CONTAINS(p.ab.error.message, "sim0 port 1");
    CHECK_STR_CONTAINS(p.ab.error.message, "4791");
    CHECK_INT_EQ(p.ab.ready_count, 0);
    verbs_pair_close(&p);
}

TEST(a_link_that_is_dead_from_the_start_is_left_out)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[256];

    config.device_count = 2;
    sim_begin(&config);
    sim_cut_device(0, true);
    verbs_pair_open_on(&p);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim1:1");
    CHECK(strstr(text, "sim0") == NULL);
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_pair_close(&p);
}

/* ---- Breaking ------------------------------------------------------------------------------- */

static void
check_break(enum ibv_wc_status wc_status, rdt_status want, const char *part)
{
    enum { COUNT = 40 };
    const struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;
    struct rdt_error err;
    uint32_t failed = 0;
    char flushed[64];

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    struct fake_region *region = fake_region(&p.b, 4096);
    sim_break_next(wc_status);
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], "12345678", 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    VERBS_PUMP(&p, p.ab.error_count == 1);
    verbs_end_ops(&p.ab);
    for (uint32_t i = 0; i < COUNT; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        failed += ops[i].status != RDT_OK;
        if (ops[i].status != RDT_OK)
            CHECK_STR_EQ(ops[i].error.message, p.ab.error.message);
    }
    CHECK_INT_GT(failed, 0);
    CHECK_INT_EQ(p.ab.error.status, want);
    CHECK_INT_EQ(p.ab.error.wc_status, wc_status);
    CHECK_INT_EQ(p.ab.error.vendor_err, 0x51);
    CHECK_INT_EQ(p.ab.error.peer_rank, 1);
    CHECK_STR_CONTAINS(p.ab.error.message, "verbs lane to rank 1: a write on sim0 port 1, QP 0x");
    CHECK_STR_CONTAINS(p.ab.error.message, "::ffff:10.0.0.1 to ::ffff:10.0.0.1");
    CHECK_STR_CONTAINS(p.ab.error.message, part);
    (void)snprintf(flushed, sizeof(flushed), "; %u requests after it were flushed", failed - 1);
    CHECK_STR_CONTAINS(p.ab.error.message, flushed);
    fake_write(&ops[0], "12345678", 8, &region->remote, 0, 1);
    CHECK_INT_EQ(fake_start(&p.ab, &ops[0], &err), want);
    CHECK_STR_EQ(err.message, p.ab.error.message);
    verbs_pair_close(&p);
}

TEST(the_first_error_names_everything)
{
    check_break(IBV_WC_RETRY_EXC_ERR, RDT_EPEER, "the path to it is down");
    check_break(IBV_WC_RNR_RETRY_EXC_ERR, RDT_EPEER, "no receive posted");
    check_break(IBV_WC_REM_ACCESS_ERR, RDT_EDEVICE, "refused the key");
    check_break(IBV_WC_LOC_PROT_ERR, RDT_EDEVICE, "our own memory");
    check_break(IBV_WC_WR_FLUSH_ERR, RDT_EPEER, "stopped the QP and gave no reason");
}

/* As rxe does where its own host refuses to send: the first request comes back flushed already. */
static void
flush_first(struct verbs_pair *p, struct fake_op *op)
{
    const struct fake_region *region = fake_region(&p->b, 8);
    const uint64_t deadline_ns = fake_deadline_ns(10);

    fake_write(op, "12345678", 8, &region->remote, 0, 3); /* so that the key is here */
    fake_must_start(&p->ab, op);
    VERBS_PUMP(p, fake_op_is_done(op));
    const uint64_t executed = sim_executed();
    sim_break_next(IBV_WC_WR_FLUSH_ERR);
    fake_write(op, "12345678", 8, &region->remote, 0, 4);
    fake_must_start(&p->ab, op);
    while (sim_executed() == executed)
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "a's write ended");
}

/* No descriptor is looked at meanwhile. */
static void
poll_alone(struct fake_host *host)
{
    CHECK_INT_EQ(pthread_mutex_lock(&host->engine), 0);
    (void)host->transport->poll(host->state);
    CHECK_INT_EQ(pthread_mutex_unlock(&host->engine), 0);
}

/* Of a link with several QPs each may have an error of its own. */
TEST(the_first_error_of_each_qp_is_kept)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;
    char text[2048];

    if (verbs_is_real())
        SKIP("needs the sim");
    config.device_count = 2;
    config.retry_ns = 500000;
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", "2", 1), 0);
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    struct fake_region *region = fake_region(&p.b, 4 << 20);
    uint8_t *src = fake_region(&p.a, 4 << 20)->addr;
    const uint32_t before = p.ba.notify_count;
    sim_cut_device(0, true);
    fake_write(&op, src, 4 << 20, &region->remote, 0, 7);
    fake_must_start(&p.ab, &op);
    test_sleep_ns(UINT64_C(200000000)); /* until each has given up */
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == before + 1);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 is down: ");
    CHECK_STR_CONTAINS(text, "; first of QP 0: \"transport retry counter exceeded\"");
    CHECK_STR_CONTAINS(text, "; first of QP 1: \"transport retry counter exceeded\"");
    verbs_pair_close(&p);
}

TEST(a_flush_that_comes_first_is_told_with_what_the_device_counted)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    sim_begin(&config);
    sim_set_counter("send_err", 40);
    verbs_pair_open_on(&p);
    sim_set_counter("send_err", 43);
    flush_first(&p, &op);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    verbs_end_ops(&p.ab);
    CHECK_STR_CONTAINS(op.error.message, "ended with \"Work Request Flushed Error\"");
    CHECK_STR_CONTAINS(op.error.message, "; device since open: ");
    CHECK_STR_CONTAINS(op.error.message, ", not sent 3; ");
    verbs_pair_close(&p);
}

/* The device says so elsewhere, and nobody has looked there yet. */
TEST(an_event_explains_a_flush_that_comes_first)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    flush_first(&p, &op);
    sim_raise_qp_event(((struct rdti_verbs_lane *)p.ab.lane)->qps[0]->qp, IBV_EVENT_QP_FATAL);
    poll_alone(&p.a);
    CHECK_UINT_EQ(p.ab.error_count, 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "reports \"local work queue catastrophic error\"");
    verbs_end_ops(&p.ab);
    CHECK(fake_op_is_done(&op));
    verbs_pair_close(&p);
}

/* Messages that lie in the CQ before the error, more than one poll takes. */
TEST(what_came_before_an_error_is_delivered)
{
    enum { COUNT = 100 };
    const struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;
    struct fake_op back;

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    struct fake_region *to = fake_region(&p.b, 8);
    struct fake_region *from = fake_region(&p.a, 8);
    fake_write(&back, "12345678", 8, &from->remote, 0, 1);
    fake_must_start(&p.ba, &back); /* so that both have their keys */
    fake_write(&ops[0], "12345678", 8, &to->remote, 0, 1);
    fake_must_start(&p.ab, &ops[0]);
    VERBS_PUMP(&p, fake_op_is_done(&back) && fake_op_is_done(&ops[0]) && p.ba.notify_count == 2);
    const uint32_t before = p.ba.notify_count;
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], "12345678", 8, &to->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    FAKE_PUMP_UNTIL(&p.a, NULL, fake_op_is_done(&ops[COUNT - 1]), 10);
    sim_break_next(IBV_WC_RETRY_EXC_ERR);
    const uint64_t executed = sim_executed();
    fake_write(&back, "12345678", 8, &from->remote, 0, 2);
    fake_must_start(&p.ba, &back);
    const uint64_t deadline_ns = fake_deadline_ns(10);
    while (sim_executed() == executed)
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "b's write ended");
    FAKE_PUMP_UNTIL(&p.b, NULL, p.ba.error_count == 1, 10);
    CHECK_UINT_EQ(p.ba.notify_count, before + COUNT);
    verbs_pair_close(&p);
}

TEST(a_cable_that_is_out_for_a_moment_breaks_nothing)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    config.retry_ns = UINT64_C(4000000000);
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 1000, false);
    struct fake_region *region = fake_region(&p.b, 8);
    sim_cut_device(0, true);
    sim_raise_event(0, IBV_EVENT_PORT_ERR);
    fake_write(&op, "12345678", 8, &region->remote, 0, 4);
    fake_must_start(&p.ab, &op);
    const uint64_t until_ns = test_now_ns() + 200 * UINT64_C(1000000);
    while (test_now_ns() < until_ns) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK(!fake_op_is_done(&op));
    sim_cut_device(0, false);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_INT_EQ(p.ab.error_count, 0);
    verbs_pair_close(&p);
}

/* With no time set: what a QP is raised with by default outlasts it. */
TEST(a_cable_that_is_out_for_a_second_breaks_nothing_by_default)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    config.has_own_retry = true;
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 1000, false);
    struct fake_region *region = fake_region(&p.b, 8);
    sim_cut_device(0, true);
    sim_raise_event(0, IBV_EVENT_PORT_ERR);
    fake_write(&op, "12345678", 8, &region->remote, 0, 4);
    fake_must_start(&p.ab, &op);
    const uint64_t until_ns = test_now_ns() + UINT64_C(1000000000);
    while (test_now_ns() < until_ns) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK(!fake_op_is_done(&op));
    sim_cut_device(0, false);
    sim_raise_event(0, IBV_EVENT_PORT_ACTIVE);
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == 2);
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(region->addr, "12345678", 8);
    CHECK_INT_EQ(p.ab.error_count + p.ba.error_count, 0);
    verbs_pair_close(&p);
}

TEST(a_cable_that_stays_out_is_an_error_that_names_the_event)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 1000, false);
    struct fake_region *region = fake_region(&p.b, 8);
    sim_cut_device(0, true);
    sim_raise_event(0, IBV_EVENT_PORT_ERR);
    fake_write(&op, "12345678", 8, &region->remote, 0, 4);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    verbs_end_ops(&p.ab);
    CHECK_INT_EQ(op.status, RDT_EPEER);
    CHECK_STR_CONTAINS(op.error.message, "the device reported: port error");
    verbs_pair_close(&p);
}

TEST(an_event_that_is_over_stands_in_no_later_error)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;
    struct fake_op op;

    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 8);
    sim_raise_event(0, IBV_EVENT_PORT_ERR);
    sim_raise_event(0, IBV_EVENT_PORT_ACTIVE);
    for (int i = 0; i < 100; i++)
        (void)fake_pump(&p.a);
    sim_cut_device(0, true);
    fake_write(&op, "12345678", 8, &region->remote, 0, 4);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    verbs_end_ops(&p.ab);
    CHECK_INT_EQ(op.status, RDT_EPEER);
    CHECK(strstr(op.error.message, "the device reported") == NULL);
    verbs_pair_close(&p);
}

TEST(a_device_that_is_gone_ends_its_lanes)
{
    const struct sim_config config = sim_default();
    struct verbs_pair p;

    verbs_pair_open(&p, &config);
    sim_raise_event(0, IBV_EVENT_DEVICE_FATAL);
    VERBS_PUMP(&p, p.ab.error_count == 1 && p.ba.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "device sim0 port 1 reports");
    verbs_pair_close(&p);
}

/* A peer that closes while we have much on the way: everything is completed, nothing is left. */
TEST(a_peer_that_goes_leaves_no_op_behind)
{
    enum { COUNT = 900 };
    struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;

    config.delay_us = 20;
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, 1 << 20);
    uint8_t *src = fake_region(&p.a, 1 << 20)->addr;
    for (uint32_t i = 0; i < COUNT; i++) {
        fake_write(&ops[i], src, i % 3 == 0 ? 1 << 20 : 8, &region->remote, 0, rdti_notify_user(i));
        fake_must_start(&p.ab, &ops[i]);
    }
    VERBS_PUMP(&p, p.ba.notify_count > 20);
    fake_link_close(&p.ba, RDT_ECLOSED);
    /* The lane breaks if something was on the wire; if all of the window had arrived, nothing tells
     * but the core's side channel, and then close_lane() ends what waits. */
    const uint64_t until_ns = test_now_ns() + 300 * UINT64_C(1000000);
    while (p.ab.error_count == 0 && test_now_ns() < until_ns)
        (void)fake_pump(&p.a);
    CHECK(p.ab.error_count == 1 || !p.a.transport->is_idle(p.ab.lane));
    fake_link_close(&p.ab, RDT_ECLOSED);
    for (uint32_t i = 0; i < COUNT; i++)
        CHECK(fake_op_is_done(&ops[i]));
    CHECK_INT_NE(ops[COUNT - 1].status, RDT_OK);
    fake_link_free(&p.ab);
    fake_link_free(&p.ba);
    fake_host_close(&p.a);
    fake_host_close(&p.b);
    sim_end();
}

/* ---- Lies ----------------------------------------------------------------------------------- */

static void
check_lie(const struct rdti_verbs_words *lie, const char *part)
{
    const struct sim_config config = sim_default();
    uint8_t bytes[RDTI_LANE_WORDS_MAX_BYTES];
    struct verbs_pair p;
    struct rdt_error err = {0};

    verbs_pair_open(&p, &config);
    const size_t len = rdti_verbs_words_encode(lie, bytes);
    CHECK_INT_EQ(p.a.transport->words_arrived(p.ab.lane, bytes, (uint32_t)len, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, part);
    verbs_pair_close(&p);
}

TEST(words_that_make_no_sense_are_refused)
{
    check_lie(&(struct rdti_verbs_words){.kind = RDTI_VERBS_LINK_READY}, "out of turn");
    check_lie(&(struct rdti_verbs_words){.kind = RDTI_VERBS_LINK_PROVED, .link = 3}, "out of turn");
    check_lie(&(struct rdti_verbs_words){.kind = RDTI_VERBS_KEY,
                                         .access = RDTI_VERBS_MAY_WRITE,
                                         .segment = 5,
                                         .index = 1,
                                         .rkey_count = 1},
              "without a request");
    check_lie(&(struct rdti_verbs_words){.kind = RDTI_VERBS_KEY_GET,
                                         .access = RDTI_VERBS_MAY_READ,
                                         .segment = RDT_SEGMENT_NONE,
                                         .index = 77,
                                         .generation = 1},
              "which is none");
    check_lie(&(struct rdti_verbs_words){.kind = RDTI_VERBS_KEY_GET,
                                         .access = RDTI_VERBS_MAY_READ,
                                         .segment = 0,
                                         .index = 77,
                                         .generation = 1},
              "which is none");
}

/* Both in one batch, which is full: a link that breaks, and a lie that ends the lane, and with it
 * the link. */
TEST(a_lie_behind_a_link_that_breaks_ends_the_lane)
{
    struct sim_config config = sim_default();
    uint8_t bytes[8] = {0};
    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = sizeof(bytes)};
    struct ibv_send_wr astray = {.opcode = IBV_WR_RDMA_WRITE,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .send_flags = IBV_SEND_INLINE,
                                 .wr_id = 1};
    struct ibv_send_wr lie = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                              .imm_data = htobe32(RDTI_NOTIFY_RESTOCKED | 0xffff),
                              .wr_id = 2};
    struct ibv_send_wr *bad;
    struct verbs_pair p;

    if (verbs_is_real())
        SKIP("needs the sim");
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", "2", 1), 0);
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    const struct rdti_verbs_lane *peer = (const struct rdti_verbs_lane *)p.ba.lane;
    const uint64_t before = sim_executed();
    astray.wr.rdma.remote_addr = 4096;
    astray.wr.rdma.rkey = SIM_RKEYS_FROM + 4000; /* of nothing */
    CHECK_INT_EQ(peer->verbs->ops->post_send(peer->qps[0]->qp, &astray, &bad), 0);
    for (uint32_t i = 0; i < 2 * RDTI_VERBS_WCS; i++)
        CHECK_INT_EQ(peer->verbs->ops->post_send(peer->qps[1]->qp, &lie, &bad), 0);
    const uint64_t deadline_ns = fake_deadline_ns(5);
    while (sim_executed() < before + 1 + 2 * RDTI_VERBS_WCS)
        fake_check_deadline(deadline_ns, __FILE__, __LINE__, "executed");
    VERBS_PUMP(&p, p.ab.error_count == 1);
    CHECK_STR_CONTAINS(p.ab.error.message, "the peer restocked more receives than it has");
    verbs_pair_close(&p);
}

/* What is posted in several chains: a later one carries the notification, and must not go when an
 * earlier one could not. */
TEST(nothing_is_announced_behind_a_hole)
{
    enum { BLOCKS = 3 * RDTI_VERBS_CHAIN };
    const struct sim_config config = sim_default();
    struct rdt_block blocks[BLOCKS];
    struct verbs_pair p;
    struct fake_op op;

    if (verbs_is_real())
        SKIP("needs the sim");
    verbs_pair_open(&p, &config);
    struct fake_region *region = fake_region(&p.b, BLOCKS * 64);
    uint8_t *src = fake_region(&p.a, BLOCKS * 64)->addr;
    fake_write(&op, src, 1, &region->remote, 0, 3); /* so that the key is here */
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op) && p.ba.notify_count == 1);
    memset(src, 0x5a, BLOCKS * 64);
    for (uint64_t i = 0; i < BLOCKS; i++)
        blocks[i] = (struct rdt_block){.src = src + i * 64, .dst_off = i * 64, .len_bytes = 64};
    sim_fail_call(1, ENOMEM);
    fake_write_many(&op, blocks, BLOCKS, &region->remote, 4);
    fake_must_start(&p.ab, &op);
    CHECK_STR_EQ(sim_failed_call(), "post_send");
    VERBS_PUMP(&p, p.ab.error_count == 1);
    for (int i = 0; i < 1000; i++)
        (void)fake_pump(&p.b);
    CHECK_UINT_EQ(p.ba.notify_count, 1);
    verbs_pair_close(&p);
}

TEST_MAIN()
