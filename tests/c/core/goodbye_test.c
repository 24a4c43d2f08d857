/* SPDX-License-Identifier: Apache-2.0
 * A goodbye and the word that bytes are in place go by different ways: who leaves the moment that
 * they are leaves nobody with an error for what arrived. */
#include "core/context.h"
#include "pair_rig.h"

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

TEST_MAIN()
