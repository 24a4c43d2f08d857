/* SPDX-License-Identifier: Apache-2.0
 * Settings, and two ends that differ. On the sim. */
#include "../harness.h"

#include "base/error.h"
#include "verbs_rig.h"
#include "wire/notify.h"

static void
check_setting(const char *name, const char *value, const char *part)
{
    const struct sim_config config = sim_default();
    struct rdt_error err;

    CHECK_INT_EQ(setenv(name, value, 1), 0);
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, part);
    CHECK_INT_EQ(unsetenv(name), 0);
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_OK);
}

TEST(wrong_settings_are_named)
{
    check_setting("RDMATENSOR_VERBS_GID_INDEX", "2", "asks for 2, which is empty");
    check_setting("RDMATENSOR_VERBS_GID_INDEX", "sim0=99", "asks for 99, the table has 8");
    check_setting("RDMATENSOR_VERBS_QPS", "9", "RDMATENSOR_VERBS_QPS=9: a number from 1 to 8");
    check_setting("RDMATENSOR_VERBS_TIMEOUT", "x", "RDMATENSOR_VERBS_TIMEOUT=x");
    check_setting("RDMATENSOR_VERBS_MTU", "1500", "256, 512, 1024, 2048 or 4096");
    check_setting("RDMATENSOR_VERBS_NOTIFY", "bell", "imm, flag or auto");
    check_setting("RDMATENSOR_VERBS_FLAG_UNSAFE", "2", "0 or 1 is meant");
    check_setting("RDMATENSOR_VERBS_PKEY", "0x1234", "PKEY 0x1234 is not in its table");
}

static void
check_list(const char *name, const char *value, const char *entry)
{
    char told[160];

    (void)snprintf(told, sizeof(told), "%s=%s: \"%s\" is no", name, value, entry);
    check_setting(name, value, told);
}

TEST(lists_that_make_no_sense_are_named)
{
    static const char *const indices[] = {"abc", "-1", "3x", "256", "99999999999", " 1", "sim0="};
    static const char *const devices[] = {"sim0:0", "sim0:256", "sim0:one", ":1", "sim0:-1"};

    for (size_t i = 0; i < sizeof(indices) / sizeof(indices[0]); i++)
        check_list("RDMATENSOR_VERBS_GID_INDEX", indices[i], indices[i]);
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++)
        check_list("RDMATENSOR_VERBS_DEVICES", devices[i], devices[i]);
    check_list("RDMATENSOR_VERBS_GID_INDEX", "sim0=1,sim1=one", "sim1=one");
    check_list("RDMATENSOR_VERBS_GID_INDEX", "=1", "=1");
    check_list("RDMATENSOR_VERBS_DEVICES", "sim0,,sim1", "");
}

/* Also where the rest of the list is there. */
TEST(devices_that_are_not_there_are_named)
{
    check_setting("RDMATENSOR_VERBS_DEVICES", "mlx5_0",
                  "RDMATENSOR_VERBS_DEVICES=mlx5_0 names mlx5_0, which is not there; this machine "
                  "has sim0");
    check_setting("RDMATENSOR_VERBS_DEVICES", "sim0,mlx5_99",
                  "RDMATENSOR_VERBS_DEVICES=sim0,mlx5_99 names mlx5_99, which is not there");
    check_setting("RDMATENSOR_VERBS_DEVICES", "sim0,sim0:2",
                  "RDMATENSOR_VERBS_DEVICES=sim0,sim0:2 names port 2 of sim0, which has 1");
    check_setting("RDMATENSOR_VERBS_GID_INDEX", "sim9=0",
                  "RDMATENSOR_VERBS_GID_INDEX=sim9=0 names sim9, which is not there");
    check_setting("RDMATENSOR_VERBS_GID_INDEX", "0,sim9=0", "names sim9, which is not there");
}

/* A flag takes a segment of its own, which a device may lack. */
TEST(a_device_with_one_segment_has_immediates)
{
    static const char *const modes[] = {"flag", "auto"};

    for (int i = 0; i < 2; i++) {
        struct sim_config config = sim_default();
        struct verbs_pair p;
        char text[512];

        config.in_order = SIM_WHOLE;
        config.segments = 1;
        CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_NOTIFY", modes[i], 1), 0);
        verbs_pair_open(&p, &config);
        CHECK_INT_EQ(unsetenv("RDMATENSOR_VERBS_NOTIFY"), 0);
        verbs_write_and_check(&p, 100000, true);
        p.a.transport->explain(p.ab.lane, text, sizeof(text));
        CHECK_STR_CONTAINS(text, "notify imm (no flag: the device's requests have one segment, and "
                                 "a flag needs a second)");
        verbs_pair_close(&p);
    }
}

/* ---- PKEY ----------------------------------------------------------------------------------- */

