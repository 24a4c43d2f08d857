/* SPDX-License-Identifier: Apache-2.0
 * What path a pair gets where verbs is there, is there on one side, or does not reach: between
 * hosts, which here means without shared memory. */
#include "harness.h"

#include <malloc.h>

#include "endpoint/endpoint_impl.h"
#include "endpoint/setup.h"
#include "memlock.h"
#include "pair_rig.h"
#include "process/process.h"
#include "progress/engine_impl.h"
#include "transport/verbs/lane.h"

static void
open_pair(struct pair *pair, uint32_t force, uint32_t require, bool has_shm)
{
    for (int i = 0; i < 2; i++) {
        context_make(&pair->ctx[i], force, "secret", i);
        pair->ctx[i]->opts.require_transport = require;
        if (!has_shm)
            pair->ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false;
    }
    for (int i = 0; i < 2; i++)
        endpoint_make(pair->ctx[i], pair->ctx[1 - i], 1 - i, &pair->ep[i]);
}

static void
close_pair(struct pair *pair)
{
    for (int i = 0; i < 2; i++)
        pair->ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = true; /* it is open all the same */
    pair_close(pair);
}

static void
check_path(struct pair *pair, uint32_t want)
{
    struct rdt_error err = {0};
    struct rdt_remote_region remote;
    rdt_region *region;
    uint32_t value = 0;

    for (int i = 0; i < 2; i++) {
        check_ok(rdt_endpoint_wait_ready(pair->ep[i], 20 * RIG_S, &err), &err, "wait_ready");
        CHECK_UINT_EQ(rdt_endpoint_transport(pair->ep[i]), want);
    }
    check_ok(rdt_region_alloc(pair->ctx[1], 64, 0, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    rdt_transfer *t;
    check_ok(rdt_endpoint_write(pair->ep[0], "12345678", 8, &remote, 0, 5, &t, &err), &err,
             "write");
    check_ok(rdt_transfer_wait(t, 10 * RIG_S, &err), &err, "transfer_wait");
    rdt_transfer_free(t);
    check_ok(rdt_endpoint_wait_notify(pair->ep[1], 10 * RIG_S, &value, &err), &err, "wait_notify");
    CHECK_UINT_EQ(value, 5);
    CHECK_MEM_EQ(rdt_region_addr(region), "12345678", 8);
    rdt_region_free(region, NULL, NULL);
}

static void
describe(rdt_context *ctx, char *text, size_t cap)
{
    struct rdt_error err = {0};
    size_t needed = 0;

    check_ok(rdt_context_describe(ctx, text, cap, &needed, &err), &err, "describe");
}

TEST(verbs_comes_before_tcp)
{
    const struct sim_config config = sim_default();
    struct pair pair;
    static char text[65536];

    sim_begin(&config);
    open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS, false);
    check_path(&pair, RDT_TRANSPORT_VERBS);
    describe(pair.ctx[0], text, sizeof(text));
    CHECK_STR_CONTAINS(text, "sim0:1 GID 1");
    close_pair(&pair);
    sim_end();
}

/* Its proof came, or it were not READY; to go by its word would repeat what is long over. */
TEST(a_move_that_has_heard_of_nothing_breaks_the_protocol)
{
    const struct rdti_move move = {.transport = RDT_TRANSPORT_TCP, .reason = "it says so"};
    const struct sim_config config = sim_default();
    uint8_t payload[RDTI_FRAME_PAYLOAD_MAX];
    struct rdt_error err = {0};
    struct pair pair;

    sim_begin(&config);
    open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_AUTO, false);
    check_path(&pair, RDT_TRANSPORT_VERBS);
    const size_t len_bytes = rdti_move_encode(&move, payload);
    rdti_engine_enter(pair.ctx[0]->engine);
    CHECK_STATUS(rdti_failover_on_move(pair.ep[0], payload, (uint32_t)len_bytes, &err), RDT_EPROTO);
    CHECK_STR_CONTAINS(err.message, "heard of nothing");
    CHECK(pair.ep[0]->failover == NULL);
    rdti_engine_leave(pair.ctx[0]->engine);
    check_path(&pair, RDT_TRANSPORT_VERBS);
    close_pair(&pair);
    sim_end();
}

/* Rank 1's proof has come, rank 0's is on its way: the device is cut, and rank 1 is made to say
 * that it has it. False: it had. */
