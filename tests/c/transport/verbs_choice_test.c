/* SPDX-License-Identifier: Apache-2.0
 * Which addresses two processes choose, and what both QPs of a path are raised with. On the sim. */
#include "../harness.h"

#include <fcntl.h>

#include "transport/verbs/device/gid.h"
#include "transport/verbs/lane.h"
#include "verbs_rig.h"

/* ---- Which GID ------------------------------------------------------------------------------ */

/* Host a on sim0, b on sim1, each with these GIDs. */
static struct sim_config
config_of(const struct sim_gid *a, uint32_t a_count, const struct sim_gid *b, uint32_t b_count)
{
    struct sim_config config = sim_default();

    config.device_count = 2;
    memset(config.devices[0].gids, 0, sizeof(config.devices[0].gids));
    memset(config.devices[1].gids, 0, sizeof(config.devices[1].gids));
    memcpy(config.devices[0].gids, a, a_count * sizeof(*a));
    memcpy(config.devices[1].gids, b, b_count * sizeof(*b));
    return config;
}

static void
open_hosts(struct verbs_pair *p, const struct sim_config *config)
{
    memset(p, 0, sizeof(*p));
    sim_begin(config);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim0", 1), 0);
    fake_host_open(&p->a, &rdti_transport_verbs);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim1", 1), 0);
    fake_host_open(&p->b, &rdti_transport_verbs);
}

static struct ibv_qp *
qp_of(const struct fake_link *link, uint32_t index)
{
    return ((const struct rdti_verbs_lane *)link->lane)->qps[index]->qp;
}

/* Where its packets come from and go to, as entries of the two tables. */
static void
check_route(const struct fake_link *link, uint32_t own_index, const char *peer_gid)
{
    const struct ibv_qp_attr attr = sim_attr_of(qp_of(link, 0));
    char text[48];

    rdti_verbs_gid_text(attr.ah_attr.grh.dgid.raw, text, sizeof(text));
    CHECK_UINT_EQ(attr.ah_attr.grh.sgid_index, own_index);
    CHECK_STR_EQ(text, peer_gid);
}

struct choice {
    const char *what;
    struct sim_gid a[4];
    struct sim_gid b[4];
    uint32_t a_index; /* which is chosen */
    uint32_t b_index;
};

/* In each the one that is meant stands last, or in the middle: order decides nothing. */
static const struct choice choices[] = {
    {"RoCE v2 over v1",
     {{.text = "::ffff:10.0.0.1", .is_v1 = true}, {.text = "::ffff:10.0.0.1"}},
     {{.text = "::ffff:10.0.0.2", .is_v1 = true}, {.text = "::ffff:10.0.0.2"}},
     1,
     1},
    {"of equals the one with a network device",
     {{.text = "::ffff:10.0.0.1", .is_unbound = true}, {.text = "::ffff:10.0.0.3"}},
     {{.text = "::ffff:10.0.0.2", .is_unbound = true}, {.text = "::ffff:10.0.0.4"}},
     1,
     1},
    {"the same subnet as the peer",
     {{.text = "::ffff:10.0.1.1"}, {.text = "::ffff:10.0.2.1"}, {.text = "::ffff:10.0.3.1"}},
     {{.text = "::ffff:10.0.4.2"}, {.text = "::ffff:10.0.5.2"}, {.text = "::ffff:10.0.2.2"}},
     1,
     2},
    {"a global address over a link-local one",
     {{.text = "fe80::1"}, {.text = "2001:db8:1::1"}},
     {{.text = "fe80::2"}, {.text = "2001:db8:2::2"}},
     1,
     1},
    {"a global address over a unique local one",
     {{.text = "fd00:1::1"}, {.text = "2001:db8:1::1"}},
     {{.text = "fd00:2::2"}, {.text = "2001:db8:2::2"}},
     1,
     1},
    {"an IPv4 address over all of IPv6",
     {{.text = "fe80::1"}, {.text = "2001:db8:1::1"}, {.text = "::ffff:10.1.0.1"}},
     {{.text = "fe80::2"}, {.text = "2001:db8:2::2"}, {.text = "::ffff:10.2.0.2"}},
     2,
     2},
    {"v1 where one side has no other",
     {{.text = "::ffff:10.0.0.1"}, {.text = "::ffff:10.0.0.1", .is_v1 = true}},
     {{.text = "::ffff:10.0.0.2", .is_v1 = true}},
     1,
     0},
};

static void
check_choice(const struct choice *choice)
{
    const struct sim_config config = config_of(choice->a, 4, choice->b, 4);
    struct verbs_pair p;

    printf("  %s\n", choice->what);
    open_hosts(&p, &config);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    check_route(&p.ab, choice->a_index, choice->b[choice->b_index].text);
    check_route(&p.ba, choice->b_index, choice->a[choice->a_index].text);
    verbs_write_and_check(&p, 5000, false);
    verbs_pair_close(&p);
}

