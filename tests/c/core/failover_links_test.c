/* SPDX-License-Identifier: Apache-2.0
 * Two links join two processes, which may use what they like, and one link is cut permanently while
 * everything is in flight, at any moment: the other carries all of it, every byte and notification
 * once and in order, and the pair never moves to tcp. On the sim. */
#include "failover_rig.h"

/* Whether rank's describe() has lost a link; it is on RDMA all the same. */
static bool
has_lost_a_link(uint32_t rank)
{
    static char text[65536];
    struct rdt_error err = {0};
    size_t needed = 0;

    CHECK_OK(rdt_context_describe(rig.ctx[rank], text, sizeof(text), &needed, &err), &err);
    CHECK_STR_CONTAINS(text, "\"path\":\"verbs\"");
    CHECK_STR_CONTAINS(text, "\"failovers\":0");
    CHECK_MSG(strstr(text, "verbs failed at 2") == NULL, "%s", text);
    return strstr(text, ":1 is down: ") != NULL;
}

/* Everything both ways, once, with one device cut behind n requests (UINT64_MAX: none). */
static uint64_t
run(uint64_t n, bool *has_lost)
{
    const struct sim_config config = config_of(2, n + 1);

    open_rig(&config, RDT_TRANSPORT_AUTO);
    for (uint32_t d = 0; d < 2; d++)
        open_stream(&streams[d], d, config.seed);
    CHECK_UINT_EQ(rdt_endpoint_transport(streams[0].tx), RDT_TRANSPORT_VERBS);
    const uint64_t before = sim_executed();
    if (n != UINT64_MAX)
        sim_cut_after((uint32_t)(n % 2), n, (uint32_t)(n % 11));
    for (uint32_t i = 0; i < STEPS; i++)
        for (uint32_t d = 0; d < 2; d++)
            begin_step(&streams[d], i);
    for (uint32_t d = 0; d < 2; d++)
        end_stream(&streams[d]);
    const uint64_t count = sim_executed() - before;
    *has_lost = false;
    for (uint32_t d = 0; d < 2; d++) {
        CHECK_UINT_EQ(rdt_endpoint_transport(streams[d].tx), RDT_TRANSPORT_VERBS);
        CHECK_UINT_EQ(failovers_of(d), 0);
        *has_lost |= has_lost_a_link(d);
    }
    for (uint32_t d = 0; d < 2; d++)
        close_stream(&streams[d]);
    close_rig();
    return count;
}

/* Sanitizers see the same paths in few runs. */
#define STRIDE (test_timeout_scale() > 1 ? (TEST_TSAN_STRIDE > 1 ? 31u : 11u) : 1u)

TEST_TIMEOUT(one_of_two_links_is_lost_at_any_step, 240)
{
    uint32_t losses = 0;
    uint32_t runs = 0;
    bool has_lost;
    const uint64_t count = run(UINT64_MAX, &has_lost);

    CHECK(!has_lost);
    for (uint64_t n = 0; n < count; n += 7 * STRIDE) {
        (void)run(n, &has_lost);
        losses += has_lost;
        runs++;
    }
    printf("  one lost before %u of %" PRIu64 " requests, %u times seen\n", runs, count, losses);
    CHECK_UINT_GE(runs, 2);
    CHECK_UINT_GE(losses, runs / 2);
}

TEST_MAIN()