static bool
claim_the_proof(struct pair *pair, uint32_t device)
{
    rdt_endpoint *ep = pair->ep[0];
    const rdt_endpoint *peer = pair->ep[1];
    const uint64_t deadline_ns = test_now_ns() + 10 * RIG_S;
    struct rdt_error err = {0};
    bool is_claimed = false;
    bool is_over = false;

    while (!is_claimed && !is_over) {
        rdti_engine_enter(pair->ctx[0]->engine);
        rdti_engine_enter(pair->ctx[1]->engine);
        is_over = ep->setup == NULL || peer->setup == NULL || ep->setup->heard_ready ||
                  peer->setup->said_ready;
        is_claimed = !is_over && ep->setup->is_lane_ready && ep->setup->said_ready;
        if (is_claimed) {
            sim_cut_device(device, true);
            CHECK_OK(rdti_path_on_early(ep, &err), &err);
            CHECK(ep->setup == NULL);
        }
        rdti_engine_leave(pair->ctx[1]->engine);
        rdti_engine_leave(pair->ctx[0]->engine);
        CHECK(test_now_ns() < deadline_ns);
        test_sleep_ns(100000);
    }
    return is_claimed;
}

/* Set-up is over for who hears that its proof has come; a peer that says so too early, and loses a
 * link, has it written again, out of memory that must be there still. */
TEST_TIMEOUT(the_bytes_of_the_proof_outlive_set_up, 60)
{
    enum { ROUNDS = 30, ENOUGH = 2 };
    struct sim_config config = sim_default();
    uint32_t repeated = 0;

    config.device_count = 2;
    config.delay_us = 20000;
    config.retry_ns = 50000000;
    (void)mallopt(M_PERTURB, 0x5a); /* what is freed has other bytes at once */
    for (uint32_t round = 0; round < ROUNDS && repeated < ENOUGH; round++) {
        const uint32_t device = round % 2;
        struct pair pair;

        config.seed = round + 1;
        sim_begin(&config);
        open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_AUTO, false);
        const bool is_claimed = claim_the_proof(&pair, device);
        check_path(&pair, RDT_TRANSPORT_VERBS);
        rdti_engine_enter(pair.ctx[0]->engine);
        const struct rdti_verbs_lane *lane = (const struct rdti_verbs_lane *)pair.ep[0]->lane;
        repeated += is_claimed && lane->again_count > 0;
        rdti_engine_leave(pair.ctx[0]->engine);
        sim_cut_device(device, false);
        close_pair(&pair);
        sim_end();
    }
    CHECK_UINT_GE(repeated, ENOUGH);
}

TEST(shm_comes_before_verbs)
{
    const struct sim_config config = sim_default();
    struct pair pair;

    sim_begin(&config);
    open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS, true);
    check_path(&pair, RDT_TRANSPORT_SHM);
    close_pair(&pair);
    sim_end();
}

/* Devices on both sides and no way between them: tcp, and describe() says why. */
TEST_TIMEOUT(devices_that_do_not_meet_leave_tcp, 60)
{
    const struct sim_config config = sim_default();
    struct pair pair;
    static char text[65536];

    sim_begin(&config);
    sim_cut_device(0, true);
    open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_AUTO, false);
    check_path(&pair, RDT_TRANSPORT_TCP);
    describe(pair.ctx[0], text, sizeof(text));
    CHECK_STR_CONTAINS(text, "no write reached rank");
    CHECK_STR_CONTAINS(text, "\"fallback_bytes\":8,");
    describe(pair.ctx[1], text, sizeof(text));
    CHECK_STR_CONTAINS(text, "\"is_fallback\":true");
    close_pair(&pair);
    sim_end();
}

/* The floor is told once and each reason once, though both sides tell each other theirs. */
static void
check_says_once(const char *message, const char *reason)
{
    static const char floor[] = "verbs is required";
    const char *first = strstr(message, floor);
    const char *why = strstr(message, reason);

    CHECK_MSG(first != NULL && strstr(first + 1, floor) == NULL, "%s", message);
    CHECK_MSG(why != NULL && strstr(why + 1, reason) == NULL, "%s", message);
}

TEST_TIMEOUT(devices_that_do_not_meet_are_an_error_where_verbs_is_required, 60)
{
    const struct sim_config config = sim_default();
    struct rdt_error err = {0};
    struct pair pair;

    sim_begin(&config);
    sim_cut_device(0, true);
    open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS, false);
    for (int i = 0; i < 2; i++) {
        const rdt_status status = rdt_endpoint_wait_ready(pair.ep[i], 20 * RIG_S, &err);
        CHECK_MSG(status == RDT_EMISMATCH, "%s: %s", rdt_status_name(status), err.message);
        check_says_once(err.message, "no write reached rank");
    }
    close_pair(&pair);
    sim_end();
}