TEST(both_sides_choose_the_best_pair_of_addresses)
{
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        check_choice(&choices[i]);
}

/* A list with an entry for each device, which are two links of one lane. */
TEST(each_device_has_its_own_gid_index)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;

    config.device_count = 2;
    config.devices[0].gids[4].text = "2001:db8:1::1";
    config.devices[1].gids[5].text = "2001:db8:2::2";
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_GID_INDEX", "sim1=5,sim0=4", 1), 0);
    verbs_pair_open(&p, &config);
    const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)p.ab.lane;
    CHECK_UINT_EQ(lane->link_count, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const bool is_first = strcmp(lane->links[i].nic->name, "sim0") == 0;
        const struct ibv_qp_attr attr = sim_attr_of(lane->links[i].qps[0]->qp);
        char text[48];

        rdti_verbs_gid_text(attr.ah_attr.grh.dgid.raw, text, sizeof(text));
        CHECK_UINT_EQ(attr.ah_attr.grh.sgid_index, is_first ? 4 : 5);
        CHECK_STR_EQ(text, is_first ? "2001:db8:1::1" : "2001:db8:2::2");
    }
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_pair_close(&p);
}

/* ---- What both sides use -------------------------------------------------------------------- */

static void
set_all(const char *level, const char *class, const char *timeout, const char *retry)
{
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_SL", level, 1), 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_TC", class, 1), 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_TIMEOUT", timeout, 1), 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_RETRY", retry, 1), 0);
}

static void
check_used(const struct fake_link *link, uint32_t level, uint32_t class, uint32_t timeout,
           uint32_t retry)
{
    const struct ibv_qp_attr attr = sim_attr_of(qp_of(link, 0));

    CHECK_UINT_EQ(attr.ah_attr.sl, level);
    CHECK_UINT_EQ(attr.ah_attr.grh.traffic_class, class);
    CHECK_UINT_EQ(attr.ah_attr.grh.flow_label, 0); /* the UDP port is then the QP's own */
    CHECK_UINT_EQ(attr.timeout, timeout);
    CHECK_UINT_EQ(attr.retry_cnt, retry);
}

/* Settings of the connector, of the listener, or of both. */
static void
check_agreed(bool is_connector_set, bool is_listener_set)
{
    const struct sim_config config = sim_default();
    const bool is_set = is_connector_set || is_listener_set;
    struct verbs_pair p;

    memset(&p, 0, sizeof(p));
    sim_begin(&config);
    set_all("", "", "", "");
    if (is_connector_set)
        set_all("3", "104", "11", "2");
    fake_host_open(&p.a, &rdti_transport_verbs);
    set_all("", "", "", "");
    if (is_listener_set)
        set_all("5", "8", "12", "4");
    fake_host_open(&p.b, &rdti_transport_verbs);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    const struct fake_link *links[] = {&p.ab, &p.ba};
    for (int i = 0; i < 2; i++) {
        if (is_connector_set) /* what the connector says counts, where both say something */
            check_used(links[i], 3, 104, 11, 2);
        else if (is_set)
            check_used(links[i], 5, 8, 12, 4);
        else
            check_used(links[i], 0, 0, RDTI_VERBS_TIMEOUT, RDTI_VERBS_RETRY);
    }
    verbs_write_and_check(&p, 5000, false);
    verbs_pair_close(&p);
}

TEST(one_sides_setting_is_both_sides)
{
    check_agreed(true, false);
    check_agreed(false, true);
    check_agreed(true, true);
    check_agreed(false, false);
}

