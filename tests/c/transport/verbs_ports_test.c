/* SPDX-License-Identifier: Apache-2.0
 * Devices with several ports: which are taken, and which path of several is used. On the sim. */
#include "../harness.h"

#include "transport/verbs/lane.h"
#include "verbs_rig.h"

static const struct sim_gid address = {.text = "::ffff:10.0.0.7"};

/* Three ports that cannot be used before the one that can, whose table has holes. */
static struct sim_config
four_ports(void)
{
    struct sim_config config = sim_default();
    struct sim_device_config *device = &config.devices[0];

    device->is_down = true;
    device->more_ports = 3;
    device->more[0] = (struct sim_port_config){.query_errno = EINVAL, .gids = {address}};
    device->more[1] = (struct sim_port_config){.is_down = false}; /* no address */
    device->more[2].gids[5] = address;
    return config;
}

TEST(every_port_of_a_device_is_looked_at)
{
    const struct sim_config config = four_ports();
    struct verbs_pair p;
    char text[256];

    verbs_pair_open(&p, &config);
    const struct rdti_verbs *verbs = p.a.state;
    CHECK_UINT_EQ(verbs->nic_count, 1);
    CHECK_UINT_EQ(verbs->nics[0].port, 4);
    CHECK_STR_CONTAINS(verbs->skipped, "sim0 port 1: its state is 1, not active");
    CHECK_STR_CONTAINS(verbs->skipped, "sim0 port 2: ibv_query_port");
    CHECK_STR_CONTAINS(verbs->skipped, "sim0 port 3: its GID table is empty");
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:4 GID 5 ::ffff:10.0.0.7 to ::ffff:10.0.0.7");
    verbs_write_and_check(&p, 5000, false);
    verbs_pair_close(&p);
}

TEST(a_port_that_is_named_is_the_one_that_is_used)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;

    config.devices[0].more_ports = 2;
    config.devices[0].more[0].gids[0].text = "::ffff:10.0.2.1";
    config.devices[0].more[1].gids[0].text = "::ffff:10.0.3.1";
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim0:2", 1), 0);
    verbs_pair_open(&p, &config);
    const struct rdti_verbs *verbs = p.a.state;
    CHECK_UINT_EQ(verbs->nic_count, 1);
    CHECK_UINT_EQ(verbs->nics[0].port, 2);
    verbs_write_and_check(&p, 5000, false);
    verbs_pair_close(&p);
}

/* Ports of one device are links as those of several are. */
TEST(two_ports_of_a_device_are_two_links)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[1024];

    config.devices[0].more_ports = 1;
    config.devices[0].more[0].gids[3].text = "::ffff:10.0.2.1";
    verbs_pair_open(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 GID 1 ::ffff:10.0.0.1 to ::ffff:10.0.0.1");
    CHECK_STR_CONTAINS(text, "sim0:2 GID 3 ::ffff:10.0.2.1 to ::ffff:10.0.2.1");
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_pair_close(&p);
}

TEST(no_more_ports_are_used_than_links_are_asked_for)
{
    static const char *const counts[] = {"1", "2", "4"};

    for (uint32_t i = 0; i < 3; i++) {
        struct sim_config config = sim_default();
        struct verbs_pair p;

        config.device_count = 3;
        CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_LINKS", counts[i], 1), 0);
        verbs_pair_open(&p, &config);
        const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)p.ab.lane;
        CHECK_UINT_EQ(lane->link_count, i + 1);
        CHECK_UINT_EQ(lane->qp_count, i + 1);
        if (i < 2)
            CHECK_STR_CONTAINS(lane->verbs->skipped,
                               "sim2 port 1: enough others (RDMATENSOR_VERBS_LINKS)");
        verbs_write_and_check(&p, 3 << 20, false);
        verbs_pair_close(&p);
    }
}

/* Four devices: an address of the link alone, RoCE v1, one that no network device has, and a good
 * one. */
static struct sim_config
good_ones_last(void)
{
    static const struct sim_gid gids[] = {
        {.text = "fe80::7"},
        {.text = "::ffff:10.0.1.7", .is_v1 = true},
        {.text = "::ffff:10.0.2.7", .is_unbound = true},
        {.text = "::ffff:10.0.3.7"},
    };
    struct sim_config config = sim_default();

    config.device_count = 4;
    for (uint32_t i = 0; i < 4; i++) {
        memset(config.devices[i].gids, 0, sizeof(config.devices[i].gids));
        config.devices[i].gids[0] = gids[i];
    }
    return config;
}