/* Devices that are there and refuse to give what a lane takes. The listener's half is made first,
 * so `skip` 1 leaves the failure to the connector. */
static void
check_half_fails(const char *call, uint32_t skip)
{
    const struct sim_config config = sim_default();
    struct pair pair;
    static char text[65536];

    sim_begin(&config);
    for (int i = 0; i < 2; i++)
        context_make(&pair.ctx[i], RDT_TRANSPORT_AUTO, "secret", i);
    for (int i = 0; i < 2; i++)
        pair.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false;
    sim_fail_named(call, skip, UINT32_MAX, EMFILE);
    endpoint_make(pair.ctx[0], pair.ctx[1], 1, &pair.ep[0]);
    endpoint_make(pair.ctx[1], pair.ctx[0], 0, &pair.ep[1]);
    check_path(&pair, RDT_TRANSPORT_TCP);
    for (int i = 0; i < 2; i++) {
        describe(pair.ctx[i], text, sizeof(text));
        CHECK_STR_CONTAINS(text, "on sim0");
        CHECK_STR_CONTAINS(text, strerror(EMFILE));
    }
    close_pair(&pair);
    sim_end();
}

TEST_TIMEOUT(a_half_that_cannot_be_made_leaves_tcp, 60)
{
    check_half_fails("create_qp", 0);
    check_half_fails("create_cq", 0);
    check_half_fails("create_qp", 1);
    check_half_fails("modify_qp", 0);
}

TEST_TIMEOUT(a_half_that_cannot_be_made_is_an_error_where_verbs_is_required, 60)
{
    const struct sim_config config = sim_default();
    struct rdt_error err = {0};

    for (uint32_t skip = 0; skip < 2; skip++) {
        struct pair pair;

        sim_begin(&config);
        sim_fail_named("create_qp", skip, UINT32_MAX, EMFILE);
        open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS, false);
        for (int i = 0; i < 2; i++) {
            const rdt_status status = rdt_endpoint_wait_ready(pair.ep[i], 20 * RIG_S, &err);
            CHECK_MSG(status == RDT_EMISMATCH, "%s: %s", rdt_status_name(status), err.message);
            check_says_once(err.message, "ibv_create_qp on sim0");
        }
        close_pair(&pair);
        sim_end();
    }
}

TEST(a_peer_without_devices_leaves_tcp)
{
    struct sim_config config = sim_default();
    struct pair pair;
    static char text[65536];

    sim_begin(&config);
    context_make(&pair.ctx[0], RDT_TRANSPORT_AUTO, "secret", 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "other0", 1), 0);
    context_make(&pair.ctx[1], RDT_TRANSPORT_AUTO, "secret", 1);
    for (int i = 0; i < 2; i++)
        pair.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false;
    for (int i = 0; i < 2; i++)
        endpoint_make(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
    check_path(&pair, RDT_TRANSPORT_TCP);
    for (int i = 0; i < 2; i++) { /* whichever of them connected */
        describe(pair.ctx[i], text, sizeof(text));
        const char *reason = strstr(text, "\"why_not_better\":");
        CHECK(reason != NULL);
        CHECK_STR_CONTAINS(reason, "verbs: rank 1 has none");
        CHECK_STR_CONTAINS(text, "\"is_fallback\":false"); /* the pair has no better one */
        CHECK_STR_CONTAINS(text, "\"fallback_bytes\":0");
    }
    CHECK_STR_CONTAINS(strstr(text, "\"why_not_better\":"),
                       "RDMATENSOR_VERBS_DEVICES=other0 names other0, which is not there");
    close_pair(&pair);
    sim_end();
}

/* Rank 1 has no device; who requires verbs, or has a peer that does, hears so, and what rank 1 has
 * against it. */
