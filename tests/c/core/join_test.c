/* SPDX-License-Identifier: Apache-2.0
 * A JOIN that a stranger saw under way and says again, to either end: refused and logged once, and
 * the endpoint goes on, also while it moves from verbs to tcp. */
#include "base/crypto.h"
#include "base/error.h"
#include "diversion.h"
#include "endpoint/endpoint_impl.h"
#include "endpoint/setup.h"
#include "failover_rig.h"
#include "stranger_rig.h"
#include "wire/handshake.h"

enum { NO_PLACE = 7 };

/* What was said for this place, as far as a listener can tell: it keeps no nonce. */
static void
make_join(rdt_endpoint *ep, uint32_t index, uint8_t out[RDTI_JOIN_BYTES])
{
    struct rdti_join join = {.index = index};

    memcpy(join.session_id, ep->session_id, sizeof(join.session_id));
    rdti_join_encode(&join, out);
    rdti_join_mac(ep->session_key, out, join.mac);
    rdti_join_encode(&join, out);
}

/* Returns whether the endpoint goes on. */
static bool
replay(rdt_context *ctx, rdt_endpoint *ep, uint32_t index)
{
    const struct rdti_address address = address_of(ctx);
    const int fd = knock(&address, false);
    uint8_t bytes[RDTI_JOIN_BYTES];

    rdti_engine_enter(ctx->engine);
    make_join(ep, index, bytes);
    rdti_engine_leave(ctx->engine);
    say(fd, bytes, sizeof(bytes));
    CHECK(is_closed(fd, 5000));
    (void)close(fd);
    rdti_engine_enter(ctx->engine);
    const bool goes_on = ep->lane_broken_ns == 0 && !rdti_endpoint_is_ended(ep);
    rdti_engine_leave(ctx->engine);
    return goes_on;
}

static void
check_writes(rdt_endpoint *from, rdt_endpoint *to, rdt_context *to_ctx, uint32_t number)
{
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    rdt_transfer *t = NULL;
    uint32_t seen = 0;

    CHECK_OK(rdt_region_alloc(to_ctx, 8, 0, &region, &err), &err);
    CHECK_OK(rdt_region_export(region, &remote, &err), &err);
    CHECK_OK(rdt_endpoint_write(from, "8 bytes", 8, &remote, 0, number, &t, &err), &err);
    CHECK_OK(rig_end(t, &err), &err);
    CHECK_OK(rdt_endpoint_wait_notify(to, rig_patience_ns(), &seen, &err), &err);
    CHECK_UINT_EQ(seen, number);
    CHECK_STR_EQ((const char *)rdt_region_addr(region), "8 bytes");
    rdt_region_free(region, NULL, NULL);
}

TEST(a_replayed_join_ends_nothing)
{
    struct pair pair;
    char all[4096] = {0};
    uint32_t going_on = 0;
    FILE *log = tmpfile();

    CHECK_NOT_NULL(log);
    pair_open(&pair, RDT_TRANSPORT_TCP);
    const int before = divert_stderr(log);
    for (int i = 0; i < 2; i++) { /* one of them took the place, the other connected */
        going_on += replay(pair.ctx[i], pair.ep[i], 0);
        going_on += replay(pair.ctx[i], pair.ep[i], NO_PLACE);
    }
    const unsigned lines = end_diversion(log, before);
    CHECK_UINT_EQ(going_on, 4);
    CHECK_UINT_EQ(lines, 2); /* the first of each process */
    rewind(log);
    (void)!fread(all, 1, sizeof(all) - 1, log);
    (void)fclose(log);
    CHECK_STR_CONTAINS(all, "refused a data stream: tcp: stream 0 of 1 joined again");
    for (uint32_t i = 0; i < 2; i++)
        check_writes(pair.ep[i], pair.ep[1 - i], pair.ctx[1 - i], 5 + i);
    pair_close(&pair);
}

/* Rank 1 is held, so that the move of rank 0 stands where it waits for the other's answer. */
TEST(a_replayed_join_does_not_end_a_move_to_tcp)
{
    const struct sim_config config = config_of(1, 3);
    struct rdt_error err = {0};
    rdt_endpoint *ep[2];

    open_rig(&config, RDT_TRANSPORT_AUTO);
    for (uint32_t i = 0; i < 2; i++)
        ep[i] = rig_ready(rig.group[i], 1 - i);
    CHECK_UINT_EQ(rdt_endpoint_transport(ep[0]), RDT_TRANSPORT_VERBS);
    rdti_engine_enter(rig.ctx[1]->engine);
    rdti_engine_enter(rig.ctx[0]->engine);
    (void)rdti_error_set(&err, RDT_EPEER, 0, "the test says so");
    CHECK(ep[0]->lane->transport->fence(ep[0]->lane, &err));
    rdti_engine_leave(rig.ctx[0]->engine);
    bool is_moving = false;
    for (const uint64_t end_ns = test_now_ns() + rig_patience_ns();
         !is_moving && test_now_ns() < end_ns; test_sleep_ns(200000)) {
        rdti_engine_enter(rig.ctx[0]->engine);
        is_moving = rdti_failover_lane(ep[0]) != NULL;
        rdti_engine_leave(rig.ctx[0]->engine);
    }
    CHECK(is_moving);
    CHECK(replay(rig.ctx[0], ep[0], NO_PLACE));
    rdti_engine_enter(rig.ctx[0]->engine);
    CHECK(rdti_failover_lane(ep[0]) != NULL);
    rdti_engine_leave(rig.ctx[0]->engine);
    rdti_engine_leave(rig.ctx[1]->engine);
    CHECK_EVENTUALLY(failovers_of(0) == 1 && failovers_of(1) == 1, 10);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(replay(rig.ctx[i], ep[i], 0));
        check_writes(ep[i], ep[1 - i], rig.ctx[1 - i], 5 + i);
    }
    close_rig();
}

TEST_MAIN()