static uint16_t
pkey_index_of(const struct fake_link *link)
{
    return ((const struct rdti_verbs_lane *)link->lane)->links[0].pkey_index;
}

/* Host a with a setting, b with none: both use what a says. Packets cross only within a
 * partition. */
static void
check_pkey(const char *name, const char *value, uint16_t want_index)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;

    config.devices[0].pkeys[1] = 0x8123;
    config.devices[0].pkeys[2] = 0x0456;
    memset(&p, 0, sizeof(p));
    sim_begin(&config);
    CHECK_INT_EQ(setenv(name, value, 1), 0);
    fake_host_open(&p.a, &rdti_transport_verbs);
    CHECK_INT_EQ(unsetenv(name), 0);
    fake_host_open(&p.b, &rdti_transport_verbs);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    CHECK_UINT_EQ(pkey_index_of(&p.ab), want_index);
    CHECK_UINT_EQ(pkey_index_of(&p.ba), want_index);
    verbs_write_and_check(&p, 5000, false);
    verbs_pair_close(&p);
}

TEST(one_sides_partition_is_both_sides)
{
    check_pkey("RDMATENSOR_VERBS_PKEY", "0xffff", 0);
    check_pkey("RDMATENSOR_VERBS_PKEY", "0x8123", 1);
    check_pkey("RDMATENSOR_VERBS_PKEY", "0x123", 1); /* a limited member of the same */
    check_pkey("RDMATENSOR_VERBS_PKEY_INDEX", "1", 1);
}

TEST(a_partition_that_is_not_there_is_named)
{
    check_setting("RDMATENSOR_VERBS_PKEY_INDEX", "2", "asks for 2, which is empty");
    check_setting("RDMATENSOR_VERBS_PKEY_INDEX", "900", "asks for 900, which is empty");
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_PKEY_INDEX", "0", 1), 0);
    const struct sim_config config = sim_default();
    struct rdt_error err;
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_PKEY", "0xffff", 1), 0);
    CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(err.message, "both set");
}

/* ---- Two ends that differ ------------------------------------------------------------------- */

/* Host a on sim0, b on sim1. */
static void
open_apart(struct verbs_pair *p, const struct sim_config *config, const char *a_name,
           const char *a_value)
{
    memset(p, 0, sizeof(*p));
    sim_begin(config);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim0", 1), 0);
    if (a_name != NULL)
        CHECK_INT_EQ(setenv(a_name, a_value, 1), 0);
    fake_host_open(&p->a, &rdti_transport_verbs);
    if (a_name != NULL)
        CHECK_INT_EQ(unsetenv(a_name), 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim1", 1), 0);
    fake_host_open(&p->b, &rdti_transport_verbs);
}

TEST(a_peer_outside_the_partition_hears_which_device)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    int side[2];

    config.device_count = 2;
    config.devices[0].pkeys[1] = 0x8123;
    open_apart(&p, &config, "RDMATENSOR_VERBS_PKEY", "0x8123");
    fake_side_channel(side);
    const struct rdti_lane_args listener = fake_lane_args(false);
    const struct rdti_lane_args connector = fake_lane_args(true);
    fake_link_open(&p.b, &p.ba, side[1], &listener);
    fake_link_open(&p.a, &p.ab, side[0], &connector);
    VERBS_PUMP(&p, p.ba.is_offered);
    CHECK_INT_EQ(p.ba.connect_status, RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(p.ba.connect_error.message, "rank 0 asks for a partition that device sim1");
    CHECK_STR_CONTAINS(p.ba.connect_error.message, "PKEY 0x8123");
    verbs_pair_close(&p);
}

/* Packets cross only where both QPs have one MTU. */
static void
check_mtu(enum ibv_mtu a, enum ibv_mtu b, const char *a_setting, uint8_t want)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;

    config.device_count = 2;
    config.devices[0].mtu = a;
    config.devices[1].mtu = b;
    open_apart(&p, &config, a_setting != NULL ? "RDMATENSOR_VERBS_MTU" : NULL, a_setting);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)p.ab.lane;
    CHECK_UINT_EQ(sim_path_mtu(lane->qps[0]->qp), want);
    verbs_write_and_check(&p, 100000, false);
    verbs_pair_close(&p);
}

TEST(the_smaller_mtu_counts)
{
    check_mtu(IBV_MTU_4096, IBV_MTU_1024, NULL, IBV_MTU_1024);
    check_mtu(IBV_MTU_512, IBV_MTU_2048, NULL, IBV_MTU_512);
    check_mtu(IBV_MTU_4096, IBV_MTU_4096, "256", IBV_MTU_256);
    check_mtu(IBV_MTU_1024, IBV_MTU_2048, "4096", IBV_MTU_1024); /* what the port has */
}