static void
check_required(uint32_t require0, uint32_t require1)
{
    const struct sim_config config = sim_default();
    const uint64_t begun_ns = test_now_ns();
    struct rdt_error err = {0};
    struct pair pair;

    sim_begin(&config);
    context_make(&pair.ctx[0], RDT_TRANSPORT_AUTO, "secret", 0);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "other0", 1), 0);
    context_make(&pair.ctx[1], RDT_TRANSPORT_AUTO, "secret", 1);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_VERBS_DEVICES"), 0);
    pair.ctx[0]->opts.require_transport = require0;
    pair.ctx[1]->opts.require_transport = require1;
    for (int i = 0; i < 2; i++)
        pair.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false;
    for (int i = 0; i < 2; i++)
        endpoint_make(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
    for (int i = 0; i < 2; i++) {
        const rdt_status status = rdt_endpoint_wait_ready(pair.ep[i], 20 * RIG_S, &err);
        CHECK_MSG(status == RDT_EMISMATCH, "%s: %s", rdt_status_name(status), err.message);
        check_says_once(err.message, "verbs: rank 1 has none");
    }
    /* Far from any deadline. */
    CHECK(test_now_ns() - begun_ns < 10 * RIG_S);
    close_pair(&pair);
    sim_end();
}

TEST_TIMEOUT(a_peer_without_devices_is_an_error_on_both_where_verbs_is_required, 90)
{
    check_required(RDT_TRANSPORT_VERBS, RDT_TRANSPORT_VERBS);
    check_required(RDT_TRANSPORT_VERBS, RDT_TRANSPORT_AUTO);
    check_required(RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS);
}

/* Whoever came first has its error and is gone with it: the one that comes later hears the same. */
TEST(who_comes_after_a_peer_that_was_refused_hears_why)
{
    const struct sim_config config = sim_default();
    const struct rdt_endpoint_opts opts = {.struct_size = sizeof(opts), .job_id = "job"};
    uint8_t address[RDT_ADDRESS_MAX_BYTES];
    struct rdt_error err = {0};
    size_t address_bytes = 0;
    struct pair pair;

    sim_begin(&config);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_DEVICES", "other0", 1), 0);
    context_make(&pair.ctx[0], RDT_TRANSPORT_AUTO, "secret", 0);
    CHECK_INT_EQ(unsetenv("RDMATENSOR_VERBS_DEVICES"), 0);
    context_make(&pair.ctx[1], RDT_TRANSPORT_AUTO, "secret", 1);
    for (int i = 0; i < 2; i++) {
        pair.ctx[i]->opts.require_transport = RDT_TRANSPORT_VERBS;
        pair.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false;
    }
    check_ok(rdt_context_address(pair.ctx[0], address, sizeof(address), &address_bytes, &err), &err,
             "address");
    endpoint_make(pair.ctx[0], pair.ctx[1], 1, &pair.ep[0]);
    CHECK_STATUS(rdt_endpoint_wait_ready(pair.ep[0], 20 * RIG_S, &err), RDT_EMISMATCH);
    rdt_endpoint_close(pair.ep[0]);
    for (int i = 0; i < 2; i++)
        pair.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = true;
    check_ok(rdt_context_close(pair.ctx[0], &err), &err, "context_close");
    check_ok(rdt_endpoint_open(pair.ctx[1], address, address_bytes, &opts, &pair.ep[1], &err), &err,
             "endpoint_open");
    const rdt_status status = rdt_endpoint_wait_ready(pair.ep[1], 20 * RIG_S, &err);
    CHECK_MSG(status == RDT_EMISMATCH, "%s: %s", rdt_status_name(status), err.message);
    CHECK_INT_EQ(err.peer_rank, 0);
    CHECK_STR_CONTAINS(err.message, "verbs is required");
    CHECK_STR_CONTAINS(err.message, "rank 0");
    rdt_endpoint_close(pair.ep[1]);
    check_ok(rdt_context_close(pair.ctx[1], &err), &err, "context_close");
    sim_end();
}

/* Only RDMA would do, and is lost: whoever notices leaves, and the other, which has nothing on its
 * way, hears why. */