/* PSNs are random: no two QPs begin alike, and each receives from where its peer sends. */
TEST(no_two_lanes_begin_at_one_psn)
{
    const struct sim_config config = sim_default();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;
    uint32_t psns[4];

    verbs_pair_open(&p, &config);
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    const struct fake_link *links[] = {&p.ab, &p.ba, &ab2, &ba2};
    for (uint32_t i = 0; i < 4; i++) {
        psns[i] = sim_attr_of(qp_of(links[i], 0)).sq_psn;
        CHECK_UINT_LE(psns[i], 0xffffff);
        CHECK_UINT_EQ(sim_attr_of(qp_of(links[i ^ 1], 0)).rq_psn, psns[i]);
        for (uint32_t j = 0; j < i; j++)
            CHECK_INT_NE(psns[i], psns[j]);
    }
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

/* ---- What is said of it --------------------------------------------------------------------- */

/* stderr is a pipe meanwhile. */
struct capture {
    int ends[2];
    int real;
};

static void
capture_begin(struct capture *c)
{
    CHECK_INT_EQ(pipe2(c->ends, O_CLOEXEC | O_NONBLOCK), 0);
    c->real = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    CHECK_INT_GE(c->real, 0);
    CHECK_INT_EQ(dup2(c->ends[1], STDERR_FILENO), STDERR_FILENO);
}

/* What was logged; valid until the next call. */
static const char *
capture_end(struct capture *c)
{
    static char text[65536];

    CHECK_INT_EQ(dup2(c->real, STDERR_FILENO), STDERR_FILENO);
    const ssize_t got = read(c->ends[0], text, sizeof(text) - 1);
    text[got > 0 ? got : 0] = '\0';
    CHECK_INT_EQ(close(c->real), 0);
    CHECK_INT_EQ(close(c->ends[0]), 0);
    CHECK_INT_EQ(close(c->ends[1]), 0);
    return text;
}

/* Connects; what was logged. */
static const char *
lines_of_connecting(struct verbs_pair *p, const struct sim_config *config)
{
    struct capture capture;

    open_hosts(p, config);
    rdt_log_set_level(RDT_LOG_INFO);
    capture_begin(&capture);
    fake_connect(&p->a, &p->ab, &p->b, &p->ba, NULL);
    return capture_end(&capture);
}

static uint32_t
count_of(const char *text, const char *part)
{
    uint32_t count = 0;

    for (; (text = strstr(text, part)) != NULL; text += strlen(part))
        count++;
    return count;
}

/* One line of each side. */
TEST(the_choice_is_logged_in_one_line_with_its_reason)
{
    const struct sim_gid a[] = {{.text = "fe80::1"}, {.text = "::ffff:10.0.0.1"}};
    const struct sim_gid b[] = {{.text = "::ffff:10.0.0.2"}, {.text = "fe80::2"}};
    const struct sim_config config = config_of(a, 2, b, 2);
    struct verbs_pair p;

    const char *text = lines_of_connecting(&p, &config);
    CHECK_UINT_EQ(count_of(text, "proved by a write each way"), 2);
    CHECK_STR_CONTAINS(text, "INFO verbs: rank 1 by sim0 port 1, GID 1 ::ffff:10.0.0.1 to "
                             "::ffff:10.0.0.2, 1 QPs: pair 1 of 2 (RoCE v2, IPv4, one subnet), "
                             "proved by a write each way\n");
    CHECK_STR_CONTAINS(text, "by sim1 port 1, GID 0 ::ffff:10.0.0.2 to ::ffff:10.0.0.1");
    verbs_pair_close(&p);
}

/* The reasons are those of this pair. */
static void
check_reason(const struct sim_gid *a, const struct sim_gid *b, const char *gid_index,
             const char *reason)
{
    const struct sim_config config = config_of(a, 1, b, 1);
    struct verbs_pair p;

    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_GID_INDEX", gid_index, 1), 0);
    CHECK_STR_CONTAINS(lines_of_connecting(&p, &config), reason);
    verbs_pair_close(&p);
}

TEST(the_reason_is_that_of_the_pair)
{
    check_reason(&(struct sim_gid){.text = "::ffff:10.0.0.1", .is_v1 = true},
                 &(struct sim_gid){.text = "::ffff:10.0.3.2", .is_v1 = true}, "",
                 "pair 1 of 1 (RoCE v1, IPv4, 22 bits of the addresses alike), proved");
    check_reason(&(struct sim_gid){.text = "2001:db8:1::1"},
                 &(struct sim_gid){.text = "2001:db8:1::2"}, "0",
                 "pair 1 of 1 (RoCE v2, global IPv6, one subnet, GID by "
                 "RDMATENSOR_VERBS_GID_INDEX), proved");
    check_reason(&(struct sim_gid){.text = "fd00:1::1"}, &(struct sim_gid){.text = "fd00:2::2"}, "",
                 "pair 1 of 1 (RoCE v2, unique local IPv6, 30 bits of the addresses alike)");
}

/* Who reads the log could write into the memory of the job. The sim's keys begin alike. */
TEST(no_key_is_told_above_debug)
{
    const struct sim_gid gids[] = {{.text = "::ffff:10.0.0.1"}};
    const struct sim_config config = config_of(gids, 1, gids, 1);
    struct capture capture;
    struct verbs_pair p;
    struct fake_op op;
    char told[4096];

    open_hosts(&p, &config);
    rdt_log_set_level(RDT_LOG_INFO);
    capture_begin(&capture);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    verbs_write_and_check(&p, 1000, true);
    struct fake_region *region = fake_region(&p.b, 64);
    struct rdt_remote_region gone = region->remote;
    gone.generation++;
    fake_write(&op, "12345678", 8, &gone, 0, 1);
    fake_must_start(&p.ab, &op);
    VERBS_PUMP(&p, fake_op_is_done(&op));
    p.a.transport->explain(p.ab.lane, told, sizeof(told));
    verbs_pair_close(&p);
    const char *logged = capture_end(&capture);
    CHECK_STR_CONTAINS(logged, "INFO verbs: rank 1 by sim0"); /* it was captured */
    CHECK_INT_NE(op.status, RDT_OK);
    for (uint32_t key = SIM_RKEYS_FROM; key <= SIM_RKEYS_FROM + 64; key++) {
        char words[3][16];

        (void)snprintf(words[0], sizeof(words[0]), "%u", key);
        (void)snprintf(words[1], sizeof(words[1]), "%x", key);
        (void)snprintf(words[2], sizeof(words[2]), "%X", key);
        for (int i = 0; i < 3; i++)
            CHECK_MSG(strstr(logged, words[i]) == NULL && strstr(told, words[i]) == NULL &&
                          strstr(op.error.message, words[i]) == NULL,
                      "a key, %s, is told: %s%s%s", words[i], logged, told, op.error.message);
    }
}

/* ---- The proof ------------------------------------------------------------------------------ */

/* Only the second QP of the first link does not reach its peer: that link is left out, as its
 * writes are striped over both. */
TEST(a_link_with_one_qp_that_does_not_reach_is_left_out)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[512];

    config.device_count = 2;
    config.lost_qps = 1 << 2;
    config.retry_ns = 1000000;
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", "2", 1), 0);
    verbs_pair_open(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim1:1");
    CHECK_MSG(strstr(text, "sim0") == NULL, "%s", text);
    verbs_write_and_check(&p, 3 << 20, false);
    CHECK_UINT_EQ(p.ab.error_count, 0);
    verbs_pair_close(&p);
}

/* ---- InfiniBand ----------------------------------------------------------------------------- */

static struct sim_config
infiniband(void)
{
    struct sim_config config = sim_default();

    config.device_count = 2;
    config.devices[0].lid = 17;
    config.devices[1].lid = 4711;
    return config;
}

TEST(infiniband_ports_meet_by_lid)
{
    struct sim_config config = infiniband();
    struct verbs_pair p;
    char text[512];

    memset(config.devices[0].gids, 0, sizeof(config.devices[0].gids)); /* it needs none */
    open_hosts(&p, &config);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    const struct ibv_qp_attr attr = sim_attr_of(qp_of(&p.ab, 0));
    CHECK_UINT_EQ(attr.ah_attr.is_global, 0);
    CHECK_UINT_EQ(attr.ah_attr.dlid, 4711);
    CHECK_UINT_EQ(sim_attr_of(qp_of(&p.ba, 0)).ah_attr.dlid, 17);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 LID 17 to LID 4711");
    verbs_write_and_check(&p, 5000, false);
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_write_and_check(&p, 1 << 20, true);
    verbs_pair_close(&p);
}

TEST(a_lid_that_changes_ends_the_paths_that_use_it)
{
    const struct sim_config config = infiniband();
    struct fake_link ab2;
    struct fake_link ba2;
    struct verbs_pair p;

    open_hosts(&p, &config);
    fake_connect(&p.a, &p.ab, &p.b, &p.ba, NULL);
    sim_raise_event(0, IBV_EVENT_LID_CHANGE); /* to what it was */
    for (int i = 0; i < 100; i++) {
        (void)fake_pump(&p.a);
        (void)fake_pump(&p.b);
    }
    CHECK_UINT_EQ(p.ab.error_count, 0);
    sim_change_lid(0, 18);
    VERBS_PUMP(&p, p.ab.error_count == 1);
    CHECK_INT_EQ(p.ab.error.status, RDT_EDEVICE);
    CHECK_STR_CONTAINS(p.ab.error.message, "device sim0 port 1 reports \"LID change\"");
    CHECK_STR_CONTAINS(p.ab.error.message, "the subnet manager moved it");
    fake_connect(&p.a, &ab2, &p.b, &ba2, NULL);
    CHECK_UINT_EQ(sim_attr_of(qp_of(&ba2, 0)).ah_attr.dlid, 18);
    fake_disconnect(&ab2, &ba2);
    verbs_pair_close(&p);
}

TEST(an_ethernet_port_and_an_infiniband_port_do_not_meet)
{
    struct sim_config config = infiniband();
    struct verbs_pair p;
    int side[2];

    config.devices[1].lid = 0;
    open_hosts(&p, &config);
    fake_side_channel(side);
    const struct rdti_lane_args listener = fake_lane_args(false);
    const struct rdti_lane_args connector = fake_lane_args(true);
    fake_link_open(&p.b, &p.ba, side[1], &listener);
    fake_link_open(&p.a, &p.ab, side[0], &connector);
    VERBS_PUMP(&p, p.ba.is_offered);
    CHECK_INT_EQ(p.ba.connect_status, RDT_ENOTVIABLE);
    CHECK_STR_CONTAINS(p.ba.connect_error.message, "differ in link layer");
    verbs_pair_close(&p);
}

TEST_MAIN()