TEST(of_more_ports_than_links_those_with_the_best_addresses_are_used)
{
    static const struct {
        const char *links;
        const char *names[3];
        const char *skipped;
    } cases[] = {
        {"1", {"sim3"}, "sim2 port 1: enough others (RDMATENSOR_VERBS_LINKS)"},
        {"2", {"sim2", "sim3"}, "sim0 port 1: enough others (RDMATENSOR_VERBS_LINKS)"},
        {"3", {"sim0", "sim2", "sim3"}, "sim1 port 1: enough others (RDMATENSOR_VERBS_LINKS)"},
    };

    for (uint32_t i = 0; i < 3; i++) {
        const struct sim_config config = good_ones_last();
        struct verbs_pair p;

        CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_LINKS", cases[i].links, 1), 0);
        verbs_pair_open(&p, &config);
        const struct rdti_verbs *verbs = p.a.state;
        CHECK_UINT_EQ(verbs->nic_count, i + 1);
        for (uint32_t k = 0; k <= i; k++)
            CHECK_STR_EQ(verbs->nics[k].name, cases[i].names[k]);
        CHECK_STR_CONTAINS(verbs->skipped, cases[i].skipped);
        verbs_write_and_check(&p, 3 << 20, false);
        verbs_pair_close(&p);
    }
}

/* Host a on sim0, b on sim1. */
static void
open_apart(struct verbs_pair *p, const struct sim_config *config)
{
    memset(p, 0, sizeof(*p));
    sim_begin(config);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim0", 1), 0);
    fake_host_open(&p->a, &rdti_transport_verbs);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "sim1", 1), 0);
    fake_host_open(&p->b, &rdti_transport_verbs);
    fake_connect(&p->a, &p->ab, &p->b, &p->ba, NULL);
}

/* A port on each of six networks, which the two hosts have in opposite orders: more than a peer is
 * offered, and both offer the same four. */
TEST(of_equal_ports_both_sides_keep_those_of_the_same_networks)
{
    enum { NETS = 6, KEPT = 4 };
    static char addresses[2][NETS][24];
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[2048];
    char want[64];

    config.device_count = 2;
    for (uint32_t host = 0; host < 2; host++)
        for (uint32_t at = 0; at < NETS; at++) {
            struct sim_device_config *device = &config.devices[host];
            struct sim_gid *gids = at == 0 ? device->gids : device->more[at - 1].gids;

            (void)snprintf(addresses[host][at], sizeof(addresses[host][at]), "::ffff:10.1.%u.%u",
                           host == 0 ? at : NETS - 1 - at, host + 1);
            memset(gids, 0, SIM_GIDS_MAX * sizeof(*gids));
            gids[0].text = addresses[host][at];
            device->more_ports = at;
        }
    open_apart(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    for (uint32_t net = 0; net < KEPT; net++) {
        (void)snprintf(want, sizeof(want), "::ffff:10.1.%u.1 to ::ffff:10.1.%u.2", net, net);
        CHECK_STR_CONTAINS(text, want);
    }
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_pair_close(&p);
}

/* Rails of two ports each, which the hosts have in one order or in opposite ones. */
static void
check_rails(const char *const a[2], const char *const b[2], bool is_opposite)
{
    struct sim_config config = sim_default();
    struct verbs_pair p;
    char text[1024];
    char want[128];

    config.device_count = 2;
    for (uint32_t host = 0; host < 2; host++) {
        struct sim_device_config *device = &config.devices[host];

        memset(device->gids, 0, sizeof(device->gids));
        device->gids[0].text = host == 0 ? a[0] : b[is_opposite];
        device->more_ports = 1;
        device->more[0].gids[0].text = host == 0 ? a[1] : b[!is_opposite];
    }
    open_apart(&p, &config);
    p.a.transport->explain(p.ab.lane, text, sizeof(text));
    for (uint32_t rail = 0; rail < 2; rail++) {
        (void)snprintf(want, sizeof(want), "%s to %s", a[rail], b[rail]);
        CHECK_STR_CONTAINS(text, want);
    }
    verbs_write_and_check(&p, 3 << 20, false);
    verbs_pair_close(&p);
}

/* Of 16 bits, of 22, of 30 and, by IPv6, of 48 and 126. */
TEST(ports_meet_on_rails_of_any_width)
{
    static const char *const rails[][2][2] = {
        {{"::ffff:10.1.0.5", "::ffff:10.2.0.5"}, {"::ffff:10.1.9.7", "::ffff:10.2.9.7"}},
        {{"::ffff:10.0.4.5", "::ffff:10.0.8.5"}, {"::ffff:10.0.7.7", "::ffff:10.0.11.7"}},
        {{"::ffff:10.0.0.1", "::ffff:10.0.0.5"}, {"::ffff:10.0.0.2", "::ffff:10.0.0.6"}},
        {{"2001:db8:1:1::5", "2001:db8:2:1::5"}, {"2001:db8:1:2::7", "2001:db8:2:2::7"}},
        {{"2001:db8::1", "2001:db8::5"}, {"2001:db8::2", "2001:db8::6"}},
    };

    for (size_t i = 0; i < sizeof(rails) / sizeof(rails[0]); i++)
        check_rails(rails[i][0], rails[i][1], true);
}

/* Behind their prefix there are device addresses: port meets port in the order of the offers. */
TEST(likeness_of_link_local_addresses_says_nothing)
{
    static const char *const a[] = {"fe80::3", "fe80::4"};
    static const char *const b[] = {"fe80::6", "fe80::1"};

    check_rails(a, b, false);
}

TEST_MAIN()