/* The sim ends a test that posts more than max_msg_sz; staged writes and reads are cut as well. */
TEST(a_payload_larger_than_a_message_is_cut)
{
    struct sim_config config = sim_default();
    static uint8_t got[300000];
    struct verbs_pair p;
    struct fake_op op;

    config.max_msg_bytes = 65536;
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 65536, false);
    verbs_write_and_check(&p, 65537, false);
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_write_and_check(&p, 1 << 20, true);
    struct fake_region *region = fake_region(&p.b, sizeof(got));
    verbs_pattern(region->addr, sizeof(got), 9);
    fake_read(&op, got, sizeof(got), &region->remote, 0);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    CHECK_INT_EQ(op.status, RDT_OK);
    CHECK_MEM_EQ(got, region->addr, sizeof(got));
    verbs_pair_close(&p);
}

/* ---- A peer that is killed ------------------------------------------------------------------ */

/* As the kernel ends a process: its QPs are gone, and nothing says so. */
TEST(a_peer_killed_between_posting_and_completion_ends_every_op)
{
    enum { COUNT = 200 };
    const struct sim_config config = sim_default();
    static struct fake_op ops[COUNT];
    struct verbs_pair p;
    uint32_t failed = 0;

    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100, false);
    struct fake_region *region = fake_region(&p.b, COUNT * 8);
    uint8_t *src = fake_region(&p.a, 8)->addr;
    memset(src, 0x77, 8);
    for (uint64_t i = 0; i < COUNT; i++) {
        if (i == COUNT / 2)
            sim_cut_device(0, true); /* so that some are posted, and not complete */
        fake_write(&ops[i], src, 8, &region->remote, i * 8, rdti_notify_user((uint32_t)i));
        fake_must_start(&p.ab, &ops[i]);
        VERBS_PUMP(&p, i >= COUNT / 2 || fake_op_is_done(&ops[i]));
    }
    struct rdti_verbs_lane *victim = (struct rdti_verbs_lane *)p.ba.lane;
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET, RDTI_VERBS_NO_MTU};
    CHECK_INT_EQ(victim->verbs->ops->modify_qp(victim->qps[0]->qp, &reset, IBV_QP_STATE), 0);
    sim_cut_device(0, false);
    FAKE_PUMP_UNTIL(&p.a, NULL, p.ab.error_count == 1, 10);
    verbs_end_ops(&p.ab);
    for (uint64_t i = 0; i < COUNT; i++) {
        CHECK(fake_op_is_done(&ops[i]));
        if (ops[i].status == RDT_OK)
            CHECK_MEM_EQ(region->addr + i * 8, src, 8);
        failed += ops[i].status != RDT_OK;
        CHECK(ops[i].status == RDT_OK || ops[i].status == RDT_EPEER);
    }
    CHECK_INT_EQ(failed, COUNT / 2);
    CHECK_STR_CONTAINS(p.ab.error.message, "verbs lane to rank 1");
    CHECK_STR_CONTAINS(p.ab.error.message, "sim0 port 1");
    verbs_pair_close(&p);
}

/* ---- Fork ----------------------------------------------------------------------------------- */

/* The sim's fork_init() refuses once anything is registered. */
TEST(fork_init_is_called_once_and_before_the_first_registration)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;

    config.fork_status = IBV_FORK_DISABLED;
    verbs_pair_open(&p, &config);
    verbs_write_and_check(&p, 100000, true);
    CHECK_UINT_EQ(sim_fork_inits(), 1); /* for the whole process, which both hosts are of */
    verbs_pair_close(&p);
}

TEST(fork_init_is_not_called_where_it_is_not_needed)
{
    static const enum ibv_fork_status statuses[] = {IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};

    for (int i = 0; i < 2; i++) {
        struct sim_config config = sim_default();
        struct rdt_error err;

        config.fork_status = statuses[i];
        CHECK_INT_EQ(verbs_try_open(&config, &err), RDT_OK);
        CHECK_UINT_EQ(sim_fork_inits(), 0);
    }
}

TEST(where_fork_init_fails_verbs_is_not_viable)
{
    struct sim_config config = sim_default();
    struct fake_host host;
    struct rdt_error err;

    config.fork_status = IBV_FORK_DISABLED;
    sim_begin(&config);
    sim_fail_named("fork_init", 0, 1, EINVAL);
    CHECK_INT_EQ(fake_host_try_open(&host, &rdti_transport_verbs, &err), RDT_ENOTVIABLE);
    CHECK_INT_EQ(err.sys_errno, EINVAL);
    CHECK_STR_CONTAINS(err.message, "ibv_fork_init");
    CHECK_UINT_EQ(sim_fork_inits(), 1);
    CHECK_UINT_EQ(sim_live_objects(), 0);
    sim_end();
}

TEST_MAIN()
