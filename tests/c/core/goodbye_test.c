/* SPDX-License-Identifier: Apache-2.0
 * A goodbye and the word that bytes are in place go by different ways: who leaves the moment that
 * they are leaves nobody with an error for what arrived. */
#include "endpoint/endpoint_impl.h"
#include "pair_rig.h"
#include "process/process.h"

enum { TURNS = 60 };

static const uint32_t transports[] = {RDT_TRANSPORT_SHM, RDT_TRANSPORT_TCP, RDT_TRANSPORT_VERBS};
static const uint64_t sizes[] = {8, 3000, 500000};

struct side {
    struct pair pair;
    rdt_region *region;
    struct rdt_remote_region remote;
};

static void
begin(struct side *side, uint32_t transport, uint64_t len_bytes)
{
    struct rdt_error err = {0};

    pair_open(&side->pair, transport);
    check_ok(rdt_region_alloc(side->pair.ctx[1], len_bytes, 0, &side->region, &err), &err, "alloc");
    check_ok(rdt_region_export(side->region, &side->remote, &err), &err, "export");
}

static void
end(struct side *side)
{
    rdt_region_free(side->region, NULL, NULL);
    pair_close(&side->pair);
}

/* Rank 1 leaves once the notification says that the bytes are there. */
static void
leave_when_it_is_there(uint32_t transport, const uint8_t *bytes, uint64_t len_bytes)
{
    struct rdt_error err = {0};
    struct side side;
    rdt_transfer *t;
    uint32_t value = 0;

    begin(&side, transport, len_bytes);
    rdt_endpoint **left = &side.pair.ep[1];
    check_ok(rdt_endpoint_write(side.pair.ep[0], bytes, len_bytes, &side.remote, 0, 7, &t, &err),
             &err, "write");
    check_ok(rdt_endpoint_wait_notify(*left, 10 * RIG_S, &value, &err), &err, "wait_notify");
    rdt_endpoint_close(*left);
    *left = NULL;
    check_ok(rdt_transfer_wait(t, 10 * RIG_S, &err), &err, "a write that arrived");
    rdt_transfer_free(t);
    CHECK_MEM_EQ(rdt_region_addr(side.region), bytes, len_bytes);
    CHECK_EVENTUALLY(rdt_endpoint_error(side.pair.ep[0], &err) == RDT_EPEER, 10);
    CHECK_STR_CONTAINS(err.message, "left");
    end(&side);
}

TEST_TIMEOUT(a_write_that_arrived_ends_well_though_its_target_leaves, 120)
{
    static uint8_t bytes[500000];

    for (uint64_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    for (int t = pair_first_transport(); t < 3; t++)
        for (int turn = 0; turn < TURNS / (t == 2 ? 6 : 1); turn++)
            leave_when_it_is_there(transports[t], bytes, sizes[turn % 3]);
}

/* Who goes on writing to somebody that has left is told so, and not for ever kept in the belief
 * that it has not. */
TEST_TIMEOUT(a_goodbye_is_heard_by_who_never_stops_writing, 60)
{
    for (int t = pair_first_transport(); t < 2; t++) {
        static const uint8_t bytes[3000];
        struct rdt_error err = {0};
        const uint64_t deadline_ns = test_now_ns() + (uint64_t)(10e9 * test_timeout_scale());
        struct side side;
        rdt_status status = RDT_OK;
        begin(&side, transports[t], sizeof(bytes));
        rdt_endpoint_close(side.pair.ep[1]);
        side.pair.ep[1] = NULL;
        while (status == RDT_OK && test_now_ns() < deadline_ns)
            status = rdt_endpoint_write(side.pair.ep[0], bytes, sizeof(bytes), &side.remote, 0,
                                        RDT_NOTIFY_NONE, NULL, &err);
        CHECK_STATUS(status, RDT_EPEER);
        CHECK_STR_CONTAINS(err.message, "left");
        end(&side);
    }
}

/* ---- Opened again ---------------------------------------------------------------------------- */

enum { ON_ITS_WAY_BYTES = 32 << 20 }; /* more than sockets take before somebody reads */

static bool
has_said_goodbye(rdt_context *ctx, const rdt_endpoint *ep)
{
    rdti_engine_enter(ctx->engine);
    const bool has_said = ep->said_goodbye;
    rdti_engine_leave(ctx->engine);
    return has_said;
}

/* Whoever opens while the word of the last bytes is awaited means the time after that goodbye, and
 * must not be given what is about to end. Held locks stand for processes that are slow. */
TEST_TIMEOUT(who_opens_behind_a_goodbye_gets_another_endpoint, 60)
{
    struct rdt_error err = {0};
    struct side side;
    rdt_endpoint *again[2];
    uint8_t *bytes = calloc(1, ON_ITS_WAY_BYTES);
    rdt_transfer *t;

    CHECK_NOT_NULL(bytes);
    begin(&side, RDT_TRANSPORT_TCP, ON_ITS_WAY_BYTES);
    struct pair *pair = &side.pair;
    rdti_engine_enter(pair->ctx[0]->engine); /* it hears nothing yet */
    rdt_endpoint_close(pair->ep[1]);
    CHECK_EVENTUALLY(has_said_goodbye(pair->ctx[1], pair->ep[1]), 10);
    pair->ep[1] = NULL;
    rdti_engine_enter(pair->ctx[1]->engine); /* it takes nothing any more */
    check_ok(rdt_endpoint_write(pair->ep[0], bytes, ON_ITS_WAY_BYTES, &side.remote, 0, 7, &t, &err),
             &err, "write");
    while (pair->ep[0]->goodbye_ns == 0 && !rdti_endpoint_is_ended(pair->ep[0]))
        rdti_channel_drain(pair->ep[0]->channel);
    CHECK_INT_EQ(rdti_endpoint_get_state(pair->ep[0]), RDTI_EP_READY); /* it waits for the word */
    endpoint_make(pair->ctx[0], pair->ctx[1], 1, &again[0]);
    CHECK(again[0] != pair->ep[0]);
    rdti_engine_leave(pair->ctx[0]->engine);
    rdti_engine_leave(pair->ctx[1]->engine);
    endpoint_make(pair->ctx[1], pair->ctx[0], 0, &again[1]);
    for (int i = 0; i < 2; i++)
        check_ok(rdt_endpoint_wait_ready(again[i], 10 * RIG_S, &err), &err, "the new one");
    const rdt_status how = rdt_transfer_wait(t, 10 * RIG_S, &err);
    CHECK_MSG(how == RDT_OK || how == RDT_EPEER, "%s", err.message); /* in time, or too slow */
    rdt_transfer_free(t);
    for (int i = 0; i < 2; i++) /* the old one's end takes nothing of the new one with it */
        check_ok(rdt_endpoint_wait_ready(again[i], 0, &err), &err, "the new one");
    for (int i = 0; i < 2; i++)
        rdt_endpoint_close(again[i]);
    end(&side);
    free(bytes);
}

TEST_MAIN()