TEST(who_leaves_a_path_that_is_broken_says_why)
{
    const struct sim_config config = sim_default();
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *region;
    rdt_transfer *t;
    uint32_t value = 0;

    sim_begin(&config);
    open_pair(&pair, RDT_TRANSPORT_AUTO, RDT_TRANSPORT_VERBS, false);
    check_path(&pair, RDT_TRANSPORT_VERBS);
    check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    sim_cut_device(0, true);
    check_ok(rdt_endpoint_write(pair.ep[0], "12345678", 8, &remote, 0, 5, &t, &err), &err, "write");
    rdti_engine_enter(pair.ctx[0]->engine);
    for (const uint64_t end_ns = test_now_ns() + 10 * RIG_S;
         pair.ep[0]->lane_broken_ns == 0 && test_now_ns() < end_ns;)
        (void)rdti_engine_pass(pair.ctx[0]->engine, true);
    rdt_endpoint_close(pair.ep[0]); /* before it is given up for it */
    rdti_engine_leave(pair.ctx[0]->engine);
    pair.ep[0] = NULL;
    CHECK_STATUS(rdt_transfer_wait(t, 10 * RIG_S, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "verbs lane to rank 1");
    rdt_transfer_free(t);
    CHECK_STATUS(rdt_endpoint_wait_notify(pair.ep[1], 10 * RIG_S, &value, &err), RDT_EPEER);
    CHECK_STR_CONTAINS(err.message, "rank 0 closed the connection: verbs lane to rank 1");
    rdt_region_free(region, NULL, NULL);
    sim_cut_device(0, false);
    close_pair(&pair);
    sim_end();
}

/* Enough to open the device, too little for the arena: tcp, and the lines that mend it. */
TEST_TIMEOUT(too_little_lockable_memory_leaves_tcp, 60)
{
    struct sim_config config = sim_default();
    const uint64_t begun_ns = test_now_ns();
    static char text[65536];
    struct pair pair;

    config.memlock_bytes = 512 << 10;
    sim_begin(&config);
    for (int i = 0; i < 2; i++)
        context_make(&pair.ctx[i], RDT_TRANSPORT_AUTO, "secret", i);
    verbs_limit_memlock(512 << 10);
    for (int i = 0; i < 2; i++)
        pair.ctx[i]->found[RDT_TRANSPORT_SHM].is_viable = false;
    for (int i = 0; i < 2; i++)
        endpoint_make(pair.ctx[i], pair.ctx[1 - i], 1 - i, &pair.ep[i]);
    check_path(&pair, RDT_TRANSPORT_TCP);
    CHECK(test_now_ns() - begun_ns < 4 * RIG_S); /* not by the deadline of a path */
    for (int i = 0; i < 2; i++) {
        describe(pair.ctx[i], text, sizeof(text));
        CHECK_STR_CONTAINS(text, "RLIMIT_MEMLOCK is 524288");
        CHECK_STR_CONTAINS(text, "docker: --ulimit memlock=-1");
    }
    close_pair(&pair);
    sim_end();
}

/* A goodbye is looked at before what lies in the CQs: a window of messages over many QPs. */
TEST_TIMEOUT(a_goodbye_overtakes_no_message, 60)
{
    enum { COUNT = 240 };
    const struct sim_config config = sim_default();
    struct rdt_remote_region remote;
    struct rdt_error err = {0};
    struct pair pair;
    rdt_region *region;
    uint32_t value = 0;

    sim_begin(&config);
    CHECK_INT_EQ(setenv("RDMATENSOR_VERBS_QPS", "8", 1), 0);
    open_pair(&pair, RDT_TRANSPORT_VERBS, RDT_TRANSPORT_AUTO, true);
    check_path(&pair, RDT_TRANSPORT_VERBS);
    check_ok(rdt_region_alloc(pair.ctx[1], 64, 0, &region, &err), &err, "alloc");
    check_ok(rdt_region_export(region, &remote, &err), &err, "export");
    rdti_engine_enter(pair.ctx[1]->engine); /* nobody looks there meanwhile */
    for (uint32_t i = 0; i < COUNT; i++) {
        rdt_transfer *t;
        check_ok(rdt_endpoint_write(pair.ep[0], "12345678", 8, &remote, 0, i, &t, &err), &err,
                 "write");
        check_ok(rdt_transfer_wait(t, 10 * RIG_S, &err), &err, "transfer_wait");
        rdt_transfer_free(t);
    }
    rdt_endpoint_close(pair.ep[0]);
    const struct timespec while_goodbye_goes_out = {.tv_nsec = 100000000};
    (void)nanosleep(&while_goodbye_goes_out, NULL);
    rdti_engine_leave(pair.ctx[1]->engine);
    for (uint32_t i = 0; i < COUNT; i++) {
        check_ok(rdt_endpoint_wait_notify(pair.ep[1], 10 * RIG_S, &value, &err), &err, "notify");
        CHECK_UINT_EQ(value, i);
    }
    rdt_region_free(region, NULL, NULL);
    rdt_endpoint_close(pair.ep[1]);
    for (int i = 0; i < 2; i++)
        check_ok(rdt_context_close(pair.ctx[i], &err), &err, "context_close");
    sim_end();
}

TEST_MAIN()
